"""What has to be done before what, and what must not be passed over on the way: one small test each."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import OutcomeUnknown
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.errors import ManagedLedgerFenced, RecordInDoubt
from managed_ledger.position import EARLIEST
from managed_ledger.reading.entry_cache import EntryCache
from managed_ledger.records.paths import cursor_path
from managed_ledger.records.versioned_record import VersionedRecord
from tests.support.faulty_store import FaultyStore
from tests.support.memory_bookkeeper import MemoryReadHandle
from tests.unit.managed_ledger.test_ledger import NAME, SharedStorage, publish


@pytest.fixture
async def world() -> AsyncIterator[SharedStorage]:
    made = SharedStorage()
    yield made
    for factory in made.factories:
        await factory.close()


async def test_everybody_who_waits_for_entries_is_told(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    told: list[str] = []
    for name in ("first", "second", "third"):
        ledger.watch_appends(lambda name=name: told.append(name))  # type: ignore[misc]
    await publish(ledger, 0, 1)
    assert told == ["first", "second", "third"]


async def test_what_a_former_ledger_still_says_is_not_said_of_the_present_one(world: SharedStorage) -> None:
    ledger, recorder = await world.open()
    await publish(ledger, 0, 10)  # as many as a ledger takes
    former = world.bookkeeper.handles[0]
    world.bookkeeper.hold = True
    await publish(ledger, 10, 11)
    ledger._writing.on_acknowledged(former, 0)  # type: ignore[arg-type]
    assert [context for _, context in recorder.appended] == list(range(10))
    assert ledger.pending_count == 1


async def test_bookies_are_not_asked_for_what_is_not_confirmed(
    world: SharedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cache_bytes_max = 0
    ledger, _ = await world.open()
    await publish(ledger, 0, 5)
    asked: list[tuple[int, int]] = []
    original = MemoryReadHandle.read_batch

    async def spying(self: MemoryReadHandle, first: int, max_count: int, max_bytes: int) -> object:
        asked.append((first, max_count))
        return await original(self, first, max_count, max_bytes)

    monkeypatch.setattr(MemoryReadHandle, "read_batch", spying)
    monkeypatch.setattr(MemoryReadHandle, "read_batch_unconfirmed", spying)
    found = ledger.read(ledger.ledgers.first_position, 100, 1 << 20)
    assert not isinstance(found, list)
    assert len(await found) == 5  # type: ignore[misc]
    assert asked == [(0, 5)]


async def test_a_cursor_s_state_is_in_its_new_ledger_before_the_node_names_it(world: SharedStorage) -> None:
    steps: list[str] = []
    path = cursor_path(NAME, "s")

    async def on_ledger(what: str, ledger_id: int) -> None:
        if what == "added":
            steps.append("state")

    async def on_node(what: str, where: str) -> None:
        if what == "put" and where == path:
            steps.append("node")

    store = FaultyStore(world.store)
    world.store = store
    ledger, _ = await world.open()
    await publish(ledger, 0, 3)
    cursor = await ledger.open_cursor("s", EARLIEST)
    world.bookkeeper.on_step, store.on_step = on_ledger, on_node
    cursor.mark_delete(ledger.ledgers.first_position)
    await cursor.flush()
    assert steps == ["state", "node"]


async def test_what_is_acknowledged_while_a_cursor_is_stored_is_stored_next(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    await publish(ledger, 0, 3)
    cursor = await ledger.open_cursor("s", EARLIEST)
    first = ledger.ledgers.first_position
    cursor.mark_delete(first)
    await cursor.flush()
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def hold(what: str, ledger_id: int) -> None:
        if what == "add":
            arrived.set()
            await go_on.wait()

    world.bookkeeper.on_step = hold
    cursor.mark_delete(ledger.ledgers.next_position(first))
    storing = asyncio.create_task(cursor.flush())
    await arrived.wait()
    cursor.mark_delete(ledger.ledgers.last_confirmed)
    go_on.set()
    await storing
    await cursor.flush()
    world.bookkeeper.on_step = None
    after, _ = await world.open()
    assert after.cursors["s"].mark_delete_position == ledger.ledgers.last_confirmed


async def test_a_seek_is_stored_when_it_returns(world: SharedStorage) -> None:
    ledger, _ = await world.open()
    await publish(ledger, 0, 3)
    cursor = await ledger.open_cursor("s", EARLIEST)
    cursor.mark_delete(ledger.ledgers.last_confirmed)
    await cursor.flush()
    await cursor.reset(ledger.ledgers.first_position)
    after, _ = await world.open()  # at once: nothing that waits in the former owner is stored any more
    assert after.cursors["s"].backlog() == 3


async def test_a_record_in_doubt_that_another_wrote_is_the_other_s(world: SharedStorage) -> None:
    clock = LoopClock()
    inner = MemoryStore(clock)
    failures = 3

    async def lose(what: str, path: str) -> None:
        nonlocal failures
        if what == "put" and failures:
            failures -= 1
            raise OutcomeUnknown("lost")

    record = VersionedRecord(FaultyStore(inner, lose), "/r")
    await inner.put("/r", b"before")
    assert await record.read() == b"before"
    with pytest.raises(RecordInDoubt):
        await record.write(b"mine")
    await inner.put("/r", b"another's")
    with pytest.raises(ManagedLedgerFenced):
        await record.write(b"mine again")
    node = await inner.get("/r")
    assert node is not None
    assert node.value == b"another's"


def test_a_cache_gives_nothing_behind_a_gap() -> None:
    cache = EntryCache(10_000)
    cache.put_run(1, 0, [b"a", b"b"])
    cache.put_run(1, 3, [b"d"])
    assert cache.get_run(1, 0, 5, 100) == [b"a", b"b"]
    assert cache.get_run(1, 2, 5, 100) == []


def test_a_cache_knows_how_many_entries_came_and_how_many_are_left() -> None:
    cache = EntryCache(3 * 401)
    cache.put_run(1, 0, [b"a", b"b"])
    cache.put_run(2, 0, [b"c", b"d"])
    assert (cache.inserted_entries, cache.entries) == (4, 3)
    cache.forget_ledger(2)
    assert (cache.inserted_entries, cache.entries) == (4, 1)
