"""Which ledgers and logs garbage collection may delete: the decisions, and a whole bookie that deletes."""

import asyncio
import errno

import pytest

from bookie.admin.operations import DiskFileKind
from bookie.bookie import Bookie
from bookie.maintenance.garbage.collector import GcStatus
from bookie.maintenance.garbage.rules import (
    CANDIDATES_MAX,
    CompactionKind,
    CompactionSchedule,
    KindPlan,
    ListingLimits,
    LogUsage,
    MovedCopies,
    Quarantine,
    RefusalCode,
    dead_logs,
    has_room,
    refuse_listing,
    worth_compacting,
)
from bookie.storage.ledgers import TOMBSTONE_MS, Tombstones
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerState, Segment, ledger_path
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import Node, StoreUnavailable
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.runtime.rate_limiter import RateLimiter
from magnetar_core.runtime.types import Corruption
from tests.support.bookie_disks import KEY, on_each_operation, stored_entry
from tests.support.bookie_world import LyingWorld
from tests.support.serving import HurriedClock, Wire
from tests.support.waiting import eventually

FENCE = v2.FLAG_DO_FENCING
ENOLEDGER, EFENCED = 1, 104
LIMITS = ListingLimits()


# -- decisions about ledgers


@pytest.mark.parametrize(
    ("local", "unlisted", "listed", "before", "code"),
    [
        (0, 0, 0, None, None),
        (1, 1, 0, None, RefusalCode.EMPTY_LISTING),
        (5, 0, 0, 5, RefusalCode.EMPTY_LISTING),
        (150, 99, 1, None, None),
        (150, 100, 1, None, RefusalCode.SHRUNKEN_LISTING),
        (400, 200, 1, None, None),
        (400, 201, 1, None, RefusalCode.SHRUNKEN_LISTING),
        (400, 0, 499, 1000, RefusalCode.SHRUNKEN_LISTING),
        (400, 0, 500, 1000, None),
        (400, 0, 10, 109, None),
    ],
)
def test_a_listing_that_would_cost_too_much_is_refused(
    local: int, unlisted: int, listed: int, before: int | None, code: RefusalCode | None
) -> None:
    refusal = refuse_listing(local, unlisted, listed, before, LIMITS)
    assert (refusal and refusal.code) == code
    if refusal is not None:
        assert "trigger a collection that accepts the listing" in refusal.text


def test_limits_of_a_listing_can_be_switched_off() -> None:
    assert refuse_listing(1000, 1000, 0, 1000, ListingLimits(False, 1.0, 0)) is None


def test_two_rounds_prove_that_a_ledger_is_gone() -> None:
    quarantine = Quarantine()
    assert quarantine.confirm([1, 2], [1, 2]) == []
    assert quarantine.confirm([2, 3], [2, 3]) == [2]
    assert len(quarantine) == 1  # 3; 1 was listed again
    assert quarantine.confirm([], [3]) == []  # nobody could say: it waits
    assert quarantine.confirm([1, 3], [1, 3]) == [3]
    quarantine.postpone([3])
    assert quarantine.confirm([3], [3]) == [3]


def test_a_round_reads_for_so_many_ledgers_only_and_the_longest_waiting_first() -> None:
    quarantine = Quarantine()
    quarantine.confirm([CANDIDATES_MAX * 3], [CANDIDATES_MAX * 3])
    candidates = quarantine.candidates(range(CANDIDATES_MAX * 4))
    assert len(candidates) == CANDIDATES_MAX
    assert candidates[:2] == [CANDIDATES_MAX * 3, 0]


def test_tombstones_last_seven_days_and_survive_as_bytes() -> None:
    tombstones = Tombstones()
    tombstones.add(1, 1000)
    tombstones.add(2, 2000)
    data = tombstones.encode([1, 2, 3])
    again = Tombstones()
    again.load(data, "f")
    again.expire(1001 + TOMBSTONE_MS)
    assert (1 in again, 2 in again, len(again)) == (False, True, 1)
    for damaged in (b"", data[:-1], data[:-5] + b"x" + data[-4:], b"x" + data):
        with pytest.raises(Corruption, match=r"f: .* may be removed"):
            Tombstones().load(damaged, "f")


# -- decisions about logs


