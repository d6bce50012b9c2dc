"""A flush spreads its work over the time until the next one."""

from pathlib import Path
from typing import Any

import pytest

from bookie.storage.checkpoint import Checkpointer
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import EntryLogs, ReadBefore, SystemReadAhead
from bookie.storage.ledger_storage import FLUSH_ENTRIES_MAX
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.runtime.files import File, OsFiles
from magnetar_core.runtime.types import KIB, MIB
from tests.support.bookie_disks import Disk, stored_entry
from tests.support.crash_images import Life

ENTRY = 2000


def filled(disk: Disk) -> Life:
    """A bookie whose write cache has halves of 32 KiB; the half that takes entries is one third full."""
    life = Life(disk)
    life.add([stored_entry(1, n, bytes(ENTRY)) for n in range(5)], lambda taken, refusal: None)
    life.settle_journals()
    return life


def shares_of(life: Life, *, has_time: bool = False) -> list[float]:
    """The places at which a flush of the write cache pauses."""
    shares: list[float] = []

    def pause(share: float) -> bool:
        shares.append(share)
        return has_time

    life.storage.flush(life.cache.swap(), life.rules.ledgers.take_dirty(), pause)
    return shares


@pytest.mark.parametrize("directories", [1, 2])
def test_a_flush_pauses_between_its_pieces_and_says_how_far_it_is(directories: int) -> None:
    life = Life(Disk(ledgers=directories))
    for ledger_id in (1, 2):
        life.add([stored_entry(ledger_id, n, bytes(ENTRY)) for n in range(10)], lambda taken, refusal: None)
    life.settle_journals()
    shares = shares_of(life)
    assert len(shares) >= 18
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1


