"""`spark.read.format("magnetar")`: topics as DataFrames, read from the bookies.

    spark.read.format("magnetar").option("metadata.url", "zk:127.0.0.1:2181").option("topic", "my-topic").load()

What is read is fixed when `load()` is called (with a schema of the user's own: at the first action).
`.schema("value binary, __publishTime timestamp")`, or option `columns` for SQL, chooses columns; nothing else is built
or sent then. (docs/spark.md)
"""

import asyncio
import json
import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as t
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from connectors.spark.options.read import Kind, Mode, ReadOptions, parse_options
from connectors.spark.options.table import BROKER_PREFIXES, without_table_properties
from connectors.spark.plan.planning import Split, plan
from magnetar_core.runtime.types import ConfigurationError

if TYPE_CHECKING:  # Spark imports this module to see whether the format is known: it must be quick
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from connectors.spark.options.write import WriteOptions
    from connectors.spark.plan.cluster import FrozenTopic
    from connectors.spark.plan.filters import Pushed
    from connectors.spark.values.records import Values

log = logging.getLogger(__name__)


class SplitPartition(InputPartition):
    """What one task reads; pickled by Spark. *topic* is its place in the options."""

    def __init__(self, split: Split, topic: int) -> None:
        super().__init__(split)
        self.topic = topic


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
        from connectors.spark.plan.cluster import freeze, positions
        from connectors.spark.task.key_folder import KeyFolder
        from connectors.spark.worker.heap import settle
        from connectors.spark.worker.log import let_through

        settle()
        if self._parsed is None:
            self._parsed = parse_options(self.options, Kind.EITHER)
            if self._parsed.unused:
                log.warning("not needed for reading: %s", ", ".join(self._parsed.unused))
            if self._parsed.key_folder:
                KeyFolder(self._parsed.key_folder)  # before any task looks into it
        if self._frozen is None:
            let_through()
            self._frozen = asyncio.run(freeze(self._parsed))
            if not self._parsed.compacted and not self._parsed.backlog_of:
                log.info("to repeat this read, set endingOffsets to %s", json.dumps(positions(self._frozen)))
        return self._parsed, self._frozen

    def schema(self) -> t.StructType:
        """The default columns, or those of option `columns`."""
        options, frozen = self._plan_once()
        known, default = available_columns(options, frozen)
        chosen = options.columns or default
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise ConfigurationError(f"columns {', '.join(unknown)} do not exist; there are {', '.join(known)}")
        return with_options(t.StructType([known[name] for name in chosen]), self.options)

    def reader(self, schema: t.StructType) -> DataSourceReader:
        if not self.options.get("metadata.url"):
            self.options = {**options_in(schema), **self.options}
        if not self.options:
            raise ConfigurationError(
                "no metadata.url: Spark hands over no options of a table with columns of its own; create it without "
                "columns, and with OPTIONS (columns '…') to choose some"
            )
        parse_options(self.options, Kind.BATCH)
        options, frozen = self._plan_once()
        if not frozen:
            raise ConfigurationError(f"no topic matches topicsPattern={options.pattern}")
        known, _ = available_columns(options, frozen)
        _check_projection(schema, known, options.columns)
        from connectors.spark.values.value_columns import ValueColumns

        columns = ValueColumns(options, frozen)
        if options.push_down_filters and not hasattr(DataSourceReader, "pushFilters"):
            raise ConfigurationError("pushDownFilters needs PySpark 4.1 or later; leave the option out")
        kind = PushDownFiltersReader if options.push_down_filters else MagnetarReader
        return kind(options, frozen, schema, [columns.values(str(topic.topic), topic.schemas) for topic in frozen])

    def streamReader(self, schema: t.StructType) -> DataSourceStreamReader:
        try:
            from connectors.spark.stream.driver import MagnetarStreamReader
            from connectors.spark.values.value_columns import ValueColumns
        except ImportError as error:
            raise ConfigurationError(f"streams of topics need PySpark 4.2 or later ({error})") from error
        options = parse_options(self.options, Kind.STREAM)
        if options.fail_on_new_schema is None:
            # Spark asks for `schema()` before, unless the query has a schema of the user's own.
            has_all = self._frozen is not None and not options.columns
            options = replace(options, fail_on_new_schema=has_all)
        _, frozen = self._plan_once()
        known, _ = available_columns(options, frozen)
        _check_projection(schema, known, options.columns)
        return MagnetarStreamReader(options, schema, ValueColumns(options, frozen))

    def writer(self, schema: t.StructType, overwrite: bool) -> "DataSourceWriter":
        from connectors.spark.sink import TopicWriter

        return TopicWriter(self._write_options(overwrite), schema)

    def streamWriter(self, schema: t.StructType, overwrite: bool) -> "DataSourceStreamWriter":
        from connectors.spark.sink import StreamTopicWriter

        return StreamTopicWriter(self._write_options(overwrite), schema)

    def _write_options(self, overwrite: bool) -> "WriteOptions":
        from connectors.spark.options.write import parse_write_options

        if not self.options:
            raise ConfigurationError(
                "no service.url: set it to the address of the brokers, pulsar://host:6650. An INSERT has none of its "
                'table\'s options: write with df.write.format("magnetar").mode("append").option("service.url", …)'
                '.option("topic", …).save()'
            )
        if overwrite:
            raise ConfigurationError("topics are appended to, not overwritten: write with mode append")
        options = parse_write_options(self.options)
        if options.unused:
            log.warning("not needed for writing: %s", ", ".join(options.unused))
        return options


