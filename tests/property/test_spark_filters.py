"""What filters leave out, against the rows that pass them one by one."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import Filter

from connectors.spark.plan.filters import Pushed
from connectors.spark.plan.planning import TopicRange, clip, pieces
from connectors.spark.plan.times import bounds
from connectors.spark.ranges import Run
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Entry(NamedTuple):
    """An entry, and the key of each of its messages."""

    ledger_id: int
    entry_id: int
    publish_time: int
    keys: tuple[bytes | None, ...]

    @property
    def metadata(self) -> MessageMetadata:
        made = MessageMetadata(producer_name="p", sequence_id=0, publish_time=self.publish_time)
        if len(self.keys) > 1:
            made.num_messages_in_batch = len(self.keys)
        if self.keys[0] is not None:
            made.partition_key = self.keys[0].decode()
        return made

    def rows(self, topic: str, partition: int) -> list[dict[str, Any]]:
        made = []
        for place, key in enumerate(self.keys):
            position = MessageIdData(ledgerId=self.ledger_id, entryId=self.entry_id)
            if partition >= 0:
                position.partition = partition
            if len(self.keys) > 1:
                position.batch_index = place
            made.append(
                {
                    "__topic": topic, "__partition": partition, "__ledgerId": self.ledger_id,
                    "__entryId": self.entry_id, "__messageId": position.SerializeToString(),
                    "__publishTime": EPOCH + timedelta(milliseconds=self.publish_time), "__key": key,
                    "__batchIndex": place,
                }
            )  # fmt: skip
        return made


def passes(row: dict[str, Any], one: Any) -> bool | None:
    """SQL's verdict, where None is neither true nor false; written for clarity, row by row."""
    if isinstance(one, spark.Not):
        inner = passes(row, one.child)
        return None if inner is None else not inner
    value = row[one.attribute[0]]
    if isinstance(one, spark.IsNull | spark.IsNotNull):
        return (value is None) == isinstance(one, spark.IsNull)
    if isinstance(one, spark.EqualNullSafe):
        return bool(value == one.value)
    if value is None:
        return None
    if isinstance(one, spark.In):
        if value in [other for other in one.value if other is not None]:
            return True
        return None if None in one.value else False
    if one.value is None:
        return None
    found: bool = {
        spark.EqualTo: lambda: value == one.value,
        spark.GreaterThan: lambda: value > one.value,
        spark.GreaterThanOrEqual: lambda: value >= one.value,
        spark.LessThan: lambda: value < one.value,
        spark.LessThanOrEqual: lambda: value <= one.value,
        spark.StringStartsWith: lambda: value.startswith(one.value),
        spark.StringEndsWith: lambda: value.endswith(one.value),
        spark.StringContains: lambda: one.value in value,
    }[type(one)]()  # type: ignore[no-untyped-call]
    return found


KEYS = st.sampled_from([None, b"a", b"b", b"c"])
MOMENTS = st.integers(0, 130_000).map(lambda micros: EPOCH + timedelta(microseconds=micros))
IDS = st.builds(
    lambda ledger, entry: MessageIdData(ledgerId=ledger, entryId=entry).SerializeToString(),
    st.sampled_from([2, 5, 8]), st.integers(0, 11),
) | st.binary(max_size=4)  # fmt: skip
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "__topic": st.sampled_from(["t", "u", "v"]),
    "__partition": st.integers(-1, 2),
    "__ledgerId": st.sampled_from([2, 4, 5, 8]),
    "__entryId": st.integers(-1, 12),
    "__messageId": IDS,
    "__publishTime": MOMENTS,
    "__key": KEYS.filter(lambda key: key is not None),
    "__batchIndex": st.integers(0, 3),
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    path, values = (column,), VALUES[column]
    kinds: list[st.SearchStrategy[Filter]] = [
        st.builds(kind, st.just(path), values | st.none() if kind in (spark.EqualTo, spark.EqualNullSafe) else values)
        for kind in (spark.EqualTo, spark.EqualNullSafe, spark.GreaterThan, spark.GreaterThanOrEqual, spark.LessThan,
                     spark.LessThanOrEqual)
    ]  # fmt: skip
    kinds += [
        st.builds(spark.In, st.just(path), st.lists(values | st.none(), max_size=4)),
        st.sampled_from([spark.IsNull(path), spark.IsNotNull(path)]),
    ]
    if column == "__topic":
        kinds += [
            st.builds(kind, st.just(path), values)
            for kind in (spark.StringStartsWith, spark.StringEndsWith, spark.StringContains)
        ]
    found = draw(st.one_of(kinds))
    return spark.Not(found) if draw(st.integers(0, 4)) == 0 else found


