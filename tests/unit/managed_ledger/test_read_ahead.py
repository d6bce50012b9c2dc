"""What a cursor reads before it is asked: the same entries in the same order, sooner, and within its limits."""

import gc
import weakref
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar_core.runtime.types import KIB, MIB
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.errors import StorageUnavailable
from managed_ledger.position import EARLIEST, Position
from managed_ledger.read_ahead import STEP_BYTES_MAX, STEP_BYTES_MIN, STEP_ENTRIES_MAX, AheadBudget, ReadAhead
from managed_ledger.reading import Entry, Reading
from managed_ledger.retention import RolloverRule
from tests.support.waiting import settle
from tests.unit.managed_ledger.test_ledger import CONFIG, SharedStorage, payloads, publish, world

__all__ = ["world"]

LONG = replace(CONFIG, rollover=RolloverRule(entries_max=1_000, bytes_max=1 << 30, age_max_ms=1 << 40, age_min_ms=0))


class Asked(Reading):
    """Entries of one endless ledger of 100 entries each; what is asked of the bookies is answered by `answer`."""

    def __init__(self, size_bytes: int = KIB) -> None:
        self.size_bytes = size_bytes
        self.asked: list[tuple[int, int, int]] = []
        self.in_memory_from = 1 << 40
        self.failure: StorageUnavailable | None = None

    def ceiling(self, position: Position) -> Position:
        ledger_id, entry_id = position
        return position if entry_id < 100 else Position(ledger_id + 1, 0)

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        count = max(min(max_entries, max_bytes // self.size_bytes, 100 - first.entry_id), 1)
        found = [Entry(first.ledger_id, first.entry_id + n, bytes(self.size_bytes)) for n in range(count)]
        if first.entry_id >= self.in_memory_from:
            return found
        self.asked.append((first.entry_id, max_entries, max_bytes))
        return self._cold(found)

    async def _cold(self, found: Sequence[Entry]) -> Sequence[Entry]:
        if self.failure is not None:
            raise self.failure
        return found


async def taken(ahead: ReadAhead, first: int, max_entries: int = 4, max_bytes: int = MIB, ledger_id: int = 0) -> Any:
    found = ahead.read(Position(ledger_id, first), max_entries, max_bytes)
    entries = found if isinstance(found, Sequence) else await found
    return [entry.entry_id for entry in entries]


async def test_from_the_third_read_on_entries_are_there_at_once(world: SharedStorage) -> None:
    world.cache_bytes_max = 0
    ledger, _ = await world.open()  # ledgers of ten entries
    await publish(ledger, 0, 200)
    cursor = await ledger.open_cursor("s", EARLIEST)
    before, data, at_once = world.bookkeeper.reads, list[bytes](), 0
    while cursor.has_more():
        found = cursor.read(2, MIB)
        at_once += isinstance(found, Sequence)
        data += [bytes(entry.data) for entry in (found if isinstance(found, Sequence) else await found)]
        await settle()
    assert data == payloads(0, 200)
    assert at_once == 98, "all reads of two entries but the first two"
    assert world.bookkeeper.reads - before < 50, "a step takes all of a ledger"


async def test_what_is_on_its_way_is_waited_for(world: SharedStorage) -> None:
    world.cache_bytes_max = 0
    ledger, _ = await world.open(LONG)
    await publish(ledger, 0, 300)
    cursor = await ledger.open_cursor("s", EARLIEST)
    data = list[bytes]()
    while cursor.has_more():  # never a turn of the loop between two reads
        found = cursor.read(7, MIB)
        data += [bytes(entry.data) for entry in (found if isinstance(found, Sequence) else await found)]
    assert data == payloads(0, 300)


async def test_a_rewind_and_a_seek_begin_anew(world: SharedStorage) -> None:
    world.cache_bytes_max = 0
    ledger, _ = await world.open(LONG)
    await publish(ledger, 0, 100)
    cursor = await ledger.open_cursor("s", EARLIEST)
    first = ledger.first_position

    async def drain() -> list[bytes]:
        found = list[bytes]()
        while cursor.has_more():
            answer = cursor.read(3, MIB)
            found += [bytes(entry.data) for entry in (answer if isinstance(answer, Sequence) else await answer)]
            await settle()
        return found

    for _ in range(4):
        answer = cursor.read(3, MIB)
        assert isinstance(answer, Sequence) or await answer
        await settle()
    cursor.rewind()
    assert await drain() == payloads(0, 100)
    await cursor.reset(Position(first.ledger_id, 50))
    assert await drain() == payloads(50, 100)
    cursor.rewind()
    cursor.delete([Position(first.ledger_id, number) for number in range(60, 90)])
    assert await drain() == payloads(50, 60) + payloads(90, 100), "acknowledged ones are not delivered"


async def test_a_step_that_fails_is_not_told_and_the_next_read_is() -> None:
    reading = Asked()
    ahead = ReadAhead(reading, AheadBudget())
    assert await taken(ahead, 0) == [0, 1, 2, 3]
    reading.failure = StorageUnavailable("away")
    with pytest.raises(StorageUnavailable, match="away"):
        await taken(ahead, 4)
    reading.failure = None
    assert await taken(ahead, 4) == [4, 5, 6, 7]
    reading.failure = StorageUnavailable("away")
    await settle()  # the step fails
    with pytest.raises(StorageUnavailable, match="away"):
        await taken(ahead, 8)
    reading.failure = None
    assert await taken(ahead, 8) == [8, 9, 10, 11]


async def test_nothing_is_read_ahead_of_a_first_read_or_of_one_elsewhere() -> None:
    reading = Asked()
    ahead = ReadAhead(reading, AheadBudget())
    for first in (0, 50, 20):
        await taken(ahead, first)
        await settle()
    assert [first for first, *_ in reading.asked] == [0, 50, 20]
    await taken(ahead, 24)
    assert [first for first, *_ in reading.asked] == [0, 50, 20, 24, 28]


async def test_nothing_is_read_ahead_of_what_memory_has() -> None:
    reading = Asked()
    reading.in_memory_from = 8
    budget = AheadBudget()
    ahead = ReadAhead(reading, budget)
    for first in range(0, 40, 4):
        assert await taken(ahead, first) == list(range(first, first + 4))
        await settle()
    assert [first for first, *_ in reading.asked] == [0, 4]
    assert budget.bytes_used == 0


@pytest.mark.parametrize(
    ("size_bytes", "step_bytes"),
    [(10, STEP_BYTES_MIN), (50 * KIB, 400 * KIB), (5 * MIB, STEP_BYTES_MAX)],
)
async def test_a_step_is_twice_what_was_taken_within_limits(size_bytes: int, step_bytes: int) -> None:
    reading = Asked(size_bytes)
    ahead = ReadAhead(reading, AheadBudget())
    await taken(ahead, 0, max_bytes=64 * MIB)
    await taken(ahead, 4, max_bytes=64 * MIB)
    assert reading.asked[2:] == [(8, STEP_ENTRIES_MAX, step_bytes)]


async def test_a_read_ends_with_its_ledger_and_its_bytes() -> None:
    reading = Asked()
    ahead = ReadAhead(reading, AheadBudget())
    await taken(ahead, 80)
    await taken(ahead, 84)
    await settle()
    assert await taken(ahead, 88, max_entries=20) == list(range(88, 100)), "not on into the next ledger"
    await settle()
    assert await taken(ahead, 0, max_entries=20, max_bytes=3 * KIB, ledger_id=1) == [0, 1, 2]
    assert await taken(ahead, 3, max_bytes=1, ledger_id=1) == [3], "at least one"


async def test_all_cursors_together_hold_no_more_than_the_budget() -> None:
    budget = AheadBudget(5 * STEP_BYTES_MIN // 2)
    readings = [Asked() for _ in range(3)]
    cursors = [ReadAhead(reading, budget) for reading in readings]
    for ahead in cursors[:2]:
        await taken(ahead, 0)
        await taken(ahead, 4)
        await settle()
    assert budget.bytes_used == 2 * 92 * KIB, "what the steps brought"
    await taken(cursors[2], 0)
    await taken(cursors[2], 4)
    assert budget.bytes_used == 2 * 92 * KIB + STEP_BYTES_MIN, "a step counts whole until it has come"
    for ahead in cursors:
        assert await taken(ahead, 8) == [8, 9, 10, 11]
        await settle()
    assert 0 < budget.bytes_used <= budget.bytes_max
    budget.bytes_max = 300 * KIB
    assert await taken(cursors[2], 12) == [12, 13, 14, 15]
    assert 0 < budget.bytes_used <= budget.bytes_max
    assert 12 not in [first for first, *_ in readings[0].asked]
    assert await taken(cursors[0], 12) == [12, 13, 14, 15]
    assert 12 in [first for first, *_ in readings[0].asked], "it gave up what it held"


async def test_without_a_budget_nothing_is_read_ahead() -> None:
    reading = Asked()
    ahead = ReadAhead(reading, AheadBudget(0))
    for first in range(0, 20, 4):
        await taken(ahead, first)
        await settle()
    assert len(reading.asked) == 5


async def test_a_cursor_that_is_gone_holds_nothing() -> None:
    budget = AheadBudget()
    ahead = ReadAhead(Asked(), budget)
    await taken(ahead, 0)
    await taken(ahead, 4)
    await settle()
    assert budget.bytes_used > 0
    gone = weakref.ref(ahead)
    del ahead
    gc.collect()
    assert gone() is None
    assert budget.bytes_used == 0


async def test_a_closed_cursor_gives_up_what_it_holds(world: SharedStorage) -> None:
    world.cache_bytes_max = 0
    ledger, _ = await world.open(LONG)
    await publish(ledger, 0, 300)
    cursor = await ledger.open_cursor("s", EARLIEST)
    for _ in range(2):
        await read(cursor)
        await settle()
    budget = world.factories[-1].ahead
    assert budget.bytes_used > 0
    await cursor.close()
    assert budget.bytes_used == 0


async def read(cursor: ManagedCursor) -> None:
    found = cursor.read(4, MIB)
    assert isinstance(found, Sequence) or await found
