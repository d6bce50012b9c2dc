"""Programs in Go: built as their modules say, for tests that run them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def build_go(source: Path, made: Path) -> Path:
    """The program of the folder *source*, made as the file *made*. Skips the test where Go is not installed."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    build = subprocess.run(
        ["go", "build", "-o", str(made), "."], cwd=source, env={**os.environ, "GOFLAGS": "-mod=readonly"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert build.returncode == 0, build.stdout
    return made
