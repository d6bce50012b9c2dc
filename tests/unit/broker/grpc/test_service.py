"""The port itself: status codes, health, reflection, other clients than ours, failover, loading."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from broker.grpc.service import SERVICE, GrpcServer
from broker.settings.config import load_broker_config
from magnetar.client.async_client import AsyncClient
from magnetar.client.brokers import ended, is_retried
from magnetar.client.codecs.declared import Schema
from magnetar.client.errors import ClientClosed, TopicDoesNotExist, TopicError, TopicInUse, TopicUnavailable
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName
from tests.support.sole_owner import SoleOwner
from tests.unit.broker.conftest import BrokerInMemory, _make
from tests.unit.broker.grpc.conftest import open_grpc

pytestmark = pytest.mark.both_loops


def unary(channel: Any, method: str, answer: Any) -> Any:
    return channel.unary_unary(
        f"/{method}", request_serializer=lambda one: one.SerializeToString(), response_deserializer=answer.FromString
    )


def stream(channel: Any, method: str, answer: Any) -> Any:
    return channel.stream_stream(
        f"/{method}", request_serializer=lambda one: one.SerializeToString(), response_deserializer=answer.FromString
    )()


async def refused(call: Any) -> tuple[str, str]:
    """How a call ended."""
    return (await call.code()).name, await call.details()


async def test_health_says_serving(door: GrpcServer) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        for name in ("", SERVICE):
            check = unary(channel, "grpc.health.v1.Health/Check", health_pb2.HealthCheckResponse)
            answer = await check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_client_that_knows_nothing_learns_the_api_by_reflection_and_uses_it(door: GrpcServer) -> None:
    """What grpcurl does: services, descriptors, messages made from them."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        call = stream(
            channel,
            "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionResponse,
        )
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = [one.name for one in (await call.read()).list_services_response.service]
        assert SERVICE in listed
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE))
        pool = descriptor_pool.DescriptorPool()
        for data in (await call.read()).file_descriptor_response.file_descriptor_proto:
            pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
        await call.done_writing()
        methods = pool.FindServiceByName(SERVICE).methods_by_name

        def kinds(name: str) -> tuple[Any, Any]:
            method = methods[name]
            return tuple(  # type: ignore[return-value]
                message_factory.GetMessageClass(one) for one in (method.input_type, method.output_type)
            )

        request, response = kinds("Publish")
        publish = stream(channel, f"{SERVICE}/Publish", response)
        await publish.write(request(open={"topic": "t"}))
        assert (await publish.read()).opened.producer_name
        await publish.write(request(first_sequence_id=0, messages=[{"payload": b"a", "key": "k"}, {"payload": b"b"}]))
        count = 0
        while count < 2:
            count += sum(one.count for one in (await publish.read()).receipts)
        await publish.done_writing()
        assert (await refused(publish))[0] == "OK"

        request, response = kinds("Consume")
        consume = stream(channel, f"{SERVICE}/Consume", response)
        await consume.write(request(open={"topic": "t", "subscription": "s", "from_earliest": True}))
        assert (await consume.read()).opened.consumer_name
        await consume.write(request(permits=10))
        payloads: list[bytes] = []
        while len(payloads) < 2:
            payloads += [m.payload for d in (await consume.read()).deliveries for m in d.messages]
        assert sorted(payloads) == [b"a", b"b"]
        await consume.done_writing()
        assert (await refused(consume))[0] == "OK"


