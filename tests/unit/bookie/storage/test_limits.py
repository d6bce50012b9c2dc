"""Limits of a bookie's journal, entry logs and index, exceeded. See docs/limits.md."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.assembly import storage_settings
from bookie.startup import open_storage
from bookie.storage.entry_log.files import EntryLogs
from bookie.storage.index import RocksIndex
from bookie.storage.journal import format as fmt
from bookie.storage.journal.replay import replay
from bookie.storage.ledger_storage import LedgerDirectory
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.runtime.files import File, OsFiles
from magnetar_core.runtime.types import KIB, MIB
from tests.support.bookie_disks import TINY, Disk, OpenedDisk, stored_entry
from tests.support.serving import CONFIG, BookieMachines, Wire

SETTINGS = replace(TINY, log_bytes_max=MIB, write_cache_bytes=MIB, read_ahead_entries=100)
COUNT = 20


@pytest.fixture
def opened() -> OpenedDisk:
    """A storage with one ledger of COUNT entries of 200 bytes, in one entry log."""
    found = Disk().open(SETTINGS)
    for entry_id in range(COUNT):
        found.add(1, entry_id, entry(entry_id))
    found.sync()
    found.checkpoint()
    return found


def entry(entry_id: int) -> bytes:
    return stored_entry(1, entry_id, b"%d" % (entry_id % 10) * 164)


def directory_of(opened: OpenedDisk) -> LedgerDirectory:
    (directory,) = opened.storage.directories
    return directory


class Reads:
    """The sizes of the reads of a file, in order."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        self.sizes.append(size_bytes)
        return self._file.read_at(offset, size_bytes)


# -- reads


