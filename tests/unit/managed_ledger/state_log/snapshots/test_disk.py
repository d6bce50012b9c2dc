"""Snapshots: what survives a power cut or a full disk, truncation, and newcomers that are too far behind."""

import asyncio
import errno
import random
from collections.abc import AsyncIterator

import pytest

from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.bookkeeper.client.errors import BookieUnavailable
from magnetar_core.runtime.types import Corruption
from managed_ledger.position import Position
from managed_ledger.state_log.replica import Role
from managed_ledger.state_log.snapshots.disk import KEPT, FolderInUse, SnapshotStore
from managed_ledger.state_log.snapshots.format import Snapshot, decode_snapshot, encode_snapshot
from tests.support.state_log_world import World
from tests.support.waiting import eventually


def snapshot(number: int, state: bytes = b"state") -> Snapshot:
    return Snapshot("ab" * 16, Position(7, number), number, 5, 2, ((b"t" * 16, number),), state * number)


def store(files: MemoryFiles) -> SnapshotStore:
    files.locks.clear()
    made = SnapshotStore(files, "/s")
    made.open()
    return made


def test_a_snapshot_is_read_back_and_every_flipped_or_missing_byte_is_found() -> None:
    value = snapshot(3)
    data = encode_snapshot(value)
    assert decode_snapshot(data, "here") == value
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            with pytest.raises(Corruption, match="here"):
                decode_snapshot(damaged, "here")


@pytest.mark.parametrize("unsynced", [0.0, 0.5, 1.0])
def test_r_s4_a_power_cut_at_any_operation_leaves_the_newest_that_was_stored_or_a_newer_one(unsynced: float) -> None:
    rng = random.Random(4)
    images: list[tuple[int, MemoryFiles]] = []
    files = MemoryFiles()
    made = store(files)
    stored = 0
    files.on_operation.append(lambda kind, path: images.append((stored, files.crash(rng, unsynced))))
    for number in range(1, 6):
        made.write(snapshot(number))
        stored = number
        assert len([name for name in files.list("/s") if name.startswith("snapshot")]) <= KEPT
    files.on_operation.clear()
    assert len(images) > 20
    for least, image in images:
        image.locks.clear()
        found = SnapshotStore(image, "/s").open() if image.exists("/s") else None
        assert (0 if found is None else found.number) >= least
        assert found is None or found == snapshot(found.number)


def test_i121_a_bad_newest_snapshot_is_passed_over_for_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    made = store(files)
    for number in (1, 2, 3):
        made.write(snapshot(number))
    assert (made.newest, made.covered) == (3, 2)
    bad = files.open("/s/snapshot-00000000000000000003", writable=True)
    bad.write_at(bad.size_bytes() - 1, b"\xff")
    files.locks.clear()
    again = SnapshotStore(files, "/s")
    assert again.open() == snapshot(2)
    assert again.covered == 0, "it has only one that is good"
    assert "checksum" in caplog.text


def test_i121_a_snapshot_that_reads_back_wrong_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    made = store(files)
    made.write(snapshot(1))
    made.write(snapshot(2))
    monkeypatch.setattr(
        "managed_ledger.state_log.snapshots.disk.read_file", lambda files, path: b"not what was written"
    )
    with pytest.raises(Corruption):
        made.write(snapshot(3))
    monkeypatch.undo()
    assert made.covered == 1
    assert files.exists("/s/snapshot-00000000000000000001")


def test_a_folder_has_one_owner() -> None:
    files = MemoryFiles()
    made = store(files)
    with pytest.raises(FolderInUse, match="/s"):
        SnapshotStore(files, "/s").open()
    made.close()
    SnapshotStore(files, "/s").open()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_directory"])
def test_a_write_that_fails_leaves_the_older_ones(kind: str, number: int) -> None:
    files = MemoryFiles()
    made = store(files)
    made.write(snapshot(1))
    made.write(snapshot(2))

    def fail(now: str, path: str) -> None:
        if now == kind:
            raise OSError(number, "injected", path)

    files.on_operation.append(fail)
    with pytest.raises(OSError, match="injected"):
        made.write(snapshot(3))
    files.on_operation.clear()
    assert (made.newest, made.covered) == (2, 1)
    image = files.crash(random.Random(1), 0.0)
    assert SnapshotStore(image, "/s").open() == snapshot(2)
    made.write(snapshot(4))
    assert made.newest == 4


# ------------------------------------------------------------------------------------------ in a log


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World(ledger_edits=10)
    yield made
    await made.close()


