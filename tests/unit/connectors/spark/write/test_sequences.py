"""What a repeated task sends: each row once where the rows are the same, never fewer where they differ."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.spark.write import sequences
from connectors.spark.write.message import Outgoing
from connectors.spark.write.sequences import (
    BATCHES_MAX,
    ROWS_MAX,
    CheckpointSetBack,
    Group,
    Numbering,
    Place,
    State,
    java_hash,
    pack,
    partition_of,
    unpack,
)
from connectors.spark.write.spool import SpillFile, Spool
from magnetar_core.runtime.types import ConfigurationError


def row(value: int) -> Outgoing:
    return Outgoing(None, b"%d" % value, None, None, None)


class Broker:
    """A topic that de-duplicates by the first id of each entry."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.stored = -1
        self.under_way: list[Group] = []
        """Sent by an attempt that has ended, and not stored yet."""

    def store(self, group: Group) -> bool:
        if group.sequence_id <= self.stored:
            return False
        self.stored = group.sequence_id
        self.rows += [int(message.value or b"") for message in group.messages]
        return True

    def open(self, settled: int) -> int:
        """The last id, when *settled* of what is under way was stored; the rest is stored a moment later."""
        for group in self.under_way[:settled]:
            self.store(group)
        told = self.stored
        for group in self.under_way[settled:]:
            self.store(group)
        self.under_way = []
        return told


def attempt(broker: Broker, batch: int, values: Sequence[int], sent: int | None, settled: int) -> bool:
    """A task that dies when it has sent *sent* groups (None: it ends). Whether its rows were those of former attempts;
    what it sent last may be stored only when the next attempt has opened its producer."""
    numbering = Numbering(batch, held := Spool(SpillFile()), 3, 10_000)
    numbering.opened(broker.open(settled))
    left = len(values) + 1 if sent is None else sent
    for value in values:
        group = numbering.add(row(value))
        if not (value + settled) % 4:  # there is no room in memory
            held.spill()
            group = group or numbering.cut()
        while group is not None:
            if not left:
                return True
            left -= 1
            if numbering.state is State.SENDING:
                broker.under_way.append(group)
                break
            if broker.store(group):
                numbering.stored()
                break
            group = numbering.opened(broker.open(settled))
        if numbering.state is State.REPEATING:
            break
    else:
        last = numbering.ended()
        if last is not None and left:
            broker.under_way.append(last)
    if numbering.state is State.REPEATING:
        assert {one.value for one in held} <= {b"%d" % value for value in values}
        broker.open(len(broker.under_way))
        broker.rows += values  # by a producer without a name
        return False
    if sent is None:
        broker.open(len(broker.under_way))
    return True


deaths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=4)


@settings(max_examples=300)
@given(counts=st.lists(st.integers(0, 12), min_size=1, max_size=4), dies=st.lists(deaths, min_size=4, max_size=4))
def test_a_task_with_the_same_rows_leaves_each_once_and_in_order(
    counts: list[int], dies: list[list[tuple[int, int]]]
) -> None:
    broker, first = Broker(), 0
    for batch, (count, ends) in enumerate(zip(counts, dies, strict=False)):
        values = range(first, first + count)
        for sent, settled in ends:
            assert attempt(broker, batch, values, sent, settled)
        assert attempt(broker, batch, values, None, 0)
        first += count
    assert broker.rows == list(range(first))


@settings(max_examples=300)
@given(
    rows=st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=4),
    dies=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=4, max_size=4),
)
def test_a_task_with_other_rows_loses_none_of_them(rows: list[list[int]], dies: list[tuple[int, int]]) -> None:
    broker = Broker()
    for values, (sent, settled) in zip(rows[:-1], dies, strict=False):
        attempt(broker, 7, values, sent, settled)
    attempt(broker, 7, rows[-1], None, dies[-1][1])
    for value in set(rows[-1]):
        assert broker.rows.count(value) >= rows[-1].count(value)


def test_a_sequence_id_says_batch_row_and_checksum_and_rises_with_them() -> None:
    places = [Place(0, 0, 0), Place(0, 0, 9), Place(0, 1, 3), Place(1, 0, 0), Place(BATCHES_MAX - 1, ROWS_MAX - 1, 5)]
    ids = [pack(place) for place in places]
    assert [unpack(one) for one in ids] == places
    assert ids == sorted(ids)
    assert 0 < ids[0] < ids[-1] < 1 << 63
    assert unpack(-1) is None
    with pytest.raises(ConfigurationError, match=r"batch 134217727: .* new checkpoint"):
        pack(Place(BATCHES_MAX, 0, 0))


