"""A producer of the topic API for programs with an event loop: one publish stream for each partition of its topic."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final

from magnetar.client.async_topics import topics_of
from magnetar.client.brokers import Brokers
from magnetar.client.errors import ClientClosed
from magnetar.client.publishing import PublishStream
from magnetar.client.stream import open_all
from magnetar.client.values import Outgoing, Time, check_batch, outgoing, partition_of_key
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.message_id import EARLIEST, MessageId

SEND_TIMEOUT_S: Final = 30.0


class AsyncProducer:
    """Sends messages to one topic. Made by `AsyncClient.producer`."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        opening: Any,
        send_timeout_s: float,
        on_close: Callable[["AsyncProducer"], None],
    ) -> None:
        self.topic = topic
        self._brokers = brokers
        self._on_close = on_close
        self._opening = opening
        self._send_timeout_s = send_timeout_s
        self._streams: list[PublishStream] = []
        self._lock = asyncio.Lock()
        self._turn = 0
        self._arriving = 0
        """Calls that wait until the producer is open, or for room in all of their partitions. Those that come now go
        behind them."""
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
            await self._open_streams()
        return self

    async def _open_streams(self) -> None:
        if self._is_closed:
            raise ClientClosed(f"{self.topic}: the producer is closed")
        if not self._streams:
            streams = []
            for topic in await topics_of(self._brokers, self.topic):
                opening = api.PublishRequest.Open()
                opening.CopyFrom(self._opening)
                opening.topic = topic
                streams.append(PublishStream(self._brokers, topic, opening, self._send_timeout_s))
            await open_all(streams)
            self._streams = streams

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Open the producer if it is not; calls go on in their order. Raises TopicError."""
        self._arriving += 1
        try:
            async with self._lock:
                await self._open_streams()
                yield
        finally:
            self._arriving -= 1

    def __await__(self) -> Generator[Any, None, "AsyncProducer"]:
        """`await client.producer(…)` gives one that is open."""
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
        if not self._streams or self._is_closed or self._arriving:
            async with self._in_turn():
                pass
        return (await self._stream(key).submit([message], sequence_id))[0]

    async def send_many(
        self, messages: Sequence[Outgoing | bytes], *, first_sequence_id: int | None = None
    ) -> list[MessageId]:
        """Send messages in order and wait for all; returns their ids.

        On a partitioned topic those without a key go to one partition.
        """
        checked = check_batch(messages)
        if not checked:
            return []
        if not self._streams or self._is_closed or self._arriving or len(self._streams) > 1:
            async with self._in_turn():
                if len(self._streams) > 1:
                    # In turn up to the last partition: while one has no room, calls that come later must not go first.
                    groups = self._groups(checked, first_sequence_id)
                    pending = [
                        await stream.begin([checked[index] for index in indexes], None)
                        for stream, indexes in groups.items()
                    ]
        if len(self._streams) == 1:
            return await self._streams[0].submit(checked, first_sequence_id)
        answers = await asyncio.gather(*pending)
        ids = [EARLIEST] * len(checked)
        for indexes, answer in zip(groups.values(), answers, strict=True):
            for index, id_ in zip(indexes, answer, strict=True):
                ids[index] = id_
        return ids

    def _groups(self, checked: list[Any], first_sequence_id: int | None) -> dict[PublishStream, list[int]]:
        """Partition → which of the messages go there. Raises ValueError."""
        if first_sequence_id is not None:
            raise ValueError(f"{self.topic} is partitioned; give sequence ids with `send`")
        keyless = self._stream(None)
        groups: dict[PublishStream, list[int]] = {}
        for index, message in enumerate(checked):
            groups.setdefault(self._stream(message.key) if message.HasField("key") else keyless, []).append(index)
        return groups

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
        self._on_close(self)
        async with self._lock:
            await self.flush()
            await asyncio.gather(*(stream.close() for stream in self._streams))

    async def __aenter__(self) -> "AsyncProducer":
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
