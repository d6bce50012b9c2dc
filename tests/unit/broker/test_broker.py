"""The broker as a whole, driven by bare frames: loading, ownership, failing storage, policies, back-pressure."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from broker.arrivals import Arrivals
from broker.binary.admission.handshake import CLIENT_VERSION_CHARS_MAX, hears_the_end
from broker.binary.connection import BrokerPort
from broker.binary.server import BinaryServer
from broker.broker import Broker
from broker.errors import NotReady, TopicNotFound
from broker.memory_budget import MemoryBudget
from broker.names import DEDUPLICATION_CURSOR
from broker.ownership.rules import BrokerAddress, Located
from broker.settings.quotas import NO_SUBSCRIPTIONS, InactiveTopics
from broker.tenancy.changes import initialise_cluster
from broker.topic.clients.properties import KeptBytes
from broker.topic.dispatchers.sticky_keys import RANGES_MAX
from broker.topic.ports import NextBroker
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.topics.metadata import KEY_BYTES_MAX, METADATA_FIELDS_MAX, PROPERTIES_MAX
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import ManagedLedgerFenced, StorageUnavailable
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import KeyValue, MessageIdData, MessageMetadata
from tests.support.batches import plain_batch
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually, settle
from tests.unit.broker.conftest import CONFIG, BrokerInMemory
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.topic.dispatching import entry

pytestmark = pytest.mark.both_loops

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
SHARED = wire.CommandSubscribe.Shared


@pytest.fixture
async def raw(world: BrokerInMemory) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(world.broker.port)
    yield client
    client.close()


# ------------------------------------------------------------------------------------ loading


async def test_many_who_ask_at_once_open_a_topic_once(world: BrokerInMemory) -> None:
    world.ledgers.hold_opening = asyncio.Event()
    asking = [asyncio.create_task(world.broker.topic_for_producer(NAME)) for _ in range(10)]
    await settle()
    world.ledgers.hold_opening.set()
    assert len({id(topic) for topic in await asyncio.gather(*asking)}) == 1
    assert world.ledgers.opened == [NAME.managed_ledger_name]


async def test_topics_with_clients_are_opened_first_and_then_those_with_more_traffic(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.serving.opening.OPENED_AT_ONCE", 1)
    await world.restart()
    broker, ledgers = world.broker, world.ledgers
    names = [TopicName.parse(f"{TOPIC}{number}") for number in range(7)]
    for name in names:
        await ledgers.open(name.managed_ledger_name)
    ledgers.opened.clear()
    broker.opening.expected |= {names[2]: 1, names[3]: 5, names[4]: 3, names[5]: 2}
    ledgers.hold_opening = asyncio.Event()
    opening: list[asyncio.Task[Any]] = []
    for name in names[:6]:  # the first one has the turn; nobody waits for the others
        opening.append(asyncio.create_task(broker.opening.open_again(name)))
        await settle()
    for name in (names[6], names[5]):  # now clients come to two of them
        opening.append(asyncio.create_task(broker.topic_for_producer(name)))
        await settle()
    assert ledgers.opened == [names[0].managed_ledger_name]
    ledgers.hold_opening.set()
    await asyncio.gather(*opening)
    assert ledgers.opened == [names[number].managed_ledger_name for number in (0, 5, 6, 3, 4, 2, 1)]
    assert broker.opening.expected == {}


async def test_an_opening_that_storage_keeps_waiting_does_not_stop_the_others(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.serving.opening.OPENED_AT_ONCE", 1)
    monkeypatch.setattr("broker.serving.opening.OPENING_TURN_S", 0.05)
    await world.restart()
    world.ledgers.hold_opening = asyncio.Event()
    stuck = asyncio.create_task(world.broker.topic_for_producer(NAME))
    await settle()
    waiting = [asyncio.create_task(world.broker.topic_for_producer(TopicName.parse(f"{TOPIC}{n}"))) for n in range(3)]
    await eventually(lambda: len(world.ledgers.opened) == 4)
    world.ledgers.hold_opening.set()
    await asyncio.gather(stuck, *waiting)


async def test_who_asked_before_a_topic_was_open_and_goes_on_afterwards_gets_the_same(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, slow = world.broker.partitioned.count_of_base, asyncio.Event()

    async def held(name: TopicName) -> int:
        await slow.wait()
        return await count(name)

    monkeypatch.setattr(world.broker.partitioned, "count_of_base", held)
    slow_asker = asyncio.create_task(world.broker.topic_for_consumer(NAME, create=True))
    await settle()
    monkeypatch.setattr(world.broker.partitioned, "count_of_base", count)
    topic = await world.broker.topic_for_producer(NAME)
    await settle()
    slow.set()
    assert await slow_asker is topic
    assert world.broker.topics[NAME] is topic
    assert world.ledgers.opened == [NAME.managed_ledger_name]


async def test_who_makes_a_topic_makes_it_while_others_look_whether_it_is_there(world: BrokerInMemory) -> None:
    """They share the work; that there is no such topic is no answer for one who makes it."""
    world.ledgers.hold_opening = asyncio.Event()
    looking = asyncio.create_task(world.broker.topic_for_consumer(NAME, create=False))
    await settle()
    making = asyncio.create_task(world.broker.opening.create_topic(NAME))
    await settle()
    world.ledgers.hold_opening.set()
    with pytest.raises(TopicNotFound):
        await looking
    made = await making
    assert world.broker.topics[NAME] is made


async def test_a_topic_that_is_being_closed_is_opened_again_when_it_has_closed(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = await world.broker.topic_for_producer(NAME)
    closed, close = asyncio.Event(), former.close

    async def slow(next_broker: NextBroker) -> None:
        await closed.wait()
        await close(next_broker)

    monkeypatch.setattr(former, "close", slow)
    unloading = asyncio.create_task(world.broker.opening.unload(NAME))
    await settle()
    asking = asyncio.create_task(world.broker.topic_for_producer(NAME))
    await settle()
    assert not asking.done()
    closed.set()
    await unloading
    assert await asking is not former
    assert former.is_closed


async def test_a_topic_whose_bundle_went_while_it_was_opened_is_not_served(world: BrokerInMemory) -> None:
    await world.ledgers.open(NAME.managed_ledger_name)
    world.ledgers.hold_opening = asyncio.Event()
    asking = asyncio.create_task(world.broker.topic_for_producer(NAME))
    await settle()
    world.ownership.move(NAME, BrokerAddress("pulsar://other:6650"))
    world.ledgers.hold_opening.set()
    with pytest.raises(NotReady, match="was lost while it was opened"):
        await asking
    assert NAME not in world.broker.topics


async def test_a_producer_s_name_is_its_own(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC, producer_name="me")
    other = await RawClient.connect(world.broker.port)
    other.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=1, producer_name="me")
    await raw.expect(BaseCommand.PING)
    raw.send(BaseCommand.PONG)
    assert await other.refused() == wire.ProducerBusy
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=2, request_id=2, producer_name="me")
    assert await raw.refused() == wire.ProducerBusy, "of the same connection, which is not asked"
    other.close()


async def test_no_client_is_disconnected_for_a_namesake_where_connections_are_not_checked(
    world: BrokerInMemory,
) -> None:
    """`connectionLivenessCheckTimeoutMillis=0`."""
    await world.restart(active_consumer_probe_ms=0)
    alive, other = [await RawClient.connect(world.broker.port) for _ in range(2)]
    await alive.produce(TOPIC, producer_name="me")
    await alive.subscribe(TOPIC)
    other.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=1, producer_name="me")
    assert await other.refused() == wire.ProducerBusy
    other.send(BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=2)
    assert await other.refused() == wire.ConsumerBusy
    alive.publish(1, 0)
    await alive.expect(BaseCommand.SEND_RECEIPT)
    alive.close()
    other.close()


@pytest.mark.parametrize("topic", [TOPIC, TOPIC.replace("persistent", "non-persistent")])
async def test_a_producer_whose_client_is_dead_does_not_keep_its_name_from_others(
    world: BrokerInMemory, topic: str
) -> None:
    await world.restart(active_consumer_probe_ms=50)
    dead = await RawClient.connect(world.broker.port)
    await dead.produce(topic, producer_name="me")  # and never answers the PING
    other = await RawClient.connect(world.broker.port)
    assert (await other.produce(topic, producer_name="me")).producer_name == "me"
    assert await dead.ended()
    other.close()


@pytest.mark.parametrize("topic", [TOPIC, TOPIC.replace("persistent", "non-persistent")])
async def test_a_forced_unsubscribe_disconnects_the_other_consumers(
    world: BrokerInMemory, raw: RawClient, topic: str
) -> None:
    """Java's `unsubscribe(true)`, Go's `UnsubscribeForce`: without it the consumer must be alone."""
    for consumer_id in (1, 2):
        await raw.subscribe(topic, consumer_id=consumer_id, subType=wire.CommandSubscribe.Shared)
    raw.send(BaseCommand.UNSUBSCRIBE, consumer_id=1, request_id=3)
    assert await raw.refused() == wire.MetadataError
    raw.send(BaseCommand.UNSUBSCRIBE, consumer_id=1, request_id=4, force=True)
    assert (await raw.expect(BaseCommand.CLOSE_CONSUMER)).close_consumer.consumer_id == 2
    assert (await raw.expect(BaseCommand.SUCCESS)).success.request_id == 4
    # Both are gone: whoever comes first has the subscription for itself.
    await raw.subscribe(topic, consumer_id=3)


async def test_a_consumer_whose_subscription_could_not_be_removed_is_closed_and_comes_back(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await raw.subscribe(TOPIC)
    with monkeypatch.context() as patched:

        async def refuse(name: str) -> None:
            raise StorageUnavailable("the store is away")

        patched.setattr(world.broker.topics[NAME].ledger, "delete_cursor", refuse)
        raw.send(BaseCommand.UNSUBSCRIBE, consumer_id=1, request_id=3)
        assert (await raw.expect(BaseCommand.ERROR)).error.request_id == 3
        assert (await raw.expect(BaseCommand.CLOSE_CONSUMER)).close_consumer.consumer_id == 1
    await raw.subscribe(TOPIC)
    await raw.produce(TOPIC)
    raw.publish(1, 0)
    answers = [await raw.answer() for _ in range(2)]
    assert {one.type for one in answers} == {BaseCommand.SEND_RECEIPT, BaseCommand.MESSAGE}


async def test_a_consumer_that_is_not_durable_may_begin_at_the_first_message(raw: RawClient) -> None:
    """By its initial position alone, as Go's client asks (`SubscriptionMode: NonDurable`)."""
    await raw.produce(TOPIC)
    raw.publish(1, 0, 1)
    for _ in range(2):
        await raw.expect(BaseCommand.SEND_RECEIPT)
    await raw.subscribe(TOPIC, durable=False, initialPosition=wire.CommandSubscribe.Earliest)
    entries = [(await raw.expect(BaseCommand.MESSAGE)).message.message_id.entryId for _ in range(2)]
    assert entries == [0, 1]
    await raw.subscribe(TOPIC, consumer_id=2, subscription="latest", durable=False)
    assert await raw.nothing_came()


