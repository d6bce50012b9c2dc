"""Schedules that went wrong in other bookies: the storage half of the regression corpus (R-B1 to R-B34).

Each test has the number of its schedule in its name; `test_schedule_table.py` checks that none is missing. The bookie
runs without sockets (`Life`) wherever the schedule does not need them.
"""

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from bookie.bookie import StorageFailed
from bookie.disks.cookie import CookieMismatch
from bookie.maintenance.garbage.rules import CompactionKind
from bookie.serving.request_rules import EFENCED, EIO, EUA, OK
from bookie.startup import StorageSettings, open_storage
from bookie.storage.entry_log import format as log_format
from bookie.storage.index import MemoryIndex
from bookie.storage.journal import writer
from bookie.storage.journal.format import Mark, decode_mark
from bookie.storage.journal.replay import replay
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import Segment
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.runtime.files import read_file
from magnetar_core.runtime.types import Corruption
from tests.support import bookie_requests
from tests.support.bookie_disks import KEY, OTHER_KEY, TINY, Disk, stored_entry
from tests.support.bookie_world import LyingWorld
from tests.support.crash_images import Life, crashed, crashed_files, until_end
from tests.support.serving import BookieMachines, HurriedClock, Wire

SMALL_LOGS = replace(TINY, log_bytes_max=4096)
LOGS = "/l0/current"
JOURNAL = "/j0/current"


def entries_of(ledger_ids: Sequence[int], entry_ids: range, size: int = 300) -> list[bytes]:
    return [stored_entry(n, entry_id, b"%d" % entry_id * size) for entry_id in entry_ids for n in ledger_ids]


def ids_of(entry: bytes) -> tuple[int, int]:
    return int.from_bytes(entry[:8]), int.from_bytes(entry[8:16])


def acknowledged(life: Life, entries: Sequence[bytes]) -> list[bytes]:
    """Add *entries*, one group; those that were acknowledged."""
    told: list[bytes] = []
    life.add(entries, lambda taken, refusal: told.extend(taken if refusal is None else ()))
    life.settle_journals()
    return told


def fenced(life: Life, ledger_id: int) -> list[int]:
    told: list[int] = []
    life.fence(ledger_id, told.append)
    life.settle_journals()
    return told


def power_cut(life: Life, mode: str = "lose all", seed: int = 1) -> Disk:
    return crashed(life.disk, random.Random(seed), mode)


def assert_there(disk: Disk, entries: Sequence[bytes], settings: StorageSettings = TINY) -> Life:
    life = Life(disk, settings=settings)
    for entry in entries:
        assert life.read(*ids_of(entry)) == entry, ids_of(entry)
    return life


@contextmanager
def refusing(life: Life, kind: str, suffix: str, number: int, times: int = 1) -> Iterator[list[str]]:
    """The next *times* operations of that kind fail; yields the paths."""
    refused: list[str] = []

    def fail(what: str, path: str) -> None:
        if what == kind and path.endswith(suffix) and len(refused) < times:
            refused.append(path)
            raise OSError(number, "injected", path)

    life.disk.files.on_operation.append(fail)
    try:
        yield refused
    finally:
        life.disk.files.on_operation.remove(fail)


def images_of(life: Life, work: Callable[[], object], mode: str = "lose all") -> list[Disk]:
    """The disk before each operation of *work*."""
    images: list[Disk] = []
    rng = random.Random(3)

    def take(kind: str, path: str) -> None:
        images.append(crashed(life.disk, rng, mode))

    life.disk.files.on_operation.append(take)
    work()
    life.disk.files.on_operation.remove(take)
    assert images
    return images


def collect(life: Life, rounds: int = 1, compact: bool = True) -> None:
    for _ in range(rounds):
        until_end(life.collect({CompactionKind.MAJOR} if compact else set()), life.threads)


# ------------------------------------------------------------------------------------------------- marks


@pytest.mark.parametrize("mode", ["lose all", "keep all", "subset"])
def test_r_b1_a_crash_between_the_flushes_of_two_directories_loses_neither(mode: str) -> None:
    life = Life(Disk(ledgers=2))
    entries = entries_of([1, 2, 3, 4], range(4))
    assert len(acknowledged(life, entries)) == 16
    for image in images_of(life, life.flush, mode):
        assert_there(image, entries)


@pytest.mark.parametrize("mode", ["lose all", "subset"])
def test_r_b2_a_flush_that_overlaps_groups_of_two_journals_marks_no_more_than_it_flushed(mode: str) -> None:
    life = Life(Disk(journals=2))
    entries = acknowledged(life, entries_of([1, 2], range(3)))
    life.checkpointer.flush()  # marks (a, b); its job waits
    entries += acknowledged(life, entries_of([1], range(3, 6)))  # one journal goes on
    life.checkpointer.flush()

    def work() -> None:
        life.flusher.step()
        entries.extend(acknowledged(life, entries_of([2], range(3, 6))))  # then the other
        life.flush()

    before = list(entries)
    for image in images_of(life, work, mode):
        assert_there(image, before)
    assert_there(power_cut(life), entries)


