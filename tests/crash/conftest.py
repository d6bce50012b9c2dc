"""Marks the tests of this folder, and prints the seed that they draw from, so that a run can be repeated."""

import datetime
import os
from collections.abc import Sequence

import pytest

SETTINGS = {
    "MAGNETAR_CRASH_IMAGES": "800",
    "MAGNETAR_INDEX_IMAGES": "24",
    "MAGNETAR_KILL_ROUNDS": "4",
    "MAGNETAR_FAULT_RUNS": "90",
    "MAGNETAR_FUZZ_FRAMES": "600",
}


def pytest_configure() -> None:
    """The day's seed, once for all workers."""
    os.environ.setdefault(
        "MAGNETAR_CRASH_SEED", str(datetime.datetime.now(datetime.UTC).date().toordinal() * 1_000_000)
    )
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """The hook sees the items of every folder."""
    for item in items:
        if item.nodeid.startswith("tests/crash/"):
            item.add_marker("crash")


def pytest_report_header() -> str:
    return " ".join(f"{name}={os.environ[name]}" for name in ("MAGNETAR_CRASH_SEED", *SETTINGS))
