"""A clock that tests move."""

import asyncio
import heapq
from collections.abc import Callable

from magnetar_core.runtime.clock import Timer


class _ManualTimer:
    __slots__ = ("callback", "cancelled", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._now = 0.0
        self._wall_start_ms = wall_ms
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._count = 0

    def monotonic(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        return self._wall_start_ms + int(self._now * 1000)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = _ManualTimer(self._now + delay_s, callback)
        self._count += 1
        heapq.heappush(self._timers, (timer.due, self._count, timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        self.call_later(delay_s, wake)
        await done

    def advance(self, seconds: float) -> None:
        """Advance by *seconds*, and run the timers that fall due, in order."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, due)
            if not timer.cancelled:
                timer.callback()
        self._now = end
