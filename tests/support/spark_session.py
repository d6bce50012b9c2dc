"""The Spark session of tests: two cores, loopback only, no screen of its own."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

HOME: Final = Path(pyspark.__file__).parent

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java that starts quickly: no test is long enough for the second compiler, which takes half of all processor time."""

QUICK_MEMORY: Final = "512m"
"""The heap. Java takes what it is given before it cleans up, and Spark does not start with less than 450m."""


def unpacked_home(folder: Path) -> Path:
    """Spark's own folder, as links in *folder*, but with its Python modules as files: each Python process that Spark
    starts would compile those of the archives anew, which takes it as long as all the rest of its start."""
    if folder.exists():
        return folder
    libraries = folder / "python" / "lib"
    libraries.mkdir(parents=True)
    for one in HOME.iterdir():
        if one.name != "python":
            (folder / one.name).symlink_to(one)
    for archive in (HOME / "python" / "lib").glob("*.zip"):
        name = archive.stem.partition("-")[0]
        (libraries / archive.name).mkdir()
        (libraries / archive.name / name).symlink_to(HOME.parent / name)
    return folder


@contextlib.contextmanager
def spark_session(
    name: str, *, validated: bool = True, scratch: Path | None = None, quick: bool = False
) -> Iterator[SparkSession]:
    """Not *validated*: Spark does not compare each Arrow batch with the schema, as by default. *scratch*: where its
    temporary files are, for a session whose process may be killed; without it a folder that goes with the session.
    *quick*: starts quickly and is slow later, as tests want it."""
    folder = Path(scratch or tempfile.mkdtemp(prefix="magnetar-spark-"))
    folder.mkdir(exist_ok=True)
    # Tests run in a virtual environment that need not be activated; workers are to find what the tests find.
    environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    java = f"-Djava.io.tmpdir={folder}"
    if quick:
        environment |= {"SPARK_HOME": str(unpacked_home(folder / "home")), "SPARK_LAUNCHER_OPTS": QUICK_JAVA}
        java += f" {QUICK_JAVA}"
    with contextlib.ExitStack() as ended:
        if scratch is None:
            ended.callback(shutil.rmtree, folder, ignore_errors=True)
        ended.enter_context(_environment(environment))
        ended.callback(_end_java)
        session = (
            SparkSession.builder.master("local[2]")
            .appName(name)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", QUICK_MEMORY if quick else "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(folder / "tables"))
            .config("spark.local.dir", str(folder))
            .config("spark.driver.extraJavaOptions", java)
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", str(validated).lower())
            .getOrCreate()
        )
        ended.callback(session.stop)
        session.sparkContext.setLogLevel("OFF")
        yield session


@contextlib.contextmanager
def _environment(names: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _end_java() -> None:
    """Spark keeps it for the next session of the process."""
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # it ends then
        gateway.proc.wait(60)