def test_r_b3_a_fence_without_entries_moves_the_mark_with_its_row() -> None:
    life = Life(Disk())
    assert fenced(life, 7) == [OK]
    for image in [*images_of(life, life.flush), power_cut(life)]:
        after = Life(image)
        assert after.add([stored_entry(7, 0)], lambda taken, refusal: None) == [EFENCED]


def test_r_b4_a_flush_that_failed_is_not_passed_over_by_the_next() -> None:
    life = Life(Disk())
    entries = acknowledged(life, entries_of([1], range(10)))
    mark = read_file(life.disk.files, f"{LOGS}/lastMark")
    with refusing(life, "sync", ".log", errno.ENOSPC) as refused:
        life.flush()
        assert refused
    assert read_file(life.disk.files, f"{LOGS}/lastMark") == mark
    assert_there(power_cut(life), entries)
    # The second one finds nothing new, and flushes the old half; what comes later waits for the third.
    entries += acknowledged(life, entries_of([1], range(10, 13)))
    for image in images_of(life, life.flush):
        assert_there(image, entries)
    assert life.checkpointer.flushes >= 1
    assert_there(power_cut(life), entries)


def test_r_b4_a_flush_that_failed_for_another_reason_is_the_last() -> None:
    life = Life(Disk())
    entries = acknowledged(life, entries_of([1], range(10)))
    mark = read_file(life.disk.files, f"{LOGS}/lastMark")
    with refusing(life, "sync", ".log", errno.EIO):
        life.flush()
    assert isinstance(life.failure, OSError)
    assert read_file(life.disk.files, f"{LOGS}/lastMark") == mark
    assert_there(power_cut(life), entries)


def test_r_b4_the_rows_of_a_flush_that_failed_are_written_by_the_next() -> None:
    life = Life(Disk())
    assert fenced(life, 7) == [OK]
    entries = acknowledged(life, entries_of([1], range(3)))
    with refusing(life, "sync", ".log", errno.ENOSPC) as refused:
        life.flush()
        assert refused
    life.flush()
    assert life.checkpointer.flushes == 1
    after = assert_there(power_cut(life), entries)
    assert after.add([stored_entry(7, 0)], lambda taken, refusal: None) == [EFENCED]


def test_r_b6_a_mark_never_goes_back_and_its_file_is_there() -> None:
    life = Life(Disk())
    seen: list[Mark] = []

    def look(kind: str, path: str) -> None:
        if kind == "sync_directory" and path == LOGS:
            mark = decode_mark(read_file(life.disk.files, f"{LOGS}/lastMark"), "lastMark")
            assert life.disk.files.exists(f"{JOURNAL}/{mark.file_id:x}.txn")
            seen.append(mark)

    life.disk.files.on_operation.append(look)
    for n in range(12):
        life.checkpointer.flush()
        acknowledged(life, entries_of([1, 2], range(4 * n, 4 * n + 4)))
        life.checkpointer.flush()  # wanted while one waits
        while life.flusher.waiting:
            life.flusher.step()
    assert len(set(seen)) > 5
    assert seen == sorted(seen)


def test_r_b7_each_journal_has_a_mark_of_its_own() -> None:
    life = Life(Disk(journals=2))
    acknowledged(life, entries_of([1], range(5)))
    life.flush()
    marks = [decode_mark(read_file(life.disk.files, f"{LOGS}/lastMark.{n}"), "x") for n in range(2)]
    assert marks == [journal.mark for journal in life.journals]
    assert marks[0].offset != marks[1].offset


@pytest.mark.parametrize("what", ["fence", "lac", "entry"])
def test_r_b8_a_ledger_is_known_after_a_checkpoint_that_came_right_after_its_first_record(what: str) -> None:
    life = Life(Disk())
    if what == "fence":
        life.fence(5, lambda rc: None)
    elif what == "lac":
        life.write_lac(5, 3, lambda refusal: None)
    else:
        life.add([stored_entry(5, 0)], lambda taken, refusal: None)
    life.checkpointer.flush()  # before the journal has written anything
    life.settle_journals()
    life.flush()
    life.flush()
    assert 5 in Life(power_cut(life)).rules.ledgers


def test_r_b9_the_key_of_a_ledger_survives_replays_and_checkpoints() -> None:
    life = Life(Disk())
    acknowledged(life, entries_of([1], range(3)))
    for _ in range(3):
        life = Life(power_cut(life))
        assert life.add([stored_entry(1, 9)], lambda taken, refusal: None, key=OTHER_KEY) == [EUA]
        acknowledged(life, [stored_entry(1, 3)])
        life.flush()


