"""A serving bookie corrects its index from its entry logs: what is put, what stays, what a crash leaves."""

import random
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bookie.bookie import Bookie
from bookie.maintenance.garbage.rules import CompactionKind
from bookie.maintenance.rebuild.findings import OnlineRebuildStatus
from bookie.maintenance.rebuild.log_comparison import compare, put_locations
from bookie.maintenance.rebuild.online import OnlineRebuild
from bookie.serving.request_rules import EFENCED, OK
from bookie.storage.entry_log import format as fmt
from bookie.storage.index import Index, MemoryIndex
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerState
from magnetar_core.bookkeeper.metadata.stores.store import NoNode
from magnetar_core.bookkeeper.wire.entry import HEADER
from magnetar_core.runtime.types import KIB, MIB
from tests.support.bookie_disks import KEY, Disk, stored_entry
from tests.support.bookie_world import LyingWorld, add_all, ledger_metadata
from tests.support.crash_images import MODES, Life, bury, crashed, until_end
from tests.support.serving import HurriedClock, Wire
from tests.support.waiting import eventually

DIRECTORY = "/bookie/ledgers/current"
MARK = f"{DIRECTORY}/locations/REBUILDING"
ENOENTRY, EIO, EUNKNOWN = 2, 101, 107


def emptied(index: MemoryIndex) -> MemoryIndex:
    """The index after its locations were set aside: it has only the ledgers."""
    after = MemoryIndex()
    after.put_ledgers(list(index.ledgers()))
    after.put_flags(index.flags())
    after.sync()
    return after


class RebuildWorld(LyingWorld):
    """A world whose index loses its locations when they are set aside."""

    def __init__(self) -> None:
        super().__init__(HurriedClock())

    def open_index(self, directory: str, cache_bytes: int) -> Index:
        if self.files.exists(f"{directory}/locations/REBUILDING"):
            self.indexes[directory] = emptied(self.indexes[directory])
        return super().open_index(directory, cache_bytes)

    @property
    def index(self) -> MemoryIndex:
        return self.indexes[DIRECTORY]

    def forget(self, ledger_id: int, entry_id: int) -> None:
        """The index loses a location."""
        del self.index._locations[ledger_id, entry_id]
        self.index._order[ledger_id].remove(entry_id)


@pytest.fixture
def world() -> RebuildWorld:
    return RebuildWorld()


async def flushed(bookie: Bookie) -> None:
    bookie.parts.checkpointer.flush()
    await eventually(lambda: bookie.server.write_cache.is_empty)


async def filled(bookie: Bookie, ledgers: Collection[int], entries: int = 5) -> None:
    await add_all(bookie, (stored_entry(ledger, n, b"p" * 50) for ledger in ledgers for n in range(entries)))
    await flushed(bookie)


async def rebuilt(bookie: Bookie) -> OnlineRebuildStatus:
    bookie.parts.rebuild.trigger()
    assert bookie.parts.rebuild.status().is_running
    await eventually(lambda: not bookie.parts.rebuild.status().is_running)
    return bookie.parts.rebuild.status()


def damage(world: RebuildWorld, log_id: int, entry: bytes, at: int) -> None:
    file = world.files.open(f"{DIRECTORY}/{log_id:x}.log", writable=True)
    where = file.read_at(0, file.size_bytes()).index(entry) + at
    file.write_at(where, b"\xee")


# -- what is put, and what stays


async def test_a_whole_index_stays_as_it_is_and_ledgers_are_fenced(world: RebuildWorld) -> None:
    async with world.serving() as bookie:
        await filled(bookie, (1, 2))
        before = dict(world.index._locations)
        status = await rebuilt(bookie)
        assert (status.entries_looked_at, status.entries_put_right, status.locations_lost) == (10, 0, 0)
        assert (status.logs_done, status.ledgers_done, status.rebuilds) == (1, 2, 1)
        assert (status.failed, status.problems, status.phase) == (None, (), "idle")
        assert world.index._locations == before
        assert not world.files.exists(MARK)
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 5)) == EFENCED
        assert await wire.add(stored_entry(3, 0)) == OK
    async with world.serving() as bookie:
        assert [ledger.fenced for ledger in bookie.parts.rules.ledgers] == [True, True, False]
        assert not bookie.parts.storage.needs_check


