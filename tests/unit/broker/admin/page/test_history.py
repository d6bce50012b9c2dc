"""The last hour of a broker, for the plots of its page."""

from typing import Any

import pytest

from broker.admin.page import history
from broker.admin.page.history import STEP_MS, STEPS_KEPT, WHOLE, Counts, History, shown_hour

START = 1_000 * STEP_MS


def note(made: History, at_ms: int, **topics: Counts) -> None:
    looked = made.begin()
    for name, counts in topics.items():
        looked.add(name, "t/n", counts)
    made.end(looked, at_ms)


def line(made: History, name: str, member: str = "messages_in") -> list[float]:
    hour = made.hour(name)
    assert hour is not None
    found: list[float] = hour[member]
    return found


def test_a_step_has_the_rates_of_what_was_added_in_it() -> None:
    made = History(START)
    note(made, START + STEP_MS, a=Counts(300, 30, 600, 60, 5), b=Counts(0, 0, 0, 0, 0))
    note(made, START + 2 * STEP_MS, a=Counts(360, 30, 600, 60, 9), b=Counts(30, 0, 0, 0, 1))
    assert line(made, "a")[-2:] == [10.0, 2.0]
    assert line(made, "a", "messages_out")[-2:] == [1.0, 0.0]
    assert line(made, "a", "backlog")[-2:] == [5.0, 9.0]
    assert line(made, "t/n")[-2:] == line(made, WHOLE)[-2:] == [10.0, 3.0]
    assert line(made, WHOLE, "backlog")[-2:] == [5.0, 10.0]


def test_a_topic_that_was_opened_anew_began_again_at_nothing() -> None:
    made = History(START)
    note(made, START + STEP_MS, a=Counts(300, 0, 0, 0, 0))
    note(made, START + 2 * STEP_MS, a=Counts(60, 0, 0, 0, 0))
    assert line(made, "a")[-1] == 2.0


def test_steps_that_were_missed_have_the_rate_of_the_time_they_were_in() -> None:
    made = History(START)
    note(made, START + STEP_MS, a=Counts(30, 0, 0, 0, 0))
    note(made, START + 4 * STEP_MS, a=Counts(120, 0, 0, 0, 0))
    assert line(made, "a")[-5:] == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_only_what_did_something_within_the_hour_has_a_line() -> None:
    made = History(START)
    note(made, START + STEP_MS, busy=Counts(1, 0, 0, 0, 0), idle=Counts(0, 0, 0, 0, 0))
    assert made.hour("idle") is None
    assert made.hour("busy") is not None
    for step in range(2, STEPS_KEPT + 2):
        note(made, START + step * STEP_MS, busy=Counts(1, 0, 0, 0, 0))
    assert made.hour("busy") is None, "nothing went through for an hour"
    assert made.hour(WHOLE) is not None


def test_the_number_of_lines_is_limited_and_the_whole_counts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LINES_MAX", 3)
    made = History(START)
    note(made, START + STEP_MS, **{f"topic{number}": Counts(30, 0, 0, 0, 0) for number in range(10)})
    assert len(made) == 3
    assert line(made, WHOLE)[-1] == 10.0


def test_a_clock_that_was_set_back_or_far_ahead_does_no_harm() -> None:
    made = History(START)
    note(made, START + STEP_MS, a=Counts(30, 0, 0, 0, 0))
    note(made, START - 5 * STEP_MS, a=Counts(60, 0, 0, 0, 0))
    note(made, START - 4 * STEP_MS, a=Counts(90, 0, 0, 0, 0))
    assert line(made, "a")[-1] == 1.0
    note(made, START + 100_000 * STEP_MS, a=Counts(90, 0, 0, 0, 0))
    assert made.hour("a") is None
    note(made, START + 100_001 * STEP_MS, a=Counts(120, 0, 0, 0, 0))
    assert line(made, "a")[-1] == 1.0


def hour(last_step: int, value: float) -> dict[str, Any]:
    return {"last_step": last_step, **{name: [value] * STEPS_KEPT for name in Counts._fields}}


def test_the_hours_of_brokers_are_added_step_by_step() -> None:
    now_ms = START + 5
    last = START // STEP_MS - 1
    found = shown_hour([hour(last, 1.0), hour(last - 1, 2.0), hour(last - 50, 4.0)], now_ms)
    assert found is not None
    assert found["first_ms"] == (last - STEPS_KEPT + 1) * STEP_MS
    assert found["messages_in"][-1] == 3.0, "a step that a broker has not told of yet is as its last one"
    assert found["messages_in"][-60] == 7.0
    assert found["messages_in"][-50] == 3.0, "a broker that told nothing for long adds nothing"


def test_before_the_brokers_began_nothing_is_known_and_that_is_not_zero() -> None:
    made = History(START)
    note(made, START + STEP_MS, a=Counts(30, 0, 0, 0, 0))
    note(made, START + 2 * STEP_MS, a=Counts(90, 0, 0, 0, 0))
    told = made.hour(WHOLE)
    found = shown_hour([told], START + 2 * STEP_MS)
    assert found is not None
    assert found["messages_in"] == [None] * (STEPS_KEPT - 2) + [1.0, 2.0]
    last = START // STEP_MS + 1
    older = {**hour(last, 1.0), "first_step": last - 4}
    found = shown_hour([told, older], START + 2 * STEP_MS)
    assert found is not None
    assert found["messages_in"][-6:] == [None, 1.0, 1.0, 1.0, 2.0, 3.0]
    found = shown_hour([told, hour(last, 1.0)], START + 2 * STEP_MS)
    assert found is not None
    assert None not in found["messages_in"], "it does not say since when it knows"


def test_a_broker_whose_clock_is_ahead_is_added_at_the_right_steps() -> None:
    last = START // STEP_MS - 1
    ahead = {**hour(last + 2, 0.0), "messages_in": [float(number) for number in range(STEPS_KEPT)]}
    found = shown_hour([ahead], START)
    assert found is not None
    assert found["messages_in"][-1] == STEPS_KEPT - 3
    assert found["messages_in"][:3] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "told",
    [None, "text", {}, {"last_step": 1}, *({**hour(1, 1.0), "backlog": odd} for odd in (["x"] * STEPS_KEPT, [1]))],
)  # fmt: skip
def test_what_is_no_hour_is_left_out(told: object) -> None:
    assert shown_hour([told], START) is None
