"""How many entries are within a limit, step by step."""

from collections.abc import Sequence
from itertools import accumulate

import pytest

from connectors.spark.ranges import Run
from connectors.spark.stream.measures import (
    REQUEST_ENTRIES,
    Backlog,
    Head,
    Scale,
    Search,
    Walk,
    scale_of_bytes,
    scale_of_messages,
    shares,
)

ENTRIES = 1_000


def head(messages: int = 1, *, size: int = 10, length: int = 0, index: int | None = None) -> Head:
    return Head(size, length, messages, index, 0)


def backlog_of(count: int, ledger_id: int = 5) -> Backlog:
    return Backlog([Run(ledger_id, 0, count - 1, 10 * count)], (ledger_id, count))


def found_by(counts: Sequence[int], room: int) -> tuple[int, int]:
    """(how many entries a search finds to be within the room, how many it looks at)."""
    up_to = list(accumulate(counts))
    scale = Scale([0], {len(counts) - 1: up_to[-1]}, True)
    search, looks = Search(scale, room), 0
    while (number := search.wants) is not None:
        search.on_value(number, up_to[number])
        looks += 1
    assert not search.is_lost
    return search.fitting, looks


@pytest.mark.parametrize(
    "counts",
    [[1] * ENTRIES, [1] * 990 + [1_000] * 10, [1_000] * 10 + [1] * 990, [1, 1_000] * 500, [10**6] + [1] * 999],
    ids=["same", "large-last", "large-first", "mixed", "one"],
)
def test_a_search_finds_what_is_within_the_room_and_looks_at_few(counts: list[int]) -> None:
    up_to = list(accumulate(counts))
    for room in (1, 2, 7, 500, 990, 1_000, 2_000, 9_999, up_to[-1] - 1, up_to[-1], up_to[-1] + 1):
        fitting, looks = found_by(counts, room)
        assert fitting == max(sum(1 for one in up_to if one <= room), 1)
        assert looks <= 2 * ENTRIES.bit_length()
    assert found_by(counts, up_to[-1])[1] == 0


@pytest.mark.parametrize("value", [None, 4, 1_001])
def test_numbers_that_do_not_grow_with_the_entries_are_not_believed(value: int | None) -> None:
    search = Search(Scale([0], {99: 1_000}, True), 500)
    assert search.wants == 49
    search.on_value(49, value)
    assert search.is_lost
    assert search.wants is None


def test_numbers_of_messages_need_the_first_and_the_last_entry() -> None:
    assert scale_of_messages(backlog_of(3), head(10, index=109), head(5, index=120)) == Scale(
        [-99], {0: 10, 2: 21}, True
    )
    assert scale_of_messages(backlog_of(3), head(10), head(5, index=120)) is None
    assert scale_of_messages(backlog_of(3), head(10, index=109), None) is None
    assert scale_of_messages(backlog_of(30), head(10, index=109), head(5, index=120)) is None, "fewer than entries"


def test_bytes_of_parts_of_ledgers_are_those_between_their_entries() -> None:
    runs = [Run(5, 3, 9, 1), Run(6, 0, 99, 4_000), Run(8, 0, 4, 1)]
    backlog = Backlog(runs, (8, 5))
    scale = scale_of_bytes(backlog, head(length=300), [head(length=1_000), head(length=77)])
    assert scale == Scale([-300, 700, 4_700], {6: 700, 106: 4_700, 111: 4_777}, False)
    assert scale.up_to(1, head(length=40)) == 740
    assert scale_of_bytes(backlog, None, [head(length=1_000), head(length=77)]) is None
    assert scale_of_bytes(backlog, head(length=300), [head(length=1_000), None]) is None


def test_partitions_share_a_limit_by_what_waits_in_them() -> None:
    assert shares(10, [90, 10]) == [9, 1]
    assert shares(1_000, [90, 10]) == [900, 100]
    assert shares(10, [0, 0]) == [0, 0]


def walked(walk: Walk, heads: Sequence[Head]) -> list[tuple[int, int]]:
    """What it wanted."""
    asked = []
    while (wanted := walk.wants) is not None:
        first, count = wanted
        asked.append(wanted)
        walk.on_heads(heads[first : first + count])
    return asked


def test_a_walk_asks_for_as_many_entries_as_there_may_be_within_the_room() -> None:
    walk = Walk(backlog_of(100), 40, 10.0, counts_messages=True)
    assert walked(walk, [head(10)] * 100) == [(0, 5)]
    assert walk.fitting == 4
    walk = Walk(backlog_of(100), 40, 1.0, counts_messages=True)
    assert walked(walk, [head(30), *[head(1)] * 99]) == [(0, 41)]
    assert walk.fitting == 11
    walk = Walk(backlog_of(100), 40, 30.0, counts_messages=True)
    assert walked(walk, [head(1)] * 100) == [(0, 2), (2, 39)]
    assert walk.fitting == 40


def test_a_walk_takes_an_entry_however_large_it_is() -> None:
    walk = Walk(backlog_of(100), 40, 1.0, counts_messages=True)
    walked(walk, [head(1_000)] * 100)
    assert walk.fitting == 1


def test_a_walk_ends_where_it_has_looked_at_so_much() -> None:
    walk = Walk(backlog_of(1_000), 900, 1.0, counts_messages=True, walked_entries=70)
    assert walked(walk, [head()] * 1_000) == [(0, 70)]
    assert walk.fitting == 70
    ledgers = Backlog([Run(number, 0, 0, 10) for number in range(9)], (8, 1))
    walk = Walk(ledgers, 900, 1.0, counts_messages=True, walked_entries=3 * REQUEST_ENTRIES)
    assert walked(walk, [head()] * 9) == [(0, 1), (1, 1), (2, 1)], "where ledgers have few entries, requests count"
    walk = Walk(backlog_of(1_000), 900, 100.0, counts_messages=True, walked_bytes=50)
    walked(walk, [head()] * 1_000)
    assert walk.fitting == 10, "an answer is counted whole"


def test_an_entry_that_nobody_gives_ends_a_walk_and_is_taken_with_its_ledger_if_it_is_the_first() -> None:
    runs = [Run(5, 0, 9, 100), Run(6, 0, 99, 1_000)]
    walk = Walk(Backlog(runs, (6, 100)), 40, 2.0, counts_messages=True)
    walk.on_heads([head(3)] * 4)
    walk.on_heads([])
    assert walk.fitting == 4
    for room, fitting in ((1_000, 10), (8, 4), (1, 1)):
        walk = Walk(Backlog(runs, (6, 100)), room, 2.0, counts_messages=True)
        walk.on_heads([])
        assert walk.fitting == fitting
        assert walk.wants is None


def test_the_first_entries_of_a_backlog() -> None:
    runs = [Run(5, 3, 9, 700), Run(6, 0, 99, 1_000)]
    backlog = Backlog(runs, (6, 100))
    assert backlog.place(6) == (0, 5, 9)
    assert backlog.place(7) == (1, 6, 0)
    assert backlog.first_entries(3) == Backlog([Run(5, 3, 5, 300)], (5, 6))
    assert backlog.first_entries(7) == Backlog(runs[:1], (6, 0))
    assert backlog.first_entries(8) == Backlog([runs[0], Run(6, 0, 0, 10)], (6, 1))
    assert backlog.first_entries(107) is backlog
