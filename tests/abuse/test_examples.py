"""Small inputs that once cost the server much time or memory. Now each must stay within the limits of `Server.check`.

Where the protocol has an answer, it must name what is wrong with the input.
"""

import asyncio
import contextlib
import itertools
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import aiohttp
import cramjam
import grpc
import pytest
from yarl import URL

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE, simple_frame
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar.client.async_client import AsyncClient
from magnetar.client.errors import TopicError, UnreadableMessage
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import ZLIB, ZSTD, KeyValue, MessageIdData, MessageMetadata
from tests.abuse.world import Bystanders, Server, client_of, wire_to
from tests.support import bookie_requests
from tests.support.batches import plain_batch
from tests.support.bookie_disks import KEY, stored_entry

pytestmark = [pytest.mark.process]

MIB: Final = 1024 * 1024
_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/example-{next(_names)}"


async def unharmed(server: Server, bystanders: Bystanders, what: str) -> None:
    await asyncio.sleep(0.1)  # the watchdog writes when the loop is back
    server.check(what)
    await bystanders.check()


async def publish(server: Server, topic: str, *entries: bytes, **fields: Any) -> list[BaseCommand]:
    """Send entries as a producer may make them; returns the answers."""
    raw = await client_of(server, topic)
    await raw.produce(topic)
    answers = []
    for number, entry in enumerate(entries):
        raw.publish(1, number, data=entry, **fields)
        answers.append(await raw.answer())
    raw.close()
    return answers


def entry(payload: bytes, **fields: Any) -> bytes:
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields), payload)


def consume(channel: grpc.aio.Channel) -> Any:
    """A call as consumers make it, without the client's rules."""
    return channel.stream_stream(
        "/magnetar.topics.v1.Topics/Consume",
        request_serializer=api.ConsumeRequest.SerializeToString,
        response_deserializer=api.ConsumeResponse.FromString,
    )()


