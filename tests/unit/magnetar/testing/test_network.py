"""What is said to the relay of a cluster under test, and how long its answers are waited for."""

import sys
from pathlib import Path

import pytest

from magnetar.testing.network import Network, NetworkFailed

# Answers `cut`, with an error, only when the next command has come.
RELAY = """
import sys
late = []
for line in sys.stdin:
    if line.startswith("cut"):
        late = ["no such server"]
    else:
        print(*late, "ok", sep="\\n", flush=True)
        late = []
"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.testing.network.python_command", lambda _: [sys.executable, "-c", RELAY])


@pytest.mark.usefixtures("command")
def test_an_answer_that_came_late_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    network = Network([], "127.0.0.1", tmp_path / "log", answer_timeout_s=0.05)
    try:
        with pytest.raises(NetworkFailed, match=r"did not answer in 0\.05 s"):
            network.cut("broker-1", 1, silent=True)
        network.answer_timeout_s = 30.0
        network.heal("broker-1")
        network.shut("broker-1")
    finally:
        network.stop()
