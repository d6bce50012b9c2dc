"""How many bytes a reader has before it, from the sizes of ledgers alone. No IO.

The sizes of single entries are not kept. Inside the ledger that the reader is in, each entry counts as the average of
that ledger, a whole number of bytes, as Apache's brokers do.
"""

from collections.abc import Sequence
from typing import NamedTuple

from managed_ledger.position import Position


class LedgerSize(NamedTuple):
    """A ledger: its bytes (payload without envelopes) and its entries."""

    ledger_id: int
    size_bytes: int
    entries: int


def bytes_after(ledgers: Sequence[LedgerSize], position: Position) -> int:
    """About how many bytes of *ledgers*, which are oldest first, come after *position*.

    All of them, if *position* is in none of them: it was trimmed, or never written.
    """
    total = sum(one.size_bytes for one in ledgers)
    before = 0
    for one in ledgers:
        if one.ledger_id == position.ledger_id:
            return total - before - _bytes_up_to(one, position.entry_id)
        before += one.size_bytes
    return total


def position_leaving(ledgers: Sequence[LedgerSize], left_bytes: int) -> Position | None:
    """The first position after which about *left_bytes* or less of *ledgers*, oldest first, come; None: all of them
    are not more than that."""
    over = sum(one.size_bytes for one in ledgers) - left_bytes
    if over <= 0:
        return None
    for one in ledgers:
        if one.size_bytes >= over:
            average = max(one.size_bytes // max(one.entries, 1), 1)
            return Position(one.ledger_id, min(-(-over // average), one.entries) - 1)
        over -= one.size_bytes
    return None


def _bytes_up_to(ledger: LedgerSize, entry_id: int) -> int:
    consumed = entry_id + 1
    if ledger.entries <= 0 or consumed <= 0:
        return 0
    if consumed >= ledger.entries:
        return ledger.size_bytes
    return consumed * (ledger.size_bytes // ledger.entries)
