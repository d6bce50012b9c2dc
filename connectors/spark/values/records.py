"""From a topic's schema to Spark's types, and from stored values to Python values that Arrow takes.

    schema                  columns
    Avro or JSON record     one for each field; `["null", X]` is a nullable X; other unions are structs in Avro
                            (`avro_unions`), and refused in JSON
    a primitive type        `value`, of that type
    anything else, none     `value`, as it is stored

Values that were written with an older version of an Avro schema are resolved to the newest at `load()`. The bytes of
the primitive types are those of Pulsar's own schemas (recorded: tests/vectors/entries).
"""

import base64
import decimal
import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

import pyarrow as pa
from pyspark.sql import types as t

from connectors.spark.batches.borders import Numbers
from connectors.spark.batches.columnar import Messages, taken
from connectors.spark.values import avro_unions as unions
from connectors.spark.values.avro_columns import AvroColumns
from connectors.spark.values.avro_names import qualified
from connectors.spark.values.limits import AvroLimits, JsonLimits
from magnetar_core.runtime.data.avro_aliases import with_aliases_applied
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.schemas.compatibility import SchemaType
from managed_ledger.schemas.stored import StoredSchema

Decode = Callable[[bytes], dict[str, Any]]


class Values(Protocol):
    """Decodes the values of one topic into columns. Can be pickled."""

    @property
    def names(self) -> frozenset[str]:
        """The columns that it makes."""
        ...

    @property
    def has_keys_apart(self) -> bool:
        """The keys of the messages belong to their values: decoders take both, as `decoding` joins them."""
        ...

    @property
    def default_bytes(self) -> int:
        """About how many bytes a value may get from its schema beside its own."""
        ...

    def decoder(self, version: int | None) -> Decode:
        """The decoder for values written with schema *version* (None: the newest). It returns a value for each column,
        null where one is missing. Raises Corruption for an unknown version. The decoder raises whatever its library
        raises for bytes that do not fit."""
        ...

    def columns(
        self, version: int | None, messages: Messages, rows: Numbers, wanted: Sequence[pa.Field]
    ) -> dict[str, pa.Array] | None:
        """The *wanted* columns of some *rows* at once; None where that cannot be done. Raises UnusualLayout."""
        ...


# ------------------------------------------------------------------------------------------- types

_PRIMITIVES: Final[Mapping[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
}

# Avro's logical types that Spark has a type for. Others (time of day, duration, nanoseconds) stay the numbers or bytes
# that they are stored as.
_LOGICAL: Final[Mapping[tuple[str, str], t.DataType]] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
    ("string", "uuid"): t.StringType(),
}

# What fastavro converts: decimals, by a function of ours under a name of our own, for its own has no limit. Of times,
# which Arrow takes as numbers, it would make datetimes: slow, and none after 9999.
_CONVERTED: Final = {"decimal": "magnetar-decimal"}

# Spark's limit, which is also that of Arrow's 128 bits.
_PRECISION_MAX: Final = 38

DECIMAL_BYTES_MAX: Final = 64
"""A number of 38 digits has 16 bytes, and writers may put more of its sign before them. Longer ones take a time that
grows with the square of their length."""

DECIMAL_DIGITS_MAX: Final = 200
"""The same for those that are text, in JSON."""


def columns_of(schema: StoredSchema, topic: str) -> list[t.StructField]:
    """The columns of an Avro or JSON record. Raises ConfigurationError where a type has none."""
    definition = _definition(schema, topic)
    try:
        fields = _Types(topic, has_members=schema.schema.type is SchemaType.AVRO).record(definition)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise _not_understood(topic, f"{error!r:.200}") from None
    clash = [field.name for field in fields if field.name.startswith("__")]
    if clash:
        raise ConfigurationError(
            f"fields {clash} of {topic} have the names of metadata columns; read it with valueFormat=binary"
        )
    if schema.schema.type is SchemaType.JSON:
        fields = [
            nullable_field(field) for field in fields
        ]  # nothing checks the fields of a JSON text against its schema
    # A null message has no fields, so each column can be null.
    return [t.StructField(field.name, field.dataType, True) for field in fields]


def _not_understood(topic: str, reason: object) -> ConfigurationError:
    return ConfigurationError(f"the schema of {topic} cannot be understood ({reason}); read it with valueFormat=binary")


