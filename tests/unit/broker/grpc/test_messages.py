"""Messages through the gRPC door, alone and beside the official client."""

import asyncio
import time
from typing import Any

import pulsar
import pytest

import magnetar
from broker.grpc.service import GrpcServer
from broker.wire import pulsar_pb2 as wire
from magnetar.client.async_client import AsyncClient
from magnetar.client.errors import MessageRefused
from magnetar.client.values import Message, Outgoing
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.topics.metadata import KEY_BYTES_MAX, PROPERTIES_MAX
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import messages_of, parse_metadata
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.test_official_client import EARLIEST, receive
from tests.unit.broker.test_official_client import client as official


class NeverSleeps(LoopClock):
    """Timers only: nobody may look whether something has become so."""

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("it looks by the clock")


async def receive_all(consumer: Any, count: int) -> list[Message]:
    received: list[Message] = []
    while len(received) < count:
        batch = await consumer.receive_batch(1000, timeout_s=30)
        assert batch, f"only {len(received)} of {count} messages came"
        received += batch
    return received


async def test_what_is_sent_is_received_in_order_and_acknowledged(client: AsyncClient, world: BrokerInMemory) -> None:
    async with client.consumer("t", "s") as consumer:
        ids = await client.producer("t").send_many([b"m%d" % n for n in range(2500)])
        assert ids == sorted(set(ids))
        received = await receive_all(consumer, 2500)
        assert [one.payload for one in received] == [b"m%d" % n for n in range(2500)]
        assert [one.id for one in received] == ids
        consumer.ack(received)
        await consumer.flush()
    (topic,) = world.broker.topics.values()
    assert topic.subscriptions["s"].cursor.backlog() == 0
    assert world.ledger("t").ledgers.last_confirmed.entry_id < 50, "small messages share entries"


async def test_a_message_keeps_everything_it_was_given(client: AsyncClient) -> None:
    async with client.consumer("t", "s") as consumer:
        producer = client.producer("t")
        await producer.send(b"x", key="k", properties={"a": "1", "b": "2"}, event_time=1234, ordering_key=b"o")
        await producer.send_many([Outgoing(b"y", key="k", properties={"n": str(n)}) for n in range(3)])
        first = await consumer.receive(5)
        assert (first.payload, first.key, first.properties) == (b"x", "k", {"a": "1", "b": "2"})
        assert (first.event_time_ms, first.ordering_key) == (1234, b"o")
        following = [await consumer.receive(5) for _ in range(3)]
        assert [one.properties["n"] for one in following] == ["0", "1", "2"]
        assert {one.key for one in following} == {"k"}


async def test_several_producers_share_an_entry(client: AsyncClient, world: BrokerInMemory) -> None:
    producers = [client.producer("t", mix_keys=bool(n % 2)) for n in range(6)]
    await asyncio.gather(*(one.open() for one in producers))
    ids = await asyncio.gather(*(one.send(b"%d" % n) for n, one in enumerate(producers)))
    assert len(set(ids)) == 6
    assert len({(one.ledger_id, one.entry_id) for one in ids}) < 6


async def test_keys_do_not_share_entries_unless_mixed(client: AsyncClient, world: BrokerInMemory) -> None:
    messages = [Outgoing(b"%d" % n, key=f"k{n % 3}") for n in range(9)]
    ids = await client.producer("t").send_many(messages)
    assert len({one.entry_id for one in ids}) == 3
    ids = await client.producer("t", mix_keys=True).send_many(messages)
    assert len({one.entry_id for one in ids}) == 1


async def test_a_message_that_is_too_large_is_refused_and_the_others_are_stored(client: AsyncClient) -> None:
    producer = client.producer("t")
    large = asyncio.ensure_future(producer.send(b"x" * (5 * 1024 * 1024)))
    small = await producer.send(b"small")
    with pytest.raises(MessageRefused, match="maxMessageSize"):
        await large
    assert small.entry_id == 0


async def test_a_message_with_too_many_properties_or_too_long_a_key_is_refused_alone(client: AsyncClient) -> None:
    producer = client.producer("t")
    many = {f"key {number}": "value" for number in range(PROPERTIES_MAX + 1)}
    refused = [
        asyncio.ensure_future(producer.send(b"", properties=many)),
        asyncio.ensure_future(producer.send(b"", key="k" * (KEY_BYTES_MAX + 1))),
    ]
    small = await producer.send(b"small")
    for sending, words in zip(refused, ("more than 10000; give it fewer", "more than 65536"), strict=True):
        with pytest.raises(MessageRefused, match=words):
            await sending
    assert small.entry_id == 0
    many.popitem()
    assert (await producer.send(b"", properties=many, key="k" * KEY_BYTES_MAX)).entry_id == 1


