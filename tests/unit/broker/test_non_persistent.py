"""Non-persistent topics: bare frames and the official Python client."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest

from broker.binary.consumers import ConnectionConsumers
from broker.errors import NotAllowed
from broker.ownership.rules import BrokerAddress
from broker.topic.non_persistent.topic import NonPersistentTopic
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import NO_ID
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.test_official_client import TIMEOUT_MS, client, nothing_more, receive, shares, texts

TOPIC = "non-persistent://public/default/t"
NAME = TopicName.parse(TOPIC)


@pytest.fixture
async def raw(world: BrokerInMemory) -> AsyncIterator[RawClient]:
    made = await RawClient.connect(world.broker.port)
    yield made
    made.close()


async def receipts(raw: RawClient, count: int) -> list[tuple[int, int]]:
    """(sequence id, entry id) of the receipts that come next."""
    found = []
    for _ in range(count):
        receipt = (await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt
        found.append((receipt.sequence_id, receipt.message_id.entryId))
    return found


# ------------------------------------------------------------------------------------ bare frames


async def test_a_receipt_and_a_message_have_the_id_zero_and_nothing_is_stored(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.produce(TOPIC)
    await raw.subscribe(TOPIC)
    raw.publish(1, 7)
    receipt = (await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt
    assert (receipt.sequence_id, receipt.message_id.ledgerId, receipt.message_id.entryId) == (7, 0, 0)
    message = (await raw.expect(BaseCommand.MESSAGE)).message
    assert (message.message_id.ledgerId, message.message_id.entryId) == (0, 0)
    assert world.ledgers.opened == []


async def test_a_message_without_a_consumer_that_has_permits_is_dropped_and_counted(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.produce(TOPIC)
    await raw.subscribe(TOPIC, permits=1)
    raw.publish(1, 0, 1, 2)
    kinds = [(await raw.answer()).type for _ in range(4)]
    assert kinds.count(BaseCommand.MESSAGE) == 1
    assert await raw.nothing_came()
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=10)
    assert await raw.nothing_came(), "what was dropped does not come later"
    topic = world.broker.non_persistent.by_name[NAME]
    assert topic.subscriptions["s"].dropped_messages == 2
    topic.take_rates(world.broker.now_ms() + 60_000)
    assert topic.subscriptions["s"].drops.values[0] > 0


async def test_messages_above_the_limit_of_a_connection_are_dropped_and_counted(world: BrokerInMemory) -> None:
    await world.restart(max_non_persistent=3)
    raw = await RawClient.connect(world.broker.port)
    await raw.produce(TOPIC)
    raw.publish(1, 0, 1, 2, 3, 4)
    assert await receipts(raw, 5) == [(0, 0), (1, 0), (2, 0), (3, NO_ID), (4, NO_ID)]
    raw.publish(1, 5)
    assert await receipts(raw, 1) == [(5, 0)], "the next chunk has the limit for itself"
    topic = world.broker.non_persistent.by_name[NAME]
    (producer,) = topic.producers.values()
    assert (producer.dropped_messages, topic.messages_in) == (2, 4)
    raw.close()


async def test_what_needs_stored_messages_is_refused_or_does_nothing(raw: RawClient) -> None:
    await raw.subscribe(TOPIC)
    raw.send(BaseCommand.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=5)
    assert await raw.refused() == wire.UnknownError
    raw.send(BaseCommand.SEEK, consumer_id=1, request_id=6, message_publish_time=1)
    await raw.expect(BaseCommand.SUCCESS)
    compacted = {"consumer_id": 2, "request_id": 7, "read_compacted": True}
    raw.send(BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="c", subType=0, **compacted)
    assert await raw.refused() == wire.NotAllowedError


async def test_a_subscription_ends_with_its_last_consumer(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.subscribe(TOPIC)
    raw.send(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=3)
    await raw.expect(BaseCommand.SUCCESS)
    assert world.broker.non_persistent.by_name[NAME].subscriptions == {}


async def test_either_kind_of_topics_may_be_switched_off(world: BrokerInMemory) -> None:
    await world.restart(enable_non_persistent_topics=False)
    with pytest.raises(NotAllowed, match="enableNonPersistentTopics=false"):
        await world.broker.topic_for_producer(NAME)
    await world.restart(enable_non_persistent_topics=True, enable_persistent_topics=False)
    await world.broker.topic_for_producer(NAME)
    with pytest.raises(NotAllowed, match="enablePersistentTopics=false"):
        await world.broker.topic_for_producer(TopicName.parse("t"))


async def test_a_lost_bundle_takes_its_topics_along_and_the_clients_come_back(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.produce(TOPIC)
    bundle = (await world.broker.namespace("public/default")).bundles.bundle_of(NAME)
    world.ownership.lose(bundle)
    await raw.expect(BaseCommand.CLOSE_PRODUCER)
    assert world.broker.non_persistent.by_name == {}
    raw.publish(1, 0)
    assert await raw.nothing_came(), "no receipt for what nobody takes"
    await raw.produce(TOPIC)


async def test_a_topic_is_not_opened_in_a_bundle_that_was_given_away_meanwhile(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would close it: its producers would go on to publish where no consumer comes."""
    count_of_base = world.broker.partitioned.count_of_base
    policies = await world.broker.namespace("public/default")

    async def slow(topic: TopicName) -> int:
        world.ownership.move(NAME, BrokerAddress("pulsar://elsewhere:6650"))
        await world.broker.opening.unload_bundle(policies.bundles.bundle_of(NAME))
        return await count_of_base(topic)

    monkeypatch.setattr(world.broker.partitioned, "count_of_base", slow)
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=2)
    assert await raw.refused() == wire.ServiceNotReady
    assert world.broker.non_persistent.by_name == {}


