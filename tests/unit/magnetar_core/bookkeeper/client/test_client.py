"""The asynchronous client against bookies in this process."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.deciding.quorum import ENSEMBLE_SIZE_MAX
from magnetar_core.bookkeeper.client.errors import (
    BeyondLastConfirmed,
    BookKeeperError,
    ClientClosed,
    EndUnknown,
    EntryTooLarge,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    RecoveryFailed,
    TooManyPending,
    Unauthorized,
)
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.client.wire.pool import MOVES_AT_ONCE
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import BookieServiceInfo, bookie_endpoint
from magnetar_core.bookkeeper.metadata.bookies.register import BookieRegistration
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import Versioned
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, OutcomeUnknown, StoreUnavailable
from magnetar_core.bookkeeper.wire.codec_v2 import ADD_ENTRY, BATCH_READ_ENTRY, FLAG_DO_FENCING, READ_ENTRY, V2Error
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.types import KIB
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.faulty_store import FaultyStore
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually, settle

T = TypeVar("T")


class Listener:
    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.errors: list[BookKeeperError] = []

    def on_acknowledged(self, up_to: int) -> None:
        assert not self.errors
        self.acknowledged.append(up_to)

    def on_failed(self, error: BookKeeperError) -> None:
        self.errors.append(error)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(4) as cluster:
        yield cluster


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies that were left out are tried again soon."""
    monkeypatch.setattr("magnetar_core.bookkeeper.client.deciding.writer.LEFT_OUT_S", 0.1)


@pytest.fixture
async def client(cluster: FakeCluster) -> BookKeeper:
    return await cluster.client()


async def create(client: BookKeeper, e: int = 3, w: int = 3, a: int = 2, **more: object) -> LedgerWriteHandle:
    return await client.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a, **more)  # type: ignore[arg-type]


async def payloads(handle: LedgerReadHandle) -> list[bytes]:
    if handle.last_add_confirmed < 0:
        return []
    return [bytes(entry.payload) for entry in await handle.read(0, handle.last_add_confirmed)]


@pytest.mark.parametrize("digest_type", list(DigestType))
@pytest.mark.parametrize(("e", "w", "a"), [(3, 3, 2), (3, 2, 2), (4, 2, 1), (1, 1, 1)])
async def test_what_is_written_is_read(client: BookKeeper, digest_type: DigestType, e: int, w: int, a: int) -> None:
    written = [b"", b"x", bytes(70_000), *(b"entry %d" % i for i in range(200))]
    handle = await create(client, e, w, a, digest_type=digest_type, password=b"pw")
    assert handle.append(written[:2]) == 0
    for payload in written[2:]:
        await handle.add(payload)
    metadata = await handle.close()
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 202)
    assert metadata.length == sum(map(len, written)) == handle.length
    reader = await client.open_ledger(handle.ledger_id, password=b"pw", recovery=False)
    assert reader.is_closed
    assert await payloads(reader) == written
    batch = await reader.read_batch(1, 3, 1_000_000)
    assert [entry.entry_id for entry in batch] == [1, 2, 3]
    batch = await reader.read_batch(2, 100, 10)
    assert [entry.entry_id for entry in batch] == [2]
    assert batch[0].length == 70_001


async def test_acknowledgements_come_in_order_and_gathered(client: BookKeeper) -> None:
    handle = await create(client)
    listener = handle.listener = Listener()
    handle.append([b"x" * 100] * 5_000)
    handle.append([b"y" * 100] * 5_000)
    assert handle.pending_count == 10_000
    assert handle.pending_bytes == 1_000_000
    assert not listener.acknowledged
    await eventually(lambda: handle.last_add_confirmed == 9_999)
    await asyncio.sleep(0)
    assert listener.acknowledged == sorted(set(listener.acknowledged))
    assert listener.acknowledged[-1] == 9_999
    assert len(listener.acknowledged) < 5_000
    assert handle.pending_bytes == 0


