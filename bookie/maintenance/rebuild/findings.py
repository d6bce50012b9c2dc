"""What an online rebuild found, and its status. No IO."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

# Problems that the status names; further ones are only counted.
NAMED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class OnlineRebuildStatus:
    """The state of the rebuild under way, or the outcome of the last one. Times are wall-clock milliseconds."""

    is_running: bool
    phase: str
    """idle, waiting (for garbage collection), marking, fencing, logs, locations, finishing"""
    started_ms: int | None
    finished_ms: int | None
    rebuilds: int
    """Completed since the start."""
    logs: int
    logs_done: int
    ledgers: int
    ledgers_done: int
    """Ledgers whose locations were checked."""
    entries_looked_at: int
    entries_put_right: int
    """Entries whose location was missing or wrong."""
    entries_damaged: int
    """Records without a location that do not have the digest of their ledger. They get no location."""
    locations_lost: int
    """Locations that lead to no entry, and whose entry is in no log."""
    problem_count: int
    problems: tuple[str, ...]
    """Why entries may be missing; the first hundred."""
    failed: str | None
    """Why the last rebuild ended early; the next start then rebuilds the index."""


@dataclass(slots=True)
class Findings:
    """Counts of one rebuild, as `OnlineRebuildStatus` has them."""

    logs: int = 0
    logs_done: int = 0
    ledgers_done: int = 0
    entries_looked_at: int = 0
    entries_put_right: int = 0
    entries_damaged: int = 0
    locations_lost: int = 0
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)
    _located: dict[int, int] = field(default_factory=dict)

    def add_problem(self, text: str) -> None:
        """Count a reason why entries may be missing; the first hundred are kept as texts."""
        self.problem_count += 1
        if len(self.problems) < NAMED_MAX:
            self.problems.append(text)

    def add_located(self, ledger_ids: Iterable[int]) -> None:
        """Count one location that leads to an entry, for each ledger id."""
        for ledger_id in ledger_ids:
            self._located[ledger_id] = self._located.get(ledger_id, 0) + 1

    def located(self, ledger_id: int) -> int:
        """Locations of the ledger that lead to an entry of a log that was read. If the index has as many locations, all
        of them are right."""
        return self._located.get(ledger_id, 0)

    def forget_located(self) -> None:
        """Free the memory of `located` when the rebuild has ended: one number for each ledger."""
        self._located.clear()