def test_r_b10_repeated_starts_do_not_replay_more_and_more() -> None:
    life = Life(Disk())
    acknowledged(life, entries_of([1], range(20)))
    disk = power_cut(life)
    for _ in range(5):
        Life(disk)
        mark = decode_mark(read_file(disk.files, f"{LOGS}/lastMark"), "lastMark")
        assert replay(disk.files, JOURNAL, mark, lambda record: None) == 0
        journals = [name for name in disk.files.list(JOURNAL) if name.endswith(".txn")]
        assert len(journals) <= TINY.journal_backups + 1
        disk = crashed(disk, random.Random(1), "lose all")
    assert_there(disk, entries_of([1], range(20)))


def test_r_b16_journal_ids_only_grow_whatever_the_clock_says() -> None:
    disk = Disk()
    found = []
    for wall_ms in (1_700_000_000_000, 1, 2_000_000_000_000, 5):
        opened = open_storage(
            disk.files, disk.journal_directories, disk.ledger_directories, TINY, disk.open_index, wall_ms
        )
        found.append(opened.writers[0].mark.file_id)
        disk = crashed(disk, random.Random(wall_ms), "lose all")
    assert found == sorted(set(found))


def test_r_b20_there_is_one_flush_at_a_time() -> None:
    life = Life(Disk())
    acknowledged(life, entries_of([1], range(5)))
    life.checkpointer.flush()
    acknowledged(life, entries_of([1], range(5, 10)))
    life.checkpointer.flush()
    assert life.flusher.waiting == 1
    half = life.cache.swap()
    assert life.cache.swap() is half
    assert sorted(half[1]) == list(range(5))


# ------------------------------------------------------------------------------------------- journal ends


JUNK = [b"\0\0", b"\0\0\1", (300).to_bytes(4) + b"cut", (-5).to_bytes(4, signed=True) + b"x" * 20, b"\xa5" * 700]


@pytest.mark.parametrize("junk", JUNK)
def test_r_b14_junk_at_the_true_end_of_the_journal_is_dropped(junk: bytes) -> None:
    life = Life(Disk())
    entries = acknowledged(life, entries_of([1], range(5)))
    disk = power_cut(life)
    path = f"{JOURNAL}/{life.journals[0].mark.file_id:x}.txn"
    disk.files.open(path, writable=True).write_at(life.journals[0].mark.offset, junk)
    after = assert_there(disk, entries)
    assert after.entry_ids(1) == set(range(5))
    assert not after.storage.needs_check


@pytest.mark.parametrize("junk", [*JUNK[2:], bytes(4)])
def test_r_b14_junk_before_what_was_durable_keeps_the_bookie_down(junk: bytes) -> None:
    life = Life(Disk())
    acknowledged(life, entries_of([1], range(2)))
    offset = life.journals[0].mark.offset
    acknowledged(life, entries_of([1], range(2, 4)))
    acknowledged(life, entries_of([1], range(4, 6)))
    disk = power_cut(life)
    path = f"{JOURNAL}/{life.journals[0].mark.file_id:x}.txn"
    disk.files.open(path, writable=True).write_at(offset, junk)
    with pytest.raises(Corruption, match="was on disk"):
        Life(disk)


def test_r_b15_a_sector_of_zeros_in_the_middle_of_a_journal_is_no_end_of_it() -> None:
    life = Life(Disk())
    entries = [entry for n in range(30) for entry in acknowledged(life, entries_of([1], range(n, n + 1)))]
    assert len(entries) == 30
    journals = [name for name in life.disk.files.list(JOURNAL) if name.endswith(".txn")]
    assert len(journals) > 2
    for name in journals[:-1]:
        disk = power_cut(life)
        disk.files.open(f"{JOURNAL}/{name}", writable=True).write_at(1024, bytes(512))
        with pytest.raises(Corruption, match="restore"):
            Life(disk)


def test_r_b17_who_is_answered_can_rely_on_the_disk() -> None:
    life = Life(Disk())
    seen: list[bytes] = []

    def told(taken: list[bytes], refusal: Exception | None) -> None:
        assert refusal is None
        assert_there(power_cut(life), taken)
        seen.extend(taken)

    for n in range(5):  # groups of several requests, whose objects are used again
        life.add(entries_of([1], range(2 * n, 2 * n + 1)), told)
        life.add(entries_of([1], range(2 * n + 1, 2 * n + 2)), told)
        life.settle_journals()
    assert len(seen) == 10


