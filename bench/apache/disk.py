"""The upper bound that the disk sets: writes one after the other, each synced before the next."""

import os
import shutil
import time
from pathlib import Path
from typing import Final

from bench.apache.table import Table

KIB: Final = 1024
SIZES: Final = (4 * KIB, 64 * KIB, 512 * KIB, 4096 * KIB)
"""512 KiB is what both journals gather at most before they sync."""


def synced_writes(path: Path, size: int, seconds: float) -> float:
    """Writes of *size* bytes a second."""
    data, count = os.urandom(size), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        began = time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            os.write(descriptor, data)
            os.fdatasync(descriptor)
            count += 1
        return count / (now - began)
    finally:
        os.close(descriptor)
        path.unlink()


def run(directory: Path, rounds: int, seconds: float, table: Table) -> list[str]:
    directory.mkdir(parents=True)
    os.sync()
    # This figure is the machine's, not one of the two systems': it is shown in our column.
    for _ in range(rounds):
        for size in SIZES:
            rate = synced_writes(directory / "file", size, min(seconds, 3.0))
            what = f"disk, {size // KIB:,} KiB writes, each with fdatasync"
            table.add(what, "writes/s", "ours", rate)
            table.add(what, "MB/s", "ours", rate * size / 1e6)
    shutil.rmtree(directory)
    return ["the machine itself, no server: what it could do at best (in the column of ours)"]
