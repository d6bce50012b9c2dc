"""Planning and reading with real connections, without Spark."""

import asyncio
import gc
import json
import logging
import pickle
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import types as t
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.spark.plan.cluster import DataLoss, TopicMissing
from connectors.spark.source import MagnetarSource
from connectors.spark.task import reader
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import ledger_path as metadata_path
from magnetar_core.bookkeeper.wire.codec_v2 import BATCH_READ_ENTRY, V2Error
from magnetar_core.runtime.types import ConfigurationError, Corruption, MagnetarError
from managed_ledger.errors import OffloadedLedger, ShadowTopic
from managed_ledger.records.paths import ledger_path
from managed_ledger.schemas.compatibility import Schema, SchemaType
from tests.unit.connectors.spark.entries import ALL_METADATA, batch, message, single
from tests.unit.connectors.spark.task.test_rows import chunk
from tests.unit.connectors.spark.world import (
    STEM,
    SparkWorld,
    in_order,
    lag,
    numbered,
    reader_of,
    rows_of,
    spark_world,
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SparkWorld]:
    async with spark_world(tmp_path) as made:
        yield made


# ----------------------------------------------------------------------------------------- planning


async def test_ledgers_are_read_one_after_the_other(world: SparkWorld) -> None:
    await world.topic(
        "t", await world.ledger(numbered(0, 10)), await world.ledger([]), await world.ledger(numbered(10, 5))
    )
    assert await world.values("t") == in_order(0, 15)


async def test_the_last_message_of_an_open_ledger_is_not_missing(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 1), closed=False)
    for entry in numbered(1, 4):
        await handle.add(entry)
    await world.topic("t", handle)
    assert await world.values("t") == in_order(0, 5)
    assert await handle.add(single(b"the writer was not disturbed")) == 5
    assert not any(bookie.fenced for bookie in world.cluster.bookies.values())


async def test_an_open_ledger_without_entries_has_nothing_to_read(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger([], closed=False))
    assert (await world.reader("t")).partitions() == []


async def test_a_ledger_in_recovery_is_read_without_waiting_for_it(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 5), closed=False)
    versioned = await world.client.ledgers.read(handle.ledger_id)
    await world.client.ledgers.write(handle.ledger_id, versioned.metadata.in_recovery(), versioned.version)
    for bookie in world.cluster.bookies.values():
        bookie.fenced.add(handle.ledger_id)
    await world.topic("t", handle)
    assert await world.values("t") == in_order(0, 5)


async def test_an_entry_that_only_one_bookie_has_is_not_read(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 3), closed=False)
    for bookie_id in sorted(world.cluster.bookies)[1:]:
        del world.cluster.bookies[bookie_id].ledgers[handle.ledger_id][2]
    await world.topic("t", handle)
    assert await world.values("t") == in_order(0, 2)


@pytest.mark.parametrize("unregister", [True, False])
@pytest.mark.parametrize("dead", [0, 1])
async def test_the_last_acknowledged_entry_is_read_though_a_bookie_of_the_open_ledger_is_dead(
    world: SparkWorld, dead: int, unregister: bool
) -> None:
    """No LAC covers it, and only one of its two copies can be asked."""
    handle = await world.ledger(numbered(0, 3), closed=False, ensemble_size=2, write_quorum=2, ack_quorum=2)
    await handle.add(single(b"3"))
    await world.topic("t", handle)
    await world.cluster.kill(handle.metadata.last_segment.ensemble[dead], unregister=unregister)
    assert await world.values("t") == in_order(0, 4)
    assert not any(bookie.fenced for bookie in world.cluster.bookies.values())


