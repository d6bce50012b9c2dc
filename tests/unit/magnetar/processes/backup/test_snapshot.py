"""A snapshot of a bookie and a metadata store that go on working."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.bookie import Bookie
from magnetar.processes.backup import copying, restoring, snapshot
from magnetar.processes.backup.manifest import BackupRefused
from magnetar.processes.backup.snapshot import SNAPSHOT, Snapshot, Taken
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import DiskUsage, OsFiles
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import KIB, MIB, MagnetarError
from tests.support.bookie_disks import stored_entry
from tests.support.serving import CONFIG, Wire
from tests.support.waiting import eventually


class World:
    """A store and a bookie on the folder of a standalone."""

    def __init__(self, data: Path, store: EmbeddedStore, bookie: Bookie, wire: Wire) -> None:
        self.data = data
        self.store = store
        self.bookie = bookie
        self.wire = wire
        self.snapshot = Snapshot(data, store, [bookie], OsFiles())

    async def add(self, ledger_id: int, first: int, count: int) -> None:
        for entry_id in range(first, first + count):
            assert await self.wire.add(stored_entry(ledger_id, entry_id, b"x" * 1_000)) == 0

    async def flush(self) -> None:
        flushes = self.bookie.checkpointer.flushes
        self.bookie.parts.checkpointer.flush()
        await eventually(lambda: self.bookie.checkpointer.flushes > flushes)


async def opened(data: Path, parts: Parts, **changes: Any) -> World:
    store = await EmbeddedStore.open(data / "metadata", LoopClock())
    parts.add("store", store.close)
    await initialise_cluster(store)
    place = data / "bookie-1"
    config = replace(
        CONFIG, journal_directories=(str(place / "journal"),), ledger_directories=(str(place / "ledgers"),),
        journal_preallocation_mib=1, disk_usage_full=0.999, disk_usage_warn=0.998,
    )  # fmt: skip
    bookie = Bookie(replace(config, **changes), store, LoopClock(), OsFiles())
    await bookie.start()
    parts.add("bookie", bookie.stop)
    return World(data, store, bookie, await Wire.connect(bookie))


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    made = Parts()
    yield made
    await made.stop()


@pytest.fixture
async def world(tmp_path: Path, parts: Parts) -> World:
    return await opened(tmp_path / "data", parts)


async def copied(taken: Taken, place: Path) -> None:
    """What a backup and its restore make of a snapshot."""
    for file in taken.files:
        path = place / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(file.path, "rb") as source:
            path.write_bytes(copying._Hashing(source, file).read())
    await restoring._adopt(place)


async def test_a_snapshot_stays_as_it_was_while_the_bookie_goes_on(world: World, parts: Parts, tmp_path: Path) -> None:
    await world.store.put("/admin/before", b"")
    await world.add(1, 0, 20)
    await world.flush()
    await world.add(1, 20, 20)  # in the journal only
    taken = await world.snapshot.take()
    (journal,) = world.bookie.parts.journals
    newest = max((file for file in taken.files if file.name.endswith(".txn")), key=lambda file: file.name)
    assert newest.bytes == journal.mark.offset, "not what is written behind it"
    await world.store.put("/admin/later", b"")
    await world.add(1, 40, 20)
    await world.flush()
    await world.add(2, 0, 5)
    await world.flush()
    await copied(taken, tmp_path / "copy")
    copy = await opened(tmp_path / "copy", parts)
    for entry_id in range(40):
        assert await copy.wire.read(1, entry_id) == stored_entry(1, entry_id, b"x" * 1_000)
    assert isinstance(await copy.wire.read(1, 40), int)
    assert await copy.store.exists("/admin/before")
    assert not await copy.store.exists("/admin/later")
    (directory,) = copy.bookie.parts.storage.directories
    assert directory.bad_logs == {}
    log_ids = [log_id for log_id in directory.logs.closed_logs() if log_id < 1]
    assert [list(directory.logs.ledgers_map(log_id)) for log_id in log_ids] == [[1]], "each log has its map"
    await world.add(1, 60, 1)
    await world.snapshot.remove()
    assert list(world.data.rglob(SNAPSHOT)) == []


async def test_what_is_in_the_entry_logs_is_a_hole_in_the_journal(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_GROUP_BYTES", 0)
    world = await opened(tmp_path / "data", parts, frame_bytes_max=64 * KIB)
    await world.add(1, 0, 100)  # each is a group of its own
    await world.flush()
    await world.add(1, 100, 3)
    taken = await world.snapshot.take()
    (journal,) = (file for file in taken.files if file.name.endswith(".txn"))
    (mark,) = world.bookie.parts.storage.marks
    assert snapshot.HOLE_BEGIN < journal.hole_end == mark.offset - 64 * KIB
    await copied(taken, tmp_path / "copy")
    copy = (tmp_path / "copy" / journal.name).read_bytes()
    original = Path(journal.path).read_bytes()[: journal.bytes]
    assert not any(copy[snapshot.HOLE_BEGIN : journal.hole_end])
    assert copy[: snapshot.HOLE_BEGIN] == original[: snapshot.HOLE_BEGIN]
    assert copy[journal.hole_end :] == original[journal.hole_end :]
    for size in (777, snapshot.HOLE_BEGIN, 100_000, len(copy)):
        with open(journal.path, "rb") as source:
            reader = copying._Hashing(source, journal)
            pieces = [reader.read(size) for _ in range(-(-len(copy) // size))]
        assert b"".join(pieces) == copy
        assert {len(piece) for piece in pieces[:-1]} <= {size}
    other = await opened(tmp_path / "copy", parts)
    for entry_id in range(103):
        assert await other.wire.read(1, entry_id) == stored_entry(1, entry_id, b"x" * 1_000)


async def test_journals_that_are_flushed_are_left_out(world: World) -> None:
    for round_ in range(3):
        await world.add(1, round_ * 5, 5)
        await world.flush()
    current = world.data / "bookie-1/journal/current"
    (current / "1.txn").write_bytes(b"kept of former times")
    names = {Path(file.name).name for file in (await world.snapshot.take()).files}
    assert "1.txn" not in names
    assert "synced" in names
    assert {"LOCK", "bookie.lock", "reserve"}.isdisjoint(names)


async def test_without_room_or_folders_nothing_is_taken_and_nothing_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OsFiles, "usage", lambda *_: DiskUsage(1_000 * MIB, 100 * MIB))
    with pytest.raises(BackupRefused, match=r"has 104857600 free bytes; a snapshot needs 134217728"):
        await world.snapshot.take()
    monkeypatch.undo()

    def broken(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", broken)
    with pytest.raises(MagnetarError, match=r"no snapshot of .* can be taken: no links here"):
        await world.snapshot.take()
    monkeypatch.undo()
    assert list(world.data.rglob(SNAPSHOT)) == []
    await world.store.put("/admin/later", b"")
    await world.add(1, 0, 1)
    await world.snapshot.take()
    await world.snapshot.remove()
