"""Topics of a running standalone, written by the official client, as DataFrames.

Nobody registers the format: Spark finds it by itself.
"""

import contextlib
import datetime
import os
import re
import socket
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pulsar
import pulsar.schema
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceReader, InputPartition

from connectors.spark.source import MagnetarSource
from magnetar.inspect.broker_admin import AdminClient
from tests.spark.conftest import Load
from tests.support.processes import Standalone, received

pytestmark = [pytest.mark.spark, pytest.mark.process]

EVERYTHING = (
    "value,__key,__topic,__messageId,__publishTime,__eventTime,__messageProperties,__partition,__ledgerId,__entryId,"
    "__batchIndex,__index,__sequenceId,__producerName,__schemaVersion,__schemaId,__orderingKey,__deliverAt,"
    "__replicatedFrom"
)


def send_all(client: pulsar.Client, topic: str, values: list[Any], **options: Any) -> None:
    producer = client.create_producer(topic, **options)
    for value in values:
        producer.send_async(value, None)
    producer.flush()
    producer.close()


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def values_of(frame: DataFrame) -> list[Any]:
    return sorted(row[0] for row in frame.select("value").collect())


def milliseconds(time: datetime.datetime | None) -> int | None:
    """Of a time as `collect` gives it: naive, in the zone of this process."""
    return None if time is None else round(time.timestamp() * 1000)


@pytest.fixture(scope="module")
def mixed(client: pulsar.Client) -> str:
    """A topic with everything that the client can write."""
    topic = "mixed"
    plain = client.create_producer(topic, producer_name="plain", batching_enabled=False)
    plain.send(b"unbatched")
    plain.send(b"full", properties={"a": "1", "ü": "ö"}, partition_key="k", event_timestamp=1_600_000_000_123)
    plain.send(None)
    plain.send(b"")
    batched = {"batching_enabled": True, "batching_max_publish_delay_ms": 50}
    producer = client.create_producer(topic, producer_name="batches", **batched)
    for number in range(20):
        properties = {"n": str(number), "same": "x"} if number % 3 else None
        key = f"k{number % 5}" if number % 2 else None
        producer.send_async(b"batch %d" % number, None, properties=properties, partition_key=key,
                            event_timestamp=1_600_000_000_000 + number if number % 4 == 0 else None)  # fmt: skip
    producer.send_async(None, None)
    producer.flush()
    by_key = client.create_producer(topic, batching_type=pulsar.BatchingType.KeyBased, **batched)
    for number in range(12):
        by_key.send_async(b"by key %d" % number, None, partition_key=f"key {number % 3}")
    by_key.flush()
    for codec in ("LZ4", "ZLib", "ZSTD", "SNAPPY"):
        compression = getattr(pulsar.CompressionType, codec)
        send_all(client, topic, [b"text " * number for number in range(1, 30)], compression_type=compression, **batched)
        send_all(client, topic, [b"alone " * 100], compression_type=compression)
    for compression in (pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4):
        chunks = client.create_producer(topic, chunking_enabled=True, compression_type=compression)
        chunks.send(b"%032x" % 5 * 400_000, properties={"large": "yes"}, partition_key="c")
        chunks.close()
    for producer in (plain, by_key):
        producer.close()
    return topic


def test_rows_are_what_the_official_client_receives(mixed: str, client: pulsar.Client, load: Load) -> None:
    expected = [
        {
            "value": message.data(),
            "__key": message.partition_key().encode() or None,
            "__topic": message.topic_name(),
            "__messageId": message.message_id().serialize(),
            "__publishTime": message.publish_timestamp(),
            "__eventTime": message.event_timestamp() or None,
            "__messageProperties": message.properties(),
            "__ledgerId": message.message_id().ledger_id(),
            "__entryId": message.message_id().entry_id(),
            "__batchIndex": message.message_id().batch_index(),
        }
        for message in received(client, mixed)
    ]
    rows = load(mixed, columns=EVERYTHING).collect()
    assert [row["value"] for row in rows].count(None) == 2
    found = []
    for row in rows:
        own = row.asDict()
        own["value"] = b"" if own["value"] is None else bytes(own["value"])  # the client has no null
        own["__publishTime"], own["__eventTime"] = milliseconds(own["__publishTime"]), milliseconds(own["__eventTime"])
        for name in ("__key", "__messageId"):
            own[name] = None if own[name] is None else bytes(own[name])
        found.append(own)
    assert len(found) == len(expected) == 4 + 21 + 12 + 4 * 30 + 2
    for own, wanted in zip(found, expected, strict=True):
        assert {name: own[name] for name in wanted} == wanted
    assert {own["__partition"] for own in found} == {-1}
    assert [own["__sequenceId"] for own in found if own["__producerName"] == "batches"] == list(range(21))
    assert load(mixed).count() == len(expected)