async def test_an_end_that_nobody_knows_is_data_loss_and_names_the_ledger(
    world: SparkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await world.ledger(numbered(0, 3), closed=False, ensemble_size=2, write_quorum=2, ack_quorum=2)
    await world.topic("t", await world.ledger([single(b"before")]), handle)
    dead, failing = handle.metadata.last_segment.ensemble
    await world.cluster.kill(dead)
    world.cluster.bookies[failing].refuse = lambda opcode, ledger_id, entry_id: V2Error.EIO if entry_id == 2 else None
    with pytest.raises(DataLoss, match=rf"ledger {handle.ledger_id} of persistent://public/default/t answer to know"):
        await world.values("t")
    assert await world.values("t", failOnDataLoss="false") == [b"before", *in_order(0, 2)]
    assert f"ledger {handle.ledger_id} of persistent://public/default/t" in caplog.text
    await world.cluster.kill(failing)
    with pytest.raises(DataLoss, match=rf"too few bookies of ledger {handle.ledger_id} of .* answer"):
        await world.values("t")
    with pytest.raises(MagnetarError, match=f"ledger {handle.ledger_id}"):
        await world.values("t", endingOffsets=json.dumps({"t": {"0": f"{handle.ledger_id}:2"}}))
    assert await world.values("t", failOnDataLoss="false") == [b"before"]


async def test_what_is_written_after_planning_is_not_read(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 5), closed=False)
    await world.topic("t", handle)
    planned = await world.reader("t", columns="value")
    await handle.add(single(b"later"))
    await handle.close()
    assert [row["value"] for row in await asyncio.to_thread(rows_of, planned)] == in_order(0, 5)


async def test_partitions_that_nobody_used_yet_are_empty(world: SparkWorld) -> None:
    await world.partitions("t", 3)
    await world.topic("t-partition-1", await world.ledger(numbered(0, 2)))
    rows = await world.rows("t", columns="value,__partition,__topic")
    assert [(row["value"], row["__partition"]) for row in rows] == [(b"0", 1), (b"1", 1)]
    assert rows[0]["__topic"] == "persistent://public/default/t-partition-1"
    await world.partitions("empty", 2)
    assert await world.rows("empty") == []


async def test_one_partition_can_be_read_as_a_topic(world: SparkWorld) -> None:
    await world.partitions("t", 2)
    await world.topic("t-partition-1", await world.ledger(numbered(0, 2)))
    rows = await world.rows("t-partition-1", columns="__partition")
    assert rows == [{"__partition": 1}] * 2


async def test_a_topic_that_does_not_exist_is_named(world: SparkWorld) -> None:
    with pytest.raises(TopicMissing, match="topic persistent://public/default/nope does not exist in rocksdb:"):
        await world.reader("nope")


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_shadow_topic_is_not_taken_for_an_empty_one(
    world: SparkWorld, caplog: pytest.LogCaptureFixture, partitions: int
) -> None:
    """Apache's brokers make its record without ledgers: it shows those of another topic."""
    name = await world.shadow("s", "persistent://public/default/t", partitions)
    await world.topic("t", await world.ledger(numbered(0, 3)))
    with pytest.raises(ShadowTopic, match=rf"public/default/{name} has no ledgers of its own.*shadow topic of .*/t"):
        await world.values("s")
    pattern = {"metadata.url": world.url, "topicsPattern": "s|t", "columns": "value"}
    found = await asyncio.to_thread(lambda: rows_of(reader_of(pattern)))
    assert [row["value"] for row in found] == in_order(0, 3)
    assert f"public/default/{name} has no ledgers of its own" in caplog.text


async def test_metadata_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(MagnetarError, match="there are no metadata in"):
        await asyncio.to_thread(reader_of, {"metadata.url": f"rocksdb:{tmp_path / 'x'}", "topic": "t"})


