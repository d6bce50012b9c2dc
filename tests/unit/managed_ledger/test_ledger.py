"""The managed ledger over a BookKeeper in memory: order, rollover, takeover, cursors, trimming."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar_core.bookkeeper.client.errors import BookieUnavailable, LedgerFenced
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import (
    InvalidPosition,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerNotFound,
    ManagedLedgerTerminated,
    StorageUnavailable,
)
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.reading.reading import Entry
from managed_ledger.retention import RetentionRule, RolloverRule
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.support.waiting import eventually, settle

NAME = "public/default/persistent/t"
KEEP = RetentionRule(time_ms=-1, bytes_max=-1)
CONFIG = ManagedLedgerConfig(
    rollover=RolloverRule(entries_max=10, bytes_max=1 << 30, age_max_ms=1 << 40, age_min_ms=0),
    retention=KEEP,
    mark_delete_interval_s=0.0,
    append_timeout_s=0.3,
)


class Recorder:
    def __init__(self) -> None:
        self.appended: list[tuple[Position, Any]] = []
        self.failed: list[tuple[Any, ManagedLedgerError]] = []
        self.closed: list[ManagedLedgerError] = []

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Any]) -> None:
        for number, context in enumerate(contexts):
            self.appended.append((Position(ledger_id, first_entry_id + number), context))

    def on_append_failed(self, contexts: Sequence[Any], error: ManagedLedgerError) -> None:
        self.failed.extend((context, error) for context in contexts)

    def on_closed(self, error: ManagedLedgerError) -> None:
        self.closed.append(error)


class SharedStorage:
    """One cluster and any number of brokers' views of it."""

    def __init__(self) -> None:
        self.bookkeeper = MemoryBookKeeper()
        self.clock = LoopClock()
        self.store: MetadataStore = MemoryStore(self.clock)
        self.factories: list[ManagedLedgerFactory] = []
        self.cache_bytes_max = 1 << 20

    def factory(self, config: ManagedLedgerConfig = CONFIG) -> ManagedLedgerFactory:
        factory = ManagedLedgerFactory(
            self.bookkeeper.client, self.store, self.clock, config, cache_bytes_max=self.cache_bytes_max
        )
        self.factories.append(factory)
        return factory

    async def open(self, config: ManagedLedgerConfig = CONFIG) -> tuple[ManagedLedger, Recorder]:
        """As a new broker would: nothing is shared with earlier ones but the stores."""
        ledger = await self.factory(config).open(NAME)
        recorder = Recorder()
        ledger.listener = recorder
        return ledger, recorder


@pytest.fixture
async def world() -> AsyncIterator[SharedStorage]:
    world = SharedStorage()
    yield world
    for factory in world.factories:
        await factory.close()


def payloads(first: int, last: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(first, last)]


async def publish(ledger: ManagedLedger, first: int, last: int) -> None:
    ledger.append(payloads(first, last), list(range(first, last)))
    await settle()


async def read_all(ledger: ManagedLedger, first: Position = EARLIEST) -> list[Entry]:
    found: list[Entry] = []
    while True:
        answer = ledger.read(first, 7, 1 << 20)
        entries = answer if isinstance(answer, Sequence) else await answer
        if not entries:
            return found
        found.extend(entries)
        first = ledger.ledgers.next_position(entries[-1].position)


async def test_settings_that_change_count_from_the_next_entry_on(world: SharedStorage) -> None:
    ledger, recorder = await world.open()
    await publish(ledger, 0, 5)
    ledger.config = replace(CONFIG, rollover=replace(CONFIG.rollover, entries_max=2), retention=RetentionRule())
    assert ledger.config.rollover.entries_max == 2
    await publish(ledger, 5, 9)
    assert [context for _, context in recorder.appended] == list(range(9))
    assert len({position.ledger_id for position, _ in recorder.appended}) == 3
    await ledger.trim()
    assert ledger.ledgers.entries_total < 9


async def test_appends_complete_in_order_over_rollovers(world: SharedStorage) -> None:
    ledger, recorder = await world.open()
    ledger.append(payloads(0, 35), list(range(35)))
    await settle()
    assert [context for _, context in recorder.appended] == list(range(35))
    positions = [position for position, _ in recorder.appended]
    assert positions == sorted(set(positions))
    assert [len(stored.entries) for stored in world.bookkeeper.ledgers.values()] == [10, 10, 10, 5]
    assert [entry.data for entry in await read_all(ledger)] == payloads(0, 35)
    assert ledger.ledgers.entries_total == 35
    assert ledger.bytes_total == sum(map(len, payloads(0, 35)))


