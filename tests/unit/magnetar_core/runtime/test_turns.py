"""Turns: how many at once, in which order, and that none is lost."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar_core.runtime.turns import Rank, Turns
from tests.support.manual_clock import ManualClock
from tests.support.waiting import take_turns

pytestmark = pytest.mark.both_loops


class Work:
    """Pieces that begin when they have a turn and end when they are told to."""

    def __init__(self, most: int, turn_s: float = 1.0) -> None:
        self.clock = ManualClock()
        self.turns = Turns(most, turn_s, self.clock)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, name: str, *rank: int) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._do(name, rank))
        await take_turns()

    async def _do(self, name: str, rank: Rank) -> None:
        async with self.turns.turn(name, rank):
            self.begun.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await take_turns()


async def test_the_most_urgent_is_next_and_equals_in_order_of_arrival() -> None:
    work = Work(1)
    for name, rank in (("first", 5), ("late", 9), ("a", 3), ("b", 3), ("urgent", 1)):
        await work.add(name, rank)
    for name in ("first", "urgent", "a", "b", "late"):
        assert work.begun[-1] == name
        await work.end(name)
    await work.add("next", 1)
    assert work.begun[-1] == "next", "all turns were given back"


async def test_who_waits_may_become_more_urgent_and_not_less() -> None:
    work = Work(1)
    for name, rank in (("first", 0), ("a", 2), ("b", 3)):
        await work.add(name, rank)
    work.turns.hurry("b", (1,))
    work.turns.hurry("b", (9,))
    work.turns.hurry("nobody", (0,))
    await work.end("first")
    await work.end("b")
    await work.end("a")
    assert work.begun == ["first", "b", "a"]
    assert work.turns._taken == 0


async def test_work_that_takes_too_long_lets_others_begin_beside_it() -> None:
    work = Work(1, turn_s=2.0)
    await work.add("stuck", 0)
    await work.add("next", 0)
    work.clock.advance(1.9)
    await take_turns()
    assert work.begun == ["stuck"]
    work.clock.advance(0.2)
    await take_turns()
    assert work.begun == ["stuck", "next"]
    await work.end("stuck")
    await work.add("third", 0)
    assert work.begun == ["stuck", "next"], "the turn of the stuck one was given on, once"
    await work.end("next")
    assert work.begun == ["stuck", "next", "third"]


async def test_who_is_cancelled_takes_no_turn_along() -> None:
    work = Work(1)
    for name in ("first", "a", "b"):
        await work.add(name, 0)
    work.tasks["a"].cancel()
    await take_turns()
    await work.end("first")
    assert work.begun == ["first", "b"]
    work.tasks["b"].cancel()
    await take_turns()
    await work.add("c", 0)
    assert work.begun == ["first", "b", "c"]


async def test_a_turn_that_came_as_its_waiter_was_cancelled_is_given_on() -> None:
    work = Work(1)
    for name in ("first", "a", "b"):
        await work.add(name, 0)
    work._ends["first"].set()
    while not work.tasks["first"].done():
        await asyncio.sleep(0)
    work.tasks["a"].cancel()
    await take_turns()
    assert work.begun == ["first", "b"]
    assert work.turns.waiting == 0


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["add", "end", "cancel", "hurry", "time"]),
                                             st.integers(0, 5)), max_size=40))  # fmt: skip
def test_never_more_than_allowed_begin_and_all_end(most: int, steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        work = Work(most, turn_s=10.0)
        names = 0
        for what, number in steps:
            if what == "add":
                await work.add(f"w{names}", number)
                names += 1
            elif what == "end" and f"w{number}" in work.tasks:
                await work.end(f"w{number}")
            elif what == "cancel" and f"w{number}" in work.tasks:
                work.tasks[f"w{number}"].cancel()
                await take_turns()
            elif what == "hurry":
                work.turns.hurry(f"w{number}", (0,))
            running = [name for name in work.begun if not work.tasks[name].done()]
            waiting = [name for name, task in work.tasks.items() if name not in work.begun and not task.done()]
            assert len(running) <= most
            assert not waiting or len(running) == most, "nobody waits while there is a turn"
        for _ in range(names):
            for name in work.tasks:
                await work.end(name)
        assert all(task.done() for task in work.tasks.values())
        assert (work.turns._taken, work.turns.waiting) == (0, 0)

    asyncio.run(run())


def test_no_turns_at_all_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        Turns(0, 1.0, ManualClock())