@pytest.mark.parametrize("has_time", [False, True])
def test_each_piece_is_synced_where_there_is_time_and_otherwise_sixteen_at_once(has_time: bool) -> None:
    disk = Disk()
    operations: list[str] = []
    life = Life(disk)
    life.add([stored_entry(1, n, bytes(ENTRY // 4)) for n in range(40)], lambda taken, refusal: None)
    life.settle_journals()
    assert life.cache.entries == 40
    disk.files.on_operation.append(lambda kind, path: operations.append(kind) if path.endswith(".log") else None)
    shares_of(life, has_time=has_time)
    writes = "".join("w" if kind == "write" else "s" for kind in operations if kind in ("write", "sync"))
    runs = [len(run) for run in writes.split("s") if run]
    # With the header of a log, and what seals the one before it.
    assert max(runs) <= 5 if has_time else 16 <= max(runs) <= 17, writes
    assert writes.endswith("s")


def test_pieces_of_small_entries_are_smaller() -> None:
    life = Life(Disk())
    life.storage._flush_piece_bytes = MIB
    number = 2 * FLUSH_ENTRIES_MAX + 1
    for entry_id in range(number):
        life.cache.put(1, entry_id, stored_entry(1, entry_id, b""))
    shares = shares_of(life)
    assert len(shares) == 3  # two between the three pieces, one between the two batches of their locations
    assert shares[1] == pytest.approx(2 * shares[0])


def test_the_memory_of_a_flushed_half_is_given_back_on_the_flushers_thread() -> None:
    life = filled(Disk())
    half = life.cache.swap()
    life.checkpointer.flush()
    life.flusher.step()
    assert len(half[1]) == 5
    assert life.cache.is_empty
    life.flusher.step()
    assert half == {}
    assert life.flusher.waiting == 0


class Sleeper:
    """Counts sleeps; at each, *entries* more are added to the half that takes entries."""

    def __init__(self, life: Life, entries: int) -> None:
        self.life = life
        self.entries = entries
        self.count = 0

    def __call__(self, seconds: float) -> None:
        self.count += 1
        for _ in range(self.entries):
            number = 100 + self.life.cache.entries
            self.life.cache.put(1, number, stored_entry(1, number, bytes(ENTRY)))


def flushed(entries_at_each_sleep: int) -> int:
    """The number of sleeps of a flush."""
    life = filled(Disk())
    sleeper = Sleeper(life, entries_at_each_sleep)
    checkpointer: Checkpointer = life.checkpointer
    checkpointer._sleep = sleeper
    checkpointer.flush()
    while life.flusher.waiting:
        life.flusher.step()
    return sleeper.count


def test_a_flush_without_adds_waits_a_little_after_each_piece_and_ends() -> None:
    assert flushed(0) == 4 * 4  # five pieces, the last of which needs no pause


def test_a_flush_that_adds_catch_up_with_does_not_wait() -> None:
    assert 1 <= flushed(2) < 8


def test_the_last_flush_does_not_wait() -> None:
    life = filled(Disk())
    sleeper = Sleeper(life, 0)
    life.checkpointer._sleep = sleeper
    life.checkpointer._is_hurried = True
    life.checkpointer.flush()
    while life.flusher.waiting:
        life.flusher.step()
    assert sleeper.count == 0
    assert life.cache.is_empty


def test_a_journal_leaves_the_page_cache_when_it_is_synced() -> None:
    forgotten: list[tuple[int, int]] = []

    class Watched(MemoryFiles):
        def create(self, path: str) -> File:
            file = super().create(path)
            if path.endswith(".txn"):
                forget = file.forget

                def note(offset: int, size_bytes: int) -> None:
                    forget(offset, size_bytes)
                    forgotten.append((offset, size_bytes))

                file.forget = note  # type: ignore[method-assign]
            return file

    life = Life(Disk(Watched()))
    for number, size_bytes in enumerate((5000, 1000)):
        life.add([stored_entry(1, number, bytes(size_bytes))], lambda taken, refusal: None)
        life.settle_journals()
    (first, size), (second, more) = forgotten
    assert (first, second) == (0, 4096), "the page that the first group ends in goes with the second"
    assert 5000 < size < second + more


def test_of_an_entry_log_the_newest_part_stays_in_the_page_cache() -> None:
    forgotten: list[tuple[str, int, int]] = []

    class Watched(MemoryFiles):
        def create(self, path: str) -> File:
            file = super().create(path)
            if path.endswith(".log"):
                forget = file.forget

                def note(offset: int, size_bytes: int) -> None:
                    forget(offset, size_bytes)
                    forgotten.append((path, offset, size_bytes))

                file.forget = note  # type: ignore[method-assign]
            return file

    files = Watched()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 64 * KIB, page_cache_bytes=16 * KIB)
    for number in range(12):
        logs.append([(1, number, stored_entry(1, number, bytes(8 * KIB)))])
        logs.sync()
    first = [(offset, size) for path, offset, size in forgotten if path == "/l/0.log"]
    assert [offset for offset, _ in first] == [sum(size for _, size in first[:at]) for at in range(len(first))]
    assert first[0] == (0, 8 * KIB), "three entries are there: the first of them goes"
    assert sum(size for _, size in first) > 48 * KIB, "a log that is sealed goes as a whole"
    assert sum(size for path, _, size in forgotten if path == "/l/1.log") == 24 * KIB


def test_what_is_forgotten_is_still_there(tmp_path: Path) -> None:
    file = OsFiles().create(f"{tmp_path}/x")
    file.append([b"abc" * 5000])
    file.sync()
    file.forget(0, 15_000)
    assert file.read_at(0, 15_000) == b"abc" * 5000
    file.close()


def test_what_follows_is_read_ahead_once_reads_of_a_ledger_follow_each_other() -> None:
    """Locations of two logs differ by 2³² and more: nothing is read ahead over the end of a log."""
    at, ahead = 5 << 32, SystemReadAhead()
    assert ahead.note_read(7, at, at + 100 * KIB) is None, "it may be the only one"
    assert ahead.note_read(7, at + 90 * KIB, at + 200 * KIB) == (at + 200 * KIB, 256 * KIB)
    assert ahead.note_read(7, at + 200 * KIB, at + 300 * KIB) is None, "more than half of that is still to come"
    assert ahead.note_read(7, at + 300 * KIB, at + 400 * KIB) == (at + 456 * KIB, 200 * KIB)
    assert ahead.note_read(8, at + 400 * KIB, at + 500 * KIB) is None, "another ledger"
    assert ahead.note_read(7, at, at + 100 * KIB) is None, "it begins again"
    assert ahead.note_read(7, at + MIB, at + 2 * MIB) is None, "a leap"
    assert ahead.note_read(7, 6 << 32, (6 << 32) + KIB) is None


def test_of_many_ledgers_those_are_forgotten_that_were_read_first() -> None:
    ahead = SystemReadAhead()
    for ledger_id in range(1_001):
        assert ahead.note_read(ledger_id, 0, KIB) is None
    assert ahead.note_read(0, KIB, 2 * KIB) is None
    assert ahead.note_read(1_000, KIB, 2 * KIB) == (2 * KIB, 256 * KIB)


class WatchedFile:
    """What the system is told about a file."""

    def __init__(self, file: File, told: list[tuple[int, int] | None]) -> None:
        self._file, self._told = file, told
        self.past_cache: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def without_read_ahead(self) -> None:
        self._told.append(None)

    def will_need(self, offset: int, size_bytes: int) -> None:
        self._told.append((offset, size_bytes))

    def read_once_at(self, offset: int, size_bytes: int) -> bytes:
        self.past_cache.append((offset, size_bytes))
        return self._file.read_at(offset, size_bytes)


class WatchedFiles(MemoryFiles):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, int] | None] = []
        self.logs: dict[str, WatchedFile] = {}

    def open(self, path: str, *, writable: bool = False) -> File:
        file = super().open(path, writable=writable)
        if not path.endswith(".log"):
            return file
        self.logs[path] = WatchedFile(file, self.told)
        return self.logs[path]


def test_the_system_reads_no_more_of_a_log_than_it_is_told() -> None:
    files = WatchedFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", MIB)
    located = logs.append([(1, n, stored_entry(1, n, bytes(KIB))) for n in range(100)])
    logs.sync()
    wanted = [(entry_id, location) for _, entry_id, location in located]
    assert len(logs.read_run(1, wanted[:20], 512 * KIB)) == 20
    assert files.told == [None], "a single read"
    assert len(logs.read_run(1, wanted[20:40], 512 * KIB)) == 20
    (_, ahead) = files.told
    assert ahead is not None
    end = wanted[39][1] + KIB & 0xFFFFFFFF
    assert end < ahead[0] < end + 4 * KIB
    assert ahead[1] == 256 * KIB


def full_log(
    page_cache_bytes: int, entry_bytes: int = 64 * KIB
) -> tuple[WatchedFiles, EntryLogs, list[tuple[int, int]]]:
    """Forty entries in a log that still grows, and their locations."""
    files = WatchedFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 16 * MIB, page_cache_bytes)
    located = logs.append([(1, n, stored_entry(1, n, bytes(entry_bytes))) for n in range(40)])
    logs.sync()
    return files, logs, [(entry_id, location) for _, entry_id, location in located]


