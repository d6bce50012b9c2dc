"""Entries and ledgers that are gone for good: retried, or passed over where the settings say so."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from magnetar_core.bookkeeper.client.errors import BookieUnavailable, OperationTimeout
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.errors import DataLost, ManagedLedgerFenced, StorageUnavailable
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.reading.reading import Entry
from tests.support.memory_bookkeeper import Segment, StoredLedger
from tests.support.waiting import take_turns
from tests.unit.managed_ledger.test_ledger import CONFIG, SharedStorage, payloads

PASSING = replace(CONFIG, passes_over_lost=True)


class World(SharedStorage):
    """A topic of 30 entries in three ledgers of ten, none of them in memory, and a cursor before the first."""

    ledger: ManagedLedger
    cursor: ManagedCursor
    ids: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.cache_bytes_max = 0

    async def fill(self, config: ManagedLedgerConfig = PASSING) -> None:
        self.ledger, recorder = await self.open(config)
        self.cursor = await self.ledger.open_cursor("s", EARLIEST)
        for number in range(30):
            self.ledger.append(payloads(number, number + 1), [number])
            await take_turns()
        self.ids = sorted({position.ledger_id for position, _ in recorder.appended})
        assert len(self.ids) == 3

    def lose(self, at: int, *entries: int) -> None:
        self.bookkeeper.ledgers[self.ids[at]].lost.update(entries)

    def lose_ledger(self, at: int) -> None:
        self.bookkeeper.ledgers.pop(self.ids[at]).lost.update(range(10))

    async def read_all(self, cursor: ManagedCursor | None = None) -> list[bytes]:
        cursor = cursor or self.cursor
        got: list[bytes] = []
        while True:
            found = cursor.read(100, 1 << 20)
            entries = found if isinstance(found, Sequence) else await found
            if not entries:
                return got
            got += [bytes(one.data) for one in entries]


def texts(*numbers: int) -> list[bytes]:
    return [f"entry {number}".encode() for number in numbers]


async def test_lost_entries_fail_the_reads_for_as_long_as_they_are_not_to_be_passed_over() -> None:
    world = World()
    await world.fill(CONFIG)
    world.lose(0, 3)
    found = world.cursor.read(100, 1 << 20)
    assert not isinstance(found, Sequence)
    assert len(await found) == 3
    for _ in range(2):
        with pytest.raises(DataLost, match="autoSkipNonRecoverableData"):
            await world.read_all()
    assert world.cursor.backlog() == 30
    world.ledger.config = PASSING  # as a change while the broker runs
    assert await world.read_all() == texts(*range(4, 30))
    assert world.cursor.backlog() == 29
    await world.ledger.close()


async def test_lost_entries_count_as_acknowledged_and_those_around_them_are_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    await world.fill()
    world.lose(0, 0, 1, 7, 8, 9)
    world.lose(2, 4)
    with caplog.at_level(logging.WARNING):
        assert await world.read_all() == texts(2, 3, 4, 5, 6, *range(10, 24), *range(25, 30))
    lines = [one.getMessage() for one in caplog.records if "lost" in one.getMessage()]
    assert [line.partition("are lost")[0] for line in lines] == [
        f"{world.ledger.name}: subscription s: entries {first} to {last} of ledger {world.ids[at]} "
        for at, first, last in ((0, 0, 1), (0, 7, 9), (2, 4, 4))
    ]
    assert world.ledger.passed_over_entries == 6
    assert world.cursor.backlog() == 24
    assert world.cursor.mark_delete_position == Position(world.ids[0], 1)
    await world.ledger.close()


async def test_what_was_passed_over_is_stored(world_after_loss: World) -> None:
    world = world_after_loss
    await world.cursor.flush()
    ledger, _ = await world.open(PASSING)
    assert ledger.cursors["s"].mark_delete_position == Position(world.ids[0], 9)
    assert ledger.cursors["s"].backlog() == 20
    await ledger.close()


@pytest.fixture
async def world_after_loss() -> World:
    """The first ledger is gone, and the cursor has found that."""
    world = World()
    await world.fill()
    world.lose_ledger(0)
    assert await world.read_all() == texts(*range(10, 30))
    return world


async def test_a_lost_ledger_counts_as_acknowledged_for_all_cursors() -> None:
    world = World()
    await world.fill()
    other = await world.ledger.open_cursor("other", EARLIEST)
    other.delete([Position(world.ids[1], 4), Position(world.ids[1], 5)])
    world.lose_ledger(1)
    assert await world.read_all() == texts(*range(10), *range(20, 30))
    assert other.backlog() == 20
    assert world.ledger.passed_over_entries == 10 + 8
    assert await world.read_all(other) == texts(*range(10), *range(20, 30))
    await world.ledger.close()


async def test_a_lost_entry_is_no_lost_ledger_when_the_handle_was_given_up_during_the_read() -> None:
    world = World()
    await world.fill(replace(PASSING, read_handles_max=1))
    world.lose(0, 0)

    async def meanwhile(what: str, ledger_id: int) -> None:
        if (what, ledger_id) == ("read", world.ids[0]):
            world.bookkeeper.on_step = None
            other = world.ledger.read(Position(world.ids[1], 0), 1, 1)  # its handle takes the place of the first one
            assert not isinstance(other, Sequence)
            others.extend(await other)

    others: list[Entry] = []
    world.bookkeeper.on_step = meanwhile
    assert await world.read_all() == texts(*range(1, 30))
    assert others
    assert world.ledger.passed_over_entries == 1
    await world.ledger.close()


async def test_a_cursor_that_is_not_stored_passes_over_as_well() -> None:
    world = World()
    await world.fill()
    world.lose_ledger(0)
    world.lose(1, 0)
    reader = world.ledger.new_non_durable_cursor("reader", EARLIEST)
    assert await world.read_all(reader) == texts(*range(11, 30))
    assert world.cursor.backlog() == 20
    await world.ledger.close()


@pytest.mark.parametrize("failure", [BookieUnavailable("away"), OperationTimeout("slow")])
async def test_silence_is_no_loss(failure: Exception) -> None:
    world = World()
    await world.fill()

    async def fail(what: str, ledger_id: int) -> None:
        if what == "read":
            raise failure

    world.bookkeeper.on_step = fail
    with pytest.raises(StorageUnavailable) as raised:
        await world.read_all()
    assert not isinstance(raised.value, DataLost)
    world.bookkeeper.on_step = None
    assert world.cursor.backlog() == 30
    assert await world.read_all() == texts(*range(30))
    await world.ledger.close()


async def test_what_bookies_deny_that_do_not_have_the_copies_any_more_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copies were moved, and the handle could not read the record again: the metadata store was away."""
    world = World()
    await world.fill()
    world.lose(0, 0)
    moved = replace(world.bookkeeper.ledgers[world.ids[0]], segments=(Segment(0, ("d", "e", "f")),), lost=set())

    async def now(ledger_id: int) -> StoredLedger:
        world.bookkeeper.ledgers[ledger_id] = moved
        return moved

    monkeypatch.setattr(world.bookkeeper, "read_metadata", now)
    with pytest.raises(StorageUnavailable) as raised:
        await world.read_all()
    assert not isinstance(raised.value, DataLost)
    assert world.cursor.backlog() == 30
    assert await world.read_all() == texts(*range(30))
    await world.ledger.close()


