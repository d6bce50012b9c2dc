"""The socket of a bookie: frames in, answers out. Both protocols on one port.

    data_received ──▶ frames ──▶ Desk: memory answers at once
                                   ├─ adds of the chunk ──one put──▶ journal ──group──▶ one answer buffer
                                   ├─ fences, LACs, forces ──▶ journal
                                   └─ cold reads ──▶ a reader's thread, one batch at a time for a connection

Rules:

1. A connection starts in the third protocol; the first frame that is not of it switches to the second for good.
2. What cannot be read ends the connection, and only that: nothing of other connections is touched. It is logged
   once, with peer and reason.
3. An add is answered after its record is durable (DEFERRED_SYNC: after it is written), a fence in every case
   after its own record is.
4. Frames are not read on while a limit is reached: adds in flight, a full write cache, cold reads in
   flight (of the connection or of all), answers that the peer does not take. What was cut already waits in the
   backlog: one chunk at most.
5. Recovery reads (fencing or high priority) have a thread and a queue of their own: catch-up reads of others do not
   stand before them.
6. The answers of one turn of the loop, and so of a journal group, leave in one write for each connection.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from bookie.jobs import JobThread
from bookie.latency import BookieStages
from bookie.serving.cold_reads import Brought, ColdRead, ColdReads, ReadWatch
from bookie.serving.protocol_v3 import AUTH_DISABLED, ThirdProtocol, add_refusal
from bookie.serving.request_rules import EIO, ENOLEDGER, EREADONLY, OK, Desk
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.index import IndexCorrupt
from bookie.storage.journal.writer import Journal
from bookie.storage.ledger_storage import Block, Found, LedgerStorage, Tail
from bookie.storage.ledgers import Ledger
from bookie.storage.read_cache import ReadCache
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.runtime.observe import SlowOperations
from magnetar_core.runtime.types import KIB, MIB, Buffer

log = logging.getLogger(__name__)

# Why a connection is not read at the moment; bits.
_ADDS_IN_FLIGHT: Final = 1
_CACHE_FULL: Final = 2
_SLOW_PEER: Final = 4
_READS_IN_FLIGHT: Final = 8
_ALL_ADDS: Final = 16
_ALL_READS: Final = 32

# Between two looks of a repair whether the write cache has room.
_CACHE_WAIT_S: Final = 0.05

# Answers up to this much are joined into one buffer; larger ones go to the transport as they are.
_JOIN_BYTES: Final = 128 * KIB

# Answers gathered within one turn of the loop before they are given to the transport, which then says whether
# the peer keeps up (rule 4).
_OUTBOX_BYTES: Final = MIB


class Limits(NamedTuple):
    """What one connection (or, for long polls, all of them together) may have unanswered."""

    frame_bytes: int
    # Adds without an answer. At 1 KiB entries it is 10 MiB a client; a journal group takes a few
    # milliseconds, so it does not throttle, it protects. (Apache: maxPendingAddRequestsPerThread.)
    adds: int = 10_000
    add_bytes: int = 32 * MIB
    # Cold reads without an answer; 20 bytes each until they are worked on, then RESULT_BYTES_MAX in all.
    reads: int = 2_500
    # Of all connections together; 0: no limit. A thousand clients with a full window each would hold 32 GiB. A
    # connection that comes to it waits until half of it is answered; what one chunk brought is above the limit.
    adds_in_all: int = 100_000
    add_bytes_in_all: int = 256 * MIB
    reads_in_all: int = 50_000
    batch_read_bytes: int = 5 * MIB
    # Long polls of all connections: each holds a timer and a place in a list. Above it a poll is answered at
    # once, as if its time were over.
    long_polls: int = 10_000
    write_buffer_low_bytes: int = 384 * KIB
    write_buffer_high_bytes: int = 512 * KIB


class Counters:
    """What metrics are made of; plain integers."""

    __slots__ = (
        "add_bytes",
        "adds",
        "adds_refused",
        "cold_reads",
        "connections",
        "fences",
        "malformed",
        "reads",
    )

    def __init__(self) -> None:
        self.adds = self.add_bytes = self.adds_refused = 0
        self.reads = self.cold_reads = self.fences = 0
        self.connections = self.malformed = 0


class Server:
    """What the connections of a bookie share."""

    def __init__(
        self,
        desk: Desk,
        cache: WriteCache,
        read_cache: ReadCache,
        storage: LedgerStorage,
        journals: Sequence[Journal],
        checkpointer: Checkpointer,
        readers: Sequence[JobThread],
        clock: Clock,
        limits: Limits,
        disk_usage: Callable[[], DiskUsage],
        on_index_corrupt: Callable[[int, Exception], None] = lambda ledger_id, error: None,
        urgent_reader: JobThread | None = None,
        stages: BookieStages | None = None,
        slow: SlowOperations | None = None,
    ) -> None:
        """*urgent_reader* serves the reads of recovery; by default the readers of everybody do."""
        self.desk = desk
        self.cache = cache
        self.read_cache = read_cache
        self.storage = storage
        self.journals = journals
        self.checkpointer = checkpointer
        self.clock = clock
        self.limits = limits
        self.disk_usage = disk_usage
        self.on_index_corrupt = on_index_corrupt
        self.counters = Counters()
        self.stages = BookieStages() if stages is None else stages
        self.read_watch = ReadWatch(clock, self.stages.reads, slow)
        self.connections: set[Connection] = set()
        self.long_polls = 0
        self._readers = readers
        self._next_reader = 0
        self._urgent_reader = urgent_reader
        self.adds_in_flight = 0
        self.add_bytes_in_flight = 0
        self.reads_in_flight = 0
        # Connections that wait for others' adds or reads to be answered.
        self.held: set[Connection] = set()

    def new_connection(self) -> "Connection":
        reader = self._readers[self._next_reader % len(self._readers)]
        self._next_reader += 1
        return Connection(self, reader, self._urgent_reader or reader)

    def close(self) -> None:
        """End every connection at once."""
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
        """Let go on who was held for the adds of all, once half of them are answered."""
        limits = self.limits
        few = limits.adds_in_all == 0 or self.adds_in_flight <= limits.adds_in_all // 2
        small = limits.add_bytes_in_all == 0 or self.add_bytes_in_flight <= limits.add_bytes_in_all // 2
        if few and small:
            for connection in tuple(self.held):
                connection.go_on(_ALL_ADDS)

    def release_reads(self) -> None:
        if self.reads_in_flight <= self.limits.reads_in_all // 2:
            for connection in tuple(self.held):
                connection.go_on(_ALL_READS)

    def there_is_room(self) -> None:
        """The write cache can take entries again, or will refuse them."""
        for connection in tuple(self.connections):
            connection.go_on(_CACHE_FULL)

    def fence(self, ledger_id: int, master_key: bytes, done: Callable[[int], None]) -> None:
        """Fence a ledger; *done(rc)* when its record is durable, or with the refusal."""
        records: list[Buffer] = []
        rc, ledger = self.desk.fence(ledger_id, master_key, records)
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
        """Store an entry that came back from another bookie; 0 when it is durable, or the refusal."""
        while self.cache.is_full:
            await self.clock.sleep(_CACHE_WAIT_S)
        ledger = self.desk.ledgers.get(ledger_id)
        if ledger is None:
            return ENOLEDGER
        records: list[Buffer] = []
        entry_id = v2.entry_ids(entry)[1]
        rc = self.desk.add(ledger_id, entry_id, ledger.master_key, entry, True, True, records)
        if rc == OK:
            written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self.journal_of(ledger_id).put(records, True, _put_back_written, written)
            self.checkpointer.touched()
            rc = await written
        return rc

    def read_failed(self, ledger_id: int, error: Exception | None) -> None:
        """A read from disk did not work; if the index is damaged, somebody has to know."""
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


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: Server, reader: JobThread, urgent_reader: JobThread) -> None:
        self._server = server
        self._desk = server.desk
        self._limits = server.limits
        self._splitter = FrameSplitter(server.limits.frame_bytes)
        self._is_v2 = False
        self._transport: asyncio.Transport
        self._loop: asyncio.AbstractEventLoop
        self._peer = "?"
        self._is_open = False
        self._paused = 0
        self._backlog: list[memoryview] = []
        # Adds of the chunk that is being worked on: journal records and answers, for each journal.
        count = len(server.journals)
        self._records: list[list[Buffer]] = [[] for _ in range(count)]
        self._answers: list[list[bytes]] = [[] for _ in range(count)]
        self._has_adds = False
        self._adds_in_flight = 0
        self._add_bytes_in_flight = 0
        watch = server.read_watch
        self._cold = ColdReads(reader, self._may_start_cold, self._cold_shrunk, watch, lambda: server.counters.adds)
        self._urgent = ColdReads(urgent_reader, self._may_start_cold, self._cold_shrunk, watch)
        self._reads_counted = 0
        self._third: ThirdProtocol | None = None
        self._outbox: list[Buffer] = []
        self._outbox_bytes = 0

    # -- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self._loop = asyncio.get_running_loop()
        self._peer = str(transport.get_extra_info("peername"))
        self._is_open = True
        self._transport.set_write_buffer_limits(
            self._limits.write_buffer_high_bytes, self._limits.write_buffer_low_bytes
        )
        self._server.connections.add(self)
        self._server.counters.connections += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        self._server.connections.discard(self)
        if self._third is not None:
            self._third.close()
        self._cold.close()
        self._urgent.close()
        self._count_reads()
        self._server.held.discard(self)
        self._backlog.clear()
        self._outbox.clear()

    def abort(self) -> None:
        self._is_open = False
        self._transport.abort()

    def pause_writing(self) -> None:
        self._hold(_SLOW_PEER)

    def resume_writing(self) -> None:
        self.go_on(_SLOW_PEER)
        self._urgent.go_on()
        self._cold.go_on()

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._splitter.feed(data)
        except MalformedFrame as error:
            self._refuse(error)
            return
        if self._paused:
            self._backlog += frames
        else:
            self._process(frames)

    def _process(self, frames: Sequence[memoryview]) -> None:
        try:
            at = 0
            while at < len(frames):
                if self._paused or not self._is_open:
                    self._backlog += frames[at:]
                    break
                frame = frames[at]
                if self._is_v2 and frame[:4] == v2.PLAIN_ADD_BYTES:
                    at += self._take_adds(frames, at)
                    continue
                at += 1
                if self._is_v2:
                    self._on_v2(frame)
                elif v3.is_v3(frame):
                    if self._third is None:
                        self._third = ThirdProtocol(self, self._server)
                    self._third.on_frame(frame)
                else:
                    self._is_v2 = True  # rule 1
                    self._on_v2(frame)
        except MalformedFrame as error:
            self._refuse(error)
        finally:
            # Also after a bad frame: what the cache has, the journal must have.
            if self._has_adds:
                self.submit_adds()

    def _refuse(self, error: MalformedFrame) -> None:
        self._server.counters.malformed += 1
        log.warning("closing the connection of %s: %s", self._peer, error)
        self.abort()

    def _hold(self, reason: int) -> None:
        if not self._paused and self._is_open:
            self._transport.pause_reading()
        self._paused |= reason
        if reason & (_ALL_ADDS | _ALL_READS):
            self._server.held.add(self)

    def go_on(self, reason: int) -> None:
        """*reason* to hold the connection is over."""
        if not self._paused & reason:
            return
        self._paused &= ~reason
        if not self._paused & (_ALL_ADDS | _ALL_READS):
            self._server.held.discard(self)
        if self._paused or not self._is_open:
            return
        frames, self._backlog = self._backlog, []
        self._process(frames)
        if not self._paused and self._is_open:
            self._transport.resume_reading()

    # -- answers

    def send(self, answer: Buffer) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(answer)
        self._outbox_bytes += len(answer)
        if self._outbox_bytes > _OUTBOX_BYTES:
            self._flush()

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        size, self._outbox_bytes = self._outbox_bytes, 0
        if not outbox or not self._is_open:
            return
        if len(outbox) == 1:
            self._transport.write(outbox[0])
        elif size <= _JOIN_BYTES:
            self._transport.write(b"".join(outbox))
        else:
            self._transport.writelines(outbox)

    # -- the second protocol

    def _on_v2(self, frame: memoryview) -> None:
        opcode, version, flags, ledger_id, entry_id, key, extra = v2.parse_request(frame)
        if version > v2.VERSION:
            self._on_v2_version(opcode, version, ledger_id, entry_id, extra)
        elif opcode == v2.ADD_ENTRY:
            assert key is not None
            number = ledger_id % len(self._records)
            rc = self._desk.add(
                ledger_id,
                entry_id,
                key,
                extra,
                flags & v2.FLAG_RECOVERY_ADD != 0,
                flags & v2.FLAG_HIGH_PRIORITY != 0,
                self._records[number],
            )
            answer = v2.add_response(rc, ledger_id, entry_id, version)
            if rc == OK:
                self._added(number, answer, len(extra))
            else:
                self._server.counters.adds_refused += 1
                self.send(answer)
        elif opcode == v2.READ_ENTRY:
            if flags & v2.FLAG_DO_FENCING:
                if key is None:
                    raise MalformedFrame("a fencing read in a version without keys")
                self.fence(
                    ledger_id,
                    key,
                    lambda rc: (
                        self._read_v2(version, ledger_id, entry_id, True)
                        if rc == OK
                        else self._answer_read_v2(version, ledger_id, entry_id, rc)
                    ),
                )
            else:
                self._read_v2(version, ledger_id, entry_id, flags & v2.FLAG_HIGH_PRIORITY != 0)
        elif opcode == v2.BATCH_READ_ENTRY:
            if flags & v2.FLAG_DO_FENCING:
                if key is None:
                    raise MalformedFrame("a fencing read in a version without keys")
                self.fence(
                    ledger_id,
                    key,
                    lambda rc: (
                        self._batch_read(version, ledger_id, entry_id, extra, True)
                        if rc == OK
                        else self._answer_batch(version, ledger_id, entry_id, extra[0], rc)
                    ),
                )
            else:
                self._batch_read(version, ledger_id, entry_id, extra, flags & v2.FLAG_HIGH_PRIORITY != 0)
        else:
            # Nobody asked for it, and nothing here checks it: the client may go on.
            answer = pb.AuthMessage(authPluginName=AUTH_DISABLED, payload=b"").SerializeToString()
            self.send(v2.auth_response(answer, version))

    def _take_adds(self, frames: Sequence[memoryview], at: int) -> int:
        """Work on the adds that *frames* have from *at* on, as far as they are all alike; how many they were."""
        stop = min(len(frames), at + self._limits.adds - self._adds_in_flight)
        count = self._desk.add_run(frames, at, stop, self._records, self._answers)
        if count:
            size = sum(map(len, frames[at : at + count])) - count * v2.ADD_PREFIX_BYTES
            self._took(count, size)
            return count
        self._on_v2(frames[at])
        return 1

    def _on_v2_version(self, opcode: int, version: int, ledger_id: int, entry_id: int, extra: Any) -> None:
        rc = int(v2.V2Error.EBADVERSION)
        if opcode == v2.ADD_ENTRY:
            self.send(v2.add_response(rc, ledger_id, entry_id, version))
        elif opcode == v2.BATCH_READ_ENTRY:
            self._answer_batch(version, ledger_id, entry_id, extra[0], rc)
        else:
            self._answer_read_v2(version, ledger_id, entry_id, rc)

    def _read_v2(self, version: int, ledger_id: int, entry_id: int, urgent: bool) -> None:
        self.read(ledger_id, entry_id, partial(self._answer_read_v2, version, ledger_id, entry_id), urgent)

    def _answer_read_v2(self, version: int, ledger_id: int, entry_id: int, found: bytes | int) -> None:
        if isinstance(found, int):
            self.send(v2.read_response(found, ledger_id, entry_id, 0, version))
            return
        self.send(v2.read_response(OK, ledger_id, entry_id, len(found), version))
        self.send(found)

    def _batch_read(self, version: int, ledger_id: int, first: int, extra: tuple[int, int, int], urgent: bool) -> None:
        request_id, max_count, max_bytes = extra
        max_bytes = min(max_bytes, self._limits.batch_read_bytes)
        answer = partial(self._answer_batch, version, ledger_id, first, request_id)
        self._server.counters.reads += 1
        found = self._desk.read_run(ledger_id, first, max_count, max_bytes)
        if found is not None:
            answer(found)
            return
        storage = self._server.storage

        def work(brought: Brought) -> tuple[Block, int]:
            count = max_count if max_count > 0 else 2**31
            block = storage.read_block(ledger_id, first, count, max_bytes - v2.BATCH_START_BYTES)
            return block, block.size_bytes

        def done(block: Block | None, error: Exception | None) -> None:
            if error is not None or block is None:
                log.error("batch read of ledger %d from entry %d: %s", ledger_id, first, error)
                self._server.read_failed(ledger_id, error)
                answer(EIO)
            elif not block.entries:
                answer(self._absent(ledger_id))
            else:
                self.send(v2.batch_read_response_head(ledger_id, first, request_id, block.size_bytes, version))
                for buffer in block.buffers:
                    self.send(buffer)

        self.read_cold(ColdRead(work, done), urgent)

    def _answer_batch(
        self, version: int, ledger_id: int, first: int, request_id: int, found: list[bytes] | int
    ) -> None:
        rc, entries = (found, []) if isinstance(found, int) else (OK, found)
        for buffer in v2.batch_read_response(rc, ledger_id, first, request_id, entries, version):
            self.send(buffer)

    # -- adds

    def _added(self, number: int, answer: bytes, size: int) -> None:
        self._answers[number].append(answer)
        self._took(1, size)

    def _took(self, count: int, size: int) -> None:
        """So many adds were taken, their entries of *size* bytes together."""
        self._has_adds = True
        self._adds_in_flight += count
        self._add_bytes_in_flight += size + 4 * count
        server = self._server
        if self._adds_in_flight >= self._limits.adds or self._add_bytes_in_flight >= self._limits.add_bytes:
            self._hold(_ADDS_IN_FLIGHT)
        if server.cache.is_full:  # on a read-only bookie too: recovery adds are accepted there
            self._hold(_CACHE_FULL)

    def add_v3(self, number: int, answer: bytes, size: int, deferred: list[Buffer] | None) -> None:
        """An add of the third protocol was taken; its records are *deferred*, or in `records`."""
        if deferred is None:
            self._added(number, answer, size)
            return
        if self._has_adds:
            self.submit_adds()
        self._adds_in_flight += 1
        self._add_bytes_in_flight += size + 4
        server = self._server
        server.adds_in_flight += 1
        server.add_bytes_in_flight += size + 4
        server.counters.adds += 1
        self._server.journals[number].put(
            deferred, False, self._on_added, ([answer], size + 4, server.clock.monotonic())
        )
        self._server.checkpointer.touched()

    def records(self, number: int) -> list[Buffer]:
        """Where the records of this chunk's adds for a journal are gathered."""
        return self._records[number]

    def submit_adds(self) -> None:
        """Hand the adds that were taken since the last call to the journal."""
        self._has_adds = False
        server = self._server
        now = server.clock.monotonic()
        for number, answers in enumerate(self._answers):
            if not answers:
                continue
            records = self._records[number]
            self._records[number], self._answers[number] = [], []
            size = sum(map(len, records))
            server.counters.adds += len(answers)
            server.counters.add_bytes += size
            server.adds_in_flight += len(answers)
            server.add_bytes_in_flight += size
            server.journals[number].put(records, True, self._on_added, (answers, size, now))
        server.checkpointer.touched()
        if server.has_too_many_adds:
            self._hold(_ALL_ADDS)

    def _on_added(self, group: tuple[list[bytes], int, float], refusal: Exception | None) -> None:
        answers, size, taken_s = group
        self._adds_in_flight -= len(answers)
        self._add_bytes_in_flight = max(self._add_bytes_in_flight - size, 0) if self._adds_in_flight else 0
        server = self._server
        server.adds_in_flight -= len(answers)
        server.add_bytes_in_flight -= size
        adds = server.stages.adds
        (adds.good if refusal is None else adds.bad).add((server.clock.monotonic() - taken_s) * 1000, len(answers))
        if server.held:
            server.release_adds()
        if refusal is not None:
            answers = [_with_refusal(answer, EREADONLY) for answer in answers]
        self.send(answers[0] if len(answers) == 1 else b"".join(answers))
        if self._paused & _ADDS_IN_FLIGHT and (
            self._adds_in_flight <= self._limits.adds // 2 and self._add_bytes_in_flight <= self._limits.add_bytes // 2
        ):
            self.go_on(_ADDS_IN_FLIGHT)

    def journal(self, ledger_id: int, records: list[Buffer], must_sync: bool, done: Callable[[int], None]) -> None:
        """Journal something that is no plain add; *done(rc)* afterwards."""
        if self._has_adds:
            self.submit_adds()
        self._server.journal_of(ledger_id).put(
            records, must_sync, lambda _, refusal: done(OK if refusal is None else EREADONLY), None
        )
        self._server.checkpointer.touched()

    def fence(self, ledger_id: int, key: bytes, done: Callable[[int], None]) -> None:
        if self._has_adds:
            self.submit_adds()  # what was taken before the fence is journaled before it
        self._server.fence(ledger_id, key, done)

    # -- reads

    def read(self, ledger_id: int, entry_id: int, answer: Callable[[bytes | int], None], urgent: bool = False) -> None:
        """Find an entry (or the last one); *answer(entry or refusal)*, at once if memory has it."""
        self._server.counters.reads += 1
        found = self._desk.read(ledger_id, entry_id)
        if found is not None:
            answer(found)
        elif entry_id == v2.LAST_ENTRY:
            ledger = self._desk.ledgers.get(ledger_id)
            if ledger is not None and ledger.is_tail_known:  # known, but no cache has it
                self._read_from_disk(ledger_id, ledger.last_entry_id, answer, urgent)
            else:
                self.with_tail(
                    ledger_id,
                    lambda rc: answer(rc) if rc else self.read(ledger_id, entry_id, answer, urgent),
                    urgent,
                )
        else:
            self._read_from_disk(ledger_id, entry_id, answer, urgent)

    def _read_from_disk(
        self, ledger_id: int, entry_id: int, answer: Callable[[bytes | int], None], urgent: bool
    ) -> None:
        storage, cache = self._server.storage, self._server.cache

        def work(brought: Brought) -> tuple[Found, int]:
            entry = brought.get((ledger_id, entry_id))
            if entry is not None:
                return Found(entry, []), 0
            found = storage.read(ledger_id, entry_id)
            brought.update({(ledger_id, read_id): read for read_id, read in found.run})
            return found, sum(len(entry) for _, entry in found.run)

        def done(found: Found | None, error: Exception | None) -> None:
            if error is not None or found is None:
                log.error("read of ledger %d entry %d: %s", ledger_id, entry_id, error)
                self._server.read_failed(ledger_id, error)
                answer(EIO)
                return
            # An entry that was written again meanwhile is newer than what the disk had.
            run = [pair for pair in found.run if cache.get(ledger_id, pair[0]) is None]
            self._server.read_cache.put_run(ledger_id, run)
            entry = cache.get(ledger_id, entry_id) or found.entry
            answer(self._absent(ledger_id) if entry is None else entry)

        def again() -> bool:
            found = self._desk.read(ledger_id, entry_id)
            if found is not None:
                answer(found)
            return found is not None

        self.read_cold(ColdRead(work, done, again), urgent)

    def _absent(self, ledger_id: int) -> int:
        ledger = self._desk.ledgers.get(ledger_id)
        return ENOLEDGER if ledger is None else self._desk.absent(ledger)

    def read_cold(self, read: ColdRead, urgent: bool = False) -> None:
        """Queue a read that needs the disk."""
        self._server.counters.cold_reads += 1
        (self._urgent if urgent else self._cold).add(read)
        self._count_reads()
        if len(self._cold) + len(self._urgent) >= self._limits.reads:
            self._hold(_READS_IN_FLIGHT)
        if self._server.has_too_many_reads:
            self._hold(_ALL_READS)

    def _may_start_cold(self) -> bool:
        return self._is_open and not self._paused & _SLOW_PEER

    def _cold_shrunk(self) -> None:
        self._count_reads()
        if len(self._cold) + len(self._urgent) <= self._limits.reads // 2:
            self.go_on(_READS_IN_FLIGHT)
        if self._server.held:
            self._server.release_reads()

    def _count_reads(self) -> None:
        """Keep the number of all reads that wait, of which this connection's are a part."""
        now = len(self._cold) + len(self._urgent)
        self._server.reads_in_flight += now - self._reads_counted
        self._reads_counted = now

    def with_tail(self, ledger_id: int, then: Callable[[int], None], urgent: bool = False) -> None:
        """Call *then(0)* when LAC and last entry of the ledger are known, *then(rc)* if they cannot be."""
        ledger = self._desk.ledgers.get(ledger_id)
        if ledger is None:
            then(ENOLEDGER)
            return
        if ledger.is_tail_known:
            then(OK)
            return
        storage = self._server.storage

        def work(brought: Brought) -> tuple[Tail, int]:
            tail = storage.tail(ledger_id)
            return tail, len(tail.entry or b"")

        def done(tail: Tail | None, error: Exception | None) -> None:
            if error is not None or tail is None:
                log.error("read of the last entry of ledger %d: %s", ledger_id, error)
                self._server.read_failed(ledger_id, error)
                then(EIO)
                return
            ledger.see_tail(tail.entry_id, tail.last_add_confirmed)
            if tail.entry is not None and self._server.cache.get(ledger_id, tail.entry_id) is None:
                self._server.read_cache.put_run(ledger_id, [(tail.entry_id, tail.entry)])
            then(OK)

        self.read_cold(ColdRead(work, done), urgent)


def _with_refusal(answer: bytes, rc: int) -> bytes:
    """The answer to an add, made when it was taken, with *rc* in place of success."""
    frame = memoryview(answer)[4:]
    return add_refusal(frame, rc) if v3.is_v3(frame) else v2.with_rc(answer, rc)
