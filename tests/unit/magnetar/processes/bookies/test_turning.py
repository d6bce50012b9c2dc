"""Turning bookies through their HTTP, with HTTP servers that answer as theirs do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from magnetar.processes.bookies.turning import CannotTurn, turn, turn_for_drain
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import BookieServiceInfo, bookie_endpoint, http_endpoint
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory, BookieRegistration
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock


@asynccontextmanager
async def registered(
    *, status: int = 200, text: str = "no", is_ours: bool = False, has_http: bool = True
) -> AsyncIterator[tuple[BookieDirectory, list[str]]]:
    """A directory with the bookie `b-1`, and the bodies that it was sent."""
    bodies: list[str] = []

    async def put(request: web.Request) -> web.Response:
        bodies.append(await request.text())
        return web.Response(status=status, text=text)

    async def ours(request: web.Request) -> web.Response:
        return web.Response(text="{}")

    app = web.Application()
    app.router.add_put("/api/v1/bookie/state/readonly", put)
    if is_ours:
        app.router.add_get("/api/v1/magnetar/status", ours)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    store, clock = MemoryStore(LoopClock()), LoopClock()
    endpoints = [bookie_endpoint("127.0.0.1", 3181)]
    if has_http:
        endpoints.append(http_endpoint("127.0.0.1", runner.addresses[0][1]))
    await BookieRegistration(store, "/ledgers", "b-1", clock).register(BookieServiceInfo(tuple(endpoints)))
    try:
        yield BookieDirectory(store, "/ledgers", clock), bodies
    finally:
        await runner.cleanup()


async def test_a_bookie_of_apaches_is_turned_through_its_http() -> None:
    async with registered() as (directory, bodies):
        await turn_for_drain(directory, "b-1", True)
        await turn_for_drain(directory, "b-1", False)
        assert bodies == ['{"readOnly": true}', '{"readOnly": false}']


async def test_where_it_cannot_be_turned_the_error_says_why() -> None:
    async with registered(status=500) as (directory, _):
        with pytest.raises(CannotTurn, match="answered 500: no"):
            await turn_for_drain(directory, "b-1", True)
    with pytest.raises(CannotTurn, match="does not answer"):
        await turn_for_drain(directory, "b-1", True)
    async with registered(has_http=False) as (directory, _):
        with pytest.raises(CannotTurn, match="names no HTTP; start it with httpServerEnabled=true"):
            await turn_for_drain(directory, "b-1", True)


async def test_one_of_ours_is_left_to_its_state() -> None:
    async with registered(is_ours=True) as (directory, bodies):
        with pytest.raises(CannotTurn, match="one of ours"):
            await turn_for_drain(directory, "b-1", True)
        await turn_for_drain(directory, "b-1", False)
        assert bodies == []


async def test_an_operator_turns_any_bookie_and_ours_is_told_why() -> None:
    async with registered() as (directory, bodies):
        assert await turn(directory, "b-1", True, "a look (me)") is True
        assert await turn(directory, "b-1", False, "") is False
        assert bodies == ['{"readOnly": true}', '{"readOnly": false}']
    async with registered(is_ours=True) as (directory, bodies):
        await turn(directory, "b-1", True, "a look (me)")
        assert bodies == ['{"readOnly": true, "reason": "operator", "detail": "a look (me)"}']
    async with registered(status=500) as (directory, _):
        with pytest.raises(CannotTurn, match="answered 500: no"):
            await turn(directory, "b-1", True, "")


async def test_a_bookie_that_stays_read_only_for_another_reason_is_believed() -> None:
    async with registered(text='{"readOnly": true}') as (directory, _):
        assert await turn(directory, "b-1", False, "") is True
