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
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from managed_ledger.ack_ranges import AckRange, AckRanges, mask_of, words_of
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import Position

# Batches of which a part is acknowledged. All of them are stored whenever the cursor is, once a second.
# (managedLedgerMaxBatchDeletedIndexToPersist)
PARTIAL_BATCHES_MAX: Final = 10_000


class CursorState:
    """The positions of one cursor over one list of ledgers."""

    def __init__(self, ledgers: LedgerList, mark_delete_position: Position) -> None:
        self._ledgers = ledgers
        self._ranges = AckRanges()
        self._batches: dict[Position, int] = {}  # position → bits of the indexes that remain
        self.mark_delete_position = mark_delete_position
        self.read_position = ledgers.next_position(mark_delete_position)
        self.properties: dict[str, int] = {}
        self.version = 0  # grows with every change that is worth storing

    # ------------------------------------------------------------------------------------ state

    def restore(
        self,
        ranges: Iterable[AckRange],
        batches: Iterable[tuple[Position, Sequence[int]]],
        properties: Iterable[tuple[str, int]],
    ) -> None:
        """Take over a stored state. Ranges and batches outside the existing ledgers are left out."""
        for item in ranges:
            if item.ledger_id in self._ledgers:
                last = min(item.last, self._ledgers.entries_of(item.ledger_id) - 1)
                if item.first <= last:
                    self._ranges.add(item.ledger_id, item.first, last)
        self._ranges.remove_up_to(self.mark_delete_position)
        for position, words in batches:
            exists = 0 <= position.entry_id < self._ledgers.entries_of(position.ledger_id)
            if position > self.mark_delete_position and exists:
                self._batches[position] = mask_of(words)
        self.properties.update(properties)
        self._advance()
        self.rewind()

    def ranges(self) -> Iterator[AckRange]:
        return iter(self._ranges)

    def batches(self) -> Iterator[tuple[Position, list[int]]]:
        for position in sorted(self._batches):
            yield position, words_of(self._batches[position])

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
        return max(open_entries - self._ranges.count_up_to(last), 0)

    def unread(self) -> int:
        """Entries at and after the read position."""
        before = Position(self.read_position.ledger_id, self.read_position.entry_id - 1)
        return self._ledgers.entries_between(before, self._ledgers.last_confirmed)

    # ---------------------------------------------------------------------------------- changes

    def mark_delete(self, position: Position, properties: dict[str, int] | None = None) -> bool:
        """Consume everything up to *position*; False if that changes nothing.

        An entry behind the end of an older ledger means all of that ledger. Entry -1 means everything before the
        ledger, and nothing of it. Raises InvalidPosition beyond the end of the topic; nothing changes then.
        """
        self._ledgers.check_within(position)
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
            if not 0 <= position.entry_id < self._ledgers.entries_of(position.ledger_id):
                continue  # an entry that does not exist (any more): nothing to consume
            self._ranges.add(position.ledger_id, position.entry_id, position.entry_id)
            self._batches.pop(position, None)
            changed = True
        if changed:
            self.version += 1
            self._advance()
        return changed

    def pass_over(self, ledger_id: int, first: int, last: int) -> int:
        """Consume entries *first* to *last* of a ledger; how many of them were not consumed yet."""
        last = min(last, self._ledgers.entries_of(ledger_id) - 1)
        if self.mark_delete_position.ledger_id == ledger_id:
            first = max(first, self.mark_delete_position.entry_id + 1)
        if first > last or self.mark_delete_position.ledger_id > ledger_id:
            return 0
        before = self.backlog()
        self._ranges.add(ledger_id, first, last)
        for position in [one for one in self._batches if one.ledger_id == ledger_id and first <= one.entry_id <= last]:
            del self._batches[position]
        self.version += 1
        passed = before - self.backlog()
        self._advance()
        return passed

    def acknowledge_batch(self, position: Position, ack_set: Sequence[int], batch_size: int) -> bool:
        """Keep only the indexes of *ack_set* (set bits are open); True when the entry became consumed.

        With PARTIAL_BATCHES_MAX partly acknowledged batches, further ones are acknowledged only as a whole.
        """
        if self.is_deleted(position) or not 0 <= position.entry_id < self._ledgers.entries_of(position.ledger_id):
            return False
        everything = (1 << batch_size) - 1
        remaining = self._batches.get(position, everything) & mask_of(ack_set) & everything
        if remaining == 0:
            return self.delete([position])
        if position not in self._batches and len(self._batches) >= PARTIAL_BATCHES_MAX:
            return False
        self._batches[position] = remaining
        self.version += 1
        return False

    def rewind(self) -> None:
        """Read again from the first entry that is not consumed."""
        self.read_position = self._ledgers.next_position(self.mark_delete_position)

    def reset(self, position: Position) -> None:
        """Go to *position*, the next entry to be read, forgetting what was acknowledged after it."""
        position = self._ledgers.ceiling(position)
        self._ranges.clear()
        self._batches.clear()
        self.mark_delete_position = self._ledgers.previous_position(position)
        self.read_position = position
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
        """Ledgers were trimmed or removed: positions inside them mean the next one that exists."""
        start = self._ledgers.start
        if self.mark_delete_position < start:
            self.mark_delete_position = start
            self._after_mark_delete()
        self.read_position = self._ledgers.ceiling(self.read_position)

    def _after_mark_delete(self) -> None:
        self._ranges.remove_up_to(self.mark_delete_position)
        self.version += 1
        self._advance()

    def _advance(self) -> None:
        """Rule 1."""
        moved = False
        while self._ranges:
            following = self._ledgers.next_position(self.mark_delete_position)
            last = self._ranges.run_from(following)
            if last is None:
                break
            self.mark_delete_position = Position(following.ledger_id, last)
            self._ranges.remove_up_to(self.mark_delete_position)
            moved = True
        if self._batches:
            for position in [p for p in self._batches if p <= self.mark_delete_position]:
                del self._batches[position]
        if self.read_position <= self.mark_delete_position:  # rule 2
            self.read_position = self._ledgers.next_position(self.mark_delete_position)
        # Rule 4. A ledger that was trimmed may be named until `ledgers_changed`.
        assert self.mark_delete_position.entry_id >= -1
        assert self.mark_delete_position <= max(self._ledgers.last_confirmed, self._ledgers.start)
        if moved:
            self.version += 1
