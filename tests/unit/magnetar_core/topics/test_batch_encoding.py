"""Batches as clients of the topic API make them."""

import pytest

from magnetar_core.topics.batch_encoding import (
    BATCH_MESSAGES_MIN,
    NO_BATCHES,
    BatchLimits,
    encode_batches,
    encode_messages,
)
from magnetar_core.topics.metadata import ORDINARY_METADATA_BYTES
from magnetar_core.topics.topics_pb2 import Message, PublishRequest
from managed_ledger.messages import iterate_batch
from managed_ledger.messages_pb2 import SingleMessageMetadata

MIN = BATCH_MESSAGES_MIN
LIMITS = BatchLimits(3 * MIN, 10_000)
FULL = Message(
    payload=b"pear", key="schlüssel", properties={"a": "ä", "": "x" * 200}, event_time_ms=2**40, ordering_key=b"\0o",
    key_is_base64=True,
)  # fmt: skip


def encoded(messages: list[Message], limits: BatchLimits = LIMITS, *, mix_keys: bool = False) -> list[int]:
    """The numbers of messages in the batches that are made."""
    batches, count = encode_batches(messages, 5, limits, mix_keys=mix_keys)
    at = 0
    for batch in batches:
        inner = list(iterate_batch(batch.messages, batch.count))
        assert [bytes(one.payload) for one in inner] == [one.payload for one in messages[at : at + batch.count]]
        assert [one.single.sequence_id for one in inner if one.single is not None] == list(
            range(5 + at, 5 + at + batch.count)
        )
        assert len(batch.messages) <= limits.bytes_max
        at += batch.count
    assert at == count
    return [batch.count for batch in batches]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_384, 2**21])
@pytest.mark.parametrize("sequence_id", [0, 127, 128, 2**63 - 2])
def test_plain_messages_have_the_bytes_of_protobuf(size: int, sequence_id: int) -> None:
    single = SingleMessageMetadata(payload_size=size, sequence_id=sequence_id).SerializeToString()
    expected = len(single).to_bytes(4) + single + bytes(size)
    assert encode_messages([Message(payload=bytes(size))] * 2, [sequence_id] * 2) == 2 * expected


def test_full_and_null_messages_have_what_they_were_given() -> None:
    null = Message(is_null=True, key="")
    first, second = (one.single for one in iterate_batch(encode_messages([FULL, null], [7, 300]), 2))
    assert first is not None
    assert second is not None
    assert {item.key: item.value for item in first.properties} == dict(FULL.properties)
    assert (first.partition_key, first.partition_key_b64_encoded, first.ordering_key) == ("schlüssel", True, b"\0o")
    assert (first.event_time, first.sequence_id, first.null_value) == (2**40, 7, False)
    assert second == SingleMessageMetadata(payload_size=0, sequence_id=300, null_value=True, partition_key="")


def test_batches_are_as_large_as_the_broker_takes_them() -> None:
    plain = Message(payload=b"x")
    assert encoded([plain] * (7 * MIN)) == [3 * MIN, 3 * MIN, MIN]
    assert encoded([Message(payload=bytes(300))] * (2 * MIN)) == [30], "by their bytes; the rest are too few"
    assert encoded([plain] * (3 * MIN + 1)) == [3 * MIN]
    assert encoded([plain] * MIN) == [MIN]
    assert encoded([plain] * (MIN - 1)) == []
    assert encoded([plain] * (9 * MIN), NO_BATCHES) == encoded([plain] * MIN, BatchLimits(-1, -1)) == []


def test_a_batch_has_one_key_unless_they_are_mixed() -> None:
    def of(key: str) -> list[Message]:
        return [Message(payload=b"x", key=key)] * MIN

    keyed, plain = [*of("a"), *of("b")], [Message(payload=b"x")] * MIN
    assert encoded([*keyed, *plain, *of("")]) == [MIN] * 4
    assert encoded([*keyed, *plain], mix_keys=True) == [3 * MIN]
    assert encoded([*plain, Message(key="a"), *plain]) == [MIN], (
        "what is behind a message without batch keeps its place"
    )
    others = [Message(key="a", key_is_base64=True), Message(key="a"), Message(key="a", ordering_key=b"o")]
    assert encoded([one for one in others for _ in range(MIN)]) == [MIN] * 3
    (batch,), _ = encode_batches([FULL] * MIN, 0, LIMITS, mix_keys=False)
    assert (batch.key, batch.key_is_base64, batch.ordering_key) == ("schlüssel", True, b"\0o")
    (batch,), _ = encode_batches([FULL] * MIN, 0, LIMITS, mix_keys=True)
    assert batch == PublishRequest.Batch(messages=batch.messages, count=MIN), "they may differ"


@pytest.mark.parametrize(
    "odd",
    [Message(deliver_at_ms=1), Message(payload=bytes(ORDINARY_METADATA_BYTES)), Message(properties={"": "x" * 70_000})],
)
def test_what_the_broker_looks_at_is_in_no_batch(odd: Message) -> None:
    plain = Message(payload=b"x")
    limits = BatchLimits(1_000, 1 << 20)
    assert encoded([plain] * MIN + [odd] + [plain] * MIN, limits) == [MIN]
    assert encoded([odd] + [plain] * MIN, limits, mix_keys=True) == []