async def test_an_empty_ledger_is_closed_without_asking_any_bookie(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    metadata = await handle.close()
    assert (metadata.last_entry_id, metadata.length) == (-1, 0)
    assert not any(bookie.requests for bookie in cluster.bookies.values())
    with pytest.raises(LedgerClosed):
        handle.append([b"x"])
    assert await handle.close() == metadata


async def test_an_ensemble_change_loses_nothing(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    listener = handle.listener = Listener()
    expected = [b"%d" % i for i in range(300)]
    for i, payload in enumerate(expected):
        if i == 100:
            await cluster.kill(handle.metadata.segments[0].ensemble[1])
        handle.append([payload])
        if i % 10 == 0:
            await asyncio.sleep(0.001)
    await eventually(lambda: handle.last_add_confirmed == 299)
    metadata = await handle.close()
    assert len(metadata.segments) == 2
    assert not listener.errors
    reader = await client.open_ledger(handle.ledger_id, recovery=False)
    assert await payloads(reader) == expected
    new = metadata.segments[1]
    assert set(cluster.bookies[new.ensemble[1]].ledgers[handle.ledger_id]) == set(range(new.first_entry_id, 300))


async def show_read_only(cluster: FakeCluster, bookie_id: str) -> None:
    """It is registered as read-only and takes entries all the same, as a bookie does that is about to stop."""
    await cluster.set_read_only(bookie_id, True)
    cluster.bookies[bookie_id].read_only = False


async def test_a_bookie_that_turns_read_only_is_left_with_the_next_entry(
    cluster: FakeCluster, client: BookKeeper
) -> None:
    busy, quiet = await create(client), await create(client)
    listener = busy.listener = Listener()
    for handle in (busy, quiet):
        await handle.add(b"0")
    leaving = busy.metadata.segments[0].ensemble[1]
    await show_read_only(cluster, leaving)
    await eventually(lambda: leaving in client.bookies.read_only)
    for number in range(1, 50):
        busy.append([b"%d" % number])
        await asyncio.sleep(0)
    await eventually(lambda: len(busy.metadata.segments) == 2)
    await busy.add(b"50")
    await cluster.kill(leaving)
    await busy.add(b"51")
    metadata = await busy.close()
    assert [leaving in segment.ensemble for segment in metadata.segments] == [True, False]
    assert listener.errors == []
    assert len(quiet.metadata.segments) == 1, "nothing was appended to it"
    reader = await client.open_ledger(busy.ledger_id, recovery=False)
    assert await payloads(reader) == [b"%d" % number for number in range(52)]


async def test_a_read_only_bookie_without_a_successor_is_kept_until_there_is_one(
    cluster: FakeCluster, client: BookKeeper
) -> None:
    handle = await create(client, 4, 4, 4)
    await show_read_only(cluster, "bookie-2")
    await eventually(lambda: "bookie-2" in client.bookies.read_only)
    for number in range(5):
        await handle.add(b"%d" % number)
    assert len(handle.metadata.segments) == 1
    assert set(cluster.bookies["bookie-2"].ledgers[handle.ledger_id]) == set(range(5))
    await cluster.add_bookie("bookie-4")
    await eventually(lambda: "bookie-4" in client.bookies.writable)
    await handle.add(b"5")
    await eventually(lambda: len(handle.metadata.segments) == 2)
    assert "bookie-4" in handle.metadata.last_segment.ensemble


def refuse_older(cluster: FakeCluster, older: dict[int, Collection[str]]) -> list[tuple[int, str]]:
    """Ledger → bookies whose disks are newer. Returns who was asked to take an entry of which of them, as it grows."""
    asked: list[tuple[int, str]] = []

    def refuse(bookie_id: str, opcode: int, ledger_id: int, _: int) -> int | None:
        if opcode != ADD_ENTRY or bookie_id not in older.get(ledger_id, ()):
            return None
        asked.append((ledger_id, bookie_id))
        return V2Error.EREADONLY

    for bookie_id, bookie in cluster.bookies.items():
        bookie.refuse = partial(refuse, bookie_id)
    return asked


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 3, 2), (3, 2, 2), (4, 4, 3)])
async def test_a_ledger_that_is_older_than_all_disks_is_given_up_for_a_newer_one(
    cluster: FakeCluster, client: BookKeeper, sizes: tuple[int, int, int]
) -> None:
    """All bookies were exchanged, one after the other."""
    handle = await create(client, *sizes)
    await handle.add(b"0")
    refuse_older(cluster, {handle.ledger_id: list(cluster.bookies)})
    with pytest.raises(NotEnoughBookies):
        await asyncio.wait_for(handle.add(b"1"), 20)
    assert (await handle.close()).last_entry_id == 0
    assert await (await create(client, *sizes)).add(b"1") == 0


async def test_bookies_that_are_newer_than_a_ledger_are_asked_once(cluster: FakeCluster, client: BookKeeper) -> None:
    await cluster.add_bookie("bookie-4")
    await eventually(lambda: "bookie-4" in client.bookies.writable)
    handles = [await create(client, 2, 2, 2) for _ in range(12)]
    older: dict[int, Collection[str]] = {}
    for handle in handles:
        one, other = handle.metadata.last_segment.ensemble
        older[handle.ledger_id] = [one, *sorted(cluster.bookies.keys() - {one, other})[:2]]
    asked = refuse_older(cluster, older)
    for number in range(3):
        await asyncio.wait_for(asyncio.gather(*(handle.add(b"%d" % number) for handle in handles)), 20)
    for handle in handles:
        assert set(handle.metadata.last_segment.ensemble) == cluster.bookies.keys() - set(older[handle.ledger_id])
    assert len(asked) == len(set(asked))


@pytest.mark.usefixtures("soon")
async def test_a_bookie_whose_disk_was_full_comes_back_to_its_ledger(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client, 4, 4, 3)
    await cluster.set_read_only("bookie-0", True)
    await eventually(lambda: "bookie-0" in client.bookies.read_only)
    await handle.add(b"0")
    await handle.add(b"1")
    assert handle.ledger_id not in cluster.bookies["bookie-0"].ledgers
    await cluster.set_read_only("bookie-0", False)
    await eventually(lambda: "bookie-0" in client.bookies.writable)
    await handle.add(b"2")
    await eventually(lambda: 2 in cluster.bookies["bookie-0"].ledgers.get(handle.ledger_id, {}))


async def test_only_so_many_ledgers_leave_a_bookie_at_once(cluster: FakeCluster, client: BookKeeper) -> None:
    pool = client._pool
    assert pool is not None
    handles = [await create(client, 2, 2, 2) for _ in range(2 * MOVES_AT_ONCE)]
    before = [handle.metadata.last_segment.ensemble for handle in handles]
    for _ in range(MOVES_AT_ONCE):
        await pool.moves.acquire()  # as many have their turn already
    await show_read_only(cluster, "bookie-0")
    await eventually(lambda: "bookie-0" in client.bookies.read_only)
    for handle in handles:
        await handle.add(b"x")  # acknowledged meanwhile
    await asyncio.sleep(0.05)
    assert [handle.metadata.last_segment.ensemble for handle in handles] == before
    for _ in range(MOVES_AT_ONCE):
        pool.moves.release()
    await eventually(lambda: all("bookie-0" not in handle.metadata.last_segment.ensemble for handle in handles))


