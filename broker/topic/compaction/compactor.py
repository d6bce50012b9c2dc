"""The compaction of one topic: runs it, and reads what it kept.

    horizon ◀── the cursor `__compaction`: up to where the topic was looked at, and the id of the compacted ledger
    run     ──▶ (compacted ledger, then the topic behind the horizon) twice: `LastOfKeys` ──▶ a new compacted ledger
                ──▶ cursor: new horizon and new ledger, stored together ──▶ the old ledger is deleted

Rules:

1. The new ledger is closed before the cursor names it, and the old one is deleted after that is stored (I100).
2. When it is not known whether the cursor was stored, both ledgers stay: one of them is named. The old one is deleted
   after the next compaction.
3. An interrupted compaction changes nothing: the horizon never goes back (R-M13).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from broker.topic.compaction.compacted_view import CompactedRun
from broker.topic.compaction.latest_keys import Kept, LastOfKeys, Opened, opened
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks, in_turns
from magnetar_core.runtime.types import GIB, KIB, Corruption, MagnetarError
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.compacted.entry import COMPACTED_LEDGER, COMPACTION_CURSOR
from managed_ledger.errors import DataLost, ManagedLedgerClosed, ManagedLedgerError, StorageUnavailable
from managed_ledger.position import EARLIEST, Position

if TYPE_CHECKING:
    from managed_ledger.compacted.ledger import CompactedLedger
    from managed_ledger.cursors.managed_cursor import ManagedCursor
    from managed_ledger.ledger import ManagedLedger
    from managed_ledger.reading.reading import Entry

log = logging.getLogger(__name__)

# One read of a compaction: some milliseconds of work on the loop, after which others have their turn.
_READ_ENTRIES: Final = 100
_READ_BYTES: Final = 1024 * 1024

# Entries that are larger, also unpacked, are unpacked and packed on another thread.
INLINE_BYTES_MAX: Final = 128 * KIB


class CompactionStatus(Enum):
    """What became of the last compaction; the names are those of the admin API."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class CompactionFacts:
    """What the last compactions of this broker did. Times are wall-clock milliseconds, 0: never."""

    def __init__(self) -> None:
        self.status = CompactionStatus.NOT_RUN
        self.last_error = ""
        self.removed_messages = 0
        self.succeeded_ms = 0
        self.failed_ms = 0
        self.took_ms = 0
        self.looked_at = 0
        """Messages of the run that is under way, or of the last one."""