@pytest.mark.parametrize("cut_off", [True, False])
def test_r_b17_what_a_full_journal_refused_leaves_nothing_that_later_groups_rely_on(cut_off: bool) -> None:
    """The key in a refused group is written again; half a group does not end the journal for what follows."""
    life = Life(Disk())
    busy = 0

    def full(kind: str, path: str) -> None:
        nonlocal busy
        if kind == "write" and path.endswith(".txn"):
            busy += 1
            if busy == 1:
                if cut_off:
                    file = life.disk.files.open(path, writable=True)
                    file.write_at(512, (400).to_bytes(4) + b"half of a group")
                raise OSError(errno.ENOSPC, "injected", path)

    life.disk.files.on_operation.append(full)
    assert acknowledged(life, entries_of([1], range(1))) == []
    life.disk.files.on_operation.clear()
    assert life.refusals == 1
    entries = acknowledged(life, entries_of([1], range(1, 4)))
    assert len(entries) == 3
    assert_there(power_cut(life), entries)
    assert_there(power_cut(life, "keep all"), entries)


def test_r_b17_a_group_of_which_a_part_was_refused_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that was written has a seal of its own: a replay would take it for acknowledged."""
    monkeypatch.setattr(writer, "SLICE_BYTES", 500)
    life = Life(Disk())
    writes = 0

    def full(kind: str, path: str) -> None:
        nonlocal writes
        if kind == "write" and path.endswith(".txn") and life.disk.files.open(path).size_bytes() > 1000:
            writes += 1
            if writes == 2:
                raise OSError(errno.ENOSPC, "injected", path)

    life.disk.files.on_operation.append(full)
    assert acknowledged(life, entries_of([1], range(6), size=400)) == []
    life.disk.files.on_operation.clear()
    assert life.refusals == 1
    assert 1 not in Life(power_cut(life, "keep all")).rules.ledgers
    entries = acknowledged(life, entries_of([1], range(6, 8)))
    assert_there(power_cut(life, "keep all"), entries)


def test_r_b18_deferred_adds_are_answered_without_waiting_for_a_sync_that_never_comes() -> None:
    life = Life(Disk())
    told: list[bytes] = []
    operations: list[str] = []
    life.disk.files.on_operation.append(lambda kind, path: operations.append(kind))
    life.add(entries_of([1], range(1)), lambda taken, refusal: told.extend(taken), must_sync=False)
    life.settle_journals()
    assert len(told) == 1
    assert "sync" not in operations


@pytest.mark.parametrize("where", [".txn", ".log"])
async def test_r_b19_a_loop_that_dies_takes_the_bookie_out_of_service(where: str) -> None:
    world = BookieMachines()
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0)) == OK

        def die(kind: str, path: str) -> None:
            if path.endswith(where):
                raise RuntimeError("a mistake in the program")

        world.files.on_operation.append(die)
        if where == ".log":
            bookie.checkpointer.flush()
        else:
            entry = stored_entry(1, 1)
            wire.send(v2.add_request_head(0, KEY, len(entry)) + entry)
        assert await wire.closed()
        assert "a mistake in the program" in str(bookie.failure)
        assert len(wire.frames) == 1
        world.files.on_operation.clear()
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).read(1, 0) == stored_entry(1, 0)


@pytest.mark.parametrize("variant", ["the data stay in the cache", "the cache goes back to the old content"])
def test_r_b32_after_a_failed_fsync_the_tail_is_written_anew_before_anything_is_served(variant: str) -> None:
    life = Life(Disk())
    entries = acknowledged(life, entries_of([1], range(5)))
    more = entries_of([1], range(5, 8))

    def fail(kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".txn"):
            inode = life.disk.files._entries[path]
            if variant != "the data stay in the cache":
                inode.cached[:] = inode.durable
                inode.unsynced.clear()
            raise OSError(errno.EIO, "injected", path)

    life.disk.files.on_operation.append(fail)
    assert acknowledged(life, more) == []
    assert life.failure is not None
    life.disk.files.on_operation.clear()
    assert acknowledged(life, entries_of([1], range(8, 9))) == [], "a later fsync proves nothing"
    # The process starts again over the same cache; what it shows then stays, whatever happens to that cache.
    again = assert_there(life.disk, entries)
    shown = [entry for entry in more if again.read(*ids_of(entry)) == entry]
    assert_there(power_cut(again), entries + shown)


def test_r_b34_journal_damage_that_is_passed_over_leaves_the_bookie_in_doubt() -> None:
    life = Life(Disk())
    for n in range(3):
        acknowledged(life, entries_of([1], range(n, n + 1)))
    disk = power_cut(life)
    path = f"{JOURNAL}/{life.journals[0].mark.file_id:x}.txn"
    disk.files.open(path, writable=True).write_at(600, b"damage")
    after = Life(disk, settings=replace(TINY, skip_invalid_journal=True))
    assert after.storage.needs_check
    assert Life(crashed(disk, random.Random(1), "lose all")).storage.needs_check


# --------------------------------------------------------------------------------------- entry logs, index


def test_r_b5_a_log_whose_append_failed_in_the_middle_gets_nothing_more() -> None:
    life = Life(Disk())
    entries = acknowledged(life, entries_of([1, 2], range(6)))
    busy = False

    def half(kind: str, path: str) -> None:
        nonlocal busy
        if kind == "write" and path.endswith(".log") and life.disk.files.open(path).size_bytes() > 0 and not busy:
            busy = True
            life.disk.files.open(path, writable=True).append([b"\0\0\1\0half of a write"])
            raise OSError(errno.ENOSPC, "injected", path)

    life.disk.files.on_operation.append(half)
    life.flush()
    life.disk.files.on_operation.clear()
    assert life.checkpointer.flush_failures == 1
    entries += acknowledged(life, entries_of([3], range(3)))
    life.flush()
    life.flush()
    for entry in entries:
        assert life.storage.read(*ids_of(entry)).entry == entry
    located = life.storage.directories[0].index.locations(1, 0, 9)
    assert {log_format.split_location(location)[0] for _, location in located} == {1}
    assert_there(power_cut(life), entries)


@pytest.mark.parametrize("has_time", [False, True])
def test_r_b21_the_index_leads_only_to_what_is_synced(has_time: bool) -> None:
    disk = Disk()
    life = Life(disk, settings=SMALL_LOGS)
    life.checkpointer._is_hurried = not has_time
    index = disk.indexes[LOGS]
    published: list[int] = []
    put = index.put_locations

    def checked(items: Sequence[tuple[int, int, int]]) -> None:
        image = crashed_files(disk.files, random.Random(1), "lose all")
        for _, _, location in items:
            log_id, offset = log_format.split_location(location)
            assert image.open(f"{LOGS}/{log_id:x}.log").size_bytes() > offset
        published.append(len(items))
        put(items)

    index.put_locations = checked  # type: ignore[method-assign]
    acknowledged(life, entries_of([1, 2], range(10)))
    life.flush()
    assert published == [20]


@pytest.mark.parametrize("is_fence", [False, True])
def test_r_b21_an_entry_whose_ledgers_row_a_crash_took_is_not_called_absent(is_fence: bool) -> None:
    """A flush writes locations before rows; the journal has not all entries that the flush had."""
    life = Life(Disk())
    if is_fence:
        life.fence(1, lambda rc: None)
        life.settle_journals()
    else:
        acknowledged(life, entries_of([1], range(2)))
    directory, late = life.storage.directories[0], stored_entry(1, 5, b"flushed")
    located = directory.logs.append([(1, 5, late)])
    directory.logs.sync()
    directory.index.put_locations(located)
    directory.index.sync()
    after = Life(power_cut(life))
    assert after.rules.read(1, 5) is None, "the disk is to be asked"
    assert after.read(1, 5) == late
    if not is_fence:
        assert after.read(1, 1) is not None
    tail = after.storage.tail(1)
    assert tail.entry_id == 5


def test_r_b21_a_location_that_a_crash_left_without_its_entry_is_an_error() -> None:
    life = Life(Disk())
    acknowledged(life, entries_of([1], range(2)))
    life.flush()
    life.disk.indexes[LOGS].put_locations([(1, 5, log_format.location(0, 100_000)), (1, 6, log_format.location(99, 5))])
    with pytest.raises(Corruption):
        life.storage.read(1, 5)
    with pytest.raises(FileNotFoundError):
        life.storage.read(1, 6)


def test_r_b21_a_location_that_leads_to_another_entry_is_an_error() -> None:
    life = Life(Disk())
    acknowledged(life, entries_of([1, 2], range(2)))
    life.flush()
    index = life.disk.indexes[LOGS]
    for other in ((1, 1), (2, 0)):
        index.put_locations([(1, 0, index.location(*other))])
        with pytest.raises(Corruption, match="expected ledger 1 entry 0"):
            life.storage.read(1, 0)


async def test_r_b13_recovery_is_told_of_damage_and_not_of_absence() -> None:
    world = BookieMachines()
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).add(stored_entry(1, 0, b"x" * 100)) == OK
    world.files.open("/bookie/ledgers/current/0.log", writable=True).write_at(1024 + 8, b"damage")
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert (await wire.ask(v2.read_request(1, 0, v2.FLAG_DO_FENCING | v2.FLAG_HIGH_PRIORITY, KEY)))[1] == EIO
        assert (await wire.ask(v2.batch_read_request(1, 0, 1, 5, 1000)))[1] == EIO
        answer = await (await Wire.connect(bookie)).ask_v3(v3.read_request(1, 1, 0))
        assert int(answer.status) == v3.V3Error.EIO


def test_r_b23_an_index_that_cannot_be_written_ends_the_flushing() -> None:
    life = Life(Disk())
    entries = acknowledged(life, entries_of([1], range(5)))

    def broken() -> None:
        raise OSError("RocksDB: IO error")

    life.disk.indexes[LOGS].sync = broken  # type: ignore[method-assign]
    life.flush()
    assert isinstance(life.failure, OSError)
    logs = [name for name in life.disk.files.list(LOGS) if name.endswith(".log")]
    assert logs == ["0.log"]
    after = power_cut(life)
    del life.disk.indexes[LOGS].sync
    assert_there(after, entries)


def test_r_b28_a_rolled_log_that_could_not_be_synced_is_flushed_again_before_the_mark() -> None:
    life = Life(Disk(), settings=SMALL_LOGS)
    entries = acknowledged(life, entries_of([1], range(20)))
    with refusing(life, "sync", "0.log", errno.ENOSPC) as refused:
        life.flush()
        assert refused
    life.flush()
    assert life.checkpointer.flushes == 1
    assert_there(power_cut(life), entries, SMALL_LOGS)


def test_r_b30_a_bookie_whose_first_flush_fails_does_not_serve() -> None:
    life = Life(Disk())
    entries = acknowledged(life, entries_of([1], range(5)))
    for kind, suffix in (("sync", ".log"), ("write", ".log"), ("rename", "lastMark.tmp"), ("sync", ".txn")):
        disk = power_cut(life)

        def fail(what: str, path: str, kind: str = kind, suffix: str = suffix) -> None:
            if what == kind and path.endswith(suffix):
                raise OSError(errno.EIO, "injected", path)

        disk.files.on_operation.append(fail)
        with pytest.raises(OSError, match="injected"):
            Life(disk)
        disk.files.on_operation.clear()
        assert_there(crashed(disk, random.Random(1), "lose all"), entries)


# --------------------------------------------------------------------------------- deletion and compaction


def collected_life(deleted: Sequence[int] = (2, 3, 4), ledgers: Sequence[int] = (1, 2, 3, 4)) -> Life:
    """A second life with one closed log in which most ledgers are gone from metadata."""
    first = Life(Disk())
    acknowledged(first, entries_of(ledgers, range(6)))
    first.stop()
    return Life(first.disk, [n for n in ledgers if n not in deleted])


@pytest.mark.parametrize("mode", ["lose all", "keep all", "subset", "torn 512", "garbage"])
def test_r_b11_a_crash_anywhere_in_a_compaction_leaves_every_live_entry(mode: str) -> None:
    life = collected_life()
    images = images_of(life, lambda: collect(life, 3), mode)
    assert life.collector.status().compacted_logs == 1
    assert len(images) > 15
    live = entries_of([1], range(6))
    for image in [*images, power_cut(life)]:
        assert_there(image, live)


def test_r_b12_a_log_whose_header_is_stale_is_read_through_and_kept() -> None:
    first = Life(Disk())
    acknowledged(first, entries_of([1, 2], range(6)))
    first.stop()
    file = first.disk.files.open(f"{LOGS}/0.log", writable=True)
    file.write_at(log_format.SEAL_OFFSET, log_format.encode_seal(file.size_bytes(), 0))  # as if nothing was in it
    life = Life(first.disk, [1, 2])
    collect(life, 3)
    assert "0.log" in life.disk.files.list(LOGS)
    assert_there(power_cut(life), entries_of([1, 2], range(6)))


@pytest.mark.parametrize("left", [b"", b"BKLO", bytes(1024), bytes(3000)])
def test_r_b12_a_log_that_a_crash_left_without_its_header_goes_once_the_index_proves_it_unused(left: bytes) -> None:
    life = collected_life(deleted=())
    for log_id in (7, 8):
        life.disk.files.create(f"{LOGS}/{log_id}.log").append([left])
    located = life.disk.indexes[LOGS].location(1, 0)
    life.disk.indexes[LOGS].put_locations([(1, 99, log_format.location(8, 1028))])
    collect(life, 2)
    assert "7.log" not in life.disk.files.list(LOGS)
    assert list(life.collector.status().damaged_logs) == [f"{LOGS}/8.log"], "this one the index knows"
    assert life.disk.indexes[LOGS].location(1, 0) == located


def test_r_b22_a_ledger_that_is_deleted_while_it_is_flushed_does_not_come_back() -> None:
    life = Life(Disk(), [1])
    acknowledged(life, entries_of([1, 2], range(4)))
    life.checkpointer.flush()  # holds rows and entries of ledger 2, which is deleted now
    collect(life, 1)
    collect(life, 1)
    life.flush()
    collect(life, 2)
    assert 2 not in life.rules.ledgers
    acknowledged(life, entries_of([1], range(4, 6)))
    life.flush()
    after = Life(power_cut(life), [1])
    assert 2 not in after.rules.ledgers
    assert after.storage.entry_ids(2) == []
    assert 2 not in dict(after.storage.directories[0].index.ledgers())


def test_r_b24_one_damaged_log_does_not_keep_the_others_from_being_compacted() -> None:
    disk = Disk()
    for ledgers in ((1, 2, 3), (4, 5, 6)):
        first = Life(disk)
        acknowledged(first, entries_of(ledgers, range(6)))
        first.stop()
    file = disk.files.open(f"{LOGS}/0.log", writable=True)
    file.write_at(log_format.SEAL_OFFSET, bytes(12))
    records = list(log_format.scan(file.read_at, file.size_bytes()))
    file.write_at(records[2][0] - 4, b"\xff\xff\xff\xff")
    life = Life(disk, [1, 4])
    collect(life, 3)
    status = life.collector.status()
    assert list(status.damaged_logs) == [f"{LOGS}/0.log"]
    assert "1.log" not in disk.files.list(LOGS)
    assert_there(power_cut(life), entries_of([4], range(6)))


@pytest.mark.parametrize("step", ["the list of tombstones", "the index"])
def test_r_l20_a_fence_survives_a_deletion_that_failed(step: str) -> None:
    """Its row was not written yet: the deletion takes it off the list of rows to write, and must put it back."""
    life = Life(Disk(), [1])
    acknowledged(life, entries_of([1], range(1)))
    life.flush()
    assert fenced(life, 2) == [OK]
    index = life.disk.indexes[LOGS]
    if step == "the index":

        def full(ledger_ids: Sequence[int]) -> None:
            raise OSError(errno.ENOSPC, "injected")

        index.delete_ledgers = full  # type: ignore[method-assign]
    with refusing(life, "create", "fenced-and-deleted.tmp", errno.ENOSPC, times=0 if step == "the index" else 9):
        for _ in range(2):
            work = life.collect(set())
            with suppress(OSError):
                until_end(work, life.threads)
    assert 2 in life.rules.ledgers
    acknowledged(life, entries_of([1], range(1, 3)))
    life.flush()  # moves the mark behind the fence
    after = Life(power_cut(life))
    assert after.add([stored_entry(2, 0)], lambda taken, refusal: None) == [EFENCED]


@pytest.mark.parametrize("mode", ["lose all", "keep all"])
def test_r_l20_what_was_fenced_and_deleted_takes_no_adds_after_any_crash(mode: str) -> None:
    life = Life(Disk(), [1])
    acknowledged(life, entries_of([1], range(2)))
    assert fenced(life, 2) == [OK]

    def work() -> None:
        life.flush()
        collect(life, 3)
        acknowledged(life, entries_of([1], range(2, 6)))
        life.flush()

    for image in [*images_of(life, work, mode), power_cut(life, mode)]:
        for again in (image, crashed(image, random.Random(1), mode)):
            after = Life(again)
            assert after.add([stored_entry(2, 0)], lambda taken, refusal: None) == [EFENCED]
    assert 2 not in life.rules.ledgers


# ------------------------------------------------------------------------------------- fences, LAC, identity


def test_r_b25_an_explicit_lac_is_not_lower_after_restarts() -> None:
    life = Life(Disk())
    acknowledged(life, entries_of([1], range(3)))
    told: list[Exception | None] = []
    for lac in (2, 9, 4):
        life.write_lac(1, lac, told.append)
    life.settle_journals()
    assert told == [None] * 3
    for flushed in (False, True, True):
        if flushed:
            life.flush()
        life = Life(power_cut(life))
        ledger = life.rules.ledgers.get(1)
        assert ledger is not None
        assert ledger.last_add_confirmed == 9


async def test_r_b26_a_fence_is_taken_while_no_directory_has_room() -> None:
    world = BookieMachines(HurriedClock())
    async with world.serving(reserve_mib=1, write_cache_mib=1) as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0)) == OK
        world.files.capacity_bytes = (1 << 40) - world.files.usage("/").free_bytes
        assert await wire.add(stored_entry(1, 1, b"x" * 5000)) == v2.V2Error.EREADONLY
        assert (await wire.ask(v2.read_request(9, -1, v2.FLAG_DO_FENCING, KEY)))[1] == v2.V2Error.ENOENTRY
        image = crashed_files(world.files, random.Random(1), "lose all")
    world.files, image.capacity_bytes = image, None
    world.indexes = {name: MemoryIndex() for name in world.indexes}
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).add(stored_entry(9, 0)) == EFENCED


@pytest.mark.parametrize("lost", ["the cookie in the store", "the journal directory", "a ledger directory"])
async def test_r_b27_a_bookie_that_lost_a_part_of_itself_does_not_serve(lost: str) -> None:
    world = BookieMachines()
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).add(stored_entry(1, 0)) == OK
    if lost == "the cookie in the store":
        await world.store.delete("/ledgers/cookies/bookie-1")
    else:
        directory = "/bookie/storage/journal/current" if lost == "the journal directory" else "/bookie/ledgers/current"
        for name in world.files.list(directory):
            world.files.remove(f"{directory}/{name}")
    with pytest.raises(CookieMismatch):
        await world.bookie().start()


@pytest.mark.parametrize("flushed", [False, True])
def test_r_b29_a_fence_survives_restarts(flushed: bool) -> None:
    life = Life(Disk())
    entries = acknowledged(life, entries_of([1], range(3)))
    assert fenced(life, 1) == [OK]
    for _ in range(3):
        if flushed:
            life.flush()
        life = assert_there(power_cut(life), entries)
        assert life.add([stored_entry(1, 3)], lambda taken, refusal: None) == [EFENCED]
        assert fenced(life, 1) == [OK]


def test_r_l21_the_first_add_and_the_first_fence_meet_one_ledger() -> None:
    for add_first in (False, True):
        life = Life(Disk())
        told: list[bytes] = []
        rcs: list[int] = []
        calls: list[Callable[[], object]] = [
            lambda life=life, told=told: life.add([stored_entry(1, 0)], lambda taken, refusal: told.extend(taken)),  # type: ignore[misc]
            lambda life=life, rcs=rcs: life.fence(1, rcs.append),  # type: ignore[misc]
        ]
        for call in calls if add_first else reversed(calls):
            call()
        life.settle_journals()
        assert (len(told), rcs) == (1 if add_first else 0, [OK])
        assert life.add([stored_entry(1, 1)], lambda taken, refusal: None) == [EFENCED]


def test_r_l26_recovery_writes_to_a_fenced_ledger_after_a_restart_too() -> None:
    life = Life(Disk())
    assert fenced(life, 1) == [OK]
    life = Life(power_cut(life))
    assert life.add([stored_entry(1, 0)], lambda taken, refusal: None, recovery=True) == [OK]


async def test_r_b31_what_was_taken_from_the_socket_cannot_change_any_more() -> None:
    world = BookieMachines()
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        entry = stored_entry(1, 0, b"first")
        assert await wire.add(entry) == OK
        third = await Wire.connect(bookie)
        other = stored_entry(2, 0, b"second")
        assert (await third.ask_v3(bookie_requests.add_request(1, 2, 0, KEY, other))).status == 0
        for ledger_id, sent in ((1, entry), (2, other)):
            kept = bookie.server.write_cache.get(ledger_id, 0)
            assert type(kept) is bytes
            assert kept == sent


async def test_r_b33_a_disk_that_is_full_at_the_start_serves_read_only_from_what_was_kept_free() -> None:
    world = LyingWorld(HurriedClock())
    async with world.serving(reserve_mib=1, write_cache_mib=1) as bookie:
        assert await (await Wire.connect(bookie)).add(stored_entry(1, 0, b"x" * 3000)) == OK
        image = crashed_files(world.files, random.Random(1), "keep all")
    world.files = image
    world.indexes = {name: MemoryIndex() for name in world.indexes}
    image.capacity_bytes = (1 << 40) - image.usage("/").free_bytes
    world.usage_of = image.usage
    async with world.serving(reserve_mib=1, write_cache_mib=1) as bookie:
        wire = await Wire.connect(bookie)
        assert bookie.is_read_only
        assert await wire.read(1, 0) == stored_entry(1, 0, b"x" * 3000)
        assert await wire.add(stored_entry(1, 1)) == v2.V2Error.EREADONLY


async def test_r_b33_a_disk_without_any_room_is_named() -> None:
    world = BookieMachines()
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).add(stored_entry(1, 0, b"x" * 3000)) == OK
        image = crashed_files(world.files, random.Random(1), "keep all")
    world.files = image
    world.indexes = {name: MemoryIndex() for name in world.indexes}
    image.capacity_bytes = (1 << 40) - image.usage("/").free_bytes
    with pytest.raises(StorageFailed, match="no space left"):
        await world.bookie().start()
    image.capacity_bytes = None
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).read(1, 0) == stored_entry(1, 0, b"x" * 3000)


async def test_r_l4_what_may_have_been_lost_is_unknown_and_not_absent() -> None:
    world = LyingWorld(HurriedClock())
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).add(stored_entry(1, 0)) == OK
    await world.record_ledger(1, segments=(Segment(0, ("bookie-1",)),))
    for directory in ("/bookie/ledgers/current", "/bookie/storage/journal/current"):
        for name in world.files.list(directory):
            world.files.remove(f"{directory}/{name}")
    world.indexes.clear()
    async with world.serving(data_integrity=True) as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 0) == v2.V2Error.EUNKNOWNLEDGERSTATE
        assert await wire.add(stored_entry(1, 1)) == EFENCED
