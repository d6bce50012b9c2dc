"""Calls over gRPC that declare a request and do not send it, by bare frames of HTTP/2: gRPC's own clients send whole
requests only.

    preface, SETTINGS │ HEADERS (a call) │ DATA (the head of a request of megabytes, and as much as the windows let in)
"""

import asyncio
import contextlib
import random
import struct
from typing import Final

from broker.grpc.service import STREAM_WINDOW_BYTES
from magnetar_core.runtime.types import MIB
from tests.abuse.attacks import Field, some
from tests.abuse.roles import PATIENCE_S, ROLES, token_of

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW: Final = 4
_WINDOW_BYTES: Final = 65_535
"""Until the server says another."""
_FRAME_BYTES: Final = 16_384

_TOPICS: Final = "/magnetar.topics.v1.Topics/"
HEALTH: Final = ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")
UNARY: Final = tuple(f"{_TOPICS}{name}" for name in ("Lookup", "CreateTopic", "GetTopicStats", "ListBrokers"))
METHODS: Final = (
    *UNARY, f"{_TOPICS}Publish", f"{_TOPICS}Consume",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", f"{_TOPICS}None", *HEALTH,
)  # fmt: skip

MORE_MAX: Final = 64 * MIB
"""Bytes that these calls may hold, beside those that may be read: sixteen requests of a role, and the window of each
call that is a stream (docs/limits.md)."""
HEALTH_OPEN_MAX: Final = 16
"""Calls for health of strangers whose request may be under way (docs/limits.md)."""


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return len(data).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + data


def _text(text: str) -> bytes:
    """As HPACK writes it, without its Huffman code."""
    data, size = text.encode(), len(text.encode())
    if size < 127:
        return bytes((size,)) + data
    more, head = size - 127, bytearray((127,))
    while more > 127:
        head.append(more & 127 | 128)
        more >>= 7
    return bytes((*head, more)) + data


def headers(path: str, role: str) -> bytes:
    """POST, http, and what a call of gRPC carries."""
    made = b"\x83\x86\x04" + _text(path) + b"\x01" + _text("127.0.0.1") + b"\x0f\x10" + _text("application/grpc")
    made += b"\x00" + _text("te") + _text("trailers")
    if role != "nobody":
        made += b"\x00" + _text("authorization") + _text(f"Bearer {token_of(role)}")
    return made


class Connection:
    """Sends what the windows let in, and notes which calls have ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._initial = _WINDOW_BYTES
        self._window = _WINDOW_BYTES
        self._windows: dict[int, int] = {}
        self.ended: set[int] = set()
        self.open: set[int] = set()
        writer.write(_PREFACE + frame(_SETTINGS, 0, 0))

    def begin(self, stream: int, path: str, role: str) -> None:
        self._windows[stream] = self._initial
        self.open.add(stream)
        self._writer.write(frame(_HEADERS, _END_HEADERS, stream, headers(path, role)))
        self._send(stream, b"\0" + (8 * MIB).to_bytes(4))

    def push(self) -> None:
        """A piece of each request, as far as the windows reach."""
        for stream in sorted(self.open):
            size = min(self._window, self._windows[stream], _FRAME_BYTES)
            if size > 0:
                self._send(stream, bytes(size))

    def abort(self) -> None:
        self._writer.transport.abort()

    def _send(self, stream: int, data: bytes) -> None:
        if len(data) <= self._window:
            self._window -= len(data)
            self._windows[stream] -= len(data)
            self._writer.write(frame(_DATA, 0, stream, data))

    async def listen(self) -> None:
        """Until the server ends the connection."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await self._reader.readexactly(9)
                size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
                stream = int.from_bytes(head[5:]) & 0x7FFF_FFFF
                self._came(kind, flags, stream, await self._reader.readexactly(size))
        self.ended |= self.open
        self.open.clear()

    def _came(self, kind: int, flags: int, stream: int, data: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", data):
                if name == _INITIAL_WINDOW:
                    self._windows = {one: window + value - self._initial for one, window in self._windows.items()}
                    self._initial = value
            self._writer.write(frame(_SETTINGS, _ACK, 0))
        elif kind == _WINDOW:
            more = int.from_bytes(data) & 0x7FFF_FFFF
            if stream:
                self._windows[stream] = self._windows.get(stream, 0) + more
            else:
                self._window += more
        elif kind == _PING and not flags & _ACK:
            self._writer.write(frame(_PING, _ACK, 0, data))
        elif kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            self.open.discard(stream)
            self.ended.add(stream)


async def calls(field: Field, rng: random.Random) -> int:
    """Who shows nothing is refused before the request comes; of who may come so much is read as docs/limits.md says."""
    count = some(100, 1_000)
    drawn = [("nobody", rng.choice(UNARY)), ("nobody", rng.choice(METHODS)), (rng.choice(ROLES), rng.choice(METHODS))]
    for role, method in drawn:
        await unfinished(field, role, method, count)
    return count * len(drawn)


async def unfinished(field: Field, role: str, method: str, count: int) -> None:
    host, _, port = field.doors[0].ports["grpc"].rpartition(":")
    made = Connection(*await asyncio.open_connection(host, int(port)))
    listening = asyncio.ensure_future(made.listen())
    before = field.server.memory_bytes
    most = HEALTH_OPEN_MAX if method in HEALTH else 0 if role == "nobody" else count
    what = f"{count} unfinished calls of {role} to {method}"
    try:
        for number in range(count):
            made.begin(2 * number + 1, method, role)
            if number % 50 == 49:
                await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while len(made.open) > most:
                    made.push()
                    await asyncio.sleep(0.01)
        assert len(made.open) <= most, f"{what}: {len(made.open)} wait for their requests"
        for _ in range(20):
            made.push()
            await asyncio.sleep(0.01)
        more = field.server.memory_bytes - before
        allowed = (
            0 if role == "nobody" else 16 * 8 * MIB if method in (*UNARY, *HEALTH) else count * STREAM_WINDOW_BYTES
        )
        assert more < allowed + MORE_MAX, f"{what} hold {more // MIB} MB"
    finally:
        made.abort()
        await listening