@pytest.mark.parametrize(
    ("method", "first", "code", "text"),
    [
        ("Publish", api.PublishRequest(), "INVALID_ARGUMENT", "`open`"),
        ("Publish", api.PublishRequest(open={"topic": "t"}, batches=[{}]), "INVALID_ARGUMENT", "and nothing else"),
        ("Publish", api.PublishRequest(open={"topic": "persistent://a/c/b/t"}), "INVALID_ARGUMENT", "with a cluster"),
        ("Publish", api.PublishRequest(open={"topic": "a/b"}), "INVALID_ARGUMENT", "tenant/namespace/topic"),
        ("Publish", api.PublishRequest(open={"topic": "no/where/t"}), "NOT_FOUND", "no/where/t: Namespace not found"),
        (
            "Publish",
            api.PublishRequest(open={"topic": "non-persistent://public/default/t"}),
            "FAILED_PRECONDITION",
            "non-persistent",
        ),
        ("Consume", api.ConsumeRequest(permits=1), "INVALID_ARGUMENT", "`open`"),
        ("Consume", api.ConsumeRequest(open={"topic": "t"}), "ALREADY_EXISTS", "Empty subscription name"),
        (
            "Consume",
            api.ConsumeRequest(open={"topic": "t", "subscription": "s", "type": 9}),
            "INVALID_ARGUMENT",
            "type 9",
        ),
        (
            "Consume",
            api.ConsumeRequest(open={"topic": "t", "subscription": "s", "sticky_ranges": [{"start": 0, "end": 1}]}),
            "INVALID_ARGUMENT",
            "KEY_SHARED",
        ),
    ],
)
async def test_refusals_name_the_topic_and_the_way_out(
    door: GrpcServer, method: str, first: Any, code: str, text: str
) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        call = stream(channel, f"{SERVICE}/{method}", getattr(api, f"{method}Response"))
        await call.write(first)
        found, details = await refused(call)
        assert (found, text in details) == (code, True), details


@pytest.mark.parametrize(
    ("settings", "request_", "code", "text"),
    [
        ({"max_topics_per_namespace": 1}, api.CreateTopicRequest(topic="t2"), "FAILED_PRECONDITION", "maximum number"),
        (
            {"max_topics_per_namespace": 2},
            api.CreateTopicRequest(topic="t2", partitions=2),
            "FAILED_PRECONDITION",
            "maximum number",
        ),
        ({"strict_topic_names": True}, api.CreateTopicRequest(topic="a b"), "FAILED_PRECONDITION", "strictTopicName"),
        (
            {"strict_topic_names": True},
            api.CreateTopicRequest(topic="a b", partitions=1),
            "FAILED_PRECONDITION",
            "strictTopicName",
        ),
        (
            {"max_partitions_per_topic": 3},
            api.CreateTopicRequest(topic="t2", partitions=4),
            "INVALID_ARGUMENT",
            "0 to 3",
        ),
    ],
)
async def test_the_limits_of_topics_hold_for_those_that_are_made_here(
    world: BrokerInMemory, settings: dict[str, Any], request_: Any, code: str, text: str
) -> None:
    await world.restart(**settings)
    await world.broker.opening.create_topic(TopicName.parse("t1"))
    server = await open_grpc(world)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await unary(channel, f"{SERVICE}/CreateTopic", api.CreateTopicResponse)(request_)
    assert (error.value.code().name, text in (error.value.details() or "")) == (code, True), error.value.details()
    assert len(world.ledgers.by_name) == 1
    await server.stop()


async def test_bytes_that_are_no_request_end_the_call_and_nothing_else(door: GrpcServer) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        call = channel.stream_stream(f"/{SERVICE}/Publish")()
        await call.write(b"\xff\xff\xff")
        assert (await call.code()).name == "INTERNAL"
        ask = unary(channel, f"{SERVICE}/ListTopics", api.ListTopicsResponse)
        assert list((await ask(api.ListTopicsRequest())).topics) == []


async def test_a_call_that_is_cancelled_gives_its_place_back(world: BrokerInMemory, door: GrpcServer) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        for method, opening in (
            ("Publish", api.PublishRequest(open={"topic": "t", "producer_name": "p"})),
            ("Consume", api.ConsumeRequest(open={"topic": "t", "subscription": "s"})),
        ):
            call = stream(channel, f"{SERVICE}/{method}", getattr(api, f"{method}Response"))
            await call.write(opening)
            await call.read()
            topic = world.broker.topics[TopicName.parse("t")]
            assert len(topic.producers) + len(topic.subscriptions) > 0
            call.cancel()
            for _ in range(200):
                if not topic.is_in_use:
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError(f"{method}: its place is still taken")


