"""What a cursor reads before it is asked: the same entries in the same order, sooner, and within its limits."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import KIB, MIB
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.errors import StorageUnavailable
from managed_ledger.position import EARLIEST, Position
from managed_ledger.reading.read_ahead import (
    AHEAD_BYTES_MAX,
    GIVE_UP_AT_ONCE,
    IDLE_S,
    STEP_BYTES_MAX,
    STEP_BYTES_MIN,
    STEP_ENTRIES_MAX,
    AheadBudget,
    ReadAhead,
)
from managed_ledger.reading.reading import Entry, Reading
from managed_ledger.retention import RolloverRule
from tests.support.waiting import take_turns
from tests.unit.managed_ledger.test_ledger import CONFIG, SharedStorage, payloads, publish, world

__all__ = ["world"]

LONG = replace(CONFIG, rollover=RolloverRule(entries_max=1_000, bytes_max=1 << 30, age_max_ms=1 << 40, age_min_ms=0))


class Asked(Reading):
    """Endless ledgers of 100 entries; remembers what the bookies are asked, who answer when `gate` is open."""

    def __init__(self, size_bytes: int = KIB) -> None:
        self.size_bytes = size_bytes
        self.asked: list[tuple[int, int, int]] = []
        self.in_memory_from = 1 << 40
        self.failure: StorageUnavailable | None = None
        self.gate = asyncio.Event()
        self.gate.set()

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
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return found


class Watch(LoopClock):
    """Its time is set."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def budget_of(bytes_max: int = AHEAD_BYTES_MAX) -> AheadBudget:
    return AheadBudget(Watch(), bytes_max)


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
        await take_turns()
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
    first = ledger.ledgers.first_position

    async def drain() -> list[bytes]:
        found = list[bytes]()
        while cursor.has_more():
            answer = cursor.read(3, MIB)
            found += [bytes(entry.data) for entry in (answer if isinstance(answer, Sequence) else await answer)]
            await take_turns()
        return found

    for _ in range(4):
        answer = cursor.read(3, MIB)
        assert isinstance(answer, Sequence) or await answer
        await take_turns()
    cursor.rewind()
    assert await drain() == payloads(0, 100)
    await cursor.reset(Position(first.ledger_id, 50))
    assert await drain() == payloads(50, 100)
    cursor.rewind()
    cursor.delete([Position(first.ledger_id, number) for number in range(60, 90)])
    assert await drain() == payloads(50, 60) + payloads(90, 100), "acknowledged ones are not delivered"


async def test_a_step_that_fails_is_not_told_and_the_next_read_is() -> None:
    reading = Asked()
    ahead = ReadAhead(reading, budget_of())
    assert await taken(ahead, 0) == [0, 1, 2, 3]
    reading.failure = StorageUnavailable("away")
    with pytest.raises(StorageUnavailable, match="away"):
        await taken(ahead, 4)
    reading.failure = None
    assert await taken(ahead, 4) == [4, 5, 6, 7]
    reading.failure = StorageUnavailable("away")
    await take_turns()  # the step fails
    with pytest.raises(StorageUnavailable, match="away"):
        await taken(ahead, 8)
    reading.failure = None
    assert await taken(ahead, 8) == [8, 9, 10, 11]


async def test_nothing_is_read_ahead_of_a_first_read_or_of_one_elsewhere() -> None:
    reading = Asked()
    ahead = ReadAhead(reading, budget_of())
    for first in (0, 50, 20):
        await taken(ahead, first)
        await take_turns()
    assert [first for first, *_ in reading.asked] == [0, 50, 20]
    await taken(ahead, 24)
    assert [first for first, *_ in reading.asked] == [0, 50, 20, 24, 28]


async def test_what_was_acknowledged_is_passed_over_and_the_rest_is_not_read_again() -> None:
    ahead, reading = await begun(budget_of())
    await take_turns()
    before = len(reading.asked)
    assert await taken(ahead, 20) == [20, 21, 22, 23]
    assert await taken(ahead, 31) == [31, 32, 33, 34]
    assert [first for first, *_ in reading.asked[before:]] == [0], "what follows them, in the next ledger"


async def test_nothing_is_read_ahead_of_what_memory_has() -> None:
    reading = Asked()
    reading.in_memory_from = 8
    budget = budget_of()
    ahead = ReadAhead(reading, budget)
    for first in range(0, 40, 4):
        assert await taken(ahead, first) == list(range(first, first + 4))
        await take_turns()
    assert [first for first, *_ in reading.asked] == [0, 4]
    assert budget.bytes_used == 0


@pytest.mark.parametrize(
    ("size_bytes", "step_bytes"),
    [(10, STEP_BYTES_MIN), (50 * KIB, 400 * KIB), (MIB, STEP_BYTES_MAX), (5 * MIB, 5 * MIB)],
)
async def test_a_step_is_twice_what_was_taken_within_limits(size_bytes: int, step_bytes: int) -> None:
    reading = Asked(size_bytes)
    ahead = ReadAhead(reading, budget_of())
    await taken(ahead, 0, max_bytes=64 * MIB)
    await taken(ahead, 4, max_bytes=64 * MIB)
    assert reading.asked[2:] == [(8, STEP_ENTRIES_MAX, step_bytes)]


