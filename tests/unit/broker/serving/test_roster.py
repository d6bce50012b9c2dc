"""What a broker tells of its topics, and what others make of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.serving import roster
from broker.serving.roster import TOPICS_OF_EDIT, Roster, edits, traffic_of

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
    other.restore(known.snapshot())
    assert other.topics == known.topics
    assert other.snapshot() == known.snapshot()
