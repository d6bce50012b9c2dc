"""Messages that fail: how often they come again, where their copies go, and when they are acknowledged."""

import asyncio
import time
from typing import Any

import pytest

import magnetar
from broker.grpc.service import GrpcServer
from magnetar.client.async_client import AsyncClient
from magnetar.client.async_consumer import AsyncConsumer
from magnetar.client.async_producer import Sender
from magnetar.client.consuming import ConsumeStream
from magnetar.client.errors import TopicUnavailable, UnreadableMessage
from magnetar.client.retries import letters
from magnetar.client.retries.retry import Retry, reconsume_times
from magnetar.client.values import Message, Outgoing
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door
from tests.unit.broker.raw_client import RawClient

__all__ = ["client", "door", "world"]

FULL = "persistent://public/default/t"
NOW = Retry(max=2, backoff=0.0)
IN_PLACE = Retry(max=2, backoff=0.0, retry_topic=None)


async def take(consumer: AsyncConsumer, count: int) -> list[Message]:
    return [await consumer.receive(5) for _ in range(count)]


async def nothing_more(consumer: AsyncConsumer) -> bool:
    return await consumer.receive_batch(1, timeout_s=0.05) == []


async def dead_letters(client: AsyncClient, count: int, topic: str = "t-s-DLQ") -> list[Message]:
    """What is in a dead letter topic, which has to be all of it."""
    async with client.reader(topic) as reader:
        found = await take(reader, count)
        assert not await reader.has_more()
        return found


def backlog(world: BrokerInMemory, topic: str = "t") -> int:
    return world.broker.topics[TopicName.parse(topic)].subscriptions["s"].cursor.backlog()


# -------------------------------------------------------------------------------- the rules


def test_the_names_are_those_of_the_official_clients() -> None:
    for topic in ("t", FULL):
        named = Retry().named([topic], "s")
        assert (named.retry_topic, named.dead_letter_topic) == (f"{FULL}-s-RETRY", f"{FULL}-s-DLQ")
    for topics in (["t"], ["t", "u"], []):
        named = Retry(retry_topic="r", dead_letter_topic="d").named(topics, "s")
        assert (named.retry_topic, named.dead_letter_topic) == ("r", "d")
    assert Retry(retry_topic=None).named(["t"], "s").retry_topic is None
    named = Retry().named(["u", FULL, "t-2"], "s")  # as Java's sorted set has them: by the text that was given
    assert (named.retry_topic, named.dead_letter_topic) == (f"{FULL}-s-RETRY", f"{FULL}-s-DLQ")
    assert Retry(dead_letter_topic="d").named(["u", "t"], "s").retry_topic == f"{FULL}-s-RETRY"


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [(3, [3, 3, 3]), ([1, 5], [1, 5, 5]), ((0.5,), [0.5, 0.5, 0.5]), (lambda failures: failures * 2.5, [2.5, 5, 7.5])],
)
def test_the_pause_goes_by_the_number_of_failures(backoff: Any, expected: list[float]) -> None:
    assert [Retry(backoff=backoff).delay_s(failures) for failures in (1, 2, 3)] == expected


@pytest.mark.parametrize(
    ("text", "times"),
    [("3", 3), ("", 0), ("-3", 0), ("x", 0), ("9" * 5000, 0), ("٣", 0), ("2147483648", 2**31 - 2)],
)
def test_a_count_that_is_none_is_none(text: str, times: int) -> None:
    assert reconsume_times({"RECONSUMETIMES": text}) == times
    assert reconsume_times({}) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max": 0}, "max of a Retry is 0; it takes 1 to"),
        ({"max": "5"}, "max of a Retry is str"),
        ({"backoff": "1s"}, "backoff is str; it takes seconds, a list of seconds"),
        ({"backoff": []}, "backoff is empty"),
        ({"backoff": [1, -1]}, "backoff is -1"),
        ({"backoff": None}, "backoff is NoneType"),
        ({"retry_topic": 1}, "retry_topic is int"),
        ({"dead_letter_topic": None}, "dead_letter_topic is NoneType"),
    ],
)
def test_a_wrong_value_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Retry(**arguments)


