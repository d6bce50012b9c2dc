"""What who may only produce can write: small bytes that stand for much. Each is refused before it takes memory or time,
as a value or an entry that cannot be understood (`mode`), and what stands beside it is read."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.spark.batches import columnar
from connectors.spark.batches.borders import UnusualLayout, borders
from connectors.spark.options.metadata_columns import METADATA_COLUMNS
from connectors.spark.options.read import UNPACKED_BYTES, Mode
from connectors.spark.plan import cluster
from connectors.spark.task import rows
from connectors.spark.task.entries import BadEntry, Chunks, open_entry
from connectors.spark.task.rows import RowBuilder
from connectors.spark.values import limits as value_limits
from connectors.spark.values.decoding import CORRUPT, REASON
from connectors.spark.values.kinds import fields_of, values_of
from connectors.spark.values.limits import CELLS_MAX, AvroLimits, JsonLimits, ProtobufLimits
from connectors.spark.values.records import AvroValues, JsonValues, columns_of
from magnetar_core.runtime.types import MIB, ConfigurationError, Corruption
from managed_ledger.messages import compress, encode_entry
from managed_ledger.messages_pb2 import ZLIB, ZSTD
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.stored import StoredSchema
from tests.unit.connectors.spark.entries import (
    ALL_METADATA,
    TOPIC,
    batch,
    batch_payload,
    message,
    metadata_of,
    plain,
    single,
    slow_rows,
)
from tests.unit.connectors.spark.world import spark_world

KINDS = {SchemaType.AVRO: "avro", SchemaType.JSON: "json", SchemaType.PROTOBUF_NATIVE: "protobuf"}


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields.items()]}


def stored(kind: SchemaType, definition: Any, version: int = 0) -> StoredSchema:
    return StoredSchema(version, Schema(kind, json.dumps(definition).encode()), 0, "", False)


def builder_of(
    schema: StoredSchema | None = None, *metadata: str, mode: Mode = Mode.FAILFAST, values: Any = None
) -> RowBuilder:
    fields = [t.StructField("value", t.BinaryType(), True)]
    if schema is not None:
        kind = KINDS[schema.schema.type]
        fields = fields_of(kind, schema, TOPIC)
        values = values or values_of(kind, [schema], schema, TOPIC)
    if mode is Mode.PERMISSIVE:
        fields += [t.StructField(CORRUPT, t.BinaryType()), t.StructField(REASON, t.StringType())]
    fields += [t.StructField(name, METADATA_COLUMNS[name][0], True) for name in metadata]
    return RowBuilder(to_arrow_schema(t.StructType(fields), timezone="UTC"), TOPIC, -1, values, mode=mode)


def add(builder: RowBuilder, *entries: bytes) -> None:
    for entry_id, data in enumerate(entries):
        try:
            opened = open_entry(TOPIC, 3, entry_id, data, keeps_stored=True)
        except BadEntry as error:
            builder.add_bad(error)
        else:
            assert opened is not None
            builder.add(opened)


def read(builder: RowBuilder, *entries: bytes) -> list[dict[str, Any]]:
    add(builder, *entries)
    return [row for made in builder.take() for row in plain(made)]


def zigzag(number: int) -> bytes:
    number = number << 1 if number >= 0 else (-number << 1) - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


# ------------------------------------------------------------------------------------ batch heads


class Counted(bytes):
    """Counts how often a byte of it is looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("field", [b"\x18", b"\x12", b"\x0a"])
def test_a_length_without_an_end_is_given_up_after_five_bytes(field: bytes) -> None:
    head = field + b"\xff" * 1_000
    data = Counted(struct.pack(">I", len(head)) + head + bytes(16))
    with pytest.raises(UnusualLayout):
        borders(data, 0, len(data), 1)
    assert data.looks < 20


def test_a_message_has_so_many_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "FIELDS_MAX", 50)
    monkeypatch.setattr(rows, "FIELDS_MAX", 50)
    many = [{"key": str(number), "value": ""} for number in range(61)]
    for entry in (single(b"", properties=many), batch(message(b""), message(b"", properties=many))):
        with pytest.raises(BadEntry, match=r"entry 3:1: .*61 properties, and 50 is the limit"):
            read(builder_of(None, "__messageProperties"), single(b""), entry)
    (row,) = read(builder_of(None, "__messageProperties"), single(b"", properties=many[:50]))
    assert len(row["__messageProperties"]) == 50
    (row,) = read(builder_of(None, "__messageProperties"), batch(message(b"", properties=many[:50])))
    assert len(row["__messageProperties"]) == 50


