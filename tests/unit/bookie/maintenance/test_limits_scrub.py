"""Limits of a bookie's scrub, exceeded. See docs/limits.md."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bookie.jobs import JobThread
from tests.support.bookie_disks import stored_entry
from tests.support.serving import HurriedClock
from tests.unit.bookie.maintenance.test_scrub import Copies, damage, filled, scrubbed

COUNT, ENTRY_BYTES = 20, 86


@pytest.fixture
async def world() -> Copies:
    """A closed log with COUNT entries of ledger 1."""
    world = Copies()
    await filled(world, range(1, 2), COUNT)
    await world.record_ledger(1)
    return world


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(good entries, bytes) that each job of the scrub read."""
    found: list[tuple[int, int]] = []
    run = JobThread.run

    async def noting(thread: JobThread, work: Callable[[], Any]) -> Any:
        outcome = await run(thread, work)
        if isinstance(outcome, tuple) and len(outcome) == 4 and isinstance(outcome[0], int):
            found.append(outcome[:2])
        return outcome

    monkeypatch.setattr(JobThread, "run", noting)
    return found


@pytest.mark.parametrize(("limit", "value"), [("JOB_ENTRIES", 6), ("JOB_BYTES", 6 * ENTRY_BYTES)])
async def test_a_job_reads_so_much(
    world: Copies, jobs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"bookie.maintenance.scrub.{limit}", value)
    async with world.serving() as bookie:
        status = await scrubbed(bookie)
    assert jobs == [(count, count * ENTRY_BYTES) for count in (6, 6, 6, 2)]
    assert (status.entries_verified, status.bad_entries) == (COUNT, ())


async def test_so_many_bad_entries_are_named_and_the_others_counted(
    world: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.maintenance.scrub.NAMED_MAX", 2)
    for entry_id in range(5):
        damage(world, stored_entry(1, entry_id, b"p" * 50), 40)
        if entry_id < 3:
            world.copies[1, entry_id] = None
    async with world.serving() as bookie:
        status = await scrubbed(bookie)
    assert (status.entries_lost, status.entries_unrepaired) == (3, 2)
    assert [bad[:2] for bad in status.bad_entries] == [(1, 0), (1, 1)]


class PatientClock(HurriedClock):
    """A clock whose sleeps end at once, with the time advanced by as much."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.slept_s

    async def sleep(self, delay_s: float) -> None:
        self.slept_s += delay_s
        await asyncio.sleep(0)


async def test_the_scrub_waits_for_the_bytes_that_it_may_read(world: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.scrub.JOB_ENTRIES", 5)
    world.clock = clock = PatientClock()
    async with world.serving(scrub_bytes_s=ENTRY_BYTES) as bookie:  # an entry a second
        status = await scrubbed(bookie)
        assert (status.entries_verified, status.bytes_s) == (COUNT, ENTRY_BYTES)
        assert COUNT - 5 <= clock.slept_s <= COUNT + 5