async def test_offsets_choose_entries(world: SparkWorld, caplog: pytest.LogCaptureFixture) -> None:
    one, two = await world.ledger(numbered(0, 5)), await world.ledger(numbered(5, 5))
    await world.topic("t", one, two)

    def at(ledger_id: int, entry_id: int) -> str:
        return json.dumps({"t": {"0": f"{ledger_id}:{entry_id}"}})

    assert await world.values("t", startingOffsets=at(one.ledger_id, 3)) == in_order(3, 7)
    assert await world.values("t", endingOffsets=at(two.ledger_id, 1)) == in_order(0, 6)
    between = {"startingOffsets": at(one.ledger_id, 4), "endingOffsets": at(two.ledger_id, 2)}
    assert await world.values("t", **between) == in_order(4, 3)
    assert await world.values("t", startingOffsets=at(two.ledger_id, 9)) == []
    with pytest.raises(ConfigurationError, match=r"offsets for partition 1 of .*, which has 1"):
        await world.reader("t", startingOffsets='{"t": {"1": "0:0"}}')


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
async def test_a_position_in_a_ledger_that_the_topic_never_had_is_refused(world: SparkWorld, option: str) -> None:
    one, other, two = [await world.ledger(numbered(first, 3)) for first in (0, 90, 3)]
    await world.partitions("t", 2)
    await world.topic("t-partition-1", one, two)
    await world.topic("other", other)

    def at(ledger_id: int, entry_id: int) -> dict[str, str]:
        return {option: json.dumps({"t": {"1": f"{ledger_id}:{entry_id}"}})}

    for wrong in ((other.ledger_id, 1), (two.ledger_id + 1, 1), (two.ledger_id + 2, 0)):
        text = rf"{option}: ledger {wrong[0]} was never one of .*/t-partition-1, .*{one.ledger_id} to {two.ledger_id}"
        with pytest.raises(ConfigurationError, match=text):
            await world.reader("t", **at(*wrong))
    before, between, behind = (at(one.ledger_id, 3), at(two.ledger_id, 0), at(two.ledger_id + 1, 0))
    assert await world.values("t", **at(one.ledger_id, 99)) == await world.values("t", **between)
    assert await world.values("t", **before) == await world.values("t", **between)
    assert len(await world.values("t", **behind)) == (0 if option == "startingOffsets" else 6)
    await world.topic("t-partition-1", two)
    assert await world.values("t", **at(other.ledger_id, 1)) == await world.values("t", **between), "it was trimmed"


async def test_a_read_can_be_repeated_with_the_positions_that_were_logged(
    world: SparkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "connectors.spark")
    await world.partitions("t", 2)
    handle = await world.ledger(numbered(0, 5), closed=False)
    await world.topic("t-partition-0", handle)
    await world.reader("t")
    (text,) = (record.message for record in caplog.records if "endingOffsets" in record.message)
    await handle.add(single(b"later"))
    await world.topic("t-partition-1", await world.ledger(numbered(5, 1)))
    assert len(await world.values("t")) == 7
    assert await world.values("t", endingOffsets=text.partition(" set endingOffsets to ")[2]) == in_order(0, 5)


# ---------------------------------------------------------------------------------------- data loss


async def test_a_ledger_that_the_topic_lists_and_is_gone_is_data_loss(world: SparkWorld) -> None:
    await world.topic("t", 4711, await world.ledger(numbered(0, 2)))
    with pytest.raises(DataLoss, match="ledger 4711 of persistent://public/default/t is gone"):
        await world.reader("t")
    assert await world.values("t", failOnDataLoss="false") == in_order(0, 2)


@pytest.mark.parametrize("lenient", ["true", "false"])
async def test_a_ledger_in_tiered_storage_is_named_and_never_left_out(world: SparkWorld, lenient: str) -> None:
    one, two = await world.ledger(numbered(0, 2)), await world.ledger(numbered(2, 3))
    await world.topic("t", one, two)
    await world.moved_to_tiered_storage("t", one, 2)
    with pytest.raises(OffloadedLedger, match=f"ledger {one.ledger_id} is in tiered storage .*cold, object .* lost"):
        await world.reader("t", failOnDataLoss=lenient)
    behind = json.dumps({"t": {"0": f"{two.ledger_id}:0"}})
    assert await world.values("t", startingOffsets=behind) == in_order(2, 3)
    await world.moved_to_tiered_storage("t", two, 3)
    with pytest.raises(OffloadedLedger, match=f"ledger {two.ledger_id} is in tiered storage"):
        await world.reader("t", failOnDataLoss=lenient, startingOffsets=behind)


