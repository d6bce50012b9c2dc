"""Batches that clients encode, through the gRPC door: what is stored, what consumers get, what becomes of bad ones."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from broker.grpc.publishing.writer import Writer
from broker.grpc.service import GrpcServer
from broker.settings.quotas import PublishRate
from magnetar.client.async_client import AsyncClient
from magnetar.client.errors import UnreadableMessage
from magnetar.client.publishing import PublishStream
from magnetar.client.values import Outgoing
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.batch_encoding import BATCH_MESSAGES_MIN, NO_BATCHES, encode_messages
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually, settle
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.grpc.test_grpc_limits import opened
from tests.unit.broker.grpc.test_messages import receive_all
from tests.unit.broker.grpc.test_service import answered, refused
from tests.unit.broker.test_official_client import EARLIEST, receive
from tests.unit.broker.test_official_client import client as official

MIN = BATCH_MESSAGES_MIN


@pytest.fixture
async def channel(door: GrpcServer) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as made:
        yield made


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int]]:
    """The numbers of messages in the batches of each request of our client, and of those without batch."""
    made: list[tuple[list[int], int]] = []
    next_request = PublishStream._next

    def noting(stream: PublishStream) -> Any:
        request = next_request(stream)
        if request is not None:
            made.append(([batch.count for batch in request.batches], len(request.messages)))
        return request

    monkeypatch.setattr(PublishStream, "_next", noting)
    return made


def request(first: int, count: int) -> api.PublishRequest:
    """A request with one batch; the payload of a message is its sequence id."""
    sequence_ids = range(first, first + count)
    encoded = encode_messages([api.Message(payload=b"%d" % number) for number in sequence_ids], sequence_ids)
    return api.PublishRequest(
        first_sequence_id=first, batches=[api.PublishRequest.Batch(messages=encoded, count=count)]
    )


def outgoing(number: int) -> Outgoing[bytes]:
    return Outgoing(b"m%d" % number, key="k", properties={"n": str(number)}, event_time=1 + number)


async def test_both_clients_read_what_came_in_batches(
    world: BrokerInMemory, client: AsyncClient, requests: list[tuple[list[int], int]]
) -> None:
    ids = await client.producer("t").send_many([outgoing(number) for number in range(300)])
    assert requests == [([300], 0)]
    assert {(one.entry_id, one.batch_size) for one in ids} == {(0, 300)}
    (topic,) = world.broker.topics.values()
    assert topic.messages_in == 300
    async with client.consumer("t", "s", type="key_shared", from_earliest=True) as consumer:
        received = await receive_all(consumer, 300)
    assert [(one.id, one.payload, one.key, one.event_time_ms, one.sequence_id) for one in received] == [
        (id_, b"m%d" % number, "k", 1 + number, number) for number, id_ in enumerate(ids)
    ]
    assert received[7].properties == {"n": "7"}

    def scenario() -> None:
        with official(world.url) as c:
            messages = receive(c.subscribe("t", "official", initial_position=EARLIEST), 300)
            assert [one.data() for one in messages] == [b"m%d" % number for number in range(300)]
            assert (messages[9].partition_key(), messages[9].properties()) == ("k", {"n": "9"})
            assert messages[9].message_id().batch_index() == ids[9].batch_index == 9

    await world.run(scenario)


async def test_a_broker_that_knows_no_batches_is_sent_none(
    client: AsyncClient, requests: list[tuple[list[int], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    init = Writer.__init__

    def without(writer: Writer, *arguments: Any, **named: Any) -> None:
        init(writer, *arguments, **named)
        writer.batch_limits = NO_BATCHES

    monkeypatch.setattr(Writer, "__init__", without)
    assert len(set(await client.producer("t").send_many([b"x"] * 2 * MIN))) == 2 * MIN
    assert requests == [([], 2 * MIN)]


async def test_few_messages_are_left_to_the_broker(client: AsyncClient, requests: list[tuple[list[int], int]]) -> None:
    await client.producer("t").send_many([b"x"] * (MIN - 1))
    await client.producer("t").send_many([Outgoing(b"x", key=f"k{number % 5}") for number in range(5 * MIN)])
    assert requests == [([], MIN - 1), ([], 5 * MIN)]


async def test_what_is_sent_again_in_other_batches_is_stored_once(
    world: BrokerInMemory, client: AsyncClient, channel: Any
) -> None:
    await world.set_policies("public/default", deduplicationEnabled=True)
    call = await opened(channel, "Publish", producer_name="p")
    await call.write(request(0, 2 * MIN))
    assert await answered(call, 2 * MIN) == (set(range(2 * MIN)), {})
    call.cancel()
    topic = world.broker.topics[TopicName.parse("t")]
    await eventually(lambda: not topic.producers)
    call = await opened(channel, "Publish", producer_name="p")
    await call.write(request(MIN, 3 * MIN))  # a third of it is stored
    await call.write(request(4 * MIN, MIN))
    assert await answered(call, 4 * MIN) == (set(range(MIN, 5 * MIN)), {})
    async with client.reader("t") as reader:
        stored = [await reader.receive(5) for _ in range(5 * MIN)]
        assert [(one.payload, one.sequence_id) for one in stored] == [(b"%d" % n, n) for n in range(5 * MIN)]
        assert not await reader.has_more()


@pytest.mark.parametrize("name", ["", "p"])
async def test_batches_on_their_way_are_sent_again_when_their_topic_moves(
    world: BrokerInMemory, client: AsyncClient, name: str, requests: list[tuple[list[int], int]]
) -> None:
    await world.set_policies("public/default", deduplicationEnabled=True)
    async with client.producer("t", name=name) as producer:
        await producer.send(b"0")
        topic = world.broker.topics[TopicName.parse("t")]
        world.ledger("t").hold = True
        sending = [asyncio.ensure_future(producer.send_many([b"%d" % n] * 3 * MIN)) for n in range(1, 4)]
        await eventually(lambda: world.ledger("t").pending_count > 0)
        assert sum(requests[-1][0]) == 9 * MIN
        for stream in [stream for call in world.doors[0]._publisher._calls for stream in call.writer.streams]:
            stream.end(None)  # as if the connection were gone
        world.ledger("t").hold = False
        world.ledger("t").release()
        await asyncio.gather(*sending)
    expected = [b"0", *(b"%d" % n for n in range(1, 4) for _ in range(3 * MIN))]
    async with client.reader("t") as reader:
        stored = [(await reader.receive(5)).payload for _ in expected]
        if name:
            assert not await reader.has_more(), "those of a name are known by their numbers"
    assert stored == expected
    assert topic.messages_in >= len(expected)


async def test_damaged_batches_harm_nobody_else(world: BrokerInMemory, client: AsyncClient, channel: Any) -> None:
    async with client.consumer("t", "s") as consumer:
        call = await opened(channel, "Publish")
        damaged = request(0, MIN)
        damaged.batches[0].messages = b"\xff" + damaged.batches[0].messages[1:]
        await call.write(damaged)
        assert await answered(call, MIN) == (set(range(MIN)), {}), "nobody has looked at it"
        await client.producer("t").send(b"other")
        with pytest.raises(UnreadableMessage, match=f"message 0 of a batch of {MIN}"):
            await consumer.receive(5)
        assert (await consumer.receive(5)).payload == b"other"
        damaged.first_sequence_id, damaged.batches[0].count = MIN, MIN - 1  # so that it is taken apart
        await call.write(damaged)
        code, details = await refused(call)
        assert (code, f"message 0 of a batch of {MIN - 1}" in details) == ("INVALID_ARGUMENT", True)


async def test_others_have_their_turn_while_batches_are_taken_apart(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    seen: list[int] = []
    add = Writer.add

    def noting(writer: Writer, *arguments: Any) -> int:
        seen.append(turns)
        return add(writer, *arguments)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Writer, "add", noting)
    call = await opened(channel, "Publish")
    counting = asyncio.ensure_future(count_turns())
    small = request(0, 2)
    small.batches.extend([small.batches[0]] * 9)
    await call.write(small)
    assert await answered(call, 20) == (set(range(20)), {})
    counting.cancel()
    assert len(seen) == len(set(seen)) == 10


async def test_batches_that_a_rate_does_not_let_in_count_in_memory(
    world: BrokerInMemory, client: AsyncClient, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of many calls may hold a request of the largest size for as long as its topic lets nothing in."""
    monkeypatch.setattr("broker.grpc.publish.HOLD_STEP_MS", 5)
    now_ms = world.broker.clock.wall_ms()
    monkeypatch.setattr(world.broker.clock, "wall_ms", lambda: now_ms)
    await client.topics.create("t")
    topic = world.broker.topics[TopicName.parse("t")]
    call = await opened(channel, "Publish")
    topic.publish_throttle.use(PublishRate(MIN, 0), now_ms)
    many = request(0, MIN)
    many.batches.extend([many.batches[0]] * 9)
    await call.write(many)
    await eventually(lambda: topic.messages_in >= MIN)
    await settle()
    assert topic.messages_in <= 2 * MIN
    assert world.broker.publishes.used_bytes >= 8 * len(many.batches[0].messages)
    topic.publish_throttle.use(PublishRate(0, 0), now_ms)
    assert await answered(call, 10 * MIN) == (set(range(10 * MIN)), {})
    await eventually(lambda: world.broker.publishes.used_bytes == 0)
