"""Where the time of a task went, lap after lap. The clock comes in as a function. No IO."""

from collections import defaultdict
from collections.abc import Callable


class Laps:
    """Seconds by the name of what was done in them. Each lap begins where the one before has ended."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def end(self, name: str) -> None:
        """The lap that ends now was spent on *name*."""
        now = self._monotonic()
        self._seconds[name] += now - self._began
        self._began = now

    def rounded(self) -> dict[str, float]:
        """The seconds, rounded to milliseconds."""
        return {name: round(seconds, 3) for name, seconds in self._seconds.items()}
