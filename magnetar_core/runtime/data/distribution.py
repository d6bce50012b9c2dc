"""Number, sum and quantiles of many values, counted in buckets. No clock: times are parameters, in seconds.

`Distribution.add` costs half a microsecond for any number of equal values.
"""

from collections.abc import Sequence
from typing import Final

# Buckets for each power of two: a quantile is exact to a sixteenth.
_STEPS: Final = 8

# Values are kept in thousandths (microseconds of a millisecond); 2**42 of them are 73 minutes, or 4 GB.
_BITS_MAX: Final = 42
_BUCKETS: Final = _BITS_MAX * _STEPS

# The quantiles that Apache's bookie shows.
QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
WINDOW_S: Final = 60.0

_EMPTY: Final = float("nan")


def _bucket(units: int) -> int:
    """The bucket that counts *units*: exact below 8, then eight buckets for each power of two."""
    if units < _STEPS:
        return max(units, 0)
    bits = units.bit_length()
    return min((bits - 3) * _STEPS + (units >> (bits - 4)) - _STEPS, _BUCKETS - 1)


def _middle(bucket: int) -> float:
    """The value in the middle of a bucket, in units."""
    if bucket < _STEPS:
        return float(bucket)
    power, step = divmod(bucket, _STEPS)
    return (_STEPS + step + 0.5) * 2.0 ** (power - 1)


class Distribution:
    """Number, sum and quantiles of values (milliseconds, bytes, entries).

    The quantiles cover the last one to two minutes, if they are read every minute.
    """

    __slots__ = ("_before", "_now", "_since_s", "count", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self._now: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._since_s = float("-inf")

    def add(self, value: float, times: int = 1) -> None:
        """Count *value*, which so many (*times*) operations had."""
        self.count += times
        self.sum += value * times
        bucket = _bucket(int(value * 1000))
        self._now[bucket] = self._now.get(bucket, 0) + times

    def quantiles(self, now_s: float, which: Sequence[float] = QUANTILES) -> dict[float, float]:
        """Quantile → value, of those in *which*, in rising order; NaN if there were no values. Ends the window if it is
        old enough."""
        if now_s - self._since_s >= WINDOW_S:
            self._since_s = now_s
            self._before, self._now = self._now, {}
        counts = dict(self._before)
        for bucket, times in self._now.items():
            counts[bucket] = counts.get(bucket, 0) + times
        total = sum(counts.values())
        if not total:
            return dict.fromkeys(which, _EMPTY)
        quantiles: dict[float, float] = {}
        ordered = sorted(counts.items())
        at, passed = 0, ordered[0][1]
        for quantile in which:
            while passed < quantile * total and at + 1 < len(ordered):
                at += 1
                passed += ordered[at][1]
            quantiles[quantile] = _middle(ordered[at][0]) / 1000
        return quantiles
