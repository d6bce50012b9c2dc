"""Reads with filters, from bookies, without Spark: the rows of a whole read that is filtered, and less is read."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from connectors.spark.options.read import Kind, parse_options
from connectors.spark.plan import planning
from connectors.spark.source import MagnetarReader, PushDownFiltersReader
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from tests.property.test_spark_filters import passes
from tests.unit.connectors.spark.entries import PUBLISHED_MS, batch, message, single
from tests.unit.connectors.spark.task.test_rows import chunk
from tests.unit.connectors.spark.world import STEM, SparkWorld, reader_of, rows_of, spark_world

COLUMNS = "value,__key,__topic,__messageId,__publishTime,__partition,__ledgerId,__entryId"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SparkWorld]:
    async with spark_world(tmp_path) as made:
        yield made


def at(minute: int) -> datetime:
    return datetime.fromtimestamp(PUBLISHED_MS // 1000 + 60 * minute, UTC)


def entry(number: int) -> bytes:
    """Every tenth is a batch of two keys; a message a minute."""
    time_ms = PUBLISHED_MS // 1000 * 1000 + 60_000 * number
    if number % 10 == 9:
        keys = ("first", f"key-{number % 4}")
        return batch(*(message(b"%d" % number, partition_key=key) for key in keys), partition_key=keys[0],
                     publish_time=time_ms)  # fmt: skip
    return single(b"%d" % number, partition_key=f"key-{number % 4}", publish_time=time_ms)


async def filled(world: SparkWorld) -> list[int]:
    """Topic `t` of two partitions with three ledgers of 20 entries each; the ids of the ledgers."""
    await world.partitions("t", 2)
    found = []
    for partition in range(2):
        info = ManagedLedgerInfo()
        for number in range(3):
            begin = 100 * partition + 20 * number
            handle = await world.ledger([entry(one) for one in range(begin, begin + 20)])
            closed = at(begin + 20)
            info.ledgerInfo.add(ledgerId=handle.ledger_id, timestamp=int(closed.timestamp() * 1000))
            found.append(handle.ledger_id)
        await world.store.put(ledger_path(f"{STEM}/t-partition-{partition}"), info.SerializeToString())
    return found


def pushed_rows(
    options: dict[str, str], filters: list[Filter], caplog: pytest.LogCaptureFixture
) -> tuple[list[dict[str, Any]], int]:
    """(what Spark would keep of the rows, how many rows it was given)."""
    found = reader_of(options)
    assert isinstance(found, PushDownFiltersReader)
    given_back = list(found.pushFilters(filters))
    assert [id(one) for one in given_back] == [id(one) for one in filters], "Spark wants the same objects back"
    caplog.clear()
    partitions = found.partitions()
    assert "filters that leave something out" in caplog.text, "said once, when the read is planned"
    travelled = cloudpickle.loads(cloudpickle.dumps(found))  # type: ignore[no-untyped-call]
    rows = [row for part in partitions for made in travelled.read(part) for row in made.to_pylist()]
    return [row for row in rows if all(passes(row, one) is True for one in filters)], len(rows)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["__ledgerId"], row["__entryId"], row["__messageId"]))


async def test_reads_with_filters_have_the_rows_of_a_whole_read_and_read_less(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("connectors.spark.plan.pruning.GAP", 0)
    caplog.set_level(logging.INFO, "connectors.spark")
    ledgers = await filled(world)
    whole = await world.rows("t", columns=COLUMNS)
    assert len(whole) == 132
    ids = [whole[number]["__messageId"] for number in (3, 10, 90)]
    time = ("__publishTime",)
    cases: list[tuple[list[Filter], int]] = [
        ([EqualTo(("__partition",), 1)], 66),
        ([EqualTo(("__topic",), "persistent://public/default/t-partition-0")], 66),
        ([EqualTo(("__ledgerId",), ledgers[4])], 22),
        ([In(("__ledgerId",), (ledgers[0], ledgers[5])), LessThan(("__entryId",), 5)], 10),
        ([EqualTo(("__messageId",), ids[0])], 1),
        ([In(("__messageId",), tuple(ids))], 4),  # the second is of a batch, and entries are read whole
        ([GreaterThanOrEqual(time, at(10)), LessThan(time, at(20))], 11),
        ([GreaterThan(time, at(50)), IsNotNull(time)], 76),
        ([LessThanOrEqual(time, at(3))], 4),
        ([EqualTo(time, at(7) + timedelta(microseconds=1))], 0),
        ([EqualTo(("__key",), b"key-2")], 66),  # 54 whole entries that match, and the 12 batches that may
        ([In(("__key",), (b"key-1", b"none"))], 54),
        ([IsNull(("__key",))], 24),
        ([Not(EqualTo(("__partition",), 0)), EqualTo(("__batchIndex",), -1)], 66),
        ([EqualTo(("value",), b"5")], 132),
    ]
    for filters, most in cases:
        options = world.options("t", columns=COLUMNS, pushDownFilters="true", publishTimeSlack="0s")
        if any("__batchIndex" in getattr(one, "attribute", ()) for one in filters):
            options["columns"] += ",__batchIndex"
            expected = await world.rows("t", columns=options["columns"])
        else:
            expected = whole
        expected = [row for row in expected if all(passes(row, one) is True for one in filters)]
        kept, sent = await asyncio.to_thread(pushed_rows, options, filters, caplog)

        assert in_order(kept) == in_order(expected), filters
        assert sent <= most, (filters, sent)


async def test_a_ledger_that_filters_leave_out_is_not_asked_for(world: SparkWorld) -> None:
    ledgers = await filled(world)

    def read() -> None:
        found = reader_of(world.options("t", columns="value", pushDownFilters="true"))
        assert isinstance(found, PushDownFiltersReader)
        for bookie in world.cluster.bookies.values():
            bookie.requests.clear()
        found.pushFilters([EqualTo(("__ledgerId",), ledgers[1])])
        assert len(rows_of(found)) == 22

    await asyncio.to_thread(read)
    asked = {request[2] for bookie in world.cluster.bookies.values() for request in bookie.requests}
    assert asked == {ledgers[1]}


async def test_a_message_in_chunks_is_found_by_the_id_of_its_last_chunk(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.spark.plan.pruning.GAP", 0)
    one = await world.ledger([chunk(0), single(b"a"), chunk(1)])
    two = await world.ledger([single(b"b"), chunk(2), single(b"c")])
    await world.topic("t", one, two)
    (whole,) = [row for row in await world.rows("t") if row["value"].startswith(b"part")]

    def read(*filters: Filter) -> list[bytes]:
        found = reader_of(world.options("t", pushDownFilters="true"))
        assert isinstance(found, PushDownFiltersReader)
        found.pushFilters(list(filters))
        return [row["value"] for row in rows_of(found)]

    assert await asyncio.to_thread(read, EqualTo(("__messageId",), whole["__messageId"])) == [whole["value"]]
    assert await asyncio.to_thread(read, EqualTo(("__entryId",), 0)) == [b"b"]
    assert await asyncio.to_thread(read, EqualTo(("__ledgerId",), two.ledger_id)) == [b"b", whole["value"], b"c"]


async def test_gaps_are_not_worth_more_tasks_than_the_options_allow(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.spark.plan.pruning.GAP", 1)
    await filled(world)

    def tasks(**more: str) -> int:
        found = reader_of(world.options("t", pushDownFilters="true", **more))
        assert isinstance(found, PushDownFiltersReader)
        found.pushFilters([In(("__entryId",), (0, 9, 19))])
        return len(found.partitions())

    assert await asyncio.to_thread(tasks) == 14, "entries 19 and 0 of the next ledger are neighbours"
    assert await asyncio.to_thread(lambda: tasks(maxPartitions="3")) <= 3
    assert planning.GAP > 1


async def test_without_the_option_the_reader_takes_no_filters(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger([single(b"a")]))
    assert type(await world.reader("t")) is MagnetarReader, "Spark refuses every query of one that takes them"
    assert type(await world.reader("t", pushDownFilters="false")) is MagnetarReader
    assert isinstance(await world.reader("t", pushDownFilters="true"), PushDownFiltersReader)


async def test_a_pyspark_that_pushes_no_filters_is_told(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.topic("t", await world.ledger([single(b"a")]))
    monkeypatch.delattr(DataSourceReader, "pushFilters")
    with pytest.raises(ConfigurationError, match=r"pushDownFilters needs PySpark 4\.1 or later"):
        await world.reader("t", pushDownFilters="true")


@pytest.mark.parametrize(
    ("options", "kind", "complaint"),
    [
        ({"pushDownFilters": "yes"}, Kind.BATCH, "pushDownFilters=yes: expected true or false"),
        ({"pushDownFilters": "true"}, Kind.STREAM, "option pushDownFilters has no meaning for spark.readStream"),
        ({"publishTimeSlack": "1m"}, Kind.BATCH, "publishTimeSlack belongs to .* and pushDownFilters"),
    ],
)
def test_the_option_is_checked(options: dict[str, str], kind: Kind, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        parse_options({"metadata.url": "zk:x:1", "topic": "t", **options}, kind)
    given = {"metadata.url": "zk:x:1", "topic": "t", "pushDownFilters": "true", "publishTimeSlack": "1m"}
    assert parse_options(given).slack_ms == 60_000
