"""A connection to a bookie: opened when there is something to send, over protocol version 2.

    send_adds, read, batch_read ──▶ outbox ──one writelines per loop turn──▶ socket
    socket ──▶ buffer_updated: all answers of the chunk ──▶ per ledger one `on_added(ids)`; futures of reads

Which answer belongs to which request, and how long a request waits, `deciding/outstanding` decides. Rules:

1. Equal requests are not told apart by their answers (rule 1 there). Therefore fencing reads and recovery adds go over
   separate connections: an answer to a plain request must never count as one to a fencing request.
2. A time-out does not end the connection.
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
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.deciding.outstanding import Outstanding
from magnetar_core.bookkeeper.client.deciding.writer import PendingAdd
from magnetar_core.bookkeeper.client.errors import (
    BookieUnavailable,
    BookKeeperError,
    ClientClosed,
    NoTls,
    OperationTimeout,
    error_of,
)
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.bookkeeper.tls.start_tls import TlsFailed, connect
from magnetar_core.bookkeeper.wire.codec_v2 import (
    FLAG_DO_FENCING,
    FLAG_HIGH_PRIORITY,
    batch_read_request,
    read_request,
)
from magnetar_core.bookkeeper.wire.framing import FrameReceiver, MalformedFrame
from magnetar_core.runtime.clock import Clock, Timer
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

    __slots__ = ("bookie", "connection", "index", "sink")

    def __init__(self, sink: AddSink, index: int, connection: "BookieConnection") -> None:
        self.sink = sink
        self.index = index
        self.bookie = connection.bookie_id
        self.connection = connection


class BookieConnection:
    """Requests to one bookie. It connects when there is something to send, and again after it lost its socket."""

    def __init__(self, bookie_id: str, parts: ConnectionParts, *, is_closed: bool = False) -> None:
        """*is_closed*: the client was closed already, so every request fails."""
        self.bookie_id = bookie_id
        self.socket = 0
        """Counts the sockets. A bookie may come back under the same id without its disks, so a new socket tells nothing
        about what the old one stored."""
        self._parts = parts
        self._clock = parts.clock
        self._config = parts.config
        self._loop = asyncio.get_running_loop()
        self._wire: _Wire | None = None
        self._connecting = False
        self._paused = False
        self._flushing = False
        self._in_pieces = False  # inside `_flush_in_pieces`
        self._closed = is_closed
        self._refuse_until_s = 0.0
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
        self.outstanding: Outstanding[AddChannel, asyncio.Future[Any]] = Outstanding(self._config.timeout_s)
        self._sweep_timer: Timer | None = None

    @property
    def is_refusing(self) -> bool:
        """The last connect failed a moment ago, and the next one is not tried yet (rule 5)."""
        return self._wire is None and self._clock.monotonic() < self._refuse_until_s

    @property
    def is_full(self) -> bool:
        """The outbox is above its limit: writers should wait (`when_drained`)."""
        return self._outbox_bytes > self._config.outbox_bytes_max

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, when the outbox is down to half of its limit, or was dropped with the connection."""
        self._when_drained.append(callback)

    def send_adds(self, channel: AddChannel, ledger_id: int, run: Sequence[PendingAdd]) -> None:
        """Send *run* (ids ascending); answers go to the channel's sink."""
        if not run:
            return
        if self._closed or self.is_refusing:
            self._loop.call_soon(channel.sink.on_add_failed, channel, [add.entry_id for add in run], self._refusal())
            return
        self._queued(self.outstanding.add(channel, ledger_id, run, self._clock.monotonic(), self._outbox))

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
        answer, number = self._reader((ledger_id, entry_id))
        if number:
            self._send(read_request(ledger_id, entry_id, flags, fencing_key))
        return answer

    def batch_read(
        self, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int
    ) -> "asyncio.Future[list[memoryview]]":
        """Ask for a run of entries that begins with *first_entry_id*. The future gets at least one stored entry, or a
        BookKeeperError; the bookie may return fewer than asked for."""
        answer, number = self._reader(None)
        if number:
            self._send(batch_read_request(ledger_id, first_entry_id, number, max_count, max_bytes))
        return answer

    def _reader(self, key: tuple[int, int] | None) -> tuple["asyncio.Future[Any]", int]:
        """A future for the answer, and the number of the read; 0: it has failed already."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._closed or self.is_refusing:
            answer.set_exception(self._refusal())
            return answer, 0
        return answer, self.outstanding.read(answer, key, self._clock.monotonic())

    async def close(self) -> None:
        self._closed = True
        for timer in (self._sweep_timer, self._full_timer):
            if timer is not None:
                timer.cancel()
        self._sweep_timer = self._full_timer = None
        wire = self._wire
        self._on_wire_lost(wire, ClientClosed("the BookKeeper client was closed"))
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
        if self._sweep_timer is None:
            self._sweep_timer = self._clock.call_later(self._config.timeout_s * 1.05, self._sweep)
        if self._full_timer is None and self._outbox_bytes > self._config.outbox_bytes_max:  # `is_full`
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
        self._on_wire_lost(
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
            self._refuse_until_s = self._clock.monotonic() + self._refusing.next_s()
            why = "no connection in time" if isinstance(error, TimeoutError) else error
            # Wrong settings, which somebody must correct. The caller may see only a consequence, as NotEnoughBookies.
            kind = NoTls if isinstance(error, TlsFailed) else BookieUnavailable
            if kind is NoTls:
                log.warning("no TLS connection to bookie %s: %s", self.bookie_id, error)
            self._on_wire_lost(None, kind(f"bookie {self.bookie_id} cannot be reached: {why}"))
            return
        if self._closed or wire.is_lost:
            wire.transport.abort()
            self._on_wire_lost(None, BookieUnavailable(f"the connection to bookie {self.bookie_id} broke at once"))
            return
        self._wire = wire
        self.socket += 1
        self._refusing.reset()
        self._paused = False
        self._flush()

    # Answers

    def received(self, frames: Sequence[memoryview], chunk_bytes: int) -> None:
        """Handle all whole frames of one received chunk. Raises MalformedFrame, after the frames before it were
        delivered."""
        self._alive_s = self._clock.monotonic()
        added, refused, reads, malformed = self.outstanding.match(frames)
        for answer, rc, ledger_id, entry_id, body in reads:
            if answer.done():
                continue
            if rc:
                answer.set_exception(error_of(rc, f"bookie {self.bookie_id}, ledger {ledger_id} entry {entry_id}"))
            else:
                # Copied, so that a small entry in a cache does not keep the whole chunk in memory.
                is_small = isinstance(body, memoryview) and len(body) * 2 <= chunk_bytes
                answer.set_result(memoryview(bytes(body)) if is_small else body)
        for channel, entry_ids in added.items():
            channel.sink.on_added(channel, entry_ids)
        for (channel, rc), entry_ids in refused.items():
            error = error_of(rc, f"bookie {self.bookie_id}, adding entry {entry_ids[0]}")
            channel.sink.on_add_failed(channel, entry_ids, error)
        if malformed:
            raise MalformedFrame(malformed)

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
        if self.outstanding.is_batch_unknown:
            self._parts.health.batches_failed(self.bookie_id)
        self._on_wire_lost(
            wire, BookieUnavailable(f"the connection to bookie {self.bookie_id} broke ({error or 'closed'})")
        )

    def _on_wire_lost(self, wire: "_Wire | None", error: BookKeeperError) -> None:
        assert wire is self._wire
        self._wire = None
        self._last_error = error
        if not self._closed:
            self._parts.health.failed(self.bookie_id)
        self._outbox = []
        self._outbox_bytes = 0
        self._tell_drained()
        adds, answers = self.outstanding.fail_all()
        for channel, entry_ids in adds.items():
            channel.sink.on_add_failed(channel, entry_ids, error)
        for answer in answers:
            if not answer.done():
                answer.set_exception(error)

    def _sweep(self) -> None:
        """Requests fail whose time is over, accurate to a tenth of it. One timer: `wait_for` costs 2.3 µs a request."""
        self._sweep_timer = None
        now_s, timeout_s = self._clock.monotonic(), self._config.timeout_s
        adds, answers = self.outstanding.expire(now_s, self._alive_s)
        for channel, ledger_id, entry_ids in adds:
            self._parts.health.failed(self.bookie_id)
            what = f"an add of ledger {ledger_id} entry {entry_ids[0]}"
            channel.sink.on_add_failed(channel, entry_ids, self._timeout_of(what))
        for answer in answers:
            if not answer.done():
                self._parts.health.failed(self.bookie_id)
                answer.set_exception(self._timeout_of("a read"))
        due_s = self.outstanding.due_s
        if due_s is not None and self._sweep_timer is None:
            self._sweep_timer = self._clock.call_later(max(due_s - now_s, timeout_s * 0.1), self._sweep)

    def _timeout_of(self, what: str) -> OperationTimeout:
        return OperationTimeout(f"bookie {self.bookie_id} did not answer {what} within {self._config.timeout_s:g} s")

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
