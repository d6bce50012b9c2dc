"""A cluster of small bookies beside which the source reads, from threads of its own as under Spark."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from connectors.spark.plan import cluster
from connectors.spark.source import MagnetarReader, MagnetarSource
from connectors.spark.task import reader
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, Node
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import Clock, LoopClock
from managed_ledger.ledgers.shadows import SHADOW_SOURCE
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from managed_ledger.schemas.compatibility import Schema, Strategy
from managed_ledger.schemas.registry import SchemaRegistry
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.faulty_store import FaultyStore
from tests.unit.connectors.spark.entries import single

STEM = "public/default/persistent"


class SparkWorld:
    """Topics whose ledgers the test writes itself."""

    def __init__(self, directory: Path, store: EmbeddedStore, cluster: FakeCluster, client: BookKeeper) -> None:
        self.url = f"rocksdb:{directory / 'metadata'}"
        self.store = store
        self.cluster = cluster
        self.client = client

    async def ledger(
        self,
        entries: Sequence[bytes],
        *,
        closed: bool = True,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
    ) -> LedgerWriteHandle:
        """A ledger with these entries, all acknowledged."""
        handle = await self.client.create_ledger(
            ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
        )
        if entries:
            first = handle.append(entries)
            await handle.wait_for(first + len(entries) - 1)
        if closed:
            await handle.close()
        return handle

    async def topic(self, name: str, *ledgers: LedgerWriteHandle | int) -> None:
        """Let the topic's record list these ledgers."""
        info = ManagedLedgerInfo()
        for ledger in ledgers:
            info.ledgerInfo.add(ledgerId=ledger if isinstance(ledger, int) else ledger.ledger_id)
        await self.store.put(ledger_path(f"{STEM}/{name}"), info.SerializeToString())

    async def moved_to_tiered_storage(self, name: str, ledger: LedgerWriteHandle, entries: int) -> None:
        """As an Apache broker does with a ledger of *entries* that is closed: the bookies have it no more."""
        node = await self.store.get(ledger_path(f"{STEM}/{name}"))
        assert node is not None
        record = ManagedLedgerInfo.FromString(bytes(node.value))
        (info,) = (info for info in record.ledgerInfo if info.ledgerId == ledger.ledger_id)
        info.entries, info.size, info.timestamp = entries, 100, 1
        info.offloadContext.complete = info.offloadContext.bookkeeperDeleted = True
        info.offloadContext.driverMetadata.name = "aws-s3"
        info.offloadContext.driverMetadata.properties.add(key="bucket", value="cold")
        await self.client.delete_ledger(ledger.ledger_id)
        await self.store.put(node.path, record.SerializeToString())

    async def shadow(self, name: str, source: str, partitions: int) -> str:
        """A shadow topic of *source*, whose record has no ledgers; returns the name of the first partition that was
        used, or its own."""
        info = ManagedLedgerInfo()
        if partitions:
            more = {"partitions": partitions, "properties": {SHADOW_SOURCE: source}}
            await self.store.put(f"/admin/partitioned-topics/{STEM}/{name}", json.dumps(more).encode())
            name += "-partition-0"
        else:
            info.properties.add(key=SHADOW_SOURCE, value=source)
        await self.store.put(ledger_path(f"{STEM}/{name}"), info.SerializeToString())
        return name

    async def partitions(self, name: str, count: int) -> None:
        await self.store.put(f"/admin/partitioned-topics/{STEM}/{name}", json.dumps({"partitions": count}).encode())

    async def schema(self, name: str, schema: Schema) -> int:
        registry = SchemaRegistry(self.client, self.store, LoopClock())
        return await registry.put_if_absent(f"public/default/{name}", schema, Strategy.ALWAYS_COMPATIBLE)

    def options(self, topic: str, **more: str) -> dict[str, str]:
        return {"metadata.url": self.url, "topic": topic, **more}

    async def reader(self, topic: str, **more: str) -> MagnetarReader:
        return await asyncio.to_thread(reader_of, self.options(topic, **more))

    async def rows(self, topic: str, **more: str) -> list[dict[str, Any]]:
        """Plan and read everything."""
        return await asyncio.to_thread(lambda: rows_of(reader_of(self.options(topic, **more))))

    async def values(self, topic: str, **more: str) -> list[Any]:
        return [row["value"] for row in await self.rows(topic, columns="value", **more)]


class LaggingStore(FaultyStore):
    """Answers with *old* nodes, as a server does that is behind, until it has been asked *syncs* times to catch up."""

    def __init__(self, inner: MetadataStore, old: Mapping[str, Node | None], syncs: int) -> None:
        super().__init__(inner)
        self._old = old
        self._syncs = syncs

    async def get(self, path: str) -> Node | None:
        return self._old[path] if self._syncs > 0 and path in self._old else await self.inner.get(path)

    async def exists(self, path: str) -> bool:
        return await self.get(path) is not None

    async def sync(self) -> None:
        self._syncs -= 1
        await self.inner.sync()


def lag(monkeypatch: pytest.MonkeyPatch, old: Mapping[str, Node | None], syncs: int) -> None:
    """From now on connections of the source lead to such a server."""

    async def open_lagging(url: str, clock: Clock, **more: Any) -> MetadataStore:
        return LaggingStore(await open_store(url, clock, **more), old, syncs)

    monkeypatch.setattr(cluster, "open_store", open_lagging)


def reader_of(options: dict[str, str]) -> MagnetarReader:
    source = MagnetarSource(options)
    found = source.reader(source.schema())
    assert isinstance(found, MagnetarReader)
    return found


def rows_of(found: MagnetarReader) -> list[dict[str, Any]]:
    return [row for partition in found.partitions() for batch in found.read(partition) for row in batch.to_pylist()]


def numbered(first: int, count: int, size: int = 0) -> list[bytes]:
    """Entries of one message each: its number, filled up."""
    return [single(b"%d" % number + b" " * size) for number in range(first, first + count)]


def in_order(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@asynccontextmanager
async def spark_world(directory: Path) -> AsyncIterator[SparkWorld]:
    store = await EmbeddedStore.open(directory / "metadata", LoopClock())
    try:
        async with fake_cluster(3, store) as cluster:
            try:
                yield SparkWorld(directory, store, cluster, await cluster.client())
            finally:
                for connection in list(reader._connections.values()):
                    await asyncio.to_thread(connection.close)
                reader._connections.clear()
    finally:
        await store.close()
