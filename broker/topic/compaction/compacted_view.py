"""A cursor that reads what compaction kept of a topic, up to the horizon, and the topic from there on. No IO.

    position ──▶ at or before the horizon ──▶ compacted ledger ──▶ nothing more ──▶ behind the horizon ──▶ topic

Rules:

1. Positions are those of the topic, so acknowledgements, seeks and redelivery go to the topic's own cursor.
2. A reader goes on by its position when another compaction has ended meanwhile: what is behind it in the new compacted
   ledger, it has not read; what is missing there, it has read, or it has a later message (R-M20).
3. Entries of the topic that were trimmed may still be in the compacted ledger. The topic's cursor stands before its
   ledgers until they are consumed (`managed_ledger.cursors.cursor`, rule 5), so that they come again after a restart.
4. What compaction left out is consumed with what stands around it: nobody will be sent it, so nobody acknowledges it.
   Without that, single acknowledgements would never become contiguous, and hold back trimming for ever.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from broker.topic.ports import CursorPort, Entries, EntryLike
from managed_ledger.position import Position

# Entries that were read and not acknowledged, as far as they are remembered for rule 4: two megabytes. Those behind
# them are looked for in the compacted ledger once most of these are acknowledged.
OPEN_MAX: Final = 20_000

# One look at them.
_LOOK_ENTRIES: Final = 1_000
_LOOK_BYTES: Final = 1024 * 1024


class CompactedRun(NamedTuple):
    """Entries of a compacted ledger, and the last position of the topic that it stands for."""

    entries: Entries
    horizon: Position


class CompactedView(Protocol):
    """What compaction kept of a topic (`broker.topic.compaction.compactor.Compactor`)."""

    @property
    def horizon(self) -> Position | None:
        """The last position that was looked at; None: the topic was never compacted."""
        ...

    async def read_compacted(self, first: Position, max_entries: int, max_bytes: int) -> CompactedRun:
        """Entries at *first* and behind it; none: there are no more of them up to the horizon."""
        ...

    async def find_first(self, predicate: Callable[[EntryLike], bool]) -> Position | None:
        """The first entry for which *predicate* is true, by bisection; None: there is none."""
        ...


class CompactedCursor:
    """Implements `CursorPort`."""

    def __init__(self, inner: CursorPort, view: CompactedView, is_on: Callable[[], bool]) -> None:
        """*is_on*: whether the consumer that is being served wants this."""
        self.name = inner.name
        self._inner = inner
        self._view = view
        self._is_on = is_on
        self._at: Position | None = None
        """The next position in the compacted ledger; None: where the topic's cursor is."""
        self._read_generation = 0
        self._unacknowledged: list[Position] = []
        """Entries of the compacted ledger that are not acknowledged: all of them from the mark-delete position up to
        `_looked_up_to`. Of a cursor that is not durable, none is remembered."""
        self._looked_up_to = self._read_to = Position(0, 0)
        self._begin()

    def _begin(self) -> None:
        """Read from the mark-delete position on."""
        self._at = self._looked_up_to = self._read_to = _position_after(self._inner.mark_delete_position)
        self._unacknowledged.clear()

    @property
    def durable(self) -> bool:
        return self._inner.durable

    @property
    def mark_delete_position(self) -> Position:
        return self._inner.mark_delete_position

    @property
    def read_position(self) -> Position:
        if self._at is None or not self._is_compacted:
            return self._inner.read_position
        return self._at

    @property
    def range_count(self) -> int:
        return self._inner.range_count

    @property
    def properties(self) -> Mapping[str, int]:
        return self._inner.properties

    @property
    def idle_since_ms(self) -> int:
        return self._inner.idle_since_ms

    def mark_idle(self, since_ms: int) -> None:
        self._inner.mark_idle(since_ms)

    def mark_active(self) -> None:
        self._inner.mark_active()

    # ------------------------------------------------------------------------------------ reads

    def has_more(self) -> bool:
        return self._inner.has_more() or self._is_in_compacted() or self._is_behind

    @property
    def _is_compacted(self) -> bool:
        """Whether the consumer that is being served wants what compaction kept, and there is such."""
        return self._view.horizon is not None and self._is_on()

    @property
    def has_open(self) -> bool:
        """Whether the compacted ledger may have something that was not sent, or not acknowledged."""
        return self._is_in_compacted() or bool(self._unacknowledged)

    def _is_in_compacted(self) -> bool:
        horizon = self._view.horizon
        return horizon is not None and self._is_on() and self.read_position <= horizon

    @property
    def _is_behind(self) -> bool:
        """Whether open entries are to be looked for that were read and could not be remembered."""
        return self._looked_up_to < self._read_to and self._has_room and self._is_compacted

    @property
    def _has_room(self) -> bool:
        """Whether it is worth a look at what could not be remembered."""
        return self.durable and len(self._unacknowledged) <= OPEN_MAX // 2

    def read(self, max_entries: int, max_bytes: int) -> Entries | Awaitable[Entries]:
        if self._is_in_compacted():
            return self._read_compacted(self.read_position, max_entries, max_bytes, self._read_generation)
        self._at = None
        if self._is_behind:
            return self._look(self._read_to, self._read_generation)
        return self._inner.read(max_entries, max_bytes)

    async def _read_compacted(self, start: Position, max_entries: int, max_bytes: int, generation: int) -> Entries:
        """Read from the compacted ledger, from *start* on, until there are entries that are not acknowledged; behind
        its end, from the topic.

        *generation*: the number of the read; if a rewind has changed it meanwhile, nothing is returned.
        """
        while True:
            # The topic itself was read up to here, or there was too much.
            if self._looked_up_to < start and self._has_room:
                await self._look(start, generation)
            run = await self._view.read_compacted(start, max_entries, max_bytes)
            if generation != self._read_generation:
                return []
            last = run.entries[-1].position if run.entries else run.horizon
            is_end = last >= run.horizon
            open_entries = [entry for entry in run.entries if not self._inner.is_deleted(entry.position)]
            self._note(start, run.entries, _position_after(last))
            if is_end:
                self._at = None
                self._inner.moved_past(last)
            else:
                self._at = start = _position_after(last)
            if open_entries:
                return open_entries
            if is_end:
                more = self._inner.read(max_entries, max_bytes)
                return more if isinstance(more, Sequence) else await more

    def moved_past(self, position: Position) -> None:
        self._at = None
        self._inner.moved_past(position)

    def rewind(self) -> None:
        self._read_generation += 1
        self._inner.rewind()
        self._begin()

    async def reset(self, position: Position) -> None:
        self._read_generation += 1
        await self._inner.reset(position)
        self._begin()

    # -------------------------------------------------------------------------------- acknowledgements

    async def _look(self, up_to: Position, generation: int) -> Entries:
        """Remember the open entries before *up_to*, as many as there is room for. Returns no entries."""
        while self._looked_up_to < up_to and len(self._unacknowledged) < OPEN_MAX:
            first = self._looked_up_to
            run = await self._view.read_compacted(first, _LOOK_ENTRIES, _LOOK_BYTES)
            if generation != self._read_generation:
                break
            entries = [entry for entry in run.entries if entry.position < up_to]
            is_end = len(entries) < len(run.entries) or not entries or entries[-1].position >= run.horizon
            self._note(first, entries, up_to if is_end else _position_after(entries[-1].position))
        return []

    def _note(self, first: Position, entries: Entries, end: Position) -> None:
        """*entries* are all that the compacted ledger has from *first* up to *end*."""
        if not self.durable:
            return
        self._read_to = max(self._read_to, end)
        if self._looked_up_to < first:
            return
        moves = False
        for position in (entry.position for entry in entries):
            if position < self._looked_up_to:
                continue
            if not self._inner.is_deleted(position):
                if len(self._unacknowledged) >= OPEN_MAX:
                    return
                self._unacknowledged.append(position)
            self._looked_up_to = _position_after(position)
            moves |= not self._unacknowledged
        self._looked_up_to = max(self._looked_up_to, end)
        if moves or not self._unacknowledged:
            self._consume_left_out()

    def _consume_left_out(self) -> None:
        """What stands before the first open entry is consumed (rule 4)."""
        following = self._unacknowledged[0] if self._unacknowledged else self._looked_up_to
        position = Position(following.ledger_id, following.entry_id - 1)
        if position > self._inner.mark_delete_position:
            self._inner.mark_delete(position)

    def mark_delete(self, position: Position, properties: Mapping[str, int] | None = None) -> None:
        """Everything up to *position* is acknowledged, and so is what compaction left out behind it (rule 4)."""
        self._inner.mark_delete(position, properties)
        if self.durable and self._is_compacted:
            del self._unacknowledged[: bisect_right(self._unacknowledged, position)]
            self._looked_up_to = max(self._looked_up_to, _position_after(position))
            self._consume_left_out()

    def delete(self, positions: Iterable[Position]) -> None:
        """Acknowledge *positions*; entries that compaction has left out before each of them are consumed with it (rule
        4)."""
        if not self._unacknowledged:
            self._inner.delete(positions)
            return
        first, left_out = self._unacknowledged[0], []
        for position in positions:
            index = bisect_left(self._unacknowledged, position)
            if index == len(self._unacknowledged) or self._unacknowledged[index] != position:
                left_out.append(position)
                continue
            del self._unacknowledged[index]
            if index:  # rule 4; what stands before the first one is consumed below
                position_before = self._unacknowledged[index - 1]
                begins = position_before.entry_id + 1 if position_before.ledger_id == position.ledger_id else 0
                self._inner.delete_run(position.ledger_id, begins, position.entry_id)
        if not self._unacknowledged or self._unacknowledged[0] != first:
            self._consume_left_out()
        if left_out:
            self._inner.delete(left_out)

    def acknowledge_batch(self, position: Position, ack_set: Sequence[int], batch_size: int) -> bool:
        is_done = self._inner.acknowledge_batch(position, ack_set, batch_size)
        if is_done:
            self.delete([position])
        return is_done

    def delete_run(self, ledger_id: int, first: int, last: int) -> None:
        self._inner.delete_run(ledger_id, first, last)

    def leave_trimmed(self) -> None:
        self._inner.leave_trimmed()

    # -------------------------------------------------------------------------------- the topic's own

    def unread(self) -> int:
        return self._inner.unread()

    def read_again(self, first: Position, max_entries: int, max_bytes: int) -> Entries | Awaitable[Entries]:
        return self._inner.read_again(first, max_entries, max_bytes)

    def batch_ack_set(self, position: Position) -> list[int] | None:
        return self._inner.batch_ack_set(position)

    def is_deleted(self, position: Position) -> bool:
        return self._inner.is_deleted(position)

    def backlog(self) -> int:
        return self._inner.backlog()


def _position_after(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)