async def test_messages_that_are_too_large_or_out_of_order_are_refused_by_the_broker(door: GrpcServer) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        call = stream(channel, f"{SERVICE}/Publish", api.PublishResponse)
        await call.write(api.PublishRequest(open={"topic": "t"}))
        await call.read()
        messages = [api.Message(payload=b"a"), api.Message(payload=b"x" * 5 * 1024 * 1024), api.Message(payload=b"b")]
        await call.write(api.PublishRequest(first_sequence_id=7, messages=messages))
        stored: set[int] = set()
        refusals: list[Any] = []
        while len(stored) + len(refusals) < 3:
            answer = await call.read()
            for one in answer.receipts:
                stored |= set(range(one.first_sequence_id, one.first_sequence_id + one.count))
            refusals += answer.refusals
        assert stored == {7, 9}
        assert [one.first_sequence_id for one in refusals] == [8]
        assert "maxMessageSize" in refusals[0].reason
        await call.write(api.PublishRequest(first_sequence_id=9, messages=messages[:1]))
        code, details = await refused(call)
        assert (code, "sequence id 9" in details) == ("INVALID_ARGUMENT", True)


async def answered(call: Any, count: int) -> tuple[set[int], dict[int, str]]:
    """The sequence ids of so many messages that are stored, and of those that are refused, with the reasons."""
    stored, reasons = set[int](), dict[int, str]()
    while len(stored) + len(reasons) < count:
        answer = await call.read()
        assert answer is not grpc.aio.EOF, await refused(call)
        for one in answer.receipts:
            stored |= set(range(one.first_sequence_id, one.first_sequence_id + one.count))
        reasons |= {one.first_sequence_id: one.reason for one in answer.refusals}
    return stored, reasons


async def test_what_the_topics_policies_forbid_is_refused_by_itself_and_other_clients_go_on(
    door: GrpcServer, world: BrokerInMemory
) -> None:
    policy = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 1000}
    await world.set_policies("public/default", delayed_delivery_policies=policy)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        calls = [stream(channel, f"{SERVICE}/Publish", api.PublishResponse) for _ in range(2)]
        for call in calls:
            await call.write(api.PublishRequest(open={"topic": "t"}))
            await call.read()
        late = {"payload": b"late", "deliver_at_ms": world.broker.now_ms() + 60_000}
        await calls[0].write(api.PublishRequest(messages=[{"payload": b"a"}, late, {"payload": b"b"}]))
        stored, reasons = await answered(calls[0], 3)
        assert (stored, list(reasons)) == ({0, 2}, [1])
        assert "delivery delay" in reasons[1]
        await calls[1].write(api.PublishRequest(messages=[{"payload": b"c"}]))
        assert await answered(calls[1], 1) == ({0}, {})


@pytest.mark.parametrize("name", ["", "p"])
async def test_small_messages_are_not_gathered_to_more_than_the_topic_takes(
    name: str, door: GrpcServer, world: BrokerInMemory
) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        call = stream(channel, f"{SERVICE}/Publish", api.PublishResponse)
        await call.write(api.PublishRequest(open={"topic": "t", "producer_name": name}))
        await call.read()
        topic = world.broker.topics[TopicName.parse("t")]
        topic.limits = replace(topic.limits, message_bytes_max=500)
        payloads = [bytes([number]) * (600 if number == 7 else 100) for number in range(20)]
        await call.write(api.PublishRequest(messages=[api.Message(payload=one) for one in payloads]))
        stored, reasons = await answered(call, 20)
        assert (stored, list(reasons)) == (set(range(20)) - {7}, [7])
        entries = [bytes(one) for one in world.ledger("t")._entries[world.ledger("t").ledgers.last_confirmed.ledger_id]]
        assert max(map(len, entries)) <= 500
        kept = [number for number in range(20) if number != 7]
        text = b"".join(entries)
        assert [text.index(payloads[number]) for number in kept] == sorted(text.index(payloads[n]) for n in kept)
        await call.write(api.PublishRequest(first_sequence_id=20, messages=[{"payload": b"x"}]))
        assert await answered(call, 1) == ({20}, {})


