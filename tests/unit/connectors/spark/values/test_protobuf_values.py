"""Messages of Protocol Buffers: as Java's client wrote them, and of descriptions that are made here."""

import base64
import json
import pickle
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.spark.task.rows import RowBuilder
from connectors.spark.values.kinds import fields_of, kind_of, values_of
from connectors.spark.values.protobuf_values import descriptor_of
from connectors.spark.values.value_columns import _kind
from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.stored import StoredSchema
from tests.unit.connectors.spark.entries import TOPIC, add, plain, single
from tests.unit.connectors.spark.values.test_key_values import entries_of_vectors, stored_of_vectors


def timestamp_file() -> FileDescriptorProto:
    made = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(made)
    return made


def file_of(syntax: str, *messages: descriptor_pb2.DescriptorProto) -> FileDescriptorProto:
    made = FileDescriptorProto(name="t.proto", package="p", syntax=syntax, message_type=messages)
    made.dependency.append("google/protobuf/timestamp.proto")
    made.enum_type.add(name="Colour", value=[{"name": "NONE", "number": 0}, {"name": "RED", "number": 1}])
    return made


def schema_of(*files: FileDescriptorProto, root: str = "p.M") -> StoredSchema:
    found = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    definition = {
        "fileDescriptorSet": base64.b64encode(found).decode(), "rootMessageTypeName": root,
        "rootFileDescriptorName": files[0].name,
    }  # fmt: skip
    return StoredSchema(0, Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(definition).encode()), 0, "", False)


def simple(syntax: str, *fields: dict[str, Any], **more: Any) -> StoredSchema:
    """A message M with these fields, numbered from 1 on."""
    optional: dict[str, Any] = {"label": Field.LABEL_OPTIONAL}
    numbered = [Field(**{**optional, "number": number, **one}) for number, one in enumerate(fields, 1)]
    made = descriptor_pb2.DescriptorProto(name="M", field=numbered, **more)
    return schema_of(file_of(syntax, made), timestamp_file())


def read(schema: StoredSchema, *values: bytes) -> list[dict[str, Any]]:
    fields = fields_of("protobuf", schema, TOPIC)
    made = pickle.loads(pickle.dumps(values_of("protobuf", [schema], schema, TOPIC)))
    builder = RowBuilder(to_arrow_schema(t.StructType(fields), timezone="UTC"), TOPIC, -1, made)
    for entry_id, value in enumerate(values):
        add(builder, entry_id, single(value))
    (taken,) = builder.take()
    taken.validate(full=True)
    return plain(taken)


def message_of(schema: StoredSchema, **fields: Any) -> bytes:
    made: bytes = message_factory.GetMessageClass(descriptor_of(schema, TOPIC))(**fields).SerializeToString()
    return made


def types_of(schema: StoredSchema) -> list[str]:
    return [field.dataType.simpleString() for field in fields_of("protobuf", schema, TOPIC)]


def test_messages_of_javas_client_are_read() -> None:
    schema = stored_of_vectors("protonative")
    assert kind_of(schema) == "protobuf"
    assert types_of(schema) == ["bigint", "int"]
    payloads = entries_of_vectors("protonative")
    expected = []
    for entry in payloads:
        found = timestamp_pb2.Timestamp.FromString(bytes(next(messages_in(entry))))
        expected.append({"seconds": found.seconds, "nanos": found.nanos})
    assert expected
    assert read(schema, *(bytes(next(messages_in(entry))) for entry in payloads)) == expected


def messages_in(entry: bytes) -> Any:
    from managed_ledger.messages import messages_of

    return (found.payload for found in messages_of(entry)[1])


NUMBERS = {
    "double": 0.5, "float": 0.25, "int64": -(1 << 60), "uint64": (1 << 64) - 1, "int32": -5, "fixed64": 1 << 63,
    "fixed32": (1 << 32) - 1, "bool": True, "string": "ü", "bytes": b"\xff", "uint32": (1 << 32) - 1, "sfixed32": -6,
    "sfixed64": -7, "sint32": -8, "sint64": -9,
}  # fmt: skip


def test_every_scalar_type_has_its_column_and_keeps_its_largest_number() -> None:
    schema = simple("proto3", *({"name": name, "type": getattr(Field, f"TYPE_{name.upper()}")} for name in NUMBERS))
    assert dict(zip(NUMBERS, types_of(schema), strict=True)) == {
        "double": "double", "float": "float", "int64": "bigint", "uint64": "decimal(20,0)", "int32": "int",
        "fixed64": "decimal(20,0)", "fixed32": "bigint", "bool": "boolean", "string": "string", "bytes": "binary",
        "uint32": "bigint", "sfixed32": "int", "sfixed64": "bigint", "sint32": "int", "sint64": "bigint",
    }  # fmt: skip
    expected = {**NUMBERS, "uint64": Decimal((1 << 64) - 1), "fixed64": Decimal(1 << 63)}
    assert read(schema, message_of(schema, **NUMBERS)) == [expected]


