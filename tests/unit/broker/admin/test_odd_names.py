"""Odd names at every door that makes or names a topic, a subscription, a partitioned topic: each is refused at all of
them or works at all, and what is made is listed and can be deleted over HTTP."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final
from urllib.parse import quote, quote_plus

import grpc
import pytest

from broker.arrivals import _SOURCE
from broker.grpc.service import GrpcServer
from broker.names import CLIENT_NAME_BYTES_MAX
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.position import LATEST
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.raw_client import RawClient

NAMESPACE: Final = "persistent://public/default"
PATH: Final = "/admin/v2/persistent/public/default"
PASSING: Final = "/admin/v2/non-persistent/public/default"
LONGEST: Final = "x" * 1_024
REFUSED: Final = (
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ALREADY_EXISTS
)  # fmt: skip

ODD: Final = [
    "...", "%2F", "a%2Fb", "%00", "%2e%2e", "%", "a b", "a+b", "ü", "аdmin", "a\xa0b", "a\u200db", "\ufeff",
    "\u0627\u200f", "a\u200bb", "😀", "\ud7ff", "{x}", "{", '"', "a?b", "a#b", "a;b", "*", "~", "a\\b", "null",
    "persistent", "persistent:", "partitioned", "partitions", "__change_events", "t-partition-",
    "t-partition-01", "-partition-1", LONGEST, "ü" * 512,
]  # fmt: skip

# Made by no door; what is there by such a name is listed and deleted.
CONTROLS: Final = [
    "\x00", "a\nb", "a\r\nb: c", "\x7f", "\x1b[31m", "a\x85b", "a\u2028b", "a\u2029", "a\u202eb", "\u2066a",
    "__change_events\n",
]  # fmt: skip

# Refused everywhere.
NO_TOPICS: Final = [".", "..", "a/b", LONGEST + "x", "ü" * 513]
NO_SUBSCRIPTIONS: Final = [
    ".", "..", " ", "pulsar.dedup", "pulsar.repl.x", "__compaction", LONGEST + "x", "ü" * 513
]  # fmt: skip


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


@pytest.fixture
async def side(world: AdminWorld) -> Side:
    made = await world.side(topic_level_policies=False)  # nobody else uses `__change_events`
    await world.spread([made])
    return made


@pytest.fixture
async def client(side: Side) -> AsyncIterator[RawClient]:
    made = await RawClient.connect(side.broker.port)
    yield made
    made.close()


@pytest.fixture
async def channel(side: Side) -> AsyncIterator[grpc.aio.Channel]:
    server = GrpcServer(side.broker)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start('127.0.0.1', 0)}") as made:
        yield made
    await server.stop()


async def asked(client: RawClient, kind: int, **fields: Any) -> bool:
    """Whether a request was not refused."""
    client.send(kind, request_id=1, **fields)
    answer = await client.answer()
    # Of topics that were deleted; and on a busy machine the broker asks whether the client is there.
    while answer.type in (BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER, BaseCommand.PING):
        answer = await client.answer()
    if answer.type != BaseCommand.ERROR:
        return True
    assert answer.error.error not in (wire.UnknownError, wire.ServiceNotReady), answer
    return False


async def called(channel: grpc.aio.Channel, method: str, request: Any, answer: Any, *, stream: bool = False) -> bool:
    """Whether a call of the topic API was not refused."""
    path = f"/magnetar.topics.v1.Topics/{method}"
    if stream:
        call = channel.stream_stream(path, type(request).SerializeToString, answer.FromString)()
        is_made = False
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.write(request)
            is_made = await call.read() is not grpc.aio.EOF
    else:
        call = channel.unary_unary(path, type(request).SerializeToString, answer.FromString)(request)
        is_made = await call.code() is grpc.StatusCode.OK
    if not is_made:
        assert await call.code() in REFUSED, await call.details()
    call.cancel()
    return is_made


async def put(world: AdminWorld, side: Side, path: str, body: Any = None) -> bool:
    answer = await world.call(side, "PUT", path, body)
    assert answer.status in (204, 412), answer
    return answer.status == 204


def topic_doors(
    world: AdminWorld, side: Side, client: RawClient, channel: grpc.aio.Channel, local: str
) -> dict[str, Callable[[], Awaitable[bool]]]:
    topic, path = f"{NAMESPACE}/{local}", f"{PATH}/{quote(local, safe='')}"
    publish = api.PublishRequest(open=api.PublishRequest.Open(topic=topic))
    consume = api.ConsumeRequest(open=api.ConsumeRequest.Open(topic=topic, subscription="s"))
    subscribe = {"topic": topic, "consumer_id": 1, "subscription": "s", "subType": wire.CommandSubscribe.Shared}
    return {
        "PRODUCER": lambda: asked(client, BaseCommand.PRODUCER, topic=topic, producer_id=1),
        "SUBSCRIBE": lambda: asked(client, BaseCommand.SUBSCRIBE, **subscribe),
        "PUT": lambda: put(world, side, path),
        "PUT a subscription": lambda: put(world, side, f"{path}/subscription/s"),
        "CreateTopic": lambda: called(
            channel, "CreateTopic", api.CreateTopicRequest(topic=topic), api.CreateTopicResponse
        ),
        "Publish": lambda: called(channel, "Publish", publish, api.PublishResponse, stream=True),
        "Consume": lambda: called(channel, "Consume", consume, api.ConsumeResponse, stream=True),
    }


async def test_at_each_door_a_topic_is_made_in_a_turn_of_its_client(
    world: AdminWorld, side: Side, client: RawClient, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, sources = side.broker.arrivals._made, []
    turn = made.turn

    def noted() -> AbstractAsyncContextManager[None]:
        sources.append(_SOURCE.get())
        return turn()

    monkeypatch.setattr(made, "turn", noted)
    doors = topic_doors(world, side, client, channel, "t")
    partitioned = api.CreateTopicRequest(topic=f"{NAMESPACE}/t", partitions=3)
    doors["PUT partitions"] = lambda: put(world, side, f"{PATH}/t/partitions", 3)
    doors["CreateTopic with partitions"] = lambda: called(channel, "CreateTopic", partitioned, api.CreateTopicResponse)
    for door, make in doors.items():
        assert await make(), door
        assert [str(source).partition("127.0.0.1")[1] for source in sources] == ["127.0.0.1"] * (
            4 if "partitions" in door else 1
        ), f"{door}: one for the topic, and one for each of its partitions"
        sources.clear()
        suffix = "/partitions" if "partitions" in door else ""
        await world.call(side, "DELETE", f"{PATH}/t{suffix}?force=true")


async def test_a_topic_is_made_by_all_doors_or_by_none(
    world: AdminWorld, side: Side, client: RawClient, channel: grpc.aio.Channel
) -> None:
    for local in (*ODD, *CONTROLS, *NO_TOPICS):
        await check_topic(world, side, client, channel, local)


async def check_topic(world: AdminWorld, side: Side, client: RawClient, channel: grpc.aio.Channel, local: str) -> None:
    path = f"{PATH}/{quote(local, safe='')}"
    stats, deleted = (412, 412) if local in NO_TOPICS else (404, 404) if local in CONTROLS else (200, 204)
    for door, make in topic_doors(world, side, client, channel, local).items():
        assert await make() == (local in ODD), (local, door)
        shown = (await world.call(side, "GET", PATH + "?includeSystemTopic=true")).json
        assert shown == ([f"{NAMESPACE}/{local}"] if local in ODD else []), (local, door)
        assert (await world.call(side, "GET", f"{path}/stats")).status == stats, (local, door)
        assert (await world.call(side, "DELETE", f"{path}?force=true")).status == deleted, (local, door)
        assert side.broker.topics == {}, (local, door)
    assert await put(world, side, f"{PASSING}/{quote(local, safe='')}") == (local in ODD)
    if local in ODD:
        await world.call(side, "DELETE", f"{PASSING}/{quote(local, safe='')}")
    assert await asked(client, BaseCommand.PRODUCER, topic=f"non-{NAMESPACE}/{local}", producer_id=7) == (local in ODD)
    client.send(BaseCommand.CLOSE_PRODUCER, producer_id=7, request_id=2)
    await client.expect(BaseCommand.SUCCESS)


@pytest.mark.parametrize("local", CONTROLS)
async def test_a_topic_that_is_there_is_served_listed_and_deleted_whatever_it_is_called(
    world: AdminWorld, side: Side, client: RawClient, monkeypatch: pytest.MonkeyPatch, local: str
) -> None:
    """As one of a cluster of Apache's, whose brokers take all names; partitions that come later are its own."""
    name = TopicName("persistent", "public", "default", local)
    with monkeypatch.context() as another_broker:
        another_broker.setattr("broker.serving.creation.controlling", lambda _: None)
        topic = await side.broker.opening.create_topic(name)
        another_broker.setattr("broker.topic.subscriptions.check_new_name", lambda _: None)
        await topic.create_subscription("a\nb", LATEST)
    path = f"{PATH}/{quote(local, safe='')}"
    assert (await world.call(side, "GET", PATH + "?includeSystemTopic=true")).json == [name.full]
    assert (await world.call(side, "GET", f"{path}/subscriptions")).json == ["a\nb"]
    assert await asked(client, BaseCommand.PRODUCER, topic=name.full, producer_id=1)
    for encoded in ("a%250Ab", "a%0Ab"):  # as Pulsar's tools encode it, and as people do
        assert (await world.call(side, "GET", f"{path}/subscription/{encoded}/properties")).status == 200
    assert (await world.call(side, "DELETE", f"{path}/subscription/a%0Ab")).status == 204
    assert (await world.call(side, "DELETE", f"{path}?force=true")).status == 204
    await side.broker.partitioned.create(name, 1)
    assert await asked(client, BaseCommand.PRODUCER, topic=name.with_partition(0).full, producer_id=2)
    assert (await world.call(side, "DELETE", f"{path}/partitions?force=true")).status == 204
    assert (await world.call(side, "GET", PATH + "?includeSystemTopic=true")).json == []


