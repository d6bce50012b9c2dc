"""HTTP and HTTPS behind a load balancer that sends the PROXY protocol."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from broker.admin.forwarded import ForwardedConnections
from broker.admin.page.files import FILES
from broker.admin.rights import Routes
from broker.admin.server import AdminServer
from broker.security.authorization import Operation
from magnetar_core.runtime.http.server import HttpServer
from magnetar_core.security.tls.contexts import HANDSHAKE_S
from tests.support.manual_clock import ManualClock
from tests.support.tls_files import Authority
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld
from tests.unit.broker.admin.test_authentication import context, tls
from tests.unit.broker.binary.admission.test_proxy_header import LINE, LINE_6, binary

REQUEST = b"GET /from HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
V2 = binary("203.0.113.7", 56324)
LOCAL = binary("203.0.113.7", 1, command=0x20)


class From:
    """A route that tells from where it was asked."""

    def add_routes(self, routes: Routes) -> None:
        routes.get("/from", self.answer, Operation.PROBE)

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response(text=f"from {request.remote}")


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdminWorld]:
    whole = AdminServer.__init__

    def with_route(self: AdminServer, *arguments: object, **named: object) -> None:
        whole(self, *arguments, **named)  # type: ignore[arg-type]
        self._subjects = (From(), *self._subjects)  # type: ignore[assignment]

    monkeypatch.setattr(AdminServer, "__init__", with_route)
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.folder("broker", host="DNS:localhost,IP:127.0.0.1")
    return made


async def ask(port: int | None, *parts: bytes) -> str:
    """The last line of the answer to a request that is sent in *parts*; empty if the connection ends without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        return (await reader.read()).decode().rpartition("\r\n")[2]
    except ConnectionError:
        return ""
    finally:
        writer.close()


def ask_over_tls(port: int | None, header: bytes, trust: ssl.SSLContext) -> str:
    """The same over TLS; the header and the beginning of the handshake leave in one piece."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    inside = trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as opened:
        before = header

        def until_done(step: Callable[[], bytes | None]) -> bytes | None:
            nonlocal before
            while True:
                try:
                    done = step()
                except ssl.SSLWantReadError:
                    done = b""
                    more_is_wanted = True
                else:
                    more_is_wanted = False
                if sent := before + outgoing.read():
                    opened.sendall(sent)
                    before = b""
                if not more_is_wanted:
                    return done
                received = opened.recv(65_536)
                if not received:
                    raise ConnectionResetError
                incoming.write(received)

        try:
            until_done(lambda: inside.do_handshake())
            until_done(lambda: b"" if inside.write(REQUEST) else None)
            text = b""
            while b"from " not in text:
                text += until_done(lambda: inside.read(65_536)) or b""
        except ConnectionError:
            return ""
        return text.decode().rpartition("\r\n")[2]


@pytest.mark.parametrize(
    ("header", "address"),
    [(LINE, "203.0.113.7"), (LINE_6, "2001:db8::1"), (V2, "203.0.113.7"), (LOCAL, "127.0.0.1"), (b"", "127.0.0.1")],
)
async def test_a_request_comes_from_the_address_that_the_load_balancer_names(
    world: AdminWorld, authority: Authority, header: bytes, address: str
) -> None:
    side = await world.side(web_proxy_protocol=True, **tls(authority))
    config = side.broker.config
    assert await ask(config.web_port, header + REQUEST) == f"from {address}"
    assert await ask(config.web_port, header[:3], header[3:], REQUEST) == f"from {address}"
    over_tls = await asyncio.to_thread(ask_over_tls, config.web_port_tls, header, context(authority))
    assert over_tls == f"from {address}"


async def test_all_requests_of_a_connection_come_from_its_client_and_files_are_sent(world: AdminWorld) -> None:
    side = await world.side(web_proxy_protocol=True)
    reader, writer = await asyncio.open_connection("127.0.0.1", side.broker.config.web_port)
    for path in (b"/status.html", b"/page/" + next(iter(FILES)).encode(), b"/from"):  # one connection, several requests
        writer.write((LINE if path == b"/status.html" else b"") + b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(int(size.partition(b":")[2]))
    assert body == b"from 203.0.113.7"
    writer.close()


@pytest.mark.parametrize("header", [b"PROXY TCP4 nonsense\r\n", binary("203.0.113.7", 1, command=0x11)])
async def test_a_header_that_cannot_be_read_ends_the_connection_over_http_and_https(
    world: AdminWorld, authority: Authority, header: bytes
) -> None:
    side = await world.side(web_proxy_protocol=True, **tls(authority))
    config = side.broker.config
    assert await ask(config.web_port, header + REQUEST) == ""
    assert await asyncio.to_thread(ask_over_tls, config.web_port_tls, header, context(authority)) == ""
    assert await asyncio.to_thread(ask_over_tls, config.web_port_tls, LINE, context(authority)) == "from 203.0.113.7"


async def test_a_header_is_no_request_where_the_setting_is_off(world: AdminWorld) -> None:
    side = await world.side()
    assert "from 203.0.113.7" not in await ask(side.broker.config.web_port, LINE + REQUEST)


async def test_a_connection_whose_header_does_not_come_is_closed() -> None:
    app = web.Application()
    http, clock = HttpServer(app), ManualClock()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    forwarded = ForwardedConnections(await http.new_connection(), clock)
    await forwarded.serve(listening, 1)
    port = listening.getsockname()[1]
    silent = asyncio.create_task(ask(port, b"PROXY "))
    while not forwarded.waiting:
        await asyncio.sleep(0.001)
    clock.advance(HANDSHAKE_S)
    assert await silent == ""
    another = asyncio.create_task(ask(port, b"PRO"))
    while not forwarded.waiting:
        await asyncio.sleep(0.001)
    await forwarded.close()
    assert await another == ""
    await http.stop()


async def test_a_connection_whose_header_has_come_is_not_closed_for_it() -> None:
    app = web.Application()
    app.router.add_get("/from", From().answer)
    http, clock = HttpServer(app), ManualClock()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    forwarded = ForwardedConnections(await http.new_connection(), clock)
    await forwarded.serve(listening, 1)
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(LINE[:5])
    await eventually(lambda: bool(forwarded.waiting))
    writer.write(LINE[5:])
    await eventually(lambda: not forwarded.waiting)
    clock.advance(HANDSHAKE_S)
    writer.write(REQUEST)
    assert b"from 203.0.113.7" in await reader.read()
    writer.close()
    await forwarded.close()
    await http.stop()