async def test_a_topic_that_could_not_be_opened_is_opened_anew(world: BrokerInMemory, raw: RawClient) -> None:
    world.ledgers.fail_opening = StorageUnavailable("no bookies")
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
    assert await raw.refused() == wire.PersistenceError
    world.ledgers.fail_opening = None
    assert (await raw.produce(TOPIC)).producer_name == "lab-0-0"


async def test_names_with_a_cluster_are_refused(raw: RawClient) -> None:
    topic = "persistent://public/lab/default/t"
    raw.send(BaseCommand.PRODUCER, topic=topic, producer_id=1, request_id=1)
    assert await raw.refused() == wire.InvalidTopicName


async def test_a_partitioned_topic_that_is_made_when_it_is_used_has_its_partitions(world: BrokerInMemory) -> None:
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    await world.set_policies("public/auto", autoTopicCreationOverride=override)
    topic = TopicName.parse("public/auto/t")
    counts = await asyncio.gather(*(world.broker.partitions(topic, create=True) for _ in range(3)))
    assert counts == [2, 2, 2]
    assert await world.store.children("/managed-ledgers/public/auto/persistent") == ["t-partition-0", "t-partition-1"]
    plain = TopicName.parse("public/auto/plain")
    await world.broker.opening.create_topic(plain)
    assert await world.broker.partitions(plain, create=True) == 0


async def test_a_cluster_is_initialised_twice_without_harm() -> None:
    store = MemoryStore(LoopClock())
    await initialise_cluster(store, CONFIG)
    await store.put("/admin/policies/public", b"changed")
    await initialise_cluster(store, CONFIG)
    node = await store.get("/admin/policies/public")
    assert node is not None
    assert node.value == b"changed"


