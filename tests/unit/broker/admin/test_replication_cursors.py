"""Cursors by which an Apache broker replicated a topic to other clusters: nobody moves them here, and that is shown."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from broker.admin.numbers.metrics import broker_samples
from magnetar_core.runtime.observe import Sample
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.position import EARLIEST
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.test_official_client import client

PATH = "/admin/v2/persistent/public/default/orders"
PARTS = [TopicName.parse(f"persistent://public/default/orders-partition-{number}") for number in range(2)]


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


def waiting(side: Side) -> dict[tuple[str, str], float]:
    """(metric, cluster) → what waits, in all topics."""
    sums: dict[tuple[str, str], float] = {}
    for sample in broker_samples(side.broker, []):
        if isinstance(sample, Sample) and (cluster := dict(sample.labels).get("remote_cluster")):
            sums[sample.name, cluster] = sums.get((sample.name, cluster), 0) + sample.value
    return sums


async def test_entries_and_bytes_that_wait_for_a_cluster_are_shown(world: AdminWorld) -> None:
    side = await world.side()
    assert (await world.call(side, "PUT", f"{PATH}/partitions", 2)).status == 204

    def publish() -> None:
        with client(side.url) as c:
            for topic in PARTS:
                producer = c.create_producer(topic.full, batching_enabled=False)
                for _ in range(3):
                    producer.send(bytes(100))

    await world.run(publish)
    assert waiting(side) == {}
    for topic, clusters in zip(PARTS, (("there", "far.away"), ("there",)), strict=True):
        for cluster in clusters:
            await side.broker.topics[topic].ledger.open_cursor(f"pulsar.repl.{cluster}", EARLIEST)
    parts = [(await world.call(side, "GET", f"{PATH}-partition-{number}/stats")).json for number in range(2)]
    assert [part["replication"].keys() for part in parts] == [{"there", "far.away"}, {"there"}]
    there = parts[0]["replication"]["there"]
    assert (there["replicationBacklog"], there["connected"], there["msgRateOut"]) == (3, False, 0.0)
    assert there["backlogSize"] == parts[0]["storageSize"] > 300
    assert parts[0]["subscriptions"] == {}, "it is not a subscription"
    whole = (await world.call(side, "GET", f"{PATH}/partitioned-stats")).json["replication"]
    assert {cluster: stats["replicationBacklog"] for cluster, stats in whole.items()} == {"there": 6, "far.away": 3}
    assert whole["there"]["backlogSize"] == sum(part["storageSize"] for part in parts)
    assert waiting(side) == {
        ("pulsar_replication_backlog", "there"): 6,
        ("pulsar_replication_backlog", "far.away"): 3,
        ("magnetar_replication_backlog_size", "there"): whole["there"]["backlogSize"],
        ("magnetar_replication_backlog_size", "far.away"): whole["far.away"]["backlogSize"],
    }
    cursor = side.broker.topics[PARTS[1]].ledger.cursors["pulsar.repl.there"]
    cursor.mark_delete(side.broker.topics[PARTS[1]].ledger.ledgers.last_confirmed)
    await eventually(lambda: waiting(side)["pulsar_replication_backlog", "there"] == 3)
