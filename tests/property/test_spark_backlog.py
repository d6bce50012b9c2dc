"""The backlog of a subscription against the set of messages that were not acknowledged."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.plan.planning import TopicRange, clip, pieces, plan
from connectors.spark.plan.unconsumed import Acked
from connectors.spark.ranges import Run
from connectors.spark.task.entries import open_entry
from connectors.spark.task.rows import RowBuilder
from managed_ledger.cursors.cursor import CursorState
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import Position
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from tests.unit.connectors.spark.entries import TOPIC, batch, message, schema_of, single

COLUMNS = ("value", "__ledgerId", "__entryId", "__batchIndex")
LEDGERS = (3, 4, 9)


@st.composite
def topics(draw: st.DrawFn) -> dict[tuple[int, int], int]:
    """(ledger, entry) → messages in its batch; 0 for an entry that is one message."""
    found: dict[tuple[int, int], int] = {}
    for ledger_id in LEDGERS:
        sizes = draw(st.lists(st.sampled_from([0, 0, 1, 2, 5, 70]), max_size=6))
        found |= {(ledger_id, entry_id): size for entry_id, size in enumerate(sizes)}
    return found


def cursor_of(topic: dict[tuple[int, int], int]) -> CursorState:
    infos = []
    for ledger_id in LEDGERS:
        count = sum(1 for place in topic if place[0] == ledger_id)
        infos.append(ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, entries=count, size=10 * count))
    ledgers = LedgerList()
    ledgers.replace(infos)
    return CursorState(ledgers, Position(LEDGERS[0], -1))


def messages_in(topic: dict[tuple[int, int], int]) -> list[tuple[int, int, int]]:
    return [(*place, index) for place, size in sorted(topic.items()) for index in range(max(size, 1))]


def entry(place: tuple[int, int], size: int) -> bytes:
    values = [b"%d:%d:%d" % (*place, index) for index in range(max(size, 1))]
    return batch(*(message(value) for value in values)) if size else single(values[0])


def read(topic: dict[tuple[int, int], int], cursor: CursorState, gap: int, tasks: int) -> list[list[bytes]]:
    """As a job does it: the stored state, planned, each task's rows. Tasks come in any order."""
    runs = []
    for ledger_id in LEDGERS:
        count = sum(1 for place in topic if place[0] == ledger_id)
        if count:
            runs.append(Run(ledger_id, 0, count - 1, 10 * count))
    acked = Acked.from_state(cursor.ranges(), cursor.batches())
    at = cursor.mark_delete_position
    kept, before = clip(runs, (at.ledger_id, at.entry_id + 1), None)
    whole = TopicRange("t", -1, kept, before, acked)
    values: list[list[bytes]] = []
    for split in plan(pieces(whole, acked.left_of(kept), gap), min_partitions=tasks, max_partitions=100):

        def wants(ledger_id: int, entry_id: int, _: Any, of: Acked | None = split.acked) -> bool:
            return of is None or not of.has(ledger_id, entry_id)

        builder = RowBuilder(schema_of(("value",)), TOPIC, -1, None, None, wants, split.acked)
        for run in split.runs:
            for entry_id in range(run.first, run.last + 1):
                place = run.ledger_id, entry_id
                opened = open_entry(TOPIC, *place, entry(place, topic[place]), wants)
                if opened is not None:
                    builder.add(opened)
        if builder.row_count:
            values.append(next(builder.take()).column("value").to_pylist())
    return values


@given(topics(), st.data(), st.sampled_from([0, 15, 10_000]), st.integers(1, 4))
def test_the_rows_are_all_messages_but_those_that_were_acknowledged(
    topic: dict[tuple[int, int], int], data: Any, gap: int, tasks: int
) -> None:
    cursor = cursor_of(topic)
    everything = messages_in(topic)
    acked: set[tuple[int, int, int]] = set()
    steps: Sequence[Any] = data.draw(st.lists(st.sampled_from(everything), max_size=30)) if everything else ()
    if everything and data.draw(st.booleans()):
        place = data.draw(st.sampled_from(sorted(topic)))
        cursor.mark_delete(Position(*place))
        acked |= {one for one in everything if one[:2] <= place}
    for one in steps:
        ledger_id, entry_id, index = one
        position, size = Position(ledger_id, entry_id), topic[ledger_id, entry_id]
        acked.add(one)
        if size:
            words = [0] * ((size + 63) // 64)
            for other in range(size):
                if other != index:
                    words[other // 64] |= 1 << other % 64
            cursor.acknowledge_batch(position, words, size)
        else:
            cursor.delete([position])
    expected = [b"%d:%d:%d" % one for one in everything if one not in acked]
    found = read(topic, cursor, gap, tasks)
    assert sorted(value for rows in found for value in rows) == sorted(expected)
    for rows in found:
        assert rows == [value for value in expected if value in rows], "a task has its rows in the topic's order"