def usage(log_id: int, **bytes_of: int) -> LogUsage:
    return LogUsage(log_id, 10_000, {int(name[1:]): size for name, size in bytes_of.items()}, True)


def test_logs_are_compacted_the_emptiest_first() -> None:
    usages = [usage(1, l1=60, l2=40), usage(2, l1=10, l2=90), usage(3, l1=20, l2=80), usage(4, l2=5), usage(5)]
    assert [found.log_id for found in worth_compacting(usages, {1}, 0.5)] == [4, 5, 2, 3]
    assert [found.log_id for found in worth_compacting(usages, {1}, 0.2)] == [4, 5, 2]
    assert [found.log_id for found in dead_logs(usages, {1})] == [4, 5]
    assert dead_logs(usages, {1, 2}) == [usages[4]]


def test_a_copy_needs_room_beside_the_reserve() -> None:
    assert has_room(100, 60, 40, False)
    assert not has_room(99, 60, 40, False)
    assert has_room(60, 60, 40, True)
    assert not has_room(59, 60, 40, True)


def test_compactions_are_due_by_time_by_force_and_not_while_suspended() -> None:
    minor, major = KindPlan(0.2, 3600, None), KindPlan(0.5, 86400, 60)
    schedule = CompactionSchedule(minor, major, force_when_off=True, now_s=0)
    assert schedule.due(3599, []) is None
    assert schedule.due(3600, []) == (CompactionKind.MINOR, 0.2, False, None)
    assert schedule.due(86400, []) == (CompactionKind.MAJOR, 0.5, False, 60)
    schedule.done(CompactionKind.MAJOR, 86400)
    assert schedule.due(86401, []) is None
    assert schedule.due(86401, list(CompactionKind)) == (CompactionKind.MAJOR, 0.5, True, 60)
    schedule.suspended[CompactionKind.MAJOR] = True
    assert schedule.due(86401, list(CompactionKind)) == (CompactionKind.MINOR, 0.2, True, None)
    off = CompactionSchedule(KindPlan(0, 3600, None), KindPlan(0.5, 0, None), force_when_off=False, now_s=0)
    assert off.due(1e9, [CompactionKind.MINOR]) is None
    assert CompactionSchedule(KindPlan(0, 1, None), major, force_when_off=True, now_s=0).due(
        1, [CompactionKind.MINOR]
    ) == (CompactionKind.MINOR, 1.0, True, None)


def test_a_pace_makes_up_for_what_was_spent_and_saves_nothing() -> None:
    limiter = RateLimiter(100)
    assert limiter.spend(10.0, 50) == 0.5
    assert limiter.spend(10.1, 50) == pytest.approx(0.9)
    assert limiter.spend(20.0, 1) == pytest.approx(0.01)


# -- a whole bookie


@pytest.fixture
def world() -> LyingWorld:
    return LyingWorld(HurriedClock())


async def fill(bookie: Bookie, ledgers: range, entries: int = 3, size: int = 100) -> Wire:
    """Entries in every ledger, flushed into entry logs."""
    wire = await Wire.connect(bookie)
    for ledger_id in ledgers:
        for entry_id in range(entries):
            assert await wire.add(stored_entry(ledger_id, entry_id, bytes([ledger_id % 256]) * size)) == 0
    await flushed(bookie)
    return wire


async def flushed(bookie: Bookie) -> None:
    bookie.parts.checkpointer.flush()
    await eventually(lambda: bookie.server.write_cache.is_empty)


def test_a_copy_that_moved_may_go_when_two_passes_saw_the_same() -> None:
    copies = MovedCopies()
    copies.begin()
    assert not copies.may_go(1, 5, was_written=False)
    assert not copies.may_go(2, 5, was_written=False)
    assert not copies.may_go(3, 5, was_written=False)
    copies.begin()
    assert copies.may_go(1, 5, was_written=False)
    assert not copies.may_go(2, 6, was_written=False), "its record was changed"
    assert not copies.may_go(3, 5, was_written=True)
    copies.begin()
    assert not copies.may_go(1, 5, was_written=False), "a pass in which it was to go says nothing about the next"
    assert copies.may_go(2, 6, was_written=False)
    assert copies.may_go(3, 5, was_written=False)
    copies.begin()
    copies.begin()
    assert not copies.may_go(1, 5, was_written=False), "the pass before did not see it"


