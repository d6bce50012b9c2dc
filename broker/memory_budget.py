"""What all clients of a broker together may hold in its memory, of one kind. No IO and no clock.

    take ──▶ used ──give──▶                 who finds no room waits in a row, and goes on in that order

Rules:

1. Nobody is refused and nothing is thrown away: who finds no room stops reading a socket, or reads no entries, until
   there is room. So a budget may be exceeded by what was on its way when it became full, never without end.
2. Room is given to a few at a time: each that goes on takes some before it is known how much.
3. What a holder says it holds may be old (a socket tells nothing while it drains): it is asked again while somebody
   waits.
4. Where nothing is left that could give room by itself, the first in the row goes on all the same. (Frames that have
   half arrived hold memory, and only their connections can make them whole.)
"""

from collections.abc import Callable, Hashable
from typing import Final, Protocol

from magnetar_core.runtime.types import Cancellable

# Who waits goes on when so much is free again: it must be worth the while.
RESUME_BELOW: Final = 0.75

# Waiters that go on in one step, and the time between steps: reading a socket brings at most some 256 KiB, so a step
# adds 4 MiB at the most before the next one looks again.
RESUMED_AT_ONCE: Final = 16
STEP_S: Final = 0.001

# How often it is looked again while somebody waits (rules 3 and 4).
LOOK_S: Final = 0.02


class Holder(Protocol):
    """Who holds bytes of a budget and can say how many are left."""

    def recount(self) -> None:
        """Give back what is not held any more."""
        ...


Later = Callable[[float, Callable[[], None]], Cancellable]


class MemoryBudget:
    """Bytes of one kind."""

    __slots__ = ("_later", "_timer", "_waiting", "holders", "kept_bytes", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, later: Later) -> None:
        """*later* calls something after so many seconds."""
        assert limit_bytes > 0
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.kept_bytes = 0
        """Those of the used ones that nobody will give back before he may go on (rule 4)."""
        self.holders: set[Holder] = set()
        self._later = later
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._timer: Cancellable | None = None

    @property
    def room_bytes(self) -> int:
        """May be negative (rule 1)."""
        return self.limit_bytes - self.used_bytes

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self.limit_bytes

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "more was given back than was taken"

    def keep(self, size_bytes: int) -> None:
        """Take (or, negative, give) bytes that only who holds them can set free (rule 4)."""
        self.kept_bytes += size_bytes
        self.used_bytes += size_bytes
        assert 0 <= self.kept_bytes <= self.used_bytes

    def wait(self, who: Hashable, go_on: Callable[[], None], *, first: bool = False) -> None:
        """Call *go_on* once there is room; *first*: before all others. Whoever waits already keeps his place."""
        if who in self._waiting:
            return
        if first:
            self._waiting = {who: go_on, **self._waiting}
        else:
            self._waiting[who] = go_on
        if self._timer is None:
            self._timer = self._later(LOOK_S, self._look)

    def is_waiting(self, who: Hashable) -> bool:
        return who in self._waiting

    def forget(self, who: Hashable) -> None:
        """*who* does not wait any more."""
        self._waiting.pop(who, None)

    def _look(self) -> None:
        self._timer = None
        for holder in tuple(self.holders):
            holder.recount()
        waiting = self._waiting
        count = 0
        while waiting and count < RESUMED_AT_ONCE and self.used_bytes < self.limit_bytes * RESUME_BELOW:
            count += 1
            waiting.pop(next(iter(waiting)))()
        if waiting and not count and self.used_bytes == self.kept_bytes:
            waiting.pop(next(iter(waiting)))()  # rule 4
        if waiting and self._timer is None:
            self._timer = self._later(STEP_S if count else LOOK_S, self._look)
