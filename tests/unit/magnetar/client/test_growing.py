"""Topics that get more partitions while they are written and read."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

import magnetar
from broker.broker import Broker
from broker.grpc.consume_call import ConsumeCall
from broker.grpc.service import GrpcServer
from magnetar.client.async_client import AsyncClient
from magnetar.client.async_consumer import AsyncConsumer, _Queue
from magnetar.client.errors import TopicError
from magnetar.client.stream import Stream
from magnetar.client.values import Outgoing, partition_of_key
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door

__all__ = ["client", "door", "world"]

TOPIC = TopicName.parse("grown")
KEYS = [f"k{number}" for number in range(40)]


@pytest.fixture
def broker(world: BrokerInMemory) -> Broker:
    return world.broker


async def grow(broker: Broker, count: int) -> None:
    await broker.partitioned.grow(TOPIC, count)


async def until_streams(part: Any, count: int) -> None:
    await eventually(lambda: len(part._streams) == count)


async def take(consumer: AsyncConsumer[Any], count: int) -> list[magnetar.Message[Any]]:
    messages = list[magnetar.Message[Any]]()
    while len(messages) < count:
        batch = await consumer.receive_batch(count - len(messages), timeout_s=5)
        assert batch, f"{len(messages)} of {count} came"
        messages += batch
    return messages


@pytest.fixture
def late(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Consumers of *client* come to partitions from the third on only when this is set."""
    real, may_come = client._brokers.open, asyncio.Event()

    async def open_later(topic: str, method: str, *arguments: Any) -> Any:
        if method == "Consume" and TopicName.parse(topic).partition >= 2:
            await may_come.wait()
        return await real(topic, method, *arguments)

    monkeypatch.setattr(client._brokers, "open", open_later)
    return may_come


async def test_a_producer_uses_new_partitions_as_official_clients_do(client: AsyncClient, broker: Broker) -> None:
    await client.topics.create("grown", partitions=2)
    producer = await client.producer("grown")
    before = list(producer._streams)
    await grow(broker, 4)
    await until_streams(producer, 4)
    assert producer._streams[:2] == before, "those that were open stay as they are"
    ids = await producer.send_many([Outgoing(b"x", key=key) for key in KEYS])
    assert [id_.partition for id_ in ids] == [partition_of_key(key, 4) for key in KEYS]
    assert {(await producer.send(b"x")).partition for _ in range(8)} == {0, 1, 2, 3}
    await producer.close()
    await eventually(lambda: not any(topic.producers for topic in broker.topics.values()))


async def test_messages_under_way_go_on_while_partitions_come(client: AsyncClient, broker: Broker) -> None:
    await client.topics.create("grown", partitions=1)
    producer = client.producer("grown", name="shop")
    async with client.consumer("grown", "s", from_earliest=True) as consumer:
        sends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(producer.send(b"%d" % n, key=KEYS[n % 40])) for n in range(200)
        ]
        for count in (2, 3, 5):
            await grow(broker, count)
            await asyncio.sleep(0.01)
            sends += [asyncio.ensure_future(producer.send_many([Outgoing(b"%d" % n, key=KEYS[n % 40])]))
                      for n in range(count * 100, count * 100 + 100)]  # fmt: skip
        await producer.flush()
        await until_streams(producer, 5)
        await until_streams(consumer, 5)
        sends += [asyncio.ensure_future(producer.send(b"%d" % n, key=KEYS[n % 40])) for n in range(1000, 1100)]
        await asyncio.gather(*sends)
        received = Counter(message.payload for message in await take(consumer, len(sends)))
        assert received == Counter([b"%d" % n for n in [*range(400), *range(500, 600), *range(1000, 1100)]])


