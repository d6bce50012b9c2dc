"""A streaming query as Spark runs it: what it is told of topics that grow, and what its batches hold."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from connectors.spark.bookie_access import NotLetIn
from connectors.spark.options.read import Kind, ReadOptions, parse_options
from connectors.spark.plan import cluster
from connectors.spark.plan.cluster import DataLoss, TopicMissing
from connectors.spark.source import MagnetarSource
from connectors.spark.stream import driver as stream
from connectors.spark.stream import follower as follower_of_queries
from connectors.spark.stream.driver import MagnetarStreamReader, NewSchema
from connectors.spark.stream.follower import SETTLED_S, Follower
from connectors.spark.stream.offsets import Part
from connectors.spark.task.entries import BadEntry
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import ledger_path as metadata_path
from magnetar_core.bookkeeper.metadata.stores.store import Node
from magnetar_core.bookkeeper.wire.codec_v2 import V2Error
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import ConfigurationError, Corruption
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import OffloadedLedger, ShadowTopic
from managed_ledger.records.paths import cursor_path, ledger_path
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.registry import ROOT as SCHEMAS
from managed_ledger.schemas.stored import version_bytes
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually
from tests.unit.connectors.spark.entries import single
from tests.unit.connectors.spark.world import STEM, SparkWorld, in_order, lag, numbered, reader_of, rows_of, spark_world

TOPIC = "persistent://public/default/t"
HERE = Part(TOPIC, 0)
SOON_S = SETTLED_S / 10


def follower(world: SparkWorld, **more: str) -> Follower:
    given = {"metadata.url": world.url, **more}
    if "topicsPattern" not in given:
        given.setdefault("topic", "t")
    return Follower(parse_options(given, Kind.STREAM), world.store, world.client, LoopClock())


async def grow(handle: LedgerWriteHandle, entries: list[bytes]) -> None:
    first = handle.append(entries)
    await handle.wait_for(first + len(entries) - 1)


# ------------------------------------------------------------------------------------------ what is known of topics


async def test_the_last_entry_is_seen_though_nothing_follows_it(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 3), closed=False)
        await world.topic("t", head)
        found = follower(world)
        await found.look_settled()
        assert found.ends() == {HERE: (head.ledger_id, 3)}
        await grow(head, numbered(3, 1))
        await found.look_settled()
        assert found.ends() == {HERE: (head.ledger_id, 4)}
        found.close()


@pytest.mark.parametrize("lenient", ["true", "false"])
async def test_a_ledger_in_tiered_storage_ends_the_query_that_comes_to_it(tmp_path: Path, lenient: str) -> None:
    async with spark_world(tmp_path) as world:
        one, head = await world.ledger(numbered(0, 3)), await world.ledger(numbered(3, 3), closed=False)
        await world.topic("t", one, head)
        await world.moved_to_tiered_storage("t", one, 3)
        query = follower(world, failOnDataLoss=lenient)
        await query.look_settled()
        assert query.begins() == {HERE: (one.ledger_id, 0)}
        with pytest.raises(OffloadedLedger, match=f"ledger {one.ledger_id} is in tiered storage"):
            query.range(HERE, (one.ledger_id, 0), (head.ledger_id, 3))
        assert query.range(HERE, (head.ledger_id, 0), (head.ledger_id, 3)).entries == 3
        query.close()


async def test_an_entry_that_is_not_confirmed_counts_when_it_has_been_held_for_a_while(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        head = await world.ledger([], closed=False)
        for number in range(3):
            await grow(head, numbered(number, 1))
        await world.topic("t", head)
        found = follower(world)
        await found.look()
        assert found.ends() == {HERE: (head.ledger_id, 2)}, "the third one is not confirmed by a later one"
        await asyncio.sleep(2 * SETTLED_S)
        await found.look()
        assert found.ends() == {HERE: (head.ledger_id, 3)}
        found.close()


async def test_an_entry_that_came_while_a_slow_look_was_under_way_has_not_been_held_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spark_world(tmp_path) as world:
        head = await world.ledger([], closed=False)
        await world.topic("t", head)
        clock = ManualClock()
        found = Follower(parse_options(world.options("t"), Kind.STREAM), world.store, world.client, clock)
        ask = LedgerReadHandle.last_recoverable_entry

        async def slowly(handle: LedgerReadHandle, *, is_certain: bool) -> int:
            clock.advance(2 * SETTLED_S)
            await grow(head, numbered(0, 1))
            return await ask(handle, is_certain=is_certain)

        monkeypatch.setattr(LedgerReadHandle, "last_recoverable_entry", slowly)
        await found.look()
        monkeypatch.undo()
        await found.look()
        assert found.ends() == {HERE: (head.ledger_id, 0)}
        clock.advance(2 * SETTLED_S)
        await found.look()
        assert found.ends() == {HERE: (head.ledger_id, 1)}
        found.close()


async def test_an_entry_that_one_bookie_holds_does_not_count_while_others_are_silent(tmp_path: Path) -> None:
    """Nobody has acknowledged it: a recovery may still find it denied."""
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 2), closed=False, ensemble_size=2, write_quorum=2)
        await world.topic("t", head)
        holder, other = head.metadata.last_segment.ensemble
        for spare in sorted(world.cluster.bookies.keys() - {holder, other}):
            await world.cluster.kill(spare)
        world.cluster.bookies[other].silent = True
        head.append(numbered(2, 1))
        await eventually(lambda: 2 in world.cluster.bookies[holder].ledgers[head.ledger_id])
        await world.cluster.kill(other)
        found = follower(world)
        await found.look_settled()
        assert found.ends() == {HERE: (head.ledger_id, 2)}, "behind what the last entry that came says is confirmed"
        found.close()


async def test_an_entry_that_is_held_no_more_does_not_count_however_long_ago_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookies have lost their power, and what they had not written yet."""
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 5), closed=False)
        await world.topic("t", head)
        clock = ManualClock()
        found = Follower(parse_options(world.options("t"), Kind.STREAM), world.store, world.client, clock)
        held = iter([4, 1, 3, 3])

        async def answer(handle: LedgerReadHandle, *, is_certain: bool) -> int:
            return next(held)

        monkeypatch.setattr(LedgerReadHandle, "last_recoverable_entry", answer)
        ends = []
        for _ in range(4):
            await found.look()
            clock.advance(2 * SETTLED_S)
            ends.append(found.ends()[HERE][1])
        assert ends == [0, 0, 2, 4]
        found.close()


