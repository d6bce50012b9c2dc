"""A connection with many reads leaves time for adds."""

import asyncio
from typing import Any, Final

import pytest

from bookie.latency import ReadLatency
from bookie.serving.cold_reads import ColdRead, ColdReads, ReadWatch
from tests.support.crash_images import StepThread
from tests.support.waiting import eventually

JOB_S: Final = 0.02


class Clock:
    """A clock that advances only with jobs, by JOB_S for each."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Reader:
    """Reads of one connection. Each is a separate job, which runs when the test steps."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.thread = StepThread()
        self.adds = 0
        self.answered: list[int] = []
        clock: Any = self.clock
        thread: Any = self.thread
        watch = ReadWatch(clock, ReadLatency(), None)
        self.reads = ColdReads(thread, lambda: True, lambda: None, watch, lambda: self.adds)

    async def ask(self, *numbers: int) -> None:
        for number in numbers:
            self.reads.add(ColdRead(lambda _: (None, 1 << 30), lambda *_, number=number: self.answered.append(number)))
        await asyncio.sleep(0)

    def step(self, took_s: float) -> None:
        work, done = self.thread._jobs.popleft()
        began = self.clock.now_s
        outcomes, _, _ = work()
        self.clock.now_s = began + took_s
        done((outcomes, began, self.clock.now_s), None)


async def test_while_adds_arrive_the_next_job_waits_and_then_goes() -> None:
    reader = Reader()
    await reader.ask(1, 2)
    reader.adds = 5
    reader.step(JOB_S)
    assert reader.answered == [1]
    assert reader.thread.waiting == 0, "it pauses"
    await eventually(lambda: reader.thread.waiting == 1)
    reader.step(JOB_S)
    assert reader.answered == [1, 2]


async def test_a_read_that_follows_from_another_one_waits_for_the_pause_too() -> None:
    reader = Reader()

    def done(*outcome: Any) -> None:
        reader.answered.append(1)
        reader.reads.add(ColdRead(lambda _: (None, 0), lambda *_: reader.answered.append(2)))

    reader.reads.add(ColdRead(lambda _: (None, 0), done))
    await asyncio.sleep(0)
    reader.adds = 5
    reader.step(JOB_S)
    await asyncio.sleep(0)
    assert reader.thread.waiting == 0, "it pauses"
    await eventually(lambda: reader.thread.waiting == 1)
    reader.step(JOB_S)
    assert reader.answered == [1, 2]
    assert reader.thread.waiting == 0


@pytest.mark.parametrize(("adds", "took_s"), [(0, JOB_S), (5, 0.0001)])
async def test_without_adds_or_after_a_short_job_the_next_goes_at_once(adds: int, took_s: float) -> None:
    reader = Reader()
    await reader.ask(1, 2)
    reader.adds = adds
    reader.step(took_s)
    assert reader.thread.waiting == 1


async def test_what_pauses_when_the_connection_ends_is_forgotten() -> None:
    reader = Reader()
    await reader.ask(1, 2)
    reader.adds = 5
    reader.step(0.001)
    reader.reads.close()
    await asyncio.sleep(0.01)  # longer than the pause
    assert reader.thread.waiting == 0
    assert reader.answered == [1]
