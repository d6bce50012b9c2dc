"""Ledgers of which the topic's record tells: their own records are not read."""

import asyncio
import pickle
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from connectors.spark.plan.cluster import DataLoss
from connectors.spark.plan.recorded import never_was, recorded
from connectors.spark.ranges import Position, Run
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from tests.unit.connectors.spark.stream.test_driver import Query, run
from tests.unit.connectors.spark.world import STEM, SparkWorld, in_order, numbered, rows_of, spark_world


@pytest.mark.parametrize("seed", range(200))
def test_no_position_that_a_topic_ever_had_is_refused_and_those_of_others_are(seed: int) -> None:
    """As brokers keep the record: ids grow and are shared with other topics, the oldest ledgers and empty ones go."""
    rng = random.Random(seed)
    entries: dict[int, int] = {}
    had, others, last = set[Position](), set[int](), rng.randrange(3)
    for _ in range(40):
        step = rng.choice(["write", "write", "roll", "trim"])
        if step == "trim" and len(entries) > 1:
            del entries[min(entries)]
        if step == "roll" or not entries:
            if entries and not entries[last]:
                del entries[last]
            strangers = rng.randrange(3)
            others.update(range(max(others | {last}) + 1, max(others | {last}) + 1 + strangers))
            last = max(others | {last}) + 1
            entries[last] = 0
            had.add((last, 0))
        if step == "write":
            had.add((last, entries[last]))
            entries[last] += 1
            had.add((last, entries[last]))
            had.add((last + 1, 0))
        infos = [ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id) for ledger_id in entries]
        assert [position for position in had if never_was(infos, position)] == []
        strange = {(one, 1) for one in others if one > min(entries)} | {(last + 1, 1), (last + 2, 0)}
        assert [position for position in strange if not never_was(infos, position)] == []


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SparkWorld]:
    async with spark_world(tmp_path) as made:
        yield made


@pytest.fixture
def read_records(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Ledger → how often its own record was read."""
    counted: Counter[int] = Counter()
    real = LedgerStore.read

    async def read(self: LedgerStore, ledger_id: int) -> Versioned:
        counted[ledger_id] += 1
        return await real(self, ledger_id)

    monkeypatch.setattr(LedgerStore, "read", read)
    return counted


async def put(world: SparkWorld, topic: str, ledgers: list[LedgerWriteHandle], entries: list[int]) -> None:
    info = ManagedLedgerInfo()
    for handle, count in zip(ledgers, entries, strict=True):
        info.ledgerInfo.add(ledgerId=handle.ledger_id, entries=count, size=10 * count, timestamp=1)
    await world.store.put(ledger_path(f"{STEM}/{topic}"), info.SerializeToString())


async def many(world: SparkWorld) -> list[LedgerWriteHandle]:
    """Twelve ledgers of five entries, all but the last closed and told of by the topic's record."""
    ledgers = [await world.ledger(numbered(5 * number, 5), closed=number < 11) for number in range(12)]
    await put(world, "t", ledgers, [5] * 11 + [0])
    return ledgers


async def test_a_batch_is_planned_with_one_look_at_a_ledgers_record_that_of_the_last(
    world: SparkWorld, read_records: Counter[int]
) -> None:
    ledgers = await many(world)
    read_records.clear()  # a writer looks at its record when it has new connections
    found = await world.reader("t", columns="value")
    assert set(read_records) == {ledgers[-1].ledger_id}
    assert [row["value"] for row in await asyncio.to_thread(rows_of, found)] == in_order(0, 60)


async def test_a_streams_trigger_without_news_looks_at_the_open_ledger_only(
    world: SparkWorld, read_records: Counter[int]
) -> None:
    ledgers = await many(world)
    seen: list[Counter[int]] = []

    def steps(query: Query) -> None:
        assert query.plan()
        assert sorted(query.process(), key=int) == in_order(0, 60)
        for _ in range(3):
            read_records.clear()
            assert not query.plan(), "there is no news"
            seen.append(read_records.copy())

    await run(world, steps, {}, topic="t", startingOffsets="earliest")
    assert [set(counted) for counted in seen] == [{ledgers[-1].ledger_id}] * 3


async def test_a_recorded_ledger_that_is_gone_is_found_by_its_task(world: SparkWorld) -> None:
    ledgers = await many(world)
    await world.client.delete_ledger(ledgers[3].ledger_id)
    with pytest.raises(DataLoss, match=rf"entries 0 to 4 of ledger {ledgers[3].ledger_id} are gone .* or lost"):
        await world.values("t")
    assert await world.values("t", failOnDataLoss="false") == [*in_order(0, 15), *in_order(20, 40)]


async def test_what_a_task_gets_does_not_grow_with_the_topic(world: SparkWorld) -> None:
    await many(world)
    found = await world.reader("t")
    assert len(pickle.loads(pickle.dumps(found)).partitions()) == 1, "Spark may copy it before it plans"
    partitions = found.partitions()
    assert pickle.loads(pickle.dumps(found)).partitions() == [], "the ledgers of a topic stay at the driver"
    copy = pickle.loads(pickle.dumps(found))

    def read() -> list[bytes]:
        return [row["value"] for part in partitions for made in copy.read(part) for row in made.to_pylist()]

    assert await asyncio.to_thread(read) == in_order(0, 60)


def test_a_ledger_is_believed_to_be_closed_if_another_one_follows_and_it_has_entries() -> None:
    info = ManagedLedgerInfo()
    for ledger_id, entries in ((3, 5), (4, 0), (7, 2), (9, 4)):
        info.ledgerInfo.add(ledgerId=ledger_id, entries=entries, size=0)
    assert recorded(info.ledgerInfo) == ({3: Run(3, 0, 4, 1), 7: Run(7, 0, 1, 1)}, [4, 9])
    assert recorded([]) == ({}, [])