async def test_a_closed_ledger_is_left_behind_and_the_next_one_is_followed(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 3), closed=False)
        await world.topic("t", head)
        found = follower(world)
        await found.look_settled()
        await head.close()
        await found.look()
        assert found.ends() == {HERE: (head.ledger_id + 1, 0)}
        other = await world.ledger(numbered(3, 2), closed=False)
        await world.topic("t", head, other)
        await found.look_settled()
        assert found.ends() == {HERE: (other.ledger_id, 2)}
        runs = found.range(HERE, (head.ledger_id, 2), (other.ledger_id, 1)).runs
        assert [(run.ledger_id, run.first, run.last) for run in runs] == [
            (head.ledger_id, 2, 2),
            (other.ledger_id, 0, 0),
        ]
        found.close()


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_ledger_that_its_broker_left_without_closing_it_is_not_passed_over(
    tmp_path: Path, is_told: bool
) -> None:
    """As where its bookies fail: the broker goes on with the next one, and its record may say what this one has."""
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 3), closed=False)
        await world.topic("t", head)
        found = follower(world)
        await found.look_settled()
        for number in (3, 4):
            await grow(head, numbered(number, 1))
        other = await world.ledger(numbered(5, 2))
        info = ManagedLedgerInfo()
        info.ledgerInfo.add(ledgerId=head.ledger_id, entries=5 if is_told else 0, size=5)
        info.ledgerInfo.add(ledgerId=other.ledger_id)
        await world.store.put(ledger_path(f"{STEM}/t"), info.SerializeToString())
        await found.look()
        end = found.ends()[HERE]
        assert end == ((other.ledger_id + 1, 0) if is_told else (head.ledger_id, 4))
        assert found.range(HERE, (0, 0), end).entries == (7 if is_told else 4)
        found.close()


async def test_a_look_without_news_reads_no_record_of_the_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 3), closed=False)
        info = ManagedLedgerInfo()
        for number in range(10_000):
            info.ledgerInfo.add(ledgerId=100_000 + number, entries=10, size=100, timestamp=1)
        info.ledgerInfo.add(ledgerId=head.ledger_id + 1_000_000)
        del info.ledgerInfo[-1]
        await world.store.put(ledger_path(f"{STEM}/t"), info.SerializeToString())
        read: list[str] = []
        get = world.store.get

        async def counted(path: str) -> Any:
            read.append(path)
            return await get(path)

        monkeypatch.setattr(world.store, "get", counted)
        found = follower(world)
        await found.look()
        # The last one may still be written to, so it is looked at, and it is not there: the record is read once more.
        assert len(read) <= 6
        read.clear()
        await found.look()
        assert read == []
        assert found.range(HERE, (105_000, 3), (105_001, 2)).entries == 9
        found.close()