async def test_without_a_spare_bookie_the_ack_quorum_goes_on(cluster: FakeCluster, client: BookKeeper) -> None:
    await cluster.kill("bookie-3")
    await eventually(lambda: len(client.bookies.writable) == 3)
    handle = await create(client)
    await handle.add(b"0")
    lost = handle.metadata.segments[0].ensemble[0]
    await cluster.kill(lost)
    for i in range(1, 20):
        await handle.add(b"%d" % i)
    assert len(handle.metadata.segments) == 1
    await cluster.revive("bookie-3")
    await eventually(lambda: len(handle.metadata.segments) == 2)
    await handle.add(b"20")
    await eventually(lambda: 20 in cluster.bookies["bookie-3"].ledgers.get(handle.ledger_id, {}))
    await handle.close()
    reader = await client.open_ledger(handle.ledger_id, recovery=False)
    assert len(await payloads(reader)) == 21


async def test_a_bookie_that_comes_back_gets_entries_again(cluster: FakeCluster, client: BookKeeper) -> None:
    await cluster.kill("bookie-3")
    await eventually(lambda: len(client.bookies.writable) == 3)
    handle = await create(client)
    await handle.add(b"0")
    await cluster.kill("bookie-1")
    await handle.add(b"1")
    await handle.add(b"2")
    await cluster.revive("bookie-1")
    await eventually(lambda: not client._pool.unreachable)  # type: ignore[union-attr]

    async def reaches() -> bool:
        entry_id = await handle.add(b"more")
        await asyncio.sleep(0.02)
        return entry_id in cluster.bookies["bookie-1"].ledgers[handle.ledger_id]

    async with asyncio.timeout(20):
        while not await reaches():
            pass


async def test_too_few_bookies_end_the_writer_and_the_ledger_can_be_sealed(cluster: FakeCluster) -> None:
    client = await cluster.client(ClientConfig(hold_adds_s=0))
    handle = await create(client, 4, 4, 3)
    listener = handle.listener = Listener()
    await handle.add(b"0")
    for bookie_id in ("bookie-0", "bookie-1"):
        await cluster.kill(bookie_id)
    handle.append([b"1"])
    await eventually(lambda: listener.errors)
    assert isinstance(listener.errors[0], NotEnoughBookies)
    with pytest.raises(NotEnoughBookies):
        handle.append([b"2"])
    metadata = await handle.close()
    assert metadata.last_entry_id == 0


async def test_create_needs_enough_bookies(client: BookKeeper) -> None:
    for size, words in ((5, "of 5 bookies"), (10**12, f"limit of {ENSEMBLE_SIZE_MAX}")):
        with pytest.raises(BookKeeperError, match=words):
            await client.create_ledger(ensemble_size=size, write_quorum=2, ack_quorum=2)
    with pytest.raises(NotEnoughBookies, match="bookie-0"):
        await create(client, 5, 3, 2)
    with pytest.raises(ValueError):
        await create(client, 3, 2, 3)


async def test_recovery_fences_the_writer_and_keeps_everything_acknowledged(
    cluster: FakeCluster, client: BookKeeper
) -> None:
    handle = await create(client)
    listener = handle.listener = Listener()
    handle.append([b"%d" % i for i in range(50)])
    await eventually(lambda: handle.last_add_confirmed == 49)
    other = await cluster.client()
    reader = await other.open_ledger(handle.ledger_id, recovery=True)
    assert reader.is_closed
    assert reader.last_add_confirmed == 49
    assert reader.length == sum(len(b"%d" % i) for i in range(50))
    assert await payloads(reader) == [b"%d" % i for i in range(50)]
    handle.append([b"late"])
    await eventually(lambda: listener.errors)
    assert isinstance(listener.errors[0], LedgerFenced)
    with pytest.raises(LedgerFenced):
        handle.append([b"later"])
    with pytest.raises(LedgerFenced):
        await handle.close()
    again = await client.open_ledger(handle.ledger_id, recovery=True)
    assert again.metadata == reader.metadata


async def test_recovery_in_the_same_client_as_the_writer(client: BookKeeper) -> None:
    handle = await create(client)
    listener = handle.listener = Listener()
    for _ in range(20):
        handle.append([b"x"] * 50)
        await asyncio.sleep(0)
    reader = await client.open_ledger(handle.ledger_id, recovery=True)
    await asyncio.sleep(0.05)
    assert reader.last_add_confirmed >= (listener.acknowledged or [-1])[-1]
    assert len(await payloads(reader)) == reader.last_add_confirmed + 1


async def test_two_recoveries_at_once_agree(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client, 3, 2, 2)
    handle.append([b"%d" % i for i in range(40)])
    await eventually(lambda: handle.last_add_confirmed > 5)
    clients = [await cluster.client() for _ in range(3)]
    readers = await asyncio.gather(*(c.open_ledger(handle.ledger_id, recovery=True) for c in clients))
    assert len({reader.metadata for reader in readers}) == 1
    assert readers[0].last_add_confirmed >= handle.last_add_confirmed


