"""Limits of the HTTP server that the configuration sets: requests a second, size of a header."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from broker.admin.limiting import rate_limit_middleware
from tests.support.manual_clock import ManualClock
from tests.unit.broker.admin.admin_world import AdminWorld


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def test_requests_above_the_rate_are_refused_until_time_has_passed() -> None:
    clock = ManualClock()
    limit = rate_limit_middleware(2.0, clock)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=200)

    async def statuses(count: int) -> list[int]:
        return [(await limit(make_mocked_request("GET", "/"), answer)).status for _ in range(count)]

    assert await statuses(3) == [200, 200, 429]
    clock.advance(0.5)
    assert await statuses(2) == [200, 429]
    clock.advance(60)
    assert await statuses(3) == [200, 200, 429], "no more than a second's worth is kept"


async def test_a_rate_below_one_lets_single_requests_pass_and_none_lets_nothing() -> None:
    clock = ManualClock()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=200)

    slow, closed = rate_limit_middleware(0.5, clock), rate_limit_middleware(0.0, clock)
    assert (await slow(make_mocked_request("GET", "/"), answer)).status == 200
    clock.advance(1)
    assert (await slow(make_mocked_request("GET", "/"), answer)).status == 429
    clock.advance(1)
    assert (await slow(make_mocked_request("GET", "/"), answer)).status == 200
    assert (await closed(make_mocked_request("GET", "/"), answer)).status == 429


async def test_the_setting_limits_the_requests_of_a_broker(world: AdminWorld) -> None:
    side = await world.side(http_requests_limited=True, http_requests_per_s=1.0)
    answers = [await world.call(side, "GET", "/admin/v2/clusters") for _ in range(10)]
    assert answers[0].status == 200
    assert {one.status for one in answers[1:]} >= {429}
    assert next(one for one in answers if one.status == 429).text == "Too Many Requests"
    free = await world.side(http_requests_per_s=1.0)
    assert {(await world.call(free, "GET", "/admin/v2/clusters")).status for _ in range(10)} == {200}


async def test_the_setting_limits_the_size_of_a_header(world: AdminWorld) -> None:
    small, usual = await world.side(http_header_bytes=1024), await world.side()
    for size, expected in ((500, 200), (2_000, 400)):
        assert (await world.call(small, "GET", "/admin/v2/clusters", X_Long="x" * size)).status == expected
    for size, expected in ((8_000, 200), (9_000, 400)):
        assert (await world.call(usual, "GET", "/admin/v2/clusters", X_Long="x" * size)).status == expected