async def test_partitions_that_are_added_join(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await world.partitions("t", 1)
        await world.topic("t-partition-0", await world.ledger(numbered(0, 3)))
        found = follower(world)
        await found.look()
        assert list(found.ends()) == [HERE]
        await world.partitions("t", 3)
        await world.topic("t-partition-2", await world.ledger(numbered(0, 1)))
        await found.look()
        ends = found.ends()
        assert list(ends) == [HERE, Part(TOPIC, 1), Part(TOPIC, 2)]
        assert ends[Part(TOPIC, 1)] == (0, 0), "nobody has used it yet"
        assert ends[Part(TOPIC, 2)] > (0, 0)
        found.close()


async def test_topics_that_match_join_and_those_of_brokers_do_not(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("orders-a", await world.ledger(numbered(0, 3)))
        await world.topic("__change_events", await world.ledger(numbered(0, 3)))
        await world.topic("other", await world.ledger(numbered(0, 3)))
        found = follower(world, topicsPattern="persistent://public/default/(orders-.*|__.*)")
        await found.look()
        assert [topic.local for topic in found.topics] == ["orders-a"]
        await world.partitions("orders-b", 2)
        await world.topic("orders-b-partition-1", await world.ledger(numbered(0, 3)))
        await found.look()
        assert [topic.local for topic in found.topics] == ["orders-a", "orders-b"]
        found.close()
        internal = follower(world, topicsPattern="__.*", includeInternal="true")
        await internal.look()
        assert [topic.local for topic in internal.topics] == ["__change_events"]
        internal.close()


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_shadow_topic_is_not_taken_for_an_empty_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, partitions: int
) -> None:
    async with spark_world(tmp_path) as world:
        name = await world.shadow("orders-s", "persistent://public/default/orders-t", partitions)
        await world.topic("orders-t", await world.ledger(numbered(0, 3)))
        found = follower(world, topic="orders-s")
        with pytest.raises(
            ShadowTopic, match=rf"public/default/{name} has no ledgers of its own.*shadow topic of .*/o"
        ):
            await found.look()
        found.close()
        found = follower(world, topicsPattern="orders-.*")
        await found.look()
        await found.look()
        assert [topic.local for topic in found.topics] == ["orders-t"]
        assert caplog.text.count(f"public/default/{name} has no ledgers of its own") == 1
        found.close()


async def test_a_topic_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        found = follower(world, topic="nobody")
        with pytest.raises(TopicMissing, match="persistent://public/default/nobody"):
            await found.look()
        found.close()


async def test_entries_that_were_removed_before_they_were_read_are_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with spark_world(tmp_path) as world:
        first, second = await world.ledger(numbered(0, 3)), await world.ledger(numbered(3, 3))
        await world.topic("t", first, second)
        strict, easy = follower(world), follower(world, failOnDataLoss="false")
        for one in (strict, easy):
            await one.look()
            one.check_whole(HERE, (first.ledger_id, 1), None)
        await world.topic("t", second)
        for one in (strict, easy):
            await one.look()
        with pytest.raises(DataLoss, match=f"what was stored from {first.ledger_id}:1 on was removed"):
            strict.check_whole(HERE, (first.ledger_id, 1), None)
        strict.check_whole(HERE, (first.ledger_id, 3), None)
        strict.check_whole(HERE, (second.ledger_id, 0), None)
        easy.check_whole(HERE, (first.ledger_id, 1), None)
        assert "was removed before it was read; going on without it" in caplog.text
        strict.close()
        easy.close()


async def test_what_was_seen_of_an_open_ledger_is_loss_though_its_record_went_before_that_of_the_topic_was_read(
    tmp_path: Path,
) -> None:
    async with spark_world(tmp_path) as world:
        first, head = await world.ledger(numbered(0, 3)), await world.ledger(numbered(3, 3), closed=False)
        await world.topic("t", first, head)
        found = follower(world)
        await found.look_settled()
        start = (first.ledger_id + 1, 0)
        assert found.range(HERE, start, found.ends()[HERE]).entries == 3
        await world.client.delete_ledger(head.ledger_id)
        await found.look()
        other = await world.ledger(numbered(6, 3))
        await world.topic("t", other)
        await found.look()
        with pytest.raises(DataLoss, match=f"what was stored from {start[0]}:0 on was removed before it was read"):
            found.check_whole(HERE, start, None)
        found.close()


async def test_a_query_that_comes_back_to_a_ledger_that_is_gone_says_so(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger(numbered(0, 3)))
        found = follower(world)
        await found.look()
        with pytest.raises(DataLoss, match=r"reading stopped at 999999999:2, is gone.*failOnDataLoss=false"):
            found.check_whole(HERE, (999_999_999, 2), None)
        found.check_whole(HERE, (999_999_999, 0), None)
        found.close()


async def test_the_ledger_of_the_entry_that_a_subscription_keeps_tells_whether_anything_was_removed(
    tmp_path: Path,
) -> None:
    async with spark_world(tmp_path) as world:
        first, second, third = [await world.ledger(numbered(number, 1)) for number in range(3)]
        kept = (first.ledger_id, 0)
        read_up_to = ((first.ledger_id, 1), (second.ledger_id, 0))
        for left, is_whole in (((first, third), True), ((second, third), False), ((third,), False), ((), False)):
            await world.topic("t", *left)
            found = follower(world)
            await found.look()
            for start in read_up_to:
                if is_whole or (second in left and start[0] == second.ledger_id):
                    found.check_whole(HERE, start, kept)
                    continue
                with pytest.raises(DataLoss, match=rf"kept for its entry {first.ledger_id}:0, is gone.*message TTL"):
                    found.check_whole(HERE, start, kept)
            found.close()


async def test_a_ledger_that_the_topic_lists_and_nobody_has_is_loss(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        first = await world.ledger(numbered(0, 3))
        await world.topic("t", first, 999_999_999)
        found = follower(world)
        await found.look()
        with pytest.raises(DataLoss, match="ledger 999999999 is gone, although the topic lists it"):
            found.check_whole(HERE, (first.ledger_id, 0), None)
        found.close()


# ------------------------------------------------------------------------------------------ as Spark calls it


class Query:
    """One run of a streaming query over a checkpoint that outlives it."""

    def __init__(
        self, world: SparkWorld, checkpoint: dict[str, Any], schema: StructType | None = None, /, **more: str
    ) -> None:
        """*schema*: the user's own."""
        given = {"metadata.url": world.url, **more}
        if "topicsPattern" not in given:
            given.setdefault("topic", "t")
        source = MagnetarSource({"columns": "value", **given})
        made = source.streamReader(schema or source.schema())
        assert isinstance(made, MagnetarStreamReader)
        self.reader = made
        self.checkpoint = checkpoint
        """`offset`: the end of the last batch that was planned; `committed`: of the last that was processed."""

    def start(self) -> dict[str, Any]:
        """Where the next batch begins; Spark asks twice for the first one of all."""
        if "committed" in self.checkpoint:
            return dict(json.loads(self.checkpoint["committed"]))
        self.reader.initialOffset()
        return self.reader.initialOffset()

    def plan(self) -> bool:
        """Write the end of the next batch down; False: there is nothing new."""
        start = self.start()
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        self.checkpoint["offset"] = json.dumps(end)
        return json.dumps(end) != json.dumps(start)

    def process(self) -> list[bytes]:
        """The values of the batch that was planned last."""
        end = json.loads(self.checkpoint["offset"])
        values = [
            row["value"]
            for task in self.reader.partitions(self.start(), end)
            for batch in self.reader.read(task)
            for row in batch.to_pylist()
        ]
        self.checkpoint["committed"] = self.checkpoint["offset"]
        return values

    def batch(self) -> list[bytes]:
        """The next batch that has something."""
        deadline = time.monotonic() + 30
        while not self.plan():
            assert time.monotonic() < deadline, "nothing comes"
            time.sleep(0.01)
        return self.process()

    def stop(self) -> None:
        self.reader.stop()


async def run(
    world: SparkWorld,
    steps: Callable[[Query], Any],
    checkpoint: dict[str, Any],
    schema: StructType | None = None,
    /,
    **more: str,
) -> Any:
    """A run of the query on a thread of its own. For it an entry counts as settled after SOON_S: a query that ends
    with what is there waits for that twice."""

    def whole() -> Any:
        query = Query(world, checkpoint, schema, **more)
        try:
            return steps(query)
        finally:
            query.stop()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(follower_of_queries, "SETTLED_S", SOON_S)
        return await asyncio.to_thread(whole)


@pytest.fixture
def told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of the metadata store come to queries soon."""
    monkeypatch.setattr("magnetar_core.bookkeeper.metadata.stores.secondary.POLL_S", 0.02)


def everything(query: Query) -> list[list[bytes]]:
    """All batches until there is nothing new."""
    query.reader.prepareForTriggerAvailableNow()
    found = []
    while query.plan():
        found.append(query.process())
    return found


async def test_batches_follow_each_other_over_ledgers_and_restarts(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        first, head = await world.ledger(numbered(0, 5)), await world.ledger(numbered(5, 3), closed=False)
        await world.topic("t", first, head)
        checkpoint: dict[str, Any] = {}
        given = {"startingOffsets": "earliest"}
        assert await run(world, everything, checkpoint, **given) == [in_order(0, 8)]
        assert await run(world, everything, checkpoint, **given) == []
        await grow(head, numbered(8, 2))
        await head.close()
        await world.topic("t", first, head, await world.ledger(numbered(10, 3)))
        assert await run(world, everything, checkpoint, **given) == [in_order(8, 5)]


async def test_a_stream_begins_at_the_end_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 5), closed=False)
        await world.topic("t", head)
        checkpoint: dict[str, Any] = {}

        def begins(query: Query) -> bool:
            return query.plan()

        assert await run(world, begins, checkpoint) is False

        def beginning_then_more(query: Query) -> list[bytes]:
            query.start()
            asyncio.run_coroutine_threadsafe(grow(head, numbered(5, 2)), loop).result()
            return query.batch()

        loop = asyncio.get_running_loop()
        assert (await run(world, beginning_then_more, {}))[0] == b"5"
        places = {"startingOffsets": json.dumps({"t": {"0": f"{head.ledger_id}:3"}})}
        assert await run(world, everything, {}, **places) == [in_order(3, 4)]
        assert await run(world, everything, {}, startingOffsets='{"t": {"0": -2}}') == [in_order(0, 7)]
        assert await run(world, everything, {}, startingOffsets='{"t": {"0": -1}}') == []
        never = {"startingOffsets": json.dumps({"t": {"0": f"{head.ledger_id + 5}:3"}})}
        with pytest.raises(ConfigurationError, match=r"was never one of .*/t"):
            await run(world, everything, {}, **never)


async def test_a_query_that_dies_before_its_first_commit_begins_again_where_it_began(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 5), closed=False)
        await world.topic("t", head)
        loop = asyncio.get_running_loop()
        checkpoint: dict[str, Any] = {}

        def planned(query: Query) -> None:
            query.start()
            asyncio.run_coroutine_threadsafe(grow(head, numbered(5, 4)), loop).result()
            time.sleep(3 * SOON_S)
            while not query.plan() or f":{9}" not in query.checkpoint["offset"]:
                time.sleep(0.01)

        await run(world, planned, checkpoint)
        await grow(head, numbered(9, 1))
        assert await run(world, Query.process, checkpoint) == in_order(5, 4)


async def test_a_batch_that_is_repeated_has_the_same_entries(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 5), closed=False)
        await world.topic("t", head)
        checkpoint: dict[str, Any] = {}

        def planned(query: Query) -> None:
            query.reader.prepareForTriggerAvailableNow()
            query.plan()

        await run(world, planned, checkpoint, startingOffsets="earliest")
        await grow(head, numbered(5, 5))
        await head.close()
        await world.topic("t", head, await world.ledger(numbered(10, 5)))
        assert await run(world, Query.process, checkpoint, startingOffsets="earliest") == in_order(0, 5)
        assert await run(world, everything, checkpoint) == [in_order(5, 10)]


async def planned_up_to_a_new_ledger(
    world: SparkWorld, *, closed: bool
) -> tuple[dict[str, Any], dict[str, Node | None]]:
    """(the checkpoint of a query that died in its first batch, the topic's record before it had its last ledger)."""
    first = await world.ledger(numbered(0, 3))
    await world.topic("t", first)
    path = ledger_path(f"{STEM}/t")
    before = await world.store.get(path)
    await world.topic("t", first, await world.ledger(numbered(3, 4), closed=closed))
    checkpoint: dict[str, Any] = {}

    def planned(query: Query) -> None:
        query.reader.prepareForTriggerAvailableNow()
        assert query.plan()

    await run(world, planned, checkpoint, startingOffsets="earliest")
    return checkpoint, {path: before}


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("syncs", [1, 2])
async def test_a_batch_that_is_repeated_beside_a_metadata_server_that_is_behind_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool, syncs: int
) -> None:
    async with spark_world(tmp_path) as world:
        checkpoint, old = await planned_up_to_a_new_ledger(world, closed=closed)
        lag(monkeypatch, old, syncs)
        assert await run(world, Query.process, checkpoint, startingOffsets="earliest") == in_order(0, 7)


@pytest.mark.parametrize("closed", [True, False])
async def test_a_batch_of_which_a_part_is_not_known_any_more_is_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    async with spark_world(tmp_path) as world:
        checkpoint, old = await planned_up_to_a_new_ledger(world, closed=closed)
        lag(monkeypatch, old, 1_000)
        given = {"startingOffsets": "earliest"}
        with pytest.raises(
            DataLoss, match=rf"partition 0 of {TOPIC}: a batch up to \d+:\d was planned, and what stands"
        ):
            await run(world, Query.process, checkpoint, **given)
        assert await run(world, Query.process, checkpoint, **given, failOnDataLoss="false") == in_order(0, 3)
        assert "is not known (any more)" in caplog.text


async def test_a_batch_that_is_repeated_does_not_miss_an_empty_ledger_that_was_replaced(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await world.partitions("t", 2)
        first = await world.ledger(numbered(0, 3))
        await world.topic("t-partition-0", first)
        await world.topic("t-partition-1", await world.ledger(numbered(3, 3)))
        checkpoint: dict[str, Any] = {}
        given = {"startingOffsets": "earliest"}
        await run(world, everything, checkpoint, **given)
        await world.topic("t-partition-0", first, await world.ledger(numbered(6, 3)))
        await world.topic("t-partition-1", await world.ledger([], closed=False))
        assert await run(world, Query.plan, checkpoint, **given)
        await world.ledger([])  # of another topic
        await world.topic("t-partition-1", await world.ledger([], closed=False))
        assert await run(world, Query.process, checkpoint, **given) == in_order(6, 3)


async def test_a_ledger_that_was_read_whole_may_go_between_the_planning_of_a_batch_and_its_tasks(
    tmp_path: Path,
) -> None:
    """Brokers trim a topic in the moment in which they begin another ledger."""
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 3), closed=False)
        await world.topic("t", head)
        found = follower(world)
        await found.look_settled()
        start = found.ends()[HERE]
        assert start == (head.ledger_id, 3)
        await head.close()
        await found.look()
        end = found.ends()[HERE]
        assert end == (head.ledger_id + 1, 0)
        await world.ledger([])  # of another topic
        await world.topic("t", await world.ledger([], closed=False))
        await found.look_up_to({HERE: end})
        found.check_whole(HERE, start, None)
        found.check_known(HERE, end)
        with pytest.raises(DataLoss, match="was removed before it was read"):
            found.check_whole(HERE, (head.ledger_id, 2), None)
        with pytest.raises(DataLoss, match="is not known"):
            found.check_known(HERE, (head.ledger_id + 1, 1))
        found.close()


async def test_a_batch_that_is_repeated_beside_a_server_that_does_not_know_that_a_ledger_is_closed_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 2), closed=False)
        await world.topic("t", head)
        checkpoint: dict[str, Any] = {}
        given = {"startingOffsets": "earliest"}
        assert await run(world, everything, checkpoint, **given) == [in_order(0, 2)]
        for number in (2, 3):
            await grow(head, numbered(number, 1))
        path = metadata_path("/ledgers", head.ledger_id)
        open_still = await world.store.get(path)
        await head.close()
        assert await run(world, Query.plan, checkpoint, **given)
        lag(monkeypatch, {path: open_still}, 2)
        assert await run(world, Query.process, checkpoint, **given) == in_order(2, 2)


