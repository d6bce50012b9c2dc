"""A cursor that reads what compaction kept of a topic, up to the horizon, and the topic from there on. No IO.

    position ──▶ at or before the horizon ──▶ compacted ledger ──▶ nothing more ──▶ behind the horizon ──▶ topic

Rules:

1. Positions are those of the topic, so acknowledgements, seeks and redelivery go to the topic's own cursor.
2. A reader goes on by its position when another compaction has ended meanwhile: what is behind it in the new compacted
   ledger, it has not read; what is missing there, it has read, or it has a later message (R-M20).
3. Entries of the topic that were trimmed may still be in the compacted ledger. The topic's cursor cannot stand there,
   so this one remembers where it is.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from broker.topic.ports import CursorPort, Entries
from managed_ledger.position import EARLIEST, LATEST, Position


class CompactedRun(NamedTuple):
    """Entries of a compacted ledger, and the last position of the topic that it stands for."""

    entries: Entries
    horizon: Position


class CompactedView(Protocol):
    """What compaction kept of a topic (`broker.topic.compactor.Compactor`)."""

    @property
    def horizon(self) -> Position | None:
        """The last position that was looked at; None: the topic was never compacted."""
        ...

    async def read_compacted(self, first: Position, max_entries: int, max_bytes: int) -> CompactedRun:
        """Entries at *first* and behind it; none: there are no more of them up to the horizon."""
        ...


class CompactedCursor:
    """Implements `CursorPort`."""

    def __init__(
        self, inner: CursorPort, view: CompactedView, is_on: Callable[[], bool], start: Position | None
    ) -> None:
        """*is_on*: whether the consumer that is being served wants this. *start*: where a new cursor begins; None: it
        goes on where it is."""
        self.name = inner.name
        self._inner = inner
        self._view = view
        self._is_on = is_on
        self._start = start
        self._began_at = inner.mark_delete_position
        self._at: Position | None = start
        """The next position in the compacted ledger; None: where the topic's cursor is."""
        self._reads_valid = 0

    @property
    def durable(self) -> bool:
        return self._inner.durable

    @property
    def mark_delete_position(self) -> Position:
        return self._inner.mark_delete_position

    @property
    def read_position(self) -> Position:
        if self._at is None or not self._is_on():
            return self._inner.read_position
        return self._at

    @property
    def range_count(self) -> int:
        return self._inner.range_count

    @property
    def properties(self) -> Mapping[str, int]:
        return self._inner.properties

    def has_more(self) -> bool:
        return self._inner.has_more() or self._is_in_compacted()

    def _is_in_compacted(self) -> bool:
        horizon = self._view.horizon
        return horizon is not None and self._is_on() and self.read_position <= horizon

    def read(self, max_entries: int, max_bytes: int) -> Entries | Awaitable[Entries]:
        if not self._is_in_compacted():
            self._at = None
            return self._inner.read(max_entries, max_bytes)
        return self._read_compacted(self.read_position, max_entries, max_bytes, self._reads_valid)

    async def _read_compacted(self, at: Position, max_entries: int, max_bytes: int, valid: int) -> Entries:
        while True:
            run = await self._view.read_compacted(at, max_entries, max_bytes)
            if valid != self._reads_valid:
                return []
            last = run.entries[-1].position if run.entries else run.horizon
            is_end = last >= run.horizon
            if is_end:
                self._at = None
                self._inner.moved_past(last)
            else:
                self._at = at = Position(last.ledger_id, last.entry_id + 1)
            open_entries = [entry for entry in run.entries if not self._is_done(entry.position)]
            if open_entries:
                return open_entries
            if is_end:
                more = self._inner.read(max_entries, max_bytes)
                return more if isinstance(more, Sequence) else await more

    def moved_past(self, position: Position) -> None:
        self._at = None
        self._inner.moved_past(position)

    def _is_done(self, position: Position) -> bool:
        if position <= self._began_at and self._is_at_start:
            return False  # trimmed entries (rule 3): for the topic's cursor they are consumed
        return self._inner.is_deleted(position)

    @property
    def _is_at_start(self) -> bool:
        """Nothing was acknowledged since it began."""
        return self._start is not None and self._inner.mark_delete_position == self._began_at

    def rewind(self) -> None:
        self._reads_valid += 1
        self._inner.rewind()
        self._at = self._start if self._is_at_start else None  # rule 3

    async def reset(self, position: Position) -> None:
        self._reads_valid += 1
        await self._inner.reset(position)
        self._start = self._at = None if position == LATEST else position
        self._began_at = self._inner.mark_delete_position

    # -------------------------------------------------------------------------------- the topic's own

    def unread(self) -> int:
        return self._inner.unread()

    def read_again(self, first: Position, max_entries: int, max_bytes: int) -> Entries | Awaitable[Entries]:
        return self._inner.read_again(first, max_entries, max_bytes)

    def mark_delete(self, position: Position, properties: Mapping[str, int] | None = None) -> None:
        self._inner.mark_delete(position, properties)

    def delete(self, positions: Iterable[Position]) -> None:
        self._inner.delete(positions)

    def acknowledge_batch(self, position: Position, ack_set: Sequence[int], batch_size: int) -> bool:
        return self._inner.acknowledge_batch(position, ack_set, batch_size)

    def batch_ack_set(self, position: Position) -> list[int] | None:
        return self._inner.batch_ack_set(position)

    def is_deleted(self, position: Position) -> bool:
        return self._inner.is_deleted(position)

    def backlog(self) -> int:
        return self._inner.backlog()


def start_of(position: Position) -> Position | None:
    """Where a new cursor begins in the compacted ledger; None: behind everything."""
    return None if position == LATEST else max(position, EARLIEST)
