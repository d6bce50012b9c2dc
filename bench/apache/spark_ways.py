"""Four ways of the same rows into Spark, and what is asked of them.

source     `format("magnetar")`: from the bookies
broker     one task a partition, which reads it with the official client from the first message to the last
parquet    files that Spark wrote of the same rows: the floor
ceiling    a Python data source that yields one prepared Arrow batch, of the same columns, again and again: no
           bookies, no network, no decoding
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pulsar
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.spark_topics import HOUR_BEGINS_MS, HOUR_MS, Topic
from connectors.spark.options.metadata_columns import DEFAULT_METADATA, METADATA_COLUMNS
from tests.support.processes import QUIET

SOURCE: Final = "our source"
BROKER: Final = "through the broker"
PARQUET: Final = "Parquet"
CEILING: Final = "prepared Arrow batches"

BROKER_BATCH: Final = 10_000
"""Rows that a task of the broker's way gathers before it hands them to Spark."""
BROKER_PATIENCE_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Query:
    """Columns that are asked for, and what is done with them; it ends in the `noop` sink."""

    name: str
    columns: tuple[str, ...]
    action: Callable[[DataFrame], DataFrame]
    is_hour: bool = False
    """Only what was published in one hour of the day."""


def _same(frame: DataFrame) -> DataFrame:
    return frame


def _count(frame: DataFrame) -> DataFrame:
    return frame.groupBy().count()


def _by_key(frame: DataFrame) -> DataFrame:
    return frame.groupBy("__key").count()


VALUES: Final = Query("value only", ("value",), _same)
DEFAULT: Final = Query("default columns", ("value", *DEFAULT_METADATA), _same)
HOUR: Final = Query("one hour of the day (value only)", ("value",), _same, is_hour=True)
QUERIES: Final = (
    VALUES,
    DEFAULT,
    Query("count (of __publishTime only)", ("__publishTime",), _count),
    Query("two columns (__key and value)", ("__key", "value"), _same),
    Query("group by key (__key only)", ("__key",), _by_key),
    HOUR,
)


def schema_of(columns: Sequence[str]) -> t.StructType:
    known = {"value": (t.BinaryType(), True), **METADATA_COLUMNS}
    return t.StructType([t.StructField(name, *known[name]) for name in columns])


def source(spark: SparkSession, metadata_url: str, topic: Topic, query: Query, **options: str) -> DataFrame:
    reader = spark.read.format("magnetar").option("metadata.url", metadata_url).option("topic", topic.name)
    if query.is_hour:
        reader = reader.option("startingTimestamp", str(HOUR_BEGINS_MS))
        reader = reader.option("endingTimestamp", str(HOUR_BEGINS_MS + HOUR_MS))
    return reader.option("columns", ",".join(query.columns)).options(**options).load()


def parquet(spark: SparkSession, path: Path, query: Query) -> DataFrame:
    frame = spark.read.parquet(str(path))
    if query.is_hour:
        seconds = f.unix_millis("__publishTime")
        frame = frame.filter((seconds >= HOUR_BEGINS_MS) & (seconds < HOUR_BEGINS_MS + HOUR_MS))
    return frame.select(*query.columns)


# ------------------------------------------------------------------------------------------ the broker


def broker(spark: SparkSession, service_url: str, topic: Topic, query: Query, limit: int) -> DataFrame:
    """At most *limit* messages of each partition."""
    read = partial(_read_partitions, service_url=service_url, topic=topic.name, query=query, limit=limit)
    numbers = spark.range(0, topic.partitions, 1, topic.partitions)
    return numbers.mapInArrow(read, schema_of(query.columns))


_VALUE_OF: Final[dict[str, Callable[[Any], Any]]] = {
    "value": lambda message: message.data(),
    "__key": lambda message: message.partition_key().encode(),
    "__topic": lambda message: message.topic_name(),
    "__messageId": lambda message: message.message_id().serialize(),
    "__entryId": lambda message: message.message_id().entry_id(),
    "__publishTime": lambda message: message.publish_timestamp() * 1_000,
    "__eventTime": lambda message: message.event_timestamp() * 1_000 or None,
    "__messageProperties": lambda message: list(message.properties().items()),
}


def _read_partitions(
    batches: Iterable[pa.RecordBatch], *, service_url: str, topic: str, query: Query, limit: int
) -> Iterator[pa.RecordBatch]:
    """Runs in Spark's Python workers; gets the numbers of partitions."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(schema_of(query.columns), timezone="UTC")
    client = pulsar.Client(service_url, logger=QUIET)
    try:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                name = f"persistent://public/default/{topic}-partition-{number}"
                for messages in _groups(_messages(client, name, limit, is_hour=query.is_hour)):
                    yield pa.record_batch([_column(messages, field) for field in schema], schema=schema)
    finally:
        client.close()


def _messages(client: pulsar.Client, name: str, limit: int, *, is_hour: bool) -> Iterator[pulsar.Message]:
    """From the first message to the one that is the last when it begins; of an hour, from its first to its last."""
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    try:
        if is_hour:
            reader.seek(HOUR_BEGINS_MS)
        left = limit
        while left and reader.has_message_available():
            message = reader.read_next(BROKER_PATIENCE_MS)
            if is_hour and message.publish_timestamp() >= HOUR_BEGINS_MS + HOUR_MS:
                return
            if is_hour and message.publish_timestamp() < HOUR_BEGINS_MS:
                continue
            yield message
            left -= 1
    finally:
        reader.close()


def _groups(messages: Iterable[pulsar.Message]) -> Iterator[list[pulsar.Message]]:
    group: list[pulsar.Message] = []
    for message in messages:
        group.append(message)
        if len(group) == BROKER_BATCH:
            yield group
            group = []
    if group:
        yield group


def _column(messages: Sequence[pulsar.Message], field: pa.Field) -> pa.Array:
    values = list(map(_VALUE_OF[field.name], messages))
    if pa.types.is_timestamp(field.type):
        return pa.array(values, pa.int64()).cast(field.type)
    return pa.array(values, field.type)


# ----------------------------------------------------------------------------------------- the ceiling


class _CeilingReader(DataSourceReader):
    """*count* rows of prepared batches in each of *partitions* tasks."""

    def __init__(self, path: str, partitions: int, count: int) -> None:
        self._path, self._partitions, self._count = path, partitions, count

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override, unused-ignore]
        with pa.ipc.open_stream(self._path) as file:
            batch = file.read_next_batch()
        left = self._count // self._partitions
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


class Ceiling(DataSource):
    """Registered as `ceiling`."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> t.StructType:
        return schema_of(self.options["columns"].split(","))

    def reader(self, schema: t.StructType) -> DataSourceReader:
        return _CeilingReader(self.options["path"], int(self.options["partitions"]), int(self.options["count"]))


def prepare(frame: DataFrame, rows: int, path: Path) -> None:
    """One batch of the first *rows* rows, for the ceiling."""
    from pyspark.sql.pandas.types import to_arrow_schema

    table = frame.limit(rows).toArrow().cast(to_arrow_schema(frame.schema, timezone="UTC"))
    (batch,) = table.combine_chunks().to_batches()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)


def ceiling(spark: SparkSession, path: Path, count: int, partitions: int, query: Query) -> DataFrame:
    """*count* rows of the batch at *path*; a task for each partition."""
    spark.dataSource.register(Ceiling)
    reader = spark.read.format("ceiling").option("path", str(path)).option("columns", ",".join(query.columns))
    return reader.option("partitions", str(partitions)).option("count", str(count)).load()
