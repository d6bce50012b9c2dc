"""How much of what HTTP clients send is parsed in one turn of the event loop, and whose turn it is.

    transport ──▶ Paced ──pieces──▶ the library's protocol        `Pace` says when: all connections of a server share it

A request may be one of thousands in a chunk of the socket, and a body may come in chunks of one byte: each byte that is
sent costs some ten times as much then.

Rules:

1. All connections of a server have `TURN_BYTES` parsed in one turn. What comes above that waits; those that wait have
   `PIECE_BYTES` parsed each, in the order in which they came.
2. A connection that waits is not read.
"""

import asyncio
import logging
from collections import deque
from typing import Any, Final, cast

from magnetar_core.runtime.types import KIB

log = logging.getLogger(__name__)

# In chunks of one byte each: some 20 ms with the handler that joins them, and a piece 2 ms.
TURN_BYTES: Final = 128 * KIB
PIECE_BYTES: Final = 16 * KIB

assert PIECE_BYTES <= TURN_BYTES


class Pace:
    """For all connections of one server."""

    def __init__(self) -> None:
        self._left_bytes = TURN_BYTES
        self._is_in_turn = False
        self._waiting: deque[Paced] = deque()

    def takes(self, size_bytes: int) -> bool:
        """Whether so much may be parsed in this turn; then it counts."""
        if not self._is_in_turn:
            self._is_in_turn = True
            self._left_bytes = TURN_BYTES
            asyncio.get_running_loop().call_soon(self._end_turn)
        if self._waiting or size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True

    def wait(self, connection: "Paced") -> None:
        """*connection* has pieces that wait."""
        self._waiting.append(connection)

    def _end_turn(self) -> None:
        waiting = self._waiting
        if not waiting:
            self._is_in_turn = False
            return
        asyncio.get_running_loop().call_soon(self._end_turn)
        self._left_bytes = TURN_BYTES
        while waiting and self._left_bytes >= PIECE_BYTES:
            connection = waiting.popleft()
            self._left_bytes -= connection.parse_piece()
            if connection.has_more:
                waiting.append(connection)


class Paced(asyncio.Protocol):
    """A connection before the library's *protocol*, which parses what it is given at once."""

    def __init__(self, protocol: asyncio.Protocol, pace: Pace) -> None:
        self._protocol = protocol
        self._pace = pace
        self._waiting = memoryview(b"")
        self._transport: _Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = _Transport(cast(asyncio.Transport, transport))
        self._protocol.connection_made(cast(asyncio.Transport, self._transport))

    def data_received(self, data: bytes) -> None:
        if not self.has_more and self._pace.takes(len(data)):
            self._protocol.data_received(data)
            return
        was_waiting = self.has_more
        self._waiting = memoryview(bytes(self._waiting) + data if was_waiting else data)  # more comes over TLS only
        if not was_waiting:
            self._pace.wait(self)
        if self._transport is not None:
            self._transport.hold(True)

    @property
    def has_more(self) -> bool:
        return len(self._waiting) > 0

    def parse_piece(self) -> int:
        """The next piece; returns its bytes."""
        piece, self._waiting = self._waiting[:PIECE_BYTES], self._waiting[PIECE_BYTES:]
        try:
            if piece:
                self._protocol.data_received(bytes(piece))
        except Exception:  # as the loop does where it calls the library itself; others wait here, too
            log.exception("an HTTP connection is ended: what it sent could not be parsed")
            self._waiting = memoryview(b"")
            if self._transport is not None:
                self._transport.abort()
        if not self.has_more and self._transport is not None:
            self._transport.hold(False)
        return len(piece)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting = memoryview(b"")
        self._transport = None
        self._protocol.connection_lost(exc)


class _Transport:
    """The transport, as the library has it: it is read while neither the library nor rule 2 holds it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_wanted = True
        self._is_held = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pause_reading(self) -> None:
        self._is_wanted = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_wanted = True
        if not self._is_held:
            self._transport.resume_reading()

    def hold(self, is_held: bool) -> None:
        """Whether nothing is read now, whatever the library wants."""
        if is_held == self._is_held:
            return
        self._is_held = is_held
        if self._transport.is_closing():
            return
        if is_held:
            self._transport.pause_reading()
        elif self._is_wanted:
            self._transport.resume_reading()
