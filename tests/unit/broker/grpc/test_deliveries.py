"""From stored entries to deliveries; no call, no client."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from broker.grpc import deliveries
from broker.grpc.deliveries import UnpackedEntry, WaitingEntry, fill_problem, is_plain
from broker.grpc.partial import PartialBatches
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import Message
from managed_ledger.messages_pb2 import MessageMetadata, SingleMessageMetadata
from managed_ledger.position import Position

TOPIC = TopicName.parse("t")
ENTRY = Position(1, 7)


def messages(count: int, compacted: Sequence[int] = (), damaged_at: int | None = None) -> Iterator[Message]:
    for index in range(count):
        if index == damaged_at:
            raise Corruption("cut short")
        single = SingleMessageMetadata(payload_size=2, sequence_id=index, compacted_out=index in compacted)
        yield cast(Any, (index, single, memoryview(b"%02d" % index)))


def batch(count: int, ack_set: Sequence[int] | None = None, **named: Any) -> UnpackedEntry:
    waiting = WaitingEntry(cast(Any, None), ENTRY, b"stored", count, 2, ack_set)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=9, num_messages_in_batch=count)
    return UnpackedEntry(waiting, metadata, messages(count, **named))


def filled(unpacked: UnpackedEntry) -> list[list[int]]:
    """The batch indexes of each delivery until the entry is out."""
    found = []
    while not unpacked.is_done:
        answer = api.ConsumeResponse()
        unpacked.fill(answer, TOPIC)
        found += [[one.batch_index for one in delivery.messages] for delivery in answer.deliveries]
    return found


def test_a_delivery_says_where_its_messages_are_from() -> None:
    answer, unpacked = api.ConsumeResponse(), batch(3)
    assert unpacked.fill(answer, TOPIC) == 3 * (2 + deliveries.MESSAGE_BYTES)
    (made,) = answer.deliveries
    assert (made.ledger_id, made.entry_id, made.batch_size, made.redelivery_count) == (1, 7, 3, 2)
    assert (made.producer_name, made.publish_time_ms) == ("p", 9)
    assert [one.payload for one in made.messages] == [b"00", b"01", b"02"]
    assert (unpacked.delivered, unpacked.is_done) == (3, True)


def test_a_large_entry_goes_out_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "DELIVERY_MESSAGES_MAX", 2)
    unpacked = batch(5)
    assert filled(unpacked) == [[0, 1], [2, 3], [4]]
    assert unpacked.delivered == 5


@pytest.mark.parametrize(
    ("limits", "ack_set", "skip", "is_whole"),
    [
        ({}, None, 0, True),
        ({"DELIVERY_MESSAGES_MAX": 3, "DELIVERY_BYTES_MAX": 5}, None, 0, True),
        ({"DELIVERY_MESSAGES_MAX": 2}, None, 0, False),
        ({"DELIVERY_BYTES_MAX": 4}, None, 0, False),
        ({}, [0b110], 0, False),
        ({}, [0b111], 0, True),
        ({}, None, 1, False),
        ({}, None, 3, False),
    ],
)
def test_a_batch_goes_as_it_is_if_all_of_it_is_wanted_and_it_is_small(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], ack_set: list[int] | None, skip: int, is_whole: bool
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(deliveries, name, limit)
    one_by_one = batch(3, ack_set)
    unpacked = UnpackedEntry(one_by_one.waiting, one_by_one.metadata, one_by_one.messages, memoryview(b"batch"))
    batches, answer = PartialBatches(), api.ConsumeResponse()
    unpacked.leave_out(batches, skip, in_order=True)
    unpacked.fill(answer, TOPIC)
    assert [one.batch for one in answer.deliveries if one.batch] == [b"batch"] * is_whole
    assert batches.sizes.size(ENTRY, 3) == 3, "an ack of a part is compared with it"
    if is_whole:
        (made,) = answer.deliveries
        assert (made.batch_size, list(made.messages), unpacked.delivered, unpacked.is_done) == (3, [], 3, True)


@pytest.mark.parametrize(
    ("ack_set", "acknowledged", "skip", "in_order", "wanted"),
    [
        (None, (), 0, True, [[0, 1, 2, 3]]),
        ([0b1010], (), 0, False, [[1, 3]]),
        (None, (0, 1), 0, True, [[2, 3]]),
        (None, (0, 1), 0, False, [[0, 1, 2, 3]]),
        (None, (), 3, False, [[3]]),
        ([0b0110], (1,), 2, True, [[2]]),
        (None, (), 4, True, []),
        (None, (), 2**31, True, []),
        ([0], (), 0, False, []),
    ],
)
def test_what_is_acknowledged_or_not_asked_for_is_left_out(
    ack_set: list[int] | None, acknowledged: tuple[int, ...], skip: int, in_order: bool, wanted: list[list[int]]
) -> None:
    batches, unpacked = PartialBatches(), batch(4, ack_set)
    batches.sizes.note(ENTRY, 4)
    for index in acknowledged:
        batches.acknowledge(ENTRY, index, 4)
    unpacked.leave_out(batches, skip, in_order=in_order)
    assert filled(unpacked) == wanted
    assert unpacked.delivered == sum(map(len, wanted))


def test_what_compaction_took_out_is_noted() -> None:
    unpacked = batch(3, compacted=(0, 2))
    assert filled(unpacked) == [[1]]
    assert (unpacked.compacted, unpacked.delivered) == (0b101, 1)


def test_messages_before_a_damaged_one_are_delivered_and_the_rest_is_a_problem() -> None:
    answer, unpacked = api.ConsumeResponse(), batch(3, damaged_at=1)
    unpacked.fill(answer, TOPIC)
    good, bad = answer.deliveries
    assert [one.payload for one in good.messages] == [b"00"]
    assert bad.problem == f"{TOPIC}: {ENTRY}: cut short"
    assert [one.payload for one in bad.messages] == [b"stored"]
    assert (unpacked.delivered, unpacked.is_done) == (2, True)


def test_a_single_message_may_be_one_that_cannot_be_read_here() -> None:
    payload = memoryview(b"x")
    waiting = WaitingEntry(cast(Any, None), ENTRY, b"x", 1, 0, None)
    for members, words in (
        ({"num_chunks_from_msg": 2}, "a chunk"),
        ({"encryption_keys": [{"key": "k", "value": b""}]}, "encrypted"),
    ):
        metadata = MessageMetadata(producer_name="p", sequence_id=4, publish_time=9, partition_key="k", **members)
        answer = api.ConsumeResponse()
        UnpackedEntry(waiting, metadata, iter([cast(Any, (0, None, payload))])).fill(answer, TOPIC)
        (made,) = answer.deliveries
        assert words in made.problem
        assert (made.messages[0].key, made.messages[0].sequence_id, made.batch_size) == ("k", 4, 0)


def test_a_problem_replaces_what_was_filled_in() -> None:
    delivery = api.ConsumeResponse.Delivery(batch_size=3, producer_name="p")
    delivery.messages.add(payload=b"half")
    assert fill_problem(delivery, WaitingEntry(cast(Any, None), ENTRY, b"raw", 1, 3, None), "what") == 3
    assert (delivery.problem, delivery.batch_size, delivery.redelivery_count) == ("what", 0, 3)
    assert [one.payload for one in delivery.messages] == [b"raw"]


def test_only_metadata_without_anything_else_are_plain() -> None:
    for size, sequence_id in ((0, 0), (127, 127), (128, 128), (2**20, 2**40)):
        assert is_plain(SingleMessageMetadata(payload_size=size, sequence_id=sequence_id))
        assert not is_plain(SingleMessageMetadata(payload_size=size, sequence_id=sequence_id, null_value=True))
        assert not is_plain(SingleMessageMetadata(payload_size=size, sequence_id=sequence_id, partition_key="k"))
    # As many bytes as sequence id 0 takes.
    assert not is_plain(SingleMessageMetadata(payload_size=0, null_value=True))


def test_messages_that_are_left_out_are_passed_over_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "LOOKED_AT_MAX", 10)
    unpacked = batch(45, compacted=[*range(5, 40)])
    calls: list[list[list[int]]] = []
    while not unpacked.is_done:
        answer = api.ConsumeResponse()
        unpacked.fill(answer, TOPIC)
        calls.append([[one.batch_index for one in delivery.messages] for delivery in answer.deliveries])
    assert calls == [[[0, 1, 2, 3, 4]], [], [], [], [[40, 41, 42, 43, 44]]]
    assert (unpacked.delivered, unpacked.compacted) == (10, (1 << 40) - (1 << 5))
    partly = batch(45, ack_set=[1 << 44])
    partly.leave_out(PartialBatches(), 0, in_order=False)
    assert filled(partly) == [[44]]


def test_what_is_said_of_messages_counts_as_their_payload_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kB may stand for megabytes of properties."""
    monkeypatch.setattr(deliveries, "DELIVERY_BYTES_MAX", 2_000)
    single = SingleMessageMetadata(payload_size=0, properties=[{"key": "a", "value": "x" * 900}])
    described = [Message(index, single, memoryview(b"")) for index in range(5)]
    waiting = WaitingEntry(cast(Any, None), ENTRY, b"stored", 5, 0, None)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=9, num_messages_in_batch=5)
    assert filled(UnpackedEntry(waiting, metadata, iter(described))) == [[0, 1, 2], [3, 4]]


def test_what_each_delivery_of_an_entry_repeats_has_a_length() -> None:
    waiting = WaitingEntry(cast(Any, None), ENTRY, b"stored", 1, 0, None)
    for name, version, told in (("n" * 1_024, b"v" * 64, b"v" * 64), ("n" * 4_000_000, b"v" * 4_000_000, b"")):
        metadata = MessageMetadata(producer_name=name, sequence_id=0, publish_time=9, schema_version=version)
        metadata.num_messages_in_batch = 1
        answer = api.ConsumeResponse()
        UnpackedEntry(waiting, metadata, messages(1)).fill(answer, TOPIC)
        (made,) = answer.deliveries
        assert (made.producer_name, made.schema_version) == ("n" * 1_024, told)
