"""Pauses that grow."""

import pytest

from magnetar_core.runtime.pauses import GrowingPause, longer_s, pause_after_s


def test_each_is_twice_as_long_as_the_one_before_up_to_the_longest() -> None:
    pause = GrowingPause(0.5, 5.0)
    assert [pause.next_s() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_behind_a_success_they_begin_anew() -> None:
    pause = GrowingPause(1.0, 60.0)
    assert [pause.next_s(), pause.next_s()] == [1.0, 2.0]
    pause.reset()
    assert [pause.next_s(), pause.next_s()] == [1.0, 2.0]


def test_the_longest_holds_for_the_first_too() -> None:
    assert GrowingPause(2.0, 0.1).next_s() == 0.1
    assert pause_after_s(1, 2.0, 0.1) == 0.1
    assert longer_s(0.0, 2.0, 0.1) == 0.1


@pytest.mark.parametrize(("first_s", "longest_s"), [(1.0, 600.0), (2.0, 300.0), (0.1, 5.0), (3.0, 3.0)])
def test_who_counts_failures_and_who_keeps_the_last_pause_wait_the_same(first_s: float, longest_s: float) -> None:
    pause, kept_s = GrowingPause(first_s, longest_s), 0.0
    for failures in range(1, 2_000):
        kept_s = longer_s(kept_s, first_s, longest_s)
        assert pause.next_s() == kept_s == pause_after_s(failures, first_s, longest_s)
    with pytest.raises(AssertionError):
        pause_after_s(0, first_s, longest_s)