def _definition(schema: StoredSchema, topic: str) -> dict[str, Any]:
    try:
        definition = parse_json(schema.schema.data)
    except ValueError as error:
        raise ConfigurationError(
            f"the schema of {topic} is not JSON ({error}); read it with valueFormat=binary"
        ) from None
    if not isinstance(definition, dict) or definition.get("type") != "record":
        raise ConfigurationError(f"the schema of {topic} is not a record; read it with valueFormat=binary")
    try:
        with_names: dict[str, Any] = qualified(definition)
        AvroLimits(with_names)
    except (LookupError, TypeError, AttributeError) as error:
        raise _not_understood(topic, f"{error!r:.200}") from None
    except ValueError as error:
        raise _not_understood(topic, error) from None
    return with_names


def nullable_field(field: t.StructField) -> t.StructField:
    """The same field, with null allowed everywhere inside."""
    return t.StructField(field.name, _with_nulls(field.dataType), True)


def _with_nulls(kind: t.DataType) -> t.DataType:
    """The same type, with null allowed everywhere inside."""
    if isinstance(kind, t.StructType):
        return t.StructType([nullable_field(field) for field in kind.fields])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_with_nulls(kind.elementType), True)
    if isinstance(kind, t.MapType):
        return t.MapType(kind.keyType, _with_nulls(kind.valueType), True)
    return kind


class _Types:
    def __init__(self, topic: str, *, has_members: bool) -> None:
        """*has_members*: the bytes say which type of a union a value has, as Avro's do and JSON's do not."""
        self._topic = topic
        self._has_members = has_members
        self._named: dict[str, t.DataType | None] = {}

    def record(self, schema: dict[str, Any]) -> list[t.StructField]:
        return [self._field(field) for field in schema["fields"]]

    def _field(self, field: dict[str, Any]) -> t.StructField:
        kind, nullable = self._type(field["type"], field["name"])
        return t.StructField(field["name"], kind, nullable)

    def _type(self, schema: Any, place: str) -> tuple[t.DataType, bool]:
        if isinstance(schema, list):
            branches = unions.branches_of(schema)
            if self._has_members and len(branches) > 1:
                number = unions.number_of(schema)
                if number is not None:
                    return _PRIMITIVES[number], len(branches) < len(schema)
                fields = [self._field(member) for member in unions.members(schema)]
                struct = t.StructType([t.StructField(field.name, field.dataType, True) for field in fields])
                return struct, len(branches) < len(schema)
            if len(branches) != 1:
                raise ConfigurationError(
                    f"{self._topic}: field {place} is a union of {len(branches)} types, which no column has; "
                    "use valueFormat=binary and decode it yourself"
                )
            return self._type(branches[0], place)[0], len(branches) < len(schema)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema], False
            known = self._named.get(schema)
            if known is None:
                raise ConfigurationError(
                    f"{self._topic}: field {place} has the unknown or recursive type {schema}; use valueFormat=binary "
                    "and decode it yourself"
                )
            return known, False
        return self._complex_type(schema, place)

    def _complex_type(self, schema: dict[str, Any], place: str) -> tuple[t.DataType, bool]:
        kind = schema["type"]
        logical = schema.get("logicalType")
        column_type: t.DataType
        if logical == "decimal" and kind in ("bytes", "fixed"):
            if schema["precision"] > _PRECISION_MAX:
                raise ConfigurationError(
                    f"{self._topic}: field {place} is a decimal of {schema['precision']} digits, and columns have at "
                    f"most {_PRECISION_MAX}; use valueFormat=binary and decode it yourself"
                )
            if not 0 <= schema.get("scale", 0) <= schema["precision"]:
                raise ValueError(f"field {place} is a decimal of scale {schema['scale']}")
            column_type = t.DecimalType(schema["precision"], schema.get("scale", 0))
        elif isinstance(kind, str) and isinstance(logical, str) and (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical], False
        elif kind == "record":
            self._named[schema["name"]] = None
            column_type = t.StructType(self.record(schema))
        elif kind == "enum":
            column_type = t.StringType()
        elif kind == "fixed":
            column_type = t.BinaryType()
        elif kind == "array":
            return t.ArrayType(*self._type(schema["items"], place + "[]")), False
        elif kind == "map":
            return t.MapType(t.StringType(), *self._type(schema["values"], place + "{}")), False
        else:
            return self._type(kind, place)
        if "name" in schema:
            self._named[schema["name"]] = column_type
        return column_type, False


# -------------------------------------------------------------------------------------------- Avro