async def test_a_closed_id_is_free_again_and_a_close_overtakes_an_opening(
    world: BrokerInMemory, raw: RawClient
) -> None:
    world.ledgers.hold_opening = asyncio.Event()
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=1, producer_name="me")
    raw.send(BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", subType=SHARED, consumer_id=1, request_id=2)
    raw.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=3)
    raw.send(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=4)
    for request_id in (3, 4):
        assert (await raw.expect(BaseCommand.SUCCESS)).success.request_id == request_id
    world.ledgers.hold_opening.set()
    await eventually(lambda: NAME in world.broker.topics)
    await settle()
    assert await raw.nothing_came()
    assert not world.broker.topics[NAME].is_in_use
    await raw.produce(TOPIC, producer_name="me")


# ------------------------------------------------------------------------------------ ownership


async def test_what_is_served_elsewhere_is_refused_and_looked_up(world: BrokerInMemory, raw: RawClient) -> None:
    world.ownership.move(NAME, BrokerAddress("pulsar://other:6650", listeners={"out": ("pulsar://far:1", "")}))
    raw.send(BaseCommand.LOOKUP, topic=TOPIC, request_id=1)
    answer = (await raw.expect(BaseCommand.LOOKUP_RESPONSE)).lookupTopicResponse
    kind = wire.CommandLookupTopicResponse
    assert (answer.response, answer.brokerServiceUrl, answer.authoritative) == (
        kind.Connect,
        "pulsar://other:6650",
        True,
    )
    raw.send(BaseCommand.LOOKUP, topic=TOPIC, request_id=2, advertised_listener_name="out")
    assert (await raw.answer()).lookupTopicResponse.brokerServiceUrl == "pulsar://far:1"
    raw.send(BaseCommand.LOOKUP, topic=TOPIC, request_id=5, advertised_listener_name="internal")
    assert (await raw.answer()).lookupTopicResponse.brokerServiceUrl == "pulsar://other:6650"
    raw.send(BaseCommand.LOOKUP, topic=TOPIC, request_id=3, advertised_listener_name="none")
    answer = (await raw.answer()).lookupTopicResponse
    assert (answer.response, answer.error) == (kind.Failed, wire.ServiceNotReady)
    assert "the broker do not have none listener" in answer.message
    world.ownership.elsewhere[NAME] = Located(False, BrokerAddress("pulsar://leader:6650"), True, False)
    raw.send(BaseCommand.LOOKUP, topic=TOPIC, request_id=4)
    answer = (await raw.answer()).lookupTopicResponse
    assert (answer.response, answer.authoritative) == (kind.Redirect, False)
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=5)
    assert await raw.refused() == wire.ServiceNotReady
    raw.send(BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", subType=SHARED, consumer_id=1, request_id=6)
    assert await raw.refused() == wire.ServiceNotReady


async def test_after_its_bundle_is_lost_a_topic_confirms_nothing(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC)
    await raw.subscribe(TOPIC)
    world.ledger(TOPIC).hold = True
    raw.publish(1, 0, 1)
    assert await raw.nothing_came()
    bundle = world.broker.topics[NAME].policies.bundles.bundle_of(NAME)
    world.ownership.lose(bundle)
    assert world.broker.topics == {}
    world.ledger(TOPIC).release()
    raw.publish(1, 2)  # was on its way: neither answered nor punished
    answers = [await raw.answer(), await raw.answer()]
    assert {answer.type for answer in answers} == {BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER}
    assert await raw.nothing_came()


async def test_receipts_wait_while_the_session_is_in_doubt(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC)
    world.ownership.acknowledges = False
    raw.publish(1, 0, 1)
    await raw.nothing_came()
    world.ownership.acknowledges = True
    raw.publish(1, 2)
    receipts = [(await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt for _ in range(3)]
    assert [receipt.sequence_id for receipt in receipts] == [0, 1, 2]
    assert [receipt.message_id.entryId for receipt in receipts] == [0, 1, 2]


async def test_receipts_that_waited_never_leave_once_the_bundle_is_lost(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC)
    world.ownership.acknowledges = False
    raw.publish(1, 0)
    await raw.nothing_came()
    world.ownership.move(NAME, BrokerAddress("pulsar://other:6650"))
    world.ownership.lose()
    world.ownership.acknowledges = True
    await raw.expect(BaseCommand.CLOSE_PRODUCER)
    await asyncio.sleep(0.15)
    assert await raw.nothing_came()


async def closed_before_its_permits(world: BrokerInMemory, raw: RawClient, consumer_id: int = 1) -> None:
    raw.send(
        BaseCommand.SUBSCRIBE, topic=TOPIC, consumer_id=consumer_id, request_id=2, subscription=f"s{consumer_id}",
        subType=wire.CommandSubscribe.Exclusive,
    )  # fmt: skip
    await raw.expect(BaseCommand.SUCCESS)
    await world.broker.opening.unload(NAME)
    await raw.expect(BaseCommand.CLOSE_CONSUMER)


async def test_a_consumer_whose_client_missed_that_it_was_closed_is_told_again(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Go's does where that comes right behind the answer to SUBSCRIBE: it sends its permits, and waits for ever."""
    monkeypatch.setattr("broker.binary.consumers.TELL_AGAIN_MS", 50)
    await closed_before_its_permits(world, raw)
    for _ in range(3):
        raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=100)
    assert (await raw.expect(BaseCommand.CLOSE_CONSUMER)).close_consumer.consumer_id == 1
    assert await raw.nothing_came()
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=100)
    assert await raw.nothing_came()


@pytest.mark.parametrize("then", ["subscribes", "closes", "had permits"])
async def test_who_knows_that_its_consumer_was_closed_is_not_told_again(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr("broker.binary.consumers.TELL_AGAIN_MS", 50)
    if then == "had permits":
        await raw.subscribe(TOPIC)
        await world.broker.opening.unload(NAME)
        await raw.expect(BaseCommand.CLOSE_CONSUMER)
    else:
        await closed_before_its_permits(world, raw)
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=100)
    if then == "subscribes":
        await raw.subscribe(TOPIC)
    elif then == "closes":
        raw.send(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=3)
        await raw.expect(BaseCommand.SUCCESS)
    assert await raw.nothing_came()


async def test_consumers_that_are_told_again_are_limited(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.binary.consumers.TELL_AGAIN_MS", 1)
    monkeypatch.setattr("broker.binary.consumers.EARLY_CLOSED_MAX", 2)
    for consumer_id in range(3):
        await closed_before_its_permits(world, raw, consumer_id)
    for consumer_id in range(3):
        raw.send(BaseCommand.FLOW, consumer_id=consumer_id, messagePermits=100)
    told = [(await raw.expect(BaseCommand.CLOSE_CONSUMER)).close_consumer.consumer_id for _ in range(2)]
    assert sorted(told) == [0, 1]
    assert await raw.nothing_came()


async def test_a_topic_taken_over_by_another_broker_is_dropped(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC)
    world.ledger(TOPIC).fence(ManagedLedgerFenced("taken"))
    await raw.expect(BaseCommand.CLOSE_PRODUCER)
    await eventually(lambda: world.broker.topics == {})
    await raw.produce(TOPIC)


# ------------------------------------------------------------------------------------ storage


async def test_when_storage_fails_producers_are_disconnected_and_come_back(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await world.set_policies("public/default", deduplicationEnabled=True)
    await raw.produce(TOPIC, producer_name="me")
    ledger = world.ledger(TOPIC)
    ledger.fail_with = StorageUnavailable("no bookies")
    raw.publish(1, 0)
    await raw.expect(BaseCommand.CLOSE_PRODUCER)
    assert (await raw.produce(TOPIC, producer_name="me")).last_sequence_id == -1
    raw.publish(1, 0)
    assert (await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt.message_id.entryId == 0
    raw.publish(1, 0)
    assert (await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt.message_id.entryId == 2**64 - 1
    assert ledger.ledgers.entries_total == 1


async def test_a_terminated_topic_refuses_messages_and_producers(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC)
    world.ledger(TOPIC).is_terminated = True
    raw.publish(1, 7)
    answer = (await raw.expect(BaseCommand.SEND_ERROR)).send_error
    assert (answer.sequence_id, answer.error) == (7, wire.TopicTerminatedError)
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=2, request_id=1)
    assert await raw.refused() == wire.TopicTerminatedError


@pytest.mark.timeout(30)
def test_a_version_of_a_million_digits_is_looked_at_once() -> None:
    """A search that went over the rest of it for each digit would take an hour."""
    for version, hears_it in (("1" * 1_000_000 + "-incubating", True), ("1." * 500_000, False)):
        connect = wire.CommandConnect(client_version=version, protocol_version=21)
        assert hears_the_end(connect) is hears_it


@pytest.mark.parametrize(
    ("version", "protocol_version", "is_java", "hears_it"),
    [
        ("Pulsar-Java-v4.0.8", 21, True, True),
        ("2.10.0", 19, True, True),
        ("DotPulsar 3.3.2", 19, False, True),
        ("2.0.1-incubating", 12, False, True),  # so Rust's calls itself
        ("", 9, False, True),
        ("", 8, False, False),
        ("Pulsar-CPP-v4.2.0", 20, False, False),  # these would close the connection, and come again
        ("2.8.1", 19, False, False),
        ("Pulsar Go 0.21.0", 20, False, False),
    ],
)
async def test_each_consumer_is_told_once_that_a_terminated_topic_has_no_more(
    world: BrokerInMemory, version: str, protocol_version: int, is_java: bool, hears_it: bool
) -> None:
    client = await RawClient.connect(world.broker.port, introduce=False)
    client.send(
        BaseCommand.CONNECT, client_version=version, protocol_version=protocol_version,
        feature_flags=wire.FeatureFlags(supports_partial_producer=is_java),
    )  # fmt: skip
    await client.expect(BaseCommand.CONNECTED)
    await client.produce(TOPIC)
    await client.subscribe(TOPIC)
    client.publish(1, 0)
    answers = {(answer := await client.answer()).type: answer for _ in range(2)}
    received = answers[BaseCommand.MESSAGE].message.message_id
    await world.broker.topics[TopicName.parse(TOPIC)].terminate()
    await client.expect(BaseCommand.CLOSE_PRODUCER)
    assert await client.nothing_came(), "it has not acknowledged everything"
    for _ in range(2):
        client.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=[received])
    if hears_it:
        assert (await client.expect(BaseCommand.REACHED_END_OF_TOPIC)).reachedEndOfTopic.consumer_id == 1
    assert await client.nothing_came()
    client.close()


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
async def test_a_consumer_that_subscribes_once_more_gets_again_what_it_holds(
    world: BrokerInMemory, raw: RawClient, kind: str
) -> None:
    subscribe: dict[str, Any] = {"subscription": "s", "subType": wire.CommandSubscribe.SubType.Value(kind)}
    await raw.produce(TOPIC)
    await raw.subscribe(TOPIC, permits=0, **subscribe)
    if kind == "Failover":
        await raw.expect(BaseCommand.ACTIVE_CONSUMER_CHANGE)
    for number in range(20):
        raw.publish(1, number)
        await raw.expect(BaseCommand.SEND_RECEIPT)
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=100)
    ids = [(await raw.expect(BaseCommand.MESSAGE)).message.message_id for _ in range(20)]
    raw.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=ids[:5])
    raw.send(BaseCommand.SUBSCRIBE, topic=TOPIC, consumer_id=1, request_id=9, **subscribe)
    assert (await raw.expect(BaseCommand.SUCCESS)).success.request_id == 9
    assert await raw.nothing_came(), "it has no permits"
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=10)
    again = [(await raw.expect(BaseCommand.MESSAGE)).message.message_id for _ in range(10)]
    assert [one.entryId for one in again] == list(range(5, 15))
    assert await raw.nothing_came()
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=10)
    again += [(await raw.expect(BaseCommand.MESSAGE)).message.message_id for _ in range(5)]
    raw.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=again)
    assert await raw.nothing_came()
    (subscription,) = world.broker.topics[TopicName.parse(TOPIC)].subscriptions.values()
    assert (subscription.cursor.backlog(), subscription.unacked_messages) == (0, 0)


