"""Values that have no columns, entries that cannot be understood, and bookies that do not give them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from connectors.spark.options.read import Kind, parse_options
from connectors.spark.plan import cluster, cursors
from connectors.spark.plan.cluster import FrozenTopic
from connectors.spark.source import MagnetarSource
from connectors.spark.task import reader
from connectors.spark.values.value_columns import ValueColumns
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.wire.codec_v2 import V2Error
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from magnetar_core.runtime.types import MIB
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.compacted.entry import COMPACTED_LEDGER
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.stored import StoredSchema
from tests.unit.connectors.spark.entries import single
from tests.unit.connectors.spark.errors.page import case, refused
from tests.unit.connectors.spark.plan.test_unconsumed import put_cursor
from tests.unit.connectors.spark.stream.test_driver import Query, everything, run
from tests.unit.connectors.spark.task.test_encryption import encrypted, folder_key
from tests.unit.connectors.spark.task.test_rows import chunk
from tests.unit.connectors.spark.test_compacted import keyed, stored
from tests.unit.connectors.spark.test_reading import record
from tests.unit.connectors.spark.world import SparkWorld, in_order, numbered, reader_of, rows_of, spark_world

AVRO = Schema(SchemaType.AVRO, record(("a", "int")))
OTHER = Schema(SchemaType.AVRO, record(("a", "string"), ("b", "int")))


async def typed(world: SparkWorld, name: str, schema: Schema | None, *entries: bytes) -> None:
    await world.topic(name, await world.ledger(entries))
    if schema is not None:
        await world.schema(name, schema)


@case("valueFormat=…, but the schema of … is …; use …")
async def another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await typed(world, "t", AVRO, single(b"\x02"))
        await typed(world, "text", Schema(SchemaType.STRING, b""), single(b"x"))
        await typed(world, "number", Schema(SchemaType.INT32, b""), single(bytes(4)))
        await typed(world, "bytes", None, single(b"x"))
        errors = []
        for topic, proposed in (
            ("t", "avro, or auto"), ("text", "string, or auto"), ("number", "auto"), ("bytes", "binary, or string"),
        ):  # fmt: skip
            with refused() as texts:
                await world.rows(topic, valueFormat="json")
            assert texts[0].endswith(f"; use {proposed}")
            for way in proposed.split(", or "):
                assert len(await world.rows(topic, valueFormat=way)) == 1
            errors += texts
        return errors[:1]


@case("the topics have different schemas", "column … is … in … and … in …")
async def several_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await typed(world, "t", AVRO, single(b"\x02"))
        await typed(world, "u", OTHER, single(b"\x02x\x02"))
        await typed(world, "v", Schema(SchemaType.AVRO, record(("c", "int"))), single(b"\x02"))

        async def rows(topics: str, **more: str) -> list[dict[str, Any]]:
            options = {"metadata.url": world.url, "topics": topics, "valueFormat": "auto", **more}
            return await asyncio.to_thread(lambda: rows_of(reader_of(options)))

        with refused() as texts:
            await rows("t,v")
        assert len(await rows("t,v", unionSchemas="true")) == 2
        with refused() as of_types:
            await rows("t,u", unionSchemas="true")
        assert len(await rows("t,u", valueFormat="binary")) == 2
        assert len(await rows("u")) == 1
        return texts + of_types


@case("… to take the … from, and none matches")
async def no_topic_to_take_columns_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        options = {"metadata.url": world.url, "topicsPattern": "t.*", "valueFormat": "auto"}
        errors = []
        for more in ({}, {"unionSchemas": "true"}):
            with refused() as texts:
                await asyncio.to_thread(reader_of, options | more)
            errors += texts
        source = MagnetarSource({**options, "valueFormat": "binary"})
        await asyncio.to_thread(lambda: source.streamReader(source.schema()))
        await typed(world, "t", AVRO, single(b"\x02"))
        for more in ({}, {"unionSchemas": "true"}):
            await asyncio.to_thread(reader_of, options | more)
        assert len({text.partition(" ")[0] for text in errors}) == 2
        return errors[:1]


@case("the schema of … is PROTOBUF, which does not tell the numbers of all fields")
async def protobuf_as_avro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await typed(world, "t", Schema(SchemaType.PROTOBUF, record(("a", "int"))), single(b"x"))
        with refused() as texts:
            await world.rows("t", valueFormat="protobuf")
        assert await world.values("t", valueFormat="binary") == [b"x"]
        return texts


@case("… has no schema, and is read with the others as …")
async def a_topic_without_schema_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    version = StoredSchema(0, AVRO, 0, "", False)
    options = parse_options({"metadata.url": "zk:a", "topicsPattern": "t.*", "valueFormat": "avro"}, Kind.STREAM)
    columns = ValueColumns(options, [FrozenTopic(TopicName.parse("t"), (), (version,))])
    with refused() as texts:
        columns.values("persistent://public/default/t2", ())
    assert columns.values("persistent://public/default/t2", (version,)) is not None
    return texts


@case("…; read it with valueFormat=binary", "… use valueFormat=binary and decode it yourself")
async def schemas_without_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        both = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]})
        await typed(world, "broken", None, single(b"1"))
        await world.store.put("/schemas/public/default/broken", b"\xff\xff")
        await typed(world, "union", Schema(SchemaType.JSON, both.encode()), single(b"2"))
        errors = []
        for topic, value in (("broken", b"1"), ("union", b"2")):
            with refused() as texts:
                await world.rows(topic, valueFormat="json")
            errors += texts
            assert await world.values(topic, valueFormat="binary") == [value]
        return errors


@case("…, entry …: …. To go on set mode=PERMISSIVE")
async def not_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await typed(world, "t", AVRO, single(b"\x02"), single(b""))
        with refused() as texts:
            await world.rows("t", valueFormat="avro")
        assert len(await world.rows("t", valueFormat="avro", mode="PERMISSIVE")) == 2
        assert len(await world.rows("t", valueFormat="avro", mode="DROPMALFORMED")) == 1
        return texts


@case("encryption.keys…expected …")
async def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    folder = tmp_path / "keys"
    option = {"encryption.keys": str(folder)}
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger([encrypted(b"secret", "key", folder_key(tmp_path))]))
        errors = []
        with refused() as texts:
            await world.values("t", **option)
        errors += texts
        folder.mkdir()
        with refused() as texts:
            await world.values("t", **option)
        errors += texts
        (folder / "key.pem").write_text("no key")
        with refused() as texts:
            await world.values("t", **option)
        errors += texts
        assert all("expected" in text for text in errors)
        (folder / "key.pem").write_bytes((tmp_path / "private.pem").read_bytes())
        assert await world.values("t", **option) == [b"secret"]
        return errors[-1:]


@case("too few bookies of ledger … of … answer to know where it ends")
async def an_end_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        handle = await world.ledger(numbered(0, 3), closed=False, ensemble_size=2, write_quorum=2, ack_quorum=2)
        await world.topic("t", await world.ledger([single(b"before")]), handle)
        away = handle.metadata.last_segment.ensemble
        for bookie in away:
            await world.cluster.kill(bookie)
        with refused() as texts:
            await world.values("t")
        assert await world.values("t", failOnDataLoss="false") == [b"before"]
        for bookie in away:
            await world.cluster.revive(bookie)
        assert await world.values("t") == [b"before", *in_order(0, 3)]
        return texts


@case("the bookies do not let this reader in: …")
async def not_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whatever failOnDataLoss says: who has no certificate would find the topic empty."""
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger(numbered(0, 3), closed=False))
        await world.topic("closed", await world.ledger(numbered(0, 3)))
        for bookie in world.cluster.bookies.values():
            bookie.refuse = lambda *_: V2Error.EUA
        errors: list[str] = []
        for lenient in ({}, {"failOnDataLoss": "false"}):
            with refused() as of_plan:
                await world.values("t", **lenient)
            with refused() as of_stream:
                await run(world, everything, {}, startingOffsets="earliest", **lenient)
            with refused() as of_task:
                await world.values("closed", **lenient)
            errors += of_plan + of_stream + of_task
        assert all("set bookkeeper.tlsDirectory" in text and "failOnDataLoss" not in text for text in errors), errors
        assert len({text.partition(":")[0] for text in errors}) == 1
        for bookie in world.cluster.bookies.values():
            bookie.refuse = lambda *_: None
        assert await world.values("t") == await world.values("closed") == in_order(0, 3)
        return errors[:1]


