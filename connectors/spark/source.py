"""`spark.read.format("magnetar")`: topics as DataFrames, read from the bookies.

    spark.read.format("magnetar").option("metadata.url", "zk:127.0.0.1:2181").option("topic", "my-topic").load()

What is read is fixed when `load()` is called. `.schema("value binary, __publishTime timestamp")`, or option `columns`
for SQL, chooses columns; nothing else is built or sent then. (spark.md 5)
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from connectors.spark.options import ReadOptions, parse_options
from connectors.spark.planning import Split, plan
from magnetar.runtime.types import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.spark.cluster import FrozenTopic
    from connectors.spark.rows import Values


class SplitPartition(InputPartition):
    """What one task reads; pickled by Spark."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)


class MagnetarSource(DataSource):
    """The data source. Only what `schema()` sets travels on to the reader."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._parsed: ReadOptions | None = None
        self._frozen: list[FrozenTopic] | None = None

    @classmethod
    def name(cls) -> str:
        return "magnetar"

    def _plan_once(self) -> tuple[ReadOptions, "list[FrozenTopic]"]:
        from connectors.spark.cluster import freeze

        if self._parsed is None:
            self._parsed = parse_options(self.options)
        if self._frozen is None:
            self._frozen = asyncio.run(freeze(self._parsed))
        return self._parsed, self._frozen

    def schema(self) -> t.StructType:
        """The default columns, or those of option `columns`."""
        options, frozen = self._plan_once()
        known, default = available_columns(options, frozen)
        chosen = options.columns or default
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise ConfigurationError(f"columns {', '.join(unknown)} do not exist; there are {', '.join(known)}")
        return t.StructType([known[name] for name in chosen])

    def reader(self, schema: t.StructType) -> DataSourceReader:
        options, frozen = self._plan_once()
        known, _ = available_columns(options, frozen)
        problems = []
        for field in schema.fields:
            expected = known.get(field.name)
            if expected is None:
                problems.append(f"column {field.name} does not exist; there are {', '.join(known)}")
            elif expected.dataType != field.dataType:
                problems.append(f"column {field.name} is {expected.dataType.simpleString()}, "
                                f"not {field.dataType.simpleString()}")  # fmt: skip
        if problems:
            raise ConfigurationError("\n".join(problems))
        return MagnetarReader(options, frozen, schema, _values(options, frozen))


class MagnetarReader(DataSourceReader):
    """Plans and reads; every attribute can be pickled."""

    def __init__(
        self, options: ReadOptions, frozen: "list[FrozenTopic]", schema: t.StructType, values: "Values"
    ) -> None:
        self._options = options
        self._ranges = [topic_range for topic in frozen for topic_range in topic.ranges]
        self._schema = schema
        self._values = values

    def partitions(self) -> list[InputPartition]:
        """One for each task; without anything to read an empty list, for which Spark runs one task with nothing."""
        splits = plan(
            self._ranges,
            target_bytes=self._options.target_bytes,
            min_partitions=self._options.min_partitions,
            max_partitions=self._options.max_partitions,
        )
        return [SplitPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Record batches of the columns asked for."""
        split = partition.value
        if not isinstance(split, Split):
            return  # Spark's stand-in for an empty list of partitions
        from pyspark.sql.pandas.types import to_arrow_schema

        from connectors.spark.reader import read_split

        yield from read_split(self._options, split, to_arrow_schema(self._schema, timezone="UTC"), self._values)


def available_columns(
    options: ReadOptions, frozen: "list[FrozenTopic]"
) -> tuple[dict[str, t.StructField], tuple[str, ...]]:
    """Every column that can be asked for, by name, and the names of the default ones."""
    from connectors.spark.rows import DEFAULT_METADATA, METADATA_COLUMNS

    values = _value_columns(options, frozen)
    known = {field.name: field for field in values}
    for name, (kind, nullable) in METADATA_COLUMNS.items():
        known[name] = t.StructField(name, kind, nullable)
    return known, (*(field.name for field in values), *DEFAULT_METADATA)


def _value_columns(options: ReadOptions, frozen: "list[FrozenTopic]") -> list[t.StructField]:
    from connectors.spark.values import columns_of

    kind = _value_kind(options, frozen)
    if kind == "binary":
        return [t.StructField("value", t.BinaryType(), True)]
    if kind == "string":
        return [t.StructField("value", t.StringType(), True)]
    topic = frozen[0]
    fields = columns_of(topic.schemas[-1].schema.data, topic.name)
    # A null message has no fields, so each column can be null.
    return [t.StructField(field.name, field.dataType, True) for field in fields]


def _value_kind(options: ReadOptions, frozen: "list[FrozenTopic]") -> str:
    """binary, string, avro or json; `auto` is decided by the topic's schema."""
    from connectors.spark.cluster import common_schema
    from managed_ledger.schema_compatibility import SchemaType

    wanted = options.value_format
    if wanted in ("binary", "string"):
        return wanted
    schemas = common_schema(frozen)
    kind = schemas[-1].schema.type if schemas else SchemaType.NONE
    if wanted == "auto":
        return {SchemaType.AVRO: "avro", SchemaType.JSON: "json", SchemaType.STRING: "string"}.get(kind, "binary")
    if kind.name.lower() != wanted:
        raise ConfigurationError(
            f"valueFormat={wanted}, but the schema of {frozen[0].name} is {kind.name}; use valueFormat=binary"
        )
    return wanted


def _values(options: ReadOptions, frozen: "list[FrozenTopic]") -> "Values":
    from connectors.spark.values import AvroValues, JsonValues

    kind = _value_kind(options, frozen)
    if kind == "avro":
        schemas = frozen[0].schemas
        return AvroValues({found.version: found.schema.data for found in schemas}, schemas[-1].version)
    return JsonValues() if kind == "json" else None


def register(spark: Any) -> None:
    """Make the format known to a session in which it was not found by itself."""
    spark.dataSource.register(MagnetarSource)
