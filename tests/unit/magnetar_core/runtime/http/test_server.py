"""What all our HTTP servers do before their handlers: encodings, deadlines, numbers of connections, names, bodies."""

import asyncio
import gzip
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp.http_parser
import pytest
from aiohttp import web

from magnetar_core.runtime.http import bodies as http_bodies
from magnetar_core.runtime.http import server as http_server
from magnetar_core.runtime.http.bodies import Bodies, BodyRefused
from magnetar_core.runtime.http.hosts import HostRules
from magnetar_core.runtime.http.server import HEADERS_MAX, HttpServer
from magnetar_core.runtime.process.descriptors import Descriptors

Asked = list[bytes]
OK = b"HTTP/1.1 200"
ENDS_S = 10.0  # a connection that stays is a failure, and no wait for ever


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, text: bytes) -> bytes:
        """The first line of the answer; its body is read, too."""
        self.writer.write(text)
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = next(int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: "))
        self.body = await self.reader.readexactly(size)
        return head.partition(b"\r\n")[0]

    async def end(self) -> bytes:
        """What comes until the server closes."""
        try:
            async with asyncio.timeout(ENDS_S):
                return await self.reader.read()
        except ConnectionError:
            return b""


@asynccontextmanager
async def served(bodies: Bodies | None = None, body_s: float = 60.0, **more: Any) -> AsyncIterator[Any]:
    """(connect, what the handler got)."""
    asked: Asked = []
    known = bodies or Bodies()

    async def handle(request: web.Request) -> web.Response:
        try:
            asked.append(await known.read(request, 100_000, body_s=body_s))
        except BodyRefused as error:
            return web.Response(status=error.status, text=str(error))
        return web.Response(text="fine")

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    server = HttpServer(app, **more)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    await server.start(listening)
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection(*listening.getsockname())))
        return clients[-1]

    try:
        yield connect, asked
    finally:
        for client in clients:
            client.writer.close()
        await server.stop()


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST / HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


