"""Which consumer of a Failover subscription is the active one, against its slow definition."""

import random
from bisect import bisect_left

import pytest

from broker.topic.clients.consumer import Consumer
from broker.topic.dispatchers.active import FAILOVER_POINTS, OrderedConsumers
from broker.topic.dispatchers.sticky_keys import murmur3
from tests.unit.broker.topic.dispatching import Peer

TOPIC = "persistent://public/default/t"


def of(name: str, priority: int) -> Consumer:
    peer = Peer()
    return Consumer(peer, peer.deliver, 1, name, priority_level=priority)


def slowly(consumers: list[Consumer], partition: int) -> Consumer | None:
    """Of *consumers* in the order in which they came."""
    ordered = sorted(consumers, key=lambda one: (one.priority_level, one.name))
    best = [one for one in ordered if one.priority_level == ordered[0].priority_level]
    if not best:
        return None
    if partition >= 0:
        return best[partition % len(best)]
    ring = {murmur3(f"{one.name}{point}".encode()): one for one in best for point in range(FAILOVER_POINTS)}
    points = sorted(ring)
    return ring[points[bisect_left(points, murmur3(TOPIC.encode())) % len(points)]]


@pytest.mark.parametrize("partition", [-1, 0, 5])
def test_the_active_one_is_the_next_on_the_ring_or_the_one_with_the_number_of_the_partition(partition: int) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        ordered = OrderedConsumers(is_failover=True, topic=TOPIC, partition=partition)
        there = list[Consumer]()
        for _ in range(30):
            if there and rng.random() < 0.4:
                gone = there.pop(rng.randrange(len(there)))
                ordered.remove(gone)
                assert gone not in ordered
            else:
                there.append(of(rng.choice("abcdefgh"), rng.choice([0, 0, 1])))
                ordered.add(there[-1])
            assert ordered.all == sorted(there, key=lambda one: (one.priority_level, one.name))
            assert ordered.active() is slowly(there, partition), f"seed {seed}"


def test_an_exclusive_consumer_is_active_whatever_its_partition() -> None:
    for partition in (-1, 3):
        ordered = OrderedConsumers(is_failover=False, topic=TOPIC, partition=partition)
        assert ordered.active() is None
        consumer = of("a", 1)
        ordered.add(consumer)
        assert ordered.active() is consumer


def test_an_event_hashes_nothing_but_the_name_of_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more consumers than names were remembered, each event hashed all of their points again."""
    from broker.topic.dispatchers import sticky_keys

    hashed, finished = [0], sticky_keys._finished

    def counting(*arguments: int) -> int:
        hashed[0] += 1
        return finished(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sticky_keys, "_finished", counting)
    ordered = OrderedConsumers(is_failover=True, topic=TOPIC, partition=-1)
    consumers = [of(f"c{number}", 0) for number in range(300)]
    for number, consumer in enumerate(consumers):
        hashed[0] = 0
        ordered.add(consumer)
        ordered.active()
        assert hashed[0] == FAILOVER_POINTS, number
    hashed[0] = 0
    for consumer in consumers:
        ordered.remove(consumer)
        ordered.active()
    assert hashed[0] == 0
