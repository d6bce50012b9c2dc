"""What the system tells of a process: memory and processor time."""

import contextlib
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

SAMPLE_S: Final = 0.05


def resident_mb(pid: int, what: str = "VmRSS") -> float:
    """MiB; `VmHWM` is the most that it ever was."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{what}:")[2].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    """Seconds of all its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class CpuSamples:
    """Processor time of some processes over time."""

    def __init__(self, names: Iterable[str]) -> None:
        self._times: list[float] = []
        self._seconds: dict[str, list[float]] = {name: [] for name in names}

    def add(self, moment_s: float, seconds: Mapping[str, float]) -> None:
        """What each has used by then. One that is missing has ended, and used no more."""
        self._times.append(moment_s)
        for name, found in self._seconds.items():
            found.append(seconds.get(name, found[-1] if found else 0.0))

    def used_s(self, name: str, begin_s: float, end_s: float) -> float:
        """Seconds of processor time between two moments, as far as they were sampled."""
        return self._at(name, end_s) - self._at(name, begin_s)

    def _at(self, name: str, moment_s: float) -> float:
        at, seconds = bisect_right(self._times, moment_s), self._seconds[name]
        if at == 0 or at == len(self._times):
            return seconds[0 if at == 0 else -1]
        before_s, after_s = self._times[at - 1], self._times[at]
        share = (moment_s - before_s) / (after_s - before_s)
        return seconds[at - 1] + share * (seconds[at] - seconds[at - 1])


class CpuSampler:
    """Samples until `stop`; the moments are of the monotonic clock."""

    def __init__(self, read: Mapping[str, Callable[[], float]]) -> None:
        """*read*: for each name the seconds so far; raises OSError once the process has ended."""
        self.samples = CpuSamples(read)
        self._read = read
        self._ended = threading.Event()
        self._sample()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> CpuSamples:
        self._ended.set()
        self._thread.join()
        self._sample()
        return self.samples

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        moment_s, found = time.monotonic(), {}
        for name, read in self._read.items():
            with contextlib.suppress(OSError):
                found[name] = read()
        self.samples.add(moment_s, found)
