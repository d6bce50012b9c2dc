"""A consumer and a reader of the topic API for programs with an event loop: one consume stream for each partition.

What the streams bring waits in one queue until the program takes it.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from itertools import repeat
from types import TracebackType
from typing import Any, Final, Generic, Self

from magnetar.client.async_topics import partition_names, topics_of
from magnetar.client.base.arguments import check_seconds, check_whole, wrong
from magnetar.client.base.closing import Closing
from magnetar.client.base.options import Start
from magnetar.client.base.rpc import FORKED, log
from magnetar.client.brokers import Brokers
from magnetar.client.codecs.codec import Codec, shown_value
from magnetar.client.codecs.declared import T
from magnetar.client.codecs.versions import Decoder
from magnetar.client.consuming import ConsumeStream
from magnetar.client.errors import ClientClosed, TopicDoesNotExist, TopicError, TopicUnavailable, UnreadableMessage
from magnetar.client.retries.letters import Letters
from magnetar.client.several.pattern import Pattern
from magnetar.client.several.watch import TopicWatch
from magnetar.client.stream import open_all, weakly
from magnetar.client.values import (
    INT32,
    Message,
    ack_to_api,
    check_acked,
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

# Topics of one consumer, each partition for itself. Each is a call, for which client and broker have some 40 KiB each.
# A broker takes a few more of a client: the call that watches a pattern is one, too.
CONSUMER_TOPICS_MAX: Final = 10_000

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
        self._messages.extend(zip(repeat(stream.generation), repeat(stream), messages))
        self.bell.ring()

    def drop(self, stream: ConsumeStream) -> None:
        """Forget the messages of *stream*, whose generation has changed: a program that takes none would have those of
        each call that broke. One that `take` has in its hand meanwhile is skipped there."""
        messages, kept = self._messages, 0
        there = list(messages)
        if all(owner is stream for _, owner, _ in there):
            messages.clear()
            return
        for _, owner, _ in reversed(there):  # counted from the right: on the left `take` may be at work
            if owner is not stream:
                kept += 1
                continue
            try:
                del messages[-1 - kept]
            except IndexError:  # it was taken meanwhile, as all before it
                return

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
        topics: Sequence[str] = (),
        pattern: Pattern | None = None,
    ) -> None:
        """*topics*, or those of *pattern*, instead of *topic*, which says then what is consumed."""
        check_whole("queue_size", queue_size, 1, INT32)
        self.topic = topic
        self._topics: Sequence[str] = topics or ([topic] if pattern is None else ())
        self._pattern = pattern
        self._has_several = bool(topics) or pattern is not None
        self._watch: TopicWatch | None = None
        self._is_open = False
        self._alone = set[str]()
        """Full names of partitions that the program wants alone."""
        self._left = weakref.WeakSet[ConsumeStream]()
        """Of topics that have been deleted."""
        self._leaving = set[asyncio.Task[None]]()
        self._failure: TopicError | None = None
        """Why topics are missing."""
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
        """By topic. Never changed, only replaced: threads of the program look into it."""
        self._partitions: dict[str, int] = {}
        """Topic → how many partitions it has, by what brokers said last."""
        self._lock = asyncio.Lock()
        self._opening_task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._closing = Closing(self._close)

    async def open(self) -> Self:
        """Subscribe now instead of with the first receive. Raises TopicError."""
        self._brokers.check_loop()
        if self._is_open and not self._is_closed:
            return self
        async with self._lock:
            if self._is_closed:
                raise ClientClosed(f"{self.topic}: the consumer is closed")
            if not self._is_open:
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
        given = [*self._topics, *([] if self._retry_topic is None else [self._retry_topic])]
        partitions = {topic: await topics_of(self._brokers, topic) for topic in given}
        self._alone = {name.full for name in map(TopicName.parse, given) if name.partition >= 0}
        topics = list(dict.fromkeys(name for topic in self._topics for name in partitions[topic]))
        retry_topics = [] if self._retry_topic is None else partitions[self._retry_topic]
        if self._pattern is not None:
            await self._open_pattern(self._pattern, retry_topics)
            return
        _check_count(self.topic, len(topics) + len(retry_topics))
        share = self._share(len(topics) + len(retry_topics))
        streams = {topic: self._new_stream(topic, share) for topic in topics}
        # What is in the retry topic already has failed in this subscription, and waits for it.
        streams |= {topic: self._new_stream(topic, share, has_copies=True) for topic in retry_topics}
        assert len(streams) == len(topics) + len(retry_topics), "two partitions have one name"
        await open_all(list(streams.values()))
        self._streams = streams
        self._is_open = True
        self._add_partitions()

    async def _open_pattern(self, pattern: Pattern, retry_topics: Sequence[str]) -> None:
        """Open the topics that there are, and the partitions of the retry topic; more come by `_on_topics`."""
        watch = TopicWatch(self._brokers, pattern, weakly(self._on_topics), weakly(self._on_watch_ended))
        streams: dict[str, ConsumeStream] = {}
        try:
            await watch.open()
            _check_count(self.topic, len(watch.topics) + len(retry_topics))
            share = self._share(len(watch.topics) + len(retry_topics))
            streams |= {topic: self._new_stream(topic, share) for topic in watch.topics}
            streams |= {topic: self._new_stream(topic, share, has_copies=True) for topic in retry_topics}
            results = await asyncio.gather(*(stream.open() for stream in streams.values()), return_exceptions=True)
            for topic, result in zip(list(streams), results, strict=True):
                if isinstance(result, TopicDoesNotExist):  # deleted meanwhile; it may come back before that is told
                    streams[topic] = self._new_stream(topic, share, is_new=True)
                    streams[topic].start()
                elif isinstance(result, BaseException):
                    raise result
        except BaseException:
            await asyncio.gather(watch.close(), *(stream.close() for stream in streams.values()))
            raise
        self._watch, self._streams, self._is_open = watch, streams, True
        there = {*watch.topics, *retry_topics}
        self._on_topics(list(watch.topics), [topic for topic in streams if topic not in there])
        self._add_partitions()

    def _on_topics(self, come: Sequence[str], gone: Sequence[str]) -> None:
        """Topics of the pattern have come, or are gone: the former are read from their first message on."""
        if self._watch is None or self._is_closed:
            return
        streams = dict(self._streams)
        for stream in [streams.pop(topic) for topic in gone if topic in streams]:
            stream.leave()
            self._left.add(stream)
            task = asyncio.ensure_future(stream.close())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        come = [topic for topic in come if topic not in streams]
        try:
            _check_count(self.topic, len(streams) + len(come))
        except TopicError as error:
            log.error("%s", error)
            self._failure, come = error, []
            self._queue.bell.ring()
        self._add(streams, dict.fromkeys(come, False))

    def _add(self, streams: dict[str, ConsumeStream], names: dict[str, bool]) -> None:
        """Have *streams*, and new ones of the topics *names*, each with whether copies are in it."""
        share = self._share(len(streams) + len(names))
        new = {
            name: self._new_stream(name, share, has_copies=has_copies, is_new=True)
            for name, has_copies in names.items()
        }
        for stream in streams.values():
            stream.shrink(share)
        self._streams = {**streams, **new}
        for stream in new.values():
            log.info("%s: the consumer takes it, too", stream.topic)
            stream.start()

    def _on_watch_ended(self) -> None:
        if self._watch is not None and not self._is_closed:
            self._failure = self._watch.failure
            self._queue.bell.ring()

    def _share(self, streams: int) -> int:
        """Messages that each of so many streams may have on their way."""
        return max(self._queue_size // max(streams, 1), 1)

    def _new_stream(self, topic: str, share: int, *, has_copies: bool = False, is_new: bool = False) -> ConsumeStream:
        """*is_new*: the topic, or partition, has come since the consumer is open."""
        opening = api.ConsumeRequest.Open()
        opening.CopyFrom(self._opening)
        opening.topic = topic
        start_ms = self._start_ms
        follows = self._pattern is not None and not has_copies
        opening.must_exist = follows
        if has_copies or is_new:
            opening.from_earliest = True
        if is_new:
            opening.ClearField("start_id")
            opening.start_inclusive = False
            start_ms = 0
        partition = TopicName.parse(topic).partition
        stream = ConsumeStream(
            self._brokers, topic, opening, self._queue, share, partition, start_ms, self._letters, self._decoder
        )
        stream.has_copies = has_copies
        stream.may_vanish = follows
        if not follows and topic not in self._alone:  # a pattern's partitions come as its other topics do
            stream.on_partitions = weakly(self._on_partitions)
        return stream

    def _on_partitions(self, stream: ConsumeStream, count: int) -> None:
        base = stream.schema_topic
        self._partitions[base] = max(self._partitions.get(base, 0), count)
        self._add_partitions()

    def _add_partitions(self) -> None:
        """Begin with the partitions that have come, if there are any: each at its first message."""
        streams = self._streams
        if not streams or self._is_closed:
            return
        copies = {stream.schema_topic for stream in streams.values() if stream.has_copies}
        names = {
            name: base in copies
            for base, count in self._partitions.items()
            for name in partition_names(base, count)
            if name not in streams
        }
        if not names:
            return
        self._add(streams, names)

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
            if self._failure is not None:
                raise self._failure
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
        for stream, items in self._by_stream(messages).items():
            stream.ack_soon(items)
        return _DONE

    async def ack_cumulative(self, message: Message[Any] | MessageId) -> None:
        """Acknowledge *message* and all before it (in its partition), and wait. Exclusive and failover only."""
        if not isinstance(message, Message | MessageId):
            raise wrong("message", message, "a message or its MessageId")
        for stream in self._by_stream(message):
            await stream.request(api.ConsumeRequest(cumulative_ack=ack_to_api(message)))

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
        for stream, items in self._by_stream(messages).items():
            request = api.ConsumeRequest()
            request.nack.ids.extend(map(ack_to_api, items))
            request.nack.delay_ms = round(delay_s * 1000)
            await stream.request(request)

    def _by_stream(self, messages: Acked) -> dict[ConsumeStream, list[Message[Any] | MessageId]]:
        """Stream → those of its messages. Raises TypeError, ValueError, TopicError; then none of them counts."""
        groups: dict[ConsumeStream, list[Message[Any] | MessageId]] = {}
        if self._retry_topic is not None or self._has_several:
            for stream, message in self._with_sources(messages):
                groups.setdefault(stream, []).append(message)
            return groups
        items = list(_as_list(messages))
        for item in items:
            check_acked(item)
        self._check_receiving()
        if len(self._streams) == 1:
            return {next(iter(self._streams.values())): items} if items else {}
        streams = {stream.partition: stream for stream in self._streams.values()}
        for item in items:
            id_ = item.id if isinstance(item, Message) else item
            owner = streams.get(id_.partition) if id_.partition >= 0 else None
            if owner is None:
                raise ValueError(f"{id_} does not belong to a partition of {self.topic}")
            groups.setdefault(owner, []).append(item)
        return groups

    def _with_sources(self, messages: Acked) -> list[tuple[ConsumeStream, Message[Any]]]:
        """Messages with the streams that brought them: of an id it is not known whether the retry topic has it. Raises
        TypeError, ValueError, TopicError."""
        pairs = list[tuple[ConsumeStream, Message[Any]]]()
        streams = self._streams.values()
        for item in _as_list(messages):
            if not isinstance(item, Message):
                why = "has several topics" if self._has_several else "has a Retry"
                raise wrong("what is acknowledged", item, f"messages, as they were received: the consumer {why}")
            if source_of(item) in self._left:
                continue  # with its topic it is gone
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
        if not self._is_open:
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
            if self._has_several:
                raise ValueError("seek to an id: of several topics, an id does not say in which it is")
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
        state = "closed" if self._is_closed else "open" if self._is_open else "not opened yet"
        who = "" if self._opening.is_reader else f", {self._opening.subscription!r}"
        return f"{type(self).__name__}({self.topic}{who}{self._topics_text()}, {state})"

    def _topics_text(self) -> str:
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
                if self._watch is not None:
                    await self._watch.close()
                if self._letters is not None:
                    await self._letters.close()
                await asyncio.gather(*self._leaving)
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
        if any(stream.is_before_end() for stream in self._streams.values()):
            return True
        return any(stream.is_before_end() for stream in await self._ask_ends())

    async def _ask_ends(self) -> list[ConsumeStream]:
        """Ask where the end of each partition is, also of those of which the answers tell; returns them. Raises
        TopicError."""
        asked = dict[ConsumeStream, None]()
        while left := [stream for stream in self._streams.values() if stream not in asked]:
            await asyncio.gather(*(self._ask_end(stream) for stream in left))
            asked |= dict.fromkeys(left)
        return list(asked)

    async def _ask_end(self, stream: ConsumeStream) -> None:
        try:
            async with asyncio.timeout(self._brokers.timeout_s):
                await stream.until_connected()
        except TimeoutError:
            raise TopicUnavailable(f"{stream.topic}: {self._brokers.last_error}", "DEADLINE_EXCEEDED") from None
        compacted = self._opening.read_compacted
        request = api.GetLastMessageIdRequest(topic=stream.topic, read_compacted=compacted)
        answer = await self._brokers.ask_owner(stream.topic, "GetLastMessageId", request, api.GetLastMessageIdResponse)
        if answer.partitions:
            stream.hear_of_partitions(answer.partitions)
        stream.end = id_from_api(answer.id)

    def ack(self, messages: Acked) -> Awaitable[None]:
        raise TopicError(f"{self.topic}: a reader acknowledges nothing; use a consumer")

    async def ack_cumulative(self, message: Message[Any] | MessageId) -> None:
        await self.ack(message)

    async def nack(self, messages: Acked, *, delay_s: float | None = None) -> None:
        await self.ack(messages)


def _check_count(what: str, count: int) -> None:
    """Raises TopicError."""
    if count > CONSUMER_TOPICS_MAX:
        raise TopicError(
            f"{what} stands for {count} topics, and a consumer takes {CONSUMER_TOPICS_MAX} at most; divide them among "
            "several, or use fewer topics and keys"
        )


def _as_list(messages: Acked) -> Iterable[Message[Any] | MessageId]:
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