async def test_a_ledger_that_is_trimmed_after_planning_is_data_loss(world: SparkWorld) -> None:
    one, two = await world.ledger(numbered(0, 3)), await world.ledger(numbered(3, 3))
    await world.topic("t", one, two)
    strict = await world.reader("t", columns="value")
    lenient = await world.reader("t", columns="value", failOnDataLoss="false")
    await world.client.delete_ledger(one.ledger_id)
    await world.topic("t", two)
    with pytest.raises(DataLoss, match=f"default/t: entries 0 to 2 of ledger {one.ledger_id} are gone"):
        await asyncio.to_thread(rows_of, strict)
    assert [row["value"] for row in await asyncio.to_thread(rows_of, lenient)] == in_order(3, 3)
    assert await world.values("t") == in_order(3, 3)  # trimmed before planning is no loss


async def test_a_plan_beside_a_metadata_server_that_is_behind_has_what_was_acknowledged_before(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await world.ledger(numbered(0, 3))
    await world.topic("t", one)
    path = ledger_path(f"{STEM}/t")
    before = await world.store.get(path)
    await world.topic("t", one, await world.ledger(numbered(3, 3)))
    lag(monkeypatch, {path: before}, 1)
    assert await world.values("t") == in_order(0, 6)


@pytest.mark.parametrize("fail", ["true", "false"])
async def test_a_task_beside_a_metadata_server_that_is_behind_leaves_nothing_out(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch, fail: str
) -> None:
    one, two = await world.ledger(numbered(0, 3)), await world.ledger(numbered(3, 3))
    await world.topic("t", one, two)
    planned = await world.reader("t", columns="value", failOnDataLoss=fail)
    lag(monkeypatch, {metadata_path("/ledgers", two.ledger_id): None}, 2)
    assert [row["value"] for row in await asyncio.to_thread(rows_of, planned)] == in_order(0, 6)


async def test_entries_that_the_bookies_have_lost_are_data_loss(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 6))
    await world.topic("t", handle)
    for bookie in world.cluster.bookies.values():
        del bookie.ledgers[handle.ledger_id][4]
    with pytest.raises(DataLoss, match=f"entries 4 to 5 of ledger {handle.ledger_id} are gone"):
        await world.values("t")
    assert await world.values("t", failOnDataLoss="false") == in_order(0, 4)


# ------------------------------------------------------------------------------------------ reading


async def test_every_entry_is_read_once_whatever_the_number_of_tasks(world: SparkWorld) -> None:
    await world.partitions("t", 2)
    for partition in (0, 1):
        ledgers = [await world.ledger(numbered(1000 * partition + 100 * number, 100)) for number in range(3)]
        await world.topic(f"t-partition-{partition}", *ledgers)
    for options in ({}, {"minPartitions": "7"}, {"targetPartitionBytes": "1k"}, {"maxPartitions": "2"}):
        found = await world.reader("t", columns="value", **options)
        rows = await asyncio.to_thread(rows_of, found)
        assert sorted(int(row["value"]) for row in rows) == [*range(300), *range(1000, 1300)]
        if "minPartitions" in options:
            assert len(found.partitions()) == 7


async def test_entries_that_are_larger_than_their_average_are_fetched_all_the_same(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "FETCH_BYTES", 10_000)
    entries = numbered(0, 200) + numbered(200, 20, size=9_000) + numbered(220, 200)
    await world.topic("t", await world.ledger(entries))
    assert [value.strip() for value in await world.values("t")] == in_order(0, 420)


async def test_striped_ledgers_are_read(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger(numbered(0, 300), write_quorum=2))
    assert await world.values("t") == in_order(0, 300)


async def test_another_replica_is_asked_when_one_fails(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 50))
    await world.topic("t", handle)
    damaged = world.cluster.bookies["bookie-0"].ledgers[handle.ledger_id]
    for entry_id, data in damaged.items():
        damaged[entry_id] = data[:-1] + bytes([data[-1] ^ 1])
    await world.cluster.kill("bookie-1", unregister=False)
    assert await world.values("t") == in_order(0, 50)


async def test_a_damaged_entry_is_named(world: SparkWorld) -> None:
    wrong = bytearray(single(b"wrong"))
    wrong[-1] ^= 1
    handle = await world.ledger([*numbered(0, 3), bytes(wrong)])
    await world.topic("t", handle)
    place = f"default/t, entry {handle.ledger_id}:3: its checksum"
    with pytest.raises(Corruption, match=place):
        await world.values("t")


