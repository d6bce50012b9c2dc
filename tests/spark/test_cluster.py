"""A cluster with ZooKeeper whose brokers are killed: their open ledgers are read without them."""

from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from magnetar.processes.cluster import Cluster
from tests.support.processes import bookies_of, client_of, other_broker, owner_of

pytestmark = [pytest.mark.spark, pytest.mark.process]


def test_the_open_ledger_of_a_killed_broker_is_read_to_its_last_message(
    spark: SparkSession, cluster: Cluster, namespace: str
) -> None:
    topic = f"persistent://{namespace}/orphan"
    with client_of(cluster.service_url) as client:
        producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
        for number in range(5_000):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        last: pulsar.MessageId = producer.send(b"last")
        owner = owner_of(cluster, topic)
        for broker in (other_broker(cluster, owner), owner):  # nobody takes the topic over
            cluster.kill(broker)

    def load(**options: str) -> list[bytes]:
        reader = spark.read.format("magnetar").option("metadata.url", cluster.metadata_url).option("topic", topic)
        return [bytes(row[0]) for row in reader.options(columns="value", **options).load().collect()]

    expected = [*(b"%d" % number for number in range(5_000)), b"last"]
    assert load() == expected
    assert load(minPartitions="4") == expected
    assert load(endingOffsets=f'{{"{topic}": {{"0": "{last.ledger_id()}:{last.entry_id()}"}}}}') == expected[:-1]
    # What reads leaves everything as it was: the next broker takes over.
    cluster.start(owner)
    with client_of(cluster.service_url) as client:
        producer = client.create_producer(topic)
        producer.send(b"after")
        assert load() == [*expected, b"after"]
        # A bookie that is gone: the others have copies of what it had, and take what is written now.
        gone = bookies_of(cluster, topic)[0]
        cluster.kill(gone)
        producer.send(b"after the bookie")
        assert load() == [*expected, b"after", b"after the bookie"]
        # One of the two bookies of the open ledger is gone, and nothing was written since: no LAC covers the last
        # message, and one of its two copies cannot be asked.
        cluster.start(gone)
        producer.send(b"last of all")
        cluster.kill(bookies_of(cluster, topic)[0])
        assert load() == [*expected, b"after", b"after the bookie", b"last of all"]


@pytest.mark.long("a stream is killed in test_exactly_once, a broker and a bookie above")
def test_a_stream_has_each_message_once_while_brokers_and_bookies_are_killed(
    spark: SparkSession, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    topic = f"persistent://{namespace}/streamed"
    folder = str(tmp_path / "rows")
    with client_of(cluster.service_url) as client:
        producer = client.create_producer(topic, send_timeout_millis=0)
        producer.send(b"0")
        stream = spark.readStream.format("magnetar").option("metadata.url", cluster.metadata_url)
        stream = stream.option("topic", topic).option("startingOffsets", "earliest")

        def query(**trigger: Any) -> StreamingQuery:
            writer = stream.load().select("value").writeStream.format("parquet").trigger(**trigger)
            return writer.option("checkpointLocation", str(tmp_path / "state")).start(folder)

        running = query(processingTime="0 seconds")
        sent = 1
        for victim in ("broker", "bookie", "broker"):
            name = owner_of(cluster, topic) if victim == "broker" else bookies_of(cluster, topic)[0]
            for _ in range(20):
                producer.send(b"%d" % sent)
                sent += 1
            cluster.kill(name)
            for _ in range(20):
                producer.send(b"%d" % sent)
                sent += 1
            cluster.start(name)
        running.processAllAvailable()
        running.stop()
        assert query(availableNow=True).awaitTermination(240)
    found = sorted(int(row[0]) for row in spark.read.parquet(folder).collect())
    # A message whose receipt the killed broker did not send is sent again by the client: at most one a kill.
    assert sorted(set(found)) == list(range(sent))
    assert len(found) <= sent + 2
    batch = spark.read.format("magnetar").option("metadata.url", cluster.metadata_url).option("topic", topic)
    assert sorted(int(row[0]) for row in batch.load().select("value").collect()) == found
