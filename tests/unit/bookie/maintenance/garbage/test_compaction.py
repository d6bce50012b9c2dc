"""Compaction copies live entries out of entry logs that are mostly garbage, and loses none of them."""

import asyncio
import errno
import random
from typing import Any

import pytest

from bookie.admin.operations import DiskFileKind
from bookie.bookie import Bookie
from bookie.maintenance.garbage.collector import GcStatus
from bookie.maintenance.garbage.unreadable import note_unreadable, unreadable_log_ids
from bookie.storage.entry_log import format as log_format
from bookie.storage.entry_log.compacting import CompactingLog, finish_compactions
from bookie.storage.entry_log.files import EntryLogs
from bookie.storage.index import MemoryIndex
from bookie.storage.ledger_storage import LedgerStorage
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.runtime.types import KIB, MIB, MagnetarError
from tests.support.bookie_disks import TINY, Disk, on_each_operation, stored_entry
from tests.support.bookie_world import LyingWorld, add_all
from tests.support.serving import HurriedClock, Wire
from tests.support.waiting import eventually

SETTINGS: dict[str, Any] = {
    "write_cache_mib": 1,
    "log_bytes_max": 6 * MIB,
    "read_cache_mib": 0,
    "compaction_entries_s": 1_000_000,
    "compaction_reserve_mib": 0,
}
LOGS = "/bookie/ledgers/current"


@pytest.fixture
def world() -> LyingWorld:
    return LyingWorld(HurriedClock())


def payload(ledger_id: int, entry_id: int) -> bytes:
    return b"%d/%d " % (ledger_id, entry_id) * 200


async def write(bookie: Bookie, ledgers: range, entries: range) -> None:
    await add_all(bookie, (stored_entry(ledger_id, n, payload(ledger_id, n)) for ledger_id in ledgers for n in entries))
    bookie.parts.checkpointer.flush()
    await eventually(lambda: bookie.server.write_cache.is_empty)


async def assert_all_there(bookie: Bookie, ledgers: list[int], entries: range) -> None:
    wire = await Wire.connect(bookie)
    for ledger_id in ledgers:
        for entry_id in entries:
            found = await wire.read(ledger_id, entry_id)
            assert found == stored_entry(ledger_id, entry_id, payload(ledger_id, entry_id)), (ledger_id, entry_id)
    wire.close()


async def one_log_of(world: LyingWorld, ledgers: range, deleted: range, entries: range = range(10)) -> None:
    """A life of the bookie that leaves one closed log, most of whose ledgers are deleted."""
    async with world.serving(**SETTINGS) as bookie:
        await write(bookie, ledgers, entries)
    for ledger_id in ledgers:
        if ledger_id not in deleted:
            await world.record_ledger(ledger_id)


async def rounds(bookie: Bookie, count: int = 1, **how: bool) -> GcStatus:
    for _ in range(count):
        bookie.parts.collector.trigger(**how)
        await bookie.parts.collector.settled()
        status = bookie.parts.collector.status()
    return status


async def logs_of(bookie: Bookie) -> list[str]:
    return (await bookie.operations.list_disk_files(DiskFileKind.ENTRY_LOG))[LOGS]


async def test_what_lives_moves_to_a_new_log_and_the_old_one_goes(world: LyingWorld) -> None:
    await one_log_of(world, range(1, 11), range(2, 11))
    async with world.serving(**SETTINGS) as bookie:
        status = await rounds(bookie, 2)
        assert (status.deleted_ledgers, status.compacted_logs) == (9, 0)
        assert await logs_of(bookie) == ["0.log"]
        status = await rounds(bookie, force_minor=True)
        assert (status.minor_compactions, status.compacted_logs, status.copied_entries) == (1, 1, 10)
        assert status.damaged_logs == {}
        assert await logs_of(bookie) == ["1.log"]
        assert status.log_bytes < 20 * KIB < status.reclaimed_bytes
        assert status.compaction_bytes == status.reclaimed_bytes  # no log went without being compacted
        await assert_all_there(bookie, [1], range(10))
        await write(bookie, range(11, 12), range(3))
        assert await logs_of(bookie) == ["1.log", "2.log"]
        assert [name for name in world.files.list(LOGS) if "compact" in name] == []
    # What compaction wrote is a log like any other: sealed, with a map.
    logs = EntryLogs(world.files, LOGS, MIB)
    size = sum(len(stored_entry(1, n, payload(1, n))) + 4 for n in range(10))
    assert logs.ledgers_map(1) == {1: size}
    async with world.serving(**SETTINGS) as bookie:
        await assert_all_there(bookie, [1], range(10))


