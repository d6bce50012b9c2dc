"""A broker of Apache's keeps its index of delayed messages in ledgers; ours serves the subscription, and ends it."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pulsar

from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import ledger_path
from managed_ledger.records.pulsar_records import decode_cursor_info
from tests.support.mixed_cluster import MixedCluster, cluster_with, http_json, zookeeper_of
from tests.support.processes import client_of, until

TOPIC = "persistent://public/default/delayed"
PATH = TOPIC.replace("://", "/")
SOON, LATE = timedelta(seconds=25), timedelta(hours=1)
BUCKETS: dict[str, Any] = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": 5,
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": 1,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 10,
    # A bucket ends where a ledger of the topic does.
    "managedLedgerMaxEntriesPerLedger": 10,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}


def buckets(cluster: MixedCluster) -> set[int]:
    """The ledgers that the properties of the cursor name."""
    with zookeeper_of(cluster) as zookeeper:
        value, _ = zookeeper.get("/managed-ledgers/public/default/persistent/delayed/s")
    properties = decode_cursor_info(value, "s").cursorProperties
    return {int(item.value) for item in properties if item.name.startswith("#pulsar.internal.delayed.bucket")}


def stored(cluster: MixedCluster, ledger_ids: set[int]) -> set[int]:
    """Those of *ledger_ids* that have a record."""
    with zookeeper_of(cluster) as zookeeper:
        return {ledger_id for ledger_id in ledger_ids if zookeeper.exists(ledger_path("/ledgers", ledger_id))}


def subscribe(client: pulsar.Client) -> pulsar.Consumer:
    return client.subscribe(
        TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
    )


def received(consumer: pulsar.Consumer, quiet_ms: int) -> Counter[str]:
    """What comes until nothing has come for so long; each is acknowledged."""
    values = Counter[str]()
    while True:
        try:
            message = consumer.receive(quiet_ms)
        except pulsar.Timeout:
            return values
        values[message.data().decode()] += 1
        consumer.acknowledge(message)


def test_buckets_of_delayed_messages(tmp_path: Path, cell: Callable[[str, str], None]) -> None:
    """Each message comes once, at its time, whoever has the topic; the buckets go with the subscription."""
    cell("delayed messages in buckets: Apache's broker, ours, Apache's, ours", "both brands of bookies")
    with cluster_with(tmp_path / "cluster", "ours", "apache", "ours") as cluster:
        apache = cluster.add("broker", "apache", **BUCKETS)
        with client_of(apache.service_url) as client:
            consumer = subscribe(client)
            producer = client.create_producer(TOPIC, batching_enabled=False)
            begun_s = monotonic()
            for number in range(40):
                producer.send(b"soon %d" % number, deliver_after=SOON)
                producer.send(b"late %d" % number, deliver_after=LATE)
            until(lambda: len(buckets(cluster)) >= 2, "the index is stored", 20.0)
            consumer.close()
        kept = buckets(cluster)
        assert stored(cluster, kept) == kept
        apache.kill()

        ours = cluster.add("broker", "ours")
        with client_of(ours.service_url) as client:
            consumer = subscribe(client)
            assert received(consumer, 1_000) == {} or monotonic() - begun_s > SOON.total_seconds()
            until(lambda: monotonic() - begun_s > SOON.total_seconds(), "the first half is due", 30.0)
            assert received(consumer, 4_000) == {f"soon {number}": 1 for number in range(40)}
            consumer.close()
        assert buckets(cluster) >= kept
        ours.stop()

        apache.start()
        with client_of(apache.service_url) as client:
            consumer = subscribe(client)
            assert received(consumer, 5_000) == {}
            stats = http_json(f"{apache.admin_url}/admin/v2/{PATH}/stats")["subscriptions"]["s"]
            assert stats["msgBacklog"] == 40, stats
            consumer.close()
        kept = buckets(cluster)
        apache.stop()

        ours.start()
        with client_of(ours.service_url) as client:
            consumer = subscribe(client)
            assert stored(cluster, kept) == kept
            consumer.unsubscribe()
        assert stored(cluster, kept) == set()