async def test_a_batch_that_is_repeated_while_nothing_is_written_has_its_last_entry_too(tmp_path: Path) -> None:
    """No later entry confirms it, and the process that saw it settle is gone."""
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 2), closed=False)
        await world.topic("t", head)
        checkpoint: dict[str, Any] = {}

        def planned(query: Query) -> None:
            while not query.plan() or json.loads(query.checkpoint["offset"])["topics"][TOPIC]["0"][-2:] != ":4":
                time.sleep(0.01)

        assert await run(world, Query.batch, checkpoint, startingOffsets="earliest") == in_order(0, 2)
        for number in (2, 3):
            await grow(head, numbered(number, 1))
        await run(world, planned, checkpoint, startingOffsets="earliest")
        assert await run(world, Query.process, checkpoint, startingOffsets="earliest") == in_order(2, 2)


async def test_a_limit_cuts_batches_and_available_now_ends_at_what_was_there(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 10), closed=False)
        await world.topic("t", head)
        loop = asyncio.get_running_loop()

        def while_it_grows(query: Query) -> list[list[bytes]]:
            query.reader.prepareForTriggerAvailableNow()
            found = []
            while query.plan():
                found.append(query.process())
                asyncio.run_coroutine_threadsafe(grow(head, numbered(100, 1)), loop).result()
            return found

        given = {"startingOffsets": "earliest", "maxMessagesPerTrigger": "4"}
        batches = await run(world, while_it_grows, {}, **given)
        assert [len(one) for one in batches] == [4, 4, 2]
        assert [value for one in batches for value in one] == in_order(0, 10)


