"""The auditor: finds ledgers that lack copies and marks them. One node of the cluster does this at a time.

    bookies come and go, the delay is set ──▶ LostBookies ──▶ audit: ask the catalogue, mark what names a lost bookie
    by time: bookies (a day)              ──▶ the same audit, whether anything was noticed or not
             all ledgers (a week)         ──▶ read the ends of each copy (`LedgerRepair.look`), mark what is missing
             all entries (off)            ──▶ the same with every entry

Rules:

1. A bookie is lost if records name it and it is not registered *after* they were read: one that came back in between
   is not lost, and one whose going nobody noticed is.
2. An audit that could not read everything has not taken place: it is begun again. A damaged record does not stop it,
   and is reported (I60, R-R14).
3. While auto-recovery is off for the cluster nothing is marked; the audit finds it all when it is on again.
4. A copy is called missing only if its bookie is gone or says so (`checks`, rule 1).
5. A bookie that was drained has nothing that could be lost: once it is stopped, and after it was removed, it does not
   count as one that is away.
6. The periodic checks are spread over their time, go on where a former auditor stopped, and count as done only when
   they reached the end.
7. A new auditor does not know since when a bookie is away and gives it the whole delay. Otherwise the restart of the
   bookie in which the auditor ran would mark all of its ledgers.
8. An audit, whatever its reason, and a check pass over a bookie whose delay still runs: it may have gone while the
   records were read. Only an operator's audit marks its ledgers, too.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from autorecovery.audit.lost_bookies import LostBookies
from autorecovery.ledgers.catalogue import LedgerCatalogue
from autorecovery.ledgers.index import LedgerIndex
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.pauses import GrowingPause
from magnetar_core.runtime.tasks import Bell, Tasks, gather_in_turns
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Marks that are put up at the same time.
_AT_ONCE: Final = 64

# Without a hint, the bookies that are there are compared with those that should be after this (a watch may be missed).
_LOOK_S: Final = 30.0

# An audit that failed is begun again after this, doubling up to the second number.
_RETRY_S: Final = 1.0
_RETRY_S_MAX: Final = 60.0


@dataclass(slots=True)
class AuditCounts:
    """What an auditor did since it was elected."""

    audits: int = 0
    marked: int = 0
    """Marks that were put up; a ledger counts each time."""
    last_audit_ms: int | None = None
    last_audit_s: float = 0.0
    """How long it took."""
    ledgers: int = 0
    """Ledgers that the last audit saw."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Ledger → why its record cannot be read."""
    last_problem: str | None = None


