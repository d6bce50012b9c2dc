"""One Spark session and one standalone for all tests here; both are slow to start."""

from collections.abc import Callable, Iterator

import pulsar
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.processes import Standalone, client_of
from tests.support.spark_session import spark_session

Load = Callable[..., DataFrame]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("magnetar tests") as session:
        yield session


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

    def load(topic: str, source: str = "magnetar", **options: str) -> DataFrame:
        reader = spark.read.format(source).option("metadata.url", f"rocksdb:{standalone.data / 'metadata'}")
        return reader.option("topic", topic).options(**options).load()

    return load
