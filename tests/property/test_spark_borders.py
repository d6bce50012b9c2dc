"""Borders of messages found in runs, against a walk from one message to the next."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.batches.borders import RUN_MIN, UnusualLayout, borders
from connectors.spark.batches.columnar import PADDING
from managed_ledger.messages_pb2 import SingleMessageMetadata

BEFORE = b"another batch"


def message(size: int, **fields: Any) -> bytes:
    """A message of *size* bytes as it stands in a batch."""
    single = SingleMessageMetadata(payload_size=size, **fields).SerializeToString()
    return struct.pack(">I", len(single)) + single + b"\x18" * size


def slow(batch: bytes, count: int) -> list[int]:
    """Raises UnusualLayout where the fast form must."""
    at, found = 0, []
    for _ in range(count):
        (size,) = struct.unpack_from(">I", batch, at)
        start = at + 4 + size
        single = SingleMessageMetadata.FromString(batch[at + 4 : start])
        at = start + single.payload_size
        found += [len(BEFORE) + start, len(BEFORE) + at]
    if at != len(batch):
        raise UnusualLayout
    return found


def fast(batch: bytes, count: int) -> list[int]:
    begin = len(BEFORE)
    return [int(border) for border in borders(BEFORE + batch + PADDING, begin, begin + len(batch), count)]


sizes = st.sampled_from([0, 1, 127, 128, 200, 16_383, 16_384])
keys = st.sampled_from(["", "a", "b", "k" * 127, "k" * 128])
counts = st.sampled_from([1, 2, 3, RUN_MIN - 1, RUN_MIN, RUN_MIN + 1, RUN_MIN + 2, 3 * RUN_MIN])


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, int]:
    """Runs of messages of one shape, of which the numbers and keys differ."""
    made: list[bytes] = []
    for _ in range(draw(st.integers(1, 5))):
        size, key, first = draw(sizes), draw(keys), draw(st.sampled_from([0, 100, 127, 16_380]))
        pairs = [{"key": "p", "value": value} for value in draw(st.lists(keys, max_size=2))]
        made += [
            message(size, partition_key=key, sequence_id=first + number, properties=pairs)
            for number in range(draw(counts))
        ]
    return b"".join(made), len(made)


@given(batches())
def test_borders_are_those_of_a_walk_through_the_batch(found: tuple[bytes, int]) -> None:
    batch, count = found
    assert fast(batch, count) == slow(batch, count)


@given(st.integers(0, 2 * RUN_MIN - 1), st.data())
def test_a_message_of_the_same_bytes_but_another_shape_ends_a_run(place: int, data: st.DataObject) -> None:
    # Key and payload have the same bytes together: only the lengths in between tell them apart.
    one, other = message(20, partition_key="a" * 10), message(10, partition_key="a" * 20)
    assert len(one) == len(other)
    strangers = data.draw(st.sets(st.integers(0, 2 * RUN_MIN - 1), max_size=3)) | {place}
    batch = b"".join(other if number in strangers else one for number in range(2 * RUN_MIN))
    assert fast(batch, 2 * RUN_MIN) == slow(batch, 2 * RUN_MIN)


@pytest.mark.parametrize("changed", range(4 + 2 + 2 + 2))
def test_every_byte_that_leads_the_way_is_compared(changed: int) -> None:
    """The size of the metadata, tag and length of the key, its text, tag and number of the payload's size."""
    one = message(9, partition_key="kk")
    assert one[4:] == b"\x12\x02kk\x18\x09" + b"\x18" * 9
    count = 2 * RUN_MIN
    for place in (RUN_MIN - 1, RUN_MIN + 5, count - 1):
        batch = bytearray(one * count)
        at = place * len(one) + changed
        batch[at] = batch[at] + 1 if changed != 4 else 0x22  # a field that does not precede the payload's size
        if changed in (6, 7):  # the key's text leads nowhere
            assert fast(bytes(batch), count) == fast(one * count, count)
            continue
        try:
            found = fast(bytes(batch), count)
        except UnusualLayout:
            continue
        assert found == slow(bytes(batch), count)
        assert found != fast(one * count, count)


@given(batches(), st.integers(1, 40), st.booleans())
def test_a_batch_with_bytes_too_few_or_too_many_is_unusual(found: tuple[bytes, int], by: int, is_cut: bool) -> None:
    batch, count = found
    changed = batch[: max(len(batch) - by, 1)] if is_cut else batch + bytes(by)
    with pytest.raises(UnusualLayout):
        fast(changed, count)


def test_sizes_beyond_four_gigabytes_are_unusual() -> None:
    batch = b"\xff\xff\xff\xff" + message(5)[4:]
    with pytest.raises(UnusualLayout):
        fast(batch * (2 * RUN_MIN), 2 * RUN_MIN)


def test_messages_without_a_run_are_walked() -> None:
    batch = b"".join(message(number % 7, sequence_id=number) for number in range(1_000))
    assert fast(batch, 1_000) == slow(batch, 1_000)
