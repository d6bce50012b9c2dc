"""A driver in a folder that has a package of the same name as one of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.process]

ROOT = Path(__file__).parents[2]

IN_A_SESSION = """
from tests.support.spark_session import spark_session

with spark_session("hidden", quick=True) as spark:
    try:
        spark.read.format("magnetar").option("topic", "t").load()
    except Exception as error:
        print("said:", error)
"""

AS_SPARK_FINDS_IT = """
from importlib import import_module
from pkgutil import iter_modules

from pyspark.sql.datasource import DataSource

(found,) = [import_module(one.name) for one in iter_modules() if one.name.startswith("pyspark_")]
assert issubclass(found.DefaultSource, DataSource)
assert found.DefaultSource.name() == "magnetar"
try:
    found.DefaultSource({"topic": "t"})
except Exception as error:
    print("said:", error)
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(AS_SPARK_FINDS_IT, id="as_spark_finds_it"),
        pytest.param(IN_A_SESSION, id="in_a_session", marks=pytest.mark.long("starts a JVM in the folder")),
    ],
)
def test_the_driver_names_the_folder_that_hides_a_package(tmp_path: Path, program: str) -> None:
    (tmp_path / "connectors").mkdir()
    (tmp_path / "connectors" / "__init__.py").touch()
    (tmp_path / "program.py").write_text(program)
    found = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert f"{tmp_path / 'connectors'} hides Magnetar's own package connectors" in found.stdout, found.stderr
