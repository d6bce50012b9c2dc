"""Writes that an operator has stopped in a namespace: producers leave, others are refused, and go on afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from broker.topic.limits import limits_of
from broker.wire import pulsar_pb2 as wire
from magnetar.client.async_client import AsyncClient
from magnetar.client.errors import TopicError
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door
from tests.unit.broker.raw_client import RawClient

__all__ = ["client", "door", "world"]

_T = wire.BaseCommand
TOPIC = TopicName.parse("persistent://public/default/t")
PROPERTY = "/admin/v2/namespaces/public/default/property/magnetar.writes"
STOPPED = {"properties": {"magnetar.writes": "stopped"}}


@pytest.fixture
async def admin() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def test_producers_are_disconnected_and_refused_until_writes_are_allowed(admin: AdminWorld) -> None:
    side = await admin.side()
    assert (await admin.call(side, "PUT", "/admin/v2/persistent/public/default/t")).status == 204
    client = await RawClient.connect(side.broker.port)
    await client.produce(TOPIC.full)
    assert (await admin.call(side, "PUT", f"{PROPERTY}/stopped")).status == 204
    await client.expect(_T.CLOSE_PRODUCER)
    client.send(_T.PRODUCER, topic=TOPIC.full, producer_id=2, request_id=2)
    assert await client.refused() == wire.ProducerBlockedQuotaExceededError
    await client.subscribe(TOPIC.full)
    policies = side.broker.topics[TOPIC].policies
    assert policies.stops_writes
    assert not limits_of(side.broker.config, policies, is_system=True).stops_writes
    assert (await admin.call(side, "PUT", f"{PROPERTY}/allowed")).status == 204
    await eventually(lambda: not side.broker.topics[TOPIC].limits.stops_writes)
    await client.produce(TOPIC.full, 4)
    assert (await admin.call(side, "PUT", f"{PROPERTY}/stopped")).status == 204
    await client.expect(_T.CLOSE_PRODUCER)
    assert (await admin.call(side, "DELETE", PROPERTY)).status == 200
    await eventually(lambda: not side.broker.topics[TOPIC].limits.stops_writes)
    await client.produce(TOPIC.full, 5)
    client.close()


async def test_what_a_program_sends_meanwhile_is_stored_afterwards(world: BrokerInMemory, client: AsyncClient) -> None:
    producer = await client.producer(TOPIC.full)
    await producer.send(b"before")
    await world.set_policies("public/default", **STOPPED)
    await eventually(lambda: not world.broker.topics[TOPIC].producers)
    sending = asyncio.create_task(producer.send(b"meanwhile"))
    done, _ = await asyncio.wait([sending], timeout=0.2)
    assert not done
    await world.set_policies("public/default")
    await sending
    consumer = await client.consumer(TOPIC.full, "s", from_earliest=True)
    assert [message.value for message in await consumer.receive_batch(2, timeout_s=30)] == [b"before", b"meanwhile"]


@pytest.mark.parametrize(("policy", "waits"), [("producer_request_hold", True), ("producer_exception", False)])
async def test_a_quota_that_holds_producers_holds_those_of_the_topic_api(
    world: BrokerInMemory, client: AsyncClient, policy: str, waits: bool
) -> None:
    consumer = await client.consumer(TOPIC.full, "s", from_earliest=True)
    await client.producer(TOPIC.full).send(bytes(100))
    quota = {"destination_storage": {"limitSize": 50, "limitTime": -1, "policy": policy}}
    await world.set_policies("public/default", backlog_quota_map=quota)
    topic = world.broker.topics[TOPIC]
    await eventually(lambda: topic.limits.storage_quota.limit_bytes == 50)
    await topic.keep_quotas()
    sending = asyncio.create_task(client.producer(TOPIC.full).send(b"more"))
    done, _ = await asyncio.wait([sending], timeout=0.2)
    assert bool(done) is not waits
    if not waits:
        with pytest.raises(TopicError, match="let its consumers catch up, or raise the quota"):
            await sending
    await consumer.ack(await consumer.receive(timeout_s=30))
    if waits:
        await sending
