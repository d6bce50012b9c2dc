"""mode=PERMISSIVE: values that cannot be decoded are nulls beside their bytes, and no row is lost."""

import asyncio
import json
import logging
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.registry import version_bytes
from tests.unit.connectors.spark.entries import batch, message, single
from tests.unit.connectors.spark.test_key_values import key_value, pair
from tests.unit.connectors.spark.test_reading import record
from tests.unit.connectors.spark.world import SparkWorld, reader_of, spark_world

RECORD = record(("a", "int"), ("b", "string"))
GOOD = b"\x02\x02x"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SparkWorld]:
    async with spark_world(tmp_path) as made:
        yield made


async def permissive(world: SparkWorld, schema: Schema, *entries: bytes, **options: str) -> list[dict[str, Any]]:
    """The columns of the values, without those of the messages."""
    await world.topic("t", await world.ledger(entries))
    await world.schema("t", schema)
    rows = await world.rows("t", **{"valueFormat": "auto", "mode": "permissive", **options})
    return [{name: one for name, one in row.items() if name == "__corrupt" or name[:2] != "__"} for row in rows]


async def test_bad_avro_is_null_beside_its_bytes_and_counted(
    world: SparkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    schema = Schema(SchemaType.AVRO, RECORD)
    entry = batch(message(GOOD), message(b"\x02\x7f"), message(b"", null_value=True), message(b"", compacted_out=True))
    with caplog.at_level(logging.WARNING):
        found = await permissive(world, schema, entry, single(GOOD, schema_version=version_bytes(9)), single(GOOD))
    assert found == [
        {"a": 1, "b": "x", "__corrupt": None},
        {"a": None, "b": None, "__corrupt": b"\x02\x7f"},
        {"a": None, "b": None, "__corrupt": None},
        {"a": None, "b": None, "__corrupt": GOOD},
        {"a": 1, "b": "x", "__corrupt": None},
    ]
    assert "persistent://public/default/t: 2 values could not be decoded" in caplog.text


async def test_without_bad_values_nothing_is_corrupt(world: SparkWorld, caplog: pytest.LogCaptureFixture) -> None:
    assert await permissive(world, Schema(SchemaType.AVRO, RECORD), single(GOOD)) == [
        {"a": 1, "b": "x", "__corrupt": None}
    ]
    assert "could not be decoded" not in caplog.text


async def test_json_whose_members_have_other_types_is_corrupt_as_a_whole(world: SparkWorld) -> None:
    texts = (b'{"a": 1, "b": "x"}', b'{"a": "one", "b": "x"}', b"{", b"[1]")
    found = await permissive(world, Schema(SchemaType.JSON, RECORD), *map(single, texts))
    assert [(row["a"], row["b"], row["__corrupt"]) for row in found] == [
        (1, "x", None), *((None, None, text) for text in texts[1:])
    ]  # fmt: skip


async def test_numbers_text_and_pairs_have_the_column_too(world: SparkWorld) -> None:
    found = await permissive(world, Schema(SchemaType.INT32, b""), single(struct.pack(">i", 5)), single(b"12"))
    assert found == [{"value": 5, "__corrupt": None}, {"value": None, "__corrupt": b"12"}]
    found = await permissive(
        world, Schema(SchemaType.STRING, b""), single("ü".encode()), single(b"\xff"), single(b"", null_value=True),
        valueFormat="string",
    )  # fmt: skip
    assert [(row["value"], row["__corrupt"]) for row in found] == [("ü", None), (None, b"\xff"), (None, None)]


async def test_of_a_bad_pair_both_halves_are_null(world: SparkWorld) -> None:
    bad = pair(b"k", b"\xff")
    found = await permissive(world, key_value("STRING", "STRING").schema, single(pair(b"k", b"v")), single(bad))
    assert found == [{"key": "k", "value": "v", "__corrupt": None}, {"key": None, "value": None, "__corrupt": bad}]


async def test_a_key_apart_that_is_not_what_it_says_makes_its_row_corrupt(world: SparkWorld) -> None:
    schema = key_value("INT32", "STRING", "SEPARATED").schema
    good = single(b"v", partition_key="AAAABQ==", partition_key_b64_encoded=True)
    bad = [
        single(b"w", partition_key="AAAA", partition_key_b64_encoded=True),
        single(b"x", partition_key="%", partition_key_b64_encoded=True),
    ]
    found = await permissive(world, schema, good, *bad, columns="key,value,__corrupt")
    assert [(row["key"], row["value"], row["__corrupt"]) for row in found] == [
        (5, "v", None), (None, None, b"w"), (None, None, b"x"),
    ]  # fmt: skip


async def test_the_column_exists_only_where_values_are_decoded_permissively(world: SparkWorld) -> None:
    schema = Schema(SchemaType.AVRO, RECORD)
    assert await permissive(world, schema, single(b"\xff"), columns="__corrupt") == [{"__corrupt": b"\xff"}]
    assert await permissive(world, schema, single(b"\xff"), columns="a") == [{"a": None}]
    assert await world.rows("t", columns="__entryId", valueFormat="auto", mode="PERMISSIVE") == [{"__entryId": 0}]
    assert "__corrupt" not in (await world.rows("t", mode="PERMISSIVE"))[0]
    with pytest.raises(ConfigurationError, match="columns __corrupt do not exist"):
        await world.rows("t", valueFormat="auto", columns="__corrupt")
    with pytest.raises(Corruption, match="message 0 is not what its schema says"):
        await world.rows("t", valueFormat="auto", mode="failfast")
    with pytest.raises(ConfigurationError, match="mode=DROPMALFORMED: expected FAILFAST or PERMISSIVE"):
        await asyncio.to_thread(reader_of, world.options("t", mode="DROPMALFORMED"))


async def test_keys_are_text_if_asked_for(world: SparkWorld) -> None:
    entries = [
        single(b"", partition_key="ü"),
        single(b""),
        single(b"", partition_key="/w==", partition_key_b64_encoded=True),
    ]
    await world.topic("t", await world.ledger(entries))

    async def keys(**options: str) -> list[Any]:
        return [row["__key"] for row in await world.rows("t", columns="__key", **options)]

    assert await keys() == await keys(keyFormat="binary") == ["ü".encode(), None, b"\xff"]
    assert await keys(keyFormat="string", mode="PERMISSIVE") == ["ü", None, None]
    with pytest.raises(Corruption, match=r"/t, entry \d+:2: its key is not text in UTF-8 .*keyFormat=binary"):
        await keys(keyFormat="string")
    assert await keys(keyFormat="string", endingOffsets=await end_at(world, 2)) == ["ü", None]
    with pytest.raises(ConfigurationError, match="keyFormat=json: expected binary or string"):
        await keys(keyFormat="json")


async def end_at(world: SparkWorld, entry_id: int) -> str:
    ledger_id = (await world.rows("t", columns="__ledgerId"))[0]["__ledgerId"]
    return json.dumps({"t": {"0": f"{ledger_id}:{entry_id}"}})
