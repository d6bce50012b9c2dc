"""Offsets of a stream, and how far its next batch goes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.plan.planning import clip
from connectors.spark.ranges import Run
from connectors.spark.stream.offsets import Allowance, Backlog, Part, StreamOffset, admit, start_of
from magnetar_core.runtime.types import Corruption

TOPIC = "persistent://public/default/t"
A, B = Part(TOPIC, 0), Part(TOPIC, 1)


def test_an_offset_is_readable_and_says_the_same_after_a_checkpoint() -> None:
    offset = StreamOffset({Part(TOPIC, 10): (7, 0), Part(TOPIC, 2): (5, 3)}, {Part(TOPIC, 2): (5, 0)})
    told = json.dumps(offset.to_json())
    parts = '"2": "5:3", "10": "7:0"'
    assert told == f'{{"origin": {{"{TOPIC}": {{"2": "5:0"}}}}, "topics": {{"{TOPIC}": {{{parts}}}}}, "version": 1}}'
    assert StreamOffset.from_json(json.loads(told)) == offset


def test_equal_offsets_have_equal_texts_in_whatever_order_they_were_made() -> None:
    one = StreamOffset({A: (1, 2), B: (3, 4)}, {A: (0, 0), B: (0, 0)})
    other = StreamOffset({B: (3, 4), A: (1, 2)}, {B: (0, 0), A: (0, 0)})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_the_first_batch_begins_where_the_query_began_and_not_where_it_would_begin_now() -> None:
    began, now = {A: (5, 3)}, {A: (9, 9)}
    end = StreamOffset({A: (9, 5)}, began)
    assert start_of(StreamOffset(now, now, is_fresh=True), end).positions == began
    later = StreamOffset({A: (9, 5)}, began)
    assert start_of(later, StreamOffset({A: (10, 0)}, began)) == later


def test_a_partition_that_no_offset_names_is_read_from_its_first_entry() -> None:
    assert StreamOffset({A: (5, 3)}).next_position(B) == (0, 0)


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"version": 2, "topics": {}, "origin": {}},
        {"version": 1, "topics": {}},
        {"version": 1, "topics": {TOPIC: {"0": "5"}}, "origin": {}},
        {"version": 1, "topics": {TOPIC: {"0": "5:-1"}}, "origin": {}},
        {"version": 1, "topics": {TOPIC: {"x": "5:1"}}, "origin": {}},
        {"version": 1, "topics": {TOPIC: ["5:1"]}, "origin": {}},
        {"version": 1, "topics": {"a/b": {"0": "5:1"}}, "origin": {}},
    ],
)
def test_what_is_no_offset_is_named(damaged: dict[str, object]) -> None:
    with pytest.raises(Corruption, match="checkpoint"):
        StreamOffset.from_json(damaged)


def test_what_a_subscription_keeps_is_in_the_offset_where_there_is_one() -> None:
    offset = StreamOffset({A: (9, 5)}, {A: (0, 0)}, {A: (9, 4)})
    assert offset.to_json()["kept"] == {TOPIC: {str(A.number): "9:4"}}
    assert StreamOffset.from_json(offset.to_json()) == offset
    assert "kept" not in StreamOffset({A: (9, 5)}).to_json()
    with pytest.raises(Corruption, match="kept of an offset"):
        StreamOffset.from_json({**offset.to_json(), "kept": {TOPIC: {"0": "x"}}})


# ------------------------------------------------------------------------------------------ how far a batch goes

RUNS = (Run(5, 3, 9, 700), Run(6, 0, 99, 1_000))


def test_without_a_limit_everything_is_taken() -> None:
    assert admit({A: Backlog(RUNS, (6, 100))}, Allowance()) == {A: (6, 100)}


def test_a_limit_in_bytes_counts_with_the_average_of_each_ledger() -> None:
    assert admit({A: Backlog(RUNS, (6, 100))}, Allowance(size_bytes=300)) == {A: (5, 6)}
    assert admit({A: Backlog(RUNS, (6, 100))}, Allowance(size_bytes=750)) == {A: (6, 5)}
    assert admit({A: Backlog(RUNS, (6, 100))}, Allowance(size_bytes=1_700)) == {A: (6, 100)}


def test_a_limit_in_messages_counts_what_an_entry_holds() -> None:
    assert admit({A: Backlog(RUNS, (6, 100), 10.0)}, Allowance(messages=70)) == {A: (6, 0)}
    assert admit({A: Backlog(RUNS, (6, 100), 10.0)}, Allowance(messages=75)) == {A: (6, 0)}
    assert admit({A: Backlog(RUNS, (6, 100), 10.0)}, Allowance(messages=80)) == {A: (6, 1)}


def test_of_two_limits_the_nearer_one_counts() -> None:
    assert admit({A: Backlog(RUNS, (6, 100))}, Allowance(messages=2, size_bytes=10_000)) == {A: (5, 5)}
    assert admit({A: Backlog(RUNS, (6, 100))}, Allowance(messages=1_000, size_bytes=200)) == {A: (5, 5)}


def test_partitions_share_the_limit_by_what_waits_in_them() -> None:
    long, short = Backlog((Run(5, 0, 89, 900),), (5, 90)), Backlog((Run(6, 0, 9, 100),), (6, 10))
    assert admit({A: long, B: short}, Allowance(messages=10)) == {A: (5, 9), B: (6, 1)}


def test_however_small_the_limit_one_entry_is_taken_and_from_who_has_none_nothing() -> None:
    backlogs = {A: Backlog((Run(5, 7, 9, 3_000),), (5, 10)), B: Backlog((), (6, 4))}
    assert admit(backlogs, Allowance(size_bytes=1)) == {A: (5, 8), B: (6, 4)}


@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 1_000)), min_size=1, max_size=5),
    limit=st.integers(1, 2_000),
)
def test_batches_end_one_day_and_hold_each_entry_once(sizes: list[tuple[int, int]], limit: int) -> None:
    runs = [Run(10 + number, 0, entries - 1, size) for number, (entries, size) in enumerate(sizes)]
    end = runs[-1].ledger_id, runs[-1].last + 1
    start, taken = (0, 0), []
    for _ in range(sum(run.entries for run in runs)):
        left, _ = clip(runs, start, end)
        reached = admit({A: Backlog(left, end)}, Allowance(size_bytes=limit))[A]
        batch, _ = clip(runs, start, reached)
        taken += [(run.ledger_id, entry) for run in batch for entry in range(run.first, run.last + 1)]
        assert reached > start
        start = reached
        if reached == end:
            break
    assert taken == [(run.ledger_id, entry) for run in runs for entry in range(run.entries)]
