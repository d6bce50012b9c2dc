"""Columns, tables, topics and metadata that are not as the options say."""

import asyncio
import socket
import sys
from pathlib import Path

import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceReader

from connectors.spark.plan import cluster
from connectors.spark.plan.catalog import list_topics
from connectors.spark.source import MagnetarSource
from tests.unit.connectors.spark.entries import single
from tests.unit.connectors.spark.errors.page import case, refused
from tests.unit.connectors.spark.plan.test_unconsumed import put_cursor
from tests.unit.connectors.spark.world import SparkWorld, in_order, numbered, reader_of, spark_world

VALUE = t.StructType([t.StructField("value", t.BinaryType(), True)])


async def some(world: SparkWorld, name: str = "t") -> None:
    await world.topic(name, await world.ledger(numbered(0, 3)))


@case(
    "… do not exist; there are …",
    "column … does not exist; there are …",
    "no columns are asked for",
    "column … is asked for more than once",
    "column … is …, not …",
    "column … may be null, so it cannot be asked for as NOT NULL",
    "columns=… and the schema with … both choose columns",
)
async def columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await some(world)
        options = world.options("t")
        errors = []

        def projected(schema: t.StructType, **more: str) -> None:
            MagnetarSource({**options, **more}).reader(schema)

        def all_steps() -> None:
            with refused() as texts:
                reader_of({**options, "columns": "valeu"})
            errors.extend(texts)
            field = t.StructField("value", t.BinaryType(), True)
            for wrong in (
                [t.StructField("valeu", t.BinaryType(), True)], [], [field, field],
                [t.StructField("value", t.LongType(), True)], [t.StructField("value", t.BinaryType(), False)],
            ):  # fmt: skip
                with refused() as texts:
                    projected(t.StructType(wrong))
                errors.extend(texts)
            with refused() as texts:
                projected(VALUE, columns="__key")
            errors.extend(texts)
            reader_of({**options, "columns": "value"})
            projected(VALUE)

        await asyncio.to_thread(all_steps)
        return errors


@case(
    "no metadata.url: Spark hands over no options of a table with columns of its own",
    "An INSERT has none of its table's options",
)
async def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await some(world)

        def all_steps() -> list[str]:
            with refused() as errors:
                MagnetarSource({}).reader(VALUE)
            table = MagnetarSource({**world.options("t", columns="value"), "provider": "magnetar"}).schema()
            MagnetarSource({}).reader(table)
            with refused() as of_insert:
                MagnetarSource({}).writer(VALUE, False)
            MagnetarSource({"service.url": "pulsar://a:6650", "topic": "t"}).writer(VALUE, False)
            return errors + of_insert

        return await asyncio.to_thread(all_steps)


@case("topics are appended to, not overwritten")
async def overwriting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    source = MagnetarSource({"service.url": "pulsar://a:6650", "topic": "t"})
    with refused() as texts:
        source.writer(VALUE, True)
    source.writer(VALUE, False)
    return texts


