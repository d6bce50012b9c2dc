"""What who may only produce can do to Spark's tasks (`tests.abuse.spark_reader`)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.abuse.driving import COUNT, SEED
from tests.abuse.kinds import Run

pytestmark = [pytest.mark.process]

# The libraries are 250 MB; the rest is what one entry may stand for, and its rows as columns (docs/limits.md).
MEMORY_MAX_MB: Final = 1_200


def test_small_entries_take_little(tmp_path: Path, numbers: Run) -> None:
    count, path = max(COUNT // 3, 1), tmp_path / "read"
    command = [sys.executable, "-m", "tests.abuse.spark_reader", SEED, str(count), str(path)]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert found.returncode == 0, (
        f"input {told[-1]['input']} of seed {SEED}: {found.returncode} {found.stderr[-3_000:]}"
    )
    memory_mb = told[-1]["memory_mb_max"]
    most = next(one for one in told if one.get("memory_mb_max") == memory_mb)
    assert memory_mb < MEMORY_MAX_MB, f"input {most['input']} of seed {SEED}: {memory_mb} MB"
    numbers.add("Spark", count)
