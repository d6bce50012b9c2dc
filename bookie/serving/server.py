"""What all connections of a bookie share: limits, counters, storage, and the operations that concern several of them.

    Connection ──frames──▶ ProtocolV2, ProtocolV3 ──▶ RequestRules: memory answers at once
                             ├─ Writes: adds of the chunk ──one put──▶ journal ──group──▶ one answer buffer
                             │          fences, LACs, forces ──▶ journal
                             └─ Reads: cold ones ──▶ a reader's thread, one batch at a time for a connection

Rules of the port:

1. A connection starts in the third protocol. The first frame that is not of it switches to the second for good.
2. A frame that cannot be parsed ends its connection and no other one. It is logged once, with peer and reason.
3. An add is answered after it is durable (DEFERRED_SYNC: after it is written). A fence is always answered after its
   record is durable.
4. No more frames are read while a limit is reached: adds in flight, a full write cache, cold reads in flight (of the
   connection or of all), answers that the peer does not take. Frames that were cut already wait in the backlog, at most
   one chunk of them. Nor is more read of a frame that is not whole while those of all connections together have too
   much (`magnetar_core.bookkeeper.wire.unfinished`).
5. Recovery reads (fencing or high priority) have a separate thread and queue, so that catch-up reads of other clients
   do not delay them.
6. The answers of one turn of the loop, and so of a journal group, leave in one write for each connection.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bookie.jobs import JobThread
from bookie.latency import BookieLatency
from bookie.serving.cold_reads import ReadWatch
from bookie.serving.listings import Listings
from bookie.serving.protocol import ALL_ADDS, ALL_READS, CACHE_FULL, Peer
from bookie.serving.recovery_lane import REST_S_MAX, RecoveryLane
from bookie.serving.request_rules import EIO, ENOLEDGER, EREADONLY, OK, RequestRules
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.index import IndexCorrupt
from bookie.storage.journal.writer import Journal
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.ledgers import Ledger
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire.unfinished import Unfinished
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.runtime.observe import GroupedErrors, SlowOperations
from magnetar_core.runtime.types import KIB, MIB, Buffer

log = logging.getLogger(__name__)

# How often a repair checks whether the write cache has room.
_CACHE_WAIT_S: Final = 0.05

# Frames that are not whole yet, of all connections: as much as adds under way.
UNFINISHED_BYTES_MAX: Final = 256 * MIB


class Limits(NamedTuple):
    """How many requests without an answer one connection, or all together, may have."""

    frame_bytes: int
    # Adds without an answer. With 1 KiB entries that is 10 MiB a client. A journal group takes a few milliseconds, so
    # the limit does not throttle, it protects. (Apache: maxPendingAddRequestsPerThread.)
    adds: int = 10_000
    add_bytes: int = 32 * MIB
    # Cold reads without an answer; 20 bytes each until they are processed, then RESULT_BYTES_MAX in all.
    reads: int = 2_500
    # The same for all connections together; 0: no limit. A thousand clients with a full window each would hold 32 GiB.
    # A connection that reaches the limit waits until half of it is answered. The adds of one chunk may exceed it.
    adds_in_all: int = 100_000
    add_bytes_in_all: int = 256 * MIB
    reads_in_all: int = 50_000
    unfinished_bytes: int = UNFINISHED_BYTES_MAX
    batch_read_bytes: int = 5 * MIB
    # Long polls of all connections: each holds a timer and a place in a list. Above the limit a poll is answered at
    # once, as if its time were over.
    long_polls: int = 10_000
    copies_rest_s: float = REST_S_MAX
    """The longest rest between two chunks of copies while clients write (`recovery_lane`)."""
    write_buffer_low_bytes: int = 384 * KIB
    write_buffer_high_bytes: int = 512 * KIB


class Counters:
    """Events since the start, for metrics; plain integers."""

    __slots__ = (
        "add_bytes",
        "adds",
        "adds_refused",
        "cold_reads",
        "connections",
        "fences",
        "malformed",
        "read_bytes",
        "reads",
    )

    def __init__(self) -> None:
        self.adds = self.add_bytes = self.adds_refused = 0
        self.reads = self.read_bytes = self.cold_reads = self.fences = 0
        self.connections = self.malformed = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """The parts of a bookie that its port works with. Put together by `bookie.assembly`."""

    rules: RequestRules
    cache: WriteCache
    storage: LedgerStorage
    journals: Sequence[Journal]
    checkpointer: Checkpointer
    readers: Sequence[JobThread]
    """Threads for cold reads; connections take them in turn."""
    urgent_reader: JobThread | None = None
    """The thread for recovery reads (rule 5); None: *readers* do them."""
    clock: Clock
    limits: Limits
    disk_usage: Callable[[], DiskUsage]
    """The usage of all ledger directories. Raises OSError."""
    on_index_corrupt: Callable[[int, Exception], None] = lambda ledger_id, error: None
    """Called with a ledger id and the error when a read finds the ledger's index damaged."""
    latency: BookieLatency = field(default_factory=BookieLatency)
    slow: SlowOperations | None = None
    """Where slow reads are logged; None: nowhere."""