def test_a_projection_gives_the_columns_asked_for_in_their_order(
    mixed: str, load: Load, spark: SparkSession, standalone: Standalone
) -> None:
    default = load(mixed)
    assert default.columns == EVERYTHING.split(",")[:7]
    by_option = load(mixed, columns="__entryId,value")
    assert by_option.dtypes == [("__entryId", "bigint"), ("value", "binary")]
    reader = spark.read.format("magnetar").option("metadata.url", f"rocksdb:{standalone.data / 'metadata'}")
    by_schema = reader.schema("__messageProperties map<string,string>, __publishTime timestamp").load(mixed)
    assert by_schema.columns == ["__messageProperties", "__publishTime"]
    assert by_schema.filter(f.col("__messageProperties")["large"] == "yes").count() == 2
    assert by_option.agg(f.max("__entryId")).collect()[0][0] > 10
    with pytest.raises(AnalysisException, match="column value is binary, not string"):
        reader.schema("value string").load(mixed).count()


def test_sql_reads_a_topic_through_a_temporary_view(mixed: str, spark: SparkSession, standalone: Standalone) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW mixed USING magnetar OPTIONS "
        f"(`metadata.url` 'rocksdb:{standalone.data}/metadata', topic '{mixed}', columns 'value,__key')"
    )
    (row,) = spark.sql("SELECT count(*) AS n, count(value) AS v, count(__key) AS k FROM mixed").collect()
    assert (row["n"], row["v"]) == (159, 157)
    assert row["k"] == 1 + 10 + 12 + 2


def test_a_frame_can_be_used_more_than_once(mixed: str, load: Load, spark: SparkSession) -> None:
    for flag in ("false", "true"):  # our reader takes no filters, so the defect of the flag does not touch it
        spark.conf.set("spark.sql.python.filterPushdown.enabled", flag)
        try:
            frame = load(mixed, columns="value,__entryId")
            keyed = frame.filter("__entryId = 0")
            assert keyed.count() == 1
            assert frame.count() == 159
            assert frame.union(frame).count() == 318
            assert frame.union(keyed).count() == 160
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_show_and_limit_of_a_large_topic_leave_the_rest(client: pulsar.Client, load: Load, capsys: Any) -> None:
    send_all(client, "large", [b"%06d" % number + bytes(250) for number in range(20_000)],
             batching_enabled=True, max_pending_messages=20_000)  # fmt: skip
    frame = load("large", valueFormat="string", columns="value,__batchIndex")
    frame.select(f.substring("value", 1, 6).alias("n")).show(3)
    assert "000002" in capsys.readouterr().out
    assert [row[0][:6] for row in frame.select("value").limit(2).collect()] == ["000000", "000001"]
    split = load("large", targetPartitionBytes="1300k", columns="value")
    assert split.rdd.getNumPartitions() == 4
    assert split.agg(f.count("*"), f.count_distinct(f.substring("value", 1, 6))).collect()[0] == (20_000, 20_000)
    assert load("large", minPartitions="5").rdd.getNumPartitions() == 5


class _LookingReader(DataSourceReader):
    """Reads as Magnetar's, and gives what is set on the worker's first connection then, which is its JVM's."""

    def __init__(self, reader: DataSourceReader) -> None:
        self._reader = reader

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bool]]:
        rows = sum(batch.num_rows for batch in self._reader.read(partition) if isinstance(batch, pa.RecordBatch))
        for number in sorted(map(int, os.listdir("/proc/self/fd"))):
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{number}").st_mode):
                continue
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                yield rows, bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                return


class _Looking(MagnetarSource):
    @classmethod
    def name(cls) -> str:
        return "looking"

    def schema(self) -> t.StructType:
        return t.StructType([t.StructField("rows", t.LongType()), t.StructField("is_set", t.BooleanType())])

    def reader(self, schema: t.StructType) -> DataSourceReader:
        return _LookingReader(super().reader(super().schema()))


def test_workers_do_not_wait_for_their_jvms_acknowledgements(
    client: pulsar.Client, spark: SparkSession, load: Load
) -> None:
    send_all(client, "acknowledged", numbers(0, 20))
    spark.dataSource.register(_Looking)
    assert load("acknowledged", source="looking").collect() == [(20, True)]


def test_partitions_are_read_as_the_client_sees_them(client: pulsar.Client, load: Load, standalone: Standalone) -> None:
    topic = "persistent://public/default/parts"
    AdminClient(standalone.admin_url).create_topic(topic, 3)
    producer = client.create_producer(topic, batching_enabled=True)
    for number in range(300):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 20}")
    producer.flush()
    producer.close()
    expected = Counter(
        (message.data(), f"{topic}-partition-{partition}", partition)
        for partition in range(3) for message in received(client, f"{topic}-partition-{partition}")
    )  # fmt: skip
    rows = load("parts", columns="value,__topic,__partition,__messageId").collect()
    assert Counter((bytes(row[0]), row[1], row[2]) for row in rows) == expected
    assert len(expected) == 300
    assert {pulsar.MessageId.deserialize(bytes(row[3])).partition() for row in rows} == {0, 1, 2}
    assert load("parts-partition-1").count() == sum(1 for row in rows if row["__partition"] == 1)


