"""Rates a second of counters that only grow, averaged over the time since they were last worked out. No IO, no clock.

Whoever counts adds to plain numbers. Rates are worked out for all topics of a broker together, once in each
`statsUpdateFrequencyInSecs`, and stay what they are until then; so they cost nothing for each message.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final

# Where these are in the rates of topics, subscriptions, producers and consumers.
MESSAGE_RATE: Final = 0
BYTE_RATE: Final = 1


@cache
def _zeros(count: int) -> tuple[float, ...]:
    """The same tuple for all that have nothing to report."""
    return (0.0,) * count


class Rates:
    """The rates of some counters, in the order in which they are given."""

    __slots__ = ("_counted", "_since_ms", "counts", "values")

    def __init__(self, count: int, since_ms: int) -> None:
        """*count* counters, which were all 0 at *since_ms* (wall clock)."""
        self.values: tuple[float, ...] = _zeros(count)
        self.counts: tuple[float, ...] = self.values
        """How much was counted in the last period."""
        self._counted: tuple[float, ...] = self.values
        self._since_ms = since_ms

    def take(self, counted: Sequence[int], now_ms: int) -> None:
        """Set `values` for the time since the last call, or since the beginning; *counted* is what the counters say.

        If the clock was set back, the values stay, and what was counted meanwhile is part of the next period. A sum
        that fell, since a part of it has gone (a subscription was removed), counts as 0.
        """
        assert len(counted) == len(self.values), (counted, self.values)
        period_ms, self._since_ms = now_ms - self._since_ms, now_ms
        if period_ms <= 0:
            return
        counted = tuple(counted)
        if counted == self._counted:  # thousands of topics at which nothing happens
            self.values = self.counts = _zeros(len(counted))
            return
        self.counts = tuple(max(now - before, 0) for now, before in zip(counted, self._counted, strict=True))
        self.values = tuple(count * 1000 / period_ms for count in self.counts)
        self._counted = counted