class Compactor:
    """Implements `CompactedView`. Used on the loop."""

    def __init__(
        self,
        topic: TopicName,
        ledger: "ManagedLedger",
        clock: Clock,
        tasks: Tasks,
        slots: asyncio.Semaphore,
        keys_bytes_max: int = 2 * GIB,
    ) -> None:
        """*slots*: how many topics of the broker are compacted at the same time, each with *keys_bytes_max* of memory
        for its keys."""
        self._keys_bytes_max = keys_bytes_max
        self._topic = topic
        self._ledger = ledger
        self._clock = clock
        self._tasks = tasks
        self._slots = slots
        self._opened: CompactedLedger | None = None
        self._opening = asyncio.Lock()
        self._cursor_lock = asyncio.Lock()
        self._left: list[int] = []
        """Ledgers that no cursor names any more (rule 2)."""
        self.facts = CompactionFacts()

    # -------------------------------------------------------------------------------- what was kept

    @property
    def cursor(self) -> "ManagedCursor | None":
        """Where the next compaction begins; None: the topic is not compacted."""
        return self._ledger.cursors.get(COMPACTION_CURSOR)

    @property
    def compacted_ledger_id(self) -> int | None:
        """None: the topic was never compacted."""
        cursor = self.cursor
        return None if cursor is None else cursor.properties.get(COMPACTED_LEDGER)

    @property
    def horizon(self) -> Position | None:
        """The last position that was looked at; None: the topic was never compacted."""
        cursor = self.cursor
        return None if cursor is None or COMPACTED_LEDGER not in cursor.properties else cursor.mark_delete_position

    async def read_compacted(self, first: Position, max_entries: int, max_bytes: int) -> CompactedRun:
        """Entries at *first* and behind it; none: there are no more up to the horizon. Raises StorageUnavailable."""
        while True:
            horizon, ledger_id = self.horizon, self.compacted_ledger_id
            assert horizon is not None, f"{self._topic} was never compacted"
            try:
                ledger = await self.compacted()
                assert ledger is not None
                entries = await ledger.read(first, max_entries, max_bytes)
            except StorageUnavailable:
                if ledger_id == self.compacted_ledger_id:
                    raise
                continue  # another compaction has ended, and the ledger was deleted
            if ledger.ledger_id == ledger_id == self.compacted_ledger_id:
                return CompactedRun(entries, horizon)

    async def find_first(self, predicate: Callable[["Entry"], bool]) -> Position | None:
        """The first entry that was kept for which *predicate* is true, by bisection. Raises StorageUnavailable."""
        while (ledger_id := self.compacted_ledger_id) is not None:
            try:
                ledger = await self.compacted()
                return None if ledger is None else await ledger.find_first(predicate)
            except StorageUnavailable:
                if ledger_id == self.compacted_ledger_id:
                    raise
        return None

    async def compacted(self) -> "CompactedLedger | None":
        """The present compacted ledger, opened; None: there is none. Raises StorageUnavailable."""
        async with self._opening:
            ledger_id = self.compacted_ledger_id
            if ledger_id is None:
                return None
            if self._opened is None or self._opened.ledger_id != ledger_id:
                opened = await self._ledger.compacted.open(ledger_id)
                former, self._opened = self._opened, opened
                if former is not None:
                    await former.close()
            return self._opened

    async def last_message(self) -> "Entry | None":
        """The last entry that was kept; None: nothing was, or the topic was never compacted.

        Raises StorageUnavailable.
        """
        ledger = await self.compacted()
        return None if ledger is None else await ledger.last()

    # -------------------------------------------------------------------------------- compaction

    async def expect(self, *, is_expected: bool) -> None:
        """Keep what the first compaction will need, from now on: until then nothing else may hold back trimming.

        Not *is_expected*: nothing is kept for a compaction that never was. Raises ManagedLedgerError.
        """
        async with self._cursor_lock:
            cursor = self.cursor
            if is_expected and cursor is None:
                await self._ledger.open_cursor(COMPACTION_CURSOR, EARLIEST)
            is_unused = cursor is not None and COMPACTED_LEDGER not in cursor.properties
            if not is_expected and is_unused and self.facts.status is not CompactionStatus.RUNNING:
                await self._ledger.delete_cursor(COMPACTION_CURSOR)

    def start(self) -> bool:
        """Begin a compaction in the background; False: one is under way."""
        if self.facts.status is CompactionStatus.RUNNING:
            return False
        self.facts.status = CompactionStatus.RUNNING
        self._tasks.spawn(self._run(), "compaction")
        return True

    async def _run(self) -> None:
        """Compact once, when there is a slot, and keep how it went for the statistics."""
        facts = self.facts
        began_s = self._clock.monotonic()
        facts.last_error = ""
        facts.looked_at = 0
        try:
            async with self._slots:
                await self._compact()
        except (MagnetarError, Corruption) as error:
            facts.status = CompactionStatus.ERROR
            facts.last_error = str(error)
            facts.failed_ms = self._clock.wall_ms()
            log.warning("%s: compaction failed, what was kept before stays: %s", self._topic, error)
        except BaseException as error:
            facts.status = CompactionStatus.ERROR
            facts.last_error = f"{type(error).__name__}: {error}"
            raise
        else:
            facts.status = CompactionStatus.SUCCESS
            facts.succeeded_ms = self._clock.wall_ms()
        finally:
            facts.took_ms = round((self._clock.monotonic() - began_s) * 1000)

    async def _compact(self) -> None:
        """Write the last message of each key into a new ledger.

        The topic is read twice: first to learn which messages are the last, then to copy these. The cursor keeps the
        entries until the new ledger is named (rules 1 and 2).
        """
        last = self._ledger.ledgers.last_confirmed
        former_ledger = await self._kept_before()
        begin = EARLIEST
        if former_ledger is not None and self.horizon is not None:
            begin = self._ledger.ledgers.next_position(self.horizon)
        if last.entry_id < 0 or begin > last:
            return  # nothing came since
        # First of all, so that from now on nothing is trimmed that is not in a compacted ledger.
        async with self._cursor_lock:
            cursor = await self._ledger.open_cursor(COMPACTION_CURSOR, EARLIEST)
        keys = LastOfKeys(self._keys_bytes_max)
        async for entries in self._entries(former_ledger, begin, last):
            for entry in entries:
                await in_turns(keys.note(await unpacked(entry)))
                self.facts.looked_at = keys.messages
        writer = await self._ledger.compacted.create(self._topic.full, self._topic.partition, last)
        try:
            async for entries in self._entries(former_ledger, begin, last):
                for entry in entries:
                    kept = await in_turns(keys.kept(await unpacked(entry)))
                    if kept is not None:
                        await writer.add([(entry.position, await _encoded(kept))])
            await writer.close()
            if cursor.is_closed:  # the topic was closed meanwhile: nothing would name the ledger
                raise ManagedLedgerClosed(f"{self._topic} was closed during its compaction")
        except BaseException:
            await writer.abandon()
            await self._delete(writer.ledger_id)
            raise
        former_id = self.compacted_ledger_id
        if former_id is not None:
            self._left.append(former_id)
        cursor.mark_delete(last, {COMPACTED_LEDGER: writer.ledger_id})
        self.facts.removed_messages = keys.removed_messages
        await cursor.flush()  # rules 1 and 2
        while self._left:
            await self._delete(self._left.pop())

    async def _delete(self, ledger_id: int) -> None:
        """A ledger that cannot be deleted stays, and takes room; that is not worth failing a compaction."""
        try:
            await self._ledger.compacted.delete(ledger_id)
        except ManagedLedgerError as error:
            log.warning("%s: compacted ledger %d was left: %s", self._topic, ledger_id, error)

    async def _kept_before(self) -> "CompactedLedger | None":
        """What the last compaction kept. None: there was none, or it is gone, and what is lost is passed over."""
        try:
            return await self.compacted()
        except DataLost as lost:
            if not self._ledger.config.passes_over_lost:
                raise
            log.warning("%s: compaction begins with what the topic itself still has: %s", self._topic, lost)
            return None

    async def _entries(
        self, former_ledger: "CompactedLedger | None", position: Position, last: Position
    ) -> AsyncIterator[Sequence["Entry"]]:
        """What was kept in *former_ledger*, and the entries of the topic from *position* to *last*."""
        begin: Position = EARLIEST
        while former_ledger is not None and (kept := await former_ledger.read(begin, _READ_ENTRIES, _READ_BYTES)):
            yield kept
            begin = Position(kept[-1].ledger_id, kept[-1].entry_id + 1)
            await asyncio.sleep(0)
        is_reported = False
        while position <= last:
            answer = self._ledger.read(position, _READ_ENTRIES, _READ_BYTES)
            try:
                run = answer if isinstance(answer, Sequence) else await answer
            except DataLost as lost:
                if not self._ledger.config.passes_over_lost:
                    raise
                if not is_reported:  # the entries behind it are often lost as well
                    log.warning("%s: compaction goes on without what is lost from here on: %s", self._topic, lost)
                    is_reported = True
                behind = 2**63 - 2 if lost.entry_id is None else lost.entry_id
                position = self._ledger.ledgers.next_position(Position(lost.ledger_id, behind))
                continue
            is_reported = False
            entries = [entry for entry in run if entry.position <= last]
            if not entries:
                return
            yield entries
            position = self._ledger.ledgers.next_position(entries[-1].position)
            await asyncio.sleep(0)

    def ledgers(self) -> list[int]:
        """All compacted ledgers of the topic that are known here."""
        ledger_id = self.compacted_ledger_id
        return [*self._left, *([] if ledger_id is None else [ledger_id])]

    async def delete(self, ledger_ids: Sequence[int]) -> None:
        """The topic was deleted, and its cursors with it: so are its compacted ledgers."""
        self._left.clear()
        for ledger_id in ledger_ids:
            await self._delete(ledger_id)


async def unpacked(entry: "Entry") -> Opened:
    """Raises Corruption."""
    opened_entry = opened(entry.position, entry.data)
    if opened_entry.unpacked_bytes <= INLINE_BYTES_MAX:
        return opened_entry.unpacked()
    return await asyncio.to_thread(opened_entry.unpacked)


async def _encoded(kept: Kept) -> bytes:
    if kept.batch is None or len(kept.batch) <= INLINE_BYTES_MAX:
        return kept.entry()
    return await asyncio.to_thread(kept.entry)
