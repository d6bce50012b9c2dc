"""What a cursor reads next, read from the bookies before it asks.

    ManagedCursor ──▶ ReadAhead ──has it──▶ at once; with less than half a step left, the next step begins
                          ├──on its way──▶ waits for it
                          └──neither──▶ Reading: memory, or bookies; behind the second such read in a row a step begins

A consumer asks for more when it has taken half of what it had. Without a step under way a whole round to the bookies
lies between that and its next message, once for every few entries.

Rules:

1. Nothing is read ahead of a first read, of one at another place, or where memory has what follows.
2. A step is twice the bytes that the cursor took last, within limits, and at least one entry. One is under way at most.
3. All cursors together hold `AheadBudget.bytes_max`, with what is under way, whether it is still wanted or not. Without
   room a cursor reads as if there were no steps. Room comes from cursors that have not asked for a while; from others
   it would only be read twice.
4. A step that fails is dropped: the cursor's own read meets the failure, and reports it.
"""

import asyncio
import weakref
from collections import OrderedDict, deque
from collections.abc import Awaitable, Sequence
from itertools import islice
from typing import Final

from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import KIB, MIB
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.position import Position
from managed_ledger.reading.reading import Entry, Reading

# A step of fewer bytes would cost more in requests than it saves; one of more brings nothing where a client takes a
# thousand messages at once.
STEP_BYTES_MIN: Final = 256 * KIB
STEP_BYTES_MAX: Final = 2 * MIB

# Bytes bound a step; entries of some bytes each would still be many objects at once.
STEP_ENTRIES_MAX: Final = 1_000

# Bytes for all cursors of a process: enough for sixteen that read as fast as they can.
AHEAD_BYTES_MAX: Final = 32 * MIB

# A cursor that has not asked for so long gives up what it holds when others need the room, so many cursors at a time.
IDLE_S: Final = 1.0
GIVE_UP_AT_ONCE: Final = 16


class AheadBudget:
    """What all cursors together hold of entries that nobody asked for yet, in bytes."""

    def __init__(self, clock: Clock, bytes_max: int = AHEAD_BYTES_MAX) -> None:
        """*bytes_max* 0: nothing is read ahead."""
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._clock = clock
        # Bytes, and when it asked last, in seconds; the one that asked longest ago comes first.
        self._held: OrderedDict[weakref.ref[ReadAhead], tuple[int, float]] = OrderedDict()

    def hold(self, holder: "weakref.ref[ReadAhead]", size_bytes: int) -> None:
        """*holder* holds so much now, whatever it held before, and has just asked."""
        former_bytes, _ = self._held.pop(holder, (0, 0.0))
        self.bytes_used += size_bytes - former_bytes
        if size_bytes:
            self._held[holder] = size_bytes, self._clock.monotonic()
        assert self.bytes_used >= 0, f"{self.bytes_used} bytes are used"

    def make_room(self, size_bytes: int) -> bool:
        """Whether there is room for so much more (rule 3)."""
        if self.bytes_used + size_bytes > self.bytes_max:
            idle_since_s = self._clock.monotonic() - IDLE_S
            for holder in tuple(islice(self._held, GIVE_UP_AT_ONCE)):
                reader = holder()
                if reader is not None and self._held[holder][1] <= idle_since_s:
                    reader.drop()
        return self.bytes_used + size_bytes <= self.bytes_max