_METADATA: Final = "magnetar.options"


def with_options(schema: t.StructType, options: Mapping[str, str]) -> t.StructType:
    """The columns of a table, which carry its options: Spark 4.3 keeps those of `CREATE TABLE … USING` in its catalog,
    and hands them over when the table is made and not when it is read. What a broker is shown stays out."""
    if "provider" not in {key.lower() for key in options}:
        return schema  # a read, or a view
    kept = {
        key: value
        for key, value in without_table_properties(options).items()
        if not key.lower().startswith(BROKER_PREFIXES)
    }
    first, *others = schema.fields
    carrying = t.StructField(first.name, first.dataType, first.nullable, {_METADATA: json.dumps(kept, sort_keys=True)})
    return t.StructType([carrying, *others])


def options_in(schema: t.StructType) -> dict[str, str]:
    """The options of the table whose columns these are, or some of them; empty if they belong to no table."""
    for field in schema.fields:
        if _METADATA in field.metadata:
            return dict(json.loads(field.metadata[_METADATA]))
    return {}


def _check_projection(schema: t.StructType, known: Mapping[str, t.StructField], columns: Sequence[str]) -> None:
    """Raises ConfigurationError unless each column exists, with its type, and takes the nulls that there may be.
    *columns*: those of the option, if it is given."""
    problems = []
    if columns and schema.names != list(columns):
        problems.append(
            f"columns={','.join(columns)} and the schema with {','.join(schema.names)} both choose columns: "
            "leave one out"
        )
    if not schema.fields:
        problems.append(f"no columns are asked for; there are {', '.join(known)}")
    for name in sorted({name for name in schema.names if schema.names.count(name) > 1}):
        problems.append(f"column {name} is asked for more than once")
    for field in schema.fields:
        expected = known.get(field.name)
        if expected is None:
            problems.append(f"column {field.name} does not exist; there are {', '.join(known)}")
        elif not _may_be_declared(expected.dataType, field.dataType):
            problems.append(
                f"column {field.name} is {expected.dataType.simpleString()}, not {field.dataType.simpleString()}"
            )
        elif expected.nullable and not field.nullable:
            problems.append(f"column {field.name} may be null, so it cannot be asked for as NOT NULL")
    if problems:
        raise ConfigurationError("; ".join(problems))


def _may_be_declared(own: t.DataType, asked: t.DataType) -> bool:
    """Whether a column of type *made* may be declared as *asked*: the same type, or one that allows more nulls."""
    if isinstance(own, t.StructType) and isinstance(asked, t.StructType):
        return own.names == asked.names and all(
            _may_be_declared(field.dataType, other.dataType) and (other.nullable or not field.nullable)
            for field, other in zip(own.fields, asked.fields, strict=True)
        )
    if isinstance(own, t.ArrayType) and isinstance(asked, t.ArrayType):
        return _may_be_declared(own.elementType, asked.elementType) and (asked.containsNull or not own.containsNull)
    if isinstance(own, t.MapType) and isinstance(asked, t.MapType):
        return (
            _may_be_declared(own.keyType, asked.keyType)
            and _may_be_declared(own.valueType, asked.valueType)
            and (asked.valueContainsNull or not own.valueContainsNull)
        )
    return own == asked