async def test_the_limit_of_the_options_is_told_and_one_without_limit_overrides_it(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger(numbered(0, 10)))

        def limits(query: Query) -> tuple[Any, int, int]:
            reader = query.reader
            start = query.start()
            few = reader.latestOffset(start, reader.getDefaultReadLimit())
            every = reader.latestOffset(start, ReadAllAvailable())
            rows = [
                sum(batch.num_rows for task in reader.partitions(start, end) for batch in reader.read(task))
                for end in (few, every)
            ]
            return reader.getDefaultReadLimit(), rows[0], rows[1]

        begin = {"startingOffsets": "earliest"}
        assert await run(world, limits, {}, **begin, maxMessagesPerTrigger="3") == (ReadMaxRows(3), 3, 10)
        both = {"maxMessagesPerTrigger": "5", "maxBytesPerTrigger": "1"}
        assert await run(world, limits, {}, **begin, **both) == (ReadMaxBytes(1), 1, 10)
        assert await run(world, limits, {}, **begin) == (ReadAllAvailable(), 10, 10)


@pytest.mark.usefixtures("told_soon")
async def test_a_partition_that_joins_is_read_from_its_first_entry(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await world.partitions("t", 1)
        await world.topic("t-partition-0", await world.ledger(numbered(0, 3)))
        checkpoint: dict[str, Any] = {}
        assert await run(world, everything, checkpoint) == []
        await world.partitions("t", 2)
        await world.topic("t-partition-1", await world.ledger(numbered(5, 3)))
        loop = asyncio.get_running_loop()

        def with_another(query: Query) -> list[list[bytes]]:
            query.start()
            made = asyncio.run_coroutine_threadsafe(world.ledger(numbered(8, 2)), loop).result()
            asyncio.run_coroutine_threadsafe(world.partitions("t", 3), loop).result()
            asyncio.run_coroutine_threadsafe(world.topic("t-partition-2", made), loop).result()
            return [query.batch()]

        assert await run(world, with_another, checkpoint) == [in_order(8, 2)]


async def test_versions_of_a_schema_that_came_while_the_query_runs_are_read(tmp_path: Path) -> None:
    old = b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}'
    new = (
        b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, '
        b'{"name": "b", "type": ["null", "long"], "default": null}]}'
    )
    async with spark_world(tmp_path) as world:
        await world.schema("t", Schema(SchemaType.AVRO, old))
        head = await world.ledger([single(b"\x02", schema_version=(0).to_bytes(8, "big"))], closed=False)
        await world.topic("t", head)
        loop = asyncio.get_running_loop()

        def rows(query: Query) -> list[Any]:
            found = []
            for _ in range(2):
                start = query.start()
                query.plan()
                tasks = query.reader.partitions(start, json.loads(query.checkpoint["offset"]))
                found += [row for task in tasks for batch in query.reader.read(task) for row in batch.to_pylist()]
                query.checkpoint["committed"] = query.checkpoint["offset"]

                async def more() -> None:
                    version = await world.schema("t", Schema(SchemaType.AVRO, new))
                    await grow(head, [single(b"\x04\x02\x06", schema_version=version.to_bytes(8, "big"))])

                asyncio.run_coroutine_threadsafe(more(), loop).result()
                time.sleep(3 * SOON_S)
                query.reader.latestOffset(start, ReadAllAvailable())
                time.sleep(3 * SOON_S)
            return found

        given = {"valueFormat": "avro", "columns": "a", "startingOffsets": "earliest"}
        found = await run(world, rows, {}, **given)
        assert found[0] == {"a": 1}
        assert found[1:]
        assert all(row == {"a": 2} for row in found[1:])


async def test_bookies_that_do_not_let_a_query_in_end_it_but_not_if_they_did_before(tmp_path: Path) -> None:
    """As a topic that joins finds them; those that are there at `load()` are asked then."""
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger(numbered(0, 3), closed=False))

        def refuse(code: int | None) -> None:
            for bookie in world.cluster.bookies.values():
                bookie.refuse = lambda *_: code

        refuse(V2Error.EUA)
        view = follower(world)
        with pytest.raises(NotLetIn, match=r"set bookkeeper\.tlsDirectory"):
            await view.look()
        refuse(None)
        await view.look()
        ends = view.ends()
        refuse(V2Error.EUA)
        await view.look()
        assert view.ends() == ends
        view.close()


def fields_of_long(*names: str) -> Schema:
    """A record of numbers: those of the first field, and others that are 7 by default."""
    fields = [{"name": name, "type": "long", **({"default": 7} if number else {})} for number, name in enumerate(names)]
    return Schema(SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "fields": fields}).encode())


