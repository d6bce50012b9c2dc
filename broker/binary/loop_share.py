"""How long connections work in one turn of the event loop, and whose turn it is. No IO; the clock is given.

Rules:

1. All connections of a port together work `TURN_S` in one turn of the loop, one of them `SLICE_S`, and begin
   `TASKS_PER_TURN` tasks: what a task does comes in the next turn, together with all others that were begun. So a turn
   ends soon, whatever the commands of clients cost, and however many clients send at once.
2. A connection that comes when the turn is over waits. Those that wait have their slices in the order in which they
   came; one that has more to do than a slice goes behind the others.
3. What those that wait have brought lies in memory. Where that of one role is more than `UNWORKED_BYTES_MAX`, none of
   its connections is read until half of it is worked on. Others go on. (Where nobody is authenticated, a connection
   stands for itself: those of one address may be of many people.) Where all together have brought more than
   `UNWORKED_SUM_BYTES_MAX`, no connection is read until half of that is worked on.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from magnetar_core.runtime.types import MIB

# A command takes 10 µs to some milliseconds. Others (tasks, storage, HTTP) work in the same turn, which may take a
# tenth of a second in all.
TURN_S: Final = 0.03
SLICE_S: Final = 0.01

# Lookups, producers, consumers and the like: 50 µs to a millisecond each.
TASKS_PER_TURN: Final = 50

assert SLICE_S < TURN_S

# A socket brings up to 256 KiB at a time: a chunk of 64 connections of one role that send more than they are worked on.
UNWORKED_BYTES_MAX: Final = 16 * MIB

# The full share of sixteen roles. A thousand connections bring as much in one turn of the loop, 256 KiB each.
UNWORKED_SUM_BYTES_MAX: Final = 256 * MIB


class LoopShare:
    """The share of the loop that all connections of one server have."""

    def __init__(self, now_s: Callable[[], float], call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._now_s = now_s
        self._call_soon = call_soon
        self._is_in_turn = False
        self._turn_ends_s = 0.0
        self._slice_ends_s = 0.0
        self._tasks = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_to_serve = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def begin_slice(self) -> bool:
        """Whether one more connection may work in this turn; if so, its slice begins."""
        now_s = self._now_s()
        if not self._is_in_turn:
            self._is_in_turn = True
            self._turn_ends_s = now_s + TURN_S
            self._tasks = 0
            self._call_soon(self._end_turn)
        elif now_s >= self._turn_ends_s or self._tasks >= TASKS_PER_TURN:
            return False
        self._slice_ends_s = min(now_s + SLICE_S, self._turn_ends_s)
        return True

    def is_over(self) -> bool:
        """Whether the slice that began last is over. Asked after each command."""
        return self._now_s() >= self._slice_ends_s

    def count_task(self) -> None:
        """The connection whose slice it is has begun a task."""
        self._tasks += 1
        if self._tasks >= TASKS_PER_TURN:
            self._slice_ends_s = 0.0

    def wait(self, work: Callable[[], None]) -> None:
        """Call *work* in a later turn, as a slice of its own."""
        self._waiting.append(work)
        self._serve_soon()

    def _end_turn(self) -> None:
        self._is_in_turn = False

    def _serve(self) -> None:
        """Slices for those that wait. What they leave comes behind the others (rule 2)."""
        self._is_to_serve = False
        waiting = self._waiting
        try:
            for _ in range(len(waiting)):
                if not self.begin_slice():
                    break
                waiting.popleft()()
        finally:
            self._serve_soon()

    def _serve_soon(self) -> None:
        if self._waiting and not self._is_to_serve:
            self._is_to_serve = True
            self._call_soon(self._serve)


class Unworked:
    """Bytes that connections have brought and that wait for a turn, of each role and in all (rule 3)."""

    def __init__(self, changed: Callable[[Hashable | None], None]) -> None:
        """*changed*: the connections of a role (None: all connections) are not to be read any more, or are again."""
        self._changed = changed
        self._bytes: dict[Hashable, int] = {}
        self._sum_bytes = 0
        self._full: set[Hashable | None] = set()
        """None: all together have brought too much."""

    def __getitem__(self, source: Hashable) -> int:
        return self._bytes.get(source, 0)

    def is_full(self, source: Hashable) -> bool:
        """Whether the connections of *source* are not to be read."""
        return source in self._full or None in self._full

    def add_bytes(self, source: Hashable, more_bytes: int) -> None:
        """*more_bytes* more of *source* wait for a turn; a negative number: fewer."""
        held_bytes = self[source] + more_bytes
        assert held_bytes >= 0, f"{held_bytes} bytes wait of {source}"
        if held_bytes:
            self._bytes[source] = held_bytes
        else:
            self._bytes.pop(source, None)
        self._sum_bytes += more_bytes
        self._update_fullness(source, held_bytes, UNWORKED_BYTES_MAX)
        self._update_fullness(None, self._sum_bytes, UNWORKED_SUM_BYTES_MAX)

    def _update_fullness(self, source: Hashable | None, held_bytes: int, limit_bytes: int) -> None:
        """A source is full above *limit_bytes*, and until it has half of that again."""
        was_full = source in self._full
        if not was_full and held_bytes > limit_bytes:
            self._full.add(source)
            self._changed(source)
        elif was_full and held_bytes <= limit_bytes // 2:
            self._full.remove(source)
            self._changed(source)