async def test_a_topic_that_is_opened_while_policies_change_gets_the_new_ones(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_of_base = world.broker.partitioned.count_of_base
    changed: list[str] = []

    async def on_change(name: str) -> None:
        changed.append(name)

    world.broker.on_permissions_changed.append(on_change)
    await world.broker.topic_for_producer(TopicName.parse("non-persistent://public/default/other"))

    async def slow(topic: TopicName) -> int:
        await world.set_policies("public/default", max_producers_per_topic=1)
        await eventually(lambda: bool(changed))
        return await count_of_base(topic)

    monkeypatch.setattr(world.broker.partitioned, "count_of_base", slow)
    await world.broker.topic_for_producer(NAME)
    assert world.broker.non_persistent.by_name[NAME].policies.max_producers_per_topic == 1


async def test_an_idle_topic_is_forgotten_and_one_in_use_is_not(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC)
    await world.broker.non_persistent.forget_idle(0)
    assert NAME in world.broker.non_persistent.by_name
    raw.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=2)
    await raw.expect(BaseCommand.SUCCESS)
    await world.broker.non_persistent.forget_idle(3600)
    assert NAME in world.broker.non_persistent.by_name
    await world.broker.non_persistent.forget_idle(0)
    assert NAME not in world.broker.non_persistent.by_name


