"""Records whose metadata store went back in time: said by name, and nothing is written over them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import ledger_path
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore, Saved
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, WentBack
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.errors import ManagedLedgerFenced, MetadataWentBack
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST
from managed_ledger.records.versioned_record import VersionedRecord
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.faulty_store import FaultyStore
from tests.support.waiting import eventually
from tests.unit.managed_ledger.ledgers.test_tails import CONFIG, NAME
from tests.unit.managed_ledger.test_ledger import read_all

Change = Callable[[VersionedRecord], Awaitable[object]]
RECORD = f"/managed-ledgers/{NAME}"


class SettableClock(LoopClock):
    """Its wall clock stands where a test wants it."""

    def __init__(self) -> None:
        self.now_ms = 1_795_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def store(clock: SettableClock) -> MemoryStore:
    return MemoryStore(clock)


async def written_three_times(store: MemoryStore) -> tuple[VersionedRecord, Saved]:
    """A record at version 2, and the store when it was at version 1."""
    await store.put("/r", b"0")
    record = VersionedRecord(store, "/r")
    await record.read()
    await record.write(b"1")
    saved = store.saved()
    await record.write(b"2")
    return record, saved


CHANGES: list[Change] = [
    lambda record: record.write(b"3"),
    lambda record: record.delete(),
    lambda record: record.check_unchanged(),
]


@pytest.mark.parametrize("change", CHANGES, ids=["write", "delete", "check"])
async def test_an_older_version_of_a_record_is_told_and_left_as_it_is(
    store: MemoryStore, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    record, saved = await written_three_times(store)
    store.put_back(saved)
    seen = WentBack.seen
    with pytest.raises(MetadataWentBack, match="went back in time: /r: it is in version 1, and was in version 2"):
        await change(record)
    node = await store.get("/r")
    assert node is not None
    assert node.value == b"1"
    assert WentBack.seen == seen + 1
    assert [one.levelname for one in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("change", CHANGES, ids=["write", "delete", "check"])
async def test_another_owner_is_still_another_owner(store: MemoryStore, clock: SettableClock, change: Change) -> None:
    record, _ = await written_three_times(store)
    await store.put("/r", b"other")
    with pytest.raises(ManagedLedgerFenced, match="/r was changed by another owner"):
        await change(record)
    await store.delete("/r")
    clock.now_ms += 1
    await store.put("/r", b"anew")
    with pytest.raises(ManagedLedgerFenced, match="/r was deleted and made anew by another owner"):
        await change(record)


async def test_a_record_that_was_made_anew_is_not_ours_though_it_has_our_version(
    store: MemoryStore, clock: SettableClock
) -> None:
    record, _ = await written_three_times(store)
    await record.check_unchanged()
    await store.delete("/r")
    clock.now_ms += 1
    for value in (b"0", b"1", b"2"):
        version = await store.put("/r", value)
    assert version == record.version
    with pytest.raises(ManagedLedgerFenced, match="/r was deleted and made anew by another owner"):
        await record.check_unchanged()


async def test_a_record_that_is_gone_may_be_either(store: MemoryStore) -> None:
    empty = store.saved()
    record, _ = await written_three_times(store)
    store.put_back(empty)
    for change in (CHANGES[0], CHANGES[2]):
        with pytest.raises(ManagedLedgerFenced, match="deleted it, or the metadata store went back in time"):
            await change(record)


async def test_a_record_that_was_made_here_may_be_either(store: MemoryStore) -> None:
    record = VersionedRecord(store, "/r")
    await record.write(b"0")
    saved = store.saved()
    await record.write(b"1")
    store.put_back(saved)
    with pytest.raises(ManagedLedgerFenced, match="made it anew, or the metadata store went back in time"):
        await record.write(b"2")


async def test_a_store_that_does_not_say_what_it_has_counts_as_another_owners(store: MemoryStore) -> None:
    async def no_answer(what: str, path: str) -> None:
        if what == "get":
            raise MetadataError("no answer")

    record, saved = await written_three_times(store)
    store.put_back(saved)
    faulty = FaultyStore(store, no_answer)
    record._store = faulty
    with pytest.raises(ManagedLedgerFenced, match="/r was changed by another owner"):
        await record.write(b"3")


# ------------------------------------------------------------------------------------ topics, cursors, ledgers


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(2) as cluster:
        yield cluster


async def factory_of(cluster: FakeCluster) -> ManagedLedgerFactory:
    return ManagedLedgerFactory(await cluster.client(), cluster._session(), cluster.clock, CONFIG)


def memory(cluster: FakeCluster) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


async def test_a_topic_ends_and_tells_which_ledgers_it_had(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await (await (await factory_of(cluster)).open(NAME)).close()
    ledger = await (await factory_of(cluster)).open(NAME)
    saved = memory(cluster).saved()
    await ledger.set_properties({"a": "b"})
    memory(cluster).put_back(saved)
    value = (await cluster.store.get(RECORD)).value  # type: ignore[union-attr]
    with pytest.raises(MetadataWentBack):
        await ledger.set_properties({"a": "c"})
    with pytest.raises(ManagedLedgerFenced, match="went back in time"):
        ledger.check_not_fenced()
    assert (await cluster.store.get(RECORD)).value == value  # type: ignore[union-attr]
    assert any("its ledgers here, and their entries: " in one.message for one in caplog.records)


async def test_the_node_of_a_cursor_is_not_written_over(cluster: FakeCluster) -> None:
    """The topic's record is the same: only the cursor's was written since."""
    ledger = await (await factory_of(cluster)).open(NAME)
    await ledger.open_cursor("s", EARLIEST)
    await ledger.close()
    ledger = await (await factory_of(cluster)).open(NAME)
    cursor = ledger.cursors["s"]
    saved = memory(cluster).saved()
    await cursor.set_string_properties({"a": "b"})
    memory(cluster).put_back(saved)
    before = await cluster.store.get(f"{RECORD}/s")
    with pytest.raises(MetadataWentBack):
        await cursor.set_string_properties({"a": "c"})
    assert await cluster.store.get(f"{RECORD}/s") == before


async def test_the_record_of_a_ledger_that_is_written_is_not_written_over(cluster: FakeCluster) -> None:
    client = await cluster.client()
    handle = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    path = ledger_path("/ledgers", handle.ledger_id)
    saved = memory(cluster).saved()
    found = await client.ledgers.read(handle.ledger_id)
    await client.ledgers.write(handle.ledger_id, found.metadata, found.version)
    await handle._record.check(synced=True)
    memory(cluster).put_back(saved)
    before = await cluster.store.get(path)
    with pytest.raises((WentBack, BookKeeperError), match=f"record of ledger {handle.ledger_id} is in version 0"):
        await handle.close()
    assert await cluster.store.get(path) == before


async def test_the_writer_of_a_ledger_says_that_its_record_went_back(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Before anything is appended; what is appended is not acknowledged, since another owner may have closed it."""
    client = await cluster.client()
    handle = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    saved = memory(cluster).saved()
    found = await client.ledgers.read(handle.ledger_id)
    await client.ledgers.write(handle.ledger_id, found.metadata, found.version)
    await handle._record.check(synced=True)
    handle.follow_record()
    memory(cluster).put_back(saved)
    await eventually(lambda: "does not say whether it is still ours" in caplog.text)
    assert f"ledger {handle.ledger_id}: its record does not say" in caplog.text
    with pytest.raises(BookKeeperError, match="went back in time"):
        await handle.add(b"x")


