"""A place in a topic: which ledger, which entry."""

from typing import Final, NamedTuple


class Position(NamedTuple):
    """Ordered by ledger, then entry. Entry -1 means "before the first entry of that ledger"."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST: Final = Position(-1, -1)
LATEST: Final = Position(2**63 - 1, 2**63 - 1)
