"""The replication worker: takes marked ledgers, several at a time, and has each repaired under its lock.

    marks ──▶ choose (not locked by others, not waiting) ──▶ lock ──▶ LedgerRepair ──▶ unlock
                          ▲                                                │
                          └────────── waits: by time, or for a change ─────┘

Rules:

1. What is to be done follows from the marks as they are, looked at again whenever something changed and after a while
   in any case: a hint that is missed delays and loses nothing.
2. A lock is given back on every way out (I70); where the store did not answer, it is tried again with each round.
3. Ledgers are chosen in random order, so that several workers seldom meet.
4. While auto-recovery is off for the cluster nothing new is begun; what is under way is finished.
5. A ledger that waits for its writer (OPEN) is looked at again at growing intervals: most are closed, or are moved off
   the bookie, within seconds. It is recovered once the grace period that began with the first look is over.
6. A ledger that waits for a change in the cluster may be deleted meanwhile: its mark is taken down soon after that.
"""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from autorecovery.repair.board_watch import MarkWatch
from autorecovery.repair.one_ledger import LedgerRepair
from autorecovery.repair.outcome import Hindered, Hindrance, Outcome, Repaired, describe, retry_after_s
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard, VersionedMark
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks, report_failure
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Without any hint, marks and switches are looked at again after this.
_LOOK_S: Final = 10.0

# Rule 6: how often some of those ledgers are looked for in the store.
_DELETED_LOOK_S: Final = 60.0
_DELETED_LOOKED_AT_MAX: Final = 100

# How long a ledger that another worker holds is left out where no watch reports the end of its lock.
_LOCKED_S: Final = 5.0

# Locks that were tried and found taken. A worker that meets only such ones waits for a hint, or until they may be over.
_TAKEN_MAX: Final = 100

