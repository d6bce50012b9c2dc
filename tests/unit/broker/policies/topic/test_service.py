"""Policies of topics on brokers of one cluster: stored in `__change_events`, and in force at each of them."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

import broker.policies.topic.service as service
from broker.admin.numbers.metrics import broker_samples
from broker.errors import NotReady
from broker.policies.topic.events import SCHEMA, encode
from broker.policies.topic.record import Record
from broker.system_client import Refused, SystemClient, SystemClientError
from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.observe import Sample
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata, SingleMessageMetadata
from managed_ledger.position import Position
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.raw_client import RawClient

ADMIN = "/admin/v2"
TOPIC = f"{ADMIN}/persistent/public/default/t"
NAME = TopicName.parse("persistent://public/default/t")
CHANGES = TopicName.parse("persistent://public/default/__change_events")


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def put(world: AdminWorld, side: Side, policy: str, value: object, topic: str = TOPIC) -> None:
    found = await world.call(side, "POST", f"{topic}/{policy}", value, follow=True)
    assert found.status == 204, found.text


async def make(world: AdminWorld, side: Side, topic: str = TOPIC) -> None:
    assert (await world.call(side, "PUT", topic, follow=True)).status == 204


async def told(world: AdminWorld, side: Side, policy: str, topic: str = TOPIC) -> str:
    return (await world.call(side, "GET", f"{topic}/{policy}", follow=True)).text


def owner_of(name: TopicName, *sides: Side) -> Side:
    return next(side for side in sides if name in side.broker.topics)


async def test_a_policy_is_in_force_as_soon_as_it_is_set(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 1)
    client = await RawClient.connect(side.broker.port)
    await client.produce(str(NAME))
    client.send(wire.BaseCommand.PRODUCER, topic=str(NAME), producer_id=2, request_id=2)
    assert await client.refused() == wire.ProducerBusy
    client.close()


async def test_subscriptions_of_one_topic_may_end_sooner_than_those_of_its_namespace(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    space = f"{ADMIN}/namespaces/public/default/subscriptionExpirationTime"
    assert (await world.call(side, "POST", space, 60)).status == 204
    await put(world, side, "subscriptionExpirationTime?subscriptionExpirationTime=7", None)
    assert await told(world, side, "subscriptionExpirationTime") == "7"
    assert side.broker.topics[NAME].limits.expiration_minutes == 7
    refused = await world.call(side, "POST", f"{TOPIC}/subscriptionExpirationTime?subscriptionExpirationTime=-1")
    assert (refused.status, refused.json["reason"]) == (412, "Invalid value for subscription expiration time")
    assert (await world.call(side, "DELETE", f"{TOPIC}/subscriptionExpirationTime")).status == 204
    assert await told(world, side, "subscriptionExpirationTime?applied=true") == "60"


async def test_a_policy_holds_after_the_topic_was_opened_anew(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    await put(world, side, "messageTTL?messageTTL=77", 77)
    await side.broker.opening.unload(NAME)
    await side.broker.opening.unload(CHANGES)
    fresh = await world.side()
    assert await told(world, fresh, "messageTTL") == "77"


async def test_who_asks_for_policies_while_the_broker_stops_is_told_so(world: AdminWorld) -> None:
    side = await world.side()
    await side.broker.topic_policies.close()
    with pytest.raises(NotReady, match="the broker is stopping"):
        await side.broker.topic_policies.records_of(NAME)
    with pytest.raises(NotReady, match="the broker is stopping"):
        await side.broker.topic_policies.stored(NAME, is_global=False)


async def test_opening_a_topic_makes_no_system_topic(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    assert list(side.broker.topics) == [NAME]
    assert await side.broker.ledgers.list("public/default") == [NAME.managed_ledger_name]


async def test_every_broker_learns_of_a_change_and_of_a_system_topic_that_another_made(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    topics = [f"{ADMIN}/persistent/public/default/t{number}" for number in range(8)]
    for topic in topics:
        await make(world, a, topic)  # on both brokers, which look for a system topic and find none
    assert a.broker.topics.keys()
    assert b.broker.topics.keys()
    for number, topic in enumerate(topics):
        await put(world, a, "maxConsumers", number, topic)

    def all_have_theirs() -> None:
        served = [one for side in (a, b) for one in side.broker.topics.values() if not one.name.is_system]
        assert len(served) == 8
        for one in served:
            assert one.policies.max_consumers_per_topic == int(one.name.local[1:])

    await eventually(all_have_theirs)


async def test_a_namespace_s_policy_counts_again_when_the_topic_s_is_removed(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    assert (await world.call(side, "POST", f"{ADMIN}/namespaces/public/default/maxProducersPerTopic", 7)).status == 204
    await put(world, side, "maxProducers", 3)
    topic = side.broker.topics[NAME]
    await eventually(lambda: topic.policies.max_producers_per_topic == 3)
    assert (await world.call(side, "DELETE", f"{TOPIC}/maxProducers")).status == 204
    await eventually(lambda: topic.policies.max_producers_per_topic == 7)


async def test_what_is_set_for_all_clusters_counts_below_what_is_set_for_this_one(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    assert (await world.call(side, "POST", f"{ADMIN}/namespaces/public/default/maxProducersPerTopic", 7)).status == 204
    topic = side.broker.topics[NAME]
    await put(world, side, "maxProducers?isGlobal=true", 5)
    await put(world, side, "maxConsumers?isGlobal=true", 4)
    await put(world, side, "autoSubscriptionCreation?isGlobal=true", {"allowAutoSubscriptionCreation": False})
    await eventually(lambda: topic.policies.max_consumers_per_topic == 4)
    assert topic.policies.max_producers_per_topic == 5
    assert topic.policies.auto_subscription_creation is None, "that is asked of this cluster's alone"
    await put(world, side, "maxProducers", 3)
    await eventually(lambda: topic.policies.max_producers_per_topic == 3)
    assert topic.policies.max_consumers_per_topic == 4
    await side.broker.opening.unload(NAME)
    fresh = await world.side()
    assert (await fresh.broker.in_force.policies_of(NAME)).max_consumers_per_topic == 4
    for policy, expected in (("maxProducers", 5), ("maxProducers?isGlobal=true", 7)):
        assert (await world.call(side, "DELETE", f"{TOPIC}/{policy}", follow=True)).status == 204

        async def counts_now(expected: int = expected) -> bool:
            return (await fresh.broker.in_force.policies_of(NAME)).max_producers_per_topic == expected

        await eventually(counts_now)


async def test_partitions_have_the_policies_of_their_topic(world: AdminWorld) -> None:
    side = await world.side()
    assert (await world.call(side, "PUT", f"{TOPIC}/partitions", 3)).status == 204
    await put(world, side, "maxProducers", 2)
    for number in range(3):
        partition = NAME.with_partition(number)
        assert (await world.call(side, "GET", f"{ADMIN}/{partition.rest_path}/stats")).status == 200
        assert side.broker.topics[partition].policies.max_producers_per_topic == 2


async def test_a_topic_that_is_made_again_begins_without_policies(world: AdminWorld) -> None:
    side = await world.side()
    for path in (TOPIC, f"{TOPIC}/partitions"):
        assert (await world.call(side, "PUT", path, 1 if path.endswith("s") else None)).status == 204
        await put(world, side, "maxProducers", 2)
        assert (await world.call(side, "DELETE", path)).status == 204
        assert (await world.call(side, "PUT", path, 1 if path.endswith("s") else None)).status == 204
        assert await told(world, side, "maxProducers") == ""
        assert (await world.call(side, "DELETE", path)).status == 204


async def test_a_namespace_with_nothing_but_its_system_topic_is_empty(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 2)
    assert (await world.call(side, "DELETE", f"{ADMIN}/namespaces/public/default")).status == 409
    assert (await world.call(side, "DELETE", TOPIC)).status == 204
    assert (await world.call(side, "DELETE", f"{ADMIN}/namespaces/public/default")).status == 204
    assert not side.broker.topics


async def test_policies_can_be_set_where_topics_are_not_made_by_themselves(world: AdminWorld) -> None:
    side = await world.side(allow_auto_topic_creation=False, auto_topic_creation_type="partitioned")
    await make(world, side)
    await put(world, side, "maxProducers", 2)
    assert await told(world, side, "maxProducers") == "2"
    assert CHANGES in side.broker.topics


async def test_where_they_are_switched_off_they_are_refused(world: AdminWorld) -> None:
    side = await world.side(topic_level_policies=False)
    await make(world, side)
    found = await world.call(side, "POST", f"{TOPIC}/maxProducers", 3)
    assert found.status == 405
    assert "disabled" in found.reason


async def test_changes_at_the_same_moment_are_both_kept(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    await asyncio.gather(*(put(world, side, name, 5) for name in ("maxProducers", "maxConsumers", "maxMessageSize")))
    for name in ("maxProducers", "maxConsumers", "maxMessageSize"):
        assert await told(world, side, name) == "5"


async def test_a_change_is_not_taken_back_by_an_older_message_that_is_read_later(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 1)
    follow, is_held = SystemClient.follow, asyncio.Event()

    async def slow(
        client: SystemClient,
        topic: TopicName,
        schema: wire.Schema,
        on_entry: Callable[..., Awaitable[None]],
        on_end: Callable[[], None],
    ) -> None:
        is_caught_up = False

        async def late(*entry: Any) -> None:
            if is_caught_up:
                await is_held.wait()
            await on_entry(*entry)

        def caught_up() -> None:
            nonlocal is_caught_up
            is_caught_up = True
            on_end()

        await follow(client, topic, schema, late, caught_up)

    monkeypatch.setattr(SystemClient, "follow", slow)
    other = await world.side()
    assert await told(world, other, "maxProducers") == "1"
    policies = other.broker.topic_policies
    for number in (2, 3):  # stored by this broker, whose own reading comes behind
        await policies.change(NAME, partial(with_producers, number), is_global=False)
    heard: list[TopicName] = []
    monkeypatch.setattr(policies._namespaces[NAME.namespace], "_changed", heard.append)
    is_held.set()
    await put(world, side, "maxConsumers", 7)

    async def has_come() -> bool:
        return await told(world, other, "maxConsumers") == "7"

    await eventually(has_come)
    assert heard == [NAME], "only the last change is one; reading the other two again changes nothing"
    assert await told(world, other, "maxProducers") == "3"


async def test_what_a_deleted_topic_had_does_not_come_back_while_the_system_topic_is_read_anew(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 2)
    policies = side.broker.topic_policies
    removals = policies._namespaces[NAME.namespace].known
    assert (await world.call(side, "DELETE", TOPIC)).status == 204
    await eventually(lambda: not removals)  # its removal was read, too
    await make(world, side)
    namespace, is_read_anew = policies._namespaces[NAME.namespace], asyncio.Event()
    heard: list[TopicName] = []
    monkeypatch.setattr(namespace, "_changed", heard.append)
    on_read = namespace.on_read

    def read_anew() -> None:
        on_read()
        is_read_anew.set()

    monkeypatch.setattr(namespace, "on_read", read_anew)
    await side.broker.opening.unload(CHANGES)
    await is_read_anew.wait()
    assert not heard
    await put(world, side, "maxConsumers", 7)
    assert heard == [NAME]
    assert await told(world, side, "maxProducers") == ""


def answers_late(side: Side, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """The next message of the broker's client is stored; its answer comes when the second event is set."""
    client = side.broker.topic_policies._client
    is_stored, may_answer, publish = asyncio.Event(), asyncio.Event(), client.publish

    async def published(*args: Any) -> Position:
        position = await publish(*args)
        is_stored.set()
        await may_answer.wait()
        return position

    monkeypatch.setattr(client, "publish", published)
    return is_stored, may_answer