# ------------------------------------------------------------------------------- what rows weigh


def test_what_an_entry_has_once_is_weighed_for_each_of_its_rows() -> None:
    builder = builder_of(None, "__producerName")
    add(builder, *[single(b"", producer_name="n" * 100_000) for _ in range(100)])
    assert builder.weight > 100 * 100_000
    without = builder_of()
    add(without, single(b"", producer_name="n" * 100_000))
    assert without.weight < 1_000


def test_rows_leave_in_record_batches_of_bounded_weight() -> None:
    builder = builder_of(None, "__producerName")
    add(builder, encode_entry(metadata_of(producer_name="n" * 100_000, num_messages_in_batch=500),
                              batch_payload([message(b"")] * 500)))  # fmt: skip
    sizes = [(made.num_rows, made.nbytes) for made in builder.take()]
    assert sum(count for count, _ in sizes) == 500
    assert max(size for _, size in sizes) <= rows.RECORD_BATCH_BYTES_MAX
    assert len(sizes) == pytest.approx(500 * 100_000 / rows.RECORD_BATCH_BYTES_MAX, abs=2)


def test_what_the_rows_of_an_entry_repeat_is_bounded() -> None:
    entry = encode_entry(
        metadata_of(producer_name="n" * 100_000, num_messages_in_batch=20_000), batch_payload([message(b"")] * 20_000)
    )
    with pytest.raises(BadEntry, match=r"entry 3:0: each row of its 20000 messages would have 1000\d\d bytes beside"):
        read(builder_of(None, "__producerName"), entry)
    assert len(read(builder_of(), entry)) == 20_000
    found = read(builder_of(None, "__producerName", mode=Mode.PERMISSIVE), single(b"a"), entry, single(b"b"))
    assert [(row["value"], row["__corrupt"]) for row in found] == [(b"a", None), (None, entry), (b"b", None)]


@pytest.mark.parametrize(
    "count", [200_000, pytest.param(1_000_000, marks=pytest.mark.long("as many as a batch may have take 350 MB"))]
)
def test_as_many_rows_of_the_default_columns_as_a_batch_may_have_are_no_more_than_that(count: int) -> None:
    entry = encode_entry(
        metadata_of(num_messages_in_batch=count, compression=ZSTD, uncompressed_size=6 * count),
        compress(ZSTD, b"\0\0\0\x02\x18\0" * count),
    )
    builder = builder_of(None, *ALL_METADATA[:6])
    add(builder, entry)
    row_count = 0
    for made in builder.take():  # none of them is kept
        row_count += made.num_rows
        assert made.nbytes <= 2 * rows.RECORD_BATCH_BYTES_MAX
    assert row_count == count


@pytest.mark.parametrize("bytes_max", [1, 300, 1_000, 10**6])
def test_rows_are_the_same_in_however_many_record_batches(monkeypatch: pytest.MonkeyPatch, bytes_max: int) -> None:
    monkeypatch.setattr(rows, "RECORD_BATCH_BYTES_MAX", bytes_max)
    mixed = batch(
        message(b"one", partition_key="k", event_time=5, sequence_id=40),
        message(b"", null_value=True, properties=[{"key": "a", "value": "b"}]),
        message(b"", compacted_out=True),
        message(b"two" * 100, partition_key="AAAA", partition_key_b64_encoded=True),
        schema_version=bytes(8),
    )
    alike = batch(*[message(b"%03d" % number) for number in range(200)], producer_name="other")
    entries = [mixed, single(b"alone", partition_key="x", event_time=9), alike, mixed]
    assert read(builder_of(None, *ALL_METADATA), *entries) == slow_rows(entries)
    assert [row["value"] for row in read(builder_of(), alike)] == [b"%03d" % number for number in range(200)]
    schema = stored(SchemaType.JSON, record("R", a="int"))
    texts = batch(*[message(b'{"a": %d}' % number) for number in range(50)], message(b"{"), message(b'{"a": 7}'))
    found = read(builder_of(schema, mode=Mode.PERMISSIVE), texts)
    assert [row["a"] for row in found] == [*range(50), None, 7]
    assert [row["__corrupt"] for row in found][50:] == [b"{", None]
    assert "message 50 is not what its schema says" in found[50]["__corruptReason"]