async def test_an_entry_that_was_written_again_meanwhile_keeps_its_new_place(world: LyingWorld) -> None:
    await one_log_of(world, range(1, 11), range(2, 11))
    async with world.serving(**SETTINGS) as bookie:
        await rounds(bookie, 2)
        again = stored_entry(1, 4, b"again")
        wire = await Wire.connect(bookie)

        def rewrite(kind: str, path: str) -> None:
            if kind == "rename" and path.endswith("log.compacting"):
                (index,) = world.indexes.values()
                logs = bookie.server.storage.directories[0].logs
                locations = logs.append([(1, 4, again)])
                logs.sync()
                index.put_locations(locations)

        stop = on_each_operation(world.files, rewrite)
        status = await rounds(bookie, force_major=True)
        stop()
        assert status.copied_entries == 10
        assert await wire.read(1, 4) == again
        assert await wire.read(1, 5) == stored_entry(1, 5, payload(1, 5))


async def test_a_log_above_the_threshold_stays(world: LyingWorld) -> None:
    await one_log_of(world, range(1, 11), range(7, 11))
    async with world.serving(**SETTINGS) as bookie:
        status = await rounds(bookie, 2, force_major=True)
        assert (status.major_compactions, status.compacted_logs, status.logs) == (2, 0, 1)


async def test_a_suspended_compaction_waits_until_it_is_resumed(world: LyingWorld) -> None:
    await one_log_of(world, range(1, 11), range(2, 11))
    async with world.serving(**SETTINGS) as bookie:
        bookie.parts.collector.suspend(minor=True, major=True)
        status = await rounds(bookie, 2, force_minor=True, force_major=True)
        assert (status.minor_suspended, status.major_suspended, status.compacted_logs) == (True, True, 0)
        bookie.parts.collector.resume(minor=True)
        status = await rounds(bookie, force_minor=True, force_major=True)
        assert (status.minor_suspended, status.major_suspended, status.compacted_logs) == (False, True, 1)


async def test_one_damaged_log_is_left_and_named_and_the_others_go_on(world: LyingWorld) -> None:
    for ledgers in (range(1, 4), range(4, 7)):
        await one_log_of(world, ledgers, range(0))
    for ledger_id in (2, 3, 5, 6):
        await world.ledgers.delete(ledger_id)
    # A size word in the middle of the first log leads nowhere: what stands behind it cannot be told apart.
    file = world.files.open(f"{LOGS}/0.log", writable=True)
    file.write_at(log_format.SEAL_OFFSET, bytes(12))
    records = list(log_format.scan(file.read_at, file.size_bytes()))
    file.write_at(records[4][0] - 4, b"\xff\xff\xff\xff")
    async with world.serving(**SETTINGS) as bookie:
        status = await rounds(bookie, 3, force_major=True)
        assert status.deleted_ledgers == 4
        (path,) = status.damaged_logs
        assert path == f"{LOGS}/0.log"
        assert "the index knows entries in it that cannot be found" in status.damaged_logs[path]
        assert "0.log" in await logs_of(bookie)
        assert "1.log" not in await logs_of(bookie)
        await assert_all_there(bookie, [4], range(10))
        # What can be read of the damaged one is read: from the copy, and in its old place.
        wire = await Wire.connect(bookie)
        for entry_id in set(range(10)) - {4}:
            assert await wire.read(1, entry_id) == stored_entry(1, entry_id, payload(1, entry_id))
        assert await wire.read(1, 4) == 101


