"""The simple topic API for programs without an event loop.

One thread in the background runs the event loop of `AsyncClient`; the calls here wait for it. The objects may be
used from several threads. A client does not survive a fork: make one in the child.
"""

import asyncio
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Unpack, overload

from magnetar.client.access import Token
from magnetar.client.async_client import OPERATION_TIMEOUT_S, AsyncClient
from magnetar.client.async_consumer import QUEUE_SIZE, AsyncConsumer, AsyncReader
from magnetar.client.async_producer import SEND_TIMEOUT_S, AsyncProducer
from magnetar.client.base.options import (
    ConsumerOptions,
    ProducerAccess,
    ProducerOptions,
    ReaderOptions,
    Start,
    SubscriptionType,
)
from magnetar.client.base.rpc import check_fork
from magnetar.client.base.states import OnState
from magnetar.client.base.telemetry import Telemetry
from magnetar.client.blocking.consumer import Consumer, Reader
from magnetar.client.blocking.loop import ClientLoop
from magnetar.client.blocking.producer import Producer
from magnetar.client.blocking.table import TableView
from magnetar.client.blocking.topics import Topics
from magnetar.client.codecs.declared import Declared, Schema, T
from magnetar.client.errors import ClientClosed
from magnetar.client.retries.retry import Retry
from magnetar.client.views.table import AsyncTableView

__all__ = ["Client", "Consumer", "Producer", "Reader", "TableView", "Topics"]


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

    *on_state* is called with a `magnetar.StateChange` each time a producer or consumer is connected, loses its
    connection, is closed or refused. It must not wait: it runs on the client's own thread.

    *telemetry* (`magnetar.Telemetry`) makes spans and metrics of OpenTelemetry of what is sent and received.
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
        on_state: OnState | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        check_fork()
        self._loop = ClientLoop()

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
                on_state=on_state,
                telemetry=telemetry,
            )

        try:
            self._client = self._loop.run(make())
        except BaseException:
            self._loop.stop()
            raise
        self._loop.client = self._client
        self.topics = Topics(self._loop, self._client.topics)

    @overload
    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Producer[bytes]: ...

    @overload
    def producer(
        self, topic: str, *, value: type[T] | Declared[T], **options: Unpack[ProducerOptions]
    ) -> Producer[T]: ...

    def producer(
        self,
        topic: str,
        *,
        value: Any = bytes,
        name: str = "",
        schema: Schema | None = None,
        mix_keys: bool = False,
        send_timeout_s: float = SEND_TIMEOUT_S,
        access: ProducerAccess = "shared",
    ) -> Producer[Any]:
        """As `AsyncClient.producer`.

        Example:
            with client.producer("orders", name="shop-1") as producer:
                producer.send(b"payload", key="k")
        """

        async def make() -> AsyncProducer[Any]:
            return self._client.producer(
                topic,
                value=value,
                name=name,
                schema=schema,
                mix_keys=mix_keys,
                send_timeout_s=send_timeout_s,
                access=access,
            )

        return Producer(self._loop, self._loop.run(make()))

    @overload
    def consumer(self, topic: str, subscription: str, **options: Unpack[ConsumerOptions]) -> Consumer[bytes]: ...

    @overload
    def consumer(self, *, subscription: str, **options: Unpack[ConsumerOptions]) -> Consumer[bytes]: ...

    @overload
    def consumer(
        self, topic: str, subscription: str, *, value: type[T] | Declared[T], **options: Unpack[ConsumerOptions]
    ) -> Consumer[T]: ...

    @overload
    def consumer(
        self, *, subscription: str, value: type[T] | Declared[T], **options: Unpack[ConsumerOptions]
    ) -> Consumer[T]: ...

    def consumer(
        self,
        topic: str | None = None,
        subscription: str = "",
        *,
        topics: Sequence[str] = (),
        pattern: str | re.Pattern[str] | None = None,
        value: Any = bytes,
        type: SubscriptionType = "exclusive",
        name: str = "",
        from_earliest: bool = False,
        queue_size: int = QUEUE_SIZE,
        sticky_ranges: Sequence[tuple[int, int]] = (),
        allow_out_of_order: bool = False,
        priority: int = 0,
        schema: Schema | None = None,
        retry: Retry | None = None,
    ) -> Consumer[Any]:
        """As `AsyncClient.consumer`, but subscribed when it returns.

        Example:
            with client.consumer("orders", "billing", type="shared") as consumer:
                for message in consumer:
                    consumer.ack(message)
        """

        async def make() -> AsyncConsumer[Any]:
            make_one: Any = self._client.consumer  # its overloads say which arguments go together
            consumer: AsyncConsumer[Any] = await make_one(
                topic,
                subscription,
                topics=topics,
                pattern=pattern,
                value=value,
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
            return consumer

        return Consumer(self._loop, self._loop.run(make()))

    @overload
    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> Reader[bytes]: ...

    @overload
    def reader(self, topic: str, *, value: type[T] | Declared[T], **options: Unpack[ReaderOptions]) -> Reader[T]: ...

    def reader(
        self,
        topic: str,
        *,
        value: Any = bytes,
        start: Start = "earliest",
        inclusive: bool = False,
        queue_size: int = QUEUE_SIZE,
    ) -> Reader[Any]:
        """As `AsyncClient.reader`, but at its start when it returns.

        Example:
            with client.reader("orders") as reader:
                while reader.has_more():
                    print(reader.receive().payload)
        """

        async def make() -> AsyncReader[Any]:
            reader = self._client.reader(topic, value=value, start=start, inclusive=inclusive, queue_size=queue_size)
            await reader.open()
            return reader

        return Reader(self._loop, self._loop.run(make()))

    @overload
    def table_view(self, topic: str) -> TableView[bytes]: ...

    @overload
    def table_view(self, topic: str, *, value: type[T] | Declared[T]) -> TableView[T]: ...

    def table_view(self, topic: str, *, value: Any = bytes) -> TableView[Any]:
        """As `AsyncClient.table_view`, but ready when it returns.

        Example:
            with client.table_view("prices") as view:
                print(view["apple"], len(view))
                for message in view.changes():
                    print(message.key, message.payload)
        """

        async def make() -> AsyncTableView[Any]:
            return await self._client.table_view(topic, value=value).__aenter__()

        return TableView(self._loop, self._loop.run(make()))

    def close(self) -> None:
        """Close all producers (after what they sent is answered), consumers and readers."""

        async def end() -> None:
            await asyncio.gather(*(queue.ended() for queue in list(self._loop.queues)))
            await self._client.close()

        try:
            self._loop.run(end())
        except ClientClosed:
            return
        finally:
            self._loop.stop()

    def __repr__(self) -> str:
        return repr(self._client).removeprefix("Async")

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
