"""What a subscription has not consumed, as its stored cursor says: in its node, or in a ledger that a broker writes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo

from connectors.spark.options.read import Kind, parse_options
from connectors.spark.plan.cursors import SubscriptionMissing
from connectors.spark.source import PushDownFiltersReader
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.runtime.types import ConfigurationError, MagnetarError
from managed_ledger.ack_ranges import AckRange
from managed_ledger.position import Position
from managed_ledger.records.paths import cursor_path
from managed_ledger.records.pulsar_records import position_info, put_state_into
from managed_ledger.records.records_pb2 import ManagedCursorInfo
from tests.unit.connectors.spark.entries import batch, message, single
from tests.unit.connectors.spark.task.test_rows import chunk
from tests.unit.connectors.spark.world import STEM, SparkWorld, in_order, numbered, reader_of, rows_of, spark_world

Batches = Sequence[tuple[Position, list[int]]]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SparkWorld]:
    async with spark_world(tmp_path) as made:
        yield made


async def put_cursor(
    world: SparkWorld,
    topic: str,
    name: str,
    mark_delete: tuple[int, int],
    ranges: Sequence[AckRange] = (),
    batches: Batches = (),
    *,
    in_ledger: bool = False,
) -> LedgerWriteHandle | None:
    """As brokers store it; the handle is that of the broker which goes on writing."""
    info = ManagedCursorInfo(
        cursorsLedgerId=-1, markDeleteLedgerId=mark_delete[0], markDeleteEntryId=mark_delete[1], lastActive=1
    )
    handle = None
    if in_ledger:
        older = position_info(Position(mark_delete[0], -1), (), (), ()).SerializeToString()
        newest = position_info(Position(*mark_delete), ranges, (), batches).SerializeToString()
        handle = await world.ledger([older, newest], closed=False)
        info.cursorsLedgerId, info.markDeleteEntryId = handle.ledger_id, -1
    else:
        put_state_into(info, ranges, (), batches)
    await world.store.put(cursor_path(f"{STEM}/{topic}", name), info.SerializeToString())
    return handle


@pytest.mark.parametrize("in_ledger", [False, True])
@pytest.mark.parametrize("option", ["backlogOf", "ackedBy"])
async def test_what_is_consumed_is_no_row(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch, in_ledger: bool, option: str
) -> None:
    monkeypatch.setattr("connectors.spark.plan.pruning.GAP", 0)
    one = await world.ledger(numbered(0, 20))
    words = [message(b"%d" % number) for number in range(100, 170)]
    two = await world.ledger([single(b"20"), batch(*words), single(b"22"), single(b"23")], closed=False)
    await world.topic("t", one, two)
    left = [-16, 0b100001]  # messages 0 to 3 are consumed, and 65 to 68
    handle = await put_cursor(
        world, "t", "a/b", (one.ledger_id, 4),
        [AckRange(one.ledger_id, 7, 7), AckRange(one.ledger_id, 10, 18), AckRange(two.ledger_id, 2, 2)],
        [(Position(two.ledger_id, 1), left)], in_ledger=in_ledger,
    )  # fmt: skip
    kept = [5, 6, 8, 9, 19, 20, *range(104, 165), 169, 23]
    assert await world.values("t", **{option: "a/b"}) == [b"%d" % number for number in kept]
    in_tasks = await world.values("t", **{option: "a/b"}, minPartitions="9")
    assert sorted(map(int, in_tasks)) == sorted(kept)
    assert not any(bookie.fenced for bookie in world.cluster.bookies.values()), "nothing is fenced"
    assert await two.add(single(b"24")) == 4
    if handle is not None:
        await handle.add(position_info(Position(two.ledger_id, 2), (), (), ()).SerializeToString())
        assert await world.values("t", **{option: "a/b"}) == [b"23", b"24"]


async def test_consumed_entries_are_not_fetched(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.spark.plan.pruning.GAP", 0)
    one, two, three = [await world.ledger(numbered(10 * number, 10)) for number in range(3)]
    await world.topic("t", one, two, three)
    await put_cursor(world, "t", "s", (one.ledger_id, 3), [AckRange(two.ledger_id, 0, 9)])

    def read() -> None:
        found = reader_of(world.options("t", backlogOf="s", columns="value"))
        for bookie in world.cluster.bookies.values():
            bookie.requests.clear()
        assert [row["value"] for row in rows_of(found)] == [*in_order(4, 6), *in_order(20, 10)]

    await asyncio.to_thread(read)
    asked = {request[2] for bookie in world.cluster.bookies.values() for request in bookie.requests}
    assert asked == {one.ledger_id, three.ledger_id}


async def test_the_place_of_a_message_in_chunks_is_that_of_its_last_chunk(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await world.ledger([chunk(0), single(b"a"), chunk(1), single(b"b"), chunk(2), single(b"c")])
    await world.topic("t", one)
    whole = b"part 0 part 1 part 2 "
    for gap in (0, 1 << 30):
        monkeypatch.setattr("connectors.spark.plan.pruning.GAP", gap)
        for ranges, expected in (
            ([(0, 0), (2, 2), (4, 4)], [b"a", b"b", b"c"]),
            ([(2, 2)], [b"a", b"b", whole, b"c"]),
            ([(0, 3)], [whole, b"c"]),
            ([(4, 4)], [b"a", b"b", b"c"]),
        ):
            acked = [AckRange(one.ledger_id, first, last) for first, last in ranges]
            await put_cursor(world, "t", "s", (one.ledger_id, -1), acked)
            assert await world.values("t", backlogOf="s") == expected, (gap, ranges)


async def test_partitions_have_cursors_of_their_own(world: SparkWorld) -> None:
    await world.partitions("t", 3)
    for number in range(2):
        handle = await world.ledger(numbered(10 * number, 10))
        await world.topic(f"t-partition-{number}", handle)
        await put_cursor(world, f"t-partition-{number}", "s", (handle.ledger_id, 7 + number))
    assert sorted(await world.values("t", backlogOf="s")) == [b"19", b"8", b"9"]


async def test_a_subscription_that_is_not_there_is_an_error_that_lists_those_that_are(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 3))
    await world.topic("t", handle)
    with pytest.raises(SubscriptionMissing, match=r"default/t has no subscription s; there is none"):
        await world.values("t", backlogOf="s")
    for name in ("x y", "b"):
        await put_cursor(world, "t", name, (handle.ledger_id, -1))
    with pytest.raises(SubscriptionMissing, match=r"default/t has no subscription s; there are b, x y"):
        await world.values("t", backlogOf="s")
    await world.partitions("p", 2)
    with pytest.raises(SubscriptionMissing, match=r"default/p-partition-0 has no subscription s"):
        await world.values("p", backlogOf="s")


async def test_a_cursor_whose_ledger_is_gone_is_named(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 3))
    await world.topic("t", handle)
    cursor = await put_cursor(world, "t", "s", (handle.ledger_id, 1), in_ledger=True)
    assert cursor is not None
    await world.client.delete_ledger(cursor.ledger_id)
    with pytest.raises(MagnetarError, match=r"what subscription s of .*default/t has consumed is gone"):
        await world.values("t", backlogOf="s")


async def test_other_bounds_hold_as_well(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 10))
    await world.topic("t", handle)
    await put_cursor(world, "t", "s", (handle.ledger_id, 2), [AckRange(handle.ledger_id, 5, 5)])

    def at(entry_id: int) -> str:
        return f'{{"t": {{"0": "{handle.ledger_id}:{entry_id}"}}}}'

    assert await world.values("t", backlogOf="s", startingOffsets=at(1), endingOffsets=at(7)) == [b"3", b"4", b"6"]
    assert await world.values("t", backlogOf="s", startingOffsets=at(5), endingOffsets=at(7)) == [b"6"]

    def filtered() -> list[bytes]:
        found = reader_of(world.options("t", backlogOf="s", pushDownFilters="true", columns="value,__entryId"))
        assert isinstance(found, PushDownFiltersReader)
        found.pushFilters([EqualTo(("__entryId",), 6)])
        return [row["value"] for row in rows_of(found)]

    assert await asyncio.to_thread(filtered) == [b"6"]


@pytest.mark.parametrize(
    ("options", "kind", "complaint"),
    [
        ({"backlogOf": ""}, Kind.BATCH, "backlogOf=: expected the name"),
        ({"backlogOf": "s"}, Kind.STREAM, "option backlogOf has no meaning for spark.readStream"),
        ({"backlogOf": "s", "compacted": "true"}, Kind.BATCH, "backlogOf and compacted cannot both be given"),
        ({"backlogOf": "s", "ackedBy": "t"}, Kind.BATCH, "backlogOf and ackedBy mean the same and differ"),
    ],
)
def test_the_option_is_checked(options: dict[str, str], kind: Kind, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        parse_options({"metadata.url": "zk:x:1", "topic": "t", **options}, kind)
