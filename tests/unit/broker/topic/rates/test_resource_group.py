"""What the topics of one resource group share: who may dispatch when, and what publishers owe. (The rules are those of
`broker/topic/rates/resource_group.py`.)"""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.settings.quotas import NO_GROUP_RATES, DispatchRate, GroupRates, PublishRate
from broker.topic.rates.resource_group import RESUMED_AT_ONCE, Membership, ResourceGroup
from tests.support.manual_clock import ManualClock
from tests.unit.broker.topic.dispatching import SHARED, Bench, FakeHost, entry


def rates(*, publish: tuple[int, int] = (0, 0), dispatch: tuple[int, int] = (0, 0)) -> GroupRates:
    return GroupRates(PublishRate(*publish), DispatchRate(*dispatch, 1))


class Group:
    """A group and topics in it, each with a subscription that has a backlog."""

    def __init__(self, given: GroupRates) -> None:
        self.host = FakeHost()
        self.group = ResourceGroup("g", self.host.now_ms, self.host.call_later)
        self.group.use(given)

    async def topic(self, count: int, *, cold: bool = False, joins: bool = True, **limits: Any) -> Bench:
        """With *count* entries; its consumer has come if *joins*."""
        membership = Membership()
        membership.group = self.group
        bench = Bench(membership=membership, host=self.host, **limits)
        await bench.append(*(entry(number) for number in range(count)))
        bench.ledger.cold = cold
        if joins:
            bench.join(1, SHARED, permits=1000)
        return bench

    def pass_time(self, seconds: float) -> None:
        self.host.clock.advance(seconds)


def delivered(*benches: Bench) -> list[int]:
    return [len(bench.log) for bench in benches]


# ------------------------------------------------------------------------------------- dispatching


async def test_topics_of_a_group_get_no_more_than_its_rate_together() -> None:
    world = Group(rates(dispatch=(10, 0)))
    one, other = await world.topic(100), await world.topic(100)
    assert sum(delivered(one, other)) == 10
    for second in range(1, 11):
        for _ in range(100):
            world.pass_time(0.01)
        assert 10 + 10 * (second - 1) < sum(delivered(one, other)) <= 10 + 10 * second
    assert world.group.dispatched_messages == sum(delivered(one, other))


async def test_each_subscription_has_its_turn_however_many_wait() -> None:
    world = Group(rates(dispatch=(1, 0)))
    topics = [await world.topic(10) for _ in range(5)]
    for _ in range(5):
        world.pass_time(1)
    first = delivered(*topics)
    assert sum(first) == 6
    assert max(first) - min(first) <= 1
    for _ in range(10):
        world.pass_time(1)
    assert [after - before for before, after in zip(first, delivered(*topics), strict=True)] == [2, 2, 2, 2, 2]


async def test_who_comes_while_others_wait_goes_to_the_end() -> None:
    world = Group(rates(dispatch=(10, 0)))
    await world.topic(20, cold=True)
    waiting, late = await world.topic(20), await world.topic(20, joins=False)
    fail(world)  # so there is room, and `waiting` is resumed a moment later
    assert world.group.room() == (10, None)
    late.join(1, SHARED, permits=100)
    assert delivered(waiting, late) == [0, 0]
    world.pass_time(0.001)
    assert delivered(waiting, late) == [10, 0]


def fail(world: Group) -> None:
    """The read from bookies that is under way fails."""
    work, done = world.host.fetching.pop()
    work.close()  # type: ignore[attr-defined]
    done(None)


async def test_there_is_one_timer_however_many_wait() -> None:
    world = Group(rates(dispatch=(1, 0)))
    topics = [await world.topic(10) for _ in range(50)]
    made = world.host.timers_made
    for _ in range(10):
        world.pass_time(1)
    assert sum(delivered(*topics)) == 11
    assert world.host.timers_made - made == 10


async def test_bytes_are_limited_like_messages() -> None:
    world = Group(rates(dispatch=(0, 200)))
    one, other = await world.topic(50), await world.topic(50)
    size = len(entry(0))
    sent = []
    for _ in range(8):
        sent.append(world.group.dispatched_bytes)
        world.pass_time(1)
    assert sent[-1] <= 200 * 9
    assert all(after - before <= 200 + size for before, after in pairwise(sent))
    assert min(delivered(one, other)) > 0


async def test_what_is_read_from_bookies_is_spent_before_it_is_there() -> None:
    world = Group(rates(dispatch=(10, 0)))
    one, other = await world.topic(100, cold=True), await world.topic(100, cold=True)
    assert len(world.host.fetching) == 1
    assert world.group.is_waiting(other.subscription.pump)
    await one.host.finish_fetching()
    assert delivered(one, other) == [10, 0]
    for _ in range(3):
        world.pass_time(1)
        await world.host.finish_fetching()
    assert sum(delivered(one, other)) <= 40
    assert min(delivered(one, other)) > 0


