"""Consumers and readers for programs without an event loop."""

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, Self

from magnetar.client.async_consumer import Acked, AsyncConsumer, AsyncReader, check_readable
from magnetar.client.base.arguments import check_seconds, check_whole
from magnetar.client.base.options import Start
from magnetar.client.blocking.loop import ClientLoop
from magnetar.client.codecs.declared import T
from magnetar.client.errors import ClientClosed
from magnetar.client.values import Message
from magnetar_core.topics.message_id import MessageId


class Consumer(Generic[T]):
    """Receives the messages of one subscription. Made by `Client.consumer`.

    Example:
        with client.consumer("orders", "billing", type="shared") as consumer:
            for message in consumer:
                print(message.value)
                consumer.ack(message)
    """

    def __init__(self, loop: ClientLoop, consumer: AsyncConsumer[T]) -> None:
        self._loop = loop
        self._consumer = consumer
        self._lock = threading.Lock()
        self.topic = consumer.topic

    def open(self) -> Self:
        """It has subscribed already when `Client.consumer` returns. Raises ClientClosed if it is closed."""
        self._loop.run(self._consumer.open())
        return self

    def take(self) -> Message[T] | None:
        """As `AsyncConsumer.take`: the next message if one waits here already."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._consumer.take()
        finally:
            self._lock.release()

    def receive(self, timeout_s: float | None = None) -> Message[T]:
        """As `AsyncConsumer.receive`. Raises TimeoutError, UnreadableMessage, TopicError."""
        left_s = self._acquire(timeout_s)
        try:
            message = self._consumer.take()
            if message is not None:  # one was waiting: no need to ask the loop's thread
                return check_readable(message)
            return self._loop.run(self._consumer.receive(left_s))
        finally:
            self._lock.release()

    def _acquire(self, timeout_s: float | None) -> float | None:
        """Wait until no other thread receives; returns what is left of the time. Raises TimeoutError, ClientClosed."""
        self._loop.check()
        if self._lock.acquire(blocking=False):
            return timeout_s
        if timeout_s is None:
            self._lock.acquire()
            return None
        check_seconds("timeout_s", timeout_s, may_be_zero=True)
        begin_s = self._loop.now_s()
        if not self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise TimeoutError(f"{self.topic}: other threads wait for a message, and none came within {timeout_s:g} s")
        return max(timeout_s - (self._loop.now_s() - begin_s), 0)

    def receive_batch(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Message[T]]:
        """As `AsyncConsumer.receive_batch`."""
        check_whole("max_messages", max_messages, 1, 2**63)
        try:
            left_s = self._acquire(timeout_s)
        except TimeoutError:
            return []
        try:
            return self._loop.run(self._consumer.receive_batch(max_messages, left_s))
        finally:
            self._lock.release()

    def __iter__(self) -> Iterator[Message[T]]:
        """All messages, as they come; ends when the consumer is closed."""
        while True:
            self._loop.check()
            try:
                message = self.receive()
            except ClientClosed:
                return
            yield message

    def ack(self, messages: Acked) -> None:
        """As `AsyncConsumer.ack`."""
        self._consumer.ack(messages)

    def ack_cumulative(self, message: Message[Any] | MessageId) -> None:
        """As `AsyncConsumer.ack_cumulative`."""
        self._loop.run(self._consumer.ack_cumulative(message))

    def nack(self, messages: Acked, *, delay_s: float | None = None) -> None:
        """As `AsyncConsumer.nack`."""
        self._loop.run(self._consumer.nack(messages, delay_s=delay_s))

    def flush(self) -> None:
        """As `AsyncConsumer.flush`."""
        self._loop.run(self._consumer.flush())

    def seek(self, to: Start) -> None:
        """As `AsyncConsumer.seek`."""
        self._loop.run(self._consumer.seek(to))

    def unsubscribe(self) -> None:
        """Remove the subscription and close."""
        self._loop.run(self._consumer.unsubscribe())

    def close(self) -> None:
        """Send the acks that wait, then disconnect."""
        self._loop.run(self._consumer.close())

    def __repr__(self) -> str:
        return repr(self._consumer).removeprefix("Async")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reader(Consumer[T]):
    """Reads a topic without leaving a subscription. Made by `Client.reader`.

    Example:
        with client.reader("orders", start="earliest") as reader:
            while reader.has_more():
                print(reader.receive().value)
    """

    def __init__(self, loop: ClientLoop, reader: AsyncReader[T]) -> None:
        super().__init__(loop, reader)
        self._reader = reader

    def has_more(self) -> bool:
        """Whether there are messages behind the last one that was received."""
        return self._loop.run(self._reader.has_more())