async def test_the_first_batch_is_small(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger(numbered(0, 3_000)))
    found = await world.reader("t", columns="value")

    def sizes() -> list[int]:
        return [part.num_rows for partition in found.partitions() for part in found.read(partition)]

    assert await asyncio.to_thread(sizes) == [500, 2_000, 500]


def tasks_of(connection: reader._Connection) -> set[str]:
    async def names() -> set[str]:
        await asyncio.sleep(0.05)
        return {str(task.get_coro()) for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    return connection.loop.run(names())


async def test_reading_ends_in_the_background_when_nobody_wants_more(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "FETCH_BYTES", 1_000)
    await world.topic("t", await world.ledger(numbered(0, 5_000)))
    found = await world.reader("t", columns="value")

    def limit() -> tuple[int, set[str]]:
        (partition,) = found.partitions()
        with closing(found.read(partition)) as batches:
            rows = next(batches).num_rows
        (connection,) = reader._connections.values()
        return rows, {name for name in tasks_of(connection) if "_pump" in name or "_read" in name}

    rows, left = await asyncio.to_thread(limit)
    assert rows == 500
    assert left == set()
    asked = sum(
        request[0] == BATCH_READ_ENTRY for bookie in world.cluster.bookies.values() for request in bookie.requests
    )
    assert asked < 100  # of some 250 that the whole would take
    assert len(await world.values("t")) == 5_000


async def test_connections_are_used_again_and_given_up_after_a_failure(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 5))
    await world.topic("t", handle)
    await world.values("t")
    (first,) = reader._connections.values()
    await world.values("t")
    assert list(reader._connections.values()) == [first]
    for bookie in world.cluster.bookies.values():
        bookie.refuse = lambda opcode, ledger_id, entry_id: 101
    with pytest.raises(MagnetarError, match="persistent://public/default/t: "):
        await world.values("t")
    assert not reader._connections
    assert not first.loop.is_alive
    for bookie in world.cluster.bookies.values():
        bookie.refuse = lambda opcode, ledger_id, entry_id: None
    assert await world.values("t") == in_order(0, 5)