class AvroValues:
    """Values of a topic with Avro records: those of every version of the schema become records of the newest one.

    Topics that are read together have versions of their own, and one schema to which they are resolved.
    """

    has_keys_apart = False
    default_bytes = 0

    def __init__(self, schemas: Sequence[StoredSchema], newest: StoredSchema, topic: str) -> None:
        """*schemas* are those of *topic*; *newest* fixes the columns. Raises ConfigurationError."""
        self._topic = topic
        self._definitions = {stored.version: stored.schema.data for stored in schemas
                             if stored.schema.type is SchemaType.AVRO}  # fmt: skip
        self._newest = newest.schema.data
        self._default_version = schemas[-1].version
        definition = _definition(newest, topic)
        self.names = frozenset(field["name"] for field in definition["fields"])
        self.default_bytes = AvroLimits(definition).default_bytes
        self._decoders: dict[int, Decode] = {}
        self._columns: AvroColumns | None = None

    def decoder(self, version: int | None) -> Decode:
        number = self._default_version if version is None else version
        decode = self._decoders.get(number)
        if decode is None:
            decode = self._decoders[number] = self._make_decoder(number)
        return decode

    def _make_decoder(self, number: int) -> Decode:
        from fastavro import parse_schema, schemaless_reader
        from fastavro.read import LOGICAL_READERS
        from fastavro.schema import SchemaParseException

        if number not in self._definitions:
            known = ", ".join(map(str, self._definitions))
            raise Corruption(f"it has version {number} of its schema, which the registry does not have (has: {known})")
        newest = json.loads(self._newest)
        limits = AvroLimits(qualified(newest))
        try:
            written = parse_json(self._definitions[number])
            if self._definitions[number] != self._newest:
                limits = AvroLimits(qualified(written), read_as=limits)
                written = with_aliases_applied(written, newest)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise Corruption(f"version {number} of its schema cannot be understood: {error!r:.200}") from None
        # Avro refuses to resolve records of different names; but the schemas of a topic are versions of one record.
        newest["aliases"] = [*newest.get("aliases", ()), _full_name(written)]
        try:
            writer = parse_schema(_prepared(written))
            reader = None if self._definitions[number] == self._newest else parse_schema(_prepared(newest))
        except SchemaParseException as error:
            raise Corruption(f"version {number} of its schema is not valid Avro: {error}") from None
        convert = _converter(qualified(newest), _AVRO_CONVERSIONS)
        LOGICAL_READERS.update({f"{kind}-{_CONVERTED['decimal']}": _avro_decimal for kind in ("bytes", "fixed")})

        def decode(data: bytes) -> dict[str, Any]:
            limits.check(data)
            return cast(dict[str, Any], schemaless_reader(io.BytesIO(data), writer, reader))

        if convert is None:
            return decode
        return lambda data: convert(decode(data))

    def columns(
        self, version: int | None, messages: Messages, rows: Numbers, wanted: Sequence[pa.Field]
    ) -> dict[str, pa.Array] | None:
        number = self._default_version if version is None else version
        if self._definitions.get(number) != self._newest:
            return None
        if self._columns is None:
            self._columns = AvroColumns(qualified(json.loads(self._newest)))
        starts, ends = messages.places()
        return self._columns.read(messages.data, starts[rows], ends[rows], {field.name: field.type for field in wanted})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoders": {}, "_columns": None}


_WIDE: Final = decimal.Context(prec=DECIMAL_DIGITS_MAX)


def _avro_decimal(data: Any, written: dict[Any, Any] | None, read: object) -> decimal.Decimal:
    assert written is not None
    if len(data) > DECIMAL_BYTES_MAX:
        raise ValueError(f"a decimal has {len(data)} bytes, and {DECIMAL_BYTES_MAX} is the limit")
    return _WIDE.scaleb(decimal.Decimal(int.from_bytes(data, "big", signed=True)), -written.get("scale", 0))


def _full_name(record: dict[str, Any]) -> str:
    name: str = record["name"]
    namespace = record.get("namespace")
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _prepared(schema: Any, path: tuple[str, ...] = ()) -> Any:
    """The schema without the logical types that are not to be converted by fastavro, with unions that name their types.
    *path*: the fields around it."""
    if isinstance(schema, list):
        union = unions.as_records(schema, path) if unions.has_members(schema) else schema
        return [_prepared(branch, path) for branch in union]
    if not isinstance(schema, dict):
        return schema
    cleaned = {key: _prepared(value, path if key == "type" else (*path, key))
               if key in ("type", "items", "values") else value for key, value in schema.items()}  # fmt: skip
    logical = cleaned.pop("logicalType", None)
    if logical in _CONVERTED:
        cleaned["logicalType"] = _CONVERTED[logical]
    if "fields" in schema:
        cleaned["fields"] = [
            {**field, "type": _prepared(field["type"], (*path, field["name"]))} for field in schema["fields"]
        ]
    return cleaned


# -------------------------------------------------------------------------------------------- JSON