async def rounds(bookie: Bookie, count: int = 1, **how: bool) -> GcStatus:
    for _ in range(count):
        bookie.parts.collector.trigger(**how)
        await bookie.parts.collector.settled()
        status = bookie.parts.collector.status()
        await asyncio.sleep(0.002)  # longer than gc_over_replicated_wait_ms, so that the next round looks again
    return status


async def test_a_deleted_ledger_goes_in_the_second_round_and_its_logs_with_it(world: LyingWorld) -> None:
    async with world.serving(write_cache_mib=1) as bookie:
        for ledger_id in (1, 2):
            await world.record_ledger(ledger_id)
        wire = await fill(bookie, range(1, 3))
    async with world.serving() as bookie:  # the log of the first life is closed
        wire = await Wire.connect(bookie)
        status = await rounds(bookie)
        assert (status.listed_ledgers, status.local_ledgers, status.logs) == (2, 2, 1)
        assert status.live_bytes > 600
        await world.ledgers.delete(1)
        await rounds(bookie)
        assert await wire.read(1, 0) == stored_entry(1, 0, b"\1" * 100)
        status = await rounds(bookie)
        assert (status.deleted_ledgers, status.local_ledgers, status.removed_logs) == (1, 1, 0)
        assert await wire.read(1, 0) == ENOLEDGER
        assert await wire.read(2, 0) == stored_entry(2, 0, b"\2" * 100)
        await world.record_ledger(9)
        await world.ledgers.delete(2)
        status = await rounds(bookie, 2)
        assert (status.deleted_ledgers, status.removed_logs, status.logs) == (2, 1, 0)
        assert status.reclaimed_bytes > 600
        assert status.compaction_bytes == 0
        assert await bookie.operations.list_disk_files(DiskFileKind.ENTRY_LOG) == {"/bookie/ledgers/current": []}
    async with world.serving() as bookie:
        assert bookie.operations.list_ledgers() == []


