"""DataFrames written to topics: what the official client receives of them, and what Spark reads again."""

import datetime
import decimal
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from magnetar.inspect.broker_admin import AdminClient
from tests.spark.conftest import Load
from tests.spark.test_standalone import numbers, send_all
from tests.support.processes import Standalone, received

pytestmark = [pytest.mark.spark, pytest.mark.process]


@pytest.fixture
def service(standalone: Standalone) -> str:
    return standalone.service_url


def write(frame: DataFrame, service: str, topic: str = "", **options: str) -> None:
    writer = frame.write.format("magnetar").mode("append").option("service.url", service)
    if topic:
        writer = writer.option("topic", topic)
    writer.options(**options).save()


def test_rows_are_messages_with_key_time_and_properties(
    spark: SparkSession, client: pulsar.Client, service: str
) -> None:
    at = datetime.datetime(2026, 11, 23, 10, 0, tzinfo=datetime.UTC)
    rows = [(b"one", "k", at, {"a": "1"}), (None, None, None, None), (b"", "k", None, {})]
    schema = "value binary, __key string, __eventTime timestamp, __messageProperties map<string, string>"
    write(spark.createDataFrame(rows, schema).coalesce(1), service, "written")
    first, second, third = received(client, "written")
    assert (first.data(), first.partition_key(), first.properties()) == (b"one", "k", {"a": "1"})
    assert first.event_timestamp() == int(at.timestamp() * 1000)
    assert (second.data(), second.partition_key(), second.event_timestamp()) == (b"", "", 0)
    assert third.data() == b""


def test_many_rows_are_all_there_when_the_write_is_done(
    spark: SparkSession, service: str, standalone: Standalone, load: Load
) -> None:
    AdminClient([standalone.admin_url]).create_topic("written-many", 3)
    frame = spark.range(50_000).select(f.col("id").cast("string").alias("value"))
    write(frame.repartition(4), service, "written-many", **{"pulsar.producer.compressionType": "LZ4"})
    assert load("written-many", valueFormat="string").select(f.col("value").cast("long")).agg(
        f.count("*"), f.countDistinct("value"), f.max("value")
    ).collect() == [(50_000, 50_000, 49_999)]


def test_rows_go_to_the_topics_that_they_name(spark: SparkSession, client: pulsar.Client, service: str) -> None:
    frame = spark.createDataFrame([("to-a", "1"), ("to-b", "2"), ("to-a", "3")], "topic string, value string")
    write(frame.coalesce(1), service)
    assert [one.data() for one in received(client, "to-a")] == [b"1", b"3"]
    assert [one.data() for one in received(client, "to-b")] == [b"2"]


@pytest.mark.parametrize("value_format", ["avro", "json"])
def test_records_come_back_with_the_types_that_they_had(
    spark: SparkSession, service: str, load: Load, value_format: str
) -> None:
    row: tuple[Any, ...] = (
        7, "ü", datetime.datetime(2026, 11, 23, 10, 0, 0, 123_456), decimal.Decimal("1.50"), [1, None], {"a": 2},
        (datetime.date(2026, 11, 23), b"\x00"),
    )  # fmt: skip
    schema = (
        "n bigint, text string, at timestamp, price decimal(10,2), items array<bigint>, counts map<string, bigint>, "
        "inner struct<day: date, data: binary>"
    )
    frame = spark.createDataFrame([row, (None,) * 7], schema).coalesce(1)
    topic = f"written-{value_format}"
    write(frame, service, topic, valueFormat=value_format)
    again = load(topic, valueFormat="auto").select(frame.columns)
    assert again.schema.simpleString() == frame.schema.simpleString()
    assert again.collect() == frame.collect()


def test_a_record_that_does_not_fit_the_topic_s_schema_is_refused(spark: SparkSession, service: str) -> None:
    write(spark.createDataFrame([(1,)], "n bigint"), service, "written-once", valueFormat="avro")
    other = spark.createDataFrame([("x",)], "n string")
    with pytest.raises(
        PythonException, match=r"no producer .*written-once.*IncompatibleSchema: the broker says: .*long"
    ):
        write(other, service, "written-once", valueFormat="avro")


def test_what_a_broker_refuses_fails_the_write_and_says_why(spark: SparkSession, service: str) -> None:
    huge = spark.createDataFrame([(b"x" * 6_000_000,)], "value binary")
    with pytest.raises(PythonException, match=r"(?s)NotWritten.*MessageTooBig"):
        write(huge, service, "written-huge")
    write(huge, service, "written-huge", **{"pulsar.producer.chunkingEnabled": "true"})
    with pytest.raises(PythonException, match=r"(?s)NotWritten.*pulsar://127.0.0.1:1"):
        write(
            spark.createDataFrame([("x",)], "value string"), "pulsar://127.0.0.1:1", "t",
            **{"pulsar.client.operationTimeoutMs": "1000"},
        )  # fmt: skip


def test_wrong_options_and_modes_are_refused_before_anything_is_sent(spark: SparkSession, service: str) -> None:
    frame = spark.createDataFrame([(1,)], "value int")
    with pytest.raises(AnalysisException, match=r"(?s)column value is int: cast it to binary or string"):
        write(frame, service, "t")
    with pytest.raises(AnalysisException, match=r"(?s)no service.url"):
        frame.write.format("magnetar").mode("append").option("topic", "t").save()
    with pytest.raises(AnalysisException, match=r"(?s)write with mode append"):
        frame.write.format("magnetar").mode("overwrite").option("service.url", service).option("topic", "t").save()


def test_a_stream_goes_from_topic_to_topic(
    spark: SparkSession, client: pulsar.Client, standalone: Standalone, service: str, tmp_path: Path
) -> None:
    send_all(client, "stream-in", numbers(0, 100))

    def copy() -> None:
        stream = spark.readStream.format("magnetar").option("metadata.url", f"rocksdb:{standalone.data / 'metadata'}")
        stream = stream.option("topic", "stream-in").option("startingOffsets", "earliest")
        doubled = stream.load().select((f.col("value").cast("string").cast("int") * 2).cast("string").alias("value"))
        writer = doubled.writeStream.format("magnetar").option("service.url", service).option("topic", "stream-out")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(240)

    copy()
    send_all(client, "stream-in", numbers(100, 100))
    copy()
    assert sorted(int(one.data()) for one in received(client, "stream-out")) == [2 * number for number in range(200)]