async def test_a_closing_producer_is_told_after_its_last_receipt(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC)
    world.ledger(TOPIC).hold = True
    raw.publish(1, 0)
    raw.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=9)
    assert await raw.nothing_came()
    world.ledger(TOPIC).release()
    await raw.expect(BaseCommand.SEND_RECEIPT)
    assert (await raw.expect(BaseCommand.SUCCESS)).success.request_id == 9


async def unloaded_while_it_waits(world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch) -> RawClient:
    """The topic was unloaded under its exclusive producer, 1 of *raw*, and under 2 of the client that is returned."""
    monkeypatch.setattr("broker.binary.producers.WAIT_AGAIN_MS", 50)
    await raw.produce(TOPIC, 1, producer_access_mode=wire.Exclusive)
    other = await RawClient.connect(world.broker.port)
    wanted = {"topic": TOPIC, "producer_id": 2, "producer_access_mode": wire.WaitForExclusive}
    other.send(BaseCommand.PRODUCER, request_id=7, **wanted)
    assert not (await other.expect(BaseCommand.PRODUCER_SUCCESS)).producer_success.producer_ready
    await world.broker.opening.unload(TopicName.parse(TOPIC))
    return other


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_producer_waits_for_exclusive_access_also_after_an_unload(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    other = await unloaded_while_it_waits(world, raw, monkeypatch)
    await raw.expect(BaseCommand.CLOSE_PRODUCER)
    if comes_back:
        await raw.produce(TOPIC, 1, producer_access_mode=wire.Exclusive, topic_epoch=0)
        again = (await other.expect(BaseCommand.PRODUCER_SUCCESS)).producer_success
        assert (again.request_id, again.producer_ready) == (7, False)
        raw.publish(1, 0)
        await raw.expect(BaseCommand.SEND_RECEIPT)
        raw.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=5)
        await raw.expect(BaseCommand.SUCCESS)
    ready = (await other.expect(BaseCommand.PRODUCER_SUCCESS)).producer_success
    assert (ready.request_id, ready.producer_ready, ready.topic_epoch) == (7, True, 1)
    other.publish(2, 0)
    await other.expect(BaseCommand.SEND_RECEIPT)
    other.close()


