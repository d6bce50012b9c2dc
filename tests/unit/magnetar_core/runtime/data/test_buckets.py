"""Values by bounds, for the last whole period."""

import pytest

from magnetar_core.runtime.data.buckets import LATENCY_BOUNDS, SIZE_BOUNDS, Buckets


@pytest.mark.parametrize("bounds", [SIZE_BOUNDS, LATENCY_BOUNDS])
def test_a_value_counts_in_the_first_bucket_whose_bound_it_does_not_exceed(bounds: tuple[int, ...]) -> None:
    for at, bound in enumerate(bounds):
        for value, bucket in ((bound - 1, at), (bound, at), (bound + 1, at + 1)):
            one, run = Buckets(bounds), Buckets(bounds)
            one.add(value)
            run.add_run([value])
            for buckets in (one, run):
                buckets.end_period()
                assert [number for number, count in enumerate(buckets.last.counts) if count] == [bucket]
                assert (buckets.last.total, buckets.last.sum) == (1, value)


def test_a_period_begins_with_nothing() -> None:
    buckets = Buckets(SIZE_BOUNDS)
    buckets.add(200, 3)
    assert buckets.last.total == 0
    buckets.end_period()
    assert (buckets.last.total, buckets.last.sum) == (3, 600)
    buckets.add_run([1, 10_000_000])
    buckets.end_period()
    assert (buckets.last.counts[0], buckets.last.counts[-1], buckets.last.total) == (1, 1, 2)
    buckets.end_period()
    assert buckets.last.total == 0
