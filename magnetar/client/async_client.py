"""The simple topic API for programs with an event loop.

    async with AsyncClient("localhost:6648") as client:
        id = await client.producer("orders").send(b"payload", key="k")
        async with client.consumer("orders", "billing") as consumer:
            async for message in consumer:
                consumer.ack(message)

What is guaranteed when is in docs/topic-api.md.
"""

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from magnetar.client.brokers import Brokers
from magnetar.client.consuming import ConsumeStream
from magnetar.client.errors import ClientClosed, TopicDoesNotExist, TopicError, UnreadableMessage
from magnetar.client.publishing import PublishStream
from magnetar.client.values import (
    TYPES,
    Message,
    Outgoing,
    Schema,
    Time,
    check_batch,
    id_from_api,
    id_to_api,
    outgoing,
    partition_of_key,
    time_ms,
)
from magnetar_core.runtime.tasks import Bell
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.message_id import EARLIEST, LATEST, MessageId
from managed_ledger.topic_name import TopicName

# Messages that wait in a consumer for the program, over all partitions of a topic.
QUEUE_SIZE: Final = 1_000

OPERATION_TIMEOUT_S: Final = 30.0
SEND_TIMEOUT_S: Final = 30.0

Start = str | MessageId | Time
"""Where a reader begins: "earliest", "latest", an id (the message behind it comes first), or a time."""


# How often a partitioned topic is deleted by force that somebody goes on making, and the time in between: clients that
# were sent away come back at once, and then after 100 ms and more.
DELETE_ROUNDS: Final = 5
DELETE_PAUSE_S: Final = 0.1