async def test_a_log_that_a_rebuild_could_not_read_is_no_garbage_until_one_reads_it(world: LyingWorld) -> None:
    await one_log_of(world, range(1, 4), range(2, 4))
    note_unreadable(world.files, LOGS, [f"{LOGS}/0.log cannot be opened: bad disk", f"{LOGS}/1f.log: x 7.log"])
    assert unreadable_log_ids(world.files, LOGS) == {0, 0x1F}
    async with world.serving(**SETTINGS) as bookie:
        status = await rounds(bookie, 3, force_major=True)
        assert "rebuild-index" in status.damaged_logs[f"{LOGS}/0.log"]
        assert "0.log" in await logs_of(bookie)
        note_unreadable(world.files, LOGS, [])
        status = await rounds(bookie, 2, force_major=True)
        assert status.damaged_logs == {}
        assert "0.log" not in await logs_of(bookie)
        await assert_all_there(bookie, [1], range(10))


async def test_a_log_with_a_stale_header_is_read_through_and_kept(world: LyingWorld) -> None:
    await one_log_of(world, range(1, 4), range(0))
    file = world.files.open(f"{LOGS}/0.log", writable=True)
    # As if nothing was in it: a map of no ledgers at the end.
    file.write_at(log_format.SEAL_OFFSET, log_format.encode_seal(file.size_bytes(), 0))
    async with world.serving(**SETTINGS) as bookie:
        status = await rounds(bookie, 2)
        assert (status.removed_logs, status.logs) == (0, 1)
        await assert_all_there(bookie, [1, 2, 3], range(10))


async def test_a_disk_without_room_for_the_copy_is_left_alone_until_told_otherwise(world: LyingWorld) -> None:
    await one_log_of(world, range(1, 11), range(2, 11))
    world.usage_of = lambda directory: DiskUsage(100 * MIB, MIB)
    async with world.serving(**SETTINGS) as bookie:
        assert bookie.is_read_only
        status = await rounds(bookie, 3, force_major=True)
        assert status.compacted_logs == 0
        assert "isForceGCAllowWhenNoSpace" in str(status.skipped_for_room)
    async with world.serving(gc_force_without_space=True, **SETTINGS) as bookie:
        status = await rounds(bookie, 3, force_major=True)
        assert (status.compacted_logs, status.skipped_for_room) == (1, None)
        await assert_all_there(bookie, [1], range(10))


async def test_a_disk_that_runs_full_in_the_middle_takes_the_copy_back(world: LyingWorld) -> None:
    await one_log_of(world, range(1, 11), range(2, 11))
    async with world.serving(**SETTINGS) as bookie:
        await rounds(bookie, 2)

        def full(kind: str, path: str) -> None:
            if kind == "write" and path.endswith(".compacting"):
                raise OSError(errno.ENOSPC, "no space left", path)

        stop = on_each_operation(world.files, full)
        status = await rounds(bookie, force_major=True)
        stop()
        assert "no space left" in str(status.skipped_for_room)
        await eventually(lambda: not [name for name in world.files.list(LOGS) if "compact" in name])
        assert await logs_of(bookie) == ["0.log"]
        status = await rounds(bookie, force_major=True)
        assert (status.compacted_logs, status.damaged_logs) == (1, {})
        await assert_all_there(bookie, [1], range(10))


async def test_reads_go_on_while_their_log_is_replaced(world: LyingWorld) -> None:
    await one_log_of(world, range(1, 11), range(2, 11))
    async with world.serving(**SETTINGS) as bookie:
        await rounds(bookie, 2)
        wire = await Wire.connect(bookie)
        storage = bookie.server.storage
        found: list[list[tuple[int, int]]] = []
        located = storage.directories[0].index.locations

        def old_locations(
            ledger_id: int, first_entry_id: int, count: int, within_bytes: int | None = None
        ) -> list[tuple[int, int]]:
            answer = located(ledger_id, first_entry_id, count, within_bytes)
            if not found:  # the log goes between the look-up and the read
                found.append(answer)
                done = asyncio.run_coroutine_threadsafe(rounds(bookie, force_major=True), loop)
                done.result(10)
            return answer

        loop = asyncio.get_running_loop()
        storage.directories[0].index.locations = old_locations  # type: ignore[method-assign]
        # The reader's thread waits for the round, so the round must not wait for readers.
        bookie.parts.collector._logs.compactor._readers = []
        assert await wire.read(1, 0) == stored_entry(1, 0, payload(1, 0))
        assert await logs_of(bookie) == ["1.log"]


