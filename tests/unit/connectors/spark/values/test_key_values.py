"""Pairs of a key and a value, as Java's client wrote them and by the format."""

import base64
import json
import pickle
import struct
from typing import Any

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.spark.task.rows import RowBuilder
from connectors.spark.values.kinds import fields_of, kind_of, values_of
from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.records.records_pb2 import SchemaEntry, SchemaInfo
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.stored import StoredSchema, version_bytes
from tests.support.vectors import b64, load
from tests.unit.connectors.spark.entries import TOPIC, add, batch, message, plain, single
from tests.unit.connectors.spark.values.test_records import avro, field, record


def stored_of_vectors(topic: str) -> StoredSchema:
    """The schema of a topic as Apache's broker stored it."""
    for found in load("entries/plain-schema-ledgers.json")["schemas"]:
        if found["path"] == f"/schemas/public/default/{topic}":
            raw = b64(found["ledgers"][0]["entries"][0]["raw"])[36:]
            info = SchemaInfo.FromString(SchemaEntry.FromString(raw).schema_data)
            properties = tuple((item.key, item.value) for item in info.props)
            return StoredSchema(0, Schema(SchemaType(info.type - 1), info.schema, properties), 0, "", False)
    raise AssertionError(topic)


def entries_of_vectors(topic: str) -> list[bytes]:
    ledgers = load(f"entries/plain-public-default-{topic}.json")["dataLedgers"]
    return [b64(entry["raw"])[36:] for ledger in ledgers for entry in ledger["entries"]]


def pair(key: bytes | None, value: bytes | None) -> bytes:
    return b"".join(struct.pack(">i", -1 if one is None else len(one)) + (one or b"") for one in (key, value))


def key_value(
    key_type: str,
    value_type: str,
    encoding: str | None = "INLINE",
    *,
    key: Any = None,
    value: Any = None,
    version: int = 0,
) -> StoredSchema:
    properties = {"key.schema.type": key_type, "value.schema.type": value_type, "key.schema.properties": "{}"}
    if encoding is not None:
        properties["kv.encoding.type"] = encoding
    data = pair(*(b"" if one is None else json.dumps(one).encode() for one in (key, value)))
    return StoredSchema(version, Schema(SchemaType.KEY_VALUE, data, tuple(properties.items())), 0, "", False)


def read(
    schemas: list[StoredSchema], *entries: bytes, columns: tuple[str, ...] = ("key", "value")
) -> list[dict[str, Any]]:
    newest = schemas[-1]
    assert kind_of(newest) == "keyvalue"
    fields = [one for one in fields_of("keyvalue", newest, TOPIC) if one.name in columns]
    values = pickle.loads(pickle.dumps(values_of("keyvalue", schemas, newest, TOPIC)))
    builder = RowBuilder(to_arrow_schema(t.StructType(fields), timezone="UTC"), TOPIC, -1, values)
    for entry_id, data in enumerate(entries):
        add(builder, entry_id, data)
    (taken,) = builder.take()
    taken.validate(full=True)
    return plain(taken)


@pytest.mark.parametrize("topic", ["kv-INLINE", "kv-SEPARATED"])
def test_pairs_of_javas_client_are_read_with_their_nulls(topic: str) -> None:
    schema = stored_of_vectors(topic)
    assert read([schema], *entries_of_vectors(topic)) == [
        {"key": "kk", "value": {"age": 34, "name": "kate"}},
        {"key": "kk", "value": None},
        {"key": None, "value": {"age": 1, "name": "x"}},
    ]
    assert fields_of("keyvalue", schema, TOPIC)[1].dataType.simpleString() == "struct<age:int,name:string>"


