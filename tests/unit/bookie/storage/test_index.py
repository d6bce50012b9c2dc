"""The index for garbage collection, in RocksDB and in memory, and the scan of a log."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.storage.entry_log import format as log_format
from bookie.storage.index import Index, IndexCorrupt, MemoryIndex, RocksIndex
from magnetar_core.runtime.types import MIB
from tests.support.bookie_disks import stored_entry


@pytest.fixture(params=["rocks", "memory"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Index]:
    made: Index = RocksIndex(str(tmp_path), MIB) if request.param == "rocks" else MemoryIndex()
    yield made
    made.close()


def test_deleted_ledgers_are_gone_and_their_neighbours_are_not(index: Index) -> None:
    top = 2**63 - 1
    index.put_locations([(ledger_id, n, 1 + n % 7) for ledger_id in (0, 1, 2, 3) for n in (0, 5, top)])
    index.put_ledgers([(ledger_id, b"row") for ledger_id in (0, 1, 2, 3)])
    index.delete_ledgers([1, 2, 99])
    index.sync()
    assert [ledger_id for ledger_id, _ in index.ledgers()] == [0, 3]
    for ledger_id in (1, 2):
        assert index.locations(ledger_id, 0, 10) == []
        assert index.last_entry_id(ledger_id) == -1
        assert index.location(ledger_id, 5) == 0
    for ledger_id in (0, 3):
        assert [entry_id for entry_id, _ in index.locations(ledger_id, 0, 10)] == [0, 5, top]
    index.put_locations([(1, 7, 9)])
    assert index.locations(1, 0, 10) == [(7, 9)]
    index.compact_locations()
    assert index.locations(1, 0, 10) == [(7, 9)]


def test_flags_stand_beside_the_ledgers(index: Index) -> None:
    assert index.flags() == 0
    index.put_flags(1)
    index.put_ledgers([(1, b"row")])
    assert index.flags() == 1
    assert list(index.ledgers()) == [(1, b"row")]
    index.delete_ledgers([1])
    index.put_flags(0)
    assert index.flags() == 0


def test_what_a_crash_loses_of_a_deletion_is_its_newest_part() -> None:
    for seed in range(20):
        index = MemoryIndex()
        index.put_locations([(1, 0, 5), (2, 0, 6)])
        index.put_ledgers([(1, b"a"), (2, b"b")])
        index.sync()
        index.delete_ledgers([1])
        after = index.crash(random.Random(seed))
        assert after.location(2, 0) == 6
        assert after.location(1, 0) in (0, 5)
        assert [ledger_id for ledger_id, _ in after.ledgers()] in ([1, 2], [2])
        index.sync()
        assert [ledger_id for ledger_id, _ in index.crash(random.Random(seed), 0).ledgers()] == [2]


def slow_scan(data: bytes) -> list[tuple[int, int, int, int]]:
    """The definition of a scan: at each offset there is a whole record, or one byte is skipped."""
    found = []
    at = log_format.HEADER_BYTES
    while at + 20 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if size < 16 or at + 4 + size > len(data):
            at += 1
            continue
        ledger_id, entry_id = log_format.IDS.unpack_from(data, at + 4)
        if ledger_id >= 0:
            found.append((at + 4, size, ledger_id, entry_id))
        at += 4 + size
    return found


@pytest.mark.parametrize("seed", range(30))
def test_a_scan_finds_what_its_definition_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_format, "WINDOW_BYTES", 64)
    rng = random.Random(seed)
    data = log_format.encode_header()
    is_whole = True
    for n in range(20):
        match rng.choice(["entry", "entry", "entry", "zeros", "noise"]) if seed % 3 else "entry":
            case "entry":
                entry = stored_entry(rng.randrange(3), n, bytes(rng.randrange(5)) + b"\0x" * rng.randrange(5))
                data += log_format.SIZE.pack(len(entry)) + entry
            case "zeros":
                data += bytes(rng.randrange(1, 200))
                is_whole = False
            case "noise":
                data += rng.randbytes(rng.randrange(1, 40))
                is_whole = False
    scan = log_format.scan(lambda offset, size: data[offset : offset + size], len(data))
    assert list(scan) == slow_scan(data)
    if is_whole:
        assert (scan.garbage_bytes, scan.has_gap) == (0, False)
    else:
        covered = sum(size + 4 for _, size, _, _ in slow_scan(data))
        assert log_format.HEADER_BYTES + covered + scan.garbage_bytes <= len(data)
        assert scan.garbage_bytes > 0 or covered == len(data) - log_format.HEADER_BYTES


def records_of(manifest: bytes) -> list[int]:
    """Where the records of a list of tables begin, as RocksDB writes its logs: checksum (4), size (2), kind (1), …"""
    found = [0]
    while found[-1] < len(manifest):
        found.append(found[-1] + 7 + int.from_bytes(manifest[found[-1] + 4 : found[-1] + 6], "little"))
    return found


@pytest.mark.parametrize("name", ["locations", "ledgers"])
def test_where_the_list_of_tables_is_cut_nothing_or_all_is_there(tmp_path: Path, name: str) -> None:
    """Of a database that was opened once: there RocksDB takes the rest of the list for that of an empty one."""
    whole = tmp_path / "whole"
    whole.mkdir()
    index = RocksIndex(str(whole), MIB)
    index.put_ledgers([(ledger_id, b"row") for ledger_id in range(3)])
    index.put_locations([(ledger_id, 0, 16) for ledger_id in range(3)])
    index.sync()
    index.close()
    (manifest,) = (whole / name).glob("MANIFEST-*")
    data = manifest.read_bytes()
    outcomes: list[int] = []
    corrupt: set[str] = set()
    for number, size in enumerate(size for at in records_of(data) for size in (at, at + 1) if size <= len(data)):
        cut = tmp_path / str(number)
        shutil.copytree(whole, cut)
        (cut / name / manifest.name).write_bytes(data[:size])
        try:
            index = RocksIndex(str(cut), MIB)
        except IndexCorrupt as error:
            corrupt.add(error.database)
            continue
        outcomes.append(len(index.locations(0, 0, 9)) + len(list(index.ledgers())))
        index.close()
    assert corrupt == {name}
    assert set(outcomes) == {4}
