"""gRPC as the client uses it: loaded without a word on stderr, and watched for forks.

gRPC's asyncio part has a thread and a queue while a channel is open anywhere in the process. The child of a fork has
the queue without the thread: what waits for it waits for ever, also with a new channel, and what ends it crashes. So
such a child is told at once what to do; a child of a process whose channels are closed works.
"""

import contextlib
import ctypes
import logging
import os
import threading
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from magnetar.client.errors import TopicError
from magnetar_core.runtime.clock import block

log: Final = logging.getLogger("magnetar.client")
log.addHandler(logging.NullHandler())  # without one of the program's, `logging` would write to stderr itself

_THREAD: Final = "_poll_wrapper"
"""Part of the name of the thread of gRPC's asyncio part."""

_CORE_THREADS: Final = ("event_engine", "grpc_", "lifeguard", "timer_manager")

# How often, and how long, a fork waits for the end of these, and of those that are no threads of Python (any more).
_PAUSES: Final = 40
_ENDING_PAUSES: Final = 10
_PAUSE_S: Final = 0.005

CLOSED: Final = "the client is closed; make another one"
FORKED: Final = (
    "a fork does not copy a client; make one in this process (in multiprocessing: by the function that runs there; in "
    "gunicorn: in the hook post_worker_init, or without preload_app)"
)
SPOILT: Final = (
    "this process was forked while a client was open, and gRPC works in no such child. Close the clients (and other "
    "channels of grpc.aio) before the fork, make them behind it only (gunicorn: in the hook post_worker_init), or "
    'start processes afresh: multiprocessing.get_context("spawn")'
)


# What gRPC reads of the environment when it is loaded, where nobody has said otherwise.
_SETTINGS: Final = {
    # Its core writes to stderr, past `logging`. What goes wrong is in our errors and in the logger `magnetar.client`.
    "GRPC_VERBOSITY": "NONE",
    # Its own way to survive a fork is for channels without asyncio: with ours, one child in three crashes in it.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}


def _loaded() -> Any:
    """The library; the environment is left as it was."""
    added = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        import_module("grpc.aio")
        return import_module("grpc")
    finally:
        for name in added:
            del os.environ[name]


grpc: Final = _loaded()


def _has_core_threads() -> bool:
    """Whether a thread of gRPC's core runs, as far as the system tells."""
    names = list[str]()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            names.append(path.read_text())
    return any(name.startswith(_CORE_THREADS) for name in names)


def _foreign_threads() -> set[int]:
    """Threads that the system knows and Python does not: of other libraries, and those that are ending. A client's own
    thread is one for a moment after its client is closed; in it gRPC gives back what it has for each thread, under
    locks that the child of a fork would never see free again."""
    with contextlib.suppress(OSError):
        known = {thread.native_id for thread in threading.enumerate()}
        return {int(name) for name in os.listdir("/proc/self/task")} - known
    return set()


class Inherited(Protocol):
    """What is of no use in the child of a fork."""

    is_inherited: bool


class _Forks:
    """What this process knows about the forks that made it."""

    def __init__(self) -> None:
        self.is_spoilt = False
        self.channels = weakref.WeakSet[Any]()
        self.parts = weakref.WeakSet[Inherited]()
        self._is_in_use = False
        self._was_used = False
        self._known_foreign_threads = set[int]()
        """Threads of other libraries, which stay."""

    def watch(self, channel: Any) -> Any:
        self._was_used = True
        self.channels.add(channel)
        return channel

    def before(self) -> None:
        self._is_in_use = any(_THREAD in thread.name for thread in threading.enumerate())
        if self._is_in_use or not self._was_used:
            return
        # The channels are closed, but threads of its core, and of clients, may still be ending, and hold locks.
        for number in range(_PAUSES):
            if not _has_core_threads():
                strangers = _foreign_threads()
                if strangers <= self._known_foreign_threads or number >= _ENDING_PAUSES:
                    self._known_foreign_threads = strangers
                    return
            block(_PAUSE_S)
        self._is_in_use = True

    def in_child(self) -> None:
        self.is_spoilt = self.is_spoilt or self._is_in_use
        for part in list(self.parts):
            part.is_inherited = True
        for channel in list(self.channels):
            # The end of a channel waits for the thread that is not there. So these never end.
            for kept in (channel, getattr(channel, "_channel", None), *getattr(channel, "_active_calls", ())):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


_forks: Final = _Forks()
os.register_at_fork(before=_forks.before, after_in_child=_forks.in_child)


def check_fork() -> None:
    """Raises TopicError where gRPC cannot work."""
    if _forks.is_spoilt:
        raise TopicError(SPOILT)


def mark_in_child(part: Inherited) -> None:
    """In the child of a fork *part* says that it is inherited: asking for the process each time would be dear."""
    _forks.parts.add(part)


def watch(channel: Any) -> Any:
    """*channel*, which a fork is not to end."""
    return _forks.watch(channel)
