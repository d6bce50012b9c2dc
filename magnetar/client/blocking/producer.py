"""A producer for programs without an event loop."""

import concurrent.futures
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Generic, Self

from magnetar.client.async_producer import AsyncProducer
from magnetar.client.base.arguments import check_whole
from magnetar.client.blocking.loop import ClientLoop
from magnetar.client.blocking.sending import SendQueue
from magnetar.client.codecs.declared import T
from magnetar.client.values import INT64, Outgoing, Time, outgoing
from magnetar_core.topics.message_id import MessageId


class Producer(Generic[T]):
    """Sends messages to one topic. Made by `Client.producer`.

    Example:
        with client.producer("orders") as producer:
            producer.send(b"payload", key="customer-7")
            futures = [producer.send_async(b"%d" % number) for number in range(100)]
            print(futures[0].result())
    """

    def __init__(self, loop: ClientLoop, producer: AsyncProducer[T]) -> None:
        self._loop = loop
        self._producer = producer
        self._queue = SendQueue(loop, producer)
        self.topic = producer.topic

    def open(self, *, timeout_s: float | None = None) -> Self:
        """As `AsyncProducer.open`."""
        self._loop.run(self._producer.open(timeout_s=timeout_s))
        return self

    @property
    def name(self) -> str:
        """The name under which messages are stored; empty before the first one."""
        return self._producer.name

    @property
    def is_closed(self) -> bool:
        return self._producer.is_closed

    @property
    def last_sequence_id(self) -> int:
        """As `AsyncProducer.last_sequence_id`."""
        return self._producer.last_sequence_id

    def send(
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
        """As `AsyncProducer.send`: returns when the message is on disk on the ack quorum."""
        return self._loop.run(
            self._queue.behind(
                lambda: self._producer.send(
                    value,
                    key=key,
                    properties=properties,
                    event_time=event_time,
                    deliver_at=deliver_at,
                    ordering_key=ordering_key,
                    sequence_id=sequence_id,
                )
            )
        )

    def send_async(
        self,
        value: T | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: Time | None = None,
        deliver_at: Time | None = None,
        ordering_key: bytes = b"",
        sequence_id: int | None = None,
    ) -> "concurrent.futures.Future[MessageId]":
        """As `send`, without waiting: the future gets the id, or the error.

        Messages are stored in the order of the calls. A call waits, for `send_timeout_s` at most, while too many are on
        their way. Values and arguments are checked at once: TypeError, ValueError. A future that is cancelled before
        its message is under way takes it back.
        """
        message = outgoing(Outgoing(value, key, properties, event_time, deliver_at, ordering_key), self._producer.codec)
        if sequence_id is not None:
            check_whole("sequence_id", sequence_id, 0, INT64)
        if (telemetry := self._producer.sender.telemetry) is None:
            return self._queue.put(message, key, sequence_id)
        publishing = telemetry.publishing(self.topic, [message])
        try:
            future = self._queue.put(message, key, sequence_id)
        except BaseException as error:
            publishing.end(error)
            raise
        future.add_done_callback(lambda ended: publishing.end(_error_of(ended)))
        return future

    def send_many(
        self, messages: Sequence[Outgoing[T] | T], *, first_sequence_id: int | None = None
    ) -> list[MessageId]:
        """As `AsyncProducer.send_many`."""
        return self._loop.run(
            self._queue.behind(lambda: self._producer.send_many(messages, first_sequence_id=first_sequence_id))
        )

    def flush(self) -> None:
        """Wait until everything that was sent (by other threads too) is acknowledged or has failed."""
        self._loop.run(self._queue.behind(self._producer.flush))

    def close(self) -> None:
        """Flush and disconnect."""
        self._loop.run(self._close())

    async def _close(self) -> None:
        await self._queue.ended()
        await self._producer.close()

    def __repr__(self) -> str:
        return repr(self._producer).removeprefix("Async")

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _error_of(future: "concurrent.futures.Future[MessageId]") -> BaseException | None:
    return concurrent.futures.CancelledError() if future.cancelled() else future.exception()