@case("… needs PySpark … or later", "… need PySpark … or later")
async def an_older_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await some(world)
        options = world.options("t")
        monkeypatch.delattr(DataSourceReader, "pushFilters")
        with refused() as texts:
            await asyncio.to_thread(reader_of, {**options, "pushDownFilters": "true"})
        await asyncio.to_thread(reader_of, options)
        monkeypatch.undo()
        source = MagnetarSource(options)
        schema = await asyncio.to_thread(source.schema)
        for name in [name for name in sys.modules if name.startswith("connectors.spark.stream.driver")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
        with refused() as of_streams:
            await asyncio.to_thread(source.streamReader, schema)
        monkeypatch.undo()
        await asyncio.to_thread(source.streamReader, schema)
        return texts + of_streams


@case("no topic matches topicsPattern=…")
async def patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await some(world)
        with refused() as texts:
            await asyncio.to_thread(reader_of, {"metadata.url": world.url, "topicsPattern": "x.*"})
        await asyncio.to_thread(
            reader_of, {"metadata.url": world.url, "topicsPattern": "persistent://public/default/t.*"}
        )
        return texts


@case("namespace …: expected tenant/namespace", "topicsPattern is of namespace …, not of …")
async def namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await some(world)
        pattern = {"topicsPattern": "persistent://public/default/t.*"}
        with refused() as texts:
            await asyncio.to_thread(list_topics, world.url, "default", {})
        assert len(await asyncio.to_thread(list_topics, world.url, "public/default", {})) == 1
        with refused() as of_both:
            await asyncio.to_thread(list_topics, world.url, "acme/sales", pattern)
        assert len(await asyncio.to_thread(list_topics, world.url, None, pattern)) == 1
        return texts + of_both


@case("metadata.url=…: there are no metadata in …")
async def another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await some(world)
        with refused() as texts:
            await asyncio.to_thread(reader_of, {**world.options("t"), "metadata.url": f"rocksdb:{tmp_path}"})
        proposed = texts[0].rpartition(" ")[2]
        await asyncio.to_thread(reader_of, {**world.options("t"), "metadata.url": proposed})
        with refused() as of_nothing:
            await asyncio.to_thread(reader_of, {**world.options("t"), "metadata.url": "rocksdb:/nowhere"})
        assert "data folder of `magnetar standalone`" in of_nothing[0]
        return texts


@case("metadata.url=…: no ZooKeeper answers there within …")
async def silent_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await some(world)
        assert cluster.CONNECT_S == 10
        monkeypatch.setattr(cluster, "CONNECT_S", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"zk:127.0.0.1:{silent.getsockname()[1]}"
            with refused() as texts:
                await asyncio.to_thread(reader_of, {**world.options("t"), "metadata.url": url})
        await asyncio.to_thread(reader_of, world.options("t"))
        return texts


@case("topic … does not exist")
async def a_topic_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        with refused() as of_nothing:
            await world.values("orders")
        assert of_nothing[0].endswith("namespace public/default has no topics in it")
        await some(world, "orders")
        await some(world, "__internal")
        with refused() as texts:
            await world.values("Ordres")
        assert texts[0].endswith("; did you mean orders?")
        assert await world.values("orders") == in_order(0, 3)
        with refused() as of_another:
            await world.values("xyz")
        assert of_another[0].endswith("of the 1 topics of namespace public/default none is like it: orders, …")
        return texts


@case("… has no subscription …; …")
async def a_subscription_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        handle = await world.ledger(numbered(0, 3))
        await world.topic("t", handle)
        await put_cursor(world, "t", "billing", (handle.ledger_id, 0))
        with refused() as texts:
            await world.values("t", backlogOf="biling")
        assert await world.values("t", backlogOf=texts[0].rpartition(" ")[2]) == in_order(1, 2)
        return texts


@case("… has no ledgers of its own, read its source")
async def a_shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await some(world)
        await world.shadow("s", "persistent://public/default/t", 0)
        with refused() as texts:
            await world.values("s")
        assert "persistent://public/default/t" in texts[0]
        assert await world.values("persistent://public/default/t") == in_order(0, 3)
        return texts


@case("the record of …'s partitions is …")
async def a_damaged_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await some(world, "t-partition-0")
        await world.store.put("/admin/partitioned-topics/public/default/persistent/t", b"x")
        with refused() as texts:
            await world.values("t")
        assert await world.values("t-partition-0") == in_order(0, 3)
        return texts


@case("…: ledger … is in tiered storage")
async def tiered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        one, two = await world.ledger(numbered(0, 2)), await world.ledger(numbered(2, 3))
        await world.topic("t", one, two)
        await world.moved_to_tiered_storage("t", one, 2)
        with refused() as texts:
            await world.values("t")
        behind = f'{{"t": {{"0": "{two.ledger_id}:0"}}}}'
        assert await world.values("t", startingOffsets=behind) == in_order(2, 3)
        return texts


@case("…, entry …: it belongs to the transaction …")
async def a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        handle = await world.ledger([single(b"0"), single(b"1", txnid_most_bits=1, txnid_least_bits=2)])
        await world.topic("t", handle)
        with refused() as texts:
            await world.values("t")
        assert await world.values("t", endingOffsets=f'{{"t": {{"0": "{handle.ledger_id}:1"}}}}') == [b"0"]
        return texts
