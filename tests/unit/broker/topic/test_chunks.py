"""Messages in chunks on Shared and Key_Shared: clients put them together only from what comes to one consumer."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from broker.topic.clients.consumer import Consumer
from broker.topic.dispatchers.dispatcher import facts_of
from broker.topic.dispatchers.kinds import DispatchedTopic, KeySharedPolicy
from broker.topic.non_persistent.subscription import NonPersistentSubscription
from broker.topic.unacked import UnackedBudget
from magnetar_core.runtime.tasks import in_turns
from magnetar_core.runtime.types import Buffer
from managed_ledger.messages import metadata_of, split_entry
from managed_ledger.position import EARLIEST, Position
from managed_ledger.reading.reading import Entry
from tests.unit.broker.topic.dispatching import KEY_SHARED, SHARED, Bench, Peer, entry

BOTH = pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])

# Keys whose consumers are 1 and 2, where each has half of the hashes.
HALVES = {1: [(0, 32767)], 2: [(32768, 65535)]}
KEY_OF = {1: "key1", 2: "key0"}


def chunks(uuid: str, count: int, **more: Any) -> list[bytes]:
    return [entry(0, chunk=(uuid, at, count), **more) for at in range(count)]


def together(bench: Bench, *messages: Sequence[int]) -> list[int]:
    """The consumer of each message, whose chunks it got in order."""
    owners = []
    for message in messages:
        having = [number for number, peer in bench.peers.items() if set(message) & set(peer.got)]
        assert len(having) == 1, f"{message} went to {having}"
        assert [one for one in bench.peers[having[0]].got if one in message] == list(message)
        owners += having
    return owners


async def test_all_chunks_of_a_message_go_to_one_consumer() -> None:
    bench = Bench(round_robin_messages=1)
    for number in (1, 2):
        bench.join(number, SHARED, permits=1000)
    for number in range(20):  # as they come from a producer: each is dispatched before the next is there
        for one in chunks(f"p-{number}", 3):
            await bench.append(one)
    owners = together(bench, *(range(first, first + 3) for first in range(0, 60, 3)))
    assert set(owners) == {1, 2}


async def test_chunks_of_several_producers_that_come_mixed_go_each_to_the_consumer_of_their_message() -> None:
    bench = Bench(round_robin_messages=1)
    for number in (1, 2, 3):
        bench.join(number, SHARED, permits=1000)
    four = [chunks(f"p{number}-0", 3) for number in range(4)]
    await bench.append(*itertools.chain(*zip(*four, strict=True)))
    owners = together(bench, *(range(first, 12, 4) for first in range(4)))
    assert len(set(owners)) == 3


@BOTH
async def test_chunks_wait_for_the_permits_of_their_consumer_and_hold_nobody_else(kind: int) -> None:
    bench = Bench(read_entries_max=2)
    policy = KeySharedPolicy(is_sticky=True)
    for number in (1, 2):
        bench.join(number, kind, policy=policy, hash_ranges=HALVES[number])
    bench.flow(1, 1)
    await bench.append(*chunks("a", 4, key=KEY_OF[1]))
    assert bench.peers[1].got == [0]
    bench.flow(2, 10)
    await bench.append(*(entry(number, key=KEY_OF[2]) for number in range(4, 8)))
    assert bench.peers[2].got == [4, 5, 6, 7]
    for permits in (1, 2):
        bench.flow(1, permits)
    assert bench.peers[1].got == [0, 1, 2, 3]


@BOTH
async def test_with_a_permit_at_a_time_a_message_comes_whole(kind: int) -> None:
    bench = Bench()
    bench.join(1, kind, permits=1)
    await bench.append(*chunks("a", 5, key="k"))
    for _ in range(4):
        bench.flow(1, 1)
    assert bench.peers[1].got == [0, 1, 2, 3, 4]


@BOTH
@pytest.mark.parametrize("limit", ["consumer", "subscription", "broker"])
async def test_what_is_not_acknowledged_does_not_stop_within_a_message(kind: int, limit: str) -> None:
    """The consumer has nothing that it could acknowledge before the last chunk is there."""
    bench = Bench(
        read_entries_max=2,
        unacked=UnackedBudget(2, 0.5) if limit == "broker" else None,
        unacked_per_consumer_max=2 if limit == "consumer" else 0,
        unacked_per_subscription_max=2 if limit == "subscription" else 0,
    )
    first = chunks("a", 5, key="k")
    await bench.append(*first[:2], entry(2, key="k"), first[2], entry(4, key="k"), *first[3:], *chunks("b", 2, key="k"))
    peer = bench.join(1, kind, permits=100)
    assert peer.got == [0, 1, 3, 5, 6]
    bench.ack(1, 0, 1, 3, 5, 6)
    bench.pass_time(0)
    assert peer.got[5:7] == [2, 4]
    bench.ack(1, 2, 4)
    bench.pass_time(0)
    assert peer.got[7:] == [7, 8]


@BOTH
async def test_a_consumer_that_waits_for_the_end_of_a_message_does_not_look_for_it_for_ever(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("shared", "key_shared"):
        monkeypatch.setattr(f"broker.topic.dispatchers.{module}.LOOK_AHEAD_MAX", 4)
    bench = Bench(read_entries_max=1, unacked_per_consumer_max=1)
    await bench.append(chunks("a", 2)[0], *map(entry, range(1, 10)))
    peer = bench.join(1, kind, permits=100)
    assert (peer.got, bench.cursor.read_position) == ([0], (1, 5))
    bench.ack(1, 0)  # as a client does that has waited long enough
    for _ in range(9):
        bench.ack(1, peer.got[-1])
    assert peer.got == list(range(10))


async def test_as_much_waits_for_one_consumer_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.topic.dispatchers.shared.LOOK_AHEAD_MAX", 4)
    bench = Bench(read_entries_max=1)
    bench.join(1, SHARED, permits=1)
    other = bench.join(2, SHARED)
    await bench.append(*chunks("a", 9), entry(9))
    bench.flow(2, 10)
    assert (other.got, bench.cursor.read_position) == ([], (1, 5))
    bench.flow(1, 8)
    assert (bench.peers[1].got, other.got) == (list(range(9)), [9])


# ------------------------------------------------------------------------------------------ again


@BOTH
async def test_what_a_leaving_consumer_had_of_a_message_goes_to_another_together_with_the_rest(kind: int) -> None:
    bench = Bench()
    bench.join(1, kind, permits=2)
    await bench.append(*chunks("a", 4, key="k"))
    other = bench.join(2, kind, permits=100)
    assert other.got == []
    bench.leave(1)
    assert other.got == [0, 1, 2, 3]
    assert [one.redelivery_count for one in other.messages] == [1, 1, 0, 0]


@BOTH
async def test_the_consumer_of_a_message_may_leave_between_two_chunks(kind: int) -> None:
    bench = Bench()
    first, *rest = chunks("a", 3, key="k")
    bench.join(1, kind, permits=10)
    await bench.append(first)
    other = bench.join(2, kind, permits=10)
    bench.leave(1)
    for one in rest:
        await bench.append(one)
    assert other.got == [0, 1, 2]


async def test_one_chunk_that_is_given_back_takes_the_others_along_to_another_consumer() -> None:
    bench = Bench(round_robin_messages=1)
    for number in (1, 2):
        bench.join(number, SHARED, permits=100)
    await bench.append(*chunks("a", 3), entry(3))
    (owner,) = together(bench, range(3))
    other = 3 - owner
    for named in (1, 2):
        bench.redeliver(owner, named)
        assert bench.peers[other].got[-3:] == [0, 1, 2]
        assert {one.redelivery_count for one in bench.peers[other].messages[-3:]} == {named}
        owner, other = other, owner
    assert bench.peers[1].got.count(3) + bench.peers[2].got.count(3) == 1
    bench.ack(owner, 0, 1, 2)
    bench.redeliver(owner)
    assert bench.cursor.backlog() == 1


@BOTH
async def test_a_single_consumer_gets_again_what_it_gives_back(kind: int) -> None:
    bench = Bench()
    await bench.append(*chunks("a", 3, key="k"), *chunks("b", 2, key="k"))
    peer = bench.join(1, kind, permits=100)
    bench.redeliver(1, 4)
    assert peer.got == [0, 1, 2, 3, 4, 3, 4]
    bench.redeliver(1)
    assert peer.got[7:] == [0, 1, 2, 3, 4]


@BOTH
async def test_a_chunk_that_is_given_back_while_others_are_read_again_goes_before_them(kind: int) -> None:
    bench = Bench()
    bench.join(1, kind, permits=2)
    await bench.append(*chunks("a", 4, key="k"))
    bench.ledger.cold = True
    bench.flow(1, 10)  # 2 and 3 are read again
    bench.redeliver(1)
    await bench.host.finish_fetching()
    assert bench.peers[1].got == [0, 1, 0, 1, 2, 3]


@BOTH
async def test_after_a_new_beginning_in_the_middle_of_a_message_all_of_it_comes(kind: int) -> None:
    """As after an unload: nothing is known of what was delivered before."""
    bench = Bench()
    first, *rest = chunks("a", 3, key="k")
    bench.join(1, kind, permits=10)
    await bench.append(first)
    await bench.subscription.reset_to(EARLIEST, announce=in_turns)
    for number in (2, 3):
        bench.join(number, kind, permits=10)
    await bench.append(*rest)
    del bench.peers[1]
    together(bench, range(3))


# ------------------------------------------------------------------------------------------ what is left of a message


@BOTH
async def test_the_consumer_gets_the_rest_of_a_message_whose_first_chunks_are_acknowledged(kind: int) -> None:
    bench = Bench()
    bench.join(1, kind, permits=10)
    bench.join(2, kind, permits=10)
    first, second, third = chunks("a", 3, key="k")
    await bench.append(first, second)
    (owner,) = together(bench, range(2))
    bench.ack(owner, 0, 1)
    await bench.append(third)
    assert together(bench, range(3)) == [owner]
    bench.redeliver(owner, 2)
    assert bench.cursor.backlog() == 1
    assert bench.peers[1].got.count(2) + bench.peers[2].got.count(2) == 2, (
        "who acknowledges chunks may ask for one again"
    )


@BOTH
@pytest.mark.parametrize("how", ["its consumer is gone", "its subscription was loaded anew", "it has expired"])
async def test_the_rest_of_a_message_that_nobody_can_put_together_is_acknowledged(
    kind: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    *begun, last = chunks("a", 4, key="k")
    await bench.append(*begun)
    peer = bench.join(1, kind, permits=10)
    if how == "it has expired":
        bench.write(1, may=False)
        bench.redeliver(1)  # the three wait
        bench.subscription.acking.clear_up_to(Position(1, 0))
    else:
        bench.ack(1, 0)
    if how == "its subscription was loaded anew":
        bench.subscription.detach_consumers()
        list(bench.subscription.notify_detached())
    other = bench.join(2, kind, permits=10)
    if how == "its consumer is gone":
        bench.leave(1)
    if 1 in bench.consumers:
        bench.write(1, may=True)
    bench.pass_time(0)
    await bench.append(last, entry(4))
    assert sorted(peer.got[3:] + other.got) == [4]
    assert bench.cursor.mark_delete_position == (1, 3)
    assert "the chunk at 1:3 (chunk_id 3 of 4, uuid a) counts as acknowledged" in caplog.text


@BOTH
@pytest.mark.parametrize("sent", ["001123", "010123", "01230123", "0123123", "01233"])
async def test_what_a_producer_sends_once_more_comes_once(kind: int, sent: str) -> None:
    """It has lost its connection, and receipts. Clients drop a message of which a chunk comes a second time."""
    bench = Bench()
    for number in (1, 2):
        bench.join(number, kind, permits=100)
    message = chunks("a", 4, key="k")
    for one in sent:
        await bench.append(message[int(one)])
    firsts = [sent.index(one) for one in "0123"]
    (owner,) = together(bench, firsts)
    assert len(bench.log) == 4
    bench.redeliver(owner)
    assert bench.log[4:] == firsts
    for number in (1, 2):
        bench.ack(number, *firsts)
    assert bench.cursor.backlog() == 0


@BOTH
async def test_what_was_acknowledged_comes_again_if_its_producer_sends_it_once_more(kind: int) -> None:
    """The client has given up an incomplete message, and acknowledged it; now its producer is there again."""
    bench = Bench()
    peer = bench.join(1, kind, permits=100)
    message = chunks("a", 3, key="k")
    await bench.append(*message[:2])
    bench.ack(1, 0, 1)
    await bench.append(*message, *message[1:])
    assert peer.got == [0, 1, 2, 3, 4]
    bench.ack(1, 2, 3, 4)
    await bench.append(*message)
    assert peer.got[5:] == [7, 8, 9], "as any message that is sent twice"


async def test_a_message_with_the_uuid_of_one_that_never_ended_goes_to_another_consumer() -> None:
    """A producer that begins anew with its sequence ids."""
    bench = Bench(round_robin_messages=1)
    for number in (1, 2):
        bench.join(number, SHARED, permits=100)
    await bench.append(*chunks("a", 3)[:2], entry(0))
    await bench.append(*chunks("a", 3, publish_ms=2))
    begun, whole = together(bench, range(2), range(3, 6))
    assert begun != whole
    bench.leave(begun)
    assert {0, 1}.isdisjoint(bench.peers[whole].got), "nobody can put that together"
    bench.ack(whole, *range(2, 6))
    assert bench.cursor.backlog() == 0


async def test_what_waits_of_a_message_that_never_ends_is_acknowledged() -> None:
    bench = Bench()
    one, two = bench.join(1, SHARED, permits=1), bench.join(2, SHARED)
    await bench.append(*chunks("a", 3)[:2])
    bench.flow(2, 100)  # the second chunk is read, and waits for the permits of the first consumer
    await bench.append(*chunks("a", 3, publish_ms=2))
    bench.flow(1, 100)
    assert (one.got, two.got) == ([0], [2, 3, 4])
    bench.ack(2, 2, 3, 4)
    assert bench.cursor.backlog() == 1
    bench.redeliver(1)
    assert bench.cursor.backlog() == 0


@BOTH
async def test_two_messages_of_one_uuid_are_two_messages(kind: int) -> None:
    bench = Bench()
    peer = bench.join(1, kind, permits=100)
    await bench.append(*chunks("a", 2, key="k"), *chunks("a", 3, key="k", publish_ms=2))
    assert peer.got == [0, 1, 2, 3, 4]
    bench.redeliver(1, 1)
    assert peer.got[5:] == [0, 1]
    bench.ack(1, 0, 1)
    bench.redeliver(1, 3)
    assert peer.got[7:] == [2, 3, 4]


@BOTH
@pytest.mark.parametrize("strange", [("", 1, 3), ("a", -1, 2), ("a", 7, 2), ("a", 1, -2), ("a", 0, 2**31 - 1)])
async def test_strange_chunks_stop_nothing(kind: int, strange: tuple[str, int, int]) -> None:
    bench = Bench()
    await bench.append(entry(0, chunk=strange), entry(1, chunk=strange), entry(2))
    peer = bench.join(1, kind, permits=100)
    assert peer.got[-1] == 2
    bench.ack(1, *peer.got)
    assert bench.cursor.backlog() == 0


# ------------------------------------------------------------------------------------------ time, keys, memory


@BOTH
async def test_a_chunk_that_is_read_when_the_time_of_its_message_has_come_waits_for_those_before_it(kind: int) -> None:
    bench = Bench(delayed_strict=True)
    at_ms = -(-bench.host.now_ms() // 100) * 100 + 950
    peer = bench.join(1, kind, permits=100)
    first, *rest = chunks("a", 3, key="k", deliver_at_ms=at_ms)
    await bench.append(first)
    bench.host.clock.advance((at_ms - bench.host.now_ms()) / 1000)
    await bench.append(*rest)  # due, where the first of them is given back up to a step later
    assert peer.got == []
    bench.pass_time(0.1)
    assert peer.got == [0, 1, 2]


async def test_a_key_that_moves_within_a_message_leaves_the_message_where_it_is() -> None:
    """Else the former consumer would wait for the rest, and the new one for the former to finish the key."""
    bench = Bench()
    first = bench.join(1, KEY_SHARED, permits=1000)
    keys = [f"k{number}" for number in range(10)]
    messages = [chunks(f"m{number}", 3, key=key) for number, key in enumerate(keys)]
    await bench.append(*(message[0] for message in messages))
    second = bench.join(2, KEY_SHARED, permits=1000)
    await bench.append(*(message[1] for message in messages))
    await bench.append(*(entry(number, key=key) for number, key in enumerate(keys)))
    await bench.append(*(message[2] for message in messages))
    assert second.got == []
    assert {*range(20), *range(30, 40)} <= set(first.got)
    moved = {*range(20, 30)} - set(first.got)
    assert moved, "keys of the second one wait for the first"
    bench.ack(1, *range(20), *range(30, 40))
    assert set(second.got) == moved


async def test_the_end_of_a_message_is_looked_for_past_what_waits_for_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.topic.dispatchers.key_shared.LOOK_AHEAD_PER_CONSUMER", 1)
    bench = Bench(read_entries_max=1)
    first = bench.join(1, KEY_SHARED, permits=1000)
    keys = [f"k{number}" for number in range(10)]
    await bench.append(*(chunks(f"m{number}", 2, key=key)[0] for number, key in enumerate(keys)))
    second = bench.join(2, KEY_SHARED, permits=1000)
    await bench.append(*(entry(number, key=key) for number, key in enumerate(keys * 3)))
    await bench.append(*(chunks(f"m{number}", 2, key=key)[1] for number, key in enumerate(keys)))
    bench.pass_time(1)
    assert second.got == []
    assert set(range(40, 50)) <= set(first.got)


@BOTH
async def test_so_many_messages_in_chunks_are_remembered(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.topic.dispatchers.chunked.CHUNKED_MESSAGES_MAX", 2)
    bench = Bench()
    peer = bench.join(1, kind, permits=100)
    messages = [chunks(f"m{number}", 2, key=f"k{number}") for number in range(4)]
    await bench.append(*(message[0] for message in messages))
    await bench.append(*(message[1] for message in messages))
    assert peer.got == list(range(8)), "nothing is taken for the rest of a message while it may not be"
    bench.redeliver(1, 7)
    bench.redeliver(1)
    bench.ack(1, *range(8))
    assert bench.cursor.backlog() == 0


@BOTH
async def test_nothing_is_remembered_of_messages_that_are_acknowledged(kind: int) -> None:
    bench = Bench()
    bench.join(1, kind, permits=1000)
    for number in range(5):
        await bench.append(*chunks(f"m{number}", 3, key=f"k{number}"))
    chunked = bench.subscription.pump.dispatcher._chunked  # type: ignore[union-attr]
    assert (len(chunked), len(chunked.at)) == (5, 15)
    bench.ack(1, *range(12))
    bench.subscription.acking.clear_up_to(Position(1, 14))
    assert (len(chunked), chunked.at, chunked._latest) == (0, {}, {})


# ------------------------------------------------------------------------------------------ non-persistent topics


class Taking(Peer):
    """Remembers the chunks that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[str] = []

    def deliver(self, consumer: Consumer, position: Position, entry: Buffer, *more: Any) -> int:
        metadata = metadata_of(split_entry(entry))
        self.chunks.append(f"{metadata.uuid}{metadata.chunk_id}")
        return len(entry)


