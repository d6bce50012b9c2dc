"""Batches that go as they are to a client that takes them apart: it has the same messages, permits and acks as one that
does not."""

import asyncio
import pickle
import struct
from typing import Any

import pytest

from broker.grpc.consume_call import FRAME_BYTES, ConsumeCall
from broker.topic.reading.subscription import Subscription
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar.client.async_client import AsyncClient
from magnetar.client.async_consumer import AsyncConsumer
from magnetar.client.consuming import ConsumeStream
from magnetar.client.errors import TopicError
from magnetar.client.values import Message, Outgoing
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.message_id import MessageId
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import compress, encode_entry
from managed_ledger.messages_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, MessageMetadata, SingleMessageMetadata
from tests.support.batches import plain_batch
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient

QUEUE = 300


def message(payload: bytes = b"", **fields: Any) -> bytes:
    single = SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()
    return struct.pack(">I", len(single)) + single + payload


def entry(*messages: bytes, codec: int = NONE, count: int | None = None, **fields: Any) -> bytes:
    batch = b"".join(messages)
    if codec != NONE:
        fields |= {"compression": codec, "uncompressed_size": len(batch)}
    fields.setdefault("num_messages_in_batch", len(messages) if count is None else count)
    metadata = MessageMetadata(producer_name="p", sequence_id=7, publish_time=9, **fields)
    return encode_entry(metadata, compress(codec, batch))


PLAIN = [message(b"%03d" % number, sequence_id=100 + number) for number in range(60)]
EMPTIED = message(b"", compacted_out=True)
PROPERTIES = [{"key": "a", "value": "1"}, {"key": "b", "value": ""}]

# Entries, and whether they go as they are.
ENTRIES: dict[str, tuple[bytes, bool]] = {
    "plain": (entry(*PLAIN), True),
    "one message": (entry(PLAIN[0]), True),
    "without numbers": (entry(plain_batch(20, b"x"), count=20), True),
    "large numbers": (entry(*(message(b"x", sequence_id=2**64 - 20 + number) for number in range(20))), True),
    "of all sizes": (entry(*(message(bytes(size), sequence_id=size) for size in (0, 1, 127, 128, 20_000))), True),
    "with everything": (
        entry(
            message(
                b"x", partition_key="aw==", partition_key_b64_encoded=True, properties=PROPERTIES, event_time=5,
                ordering_key=b"o", sequence_id=3,
            ),
            message(b"", null_value=True, partition_key="k"),
            message(b"y", partition_key="", event_time=2**64 - 1),
            schema_version=b"\0" * 8,
        ),
        True,
    ),
    **{f"codec {codec}": (entry(*PLAIN, codec=codec), True) for codec in (LZ4, ZLIB, ZSTD, SNAPPY)},
    "damaged": (entry(*PLAIN[:30], b"\0\0\0\1\xff" + bytes(40)), True),
    "damaged and packed": (entry(*PLAIN[:30], b"\0\0\0\1\xff" + bytes(40), codec=ZLIB), True),
    "damaged at once": (entry(b"\0\0\0\1\xff" + bytes(40), count=5), True),
    "too few messages": (entry(*PLAIN[:10], count=11), True),
    "text that is none": (entry(PLAIN[0], message(b"x", partition_key="kkk").replace(b"kkk", b"k\xffk")), True),
    "compacted": (entry(PLAIN[0], EMPTIED, *PLAIN[1:4], EMPTIED), True),
    "all compacted": (entry(*[EMPTIED] * 5), True),
    "compacted and damaged": (entry(EMPTIED, PLAIN[0], b"\0\0\0\1\xff", count=4), True),
    "no batch": (encode_entry(MessageMetadata(producer_name="p", sequence_id=7, publish_time=9), b"x"), False),
    "lies": (entry(*PLAIN, count=2**31 - 1), False),
    "encrypted": (entry(*PLAIN, encryption_keys=[{"key": "k", "value": b"v"}]), False),
    "a chunk": (entry(*PLAIN, num_chunks_from_msg=2, chunk_id=0, uuid="u"), False),
}  # fmt: skip

UNPACKED = "damaged and packed"


