"""Runs a module and notes where its main thread spends processor time: `python -m bench.apache.sampled FILE MODULE …`.

It begins with the signal SIGUSR2, so that a start is not in it. Every two milliseconds of processor time (the
system may make it four) a signal looks at the stack. Time inside a C call counts for the Python function that made
it. When the module ends, FILE has the samples by function and the seconds of each thread.
"""

import json
import os
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final

INTERVAL_S: Final = 0.002
DEPTH_MAX: Final = 60
"""Frames looked at; what is called deeper counts for the function at that depth only by itself."""


class Sampler:
    def __init__(self) -> None:
        self.own: Counter[str] = Counter()
        self.with_callees: Counter[str] = Counter()
        self.threads_before: dict[str, float] = {}
        self._main_s = 0.0

    def start(self, *_: object) -> None:
        self._main_s, self.threads_before = time.thread_time(), threads_cpu_s()
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _: int, frame: FrameType | None) -> None:
        # The timer counts all threads; a sample counts if this one worked in the meantime.
        before, self._main_s = self._main_s, time.thread_time()
        if self._main_s - before < INTERVAL_S / 2 or frame is None:
            return
        self.own[name_of(frame)] += 1
        seen: set[str] = set()
        at: FrameType | None = frame
        while at is not None and len(seen) < DEPTH_MAX:
            seen.add(name_of(at))
            at = at.f_back
        self.with_callees.update(seen)


def name_of(frame: FrameType) -> str:
    code = frame.f_code
    return f"{'/'.join(Path(code.co_filename).parts[-2:])} {code.co_qualname}"


def threads_cpu_s() -> dict[str, float]:
    """Seconds of processor time by the name of the thread, of those that live."""
    found: dict[str, float] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        name = names.get(int(task.name), "threads of libraries")
        found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / ticks
    return found


def main(file: str, name: str, *arguments: str) -> None:
    sampler, threads = Sampler(), dict[str, float]()
    finish = threading.Event()

    def watch() -> None:
        """Threads that have ended by the time the module ends are seen here."""
        while not finish.wait(0.5):
            threads.update(threads_cpu_s())

    threading.Thread(target=watch, name="the profiler itself", daemon=True).start()
    sys.argv = [name, *arguments]
    signal.signal(signal.SIGUSR2, sampler.start)
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    finally:
        sampler.stop()
        finish.set()
        found: dict[str, Any] = {
            "samples": sum(sampler.own.values()),
            "own": sampler.own.most_common(40),
            "with_callees": sampler.with_callees.most_common(60),
            "threads_s": {name: used - sampler.threads_before.get(name, 0.0) for name, used in threads.items()},
        }
        Path(file).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
