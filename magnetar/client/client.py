"""The simple topic API for programs without an event loop.

One thread in the background runs the event loop of `AsyncClient`; the calls here wait for it. The objects may be
used from several threads. A client does not survive a fork: make one in the child.
"""

import asyncio
import sys
import threading
import warnings
from collections.abc import Coroutine, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from types import TracebackType
from typing import Any, TypeVar

from magnetar.client.access import Token
from magnetar.client.async_client import OPERATION_TIMEOUT_S, AsyncClient
from magnetar.client.async_consumer import QUEUE_SIZE, AsyncConsumer, AsyncReader, Start, check_readable
from magnetar.client.async_producer import SEND_TIMEOUT_S, AsyncProducer
from magnetar.client.async_topics import AsyncTopics
from magnetar.client.base.arguments import check_seconds, check_whole
from magnetar.client.base.rpc import FORKED, check_fork, log
from magnetar.client.errors import ClientClosed
from magnetar.client.retries.retry import Retry
from magnetar.client.values import Message, Outgoing, Schema, Time
from magnetar.client.views.table import AsyncChanges, AsyncTableView
from magnetar_core.runtime.process.loop_thread import LoopStopped, LoopThread
from managed_ledger.message_id import MessageId

R = TypeVar("R")


def _on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Errors that nobody waits for. All clients of a process share gRPC's queue: one may be woken for an event of
    another whose loop has ended, or whose queue has; that is no error of anybody."""
    error = context.get("exception")
    if isinstance(error, OSError | RuntimeError) and "handle" in context:
        log.debug("an event of a client that is closed: %s", error)
    else:
        log.error("%s", context.get("message"), exc_info=error)


class _Loop(LoopThread):
    """The event loop of a client, on a thread of its own. What is made by the client holds it: it ends with the last of
    them, if nobody closes the client."""

    client: AsyncClient | None = None

    def __init__(self) -> None:
        super().__init__("magnetar client")
        self._loop.set_exception_handler(_on_error)

    def run(self, work: Coroutine[Any, Any, R], timeout_s: float | None = None) -> R:
        try:
            return super().run(work, timeout_s)
        except LoopStopped:
            raise ClientClosed("the client is closed" if self.is_own else FORKED) from None

    def now_s(self) -> float:
        return self._loop.time()

    def check(self) -> None:
        """Raises ClientClosed in the child of a fork."""
        if not self.is_own:
            raise ClientClosed(FORKED)

    def __del__(self, warn: Any = warnings.warn, is_finalizing: Any = sys.is_finalizing) -> None:
        if is_finalizing() or self.client is None or not self.is_alive or self.is_stopping:
            return
        warn("a magnetar.Client was not closed: use `with`, or close()", ResourceWarning, 2, self)
        self.stop_soon(self.client.close())


class Client:
    """A client of the topic API. Its calls raise TopicError; see `magnetar.client.errors`.

    Example:
        with magnetar.Client("localhost:6648") as client:
            client.producer("orders").send(b"payload", key="k")
            with client.consumer("orders", "billing", from_earliest=True) as consumer:
                message = consumer.receive(timeout_s=10)
                consumer.ack(message)

    *addresses* are host:port of the gRPC ports of one or more brokers, in one text separated by commas or as several
    texts; any one of them that is up will do. *operation_timeout_s* bounds every call but sends.

    *token* says who the program is; a function that returns it is called anew for each call, so it may be renewed. The
    files *tls_…* (PEM), or *tls* alone, mean that brokers are reached over TLS: whom to trust, and what to show.

    A token goes to brokers of the cluster only, wherever a lookup points; *trusted_hosts* (names, `*.domain`, `*`) get
    it, too.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
        token: Token | None = None,
        tls: bool = False,
        tls_trust_certs_file: str | None = None,
        tls_certificate_file: str | None = None,
        tls_key_file: str | None = None,
        trusted_hosts: Sequence[str] = (),
    ) -> None:
        check_fork()
        self._loop = _Loop()

        async def make() -> AsyncClient:
            return AsyncClient(
                addresses,
                operation_timeout_s=operation_timeout_s,
                token=token,
                tls=tls,
                tls_trust_certs_file=tls_trust_certs_file,
                tls_certificate_file=tls_certificate_file,
                tls_key_file=tls_key_file,
                trusted_hosts=trusted_hosts,
            )

        try:
            self._client = self._loop.run(make())
        except BaseException:
            self._loop.stop()
            raise
        self._loop.client = self._client
        self.topics = Topics(self._loop, self._client.topics)

    def producer(
        self,
        topic: str,
        *,
        name: str = "",
        schema: Schema | None = None,
        mix_keys: bool = False,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> "Producer":
        """As `AsyncClient.producer`.

        Example:
            with client.producer("orders", name="shop-1") as producer:
                producer.send(b"payload", key="k")
        """

        async def make() -> AsyncProducer:
            return self._client.producer(
                topic, name=name, schema=schema, mix_keys=mix_keys, send_timeout_s=send_timeout_s
            )

        return Producer(self._loop, self._loop.run(make()))

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
        retry: Retry | None = None,
    ) -> "Consumer":
        """As `AsyncClient.consumer`, but subscribed when it returns.

        Example:
            with client.consumer("orders", "billing", type="shared") as consumer:
                for message in consumer:
                    consumer.ack(message)
        """

        async def make() -> AsyncConsumer:
            return await self._client.consumer(
                topic,
                subscription,
                type=type,
                name=name,
                from_earliest=from_earliest,
                queue_size=queue_size,
                sticky_ranges=sticky_ranges,
                allow_out_of_order=allow_out_of_order,
                priority=priority,
                schema=schema,
                retry=retry,
            ).open()

        return Consumer(self._loop, self._loop.run(make()))

    def reader(
        self, topic: str, *, start: Start = "earliest", inclusive: bool = False, queue_size: int = QUEUE_SIZE
    ) -> "Reader":
        """As `AsyncClient.reader`, but at its start when it returns.

        Example:
            with client.reader("orders") as reader:
                while reader.has_more():
                    print(reader.receive().payload)
        """

        async def make() -> AsyncReader:
            made = self._client.reader(topic, start=start, inclusive=inclusive, queue_size=queue_size)
            await made.open()
            return made

        return Reader(self._loop, self._loop.run(make()))

    def table_view(self, topic: str) -> "TableView":
        """As `AsyncClient.table_view`, but ready when it returns.

        Example:
            with client.table_view("prices") as view:
                print(view["apple"], len(view))
                for message in view.changes():
                    print(message.key, message.payload)
        """

        async def make() -> AsyncTableView:
            return await self._client.table_view(topic).__aenter__()

        return TableView(self._loop, self._loop.run(make()))

    def close(self) -> None:
        """Close all producers (after what they sent is answered), consumers and readers."""
        try:
            self._loop.run(self._client.close())
        except ClientClosed:
            return
        finally:
            self._loop.stop()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer:
    """Sends messages to one topic. Made by `Client.producer`."""

    def __init__(self, loop: _Loop, producer: AsyncProducer) -> None:
        self._loop = loop
        self._producer = producer
        self.topic = producer.topic

    @property
    def name(self) -> str:
        """The name under which messages are stored; empty before the first one."""
        return self._producer.name

    @property
    def last_sequence_id(self) -> int:
        """As `AsyncProducer.last_sequence_id`."""
        return self._producer.last_sequence_id

    def send(
        self,
        payload: bytes | None,
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
            self._producer.send(
                payload,
                key=key,
                properties=properties,
                event_time=event_time,
                deliver_at=deliver_at,
                ordering_key=ordering_key,
                sequence_id=sequence_id,
            )
        )

    def send_many(
        self, messages: Sequence[Outgoing | bytes], *, first_sequence_id: int | None = None
    ) -> list[MessageId]:
        """As `AsyncProducer.send_many`."""
        return self._loop.run(self._producer.send_many(messages, first_sequence_id=first_sequence_id))

    def flush(self) -> None:
        """Wait until everything that was sent (by other threads too) is acknowledged or has failed."""
        self._loop.run(self._producer.flush())

    def close(self) -> None:
        """Flush and disconnect."""
        self._loop.run(self._producer.close())

    def __enter__(self) -> "Producer":
        self._loop.run(self._producer.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Consumer:
    """Receives the messages of one subscription. Made by `Client.consumer`."""

    def __init__(self, loop: _Loop, consumer: AsyncConsumer) -> None:
        self._loop = loop
        self._consumer = consumer
        self._lock = threading.Lock()
        self.topic = consumer.topic

    def receive(self, timeout_s: float | None = None) -> Message:
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

    def receive_batch(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Message]:
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

    def __iter__(self) -> Iterator[Message]:
        """All messages, as they come; ends when the consumer is closed."""
        while True:
            self._loop.check()
            try:
                message = self.receive()
            except ClientClosed:
                return
            yield message

    def ack(self, messages: Message | MessageId | Iterable[Message | MessageId]) -> None:
        """As `AsyncConsumer.ack`."""
        self._consumer.ack(messages)

    def ack_cumulative(self, message: Message | MessageId) -> None:
        """As `AsyncConsumer.ack_cumulative`."""
        self._loop.run(self._consumer.ack_cumulative(message))

    def nack(
        self, messages: Message | MessageId | Iterable[Message | MessageId], *, delay_s: float | None = None
    ) -> None:
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

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reader(Consumer):
    """Reads a topic without leaving a subscription. Made by `Client.reader`."""

    def __init__(self, loop: _Loop, reader: AsyncReader) -> None:
        super().__init__(loop, reader)
        self._reader = reader

    def has_more(self) -> bool:
        """Whether there are messages behind the last one that was received."""
        return self._loop.run(self._reader.has_more())

    def __enter__(self) -> "Reader":
        return self


class TableView(Mapping[str, bytes]):
    """The last value of each key of a topic. Made by `Client.table_view`.

    It is a mapping of keys to payloads. A null message removes its key; messages without a key are passed over.
    """

    def __init__(self, loop: _Loop, view: AsyncTableView) -> None:
        self._loop = loop
        self._view = view
        self.topic = view.topic

    def ready(self) -> "TableView":
        """As `AsyncTableView.ready`."""
        self._loop.run(self._view.ready())
        return self

    def changes(self) -> Iterator[Message]:
        """As `AsyncTableView.changes`, to be used with `for`."""

        async def make() -> AsyncChanges:
            return self._view.changes()

        return self._each(self._loop.run(make()))

    def _each(self, changes: AsyncChanges) -> Iterator[Message]:
        while True:
            try:
                message = self._loop.run(anext(changes))
            except (StopAsyncIteration, ClientClosed):
                return
            yield message

    def close(self) -> None:
        """Disconnect."""
        self._loop.run(self._view.close())

    def __getitem__(self, key: str) -> bytes:
        return self._view[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._view)

    def __len__(self) -> int:
        return len(self._view)

    def keys(self) -> KeysView[str]:
        return self._view.keys()

    def values(self) -> ValuesView[bytes]:
        return self._view.values()

    def items(self) -> ItemsView[str, bytes]:
        return self._view.items()

    def __repr__(self) -> str:
        return repr(self._view).removeprefix("Async")

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __enter__(self) -> "TableView":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Topics:
    """Topics: create, delete, list, stats; as `AsyncTopics`.

    Example:
        client.topics.create("orders", partitions=4)
        print(client.topics.list("public/default"))
    """

    def __init__(self, loop: _Loop, topics: AsyncTopics) -> None:
        self._loop = loop
        self._topics = topics

    def create(self, topic: str, *, partitions: int = 0) -> None:
        """Make a topic. Raises TopicInUse if it exists."""
        self._loop.run(self._topics.create(topic, partitions=partitions))

    def partitions(self, topic: str) -> int:
        """0 for a topic that is not partitioned. Raises TopicDoesNotExist."""
        return self._loop.run(self._topics.partitions(topic))

    def delete(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with its partitions, messages and subscriptions."""
        self._loop.run(self._topics.delete(topic, force=force))

    def list(self, namespace: str = "public/default") -> "list[str]":
        """Full names of the topics of a namespace."""
        return self._loop.run(self._topics.list(namespace))

    def stats(self, topic: str) -> dict[str, Any]:
        """Statistics as Pulsar's admin API gives them."""
        return self._loop.run(self._topics.stats(topic))