async def test_nothing_is_kept_of_a_removal_that_is_read_before_its_answer_comes(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 2)
    _, may_answer = answers_late(side, monkeypatch)
    policies = side.broker.topic_policies
    known = policies._namespaces[NAME.namespace].known
    removing = asyncio.create_task(policies.forget(NAME))
    await eventually(lambda: not known)  # it was read
    may_answer.set()
    await removing
    assert not known


async def test_a_change_whose_answer_comes_late_does_not_take_back_what_another_broker_changed_since(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await world.side(), await world.side()
    await make(world, a)
    await put(world, a, "maxConsumers", 1)
    await told(world, b, "maxConsumers")  # both have read the system topic
    is_stored, may_answer = answers_late(a, monkeypatch)
    changing = asyncio.create_task(a.broker.topic_policies.change(NAME, partial(with_producers, 5), is_global=False))
    await is_stored.wait()
    await b.broker.topic_policies.change(NAME, lambda _: None, is_global=False)
    namespace = a.broker.topic_policies._namespaces[NAME.namespace]
    await eventually(lambda: not namespace.known)
    may_answer.set()
    await changing
    assert await a.broker.topic_policies.stored(NAME, is_global=False) is None


async def test_what_a_deleted_system_topic_said_does_not_hold_any_more(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 2)
    topic = side.broker.topics[NAME]
    await eventually(lambda: topic.policies.max_producers_per_topic == 2)
    await eventually(lambda: side.broker.topics[CHANGES].subscriptions)  # it is followed
    await side.broker.deleting.delete_topic(CHANGES, force=True)
    await eventually(lambda: topic.policies.max_producers_per_topic is None)
    assert await told(world, side, "maxProducers") == ""


def with_producers(number: int, record: Record) -> Record:
    return {**record, "maxProducerPerTopic": number}


async def test_what_others_wrote_into_the_system_topic_and_is_no_event_is_passed_over(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 2)
    client = await RawClient.connect(side.broker.port)
    await client.produce(str(CHANGES))
    strange = MessageMetadata(producer_name="x", sequence_id=1, publish_time=1, partition_key=str(NAME))
    client.publish(1, 0, data=encode_entry(strange, b"\xff\xff\xff"))
    strange.partition_key = "no topic"
    client.publish(1, 1, data=encode_entry(strange, b"x"))
    await client.answer()
    await put(world, side, "maxConsumers", 4)
    client.close()
    fresh = await world.side()
    assert await told(world, fresh, "maxProducers") == "2"
    assert await told(world, fresh, "maxConsumers") == "4"


async def write_events(side: Side, *values: bytes, schema: bytes = b"", version: bytes = b"") -> None:
    """Events of the topic that anybody wrote, with a schema of its own, or a version that is said to be there."""
    client = await RawClient.connect(side.broker.port)
    if schema:
        own = wire.Schema(name="x", type=wire.Schema.Avro, schema_data=schema)
        version = (await client.produce(str(CHANGES), schema=own)).schema_version
    else:
        await client.produce(str(CHANGES))
    for number, value in enumerate(values):
        made = MessageMetadata(producer_name="x", sequence_id=number, publish_time=1, partition_key=str(NAME))
        made.schema_version = version
        client.publish(1, number, data=encode_entry(made, value))
        await client.expect(wire.BaseCommand.SEND_RECEIPT)
    client.close()


def events_with(kind: object) -> bytes:
    """The schema of events with one more field in front."""
    made = json.loads(SCHEMA)
    made["fields"].insert(0, {"name": "more", "type": kind})
    return json.dumps(made).encode()


async def test_events_that_cannot_be_read_close_no_namespace(
    world: AdminWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """An array of 2^60 nulls; a schema that is not there; one that names a type which it does not have."""
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 2)
    nulls = events_with({"type": "array", "items": "null"})
    await write_events(side, b"\x80\x80\x80\x80\x80\x80\x80\x80\x20" + bytes(7), schema=nulls)
    await write_events(side, b"x", b"y", version=(77).to_bytes(8, "big"))
    await write_events(side, b"x", version=b"short")
    await write_events(side, b"x", schema=events_with("Nothing"))
    await put(world, side, "maxConsumers", 4)
    fresh = await world.side()
    (found,) = await fresh.broker.topic_policies.records_of(NAME)
    assert (found["maxProducerPerTopic"], found["maxConsumerPerTopic"]) == (2, 4)
    assert fresh.broker.topic_policies.unreadable == 5
    await eventually(lambda: side.broker.topic_policies.unreadable == 5)
    lines = [one.getMessage() for one in caplog.records if "is passed over" in one.getMessage()]
    assert len(lines) == 2, "one of each broker"
    assert "__change_events: the event at" in lines[0]
    samples = {one.name: one.value for one in broker_samples(fresh.broker, []) if isinstance(one, Sample)}
    assert samples["magnetar_topic_policies_unreadable_events_total"] == 5


@pytest.mark.parametrize("kept", [True, False])
async def test_events_without_a_schema_close_no_namespace(world: AdminWorld, kept: bool) -> None:
    """Apache's brokers and ours follow the system topic with a schema, which a topic without one refuses once it is
    used: by who has it open, or by what it holds."""
    side = await world.side()
    client = await RawClient.connect(side.broker.port)
    client.send(wire.BaseCommand.LOOKUP, topic=str(CHANGES), request_id=0)
    await client.expect(wire.BaseCommand.LOOKUP_RESPONSE)
    await client.produce(str(CHANGES))
    client.publish(1, 0)
    await client.expect(wire.BaseCommand.SEND_RECEIPT)
    if kept:
        client.close()
        await side.broker.opening.unload(CHANGES)
    await make(world, side)
    await put(world, side, "messageTTL?messageTTL=77", 77)
    assert await told(world, await world.side(), "messageTTL") == "77"
    client.close()


async def test_events_have_a_limited_number_of_schemas(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SCHEMAS_MAX", 4)
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 2)
    for number in range(9):
        await write_events(side, b"x", version=(50 + number).to_bytes(8, "big"))
    asked: list[bytes] = []
    ask = SystemClient.schema

    async def noting(client: SystemClient, topic: TopicName, version: bytes) -> wire.Schema:
        asked.append(version)
        return await ask(client, topic, version)

    monkeypatch.setattr(SystemClient, "schema", noting)
    fresh = await world.side()
    (found,) = await fresh.broker.topic_policies.records_of(NAME)
    assert found["maxProducerPerTopic"] == 2
    assert len(asked) == 3, "beside the one of events without a version"
    assert fresh.broker.topic_policies.unreadable == 9


@pytest.mark.parametrize("inline_bytes", [service.INLINE_BYTES_MAX, 10])
async def test_events_of_a_batch_are_read_in_turns(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(service, "EVENTS_PER_TURN", 3)
    monkeypatch.setattr(service, "INLINE_BYTES_MAX", inline_bytes)
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 1)
    sizes: list[int] = []

    def noting(values: Iterable[Any]) -> list[Any]:
        found = [*values]
        sizes.append(len(found))
        return found

    monkeypatch.setattr(service, "list", noting, raising=False)
    values = [encode(NAME, {"maxProducerPerTopic": number}, is_global=False, cluster="c") for number in range(8)]
    metadata, payload = batched(values, str(NAME))
    client = await RawClient.connect(side.broker.port)
    await client.produce(str(CHANGES))
    client.publish(1, 0, data=encode_entry(metadata, payload), num_messages=8)
    await client.expect(wire.BaseCommand.SEND_RECEIPT)
    client.close()
    topic = side.broker.topics[NAME]
    await eventually(lambda: topic.policies.max_producers_per_topic == 7)
    assert sizes[-3:] == [3, 3, 2]


def batched(values: list[bytes], key: str) -> tuple[MessageMetadata, bytes]:
    payload = bytearray()
    for value in values:
        head = SingleMessageMetadata(payload_size=len(value), partition_key=key).SerializeToString()
        payload += struct.pack(">I", len(head)) + head + value
    made = MessageMetadata(producer_name="x", sequence_id=0, publish_time=1, num_messages_in_batch=len(values))
    return made, bytes(payload)


async def test_a_schema_that_cannot_be_asked_for_now_is_asked_for_again(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 2)
    await side.broker.topic_policies._client.schema(CHANGES, bytes(8))
    ask, is_away = SystemClient.schema, True

    async def away(client: SystemClient, topic: TopicName, version: bytes) -> wire.Schema:
        if is_away:
            raise Refused("storage is away")
        return await ask(client, topic, version)

    monkeypatch.setattr(SystemClient, "schema", away)
    monkeypatch.setattr(service, "READ_S", 0.3)
    fresh = await world.side()
    with pytest.raises(NotReady, match="storage is away"):
        await fresh.broker.topic_policies.records_of(NAME)
    is_away = False
    monkeypatch.setattr(service, "READ_S", 10.0)
    (found,) = await fresh.broker.topic_policies.records_of(NAME)
    assert (found["maxProducerPerTopic"], fresh.broker.topic_policies.unreadable) == (2, 0)


async def test_a_topic_whose_policies_cannot_be_read_is_not_opened(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = await world.side()
    await make(world, side)
    await put(world, side, "maxProducers", 2)
    fresh = await world.side()

    async def broken(*_: object) -> None:
        raise SystemClientError("the owner does not answer")

    monkeypatch.setattr(fresh.broker.topic_policies._client, "follow", broken)
    monkeypatch.setattr(service, "READ_S", 0.3)
    with pytest.raises(NotReady, match="the owner does not answer"):
        await fresh.broker.topic_policies.records_of(NAME)
    monkeypatch.undo()
    (found,) = await fresh.broker.topic_policies.records_of(NAME)
    assert found["maxProducerPerTopic"] == 2


async def test_namespaces_that_nobody_uses_are_not_followed_for_ever(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    policies = side.broker.topic_policies
    policies.keep_only({"public/default"})
    policies.keep_only(())
    assert not policies._namespaces
    assert await told(world, side, "maxProducers") == ""


async def test_what_a_namespace_forbids_its_clients_does_not_hold_for_the_system_topic(world: AdminWorld) -> None:
    side = await world.side()
    await make(world, side)
    space = f"{ADMIN}/namespaces/public/default"
    for name, value in (
        ("subscriptionTypesEnabled", ["Shared"]),
        ("maxConsumersPerTopic", 1),
        ("maxProducersPerTopic", 1),
        ("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}),
        ("encryptionRequired", True),
        ("schemaValidationEnforced", True),
        ("schemaCompatibilityStrategy", "ALWAYS_INCOMPATIBLE"),
        ("isAllowAutoUpdateSchema", False),
        ("publishRate", {"publishThrottlingRateInMsg": 1}),
        ("backlogQuota", {"limitSize": 1, "policy": "producer_exception"}),
        ("maxTopicsPerNamespace", 1),
        ("messageTTL", 1),
    ):
        method = "PUT" if name == "schemaCompatibilityStrategy" else "POST"
        assert (await world.call(side, method, f"{space}/{name}", value)).status == 204
    for number in range(5):
        await put(world, side, "maxProducers", number)
    fresh = await world.side()
    await side.broker.opening.unload(CHANGES)
    assert await told(world, fresh, "maxProducers") == "4"
