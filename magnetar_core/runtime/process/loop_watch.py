"""A watch over the event loop of a server: one turn that is too long keeps all clients waiting.

    thread ──call_soon_threadsafe──▶ loop ──▶ answer          each 100 ms

What counts is the time that the loop's thread worked, or waited for something else than a processor, until it answered:
on a busy machine an idle loop answers late, too. Where the system does not tell how long a thread waited for a
processor, its processor time alone counts.

A warning names the work: objects on the stack that have a `work_name` (a connection, a topic), the request, the task,
and where in the code it was. The names cost nothing until then.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.observe import Sample
from magnetar_core.runtime.tasks import Parts

log = logging.getLogger(__name__)

# From an answer to the next question; a turn that lasts that much longer than the limit is seen for certain.
_PROBE_S: Final = 0.1
_STEP_S: Final = 0.02

# Between two warnings; the next says how many there were without.
_WARN_EACH_S: Final = 10.0

_NAMES_MAX: Final = 6
_PLACES_MAX: Final = 4
_NAME_CHARS_MAX: Final = 300
OWN_PACKAGES: Final = ("autorecovery", "bookie", "broker", "magnetar", "magnetar_core", "managed_ledger")


class Stall(NamedTuple):
    """The loop did not answer in time."""

    stood_s: float
    """Seconds without those in which the thread waited for a processor."""
    cpu_s: float
    what: str
    """What ran, when the limit was reached."""


class _Times(NamedTuple):
    now_s: float
    cpu_s: float
    queued_s: float | None
    """How long the thread has waited for a processor since it began; None: not known."""


class LoopWatch:
    """Watches the running loop from a thread of its own."""

    stalls = 0
    """How many there were in this process."""
    stalled_s = 0.0
    """Their sum, in seconds."""

    def __init__(
        self,
        limit_s: float,
        now_s: Callable[[], float],
        on_stall: Callable[[Stall], None],
        *,
        probe_s: float = _PROBE_S,
    ) -> None:
        """Made on the loop's thread; *on_stall* is called on the thread of the watch. *now_s*: `Clock.monotonic`."""
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._now_s = now_s
        self._on_stall = on_stall
        self._probe_s = probe_s
        self._thread_id = threading.get_ident()
        self._clock_id = time.pthread_getcpuclockid(self._thread_id)
        self._schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="loop watch", daemon=True).start()

    async def stop(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        answered = threading.Event()
        while not self._ended.wait(self._probe_s):
            answered.clear()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # it was closed
                return
            if not answered.wait(_STEP_S):
                self._wait_for(answered)

    def _wait_for(self, answered: threading.Event) -> None:
        began, what = self._times(), ""
        while not answered.wait(_STEP_S) and not self._ended.is_set():
            if not what and self._stood_s(began) > self._limit_s:
                what = self._what_runs()
        if (stood_s := self._stood_s(began)) > self._limit_s and not self._ended.is_set():
            LoopWatch.stalls += 1
            LoopWatch.stalled_s += stood_s
            self._on_stall(Stall(stood_s, time.clock_gettime(self._clock_id) - began.cpu_s, what))

    def _times(self) -> _Times:
        try:
            queued_s = int(self._schedstat.read_bytes().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            queued_s = None
        return _Times(self._now_s(), time.clock_gettime(self._clock_id), queued_s)

    def _stood_s(self, began: _Times) -> float:
        times = self._times()
        if began.queued_s is None or times.queued_s is None:
            return times.cpu_s - began.cpu_s
        return times.now_s - began.now_s - (times.queued_s - began.queued_s)

    def _what_runs(self) -> str:
        frame = sys._current_frames().get(self._thread_id)
        task = asyncio.current_task(self._loop)
        return describe_stack(frame, None if task is None else task.get_name())


def describe_stack(frame: FrameType | None, task_name: str | None) -> str:
    """The work that *frame* (innermost) is part of, and where it is, for people."""
    names: dict[str, None] = {}
    places: list[str] = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in OWN_PACKAGES:
            if len(places) < _PLACES_MAX:
                places.append(f"{module}:{frame.f_lineno} {frame.f_code.co_name}")
            names.update(dict.fromkeys(_names(frame)))
        frame = frame.f_back
    if task_name is not None:
        names[f"task {task_name}"] = None
    work = ", ".join(_printable(name) for name in list(names)[:_NAMES_MAX])
    return f"{work or 'nothing that has a name'}; at {' < '.join(places) or 'code of a library'}"


def _names(frame: FrameType) -> Iterator[str]:
    known = frame.f_locals
    for variable in ("self", "caller"):
        name = getattr(known.get(variable), "work_name", None)
        if isinstance(name, str):
            yield name
    method, path = (getattr(known.get("request"), part, None) for part in ("method", "path"))
    if isinstance(method, str) and isinstance(path, str):
        yield f"{method} {path}"


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name[:_NAME_CHARS_MAX])


class StallWarnings:
    """A line for a stall; a loop that stands still again and again gets one each ten seconds."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._warned_s: float | None = None
        self._silent = 0

    def on_stall(self, stall: Stall) -> None:
        now_s = self._now_s()
        if self._warned_s is not None and now_s - self._warned_s < _WARN_EACH_S:
            self._silent += 1
            return
        more = f" ({self._silent} more since the last such line)" if self._silent else ""
        self._warned_s, self._silent = now_s, 0
        log.warning(
            "the event loop stood still for %.2f s (%.2f s of processor time), and all clients waited: %s%s",
            stall.stood_s, stall.cpu_s, stall.what or "it ended while it was looked at", more,
        )  # fmt: skip


def watch_loop(limit_ms: int, clock: Clock, parts: Parts) -> None:
    """Warn of each turn of the running loop above *limit_ms* until *parts* are stopped; 0: of none."""
    if limit_ms:
        watch = LoopWatch(limit_ms / 1000, clock.monotonic, StallWarnings(clock.monotonic).on_stall)
        parts.add("loop watch", watch.stop)
        watch.start()


def loop_stall_samples() -> Iterator[Sample]:
    """For `Metrics.add`."""
    yield Sample(
        "magnetar_loop_stalls_total", LoopWatch.stalls, (), "turns of the event loop longer than loopStallWarnMs"
    )
    yield Sample("magnetar_loop_stalled_seconds_total", LoopWatch.stalled_s, (), "how long these took")