class ReadAhead:
    """The reads of one cursor. It is called instead of `Reading.read`, and calls that."""

    __slots__ = (
        "__weakref__",
        "_behind",
        "_budget",
        "_budget_key",
        "_entries",
        "_left_bytes",
        "_reading",
        "_run_bytes",
        "_step_bytes",
        "_task",
        "_tasks",
        "_under_way_bytes",
        "_wanted",
    )  # fmt: skip

    def __init__(self, reading: Reading, budget: AheadBudget) -> None:
        self._reading = reading
        self._budget = budget
        self._budget_key = weakref.ref(self, lambda key: budget.hold(key, 0))
        self._tasks = Tasks("reads ahead")
        self._entries: deque[Entry] = deque()
        self._left_bytes = 0
        """Bytes of these entries."""
        self._run_bytes = 0
        """Bytes of the runs of which any entry is here: the entries of a run share their memory."""
        self._behind: Position | None = None
        """The position behind what the cursor got last; None: that came from memory."""
        self._step_bytes = STEP_BYTES_MIN
        self._task: asyncio.Task[None] | None = None
        """The step under way."""
        self._under_way_bytes = 0
        """Bytes that this step may bring."""
        self._wanted: Position | None = None
        """Where that step begins; None: there is no step, or what it brings is not wanted any more."""
        budget.hold(self._budget_key, 0)

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
            return self._read_after_step(self._task, first, max_entries, max_bytes)
        is_steady = self._behind is not None and self._reading.ceiling(self._behind) == position
        self.drop()
        answer = self._reading.read(position, max_entries, max_bytes)
        return answer if isinstance(answer, Sequence) else self.follow(answer, is_steady=is_steady)

    async def follow(self, pending: Awaitable[Sequence[Entry]], *, is_steady: bool = False) -> Sequence[Entry]:
        """Wait for *pending*, a read of the bookies. *is_steady*: it goes on where the read before ended."""
        entries = await pending
        if entries:
            self._note(entries)
            if is_steady:
                self._go_on()
        return entries

    def drop(self) -> None:
        """Give up what is held. The next read begins anew."""
        self._entries.clear()
        self._left_bytes = self._run_bytes = 0
        self._behind = self._wanted = None
        self._budget.hold(self._budget_key, self._under_way_bytes)

    async def _read_after_step(
        self, step: "asyncio.Task[None]", first: Position, max_entries: int, max_bytes: int
    ) -> Sequence[Entry]:
        await asyncio.wait([step])  # the step goes on if this reader is cancelled
        answer = self.read(first, max_entries, max_bytes)
        return answer if isinstance(answer, Sequence) else await answer

    def _take(self, max_entries: int, max_bytes: int) -> list[Entry]:
        """Take entries of one ledger from what was read; at least one, even if it has more than *max_bytes*."""
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
        """Note that the cursor gets *taken*."""
        self._behind = _position_behind(taken[-1])
        sizes = [len(entry.data) for entry in taken]
        # The next entry is probably no larger than these: it counts for what it takes, where a step is a single one.
        self._step_bytes = max(min(max(2 * sum(sizes), STEP_BYTES_MIN), STEP_BYTES_MAX), *sizes)

    def _go_on(self) -> None:
        """Begin the next step if it is due and there is room."""
        entries = self._entries
        if not entries:
            self._run_bytes = 0
        self._budget.hold(self._budget_key, self._run_bytes + self._under_way_bytes)
        if self._task is not None or 2 * self._left_bytes >= self._step_bytes:
            return
        behind = _position_behind(entries[-1]) if entries else self._behind
        if behind is None or not self._budget.make_room(self._step_bytes):
            return
        begin = self._reading.ceiling(behind)
        answer = self._reading.read(begin, STEP_ENTRIES_MAX, self._step_bytes)
        if isinstance(answer, Sequence):  # the end, or what memory has
            return
        self._wanted = begin
        self._under_way_bytes = self._step_bytes
        self._task = self._tasks.spawn(self._step(answer), "step")
        self._budget.hold(self._budget_key, self._run_bytes + self._under_way_bytes)

    async def _step(self, pending: Awaitable[Sequence[Entry]]) -> None:
        """Keep what *pending* brings, if it is still wanted."""
        try:
            entries = await pending
        except ManagedLedgerError:
            entries = ()  # rule 4
        finally:
            self._task = None
            self._under_way_bytes = 0
            self._budget.hold(self._budget_key, self._run_bytes)
        if self._wanted is None:
            return
        self._wanted = None
        size_bytes = sum(len(entry.data) for entry in entries)
        self._entries.extend(entries)
        self._left_bytes += size_bytes
        self._run_bytes += size_bytes
        self._budget.hold(self._budget_key, self._run_bytes)


def _position_behind(entry: Entry) -> Position:
    return Position(entry.ledger_id, entry.entry_id + 1)
