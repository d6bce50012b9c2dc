"""One task on an executor: runs of entries from the bookies, decoded into Arrow batches.

    bookies ──requests under way──▶ loop's thread: digests, checksums, decompression ──box──▶ task's thread: columns

What is fetched ahead is bounded in bytes. Connections are kept for the next task of this worker process, which lives on
until it has been idle for a minute.
"""

import asyncio
import hashlib
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AsyncExitStack, aclosing, closing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from connectors.spark.bookie_access import check_let_in
from connectors.spark.options.read import Mode, Place, ReadOptions
from connectors.spark.plan.cluster import DataLoss, connected
from connectors.spark.plan.planning import LOOK_BACK_ENTRIES, Split, clip
from connectors.spark.ranges import Run
from connectors.spark.task.encryption import Decryption
from connectors.spark.task.entries import BadEntry, HeadlessChunk, Opened, Wants, check_chunked_bytes, open_entry
from connectors.spark.task.key_folder import KeyFolder
from connectors.spark.task.rows import RowBuilder, is_by_heads, signed
from connectors.spark.values.records import Values
from connectors.spark.worker.heap import settle
from connectors.spark.worker.laps import Laps
from connectors.spark.worker.log import let_through
from connectors.spark.worker.socket import answer_at_once
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.deciding.quorum import Quorum
from magnetar_core.bookkeeper.client.errors import BookKeeperError, DigestMismatch, NoSuchEntry, NoSuchLedger
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.bookkeeper.wire.entry import StoredEntry
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.recycled import RecycledBuffers
from magnetar_core.runtime.process.loop_thread import LoopThread
from magnetar_core.runtime.types import MIB, Corruption, MagnetarError
from managed_ledger.compacted.entry import decode
from managed_ledger.messages_pb2 import MessageMetadata

if TYPE_CHECKING:
    from connectors.spark.plan.filters import Pushed

log = logging.getLogger(__name__)

# One request to a bookie: large enough that its cost does not show, small enough to be answered in a few milliseconds
# and to stay below the frame limit of 5 MiB when entries are larger than their ledger's average.
FETCH_BYTES: Final = 2 * MIB
FETCH_ENTRIES: Final = 5_000
# Requests under way at once: while one is answered, the bookie prepares the next.
FETCH_WINDOW: Final = 2
# Answers that wait to be decoded: 8 MiB.
FETCH_AHEAD: Final = 4
# What the entries of one answer are unpacked to before their turn comes; the others are when it does, one by one.
UNPACKED_BYTES_MAX: Final = 8 * MIB

# Memory that a worker keeps for answers: for those that are under way, wait, or are made to columns.
# One for all clusters that it reads from.
KEPT_BYTES_MAX: Final = 32 * MIB
_room: Final = RecycledBuffers(KEPT_BYTES_MAX)

# Rows of a batch for Spark: 1,000 to 10,000 rows and 1 to 10 MB are the plateau (of 8 MiB the JVM touches new memory
# each time, which made a job of 1 KB rows 4 % dearer than of 4 MiB); the first one is small, so that
# `show` and `limit` are quick.
ROWS_FIRST: Final = 500
ROWS_MAX: Final = 10_000
BATCH_BYTES_MAX: Final = 4 * MIB

# How many entries are read in one step backwards, in search of the first chunks of a message.
LOOK_BACK_STEP: Final = 1_000


class _Connection:
    """A BookKeeper client on an event loop that runs on a background thread."""

    def __init__(self, options: ReadOptions) -> None:
        self.loop = LoopThread("magnetar-reader")
        self._stack = AsyncExitStack()
        try:
            self.store: MetadataStore
            self.bookkeeper: BookKeeper
            self.clock: Clock
            self.store, self.bookkeeper, self.clock = self.loop.run(self._open(options))
        except BaseException:
            self.loop.stop()
            raise

    async def _open(self, options: ReadOptions) -> tuple[MetadataStore, BookKeeper, Clock]:
        return await self._stack.enter_async_context(connected(options.place, _room.allocate))

    def close(self) -> None:
        with suppress(MetadataError, BookKeeperError, OSError):
            self.loop.run(self._stack.aclose())
        self.loop.stop()


# Kept for the next task. A worker that was forked from a process with connections makes its own.
_connections: dict[Place, _Connection] = {}


