"""One task on an executor: runs of entries from the bookies, decoded into Arrow batches.

    bookies ──requests under way──▶ loop's thread: digests, checksums, decompression ──box──▶ task's thread: columns

What is fetched ahead is bounded in bytes. Connections are kept for the next task of this worker process, which lives on
until it has been idle for a minute.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AsyncExitStack, aclosing, closing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from connectors.spark.cluster import DataLoss, connected
from connectors.spark.entries import HeadlessChunk, Opened, Wants, check_chunked_bytes, open_entry
from connectors.spark.laps import Laps
from connectors.spark.options import Place, ReadOptions
from connectors.spark.planning import LOOK_BACK_ENTRIES, Run, Split, clip
from connectors.spark.rows import RowBuilder, signed
from connectors.spark.values import Values
from connectors.spark.worker_heap import settle
from connectors.spark.worker_log import let_through
from connectors.spark.worker_socket import answer_at_once
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, DigestMismatch, NoSuchEntry, NoSuchLedger
from magnetar_core.bookkeeper.client.quorum import Quorum
from magnetar_core.bookkeeper.client.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.metadata.store import MetadataError, MetadataStore
from magnetar_core.bookkeeper.wire.entry import StoredEntry
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.loop_thread import LoopThread
from magnetar_core.runtime.recycled import RecycledBuffers
from magnetar_core.runtime.types import MIB, Corruption, MagnetarError
from managed_ledger.compacted_entry import decode
from managed_ledger.messages_pb2 import MessageMetadata

if TYPE_CHECKING:
    from connectors.spark.filters import Pushed

log = logging.getLogger(__name__)

# One request to a bookie: large enough that its cost does not show, small enough to be answered in a few milliseconds
# and to stay below the frame limit of 5 MiB when entries are larger than their ledger's average.
FETCH_BYTES: Final = 2 * MIB
FETCH_ENTRIES: Final = 5_000
# Requests under way at once: while one is answered, the bookie prepares the next.
FETCH_WINDOW: Final = 2
# Answers that wait to be decoded: 8 MiB, decompressed some times that.
FETCH_AHEAD: Final = 4

# Room for answers that a worker keeps for the next ones: for those that are under way, wait, or are made to columns.
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
    found = _connections.get(options.place)
    if found is None or not found.loop.is_alive:
        found = _connections[options.place] = _Connection(options)
    return found


def _drop_connection(options: ReadOptions) -> None:
    """Close the connections after a failure, so that the next attempt does not use one that may be broken."""
    found = _connections.pop(options.place, None)
    if found is not None:
        found.close()


def read_split(
    options: ReadOptions, split: Split, schema: pa.Schema, values: Values | None, pushed: "Pushed | None" = None
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of *split* in order of position. Raises DataLoss, Corruption, MagnetarError with topic and entry."""
    settle()
    answer_at_once()
    try:
        yield from _Task(options, split, _connection(options), pushed).batches(schema, values)
    except (BookKeeperError, MetadataError) as error:
        _drop_connection(options)
        raise MagnetarError(f"{split.topic}: {error}") from error
    except EntryUnreadable:
        _drop_connection(options)
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
        self._entries = self._bytes = self._rows = self._dropped = 0

    def batches(self, schema: pa.Schema, values: Values | None) -> Generator[pa.RecordBatch, None, None]:
        """Record batches, the first one small."""
        builder = RowBuilder(
            schema,
            self._split.topic,
            self._split.partition,
            values,
            self._options.times,
            self._wants,
            self._split.acked,
            permissive=self._options.permissive,
        )
        rows = ROWS_FIRST
        laps = Laps(self._clock.monotonic)
        with closing(self._loop.iterate(self._fetch(), FETCH_AHEAD)) as fetched:
            for group in fetched:
                laps.end("fetched_s")
                for opened in group:
                    try:
                        builder.add(opened)
                    except HeadlessChunk:
                        if self._split.acked is None or not self._split.acked.has(opened.ledger_id, opened.entry_id):
                            self._add_headless(builder, opened)
                    if builder.row_count >= rows or builder.payload_bytes >= BATCH_BYTES_MAX:
                        batch = self._take(builder)
                        laps.end("built_s")
                        yield batch
                        laps.end("handed_s")
                        rows = min(rows * 4, ROWS_MAX)
                laps.end("built_s")
        laps.end("fetched_s")
        if builder.row_count:
            batch = self._take(builder)
            laps.end("built_s")
            yield batch
            laps.end("handed_s")
        self._summarise(builder.corrupt_count, laps)

    def _summarise(self, corrupt: int, laps: Laps) -> None:
        """One line about what was read: entries and bytes as they are stored, messages in chunks that are incomplete,
        requests for which another bookie was asked as well. Then seconds of the thread that fetches: in which nothing
        had come from the bookies yet (`waited_s`), and of decompression (`opened_s`); and of the task's own thread: in
        which nothing had been fetched yet, in which columns were built, and in which Spark took them."""
        summary = {
            "topic": self._split.topic,
            "runs": len(self._split.runs),
            "entries": self._entries,
            "bytes": self._bytes,
            "rows": self._rows,
            "incomplete": self._dropped,
            "corrupt": corrupt,
            "retries": self._bookkeeper.read_retries - self._retries_before,
            "waited_s": round(self._waited_s, 3),
            "opened_s": round(self._opened_s, 3),
            **laps.rounded(),
        }
        let_through()
        log.info(json.dumps(summary))
        if corrupt:
            log.warning("%s: %d values could not be decoded, and are null", self._split.topic, corrupt)

    def _take(self, builder: RowBuilder) -> pa.RecordBatch:
        batch = builder.take()
        self._rows += batch.num_rows
        return batch

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

    async def _fetch(self) -> AsyncGenerator[list[Opened], None]:
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
                        opened = [self._open(run, entry, self._wants) for entry in group]
                        self._opened_s += self._clock.monotonic() - began
                        yield [entry for entry in opened if entry is not None]
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

    def _open(self, run: Run, entry: StoredEntry, wants: Wants | None = None) -> Opened | None:
        """The message entry in what is stored; of a compacted ledger with the id that it had in the topic."""
        position, payload = (entry.ledger_id, entry.entry_id), entry.payload
        if run.is_compacted:
            original, payload = decode(entry.payload)
            position = original.ledger_id, original.entry_id
        return open_entry(self._split.topic, *position, payload, wants, passes_encrypted=self._options.passes_encrypted)

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
        found = self._loop.run(self._look_back(chunk))
        for earlier in found.chunks:
            builder.chunks.add(earlier)
        if not found.chunks:
            text = f"{self._split.topic}, entry {chunk.ledger_id}:{chunk.entry_id}: the first chunks of message {uuid} "
            if found.is_all:
                text += "do not exist (any more)"
            else:
                text += f"are not among the {found.entries:,} entries before"
                if self._options.fail_on_data_loss:
                    raise DataLoss(f"{text}; set failOnDataLoss=false to leave the message out")
            log.warning("%s; leaving the message out, as consumers do", text)
            builder.chunks.give_up(uuid)
            self._dropped += 1
        builder.add(chunk)

    async def _look_back(self, chunk: Opened) -> "_Earlier":
        """The chunks of the same message before *chunk*, from the last first one on."""
        plain = [run for run in (*self._split.before, *self._split.runs) if not run.is_compacted]
        runs, _ = clip(plain, None, (chunk.ledger_id, chunk.entry_id))
        found: list[Opened] = []
        looked = 0
        for step in _backwards(runs):
            if looked >= LOOK_BACK_ENTRIES:
                return _Earlier([], looked, False)
            group = await self._chunks_of(step, chunk)
            looked += step.entries
            found[:0] = group
            self._check_bytes(chunk, found)
            firsts = [number for number, one in enumerate(group) if one.metadata.chunk_id == 0]
            if firsts:
                return _Earlier(found[firsts[-1] :], looked, False)
        return _Earlier([], looked, self._split.is_all_before)

    async def _chunks_of(self, run: Run, chunk: Opened) -> list[Opened]:
        """The chunks of the same message as *chunk* in *run*. Raises Corruption if they are too much for one."""
        found: list[Opened] = []
        async with aclosing(self._read(run)) as groups:
            async for group in groups:
                for entry in group:
                    opened = self._open(run, entry)
                    if opened is not None and opened.is_chunk and opened.metadata.uuid == chunk.metadata.uuid:
                        found.append(opened)
                self._check_bytes(chunk, found)
        return found

    def _check_bytes(self, chunk: Opened, found: list[Opened]) -> None:
        try:
            check_chunked_bytes(sum(len(one.payload) for one in found))
        except Corruption as error:
            where = f"{self._split.topic}, entry {chunk.ledger_id}:{chunk.entry_id}"
            raise Corruption(f"{where}: {error}") from None


async def _read_some(handle: LedgerReadHandle, first: int, last: int) -> list[StoredEntry]:
    """Entries from *first* on, at least one. The plan knows that they are confirmed; the handle does not."""
    found = await handle.read_batch_unconfirmed(first, last - first + 1, 2 * FETCH_BYTES)
    assert found[0].entry_id == first, "an entry that was not asked for"
    assert found[-1].entry_id == first + len(found) - 1 <= last, "entries of an answer follow each other"
    return found


def _backwards(runs: tuple[Run, ...]) -> Iterator[Run]:
    """Pieces of *runs*, the last one first."""
    for run in reversed(runs):
        last = run.last
        while last >= run.first:
            first = max(run.first, last - LOOK_BACK_STEP + 1)
            yield run.part(first, last)
            last = first - 1