async def test_a_cursor_that_is_ahead_of_the_topic_skips_nothing_that_comes(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ledger, which the old node names, went on after the metadata were kept. Bookies move the numbers on."""
    ledger = await (await factory_of(cluster)).open(NAME)
    ledger.config = replace(CONFIG, rollover=replace(CONFIG.rollover, entries_max=1, age_min_ms=0))
    cursor = await ledger.open_cursor("s", EARLIEST)
    await publish(ledger, b"a")
    cursor.mark_delete(ledger.ledgers.last_confirmed)
    await cursor.flush()
    saved = memory(cluster).saved()
    await publish(ledger, b"b")
    await publish(ledger, b"lost")
    lost = ledger.ledgers.last_confirmed
    cursor.mark_delete(lost)
    await cursor.flush()
    memory(cluster).put_back(saved)
    await (await cluster.client()).ledgers.advance(lost.ledger_id)
    ledger = await (await factory_of(cluster)).open(NAME)
    assert lost.ledger_id not in [info.ledgerId for info in ledger._record.ledgers]
    cursor = ledger.cursors["s"]
    assert cursor.mark_delete_position == ledger.ledgers.last_confirmed
    assert cursor.backlog() == 0
    assert [one.message for one in caplog.records if "it had consumed up to" in one.message] != []
    await publish(ledger, b"after")
    assert cursor.backlog() == 1
    assert [
        bytes(one.data) for one in await read_all(ledger, ledger.ledgers.next_position(cursor.mark_delete_position))
    ] == [b"after"]


async def publish(ledger: ManagedLedger, payload: bytes) -> None:
    before = ledger.ledgers.last_confirmed
    ledger.append([payload], [payload])
    await eventually(lambda: not ledger.pending_count and ledger.ledgers.last_confirmed > before)