async def test_an_entry_on_one_bookie_is_written_back_to_all(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client, 3, 3, 1)
    await handle.add(b"0")
    ensemble = handle.metadata.segments[0].ensemble
    await eventually(lambda: all(0 in cluster.bookies[b].ledgers[handle.ledger_id] for b in ensemble))
    for bookie_id in ensemble[1:]:
        cluster.bookies[bookie_id].silent = True
    handle.append([b"1", b"2"])
    await eventually(lambda: 2 in cluster.bookies[ensemble[0]].ledgers[handle.ledger_id])
    for bookie_id in ensemble[1:]:
        cluster.bookies[bookie_id].silent = False
    reader = await (await cluster.client()).open_ledger(handle.ledger_id, recovery=True)
    assert reader.last_add_confirmed == 2
    assert reader.length == 3
    for bookie_id in ensemble:
        assert {0, 1, 2} <= cluster.bookies[bookie_id].ledgers[handle.ledger_id].keys()


async def test_recovery_with_one_bookie_dead_needs_no_spare(cluster: FakeCluster, client: BookKeeper) -> None:
    await cluster.kill("bookie-3")
    await eventually(lambda: len(client.bookies.writable) == 3)
    handle = await create(client)
    handle.append([b"%d" % i for i in range(20)])
    await eventually(lambda: handle.last_add_confirmed == 19)
    await cluster.kill("bookie-1")
    reader = await (await cluster.client()).open_ledger(handle.ledger_id, recovery=True)
    assert reader.last_add_confirmed == 19
    assert len(await payloads(reader)) == 20


