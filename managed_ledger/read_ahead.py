"""What a cursor reads next, read from the bookies before it asks.

    ManagedCursor ──▶ ReadAhead ──has it──▶ at once; with less than half a step left, the next step begins
                          ├──on its way──▶ waits for it
                          └──neither──▶ Reading: memory, or bookies; behind the second such read in a row a step begins

A consumer asks for more when it has taken half of what it had. Without a step under way a whole round to the bookies
lies between that and its next message, once for every few entries.

Rules:

1. Nothing is read ahead of a first read, of one at another place, or where memory has what follows.
2. A step is twice the bytes that the cursor took last, within limits, and at least one entry. One is under way at most.
3. All cursors together hold `AheadBudget.bytes_max`. The cursor that asked longest ago gives up what it holds.
4. A step that fails is dropped: the cursor's own read meets the failure, and tells it.
"""

import asyncio
import weakref
from collections import OrderedDict, deque
from collections.abc import Awaitable, Sequence
from typing import Final

from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import KIB, MIB
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.position import Position
from managed_ledger.reading import Entry, Reading

# A step of fewer bytes would cost more in requests than it saves; one of more brings nothing where a client takes a
# thousand messages at once.
STEP_BYTES_MIN: Final = 256 * KIB
STEP_BYTES_MAX: Final = 2 * MIB

# Bytes bound a step; entries of some bytes each would still be many objects at once.
STEP_ENTRIES_MAX: Final = 1_000

# Of all cursors of a process: sixteen that read as fast as they can.
AHEAD_BYTES_MAX: Final = 32 * MIB


class AheadBudget:
    """What all cursors together hold of entries that nobody asked for yet, in bytes."""

    def __init__(self, bytes_max: int = AHEAD_BYTES_MAX) -> None:
        """*bytes_max* 0: nothing is read ahead."""
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._held: OrderedDict[weakref.ref[ReadAhead], int] = OrderedDict()  # who asked longest ago comes first

    def hold(self, holder: "weakref.ref[ReadAhead]", size_bytes: int) -> None:
        """*holder* holds so much now, whatever it held before, and has just asked."""
        self.bytes_used += size_bytes - self._held.pop(holder, 0)
        if size_bytes:
            self._held[holder] = size_bytes
        while self.bytes_used > self.bytes_max:
            oldest, held_bytes = self._held.popitem(last=False)
            self.bytes_used -= held_bytes
            found = oldest()
            if found is not None:
                found.drop()
        assert self.bytes_used >= 0, f"{self.bytes_used} bytes are used"


class ReadAhead:
    """Reads of one cursor. In place of `Reading.read`, which it calls."""

    __slots__ = ("__weakref__", "_behind", "_budget", "_entries", "_left_bytes", "_me", "_reading", "_run_bytes",
                 "_step_bytes", "_task", "_tasks", "_wanted")  # fmt: skip

    def __init__(self, reading: Reading, budget: AheadBudget) -> None:
        self._reading = reading
        self._budget = budget
        self._me = weakref.ref(self, lambda me: budget.hold(me, 0))
        self._tasks = Tasks("reads ahead")
        self._entries: deque[Entry] = deque()
        self._left_bytes = 0
        """Of these entries."""
        self._run_bytes = 0
        """Of the runs of which any entry is here: its entries share their memory."""
        self._behind: Position | None = None
        """The position behind what the cursor got last; None: that came from memory."""
        self._step_bytes = STEP_BYTES_MIN
        self._task: asyncio.Task[None] | None = None
        self._wanted: Position | None = None
        """Where the step under way begins; None: what it brings is not wanted any more."""
        budget.hold(self._me, 0)

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        """As `Reading.read`."""
        position = self._reading.ceiling(first)
        entries = self._entries
        while entries and entries[0].position < position:  # acknowledged meanwhile
            self._left_bytes -= len(entries.popleft().data)
        if entries and entries[0].position == position:
            taken = self._take(max_entries, max_bytes)
            self._note(taken)
            self._go_on()
            return taken
        if not entries and self._task is not None and self._wanted == position:
            return self._after_step(self._task, first, max_entries, max_bytes)
        is_steady = self._behind is not None and self._reading.ceiling(self._behind) == position
        self.drop()
        found = self._reading.read(position, max_entries, max_bytes)
        return found if isinstance(found, Sequence) else self.after(found, is_steady=is_steady)

    async def after(self, pending: Awaitable[Sequence[Entry]], *, is_steady: bool = False) -> Sequence[Entry]:
        """What *pending*, a read of the bookies, brings. *is_steady*: it goes on where the one before ended."""
        found = await pending
        if found:
            self._note(found)
            if is_steady:
                self._go_on()
        return found

    def drop(self) -> None:
        """Give up what is held. The next read begins anew."""
        self._entries.clear()
        self._left_bytes = self._run_bytes = 0
        self._behind = self._wanted = None
        self._budget.hold(self._me, 0)

    def close(self) -> None:
        """As `drop`, and do not wait for a step under way."""
        self.drop()
        if self._task is not None:
            self._task.cancel()

    async def _after_step(
        self, step: "asyncio.Task[None]", first: Position, max_entries: int, max_bytes: int
    ) -> Sequence[Entry]:
        await asyncio.wait([step])  # which goes on if this reader is cancelled
        found = self.read(first, max_entries, max_bytes)
        return found if isinstance(found, Sequence) else await found

    def _take(self, max_entries: int, max_bytes: int) -> list[Entry]:
        entries = self._entries
        ledger_id = entries[0].ledger_id
        taken: list[Entry] = []
        while entries and len(taken) < max_entries and entries[0].ledger_id == ledger_id:
            size_bytes = len(entries[0].data)
            max_bytes -= size_bytes
            if taken and max_bytes < 0:
                break
            self._left_bytes -= size_bytes
            taken.append(entries.popleft())
        return taken

    def _note(self, taken: Sequence[Entry]) -> None:
        """The cursor gets *taken*."""
        self._behind = _behind(taken[-1])
        size_bytes = sum(len(entry.data) for entry in taken)
        self._step_bytes = min(max(2 * size_bytes, STEP_BYTES_MIN), STEP_BYTES_MAX)

    def _go_on(self) -> None:
        """Begin the next step if it is due."""
        entries = self._entries
        if not entries:
            self._run_bytes = 0
        is_due = self._task is None and 2 * self._left_bytes < self._step_bytes and self._budget.bytes_max > 0
        behind = _behind(entries[-1]) if entries else self._behind
        if is_due and behind is not None:
            begin = self._reading.ceiling(behind)
            found = self._reading.read(begin, STEP_ENTRIES_MAX, self._step_bytes)
            if not isinstance(found, Sequence):  # else the end, or what memory has
                self._wanted = begin
                self._task = self._tasks.spawn(self._step(found), "step")
        self._budget.hold(self._me, self._run_bytes + (self._step_bytes if self._wanted else 0))

    async def _step(self, pending: Awaitable[Sequence[Entry]]) -> None:
        try:
            found = await pending
        except ManagedLedgerError:
            found = ()  # rule 4
        finally:
            self._task = None
        if self._wanted is None:
            return
        self._wanted = None
        size_bytes = sum(len(entry.data) for entry in found)
        self._entries.extend(found)
        self._left_bytes += size_bytes
        self._run_bytes += size_bytes
        self._budget.hold(self._me, self._run_bytes)


def _behind(entry: Entry) -> Position:
    return Position(entry.ledger_id, entry.entry_id + 1)
