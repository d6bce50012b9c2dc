"""`AsyncClient` is `Client` with `await`: the same names, the same arguments, the same answers."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import pytest

import magnetar
from broker.grpc.service import GrpcServer
from magnetar.client import async_client, async_consumer, async_producer, async_topics, client
from magnetar.client.errors import TopicError
from magnetar.client.views import table
from tests.unit.broker.conftest import world
from tests.unit.broker.grpc.conftest import door

__all__ = ["door", "world"]

PAIRS = [
    (client.Client, async_client.AsyncClient),
    (client.Producer, async_producer.AsyncProducer),
    (client.Consumer, async_consumer.AsyncConsumer),
    (client.Reader, async_consumer.AsyncReader),
    (client.Topics, async_topics.AsyncTopics),
    (client.TableView, table.AsyncTableView),
]

# With an event loop `asyncio.create_task(producer.send(…))` is what `send_async` is without one.
ONLY_BLOCKING = {"send_async"}


def public(kind: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_names_and_arguments_are_the_same(blocking: type, awaited: type) -> None:
    one, other = public(blocking), public(awaited)
    assert other.keys() == one.keys() - ONLY_BLOCKING
    for name in other:
        member = one[name]
        assert isinstance(member, property) == isinstance(other[name], property), name
        if callable(member):
            mine, theirs = inspect.signature(member).parameters, inspect.signature(other[name]).parameters
            assert [(p.name, p.kind, p.default) for p in mine.values()] == [
                (p.name, p.kind, p.default) for p in theirs.values()
            ], name


class Awaited:
    """The asynchronous objects with `await` before every call."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def call(self, what: str, /, *arguments: Any, **options: Any) -> Any:
        made = getattr(self.inner, what)(*arguments, **options)
        assert isinstance(made, Awaitable), f"{what} cannot be awaited"
        return wrapped(await made)

    async def take(self, count: int) -> list[Any]:
        assert isinstance(self.inner, AsyncIterator) or hasattr(self.inner, "__aiter__")
        found: list[Any] = []
        async for one in self.inner:
            found.append(one)
            if len(found) == count:
                break
        return found


