"""The frame of every server process: settings from file and environment, event loop, signals, orderly stop."""

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from magnetar_core.runtime.clock import LoopClock, block
from magnetar_core.runtime.config import load, parse_properties, with_origin
from magnetar_core.runtime.process.descriptors import raise_limit
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import ConfigurationError, MagnetarError

log = logging.getLogger(__name__)

C = TypeVar("C")

# Exit codes (Apache's, where it has one for the case).
EXIT_OK = 0
EXIT_CONFIGURATION = 1
EXIT_FAILED = 2

# Set in a process that another one of ours has started as its part: it ends when its standard input does, which is when
# the other one has ended, for whatever reason. The value is its number in the service.
PART_OF_SERVICE = "MAGNETAR_PROCESS"

# How long such a process may take to stop after that. A broker hands over for 20 s at most and closes what is left.
END_S = 60.0

# The collector runs after so many new objects; after so many of these runs it also searches the older generations. By
# default it runs after every 700; when a quarter of all objects are new, it searches all of them and holds the GIL
# meanwhile. A flush of 30,000 entries makes 60,000 objects that live as long as the flush.
_COLLECTOR_THRESHOLDS = (10_000, 20, 20)


class Shutdown:
    """Ends a daemon: on a signal, or when a part of it has failed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.failure: BaseException | None = None

    def request(self) -> None:
        self._event.set()

    def fail(self, error: BaseException) -> None:
        """A part has failed: stop the whole process, so that it does not stay half alive (I52)."""
        if self.failure is None:
            self.failure = error
            log.critical("stopping: %s", error)
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


# RocksDB makes its files for everybody, except for what the umask takes away (`FILE_MODE` and `FOLDER_MODE` are ours).
_NOT_FOR_OTHERS: Final = 0o027


def read_properties(path: Path | None) -> dict[str, str]:
    """The settings in the file at *path*; none if *path* is None. Raises ConfigurationError, which names the file."""
    if path is None:
        return {}
    try:
        return parse_properties(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"cannot read {path}: it is not UTF-8 text ({error})") from None


def read_settings(
    kind: type[C],
    path: Path | None,
    *,
    ignored: Mapping[str, str] | frozenset[str] = frozenset(),
    overrides: Mapping[str, str] | None = None,
    also: Callable[[Mapping[str, str]], Iterable[str]] = lambda merged: (),
) -> C:
    """Settings of a daemon from its file and the environment; ConfigurationError names every problem."""
    values = read_properties(path)
    try:
        return load(kind, values, os.environ, ignored=ignored, overrides=overrides, also=also)
    except ConfigurationError as error:
        raise ConfigurationError(with_origin(str(error), str(path or ""), os.environ)) from None


def run(start: Callable[[Parts, Shutdown], Awaitable[None]]) -> int:
    """Run a daemon until SIGINT or SIGTERM; returns its exit code.

    *start* starts the parts and registers how each is stopped. An error in it is shown as one line.
    """
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    os.umask(os.umask(_NOT_FOR_OTHERS) | _NOT_FOR_OTHERS)
    raise_limit()
    try:
        import uvloop
    except ImportError:  # not built for every platform; asyncio's own loop does the same, slower
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    else:
        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_main(start))


async def _main(start: Callable[[Parts, Shutdown], Awaitable[None]]) -> int:
    parts, shutdown = Parts(), Shutdown()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, shutdown.request)
    if PART_OF_SERVICE in os.environ:
        _end_with_input(loop, shutdown)
    starting = asyncio.ensure_future(_as_coroutine(start(parts, shutdown)))
    stopping = asyncio.ensure_future(shutdown.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
        else:
            starting.result()
            _calm_collector()
            await stopping
    except (MagnetarError, OSError) as error:
        print(f"magnetar: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION if isinstance(error, ConfigurationError) else EXIT_FAILED
    finally:
        stopping.cancel()
        await parts.stop()
    if shutdown.failure is not None:
        print(f"magnetar: {shutdown.failure}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def _end_with_input(loop: asyncio.AbstractEventLoop, shutdown: Shutdown) -> None:
    """Stop when standard input ends; a loop that hangs does not keep the process alive."""

    def look() -> None:
        while os.read(0, 1):
            pass
        log.warning("the process that started this one has ended; stopping")
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends anyway
            loop.call_soon_threadsafe(shutdown.request)
        block(END_S)
        log.critical("it does not stop within %.0f s; ended without", END_S)
        os._exit(EXIT_FAILED)

    threading.Thread(target=look, name="end with input", daemon=True).start()


def _calm_collector() -> None:
    """Let the garbage collector skip the objects that the start has made."""
    gc.collect()
    gc.freeze()


async def load_beside(module: str) -> None:
    """Import a module that takes a tenth of a second or more, on a thread: ports that are open already are served
    meanwhile. The caller's own `import` finds it loaded afterwards."""
    await asyncio.to_thread(importlib.import_module, module)


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


def new_clock() -> LoopClock:
    """The machine's clock, for the outermost layer, which passes it to all others."""
    return LoopClock()
