"""A client of the binary protocol that behaves as the official ones do, for simulations.

Producers keep what is not acknowledged, and send it again with the same sequence ids after they have connected anew.
Consumers ask for as many messages as their queue takes, and forget the queue when they lose their connection. Both
look their topic up again, with a wait that doubles from 0.1 s.
"""

import abc
import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command, parse_frame, payload_frame
from magnetar.testing.simulated.loop import PROCESS
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from managed_ledger.messages import encode_entry, messages_of
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata

_T: Final = wire.BaseCommand

OPERATION_S: Final = 30.0
CONNECT_S: Final = 10.0
KEEP_ALIVE_S: Final = 30.0
BACKOFF_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
REDIRECTS_MAX: Final = 20


class Failed(Exception):
    """A request that was refused, or not answered."""

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code


class _Connection:
    """A connection to one broker."""

    def __init__(
        self, client: "PulsarClient", url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.url = url
        self._client = client
        self._reader = reader
        self._writer = writer
        self._requests: dict[int, asyncio.Future[wire.BaseCommand]] = {}
        self._asked: dict[int, tuple[str, float]] = {}
        """What was asked, and when."""
        self._waiting: set[int] = set()
        """Requests of producers that wait for others to go: the broker has said so."""
        self._greeting: asyncio.Future[wire.BaseCommand] = asyncio.get_running_loop().create_future()
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.is_closed = False
        self._heard_s = asyncio.get_running_loop().time()

    async def greet(self) -> None:
        self.write(command(_T.CONNECT, client_version="simulated", protocol_version=21))
        self._reading = asyncio.create_task(self._read())
        self._pinging = asyncio.create_task(self._ping())
        async with asyncio.timeout(CONNECT_S):
            await self._greeting

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def writelines(self, data: list[Any]) -> None:
        self._writer.writelines(data)

    async def ask(self, kind: int, request_id: int, **fields: Any) -> wire.BaseCommand:
        """The answer. Raises Failed, TimeoutError."""
        if self.is_closed:
            raise Failed("the connection is closed")
        answer: asyncio.Future[wire.BaseCommand] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = answer
        self.write(command(kind, request_id=request_id, **fields))
        began_s = asyncio.get_running_loop().time()
        self._asked[request_id] = f"{wire.BaseCommand.Type.Name(kind)} {fields}", began_s
        try:
            async with asyncio.timeout(self._client.operation_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            if request_id in self._waiting:
                return await answer
            self._client.on_unanswered(*self._asked[request_id])
            raise
        finally:
            self._requests.pop(request_id, None)
            self._asked.pop(request_id, None)
            self._waiting.discard(request_id)

    def unanswered(self, since_s: float) -> list[str]:
        """Requests of before *since_s* that wait for their answer; not those of which the broker has said so."""
        return [
            what
            for request_id, (what, began_s) in self._asked.items()
            if began_s < since_s and request_id not in self._waiting and not self.is_closed
        ]

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.is_closed:
            await asyncio.sleep(KEEP_ALIVE_S)
            if loop.time() - self._heard_s > 2 * KEEP_ALIVE_S:
                self.close()
            else:
                self.write(command(_T.PING))

    async def _read(self) -> None:
        splitter = FrameSplitter(6 << 20)
        try:
            while data := await self._reader.read(1 << 16):
                self._heard_s = asyncio.get_running_loop().time()
                for frame in splitter.feed(data):
                    self._take(*parse_frame(frame))
        except OSError:
            pass
        self.close()

    def _take(self, made: wire.BaseCommand, entry: memoryview | None) -> None:
        kind = made.type
        if kind == _T.PING:
            self.write(command(_T.PONG))
        elif kind == _T.CONNECTED:
            self._greeting.set_result(made)
        elif kind == _T.SEND_RECEIPT and made.send_receipt.producer_id in self.producers:
            self.producers[made.send_receipt.producer_id].stored(made.send_receipt)
        elif kind == _T.SEND_ERROR and made.send_error.producer_id in self.producers:
            self.producers[made.send_error.producer_id].refused(made.send_error)
        elif kind == _T.MESSAGE and made.message.consumer_id in self.consumers:
            assert entry is not None
            self.consumers[made.message.consumer_id].arrived(made.message, bytes(entry))
        elif kind == _T.REACHED_END_OF_TOPIC and made.reachedEndOfTopic.consumer_id in self.consumers:
            self.consumers[made.reachedEndOfTopic.consumer_id].is_at_end = True
        elif kind == _T.CLOSE_PRODUCER and made.close_producer.producer_id in self.producers:
            self.producers.pop(made.close_producer.producer_id).lost(self)
        elif kind == _T.CLOSE_CONSUMER and made.close_consumer.consumer_id in self.consumers:
            self.consumers.pop(made.close_consumer.consumer_id).lost(self)
        else:
            self._settle(made)

    def _settle(self, made: wire.BaseCommand) -> None:
        fields = [body for body, value in made.ListFields() if body.name != "type"]
        body = getattr(made, fields[0].name) if fields else None
        answer = self._requests.get(getattr(body, "request_id", -1))
        if answer is None or answer.done() or body is None:
            return
        if made.type == _T.ACK_RESPONSE and made.ackResponse.HasField("error"):
            answer.set_exception(Failed(made.ackResponse.message, made.ackResponse.error))
        elif made.type == _T.ERROR:
            answer.set_exception(Failed(made.error.message, made.error.error))
        elif made.type == _T.PRODUCER_SUCCESS and not made.producer_success.producer_ready:
            self._waiting.add(made.producer_success.request_id)
        else:
            answer.set_result(made)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._writer.close()
        for answer in [*self._requests.values(), self._greeting]:
            if not answer.done():
                answer.set_exception(Failed("the connection was lost"))
                answer.exception()
        for owner in [*self.producers.values(), *self.consumers.values()]:
            owner.lost(self)
        self.producers.clear()
        self.consumers.clear()


class PulsarClient:
    """The connections of one application. Used in its process."""

    def __init__(
        self,
        urls: list[str],
        rng: random.Random,
        operation_s: float = OPERATION_S,
        *,
        on_unanswered: Callable[[str, float], None] = lambda request, began_s: None,
    ) -> None:
        """*operation_s*: how long the answer to a request is waited for. *on_unanswered* is called with a request that
        got none, and the time at which it was sent."""
        self.on_unanswered = on_unanswered
        self.urls = urls
        self.operation_s = operation_s
        self.rng = rng
        self._connections: dict[str, asyncio.Future[_Connection]] = {}
        self._numbers = 0

    def unanswered(self, since_s: float) -> list[str]:
        """Requests of before *since_s* that still wait for their answer, over connections that are there."""
        made = [each.result() for each in self._connections.values() if each.done() and not each.exception()]
        return [what for connection in made for what in connection.unanswered(since_s)]

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def connect(self, url: str) -> _Connection:
        """Raises OSError, TimeoutError, Failed."""
        known = self._connections.get(url)
        if known is not None and (not known.done() or (not known.exception() and not known.result().is_closed)):
            return await asyncio.shield(known)
        made = asyncio.ensure_future(self._connect(url))
        self._connections[url] = made
        return await asyncio.shield(made)

    async def _connect(self, url: str) -> _Connection:
        host, _, port = url.removeprefix("pulsar://").partition(":")
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
        connection = _Connection(self, url, reader, writer)
        await connection.greet()
        return connection

    async def locate(self, topic: str) -> str:
        """The URL of the broker that serves *topic*. Raises OSError, TimeoutError, Failed."""
        url, authoritative = self.rng.choice(self.urls), False
        for _ in range(REDIRECTS_MAX):
            connection = await self.connect(url)
            made = await connection.ask(_T.LOOKUP, self.number(), topic=topic, authoritative=authoritative)
            answer = made.lookupTopicResponse
            if answer.response == wire.CommandLookupTopicResponse.Failed:
                raise Failed(answer.message, answer.error)
            url, authoritative = answer.brokerServiceUrl, answer.authoritative
            if answer.response == wire.CommandLookupTopicResponse.Connect:
                return url
        raise Failed("too many redirects")

    async def partitions(self, topic: str) -> int:
        """How many partitions *topic* has; 0: none, or nobody could say."""
        try:
            connection = await self.connect(self.rng.choice(self.urls))
            made = await connection.ask(
                _T.PARTITIONED_METADATA, self.number(), topic=topic, metadata_auto_creation_enabled=False
            )
        except (OSError, TimeoutError, Failed):
            return 0
        return int(made.partitionMetadataResponse.partitions)

    async def subscribe(self, topic: str, subscription: str, kind: int, **options: Any) -> "Consumer":
        """Returns when it is subscribed for the first time. Raises Failed where it is refused for good."""
        consumer = Consumer(self, topic, subscription, kind, **options)
        consumer.start()
        await consumer.ready.wait()
        return consumer

    async def produce(self, topic: str, name: str, **options: Any) -> "Producer":
        producer = Producer(self, topic, name, **options)
        producer.start()
        await producer.ready.wait()
        return producer


class _Attached(abc.ABC):
    """What is attached to a topic, and attaches itself again when it was lost."""

    name: str

    def __init__(self, client: PulsarClient, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.id = client.number()
        self.process = PROCESS.get()
        self.connection: _Connection | None = None
        self._left: _Connection | None = None
        """The connection over which it has begun anew."""
        self.is_closed = False
        self.ready = asyncio.Event()
        self._lost = asyncio.Event()
        self.refusals: list[str] = []

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        tries = 0
        while not self.is_closed:
            self._lost.clear()
            try:
                connection = await self.client.connect(await self.client.locate(self.topic))
                await self._attach(connection)
                self._left = None
                tries = 0
                self.ready.set()
                await self._lost.wait()
                if connection.is_closed and not self.is_closed:
                    await asyncio.sleep(BACKOFF_S[0])
            except (OSError, TimeoutError, Failed) as error:
                self.refusals = [*self.refusals[-9:], f"{error!r}"]
                await asyncio.sleep(BACKOFF_S[min(tries, len(BACKOFF_S) - 1)] * self.client.rng.uniform(0.9, 1.0))
                tries += 1

    def leave_be(self) -> None:
        """It stays attached, and does not come again when it is lost."""
        self._task.cancel()

    @abc.abstractmethod
    async def _attach(self, connection: _Connection) -> None:
        """Raises OSError, TimeoutError, Failed."""

    def begin_anew(self) -> None:
        """Ask for its place once more on the connection that it has, as a client that was told of a close which is an
        old one by now. What comes for it meanwhile is forgotten."""
        connection = self.connection
        if connection is not None:
            self._left = connection
            self._of(connection).pop(self.id, None)
            self.lost(connection)

    def _let_go(self) -> _Connection | None:
        """The connection over which it has to be closed: the broker may have it, though it has begun anew."""
        self.is_closed = True
        self._task.cancel()
        connection, self.connection = self.connection, None
        return connection or (None if self._left is None or self._left.is_closed else self._left)

    @abc.abstractmethod
    def _of(self, connection: _Connection) -> dict[int, Any]:
        """Those of its kind that *connection* knows."""

    def lost(self, connection: _Connection) -> None:
        if connection is self.connection:
            self.connection = None
            self._forget()
        self._lost.set()

    def _forget(self) -> None:
        """The connection is gone."""


@dataclass(slots=True)
class _Pending:
    sequence_id: int
    count: int
    entry: bytes
    answer: "asyncio.Future[tuple[int, int]]"
    deadline_s: float
    is_chunk: bool


class Producer(_Attached):
    """Sends entries of one message or of a batch."""

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        name: str,
        *,
        timeout_s: float = 30.0,
        access: int = 0,
        **fields: Any,
    ) -> None:
        """*fields*: more of its command."""
        super().__init__(client, topic)
        self.name = name
        self._access = access
        self._fields = fields
        self._timeout_s = timeout_s
        self._next_sequence_id = 0
        self._epoch = 0
        self.topic_epoch: int | None = None
        """How many had the topic for themselves before; None: not known, or it is shared."""
        self._pending: deque[_Pending] = deque()

    def _of(self, connection: _Connection) -> "dict[int, Producer]":
        return connection.producers

    async def _attach(self, connection: _Connection) -> None:
        connection.producers[self.id] = self
        epoch = {} if self.topic_epoch is None else {"topic_epoch": self.topic_epoch}
        try:
            made = await connection.ask(
                _T.PRODUCER, self.client.number(), topic=self.topic, producer_id=self.id, producer_name=self.name,
                epoch=self._epoch, user_provided_producer_name=True, producer_access_mode=self._access, **epoch,
                **self._fields,
            )  # fmt: skip
        except Failed as error:
            connection.producers.pop(self.id, None)
            if error.code in (wire.ProducerFenced, wire.TopicTerminatedError):
                self._end(str(error))
            raise
        except BaseException:
            connection.producers.pop(self.id, None)
            raise
        if made.producer_success.HasField("topic_epoch"):
            self.topic_epoch = made.producer_success.topic_epoch
        self._epoch += 1
        if connection.is_closed:
            raise Failed("lost at once")
        self.connection = connection
        for pending in self._pending:
            self._write(pending)

    def _end(self, why: str) -> None:
        """It never sends again."""
        self.is_closed = True
        self.ready.set()
        self._fail(why)

    @property
    def waiting(self) -> int:
        return len(self._pending)

    @property
    def sequence_id(self) -> int:
        """Of the next message. An application may begin again with an earlier one."""
        return self._next_sequence_id

    @sequence_id.setter
    def sequence_id(self, sequence_id: int) -> None:
        assert not self._pending, "the answers go by their order"
        self._next_sequence_id = sequence_id

    def send_chunks(self, pieces: list[bytes]) -> "list[asyncio.Future[tuple[int, int]]]":
        """A message in chunks, which have one sequence id."""
        uuid = f"{self.name}-{self._next_sequence_id}"
        answers = []
        for chunk_id, piece in enumerate(pieces):
            sequence_id = self._next_sequence_id
            answers.append(
                self.send(
                    [piece], uuid=uuid, chunk_id=chunk_id, num_chunks_from_msg=len(pieces),
                    total_chunk_msg_size=sum(map(len, pieces)),
                )
            )  # fmt: skip
            if chunk_id + 1 < len(pieces):
                self._next_sequence_id = sequence_id
        return answers

    def send(self, payloads: list[bytes], key: str = "", **fields: Any) -> "asyncio.Future[tuple[int, int]]":
        """(ledger, entry) when it is stored, or Failed: then nobody knows."""
        if self.is_closed:
            answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
            answer.set_exception(Failed("it is closed"))
            return answer
        first = self._next_sequence_id
        self._next_sequence_id += len(payloads)
        fields.setdefault("publish_time", int(asyncio.get_running_loop().time() * 1000) + 1)
        metadata = MessageMetadata(producer_name=self.name, sequence_id=first, **fields)
        if len(payloads) == 1:
            if key:
                metadata.partition_key = key
            body = payloads[0]
        else:
            metadata.num_messages_in_batch = len(payloads)
            metadata.highest_sequence_id = self._next_sequence_id - 1
            body = b"".join(_single(payload, key) for payload in payloads)
            metadata.uncompressed_size = len(body)
        loop = asyncio.get_running_loop()
        pending = _Pending(
            first, len(payloads), encode_entry(metadata, body), loop.create_future(), loop.time() + self._timeout_s,
            "chunk_id" in fields,
        )  # fmt: skip
        self._pending.append(pending)
        if len(self._pending) == 1:
            loop.call_later(self._timeout_s, self._time_out)
        if self.connection is not None:
            self._write(pending)
        return pending.answer

    async def close(self) -> None:
        """What is not acknowledged fails."""
        connection = self._let_go()
        self._fail("closed")
        if connection is not None:
            connection.producers.pop(self.id, None)
            await _close(connection, _T.CLOSE_PRODUCER, self.client.number(), producer_id=self.id)

    def _write(self, pending: _Pending) -> None:
        assert self.connection is not None
        made = wire.BaseCommand(
            type=_T.SEND, send=wire.CommandSend(producer_id=self.id, sequence_id=pending.sequence_id)
        )
        if pending.is_chunk:
            made.send.is_chunk = True
        if pending.count > 1:
            made.send.num_messages = pending.count
            made.send.highest_sequence_id = pending.sequence_id + pending.count - 1
        self.connection.writelines(list(payload_frame(made, pending.entry)))

    def stored(self, receipt: Any) -> None:
        if not self._pending or receipt.sequence_id < self._pending[0].sequence_id:
            return  # the answer to what has timed out, or was sent twice
        if receipt.sequence_id > self._pending[0].sequence_id:
            assert self.connection is not None
            self.connection.close()  # as the official clients do: something was left out
            return
        pending = self._pending.popleft()
        if not pending.answer.done():
            pending.answer.set_result((_signed(receipt.message_id.ledgerId), _signed(receipt.message_id.entryId)))

    def refused(self, error: Any) -> None:
        if error.error == wire.TopicTerminatedError:
            self._end("the topic is terminated")
        elif error.error == wire.NotAllowedError and self._pending:
            pending = self._pending.popleft()
            assert pending.sequence_id == error.sequence_id, "the answers go by their order"
            if not pending.answer.done():
                pending.answer.set_exception(Failed(error.message, error.error))
                pending.answer.exception()
        elif self.connection is not None:
            self.connection.close()

    def _time_out(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._pending:
            return
        if self._pending[0].deadline_s <= loop.time():
            self._fail("timed out")
        else:
            loop.call_at(self._pending[0].deadline_s, self._time_out)

    def _fail(self, why: str) -> None:
        failed, self._pending = self._pending, deque()
        for pending in failed:
            if not pending.answer.done():
                pending.answer.set_exception(Failed(why))
                pending.answer.exception()


async def _close(connection: _Connection, kind: int, request_id: int, **fields: Any) -> None:
    """A close that is not answered ends the connection: nothing of it may be left at the broker."""
    try:
        await connection.ask(kind, request_id, **fields)
    except (Failed, TimeoutError):
        connection.close()


def _single(payload: bytes, key: str) -> bytes:
    metadata = SingleMessageMetadata(payload_size=len(payload))
    if key:
        metadata.partition_key = key
    head = metadata.SerializeToString()
    return len(head).to_bytes(4, "big") + head + payload


class MessageId(NamedTuple):
    ledger_id: int
    entry_id: int
    batch_index: int
    batch_size: int


@dataclass(slots=True)
class Received:
    """A message in the hands of an application."""

    id: MessageId
    payload: bytes
    redeliveries: int
    consumer: "Consumer"
    key: str
    chunk: tuple[str, int, int] | None
    """Of which message, which chunk of how many."""
    session: int
    """The connection over which it came; what came over a former one is not acknowledged any more."""


@dataclass(slots=True)
class _BatchAcks:
    left: set[int] = field(default_factory=set)


class Consumer(_Attached):
    """Gives each message to *on_message*, which acknowledges it some time, or not."""

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        subscription: str,
        kind: int,
        *,
        on_message: Callable[[Received], None],
        name: str,
        queue: int = 100,
        durable: bool = True,
        index_acks: bool = False,
        latest: bool = False,
        compacted: bool = False,
        **fields: Any,
    ) -> None:
        """*fields*: more of its command."""
        super().__init__(client, topic)
        self.subscription = subscription
        self.name = name
        self._kind = kind
        self._on_message = on_message
        self._queue = queue
        self._durable = durable
        self._index_acks = index_acks
        self._compacted = compacted
        self._fields = fields
        self._initial = wire.CommandSubscribe.Latest if latest else wire.CommandSubscribe.Earliest
        self._given = 0
        self._is_subscribed = False
        """Nothing that comes before the answer to SUBSCRIBE is for this session."""
        self.is_at_end = False
        """The broker has said that the topic ends here."""
        self.session = 0
        self._batches: dict[tuple[int, int], _BatchAcks] = {}

    @property
    def permits(self) -> int:
        """How many messages the broker may still send."""
        return self._queue - self._given

    def _of(self, connection: _Connection) -> "dict[int, Consumer]":
        return connection.consumers

    async def _attach(self, connection: _Connection) -> None:
        connection.consumers[self.id] = self
        self._is_subscribed = False
        options: dict[str, Any] = {}
        if not self._durable:
            options["start_message_id"] = MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
        self.session += 1
        self._given = 0
        self._batches.clear()
        self.connection = connection
        try:
            await connection.ask(
                _T.SUBSCRIBE, self.client.number(), topic=self.topic, subscription=self.subscription,
                subType=self._kind, consumer_id=self.id, consumer_name=self.name, durable=self._durable,
                initialPosition=self._initial, read_compacted=self._compacted, **options,
                **self._fields,
            )  # fmt: skip
        except BaseException:
            connection.consumers.pop(self.id, None)
            if self.connection is connection:
                self.connection = None
            raise
        if self.connection is not connection:
            raise Failed("lost at once")
        self._is_subscribed = True
        connection.write(command(_T.FLOW, consumer_id=self.id, messagePermits=self._queue))

    def arrived(self, message: Any, entry: bytes) -> None:
        if not self._is_subscribed:
            return
        metadata, messages = messages_of(entry)
        place = (_signed(message.message_id.ledgerId), _signed(message.message_id.entryId))
        count = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
        open_indexes = _open_indexes(list(message.ack_set), count)
        if metadata.HasField("num_messages_in_batch"):
            self._batches.setdefault(place, _BatchAcks(set(open_indexes)))
        for index, each in enumerate(messages):
            self._took(1)
            if index not in open_indexes or (each.single is not None and each.single.compacted_out):
                continue
            message_id = MessageId(*place, -1 if each.single is None else index, count)
            key = metadata.partition_key if each.single is None else each.single.partition_key
            chunk = None
            if metadata.num_chunks_from_msg > 1:
                chunk = metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg
            self._on_message(
                Received(message_id, bytes(each.payload), message.redelivery_count, self, key, chunk, self.session)
            )

    def _took(self, count: int) -> None:
        self._given += count
        if self._given >= max(self._queue // 2, 1) and self.connection is not None:
            self.connection.write(command(_T.FLOW, consumer_id=self.id, messagePermits=self._given))
            self._given = 0

    def acknowledge(self, received: Received, *, cumulative: bool = False) -> bool:
        """Whether it was sent; not over another connection than that which brought the message."""
        message_id = self._acknowledged(received, cumulative=cumulative)
        if message_id is None or self.connection is None:
            return False
        kind = wire.CommandAck.Cumulative if cumulative else wire.CommandAck.Individual
        self.connection.write(command(_T.ACK, consumer_id=self.id, ack_type=kind, message_id=[message_id]))
        return True

    async def acknowledge_answered(self, received: Received, *, cumulative: bool = False) -> bool:
        """Whether the broker says that it is done. It is told of parts of batches whether it keeps them or not."""
        connection = self.connection
        message_id = self._acknowledged(received, cumulative=cumulative, keeps=False)
        if message_id is None or connection is None:
            return False
        kind = wire.CommandAck.Cumulative if cumulative else wire.CommandAck.Individual
        try:
            await connection.ask(
                _T.ACK, self.client.number(), consumer_id=self.id, ack_type=kind, message_id=[message_id]
            )
        except (Failed, TimeoutError):
            return False
        return True

    def _acknowledged(self, received: Received, *, cumulative: bool, keeps: bool = True) -> MessageIdData | None:
        """What the broker has to be told; None: nothing. *keeps*: the client keeps parts of a batch to itself where the
        broker does not know them."""
        if self.connection is None or received.session != self.session:
            return None
        ledger_id, entry_id, index, size = received.id
        message_id = MessageIdData(ledgerId=ledger_id, entryId=entry_id)
        if index >= 0 and not cumulative:
            batch = self._batches.get((ledger_id, entry_id))
            if batch is None:
                return None
            batch.left.discard(index)
            if not batch.left:
                del self._batches[ledger_id, entry_id]
                return message_id
            if keeps and not self._index_acks:
                return None  # the whole is acknowledged when all of it is
            message_id.ack_set.extend(_ack_set({index}, size))
        elif index >= 0 and index < size - 1:
            if keeps:
                return None  # the official clients acknowledge the entry before it; nothing is fine, too
            message_id.ack_set.extend(_ack_set(set(range(index + 1)), size))
        if message_id.ack_set:
            message_id.batch_size = size
        return message_id

    def redeliver(self, received: list[Received]) -> None:
        """Negative acknowledgements."""
        ids = [
            MessageIdData(ledgerId=each.id.ledger_id, entryId=each.id.entry_id)
            for each in received
            if each.session == self.session
        ]
        if self.connection is not None and ids:
            for each in received:
                self._batches.pop((each.id.ledger_id, each.id.entry_id), None)
            self.connection.write(command(_T.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=self.id, message_ids=ids))

    async def unsubscribe(self) -> bool:
        """Whether the broker says that the subscription is removed; then the consumer is closed."""
        connection = self.connection
        if connection is None:
            return False
        try:
            await connection.ask(_T.UNSUBSCRIBE, self.client.number(), consumer_id=self.id)
        except (Failed, TimeoutError):
            return False
        self.is_closed = True
        self._task.cancel()
        connection.consumers.pop(self.id, None)
        self.connection = None
        return True

    async def seek_begin(self) -> bool:
        """Whether it is done, as the broker says. The broker ends the consumer's connection to its topic meanwhile, and
        it comes again."""
        connection = self.connection
        if connection is None:
            return False
        begin = MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
        try:
            await connection.ask(_T.SEEK, self.client.number(), consumer_id=self.id, message_id=begin)
        except (Failed, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        connection = self._let_go()
        if connection is not None:
            connection.consumers.pop(self.id, None)
            await _close(connection, _T.CLOSE_CONSUMER, self.client.number(), consumer_id=self.id)


def _open_indexes(ack_set: list[int], count: int) -> set[int]:
    """The messages of a batch that are not acknowledged, by the bits of *ack_set*; empty: all."""
    if not ack_set:
        return set(range(count))
    bits = 0
    for number, word in enumerate(ack_set):
        bits |= (word & (2**64 - 1)) << (64 * number)
    return {index for index in range(count) if bits >> index & 1}


def _ack_set(acknowledged: set[int], count: int) -> list[int]:
    """The words of an ack set: a bit is 1 where a message is not acknowledged."""
    bits = sum(1 << index for index in range(count) if index not in acknowledged)
    words = [bits >> at & (2**64 - 1) for at in range(0, max(count, 1), 64)]
    return [word - 2**64 if word >= 2**63 else word for word in words]


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
