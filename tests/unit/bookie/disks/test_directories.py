"""Directories in which every user of the machine may read."""

import logging

import pytest

from bookie.disks.directories import Directories
from magnetar.testing.simulated.disk import MemoryFiles


class OpenFiles(MemoryFiles):
    """Everybody comes to what is below `/open`."""

    def lets_others_in(self, directory: str) -> bool:
        return directory.startswith("/open/") and directory.endswith("/current")


def test_a_directory_in_which_everybody_may_read_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    found = Directories(OpenFiles(), ["/open/journal", "/closed/journal"], ["/open/ledgers"], 0)
    with caplog.at_level(logging.WARNING):
        found.open()
    assert found.open_to_others() == ["/open/journal", "/open/ledgers"]
    assert "/open/journal, /open/ledgers; chmod 750" in caplog.text
    assert "/closed" not in caplog.text
    found.close()