async def test_a_ledger_that_is_listed_or_readable_or_unknown_stays(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        for ledger_id in (1, 2, 3):
            await world.record_ledger(ledger_id)
        await fill(bookie, range(1, 4))
        # The record of 2 is damaged, and the listing forgets both 2 and 3.
        await world.store.put(ledger_path("/ledgers", 2), b"garbage")
        forgetful = ForgetfulStore(world.store, {2, 3})
        bookie.parts.collector._reads.store._store = forgetful  # type: ignore[assignment]
        status = await rounds(bookie, 4)
        assert status.listed_ledgers == 1
        assert status.deleted_ledgers == status.quarantined_ledgers == 0
        assert status.unreadable_ledgers == (2,)
        assert bookie.operations.list_ledgers() == [1, 2, 3]


class ForgetfulStore:
    """Leaves ledgers out of listings."""

    def __init__(self, store: MemoryStore, forgotten: set[int]) -> None:
        self._store = store
        self._names = {f"L{ledger_id:04d}" for ledger_id in forgotten}

    async def get(self, path: str) -> Node | None:
        return await self._store.get(path)

    async def children(self, path: str) -> list[str]:
        return [name for name in await self._store.children(path) if name not in self._names]


async def test_r_r1_a_listing_that_takes_a_parent_for_empty_deletes_nothing(world: LyingWorld) -> None:
    """It is read while its first child is on its way, or was answered by a server that had not seen it yet."""
    async with world.serving() as bookie:
        for ledger_id in (1, 2, 10_001, 10_002):
            await world.record_ledger(ledger_id)
        await fill(bookie, range(1, 3))
        wire = await fill(bookie, range(10_001, 10_003))
        hollow = HollowStore(world.store, "/ledgers/00/0000")
        bookie.parts.collector._reads.store._store = hollow  # type: ignore[assignment]
        status = await rounds(bookie, 4)
        assert status.listed_ledgers == 2
        assert status.deleted_ledgers == status.quarantined_ledgers == 0
        hollow.path = "/ledgers/00/0001"
        assert (await rounds(bookie, 4)).deleted_ledgers == 0
        assert bookie.operations.list_ledgers() == [1, 2, 10_001, 10_002]
        assert await wire.read(10_001, 2) == stored_entry(10_001, 2, bytes([10_001 % 256]) * 100)


class HollowStore:
    """Says of one node that it has no children."""

    def __init__(self, store: MemoryStore, path: str) -> None:
        self._store = store
        self.path = path

    async def get(self, path: str) -> Node | None:
        return await self._store.get(path)

    async def children(self, path: str) -> list[str]:
        return [] if path == self.path else await self._store.children(path)


async def test_a_store_that_does_not_answer_deletes_nothing_and_keeps_the_quarantine(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        await world.record_ledger(1)
        await fill(bookie, range(1, 3))
        assert (await rounds(bookie)).quarantined_ledgers == 1
        listed = bookie.parts.collector._reads.store._store

        class Away(ForgetfulStore):
            async def children(self, path: str) -> list[str]:
                raise StoreUnavailable("no answer")

        bookie.parts.collector._reads.store._store = Away(world.store, set())  # type: ignore[assignment]
        status = await rounds(bookie)
        assert status.refused is not None
        assert status.refused.code is RefusalCode.METADATA
        assert (status.deleted_ledgers, status.quarantined_ledgers) == (0, 1)
        bookie.parts.collector._reads.store._store = listed
        assert (await rounds(bookie)).deleted_ledgers == 1


async def test_an_empty_listing_waits_for_an_operator(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        await fill(bookie, range(1, 3))
        status = await rounds(bookie, 3)
        assert status.refused is not None
        assert status.refused.code is RefusalCode.EMPTY_LISTING
        assert status.deleted_ledgers == 0
        status = await rounds(bookie, 2, accept_listing=True)
        assert (status.refused, status.deleted_ledgers) == (None, 2)


async def test_another_clusters_metadata_deletes_nothing(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        await world.record_ledger(5)
        await fill(bookie, range(1, 2))
        await world.store.put("/ledgers/INSTANCEID", b"another")
        status = await rounds(bookie, 2, accept_listing=True)
        assert status.refused is not None
        assert status.refused.code is RefusalCode.OTHER_CLUSTER
        assert "is metadataServiceUri right?" in status.refused.text
        assert bookie.operations.list_ledgers() == [1]


async def test_a_store_without_our_cookie_deletes_nothing(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        await world.record_ledger(5)
        await fill(bookie, range(1, 2))
        await world.store.delete("/ledgers/cookies/bookie-1")
        status = await rounds(bookie, 2)
        assert status.refused is not None
        assert "its cookie is not there" in status.refused.text


async def test_a_ledger_with_entries_in_the_write_cache_waits_and_is_not_made_anew(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        await world.record_ledger(5)
        wire = await fill(bookie, range(1, 2))
        assert (await rounds(bookie)).quarantined_ledgers == 1
        assert await wire.add(stored_entry(1, 3)) == 0
        status = await rounds(bookie)
        assert (status.deleted_ledgers, status.quarantined_ledgers) == (0, 1)
        await flushed(bookie)
        assert (await rounds(bookie)).deleted_ledgers == 1
        await flushed(bookie)
        assert await wire.read(1, 0) == ENOLEDGER
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).read(1, 3) == ENOLEDGER


async def test_a_ledger_that_was_fenced_and_deleted_takes_no_adds_after_a_restart_either(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        await world.record_ledger(5)
        wire = await fill(bookie, range(1, 3))
        await wire.ask(v2.read_request(1, -1, FENCE, KEY))
        await flushed(bookie)
        status = await rounds(bookie, 2)
        assert (status.deleted_ledgers, status.tombstones) == (2, 1)
        assert await wire.add(stored_entry(2, 3)) == 0  # not fenced: its writer may go on
    for _ in range(2):
        async with world.serving() as bookie:
            wire = await Wire.connect(bookie)
            assert await wire.add(stored_entry(1, 3)) == EFENCED
            assert await wire.read(1, 0) == ENOLEDGER
            assert (await wire.ask(v2.read_request(1, -1, FENCE, KEY)))[1] == ENOLEDGER


async def test_whoever_waits_for_a_ledger_hears_that_it_was_deleted(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        await world.record_ledger(5)
        await fill(bookie, range(1, 2))
        poll = await Wire.connect(bookie)
        poll.send(v3.read_request(1, 1, -1, previous_lac=9, timeout_ms=600_000, piggyback=True))
        await eventually(lambda: bookie.server.long_polls == 1)
        await rounds(bookie, 2)
        assert int(v3.parse_response(await poll.next()).status) == v3.V3Error.ENOLEDGER
        assert bookie.server.long_polls == 0


async def test_a_deletion_that_fails_is_repeated(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        await world.record_ledger(5)
        wire = await fill(bookie, range(1, 2))
        await wire.ask(v2.read_request(1, -1, FENCE, KEY))
        await flushed(bookie)
        await rounds(bookie)

        def fail(kind: str, path: str) -> None:
            if "fenced-and-deleted" in path:
                raise OSError(errno.ENOSPC, "no space left", path)

        stop = on_each_operation(world.files, fail)
        status = await rounds(bookie)
        assert "no space left" in str(status.failed)
        assert await wire.read(1, 0) == stored_entry(1, 0, b"\1" * 100)
        stop()
        assert (await rounds(bookie, 2)).deleted_ledgers == 1


async def test_rounds_come_by_themselves(world: LyingWorld) -> None:
    async with world.serving(gc_wait_ms=1000, minor_interval_s=0, major_interval_s=0) as bookie:
        await eventually(lambda: bookie.parts.collector.status().rounds >= 3)
        assert bookie.parts.collector.status().failed is None


# -- copies that moved


async def moved(world: LyingWorld, ledger_id: int) -> None:
    found = await world.ledgers.read(ledger_id)
    closed = found.metadata.closed(2, 300)
    version = (await world.ledgers.write(ledger_id, closed, found.version)).version
    await world.ledgers.write(ledger_id, closed.with_segment_replaced(0, ("bookie-2",)), version)


async def test_a_copy_that_moved_elsewhere_goes_after_two_looks(world: LyingWorld) -> None:
    async with world.serving(gc_over_replicated_wait_ms=1) as bookie:
        for ledger_id in range(1, 6):
            await world.record_ledger(ledger_id)
        wire = await fill(bookie, range(1, 6))
        for ledger_id in (1, 2, 3, 4):
            await moved(world, ledger_id)
        await world.record_ledger(6, state=LedgerState.OPEN, segments=(Segment(0, ("bookie-2",)),))
        assert (await rounds(bookie)).moved_ledgers == 0
        # 2 is written to meanwhile, 3 is being copied by somebody, 4 is marked.
        assert await wire.add(stored_entry(2, 9)) == 0
        await flushed(bookie)
        await world.store.put("/ledgers/underreplication/locks/urL0000000003", b"")
        await world.store.put("/ledgers/underreplication/ledgers/0000/0000/0000/0004/urL0000000004", b"")
        assert (await rounds(bookie)).moved_ledgers == 1
        assert bookie.operations.list_ledgers() == [2, 3, 4, 5]
        assert await world.store.children("/ledgers/underreplication/locks") == ["urL0000000003"]
        # It may be copied back: no tombstone.
        assert await wire.add(stored_entry(1, 0)) == 0


async def test_r_r4_what_a_recovery_wrote_here_stays_until_the_record_says_so(world: LyingWorld) -> None:
    """The recovery has chosen this bookie, and tells so only when it closes the ledger (I18)."""
    async with world.serving(gc_over_replicated_wait_ms=1) as bookie:
        for ledger_id in (1, 2):
            await world.record_ledger(ledger_id, state=LedgerState.IN_RECOVERY, segments=(Segment(0, ("bookie-2",)),))
        wire = await Wire.connect(bookie)
        for ledger_id in (1, 2):
            for entry_id in (7, 8):
                entry = stored_entry(ledger_id, entry_id)
                assert await wire.add(entry, v2.FLAG_RECOVERY_ADD) == 0
        await flushed(bookie)
        assert (await rounds(bookie, 4)).moved_ledgers == 0
        found = await world.ledgers.read(1)
        changed = found.metadata.closed(8, 300, {7: ("bookie-1",)})
        await world.ledgers.write(1, changed, found.version)
        # The recovery of the other one was overtaken by another, which went on without this bookie.
        found = await world.ledgers.read(2)
        await world.ledgers.write(2, found.metadata.closed(6, 300), found.version)
        assert (await rounds(bookie, 4)).moved_ledgers == 1
        assert bookie.operations.list_ledgers() == [1]
        assert [await wire.read(1, entry_id) for entry_id in (7, 8)] == [stored_entry(1, 7), stored_entry(1, 8)]
