"""The nodes that are there, and snapshots over real HTTP."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import aiohttp
import pytest
from aiohttp import web

from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.http.server import HttpServer
from managed_ledger.state_log.errors import LogUnavailable
from managed_ledger.state_log.members import MemberNode, MemberNodes
from managed_ledger.state_log.snapshot_http import HttpSnapshots, SnapshotServer
from managed_ledger.state_log.snapshots.format import decode_snapshot
from tests.support.state_log_world import Node, World
from tests.support.waiting import eventually

ROOT = "/dictionary"


async def test_members_see_what_the_others_cover_while_these_are_there() -> None:
    store = MemoryStore(LoopClock())
    sessions = [store.session() for _ in range(3)]
    nodes = [
        MemberNodes(session, ROOT, name, f"http://{name}", LoopClock())
        for session, name in zip(sessions, "abc", strict=True)
    ]
    for number, node in enumerate(nodes):
        await node.start(number)
    assert await nodes[0].covered_by_others() == [1, 2]
    await nodes[2].publish(30)
    assert await nodes[0].others() == [MemberNode("b", "http://b", 1), MemberNode("c", "http://c", 30)]
    await sessions[1].close()
    assert await nodes[0].covered_by_others() == [30]
    sessions[2].expire()
    await eventually(lambda: _covered(nodes[0], [30]))
    await store.put(f"{ROOT}/members/strange", b"not of a log")
    assert await nodes[0].covered_by_others() == [30]
    for node in (nodes[0], nodes[2]):
        await node.stop()
    assert await store.children(f"{ROOT}/members") == ["strange"]


async def _covered(node: MemberNodes, expected: list[int]) -> bool:
    return list(await node.covered_by_others()) == expected


async def test_a_member_that_restarts_takes_the_place_of_its_session_before() -> None:
    store = MemoryStore(LoopClock())
    before, after = store.session(), store.session()
    await MemberNodes(before, ROOT, "a", "http://old", LoopClock()).publish(5)
    again = MemberNodes(after, ROOT, "a", "http://new", LoopClock())
    await again.start(7)
    await before.close()
    assert await store.exists(f"{ROOT}/members/a")
    await again.stop()


class Served(NamedTuple):
    world: World
    address: str
    server: SnapshotServer


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A node with snapshots of edits 1 and 2, which it gives to those who know the secret."""
    world = World()
    a = await world.node("a")
    await a.log.lead()
    for number in range(2):
        await a.set("x", number)
        await a.log.take_snapshot()
    listening = socket.create_server(("127.0.0.1", 0))
    server = SnapshotServer(a.log, "a secret")
    await server.start(listening)
    yield Served(world, f"http://127.0.0.1:{listening.getsockname()[1]}", server)
    await server.stop()
    await world.close()


async def source(served: Served, address: str, secret: str | None = "a secret") -> HttpSnapshots:
    await served.world.store.put(
        f"{ROOT}/members/served", f'{{"name": "served", "address": "{address}", "covered": 1}}'.encode()
    )
    await served.world.store.put(f"{ROOT}/members/a", b'{"name": "a", "address": "", "covered": 9}')
    return HttpSnapshots(MemberNodes(served.world.store, ROOT, "late", "", LoopClock()), secret)


async def test_a_snapshot_comes_from_a_peer_that_has_one_that_is_new_enough(served: Served) -> None:
    snapshots = await source(served, served.address)
    data = await snapshots.fetch(1)
    assert data is not None
    assert decode_snapshot(data, "here").number == 2
    assert await snapshots.fetch(2) is None


async def test_who_does_not_know_the_secret_gets_no_snapshot(served: Served) -> None:
    for secret in (None, "another"):
        with pytest.raises(LogUnavailable, match="401"):
            await (await source(served, served.address, secret)).fetch(1)
    async with aiohttp.ClientSession() as session:
        for above in ("", "x", "1" * 21):
            headers = {"Authorization": "Bearer a secret"}
            async with session.get(f"{served.address}/snapshot", params={"above": above}, headers=headers) as answer:
                assert answer.status == 400


async def test_a_snapshot_beyond_the_limit_is_refused(served: Served) -> None:
    snapshots = await source(served, served.address)
    snapshots.bytes_max = 100
    with pytest.raises(LogUnavailable, match="larger than 100 bytes"):
        await snapshots.fetch(1)


@pytest.fixture
async def other() -> AsyncIterator[Callable[[bytes], Awaitable[str]]]:
    """Serves something else instead of a snapshot."""
    servers: list[HttpServer] = []

    async def serve(body: bytes) -> str:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=body)

        application = web.Application()
        application.router.add_get("/snapshot", answer)
        server = HttpServer(application)
        servers.append(server)
        listening = socket.create_server(("127.0.0.1", 0))
        await server.start(listening)
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield serve
    for server in servers:
        await server.stop()


async def test_a_snapshot_that_is_damaged_on_the_way_is_not_taken(
    served: Served, other: Callable[[bytes], Awaitable[str]], caplog: pytest.LogCaptureFixture
) -> None:
    world = World(ledger_edits=1, snapshot_copies=1)
    a = await world.node("a")
    await a.log.lead()
    for number in range(6):
        await a.set("x", number)
        await a.log.take_snapshot()
    assert (await world.list()).ledgers[0].first_number > 1
    good = await a.log.newest_snapshot(0)
    assert good is not None
    late = Node(world, "late")
    late.log._tail._source = await source(served, await other(good[:-1] + b"!"))
    world.nodes.append(late)
    await late.open()
    await eventually(lambda: "checksum" in caplog.text)
    assert late.log.number == 0
    late.log._tail._source = late.peers
    await late.log.reach(6)
    assert late.machine.history == a.machine.history
    await world.close()
