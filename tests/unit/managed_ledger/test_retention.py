"""Which ledgers go, and when the open one is full."""

from collections.abc import Iterator

import pytest

from managed_ledger.position import Position
from managed_ledger.retention import LedgerSummary, RetentionRule, RolloverRule, is_full, trimmable

AT_ONCE = RetentionRule(time_ms=0, bytes_max=0)
FOR_EVER = RetentionRule(time_ms=-1, bytes_max=-1)
# Three closed ledgers of ten entries and 100 bytes, closed at 1000, 2000 and 3000 ms.
CLOSED = [LedgerSummary(ledger_id, 10, 100, ledger_id * 1_000) for ledger_id in (1, 2, 3)]


@pytest.mark.parametrize(
    ("slowest", "going"),
    [
        (None, [1, 2, 3]),
        (Position(1, -1), []),
        (Position(1, 8), []),  # entry 9 is still wanted
        (Position(1, 9), [1]),
        (Position(2, -1), [1]),
        (Position(2, 8), [1]),
        (Position(3, 9), [1, 2, 3]),
        (Position(4, 0), [1, 2, 3]),
    ],
)
def test_a_ledger_goes_when_the_slowest_cursor_has_its_last_entry(slowest: Position | None, going: list[int]) -> None:
    assert trimmable(CLOSED, lambda: slowest, AT_ONCE, now_ms=10_000, total_bytes=300) == going
    assert trimmable(CLOSED, lambda: slowest, FOR_EVER, now_ms=10_000, total_bytes=300) == []


@pytest.mark.parametrize(("now_ms", "going"), [(5_999, []), (6_001, [1]), (7_001, [1, 2]), (9_000, [1, 2, 3])])
def test_consumed_ledgers_stay_for_their_time(now_ms: int, going: list[int]) -> None:
    rule = RetentionRule(time_ms=5_000, bytes_max=-1)
    assert trimmable(CLOSED, lambda: None, rule, now_ms, total_bytes=300) == going


@pytest.mark.parametrize(("bytes_max", "going"), [(300, []), (250, []), (200, [1]), (100, [1, 2]), (0, [1, 2, 3])])
def test_consumed_ledgers_stay_up_to_a_size(bytes_max: int, going: list[int]) -> None:
    rule = RetentionRule(time_ms=-1, bytes_max=bytes_max)
    assert trimmable(CLOSED, lambda: None, rule, now_ms=10_000, total_bytes=300) == going


def test_nothing_goes_behind_a_ledger_that_stays() -> None:
    # The clock was set back between the two: the younger one looks older.
    closed = [LedgerSummary(1, 10, 100, 8_000), LedgerSummary(2, 10, 100, 1_000)]
    assert trimmable(closed, lambda: None, RetentionRule(time_ms=5_000, bytes_max=-1), 10_000, 200) == []


RULE = RolloverRule(entries_max=10, bytes_max=1_000, age_max_ms=60_000, age_min_ms=5_000)


@pytest.mark.parametrize(
    ("entries", "size_bytes", "age_ms", "full"),
    [
        (9, 999, 59_999, False),
        (10, 0, 5_000, True),
        (10, 0, 4_999, False),
        (1, 1_000, 5_000, True),
        (1, 1_000, 4_999, False),
        (1, 1, 60_000, True),
        (0, 0, 60_000, False),
    ],
)
def test_a_ledger_is_full(entries: int, size_bytes: int, age_ms: int, full: bool) -> None:
    assert is_full(RULE, entries, size_bytes, age_ms) is full


def test_without_a_greatest_age_time_alone_fills_nothing() -> None:
    rule = RolloverRule(entries_max=10, bytes_max=1_000, age_max_ms=0, age_min_ms=0)
    assert not is_full(rule, 9, 999, 10**9)


def test_ledgers_behind_the_first_that_stays_are_not_looked_at() -> None:
    """It is asked each time that a cursor is stored, and a topic may have tens of thousands of ledgers."""
    looked_at: list[int] = []

    def closed() -> Iterator[LedgerSummary]:
        for ledger in CLOSED:
            looked_at.append(ledger.ledger_id)
            yield ledger

    def slowest() -> None:
        pytest.fail("all cursors are asked, and retention keeps the ledgers anyway")

    assert trimmable(closed(), slowest, FOR_EVER, now_ms=10_000, total_bytes=300) == []
    assert looked_at == [CLOSED[0].ledger_id]
