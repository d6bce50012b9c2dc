"""A small client of the binary protocol, for the topics in which brokers keep their own data, and for copies of topics.

Which broker serves such a topic is looked up as every client does it; the way to this broker itself is a pair of
sockets inside the process. Each publish and each reader has a connection of its own: changes are rare, and a connection
that has failed is simply given up.

SystemClientError
 └─ Refused        the broker answered with an error
     └─ NoSuchSchema   a topic has no schema of that version
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import FRAME_PADDING_BYTES, command, parse_frame, payload_frame
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from magnetar_core.runtime.types import Buffer, MagnetarError
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry, message_count, metadata_of, split_entry
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata
from managed_ledger.position import Position

_T: Final = wire.BaseCommand

# A lookup is sent from the broker that knows the leader to the leader to the owner; more steps are a circle.
REDIRECTS_MAX: Final = 5

# How long an answer is waited for.
ANSWER_S: Final = 10.0

# Messages that a reader has asked for and not got; more are asked for when half of them have come.
PERMITS: Final = 1_000

# A broker pings its clients every 30 s.
SILENCE_S: Final = 90.0

PROTOCOL_VERSION: Final = 21

_CHUNK: Final = 1 << 16


class SystemClientError(MagnetarError):
    """A broker could not be asked."""


class Refused(SystemClientError):
    """The broker answered with an error."""


class NoSuchSchema(Refused):
    """There is no schema of the version that was asked for; asking again would not help."""


class Dialed(NamedTuple):
    """A new connection to a broker, and the credentials that are shown there."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    auth_method: str = ""
    auth_data: bytes = b""


Dial = Callable[[str], Awaitable[Dialed]]
"""Connects to the broker with a service URL; the empty URL is this broker. Raises OSError."""