async def test_columns_that_came_while_the_query_runs_are_told_once_or_end_it_before_they_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with spark_world(tmp_path) as world:
        await world.schema("t", fields_of_long("a"))
        head = await world.ledger([single(b"\x02", schema_version=version_bytes(0))], closed=False)
        await world.topic("t", head)
        loop = asyncio.get_running_loop()

        def rows(query: Query) -> list[Any]:
            tasks = query.reader.partitions(query.start(), json.loads(query.checkpoint["offset"]))
            query.checkpoint["committed"] = query.checkpoint["offset"]
            return [row for task in tasks for batch in query.reader.read(task) for row in batch.to_pylist()]

        def next_rows(query: Query) -> list[Any]:
            while not query.plan():
                time.sleep(0.01)
            return rows(query)

        async def more(version: int, payload: bytes) -> None:
            await grow(head, [single(payload, schema_version=version_bytes(version))])

        async def grown() -> None:
            version = await world.schema("t", fields_of_long("a", "b"))
            await more(version, b"\x04\x06")

        def both(query: Query) -> list[Any]:
            found = next_rows(query)
            assert "newer" not in caplog.text
            asyncio.run_coroutine_threadsafe(grown(), loop).result()
            found += next_rows(query)
            asyncio.run_coroutine_threadsafe(more(1, b"\x06\x08"), loop).result()
            return found + next_rows(query)

        every = {"valueFormat": "avro", "columns": "", "startingOffsets": "earliest"}
        lax = {**every, "failOnNewSchema": "false"}
        values = [(row["a"], row.get("b")) for row in await run(world, both, {}, **lax)]
        assert values == [(1, None), (2, None), (3, None)]
        assert caplog.text.count("/t has columns that are newer than this query") == 1

        head = await world.ledger([single(b"\x02", schema_version=version_bytes(0))], closed=False)
        await world.topic("t", head)
        checkpoint: dict[str, Any] = {}

        def ends(query: Query) -> None:
            next_rows(query)
            grown = world.schema("t", fields_of_long("a", "b", "c"))
            version = asyncio.run_coroutine_threadsafe(grown, loop).result()
            asyncio.run_coroutine_threadsafe(more(version, b"\x04\x06\x08"), loop).result()
            with pytest.raises(NewSchema, match=r"/t has columns .*\(version 2 of its schema\): c; start it again"):
                next_rows(query)

        await run(world, ends, checkpoint, **every)
        assert [(row["a"], row["b"], row["c"]) for row in await run(world, rows, checkpoint, **every)] == [(2, 3, 4)]


@pytest.mark.parametrize(
    ("has_schema", "options", "ends"),
    [
        (False, {}, True),
        (False, {"failOnNewSchema": "false"}, False),
        (False, {"columns": "a"}, False),
        (True, {}, False),
        (False, {"columns": "a", "failOnNewSchema": "true"}, True),
        (True, {"failOnNewSchema": "true"}, True),
    ],
)
async def test_a_query_ends_before_new_columns_unless_it_has_chosen_its_own(
    tmp_path: Path, has_schema: bool, options: Mapping[str, str], ends: bool
) -> None:
    async with spark_world(tmp_path) as world:
        await world.schema("t", fields_of_long("a"))
        await world.topic("t", await world.ledger([single(b"\x02", schema_version=version_bytes(0))]))
        loop, given = asyncio.get_running_loop(), {"valueFormat": "avro", "columns": "", "startingOffsets": "earliest"}

        def steps(query: Query) -> None:
            asyncio.run_coroutine_threadsafe(world.schema("t", fields_of_long("a", "b")), loop).result()
            query.plan()
            query.reader.partitions(query.start(), json.loads(query.checkpoint["offset"]))

        own = StructType([StructField("a", LongType())]) if has_schema else None
        with pytest.raises(NewSchema) if ends else nullcontext():
            await run(world, steps, {}, own, **{**given, **options})


async def test_a_topic_that_joins_with_columns_which_the_query_has_not_ends_it(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await world.schema("t", fields_of_long("a"))
        await world.topic("t", await world.ledger([single(b"\x02", schema_version=version_bytes(0))]))
        loop, checkpoint = asyncio.get_running_loop(), dict[str, Any]()
        given = {"topicsPattern": "t|u", "valueFormat": "avro", "columns": "", "startingOffsets": "earliest"}

        async def join() -> None:
            await world.schema("u", fields_of_long("a", "b"))
            await world.topic("u", await world.ledger([single(b"\x04\x06", schema_version=version_bytes(0))]))

        def rows(query: Query) -> list[Any]:
            tasks = query.reader.partitions(query.start(), json.loads(query.checkpoint["offset"]))
            return [row for task in tasks for batch in query.reader.read(task) for row in batch.to_pylist()]

        def ends(query: Query) -> None:
            query.plan()
            query.checkpoint["committed"] = query.checkpoint["offset"]
            asyncio.run_coroutine_threadsafe(join(), loop).result()
            while not query.plan():
                time.sleep(0.01)
            with pytest.raises(
                NewSchema, match=r"/u has .*\(version 0 .*\): b; start it again .* with unionSchemas=true"
            ):
                rows(query)

        await run(world, ends, checkpoint, **given)
        with pytest.raises(ConfigurationError, match="the topics have different schemas"):
            await run(world, rows, checkpoint, **given)
        united = {**given, "unionSchemas": "true"}
        assert [(row["a"], row["b"]) for row in await run(world, rows, checkpoint, **united)] == [(2, 3)]


async def test_a_version_of_a_schema_that_a_metadata_server_does_not_know_yet_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [b'{"name": "a", "type": "long"}', b'{"name": "b", "type": ["null", "long"], "default": null}']
    old, new = (b'{"type": "record", "name": "R", "fields": [%s]}' % b", ".join(fields[:count]) for count in (1, 2))
    async with spark_world(tmp_path) as world:
        await world.schema("t", Schema(SchemaType.AVRO, old))
        path = f"{SCHEMAS}/public/default/t"
        before = await world.store.get(path)
        version = await world.schema("t", Schema(SchemaType.AVRO, new))
        entries = [
            single(b"\x02", schema_version=(0).to_bytes(8, "big")),
            single(b"\x04\x02\x06", schema_version=version.to_bytes(8, "big")),
        ]
        await world.topic("t", await world.ledger(entries))
        lag(monkeypatch, {path: before}, 2)  # one of them when it connects
        given = {"valueFormat": "avro", "columns": "a", "mode": "PERMISSIVE"}
        found = await world.rows("t", **given)
        assert found == [{"a": 1}, {"a": 2}]

        def batch(query: Query) -> list[Any]:
            start = query.start()
            query.plan()
            tasks = query.reader.partitions(start, json.loads(query.checkpoint["offset"]))
            return [row for task in tasks for batch in query.reader.read(task) for row in batch.to_pylist()]

        assert await run(world, batch, {}, **given, startingOffsets="earliest") == [{"a": 1}, {"a": 2}]


async def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger(numbered(0, 3)))
        with pytest.raises(Corruption, match="begin a new checkpoint"):
            await run(world, Query.plan, {"committed": '{"version": 99}'})


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("endingOffsets", "latest", "endingOffsets has no meaning for spark.readStream"),
        ("compacted", "true", "compacted has no meaning for spark.readStream"),
        ("maxMessagesPerTrigger", "0", "expected a number of at least 1"),
        ("maxBytesPerTrigger", "x", "expected a size such as 128m"),
        ("subscription", "s", "subscription needs service.url"),
        ("topicsPattern", "a.*", "topicsPattern and topic cannot both be given"),
    ],
)
def test_options_that_make_no_sense_for_a_stream_are_refused(option: str, value: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        parse_options({"metadata.url": "zk:x", "topic": "t", option: value}, Kind.STREAM)


@pytest.mark.parametrize(
    "option",
    ["maxMessagesPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay", "subscription",
     "failOnNewSchema"],
)  # fmt: skip
def test_options_of_streams_are_refused_for_a_batch(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} has no meaning for spark.read"):
        parse_options({"metadata.url": "zk:x", "topic": "t", option: "1", "service.url": "pulsar://x"})


@pytest.mark.parametrize("pattern", ["a/b", "persistent://p/d/e/f", "persistent://p.*/d/(", "x("])
def test_a_pattern_that_cannot_be_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="topicsPattern="):
        parse_options({"metadata.url": "zk:x", "topicsPattern": pattern})