async def test_official_clients_read_what_came_by_grpc(world: BrokerInMemory, client: AsyncClient) -> None:
    ids = await client.producer("t").send_many(
        [Outgoing(b"m%d" % n, key="k", properties={"n": str(n)}, event_time=1000 + n) for n in range(5)]
    )
    await client.producer("t").send(b"alone")

    def scenario() -> None:
        with official(world.url) as c:
            consumer = c.subscribe("t", "s", initial_position=EARLIEST)
            found = receive(consumer, 6)
            assert [one.data() for one in found] == [b"m%d" % n for n in range(5)] + [b"alone"]
            assert found[3].partition_key() == "k"
            assert found[3].properties() == {"n": "3"}
            assert found[3].event_timestamp() == 1003
            message_id = found[3].message_id()
            assert (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()) == (
                ids[3].ledger_id,
                ids[3].entry_id,
                ids[3].batch_index,
            )
            assert magnetar.MessageId.from_bytes(message_id.serialize()) == ids[3]
            assert pulsar.MessageId.deserialize(ids[3].to_bytes()) == message_id

    await world.run(scenario)


async def test_what_official_clients_send_is_read_by_grpc(world: BrokerInMemory, client: AsyncClient) -> None:
    def scenario() -> None:
        with official(world.url) as c:
            for compression in (pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4):
                producer = c.create_producer("t", compression_type=compression, batching_enabled=True)
                for n in range(10):
                    producer.send_async(b"m%d" % n, lambda *_: None, properties={"n": str(n)}, partition_key="k")
                producer.flush()

    await world.run(scenario)
    async with client.consumer("t", "s", from_earliest=True) as consumer:
        received = await receive_all(consumer, 20)
        assert [one.payload for one in received] == [b"m%d" % n for n in range(10)] * 2
        assert received[4].properties == {"n": "4"}
        assert received[4].key == "k"


async def test_a_named_producer_that_sends_again_is_stored_once(world: BrokerInMemory, client: AsyncClient) -> None:
    await world.set_policies("public/default", deduplicationEnabled=True)
    async with client.producer("t", name="p") as producer:
        await producer.send_many([b"a", b"b", b"c"], first_sequence_id=10)
    async with client.producer("t", name="p") as producer:
        assert producer.last_sequence_id == 12
        again = await producer.send_many([b"b", b"c", b"d"], first_sequence_id=11)
        assert [one.ledger_id for one in again[:2]] == [-1, -1]
        assert again[2].ledger_id >= 0
    payloads = []
    ledger = world.ledger("t")
    for entry in ledger.read(ledger.ledgers.first_position, 100, 1 << 20):  # type: ignore[union-attr]
        metadata, messages = messages_of(entry.data)
        assert metadata.producer_name == "p"
        payloads += [bytes(one.payload) for one in messages]
    assert payloads == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_name_waits_until_what_it_sent_over_the_binary_port_is_stored(
    world: BrokerInMemory, client: AsyncClient, is_given_up: bool
) -> None:
    await world.set_policies("public/default", deduplicationEnabled=True)
    raw = await RawClient.connect(int(world.url.rpartition(":")[2]))
    await raw.produce("t", producer_name="p", user_provided_producer_name=True)
    ledger = world.ledger("t")
    ledger.hold = True
    raw.publish(1, 0, 1)
    assert await raw.nothing_came()
    raw.close()
    topic = world.broker.topics[TopicName.parse("t")]
    while topic.producers:
        await asyncio.sleep(0.01)
    sending = asyncio.ensure_future(client.producer("t", name="p").send_many([b"0", b"1", b"2"], first_sequence_id=0))
    while not topic.producers:
        await asyncio.sleep(0.01)
    assert topic.is_storing_for("p")
    if is_given_up:
        sending.cancel()
        await client.close()
        while topic.producers:
            await asyncio.sleep(0.01)
    ledger.release()
    if is_given_up:
        return
    ids = await sending
    assert [one.ledger_id < 0 for one in ids] == [True, True, False]
    assert not topic.is_storing_for("p")
    assert ledger.ledgers.last_confirmed.entry_id == 2


