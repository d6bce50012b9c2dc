"""A consumer and a reader of the topic API for programs with an event loop: one consume stream for each partition.

What the streams bring waits in one queue until the program takes it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from magnetar.client.async_topics import topics_of
from magnetar.client.base.arguments import check_seconds, check_whole, wrong
from magnetar.client.base.closing import Closing
from magnetar.client.base.rpc import FORKED
from magnetar.client.brokers import Brokers
from magnetar.client.consuming import ConsumeStream
from magnetar.client.errors import ClientClosed, TopicError, UnreadableMessage
from magnetar.client.stream import open_all
from magnetar.client.values import INT32, Message, Time, ack_to_api, check_id, id_from_api, id_to_api, time_ms
from magnetar_core.runtime.tasks import Bell
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.message_id import EARLIEST, MessageId
from managed_ledger.topic_name import TopicName

# Messages that wait in a consumer for the program, over all partitions of a topic.
QUEUE_SIZE: Final = 1_000

Start = str | MessageId | Time
"""Where a reader begins: "earliest", "latest", an id (the message behind it comes first), or a time."""


class _Done:
    """An awaitable that is done already: `ack` needs no waiting, but callers may write `await`."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


_DONE: Final = _Done()


class _Queue:
    """Messages that wait for the program. `take` may be called from any thread, but from one at a time."""

    def __init__(self) -> None:
        self._messages: deque[tuple[int, ConsumeStream, Message]] = deque()
        self.bell = Bell()

    def put(self, stream: ConsumeStream, messages: list[Message]) -> None:
        generation = stream.generation
        self._messages.extend((generation, stream, message) for message in messages)
        self.bell.ring()

    def drop(self, stream: ConsumeStream) -> None:
        """Forget the messages of *stream*, whose generation has changed. Those that stay here are skipped by `take`."""
        kept = [entry for entry in list(self._messages) if entry[1] is not stream]
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

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        opening: Any,
        queue_size: int,
        on_close: Callable[["AsyncConsumer"], None],
        start_ms: int = 0,
    ) -> None:
        check_whole("queue_size", queue_size, 1, INT32)
        self.topic = topic
        self._brokers = brokers
        self._on_close = on_close
        self._opening = opening
        self._queue_size = queue_size
        self._start_ms = start_ms
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

    async def _open_streams(self) -> None:
        topics = await topics_of(self._brokers, self.topic)
        streams: dict[str, ConsumeStream] = {}
        share = max(self._queue_size // len(topics), 1)
        for topic in topics:
            opening = api.ConsumeRequest.Open()
            opening.CopyFrom(self._opening)
            opening.topic = topic
            streams[topic] = ConsumeStream(
                self._brokers,
                topic,
                opening,
                self._queue,
                share,
                TopicName.parse(topic).partition,
                self._start_ms,
            )
        assert len(streams) == len(topics), "two partitions have one name"
        await open_all(list(streams.values()))
        self._streams = streams

    def __await__(self) -> Generator[Any, None, Self]:
        """`await client.consumer(…)` gives one that has subscribed, `await client.reader(…)` one at its start."""
        return self.open().__await__()

    # -------------------------------------------------------------------------------- receiving

    async def receive(self, timeout_s: float | None = None) -> Message:
        """The next message; waits for it. Raises TimeoutError, UnreadableMessage, TopicError."""
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, may_be_zero=True)
        message = self.take()
        if message is None:
            async with asyncio.timeout(timeout_s):
                message = await self._wait()
        return check_readable(message)

    async def receive_batch(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Waits for one message, then takes those that are there, *max_messages* at most.

        An empty list if none comes within *timeout_s*. Messages that cannot be read come with `problem` set.
        """
        check_whole("max_messages", max_messages, 1, 2**63)
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, may_be_zero=True)
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
        return None if self._is_closed or self._brokers.is_inherited else self._queue.take()

    async def _wait(self) -> Message:
        while True:
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

        The acks are sent with the next request; `flush` waits until the broker has them, and raises TopicError if it
        refused one. This call itself never waits, so `await` before it may be left out. Raises TypeError, ValueError,
        TopicError.
        """
        for stream, ids in self._by_stream(messages).items():
            stream.ack_soon(ids)
        return _DONE

    async def ack_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge *message* and all before it (in its partition), and wait. Exclusive and failover only."""
        if not isinstance(message, Message | MessageId):
            raise wrong("message", message, "a message or its MessageId")
        ((stream, ids),) = self._by_stream(message).items()
        await stream.request(api.ConsumeRequest(cumulative_ack=ids[0]))

    async def nack(
        self, messages: Message | MessageId | Iterable[Message | MessageId], *, delay_s: float = 60.0
    ) -> None:
        """Deliver again after *delay_s*. The entry is the unit: of a batch, all messages not acknowledged come again.

        Exclusive and failover keep the order, so everything unacknowledged comes again.
        """
        check_seconds("delay_s", delay_s, may_be_zero=True)
        for stream, ids in self._by_stream(messages).items():
            request = api.ConsumeRequest()
            request.nack.ids.extend(ids)
            request.nack.delay_ms = round(delay_s * 1000)
            await stream.request(request)

    def _by_stream(
        self, messages: Message | MessageId | Iterable[Message | MessageId]
    ) -> dict[ConsumeStream, list[api.MessageId]]:
        """Stream → ids of its messages. Raises TypeError, ValueError, TopicError; then none of them counts."""
        if isinstance(messages, Message | MessageId):
            many: Iterable[Message | MessageId] = (messages,)
        elif isinstance(messages, Iterable) and not isinstance(messages, str | bytes | Mapping):
            many = messages
        else:
            raise wrong("what is acknowledged", messages, "messages, their MessageIds, or several of these")
        ids = [ack_to_api(item) for item in many]
        if self._brokers.is_inherited:
            raise ClientClosed(FORKED)
        if self._is_closed:
            raise ClientClosed(f"{self.topic}: the consumer is closed")
        if not self._streams:
            raise TopicError(f"{self.topic}: nothing was received yet")
        if len(self._streams) == 1:
            return {next(iter(self._streams.values())): ids} if ids else {}
        streams = {stream.partition: stream for stream in self._streams.values()}
        groups: dict[ConsumeStream, list[api.MessageId]] = {}
        for id_ in ids:
            stream = streams.get(id_.partition) if id_.HasField("partition") else None
            if stream is None:
                raise ValueError(f"{id_from_api(id_)} does not belong to a partition of {self.topic}")
            groups.setdefault(stream, []).append(id_)
        return groups

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

        Other consumers of the subscription are disconnected for a moment.
        """
        if isinstance(to, MessageId):
            check_id("to", to)
        elif isinstance(to, str):
            if to not in ("earliest", "latest"):
                raise ValueError(f"seek to {to!r}: expected earliest, latest, a MessageId or a time")
        else:
            time_ms(to, "to")
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
            elif not isinstance(to, str):
                request.seek.time_ms = time_ms(to, "to")
            await stream.request(request)

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


class AsyncReader(AsyncConsumer):
    """Reads a topic without leaving a subscription. Made by `AsyncClient.reader`."""

    async def has_more(self) -> bool:
        """Whether there are messages behind the last one that was received. Raises TopicError."""
        await self.open()
        for stream in self._streams.values():
            request = api.GetLastMessageIdRequest(topic=stream.topic)
            answer = await self._brokers.ask_owner(
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


def check_readable(message: Message) -> Message:
    """Raises UnreadableMessage for a message whose payload is not what was sent."""
    if message.problem:
        error = UnreadableMessage(message.problem)
        error.message = message
        raise error
    return message
