from dataclasses import replace
from typing import Any

import pytest

from broker.errors import ConsumerAssignError, ConsumerBusy
from broker.topic.dispatchers.kinds import KeySharedPolicy
from broker.topic.dispatchers.shared import SharedDispatcher
from broker.topic.dispatchers.sticky_keys import _finished
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import ZSTD, MessageMetadata
from managed_ledger.position import Position
from tests.unit.broker.topic.dispatching import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Bench, Peer, entry


def active_changes(peer: Peer) -> list[bool]:
    return [told for told in peer.told if isinstance(told, bool)]


async def test_nothing_is_sent_before_permits_and_no_more_than_permitted() -> None:
    bench = Bench()
    await bench.append(*map(entry, range(5)))
    peer = bench.join(1, EXCLUSIVE)
    assert peer.got == []
    bench.flow(1, 2)
    assert peer.got == [0, 1]
    bench.flow(1, 10)
    assert peer.got == [0, 1, 2, 3, 4]
    await bench.append(entry(5))
    assert peer.got[-1] == 5
    assert bench.consumers[1].permits == 6


async def test_permits_count_messages_and_a_batch_is_not_cut() -> None:
    bench = Bench()
    await bench.append(entry(0, batch=5), entry(5, batch=5), entry(10))
    peer = bench.join(1, SHARED, permits=3)
    assert peer.got == [0]
    assert bench.consumers[1].permits == -2
    bench.flow(1, 3)
    assert peer.got == [0, 1]


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
@pytest.mark.parametrize("count", [2**31 - 1, 1_000, 0, -1])
async def test_a_stored_batch_that_claims_too_many_messages_starves_nobody(kind: int, count: int) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count)
    packed = MessageMetadata(compression=ZSTD, uncompressed_size=2**32 - 1)
    bench = Bench()
    await bench.append(encode_entry(metadata, b"x" * 100))
    packed.MergeFrom(metadata)
    packed.num_messages_in_batch = 2**31 - 1
    packed.sequence_id = 1
    await bench.append(encode_entry(packed, b"x" * 100), entry(2))
    peer = bench.join(1, kind, permits=5)
    assert peer.got == [0, 1, 2]
    assert bench.consumers[1].permits == 2


