"""One Spark session, one standalone, one cluster and one of Spark's own clusters for all tests here: each is slow to
start. Made when first asked for; they end with the last of these tests."""

from collections.abc import Callable, Iterator

import pulsar
import pytest
from pyspark.sql import DataFrame, SparkSession

from magnetar.processes.cluster import Cluster
from magnetar.testing.servers import new_namespace
from tests.support.processes import Standalone, client_of, cluster_of
from tests.support.shared_cluster import BROKER_SETTINGS, heal
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_session import spark_session

Load = Callable[..., DataFrame]


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    with spark_session("magnetar tests", quick=True) as session:
        yield session


@pytest.fixture(scope="package")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("spark") / "data") as started:
        yield started


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Without auto-recovery: which bookies have an entry stays as it is, also while they are away for long.
    with cluster_of(
        tmp_path_factory.mktemp("cluster"), bookies=3, brokers=2, auto_recovery=False, broker_settings=BROKER_SETTINGS
    ) as made:
        yield made


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    """Three bookies, two brokers and ZooKeeper, all of them well. A test may kill them; it works in `namespace`."""
    return heal(_cluster)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """Of this test alone; tenant/namespace."""
    return new_namespace(cluster.admin_urls, request.node.name)


@pytest.fixture(scope="package")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Two workers, on which nothing runs."""
    with SparkCluster(tmp_path_factory.mktemp("spark-cluster")) as started:
        yield started