def test_what_unpacks_to_much_is_unpacked_when_its_turn_comes() -> None:
    payload = bytes(MIB)
    data = encode_entry(metadata_of(compression=ZLIB, uncompressed_size=MIB), compress(ZLIB, payload))
    opened = open_entry(TOPIC, 3, 0, data, unpacks_max=MIB - 1)
    assert opened is not None
    assert (opened.is_packed, len(opened.payload) < 10_000) == (True, True)
    builder = builder_of()
    builder.add(opened)
    assert [row["value"] for made in builder.take() for row in plain(made)] == [payload]
    at_once = open_entry(TOPIC, 3, 0, data, unpacks_max=MIB)
    assert at_once is not None
    assert (at_once.is_packed, bytes(at_once.payload)) == (False, payload)


def test_what_an_entry_unpacks_to_has_a_limit_that_an_option_sets() -> None:
    """Each task of Spark has such a row four times on the heap of the JVM, which they share."""
    size = UNPACKED_BYTES + 1
    data = encode_entry(metadata_of(compression=ZSTD, uncompressed_size=size), compress(ZSTD, bytes(size)))
    assert len(data) < 10_000
    for unpacks_max in (0, size):
        with pytest.raises(BadEntry, match=rf"entry 3:0: it unpacks to {size} bytes.*option maxUnpackedBytes"):
            open_entry(TOPIC, 3, 0, data, unpacks_max=unpacks_max)
    opened = open_entry(TOPIC, 3, 0, data, unpacks_max=0, bytes_max=size)
    assert opened is not None
    builder = builder_of()
    builder.add(opened)
    (made,) = builder.take()  # one copy of the value is enough for a test
    assert pc.binary_length(made.column(0)).to_pylist() == [size]


@pytest.mark.parametrize(
    ("size", "most", "is_taken"),
    [(MIB, MIB, True), (MIB + 1, MIB, False), (MIB + 1, 2 * MIB, True), (4_000, 0, True), (4_001, 0, False)],
)
def test_a_message_in_chunks_unpacks_to_a_limit_or_to_four_times_its_chunks(
    monkeypatch: pytest.MonkeyPatch, size: int, most: int, is_taken: bool
) -> None:
    monkeypatch.setattr("connectors.spark.task.entries.decompress", lambda codec, data, size, bytes_max: bytes(size))
    chunks = Chunks(most)
    for number in range(2):
        fields = {"uuid": "u", "chunk_id": number, "num_chunks_from_msg": 2, "compression": ZLIB}
        opened = open_entry(TOPIC, 3, number, single(bytes(500), uncompressed_size=size, **fields))
        assert opened is not None
        if number == 0 or is_taken:
            whole = chunks.add(opened)
            assert (whole is None) == (number == 0)
        else:
            with pytest.raises(Corruption, match=f"it unpacks to {size} bytes"):
                chunks.add(opened)


# ------------------------------------------------------------------------------------------- Avro


def avro_values(*definitions: Any) -> AvroValues:
    versions = [stored(SchemaType.AVRO, one, number) for number, one in enumerate(definitions)]
    return AvroValues(versions, versions[-1], TOPIC)


EMPTY = record("Empty")
LIST = record("R", a={"type": "array", "items": EMPTY})