async def test_a_wrong_use_is_said_at_once(client: AsyncClient) -> None:
    with pytest.raises(ValueError, match='retry needs type="shared" or "key_shared"'):
        client.consumer("t", "s", retry=NOW)
    wrong: Any = 5
    with pytest.raises(TypeError, match=r"retry is int; it takes magnetar\.Retry or None"):
        client.consumer("t", "s", type="shared", retry=wrong)
    with pytest.raises(ValueError, match="a//b"):
        client.consumer("a//b", "s", type="shared", retry=NOW)
    for same in (Retry(retry_topic="t"), Retry(dead_letter_topic=FULL), Retry(retry_topic="x", dead_letter_topic="x")):
        with pytest.raises(ValueError, match="topic, retry_topic and dead_letter_topic are different ones"):
            client.consumer("t", "s", type="shared", retry=same)
    for same in (Retry(retry_topic="u"), Retry(dead_letter_topic=FULL)):
        with pytest.raises(ValueError, match="different ones"):
            client.consumer(subscription="s", topics=["t", "u"], type="shared", retry=same)
    with pytest.raises(ValueError, match="several topics without a retry_topic: set the dead_letter_topic"):
        client.consumer(subscription="s", topics=["t", "u"], type="shared", retry=IN_PLACE)
    for nameless in (NOW, IN_PLACE, Retry(dead_letter_topic="d"), Retry(retry_topic="r")):
        with pytest.raises(ValueError, match="a pattern has no topic that gives names"):
            client.consumer(subscription="s", pattern="x-.*", type="shared", retry=nameless)
    for matched in (Retry(retry_topic="x-r", dead_letter_topic="d"), Retry(retry_topic=None, dead_letter_topic="x-d")):
        with pytest.raises(ValueError, match="matches a topic of its own Retry"):
            client.consumer(subscription="s", pattern="x-.*", type="shared", retry=matched)
    await client.producer("t").send(b"x")
    late: Any = lambda failures: "soon"  # noqa: E731
    async with (
        client.consumer("t", "s", type="shared", from_earliest=True, retry=Retry(backoff=late)) as consumer,
        client.consumer("t", "x", type="shared", from_earliest=True) as other,
    ):
        message = await consumer.receive(5)
        with pytest.raises(TypeError, match="is MessageId; it takes messages, as they were received"):
            consumer.ack(message.id)
        with pytest.raises(ValueError, match="was not received by this consumer"):
            consumer.ack(await other.receive(5))
        with pytest.raises(TypeError, match="what backoff returned is str"):
            await consumer.nack(message)


# -------------------------------------------------------------------------------- retry topic


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
async def test_a_message_that_fails_each_time_ends_in_the_dead_letter_topic(
    world: BrokerInMemory, client: AsyncClient, kind: magnetar.SubscriptionType
) -> None:
    async with client.consumer("t", "s", type=kind, retry=NOW) as consumer:
        id_ = await client.producer("t").send(b"x", key="k", properties={"a": "b"}, event_time=7, ordering_key=b"o")
        seen = []
        for _ in range(3):
            message = await consumer.receive(5)
            seen.append((message.topic, message.properties.get("RECONSUMETIMES")))
            await consumer.nack(message)
        assert seen == [(FULL, None), (f"{FULL}-s-RETRY", "1"), (f"{FULL}-s-RETRY", "2")]
        assert await nothing_more(consumer)
        (letter,) = await dead_letters(client, 1)
        assert (letter.payload, letter.key, letter.ordering_key, letter.event_time_ms) == (b"x", "k", b"o", 7)
        assert letter.properties == {
            "a": "b",
            "RECONSUMETIMES": "3",
            "DELAY_TIME": "0",
            "REAL_TOPIC": FULL,
            "REAL_SUBSCRIPTION": "s",
            "ORIGIN_MESSAGE_ID": f"{id_.ledger_id}:{id_.entry_id}:-1",
            "ORIGIN_MESSAGE_IDY_TIME": f"{id_.ledger_id}:{id_.entry_id}:-1",
        }
        assert (backlog(world), backlog(world, "t-s-RETRY")) == (0, 0)