class JsonValues:
    """Values that are JSON objects; a missing member is null, one that the schema does not know is left out."""

    has_keys_apart = False
    default_bytes = 0

    def __init__(self, schema: StoredSchema, topic: str) -> None:
        """Raises ConfigurationError."""
        self._definition = _definition(schema, topic)
        self.names = frozenset(field["name"] for field in self._definition["fields"])

    def decoder(self, version: int | None) -> Decode:
        convert = _converter(self._definition, _JSON_CONVERSIONS)
        limits = JsonLimits(self._definition)

        def decode(data: bytes) -> dict[str, Any]:
            limits.check(data)
            value = json.loads(data)
            if not isinstance(value, dict):
                raise Corruption(f"expected a JSON object, found {data[:40]!r}")
            return value if convert is None else convert(value)

        return decode

    def columns(
        self, version: int | None, messages: Messages, rows: Numbers, wanted: Sequence[pa.Field]
    ) -> dict[str, pa.Array] | None:
        return None


# ------------------------------------------------------------------------------------- conversions

Convert = Callable[[Any], Any]


def _to_micros(value: Any) -> Any:
    if not isinstance(value, int):
        raise ValueError(f"expected milliseconds, found {value!r:.40}")
    return value * 1000


def _json_object(value: Any) -> dict[str, Any]:
    # Arrow takes lists of pairs, too: it mixes them up with objects, and ends the process over a null among the pairs.
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {value!r:.40}")
    return value


def _json_array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected an array, found {value!r:.40}")
    return value


def _json_decimal(value: Any) -> decimal.Decimal:
    text = str(value)
    if len(text) > DECIMAL_DIGITS_MAX:
        raise ValueError(f"a decimal has {len(text)} characters, and {DECIMAL_DIGITS_MAX} is the limit")
    number = decimal.Decimal(text)
    if abs(number.adjusted()) > DECIMAL_DIGITS_MAX:
        raise ValueError(f"a decimal has the exponent {number.adjusted()}")
    return number


# By type and logical type (None: without any). Arrow takes timestamps as microseconds.
_AVRO_CONVERSIONS: Final[Mapping[tuple[str, str | None], Convert]] = {
    ("long", "timestamp-millis"): _to_micros,
    ("long", "local-timestamp-millis"): _to_micros,
}
_JSON_CONVERSIONS: Final[Mapping[tuple[str, str | None], Convert]] = {
    **_AVRO_CONVERSIONS,
    ("record", None): _json_object,
    ("map", None): _json_object,
    ("array", None): _json_array,
    ("bytes", None): base64.b64decode,
    ("fixed", None): base64.b64decode,
    ("bytes", "decimal"): _json_decimal,
    ("fixed", "decimal"): _json_decimal,
}


def _converter(
    schema: Any, conversions: Mapping[tuple[str, str | None], Convert], named: dict[str, Convert | None] | None = None
) -> Convert | None:
    """A function over the values of *schema*; None if nothing in it is to be converted. Nulls stay null."""
    named = {} if named is None else named
    if isinstance(schema, list):
        if unions.has_members(schema):
            return _of_record({"fields": unions.members(schema)}, conversions, named)
        # Of two numbers the column is the wider one, whatever they mean.
        return _converter(unions.number_of(schema) or unions.branches_of(schema)[0], conversions, named)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _unless_null(conversions.get((schema, None)))
        return named.get(schema)
    kind = schema["type"]
    convert: Convert | None
    if kind == "record":
        convert = _of_record(schema, conversions, named)
    elif kind == "array":
        convert = _of_items(_converter(schema["items"], conversions, named))
    elif kind == "map":
        convert = _of_values(_converter(schema["values"], conversions, named))
    elif isinstance(kind, str):
        convert = _unless_null(conversions.get((kind, schema.get("logicalType"))))
    else:
        convert = _converter(kind, conversions, named)
    if kind in ("record", "array", "map"):
        convert = _checked_first(conversions.get((kind, None)), convert)
    if "name" in schema:
        named[schema["name"]] = convert
    return convert


def _of_record(
    schema: dict[str, Any],
    conversions: Mapping[tuple[str, str | None], Convert],
    named: dict[str, Convert | None],
) -> Convert | None:
    fields = [(field["name"], _converter(field["type"], conversions, named)) for field in schema["fields"]]
    inner = [(name, convert) for name, convert in fields if convert is not None]
    if not inner:
        return None

    def of_record(record: dict[str, Any]) -> dict[str, Any]:
        return record | {name: convert(record[name]) for name, convert in inner if name in record}

    return _unless_null(of_record)


def _of_items(inner: Convert | None) -> Convert | None:
    return None if inner is None else _unless_null(lambda items: [inner(item) for item in items])


