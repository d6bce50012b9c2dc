"""From an Avro schema to Spark's types, and from stored values to Python values that Arrow takes.

A record's fields become columns. `["null", X]` is a nullable X; other unions have no column type and are refused.
Values that were written with an older schema are resolved to the one fixed at `load()`.
"""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import types as t

from magnetar.runtime.types import ConfigurationError, Corruption

Decode = Callable[[bytes], dict[str, Any]]

_PRIMITIVES: Final[Mapping[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
}

# Avro's logical types that fastavro turns into Python values that Arrow takes. Others (time of day, duration) stay the
# numbers or bytes that they are stored as.
_LOGICAL: Final[Mapping[tuple[str, str], t.DataType]] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("string", "uuid"): t.StringType(),
}


def columns_of(definition: bytes, topic: str) -> list[t.StructField]:
    """The columns of a record schema. Raises ConfigurationError where a type has none."""
    schema = json.loads(definition)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigurationError(f"the schema of {topic} is not a record; read it with valueFormat=binary")
    fields = _Types(topic).record(schema)
    clash = [field.name for field in fields if field.name.startswith("__")]
    if clash:
        raise ConfigurationError(
            f"fields {clash} of {topic} have the names of metadata columns; use valueFormat=binary"
        )
    return fields


class _Types:
    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._named: dict[str, t.DataType | None] = {}

    def record(self, schema: dict[str, Any]) -> list[t.StructField]:
        return [self._field(field) for field in schema["fields"]]

    def _field(self, field: dict[str, Any]) -> t.StructField:
        kind, nullable = self._type(field["type"], field["name"])
        return t.StructField(field["name"], kind, nullable)

    def _type(self, schema: Any, place: str) -> tuple[t.DataType, bool]:
        if isinstance(schema, list):
            branches = [branch for branch in schema if branch != "null"]
            if len(branches) != 1:
                raise ConfigurationError(
                    f"{self._topic}: field {place} is a union of {len(branches)} types, which no column has; "
                    "use valueFormat=binary and decode it yourself"
                )
            return self._type(branches[0], place)[0], len(branches) < len(schema)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema], False
            found = self._named.get(schema) or self._named.get(schema.rpartition(".")[2])
            if found is None:
                raise ConfigurationError(f"{self._topic}: field {place} has the unknown or recursive type {schema}")
            return found, False
        return self._complex(schema, place), False

    def _complex(self, schema: dict[str, Any], place: str) -> t.DataType:
        kind = schema["type"]
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return t.DecimalType(schema["precision"], schema.get("scale", 0))
        if isinstance(kind, str) and isinstance(logical, str) and (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        made: t.DataType
        if kind == "record":
            self._named[schema["name"]] = None
            made = t.StructType(self.record(schema))
        elif kind == "enum":
            made = t.StringType()
        elif kind == "fixed":
            made = t.BinaryType()
        elif kind == "array":
            element, nullable = self._type(schema["items"], place + "[]")
            return t.ArrayType(element, nullable)
        elif kind == "map":
            element, nullable = self._type(schema["values"], place + "{}")
            return t.MapType(t.StringType(), element, nullable)
        else:
            return self._type(kind, place)[0]
        self._named[schema["name"]] = made
        return made


class AvroValues:
    """Decodes record values of a topic. Picklable; *definitions* are all versions of the schema, by number."""

    def __init__(self, definitions: Mapping[int, bytes], version: int) -> None:
        self._definitions = dict(definitions)
        self._version = version
        self._decoders: dict[int, Decode] = {}

    def decoder(self, version: int | None) -> Decode:
        """For values written with *version* (None: the newest). Raises Corruption for an unknown one."""
        number = self._version if version is None else version
        decode = self._decoders.get(number)
        if decode is None:
            decode = self._decoders[number] = self._make(number)
        return decode

    def _make(self, number: int) -> Decode:
        import fastavro

        if number not in self._definitions:
            raise Corruption(f"a value names version {number} of its schema, which the registry does not have")
        writer = fastavro.parse_schema(_without_times(json.loads(self._definitions[number])))
        reader = None
        if number != self._version:
            reader = fastavro.parse_schema(_without_times(json.loads(self._definitions[self._version])))
        read: Callable[..., Any] = fastavro.schemaless_reader

        def decode(data: bytes) -> dict[str, Any]:
            found: dict[str, Any] = read(io.BytesIO(data), writer, reader)
            return found

        return decode

    def __getstate__(self) -> tuple[dict[int, bytes], int]:
        return self._definitions, self._version

    def __setstate__(self, state: tuple[dict[int, bytes], int]) -> None:
        self._definitions, self._version = state
        self._decoders = {}


class JsonValues:
    """Decodes values that are JSON objects; missing members are null."""

    def decoder(self, version: int | None) -> Decode:
        def decode(data: bytes) -> dict[str, Any]:
            found = json.loads(data)
            if not isinstance(found, dict):
                raise Corruption(f"expected a JSON object, found {data[:40]!r}")
            return found

        return decode


def _without_times(schema: Any) -> Any:
    """Times of day and durations stay numbers: Spark has no type for what fastavro makes of them."""
    if isinstance(schema, list):
        return [_without_times(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {key: _without_times(value) if key in ("type", "items", "values") else value
               for key, value in schema.items()}  # fmt: skip
    if str(schema.get("logicalType", "")).startswith(("time-", "duration", "local-timestamp")):
        del cleaned["logicalType"]
    if "fields" in schema:
        cleaned["fields"] = [{**field, "type": _without_times(field["type"])} for field in schema["fields"]]
    return cleaned
