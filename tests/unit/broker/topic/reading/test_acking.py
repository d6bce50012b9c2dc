"""Acknowledgements of a subscription: single ones, cumulative ones, and those of parts of batches."""

from typing import Any

import pytest

from broker.wire import pulsar_pb2 as wire
from managed_ledger.errors import InvalidPosition
from managed_ledger.position import Position
from tests.unit.broker.topic.dispatching import EXCLUSIVE, KEY_SHARED, SHARED, Bench, entry


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_the_size_of_a_batch_is_that_of_its_entry_whatever_an_ack_says(kind: int) -> None:
    def ack(**fields: Any) -> None:
        command = wire.CommandAck(consumer_id=1, ack_type=wire.CommandAck.Individual)
        command.message_id.add(ledgerId=1, entryId=0, **fields)
        bench.subscription.acking.acknowledge(bench.consumers[1], command)
        bench.check()

    bench = Bench()
    await bench.append(entry(0, batch=3), entry(3))
    bench.join(1, kind, permits=10)
    for size in (2**31 - 1, 1_000_000, 2, 1):  # 0 and 2 are left
        ack(ack_set=[0b101], batch_size=size)
        assert bench.cursor.batch_ack_set(Position(1, 0)) == [0b101]
    for fields in (
        {"ack_set": [0] * 300_000, "batch_size": 3},
        {"ack_set": [-1] * 15_626},
        {"ack_set": [1], "batch_size": -1},
        {"batch_size": -(2**31)},
    ):
        with pytest.raises(InvalidPosition, match=r"1:0: batch_size .* a batch has at most 1000000 messages"):
            ack(**fields)
    assert bench.cursor.batch_ack_set(Position(1, 0)) == [0b101]
    ack(ack_set=[0, 0, 1 << 62])  # beyond the batch: nothing of it is left
    assert bench.cursor.is_deleted(Position(1, 0))


@pytest.mark.parametrize("size", [4_097, 1_000_000, 2**31 - 1])
async def test_an_ack_of_a_batch_that_was_not_sent_makes_no_large_set(size: int) -> None:
    bench = Bench()
    bench.join(1, SHARED)
    await bench.append(entry(0, batch=3), entry(3, batch=3))
    command = wire.CommandAck(consumer_id=1, ack_type=wire.CommandAck.Individual)
    command.message_id.add(ledgerId=1, entryId=0, ack_set=[1], batch_size=size)
    command.message_id.add(ledgerId=1, entryId=1, ack_set=[1], batch_size=4_096)
    bench.subscription.acking.acknowledge(bench.consumers[1], command)
    assert bench.cursor.batch_ack_set(Position(1, 0)) is None, "it comes again as a whole"
    assert bench.cursor.batch_ack_set(Position(1, 1)) == [1]


async def test_an_ack_has_a_limited_number_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.topic.reading.acking.ACK_IDS_MAX", 3)
    bench = Bench()
    await bench.append(*map(entry, range(5)))
    bench.join(1, SHARED, permits=10)
    with pytest.raises(InvalidPosition, match="has 4 ids, and may have 3; split it"):
        bench.ack(1, 0, 1, 2, 3)
    bench.ack(1, 0, 1, 2)
    assert bench.cursor.backlog() == 2


async def test_single_messages_of_a_batch_leave_the_others() -> None:
    bench = Bench()
    await bench.append(entry(0, batch=10))
    peer = bench.join(1, SHARED, permits=100)
    bench.ack(1, 0, ack_set=[1022])
    assert bench.consumers[1].unacked_messages == 9
    bench.ack(1, 0, ack_set=[486])
    bench.redeliver(1)
    assert [message.ack_set for message in peer.messages] == [[], [486]]
    assert bench.consumers[1].permits == 100 - 10 - 6
    bench.ack(1, 0, ack_set=[25])  # what was acknowledged stays so: 486 & 25 is 0
    assert bench.cursor.backlog() == 0


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_batch_of_which_no_part_can_be_kept_any_more_stays_with_its_consumer_and_comes_again(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("managed_ledger.cursors.cursor.PARTIAL_BATCHES_MAX", 1)
    bench = Bench()
    await bench.append(entry(0, batch=3), entry(3, batch=3))
    bench.join(1, kind, permits=10)
    bench.ack(1, 0, ack_set=[0b110])
    bench.ack(1, 1, ack_set=[0b110])
    assert [messages for messages, _ in bench.consumers[1].pending.values()] == [2, 3]
    assert bench.consumers[1].unacked_messages == 5
    other = bench.join(2, kind, permits=10)
    bench.leave(1)
    assert other.got == [0, 1]
    bench.ack(2, 0, 1, ack_set=[0])
    assert bench.consumers[2].unacked_messages == bench.cursor.backlog() == 0


async def test_a_cumulative_ack_inside_a_batch_keeps_its_rest() -> None:
    bench = Bench()
    await bench.append(entry(0), entry(1, batch=10), entry(11))
    peer = bench.join(1, EXCLUSIVE, permits=100)
    bench.ack(1, 1, cumulative=True, ack_set=[1008])
    assert bench.cursor.mark_delete_position == (1, 0)
    bench.redeliver(1)
    assert peer.got == [0, 1, 2, 1, 2]
    assert peer.messages[3].ack_set == [1008]


async def test_a_cumulative_ack_inside_a_batch_acknowledges_what_is_before_it_where_no_parts_are_kept() -> None:
    bench = Bench(batch_index_acks=False)
    await bench.append(entry(0), entry(1, batch=10), entry(11))
    peer = bench.join(1, EXCLUSIVE, permits=100)
    bench.ack(1, 1, cumulative=True, ack_set=[1008])
    assert bench.cursor.mark_delete_position == (1, 0)
    bench.redeliver(1)
    assert peer.got == [0, 1, 2, 1, 2]
    assert peer.messages[3].ack_set == []


async def test_a_cumulative_ack_on_shared_moves_nothing() -> None:
    bench = Bench()
    await bench.append(*map(entry, range(3)))
    bench.join(1, SHARED, permits=10)
    bench.ack(1, 2, cumulative=True)
    assert bench.cursor.backlog() == 3
