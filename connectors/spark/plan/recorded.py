"""What a topic's record says of its ledgers. No IO.

The broker writes entries and bytes of a ledger into the record when it has closed it and begins the next one; after
that no entry is added. So a ledger that is not the last, with its entries, needs no look at its own record. The last
one may be open, and one without entries may be one of which the broker has not said yet.
"""

from collections.abc import Sequence

from connectors.spark.ranges import Run
from managed_ledger.records.records_pb2 import ManagedLedgerInfo


def recorded(infos: Sequence[ManagedLedgerInfo.LedgerInfo]) -> tuple[dict[int, Run], list[int]]:
    """(ledger → what is in it, the ledgers whose own records must be read)."""
    known: dict[int, Run] = {}
    unknown: list[int] = []
    last = len(infos) - 1
    for number, info in enumerate(infos):
        ledger_id, entries = info.ledgerId, info.entries
        if entries > 0 and number < last:
            known[ledger_id] = Run(ledger_id, 0, entries - 1, max(info.size, 1))
        else:
            unknown.append(ledger_id)
    return known, unknown
