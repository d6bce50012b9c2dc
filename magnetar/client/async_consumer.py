"""A consumer and a reader of the topic API for programs with an event loop: one consume stream for each partition.

What the streams bring waits in one queue until the program takes it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Generic, Self

from magnetar.client.async_topics import topics_of
from magnetar.client.base.arguments import check_seconds, check_whole, wrong
from magnetar.client.base.closing import Closing
from magnetar.client.base.options import Start
from magnetar.client.base.rpc import FORKED
from magnetar.client.brokers import Brokers
from magnetar.client.codecs.codec import Codec, shown_value
from magnetar.client.codecs.declared import T
from magnetar.client.codecs.versions import Decoder
from magnetar.client.consuming import ConsumeStream
from magnetar.client.errors import ClientClosed, TopicError, UnreadableMessage
from magnetar.client.retries.letters import Letters
from magnetar.client.stream import open_all
from magnetar.client.values import (
    INT32,
    Message,
    ack_to_api,
    check_id,
    id_from_api,
    id_to_api,
    source_of,
    time_ms,
)
from magnetar_core.runtime.tasks import Bell
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.message_id import EARLIEST, MessageId
from magnetar_core.topics.topic_name import TopicName

# Messages that wait in a consumer for the program, over all partitions of a topic.
QUEUE_SIZE: Final = 1_000

# Until a message comes again that `nack` was told of.
NACK_DELAY_S: Final = 60.0

Acked = Message[Any] | MessageId | Iterable[Message[Any] | MessageId]
"""What is acknowledged: messages, their ids, or several of these."""


class _Done:
    """An awaitable that is done already: `ack` needs no waiting, but callers may write `await`."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


_DONE: Final = _Done()


class _Queue:
    """Messages that wait for the program. `take` may be called from any thread, but from one at a time."""

    def __init__(self) -> None:
        self._messages: deque[tuple[int, ConsumeStream, Message[Any]]] = deque()
        self.bell = Bell()

    def put(self, stream: ConsumeStream, messages: list[Message[Any]]) -> None:
        generation = stream.generation
        self._messages.extend((generation, stream, message) for message in messages)
        self.bell.ring()

    def drop(self, stream: ConsumeStream) -> None:
        """Forget the messages of *stream*, whose generation has changed. Those that stay here are skipped by `take`."""
        kept = [entry for entry in list(self._messages) if entry[1] is not stream]
        if not kept:
            self._messages.clear()

    def take(self) -> Message[Any] | None:
        messages = self._messages
        while True:
            try:
                generation, stream, message = messages.popleft()
            except IndexError:
                return None
            if generation == stream.generation:
                stream.on_taken(message)
                return message


