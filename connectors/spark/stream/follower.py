"""What a streaming query's driver knows of its topics: kept in memory, and asked for again only where it has changed.

    topic's record ──watched──▶ closed ledgers: entries and bytes, once each
    last ledger ────asked at each look──▶ how far it may be read

Rules:

1. The record of a topic says how many entries its closed ledgers have; only where it does not, their own records are
   read. A look without news asks the bookies of the open ledgers, and nobody else.
2. An entry at the open end may be read when its writer has said that it is confirmed, or when it has been held for
   SETTLED_S by so many bookies that every recovery finds it, and still is: a writer that closes its ledger just then
   would leave out such an entry, if the bookies' answers have not reached it yet, and write it once more elsewhere.
   What only some of them hold while others are silent may be gone when the batch is repeated; it waits for them.
3. Entries that are gone although they were not read are loss of data, as far as it can be known: ledgers that were seen
   before, and the ledger in which reading stopped. A query with a subscription keeps the last entry that it has read
   (`connectors.spark.stream.retaining`): topics give up their oldest ledgers first, so all behind it is there while
   it is, and where a query that comes back does not find its ledger, others have moved the subscription, and what was
   behind is not known.
4. Ledgers are read in order: what stands behind an open ledger, whose entries the record does not count, waits until
   it is closed.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from connectors.spark.bookie_access import check_let_in
from connectors.spark.options.read import ReadOptions
from connectors.spark.plan import topics
from connectors.spark.plan.cluster import DataLoss, TopicMissing, check_own, time_bounds
from connectors.spark.plan.planning import TopicRange, clip
from connectors.spark.plan.recorded import check_on_bookies, places, recorded
from connectors.spark.ranges import Position, Run, Times
from connectors.spark.stream.offsets import EARLIEST, Part, Positions
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, DigestMismatch, EndUnknown, NoSuchLedger
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import MagnetarError
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import ShadowTopic
from managed_ledger.ledgers.topic_record import stored_record
from managed_ledger.records.paths import cursor_path, ledger_path

log = logging.getLogger(__name__)

# Rule 2. Answers of bookies take some milliseconds; Spark needs some 170 ms for a batch of its own.
SETTLED_S: Final = 0.05

# How many ledgers are asked for at once: enough to hide the latency, few enough for one connection.
CONCURRENT_MAX: Final = 64

# Runs before a batch that its tasks get: one more than they look back over, so that they see that more precede.
_BEFORE: Final = 9


class Follower:
    """The topics of one query."""

    def __init__(self, options: ReadOptions, store: MetadataStore, bookkeeper: BookKeeper, clock: Clock) -> None:
        self._options = options
        self._store = store
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._topics: dict[TopicName, _Topic] = {}
        self._is_listing_stale = True
        self._cancels: list[Cancel] = []
        self._slots = asyncio.Semaphore(CONCURRENT_MAX)
        self._warned: set[str] = set()
        """Losses that were logged, so that they are not logged again at each trigger."""
        pattern = options.pattern
        if pattern is not None:
            self._cancels = [store.watch_children(path, self._on_listing) for path in topics.listings(pattern)]
        else:
            self._topics = {topic: self._new_topic(topic) for topic in options.topics}

    def _new_topic(self, topic: TopicName) -> "_Topic":
        return _Topic(topic, self._store, self._bookkeeper, self._clock, self._slots)

    def _on_listing(self) -> None:
        self._is_listing_stale = True

    @property
    def topics(self) -> list[TopicName]:
        """The topics that are read now."""
        return sorted(self._topics)

    async def look(self) -> None:
        """Find out what is new. Raises TopicMissing, ShadowTopic, MagnetarError."""
        pattern = self._options.pattern
        if pattern is not None and self._is_listing_stale:
            self._is_listing_stale = False
            try:
                for topic in await topics.topics_like(self._store, pattern):
                    if topic not in self._topics:
                        log.info("%s is read, too", topic)
                        self._topics[topic] = self._new_topic(topic)
            except BaseException:
                self._is_listing_stale = True
                raise
        for topic, view in list(self._topics.items()):
            try:
                await view.look()
            except TopicMissing:
                if pattern is None:
                    raise
                self._topics.pop(topic).close()  # it was listed, and is gone since
            except ShadowTopic as error:
                if pattern is None:
                    raise
                self._topics.pop(topic).close()
                log.warning("%s; it is left out", error)

    async def look_up_to(self, ends: Positions) -> None:
        """As `look`, for a batch that goes up to *ends*: another process may have planned it, whose server of the
        metadata store was ahead of the one that answers here. `check_known` checks what is still not known."""
        await self.look()
        if all(self._knows(part, end) for part, end in ends.items()):
            return
        await self._store.sync()
        self._is_listing_stale = True
        for topic in self._topics.values():
            topic.distrust()
        await self.look()

    def _knows(self, part: Part, end: Position) -> bool:
        view = self._part(part)
        return not self._is_asked_for(TopicName.parse(part.topic)) if view is None else view.knows(end)

    async def look_settled(self) -> None:
        """As `look`, but all that is there when it is called is seen (rule 2)."""
        await self.look()
        await self._clock.sleep(2 * SETTLED_S)
        await self.look()

    def _part(self, part: Part) -> "_PartView | None":
        topic = self._topics.get(TopicName.parse(part.topic))
        return None if topic is None else topic.parts.get(part.number)

    def _view_all(self) -> "dict[Part, _PartView]":
        return {
            Part(topic.full, number): view
            for topic, of_topic in self._topics.items()
            for number, view in of_topic.parts.items()
        }

    def begins(self) -> dict[Part, Position]:
        """The first entry of each partition."""
        return {part: view.begin for part, view in self._view_all().items()}

    def ends(self) -> dict[Part, Position]:
        """The position behind what may be read of each partition."""
        return {part: view.end for part, view in self._view_all().items()}

    async def first_of(self, part: Part, times: Times) -> Position:
        """About where the messages of *times* begin; the end if there are none. Raises MagnetarError."""
        view = self._part(part)
        if view is None:
            return EARLIEST
        runs, _ = view.runs(view.begin, view.end)
        first, _ = await time_bounds(self._bookkeeper, view.name, runs, view.closed_ms, times)
        return view.end if first is None or not clip(runs, first, None)[0] else first

    def check_known(self, part: Part, end: Position) -> None:
        """Check that all that stands before *end* of a partition, up to which a batch was planned, is known. Raises
        DataLoss, unless failOnDataLoss is false."""
        if not self._knows(part, end):
            self._report_loss(
                f"partition {part.number} of {part.topic}: a batch up to {_position_text(end)} was planned, and what "
                "stands before that is not known (any more): the topic does not list its ledger, or has an open one "
                "before",
                "If it was removed, raise the namespace's retention, or set option subscription; ",
            )

    def range(self, part: Part, start: Position, end: Position) -> TopicRange:
        """What is to be read of a partition. Raises OffloadedLedger."""
        view = self._part(part)
        if view is None:
            return TopicRange(part.topic, -1, ())
        runs, before = view.runs(start, end)
        check_on_bookies(view.name.full, runs, view.offloaded)
        return TopicRange(view.name.full, view.name.partition, runs, before)

    def reach(self, part: Part, end: Position) -> None:
        """Let what stands before *end* of a partition be read: a look has seen it before, maybe in another process."""
        view = self._part(part)
        if view is not None:
            view.reach(end)

    def name_of(self, part: Part) -> TopicName | None:
        """The topic that a client would name; None: it is not known here."""
        view = self._part(part)
        return None if view is None else view.name

    def last_before(self, part: Part, position: Position) -> Position | None:
        """The last entry before *position*, as far as ledgers are known."""
        view = self._part(part)
        return None if view is None else view.last_before(position)

    async def without_cursor(self, subscription: str) -> set[Part]:
        """The partitions that have no subscription of this name. Raises MetadataError."""
        names = {part: view.name.managed_ledger_name for part, view in self._view_all().items()}
        there = await asyncio.gather(*(self._store.exists(cursor_path(name, subscription)) for name in names.values()))
        return {part for part, is_there in zip(names, there, strict=True) if not is_there}

    def check_whole(self, part: Part, start: Position, kept: Position | None) -> None:
        """Rule 3. *kept*: the entry that a subscription has kept before *start*. Raises DataLoss, unless
        failOnDataLoss is false."""
        view = self._part(part)
        advice = "Raise the namespace's retention, or set option subscription, which keeps what was not read. "
        if kept is not None:
            advice = "Give the topic a longer message TTL and backlog quota, and leave the subscription to the query. "
        if view is not None:
            text = view.loss(start, kept)
        elif start > EARLIEST and self._is_asked_for(TopicName.parse(part.topic)):
            text = (
                f"partition {part.number} of {part.topic}, of which reading stopped at {_position_text(start)}, is "
                "gone; whether it had more entries is not known"
            )
            advice = ""
        else:
            text = None
        if text is not None:
            self._report_loss(text, advice)

    def _report_loss(self, text: str, advice: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}. {advice}To go on without it set failOnDataLoss=false, or begin a new checkpoint")
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s; going on without it", text)

    def _is_asked_for(self, topic: TopicName) -> bool:
        """Whether the options name this topic. The options of a query may change between two runs."""
        pattern = self._options.pattern
        return topic in self._options.topics if pattern is None else topics.is_like(topic, pattern)

    def give_up(self, part: Part) -> bool:
        """Whether a partition does not exist any more; its loss counts as reported from now on. If it is made again, it
        is a new one, which is read from its first entry."""
        view = self._part(part)
        return self._is_asked_for(TopicName.parse(part.topic)) if view is None else view.give_up()

    def close(self) -> None:
        """Stop watching."""
        for cancel in self._cancels:
            cancel()
        for topic in self._topics.values():
            topic.close()


class _Topic:
    """A topic and its partitions; partitions that are added join."""

    def __init__(
        self, name: TopicName, store: MetadataStore, bookkeeper: BookKeeper, clock: Clock, slots: asyncio.Semaphore
    ) -> None:
        self._name = name
        self._store = store
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._slots = slots
        self.parts: dict[int, _PartView] = {}
        self._is_stale = True
        self._cancel = store.watch_node(name.partitions_path, self._on_change)

    def _on_change(self) -> None:
        self._is_stale = True

    def distrust(self) -> None:
        """Read all records again at the next look."""
        self._is_stale = True
        for part in self.parts.values():
            part.distrust()

    async def look(self) -> None:
        if self._is_stale:
            self._is_stale = False
            try:
                await self._count()
            except BaseException:
                self._is_stale = True
                raise
        await asyncio.gather(*(part.look() for part in self.parts.values()))

    async def _count(self) -> None:
        """Read which partitions there are. Raises TopicMissing."""
        count = await topics.partition_count(self._store, self._name)
        record = ledger_path(self._name.managed_ledger_name)
        if count is None and not self.parts and not await self._store.exists(record):
            raise TopicMissing(f"topic {self._name} does not exist")
        names = [self._name] if count is None else [self._name.with_partition(number) for number in range(count)]
        for number, name in enumerate(names):
            if number not in self.parts:
                self.parts[number] = _PartView(name, self._store, self._bookkeeper, self._clock, self._slots)

    def close(self) -> None:
        self._cancel()
        for part in self.parts.values():
            part.close()


class _PartView:
    """The ledgers of one partition."""

    def __init__(
        self, name: TopicName, store: MetadataStore, bookkeeper: BookKeeper, clock: Clock, slots: asyncio.Semaphore
    ) -> None:
        self.name = name
        self._store = store
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._slots = slots
        self._ledger_ids: list[int] = []
        """As the record lists them."""
        self._closed: dict[int, Run | None] = {}
        """What is in closed ledgers; None: nothing."""
        self._open: dict[int, _OpenLedger] = {}
        self._runs: list[Run] = []
        self._missing: set[int] = set()
        """Ledgers that the record lists and that are not there."""
        self._gone_end: Position | None = None
        """The position behind the last entry that was seen in a ledger that the record does not list any more."""
        self._gone_whole_end: Position = EARLIEST
        """The position behind the last ledger that had entries and was closed when it went: they had all been seen."""
        self._has_record = False
        self._is_deleted = False
        """Whether there was a record, and now there is none."""
        self._is_given_up = False
        self._is_stale = True
        self.closed_ms: dict[int, int] = {}
        """When ledgers were closed."""
        self.offloaded: Mapping[int, str] = {}
        """Ledgers that are in tiered storage alone, and where."""
        self._cancel = store.watch_node(ledger_path(name.managed_ledger_name), self._on_change)

    def _on_change(self) -> None:
        self._is_stale = True

    def distrust(self) -> None:
        """Read the record again at the next look."""
        self._is_stale = True

    def close(self) -> None:
        self._cancel()

    async def look(self) -> None:
        """Raises MagnetarError."""
        is_changed = self._is_stale
        if self._is_stale:
            self._is_stale = False
            try:
                await self._read_record()
                if self._missing:  # they may have been trimmed since the record was read
                    await self._read_record()
            except BaseException:
                self._is_stale = True
                raise
        if self._open:
            await asyncio.gather(*(ledger.look() for ledger in self._open.values()))
            for ledger in [ledger for ledger in self._open.values() if ledger.is_closed]:
                del self._open[ledger.ledger_id]
                self._is_stale = True  # the topic has another one, or will have: the watch may be slower
                if ledger.is_gone:
                    self._note_loss(ledger.run)
                else:
                    self._closed[ledger.ledger_id] = ledger.run
            is_changed = True
        if is_changed:
            self._arrange()

    async def _read_record(self) -> None:
        record = await stored_record(self._store, self.name.managed_ledger_name)
        if set(self._ledger_ids) - {info.ledgerId for info in ([] if record is None else record.ledgerInfo)}:
            # They are gone; or a new session with the metadata store has led to a server that does not know them yet.
            await self._store.sync()
            record = await stored_record(self._store, self.name.managed_ledger_name)
        if record is not None:
            await check_own(self._store, self.name, record)
        infos = [] if record is None else record.ledgerInfo
        self._is_deleted = record is None and (self._is_deleted or self._has_record)
        self._has_record = record is not None
        ledger_ids = [info.ledgerId for info in infos]
        for gone in sorted(set(self._ledger_ids) - set(ledger_ids)):
            ledger = self._open.pop(gone, None)
            if self._closed.get(gone) is not None:
                self._gone_whole_end = max(self._gone_whole_end, (gone + 1, 0))
            self._note_loss(self._closed.pop(gone, None) if ledger is None else ledger.run)
        known, untold = recorded(infos)  # rule 1
        for ledger_id, run in known.items():
            self._open.pop(ledger_id, None)
            self._closed.setdefault(ledger_id, run)
        unknown = [ledger_id for ledger_id in untold if ledger_id not in self._closed and ledger_id not in self._open]
        self._missing = set()
        opened = await asyncio.gather(*(self._opened(ledger_id) for ledger_id in unknown))
        for ledger_id, ledger_or_run in zip(unknown, opened, strict=True):
            if ledger_id in self._missing:
                continue
            if isinstance(ledger_or_run, _OpenLedger):
                self._open[ledger_id] = ledger_or_run
            else:
                self._closed[ledger_id] = ledger_or_run
        self._ledger_ids = ledger_ids
        self.closed_ms = {info.ledgerId: info.timestamp for info in infos}
        self.offloaded = places(infos)

    def _note_loss(self, run: Run | None) -> None:
        """Note that what was seen of a ledger is gone."""
        if run is not None:
            self._gone_end = max(self._gone_end or EARLIEST, (run.ledger_id, run.last + 1))

    async def _opened(self, ledger_id: int) -> "_OpenLedger | Run | None":
        """What is known of a ledger. Raises NotLetIn, MagnetarError."""
        async with self._slots:
            try:
                handle = await self._bookkeeper.open_ledger(ledger_id, recovery=False)
            except NoSuchLedger:
                self._missing.add(ledger_id)
                return None
            except BookKeeperError as error:
                check_let_in(error)
                raise MagnetarError(f"ledger {ledger_id} of {self.name} cannot be opened: {error}") from error
        assert handle.ledger_id == ledger_id, f"asked for ledger {ledger_id}, got {handle.ledger_id}"
        if handle.is_closed:
            return _run_of(handle, handle.metadata.last_entry_id)
        return _OpenLedger(self.name, handle, self._clock)

    def _arrange(self) -> None:
        assert not self._open.keys() & self._closed.keys(), "a ledger is either open or closed"
        assert not self._missing & self._closed.keys(), "nothing is known of a ledger that is not there"
        self._runs = []
        for ledger_id in self._ledger_ids:
            ledger = self._open.get(ledger_id)
            run = self._closed.get(ledger_id) if ledger is None else ledger.run
            if run is not None:
                self._runs.append(run)
            if ledger is not None:
                break  # rule 4

    @property
    def begin(self) -> Position:
        return (self._ledger_ids[0], 0) if self._ledger_ids else EARLIEST

    @property
    def end(self) -> Position:
        if not self._runs:
            return EARLIEST  # and not the first ledger, which is empty: brokers give up such a one at any time
        last = self._runs[-1]
        return (last.ledger_id, last.last + 1) if last.ledger_id in self._open else (last.ledger_id + 1, 0)

    def knows(self, end: Position) -> bool:
        """Whether all that stands before *end*, where a batch ends, is known."""
        ledger_id, entry_id = end
        if any(other < ledger_id for other in self._open):
            return False  # for that batch the ledger was closed, or the batch ended before it
        if ledger_id in self._ledger_ids or (entry_id == 0 and ledger_id - 1 in self._ledger_ids):
            return True
        return end <= self._gone_whole_end  # if something of it had not been read, `loss` reports it

    def reach(self, end: Position) -> None:
        """See `Follower.reach`."""
        ledger_id, entry_id = end
        if ledger_id in self._open and entry_id > 0:
            self._open[ledger_id].reach(entry_id - 1)
            self._arrange()

    def runs(self, start: Position, end: Position) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        """(what is from *start* on and before *end*, the nearest of what stands before it)."""
        first = bisect_left(self._runs, start[0], key=lambda run: run.ledger_id)
        last = bisect_left(self._runs, end[0] + 1, key=lambda run: run.ledger_id)
        kept, before = clip(self._runs[first:last], start, end)
        return kept, (*self._runs[max(first - _BEFORE, 0) : first], *before)

    def last_before(self, position: Position) -> Position | None:
        """The last entry before *position*."""
        _, before = self.runs(position, position)
        return (before[-1].ledger_id, before[-1].last) if before else None

    def loss(self, start: Position, kept: Position | None) -> str | None:
        """What was lost behind *start*, as a sentence; None: nothing, as far as is known. *kept*: the entry that a
        subscription keeps."""
        if self._gone_end is not None and start < self._gone_end:
            return f"{self.name}: what was stored from {_position_text(start)} on was removed before it was read"
        missing = [ledger for ledger in sorted(self._missing) if ledger >= start[0]]
        if missing:
            return f"{self.name}: ledger {missing[0]} is gone, although the topic lists it"
        ledger_id, entry_id = start
        if ledger_id in self._ledger_ids or self._gone_end is not None or self._is_given_up:
            return None
        if kept is not None:
            if self._ledger_ids and self._ledger_ids[0] <= kept[0]:
                return None
            return (
                f"{self.name}: ledger {kept[0]}, which the subscription kept for its entry {_position_text(kept)}, is "
                "gone: the subscription was deleted, or moved by others than the query (message TTL, backlog eviction, "
                "skip, reset); whether there were more entries is not known"
            )
        if entry_id == 0:
            return None
        return (
            f"{self.name}: ledger {ledger_id}, in which reading stopped at {_position_text(start)}, is gone; whether "
            "it had more entries is not known"
        )

    def give_up(self) -> bool:
        """See `Follower.give_up`."""
        assert not (self._is_deleted and self._has_record), "a partition that has a record is not deleted"
        if self._is_deleted:
            self._is_given_up, self._gone_end = True, None
        return self._is_deleted


def _position_text(position: Position) -> str:
    return f"{position[0]}:{position[1]}"


def _run_of(handle: LedgerReadHandle, last: int) -> Run | None:
    return Run(handle.ledger_id, 0, last, max(handle.length, 1)) if last >= 0 else None


class _OpenLedger:
    """A ledger that is written to (rule 2)."""

    def __init__(self, topic: TopicName, handle: LedgerReadHandle, clock: Clock) -> None:
        self._topic = topic
        self._handle = handle
        self._clock = clock
        self._held: list[tuple[float, int]] = []
        """When enough bookies were first seen to hold an entry behind the confirmed ones."""
        self.ledger_id = handle.ledger_id
        self.run: Run | None = None
        self.is_closed = False
        self.is_gone = False
        self._problem = ""

    async def look(self) -> None:
        """Raises nothing: what cannot be known now is looked for again."""
        handle = self._handle
        try:
            held = await handle.last_recoverable_entry(is_certain=True)
            self._problem = ""
        except NoSuchLedger:
            self.is_closed = self.is_gone = True
            return
        except EndUnknown as error:
            held = error.last_known
            self._complain(error)
        except (BookKeeperError, DigestMismatch) as error:
            self._complain(error)
            return
        if handle.is_closed:
            self.is_closed = True
            self.run = _run_of(handle, handle.metadata.last_entry_id)
            return
        confirmed, now = handle.last_add_confirmed, self._clock.monotonic()  # the bookies may have taken their time
        # Bookies lose what they have not written.
        self._held = [(at, entry_id) for at, entry_id in self._held if entry_id <= held]
        if held > max(confirmed, self._held[-1][1] if self._held else -1):
            self._held.append((now, held))
        settled = [entry_id for at, entry_id in self._held if now - at >= SETTLED_S]
        last = max(confirmed, *settled, -1 if self.run is None else self.run.last)
        assert self.run is None or last >= self.run.last, "what may be read of a ledger never becomes less"
        self._held = [seen for seen in self._held if seen[1] > last]
        if self.run is None or last > self.run.last:
            self.run = await self._run_up_to(last)

    def reach(self, last: int) -> None:
        """Let entries up to *last* be read: an earlier look has seen them as settled. It does not matter if fewer of
        them can be seen now, because fewer bookies answer or they have been seen for a shorter time."""
        assert last >= 0, f"entry {last} cannot have been seen"
        if self.run is None or last > self.run.last:
            # The sizes of the new entries are not known: each counts as the average of those before, or as one byte.
            known = self.run or Run(self.ledger_id, 0, 0, 1)
            self.run = Run(self.ledger_id, 0, last, known.size_bytes * (last + 1) // known.entries)

    async def _run_up_to(self, last: int) -> Run | None:
        """The entries 0 to *last*, with their size: an estimate from the bytes up to LAC, or, before any entry is
        confirmed, as *last* itself carries it. If that entry cannot be read, what was known before."""
        if last < 0:
            return None
        confirmed, length = self._handle.last_add_confirmed, self._handle.length
        if confirmed < 0:
            try:
                (entry,) = await self._handle.read_unconfirmed(last, last)  # each entry carries the length up to it
            except (BookKeeperError, DigestMismatch) as error:
                self._complain(error)
                return self.run
            return Run(self.ledger_id, 0, last, max(entry.length, 1))
        return Run(self.ledger_id, 0, last, max(length * (last + 1) // (confirmed + 1), 1))

    def _complain(self, error: Exception) -> None:
        """Log *error*, but each text only once."""
        if str(error) != self._problem:
            self._problem = str(error)
            log.warning("%s: how far ledger %s goes is not known now: %s", self._topic, self.ledger_id, error)
