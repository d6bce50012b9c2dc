"""What docs/lakehouse.md asks for: its PySpark and PyIceberg, and the jars of Delta Lake.

    .cache/lakehouse/packages-…    what pip installs of requirements/lakehouse.txt
    .cache/lakehouse/.ivy2.5.2     what Spark gets from Maven for the `lake.py` of the page

They are got once, which takes a minute and 600 MB, and come before what this environment has.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.pages import blocks_of
from tests.support.pypi import ROOT, Missing, alone, before_ours, packages

PAGE: Final = ROOT / "docs" / "lakehouse.md"
HOME: Final = ROOT / ".cache" / "lakehouse"
PROGRAMS: Final = ("lake.py", "to_delta.py", "to_iceberg.py")
"""Of the page: a topic into both tables."""

_JARS: Final = re.compile(r'"spark\.jars\.packages", "([^"]+)"')


def program(name: str) -> str:
    """The text that the page saves in the file of this name."""
    (text,) = (block.text for block in blocks_of(PAGE.read_text()) if block.file == name)
    return text


def jars() -> str:
    """What `lake.py` lets Spark get, as `spark.jars.packages` takes it."""
    (named,) = _JARS.findall(program("lake.py"))
    return str(named)


def needed() -> dict[str, str]:
    """`environment` for a test, which is skipped by name where nothing can be got."""
    try:
        return environment()
    except Missing as error:
        pytest.skip(f"no tables of a lake: {error}")


def environment() -> dict[str, str]:
    """For processes in which the programs of the page run. Gets what is missing. Raises Missing."""
    folder = packages("lakehouse")
    variables = {
        **before_ours(folder),
        # Not the folder of this user: what Maven has got there in part, Spark takes for whole.
        "SPARK_SUBMIT_OPTS": f"-Duser.home={HOME}",
    }
    with alone(HOME):
        named = HOME / "jars"
        if not named.exists() or named.read_text() != jars():
            _fetch_jars(folder, variables)
            named.write_text(jars())
    return variables


def _fetch_jars(folder: Path, environment: dict[str, str]) -> None:
    """A program that does nothing, with the jars of the page. Raises Missing."""
    nothing = HOME / "nothing.py"
    nothing.touch()
    done = subprocess.run(
        [str(folder / "pyspark" / "bin" / "spark-submit"), "--packages", jars(), str(nothing)],
        env={**os.environ, **environment, "PYSPARK_PYTHON": sys.executable}, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise Missing(f"Spark could not get {jars()} from Maven:\n{done.stdout[-2000:]}")
