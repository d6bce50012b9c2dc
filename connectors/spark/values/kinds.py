"""What a schema describes: its kind, the columns of it, and what decodes values of it.

kind        columns
binary      `value`, as it is stored
string      `value`, text
primitive   `value`, of the type that Spark has for it
avro, json  one for each field of the record
protobuf    one for each field of the message
keyvalue    `key` and `value`, each of one of the kinds above; records are structs
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import types as t

from connectors.spark.values.key_values import KeyValueValues, halves_of
from connectors.spark.values.protobuf_values import ProtobufValues, message_fields
from connectors.spark.values.records import (
    AvroValues,
    JsonValues,
    PlainValues,
    PrimitiveValues,
    Values,
    columns_of,
    primitive_type,
)
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.schemas.compatibility import SchemaType
from managed_ledger.schemas.stored import StoredSchema

_KINDS: Final[Mapping[SchemaType, str]] = {
    SchemaType.AVRO: "avro",
    SchemaType.JSON: "json",
    SchemaType.STRING: "string",
    SchemaType.KEY_VALUE: "keyvalue",
    SchemaType.PROTOBUF_NATIVE: "protobuf",
}


def kind_of(newest: StoredSchema | None) -> str:
    """Other schemas, and none, leave the values as they are stored: binary."""
    if newest is None:
        return "binary"
    kind = newest.schema.type
    return "primitive" if primitive_type(kind) is not None else _KINDS.get(kind, "binary")


def fields_of(kind: str, newest: StoredSchema | None, topic: str) -> list[t.StructField]:
    """The columns of values of *kind*. Raises ConfigurationError."""
    if kind in ("binary", "string") or newest is None:
        return [t.StructField("value", t.StringType() if kind == "string" else t.BinaryType(), True)]
    if kind == "keyvalue":
        pair = halves_of(newest, topic)
        return [
            t.StructField(name, _column_type(half, f"{topic} ({name})"), True)
            for name, half in (("key", pair.key), ("value", pair.value))
        ]
    primitive = primitive_type(newest.schema.type)
    if primitive is not None:
        return [t.StructField("value", primitive, True)]
    return message_fields(newest, topic) if kind == "protobuf" else columns_of(newest, topic)


def _column_type(half: StoredSchema, topic: str) -> t.DataType:
    kind = kind_of(half)
    fields = fields_of(kind, half, topic)
    return t.StructType(fields) if kind in RECORDS else fields[0].dataType


RECORDS: Final = ("avro", "json", "protobuf")
"""Kinds whose values have columns of their own."""


def values_of(kind: str, versions: Sequence[StoredSchema], newest: StoredSchema, topic: str) -> Values:
    """What decodes values of *kind*, written with any of *versions*, as *newest* says. Raises ConfigurationError."""
    match kind:
        case "avro":
            return AvroValues(versions, newest, topic)
        case "json":
            return JsonValues(newest, topic)
        case "protobuf":
            return ProtobufValues(newest, topic)
        case "primitive":
            return PrimitiveValues(newest.schema.type)
        case "keyvalue":
            return _key_values(versions, newest, topic)
        case _:
            return PlainValues(is_text=kind == "string")


def _key_values(versions: Sequence[StoredSchema], newest: StoredSchema, topic: str) -> KeyValueValues:
    pair = halves_of(newest, topic)
    split = [halves_of(version, topic) for version in versions if version.schema.type is SchemaType.KEY_VALUE]
    if any(stored_pair.is_apart != pair.is_apart for stored_pair in split):
        raise ConfigurationError(
            f"versions of the schema of {topic} differ in kv.encoding.type; read it with valueFormat=binary"
        )

    def half(newest_half: StoredSchema, halves: Sequence[StoredSchema], name: str) -> tuple[Values, bool]:
        kind = kind_of(newest_half)
        return values_of(kind, halves, newest_half, f"{topic} ({name})"), kind in RECORDS

    return KeyValueValues(
        half(pair.key, [stored_pair.key for stored_pair in split], "key"),
        half(pair.value, [stored_pair.value for stored_pair in split], "value"),
        is_apart=pair.is_apart,
    )
