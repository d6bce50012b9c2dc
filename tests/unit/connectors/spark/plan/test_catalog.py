"""Which topics there are: what is known of each, also where bookies are away."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from connectors.spark.options.read import Place
from connectors.spark.plan import catalog, cluster
from connectors.spark.plan.catalog import Listed, list_topics
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from managed_ledger.schemas.compatibility import Schema, SchemaType
from tests.unit.connectors.spark.world import SparkWorld, numbered, spark_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SparkWorld]:
    async with spark_world(tmp_path) as made:
        yield made


async def listed(world: SparkWorld, namespace: str | None = None, **options: str) -> dict[str, Listed]:
    """By the last part of the name and the partition."""
    rows = await asyncio.to_thread(list_topics, world.url, namespace, options)
    return {
        f"{row.topic.rpartition('/')[2]}{'' if row.partition is None else f'-{row.partition}'}": row for row in rows
    }


async def in_namespace(world: SparkWorld, namespace: str, name: str) -> None:
    """A topic without ledgers."""
    await world.store.put(ledger_path(f"{namespace}/persistent/{name}"), ManagedLedgerInfo().SerializeToString())


async def test_a_ledger_whose_bookies_are_away_leaves_a_row_with_what_is_known(world: SparkWorld) -> None:
    await world.schema("open", Schema(SchemaType.STRING, b""))
    still_open = await world.ledger(numbered(0, 20), closed=False, ensemble_size=2, write_quorum=2, ack_quorum=2)
    closed = await world.ledger(numbered(0, 30))
    await world.topic("open-partition-1", closed, still_open)
    await world.partitions("open", 2)
    await world.topic("closed", closed)
    before = await listed(world)
    assert before["open-1"].entries == 50
    for bookie in still_open.metadata.last_segment.ensemble:
        world.cluster.bookies[bookie].silent = True
    after = await listed(world, **{"bookkeeper.readTimeoutMs": "200"})
    assert after["closed"] == before["closed"], "the bookies of a closed ledger are not asked"
    assert after["open-0"].entries == 0
    assert after["open-0"].end is None
    found = after["open-1"]
    assert (found.ledgers, found.entries, found.size_bytes, found.end) == (2, None, None, None)
    assert found.problem is not None
    assert f"ledger {still_open.ledger_id}" in found.problem
    assert before["open-1"].problem is None


async def test_a_schema_that_cannot_be_read_is_null_and_the_sizes_are_not(world: SparkWorld) -> None:
    await world.schema("typed", Schema(SchemaType.STRING, b""))
    handle = await world.ledger(numbered(0, 20))
    await world.topic("typed", handle)
    await world.topic("plain", handle)
    assert (await listed(world))["typed"].schema_type == "STRING"
    for bookie in world.cluster.bookies.values():
        bookie.silent = True
    rows = await listed(world, **{"bookkeeper.readTimeoutMs": "200"})
    typed, plain = rows["typed"], rows["plain"]
    assert (typed.entries, typed.schema_type, typed.schema_versions, typed.schema) == (20, None, None, None)
    assert typed.problem is not None
    assert "its schema is not known" in typed.problem
    assert (plain.entries, plain.schema_type, plain.schema_versions, plain.problem) == (20, "NONE", 0, None)


async def test_a_pattern_that_names_its_namespace_is_one_of_that_namespace(world: SparkWorld) -> None:
    for namespace in ("public/default", "public/sales", "acme/sales"):
        await in_namespace(world, namespace, f"t-{namespace.replace('/', '-')}")
    assert set(await listed(world)) == {"t-public-default", "t-public-sales", "t-acme-sales"}
    assert set(await listed(world, topicsPattern="t-.*-sales")) == {"t-public-sales", "t-acme-sales"}
    assert set(await listed(world, topicsPattern="persistent://acme/sales/.*")) == {"t-acme-sales"}
    assert set(await listed(world, "acme/sales", topicsPattern="acme/sales/.*")) == {"t-acme-sales"}
    with pytest.raises(ConfigurationError, match=r"of namespace acme/sales, not of public/sales"):
        await listed(world, "public/sales", topicsPattern="acme/sales/.*")


async def test_all_namespaces_are_listed_by_one_connection(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await in_namespace(world, f"tenant-{number}/n", "t")
    connected, urls = cluster.connected, list[str]()

    def counted(place: Place) -> object:
        urls.append(place.metadata_url)
        return connected(place)

    monkeypatch.setattr(catalog, "connected", counted)
    rows = await asyncio.to_thread(list_topics, world.url, None, {})
    assert len(rows) == 5
    assert urls == [world.url]
