"""A producer of the topic API for programs with an event loop: one publish stream for each partition of its topic.

Producers without a name share their streams. Each is closed for itself; the streams end with the last one.
"""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Generic, Self

from magnetar.client.async_topics import partition_names, topics_of
from magnetar.client.base.arguments import check_seconds, check_whole
from magnetar.client.base.closing import Closing
from magnetar.client.base.rpc import log
from magnetar.client.base.telemetry import Telemetry
from magnetar.client.brokers import Brokers
from magnetar.client.codecs.codec import Codec, shown_value
from magnetar.client.codecs.declared import T
from magnetar.client.errors import ClientClosed, TopicError, TopicUnavailable
from magnetar.client.publishing import PublishStream
from magnetar.client.stream import open_all, weakly
from magnetar.client.values import INT64, Outgoing, Time, check_batch, outgoing, partition_of_key
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.message_id import EARLIEST, MessageId
from magnetar_core.topics.topic_name import TopicName

SEND_TIMEOUT_S: Final = 30.0


class Sender:
    """The streams of one topic, and the calls that wait for them.

    Rules:

    1. Calls go on in their order, those that wait until the streams are open before those that come later.
    2. What was sent before `flush` or `close` was called is acknowledged, or has failed, when they return: also what
       still waited to be sent.
    3. With exclusive access the partitions are opened one after the other, so that of two producers that wait neither
       has what the other one needs; and if one partition is lost to another producer, all are given up.
    4. When the topic gets more partitions, messages go on to the former ones until all of the new ones are open.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        opening: Any,
        send_timeout_s: float,
        on_close: Callable[["Sender"], None],
        kind: Hashable,
    ) -> None:
        """*kind*: those of one kind can stand for each other."""
        self.topic = topic
        self.kind = kind
        self.streams: list[PublishStream] = []
        self.users = weakref.WeakSet["AsyncProducer[Any]"]()
        """Producers that are not closed, and that the program has not dropped."""
        self._brokers = brokers
        self._on_close = on_close
        self._opening = opening
        self.send_timeout_s = send_timeout_s
        self._lock = asyncio.Lock()
        self._turn = 0
        self._arriving = 0
        """Calls that wait until the producer is open, or for room in all of their partitions. Those that come now go
        behind them."""
        self._closing = Closing(self._close)
        self._is_closed = False
        self._partitions = 0
        """How many partitions the topic has, by what brokers said last; 0: none, or they said nothing."""
        self._growing: asyncio.Task[None] | None = None
        self._opened: list[PublishStream] = []
        """Those that are being opened."""
        self._gives_up = False
        """It is being closed, and does not wait for exclusive access."""

    @property
    def telemetry(self) -> Telemetry | None:
        return self._brokers.telemetry

    @property
    def name(self) -> str:
        return self.streams[0].producer_name if self.streams else str(self._opening.producer_name)

    @property
    def _is_exclusive(self) -> bool:
        return bool(self._opening.access != api.PublishRequest.SHARED)

    async def open(self, timeout_s: float | None = None) -> None:
        self._brokers.check_loop()
        try:
            async with asyncio.timeout(timeout_s), self._lock:
                await self._open_streams(self._brokers.timeout_s)
        except TimeoutError:
            raise TopicUnavailable(
                f"{self.topic}: not open within {timeout_s:g} s: {self._brokers.last_error}", "DEADLINE_EXCEEDED"
            ) from None

    async def _open_streams(self, timeout_s: float) -> None:
        if self._is_closed:
            raise ClientClosed(f"{self.topic}: the producer is closed")
        if not self.streams:
            names = await topics_of(self._brokers, self.topic, timeout_s)
            streams = self._opened = [self._new_stream(name, timeout_s) for name in names]
            try:
                await open_all(streams, in_order=self._is_exclusive)
            finally:
                self._opened = []
            self.streams = streams
            self._add_partitions()

    def _new_stream(self, topic: str, open_timeout_s: float | None = None) -> PublishStream:
        opening = api.PublishRequest.Open()
        opening.CopyFrom(self._opening)
        opening.topic = topic
        stream = PublishStream(self._brokers, topic, opening, self.send_timeout_s, open_timeout_s)
        if TopicName.parse(self.topic).partition < 0:  # otherwise the program wants that partition
            stream.on_partitions = weakly(self._on_partitions)
        if self._is_exclusive:
            stream.on_fenced = weakly(self._on_fenced)
        if self._gives_up:
            stream.stop_waiting()
        return stream

    def _on_fenced(self, stream: PublishStream, error: TopicError) -> None:
        """Rule 3."""
        if stream in self.streams:
            for other in self.streams:
                if other.failure is None:
                    other.give_up(error)

    def _on_partitions(self, stream: PublishStream, count: int) -> None:
        self._partitions = max(self._partitions, count)
        self._add_partitions()

    def _add_partitions(self) -> None:
        """Begin with the partitions that have come, if there are any (rule 4)."""
        if 0 < len(self.streams) < self._partitions and self._growing is None and not self._is_closed:
            self._growing = asyncio.ensure_future(self._open_partitions())

    async def _open_partitions(self) -> None:
        base = TopicName.parse(self.streams[0].topic).base.full
        new: list[PublishStream] = []
        try:
            while (known := len(self.streams)) < self._partitions:
                new = [self._new_stream(name) for name in partition_names(base, self._partitions)[known:]]
                for stream in new:
                    stream.start()
                await asyncio.gather(*(stream.until_connected() for stream in new))
                self.streams, new = [*self.streams, *new], []
                log.info("%s: the producer uses %d partitions instead of %d", base, len(self.streams), known)
        except TopicError as error:
            log.error("%s: the producer goes on with %d partitions: %s", base, len(self.streams), error)
        finally:
            self._growing = None
            await asyncio.gather(*(stream.close() for stream in new))

    @asynccontextmanager
    async def _in_turn(self, deadline: float) -> AsyncIterator[None]:
        """Open the streams if they are not; calls go on in their order (rule 1). Raises TopicError, also after
        *deadline*."""
        self._arriving += 1
        try:
            async with asyncio.timeout_at(deadline), self._lock:
                await self._open_streams(min(self.send_timeout_s, self._brokers.timeout_s))
                yield
        except TimeoutError:
            raise TopicUnavailable(
                f"{self.topic}: not sent within {self.send_timeout_s:g} s: {self._brokers.last_error}",
                "DEADLINE_EXCEEDED",
            ) from None
        finally:
            self._arriving -= 1

    def _deadline(self) -> float:
        return self._brokers.check_loop().time() + self.send_timeout_s

    async def send(self, message: Any, key: str | None, sequence_id: int | None) -> MessageId:
        return (await (await self.begin(message, key, sequence_id, self._deadline())))[0]

    async def begin(
        self, message: Any, key: str | None, sequence_id: int | None, deadline: float
    ) -> "asyncio.Future[list[MessageId]]":
        """Send, until *deadline* (`loop.time`); the future that is returned gets the id. Raises TopicError,
        ValueError."""
        if not self.streams or self._arriving or self._is_closed:
            async with self._in_turn(deadline):
                pass
        return await self._stream(key).begin([message], sequence_id, deadline)

    async def send_many(self, messages: list[Any], first_sequence_id: int | None) -> list[MessageId]:
        deadline = self._deadline()
        if not self.streams or self._arriving or self._is_closed or len(self.streams) > 1:
            async with self._in_turn(deadline):
                if len(self.streams) > 1:
                    # In turn up to the last partition: while one has no room, calls that come later must not go first.
                    groups = self._groups(messages, first_sequence_id)
                    pending = [
                        await stream.begin([messages[index] for index in indexes], None, deadline)
                        for stream, indexes in groups.items()
                    ]
        if len(self.streams) == 1:
            return await self.streams[0].submit(messages, first_sequence_id, deadline)
        answers = await asyncio.gather(*pending)
        ids = [EARLIEST] * len(messages)
        for indexes, answer in zip(groups.values(), answers, strict=True):
            for index, id_ in zip(indexes, answer, strict=True):
                ids[index] = id_
        return ids

    def _groups(self, messages: list[Any], first_sequence_id: int | None) -> dict[PublishStream, list[int]]:
        """Partition → which of the messages go there. Raises ValueError."""
        if first_sequence_id is not None:
            raise ValueError(f"{self.topic} is partitioned; give sequence ids with `send`")
        keyless = self._stream(None)
        groups: dict[PublishStream, list[int]] = {}
        for index, message in enumerate(messages):
            groups.setdefault(self._stream(message.key) if message.HasField("key") else keyless, []).append(index)
        return groups

    def _stream(self, key: str | None) -> PublishStream:
        streams = self.streams
        if len(streams) == 1:
            return streams[0]
        if key is not None:
            return streams[partition_of_key(key, len(streams))]
        self._turn += 1
        return streams[self._turn % len(streams)]

    async def flush(self) -> None:
        self._brokers.check_loop()
        await asyncio.sleep(0)  # sends that are tasks already, and have not begun, come before this
        if self._arriving:
            async with self._lock:
                pass
        await asyncio.gather(*(stream.flush() for stream in self.streams))

    @property
    def is_closing(self) -> bool:
        return self._closing.has_begun

    async def leave(self, user: "AsyncProducer[Any]") -> None:
        """*user* is closed: end with the last one, and return when what was sent is answered."""
        self.users.discard(user)
        if self.users:
            await self.flush()
        else:
            await self.close()

    async def close(self) -> None:
        await self._closing.wait()

    def stop_waiting(self) -> None:
        """It is about to be closed: what waits for exclusive access ends with ClientClosed."""
        self._gives_up = True
        for stream in self._opened:
            stream.stop_waiting()

    async def _close(self) -> None:
        self.stop_waiting()
        try:
            await self.flush()  # also what waits until the streams are open: it was sent before
            self._is_closed = True
            if self._growing is not None:
                self._growing.cancel()
                await asyncio.wait([self._growing])
            async with self._lock:
                await asyncio.gather(*(stream.flush() for stream in self.streams))
                await asyncio.gather(*(stream.close() for stream in self.streams))
        finally:
            self._is_closed = True
            self._on_close(self)


class AsyncProducer(Generic[T]):
    """Sends messages to one topic. Made by `AsyncClient.producer`.

    Example:
        async with client.producer("orders") as producer:
            await producer.send(b"payload", key="customer-7")
            await producer.send_many([b"a", b"b"])
    """

    def __init__(self, sender: Sender, codec: Codec[Any] | None = None) -> None:
        self.topic = sender.topic
        self.sender = sender
        self.codec = codec
        # Made by `close` only: it refers to this object, which has to go with its last user.
        self._closing: Closing | None = None
        self._is_closed = False
        sender.users.add(self)

    @property
    def name(self) -> str:
        """The name under which messages are stored; empty before the first one."""
        return self.sender.name

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that was stored under this name when the stream was opened; -1: none or not known."""
        return max((stream.last_sequence_id for stream in self.sender.streams), default=-1)

    @property
    def _streams(self) -> list[PublishStream]:
        return self.sender.streams

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed(f"{self.topic}: the producer is closed")

    async def open(self, *, timeout_s: float | None = None) -> Self:
        """Connect now instead of with the first message; within *timeout_s*, or else as fast as any operation of the
        client. With access="wait_for_exclusive" it waits without an end, or for *timeout_s*. Raises TopicError.
        """
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        self._check_open()
        await self.sender.open(timeout_s)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """`await client.producer(…)` gives one that is open."""
        return self.open().__await__()

    async def send(
        self,
        value: T | None,
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
        Without a value (None) it is a null message. Raises TopicError, at the latest after `send_timeout_s`; TypeError,
        ValueError, also for a value that is not what the producer's `value=` says.
        """
        message = outgoing(Outgoing(value, key, properties, event_time, deliver_at, ordering_key), self.codec)
        if sequence_id is not None:
            check_whole("sequence_id", sequence_id, 0, INT64)
        self._check_open()
        if (telemetry := self.sender.telemetry) is None:
            return await self.sender.send(message, key, sequence_id)
        with telemetry.publishing(self.topic, [message]):
            return await self.sender.send(message, key, sequence_id)

    async def send_many(
        self, messages: Sequence[Outgoing[T] | T], *, first_sequence_id: int | None = None
    ) -> list[MessageId]:
        """Send messages in order and wait for all; returns their ids.

        On a partitioned topic those without a key go to one partition.
        """
        checked = check_batch(messages, self.codec)
        if first_sequence_id is not None:
            check_whole("first_sequence_id", first_sequence_id, 0, INT64 - len(checked))
        self._check_open()
        if not checked:
            return []
        if (telemetry := self.sender.telemetry) is None:
            return await self.sender.send_many(checked, first_sequence_id)
        with telemetry.publishing(self.topic, checked):
            return await self.sender.send_many(checked, first_sequence_id)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self.sender.streams else "not opened yet"
        named = f", name={self.name!r}" if self.name else ""
        return f"{type(self).__name__}({self.topic}{named}{shown_value(self.codec)}, {state})"

    async def flush(self) -> None:
        """Wait until everything that was sent before is acknowledged or has failed."""
        await self.sender.flush()

    async def close(self) -> None:
        """Flush and disconnect. A call that is cancelled goes on by itself.

        Other producers of the topic that share the connection go on.
        """
        if self._closing is None:
            self._closing = Closing(self._close)
        await self._closing.wait()

    async def _close(self) -> None:
        self._is_closed = True  # not earlier: sends that are tasks already, and have not begun, come before this
        await self.sender.leave(self)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
