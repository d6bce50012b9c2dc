"""Streams that write into topics with `deduplication`: each message once; never fewer. `test_rounds` kills drivers."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from magnetar.inspect.broker_admin import AdminClient
from tests.spark.test_standalone import numbers, send_all
from tests.support.processes import Standalone, received
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.process]


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Rows come to a task's writer ten at a time, so that a task may fail in the middle of its rows."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "10")
    yield
    spark.conf.set(name, str(before))


def make(standalone: Standalone, topic: str, partitions: int, *, deduplicates: bool = True) -> None:
    admin = AdminClient([standalone.admin_url])
    admin.create_topic(topic, partitions)
    if deduplicates:
        admin.call("POST", f"/admin/v2/{AdminClient.path_of(topic)}/deduplicationEnabled", True)


def source(spark: SparkSession, standalone: Standalone, topic: str) -> DataFrame:
    stream = spark.readStream.format("magnetar").option("metadata.url", f"rocksdb:{standalone.data / 'metadata'}")
    return stream.option("topic", topic).option("startingOffsets", "earliest").load()


def writer(stream: DataFrame, standalone: Standalone, topic: str, state: Path) -> DataStreamWriter:
    """What writes what there is of *stream* into *topic*."""
    made = stream.writeStream.format("magnetar").option("service.url", standalone.service_url)
    made = made.option("topic", topic).option("deduplication", "true").option("checkpointLocation", str(state))
    return made.trigger(availableNow=True)


def copy(stream: DataFrame, standalone: Standalone, topic: str, state: Path) -> None:
    """Raises StreamingQueryException."""
    assert writer(stream, standalone, topic, state).start().awaitTermination(240)


def long_numbers(first: int, count: int) -> list[bytes]:
    """Of 2,000 bytes each: what Spark keeps in its buffers is some dozens of rows then."""
    return [b"%02000d" % number for number in range(first, first + count)]


def failing(stream: DataFrame, folder: Path, value: int) -> DataFrame:
    """*stream*, whose task fails at *value* as soon as there is a file `fail` in *folder*; with `go` it does not."""

    def checked(one: bytes) -> bytes:
        if int(one) == value:
            for _ in range(600):
                if (folder / "go").exists():
                    return one
                if (folder / "fail").exists():
                    raise RuntimeError("the task fails here")
                time.sleep(0.1)
        return one

    return stream.select(f.udf(checked, "binary", useArrow=False)("value").alias("value"), "__key")


def fail_when_some_is_sent(
    client: pulsar.Client, stream: DataFrame, standalone: Standalone, topic: str, folder: Path
) -> None:
    query = writer(stream, standalone, topic, folder / "state").start()
    asyncio.run(eventually(lambda: received(client, topic), 240))
    (folder / "fail").touch()
    with pytest.raises(StreamingQueryException, match=r"the task fails here"):
        query.awaitTermination(240)
    (folder / "go").touch()


@pytest.mark.usefixtures("small_batches")
def test_a_batch_that_failed_in_the_middle_is_finished_and_not_begun_again(
    spark: SparkSession, client: pulsar.Client, standalone: Standalone, tmp_path: Path
) -> None:
    make(standalone, "middle-in", 1, deduplicates=False)
    make(standalone, "middle-out", 2)
    send_all(client, "middle-in", long_numbers(0, 600))
    stream = failing(source(spark, standalone, "middle-in"), tmp_path, 550)
    fail_when_some_is_sent(client, stream, standalone, "middle-out", tmp_path)
    assert len(received(client, "middle-out")) < 600
    copy(stream, standalone, "middle-out", tmp_path / "state")
    found = [one.data() for one in received(client, "middle-out")]
    assert sorted(found) == long_numbers(0, 600)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    "tasks", [(2, 4), pytest.param((4, 2), marks=pytest.mark.long("fewer tasks the second time, and not more"))]
)
def test_other_rows_in_the_tasks_lose_nothing(
    spark: SparkSession, client: pulsar.Client, standalone: Standalone, tmp_path: Path, tasks: tuple[int, int]
) -> None:
    out = f"shuffled-{tasks[0]}-{tasks[1]}"
    make(standalone, f"{out}-in", 1, deduplicates=False)
    make(standalone, out, 2)
    send_all(client, f"{out}-in", long_numbers(0, 900))
    stream = source(spark, standalone, f"{out}-in")
    last = 890  # where it is among the rows of its task is drawn
    first, second = (failing(stream.repartition(count, f.rand()), tmp_path, last) for count in tasks)
    fail_when_some_is_sent(client, first, standalone, out, tmp_path)
    copy(second, standalone, out, tmp_path / "state")
    found = Counter(one.data() for one in received(client, out))
    assert set(found) == set(long_numbers(0, 900)), "never fewer"


def test_a_topic_that_does_not_deduplicate_is_refused_with_what_to_do(
    spark: SparkSession, client: pulsar.Client, standalone: Standalone, tmp_path: Path
) -> None:
    make(standalone, "plain-in", 1, deduplicates=False)
    make(standalone, "plain-out", 1, deduplicates=False)
    send_all(client, "plain-in", numbers(0, 10))
    with pytest.raises(StreamingQueryException, match=r"do not de-duplicate .*plain-out.*set-deduplication --enable"):
        copy(source(spark, standalone, "plain-in"), standalone, "plain-out", tmp_path)


def test_a_frame_that_is_no_stream_cannot_be_written_once(spark: SparkSession, standalone: Standalone) -> None:
    frame = spark.createDataFrame([("a",)], "value string").write.format("magnetar").mode("append")
    with pytest.raises(AnalysisException, match=r"(?s)deduplication belongs to streams"):
        frame.option("service.url", standalone.service_url).option("topic", "t").option("deduplication", "true").save()