async def test_a_partitioned_topic_whose_partitions_cannot_be_named_is_made_by_no_door(
    world: AdminWorld, side: Side, channel: grpc.aio.Channel
) -> None:
    for local in (*ODD, *CONTROLS, *NO_TOPICS):
        await check_partitioned(world, side, channel, local)


async def check_partitioned(world: AdminWorld, side: Side, channel: grpc.aio.Channel, local: str) -> None:
    topic, path = f"{NAMESPACE}/{local}", f"{PATH}/{quote(local, safe='')}/partitions"
    is_possible = local in ODD and len(local.encode(errors="replace")) < 1_000
    create = api.CreateTopicRequest(topic=topic, partitions=2)
    doors: list[Callable[[], Awaitable[bool]]] = [
        lambda: put(world, side, path, 2),
        lambda: called(channel, "CreateTopic", create, api.CreateTopicResponse),
    ]
    for make in doors:
        assert await make() == is_possible, local
        if is_possible:
            assert (await world.call(side, "GET", f"{PATH}/partitioned?includeSystemTopic=true")).json == [topic]
            assert (await world.call(side, "GET", path)).json["partitions"] == 2
            assert (await world.call(side, "DELETE", path)).status == 204
    assert (await world.call(side, "GET", f"{PATH}/partitioned?includeSystemTopic=true")).json == []