def test_halves_are_typed_by_their_own_schemas() -> None:
    json_record = record(field("a", "int"), field("b", ["null", "string"], default=None))
    schema = key_value("INT64", "JSON", value=json_record)
    assert [one.dataType.simpleString() for one in fields_of("keyvalue", schema, TOPIC)] == [
        "bigint", "struct<a:int,b:string>",
    ]  # fmt: skip
    assert read([schema], single(pair(struct.pack(">q", -5), b'{"a": 1}')), single(pair(None, None))) == [
        {"key": -5, "value": {"a": 1, "b": None}},
        {"key": None, "value": None},
    ]
    plain_schema = key_value("BYTES", "STRING", None)
    assert read([plain_schema], single(pair(b"\xff", "ü".encode()))) == [{"key": b"\xff", "value": "ü"}]


def test_a_record_may_be_the_key_and_older_versions_become_the_newest() -> None:
    old, new = record(field("a", "int")), record(field("a", "long"), field("b", "int", default=5))
    schemas = [key_value("AVRO", "INT32", key=old), key_value("AVRO", "INT32", key=new, version=1)]
    number = struct.pack(">i", 7)
    assert read(
        schemas,
        single(pair(avro(old, {"a": 1}), number), schema_version=version_bytes(0)),
        single(pair(avro(new, {"a": 2, "b": 3}), number), schema_version=version_bytes(1)),
    ) == [{"key": {"a": 1, "b": 5}, "value": 7}, {"key": {"a": 2, "b": 3}, "value": 7}]


def test_keys_apart_come_from_the_messages_of_a_batch() -> None:
    schema = key_value("STRING", "INT32", "SEPARATED")
    key = base64.b64encode(b"k").decode()
    entry = batch(
        message(struct.pack(">i", 1), partition_key=key, partition_key_b64_encoded=True),
        message(b"", partition_key=key, partition_key_b64_encoded=True, null_value=True),
        message(struct.pack(">i", 3), null_partition_key=True),
        message(b"", partition_key=key, compacted_out=True),
        message(struct.pack(">i", 5), partition_key="plain"),
    )
    expected = [("k", 1), ("k", None), (None, 3), ("plain", 5)]
    assert [(row["key"], row["value"]) for row in read([schema], entry)] == expected
    assert [row["value"] for row in read([schema], entry, columns=("value",))] == [1, None, 3, 5]


def test_a_null_message_without_a_key_apart_is_null_altogether() -> None:
    assert read([key_value("STRING", "STRING")], single(b"", null_value=True)) == [{"key": None, "value": None}]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no pair of key and value: the key is missing"),
        (pair(b"k", b"v")[:-1], "the value would have 1 bytes, of 0"),
        (pair(b"k", b"v") + b"x", "1 bytes follow the value"),
        (struct.pack(">i", -2), "the key would have -2 bytes"),
        (pair(b"k", b"\xff"), "message 0 is not what its schema says: UnicodeDecodeError"),
    ],
)
def test_bytes_that_are_no_pair_name_their_entry(data: bytes, complaint: str) -> None:
    with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:1: .*{complaint}"):
        read([key_value("STRING", "STRING")], single(pair(b"k", b"v")), single(data))


def test_schemas_that_are_no_pair_are_refused_with_the_way_out() -> None:
    broken = key_value("STRING", "STRING")
    for schema, complaint in (
        (broken._replace(schema=broken.schema._replace(data=b"\0\0")), "the KEY_VALUE schema is cut short"),
        (key_value("STRING", "WORDS"), "unknown type WORDS of a value schema"),
        (key_value("STRING", "KEY_VALUE"), "it is a pair of pairs"),
        (key_value("STRING", "STRING", "ASIDE"), "its kv.encoding.type is ASIDE"),
    ):
        with pytest.raises(
            ConfigurationError, match=rf"{TOPIC} cannot be understood \({complaint}.*valueFormat=binary"
        ):
            fields_of("keyvalue", schema, TOPIC)
    both = [key_value("STRING", "STRING"), key_value("STRING", "STRING", "SEPARATED", version=1)]
    with pytest.raises(ConfigurationError, match=r"differ in kv\.encoding\.type"):
        values_of("keyvalue", both, both[-1], TOPIC)
