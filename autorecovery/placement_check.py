"""The auditor's check of placement: are the copies of each ledger in enough regions, racks and on enough hosts?

    due ──▶ all ledgers ──▶ which windows lack any of them (`topology`) ──▶ told ──▶ marked, if moving is switched on

Rules:

1. Only closed ledgers count: the writer of another one chooses its bookies.
2. A ledger is marked, with an empty list of replicas as Apache's auditor does, only where a better place for some copy
   is known now: else workers would find nothing to do, and the next check would mark it again.
3. A check that could not read everything has not taken place. A record that is damaged does not stop it.
4. Where all bookies are on one host, nothing is a violation (`topology`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from autorecovery.catalogue import LedgerCatalogue
from autorecovery.index import IndexedLedger
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.metadata.marks import MarkBoard
from magnetar_core.bookkeeper.metadata.store import MetadataError
from magnetar_core.bookkeeper.metadata.underreplication import PeriodicCheck
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Whether a check is due is looked at so often while auto-recovery is off, or nothing is due.
_LOOK_S: Final = 30.0

# The metadata store is away: time until the next try.
_RETRY_S: Final = 5.0

# Ledgers that are looked at before others on the loop have their turn: some 10 ms.
_BETWEEN_PAUSES: Final = 256

# Ledgers that are named with what they lack. Above it only their number is told of.
_NAMED_MAX: Final = 100


@dataclass(slots=True)
class PlacementStatus:
    """What the last check found, for people."""

    is_running: bool = False
    looked_at: int = 0
    """Closed ledgers."""
    violating: int = 0
    """Those of them with copies in too few regions, racks or hosts."""
    marked: int = 0
    """Those of them that can be placed better, and are to be."""
    named: dict[int, str] = field(default_factory=dict)
    """Ledger → what it lacks, for the first of them."""
    last_ended_ms: int | None = None


class PlacementCheck:
    """The check of one auditor. Used on the loop."""

    def __init__(
        self,
        period_s: float,
        bookkeeper: BookKeeper,
        catalogue: LedgerCatalogue,
        marks: MarkBoard,
        clock: Clock,
        *,
        marks_violations: bool,
    ) -> None:
        """*period_s* 0: never by itself. *marks_violations*: have workers move copies (rule 2)."""
        assert period_s >= 0
        self._period_s = period_s
        self._bookkeeper = bookkeeper
        self._catalogue = catalogue
        self._marks = marks
        self._clock = clock
        self._marks_violations = marks_violations
        self._tasks = Tasks("placement check")
        self._asked = Bell()
        self._is_asked = False
        self.status = PlacementStatus()

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks.on_failure = on_failure
        self._tasks.spawn(self._run(), "run")

    async def stop(self) -> None:
        await self._tasks.cancel()

    def run_now(self) -> None:
        """An operator asks."""
        self._is_asked = True
        self._asked.ring()

    async def _run(self) -> None:
        while True:
            try:
                wait_s = await self._due_s()
                if wait_s > 0:
                    await self._asked.until(lambda: self._is_asked, self._clock, min(wait_s, _LOOK_S))
                    continue
                await self._check()
            except MetadataError as error:
                log.warning("the placement check begins anew in %g s: %s", _RETRY_S, error)
                await self._clock.sleep(_RETRY_S)
            finally:
                self.status.is_running = False

    async def _due_s(self) -> float:
        """Seconds until the check is to begin; 0: now. Raises MetadataError."""
        if not await self._marks.is_enabled():
            self._is_asked = False
            return _LOOK_S
        if self._is_asked:
            return 0.0
        if not self._period_s:
            return _LOOK_S
        try:
            ended_ms = await self._marks.last_checked_ms(PeriodicCheck.PLACEMENT)
        except Corruption as error:
            log.warning("when the last placement check ended cannot be read, so it runs now: %s", error)
            return 0.0
        self.status.last_ended_ms = ended_ms
        if ended_ms is None:
            return 0.0
        return max(ended_ms / 1000 + self._period_s - self._clock.wall_ms() / 1000, 0.0)

    async def _check(self) -> None:
        status = PlacementStatus(is_running=True, last_ended_ms=self.status.last_ended_ms)
        self.status = status
        self._is_asked = False
        index = await self._catalogue.read()
        for number, ledger_id in enumerate(sorted(index), 1):
            if number % _BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
            found = index.get(ledger_id)
            if found is None or not found.is_closed:
                continue  # rule 1
            status.looked_at += 1
            problem, can_be_better = self._look(found)
            if problem is None:
                continue
            status.violating += 1
            if len(status.named) < _NAMED_MAX:
                status.named[ledger_id] = problem
            if can_be_better and await self._marks.is_enabled() and await self._may_move(ledger_id, found):
                await self._marks.mark(ledger_id, None, self._clock.wall_ms())
                status.marked += 1
        status.last_ended_ms = self._clock.wall_ms()
        await self._marks.set_last_checked(PeriodicCheck.PLACEMENT, status.last_ended_ms)
        log.log(
            logging.WARNING if status.violating else logging.INFO,
            "placement check: of %d closed ledgers, %d have copies in too few regions, racks or hosts; %d are to be "
            "moved",
            status.looked_at,
            status.violating,
            status.marked,
        )

    async def _may_move(self, ledger_id: int, ledger: IndexedLedger) -> bool:
        """Whether it can be better also within the groups of bookies that its record names, if it does."""
        try:
            metadata = await self._bookkeeper.read_metadata(ledger_id)
        except BookKeeperError:
            return False  # deleted, or looked at again in the next check
        return any(
            self._bookkeeper.choose_moves(
                ensemble,
                write_quorum=ledger.write_quorum,
                ack_quorum=metadata.ack_quorum,
                custom_metadata=metadata.custom_metadata,
            )
            for ensemble in dict.fromkeys(ledger.ensembles)
        )

    def _look(self, ledger: IndexedLedger) -> tuple[str | None, bool]:
        """What the ledger lacks, and whether that is to be mended and can be."""
        problem = None
        topology = self._bookkeeper.topology()
        available = self._bookkeeper.bookies.available
        for ensemble in dict.fromkeys(ledger.ensembles):
            violations = topology.violations(ensemble, ledger.write_quorum, available)
            if not violations:
                continue
            problem = problem or violations[0].text
            if not self._marks_violations:
                break
            if self._bookkeeper.choose_moves(ensemble, write_quorum=ledger.write_quorum):
                return problem, True
        return problem, False
