"""Topics that are prepared before they are opened: what is saved, what is old by then, what is left behind."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar_core.bookkeeper.client.errors import BookieUnavailable
from managed_ledger.errors import ManagedLedgerNotFound, StorageUnavailable
from managed_ledger.ledgers import preparing
from managed_ledger.ledgers.holdings import Changes, HeldCursor, Holdings
from managed_ledger.position import EARLIEST, Position
from tests.support.waiting import eventually, take_turns
from tests.unit.managed_ledger.test_ledger import payloads, read_all
from tests.unit.managed_ledger.test_ledger_under_faults import CONFIG, NAME, Broker, FaultyStorage, world

__all__ = ["world"]


class Successor(Broker):
    """Notes what it asks of the metadata store and of the bookies."""

    def __init__(self, world: FaultyStorage) -> None:
        super().__init__(world, CONFIG)
        world.brokers.append(self)
        self.asked: list[str] = []

        async def store_step(what: str, path: str) -> None:
            self.asked.append(what)

        async def bookkeeper_step(what: str, ledger_id: int) -> None:
            self.asked.append(what)
            await asyncio.sleep(0)

        self.store.on_step, self.bookkeeper.on_step = store_step, bookkeeper_step

    async def prepare(self, held: Holdings | None = None) -> None:
        self.factory.prepare(NAME, held=held)
        await take_turns()

    async def contents(self) -> list[bytes]:
        return [bytes(entry.data) for entry in await read_all(self.ledger)]


def empty_ledgers(world: FaultyStorage) -> set[int]:
    return {one.ledger_id for one in world.bookkeeper.ledgers.values() if not one.entries and not one.sent}


async def test_what_was_prepared_is_neither_read_nor_created_again(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    successor = Successor(world)
    await successor.prepare()
    assert sorted(successor.asked) == ["create", "created", "get", "record"]
    successor.asked.clear()
    await successor.open()
    assert "create" not in successor.asked
    assert "record" not in successor.asked
    assert successor.asked.count("get") == 3, "the topic's record is read again, and two nodes that note transactions"
    assert await successor.contents() == payloads(0, 3)
    await world.check_record()


async def test_the_owner_goes_on_while_a_successor_prepares(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 2)
    successor = Successor(world)
    await successor.prepare()
    await owner.publish(2, 4)
    assert owner.acknowledged == [0, 1, 2, 3]
    await successor.open()
    assert await successor.contents() == payloads(0, 4)


async def test_ledgers_that_came_after_the_preparation_are_found(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 2)
    successor = Successor(world)
    await successor.prepare()
    await owner.publish(2, 13)  # five entries a ledger
    await eventually(lambda: _all_answered(owner, 13))
    await successor.open()
    assert await successor.contents() == payloads(0, 13)
    await world.check_record()
    await eventually(lambda: _left(world, 1))  # that which is written next


async def test_a_topic_that_was_made_anew_after_the_preparation_is_the_new_one(world: FaultyStorage) -> None:
    """Its record has the same version as the one that was read."""
    owner = await world.open()
    await owner.publish(0, 3)
    successor = Successor(world)
    await successor.prepare()
    await owner.ledger.delete()
    again = await world.open()
    await again.publish(10, 12)
    await successor.open()
    assert await successor.contents() == payloads(10, 12)
    await world.check_record()


async def test_a_topic_that_was_terminated_after_the_preparation_gets_no_ledger(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    successor = Successor(world)
    await successor.prepare()
    await owner.ledger.terminate()
    await successor.open()
    assert successor.ledger.is_terminated
    assert await successor.contents() == payloads(0, 3)
    await eventually(lambda: _left(world, 0))


async def test_a_cursor_that_came_after_the_preparation_is_there(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    successor = Successor(world)
    await successor.prepare()
    await owner.ledger.open_cursor("late", EARLIEST)
    await successor.open()
    assert successor.ledger.cursors["late"].backlog() == 3


class HeldTimers:
    """A clock whose timers wait for the test."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> None:
        self.timers.append((delay_s, callback))


