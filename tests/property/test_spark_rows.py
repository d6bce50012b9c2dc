"""The columns of many messages at once against one message after the other."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from connectors.spark.options.read import Mode
from connectors.spark.task.rows import is_by_heads
from managed_ledger.messages import encode_entry, split_entry
from managed_ledger.messages import metadata_of as stored_metadata_of
from managed_ledger.messages_pb2 import BrokerEntryMetadata, SingleMessageMetadata
from tests.unit.connectors.spark.entries import (
    ALL_METADATA,
    batch,
    batch_payload,
    metadata_of,
    rows_of,
    single,
    slow_rows,
    with_broker_metadata,
)

EVERYTHING = ("value", *ALL_METADATA)

# Lengths around those at which a varint takes another byte, and texts that look like tags and flags.
payloads = st.one_of(
    st.binary(max_size=5), st.sampled_from([0, 1, 127, 128, 129, 16_383, 16_384]).map(lambda size: b"\x48\x01" * size)
)
texts = st.one_of(
    st.text(max_size=4), st.sampled_from([" \x01", "H\x01", "\x18", "k" * 127, "k" * 128, "k" * 16_384, "ü"])
)
pairs = st.fixed_dictionaries({"key": st.sampled_from(["a", "b", "c" * 130, ""]), "value": texts})
numbers = st.one_of(st.sampled_from([0, 1, 127, 128, 2**31, 2**62]), st.integers(0, 1 << 40))
times = st.integers(0, 1 << 50)
fields = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.lists(pairs, max_size=4),
        "partition_key": texts,
        "event_time": times,
        "null_value": st.booleans(),
        "null_partition_key": st.booleans(),
    },
)


@st.composite
def messages(draw: st.DrawFn) -> tuple[SingleMessageMetadata, bytes]:
    own: dict[str, Any] = draw(fields)
    if draw(st.integers(0, 9)) == 0:
        own["compacted_out"] = draw(st.booleans())
    if draw(st.booleans()):
        own["sequence_id"] = draw(numbers)
    if draw(st.integers(0, 9)) == 0:
        own["ordering_key"] = draw(st.binary(max_size=3))
    payload = draw(payloads)
    return SingleMessageMetadata(payload_size=len(payload), **own), payload


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    common: dict[str, Any] = {
        "publish_time": draw(times), "sequence_id": draw(numbers), "producer_name": draw(texts)
    }  # fmt: skip
    if draw(st.integers(0, 4)) == 0:
        common |= {"schema_id": draw(st.binary(max_size=9)), "replicated_from": draw(texts)}
    if draw(st.booleans()):
        if draw(st.booleans()):
            common |= {"ordering_key": draw(st.binary(max_size=3)), "deliver_at_time": draw(times)}
        made = single(draw(payloads), **common, **draw(fields))
    else:
        found = draw(st.lists(messages(), min_size=1, max_size=6))
        if draw(st.integers(0, 4)):
            made = batch(*found, **common)
        else:  # unusual: unknown fields behind the known ones
            payload = batch_payload(found)
            size = int.from_bytes(payload[:4], "big")
            payload = (size + 4).to_bytes(4, "big") + payload[4 : 4 + size] + b"\xfa\x01\x01x" + payload[4 + size :]
            made = encode_entry(metadata_of(num_messages_in_batch=len(found), **common), payload)
    if draw(st.booleans()):
        made = with_broker_metadata(
            made, BrokerEntryMetadata(index=draw(st.integers(100, 1 << 40))).SerializeToString()
        )
    return made


@given(st.lists(entries(), min_size=1, max_size=6), st.integers(-1, 3))
def test_rows_are_those_of_the_slow_definition(found: list[bytes], partition: int) -> None:
    expected = slow_rows(found, partition=partition)
    assert rows_of(found, EVERYTHING, partition=partition) == expected
    assert rows_of(found, ("value",)) == [{"value": row["value"]} for row in expected]


@given(st.lists(entries(), min_size=1, max_size=6), st.integers(-1, 3))
def test_rows_by_heads_are_those_of_messages(found: list[bytes], partition: int) -> None:
    """If compaction emptied none."""
    heads = [name for name in ALL_METADATA if is_by_heads((name,), Mode.FAILFAST)]
    expected = slow_rows(found, partition=partition)
    declared = sum(stored_metadata_of(split_entry(entry)).num_messages_in_batch for entry in found)
    assume(len(expected) == declared)
    made = rows_of(found, heads, partition=partition, by_heads=True)
    assert made == [{name: row[name] for name in heads} for row in expected]


@st.composite
def alike(draw: st.DrawFn) -> bytes:
    """A batch of many messages of one kind, with another kind among them now and then."""
    keys = draw(st.sampled_from([None, "k", "kk", "k" * 130, " \x01", "H\x01"]))
    size = draw(st.sampled_from([0, 1, 7, 127, 128, 300]))
    first = draw(st.sampled_from([0, 100, 127, 16_370]))
    count = draw(st.integers(1, 90))
    flags = draw(st.sampled_from([{}, {}, {"null_value": True}, {"compacted_out": True}, {"null_value": False}]))
    flagged_from = draw(st.integers(0, count))
    found = []
    for number in range(count):
        own: dict[str, Any] = {} if keys is None else {"partition_key": keys}
        if number >= flagged_from:
            own |= flags
        payload = number.to_bytes(2, "big") * (size // 2) + b"." * (size % 2)
        found.append((SingleMessageMetadata(payload_size=size, sequence_id=first + number, **own), payload))
    if draw(st.integers(0, 2)) == 0:
        found[draw(st.integers(0, count - 1))] = draw(messages())
    return batch(*found, publish_time=draw(times), sequence_id=draw(numbers), producer_name="p")


@given(st.lists(alike(), min_size=1, max_size=4), st.lists(entries(), max_size=1))
def test_messages_of_one_size_are_those_of_the_slow_definition(found: list[bytes], others: list[bytes]) -> None:
    expected = slow_rows(found + others)
    assert rows_of(found + others, EVERYTHING) == expected
    assert rows_of(found + others, ("value",)) == [{"value": row["value"]} for row in expected]
    assert rows_of(found + others, ("__key",)) == [{"__key": row["__key"]} for row in expected]


@pytest.mark.parametrize("flag", ["null_value", "compacted_out"])
@pytest.mark.parametrize("sequence_id", [3, 300])
@pytest.mark.parametrize("key", [None, "k", "kk"])
def test_a_flag_of_all_messages_is_seen_wherever_it_stands(flag: str, sequence_id: int, key: str | None) -> None:
    for size in (1, 200):
        own: dict[str, Any] = {flag: True, "sequence_id": sequence_id, "payload_size": size, "partition_key": key}
        found = [batch(*[(SingleMessageMetadata(**own), bytes(size))] * 40, publish_time=1, producer_name="p")]
        assert rows_of(found, ("value",)) == [{"value": row["value"]} for row in slow_rows(found)]


@pytest.mark.parametrize("sizes", [[[7] * 40, [9] * 40], [[7] * 40 + [9]], [[9] + [7] * 40], [[7] * 40, [7] * 40]])
def test_values_keep_their_sizes(sizes: list[list[int]]) -> None:
    found = [
        batch(*((SingleMessageMetadata(payload_size=size), b"v" * size) for size in one), producer_name="p")
        for one in sizes
    ]
    assert rows_of(found, ("value",)) == [{"value": b"v" * size} for one in sizes for size in one]


def test_values_of_one_size_are_found_behind_heads_of_two_lengths() -> None:
    found = [
        batch(
            *(
                (SingleMessageMetadata(payload_size=7, partition_key=key), b"%07d" % number)
                for number, key in enumerate(["k"] * 60 + ["kk"] * 60)
            ),
            producer_name="p",
        )
    ]
    assert rows_of(found, ("value",)) == [{"value": b"%07d" % number} for number in range(120)]
