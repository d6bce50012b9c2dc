"""What people reported of Pulsar and its clients, through the process; the rules have their tests in tests/unit."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count

import pulsar
import pytest

from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar.client.async_client import AsyncClient
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


def test_a_topic_whose_name_has_the_end_of_a_line_is_not_made(
    server: Standalone, admin: AdminClient, namespace: str
) -> None:
    with closing(pulsar.Client(server.service_url, logger=QUIET)) as client:
        for make in (client.create_producer, lambda topic: client.subscribe(topic, "s")):
            with pytest.raises(pulsar.NotAllowedError):
                make(f"persistent://{namespace}/a\nb")
    assert admin.topics(namespace) == []


@pytest.mark.parametrize("local", ["{x}", "a%2Fb", "ü"])
def test_a_topic_with_an_odd_name_is_used_by_its_clients_and_deleted_over_http(
    server: Standalone, admin: AdminClient, namespace: str, local: str
) -> None:
    topic = f"persistent://{namespace}/{local}"
    with closing(pulsar.Client(server.service_url, logger=QUIET)) as client:
        consumer = client.subscribe(topic, local)
        client.create_producer(topic).send(b"0")
        consumer.acknowledge(consumer.receive(10_000))
        for name in ("..", "__compaction", "x" * 1_025):
            with pytest.raises(pulsar.PulsarException):
                client.subscribe(topic, name)
    assert admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/subscriptions") == [local]
    assert admin.topics(namespace) == [topic]
    admin.delete_topic(topic, force=True)
    assert admin.topics(namespace) == []


def test_no_more_consumers_than_the_limit_come_at_once(
    server: Standalone, admin: AdminClient, namespace: str, topic: str
) -> None:
    admin.call("POST", f"/admin/v2/namespaces/{namespace}/maxConsumersPerTopic", 4)
    with closing(pulsar.Client(server.service_url, logger=QUIET)) as client, ThreadPoolExecutor(20) as threads:
        coming = [threads.submit(client.subscribe, topic, f"s{number}") for number in range(20)]
        refused = [one.exception() for one in coming]
    assert len([one for one in refused if one is None]) == 4
    assert {type(one) for one in refused} == {type(None), pulsar.ConsumerBusy}


@pytest.mark.parametrize("claimed", [0, 2**63, 2**64 - 1, YEAR_MS * 1_000])
async def test_what_claims_an_odd_time_comes_over_the_topic_api(server: Standalone, topic: str, claimed: int) -> None:
    client = await RawClient.connect(server.port)
    await client.produce(topic)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=claimed, event_time=claimed)
    client.publish(1, 0, data=encode_entry(metadata, b"odd"))
    await client.expect(BaseCommand.SEND_RECEIPT)
    async with (
        AsyncClient(server.grpc_address) as readers,
        await readers.reader(topic, start="earliest") as reader,
    ):
        assert (await reader.receive(timeout_s=10)).payload == b"odd"
    client.close()


async def test_who_waits_for_an_acknowledgement_while_its_topic_moves_is_answered(
    server: Standalone, admin: AdminClient, topic: str
) -> None:
    client = await RawClient.connect(server.port)
    await client.subscribe(topic)
    await asyncio.to_thread(admin.call, "PUT", f"/admin/v2/{admin.path_of(topic)}/unload")
    await client.expect(BaseCommand.CLOSE_CONSUMER)
    ids = [MessageIdData(ledgerId=1, entryId=0)]
    client.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=ids, request_id=8)
    assert (await client.expect(BaseCommand.ACK_RESPONSE)).ackResponse.HasField("error")
    client.close()
