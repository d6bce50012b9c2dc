"""Positions that wait for their time, beside a slow twin."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from broker.topic.dispatchers.delayed import LONGEST_STEP_MS, DelayedMessages
from managed_ledger.position import Position

MINUTE_MS = 60_000
NOW_MS = 1_795_000_000_000


def all_of(delayed: DelayedMessages, now_ms: int, most: int = 1 << 30) -> list[tuple[Position, int]]:
    return list(delayed.take(now_ms, most))


@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.just(("take", 0)),
                st.tuples(st.just("add"), st.integers(-MINUTE_MS, 10 * MINUTE_MS)),
                st.tuples(st.just("add"), st.integers(0, 300)),
            ),
            st.integers(0, 2 * MINUTE_MS),
            st.integers(1, 4),
        ),
        max_size=60,
    )
)
def test_each_comes_at_its_time_or_a_step_later_never_before_and_once(
    steps: list[tuple[tuple[str, int], int, int]],
) -> None:
    delayed, twin = DelayedMessages(), dict[Position, int]()
    now_ms = NOW_MS
    for number, ((what, after_ms), pass_ms, most) in enumerate(steps):
        now_ms += pass_ms if what == "take" else 0
        if what == "add":
            position = Position(2**62 + number % 3, number)
            delayed.add(position, 2**32 - 1 - number, now_ms + after_ms)
            twin[position] = now_ms + after_ms
            continue
        due = {position for position, at_ms in twin.items() if at_ms <= now_ms - LONGEST_STEP_MS}
        taken = all_of(delayed, now_ms, most)
        assert len(taken) <= most
        for position, hash_ in taken:
            assert twin.pop(position) <= now_ms
            assert hash_ == 2**32 - 1 - position.entry_id
        if len(taken) < most:
            assert due <= {position for position, _ in taken}
        assert len(delayed) == len(twin)
        next_ms = delayed.next_ms
        assert (next_ms is None) == (not twin)
        if next_ms is not None:
            assert next_ms <= max(min(twin.values()) + LONGEST_STEP_MS, now_ms)
    rest = all_of(delayed, now_ms + 3_600_000)
    assert {position for position, _ in rest} == set(twin)
    assert (len(delayed), delayed.next_ms) == (0, None)


def test_who_asks_at_the_told_times_gets_all_of_them_in_time() -> None:
    delayed = DelayedMessages()
    at_ms = {Position(1, number): NOW_MS + number * 37 + number % 7 * 20_000 for number in range(3_000)}
    for position, when_ms in at_ms.items():
        delayed.add(position, 0, when_ms)
    asked = 0
    while (next_ms := delayed.next_ms) is not None:
        asked += 1
        for position, _ in all_of(delayed, next_ms):
            assert 0 <= next_ms - at_ms.pop(position) < LONGEST_STEP_MS
    assert not at_ms
    assert asked < 2_500


def test_a_short_tick_is_kept_and_may_change_meanwhile() -> None:
    delayed = DelayedMessages()
    at_ms = {Position(1, number): NOW_MS + number * 37 + number % 7 * 20_000 for number in range(3_000)}
    for position, when_ms in at_ms.items():
        delayed.add(position, 0, when_ms, (10, 1, 0, 1_000)[position.entry_id % 4])
    while (next_ms := delayed.next_ms) is not None:
        for position, _ in all_of(delayed, next_ms):
            late_ms = next_ms - at_ms.pop(position)
            assert 0 <= late_ms < (10, 1, 1, LONGEST_STEP_MS)[position.entry_id % 4]
    assert not at_ms


def test_the_last_time_there_is_can_be_waited_for() -> None:
    delayed, last_ms = DelayedMessages(), 2**63 - 1
    for number, tick_ms in enumerate((1, 7, LONGEST_STEP_MS)):
        delayed.add(Position(1, number), 0, last_ms, tick_ms)
    assert all_of(delayed, last_ms - 1) == []
    assert [position.entry_id for position, _ in all_of(delayed, last_ms)] == [0, 1, 2]


def test_nothing_comes_while_the_clock_is_set_back_and_all_of_it_afterwards() -> None:
    delayed = DelayedMessages()
    for number in range(3):
        delayed.add(Position(1, number), 0, NOW_MS)
    assert len(all_of(delayed, NOW_MS + LONGEST_STEP_MS, 1)) == 1
    assert all_of(delayed, NOW_MS - MINUTE_MS) == []
    assert len(all_of(delayed, NOW_MS + LONGEST_STEP_MS)) == 2


def test_all_of_them_are_forgotten_at_once() -> None:
    delayed = DelayedMessages()
    for number in range(3):
        delayed.add(Position(1, number), 0, NOW_MS + number * MINUTE_MS)
    assert len(all_of(delayed, NOW_MS, 5)) == 1
    delayed.clear()
    assert (len(delayed), delayed.next_ms, all_of(delayed, NOW_MS + 10 * MINUTE_MS)) == (0, None, [])


def test_each_with_a_time_of_its_own_needs_less_than_100_bytes() -> None:
    """So a million need less than 100 MB."""
    delayed, count = DelayedMessages(), 20_000
    tracemalloc.start()
    try:
        for number in range(count):
            delayed.add(Position(5, number), number, NOW_MS + number * 1_000)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(delayed) == count
    assert size < 100 * count, f"{size / count:.0f} bytes each"
