"""Draining hashes of Key_Shared (PIP-379): what a consumer has to finish before a key moves to another one."""

from broker.topic.dispatchers.dispatcher import Draining
from broker.topic.dispatchers.sticky_keys import ConsistentHashing, hash_by_ring
from tests.unit.broker.topic.dispatching import KEY_SHARED, Bench, entry


def keys_that_move() -> list[str]:
    """Keys that are c1's alone, and c2's once it is there."""
    ring: ConsistentHashing[str] = ConsistentHashing(100)
    ring.add("c1", "c1")
    ring.add("c2", "c2")
    return [key for key in (f"k{n}" for n in range(20)) if ring.select(hash_by_ring(key.encode())) == "c2"]


def draining(bench: Bench, number: int) -> Draining:
    key_shared = bench.subscription.key_shared
    assert key_shared is not None
    return key_shared.draining(bench.consumers[number])


async def test_hashes_drain_when_a_consumer_joins_and_the_statistics_show_it() -> None:
    key = keys_that_move()[0]
    hash_ = hash_by_ring(key.encode())
    bench = Bench()
    bench.join(1, KEY_SHARED, permits=10)
    await bench.append(entry(0, key=key), entry(1, key=key))
    assert draining(bench, 1) == ([], 0)

    newcomer = bench.join(2, KEY_SHARED, permits=10)
    assert draining(bench, 1) == ([(hash_, 2, 0)], 0)
    await bench.append(entry(2, key=key))
    assert newcomer.got == []
    ((drained, left, blocked),), _ = draining(bench, 1)
    assert (drained, left) == (hash_, 2)
    assert blocked > 0

    bench.ack(1, 0)
    assert draining(bench, 1)[0][0][1] == 1
    bench.ack(1, 1)
    assert newcomer.got == [2]
    assert draining(bench, 1) == ([], 1)
    assert draining(bench, 2) == ([], 0)


async def test_a_consumer_that_leaves_ends_its_draining() -> None:
    key = keys_that_move()[0]
    bench = Bench()
    bench.join(1, KEY_SHARED, permits=10)
    await bench.append(entry(0, key=key))
    newcomer = bench.join(2, KEY_SHARED, permits=10)
    bench.leave(1)
    assert newcomer.got == [0]
    assert draining(bench, 2) == ([], 0)


async def test_a_key_that_comes_back_is_not_draining_any_more() -> None:
    key = keys_that_move()[0]
    bench = Bench()
    bench.join(1, KEY_SHARED, permits=10)
    await bench.append(entry(0, key=key))
    bench.join(2, KEY_SHARED, permits=10)
    bench.leave(2)
    assert draining(bench, 1) == ([], 0)
