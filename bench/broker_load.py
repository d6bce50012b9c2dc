"""A load process that speaks Pulsar's binary protocol to the brokers of this machine: `python -m bench.broker_load …`.

    publish    so many messages, in turn to so many topics, one producer each, as fast as a window allows
    consume    so many messages of one topic's backlog, by so many consumers of one subscription

Each prints a JSON line when all producers or consumers are there, and one at the end. They are spread over a few
connections, as clients have them. With `--batch N` entries have N messages. Acknowledgements are of single entries, as
those of Shared subscriptions.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, cast

import uvloop

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE, command, parse_frame
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from magnetar_core.runtime.data.varint import varint
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata

KIND: Final = wire.BaseCommand
FRAME_BYTES_MAX: Final = 6 * 1024 * 1024
OPENING_AT_ONCE: Final = 64
REDIRECTS_MAX: Final = 10
ACK_AFTER: Final = 100
"""Messages that a consumer holds before it acknowledges them, in one command, as the official clients' trackers do."""

Handler = Callable[[wire.BaseCommand, memoryview | None], None]


class Peer(asyncio.Protocol):
    """One connection: answers go to who asked, receipts and messages to the producer or consumer of that id."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._splitter = FrameSplitter(FRAME_BYTES_MAX)
        self._asked: dict[int, asyncio.Future[wire.BaseCommand]] = {}
        self._next_request = 0
        self.on_receipts: Callable[[int], None] = lambda count: None
        self.on_message: Handler = lambda command, entry: None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_exception(error or ConnectionError("the broker closed the connection"))

    def data_received(self, data: bytes) -> None:
        receipts = 0
        for frame in self._splitter.feed(data):
            answer, entry = parse_frame(frame)
            if answer.type == KIND.SEND_RECEIPT:
                receipts += 1
            elif answer.type == KIND.MESSAGE:
                self.on_message(answer, entry)
            elif answer.type == KIND.PING:
                self.transport.write(command(KIND.PONG))
            elif answer.type == KIND.CONNECTED:
                self._connected.set_result(None)
            else:
                self._answered(answer)
        if receipts:
            self.on_receipts(receipts)

    def _answered(self, answer: wire.BaseCommand) -> None:
        body = getattr(answer, BODY_OF_TYPE[answer.type])
        waiting = self._asked.pop(getattr(body, "request_id", 0), None)
        if waiting is None:  # nothing that a bench can go on with
            self.transport.abort()
        elif answer.type == KIND.ERROR:
            waiting.set_exception(ConnectionError(f"the broker refused: {body.message}"))
        else:
            waiting.set_result(answer)

    async def greet(self) -> None:
        self.transport.write(command(KIND.CONNECT, client_version="bench", protocol_version=20))
        await self._connected

    async def ask(self, kind: int, **fields: Any) -> wire.BaseCommand:
        self._next_request += 1
        answer = self._asked[self._next_request] = asyncio.get_running_loop().create_future()
        self.transport.write(command(kind, request_id=self._next_request, **fields))
        found: wire.BaseCommand = await answer
        return found


async def connect(port: int, count: int) -> list[Peer]:
    loop = asyncio.get_running_loop()
    peers = [(await loop.create_connection(lambda: Peer(port), "127.0.0.1", port))[1] for _ in range(count)]
    for peer in peers:
        await peer.greet()
    return peers


async def open_all(calls: Iterable[Awaitable[object]]) -> float:
    """Seconds; some side by side."""
    left = iter(calls)
    began = time.perf_counter()

    async def some() -> None:
        for call in left:
            await call

    async with asyncio.TaskGroup() as group:
        for _ in range(OPENING_AT_ONCE):
            group.create_task(some())
    return time.perf_counter() - began


async def done_or_lost(done: asyncio.Future[None], peers: list[Peer]) -> None:
    """Raises what ended a connection."""
    await asyncio.wait([done, *(peer.lost for peer in peers)], return_when=asyncio.FIRST_COMPLETED)
    for peer in peers:
        if peer.lost.done():
            peer.lost.result()


def say(**found: float) -> None:
    print(json.dumps(found), flush=True)


class Connections:
    """So many connections to each broker; topics are spread over those of the broker that serves them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._of_port: dict[int, asyncio.Task[list[Peer]]] = {}
        self.all: list[Peer] = []

    async def of(self, port: int, number: int) -> Peer:
        """The connection for topic or consumer *number*."""
        if port not in self._of_port:
            self._of_port[port] = asyncio.get_running_loop().create_task(connect(port, self._count))
            self.all += await asyncio.shield(self._of_port[port])
        peers = await asyncio.shield(self._of_port[port])
        return peers[number % len(peers)]

    async def to_owner(self, topic: str, port: int, number: int) -> Peer:
        """A connection to the broker that serves *topic*; the one at *port* is asked. Brokers are on this machine."""
        is_authoritative = False
        for _ in range(REDIRECTS_MAX):
            peer = await self.of(port, number)
            answer = await peer.ask(KIND.LOOKUP, topic=topic, authoritative=is_authoritative)
            found = answer.lookupTopicResponse
            if found.response == wire.CommandLookupTopicResponse.Failed:
                raise ConnectionError(f"the lookup of {topic} failed: {found.message}")
            port = int(found.brokerServiceUrl.rpartition(":")[2])
            if found.response == wire.CommandLookupTopicResponse.Connect:
                return await self.of(port, number)
            is_authoritative = found.authoritative
        raise ConnectionError(f"{topic}: brokers send its clients to each other")


