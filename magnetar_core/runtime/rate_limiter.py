"""Limits the rate of background work. No clock: the time is a parameter, the wait is the result. No IO."""


class RateLimiter:
    """At most *per_second* units in any second. Unused units do not accumulate."""

    __slots__ = ("_free_at", "per_second")

    def __init__(self, per_second: float) -> None:
        assert per_second > 0
        self.per_second = per_second
        self._free_at = 0.0

    def spend(self, now_s: float, units: float) -> float:
        """*units* were used. Returns the seconds to wait before the next ones."""
        self._free_at = max(self._free_at, now_s) + units / self.per_second
        return self._free_at - now_s
