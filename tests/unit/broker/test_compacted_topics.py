"""Compaction with the official client, on bookies with disks in memory and many short ledgers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pulsar
import pytest

from broker.broker import Broker
from broker.topic.compaction.compactor import CompactionStatus
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.compacted.entry import COMPACTION_CURSOR
from managed_ledger.compacted.ledger import CompactedWriter
from managed_ledger.errors import StorageUnavailable
from managed_ledger.retention import RetentionRule
from tests.support.waiting import eventually
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.test_official_client import TIMEOUT_MS, client, nothing_more, receive
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
    return await broker.opening.persistent(NAME, create=True)


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
    assert topic.ledger.ledgers.entries_total == 20
    await compact(broker)
    await topic.trim()
    assert topic.ledger.ledgers.entries_total < 20
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
    left = topic.ledger.ledgers.entries_total
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
    assert topic.ledger.ledgers.entries_total < 10
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

        patched.setattr("managed_ledger.compacted.ledger.CompactedWriter.close", refuse)
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
    with pytest.raises(StorageUnavailable, match="is gone"):
        await topic.ledger.compacted.open(made[0].ledger_id)


async def test_the_compacted_ledger_goes_with_its_topic(broker: Broker) -> None:
    await run(broker, lambda c: publish(c, *rounds(2, 5)))
    topic = await compact(broker)
    ledger_id = topic.compactor.compacted_ledger_id
    assert ledger_id is not None
    assert COMPACTION_CURSOR in topic.ledger.cursors
    await broker.deleting.delete_topic(NAME, force=True)
    with pytest.raises(StorageUnavailable):
        await topic.ledger.compacted.open(ledger_id)


# -------------------------------------------------------------------- what only the compacted ledger has

KEYS = [f"k{key}" for key in range(10)]


class Kept:
    """A topic of which twenty messages over ten keys were compacted, and whose own ledgers were all trimmed."""

    def __init__(self, cluster: Cluster, broker: Broker) -> None:
        self.cluster = cluster
        self.broker = broker

    @staticmethod
    async def make(cluster: Cluster, broker: Broker) -> "Kept":
        made = Kept(cluster, broker)
        await made.run(lambda c: publish(c, *rounds(2, 10)))
        await compact(broker)
        await made.trim()
        return made

    async def trim(self) -> None:
        """Retention ends, and another broker takes over, which closes the last ledger."""
        self.cluster.config = replace(self.cluster.config, retention_minutes=0, retention_mbytes=0)
        await self.take_over()
        topic = await topic_of(self.broker)
        await topic.trim()
        assert topic.ledger.ledgers.entries_total == 0

    async def run(self, scenario: Callable[[pulsar.Client], R]) -> R:
        return await run(self.broker, scenario)

    async def unload(self) -> None:
        await self.broker.opening.unload(NAME)

    async def take_over(self) -> None:
        """Another broker serves the topic. The former one is not asked; what it has not stored by now is lost."""
        for cursor in (await topic_of(self.broker)).ledger.cursors.values():
            await cursor.flush()
        self.broker = await self.cluster.broker()

    async def expect(self, keys: Sequence[str], name: str = "s", **options: Any) -> None:
        """These come to a consumer, and nothing more; none is acknowledged."""

        def work(c: pulsar.Client) -> list[str]:
            consumer = subscribed(c, name, **options)
            found = [message.partition_key() for message in receive(consumer, len(keys), acknowledge=False)]
            assert nothing_more(consumer)
            consumer.close()
            return found

        assert await self.run(work) == list(keys)

    async def expect_always(self, keys: Sequence[str], name: str = "s") -> None:
        """These come, and again after an unload, after a takeover, and after an unload of that."""
        for end in (self.unload, self.take_over, self.unload):
            await self.expect(keys, name)
            await end()
        await self.expect(keys, name)


@pytest.fixture
async def kept(cluster: Cluster, broker: Broker) -> Kept:
    return await Kept.make(cluster, broker)


def subscribed(c: pulsar.Client, name: str = "s", **options: Any) -> Any:
    options = {"initial_position": pulsar.InitialPosition.Earliest, "is_read_compacted": True, **options}
    return c.subscribe("t", name, **options)


Acknowledge = Callable[[Any, list[Any]], None]


def all_ten(c: pulsar.Client, acknowledge: Acknowledge | None = None, name: str = "s", **options: Any) -> list[Any]:
    """What a consumer gets of the topic, of which *acknowledge* acknowledges some."""
    consumer = subscribed(c, name, **options)
    found = receive(consumer, len(KEYS), acknowledge=False)
    assert [message.partition_key() for message in found] == KEYS
    if acknowledge is not None:
        acknowledge(consumer, found)
    consumer.close()
    return found


def holes(consumer: Any, found: list[Any]) -> None:
    for at in (0, 3, 5, 4):
        consumer.acknowledge(found[at])


def first_four(consumer: Any, found: list[Any]) -> None:
    consumer.acknowledge_cumulative(found[3])


def everything(consumer: Any, found: list[Any]) -> None:
    for message in reversed(found):
        consumer.acknowledge(message)


@pytest.mark.parametrize(
    ("acknowledge", "left"),
    [(None, KEYS), (holes, KEYS[1:3] + KEYS[6:]), (first_four, KEYS[4:]), (everything, [])],
)
async def test_what_was_not_acknowledged_comes_again_where_only_compaction_has_it(
    kept: Kept, acknowledge: Acknowledge | None, left: list[str]
) -> None:
    await kept.run(lambda c: all_ten(c, acknowledge))
    await kept.expect_always(left)


async def test_acknowledging_what_came_since_does_not_acknowledge_what_only_compaction_has(kept: Kept) -> None:
    """Apache's brokers lose k1 to k9 here."""

    def work(c: pulsar.Client) -> None:
        consumer = subscribed(c)
        found = receive(consumer, len(KEYS), acknowledge=False)
        publish(c, ("k0", "new"), ("k1", "new"), ("other", "new"))
        found += receive(consumer, 3, acknowledge=False)
        for at in (0, 10, 11):
            consumer.acknowledge(found[at])
        consumer.close()

    await kept.run(work)
    await kept.expect_always([*KEYS[1:], "other"])
    await compact(kept.broker)
    await kept.expect_always([*KEYS[2:], "other"])  # the later k1 is acknowledged