class MagnetarReader(DataSourceReader):
    """Plans and reads; every attribute can be pickled."""

    def __init__(
        self,
        options: ReadOptions,
        frozen: "Sequence[FrozenTopic]",
        schema: t.StructType,
        values: "Sequence[Values | None]",
    ) -> None:
        """*values* belong to the topics of *frozen*, one each."""
        self._options = options
        self._ranges = [topic.ranges for topic in frozen]
        self._closed_ms = {ledger: ms for topic in frozen for ledger, ms in topic.closed_ms.items()}
        self._pushed: Pushed | None = None
        self._is_planned = False
        self._schema = schema
        self._values = values

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get what they read with their partition, not the whole topic as well."""
        return {**self.__dict__, "_ranges": [], "_closed_ms": {}} if self._is_planned else self.__dict__

    def partitions(self) -> list[InputPartition]:
        """One partition for each task. If nothing is to be read there is none, and Spark runs one task with nothing."""
        from connectors.spark.plan.pruning import chosen

        self._is_planned = True
        topics = {part.topic: number for number, ranges in enumerate(self._ranges) for part in ranges}
        splits = plan(
            chosen(
                self._options,
                [topic_range for ranges in self._ranges for topic_range in ranges],
                self._closed_ms,
                self._pushed,
            ),
            target_bytes=self._options.target_bytes,
            min_partitions=self._options.min_partitions,
            max_partitions=self._options.max_partitions,
        )
        return [SplitPartition(split, topics[split.topic]) for split in splits]

    def read(self, partition: InputPartition) -> "Generator[pa.RecordBatch, None, None]":
        """Record batches of the columns asked for."""
        if not isinstance(partition, SplitPartition):
            return  # Spark's stand-in for an empty list of partitions
        from pyspark.sql.pandas.types import to_arrow_schema

        from connectors.spark.task.reader import read_split

        schema = to_arrow_schema(self._schema, timezone="UTC")
        yield from read_split(self._options, partition.value, schema, self._values[partition.topic], self._pushed)


class PushDownFiltersReader(MagnetarReader):
    """Option `pushDownFilters`: takes the filters of a query.

    A class of its own, and named as the option is: while `spark.sql.python.filterPushdown.enabled` is off, as it is by
    default, Spark refuses every query of a reader with `pushFilters`, and names its class and that setting.
    """

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Gives every filter back: Spark checks each row again."""
        from connectors.spark.plan.filters import Pushed

        self._pushed = Pushed(filters)
        return filters


def available_columns(
    options: ReadOptions, frozen: "Sequence[FrozenTopic]"
) -> tuple[dict[str, t.StructField], tuple[str, ...]]:
    """Every column that can be asked for, by name, and the names of the default ones."""
    from connectors.spark.options.metadata_columns import DEFAULT_METADATA, METADATA_COLUMNS, NOT_OF_BAD_ENTRIES
    from connectors.spark.task.encryption import ENCRYPTION_COLUMNS
    from connectors.spark.values.value_columns import value_fields

    values = value_fields(options, frozen)
    known = {field.name: field for field in values}
    for name, (kind, nullable) in METADATA_COLUMNS.items():
        is_text_key = name == "__key" and options.key_is_text
        may_be_unknown = options.mode is Mode.PERMISSIVE and name in NOT_OF_BAD_ENTRIES
        known[name] = t.StructField(name, t.StringType() if is_text_key else kind, nullable or may_be_unknown)
    encryption = ENCRYPTION_COLUMNS if options.passes_encrypted else {}
    for name, kind in encryption.items():
        known[name] = t.StructField(name, kind, True)
    return known, (*(field.name for field in values), *DEFAULT_METADATA, *encryption)


def register(spark: Any) -> None:
    """Register the format in a session that did not find it by itself."""
    spark.dataSource.register(MagnetarSource)