def test_one_read_of_a_log_fetches_so_many_bytes(opened: OpenedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.storage.ledger_storage.READ_BYTES_MAX", 1000)
    logs: Any = directory_of(opened).logs
    reads = logs._open[0] = Reads(logs._reader(0))
    block = opened.storage.read_block(1, 0, COUNT, MIB)
    assert block.entries == COUNT
    assert b"".join(block.buffers) == b"".join(fmt.LENGTH.pack(len(entry(n))) + entry(n) for n in range(COUNT))
    assert len(reads.sizes) == COUNT / 5
    # The size of the last entry is not known: what may follow it is taken along.
    assert max(reads.sizes) <= 1000 + 4 * KIB
    run = opened.storage.read(1, 0).run
    assert [entry_id for entry_id, _ in run] == list(range(5))


def test_no_large_entry_is_read_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [stored_entry(1, n, bytes([n]) * 8 * KIB) for n in range(10)]
    size = len(large[0]) + fmt.LENGTH.size
    monkeypatch.setattr("bookie.storage.ledger_storage.READ_BYTES_MAX", 3 * size)
    opened = Disk().open(SETTINGS)
    for n, stored in enumerate(large):
        opened.add(1, n, stored)
    opened.sync()
    opened.checkpoint()
    logs: Any = directory_of(opened).logs
    reads = logs._open[0] = Reads(logs._reader(0))
    block = opened.storage.read_block(1, 0, 10, 6 * size + size // 2)
    assert (block.entries, block.size_bytes, len(reads.sizes)) == (6, 6 * size, 2)
    assert b"".join(block.buffers) == b"".join(fmt.LENGTH.pack(len(stored)) + stored for stored in large[:6])
    block = opened.storage.read_block(1, 6, 10, 100)
    assert (block.entries, block.size_bytes) == (1, size), "the first one is read, however large"


class Scans:
    """The calls of an index: first entry and count, and how many it found."""

    def __init__(self, directory: LedgerDirectory) -> None:
        self._locations = directory.index.locations
        directory.index.locations = self  # type: ignore[method-assign]
        self.asked: list[tuple[int, int]] = []
        self.found: list[int] = []

    def __call__(
        self, ledger_id: int, first_entry_id: int, count: int, within_bytes: int | None = None
    ) -> list[tuple[int, int]]:
        self.asked.append((first_entry_id, count))
        located = self._locations(ledger_id, first_entry_id, count, within_bytes)
        self.found.append(len(located))
        return located


def test_no_more_of_the_index_is_looked_up_than_the_answer_holds(opened: OpenedDisk) -> None:
    scans = Scans(directory_of(opened))
    size = len(entry(0)) + fmt.LENGTH.size
    assert opened.storage.read_block(1, 0, COUNT, 5 * size).entries == 5
    assert opened.storage.read_block(1, 5, COUNT, 5 * size).entries == 5
    assert scans.found == [6, 6]  # the index in memory ends as early as it may


def test_one_scan_of_the_index_finds_so_many_entries(opened: OpenedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.storage.ledger_storage.BATCH_ENTRIES", 8)
    scans = Scans(directory_of(opened))
    block = opened.storage.read_block(1, 0, COUNT, MIB)
    assert block.entries == COUNT
    assert b"".join(block.buffers) == b"".join(fmt.LENGTH.pack(len(entry(n))) + entry(n) for n in range(COUNT))
    assert scans.asked == [(0, 8), (8, 8), (16, 4)]


def test_the_index_keeps_so_many_blocks_in_memory(tmp_path: Path) -> None:
    files, count = OsFiles(), 100_000
    journal, ledgers = str(tmp_path / "j"), str(tmp_path / "l")
    for directory in (journal, ledgers):
        files.make_directories(directory)
    settings = storage_settings(replace(CONFIG, block_cache_mib=1))
    found = open_storage(files, [journal], [ledgers], settings, RocksIndex, 1_000)
    index: Any = found.storage.directories[0].index
    index.put_locations([(1, entry_id, entry_id + 1) for entry_id in range(count)])
    index.compact_locations()  # from memory into tables
    for _ in range(2):  # what was pushed out is read again
        for first in range(0, count, 10_000):
            expected = [(entry_id, entry_id + 1) for entry_id in range(first, first + 10_000)]
            assert index.locations(1, first, 10_000) == expected
            assert 0 < index._locations.property_int_value("rocksdb.block-cache-usage") <= MIB
    for writer in found.writers:
        writer.close()
    found.storage.close()


# -- entry logs


def test_one_write_to_a_log_takes_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.storage.entry_log.files.WRITE_BYTES", 4 * KIB)
    files = MemoryFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", MIB)
    entries = [(1, n, stored_entry(1, n, bytes(6 * KIB if n == 7 else 900))) for n in range(COUNT)]
    located = logs.append(entries)
    _, *writes = [len(change.data) for change in files._entries["/l/0.log"].unsynced if hasattr(change, "data")]
    assert sum(writes) == sum(len(one) + 4 for _, _, one in entries)
    large = len(entries[7][2]) + 4
    assert sorted(writes)[-1] == large, "alone, however large it is"
    assert sorted(writes)[-2] <= 4 * KIB
    assert len(writes) == 6
    for (_, entry_id, one), (_, _, location) in zip(entries, located, strict=True):
        assert logs.read(location, 1, entry_id) == one


# -- the journal


def journaled(files: MemoryFiles, directory: str) -> Sequence[bytes]:
    """The entries that a replay of all files would see."""
    found: list[bytes] = []
    replay(files, directory, fmt.START, lambda record: found.append(record.data) if record.entry_id >= 0 else None)
    return found


async def test_a_full_file_of_the_journal_is_followed_by_another() -> None:
    world, directory = BookieMachines(), "/bookie/storage/journal/current"
    async with world.serving(journal_file_mib_max=1) as bookie:
        wire = await Wire.connect(bookie)
        entries = [stored_entry(1, entry_id, b"%d" % entry_id * 400 * KIB) for entry_id in range(9)]
        for one in entries:
            assert await wire.add(one) == 0
        names = [name for name in world.files.list(directory) if name.endswith(".txn")]
        # The third entry goes beyond a mebibyte, so each file has three; the last one is for what comes next.
        assert len(names) == 4
        sizes = [world.files.open(f"{directory}/{name}").size_bytes() for name in names]
        assert max(sizes) < 3 * 410 * KIB
        assert journaled(world.files, directory) == entries


def test_a_replay_reads_a_window_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.storage.journal.format.WINDOW_BYTES", 4 * KIB)
    disk = Disk()
    opened = disk.open(replace(SETTINGS, journal=replace(TINY.journal, file_bytes_max=MIB)))
    entries = [entry(n) for n in range(100)]
    for n, one in enumerate(entries):
        opened.add(1, n, one)
        opened.sync()
    opened_file, reads = disk.files.open, []

    def noting(path: str, *, writable: bool = False) -> Any:
        file = Reads(opened_file(path, writable=writable))
        if path.endswith(".txn"):
            reads.append(file)
        return file

    monkeypatch.setattr(disk.files, "open", noting)
    assert journaled(disk.files, "/j0/current") == entries
    sizes = [size for file in reads for size in file.sizes]
    assert max(sizes) == 4 * KIB
    assert sum(len(one) for one in entries) > 4 * max(sizes)
