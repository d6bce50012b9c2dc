"""Drawn programs of the official Python client at Apache's broker and at ours, for half a minute; see `make differ`."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke


def test_drawn_programs_meet_the_same(cell: Callable[[str, str], None]) -> None:
    """In a process of its own: each program is run in a fork."""
    cell("the official Python client, drawn programs, as with Apache or listed", "our broker")
    found = subprocess.run(
        [sys.executable, "-m", "tests.differ", "22", "52", "--kept", "--minutes", "0.5"],
        cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=800,
    )  # fmt: skip
    assert found.returncode == 0, f"{found.stdout[-8000:]}\n{found.stderr[-2000:]}"
    assert " programs a minute: " in found.stdout