def test_a_checkpoint_that_was_set_back_is_refused() -> None:
    with pytest.raises(CheckpointSetBack, match=r"this is batch 3 .* batch 4"):
        Numbering(3, Spool(SpillFile()), 9, 9).opened(pack(Place(4, 0, 0)))


def test_each_part_of_a_message_counts_for_the_checksum() -> None:
    def first_id(message: Outgoing) -> int:
        numbering = Numbering(0, Spool(SpillFile()), 9, 10_000)
        numbering.opened(-1)
        probe = numbering.add(message)
        assert probe is not None
        return probe.sequence_id

    different = [
        Outgoing(None, b"v", "k", 1, {"a": "b"}), Outgoing(None, b"w", "k", 1, {"a": "b"}),
        Outgoing(None, b"v", "l", 1, {"a": "b"}), Outgoing(None, b"v", "k", 2, {"a": "b"}),
        Outgoing(None, b"v", "k", 1, {"a": "c"}), Outgoing(None, b"v", "k", 1, None),
        Outgoing(None, None, "k", 1, {"a": "b"}), Outgoing(None, b"", "k", 1, {"a": "b"}),
        Outgoing(None, b"vk", "", 1, {"a": "b"}),
    ]  # fmt: skip
    assert len({first_id(one) for one in different}) == len(different)
    again = Outgoing(None, b"v", "k", 1, {"x": "y", "a": "b"})
    assert first_id(again) == first_id(again._replace(properties={"a": "b", "x": "y"}))


def test_a_name_is_full_when_its_rows_cannot_be_numbered_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "ROWS_MAX", 2)
    numbering = Numbering(0, Spool(SpillFile()), 9, 10_000)
    numbering.opened(-1)
    numbering.add(row(1))
    numbering.stored()
    full = [numbering.is_full]
    last = numbering.add(row(2))
    full.append(numbering.is_full)
    assert full == [False, True]
    assert last is not None
    assert [message.value for message in last.messages] == [b"2"]


def test_a_group_has_the_id_of_its_last_row_and_ends_by_rows_or_by_bytes() -> None:
    numbering = Numbering(5, Spool(SpillFile()), 3, 100)
    numbering.opened(-1)
    groups = [numbering.add(row(0))]
    numbering.stored()
    groups += [numbering.add(row(number)) for number in range(1, 5)]
    groups += [numbering.add(row(5)._replace(value=b"x" * 100)), numbering.add(row(6)), numbering.ended()]
    sizes = [0 if group is None else len(group.messages) for group in groups]
    assert sizes == [1, 0, 0, 3, 0, 2, 0, 1]
    places = [unpack(group.sequence_id) for group in groups if group is not None]
    assert [(place.batch, place.row) for place in places if place is not None] == [(5, 0), (5, 3), (5, 5), (5, 6)]


def test_keys_have_the_partition_that_java_producers_give_them() -> None:
    assert [java_hash(text) for text in ("", "a", "order-17", "ü", "😀")] == [0, 97, 1234255109, 252, 1772899]
    assert java_hash("polygenelubricants") == 0, "the sign bit of -2^31 is left out"
    assert partition_of("a", 5, 4) == 97 % 4
    assert [partition_of(None, number, 2) for number in (0, 999, 1_000, 2_000)] == [0, 0, 1, 0]
    assert partition_of("", 1_000, 2) == 1


def test_where_there_is_one_partition_keys_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def java_hash_of(text: str) -> int:
        hashed.append(text)
        return 7

    monkeypatch.setattr(sequences, "java_hash", java_hash_of)
    assert [partition_of(key, 5_000, 1) for key in ("a", "b", None)] == [0, 0, 0]
    assert not hashed
    assert partition_of("a", 0, 2) == 1
    assert hashed == ["a"]


def test_a_group_that_is_cut_has_the_id_of_its_last_row() -> None:
    numbering = Numbering(5, Spool(SpillFile()), 100, 100_000)
    numbering.opened(-1)
    numbering.add(row(0))
    numbering.stored()
    assert numbering.cut() is None, "there is nothing to be sent"
    assert numbering.add(row(1)) is None
    assert numbering.open_bytes > 0
    group = numbering.cut()
    assert group is not None
    assert unpack(group.sequence_id) is not None
    assert (unpack(group.sequence_id) or Place(0, 0, 0)).row == 1
    assert (numbering.open_bytes, numbering.ended()) == (0, None)