async def test_a_partitioned_topic_does_not_grow_beyond_what_can_be_named(world: AdminWorld, side: Side) -> None:
    path = f"{PATH}/{'x' * 1_012}/partitions"  # with `-partition-9` behind it, the longest name
    assert (await world.call(side, "PUT", path, 9)).status == 204
    assert (await world.call(side, "POST", path, 10)).status == 204
    assert (await world.call(side, "POST", path, 11)).status == 412
    assert (await world.call(side, "GET", path)).json["partitions"] == 10
    assert (await world.call(side, "DELETE", path)).status == 204


def subscription_doors(
    world: AdminWorld, side: Side, client: RawClient, channel: grpc.aio.Channel, name: str
) -> dict[str, Callable[[], Awaitable[bool]]]:
    topic = f"{NAMESPACE}/t"
    subscribe = {"consumer_id": 1, "subscription": name, "subType": wire.CommandSubscribe.Shared}
    produce = {"topic": topic, "producer_id": 1, "initial_subscription_name": name}
    consume = api.ConsumeRequest(open=api.ConsumeRequest.Open(topic=topic, subscription=name, type=api.SHARED))
    path = f"{PATH}/t/subscription/{quote(quote_plus(name), safe='')}"
    return {
        "SUBSCRIBE": lambda: asked(client, BaseCommand.SUBSCRIBE, topic=topic, **subscribe),
        "PRODUCER": lambda: asked(client, BaseCommand.PRODUCER, **produce),
        "PUT": lambda: put(world, side, path),
        "Consume": lambda: called(channel, "Consume", consume, api.ConsumeResponse, stream=True),
        "non-persistent": lambda: asked(
            client, BaseCommand.SUBSCRIBE, topic=f"non-{topic}", **(subscribe | {"consumer_id": 2})
        ),
    }


async def test_a_subscription_is_made_by_all_doors_or_by_none(
    world: AdminWorld, side: Side, client: RawClient, channel: grpc.aio.Channel
) -> None:
    assert await put(world, side, f"{PATH}/t")
    for name in (*ODD, "a/b", *CONTROLS, *NO_SUBSCRIPTIONS):
        await check_subscription(world, side, client, channel, name)