async def test_what_was_consumed_one_by_one_holds_back_no_trimming_and_does_not_come_again(kept: Kept) -> None:
    def work(c: pulsar.Client) -> None:
        all_ten(c, everything)
        consumer = subscribed(c)
        publish(c, *rounds(2, 10))
        receive(consumer, 20)
        consumer.close()

    await kept.run(work)
    await compact(kept.broker)
    await kept.trim()
    await kept.expect_always([])


async def test_single_acknowledgements_of_all_that_was_kept_leave_no_backlog(broker: Broker) -> None:
    """What compaction left out nobody gets, and nobody acknowledges."""
    await run(broker, lambda c: publish(c, *rounds(3, 10), ("gone", "1"), ("gone", "")))
    topic = await compact(broker)
    loop = asyncio.get_running_loop()

    def consumed() -> bool:
        subscription = topic.subscriptions["s"]
        return subscription.backlog == subscription.cursor.range_count == 0

    def acknowledge(consumer: Any, found: list[Any]) -> None:
        everything(consumer, found)
        asyncio.run_coroutine_threadsafe(eventually(consumed), loop).result(60)

    await run(broker, lambda c: all_ten(c, acknowledge))


async def test_a_seek_survives_an_unload_also_before_what_is_left_of_the_topic(kept: Kept) -> None:
    ids = await kept.run(lambda c: all_ten(c, everything))
    since_ms = ids[4].publish_timestamp()
    later = [one.partition_key() for one in ids if one.publish_timestamp() >= since_ms]

    async def seek(to: Any) -> None:
        def work(c: pulsar.Client) -> None:
            consumer = subscribed(c)
            consumer.seek(to)
            consumer.close()

        await kept.run(work)

    for to, left in (
        (pulsar.MessageId.earliest, KEYS),
        (pulsar.MessageId.latest, []),
        (ids[6].message_id(), KEYS[6:]),
        (int(time.time() * 1000) + 60_000, []),
        (since_ms, later),
    ):
        await seek(to)
        await kept.expect(left)
        await kept.unload()
        await kept.expect(left)