# ------------------------------------------------------------------------------------------ encodings


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP", "x-gzip", "gzip, gzip", "identity, gzip"])
async def test_an_encoded_body_is_refused_and_never_unpacked(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unpackers: list[object] = []
    real = aiohttp.http_parser.DeflateBuffer

    class Watched(real):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            unpackers.append(self)
            super().__init__(*arguments, **named)

    monkeypatch.setattr("aiohttp.http_parser.DeflateBuffer", Watched)
    monkeypatch.setattr("aiohttp._http_parser.DeflateBuffer", Watched, raising=False)
    async with served() as (connect, asked):
        client = await connect()
        line = await client.ask(post(gzip.compress(bytes(1 << 20)), f"Content-Encoding: {encoding}"))
        assert line.startswith(b"HTTP/1.1 415")
        assert b"without an encoding" in client.body
        assert not unpackers
        assert not asked
        assert (await client.ask(post(b"{}"))).startswith(OK), "the connection goes on"


@pytest.mark.parametrize("headers", [(), ("Content-Encoding: identity",), ("Content-Encoding:",)])
async def test_a_body_as_it_is_comes_through(headers: tuple[str, ...]) -> None:
    async with served() as (connect, asked):
        assert (await (await connect()).ask(post(b"abc", *headers))).startswith(OK)
        assert asked == [b"abc"]


async def test_a_body_may_not_be_encoded_for_the_transfer_either() -> None:
    async with served() as (connect, asked):
        client = await connect()
        client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n")
        await client.writer.drain()
        client.writer.write(b"3\r\nabc\r\n0\r\n\r\n")
        answer = await client.reader.readline()
        assert answer.startswith(b"HTTP/1.1 400") or asked == [b"abc"], "it is refused, or taken as it is"


# ------------------------------------------------------------------------------------------ connections


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_without_a_whole_request_ends(sent: bytes) -> None:
    async with served(idle_s=0.05) as (connect, asked):
        client = await connect()
        client.writer.write(sent)
        assert await client.end() == b""
        assert not asked


async def test_so_does_one_that_is_kept_for_later_requests() -> None:
    async with served(idle_s=0.05) as (connect, _):
        client = await connect()
        assert (await client.ask(post(b"a"))).startswith(OK)
        client.writer.write(b"GET / HT")
        assert await client.end() == b""


async def test_so_many_connections_are_served_and_one_more_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with served(connections_max=2) as (connect, _):
        first, second = await connect(), await connect()
        assert (await first.ask(post(b"a"))).startswith(OK)
        assert (await second.ask(post(b"b"))).startswith(OK)
        with caplog.at_level(logging.WARNING):
            assert [await (await connect()).end() for _ in range(3)] == [b""] * 3
        assert len([one for one in caplog.messages if "2 are open" in one]) == 1
        assert (await first.ask(post(b"c"))).startswith(OK)
        second.writer.close()
        await second.writer.wait_closed()
        while not await answers(connect):
            await asyncio.sleep(0)


async def answers(connect: Callable[[], Awaitable[Client]]) -> bool:
    try:
        return (await (await connect()).ask(post(b"d"))).startswith(OK)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


async def test_a_connection_that_storage_would_lack_is_closed() -> None:
    descriptors = Descriptors(lambda: 8)
    async with served(descriptors=descriptors) as (connect, _):
        assert await (await connect()).end() == b""
        assert descriptors.refused == 1


@pytest.mark.parametrize("connections_max", [0, 100])
async def test_http_takes_half_of_the_connections_of_its_process_at_most(
    connections_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = Descriptors(lambda: 12)
    monkeypatch.setattr(descriptors, "refuses", lambda *_: False)
    async with served(descriptors=descriptors, connections_max=connections_max) as (connect, _):
        clients = [await connect() for _ in range(3)]
        for client in clients:
            assert (await client.ask(post(b"a"))).startswith(OK)
        assert await (await connect()).end() == b""


async def test_a_request_has_so_many_headers() -> None:
    async with served() as (connect, asked):
        few = [f"X-{number}: y" for number in range(HEADERS_MAX - 10)]
        assert (await (await connect()).ask(post(b"a", *few))).startswith(OK)
        many = [f"X-{number}: y" for number in range(HEADERS_MAX + 1)]
        assert b" 400 " in await (await connect()).ask(post(b"b", *many))
        assert asked == [b"a"]


# ------------------------------------------------------------------------------------------ names


async def test_a_call_under_the_name_of_another_page_is_refused_before_its_handler() -> None:
    async with served(hosts=HostRules(is_local=True)) as (connect, asked):
        client = await connect()
        line = await client.ask(post(b"a").replace(b"Host: localhost", b"Host: evil.example"))
        assert line.startswith(b"HTTP/1.1 403")
        assert b"evil.example" in client.body
        assert not asked
        assert (await client.ask(post(b"a"))).startswith(OK)


# ------------------------------------------------------------------------------------------ bodies


@pytest.fixture
def soon_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers do not wait for the rest of bodies that were refused."""
    monkeypatch.setattr(http_server, "STOP_S", 0.05)


@pytest.mark.usefixtures("soon_stopped")
async def test_a_body_that_is_told_to_be_too_large_is_refused_before_it_comes() -> None:
    async with served() as (connect, asked):
        client = await connect()
        head = post(b"").replace(b"Content-Length: 0", b"Content-Length: 100001")
        assert (await client.ask(head)).startswith(b"HTTP/1.1 413")
        assert not asked


@pytest.mark.usefixtures("soon_stopped")
async def test_a_body_without_an_end_is_refused_at_the_limit() -> None:
    async with served() as (connect, asked):
        client = await connect()
        client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n" % 50_000 + bytes(50_000) + b"\r\n"
        assert (await client.ask(chunk * 3)).startswith(b"HTTP/1.1 413")
        assert not asked


@pytest.mark.usefixtures("soon_stopped")
async def test_a_body_that_does_not_come_is_refused() -> None:
    async with served(body_s=0.05) as (connect, asked):
        client = await connect()
        head = post(b"").replace(b"Content-Length: 0", b"Content-Length: 9")
        assert (await client.ask(head + b"a")).startswith(b"HTTP/1.1 400")
        assert b"did not come within" in client.body
        assert not asked


async def held(bodies: Bodies, size: int) -> None:
    while bodies.bytes != size:
        await asyncio.sleep(0)


async def test_all_bodies_together_have_a_limit_and_its_memory_comes_back() -> None:
    now_s = [0.0]
    bodies = Bodies(50_000, now_s=lambda: now_s[0])
    async with served(bodies) as (connect, asked):
        slow, other = await connect(), await connect()
        slow.writer.write(post(bytes(40_000))[:-1])
        head = len(post(bytes(40_000))) - 40_000
        await held(bodies, 40_000 - 1)
        assert head > 0
        assert (await other.ask(post(bytes(20_000)))).startswith(b"HTTP/1.1 503")
        assert (await other.ask(post(bytes(10_000)))).startswith(OK), "what fits is taken"
        now_s[0] += http_bodies.SLOW_S
        assert (await other.ask(post(bytes(20_000)))).startswith(OK), "who sends slowly keeps nobody out"
        assert await slow.end() == b""
        await held(bodies, 0)
        assert [len(one) for one in asked] == [10_000, 20_000]
