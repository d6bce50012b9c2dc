"""Compaction with the official client, on bookies with disks in memory and many short ledgers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pulsar
import pytest

from broker.broker import Broker
from broker.topic.compactor import CompactionStatus
from broker.topic.topic import Topic
from managed_ledger.compacted_entry import COMPACTION_CURSOR
from managed_ledger.compacted_ledger import CompactedWriter
from managed_ledger.errors import StorageUnavailable
from managed_ledger.retention import RetentionRule
from managed_ledger.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.test_official_client import TIMEOUT_MS, client, nothing_more
from tests.unit.broker.test_real_storage import Cluster

NAME = TopicName.parse("persistent://public/default/t")

R = TypeVar("R")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def broker(cluster: Cluster) -> Broker:
    cluster.config = replace(
        cluster.config, max_entries_per_ledger=7, min_rollover_minutes=0, retention_minutes=-1, retention_mbytes=-1
    )
    return await cluster.broker()


async def run(broker: Broker, scenario: Callable[[pulsar.Client], R]) -> R:
    def work() -> R:
        with client(broker.address.service_url) as made:
            return scenario(made)

    return await asyncio.to_thread(work)


def publish(c: pulsar.Client, *pairs: tuple[str, str], **options: Any) -> None:
    producer = c.create_producer("t", batching_enabled=False, **options)
    for key, value in pairs:
        producer.send(value.encode(), partition_key=key)
    producer.close()


def view(c: pulsar.Client, *, compacted: bool = True) -> list[tuple[str, str]]:
    """All that a reader gets from the start, as (key, value)."""
    reader = c.create_reader("t", pulsar.MessageId.earliest, is_read_compacted=compacted)
    found = []
    while reader.has_message_available():
        message = reader.read_next(TIMEOUT_MS)
        found.append((message.partition_key(), message.data().decode()))
    reader.close()
    return found


async def topic_of(broker: Broker) -> Topic:
    return await broker.persistent_topic(NAME, create=True)


async def compact(broker: Broker) -> Topic:
    topic = await topic_of(broker)
    assert topic.compactor.start()
    assert not topic.compactor.start(), "one at a time"
    await eventually(lambda: topic.compactor.facts.status is not CompactionStatus.RUNNING)
    assert topic.compactor.facts.status is CompactionStatus.SUCCESS, topic.compactor.facts.last_error
    return topic


def rounds(count: int, keys: int) -> list[tuple[str, str]]:
    return [(f"k{key}", f"{number}") for number in range(count) for key in range(keys)]


async def test_what_will_be_compacted_is_kept_until_it_was(cluster: Cluster) -> None:
    cluster.config = replace(
        cluster.config, max_entries_per_ledger=7, min_rollover_minutes=0, compaction_threshold_bytes=1 << 30
    )
    broker = await cluster.broker()
    await run(broker, lambda c: publish(c, *rounds(4, 5)))
    topic = await topic_of(broker)
    await topic.trim()
    assert topic.ledger.entries_total == 20
    await compact(broker)
    await topic.trim()
    assert topic.ledger.entries_total < 20
    assert await run(broker, view) == [(f"k{key}", "3") for key in range(5)]


async def test_readers_get_the_last_message_of_each_key_and_all_that_came_since(broker: Broker) -> None:
    await run(broker, lambda c: publish(c, *rounds(10, 5), ("gone", "1"), ("gone", "")))
    topic = await compact(broker)
    expected = [(f"k{key}", "9") for key in range(5)]
    assert await run(broker, view) == expected
    await run(broker, lambda c: publish(c, ("k1", "new"), ("other", "new")))
    assert await run(broker, view) == [*expected, ("k1", "new"), ("other", "new")]
    assert len(await run(broker, lambda c: view(c, compacted=False))) == 54
    assert topic.compactor.facts.removed_messages == 47


async def test_a_second_compaction_goes_on_from_the_first_and_deletes_its_ledger(broker: Broker) -> None:
    await run(broker, lambda c: publish(c, *rounds(3, 20)))
    first = (await compact(broker)).compactor.compacted_ledger_id
    await run(broker, lambda c: publish(c, ("k3", ""), ("k4", "later"), ("k20", "first")))
    topic = await compact(broker)
    assert topic.compactor.compacted_ledger_id not in (None, first)
    assert first is not None
    with pytest.raises(StorageUnavailable):
        await topic.ledger.compacted.open(first)
    expected = {**{f"k{key}": "2" for key in range(20) if key != 3}, "k4": "later", "k20": "first"}
    assert dict(await run(broker, view)) == expected
    horizon = topic.compactor.horizon
    await compact(broker)
    assert topic.compactor.horizon == horizon, "nothing came since"


async def test_what_is_left_of_a_truncated_topic_is_read_behind_what_was_compacted(broker: Broker) -> None:
    await run(broker, lambda c: publish(c, *rounds(2, 5)))
    topic = await compact(broker)
    await run(broker, lambda c: publish(c, ("k1", "goes"), *rounds(2, 3), ("k2", "left"), ("k3", "left")))
    await topic.truncate()
    left = topic.ledger.entries_total
    assert 0 < left < 7
    expected = {**dict(rounds(2, 5)), "k2": "left", "k3": "left"}
    assert {**dict(await run(broker, view))} == expected
    await compact(broker)
    assert dict(await run(broker, view)) == expected


async def test_another_broker_goes_on_with_what_was_compacted_and_trimmed(cluster: Cluster, broker: Broker) -> None:
    await run(broker, lambda c: publish(c, *rounds(10, 5)))
    topic = await compact(broker)
    topic.ledger.config = replace(topic.ledger.config, retention=RetentionRule(time_ms=0, bytes_max=0))
    await topic.ledger.trim()
    assert topic.ledger.entries_total < 10
    expected = [(f"k{key}", "9") for key in range(5)]
    assert await run(broker, view) == expected
    other = await cluster.broker()
    assert await run(other, view) == expected
    await run(other, lambda c: publish(c, ("k0", "again")))
    await compact(other)
    assert await run(other, view) == [*expected[1:], ("k0", "again")]


async def test_a_subscription_reads_acknowledges_and_goes_on_after_a_reconnect(broker: Broker) -> None:
    await run(broker, lambda c: publish(c, *rounds(4, 8)))
    await compact(broker)

    def first(c: pulsar.Client) -> list[str]:
        consumer = c.subscribe(
            "t", "s", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=3
        )
        found = []
        for _ in range(5):
            message = consumer.receive(TIMEOUT_MS)
            consumer.acknowledge_cumulative(message)
            found.append(message.partition_key())
        consumer.close()
        return found

    def rest(c: pulsar.Client) -> list[str]:
        consumer = c.subscribe("t", "s", is_read_compacted=True)
        found = [consumer.receive(TIMEOUT_MS).partition_key() for _ in range(3)]
        consumer.redeliver_unacknowledged_messages()
        again = [consumer.receive(TIMEOUT_MS).partition_key() for _ in range(3)]
        assert nothing_more(consumer)
        assert found == again
        return found

    assert await run(broker, first) + await run(broker, rest) == [f"k{key}" for key in range(8)]


async def test_batches_are_compacted_inside(broker: Broker) -> None:
    def send(c: pulsar.Client) -> None:
        producer = c.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=50)
        for key, value in rounds(3, 4):
            producer.send_async(value.encode(), lambda result, message_id: None, partition_key=key)
        producer.flush()
        producer.close()

    await run(broker, send)
    await run(broker, lambda c: publish(c, ("k2", "single")))
    await compact(broker)
    found = [pair for pair in await run(broker, view) if pair[0]]  # this client gives emptied messages too
    assert found == [("k0", "2"), ("k1", "2"), ("k3", "2"), ("k2", "single")]


async def test_where_nothing_is_left_readers_go_on_behind_it(broker: Broker) -> None:
    await run(broker, lambda c: publish(c, ("a", "1"), ("a", "")))
    topic = await compact(broker)
    assert await topic.compactor.last_message() is None
    await run(broker, lambda c: publish(c, ("b", "2")))
    assert await run(broker, view) == [("b", "2")]


async def test_a_reader_goes_on_while_the_topic_is_compacted_again_and_again(broker: Broker) -> None:
    """R-M20: no key is skipped."""
    await run(broker, lambda c: publish(c, *rounds(2, 30)))
    await compact(broker)
    compacted = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(c: pulsar.Client) -> dict[str, str]:
        reader = c.create_reader("t", pulsar.MessageId.earliest, is_read_compacted=True, receiver_queue_size=1)
        found: dict[str, str] = {}
        for number in range(10):
            message = reader.read_next(TIMEOUT_MS)
            found[message.partition_key()] = message.data().decode()
            if number == 5:
                asyncio.run_coroutine_threadsafe(again(), loop).result(60)
        while reader.has_message_available():
            message = reader.read_next(TIMEOUT_MS)
            found[message.partition_key()] = message.data().decode()
        reader.close()
        return found

    async def again() -> None:
        for value in ("x", "y"):
            await run(broker, lambda c: publish(c, *((f"k{key}", value) for key in range(0, 30, 3))))  # noqa: B023
            await compact(broker)
        compacted.set()

    found = await run(broker, slowly)
    assert compacted.is_set()
    assert found == {f"k{key}": "1" if key % 3 else "y" for key in range(30)}


async def test_a_compaction_that_cannot_write_changes_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-M13"""
    await run(broker, lambda c: publish(c, *rounds(2, 5)))
    topic = await compact(broker)
    before = (topic.compactor.horizon, topic.compactor.compacted_ledger_id)
    await run(broker, lambda c: publish(c, ("k1", "new")))
    with monkeypatch.context() as patched:

        async def refuse(*_: object) -> None:
            raise StorageUnavailable("the disks are full")

        patched.setattr("managed_ledger.compacted_ledger.CompactedWriter.close", refuse)
        assert topic.compactor.start()
        await eventually(lambda: topic.compactor.facts.status is CompactionStatus.ERROR)
    assert "the disks are full" in topic.compactor.facts.last_error
    assert (topic.compactor.horizon, topic.compactor.compacted_ledger_id) == before
    assert dict(await run(broker, view)) == {**{f"k{key}": "1" for key in range(5)}, "k1": "new"}
    await compact(broker)
    assert dict(await run(broker, view)) == {**{f"k{key}": "1" for key in range(5)}, "k1": "new"}


async def test_a_compaction_that_ends_after_its_topic_was_closed_leaves_no_ledger(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(broker, lambda c: publish(c, *rounds(2, 5)))
    topic = await topic_of(broker)
    made: list[CompactedWriter] = []
    close = CompactedWriter.close

    async def slow(writer: CompactedWriter) -> None:
        await close(writer)
        await topic.ledger.close()
        made.append(writer)

    monkeypatch.setattr(CompactedWriter, "close", slow)
    assert topic.compactor.start()
    await eventually(lambda: topic.compactor.facts.status is CompactionStatus.ERROR)
    with pytest.raises(StorageUnavailable, match="opened"):
        await topic.ledger.compacted.open(made[0].ledger_id)


async def test_the_compacted_ledger_goes_with_its_topic(broker: Broker) -> None:
    await run(broker, lambda c: publish(c, *rounds(2, 5)))
    topic = await compact(broker)
    ledger_id = topic.compactor.compacted_ledger_id
    assert ledger_id is not None
    assert COMPACTION_CURSOR in topic.ledger.cursors
    await broker.delete_topic(NAME, force=True)
    with pytest.raises(StorageUnavailable):
        await topic.ledger.compacted.open(ledger_id)
