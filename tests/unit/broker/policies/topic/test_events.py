"""Events of a system topic as anybody may have written them: read within bounds, or passed over and told."""

import io
import json
import struct
from typing import Any

import fastavro
import pytest

from broker.policies.topic import events
from broker.policies.topic.avro_values import DEPTH_MAX, ITEMS_FREE, ITEMS_MAX, ITEMS_PER_BYTE, read_value
from broker.policies.topic.events import (
    SCHEMA,
    Change,
    Unreadable,
    changes_in,
    encode,
    event_metadata,
    parse_schema,
)
from broker.policies.topic.record import NONE_SET
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry, messages_of
from managed_ledger.messages_pb2 import MessageMetadata, SingleMessageMetadata
from managed_ledger.schemas.avro import AvroType, of_json

NAME = TopicName.parse("persistent://public/default/t")
OURS = parse_schema(SCHEMA.encode())


def with_field(kind: object) -> bytes:
    """Apache's schema with one more field in front, as its newer brokers might have it."""
    made = json.loads(SCHEMA)
    made["fields"].insert(0, {"name": "more", "type": kind})
    return json.dumps(made).encode()


def long(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


def found_in(value: bytes, written: AvroType | Unreadable = OURS, key: str = str(NAME)) -> Change | Unreadable:
    metadata = event_metadata(NAME, is_global=False, cluster="c", is_removal=False)
    metadata.partition_key, metadata.producer_name, metadata.sequence_id, metadata.publish_time = key, "p", 1, 1
    (found,) = changes_in(*messages_of(encode_entry(metadata, value)), written)
    return found


def problem_of(value: bytes, written: AvroType | Unreadable = OURS) -> str:
    found = found_in(value, written)
    assert isinstance(found, Unreadable), found
    return found.problem


def test_an_event_of_another_schema_is_read_by_the_fields_that_are_known() -> None:
    plain = encode(NAME, {"maxProducerPerTopic": 3, "messageTTLInSeconds": 7}, is_global=False, cluster="c")
    for kind, more in (
        ({"type": "map", "values": {"type": "array", "items": ["null", "double"]}},
         {"a": [None, 1.5], "b": [], "c": [2.5]}),
        ({"type": "fixed", "name": "F", "size": 3}, b"xyz"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ("float", 0.5), ("boolean", True), ("bytes", b"\xff"),
    ):  # fmt: skip
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema({**json.loads(with_field(kind)), "name": "One"}),
                                   {"more": more, **_event(plain)})  # fmt: skip
        written = parse_schema(with_field(kind))
        assert isinstance(written, AvroType)
        found = found_in(out.getvalue(), written)
        assert isinstance(found, Change), found
        assert found.policies == {**NONE_SET, "maxProducerPerTopic": 3, "messageTTLInSeconds": 7}


def _event(value: bytes) -> dict[str, Any]:
    found = fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(json.loads(SCHEMA)), None)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("reader", "writer", "value", "expected"),
    [
        ("double", "int", long(3), 3.0),
        (["null", "long"], "int", long(3), 3),
        ("string", "bytes", long(2) + b"ab", "ab"),
        ("long", ["null", "int"], long(1) + long(5), 5),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"},
         long(-2) + long(2) + long(1) + long(2) + long(1) + long(3) + long(0), [1, 2, 3]),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
         {"type": "enum", "name": "E", "symbols": ["A", "B"]}, long(1), "A"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"},
                                                    {"name": "b", "type": "int", "default": 9}]},
         {"type": "record", "name": "S", "fields": [{"name": "x", "type": "string"}, {"name": "a", "type": "int"}]},
         long(1) + b"q" + long(4), {"a": 4, "b": 9}),
        ("float", "float", struct.pack("<f", 1.5), 1.5),
        ("long", "long", long(-(2**63)), -(2**63)),
    ],
)  # fmt: skip
def test_values_are_resolved_as_avro_has_it(reader: object, writer: object, value: bytes, expected: object) -> None:
    assert read_value(value, of_json(writer), of_json(reader)) == expected


def test_items_without_bytes_are_counted_before_they_are_read() -> None:
    """An array of 2^60 nulls takes nine bytes."""
    for items in (
        "null",
        {"type": "record", "name": "Empty", "fields": []},
        {"type": "fixed", "name": "None", "size": 0},
        {"type": "record", "name": "Of", "fields": [{"name": "nothing", "type": "null"}]},
    ):
        written = parse_schema(with_field({"type": "array", "items": items}))
        assert "too many items" in problem_of(long(2**60) + bytes(7), written)
        nested = parse_schema(with_field({"type": "array", "items": {"type": "array", "items": items}}))
        assert "too many items" in problem_of((long(3) + long(2**60) * 3), nested)


