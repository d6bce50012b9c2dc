"""Acks, nacks, seeks, permits, readers and Key_Shared through the gRPC door."""

import asyncio
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pulsar
import pytest

import magnetar
from broker.grpc.consume_call import ConsumeCall, _portions
from broker.grpc.partial import PartialBatches
from broker.topic.reading.subscription import Subscription
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar.client.async_client import AsyncClient
from magnetar.client.async_consumer import AsyncConsumer
from magnetar.client.brokers import Brokers
from magnetar.client.errors import TopicError, TopicInUse, UnreadableMessage
from magnetar.client.values import Message, Outgoing, partition_of_key
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.message_id import EARLIEST, MessageId
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import StorageUnavailable
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import ZLIB, MessageMetadata, SingleMessageMetadata
from tests.support.batches import plain_batch
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.grpc.conftest import open_grpc
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.test_official_client import client as official
from tests.unit.broker.test_tracing import PARENT, Noted, trace


def subscription(world: BrokerInMemory, topic: str = "t", name: str = "s") -> Subscription:
    return world.broker.topics[TopicName.parse(topic)].subscriptions[name]


async def take(consumer: AsyncConsumer, count: int) -> list[Message]:
    return [await consumer.receive(5) for _ in range(count)]


async def nothing_more(consumer: AsyncConsumer) -> bool:
    return await consumer.receive_batch(1, timeout_s=0.05) == []


def texts(messages: list[Message]) -> list[str]:
    return [one.payload.decode() for one in messages]


async def test_of_a_traced_message_the_dispatch_is_not_recorded(world: BrokerInMemory, client: AsyncClient) -> None:
    noted = Noted()
    trace(world, noted)
    async with client.consumer("t", "s") as consumer:
        await client.producer("t").send(b"x", properties={"traceparent": PARENT})
        consumer.ack(*await take(consumer, 1))
        await consumer.seek("earliest")
        await take(consumer, 1)
    assert [span.name for span in noted.spans] == ["publish", "store"]


@pytest.mark.parametrize("index_acks", [True, False])
@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_a_batch_is_done_when_all_its_messages_are(
    world: BrokerInMemory, index_acks: bool, kind: magnetar.SubscriptionType
) -> None:
    await world.restart(batch_index_acks=index_acks)
    server = await open_grpc(world)
    async with AsyncClient(f"127.0.0.1:{server.port}", operation_timeout_s=30) as client:
        async with client.consumer("t", "s", type=kind) as consumer:
            await client.producer("t").send_many([b"0", b"1", b"2"])
            messages = await take(consumer, 3)
            consumer.ack([messages[2], messages[0]])
            await consumer.flush()
            assert subscription(world).cursor.backlog() == 1
        async with client.consumer("t", "s", type=kind) as consumer:
            expected = ["1"] if index_acks else ["0", "1", "2"]
            again = await take(consumer, len(expected))
            assert texts(again) == expected
            consumer.ack(again)
            await consumer.flush()
            assert subscription(world).cursor.backlog() == 0
    await server.stop()


