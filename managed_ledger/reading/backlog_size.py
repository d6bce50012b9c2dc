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
    total = sum(ledger.size_bytes for ledger in ledgers)
    bytes_before = 0
    for ledger in ledgers:
        if ledger.ledger_id == position.ledger_id:
            return total - bytes_before - _bytes_up_to(ledger, position.entry_id)
        bytes_before += ledger.size_bytes
    return total


def position_leaving(ledgers: Sequence[LedgerSize], left_bytes: int) -> Position | None:
    """The first position after which about *left_bytes* or less of *ledgers*, oldest first, come; None: all of them
    are not more than that."""
    bytes_to_pass = sum(ledger.size_bytes for ledger in ledgers) - left_bytes
    if bytes_to_pass <= 0:
        return None
    for ledger in ledgers:
        if ledger.size_bytes >= bytes_to_pass:
            average = max(ledger.size_bytes // max(ledger.entries, 1), 1)
            return Position(ledger.ledger_id, min(-(-bytes_to_pass // average), ledger.entries) - 1)
        bytes_to_pass -= ledger.size_bytes
    return None


def _bytes_up_to(ledger: LedgerSize, entry_id: int) -> int:
    consumed = entry_id + 1
    if ledger.entries <= 0 or consumed <= 0:
        return 0
    if consumed >= ledger.entries:
        return ledger.size_bytes
    return consumed * (ledger.size_bytes // ledger.entries)
