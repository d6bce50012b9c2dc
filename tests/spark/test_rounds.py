"""A few rounds of `make soak`'s with Spark: driver, executor, broker and bookie are killed, each once."""

from pathlib import Path

import pytest

from magnetar.processes.cluster import Cluster
from tests.soak.spark import VICTIMS, rounds, victims
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.process]


@pytest.mark.long("a driver, an executor, a broker and a bookie are killed one after the other")
def test_files_and_another_topic_hold_each_message_once_whoever_is_killed(
    cluster: Cluster, namespace: str, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    said: list[str] = []
    rounds(tmp_path, cluster, spark_cluster, namespace=namespace, count=len(VICTIMS), seed="1", remark=said.append)
    assert said[-1] == "320 messages, each once in the files and in the other topic"


def test_each_round_kills_another_kind() -> None:
    assert [sorted(victims("7", 8)[first : first + 4]) for first in (0, 4)] == 2 * [sorted(VICTIMS)]