async def test_each_message_of_a_batch_has_a_count_of_its_own(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.consumer("t", "s", type="shared", retry=NOW) as consumer:
        await client.producer("t").send_many([b"good", b"bad", Outgoing(None), b"late"])
        messages = {message.payload: message for message in await take(consumer, 4)}
        assert len({message.id.entry_id for message in messages.values()}) < 4, "a batch"
        consumer.ack(messages[b"good"])
        await consumer.nack([messages[b"bad"], messages[b""]])
        again = await take(consumer, 2)
        assert [(one.payload, one.is_null, one.properties["RECONSUMETIMES"]) for one in again] == [
            (b"bad", False, "1"),
            (b"", True, "1"),
        ]
        assert again[0].properties["ORIGIN_MESSAGE_ID"].endswith(":-1:1"), "with its place in the batch"
        consumer.ack(again[1])
        await consumer.nack(again[0])
        await consumer.nack(messages[b"late"])
        counts = {one.payload: one.properties["RECONSUMETIMES"] for one in await take(consumer, 2)}
        assert counts == {b"bad": "2", b"late": "1"}


async def test_counts_survive_a_reconnect_and_another_broker(world: BrokerInMemory, door: GrpcServer) -> None:
    for times in (None, "1", "2"):
        async with (
            AsyncClient(f"127.0.0.1:{door.port}", operation_timeout_s=30) as client,
            client.consumer("t", "s", type="shared", retry=NOW) as consumer,
        ):
            if times is None:
                await client.producer("t").send(b"x")
            message = await consumer.receive(5)
            assert message.properties.get("RECONSUMETIMES") == times
            await consumer.nack(message)
    async with AsyncClient(f"127.0.0.1:{door.port}", operation_timeout_s=30) as client:
        assert (await dead_letters(client, 1))[0].payload == b"x"


async def test_a_copy_waits_as_long_as_the_backoff_says(client: AsyncClient) -> None:
    retry = Retry(max=3, backoff=[0.1, 0])
    async with client.consumer("t", "s", type="shared", retry=retry) as consumer:
        await client.producer("t").send(b"x")
        message = await consumer.receive(5)
        failed_s = time.monotonic()
        await consumer.nack(message)
        message = await consumer.receive(5)
        assert time.monotonic() - failed_s >= 0.1, "not before its backoff"
        assert message.properties["DELAY_TIME"] == "100"
        await consumer.nack(message, delay_s=0.05)
        assert (await consumer.receive(5)).properties["DELAY_TIME"] == "50"


async def test_partitions_share_the_topics_of_their_copies(client: AsyncClient) -> None:
    await client.topics.create("p", partitions=3)
    retry = Retry(max=1, backoff=0)
    async with client.consumer("p", "s", type="shared", retry=retry) as consumer:
        await client.producer("p").send_many([Outgoing(b"%d" % n, key=str(n)) for n in range(10)])
        for _ in range(2):
            await consumer.nack(await take(consumer, 10))
        letters_ = await dead_letters(client, 10, "p-s-DLQ")
        assert sorted(one.payload for one in letters_) == [b"%d" % n for n in range(10)]
        assert {one.properties["REAL_TOPIC"] for one in letters_} == {"persistent://public/default/p"}
        await consumer.seek("earliest")
        assert len(await take(consumer, 10)) == 10


async def test_several_topics_share_the_topics_of_their_copies(world: BrokerInMemory, client: AsyncClient) -> None:
    await client.topics.create("u", partitions=2)
    retry = Retry(max=1, backoff=0, dead_letter_subscription="inspection")
    async with client.consumer(subscription="s", topics=["u", "t"], type="shared", retry=retry) as consumer:
        for topic in ("t", "u"):
            await client.producer(topic).send(topic.encode())
        for _ in range(2):
            await consumer.nack(await take(consumer, 2))
        assert await nothing_more(consumer)
        async with client.consumer("t-s-DLQ", "inspection") as inspection:
            letters_ = await take(inspection, 2)
        assert {one.payload: one.properties["REAL_TOPIC"] for one in letters_} == {
            b"t": FULL,
            b"u": "persistent://public/default/u",
        }
        assert {backlog(world, topic) for topic in ("t", "u-partition-0", "u-partition-1", "t-s-RETRY")} == {0}


async def test_a_pattern_has_copies_where_its_retry_says(client: AsyncClient, world: BrokerInMemory) -> None:
    await client.topics.create("copies", partitions=1)
    retry = Retry(max=1, backoff=0, retry_topic="copies", dead_letter_topic="dead")
    async with client.consumer(subscription="s", pattern="x-.*", type="shared", retry=retry) as consumer:
        for topic in ("x-1", "x-2"):
            async with client.producer(topic) as producer:
                await producer.send(topic.encode())
        await consumer.nack(await take(consumer, 2))
        again = await take(consumer, 2)
        assert {one.topic for one in again} == {"persistent://public/default/copies-partition-0"}
        await client.topics.delete("x-1", force=True)
        await eventually(lambda: len(consumer._streams) == 2)  # x-2 and the copies
        await world.broker.partitioned.grow(TopicName.parse("copies"), 2)
        await eventually(lambda: len(consumer._streams) == 3)
        await consumer.nack(again)
        letters_ = await dead_letters(client, 2, "dead")
        assert {one.properties["REAL_TOPIC"] for one in letters_} == {
            "persistent://public/default/x-1",
            "persistent://public/default/x-2",
        }


@pytest.mark.parametrize("several", [{"topics": ["t", "u"]}, {"pattern": "[tu]"}])
async def test_of_several_topics_without_a_retry_topic(client: AsyncClient, several: dict[str, Any]) -> None:
    for topic in ("t", "u"):
        await client.topics.create(topic)
    retry = Retry(max=1, backoff=0, retry_topic=None, dead_letter_topic="dead")
    async with client.consumer(subscription="s", type="shared", retry=retry, **several) as consumer:
        for topic in ("t", "u"):
            await client.producer(topic).send(topic.encode())
        for _ in range(2):
            await consumer.nack(await take(consumer, 2))
        assert sorted(one.payload for one in await dead_letters(client, 2, "dead")) == [b"t", b"u"]


async def test_the_same_without_await(door: GrpcServer) -> None:
    def scenario() -> list[Any]:
        with (
            magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as made,
            made.consumer("t", "s", type="shared", retry=NOW) as consumer,
        ):
            made.producer("t").send(b"x")
            for _ in range(3):
                consumer.nack(consumer.receive(5))
            with made.reader("t-s-DLQ") as reader:
                return [reader.receive(5).payload, reader.has_more()]

    assert await asyncio.to_thread(scenario) == [b"x", False]


# -------------------------------------------------------------------------------- without a retry topic


async def test_without_a_retry_topic_the_broker_counts(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.consumer("t", "s", type="shared", retry=IN_PLACE) as consumer:
        await client.producer("t").send(b"x")
        counts = []
        for _ in range(3):
            message = await consumer.receive(5)
            counts.append(message.redelivery_count)
            await consumer.nack(message)
        assert counts == [0, 1, 2]
        (letter,) = await dead_letters(client, 1)
        assert letter.properties.keys() == {
            "REAL_TOPIC", "REAL_SUBSCRIPTION", "ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME",
        }  # fmt: skip
        assert backlog(world) == 0
        names = await client.topics.list()
        assert f"{FULL}-s-RETRY" not in names


@pytest.mark.parametrize("retry", [NOW, IN_PLACE])
@pytest.mark.parametrize("queue_size", [2, 1000])
@pytest.mark.parametrize("is_alone", [False, True])
async def test_what_ends_its_worker_each_time_ends_in_the_dead_letter_topic(
    world: BrokerInMemory, client: AsyncClient, retry: Retry, queue_size: int, is_alone: bool
) -> None:
    """Nobody acknowledges or nacks. The next worker is there already, or is started when this one is gone. What may be
    innocent, because it was behind, is tried again."""

    async def worker() -> AsyncConsumer:
        return await client.consumer("t", "s", type="shared", queue_size=queue_size, retry=retry)

    holder = await worker()
    await client.producer("t").send_many([b"x", b"y"])
    for count, expected in enumerate([[b"x", b"y"]] * 3 + [[b"y"]]):
        messages = await take(holder, len(expected))
        assert [(one.payload, one.redelivery_count) for one in messages] == [(payload, count) for payload in expected]
        if is_alone:
            await holder.close()
            holder = await worker()
        else:
            following = await worker()
            await holder.close()
            holder = following
    assert [one.payload for one in await dead_letters(client, 2)] == [b"x", b"y"]
    await eventually(lambda: not backlog(world))
    for n in range(10):  # the permits of those are not lost
        await client.producer("t").send(b"%d" % n)
        holder.ack(await holder.receive(5))


async def test_what_only_waited_in_workers_that_left_in_order_was_not_tried(client: AsyncClient) -> None:
    """However often the only worker is stopped, none of it is a dead letter. What one left in hand was tried."""

    def worker() -> AsyncConsumer:
        return client.consumer("t", "s", type="shared", from_earliest=True, retry=NOW)

    await client.producer("t").send_many([b"%d" % n for n in range(9)])
    for n in range(6):
        async with worker() as one:
            message = await one.receive(5)
            assert (message.payload, message.redelivery_count) == (b"%d" % n, 0)
            if n < 5:
                one.ack(message)
            else:
                await one.nack(message)
    async with worker() as one:
        await one.receive(5)
    async with worker() as one:
        left = [message for message in await take(one, 4) if message.topic == FULL]
        assert [(message.payload, message.redelivery_count) for message in left] == [(b"6", 1), (b"7", 1), (b"8", 1)]


# -------------------------------------------------------------------------------- copies that are not stored


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Payloads whose copies cannot be stored."""
    payloads = list[str]()
    send = Sender.send

    async def attempt(sender: Sender, message: Any, key: str | None, sequence_id: int | None) -> Any:
        if message.payload.decode() in payloads:
            raise TopicUnavailable("no bookies", "UNAVAILABLE")
        return await send(sender, message, key, sequence_id)

    monkeypatch.setattr(Sender, "send", attempt)
    return payloads


@pytest.mark.parametrize("retry", [NOW, Retry(max=1, retry_topic=None)])
async def test_what_is_not_copied_is_not_acknowledged(
    world: BrokerInMemory, client: AsyncClient, failing: list[str], monkeypatch: pytest.MonkeyPatch, retry: Retry
) -> None:
    monkeypatch.setattr(letters, "PAUSE_S", 0.02)
    async with client.consumer("t", "s", type="shared", retry=retry) as consumer:
        await client.producer("t").send_many([b"x", b"y"])
        messages = await take(consumer, 2)
        if retry.retry_topic is None:
            await consumer.nack(messages, delay_s=0)
            messages = await take(consumer, 2)
        failing.append("x")
        with pytest.raises(TopicUnavailable, match="no bookies"):
            await consumer.nack(messages, delay_s=0)
        assert backlog(world) == 1
        failing.clear()
        again = await take(consumer, 2) if retry is NOW else []
        left = [one.payload for one in again if one.topic == FULL]
        assert left == ([b"x"] if retry is NOW else []), "in its topic"
        if retry is not NOW:  # it was delivered too often by now
            assert {one.payload for one in await dead_letters(client, 2)} == {b"x", b"y"}
            await eventually(lambda: not backlog(world))


async def test_a_dead_letter_that_is_not_stored_is_tried_again(
    world: BrokerInMemory, client: AsyncClient, failing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "PAUSE_S", 0.02)
    once = Retry(max=1, retry_topic=None)
    plain = await client.consumer("t", "s", type="shared")
    await client.producer("t").send(b"x")
    for count in range(2):
        message = await plain.receive(5)
        assert message.redelivery_count == count
        if not count:
            await plain.nack(message, delay_s=0)
    failing.append("x")
    async with client.consumer("t", "s", type="shared", retry=once) as consumer:
        await plain.close()
        assert await nothing_more(consumer)
        assert backlog(world) == 1
        failing.clear()
        assert (await dead_letters(client, 1))[0].payload == b"x"
        await eventually(lambda: not backlog(world))


async def test_an_acknowledgement_on_a_broken_connection_is_sent_again(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ConsumeStream.request
    broken = [True]

    async def attempt(stream: ConsumeStream, wanted: Any) -> None:
        if wanted.acks and broken.pop():
            raise TopicUnavailable("the connection broke", "UNAVAILABLE")
        await request(stream, wanted)

    monkeypatch.setattr(ConsumeStream, "request", attempt)
    async with client.consumer("t", "s", type="shared", retry=NOW) as consumer:
        await client.producer("t").send(b"x")
        await consumer.nack(await consumer.receive(5))
        await consumer.flush()
        assert backlog(world) == 0


async def test_dead_letters_wait_for_a_subscription_that_is_made_for_them(
    world: BrokerInMemory, client: AsyncClient
) -> None:
    retry = Retry(max=1, retry_topic=None, dead_letter_subscription="s")
    async with client.consumer("t", "s", type="shared", retry=retry) as consumer:
        await client.producer("t").send_many([b"x", b"y"])
        for delay_s in (0, 0):
            await consumer.nack(await take(consumer, 2), delay_s=delay_s)
    assert backlog(world, "t-s-DLQ") > 0
    async with client.consumer("t-s-DLQ", "s", type="exclusive") as reading:
        assert {one.payload for one in await take(reading, 2)} == {b"x", b"y"}


async def test_a_subscription_of_dead_letters_may_be_in_use(client: AsyncClient) -> None:
    retry = Retry(max=1, backoff=0, retry_topic=None, dead_letter_subscription="inspection")
    async with (
        client.consumer("t-s-DLQ", "inspection") as inspection,
        client.consumer("t", "s", type="shared", retry=retry) as consumer,
    ):
        await client.producer("t").send(b"x")
        for _ in range(2):
            await consumer.nack(await consumer.receive(5))
        assert (await inspection.receive(5)).payload == b"x"


async def test_a_message_that_cannot_be_read_stays_in_its_topic(world: BrokerInMemory, client: AsyncClient) -> None:
    """Its copy would lack what it was encrypted with."""
    async with client.consumer("t", "s", type="shared", retry=Retry(max=1, backoff=0)) as consumer:
        raw = await RawClient.connect(int(world.url.rpartition(":")[2]))
        await raw.produce("t")
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        metadata.encryption_keys.add(key="k", value=b"v")
        raw.publish(1, 0, data=encode_entry(metadata, b"secret"))
        for count in range(4):
            with pytest.raises(UnreadableMessage) as failure:
                await consumer.receive(5)
            message = failure.value.message
            assert isinstance(message, Message)
            assert message.redelivery_count == count
            await consumer.nack(message)
        raw.close()
    assert f"{FULL}-s-DLQ" not in await client.topics.list()