class AsyncConsumer(Generic[T]):
    """Receives the messages of one subscription. Made by `AsyncClient.consumer`.

    Example:
        async with client.consumer("orders", "billing", type="shared") as consumer:
            async for message in consumer:
                print(message.value)
                consumer.ack(message)
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        opening: Any,
        queue_size: int,
        on_close: Callable[["AsyncConsumer[Any]"], None],
        start_ms: int = 0,
        letters: Letters | None = None,
        codec: Codec[Any] | None = None,
    ) -> None:
        check_whole("queue_size", queue_size, 1, INT32)
        self.topic = topic
        self._brokers = brokers
        self._on_close = on_close
        self._opening = opening
        self._queue_size = queue_size
        self._start_ms = start_ms
        self._letters = letters
        self._decoder = None if codec is None else Decoder(codec, brokers)
        if letters is not None and self._decoder is not None:
            letters.schema_of = self._decoder.schema
        self._queue = _Queue()
        self._streams: dict[str, ConsumeStream] = {}
        self._lock = asyncio.Lock()
        self._opening_task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._closing = Closing(self._close)

    async def open(self) -> Self:
        """Subscribe now instead of with the first receive. Raises TopicError."""
        self._brokers.check_loop()
        if self._streams and not self._is_closed:
            return self
        async with self._lock:
            if self._is_closed:
                raise ClientClosed(f"{self.topic}: the consumer is closed")
            if not self._streams:
                self._opening_task = asyncio.ensure_future(self._open_streams())
                try:
                    await self._opening_task
                except asyncio.CancelledError:
                    if self._is_closed:
                        raise ClientClosed(f"{self.topic}: the consumer is closed") from None
                    raise
                finally:
                    self._opening_task = None
        return self

    @property
    def _retry_topic(self) -> str | None:
        return None if self._letters is None else self._letters.retry.retry_topic

    async def _open_streams(self) -> None:
        topics = await topics_of(self._brokers, self.topic)
        retry_topics = await topics_of(self._brokers, self._retry_topic) if self._retry_topic is not None else []
        streams: dict[str, ConsumeStream] = {}
        share = max(self._queue_size // (len(topics) + len(retry_topics)), 1)
        for topic in topics + retry_topics:
            opening = api.ConsumeRequest.Open()
            opening.CopyFrom(self._opening)
            opening.topic = topic
            if topic in retry_topics:  # what is there already has failed in this subscription, and waits for it
                opening.from_earliest = True
            streams[topic] = ConsumeStream(
                self._brokers,
                topic,
                opening,
                self._queue,
                share,
                TopicName.parse(topic).partition,
                self._start_ms,
                self._letters,
                self._decoder,
            )
            streams[topic].has_copies = topic in retry_topics
        assert len(streams) == len(topics) + len(retry_topics), "two partitions have one name"
        await open_all(list(streams.values()))
        self._streams = streams

    def __await__(self) -> Generator[Any, None, Self]:
        """`await client.consumer(…)` gives one that has subscribed, `await client.reader(…)` one at its start."""
        return self.open().__await__()

    # -------------------------------------------------------------------------------- receiving

    async def receive(self, timeout_s: float | None = None) -> Message[T]:
        """The next message; waits for it. Raises TimeoutError, UnreadableMessage, TopicError."""
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, may_be_zero=True)
        message = self.take()
        if message is None:
            async with asyncio.timeout(timeout_s):
                message = await self._wait()
        return check_readable(message)

    async def receive_batch(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Message[T]]:
        """Waits for one message, then takes those that are there, *max_messages* at most.

        An empty list if none comes within *timeout_s*. Messages that cannot be read come with `problem` set.
        """
        check_whole("max_messages", max_messages, 1, 2**63)
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, may_be_zero=True)
        messages: list[Message[T]] = []
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

    def take(self) -> Message[T] | None:
        """The next message if one waits here already."""
        return None if self._is_closed or self._brokers.is_inherited else self._queue.take()

    async def _wait(self) -> Message[T]:
        while True:
            await self.open()
            message = self.take()
            if message is not None:
                return message
            for stream in self._streams.values():
                if stream.failure is not None:
                    raise stream.failure
            await self._queue.bell.rung()

    def __aiter__(self) -> AsyncIterator[Message[T]]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Message[T]]:
        while not self._is_closed:
            try:
                yield await self.receive()
            except ClientClosed:
                return

    # -------------------------------------------------------------------------------- answering

    def ack(self, messages: Acked) -> Awaitable[None]:
        """Acknowledge messages: they do not come again.

        The acks are sent with the next request; `flush` waits until the broker has them, and raises TopicError if it
        refused one. This call itself never waits, so `await` before it may be left out. Raises TypeError, ValueError,
        TopicError.
        """
        for stream, ids in self._by_stream(messages).items():
            stream.ack_soon(ids)
        return _DONE

    async def ack_cumulative(self, message: Message[Any] | MessageId) -> None:
        """Acknowledge *message* and all before it (in its partition), and wait. Exclusive and failover only."""
        if not isinstance(message, Message | MessageId):
            raise wrong("message", message, "a message or its MessageId")
        ((stream, ids),) = self._by_stream(message).items()
        await stream.request(api.ConsumeRequest(cumulative_ack=ids[0]))

    async def nack(self, messages: Acked, *, delay_s: float | None = None) -> None:
        """Deliver again after *delay_s*: 60 s if it is left out, or what `Retry.backoff` says. The entry is the unit:
        of a batch, all messages not acknowledged come again.

        Exclusive and failover keep the order, so everything unacknowledged comes again.

        With a retry topic each message is for itself: a copy is stored there, or in the dead letter topic, and the
        message is acknowledged. If that fails (TopicError), it comes again in half a minute.
        """
        if delay_s is not None:
            check_seconds("delay_s", delay_s, may_be_zero=True)
        if self._letters is not None:
            self._brokers.check_loop()
            await self._letters.on_failed(self._with_sources(messages), delay_s)
            return
        if delay_s is None:
            delay_s = NACK_DELAY_S
        for stream, ids in self._by_stream(messages).items():
            request = api.ConsumeRequest()
            request.nack.ids.extend(ids)
            request.nack.delay_ms = round(delay_s * 1000)
            await stream.request(request)

    def _by_stream(self, messages: Acked) -> dict[ConsumeStream, list[api.MessageId]]:
        """Stream → ids of its messages. Raises TypeError, ValueError, TopicError; then none of them counts."""
        groups: dict[ConsumeStream, list[api.MessageId]] = {}
        if self._retry_topic is not None:
            for stream, message in self._with_sources(messages):
                groups.setdefault(stream, []).append(ack_to_api(message))
            return groups
        ids = [ack_to_api(item) for item in _several(messages)]
        self._check_receiving()
        if len(self._streams) == 1:
            return {next(iter(self._streams.values())): ids} if ids else {}
        streams = {stream.partition: stream for stream in self._streams.values()}
        for id_ in ids:
            owner = streams.get(id_.partition) if id_.HasField("partition") else None
            if owner is None:
                raise ValueError(f"{id_from_api(id_)} does not belong to a partition of {self.topic}")
            groups.setdefault(owner, []).append(id_)
        return groups

    def _with_sources(self, messages: Acked) -> list[tuple[ConsumeStream, Message[Any]]]:
        """Messages with the streams that brought them: of an id it is not known whether the retry topic has it. Raises
        TypeError, ValueError, TopicError."""
        pairs = list[tuple[ConsumeStream, Message[Any]]]()
        streams = self._streams.values()
        for item in _several(messages):
            if not isinstance(item, Message):
                raise wrong("what is acknowledged", item, "messages, as they were received: the consumer has a Retry")
            if streams and source_of(item) not in streams:
                raise ValueError(f"{item!r} was not received by this consumer of {self.topic}")
            pairs.append((source_of(item), item))
        self._check_receiving()
        return pairs

    def _check_receiving(self) -> None:
        """Raises TopicError if nothing can be acknowledged."""
        if self._brokers.is_inherited:
            raise ClientClosed(FORKED)
        if self._is_closed:
            raise ClientClosed(f"{self.topic}: the consumer is closed")
        if not self._streams:
            raise TopicError(f"{self.topic}: nothing was received yet")

    async def flush(self) -> None:
        """Wait until the broker has all acks so far. Raises TopicError, also for acks that it refused.

        Acks that were on their way when a connection broke may be lost: their messages come again.
        """
        self._brokers.check_loop()
        if self._is_closed:
            raise ClientClosed(f"{self.topic}: the consumer is closed")
        await asyncio.gather(*(stream.flush() for stream in self._streams.values()))

    async def seek(self, to: Start) -> None:
        """Continue at another place: "earliest", "latest", an id (that message comes next), or a publish time.

        Other consumers of the subscription are disconnected for a moment. What waits in a retry topic stays there.
        """
        place: Any = to
        if isinstance(place, MessageId):
            check_id("to", place)
        elif isinstance(place, str):
            if place not in ("earliest", "latest"):
                raise ValueError(f"seek to {place!r}: expected earliest, latest, a MessageId or a time")
        else:
            time_ms(place, "to")
        await self.open()
        streams = [stream for stream in self._streams.values() if not stream.has_copies]
        for stream in streams:
            request = api.ConsumeRequest()
            if place == "latest":
                request.seek.to_end = True
            elif place == "earliest":
                request.seek.id.CopyFrom(id_to_api(EARLIEST))
            elif isinstance(place, MessageId):
                if len(streams) > 1 and place.partition != stream.partition and place.ledger_id >= 0:
                    continue
                request.seek.id.CopyFrom(id_to_api(place))
            elif not isinstance(place, str):
                request.seek.time_ms = time_ms(place, "to")
            await stream.request(request)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._streams else "not opened yet"
        who = "" if self._opening.is_reader else f", {self._opening.subscription!r}"
        return f"{type(self).__name__}({self.topic}{who}{self._shown()}, {state})"

    def _shown(self) -> str:
        return shown_value(None if self._decoder is None else self._decoder.codec)

    async def unsubscribe(self) -> None:
        """Remove the subscription and close. Raises TopicError if it has other consumers."""
        await self.open()
        for stream in self._streams.values():
            await stream.request(api.ConsumeRequest(unsubscribe=True))
        await self.close()

    async def close(self) -> None:
        """Send the acks that wait, then disconnect. Messages without an ack are delivered again, or to others.

        A call that is cancelled goes on by itself.
        """
        self._is_closed = True
        await self._closing.wait()

    async def _close(self) -> None:
        if self._opening_task is not None:
            self._opening_task.cancel()
        self._queue.bell.ring()
        try:
            async with self._lock:
                if self._letters is not None:
                    await self._letters.close()
                await asyncio.gather(*(stream.close() for stream in self._streams.values()))
        finally:
            self._on_close(self)
            self._queue.bell.ring()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncReader(AsyncConsumer[T]):
    """Reads a topic without leaving a subscription. Made by `AsyncClient.reader`.

    Example:
        async with client.reader("orders", start="earliest") as reader:
            while await reader.has_more():
                print((await reader.receive()).value)
    """

    async def has_more(self) -> bool:
        """Whether there are messages behind the last one that was received. Raises TopicError.

        The broker is asked where the reader stands at the last one that is known, not for each message.
        """
        await self.open()
        streams = list(self._streams.values())
        if not any(stream.is_before_end() for stream in streams):
            await asyncio.gather(*(self._ask_end(stream) for stream in streams))
        return any(stream.is_before_end() for stream in streams)

    async def _ask_end(self, stream: ConsumeStream) -> None:
        compacted = self._opening.read_compacted
        request = api.GetLastMessageIdRequest(topic=stream.topic, read_compacted=compacted)
        answer = await self._brokers.ask_owner(stream.topic, "GetLastMessageId", request, api.GetLastMessageIdResponse)
        stream.end = id_from_api(answer.id)

    def ack(self, messages: Acked) -> Awaitable[None]:
        raise TopicError(f"{self.topic}: a reader acknowledges nothing; use a consumer")

    async def ack_cumulative(self, message: Message[Any] | MessageId) -> None:
        await self.ack(message)

    async def nack(self, messages: Acked, *, delay_s: float | None = None) -> None:
        await self.ack(messages)


def _several(messages: Acked) -> Iterable[Message[Any] | MessageId]:
    """Raises TypeError."""
    if isinstance(messages, Message | MessageId):
        return (messages,)
    if isinstance(messages, Iterable) and not isinstance(messages, str | bytes | Mapping):
        return messages
    raise wrong("what is acknowledged", messages, "messages, their MessageIds, or several of these")


def check_readable(message: Message[T]) -> Message[T]:
    """Raises UnreadableMessage for a message whose payload is not what was sent."""
    if message.problem:
        error = UnreadableMessage(message.problem)
        error.message = message
        raise error
    return message