async def test_recovery_publishes_its_replacements_only_with_the_seal(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    handle.append([b"%d" % i for i in range(20)])
    await eventually(lambda: handle.last_add_confirmed == 19)
    ensemble = handle.metadata.segments[0].ensemble
    broken = cluster.bookies[ensemble[2]]
    broken.refuse = lambda opcode, *_: V2Error.EIO if opcode == ADD_ENTRY else None
    other = await cluster.client()
    states: list[tuple[LedgerState, int]] = []
    write = other.ledgers.write

    async def spying(ledger_id: int, metadata: object, version: int) -> object:
        states.append((metadata.state, len(metadata.segments)))  # type: ignore[attr-defined]
        return await write(ledger_id, metadata, version)  # type: ignore[arg-type]

    other.ledgers.write = spying  # type: ignore[method-assign, assignment]
    reader = await other.open_ledger(handle.ledger_id, recovery=True)
    assert reader.last_add_confirmed == 19
    assert len(await payloads(reader)) == 20
    assert states[0] == (LedgerState.IN_RECOVERY, 1)
    assert states[-1][0] is LedgerState.CLOSED
    assert len(states) == 2


async def test_what_recovery_wrote_back_elsewhere_is_found_there(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client, 3, 3, 3)
    for i in range(20):
        await handle.add(b"%d" % i)
    ensemble = handle.metadata.segments[0].ensemble
    cluster.bookies[ensemble[2]].refuse = lambda opcode, *_: V2Error.EIO if opcode == ADD_ENTRY else None
    reader = await (await cluster.client()).open_ledger(handle.ledger_id, recovery=True)
    last = reader.metadata.last_segment
    assert last.first_entry_id == 19
    assert set(last.ensemble) == {*ensemble[:2], *(cluster.bookies.keys() - set(ensemble))}
    assert 19 in cluster.bookies[last.ensemble[2]].ledgers[handle.ledger_id]


async def test_recovery_does_not_seal_what_changed_while_it_read(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    await handle.add(b"0")
    other = await cluster.client()
    write, third = other.ledgers.write, await cluster.client()

    async def meddling(ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
        if metadata.is_closed:
            found = await third.ledgers.read(ledger_id)
            names = tuple(reversed(found.metadata.last_segment.ensemble))
            changed = replace(found.metadata, segments=(Segment(0, names),))
            await third.ledgers.write(ledger_id, changed, found.version)
        return await write(ledger_id, metadata, version)

    other.ledgers.write = meddling  # type: ignore[method-assign]
    with pytest.raises(RecoveryFailed, match="its last segment changed"):
        await other.open_ledger(handle.ledger_id, recovery=True)
    assert (await third.ledgers.read(handle.ledger_id)).metadata.state is LedgerState.IN_RECOVERY


async def test_a_writer_does_not_change_the_record_of_a_ledger_that_is_recovered(
    cluster: FakeCluster, client: BookKeeper
) -> None:
    handle = await create(client)
    await handle.add(b"0")
    other = await cluster.client()
    found = await other.ledgers.read(handle.ledger_id)
    await other.ledgers.write(handle.ledger_id, found.metadata.in_recovery(), found.version)
    await cluster.kill(handle.metadata.segments[0].ensemble[0])

    async def add_on() -> None:
        for _ in range(100):  # one of them meets the dead bookie
            await handle.add(b"x")

    with pytest.raises(LedgerFenced):
        await add_on()
    after = (await other.ledgers.read(handle.ledger_id)).metadata
    assert after.state is LedgerState.IN_RECOVERY
    assert after.segments == found.metadata.segments


async def test_a_ledger_that_another_closed_elsewhere_is_not_closed_here(
    cluster: FakeCluster, client: BookKeeper
) -> None:
    handle = await create(client)
    for _ in range(3):
        await handle.add(b"x")
    other = await cluster.client()
    found = await other.ledgers.read(handle.ledger_id)
    await other.ledgers.write(handle.ledger_id, found.metadata.closed(0, 1), found.version)
    with pytest.raises(MetadataConflict, match="at entry 0, here the last one is 2"):
        await handle.close()


async def test_what_a_reader_knows_to_be_confirmed_stays_so(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    for _ in range(5):
        await handle.add(b"x")
    reader = await (await cluster.client()).open_ledger(handle.ledger_id, recovery=False)
    await handle.add(b"x")
    assert await reader.read_last_confirmed() == 4
    for bookie_id in handle.metadata.segments[0].ensemble:  # as if only those answered that are behind
        entries = cluster.bookies[bookie_id].ledgers[handle.ledger_id]
        for entry_id in (3, 4, 5):
            entries.pop(entry_id, None)
    assert await reader.read_last_confirmed() == 4


async def test_unknown_is_not_missing(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    await handle.add(b"0")
    for bookie in cluster.bookies.values():
        bookie.refuse = lambda opcode, ledger, entry: V2Error.EIO if opcode == READ_ENTRY and entry >= 0 else None
    other = await cluster.client()
    with pytest.raises(RecoveryFailed):
        await other.open_ledger(handle.ledger_id, recovery=True)
    for bookie in cluster.bookies.values():
        bookie.refuse = lambda *_: V2Error.EUNKNOWNLEDGERSTATE
    with pytest.raises(RecoveryFailed):
        await other.open_ledger(handle.ledger_id, recovery=True)
    assert (await other.read_metadata(handle.ledger_id)).state is LedgerState.IN_RECOVERY
    for bookie in cluster.bookies.values():
        bookie.refuse = lambda *_: None
    assert (await other.open_ledger(handle.ledger_id, recovery=True)).last_add_confirmed == 0


async def test_every_read_of_a_recovery_fences(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    await handle.add(b"0")
    for bookie in cluster.bookies.values():
        bookie.requests.clear()
    await (await cluster.client()).open_ledger(handle.ledger_id, recovery=True)
    reads = [r for bookie in cluster.bookies.values() for r in bookie.requests if r[0] == READ_ENTRY and r[3] != 0]
    assert reads
    assert all(flags & FLAG_DO_FENCING for _, flags, _, _ in reads)


async def test_an_open_ledger_is_read_without_disturbing_its_writer(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    for i in range(5):
        await handle.add(b"%d" % i)
    other = await cluster.client()
    reader = await other.open_ledger(handle.ledger_id, recovery=False)
    assert reader.metadata.state is LedgerState.OPEN
    assert reader.last_add_confirmed == 3  # the last LAC that an entry carried
    with pytest.raises(BeyondLastConfirmed):
        await reader.read(0, 4)
    assert await reader.last_recoverable_entry() == 4
    assert [bytes(e.payload) for e in await reader.read_unconfirmed(3, 4)] == [b"3", b"4"]
    await handle.add(b"5")
    assert await reader.read_last_confirmed() == 4
    await handle.close()
    assert await reader.read_last_confirmed() == 5
    assert reader.is_closed
    assert not any(bookie.fenced for bookie in cluster.bookies.values())


async def test_an_entry_short_of_its_ack_quorum_is_not_recoverable(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    await handle.add(b"0")
    for bookie_id in handle.metadata.segments[0].ensemble[1:]:
        cluster.bookies[bookie_id].silent = True
    handle.append([b"1"])
    await asyncio.sleep(0.02)
    for bookie in cluster.bookies.values():
        bookie.silent = False
    reader = await (await cluster.client()).open_ledger(handle.ledger_id, recovery=False)
    assert await reader.last_recoverable_entry() == 0


async def test_the_end_of_an_open_ledger_is_an_error_where_nobody_who_answers_knows_it(
    cluster: FakeCluster, client: BookKeeper
) -> None:
    handle = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    for i in range(3):
        await handle.add(b"%d" % i)
    dead, failing = handle.metadata.last_segment.ensemble
    reader = await (await cluster.client()).open_ledger(handle.ledger_id, recovery=False)
    assert await reader.last_recoverable_entry() == 2
    await cluster.kill(dead)
    assert await reader.last_recoverable_entry() == 2, "one of its two holders answers"
    with pytest.raises(EndUnknown, match="entries after 1 is not known") as uncertain:
        await reader.last_recoverable_entry(is_certain=True)
    assert uncertain.value.last_known == 1
    cluster.bookies[failing].refuse = lambda opcode, ledger_id, entry_id: V2Error.EIO if entry_id == 2 else None
    unknown_end = f"whether ledger {handle.ledger_id} has entries after 1 is not known"
    with pytest.raises(EndUnknown, match=unknown_end) as unknown:
        await reader.last_recoverable_entry()
    assert unknown.value.last_known == 1


async def test_reads_go_to_the_next_replica(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    for i in range(10):
        await handle.add(b"%d" % i)
    metadata = await handle.close()
    damaged, refusing, _ = metadata.segments[0].ensemble
    ledger = cluster.bookies[damaged].ledgers[handle.ledger_id]
    for entry_id, data in ledger.items():
        ledger[entry_id] = data[:-1] + b"?"
    cluster.bookies[refusing].refuse = lambda *_: V2Error.EIO
    reader = await (await cluster.client()).open_ledger(handle.ledger_id, recovery=False)
    assert await payloads(reader) == [b"%d" % i for i in range(10)]
    assert bytes((await reader.read(9, 9))[0].payload) == b"9"


async def test_missing_is_the_verdict_only_if_nothing_else_went_wrong(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    await handle.add(b"0")
    metadata = await handle.close()
    reader = await (await cluster.client()).open_ledger(handle.ledger_id, recovery=False)
    for bookie in cluster.bookies.values():
        bookie.ledgers[handle.ledger_id] = {}
    with pytest.raises(NoSuchEntry):
        await reader.read(0, 0)
    cluster.bookies[metadata.segments[0].ensemble[1]].refuse = lambda *_: V2Error.EIO
    with pytest.raises(BookKeeperError) as caught:
        await reader.read(0, 0)
    assert not isinstance(caught.value, NoSuchEntry)


async def test_bookies_that_do_not_know_batches_are_asked_one_by_one(cluster: FakeCluster, client: BookKeeper) -> None:
    for bookie in cluster.bookies.values():
        bookie.knows_batches = False
    handle = await create(client)
    handle.append([b"%d" % i for i in range(100)])
    await handle.add(b"100")
    await handle.close()
    reader = await (await cluster.client()).open_ledger(handle.ledger_id, recovery=False)
    assert await payloads(reader) == [b"%d" % i for i in range(101)]
    assert await payloads(reader) == [b"%d" % i for i in range(101)]
    batches = sum(r[0] == BATCH_READ_ENTRY for bookie in cluster.bookies.values() for r in bookie.requests)
    assert batches <= 3


async def test_a_slow_replica_is_not_waited_for(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    for i in range(5):
        await handle.add(b"%d" % i)
    metadata = await handle.close()
    first = metadata.segments[0].ensemble[handle.ledger_id % 3]
    cluster.bookies[first].silent = True
    other = await cluster.client(ClientConfig(speculative_read_timeout_ms=20))
    reader = await other.open_ledger(handle.ledger_id, recovery=False)
    assert len(await payloads(reader)) == 5


async def test_a_silent_bookie_is_replaced_after_the_timeout(cluster: FakeCluster) -> None:
    client = await cluster.client(ClientConfig(timeout_s=0.1))
    handle = await create(client, 3, 3, 3)
    await handle.add(b"0")
    cluster.bookies[handle.metadata.segments[0].ensemble[0]].silent = True
    await handle.add(b"1")
    metadata = await handle.close()
    assert metadata.segments[-1].first_entry_id == 1


async def test_copies_made_after_opening_are_found(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client, 1, 1, 1)
    await handle.add(b"0")
    metadata = await handle.close()
    (old,) = metadata.segments[0].ensemble
    new = next(b for b in cluster.bookies if b != old)
    reader = await client.open_ledger(handle.ledger_id, recovery=False)
    cluster.bookies[new].ledgers[handle.ledger_id] = cluster.bookies[old].ledgers.pop(handle.ledger_id)
    found = await client.ledgers.read(handle.ledger_id)
    await client.ledgers.write(handle.ledger_id, found.metadata.with_segment_replaced(0, (new,)), found.version)
    assert await payloads(reader) == [b"0"]


async def test_passwords(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client, password=b"secret")
    await handle.add(b"0")
    with pytest.raises(Unauthorized):
        await client.open_ledger(handle.ledger_id, password=b"wrong", recovery=True)
    await client.open_ledger(handle.ledger_id, password=b"secret", recovery=True)


async def test_deleting(client: BookKeeper) -> None:
    handle = await create(client)
    await handle.close()
    await client.delete_ledger(handle.ledger_id)
    await client.delete_ledger(handle.ledger_id)
    with pytest.raises(NoSuchLedger):
        await client.open_ledger(handle.ledger_id, recovery=False)


async def test_a_ledger_deleted_under_its_writer(cluster: FakeCluster, client: BookKeeper) -> None:
    handle = await create(client)
    listener = handle.listener = Listener()
    await handle.add(b"0")
    await client.delete_ledger(handle.ledger_id)
    await cluster.kill(handle.metadata.segments[0].ensemble[0])
    handle.append([b"1", b"2"])
    await asyncio.sleep(0.05)
    with pytest.raises(NoSuchLedger):
        await handle.close()
    assert not listener.acknowledged or listener.acknowledged[-1] <= 2


async def test_limits_are_refused_before_anything_is_sent(cluster: FakeCluster) -> None:
    client = await cluster.client(ClientConfig(pending_adds_max=10))
    handle = await create(client)
    with pytest.raises(EntryTooLarge):
        handle.append([b"good", bytes(5_300_000)])
    with pytest.raises(TooManyPending):
        handle.append([b"x"] * 11)
    assert handle.last_add_pushed == -1
    assert await handle.add(b"x") == 0


async def test_bytes_without_an_answer_are_limited_for_a_ledger(cluster: FakeCluster) -> None:
    client = await cluster.client(ClientConfig(pending_bytes_max=1_000))
    handle = await create(client)
    handle.append([bytes(600)] * 2)
    with pytest.raises(TooManyPending, match="maxPendingBytesPerLedger"):
        handle.append([b"x"])
    assert handle.last_add_pushed == 1
    await eventually(lambda: handle.last_add_confirmed == 1)
    assert await handle.add(b"x") == 2


SMALL_OUTBOX = ClientConfig(outbox_bytes_max=1_200_000, full_silence_s=0.2)


def pause(cluster: FakeCluster, bookie_id: str) -> None:
    """The system takes little for a bookie that reads nothing; by itself it would take megabytes."""
    for connection in cluster.bookies[bookie_id].connections:
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        connection.transport.pause_reading()


def resume(cluster: FakeCluster, bookie_id: str) -> None:
    for connection in cluster.bookies[bookie_id].connections:
        connection.transport.resume_reading()


async def fill(handle: LedgerWriteHandle, bookie_id: str) -> int:
    """Append until the full outbox to *bookie_id*, which reads nothing, blocks all; returns the number of entries."""
    for count in range(1_000):
        try:
            handle.append([bytes(100_000)])
        except TooManyPending as error:
            if bookie_id not in str(error):
                raise
            return count
        await asyncio.sleep(0.001)
    raise AssertionError("100 MB went to a bookie that reads nothing")


async def test_a_bookie_that_takes_no_data_and_says_nothing_is_given_up(cluster: FakeCluster) -> None:
    client = await cluster.client(SMALL_OUTBOX)
    handle = await create(client)
    await handle.add(b"0")
    slow = handle.metadata.segments[0].ensemble[0]
    pause(cluster, slow)
    await fill(handle, slow)
    await handle.add(b"1")
    metadata = await handle.close()
    assert slow not in metadata.segments[-1].ensemble


async def test_a_bookie_that_drains_a_long_queue_is_alive(cluster: FakeCluster) -> None:
    """Adds wait for the bookie, which is not replaced. When its outbox has room again, all waiters are resumed."""
    client = await cluster.client(ClientConfig(outbox_bytes_max=1_200_000, full_silence_s=30))
    handle = await create(client)
    await handle.add(b"0")
    slow = handle.metadata.segments[0].ensemble[0]
    pause(cluster, slow)
    count = await fill(handle, slow)
    assert handle.is_blocked
    told: list[int] = []
    for number in range(3):
        handle.when_writable(lambda number=number: told.append(number))  # type: ignore[misc]
    adding = [asyncio.create_task(handle.add(bytes(100_000))) for _ in range(5)]
    await asyncio.sleep(0.05)
    assert told == []
    resume(cluster, slow)
    assert sorted([await task for task in adding]) == list(range(count + 1, count + 6))
    assert told == [0, 1, 2]
    assert len((await handle.close()).segments) == 1


async def test_recoveries_wait_for_room_in_the_outbox_that_they_share(cluster: FakeCluster) -> None:
    """A broker has crashed, and another one takes its topics over, with large messages that no LAC confirms."""
    client = await cluster.client()
    handles = [await create(client) for _ in range(5)]
    for handle in handles:
        handle.append([bytes(20_000)] * 20)
        await handle.wait_for(19)
    other = await cluster.client(ClientConfig(outbox_bytes_max=120_000))
    opened = [other.open_ledger(handle.ledger_id, recovery=True) for handle in handles]
    assert [(one.last_add_confirmed, one.length) for one in await asyncio.gather(*opened)] == [(19, 400_000)] * 5


async def test_a_bookie_without_sockets_room_is_told_from_one_without_life(cluster: FakeCluster) -> None:
    """A bookie that answers now and then is alive. The clock is moved here: a busy machine is no silence."""
    cluster.clock = clock = ManualClock()
    client = await cluster.client(SMALL_OUTBOX)
    handle = await create(client)
    await handle.add(b"0")
    slow = handle.metadata.segments[0].ensemble[0]
    requests = cluster.bookies[slow].requests
    pause(cluster, slow)
    await fill(handle, slow)
    for _ in range(5):
        clock.advance(0.75 * SMALL_OUTBOX.full_silence_s)
        taken = len(requests)
        resume(cluster, slow)
        await eventually(lambda taken=taken: len(requests) > taken)  # type: ignore[misc]
        await settle()
        pause(cluster, slow)
        await fill(handle, slow)
    resume(cluster, slow)
    await handle.add(b"1")
    assert len((await handle.close()).segments) == 1


@pytest.mark.parametrize("comes_late", [True, False])
async def test_an_add_that_is_overtaken_by_answers_is_waited_for(cluster: FakeCluster, comes_late: bool) -> None:
    """The time-out measures silence of the bookie. An add whose answer never comes fails all the same."""
    client = await cluster.client(ClientConfig(timeout_s=0.15))
    handle = await create(client)
    await handle.add(b"0")
    forgetful = handle.metadata.segments[0].ensemble[0]
    bookie = cluster.bookies[forgetful]
    (connection,) = bookie.connections
    answer, kept = bookie.answer, []

    def keep_the_first(frame: memoryview) -> list[Any]:
        made = answer(frame)
        if bookie.requests[-1][-1] == 1:
            kept.extend(made)
            return []
        return made

    bookie.answer = keep_the_first  # type: ignore[method-assign]
    assert handle.append([b"1"]) == 1
    for _ in range(35):  # two time-outs and more
        await handle.add(b"2")
        await asyncio.sleep(0.01)
    if comes_late:
        connection.transport.writelines(kept)
        for _ in range(35):
            await handle.add(b"3")
            await asyncio.sleep(0.01)
        assert len((await handle.close()).segments) == 1
        return
    while len(handle.metadata.segments) == 1:
        await handle.add(b"3")
        await asyncio.sleep(0.01)
    assert forgetful not in (await handle.close()).segments[-1].ensemble


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("registered", [True, False])
async def test_adds_are_held_while_no_bookie_is_there_and_then_stored_once(
    cluster: FakeCluster, registered: bool
) -> None:
    client = await cluster.client()
    handle = await create(client, 4, 4, 3)
    listener = handle.listener = Listener()
    await handle.add(b"0")
    for bookie_id in list(cluster.bookies):
        await cluster.kill(bookie_id, unregister=not registered)
    adding = [asyncio.create_task(handle.add(b"%d" % number)) for number in range(1, 6)]
    await eventually(lambda: handle._writer.is_starved)
    adding += [asyncio.create_task(handle.add(b"%d" % number)) for number in range(6, 9)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in adding)
    for bookie_id, bookie in list(cluster.bookies.items()):
        await (bookie.start() if registered else cluster.revive(bookie_id))
    assert [await task for task in adding] == list(range(1, 9))
    assert listener.errors == []
    metadata = await handle.close()
    assert len(metadata.segments) == 1, "nobody else was there"
    reader = await client.open_ledger(handle.ledger_id, recovery=False)
    assert await payloads(reader) == [b"%d" % number for number in range(9)]


@pytest.mark.usefixtures("soon")
async def test_adds_that_were_held_too_long_fail(cluster: FakeCluster) -> None:
    client = await cluster.client(ClientConfig(hold_adds_s=0.1))
    handle = await create(client, 4, 4, 3)
    for bookie_id in list(cluster.bookies):
        await cluster.kill(bookie_id)
    with pytest.raises(NotEnoughBookies, match="no bookie is left"):
        await asyncio.wait_for(handle.add(b"0"), 30)


async def test_closing_the_client_ends_what_is_pending(cluster: FakeCluster) -> None:
    client = await cluster.client()
    handle = await create(client)
    for bookie in cluster.bookies.values():
        bookie.silent = True
    adding = asyncio.create_task(handle.add(b"x"))
    await asyncio.sleep(0.02)
    await client.close()
    with pytest.raises(BookKeeperError):
        await adding
    with pytest.raises(ClientClosed):
        await client.open_ledger(0, recovery=False)


async def test_a_ledger_that_cannot_be_made_names_who_is_read_only_and_why(
    cluster: FakeCluster, client: BookKeeper
) -> None:
    registrations = []
    for bookie_id in sorted(cluster.bookies):
        await cluster.kill(bookie_id)
        registration = BookieRegistration(cluster.store, "/ledgers", bookie_id, cluster.clock)
        await registration.set_read_only(True, "disk: /data: 97.0% of the disk is used")
        await registration.register(BookieServiceInfo((bookie_endpoint("127.0.0.1", 1),)))
        registrations.append(registration)
    await cluster.store.put("/ledgers/cookies/gone", b"")
    await asyncio.sleep(0.05)
    with pytest.raises(NotEnoughBookies) as refused:
        await create(client)
    assert "writable are: none; bookie-0 is read-only (disk: /data: 97.0% of the disk is used); " in str(refused.value)
    assert str(refused.value).endswith("; gone is away")
    for registration in registrations:
        await registration.unregister()


@pytest.mark.parametrize("seed", range(4))
async def test_r_r13_with_a_metadata_store_that_loses_requests_and_answers_no_ledger_vanishes(
    cluster: FakeCluster, seed: int
) -> None:
    """Clients create, write, close, reopen and recover; each request to the store may be lost, or its answer."""
    rng = random.Random(seed)
    is_lossy = False

    async def on_step(what: str, path: str) -> None:
        if not is_lossy or rng.random() > 0.08:
            return
        if what.endswith(" done") or (what in ("put", "delete", "multi") and rng.random() < 0.5):
            raise OutcomeUnknown(f"{path}: the connection broke")
        raise StoreUnavailable(f"{path}: nobody answers")

    async def insist(work: Callable[[], Awaitable[T]]) -> T:
        failures: list[str] = []
        while len(failures) < 1_000:
            try:
                return await work()
            except (MetadataError, BookKeeperError) as error:
                failures.append(str(error))
                await asyncio.sleep(0.005)  # bookies whose address could not be read are not tried again at once
        raise AssertionError(failures[-5:])

    clients = [BookKeeper(FaultyStore(cluster.store, on_step), cluster.clock, ClientConfig()) for _ in range(2)]
    for one in clients:
        await one.open()
        cluster._clients.append(one)
    is_lossy = True
    acknowledged: dict[int, list[bytes]] = {}
    doubtful: dict[int, bytes] = {}
    """Ledger → an entry that was not acknowledged: the store did not answer when a bookie was to be changed."""

    def check(ledger_id: int, stored: list[bytes]) -> None:
        written = acknowledged[ledger_id]
        assert stored in (written, [*written, doubtful.get(ledger_id)])

    for round_ in range(40):
        writer, reader = rng.sample(clients, 2)
        handle = await insist(lambda: create(writer))  # noqa: B023
        assert handle.ledger_id not in acknowledged
        entries = acknowledged[handle.ledger_id] = []
        for number in range(rng.randrange(1, 6)):
            payload = b"%d/%d" % (round_, number)
            try:
                await handle.add(payload)
            except MetadataUnavailable:
                doubtful[handle.ledger_id] = payload
                break
            entries.append(payload)
        if rng.random() < 0.5:
            try:
                await handle.close()
            except (MetadataError, BookKeeperError):
                await handle.abandon()
        else:
            await handle.abandon()
        again = rng.choice(list(acknowledged))
        opened = await insist(lambda: reader.open_ledger(again, recovery=True))  # noqa: B023
        check(again, await payloads(opened))
    is_lossy = False
    whole = await cluster.client()
    assert {one async for one in whole.ledgers.list()} >= acknowledged.keys()
    assert len(doubtful) < 10, "it is an exception"
    for ledger_id in acknowledged:
        opened = await whole.open_ledger(ledger_id, recovery=True)
        check(ledger_id, await payloads(opened))
