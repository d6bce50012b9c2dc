"""Unit tests of the parts of a round of garbage collection."""

from types import SimpleNamespace
from typing import Any

import pytest

from bookie.jobs import JobThread
from bookie.maintenance.garbage.collector import GcSettings
from bookie.maintenance.garbage.compaction import Stopped
from bookie.maintenance.garbage.index_compaction import IndexCompaction
from bookie.maintenance.garbage.log_compaction import LogCompaction
from bookie.maintenance.garbage.metadata_reads import MetadataReads
from bookie.maintenance.garbage.rules import CompactionKind, CompactionSchedule, KindPlan
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import MagnetarError
from tests.support.crash_images import COLLECTING
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually


class Indexes:
    """Two ledger directories whose index notes that it was compacted, or fails."""

    def __init__(self) -> None:
        self.compacted: list[str] = []
        self.failing: str | None = None
        self.storage: Any = SimpleNamespace(directories=[self._directory("/a"), self._directory("/b")])

    def _directory(self, path: str) -> SimpleNamespace:
        def compact_locations() -> None:
            if self.failing == path:
                raise OSError("no space")
            self.compacted.append(path)

        return SimpleNamespace(path=path, index=SimpleNamespace(compact_locations=compact_locations))


async def test_an_index_is_compacted_once_at_a_time_and_a_failure_is_not_counted() -> None:
    indexes, tasks, thread = Indexes(), Tasks("test"), JobThread("maintenance")
    compaction = IndexCompaction(indexes.storage, thread, ManualClock(), tasks, 0)
    indexes.failing = "/b"
    compaction.compact()
    compaction.compact(["/a/locations"])
    assert compaction.directories == {"/a/locations": True, "/b/locations": True}
    thread.start()
    await eventually(lambda: not any(compaction.directories.values()))
    assert (indexes.compacted, compaction.count) == (["/a"], 1)
    assert compaction.last_ms is not None
    await tasks.cancel()
    await thread.stop()


async def test_an_index_of_another_bookie_is_refused_with_those_that_there_are() -> None:
    compaction = IndexCompaction(Indexes().storage, JobThread("maintenance"), ManualClock(), Tasks("test"), 0)
    with pytest.raises(MagnetarError, match="/c: no index of this bookie; it has /a/locations, /b/locations"):
        compaction.compact(["/a/locations", "/c"])
    assert not any(compaction.directories.values())


@pytest.mark.parametrize(("interval_s", "is_due"), [(0, False), (99, True), (101, False)])
async def test_indexes_are_compacted_by_their_interval(interval_s: float, is_due: bool) -> None:
    clock, tasks = ManualClock(), Tasks("test")
    compaction = IndexCompaction(Indexes().storage, JobThread("maintenance"), clock, tasks, interval_s)
    clock.advance(100)
    compaction.compact_if_due()
    assert any(compaction.directories.values()) is is_due
    await tasks.cancel()


class NotingCompactor:
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def survey(self) -> None:
        self.calls.append("survey")

    async def remove_dead(self) -> None:
        self.calls.append("remove dead")

    async def count(self) -> None:
        self.calls.append("count")

    async def compact(self, due: Any) -> None:
        self.calls.append(f"compact {due.kind}")


async def test_logs_are_counted_again_after_a_compaction_which_is_not_due_twice() -> None:
    clock = ManualClock()
    phases: list[str] = []
    compactor: Any = NotingCompactor()
    plan = KindPlan(0.5, 100, None)
    schedule = CompactionSchedule(plan, KindPlan(0, 0, None), force_when_off=False, now_s=clock.monotonic())
    logs = LogCompaction(compactor, schedule, clock)
    await logs.run(set(), phases.append)
    clock.advance(100)
    await logs.run(set(), phases.append)
    await logs.run(set(), phases.append)
    looked = ["survey", "remove dead", "count"]
    assert compactor.calls == [*looked, *looked, "compact minor", "count", *looked]
    assert phases == ["logs", "logs", "minor compaction", "logs"]
    assert logs.counts == {CompactionKind.MINOR: 1, CompactionKind.MAJOR: 0}
    assert set(logs.last_ms) == {CompactionKind.MINOR}


async def test_a_suspended_kind_is_not_even_forced() -> None:
    clock = ManualClock()
    phases: list[str] = []
    compactor: Any = NotingCompactor()
    plan = KindPlan(0.5, 100, None)
    logs = LogCompaction(compactor, CompactionSchedule(plan, plan, force_when_off=False, now_s=0), clock)
    logs.set_suspended(True, minor=True, major=False)
    assert (logs.is_suspended(CompactionKind.MINOR), logs.is_suspended(CompactionKind.MAJOR)) == (True, False)
    await logs.run({CompactionKind.MINOR}, phases.append)
    assert phases == ["logs"]
    logs.set_suspended(False, minor=True, major=True)
    await logs.run({CompactionKind.MINOR}, phases.append)
    assert phases == ["logs", "logs", "minor compaction"]


async def test_reads_of_metadata_end_when_the_bookie_stops(caplog: pytest.LogCaptureFixture) -> None:
    store: Any = SimpleNamespace()
    stopping: list[bool] = []
    reads = MetadataReads(store, ManualClock(), 1_000_000, lambda: bool(stopping))
    await reads.wait(1)
    stopping.append(True)
    for number in (0, 1):
        with pytest.raises(Stopped):
            await reads.wait(number)
    for _ in range(2):
        reads.note_damaged(7, ValueError("garbage"))
    assert reads.unreadable == {7}
    assert caplog.messages == ["ledger 7 stays, its metadata cannot be read: garbage"], "once"


def test_settings_say_off_as_nothing() -> None:
    settings = GcSettings.of(COLLECTING)
    assert settings.minor.max_s is None
    assert settings.wait_s == COLLECTING.gc_wait_ms / 1000
    assert settings.metadata_reads_s == 1_000_000
