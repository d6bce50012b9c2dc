"""A budget of memory for all clients of a broker together. No IO and no clock.

    take ──▶ used ──give──▶                 without room: wait in a queue, resumed in order

Rules:

1. Nothing is refused or dropped: a connection without room stops reading its socket, a subscription stops reading
   entries, until there is room. So a budget is exceeded by what was under way when it became full, and no further.
2. Waiters are resumed a few at a time: how much each will take is known only after it was resumed.
3. The bytes that a holder reports may be outdated (a socket reports nothing while it drains): holders count again while
   anybody waits.
"""

from collections.abc import Callable, Hashable
from typing import Final, Protocol

from magnetar_core.runtime.types import MIB, Cancellable

# Waiters are resumed when usage falls below this share, so that each finds enough room.
RESUME_BELOW: Final = 0.75

# Waiters that are resumed in one step, and the time between steps. Reading a socket brings at most some 256 KiB, so
# a step adds at most 4 MiB before the usage is checked again.
RESUMED_AT_ONCE: Final = 16
STEP_S: Final = 0.001

# How often the usage is checked while anybody waits (rule 3).
LOOK_S: Final = 0.02


class Holder(Protocol):
    """Holds bytes of a budget and can count anew how many they are."""

    def recount(self) -> None:
        """Give back bytes that are not held any more."""
        ...


Later = Callable[[float, Callable[[], None]], Cancellable]


# Messages of all clients that wait since the rate of their topic is used up. They may wait for hours, so they have no
# part in the memory for what is on its way to storage: that would stop everybody.
SET_ASIDE_BYTES_MAX: Final = 64 * MIB


class MemoryBudget:
    """Bytes that clients hold together: of messages to be published, or of entries to be sent."""

    __slots__ = ("_later", "_timer", "_waiting", "holders", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, later: Later) -> None:
        """*later* calls a function after a number of seconds."""
        assert limit_bytes > 0, limit_bytes
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.holders: dict[Holder, None] = {}
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

    def wait(self, waiter: Hashable, resume: Callable[[], None]) -> None:
        """Call *resume* once there is room. A *waiter* in the queue keeps its place."""
        if waiter in self._waiting:
            return
        self._waiting[waiter] = resume
        if self._timer is None:
            self._timer = self._later(LOOK_S, self._resume)

    def is_waiting(self, waiter: Hashable) -> bool:
        return waiter in self._waiting

    def forget(self, waiter: Hashable) -> None:
        """*waiter* does not wait any more."""
        self._waiting.pop(waiter, None)

    def _resume(self) -> None:
        self._timer = None
        for holder in tuple(self.holders):
            holder.recount()
        waiting = self._waiting
        count = 0
        while waiting and count < RESUMED_AT_ONCE and self.used_bytes < self.limit_bytes * RESUME_BELOW:
            count += 1
            waiting.pop(next(iter(waiting)))()
        if waiting and self._timer is None:
            self._timer = self._later(STEP_S if count else LOOK_S, self._resume)
