"""From rows of a DataFrame to messages. No IO.

    column                          becomes
    value                           the payload: binary as it is, text in UTF-8, null a null value
    (valueFormat avro, json)        every column without `__` in front is a field of the record
    __key (or key)                  the key: text, or bytes that are UTF-8
    __topic (or topic)              the topic, where no option says it
    __eventTime                     the event time, in whole milliseconds
    __messageProperties             the properties
    __messageId, __publishTime, …   nothing: the new messages have their own

`key` and `topic` are fields like others where values are records.
"""

import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as t

from connectors.spark.options.metadata_columns import METADATA_COLUMNS
from connectors.spark.write.message import Outgoing
from magnetar_core.runtime.types import ConfigurationError

if TYPE_CHECKING:  # Spark imports this in a process of its own for each batch of a stream, to end it
    import pyarrow as pa

VALUE: Final = "value"
_KEYS: Final = ("__key", "key")
_TOPICS: Final = ("__topic", "topic")
_EVENT_TIME: Final = "__eventTime"
_PROPERTIES: Final = "__messageProperties"

_AVRO_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_EPOCH: Final = date(1970, 1, 1)


class Columns:
    """What the columns of a DataFrame mean. Can be pickled."""

    def __init__(self, schema: t.StructType, value_format: str, *, has_topic: bool) -> None:
        """*has_topic*: the options name the topic. Raises ConfigurationError with every problem."""
        problems: list[str] = []
        types = {field.name: field.dataType for field in schema.fields}
        is_record = value_format != "binary"
        plain = [name for name in types if not name.startswith("__")]
        self._format = value_format
        self._key = next((name for name in (_KEYS[:1] if is_record else _KEYS) if name in types), None)
        topic = next((name for name in (_TOPICS[:1] if is_record else _TOPICS) if name in types), None)
        for first, second in () if is_record else (_KEYS, _TOPICS):
            if first in types and second in types:
                problems.append(f"columns {first} and {second} mean the same: leave one out")
        self._topic = None if has_topic else topic
        self._event_time = _EVENT_TIME if _EVENT_TIME in types else None
        self._properties = _PROPERTIES if _PROPERTIES in types else None
        if topic is None and not has_topic:
            problems.append("no topic: set option topic, or have a column __topic")
        self.definition: dict[str, Any] | None = None
        """The Avro schema of the records; None: values are bytes."""
        if is_record:
            self._fields = [field for field in schema.fields if field.name in plain]
            if not self._fields:
                problems.append(f"valueFormat={value_format} needs columns without `__` in front: the record's fields")
            try:
                self.definition = record_of(self._fields, "Record")
            except ConfigurationError as error:
                problems.append(str(error))
        else:
            self._fields = []
            known = {VALUE, *_KEYS, *_TOPICS}
            problems += [
                f"column {name} means nothing: write value, __key, __topic, __eventTime and __messageProperties, or "
                "records with valueFormat=avro or json"
                for name in plain
                if name not in known
            ]
            if VALUE not in types:
                problems.append("there is no column value")
            elif not isinstance(types[VALUE], t.BinaryType | t.StringType):
                problems.append(
                    f"column value is {types[VALUE].simpleString()}: cast it to binary or string, or write records "
                    "with valueFormat=avro or json"
                )
        unknown = [name for name in types if name.startswith("__") and name not in METADATA_COLUMNS]
        problems += [f"column {name} does not exist; there are {', '.join(METADATA_COLUMNS)}" for name in unknown]
        for name, wanted in (
            (self._key, t.BinaryType | t.StringType),
            (self._topic, t.StringType),
            (self._event_time, t.TimestampType | t.TimestampNTZType),
            (self._properties, t.MapType),
        ):
            if name is not None and not isinstance(types[name], wanted):
                problems.append(f"column {name} cannot be {types[name].simpleString()}")
        if problems:
            raise ConfigurationError("; ".join(problems))

    def messages(self, batch: "pa.RecordBatch") -> Iterator[Outgoing]:
        """The messages of a batch of rows, in order. Raises ConfigurationError for a row that cannot be a message."""
        import pyarrow as pa

        count = batch.num_rows
        nothing: list[Any] = [None] * count
        keys = nothing if self._key is None else batch.column(self._key).to_pylist()
        topics = nothing if self._topic is None else batch.column(self._topic).to_pylist()
        properties = nothing if self._properties is None else batch.column(self._properties).to_pylist()
        times = nothing
        if self._event_time is not None:
            column = batch.column(self._event_time)
            times = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
        values = self._records(batch) if self._fields else batch.column(VALUE).to_pylist()
        for value, key, topic, time_us, props in zip(values, keys, topics, times, properties, strict=True):
            if self._topic is not None and topic is None:
                raise ConfigurationError(f"a row has no topic: column {self._topic} is null")
            yield Outgoing(
                topic,
                value.encode() if isinstance(value, str) else value,
                _key_text(key),
                None if time_us is None else time_us // 1000,
                None if props is None else {name: text for name, text in props if text is not None},
            )

    def _records(self, batch: "pa.RecordBatch") -> list[bytes]:
        """The encoded record of each row."""
        import fastavro

        columns = []
        for field in self._fields:
            convert = _converter(field.dataType, is_json=self._format == "json")
            values = batch.column(field.name).to_pylist()
            columns.append(
                values if convert is None else [None if value is None else convert(value) for value in values]
            )
        names = [field.name for field in self._fields]
        rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        if self._format == "json":
            return [json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() for row in rows]
        assert self.definition is not None, "records have a schema"
        schema = fastavro.parse_schema(self.definition)
        records = []
        for row in rows:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, row)
            records.append(out.getvalue())
        return records


