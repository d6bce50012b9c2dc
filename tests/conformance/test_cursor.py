"""One suite for every cursor: the real one over bookies in memory, and the twin that the broker's tests use.

Each topic has three ledgers of three entries and an open one with two; of ids in between there are gaps.
"""

import functools
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, cast

import pytest

from broker.topic.ports import CursorPort, LedgerPort
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import InvalidPosition
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.retention import RetentionRule, RolloverRule
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.support.memory_managed_ledger import MemoryManagedLedger
from tests.support.waiting import eventually

PER_LEDGER = 3
COUNT = 3 * PER_LEDGER + 2


class Subject(NamedTuple):
    ledger: LedgerPort
    cursor: CursorPort
    positions: list[Position]
    """Of all entries, in order."""


class _Positions:
    """Listener of a managed ledger that notes the positions of entries."""

    def __init__(self) -> None:
        self.positions: list[Position] = []

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[object]) -> None:
        self.positions += [Position(ledger_id, first_entry_id + at) for at in range(len(contexts))]

    def has(self, count: int) -> bool:
        return len(self.positions) == count

    def on_append_failed(self, contexts: Sequence[object], error: Exception) -> None:
        raise AssertionError(f"not stored: {error}")

    def on_closed(self, error: Exception) -> None: ...


@pytest.fixture(params=["real", "twin"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    listener = _Positions()
    if request.param == "twin":
        twin = MemoryManagedLedger("t")
        twin.listener = listener
        for ledger_id in (5, 9, 12, 20):
            twin.begin_ledger(ledger_id)
            count = PER_LEDGER if ledger_id < 20 else 2
            twin.append([b"x"] * count, [None] * count)
            await eventually(lambda: not twin.pending_count)
        twin_cursor = await twin.open_cursor("s", EARLIEST)
        yield Subject(cast(LedgerPort, twin), cast(CursorPort, twin_cursor), listener.positions)
        return
    config = ManagedLedgerConfig(
        rollover=RolloverRule(entries_max=PER_LEDGER, bytes_max=1 << 30, age_max_ms=1 << 40, age_min_ms=0),
        retention=RetentionRule(time_ms=-1, bytes_max=-1),
    )
    clock = LoopClock()
    bookkeeper = MemoryBookKeeper()
    factory = ManagedLedgerFactory(bookkeeper.client, MemoryStore(clock), clock, config)
    ledger = await factory.open("public/default/persistent/t")
    ledger.listener = listener
    cursor = await ledger.open_cursor("s", EARLIEST)
    for at in range(COUNT):
        if at % PER_LEDGER == 0:
            await bookkeeper.create_ledger(custom_metadata=())  # somebody else's
        ledger.append([b"x"], [None])
        await eventually(functools.partial(listener.has, at + 1))
    yield Subject(ledger, cursor, listener.positions)
    await factory.close()


async def read_all(cursor: CursorPort) -> list[Position]:
    found: list[Position] = []
    while True:
        some = cursor.read(100, 1 << 20)
        entries = some if isinstance(some, Sequence) else await some
        if not entries:
            return found
        found += [entry.position for entry in entries]


async def test_entry_minus_one_is_everything_before_the_ledger_and_nothing_of_it(subject: Subject) -> None:
    _, cursor, positions = subject
    for at in range(0, COUNT, PER_LEDGER):
        cursor.mark_delete(Position(positions[at].ledger_id, -1))
        assert cursor.backlog() == COUNT - at
        cursor.rewind()
        assert await read_all(cursor) == positions[at:]


async def test_entry_minus_one_acknowledges_nothing_that_is_being_read(subject: Subject) -> None:
    """A reader's client sends such acks before it has received the rest of the ledger."""
    _, cursor, positions = subject
    seen: list[Position] = []
    while len(seen) < COUNT:
        some = cursor.read(1, 1 << 20)
        entries = some if isinstance(some, Sequence) else await some
        seen += [entry.position for entry in entries]
        cursor.mark_delete(Position(seen[-1].ledger_id, -1))
    assert seen == positions


async def test_an_entry_behind_the_end_of_an_older_ledger_is_all_of_that_ledger(subject: Subject) -> None:
    _, cursor, positions = subject
    for beyond in (PER_LEDGER, 2**62, 2**63 - 1):
        cursor.mark_delete(Position(positions[0].ledger_id, beyond))
        assert cursor.mark_delete_position == positions[PER_LEDGER - 1]
    cursor.rewind()
    assert await read_all(cursor) == positions[PER_LEDGER:]


async def test_a_ledger_that_is_not_there_means_what_stands_before_it(subject: Subject) -> None:
    _, cursor, positions = subject
    last = positions[PER_LEDGER - 1]
    assert positions[PER_LEDGER].ledger_id > last.ledger_id + 1, "the row of ledgers has a gap here"
    cursor.mark_delete(Position(last.ledger_id + 1, 7))
    assert cursor.mark_delete_position == last


@pytest.mark.parametrize("of_last", [0, 1, 1_000])
@pytest.mark.parametrize("entry_id", [2, 2**63 - 1])
async def test_what_lies_beyond_the_end_is_refused_and_changes_nothing(
    subject: Subject, of_last: int, entry_id: int
) -> None:
    ledger, cursor, positions = subject
    beyond = Position(positions[-1].ledger_id + of_last, entry_id)
    with pytest.raises(InvalidPosition, match="beyond the end"):
        cursor.mark_delete(beyond)
    with pytest.raises(InvalidPosition, match="beyond the end"):
        ledger.ledgers.check_within(beyond)
    with pytest.raises(InvalidPosition):
        cursor.mark_delete(LATEST)
    with pytest.raises(InvalidPosition):
        cursor.mark_delete(Position(positions[-1].ledger_id + 1 + of_last, -1))
    assert cursor.backlog() == COUNT
    assert await read_all(cursor) == positions


async def test_acknowledging_goes_only_forward(subject: Subject) -> None:
    _, cursor, positions = subject
    cursor.mark_delete(positions[4])
    for earlier in (positions[1], Position(positions[4].ledger_id, -1), EARLIEST):
        cursor.mark_delete(earlier)
        assert cursor.mark_delete_position == positions[4]


async def test_single_acks_of_what_is_not_there_are_passed_over(subject: Subject) -> None:
    _, cursor, positions = subject
    last = positions[-1]
    cursor.delete([EARLIEST, Position(last.ledger_id, -1), Position(last.ledger_id, 2), Position(2**62, 0), LATEST])
    assert not cursor.acknowledge_batch(Position(last.ledger_id, -1), [1], 2)
    assert not cursor.acknowledge_batch(Position(positions[0].ledger_id, PER_LEDGER), [1], 2)
    assert cursor.backlog() == COUNT
    assert await read_all(cursor) == positions


async def test_single_acks_become_the_mark_delete_position_across_ledgers(subject: Subject) -> None:
    _, cursor, positions = subject
    cursor.delete(positions[1:7])
    assert cursor.backlog() == COUNT - 6
    cursor.delete(positions[:1])
    assert cursor.mark_delete_position == positions[6]
    assert await read_all(cursor) == positions[7:]


async def test_a_reset_reads_from_there_and_forgets_what_was_acknowledged_behind(subject: Subject) -> None:
    _, cursor, positions = subject
    cursor.delete(positions[3:5])
    cursor.mark_delete(positions[1])
    for wanted, first in (
        (EARLIEST, 0),
        (Position(positions[3].ledger_id, -1), 3),
        (positions[4], 4),
        (Position(positions[0].ledger_id, 2**62), PER_LEDGER),
        (LATEST, COUNT),
        (Position(positions[-1].ledger_id + 9, 0), COUNT),
    ):
        await cursor.reset(wanted)
        assert await read_all(cursor) == positions[first:]
        assert cursor.backlog() == COUNT - first


async def test_a_reset_forgets_what_was_acknowledged_of_batches(subject: Subject) -> None:
    _, cursor, positions = subject
    cursor.acknowledge_batch(positions[4], [0b01], 2)
    await cursor.reset(positions[2])
    assert cursor.batch_ack_set(positions[4]) is None
    assert not cursor.acknowledge_batch(positions[4], [0b10], 2)


async def test_reading_goes_on_behind_what_is_acknowledged(subject: Subject) -> None:
    _, cursor, positions = subject
    cursor.mark_delete(positions[3])
    assert cursor.read_position == positions[4]
    cursor.mark_delete(positions[2])
    assert cursor.read_position == positions[4]


async def test_a_batch_is_done_with_its_last_message(subject: Subject) -> None:
    _, cursor, positions = subject
    assert not cursor.acknowledge_batch(positions[0], [0b110], 3)
    assert cursor.batch_ack_set(positions[0]) == [0b110]
    assert not cursor.acknowledge_batch(positions[0], [0b101], 3)
    assert cursor.backlog() == COUNT
    assert cursor.acknowledge_batch(positions[0], [0b011], 3)
    assert cursor.backlog() == COUNT - 1
    assert cursor.batch_ack_set(positions[0]) is None


async def test_batches_acknowledged_in_part_are_limited(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managed_ledger.cursors.cursor.PARTIAL_BATCHES_MAX", 2)
    first, second, third = subject.positions[:3]
    for position in (first, second, third):
        assert not subject.cursor.acknowledge_batch(position, [0b01], 2)
    assert subject.cursor.batch_ack_set(first) == [1]
    assert subject.cursor.batch_ack_set(third) is None, "it is taken as a whole only"
    assert subject.cursor.acknowledge_batch(third, [0], 2)
    assert subject.cursor.is_deleted(third)
    assert subject.cursor.acknowledge_batch(first, [0b10], 2)
    assert not subject.cursor.acknowledge_batch(subject.positions[3], [0b01], 2)
    assert subject.cursor.batch_ack_set(subject.positions[3]) == [1], "there is room again"


@pytest.mark.parametrize(("entries_max", "bytes_max", "expected"), [(2, 100, 2), (100, 2, 2), (100, 1, 1), (100, 0, 1)])
async def test_a_read_keeps_to_its_limits_but_has_one_entry(
    subject: Subject, entries_max: int, bytes_max: int, expected: int
) -> None:
    """Each entry has one byte."""
    ledger, cursor, positions = subject
    for found in (cursor.read(entries_max, bytes_max), ledger.read(positions[0], entries_max, bytes_max)):
        entries = found if isinstance(found, Sequence) else await found
        assert [entry.position for entry in entries] == positions[:expected]


async def test_what_is_acknowledged_is_passed_over_also_by_small_reads(subject: Subject) -> None:
    _, cursor, positions = subject
    cursor.delete([positions[at] for at in range(1, COUNT, 2)])
    seen: list[Position] = []
    while True:
        found = cursor.read(1, 1)
        entries = found if isinstance(found, Sequence) else await found
        if not entries:
            break
        seen += [entry.position for entry in entries]
    assert seen == positions[::2]
