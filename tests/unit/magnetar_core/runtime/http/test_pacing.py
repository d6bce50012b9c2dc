"""What HTTP clients send is parsed in pieces, some in each turn of the loop; and what they are sent has a sum."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web

from magnetar_core.runtime.http import pacing
from magnetar_core.runtime.http.answers import COUNTED_BYTES, SLOW_S, Answers
from magnetar_core.runtime.http.pacing import PIECE_BYTES, TURN_BYTES, Pace, Paced
from magnetar_core.runtime.http.server import HttpServer
from magnetar_core.runtime.types import KIB
from tests.support.waiting import eventually, settle

Sent = list[tuple[str, bytes]]


class Transport:
    def __init__(self) -> None:
        self.is_read = True
        self.is_aborted = False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.is_aborted = True


class Parser(asyncio.Protocol):
    """In place of the library's protocol."""

    def __init__(self, name: str, parsed: Sent) -> None:
        self.name, self.parsed = name, parsed
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"!"):
            raise ValueError("a defect")
        self.parsed.append((self.name, data))


def connected(pace: Pace, name: str, parsed: Sent) -> tuple[Paced, Parser, Transport]:
    parser, transport = Parser(name, parsed), Transport()
    paced = Paced(parser, pace)
    paced.connection_made(cast(asyncio.Transport, transport))
    return paced, parser, transport


async def turns(parsed: Sent) -> list[Sent]:
    """What is parsed in each turn from now on, until a turn has nothing."""
    found: list[Sent] = []
    while True:
        before = len(parsed)
        await asyncio.sleep(0)
        if len(parsed) == before:
            return found
        found.append(parsed[before:])


async def test_what_is_too_much_for_a_turn_is_parsed_in_pieces_and_in_order() -> None:
    parsed: Sent = []
    pace = Pace()
    much, parser, transport = connected(pace, "much", parsed)
    little, _, other = connected(pace, "little", parsed)
    data = bytes(number % 251 for number in range(2 * TURN_BYTES + 100))
    much.data_received(data)
    assert (parsed, transport.is_read) == ([], False)
    little.data_received(b"behind")
    assert (parsed, other.is_read) == ([], False)
    of_turns = await turns(parsed)
    assert [name for name, _ in parsed].index("little") == 1, "it has its turn after a piece of the other"
    assert all(sum(len(piece) for _, piece in one) <= TURN_BYTES for one in of_turns)
    assert all(len(piece) <= PIECE_BYTES for _, piece in parsed)
    assert len(of_turns) == 3
    assert b"".join(piece for name, piece in parsed if name == "much") == data
    assert (transport.is_read, other.is_read) == (True, True)
    assert not pace._waiting
    parser.transport.pause_reading()
    assert not transport.is_read


async def test_what_is_little_is_parsed_at_once_until_the_turn_is_used_up() -> None:
    parsed: Sent = []
    pace = Pace()
    made = [connected(pace, str(number), parsed)[0] for number in range(10)]
    for one in made:
        one.data_received(bytes(TURN_BYTES // 4))
    assert [name for name, _ in parsed] == ["0", "1", "2", "3"]
    await turns(parsed)
    assert sum(len(piece) for _, piece in parsed) == 10 * (TURN_BYTES // 4)
    made[0].data_received(b"again")
    assert parsed[-1] == ("0", b"again")


async def test_a_connection_that_waits_is_not_read_whatever_the_library_wants() -> None:
    parsed: Sent = []
    pace = Pace()
    paced, parser, transport = connected(pace, "a", parsed)
    paced.data_received(bytes(TURN_BYTES + 1))
    parser.transport.pause_reading()
    parser.transport.resume_reading()
    assert not transport.is_read
    paced.data_received(b"over TLS all the same")
    parser.transport.pause_reading()
    await turns(parsed)
    assert b"".join(piece for _, piece in parsed).endswith(b"\0over TLS all the same")
    assert not transport.is_read, "the library does not want to"
    parser.transport.resume_reading()
    assert transport.is_read


async def test_who_is_gone_has_no_turn_and_what_cannot_be_parsed_keeps_nobody_from_theirs() -> None:
    parsed: Sent = []
    pace = Pace()
    gone, _, _ = connected(pace, "gone", parsed)
    bad, _, transport = connected(pace, "bad", parsed)
    good, _, _ = connected(pace, "good", parsed)
    gone.data_received(bytes(TURN_BYTES + 1))
    bad.data_received(b"!" * PIECE_BYTES)
    good.data_received(b"good")
    gone.connection_lost(None)
    await settle()
    assert (parsed, transport.is_aborted) == ([("good", b"good")], True)
    assert not pace._waiting


# ------------------------------------------------------------------------------------ a server


Connect = Callable[[], Any]

SOCKET_BYTES = 16 * KIB


@asynccontextmanager
async def served(handle: Any) -> AsyncIterator[Connect]:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    server = HttpServer(app)
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)  # those that it accepts have it, too
    listening.bind(("127.0.0.1", 0))
    await server.start(listening)
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        client.connect(listening.getsockname())
        made = await asyncio.open_connection(sock=client)
        writers.append(made[1])
        return made

    try:
        yield connect
    finally:
        for writer in writers:
            writer.transport.abort()
        await server.stop()


async def test_a_body_in_chunks_of_a_byte_comes_through_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "TURN_BYTES", 2_000)
    monkeypatch.setattr(pacing, "PIECE_BYTES", 500)
    sizes = list[int]()
    parse_piece = Paced.parse_piece

    def noting(paced: Paced) -> int:
        sizes.append(parse_piece(paced))
        return sizes[-1]

    monkeypatch.setattr(Paced, "parse_piece", noting)

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async with served(handle) as connect:
        reader, writer = await connect()
        body = bytes(65 + number % 26 for number in range(5_000))
        chunks = b"".join(b"1\r\n%c\r\n" % one for one in body)
        writer.write(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(len(body)) == body
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert max(sizes) == 500
    assert sum(sizes) > 20_000


LARGE = 40 * SOCKET_BYTES  # more than two sockets and the buffers of both sides take


async def test_large_answers_that_nobody_reads_have_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    answers = Answers(2 * LARGE + COUNTED_BYTES, now_s=lambda: now_s[0])
    monkeypatch.setattr("magnetar_core.runtime.http.server.ANSWERS", answers)
    sizes = {"/large": LARGE, "/small": COUNTED_BYTES - 1, "/huge": 3 * LARGE}

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=bytes(sizes[request.path]))

    async with served(handle) as connect:

        async def ask(path: str) -> tuple[bytes, asyncio.StreamReader]:
            reader, writer = await connect()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            return head.split(b" ")[1], reader

        unread = [await ask("/large") for _ in range(2)]
        assert (answers.bytes, [status for status, _ in unread]) == (2 * LARGE, [b"200", b"200"])
        status, reader = await ask("/large")
        assert status == b"503"
        assert b"try again" in await reader.readline()
        assert (await ask("/small"))[0] == b"200"
        now_s[0] = SLOW_S
        status, reader = await ask("/large")
        assert status == b"200"
        await reader.readexactly(LARGE)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await unread[0][1].readexactly(LARGE)
        await unread[1][1].readexactly(LARGE)
        await eventually(lambda: answers.bytes == 0)
        status, reader = await ask("/huge")
        assert status == b"200", "one goes out in any case"
        await reader.readexactly(3 * LARGE)
        await eventually(lambda: answers.bytes == 0)
