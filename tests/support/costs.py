"""What each test costs: seconds by the clock and of processors, its own processes counted, and the sums of the levels.

A plugin of pytest (`tests/conftest.py` loads it). A worker notes after each test what was used since the test before;
whoever prints the summary adds up, also over the workers of pytest-xdist. The set-up of a fixture that many tests share
is counted to the first test that asks for it; the collection, of which each worker does all, to none.
"""

import contextlib
import json
import os
import resource
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import pytest

# As many rows stand at the end of a run.
DEAREST: Final = 20

_PROPERTY: Final = "processor_s"
_PEAK: Final = "magnetar_peak_mb"


class Cost(NamedTuple):
    wall_s: float = 0.0
    processor_s: float = 0.0

    def plus(self, other: "Cost") -> "Cost":
        return Cost(self.wall_s + other.wall_s, self.processor_s + other.processor_s)


def level_of(node_id: str) -> str:
    """The folder below `tests` that a test is in: `tests/process/test_drain.py::test_x` is of `process`."""
    parts = node_id.split("::")[0].split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else parts[0]


def processor_s() -> float:
    """Seconds of processors that this process and all below it have used, those that have ended counted."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system + _of_living_children()


def _of_living_children() -> float:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0.0  # the usual case: a look through all processes takes milliseconds
    used_s = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile, and its parent counts it
            used_s += sum(child.cpu_times()[:4])  # its own, and those of its children that have ended
    return used_s


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class Costs:
    """Measures in a worker, adds up where the summary is printed."""

    def __init__(self, config: pytest.Config) -> None:
        is_worker = hasattr(config, "workerinput")
        self._output: dict[str, Any] = config.workeroutput if is_worker else {}  # type: ignore[attr-defined]
        self._write_to: Path | None = None if is_worker else config.getoption("--write-costs", None)
        self._peak = (_peak_mb(), "the collection")
        self._peaks: list[tuple[int, str]] = []
        self._used_s = processor_s()
        self._of_test: defaultdict[str, Cost] = defaultdict(Cost)

    def pytest_collection_finish(self) -> None:
        self._used_s = processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if call.when != "teardown":
            return report
        before, self._used_s = self._used_s, processor_s()
        if (peak_mb := _peak_mb()) > self._peak[0]:
            self._peak = peak_mb, item.nodeid
        report.user_properties.append((_PROPERTY, max(0.0, self._used_s - before)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        used = sum(value for name, value in report.user_properties if name == _PROPERTY and isinstance(value, float))
        self._of_test[report.nodeid] = self._of_test[report.nodeid].plus(Cost(report.duration, used))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._peaks.append(getattr(node, "workeroutput", {}).get(_PEAK, (0, "nobody said where")))

    def pytest_sessionfinish(self) -> None:
        self._output[_PEAK] = self._peak

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._of_test:
            return
        levels: defaultdict[str, Cost] = defaultdict(Cost)
        counts: defaultdict[str, int] = defaultdict(int)
        for node_id, cost in self._of_test.items():
            levels[level_of(node_id)] = levels[level_of(node_id)].plus(cost)
            counts[level_of(node_id)] += 1
        terminalreporter.section("what the tests cost: seconds, and seconds of processors")
        for node_id, cost in sorted(self._of_test.items(), key=lambda row: row[1], reverse=True)[:DEAREST]:
            terminalreporter.write_line(f"{cost.wall_s:8.1f} {cost.processor_s:8.1f}  {node_id}")
        terminalreporter.write_line("")
        for level, cost in sorted(levels.items(), key=lambda row: row[1], reverse=True):
            terminalreporter.write_line(f"{cost.wall_s:8.1f} {cost.processor_s:8.1f}  {level}: {counts[level]} tests")
        total = Cost(sum(cost.wall_s for cost in levels.values()), sum(cost.processor_s for cost in levels.values()))
        terminalreporter.write_line(f"{total.wall_s:8.1f} {total.processor_s:8.1f}  all")
        for peak_mb, place in self._peaks or [self._output[_PEAK]]:
            terminalreporter.write_line(f"{peak_mb:5} MB at most of a process that ran them: {place}")
        if self._write_to is not None:
            self._write_to.write_text(json.dumps(self._of_test))
