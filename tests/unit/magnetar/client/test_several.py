"""Consumers of several topics: lists, and patterns whose topics come and go."""

import asyncio
import gc
import logging
import re
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import magnetar
from broker.errors import NotReady
from broker.grpc import requests, topic_watches
from broker.grpc.service import STREAMS_PER_CONNECTION_MAX, GrpcServer
from magnetar.client import async_consumer
from magnetar.client.async_client import AsyncClient
from magnetar.client.async_consumer import AsyncConsumer
from magnetar.client.errors import AccessDenied, TopicDoesNotExist, TopicError, TopicUnavailable
from magnetar.client.several.pattern import Pattern
from magnetar.client.several.watch import TopicWatch
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door, open_grpc

__all__ = ["client", "door", "world"]

PATIENCE_S = 5.0
START = "persistent://public/default/"


async def take(consumer: AsyncConsumer[Any], count: int) -> list[magnetar.Message[Any]]:
    messages = list[magnetar.Message[Any]]()
    while len(messages) < count:
        batch = await consumer.receive_batch(count - len(messages), timeout_s=PATIENCE_S)
        assert batch, f"{len(messages)} of {count} came"
        messages += batch
    return messages


async def send(client: AsyncClient, topic: str, *payloads: bytes) -> None:
    """By a producer that is closed then: one that is open would make its topic again."""
    async with client.producer(topic) as producer:
        await producer.send_many(payloads)


def topics_in(messages: list[magnetar.Message[Any]]) -> list[str]:
    return sorted(message.topic.removeprefix(START) for message in messages)


async def until_topics(consumer: AsyncConsumer[Any], *names: str) -> None:
    await eventually(lambda: sorted(consumer._streams) == sorted(START + name for name in names))


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("orders-.*", ["public/default/orders-1", "public/default/orders-2-partition-0"]),
        ("public/default/orders-1", ["public/default/orders-1"]),
        ("persistent://public/default/orders-[2-9]", ["public/default/orders-2-partition-0"]),
        ("persistent://my.tenant/ns-1/.*", ["my.tenant/ns-1/orders-1"]),
        ("orders", []),
        (".*", ["public/default/orders-1", "public/default/orders-2-partition-0", "public/default/other"]),
        (re.compile("(?:other|more)"), ["public/default/other"]),
    ],
)
def test_a_pattern_stands_for_whole_names_in_its_namespace(text: Any, topics: list[str]) -> None:
    names = ["public/default/orders-1", "public/default/orders-2-partition-0", "public/default/other",
             "my.tenant/ns-1/orders-1", "myxtenant/ns-1/orders-1"]  # fmt: skip
    found = Pattern(text).matching(f"persistent://{name}" for name in names)
    assert [name.removeprefix("persistent://") for name in found] == topics


async def test_several_topics_are_consumed_as_one(client: AsyncClient) -> None:
    await client.topics.create("b", partitions=2)
    topics = ["a", f"{START}a", "b", "c"]
    async with client.consumer(subscription="s", topics=topics, from_earliest=True, value=str) as consumer:
        assert repr(consumer) == f"AsyncConsumer(a, {START}a, b, c, 's', value=str, open)"
        for topic in ("a", "b", "b", "c"):
            await client.producer(topic, value=str).send(f"to {topic}")
        messages = await take(consumer, 4)
        assert sorted(message.value for message in messages) == ["to a", "to b", "to b", "to c"]
        assert topics_in(messages) == ["a", "b-partition-0", "b-partition-1", "c"]
        await consumer.nack(messages[:2], delay_s=0)
        await consumer.ack_cumulative(messages[2])
        consumer.ack(messages[3])
        again = await take(consumer, 2)
        assert topics_in(again) == topics_in(messages[:2])
        wrongs: list[Any] = [again[0].id, [again[0], again[1].id]]
        for wrong in wrongs:
            with pytest.raises(TypeError, match=r"MessageId; it takes messages, as .*: the consumer has several"):
                consumer.ack(wrong)
        with pytest.raises(ValueError, match="an id does not say in which it is"):
            await consumer.seek(again[0].id)
        await consumer.seek("earliest")
        assert len(await take(consumer, 4)) == 4
        await consumer.unsubscribe()
    for topic in ("a", "c"):
        assert not (await client.topics.stats(topic))["subscriptions"]