async def test_a_batch_reads_all_topics_that_match(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("orders-a", await world.ledger(numbered(0, 2)))
        await world.topic("orders-b", await world.ledger(numbered(2, 2)))
        await world.topic("other", await world.ledger(numbered(9, 2)))

        def values(pattern: str) -> list[bytes]:
            source = MagnetarSource({"metadata.url": world.url, "topicsPattern": pattern, "columns": "value"})
            reader = source.reader(source.schema())
            return [
                row["value"]
                for task in reader.partitions()
                for batch in reader.read(task)
                for row in batch.to_pylist()  # type: ignore[union-attr]
            ]

        assert sorted(await asyncio.to_thread(values, "orders-.*")) == in_order(0, 4)
        with pytest.raises(ConfigurationError, match="no topic matches"):
            await asyncio.to_thread(values, "nobody.*")


# ------------------------------------------------------------------------------------------ subscriptions


class Broker:
    """Cursors as brokers have them."""

    def __init__(self, world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.marks: dict[str, tuple[int, int] | None] = {}
        """Local name of a topic partition → what is acknowledged; None: nothing."""
        self._world = world
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(stream, "Subscription", self)

    def __call__(self, options: ReadOptions, name: str) -> "Broker":
        self._name = name
        return self

    def keep(self, behind: Mapping[TopicName, tuple[int, int] | None]) -> None:
        for topic, position in behind.items():
            if topic.local not in self.marks:
                made = self._world.store.put(cursor_path(topic.managed_ledger_name, self._name), b"")
                asyncio.run_coroutine_threadsafe(made, self._loop).result()
                self.marks[topic.local] = None
            if position is not None:
                self.marks[topic.local] = position

    def close(self) -> None:
        pass


KEEPING = {"subscription": "s", "service.url": "pulsar://x", "startingOffsets": "earliest"}


def all_committed(query: Query) -> list[list[bytes]]:
    """As `everything`, and Spark commits the last batch, too."""
    found = everything(query)
    query.reader.commit(json.loads(query.checkpoint["committed"]))
    return found


async def test_the_last_entry_that_was_read_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with spark_world(tmp_path) as world:
        broker = Broker(world, monkeypatch)
        first, second = await world.ledger(numbered(0, 5)), await world.ledger(numbered(5, 1))
        await world.topic("t", first)
        checkpoint: dict[str, Any] = {}
        assert await run(world, all_committed, checkpoint, **KEEPING) == [in_order(0, 5)]
        assert broker.marks == {"t": (first.ledger_id, 3)}
        await world.topic("t", first, second)
        assert await run(world, all_committed, checkpoint, **KEEPING) == [in_order(5, 1)]
        assert broker.marks == {"t": (first.ledger_id, 4)}
        await world.topic("t", second)
        assert await run(world, everything, checkpoint, **KEEPING) == [], "what the query itself let go is no loss"


@pytest.mark.parametrize("is_read_to_the_end_of_a_ledger", [True, False])
async def test_a_subscription_that_others_moved_while_the_query_was_down_is_loss(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_read_to_the_end_of_a_ledger: bool,
) -> None:
    async with spark_world(tmp_path) as world:
        Broker(world, monkeypatch)
        first = await world.ledger(numbered(0, 5), closed=is_read_to_the_end_of_a_ledger)
        await world.topic("t", first)
        checkpoint: dict[str, Any] = {}
        await run(world, all_committed, checkpoint, **KEEPING)
        await world.ledger(numbered(5, 5))  # message TTL took it, and the topic gave both up
        await world.topic("t", await world.ledger(numbered(10, 5)))
        with pytest.raises(DataLoss, match=r"moved by others.*failOnDataLoss=false"):
            await run(world, everything, checkpoint, **KEEPING)
        easy = {**KEEPING, "failOnDataLoss": "false"}
        assert await run(world, everything, checkpoint, **easy) == [in_order(10, 5)]
        assert caplog.text.count("going on without it") == 1
        assert await run(world, everything, checkpoint, **KEEPING) == [], "the next batch is whole again"


async def test_a_batch_that_is_repeated_misses_what_others_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spark_world(tmp_path) as world:
        Broker(world, monkeypatch)
        first, second = await world.ledger(numbered(0, 5)), await world.ledger(numbered(5, 5))
        await world.topic("t", first)
        checkpoint: dict[str, Any] = {}
        await run(world, all_committed, checkpoint, **KEEPING)
        await world.topic("t", first, second)
        assert await run(world, Query.plan, checkpoint, **KEEPING)
        await world.topic("t", await world.ledger(numbered(10, 5)))
        with pytest.raises(DataLoss, match="moved by others"):
            await run(world, Query.process, checkpoint, **KEEPING)


async def test_a_query_that_dies_before_its_first_commit_leaves_its_subscription_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spark_world(tmp_path) as world:
        broker = Broker(world, monkeypatch)
        head = await world.ledger(numbered(0, 5), closed=False)
        await world.topic("t", head)
        given = {**KEEPING, "startingOffsets": "latest"}
        checkpoint: dict[str, Any] = {}
        await run(world, Query.start, checkpoint, **given)
        assert broker.marks == {"t": (head.ledger_id, 3)}
        await grow(head, numbered(5, 5))
        await run(world, Query.start, checkpoint, **given)
        assert broker.marks == {"t": (head.ledger_id, 3)}


async def test_partitions_and_topics_that_join_are_kept_before_their_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spark_world(tmp_path) as world:
        broker = Broker(world, monkeypatch)
        loop = asyncio.get_running_loop()
        await world.topic("orders-a", await world.ledger(numbered(0, 3)))
        await world.partitions("orders-b", 1)

        async def grown() -> None:
            await world.partitions("orders-b", 2)
            await world.topic("orders-c", await world.ledger(numbered(3, 3)))

        def joining(query: Query) -> list[Any]:
            query.start()
            before = sorted(broker.marks)
            asyncio.run_coroutine_threadsafe(grown(), loop).result()
            deadline = time.monotonic() + 30
            while "orders-c" not in query.checkpoint.get("offset", ""):
                assert time.monotonic() < deadline, "it does not join"
                query.plan()
            return [before, sorted(broker.marks)]

        given = {**KEEPING, "topicsPattern": "orders-.*"}
        before, behind = await run(world, joining, {}, **given)
        assert before == ["orders-a", "orders-b-partition-0"]
        assert behind == [*before, "orders-b-partition-1", "orders-c"]


async def test_a_subscription_that_is_added_to_a_query_keeps_from_its_start_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spark_world(tmp_path) as world:
        broker = Broker(world, monkeypatch)
        await world.topic("t", await world.ledger(numbered(0, 3)))
        checkpoint: dict[str, Any] = {}
        await run(world, everything, checkpoint, startingOffsets="earliest")
        assert "kept" not in checkpoint["committed"]
        await world.topic("t", await world.ledger(numbered(3, 3)))
        assert await run(world, Query.plan, checkpoint, **KEEPING), "nothing was kept before, so nothing is missed"
        assert broker.marks == {"t": None}
        broker.marks.clear()
        assert await run(world, Query.process, checkpoint, **KEEPING) == in_order(3, 3)
        assert broker.marks == {"t": None}


# ------------------------------------------------------------------------------------------ topics that are deleted


async def delete(world: SparkWorld, name: str) -> None:
    path = ledger_path(f"{STEM}/{name}")
    node = await world.store.get(path)
    assert node is not None
    await world.store.delete(path, node.version)


async def test_a_topic_that_was_deleted_while_the_query_was_down_may_be_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("orders-a", await world.ledger(numbered(0, 3)))
        await world.topic("orders-b", await world.ledger(numbered(3, 3)))
        given = {"topicsPattern": "orders-.*", "startingOffsets": "earliest"}
        checkpoint: dict[str, Any] = {}
        await run(world, everything, checkpoint, **given)
        await delete(world, "orders-b")
        with pytest.raises(DataLoss, match=r"partition 0 of .*/orders-b, of which reading.*failOnDataLoss=false"):
            await run(world, everything, checkpoint, **given)
        assert await run(world, everything, dict(checkpoint), topic="orders-a") == [], "who does not ask is not told"
        await world.topic("orders-c", await world.ledger(numbered(6, 3)))
        assert await run(world, everything, checkpoint, **given, failOnDataLoss="false") == [in_order(6, 3)]
        assert "orders-b" in caplog.text
        assert "orders-b" not in json.loads(checkpoint["committed"])["topics"]
        await world.topic("orders-b", await world.ledger(numbered(9, 1)))
        assert await run(world, everything, checkpoint, **given) == [in_order(9, 1)], "a new topic"


@pytest.mark.usefixtures("told_soon")
async def test_a_topic_that_is_deleted_under_a_query_is_loss_if_it_had_more(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        loop = asyncio.get_running_loop()
        await world.topic("orders-a", await world.ledger(numbered(0, 3)))
        await world.topic("orders-b", await world.ledger(numbered(3, 3)))
        given = {"topicsPattern": "orders-.*", "startingOffsets": "earliest"}
        checkpoint: dict[str, Any] = {}

        async def changed() -> None:
            await delete(world, "orders-b")
            await world.topic("orders-c", await world.ledger(numbered(6, 3)))

        def deleting(query: Query) -> list[bytes]:
            query.batch()
            asyncio.run_coroutine_threadsafe(changed(), loop).result()
            return query.batch()

        assert await run(world, deleting, checkpoint, **given) == in_order(6, 3)
        assert await run(world, everything, checkpoint, **given) == [], "it was read whole, and is forgotten"

        def too_early(query: Query) -> None:
            query.batch()
            asyncio.run_coroutine_threadsafe(delete(world, "orders-c"), loop).result()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                query.plan()

        with pytest.raises(DataLoss, match=r"orders-c.*was removed before it was read"):
            await run(world, too_early, {}, **given, maxMessagesPerTrigger="1")


async def test_a_batch_that_is_repeated_misses_a_topic_that_was_deleted(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("orders-a", await world.ledger(numbered(0, 3)))
        given = {"topicsPattern": "orders-.*", "startingOffsets": "earliest"}
        checkpoint: dict[str, Any] = {}
        await run(world, everything, checkpoint, **given)
        await world.topic("orders-a", await world.ledger(numbered(3, 3)))
        assert await run(world, Query.plan, checkpoint, **given)
        await delete(world, "orders-a")
        with pytest.raises(DataLoss, match="orders-a, of which reading stopped"):
            await run(world, Query.process, checkpoint, **given)


async def test_a_batch_of_a_pattern_leaves_out_a_topic_that_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("orders-a", await world.ledger(numbered(0, 2)))
        listed = [TopicName.parse("orders-a"), TopicName.parse("orders-gone")]

        async def before_the_deletion(*_: object) -> list[TopicName]:
            return listed

        monkeypatch.setattr(cluster, "topics_like", before_the_deletion)
        caplog.set_level("INFO", "connectors.spark")
        given = {"metadata.url": world.url, "columns": "value"}
        found = await asyncio.to_thread(lambda: rows_of(reader_of({**given, "topicsPattern": "orders-.*"})))
        assert [row["value"] for row in found] == in_order(0, 2)
        assert "orders-gone was deleted after the topics were listed" in caplog.text
        with pytest.raises(TopicMissing, match="orders-gone does not exist"):
            await asyncio.to_thread(reader_of, {**given, "topics": "orders-a,orders-gone"})


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
async def test_a_batch_that_is_repeated_has_the_same_rows_of_what_cannot_be_understood(
    tmp_path: Path, mode: str
) -> None:
    async with spark_world(tmp_path) as world:
        bad = single(b"x")[:-1] + b"?"
        await world.topic("t", await world.ledger([*numbered(0, 3), bad, *numbered(3, 3), bad], closed=False))
        given = {"columns": "value", "startingOffsets": "earliest", "mode": mode}
        checkpoint: dict[str, Any] = {}
        with pytest.raises(BadEntry, match=r"entry \d+:3: its checksum .* To go on set mode=PERMISSIVE"):
            await run(world, Query.batch, {}, startingOffsets="earliest")
        expected: list[Any] = [*in_order(0, 3), None, *in_order(3, 3), None]
        if mode == "DROPMALFORMED":
            expected = in_order(0, 6)
        assert await run(world, Query.batch, checkpoint, **given) == expected
        del checkpoint["committed"]
        assert await run(world, Query.process, checkpoint, **given) == expected
