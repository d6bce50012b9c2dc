"""A connection to a bookie: opened when there is something to send, over protocol version 2.

    send_adds, read, batch_read ──▶ outbox ──one writelines per loop turn──▶ socket
    socket ──▶ buffer_updated: all answers of the chunk ──▶ per ledger one `on_added(ids)`; futures of reads

Rules:

1. Version 2 has no request ids for adds and reads: an answer is matched to its request by (ledger, entry), and if
   several equal requests wait, the oldest of them gets it. Therefore fencing reads and recovery adds go over separate
   connections: an answer to a plain request must never count as one to a fencing request.
2. A request ends exactly once: answered, timed out, or failed with its connection. A time-out does not end the
   connection. An add times out only when the bookie is silent: while it answers other requests, the add is still
   queued there.
3. `send_adds` never calls the sink itself: failures that are known at once are reported in a later loop turn.
4. Where TLS is set, nothing is sent before the bookie has accepted our certificate
   (`magnetar_core.bookkeeper.tls.start_tls`).
5. After a failed connect, requests fail at once for a moment, without another try. The bookie goes into quarantine:
   new ensembles avoid it.
6. When the socket takes no more, requests wait in the outbox. Above the outbox's limit `is_full` asks writers to wait.
   The connection is given up only when the bookie has neither answered nor taken bytes for a while.
7. While a large answer arrives, the socket wakes us when there is much of it, not for each segment: nothing else can
   come before its end. A socket that has closed or broken wakes us at once.
"""

import asyncio
import contextlib
import logging
import socket
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, cast

from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.deciding.writer import PendingAdd
from magnetar_core.bookkeeper.client.errors import (
    BookieUnavailable,
    BookKeeperError,
    ClientClosed,
    OperationTimeout,
    error_of,
)
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.bookkeeper.tls.start_tls import TlsFailed, connect
from magnetar_core.bookkeeper.wire.codec_v2 import (
    ADD_ENTRY,
    BATCH_READ_ENTRY,
    FLAG_DO_FENCING,
    FLAG_HIGH_PRIORITY,
    READ_ENTRY,
    batch_read_request,
    parse_response,
    read_request,
)
from magnetar_core.bookkeeper.wire.framing import FrameReceiver, MalformedFrame
from magnetar_core.runtime.clock import Clock, DeadlineSweep, Timer
from magnetar_core.runtime.pauses import GrowingPause
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import KIB, Allocate, Buffer
from magnetar_core.security.tls.contexts import Certificates

log = logging.getLogger(__name__)

# With asyncio's default of 64 KiB the socket would pause and resume at every burst. What exceeds the buffer waits in
# the outbox anyway.
_SOCKET_BUFFER_BYTES: Final = 1024 * KIB

# Bytes handed to the socket at once. asyncio joins them, so a long outbox handed over in one piece would be in memory
# twice.
_FLUSH_BYTES: Final = 1024 * KIB

# The most bytes of an answer for which a socket waits (rule 7). The system waits for less where its buffer is small.
_WAKE_BYTES_MAX: Final = 1024 * KIB

# How many time-outs in a row an add may wait while the bookie answers other requests (rule 2). It is bounded because
# an answer that is lost must not keep an entry for ever.
_OVERTAKEN_MAX: Final = 3

# How long requests are refused after a failed connect, doubling up to the maximum. Otherwise a writer with a left-out
# position would try to connect with every run it appends.
_REFUSE_S: Final = 0.5
_REFUSE_S_MAX: Final = 5.0
# When the outbox waited longer than this for the socket, the wait is remembered, so that the report of a slow add can
# say how long the add was not sent. The last _LATE_FLUSHES waits are kept.
_LATE_S: Final = 0.01
_LATE_FLUSHES: Final = 64


class AddSink(Protocol):
    """Receives the answers to adds: the handle of a ledger that is being written."""

    def on_added(self, channel: "AddChannel", entry_ids: list[int]) -> None:
        """The channel's bookie confirmed these entries. One call for all answers of a received chunk."""
        ...

    def on_add_failed(self, channel: "AddChannel", entry_ids: list[int], error: BookKeeperError) -> None:
        """The channel's bookie refused these entries, or did not answer."""
        ...


