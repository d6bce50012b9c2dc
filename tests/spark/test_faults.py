"""A cluster whose bookies stand still or are gone, and whose ZooKeeper restarts, under queries of a real session."""

import signal
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster
from tests.spark.test_standalone import numbers, send_all
from tests.support.processes import client_of

pytestmark = [pytest.mark.spark, pytest.mark.process]


def test_queries_go_on_beside_faults_or_end_with_an_error_that_names_what_and_where(
    spark: SparkSession, cluster: Cluster, namespace: str
) -> None:
    topic = f"persistent://{namespace}/faults"
    with client_of(cluster.service_url) as client:
        send_all(
            client, topic, numbers(0, 3_000), batching_enabled=True, block_if_queue_full=True, batching_max_messages=50
        )
    AdminClient(cluster.admin_urls).call("PUT", f"/admin/v2/{AdminClient.path_of(topic)}/unload")  # closes its ledger

    def frame(**options: str) -> DataFrame:
        source = spark.read.format("magnetar").option("metadata.url", cluster.metadata_url)
        return source.option("topic", topic).options(columns="value", **options).load()

    def rows(of: DataFrame) -> list[Any]:
        return sorted((bytes(row[0]) for row in of.collect()), key=int)

    expected = numbers(0, 3_000)
    assert rows(frame()) == expected

    # One bookie after the other stands still: the others have what it has, and are asked two seconds later.
    for bookie in cluster.members("bookie"):
        cluster.kill(bookie.name, signal.SIGSTOP)
        try:
            assert rows(frame(**{"bookkeeper.readTimeoutMs": "120000"})) == expected
        finally:
            cluster.kill(bookie.name, signal.SIGCONT)

    # ZooKeeper is away between two queries of workers that live on; then a ledger's record is read again.
    planned = frame()
    assert planned.count() == 3_000
    cluster.kill("zookeeper")
    cluster.start("zookeeper")
    assert rows(planned) == expected
    assert rows(frame()) == expected

    # All bookies are gone: the error names the entry and the bookies that should have it.
    planned = frame(**{"bookkeeper.readTimeoutMs": "2000"})
    assert planned.count() == 3_000
    for bookie in cluster.members("bookie"):
        cluster.kill(bookie.name)
    with pytest.raises(PythonException) as raised:
        planned.collect()
    (reason,) = {line.strip() for line in str(raised.value).splitlines() if "EntryUnreadable: " in line}
    assert f"{topic}: entry " in reason
    asked = reason.partition("asked for at ")[2].partition(": ")[0].split(", ")
    ports = {str(bookie.port) for bookie in cluster.members("bookie")}
    assert len(asked) == 2, "each entry has two copies here"
    assert {one.rpartition(":")[2] for one in asked} <= ports

    # They are back, and so is the query, without a new plan.
    for bookie in cluster.members("bookie"):
        cluster.start(bookie.name)
    assert rows(planned) == expected
