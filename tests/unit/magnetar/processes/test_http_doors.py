"""Each HTTP server of ours: no encoded bodies, no names of other pages, who it is before what is sent."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest
from yarl import URL

from autorecovery.config import AutoRecoveryConfig
from magnetar.processes.autorecovery import serve_management
from magnetar.processes.bookies.settings import NodeConfig
from magnetar_core.runtime.tasks import Parts
from tests.support.bookie_admin_world import administered
from tests.support.serving import BookieMachines
from tests.unit.autorecovery.test_node import CLIENT, nodes_over
from tests.unit.broker.admin.admin_world import AdminWorld
from tests.unit.broker.admin.test_authentication import SECURE, bearer
from tests.unit.magnetar.processes.many.test_front import World as FrontWorld


class Door(NamedTuple):
    url: str
    change: str
    """The path of a PUT that changes something."""
    body: bytes
    read: str


@asynccontextmanager
async def broker(**settings: Any) -> AsyncIterator[Door]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side(**settings)
        yield Door(side.http_url, "/admin/v2/persistent/public/default/t/partitions", b"3", "/admin/v2/clusters")


@asynccontextmanager
async def bookie() -> AsyncIterator[Door]:
    async with administered(BookieMachines()) as client:
        body = b'{"readOnly": true}'
        yield Door(client.url, "/api/v1/bookie/state/readonly", body, "/api/v1/bookie/info")


@asynccontextmanager
async def management() -> AsyncIterator[Door]:
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(nodes_over(1))
        parts = Parts()
        stack.push_async_callback(parts.stop)
        client = await nodes.cluster.client(CLIENT)
        url = await serve_management(
            NodeConfig(http_enabled=True, http_port=0), AutoRecoveryConfig(), nodes.cluster.store, client,
            nodes.cluster.clock, parts, root="/ledgers", tls=None,
        )  # fmt: skip
        yield Door(url, "/manage/v1/auto-recovery", b'{"enabled": false}', "/manage/v1/auto-recovery")


DOORS: tuple[Callable[[], AbstractAsyncContextManager[Door]], ...] = (broker, bookie, management)
JSON = {"Content-Type": "application/json"}


async def ask(door: Door, method: str, path: str, data: bytes | None = None, **headers: str) -> tuple[int, str]:
    sent = (JSON if data is not None else {}) | {name.replace("_", "-"): text for name, text in headers.items()}
    async with (
        aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=("Accept-Encoding",)) as session,
        session.request(method, URL(door.url + path, encoded=True), data=data, headers=sent) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize("made", DOORS)
async def test_an_encoded_body_is_refused(made: Callable[[], AbstractAsyncContextManager[Door]]) -> None:
    async with made() as door:
        status, text = await ask(door, "PUT", door.change, gzip.compress(bytes(1 << 20)), Content_Encoding="gzip")
        assert (status, "without an encoding" in text) == (415, True)
        assert (await ask(door, "PUT", door.change, door.body))[0] < 300


@pytest.mark.parametrize("made", DOORS)
async def test_a_page_whose_name_was_made_to_point_here_gets_nothing(
    made: Callable[[], AbstractAsyncContextManager[Door]],
) -> None:
    async with made() as door:
        for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example"):
            for method, path, body in (("PUT", door.change, door.body), ("GET", door.read, None)):
                status, text = await ask(door, method, path, body, Host=host, Origin=f"http://{host}")
                assert (status, host in text) == (403, True), (method, host)
        for host in ("localhost:8000", "127.0.0.1", "host.docker.internal"):
            assert (await ask(door, "GET", door.read, Host=host))[0] == 200
        assert (await ask(door, "PUT", door.change, door.body))[0] < 300


async def test_names_that_are_configured_are_its_own() -> None:
    async with broker(http_names=("pulsar.example",), advertised_address="b1.example") as door:
        for host in ("pulsar.example", "b1.example:8080"):
            assert (await ask(door, "GET", door.read, Host=host, Origin=f"http://{host}"))[0] == 200


async def test_with_a_token_every_name_will_do() -> None:
    async with broker(**SECURE) as door:
        assert (await ask(door, "GET", door.read, Host="evil.example"))[0] == 401
        assert (await ask(door, "GET", door.read, Host="evil.example", Authorization=bearer()))[0] == 200
    async with broker(**SECURE, anonymous_role="guest") as door:
        assert (await ask(door, "GET", door.read, Host="evil.example"))[0] == 403


async def test_a_service_of_several_processes_refuses_encoded_bodies_itself() -> None:
    world = FrontWorld()
    try:
        url = await world.front(lambda method, path: pytest.fail("nobody is asked"))
        status, _ = await ask(Door(url, "", b"", ""), "PUT", "/x", gzip.compress(b"{}"), Content_Encoding="gzip")
        assert status == 415
    finally:
        await world.close()


async def test_who_shows_nothing_is_refused_before_its_body_is_there() -> None:
    async with broker(**SECURE) as door:
        url = URL(door.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            f"PUT {door.change} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Content-Length: 4000000\r\n\r\n[".encode()
        )
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()
