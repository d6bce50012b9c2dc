"""The topic API for programs in other languages: a client in Go, generated from topics.proto."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import Standalone

HERE = Path(__file__).parent


def test_a_program_in_go(cell: Callable[[str, str], None], tmp_path: Path) -> None:
    cell("a Go program made from topics.proto", "our topic API")
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    build = subprocess.run(
        ["go", "build", "-o", str(tmp_path / "topics"), "."], cwd=HERE / "go_topics",
        env={**os.environ, "GOFLAGS": "-mod=readonly"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert build.returncode == 0, build.stdout
    with Standalone(tmp_path / "data") as server:
        done = subprocess.run(
            [str(tmp_path / "topics"), server.grpc_address], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("END")
    assert done.stdout.count("HELD ") == 9
