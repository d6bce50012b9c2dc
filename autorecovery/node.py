"""One node of auto-recovery: a candidate for the auditor's place, a worker, and a watch over both.

    AuditorElection ──elected──▶ Auditor     finds what lacks copies, and marks it
                             ├─▶ DrainEngine moves everything away from bookies that leave
                             └─▶ CallbackDelivery sends receivers each change of a bookie's state
    ReplicationWorker                        repairs what is marked
    death watch                              a part broke, or the session was lost ──▶ `on_death`

Rules:

1. A node whose session was lost is dead: its candidacy and its locks are gone. It does not go on as if nothing had
   happened; the process that runs it ends it visibly, and starts another one (Apache's does the same).
2. Parts are started bottom up and stopped top down; the locks that are held are given back.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from autorecovery.audit.auditor import Auditor
from autorecovery.audit.election import AuditorElection
from autorecovery.audit.periodic import ENDS, ENTRIES, LISTS, LedgerCheck
from autorecovery.audit.placement_check import PlacementCheck
from autorecovery.callbacks.delivery import CallbackDelivery, Poster
from autorecovery.callbacks.posts import HttpPoster
from autorecovery.callbacks.registry import CallbackRegistry
from autorecovery.config import AutoRecoveryConfig
from autorecovery.ledgers.catalogue import LedgerCatalogue
from autorecovery.ledgers.checks import Depth
from autorecovery.lifecycle.draining import DrainEngine
from autorecovery.lifecycle.turning import TurnBookie
from autorecovery.repair.board_watch import MarkWatch
from autorecovery.repair.one_ledger import LedgerRepair
from autorecovery.repair.pace import Pace
from autorecovery.repair.worker import ReplicationWorker
from autorecovery.reporting.history import CopyHistory
from autorecovery.reporting.report_sweep import ReportSweep
from autorecovery.reporting.reports import Reporter, read_problems
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, BookieStateWatch
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReporter, DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import Kind, Source
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataStore, SessionEvent
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import MagnetarError

log = logging.getLogger(__name__)


class NodeDied(MagnetarError):
    """A part of the node ended, or its session was lost; the text says which."""


class AutoRecoveryNode:
    """One node. Used on the loop of its metadata store."""

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        bookkeeper: BookKeeper,
        clock: Clock,
        config: AutoRecoveryConfig,
        *,
        root: str = "/ledgers",
        rng: random.Random | None = None,
        on_death: Callable[[NodeDied], None],
        turn: TurnBookie | None = None,
        new_poster: Callable[[], Poster] = HttpPoster,
        marks: MarkBoard | None = None,
    ) -> None:
        """*name* is shown in locks and as the auditor's. *bookkeeper* is open, and stays so when the node stops.
        *on_death* is called once, on the loop (rule 1). *turn* turns a bookie of Apache's. *new_poster* sends
        the requests of callbacks. *marks*: the board of a former node in the same session, so that locks which that one
        could not give back are given back by this one."""
        self.name = name
        self._store = store
        self._config = config
        self._on_death = on_death
        self._is_dead = False
        self.marks = MarkBoard(store, root) if marks is None else marks
        self.mark_watch = MarkWatch(self.marks, clock)
        states = BookieStates(store, root)
        self.state_watch = BookieStateWatch(states, clock)
        rng = rng if rng is not None else random.Random()
        self.repair = LedgerRepair(
            bookkeeper,
            self.marks,
            Pace(clock, config.rate),
            depth=config.depth,
            draining=lambda: self.state_watch.draining,
            mends_placement=config.mends_placement,
            suspect_depth=Depth.ALL if config.entry_check_s else Depth.LISTS,
        )
        self._damage = DamageReporter(store, root, Source.AUTO_RECOVERY, name, clock)
        self.worker = ReplicationWorker(
            name,
            self.marks,
            self.mark_watch,
            self.repair,
            clock,
            rng,
            ledgers_max=config.ledgers_max,
            open_grace_s=config.open_grace_ms / 1000,
            retry_s_max=config.retry_ms_max / 1000,
            on_bookies_changed=self._watch_bookies,
            on_lost=lambda ledger_id, ranges, text: self._damage.report(ledger_id, Kind.DATA_LOSS, ranges, text),
        )
        self._bookies = bookkeeper.bookies
        self.election = AuditorElection(store, root, name, clock)
        self.catalogue = LedgerCatalogue(store, root, bookkeeper.ledgers)
        self.auditor = Auditor(
            store,
            root,
            bookkeeper.bookies,
            self.catalogue,
            self.marks,
            clock,
            delay_s=config.lost_bookie_delay_s,
            bookie_check_s=config.bookie_check_s,
            drained=lambda: self.state_watch.drained,
        )
        self.checks = tuple(
            LedgerCheck(
                kind,
                period_s,
                self.catalogue,
                bookkeeper.ledgers,
                self.marks,
                self.repair,
                clock,
                has_time_left=self.auditor.has_time_left,
            )
            for kind, period_s in (
                (ENDS, config.ledger_check_s),
                (ENTRIES, config.entry_check_s),
                (LISTS, config.list_check_s),
            )
        )
        """The slow checks of an auditor: the ends of each copy, all entries, and what bookies list."""
        self.drains = DrainEngine(
            name,
            store,
            root,
            states,
            self.state_watch,
            bookkeeper.bookies,
            self.catalogue,
            bookkeeper.ledgers,
            self.marks,
            self.mark_watch,
            self.repair,
            lambda: read_problems(store, root),
            clock,
            turn=turn,
        )
        self.deliveries = CallbackDelivery(CallbackRegistry(store, root), new_poster(), clock, rng)
        self._report_sweep = ReportSweep(name, DamageReports(store, root), bookkeeper, self.marks, clock)
        self.placement_check = PlacementCheck(
            config.placement_check_s,
            bookkeeper,
            self.catalogue,
            self.marks,
            clock,
            marks_violations=config.mends_placement,
        )
        self._reporter = Reporter(
            store,
            root,
            name,
            clock,
            self.facts,
            lambda: self.worker.waiting,
            lambda: self.mark_watch.marked if self.election.is_elected else None,
        )
        self._history = CopyHistory()
        self._began_ms = clock.wall_ms()
        self._clock = clock
        self._parts = Parts()
        self._cancel: Cancel | None = None

    async def start(self) -> None:
        """Raises MetadataError."""
        await self.marks.prepare()
        self._cancel = self._store.watch_session(self._on_session)
        await self.mark_watch.start()
        self._parts.add("marks", self.mark_watch.stop)
        await self.state_watch.start()
        self._parts.add("states", self.state_watch.stop)
        self._parts.add("damage reports", self._damage.stop)
        self.worker.start(lambda error: self._on_process_failure(f"the replication worker broke: {error}"))
        self._parts.add("worker", self.worker.stop)
        self._reporter.start(lambda error: self._on_process_failure(f"the reports broke: {error}"))
        self._parts.add("reports", self._reporter.stop)
        await self.election.start(
            self._become_auditor, lambda error: self._on_process_failure(f"the election broke: {error}")
        )
        self._parts.add("election", self.election.stop)

    async def stop(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        await self._parts.stop()

    def facts(self) -> dict[str, Any]:
        """What the node reports about itself, as values of JSON; times are wall-clock milliseconds."""
        worker = self.worker.counts
        self._history.note(self._clock.wall_ms(), worker.copied_entries, worker.copied_bytes)
        facts: dict[str, Any] = {
            "is_auditor": self.election.is_elected,
            "repaired": worker.repaired,
            "deleted": worker.deleted,
            "copied_entries": worker.copied_entries,
            "copied_bytes": worker.copied_bytes,
            "failures": {str(kind): count for kind, count in worker.failures.items()},
            "last_repaired_ms": worker.last_repaired_ms,
            "history": self._history.steps(),
            "history_from_ms": self._began_ms,
            "under_way": sorted(self.worker.under_way),
            "waiting": len(self.worker.waiting),
            "version": 1,
        }
        if self.election.is_elected:
            audit = self.auditor.counts
            facts["auditor"] = {
                "audits": audit.audits,
                "marked": audit.marked,
                "last_audit_ms": audit.last_audit_ms,
                "last_audit_s": round(audit.last_audit_s, 3),
                "ledgers": audit.ledgers,
                "unreadable": {str(ledger_id): text for ledger_id, text in list(audit.unreadable.items())[:100]},
                "away": sorted(self.auditor.away),
                "problem": audit.last_problem,
                "checks": {check.name: asdict(check.status) for check in self.checks},
                "placement": asdict(self.placement_check.status),
            }
            facts["drains"] = self.drains.facts()
            facts["callbacks"] = self.deliveries.facts()
        return facts

    async def _become_auditor(self) -> None:
        self._parts.add("catalogue", self.catalogue.stop)
        await self.auditor.start(lambda error: self._on_process_failure(f"the auditor broke: {error}"))
        self._parts.add("auditor", self.auditor.stop)
        for check in self.checks:
            check.start(lambda error: self._on_process_failure(f"a periodic check broke: {error}"))
            self._parts.add(f"check of {check.name}", check.stop)
        self.drains.start(lambda error: self._on_process_failure(f"the drains broke: {error}"))
        self._parts.add("drains", self.drains.stop)
        self.deliveries.start(lambda error: self._on_process_failure(f"the deliveries to callbacks broke: {error}"))
        self._parts.add("callbacks", self.deliveries.stop)
        self._report_sweep.start(lambda error: self._on_process_failure(f"the sweep of reports broke: {error}"))
        self._parts.add("sweep of reports", self._report_sweep.stop)
        self.placement_check.start(lambda error: self._on_process_failure(f"the placement check broke: {error}"))
        self._parts.add("placement check", self.placement_check.stop)

    def _watch_bookies(self, changed: Callable[[], None]) -> Cancel:
        """Call *changed* when bookies come or go, or begin or end to leave: both change what can be repaired."""
        cancels = self._bookies.watch(changed), self.state_watch.watch(changed)

        def cancel() -> None:
            for cancel_watch in cancels:
                cancel_watch()

        return cancel

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.LOST:
            self._on_process_failure("the session with the metadata store was lost")

    def _on_process_failure(self, why: str) -> None:
        if not self._is_dead:
            self._is_dead = True
            log.error("auto-recovery node %s ends: %s", self.name, why)
            self._on_death(NodeDied(f"auto-recovery node {self.name}: {why}"))