@pytest.mark.parametrize("kind", [FAILOVER, KEY_SHARED])
async def test_what_many_leave_behind_in_one_turn_is_shared_out_once(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost connection takes hundreds of consumers with it."""
    hashed = 0

    def counting(*arguments: Any) -> int:
        nonlocal hashed
        hashed += 1
        return _finished(*arguments)

    monkeypatch.setattr("broker.topic.dispatchers.sticky_keys._finished", counting)
    bench = Bench(failover_delay_ms=0)
    count, keys = 100, 200
    for number in range(count):
        bench.join(number, kind, permits=1_000)
    await bench.append(*(entry(number, key=f"k{number}") for number in range(keys)))
    assert hashed <= count * 101 + count + keys + 1, "each consumer's points once"
    hashed = 0
    bench.leave(*range(1, count))
    assert hashed <= keys
    left = bench.peers[0].messages
    assert {one.position.entry_id for one in left} == set(range(keys))
    if kind == KEY_SHARED:
        assert {one.redelivery_count for one in left} == {0, 1}, "given back once, not from one leaving to the next"


async def test_markers_are_acknowledged_and_not_sent() -> None:
    for kind in (EXCLUSIVE, SHARED):
        bench = Bench()
        await bench.append(entry(0), entry(1, marker=1), entry(2))
        assert bench.join(1, kind, permits=10).got == [0, 2]
        bench.ack(1, 0)
        assert bench.cursor.mark_delete_position == (1, 1)


async def test_a_second_exclusive_consumer_waits_for_the_first_to_leave() -> None:
    bench = Bench()
    await bench.append(entry(0), entry(1))
    bench.join(1, EXCLUSIVE, permits=10)
    with pytest.raises(ConsumerBusy):
        bench.join(2, EXCLUSIVE)
    with pytest.raises(ConsumerBusy):
        bench.join(2, SHARED)
    bench.ack(1, 0)
    bench.leave(1)
    assert bench.join(2, SHARED, permits=10).got == [1]


async def test_redelivery_to_an_exclusive_consumer_begins_at_the_first_open_entry() -> None:
    bench = Bench()
    await bench.append(*map(entry, range(4)))
    peer = bench.join(1, EXCLUSIVE, permits=100, epoch=0)
    bench.ack(1, 1, cumulative=True)
    bench.redeliver(1, 3, epoch=1)
    assert peer.got == [0, 1, 2, 3, 2, 3]
    assert [message.consumer_epoch for message in peer.messages] == [0, 0, 0, 0, 1, 1]


async def test_failover_tells_all_consumers_and_waits_before_it_switches() -> None:
    bench = Bench(partition=0)
    await bench.append(*map(entry, range(3)))
    first = bench.join(1, FAILOVER, permits=10)
    second = bench.join(2, FAILOVER, permits=10)
    assert (active_changes(first), active_changes(second)) == ([], [False])
    assert first.got == []
    bench.pass_time(1.0)
    assert (active_changes(first), active_changes(second)) == ([True], [False, False])
    assert first.got == [0, 1, 2]
    bench.ack(1, 0)
    bench.leave(1)
    assert second.got == []
    bench.pass_time(1.0)
    assert active_changes(second) == [False, False, True]
    assert second.got == [1, 2]


async def test_what_was_read_for_the_former_active_consumer_is_not_sent_to_the_next_one_before_its_turn() -> None:
    bench = Bench(partition=0)
    await bench.append(*map(entry, range(3)))
    first = bench.join(1, FAILOVER, permits=10)
    bench.ledger.cold = True
    bench.pass_time(1.0)
    second = bench.join(2, FAILOVER, permits=10)
    bench.leave(1)
    await bench.host.finish_fetching()
    assert (first.got, second.got) == ([], [])
    bench.pass_time(1.0)
    await bench.host.finish_fetching()
    assert second.got == [0, 1, 2]


async def test_failover_prefers_the_best_priority_and_shares_partitions_out() -> None:
    for partition, wanted in ((0, 1), (1, 2), (2, 1)):
        bench = Bench(partition=partition)
        bench.join(3, FAILOVER, priority=1)
        bench.join(2, FAILOVER)
        bench.join(1, FAILOVER)
        assert bench.subscription.active_consumer is bench.consumers[wanted]
    bench = Bench()
    for number in range(4):
        bench.join(number, FAILOVER)
    assert bench.subscription.active_consumer is not None


async def test_shared_gives_turns_and_skips_who_cannot_take_more() -> None:
    bench = Bench(round_robin_messages=2)
    one, two = bench.join(1, SHARED), bench.join(2, SHARED)
    bench.flow(1, 100)
    bench.flow(2, 3)
    await bench.append(*map(entry, range(12)))
    assert sorted(one.got + two.got) == list(range(12))
    assert len(two.got) == 3
    bench.peers[1].is_writable = False
    await bench.append(entry(12))
    assert 12 not in one.got + two.got
    bench.flow(2, 1)
    assert two.got[-1] == 12


async def test_shared_serves_the_best_priority_first() -> None:
    bench = Bench()
    low, high = bench.join(1, SHARED, permits=100, priority=1), bench.join(2, SHARED, permits=3)
    await bench.append(*map(entry, range(5)))
    assert (high.got, low.got) == ([0, 1, 2], [3, 4])


async def test_what_is_refused_comes_before_what_is_new_and_lowest_first() -> None:
    bench = Bench()
    await bench.append(*map(entry, range(6)))
    peer = bench.join(1, SHARED, permits=4)
    bench.redeliver(1, 2, 0)
    bench.flow(1, 4)
    assert peer.got == [0, 1, 2, 3, 0, 2, 4, 5]
    assert [message.redelivery_count for message in peer.messages] == [0, 0, 0, 0, 1, 1, 0, 0]
    bench.redeliver(1, 99)
    bench.ack(1, 0, 1, 2, 3, 4, 5)
    assert bench.cursor.backlog() == 0
    assert bench.consumers[1].unacked_messages == 0


async def test_what_a_leaving_consumer_had_goes_to_the_others_and_counts() -> None:
    bench = Bench()
    await bench.append(*map(entry, range(4)))
    bench.join(1, SHARED, permits=4)
    other = bench.join(2, SHARED, permits=10)
    bench.ack(1, 1)
    bench.leave(1)
    assert other.got == [0, 2, 3]
    assert {message.redelivery_count for message in other.messages} == {1}
    bench.leave(2)
    last = bench.join(3, SHARED, permits=10)
    assert last.got == [0, 2, 3]
    assert {message.redelivery_count for message in last.messages} == {0}, "as Apache's: the last one took them along"


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_counts_stay_when_the_last_consumer_is_one_of_the_topic_api(kind: int) -> None:
    bench = Bench()
    await bench.append(*map(entry, range(3)))
    for deliveries in range(3):
        peer = bench.join(1, kind, permits=10, keeps_counts=True)
        assert [one.redelivery_count for one in peer.messages] == [deliveries] * 3
        bench.leave(1)
    peer = bench.join(1, kind, permits=10, keeps_counts=True)
    bench.ack(1, 1)
    bench.consumers[1].is_leaving = True  # in order: that is no delivery that failed
    bench.leave(1)
    peer = bench.join(1, kind, permits=10, keeps_counts=True)
    assert [one.redelivery_count for one in peer.messages] == [3, 3]
    bench.ack(1, 0, 2)
    dispatcher = bench.subscription.pump.dispatcher
    assert isinstance(dispatcher, SharedDispatcher)
    assert not dispatcher.redelivery_counts, "nothing is kept of what is done"


async def test_a_consumer_with_too_much_unacknowledged_waits_until_half_is_done() -> None:
    bench = Bench(unacked_per_consumer_max=4)
    await bench.append(*map(entry, range(10)))
    peer = bench.join(1, SHARED, permits=1)
    bench.flow(1, 2)
    bench.flow(1, 1)
    bench.flow(1, 50)
    assert peer.got == [0, 1, 2, 3]
    assert bench.consumers[1].is_blocked
    bench.ack(1, 0)
    assert len(peer.got) == 4
    bench.ack(1, 1)
    assert len(peer.got) > 4


async def test_a_subscription_with_too_much_unacknowledged_waits() -> None:
    bench = Bench(unacked_per_subscription_max=2, read_entries_max=1)
    await bench.append(*map(entry, range(5)))
    one, two = bench.join(1, SHARED, permits=10), bench.join(2, SHARED, permits=10)
    assert len(one.got) + len(two.got) == 2
    bench.ack(1, one.got[0])
    assert len(one.got) + len(two.got) == 3


@pytest.mark.parametrize("limit", ["unacked_per_consumer_max", "unacked_per_subscription_max"])
@pytest.mark.parametrize("changed", [0, 5])
async def test_who_waits_with_too_much_unacknowledged_goes_on_when_more_is_allowed(limit: str, changed: int) -> None:
    before: dict[str, Any] = {limit: 2}
    after: dict[str, Any] = {limit: changed}
    bench = Bench(**before, read_entries_max=1)
    await bench.append(*map(entry, range(6)))
    peer = bench.join(1, SHARED, permits=10)
    assert peer.got == [0, 1]
    bench.subscription.pump.use_limits(replace(bench.subscription.pump.limits, **after))
    bench.check()
    assert peer.got == list(range(changed or 6))


async def test_delayed_messages_wait_on_shared_only() -> None:
    bench = Bench(delayed_strict=True)
    at_ms = bench.host.now_ms() + 5000
    await bench.append(entry(0, deliver_at_ms=at_ms), entry(1))
    shared = bench.join(1, SHARED, permits=10)
    assert shared.got == [1]
    bench.pass_time(4.9)
    assert shared.got == [1]
    bench.pass_time(0.1)
    assert shared.got == [1, 0]
    other = Bench()
    await other.append(entry(0, deliver_at_ms=at_ms + 10_000))
    assert other.join(1, EXCLUSIVE, permits=1).got == [0]


async def test_a_short_tick_of_delayed_delivery_is_kept() -> None:
    bench = Bench(delayed_strict=True, delayed_tick_ms=10)
    at_ms = -(-bench.host.now_ms() // 100) * 100 + 1_010  # with steps of 100 ms it would come 90 ms later
    await bench.append(entry(0, deliver_at_ms=at_ms))
    shared = bench.join(1, SHARED, permits=10)
    bench.pass_time((at_ms - bench.host.now_ms() - 1) / 1000)
    assert shared.got == []
    bench.pass_time(0.011)
    assert shared.got == [0]


async def test_delayed_messages_that_are_due_wait_for_permits_without_being_looked_at_all_the_time() -> None:
    bench = Bench(delayed_strict=True)
    at_ms = bench.host.now_ms() + 1_000
    await bench.append(*(entry(number, deliver_at_ms=at_ms) for number in range(3)))
    peer = bench.join(1, SHARED, permits=2)
    bench.pass_time(1)
    assert len(peer.got) == 2
    timers = bench.host.timers_made
    bench.pass_time(10)
    assert bench.host.timers_made - timers <= 100
    bench.flow(1, 1)
    assert sorted(peer.got) == [0, 1, 2]


async def test_keys_stay_together_and_wait_for_their_consumer() -> None:
    bench = Bench()
    peers = {number: bench.join(number, KEY_SHARED, permits=1000) for number in range(3)}
    await bench.append(*(entry(number, key=f"k{number % 10}") for number in range(60)))
    owner: dict[int, int] = {}
    for number, peer in peers.items():
        assert peer.got == sorted(peer.got)
        for entry_id in peer.got:
            assert owner.setdefault(entry_id % 10, number) == number
    assert sum(len(peer.got) for peer in peers.values()) == 60


async def test_a_key_moves_only_when_its_former_consumer_has_nothing_of_it_left() -> None:
    bench = Bench()
    policy = KeySharedPolicy(is_sticky=False)
    first = bench.join(1, KEY_SHARED, permits=1000, policy=policy)
    await bench.append(*(entry(number, key=f"k{number % 10}") for number in range(20)))
    second = bench.join(2, KEY_SHARED, permits=1000, policy=policy)
    await bench.append(*(entry(number, key=f"k{number % 10}") for number in range(20, 40)))
    assert first.got[:20] == list(range(20))
    assert second.got == []  # everything that is his now has entries open at the first
    bench.ack(1, *range(20))
    assert second.got == sorted(second.got)
    moved = {entry_id % 10 for entry_id in second.got}
    assert moved
    assert moved.isdisjoint({entry_id % 10 for entry_id in first.got[20:]})
    assert sorted(first.got[20:] + second.got) == list(range(20, 40))


async def test_what_is_new_waits_behind_what_is_given_back_of_its_key_while_it_is_read() -> None:
    bench = Bench()
    await bench.append(entry(0, key="k"))
    peer = bench.join(1, KEY_SHARED, permits=10)
    bench.ledger.cold = True
    await bench.append(entry(1, key="k"))
    bench.redeliver(1, 0)
    await bench.host.finish_fetching()
    assert peer.got == [0, 0, 1]


async def test_what_is_read_again_waits_behind_what_is_given_back_of_its_key_meanwhile() -> None:
    bench = Bench()
    await bench.append(entry(0, key="k"), entry(1, key="k"))
    peer = bench.join(1, KEY_SHARED, permits=10)
    bench.ledger.cold = True
    bench.redeliver(1, 1)
    bench.redeliver(1, 0)
    await bench.host.finish_fetching()
    assert peer.got == [0, 1, 0, 1]


async def test_sticky_ranges_are_checked_and_kept() -> None:
    bench = Bench()
    policy = KeySharedPolicy(is_sticky=True)
    low = bench.join(1, KEY_SHARED, permits=100, policy=policy, hash_ranges=[(0, 32767)])
    with pytest.raises(ConsumerAssignError):
        bench.join(2, KEY_SHARED, policy=policy, hash_ranges=[(100, 200)])
    with pytest.raises(ConsumerBusy):
        bench.join(2, KEY_SHARED)
    await bench.append(*(entry(number, key=f"key{number}") for number in range(8)))
    assert low.got == [1, 2, 4, 5, 7]
    high = bench.join(3, KEY_SHARED, permits=100, policy=policy, hash_ranges=[(32768, 65535)])
    assert high.got == [0, 3, 6]


async def test_an_entry_that_nobody_understands_goes_out_as_one_message() -> None:
    bench = Bench()
    await bench.append(b"\x00", b"\x00\x00\x00\x05ab", entry(2))
    for number, kind in ((1, EXCLUSIVE), (2, SHARED), (3, KEY_SHARED)):
        peer = bench.join(number, kind, permits=10)
        assert peer.got == [0, 1, 2]
        bench.leave(number)


# ------------------------------------------------------------------- acknowledgements that are not stored


async def with_holes(kind: int, *, durable: bool = True) -> tuple[Bench, Peer]:
    """Ten entries are delivered, 1, 3 and 5 of them acknowledged; the cursor stores two runs. 10 and 11 follow."""
    bench = Bench(unstored_ranges_max=2)
    bench.cursor.durable = durable
    await bench.append(*map(entry, range(10)))
    peer = bench.join(1, kind, permits=100)
    assert peer.got == list(range(10))
    bench.ack(1, 1, 3, 5)
    await bench.append(entry(10), entry(11))
    return bench, peer


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_nothing_new_is_delivered_while_more_is_acknowledged_than_can_be_stored(kind: int) -> None:
    bench, peer = await with_holes(kind)
    assert peer.got == list(range(10))
    bench.flow(1, 1)
    bench.ack(1, 9)
    assert peer.got == list(range(10)), "four runs by now"
    bench.ack(1, 8)
    assert peer.got == list(range(10)), "still four"
    bench.ack(1, 0, 2)
    assert peer.got == list(range(12)), "5, and 8 to 9"


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_what_was_delivered_before_is_delivered_again_while_nothing_new_is(kind: int) -> None:
    bench, _ = await with_holes(kind)
    other = bench.join(2, kind, permits=100)
    assert other.got == []
    bench.leave(1)
    assert other.got == [0, 2, 4, 6, 7, 8, 9]
    bench.ack(2, 0, 2, 4)
    assert other.got == [0, 2, 4, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(("kind", "durable"), [(EXCLUSIVE, True), (SHARED, False)])
async def test_one_consumer_and_readers_get_what_is_new_all_the_same(kind: int, durable: bool) -> None:
    _, peer = await with_holes(kind, durable=durable)
    assert peer.got == list(range(12))


@pytest.mark.parametrize("way", ["skipped", "allowed"])
async def test_delivery_goes_on_when_the_cause_of_its_pause_goes(way: str) -> None:
    bench, peer = await with_holes(SHARED)
    if way == "skipped":
        bench.subscription.acking.clear_up_to(Position(1, 5))
    else:
        bench.subscription.pump.use_limits(replace(bench.subscription.pump.limits, unstored_ranges_max=None))
    assert peer.got == list(range(12))