async def test_what_is_missing_or_leads_elsewhere_is_put_right(world: RebuildWorld) -> None:
    async with world.serving() as bookie:
        await filled(bookie, (1, 2))
        wire = await Wire.connect(bookie)
        right = dict(world.index._locations)
        for entry_id in (3, 4):
            world.forget(1, entry_id)
        world.index._locations[2, 0] = right[2, 1]
        world.index._locations[2, 4] = fmt.location(77, 5000)
        ledger = bookie.parts.rules.ledgers.get(1)
        assert ledger is not None
        ledger.last_entry_id = 2  # as if it had been asked for while they were missing
        assert await wire.read(1, 4) == ENOENTRY
        assert await wire.read(2, 0) == EIO
        status = await rebuilt(bookie)
        assert (status.entries_put_right, status.locations_lost, status.problems) == (4, 0, ())
        assert not ledger.is_tail_known  # nor what the last entry says of the LAC
        assert world.index._locations == right
        assert await wire.read(1, 4) == stored_entry(1, 4, b"p" * 50)
        assert await wire.read(2, 0) == stored_entry(2, 0, b"p" * 50)
        assert not bookie.parts.storage.needs_check  # although a location led into a log that is gone
        assert await wire.read(1, 5) == ENOENTRY


async def test_the_newest_log_wins_and_what_is_deleted_stays_so(world: RebuildWorld) -> None:
    async with world.serving() as bookie:
        await filled(bookie, (1, 2))
    async with world.serving() as bookie:
        await add_all(bookie, [stored_entry(1, 0, b"p" * 50)])
        await flushed(bookie)
        newest = world.index.location(1, 0)
        assert fmt.split_location(newest)[0] == 1
        world.forget(1, 0)
        bookie.parts.rules.ledgers.forget(2)
        bookie.parts.storage.delete_ledgers([2], bookie.parts.rules.ledgers.tombstones)
        status = await rebuilt(bookie)
        assert (status.entries_put_right, status.logs) == (1, 2)
        assert world.index.location(1, 0) == newest
        assert world.index.locations(2, 0, 10) == []


async def test_entries_of_logs_that_are_gone_put_their_ledgers_in_doubt(world: RebuildWorld) -> None:
    async with world.serving() as bookie:
        await filled(bookie, (1,))
    closed = {"state": LedgerState.CLOSED, "last_entry_id": 4, "length": 250}
    async with world.serving() as bookie:
        await filled(bookie, (2,))
        world.files.remove(f"{DIRECTORY}/0.log")
        bookie.parts.storage.directories[0].logs._open.pop(0, None)
        status = await rebuilt(bookie)
        assert (status.locations_lost, status.problem_count) == (5, 1)
        assert status.problems == ("ledger 1: 5 entries from 0 on are in no log any more",)
        assert bookie.parts.storage.needs_check
        assert bookie.parts.integrity.status().ledgers_in_limbo == 2
        wire = await Wire.connect(bookie)
        assert await wire.read(2, 9) == EUNKNOWN
        assert await wire.read(2, 4) == stored_entry(2, 4, b"p" * 50)
        assert await wire.add(stored_entry(3, 0)) == OK
        assert await wire.read(3, 1) == ENOENTRY  # a ledger that was made later is in no doubt
        await world.record_ledger(2, **closed)
        await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        assert await wire.read(2, 9) == ENOENTRY
        assert await wire.read(1, 1) == EIO  # never "no such entry"
        assert not bookie.parts.storage.needs_check


async def test_a_damaged_record_of_a_sealed_log_is_not_put(world: RebuildWorld) -> None:
    async with world.serving() as bookie:
        await filled(bookie, (1,))
    await world.record_ledger(1, state=LedgerState.OPEN)
    async with world.serving() as bookie:
        world.forget(1, 4)
        damage(world, 0, stored_entry(1, 4, b"p" * 50), 40)
        status = await rebuilt(bookie)
        assert (status.entries_put_right, status.entries_damaged) == (0, 1)
        assert status.problems == (f"{DIRECTORY}/0.log: 1 entries that the index lacks are damaged",)
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 4) == EUNKNOWN


async def test_a_write_that_a_power_cut_tore_is_no_entry_and_no_doubt(world: RebuildWorld) -> None:
    async with world.serving() as bookie:
        await filled(bookie, (1,))
    await world.record_ledger(1)
    log = world.files.create(f"{DIRECTORY}/1.log")
    torn = stored_entry(1, 5, b"p" * 50)[:-20] + bytes(20)
    log.append([fmt.encode_header(), fmt.SIZE.pack(len(torn)), torn])
    world.files.create(f"{DIRECTORY}/2.log").append([b"BK"])
    async with world.serving() as bookie:
        status = await rebuilt(bookie)
        assert (status.entries_damaged, status.entries_put_right, status.problems) == (1, 0, ())
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 5) == ENOENTRY
        assert not bookie.parts.storage.needs_check