async def test_a_subscription_that_begins_at_the_end_gets_nothing_of_it_after_an_unload(kept: Kept) -> None:
    await kept.expect([], "late", initial_position=pulsar.InitialPosition.Latest)
    await kept.expect_always([], "late")
    await kept.run(lambda c: publish(c, ("k3", "new")))
    await kept.expect_always(["k3"], "late")


async def test_each_subscription_has_its_own_place_and_a_reader_goes_on_during_a_compaction(kept: Kept) -> None:
    await kept.run(lambda c: all_ten(c, first_four, "a"))
    await kept.run(lambda c: all_ten(c, holes, "b", consumer_type=pulsar.ConsumerType.Failover))
    await kept.run(lambda c: all_ten(c, everything, "c"))
    loop = asyncio.get_running_loop()

    async def meanwhile() -> None:
        await kept.run(lambda c: publish(c, ("k4", "new"), ("k5", "")))
        await compact(kept.broker)

    def table(c: pulsar.Client) -> dict[str, str]:
        reader = c.create_reader("t", pulsar.MessageId.earliest, is_read_compacted=True, receiver_queue_size=1)
        found: dict[str, str] = {}
        while reader.has_message_available():
            message = reader.read_next(TIMEOUT_MS)
            found.pop(message.partition_key(), None)
            if message.data():
                found[message.partition_key()] = message.data().decode()
            if message.partition_key() == "k1":
                asyncio.run_coroutine_threadsafe(meanwhile(), loop).result(60)
        reader.close()
        return found

    expected = {key: "1" for key in KEYS if key != "k5"} | {"k4": "new"}
    assert await kept.run(table) == expected
    await kept.expect_always(["k6", "k7", "k8", "k9", "k4"], "a")
    await kept.expect_always(["k1", "k2", "k6", "k7", "k8", "k9", "k4"], "b")
    await kept.expect_always(["k4"], "c")


async def test_a_batch_that_is_acknowledged_in_part_comes_again_in_part(cluster: Cluster) -> None:
    cluster.config = replace(cluster.config, batch_index_acks=True, retention_minutes=-1, retention_mbytes=-1)
    kept = Kept(cluster, await cluster.broker())

    def send(c: pulsar.Client) -> None:
        producer = c.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=50)
        for key, value in rounds(1, 4):
            producer.send_async(value.encode(), lambda result, message_id: None, partition_key=key)
        producer.flush()
        producer.close()

    await kept.run(send)
    await compact(kept.broker)
    await kept.trim()

    def some(c: pulsar.Client) -> None:
        consumer = subscribed(c, batch_index_ack_enabled=True)
        found = receive(consumer, 4, acknowledge=False)
        consumer.acknowledge(found[0])
        consumer.acknowledge(found[2])
        consumer.close()

    await kept.run(some)
    await kept.expect_always(["k1", "k3"])

    def up_to(c: pulsar.Client) -> None:
        consumer = subscribed(c, batch_index_ack_enabled=True)
        found = receive(consumer, 2, acknowledge=False)
        consumer.acknowledge_cumulative(found[0])
        consumer.close()

    await kept.run(up_to)
    await kept.expect_always(["k3"])


