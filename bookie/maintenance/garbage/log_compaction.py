"""The part of a round for entry logs: it removes dead logs, and runs a compaction if one is due."""

from collections.abc import Callable, Collection

from bookie.maintenance.garbage.compaction import Compactor
from bookie.maintenance.garbage.rules import CompactionKind, CompactionSchedule
from magnetar_core.runtime.clock import Clock


class LogCompaction:
    """The entry logs of one bookie, by a schedule. Used on the loop, by one round at a time."""

    def __init__(self, compactor: Compactor, schedule: CompactionSchedule, clock: Clock) -> None:
        self.compactor = compactor
        self._schedule = schedule
        self._clock = clock
        self.counts = dict.fromkeys(CompactionKind, 0)
        """Compactions since the start."""
        self.last_ms: dict[CompactionKind, int] = {}

    async def run(self, forced: Collection[CompactionKind], enter: Callable[[str], None]) -> None:
        """*enter(phase)* is called at the beginning of each phase. Raises OSError, Stopped."""
        enter("logs")
        compactor = self.compactor
        await compactor.survey()
        await compactor.remove_dead()
        await compactor.count()
        due = self._schedule.due(self._clock.monotonic(), forced)
        if due is None:
            return
        enter(f"{due.kind} compaction")
        await compactor.compact(due)
        self._schedule.done(due.kind, self._clock.monotonic())
        self.counts[due.kind] += 1
        self.last_ms[due.kind] = self._clock.wall_ms()
        await compactor.count()

    def is_suspended(self, kind: CompactionKind) -> bool:
        return self._schedule.suspended[kind]

    def set_suspended(self, value: bool, *, minor: bool, major: bool) -> None:
        for kind, wanted in ((CompactionKind.MINOR, minor), (CompactionKind.MAJOR, major)):
            if wanted:
                self._schedule.suspended[kind] = value
