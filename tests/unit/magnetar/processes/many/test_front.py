"""The one HTTP address of a service, before real HTTP servers in the place of its processes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from magnetar.processes.many.calls import Way, bookie_way, broker_way
from magnetar.processes.many.children import Child, Children
from magnetar.processes.many.front import BODY_BYTES_MAX, Front, Place
from magnetar_core.runtime.clock import LoopClock

pytestmark = pytest.mark.both_loops

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class World:
    """Two processes' HTTP, and the address that speaks for them."""

    def __init__(self) -> None:
        self.children = Children("broker", ["none"], [{}, {}], LoopClock())
        self.ports = [0, 0]
        self._runners: list[web.AppRunner] = []
        self._fronts: list[Front] = []

    async def serve(self, number: int, handler: Handler) -> None:
        """Answer for a process from now on."""
        app = web.Application(client_max_size=2 * BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        self._runners.append(runner)
        listening = _bound()
        await web.SockSite(runner, listening).start()
        self.ports[number] = listening.getsockname()[1]
        self.children.all[number].is_ready = True

    def _place(self, child: Child) -> Place:
        port = self.ports[child.number]
        if not port:
            return Place()
        return Place(f"http://127.0.0.1:{port}", "", frozenset({f"host-{child.number}:80"}))

    async def front(self, way_of: Callable[[str, str], Way], *, is_behind_proxy: bool = False) -> str:
        made = Front(
            self.children,
            way_of,
            self._place,
            lambda child: f"b-{child.number}",
            LoopClock(),
            is_behind_proxy=is_behind_proxy,
        )
        listening = _bound()
        await made.start(listening)
        self._fronts.append(made)
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    async def close(self) -> None:
        for front in self._fronts:
            await front.stop()
        for runner in self._runners:
            await runner.cleanup()


def _bound() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()


async def _call(method: str, url: str, **more: Any) -> tuple[int, str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, allow_redirects=False, **more) as answer,
    ):
        return answer.status, await answer.text(), answer.headers


def _telling(text: str) -> Handler:
    async def tell(request: web.Request) -> web.Response:
        body = await request.text()
        return web.Response(text=f"{text} {request.method} {request.path_qs} {body}".strip(), headers={"X-Mine": text})

    return tell


def _telling_metrics(number: int) -> Handler:
    async def tell(request: web.Request) -> web.Response:
        answer = web.Response(text=f"a {number}\n")
        answer.enable_compression()  # as brokers do, for callers that take it: `_call` does
        return answer

    return tell


def _redirecting(where: str) -> Handler:
    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": where + request.path_qs})

    return redirect


async def test_a_call_is_passed_on_and_its_answer_back(world: World) -> None:
    await world.serve(0, _telling("first"))
    url = await world.front(broker_way)
    status, text, headers = await _call("POST", f"{url}/admin/x?a=%2Fb", data="body")
    assert (status, text, headers["X-Mine"]) == (200, "first POST /admin/x?a=/b body", "first")


async def test_a_call_behind_a_load_balancer_is_passed_on_without_its_header(world: World) -> None:
    await world.serve(0, _telling("first"))
    url = URL(await world.front(broker_way, is_behind_proxy=True))
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"PROXY TCP4 203.0.113.7 10.0.0.1 56324 80\r\nGET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b"first GET /a")
    writer.close()


async def test_a_redirect_to_another_process_is_followed_with_the_body(world: World) -> None:
    await world.serve(0, _redirecting("http://host-1:80"))
    await world.serve(1, _telling("second"))
    url = await world.front(broker_way)
    assert (await _call("PUT", f"{url}/admin/x?y=1", data="body"))[:2] == (200, "second PUT /admin/x?y=1 body")


async def test_a_redirect_to_another_host_goes_back_to_the_client(world: World) -> None:
    await world.serve(0, _redirecting("http://elsewhere:80"))
    url = await world.front(broker_way)
    status, _, headers = await _call("GET", f"{url}/admin/x")
    assert (status, headers["Location"]) == (307, "http://elsewhere:80/admin/x")


async def test_processes_that_redirect_in_a_circle_are_not_followed_for_ever(world: World) -> None:
    await world.serve(0, _redirecting("http://host-1:80"))
    await world.serve(1, _redirecting("http://host-0:80"))
    url = await world.front(broker_way)
    assert (await _call("GET", f"{url}/admin/x"))[0] == 503


async def test_the_next_process_answers_a_read_where_one_does_not(world: World) -> None:
    await world.serve(0, _telling("first"))
    await world.serve(1, _telling("second"))
    with _bound() as nobody:
        world.ports[0] = nobody.getsockname()[1]
        url = await world.front(broker_way)
        assert (await _call("GET", f"{url}/admin/x"))[1] == "second GET /admin/x"
        status, text, _ = await _call("POST", f"{url}/admin/x")
        assert (status, text) == (503, "process 0 does not answer\n"), "what changes something may have been done"


async def test_a_service_is_healthy_only_if_all_its_processes_are(world: World) -> None:
    await world.serve(0, _telling("ok"))
    url = await world.front(broker_way)
    assert (await _call("GET", f"{url}/admin/v2/brokers/health"))[:2] == (503, "process 1 is not ready\n")
    await world.serve(1, _telling("ok"))
    assert (await _call("GET", f"{url}/admin/v2/brokers/health"))[0] == 200


async def test_metrics_are_those_of_all_that_answer(world: World) -> None:
    await world.serve(0, _telling_metrics(1))
    url = await world.front(broker_way)
    assert (await _call("GET", f"{url}/metrics"))[1] == "a 1\n"
    await world.serve(1, _telling_metrics(2))
    assert (await _call("GET", f"{url}/metrics"))[1] == 'a{process="0"} 1\na{process="1"} 2\n'


async def test_what_changes_a_bookie_needs_its_id(world: World) -> None:
    await world.serve(0, _telling("first"))
    await world.serve(1, _telling("second"))
    url = f"{await world.front(bookie_way)}/api/v1/bookie/gc"
    status, text, _ = await _call("PUT", url)
    assert status == 400
    assert "the ids are b-0, b-1" in text
    assert (await _call("PUT", f"{url}?bookie=b-1&x=1"))[1] == "second PUT /api/v1/bookie/gc?x=1"
    assert (await _call("GET", f"{url}?bookie=other"))[0] == 404


async def test_a_read_without_an_id_is_answered_for_each_bookie(world: World) -> None:
    await world.serve(0, _telling("first"))
    await world.serve(1, _telling("second"))
    url = await world.front(bookie_way)
    async with aiohttp.ClientSession() as session, session.get(f"{url}/api/v1/bookie/gc") as answer:
        found = await answer.json()
    assert set(found) == {"b-0", "b-1"}


async def test_a_body_above_the_limit_is_413(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar_core.runtime.http.server.STOP_S", 0.05)  # it does not wait for the rest of the body
    await world.serve(0, _telling("first"))
    url = await world.front(broker_way)
    assert (await _call("POST", url, data=b" " * (BODY_BYTES_MAX + 1)))[0] == 413
