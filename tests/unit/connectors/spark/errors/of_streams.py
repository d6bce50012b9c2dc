"""Streams that cannot go on, and how they do."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from connectors.spark.options.read import Kind, parse_options
from connectors.spark.stream.offsets import VERSION
from connectors.spark.stream.retaining import Subscription
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.schemas.stored import version_bytes
from tests.unit.broker.conftest import broker_in_memory
from tests.unit.connectors.spark.entries import single
from tests.unit.connectors.spark.errors.page import case, refused
from tests.unit.connectors.spark.stream.test_driver import (
    HERE,
    KEEPING,
    Broker,
    Query,
    all_committed,
    everything,
    fields_of_long,
    follower,
    grow,
    planned_up_to_a_new_ledger,
    run,
)
from tests.unit.connectors.spark.world import in_order, lag, numbered, spark_world

EARLIEST = {"startingOffsets": "earliest"}
LENIENT = {**EARLIEST, "failOnDataLoss": "false"}


@case(
    "… was removed before it was read",
    "… a batch up to … was planned, and what stands before that is not known (any more)",
    "…To go on without it set failOnDataLoss=false, or begin a new checkpoint",
)
async def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        first, second = await world.ledger(numbered(0, 3)), await world.ledger(numbered(3, 3))
        await world.topic("t", first)
        strict, lenient = follower(world), follower(world, failOnDataLoss="false")
        for one in (strict, lenient):
            await one.look()
        await world.topic("t", second)
        for one in (strict, lenient):
            await one.look_up_to({HERE: (second.ledger_id + 1, 0)})
        with refused() as errors:
            strict.check_whole(HERE, (first.ledger_id, 1), None)
        lenient.check_whole(HERE, (first.ledger_id, 1), None)
        for one in (strict, lenient):
            one.close()
        with refused() as gone:
            await run(world, everything, {"committed": _offset(f"{first.ledger_id}:1")}, **EARLIEST)
        went_on = await run(world, everything, {"committed": _offset(f"{first.ledger_id}:1")}, **LENIENT)
        assert went_on == [in_order(3, 3)]
        checkpoint, old = await planned_up_to_a_new_ledger(world, closed=True)
        lag(monkeypatch, old, 1_000)
        with refused() as planned:
            await run(world, Query.process, checkpoint, **EARLIEST)
        assert await run(world, Query.process, checkpoint, **LENIENT) == in_order(0, 3)
        return errors + planned + gone


def _offset(position: str, topic: str = "t", **more: Any) -> str:
    places = {f"persistent://public/default/{topic}": {"0": position}}
    return json.dumps({"origin": places, "topics": places, "version": VERSION, **more})


@case("…, which the subscription kept …, is gone")
async def moved_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        Broker(world, monkeypatch)
        await world.topic("t", await world.ledger(numbered(0, 5)))
        checkpoint: dict[str, Any] = {}
        await run(world, all_committed, checkpoint, **KEEPING)
        await world.ledger(numbered(5, 5))  # message TTL took it
        await world.topic("t", await world.ledger(numbered(10, 5)))
        with refused() as texts:
            await run(world, everything, checkpoint, **KEEPING)
        lenient = {**KEEPING, "failOnDataLoss": "false"}
        assert await run(world, everything, checkpoint, **lenient) == [in_order(10, 5)]
        return texts


@case(
    "the checkpoint is not one of this source: …",
    "the checkpoint has offsets of version …",
    "… of an offset in the checkpoint cannot be read",
    "the checkpoint is one of …, and the query reads …",
)
async def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger(numbered(0, 3)))
        await world.topic("u", await world.ledger(numbered(3, 3)))
        errors: list[str] = []
        of_u = _offset("0:0", topic="u")
        of_kafka = json.dumps({"t": {"0": 23}})
        for wrong in (of_kafka, _offset("0:0", version=99), _offset("x"), of_u):
            with refused() as texts:
                await run(world, Query.plan, {"committed": wrong}, **EARLIEST)
            errors += texts
            assert await run(world, everything, {}, **EARLIEST) == [in_order(0, 3)], "with a new checkpoint"
        with refused() as repeated:
            await run(world, Query.process, {"committed": of_u, "offset": of_u}, **EARLIEST)
        assert repeated == errors[-1:]
        (batch,) = await run(world, everything, {"committed": of_u}, topicsPattern="t|u", **EARLIEST)
        assert sorted(batch) == in_order(0, 6)
        return errors


@case("… has columns that are newer than this query, which does not read them (…): …")
async def newer_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await world.schema("t", fields_of_long("a"))
        head = await world.ledger([single(b"\x02", schema_version=version_bytes(0))], closed=False)
        await world.topic("t", head)
        loop, given = asyncio.get_running_loop(), {**EARLIEST, "valueFormat": "avro", "columns": ""}
        checkpoint: dict[str, Any] = {}
        errors: list[str] = []

        async def grown() -> None:
            version = await world.schema("t", fields_of_long("a", "b"))
            await grow(head, [single(b"\x04\x06", schema_version=version_bytes(version))])

        def ends(query: Query) -> None:
            asyncio.run_coroutine_threadsafe(grown(), loop).result()
            while not query.plan():
                time.sleep(0.01)
            with refused() as texts:
                query.reader.partitions(query.start(), json.loads(query.checkpoint["offset"]))
            errors.extend(texts)

        def again(query: Query) -> list[Any]:
            tasks = query.reader.partitions(query.start(), json.loads(query.checkpoint["offset"]))
            return [row for task in tasks for batch in query.reader.read(task) for row in batch.to_pylist()]

        await run(world, ends, checkpoint, **given)
        rows = await run(world, again, checkpoint, **given)
        assert [(row["a"], row["b"]) for row in rows] == [(1, 7), (2, 3)]
        return errors


@case("subscription … of … could not be …")
async def subscriptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with broker_in_memory() as broker:
        options = parse_options(
            {"metadata.url": "zk:a", "topic": "t", "subscription": "s", "service.url": broker.url}, Kind.STREAM
        )

        def steps() -> list[str]:
            topic = TopicName.parse("t")
            first, second, own = (Subscription(options, name) for name in ("s", "s", "another"))
            first.keep({topic: None})
            with refused() as texts:
                second.keep({topic: None})
            assert "A query needs a subscription for itself" in texts[0]
            own.keep({topic: None})
            for one in (first, second, own):
                one.close()
            return texts

        return await broker.run(steps)