def non_persistent(kind: int, permits: Sequence[int]) -> tuple[NonPersistentSubscription, list[Consumer], list[Taking]]:
    subscription = NonPersistentSubscription("s", DispatchedTopic("non-persistent://public/default/t"), lambda: 0)
    peers = [Taking() for _ in permits]
    consumers = [Consumer(peer, peer.deliver, number, f"c{number}") for number, peer in enumerate(peers)]
    for consumer, count in zip(consumers, permits, strict=True):
        subscription.add_consumer(consumer, kind, KeySharedPolicy())
        subscription.flow(consumer, count)
    return subscription, consumers, peers


def deliver(subscription: NonPersistentSubscription, *entries: bytes) -> None:
    for one in entries:
        subscription.deliver(one, facts_of(Entry(0, 0, one)))


@BOTH
async def test_a_non_persistent_topic_gives_all_chunks_of_a_message_to_one_consumer(kind: int) -> None:
    subscription, _, peers = non_persistent(kind, [100, 100])
    messages = [chunks(f"m{number}-", 3, key=f"k{number}") for number in range(21)]
    deliver(subscription, *itertools.chain(*zip(*messages, strict=True)))
    assert subscription.dropped_messages == 0
    for number in range(21):
        mine = [[one for one in peer.chunks if one.startswith(f"m{number}-")] for peer in peers]
        assert sorted(mine) == [[], [f"m{number}-{at}" for at in range(3)]]
    assert all(peer.chunks for peer in peers)


