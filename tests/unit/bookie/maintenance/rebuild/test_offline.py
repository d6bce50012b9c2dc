"""A damaged or lost index is rebuilt from the entry logs; meanwhile no entry is reported as missing."""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie.startup import Opened, StorageSettings, open_storage
from bookie.storage.entry_log import format as log_format
from bookie.storage.foreign_storage import ForeignStorage
from bookie.storage.index import IndexCorrupt, RocksIndex
from bookie.storage.journal import format as fmt
from bookie.storage.journal.format import Mark
from bookie.storage.journal.replay import replay
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.types import MIB, Corruption
from tests.support.bookie_disks import KEY, TINY, Disk, stored_entry
from tests.support.bookie_vectors import VECTORS

SETTINGS = StorageSettings(log_bytes_max=MIB, write_cache_bytes=MIB, block_cache_bytes=MIB)


def opened(tmp_path: Path) -> Opened:
    files = OsFiles()
    for name in ("journal/current", "ledgers/current"):
        files.make_directories(str(tmp_path / name))
    return open_storage(
        files, [str(tmp_path / "journal/current")], [str(tmp_path / "ledgers/current")], SETTINGS, RocksIndex, 1_000
    )


def close(found: Opened) -> None:
    for writer in found.writers:
        writer.close()
    found.storage.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A ledger directory with ledgers 1 and 2 (2 fenced) of twenty entries each; returns the path above."""
    found = opened(tmp_path)
    records: list[bytes | bytearray | memoryview] = []
    for entry_id in range(20):
        for ledger_id in (1, 2):
            assert (
                found.rules.add(ledger_id, entry_id, KEY, stored_entry(ledger_id, entry_id), True, False, records) == 0
            )
    found.rules.fence(2, KEY, records)
    found.storage.flush(found.cache.swap(), found.rules.ledgers.take_dirty())
    found.cache.flushed()
    close(found)
    return tmp_path


def assert_whole(found: Opened) -> None:
    for ledger_id in (1, 2):
        for entry_id in range(20):
            assert found.storage.read(ledger_id, entry_id).entry == stored_entry(ledger_id, entry_id)
        assert found.storage.read(ledger_id, 20).entry is None


def tables(path: Path) -> list[Path]:
    return sorted(path.glob("*.sst")) + sorted(path.glob("*.log"))


def remove_current(path: Path) -> None:
    (path / "CURRENT").unlink()


def remove_all(path: Path) -> None:
    shutil.rmtree(path)


def damage_manifest(path: Path) -> None:
    (manifest,) = path.glob("MANIFEST-*")
    data = bytearray(manifest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    manifest.write_bytes(data)


@pytest.mark.parametrize("damage", [remove_current, remove_all, damage_manifest])
def test_damaged_locations_are_read_off_the_logs(directory: Path, damage: Callable[[Path], None]) -> None:
    path = directory / "ledgers/current/locations"
    damage(path)
    found = opened(directory)
    assert_whole(found)
    assert not found.storage.needs_check
    for ledger_id in (1, 2):
        ledger = found.rules.ledgers.get(ledger_id)
        assert ledger is not None
        assert (ledger.fenced, ledger.master_key) == (True, KEY)
    close(found)
    assert not (path / "REBUILDING").exists()
    again = opened(directory)
    assert_whole(again)
    close(again)


@pytest.mark.parametrize("damage", [remove_current, remove_all, damage_manifest])
def test_lost_ledger_rows_come_back_fenced_and_in_doubt(directory: Path, damage: Callable[[Path], None]) -> None:
    damage(directory / "ledgers/current/ledgers")
    for _ in range(2):  # the doubt stays until the copies were checked
        found = opened(directory)
        assert_whole(found)
        assert found.storage.needs_check
        assert all(ledger.fenced for ledger in found.rules.ledgers)
        assert len(found.rules.ledgers) == 2
        close(found)


def test_both_databases_may_be_gone(directory: Path) -> None:
    for name in ("locations", "ledgers"):
        remove_all(directory / "ledgers/current" / name)
    found = opened(directory)
    assert_whole(found)
    assert found.storage.needs_check
    close(found)


def test_a_rebuild_that_was_cut_short_is_done_again(directory: Path) -> None:
    path = directory / "ledgers/current"
    remove_all(path / "locations")
    with pytest.raises(IndexCorrupt, match="is missing, but the directory is in use"):
        RocksIndex(str(path), MIB)
    (path / "locations").mkdir()
    (path / "locations" / "REBUILDING").touch()
    half = RocksIndex(str(path), MIB)
    half.put_locations([(1, 0, 5)])
    half.close()
    found = opened(directory)
    assert_whole(found)
    close(found)
    asides = [entry for entry in path.iterdir() if ".damaged-" in entry.name]
    assert len(asides) == 1


def test_a_log_with_damaged_places_leaves_its_ledgers_in_doubt(directory: Path) -> None:
    path = directory / "ledgers/current"
    remove_all(path / "locations")
    log = path / "0.log"
    data = bytearray(log.read_bytes())
    records = list(log_format.scan(lambda at, size: bytes(data[at : at + size]), len(data)))
    data[records[5][0] - 4 : records[5][0]] = b"\xff\xff\xff\xff"
    log.write_bytes(data)
    found = opened(directory)
    assert found.storage.needs_check
    _, _, ledger_id, entry_id = records[5]
    assert found.storage.read(ledger_id, entry_id).entry is None
    assert found.storage.read(1, 0).entry == stored_entry(1, 0)
    close(found)


def test_deleted_ledgers_are_not_brought_back(directory: Path) -> None:
    found = opened(directory)
    found.storage.delete_ledgers([1], found.rules.ledgers.tombstones)
    close(found)
    remove_all(directory / "ledgers/current/locations")
    found = opened(directory)
    assert found.storage.read(1, 0).entry is None
    assert [ledger.ledger_id for ledger in found.rules.ledgers] == [2]
    close(found)


# -- the journal


def test_damage_in_the_journal_is_named_with_the_way_on_and_taken_only_if_told() -> None:
    disk = Disk()
    first = disk.open(TINY)
    for entry_id in range(4):
        first.add(1, entry_id, stored_entry(1, entry_id, b"x" * 1000))
        first.sync()
    (name,) = [name for name in disk.files.list("/j0/current") if name.endswith(".txn")]
    disk.files.open(f"/j0/current/{name}", writable=True).write_at(512 + 1536 + 100, b"damage")
    with pytest.raises(Corruption, match=rf"/j0/current/{name} offset .*skipReplayJournalInvalidRecord=true"):
        disk.open(TINY)
    second = disk.open(StorageSettings(journal=TINY.journal, skip_invalid_journal=True))
    assert second.storage.needs_check
    assert second.read(1, 0) == stored_entry(1, 0, b"x" * 1000)
    assert second.read(1, 3) is None


def test_zeros_in_the_middle_of_an_older_plain_journal_are_damage() -> None:
    """Without seals only the order of files shows it: records behind zeros in an older file are no torn end."""
    files = MemoryFiles()
    files.make_directories("/j")

    def write(file_id: int, entries: range, hole: int | None = None) -> None:
        file = files.create(f"/j/{file_id:x}.txn")
        body = b"BKLG\0\0\0\4"
        for entry_id in entries:
            record = stored_entry(1, entry_id)
            body += fmt.LENGTH.pack(len(record)) + record
        if hole is not None:
            body = body[:hole] + bytes(512) + body[hole + 512 :]
        file.append([body + bytes(2048)])

    write(5, range(50), hole=8 + 40 * 10)
    seen: list[int] = []
    replay(files, "/j", Mark(5, 8), lambda record: seen.append(record.entry_id))
    assert seen == list(range(10))  # the newest file: it may be a write that the power cut
    write(6, range(50, 60))
    with pytest.raises(Corruption, match=r"/j/5.txn: zeros at offset 408, but bytes at offset \d+, but /j/6.txn has"):
        replay(files, "/j", Mark(5, 8), lambda record: None)


@pytest.mark.parametrize("storage", ["interleaved", "sorted"])
def test_a_directory_of_another_storage_is_refused_and_not_rebuilt(storage: str, tmp_path: Path) -> None:
    with tarfile.open(VECTORS / "disk" / storage / "bookie.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    with pytest.raises(ForeignStorage, match="convert-to-db-storage"):
        opened(tmp_path)
    assert not (tmp_path / "ledgers/current/locations").exists()
