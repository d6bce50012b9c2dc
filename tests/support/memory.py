"""Memory of a process that runs thousands of tests: it is given back."""

import ctypes
import gc
import sys
from importlib.abc import MetaPathFinder
from typing import Final

import psutil
from aiohttp import web_app

# Of the C library of Linux (`malloc.h`); where another one is, memory stays as it manages it.
_ALLOCATOR: Final = ctypes.CDLL(None)
_HAS_TRIM: Final = hasattr(_ALLOCATOR, "malloc_trim")
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8


class _NoPandas(MetaPathFinder):
    """PyArrow imports pandas where it is, for nothing: 50 MB. It is here for the demo's notebook, another process."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("tests do without pandas", name=fullname)


class Memory:
    """Few pools for all threads, and large pieces for themselves: these go back to the system when they are free.

    aiohttp remembers the last 1,024 handlers of applications, and with them the brokers that they belong to: it is to
    forget them behind each test. Brokers and bookies that have ended are circles, which the collector of garbage takes
    late, and the allocator keeps what threads had: memory is given back behind a test that left much, and before what
    lives on stands between what has gone."""

    _MORE_MAX: Final = 8 * 1024 * 1024

    def __init__(self) -> None:
        sys.meta_path.insert(0, _NoPandas())
        if _HAS_TRIM:
            _ALLOCATOR.mallopt(_ARENA_MAX, 2)
            _ALLOCATOR.mallopt(_MMAP_THRESHOLD, 512 * 1024)
        self._process = psutil.Process()
        self._bytes = 0

    def pytest_collection_finish(self) -> None:
        """The collector looks at all objects, and comes the less often the more there are. The tests themselves are
        half a million, which stay."""
        gc.collect()
        gc.freeze()
        self._bytes = self._process.memory_info().rss

    def pytest_runtest_logfinish(self) -> None:
        web_app._cached_build_middleware.cache_clear()
        if self._process.memory_info().rss > self._bytes + self._MORE_MAX:
            gc.collect()
            if _HAS_TRIM:
                _ALLOCATOR.malloc_trim(0)
            self._bytes = self._process.memory_info().rss