async def test_a_stop_takes_a_slow_copy_back(world: LyingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.garbage.compaction.REST_S", 0.05)
    await one_log_of(world, range(1, 11), range(2, 11), range(20))
    slow = {**SETTINGS, "compaction_entries_s": 1}
    async with world.serving(**slow) as bookie:
        await rounds(bookie, 2)
        bookie.parts.collector.trigger(force_major=True)
        await eventually(lambda: any("compacting" in name for name in world.files.list(LOGS)))
        assert bookie.parts.collector.status().phase == "major compaction"
    assert [name for name in world.files.list(LOGS) if "compact" in name] == []
    async with world.serving(**SETTINGS) as bookie:
        await assert_all_there(bookie, [1], range(20))


async def test_the_index_is_compacted_where_and_when_asked(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        (index,) = world.indexes.values()
        assert bookie.parts.collector.location_directories == {f"{LOGS}/locations": False}
        bookie.parts.collector.compact_locations()
        await eventually(lambda: bookie.parts.collector.status().location_compactions == 1)
        assert index.location_compactions == 1
        with pytest.raises(MagnetarError, match="no index of this bookie"):
            bookie.parts.collector.compact_locations(["/elsewhere"])


@pytest.mark.parametrize("seed", range(8))
async def test_every_live_entry_is_found_wherever_a_crash_cuts_a_compaction(world: LyingWorld, seed: int) -> None:
    rng = random.Random(seed)
    await one_log_of(world, range(1, 8), range(2, 8))
    images: list[tuple[MemoryFiles, dict[str, MemoryIndex]]] = []
    async with world.serving(**SETTINGS) as bookie:
        await rounds(bookie, 2)

        def take(kind: str, path: str) -> None:
            unsynced = rng.choice([0.0, 0.5, 1.0])
            indexes = {name: index.crash(rng, unsynced) for name, index in world.indexes.items()}
            images.append((world.files.crash(rng, unsynced), indexes))

        stop = on_each_operation(world.files, take)
        assert (await rounds(bookie, force_major=True)).compacted_logs == 1
        stop()
    assert len(images) >= 12
    for files, indexes in images:
        disk = Disk(files)
        disk.journal_directories, disk.ledger_directories = ["/bookie/storage/journal/current"], [LOGS]
        disk.indexes = indexes
        for _ in range(2):  # what the first start brought to an end, the second one finds as it is
            opened = disk.open(TINY)
            for entry_id in range(10):
                assert opened.read(1, entry_id) == stored_entry(1, entry_id, payload(1, entry_id))
            assert [name for name in files.list(LOGS) if "compact" in name] == []
            opened.close()


def test_markers_that_name_nothing_are_removed() -> None:
    files = MemoryFiles()
    files.make_directories(LOGS)
    logs, index = EntryLogs(files, LOGS, MIB), MemoryIndex()
    for name in ("5.log.4.compacted", "5.log.compacted", "x.log.compacting", "6.log.x.compacted"):
        files.create(f"{LOGS}/{name}")
    finish_compactions(files, logs, index)
    assert files.list(LOGS) == []
    log = CompactingLog(files, LOGS, 7, 6)
    log.append([(1, stored_entry(1, 0))])
    log.abandon()
    assert files.list(LOGS) == []


def test_a_read_of_a_log_that_is_really_gone_is_an_error() -> None:
    disk = Disk()
    opened = disk.open(TINY)
    opened.add(1, 0, stored_entry(1, 0))
    opened.sync()
    opened.checkpoint()
    storage: LedgerStorage = opened.storage
    opened.close()
    disk.files.remove("/l0/current/0.log")
    for read in (lambda: storage.read(1, 0), lambda: storage.read_block(1, 0, 5, 1000), lambda: storage.tail(1)):
        with pytest.raises(FileNotFoundError):
            read()