class BookieHealth(Protocol):
    """Where a connection reports that its bookie failed."""

    def failed(self, bookie_id: str) -> None:
        """The bookie could not be reached, broke a connection, or did not answer in time."""
        ...

    def batches_failed(self, bookie_id: str) -> None:
        """The bookie closed the connection instead of answering a batch read."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionParts:
    """What all connections of one client share."""

    clock: Clock
    config: ClientConfig
    directory: BookieDirectory
    certificates: Certificates | None
    """None: without TLS."""
    tasks: Tasks
    health: BookieHealth
    allocate: Allocate
    """Makes room for a large answer."""
    chunk: memoryview
    """Where all sockets receive small ones, one after the other."""


class AddChannel:
    """One position of a ledger's ensemble: its bookie, and the handle that gets the bookie's answers."""

    __slots__ = ("acknowledged", "bookie", "connection", "index", "sink")

    def __init__(self, sink: AddSink, index: int, connection: "BookieConnection") -> None:
        self.sink = sink
        self.index = index
        self.bookie = connection.bookie_id
        self.connection = connection
        self.acknowledged: list[int] = []
        """Filled while one received chunk is parsed; empty at any other time."""


_Key: TypeAlias = tuple[int, int]
_Read: TypeAlias = "asyncio.Future[Any]"


class BookieConnection:
    """Requests to one bookie. It connects when there is something to send, and again after it lost its socket."""

    def __init__(self, bookie_id: str, parts: ConnectionParts, *, is_closed: bool = False) -> None:
        """*is_closed*: the client was closed already, so every request fails."""
        self.bookie_id = bookie_id
        self.socket = 0
        """Counts the sockets. Behind another one there may be another bookie: the same name, and empty disks."""
        self._parts = parts
        self._clock = parts.clock
        self._config = parts.config
        self._loop = asyncio.get_running_loop()
        self._wire: _Wire | None = None
        self._connecting = False
        self._paused = False
        self._flushing = False
        self._in_pieces = False
        self._closed = is_closed
        self._refuse_until = 0.0
        self._refusing = GrowingPause(_REFUSE_S, _REFUSE_S_MAX)
        self._last_error: BookKeeperError = BookieUnavailable(f"bookie {bookie_id} was not reached yet")
        self._outbox: list[Buffer] = []
        self._outbox_bytes = 0
        self._outbox_since_s = 0.0
        self._late_flushes: deque[tuple[float, float]] = deque(maxlen=_LATE_FLUSHES)
        # When the bookie last answered, or took bytes from a socket that had been full.
        self._alive_s = self._clock.monotonic()
        self._full_timer: Timer | None = None
        self._when_drained: list[Callable[[], None]] = []
        # By (ledger, entry). For several equal requests (rule 1) the value is a list of channels, oldest first; a list
        # for every add would cost an allocation per entry.
        self._adds: dict[_Key, AddChannel | list[AddChannel]] = {}
        self._reads: dict[_Key, list[_Read]] = {}
        self._batches: dict[int, _Read] = {}
        self._batches_sent = 0
        self._batch_answered = False
        self._add_deadlines: DeadlineSweep[tuple[AddChannel, int, int, int, int]] = DeadlineSweep(
            self._clock, self._config.timeout_s, self._expire_adds
        )
        # Weak references: otherwise the sweep would keep an answered read, up to 5 MiB, until its time-out.
        self._read_deadlines: DeadlineSweep[tuple[_Key | int, weakref.ref[_Read]]] = DeadlineSweep(
            self._clock, self._config.timeout_s, self._expire_read
        )

    @property
    def is_refusing(self) -> bool:
        """The last connect failed a moment ago, and the next one is not tried yet (rule 5)."""
        return self._wire is None and self._clock.monotonic() < self._refuse_until

    @property
    def is_full(self) -> bool:
        """The outbox is above its limit: writers should wait (`when_drained`)."""
        return self._outbox_bytes > self._config.outbox_bytes_max

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, when the outbox is down to half of its limit, or was dropped with the connection."""
        self._when_drained.append(callback)

    @property
    def outstanding_count(self) -> int:
        """Requests without an answer."""
        return len(self._adds) + len(self._reads) + len(self._batches)

    def send_adds(self, channel: AddChannel, ledger_id: int, run: Sequence[PendingAdd]) -> None:
        """Send *run* (ids ascending); answers go to the channel's sink."""
        if not run:
            return
        if self._closed or self.is_refusing:
            self._loop.call_soon(channel.sink.on_add_failed, channel, [add.entry_id for add in run], self._refusal())
            return
        adds, outbox = self._adds, self._outbox
        size = 0
        for add in run:
            key = (ledger_id, add.entry_id)
            if key in adds:
                self._share(key, channel)
            else:
                adds[key] = channel
            head, payload = add.head, add.payload
            outbox.append(head)
            outbox.append(payload)
            size += len(head) + len(payload)
        self._add_deadlines.add((channel, ledger_id, run[0].entry_id, run[-1].entry_id, 0))
        self._queued(size)

    def queue_s(self, queued_s: float) -> float:
        """How long a request queued at *queued_s* waited in the outbox. Seconds; known for recent requests only."""
        for since_s, flushed_s in self._late_flushes:
            if since_s <= queued_s <= flushed_s:
                return flushed_s - queued_s
        if self._outbox and self._outbox_since_s <= queued_s:
            return self._clock.monotonic() - queued_s
        return 0.0

    def read(self, ledger_id: int, entry_id: int, *, fencing_key: bytes | None = None) -> "asyncio.Future[memoryview]":
        """Ask for an entry (-1: the last one). The future gets the stored entry, or a BookKeeperError.

        With *fencing_key*, the ledger's master key, the bookie also fences the ledger.
        """
        flags = 0 if fencing_key is None else FLAG_DO_FENCING | (FLAG_HIGH_PRIORITY if entry_id >= 0 else 0)
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        if self._closed or self.is_refusing:
            answer.set_exception(self._refusal())
            return answer
        key = (ledger_id, entry_id)
        self._reads.setdefault(key, []).append(answer)
        self._read_deadlines.add((key, weakref.ref(answer)))
        self._send(read_request(ledger_id, entry_id, flags, fencing_key))
        return answer

    def batch_read(
        self, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int
    ) -> "asyncio.Future[list[memoryview]]":
        """Ask for a run of entries that begins with *first_entry_id*. The future gets at least one stored entry, or a
        BookKeeperError; the bookie may return fewer than asked for."""
        answer: asyncio.Future[list[memoryview]] = self._loop.create_future()
        if self._closed or self.is_refusing:
            answer.set_exception(self._refusal())
            return answer
        self._batches_sent += 1
        request_id = self._batches_sent
        self._batches[request_id] = answer
        self._read_deadlines.add((request_id, weakref.ref(answer)))
        self._send(batch_read_request(ledger_id, first_entry_id, request_id, max_count, max_bytes))
        return answer

    async def close(self) -> None:
        self._closed = True
        self._add_deadlines.close()
        self._read_deadlines.close()
        if self._full_timer is not None:
            self._full_timer.cancel()
            self._full_timer = None
        wire = self._wire
        self._lost(wire, ClientClosed("the BookKeeper client was closed"))
        if wire is not None:
            wire.transport.abort()

    # Sending

    def _send(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self._queued(len(frame))

    def _queued(self, size_bytes: int) -> None:
        if not self._outbox_bytes:
            self._outbox_since_s = self._clock.monotonic()
        self._outbox_bytes += size_bytes
        if self._wire is None:
            if not self._connecting:
                self._connecting = True
                self._parts.tasks.spawn(self._connect(), f"connect {self.bookie_id}")
        elif not self._flushing and not self._paused:
            self._flushing = True
            self._loop.call_soon(self._flush)
        if self._full_timer is None and self.is_full:
            self._full_timer = self._clock.call_later(self._config.full_silence_s, self._give_up_if_silent)

    def _flush(self) -> None:
        self._flushing = False
        if self._wire is None or self._paused or not self._outbox:
            return
        now = self._clock.monotonic()
        if now - self._outbox_since_s > _LATE_S:
            self._late_flushes.append((self._outbox_since_s, now))
        if self._outbox_bytes <= _FLUSH_BYTES:
            outbox, self._outbox = self._outbox, []
            self._outbox_bytes = 0
            self._wire.send(outbox)
        else:
            self._flush_in_pieces(self._wire)
        if self._when_drained and self._outbox_bytes <= self._config.outbox_bytes_max // 2:
            self._tell_drained()

    def _flush_in_pieces(self, wire: "_Wire") -> None:
        """Hand over as much as the socket takes. The rest stays in the outbox, where its bytes are counted."""
        outbox = self._outbox
        begin = 0
        self._in_pieces = True  # uvloop may call `paused` from within a write
        while begin < len(outbox) and not self._paused:
            end, size = begin, 0
            while end < len(outbox) and size < _FLUSH_BYTES:
                size += len(outbox[end])
                end += 1
            wire.send(outbox[begin:end])
            self._outbox_bytes -= size
            begin = end
        self._in_pieces = False
        del outbox[:begin]
        assert self._outbox_bytes >= 0
        assert bool(outbox) == bool(self._outbox_bytes)

    def _tell_drained(self) -> None:
        waiting, self._when_drained = self._when_drained, []
        for callback in waiting:
            self._loop.call_soon(callback)

    def _give_up_if_silent(self) -> None:
        """Rule 6."""
        self._full_timer = None
        if self._closed or not self.is_full:
            return
        silent_s = self._clock.monotonic() - max(self._alive_s, self._outbox_since_s)
        if silent_s < self._config.full_silence_s:
            self._full_timer = self._clock.call_later(self._config.full_silence_s - silent_s, self._give_up_if_silent)
            return
        wire = self._wire
        self._lost(
            wire,
            BookieUnavailable(
                f"bookie {self.bookie_id} has neither answered nor taken anything for {silent_s:.1f} s, and "
                f"{self._outbox_bytes} bytes wait for it (maxOutboxBytesPerBookie {self._config.outbox_bytes_max})"
            ),
        )
        if wire is not None:
            wire.transport.abort()

    async def _connect(self) -> None:
        try:
            try:
                async with asyncio.timeout(self._config.connect_timeout_ms / 1000):
                    host, port = await self._parts.directory.address_of(self.bookie_id)
                    if self._parts.certificates is None:
                        _, wire = await self._loop.create_connection(lambda: _Wire(self), host, port)
                    else:
                        _, wire = await connect(_Wire(self), host, port, self._parts.certificates)
            finally:
                self._connecting = False
        except (OSError, MetadataError, TimeoutError) as error:
            self._refuse_until = self._clock.monotonic() + self._refusing.next_s()
            why = "no connection in time" if isinstance(error, TimeoutError) else error
            # Wrong settings, which somebody must correct. The caller may see only a consequence, as NotEnoughBookies.
            if isinstance(error, TlsFailed):
                log.warning("no TLS connection to bookie %s: %s", self.bookie_id, error)
            self._lost(None, BookieUnavailable(f"bookie {self.bookie_id} cannot be reached: {why}"))
            return
        if self._closed or wire.is_lost:
            wire.transport.abort()
            self._lost(None, BookieUnavailable(f"the connection to bookie {self.bookie_id} broke at once"))
            return
        self._wire = wire
        self.socket += 1
        self._refusing.reset()
        self._paused = False
        self._batch_answered = False
        self._flush()

    # Answers

    def received(self, frames: Sequence[memoryview], chunk_bytes: int) -> None:
        """Handle all whole frames of one received chunk. Raises MalformedFrame, after the frames before it were
        delivered."""
        self._alive_s = self._clock.monotonic()
        adds = self._adds
        touched: list[AddChannel] = []
        refused: dict[tuple[AddChannel, int], list[int]] = {}
        try:
            for frame in frames:
                opcode, rc, ledger_id, entry_id, body, request_id = parse_response(frame)
                if opcode == ADD_ENTRY:
                    key = (ledger_id, entry_id)
                    found = adds.pop(key, None)
                    if found is None:
                        continue  # its time-out came first
                    if type(found) is list:
                        channel = found.pop(0)
                        if found:
                            adds[key] = found
                    else:
                        channel = found  # type: ignore[assignment]
                    if rc == 0:
                        acknowledged = channel.acknowledged
                        if not acknowledged:
                            touched.append(channel)
                        acknowledged.append(entry_id)
                    else:
                        refused.setdefault((channel, rc), []).append(entry_id)
                elif opcode == READ_ENTRY:
                    self._on_read(rc, ledger_id, entry_id, body, chunk_bytes)
                elif opcode == BATCH_READ_ENTRY:
                    self._on_batch(rc, ledger_id, entry_id, body, request_id)
                else:
                    raise MalformedFrame(f"an answer with the opcode {opcode} to nothing that was asked")
        finally:
            for channel in touched:
                entry_ids, channel.acknowledged = channel.acknowledged, []
                channel.sink.on_added(channel, entry_ids)
            for (channel, rc), entry_ids in refused.items():
                error = error_of(rc, f"bookie {self.bookie_id}, adding entry {entry_ids[0]}")
                channel.sink.on_add_failed(channel, entry_ids, error)

    def _on_read(self, rc: int, ledger_id: int, entry_id: int, body: Any, chunk_bytes: int) -> None:
        key = (ledger_id, entry_id)
        waiting = self._reads.get(key)
        if waiting is None:
            return
        answer = waiting.pop(0)
        if not waiting:
            del self._reads[key]
        if answer.done():
            return
        if rc == 0:
            # Copied, so that a small entry in a cache does not keep the whole chunk in memory.
            answer.set_result(body if len(body) * 2 > chunk_bytes else memoryview(bytes(body)))
        else:
            answer.set_exception(error_of(rc, f"bookie {self.bookie_id}, ledger {ledger_id} entry {entry_id}"))

    def _on_batch(self, rc: int, ledger_id: int, entry_id: int, body: Any, request_id: int | None) -> None:
        assert request_id is not None
        self._batch_answered = True
        answer = self._batches.pop(request_id, None)
        if answer is None or answer.done():
            return
        if rc == 0:
            answer.set_result(body)
        else:
            answer.set_exception(error_of(rc, f"bookie {self.bookie_id}, ledger {ledger_id} entry {entry_id}"))

    # Ends

    def paused(self, is_paused: bool) -> None:
        self._paused = is_paused
        if not is_paused:
            self._alive_s = self._clock.monotonic()
            if not self._in_pieces:
                self._flush()

    def lost(self, wire: "_Wire", error: Exception | None) -> None:
        """The socket was closed or broke."""
        if wire is not self._wire:
            return
        if self._batches and not self._batch_answered:
            self._parts.health.batches_failed(self.bookie_id)
        self._lost(wire, BookieUnavailable(f"the connection to bookie {self.bookie_id} broke ({error or 'closed'})"))

    def _lost(self, wire: "_Wire | None", error: BookKeeperError) -> None:
        assert wire is self._wire
        self._wire = None
        self._last_error = error
        if not self._closed:
            self._parts.health.failed(self.bookie_id)
        self._outbox = []
        self._outbox_bytes = 0
        self._tell_drained()
        adds, self._adds = self._adds, {}
        reads, self._reads = self._reads, {}
        batches, self._batches = self._batches, {}
        lost: dict[AddChannel, list[int]] = {}
        for (_, entry_id), found in adds.items():
            for channel in found if isinstance(found, list) else (found,):
                lost.setdefault(channel, []).append(entry_id)
        for channel, entry_ids in lost.items():
            channel.sink.on_add_failed(channel, entry_ids, error)
        for answer in (*(answer for waiting in reads.values() for answer in waiting), *batches.values()):
            if not answer.done():
                answer.set_exception(error)

    def _expire_adds(self, item: tuple[AddChannel, int, int, int, int]) -> None:
        channel, ledger_id, first, last, overtaken = item
        adds = self._adds
        if overtaken < _OVERTAKEN_MAX and self._clock.monotonic() - self._alive_s < self._config.timeout_s:
            if any((ledger_id, entry_id) in adds for entry_id in range(first, last + 1)):
                # Rule 2: other requests were answered, so these adds wait for one more time-out.
                self._add_deadlines.add((channel, ledger_id, first, last, overtaken + 1))
            return
        expired = []
        for entry_id in range(first, last + 1):
            key = (ledger_id, entry_id)
            found = adds.get(key)
            if found is channel:
                del adds[key]
                expired.append(entry_id)
            elif isinstance(found, list) and channel in found:
                found.remove(channel)
                if not found:
                    del adds[key]
                expired.append(entry_id)
        if expired:
            self._parts.health.failed(self.bookie_id)
            error = OperationTimeout(
                f"bookie {self.bookie_id} did not answer an add of ledger {ledger_id} entry {expired[0]} "
                f"within {self._config.timeout_s:g} s"
            )
            channel.sink.on_add_failed(channel, expired, error)

    def _expire_read(self, item: "tuple[_Key | int, weakref.ref[_Read]]") -> None:
        key, reference = item
        answer = reference()
        if answer is None:
            return
        if isinstance(key, int):
            self._batches.pop(key, None)
        else:
            waiting = self._reads.get(key, [])
            with contextlib.suppress(ValueError):
                waiting.remove(answer)
                if not waiting:
                    del self._reads[key]
        if not answer.done():
            self._parts.health.failed(self.bookie_id)
            answer.set_exception(
                OperationTimeout(f"bookie {self.bookie_id} did not answer a read within {self._config.timeout_s:g} s")
            )

    def _share(self, key: _Key, channel: AddChannel) -> None:
        found = self._adds[key]
        if isinstance(found, list):
            found.append(channel)
        else:
            self._adds[key] = [found, channel]

    def _refusal(self) -> BookKeeperError:
        if self._closed:
            return ClientClosed("the BookKeeper client was closed")
        return self._last_error


class _Wire(asyncio.BufferedProtocol):
    """One socket of a connection: cuts what arrives into frames."""

    def __init__(self, connection: BookieConnection) -> None:
        self._connection = connection
        parts = connection._parts
        self._receiver = FrameReceiver(connection._config.frame_bytes_max, parts.allocate, parts.chunk)
        self._wakes_at = 1
        self.transport: asyncio.Transport
        self.is_secure = False
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        self.transport.set_write_buffer_limits(high=_SOCKET_BUFFER_BYTES)

    def send(self, buffers: list[Buffer]) -> None:
        if self.is_secure:
            # Joined: the ssl library makes a TLS record of each buffer, and most of ours are heads of a few bytes.
            self.transport.write(b"".join(buffers))
        else:
            self.transport.writelines(buffers)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.room

    def buffer_updated(self, count: int) -> None:
        try:
            frames = self._receiver.took(count)
            self._wake_at(min(self._receiver.missing_bytes, _WAKE_BYTES_MAX) or 1)
            self._connection.received(frames, max(count, len(frames[0])) if frames else count)
        except MalformedFrame as error:
            log.warning("bookie %s: %s; closing the connection", self._connection.bookie_id, error)
            self.transport.abort()
            self._connection.lost(self, error)

    def _wake_at(self, count: int) -> None:
        """Rule 7."""
        if count != self._wakes_at and not self.is_secure:
            self._wakes_at = count
            with contextlib.suppress(OSError):  # a system that cannot wait wakes us more often
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def pause_writing(self) -> None:
        self._connection.paused(True)

    def resume_writing(self) -> None:
        self._connection.paused(False)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._connection.lost(self, error)
