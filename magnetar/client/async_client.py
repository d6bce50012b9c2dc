"""The simple topic API for programs with an event loop.

The guarantees are in docs/topic-api.md.
"""

import asyncio
import re
import secrets
import warnings
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Any, Final, Unpack, overload

from magnetar.client.access import Access, Token, hosts
from magnetar.client.async_consumer import QUEUE_SIZE, AsyncConsumer, AsyncReader
from magnetar.client.async_producer import SEND_TIMEOUT_S, AsyncProducer, Sender
from magnetar.client.async_topics import AsyncTopics
from magnetar.client.base.arguments import check_flag, check_instance, check_seconds, check_text, check_whole, wrong
from magnetar.client.base.closing import Closing
from magnetar.client.base.options import (
    ConsumerOptions,
    ProducerAccess,
    ProducerOptions,
    ReaderOptions,
    Start,
    SubscriptionType,
)
from magnetar.client.base.rpc import CLOSED, log
from magnetar.client.base.states import OnState
from magnetar.client.base.telemetry import Telemetry
from magnetar.client.brokers import Brokers
from magnetar.client.codecs.codec import Codec, codec_of
from magnetar.client.codecs.declared import Declared, Schema, T
from magnetar.client.errors import ClientClosed
from magnetar.client.retries.letters import Letters
from magnetar.client.retries.retry import Retry
from magnetar.client.several.pattern import Pattern
from magnetar.client.values import ACCESS, INT32, TYPES, check_id, id_to_api, time_ms
from magnetar.client.views.table import AsyncTableView, CompactedReader
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.message_id import EARLIEST, LATEST, MessageId

OPERATION_TIMEOUT_S: Final = 30.0