async def test_a_read_ends_with_its_ledger_and_its_bytes() -> None:
    reading = Asked()
    ahead = ReadAhead(reading, budget_of())
    await taken(ahead, 80)
    await taken(ahead, 84)
    await take_turns()
    assert await taken(ahead, 88, max_entries=20) == list(range(88, 100)), "not on into the next ledger"
    await take_turns()
    assert await taken(ahead, 0, max_entries=20, max_bytes=3 * KIB, ledger_id=1) == [0, 1, 2]
    assert await taken(ahead, 3, max_bytes=1, ledger_id=1) == [3], "at least one"


async def begun(budget: AheadBudget) -> tuple[ReadAhead, Asked]:
    """A cursor that has read twice, so that a step is under way if there is room."""
    reading = Asked()
    ahead = ReadAhead(reading, budget)
    await taken(ahead, 0)
    await taken(ahead, 4)
    return ahead, reading


async def test_all_cursors_together_hold_no_more_than_the_budget() -> None:
    """A thousand consumers that read at the same time, from bookies that are slow."""
    budget = budget_of(8 * STEP_BYTES_MIN)
    cursors = [await begun(budget) for _ in range(5)]
    await take_turns()
    assert budget.bytes_used == 5 * 92 * KIB, "what the steps brought"
    for reading in [reading for _, reading in cursors]:
        reading.gate.clear()
    more = []
    for _ in range(1_000):
        one = await begun(budget)
        one[1].gate.clear()
        more.append(one)
        assert budget.bytes_used <= budget.bytes_max
    assert sum(len(reading.asked) - 2 for _, reading in more) == 6, "a step counts whole while it is under way"
    for ahead, reading in [*cursors, *more]:
        reading.gate.set()
        assert await taken(ahead, 8) == [8, 9, 10, 11], "whether there was room or not"
        assert budget.bytes_used <= budget.bytes_max
    assert all(8 not in [first for first, *_ in reading.asked[3:]] for _, reading in cursors), "nothing is read twice"


async def test_a_step_that_is_not_wanted_any_more_counts_until_it_has_ended() -> None:
    budget = budget_of(STEP_BYTES_MIN)
    ahead, reading = await begun(budget)
    reading.gate.clear()
    ahead.drop()
    assert budget.bytes_used == STEP_BYTES_MIN
    _, other = await begun(budget)
    assert len(other.asked) == 2, "no room"
    reading.gate.set()
    await take_turns()
    assert budget.bytes_used == 0
    await begun(budget)
    assert budget.bytes_used == STEP_BYTES_MIN


async def test_a_cursor_that_asks_no_more_gives_up_what_it_holds_when_others_need_the_room() -> None:
    watch = Watch()
    budget = AheadBudget(watch, STEP_BYTES_MIN)
    idle, reading = await begun(budget)
    await take_turns()
    watch.now_s += IDLE_S / 2
    _, other = await begun(budget)
    assert len(other.asked) == 2, "it may still go on"
    watch.now_s += IDLE_S
    ahead, other = await begun(budget)
    assert len(other.asked) == 3
    assert await taken(idle, 8) == [8, 9, 10, 11]
    assert reading.asked[3:] == [(8, 4, MIB)], "read again"
    await take_turns()
    assert await taken(ahead, 8) == [8, 9, 10, 11]


async def test_so_many_idle_cursors_give_up_theirs_at_once() -> None:
    watch = Watch()
    budget = AheadBudget(watch, 25 * STEP_BYTES_MIN)
    cursors = []
    for _ in range(40):
        cursors.append(await begun(budget))
        await take_turns()
    watch.now_s += IDLE_S
    before = budget.bytes_used
    assert not budget.make_room(25 * STEP_BYTES_MIN)
    assert budget.bytes_used == before - GIVE_UP_AT_ONCE * 92 * KIB


async def test_without_a_budget_nothing_is_read_ahead() -> None:
    reading = Asked()
    ahead = ReadAhead(reading, budget_of(0))
    for first in range(0, 20, 4):
        await taken(ahead, first)
        await take_turns()
    assert len(reading.asked) == 5


async def test_a_cursor_that_is_gone_holds_nothing() -> None:
    budget = budget_of()
    ahead = ReadAhead(Asked(), budget)
    await taken(ahead, 0)
    await taken(ahead, 4)
    await take_turns()
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
        await take_turns()
    budget = world.factories[-1].ahead_budget
    assert budget.bytes_used > 0
    await cursor.close()
    assert budget.bytes_used == 0


async def read(cursor: ManagedCursor) -> None:
    found = cursor.read(4, MIB)
    assert isinstance(found, Sequence) or await found
