"""A place in a topic: which ledger, which entry. No IO."""

from typing import Final, NamedTuple

from managed_ledger.errors import InvalidPosition


class Position(NamedTuple):
    """Ordered by ledger, then entry. Entry -1 means "before the first entry of that ledger"."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST: Final = Position(-1, -1)
LATEST: Final = Position(2**63 - 1, 2**63 - 1)


def named_position(ledger_id: int, entry_id: int) -> Position:
    """The position that a client means by the two numbers of a message id.

    They are signed 64-bit numbers, also where a protocol's fields are unsigned: 2^64 - 1 is -1. What they may be:

        -1, -1            EARLIEST
        L, -1             before the first entry of ledger L
        L, E              entry E of ledger L
        2^63 - 1, any     LATEST (old C++ clients shorten the entry id)

    Raises InvalidPosition for every other negative number. Whether there is such an entry, only the topic knows.
    """
    if 0 <= ledger_id < LATEST.ledger_id and 0 <= entry_id <= LATEST.entry_id:  # nearly all
        return Position(ledger_id, entry_id)
    ledger_id, entry_id = signed(ledger_id), signed(entry_id)
    if ledger_id == LATEST.ledger_id:
        return LATEST
    if ledger_id < -1 or entry_id < -1 or (ledger_id == -1 and entry_id != -1):
        raise InvalidPosition(
            f"{ledger_id}:{entry_id} is no message id; negative are only -1:-1 (the earliest) and the entry -1 "
            "(before the first one of a ledger)"
        )
    return Position(ledger_id, entry_id)


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