# -- beside others


async def test_garbage_collection_waits_and_is_made_up_for(world: RebuildWorld) -> None:
    async with world.serving(scrub_bytes_s=16 * KIB) as bookie:
        await filled(bookie, (1,), 100)
        bookie.parts.rebuild.trigger()
        await eventually(lambda: bookie.parts.rebuild.status().phase == "logs")
        assert bookie.parts.collector.status().phase == "held"
        bookie.parts.collector.trigger()
        assert bookie.parts.collector.status().rounds == 0
        await add_all(bookie, (stored_entry(2, n) for n in range(3)))  # adds do not wait
        assert bookie.parts.rebuild.status().is_running
        await eventually(lambda: not bookie.parts.rebuild.status().is_running)
        await eventually(lambda: bookie.parts.collector.status().rounds == 1)
        assert bookie.parts.collector.status().phase == "idle"


async def test_one_that_was_stopped_is_done_by_the_next_start(world: RebuildWorld) -> None:
    async with world.serving(scrub_bytes_s=1 * KIB) as bookie:
        await filled(bookie, (1,), 100)
        for entry_id in range(50):
            world.forget(1, entry_id)
        bookie.parts.rebuild.trigger()
        await eventually(lambda: bookie.parts.rebuild.status().phase == "logs")
    assert bookie.parts.rebuild.status().failed == "it was stopped"
    assert world.files.exists(MARK)
    async with world.serving() as bookie:
        assert not world.files.exists(MARK)
        wire = await Wire.connect(bookie)
        for entry_id in range(100):
            assert await wire.read(1, entry_id) == stored_entry(1, entry_id, b"p" * 50)