@case(
    "cannot find the end of ledger …",
    "ledger … of … cannot be opened",
    "…: entry …:…, for its time: …",
    "what subscription … of … has consumed: …",
    "cannot find what compaction kept of …",
)
async def bookies_that_are_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """They come back in between."""

    async def away(*arguments: Any, **more: Any) -> Any:
        raise BookKeeperError("no bookie answers")

    async with spark_world(tmp_path) as world:
        handle = await world.ledger(numbered(0, 3))
        await world.topic("t", handle)
        await put_cursor(world, "t", "s", (handle.ledger_id, 0))
        errors: list[str] = []

        async def both(place: Any, name: str, **options: str) -> None:
            monkeypatch.setattr(place, name, away)
            with refused() as texts:
                await world.values("t", **options)
            monkeypatch.undo()
            assert await world.values("t", **options) == in_order(1 if "backlogOf" in options else 0, 3)[:3]
            errors.extend(texts)

        await both(BookKeeper, "read_metadata")
        monkeypatch.setattr(BookKeeper, "open_ledger", away)
        with refused() as texts:
            await run(world, Query.plan, {}, startingOffsets="earliest")
        monkeypatch.undo()
        assert await run(world, Query.plan, {}, startingOffsets="earliest")
        errors += texts
        await both(LedgerReadHandle, "read_unconfirmed", startingTimestamp="2001-01-01")
        monkeypatch.setattr(cursors, "stored_cursor", away)
        with refused() as texts:
            await world.values("t", backlogOf="s")
        monkeypatch.undo()
        assert await world.values("t", backlogOf="s") == in_order(1, 2)
        errors += texts
        await both(cluster, "stored_cursor", compacted="true")
        return errors


