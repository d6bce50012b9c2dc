"""What the rates of a topic, of a subscription and of a resource group make of its reads."""

import pytest

from broker.settings.quotas import DispatchRate, GroupRates, PublishRate
from broker.topic.dispatchers.dispatcher import Read
from broker.topic.rates.resource_group import Membership, ResourceGroup
from broker.topic.rates.throttling import DispatchThrottle
from broker.topic.reading.read_rates import ReadRates
from tests.unit.broker.topic.dispatching import SHARED, Bench, FakeHost, entry

READ = Read(None, 100, 5_000)


def throttle(messages: int = 0, size_bytes: int = 0) -> DispatchThrottle:
    made = DispatchThrottle()
    made.use(DispatchRate(messages, size_bytes, 1), (0, 0), 0)
    return made


def grouped(messages: int) -> tuple[ReadRates, ResourceGroup]:
    """Rates of a topic in a group with that rate, and the group."""
    host, membership = FakeHost(), Membership()
    membership.group = ResourceGroup("g", host.now_ms, host.call_later)
    membership.group.use(GroupRates(PublishRate(0, 0), DispatchRate(messages, 0, 1)))
    return ReadRates(throttle(), throttle(), membership), membership.group


def test_without_a_rate_a_read_is_as_it_was() -> None:
    rates = ReadRates(throttle(), throttle(), Membership())
    assert not rates.are_set
    assert rates.within(READ, 0) == READ
    assert rates.wait_ms(0) == 0


def test_a_read_is_cut_to_the_least_that_a_rate_leaves_and_has_an_entry_at_least() -> None:
    rates = ReadRates(throttle(messages=20), throttle(messages=50, size_bytes=1_000), Membership())
    assert rates.within(READ, 0) == Read(None, 20, 1_000)
    rates.spend(4, 16, 1_000, 0, is_throttled=True)
    assert rates.within(READ, 0) == Read(None, 1, 1), "four messages are left, and the entry before had four"
    assert rates.wait_ms(0) > 0, "and no bytes"


def test_what_a_read_may_dispatch_is_reserved_and_what_it_did_not_is_free_again() -> None:
    rates, group = grouped(10)
    read = rates.within(READ, 0)
    assert read.entries_max == 10
    rates.reserve(read)
    assert group.room() == (0, None)
    rates.spend(3, 3, 300, 0, is_throttled=False)
    assert group.room() == (7, None)
    rates.reserve(rates.within(READ, 0))
    rates.settle()
    assert group.room() == (7, None)


@pytest.mark.parametrize(("throttles", "expected"), [(True, 5), (False, 8)])
async def test_rates_may_leave_out_those_who_are_about_at_the_end(throttles: bool, expected: int) -> None:
    throttle = DispatchThrottle()
    bench = Bench(throttles=(throttle, DispatchThrottle()), throttles_caught_up=throttles, backlogged_entries=3)
    throttle.use(DispatchRate(5, -1, 1), (0, 0), bench.host.now_ms())
    bench.join(1, SHARED, permits=100)
    for number in range(8):
        await bench.append(entry(number))
    assert len(bench.log) == expected


async def test_rates_hold_for_those_who_are_behind() -> None:
    throttle = DispatchThrottle()
    bench = Bench(throttles=(throttle, DispatchThrottle()), throttles_caught_up=False, backlogged_entries=3)
    throttle.use(DispatchRate(5, -1, 1), (0, 0), bench.host.now_ms())
    await bench.append(*(entry(number) for number in range(18)))
    bench.join(1, SHARED, permits=100)
    assert len(bench.log) == 5
    bench.pass_time(1)
    assert 5 < len(bench.log) <= 10
    bench.pass_time(1.2)
    assert len(bench.log) == 18  # with three left it was about at the end
