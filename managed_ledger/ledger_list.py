"""The ledgers of a topic as one endless sequence of positions. No IO.

    5:0 … 5:99 │ 9:0 … 9:49 │ 12:0 … 12:6 ·      12 is open: 12:6 is the last confirmed entry

Ids grow. All ledgers but the last are closed and have a final number of entries; the last one grows. A position that
names a trimmed ledger, or an entry behind the end of a ledger, means the next entry that exists.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from managed_ledger.errors import InvalidPosition
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.records.records_pb2 import ManagedLedgerInfo


class LedgerList:
    """Ordered ledgers with their numbers of entries; the arithmetic of positions."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._infos: dict[int, ManagedLedgerInfo.LedgerInfo] = {}
        self._entries: dict[int, int] = {}
        self._removed_ms = 0
        """When the last ledger was closed that was removed from the beginning."""

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._infos

    def __iter__(self) -> Iterator[ManagedLedgerInfo.LedgerInfo]:
        return iter([self._infos[ledger_id] for ledger_id in self._ids])

    def oldest_first(self) -> Iterator[ManagedLedgerInfo.LedgerInfo]:
        """As they are now, for callers that stop early, and let nothing change meanwhile."""
        return map(self._infos.__getitem__, self._ids)

    @property
    def last_id(self) -> int:
        """The last ledger; -1: there is none."""
        return self._ids[-1] if self._ids else -1

    def info(self, ledger_id: int) -> ManagedLedgerInfo.LedgerInfo:
        return self._infos[ledger_id]

    def add(self, info: ManagedLedgerInfo.LedgerInfo) -> None:
        """Append a ledger; its id is greater than all earlier ones."""
        assert not self._ids or info.ledgerId > self._ids[-1], (info.ledgerId, self._ids[-1:])
        self._ids.append(info.ledgerId)
        self._infos[info.ledgerId] = info
        self._entries[info.ledgerId] = info.entries

    def replace(self, infos: Iterable[ManagedLedgerInfo.LedgerInfo]) -> None:
        """Begin anew with these ledgers, oldest first."""
        self._ids.clear()
        self._infos.clear()
        self._entries.clear()
        for info in infos:
            self.add(info)

    def remove(self, ledger_id: int) -> None:
        if ledger_id == self._ids[0]:
            self._removed_ms = max(self._removed_ms, self._infos[ledger_id].timestamp)
        self._ids.remove(ledger_id)
        del self._infos[ledger_id], self._entries[ledger_id]

    def set_entries(self, ledger_id: int, entries: int) -> None:
        """The number of confirmed entries of the open ledger (or of one that was just closed)."""
        assert ledger_id in self._infos, f"ledger {ledger_id} is not in the list"
        assert entries >= 0, (ledger_id, entries)
        self._entries[ledger_id] = entries

    def closed_ms(self, ledger_id: int) -> int:
        """When a ledger was closed, in milliseconds since 1970; 0 for one that is open, or not there."""
        info = self._infos.get(ledger_id)
        return 0 if info is None else info.timestamp

    def closed_before_ms(self, ledger_id: int) -> int:
        """When the ledger before this one was closed, so that no entry of this one is older; 0: it is not known."""
        index = bisect_left(self._ids, ledger_id)
        return self._infos[self._ids[index - 1]].timestamp if index else self._removed_ms

    def entries_of(self, ledger_id: int) -> int:
        return self._entries.get(ledger_id, 0)

    @property
    def entries_total(self) -> int:
        return sum(self._entries.values())

    @property
    def last_confirmed(self) -> Position:
        """The last entry; entry -1 of the last ledger if the topic has no entries."""
        for ledger_id in reversed(self._ids):
            entries = self._entries[ledger_id]
            if entries:
                return Position(ledger_id, entries - 1)
        return Position(self._ids[-1], -1) if self._ids else Position(-1, -1)

    @property
    def first_position(self) -> Position:
        """The first entry; in an empty topic, the position that it will have."""
        return self.ceiling(Position(-1, -1))

    @property
    def start(self) -> Position:
        """The mark-delete position of a cursor that has consumed nothing: before the first ledger's first entry."""
        return Position(self._ids[0], -1) if self._ids else Position(-1, -1)

    def ceiling(self, position: Position) -> Position:
        """*position* if that entry exists, else the next one that does, else the place behind the end."""
        index = bisect_left(self._ids, position.ledger_id)
        entry_id = max(position.entry_id, 0)
        while index < len(self._ids):
            ledger_id = self._ids[index]
            if ledger_id != position.ledger_id:
                entry_id = 0
            if entry_id < self._entries[ledger_id]:
                return Position(ledger_id, entry_id)
            index += 1
        if not self._ids:
            return Position(max(position.ledger_id, 0), 0)
        return Position(self._ids[-1], self._entries[self._ids[-1]])

    def next_position(self, position: Position) -> Position:
        """The first position after *position*: an entry, or the place behind the end."""
        return self.ceiling(Position(position.ledger_id, position.entry_id + 1))

    def previous_position(self, position: Position) -> Position:
        """The last entry before *position*; before the very first one, entry -1 of the first ledger."""
        index = bisect_right(self._ids, position.ledger_id) - 1
        while index >= 0:
            ledger_id = self._ids[index]
            last = self._entries[ledger_id] - 1
            if ledger_id == position.ledger_id:
                last = min(last, position.entry_id - 1)
            if last >= 0:
                return Position(ledger_id, last)
            index -= 1
        return self.start

    def mark_delete_before(self, start: Position, *, keeps_trimmed: bool = False) -> Position:
        """The mark-delete position of a cursor that reads *start* first, EARLIEST and LATEST included.

        *keeps_trimmed*: entries of ledgers that were trimmed are in a compacted ledger, so it may stand before them.
        """
        if start == LATEST or start > self.last_confirmed:
            return self.last_confirmed
        if start > EARLIEST and start >= self.first_position:
            return self.previous_position(start)
        if not keeps_trimmed:
            return self.start
        return EARLIEST if start <= EARLIEST else min(Position(start.ledger_id, max(start.entry_id, 0) - 1), self.start)

    def floor(self, position: Position) -> Position:
        """*position* if there is such an entry, else the last one before it.

        Entry -1 of an existing ledger is returned as it is; it means everything before that ledger.
        """
        entries = self._entries.get(position.ledger_id)
        if entries is None:
            return self.previous_position(position)
        return position if position.entry_id < entries else Position(position.ledger_id, entries - 1)

    def check_within(self, position: Position) -> None:
        """Raises InvalidPosition for a position beyond the end: a later ledger, or an unconfirmed entry."""
        last = self.last_confirmed
        newest = self._ids[-1] if self._ids else -1
        if position.ledger_id > newest or (position > last and position.entry_id >= 0):
            raise InvalidPosition(f"{position} is beyond the end of the topic, which is {last}")

    def entries_up_to(self, position: Position) -> int:
        """How many entries are at or before *position*."""
        count = 0
        for ledger_id in self._ids:
            if ledger_id > position.ledger_id:
                break
            entries = self._entries[ledger_id]
            if ledger_id == position.ledger_id:
                entries = max(min(entries, position.entry_id + 1), 0)
            count += entries
        return count

    def entries_between(self, after: Position, up_to: Position) -> int:
        """How many entries come after *after*, up to and including *up_to*."""
        return max(self.entries_up_to(up_to) - self.entries_up_to(after), 0)

    def position_at(self, index: int) -> Position:
        """The position of entry number *index* (from 0) of the topic; behind the end if there are fewer."""
        for ledger_id in self._ids:
            entries = self._entries[ledger_id]
            if index < entries:
                return Position(ledger_id, index)
            index -= entries
        return self.ceiling(Position(2**63 - 1, 0))
