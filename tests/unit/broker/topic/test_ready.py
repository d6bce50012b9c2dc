"""Whose turn it is among many consumers, and that it is not searched for."""

from dataclasses import replace

import pytest

from broker.topic.clients.consumer import Consumer
from broker.topic.dispatchers.ready import LOOKED_AT_MAX, ReadyConsumers
from tests.unit.broker.topic.dispatching import KEY_SHARED, SHARED, Bench, Peer, entry


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each time that somebody asks whether a consumer can take something."""
    made: list[None] = []
    is_available = Consumer.is_available.fget  # type: ignore[attr-defined]

    def counted(consumer: Consumer) -> bool:
        made.append(None)
        return bool(is_available(consumer))

    monkeypatch.setattr(Consumer, "is_available", property(counted))
    return made


def joined(bench: Bench, count: int) -> list[Peer]:
    return [bench.join(number, SHARED) for number in range(count)]


class Unchecked(Bench):
    """With many consumers; the check looks at each of them."""

    def check(self) -> None:
        pass


@pytest.mark.parametrize("count", [10, 2_000])
async def test_permits_of_one_consumer_cost_the_same_with_few_and_with_many(looks: list[None], count: int) -> None:
    bench = Unchecked()
    peers = joined(bench, count)
    await bench.append(*map(entry, range(5)))
    for number in range(5):
        looks.clear()
        bench.flow(number, 1)
        assert len(looks) <= 8
        assert peers[number].got == [number]


@pytest.mark.parametrize("count", [10, 2_000])
async def test_an_entry_for_each_of_many_costs_the_same_with_few_and_with_many(looks: list[None], count: int) -> None:
    bench = Unchecked()
    peers = joined(bench, count)
    for number in range(count):
        bench.flow(number, 1)
    looks.clear()
    for number in range(0, count, 10):
        await bench.append(*map(entry, range(number, number + 10)))
    assert [len(peer.got) for peer in peers] == [1] * count
    assert len(looks) <= count * 16


@pytest.mark.parametrize("keys", [1, 500])
async def test_what_waits_for_its_keys_is_not_looked_at_for_each_event(looks: list[None], keys: int) -> None:
    bench = Unchecked()
    busy, idle = bench.join(1, KEY_SHARED), bench.join(2, KEY_SHARED)
    bench.flow(2, 1_000)
    await bench.append(*(entry(number, key=f"k{number % keys}") for number in range(500)))
    for _ in range(100):
        bench.pass_time(1)
    assert bench.subscription.held.replayed == 500 - len(idle.got)
    looks.clear()
    for number in range(20):
        bench.ack(2, *idle.got[number : number + 1])
    assert len(looks) <= 20 * 4
    bench.flow(1, 1_000)
    for _ in range(100):
        bench.pass_time(1)
    assert sorted(busy.got + idle.got) == list(range(500))


async def test_keys_that_were_read_while_the_subscription_was_blocked_go_out_when_it_is_not() -> None:
    bench = Unchecked(unacked_per_subscription_max=100)
    bench.join(1, KEY_SHARED)
    free = bench.join(2, KEY_SHARED, permits=100)
    selector = bench.subscription.pump.dispatcher._selector  # type: ignore[union-attr]
    keys = {selector.select(selector.hash_of(f"k{number}".encode())).name: f"k{number}" for number in range(50)}
    await bench.append(entry(0, key=keys["c2"]), entry(1, key=keys["c1"]))
    await bench.append(entry(2, key=keys["c1"]))  # all that waits was looked at
    bench.ledger.cold = True
    await bench.append(entry(3, key=keys["c2"]))
    limits = bench.subscription.pump.limits
    bench.subscription.pump.use_limits(replace(limits, unacked_per_subscription_max=1))
    await bench.host.finish_fetching()
    assert free.got == [0]
    bench.subscription.pump.use_limits(limits)
    await bench.host.finish_fetching()
    assert free.got == [0, 3]


async def test_a_consumer_that_was_passed_over_goes_on_when_it_has_acknowledged_enough() -> None:
    bench = Bench(unacked_per_consumer_max=4)
    peer, other = bench.join(1, SHARED, permits=100), bench.join(2, SHARED)
    await bench.append(*map(entry, range(4)))
    await bench.append(*map(entry, range(4, 6)))  # it is met, and leaves
    bench.flow(2, 1)
    assert (peer.got, other.got) == ([0, 1, 2, 3], [4])
    bench.ack(1, 0, 1)
    assert peer.got == [0, 1, 2, 3, 5]


async def test_many_leave_at_once_and_what_they_had_goes_to_the_others() -> None:
    bench = Unchecked()
    peers = joined(bench, 50)
    for number in range(50):
        bench.flow(number, 2)
    await bench.append(*map(entry, range(50)))
    bench.leave(*range(25))
    for peer in peers[:25]:
        peer.got.clear()
    assert sorted(entry_id for peer in peers for entry_id in peer.got) == list(range(50))


async def test_a_consumer_whose_connection_had_no_room_goes_on_when_it_is_told_so() -> None:
    bench = Bench()
    one, two = bench.join(1, SHARED, permits=100), bench.join(2, SHARED, permits=100)
    bench.write(1, may=False)
    bench.write(2, may=False)
    await bench.append(entry(0))
    assert one.got + two.got == []
    bench.write(1, may=True)
    bench.write(2, may=True)
    await bench.append(entry(1))
    assert sorted(one.got + two.got) == [0, 1]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_room_of_one_connection_is_read_for_beside_many_without(kind: int) -> None:
    bench = Bench()
    for number in range(LOOKED_AT_MAX + 5):
        bench.join(number, kind, permits=1)
        bench.write(number, may=False)
    last = bench.join(LOOKED_AT_MAX + 5, kind, permits=10, priority=3)
    keys = (f"k{number}" for number in range(200))
    await bench.append(*(entry(number, key=next(keys)) for number in range(200)))
    assert len(last.got) >= 1


def test_turns_go_round_and_the_best_priority_comes_first() -> None:
    ready = ReadyConsumers()
    peer = Peer()
    first, second, low = (
        Consumer(peer, peer.deliver, number, f"c{number}", priority_level=number // 2) for number in range(3)
    )
    for consumer in (low, first, second):
        consumer.permits = 10
        ready.add(consumer)
    turns = []
    for _ in range(6):
        turns.append(ready.next(2))
        ready.sent(1)
    assert turns == [first, first, second, second, first, first]
    assert ready.other_than(first) is second
    first.permits = second.permits = 0
    assert ready.next(2) is low
    assert ready.other_than(low) is None
    first.permits = 1
    ready.wake(first)
    assert ready.next(2) is low  # its turn is not over
    ready.end_turn()
    assert ready.next(2) is first
    ready.remove(first)
    ready.remove(low)
    ready.wake(first)
    assert ready.next(2) is None


def test_as_many_are_looked_at_as_a_read_needs() -> None:
    ready = ReadyConsumers()
    consumers = [Consumer(peer := Peer(), peer.deliver, number, f"c{number}") for number in range(300)]
    for consumer in consumers:
        consumer.permits = 1
        ready.add(consumer)
    assert ready.choose_available(3, 1) == consumers[:3]
    assert ready.choose_available(1, 3 << 20) == consumers[:3]
    assert ready.choose_available(1_000, 1) == consumers[:LOOKED_AT_MAX]
