"""Settings for all tests.

Asynchronous tests run on uvloop, as the servers do; those marked `both_loops` on asyncio's own event loop as well. A
test marked `long` says why. Hypothesis draws the same examples in every run and asserts no time;
`--hypothesis-profile=search` draws anew. The end of a run says what its tests cost (`tests/support/costs.py`).
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop
from hypothesis import settings

from magnetar.testing import ClusterUnderTest
from tests.support.costs import Costs
from tests.support.leftovers import Leftovers
from tests.support.memory import Memory
from tests.support.order import FileScheduling, SecondsMax, sort_by_level

# Of each server, where a test fails.
LOG_LINES: Final = 15

settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1_000)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-costs", type=Path, metavar="FILE", help="cost of each test, as JSON")
    parser.addoption("--seconds-max", type=float, metavar="N", help="what has not begun by then is left out")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config), "costs")
    config.pluginmanager.register(Memory(), "memory")
    config.pluginmanager.register(Leftovers(), "leftovers")
    if seconds_max := config.getoption("--seconds-max"):
        config.pluginmanager.register(SecondsMax(seconds_max), "seconds-max")
    if not hasattr(config, "workerinput") and not (config.rootpath / ".hypothesis" / "unicode_data").exists():
        # Hypothesis computes once for ever which characters there are, which takes 200 MB: not in a worker.
        command = [sys.executable, "-W", "ignore", "-c", "from hypothesis.strategies import text; text().example()"]
        subprocess.run(command, cwd=config.rootpath, check=True)


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What pytest-asyncio makes the loop of a test with, by name."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.get_closest_marker("both_loops") is not None:
        loops["asyncio"] = asyncio.new_event_loop
    return loops


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    return FileScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--seconds-max"):  # then they come as they were named
        sort_by_level(items)
    for item in items:
        for marker in item.iter_markers("long"):
            if not (marker.args and isinstance(marker.args[0], str)):
                raise pytest.UsageError(f"{item.nodeid} is marked as long without a reason")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """What fails beside a cluster that several tests share is reported with the ends of its servers' logs."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(cluster, ClusterUnderTest):
        for name, path in cluster.logs().items():
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            report.sections.append((f"{name}, the end of its log", "\n".join(lines[-LOG_LINES:])))
    return report
