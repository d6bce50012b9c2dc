"""A bookie with a full disk: what clients and other bookies see of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import PATIENCE_S, Standalone

pytestmark = pytest.mark.process

# The command, made impatient: it tells of three refusals, which come within a second, and its client soon gives up.
IMPATIENT = (
    "from magnetar.cli import main; from magnetar.cli.messages import client as message_client\n"
    "message_client.OPERATION_TIMEOUT_S = 3\n"
    "message_client._REFUSALS_REPORTED = 3\n"
    "main.main(prog_name='magnetar')\n"
)


def test_who_publishes_hears_which_bookie_is_full_and_where(tmp_path: Path) -> None:
    settings = tmp_path / "standalone.conf"
    settings.write_text("diskUsageThreshold=0.000001\ndiskUsageWarnThreshold=0.0000005\n")  # full with any file on it
    with Standalone(tmp_path / "data", "--config", str(settings)) as standalone:
        command = [sys.executable, "-c", IMPATIENT, "produce", "t", "-m", "x", "--service-url", standalone.service_url]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S)
        assert said.returncode == 2
        first, last = said.stderr.splitlines()
        assert first.startswith("magnetar: still trying; the broker answers: ")
        for line in (first, last):
            assert "bookie-1 is read-only (disk: " in line
            assert str(tmp_path / "data" / "bookie-1") in line
            assert "% of the disk is used" in line
        assert "Is a broker running there?" not in last
