"""Settings for all tests.

Asynchronous tests run on both event loops: asyncio's own and uvloop, on which the servers run; those in tests/process
and tests/interop only on uvloop, since the loop under test is in other processes. Hypothesis draws the
same examples in every run and asserts no time; `--hypothesis-profile=search` draws anew.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import uvloop
from hypothesis import settings

settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1_000)
settings.load_profile("fixed")


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What pytest-asyncio makes the loop of a test with, by name."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if not {"process", "interop"}.intersection(item.path.parts):
        loops["asyncio"] = asyncio.new_event_loop
    return loops