class Publish:
    """*count* messages over all topics; never more than *window* entries without a receipt."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        entries = options.count // options.batch
        assert entries * options.batch == options.count, "whole batches"
        self._left = self._unanswered = entries
        self._under_way = 0
        metadata = MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1)
        payload = bytes(options.size)
        if options.batch > 1:
            metadata.num_messages_in_batch = options.batch
            payload = (b"\x00\x00\x00" + bytes([len(_single(options.size))]) + _single(options.size) + payload) * (
                options.batch
            )
        self._entry = encode_entry(metadata, payload)
        self._messages = b"" if options.batch == 1 else b"\x18" + varint(options.batch)
        self._sequence_ids = [0] * options.topics
        self._next_topic = 0
        self._done: asyncio.Future[None]
        self._connections = Connections(min(options.connections, options.topics))
        self._peer_of: dict[int, Peer] = {}

    async def go(self) -> None:
        options = self._options
        self._done = asyncio.get_running_loop().create_future()
        opened_s = await open_all(self._open(number) for number in range(options.topics))
        say(opened_s=opened_s)
        for peer in self._connections.all:
            peer.on_receipts = self._on_receipts
        began = time.perf_counter()
        self._fill()
        await done_or_lost(self._done, self._connections.all)
        seconds = time.perf_counter() - began
        say(seconds=seconds, per_s=options.count / seconds)

    async def _open(self, number: int) -> None:
        topic = f"{self._options.topic}-{number}"
        peer = self._peer_of[number] = await self._connections.to_owner(topic, self._options.port, number)
        await peer.ask(KIND.PRODUCER, topic=topic, producer_id=number)

    def _on_receipts(self, count: int) -> None:
        self._under_way -= count
        self._unanswered -= count
        if not self._unanswered and not self._done.done():
            self._done.set_result(None)
        self._fill()

    def _fill(self) -> None:
        room = min(self._options.window - self._under_way, self._left)
        # Not one by one as receipts come: in chunks, as clients write them.
        if room < min(self._options.window // 4, self._left):
            return
        buffers: dict[Peer, list[bytes]] = {peer: [] for peer in self._connections.all}
        for _ in range(room):
            number = self._next_topic
            self._next_topic = (number + 1) % self._options.topics
            buffers[self._peer_of[number]].append(self.frame(number))
        for peer, found in buffers.items():
            if found:
                peer.transport.write(b"".join(found))
        self._left -= room
        self._under_way += room

    def frame(self, number: int) -> bytes:
        """The next message to topic *number*."""
        sequence_id = self._sequence_ids[number]
        self._sequence_ids[number] = sequence_id + 1
        body = b"\x08" + varint(number) + b"\x10" + varint(sequence_id) + self._messages
        head = b"\x08\x06\x32" + varint(len(body)) + body
        total = 4 + len(head) + len(self._entry)
        return total.to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + self._entry


def _single(size: int) -> bytes:
    """SingleMessageMetadata with its payload_size."""
    return b"\x18" + varint(size)


class Consumer:
    """One of the subscription: gives permits back when half are used, acknowledges some at a time."""

    def __init__(self, peer: Peer, consumer_id: int, permits: int, batch: int) -> None:
        self._peer = peer
        self._id = consumer_id
        self._permits = permits
        self._batch = batch
        self._used = 0
        self._held: list[Any] = []
        self.received = 0

    def give_permits(self, count: int) -> None:
        self._peer.transport.write(command(KIND.FLOW, consumer_id=self._id, messagePermits=count))

    def take(self, message_id: Any) -> None:
        self.received += self._batch
        self._used += self._batch
        self._held.append(message_id)
        if self._used >= self._permits // 2:
            self.give_permits(self._used)
            self._used = 0
        if len(self._held) * self._batch >= ACK_AFTER:
            self.acknowledge()

    def acknowledge(self) -> None:
        if self._held:
            self._peer.transport.write(
                command(KIND.ACK, consumer_id=self._id, ack_type=wire.CommandAck.Individual, message_id=self._held)
            )
            self._held = []


class Consume:
    """The first *count* messages of a topic, by *consumers* consumers of one Shared subscription."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._left = options.count
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def go(self) -> None:
        options = self._options
        connections = Connections(min(options.connections, options.consumers))
        owner = await connections.to_owner(options.topic, options.port, 0)
        peers = [owner, *(peer for peer in connections.all if peer.port == owner.port and peer is not owner)]
        consumers = [
            Consumer(peers[number % len(peers)], number, options.permits, options.batch)
            for number in range(options.consumers)
        ]

        def on_message(answer: wire.BaseCommand, _: memoryview | None) -> None:
            self._left -= options.batch
            consumers[answer.message.consumer_id].take(answer.message.message_id)
            if self._left <= 0 and not self._done.done():
                self._done.set_result(None)

        async def subscribe(number: int) -> None:
            await peers[number % len(peers)].ask(
                KIND.SUBSCRIBE, topic=options.topic, subscription=options.subscription, consumer_id=number,
                subType=wire.CommandSubscribe.Shared, initialPosition=wire.CommandSubscribe.Earliest,
            )  # fmt: skip

        for peer in peers:
            peer.on_message = on_message
        opened_s = await open_all(subscribe(number) for number in range(options.consumers))
        say(opened_s=opened_s)
        began = time.perf_counter()
        for consumer in consumers:
            consumer.give_permits(options.permits)
        await done_or_lost(self._done, connections.all)
        seconds = time.perf_counter() - began
        for consumer in consumers:
            consumer.acknowledge()
        for peer in peers:  # an answer to this comes behind all acknowledgements
            await peer.ask(KIND.LOOKUP, topic=options.topic)
        received = sorted(consumer.received for consumer in consumers)
        say(seconds=seconds, per_s=options.count / seconds, least=received[0], most=received[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["publish", "consume"])
    parser.add_argument("port", type=int)
    parser.add_argument("--topic", default="persistent://public/default/load", help="publish: -0, -1 … behind it")
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--consumers", type=int, default=1)
    parser.add_argument("--subscription", default="bench")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--count", type=int, default=100_000, help="messages")
    parser.add_argument("--batch", type=int, default=1, help="messages in an entry")
    parser.add_argument("--size", type=int, default=100, help="bytes of a message")
    parser.add_argument("--window", type=int, default=2_000, help="entries under way")
    parser.add_argument("--permits", type=int, default=1_000, help="of a consumer")
    options = parser.parse_args()

    async def go() -> None:
        await (Publish(options) if options.what == "publish" else Consume(options)).go()

    uvloop.run(go())


if __name__ == "__main__":
    main()
