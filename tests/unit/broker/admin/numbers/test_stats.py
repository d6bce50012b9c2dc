"""Statistics of topics: what is counted, the rates of it, and what a request can ask for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from broker.topic.topic import Topic
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.test_official_client import EARLIEST, QUIET, client, receive

ADMIN = "/admin/v2"
TOPICS = f"{ADMIN}/persistent/public/default"
NAME = TopicName.parse("persistent://public/default/t")


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def stats(world: AdminWorld, side: Side, query: str = "", topic: str = "t") -> Any:
    return (await world.call(side, "GET", f"{TOPICS}/{topic}/stats{query}")).json


class Clients:
    """A producer and consumers that stay while a test looks."""

    def __init__(self, url: str) -> None:
        self.client = pulsar.Client(url, logger=QUIET)
        self.producer = self.client.create_producer("t", batching_enabled=False)

    def subscribe(self, name: str, kind: Any = pulsar.ConsumerType.Exclusive) -> Any:
        return self.client.subscribe("t", name, kind, initial_position=EARLIEST)

    def send(self, count: int) -> None:
        for _ in range(count):
            self.producer.send(b"x" * 10)


@pytest.fixture
async def served(world: AdminWorld) -> AsyncIterator[tuple[Side, Clients, Topic]]:
    side = await world.side()
    clients = await world.run(Clients, side.url)
    yield side, clients, side.broker.topics[NAME]
    await world.run(clients.client.close)


async def test_what_went_out_is_counted_while_consumers_are_there_and_after_they_left(
    world: AdminWorld, served: tuple[Side, Clients, Topic]
) -> None:
    side, clients, topic = served
    consumer = await world.run(clients.subscribe, "s")
    await world.run(clients.send, 4)
    await world.run(receive, consumer, 4)
    for _ in range(2):
        found = await stats(world, side)
        size = found["bytesInCounter"]
        assert (found["msgInCounter"], found["msgOutCounter"], found["bytesOutCounter"]) == (4, 4, size)
        assert found["subscriptions"]["s"]["msgOutCounter"] == 4
        assert found["subscriptions"]["s"]["bytesOutCounter"] == size
        if consumer is not None:
            await world.run(consumer.close)
            await eventually(lambda: not topic.subscriptions["s"].consumers)
            consumer = None
    assert (await world.call(side, "DELETE", f"{TOPICS}/t/subscription/s")).status == 204
    found = await stats(world, side)
    assert (found["msgOutCounter"], found["bytesOutCounter"], found["bytesOutInternalCounter"]) == (4, size, 0)


async def test_rates_are_averages_over_the_period(world: AdminWorld, served: tuple[Side, Clients, Topic]) -> None:
    side, clients, topic = served
    consumer = await world.run(clients.subscribe, "s")
    began_ms = side.broker.now_ms()
    topic.take_rates(began_ms)
    await world.run(clients.send, 20)
    await world.run(receive, consumer, 20)
    await eventually(lambda: topic.subscriptions["s"].cursor.backlog() == 0)
    topic.take_rates(began_ms + 10_000)
    found = await stats(world, side)
    size = found["bytesInCounter"] / 20
    assert found["msgRateIn"] == 2.0
    assert found["msgThroughputIn"] == pytest.approx(2 * size)
    assert found["averageMsgSize"] == pytest.approx(size)
    assert (found["msgRateOut"], found["msgThroughputOut"]) == (2.0, pytest.approx(2 * size))
    (publisher,) = found["publishers"]
    assert (publisher["msgRateIn"], publisher["averageMsgSize"]) == (2.0, pytest.approx(size))
    subscription = found["subscriptions"]["s"]
    assert (subscription["msgRateOut"], subscription["messageAckRate"]) == (2.0, 2.0)
    (one,) = subscription["consumers"]
    assert (one["msgRateOut"], one["messageAckRate"], one["avgMessagesPerEntry"]) == (2.0, 2.0, 1)
    assert one["lastConsumedTimestamp"] >= began_ms
    assert one["lastAckedTimestamp"] >= began_ms
    assert subscription["lastMarkDeleteAdvancedTimestamp"] >= began_ms
    topic.take_rates(began_ms + 70_000)
    found = await stats(world, side)
    assert (found["msgRateIn"], found["msgRateOut"], found["averageMsgSize"]) == (0.0, 0.0, 0.0)


async def test_the_broker_works_rates_out_by_itself(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = asyncio.Event()
    monkeypatch.setattr(Topic, "take_rates", lambda self, now_ms: taken.set())
    side = await world.side(stats_update_s=0)
    await world.call(side, "PUT", f"{TOPICS}/t")
    await asyncio.wait_for(taken.wait(), 10)


async def test_messages_of_batches_are_counted_when_they_are_acknowledged(world: AdminWorld) -> None:
    side = await world.side()

    c = pulsar.Client(side.url, logger=QUIET)

    def use() -> Any:
        consumer = c.subscribe("t", "s", pulsar.ConsumerType.Shared)
        producer = c.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=1000)
        for number in range(12):
            producer.send_async(b"%d" % number, lambda *_: None)
        producer.flush()
        receive(consumer, 12)
        return consumer

    held = await world.run(use)
    subscription = side.broker.topics[NAME].subscriptions["s"]
    await eventually(lambda: not subscription.cursor.backlog())
    assert subscription.counted.acknowledged == 12
    assert [round(one.messages_per_entry) for one in subscription.consumers] == [12]
    del held
    await world.run(c.close)


async def test_delayed_and_blocked_messages_show(world: AdminWorld, served: tuple[Side, Clients, Topic]) -> None:
    side, clients, topic = served
    await world.run(clients.subscribe, "s", pulsar.ConsumerType.Shared)

    def later() -> None:
        for _ in range(3):
            clients.producer.send(b"x", deliver_after=timedelta(hours=1))

    await world.run(later)
    await eventually(lambda: topic.subscriptions["s"].held.delayed == 3)
    found = (await stats(world, side))["subscriptions"]["s"]
    assert (found["msgBacklog"], found["msgDelayed"], found["msgBacklogNoDelayed"]) == (3, 3, 0)
    assert found["delayedMessageIndexSizeInBytes"] == 3 * 32


async def test_a_request_says_what_it_wants(world: AdminWorld, served: tuple[Side, Clients, Topic]) -> None:
    side, clients, _ = served
    before_ms = side.broker.now_ms()
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/old", {"ledgerId": -1, "entryId": -1})
    await world.run(clients.send, 3)
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/new")
    await world.run(clients.subscribe, "live")
    found = await stats(world, side)
    assert [found["subscriptions"][name]["earliestMsgPublishTimeInBacklog"] for name in ("old", "new")] == [0, 0]
    assert found["earliestMsgPublishTimeInBacklogs"] == 0
    assert found["backlogSize"] == found["subscriptions"]["old"]["backlogSize"] == found["storageSize"]
    assert (len(found["publishers"]), len(found["subscriptions"]["live"]["consumers"])) == (1, 1)
    found = await stats(
        world,
        side,
        "?getEarliestTimeInBacklog=true&subscriptionBacklogSize=false&excludePublishers=true&excludeConsumers=true",
    )
    earliest = found["subscriptions"]["old"]["earliestMsgPublishTimeInBacklog"]
    assert before_ms <= earliest <= side.broker.now_ms()
    assert found["earliestMsgPublishTimeInBacklogs"] == earliest
    assert found["subscriptions"]["new"]["earliestMsgPublishTimeInBacklog"] == -1
    assert found["subscriptions"]["old"]["backlogSize"] == -1
    assert (found["publishers"], found["subscriptions"]["live"]["consumers"]) == ([], [])


async def test_partitions_are_asked_for_the_same_and_summed(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    assert (await world.call(a, "PUT", f"{TOPICS}/p/partitions", 4)).status == 204
    await world.call(a, "PUT", f"{TOPICS}/p/subscription/s", {"ledgerId": -1, "entryId": -1})

    def fill() -> None:
        with client(a.url) as c:
            producer = c.create_producer("p", batching_enabled=False)
            for number in range(8):
                producer.send(b"x", partition_key=str(number))

    await world.run(fill)
    path = f"{TOPICS}/p/partitioned-stats"
    found = (await world.call(b, "GET", f"{path}?getEarliestTimeInBacklog=true")).json
    every = [one["earliestMsgPublishTimeInBacklogs"] for one in found["partitions"].values()]
    assert found["earliestMsgPublishTimeInBacklogs"] == min(one for one in every if one)
    assert found["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"] == found["earliestMsgPublishTimeInBacklogs"]
    assert found["backlogSize"] == found["storageSize"] > 0
    found = (await world.call(b, "GET", f"{path}?perPartition=false&subscriptionBacklogSize=false")).json
    assert found["partitions"] == {}
    assert found["subscriptions"]["s"]["backlogSize"] < 0


async def test_a_message_in_parts_shows(world: AdminWorld) -> None:
    side = await world.side(max_message_bytes=4096)
    c = pulsar.Client(side.url, logger=QUIET)

    def send() -> tuple[Any, Any]:
        consumer = c.subscribe("t", "s")
        producer = c.create_producer("t", batching_enabled=False, chunking_enabled=True)
        producer.send(b"x" * 20_000)
        receive(consumer, 1)
        return consumer, producer

    held = await world.run(send)
    topic = side.broker.topics[NAME]
    await eventually(lambda: topic.subscriptions["s"].counted.chunks > 4)
    topic.take_rates(side.broker.now_ms() + 1000)
    found = await stats(world, side)
    assert found["msgChunkPublished"] is True
    assert found["publishers"][0]["chunkedMessageRate"] > 0
    assert found["subscriptions"]["s"]["chunkedMessageRate"] > 0
    assert found["subscriptions"]["s"]["consumers"][0]["chunkedMessageRate"] > 0
    del held
    await world.run(c.close)


async def test_exclusive_access_shows_its_epoch(world: AdminWorld) -> None:
    side = await world.side()

    def use() -> None:
        with client(side.url) as c:
            c.create_producer("t", access_mode=pulsar.ProducerAccessMode.Exclusive)

    await world.run(use)
    assert (await stats(world, side))["topicEpoch"] == 0


async def test_the_age_of_the_oldest_message_is_known_when_its_ledger_is_closed(
    world: AdminWorld, served: tuple[Side, Clients, Topic]
) -> None:
    side, clients, _ = served
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/slow", {"ledgerId": -1, "entryId": -1})
    await world.run(clients.send, 3)
    found = await stats(world, side)
    assert found["oldestBacklogMessageAgeSeconds"] == -1
    assert "oldestBacklogMessageSubscriptionName" not in found
    topic = side.broker.topics[NAME]
    ledger_id = topic.ledger.ledgers.last_confirmed.ledger_id
    assert (await world.call(side, "PUT", f"{TOPICS}/t/unload")).status == 204
    await world.run(clients.send, 1)
    topic = side.broker.topics[NAME]
    assert topic.ledger.ledgers.last_confirmed.ledger_id > ledger_id
    closed_ms = topic.ledger.ledgers.closed_ms(ledger_id)
    topic.ledger.ledgers.info(ledger_id).timestamp = closed_ms - 100_000
    found = await stats(world, side)
    assert 100 <= found["oldestBacklogMessageAgeSeconds"] < 200
    assert found["oldestBacklogMessageSubscriptionName"] == "slow"
    lines = (await world.call(side, "GET", "/metrics")).text.splitlines()
    (line,) = [one for one in lines if one.startswith("pulsar_storage_backlog_age_seconds{") and '/t"' in one]
    assert 100 <= float(line.rpartition(" ")[2]) < 200
    await world.call(side, "POST", f"{TOPICS}/t/subscription/slow/skip_all")
    assert (await stats(world, side))["oldestBacklogMessageAgeSeconds"] == -1


async def test_a_client_of_several_partitions_is_counted_once(world: AdminWorld) -> None:
    side = await world.side()
    assert (await world.call(side, "PUT", f"{TOPICS}/p/partitions", 3)).status == 204

    def meet() -> tuple[pulsar.Client, Any]:
        made = pulsar.Client(side.url, logger=QUIET)
        kind = pulsar.ConsumerType.Shared
        consumers = [made.subscribe("p", "s", kind, consumer_name=name) for name in "ab"]
        consumers.append(made.subscribe("p-partition-1", "s", kind, consumer_name="a"))  # of the same name, another one
        producer = made.create_producer("p", producer_name="one", batching_enabled=False)
        made.create_producer("p")  # the broker names it, in each partition otherwise
        for number in range(6):
            producer.send(b"x", partition_key=str(number))
        return made, consumers

    made, _ = await world.run(meet)
    found = (await world.call(side, "GET", f"{TOPICS}/p/partitioned-stats")).json
    await world.run(made.close)
    assert [one["producerName"] == "one" for one in found["publishers"]] == [True, False]
    consumers = found["subscriptions"]["s"]["consumers"]
    assert [one["consumerName"] for one in consumers] == ["a", "b", "a"]
    assert sum(one["unackedMessages"] for one in consumers) == 6
    assert len(found["partitions"]["persistent://public/default/p-partition-0"]["publishers"]) == 2


async def test_a_consumer_without_a_name_has_none(world: AdminWorld, served: tuple[Side, Clients, Topic]) -> None:
    """The clients name their consumers; a reader has no name, and none is made up for it."""
    side, clients, _ = served
    reader = await world.run(clients.client.create_reader, "t", pulsar.MessageId.earliest)
    (subscription,) = (await stats(world, side))["subscriptions"].values()
    await world.run(reader.close)
    assert [one["consumerName"] for one in subscription["consumers"]] == [""]


async def test_gaps_in_what_a_reader_acknowledged_are_counted(
    world: AdminWorld, served: tuple[Side, Clients, Topic]
) -> None:
    """Clients acknowledge by themselves what they cannot decode. (Seen with Apache 4.0.8.)"""
    side, clients, topic = served
    reader = await world.run(lambda: clients.client.create_reader("t", pulsar.MessageId.earliest, reader_name="r"))
    await world.run(clients.send, 3)
    (subscription,) = topic.subscriptions.values()
    subscription.cursor.delete([topic.ledger.ledgers.last_confirmed])
    (found,) = (await stats(world, side))["subscriptions"].values()
    assert (found["msgBacklog"], found["nonContiguousDeletedMessagesRanges"]) == (2, 1)
    await world.run(reader.close)
