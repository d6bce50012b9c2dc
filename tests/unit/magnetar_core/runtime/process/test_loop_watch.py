"""The watch over the event loop: what it takes for a stall, and what it says of it."""

import asyncio
import logging
import sys
import time
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from magnetar_core.runtime.process.loop_watch import LoopWatch, Stall, StallWarnings, describe_stack, loop_stall_samples
from magnetar_core.security.caller import Caller
from tests.support.waiting import eventually


class Worker:
    work_name = "topic persistent://a/b/c\nd"

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def work(self, request: Any, cpu_s: float) -> FrameType:
        caller = self._caller
        until_s = time.thread_time() + cpu_s
        while time.thread_time() < until_s:
            pass
        assert request
        assert caller
        return sys._getframe()


REQUEST = SimpleNamespace(method="GET", path="/admin/v2/x")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar_core.runtime.process.loop_watch.OWN_PACKAGES", ("tests",))


@pytest.mark.usefixtures("own")
async def test_a_long_turn_is_reported_with_the_work_that_it_was() -> None:
    stalls: list[Stall] = []
    before, before_s = LoopWatch.stalls, LoopWatch.stalled_s
    watch = LoopWatch(0.05, time.monotonic, stalls.append, probe_s=0.01)
    watch.start()
    try:
        while not stalls:  # the watch may have begun to look when a turn was nearly over
            Worker(Caller("eve")).work(REQUEST, 0.2)
            await asyncio.sleep(0.05)
    finally:
        await watch.stop()
    assert stalls[0].stood_s > 0.05
    assert "persistent://a/b/c?d, role eve, GET /admin/v2/x, task " in stalls[0].what
    assert "; at tests.unit.magnetar_core.runtime.process.test_loop_watch:" in stalls[0].what
    assert LoopWatch.stalls > before
    assert LoopWatch.stalled_s > before_s
    values = {sample.name: sample.value for sample in loop_stall_samples()}
    assert values["magnetar_loop_stalls_total"] == LoopWatch.stalls


async def test_a_loop_that_answers_is_no_stall() -> None:
    stalls: list[Stall] = []
    watch = LoopWatch(10.0, time.monotonic, stalls.append)
    probes = 0
    threadsafe = asyncio.get_running_loop().call_soon_threadsafe

    def counted(callback: Any) -> None:
        nonlocal probes
        probes += 1
        threadsafe(callback)

    watch._loop = SimpleNamespace(call_soon_threadsafe=counted)  # type: ignore[assignment]
    watch.start()
    try:
        await eventually(lambda: probes >= 3)
    finally:
        await watch.stop()
    assert stalls == []


@pytest.mark.usefixtures("own")
def test_work_without_names_is_described_by_its_places() -> None:
    def inner() -> FrameType:
        return sys._getframe()

    text = describe_stack(inner(), None)
    assert text.startswith("nothing that has a name; at tests.unit.magnetar_core.runtime.process.test_loop_watch:")
    assert " inner < tests.unit" in text
    assert describe_stack(None, None) == "nothing that has a name; at code of a library"


def test_a_loop_that_stands_still_again_and_again_gets_one_line_in_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    warnings = StallWarnings(lambda: now_s)
    with caplog.at_level(logging.WARNING):
        for now_s in (0.0, 1.0, 9.9, 10.0):  # noqa: B007  the clock
            warnings.on_stall(Stall(0.5, 0.25, "topic t; at here"))
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop stood still for 0.50 s (0.25 s of processor time), and all clients waited: topic t; at here",
        "the event loop stood still for 0.50 s (0.25 s of processor time), and all clients waited: topic t; at here "
        "(2 more since the last such line)",
    ]


async def test_where_the_system_does_not_say_who_waited_only_work_counts(tmp_path: Path) -> None:
    watch = LoopWatch(10.0, time.monotonic, lambda _: None)
    watch._schedstat = tmp_path / "nothing"
    Worker(Caller("eve")).work(REQUEST, 0.05)
    began = watch._times()
    Worker(Caller("eve")).work(REQUEST, 0.02)
    assert 0.02 <= watch._stood_s(began) < began.cpu_s