class SystemClient:
    """Publishes to topics of the brokers, and follows them."""

    def __init__(
        self,
        dial: Dial,
        own_urls: Callable[[], tuple[str, ...]],
        now_ms: Callable[[], int],
        message_bytes_max: int,
        *,
        prefers_tls: Callable[[], bool],
        own_name: str = "this broker",
    ) -> None:
        """*own_urls*: the service URLs of this broker, which errors call *own_name*; *prefers_tls*: others are asked
        over TLS where they have it."""
        self._own_name = own_name
        self._dial = dial
        self._own_urls = own_urls
        self._now_ms = now_ms
        self._prefers_tls = prefers_tls
        self._frame_bytes_max = message_bytes_max + FRAME_PADDING_BYTES

    async def publish(
        self, topic: TopicName, schema: wire.Schema, metadata: MessageMetadata, payload: bytes
    ) -> Position:
        """Store one message and return where it is. *metadata* gets the producer's part. Raises SystemClientError."""
        async with self.link_to(topic) as link:
            producer = await link.ask(
                _T.PRODUCER, topic=topic.full, producer_id=1, schema=schema, user_provided_producer_name=False
            )
            metadata.producer_name = producer.producer_success.producer_name
            metadata.sequence_id = 0
            metadata.publish_time = self._now_ms()
            metadata.uncompressed_size = len(payload)
            metadata.schema_version = producer.producer_success.schema_version
            return await link.send(1, encode_entry(metadata, payload))

    async def schema(self, topic: TopicName, version: bytes) -> wire.Schema:
        """A version of the topic's schema. Raises NoSuchSchema, SystemClientError."""
        async with self.link_to(topic) as link:
            answer = (await link.ask(_T.GET_SCHEMA, topic=topic.full, schema_version=version)).getSchemaResponse
            if answer.HasField("error_code"):
                is_gone = answer.error_code in (wire.TopicNotFound, wire.IncompatibleSchema)
                raise (NoSuchSchema if is_gone else Refused)(f"{topic}: {answer.error_message}")
            return answer.schema

    async def follow(
        self,
        topic: TopicName,
        schema: wire.Schema,
        on_entry: Callable[[Position, memoryview], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> None:
        """Give *on_entry* what the topic keeps after its compaction, from the beginning, and then what comes.

        *schema* is what others bring as well: a topic that is followed without one would refuse it to them.
        *on_end* is called once, when all that was there at the beginning has been given. Returns only by raising
        SystemClientError, or what *on_entry* raises.
        """
        async with self.link_to(topic) as link:
            last = await link.subscribe(topic, schema, compacted=True)
            if last is None:
                on_end()
            while True:
                position, entry = await link.message()
                await on_entry(position, entry)
                if last is not None and position >= last:
                    on_end()
                    last = None

    @contextlib.asynccontextmanager
    async def link_to(self, topic: TopicName) -> AsyncIterator["Link"]:
        """A connection to the broker that serves *topic*. Raises SystemClientError."""
        async with self._open(await self._locate(topic)) as link:
            yield link

    async def _locate(self, topic: TopicName) -> str:
        """The service URL of the broker that serves *topic*; empty: this one. Raises SystemClientError."""
        url, authoritative = "", False
        for _ in range(REDIRECTS_MAX):
            async with self._open(url) as link:
                request = {"topic": topic.full, "authoritative": authoritative}
                answer = (await link.ask(_T.LOOKUP, **request)).lookupTopicResponse
            if answer.response == wire.CommandLookupTopicResponse.Failed:
                raise Refused(f"{topic}: {answer.message}")
            plain, tls = answer.brokerServiceUrl, answer.brokerServiceUrlTls
            url = (tls or plain) if self._prefers_tls() else (plain or tls)
            if answer.response == wire.CommandLookupTopicResponse.Connect:
                return "" if url in self._own_urls() else url
            authoritative = answer.authoritative
        raise SystemClientError(f"{topic}: its lookup was sent on {REDIRECTS_MAX} times and found no broker")

    @contextlib.asynccontextmanager
    async def _open(self, url: str) -> AsyncIterator["Link"]:
        """Raises SystemClientError."""
        name = url or self._own_name
        try:
            async with asyncio.timeout(ANSWER_S):
                dialed = await self._dial(url)
        except (OSError, TimeoutError) as error:
            raise SystemClientError(f"no connection to {name}: {error or 'it does not answer'}") from error
        link = Link(dialed, name, self._frame_bytes_max)
        try:
            await link.greet(dialed)
            yield link
        finally:
            link.close()


class Link:
    """One connection, on which one question is asked or one topic followed at a time."""

    def __init__(self, dialed: Dialed, name: str, frame_bytes_max: int) -> None:
        self._reader = dialed.reader
        self._writer = dialed.writer
        self._name = name
        self._splitter = FrameSplitter(frame_bytes_max)
        self._frames: list[memoryview] = []
        self._requests = 0
        self._given = 0
        """Messages that came since permits were given last."""

    async def greet(self, dialed: Dialed) -> None:
        """Raises SystemClientError."""
        self.write(
            command(
                _T.CONNECT,
                client_version="Magnetar broker",
                protocol_version=PROTOCOL_VERSION,
                auth_method_name=dialed.auth_method,
                auth_data=dialed.auth_data,
            )
        )
        await self._next(_T.CONNECTED, ANSWER_S)

    async def ask(self, kind: int, **fields: Any) -> wire.BaseCommand:
        """The answer to a request. Raises SystemClientError."""
        self._requests += 1
        self.write(command(kind, request_id=self._requests, **fields))
        answer, _ = await self._next(None, ANSWER_S)
        return answer

    async def send(self, producer_id: int, entry: bytes) -> Position:
        """Store an entry and return where it is. Raises SystemClientError."""
        self.push(wire.CommandSend(producer_id=producer_id, sequence_id=0), entry)
        return await self.receipt()

    def push(self, send: wire.CommandSend, entry: Buffer) -> None:
        """Send an entry; `receipt` has the answers in the same order."""
        self._writer.writelines(payload_frame(wire.BaseCommand(type=_T.SEND, send=send), entry))

    async def receipt(self) -> Position:
        """Where the next entry that was pushed is. Raises SystemClientError."""
        answer, _ = await self._next(_T.SEND_RECEIPT, ANSWER_S)
        message_id = answer.send_receipt.message_id
        return Position(_signed(message_id.ledgerId), _signed(message_id.entryId))

    async def subscribe(self, topic: TopicName, schema: wire.Schema | None, *, compacted: bool) -> Position | None:
        """Begin to read *topic* from its beginning, as the only consumer of this connection. Returns the last message
        that is there; None: there is none. Raises SystemClientError."""
        await self.ask(
            _T.SUBSCRIBE,
            topic=topic.full,
            subscription=f"__system_reader-reader-{secrets.token_hex(5)}",  # each reader has its own
            consumer_id=1,
            subType=wire.CommandSubscribe.Exclusive,
            durable=False,
            read_compacted=compacted,
            initialPosition=wire.CommandSubscribe.Earliest,
            start_message_id=MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1),
            schema=schema,
        )
        answer = await self.ask(_T.GET_LAST_MESSAGE_ID, consumer_id=1)
        last_id = answer.getLastMessageIdResponse.last_message_id
        self._permit(PERMITS)
        last = Position(_signed(last_id.ledgerId), _signed(last_id.entryId))
        return None if last.entry_id < 0 else last

    async def message(self) -> tuple[Position, memoryview]:
        """The next entry after `subscribe`: a message, a batch, a chunk. Raises SystemClientError, Corruption."""
        answer, entry = await self._next(_T.MESSAGE, SILENCE_S)
        if entry is None:
            raise SystemClientError(f"{self._name} sent a message without an entry")
        parts = split_entry(entry)
        self._given += message_count(metadata_of(parts), len(parts.payload))
        if self._given >= PERMITS // 2:
            self._permit(self._given)
            self._given = 0
        message_id = answer.message.message_id
        return Position(_signed(message_id.ledgerId), _signed(message_id.entryId)), entry

    def _permit(self, messages: int) -> None:
        self.write(command(_T.FLOW, consumer_id=1, messagePermits=messages))

    async def _next(self, expected_type: int | None, timeout_s: float) -> tuple[wire.BaseCommand, memoryview | None]:
        """The next command, which must be *expected_type*; pings are answered meanwhile. Raises SystemClientError."""
        while True:
            answer, entry = await self._read(timeout_s)
            kind = answer.type
            if kind == _T.PING:
                self.write(command(_T.PONG))
            elif kind in (_T.PONG, _T.ACTIVE_CONSUMER_CHANGE):
                continue
            elif kind == _T.ERROR:
                raise Refused(f"{self._name}: {answer.error.message}")
            elif kind == _T.SEND_ERROR:
                raise Refused(f"{self._name}: {answer.send_error.message}")
            elif kind in (_T.CLOSE_CONSUMER, _T.CLOSE_PRODUCER):
                raise SystemClientError(f"{self._name} has given the topic away")
            elif expected_type is not None and kind != expected_type:
                raise SystemClientError(f"{self._name} sent {_T.Type.Name(kind)}, not {_T.Type.Name(expected_type)}")
            else:
                return answer, entry

    async def _read(self, timeout_s: float) -> tuple[wire.BaseCommand, memoryview | None]:
        """The next frame of the other broker. Raises SystemClientError."""
        while not self._frames:
            try:
                async with asyncio.timeout(timeout_s):
                    data = await self._reader.read(_CHUNK)
            except (OSError, TimeoutError) as error:
                raise SystemClientError(f"{self._name} does not answer: {error or 'no answer in time'}") from error
            if not data:
                raise SystemClientError(f"{self._name} closed the connection")
            try:
                self._frames.extend(self._splitter.feed(data))
            except MalformedFrame as error:
                raise SystemClientError(f"{self._name} sent what is not a frame: {error}") from error
        try:
            return parse_frame(self._frames.pop(0))
        except MalformedFrame as error:
            raise SystemClientError(f"{self._name} sent {error}") from error

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self._writer.close()


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