@pytest.mark.parametrize("count", [CELLS_MAX // 4 + 1, 2**40])
@pytest.mark.parametrize(
    "definition",
    [LIST, record("R", a={"type": "array", "items": {"type": "array", "items": EMPTY}}),
     record("R", a={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}})],
)  # fmt: skip
def test_items_without_bytes_are_counted_before_there_are_any(definition: Any, count: int) -> None:
    count *= 4  # a plain item is one cell
    value = zigzag(1) + zigzag(count) + b"\0\0" if "array" in str(definition["fields"][0]["type"]["items"]) else (
        zigzag(count) + b"\0"
    )  # fmt: skip
    with pytest.raises(Corruption, match=f"more than {CELLS_MAX} cells"):
        avro_values(definition).decoder(None)(value)


def test_items_of_a_former_version_are_counted_too() -> None:
    decode = avro_values(record("R", a={"type": "array", "items": EMPTY}, b="int"), record("R", b="int")).decoder(0)
    with pytest.raises(Corruption, match=f"more than {CELLS_MAX} cells"):
        decode(zigzag(2**40) + b"\0\x02")
    assert decode(b"\x02\0\x04") == {"b": 2}


def test_fields_that_the_schema_adds_count_for_each_item() -> None:
    wide = record("Item", a="int")
    wide["fields"] += [{"name": f"f{number}", "type": "string", "default": "x" * 100} for number in range(100)]
    values = avro_values(record("R", a={"type": "array", "items": record("Item", a="int")}),
                         record("R", a={"type": "array", "items": wide}))  # fmt: skip
    assert len(values.decoder(0)(zigzag(100) + bytes(100) + b"\0")["a"]) == 100
    with pytest.raises(Corruption, match="cells"):
        values.decoder(0)(zigzag(50_000) + bytes(50_000) + b"\0")
    assert values.default_bytes > 10_000


def test_ordinary_arrays_of_the_largest_message_have_fewer_cells() -> None:
    numbers = AvroLimits(record("R", a={"type": "array", "items": "int"}))
    numbers.check(zigzag(5 * MIB - 10) + bytes(5 * MIB - 10) + b"\0")
    pairs = AvroLimits(record("R", a={"type": "map", "values": "string"}))
    some = zigzag(100_000) + b"\x04ab\x04cd" * 100_000 + b"\0"
    pairs.check(some)
    with pytest.raises(Corruption, match="cells"):
        pairs.check(zigzag(3 * MIB) + b"\0\0" * 3 * MIB + b"\0")
    with pytest.raises(Corruption, match="end inside of a field"):
        pairs.check(zigzag(2 * MIB) + b"\x04ab\x04cd" * MIB)


def test_a_record_that_contains_itself_is_gone_through_to_a_bounded_depth() -> None:
    chain = record("R", next=["null", "R"], b="int")
    decode = avro_values(chain, record("R", b="int")).decoder(0)
    assert decode(b"\x02\x02\0\x06\x04\x02") == {"b": 1}
    with pytest.raises(Corruption, match="nest deeper than 50 levels"):
        decode(b"\x02" * 100_000 + b"\0" + b"\x02" * 100_001)


def test_a_decimal_has_so_many_bytes() -> None:
    definition = record("R", d={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2})
    schema = stored(SchemaType.AVRO, definition)

    def value(data: bytes) -> bytes:
        return single(zigzag(len(data)) + data)

    found = read(builder_of(schema, mode=Mode.PERMISSIVE), value(b"\x04\xd2"), value(bytes(62) + b"\x04\xd2"),
                 value(b"\xff" * 65), value(b"\x7f" * 2_000), value(b"\x7f" * 16))  # fmt: skip
    assert [None if row["d"] is None else str(row["d"]) for row in found] == ["12.34", "12.34", None, None, None]
    assert "a decimal has 65 bytes, and 64 is the limit" in found[2]["__corruptReason"]
    assert "which is no decimal128(10, 2)" in found[4]["__corruptReason"]


def test_decimals_in_json_have_so_many_digits_and_exponents() -> None:
    definition = record("R", d={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2})
    texts = [b"12.34", b'"12.34"', b'"' + b"9" * 201 + b'"', b'"1e1000000000"', b'"NaN"', b'"1e-300"']
    found = read(
        builder_of(stored(SchemaType.JSON, definition), mode=Mode.PERMISSIVE),
        *[single(b'{"d": %b}' % text) for text in texts],
    )
    assert [row["__corrupt"] is None for row in found] == [True, True, False, False, False, False]


def twice(depth: int) -> dict[str, Any]:
    """Each record names the one before it twice."""
    fields = {"f0": record("R0", x="int")}
    for number in range(1, depth + 1):
        fields[f"f{number}"] = record(f"R{number}", a=f"R{number - 1}", b=f"R{number - 1}")
    return record("Root", **fields)


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
def test_columns_are_bounded_with_those_inside_of_others(kind: SchemaType) -> None:
    assert len(columns_of(stored(kind, twice(8)), "t")) == 9
    with pytest.raises(
        ConfigurationError, match=r"schema of t .* \d+ fields .* 10000 is the limit.*valueFormat=binary"
    ):
        columns_of(stored(kind, twice(60)), "t")
    deep: Any = "int"
    for _ in range(value_limits.NESTING_MAX):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ConfigurationError, match="nest 51 levels, and 50 is the limit"):
        columns_of(stored(kind, record("R", a=deep)), "t")
    assert len(columns_of(stored(kind, record("R", a=deep["items"])), "t")) == 1


def test_a_former_version_with_too_many_fields_is_not_decoded() -> None:
    values = avro_values(twice(40), record("Root", a={"type": "int"}))
    with pytest.raises(Corruption, match="version 0 of its schema cannot be understood"):
        values.decoder(0)


