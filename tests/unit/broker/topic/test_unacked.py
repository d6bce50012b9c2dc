"""maxUnackedMessagesPerBroker: which subscriptions wait when a whole broker has too many unacknowledged messages."""

import gc
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.topic.unacked import UnackedBudget, UnackedShare
from broker.wire import pulsar_pb2 as wire
from tests.unit.broker.topic.dispatching import Bench, entry

SHARED = wire.CommandSubscribe.Shared
KEY_SHARED = wire.CommandSubscribe.Key_Shared
EXCLUSIVE = wire.CommandSubscribe.Exclusive


def shares(budget: UnackedBudget, count: int) -> tuple[list[UnackedShare], list[int]]:
    resumed: list[int] = []
    return [budget.share(lambda number=number: resumed.append(number)) for number in range(count)], resumed  # type: ignore[misc]


def test_at_the_limit_those_above_their_part_wait_until_half_of_the_limit_is_left() -> None:
    budget = UnackedBudget(100, 0.2)
    (a, b, c), resumed = shares(budget, 3)
    a.count(60)
    b.count(20)
    c.count(19)
    assert not any(one.is_blocked for one in (a, b, c))
    c.count(1)
    assert [one.is_blocked for one in (a, b, c)] == [True, False, False]
    b.count(1)  # above its part while the others wait
    assert b.is_blocked
    a.count(-30)
    assert a.is_blocked
    a.count(-20)  # 10 are half of its part, and not less
    assert a.is_blocked
    assert budget.unacked == 51
    c.count(-2)
    assert resumed == [0, 1]
    assert not any(one.is_blocked for one in (a, b, c))


def test_one_below_half_of_its_part_goes_on_while_the_others_wait() -> None:
    budget = UnackedBudget(100, 0.2)
    (a, b), resumed = shares(budget, 2)
    a.count(75)
    b.count(25)
    assert (a.is_blocked, b.is_blocked) == (True, True)
    b.count(-16)
    assert (a.is_blocked, b.is_blocked) == (True, False)
    assert resumed == [1]


@pytest.mark.parametrize(("limit", "part"), [(0, 0.16), (100, 0.0)])
def test_without_a_limit_or_a_part_nobody_waits(limit: int, part: float) -> None:
    (a,), _ = shares(UnackedBudget(limit, part), 1)
    a.count(10**9)
    assert not a.is_blocked


def test_a_subscription_that_ends_counts_no_more() -> None:
    budget = UnackedBudget(10, 0.1)
    (a, b), resumed = shares(budget, 2)
    a.count(8)
    b.count(2)
    a.clear()
    assert budget.unacked == 2
    assert not budget.is_blocking
    assert sorted(resumed) == [0, 1]


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(-40, 40)), max_size=80),
    limit=st.integers(1, 60),
    part=st.floats(0.01, 1),
)
def test_nobody_waits_below_half_of_the_limit_and_nobody_is_above_its_part_unblocked(
    steps: Sequence[tuple[int, int]], limit: int, part: float
) -> None:
    budget = UnackedBudget(limit, part)
    every, _ = shares(budget, 4)
    for number, messages in steps:
        share = every[number]
        share.count(max(messages, -share.unacked))
        assert budget.unacked == sum(one.unacked for one in every)
        if budget.unacked < limit // 2:
            assert not any(one.is_blocked for one in every)
        if budget.unacked >= limit:
            assert all(one.is_blocked for one in every if one.unacked > int(limit * part))


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_subscription_with_too_many_waits_for_acknowledgements_of_others(kind: int) -> None:
    budget = UnackedBudget(10, 0.3)
    one, other = Bench(unacked=budget), Bench(unacked=budget)
    for bench in (one, other):
        bench.join(1, kind, permits=100)
    await one.append(*(entry(number, key="k") for number in range(7)))
    await other.append(*(entry(number, key="k") for number in range(3)))
    assert [bench.subscription.held.is_blocked for bench in (one, other)] == [True, False]
    await one.append(entry(7, key="k"))
    assert len(one.log) == 7
    other.ack(1, 0, 1, 2)
    one.ack(1, 0, 1)
    assert [bench.subscription.held.is_blocked for bench in (one, other)] == [True, False]  # half of the limit are left
    one.ack(1, 2)
    assert [bench.subscription.held.is_blocked for bench in (one, other)] == [False, False]
    one.pass_time(0)
    assert len(one.log) == 8
    assert budget.unacked == 5


async def test_subscriptions_of_one_consumer_do_not_count() -> None:
    budget = UnackedBudget(5, 0.1)
    bench = Bench(unacked=budget)
    bench.join(1, EXCLUSIVE, permits=100)
    await bench.append(*(entry(number) for number in range(20)))
    assert len(bench.log) == 20
    assert budget.unacked == 0


async def test_what_a_consumer_that_leaves_had_is_counted_no_more() -> None:
    budget = UnackedBudget(5, 0.1)
    bench = Bench(unacked=budget)
    bench.join(1, SHARED, permits=100)
    await bench.append(*(entry(number) for number in range(20)))
    assert bench.subscription.held.is_blocked
    bench.leave(1)
    assert budget.unacked == 0
    assert not budget.is_blocking
    bench.join(2, SHARED, permits=4)
    assert budget.unacked == 4
    bench.subscription.close()
    assert budget.unacked == 0


async def test_a_subscription_that_ends_while_it_is_blocked_is_not_kept_alive() -> None:
    budget = UnackedBudget(10, 0.1)
    ends, stays = Bench(unacked=budget), Bench(unacked=budget)
    for bench, count in ((ends, 5), (stays, 6)):
        bench.join(1, SHARED, permits=100)
        await bench.append(*(entry(number) for number in range(count)))
    assert budget.is_blocking
    ends.subscription.close()
    pump = weakref.ref(ends.subscription.pump)
    del bench, ends
    gc.collect()
    assert pump() is None
    assert budget.unacked == 6
