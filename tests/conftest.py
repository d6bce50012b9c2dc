"""Settings for all tests.

Asynchronous tests run on uvloop, as the servers do; those marked `both_loops` on asyncio's own event loop as well. A
test marked `long` says why. Hypothesis draws the same examples in every run and asserts no time;
`--hypothesis-profile=search` draws anew. The end of a run says what its tests cost (`tests/support/costs.py`).
"""

import asyncio
import ctypes
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop
from aiohttp import web_app
from hypothesis import settings

from tests.support.costs import Costs
from tests.support.order import FileScheduling, SecondsMax, sort_by_level

# Of the C library of Linux; others give memory back by themselves, or not at all.
_TRIM: Final[Any] = getattr(ctypes.CDLL(None), "malloc_trim", None)

settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1_000)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-costs", type=Path, metavar="FILE", help="cost of each test, as JSON")
    parser.addoption("--seconds-max", type=float, metavar="N", help="what has not begun by then is left out")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config), "costs")
    if seconds_max := config.getoption("--seconds-max"):
        config.pluginmanager.register(SecondsMax(seconds_max), "seconds-max")


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


@pytest.fixture(scope="module", autouse=True)
def _memory_is_given_back() -> Iterator[None]:
    """A worker runs thousands of tests. aiohttp remembers the last 1,024 handlers of applications, and with them the
    brokers that they belong to; the allocator keeps what threads of servers and clients had."""
    yield
    web_app._cached_build_middleware.cache_clear()
    if _TRIM is not None:
        _TRIM(0)
