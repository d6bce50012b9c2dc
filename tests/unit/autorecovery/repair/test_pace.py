"""How fast copies may be made, by a clock that the test moves."""

import asyncio

import pytest

from autorecovery.repair.pace import Pace
from magnetar_core.runtime.types import KIB, MIB
from tests.support.manual_clock import ManualClock
from tests.support.waiting import settle

WHOLE = 8 * MIB


async def written(pace: Pace, clock: ManualClock, took_s: float) -> None:
    async with pace.turn(256 * KIB):
        clock.advance(took_s)


async def test_slow_confirmations_halve_the_window_down_to_one_run_and_fast_ones_bring_it_back() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    assert pace.window_bytes == WHOLE
    for _ in range(20):
        await written(pace, clock, 0.004)
    assert pace.window_bytes == WHOLE
    await written(pace, clock, 0.5)
    assert pace.window_bytes == WHOLE, "one slow confirmation is an accident"
    await written(pace, clock, 0.5)
    assert pace.window_bytes == WHOLE // 2
    for _ in range(20):
        await written(pace, clock, 0.5)
    assert pace.window_bytes == MIB
    for _ in range(100):
        await written(pace, clock, 0.004)
    assert pace.window_bytes == WHOLE


async def test_a_disk_that_is_slow_always_is_got_used_to() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    await written(pace, clock, 0.01)
    for _ in range(20):
        await written(pace, clock, 0.06)
    assert pace.window_bytes == MIB
    for _ in range(5_000):
        await written(pace, clock, 0.06)
    assert pace.window_bytes == WHOLE


async def test_what_does_not_fit_waits_for_what_is_under_way_and_a_single_run_always_goes() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    order: list[str] = []
    first_may_end = asyncio.Event()

    async def first() -> None:
        async with pace.turn(6 * MIB):
            order.append("first begins")
            await first_may_end.wait()
        order.append("first ends")

    async def second() -> None:
        async with pace.turn(100 * MIB):
            order.append("second begins")

    tasks = [asyncio.ensure_future(first()), asyncio.ensure_future(second())]
    await settle()
    assert order == ["first begins"]
    first_may_end.set()
    await asyncio.gather(*tasks)
    assert order == ["first begins", "first ends", "second begins"]


async def test_readers_wait_while_as_much_was_read_as_may_be_under_way() -> None:
    pace = Pace(ManualClock())
    begun: list[int] = []
    may_end = asyncio.Event()

    async def one(number: int) -> None:
        async with pace.reading():
            begun.append(number)
            await may_end.wait()
        async with pace.turn(100 * KIB):
            pass

    tasks = [asyncio.ensure_future(one(number)) for number in range(200)]
    await settle()
    assert len(begun) == 8, "as long as nobody knows how large a run is, it counts as a whole one"
    may_end.set()
    await asyncio.gather(*tasks)
    begun.clear()
    may_end.clear()
    tasks = [asyncio.ensure_future(one(number)) for number in range(200)]
    await settle()
    assert len(begun) == 82, "8 MiB in runs of 100 KiB"
    may_end.set()
    await asyncio.gather(*tasks)


async def test_a_limit_in_bytes_a_second_is_kept() -> None:
    clock = ManualClock()
    pace = Pace(clock, float(MIB))
    begun: list[int] = []

    async def one(number: int) -> None:
        async with pace.turn(MIB):
            begun.append(number)

    tasks = [asyncio.ensure_future(one(number)) for number in range(4)]
    await settle()
    assert begun == []
    for seconds in range(1, 5):
        clock.advance(1.0)
        await settle()
        assert len(begun) == seconds
    await asyncio.gather(*tasks)


async def test_a_write_that_fails_gives_its_place_back() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    may_fail = asyncio.Event()

    async def failing() -> None:
        async with pace.turn(WHOLE):
            await may_fail.wait()
            raise ConnectionError

    failed = asyncio.ensure_future(failing())
    await settle()
    waiting = asyncio.ensure_future(written(pace, clock, 0.0))
    await settle()
    assert not waiting.done()
    may_fail.set()
    await settle()
    assert waiting.done()
    with pytest.raises(ConnectionError):
        await failed


async def test_what_is_read_shares_the_limit_in_bytes_with_what_is_copied() -> None:
    clock = ManualClock()
    pace = Pace(clock, MIB)
    reading = asyncio.ensure_future(pace.read(10 * MIB))
    await settle()
    copying = asyncio.ensure_future(written(pace, clock, 0.0))
    await settle()
    clock.advance(9.9)
    await settle()
    assert not reading.done()
    clock.advance(0.2)
    await settle()
    assert (reading.done(), copying.done()) == (True, False)
    clock.advance(0.2)
    await settle()
    assert copying.done()
