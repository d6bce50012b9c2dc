"""A cursor that reads compacted, where no ledger is left of the topic. See `tests/simulation/test_compacted_sim.py`."""

from collections.abc import Callable, Sequence

import pytest

from broker.topic.compaction import compacted_view
from broker.topic.compaction.compacted_view import OPEN_MAX, CompactedCursor, CompactedRun
from broker.topic.ports import Entries, EntryLike
from managed_ledger.cursors.cursor import CursorState
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import EARLIEST, Position
from managed_ledger.reading.reading import Entry
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from tests.support.memory_managed_ledger import MemoryCursor, MemoryManagedLedger

HORIZON = Position(9, -1)


class Kept:
    """Every third entry of ledger 5 was kept; ledger 9, which is left, is empty."""

    horizon: Position | None = HORIZON

    def __init__(self, count: int) -> None:
        self.positions = [Position(5, 3 * at) for at in range(count)]
        self.looks: list[tuple[int, int]] = []

    async def read_compacted(self, first: Position, max_entries: int, max_bytes: int) -> CompactedRun:
        self.looks.append((max_entries, max_bytes))
        begin = max(-(-first.entry_id // 3), 0) if first.ledger_id == 5 else 0
        return CompactedRun([Entry(*one, b"") for one in self.positions[begin : begin + max_entries]], HORIZON)

    async def find_first(self, predicate: Callable[[EntryLike], bool]) -> Position | None:
        raise AssertionError("nobody looks for a time")


def cursor_of(kept: Kept, *, durable: bool = True) -> tuple[CompactedCursor, CursorState]:
    ledgers = LedgerList()
    ledgers.add(ManagedLedgerInfo.LedgerInfo(ledgerId=9, entries=0))
    state = CursorState(ledgers, EARLIEST)
    inner = MemoryCursor(MemoryManagedLedger("t"), "s", state, durable)
    return CompactedCursor(inner, kept, lambda: True), state


async def read(cursor: CompactedCursor) -> list[Position]:
    """All that comes now."""
    found: list[Position] = []
    while cursor.has_more():
        some = cursor.read(500, 1 << 20)
        entries: Entries = some if isinstance(some, Sequence) else await some
        found += [entry.position for entry in entries]
    return found


async def test_so_many_open_entries_are_remembered_and_the_others_are_looked_for_later() -> None:
    kept = Kept(3 * OPEN_MAX)
    cursor, state = cursor_of(kept)
    assert await read(cursor) == kept.positions
    assert len(cursor._unacknowledged) == OPEN_MAX
    for at in range(0, len(kept.positions), 1_000):
        cursor.delete(kept.positions[at : at + 1_000])
        assert await read(cursor) == []
        assert len(cursor._unacknowledged) <= OPEN_MAX
        assert state.range_count == 0
    assert state.mark_delete_position == HORIZON
    assert not cursor.has_more()


async def test_a_look_reads_so_many_entries_and_bytes_and_is_worth_it() -> None:
    kept = Kept(3 * OPEN_MAX)
    cursor, _ = cursor_of(kept)
    await read(cursor)
    kept.looks.clear()
    for at in range(0, OPEN_MAX // 2 - 1_000, 1_000):
        cursor.delete(kept.positions[at : at + 1_000])
        await read(cursor)
    assert kept.looks == [], "while most of them are open, the others can wait"
    cursor.delete(kept.positions[: OPEN_MAX // 2])
    await read(cursor)
    assert set(kept.looks) == {(compacted_view._LOOK_ENTRIES, compacted_view._LOOK_BYTES)}
    assert len(kept.looks) == OPEN_MAX // 2 // compacted_view._LOOK_ENTRIES


async def test_of_a_reader_nothing_is_remembered() -> None:
    kept = Kept(100)
    cursor, state = cursor_of(kept, durable=False)
    assert await read(cursor) == kept.positions
    assert cursor._unacknowledged == []
    cursor.mark_delete(kept.positions[40])
    cursor.rewind()
    assert await read(cursor) == kept.positions[41:]
    assert state.mark_delete_position == kept.positions[40]


@pytest.mark.parametrize("behind", [1, 50])
async def test_what_is_acknowledged_behind_an_open_entry_is_one_range(behind: int) -> None:
    """Between entries that were kept are others that were not, and these nobody acknowledges."""
    kept = Kept(100)
    cursor, state = cursor_of(kept)
    await read(cursor)
    for position in (*kept.positions[:behind], *reversed(kept.positions[behind + 1 :])):
        cursor.delete([position])
    assert state.range_count == 1
    cursor.rewind()
    assert await read(cursor) == [kept.positions[behind]]
    cursor.delete([kept.positions[behind]])
    assert (state.mark_delete_position, state.range_count) == (HORIZON, 0)