@case("…: entry …, asked for at …: …")
async def an_entry_that_nobody_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        await world.topic("t", await world.ledger(numbered(0, 3)))
        planned = await world.reader("t", columns="value", **{"bookkeeper.readTimeoutMs": "100"})
        for bookie in world.cluster.bookies.values():
            bookie.silent = True
        with refused() as texts:
            await asyncio.to_thread(rows_of, planned)
        for bookie in world.cluster.bookies.values():
            bookie.silent = False
        assert len(await asyncio.to_thread(rows_of, planned)) == 3
        return texts


@case("ledger … of … is gone, although the topic lists it", "entries … of ledger … are gone")
async def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        one, two = await world.ledger(numbered(0, 3)), await world.ledger(numbered(3, 3))
        await world.topic("t", one, two)
        planned = await world.reader("t", columns="value")
        await world.client.delete_ledger(one.ledger_id)
        with refused() as of_read:
            await asyncio.to_thread(rows_of, planned)
        with refused() as of_plan:
            await world.values("t")
        assert await world.values("t", failOnDataLoss="false") == in_order(3, 3)
        await world.topic("t", two)  # its broker has trimmed it: to load again is enough
        assert await world.values("t") == in_order(3, 3)
        return of_plan + of_read


@case("what compaction kept of … is gone")
async def a_compacted_ledger_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with stored(tmp_path) as topic:
        await topic.append(keyed("a", b"1"), keyed("a", b"2"))
        await topic.compact()
        (cursor,) = [one for one in topic.ledger.cursors.values() if COMPACTED_LEDGER in one.properties]
        await topic.world.client.delete_ledger(cursor.properties[COMPACTED_LEDGER])
        with refused() as texts:
            await topic.view()
        assert await topic.world.values("t") == [b"1", b"2"]
        return texts


@case("what subscription … of … has consumed is gone")
async def a_cursor_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        handle = await world.ledger(numbered(0, 3))
        await world.topic("t", handle)
        cursor = await put_cursor(world, "t", "s", (handle.ledger_id, 0), in_ledger=True)
        assert cursor is not None
        await world.client.delete_ledger(cursor.ledger_id)
        with refused() as texts:
            await world.values("t", backlogOf="s")
        assert await world.values("t") == in_order(0, 3)
        await put_cursor(world, "t", "s", (handle.ledger_id, 1))  # as a reset stores it
        assert await world.values("t", backlogOf="s") == [b"2"]
        return texts


@case("the first chunks of message … to leave the message out")
async def first_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async with spark_world(tmp_path) as world:
        monkeypatch.setattr(reader, "LOOK_BACK_ENTRIES", 20)
        monkeypatch.setattr(reader, "LOOK_BACK_STEP", 10)
        handle = await world.ledger([chunk(0, 2), *numbered(0, 50), chunk(1, 2)])
        await world.topic("t", handle)
        late = json.dumps({"t": {"0": f"{handle.ledger_id}:45"}})
        with refused() as texts:
            await world.values("t", startingOffsets=late)
        assert await world.values("t", startingOffsets=late, failOnDataLoss="false") == in_order(44, 6)
        assert len(await world.values("t")) == 51, "from before its first chunk"
        return texts


@case("a frame of … bytes (limit …, nettyMaxFrameSizeBytes)")
async def large_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    limit = 6 * MIB
    monkeypatch.setattr("tests.support.fake_bookies.FrameSplitter", lambda: FrameSplitter(limit))
    async with spark_world(tmp_path) as world:
        writer = await world.cluster.client(ClientConfig(frame_bytes_max=limit, outbox_bytes_max=2 * limit))
        handle = await writer.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await handle.add(single(bytes(5_300_000)))
        await handle.close()
        await world.topic("t", handle)
        with refused() as texts:
            await world.values("t")
        (value,) = await world.values("t", **{"bookkeeper.nettyMaxFrameSizeBytes": str(limit)})
        assert len(value) == 5_300_000
        return texts
