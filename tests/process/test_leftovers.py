"""A test run that is gone leaves no server behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.testing.guard import is_there
from tests.support.processes import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc here"),
]

RUN = """
import subprocess, sys
from tests.support.leftovers import Leftovers
leftovers = Leftovers()
started = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
print(started.pid, flush=True)
if sys.argv[1] == "ends":
    leftovers.pytest_unconfigure()
else:
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_what_a_test_run_has_started_ends_with_it(how: str) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, how], cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        if how == "is killed":
            assert is_there(pid)
            os.kill(run.pid, signal.SIGKILL)
        until(lambda: not is_there(pid), "the end of what it had started")