def _key_text(key: str | bytes | None) -> str | None:
    """Raises ConfigurationError."""
    if not isinstance(key, bytes):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"key {key[:40]!r} is not UTF-8, and the official client sends keys as text only; make it text, as with "
            "base64(__key), or leave the column out"
        ) from None


# ------------------------------------------------------------------------------------------- schemas

_SIMPLE: Final[Mapping[type[t.DataType], str]] = {
    t.BooleanType: "boolean",
    t.ByteType: "int",
    t.ShortType: "int",
    t.IntegerType: "int",
    t.LongType: "long",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.StringType: "string",
    t.BinaryType: "bytes",
}
_LOGICAL: Final[Mapping[type[t.DataType], tuple[str, str]]] = {
    t.DateType: ("int", "date"),
    t.TimestampType: ("long", "timestamp-micros"),
    t.TimestampNTZType: ("long", "local-timestamp-micros"),
}


def record_of(fields: list[t.StructField], name: str) -> dict[str, Any]:
    """The Avro schema of a struct; inner records are named by their places. Raises ConfigurationError."""
    avro_fields = []
    for field in fields:
        if not _AVRO_NAME.fullmatch(field.name):
            raise ConfigurationError(f"{field.name} is a name that Avro does not allow: use letters, digits and _")
        kind = _schema_of(field.dataType, f"{name}_{field.name}")
        avro_field: dict[str, Any] = {"name": field.name, "type": kind}
        if field.nullable:
            avro_field = {"name": field.name, "type": ["null", kind], "default": None}
        avro_fields.append(avro_field)
    return {"type": "record", "name": name, "fields": avro_fields}


def _schema_of(kind: t.DataType, name: str) -> Any:
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    if type(kind) in _LOGICAL:
        base, logical = _LOGICAL[type(kind)]
        return {"type": base, "logicalType": logical}
    if isinstance(kind, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if isinstance(kind, t.StructType):
        return record_of(kind.fields, name)
    if isinstance(kind, t.ArrayType):
        items = _schema_of(kind.elementType, f"{name}_item")
        return {"type": "array", "items": ["null", items] if kind.containsNull else items}
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        values = _schema_of(kind.valueType, f"{name}_value")
        return {"type": "map", "values": ["null", values] if kind.valueContainsNull else values}
    raise ConfigurationError(f"{name.partition('_')[2]} is {kind.simpleString()}, which Avro has no type for: cast it")


Convert = Callable[[Any], Any]


def _converter(kind: t.DataType, *, is_json: bool) -> Convert | None:
    """A function from Arrow's values to those that the encoder takes; None: no conversion. Nulls are not converted."""
    if isinstance(kind, t.StructType):
        inner = [(field.name, _converter(field.dataType, is_json=is_json)) for field in kind.fields]
        return lambda row: {
            name: row[name] if convert is None or row[name] is None else convert(row[name]) for name, convert in inner
        }
    if isinstance(kind, t.ArrayType):
        item = _converter(kind.elementType, is_json=is_json)
        if item is None:
            return None
        return lambda values: [None if element is None else item(element) for element in values]
    if isinstance(kind, t.MapType):
        value = _converter(kind.valueType, is_json=is_json)
        return lambda pairs: {
            name: element if value is None or element is None else value(element) for name, element in pairs
        }
    return _JSON.get(type(kind)) if is_json else None


def _micros(time: datetime) -> int:
    whole = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    passed = whole - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def _decimal(number: Decimal) -> str:
    return format(number, "f")


# As `connectors.spark.values.records` reads them: numbers of days and microseconds, bytes in base64, decimals as texts.
_JSON: Final[Mapping[type[t.DataType], Convert]] = {
    t.BinaryType: lambda data: base64.b64encode(data).decode("ascii"),
    t.DateType: lambda day: (day - _EPOCH).days,
    t.TimestampType: _micros,
    t.TimestampNTZType: _micros,
    t.DecimalType: _decimal,
}