async def test_a_consumer_of_the_topic_itself_goes_past_what_only_compaction_has(kept: Kept) -> None:
    """It can never get it; and as long as it acknowledges nothing, nobody loses anything by it."""
    await kept.run(lambda c: publish(c, ("k0", "new"), ("k1", "new")))
    await kept.expect(["k0", "k1"], is_read_compacted=False)
    await kept.expect([*KEYS, "k0", "k1"])

    def work(c: pulsar.Client) -> None:
        consumer = subscribed(c, is_read_compacted=False)
        receive(consumer, 1)
        consumer.close()

    await kept.run(work)
    await kept.expect_always(["k1"])
    assert (await topic_of(kept.broker)).subscriptions["s"].backlog == 1


async def test_a_topic_is_not_in_use_only_when_what_only_compaction_has_was_consumed(kept: Kept) -> None:
    kept.cluster.config = replace(
        kept.cluster.config,
        delete_inactive_topics=True,
        delete_inactive_topics_mode="delete_when_subscriptions_caught_up",
        delete_inactive_topics_s=3600,
    )
    await kept.run(lambda c: all_ten(c, holes))
    await kept.unload()
    await kept.take_over()
    later_ms = int(time.time() * 1000) + 10_000_000
    topic = await topic_of(kept.broker)
    assert topic.subscriptions["s"].backlog == 0
    assert not topic.is_idle(later_ms)
    await topic.clear_backlog("s")
    assert topic.is_idle(2 * later_ms)
    await kept.expect_always([])


async def test_a_terminated_topic_ends_behind_what_only_compaction_has(kept: Kept) -> None:
    """A client that is told the end earlier reads no further."""
    topic = await topic_of(kept.broker)
    await topic.terminate()
    raw = await RawClient.connect(kept.broker.port)
    await raw.subscribe(NAME.full, permits=4, read_compacted=True, initialPosition=wire.CommandSubscribe.Earliest)
    for _ in range(4):
        await raw.expect(BaseCommand.MESSAGE)
    assert await raw.nothing_came()
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=20)
    ids = [(await raw.expect(BaseCommand.MESSAGE)).message.message_id for _ in range(6)]
    assert await raw.nothing_came()
    raw.send(BaseCommand.ACK, consumer_id=1, ack_type=wire.CommandAck.Cumulative, message_id=[ids[-1]])
    await raw.expect(BaseCommand.REACHED_END_OF_TOPIC)
    raw.close()


async def test_the_cursor_of_compaction_is_no_subscription_of_clients(broker: Broker) -> None:
    """With a retention of nothing its acknowledgement would take what compaction has kept."""
    await run(broker, lambda c: publish(c, ("a", "1"), ("b", "2"), ("a", "3")))
    await compact(broker)
    cursor = broker.topics[NAME].ledger.cursors[COMPACTION_CURSOR]
    before = (cursor.mark_delete_position, dict(cursor.properties))
    raw = await RawClient.connect(broker.port)
    wanted = {"topic": NAME.full, "subscription": COMPACTION_CURSOR, "consumer_id": 1, "request_id": 1}
    for kind in (wire.CommandSubscribe.Exclusive, wire.CommandSubscribe.Shared):
        for durable in (True, False):
            raw.send(BaseCommand.SUBSCRIBE, subType=kind, durable=durable, read_compacted=not durable, **wanted)
            assert await raw.refused() in (wire.ProducerBusy, wire.NotAllowedError)
    raw.send(
        BaseCommand.PRODUCER, topic=NAME.full, producer_id=1, request_id=2,
        initial_subscription_name=COMPACTION_CURSOR,
    )  # fmt: skip
    assert await raw.refused() == wire.ProducerBusy
    raw.send(BaseCommand.UNSUBSCRIBE, consumer_id=1, request_id=3)
    assert await raw.refused() == wire.MetadataError
    raw.close()
    assert (cursor.mark_delete_position, dict(cursor.properties)) == before
    assert COMPACTION_CURSOR not in broker.topics[NAME].subscriptions
    assert await run(broker, view) == [("b", "2"), ("a", "3")]
