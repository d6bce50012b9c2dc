"""A driver in a folder that has a package of the same name as one of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.xdist_group("spark")]

PROGRAM = """
from tests.support.spark_session import spark_session

with spark_session("hidden") as spark:
    try:
        spark.read.format("magnetar").option("topic", "t").load()
    except Exception as error:
        print("said:", error)
"""
ROOT = Path(__file__).parents[2]


def test_the_driver_names_the_folder_that_hides_a_package(tmp_path: Path) -> None:
    (tmp_path / "connectors").mkdir()
    (tmp_path / "connectors" / "__init__.py").touch()
    (tmp_path / "program.py").write_text(PROGRAM)
    found = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert f"{tmp_path / 'connectors'} hides Magnetar's own package connectors" in found.stdout, found.stderr