async def test_topics_of_a_list_get_partitions(client: AsyncClient, world: BrokerInMemory) -> None:
    await client.topics.create("b", partitions=1)
    async with client.consumer(subscription="s", topics=["a", "b"]) as consumer:
        await world.broker.partitioned.grow(TopicName.parse("b"), 3)
        await until_topics(consumer, "a", "b-partition-0", "b-partition-1", "b-partition-2")


async def test_a_pattern_follows_topics_that_come_and_go(client: AsyncClient) -> None:
    await client.topics.create("orders-1")
    await client.topics.create("other")
    async with client.consumer(subscription="s", pattern="orders-.*", type="shared") as consumer:
        await until_topics(consumer, "orders-1")
        for topic in ("orders-1", "orders-2", "other"):
            await send(client, topic, topic.encode())
        await client.topics.create("orders-3", partitions=2)
        await client.producer("orders-3").send_many([magnetar.Outgoing(b"orders-3", key=str(n)) for n in range(8)])
        messages = await take(consumer, 10)
        assert Counter(message.payload for message in messages) == {b"orders-1": 1, b"orders-2": 1, b"orders-3": 8}
        await until_topics(consumer, "orders-1", "orders-2", "orders-3-partition-0", "orders-3-partition-1")
        (of_two,) = [message for message in messages if message.payload == b"orders-2"]
        await client.topics.delete("orders-2", force=True)
        await until_topics(consumer, "orders-1", "orders-3-partition-0", "orders-3-partition-1")
        consumer.ack(messages)
        consumer.ack(of_two)
        await consumer.ack_cumulative(of_two)
        await consumer.nack(of_two)
        await consumer.flush()
        assert START + "orders-2" not in await client.topics.list(), "nobody has made it again"
        await send(client, "orders-2", b"of another life")
        assert (await consumer.receive(PATIENCE_S)).payload == b"of another life"


async def test_a_long_list_comes_in_several_answers(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watches, "ANSWER_BYTES_MAX", 80)
    names = [f"x-{number}" for number in range(9)]
    for name in names[:6]:
        await client.topics.create(name)
    changes = list[tuple[Sequence[str], Sequence[str]]]()
    pattern = Pattern("x-.*")
    watch = TopicWatch(client._brokers, pattern, lambda *change: changes.append(change), lambda: None)
    await watch.open()
    assert changes == [([START + name for name in names[:6]], [])], "they are taken as one"
    for name in names[6:]:
        await client.topics.create(name)
    await eventually(lambda: sorted(watch.topics) == [START + name for name in names])
    await watch.close()
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        await until_topics(consumer, *names)


async def test_a_list_that_breaks_off_is_asked_for_anew(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watches, "ANSWER_BYTES_MAX", 40)
    names = [f"x-{number}" for number in range(4)]
    for name in names:
        await client.topics.create(name)
    real, breaks = topic_watches.answers, [True]

    def breaking(*change: Any) -> Any:
        for answer in real(*change):
            yield answer
            if breaks:
                breaks.clear()
                raise NotReady("it broke off")

    monkeypatch.setattr(topic_watches, "answers", breaking)
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        await until_topics(consumer, *names)
        assert not breaks