async def test_a_full_disk_under_the_snapshots_harms_neither_log_nor_older_snapshots(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    for round_ in range(2):
        await a.set("x", round_)
        await a.log.take_snapshot()
    a.files.capacity_bytes = a.files.usage("/").total_bytes - a.files.usage("/").free_bytes + 10
    for number in range(40):
        await a.set("x", number)
    with pytest.raises(OSError, match="no space"):
        await a.log.take_snapshot()
    assert a.log.snapshot_failures == 1
    assert a.log.is_leader
    assert (await world.list()).ledgers[0].first_number == 1, "nothing was dropped behind a snapshot that is not there"
    await b.log.reach(42)
    a.files.capacity_bytes = None
    assert await a.log.take_snapshot() == 42


async def test_snapshots_are_taken_by_themselves_and_a_restart_goes_on_from_them() -> None:
    world = World(snapshot_edits=5)
    a = await world.node("a")
    await a.log.lead()
    for number in range(12):
        await a.set(f"k{number}", number)
    await eventually(lambda: a.log.snapshots.newest >= 10)
    await a.die()
    again = await world.node("a", a.files)
    assert again.log.number >= 10, "before anything is read from the log"
    await again.log.lead()
    assert again.machine.history == a.machine.history
    assert again.log.state_hash() == a.log.state_hash()
    await world.close()


async def fill(world: World) -> None:
    """Edits and snapshots on all nodes, until old ledgers are dropped."""
    leader = next(node for node in world.nodes if node.log.is_leader)
    for _ in range(4):
        for number in range(15):
            await leader.set("x", number)
        for node in world.nodes:
            if node.is_alive:
                await node.log.reach(leader.log.number)
                await node.log.take_snapshot()
    await leader.log.truncate()


async def test_r_s7_a_newcomer_that_is_too_far_behind_gets_a_snapshot_from_a_peer(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await fill(world)
    first = (await world.list()).ledgers[0]
    assert first.first_number > 1, "old ledgers were dropped"
    assert world.bookkeeper.deleted == list(range(first.ledger_id)), "and deleted"
    assert (await world.list()).leaving == ()
    await a.die()
    late = await world.node("late")
    await late.log.reach(b.log.number)
    assert late.peers.fetches == 1
    assert late.log.state_hash() == b.log.state_hash()
    assert late.machine.history == b.machine.history
    await late.log.lead()
    await late.set("y", 1)
    await b.log.reach(late.log.number)


async def test_i122_nothing_is_dropped_that_only_the_leader_has_a_snapshot_of(world: World) -> None:
    a = await world.node("a")
    await a.log.lead()
    await fill(world)
    assert (await world.list()).ledgers[0].first_number == 1
    assert a.log.snapshots.covered > 20


async def test_a_node_that_is_too_far_behind_waits_for_somebody_who_has_a_snapshot(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await fill(world)
    await a.die()
    await b.die()
    late = await world.node("late")
    await eventually(lambda: late.peers.fetches > 1)
    assert late.log.role is Role.FOLLOWER
    assert late.log.number == 0
    back = await world.node("b", b.files)
    await late.log.reach(back.log.snapshots.newest)
    assert late.log.number >= back.log.snapshots.newest


async def test_a_ledger_that_could_not_be_deleted_is_deleted_by_a_later_leader(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()

    async def refuse(what: str, ledger_id: int) -> None:
        if what == "delete":
            raise BookieUnavailable("the metadata store is away")

    a.bookkeeper.on_step = refuse
    await fill(world)
    leaving = (await world.list()).leaving
    assert leaving
    assert world.bookkeeper.deleted == []
    await b.log.lead()
    await b.log.truncate()
    assert (await world.list()).leaving == ()
    assert world.bookkeeper.deleted == list(leaving)


async def test_a_follower_that_lags_behind_what_is_dropped_goes_on_with_a_snapshot(world: World) -> None:
    a, b, lagging = await world.node("a"), await world.node("b"), await world.node("lagging")
    await a.log.lead()
    for number in range(5):
        await a.set("early", number)
    await lagging.log.reach(3)
    may_go_on = asyncio.Event()

    async def wait(what: str, ledger_id: int) -> None:
        await may_go_on.wait()

    lagging.bookkeeper.on_step = wait
    for _ in range(4):
        for number in range(15):
            await a.set("x", number)
        await b.log.reach(a.log.number)
        await a.log.take_snapshot()
        await b.log.take_snapshot()
    await a.log.truncate()
    stood = lagging.log.number
    assert stood <= 5
    assert (await world.list()).ledgers[0].first_number > stood + 1
    may_go_on.set()
    await lagging.log.reach(a.log.number)
    assert lagging.peers.given >= 1
    assert lagging.machine.history == a.machine.history
    assert lagging.log.state_hash() == a.log.state_hash()


async def test_a_follower_whose_newest_snapshot_is_bad_goes_on_from_the_one_before_without_help(world: World) -> None:
    """I121, I122: what was dropped is behind both snapshots that a node keeps."""
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await fill(world)
    await b.die()
    newest = b.log.snapshots.newest
    bad = b.files.open(f"/snapshots/snapshot-{newest:020d}", writable=True)
    bad.write_at(bad.size_bytes() - 1, b"!")
    again = await world.node("b", b.files)
    assert again.log.snapshots.newest < newest
    await again.log.reach(a.log.number)
    assert again.peers.fetches == 0
    assert again.log.state_hash() == a.log.state_hash()