@pytest.mark.parametrize("how", ["moved", "closed", "gone"])
async def test_a_producer_that_waited_is_refused_where_its_topic_is_not_any_more(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    other = await unloaded_while_it_waits(world, raw, monkeypatch)
    if how == "moved":
        monkeypatch.setattr(world.ownership, "owns", lambda topic: False)
        error = (await other.expect(BaseCommand.ERROR)).error
        assert (error.request_id, error.error) == (7, wire.ServiceNotReady)
    elif how == "closed":
        other.send(BaseCommand.CLOSE_PRODUCER, producer_id=2, request_id=8)
        assert (await other.expect(BaseCommand.SUCCESS)).success.request_id == 8
    other.close()
    await asyncio.sleep(0.1)
    assert not world.broker.topics


async def test_a_waiting_producer_is_told_twice(world: BrokerInMemory, raw: RawClient) -> None:
    mode = wire.ProducerAccessMode
    first = await raw.produce(TOPIC, 1, producer_access_mode=mode.Value("Exclusive"))
    assert (first.topic_epoch, first.producer_ready) == (0, True)
    waiting = await raw.produce(TOPIC, 2, producer_access_mode=mode.Value("WaitForExclusive"))
    assert (waiting.HasField("topic_epoch"), waiting.producer_ready) == (False, False)
    raw.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=5)
    await raw.expect(BaseCommand.SUCCESS)
    ready = (await raw.expect(BaseCommand.PRODUCER_SUCCESS)).producer_success
    assert (ready.topic_epoch, ready.producer_ready) == (1, True)
    await raw.produce(TOPIC, 3, producer_access_mode=mode.Value("WaitForExclusive"))
    raw.send(
        BaseCommand.PRODUCER,
        topic=TOPIC,
        producer_id=4,
        request_id=7,
        producer_access_mode=mode.Value("ExclusiveWithFencing"),
    )
    answers = [await raw.answer() for _ in range(3)]
    assert answers[0].error.error == wire.ProducerFenced
    assert answers[1].close_producer.producer_id == 2
    assert answers[2].producer_success.topic_epoch == 2