class Blocking:
    """The blocking objects, on another thread."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def call(self, what: str, /, *arguments: Any, **options: Any) -> Any:
        return wrapped(await asyncio.to_thread(getattr(self.inner, what), *arguments, **options), Blocking)

    async def take(self, count: int) -> list[Any]:
        def some(messages: Iterator[Any]) -> list[Any]:
            return [next(messages) for _ in range(count)]

        return await asyncio.to_thread(some, iter(self.inner))


def wrapped(value: Any, kind: type = Awaited) -> Any:
    return kind(value) if type(value).__name__.endswith(("Producer", "Consumer", "Reader")) else value


async def program(made: Any, topic: str) -> list[Any]:
    """Everything that a client can do; what it saw, without ids of ledgers."""
    seen: list[Any] = []
    topics = type(made)(made.inner.topics)
    seen.append(await topics.call("create", topic))
    seen.append(await topics.call("partitions", topic))
    producer = await made.call("producer", topic, name="named")
    consumer = await made.call("consumer", topic, "s", type="exclusive", from_earliest=True)
    id_ = await producer.call("send", b"first", key="k", properties={"a": "b"})
    ids = await producer.call("send_many", [b"second", magnetar.Outgoing(b"third", key="k")])
    await producer.call("flush")
    seen += [type(id_), len(ids), producer.inner.name, producer.inner.last_sequence_id, producer.inner.topic]
    (first,) = await consumer.take(1)
    seen += [first.payload, first.key, first.properties]
    seen.append(await consumer.call("ack", first))
    second = await consumer.call("receive", 5)
    seen.append(await consumer.call("ack_cumulative", second))
    batch = await consumer.call("receive_batch", 10, 5)
    seen.append([one.payload for one in batch])
    seen.append(await consumer.call("nack", batch, delay_s=0.0))
    seen.append((await consumer.call("receive", 5)).payload)
    seen.append(await consumer.call("flush"))
    seen.append(await consumer.call("seek", "earliest"))
    seen.append((await consumer.call("receive", 5)).payload)
    try:
        await consumer.call("seek", "nowhere")
    except ValueError as error:
        seen.append(str(error))
    seen.append(await consumer.call("unsubscribe"))
    reader = await made.call("reader", topic, start=id_, inclusive=True)
    seen.append(await reader.call("has_more"))
    seen.append([one.payload for one in await reader.take(3)])
    seen.append(await reader.call("has_more"))
    try:
        await reader.call("ack", first)
    except TopicError as error:
        seen.append(type(error))
    for one in (reader, producer):
        seen.append(await one.call("close"))
    seen.append((await topics.call("stats", topic))["msgInCounter"])
    seen.append(topic.rpartition("/")[2] in str(await topics.call("list")))
    seen.append(await topics.call("delete", topic, force=True))
    return [str(one).replace(topic, "TOPIC") for one in seen]


async def test_a_program_has_the_same_answers_with_and_without_await(door: GrpcServer) -> None:
    address = f"127.0.0.1:{door.port}"
    async with magnetar.AsyncClient(address, operation_timeout_s=30) as made:
        awaited = await program(Awaited(made), "persistent://public/default/awaited")
    blocking_client = await asyncio.to_thread(magnetar.Client, address, operation_timeout_s=30)
    try:
        blocking = await program(Blocking(blocking_client), "persistent://public/default/blocking")
    finally:
        await asyncio.to_thread(blocking_client.close)
    assert awaited == blocking
    assert "[b'first', b'second', b'third']" in awaited


async def test_a_consumer_that_is_closed_sends_the_acks_that_wait_and_leaves(door: GrpcServer) -> None:
    topic = "persistent://public/default/left"

    def take_and_leave() -> int:
        with magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as made:
            with made.consumer(topic, "s", type="exclusive", from_earliest=True) as consumer:
                with made.producer(topic) as producer:
                    producer.send_many([b"first", b"second"])
                consumer.ack(consumer.receive(5))
            stats = made.topics.stats(topic)["subscriptions"]["s"]
            assert stats["consumers"] == []
            return int(stats["msgBacklog"])

    assert await asyncio.to_thread(take_and_leave) == 1


async def test_a_client_that_is_closed_twice_while_threads_send_and_receive_leaves_none_of_them_waiting(
    door: GrpcServer,
) -> None:
    address, topic = f"127.0.0.1:{door.port}", "persistent://public/default/closing"

    def scenario() -> list[str]:
        made = magnetar.Client(address, operation_timeout_s=30)
        ended = list[str]()

        def send() -> None:
            try:
                while True:
                    made.producer(topic).send(b"x")
            except TopicError as error:
                ended.append(type(error).__name__)

        def receive() -> None:
            try:
                with made.consumer(topic, "s", type="shared") as consumer:
                    while True:
                        consumer.ack(consumer.receive())
            except TopicError as error:
                ended.append(type(error).__name__)

        made.producer(topic).send(b"first")
        busy = [threading.Thread(target=target, daemon=True) for target in [send] * 5 + [receive] * 2]
        closing = [threading.Thread(target=made.close, daemon=True) for _ in range(2)]
        for thread in busy:
            thread.start()
        while made.topics.stats(topic)["msgInCounter"] < 50:
            pass
        for thread in closing:
            thread.start()
        for thread in [*busy, *closing]:
            thread.join(20)
        assert not any(thread.is_alive() for thread in [*busy, *closing]), "it waits for ever"
        return ended

    assert await asyncio.to_thread(scenario) == ["ClientClosed"] * 7


@pytest.mark.parametrize("kind", [magnetar.Client, magnetar.AsyncClient])
async def test_the_address_of_another_door_is_said_at_once(kind: Any) -> None:
    for address, words in (
        ("pulsar://localhost:6650", "binary protocol.*6648 of a standalone; write host:port"),
        ("pulsar+ssl://localhost:6651", "binary protocol"),
        ("http://localhost:8080", "is HTTP: the topic API is at the gRPC port"),
        ("grpc://localhost:6648", "leave grpc:// out"),
        ("localhost", "is not host:port"),
    ):
        with pytest.raises(ValueError, match=words):
            kind(address)