async def test_a_name_that_is_taken(client: AsyncClient) -> None:
    async with client.producer("t", name="p"):
        with pytest.raises(TopicInUse, match="already connected"):
            await client.producer("t", name="p").open()


async def test_no_ledger_is_made_for_a_topic_that_is_not_persistent(client: AsyncClient, world: BrokerInMemory) -> None:
    with pytest.raises(TopicError, match="only the binary protocol serves such topics"):
        await client.topics.create("non-persistent://public/default/t")
    assert (world.ledgers.by_name, list(world.broker.topics)) == ({}, [])


async def test_a_partition_that_its_topic_does_not_have_is_not_made(client: AsyncClient, world: BrokerInMemory) -> None:
    await client.topics.create("p", partitions=3)
    for name in ("p-partition-3", "none-partition-0"):
        with pytest.raises(TopicError, match="-partition-"):
            await client.topics.create(name)
    with pytest.raises(TopicDoesNotExist):
        await client.producer("p-partition-3").send(b"x")
    assert not world.broker.topics


async def test_topics_are_created_listed_and_deleted(client: AsyncClient) -> None:
    await client.topics.create("t")
    with pytest.raises(TopicInUse):
        await client.topics.create("t")
    assert await client.topics.list() == ["persistent://public/default/t"]
    assert (await client.topics.stats("t"))["msgInCounter"] == 0
    async with client.consumer("t", "s"):
        with pytest.raises(TopicError, match="use force"):
            await client.topics.delete("t")
    await client.topics.delete("t", force=True)
    assert await client.topics.list() == []
    with pytest.raises(TopicDoesNotExist):
        await client.topics.stats("t")


