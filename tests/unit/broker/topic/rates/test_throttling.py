"""Rates: token buckets, and what they mean for producers, consumers and subscribers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import NotAllowed
from broker.settings.quotas import DispatchRate, PublishRate, SubscribeRate
from broker.topic.rates.throttling import SUBSCRIBERS_MAX, DispatchThrottle, PublishThrottle, SubscribeThrottle
from broker.topic.rates.token_bucket import TokenBucket


def test_what_is_asked_for_is_taken_whole_and_the_next_waits() -> None:
    bucket = TokenBucket(10, 0, 1, 0)
    assert bucket.wait_ms(0) == 0
    bucket.spend(25, 10**9, 0)
    assert bucket.wait_ms(0) == 1500
    assert bucket.wait_ms(1499) > 0
    assert bucket.wait_ms(1500) == 0


def test_bytes_and_messages_limit_each_by_itself() -> None:
    bucket = TokenBucket(10, 1000, 1, 0)
    bucket.spend(1, 3000, 0)
    assert bucket.wait_ms(0) == 2000
    bucket.spend(39, 0, 0)
    assert bucket.wait_ms(0) == 3000


def test_unused_tokens_are_kept_for_one_period() -> None:
    bucket = TokenBucket(10, 0, 2, 0)
    assert bucket.room(1_000_000) == (10, None)


def test_a_clock_that_was_set_back_gives_nothing_and_takes_nothing() -> None:
    bucket = TokenBucket(10, 0, 1, 10_000)
    bucket.spend(15, 0, 10_000)
    assert bucket.wait_ms(5_000) == 500
    assert bucket.wait_ms(5_500) == 0


def test_a_new_rate_holds_at_once_and_old_debts_are_at_most_a_period() -> None:
    bucket = TokenBucket(1, 0, 1, 0)
    bucket.spend(1_000_000, 0, 0)
    bucket.change(100, 0, 1, 0)
    assert bucket.wait_ms(0) == 1000
    of_bytes = TokenBucket(0, 1, 1, 0)
    of_bytes.spend(1, 1_000_000, 0)
    of_bytes.change(0, 100, 1, 0)
    assert of_bytes.wait_ms(0) == 1000


@given(
    limit=st.integers(1, 1000),
    period_s=st.integers(1, 60),
    steps=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 5000)), max_size=60),
)
def test_over_any_time_no_more_goes_on_than_the_rate_one_period_and_one_step(
    limit: int, period_s: int, steps: list[tuple[int, int]]
) -> None:
    bucket, now_ms, spent, largest = TokenBucket(limit, 0, period_s, 0), 0, 0, 0
    for messages, pause_ms in steps:
        now_ms += pause_ms
        if bucket.wait_ms(now_ms) == 0:
            bucket.spend(messages, 0, now_ms)
            spent, largest = spent + messages, max(largest, messages)
    assert spent <= limit * now_ms / (period_s * 1000) + limit + largest + 1


def test_without_a_rate_nothing_waits() -> None:
    throttle = PublishThrottle()
    throttle.use(PublishRate(0, -1), 0)
    assert not throttle.is_on
    assert throttle.spend(10**9, 10**12, 0) == 0
    assert throttle.times == 0


def test_a_rate_that_is_taken_back_lets_go() -> None:
    throttle = PublishThrottle()
    throttle.use(PublishRate(1, 0), 0)
    assert throttle.spend(100, 0, 0) > 0
    assert throttle.times == 1
    throttle.use(PublishRate(0, 0), 0)
    assert throttle.wait_ms(0) == 0


def test_dispatch_waits_until_a_whole_message_may_go() -> None:
    throttle = DispatchThrottle()
    throttle.use(DispatchRate(2, 0, 1), (0.0, 0.0), 0)
    throttle.spend(2, 500, 0)
    assert throttle.wait_ms(0) == 500
    assert (throttle.by_messages, throttle.by_bytes) == (1, 0)
    assert throttle.room(1000) == (2, None)


def test_a_relative_rate_follows_what_is_published() -> None:
    throttle = DispatchThrottle()
    throttle.use(DispatchRate(10, 0, 2, is_relative=True), (50.0, 1000.0), 0)
    assert throttle.room(10_000) == (10 + 100, None)


def test_a_consumer_subscribes_so_often_in_a_period() -> None:
    throttle = SubscribeThrottle()
    throttle.use(SubscribeRate(2, 10))
    for _ in range(2):
        throttle.check("/1.2.3.4:5", "c", 0)
    with pytest.raises(NotAllowed, match="subscribe rate limit"):
        throttle.check("/1.2.3.4:6", "c", 0)
    throttle.check("/1.2.3.4:6", "other", 0)
    throttle.check("/1.2.3.4:6", "c", 5_000)
    throttle.use(SubscribeRate(0, 10))
    throttle.check("/1.2.3.4:6", "c", 5_000)


def test_so_many_subscribers_are_remembered() -> None:
    throttle = SubscribeThrottle()
    throttle.use(SubscribeRate(1, 10))
    for number in range(SUBSCRIBERS_MAX + 1):
        throttle.check("/1.2.3.4:5", str(number), 0)
    throttle.check("/1.2.3.4:5", "0", 0)
    with pytest.raises(NotAllowed):
        throttle.check("/1.2.3.4:5", str(SUBSCRIBERS_MAX), 0)


@pytest.mark.parametrize("rate", range(1, 50))
def test_a_wait_is_never_a_part_of_a_millisecond(rate: int) -> None:
    """Clocks are of whole milliseconds: who came again after less would find the same time, and would wait again."""
    bucket = TokenBucket(rate, 0, 1, 0)
    bucket.spend(rate + 1, 0, 0)
    for now_ms in range(1, 2_000):  # what comes in with each look is rounded
        for wait_ms in (bucket.wait_ms(now_ms), bucket.wait_for_one_ms(now_ms)):
            assert wait_ms == 0 or wait_ms >= 1
    assert bucket.wait_for_one_ms(2_000) == 0