def _connection(options: ReadOptions) -> _Connection:
    connection = _connections.get(options.place)
    if connection is None or not connection.loop.is_alive:
        connection = _connections[options.place] = _Connection(options)
    return connection


def _drop_connection(options: ReadOptions) -> None:
    """Close the connections after a failure, so that the next attempt does not use one that may be broken."""
    connection = _connections.pop(options.place, None)
    if connection is not None:
        connection.close()


def read_split(
    options: ReadOptions, split: Split, schema: pa.Schema, values: Values | None, pushed: "Pushed | None" = None
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of *split* in order of position. Raises DataLoss, NotLetIn, Corruption, MagnetarError with topic and
    entry."""
    settle()
    answer_at_once()
    try:
        yield from _Task(options, split, _connection(options), pushed).batches(schema, values)
    except (BookKeeperError, MetadataError) as error:
        _drop_connection(options)
        check_let_in(error)
        raise MagnetarError(f"{split.topic}: {error}") from error
    except EntryUnreadable as error:
        _drop_connection(options)
        check_let_in(error)
        raise


class EntryUnreadable(MagnetarError):
    """None of the bookies that should have an entry gives it now."""


class _Earlier(NamedTuple):
    """The chunks that a search backwards found."""

    chunks: list[Opened]
    """Empty if not even the first was found."""
    entries: int
    """Entries that were examined."""
    is_all: bool
    """The search reached the first entry of the topic."""


class _Place(NamedTuple):
    """Where a chunk stands."""

    ledger_id: int
    entry_id: int
    is_first: bool

    @classmethod
    def of_chunk(cls, chunk: Opened) -> "_Place":
        return cls(chunk.ledger_id, chunk.entry_id, chunk.metadata.chunk_id == 0)


def _key_of(chunk: Opened) -> bytes:
    """The message that a chunk is of; short, whatever id its producer gave it."""
    return hashlib.blake2b(chunk.metadata.uuid.encode(errors="surrogatepass"), digest_size=16).digest()


class _Task:
    """The reading of one split."""

    def __init__(
        self, options: ReadOptions, split: Split, connection: _Connection, pushed: "Pushed | None" = None
    ) -> None:
        self._options = options
        self._split = split
        self._pushed = pushed
        takes_all = pushed is None and split.acked is None and options.times is None
        self._wants: Wants | None = None if takes_all else self._is_wanted
        self._loop = connection.loop
        self._store = connection.store
        self._is_synced = False
        self._bookkeeper = connection.bookkeeper
        self._clock = connection.clock
        self._retries_before = self._bookkeeper.read_retries  # a worker runs one task at a time
        self._waited_s = self._opened_s = 0.0
        self._handle: LedgerReadHandle | None = None
        self._plain = [run for run in (*split.before, *split.runs) if not run.is_compacted]
        self._plain_ledgers = {run.ledger_id for run in self._plain}
        self._seen: dict[bytes, list[_Place]] = {}
        """Chunks by message: those of this split, and those before it that were looked at. An entry is looked at once,
        however many messages lack their first chunks."""
        self._steps: Iterator[Run] | None = None
        """What is still to be looked at."""
        self._looked = 0
        """Entries before the split."""
        self._read_again = 0
        """Chunks, one by one."""
        self._bad_before: BadEntry | None = None
        self._decryption = Decryption(KeyFolder(options.key_folder)) if options.key_folder else None
        self._entries = self._bytes = self._rows = self._dropped = 0
        self._by_heads = False
        """No batch is opened."""

    def batches(self, schema: pa.Schema, values: Values | None) -> Generator[pa.RecordBatch, None, None]:
        """Record batches, the first one small."""
        has_compacted = any(run.is_compacted for run in self._split.runs)
        self._by_heads = not has_compacted and is_by_heads(schema.names, self._options.mode)
        builder = RowBuilder(
            schema,
            self._split.topic,
            self._split.partition,
            values,
            self._options.times,
            self._wants,
            self._split.acked,
            mode=self._options.mode,
            unpacked_bytes_max=self._options.unpacked_bytes_max,
            by_heads=self._by_heads,
        )
        rows = ROWS_FIRST
        laps = Laps(self._clock.monotonic)
        with closing(self._loop.iterate(self._fetch(), FETCH_AHEAD)) as fetched:
            for group in fetched:
                laps.end("fetched_s")
                for opened in group:
                    self._add(builder, opened)
                    if builder.row_count >= rows or builder.weight >= BATCH_BYTES_MAX:
                        yield from self._taken(builder, laps)
                        rows = min(rows * 4, ROWS_MAX)
                laps.end("built_s")
        laps.end("fetched_s")
        yield from self._taken(builder, laps)
        self._summarise(builder, laps)

    def _add(self, builder: RowBuilder, opened: Opened | BadEntry) -> None:
        if isinstance(opened, BadEntry):
            builder.add_bad(opened)
            return
        try:
            builder.add(opened)
        except HeadlessChunk:
            if self._split.acked is None or not self._split.acked.has(opened.ledger_id, opened.entry_id):
                self._add_headless(builder, opened)
        if opened.is_chunk:
            self._remember_chunk(opened)

    def _taken(self, builder: RowBuilder, laps: Laps) -> Iterator[pa.RecordBatch]:
        for batch in builder.take():
            self._rows += batch.num_rows
            laps.end("built_s")
            yield batch
            laps.end("handed_s")

    def _summarise(self, builder: RowBuilder, laps: Laps) -> None:
        """One line about what was read: entries and bytes as they are stored, messages in chunks that are incomplete,
        values (`corrupt`) and entries (`bad`) that could not be understood, requests for which another bookie was asked
        as well. Then seconds of the thread that fetches: in which nothing had come from the bookies yet (`waited_s`),
        and of decompression (`opened_s`); and of the task's own thread: in which nothing had been fetched yet, in which
        columns were built, and in which Spark took them."""
        summary = {
            "topic": self._split.topic,
            "runs": len(self._split.runs),
            "entries": self._entries,
            "bytes": self._bytes,
            "rows": self._rows,
            "incomplete": self._dropped,
            "corrupt": builder.corrupt_count,
            "bad": builder.bad_count,
            "retries": self._bookkeeper.read_retries - self._retries_before,
            "waited_s": round(self._waited_s, 3),
            "opened_s": round(self._opened_s, 3),
            **laps.rounded(),
        }
        let_through()
        log.info(json.dumps(summary))
        became = "are left out" if self._options.mode is Mode.DROPMALFORMED else "are null"
        if builder.corrupt_count:
            log.warning("%s: %d values could not be decoded, and %s", self._split.topic, builder.corrupt_count, became)
        bad = builder.first_bad
        if bad is not None:
            log.warning(
                "%s: %d entries could not be understood, and %s; the first is %d:%d: %s",
                self._split.topic, builder.bad_count, became, bad.ledger_id, bad.entry_id, bad.reason,
            )  # fmt: skip

    def _is_wanted(self, ledger_id: int, entry_id: int, metadata: MessageMetadata) -> bool:
        """Whether there are rows in an entry whose ids in the topic are these."""
        acked = self._split.acked
        if acked is not None and acked.has(ledger_id, entry_id):
            return False
        times = self._options.times
        if times is not None and not times.has(signed(metadata.publish_time)):
            return False  # before it is decompressed: around the border of a time there is as much that is not of it
        return self._pushed is None or self._pushed.admits(ledger_id, entry_id, metadata)

    # Entries; on the loop's thread

    async def _fetch(self) -> AsyncGenerator[list[Opened | BadEntry], None]:
        """The entries of all runs that hold messages."""
        topic = self._split.topic
        runs = deque(self._split.runs)
        while runs:
            run = runs.popleft()
            begin = run.first
            try:
                async with aclosing(self._read(run)) as groups:
                    async for group in groups:
                        self._entries += len(group)
                        self._bytes += sum(len(entry.payload) for entry in group)
                        begin = group[-1].entry_id + 1
                        began = self._clock.monotonic()
                        opened = self._opened(run, group)
                        self._opened_s += self._clock.monotonic() - began
                        yield opened
            except (NoSuchLedger, NoSuchEntry) as error:
                if not self._is_synced:  # the metadata store may have answered from a server that is behind the plan
                    self._is_synced = True
                    await self._store.sync()
                    runs.appendleft(run.part(begin, run.last))
                    continue
                text = f"{topic}: entries {begin} to {run.last} of ledger {run.ledger_id} are gone ({error})"
                if self._options.fail_on_data_loss:
                    raise DataLoss(
                        f"{text}; they were removed after the read was planned, or lost. Load again, raise the "
                        "namespace's retention, or set failOnDataLoss=false to read what is left."
                    ) from None
                log.warning("%s; leaving them out", text)
            except DigestMismatch as error:
                raise Corruption(f"{topic}: {self._place(run, begin)}: {error}") from None
            except BookKeeperError as error:
                raise EntryUnreadable(f"{topic}: {self._place(run, begin)}: {error}") from error

    def _place(self, run: Run, entry_id: int) -> str:
        """An entry and the bookies that should have it."""
        where = f"entry {run.ledger_id}:{entry_id}"
        if self._handle is None or self._handle.ledger_id != run.ledger_id:
            return where
        metadata = self._handle.metadata
        ensemble = metadata.ensemble_for(entry_id)
        quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        return f"{where}, asked for at {', '.join(ensemble[index] for index in quorum.write_set(entry_id))}"

    def _opened(self, run: Run, group: list[StoredEntry]) -> list[Opened | BadEntry]:
        entries_opened: list[Opened | BadEntry] = []
        left = 0 if self._by_heads else UNPACKED_BYTES_MAX
        for entry in group:
            try:
                opened = self._open(run, entry, self._wants, left)
            except BadEntry as error:
                if self._options.mode is Mode.FAILFAST:
                    raise
                entries_opened.append(error)
                continue
            if opened is not None:
                entries_opened.append(opened)
                if opened.metadata.compression and not opened.is_packed:
                    left -= len(opened.payload)
        return entries_opened

    def _open(self, run: Run, entry: StoredEntry, wants: Wants | None = None, unpacks_max: int = 0) -> Opened | None:
        """The message entry in what is stored; of a compacted ledger with the id that it had in the topic. Raises
        BadEntry."""
        position, payload = (entry.ledger_id, entry.entry_id), entry.payload
        if run.is_compacted:
            try:
                original, payload = decode(entry.payload)
            except Corruption as error:
                raise BadEntry(self._split.topic, *position, error, stored=entry.payload) from None
            position = original.ledger_id, original.entry_id
        return open_entry(
            self._split.topic,
            *position,
            payload,
            wants,
            passes_encrypted=self._options.passes_encrypted,
            decryption=self._decryption,
            unpacks_max=unpacks_max,
            bytes_max=self._options.unpacked_bytes_max,
            keeps_stored=self._options.mode is Mode.PERMISSIVE,
        )

    async def _read(self, run: Run) -> AsyncGenerator[list[StoredEntry], None]:
        """All entries of *run*, a group for each answer."""
        handle = self._handle = await self._bookkeeper.open_ledger(run.ledger_id, recovery=False)
        count = max(1, min(FETCH_ENTRIES, FETCH_BYTES * run.entries // max(run.size_bytes, 1)))
        under_way: deque[tuple[int, asyncio.Task[list[StoredEntry]]]] = deque()
        ask = run.first
        try:
            while ask <= run.last or under_way:
                while ask <= run.last and len(under_way) < FETCH_WINDOW:
                    last = min(ask + count - 1, run.last)
                    under_way.append((last, asyncio.create_task(_read_some(handle, ask, last))))
                    ask = last + 1
                last, asked = under_way.popleft()
                began = self._clock.monotonic()
                group = await asked
                self._waited_s += self._clock.monotonic() - began
                yield group
                while group[-1].entry_id < last:  # the answer ended early: entries were larger than estimated
                    group = await _read_some(handle, group[-1].entry_id + 1, last)
                    yield group
        finally:
            for _, asked in under_way:
                asked.cancel()
            await asyncio.gather(*(asked for _, asked in under_way), return_exceptions=True)
            await handle.close()

    # Messages whose first chunks lie before

    def _add_headless(self, builder: RowBuilder, chunk: Opened) -> None:
        """Find the first chunks of a message further back, then add this one."""
        uuid = chunk.metadata.uuid
        try:
            chunks_before = self._loop.run(self._look_back(chunk))
            for earlier in chunks_before.chunks:
                builder.chunks.add(earlier)
        except BadEntry:
            raise  # it may have been one of the chunks, and the mode is to fail
        except Corruption as error:
            builder.chunks.give_up(uuid)
            builder.add_bad(builder.bad_entry(chunk, error))
            return
        if not chunks_before.chunks:
            text = f"{self._split.topic}, entry {chunk.ledger_id}:{chunk.entry_id}: the first chunks of message {uuid} "
            if chunks_before.is_all:
                text += "do not exist (any more)"
            else:
                text += f"are not among the {chunks_before.entries:,} entries before"
                if self._options.fail_on_data_loss:
                    raise DataLoss(f"{text}; set failOnDataLoss=false to leave the message out")
            log.warning("%s; leaving the message out, as consumers do", text)
            builder.chunks.give_up(uuid)
            self._dropped += 1
        builder.add(chunk)

    async def _look_back(self, chunk: Opened) -> "_Earlier":
        """The chunks of the same message before *chunk*, from the last first one on. Raises Corruption if they are too
        much for one, or cannot be known for an entry that cannot be understood."""
        if self._steps is None:
            runs, _ = clip(self._plain, None, (chunk.ledger_id, chunk.entry_id))
            self._steps = _reversed_pieces(runs)
        key = _key_of(chunk)
        while not any(place.is_first for place in self._seen.get(key, ())):
            step = next(self._steps, None) if self._looked < LOOK_BACK_ENTRIES else None
            if step is None:
                if self._bad_before is not None and self._options.mode is Mode.FAILFAST:
                    raise self._bad_before
                return _Earlier([], self._looked, self._looked < LOOK_BACK_ENTRIES and self._split.is_all_before)
            await self._look_at(step)
        places = self._seen[key]
        first = max(number for number, place in enumerate(places) if place.is_first)
        self._read_again += len(places) - first
        if self._read_again > LOOK_BACK_ENTRIES:
            raise Corruption(f"{LOOK_BACK_ENTRIES} chunks of messages that were dropped have been read again before it")
        chunks: list[Opened] = []
        for place in places[first:]:
            async with aclosing(self._read(Run(place.ledger_id, place.entry_id, place.entry_id, 1))) as groups:
                async for group in groups:
                    opened = self._open(Run(place.ledger_id, place.entry_id, place.entry_id, 1), group[0])
                    assert opened is not None, "a chunk, as it was seen before"
                    chunks.append(opened)
            check_chunked_bytes(sum(len(part.payload) for part in chunks))
        return _Earlier(chunks, self._looked, False)

    async def _look_at(self, step: Run) -> None:
        """Remember the chunks in *step*, which precedes what was looked at before."""
        chunks: dict[bytes, list[_Place]] = {}
        async with aclosing(self._read(step)) as groups:
            async for group in groups:
                for entry in group:
                    try:
                        opened = self._open(step, entry)
                    except BadEntry as error:  # it is not part of this read, unless it is a chunk that is looked for
                        self._bad_before = self._bad_before or error
                        continue
                    if opened is not None and opened.is_chunk:
                        chunks.setdefault(_key_of(opened), []).append(_Place.of_chunk(opened))
        self._looked += step.entries
        for key, places in chunks.items():
            self._seen[key] = [*places, *self._seen.get(key, ())]

    def _remember_chunk(self, chunk: Opened) -> None:
        """Where a chunk of this split stands: the message may be dropped for want of room, and be whole later."""
        if chunk.ledger_id in self._plain_ledgers:
            self._seen.setdefault(_key_of(chunk), []).append(_Place.of_chunk(chunk))
            while len(self._seen) > LOOK_BACK_ENTRIES:
                del self._seen[next(iter(self._seen))]


async def _read_some(handle: LedgerReadHandle, first: int, last: int) -> list[StoredEntry]:
    """Entries from *first* on, at least one. The plan knows that they are confirmed; the handle does not."""
    entries = await handle.read_batch_unconfirmed(first, last - first + 1, 2 * FETCH_BYTES)
    assert entries[0].entry_id == first, "an entry that was not asked for"
    assert entries[-1].entry_id == first + len(entries) - 1 <= last, "entries of an answer follow each other"
    return entries


def _reversed_pieces(runs: tuple[Run, ...]) -> Iterator[Run]:
    """Pieces of *runs*, the last one first."""
    for run in reversed(runs):
        last = run.last
        while last >= run.first:
            first = max(run.first, last - LOOK_BACK_STEP + 1)
            yield run.part(first, last)
            last = first - 1