def _of_values(inner: Convert | None) -> Convert | None:
    return None if inner is None else _unless_null(lambda items: {key: inner(item) for key, item in items.items()})


def _checked_first(check: Convert | None, convert: Convert | None) -> Convert | None:
    """*convert* for what passes *check*."""
    if check is None or convert is None:
        return _unless_null(check) or convert
    return lambda value: None if value is None else convert(check(value))


def _unless_null(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


# -------------------------------------------------------------------------------------- primitives

_DAY_MS: Final = 86_400_000


def _number(layout: str) -> Convert:
    unpack = struct.Struct(layout).unpack
    return lambda data: unpack(data)[0]


def _boolean(data: bytes) -> bool:
    if len(data) != 1:
        raise ValueError(f"expected one byte, found {len(data)}")
    return data != b"\0"


def _micros_of_millis(data: bytes) -> int:
    return int.from_bytes(_of_length(data, 8), "big", signed=True) * 1000


def _days_of_millis(data: bytes) -> int:
    return int.from_bytes(_of_length(data, 8), "big", signed=True) // _DAY_MS


def _micros_of_instant(data: bytes) -> int:
    seconds, nanos = struct.unpack(">qi", data)
    return int(seconds * 1_000_000 + nanos // 1000)


def _micros_of_local_date_time(data: bytes) -> int:
    day, nanos = struct.unpack(">qq", data)
    return int(day * _DAY_MS * 1000 + nanos // 1000)


def _of_length(data: bytes, expected: int) -> bytes:
    if len(data) != expected:
        raise ValueError(f"expected {expected} bytes, found {len(data)}")
    return data


# Types without a counterpart in Spark stay numbers: milliseconds (TIME), nanoseconds of the day (LOCAL_TIME).
_PRIMITIVE_SCHEMAS: Final[Mapping[SchemaType, tuple[t.DataType, Convert]]] = {
    SchemaType.BOOLEAN: (t.BooleanType(), _boolean),
    SchemaType.INT8: (t.ByteType(), _number(">b")),
    SchemaType.INT16: (t.ShortType(), _number(">h")),
    SchemaType.INT32: (t.IntegerType(), _number(">i")),
    SchemaType.INT64: (t.LongType(), _number(">q")),
    SchemaType.FLOAT: (t.FloatType(), _number(">f")),
    SchemaType.DOUBLE: (t.DoubleType(), _number(">d")),
    SchemaType.DATE: (t.DateType(), _days_of_millis),
    SchemaType.TIME: (t.LongType(), _number(">q")),
    SchemaType.TIMESTAMP: (t.TimestampType(), _micros_of_millis),
    SchemaType.INSTANT: (t.TimestampType(), _micros_of_instant),
    SchemaType.LOCAL_DATE: (t.DateType(), _number(">q")),
    SchemaType.LOCAL_TIME: (t.LongType(), _number(">q")),
    SchemaType.LOCAL_DATE_TIME: (t.TimestampNTZType(), _micros_of_local_date_time),
}


def primitive_type(kind: SchemaType) -> t.DataType | None:
    """The type of the column `value`; None for schemas that are not primitive, or text."""
    entry = _PRIMITIVE_SCHEMAS.get(kind)
    return None if entry is None else entry[0]


class PrimitiveValues:
    """Values of one of Pulsar's primitive types, as column `value`."""

    names = frozenset({"value"})
    has_keys_apart = False
    default_bytes = 0

    def __init__(self, kind: SchemaType) -> None:
        self._kind = kind

    def decoder(self, version: int | None) -> Decode:
        _, convert = _PRIMITIVE_SCHEMAS[self._kind]
        return lambda data: {"value": convert(data)}

    def columns(
        self, version: int | None, messages: Messages, rows: Numbers, wanted: Sequence[pa.Field]
    ) -> dict[str, pa.Array] | None:
        return None


class PlainValues:
    """Values that are bytes or text, as column `value`."""

    names = frozenset({"value"})
    has_keys_apart = False
    default_bytes = 0

    def __init__(self, *, is_text: bool) -> None:
        self._is_text = is_text

    def decoder(self, version: int | None) -> Decode:
        if self._is_text:
            return lambda data: {"value": data.decode()}
        return lambda data: {"value": data}

    def columns(
        self, version: int | None, messages: Messages, rows: Numbers, wanted: Sequence[pa.Field]
    ) -> dict[str, pa.Array] | None:
        starts, ends = messages.places()
        values = taken(messages.data, starts[rows], ends[rows] - starts[rows])
        return {field.name: values.cast(field.type) for field in wanted}
