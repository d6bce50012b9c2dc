"""The Spark session of tests: two cores, loopback only, no screen of its own."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession


@contextlib.contextmanager
def spark_session(name: str, *, validated: bool = True, scratch: Path | None = None) -> Iterator[SparkSession]:
    """Not *validated*: Spark does not compare each Arrow batch with the schema, as by default. *scratch*: where its
    temporary files are, for a session whose process may be killed; without it a folder that goes with the session."""
    # Tests run in a virtual environment that need not be activated; workers are to find what the tests find.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folder = Path(scratch or tempfile.mkdtemp(prefix="magnetar-spark-"))
    folder.mkdir(exist_ok=True)
    session = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "tables"))
        .config("spark.local.dir", str(folder))
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={folder}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", str(validated).lower())
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
        if scratch is None:
            shutil.rmtree(folder, ignore_errors=True)