def test_a_large_read_goes_past_the_page_cache_once() -> None:
    files, logs, wanted = full_log(512 * KIB)
    for _ in range(3):  # readers whose reads begin elsewhere
        for first in range(0, 20, 5):
            run = logs.read_run(1, wanted[first : first + 5], 512 * KIB)
            assert [entry_id for entry_id, _ in run] == list(range(first, first + 5))
            assert all(entry == stored_entry(1, entry_id, bytes(64 * KIB)) for entry_id, entry in run)
    assert [offset // (64 * KIB) for offset, _ in files.logs["/l/0.log"].past_cache] == [0, 5, 10, 15]
    logs.read_run(1, wanted[2:7], 512 * KIB)
    assert len(files.logs["/l/0.log"].past_cache) == 4, "read before, in other parts"
    logs.read_run(1, wanted[20:21], 512 * KIB)
    assert len(files.logs["/l/0.log"].past_cache) == 4, "a small one"


def test_what_was_read_but_did_not_fit_goes_past_the_page_cache_again() -> None:
    """A block ends with an entry that is read, does not fit and is asked for again: that is no second reader."""
    files, logs, wanted = full_log(512 * KIB, 160 * KIB)
    for first in range(0, 20, 4):
        logs.read_run(1, wanted[first : first + 5], MIB)
    offsets = [wanted[first][1] - fmt.SIZE.size & 0xFFFFFFFF for first in range(0, 20, 4)]
    assert [offset for offset, _ in files.logs["/l/0.log"].past_cache] == offsets


def test_what_is_still_in_the_page_cache_is_read_there() -> None:
    files, logs, wanted = full_log(1024 * KIB)
    logs.read_run(1, wanted[30:36], 512 * KIB)
    assert not files.logs["/l/0.log"].past_cache, "the newest part of the log that grows"
    files, logs, wanted = full_log(0)
    logs.read_run(1, wanted[:6], 512 * KIB)
    assert not files.logs["/l/0.log"].past_cache, "nothing was dropped"


def test_a_large_entry_is_read_past_the_page_cache() -> None:
    files = WatchedFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 16 * MIB, 4 * KIB)
    entries = [(1, n, stored_entry(1, n, bytes([n]) * MIB)) for n in range(3)]
    located = logs.append(entries)
    logs.sync()
    for _, entry_id, location in located[:2]:
        assert logs.read(location, 1, entry_id) == entries[entry_id][2]
    assert [size >> 20 for _, size in files.logs["/l/0.log"].past_cache] == [1, 1]


def test_of_many_logs_those_are_read_past_the_cache_again_that_were_read_first() -> None:
    before = ReadBefore()
    for log_id in range(65):
        assert not before.has(log_id, 10)
        before.mark(log_id, 10, 256 * KIB)
    assert before.has(64, 10)
    assert not before.has(0, 10)


def test_only_pieces_that_were_read_as_a_whole_count_as_read() -> None:
    before = ReadBefore()
    before.mark(0, 64 * KIB - 1, 128 * KIB - 1)
    assert not before.has(0, 0)
    assert not before.has(0, 64 * KIB)
    before.mark(0, 64 * KIB - 1, 192 * KIB)
    assert [before.has(0, at) for at in (0, 1, 64 * KIB, 64 * KIB + 1, 128 * KIB, 128 * KIB + 1)] == [
        False, True, True, True, True, False]  # fmt: skip
