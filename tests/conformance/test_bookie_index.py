"""One suite for every index: RocksDB, and its twin in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.storage.index import BATCH_OPERATIONS_MAX, Index, MemoryIndex, RocksIndex
from magnetar_core.runtime.types import MIB


@pytest.fixture(params=["rocks", "memory"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Index]:
    made: Index = RocksIndex(str(tmp_path), MIB) if request.param == "rocks" else MemoryIndex()
    yield made
    made.close()


def test_locations_are_found_by_entry_by_run_and_from_the_end(index: Index) -> None:
    index.put_locations([(1, n, 1000 + n) for n in (0, 1, 2, 5, 300)] + [(2, 0, 7), (0, 9, 8)])
    assert index.location(1, 5) == 1005
    assert index.location(1, 4) == 0
    assert index.location(3, 0) == 0
    assert index.locations(1, 1, 3) == [(1, 1001), (2, 1002), (5, 1005)]
    assert index.locations(1, 3, 10) == [(5, 1005), (300, 1300)]
    assert index.locations(1, 301, 10) == []
    assert [index.last_entry_id(ledger_id) for ledger_id in range(4)] == [9, 300, 0, -1]


@pytest.mark.parametrize("within_bytes", [1, 100, 3_000, 2**40])
def test_a_list_within_bytes_ends_where_it_may_at_the_earliest(index: Index, within_bytes: int) -> None:
    other_log = 1 << 32
    located = [(1, n, 1_000 + 100 * n) for n in range(60)] + [(1, n, other_log + n) for n in range(60, 100)]
    index.put_locations([*located, (1, 100, 500), (1, 101, 7_000), (2, 0, 9)])
    for first in (0, 1, 31, 32, 59, 60, 99, 100, 101):
        whole = index.locations(1, first, 1_000)
        assert len(whole) == 102 - first
        for count in (1, 31, 32, 33, 64, 1_000):
            found = index.locations(1, first, count, within_bytes)
            assert found == whole[: len(found)]
            behind = [n for n, (_, at) in enumerate(whole, 1) if not 0 <= at - whole[0][1] < within_bytes]
            assert min(count, len(whole), *behind[:1]) <= len(found) <= min(count, len(whole))
    assert index.locations(1, 102, 10, within_bytes) == index.locations(3, 0, 10, within_bytes) == []


def test_a_list_within_bytes_is_much_shorter_than_the_ledger(index: Index) -> None:
    index.put_locations([(1, n, 100_000 * n) for n in range(1_000)])
    assert 2 <= len(index.locations(1, 0, 1_000, 150_000)) <= 40
    assert index.locations(1, 0, 1_000, 2**40) == [(n, 100_000 * n) for n in range(1_000)]


def test_the_newest_location_counts(index: Index) -> None:
    index.put_locations([(1, 0, 5), (1, 0, 6)])
    index.put_locations([(1, 0, 7)])
    assert index.location(1, 0) == 7
    assert index.locations(1, 0, 10) == [(0, 7)]


def test_batches_larger_than_one_are_whole(index: Index) -> None:
    count = BATCH_OPERATIONS_MAX * 2 + 1
    index.put_locations([(1, n, n + 1) for n in range(count)])
    index.sync()
    assert index.locations(1, 0, count + 1) == [(n, n + 1) for n in range(count)]
    assert index.last_entry_id(1) == count - 1


def test_rows_of_ledgers_are_listed_in_order(index: Index) -> None:
    index.put_ledgers([(2**40, b"far"), (1, b"one"), (0, b"zero")])
    index.put_ledgers([(1, b"new")])
    assert list(index.ledgers()) == [(0, b"zero"), (1, b"new"), (2**40, b"far")]


def test_large_ids_keep_their_order(index: Index) -> None:
    top = 2**63 - 1
    index.put_locations([(top, top, 1), (top, 2**31, 2), (2**32, 0, 3)])
    assert index.last_entry_id(top) == top
    assert index.locations(top, 0, 5) == [(2**31, 2), (top, 1)]


def test_a_second_process_cannot_open_a_rocks_index(tmp_path: Path) -> None:
    index = RocksIndex(str(tmp_path), MIB)
    index.put_locations([(1, 0, 5)])
    assert list(index.ledgers()) == []
    with pytest.raises(OSError, match="RocksDB"):
        RocksIndex(str(tmp_path), MIB)
    index.close()
    again = RocksIndex(str(tmp_path), MIB)
    assert again.location(1, 0) == 5
    again.close()
