"""The auditor calls reports of damage mended that have no cause any more.

1. The ledger was deleted: nothing of it is left to be mended.
2. A worker of auto-recovery reported that entries are on no living bookie, and the ledger's mark is gone: marks are
   taken down only after every copy was found, so the bookie is back.
3. Somebody else reported lost entries, and each of them belongs to the ledger and can be read: what was away is there
   again. A report that may not name all of its entries, or names more than are read in a round, stays for an operator;
   so do other kinds.

Each of these is a line in the log.
"""

import logging
from collections.abc import Callable
from typing import Final

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.deciding.quorum import quorum_of
from magnetar_core.bookkeeper.client.errors import BookKeeperError, DigestMismatch
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports, NoSuchReport
from magnetar_core.bookkeeper.metadata.damage.rules import RANGES_MAX, Kind, Report, Source, Stage, WrongStage
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, NoNode
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Somebody who has started his bookies again looks whether all is well. A round asks for one record per report that is
# not mended, and for one copy of each entry that was called lost.
_ROUND_S: Final = 60.0
# Entries of one report that are read in a round. Where more are lost, people look themselves.
_ENTRIES_MAX: Final = 1_000


class ReportSweep:
    """The sweep, which the auditor runs. Used on the loop."""

    def __init__(
        self, name: str, reports: DamageReports, bookkeeper: BookKeeper, marks: MarkBoard, clock: Clock
    ) -> None:
        """*name* stands in the reports."""
        self._name = name
        self._reports = reports
        self._bookkeeper = bookkeeper
        self._marks = marks
        self._clock = clock
        self._tasks = Tasks("sweep of reports")
        self._losses: dict[str, int] = {}

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks.on_failure = on_failure
        self._tasks.spawn(self._run(), "run")

    @property
    def lost_ledgers(self) -> int:
        """Ledgers with lost entries, by the reports that were not closed in the latest round."""
        return len(set(self._losses.values()))

    async def stop(self) -> None:
        await self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._sweep()
            except MetadataError as error:
                log.warning("reports of damage stay as they are for now: %s", error)
            await self._clock.sleep(_ROUND_S)

    async def _sweep(self) -> None:
        """One round. Raises MetadataError."""
        # The reports first: a worker reports only while the mark is up.
        reports = [report for report in await self._reports.all() if report.stage is not Stage.MENDED]
        self._losses = {report.id: report.ledger_id for report in reports if report.kind is Kind.DATA_LOSS}
        for ledger_id in sorted({report.ledger_id for report in reports}):
            about = [report for report in reports if report.ledger_id == ledger_id]
            try:
                metadata = (await self._bookkeeper.ledgers.read(ledger_id)).metadata
            except NoNode:
                for report in about:
                    await self._mark_mended(report, "the ledger was deleted")
                continue
            except Corruption:
                continue
            is_whole = not await self._is_marked(ledger_id)
            for report in about:
                if report.source is Source.AUTO_RECOVERY:
                    if is_whole:
                        await self._mark_mended(report, "every copy of the ledger was found again")
                elif report.kind is Kind.DATA_LOSS and await self._has_all(report, metadata):
                    await self._mark_mended(report, "its entries can be read again")

    async def _is_marked(self, ledger_id: int) -> bool:
        try:
            return await self._marks.read(ledger_id) is not None
        except Corruption:
            return True

    async def _has_all(self, report: Report, metadata: LedgerMetadata) -> bool:
        """Rule 3. While a ledger is open its end is not known, so nothing is said of it."""
        count = sum(last - first + 1 for first, last in report.ranges)
        if not metadata.is_closed or not 0 < count <= _ENTRIES_MAX or len(report.ranges) >= RANGES_MAX:
            return False
        if report.ranges[-1][1] > metadata.last_entry_id:
            return False
        replicas = self._bookkeeper.replicas(report.ledger_id, metadata)
        quorum = quorum_of(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        for first, last in report.ranges:
            for entry_id in range(first, last + 1):
                ensemble = metadata.ensemble_for(entry_id)
                try:
                    await replicas.read_from_any([ensemble[at] for at in quorum.write_set(entry_id)], entry_id)
                except (BookKeeperError, DigestMismatch):
                    return False
        return True

    async def _mark_mended(self, report: Report, note: str) -> None:
        wall_ms = self._clock.wall_ms()
        try:
            await self._reports.move(report.id, Stage.MENDED, self._name, note, wall_ms)
        except (NoSuchReport, WrongStage, Corruption) as error:
            log.info("report %s: %s", report.id, error)
        else:
            self._losses.pop(report.id, None)
            log.warning("the report %s (%s) is closed: %s", report.id, report.text, note)
