"""Limits of a bookie's garbage collection and compaction, exceeded. See docs/limits.md."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bookie.maintenance.garbage.compaction import _Finder
from bookie.maintenance.garbage.rules import CompactionKind
from bookie.storage.entry_log import format as fmt
from bookie.storage.index import MemoryIndex
from tests.support import crash_images
from tests.support.bookie_disks import Disk, on_each_operation, stored_entry
from tests.support.crash_images import COLLECTING, Life, StepClock, StepThread, until_end

LOG = "/l0/current/0.log"
ENTRIES = 10


def entry(ledger_id: int, entry_id: int) -> bytes:
    return stored_entry(ledger_id, entry_id, b"%d" % ledger_id * 264)


def with_config(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """Bookies that start from here on have these settings."""
    monkeypatch.setattr(crash_images, "COLLECTING", replace(COLLECTING, **settings))


def one_log() -> Disk:
    """The disk of a bookie with a closed log, in which ledgers 1 to 4 have ENTRIES entries of 300 bytes each."""
    life = Life(Disk(), range(1, 5))
    life.add([entry(ledger, n) for ledger in range(1, 5) for n in range(ENTRIES)], lambda taken, refusal: None)
    life.settle_journals()
    life.stop()
    return life.disk


def collect(life: Life, *kinds: CompactionKind) -> None:
    until_end(life.collect(set(kinds)), life.threads)


def mostly_dead(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Life:
    """A bookie with that log and *settings*; all ledgers but the first were deleted."""
    with_config(monkeypatch, **settings)
    life = Life(one_log(), {1})
    for _ in range(2):
        collect(life)
    assert [ledger.ledger_id for ledger in life.rules.ledgers] == [1]
    return life


def assert_compacted(life: Life) -> None:
    status = life.collector.status()
    assert (status.compacted_logs, status.copied_entries, status.damaged_logs) == (1, ENTRIES, {})
    assert not life.disk.files.exists(LOG)
    for entry_id in range(ENTRIES):
        assert life.read(1, entry_id) == entry(1, entry_id)


# -- a copy


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """(records examined, entries, bytes) of each copying job."""
    jobs: list[tuple[int, int, int]] = []
    run = StepThread.run

    async def noting(thread: StepThread, work: Callable[[], Any]) -> Any:
        outcome = await run(thread, work)
        if isinstance(outcome, tuple) and len(outcome) == 3:
            jobs.append(outcome)
        return outcome

    monkeypatch.setattr(StepThread, "run", noting)
    return jobs


def test_a_job_looks_at_so_many_records(monkeypatch: pytest.MonkeyPatch, copied: list[tuple[int, int, int]]) -> None:
    life = mostly_dead(monkeypatch)
    monkeypatch.setattr("bookie.maintenance.garbage.compaction.COPY_RECORDS", 7)
    collect(life, CompactionKind.MAJOR)
    assert [looked_at for looked_at, _, _ in copied] == [7, 7, 7, 7, 7, 5, 0]
    assert_compacted(life)


def test_a_job_copies_so_many_bytes(monkeypatch: pytest.MonkeyPatch, copied: list[tuple[int, int, int]]) -> None:
    life = mostly_dead(monkeypatch)
    monkeypatch.setattr("bookie.maintenance.garbage.compaction.COPY_BYTES", 1000)
    collect(life, CompactionKind.MAJOR)
    # The entry that goes beyond it is the last one; dead ones cost nothing.
    assert [entries for _, entries, _ in copied] == [4, 4, 2, 0]
    assert_compacted(life)


def test_moves_go_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    life = mostly_dead(monkeypatch)
    monkeypatch.setattr("bookie.storage.entry_log.compacting.MOVES_MAX", 4)
    (index,) = life.disk.indexes.values()
    put_locations, moves = index.put_locations, []

    def noting(items: Sequence[tuple[int, int, int]]) -> None:
        moves.append(len(items))
        put_locations(items)

    monkeypatch.setattr(index, "put_locations", noting)
    collect(life, CompactionKind.MAJOR)
    assert moves == [4, 4, 2, 0]
    assert_compacted(life)


def test_a_copy_is_synced_after_so_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.garbage.compaction.COPY_RECORDS", 2)
    life = mostly_dead(monkeypatch, compaction_unsynced_entries=4)
    done: list[str] = []
    on_each_operation(life.disk.files, lambda kind, path: done.append(kind) if path.endswith(".compacting") else None)
    collect(life, CompactionKind.MAJOR)
    assert_compacted(life)
    # The header, ten entries two at a time, and what seals the log.
    assert done == ["create", "write", *["write", "write", "sync"] * 2, "write", "write", "write", "sync", "rename"]


# -- the pace


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the bookie; the clock advances by each at once."""
    waits: list[float] = []
    turn = StepClock.sleep

    async def sleep(clock: StepClock, delay_s: float) -> None:
        waits.append(delay_s)
        clock._now_s += delay_s
        await turn(clock, delay_s)

    monkeypatch.setattr(StepClock, "sleep", sleep)
    return waits