# Hindrances that end when bookies come or go.
_MAY_HELP: Final = (Hindrance.LOST, Hindrance.NO_TARGET, Hindrance.SILENT, Hindrance.COPY_FAILED)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A marked ledger that this worker could not repair."""

    ledger_id: int
    outcome: Hindered
    failures: int
    """Attempts in a row."""
    since_ms: int
    """Wall clock of the first of them."""
    due_s: float | None
    """Clock of the next attempt; None: after a change in the cluster."""
    grace_ends_s: float | None = None
    """Clock from which it may be recovered although it has no end yet; None: it was not found open (rule 5)."""


@dataclass(slots=True)
class WorkerCounts:
    """What a worker did since its start."""

    repaired: int = 0
    deleted: int = 0
    """Marked ledgers that turned out to be deleted."""
    copied_entries: int = 0
    copied_bytes: int = 0
    failures: dict[Hindrance, int] = field(default_factory=dict)
    last_repaired_ms: int | None = None


class ReplicationWorker:
    """One worker. Used on the loop."""

    def __init__(
        self,
        name: str,
        marks: MarkBoard,
        watch: MarkWatch,
        repair: LedgerRepair,
        clock: Clock,
        rng: random.Random,
        *,
        ledgers_max: int,
        open_grace_s: float,
        retry_s_max: float,
        on_bookies_changed: Callable[[Callable[[], None]], Cancel],
        on_lost: Callable[[int, Sequence[tuple[int, int]], str], None],
    ) -> None:
        """*name* stands in the locks. *ledgers_max* are repaired at the same time; *open_grace_s* is given to writers,
        *retry_s_max* is the longest wait between two attempts. *on_bookies_changed* calls back when bookies come or
        go. *on_lost* is called with (ledger, ranges of entries, text) for what no living bookie has."""
        assert ledgers_max >= 1
        self._name = name
        self._marks = marks
        self._watch = watch
        self._repair = repair
        self._clock = clock
        self._rng = rng
        self._ledgers_max = ledgers_max
        self._open_grace_s = open_grace_s
        self._retry_s_max = retry_s_max
        self._on_bookies_changed = on_bookies_changed
        self._on_lost = on_lost
        self._tasks = Tasks(f"replication worker {name}")
        self._cancels: list[Cancel] = []
        self._woken = Bell()
        self._is_called = False
        self._is_enabled = True
        self._switch_look_s = 0.0
        """Clock of the next look whether auto-recovery is on (rule 1)."""
        self._under_way: set[int] = set()
        self._waiting: dict[int, Waiting] = {}
        self._locked_until: dict[int, float] = {}
        self._have_locks_changed = False
        """Some of those may be free."""
        self._deleted_look_s = 0.0
        """Clock of the next look for deleted ledgers."""
        self.counts = WorkerCounts()

    @property
    def under_way(self) -> frozenset[int]:
        """Ledgers that are being repaired."""
        return frozenset(self._under_way)

    @property
    def waiting(self) -> list[Waiting]:
        """Marked ledgers that could not be repaired yet, with the reason."""
        return [self._waiting[ledger_id] for ledger_id in sorted(self._waiting)]

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """Begin; *on_failure* is called if the worker itself breaks, which no ledger and no bookie can cause."""
        self._tasks.on_failure = on_failure
        self._cancels = [
            self._watch.watch(self._wake),
            self._marks.watch_locks(self._on_locks),
            self._marks.watch_enabled(self._on_switch),
            self._on_bookies_changed(self._on_bookies),
        ]
        self._tasks.spawn(self._run(), "run")

    async def stop(self) -> None:
        """End; what is being copied is left where it is, and the locks are given back."""
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        await self._tasks.cancel()
        # Locks whose return was cut short, or that were being asked for.
        for ledger_id in self._under_way | self._marks.held:
            await self._unlock(ledger_id)

    def retry_now(self) -> None:
        """Try every waiting ledger again at once: an operator asks."""
        for ledger_id, waiting in self._waiting.items():
            self._make_due(ledger_id, waiting)
        self._wake()

    # ------------------------------------------------------------------------------------------ waking

    def _wake(self) -> None:
        self._is_called = True
        self._woken.ring()

    def _on_switch(self) -> None:
        self._switch_look_s = 0.0
        self._wake()

    def _on_locks(self) -> None:
        self._have_locks_changed = True
        self._wake()

    def _on_bookies(self) -> None:
        """What was lost may be back, and there may be targets now (rule 3 of `outcome`)."""
        for ledger_id, waiting in self._waiting.items():
            if waiting.outcome.kind in _MAY_HELP:
                self._make_due(ledger_id, waiting)
        self._wake()

    def _make_due(self, ledger_id: int, waiting: Waiting) -> None:
        self._waiting[ledger_id] = replace(waiting, due_s=self._clock.monotonic())

    # ---------------------------------------------------------------------------------------- choosing

    async def _run(self) -> None:
        while True:
            now = self._clock.monotonic()
            try:
                if now >= self._switch_look_s:
                    # Before the answer: a hint that comes meanwhile asks for another look.
                    self._switch_look_s = now + _LOOK_S
                    self._is_enabled = await self._marks.is_enabled()
                for ledger_id in self._marks.held - self._under_way:  # rule 2
                    await self._marks.unlock(ledger_id)
                if self._is_enabled:
                    await self._begin_some()
            except MetadataError as error:
                self._switch_look_s = 0.0
                log.warning("replication worker %s: %s", self._name, error)
            await self._woken.until(lambda: self._is_called, self._clock, self._wait_s(now))
            self._is_called = False

    def _wait_s(self, began_s: float) -> float:
        """How long nothing is to be done after a round that began then. What was due was begun, or there is no room for
        it; the end of a repair wakes this worker."""
        now = self._clock.monotonic()
        dues = [waiting.due_s for waiting in self._waiting.values() if waiting.due_s is not None]
        dues += self._locked_until.values()
        return max(min([_LOOK_S, *(due - now for due in dues if due > began_s)]), 0.01)

    async def _begin_some(self) -> None:
        self._forget_unmarked()
        await self._look_for_deleted()
        free = self._ledgers_max - len(self._under_way)
        if free <= 0:
            return
        if self._have_locks_changed and self._locked_until:
            # One request. To try each again would be one for each, of each worker, whenever any lock comes or goes.
            self._have_locks_changed = False
            locked = await self._marks.locked()
            self._locked_until = {each: until for each, until in self._locked_until.items() if each in locked}
        candidates = self._candidates()
        free = min(free, len(candidates), _TAKEN_MAX - len(self._locked_until))
        for ledger_id in (_taken_from(candidates, self._rng) for _ in range(free)):
            self._under_way.add(ledger_id)
            self._tasks.spawn(self._lock_and_repair(ledger_id), f"ledger {ledger_id}")

    async def _lock_and_repair(self, ledger_id: int) -> None:
        is_ours = False
        try:
            is_ours = await self._marks.lock(ledger_id, self._name)
        except MetadataError as error:
            log.warning("replication worker %s: %s", self._name, error)
        finally:
            if not is_ours:
                self._under_way.discard(ledger_id)
        if is_ours:
            await self._repair_locked(ledger_id)
        else:
            self._locked_until[ledger_id] = self._clock.monotonic() + _LOCKED_S
            self._wake()

    def _candidates(self) -> list[int]:
        """Ascending, so that the same random numbers choose the same."""
        now = self._clock.monotonic()
        self._locked_until = {ledger_id: until for ledger_id, until in self._locked_until.items() if until > now}
        busy = self._under_way | self._locked_until.keys()
        late = {waiting.ledger_id for waiting in self._waiting.values() if waiting.due_s is None or waiting.due_s > now}
        return sorted(self._watch.marked - busy - late)

    def _forget_unmarked(self) -> None:
        """Somebody else repaired them, or the mark was taken back."""
        for ledger_id in self._waiting.keys() - self._watch.marked:
            del self._waiting[ledger_id]

    async def _look_for_deleted(self) -> None:
        """Rule 6. Raises MetadataError."""
        now = self._clock.monotonic()
        if now < self._deleted_look_s:
            return
        self._deleted_look_s = now + _DELETED_LOOK_S
        waiting = [ledger_id for ledger_id, waiting_ledger in self._waiting.items() if waiting_ledger.due_s is None]
        for ledger_id in self._rng.sample(waiting, min(len(waiting), _DELETED_LOOKED_AT_MAX)):
            if await self._repair.is_deleted(ledger_id) and ledger_id in self._waiting:
                self._make_due(ledger_id, self._waiting[ledger_id])

    # --------------------------------------------------------------------------------------- repairing

    async def _repair_locked(self, ledger_id: int) -> None:
        try:
            mark = await self._mark_of(ledger_id)
            if mark is not None:
                may_recover = self._has_waited_for_writer(ledger_id)
                waiting = self._waiting.get(ledger_id)
                is_announced = waiting is not None and waiting.outcome.kind is Hindrance.OPEN
                outcome = await self._repair.repair(
                    ledger_id, may_recover=may_recover, mark=mark, is_announced=is_announced
                )
                self._count_outcome(ledger_id, outcome)
        except Corruption as error:
            self._count_outcome(ledger_id, Hindered(Hindrance.UNREADABLE, str(error)))
        except MetadataError as error:
            self._count_outcome(ledger_id, Hindered(Hindrance.METADATA, str(error)))
        except Exception as error:  # an error with one ledger must not keep the others waiting (I71)
            report_failure(f"repairing ledger {ledger_id}", error)
            self._count_outcome(ledger_id, Hindered(Hindrance.DEFECT, f"{type(error).__name__}: {error}"))
        finally:
            await self._unlock(ledger_id)

    def _has_waited_for_writer(self, ledger_id: int) -> bool:
        """Rule 5."""
        waiting = self._waiting.get(ledger_id)
        if waiting is None or waiting.grace_ends_s is None:
            return False
        return self._clock.monotonic() >= waiting.grace_ends_s

    async def _mark_of(self, ledger_id: int) -> VersionedMark | None:
        """A directory without a mark is removed. Raises MetadataError, Corruption."""
        mark = await self._marks.read(ledger_id)
        if mark is None:
            await self._marks.prune(ledger_id)
            self._watch.forget(ledger_id)
        return mark

    async def _unlock(self, ledger_id: int) -> None:
        """Rule 2; at the end, a lock that cannot be given back ends with the session."""
        try:
            await self._marks.unlock(ledger_id)
        except MetadataError as error:
            log.warning("the lock of ledger %d is not given back yet: %s", ledger_id, error)
        # Not where this is cancelled: `stop` gives the lock back then.
        self._under_way.discard(ledger_id)
        self._wake()

    def _count_outcome(self, ledger_id: int, outcome: Outcome) -> None:
        """Count an attempt, and note when a ledger that is not repaired is tried again."""
        counts = self.counts
        if isinstance(outcome, Repaired):
            self._waiting.pop(ledger_id, None)
            self._watch.forget(ledger_id)
            counts.copied_entries += outcome.copied_entries
            counts.copied_bytes += outcome.copied_bytes
            counts.last_repaired_ms = self._clock.wall_ms()
            if outcome.is_deleted:
                counts.deleted += 1
            else:
                counts.repaired += 1
                log.info("ledger %d has all of its copies; %d were made", ledger_id, outcome.copied_entries)
            return
        counts.copied_entries += outcome.copied_entries
        counts.copied_bytes += outcome.copied_bytes
        counts.failures[outcome.kind] = counts.failures.get(outcome.kind, 0) + 1
        before = self._waiting.get(ledger_id)
        is_same_hindrance = before is not None and before.outcome.kind is outcome.kind
        self._waiting[ledger_id] = self._wait_after(ledger_id, outcome, before)
        if outcome.kind is Hindrance.LOST:
            self._on_lost(ledger_id, outcome.lost, outcome.text)
        if not is_same_hindrance:
            log.warning("ledger %d is not repaired yet (%s): %s", ledger_id, outcome.kind, describe(outcome))

    def _wait_after(self, ledger_id: int, outcome: Hindered, before: Waiting | None) -> Waiting:
        """How the ledger waits after *outcome*; *before*: how it waited until now. Attempts that the same hindrance
        stopped are counted together: the wait grows with them."""
        failures = before.failures + 1 if before is not None and before.outcome.kind is outcome.kind else 1
        since_ms = before.since_ms if before is not None else self._clock.wall_ms()
        wait_s = retry_after_s(outcome, failures, self._retry_s_max)
        now = self._clock.monotonic()
        due_s = None if wait_s is None else now + wait_s
        grace_ends_s = before.grace_ends_s if before is not None else None
        if outcome.kind is Hindrance.OPEN:
            assert due_s is not None
            if grace_ends_s is None:
                grace_ends_s = now + self._open_grace_s
            due_s = min(due_s, grace_ends_s)
        return Waiting(ledger_id, outcome, failures, since_ms, due_s, grace_ends_s)


def _taken_from(ledger_ids: list[int], rng: random.Random) -> int:
    """Take one of them out by chance (rule 3): at 10,000 marks much cheaper than bringing all into a random order for
    each ledger that has ended."""
    at = rng.randrange(len(ledger_ids))
    ledger_ids[at], ledger_ids[-1] = ledger_ids[-1], ledger_ids[at]
    return ledger_ids.pop()
