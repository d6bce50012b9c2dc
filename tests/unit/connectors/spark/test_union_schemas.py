"""Topics with different schemas in one DataFrame."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from connectors.spark.options.read import Kind, parse_options
from connectors.spark.plan.cluster import FrozenTopic, freeze
from connectors.spark.values.value_columns import ValueColumns
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.stored import StoredSchema
from tests.unit.connectors.spark.entries import single
from tests.unit.connectors.spark.test_reading import record
from tests.unit.connectors.spark.values.test_key_values import key_value, pair
from tests.unit.connectors.spark.world import SparkWorld, reader_of, rows_of, spark_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SparkWorld]:
    async with spark_world(tmp_path) as made:
        yield made


async def topic(world: SparkWorld, name: str, schema: Schema | None, *entries: bytes) -> None:
    await world.topic(name, await world.ledger(entries))
    if schema is not None:
        await world.schema(name, schema)


async def united(world: SparkWorld, topics: str, **more: str) -> list[dict[str, Any]]:
    """Without the columns of the messages."""
    options = {"metadata.url": world.url, "topics": topics, "valueFormat": "auto", "unionSchemas": "true", **more}
    rows = await asyncio.to_thread(lambda: rows_of(reader_of(options)))
    return [{name: one for name, one in row.items() if name == "__corrupt" or name[:2] != "__"} for row in rows]


AVRO = Schema(SchemaType.AVRO, record(("a", "int"), ("b", "string")))
JSON = Schema(SchemaType.JSON, record(("b", "string"), ("c", "double")))


async def test_columns_are_united_by_name_and_absent_ones_are_null(world: SparkWorld) -> None:
    await topic(world, "avro", AVRO, single(b"\x02\x02x"))
    await topic(world, "json", JSON, single(b'{"b": "y", "c": 0.5}'))
    await topic(world, "pairs", key_value("STRING", "STRING").schema, single(pair(b"k", None)))
    nothing = dict.fromkeys(("a", "b", "c", "key", "value"))
    assert await united(world, "avro,json,pairs") == [
        {**nothing, "a": 1, "b": "x"}, {**nothing, "b": "y", "c": 0.5}, {**nothing, "key": "k"},
    ]  # fmt: skip
    assert await united(world, "avro,json", columns="c,a") == [{"c": None, "a": 1}, {"c": 0.5, "a": None}]
    await topic(world, "broken", JSON, single(b"{"))
    assert await united(world, "avro,broken", mode="PERMISSIVE", columns="a,b,__corrupt") == [
        {"a": 1, "b": "x", "__corrupt": None}, {"a": None, "b": None, "__corrupt": b"{"},
    ]  # fmt: skip


async def test_a_topic_without_schema_brings_its_bytes(world: SparkWorld) -> None:
    await topic(world, "json", JSON, single(b'{"b": "y"}'))
    await topic(world, "none", None, single(b"n"))
    assert await united(world, "json,none") == [
        {"b": "y", "c": None, "value": None}, {"b": None, "c": None, "value": b"n"},
    ]  # fmt: skip


async def test_a_name_with_two_types_is_refused_naming_both(world: SparkWorld) -> None:
    await topic(world, "one", Schema(SchemaType.AVRO, record(("a", "int"))))
    await topic(world, "two", Schema(SchemaType.AVRO, record(("a", "long"))))
    with pytest.raises(ConfigurationError, match=r"column a is int in .*/one and bigint in .*/two; read them apart"):
        await united(world, "one,two")


async def test_what_one_topic_demands_may_be_missing_in_another(world: SparkWorld) -> None:
    """A nested field that is not nullable in one topic's schema."""
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
    loose = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "int"]}]}
    for name, kind, value in (("strict", inner, b"\x02"), ("loose", loose, b"\x00")):
        definition = {"type": "record", "name": "R", "fields": [{"name": "inner", "type": kind}]}
        await topic(world, name, Schema(SchemaType.AVRO, json.dumps(definition).encode()), single(value))
    assert await united(world, "strict,loose") == [{"inner": {"x": 1}}, {"inner": {"x": None}}]


async def test_a_topic_that_joins_a_stream_fills_the_columns_that_there_are(world: SparkWorld) -> None:
    await topic(world, "avro", AVRO)
    options = parse_options(
        {"metadata.url": world.url, "topic": "avro", "valueFormat": "auto", "unionSchemas": "true"}, Kind.STREAM
    )
    frozen: list[FrozenTopic] = await freeze(options)
    columns = ValueColumns(options, frozen)
    assert columns.needs_schema
    joined = columns.values("later", [StoredSchema(0, JSON, 0, "", False)])
    assert joined is not None
    assert joined.decoder(0)(b'{"b": "y", "c": 1}')["b"] == "y"
    assert columns.unread("later", [StoredSchema(0, JSON, 0, "", False)]) == ["c"]
    assert columns.unread("later", []) == ["value"]
    other = StoredSchema(0, Schema(SchemaType.AVRO, record(("b", "long"))), 0, "", False)
    with pytest.raises(ConfigurationError, match="column b is string in the query and bigint in other"):
        columns.values("other", [other])
    newer = StoredSchema(1, Schema(SchemaType.AVRO, record(("a", "int"))), 0, "", False)
    known = columns.values(str(frozen[0].topic), [*frozen[0].schemas, newer])
    assert known is not None
    assert known.decoder(0)(b"\x02\x02x") == {"a": 1, "b": "x"}  # as at load()
    assert columns.unread(str(frozen[0].topic), [*frozen[0].schemas, newer]) == []
