"""A writer acknowledges nothing in a ledger that was closed while it looked away (I130)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar_core.bookkeeper.client import write_handle
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, LedgerClosed, LedgerFenced, NoSuchLedger
from magnetar_core.bookkeeper.client.wire.pool import LOOKS_AT_ONCE
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import ledger_path
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import StoreUnavailable
from magnetar_core.runtime.clock import LoopClock
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.faulty_store import FaultyStore
from tests.support.waiting import eventually


class _Readings:
    """Counts the readings of records past a server that is behind; fails them on order."""

    def __init__(self) -> None:
        self.count = 0
        self.is_silent = False
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.records = 0
        """Readings of records of ledgers, of whatever kind."""
        self.of_records = asyncio.Event()
        self.of_records.set()

    async def step(self, what: str, path: str) -> None:
        if what == "get" and "/L" in path:
            self.records += 1
            await self.of_records.wait()
        if what == "sync":
            self.count += 1
            if self.is_silent:
                raise StoreUnavailable("the store does not answer")
            await self.go_on.wait()


@pytest.fixture
def readings() -> _Readings:
    return _Readings()


@pytest.fixture
async def cluster(readings: _Readings) -> AsyncIterator[FakeCluster]:
    async with fake_cluster(3, FaultyStore(MemoryStore(LoopClock()), readings.step)) as cluster:
        yield cluster


async def written(cluster: FakeCluster, *payloads: bytes) -> LedgerWriteHandle:
    client = await cluster.client()
    handle = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    for payload in payloads:
        await handle.add(payload)
    return handle


async def recovered(cluster: FakeCluster, handle: LedgerWriteHandle) -> BookKeeper:
    """Somebody closes the ledger."""
    other = await cluster.client()
    await other.open_ledger(handle.ledger_id, recovery=True)
    return other


async def exchange(cluster: FakeCluster, handle: LedgerWriteHandle) -> None:
    """Each bookie of the ledger gets empty disks, under its name and at its address."""
    for bookie_id in handle.metadata.last_segment.ensemble:
        bookie = cluster.bookies[bookie_id]
        await bookie.stop()
        bookie.ledgers.clear()
        bookie.fenced.clear()
        bookie.keys.clear()
        await bookie.start()


def forget(cluster: FakeCluster) -> None:
    """As bookies do that have collected a deleted ledger: nothing of it is left, and their sockets stay."""
    for bookie in cluster.bookies.values():
        bookie.ledgers.clear()
        bookie.fenced.clear()


@pytest.mark.parametrize("payloads", [(), (b"one",)], ids=["empty", "one entry"])
async def test_nothing_is_acknowledged_by_bookies_that_came_back_without_the_fence(
    cluster: FakeCluster, payloads: tuple[bytes, ...]
) -> None:
    handle = await written(cluster, *payloads)
    await recovered(cluster, handle)
    await exchange(cluster, handle)
    with pytest.raises(LedgerClosed, match=f"at entry {len(payloads) - 1}"):
        await handle.add(b"gone")
    assert handle.last_add_confirmed == len(payloads) - 1


async def test_a_recovery_that_is_under_way_counts_as_well(cluster: FakeCluster) -> None:
    handle = await written(cluster, b"one")
    client = await cluster.client()
    versioned = await client.record_of(handle.ledger_id)
    await client.ledgers.write(handle.ledger_id, versioned.metadata.in_recovery(), versioned.version)
    await exchange(cluster, handle)
    with pytest.raises(LedgerFenced, match="is being recovered"):
        await handle.add(b"gone")


async def test_a_ledger_that_is_still_open_goes_on_after_one_reading(cluster: FakeCluster, readings: _Readings) -> None:
    handle = await written(cluster, b"one", b"two")
    before = readings.count
    await handle.add(b"three")
    assert readings.count == before, "over the same sockets nothing is read"
    for bookie_id in handle.metadata.last_segment.ensemble:
        await cluster.bookies[bookie_id].stop()
        await cluster.bookies[bookie_id].start()
    assert await handle.add(b"four") == 3
    assert readings.count - before in (1, 2)  # both sockets are there at the first reading, or one is late
    before = readings.count
    assert await handle.add(b"five") == 4
    assert readings.count == before


async def test_what_came_over_new_sockets_waits_until_the_store_answers(
    cluster: FakeCluster, readings: _Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_handle, "READ_AGAIN_S", 0.01)
    handle = await written(cluster, b"one")
    readings.is_silent = True
    before = readings.count
    await exchange(cluster, handle)
    adding = asyncio.create_task(handle.add(b"two"))
    await eventually(lambda: readings.count >= before + 2)
    stored = [len(cluster.bookies[one].ledgers[handle.ledger_id]) for one in handle.metadata.last_segment.ensemble]
    assert stored == [1, 1]
    assert not adding.done()
    assert handle.last_add_confirmed == 0
    readings.is_silent = False
    assert await adding == 1


async def test_a_socket_that_is_made_anew_during_a_reading_needs_another_one(
    cluster: FakeCluster, readings: _Readings
) -> None:
    handle = await written(cluster, b"one")
    await exchange(cluster, handle)
    before = readings.count
    readings.go_on.clear()
    adding = asyncio.create_task(handle.add(b"two"))
    await eventually(lambda: readings.count > before)
    await exchange(cluster, handle)
    more = asyncio.create_task(handle.add(b"three"))
    await eventually(lambda: all(cluster.bookies[one].ledgers for one in handle.metadata.bookies()))
    assert not adding.done()
    readings.go_on.set()
    await asyncio.gather(adding, more)
    assert readings.count > before + 1


async def test_after_a_pause_the_record_is_read(
    cluster: FakeCluster, readings: _Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await written(cluster, b"one")
    other = await recovered(cluster, handle)
    await other.delete_ledger(handle.ledger_id)
    forget(cluster)
    monkeypatch.setattr(write_handle, "BELIEF_S", 0.0)
    with pytest.raises(NoSuchLedger):
        await handle.add(b"gone")


async def test_a_store_that_stands_still_does_not_stop_a_writer_after_a_pause(
    cluster: FakeCluster, readings: _Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await written(cluster, b"one")
    monkeypatch.setattr(write_handle, "BELIEF_S", 0.0)
    monkeypatch.setattr(write_handle, "PAUSE_READ_S", 0.01)
    readings.go_on.clear()
    before = readings.count
    async with asyncio.timeout(10):
        assert await handle.add(b"two") == 1
    assert readings.count == before + 1
    readings.go_on.set()


# ------------------------------------------------------------------------------- while nothing is appended


class _Listener:
    def __init__(self) -> None:
        self.errors: list[BookKeeperError] = []

    def on_acknowledged(self, up_to: int) -> None:
        pass

    def on_failed(self, error: BookKeeperError) -> None:
        self.errors.append(error)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_handle, "NOTICE_S", 0.0)


def followed(handle: LedgerWriteHandle) -> _Listener:
    listener = handle.listener = _Listener()
    handle.follow_record()
    return listener


@pytest.mark.usefixtures("at_once")
async def test_a_writer_that_follows_its_record_hears_of_the_end(cluster: FakeCluster) -> None:
    handle = await written(cluster, b"one")
    listener = followed(handle)
    await recovered(cluster, handle)
    await eventually(lambda: listener.errors)
    (error,) = listener.errors
    assert isinstance(error, LedgerClosed)
    assert str(error) == f"ledger {handle.ledger_id} was closed by another client at entry 0"


@pytest.mark.usefixtures("at_once")
async def test_a_writer_that_follows_its_record_hears_of_a_deletion(cluster: FakeCluster) -> None:
    handle = await written(cluster, b"one")
    listener = followed(handle)
    await (await cluster.client()).delete_ledger(handle.ledger_id)
    await eventually(lambda: listener.errors)
    assert isinstance(listener.errors[0], NoSuchLedger)


async def test_a_recovery_that_has_not_ended_is_waited_for(cluster: FakeCluster, readings: _Readings) -> None:
    handle = await written(cluster, b"one")
    listener = followed(handle)
    client = await cluster.client()
    versioned = await client.record_of(handle.ledger_id)
    await client.ledgers.write(handle.ledger_id, versioned.metadata.in_recovery(), versioned.version)
    before = readings.records
    await eventually(lambda: readings.records > before)
    assert listener.errors == []


async def test_copies_that_were_moved_are_taken_over(cluster: FakeCluster) -> None:
    handle = await written(cluster, b"one")
    listener = followed(handle)
    await cluster.kill(handle.metadata.last_segment.ensemble[0])
    await handle.add(b"two")
    client = await cluster.client()
    versioned = await client.record_of(handle.ledger_id)
    old, present = versioned.metadata.segments
    moved = versioned.metadata.with_segment_replaced(old.first_entry_id, present.ensemble)
    await client.ledgers.write(handle.ledger_id, moved, versioned.version)
    await eventually(lambda: handle.metadata.segments == moved.segments)
    await handle.add(b"three")
    assert listener.errors == []


@pytest.mark.parametrize("is_gone", [False, True], ids=["read-only", "gone"])
async def test_a_writer_that_is_asked_leaves_bookies_that_take_no_entries(cluster: FakeCluster, is_gone: bool) -> None:
    """Although it has nothing to write."""
    handle = await written(cluster, b"one")
    listener = followed(handle)
    leaving, staying = handle.metadata.last_segment.ensemble
    client = await cluster.client()
    if is_gone:
        await cluster.kill(leaving)
    else:
        await cluster.set_read_only(leaving, True)
    await eventually(lambda: leaving not in client.bookies.writable)
    for _ in range(20):
        await asyncio.sleep(0)
    assert handle.metadata.last_segment.ensemble == (leaving, staying)
    handle._on_record()  # as after a reconnect to the store: nobody has asked
    for _ in range(20):
        await asyncio.sleep(0)
    assert handle.metadata.last_segment.ensemble == (leaving, staying)
    versioned = await client.record_of(handle.ledger_id)
    await client.ledgers.write(handle.ledger_id, versioned.metadata, versioned.version)
    await eventually(lambda: leaving not in handle.metadata.last_segment.ensemble)
    first, last = handle.metadata.segments
    assert (first.ensemble, last.first_entry_id) == ((leaving, staying), 1)
    assert await handle.add(b"two") == 1
    assert listener.errors == []


async def test_who_has_closed_its_ledger_follows_no_record(cluster: FakeCluster, readings: _Readings) -> None:
    handle = await written(cluster, b"one")
    followed(handle)
    await handle.close()
    before = readings.records
    await cluster.store.delete(ledger_path("/ledgers", handle.ledger_id))
    for _ in range(20):
        await asyncio.sleep(0)
    assert readings.records == before


async def test_only_so_many_records_are_looked_at_together(cluster: FakeCluster, readings: _Readings) -> None:
    client = await cluster.client()
    handles = [
        await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) for _ in range(LOOKS_AT_ONCE + 5)
    ]
    for handle in handles:
        followed(handle)
    readings.of_records.clear()
    for handle in handles:
        handle._on_record()
    before = readings.records
    await eventually(lambda: readings.records == before + LOOKS_AT_ONCE)
    for _ in range(20):
        await asyncio.sleep(0)
    assert readings.records == before + LOOKS_AT_ONCE
    readings.of_records.set()
    await eventually(lambda: readings.records == before + len(handles))
