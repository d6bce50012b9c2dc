"""Says which seeds are drawn, so that a run can be had again."""

import datetime
import os

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


def pytest_report_header() -> str:
    return " ".join(f"{name}={os.environ[name]}" for name in ("MAGNETAR_CRASH_SEED", *SETTINGS))
