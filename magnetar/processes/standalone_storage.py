"""What a standalone tells of the storage in its process: bookies on the broker's page, lost ledgers in /metrics."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from autorecovery.reporting.report_sweep import ReportSweep
from bookie.admin.operations import BookieOperations
from bookie.disks.read_only import DiskState
from magnetar_core.runtime.observe import Sample
from magnetar_core.runtime.types import MagnetarError

_DISK: Final = {
    DiskState.WARN: "nearly full",
    DiskState.FULL: "full",
    DiskState.UNREADABLE: "cannot be read",
    DiskState.READ_ONLY: "read-only",
}


def storage_rows(bookies: Sequence[BookieOperations], sweep: ReportSweep) -> dict[str, Any]:
    """A row for each bookie, and what no bookie has, for the page."""
    return {"bookies": [storage_row(bookie) for bookie in bookies], "lost_ledgers": sweep.lost_ledgers}


def storage_row(bookie: BookieOperations) -> dict[str, Any]:
    """`problems` are for people, the worst first; empty: the bookie is well."""
    state, parts = bookie.state(), bookie.parts
    scrub, gc, logs = parts.scrub.status(), parts.collector.status(), parts.lost_logs.status()
    problems = [state.failure] if state.failure else []
    problems += [f"read-only: {reason}: {text}".rstrip(": ") for reason, text in state.reasons.items()]
    damage = {
        "{} entries lost": scrub.entries_lost,
        "{} entries not repaired yet": scrub.entries_unrepaired,
        "{} entry logs missing, cut or unreadable": len(logs.logs),
        "{} entry logs damaged": len(gc.damaged_logs),
    }
    problems += [text.format(count) for text, count in damage.items() if count]
    problems += [f"{path}: every user of this machine may read it" for path in bookie.open_to_others()]
    row: dict[str, Any] = {"name": bookie.bookie_id, "problems": problems}
    try:
        info = bookie.info()
    except MagnetarError as error:
        return row | {"problems": [str(error), *problems], "free_bytes": None, "total_bytes": None}
    problems += [f"{check.directory}: {_DISK[check.state]}" for check in info.disks if check.state in _DISK]
    return row | {"free_bytes": info.free_bytes, "total_bytes": info.total_bytes}


def lost_ledger_samples(sweep: ReportSweep) -> Iterator[Sample]:
    """Under the name that auto-recovery has in a cluster, so that its alert and dashboard fit."""
    yield Sample(
        "magnetar_autorecovery_lost_ledgers",
        sweep.lost_ledgers,
        help="ledgers with entries that no bookie has, by the reports that are not closed",
    )