async def test_a_consumer_reads_new_partitions_from_their_first_message(
    client: AsyncClient, broker: Broker, door: GrpcServer, late: asyncio.Event
) -> None:
    await client.topics.create("grown", partitions=2)
    consumer = await client.consumer("grown", "s", type="shared", queue_size=100)
    calls = {call.consumer for call in door._consumers._calls}
    await grow(broker, 4)
    async with AsyncClient(f"127.0.0.1:{door.port}") as other, other.producer("grown") as producer:
        await producer.send_many([Outgoing(key.encode(), key=key) for key in KEYS])
    late.set()
    messages = await take(consumer, 40)
    assert sorted(message.payload for message in messages) == sorted(key.encode() for key in KEYS)
    assert {message.id.partition for message in messages} == {0, 1, 2, 3}
    assert all(message.topic == f"{TOPIC}-partition-{message.id.partition}" for message in messages)
    assert calls < {call.consumer for call in door._consumers._calls}, "the others were not disconnected"
    consumer.ack(messages)
    await consumer.flush()
    await consumer.seek("earliest")
    assert len(await take(consumer, 40)) == 40
    await consumer.unsubscribe()
    assert not any(topic.subscriptions for topic in broker.topics.values())


async def test_what_waits_for_a_program_stays_within_the_queue(client: AsyncClient, broker: Broker) -> None:
    await client.topics.create("grown", partitions=2)
    consumer = await client.consumer("grown", "s", type="shared", queue_size=40, from_earliest=True)
    producer = await client.producer("grown")
    await grow(broker, 8)
    await until_streams(producer, 8)
    await until_streams(consumer, 8)
    for _ in range(2):
        for _ in range(160):
            await producer.send(b"x")  # entries of one message: they are not cut
        await take(consumer, 100)
        await take(consumer, 60)
    for _ in range(160):
        await producer.send(b"x")
    await asyncio.sleep(0.1)
    assert 0 < len(consumer._queue._messages) <= 40
    await take(consumer, 160)


@pytest.mark.parametrize("start", ["earliest", "latest", 1_000, "id"])
async def test_a_reader_goes_on_with_new_partitions(
    client: AsyncClient, broker: Broker, start: Any, late: asyncio.Event
) -> None:
    await client.topics.create("grown", partitions=2)
    producer = await client.producer("grown")
    ids = [await producer.send(b"old") for _ in range(4)]
    if start == "id":
        start = max(id_ for id_ in ids if id_.partition == 0)
    async with client.reader("grown", start=start) as reader:
        await grow(broker, 3)
        await until_streams(producer, 3)
        for key in KEYS:
            await producer.send(b"new", key=key)
        late.set()
        seen = []
        while await reader.has_more():
            seen.append((await reader.receive(timeout_s=30)).payload)
        assert seen.count(b"new") == 40
        if start in ("earliest", "latest"):
            assert seen.count(b"old") == (4 if start == "earliest" else 0)


async def test_a_table_view_has_the_keys_of_new_partitions(client: AsyncClient, broker: Broker) -> None:
    await client.topics.create("grown", partitions=1)
    producer = await client.producer("grown")
    async with client.table_view("grown") as view:
        changes = view.changes()
        for count in (2, 5):
            await grow(broker, count)
            await until_streams(producer, count)
            for key in KEYS:
                await producer.send(b"%d" % count, key=key)
            assert dict(await view.ready()) == dict.fromkeys(KEYS, b"%d" % count)
        assert len({(await anext(changes)).key for _ in KEYS}) == len(KEYS)