async def test_what_is_not_used_is_deleted(world: FaultyStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = await world.open()
    await owner.publish(0, 1)
    successor = Successor(world)
    clock = HeldTimers()
    monkeypatch.setattr(successor.factory.preparations, "_clock", clock)
    await successor.prepare()
    assert len(empty_ledgers(world)) == 1
    ((delay_s, give_up),) = clock.timers
    assert delay_s == preparing.PREPARED_S
    give_up()
    await eventually(lambda: _left(world, 0))
    assert successor.factory.preparations.names == []
    await owner.publish(1, 2)
    assert owner.acknowledged == [0, 1]


async def test_closing_deletes_what_was_prepared(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 1)
    successor = Successor(world)
    await successor.prepare()
    await successor.factory.close()
    assert empty_ledgers(world) == set()


async def test_a_ledger_with_other_settings_is_not_used(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 1)
    successor = Successor(world)
    await successor.prepare()
    prepared = empty_ledgers(world)
    successor.ledger = await successor.factory.open(NAME, replace(CONFIG, write_quorum=1, ack_quorum=1))
    await eventually(lambda: _gone(world, prepared))
    assert await successor.contents() == payloads(0, 1)


async def test_nothing_is_prepared_for_a_topic_that_is_not_there_or_has_ended(world: FaultyStorage) -> None:
    successor = Successor(world)
    await successor.prepare()
    assert world.bookkeeper.ledgers == {}
    await successor.factory.preparations.take(NAME, CONFIG)
    owner = await world.open()
    await owner.publish(0, 1)
    await owner.ledger.terminate()
    before = set(world.bookkeeper.ledgers)
    await successor.prepare()
    assert set(world.bookkeeper.ledgers) == before


async def test_without_bookies_there_is_nothing_to_use_and_the_opening_tells_why(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 1)
    successor = Successor(world)
    successor.bookkeeper.out_of_bookies = True
    await successor.prepare()
    with pytest.raises(StorageUnavailable, match="too few bookies"):
        await successor.open()
    successor.bookkeeper.out_of_bookies = False
    await successor.open()
    assert await successor.contents() == payloads(0, 1)


async def test_a_prepared_ledger_goes_if_the_last_one_cannot_be_recovered(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    successor = Successor(world)
    await successor.prepare()

    async def step(what: str, ledger_id: int) -> None:
        if what == "open":
            raise BookieUnavailable("no bookie answers")

    successor.bookkeeper.on_step = step
    with pytest.raises(StorageUnavailable):
        await successor.open()
    await eventually(lambda: _left(world, 0))


async def test_so_many_topics_are_prepared_and_no_more(world: FaultyStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "PREPARED_MAX", 2)
    successor = Successor(world)
    for number in range(3):
        successor.factory.prepare(f"{NAME}{number}")
    assert successor.factory.preparations.names == [f"{NAME}0", f"{NAME}1"]


async def test_so_many_topics_are_being_prepared_at_once(world: FaultyStorage) -> None:
    successor = Successor(world)
    waiting = asyncio.Event()
    reading: list[str] = []

    async def step(what: str, path: str) -> None:
        reading.append(path)
        await waiting.wait()

    successor.store.on_step = step
    for number in range(preparing.PREPARING_AT_ONCE + 5):
        successor.factory.prepare(f"{NAME}{number}")
    await take_turns()
    assert len(reading) == preparing.PREPARING_AT_ONCE
    waiting.set()
    await eventually(lambda: _equal(len(reading), preparing.PREPARING_AT_ONCE + 5))


def held_by(owner: Broker) -> Holdings:
    found = owner.ledger.holdings()
    assert found is not None
    return found


async def test_with_holdings_the_ledgers_are_read_at_once_and_the_record_only_when_it_is_opened(
    world: FaultyStorage,
) -> None:
    owner = await world.open()
    cursor = await owner.ledger.open_cursor("s", EARLIEST)
    await owner.publish(0, 3)
    cursor.mark_delete(owner.ledger.ledgers.first_position)
    await cursor.flush()
    held = held_by(owner)
    last = owner.ledger.ledgers.last_confirmed.ledger_id
    assert held.last_ledger_id == last
    assert held.cursors == {"s": HeldCursor(cursor.ledger_id, Position(last, 0))}
    assert cursor.ledger_id >= 0
    successor = Successor(world)
    await successor.prepare(held)
    assert sorted(successor.asked) == ["create", "created", "record", "record"]
    assert sorted(successor.bookkeeper.records_read) == sorted([last, cursor.ledger_id])
    successor.asked.clear()
    await successor.open()
    assert len(successor.bookkeeper.records_read) == 2, "no record of a ledger is read again"
    assert "create" not in successor.asked
    assert successor.asked.count("get") == 4, "the records of topic and cursor, and two nodes that note transactions"
    assert await successor.contents() == payloads(0, 3)
    assert successor.ledger.cursors["s"].mark_delete_position == Position(last, 0)
    await world.check_record()


async def test_a_ledger_that_its_owner_had_closed_is_read_again(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    held = held_by(owner)
    await owner.ledger.close()
    successor = Successor(world)
    await successor.prepare(held)
    await successor.open()
    assert successor.bookkeeper.records_read == [held.last_ledger_id, held.last_ledger_id]
    assert await successor.contents() == payloads(0, 3)


async def test_of_a_broker_that_stops_no_ledger_is_read(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    successor = Successor(world)
    successor.factory.prepare(NAME, is_dead=False, held=held_by(owner))
    await take_turns()
    assert sorted(successor.asked) == ["create", "created"]


async def test_holdings_of_before_a_rollover_cost_a_read(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 2)
    held = held_by(owner)
    await owner.publish(2, 13)  # five entries a ledger
    await eventually(lambda: _all_answered(owner, 13))
    assert held_by(owner).last_ledger_id > held.last_ledger_id
    assert held_by(owner).record_version > held.record_version
    successor = Successor(world)
    await successor.prepare(held)
    await successor.open()
    assert await successor.contents() == payloads(0, 13)
    await world.check_record()


async def test_holdings_of_a_topic_that_was_deleted_or_has_ended_leave_nothing_behind(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    held = held_by(owner)
    await owner.ledger.terminate()
    assert owner.ledger.holdings() is None
    successor = Successor(world)
    await successor.prepare(held)
    await successor.open()
    assert successor.ledger.is_terminated
    await eventually(lambda: _left(world, 0))
    await successor.factory.delete(NAME)
    late = Successor(world)
    await late.prepare(held)
    with pytest.raises(ManagedLedgerNotFound):
        await late.factory.open(NAME, create=False)
    await eventually(lambda: _left(world, 0))


ANY_LEDGER = st.integers(-1, 12) | st.integers(-1, 2**63 - 1)


@settings(max_examples=60, deadline=None)
@given(
    held=st.builds(
        Holdings,
        st.integers(-1, 2**63 - 1),
        ANY_LEDGER,
        st.dictionaries(
            st.sampled_from(["s", "other", ""]),
            st.builds(HeldCursor, ANY_LEDGER, st.builds(Position, ANY_LEDGER, ANY_LEDGER)),
        ),
    ),
    is_dead=st.booleans(),
    later=st.integers(0, 8),
)
def test_whatever_the_holdings_say_the_topic_is_what_its_record_says(held: Holdings, is_dead: bool, later: int) -> None:
    async def run() -> None:
        world = FaultyStorage()
        owner = await world.open()
        cursor = await owner.ledger.open_cursor("s", EARLIEST)
        await owner.publish(0, 7)
        await eventually(lambda: _all_answered(owner, 7))
        cursor.mark_delete(owner.ledger.ledgers.first_position)
        await cursor.flush()
        stored = cursor.persisted_mark_delete_position
        successor = Successor(world)
        successor.factory.prepare(NAME, is_dead=is_dead, held=held)
        await take_turns()
        await owner.publish(7, 7 + later)
        await eventually(lambda: _all_answered(owner, 7 + later))
        await successor.open()
        assert await successor.contents() == payloads(0, 7 + later)
        assert successor.ledger.cursors.keys() == {"s"}
        assert successor.ledger.cursors["s"].mark_delete_position == stored
        await world.check_record()
        for broker in world.brokers:
            await broker.factory.close()

    asyncio.run(run())


def test_what_changed_is_told_once_and_only_while_somebody_takes_it() -> None:
    changes = Changes()
    changes.note_ledgers("a")
    assert changes.take_ledgers() == []
    changes.is_on = True
    for name in "abcab":
        changes.note_ledgers(name)
        changes.note_moved(name)
    assert changes.take_ledgers() == ["a", "b", "c"]
    assert changes.take_ledgers() == []
    assert changes.take_moved(2) == ["a", "b"]
    changes.forget("c")
    assert changes.take_moved(2) == []


async def test_ledgers_and_cursors_that_come_are_noted_and_positions_that_are_stored(world: FaultyStorage) -> None:
    owner = await world.open()
    changes = owner.factory.changes
    changes.is_on = True
    cursor = await owner.ledger.open_cursor("s", EARLIEST)
    assert changes.take_ledgers() == [NAME]
    await owner.publish(0, 2)
    assert changes.take_ledgers() == []
    cursor.mark_delete(owner.ledger.ledgers.last_confirmed)
    await cursor.flush()
    assert changes.take_moved(9) == [NAME]
    await owner.publish(2, 7)
    await eventually(lambda: _equal(changes.take_ledgers(), [NAME]))
    await owner.ledger.delete_cursor("s")
    assert changes.take_ledgers() == [NAME]
    cursor = await owner.ledger.open_cursor("t", EARLIEST)
    await owner.ledger.close()
    assert changes.take_ledgers() == [], "it is not open any more"


def _all_answered(owner: Broker, count: int) -> None:
    assert owner.acknowledged == list(range(count))


def _left(world: FaultyStorage, count: int) -> None:
    assert len(empty_ledgers(world)) == count


def _gone(world: FaultyStorage, ledger_ids: set[int]) -> None:
    assert not ledger_ids & set(world.bookkeeper.ledgers)


def _equal(found: object, expected: object) -> None:
    assert found == expected


async def test_the_last_ledger_of_an_owner_that_is_gone_is_closed_ahead(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    (last,) = (await world.record()).ledgerInfo
    successor = Successor(world)
    successor.factory.prepare(NAME)
    successor.factory.recover(NAME)
    successor.factory.recover(NAME)
    await take_turns()
    assert world.bookkeeper.ledgers[last.ledgerId].closed
    assert successor.asked.count("open") == 1
    assert list((await world.record()).ledgerInfo) == [last], "the record is its owner's until the topic is opened"
    await successor.open()
    assert await successor.contents() == payloads(0, 3)
    await world.check_record()


async def test_an_owner_that_lived_all_the_same_loses_nothing_that_it_acknowledged(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    successor = Successor(world)
    successor.factory.recover(NAME)
    await take_turns()
    await owner.publish(3, 5)
    assert owner.acknowledged == [0, 1, 2], "its ledger is fenced: what it says after that is no acknowledgement"
    again = await world.open()
    await again.publish(5, 7)
    assert again.acknowledged == [5, 6]
    await successor.open()
    assert await successor.contents() == payloads(0, 3) + payloads(5, 7)
    await world.check_record()


async def test_a_recovery_that_waits_for_its_turn_is_left_to_the_opening(
    world: FaultyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "PREPARING_AT_ONCE", 1)
    owner = await world.open()
    await owner.publish(0, 3)
    successor = Successor(world)
    waiting = asyncio.Event()

    async def step(what: str, path: str) -> None:
        if "other" in path:
            await waiting.wait()

    successor.store.on_step = step
    successor.factory.recover(f"{NAME}-other")
    successor.factory.recover(NAME)
    await take_turns()
    await asyncio.wait_for(successor.open(), 30)
    assert await successor.contents() == payloads(0, 3)
    waiting.set()


async def test_a_recovery_that_failed_is_done_by_the_opening(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    successor = Successor(world)
    failures = [BookieUnavailable("no bookie answers")]

    async def step(what: str, ledger_id: int) -> None:
        if what == "open" and failures:
            raise failures.pop()

    successor.bookkeeper.on_step = step
    await successor.prepare()
    successor.factory.recover(NAME)
    await take_turns()
    assert failures == []
    await successor.open()
    assert await successor.contents() == payloads(0, 3)


async def test_so_many_topics_are_recovered_ahead_and_no_more(
    world: FaultyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "PREPARED_MAX", 2)
    successor = Successor(world)
    for number in range(3):
        successor.factory.recover(f"{NAME}{number}")
    assert len(successor.factory.preparations._recoveries) == 2


async def test_the_record_of_before_is_not_used_for_a_ledger_that_was_closed_ahead(world: FaultyStorage) -> None:
    owner = await world.open()
    await owner.publish(0, 3)
    successor = Successor(world)
    await successor.prepare()
    successor.factory.recover(NAME)
    await take_turns()
    prepared = await successor.factory.preparations.take(NAME, CONFIG)
    assert prepared is not None
    assert prepared.open == {}
    await (await prepared.ahead).abandon()
