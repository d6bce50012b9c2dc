"""The positions of one cursor: what is acknowledged, what is read next. No IO.

    consumed          individually acknowledged
    ███████████████···██·████···········       █ done   · open
                  ▲  ▲                 ▲
       mark_delete   read (next to be read)   last confirmed

Rules the code below keeps:

1. Everything at or before `mark_delete_position` is consumed. It moves on over entries that were acknowledged one by
   one as soon as they are contiguous, also across the end of a ledger, and never back except by `reset`.
2. `read_position` is after `mark_delete_position`; `rewind` sets it to the first open entry.
3. A batch entry of which all indexes are acknowledged is an acknowledged entry.
4. `mark_delete_position` names an existing entry, or entry -1 of a ledger; never one beyond the end. Positions from
   clients are checked and brought to that form here, before anything is changed or stored.
5. Entries of ledgers that were trimmed may still be in a compacted ledger. A cursor that has not consumed them stands
   before the ledgers that are left, and what it acknowledges there is kept as elsewhere. Which entries there are is not
   known here, so it does not move on to the ledgers by itself: the caller says when (`mark_delete`, `leave_trimmed`).

How such a place is stored (Apache's brokers take entry -1 for "nothing consumed"):

    L:-1                       nothing is consumed, of the compacted ledger neither
    L:-1 and CONSUMED_BEFORE   everything before ledger L is consumed
    L:E, L was trimmed         what the compacted ledger has behind L:E may be open
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from managed_ledger.ack_ranges import AckRange, AckRanges, mask_of, words_of
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import EARLIEST, Position

# Batches of which a part is acknowledged. All of them are stored whenever the cursor is, once a second.
# (managedLedgerMaxBatchDeletedIndexToPersist)
PARTIAL_BATCHES_MAX: Final = 10_000

# Runs of acknowledged entries in trimmed ledgers (rule 5): whether there are such entries is not known here.
TRIMMED_RANGES_MAX: Final = 100_000

CONSUMED_BEFORE: Final = "compacted.consumed.before"
"""The number of a stored cursor with the ledger before which everything is consumed."""


class _Batches:
    """Position → bits of the indexes that remain. In order: what is consumed is at the front, so a step of the cursor
    costs as much with ten thousand batches as with one."""

    __slots__ = ("_masks", "_order")

    def __init__(self) -> None:
        self._masks: dict[Position, int] = {}
        self._order: list[Position] = []

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, position: Position) -> bool:
        return position in self._masks

    def get(self, position: Position) -> int | None:
        return self._masks.get(position)

    def items(self) -> Iterator[tuple[Position, int]]:
        assert len(self._masks) == len(self._order), "each batch has one place in the order"
        return ((position, self._masks[position]) for position in self._order)

    def put(self, position: Position, mask: int) -> None:
        if position not in self._masks:
            insort(self._order, position)
        self._masks[position] = mask

    def discard(self, position: Position) -> None:
        if self._masks.pop(position, None) is not None:
            del self._order[bisect_left(self._order, position)]

    def discard_run(self, first: Position, last: Position) -> None:
        """Drop those from *first* to *last*, both included."""
        begin, end = bisect_left(self._order, first), bisect_right(self._order, last)
        for position in self._order[begin:end]:
            del self._masks[position]
        del self._order[begin:end]

    def discard_up_to(self, position: Position) -> None:
        if self._order and self._order[0] <= position:
            self.discard_run(self._order[0], position)

    def clear(self) -> None:
        self._masks.clear()
        self._order.clear()


class CursorState:
    """The positions of one cursor over one list of ledgers."""

    def __init__(self, ledgers: LedgerList, mark_delete_position: Position) -> None:
        self._ledgers = ledgers
        self._start = ledgers.start
        """What stands before it was trimmed."""
        self._ranges = AckRanges()
        self._batches = _Batches()
        self.mark_delete_position = mark_delete_position
        self.read_position = ledgers.next_position(mark_delete_position)
        self.properties: dict[str, int] = {}
        self.idle_since_ms = 0
        """Since when no consumer is attached, ms since 1970; 0 while there are some."""
        self.version = 0  # grows with every change that is worth storing

    # ------------------------------------------------------------------------------------ state

    def restore(
        self,
        ranges: Iterable[AckRange],
        batches: Iterable[tuple[Position, Sequence[int]]],
        properties: Iterable[tuple[str, int]],
    ) -> None:
        """Take over a stored state. Ranges and batches outside the existing ledgers are left out, but for rule 5."""
        for item in ranges:
            if item.ledger_id in self._ledgers:
                last = min(item.last, self._ledgers.entries_of(item.ledger_id) - 1)
                if item.first <= last:
                    self._ranges.add(item.ledger_id, item.first, last)
            elif self._is_trimmed(Position(item.ledger_id, item.last)):
                self._ranges.add(item.ledger_id, item.first, item.last)
        self._ranges.remove_up_to(self.mark_delete_position)
        for position, words in batches:
            if position > self.mark_delete_position and self._exists(position):
                self._batches.put(position, mask_of(words))
        self.properties.update(properties)
        self._advance()
        self.rewind()

    def ranges(self) -> Iterator[AckRange]:
        return iter(self._ranges)

    def batches(self) -> Iterator[tuple[Position, list[int]]]:
        for position, mask in self._batches.items():
            yield position, words_of(mask)

    @property
    def range_count(self) -> int:
        return len(self._ranges)

    def is_deleted(self, position: Position) -> bool:
        """Whether *position* is consumed: cumulatively or individually."""
        return position <= self.mark_delete_position or position in self._ranges

    def batch_ack_set(self, position: Position) -> list[int] | None:
        """The words of the indexes that remain of a partly acknowledged batch; None if all of them do."""
        mask = self._batches.get(position)
        return None if mask is None else words_of(mask)

    def entries_of(self, ledger_id: int) -> int:
        """Confirmed entries of a ledger; 0 if the topic does not have it."""
        return self._ledgers.entries_of(ledger_id)

    def has_more(self) -> bool:
        """Whether an entry stands at or after the read position."""
        return self.read_position <= self._ledgers.last_confirmed

    def backlog(self) -> int:
        """Entries that are not consumed."""
        last = self._ledgers.last_confirmed
        open_entries = self._ledgers.entries_between(self.mark_delete_position, last)
        acknowledged = self._ranges.count_up_to(last)
        if self.mark_delete_position < self._start:
            acknowledged -= self._ranges.count_up_to(self._start)
        return max(open_entries - acknowledged, 0)

    def unread(self) -> int:
        """Entries at and after the read position."""
        last_read = Position(self.read_position.ledger_id, self.read_position.entry_id - 1)
        return self._ledgers.entries_between(last_read, self._ledgers.last_confirmed)

    def _is_trimmed(self, position: Position) -> bool:
        """Whether *position* is in ledgers that were trimmed, behind what is consumed (rule 5)."""
        return self.mark_delete_position < position < self._start

    def _exists(self, position: Position) -> bool:
        """Whether there is such an entry; in a compacted ledger there may be."""
        if position.entry_id < 0:
            return False
        return position.entry_id < self._ledgers.entries_of(position.ledger_id) or self._is_trimmed(position)

    # ---------------------------------------------------------------------------------- changes

    def mark_delete(self, position: Position, properties: dict[str, int] | None = None) -> bool:
        """Consume everything up to *position*; False if that changes nothing.

        An entry behind the end of an older ledger means all of that ledger. Entry -1 means everything before the
        ledger, and nothing of it. Raises InvalidPosition beyond the end of the topic; nothing changes then.
        """
        self._ledgers.check_within(position)
        if max(position, self.mark_delete_position) >= self._start:  # else rule 5
            position = min(self._ledgers.floor(position), self._ledgers.last_confirmed)
        if properties is not None:
            self.properties = dict(properties)
            self.version += 1
        if position <= self.mark_delete_position:
            return False
        self.mark_delete_position = position
        self._after_mark_delete()
        return True

    def delete(self, positions: Iterable[Position]) -> bool:
        """Consume single entries; False if that changes nothing."""
        changed = False
        for position in positions:
            if position <= self.mark_delete_position or position in self._ranges:
                continue
            if not self._exists(position):
                continue  # an entry that does not exist (any more): nothing to consume
            if position < self._start and len(self._ranges) >= TRIMMED_RANGES_MAX:
                continue
            self._ranges.add(position.ledger_id, position.entry_id, position.entry_id)
            self._batches.discard(position)
            changed = True
        if changed:
            self.version += 1
            self._advance()
        return changed

    def pass_over(self, ledger_id: int, first: int, last: int) -> int:
        """Consume entries *first* to *last* of a ledger; how many of them were not consumed yet."""
        former_backlog = self.backlog()
        self.delete_run(ledger_id, first, min(last, self._ledgers.entries_of(ledger_id) - 1))
        passed_entries = former_backlog - self.backlog()
        assert passed_entries >= 0, "passing over entries never adds to the backlog"
        return passed_entries

    def delete_run(self, ledger_id: int, first: int, last: int) -> None:
        """Consume entries *first* to *last* of a ledger, of which it has the last one."""
        if self.mark_delete_position.ledger_id == ledger_id:
            first = max(first, self.mark_delete_position.entry_id + 1)
        if first > last or self.mark_delete_position.ledger_id > ledger_id:
            return
        assert self._exists(Position(ledger_id, last)), f"{ledger_id}:{last} is not in the topic"
        self._ranges.add(ledger_id, first, last)
        self._batches.discard_run(Position(ledger_id, first), Position(ledger_id, last))
        self.version += 1
        self._advance()

    def leave_trimmed(self) -> bool:
        """What only a compacted ledger has will not be read (rule 5); False if that changes nothing."""
        if self.mark_delete_position >= self._start:
            return False
        self.mark_delete_position = self._start
        self._after_mark_delete()
        return True

    def acknowledge_batch(self, position: Position, ack_set: Sequence[int], batch_size: int) -> bool:
        """Keep only the indexes of *ack_set* (set bits are open); True when the entry became consumed.

        With PARTIAL_BATCHES_MAX partly acknowledged batches, further ones are acknowledged only as a whole.
        """
        if self.is_deleted(position) or not self._exists(position):
            return False
        everything = (1 << batch_size) - 1
        former_mask = self._batches.get(position)
        remaining = (everything if former_mask is None else former_mask) & mask_of(ack_set) & everything
        if remaining == 0:
            return self.delete([position])
        if former_mask is None and len(self._batches) >= PARTIAL_BATCHES_MAX:
            return False
        self._batches.put(position, remaining)
        self.version += 1
        return False

    def rewind(self) -> None:
        """Read again from the first entry that is not consumed."""
        self.read_position = self._ledgers.next_position(self.mark_delete_position)

    def mark_delete_before(self, start: Position, *, keeps_trimmed: bool) -> Position:
        """The mark-delete position of a cursor that reads *start* first (`LedgerList.mark_delete_before`)."""
        return self._ledgers.mark_delete_before(start, keeps_trimmed=keeps_trimmed)

    def reset(self, position: Position, *, keeps_trimmed: bool = False) -> None:
        """Go to *position*, the next entry to be read, forgetting what was acknowledged after it."""
        self._ranges.clear()
        self._batches.clear()
        self.mark_delete_position = self.mark_delete_before(position, keeps_trimmed=keeps_trimmed)
        self.rewind()
        self.version += 1

    def moved_past(self, position: Position) -> None:
        """Everything up to *position* has been read."""
        self.read_position = self._ledgers.next_position(position)

    def skip_deleted(self) -> None:
        """Move the read position over entries that are consumed."""
        while True:
            if self.read_position <= self.mark_delete_position:
                self.read_position = self._ledgers.next_position(self.mark_delete_position)
            last = self._ranges.run_from(self.read_position)
            if last is None:
                return
            self.read_position = self._ledgers.next_position(Position(self.read_position.ledger_id, last))

    def ledgers_changed(self) -> None:
        """Ledgers were trimmed or removed: positions inside them mean the next one that exists.

        A cursor that stood before the ledgers stays there: what it has open was trimmed before (rule 5).
        """
        former_start, self._start = self._start, self._ledgers.start
        assert former_start <= self._start, "the beginning of a topic never moves back"
        if former_start <= self.mark_delete_position < self._start:
            self.mark_delete_position = self._start
            self._after_mark_delete()
        self.read_position = self._ledgers.ceiling(self.read_position)

    def _after_mark_delete(self) -> None:
        self._ranges.remove_up_to(self.mark_delete_position)
        self.version += 1
        self._advance()

    def _advance(self) -> None:
        """Move `mark_delete_position` on over entries that were acknowledged one by one (rule 1); a cursor that stands
        before the ledgers stays there (rule 5)."""
        moved = False
        while self._ranges and self.mark_delete_position >= self._start:
            following = self._ledgers.next_position(self.mark_delete_position)
            last = self._ranges.run_from(following)
            if last is None:
                break
            self.mark_delete_position = Position(following.ledger_id, last)
            self._ranges.remove_up_to(self.mark_delete_position)
            moved = True
        self._batches.discard_up_to(self.mark_delete_position)
        if self.read_position <= self.mark_delete_position:  # rule 2
            self.read_position = self._ledgers.next_position(self.mark_delete_position)
        # Rule 4. A ledger that was trimmed may be named until `ledgers_changed`.
        assert self.mark_delete_position.entry_id >= -1
        assert self.mark_delete_position <= max(self._ledgers.last_confirmed, self._ledgers.start)
        if moved:
            self.version += 1


def stored_place(position: Position, start: Position) -> tuple[Position, dict[str, int]]:
    """How *position* is stored where a compacted ledger may have what was trimmed; *start*: of the ledgers left."""
    if position == EARLIEST:
        return start, {}
    return position, {CONSUMED_BEFORE: position.ledger_id} if position.entry_id < 0 else {}


def place_of(stored: Position, properties: Mapping[str, int], start: Position) -> Position:
    """The position that `stored_place` made this of."""
    is_whole = stored.entry_id < 0 and stored.ledger_id <= start.ledger_id
    return EARLIEST if is_whole and properties.get(CONSUMED_BEFORE) != stored.ledger_id else stored