class Auditor:
    """The auditor's first task: lost bookies. Used on the loop."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        bookies: BookieDirectory,
        catalogue: LedgerCatalogue,
        marks: MarkBoard,
        clock: Clock,
        *,
        delay_s: int,
        bookie_check_s: float,
        drained: Callable[[], Collection[str]],
    ) -> None:
        """*delay_s* holds until somebody writes another one; *bookie_check_s* lies between two audits without a
        reason, 0: only one at the start. *drained*: bookies in that state, as they are now."""
        self._store = store
        self._root = root
        self._bookies = bookies
        self._catalogue = catalogue
        self._marks = marks
        self._clock = clock
        self._bookie_check_s = bookie_check_s
        self._drained = drained
        self._lost = LostBookies(delay_s)
        self._tasks = Tasks("auditor")
        self._cancels: list[Cancel] = []
        self._woken = Bell()
        self._is_called = False
        self._is_asked = False
        """An audit is wanted now, whatever the delay says: an operator asks for it, or the last one failed."""
        self._is_check_due = True
        """An audit is due at the start, or by time; it waits while a bookie that is away has time left (rule 7)."""
        self._next_check_s: float | None = None
        self._seen: set[str] = set()
        self._members: set[str] | None = None
        """Bookies that belong to the cluster, as of the last look; None: there was none yet."""
        self._retired: set[str] = set()
        """Drained bookies, and those that were removed after that (rule 5)."""
        self.counts = AuditCounts()

    @property
    def away(self) -> frozenset[str]:
        """Bookies that belong to the cluster and are not there."""
        return self._lost.away

    def has_time_left(self, bookie: str) -> bool:
        """Whether *bookie* is away and its delay still runs, so that nothing of it is to be marked yet."""
        if self._members is None:
            return True
        return bookie in self._lost.look(self._clock.monotonic(), self._members, self._bookies.available).waiting

    async def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """Begin. Raises MetadataError."""
        self._tasks.on_failure = on_failure
        if await self._marks.lost_bookie_delay_s() is None:
            await self._marks.set_lost_bookie_delay(int(self._lost.delay_s))
        else:
            await self._read_delay()
        self._cancels = [
            self._bookies.watch(self._wake),
            self._marks.watch_enabled(self._wake),
            self._marks.watch_delay(self._on_delay),
        ]
        self._plan_check()
        self._tasks.spawn(self._run(), "run")

    async def stop(self) -> None:
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        await self._tasks.cancel()

    def audit_now(self) -> None:
        """An operator asks for an audit."""
        self._is_asked = True
        self._wake()

    def _wake(self) -> None:
        self._is_called = True
        self._woken.ring()

    def _on_delay(self) -> None:
        self._tasks.spawn(self._new_delay(), "delay")

    async def _new_delay(self) -> None:
        """The same value, or 0, asks for an audit; another one is counted from when the bookies went."""
        before = self._lost.delay_s
        try:
            await self._read_delay()
        except MetadataError as error:
            log.warning("the delay of lost bookies could not be read: %s", error)
            return
        if self._lost.delay_s in (0, before):
            self._is_asked = True
        self._wake()

    async def _read_delay(self) -> None:
        try:
            delay_s = await self._marks.lost_bookie_delay_s()
        except Corruption as error:
            log.warning("%s; %g s stay", error, self._lost.delay_s)
            return
        if delay_s is not None:
            self._lost.delay_s = delay_s

    # -------------------------------------------------------------------------------------- what is due

    async def _run(self) -> None:
        pause = GrowingPause(_RETRY_S, _RETRY_S_MAX)
        while True:
            wait_s = _LOOK_S
            try:
                wait_s = await self._compare_bookies()
                pause.reset()
            except MetadataError as error:
                self.counts.last_problem = str(error)
                retry_s = pause.next_s()
                log.warning("the audit is begun again in %g s: %s", retry_s, error)
                self._is_check_due = True  # rule 2
                await self._clock.sleep(retry_s)
                continue
            await self._woken.until(lambda: self._is_called, self._clock, wait_s)
            self._is_called = False

    async def _compare_bookies(self) -> float:
        """Compare the bookies that are there with those that should be. Returns for how long to do nothing then.

        Raises MetadataError.
        """
        if not await self._marks.is_enabled():
            return _LOOK_S  # rule 3
        now_s = self._clock.monotonic()
        available = self._bookies.available
        self._seen |= available
        decision = self._lost.look(now_s, await self._read_known_bookies(), available)
        if self._next_check_s is not None and now_s >= self._next_check_s:
            self._is_check_due, self._next_check_s = True, None
        if self._is_asked or decision.audit or (self._is_check_due and decision.due_s is None):
            was_asked, self._is_asked, self._is_check_due = self._is_asked, False, False
            try:
                await self.audit(at_once=was_asked)
            except MetadataError:
                self._is_asked = self._is_asked or was_asked
                raise
            self._plan_check()
            return 0.0
        dues = [due for due in (decision.due_s, self._next_check_s) if due is not None]
        return max(min([_LOOK_S, *(due - now_s for due in dues)]), 0.0)

    async def _read_known_bookies(self) -> set[str]:
        """Bookies that belong to the cluster: they have a cookie, or were seen (rule 5). Raises MetadataError."""
        cookies = set(await self._store.children(f"{self._root}/cookies"))
        drained = set(self._drained())
        self._retired = (self._retired | drained) - (cookies - drained)
        self._members = (cookies | self._seen) - self._retired
        return self._members

    def _plan_check(self) -> None:
        if self._bookie_check_s > 0:
            self._next_check_s = self._clock.monotonic() + self._bookie_check_s

    # ----------------------------------------------------------------------------------------- an audit

    async def audit(self, *, at_once: bool = False) -> LedgerIndex:
        """Look through all ledgers, mark what lacks copies; *at_once*: of a bookie whose delay runs, too. Raises
        MetadataError (rule 2)."""
        began_s = self._clock.monotonic()
        index = await self._catalogue.read()
        if not await self._marks.is_enabled():
            self._is_asked, self._is_check_due = self._is_asked or at_once, True
            return index
        available = self._bookies.available  # rule 1
        self._seen |= available
        decision = self._lost.look(self._clock.monotonic(), await self._read_known_bookies(), available)
        waiting = frozenset() if at_once else decision.waiting  # rule 8
        lost = [bookie for bookie in index.lost(available) if bookie not in waiting]
        marked = 0
        for bookie in lost:
            marked += await self._mark_all(list(index.lacking(bookie)), bookie)
        self._lost.audited(lost)
        self._lost.audited(self._lost.away - waiting)
        counts = self.counts
        counts.audits += 1
        counts.marked += marked
        counts.last_audit_ms = self._clock.wall_ms()
        counts.last_audit_s = self._clock.monotonic() - began_s
        counts.ledgers = len(index)
        counts.unreadable = dict(index.unreadable)
        counts.last_problem = None
        log.info(
            "audit: %d ledgers in %.1f s; bookies away: %s; %d marks",
            len(index),
            counts.last_audit_s,
            ", ".join(lost) or "none",
            marked,
        )
        return index

    async def _mark_all(self, ledger_ids: Sequence[int], bookie: str) -> int:
        wall_ms = self._clock.wall_ms()
        for first in range(0, len(ledger_ids), _AT_ONCE):
            chunk = ledger_ids[first : first + _AT_ONCE]
            await gather_in_turns(self._marks.mark(ledger_id, bookie, wall_ms) for ledger_id in chunk)
        return len(ledger_ids)