class Server:
    """What the connections of a bookie share."""

    def __init__(self, parts: ServerParts) -> None:
        # Attributes instead of `parts.…`: requests use them, and each step of a lookup costs.
        self.rules = parts.rules
        self.write_cache = parts.cache
        self.read_cache = parts.rules.read_cache
        self.storage = parts.storage
        self.journals = parts.journals
        self.checkpointer = parts.checkpointer
        self.clock = parts.clock
        self.limits = parts.limits
        self.disk_usage = parts.disk_usage
        self.on_index_corrupt = parts.on_index_corrupt
        self.counters = Counters()
        self.latency = parts.latency
        self.read_watch = ReadWatch(parts.clock, parts.latency.reads, parts.slow)
        self.failed_reads = GroupedErrors(log, parts.clock)
        self.unfinished = Unfinished(parts.limits.unfinished_bytes, parts.clock.monotonic, parts.clock.call_later)
        self.listings = Listings(
            parts.cache,
            parts.storage,
            parts.readers[-1],
            parts.limits.frame_bytes,
            lambda: self.counters.adds,
            self._count_job,
            self.read_failed,
        )
        self.connections: dict[Peer, None] = {}
        self.long_polls = 0
        self.recovery_lane = RecoveryLane(parts.clock, parts.limits.copies_rest_s)
        self._readers = parts.readers
        self._next_reader = 0
        self._urgent_reader = parts.urgent_reader
        self.adds_in_flight = 0
        self.add_bytes_in_flight = 0
        self.reads_in_flight = 0
        # Connections that wait until adds or reads of other connections are answered.
        self.held: dict[Peer, None] = {}

    def next_readers(self) -> tuple[JobThread, JobThread]:
        """The threads for a new connection: one for its reads, one for recovery reads (rule 5)."""
        reader = self._readers[self._next_reader % len(self._readers)]
        self._next_reader += 1
        return reader, self._urgent_reader or reader

    def close(self) -> None:
        """End every connection at once."""
        self.listings.close()
        self.failed_reads.close()
        for connection in tuple(self.connections):
            connection.abort()

    @property
    def has_too_many_adds(self) -> bool:
        limits = self.limits
        return (0 < limits.adds_in_all <= self.adds_in_flight) or (
            0 < limits.add_bytes_in_all <= self.add_bytes_in_flight
        )

    @property
    def has_too_many_reads(self) -> bool:
        return 0 < self.limits.reads_in_all <= self.reads_in_flight

    def release_adds(self) -> None:
        """Release the connections that wait for other connections' adds, once half of the limit is answered."""
        limits = self.limits
        few = limits.adds_in_all == 0 or self.adds_in_flight <= limits.adds_in_all // 2
        small = limits.add_bytes_in_all == 0 or self.add_bytes_in_flight <= limits.add_bytes_in_all // 2
        if few and small:
            for connection in tuple(self.held):
                connection.go_on(ALL_ADDS)

    def release_reads(self) -> None:
        """Does the same as `release_adds`, for cold reads."""
        if self.reads_in_flight <= self.limits.reads_in_all // 2:
            for connection in tuple(self.held):
                connection.go_on(ALL_READS)

    def there_is_room(self) -> None:
        """The write cache has room again, or the bookie refuses adds: release the connections that wait for it."""
        for connection in tuple(self.connections):
            connection.go_on(CACHE_FULL)

    def fence(self, ledger_id: int, master_key: bytes, done: Callable[[int], None]) -> None:
        """Fence a ledger; *done(rc)* when its record is durable, or with the refusal."""
        records: list[Buffer] = []
        rc, ledger = self.rules.fence(ledger_id, master_key, records)
        if ledger is None:
            done(rc)
            return
        if ledger.is_fence_durable:
            done(OK)
            return

        def fenced(refusal: Exception | None) -> None:
            done(OK if refusal is None else EIO)

        if ledger.fence_waiters is not None:
            ledger.fence_waiters.append(fenced)
            return
        ledger.fence_waiters = [fenced]
        self.counters.fences += 1
        self.journal_of(ledger_id).put(records, True, _fence_written, ledger)
        self.checkpointer.touched()

    async def put_back(self, ledger_id: int, entry: bytes) -> int:
        """Store an entry that was fetched from another bookie. Returns 0 when it is durable, or the refusal."""
        while self.write_cache.is_full:
            await self.clock.sleep(_CACHE_WAIT_S)
        ledger = self.rules.ledgers.get(ledger_id)
        if ledger is None:
            return ENOLEDGER
        records: list[Buffer] = []
        entry_id = v2.entry_ids(entry)[1]
        rc = self.rules.add(ledger_id, entry_id, ledger.master_key, entry, True, True, records)
        if rc == OK:
            written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self.journal_of(ledger_id).put(records, True, _put_back_written, written)
            self.checkpointer.touched()
            rc = await written
        return rc

    def _count_job(self) -> None:
        self.counters.cold_reads += 1

    def read_failed(self, ledger_id: int, what: str, error: Exception | None) -> None:
        """A read of *what* from disk failed. If the cause is a damaged index, that is reported to the bookie."""
        self.failed_reads.say(f"ledger {ledger_id}", f"{what} cannot be read: {error}")
        if isinstance(error, IndexCorrupt):
            self.on_index_corrupt(ledger_id, error)

    def journal_of(self, ledger_id: int) -> Journal:
        return self.journals[ledger_id % len(self.journals)]


def _fence_written(ledger: Ledger, refusal: Exception | None) -> None:
    waiters, ledger.fence_waiters = ledger.fence_waiters, None
    if refusal is None:
        ledger.is_fence_durable = True
    for waiter in waiters or ():
        waiter(refusal)


def _put_back_written(written: "asyncio.Future[int]", refusal: Exception | None) -> None:
    if not written.done():
        written.set_result(OK if refusal is None else EREADONLY)
