"""One Spark session and one standalone for all tests here; both are slow to start."""

import os
import sys
from collections.abc import Callable, Iterator

import pulsar
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.processes import Standalone, client_of

Load = Callable[..., DataFrame]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Tests run in a virtual environment that need not be activated; workers are to find what the tests find.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("magnetar tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("spark") / "data") as started:
        yield started


@pytest.fixture(scope="session")
def client(standalone: Standalone) -> Iterator[pulsar.Client]:
    with client_of(standalone.service_url) as made:
        yield made


@pytest.fixture
def load(spark: SparkSession, standalone: Standalone) -> Load:
    """`load(topic, option=value, …)` from the standalone, beside the process that owns its metadata."""

    def load(topic: str, **options: str) -> DataFrame:
        reader = spark.read.format("magnetar").option("metadata.url", f"rocksdb:{standalone.data / 'metadata'}")
        return reader.option("topic", topic).options(**options).load()

    return load