@BOTH
async def test_what_is_left_of_a_message_of_which_a_chunk_was_dropped_is_dropped(kind: int) -> None:
    subscription, consumers, (peer,) = non_persistent(kind, [2])
    first = chunks("a", 4, key="k")
    deliver(subscription, *first[:3])
    subscription.flow(consumers[0], 100)
    deliver(subscription, first[3], *chunks("b", 2, key="k"))
    assert (peer.chunks, subscription.dropped_messages) == (["a0", "a1", "b0", "b1"], 2)


@BOTH
async def test_what_is_left_of_a_message_whose_consumer_has_left_is_dropped(kind: int) -> None:
    subscription, consumers, peers = non_persistent(kind, [100, 100])
    first, *rest = chunks("a", 3, key="k")
    deliver(subscription, first)
    (owner,) = [number for number, peer in enumerate(peers) if peer.chunks]
    subscription.remove_consumer(consumers[owner])
    deliver(subscription, *rest, *chunks("b", 2, key="k"))
    assert (peers[owner].chunks, peers[1 - owner].chunks) == (["a0"], ["b0", "b1"])
    assert subscription.dropped_messages == 2


@BOTH
async def test_a_non_persistent_topic_remembers_so_many_messages_in_chunks(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.topic.non_persistent.delivery.CHUNKED_MESSAGES_MAX", 2)
    subscription, _, (peer,) = non_persistent(kind, [100])
    messages = [chunks(f"m{number}-", 2, key=f"k{number}") for number in range(3)]
    deliver(subscription, *itertools.chain(*zip(*messages, strict=True)))
    assert (peer.chunks, subscription.dropped_messages) == (["m0-0", "m1-0", "m2-0", "m1-1", "m2-1"], 1)
