"""Work of which only so much begins at once, the most urgent first.

Rule: a turn ends with the work, or after a time: work that waits for somebody who does not answer continues beside that
of others, and stops nobody.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from itertools import count

from magnetar_core.runtime.clock import Clock

Rank = tuple[int, ...]
"""The least is the most urgent."""


class _Waiter:
    __slots__ = ("future", "rank")

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Turns:
    """For one event loop."""

    def __init__(self, most: int, turn_s: float, clock: Clock) -> None:
        """*most* turns at once, of *turn_s* at most."""
        assert most > 0
        self._most = most
        self._turn_s = turn_s
        self._clock = clock
        self._taken = 0
        self._order = count()
        self._queue: list[tuple[Rank, int, Hashable, _Waiter]] = []
        self._waiting: dict[Hashable, _Waiter] = {}

    @asynccontextmanager
    async def turn(self, key: Hashable, rank: Rank) -> AsyncIterator[None]:
        """Wait for a turn, which the body has. No two wait under the same *key*."""
        if self._taken >= self._most:
            await self._wait(key, rank)
        else:
            self._taken += 1
        has_turn = True

        def end() -> None:
            nonlocal has_turn
            if has_turn:
                has_turn = False
                self._next()

        timer = self._clock.call_later(self._turn_s, end)
        try:
            yield
        finally:
            timer.cancel()
            end()

    def hurry(self, key: Hashable, rank: Rank) -> None:
        """Whoever waits under *key* has *rank* from now on, if that is more urgent."""
        waiter = self._waiting.get(key)
        if waiter is not None and rank < waiter.rank:
            waiter.rank = rank
            heapq.heappush(self._queue, (rank, next(self._order), key, waiter))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def _wait(self, key: Hashable, rank: Rank) -> None:
        assert key not in self._waiting, f"{key} waits already"
        waiter = self._waiting[key] = _Waiter(rank)
        heapq.heappush(self._queue, (rank, next(self._order), key, waiter))
        try:
            await waiter.future  # the turn of whoever has ended is given on: it stays counted
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled():
                self._next()
            raise
        finally:
            if self._waiting.get(key) is waiter:
                del self._waiting[key]

    def _next(self) -> None:
        """A turn has ended."""
        while self._queue:
            rank, _, _, waiter = heapq.heappop(self._queue)
            if rank == waiter.rank and not waiter.future.done():  # else it was reported twice, or is gone
                waiter.future.set_result(None)
                return
        self._taken -= 1
        assert self._taken >= 0, "more turns ended than began"
