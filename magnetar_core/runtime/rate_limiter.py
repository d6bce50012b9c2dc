"""How fast background work may go. No clock: the moment comes in, the wait goes out."""


class RateLimiter:
    """At most *per_second* units a second, over any second or so; what was not used does not add up."""

    __slots__ = ("_free_at", "per_second")

    def __init__(self, per_second: float) -> None:
        assert per_second > 0
        self.per_second = per_second
        self._free_at = 0.0

    def spend(self, now_s: float, units: float) -> float:
        """*units* were used; return how many seconds to wait before the next ones."""
        self._free_at = max(self._free_at, now_s) + units / self.per_second
        return self._free_at - now_s
