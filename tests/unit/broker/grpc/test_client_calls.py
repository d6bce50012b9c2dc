"""Calls of the topic API's client that are cut off, overlap, or get no answer."""

import asyncio
from typing import Any

import pytest

import magnetar.client.publishing
from broker.grpc.service import GrpcServer
from broker.topic.topic import Topic
from magnetar.client.async_client import AsyncClient
from magnetar.client.brokers import Brokers
from magnetar.client.errors import TopicUnavailable
from magnetar.client.values import Outgoing, partition_of_key
from tests.support.waiting import eventually
from tests.unit.broker.conftest import world
from tests.unit.broker.grpc.conftest import client, door

pytestmark = pytest.mark.both_loops

__all__ = ["client", "door", "world"]


@pytest.mark.parametrize("kind", ["Consume", "Publish"])
async def test_opening_that_was_cut_off_leaves_no_stream_behind(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await client.topics.create("p", partitions=2)
    may_go_on, open_stream = asyncio.Event(), Brokers.open
    began, opened = list[str](), list[str]()

    async def slowly(brokers: Brokers, topic: str, method: str, *others: Any) -> Any:
        began.append(topic)
        if topic.endswith("-1"):
            await may_go_on.wait()
        found = await open_stream(brokers, topic, method, *others)
        opened.append(topic)
        return found

    monkeypatch.setattr(Brokers, "open", slowly)
    made: Any = client.consumer("p", "s") if kind == "Consume" else client.producer("p", name="me")
    opening = asyncio.ensure_future(made.open())
    await eventually(lambda: (len(began), len(opened)) == (2, 1))
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    may_go_on.set()
    await made.open()
    await made.close()


async def test_messages_keep_the_order_of_the_calls_while_the_producer_is_opened(
    client: AsyncClient,
) -> None:
    producer = client.producer("t", name="me")
    sending = [asyncio.create_task(producer.send(b"%d" % n, sequence_id=n)) for n in range(10)]
    while not producer._streams:
        await asyncio.sleep(0)
    sending.append(asyncio.create_task(producer.send(b"10", sequence_id=10)))
    ids = await asyncio.gather(*sending)
    assert ids == sorted(ids)


async def test_messages_keep_the_order_of_the_calls_when_there_is_room_again(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(magnetar.client.publishing, "PENDING_MESSAGES_MAX", 4)
    producer = await client.producer("t", name="me")
    (stream,) = producer._streams
    on_answer = stream._on_answer
    sending = [asyncio.create_task(producer.send(b"x", sequence_id=n)) for n in range(20)]

    def answered(answer: Any) -> None:
        if len(sending) == 20:  # its turn comes before that of those who are woken up by this answer
            sending.append(asyncio.create_task(producer.send(b"last", sequence_id=20)))
        on_answer(answer)

    monkeypatch.setattr(stream, "_on_answer", answered)
    await asyncio.gather(*sending[:20])
    ids = await asyncio.gather(*sending)
    assert ids == sorted(ids)


async def test_messages_keep_the_order_of_the_calls_of_both_kinds_on_a_partitioned_topic(client: AsyncClient) -> None:
    await client.topics.create("p", partitions=2)
    producer = await client.producer("p", name="me")
    many = asyncio.create_task(producer.send_many([Outgoing(b"0", key="k"), Outgoing(b"1", key="k")]))
    one = asyncio.create_task(producer.send(b"2", key="k"))
    ids = [*await many, await one]
    assert ids == sorted(ids)


async def test_messages_keep_the_order_of_the_calls_when_one_partition_has_no_room(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(magnetar.client.publishing, "PENDING_MESSAGES_MAX", 4)
    await client.topics.create("p", partitions=2)
    producer = await client.producer("p", name="me")
    full, other = (next(f"{n}" for n in range(100) if partition_of_key(f"{n}", 2) == at) for at in (0, 1))
    filling = [asyncio.create_task(producer.send(b"x", key=full)) for _ in range(20)]
    many = asyncio.create_task(producer.send_many([Outgoing(b"0", key=full), Outgoing(b"1", key=other)]))
    one = asyncio.create_task(producer.send(b"2", key=other))
    await asyncio.gather(*filling)
    ids = [(await many)[1], await one]
    assert ids == sorted(ids)


async def test_a_reader_whose_seek_to_its_start_is_not_answered_is_not_waited_for_for_ever(
    door: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(topic: Topic, time_ms: int) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(Topic, "position_at_ms", hang)
    async with AsyncClient(f"127.0.0.1:{door.port}", operation_timeout_s=0.3) as client:
        async with asyncio.timeout(10):
            with pytest.raises(TopicUnavailable, match="does not answer"):
                await client.reader("t", start=1)
