import datetime
import decimal
import io
import json
import pickle
import uuid
from typing import Any

import fastavro
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.spark.task.rows import RowBuilder
from connectors.spark.values.records import AvroValues, JsonValues, PrimitiveValues, Values, columns_of, primitive_type
from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.stored import StoredSchema, version_bytes
from tests.support.vectors import b64, load
from tests.unit.connectors.spark.entries import TOPIC, add, batch, message, plain, single


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def stored(definition: Any, version: int = 0, kind: SchemaType = SchemaType.AVRO) -> StoredSchema:
    return StoredSchema(version, Schema(kind, json.dumps(definition).encode()), 0, "", False)


def avro(definition: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(definition), value)
    return buffer.getvalue()


def rows(values: Values, columns: list[t.StructField], *entries: bytes) -> list[dict[str, Any]]:
    """Through Arrow, as Spark gets them."""
    builder = RowBuilder(
        to_arrow_schema(t.StructType(columns), timezone="UTC"), TOPIC, -1, pickle.loads(pickle.dumps(values))
    )
    for entry_id, data in enumerate(entries):
        add(builder, entry_id, data)
    (taken,) = builder.take()
    taken.validate(full=True)
    return plain(taken)


def read_avro(definition: Any, *values: Any) -> list[dict[str, Any]]:
    schema = stored(definition)
    entries = [single(avro(definition, value), schema_version=version_bytes(0)) for value in values]
    return rows(AvroValues([schema], schema, TOPIC), columns_of(schema, TOPIC), *entries)


def read_json(definition: Any, *texts: str) -> list[dict[str, Any]]:
    schema = stored(definition, kind=SchemaType.JSON)
    entries = [single(text.encode()) for text in texts]
    return rows(JsonValues(schema, TOPIC), columns_of(schema, TOPIC), *entries)


# -------------------------------------------------------------------------------------------- Avro


SIMPLE = {"boolean": True, "int": -5, "long": 1 << 40, "float": 0.5, "double": 0.1, "bytes": b"\xff", "string": "ü"}


def test_primitive_fields_are_columns() -> None:
    definition = record(*(field(kind, kind) for kind in SIMPLE))
    assert read_avro(definition, SIMPLE) == [SIMPLE]
    types = [column.dataType.simpleString() for column in columns_of(stored(definition), TOPIC)]
    assert types == ["boolean", "int", "bigint", "float", "double", "binary", "string"]