async def test_a_cumulative_ack_takes_all_before(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.consumer("t", "s") as consumer:
        await client.producer("t").send_many([b"0", b"1"])
        await client.producer("t").send_many([b"2", b"3", b"4"])
        messages = await take(consumer, 5)
        await consumer.ack_cumulative(messages[3])
    async with client.consumer("t", "s") as consumer:
        (last,) = await take(consumer, 1)
        assert last.payload == b"4"
        await consumer.ack_cumulative(last)
        assert subscription(world).cursor.backlog() == 0
    async with client.consumer("t", "x", type="shared", from_earliest=True) as consumer:
        (first,) = await take(consumer, 1)
        with pytest.raises(TopicError, match="EXCLUSIVE or FAILOVER"):
            await consumer.ack_cumulative(first)


async def test_a_null_value_in_a_batch_without_sequence_ids_stays_one(
    world: BrokerInMemory, client: AsyncClient
) -> None:
    """Its metadata are as long as those of a plain message."""
    singles = [SingleMessageMetadata(payload_size=1), SingleMessageMetadata(payload_size=0, null_value=True)]
    batch = b"".join(
        len(head).to_bytes(4, "big") + head + b"x" * one.payload_size
        for one, head in ((one, one.SerializeToString()) for one in singles)
    )
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
    async with client.consumer("t", "s") as consumer:
        raw = await RawClient.connect(int(world.url.rpartition(":")[2]))
        await raw.produce("t")
        raw.publish(1, 0, data=encode_entry(metadata, batch))
        received = await take(consumer, 2)
        raw.close()
    assert [(one.payload, one.is_null) for one in received] == [(b"x", False), (b"", True)]


async def test_acks_that_cannot_be_are_refused_and_the_call_goes_on(world: BrokerInMemory, client: AsyncClient) -> None:
    def request(index: int, size: int, entry_id: int = 0, **more: Any) -> api.ConsumeRequest:
        id_ = api.MessageId(ledger_id=ledger, entry_id=entry_id, batch_index=index, batch_size=size)
        return api.ConsumeRequest(acks=[id_], **more)

    async with client.consumer("t", "s", type="shared") as consumer:
        ledger = (await client.producer("t").send_many([b"0", b"1", b"2"]))[0].ledger_id
        messages = await take(consumer, 3)
        consumer.ack(messages[0])
        await consumer.flush()
        (attached,) = subscription(world).consumers
        call = attached.sink
        assert isinstance(call, ConsumeCall)
        await call.handle(request(2**31 - 1, 3))
        with pytest.raises(TopicError, match="do not go together"):
            await consumer.flush()
        await consumer.flush()
        call._partial = PartialBatches(bytes_max=1_000)
        for _ in range(5):
            await client.producer("t").send_many([b"a", b"b"])
        for number in range(4):
            await call.handle(request(0, 2, number + 1))
        await call.handle(request(0, 2, 5))
        with pytest.raises(TopicError, match="acknowledged in part"):
            await consumer.flush()
        await call.handle(request(0, 2, 5, request_id=7))
        (answer,) = [item for _, item in call._out if isinstance(item, api.ConsumeResponse)]
        assert (answer.done, "acknowledged in part" in answer.error) == (7, True)


async def test_many_acks_of_one_request_are_applied_in_turns(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.grpc.consume_call.IDS_PER_TURN", 2)
    async with client.consumer("t", "s", type="shared") as consumer:
        ids = [await client.producer("t").send(b"%d" % number) for number in range(5)]
        await take(consumer, 5)
        (attached,) = subscription(world).consumers
        call = attached.sink
        assert isinstance(call, ConsumeCall)
        acks = [api.MessageId(ledger_id=one.ledger_id, entry_id=one.entry_id) for one in ids]
        handling = asyncio.ensure_future(call.handle(api.ConsumeRequest(acks=acks)))
        backlogs = []
        while not handling.done():
            await asyncio.sleep(0)
            backlogs.append(subscription(world).cursor.backlog())
        assert list(dict.fromkeys(backlogs)) == [3, 1, 0]


def test_of_large_batches_fewer_acks_are_applied_in_a_turn() -> None:
    """A million messages are 15,000 words, made of 20 bytes that a client sends."""
    large = [(api.MessageId(entry_id=at, batch_index=0, batch_size=1_000_000), None) for at in range(20)]
    assert [len(turn) for turn in _portions(large)] == [6, 6, 6, 2]
    same = [(api.MessageId(batch_index=at, batch_size=1_000_000), None) for at in range(3_000)]
    assert [len(turn) for turn in _portions(same)] == [1_667, 1_333]
    small = [(api.MessageId(entry_id=at, batch_index=0, batch_size=1_000), None) for at in range(4_001)]
    assert [len(turn) for turn in _portions(small)] == [2_000, 2_000, 1]
    for size in (-1, 2**31 - 1):
        assert len(list(_portions([(api.MessageId(batch_size=size), None)]))) == 1


async def test_a_frame_that_its_client_has_not_read_counts_in_the_broker(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, take_frame = list[int](), ConsumeCall.take
    reads = world.broker.reads

    async def noting(call: ConsumeCall) -> Any:
        frame = await take_frame(call)
        if frame is not None and frame.deliveries:
            counted.append(reads.used_bytes)
        return frame

    monkeypatch.setattr(ConsumeCall, "take", noting)
    async with client.consumer("t", "s") as consumer:
        for _ in range(2):
            await client.producer("t").send(bytes(300_000))
            await consumer.receive(5)
            await eventually(lambda: not reads.used_bytes)
    assert all(size_bytes >= 300_000 for size_bytes in counted)
    assert counted


async def test_a_nack_brings_a_shared_message_again(client: AsyncClient) -> None:
    async with client.consumer("t", "s", type="shared") as consumer:
        for n in range(3):
            await client.producer("t").send(b"%d" % n)
        messages = await take(consumer, 3)
        consumer.ack([messages[0], messages[2]])
        await consumer.nack(messages[1], delay_s=0.02)
        (again,) = await take(consumer, 1)
        assert (again.payload, again.redelivery_count) == (b"1", 1)
        assert await nothing_more(consumer)


async def test_a_nack_keeps_the_order_of_an_exclusive_subscription(client: AsyncClient) -> None:
    async with client.consumer("t", "s", queue_size=4) as consumer:
        for n in range(6):
            await client.producer("t").send(b"%d" % n)
        messages = await take(consumer, 3)
        consumer.ack(messages[0])
        await consumer.nack(messages[1], delay_s=0)
        assert texts(await take(consumer, 5)) == ["1", "2", "3", "4", "5"]
        assert await nothing_more(consumer)


async def test_seeks_by_id_time_and_ends(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.consumer("t", "s") as consumer:
        ids = [await client.producer("t").send(b"first")]
        ids += await client.producer("t").send_many([b"0", b"1", b"2"])
        await asyncio.sleep(0.02)
        await client.producer("t").send(b"last")
        messages = await take(consumer, 5)
        await consumer.seek(ids[2])
        assert texts(await take(consumer, 3)) == ["1", "2", "last"]
        await consumer.seek("earliest")
        assert texts(await take(consumer, 5)) == ["first", "0", "1", "2", "last"]
        await consumer.seek(messages[4].publish_time_ms)
        assert texts(await take(consumer, 1)) == ["last"]
        await consumer.seek("latest")
        assert await nothing_more(consumer)
        await client.producer("t").send(b"new")
        assert texts(await take(consumer, 1)) == ["new"]


async def test_readers_begin_where_they_are_told(world: BrokerInMemory, client: AsyncClient) -> None:
    ids = await client.producer("t").send_many([b"0", b"1", b"2"])
    ids.append(await client.producer("t").send(b"3"))

    async def read(**where: Any) -> list[str]:
        async with client.reader("t", **where) as reader:
            found = []
            while await reader.has_more():
                found.append((await reader.receive(5)).payload.decode())
            assert await nothing_more(reader)
            return found

    every = ["0", "1", "2", "3"]
    expected: list[tuple[dict[str, Any], list[str]]] = [
        ({}, every),
        ({"start": "latest"}, []),
        ({"start": ids[1]}, ["2", "3"]),
        ({"start": ids[1], "inclusive": True}, ["1", "2", "3"]),
        ({"start": ids[2]}, ["3"]),
        ({"start": ids[3]}, []),
        ({"start": 1}, every),
        ({"start": int(time.time() * 1000) + 1000}, []),
        ({"start": datetime.now(UTC) - timedelta(hours=1)}, every),
    ]
    found = await asyncio.gather(*(read(**where) for where, _ in expected))
    assert found == [texts_ for _, texts_ in expected]
    assert not world.broker.topics[TopicName.parse("t")].subscriptions


async def test_a_reader_of_an_empty_topic_has_nothing_more(client: AsyncClient) -> None:
    async with client.reader("t") as reader:
        assert not await reader.has_more()
        await client.producer("t").send(b"x")
        assert await reader.has_more()


async def test_a_slow_consumer_is_sent_no_more_than_its_permits(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.consumer("t", "s", queue_size=10) as consumer:
        for n in range(50):
            await client.producer("t").send(b"%d" % n)
        await asyncio.sleep(0.05)
        (attached,) = subscription(world).consumers
        assert attached.messages_out == 10
        assert texts(await take(consumer, 50)) == [str(n) for n in range(50)]


async def test_a_consumer_that_does_not_read_is_not_sent_megabytes(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.consumer("t", "s", queue_size=1000) as consumer:
        for stream in consumer._streams.values():
            stream._queue.put = lambda *_: None
        for _ in range(60):
            await client.producer("t").send(b"x" * 200_000)
        (attached,) = subscription(world).consumers
        assert isinstance(attached.sink, ConsumeCall)
        assert attached.sink._out_bytes <= 3 * 1024 * 1024


async def test_an_exclusive_subscription_that_is_taken_says_so(client: AsyncClient) -> None:
    async with client.consumer("t", "s"):
        with pytest.raises(TopicInUse, match=r"Exclusive consumer is already connected.*both use the type Shared or"):
            await client.consumer("t", "s").open()


async def test_the_last_consumer_can_remove_the_subscription(world: BrokerInMemory, client: AsyncClient) -> None:
    consumer = await client.consumer("t", "s", type="shared").open()
    other = await client.consumer("t", "s", type="shared").open()
    with pytest.raises(TopicError, match="shared consumer attempting to unsubscribe"):
        await consumer.unsubscribe()
    await other.close()
    await client.producer("t").send(b"x")
    assert (await consumer.receive(5)).payload == b"x"
    await consumer.unsubscribe()
    await asyncio.sleep(0.1)
    assert not world.broker.topics[TopicName.parse("t")].subscriptions


async def test_a_consumer_whose_subscription_could_not_be_removed_comes_back(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await client.consumer("t", "s").open()
    with monkeypatch.context() as patched:

        async def refuse(name: str) -> None:
            raise StorageUnavailable("the store is away")

        patched.setattr(world.broker.topics[TopicName.parse("t")].ledger, "delete_cursor", refuse)
        with pytest.raises(TopicError, match="the store is away"):
            await consumer.unsubscribe()
    await client.producer("t").send(b"x")
    assert (await consumer.receive(5)).payload == b"x"


async def test_key_shared_on_both_doors_keeps_keys_in_order(world: BrokerInMemory, client: AsyncClient) -> None:
    keys = [f"k{n}" for n in range(8)]
    async with (
        client.consumer("t", "s", type="key_shared", name="one") as one,
        client.consumer("t", "s", type="key_shared", name="two") as two,
    ):
        for round_ in range(5):
            await client.producer("t").send_many([Outgoing(b"%d" % round_, key=key) for key in keys])
        owner: dict[str, str] = {}
        seen: dict[str, list[str]] = {}
        count = 0
        while count < 40:
            for consumer in (one, two):
                for message in await consumer.receive_batch(100, timeout_s=0.05):
                    assert message.key is not None
                    assert owner.setdefault(message.key, "one" if consumer is one else "two") == (
                        "one" if consumer is one else "two"
                    )
                    seen.setdefault(message.key, []).append(message.payload.decode())
                    consumer.ack(message)
                    count += 1
        assert seen == {key: ["0", "1", "2", "3", "4"] for key in keys}
        assert len(set(owner.values())) == 2


async def test_sticky_ranges_share_out_the_hashes(client: AsyncClient) -> None:
    async with (
        client.consumer("t", "s", type="key_shared", sticky_ranges=[(0, 32767)]) as low,
        client.consumer("t", "s", type="key_shared", sticky_ranges=[(32768, 65535)]) as high,
    ):
        await client.producer("t").send_many([Outgoing(b"x", key=f"k{n}") for n in range(40)])
        first = await low.receive_batch(100, timeout_s=30)
        second = await high.receive_batch(100, timeout_s=30)
        assert first
        assert second
        with pytest.raises(TopicError, match="conflict"):
            await client.consumer("t", "s", type="key_shared", sticky_ranges=[(5, 6)]).open()


async def test_an_official_and_a_grpc_consumer_share_a_subscription(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.consumer("t", "s", type="shared", queue_size=5) as consumer:
        ours, theirs, has_all = list[str](), list[str](), threading.Event()

        def scenario() -> None:
            with official(world.url) as c:
                other = c.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=100)
                producer = c.create_producer("t")
                for n in range(40):
                    producer.send(b"%d" % n)
                while not has_all.is_set():
                    with suppress(pulsar.Timeout):
                        message = other.receive(20)
                        other.acknowledge(message)
                        theirs.append(message.data().decode())

        running = asyncio.ensure_future(world.run(scenario))
        while len(ours) + len(theirs) < 40 and not running.done():
            batch = await consumer.receive_batch(100, timeout_s=0.02)
            consumer.ack(batch)
            ours += texts(batch)
        has_all.set()
        await running
        assert ours
        assert theirs
        assert sorted(ours + theirs, key=int) == [str(n) for n in range(40)]


async def test_what_cannot_be_read_here_says_why_and_can_be_skipped(world: BrokerInMemory, client: AsyncClient) -> None:
    def scenario() -> None:
        with official(world.url) as c:
            producer = c.create_producer("t", batching_enabled=False, chunking_enabled=True)
            producer.send(b"x" * (6 * 1024 * 1024))

    async with client.consumer("t", "s") as consumer:
        await world.run(scenario)
        with pytest.raises(UnreadableMessage, match="chunk") as caught:
            await consumer.receive(5)
        assert isinstance(caught.value.message, Message)
        consumer.ack(caught.value.message)


def batch_entry(payload: bytes, count: int, **fields: Any) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count, **fields)
    return encode_entry(metadata, payload)


async def publish_raw(world: BrokerInMemory, *entries: bytes) -> None:
    """Entries as a producer may make them, which says of itself that each is one message."""
    raw = await RawClient.connect(int(world.url.rpartition(":")[2]))
    await raw.produce("t")
    for number, data in enumerate(entries):
        raw.publish(1, number, data=data)
        await raw.expect(BaseCommand.SEND_RECEIPT)
    raw.close()


@pytest.mark.parametrize(("limit", "most"), [("DELIVERY_MESSAGES_MAX", 100), ("DELIVERY_BYTES_MAX", 100 * (10 + 24))])
async def test_a_large_batch_goes_out_in_pieces(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    pieces: list[int] = []
    take_frame = ConsumeCall.take

    async def noting(call: ConsumeCall) -> Any:
        frame = await take_frame(call)
        pieces.extend(len(one.messages) for one in (frame.deliveries if frame is not None else ()))
        return frame

    monkeypatch.setattr(ConsumeCall, "take", noting)
    monkeypatch.setattr(f"broker.grpc.deliveries.{limit}", most)
    monkeypatch.setattr("broker.grpc.consume_call.FRAME_BYTES", 1_000)
    monkeypatch.setattr("broker.grpc.consume_call.INLINE_BYTES_MAX", 1_000)
    batch = plain_batch(1_050, b"0123456789")
    entry = batch_entry(zlib.compress(batch), 1_050, compression=ZLIB, uncompressed_size=len(batch))
    async with client.consumer("t", "s", queue_size=2_000) as consumer:
        await publish_raw(world, entry)
        await client.producer("t").send(b"next")
        messages = await take(consumer, 1_051)
        assert [one.id.batch_index for one in messages] == [*range(1_050), -1]
        assert {one.id.batch_size for one in messages[:-1]} == {1_050}
        (attached,) = subscription(world).consumers
        assert attached.messages_out == 1_051
        assert pieces == [100] * 10 + [50, 1]
        consumer.ack(messages[1_049:])
        await consumer.nack(messages[0], delay_s=0)
        again = await take(consumer, 1_049)
        assert [one.id.batch_index for one in again] == [*range(1_049)]
        consumer.ack(again)
        await consumer.flush()
        assert subscription(world).cursor.backlog() == 0


async def test_of_a_batch_that_is_acknowledged_but_for_its_end_the_end_comes(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.grpc.deliveries.LOOKED_AT_MAX", 10)
    async with client.consumer("t", "s", type="shared", queue_size=2_000) as consumer:
        await publish_raw(world, batch_entry(plain_batch(105, b"x"), 105))
        messages = await take(consumer, 105)
        consumer.ack(messages[:-1])
        await consumer.flush()
        await consumer.nack(messages[-1], delay_s=0)
        (again,) = await take(consumer, 1)
        assert again.id.batch_index == 104


@pytest.mark.parametrize("name", ["__compaction", "pulsar.dedup", "pulsar.repl.other"])
async def test_the_brokers_own_cursors_are_no_subscriptions(client: AsyncClient, name: str) -> None:
    for kind in ("exclusive", "shared"):
        with pytest.raises(TopicError, match="reserved subscription name"):
            await client.consumer("t", name, type=kind).open()


async def test_entries_that_cannot_be_unpacked_cost_one_message_and_name_the_entry(
    world: BrokerInMemory, client: AsyncClient
) -> None:
    batch = plain_batch(100, b"x")
    packed = zlib.compress(batch)
    limit = 4 * world.broker.config.max_message_bytes
    async with client.consumer("t", "s", queue_size=10) as consumer:
        await publish_raw(
            world,
            batch_entry(b"x", 2**31 - 1),
            batch_entry(packed, 100, compression=ZLIB, uncompressed_size=len(batch) - 1),
            batch_entry(packed, 100, compression=ZLIB, uncompressed_size=limit + 1),
            batch_entry(plain_batch(2) + b"\xff" * 12, 3),
        )
        await client.producer("t").send(b"next")
        for entry_id, words in enumerate(
            ("at most 1000000", f"its metadata say {len(batch) - 1}", f"limit of {limit} .maxUncompressedEntrySize")
        ):
            with pytest.raises(UnreadableMessage, match=f"t: .*{entry_id}.*: .*{words}") as caught:
                await consumer.receive(5)
            assert isinstance(caught.value.message, Message)
            consumer.ack(caught.value.message)
        consumer.ack(await take(consumer, 2))
        with pytest.raises(UnreadableMessage, match="message 2 of a batch of 3") as caught:
            await consumer.receive(5)
        assert isinstance(caught.value.message, Message)
        consumer.ack(caught.value.message)
        (last,) = await take(consumer, 1)
        assert last.payload == b"next"
        consumer.ack(last)
        await consumer.flush()
        assert subscription(world).cursor.backlog() == 0
        (attached,) = subscription(world).consumers
        await eventually(lambda: 5 < attached.permits <= 10)  # the client grants again what half of its queue took


async def test_partitions_are_one_topic(world: BrokerInMemory, client: AsyncClient) -> None:
    await client.topics.create("p", partitions=3)
    assert await client.topics.partitions("p") == 3
    async with client.consumer("p", "s") as consumer:
        messages = [Outgoing(b"%d" % n, key=f"k{n}") for n in range(30)]
        producer = client.producer("p")
        ids = await producer.send_many(messages)
        await producer.close()  # or it makes a partition again that is deleted
        assert {one.partition for one in ids} == {0, 1, 2}
        received = await take(consumer, 30)
        assert sorted(texts(received), key=int) == [str(n) for n in range(30)]
        assert {one.id for one in received} == set(ids)
        consumer.ack(received)
        await consumer.flush()
        assert subscription(world, "p-partition-1").cursor.backlog() == 0
    listed = await client.topics.list()
    assert listed == [f"persistent://public/default/p-partition-{n}" for n in range(3)]
    await client.topics.delete("p", force=True)
    assert await client.topics.list() == []


def test_keys_choose_partitions_as_in_java() -> None:
    # String.hashCode of Java: "hello" 99162322, "polygenelubricants" -2147483648 (its sign is dropped).
    assert partition_of_key("hello", 10) == 2
    assert partition_of_key("polygenelubricants", 7) == 0
    assert partition_of_key("𝄞", 1000) == (0xD834 * 31 + 0xDD1E) % 1000
    assert partition_of_key("", 3) == 0


async def test_a_consumer_comes_back_when_its_topic_was_closed(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.consumer("t", "s") as consumer:
        await client.producer("t").send_many([b"0", b"1"])
        first, _ = await take(consumer, 2)
        consumer.ack(first)
        await consumer.flush()
        await world.broker.opening.unload(TopicName.parse("t"))
        assert texts(await take(consumer, 1)) == ["1"]
        await client.producer("t").send(b"2")
        assert texts(await take(consumer, 1)) == ["2"]


async def test_a_reader_goes_on_where_it_was_when_its_topic_was_closed(
    world: BrokerInMemory, client: AsyncClient
) -> None:
    ids = await client.producer("t").send_many([b"0", b"1", b"2"])
    async with client.reader("t") as reader:
        assert (await reader.receive(5)).id == ids[0]
        await world.broker.opening.unload(TopicName.parse("t"))
        await asyncio.sleep(0.1)
        assert [(await reader.receive(5)).id for _ in range(2)] == ids[1:]


def test_message_ids_are_printed_parsed_and_compared() -> None:
    id_ = MessageId(3, 7, 1, 2, 10)
    assert str(id_) == "3:7:1:2:10"
    assert MessageId.parse(str(id_)) == id_
    assert MessageId.parse(str(id_)).batch_size == 10
    assert MessageId.parse("3:7") == MessageId(3, 7)
    assert str(MessageId(3, 7)) == "3:7:-1"
    for text in ("3:7:1:2", "(3,7,1,2)", "(3, 7, 1, 2)"):  # as Java's and Python's clients of Pulsar print it
        assert MessageId.parse(text) == MessageId(3, 7, 1, 2)
        assert str(MessageId.parse(text)) == "3:7:1:2"
    assert MessageId.parse("(-1,-1,-1,-1)") == EARLIEST
    assert MessageId.parse("3:-1") == MessageId(3, -1), "before the first of a ledger"
    assert MessageId.from_bytes(id_.to_bytes()) == id_
    assert MessageId(3, 6, 1, 9) < id_ < replace(id_, batch_index=3) < MessageId(4, 0)
    for text in ("", "3", "a:b", "1:2:3:4:5:6", "(1,2,3)", "(1:2:3:4)", "1,2,3,4", "-3:1", "3:-2", "9" * 20 + ":1"):
        with pytest.raises(ValueError, match="message id"):
            MessageId.parse(text)
    with pytest.raises(ValueError, match="message id"):
        MessageId.from_bytes(b"\xff\xff")


async def test_a_reader_asks_for_the_end_only_where_it_stands_at_the_last_one_known(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    ask_owner = Brokers.ask_owner

    async def counted(brokers: Brokers, topic: str, method: str, request: Any, answer: Any) -> Any:
        asked.append(method)
        return await ask_owner(brokers, topic, method, request, answer)

    monkeypatch.setattr(Brokers, "ask_owner", counted)
    await client.topics.create("parts", partitions=2)
    for topic, calls in (("t", 2), ("parts", 4)):
        await client.producer(topic).send_many([Outgoing(b"%d" % n, key=str(n)) for n in range(100)])
        asked.clear()
        async with client.reader(topic) as reader:
            found = 0
            while await reader.has_more():
                await reader.receive(5)
                found += 1
            assert found == 100
            assert len(asked) <= calls, "once at the beginning and once at the end, of each partition"
            await client.producer(topic).send(b"new")
            assert await reader.has_more()


@pytest.mark.parametrize("place", ["earliest", "id", "time", "latest"])
async def test_a_reader_knows_what_is_behind_the_place_that_it_was_sent_to(client: AsyncClient, place: str) -> None:
    first, *_ = await client.producer("t").send_many([b"0", b"1"])
    await client.producer("t").send(b"2")
    async with client.reader("t") as reader:
        while await reader.has_more():
            await reader.receive(5)
        places: dict[str, Any] = {"id": first, "time": 1}
        await reader.seek(places.get(place, place))
        found = []
        while await reader.has_more():
            found.append((await reader.receive(5)).payload)
        assert found == ([] if place == "latest" else [b"0", b"1", b"2"])
