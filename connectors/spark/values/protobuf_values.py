"""Values that are messages of Protocol Buffers, as columns: what a PROTOBUF_NATIVE schema describes. No IO.

    schema    JSON: fileDescriptorSet (base64), rootMessageTypeName, rootFileDescriptorName

    field                               column
    int32, sint32, sfixed32             int
    uint32, fixed32; int64 and others   bigint
    uint64, fixed64                     decimal(20, 0)
    enum                                its name; the number as text where the schema has no name for it
    message, group                      struct; google.protobuf.Timestamp a timestamp
    repeated, map                       array, map

A field that has presence (proto2, `optional`, messages, members of a oneof) is null where it is not set; proto2's own
defaults are not filled in. One without (proto3) has its zero then. Fields are found by their numbers, so values of all
versions are read with the newest one.
"""

import base64
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from pyspark.sql import types as t

from connectors.spark.batches.borders import Numbers
from connectors.spark.batches.columnar import Messages
from connectors.spark.values.limits import ProtobufLimits
from connectors.spark.values.records import Decode
from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.schemas.stored import StoredSchema

Convert = Callable[[Any], Any]

_TIMESTAMP: Final = "google.protobuf.Timestamp"

# Every 64 bit number without a sign.
_UNSIGNED: Final = t.DecimalType(20, 0)

_TYPES: Final[dict[int, t.DataType]] = {
    FieldDescriptor.TYPE_DOUBLE: t.DoubleType(),
    FieldDescriptor.TYPE_FLOAT: t.FloatType(),
    FieldDescriptor.TYPE_INT64: t.LongType(),
    FieldDescriptor.TYPE_UINT64: _UNSIGNED,
    FieldDescriptor.TYPE_INT32: t.IntegerType(),
    FieldDescriptor.TYPE_FIXED64: _UNSIGNED,
    FieldDescriptor.TYPE_FIXED32: t.LongType(),
    FieldDescriptor.TYPE_BOOL: t.BooleanType(),
    FieldDescriptor.TYPE_STRING: t.StringType(),
    FieldDescriptor.TYPE_BYTES: t.BinaryType(),
    FieldDescriptor.TYPE_UINT32: t.LongType(),
    FieldDescriptor.TYPE_ENUM: t.StringType(),
    FieldDescriptor.TYPE_SFIXED32: t.IntegerType(),
    FieldDescriptor.TYPE_SFIXED64: t.LongType(),
    FieldDescriptor.TYPE_SINT32: t.IntegerType(),
    FieldDescriptor.TYPE_SINT64: t.LongType(),
}


def descriptor_of(schema: StoredSchema, topic: str) -> Descriptor:
    """The root message of a PROTOBUF_NATIVE schema, in a pool of its own. Raises ConfigurationError."""
    try:
        definition = json.loads(schema.schema.data)
        data = base64.b64decode(definition["fileDescriptorSet"], validate=True)
        files = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(data).file}
        pool = descriptor_pool.DescriptorPool()
        for file in _in_order(files):
            pool.Add(file)
        return pool.FindMessageTypeByName(definition["rootMessageTypeName"])
    except (ValueError, KeyError, TypeError, DecodeError, RecursionError) as error:
        raise ConfigurationError(
            f"the schema of {topic} is no description of a message ({error!r:.200}); read it with valueFormat=binary"
        ) from None


def _in_order(files: dict[str, descriptor_pb2.FileDescriptorProto]) -> list[descriptor_pb2.FileDescriptorProto]:
    """The files, each behind those that it imports. Raises ValueError for a file that is missing."""
    ordered: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    under_way: set[str] = set()

    def visit(name: str) -> None:
        if name in ordered:
            return
        if name not in files or name in under_way:
            raise ValueError(f"{name} is missing, or imports itself")
        under_way.add(name)
        for imported in files[name].dependency:
            visit(imported)
        ordered[name] = files[name]

    for name in files:
        visit(name)
    return list(ordered.values())


# ------------------------------------------------------------------------------------------- types


