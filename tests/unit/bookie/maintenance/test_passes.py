"""When the searches and checks of a bookie run."""

import asyncio

from bookie.maintenance.passes import Passes
from tests.support.manual_clock import ManualClock
from tests.support.waiting import take_turns


class Job:
    def __init__(self, again_s: float | None) -> None:
        self.clock = ManualClock()
        self.passes = Passes("job", self.clock, self._work, again_s)
        self.begun = 0
        self.following_s: float | None = None
        self.gate = asyncio.Event()
        self.defect: Exception | None = None

    async def _work(self) -> float | None:
        self.begun += 1
        await self.gate.wait()
        if self.defect is not None:
            raise self.defect
        return self.following_s

    async def after(self, seconds: float) -> int:
        """How many passes have begun."""
        self.clock.advance(seconds)
        await take_turns()
        return self.begun


async def test_a_pass_is_due_once_and_says_when_the_next_one_begins() -> None:
    job = Job(None)
    job.passes.begin_in(10)
    job.passes.begin_in(5)
    assert await job.after(9) == 0
    assert await job.after(1) == 1
    job.passes.begin()
    job.passes.begin_in(0)
    assert (await job.after(100), job.passes.is_running) == (1, True)
    job.following_s = 3
    job.gate.set()
    assert (await job.after(0), job.passes.is_running) == (1, False)
    assert await job.after(3) == 2
    job.following_s = None
    assert await job.after(3) == 3
    assert await job.after(1_000) == 3
    job.passes.begin()
    assert await job.after(0) == 4


async def test_one_that_is_begun_now_is_not_begun_again_when_it_was_due() -> None:
    job = Job(None)
    job.gate.set()
    job.passes.begin_in(10)
    job.passes.begin()
    assert await job.after(0) == 1
    assert await job.after(10) == 1


async def test_a_defect_in_one_pass_does_not_end_the_job() -> None:
    job = Job(60)
    job.gate.set()
    job.defect = ZeroDivisionError()
    job.passes.begin()
    assert await job.after(0) == 1
    assert (await job.after(59), job.passes.is_running) == (1, False)
    assert await job.after(1) == 2


async def test_what_is_stopped_begins_nothing_any_more() -> None:
    job = Job(60)
    job.passes.begin()
    await take_turns()
    await job.passes.stop()
    job.passes.begin()
    job.passes.begin_in(1)
    assert (await job.after(100), job.passes.is_running) == (1, False)
    due = Job(60)
    due.passes.begin_in(1)
    await due.passes.stop()
    assert await due.after(100) == 0