def test_every_load_is_a_snapshot_of_its_own(client: pulsar.Client, load: Load) -> None:
    producer = client.create_producer("growing")
    for value in numbers(0, 10):
        producer.send(value)
    first = load("growing")
    for value in numbers(10, 10):
        producer.send(value)
    second = load("growing")
    for value in numbers(20, 10):
        producer.send(value)
    assert values_of(second) == sorted(numbers(0, 20))
    assert values_of(first) == sorted(numbers(0, 10))
    assert second.count() == 20
    producer.send(b"last")
    assert load("growing").count() == 31
    assert (first.count(), second.count()) == (10, 20)
    producer.close()


def test_avro_records_of_two_versions_are_columns_of_the_newest(client: pulsar.Client, load: Load) -> None:
    def schema(*fields: dict[str, Any]) -> Any:
        definition = {"type": "record", "name": "Reading", "fields": list(fields)}
        return pulsar.schema.AvroSchema(None, schema_definition=definition)

    sensor = {"name": "sensor", "type": "string"}
    value = {"name": "value", "type": "double"}
    unit = {"name": "unit", "type": ["null", "string"], "default": None}
    send_all(client, "avro", [{"sensor": "a", "value": 1.5}, {"sensor": "b", "value": 2.5}],
             schema=schema(sensor, value), batching_enabled=True)  # fmt: skip
    early = load("avro", valueFormat="avro")
    assert early.columns[:2] == ["sensor", "value"]
    send_all(client, "avro", [{"sensor": "c", "value": 3.5, "unit": "m"}, None],
             schema=schema(sensor, value, unit))  # fmt: skip
    late = load("avro", valueFormat="auto")
    assert late.dtypes[:3] == [("sensor", "string"), ("value", "double"), ("unit", "string")]
    found = sorted((row["sensor"] or "", row["value"], row["unit"]) for row in late.collect())
    assert found == [("", None, None), ("a", 1.5, None), ("b", 2.5, None), ("c", 3.5, "m")]
    assert early.agg(f.sum("value")).collect()[0][0] == 4.0
    versions = load("avro", columns="__schemaVersion,value").collect()
    assert [bytes(row[0])[-1] for row in versions] == [0, 0, 1, 1]


def test_json_and_text_follow_their_schema(client: pulsar.Client, load: Load) -> None:
    class Person(pulsar.schema.Record):  # type: ignore[misc]
        name = pulsar.schema.String()
        age = pulsar.schema.Integer()

    send_all(client, "json", [Person(name="ann", age=31), Person(name="bob")], schema=pulsar.schema.JsonSchema(Person))
    found = load("json", valueFormat="auto").select("name", "age").collect()
    assert [tuple(row) for row in found] == [("ann", 31), ("bob", None)]
    send_all(client, "text", ["grün", "rot"], schema=pulsar.schema.StringSchema())
    frame = load("text", valueFormat="auto")
    assert frame.dtypes[0] == ("value", "string")
    assert values_of(frame) == ["grün", "rot"]


def test_an_empty_topic_is_an_empty_frame(load: Load, standalone: Standalone) -> None:
    AdminClient(standalone.admin_url).create_topic("persistent://public/default/empty", 0)
    frame = load("empty")
    assert frame.collect() == []
    assert frame.count() == 0


def test_mistakes_are_told_with_the_way_out(mixed: str, load: Load) -> None:
    with pytest.raises(
        AnalysisException, match=r"unknown option targetpartitionbyte; did you mean targetPartitionBytes\?"
    ):
        load("any", targetPartitionByte="1m")
    with pytest.raises(AnalysisException, match="topic persistent://public/default/nowhere does not exist") as caught:
        load("nowhere")
    *_, reason, sqlstate = str(caught.value).splitlines()
    assert re.match(r"[\w.]+\.TopicMissing: topic \S+ does not exist in \S+; ", reason), "as the page says"
    assert sqlstate.strip() == "SQLSTATE: 38000"
    with pytest.raises(AnalysisException, match=r"no service\.url: set it to the address of the brokers"):
        load(mixed).write.format("magnetar").mode("append").save()


def test_an_error_of_a_task_names_topic_and_entry(client: pulsar.Client, load: Load) -> None:
    send_all(client, "bytes", [b"fine", b"\xff\xfe"])
    frame = load("bytes", valueFormat="string")
    with pytest.raises(PythonException, match=r"persistent://public/default/bytes, entry \d+:1: its value is not text"):
        frame.collect()
    assert load("bytes").count() == 2
