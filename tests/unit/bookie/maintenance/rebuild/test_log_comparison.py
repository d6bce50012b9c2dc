"""Records of an entry log are compared with the index, and the locations of a ledger with the logs."""

from collections.abc import Iterator

import pytest

from bookie.maintenance.rebuild.location_check import check_locations, find_gone_log
from bookie.maintenance.rebuild.log_comparison import (
    Missing,
    compare,
    is_sealed,
    put_locations,
    take_snapshot,
    with_digest,
)
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import EntryLogs
from bookie.storage.index import MemoryIndex
from bookie.storage.ledger_storage import LedgerDirectory
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec
from magnetar_core.runtime.types import MIB
from tests.support.bookie_disks import stored_entry

DIRECTORY = "/ledgers"
ENTRIES = 3
GONE = fmt.location(77, 5000)


class Logged:
    """A ledger directory with one log that has three entries of ledger 1, all of them in the index."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.make_directories(DIRECTORY)
        logs = EntryLogs(self.files, DIRECTORY, MIB)
        self.index = MemoryIndex()
        self.located = logs.append([(1, entry_id, stored_entry(1, entry_id)) for entry_id in range(ENTRIES)])
        self.index.put_locations(self.located)
        self.directory = LedgerDirectory(DIRECTORY, logs, lambda: self.index, self.index)
        self.snapshot = take_snapshot(self.files, self.directory)

    @property
    def locations(self) -> list[int]:
        return [location for _, _, location in self.located]

    def records(self) -> list[tuple[int, int, int, int]]:
        (state,) = self.snapshot.logs
        assert state.scan is not None, "the log still takes entries"
        return list(state.scan)


@pytest.fixture
def logged() -> Iterator[Logged]:
    logged = Logged()
    yield logged
    logged.directory.logs.close()


def test_a_location_that_is_right_is_counted_for_its_ledger(logged: Logged) -> None:
    assert compare(logged.directory, {1}, 0, logged.records()) == ([], [1, 1, 1])


def test_records_of_a_ledger_that_the_bookie_does_not_have_are_left_out(logged: Logged) -> None:
    assert compare(logged.directory, {2}, 0, logged.records()) == ([], [])


def test_a_location_that_leads_elsewhere_is_missing_and_named(logged: Logged) -> None:
    logged.index.put_locations([(1, 0, logged.locations[1]), (1, 2, GONE)])
    missing, located = compare(logged.directory, {1}, 0, logged.records())
    assert missing == [
        Missing(1, 0, logged.locations[0], seen=logged.locations[1]),
        Missing(1, 2, logged.locations[2], seen=GONE),
    ]
    assert located == [1]


def test_a_location_is_put_only_if_the_index_is_unchanged_and_the_ledger_exists(logged: Logged) -> None:
    logged.index.put_locations([(1, 0, GONE), (1, 1, GONE)])
    missing, _ = compare(logged.directory, {1}, 0, logged.records())
    assert put_locations(logged.directory, {2}, missing) == []
    logged.index.put_locations([(1, 0, logged.locations[2])])
    assert put_locations(logged.directory, {1}, missing) == missing[1:]
    assert logged.index.location(1, 0) == logged.locations[2]
    assert logged.index.location(1, 1) == logged.locations[1]


def test_a_record_needs_the_digest_of_its_ledger_if_that_is_known(logged: Logged) -> None:
    missing = [Missing(1, 0, logged.locations[0], seen=0)]
    other = EntryCodec(DigestType.HMAC, b"another password")
    assert with_digest(logged.directory, missing, {1: None}) == missing
    assert with_digest(logged.directory, missing, {1: other}) == []


def test_a_log_that_takes_entries_is_not_sealed(logged: Logged) -> None:
    assert not is_sealed(logged.directory, 0)


def test_old_locations_are_followed_only_when_that_is_asked_for(logged: Logged) -> None:
    logged.index.put_locations([(1, 1, logged.locations[0])])
    for follow, lost in ((False, []), (True, [1])):
        page = check_locations(logged.files, logged.directory, 1, 0, end=logged.snapshot.end, follow=follow)
        assert page == (ENTRIES, lost, None)


def test_a_location_after_the_snapshot_is_lost_if_its_log_does_not_exist(logged: Logged) -> None:
    logged.index.put_locations([(1, 1, GONE)])
    assert find_gone_log(logged.files, logged.directory, 1, 0) == (ENTRIES, True, None)
    assert find_gone_log(logged.files, logged.directory, 1, 2) == (1, False, None)
    page = check_locations(logged.files, logged.directory, 1, 0, end=logged.snapshot.end, follow=False)
    assert page == (ENTRIES - 1, [1], None)


def test_a_full_page_says_where_the_next_begins(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.rebuild.location_check.JOB_LOCATIONS", 2)
    assert find_gone_log(logged.files, logged.directory, 1, 0).following == 2
    assert find_gone_log(logged.files, logged.directory, 1, 2).following is None
