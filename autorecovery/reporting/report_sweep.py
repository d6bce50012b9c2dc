"""The auditor calls reports of damage mended that have no cause any more.

1. The ledger was deleted: nothing of it is left to be mended.
2. A worker of auto-recovery reported that entries are on no living bookie, and the ledger's mark is gone: marks are
   taken down only after every copy was found, so the bookie is back. Other reports stay for an operator.
"""

import logging
from collections.abc import Callable
from typing import Final

from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports, NoSuchReport
from magnetar_core.bookkeeper.metadata.damage.rules import Source, Stage, WrongStage
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, NoNode
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Retention deletes ledgers after hours or days. A round asks for one record per report that is not mended.
_ROUND_S: Final = 300.0


class ReportSweep:
    """The sweep, which the auditor runs. Used on the loop."""

    def __init__(self, name: str, reports: DamageReports, ledgers: LedgerStore, marks: MarkBoard, clock: Clock) -> None:
        """*name* stands in the reports."""
        self._name = name
        self._reports = reports
        self._ledgers = ledgers
        self._marks = marks
        self._clock = clock
        self._tasks = Tasks("sweep of reports")

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks.on_failure = on_failure
        self._tasks.spawn(self._run(), "run")

    async def stop(self) -> None:
        await self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._sweep()
            except MetadataError as error:
                log.warning("reports of deleted ledgers stay for now: %s", error)
            await self._clock.sleep(_ROUND_S)

    async def _sweep(self) -> None:
        """One round. Raises MetadataError."""
        # The reports first: a worker reports only while the mark is up.
        reports = [report for report in await self._reports.all() if report.stage is not Stage.MENDED]
        for ledger_id in sorted({report.ledger_id for report in reports}):
            is_deleted = not await self._exists(ledger_id)
            is_whole = not is_deleted and not await self._is_marked(ledger_id)
            for report in reports:
                if report.ledger_id == ledger_id and is_deleted:
                    await self._mend(report.id, "the ledger was deleted")
                elif report.ledger_id == ledger_id and is_whole and report.source is Source.AUTO_RECOVERY:
                    await self._mend(report.id, "every copy of the ledger was found again")

    async def _is_marked(self, ledger_id: int) -> bool:
        try:
            return await self._marks.read(ledger_id) is not None
        except Corruption:
            return True

    async def _exists(self, ledger_id: int) -> bool:
        try:
            await self._ledgers.read(ledger_id)
        except NoNode:
            return False
        except Corruption:
            return True
        return True

    async def _mend(self, report_id: str, note: str) -> None:
        wall_ms = self._clock.wall_ms()
        try:
            await self._reports.move(report_id, Stage.MENDED, self._name, note, wall_ms)
        except (NoSuchReport, WrongStage, Corruption) as error:
            log.info("report %s: %s", report_id, error)