class AsyncClient:
    """A client of the topic API. Its calls raise TopicError; see `magnetar.client.errors`.

    *addresses* are host:port of the gRPC ports of one or more brokers, in one text separated by commas or as several
    texts; any one of them that is up will do. *operation_timeout_s* bounds every call but sends.
    """

    def __init__(self, addresses: str | Sequence[str], *, operation_timeout_s: float = OPERATION_TIMEOUT_S) -> None:
        if isinstance(addresses, str):
            addresses = [one.strip() for one in addresses.split(",") if one.strip()]
        self._brokers = Brokers(addresses, operation_timeout_s)
        self._open: set[AsyncProducer | AsyncConsumer] = set()
        self._producers: dict[str, AsyncProducer] = {}
        self.topics = AsyncTopics(self._brokers)

    def producer(
        self,
        topic: str,
        *,
        name: str = "",
        schema: Schema | None = None,
        mix_keys: bool = False,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> "AsyncProducer":
        """A producer of *topic*; opened with the first message. Without other arguments it is one for all callers.

        With a *name* a message that is sent again is stored once, where the namespace has deduplication; without one
        the broker puts messages of several producers into one entry. *mix_keys* puts messages of different keys into
        one entry: cheaper, but not for Key_Shared subscriptions.
        """
        plain = not name and schema is None and not mix_keys and send_timeout_s == SEND_TIMEOUT_S
        if plain and topic in self._producers:
            return self._producers[topic]
        opening = api.PublishRequest.Open(producer_name=name, mix_keys=mix_keys)
        if schema is not None:
            opening.schema.CopyFrom(schema.to_api())
        made = AsyncProducer(self, topic, opening, send_timeout_s)
        self._open.add(made)
        if plain:
            self._producers[topic] = made
        return made

    def consumer(
        self,
        topic: str,
        subscription: str,
        *,
        type: str = "exclusive",
        name: str = "",
        from_earliest: bool = False,
        queue_size: int = QUEUE_SIZE,
        sticky_ranges: Sequence[tuple[int, int]] = (),
        allow_out_of_order: bool = False,
        priority: int = 0,
        schema: Schema | None = None,
    ) -> "AsyncConsumer":
        """A consumer of *topic*; it subscribes with the first receive, or by `async with`.

        *type* is exclusive, shared, failover or key_shared. A new subscription begins behind the last message, or at
        the first one with *from_earliest*. *queue_size* messages may wait here for the program; the broker keeps the
        rest. *sticky_ranges* (key_shared) are the key hashes wanted, 0 … 65535, both ends included.
        """
        if type not in TYPES:
            raise ValueError(f"type={type!r}: expected one of {', '.join(TYPES)}")
        if not subscription:
            raise ValueError("a consumer needs the name of a subscription")
        opening = api.ConsumeRequest.Open(
            subscription=subscription,
            type=TYPES[type],
            consumer_name=name,
            from_earliest=from_earliest,
            allow_out_of_order=allow_out_of_order,
            priority=priority,
        )
        for start, end in sticky_ranges:
            opening.sticky_ranges.add(start=start, end=end)
        if schema is not None:
            opening.schema.CopyFrom(schema.to_api())
        made = AsyncConsumer(self, topic, opening, queue_size)
        self._open.add(made)
        return made

    def reader(
        self, topic: str, *, start: Start = "earliest", inclusive: bool = False, queue_size: int = QUEUE_SIZE
    ) -> "AsyncReader":
        """Reads *topic* from *start* on without a subscription that stays. *inclusive*: the start id comes too."""
        opening = api.ConsumeRequest.Open(
            subscription=f"reader-{secrets.token_hex(5)}", type=api.EXCLUSIVE, is_reader=True
        )
        start_ms = 0
        if start == "earliest" or start == EARLIEST:
            opening.from_earliest = True
        elif start == "latest":
            opening.start_id.CopyFrom(id_to_api(LATEST))
        elif isinstance(start, MessageId):
            opening.start_id.CopyFrom(id_to_api(start))
            opening.start_inclusive = inclusive
        elif isinstance(start, str):
            raise ValueError(f"start={start!r}: expected earliest, latest, a MessageId or a time")
        else:
            start_ms = time_ms(start)
            opening.from_earliest = True
        made = AsyncReader(self, topic, opening, queue_size, start_ms)
        self._open.add(made)
        return made

    async def close(self) -> None:
        """Close all producers (after what they sent is answered), consumers and readers."""
        await asyncio.gather(*(one.close() for one in list(self._open)))
        await self._brokers.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _forget(self, one: "AsyncProducer | AsyncConsumer") -> None:
        self._open.discard(one)
        if isinstance(one, AsyncProducer) and self._producers.get(one.topic) is one:
            del self._producers[one.topic]


async def _topics_of(brokers: Brokers, topic: str) -> list[str]:
    """Full name of the topic, or those of its partitions. Raises TopicError."""
    request = api.GetTopicRequest(topic=topic, create=True)
    found = await brokers.ask_any("GetTopic", request, api.GetTopicResponse)
    if not found.partitions:
        return [found.topic]
    return [f"{found.topic}-partition-{number}" for number in range(found.partitions)]


class AsyncProducer:
    """Sends messages to one topic. Made by `AsyncClient.producer`."""

    def __init__(self, client: AsyncClient, topic: str, opening: Any, send_timeout_s: float) -> None:
        self.topic = topic
        self._client = client
        self._opening = opening
        self._send_timeout_s = send_timeout_s
        self._streams: list[PublishStream] = []
        self._lock = asyncio.Lock()
        self._turn = 0
        self._is_closed = False

    @property
    def name(self) -> str:
        """The name under which messages are stored; empty before the first one."""
        return self._streams[0].producer_name if self._streams else str(self._opening.producer_name)

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that was stored under this name when the stream was opened; -1: none or not known."""
        return max((stream.last_sequence_id for stream in self._streams), default=-1)

    async def open(self) -> "AsyncProducer":
        """Connect now instead of with the first message. Raises TopicError."""
        async with self._lock:
            if self._is_closed:
                raise ClientClosed(f"{self.topic}: the producer is closed")
            if not self._streams:
                streams = []
                for topic in await _topics_of(self._client._brokers, self.topic):
                    opening = api.PublishRequest.Open()
                    opening.CopyFrom(self._opening)
                    opening.topic = topic
                    streams.append(PublishStream(self._client._brokers, topic, opening, self._send_timeout_s))
                await _open_all(streams)
                self._streams = streams
        return self

    def __await__(self) -> Generator[Any, None, "AsyncProducer"]:
        """`await client.producer(…)` is one that is open."""
        return self.open().__await__()

    async def send(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        ordering_key: bytes = b"",
        sequence_id: int | None = None,
    ) -> MessageId:
        """Send a message and wait until it is on disk on the ack quorum; returns its id.

        Times are milliseconds since 1970 or datetimes. *deliver_at* holds it back on shared and key_shared
        subscriptions. *sequence_id* (named producers) must grow; a message that was stored before returns the id -1:-1.
        """
        message = outgoing(Outgoing(payload, key, properties, event_time, deliver_at, ordering_key))
        if not self._streams or self._is_closed:
            await self.open()
        return (await self._stream(key).submit([message], sequence_id))[0]

    async def send_many(
        self, messages: Sequence[Outgoing | bytes], *, first_sequence_id: int | None = None
    ) -> list[MessageId]:
        """Send messages in order and wait for all; returns their ids.

        On a partitioned topic those without a key go to one partition.
        """
        made = check_batch(messages)
        if not made:
            return []
        if not self._streams or self._is_closed:
            await self.open()
        if len(self._streams) == 1:
            return await self._streams[0].submit(made, first_sequence_id)
        if first_sequence_id is not None:
            raise ValueError(f"{self.topic} is partitioned; give sequence ids with `send`")
        keyless = self._stream(None)
        groups: dict[PublishStream, list[int]] = {}
        for at, one in enumerate(made):
            groups.setdefault(self._stream(one.key) if one.HasField("key") else keyless, []).append(at)
        answers = await asyncio.gather(
            *(stream.submit([made[at] for at in at_], None) for stream, at_ in groups.items())
        )
        ids = [EARLIEST] * len(made)
        for at_, answer in zip(groups.values(), answers, strict=True):
            for at, one_id in zip(at_, answer, strict=True):
                ids[at] = one_id
        return ids

    def _stream(self, key: str | None) -> PublishStream:
        streams = self._streams
        if len(streams) == 1:
            return streams[0]
        if key is not None:
            return streams[partition_of_key(key, len(streams))]
        self._turn += 1
        return streams[self._turn % len(streams)]

    async def flush(self) -> None:
        """Wait until everything that was sent is acknowledged or has failed."""
        await asyncio.gather(*(stream.flush() for stream in self._streams))

    async def close(self) -> None:
        """Flush and disconnect."""
        self._is_closed = True
        self._client._forget(self)
        async with self._lock:
            await self.flush()
            await asyncio.gather(*(stream.close() for stream in self._streams))

    async def __aenter__(self) -> "AsyncProducer":
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Done:
    """What is awaited where nothing is left to wait for."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


_DONE: Final = _Done()


class _Queue:
    """Messages that wait for the program. `take` may be called from any thread; one at a time."""

    def __init__(self) -> None:
        self._messages: deque[tuple[int, ConsumeStream, Message]] = deque()
        self.bell = Bell()

    def put(self, stream: ConsumeStream, messages: list[Message]) -> None:
        generation = stream.generation
        self._messages.extend((generation, stream, message) for message in messages)
        self.bell.ring()

    def drop(self, stream: ConsumeStream) -> None:
        """Forget what waits of *stream*: its generation has changed, so `take` passes over it."""
        kept = [one for one in list(self._messages) if one[1] is not stream]
        if not kept:
            self._messages.clear()

    def take(self) -> Message | None:
        messages = self._messages
        while True:
            try:
                generation, stream, message = messages.popleft()
            except IndexError:
                return None
            if generation == stream.generation:
                stream.on_taken(message)
                return message


class AsyncConsumer:
    """Receives the messages of one subscription. Made by `AsyncClient.consumer`."""

    def __init__(self, client: AsyncClient, topic: str, opening: Any, queue_size: int, start_ms: int = 0) -> None:
        if queue_size < 1:
            raise ValueError(f"queue_size ({queue_size}) must be at least 1")
        self.topic = topic
        self._client = client
        self._opening = opening
        self._queue_size = queue_size
        self._start_ms = start_ms
        self._queue = _Queue()
        self._streams: dict[str, ConsumeStream] = {}
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def open(self) -> Self:
        """Subscribe now instead of with the first receive. Raises TopicError."""
        async with self._lock:
            if self._is_closed:
                raise ClientClosed(f"{self.topic}: the consumer is closed")
            if not self._streams:
                topics = await _topics_of(self._client._brokers, self.topic)
                streams: dict[str, ConsumeStream] = {}
                share = max(self._queue_size // len(topics), 1)
                for topic in topics:
                    opening = api.ConsumeRequest.Open()
                    opening.CopyFrom(self._opening)
                    opening.topic = topic
                    streams[topic] = ConsumeStream(
                        self._client._brokers,
                        topic,
                        opening,
                        self._queue,
                        share,
                        TopicName.parse(topic).partition,
                        self._start_ms,
                    )
                await _open_all(list(streams.values()))
                self._streams = streams
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """`await client.consumer(…)` is one that has subscribed, `await client.reader(…)` one that is at its start."""
        return self.open().__await__()

    # -------------------------------------------------------------------------------- receiving

    async def receive(self, timeout_s: float | None = None) -> Message:
        """The next message; waits for it. Raises TimeoutError, UnreadableMessage, TopicError."""
        message = self.take()
        if message is None:
            async with asyncio.timeout(timeout_s):
                message = await self._wait()
        return check_readable(message)

    async def receive_batch(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Waits for one message, then takes those that are there, *max_messages* at most.

        An empty list if none comes within *timeout_s*. Messages that cannot be read come with `problem` set.
        """
        messages: list[Message] = []
        first = self.take()
        if first is None:
            try:
                async with asyncio.timeout(timeout_s):
                    first = await self._wait()
            except TimeoutError:
                return messages
        messages.append(first)
        while len(messages) < max_messages and (message := self.take()) is not None:
            messages.append(message)
        return messages

    def take(self) -> Message | None:
        """The next message if one waits here already."""
        return None if self._is_closed else self._queue.take()

    async def _wait(self) -> Message:
        while True:
            if not self._streams or self._is_closed:
                await self.open()
            message = self.take()
            if message is not None:
                return message
            for stream in self._streams.values():
                if stream.failure is not None:
                    raise stream.failure
            await self._queue.bell.rung()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Message]:
        while not self._is_closed:
            try:
                yield await self.receive()
            except ClientClosed:
                return

    # -------------------------------------------------------------------------------- answering

    def ack(self, messages: Message | MessageId | Iterable[Message | MessageId]) -> Awaitable[None]:
        """Acknowledge messages: they do not come again.

        Sent with the next request; `flush` waits until the broker has them. It is done when this returns, awaited or
        not.
        """
        for stream, ids in self._by_stream(messages).items():
            stream.ack_soon(ids)
        return _DONE

    async def ack_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge *message* and all before it (in its partition), and wait. Exclusive and failover only."""
        ((stream, ids),) = self._by_stream(message).items()
        await stream.request(api.ConsumeRequest(cumulative_ack=id_to_api(ids[0])))

    async def nack(
        self, messages: Message | MessageId | Iterable[Message | MessageId], *, delay_s: float = 60.0
    ) -> None:
        """Deliver again after *delay_s*. The entry is the unit: of a batch, all messages not acknowledged come again.

        Exclusive and failover keep the order, so everything unacknowledged comes again.
        """
        for stream, ids in self._by_stream(messages).items():
            request = api.ConsumeRequest()
            request.nack.ids.extend(id_to_api(one) for one in ids)
            request.nack.delay_ms = round(delay_s * 1000)
            await stream.request(request)

    def _by_stream(
        self, messages: Message | MessageId | Iterable[Message | MessageId]
    ) -> dict[ConsumeStream, list[MessageId]]:
        if self._is_closed:
            raise ClientClosed(f"{self.topic}: the consumer is closed")
        if not self._streams:
            raise TopicError(f"{self.topic}: nothing was received yet")
        many = [messages] if isinstance(messages, Message | MessageId) else messages
        found: dict[ConsumeStream, list[MessageId]] = {}
        only = next(iter(self._streams.values())) if len(self._streams) == 1 else None
        for one in many:
            id_ = one.id if isinstance(one, Message) else one
            stream = only
            if stream is None:
                stream = next((it for it in self._streams.values() if it.partition == id_.partition), None)
                if stream is None:
                    raise ValueError(f"{id_} does not belong to a partition of {self.topic}")
            found.setdefault(stream, []).append(id_)
        return found

    async def flush(self) -> None:
        """Wait until the broker has all acks so far. Raises TopicError."""
        await asyncio.gather(*(stream.request(api.ConsumeRequest()) for stream in self._streams.values()))

    async def seek(self, to: Start) -> None:
        """Go on elsewhere: "earliest", "latest", an id (that message comes next), or a publish time.

        Other consumers of the subscription are disconnected for a moment.
        """
        await self.open()
        for stream in list(self._streams.values()):
            request = api.ConsumeRequest()
            if to == "latest":
                request.seek.to_end = True
            elif to == "earliest":
                request.seek.id.CopyFrom(id_to_api(EARLIEST))
            elif isinstance(to, MessageId):
                if len(self._streams) > 1 and to.partition != stream.partition and to.ledger_id >= 0:
                    continue
                request.seek.id.CopyFrom(id_to_api(to))
            elif isinstance(to, str):
                raise ValueError(f"seek to {to!r}: expected earliest, latest, a MessageId or a time")
            else:
                request.seek.time_ms = time_ms(to)
            await stream.request(request)

    async def unsubscribe(self) -> None:
        """Remove the subscription and close. Raises TopicError if it has other consumers."""
        await self.open()
        for stream in self._streams.values():
            await stream.request(api.ConsumeRequest(unsubscribe=True))
        await self.close()

    async def close(self) -> None:
        """Send the acks that wait, then disconnect; what is not acknowledged goes to others, or comes again."""
        self._client._forget(self)
        async with self._lock:
            self._is_closed = True
            await asyncio.gather(*(stream.close() for stream in self._streams.values()))
        self._queue.bell.ring()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncReader(AsyncConsumer):
    """Reads a topic without leaving a subscription. Made by `AsyncClient.reader`."""

    async def has_more(self) -> bool:
        """Whether there are messages behind the last one that was received. Raises TopicError."""
        await self.open()
        for stream in self._streams.values():
            request = api.GetLastMessageIdRequest(topic=stream.topic)
            answer = await self._client._brokers.ask_owner(
                stream.topic, "GetLastMessageId", request, api.GetLastMessageIdResponse
            )
            last = id_from_api(answer.id)
            if last.entry_id >= 0 and stream.is_before(last):
                return True
        return False

    def ack(self, messages: Message | MessageId | Iterable[Message | MessageId]) -> Awaitable[None]:
        raise TopicError(f"{self.topic}: a reader acknowledges nothing; use a consumer")

    async def ack_cumulative(self, message: Message | MessageId) -> None:
        await self.ack(message)

    async def nack(
        self, messages: Message | MessageId | Iterable[Message | MessageId], *, delay_s: float = 60.0
    ) -> None:
        await self.ack(messages)


class AsyncTopics:
    """Topics: create, delete, list, stats."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def create(self, topic: str, *, partitions: int = 0) -> None:
        """Make a topic. Raises TopicInUse if it exists."""
        request = api.CreateTopicRequest(topic=topic, partitions=partitions)
        if partitions:
            await self._brokers.ask_any("CreateTopic", request, api.CreateTopicResponse)
        else:
            await self._brokers.ask_owner(topic, "CreateTopic", request, api.CreateTopicResponse)

    async def partitions(self, topic: str) -> int:
        """0 for a topic that is not partitioned. Raises TopicDoesNotExist."""
        request = api.GetTopicRequest(topic=topic)
        found = await self._brokers.ask_any("GetTopic", request, api.GetTopicResponse)
        return int(found.partitions)

    async def delete(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with its partitions, messages and subscriptions.

        Without *force* a topic with clients or subscriptions is left alone. With it, producers that are open may make
        partitions again while others are deleted: these are deleted again, a few times. Raises TopicDoesNotExist.
        """
        for left in reversed(range(DELETE_ROUNDS if force else 1)):
            try:
                await self._delete(topic, force)
                return
            except TopicError as error:
                if error.code != "FAILED_PRECONDITION" or not left:
                    raise
            await asyncio.sleep(DELETE_PAUSE_S)

    async def _delete(self, topic: str, force: bool) -> None:
        partitions = await self.partitions(topic)
        for number in range(partitions):
            name = f"{topic}-partition-{number}"
            request = api.DeleteTopicRequest(topic=name, force=force)
            try:
                await self._brokers.ask_owner(name, "DeleteTopic", request, api.DeleteTopicResponse)
            except TopicDoesNotExist:
                continue
        request = api.DeleteTopicRequest(topic=topic, force=force)
        if partitions:
            await self._brokers.ask_any("DeleteTopic", request, api.DeleteTopicResponse)
        else:
            await self._brokers.ask_owner(topic, "DeleteTopic", request, api.DeleteTopicResponse)

    async def list(self, namespace: str = "public/default") -> list[str]:
        """Full names of the topics of a namespace, each partition for itself."""
        request = api.ListTopicsRequest(namespace=namespace)
        found = await self._brokers.ask_any("ListTopics", request, api.ListTopicsResponse)
        return [str(one) for one in found.topics]

    async def stats(self, topic: str) -> dict[str, Any]:
        """Statistics as Pulsar's admin API gives them; of a partitioned topic, {"partitions": {name: statistics}}."""
        partitions = await self.partitions(topic)
        if partitions:
            names = [f"{topic}-partition-{number}" for number in range(partitions)]
            return {"partitions": {name: await self._stats(name) for name in names}}
        return await self._stats(topic)

    async def _stats(self, topic: str) -> dict[str, Any]:
        request = api.GetTopicStatsRequest(topic=topic)
        answer = await self._brokers.ask_owner(topic, "GetTopicStats", request, api.GetTopicStatsResponse)
        found: dict[str, Any] = json.loads(answer.json)
        return found


def check_readable(message: Message) -> Message:
    """Raises UnreadableMessage for a message whose payload is not what was sent."""
    if message.problem:
        error = UnreadableMessage(message.problem)
        error.message = message
        raise error
    return message


async def _open_all(streams: Sequence[PublishStream] | Sequence[ConsumeStream]) -> None:
    results = await asyncio.gather(*(stream.open() for stream in streams), return_exceptions=True)
    failures = [one for one in results if isinstance(one, BaseException)]
    if failures:
        await asyncio.gather(*(stream.close() for stream in streams))
        raise failures[0]
