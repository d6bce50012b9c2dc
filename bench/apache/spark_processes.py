"""What the processes of a Spark session use: the JVM and the Python workers below this process, by /proc."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

LOOK_S: Final = 0.2


class Process(NamedTuple):
    pid: int
    parent: int
    is_python: bool
    cpu_s: float
    """User and system, without its children."""
    ended_cpu_s: float
    """Of its children that have ended, and of theirs."""
    peak_mb: float
    """The most memory it had at once (VmHWM), with pages that it shares with the process that it was forked from."""


def _process(pid: int) -> Process | None:
    """None if it has ended."""
    place = Path(f"/proc/{pid}")
    try:
        fields = place.joinpath("stat").read_text().rpartition(")")[2].split()
        status = place.joinpath("status").read_text()
        words = place.joinpath("cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    ticks, ended_ticks = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    peak = status.partition("VmHWM:")[2].split()
    is_python = "python" in Path(os.fsdecode(words[0])).name
    peak_mb = int(peak[0]) / 1024 if peak else 0.0
    return Process(pid, int(fields[1]), is_python, ticks / tick, ended_ticks / tick, peak_mb)


def below(ancestor: int) -> Iterator[Process]:
    """All processes that descend from *ancestor*, now."""
    found = [process for name in os.listdir("/proc") if name.isdigit() and (process := _process(int(name)))]
    known = {ancestor}
    while more := [one for one in found if one.parent in known and one.pid not in known]:
        known.update(one.pid for one in more)
        yield from more


class Jvm(NamedTuple):
    """The driver's JVM of this process, and what is below it."""

    pid: int

    @classmethod
    def of_this_process(cls) -> "Jvm":
        """Raises LookupError without one."""
        for one in below(os.getpid()):
            if not one.is_python and b"org.apache.spark" in Path(f"/proc/{one.pid}/cmdline").read_bytes():
                return cls(one.pid)
        raise LookupError("no JVM of Spark below this process")

    @property
    def cpu_s(self) -> float:
        found = _process(self.pid)
        return found.cpu_s if found else 0.0

    @property
    def job_cpu_s(self) -> float:
        """Of the JVM and of all Python processes below it, those that have ended too."""
        own = _process(self.pid)
        return sum(one.cpu_s + one.ended_cpu_s for one in (*([own] if own else []), *below(self.pid)))

    @property
    def workers(self) -> list[Process]:
        return [one for one in below(self.pid) if one.is_python]


class Peak:
    """The most memory of a single Python worker, in MB."""

    mb = 0.0


@contextmanager
def watched(jvm: Jvm) -> Iterator[Peak]:
    """Looks at the Python workers now and then; those that end between two looks are not seen."""
    peak, ended = Peak(), threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            peak.mb = max([peak.mb, *(one.peak_mb for one in jvm.workers)])

    thread = threading.Thread(target=look, name="peak", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
