"""Batches taken apart in runs, against one message after the other."""

import itertools
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.grpc.deliveries import UnpackedEntry, WaitingEntry
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.batches import _ALIKE_MAX, _ALIKE_MIN, message_of, runs
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import iterate_batch
from managed_ledger.messages_pb2 import MessageMetadata, SingleMessageMetadata
from managed_ledger.position import Position

TOPIC = TopicName.parse("t")
Found = tuple[list[tuple[int, api.Message]], str]
"""Messages with their indexes, and what is wrong behind them."""


def slow(batch: bytes, count: int) -> Found:
    """As the broker takes it apart for clients that do not."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=9, num_messages_in_batch=count)
    waiting: Any = WaitingEntry(Any, Position(1, 7), batch, count, 0, None)  # type: ignore[arg-type]
    unpacked = UnpackedEntry(waiting, metadata, iterate_batch(batch, count))
    answer = api.ConsumeResponse()
    while not unpacked.is_done:
        unpacked.fill(answer, TOPIC)
    problems = [one.problem.partition("1:7: ")[2] for one in answer.deliveries if one.problem]
    good = [message for one in answer.deliveries if not one.problem for message in one.messages]
    return [(message.batch_index, message) for message in good], "".join(problems)


def fast(batch: bytes, count: int) -> Found:
    messages = list[tuple[int, api.Message]]()
    try:
        for first, run in runs(batch, count):
            for index, (head, payload) in enumerate(run, first):
                message = message_of(head)
                message.payload, message.batch_index = payload, index
                messages.append((index, message))
    except Corruption as error:
        return messages, str(error)
    return messages, ""


def entry(payload: bytes, **fields: Any) -> bytes:
    single = SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()
    return struct.pack(">I", len(single)) + single + payload


sizes = st.sampled_from([0, 1, 100, 127, 128, 200, 16_383, 16_384])
firsts = st.sampled_from([0, 1, 120, 127, 16_380, 2**21 - 3, 2**56 - 2, 2**63 - 2, 2**64 - 400])
counts = st.sampled_from([1, 2, _ALIKE_MIN, _ALIKE_MIN + 1, 3 * _ALIKE_MIN, 8 * _ALIKE_MIN])
texts = st.sampled_from(["", "k", "ключ", "@\5", "\x18\1" * 70])


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """What a message has besides its payload and number."""
    made: dict[str, Any] = {}
    if draw(st.booleans()):
        return made
    if draw(st.booleans()):
        made |= {"partition_key": draw(texts), "partition_key_b64_encoded": draw(st.booleans())}
    if draw(st.booleans()):
        made["properties"] = [{"key": draw(texts), "value": draw(texts)}]
    made |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "event_time": st.sampled_from([0, 1, 2**63]),
                "ordering_key": st.sampled_from([b"", b"o"]),
                "null_value": st.booleans(),
                "compacted_out": st.booleans(),
            },
        )
    )
    return made


@st.composite
def whole_batches(draw: st.DrawFn) -> tuple[bytes, int]:
    """Stretches of messages with the same fields."""
    made: list[bytes] = []
    for _ in range(draw(st.integers(1, 4))):
        payload, first, own, count = bytes(draw(sizes)), draw(firsts), draw(fields()), draw(counts)
        numbers: Any = (
            itertools.repeat({})
            if draw(st.integers(0, 9)) == 0
            else ({"sequence_id": first + number} for number in range(count))
        )
        made += [entry(payload, **own, **number) for number in itertools.islice(numbers, count)]
    return b"".join(made), len(made)


@given(whole_batches(), st.integers(-1, 2))
def test_runs_hold_the_same_messages_as_a_walk(made: tuple[bytes, int], more: int) -> None:
    batch, count = made
    assert fast(batch, count) == slow(batch, count)
    assert fast(batch, count + more) == slow(batch, count + more)


@given(whole_batches(), st.randoms(use_true_random=False))
def test_damaged_batches_end_at_the_same_message_for_the_same_reason(
    made: tuple[bytes, int], rng: random.Random
) -> None:
    batch, count = made
    damaged = bytearray(batch)
    for _ in range(rng.choice([0, 1, 1, 3])):
        damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 2, 4, 5, 0x12, 0x18, 0x20, 0x40, 0x80, 0xFF])
    cut = bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged) + 1)])])
    assert fast(cut, count) == slow(cut, count)


@pytest.mark.parametrize("count", [3, 4 * _ALIKE_MIN])
def test_each_byte_of_a_head_may_be_another(count: int) -> None:
    """One byte of a message in the middle, all values that mean something there."""
    batch = b"".join(entry(b"\x18\1\x40\5" * 2, sequence_id=120 + number) for number in range(count))
    stride = len(batch) // count
    for place in range(count // 2 * stride, count // 2 * stride + 9):
        for value in range(256):
            changed = batch[:place] + bytes((value,)) + batch[place + 1 :]
            assert fast(changed, count) == slow(changed, count), (place, value)


def test_a_cut_anywhere_is_found() -> None:
    batch = b"".join(entry(b"x" * size, sequence_id=126 + size) for size in [3] * 20 + [2, 3, 2])
    for end in range(len(batch)):
        assert fast(batch[:end], 23) == slow(batch[:end], 23), end


def test_runs_are_longer_than_one_look() -> None:
    count = 2 * _ALIKE_MAX + 100
    batch = b"".join(entry(b"payload", sequence_id=16_000 + number) for number in range(count))
    assert fast(batch, count) == slow(batch, count)
    assert len(list(runs(batch, count))) < 20, "nearly all come in a few"


@pytest.mark.parametrize(
    "encoded",
    [b"", b"\x40\x05", b"\x0a\x00\x18\x00\x40\x05", b"\x0a\x03\x0a\x01k\x18\x00", b"\x18\x00\x40\x05\x12\x01k"],
)
def test_metadata_that_lack_what_they_must_have(encoded: bytes) -> None:
    batch = entry(b"a") + struct.pack(">I", len(encoded)) + encoded + entry(b"c")
    assert fast(batch, 3) == slow(batch, 3)


@pytest.mark.parametrize(
    "own", [{}, {"partition_key": "k"}, {"partition_key": "@\5"}, {"properties": [{"key": "a", "value": "@"}]}]
)
def test_emptied_messages_are_in_no_run(own: dict[str, Any]) -> None:
    """Many of one size, behind each other and in between."""
    emptied = entry(b"", compacted_out=True, **own)
    batch = b"".join(
        [*[entry(b"", sequence_id=number, **own) for number in range(40)], *[emptied] * 40]
        + [emptied if number % 20 == 19 else entry(b"", **own) for number in range(100)]
    )
    assert fast(batch, 180) == slow(batch, 180)
    assert len(fast(batch, 180)[0]) == 135


def encoded_heads(batch: bytes, count: int) -> int:
    """Messages whose metadata had not to be decoded."""
    return sum(isinstance(head, bytes) for _, run in runs(batch, count) for head, _ in run)


def test_messages_of_one_key_are_in_runs() -> None:
    for own in ({"partition_key": "k"}, {"ordering_key": b"@\7"}, {"partition_key": "k", "null_value": True}):
        made: Any = own
        batch = b"".join(entry(b"abc", sequence_id=number, **made) for number in range(100))
        assert fast(batch, 100) == slow(batch, 100)
        # The number must stand at the end: where a field follows it, it is another byte that would differ.
        assert (encoded_heads(batch, 100) > 80) == ("null_value" not in own)


def test_a_key_that_looks_like_a_sequence_id_is_none() -> None:
    heads = [b"\x18\x02\x12\x02@" + bytes((number,)) for number in range(1, 100)]
    batch = b"".join(struct.pack(">I", len(head)) + head + b"xx" for head in heads)
    assert fast(batch, 99) == slow(batch, 99)
    assert encoded_heads(batch, 99) == 0