async def test_one_consumer_has_its_most_topics_by_a_pattern_and_a_producer_beside_it(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = requests.STREAMS_OF_ROLE_MAX - async_consumer.CONSUMER_TOPICS_MAX
    assert STREAMS_PER_CONNECTION_MAX > requests.STREAMS_OF_ROLE_MAX, "calls that are answered soon go on"
    monkeypatch.setattr(async_consumer, "CONSUMER_TOPICS_MAX", 3)
    monkeypatch.setattr(requests, "STREAMS_OF_ROLE_MAX", 3 + room)
    for name in ("x-1", "x-2", "x-3"):
        await client.topics.create(name)
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        await client.producer("x-1").send(b"1")
        assert (await consumer.receive(PATIENCE_S)).payload == b"1"


async def test_a_pattern_without_topics_waits_for_them(client: AsyncClient) -> None:
    async with client.consumer(subscription="s", pattern="public/default/none-.*") as consumer:
        assert await consumer.receive_batch(1, timeout_s=0.1) == []
        assert consumer.take() is None
        await consumer.flush()
        await send(client, "none-1", b"first")
        message = await consumer.receive(PATIENCE_S)
        assert message.payload == b"first"
        consumer.ack(message)


async def test_new_topics_are_read_from_their_first_message(client: AsyncClient) -> None:
    """Those that are there when it subscribes are not, unless it is asked for."""
    await send(client, "x-1", b"before")
    latest = await client.consumer(subscription="latest", pattern="x-.*")
    earliest = await client.consumer(subscription="earliest", pattern="x-.*", from_earliest=True)
    await send(client, "x-2", b"1", b"2")
    assert [one.payload for one in await take(latest, 2)] == [b"1", b"2"]
    assert sorted(one.payload for one in await take(earliest, 3)) == [b"1", b"2", b"before"]


async def test_an_expression_that_brokers_do_not_evaluate(client: AsyncClient, world: BrokerInMemory) -> None:
    for topic in ("a-1", "a-2", "b-1", "aa-1"):
        await client.topics.create(topic)
    async with client.consumer(subscription="s", pattern=r"[ab]-\d+") as consumer:
        assert sorted(consumer._streams) == [START + name for name in ("a-1", "a-2", "b-1")]
        assert world.broker.watched_names.total == 4
        await client.topics.create("b-2")
        await until_topics(consumer, "a-1", "a-2", "b-1", "b-2")
    await eventually(lambda: world.broker.watched_names.total == 0)


async def test_a_topic_that_is_made_anew_at_once_is_read_on(client: AsyncClient, world: BrokerInMemory) -> None:
    """No list shows that it was away."""
    await send(client, "x-1", b"old")
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        (stream,) = consumer._streams.values()
        real = world.broker._topic_lists._on_change
        world.broker._topic_lists._on_change = lambda namespace: None  # type: ignore[method-assign]
        await client.topics.delete("x-1", force=True)
        await eventually(lambda: "does not exist" in stream.trouble)
        await send(client, "x-1", b"new")
        assert (await consumer.receive(PATIENCE_S)).payload == b"new"
        assert list(consumer._streams.values()) == [stream]
        world.broker._topic_lists._on_change = real  # type: ignore[method-assign]


async def test_a_watch_that_broke_off_tells_what_has_changed(client: AsyncClient, door: GrpcServer) -> None:
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        await eventually(lambda: door._watches._watches)
        (watch,) = door._watches._watches
        watch.on_topics = lambda topics: None  # type: ignore[method-assign]
        await client.topics.create("x-1")
        watch.end()
        await until_topics(consumer, "x-1")
        (watch,) = door._watches._watches
        watch.on_topics = lambda topics: None  # type: ignore[method-assign]
        await client.topics.delete("x-1", force=True)
        await client.topics.create("x-2")
        watch.end()
        await until_topics(consumer, "x-2")


async def test_a_topic_that_is_gone_when_it_is_opened(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.topics.create("x-1")
    await client.topics.create("x-2")
    real, times = client._brokers.open, Counter[str]()

    async def gone(topic: str, *arguments: Any) -> Any:
        times[topic] += arguments[0] == "Consume"
        if topic.endswith("x-2") and arguments[0] == "Consume" and times[topic] < 4:
            raise TopicDoesNotExist("not there", "NOT_FOUND")
        return await real(topic, *arguments)

    monkeypatch.setattr(client._brokers, "open", gone)
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        await send(client, "x-1", b"1")
        await send(client, "x-2", b"2")
        assert sorted(one.payload for one in await take(consumer, 2)) == [b"1", b"2"]


async def test_what_comes_and_goes_while_it_is_opened(
    client: AsyncClient, door: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.topics.create("x-1")
    await client.topics.create("x-2")
    real = client._brokers.open

    async def slow(topic: str, *arguments: Any) -> Any:
        opened = await real(topic, *arguments)
        if topic.endswith("x-1"):
            (watch,) = door._watches._watches
            await client.topics.create("x-3")
            await client.topics.delete("x-2", force=True)
            await eventually(lambda: sorted(watch.known) == [START + "x-1", START + "x-3"])
            await asyncio.sleep(0.1)  # until that has come
        return opened

    monkeypatch.setattr(client._brokers, "open", slow)
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        await until_topics(consumer, "x-1", "x-3")


async def test_a_topic_that_may_not_be_consumed(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """At first it is not opened, as by the clients of Pulsar; later `receive` says so."""
    real = client._brokers.open

    async def refusing(topic: str, *arguments: Any) -> Any:
        if topic.endswith("x-2"):
            raise AccessDenied("no permission to consume x-2", "PERMISSION_DENIED")
        return await real(topic, *arguments)

    await client.topics.create("x-1")
    monkeypatch.setattr(client._brokers, "open", refusing)
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        await client.topics.create("x-2")
        with pytest.raises(AccessDenied, match="x-2"):
            await consumer.receive(PATIENCE_S)
    other = client.consumer(subscription="other", pattern="x-.*")
    with pytest.raises(AccessDenied, match="x-2"):
        await other.open()
    await eventually(lambda: not other._streams)


@pytest.mark.parametrize("kind", ["flush", "seek", "nack", "ack_cumulative", "unsubscribe"])
async def test_what_is_under_way_when_a_topic_is_deleted_ends_without_an_error(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await client.topics.create("x-1")
    await client.topics.create("x-2")
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        await send(client, "x-1", b"1")
        message = await consumer.receive(PATIENCE_S)
        stream = consumer._streams[START + "x-1"]
        monkeypatch.setattr(stream, "_next", lambda: None)  # it is not sent
        calls = {
            "flush": consumer.flush,
            "seek": lambda: consumer.seek("latest"),
            "nack": lambda: consumer.nack(message),
            "ack_cumulative": lambda: consumer.ack_cumulative(message),
            "unsubscribe": consumer.unsubscribe,
        }
        call = asyncio.ensure_future(calls[kind]())
        await eventually(lambda: stream._requests)
        await client.topics.delete("x-1", force=True)
        await asyncio.wait_for(call, PATIENCE_S)


async def test_of_a_topic_that_moves_what_was_under_way_fails(
    client: AsyncClient, world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.topics.create("x-1")
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        (stream,) = consumer._streams.values()
        with monkeypatch.context() as context:
            context.setattr(stream, "_next", lambda: None)
            flushing = asyncio.ensure_future(consumer.flush())
            await eventually(lambda: stream._requests)
            await world.broker.opening.unload(TopicName.parse("x-1"))
            await eventually(lambda: stream._doubtful)
        with pytest.raises(TopicUnavailable, match="closed by the broker"):
            await asyncio.wait_for(flushing, PATIENCE_S)
        await consumer.flush()
        assert not stream._doubtful


async def test_a_watch_that_is_refused_ends_the_consumer(
    client: AsyncClient, world: BrokerInMemory, door: GrpcServer
) -> None:
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        (watch,) = door._watches._watches
        object.__setattr__(world.broker.config, "watches_topic_lists", False)
        watch.end()
        with pytest.raises(TopicError, match=r"are not watched: .*set both to true, or name the topics"):
            await consumer.receive(PATIENCE_S)
        with pytest.raises(TopicError, match="are not watched"):
            await client.consumer(subscription="s", pattern="x-.*").open()
        object.__setattr__(world.broker.config, "watches_topic_lists", True)


async def test_a_consumer_takes_so_many_topics(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(async_consumer, "CONSUMER_TOPICS_MAX", 2)
    await client.topics.create("x-1")
    await client.topics.create("x-2")
    async with client.consumer(subscription="s", pattern="x-.*") as consumer:
        await client.topics.create("x-3")
        with pytest.raises(
            TopicError, match=r"x-\.\* stands for 3 topics, and a consumer takes 2 at most; divide them"
        ):
            await consumer.receive(PATIENCE_S)
        for made in ({"pattern": "x-.*"}, {"topics": ["x-1", "x-2", "x-3"]}):
            with pytest.raises(TopicError, match="stands for 3 topics"):
                await client.consumer(subscription="t", **made).open()


async def test_a_namespace_that_is_not_there(client: AsyncClient) -> None:
    with pytest.raises(TopicDoesNotExist, match="a/b"):
        await client.consumer(subscription="s", pattern="a/b/.*").open()


async def test_a_port_of_another_kind_is_named_at_once(world: BrokerInMemory) -> None:
    async with AsyncClient(world.url.partition("://")[2]) as client:
        with pytest.raises(TopicUnavailable, match="speaks Pulsar's binary protocol"):
            await asyncio.wait_for(client.consumer(subscription="s", pattern="x-.*").open(), PATIENCE_S)


async def test_a_broker_of_before_says_what_to_do(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = GrpcServer._handlers

    def without(server: GrpcServer) -> Any:
        known = handlers(server)
        known._method_handlers = {
            name: one for name, one in known._method_handlers.items() if not name.endswith("WatchTopics")
        }
        return known

    monkeypatch.setattr(GrpcServer, "_handlers", without)
    server = await open_grpc(world)
    async with AsyncClient(f"127.0.0.1:{server.port}") as client:
        with pytest.raises(TopicError, match=r"x-\.\*: the broker knows no patterns; name the topics, or update"):
            await client.consumer(subscription="s", pattern="x-.*").open()
    await server.stop()


async def test_it_leaves_nothing_behind(client: AsyncClient, world: BrokerInMemory, door: GrpcServer) -> None:
    await client.topics.create("x-1")
    tasks = len(asyncio.all_tasks())
    for _ in range(3):
        async with client.consumer(subscription="s", pattern="x-.*", type="shared") as consumer:
            await client.topics.create("x-2")
            await until_topics(consumer, "x-1", "x-2")
            await client.topics.delete("x-2", force=True)
            await until_topics(consumer, "x-1")
    opening = asyncio.ensure_future(client.consumer(subscription="s", pattern="x-.*").open())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    await eventually(lambda: not door._watches._watches)
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 1)
    assert not world.broker._topic_lists._watched


async def test_a_client_that_is_dropped_ends_with_its_watch(client: AsyncClient, door: GrpcServer) -> None:
    await client.topics.create("x-1")
    dropped = AsyncClient(f"127.0.0.1:{door.port}")
    await dropped.consumer(subscription="s", pattern="x-.*").open()
    gone = weakref.ref(dropped._brokers)
    assert door._watches._watches
    del dropped
    with pytest.warns(ResourceWarning, match="AsyncClient was not closed"):
        gc.collect()
    await eventually(lambda: gone() is None or gone()._channels == {})  # type: ignore[union-attr]
    await eventually(lambda: not door._watches._watches)


async def test_the_blocking_client_has_it_too(door: GrpcServer) -> None:
    def scenario() -> None:
        with (
            magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as made,
            made.consumer(subscription="s", pattern="x-.*", value=str) as consumer,
            made.consumer(subscription="s", topics=["a", "b"]) as listed,
        ):
            made.producer("x-1", value=str).send("by a pattern")
            made.producer("b").send(b"by a list")
            message = consumer.receive(PATIENCE_S)
            consumer.ack(message)
            assert message.value == "by a pattern"
            assert listed.receive(PATIENCE_S).payload == b"by a list"

    await asyncio.to_thread(scenario)