def message_fields(schema: StoredSchema, topic: str) -> list[t.StructField]:
    """The columns of the root message. Raises ConfigurationError where a type has none, or there are too many."""
    message = descriptor_of(schema, topic)
    try:
        ProtobufLimits(message)
    except ValueError as error:
        raise ConfigurationError(f"{topic}: {error}; use valueFormat=binary and decode it yourself") from None
    return _fields(message, topic, ())


def _fields(message: Descriptor, topic: str, within: tuple[str, ...]) -> list[t.StructField]:
    inside = (*within, message.full_name)
    clash = [field.name for field in message.fields if not within and field.name.startswith("__")]
    if clash:
        raise ConfigurationError(
            f"fields {clash} of {topic} have the names of metadata columns; read it with valueFormat=binary"
        )
    return [t.StructField(field.name, _type(field, topic, inside), True) for field in message.fields]


def _type(field: FieldDescriptor, topic: str, within: tuple[str, ...]) -> t.DataType:
    entry = _map_entry(field)
    if entry is not None:
        key, value = (_type_of_field(entry.fields_by_name[name], topic, within) for name in ("key", "value"))
        return t.MapType(key, value, False)
    value_type = _type_of_field(field, topic, within)
    return t.ArrayType(value_type, False) if field.is_repeated else value_type


def _type_of_field(field: FieldDescriptor, topic: str, within: tuple[str, ...]) -> t.DataType:
    if field.message_type is None:
        return _TYPES[field.type]
    if field.message_type.full_name == _TIMESTAMP:
        return t.TimestampType()
    return t.StructType(_fields(field.message_type, topic, within))


def _map_entry(field: FieldDescriptor) -> Descriptor | None:
    """The message of key and value that a map repeats; None for other fields."""
    kind = field.message_type
    return kind if kind is not None and kind.GetOptions().map_entry else None


# ------------------------------------------------------------------------------------------ values


def _converter(message: Descriptor) -> Convert:
    """A function from a message to a value for each of its fields."""
    fields = [(field.name, field.has_presence, _field_converter(field)) for field in message.fields]

    def convert(read: Message) -> dict[str, Any]:
        return {
            name: None if has_presence and not read.HasField(name) else convert_value(getattr(read, name))
            for name, has_presence, convert_value in fields
        }

    return convert


def _field_converter(field: FieldDescriptor) -> Convert:
    entry = _map_entry(field)
    if entry is not None:
        key, value = (_one_converter(entry.fields_by_name[name]) for name in ("key", "value"))
        return lambda pairs: [(key(map_key), value(pairs[map_key])) for map_key in pairs]
    convert = _one_converter(field)
    return (lambda items: [convert(item) for item in items]) if field.is_repeated else convert


def _one_converter(field: FieldDescriptor) -> Convert:
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    if field.message_type is None:
        return Decimal if _TYPES[field.type] is _UNSIGNED else lambda value: value
    if field.message_type.full_name == _TIMESTAMP:
        return lambda at: at.seconds * 1_000_000 + at.nanos // 1000
    return _converter(field.message_type)


class ProtobufValues:
    """Values that are messages; unknown fields are left out."""

    has_keys_apart = False
    default_bytes = 0

    def __init__(self, newest: StoredSchema, topic: str) -> None:
        """Raises ConfigurationError."""
        self._newest = newest
        self._topic = topic
        self.names = frozenset(field.name for field in descriptor_of(newest, topic).fields)
        self._decode: Decode | None = None

    def decoder(self, version: int | None) -> Decode:
        if self._decode is None:
            message = descriptor_of(self._newest, self._topic)
            read = message_factory.GetMessageClass(message).FromString
            convert = _converter(message)
            limits = ProtobufLimits(message)

            def decode(data: bytes) -> dict[str, Any]:
                limits.check(data)
                parsed = read(data)
                if not parsed.IsInitialized():
                    raise Corruption("a required field is missing")
                return dict(convert(parsed))

            self._decode = decode
        return self._decode

    def columns(
        self, version: int | None, messages: Messages, rows: Numbers, wanted: Sequence[pa.Field]
    ) -> dict[str, pa.Array] | None:
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decode": None}
