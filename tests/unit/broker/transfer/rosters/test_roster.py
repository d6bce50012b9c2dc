"""What a broker tells of its topics, and what others make of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transfer.rosters import roster
from broker.transfer.rosters.roster import (
    EDIT_BYTES,
    HOLDINGS_BYTES,
    TOPICS_OF_EDIT,
    Roster,
    edits,
    holding_edits,
    traffic_of,
)
from managed_ledger.ledgers.holdings import HeldCursor, Holdings
from managed_ledger.position import Position


def held(ledger_id: int, cursor: str = "s") -> Holdings:
    return Holdings(1, ledger_id, {cursor: HeldCursor(ledger_id + 1, Position(ledger_id, 5))})


NAMES = st.text("abc", min_size=1, max_size=3)
TOPICS = st.dictionaries(NAMES, st.integers(0, 30), max_size=12)


@given(st.lists(TOPICS, min_size=1, max_size=5), st.integers(1, 4))
def test_the_edits_bring_a_roster_to_what_is_served_now(states: list[dict[str, int]], topics_of_edit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roster, "TOPICS_OF_EDIT", topics_of_edit)
        follower = Roster()
        for number, now in enumerate(states):
            for edit in edits(follower.topics, now):
                follower.apply(edit, number)
            assert follower.topics.keys() == now.keys()
            assert all(abs(follower.topics[name] - traffic) <= 1 for name, traffic in now.items())
            assert list(edits(follower.topics, now)) == []


def test_an_edit_names_so_many_topics() -> None:
    now = {f"t{number}": 1 for number in range(TOPICS_OF_EDIT + 1)}
    made = list(edits({}, now))
    assert [len(json.loads(edit)["serves"]) for edit in made] == [TOPICS_OF_EDIT, 1]
    assert [len(json.loads(edit)["not"]) for edit in edits(now, {})] == [TOPICS_OF_EDIT, 1]


@pytest.mark.parametrize("edit", [b"", b"[]", b"{}", b'{"serves": 3, "not": []}', b'{"serves": {"a": "b"}, "not": []}'])
def test_what_is_no_edit_changes_nothing(edit: bytes) -> None:
    known = Roster()
    known.topics = {"t": 1}
    assert known.apply(edit, 0) == 1
    assert known.topics == {"t": 1}


def test_traffic_is_a_power_of_two_and_the_busiest_come_first() -> None:
    assert [traffic_of(rate) for rate in (0.0, 0.9, 1, 2, 3, 64, 127, 128)] == [0, 0, 1, 2, 2, 7, 7, 8]
    known = Roster()
    known.topics = {"b": 3, "a": 3, "quiet": 0, "busy": 9}
    assert known.by_traffic() == ["busy", "a", "b", "quiet"]


def test_a_snapshot_restores_the_same() -> None:
    known, other = Roster(), Roster()
    known.topics = {"b": 3, "a": 1}
    known.holdings = {"a": held(3)}
    other.restore(known.snapshot())
    assert other.topics == known.topics
    assert other.holdings == known.holdings
    assert other.snapshot() == known.snapshot()


def test_what_no_snapshot_made_is_refused() -> None:
    for state in (b"", b"[]", b'{"t": 3}'):
        with pytest.raises(ValueError, match=r"."):
            Roster().restore(state)


def test_a_topic_that_comes_is_told_with_its_holdings_and_goes_with_them() -> None:
    follower = Roster()
    now = {"a": 1, "b": 2}
    for edit in edits({}, now, {"a": held(7)}.get):
        follower.apply(edit, 0)
    assert follower.topics == now
    assert follower.holdings == {"a": held(7)}
    for edit in holding_edits(follower.holdings, {"a": held(7), "b": held(9)}):
        assert json.loads(edit) == {"serves": {}, "not": [], "holds": {"b": [1, 9, {"s": [10, 9, 5]}]}}
        follower.apply(edit, 0)
    assert follower.holdings == {"a": held(7), "b": held(9)}
    for edit in edits(follower.topics, {"b": 2}, {"b": held(9)}.get):
        follower.apply(edit, 0)
    assert follower.holdings == {"b": held(9)}
    assert list(holding_edits(follower.holdings, {"b": held(9)})) == []


def test_the_edits_of_brokers_that_know_no_holdings_are_read() -> None:
    follower = Roster()
    follower.topics, follower.holdings = {"a": 1}, {"a": held(7)}
    assert follower.apply(b'{"serves": {"b": 3}, "not": []}', 0) == 2
    assert follower.holdings == {"a": held(7)}


def test_brokers_that_know_no_holdings_read_what_they_know() -> None:
    """As they do it: both keys are there, the numbers are numbers."""
    (edit,) = edits({"gone": 1}, {"a": 1}, {"a": held(7)}.get)
    told = json.loads(edit)
    assert {str(name): int(traffic) for name, traffic in told["serves"].items()} == {"a": 1}
    assert [str(name) for name in told["not"]] == ["gone"]


@pytest.mark.parametrize("holds", ["3", '["a"]', '{"a": 3}', '{"a": [1, 2, {"s": [3]}]}', '{"b": [1, 2, {}]}', "{}"])
def test_holdings_that_are_none_leave_the_topics_and_what_was_known_as_they_are(holds: str) -> None:
    follower = Roster()
    follower.topics, follower.holdings = {"a": 1}, {"a": held(7)}
    assert follower.apply(f'{{"serves": {{"c": 2}}, "not": [], "holds": {holds}}}'.encode(), 0) == 2
    assert follower.topics == {"a": 1, "c": 2}
    assert follower.holdings == {"a": held(7)}


def test_an_edit_is_full_by_its_bytes_as_well() -> None:
    now = {f"{number}-{'x' * 2_000}": 1 for number in range(400)}
    made = list(edits({}, now))
    assert len(made) > 1
    assert all(len(edit) < EDIT_BYTES + 3_000 for edit in made)
    follower = Roster()
    for edit in made:
        follower.apply(edit, 0)
    assert follower.topics == now


def test_holdings_with_very_long_names_of_cursors_are_not_told() -> None:
    follower = Roster()
    for edit in edits({}, {"a": 1}, {"a": held(7, "x" * HOLDINGS_BYTES)}.get):
        follower.apply(edit, 0)
    assert follower.topics == {"a": 1}
    assert follower.holdings == {}
    assert list(holding_edits({}, {"a": held(7, "x" * HOLDINGS_BYTES)})) == []
