"""The tools for background tasks."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from magnetar_core.runtime.tasks import BEGUN_PER_TURN, Bell, SingleFlight, Tasks, gather_in_turns
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.both_loops


async def test_a_bell_wakes_who_waits_when_it_has_become_so_and_not_before() -> None:
    """The clock stands still, so only the bell can wake the waiters."""
    bell, clock, left = Bell(), ManualClock(), [2]
    waiting = [asyncio.ensure_future(bell.until(lambda: not left[0], clock, 10.0)) for _ in range(3)]
    bell.ring()
    for _ in range(2):
        left[0] -= 1
        assert not any(one.done() for one in waiting)
        bell.ring()
        await asyncio.sleep(0.01)
    assert [one.result() for one in waiting] == [True] * 3
    assert await bell.until(lambda: True, clock, 10.0), "what is so already is not waited for"


async def test_a_bell_that_does_not_ring_is_not_waited_for_longer_than_said() -> None:
    bell, clock = Bell(), ManualClock()
    waiting = asyncio.ensure_future(bell.until(lambda: False, clock, 10.0))
    await asyncio.sleep(0)
    clock.advance(9.9)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    clock.advance(0.2)
    async with asyncio.timeout(20):
        assert await waiting is False
    assert not bell._waiters


async def test_thousands_begin_in_turns() -> None:
    begun, most, ended = 0, 0, 0

    async def work(number: int) -> None:
        nonlocal begun, ended
        begun += 1
        await asyncio.sleep(0.01)
        ended += 1
        if number == 3:
            raise ValueError("the fourth")

    async def watch() -> None:
        nonlocal most
        before = 0
        while begun < 500:
            most = max(most, begun - before)
            before = begun
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    with pytest.raises(ValueError, match="the fourth"):
        await gather_in_turns(work(number) for number in range(500))
    assert ended == 500, "those behind it are waited for all the same"
    await watching
    assert begun == 500
    assert 0 < most <= BEGUN_PER_TURN


async def test_the_results_come_in_the_order_of_the_works() -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0.001 * (number % 3))
        return number

    assert await gather_in_turns(map(work, range(2 * BEGUN_PER_TURN))) == list(range(2 * BEGUN_PER_TURN))


async def test_what_has_begun_is_cancelled_with_it_and_nothing_else_is_made() -> None:
    made, cancelled = 0, 0

    async def work() -> None:
        nonlocal cancelled
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled += 1
            raise

    def works() -> Iterator[Coroutine[Any, Any, None]]:
        nonlocal made
        for _ in range(10 * BEGUN_PER_TURN):
            made += 1
            yield work()

    gathering = asyncio.ensure_future(gather_in_turns(works()))
    while made < 2 * BEGUN_PER_TURN:
        await asyncio.sleep(0)
    gathering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathering
    await asyncio.sleep(0.01)
    assert made < 10 * BEGUN_PER_TURN
    assert cancelled == made


class Opening:
    """Work that waits until `go_on` is set."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self.error: Exception | None = None

    async def open(self) -> int:
        self.begun += 1
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return self.begun


async def test_what_many_ask_for_at_once_is_done_once() -> None:
    flight: SingleFlight[str, int] = SingleFlight(Tasks("test"), "open")
    opening, other = Opening(), Opening()
    asking = [asyncio.create_task(flight.do("a", opening.open)) for _ in range(3)]
    asking.append(asyncio.create_task(flight.do("b", other.open)))
    await asyncio.sleep(0)
    assert sorted(flight.under_way) == ["a", "b"]
    opening.go_on.set()
    other.go_on.set()
    assert await asyncio.gather(*asking) == [1, 1, 1, 1]
    assert (opening.begun, other.begun, flight.under_way) == (1, 1, [])
    assert await flight.do("a", opening.open) == 2, "what has ended is forgotten"


async def test_a_failure_goes_to_all_who_asked_and_is_forgotten() -> None:
    flight: SingleFlight[str, int] = SingleFlight(Tasks("test"), "open")
    opening = Opening()
    opening.error = ValueError("no")
    asking = [asyncio.create_task(flight.do("a", opening.open)) for _ in range(2)]
    await asyncio.sleep(0)
    opening.go_on.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(one) for one in found] == ["no", "no"]
    opening.error = None
    assert await flight.do("a", opening.open) == 2


async def test_what_ended_in_this_very_turn_is_forgotten_too() -> None:
    flight: SingleFlight[str, int] = SingleFlight(Tasks("test"), "open")
    opening = Opening()
    opening.go_on.set()
    again: list[asyncio.Task[int]] = []

    async def ends_and_is_asked_for() -> int:
        found = await opening.open()
        # Behind us in the loop's row, and before what hears that we have ended.
        asyncio.get_running_loop().call_soon(lambda: again.append(asyncio.create_task(flight.do("a", opening.open))))
        return found

    assert await flight.do("a", ends_and_is_asked_for) == 1
    await asyncio.sleep(0)
    assert await again[0] == 2


async def test_who_gives_up_does_not_end_it_for_the_others() -> None:
    flight: SingleFlight[str, int] = SingleFlight(Tasks("test"), "open")
    opening = Opening()
    first, second = (asyncio.create_task(flight.do("a", opening.open)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    settling = asyncio.create_task(flight.settle("a"))
    await asyncio.sleep(0)
    assert not settling.done()
    opening.go_on.set()
    assert await second == 1
    await settling
    await flight.settle("a")  # nothing is under way: at once


async def test_the_tasks_that_are_left_are_kept_and_cancelled_after_others_have_ended() -> None:
    tasks, ended = Tasks("owner"), asyncio.Event()
    first = tasks.spawn(ended.wait(), "first")
    second = tasks.spawn(asyncio.Event().wait(), "second", awaited=True)
    ended.set()
    await first
    await asyncio.sleep(0)
    assert len(tasks) == 1
    await tasks.cancel()
    assert second.cancelled()
    assert len(tasks) == 0


async def test_an_owner_whose_tasks_have_all_ended_may_begin_others() -> None:
    tasks = Tasks("owner")
    for _ in range(2):
        assert await tasks.spawn(asyncio.sleep(0, "done"), "one") == "done"
        await asyncio.sleep(0)
        assert len(tasks) == 0
    await tasks.cancel()
