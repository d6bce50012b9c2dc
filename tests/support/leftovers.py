"""Ends what a process of a test run has started, however that process ends: also by kill -9, a time-out, or Ctrl-C
while fixtures are open.

A process that watches is started first. What is started after it has a mark in its environment. When the pipe to the
watching process closes, all processes with the mark are ended. Elsewhere than on Linux there is no /proc, and nothing
is done.
"""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Final

from magnetar.testing.guard import end_all

# Without our prefix: the commands of pages are run without our names.
MARK: Final = "TESTS_STARTED_BY"

# A process may start another one while it ends.
ROUNDS: Final = 3


class Leftovers:
    """A plugin of pytest, one for each process of a run."""

    def __init__(self) -> None:
        mark = str(uuid.uuid4())
        self._watcher = subprocess.Popen(
            [sys.executable, "-m", "tests.support.leftovers", mark], cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        os.environ[MARK] = mark

    def pytest_unconfigure(self) -> None:
        del os.environ[MARK]
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()


def marked(mark: str) -> list[int]:
    """The processes that were started with *mark* in their environment."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:  # it has ended, or is another user's
            continue
    return pids


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of the terminal; the pipe says when it is time
        signal.signal(number, signal.SIG_IGN)
    while sys.stdin.buffer.read(4096):
        pass
    for _ in range(ROUNDS):
        end_all(marked(sys.argv[1]))


if __name__ == "__main__":
    main()