async def test_a_ledger_that_another_owner_deleted_is_not_passed_over() -> None:
    world = World()
    await world.fill()
    await world.open(PASSING)  # takes over
    world.lose_ledger(0)
    with pytest.raises(ManagedLedgerFenced):
        await world.read_all()
    assert world.cursor.backlog() == 30
    assert world.ledger.passed_over_entries == 0


async def test_entries_to_be_delivered_again_are_passed_over_where_they_are_lost() -> None:
    world = World()
    await world.fill()
    await world.read_all()
    world.lose(0, 2, 3, 4)
    first = Position(world.ids[0], 2)
    found = world.cursor.read_again(first, 5, 1 << 20)
    assert not isinstance(found, Sequence)
    assert [one.entry_id for one in await found] == [5, 6]
    found = world.cursor.read_again(Position(world.ids[0], 2), 2, 1 << 20)
    assert not isinstance(found, Sequence)
    assert list(await found) == []
    assert world.cursor.backlog() == 27
    world.lose_ledger(1)
    found = world.cursor.read_again(Position(world.ids[1], 0), 10, 1 << 20)
    assert not isinstance(found, Sequence)
    assert list(await found) == []
    assert world.cursor.backlog() == 17
    await world.ledger.close()


async def test_a_search_goes_on_where_entries_are_lost() -> None:
    world = World()
    await world.fill()
    world.lose(1, *range(10))
    found = await world.ledger.find_first(lambda entry: bytes(entry.data) >= b"entry 5")  # 5 is the first of 5 … 9
    assert found is not None
    assert found <= Position(world.ids[1], 0)
    world.ledger.config = CONFIG
    with pytest.raises(DataLost):
        await world.ledger.find_first(lambda entry: entry.ledger_id > world.ids[1])
    await world.ledger.close()


async def test_a_subscription_whose_ledger_cannot_be_read_goes_back_to_its_record_where_that_is_forced() -> None:
    world = World()
    await world.fill()
    world.cursor.mark_delete(Position(world.ids[0], 4))
    await world.cursor.flush()
    world.cursor.mark_delete(Position(world.ids[1], 4))
    await world.cursor.flush()
    cursor_ledger = world.cursor.ledger_id

    async def fail(what: str, ledger_id: int) -> None:
        if what == "open" and ledger_id == cursor_ledger:
            raise BookieUnavailable("its bookies never come back")

    world.bookkeeper.on_step = fail
    with pytest.raises(StorageUnavailable):
        await world.open(PASSING)
    ledger, _ = await world.open(replace(PASSING, forces_recovery=True))
    assert ledger.cursors["s"].mark_delete_position == Position(world.ids[0], 4)
    world.bookkeeper.on_step = None
    await ledger.close()
