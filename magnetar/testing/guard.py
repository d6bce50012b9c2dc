"""Ends servers when the test run that started them has ended in any way: `python -m magnetar.testing.guard PIDFILE`.

Standard input is a pipe that only the test run holds. When it closes, every process in PIDFILE (which may have changed
meanwhile) is ended: first by SIGTERM, then by SIGKILL. The pids of a line are ended together, before those of the next
line, which they may need for a clean end.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path
from time import sleep
from typing import Final

# How long a server may take to end by itself.
GRACE_S: Final = 3.0
_LOOK_S: Final = 0.05


def pids_in(path: Path) -> list[list[int]]:
    """The pids in the file, line by line; none if there is no file."""
    try:
        return [[int(pid) for pid in line.split()] for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return []


def end_all(pids: list[int]) -> None:
    """End processes: SIGTERM, a short wait, SIGKILL. A paused process is continued, or SIGTERM would not reach it."""
    for pid in pids:
        for number in (signal.SIGTERM, signal.SIGCONT):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
    waited_s = 0.0
    while waited_s < GRACE_S and any(is_there(pid) for pid in pids):
        sleep(_LOOK_S)
        waited_s += _LOOK_S
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def is_there(pid: int) -> bool:
    """Whether a process runs. One that has ended stays in the list of processes until its parent, or the first process
    of the system or container, takes notice of it: some do so late, or never."""
    with contextlib.suppress(ChildProcessError, OSError):
        os.waitpid(pid, os.WNOHANG)
    with contextlib.suppress(OSError):  # there is no /proc elsewhere than on Linux
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X"):
            return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of the terminal; the pipe says when it is time
        signal.signal(number, signal.SIG_IGN)
    path = Path(sys.argv[1])
    while sys.stdin.buffer.read(4096):
        pass
    for pids in pids_in(path):
        end_all(pids)


if __name__ == "__main__":
    main()
