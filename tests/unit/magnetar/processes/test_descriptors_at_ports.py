"""At every port of a server a connection that would take a descriptor of storage is closed, and others go on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.process.descriptors import DESCRIPTORS
from magnetar_core.security.tls.contexts import Certificates, server_context
from magnetar_core.security.tls.files import TlsFiles
from magnetar_core.security.tls.port import TlsPort
from tests.support.serving import CONFIG, BookieMachines
from tests.support.tls_files import Authority
from tests.unit.broker.admin.admin_world import AdminWorld

Address = tuple[str, int]


@asynccontextmanager
async def broker_binary(_: Path) -> AsyncIterator[Address]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side()
        yield "127.0.0.1", int(side.url.rpartition(":")[2])


@asynccontextmanager
async def broker_http(_: Path) -> AsyncIterator[Address]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side()
        yield "127.0.0.1", int(side.id.rpartition(":")[2])


@asynccontextmanager
async def broker_http_behind_a_proxy(_: Path) -> AsyncIterator[Address]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side(web_proxy_protocol=True)
        yield "127.0.0.1", int(side.id.rpartition(":")[2])


@asynccontextmanager
async def bookie(_: Path) -> AsyncIterator[Address]:
    async with BookieMachines().serving(CONFIG) as made:
        yield made.address


@asynccontextmanager
async def tls(folder: Path) -> AsyncIterator[Address]:
    made = Authority(folder).folder("broker")
    files = TlsFiles(origin="test", certificate=str(made / "tls.crt"), key=str(made / "tls.key"))
    clock = LoopClock()
    certificates = Certificates(files, lambda one: server_context(one, client_certificates=False), clock)
    port = TlsPort(certificates, asyncio.Protocol, clock)
    number = await port.listen("127.0.0.1", 0, 8)
    try:
        yield "127.0.0.1", number
    finally:
        await port.close()


PORTS: tuple[Callable[[Path], AbstractAsyncContextManager[Address]], ...] = (
    broker_binary, broker_http, broker_http_behind_a_proxy, bookie, tls,
)  # fmt: skip


@pytest.mark.parametrize("served", PORTS)
async def test_a_connection_above_the_limit_is_closed_and_one_after_it_is_served(
    served: Callable[[Path], AbstractAsyncContextManager[Address]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as address:
        before = DESCRIPTORS.refused
        with monkeypatch.context() as patched:
            patched.setattr(DESCRIPTORS, "limit", lambda: 8)
            reader, writer = await asyncio.open_connection(*address)
            async with asyncio.timeout(10):
                assert await ended(reader)
            writer.close()
            assert DESCRIPTORS.refused == before + 1
        reader, writer = await asyncio.open_connection(*address)
        with pytest.raises(TimeoutError):  # it waits for a request
            async with asyncio.timeout(0.2):
                await ended(reader)
        writer.close()
        assert DESCRIPTORS.refused == before + 1


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True
