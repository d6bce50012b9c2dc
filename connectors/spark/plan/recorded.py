"""What a topic's record says of its ledgers. No IO.

The broker writes entries and bytes of a ledger into the record when it has closed it and begins the next one; after
that no entry is added. So a ledger that is not the last, with its entries, needs no look at its own record. The last
one may be open, and one without entries may be one of which the broker has not said yet.
"""

from collections.abc import Iterable, Mapping, Sequence

from connectors.spark.ranges import Position, Run
from managed_ledger.errors import OffloadedLedger
from managed_ledger.records.offloaded import only_offloaded, place_of
from managed_ledger.records.records_pb2 import ManagedLedgerInfo


def recorded(infos: Sequence[ManagedLedgerInfo.LedgerInfo]) -> tuple[dict[int, Run], list[int]]:
    """(ledger → what is in it, the ledgers whose own records must be read)."""
    known: dict[int, Run] = {}
    unknown: list[int] = []
    last = len(infos) - 1
    for number, info in enumerate(infos):
        ledger_id, entries = info.ledgerId, info.entries
        if entries > 0 and (number < last or only_offloaded(info)):
            known[ledger_id] = Run(ledger_id, 0, entries - 1, max(info.size, 1))
        else:
            unknown.append(ledger_id)
    return known, unknown


def never_was(infos: Sequence[ManagedLedgerInfo.LedgerInfo], position: Position) -> bool:
    """Whether the topic can never have had an entry at *position*, nor ended there.

    Ledgers with entries go from the first one on, so a topic may have had any that is before its first. Empty ones go
    at any time, so entry 0 between two ledgers may have been the next one of somebody who saw such a one.
    """
    ledger_ids = [info.ledgerId for info in infos]
    ledger_id, entry_id = position
    if not ledger_ids or ledger_id < ledger_ids[0] or ledger_id in ledger_ids:
        return False
    if ledger_id > ledger_ids[-1]:
        return position != (ledger_ids[-1] + 1, 0)  # the end of the last one, if that is closed
    return entry_id > 0


def places(infos: Iterable[ManagedLedgerInfo.LedgerInfo]) -> dict[int, str]:
    """Ledger → where in tiered storage it is, of those that are not on bookies any more."""
    return {info.ledgerId: place_of(info) for info in infos if only_offloaded(info)}


def check_on_bookies(topic: str, runs: Iterable[Run], offloaded: Mapping[int, str]) -> None:
    """Raises OffloadedLedger if some of *runs* are not on bookies any more, whatever `failOnDataLoss` says: they are
    not lost. *offloaded*: see `places`."""
    for run in runs:
        if run.ledger_id in offloaded and not run.is_compacted:
            raise OffloadedLedger(
                f"{topic}: ledger {run.ledger_id} is in tiered storage ({offloaded[run.ledger_id]}), which is not read "
                "here. It is not lost: clients of Apache's brokers read it. Begin behind it with startingOffsets"
            )
