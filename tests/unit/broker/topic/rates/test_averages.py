"""Rates: averages over the time since they were last worked out."""

import pytest

from broker.topic.rates.averages import Rates


def test_a_rate_is_the_average_since_the_last_time() -> None:
    rates = Rates(2, since_ms=1_000)
    assert rates.values == (0.0, 0.0)
    rates.take((10, 100), 3_000)
    assert rates.values == (5.0, 50.0)
    rates.take((10, 160), 63_000)
    assert rates.values == (0.0, 1.0)


def test_who_came_in_the_middle_of_a_period_has_a_rate_since_then() -> None:
    early, late = Rates(1, since_ms=0), Rates(1, since_ms=59_000)
    for rates in (early, late):
        rates.take((600,), 60_000)
    assert (early.values, late.values) == ((10.0,), (600.0,))


@pytest.mark.parametrize("now_ms", [5_000, 1_000])
def test_a_clock_that_stands_or_goes_back_loses_nothing(now_ms: int) -> None:
    rates = Rates(1, since_ms=0)
    rates.take((50,), 5_000)
    rates.take((60,), now_ms)
    assert rates.values == (10.0,)
    rates.take((70,), now_ms + 1_000)
    assert rates.values == (20.0,)


def test_a_rate_ends_when_nothing_comes_any_more() -> None:
    rates = Rates(2, since_ms=0)
    rates.take((10, 100), 1_000)
    rates.take((10, 100), 2_000)
    assert rates.values == (0.0, 0.0)
    rates.take((20, 100), 4_000)
    assert rates.values == (5.0, 0.0)


def test_the_number_of_the_last_period_is_told_and_a_sum_that_fell_is_none() -> None:
    rates = Rates(2, since_ms=0)
    rates.take((60, 5), 10_000)
    found = [rates.counts]
    rates.take((20, 6), 20_000)
    assert (rates.counts, rates.values) == ((0, 1), (0.0, 0.1)), "a subscription was removed"
    rates.take((30, 6), 30_000)
    assert [*found, rates.counts] == [(60, 5), (10, 0)]