async def test_a_disk_that_refuses_leaves_the_mark(world: RebuildWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.serving() as bookie:
        await filled(bookie, (1,))
        world.forget(1, 4)

        def refuse(items: object) -> None:
            raise OSError(28, "no space left")

        with monkeypatch.context() as full:
            full.setattr(world.index, "put_locations", refuse)
            assert "no space left" in str((await rebuilt(bookie)).failed)
        assert world.files.exists(MARK)
        assert (await rebuilt(bookie)).failed is None
        assert not world.files.exists(MARK)
        assert world.failures == []


# -- crashes


class Crashing:
    """A bookie without threads whose index is damaged; its rebuild runs beside adds and flushes."""

    def __init__(self, seed: int, directories: int) -> None:
        self.rng = random.Random(seed)
        self.told: dict[tuple[int, int], bytes] = {}
        self.deleted = 1
        life = Life(Disk(ledgers=directories), {2, 3, 4})
        self._fill(life, range(1, 5), 12)
        for _ in range(2):
            until_end(life.collect(set()), life.threads)
        assert 1 not in life.rules.ledgers
        life.stop()
        self.life = Life(life.disk, {2, 3, 4})
        self._fill(self.life, range(2, 5), 20, first=8)
        indexes = life.disk.indexes.values()
        lost = [(index, key) for index in indexes for key in index._locations if self.rng.random() < 0.4]
        for index, key in lost:
            del index._locations[key]
            index._order[key[0]].remove(key[1])
        for index in indexes:
            index._synced = [change for change in index._synced if change[1] not in {key for _, key in lost}]

    def _fill(self, life: Life, ledgers: range, last: int, first: int = 0) -> None:
        for ledger_id in ledgers:
            entries = [stored_entry(ledger_id, n, b"x" * self.rng.choice([0, 300])) for n in range(first, last)]
            life.add(entries, lambda taken, refusal: self._told(taken))
        life.settle_journals()
        life.flush()

    def _told(self, entries: list[bytes]) -> None:
        self.told |= {(ids[0], ids[1]): entry for entry in entries for ids in [HEADER.unpack_from(entry)]}

    def rebuild(self, life: Life) -> OnlineRebuild:
        async def read(ledger_id: int) -> Any:
            if ledger_id not in life.known.ledger_ids:
                raise NoNode(str(ledger_id))
            return SimpleNamespace(metadata=ledger_metadata())

        async def doubt(ledger_ids: Collection[int]) -> None:
            raise AssertionError("nothing is missing")

        metadata: Any = SimpleNamespace(read=read)
        flusher: Any = life.flusher
        maintenance: Any = life.maintenance
        clock: Any = life.clock
        return OnlineRebuild(
            MIB, metadata, life.disk.files, life.storage, life.rules, life.cache, life.collector, flusher, maintenance,
            clock, doubt=doubt, scrub=lambda: None,
            on_index_corrupt=lambda ledger_id, error: None, has_failed=lambda: False,
        )  # fmt: skip

    def steps(self, rebuild: OnlineRebuild) -> Iterator[None]:
        """The rebuild, with new ledgers, written-back entries and flushes in between."""
        life, rng, fresh = self.life, self.rng, 10
        work = rebuild.run()
        while True:
            try:
                work.send(None)
            except StopIteration:
                return
            except GeneratorExit:
                bury(work)
                raise
            if rng.random() < 0.2:
                fresh += 1
                life.add([stored_entry(fresh, 0)], lambda taken, refusal: self._told(taken))
                again = rng.choice([key for key in self.told if key[0] in (2, 3, 4)])
                life.add([self.told[again]], lambda taken, refusal: self._told(taken), recovery=True)
                life.settle_journals()
            if rng.random() < 0.2:
                life.checkpointer.flush()
            for thread in rng.sample(life.threads, len(life.threads)):
                if thread.waiting and rng.random() < 0.7:
                    thread.step()
            yield

    def check(self, disk: Disk, told: dict[tuple[int, int], bytes], *, is_fenced: bool) -> None:
        for directory in disk.ledger_directories:
            if disk.files.exists(f"{directory}/locations/REBUILDING"):
                disk.indexes[directory] = emptied(disk.indexes[directory])
                is_fenced = True
        life = Life(disk, {2, 3, 4})
        for (ledger_id, entry_id), entry in told.items():
            if ledger_id != self.deleted:
                assert life.read(ledger_id, entry_id) == entry, (ledger_id, entry_id)
        assert self.deleted not in life.rules.ledgers
        for ledger_id in (2, 3, 4) if is_fenced else ():
            assert life.rules.add(ledger_id, 99, KEY, stored_entry(ledger_id, 99), False, False, []) == EFENCED


@pytest.mark.parametrize("directories", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_by_a_crash_at_any_operation_of_its_disk(seed: int, directories: int) -> None:
    crashing = Crashing(seed, directories)
    life, images = crashing.life, random.Random(seed)
    rebuild = crashing.rebuild(life)
    taken: list[tuple[str, Disk, dict[tuple[int, int], bytes]]] = []

    def take(kind: str, path: str) -> None:
        # Before the mark is durable the damage is nobody's fault but the test's.
        if rebuild.status().phase not in ("idle", "waiting", "marking"):
            mode = images.choice([mode for mode in MODES if mode != "garbage"])
            taken.append((f"{mode} before {kind} {path}", crashed(life.disk, images, mode), dict(crashing.told)))

    life.disk.files.on_operation.append(take)
    for _ in crashing.steps(rebuild):
        pass
    life.disk.files.on_operation.clear()
    status = rebuild.status()
    assert (status.failed, status.problems, status.rebuilds) == (None, (), 1)
    assert status.entries_put_right > 10
    assert len(taken) > 20
    assert not life.storage.needs_check
    for what, disk, told in taken:
        print(what)
        crashing.check(disk, told, is_fenced=False)
    crashing.check(crashed(life.disk, images, "lose all"), crashing.told, is_fenced=True)


def test_what_was_put_right_is_durable_when_it_ends() -> None:
    crashing = Crashing(1, 2)
    life = crashing.life
    until_end(crashing.rebuild(life).run(), life.threads)
    crashing.check(crashed(life.disk, random.Random(1), "lose all"), crashing.told, is_fenced=True)


def test_a_flush_that_came_in_between_knows_better() -> None:
    crashing = Crashing(1, 1)
    life = crashing.life
    (directory,) = life.storage.directories
    missing, _ = compare(directory, life.rules.ledgers, 0, list(directory.logs.scan(0)))
    assert len(missing) > 2
    ledger_id, entry_id = missing[0][:2]
    life.add([crashing.told[ledger_id, entry_id]], lambda taken, refusal: None, recovery=True)
    life.settle_journals()
    life.flush()
    newest = directory.index.location(ledger_id, entry_id)
    assert put_locations(directory, life.rules.ledgers, missing) == missing[1:]
    assert directory.index.location(ledger_id, entry_id) == newest


def test_what_compaction_left_can_be_put_right() -> None:
    crashing = Crashing(1, 1)
    life = crashing.life
    until_end(life.collect({CompactionKind.MAJOR}), life.threads)
    until_end(crashing.rebuild(life).run(), life.threads)
    until_end(life.collect({CompactionKind.MAJOR}), life.threads)
    assert life.collector.status().damaged_logs == {}
