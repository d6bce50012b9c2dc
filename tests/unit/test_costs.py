"""What tests cost, and which are left out when the time is over."""

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.costs import Costs, level_of, processor_s


@pytest.mark.parametrize(
    ("node_id", "level"),
    [
        ("tests/process/test_drain.py::test_x", "process"),
        ("tests/unit/broker/test_names.py::test_x[a/b::c]", "unit"),
        ("test_alone.py::test_x", "test_alone.py"),
    ],
)
def test_a_level_is_a_folder(node_id: str, level: str) -> None:
    assert level_of(node_id) == level


def _burn(seconds: float) -> None:
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass


def test_what_living_and_ended_processes_below_use_is_counted() -> None:
    program = "import time\nwhile time.process_time() < 0.2: pass\nprint(1, flush=True)\n"
    before_s = processor_s()
    _burn(0.1)
    assert processor_s() - before_s >= 0.1
    waits = [sys.executable, "-c", program + "import sys; sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living_s = processor_s()
        assert living_s - before_s >= 0.28, "its ticks are of 10 ms"
    assert processor_s() >= living_s - 0.02, "it has ended, and counts all the same"


def test_the_collection_is_counted_to_no_test(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 31.0, 31.5])
    monkeypatch.setattr("tests.support.costs.processor_s", lambda: next(seconds))
    costs = Costs(pytestconfig)
    costs.pytest_collection_finish()
    item: Any = SimpleNamespace(nodeid="test_first.py::test_x")
    call: Any = SimpleNamespace(when="teardown")
    reporting = costs.pytest_runtest_makereport(item, call)
    next(reporting)
    report = SimpleNamespace(user_properties=[])
    with pytest.raises(StopIteration):
        reporting.send(report)
    assert [used_s for _, used_s in report.user_properties] == [0.5]