@pytest.mark.parametrize(
    "definition",
    [{"type": "record"}, record("R", a={"type": "array"}), record("R", a={"type": "enum"}), record("R", a=5),
     record("R", a={"type": "bytes", "logicalType": "decimal"}), {"type": "record", "name": "R", "fields": [{}]},
     record("R", a={"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 900}), record("R", a=[])],
)  # fmt: skip
def test_a_schema_that_is_none_says_so(definition: Any) -> None:
    with pytest.raises(ConfigurationError, match="valueFormat=binary"):
        columns_of(stored(SchemaType.AVRO, definition), "t")
    nested = b'{"type": "record", "name": "R", "fields": ' + b"[" * 100_000
    with pytest.raises(ConfigurationError, match="valueFormat=binary"):
        columns_of(StoredSchema(0, Schema(SchemaType.AVRO, nested), 0, "", False), "t")


# ------------------------------------------------------------------------------------------- JSON


def test_cells_of_a_json_value_are_counted_before_they_are_made() -> None:
    limits = JsonLimits(record("R", a={"type": "array", "items": record("I", x="int")}))
    limits.check(b"[" + b"0," * 2_000_000 + b"0]")
    limits.check(b'{"a": "' + b"{,[:" * 2_000_000 + b'\\""}')  # text is text
    with pytest.raises(Corruption, match=f"more than {CELLS_MAX} cells"):
        limits.check(b"[" + b"{}," * 2_000_000 + b"{}]")
    wide = record("I", **{f"f{number}": "int" for number in range(800)})
    with pytest.raises(Corruption, match="cells"):
        JsonLimits(record("R", a={"type": "array", "items": wide})).check(b"[" + b"{}," * 100_000 + b"{}]")
    decode = JsonValues(stored(SchemaType.JSON, record("R", a="int")), TOPIC).decoder(None)
    with pytest.raises(Corruption, match="cells"):
        decode(b'{"a": [' + b"{}," * 2_000_000 + b"{}]}")


def test_half_a_surrogate_is_a_bad_value() -> None:
    schema = stored(SchemaType.JSON, record("R", s="string", m={"type": "map", "values": "int"}))
    bad = (b'{"s":"\\ud800","m":{}}', b'{"s":"x","m":{"\\udfff":1}}', b'{"s":{"\\ud800":1},"m":{}}')
    found = read(builder_of(schema, mode=Mode.PERMISSIVE), *map(single, bad), single(b'{"s":"\\ud83d\\ude00","m":{}}'))
    assert [(row["s"], row["__corrupt"]) for row in found] == [*((None, one) for one in bad), ("😀", None)]
    assert found[0]["__corruptReason"] == "s is '\\ud800', which is no string"
    for one in bad:
        with pytest.raises(BadEntry, match="entry 3:1: "):
            read(builder_of(schema), single(b'{"s":"x","m":{}}'), single(one))


@pytest.mark.parametrize("values", ["int", {"type": "bytes"}, {"type": "map", "values": "int"}])
def test_a_map_is_an_object_for_arrow_ends_the_process_over_a_null_in_it(values: Any) -> None:
    schema = stored(SchemaType.JSON, record("R", m={"type": "map", "values": values}))
    bad = (b"[null]", b"[]", b'"x"', b"5", b'[["a", 1]]')
    texts = [b'{"m": %b}' % one for one in (*bad, b"null", b"{}")]
    found = read(builder_of(schema, mode=Mode.PERMISSIVE), *map(single, texts))
    assert [row["__corrupt"] for row in found] == [*texts[:5], None, None]
    assert [row["m"] for row in found[5:]] == [None, []]


# ------------------------------------------------------------------------------ Protocol Buffers


def protobuf(*messages: tuple[str, dict[str, Any]]) -> StoredSchema:
    """Fields by name: a type's number, or the message that they are; a list is repeated."""
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    for name, fields in messages:
        made = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            (one,) = kind if isinstance(kind, list) else (kind,)
            label = 3 if isinstance(kind, list) else 1
            if isinstance(one, str):
                made.field.add(name=field, number=number, label=label, type=11, type_name=f".{one}")
            else:
                made.field.add(name=field, number=number, label=label, type=one)
    described = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return stored(
        SchemaType.PROTOBUF_NATIVE,
        {
            "fileDescriptorSet": base64.b64encode(described).decode(),
            "rootMessageTypeName": messages[0][0],
            "rootFileDescriptorName": "a.proto",
        },
    )


def chained(depth: int) -> StoredSchema:
    inner = [(f"M{number}", {"a": f"M{number + 1}", "b": f"M{number + 1}"}) for number in range(depth)]
    return protobuf(*inner, (f"M{depth}", {"x": 5}))


def test_messages_inside_of_messages_are_bounded() -> None:
    assert [field.name for field in fields_of("protobuf", chained(6), "t")] == ["a", "b"]
    with pytest.raises(ConfigurationError, match=r"t: it has \d+ fields .*10000 is the limit; use valueFormat=binary"):
        fields_of("protobuf", chained(25), "t")
    line = [(f"M{number}", {"a": f"M{number + 1}"}) for number in range(60)]
    with pytest.raises(ConfigurationError, match="nest more than 50 levels"):
        fields_of("protobuf", protobuf(*line, ("M60", {"x": 5})), "t")


def test_messages_of_two_bytes_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    cells_max = 500_000  # a tenth of the usual limit proves the same
    monkeypatch.setattr(value_limits, "CELLS_MAX", cells_max)
    schema = protobuf(("R", {"items": ["I"], "n": [5], "s": [9]}), ("I", {f"f{number}": 5 for number in range(200)}))
    some, many = b"\x0a\0" * 1_000, b"\x0a\0" * 30_000
    found = read(builder_of(schema, mode=Mode.PERMISSIVE), single(some), single(many), single(b"\x10\x01" * 1_000))
    assert [len(row["items"] or ()) for row in found] == [1_000, 0, 0]
    assert "cells" in found[1]["__corruptReason"]
    assert len(found[2]["n"]) == 1_000
    limits = ProtobufLimits(descriptor(schema))
    text = b"x" * 6 * MIB
    assert len(text) > cells_max
    limits.check(b"\x1a\x80\x80\x80\x03" + text)  # a text is one cell
    for bad in (b"\x12\x80\x80\x80\x03" + text, b"\x10\x01" * 3 * cells_max, b"\x0b\x0c" * 30_000):
        with pytest.raises(Corruption, match="cells"):
            limits.check(bad)


def descriptor(schema: StoredSchema) -> Any:
    from connectors.spark.values.protobuf_values import descriptor_of

    return descriptor_of(schema, TOPIC)


# --------------------------------------------------------------------------------------- the rest


class Hungry(JsonValues):
    def decoder(self, version: int | None) -> Any:
        def decode(data: bytes) -> dict[str, Any]:
            raise MemoryError

        return decode


def test_a_worker_without_memory_says_nothing_about_a_value() -> None:
    schema = stored(SchemaType.JSON, record("R", a="int"))
    for mode in Mode:
        with pytest.raises(MemoryError):
            read(builder_of(schema, mode=mode, values=Hungry(schema, TOPIC)), single(b'{"a": 1}'))


def test_many_values_become_columns_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.spark.values.decoding.DECODED_BYTES_MAX", 30)
    schema = stored(SchemaType.JSON, record("R", a="int", b={"type": "array", "items": "string"}))
    texts = [b'{"a": %d, "b": ["x"]}' % number for number in range(10)] + [b"{", b'{"a": "no"}', b'{"a": 3}']
    found = read(builder_of(schema, mode=Mode.PERMISSIVE), batch(*map(message, texts)))
    assert [row["a"] for row in found] == [*range(10), None, None, 3]
    assert [row["__corrupt"] for row in found[10:]] == [b"{", b'{"a": "no"}', None]
    assert found[11]["__corruptReason"] == "a is 'no', which is no int32"
    with pytest.raises(BadEntry, match="a is 'no', which is no int32"):
        read(builder_of(schema), *map(single, texts[:10]), single(texts[11]))


async def test_all_versions_of_a_schema_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SCHEMAS_BYTES_MAX", 200)
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger([single(b"{}")]))
        await world.schema("t", stored(SchemaType.JSON, record("R", a="int")).schema)
        assert await world.values("t", valueFormat="binary") == [b"{}"]
        assert [row["a"] for row in await world.rows("t", valueFormat="json")] == [None]
        await world.schema("t", stored(SchemaType.JSON, record("R", a="int", b="x" * 100)).schema)
        with pytest.raises(Corruption, match=r"/t: the versions of schema .* more than 200 bytes .*binary"):
            await world.rows("t", valueFormat="json")
