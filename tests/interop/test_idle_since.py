"""Since when a subscription has no consumers goes on at the other broker (Apache's from 5.0 on)."""

from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from managed_ledger.records.pulsar_records import decode_cursor_info
from tests.support.mixed_cluster import LINE, MixedCluster, Server, cluster_with, zookeeper_of
from tests.support.processes import client_of

TOPIC = "persistent://public/default/idle"


def idle_since_ms(cluster: MixedCluster) -> int:
    """As it is stored; 0: a consumer was attached."""
    with zookeeper_of(cluster) as zookeeper:
        value, _ = zookeeper.get("/managed-ledgers/public/default/persistent/idle/s")
    return decode_cursor_info(value, "s").idleSince


def publish(broker: Server) -> None:
    """The topic is opened, and its subscription has something new."""
    with client_of(broker.service_url) as client:
        client.create_producer(TOPIC).send(b"new")


def consume(broker: Server) -> None:
    with client_of(broker.service_url) as client:
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        consumer.acknowledge_cumulative(consumer.receive(20_000))
        consumer.close()


@pytest.mark.skipif(not LINE.startswith("5."), reason="brokers of Apache's before 5.0 do not keep it")
def test_since_when_nobody_consumes(tmp_path: Path, cell: Callable[[str, str], None]) -> None:
    cell("since when a subscription has no consumers: Apache's broker, ours, Apache's, ours", "both brands of bookies")
    with cluster_with(tmp_path / "cluster", "ours", "apache", "ours") as cluster:
        apache = cluster.add("broker", "apache")
        publish(apache)
        consume(apache)
        apache.stop()
        left_at_ms = idle_since_ms(cluster)
        assert left_at_ms > 0

        ours = cluster.add("broker", "ours")
        publish(ours)
        ours.stop()
        assert idle_since_ms(cluster) == left_at_ms

        apache.start()
        publish(apache)
        apache.stop()
        assert idle_since_ms(cluster) == left_at_ms

        ours.start()
        consume(ours)
        ours.stop()
        left_again_at_ms = idle_since_ms(cluster)
        assert left_again_at_ms > left_at_ms

        apache.start()
        publish(apache)
        apache.stop()
        assert idle_since_ms(cluster) == left_again_at_ms