async def test_who_is_kept_out_by_its_mode_hears_that_and_not_that_its_name_is_in_use(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.produce(TOPIC, 1, producer_name="one")
    raw.send(
        BaseCommand.PRODUCER, topic=TOPIC, producer_id=2, request_id=7, producer_name="one",
        producer_access_mode=wire.Exclusive,
    )  # fmt: skip
    assert await raw.refused() == wire.ProducerFenced


async def test_who_fences_the_others_out_takes_their_names(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC, 1, producer_name="one")
    raw.send(
        BaseCommand.PRODUCER, topic=TOPIC, producer_id=2, request_id=7, producer_name="one",
        producer_access_mode=wire.ExclusiveWithFencing,
    )  # fmt: skip
    assert (await raw.expect(BaseCommand.CLOSE_PRODUCER)).close_producer.producer_id == 1
    assert (await raw.expect(BaseCommand.PRODUCER_SUCCESS)).producer_success.producer_name == "one"


async def test_who_fences_the_others_out_does_not_take_their_room(world: BrokerInMemory, raw: RawClient) -> None:
    """As with Apache's brokers (seen: 4.0.8)."""
    await world.set_policies("public/default", max_producers_per_topic=1)
    await raw.produce(TOPIC, 1, producer_name="one")
    raw.send(
        BaseCommand.PRODUCER, topic=TOPIC, producer_id=2, request_id=7, producer_name="one",
        producer_access_mode=wire.ExclusiveWithFencing,
    )  # fmt: skip
    assert await raw.refused() == wire.ProducerBusy


async def test_a_client_that_comes_back_replaces_its_own_generated_producer(
    world: BrokerInMemory, raw: RawClient
) -> None:
    name = (await raw.produce(TOPIC, user_provided_producer_name=False)).producer_name
    again = await RawClient.connect(world.broker.port)
    taken = await again.produce(TOPIC, producer_name=name, user_provided_producer_name=False, epoch=1)
    assert taken.producer_name == name
    await raw.expect(BaseCommand.CLOSE_PRODUCER)
    again.close()


async def test_the_consumer_of_a_lost_connection_makes_place(world: BrokerInMemory, raw: RawClient) -> None:
    await world.restart(active_consumer_probe_ms=20)
    dead = await RawClient.connect(world.broker.port)
    await dead.subscribe(TOPIC)  # and never answers the PING
    alive = await RawClient.connect(world.broker.port)
    await alive.subscribe(TOPIC)
    assert await dead.ended()
    alive.close()


# ------------------------------------------------------------------------------------ policies and time


async def test_changed_policies_reach_open_topics(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC, producer_name="p")  # the name that stands in the entries
    raw.publish(1, 5)
    await raw.expect(BaseCommand.SEND_RECEIPT)
    assert DEDUPLICATION_CURSOR not in world.ledger(TOPIC).cursors
    await world.set_policies("public/default", deduplicationEnabled=True)
    await eventually(lambda: DEDUPLICATION_CURSOR in world.ledger(TOPIC).cursors)
    await settle()
    receipts = []
    for _ in range(2):  # the first number since it is switched on
        raw.publish(1, 5)
        receipts.append((await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt.message_id.ledgerId)
    assert receipts == [1, 2**64 - 1]
    await world.set_policies("public/default", deduplicationEnabled=False)
    await eventually(lambda: DEDUPLICATION_CURSOR not in world.ledger(TOPIC).cursors)


async def test_changed_policies_reach_the_other_topics_where_one_cannot_take_them(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{TOPIC}-other"
    for name in (TOPIC, other):
        await world.broker.opening.create_topic(TopicName.parse(name))

    async def fail(name: str) -> Any:
        raise StorageUnavailable("no bookies")

    monkeypatch.setattr(world.ledger(TOPIC), "open_cursor", fail)
    await world.set_policies("public/default", deduplicationEnabled=True)
    await eventually(lambda: DEDUPLICATION_CURSOR in world.ledger(other).cursors)
    monkeypatch.undo()
    await world.set_policies("public/default", deduplicationEnabled=True, max_producers_per_topic=7)
    await eventually(lambda: DEDUPLICATION_CURSOR in world.ledger(TOPIC).cursors)


async def test_sequence_ids_are_stored_every_so_many_entries(world: BrokerInMemory) -> None:
    await world.restart(deduplication=True, deduplication_entries=3)
    raw = await RawClient.connect(world.broker.port)
    await raw.produce(TOPIC, producer_name="me")
    raw.publish(1, 0, 1, 2, 3)
    for _ in range(4):
        await raw.expect(BaseCommand.SEND_RECEIPT)
    cursor = world.ledger(TOPIC).cursors[DEDUPLICATION_CURSOR]
    assert cursor.properties == {"me": 3}
    assert cursor.mark_delete_position.entry_id == 3
    raw.close()


@pytest.mark.parametrize("topic", [TOPIC, f"non-{TOPIC}"])
@pytest.mark.parametrize("is_auto", [True, False])
async def test_a_consumer_that_finds_the_schema_out_leaves_it_to_others(
    world: BrokerInMemory, raw: RawClient, topic: str, is_auto: bool
) -> None:
    """On a topic that was never used a consumer's schema becomes that of the topic."""
    auto = wire.Schema(name="", schema_data=b"", type=wire.Schema.AutoConsume)
    schema: dict[str, Any] = {"schema": auto} if is_auto else {}
    await raw.subscribe(topic, 1, **schema)
    text = wire.Schema(name="", schema_data=b"", type=wire.Schema.String)
    wanted = {"topic": topic, "subscription": "text", "subType": wire.CommandSubscribe.Shared, "schema": text}
    raw.send(BaseCommand.SUBSCRIBE, consumer_id=2, request_id=3, **wanted)
    if is_auto:
        await raw.expect(BaseCommand.SUCCESS)
    else:
        assert await raw.refused() == wire.IncompatibleSchema
    raw.send(BaseCommand.GET_SCHEMA, topic=topic, request_id=4)
    found = (await raw.expect(BaseCommand.GET_SCHEMA_RESPONSE)).getSchemaResponse
    assert found.HasField("schema_version") == is_auto


async def test_a_producer_that_is_being_closed_when_its_topic_is_lost_is_told_that_it_is_closed(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.produce(TOPIC)
    ledger = world.ledger(TOPIC)
    ledger.hold = True
    raw.publish(1, 0)
    raw.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=9)
    assert await raw.nothing_came()
    world.ownership.lose((await world.broker.namespace("public/default")).bundles.bundle_of(NAME))
    assert (await raw.expect(BaseCommand.SUCCESS)).success.request_id == 9
    ledger.release()
    assert await raw.nothing_came()


async def test_periodic_work_leaves_others_their_turn_however_many_topics_there_are(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.serving.open_topics.TOPICS_PER_TURN", 10)
    names = [TopicName.parse(f"{TOPIC}{number}") for number in range(35)]
    for name in names:
        await world.broker.topic_for_producer(name)
    looked_at: list[list[TopicName]] = [[]]

    async def count_turns() -> None:
        while True:
            await asyncio.sleep(0)
            if looked_at[-1]:
                looked_at.append([])

    def look(topic: Topic, now_ms: int) -> bool:
        looked_at[-1].append(topic.name)
        world.broker.topics.pop(names[20], None)  # closed while others are looked at
        return False

    monkeypatch.setattr(Topic, "is_idle", look)
    counting = asyncio.create_task(count_turns())
    await asyncio.sleep(0)
    await world.broker.periodic.delete_inactive_topics()
    counting.cancel()
    assert [len(turn) for turn in looked_at if turn] == [10, 10, 9, 5]
    assert {name for turn in looked_at for name in turn} == {*names} - {names[20]}


async def test_topics_that_nobody_uses_are_deleted(world: BrokerInMemory, raw: RawClient) -> None:
    for topic in ("used", "subscribed", "idle"):
        await raw.produce(topic, {"used": 1}.get(topic, 2))
        if topic == "subscribed":
            await raw.subscribe(topic)
            raw.send(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=8)
            await raw.expect(BaseCommand.SUCCESS)
        if topic != "used":
            raw.send(BaseCommand.CLOSE_PRODUCER, producer_id=2, request_id=9)
            await raw.expect(BaseCommand.SUCCESS)
    await world.broker.periodic.delete_inactive_topics()
    assert len(world.broker.topics) == 3
    for one in world.broker.topics.values():
        policies = replace(one.policies, inactive_topics=InactiveTopics(True, NO_SUBSCRIPTIONS, -1))
        await one.apply_policies(policies)
    await world.broker.periodic.delete_inactive_topics()
    assert sorted(name.local for name in world.broker.topics) == ["subscribed", "used"]
    assert sorted(world.ledgers.by_name) == [
        "public/default/persistent/subscribed",
        "public/default/persistent/used",
    ]


async def test_a_topic_that_was_opened_anew_while_others_were_deleted_is_not_taken_for_the_idle_one(
    world: BrokerInMemory, raw: RawClient
) -> None:
    for topic in ("idle", "wanted"):
        await world.broker.topic_for_producer(TopicName.parse(topic))
    for one in world.broker.topics.values():
        policies = replace(one.policies, inactive_topics=InactiveTopics(True, NO_SUBSCRIPTIONS, -1))
        await one.apply_policies(policies)
    ledger = world.ledger("idle")
    delete = ledger.delete

    async def slow() -> None:
        """Meanwhile the other one is unloaded, and a client comes."""
        await world.broker.opening.unload(TopicName.parse("wanted"))
        await raw.produce("wanted")
        raw.publish(1, 0)
        await raw.expect(BaseCommand.SEND_RECEIPT)
        await delete()

    ledger.delete = slow  # type: ignore[method-assign]
    await world.broker.periodic.delete_inactive_topics()
    assert [name.local for name in world.broker.topics] == ["wanted"]
    assert world.ledger("wanted").ledgers.entries_total == 1
    raw.publish(1, 1)
    await raw.expect(BaseCommand.SEND_RECEIPT)


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_partitioned_topic_goes_with_its_last_partition_where_that_is_set(
    world: BrokerInMemory, is_on: bool
) -> None:
    await world.restart(delete_inactive_partitioned=is_on)
    raw = await RawClient.connect(world.broker.port)
    await world.store.put(NAME.partitions_path, b'{"partitions":2,"deleted":false}')
    for number in range(2):
        await raw.produce(f"{TOPIC}-partition-{number}", number)
    for number in range(2):
        raw.send(BaseCommand.CLOSE_PRODUCER, producer_id=number, request_id=9)
        await raw.expect(BaseCommand.SUCCESS)
        for one in world.broker.topics.values():
            idle = InactiveTopics(one.name.partition <= number, NO_SUBSCRIPTIONS, -1)
            await one.apply_policies(replace(one.policies, inactive_topics=idle))
        await world.broker.periodic.delete_inactive_topics()
        assert len(world.broker.topics) == 1 - number
        assert await world.store.exists(NAME.partitions_path) is (number == 0 or not is_on)
    raw.close()


async def test_a_topic_that_takes_too_long_to_open_is_refused_and_there_for_those_who_come_later(
    world: BrokerInMemory,
) -> None:
    await world.restart(topic_load_s=0.05)
    raw = await RawClient.connect(world.broker.port)
    world.ledgers.hold_opening = asyncio.Event()
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
    assert await raw.refused() == wire.ServiceNotReady
    world.ledgers.hold_opening.set()
    await raw.produce(TOPIC, 2)
    assert world.ledgers.opened.count(NAME.managed_ledger_name) == 1, "it was opened once"
    raw.close()


async def test_an_initial_subscription_is_made_for_the_producer(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC, initial_subscription_name="dlq")
    assert list(world.ledger(TOPIC).cursors) == ["dlq"]


async def test_partitions_beyond_the_count_are_not_made(world: BrokerInMemory, raw: RawClient) -> None:
    await world.store.put(NAME.partitions_path, b'{"partitions":2,"deleted":false}')
    await world.set_policies("public/default", autoTopicCreationOverride={"allowAutoTopicCreation": False})
    await raw.produce(f"{TOPIC}-partition-1")
    raw.send(BaseCommand.PRODUCER, topic=f"{TOPIC}-partition-2", producer_id=2, request_id=1)
    assert await raw.refused() == wire.TopicNotFound
    raw.send(BaseCommand.PARTITIONED_METADATA, topic=TOPIC, request_id=2)
    assert (await raw.answer()).partitionMetadataResponse.partitions == 2


@pytest.mark.parametrize("suffix", ["", "-partition-0"])
async def test_the_coordinators_of_transactions_are_refused_where_clients_look_for_them(
    world: BrokerInMemory, raw: RawClient, suffix: str
) -> None:
    """Also where an Apache cluster has made the topic: initialising one does."""
    topic = f"persistent://pulsar/system/transaction_coordinator_assign{suffix}"
    await world.store.put(TopicName.parse(topic).partitions_path, b'{"partitions":16,"deleted":false}')
    raw.send(BaseCommand.PARTITIONED_METADATA, topic=topic, request_id=1)
    partitions = (await raw.answer()).partitionMetadataResponse
    assert (partitions.error, partitions.message) == (wire.NotAllowedError, "Transactions are not enabled.")
    raw.send(BaseCommand.LOOKUP, topic=topic, request_id=2)
    found = (await raw.answer()).lookupTopicResponse
    assert (found.error, found.message) == (wire.NotAllowedError, "Transactions are not enabled.")


async def test_what_is_not_served_says_so(world: BrokerInMemory, raw: RawClient) -> None:
    raw.send(
        BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="pulsar.dedup", subType=SHARED, consumer_id=1, request_id=2
    )
    assert await raw.refused() == wire.ProducerBusy
    raw.send(
        BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", subType=SHARED, consumer_id=1, request_id=3,
        read_compacted=True,
    )  # fmt: skip
    assert await raw.refused() == wire.NotAllowedError
    raw.send(BaseCommand.SEEK, consumer_id=1, request_id=4)
    assert await raw.refused() == wire.MetadataError


# ------------------------------------------------------------------------------------ sockets


async def test_reading_pauses_while_too_much_is_unanswered(world: BrokerInMemory) -> None:
    await world.restart(max_pending_publishes=10)
    raw = await RawClient.connect(world.broker.port)
    await raw.produce(TOPIC)
    ledger = world.ledger(TOPIC)
    ledger.hold = True
    for first in range(0, 50, 5):
        raw.publish(1, *range(first, first + 5))
        await raw.writer.drain()
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert ledger.pending_count < 50
    ledger.release()
    receipts = [(await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt for _ in range(50)]
    assert [receipt.sequence_id for receipt in receipts] == list(range(50))
    raw.close()


def is_told_to_pause() -> bool:
    """Whether the loop says that a socket takes no more. That of Python 3.12 and 3.13 does not after `writelines` in
    their first releases (CVE-2024-12254); servers run on uvloop."""
    names = asyncio.selector_events._SelectorSocketTransport.writelines.__code__.co_names  # type: ignore[attr-defined]
    is_asyncios = isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop)
    return not is_asyncios or "write" in names or "_maybe_pause_protocol" in names


async def test_nothing_more_is_dispatched_to_a_client_that_does_not_read(world: BrokerInMemory, raw: RawClient) -> None:
    if not is_told_to_pause():
        pytest.skip("this Python's asyncio does not say when a socket takes no more")
    await raw.produce(TOPIC)
    slow = await RawClient.connect(world.broker.port)
    await slow.subscribe(TOPIC, permits=10_000)
    receives = slow.writer.get_extra_info("socket")
    receives.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)  # by itself it would take megabytes
    data = entry(0) + bytes(256 * 1024)
    for number in range(40):
        raw.publish(1, number, data=data[6:])  # without checksum
        await raw.expect(BaseCommand.SEND_RECEIPT)
    (consumer,) = world.broker.topics[NAME].subscriptions["s"].consumers
    assert consumer.messages_out < 40
    got = 0
    while got < 40:
        got += (await slow.answer()).type == BaseCommand.MESSAGE
    assert consumer.messages_out == 40
    slow.close()


async def test_a_batch_that_claims_what_its_bytes_cannot_hold_is_refused(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.produce(TOPIC, producer_name="p")
    for number, (count, says, words) in enumerate(
        [
            (2**31 - 1, 2**31 - 1, "at most 1000000"),
            (11, 11, "60 bytes hold at most 10 messages"),
            (0, 0, "at least one message"),
            (-5, -5, "at least one message"),
            (10, 9, "num_messages is 9, and the batch says 10"),
        ]
    ):
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, num_messages_in_batch=count)
        raw.publish(1, number, data=encode_entry(metadata, plain_batch(10)), num_messages=says)
        refused = (await raw.expect(BaseCommand.SEND_ERROR)).send_error
        assert (refused.error, refused.sequence_id) == (wire.NotAllowedError, number)
        assert f"Message {number} of p" in refused.message
        assert words in refused.message
    raw.publish(1, 9, data=entry(9, batch=10), num_messages=10)
    await raw.expect(BaseCommand.SEND_RECEIPT)
    assert world.broker.topics[NAME].messages_in == 10


async def test_a_message_has_so_many_properties_and_a_key_of_limited_length(
    world: BrokerInMemory, raw: RawClient
) -> None:
    """Each is looked at, on the loop, whenever the message is read."""
    await raw.produce(TOPIC, producer_name="p")

    def told(**fields: Any) -> bytes:
        return encode_entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields), b"")

    pair = KeyValue(key="key", value="value")
    for number, (data, words) in enumerate(
        [
            (told(properties=[pair] * (METADATA_FIELDS_MAX + 1)), "more than 10000 properties"),
            (told(properties=[KeyValue(key="", value="")] * 100_000), "more than 10000 properties"),
            (told(partition_key="x" * (KEY_BYTES_MAX + 1)), "its key has 65537 bytes, more than 65536"),
            (told(ordering_key=b"x" * (KEY_BYTES_MAX + 1)), "its key has 65537 bytes, more than 65536"),
        ]
    ):
        raw.publish(1, number, data=data)
        refused = (await raw.expect(BaseCommand.SEND_ERROR)).send_error
        assert (refused.error, refused.sequence_id) == (wire.NotAllowedError, number)
        assert f"Message {number} of p" in refused.message
        assert words in refused.message
    taken = [
        told(properties=[pair] * PROPERTIES_MAX, partition_key="x" * KEY_BYTES_MAX),
        told(properties=[KeyValue(key="k", value="x" * 3_000_000)]),
    ]
    for number, data in enumerate(taken, 10):
        raw.publish(1, number, data=data)
        await raw.expect(BaseCommand.SEND_RECEIPT)


async def test_what_a_client_calls_itself_is_kept_to_a_length(world: BrokerInMemory) -> None:
    raw = await RawClient.connect(world.broker.port, introduce=False)
    raw.send(BaseCommand.CONNECT, client_version="v" * 100_000, protocol_version=21)
    await raw.expect(BaseCommand.CONNECTED)
    await raw.produce(TOPIC)
    (producer,) = world.broker.topics[NAME].producers.values()
    assert producer.client_version == "v" * CLIENT_VERSION_CHARS_MAX


async def test_a_consumer_has_so_many_ranges_of_hashes(raw: RawClient) -> None:
    def subscribe(count: int) -> None:
        raw.send(
            BaseCommand.SUBSCRIBE, topic=TOPIC, consumer_id=1, request_id=1, subscription="s",
            subType=wire.CommandSubscribe.Key_Shared,
            keySharedMeta=wire.KeySharedMeta(
                keySharedMode=wire.STICKY,
                hashRanges=[wire.IntRange(start=2 * number, end=2 * number) for number in range(count)],
            ),
        )  # fmt: skip

    subscribe(RANGES_MAX + 1)
    assert await raw.refused() == wire.ConsumerAssignError
    subscribe(RANGES_MAX)
    await raw.expect(BaseCommand.SUCCESS)


async def test_a_frame_above_the_limit_ends_the_connection(world: BrokerInMemory, raw: RawClient) -> None:
    raw.writer.write((CONFIG.max_message_bytes + 10 * 1024 + 1).to_bytes(4, "big"))
    assert await raw.ended()


async def test_a_frame_cut_anywhere_is_put_together(world: BrokerInMemory, raw: RawClient) -> None:
    data = bytes.fromhex("00000009 00000005 0812 920100") * 2
    for at in range(len(data)):
        raw.writer.write(data[at : at + 1])
        await raw.writer.drain()
        await asyncio.sleep(0)
    for _ in range(2):
        await raw.expect(BaseCommand.PONG)


async def test_the_silent_are_asked_once_and_then_disconnected() -> None:
    clock = ManualClock()
    config = replace(CONFIG, keep_alive_s=30)

    class Quiet:
        def __init__(self) -> None:
            self.config = config
            self.doors = None
            self.publishes = self.reads = self.set_aside = MemoryBudget(1 << 30, clock.call_later)
            self.arrivals = Arrivals(clock)
            self.kept_properties = KeptBytes.of_broker()
            self.access = None  # no command is worked on here

        def now_ms(self) -> int:
            return 0

    server = BinaryServer(cast(BrokerPort, Quiet()), clock, config)
    port = await server.listen("127.0.0.1", 0)
    stranger = await RawClient.connect(port, introduce=False)
    talker, silent = await RawClient.connect(port), await RawClient.connect(port)
    clock.advance(30)
    assert await stranger.ended()
    for client in (talker, silent):
        await client.expect(BaseCommand.PING)
    talker.send(BaseCommand.PONG)
    assert await talker.nothing_came()
    clock.advance(30)
    assert await silent.ended()
    await talker.expect(BaseCommand.PING)
    await server.close()


async def test_a_stopped_broker_has_closed_its_topics_and_told_its_clients(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.produce(TOPIC)
    ledger = world.ledger(TOPIC)
    await world.broker.close()
    await raw.expect(BaseCommand.CLOSE_PRODUCER)
    assert await raw.ended()
    assert not ledger.is_open
    world.broker = Broker(
        world.config, world.store, None, LoopClock(),
        ownership=world.ownership, ledgers=world.ledgers, schemas=world.schemas,
    )  # fmt: skip
    await world.broker.start()


@pytest.mark.parametrize("is_taken_over", [True, False])
async def test_a_seek_that_took_long_is_no_success_if_another_broker_has_the_topic(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch, is_taken_over: bool
) -> None:
    """Its consumer may be there already, and forgets what it was sent there when it hears of success here."""
    monkeypatch.setattr("broker.topic.subscriptions.SEEK_DOUBTED_S", 0.0)
    await raw.subscribe("persistent://public/default/t")
    world.ledger("t").is_taken_over = is_taken_over
    first = MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    raw.send(BaseCommand.SEEK, consumer_id=1, request_id=3, message_id=first)
    await raw.expect(BaseCommand.CLOSE_CONSUMER)
    if is_taken_over:
        answer = await raw.expect(BaseCommand.ERROR)
        assert (answer.error.request_id, answer.error.error) == (3, wire.ServiceNotReady)
    else:
        assert (await raw.expect(BaseCommand.SUCCESS)).success.request_id == 3
