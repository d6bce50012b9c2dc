"""What a successor is told of a managed ledger, as it stands in a log."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.ledgers.holdings import CURSORS_MAX, HeldCursor, Holdings, from_json, to_json
from managed_ledger.position import Position

NUMBERS = st.integers(-1, 2**63 - 1)
CURSORS = st.dictionaries(
    st.text(max_size=4), st.builds(HeldCursor, NUMBERS, st.builds(Position, NUMBERS, NUMBERS)), max_size=CURSORS_MAX
)
HOLDINGS = st.builds(Holdings, NUMBERS, NUMBERS, CURSORS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(HOLDINGS)
def test_they_are_the_same_after_they_were_written_and_read(holdings: Holdings) -> None:
    assert from_json(json.loads(json.dumps(to_json(holdings)))) == holdings


@given(JSON)
def test_whatever_is_read_is_holdings_or_nothing(found: object) -> None:
    read = from_json(found)
    assert read is None or from_json(to_json(read)) == read


@pytest.mark.parametrize(
    "found", [None, 3, [], [1, 2], [1, 2, []], ["1", 2, {}], [1, True, {}], [1, 2**63, {}], [-2, 2, {}],
              [1, 2, {"s": 3}], [1, 2, {"s": [3, 4]}], [1, 2, {"s": [3, 4, "5"]}]]
)  # fmt: skip
def test_what_is_not_as_drawn_is_nothing(found: object) -> None:
    assert from_json(found) is None


def test_what_a_later_version_tells_beside_is_passed_over() -> None:
    assert from_json([1, 2, {"s": [3, 4, 5, "new"]}, "new"]) == Holdings(1, 2, {"s": HeldCursor(3, Position(4, 5))})


def test_so_many_cursors_are_read_and_no_more() -> None:
    found = from_json([1, 2, {f"s{number}": [number, 4, 5] for number in range(CURSORS_MAX + 5)}])
    assert found is not None
    assert list(found.cursors) == [f"s{number}" for number in range(CURSORS_MAX)]


def test_the_ledgers_to_be_recovered_are_those_that_are_there() -> None:
    place = Position(7, 3)
    held = Holdings(1, 7, {"a": HeldCursor(9, place), "b": HeldCursor(-1, place), "c": HeldCursor(8, place)})
    assert held.ledger_ids == [7, 9, 8]
    assert Holdings(0, -1, {}).ledger_ids == []
