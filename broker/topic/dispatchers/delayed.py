"""Positions that wait for their time, 32 bytes each, however many they are. No IO and no clock.

    add ──▶ far away: one bucket for a stretch of time ──its time comes near──▶ near: one bucket for each step ──▶ take

Rules:

1. A position is given back at its time or up to one step later, never before. A step is a tick of delayed delivery, or
   `LONGEST_STEP_MS` where that is shorter; it may change at any time.
2. What waits far away stands together, however many different times there are: a bucket costs some 250 bytes, a
   position in it 32.
3. Positions of one step come in the order in which they were added, which is that of the topic but for those that are
   delivered again.
"""

from array import array
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from managed_ledger.position import Position

# The longest step. Ticks are a second where nobody says otherwise; a tenth of it costs nothing more, and is nearer.
LONGEST_STEP_MS: Final = 100

# A stretch of time. Taken apart it has 256 buckets, some 64 KB, at steps of 100 ms; 25,600, some 6.4 MB, at 1 ms.
_STRETCH_MS: Final = 25_600

# The last time that an array holds; messages have no later one.
_LAST_MS: Final = 2**63 - 1

# What an array holds of a position: the end of its step, ledger, entry, hash of the key.
_FIELDS: Final = 4


# What one message takes here.
DELAYED_SIZE: Final = _FIELDS * 8


class _Buckets:
    """Arrays of positions by number, lowest number first."""

    __slots__ = ("_by_number", "_numbers")

    def __init__(self) -> None:
        self._by_number: dict[int, array[int]] = {}
        self._numbers: list[int] = []

    @property
    def first(self) -> int | None:
        return self._numbers[0] if self._numbers else None

    def add(self, number: int, fields: tuple[int, int, int, int]) -> None:
        bucket = self._by_number.get(number)
        if bucket is None:
            bucket = self._by_number[number] = array("q")
            heappush(self._numbers, number)
        bucket.extend(fields)

    def pop(self) -> "array[int]":
        return self._by_number.pop(heappop(self._numbers))

    def clear(self) -> None:
        self._by_number.clear()
        self._numbers.clear()


class DelayedMessages:
    """The delayed messages of one subscription."""

    __slots__ = ("_count", "_due", "_due_offset", "_far", "_last_near_stretch", "_near")

    def __init__(self) -> None:
        self._far = _Buckets()
        self._near = _Buckets()
        self._last_near_stretch = -1
        """The last stretch of time that was taken apart into steps."""
        self._due: array[int] = array("q")
        """A step that is being given back; *_due_offset* is how far."""
        self._due_offset = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, position: Position, hash_: int, at_ms: int, tick_ms: int = LONGEST_STEP_MS) -> None:
        """*hash_* of its key comes back with it; *at_ms* by the wall clock; at most *tick_ms* late."""
        step_ms = min(max(tick_ms, 1), LONGEST_STEP_MS)
        due_ms = min(-(-at_ms // step_ms) * step_ms, _LAST_MS)  # a client may name the last millisecond there is
        stretch = due_ms // _STRETCH_MS
        fields = (due_ms, position.ledger_id, position.entry_id, hash_)
        if stretch <= self._last_near_stretch:
            self._near.add(due_ms, fields)
        else:
            self._far.add(stretch, fields)
        self._count += 1

    @property
    def next_ms(self) -> int | None:
        """When to ask again; None: nothing waits. There may be nothing to take yet, but never something before."""
        if self._due_offset < len(self._due):
            return self._due[self._due_offset]
        first_near, stretch = self._near.first, self._far.first
        first_far = None if stretch is None else stretch * _STRETCH_MS
        return min((ms for ms in (first_near, first_far) if ms is not None), default=None)

    def take(self, now_ms: int, count_max: int) -> Iterator[tuple[Position, int]]:
        """Give back (position, hash) of what is due at *now_ms*, *count_max* of them at most."""
        while count_max > 0:
            if self._due_offset == len(self._due) and not self._begin_step(now_ms):
                return
            if self._due[self._due_offset] > now_ms:
                return  # the clock was set back
            _, ledger_id, entry_id, hash_ = self._due[self._due_offset : self._due_offset + _FIELDS]
            self._due_offset += _FIELDS
            self._count -= 1
            count_max -= 1
            yield Position(ledger_id, entry_id), hash_

    def _begin_step(self, now_ms: int) -> bool:
        """Begin the next step; False: there is none whose time has come."""
        self._due, self._due_offset = array("q"), 0
        while (stretch := self._far.first) is not None and stretch * _STRETCH_MS <= now_ms:
            self._split_stretch()
        first_near = self._near.first
        if first_near is None or first_near > now_ms:
            return False
        self._due = self._near.pop()
        return True

    def _split_stretch(self) -> None:
        stretch = self._far.first
        assert stretch is not None, "there is something far away"
        bucket = self._far.pop()
        self._last_near_stretch = max(self._last_near_stretch, stretch)
        for offset in range(0, len(bucket), _FIELDS):
            due_ms, ledger_id, entry_id, hash_ = bucket[offset : offset + _FIELDS]
            self._near.add(due_ms, (due_ms, ledger_id, entry_id, hash_))

    def clear(self) -> None:
        self._far.clear()
        self._near.clear()
        self._due, self._due_offset, self._count = array("q"), 0, 0