def test_fields_without_presence_are_zero_and_others_null() -> None:
    fields = (
        {"name": "number", "type": Field.TYPE_INT32},
        {"name": "maybe", "type": Field.TYPE_INT32, "proto3_optional": True, "oneof_index": 1},
        {"name": "left", "type": Field.TYPE_STRING, "oneof_index": 0},
        {"name": "right", "type": Field.TYPE_INT32, "oneof_index": 0},
        {"name": "colour", "type": Field.TYPE_ENUM, "type_name": ".p.Colour"},
    )
    schema = simple("proto3", *fields, oneof_decl=[{"name": "side"}, {"name": "_maybe"}])
    assert read(schema, b"", message_of(schema, maybe=0, right=0, colour=1)) == [
        {"number": 0, "maybe": None, "left": None, "right": None, "colour": "NONE"},
        {"number": 0, "maybe": 0, "left": None, "right": 0, "colour": "RED"},
    ]
    assert read(schema, b"\x28\x07")[0]["colour"] == "7"  # an enum of proto3 is open


def test_proto2_is_null_where_nothing_is_set_and_its_required_fields_are_needed() -> None:
    fields = (
        {"name": "needed", "type": Field.TYPE_INT32, "label": Field.LABEL_REQUIRED},
        {"name": "maybe", "type": Field.TYPE_INT32, "default_value": "5"},
    )
    schema = simple("proto2", *fields)
    assert read(schema, message_of(schema, needed=1)) == [{"needed": 1, "maybe": None}]
    with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:0: a required field is missing"):
        read(schema, b"\x10\x01")


def test_nested_repeated_and_map_fields_are_nested_columns() -> None:
    many = Field.LABEL_REPEATED
    point = descriptor_pb2.DescriptorProto(name="Point", field=[
        Field(name="x", number=1, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL),
        Field(name="at", number=2, type=Field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp",
              label=Field.LABEL_OPTIONAL),
    ])  # fmt: skip
    options = descriptor_pb2.MessageOptions(map_entry=True)
    entry = descriptor_pb2.DescriptorProto(name="NamedEntry", options=options, field=[
        Field(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL),
        Field(name="value", number=2, type=Field.TYPE_MESSAGE, type_name=".p.M.Point", label=Field.LABEL_OPTIONAL),
    ])  # fmt: skip
    schema = simple(
        "proto3",
        {"name": "point", "type": Field.TYPE_MESSAGE, "type_name": ".p.M.Point"},
        {"name": "points", "type": Field.TYPE_MESSAGE, "type_name": ".p.M.Point", "label": many},
        {"name": "numbers", "type": Field.TYPE_UINT64, "label": many},
        {"name": "named", "type": Field.TYPE_MESSAGE, "type_name": ".p.M.NamedEntry", "label": many},
        nested_type=[point, entry],
    )
    inner = "struct<x:int,at:timestamp>"
    assert types_of(schema) == [inner, f"array<{inner}>", "array<decimal(20,0)>", f"map<string,{inner}>"]
    at = {"seconds": 1, "nanos": 500_000_999}
    data = message_of(schema, point={"at": at}, points=[{"x": 1}, {"x": 2}], numbers=[1], named={"k": {"x": 3}})
    first, second = read(schema, data, b"")
    assert first["point"]["x"] == 0
    assert first["point"]["at"].timestamp() == 1.5
    assert first["points"] == [{"x": 1, "at": None}, {"x": 2, "at": None}]
    assert (first["numbers"], first["named"]) == ([Decimal(1)], [("k", {"x": 3, "at": None})])
    assert second == {"point": None, "points": [], "numbers": [], "named": []}


def test_bytes_that_are_no_message_name_their_entry() -> None:
    schema = simple("proto3", {"name": "a", "type": Field.TYPE_STRING})
    for bad in (b"\x0a\x05x", b"\xff", b"\x0a\x01\xff"):
        with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:1: message 0 is not what its schema says"):
            read(schema, b"", bad)


def test_descriptions_that_are_none_are_refused_with_the_way_out() -> None:
    good = simple("proto3")
    for data in (
        b"{",
        b"{}",
        b'{"fileDescriptorSet": "%"}',
        b'{"fileDescriptorSet": "/w==", "rootMessageTypeName": "M"}',
    ):
        with pytest.raises(ConfigurationError, match=rf"{TOPIC} is no description of a message .*valueFormat=binary"):
            fields_of("protobuf", good._replace(schema=good.schema._replace(data=data)), TOPIC)
    lonely = schema_of(file_of("proto3", descriptor_pb2.DescriptorProto(name="M")))
    with pytest.raises(ConfigurationError, match=r"google/protobuf/timestamp\.proto is missing"):
        fields_of("protobuf", lonely, TOPIC)
    itself = simple("proto3", {"name": "again", "type": Field.TYPE_MESSAGE, "type_name": ".p.M"})
    with pytest.raises(ConfigurationError, match=r"message p\.M contains itself"):
        fields_of("protobuf", itself, TOPIC)
    hidden = simple("proto3", {"name": "__key", "type": Field.TYPE_INT32})
    with pytest.raises(ConfigurationError, match="names of metadata columns"):
        fields_of("protobuf", hidden, TOPIC)


def test_what_avro_describes_is_refused_as_protobuf_and_bytes_by_itself() -> None:
    schema = stored_of_vectors("proto")
    assert schema.schema.type is SchemaType.PROTOBUF
    assert _kind("auto", schema, TOPIC) == "binary"
    with pytest.raises(ConfigurationError, match="register it as PROTOBUF_NATIVE, or use valueFormat=binary"):
        _kind("protobuf", schema, TOPIC)