async def test_a_topic_that_was_opened_again_while_others_are_forgotten_stays(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = world.broker.non_persistent
    other = TopicName.parse("non-persistent://public/default/other")
    policies = (await world.broker.topic_for_producer(NAME)).policies
    topics.open(other, policies)
    close = topics.close

    async def slow(name: TopicName) -> None:
        await close(name)
        if name == NAME:
            await close(other)
            topics.open(other, policies)

    monkeypatch.setattr(topics, "close", slow)
    before = topics.by_name[other]
    await topics.forget_idle(0)
    assert set(topics.by_name) == {other}
    assert topics.by_name[other] is not before
    assert not topics.by_name[other].is_closed


async def test_a_message_that_is_not_encrypted_is_refused_where_that_is_required(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.produce(TOPIC, encrypted=True)
    await world.set_policies("public/default", encryption_required=True)
    await eventually(lambda: world.broker.non_persistent.by_name[NAME].policies.encryption_required)
    raw.publish(1, 7)
    error = (await raw.expect(BaseCommand.SEND_ERROR)).send_error
    assert (error.sequence_id, error.error) == (7, wire.MetadataError)


async def test_policies_of_the_namespace_hold(world: BrokerInMemory, raw: RawClient) -> None:
    await world.broker.topic_for_producer(NAME)
    await world.set_policies("public/default", max_producers_per_topic=1, max_consumers_per_subscription=1)
    await eventually(lambda: world.broker.non_persistent.by_name[NAME].policies.max_producers_per_topic == 1)
    await raw.produce(TOPIC)
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=2, request_id=2)
    assert await raw.refused() == wire.ProducerBusy
    await raw.subscribe(TOPIC, subType=wire.CommandSubscribe.Shared)
    raw.send(BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", subType=1, consumer_id=2, request_id=3)
    await raw.expect(BaseCommand.PING)  # is the consumer in the way alive?
    raw.send(BaseCommand.PONG)
    assert await raw.refused() == wire.ConsumerBusy


async def test_a_dead_consumer_does_not_keep_its_own_successor_away(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await raw.subscribe(TOPIC)
    topic = world.broker.non_persistent.by_name[NAME]
    (dead,) = topic.subscriptions["s"].consumers

    async def found_dead() -> bool:
        topic.detach_consumer(dead)
        return False

    monkeypatch.setattr(ConnectionConsumers, "is_alive", lambda consumers: found_dead())
    other = await RawClient.connect(world.broker.port)
    await other.subscribe(TOPIC)
    assert topic.subscriptions["s"].consumers != [dead]
    other.close()


# --------------------------------------------------------------------------------- official client


async def test_every_type_of_subscription_gets_what_is_sent_while_it_is_there(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            kinds = pulsar.ConsumerType
            alone = c.subscribe(TOPIC, "exclusive")
            standby = [c.subscribe(TOPIC, "failover", kinds.Failover, consumer_name=name) for name in ("a", "b")]
            shared = [c.subscribe(TOPIC, "shared", kinds.Shared) for _ in range(2)]
            keyed = [c.subscribe(TOPIC, "keyed", kinds.KeyShared) for _ in range(2)]
            producer = c.create_producer(TOPIC)
            for number in range(40):
                producer.send(b"%d" % number, partition_key=f"k{number % 8}")
            every = [str(number) for number in range(40)]
            assert texts(receive(alone, 40)) == every
            assert sorted(map(len, shares(standby, 40))) == [0, 40]
            halves = [texts(one) for one in shares(shared, 40)]
            assert [len(half) for half in halves] == [20, 20]
            assert sorted(halves[0] + halves[1], key=int) == every
            by_key = [{int(text) % 8 for text in texts(one)} for one in shares(keyed, 40)]
            assert by_key[0] | by_key[1] == set(range(8))
            assert not by_key[0] & by_key[1]

    await world.run(scenario)


async def test_batches_readers_and_partitions_pass(world: BrokerInMemory) -> None:
    name = TopicName.parse("non-persistent://public/default/parted")
    await world.broker.partitioned.create(name, 3)

    def scenario() -> None:
        with client(world.url) as c:
            consumer = c.subscribe(name.full, "s")
            producer = c.create_producer(
                name.full,
                batching_enabled=True,
                batching_max_publish_delay_ms=20,
                message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            )
            for number in range(60):
                producer.send_async(b"%d" % number, lambda *_: None)
            producer.flush()
            assert sorted(texts(receive(consumer, 60)), key=int) == [str(number) for number in range(60)]
            reader = c.create_reader(TOPIC, pulsar.MessageId.earliest)
            plain = c.create_producer(TOPIC)
            plain.send(b"now")
            assert reader.read_next(TIMEOUT_MS).data() == b"now"

    await world.run(scenario)
    listed = await world.broker.topics_of_namespace("public/default", persistent=False, non_persistent=True)
    assert listed == [*(f"{name}-partition-{number}" for number in range(3)), TOPIC]
    assert await world.broker.topics_of_namespace("public/default", persistent=True, non_persistent=False) == []


async def test_the_topics_of_a_namespace_are_listed_in_turns(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be as many as somebody has made."""
    monkeypatch.setattr("broker.broker.NAMES_PER_TURN", 10)
    names = [f"public/default/persistent/t{number:03}" for number in range(45)]

    async def listed(_: str) -> list[str]:
        return names

    monkeypatch.setattr(world.broker.ledgers, "list", listed)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.ensure_future(others())
    found = await world.broker.topics_of_namespace("public/default", persistent=True, non_persistent=False)
    task.cancel()
    assert found == [f"persistent://public/default/t{number:03}" for number in range(45)]
    assert turns >= 3


async def test_what_is_not_acknowledged_does_not_come_again(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            consumer = c.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=50)
            c.create_producer(TOPIC).send(b"once")
            (message,) = receive(consumer, 1, acknowledge=False)
            consumer.negative_acknowledge(message)
            consumer.redeliver_unacknowledged_messages()
            assert nothing_more(consumer)
            consumer.unsubscribe()

    await world.run(scenario)


async def test_clients_come_back_after_an_unload(world: BrokerInMemory) -> None:
    def scenario(unload: Any) -> None:
        with client(world.url) as c:
            consumer = c.subscribe(TOPIC, "s")
            producer = c.create_producer(TOPIC)
            unload()
            end = time.monotonic() + 10
            while time.monotonic() < end:  # a message is dropped until the consumer is back
                producer.send(b"again")
                try:
                    consumer.receive(100)
                except pulsar.Timeout:
                    continue
                return
            raise AssertionError("nothing arrives after the unload")

    loop = asyncio.get_running_loop()
    bundle = (await world.broker.namespace("public/default")).bundles.bundle_of(NAME)
    await world.run(
        scenario, lambda: asyncio.run_coroutine_threadsafe(world.broker.opening.unload_bundle(bundle), loop).result(5)
    )


async def test_access_modes_hold_as_long_as_the_topic_is_open(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            mode = pulsar.ProducerAccessMode
            c.create_producer(TOPIC, access_mode=mode.Exclusive)
            with pytest.raises(pulsar.ProducerBusy):
                c.create_producer(TOPIC)

    await world.run(scenario)


async def test_schemas_of_non_persistent_topics_are_checked(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            c.create_producer(TOPIC, schema=pulsar.schema.StringSchema())
            with pytest.raises(pulsar.IncompatibleSchema):
                c.create_producer(TOPIC, schema=pulsar.schema.JsonSchema(Row))

    await world.run(scenario)


class Row(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()


@pytest.mark.parametrize("work", ["rates", "idle"])
async def test_periodic_work_leaves_others_their_turn_however_many_topics_there_are(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    monkeypatch.setattr("broker.serving.open_topics.TOPICS_PER_TURN", 10)
    names = [TopicName.parse(f"non-persistent://public/default/t{number:02}") for number in range(35)]
    for name in names:
        await world.broker.topic_for_producer(name)
    topics = world.broker.non_persistent
    looked_at: list[list[TopicName]] = [[]]

    async def count_turns() -> None:
        while True:
            await asyncio.sleep(0)
            if looked_at[-1]:
                looked_at.append([])

    def look(topic: NonPersistentTopic, now_ms: int = 0) -> int:
        looked_at[-1].append(topic.name)
        topics.by_name.pop(names[20], None)  # closed while others are looked at
        return 1

    monkeypatch.setattr(NonPersistentTopic, "take_rates", look)
    monkeypatch.setattr(NonPersistentTopic, "clients", property(look))
    counting = asyncio.create_task(count_turns())
    await asyncio.sleep(0)
    await (topics.take_rates(0) if work == "rates" else topics.forget_idle(0))
    counting.cancel()
    assert [len(turn) for turn in looked_at if turn] == [10, 10, 9, 5]
    assert {name for turn in looked_at for name in turn} == {*names} - {names[20]}