def zstd_bomb(unpacked_bytes: int) -> bytes:
    """Build the input in pieces: the test must not need the memory that the server must not need either."""
    made, zeros = cramjam.zstd.Compressor(), bytes(16 * MIB)
    for _ in range(unpacked_bytes // len(zeros)):
        made.compress(zeros)
    return bytes(made.finish())


@pytest.mark.parametrize(("declared", "words"), [(1_000_000, "1000000 bytes"), (2**32 - 1, "maxUncompressedEntrySize")])
async def test_a_bomb_for_consumers_of_the_topic_api(
    server: Server, bystanders: Bystanders, topic: str, declared: int, words: str
) -> None:
    bomb = entry(zstd_bomb(5 * 1024 * MIB), compression=ZSTD, uncompressed_size=declared)
    assert len(bomb) < 300_000
    async with AsyncClient(server.ports["grpc"]) as client, client.consumer(topic, "s", from_earliest=True) as consumer:
        await publish(server, topic, bomb, bomb, bomb)
        for number in range(3):
            with pytest.raises(UnreadableMessage, match=words) as caught:
                await consumer.receive(30)
            message: Any = caught.value.message
            assert (message.id.entry_id, topic in str(caught.value)) == (number, True)
            consumer.ack(message)
    await unharmed(server, bystanders, "a zstd bomb")


async def test_a_million_messages_in_nine_kilobytes(server: Server, bystanders: Bystanders, topic: str) -> None:
    made, thousand = zlib.compressobj(), plain_batch(1_000)
    data = b"".join([*(made.compress(thousand) for _ in range(1_000)), made.flush()])
    packed = entry(data, num_messages_in_batch=1_000_000, compression=ZLIB, uncompressed_size=1_000 * len(thousand))
    assert len(packed) < 10_000
    await publish(server, topic, packed)
    async with grpc.aio.insecure_channel(server.ports["grpc"]) as channel:
        call = consume(channel)
        opening = api.ConsumeRequest.Open(topic=topic, subscription="s", from_earliest=True)
        await call.write(api.ConsumeRequest(open=opening))
        await call.write(api.ConsumeRequest(permits=1_000_000))
        got = 0
        while got < 200_000:  # nothing of them is kept: the test must not need memory for them either
            answer = await asyncio.wait_for(call.read(), 30)
            got += sum(len(delivery.messages) for delivery in answer.deliveries)
        call.cancel()
    await unharmed(server, bystanders, "a million messages")


async def test_batches_that_claim_what_they_cannot_hold(server: Server, bystanders: Bystanders, topic: str) -> None:
    (refused,) = await publish(server, topic, entry(b"x", num_messages_in_batch=2**31 - 1), num_messages=2**31 - 1)
    assert (refused.type, "num_messages_in_batch" in refused.send_error.message) == (BaseCommand.SEND_ERROR, True)
    # An entry that claims one message, and holds none, costs its consumers one permit.
    raw = await client_of(server, topic)
    await raw.subscribe(topic, permits=3, initialPosition=wire.CommandSubscribe.Earliest)
    await publish(server, topic, entry(b"x", num_messages_in_batch=2**31 - 1), entry(b"y"))
    for number in range(2):
        message = await raw.expect(BaseCommand.MESSAGE)
        assert message.message.message_id.entryId == number
    raw.close()
    await unharmed(server, bystanders, "wild counts")


@pytest.mark.parametrize(
    "fields",
    [
        {"ack_set": [0] * 300_000},
        {"ack_set": [-1] * 300_000, "batch_size": 10},
        {"batch_size": 2**31 - 1, "ack_set": [1]},
        {"batch_size": -1, "ack_set": [1]},
    ],
    ids=["zeros", "ones", "large", "negative"],
)
async def test_acks_with_sets_beyond_all_batches(
    server: Server, bystanders: Bystanders, topic: str, fields: dict[str, Any]
) -> None:
    raw = await client_of(server, topic)
    await raw.subscribe(topic, permits=0, subType=wire.CommandSubscribe.Shared)
    (receipt,) = await publish(server, topic, entry(plain_batch(10), num_messages_in_batch=10), num_messages=10)
    stored = receipt.send_receipt.message_id
    for kind in (wire.CommandAck.Individual, wire.CommandAck.Cumulative):
        named = MessageIdData(ledgerId=stored.ledgerId, entryId=stored.entryId, **fields)
        raw.send(BaseCommand.ACK, consumer_id=1, ack_type=kind, message_id=[named], request_id=7)
        answer = (await raw.expect(BaseCommand.ACK_RESPONSE)).ackResponse
        if kind == wire.CommandAck.Individual and (len(named.ack_set) > 1_000 or named.batch_size < 0):
            assert f"{stored.ledgerId}:{stored.entryId}: batch_size" in answer.message
    raw.close()
    await unharmed(server, bystanders, f"acks with {list(fields)}")


async def test_five_hundred_acks_that_claim_a_million(server: Server, bystanders: Bystanders, topic: str) -> None:
    (await client_of(server, topic)).close()
    async with grpc.aio.insecure_channel(server.ports["grpc"]) as channel:
        call = consume(channel)
        await call.write(
            api.ConsumeRequest(open=api.ConsumeRequest.Open(topic=topic, subscription="s", type=api.SHARED))
        )
        await call.read()
        ids = [api.MessageId(ledger_id=1, entry_id=n, batch_index=1, batch_size=1_000_000) for n in range(500)]
        request = api.ConsumeRequest(acks=ids, request_id=1)
        assert request.ByteSize() < 10_000
        await call.write(request)
        assert (await call.read()).done == 1
        call.cancel()
    await unharmed(server, bystanders, "500 acks of batches of a million")


@pytest.mark.parametrize("kind", ["Failover", "Key_Shared"])
async def test_three_hundred_consumers_lose_their_connection(
    server: Server, bystanders: Bystanders, topic: str, kind: str
) -> None:
    raw = await client_of(server, topic)
    for number in range(300):
        raw.send(
            BaseCommand.SUBSCRIBE, topic=topic, subscription="s", consumer_id=number, request_id=number,
            subType=wire.CommandSubscribe.SubType.Value(kind), consumer_name=f"consumer-{number}",
        )  # fmt: skip
    answered = 0
    while answered < 300:
        answered += (await raw.answer()).type == BaseCommand.SUCCESS
    for number in range(300):
        raw.send(BaseCommand.FLOW, consumer_id=number, messagePermits=1_000)
    stays = await client_of(server, topic)
    stays.send(
        BaseCommand.SUBSCRIBE, topic=topic, subscription="s", consumer_id=1, request_id=1,
        subType=wire.CommandSubscribe.SubType.Value(kind),
    )  # fmt: skip
    while (await stays.answer()).type != BaseCommand.SUCCESS:
        pass
    stays.send(BaseCommand.FLOW, consumer_id=1, messagePermits=1_000)
    await publish(server, topic, *(entry(b"x", partition_key=f"k{n}") for n in range(100)))
    transport = raw.writer.transport
    transport.abort()
    await unharmed(server, bystanders, f"300 {kind} consumers that are gone")
    got = set[int]()
    while len(got) < 100:
        answer = await stays.answer()
        if answer.type == BaseCommand.MESSAGE:
            got.add(answer.message.message_id.entryId)
    stays.close()


async def test_a_delay_until_the_end_of_time(server: Server, bystanders: Bystanders, topic: str) -> None:
    raw = await client_of(server, topic)
    await raw.subscribe(topic, subType=wire.CommandSubscribe.Shared)
    await publish(server, topic, entry(b"never", deliver_at_time=2**63 - 1), entry(b"now"))
    assert (await raw.expect(BaseCommand.MESSAGE)).message.message_id.entryId == 1
    raw.close()
    await unharmed(server, bystanders, "a delay without end")


def many_ids(count: int, **fields: Any) -> Iterator[MessageIdData]:
    return (MessageIdData(ledgerId=number % 7, entryId=number, **fields) for number in range(count))


# What is sent, and how its fields are made: not before they are sent, since they are tens of megabytes.
LARGE: Final[dict[str, tuple[int, Callable[[], dict[str, Any]]]]] = {
    "acks": (BaseCommand.ACK, lambda: {"ack_type": 0, "message_id": many_ids(200_000), "request_id": 5}),
    "allowed acks": (BaseCommand.ACK, lambda: {"ack_type": 0, "message_id": many_ids(20_000), "request_id": 5}),
    "parts": (BaseCommand.ACK, lambda: {"ack_type": 0, "message_id": many_ids(20_000, ack_set=[1], batch_size=9)}),
    "wide parts": (
        BaseCommand.ACK, lambda: {"ack_type": 0, "message_id": many_ids(20_000, ack_set=[1] * 30, batch_size=9)}
    ),
    "redelivery": (
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        lambda: {"message_ids": many_ids(200_000)},
    ),
    "properties": (
        BaseCommand.PRODUCER,
        lambda: {
            "producer_id": 7, "request_id": 7, "metadata": (KeyValue(key=f"k{n}", value="v") for n in range(200_000))
        },
    ),
    "ranges": (
        BaseCommand.SUBSCRIBE,
        lambda: {
            "consumer_id": 7, "request_id": 7, "subscription": "r", "subType": wire.CommandSubscribe.Key_Shared,
            "keySharedMeta": wire.KeySharedMeta(
                keySharedMode=wire.STICKY, hashRanges=(wire.IntRange(start=n, end=n) for n in range(60_000))
            ),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", list(LARGE))
async def test_frames_of_megabytes(server: Server, bystanders: Bystanders, topic: str, which: str) -> None:
    kind, fields = LARGE[which]
    raw = await client_of(server, topic)
    await raw.subscribe(topic, permits=0, subType=wire.CommandSubscribe.Shared)
    named = {"topic": topic} if kind in (BaseCommand.PRODUCER, BaseCommand.SUBSCRIBE) else {"consumer_id": 1}
    for _ in range(2):
        body: Any = {**named, **fields()}
        raw.writer.write(simple_frame(BaseCommand(type=kind, **{BODY_OF_TYPE[kind]: body})))  # type: ignore[arg-type]
    raw.send(BaseCommand.PING)
    if which == "properties":
        assert await raw.ended(), "more than any client has"
    else:
        while (await raw.answer()).type != BaseCommand.PONG:
            pass
    raw.close()
    await unharmed(server, bystanders, f"frames with many {which}")


@pytest.mark.parametrize("field", ["acks", "nack"])
async def test_requests_with_many_ids(server: Server, bystanders: Bystanders, topic: str, field: str) -> None:
    ids = [api.MessageId(ledger_id=n % 7, entry_id=n, batch_index=0, batch_size=9) for n in range(20_000)]
    (await client_of(server, topic)).close()
    for more in ([], ids[:1]):
        request = api.ConsumeRequest(request_id=1)
        (request.acks if field == "acks" else request.nack.ids).extend([*ids, *more])
        async with grpc.aio.insecure_channel(server.ports["grpc"]) as channel:
            call = consume(channel)
            opening = api.ConsumeRequest.Open(topic=topic, subscription="s", type=api.SHARED)
            await call.write(api.ConsumeRequest(open=opening))
            await call.read()
            await call.write(request)
            answer = await call.read()
            assert (answer.done, "may have 20000 ids" in answer.error) == (1, bool(more))
            call.cancel()
        await unharmed(server, bystanders, f"a request with {len(ids)} {field}")


async def test_a_schema_of_megabytes(server: Server, bystanders: Bystanders) -> None:
    fields = ", ".join(f'{{"name": "f{number}", "type": ["null", "long"]}}' for number in range(60_000))
    definition = f'{{"type": "record", "name": "r", "fields": [{fields}]}}'
    body = json.dumps({"type": "AVRO", "schema": definition, "properties": {}})
    assert len(body) > 2 * MIB
    async with aiohttp.ClientSession() as session:
        url = f"{server.ports['http']}/admin/v2/schemas/public/default/large/schema"
        for _ in range(2):
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                await answer.read()
    await unharmed(server, bystanders, "a schema of megabytes")


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "words"),
    [
        ("POST", "namespaces/public/default/persistence",
         b'{"bookkeeperEnsemble":1000000,"bookkeeperWriteQuorum":1000000,"bookkeeperAckQuorum":1}',
         {}, 412, "Ensemble"),
        ("PUT", "persistent/public/default/many/partitions", b"2000000000", {}, 406, "partitions"),
        ("DELETE", "tenants/public%2Fkept", None, {}, 412, "tenant name"),
        ("DELETE", "clusters/standalone", None, {}, 412, "standalone"),
        ("POST", "persistent/public/kept/t/terminate", b"", {"Content-Type": "text/plain"}, 415, "text/plain"),
        ("POST", "persistent/public/kept/t/terminate", None, {"Origin": "http://evil.example"}, 403, "evil.example"),
        ("PUT", "namespaces/public/default/properties", DEEP, {}, 400, "deeper"),
        ("PUT", "namespaces/public/deep", DEEP, {}, 400, "deeper"),
    ],
    ids=["ensemble", "partitions", "tenant", "cluster", "text", "origin", "deep policy", "deep namespace"],
)  # fmt: skip
async def test_the_admin_api(
    server: Server,
    bystanders: Bystanders,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    status: int,
    words: str,
) -> None:
    kind = {} if body is None else {"Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session:
        url = URL(f"{server.ports['http']}/admin/v2/{path}", encoded=True)
        async with session.request(method, url, data=body, headers={**kind, **headers}) as answer:
            reason = json.loads(await answer.text())["reason"]
            assert (answer.status, words in reason) == (status, True), reason
    await publish(server, "persistent://public/default/afterwards", entry(b"x"))
    await unharmed(server, bystanders, f"{method} {path}")


async def test_partitions_over_grpc(server: Server, bystanders: Bystanders) -> None:
    async with AsyncClient(server.ports["grpc"]) as client:
        with pytest.raises(TopicError, match="partitions"):
            await client.topics.create("many", partitions=2_000_000_000)
    await unharmed(server, bystanders, "2,000,000,000 partitions")


async def test_master_keys_of_a_megabyte(server: Server, bystanders: Bystanders) -> None:
    before = server.memory_bytes
    bookie = await wire_to(server)
    for number in range(200):
        ledger_id = 2**41 + number
        request = bookie_requests.add_request(number, ledger_id, 0, bytes(1_000_000), stored_entry(ledger_id, 0))
        assert (await bookie.ask_v3(request)).status == int(v3.V3Error.EUA)
    bookie.close()
    assert server.memory_bytes - before < 64 * MIB
    await unharmed(server, bystanders, "200 master keys of 1 MB")


async def test_lists_of_a_large_ledger_asked_for_again_and_again(server: Server, bystanders: Bystanders) -> None:
    """3.6 KB of requests on each of three connections; each copied all ids."""
    bookie = await wire_to(server)
    count, ledger_id = 20_000, 2**40 + next(_names)
    for entry_id in range(count):
        entry = stored_entry(ledger_id, entry_id)
        bookie.send(v2.add_request_head(0, KEY, len(entry)) + entry)
    await bookie.until(count)
    asking = [await wire_to(server) for _ in range(3)]
    for one in asking:
        one.send(*(v3.list_of_entries_request(number, ledger_id) for number in range(200)))
    for one in asking:
        await one.until(200)
        listed = v3.parse_response(one.frames[-1]).getListOfEntriesOfLedgerResponse
        assert v3.decode_availability(listed.availabilityOfEntriesOfLedger) == [(0, 0, count, 0)]
        one.close()
    await unharmed(server, bystanders, "lists of a large ledger")


async def test_halves_of_frames_at_bookie_and_broker(server: Server, bystanders: Bystanders, topic: str) -> None:
    """Each lacks a hundred bytes, for ever; others go on, and the memory has a limit."""
    half = (5_000_000).to_bytes(4, "big") + bytes(5_000_000 - 100)
    sockets = [socket.create_connection(("127.0.0.1", server.ports[name])) for name in ("bookie", "binary") * 30]
    for one in sockets:
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            one.send(half)
    await unharmed(server, bystanders, "halves of frames")
    entry = encode_entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), bytes(1_000_000))
    (answer,) = await publish(server, topic, entry)
    assert answer.type == BaseCommand.SEND_RECEIPT
    for one in sockets:
        one.close()


async def test_properties_of_a_message_by_the_hundred_thousand(
    server: Server, bystanders: Bystanders, topic: str
) -> None:
    """4.8 MB that took half a second whenever they were read."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.properties.extend([KeyValue(key="", value="")] * 800_000)
    entry = await asyncio.to_thread(encode_entry, metadata, b"")
    for answer in await publish(server, topic, entry, entry, num_messages=2):
        assert answer.type == BaseCommand.SEND_ERROR
        assert "more than 10000 properties" in answer.send_error.message
    await unharmed(server, bystanders, "properties of a message")