class AsyncClient:
    """A client of the topic API. Its calls raise TopicError; see `magnetar.client.errors`.

    Example:
        async with magnetar.AsyncClient("localhost:6648") as client:
            await client.producer("orders").send(b"payload", key="k")
            async with client.consumer("orders", "billing", from_earliest=True) as consumer:
                message = await consumer.receive(timeout_s=10)
                consumer.ack(message)

    *addresses* are host:port of the gRPC ports of one or more brokers, in one text separated by commas or as several
    texts; any one of them that is up will do. *operation_timeout_s* bounds every call but sends.

    *token* says who the program is; a function that returns it is called anew for each call, so it may be renewed. The
    files *tls_…* (PEM), or *tls* alone, mean that brokers are reached over TLS: whom to trust, and what to show.

    A token goes to brokers of the cluster only, wherever a lookup points; *trusted_hosts* (names, `*.domain`, `*`) get
    it, too.

    *on_state* is called with a `magnetar.StateChange` each time a producer or consumer is connected, loses its
    connection, is closed or refused. It must not wait: it runs on the event loop.

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
        self._is_closed = True  # until it is made
        if isinstance(addresses, str):
            addresses = [address.strip() for address in addresses.split(",") if address.strip()]
        addresses = hosts("addresses", addresses)
        check_seconds("operation_timeout_s", operation_timeout_s)
        trusted = hosts("trusted_hosts", trusted_hosts)
        access = Access(token, tls, tls_trust_certs_file, tls_certificate_file, tls_key_file, trusted).check()
        if on_state is not None and not callable(on_state):
            raise wrong("on_state", on_state, "a function of one magnetar.StateChange")
        if telemetry is not None and not isinstance(telemetry, Telemetry):
            raise wrong("telemetry", telemetry, "magnetar.Telemetry() or None")
        self._brokers = Brokers(addresses, operation_timeout_s, access, on_state, telemetry)
        self._open: dict[Sender | AsyncConsumer[Any], None] = {}
        self._senders: dict[Hashable, Sender] = {}
        """Those that are shared, by what they were made with."""
        self._closing = Closing(self._close)
        self._is_closed = False
        self.topics = AsyncTopics(self._brokers, self)

    @overload
    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> "AsyncProducer[bytes]": ...

    @overload
    def producer(
        self, topic: str, *, value: type[T] | Declared[T], **options: Unpack[ProducerOptions]
    ) -> "AsyncProducer[T]": ...

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
    ) -> AsyncProducer[Any]:
        """A producer of *topic*, which is opened with the first message. Those without a name and exclusive access, and
        with the same arguments, share a connection.

        With a *name* a message that is sent again is stored once, where the namespace has deduplication; without one
        the broker puts messages of several producers into one entry. *mix_keys* puts messages of different keys into
        one entry: cheaper, but not for Key_Shared subscriptions.

        *access* says who else may write to the topic. "shared": others that share. "exclusive": nobody; where somebody
        does, opening raises ProducerFenced. "wait_for_exclusive": nobody, and opening waits until that is so.
        "exclusive_with_fencing": nobody, and those who do are fenced out: what they send from then on is not stored,
        and raises ProducerFenced.

        *value* says what values are: bytes, str, `magnetar.Json`, a dataclass, a pydantic model, or `magnetar.Avro(…)`.
        The topic gets the schema that goes with it; where it takes no such schema, opening raises SchemaRefused.

        Example:
            async with client.producer("orders", name="shop-1") as producer:
                await producer.send(b"payload", key="k")
        """
        self._check_open()
        check_text("topic", topic)
        check_text("name", name, may_be_empty=True)
        codec, written = _codec(value, schema)
        check_flag("mix_keys", mix_keys)
        check_seconds("send_timeout_s", send_timeout_s)
        check_text("access", access, may_be_empty=True)
        if access not in ACCESS:
            raise ValueError(f"access={access!r}: expected one of {', '.join(ACCESS)}")
        opening = api.PublishRequest.Open(producer_name=name, mix_keys=mix_keys, access=ACCESS[access])
        if written is not None:
            opening.schema.CopyFrom(written)
        kind = topic, opening.SerializeToString(deterministic=True), send_timeout_s
        is_own = bool(name) or access != "shared"
        sender = None if is_own else self._senders.get(kind)
        if sender is None or sender.is_closing:
            sender = Sender(self._brokers, topic, opening, send_timeout_s, self._forget, kind)
            self._open[sender] = None
            if not is_own:
                self._senders[kind] = sender
        return AsyncProducer(sender, codec)

    @overload
    def consumer(self, topic: str, subscription: str, **options: Unpack[ConsumerOptions]) -> "AsyncConsumer[bytes]": ...

    @overload
    def consumer(self, *, subscription: str, **options: Unpack[ConsumerOptions]) -> "AsyncConsumer[bytes]": ...

    @overload
    def consumer(
        self, topic: str, subscription: str, *, value: type[T] | Declared[T], **options: Unpack[ConsumerOptions]
    ) -> "AsyncConsumer[T]": ...

    @overload
    def consumer(
        self, *, subscription: str, value: type[T] | Declared[T], **options: Unpack[ConsumerOptions]
    ) -> "AsyncConsumer[T]": ...

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
    ) -> AsyncConsumer[Any]:
        """A consumer of *topic*; it subscribes with the first receive, or by `async with`.

        Instead of one topic it takes *topics*, or those that match *pattern*, a regular expression for the names of a
        namespace, as "tenant/namespace/orders-.*". Topics that come later are read from their first message on.

        *type* is exclusive, shared, failover or key_shared. A new subscription begins behind the last message, or at
        the first one with *from_earliest*. *queue_size* messages may wait here for the program; the broker keeps the
        rest. *sticky_ranges* (key_shared) are the key hashes wanted, 0 … 65535, both ends included.

        *retry* (shared and key_shared): how often and when a failed message is tried again, and where it ends.

        *value*: as of a producer. `message.value` raises ValueError for a message that cannot be read so.

        Example:
            async with client.consumer("orders", "billing", type="shared") as consumer:
                async for message in consumer:
                    consumer.ack(message)
        """
        self._check_open()
        matching = None if pattern is None else Pattern(pattern)
        several = _topics(topics)
        if (topic is not None) + bool(several) + (matching is not None) != 1:
            raise ValueError("a consumer takes a topic, or topics=[…], or pattern=…, and one of these only")
        if topic is not None:
            check_text("topic", topic)
            what = topic
        else:
            what = ", ".join(several) if matching is None else matching.text
        check_text("subscription", subscription)
        check_text("type", type, may_be_empty=True)
        if type not in TYPES:
            raise ValueError(f"type={type!r}: expected one of {', '.join(TYPES)}")
        check_text("name", name, may_be_empty=True)
        check_flag("from_earliest", from_earliest)
        check_flag("allow_out_of_order", allow_out_of_order)
        check_whole("priority", priority, -INT32 - 1, INT32)
        codec, written = _codec(value, schema)
        check_instance("retry", retry, Retry, "magnetar.Retry or None")
        opening = api.ConsumeRequest.Open(
            subscription=subscription,
            type=TYPES[type],
            consumer_name=name,
            from_earliest=from_earliest,
            allow_out_of_order=allow_out_of_order,
            priority=priority,
        )
        for start, end in _checked_ranges(sticky_ranges):
            opening.sticky_ranges.add(start=start, end=end)
        if written is not None:
            opening.schema.CopyFrom(written)
        letters = None
        if retry is not None:
            if type not in ("shared", "key_shared"):
                raise ValueError(f'retry needs type="shared" or "key_shared"; {type} keeps the order of its messages')
            retry = retry.named(several if topic is None else [topic], subscription)
            if matching is not None:
                own = [name for name in (retry.retry_topic, retry.dead_letter_topic) if name is not None]
                if any(matching.matching(own)):
                    raise ValueError(f"pattern={what!r} matches a topic of its own Retry: copies would come twice")
            letters = Letters(self._brokers, what, subscription, retry, written, self._subscribe)
        consumer = AsyncConsumer[Any](
            self._brokers,
            what,
            opening,
            queue_size,
            self._forget,
            letters=letters,
            codec=codec,
            topics=several,
            pattern=matching,
        )
        self._open[consumer] = None
        return consumer

    @overload
    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> "AsyncReader[bytes]": ...

    @overload
    def reader(
        self, topic: str, *, value: type[T] | Declared[T], **options: Unpack[ReaderOptions]
    ) -> "AsyncReader[T]": ...

    def reader(
        self,
        topic: str,
        *,
        value: Any = bytes,
        start: Start = "earliest",
        inclusive: bool = False,
        queue_size: int = QUEUE_SIZE,
    ) -> AsyncReader[Any]:
        """Reads *topic* from *start* on without a subscription that stays. *inclusive*: the start id comes too.
        *value*: as of a consumer.

        Example:
            async with client.reader("orders") as reader:
                while await reader.has_more():
                    print((await reader.receive()).payload)
        """
        self._check_open()
        check_text("topic", topic)
        check_flag("inclusive", inclusive)
        place: Any = start
        opening = api.ConsumeRequest.Open(
            subscription=f"reader-{secrets.token_hex(5)}", type=api.EXCLUSIVE, is_reader=True
        )
        codec, written = _codec(value, None)
        if written is not None:
            opening.schema.CopyFrom(written)
        start_ms = 0
        if place == "earliest" or place == EARLIEST:
            opening.from_earliest = True
        elif place == "latest":
            opening.start_id.CopyFrom(id_to_api(LATEST))
        elif isinstance(place, MessageId):
            check_id("start", place)
            opening.start_id.CopyFrom(id_to_api(place))
            opening.start_inclusive = inclusive
        elif isinstance(place, str):
            raise ValueError(f"start={place!r}: expected earliest, latest, a MessageId or a time")
        else:
            start_ms = time_ms(place, "start")
            opening.from_earliest = True
        reader = AsyncReader[Any](self._brokers, topic, opening, queue_size, self._forget, start_ms, codec=codec)
        self._open[reader] = None
        return reader

    @overload
    def table_view(self, topic: str) -> "AsyncTableView[bytes]": ...

    @overload
    def table_view(self, topic: str, *, value: type[T] | Declared[T]) -> "AsyncTableView[T]": ...

    def table_view(self, topic: str, *, value: Any = bytes) -> AsyncTableView[Any]:
        """The last value of each key of *topic*, as a mapping; ready with `await`, or by `async with`. *value*: as of a
        consumer.

        Example:
            async with client.table_view("prices") as view:
                print(view["apple"], len(view))
                async for message in view.changes():
                    print(message.key, message.payload)
        """
        self._check_open()
        check_text("topic", topic)
        opening = api.ConsumeRequest.Open(
            subscription=f"view-{secrets.token_hex(5)}",
            type=api.EXCLUSIVE,
            is_reader=True,
            from_earliest=True,
            read_compacted=True,
        )
        codec, written = _codec(value, None)
        if written is not None:
            opening.schema.CopyFrom(written)
        reader = CompactedReader[Any](self._brokers, topic, opening, QUEUE_SIZE, self._forget, codec=codec)
        self._open[reader] = None
        return AsyncTableView(reader)

    async def _subscribe(self, topic: str, subscription: str) -> None:
        """Make a subscription that begins at the first message. Raises TopicError."""
        async with self.consumer(topic, subscription, type="shared", from_earliest=True, queue_size=1):
            pass

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed(CLOSED)

    async def close(self) -> None:
        """Close all producers (after what they sent is answered), consumers and readers.

        A call that is cancelled goes on by itself.
        """
        self._is_closed = True
        if self._brokers.is_stranded:
            self._brokers.drop()
            return
        self._brokers.check_loop()
        await self._closing.wait()

    async def _close(self) -> None:
        results = await asyncio.gather(*(part.close() for part in list(self._open)), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                log.error("a part of the client could not be closed: %s", result, exc_info=result)
        await self._brokers.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"{type(self).__name__}({', '.join(self._brokers.addresses)}{state})"

    def __del__(self) -> None:
        if self._is_closed or self._brokers.is_inherited or not self._brokers.has_channels:
            return
        warnings.warn("a magnetar.AsyncClient was not closed: use `async with`, or close()", ResourceWarning, 2, self)
        self._is_closed = True
        self._brokers.end_soon(self._closing)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _forget(self, closed: Sender | AsyncConsumer[Any]) -> None:
        """*closed* is closed: `close` need not wait for it."""
        self._open.pop(closed, None)
        if isinstance(closed, Sender) and self._senders.get(closed.kind) is closed:
            del self._senders[closed.kind]


def _codec(value: Any, schema: Schema | None) -> tuple[Codec[Any] | None, api.Schema | None]:
    """The codec of what a program declares (None: values are bytes), and the schema that the topic gets. Raises
    TypeError, ValueError."""
    check_instance("schema", schema, Schema, "magnetar.Schema or None")
    codec = codec_of(value)
    if codec is None:
        return None, None if schema is None else schema.to_api()
    if schema is not None:
        raise ValueError(f"value={codec.name} has a schema of its own: leave schema= out, or send bytes")
    return codec, None if codec.schema is None else codec.schema.to_api()


def _topics(value: Any) -> list[str]:
    """Raises TypeError, ValueError."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise wrong("topics", value, "a list of str")
    for topic in value:
        check_text("one of topics", topic)
    return list(value)


def _checked_ranges(value: Any) -> list[tuple[int, int]]:
    """Raises TypeError, ValueError."""
    taken = "a list of (first, last), key hashes from 0 to 65535"
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise wrong("sticky_ranges", value, taken)
    for hashes in value:
        if isinstance(hashes, str | bytes) or not isinstance(hashes, Sequence) or len(hashes) != 2:
            raise wrong("a range of sticky_ranges", hashes, taken)
        for end in hashes:
            check_whole("an end of sticky_ranges", end, 0, 65_535)
    return [(first, last) for first, last in value]
