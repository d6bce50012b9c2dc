"""What a broken life does not need is left out, and the rest is named so that it can be lived again."""

from collections.abc import Sequence

import pytest

from tests.simulation.stack.shrinking import read, shrink, spelled


@pytest.mark.parametrize("needed", [{"t0", "17"}, {"40"}, set(), {"t0", "1", "2", "3", "40"}])
def test_what_is_needed_is_left(needed: set[str]) -> None:
    parts = ["t0", "t1", "keyed", *map(str, range(1, 41))]
    assert set(shrink(parts, lambda left_out: not needed & set(left_out))) == needed


def test_a_rule_that_any_of_two_events_breaks_needs_one_of_them() -> None:
    parts = [*map(str, range(1, 20))]
    assert len(shrink(parts, lambda left_out: not {"3", "12"} <= set(left_out))) == 1


def test_no_more_lives_than_are_allowed() -> None:
    lived: list[Sequence[str]] = []

    def is_broken(left_out: Sequence[str]) -> bool:
        lived.append(left_out)
        return "7" not in left_out

    assert "7" in shrink([*map(str, range(1000))], is_broken, lives_max=12)
    assert len(lived) == 12


@pytest.mark.parametrize("text", ["", "3", "1-4,9", "keyed,t1,2,5-7"])
def test_parts_are_read_as_they_are_spelled(text: str) -> None:
    assert spelled(reversed(read(text))) == text


def test_numbers_in_a_row_are_one_word() -> None:
    assert spelled(["t1", "2", "1", "3", "7"]) == "t1,1-3,7"
