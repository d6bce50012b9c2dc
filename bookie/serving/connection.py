"""The socket of one client: cuts what arrives into frames, gathers and writes answers, applies back-pressure.

Rules 1, 2, 4 and 6 of `server.py` are kept here. What a frame means is known to the protocols only.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, cast

from bookie.serving.protocol import ALL_ADDS, ALL_READS, CLOSED, SLOW_PEER, UNFINISHED_FRAME, WireProtocol
from bookie.serving.protocol_v2 import ProtocolV2
from bookie.serving.protocol_v3 import ProtocolV3
from bookie.serving.reads import Reads
from bookie.serving.server import Server
from bookie.serving.writes import Writes
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from magnetar_core.bookkeeper.wire.unfinished import COUNTED_BYTES
from magnetar_core.runtime.types import KIB, MIB, Buffer

log = logging.getLogger(__name__)

# Answers up to this much are joined into one buffer; larger ones go to the transport as they are.
JOIN_BYTES: Final = 128 * KIB

# Bytes of answers gathered within one turn of the loop before they go to the transport, which then reports whether the
# peer keeps up (rule 4).
_OUTBOX_BYTES: Final = MIB


class Connection(asyncio.Protocol):
    """One client. Its protocols know it as `bookie.serving.protocol.Peer`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._splitter = FrameSplitter(server.limits.frame_bytes)
        self._transport: asyncio.Transport
        self._loop: asyncio.AbstractEventLoop
        self._peer = "?"
        self.held_for = 0
        """The reasons (bits) why frames wait in the backlog and the socket is not read; 0: none."""
        self._backlog: list[memoryview] = []
        self._is_counted = False
        self._outbox: list[Buffer] = []
        self._outbox_bytes = 0
        self.writes = Writes(server, self)
        self._reads = Reads(server, self)
        self._v3 = ProtocolV3(server, self, self.writes, self._reads)
        self._protocol: WireProtocol = self._v3

    @property
    def work_name(self) -> str:
        """The name for the watch over the loop."""
        return f"bookie client {self._peer}"

    # -- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self._loop = asyncio.get_running_loop()
        self._peer = str(transport.get_extra_info("peername"))
        limits = self._server.limits
        self._transport.set_write_buffer_limits(limits.write_buffer_high_bytes, limits.write_buffer_low_bytes)
        self._server.connections[self] = None
        self._server.counters.connections += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.held_for |= CLOSED
        self._server.connections.pop(self, None)
        self._v3.close()  # long polls may still wait, even if the connection has switched to the second protocol
        self._protocol.close()
        self._reads.close()
        self._server.unfinished.forget(self)
        self._splitter.give_up_held()  # not when the garbage collector comes: the protocols and this know each other
        self._server.held.pop(self, None)
        self._server.recovery_lane.discard(self)
        self._server.release_reads()  # its own waiting reads are over, too
        self._backlog.clear()
        self._outbox.clear()

    def abort(self) -> None:
        self.held_for |= CLOSED
        self._transport.abort()

    def pause_writing(self) -> None:
        self.hold(SLOW_PEER)

    def resume_writing(self) -> None:
        self.go_on(SLOW_PEER)
        self._reads.go_on()

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._splitter.feed(data)
        except MalformedFrame as error:
            self._refuse(error)
            return
        if self.held_for:
            self._backlog += frames
        else:
            self._process(frames)
        held_bytes = self._splitter.held_bytes
        if held_bytes >= COUNTED_BYTES or self._is_counted:
            self._is_counted = held_bytes >= COUNTED_BYTES
            self._server.unfinished.on_held(self, held_bytes, self._splitter.missing_bytes, is_new=bool(frames))

    # -- a frame that is not whole (`Unfinished` knows this connection as a `Sender`)

    @property
    def is_read(self) -> bool:
        return not self.held_for

    def wait_for_room(self) -> None:
        self.hold(UNFINISHED_FRAME)

    def go_on_with_frame(self) -> None:
        self.go_on(UNFINISHED_FRAME)

    def end_frame(self, problem: str) -> None:
        log.warning("closing the connection of %s: %s", self._peer, problem)
        self.abort()

    # -- frames

    def _process(self, frames: Sequence[memoryview]) -> None:
        try:
            at = 0
            while at < len(frames):
                if self.held_for:
                    self._backlog += frames[at:]
                    break
                stopped = self._protocol.on_frames(frames, at)
                if stopped == at:
                    self._switch_to_v2()
                at = stopped
        except MalformedFrame as error:
            self._refuse(error)
        finally:
            # Also after a bad frame: the journal must get every entry that the cache took.
            if self.writes.has_adds:
                self.writes.submit()

    def _switch_to_v2(self) -> None:
        """Rule 1."""
        assert self._protocol is self._v3, "the second protocol takes every frame"
        self._protocol = ProtocolV2(self._server, self, self.writes, self._reads)

    def _refuse(self, error: MalformedFrame) -> None:
        """Rule 2."""
        self._server.counters.malformed += 1
        log.warning("closing the connection of %s: %s", self._peer, error)
        self.abort()

    # -- back-pressure

    def hold(self, reason: int) -> None:
        """Read and process no more frames until every reason to hold the connection is over."""
        if not self.held_for:
            self._transport.pause_reading()
        self.held_for |= reason
        if reason & (ALL_ADDS | ALL_READS):
            self._server.held[self] = None

    def go_on(self, reason: int) -> None:
        """*reason* to hold the connection is over. Frames that wait are processed first, and may hold it again: it is
        read only when no reason is left."""
        if not self.held_for & reason:
            return
        self.held_for &= ~reason
        if not self.held_for & (ALL_ADDS | ALL_READS):
            self._server.held.pop(self, None)
        if self.held_for:
            return
        frames, self._backlog = self._backlog, []
        self._process(frames)
        if not self.held_for:
            self._transport.resume_reading()

    # -- answers

    def send(self, answer: Buffer) -> None:
        """Rule 6."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(answer)
        self._outbox_bytes += len(answer)
        if self._outbox_bytes > _OUTBOX_BYTES:
            self._flush()

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        size, self._outbox_bytes = self._outbox_bytes, 0
        if not outbox or self.held_for & CLOSED:
            return
        if len(outbox) == 1:
            self._transport.write(outbox[0])
        elif size <= JOIN_BYTES:
            self._transport.write(b"".join(outbox))
        else:
            self._transport.writelines(outbox)