@pytest.mark.parametrize(("by_bytes", "least_s", "most_s"), [(True, 29, 31), (False, 0, 1)])
def test_a_copy_waits_for_the_bytes_that_it_may_copy(
    monkeypatch: pytest.MonkeyPatch, slept: list[float], by_bytes: bool, least_s: float, most_s: float
) -> None:
    life = mostly_dead(monkeypatch, compaction_by_bytes=by_bytes, compaction_bytes_s=100)
    slept.clear()
    collect(life, CompactionKind.MAJOR)
    assert_compacted(life)
    assert life.collector.status().copied_bytes == 300 * ENTRIES
    assert least_s <= sum(slept) <= most_s


# -- looking


def test_a_log_without_a_map_is_looked_through_some_records_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.garbage.compaction.SCAN_RECORDS", 7)
    disk = one_log()
    disk.files.open(LOG, writable=True).write_at(fmt.SEAL_OFFSET, bytes(12))
    life = Life(disk, range(1, 5))
    jobs = results_of(life)
    collect(life)
    scanned = [len(result) for result in jobs if isinstance(result, list) and result and len(result[0]) == 4]
    assert scanned == [7, 7, 7, 7, 7, 5]
    status = life.collector.status()
    assert (status.logs, status.live_bytes) == (1, 4 * ENTRIES * (4 + 300))


def results_of(life: Life) -> list[Any]:
    """The results of the jobs of the maintenance thread."""
    results: list[Any] = []
    submit = life.maintenance.submit

    def noting(work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        def noted(result: Any, error: Exception | None) -> None:
            results.append(result)
            done(result, error)

        submit(work, noted)

    life.maintenance.submit = noting  # type: ignore[method-assign]
    return results


@pytest.mark.parametrize("elsewhere", [None, 8])
def test_whether_a_log_is_referred_to_is_proved_some_entries_at_a_time(
    monkeypatch: pytest.MonkeyPatch, elsewhere: int | None
) -> None:
    monkeypatch.setattr("bookie.maintenance.garbage.compaction.PROOF_ENTRIES", 3)
    index, asked = MemoryIndex(), []
    for ledger_id in (1, 2):
        index.put_locations([(ledger_id, n, fmt.location(5, 2000 + n)) for n in range(ENTRIES)])
    if elsewhere is not None:
        index.put_locations([(2, elsewhere, fmt.location(6, 3000))])
    locations = index.locations

    def noting(ledger_id: int, first_entry_id: int, count: int) -> list[tuple[int, int]]:
        asked.append((ledger_id, first_entry_id, count))
        return locations(ledger_id, first_entry_id, count)

    monkeypatch.setattr(index, "locations", noting)
    finder = _Finder(index, [1, 2], 6)
    steps = 1
    while not finder.step():
        steps += 1
    assert finder.is_found == (elsewhere is not None)
    expected = [(ledger_id, first, 3) for ledger_id in (1, 2) for first in (0, 3, 6, 9)]
    assert asked == (expected if elsewhere is None else expected[:7])
    assert steps >= 5


# -- metadata


def test_metadata_is_read_at_a_pace(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    monkeypatch.setattr("bookie.maintenance.garbage.metadata_reads.READS_PER_TURN", 5)
    with_config(monkeypatch, gc_metadata_rate=10)
    life = Life(Disk(), ())
    life.add([stored_entry(ledger_id, 0) for ledger_id in range(40)], lambda taken, refusal: None)
    life.settle_journals()
    read, reads = life.known.read, []

    async def noting(ledger_id: int) -> None:
        reads.append(len(slept))
        await read(ledger_id)

    life.known.read = noting  # type: ignore[method-assign]
    collect(life)
    assert len(reads) == 40
    assert [reads.count(look) for look in range(1, 9)] == [5] * 8, "a look at the pace before each five"
    # Forty at ten a second, of which a second's may go at once.
    assert 2.5 <= sum(slept) <= 4
