"""Reads of the messages of a time: none of them is left out, and little else is read."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.options.read import Kind, parse_options
from connectors.spark.plan.planning import clip
from connectors.spark.plan.times import bounds
from connectors.spark.ranges import Run, Times
from connectors.spark.task.entries import open_entry
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from tests.unit.connectors.spark.entries import single
from tests.unit.connectors.spark.stream.test_driver import everything, run
from tests.unit.connectors.spark.world import STEM, SparkWorld, spark_world

MINUTE = 60_000


@pytest.mark.parametrize("wrong", [10**15, 0, -1, -(10**15)])
def test_a_wrong_clock_leaves_no_message_of_another_out(wrong: int) -> None:
    """Ten ledgers of ten messages, one a second; each message in turn says something else."""
    runs = [Run(ledger_id, 0, 9, 100) for ledger_id in range(10)]
    closed = {ledger_id: (100 + 10 * ledger_id + 9) * 1_000 for ledger_id in range(10)}
    times = Times(131_000, 168_000, 2_000)
    for liar in range(100):

        async def time_of(ledger_id: int, entry_id: int, liar: int = liar) -> int | None:
            number = 10 * ledger_id + entry_id
            return wrong if number == liar else (100 + number) * 1_000

        kept, _ = clip(runs, *asyncio.run(bounds(runs, closed, times, time_of)))
        left = {10 * run.ledger_id + entry for run in kept for entry in range(run.first, run.last + 1)}
        assert left >= set(range(31, 68)), liar


@given(
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(-50, 50)), min_size=1, max_size=120),
    cuts=st.sets(st.integers(1, 119), max_size=5),
    since=st.integers(-200, 4_000),
    length=st.integers(0, 2_000),
    known=st.booleans(),
    unreadable=st.sets(st.integers(0, 119), max_size=4),
)
def test_no_message_of_the_time_is_left_out(
    steps: list[tuple[int, int]],
    cuts: set[int],
    since: int,
    length: int,
    known: bool,
    unreadable: set[int],
) -> None:
    stored, published, now = [], [], 1_000
    for pause, drift in steps:
        now += pause
        stored.append(now)
        published.append(now + drift)
    edges = [0, *sorted(cut for cut in cuts if cut < len(steps)), len(steps)]
    runs = [Run(10 * number, 0, end - begin - 1, 100) for number, (begin, end) in enumerate(pairwise(edges))]
    closed = {run.ledger_id: stored[end - 1] for run, end in zip(runs, edges[1:], strict=True)} if known else {}
    times = Times(since, since + length, 50)
    asked = 0

    async def time_of(ledger_id: int, entry_id: int) -> int | None:
        nonlocal asked
        asked += 1
        number = edges[ledger_id // 10] + entry_id
        return None if number in unreadable else published[number]

    start, end = asyncio.run(bounds(runs, closed, times, time_of))
    kept, _ = clip(runs, start, end)
    read = {edges[one.ledger_id // 10] + entry for one in kept for entry in range(one.first, one.last + 1)}
    assert {number for number, at in enumerate(published) if times.has(at)} <= read
    assert asked <= 2 * (len(steps).bit_length() + 1)


def test_ledgers_that_were_closed_before_are_not_looked_at() -> None:
    runs = [Run(number, 0, 999, 1_000) for number in range(1_000)]
    closed = {number: (number + 1) * MINUTE for number in range(999)}
    asked: set[int] = set()

    async def time_of(ledger_id: int, entry_id: int) -> int:
        asked.add(ledger_id)
        return ledger_id * MINUTE + entry_id * 60

    times = Times(998 * MINUTE, None, MINUTE // 10)
    start, end = asyncio.run(bounds(runs, closed, times, time_of))
    assert asked <= {997, 998, 999}
    assert start is not None
    assert start[0] == 997
    assert end is None


@pytest.mark.parametrize("minute", [0, 500, 990])
def test_ledgers_behind_the_time_are_not_looked_at(minute: int) -> None:
    runs = [Run(number, 0, 999, 1_000) for number in range(1_000)]
    closed = {number: (number + 1) * MINUTE for number in range(999)}
    asked: list[tuple[int, int]] = []

    async def time_of(ledger_id: int, entry_id: int) -> int:
        asked.append((ledger_id, entry_id))
        return ledger_id * MINUTE + entry_id * 60

    times = Times(minute * MINUTE, (minute + 1) * MINUTE, MINUTE // 10)
    start, end = asyncio.run(bounds(runs, closed, times, time_of))
    assert {ledger for ledger, _ in asked} <= {minute - 1, minute, minute + 1}
    assert len(asked) == len(set(asked)), "an entry is asked for its time once"
    assert len(asked) <= 12 + 11  # of three ledgers, and of the half in which the end is
    kept, _ = clip(runs, start, end)
    assert sum(run.entries for run in kept) <= 1_000 + 4 * 100 + 1


def test_a_ledger_that_was_closed_within_the_slack_behind_the_time_does_not_end_it() -> None:
    runs = [Run(0, 0, 0, 100), Run(1, 0, 0, 100)]
    published = {0: 900, 1: 960}  # the second was stored at 1,001, behind the first ledger's end

    async def time_of(ledger_id: int, entry_id: int) -> int:
        return published[ledger_id]

    _, end = asyncio.run(bounds(runs, {0: 1_000}, Times(None, 990, 50), time_of))
    assert end is None


# ------------------------------------------------------------------------------------------ whole reads


async def clock_topic(world: SparkWorld) -> None:
    """Three ledgers of ten messages, one a minute; the sixth of each was published two minutes late."""
    info = ManagedLedgerInfo()
    for number in range(3):
        minutes = [number * 10 + place for place in range(10)]
        times = [(minute + (2 if minute % 10 == 5 else 0)) * MINUTE for minute in minutes]
        entries = [single(b"%d" % minute, publish_time=at) for minute, at in zip(minutes, times, strict=True)]
        handle = await world.ledger(entries)
        info.ledgerInfo.add(ledgerId=handle.ledger_id, entries=10, size=1_000, timestamp=(number * 10 + 9) * MINUTE)
    await world.store.put(ledger_path(f"{STEM}/t"), info.SerializeToString())


async def test_a_read_has_the_messages_of_its_time_row_by_row(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await clock_topic(world)
        given = {"publishTimeSlack": "2m"}
        since = await world.values("t", startingTimestamp=str(16 * MINUTE), **given)
        # Published in minute 17, though it was stored before those of minute 16.
        assert sorted(map(int, since)) == [15, *range(16, 30)]
        until = await world.values("t", endingTimestamp=str(16 * MINUTE), **given)
        assert sorted(map(int, until)) == [*range(15)]
        between = {"startingTimestamp": "1970-01-01T00:12:00Z", "endingTimestamp": "1970-01-01T02:18:00+02:00"}
        assert sorted(map(int, await world.values("t", **between, **given))) == [12, 13, 14, 15, 16, 17]
        assert await world.values("t", startingTimestamp=str(1_000 * MINUTE), **given) == []


async def test_a_stream_begins_at_a_time(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await clock_topic(world)
        given = {"startingTimestamp": str(16 * MINUTE), "publishTimeSlack": "2m"}
        batches = await run(world, everything, {}, **given)
        assert sorted(int(value) for one in batches for value in one) == [15, *range(16, 30)]
        later: dict[str, Any] = {"startingTimestamp": str(1_000 * MINUTE), "publishTimeSlack": "2m"}
        assert await run(world, everything, {}, **later) == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"startingTimestamp": "yesterday"}, "expected milliseconds since 1970, or 2026"),
        ({"startingTimestamp": "100000", "startingOffsets": "earliest"}, "cannot both be given"),
        ({"endingTimestamp": "100000", "endingOffsets": "latest"}, "cannot both be given"),
        ({"startingTimestamp": "100000", "publishTimeSlack": "long"}, "expected a time such as 10m"),
        ({"publishTimeSlack": "10m"}, "publishTimeSlack belongs to"),
    ],
)
def test_times_that_cannot_be_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        parse_options({"metadata.url": "zk:x", "topic": "t", **given})


def test_a_time_without_a_zone_is_one_of_utc() -> None:
    found = parse_options({"metadata.url": "zk:x", "topic": "t", "startingTime": "1970-01-02"}).times
    assert found == Times(24 * 60 * MINUTE, None, 10 * MINUTE)


def test_a_stream_has_no_end_by_time() -> None:
    with pytest.raises(ConfigurationError, match="endingTimestamp has no meaning"):
        parse_options({"metadata.url": "zk:x", "topic": "t", "endingTimestamp": "100000"}, Kind.STREAM)


async def test_what_is_not_of_the_time_is_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def counted(*of: Any, **given: Any) -> Any:
        found = open_entry(*of, **given)
        if found is not None:
            opened.append(found.metadata.publish_time // MINUTE)
        return found

    monkeypatch.setattr("connectors.spark.task.reader.open_entry", counted)
    async with spark_world(tmp_path) as world:
        await clock_topic(world)
        given = {"startingTimestamp": str(12 * MINUTE), "endingTimestamp": str(15 * MINUTE), "publishTimeSlack": "2m"}
        assert sorted(map(int, await world.values("t", **given))) == [12, 13, 14]
    assert sorted(opened) == [12, 13, 14]
