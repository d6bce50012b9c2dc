"""How many bytes come after a position, from the sizes of ledgers."""

import pytest

from managed_ledger.position import Position
from managed_ledger.reading.backlog_size import LedgerSize, bytes_after

# 410 bytes in 7 entries: 58 each, as Apache's broker counts them.
LEDGERS = [LedgerSize(2, 1_000, 10), LedgerSize(5, 0, 0), LedgerSize(7, 410, 7)]


@pytest.mark.parametrize(
    ("position", "left"),
    [
        (Position(-1, -1), 1_410),
        (Position(2, -1), 1_410),
        (Position(2, 0), 1_310),
        (Position(2, 9), 410),
        (Position(2, 99), 410),
        (Position(5, -1), 410),
        (Position(7, -1), 410),
        (Position(7, 3), 410 - 4 * 58),
        (Position(7, 6), 0),
        (Position(7, 99), 0),
        (Position(3, 0), 1_410),
        (Position(9, 0), 1_410),
    ],
)
def test_entries_count_as_the_average_of_their_ledger(position: Position, left: int) -> None:
    assert bytes_after(LEDGERS, position) == left


def test_there_is_nothing_without_ledgers() -> None:
    assert bytes_after([], Position(1, 1)) == 0