def subscription(world: BrokerInMemory) -> Subscription:
    return world.broker.topics[TopicName.parse("t")].subscriptions["s"]


def call_of(world: BrokerInMemory) -> ConsumeCall:
    (attached,) = subscription(world).consumers
    assert isinstance(attached.sink, ConsumeCall)
    return attached.sink


async def publish(world: BrokerInMemory, *entries: bytes) -> None:
    raw = await RawClient.connect(int(world.url.rpartition(":")[2]))
    await raw.produce("t")
    for number, data in enumerate(entries):
        raw.publish(1, number, data=data)
        await raw.expect(BaseCommand.SEND_RECEIPT)
    raw.close()


def told(one: Message, first: int = 0) -> tuple[Any, ...]:
    """All that a program can ask of a message but its ledger; the *first* entry is 0."""
    return (
        one.id.entry_id - first, one.id.batch_index, one.id.batch_size, one.payload, one.value, one.key,
        one.key_is_base64,
        one.ordering_key, one.properties, one.event_time_ms, one.publish_time_ms, one.is_null, one.sequence_id,
        one.producer_name, one.redelivery_count, one.schema_version,
        one.problem.replace(f"{one.id.ledger_id}:{one.id.entry_id}", "here"),
    )  # fmt: skip


async def until_end(consumer: AsyncConsumer[bytes]) -> list[Message]:
    """Everything up to the message `end`."""
    messages = list[Message]()
    while not messages or messages[-1].payload != b"end":
        messages += await consumer.receive_batch(1, timeout_s=5)
    return messages


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each delivery whether it was a batch as it is."""
    seen = list[bool]()
    take = ConsumeCall.take

    async def noting(call: ConsumeCall) -> Any:
        frame = await take(call)
        seen.extend(bool(one.batch) for one in (frame.deliveries if frame is not None else ()))
        return frame

    monkeypatch.setattr(ConsumeCall, "take", noting)
    return seen


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
@pytest.mark.parametrize("name", ENTRIES)
async def test_who_takes_batches_has_the_same_messages(
    world: BrokerInMemory, client: AsyncClient, whole: list[bool], name: str, kind: Any
) -> None:
    data, goes_whole = ENTRIES[name]
    found = list[list[tuple[Any, ...]]]()
    for takes_batches in (True, False):
        async with client.consumer("t", "s", type=kind, queue_size=QUEUE) as consumer:
            call = call_of(world)
            call._sends_batches = takes_batches
            whole.clear()
            await publish(world, data)
            await client.producer("t").send(b"end")
            messages = await until_end(consumer)
            assert any(whole) == (goes_whole and takes_batches)
            found.append([told(one, messages[0].id.entry_id) for one in messages if one.payload != b"end"])
            consumer.ack(messages)
            await consumer.flush()
            assert not subscription(world).cursor.backlog()
            (stream,) = consumer._streams.values()
            assert call.consumer.permits == QUEUE - (stream._taken - stream._granted), (
                "each that is not there is granted"
            )
            assert stream._answered == stream._taken
    taken, sent = found
    if name == UNPACKED:  # the client does not have the payload that is stored
        assert [one[-1] for one in taken] == [one[-1] for one in sent]
        taken, sent = taken[:-1], sent[:-1]
    assert taken == sent


async def test_what_is_left_out_of_a_batch_is_not_sent(
    world: BrokerInMemory, client: AsyncClient, whole: list[bool]
) -> None:
    ids = await client.producer("t").send_many([b"0", b"1", b"2"])
    async with client.consumer("t", "s", from_earliest=True) as consumer:
        messages = [await consumer.receive(5) for _ in range(3)]
        assert whole == [True]
        consumer.ack(messages[1])
        await consumer.nack(messages[0], delay_s=0)
        assert [(await consumer.receive(5)).payload for _ in range(2)] == [b"0", b"2"]
        assert whole == [True, False]
        await consumer.seek(ids[1])
        assert [(await consumer.receive(5)).payload for _ in range(2)] == [b"1", b"2"]
        await consumer.seek(ids[0])
        assert [(await consumer.receive(5)).payload for _ in range(3)] == [b"0", b"1", b"2"]
        assert whole == [True, False, False, True]
    async with client.reader("t", start=ids[0]) as reader:
        assert [(await reader.receive(5)).payload for _ in range(2)] == [b"1", b"2"]
    assert whole.pop() is False


async def test_of_a_compacted_topic_messages_are_sent_one_by_one(
    world: BrokerInMemory, client: AsyncClient, whole: list[bool]
) -> None:
    await client.producer("t").send_many([Outgoing(b"0", key="k"), Outgoing(b"1", key="k")])
    async with client.table_view("t") as view:
        assert view["k"] == b"1"
    assert whole == [False]


async def test_a_large_batch_is_not_sent_as_it_is(
    world: BrokerInMemory, client: AsyncClient, whole: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.consumer("t", "s") as consumer:
        for limit, most in (("DELIVERY_MESSAGES_MAX", 59), ("DELIVERY_BYTES_MAX", 60 * len(PLAIN[0]) - 1)):
            with monkeypatch.context() as patched:
                patched.setattr(f"broker.grpc.deliveries.{limit}", most)
                await publish(world, entry(*PLAIN))
                consumer.ack([await consumer.receive(5) for _ in range(60)])
        assert not any(whole)
        await publish(world, entry(*PLAIN))
        assert [(await consumer.receive(5)).id.batch_index for _ in range(60)] == [*range(60)]
        assert whole.pop()


async def test_a_batch_that_no_broker_sends_ends_the_call(client: AsyncClient) -> None:
    async with client.consumer("t", "s") as consumer:
        (stream,) = consumer._streams.values()
        assert isinstance(stream, ConsumeStream)
        for batch, size in ((b"\0" * 5, 1), (b"\0" * 600, 2**31 - 1), (b"\0" * 6, 0), (b"\0" * 6, -1)):
            answer = api.ConsumeResponse()
            answer.deliveries.add(batch=batch, batch_size=size)
            with pytest.raises(TopicError):
                stream._on_answer(answer)


async def test_messages_of_a_batch_keep_what_they_say_in_a_pickle_and_in_threads(
    world: BrokerInMemory, client: AsyncClient
) -> None:
    async with client.consumer("t", "s") as consumer:
        await publish(world, ENTRIES["plain"][0], ENTRIES["with everything"][0])
        messages = [await consumer.receive(5) for _ in range(63)]
        copies: list[Message] = pickle.loads(pickle.dumps(messages))
        assert await asyncio.to_thread(lambda: [told(one) for one in messages]) == [told(one) for one in copies]


@pytest.mark.parametrize("name", ["damaged", "damaged at once", "too few messages", "lies", "encrypted", "a chunk"])
async def test_behind_an_entry_that_cannot_be_taken_apart_there_is_nothing_more(
    world: BrokerInMemory, client: AsyncClient, name: str
) -> None:
    """The broker tells the end by the number of messages that the entry claims, and the reader has its last one without
    an index."""
    await publish(world, ENTRIES[name][0])
    messages = list[Message]()
    async with client.reader("t", start="earliest") as reader:
        while await reader.has_more():
            came = await reader.receive_batch(100, timeout_s=0.2)
            assert came, "there is more, and nothing comes"
            messages += came
    assert messages[-1].problem
    async with client.reader("t", start=messages[-1].id) as reader:
        assert not await reader.has_more()
    async with client.table_view("t") as view:
        assert not len(view)


async def test_a_reader_behind_an_entry_knows_that_its_batch_is_the_end(
    world: BrokerInMemory, client: AsyncClient
) -> None:
    (id_, *_) = await client.producer("t").send_many([b"0", b"1", b"2"])
    async with client.reader("t", start=MessageId(id_.ledger_id, id_.entry_id)) as reader:
        assert not await reader.has_more()


async def test_an_entry_of_which_nothing_is_left_does_not_hide_those_behind_it(
    world: BrokerInMemory, client: AsyncClient
) -> None:
    """It may be as large as a frame."""
    emptied = entry(message(bytes(FRAME_BYTES), compacted_out=True))
    await publish(world, emptied, emptied, entry(PLAIN[0]))
    async with client.consumer("t", "s", type="shared", from_earliest=True) as consumer:
        call_of(world)._sends_batches = False
        assert (await consumer.receive(5)).payload == b"000"