async def check_subscription(
    world: AdminWorld, side: Side, client: RawClient, channel: grpc.aio.Channel, name: str
) -> None:
    path = f"{PATH}/t/subscription/{quote(quote_plus(name), safe='')}"
    for door, make in subscription_doors(world, side, client, channel, name).items():
        is_possible = name not in (*CONTROLS, *NO_SUBSCRIPTIONS)
        assert await make() == is_possible, (name, door)
        client.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=2)
        client.send(BaseCommand.CLOSE_CONSUMER, consumer_id=2, request_id=2)
        for _ in range(2):
            await client.expect(BaseCommand.SUCCESS)
        if door == "non-persistent":
            continue
        expected = [name] if is_possible else []
        assert (await world.call(side, "GET", f"{PATH}/t/subscriptions")).json == expected, (name, door)
        deleted = await world.call(side, "DELETE", f"{path}?force=true")
        assert deleted.status in ((204,) if is_possible else (404, 412)), (name, door)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "a\u202eb"])
async def test_producers_and_consumers_have_no_names_that_change_the_text_around_them(
    side: Side, client: RawClient, channel: grpc.aio.Channel, name: str
) -> None:
    topic = f"{NAMESPACE}/t"
    subscribe = {"topic": topic, "consumer_id": 1, "subscription": "s", "subType": wire.CommandSubscribe.Shared}
    publish = api.PublishRequest(open=api.PublishRequest.Open(topic=topic, producer_name=name))
    consume = api.ConsumeRequest(open=api.ConsumeRequest.Open(topic=topic, subscription="s", consumer_name=name))
    assert not await asked(client, BaseCommand.PRODUCER, topic=topic, producer_id=1, producer_name=name)
    assert not await asked(client, BaseCommand.SUBSCRIBE, consumer_name=name, **subscribe)
    assert not await called(channel, "Publish", publish, api.PublishResponse, stream=True)
    assert not await called(channel, "Consume", consume, api.ConsumeResponse, stream=True)


@pytest.mark.parametrize("size", [255, 256])
async def test_a_tenant_and_a_namespace_end_somewhere_at_all_doors(
    world: AdminWorld, side: Side, client: RawClient, channel: grpc.aio.Channel, size: int
) -> None:
    wanted, long = 404 if size == 255 else 412, "x" * size
    for space in (f"{long}/ns", f"public/{long}"):
        assert (await world.call(side, "PUT", f"/admin/v2/namespaces/{long}/ns", {})).status == wanted
        assert (await world.call(side, "GET", f"/admin/v2/persistent/{space}/t/stats")).status == wanted
        topic = f"persistent://{space}/t"
        client.send(BaseCommand.PRODUCER, request_id=1, topic=topic, producer_id=1)
        error = (await client.answer()).error.error
        assert error == (wire.TopicNotFound if size == 255 else wire.InvalidTopicName)
        asked_for = api.GetTopicStatsRequest(topic=topic)
        call = channel.unary_unary(
            "/magnetar.topics.v1.Topics/GetTopicStats", lambda one: one.SerializeToString(), bytes
        )(asked_for)
        assert await call.code() is (grpc.StatusCode.NOT_FOUND if size == 255 else grpc.StatusCode.INVALID_ARGUMENT)


@pytest.mark.parametrize("size", [CLIENT_NAME_BYTES_MAX, CLIENT_NAME_BYTES_MAX + 1])
async def test_names_of_producers_and_consumers_end_somewhere(
    side: Side, client: RawClient, channel: grpc.aio.Channel, size: int
) -> None:
    topic, name = f"{NAMESPACE}/t", "ü" * (size // 2) + "x" * (size % 2)
    subscribe = {"topic": topic, "consumer_id": 1, "subscription": "s", "subType": wire.CommandSubscribe.Shared}
    publish = api.PublishRequest(open=api.PublishRequest.Open(topic=topic, producer_name=name[1:] + "xy"))
    consume = api.ConsumeRequest(
        open=api.ConsumeRequest.Open(topic=topic, subscription="s", type=api.SHARED, consumer_name=name)
    )
    found = {
        await asked(client, BaseCommand.PRODUCER, topic=topic, producer_id=1, producer_name=name),
        await asked(client, BaseCommand.SUBSCRIBE, consumer_name=name, **subscribe),
        await called(channel, "Publish", publish, api.PublishResponse, stream=True),
        await called(channel, "Consume", consume, api.ConsumeResponse, stream=True),
    }
    assert found == {size == CLIENT_NAME_BYTES_MAX}
    assert TopicName.parse(topic) in side.broker.topics or size > CLIENT_NAME_BYTES_MAX
