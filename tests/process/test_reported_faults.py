"""What people reported of Pulsar and its clients, through the process; the rules have their tests in tests/unit."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pulsar
import pytest

from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar.inspect.broker_admin import AdminClient, AdminError
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata
from tests.support.processes import QUIET, Standalone, until
from tests.unit.broker.raw_client import RawClient

pytestmark = pytest.mark.process

YEAR_MS = 365 * 86_400_000

_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("reported")
    settings = folder / "settings.conf"
    settings.write_text(
        "brokerDeleteInactiveTopicsEnabled=true\nbrokerDeleteInactiveTopicsFrequencySeconds=1\n"
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=3600\n"
    )
    with Standalone(folder / "data", "--config", str(settings)) as made:
        yield made


@pytest.fixture
def admin(server: Standalone) -> AdminClient:
    return AdminClient([server.admin_url])


@pytest.fixture
def namespace(admin: AdminClient) -> str:
    made = f"public/reported-{next(_numbers)}"
    admin.call("PUT", f"/admin/v2/namespaces/{made}")
    return made


@pytest.fixture
def topic(admin: AdminClient, namespace: str) -> str:
    made = f"persistent://{namespace}/t"
    admin.create_topic(made, 0)  # and its bundle is owned: a raw client does not look it up
    return made


def backlog(admin: AdminClient, topic: str) -> int:
    stats = admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/stats")
    return int(stats["subscriptions"]["s"]["msgBacklog"])


def stored(admin: AdminClient, topic: str) -> int:
    return int(admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/internalStats")["entriesAddedCounter"])


def test_a_producer_that_waits_for_exclusive_access_gets_it_over_an_unload(
    server: Standalone, admin: AdminClient, namespace: str, topic: str
) -> None:
    exclusive, waits = pulsar.ProducerAccessMode.Exclusive, pulsar.ProducerAccessMode.WaitForExclusive
    got: list[pulsar.Producer] = []
    with closing(pulsar.Client(server.service_url, logger=QUIET)) as client:
        holder = client.create_producer(topic, access_mode=exclusive)

        def wait() -> None:
            got.append(client.create_producer(topic, access_mode=waits))

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        path = f"/admin/v2/{admin.path_of(topic)}/stats"
        until(lambda: admin.call("GET", path)["waitingPublishers"] == 1, "it waits")
        admin.call("PUT", f"/admin/v2/namespaces/{namespace}/unload")
        holder.send(b"of the holder")
        assert not got
        holder.close()
        waiting.join(30)
        assert got
        got[0].send(b"of the one who waited")


async def test_messages_that_are_dated_ahead_expire(
    server: Standalone, admin: AdminClient, namespace: str, topic: str
) -> None:
    admin.call("PUT", f"/admin/v2/{admin.path_of(topic)}/subscription/s")
    client = await RawClient.connect(server.port)
    await client.produce(topic)
    for number in range(10):
        metadata = MessageMetadata(
            producer_name="p", sequence_id=number, publish_time=int(time.time() * 1000) + YEAR_MS
        )
        client.publish(1, number, data=encode_entry(metadata, b"x"))
        await client.expect(BaseCommand.SEND_RECEIPT)
    client.close()
    admin.call("PUT", f"/admin/v2/namespaces/{namespace}/unload")  # which closes the ledger

    def is_expired() -> bool:
        admin.call("POST", f"/admin/v2/{admin.path_of(topic)}/subscription/s/expireMessages/1")
        return backlog(admin, topic) == 0

    await asyncio.to_thread(until, is_expired, "they expire")


async def test_a_publish_rate_holds_for_what_comes_at_once(
    server: Standalone, admin: AdminClient, namespace: str, topic: str
) -> None:
    rate = {"publishThrottlingRateInMsg": 20, "publishThrottlingRateInByte": -1}
    admin.call("POST", f"/admin/v2/namespaces/{namespace}/publishRate", rate)
    client = await RawClient.connect(server.port)
    await client.produce(topic)
    began_s = time.monotonic()
    client.publish(1, *range(3_000))
    for _ in range(60):
        await client.expect(BaseCommand.SEND_RECEIPT)
    in_all = await asyncio.to_thread(stored, admin, topic)
    # Two seconds of it at once at most, whatever the time of the test is.
    assert 60 <= in_all <= 40 + 20 * (time.monotonic() - began_s + 1)
    client.close()


async def test_a_topic_goes_from_under_a_consumer_that_has_caught_up(
    server: Standalone, admin: AdminClient, namespace: str, topic: str
) -> None:
    policy = {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    }
    admin.set_retention(namespace, minutes=0, megabytes=0)
    admin.call("POST", f"/admin/v2/namespaces/{namespace}/inactiveTopicPolicies", policy)
    client = await RawClient.connect(server.port)
    await client.subscribe(topic)
    assert (await client.answer()).type == BaseCommand.CLOSE_CONSUMER
    await asyncio.to_thread(until, lambda: admin.call("GET", f"/admin/v2/persistent/{namespace}") == [], "it is gone")
    client.close()


def test_no_partition_is_made_that_its_topic_does_not_have(admin: AdminClient, namespace: str) -> None:
    topic = f"persistent://{namespace}/t"
    admin.create_topic(topic, 3)
    for name in (f"{topic}-partition-7", f"persistent://{namespace}/none-partition-0"):
        with pytest.raises(AdminError) as refused:
            admin.call("PUT", f"/admin/v2/{admin.path_of(name)}")
        assert refused.value.status == 412
    listed = admin.call("GET", f"/admin/v2/persistent/{namespace}")
    assert sorted(listed) == [f"{topic}-partition-{number}" for number in range(3)]


async def test_every_client_is_told_the_end_of_a_terminated_topic(
    server: Standalone, admin: AdminClient, topic: str
) -> None:
    client = await RawClient.connect(server.port)
    await client.subscribe(topic)
    await asyncio.to_thread(admin.call, "POST", f"/admin/v2/{admin.path_of(topic)}/terminate")
    assert (await client.expect(BaseCommand.REACHED_END_OF_TOPIC)).reachedEndOfTopic.consumer_id == 1
    assert await client.nothing_came()
    client.close()


@pytest.mark.parametrize("kind", wire.CommandSubscribe.SubType.keys())
async def test_who_subscribes_once_more_gets_again_what_it_has(server: Standalone, topic: str, kind: str) -> None:
    client = await RawClient.connect(server.port)
    sub_type = wire.CommandSubscribe.SubType.Value(kind)
    await client.subscribe(topic, subType=sub_type)
    if sub_type == wire.CommandSubscribe.Failover:
        await client.expect(BaseCommand.ACTIVE_CONSUMER_CHANGE)
    await client.produce(topic)
    client.publish(1, *range(20))
    ids: list[MessageIdData] = []
    while len(ids) < 20:
        answer = await client.answer()
        if answer.type == BaseCommand.MESSAGE:
            ids.append(answer.message.message_id)
    client.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=ids[:5])
    client.send(BaseCommand.SUBSCRIBE, topic=topic, consumer_id=1, request_id=9, subscription="s", subType=sub_type)
    while (await client.answer()).type != BaseCommand.SUCCESS:
        pass
    client.send(BaseCommand.FLOW, consumer_id=1, messagePermits=100)
    again: list[int] = []
    while len(again) < 15:
        answer = await client.answer()
        if answer.type == BaseCommand.MESSAGE:
            again.append(answer.message.message_id.entryId)
    assert again == [one.entryId for one in ids[5:]]
    client.close()