async def test_the_record_is_in_pulsar_s_form(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    await publish(ledger, 0, 12)
    node = await world.store.get("/managed-ledgers/" + NAME)
    assert node is not None
    from managed_ledger.records.pulsar_records import decode_ledger_info

    first, last = decode_ledger_info(node.value, NAME).ledgerInfo
    assert (first.entries, first.size) == (10, sum(map(len, payloads(0, 10))))
    assert first.timestamp > 0
    assert last.timestamp == 0
    assert last.HasField("timestamp")
    assert not last.HasField("entries")
    assert dict(world.bookkeeper.ledgers[last.ledgerId].custom_metadata) == {
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": NAME.encode(),
    }


async def test_a_new_owner_sees_everything_and_the_old_one_is_mute(world: SharedStorage) -> None:
    old, old_recorder = await world.open()
    await publish(old, 0, 13)
    new, recorder = await world.open()
    assert [entry.data for entry in await read_all(new)] == payloads(0, 13)
    await publish(old, 100, 101)
    assert [context for context, _ in old_recorder.failed] == [100]
    assert isinstance(old_recorder.closed[0], ManagedLedgerFenced)
    assert len(old_recorder.appended) == 13
    await publish(new, 13, 15)
    assert [entry.data for entry in await read_all(new)] == payloads(0, 15)
    assert len(recorder.appended) == 2


async def test_an_old_owner_cannot_change_the_record(world: SharedStorage) -> None:
    old, recorder = await world.open()
    await publish(old, 0, 5)
    await world.open()
    with pytest.raises(ManagedLedgerFenced):
        await old.set_properties({"a": "b"})
    await settle()
    assert len(recorder.closed) == 1
    with pytest.raises(ManagedLedgerFenced):
        await old.open_cursor("late")


async def test_a_failed_write_goes_on_in_the_next_ledger_without_loss_or_doubling(world: SharedStorage) -> None:
    ledger, recorder = await world.open()
    world.bookkeeper.hold = True
    ledger.append(payloads(0, 6), list(range(6)))
    await settle()
    handle = world.bookkeeper.handles[-1]
    handle.release(2)
    handle.fail(BookieUnavailable("all gone"))
    ledger.append(payloads(6, 8), [6, 7])
    world.bookkeeper.hold = False
    await settle()
    world.bookkeeper.handles[-1]._schedule()
    await settle()
    assert [context for _, context in recorder.appended] == list(range(8))
    assert [entry.data for entry in await read_all(ledger)] == payloads(0, 8)
    assert recorder.failed == []


async def test_without_bookies_appends_fail_after_the_time_out(
    world: SharedStorage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("managed_ledger.writing.writing.RETRY_FIRST_S", 0.01)
    ledger, recorder = await world.open()
    world.bookkeeper.out_of_bookies = True
    world.bookkeeper.handles[-1].fail(BookieUnavailable("gone"))
    ledger.append([b"x"], ["x"])
    await eventually(lambda: [context for context, _ in recorder.failed] == ["x"])
    assert isinstance(recorder.closed[0], StorageUnavailable)
    ledger.append([b"y"], ["y"])
    await settle()
    assert [context for context, _ in recorder.failed] == ["x", "y"]
    assert caplog.text.count("trying again") == 1, "said once: there may be thousands of topics"


async def test_fencing_by_a_bookie_ends_the_old_owner(world: SharedStorage) -> None:
    ledger, recorder = await world.open()
    world.bookkeeper.hold = True
    ledger.append([b"x"], ["x"])
    world.bookkeeper.handles[-1].fail(LedgerFenced("fenced"))
    await settle()
    assert recorder.appended == []
    assert isinstance(recorder.failed[0][1], ManagedLedgerFenced)


async def test_cold_reads_come_from_the_bookies(world: SharedStorage) -> None:
    world.cache_bytes_max = 40
    ledger, _ = await world.open()
    await publish(ledger, 0, 25)
    assert [entry.data for entry in await read_all(ledger)] == payloads(0, 25)
    assert world.bookkeeper.reads > 0


async def test_a_missing_topic_is_not_made_by_reading_it(world: SharedStorage) -> None:
    with pytest.raises(ManagedLedgerNotFound):
        await world.factory().open(NAME, create=False)
    assert not await world.factory().exists(NAME)


async def test_cursors_survive_with_holes_and_batches(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    cursor = await ledger.open_cursor("my sub", EARLIEST, {"p": "q"})
    await publish(ledger, 0, 12)
    first = ledger.ledgers.first_position
    cursor.mark_delete(Position(first.ledger_id, 2), {"producer": 7})
    cursor.delete([Position(first.ledger_id, 5), Position(first.ledger_id, 6)])
    assert not cursor.acknowledge_batch(Position(first.ledger_id, 8), [0b110], 3)
    await cursor.flush()
    for _ in range(2):  # after a crash; then after that owner crashed too
        ledger, _ = await world.open()
        cursor = ledger.cursors["my sub"]
        assert cursor.mark_delete_position == Position(first.ledger_id, 2)
        assert cursor.is_deleted(Position(first.ledger_id, 6))
        assert not cursor.is_deleted(Position(first.ledger_id, 7))
        assert cursor.batch_ack_set(Position(first.ledger_id, 8)) == [0b110]
        assert cursor.properties == {"producer": 7}
        assert cursor.string_properties == {"p": "q"}
        assert cursor.backlog() == 7
    await ledger.close()
    node = await world.store.get("/managed-ledgers/" + NAME + "/my+sub")
    assert node is not None
    ledger, _ = await world.open()
    assert ledger.cursors["my sub"].backlog() == 7
    assert ledger.cursors["my sub"].ledger_id == -1


async def test_since_when_nobody_consumes_survives_until_somebody_does(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    await ledger.open_cursor("s", EARLIEST)
    for since_ms in (7_000, 9_000):
        ledger.cursors["s"].mark_idle(since_ms)
        await ledger.close()
        ledger, _ = await world.open()
        assert ledger.cursors["s"].idle_since_ms == since_ms
    ledger.cursors["s"].mark_active()
    await settle()
    ledger, _ = await world.open()  # after a crash
    assert ledger.cursors["s"].idle_since_ms == 0
    ledger.cursors["s"].mark_idle(11_000)
    await publish(ledger, 0, 1)
    ledger.cursors["s"].mark_delete(ledger.ledgers.last_confirmed)
    await ledger.cursors["s"].flush()
    ledger, _ = await world.open()
    assert ledger.cursors["s"].idle_since_ms == 11_000, "it stands in the state of a cursor ledger, too"


async def test_that_a_consumer_is_back_is_stored_without_the_pause_between_two_states(
    world: SharedStorage,
) -> None:
    ledger, _ = await world.open(replace(CONFIG, mark_delete_interval_s=60.0))
    cursor = await ledger.open_cursor("s", EARLIEST)
    await publish(ledger, 0, 1)
    cursor.mark_idle(7_000)
    cursor.mark_delete(ledger.ledgers.last_confirmed)
    await cursor.flush()
    for _ in range(3):  # three consumers come: it is stored once
        cursor.mark_active()
    await settle()
    assert cursor.counts.stored == 2
    ledger, _ = await world.open()  # after a crash
    assert ledger.cursors["s"].idle_since_ms == 0


async def test_a_consumer_costs_no_write_where_nothing_contrary_is_stored(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    cursor = await ledger.open_cursor("s", EARLIEST)
    cursor.mark_idle(7_000)
    cursor.mark_active()
    await settle()
    assert cursor.counts.stored == 0


async def test_a_consumer_that_comes_while_the_contrary_is_being_stored_is_stored_behind_it(
    world: SharedStorage,
) -> None:
    ledger, _ = await world.open()
    cursor = await ledger.open_cursor("s", EARLIEST)
    await publish(ledger, 0, 1)
    cursor.mark_idle(7_000)
    cursor.mark_delete(ledger.ledgers.last_confirmed)
    storing = asyncio.ensure_future(cursor.flush())
    await asyncio.sleep(0)
    cursor.mark_active()
    await storing
    await cursor.flush()
    ledger, _ = await world.open()
    assert ledger.cursors["s"].idle_since_ms == 0


async def test_a_cursor_reads_what_is_open_and_again_after_rewind(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    await publish(ledger, 0, 15)
    cursor = await ledger.open_cursor("s", EARLIEST)
    first = ledger.ledgers.first_position
    cursor.delete([Position(first.ledger_id, 1)])

    async def drain() -> list[bytes]:
        found: list[bytes] = []
        while cursor.has_more():
            answer = cursor.read(4, 1 << 20)
            found.extend(bytes(entry.data) for entry in (answer if isinstance(answer, Sequence) else await answer))
        return found

    expected = [payload for payload in payloads(0, 15) if payload != b"entry 1"]
    assert await drain() == expected
    cursor.rewind()
    assert await drain() == expected
    await cursor.reset(Position(first.ledger_id, 8))
    assert await drain() == payloads(8, 15)
    await cursor.reset(LATEST)
    assert await drain() == []
    assert cursor.backlog() == 0
    await publish(ledger, 15, 16)
    assert await drain() == payloads(15, 16)


async def test_a_cold_read_that_was_overtaken_by_a_seek_says_nothing(world: SharedStorage) -> None:
    world.cache_bytes_max = 0
    ledger, _ = await world.open()
    await publish(ledger, 0, 5)
    cursor = await ledger.open_cursor("s", EARLIEST)
    pending = cursor.read(10, 1 << 20)
    assert not isinstance(pending, Sequence)
    await cursor.reset(Position(ledger.ledgers.first_position.ledger_id, 3))
    assert await pending == []
    assert cursor.read_position.entry_id == 3


async def test_acknowledging_beyond_the_end_is_refused(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    await publish(ledger, 0, 2)
    cursor = await ledger.open_cursor("s", EARLIEST)
    with pytest.raises(InvalidPosition, match="beyond the end"):
        cursor.mark_delete(Position(ledger.ledgers.last_confirmed.ledger_id, 2))
    cursor.delete([Position(ledger.ledgers.last_confirmed.ledger_id, 77), Position(999, 0)])
    assert cursor.backlog() == 2


async def test_consumed_ledgers_go_and_the_slowest_cursor_holds_them(world: SharedStorage) -> None:
    ledger, _ = await world.open(replace(CONFIG, retention=RetentionRule()))
    fast = await ledger.open_cursor("fast", EARLIEST)
    slow = await ledger.open_cursor("slow", EARLIEST)
    await publish(ledger, 0, 35)
    fast.mark_delete(ledger.ledgers.last_confirmed)
    await fast.flush()
    await settle()
    assert ledger.ledgers.entries_total == 35
    second = (await read_all(ledger))[10].position
    slow.mark_delete(second)
    await slow.flush()
    await settle()
    assert ledger.ledgers.entries_total == 25
    assert ledger.ledgers.first_position == Position(second.ledger_id, 0)
    assert len(world.bookkeeper.deleted) >= 1
    reopened, _ = await world.open(replace(CONFIG, retention=RetentionRule()))
    assert [entry.data for entry in await read_all(reopened)] == payloads(10, 35)
    await reopened.delete_cursor("slow")
    await settle()
    assert reopened.ledgers.entries_total <= 5


async def test_readers_do_not_hold_data_and_leave_no_trace(world: SharedStorage) -> None:
    ledger, _ = await world.open(replace(CONFIG, retention=RetentionRule()))
    reader = ledger.new_non_durable_cursor("reader", EARLIEST)
    assert not reader.durable
    await publish(ledger, 0, 25)
    await ledger.trim()
    assert ledger.ledgers.entries_total == 5
    answer = reader.read(100, 1 << 20)
    entries = answer if isinstance(answer, Sequence) else await answer
    assert [entry.data for entry in entries] == payloads(20, 25)
    assert await world.store.children("/managed-ledgers/" + NAME) == []


async def test_a_terminated_topic_takes_nothing_more(world: SharedStorage) -> None:
    ledger, recorder = await world.open()
    await publish(ledger, 0, 3)
    last = await ledger.terminate()
    assert last == Position(ledger.ledgers.first_position.ledger_id, 2)
    await publish(ledger, 3, 4)
    assert isinstance(recorder.failed[0][1], ManagedLedgerTerminated)
    reopened, _ = await world.open()
    assert reopened.is_terminated
    assert [entry.data for entry in await read_all(reopened)] == payloads(0, 3)


@pytest.mark.parametrize("is_opened_again", [False, True])
async def test_what_is_consumed_of_a_terminated_topic_is_trimmed_but_for_its_last_ledger(
    world: SharedStorage, is_opened_again: bool
) -> None:
    config = replace(CONFIG, retention=RetentionRule())
    ledger, _ = await world.open(config)
    await ledger.open_cursor("s", EARLIEST)
    await publish(ledger, 0, 25)
    last = await ledger.terminate()
    if is_opened_again:
        ledger, _ = await world.open(config)
    ledger.cursors["s"].mark_delete(last)
    await ledger.trim_now()
    assert [info["ledgerId"] for info in ledger.stats()["ledgers"]] == [last.ledger_id]
    again, _ = await world.open()
    assert again.is_terminated
    assert again.ledgers.last_confirmed == await again.terminate() == last
    assert again.cursors["s"].backlog() == 0


async def test_find_first_bisects_over_ledgers(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    assert await ledger.find_first(lambda entry: True) is None
    await publish(ledger, 0, 25)
    every = [entry.position for entry in await read_all(ledger)]
    for number in (0, 1, 9, 10, 24):
        wanted = every[number]
        assert await ledger.find_first(lambda entry, wanted=wanted: entry.position >= wanted) == wanted  # type: ignore[misc]
    assert await ledger.find_first(lambda entry: False) is None


async def test_deleting_leaves_nothing_behind(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    cursor = await ledger.open_cursor("s", EARLIEST)
    await publish(ledger, 0, 15)
    cursor.mark_delete(ledger.ledgers.last_confirmed)
    await cursor.flush()
    await world.factories[-1].delete(NAME)
    assert world.bookkeeper.ledgers == {}
    assert not await world.store.exists("/managed-ledgers/" + NAME)


async def test_properties_are_stored_before_the_call_returns(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    await ledger.set_properties({"pulsar.topic.epoch": "3"})
    reopened, _ = await world.open()
    assert reopened.properties == {"pulsar.topic.epoch": "3"}


async def test_texts_of_a_cursor_are_stored_beside_its_state(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    await publish(ledger, 0, 8)
    used = await ledger.open_cursor("used", EARLIEST, {"a": "1"})
    fresh = await ledger.open_cursor("fresh", EARLIEST)
    hole = ledger.ledgers.last_confirmed._replace(entry_id=5)
    used.mark_delete(hole._replace(entry_id=1))
    used.delete([hole])
    await used.flush()
    assert used.ledger_id >= 0
    assert fresh.ledger_id < 0
    for cursor in (used, fresh):
        await cursor.set_string_properties({"b": cursor.name})
    reopened, _ = await world.open()  # as after a crash: nothing was closed
    for name in ("used", "fresh"):
        assert reopened.cursors[name].string_properties == {"b": name}
    assert (reopened.cursors["used"].backlog(), reopened.cursors["fresh"].backlog()) == (5, 8)
    assert reopened.cursors["used"].is_deleted(hole)
    with pytest.raises(ManagedLedgerFenced):
        await used.set_string_properties({"c": "too late"})
    assert used.string_properties == {"b": "used"}


async def test_the_end_of_an_empty_topic_names_its_ledger_which_stays(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    last = await ledger.terminate()
    assert last.ledger_id >= 0
    assert last.entry_id == -1
    assert await ledger.terminate() == last
    reopened, _ = await world.open()
    assert reopened.is_terminated
    assert reopened.ledgers.last_confirmed == await reopened.terminate() == last
    assert [info["ledgerId"] for info in reopened.stats()["ledgers"]] == [last.ledger_id]


async def test_an_empty_ledger_behind_others_leaves_the_record_at_the_end(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    await publish(ledger, 0, 1)
    await ledger.close()
    again, _ = await world.open()
    last = await again.terminate()
    assert last.entry_id == 0
    assert [info["ledgerId"] for info in again.stats()["ledgers"]] == [last.ledger_id]


async def test_a_trim_that_is_asked_for_goes_by_what_is_acknowledged_now(world: SharedStorage) -> None:
    ledger, _ = await world.open(replace(CONFIG, retention=RetentionRule(), mark_delete_interval_s=3600.0))
    cursor = await ledger.open_cursor("s", EARLIEST)
    await publish(ledger, 0, 25)
    cursor.mark_delete(ledger.ledgers.position_at(3))
    await ledger.trim_now()
    cursor.mark_delete(ledger.ledgers.position_at(12))
    assert ledger.ledgers.entries_total == 25, "nothing of it is stored yet"
    await ledger.trim_now()
    assert ledger.ledgers.entries_total == 15
    await ledger.close()
    with pytest.raises(ManagedLedgerError):
        await ledger.trim_now()


async def test_a_truncated_log_keeps_the_ledger_that_is_written_and_what_comes_next(world: SharedStorage) -> None:
    ledger, recorder = await world.open()
    cursor = await ledger.open_cursor("s", EARLIEST)
    await publish(ledger, 0, 25)
    await ledger.truncate()
    assert (ledger.ledgers.entries_total, cursor.backlog()) == (5, 0)
    await publish(ledger, 25, 27)
    assert [
        entry.data for entry in await read_all(ledger, ledger.ledgers.next_position(cursor.mark_delete_position))
    ] == (payloads(25, 27))
    reopened, _ = await world.open()
    assert reopened.cursors["s"].backlog() == 2
    with pytest.raises(ManagedLedgerFenced):
        await ledger.truncate()
    assert [context for _, context in recorder.appended] == list(range(27))


# ---------------------------------------------------------------------------------- defects


async def test_a_cursor_that_cannot_be_stored_keeps_nobody_from_closing(world: SharedStorage) -> None:
    """Whatever the error: the ledger is sealed, the other cursors are stored, and the topic can be opened again."""
    factory = world.factory()
    ledger = await factory.open(NAME)
    await publish(ledger, 0, 5)
    cursors = [await ledger.open_cursor(name, EARLIEST) for name in ("a", "b", "c")]
    for cursor in cursors:
        cursor.mark_delete(Position(ledger.ledgers.last_confirmed.ledger_id, 2))

    async def fail(snapshot: Any) -> None:
        raise ValueError("Value out of range")

    for name in ("persist", "close"):
        setattr(cursors[1]._store, name, fail)
    await ledger.close()
    again = await factory.open(NAME)
    assert again is not ledger
    assert [again.cursors[name].backlog() for name in ("a", "c")] == [2, 2]
    await publish(again, 5, 6)
    await factory.close()


async def test_a_cursor_is_stored_again_after_an_unforeseen_error(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    await publish(ledger, 0, 5)
    cursor = await ledger.open_cursor("s", EARLIEST)
    persist = cursor._store.persist  # type: ignore[union-attr]
    failures = [KeyError("a defect"), ValueError("another")]

    async def fail_twice(snapshot: Any) -> None:
        if failures:
            raise failures.pop()
        await persist(snapshot)

    cursor._store.persist = fail_twice  # type: ignore[method-assign, union-attr]
    cursor.mark_delete(Position(ledger.ledgers.last_confirmed.ledger_id, 2))
    await eventually(
        lambda: cursor.persisted_mark_delete_position == Position(ledger.ledgers.last_confirmed.ledger_id, 2)
    )
    assert not failures


async def test_an_owner_with_a_defect_is_told_that_its_ledger_has_ended(world: SharedStorage) -> None:
    """It cannot be known which of its receipts left: everybody has to ask again."""
    ledger, recorder = await world.open()
    await publish(ledger, 0, 2)

    def fail(ledger_id: int, first_entry_id: int, contexts: Sequence[Any]) -> None:
        raise IndexError("a defect")

    recorder.on_appended = fail  # type: ignore[method-assign]
    ledger.append(payloads(2, 4), [2, 3])
    await eventually(lambda: bool(recorder.closed))
    assert not ledger.is_open
    reopened, _ = await world.open()
    assert [entry.data for entry in await read_all(reopened)] == payloads(0, 4)


async def test_a_watcher_with_a_defect_keeps_nothing_from_the_others(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    told = []

    def fail() -> None:
        raise IndexError("a defect")

    ledger.watch_appends(fail)
    ledger.watch_appends(lambda: told.append(ledger.ledgers.last_confirmed))
    await publish(ledger, 0, 2)
    assert told[-1] == ledger.ledgers.last_confirmed


async def test_a_ledger_to_which_nothing_was_written_for_long_is_replaced() -> None:
    storage = SharedStorage()
    idle = replace(CONFIG, rollover=replace(CONFIG.rollover, idle_max_ms=50))
    ledger, recorder = await storage.open(idle)
    ledger.append(payloads(0, 1), [0])
    await settle()
    first = recorder.appended[0][0].ledger_id
    await ledger.maintain()
    assert [info["ledgerId"] for info in ledger.stats()["ledgers"]] == [first]

    async def is_replaced() -> None:
        await ledger.maintain()
        assert [info["ledgerId"] for info in ledger.stats()["ledgers"]] == [first, first + 1]

    await eventually(is_replaced)
    await storage.clock.sleep(0.1)
    await ledger.maintain()
    await ledger.maintain()  # an empty ledger stays
    assert ledger.stats()["currentLedgerEntries"] == 0
    assert len(ledger.stats()["ledgers"]) == 2
    await ledger.close()
