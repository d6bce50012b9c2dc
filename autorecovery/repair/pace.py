"""How fast copies may be made: a limit in bytes a second, and less than that while writers have to wait.

The bookies that take copies also take what clients write. How long a copy waits for its confirmation shows how busy
their journals are, and our bookies let copies wait while clients write (`bookie.serving.recovery_lane`), so no other
signal is needed:

    confirmation within a small multiple of the fastest seen   ──▶ a little more at a time
    slower than that, twice in a row                           ──▶ half as much at a time

Rules:

1. Without a limit in bytes, and on idle bookies, nothing is held back.
2. At least one run is always under way: a repair never stops because others are busy.
3. No more is read ahead than may be under way: many ledgers begin together, and their reads go to bookies that clients
   write to.
"""

import contextlib
import math
from collections.abc import AsyncIterator
from typing import Final

from magnetar_core.bookkeeper.client.reading.replicas import RUN_BYTES
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.rate_limiter import RateLimiter
from magnetar_core.runtime.tasks import Bell
from magnetar_core.runtime.types import KIB, MIB

# A confirmation may take so many times the fastest of the last while before it counts as slow, and so long in any
# case: a journal that gathers a group before its sync answers within that (group delay and sync of a fast disk: 2 ms).
_SLOW_FACTOR: Final = 2.0
_NEVER_SLOW_S: Final = 0.01

# Bytes under way to all bookies together. With 32 MiB instead of 8 nothing went faster (16 KiB entries, two cores),
# and a writer's p99 beside it was twice as long.
_WINDOW_BYTES_MIN: Final = 1 * MIB
_WINDOW_BYTES_MAX: Final = 8 * MIB
_WINDOW_STEP_BYTES: Final = 256 * KIB

_SLOW_IN_A_ROW: Final = 2

# The fastest confirmation is forgotten by so much with each one, so that the limit follows a disk that became slower.
_FORGET_SHARE: Final = 0.001


class Pace:
    """The pace of all copies that a process makes. Used on the loop."""

    def __init__(self, clock: Clock, bytes_per_s: float | None = None) -> None:
        """*bytes_per_s* None: no limit of that kind."""
        self._clock = clock
        self._limiter = None if bytes_per_s is None else RateLimiter(bytes_per_s)
        self.window_bytes = _WINDOW_BYTES_MAX
        """What may be under way at the moment."""
        self._under_way_bytes = 0
        self._waiting_bytes = 0
        self._readings = 0
        self._run_bytes = RUN_BYTES
        self._fastest_s = math.inf
        self._slow_in_a_row = 0
        self._ended = Bell()

    @contextlib.asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait until *size* bytes may go out; within it they are written, and how long that takes is counted."""
        self._run_bytes = size
        self._waiting_bytes += size
        try:
            await self.read(size)
            while self._under_way_bytes and self._under_way_bytes + size > self.window_bytes:  # rule 2
                await self._ended.rung()
        except BaseException:
            self._ended.ring()
            raise
        finally:
            self._waiting_bytes -= size
        self._under_way_bytes += size
        began_s = self._clock.monotonic()
        try:
            yield
            self._learn(self._clock.monotonic() - began_s)
        finally:
            self._under_way_bytes -= size
            assert self._under_way_bytes >= 0
            self._ended.ring()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Wait until what is read within it would not only wait for its turn (rule 3)."""
        while self._taken_bytes >= self.window_bytes:
            await self._ended.rung()
        self._readings += 1
        try:
            yield
        finally:
            self._readings -= 1
            self._ended.ring()

    @property
    def _taken_bytes(self) -> int:
        """Bytes that are under way, wait for that, or are being read; what is being read counts as the run before."""
        return self._under_way_bytes + self._waiting_bytes + self._readings * self._run_bytes

    async def read(self, size: int) -> None:
        """Wait until more may be read, after *size* bytes were; what is read to check copies shares the limit in bytes
        with what is copied."""
        if self._limiter is not None:
            await self._clock.sleep(self._limiter.spend(self._clock.monotonic(), size))

    def _learn(self, took_s: float) -> None:
        self._fastest_s = min(self._fastest_s * (1 + _FORGET_SHARE), took_s)
        if took_s <= max(self._fastest_s * _SLOW_FACTOR, _NEVER_SLOW_S):
            self._slow_in_a_row = 0
            self.window_bytes = min(self.window_bytes + _WINDOW_STEP_BYTES, _WINDOW_BYTES_MAX)
            return
        self._slow_in_a_row += 1
        if self._slow_in_a_row == _SLOW_IN_A_ROW:
            self._slow_in_a_row = 0
            self.window_bytes = max(self.window_bytes // 2, _WINDOW_BYTES_MIN)
