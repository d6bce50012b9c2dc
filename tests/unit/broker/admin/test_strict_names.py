"""New topics where names are strict, over HTTP and with the official client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import quote

import pulsar
import pytest

from broker.errors import NotAllowed
from magnetar_core.topics.topic_name import TopicName
from tests.unit.broker.admin.admin_world import AdminWorld, Side

PLAIN = "/admin/v2/persistent/public/default"
PASSING = "/admin/v2/non-persistent/public/default"
GOOD = ["a", "a-b_c=d:e.f", "9"]
BAD = ["a-partition-z", "a-partition-0", "a b", "ü", "a*"]


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


@pytest.fixture
async def strict(world: AdminWorld) -> Side:
    return await world.side(strict_topic_names=True)


@pytest.mark.parametrize("local", BAD)
async def test_a_topic_with_such_a_name_is_not_made_by_call(world: AdminWorld, strict: Side, local: str) -> None:
    name = TopicName("persistent", "public", "default", local)
    local = quote(local)
    for path, body in ((f"{PLAIN}/{local}", None), (f"{PLAIN}/{local}/partitions", 2), (f"{PASSING}/{local}", None)):
        answer = await world.call(strict, "PUT", path, body)
        assert answer.status in (403, 412), (path, answer)
        assert name.local in answer.reason or "partition" in answer.reason
    assert strict.broker.topics == {}
    assert not await strict.broker.ledgers.exists(name.managed_ledger_name)


@pytest.mark.parametrize("local", GOOD)
async def test_a_topic_with_another_name_is_made(world: AdminWorld, strict: Side, local: str) -> None:
    assert (await world.call(strict, "PUT", f"{PLAIN}/{local}")).status == 204
    assert (await world.call(strict, "PUT", f"{PASSING}/{local}x")).status == 204


@pytest.mark.parametrize("local", BAD)
async def test_a_producer_does_not_make_a_topic_with_such_a_name(strict: Side, local: str) -> None:
    def produce() -> None:
        client = pulsar.Client(strict.broker.address.service_url)
        try:
            client.create_producer(f"persistent://public/default/{local}")
        finally:
            client.close()

    with pytest.raises(pulsar.PulsarException):
        await asyncio.to_thread(produce)
    assert strict.broker.topics == {}


async def test_partitions_of_a_topic_are_made_and_grow(world: AdminWorld, strict: Side) -> None:
    assert (await world.call(strict, "PUT", f"{PLAIN}/t/partitions", 2)).status == 204
    assert (await world.call(strict, "POST", f"{PLAIN}/t/partitions", 3)).status == 204
    client = await asyncio.to_thread(pulsar.Client, strict.broker.address.service_url)
    producer = await asyncio.to_thread(client.create_producer, "persistent://public/default/t")
    await asyncio.to_thread(producer.send, b"message")
    await asyncio.to_thread(client.close)
    assert (await world.call(strict, "PUT", f"{PLAIN}/t-partition-3")).status in (403, 412)


async def test_partitions_that_are_not_stored_are_made_when_they_are_used(world: AdminWorld, strict: Side) -> None:
    assert (await world.call(strict, "PUT", f"{PASSING}/t/partitions", 2)).status == 204
    for number in range(2):
        name = TopicName("non-persistent", "public", "default", "t").with_partition(number)
        await strict.broker.creation.check_name(name)
    with pytest.raises(NotAllowed, match="strictTopicNameEnabled"):
        await strict.broker.creation.check_name(name.base.with_partition(2))


async def test_topics_that_are_there_are_served_whatever_they_are_called(world: AdminWorld) -> None:
    before = await world.side()
    assert (await world.call(before, "PUT", f"{PLAIN}/a%20b")).status == 204
    await before.broker.opening.unload(TopicName("persistent", "public", "default", "a b"))
    await before.store.close()
    strict = await world.side(strict_topic_names=True)
    assert (await strict.ownership.locate(TopicName("persistent", "public", "default", "a b"), authoritative=True)).here
    opened = await strict.broker.topic_for_producer(TopicName("persistent", "public", "default", "a b"))
    assert not opened.is_closed