def test_logical_types_are_sparks() -> None:
    moment = datetime.datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=datetime.UTC)
    local = moment.replace(tzinfo=None)
    own = uuid.uuid4()
    micros = int(moment.timestamp()) * 1_000_000 + 123_456
    definition = record(
        field("day", {"type": "int", "logicalType": "date"}),
        field("millis", {"type": "long", "logicalType": "timestamp-millis"}),
        field("micros", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
        field("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
        field("time", {"type": "int", "logicalType": "time-millis"}),
        field("uuid", {"type": "string", "logicalType": "uuid"}),
        field("money", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
        field("fixed_money", {"type": "fixed", "size": 8, "name": "F", "logicalType": "decimal", "precision": 5}),
    )
    value = {
        "day": moment.date(), "millis": moment, "micros": moment, "local": local, "time": datetime.time(0, 0, 1),
        "uuid": own, "money": decimal.Decimal("-12.30"), "fixed_money": decimal.Decimal(7),
    }  # fmt: skip
    assert read_avro(definition, value) == [
        {**value, "millis": micros // 1000 * 1000, "micros": micros, "local": micros // 1000 * 1000, "time": 1000,
         "uuid": str(own)}
    ]  # fmt: skip


def test_times_far_beyond_pythons_are_read() -> None:
    definition = record(field("at", {"type": "long", "logicalType": "timestamp-millis"}))
    plain_definition = record(field("at", "long"))
    schema = stored(definition)
    entry = single(avro(plain_definition, {"at": 1 << 52}))
    found = rows(AvroValues([schema], schema, TOPIC), columns_of(schema, TOPIC), entry)
    assert found == [{"at": (1 << 52) * 1000}]


def test_a_time_that_no_column_has_is_refused_and_not_another_time() -> None:
    definition = record(field("at", {"type": "long", "logicalType": "timestamp-millis"}))
    for beyond in (2**63 - 1, -(2**63)):
        with pytest.raises(Corruption, match=f"at is {beyond * 1000}, which is no timestamp"):
            read_avro(definition, {"at": 1}, {"at": beyond})


def test_nested_types_are_nested_columns() -> None:
    definition = record(
        field(
            "point", record(field("x", "int"), field("names", {"type": "array", "items": ["null", "string"]}), name="P")
        ),
        field("again", ["null", "P"], default=None),
        field("counts", {"type": "map", "values": {"type": "array", "items": "long"}}),
        field("colour", {"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}),
        field("hash", {"type": "fixed", "name": "H", "size": 2}),
        field("times", {"type": "array", "items": {"type": "long", "logicalType": "timestamp-millis"}}),
        namespace="a.b",
    )
    point = {"x": 1, "names": ["a", None]}
    values = [
        {"point": point, "again": point, "counts": {"k": [1, 2]}, "colour": "BLUE", "hash": b"ab", "times": []},
        {"point": point, "again": None, "counts": {}, "colour": "RED", "hash": b"cd", "times": []},
    ]
    found = read_avro(definition, *values)
    assert [{**row, "counts": dict(row["counts"])} for row in found] == values
    columns = {column.name: column for column in columns_of(stored(definition), TOPIC)}
    assert columns["point"].dataType == columns["again"].dataType
    assert columns["point"].dataType.simpleString() == "struct<x:int,names:array<string>>"
    assert all(column.nullable for column in columns.values())
    point_type = columns["point"].dataType
    assert isinstance(point_type, t.StructType)
    assert not point_type["x"].nullable


def test_types_of_one_name_in_different_namespaces_are_told_apart() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    definition = record(
        field("x", record(field("i", millis), name="P", namespace="a")),
        field("y", record(field("j", "long"), name="P", namespace="b")),
        field("far", "a.P"),
        field("list", {"type": "array", "items": "a.P"}),
        field("near", record(field("k", "string"), name="P")),
        field("same", ["null", "P"]),
        namespace="c",
    )
    value = {
        "x": {"i": 1}, "y": {"j": 2}, "far": {"i": 3}, "list": [{"i": 4}], "near": {"k": "5"}, "same": {"k": "6"},
    }  # fmt: skip
    one, three, four = (datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC) for ms in (1, 3, 4))
    expected = {**value, "x": {"i": one}, "far": {"i": three}, "list": [{"i": four}]}
    assert read_avro(definition, value) == [expected], "one by one"
    assert read_json(definition, json.dumps(value)) == [expected]
    definition["fields"] = [one for one in definition["fields"] if one["name"] != "list"]
    del value["list"], expected["list"]
    assert read_avro(definition, value) == [expected], "all at once"


def test_times_inside_of_others_are_converted() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    definition = record(
        field("one", record(field("at", millis), name="Inner")),
        field("many", {"type": "array", "items": ["null", "Inner"]}),
        field("by_name", {"type": "map", "values": millis}),
    )
    at = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    (found,) = read_avro(definition, {"one": {"at": at}, "many": [{"at": at}, None], "by_name": {"k": at}})
    assert found == {"one": {"at": at}, "many": [{"at": at}, None], "by_name": [("k", at)]}


def test_a_null_message_has_no_fields() -> None:
    definition = record(field("a", "int"))
    schema = stored(definition)
    entry = batch(message(b"", null_value=True), message(avro(definition, {"a": 1})), message(b"", compacted_out=True))
    assert rows(AvroValues([schema], schema, TOPIC), columns_of(schema, TOPIC), entry) == [{"a": None}, {"a": 1}]


def test_older_versions_are_resolved_to_the_newest() -> None:
    old = record(field("age", "int"), field("gone", "string"), name="Old")
    new = record(field("name", ["null", "string"], default=None), field("age", "long"), name="New", namespace="x")
    schemas = [stored(old, 0), stored(new, 1)]
    entries = [
        single(avro(old, {"age": 1, "gone": "x"}), schema_version=version_bytes(0)),
        single(avro(new, {"name": "n", "age": 2}), schema_version=version_bytes(1)),
        single(avro(new, {"name": "n", "age": 3})),  # a producer without a schema
    ]
    found = rows(AvroValues(schemas, schemas[1], TOPIC), columns_of(schemas[1], TOPIC), *entries)
    assert found == [{"name": None, "age": 1}, {"name": "n", "age": 2}, {"name": "n", "age": 3}]


def test_values_of_a_renamed_field_do_not_go_to_another_one_that_got_its_name() -> None:
    """As Java's consumers read them (`Schema.applyAliases`); in records that are within, too."""

    def made(*fields: dict[str, Any]) -> dict[str, Any]:
        inner = record(*fields, name="Inner")
        return record(*fields, field("inner", ["null", inner]), field("list", {"type": "array", "items": "Inner"}))

    old = made(field("a", "string"))
    new = made(field("b", "string", aliases=["a"]), field("a", "string", default="new"))
    inner = {"a": "was a"}
    entries = [
        single(avro(old, {**inner, "inner": inner, "list": [inner]}), schema_version=version_bytes(0)),
        single(avro(new, {"a": "1", "b": "2", "inner": None, "list": []}), schema_version=version_bytes(1)),
    ]
    values = AvroValues([stored(old), stored(new, 1)], stored(new, 1), TOPIC)
    read = {"b": "was a", "a": "new"}
    first, second = rows(values, columns_of(stored(new, 1), TOPIC), *entries)
    assert {name: first[name] for name in ("a", "b", "inner", "list")} == {**read, "inner": read, "list": [read]}
    assert (second["a"], second["b"]) == ("1", "2")


def test_topics_that_are_read_together_have_versions_of_their_own() -> None:
    old, new = record(field("a", "int")), record(field("a", "int"), field("b", "int", default=5))
    newest = stored(new, 0)
    other = [stored(old, 0), stored(new, 1)]
    values = AvroValues(other, newest, TOPIC)
    entry = single(avro(old, {"a": 1}), schema_version=version_bytes(0))
    assert rows(values, columns_of(newest, TOPIC), entry) == [{"a": 1, "b": 5}]


def test_bytes_that_are_no_record_name_entry_and_message() -> None:
    definition = record(field("a", "int"), field("text", "string"))
    schema = stored(definition)
    values, columns = AvroValues([schema], schema, TOPIC), columns_of(schema, TOPIC)
    good = avro(definition, {"a": 1, "text": "x"})
    for bad in (b"", b"\x02", b"\x02\x7f", b"\xff" * 12, b"\x02\x04\xff\xff"):
        with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:1: message 1 is not what its schema says"):
            rows(values, columns, single(good), batch(message(good), message(bad)))
    with pytest.raises(Corruption, match="not what its schema says: EOFError; it was sent without a schema"):
        rows(values, columns, single(b"\x02"))
    with pytest.raises(Corruption) as caught:
        rows(values, columns, single(b"\x02", schema_version=version_bytes(0)))
    assert "sent without" not in str(caught.value)
    with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:0: it has version 9 of its schema.*\(has: 0\)"):
        rows(values, columns, single(good, schema_version=version_bytes(9)))


@pytest.mark.parametrize(
    ("definition", "complaint"),
    [
        (record(field("a", ["null", "R"])), "unknown or recursive type R"),
        (record(field("__key", "int")), "names of metadata columns"),
        (record(field("a", {"type": "bytes", "logicalType": "decimal", "precision": 50})), "decimal of 50 digits"),
        ("string", "is not a record"),
    ],
)
def test_schemas_without_columns_are_refused(definition: Any, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        columns_of(stored(definition), TOPIC)


UNION = record(
    field("a", ["int", "null", "string", {"type": "long", "logicalType": "timestamp-millis"}]),
    field("number", ["null", "int", "long"]),
    field("real", ["double", "float"]),
    field("many", {"type": "array", "items": ["string", record(field("x", ["boolean", "bytes"]), name="Inner")]}),
    field("again", ["Inner", "string"]),
)


def test_unions_of_several_types_are_structs_with_a_member_for_each() -> None:
    moment = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    columns = {column.name: column.dataType.simpleString() for column in columns_of(stored(UNION), TOPIC)}
    inner = "struct<x:struct<member0:boolean,member1:binary>>"
    assert columns == {
        "a": "struct<member0:int,member1:string,member2:timestamp>", "number": "bigint", "real": "double",
        "many": f"array<struct<member0:string,member1:{inner}>>", "again": f"struct<member0:{inner},member1:string>",
    }  # fmt: skip
    found = read_avro(
        UNION,
        {"a": 5, "number": 1 << 40, "real": 0.5, "many": ["s", {"x": b"\xff"}], "again": {"x": True}},
        {"a": None, "number": None, "real": 0.5, "many": [], "again": "t"},
        {"a": ("long", 1000), "number": 3, "real": 0.5, "many": [], "again": "t"},
    )
    nothing = {"member0": None, "member1": None, "member2": None}
    assert found[0] == {
        "a": {**nothing, "member0": 5}, "number": 1 << 40, "real": 0.5,
        "many": [
            {"member0": "s", "member1": None},
            {"member0": None, "member1": {"x": {"member0": None, "member1": b"\xff"}}},
        ],
        "again": {"member0": {"x": {"member0": True, "member1": None}}, "member1": None},
    }  # fmt: skip
    assert (found[1]["a"], found[1]["number"]) == (None, None)
    assert found[1]["again"] == {"member0": None, "member1": "t"}
    assert found[2]["a"] == {**nothing, "member2": moment}


def test_a_union_that_grew_is_read_in_older_versions() -> None:
    old = record(field("a", ["int", "string"]))
    new = record(field("b", ["string", "int"], default=""), field("a", ["int", "string", "boolean"]))
    schemas = [stored(old, 0), stored(new, 1)]
    entry = single(avro(old, {"a": "x"}), schema_version=version_bytes(0))
    assert rows(AvroValues(schemas, schemas[1], TOPIC), columns_of(schemas[1], TOPIC)[1:], entry) == [
        {"a": {"member0": None, "member1": "x", "member2": None}}
    ]


def test_a_union_of_several_types_is_refused_in_json() -> None:
    schema = stored(record(field("a", ["int", "string"])), kind=SchemaType.JSON)
    with pytest.raises(ConfigurationError, match="field a is a union of 2 types"):
        columns_of(schema, TOPIC)


def test_only_the_columns_asked_for_are_decoded_into() -> None:
    definition = record(field("value", "int"), field("b", "string"))
    schema = stored(definition)
    chosen = [column for column in columns_of(schema, TOPIC) if column.name == "value"]
    entry = single(avro(definition, {"value": 1, "b": "x"}))
    assert rows(AvroValues([schema], schema, TOPIC), chosen, entry) == [{"value": 1}]


# -------------------------------------------------------------------------------------------- JSON


def test_json_members_that_are_missing_are_null_and_unknown_ones_are_left_out() -> None:
    inner = record(field("x", "int"), field("y", "string"), name="I")
    definition = record(field("a", "int"), field("inner", inner), field("list", {"type": "array", "items": "int"}))
    found = read_json(definition, '{"a": 1, "extra": 2}', '{"inner": {"y": "z"}, "list": [1, null]}', "{}")
    assert found == [
        {"a": 1, "inner": None, "list": None},
        {"a": None, "inner": {"x": None, "y": "z"}, "list": [1, None]},
        {"a": None, "inner": None, "list": None},
    ]


def test_json_values_are_converted_as_the_schema_says() -> None:
    definition = record(
        field("at", {"type": "long", "logicalType": "timestamp-millis"}),
        field("day", {"type": "int", "logicalType": "date"}),
        field("data", "bytes"),
        field("money", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
        field("number", "double"),
    )
    (found,) = read_json(definition, '{"at": 1500, "day": 1, "data": "/wA=", "money": 1.5, "number": 2}')
    assert found == {
        "at": 1_500_000, "day": datetime.date(1970, 1, 2), "data": b"\xff\x00", "money": decimal.Decimal("1.50"),
        "number": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("[1]", "expected a JSON object"), ("{", "message 0 is not what"), ('{"a": "x"}', "a is 'x', which is no int32"),
     ('{"a": 4294967296}', "a is 4294967296, which is no int32")],
)  # fmt: skip
def test_json_that_does_not_fit_names_its_entry(text: str, complaint: str) -> None:
    with pytest.raises(Corruption, match=f"{TOPIC}, entry 3:1: .*{complaint}"):
        read_json(record(field("a", "int")), '{"a": 1}', text)


def test_the_json_of_the_real_client_is_read() -> None:
    schemas = [
        entry["decoded"]["schemaInfo"]["schema"]
        for schema in load("entries/plain-schema-ledgers.json")["schemas"] if schema["path"].endswith("/json")
        for ledger in schema["ledgers"] for entry in ledger["entries"]
    ]  # fmt: skip
    entries = [
        b64(entry["raw"])[36:] for entry in load("entries/plain-public-default-json.json")["dataLedgers"][0]["entries"]
    ]
    newest = StoredSchema(1, Schema(SchemaType.JSON, schemas[-1].encode()), 0, "", False)
    found = rows(JsonValues(newest, TOPIC), columns_of(newest, TOPIC), *entries)
    assert [(row["name"], row["age"], row["extra"]) for row in found] == [
        ("bob", 32, None), ("bea", 33, "none"), ("cy", 1, None)
    ]  # fmt: skip


# -------------------------------------------------------------------------------------- primitives

# What the vectors' client wrote (see their `wire/*.json` stories): one value of each type.
MOMENT_MS = 0x0000018BCFE5687B
PRIMITIVES: list[tuple[SchemaType, str, object]] = [
    (SchemaType.BOOLEAN, "bool", True),
    (SchemaType.INT8, "int8", -3),
    (SchemaType.INT64, "int64", 1 << 40),
    (SchemaType.FLOAT, "float", -2.5),
    (SchemaType.DATE, "date", datetime.date(2023, 11, 14)),
    (SchemaType.TIME, "time", MOMENT_MS),
    (SchemaType.TIMESTAMP, "timestamp", MOMENT_MS * 1000),
    (SchemaType.INSTANT, "instant", 1_700_000_000_123_456),
    (SchemaType.LOCAL_DATE, "localdate", datetime.date(2024, 2, 29)),
    (SchemaType.LOCAL_TIME, "localtime", 0x00002B5792B49315),
    (SchemaType.LOCAL_DATE_TIME, "localdatetime", 0x4D46 * 86_400_000_000 + 0x00002B5792B49315 // 1000),
]


@pytest.mark.parametrize(("kind", "name", "expected"), PRIMITIVES)
def test_primitive_values_of_the_real_client_are_typed(kind: SchemaType, name: str, expected: object) -> None:
    entries = [
        b64(entry["raw"])[36:]
        for ledger in load(f"entries/plain-public-default-{name}.json")["dataLedgers"] for entry in ledger["entries"]
    ]  # fmt: skip
    column_type = primitive_type(kind)
    assert column_type is not None
    found = rows(PrimitiveValues(kind), [t.StructField("value", column_type, True)], *entries)
    assert found == [{"value": expected}]


def test_primitive_values_of_another_length_are_refused() -> None:
    for kind in SchemaType:
        column_type = primitive_type(kind)
        if column_type is not None:
            with pytest.raises(Corruption, match="message 0 is not what its schema says"):
                rows(PrimitiveValues(kind), [t.StructField("value", column_type, True)], single(b"123"))
