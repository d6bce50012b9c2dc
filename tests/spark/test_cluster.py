"""A cluster with ZooKeeper whose broker is killed: its open ledger is read without it."""

from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from magnetar.inspect.broker_admin import AdminClient
from tests.support.processes import bookies_of, client_of, cluster_of

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.xdist_group("spark")]


def test_the_open_ledger_of_a_killed_broker_is_read_to_its_last_message(spark: SparkSession, tmp_path: Path) -> None:
    with cluster_of(tmp_path / "cluster", bookies=3, brokers=1) as cluster:
        with client_of(cluster.service_url) as client:
            producer = client.create_producer("orphan", batching_enabled=True, block_if_queue_full=True)
            for number in range(5_000):
                producer.send_async(b"%d" % number, None)
            producer.flush()
            last: pulsar.MessageId = producer.send(b"last")
            cluster.kill("broker-1")

        def load(**options: str) -> list[bytes]:
            reader = (
                spark.read.format("magnetar").option("metadata.url", cluster.metadata_url).option("topic", "orphan")
            )
            return [bytes(row[0]) for row in reader.options(columns="value", **options).load().collect()]

        expected = [*(b"%d" % number for number in range(5_000)), b"last"]
        assert load() == expected
        assert load(minPartitions="4") == expected
        assert load(endingOffsets=f'{{"orphan": {{"0": "{last.ledger_id()}:{last.entry_id()}"}}}}') == expected[:-1]
        # What reads leaves everything as it was: the next broker takes over.
        cluster.start("broker-1")
        with client_of(cluster.service_url) as client:
            producer = client.create_producer("orphan")
            producer.send(b"after")
            assert load() == [*expected, b"after"]
            # A bookie that is gone: the others have copies of what it had, and take what is written now.
            cluster.kill("bookie-1")
            producer.send(b"after the bookie")
            assert load() == [*expected, b"after", b"after the bookie"]
            # One of the two bookies of the open ledger is gone, and nothing was written since: no LAC covers the last
            # message, and one of its two copies cannot be asked.
            cluster.start("bookie-1")
            producer.send(b"last of all")
            cluster.kill(bookies_of(cluster, "orphan")[0])
            assert load() == [*expected, b"after", b"after the bookie", b"last of all"]


def test_a_stream_has_each_message_once_while_brokers_and_bookies_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = str(tmp_path / "rows")
    with cluster_of(tmp_path / "cluster", bookies=4, brokers=2) as cluster:
        with client_of(cluster.service_url) as client:
            producer = client.create_producer("streamed", send_timeout_millis=0)
            producer.send(b"0")
            stream = spark.readStream.format("magnetar").option("metadata.url", cluster.metadata_url)
            stream = stream.option("topic", "streamed").option("startingOffsets", "earliest")

            def query(**trigger: Any) -> StreamingQuery:
                writer = stream.load().select("value").writeStream.format("parquet").trigger(**trigger)
                return writer.option("checkpointLocation", str(tmp_path / "state")).start(folder)

            running = query(processingTime="0 seconds")
            sent = 1
            for victim in ("broker", "bookie", "broker"):
                names = [one.name for one in cluster.members(victim)]
                if victim == "broker":
                    port = int(AdminClient(cluster.admin_urls).owner_url("streamed").rpartition(":")[2])
                    name = next(one.name for one in cluster.members("broker") if one.port == port)
                else:
                    name = names[sent % len(names)]
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
            query(availableNow=True).awaitTermination()
        found = sorted(int(row[0]) for row in spark.read.parquet(folder).collect())
        # A message whose receipt the killed broker did not send is sent again by the client: at most one a kill.
        assert sorted(set(found)) == list(range(sent))
        assert len(found) <= sent + 2
        batch = spark.read.format("magnetar").option("metadata.url", cluster.metadata_url).option("topic", "streamed")
        assert sorted(int(row[0]) for row in batch.load().select("value").collect()) == found
