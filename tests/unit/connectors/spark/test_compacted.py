"""The compacted view of a topic: what compaction kept, and what came since."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.topic.compaction.compactor import CompactionStatus, Compactor
from connectors.spark.options.read import parse_options
from connectors.spark.plan.cluster import DataLoss
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.compacted.entry import COMPACTED_LEDGER, COMPACTION_CURSOR
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata, SingleMessageMetadata
from tests.support.waiting import eventually
from tests.unit.connectors.spark.world import STEM, SparkWorld, spark_world


def keyed(key: str, value: bytes) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key=key)
    return encode_entry(metadata, value)


def batch(*pairs: tuple[str, bytes]) -> bytes:
    payload = b""
    for key, value in pairs:
        single = SingleMessageMetadata(partition_key=key, payload_size=len(value)).SerializeToString()
        payload += len(single).to_bytes(4) + single + value
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=len(pairs))
    return encode_entry(metadata, payload)


class Stored:
    """A topic that is open, as at its broker."""

    def __init__(self, world: SparkWorld, ledger: ManagedLedger, compactor: Compactor) -> None:
        self.world = world
        self.ledger = ledger
        self.compactor = compactor

    async def append(self, *entries: bytes) -> None:
        for entry in entries:
            before = self.ledger.ledgers.last_confirmed
            self.ledger.append([entry], [None])
            await eventually(lambda before=before: self.ledger.ledgers.last_confirmed > before)  # type: ignore[misc]

    async def compact(self) -> None:
        assert self.compactor.start()
        await eventually(lambda: self.compactor.facts.status is CompactionStatus.SUCCESS)

    async def view(self, **more: str) -> list[tuple[bytes, bytes]]:
        rows = await self.world.rows("t", columns="__key,value", compacted="true", **more)
        return [(row["__key"], row["value"]) for row in rows]


@asynccontextmanager
async def stored(directory: Path) -> AsyncIterator[Stored]:
    clock = LoopClock()
    async with spark_world(directory) as world:
        config = ManagedLedgerConfig(ensemble_size=3, write_quorum=3, ack_quorum=2)
        factory = ManagedLedgerFactory(world.client, world.store, clock, config)
        ledger = await factory.open(f"{STEM}/t")
        tasks = Tasks("test")
        topic = TopicName.parse("persistent://public/default/t")
        try:
            yield Stored(world, ledger, Compactor(topic, ledger, clock, tasks, asyncio.Semaphore()))
        finally:
            await tasks.cancel()
            await factory.close()


async def test_a_topic_that_was_never_compacted_is_read_whole(tmp_path: Path) -> None:
    async with stored(tmp_path) as topic:
        await topic.append(keyed("a", b"1"), keyed("a", b"2"))
        assert await topic.view() == [(b"a", b"1"), (b"a", b"2")]


async def test_of_each_key_the_last_message_and_then_what_came_since(tmp_path: Path) -> None:
    async with stored(tmp_path) as topic:
        await topic.append(keyed("a", b"1"), batch(("b", b"1"), ("a", b"2"), ("c", b"1")), keyed("b", b""))
        await topic.compact()
        assert await topic.view() == [(b"a", b"2"), (b"c", b"1")]
        assert len(await topic.world.rows("t", columns="__entryId", compacted="true")) == 2, "of one batch"
        await topic.append(keyed("c", b"2"), keyed("d", b"1"))
        assert await topic.view() == [(b"a", b"2"), (b"c", b"1"), (b"c", b"2"), (b"d", b"1")]
        await topic.compact()
        assert await topic.view(minPartitions="3") == [(b"a", b"2"), (b"c", b"2"), (b"d", b"1")]
        assert len(await topic.world.rows("t")) == 7, "without the option everything is read"


async def test_messages_keep_the_ids_that_they_had(tmp_path: Path) -> None:
    async with stored(tmp_path) as topic:
        await topic.append(keyed("a", b"1"), keyed("a", b"2"), keyed("b", b"1"))
        await topic.compact()
        await topic.append(keyed("c", b"1"))
        plain = await topic.world.rows("t", columns="__messageId,value")
        kept = await topic.world.rows("t", columns="__messageId,value", compacted="true")
        assert kept == plain[1:]


async def test_a_compacted_ledger_that_is_gone_is_a_loss_and_not_an_empty_frame(tmp_path: Path) -> None:
    async with stored(tmp_path) as topic:
        await topic.append(keyed("a", b"1"))
        await topic.compact()
        cursor = topic.ledger.cursors[COMPACTION_CURSOR]
        await topic.world.client.delete_ledger(cursor.properties[COMPACTED_LEDGER])
        with pytest.raises(DataLoss, match="what compaction kept"):
            await topic.view()


def test_parts_of_a_compacted_topic_are_refused() -> None:
    given = {"metadata.url": "zk:h:1", "topic": "t", "compacted": "true"}
    assert parse_options(given).compacted
    with pytest.raises(ConfigurationError, match="leave out"):
        parse_options({**given, "startingOffsets": '{"t": {"0": "1:1"}}'})