@st.composite
def ledgers(draw: st.DrawFn) -> list[Entry]:
    made, now = [], 40
    for ledger_id in (2, 5, 8):
        for entry_id in range(draw(st.integers(1, 12))):
            now += draw(st.integers(0, 6))
            keys = draw(st.lists(KEYS, min_size=1, max_size=3))
            made.append(Entry(ledger_id, entry_id, now + draw(st.integers(-5, 5)), tuple(keys)))
    return made


def check(entries: list[Entry], given_filters: list[Filter], topic: str, partition: int, gap: int) -> None:
    """Compare a pruned read, each row of which is checked again, with a whole one."""
    by_position = {(entry.ledger_id, entry.entry_id): entry for entry in entries}
    runs = []
    for ledger_id in (2, 5, 8):
        count = sum(1 for entry in entries if entry.ledger_id == ledger_id)
        runs.append(Run(ledger_id, 0, count - 1, 10 * count))
    whole = TopicRange(topic, partition, tuple(runs))
    pushed = Pushed(given_filters)
    assert sorted(map(id, [*pushed.used, *pushed.unused])) == sorted(map(id, given_filters))

    async def time_of(ledger_id: int, entry_id: int) -> int:
        return by_position[ledger_id, entry_id].publish_time

    kept = pushed.kept(runs) if pushed.admits_topic(topic, partition) else []
    times = pushed.times(slack_ms=5)
    if times is not None and kept:
        kept = list(clip(kept, *asyncio.run(bounds(kept, {}, times, time_of)))[0])
    read = [
        by_position[run.ledger_id, entry_id]
        for piece in pieces(whole, kept, gap)
        for run in piece.runs
        for entry_id in range(run.first, run.last + 1)
    ]
    assert sorted(set(read)) == read, "each entry once, in order"
    found = [
        row
        for entry in read
        if pushed.admits(entry.ledger_id, entry.entry_id, entry.metadata)
        for row in entry.rows(topic, partition)
    ]

    def checked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if all(passes(row, one) is True for one in given_filters)]

    assert checked(found) == checked([row for entry in entries for row in entry.rows(topic, partition)])


@given(
    ledgers(),
    st.lists(filters(), max_size=4),
    st.sampled_from([("t", 0), ("u", 1), ("v", -1)]),
    st.sampled_from([0, 20, 1_000]),
)
def test_a_pruned_read_that_is_checked_again_has_exactly_the_rows_of_a_whole_one(
    entries: list[Entry], given_filters: list[Filter], place: tuple[str, int], gap: int
) -> None:
    check(entries, given_filters, *place, gap)


def test_no_row_at_the_border_of_a_filter_is_left_out() -> None:
    """Every comparison of every column with every value near one that is there, by itself and negated."""
    entries = [
        Entry(ledger_id, entry_id, 10 * ledger_id + entry_id, ((b"a", b"b", None)[entry_id % 3],) * (1 + entry_id % 2))
        for ledger_id in (2, 5, 8)
        for entry_id in range(4)
    ]
    values: dict[str, list[Any]] = {
        "__topic": ["s", "t", "u"],
        "__partition": [-1, 0, 1],
        "__ledgerId": list(range(1, 10)),
        "__entryId": list(range(-1, 5)),
        "__messageId": [MessageIdData(ledgerId=5, entryId=number).SerializeToString() for number in range(3)],
        "__publishTime": [EPOCH + timedelta(microseconds=500 * step) for step in range(90, 112)],
        "__key": [b"a", b"b"],
    }
    compare = (spark.EqualTo, spark.EqualNullSafe, spark.GreaterThan, spark.GreaterThanOrEqual, spark.LessThan,
               spark.LessThanOrEqual)  # fmt: skip
    for column, several in values.items():
        path = (column,)
        singles: list[Filter] = [spark.IsNull(path), spark.IsNotNull(path), spark.In(path, (*several[:2], None))]
        singles += [kind(path, value) for kind in compare for value in several]
        for one in singles:
            for given_filter in (one, spark.Not(one)):
                check(entries, [given_filter], "t", 0, 0)