@pytest.mark.parametrize("becomes_stored", [True, False])
async def test_a_name_on_the_binary_port_waits_until_what_it_sent_over_grpc_is_stored(
    world: BrokerInMemory, client: AsyncClient, becomes_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.set_policies("public/default", deduplicationEnabled=True)
    producer = client.producer("t", name="p")
    await producer.send_many([b"0"], first_sequence_id=0)
    topic = world.broker.topics[TopicName.parse("t")]
    ledger = world.ledger("t")
    ledger.hold = True
    sending = asyncio.ensure_future(producer.send_many([b"1", b"2", b"3"], first_sequence_id=1))
    while not ledger.pending_count:
        await asyncio.sleep(0.01)
    sending.cancel()
    await client._brokers.close()  # as if the process were gone
    client._open.clear()  # which its messages do not keep waiting
    while topic.producers:
        await asyncio.sleep(0.01)
    assert topic.is_storing_for("p")
    raw = await RawClient.connect(int(world.url.rpartition(":")[2]))
    asked: dict[str, Any] = {
        "topic": "t", "producer_id": 1, "request_id": 1, "producer_name": "p", "user_provided_producer_name": True,
    }  # fmt: skip
    if not becomes_stored:
        monkeypatch.setattr("broker.topic.publishing.producers.NAME_WAIT_MAX_S", 0.05)
        raw.send(wire.BaseCommand.PRODUCER, **asked)
        assert await raw.refused() == wire.ServiceNotReady  # which clients repeat
        assert not topic.producers
        ledger.release()
        return
    topic._producers._clock = NeverSleeps()
    raw.send(wire.BaseCommand.PRODUCER, **asked)
    assert await raw.nothing_came()
    assert not topic.producers
    ledger.release()
    success = (await raw.expect(wire.BaseCommand.PRODUCER_SUCCESS)).producer_success
    assert success.last_sequence_id == 3  # so that nobody sends a batch that begins below
    assert not topic.is_storing_for("p")


async def test_a_topic_closes_when_storage_has_answered(world: BrokerInMemory) -> None:
    """It is told, and does not look again and again."""
    raw = await RawClient.connect(int(world.url.rpartition(":")[2]))
    await raw.produce("t")
    ledger = world.ledger("t")
    ledger.hold = True
    raw.publish(1, 0, 1)
    while not ledger.pending_count:
        await asyncio.sleep(0.01)
    topic = world.broker.topics[TopicName.parse("t")]
    topic._clock = NeverSleeps()
    closing = asyncio.ensure_future(topic.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    ledger.release()
    async with asyncio.timeout(20):
        await closing
    assert (await raw.expect(wire.BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id == 0
    raw.close()


async def test_named_producers_have_entries_of_their_own(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.producer("t", name="a") as a, client.producer("t", name="b") as b:
        first, second = await asyncio.gather(a.send_many([b"1", b"2"]), b.send_many([b"3", b"4"]))
    assert {one.entry_id for one in first}.isdisjoint(one.entry_id for one in second)


async def test_a_delayed_message_is_an_entry_with_its_time(world: BrokerInMemory, client: AsyncClient) -> None:
    due_ms = int(time.time() * 1000) + 3_600_000
    async with client.consumer("t", "s", type="shared") as consumer:
        await client.producer("t").send(b"later", deliver_at=due_ms)
        await client.producer("t").send(b"now")
        assert (await consumer.receive(5)).payload == b"now"
        assert await consumer.receive_batch(1, timeout_s=0.1) == []
    entry = world.ledger("t").read(world.ledger("t").ledgers.first_position, 1, 1 << 20)[0]  # type: ignore[index]
    assert parse_metadata(entry.data).deliver_at_time == due_ms


async def test_the_blocking_client(world: BrokerInMemory, door: GrpcServer) -> None:
    def scenario() -> None:
        with (
            magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as c,
            c.consumer("t", "s", type="shared") as consumer,
        ):
            id_ = c.producer("t").send(b"one", key="k")
            ids = c.producer("t").send_many([b"%d" % n for n in range(50)])
            first = consumer.receive(5)
            assert (first.payload, first.id) == (b"one", id_)
            consumer.ack(first)
            received = []
            for message in consumer:
                consumer.ack(message)
                received.append(message)
                if len(received) == 50:
                    break
            assert [one.id for one in received] == ids
            consumer.flush()
            with c.reader("t") as reader:
                count = 0
                while reader.has_more():
                    reader.receive(5)
                    count += 1
                assert count == 51

    await world.run(scenario)
    (topic,) = world.broker.topics.values()
    assert topic.subscriptions["s"].cursor.backlog() == 0
    assert list(topic.subscriptions) == ["s"]
