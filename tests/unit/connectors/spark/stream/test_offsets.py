"""Offsets of a stream."""

import json

import pytest

from connectors.spark.stream.offsets import Part, StreamOffset, start_of
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
