"""The topics that a broker has open, by name and by the topic that a partition belongs to."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.serving.open_topics import OpenTopics
from broker.topic.topic import Topic
from magnetar_core.topics.topic_name import TopicName

BASES = [TopicName.parse(f"persistent://public/default/{name}") for name in "ab"]
NAMES = [*BASES, *(base.with_partition(number) for base in BASES for number in range(3))]


def topic(number: int) -> Topic:
    return cast(Topic, ("topic", number))


@given(st.lists(st.tuples(st.sampled_from(["set", "del", "pop"]), st.integers(0, len(NAMES) - 1)), max_size=40))
def test_partitions_are_found_by_their_topic_whatever_was_opened_and_closed(steps: list[tuple[str, int]]) -> None:
    opened, plain = OpenTopics(), dict[TopicName, Topic]()
    for number, (what, at) in enumerate(steps):
        name, before, was_there = NAMES[at], opened.changes, NAMES[at] in plain
        if what == "set":
            opened[name] = plain[name] = topic(number)
        elif what == "pop":
            assert opened.pop(name, None) == plain.pop(name, None)
        elif name in plain:
            del opened[name], plain[name]
        assert opened == plain
        assert (opened.changes > before) is (what == "set" or was_there)
        for base in BASES:
            expected = {one for name, one in plain.items() if name.base == base}
            assert set(opened.of_base(base)) == expected


def test_what_is_not_there_cannot_be_removed() -> None:
    opened = OpenTopics()
    with pytest.raises(KeyError):
        del opened[NAMES[0]]
    assert opened.pop(NAMES[0]) is None
    assert opened.changes == 0