def test_a_value_has_as_many_items_as_go_with_its_bytes_and_no_more() -> None:
    nulls = of_json({"type": "array", "items": "null"})
    most = ITEMS_FREE + ITEMS_PER_BYTE * 3 - 1  # the array itself is one
    assert len(read_value(long(most) + long(0), nulls, nulls)) == most
    with pytest.raises(Corruption, match="too many items"):
        read_value(long(most + 1) + long(0), nulls, nulls)
    numbers = of_json({"type": "array", "items": "int"})
    assert len(read_value(long(ITEMS_MAX - 1) + bytes(ITEMS_MAX), numbers, numbers)) == ITEMS_MAX - 1
    with pytest.raises(Corruption, match="too many items"):
        read_value(long(ITEMS_MAX) + bytes(ITEMS_MAX + 1), numbers, numbers)


def test_a_value_nests_to_a_limit() -> None:
    chain = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    kind = of_json(chain)
    assert read_value(long(1) * (DEPTH_MAX - 1) + long(0), kind, kind) is not None
    with pytest.raises(Corruption, match=f"deeper than {DEPTH_MAX}"):
        read_value(long(1) * DEPTH_MAX + long(0), kind, kind)
    assert "deeper" in problem_of(long(1) * 100_000, parse_schema(with_field(chain)))


@pytest.mark.parametrize(
    "value",
    [b"\xff" * 40, long(9), long(1) + long(77), b"", encode(NAME, {}, is_global=False, cluster="c")[:-1]],
    ids=["number", "branch", "symbol", "nothing", "short"],
)
def test_what_is_damaged_is_told(value: bytes) -> None:
    assert isinstance(OURS, AvroType)
    with pytest.raises(Corruption):
        read_value(value, OURS, OURS)


def test_an_event_and_its_schema_have_limited_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    value = encode(NAME, {"maxProducerPerTopic": 3}, is_global=False, cluster="c")
    monkeypatch.setattr(events, "EVENT_BYTES_MAX", len(value))
    assert isinstance(found_in(value), Change)
    assert "larger than" in problem_of(value + b"x")
    written = with_field("null")
    monkeypatch.setattr(events, "SCHEMA_BYTES_MAX", len(written))
    assert isinstance(parse_schema(written), AvroType)
    found = parse_schema(written + b" ")
    assert isinstance(found, Unreadable)
    assert "more than" in problem_of(value, found)


@pytest.mark.parametrize("text", [b"", b"{", b"7", b'{"type":"record","name":"R"}', b'"Unknown"', b"\xff"])
def test_what_is_no_schema_makes_its_events_unreadable(text: bytes) -> None:
    found = parse_schema(text)
    assert isinstance(found, Unreadable)
    assert problem_of(encode(NAME, {}, is_global=False, cluster="c"), found).startswith("its schema ")


def test_a_removal_needs_no_schema() -> None:
    metadata = event_metadata(NAME, is_global=True, cluster="c", is_removal=True)
    metadata.producer_name, metadata.sequence_id, metadata.publish_time = "p", 1, 1
    (found,) = changes_in(*messages_of(encode_entry(metadata, b"")), Unreadable("gone"))
    assert found == Change(NAME, True, None)


def test_an_event_that_cannot_be_read_takes_no_other_of_its_batch_with_it() -> None:
    values = [encode(NAME, {"maxProducerPerTopic": number}, is_global=False, cluster="c") for number in range(3)]
    payload = b""
    events_of_keys = ((str(NAME), values[0]), ("no/topic", values[1]), (str(NAME), b"\xff"), (str(NAME), values[2]))
    for key, value in events_of_keys:
        head = SingleMessageMetadata(payload_size=len(value), partition_key=key).SerializeToString()
        payload += struct.pack(">I", len(head)) + head + value
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=4)
    found = list(changes_in(*messages_of(encode_entry(metadata, payload)), OURS))
    assert [type(one) for one in found] == [Change, Unreadable, Unreadable, Change]
    assert found[3] == Change(NAME, False, {**NONE_SET, "maxProducerPerTopic": 2})
