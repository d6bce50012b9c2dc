"""How many values fell between which bounds: latencies, sizes. No IO, no clock.

As Apache's brokers report it: each value counts in one bucket (not in all that are above it), and the numbers are those
of the last whole period, not of all time.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from magnetar_core.runtime.types import KIB, MIB

# Bytes of an entry, and how Apache's metrics name the bounds.
SIZE_BOUNDS: Final = (128, 512, KIB, 2 * KIB, 4 * KIB, 16 * KIB, 100 * KIB, MIB)
SIZE_NAMES: Final = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb")

# Microseconds until an entry was stored; the names are milliseconds.
LATENCY_BOUNDS: Final = (500, 1_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 1_000_000)
LATENCY_NAMES: Final = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")

# Milliseconds of a round over all backlogs.
QUOTA_CHECK_BOUNDS: Final = (5_000, 10_000, 30_000, 60_000, 300_000)

assert len(SIZE_BOUNDS) == len(SIZE_NAMES), "each bound has a name"
assert len(LATENCY_BOUNDS) == len(LATENCY_NAMES), "each bound has a name"


class Period(NamedTuple):
    """What was counted in one period."""

    counts: tuple[int, ...]
    """Number of values by bucket; the last one has those above all bounds."""
    sum: int

    @property
    def total(self) -> int:
        return sum(self.counts)


@cache
def _empty_period(buckets: int) -> Period:
    """A period without values; one shared object, which saves memory."""
    return Period((0,) * buckets, 0)


class Buckets:
    """Counts values by bucket: those up to each bound (and above the bound before), and those above all bounds."""

    __slots__ = ("_bounds", "_counts", "_sum", "last")

    def __init__(self, bounds: Sequence[int]) -> None:
        """*bounds* in rising order; each belongs to its bucket."""
        self._bounds = bounds
        # None until something is counted: a topic has four of these objects, and most topics are quiet.
        self._counts: list[int] | None = None
        self._sum = 0
        self.last = _empty_period(len(bounds) + 1)
        """The last period that ended; empty before the first `end_period`."""

    def add(self, value: int, times: int = 1) -> None:
        counts = self._counts or self._begin()
        counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def add_run(self, values: Sequence[int]) -> None:
        """Add each of *values*, of which there is at least one.

        It runs for every batch of messages. Nearly always all values belong to one bucket, and are counted in one step.
        """
        bounds, counts = self._bounds, self._counts or self._begin()
        lowest = bisect_left(bounds, min(values))
        if lowest == bisect_left(bounds, max(values)):
            counts[lowest] += len(values)
        else:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    @property
    def so_far(self) -> Period:
        """What was counted since the last `end_period`, or since the start if there was none."""
        return _empty_period(len(self._bounds) + 1) if self._counts is None else Period(tuple(self._counts), self._sum)

    def end_period(self) -> None:
        """What was counted since the last call becomes `last`."""
        if self._counts is None:
            self.last = _empty_period(len(self._bounds) + 1)
            return
        self.last, self._counts, self._sum = self.so_far, None, 0

    def _begin(self) -> list[int]:
        self._counts = [0] * (len(self._bounds) + 1)
        return self._counts