async def test_the_answer_where_the_end_is_tells_of_partitions(
    client: AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a producer has sent that knows of them is waited for, although nobody has told the view yet."""
    await client.topics.create("grown", partitions=1)
    producer = await client.producer("grown")
    monkeypatch.setattr(ConsumeCall, "on_partitions", lambda call, count: None)
    async with client.table_view("grown") as view, client.reader("grown") as reader:
        await grow(broker, 3)
        await until_streams(producer, 3)
        await producer.send_many([Outgoing(b"x", key=key) for key in KEYS])
        assert sorted(await view.ready()) == sorted(KEYS)
        assert len([await reader.receive(5) async for _ in while_more(reader)]) == len(KEYS)


async def while_more(reader: Any) -> AsyncIterator[None]:
    while await reader.has_more():
        yield


async def test_a_retry_topic_grows_too(client: AsyncClient, broker: Broker) -> None:
    retry = magnetar.Retry(max=1, backoff=0.01, retry_topic="grown", dead_letter_topic="dead")
    await client.topics.create("grown", partitions=1)
    async with client.consumer("t", "s", type="shared", retry=retry) as consumer:
        await grow(broker, 3)
        await until_streams(consumer, 4)
        assert [stream.has_copies for stream in consumer._streams.values()] == [False, True, True, True]
        await client.producer("t").send_many([b"%d" % n for n in range(9)])
        await consumer.nack(await take(consumer, 9))
        copies = await take(consumer, 9)
        assert len({copy.topic for copy in copies}) > 1
        consumer.ack(copies)
        await consumer.flush()


async def test_news_that_come_while_a_part_is_opened_count(
    client: AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.topics.create("grown", partitions=2)
    attempt = Stream._open

    async def slow(stream: Stream, timeout_s: float | None = None) -> Any:
        if stream.topic.endswith("1"):
            await grow(broker, 3)
            await asyncio.sleep(0.1)
        return await attempt(stream, timeout_s)

    heard = Stream.hear_of_partitions
    monkeypatch.setattr(Stream, "_open", slow)
    monkeypatch.setattr(
        Stream, "hear_of_partitions", lambda stream, count: heard(stream, count) if stream.topic[-1] == "0" else None
    )
    producer, consumer = await asyncio.gather(client.producer("grown").open(), client.consumer("grown", "s").open())
    await until_streams(producer, 3)
    await until_streams(consumer, 3)


async def test_a_part_that_was_disconnected_meanwhile_hears_of_it_when_it_is_back(
    client: AsyncClient, world: BrokerInMemory, door: GrpcServer
) -> None:
    await client.topics.create("grown", partitions=1)
    producer, consumer = await client.producer("grown"), await client.consumer("grown", "s")
    await world.broker.opening.unload(TOPIC.with_partition(0))
    await grow(world.broker, 2)
    await until_streams(producer, 2)
    await until_streams(consumer, 2)


@pytest.mark.parametrize("error", [TopicError("not known here", "NOT_FOUND"), TopicError("busy", "ALREADY_EXISTS")])
async def test_a_broker_that_hears_of_a_partition_later_is_waited_for(
    client: AsyncClient, broker: Broker, error: TopicError, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.topics.create("grown", partitions=1)
    producer, consumer = await client.producer("grown"), await client.consumer("grown", "s", from_earliest=True)
    real, refusals = client._brokers.open, Counter[str]()

    async def late(topic: str, *arguments: Any) -> Any:
        refusals[topic] += 1
        if topic.endswith("-1") and refusals[topic] < 7:
            raise error
        return await real(topic, *arguments)

    monkeypatch.setattr(client._brokers, "open", late)
    await grow(broker, 2)
    await until_streams(consumer, 2)
    assert [(await producer.send(b"x", key=key)).partition for key in KEYS[:2]] == [0, 0], "the former one until then"
    await until_streams(producer, 2)
    await producer.send_many([Outgoing(b"x", key=key) for key in KEYS[2:]])
    assert len(await take(consumer, 40)) == 40


async def test_a_partition_that_is_refused_for_good(
    client: AsyncClient, broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer goes on with those that it has. The consumer says so: it would miss messages without a word."""
    await client.topics.create("grown", partitions=2)
    producer, consumer = await client.producer("grown"), await client.consumer("grown", "s", from_earliest=True)
    reader = await client.reader("grown")
    real = client._brokers.open

    async def refusing(topic: str, *arguments: Any) -> Any:
        if topic.endswith("-3"):
            raise TopicError("no permission", "PERMISSION_DENIED")
        return await real(topic, *arguments)

    monkeypatch.setattr(client._brokers, "open", refusing)
    await grow(broker, 4)
    for call in (consumer.receive, reader.receive, reader.has_more):
        with pytest.raises(TopicError, match="no permission"):
            await asyncio.wait_for(call(), 5)
    await eventually(lambda: "goes on with 2 partitions: no permission" in caplog.text)
    assert {(await producer.send(b"x")).partition for _ in range(8)} == {0, 1}
    (partition,) = (topic for topic in broker.topics.values() if topic.name.partition == 2)
    await eventually(lambda: not partition.producers)


@pytest.mark.parametrize("part", ["producer", "consumer", "client"])
async def test_it_is_closed_while_partitions_are_opened(
    client: AsyncClient, broker: Broker, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.topics.create("grown", partitions=1)
    producer, consumer = await client.producer("grown"), await client.consumer("grown", "s")
    real, tried = client._brokers.open, asyncio.Event()

    async def away(topic: str, *arguments: Any) -> Any:
        if topic.endswith("-1"):
            tried.set()
            raise TopicError("away", "UNAVAILABLE")
        return await real(topic, *arguments)

    monkeypatch.setattr(client._brokers, "open", away)
    await grow(broker, 2)
    await asyncio.wait_for(tried.wait(), 5)
    await until_streams(consumer, 2)
    closed: Any = {"producer": producer, "consumer": consumer, "client": client}[part]
    await asyncio.wait_for(closed.close(), 5)
    if part == "producer":
        assert producer.sender._growing is None
        assert all(stream.failure is not None for stream in producer._streams)
    await client.close()


async def test_a_number_that_cannot_be_is_garbage(client: AsyncClient) -> None:
    await client.topics.create("grown", partitions=1)
    (stream,) = (await client.producer("grown"))._streams
    (plain,) = (await client.producer("plain"))._streams
    for wrong, count in ((stream, -1), (stream, 10_001), (plain, 2)):
        with pytest.raises(TopicError, match="answers what no broker says"):
            wrong.hear_of_partitions(count)


async def test_one_partition_alone_does_not_grow(client: AsyncClient, broker: Broker) -> None:
    await client.topics.create("grown", partitions=2)
    name = "grown-partition-1"
    producer, reader = await client.producer(name), await client.reader(name)
    consumer = await client.consumer(name, "s")
    await grow(broker, 3)
    await eventually(lambda: broker.partition_counts.known(TOPIC) == 3)
    assert {(await producer.send(b"x")).partition for _ in range(6)} == {1}
    await take(consumer, 6)
    assert await reader.has_more()
    assert [len(part._streams) for part in (producer, reader, consumer)] == [1, 1, 1]


async def test_fewer_partitions_than_before_change_nothing(client: AsyncClient, broker: Broker) -> None:
    await client.topics.create("grown", partitions=3)
    producer, consumer = await client.producer("grown"), await client.consumer("grown", "s")
    producer._streams[0].hear_of_partitions(2)
    next(iter(consumer._streams.values())).hear_of_partitions(2)
    assert (len(producer._streams), len(consumer._streams)) == (3, 3)


async def test_a_topic_that_nobody_uses_is_not_watched(client: AsyncClient, broker: Broker) -> None:
    await client.topics.create("grown", partitions=2)
    assert not broker.partition_counts._followed
    await client.producer("plain").send(b"x")
    assert not broker.partition_counts._followed, "only partitions are asked for"
    async with client.producer("grown"), client.consumer("grown", "s"), client.reader("grown"):
        assert list(broker.partition_counts._followed) == [TOPIC]
        await eventually(lambda: broker.partition_counts.known(TOPIC.with_partition(1)) == 2)
    await eventually(lambda: not broker.partition_counts._followed)
    assert broker.partition_counts.known(TOPIC) == 0


async def test_a_reader_that_goes_to_a_time_hears_of_partitions_on_its_way(
    client: AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.topics.create("grown", partitions=2)
    await client.producer("grown").send_many([Outgoing(b"x", key=key) for key in KEYS])

    async def only_the_first(brokers: Any, topic: str) -> list[str]:
        return [TOPIC.with_partition(0).full]

    monkeypatch.setattr("magnetar.client.async_consumer.topics_of", only_the_first)
    async with client.reader("grown", start=1) as reader:
        assert len(await take(reader, len(KEYS))) == len(KEYS)


def test_messages_that_are_void_do_not_stay_in_the_queue() -> None:
    """A program that takes none would have those of each call that broke."""

    def stream() -> Any:
        return SimpleNamespace(generation=0, on_taken=lambda message: None)

    queue, broken, other = _Queue(), stream(), stream()
    queue.put(other, cast(Any, ["0", "1"]))
    for number in range(2, 5):
        queue.put(broken, cast(Any, ["void", "void"]))
        queue.put(other, cast(Any, [str(number)]))
        queue.put(broken, cast(Any, ["void"]))
        broken.generation += 1
        queue.drop(broken)
    assert len(queue._messages) == 5
    assert [cast(Any, queue.take()) for _ in range(6)] == ["0", "1", "2", "3", "4", None]
