"""The position behind which so many bytes are left."""

from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.position import Position
from managed_ledger.reading.backlog_size import LedgerSize, bytes_after, position_leaving

LEDGERS = [LedgerSize(1, 100, 10), LedgerSize(2, 0, 0), LedgerSize(3, 50, 5)]


def test_the_position_leaves_what_was_asked_for_or_less() -> None:
    assert position_leaving(LEDGERS, 150) is None
    assert position_leaving(LEDGERS, 149) == Position(1, 0)
    assert position_leaving(LEDGERS, 50) == Position(1, 9)
    assert position_leaving(LEDGERS, 45) == Position(3, 0)
    assert position_leaving(LEDGERS, 0) == Position(3, 4)


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 50)), min_size=1, max_size=5), st.integers(0, 60_000))
def test_it_is_the_reverse_of_what_comes_after_a_position(sizes: list[tuple[int, int]], left_bytes: int) -> None:
    ledgers = [LedgerSize(at, size * entries, entries) for at, (size, entries) in enumerate(sizes)]
    position = position_leaving(ledgers, left_bytes)
    if position is None:
        assert sum(one.size_bytes for one in ledgers) <= left_bytes
    else:
        assert bytes_after(ledgers, position) <= left_bytes
        before = Position(position.ledger_id, position.entry_id - 1)
        assert bytes_after(ledgers, before) > left_bytes or before.entry_id < 0