async def test_schemas_are_registered_and_checked(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.producer("t", schema=Schema("string")) as producer, client.consumer("t", "s") as consumer:
        await producer.send(b"text")
        assert (await consumer.receive(5)).schema_version == b"\x00" * 8


@pytest.mark.parametrize("number", [-(2**31), -1, 23, 2**31 - 1])
async def test_a_schema_type_that_pulsar_does_not_have_is_refused(
    client: AsyncClient, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Schema, "to_api", lambda _: api.Schema(type=number))
    with pytest.raises(TopicError, match=f"there is no schema type {number}"):
        await client.producer("t", schema=Schema("json")).open()
    with pytest.raises(TopicError, match=f"there is no schema type {number}"):
        await client.consumer("t", "s", schema=Schema("json")).open()


async def test_messages_are_sent_again_when_their_topic_was_closed(world: BrokerInMemory, client: AsyncClient) -> None:
    await world.set_policies("public/default", deduplicationEnabled=True)
    async with client.consumer("t", "s") as consumer, client.producer("t", name="p") as producer:
        await producer.send(b"0")
        consumer.ack(await consumer.receive(5))
        await consumer.flush()
        sending = asyncio.ensure_future(producer.send_many([b"1", b"2"]))
        await asyncio.sleep(0)
        await world.broker.opening.unload(TopicName.parse("t"))
        await sending
        await producer.send(b"3")
        assert [(await consumer.receive(5)).payload for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_client_goes_on_at_the_broker_that_has_the_topic_now(world: BrokerInMemory) -> None:
    """Two doors of one broker stand for two brokers: the first one closes."""
    first, second = await open_grpc(world), await open_grpc(world)
    addresses = [f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"]
    async with AsyncClient(addresses, operation_timeout_s=30) as client:
        async with client.consumer("t", "s") as consumer, client.producer("t") as producer:
            await producer.send(b"0")
            message = await consumer.receive(5)
            assert message.payload == b"0"
            consumer.ack(message)
            await consumer.flush()
            await second.stop()
            await first.stop()
            third = GrpcServer(world.broker)
            await third.start("127.0.0.1", first.port)
            listeners = {"magnetar-grpc": (f"grpc://{addresses[0]}", "")}
            world.broker.address = world.broker.address._replace(listeners=listeners)
            await producer.send(b"1")
            assert (await consumer.receive(5)).payload == b"1"
        await third.stop()


async def test_topics_that_move_between_brokers_lose_and_repeat_nothing(world: BrokerInMemory) -> None:
    await world.set_policies("public/default", deduplicationEnabled=True)
    other = replace(world, ownership=SoleOwner())
    other.broker = _make(other)
    await other.broker.start()
    doors = [await open_grpc(world), await open_grpc(other)]
    name = TopicName.parse("t")
    worlds = [world, other]
    other.ownership.move(name, world.broker.address)
    sent: list[bytes] = []

    async def send_all(producer: Any) -> None:
        for n in range(60):
            batch = [b"%d" % (n * 5 + i) for i in range(5)]
            await producer.send_many(batch)
            sent.extend(batch)
            await asyncio.sleep(0.005)

    addresses = [f"127.0.0.1:{door.port}" for door in doors]
    async with AsyncClient(addresses, operation_timeout_s=30) as client:
        async with client.consumer("t", "s") as consumer, client.producer("t", name="p") as producer:
            sending = asyncio.ensure_future(send_all(producer))
            for turn in range(4):
                await asyncio.sleep(0.05)
                here, there = worlds[turn % 2], worlds[1 - turn % 2]
                here.ownership.move(name, there.broker.address)
                await here.broker.opening.unload(name)
                there.ownership.elsewhere.clear()
            await sending
            received: list[bytes] = []
            while len(set(received)) < 300:
                batch = await consumer.receive_batch(1000, timeout_s=30)
                assert batch, f"{300 - len(set(received))} messages are missing"
                received += [one.payload for one in batch]
        async with client.reader("t") as reader:
            stored = []
            while await reader.has_more():
                stored.append((await reader.receive(5)).payload)
    assert stored == sent
    for door in doors:
        await door.stop()
    await other.broker.close()


@pytest.mark.parametrize(
    ("code", "details", "is_tried_again"),
    [
        (grpc.StatusCode.INTERNAL, "Internal error from Core", True),
        (grpc.StatusCode.INTERNAL, "KeyError: 'x'; see the broker's log", False),
        (grpc.StatusCode.OK, "", True),
        (grpc.StatusCode.UNAVAILABLE, "t: closed by the broker", True),
        (grpc.StatusCode.FAILED_PRECONDITION, "t is terminated", False),
    ],
)
async def test_a_call_whose_status_got_lost_is_tried_again(code: Any, details: str, is_tried_again: bool) -> None:
    class Call:
        async def code(self) -> Any:
            return code

        async def details(self) -> str:
            return details

    assert is_retried(await ended(Call(), "t")) is is_tried_again


async def test_no_broker_at_all() -> None:
    async with AsyncClient("127.0.0.1:1", operation_timeout_s=0.2) as client:
        with pytest.raises(TopicUnavailable, match=r"127\.0\.0\.1:1"):
            await client.producer("t").send(b"x")
    with pytest.raises(ClientClosed):
        await client.topics.list()


@pytest.mark.parametrize("addresses", ["", "localhost", []])
async def test_addresses_are_checked(addresses: Any) -> None:
    with pytest.raises(ValueError, match="host:port"):
        AsyncClient(addresses)


def test_the_settings_of_the_port() -> None:
    assert load_broker_config({}).grpc_port is None
    config = load_broker_config({"grpcServicePort": "6648", "grpcGroupMaxDelayMillis": "2.5"})
    assert (config.grpc_port, config.grpc_group_delay_ms) == (6648, 2.5)
    assert replace(config, grpc_port=None).grpc_group_messages_max == 1000
    with pytest.raises(ConfigurationError) as caught:
        load_broker_config({"grpcGroupMaxMessages": "0", "grpcGroupMaxDelayMillis": "-1"})
    assert "grpcGroupMaxMessages" in str(caught.value)
    assert "grpcGroupMaxDelayMillis" in str(caught.value)


def test_grpc_is_not_loaded_by_what_does_not_need_it() -> None:
    program = "import sys, magnetar, broker.broker, magnetar.processes.broker; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
