"""Limits and lag of a query as Spark asks for them, over ledgers of small bookies."""

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows

from connectors.spark.options.read import Kind, parse_options
from connectors.spark.ranges import Run
from connectors.spark.stream import admission
from connectors.spark.stream.admission import Heads, Waiting
from connectors.spark.stream.driver import MagnetarStreamReader
from connectors.spark.stream.measures import Backlog, Head
from connectors.spark.stream.offsets import Part
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.messages import compress, encode_entry
from managed_ledger.messages_pb2 import LZ4, BrokerEntryMetadata
from tests.unit.connectors.spark.entries import batch, batch_payload, message, metadata_of, single, with_broker_metadata
from tests.unit.connectors.spark.stream.test_driver import SOON_S, TOPIC, Query, grow, run
from tests.unit.connectors.spark.world import in_order, numbered, spark_world

EARLIEST = {"startingOffsets": "earliest"}


def places(offset: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Partition → the position that an offset has for it."""
    return {number: tuple(map(int, text.split(":"))) for number, text in offset["topics"][TOPIC].items()}


def check_lag(reader: MagnetarStreamReader, end: dict[str, Any]) -> dict[str, float]:
    """The newest offset is not behind the end of the batch, and what is left is not less than nothing."""
    latest = reader.reportLatestOffset()
    assert latest is not None
    newest = places(latest)
    assert all(newest[number] >= position for number, position in places(end).items())
    behind: dict[str, float] = latest["behind"]
    assert min(behind.values()) >= 0
    assert (behind["messages"] > 0) == (behind["bytes"] > 0)
    assert behind["bytes"] > 0 or newest == places(end)
    return behind


# ------------------------------------------------------------------------------------------ lag


async def test_the_newest_offset_is_not_behind_a_query_that_comes_back(tmp_path: Path) -> None:
    """The last entry was settled for the process before; nothing confirms it, and it is new for this one."""
    async with spark_world(tmp_path) as world:
        head = await world.ledger(numbered(0, 3), closed=False)
        for number in range(3, 6):
            await grow(head, numbered(number, 1))
        await world.topic("t", head)
        checkpoint: dict[str, Any] = {}

        def to_the_end(query: Query) -> None:
            query.reader.prepareForTriggerAvailableNow()
            assert query.plan()
            query.process()

        def again(query: Query) -> None:
            assert not query.plan()
            end = json.loads(query.checkpoint["offset"])
            assert places(end) == {"0": (head.ledger_id, 6)}
            assert check_lag(query.reader, end) == {"bytes": 0, "messages": 0, "seconds": 0}

        await run(world, to_the_end, checkpoint, **EARLIEST)
        await run(world, again, checkpoint, **EARLIEST)


async def test_the_newest_offset_of_a_topic_whose_ledgers_are_all_gone_is_where_the_query_stands(
    tmp_path: Path,
) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger(numbered(0, 3)))
        checkpoint: dict[str, Any] = {}
        assert await run(world, Query.batch, checkpoint, **EARLIEST) == in_order(0, 3)
        await world.topic("t", await world.ledger([], closed=False))

        def again(query: Query) -> None:
            assert not query.plan()
            check_lag(query.reader, json.loads(query.checkpoint["offset"]))

        await run(world, again, checkpoint, **EARLIEST)


async def test_the_lag_is_what_is_left_behind_the_batch(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        now_ms = time.time_ns() // 1_000_000
        entries = [single(b"%d" % number, publish_time=now_ms - 60_000 + number) for number in range(10)]
        await world.topic("t", await world.ledger(entries))

        def step(query: Query) -> list[dict[str, float]]:
            found = []
            while query.plan():
                found.append(check_lag(query.reader, json.loads(query.checkpoint["offset"])))
                query.process()
            return found

        found = await run(world, step, {}, **EARLIEST, maxMessagesPerTrigger="4")
        assert [one["messages"] for one in found] == [6, 2, 0]
        assert [one["bytes"] for one in found] == [sum(map(len, entries[4:])), sum(map(len, entries[8:])), 0]
        assert 59 < found[0]["seconds"] < 600
        assert found[2]["seconds"] == 0


async def test_a_lag_that_is_not_known_ends_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger(numbered(0, 10)))

        def step(query: Query) -> None:
            assert query.plan()
            for bookie in world.cluster.bookies.values():
                bookie.ledgers.clear()
            query.reader.driver._heads = Heads(query.reader.driver._bookkeeper)
            check_lag(query.reader, json.loads(query.checkpoint["offset"]))

        await run(world, step, {}, **EARLIEST, maxMessagesPerTrigger="4")


# ------------------------------------------------------------------------------------------ limits


class Drawn:
    """A partition's entries with numbered values, of drawn shapes."""

    def __init__(self, draw: random.Random, entries: int, *, indexed: bool) -> None:
        self.entries: list[bytes] = []
        self.rows: list[int] = []
        self.sizes: list[int] = []
        index = -1
        sent = 0
        for number in range(entries):
            kind = draw.choice(["single", "batch", "batch", "compressed", "chunks"])
            producer = draw.choice(["a", "b"])
            count = 1 if kind in ("single", "chunks") else draw.choice([1, 2, 10, 300, 1_000])
            fill = b" " * draw.choice([0, 0, 10, 100] if count > 1 else [0, 10, 1_000, 100_000])
            values = [b"%d" % (sent + at) + fill for at in range(count)]
            sent += count
            made: list[tuple[bytes, int, int]] = []
            if kind == "single":
                made = [(single(values[0], producer_name=producer), 1, 1)]
            elif kind == "batch":
                made = [(batch(*map(message, values), producer_name=producer), count, count)]
            elif kind == "compressed":
                made = [(compressed(values, producer), count, count)]
            else:
                cut = len(values[0]) // 2
                for at, part in enumerate((values[0][:cut], values[0][cut:])):
                    more = {"uuid": f"{producer}-{number}", "chunk_id": at, "num_chunks_from_msg": 2}
                    made.append((single(part, producer_name=producer, **more), at, 1))
            for data, rows, counted in made:
                index += counted
                block = BrokerEntryMetadata(index=index).SerializeToString()
                self.entries.append(with_broker_metadata(data, block) if indexed else data)
                self.rows.append(rows)
                self.sizes.append(len(self.entries[-1]))
        self.values = [b"%d" % number for number in range(sent)]


def compressed(values: list[bytes], producer: str) -> bytes:
    payload = batch_payload(map(message, values))
    more = {"num_messages_in_batch": len(values), "compression": LZ4, "uncompressed_size": len(payload)}
    return encode_entry(metadata_of(producer_name=producer, **more), compress(LZ4, payload))


@pytest.mark.parametrize("option", ["maxMessagesPerTrigger", "maxBytesPerTrigger"])
@pytest.mark.parametrize("seed", range(4))
async def test_batches_of_drawn_topics_keep_their_limit_and_are_the_topic(
    tmp_path: Path, seed: int, option: str
) -> None:
    """Two partitions over ledgers, the last one open; the query is started again now and then."""
    draw = random.Random(seed)
    limit = draw.choice([1, 50, 1_500] if option == "maxMessagesPerTrigger" else [1, 20_000, 200_000])
    async with spark_world(tmp_path) as world:
        await world.partitions("t", 2)
        drawn, weights = [], []
        for number in range(2):
            partition = Drawn(draw, 8, indexed=seed % 2 == 0)
            cut = draw.randrange(1, len(partition.entries))
            ledgers = [
                await world.ledger(partition.entries[:cut]),
                await world.ledger(partition.entries[cut:], closed=False),
            ]
            await world.topic(f"t-partition-{number}", *ledgers)
            drawn.append(partition)
            order = partition.rows if option == "maxMessagesPerTrigger" else partition.sizes
            weights.append({
                (ledger.ledger_id, at): weight
                for ledger, some in zip(ledgers, (order[:cut], order[cut:]), strict=True)
                for at, weight in enumerate(some)
            })  # fmt: skip
        checkpoint: dict[str, Any] = {}
        values: list[bytes] = []

        def batches(query: Query) -> bool:
            query.reader.prepareForTriggerAvailableNow()
            for _ in range(draw.randrange(1, 6)):
                if not query.plan():
                    return True
                start = places(query.start())
                end = json.loads(query.checkpoint["offset"])
                check_lag(query.reader, end)
                taken = [
                    [weight for at, weight in of.items() if start[str(number)] <= at < places(end)[str(number)]]
                    for number, of in enumerate(weights)
                ]
                assert any(taken), "something waits"
                assert sum(sum(some[:-1]) for some in taken) <= limit
                rows = query.process()
                assert option != "maxMessagesPerTrigger" or len(rows) == sum(map(sum, taken))
                values.extend(rows)
            return False

        while not await run(world, batches, checkpoint, **EARLIEST, **{option: str(limit)}):
            pass
        assert sorted(one.strip() for one in values) == sorted(drawn[0].values + drawn[1].values)


async def test_a_batch_that_claims_to_have_many_messages_does_not_make_those_of_a_query_small(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        liar = encode_entry(metadata_of(num_messages_in_batch=2**31 - 1), b"x")
        await world.topic("t", await world.ledger([liar, *numbered(0, 8), liar]))
        given = {**EARLIEST, "mode": "DROPMALFORMED", "maxMessagesPerTrigger": "9"}
        assert await run(world, Query.batch, {}, **given) == in_order(0, 8)


@pytest.mark.parametrize(("indexed", "rows"), [(False, [3, 3, 2]), (True, [1, 3, 3, 1])])
async def test_a_message_in_chunks_counts_once_but_where_brokers_count_its_chunks(
    tmp_path: Path, indexed: bool, rows: list[int]
) -> None:
    async with spark_world(tmp_path) as world:
        chunks = [single(b"%d" % at, uuid="u", chunk_id=at, num_chunks_from_msg=3) for at in range(3)]
        entries = [*chunks, *numbered(0, 7)]
        if indexed:
            blocks = (BrokerEntryMetadata(index=at).SerializeToString() for at in range(10))
            entries = list(map(with_broker_metadata, entries, blocks))
        await world.topic("t", await world.ledger(entries))

        def sizes(query: Query) -> list[int]:
            batches = []
            while query.plan():
                batches.append(len(query.process()))
            return batches

        assert await run(world, sizes, {}, **EARLIEST, maxMessagesPerTrigger="3") == rows


async def test_what_is_looked_at_for_a_limit_has_a_limit_where_the_batch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger(numbered(0, 100)))
        monkeypatch.setattr(admission, "WALKED_ENTRIES_MAX", 30)
        assert await run(world, Query.batch, {}, **EARLIEST, maxMessagesPerTrigger="1000") == in_order(0, 30)
        monkeypatch.setattr(admission, "WALKED_ENTRIES_MAX", 200_000)
        monkeypatch.setattr(admission, "WALKED_BYTES_MAX", 10 * len(numbered(0, 1)[0]))
        monkeypatch.setattr(admission, "ANSWER_BYTES", 1)
        assert await run(world, Query.batch, {}, **EARLIEST, maxMessagesPerTrigger="1000") == in_order(0, 11)
        assert await run(world, Query.batch, {}, **EARLIEST) == in_order(0, 100), "without a limit nothing is looked at"


# ------------------------------------------------------------------------------------------ a batch that waits


async def test_a_batch_waits_for_so_many_messages_and_not_longer_than_it_may(tmp_path: Path) -> None:
    async with spark_world(tmp_path) as world:
        loop = asyncio.get_running_loop()
        head = await world.ledger(numbered(0, 3), closed=False)
        await world.topic("t", head)

        def add(first: int, count: int) -> None:
            asyncio.run_coroutine_threadsafe(grow(head, numbered(first, count)), loop).result()
            time.sleep(3 * SOON_S)

        def newest(query: Query) -> dict[str, float]:
            """What waits when all of it is seen, and no batch takes it."""
            for _ in range(3):
                assert not query.plan()
                time.sleep(3 * SOON_S)
            return check_lag(query.reader, query.start())

        given = {**EARLIEST, "minMessagesPerTrigger": "5"}
        checkpoint: dict[str, Any] = {}

        def enough(query: Query) -> list[list[bytes]]:
            assert query.reader.getDefaultReadLimit() == ReadMinRows(5)
            batches = [query.batch()]
            add(3, 4)
            assert newest(query)["messages"] == 4
            add(7, 2)
            return [*batches, query.batch()]

        first, second = await run(world, enough, checkpoint, **given)
        assert first == in_order(0, 3), "the first batch of a run waits for nothing"
        assert second == in_order(3, 6)

        def once(query: Query) -> None:
            add(9, 1)
            query.batch()
            add(10, 1)
            assert newest(query)["messages"] == 1
            every = query.reader.latestOffset(query.start(), ReadAllAvailable())
            assert places(every) == {"0": (head.ledger_id, 11)}, "Trigger.Once"
            query.reader.prepareForTriggerAvailableNow()
            assert query.plan(), "Trigger.AvailableNow"

        await run(world, once, checkpoint, **given)

        def late(query: Query) -> list[bytes]:
            query.batch()
            add(11, 1)
            return query.batch()

        assert await run(world, late, checkpoint, **given, maxTriggerDelay="1ms") == in_order(11, 1)


async def test_a_message_that_waits_is_counted_once() -> None:
    part = Part(TOPIC, 0)
    asked: list[tuple[int, int]] = []

    class Entries(Heads):
        def __init__(self) -> None:
            pass

        async def some(self, ledger_id: int, first: int, count: int) -> list[Head]:
            asked.append((first, count))
            return [Head(10, 0, 2, None, 0)] * min(count, 4)

    def backlog(entries: int) -> dict[Part, Backlog]:
        return {part: Backlog([Run(5, 0, entries - 1, 10 * entries)], (5, entries))}

    waiting = Waiting()
    assert not await waiting.reaches(20, backlog(6), Entries())
    assert asked == [(0, 6), (4, 2)]
    assert not await waiting.reaches(20, backlog(9), Entries())
    assert asked[2:] == [(6, 3)]
    assert await waiting.reaches(20, backlog(10), Entries())
    assert asked[3:] == [(9, 1)]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay belongs to minMessagesPerTrigger"),
        ({"minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "4"}, "minMessagesPerTrigger=5 is more than"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "expected a time such as 10m"),
    ],
)
def test_what_a_batch_waits_for_is_checked(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse_options({"metadata.url": "zk:x", "topic": "t", **given}, Kind.STREAM)
