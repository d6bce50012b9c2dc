"""Clocks and timers. No other module may read the machine's clock: code gets a `Clock` as a parameter."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    """A callback that is due once; what `Clock.call_later` returns."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The time, and timers."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as users see it; may jump."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run *callback* on the event loop after *delay_s* seconds."""
        ...

    async def sleep(self, delay_s: float) -> None: ...


def no_clock() -> float:
    """Stands for `Clock.monotonic` where durations are not measured; always 0."""
    return 0.0


def block(seconds: float) -> None:
    """Block this thread for *seconds*. Not for a thread that has an event loop."""
    time.sleep(seconds)


class LoopClock:
    """The real clock; timers run on the running event loop."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class DeadlineSweep(Generic[T]):
    """Many deadlines of one length, one timer.

    `asyncio.wait_for` costs 2.3 µs a request. All requests of one connection have the same time-out, so they fall due
    in the order in which they were added: a deque and one timer are enough.

    An item that was answered in time is not removed here: *expire* gets it and must check whether it still waits.
    """

    def __init__(self, clock: Clock, timeout_s: float, expire: Callable[[T], None]) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._expire = expire
        self._items: deque[tuple[float, T]] = deque()
        self._timer: Timer | None = None

    def add(self, item: T) -> None:
        """Expire *item* after the time-out, accurate to a tenth of it."""
        self._items.append((self._clock.monotonic() + self._timeout_s, item))
        if self._timer is None:
            self._timer = self._clock.call_later(self._timeout_s * 1.05, self._sweep)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._items.clear()

    def _sweep(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._items and self._items[0][0] <= now:
            self._expire(self._items.popleft()[1])
        if self._items and self._timer is None:
            delay_s = max(self._items[0][0] - now, self._timeout_s * 0.1)
            self._timer = self._clock.call_later(delay_s, self._sweep)
