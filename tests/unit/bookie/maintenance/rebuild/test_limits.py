"""Limits of a rebuild of a bookie's index, exceeded. See docs/limits.md."""

from collections.abc import Container, Sequence
from pathlib import Path

import pytest

from bookie.bookie import Bookie
from bookie.maintenance.rebuild.log_comparison import Comparison, Record, compare
from bookie.maintenance.rebuild.offline import DATABASES, rebuild_index
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import EntryLogs
from bookie.storage.index import MemoryIndex
from bookie.storage.ledger_storage import LedgerDirectory
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.types import MIB
from tests.support.bookie_disks import stored_entry
from tests.support.bookie_world import add_all
from tests.unit.bookie.maintenance.rebuild.test_online import RebuildWorld, filled, flushed, rebuilt

COUNT = 10


@pytest.fixture
def world() -> RebuildWorld:
    return RebuildWorld()


class Puts:
    """The numbers of rows and of locations in each call of an index."""

    def __init__(self, index: MemoryIndex, monkeypatch: pytest.MonkeyPatch) -> None:
        self.locations: list[int] = []
        self.ledgers: list[int] = []
        put_locations, put_ledgers = index.put_locations, index.put_ledgers

        def noting_locations(items: Sequence[tuple[int, int, int]]) -> None:
            self.locations.append(len(items))
            put_locations(items)

        def noting_ledgers(rows: Sequence[tuple[int, bytes]]) -> None:
            self.ledgers.append(len(rows))
            put_ledgers(rows)

        monkeypatch.setattr(index, "put_locations", noting_locations)
        monkeypatch.setattr(index, "put_ledgers", noting_ledgers)


def test_a_rebuild_puts_so_many_locations_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.rebuild.offline.BATCH_LOCATIONS", 4)
    files, directory = OsFiles(), str(tmp_path)
    logs = EntryLogs(files, directory, MIB)
    located = logs.append([(1, entry_id, stored_entry(1, entry_id)) for entry_id in range(COUNT)])
    logs.close()
    index = MemoryIndex()
    puts = Puts(index, monkeypatch)
    found = rebuild_index(files, directory, lambda: index, DATABASES, 1_000)
    assert puts.locations == [4, 4, 2]
    assert found.entries == COUNT
    assert index.locations(1, 0, COUNT) == [(entry_id, location) for _, entry_id, location in located]


# -- while the bookie serves


async def test_a_job_compares_and_puts_so_many_records(world: RebuildWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.rebuild.log_comparison.JOB_RECORDS", 4)
    compared: list[int] = []

    def noting(
        directory: LedgerDirectory, ledgers: Container[int], log_id: int, records: Sequence[Record]
    ) -> Comparison:
        compared.append(len(records))
        return compare(directory, ledgers, log_id, records)

    monkeypatch.setattr("bookie.maintenance.rebuild.online.compare", noting)
    async with world.serving() as bookie:
        await filled(bookie, (1,), COUNT)
        right = dict(world.index._locations)
        for entry_id in range(COUNT):
            world.forget(1, entry_id)
        puts = Puts(world.index, monkeypatch)
        status = await rebuilt(bookie)
        assert (compared, puts.locations) == ([4, 4, 2], [4, 4, 2])
        assert (status.entries_looked_at, status.entries_put_right, status.problems) == (COUNT, COUNT, ())
        assert world.index._locations == right


async def test_a_job_looks_at_so_many_locations(world: RebuildWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.rebuild.location_check.JOB_LOCATIONS", 4)
    async with world.serving() as bookie:
        await filled(bookie, (1,), COUNT)
        world.index.put_locations([(1, COUNT, world.index.location(1, 0))])  # where another entry is
        locations, asked = world.index.locations, []

        def noting(ledger_id: int, first_entry_id: int, count: int) -> list[tuple[int, int]]:
            asked.append((first_entry_id, count))
            return locations(ledger_id, first_entry_id, count)

        monkeypatch.setattr(world.index, "locations", noting)
        status = await rebuilt(bookie)
        # Is a log gone? Do as many lead to entries as there are? Which do not?
        assert asked[:9] == [(0, 4), (4, 4), (8, 4)] * 3
        assert status.problems == (f"ledger 1: 1 entries from {COUNT} on are in no log any more",)


async def test_so_many_rows_are_made_at_a_time(world: RebuildWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.rebuild.online.ROWS_AT_ONCE", 2)
    async with world.serving(flush_interval_ms=3_600_000) as bookie:  # a flush writes rows too
        await filled(bookie, range(1, 6), 1)
        puts = Puts(world.index, monkeypatch)
        assert (await rebuilt(bookie)).failed is None
        assert puts.ledgers == [2, 2, 1]
        assert all(ledger.is_fence_durable for ledger in bookie.parts.rules.ledgers)


async def test_so_many_digests_are_kept(world: RebuildWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.rebuild.ledger_codecs.CODECS_MAX", 2)
    monkeypatch.setattr("bookie.maintenance.rebuild.log_comparison.JOB_RECORDS", 1)
    async with world.serving() as bookie:
        for ledger_id in (1, 2, 3):
            await world.record_ledger(ledger_id)
        for entries in (range(2), range(2, 4)):  # two flushes, each of which is sorted by ledger
            await add_all(bookie, (stored_entry(ledger_id, n) for ledger_id in (1, 2, 3) for n in entries))
            await flushed(bookie)
        for ledger_id, entry_id in list(world.index._locations):
            world.forget(ledger_id, entry_id)
        asked, kept = digests_read(bookie, monkeypatch)
        status = await rebuilt(bookie)
        assert (status.entries_put_right, status.problems) == (12, ())
        assert asked == [1, 2, 3, 1, 2, 3]
        assert max(kept) < 2, "there is room for the one that is read"


def digests_read(bookie: Bookie, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """The ledgers whose metadata is read from now on, and the number of cached digests at each read."""
    asked: list[int] = []
    kept: list[int] = []
    read = LedgerStore.read

    async def noting(store: LedgerStore, ledger_id: int) -> Versioned:
        asked.append(ledger_id)
        kept.append(len(bookie.parts.rebuild._codecs))
        return await read(store, ledger_id)

    monkeypatch.setattr(LedgerStore, "read", noting)
    return asked, kept


async def test_so_many_problems_are_named_and_the_others_counted(
    world: RebuildWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.maintenance.rebuild.findings.NAMED_MAX", 2)
    async with world.serving() as bookie:
        await filled(bookie, range(1, 6), 1)
        world.index.put_locations([(ledger_id, 7, fmt.location(77, 5000)) for ledger_id in range(1, 6)])
        status = await rebuilt(bookie)
        assert (status.problem_count, status.locations_lost) == (5, 5)
        assert [text.partition(":")[0] for text in status.problems] == ["ledger 1", "ledger 2"]