async def test_a_read_that_fails_or_is_not_needed_any_more_gives_its_share_back() -> None:
    world = Group(rates(dispatch=(10, 0)))
    one, other = await world.topic(100, cold=True), await world.topic(5)
    fail(world)
    world.pass_time(0.002)
    assert delivered(one, other) == [0, 5]
    closing = await Group(rates(dispatch=(10, 0))).topic(100, cold=True)
    group = closing.membership.group
    assert group is not None
    assert group.room() == (0, None)
    closing.subscription.close()
    assert group.room() == (10, None)
    for left, _ in closing.host.fetching:
        left.close()  # type: ignore[attr-defined]


async def test_a_dispatch_that_breaks_off_gives_its_share_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Group(rates(dispatch=(10, 0)))
    world.host.survives_defects = True
    topic = await world.topic(100, joins=False)
    with monkeypatch.context() as patch:
        patch.setattr(topic.cursor, "read", lambda *_: 1 / 0)
        topic.join(1, SHARED, permits=1000)
    assert world.group.room() == (10, None)
    topic.join(2, SHARED, permits=1000)
    assert delivered(topic) == [10]


async def test_a_subscription_that_is_closed_waits_no_more() -> None:
    world = Group(rates(dispatch=(1, 0)))
    first, closed, last = [await world.topic(10) for _ in range(3)]
    assert world.group.waiting_count == 3
    closed.subscription.close()
    assert world.group.waiting_count == 2
    for _ in range(3):
        world.pass_time(1)
    assert delivered(first, closed, last) == [3, 0, 1]


async def test_a_group_that_limits_nobody_any_more_lets_all_go_on_some_at_a_time() -> None:
    world = Group(rates(dispatch=(1, 0)))
    topics = [await world.topic(10) for _ in range(3 * RESUMED_AT_ONCE)]
    world.group.use(NO_GROUP_RATES)
    world.pass_time(0.001)
    assert sum(count == 10 for count in delivered(*topics)) == RESUMED_AT_ONCE
    world.pass_time(0.01)
    assert set(delivered(*topics)) == {10}
    assert world.group.waiting_count == 0


async def test_another_rate_holds_at_once() -> None:
    world = Group(rates(dispatch=(1, 0)))
    one = await world.topic(1000)
    world.group.use(rates(dispatch=(100, 0)))
    world.pass_time(1)
    assert 50 < len(one.log) <= 101


async def test_a_topic_that_leaves_its_group_is_free_at_once() -> None:
    world = Group(rates(dispatch=(1, 0)))
    stays, leaves = await world.topic(10), await world.topic(10)
    leaves.membership.group = None
    leaves.subscription.pump.change_group(world.group)
    assert delivered(stays, leaves) == [1, 10]
    assert not world.group.is_waiting(leaves.subscription.pump)


@pytest.mark.parametrize(("holds", "expected"), [(True, 3), (False, 8)])
async def test_those_who_are_about_at_the_end_may_be_left_out(holds: bool, expected: int) -> None:
    world = Group(rates(dispatch=(3, 0)))
    bench = await world.topic(0, throttles_caught_up=holds, backlogged_entries=4)
    for number in range(8):
        await bench.append(entry(number))
    assert len(bench.log) == expected
    assert world.group.dispatched_messages == expected, "they are counted all the same"


async def test_batches_are_counted_by_their_messages() -> None:
    world = Group(rates(dispatch=(10, 0)))
    bench = await world.topic(0)
    await bench.append(*(entry(number, batch=5) for number in range(10)))
    for _ in range(4):
        world.pass_time(1)
    assert world.group.dispatched_messages <= 55
    assert world.group.dispatched_messages == 5 * len(bench.log)


# -------------------------------------------------------------------------------------- publishing


def test_publishers_of_all_topics_wait_for_what_one_has_published() -> None:
    clock = ManualClock()
    group = ResourceGroup("g", clock.wall_ms, lambda ms, step: clock.call_later(ms / 1000, step))
    group.use(rates(publish=(10, 0)))
    one, other = Membership(), Membership()
    one.group = other.group = group
    assert group.count_published(10, 10**9) == 0
    assert group.count_published(5, 1) == 500
    assert one.wait_ms(clock.wall_ms()) == other.wait_ms(clock.wall_ms()) == 500
    other.group = None
    assert other.wait_ms(clock.wall_ms()) == 0
    assert (group.published_messages, group.published_bytes) == (15, 10**9 + 1)
    group.use(NO_GROUP_RATES)
    assert one.wait_ms(clock.wall_ms()) == 0


@given(
    limit=st.integers(1, 100),
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    steps=st.lists(st.integers(0, 900), max_size=20),
)
async def test_over_any_time_no_more_is_dispatched_than_the_rate_one_period_and_one_message(
    limit: int, counts: list[int], steps: list[int]
) -> None:
    world = Group(rates(dispatch=(limit, 0)))
    topics = [await world.topic(count) for count in counts]
    passed_ms = 0
    for step in steps:
        world.pass_time(step / 1000)
        passed_ms += step
        assert sum(delivered(*topics)) <= limit + limit * passed_ms / 1000 + 1
    for _ in range(sum(counts) // limit + 2):
        for _ in range(len(counts) + 1):
            world.pass_time(1)
    assert delivered(*topics) == counts
