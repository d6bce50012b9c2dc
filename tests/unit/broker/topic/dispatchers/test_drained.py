"""Which hashes of a Key_Shared subscription count as drained: those whose keys wait for another consumer."""

from broker.topic.dispatchers.kinds import KeySharedPolicy
from tests.unit.broker.topic.dispatching import KEY_SHARED, Bench, entry


def drained(bench: Bench, number: int) -> int:
    key_shared = bench.subscription.key_shared
    assert key_shared is not None
    return key_shared.draining(bench.consumers[number])[1]


async def test_only_hashes_that_another_consumer_waits_for_are_counted_and_once() -> None:
    bench = Bench()
    policy = KeySharedPolicy(is_sticky=False)
    bench.join(1, KEY_SHARED, permits=1000, policy=policy)
    await bench.append(*(entry(number, key=f"k{number % 10}") for number in range(10)))
    bench.ack(1, *range(10))
    assert drained(bench, 1) == 0, "nobody waited"
    await bench.append(*(entry(number, key=f"k{number % 10}") for number in range(10, 20)))
    second = bench.join(2, KEY_SHARED, permits=1000, policy=policy)
    await bench.append(*(entry(number, key=f"k{number % 10}") for number in range(20, 30)))
    bench.ack(1, *range(10, 20))
    moved = {entry_id % 10 for entry_id in second.got}
    assert moved
    assert drained(bench, 1) == len(moved)
    assert drained(bench, 2) == 0


async def test_who_leaves_has_drained_nothing() -> None:
    bench = Bench()
    policy = KeySharedPolicy(is_sticky=False)
    bench.join(1, KEY_SHARED, permits=1000, policy=policy)
    await bench.append(*(entry(number, key=f"k{number % 10}") for number in range(20)))
    second = bench.join(2, KEY_SHARED, permits=1000, policy=policy)
    await bench.append(*(entry(number, key=f"k{number % 10}") for number in range(20, 30)))
    bench.leave(1)
    assert sorted({entry_id % 10 for entry_id in second.got}) == list(range(10))
    assert drained(bench, 2) == 0
