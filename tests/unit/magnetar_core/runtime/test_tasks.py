"""What background steps have in common."""

import asyncio

from magnetar_core.runtime.clock import ManualClock
from magnetar_core.runtime.tasks import Bell


async def test_a_bell_wakes_who_waits_when_it_has_become_so_and_not_before() -> None:
    """By a clock that stands still: nobody looks by the clock."""
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
