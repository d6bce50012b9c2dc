"""Topics as streams, in a real session: file sinks, limits, restarts, subscriptions."""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

import magnetar.spark
from magnetar.inspect.broker_admin import AdminClient
from tests.spark.test_standalone import numbers, send_all
from tests.support.processes import PATIENCE_S, Standalone, until

pytestmark = [pytest.mark.spark, pytest.mark.process]

Follow = Callable[..., DataFrame]


@pytest.fixture
def follow(spark: SparkSession, standalone: Standalone) -> Follow:
    """`follow(topic, option=value, …)`: a stream of the standalone's topics."""

    def follow(topic: str, **options: str) -> DataFrame:
        reader: DataStreamReader = spark.readStream.format("magnetar")
        reader = reader.option("metadata.url", f"rocksdb:{standalone.data / 'metadata'}").option("topic", topic)
        return reader.options(**{"startingOffsets": "earliest", **options}).load()

    return follow


def unload(admin: AdminClient, topic: str) -> None:
    admin.call("PUT", f"/admin/v2/{AdminClient.path_of(topic)}/unload")


def to_files(stream: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    """Start writing values into *folder*, with the checkpoint beside them."""
    writer = stream.select("value").writeStream.format("parquet").option("checkpointLocation", str(folder / "state"))
    return writer.trigger(**trigger or {"availableNow": True}).start(str(folder / "rows"))


def written(spark: SparkSession, folder: Path) -> list[bytes]:
    return sorted((bytes(row[0]) for row in spark.read.parquet(str(folder / "rows")).collect()), key=int)


def run(stream: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    query = to_files(stream, folder, **trigger)
    assert query.awaitTermination(240)
    return query


def test_every_message_is_in_the_files_once_over_restarts_and_short_ledgers(
    spark: SparkSession, client: pulsar.Client, standalone: Standalone, follow: Follow, tmp_path: Path
) -> None:
    admin = AdminClient([standalone.admin_url])
    admin.create_topic("stream-files", 3)
    sent = 0
    for _ in range(3):
        send_all(client, "stream-files", numbers(sent, 500))
        sent += 500
        for partition in range(3):
            unload(admin, f"stream-files-partition-{partition}")  # the next messages go into other ledgers
        run(follow("stream-files"), tmp_path)
        assert written(spark, tmp_path) == numbers(0, sent)


def test_a_query_that_runs_on_gets_what_is_sent_meanwhile(
    spark: SparkSession, client: pulsar.Client, follow: Follow, tmp_path: Path
) -> None:
    send_all(client, "stream-on", numbers(0, 10))
    query = to_files(follow("stream-on"), tmp_path, processingTime="0 seconds")
    try:
        for number in range(1, 6):
            send_all(client, "stream-on", numbers(number * 10, 10))
        query.processAllAvailable()
    finally:
        query.stop()
    run(follow("stream-on"), tmp_path)  # what was sent in the last moment counts as well
    assert written(spark, tmp_path) == numbers(0, 60)


def test_a_limit_makes_batches_small_and_the_progress_tells_offsets(
    spark: SparkSession, client: pulsar.Client, follow: Follow, tmp_path: Path
) -> None:
    producer = client.create_producer("stream-limit", batching_enabled=False)
    for number in range(30):
        producer.send(b"%d" % number)
    query = run(follow("stream-limit", maxMessagesPerTrigger="8"), tmp_path)
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in progress] == [8, 8, 8, 6]
    end = json.loads(progress[-1]["sources"][0]["endOffset"])
    assert list(end["topics"]) == ["persistent://public/default/stream-limit"]
    assert written(spark, tmp_path) == numbers(0, 30)


def places(offset: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Partition → its position, of a stream of one topic."""
    (parts,) = offset["topics"].values()
    return {number: tuple(map(int, text.split(":"))) for number, text in parts.items()}


def test_batches_keep_their_limit_whatever_the_entries_and_the_progress_is_never_ahead_of_the_topic(
    spark: SparkSession, client: pulsar.Client, standalone: Standalone, follow: Follow, tmp_path: Path
) -> None:
    """The first and the last entry of each partition are small, as where a producer flushes now and then."""
    AdminClient([standalone.admin_url]).create_topic("stream-mixed", 2)
    draw = random.Random(20261130)
    sent = 0

    def send(counts: list[int]) -> None:
        nonlocal sent
        for partition in range(2):
            given = {
                "batching_max_messages": 1_000,
                "batching_max_publish_delay_ms": 10_000,
                "block_if_queue_full": True,
            }
            producer = client.create_producer(f"stream-mixed-partition-{partition}", batching_enabled=True, **given)
            for count in counts:
                for value in numbers(sent, count):
                    producer.send_async(value, None)
                producer.flush()  # one entry
                sent += count
            producer.close()

    for given, entry in (({"maxMessagesPerTrigger": "3000"}, 1_000), ({"maxBytesPerTrigger": "40000"}, 20_000)):
        first = sent
        send([1, *(draw.choice([1, 50, 900, 1_000]) for _ in range(10)), 1_000, 1])
        query = run(follow("stream-mixed", **given), tmp_path)
        progress = [one for one in query.recentProgress if one["numInputRows"]]
        assert sum(one["numInputRows"] for one in progress) == sent - first
        behind = []
        for one in progress:
            (source,) = one["sources"]
            newest = json.loads(source["latestOffset"])
            assert all(places(newest)[part] >= at for part, at in places(json.loads(source["endOffset"])).items())
            behind.append(magnetar.spark.Lag(**newest["behind"]))
            assert min(behind[-1]) >= 0
        limit = int(*given.values())
        if "maxMessagesPerTrigger" in given:
            sizes = [one["numInputRows"] for one in progress]
        else:
            sizes = [more.bytes - less.bytes for more, less in itertools.pairwise(behind)]
        assert max(sizes) < limit + 2 * entry
        assert min(sizes[:-2]) > limit / 3, "they are not much smaller, either"
        assert behind[0].messages > 1_000
        assert behind[0].seconds > 0
        assert behind[-1] == magnetar.spark.lag(query) == (0, 0, 0)
    assert written(spark, tmp_path) == numbers(0, sent)


def test_a_pattern_takes_topics_that_are_made_later(
    spark: SparkSession, standalone: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    send_all(client, "many-a", numbers(0, 5))

    def stream() -> DataFrame:
        reader = spark.readStream.format("magnetar").option("topicsPattern", "many-.*")
        return reader.option("metadata.url", f"rocksdb:{standalone.data / 'metadata'}").load()

    run(stream(), tmp_path)
    send_all(client, "many-a", numbers(5, 5))
    send_all(client, "many-b", numbers(10, 5))
    run(stream(), tmp_path)
    assert written(spark, tmp_path) == numbers(5, 10), "the first query began behind what was there"


def test_a_subscription_keeps_what_was_not_read(
    spark: SparkSession, client: pulsar.Client, standalone: Standalone, follow: Follow, tmp_path: Path
) -> None:
    admin = AdminClient([standalone.admin_url])
    topic = "stream-kept"
    given = {"subscription": "spark", "service.url": standalone.service_url, "maxMessagesPerTrigger": "10"}
    client.create_producer(topic, batching_enabled=False).close()

    run(follow(topic, **given), tmp_path)
    sent = 0
    for _ in range(3):
        producer = client.create_producer(topic, batching_enabled=False)
        for number in numbers(sent, 20):
            producer.send(number)
        producer.close()
        sent += 20
        unload(admin, topic)
    backlog = admin.stats(topic)["subscriptions"]["spark"]["msgBacklog"]
    assert backlog == 60, "nothing was read yet, so everything is kept"
    run(follow(topic, **given), tmp_path)
    assert written(spark, tmp_path) == numbers(0, 60)
    left = admin.stats(topic)["subscriptions"]["spark"]
    assert left["msgBacklog"] <= 11, "the last batch, which Spark does not commit, and the last entry before it"
    assert left["consumers"] == [], "the query is over, and the cursor stays"


def test_a_partition_that_joins_is_kept_though_the_query_ends_with_its_first_batch(
    spark: SparkSession, client: pulsar.Client, standalone: Standalone, follow: Follow, tmp_path: Path
) -> None:
    admin = AdminClient([standalone.admin_url])
    given = {"subscription": "spark", "service.url": standalone.service_url}
    admin.create_topic("stream-joined", 1)
    send_all(client, "stream-joined", numbers(0, 10))
    run(follow("stream-joined"), tmp_path)  # the option comes later, the partition, too
    admin.call("POST", f"/admin/v2/{AdminClient.path_of('stream-joined')}/partitions", 2)
    send_all(client, "stream-joined-partition-1", numbers(10, 10))
    run(follow("stream-joined", **given), tmp_path)
    assert written(spark, tmp_path) == numbers(0, 20)
    for number in range(2):
        assert "spark" in admin.stats(f"stream-joined-partition-{number}")["subscriptions"]


def test_a_subscription_that_an_administrator_moved_ends_the_query_unless_loss_is_allowed(
    spark: SparkSession, client: pulsar.Client, standalone: Standalone, follow: Follow, tmp_path: Path
) -> None:
    admin = AdminClient([standalone.admin_url])
    admin.call("PUT", "/admin/v2/namespaces/public/brief", {})
    admin.set_retention("public/brief", minutes=0, megabytes=0)
    topic = "public/brief/stream-skipped"
    path = f"/admin/v2/{AdminClient.path_of(topic)}"
    given = {"subscription": "spark", "service.url": standalone.service_url}

    def ledgers() -> list[int]:
        return [one["ledgerId"] for one in admin.call("GET", f"{path}/internalStats")["ledgers"]]

    def send(first: int) -> None:
        producer = client.create_producer(topic, batching_enabled=False)
        for number in numbers(first, 10):
            producer.send(number)
        producer.close()
        unload(admin, topic)

    for first in (0, 10):
        send(first)
        run(follow(topic, **given), tmp_path)
    unread = ledgers()
    send(20)
    admin.call("POST", f"{path}/subscription/spark/skip_all")
    unload(admin, topic)
    send(30)
    admin.call("POST", f"{path}/trim")
    until(lambda: not set(unread) & set(ledgers()), "the ledgers that were skipped are removed")
    with pytest.raises(StreamingQueryException, match="moved by others than the query"):
        run(follow(topic, **given), tmp_path)
    run(follow(topic, failOnDataLoss="false", **given), tmp_path)
    assert set(written(spark, tmp_path)) >= {*numbers(0, 20), *numbers(30, 10)}


def test_a_subscription_that_others_use_is_refused(
    client: pulsar.Client, standalone: Standalone, follow: Follow, tmp_path: Path
) -> None:
    send_all(client, "stream-taken", numbers(0, 3))
    other = client.subscribe("stream-taken", "spark")
    given = {"subscription": "spark", "service.url": standalone.service_url}
    with pytest.raises(StreamingQueryException, match="A query needs a subscription for itself"):
        run(follow("stream-taken", **given), tmp_path)
    other.close()


@contextlib.contextmanager
def begun_before(spark: SparkSession) -> Iterator[None]:
    """Queries inside may have checkpoints in which a killed driver noted only a part of its first batch."""
    name = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"  # Spark 4.1 and later
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.unset(name)


def test_a_driver_that_was_killed_while_it_noted_its_first_batch_comes_back_without_sparks_check(
    spark: SparkSession, client: pulsar.Client, follow: Follow, tmp_path: Path
) -> None:
    send_all(client, "stream-first", numbers(0, 20))
    offsets = tmp_path / "state" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.0c5a2e0e-50a1-4d7b-8f0e-3f1d1ad5a3f1.tmp").write_bytes(b"v1\n")  # it is renamed when it is whole
    with pytest.raises(StreamingQueryException, match="CHECKPOINT_LOCATION_NOT_EMPTY"):
        run(follow("stream-first"), tmp_path)
    with begun_before(spark):
        run(follow("stream-first"), tmp_path)
    assert written(spark, tmp_path) == numbers(0, 20)


@pytest.mark.long("each driver is a JVM of its own; the tests above stop queries and begin them anew")
@pytest.mark.parametrize("kills", [1, 2])
def test_a_driver_that_is_killed_leaves_every_message_once(
    spark: SparkSession, client: pulsar.Client, standalone: Standalone, follow: Follow, tmp_path: Path, kills: int
) -> None:
    admin = AdminClient([standalone.admin_url])
    topic = f"stream-killed-{kills}"
    admin.create_topic(topic, 2)
    url = f"rocksdb:{standalone.data / 'metadata'}"
    draw = random.Random(20261123)
    first_batch = tmp_path / "state" / "commits" / "0"
    sent = 0

    def send() -> None:
        nonlocal sent
        send_all(client, topic, numbers(sent, 100))
        sent += 100
        unload(admin, f"{topic}-partition-{draw.randrange(2)}")

    for kill in range(kills):
        job = subprocess.Popen(
            [sys.executable, "-m", "tests.support.stream_job", url, topic, str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            assert job.stdout is not None
            assert job.stdout.readline().startswith("started")
            end = time.monotonic() + (draw.uniform(1.0, 5.0) if kill else 4 * PATIENCE_S)
            while time.monotonic() < end and (kill or not first_batch.exists()):
                send()
                time.sleep(0.1)  # the rest of the machine is for the driver
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        assert first_batch.exists(), "the first kill is in the midst of a later batch, the others at any moment"
    with begun_before(spark):
        run(follow(topic, maxMessagesPerTrigger="1000"), tmp_path)
    assert written(spark, tmp_path) == numbers(0, sent)
    left = {path.name.partition("-")[0] for path in (tmp_path / "scratch").iterdir()}
    assert {"artifacts", "blockmgr"} <= left, "what killed drivers leave is in the folder of the test"
