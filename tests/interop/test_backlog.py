"""Option `backlogOf` beside Apache's broker: what its subscriptions have not acknowledged, as it stores it."""

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.mixed_cluster import MixedCluster, cluster_with, http_json
from tests.support.processes import client_of
from tests.unit.connectors.spark.world import reader_of, rows_of

Cell = Callable[[str, str], None]

TOPIC = "persistent://public/default/backlog"
ADMIN = "/admin/v2/persistent/public/default/backlog"
COUNT = 400
ALONE = {number for number in range(COUNT) if number % 200 < 100}
"""Those that are no part of a batch."""
SENT_S = 2.0
"""Clients send acknowledgements together, some time later, and wait for no answer; brokers store them once a second."""

STORED_LATE_MAX = 10
"""Acknowledgements that Apache's broker may not have stored when a topic is unloaded: clients do not wait for that."""

EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    with cluster_with(tmp_path / "cluster", "apache", "ours", "apache") as made:
        yield made


def publish(client: pulsar.Client, first: int, count: int, *, batched: bool) -> None:
    producer = client.create_producer(TOPIC, batching_enabled=batched, batching_max_messages=7)
    for number in range(first, first + count):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    producer.close()


def receive(consumer: pulsar.Consumer, count: int) -> dict[int, pulsar.Message]:
    """By number, in order."""
    messages = (consumer.receive(30_000) for _ in range(count))
    return {int(message.data()): message for message in messages}


def drained(consumer: pulsar.Consumer) -> set[int]:
    """All that the broker gives."""
    found = set()
    with contextlib.suppress(pulsar.Timeout):
        while True:
            found.add(int(consumer.receive(3_000).data()))
    return found


def backlog(cluster: MixedCluster, subscription: str) -> list[int]:
    options = {"metadata.url": cluster.metadata_url, "topic": TOPIC, "backlogOf": subscription, "columns": "value"}
    return sorted(int(row["value"]) for row in rows_of(reader_of(options)))


@pytest.mark.parametrize("by_index", [False, True])
def test_the_backlog_of_subscriptions_of_apaches_broker(cluster: MixedCluster, cell: Cell, by_index: bool) -> None:
    cell(
        "our Spark source, backlog of subscriptions",
        f"Apache's broker{', acks of parts of batches' if by_index else ''}",
    )
    broker = cluster.add("broker", "apache", acknowledgmentAtBatchIndexLevelEnabled=str(by_index).lower())
    draw = random.Random(7)
    more = {"initial_position": EARLIEST, "batch_index_ack_enabled": by_index}
    with client_of(broker.service_url) as client:
        client.subscribe(TOPIC, "single", consumer_type=pulsar.ConsumerType.Shared, **more).close()
        client.subscribe(TOPIC, "cumulative", **more).close()
        for first in range(0, COUNT, 200):
            publish(client, first, 100, batched=False)
            publish(client, first + 100, 100, batched=True)
        assert backlog(cluster, "single") == list(range(COUNT)), "nothing was acknowledged yet"

        shared = client.subscribe(TOPIC, "single", consumer_type=pulsar.ConsumerType.Shared, **more)
        singles = receive(shared, COUNT)
        for number in draw.sample(range(COUNT), 250):
            shared.acknowledge(singles.pop(number))
        time.sleep(SENT_S)
        shared.close()

        exclusive = client.subscribe(TOPIC, "cumulative", **more)
        received = receive(exclusive, COUNT)
        exclusive.acknowledge_cumulative(received[249])
        time.sleep(SENT_S)
        exclusive.close()

        http_json(f"{broker.admin_url}{ADMIN}/unload", "PUT")  # what the broker knows is stored then
        found = {"single": backlog(cluster, "single"), "cumulative": backlog(cluster, "cumulative")}

        # The broker gives the same messages to who subscribes again; of batches of which its cursor stores a part as
        # acknowledged Apache's 4.0.8 gives all after it has loaded the topic anew.
        for name, kind in (("single", pulsar.ConsumerType.Shared), ("cumulative", pulsar.ConsumerType.Exclusive)):
            again = client.subscribe(TOPIC, name, consumer_type=kind, **more)
            given = drained(again)
            again.close()
            assert given >= set(found[name])
            assert given & ALONE == set(found[name]) & ALONE
            assert by_index or given == set(found[name])
    # What counts is what the broker has stored, which is the lines above; a few of the last acks may not be among it.
    kept = {"single": set(singles), "cumulative": set(range(250, COUNT))}
    for name, expected in kept.items():
        missing, more_than_expected = expected - set(found[name]), set(found[name]) - expected
        assert not missing, f"{name}: nothing that was not acknowledged may be left out"
        counted = more_than_expected if by_index else more_than_expected & ALONE
        assert len(counted) <= STORED_LATE_MAX, f"{name}: {len(counted)} that were acknowledged count as backlog"
