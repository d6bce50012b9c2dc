"""The index of messages on real bookies: many short ledgers, owners that close and owners that are fenced."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from broker.broker import Broker
from broker.settings.groups.ledgers import INDEX_INTERCEPTOR
from broker.topic.topic import Topic
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import message_count, metadata_of, split_entry
from managed_ledger.position import EARLIEST
from managed_ledger.reading.entry_index import index_in
from tests.unit.broker.test_official_client import client
from tests.unit.broker.test_real_storage import Cluster, cluster

__all__ = ["cluster"]

NAME = TopicName.parse("persistent://public/default/t")


@pytest.fixture
def indexing(cluster: Cluster) -> Cluster:
    cluster.config = replace(
        cluster.config,
        entry_metadata_interceptors=(INDEX_INTERCEPTOR,),
        max_entries_per_ledger=4,
        min_rollover_minutes=0,
        retention_minutes=-1,
        retention_mbytes=-1,
    )
    return cluster


async def publish(broker: Broker, single: int, batched: int) -> None:
    def work() -> None:
        with client(broker.address.service_url) as c:
            producer = c.create_producer("t", batching_enabled=False)
            for _ in range(single):
                producer.send(b"single")
            batches = c.create_producer("t", batching_enabled=True, batching_max_messages=3)
            for _ in range(batched):
                batches.send_async(b"batched", lambda *_: None)
            batches.flush()

    await asyncio.to_thread(work)


async def topic_of(broker: Broker) -> Topic:
    return await broker.opening.persistent(NAME, create=True)


async def entries_of(topic: Topic) -> list[tuple[int | None, int]]:
    """(index, messages) of each entry, in order."""
    found: list[tuple[int | None, int]] = []
    at = topic.ledger.ledgers.next_position(EARLIEST)
    while at <= topic.ledger.ledgers.last_confirmed:
        answer = topic.ledger.read(at, 100, 1 << 20)
        for entry in answer if isinstance(answer, Sequence) else await answer:
            parts = split_entry(entry.data)
            found.append((index_in(entry.data), message_count(metadata_of(parts), len(parts.payload))))
            at = topic.ledger.ledgers.next_position(entry.position)
    return found


async def test_each_message_has_its_index_over_ledgers_and_owners(indexing: Cluster) -> None:
    first = await indexing.broker()
    await publish(first, 9, 10)
    assert (await topic_of(first)).ledger.index == 18
    second = await indexing.broker()
    await topic_of(second)  # fences the first one, and writes nothing
    third = await indexing.broker()
    await publish(third, 3, 4)
    topic = await topic_of(third)
    expected, last = [], -1
    for _, count in await entries_of(topic):
        last += count
        expected.append((last, count))
    assert await entries_of(topic) == expected
    assert last == topic.ledger.index == 25
    assert len(topic.ledger.stats()["ledgers"]) > 3


async def test_who_is_not_told_to_gives_no_index(cluster: Cluster) -> None:
    broker = await cluster.broker()
    await publish(broker, 2, 0)
    topic = await topic_of(broker)
    assert await entries_of(topic) == [(None, 1), (None, 1)]
    assert topic.ledger.index == -1
    assert dict(topic.ledger.properties) == {}