async def test_a_child_after_a_fork_makes_connections_of_its_own(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.topic("t", await world.ledger(numbered(0, 5)))
    await world.values("t")
    (first,) = reader._connections.values()
    monkeypatch.setattr(first.loop, "_pid", -1)  # what a child finds: the object without its thread
    assert await world.values("t") == in_order(0, 5)
    (second,) = reader._connections.values()
    assert second is not first
    monkeypatch.undo()
    await asyncio.to_thread(first.close)


async def test_sparks_stand_in_for_no_partitions_has_no_rows(world: SparkWorld) -> None:
    await world.topic("t")
    found = await world.reader("t")
    assert found.partitions() == []
    assert list(found.read(InputPartition(None))) == []


# ------------------------------------------------------------------------------------------- chunks


async def test_chunks_on_both_sides_of_a_border_become_one_row(world: SparkWorld) -> None:
    entries = [single(b"a"), chunk(0), single(b"b"), chunk(1), single(b"c"), chunk(2), single(b"d")]
    expected = [b"a", b"b", b"c", b"part 0 part 1 part 2 ", b"d"]
    await world.topic("t", await world.ledger(entries[:4]), await world.ledger(entries[4:]))
    for tasks in range(1, 8):
        found = await world.reader("t", columns="value", minPartitions=str(tasks))
        assert len(found.partitions()) == tasks
        assert [row["value"] for row in await asyncio.to_thread(rows_of, found)] == expected


async def test_the_first_chunks_may_stand_before_the_starting_offset(world: SparkWorld) -> None:
    handle = await world.ledger([chunk(0), single(b"a"), chunk(1), chunk(2)])
    await world.topic("t", handle)
    start = json.dumps({"t": {"0": f"{handle.ledger_id}:2"}})
    assert await world.values("t", startingOffsets=start) == [b"part 0 part 1 part 2 "]


async def test_a_resend_behind_a_border_is_not_a_second_row(world: SparkWorld) -> None:
    entries = [chunk(number) for number in (0, 1, 2, 1, 2)]
    await world.topic("t", await world.ledger(entries))
    for tasks in range(1, 6):
        assert await world.values("t", minPartitions=str(tasks)) == [b"part 0 part 1 part 2 "]


async def test_a_message_whose_beginning_was_trimmed_is_left_out(
    world: SparkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.topic("t", await world.ledger([chunk(1), single(b"a"), chunk(2), single(b"b")]))
    assert await world.values("t") == [b"a", b"b"]
    assert "the first chunks of message p-1 do not exist (any more)" in caplog.text


async def test_how_far_a_task_looks_back_is_bounded(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LOOK_BACK_ENTRIES", 20)
    monkeypatch.setattr(reader, "LOOK_BACK_STEP", 10)
    await world.topic("t", await world.ledger([chunk(0, 2), *numbered(0, 50), chunk(1, 2), single(b"last")]))
    with pytest.raises(DataLoss, match=r"entry .*:51: the first chunks of message p-1 are not among the 20 entries"):
        await world.values("t", minPartitions="2")
    found = await world.values("t", minPartitions="2", failOnDataLoss="false")
    assert found == [*in_order(0, 50), b"last"]


# ------------------------------------------------------------------------------------ what travels


def travelled(something: Any) -> Any:
    """As Spark sends it."""
    return cloudpickle.loads(cloudpickle.dumps(something))  # type: ignore[no-untyped-call]


async def test_everything_that_travels_can_be_pickled_and_batches_have_exactly_the_schema(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger([batch(message(b"a"), message(b"b")), single(b"c")]))
    everything = ",".join(("value", *ALL_METADATA))

    def travel() -> None:
        for columns in ("", everything, "__entryId", "value"):
            source = MagnetarSource(world.options("t", columns=columns))
            schema = source.schema()
            source = travelled(source)
            found = travelled(source.reader(schema))
            (partition,) = travelled(found.partitions())
            assert len(pickle.dumps(partition)) < 1_000
            (made,) = found.read(partition)
            assert isinstance(made, pa.RecordBatch)
            assert made.schema.equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)
            assert made.num_rows == 3

    await asyncio.to_thread(travel)


DEFAULT = ["value", "__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties"]


async def test_a_schema_of_the_users_is_a_projection(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger([batch(message(b"a", partition_key="k"), message(b"b"))]))

    def names_and_rows(ddl: str) -> tuple[list[str], int]:
        found = MagnetarSource(world.options("t")).reader(_ddl(ddl))
        (partition,) = found.partitions()
        (made,) = found.read(partition)
        assert isinstance(made, pa.RecordBatch)
        return made.schema.names, made.num_rows

    source = MagnetarSource(world.options("t"))
    assert (await asyncio.to_thread(source.schema)).names == DEFAULT
    assert await asyncio.to_thread(names_and_rows, "__key binary, value binary") == (["__key", "value"], 2)
    assert await asyncio.to_thread(names_and_rows, "__messageProperties map<string,string>") == (
        ["__messageProperties"], 2
    )  # fmt: skip
    for ddl, complaint in (
        ("vallue binary", "column vallue does not exist; there are value, __key"),
        ("value string", "column value is binary, not string"),
        ("value binary not null", "column value may be null"),
        ("value binary, value binary", "column value is asked for more than once"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            await asyncio.to_thread(names_and_rows, ddl)
    with pytest.raises(ConfigurationError, match=r"vallue does not exist;.*; column kee does not exist") as caught:
        await asyncio.to_thread(names_and_rows, "vallue binary, kee binary")
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ConfigurationError, match="columns vallue do not exist"):
        await asyncio.to_thread(MagnetarSource(world.options("t", columns="vallue")).schema)


def _ddl(text: str) -> t.StructType:
    """`name type [not null], …`, without Spark's parser, which needs a session."""
    kinds: dict[str, t.DataType] = {
        "binary": t.BinaryType(),
        "string": t.StringType(),
        "map<string,string>": t.MapType(t.StringType(), t.StringType()),
    }
    fields = []
    for column in text.split(", "):
        name, kind, *constraint = column.split(" ")
        fields.append(t.StructField(name, kinds[kind], not constraint))
    return t.StructType(fields)


# ----------------------------------------------------------------------------------------- schemas


def record(*fields: tuple[str, str], name: str = "R") -> bytes:
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}
    ).encode()


async def test_the_value_columns_follow_the_schema_of_the_topic(world: SparkWorld) -> None:
    await world.partitions("avro", 1)
    await world.topic("avro-partition-0", await world.ledger([single(b"\x02\x02x")]))
    await world.schema("avro", Schema(SchemaType.AVRO, record(("a", "int"), ("value", "string"))))
    await world.topic("number", await world.ledger([single(b"\0\0\0\x05")]))
    await world.schema("number", Schema(SchemaType.INT32, b""))
    await world.topic("text", await world.ledger([single(b"t")]))
    await world.schema("text", Schema(SchemaType.STRING, b""))
    await world.topic("none", await world.ledger([single(b"n")]))

    async def first(topic: str, **options: str) -> dict[str, object]:
        (row,) = await world.rows(topic, **options)
        return {name: value for name, value in row.items() if not name.startswith("__")}

    assert await first("avro", valueFormat="avro") == await first("avro", valueFormat="auto") == {"a": 1, "value": "x"}
    assert await first("avro-partition-0", valueFormat="auto", columns="value") == {"value": "x"}
    assert await first("avro") == {"value": b"\x02\x02x"}
    assert await first("number", valueFormat="auto") == {"value": 5}
    assert await first("text", valueFormat="auto") == await first("text", valueFormat="string") == {"value": "t"}
    assert await first("none", valueFormat="auto") == {"value": b"n"}
    await world.topic("pair", await world.ledger([single(b"\0\0\0\1k\0\0\0\1v")]))
    halves = (("key.schema.type", "STRING"), ("value.schema.type", "BYTES"))
    await world.schema("pair", Schema(SchemaType.KEY_VALUE, bytes(8), halves))
    assert await first("pair", valueFormat="keyvalue") == await first("pair", valueFormat="auto")
    assert await first("pair", valueFormat="keyvalue") == {"key": "k", "value": b"v"}
    with pytest.raises(ConfigurationError, match=r"valueFormat=json, but the schema of .*/avro is AVRO"):
        await world.reader("avro", valueFormat="json")
    listed = r"different schemas: .*/avro: AVRO, version 0: a int, value string; .*/none: no schema; read them"
    with pytest.raises(ConfigurationError, match=listed):
        await asyncio.to_thread(reader_of, {"metadata.url": world.url, "topics": "avro,none", "valueFormat": "auto"})


async def test_several_topics_are_decoded_by_their_own_versions(world: SparkWorld) -> None:
    old, new = record(("a", "int")), record(("a", "long"), ("b", "int")).replace(b'"int"}', b'"int", "default": 9}')
    for topic, schemas in (("one", [new]), ("two", [old, new])):
        for definition in schemas:
            await world.schema(topic, Schema(SchemaType.AVRO, definition))
        value = b"\x02" if len(schemas) > 1 else b"\x02\x04"
        await world.topic(topic, await world.ledger([single(value, schema_version=bytes(8))]))
    options = {"metadata.url": world.url, "topics": "one,two", "valueFormat": "avro", "columns": "a,b"}
    rows = await asyncio.to_thread(lambda: rows_of(reader_of(options)))
    assert rows == [{"a": 1, "b": 2}, {"a": 1, "b": 9}]


async def test_a_broken_schema_does_not_matter_to_who_reads_bytes(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger(numbered(0, 1)))
    await world.store.put("/schemas/public/default/t", b"\xff\xff")
    assert await world.values("t") == [b"0"]
    with pytest.raises(Corruption):
        await world.reader("t", valueFormat="auto")


async def test_no_thread_or_task_is_left_of_a_reader_that_is_dropped(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger(numbered(0, 2_000)))
    found = await world.reader("t", columns="value")

    def drop() -> set[str]:
        (partition,) = found.partitions()
        batches = found.read(partition)
        next(iter(batches))
        del batches
        gc.collect()
        (connection,) = reader._connections.values()
        return {name for name in tasks_of(connection) if "_pump" in name or "_read" in name}

    assert await asyncio.to_thread(drop) == set()
