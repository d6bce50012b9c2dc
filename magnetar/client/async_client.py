"""The simple topic API for programs with an event loop.

The guarantees are in docs/topic-api.md.
"""

import asyncio
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from magnetar.client.access import Access, Token
from magnetar.client.async_consumer import QUEUE_SIZE, AsyncConsumer, AsyncReader, Start
from magnetar.client.async_producer import SEND_TIMEOUT_S, AsyncProducer
from magnetar.client.async_topics import AsyncTopics
from magnetar.client.brokers import Brokers
from magnetar.client.values import TYPES, Schema, id_to_api, time_ms
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.message_id import EARLIEST, LATEST, MessageId

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
        if isinstance(addresses, str):
            addresses = [address.strip() for address in addresses.split(",") if address.strip()]
        access = Access(token, tls, tls_trust_certs_file, tls_certificate_file, tls_key_file, tuple(trusted_hosts))
        self._brokers = Brokers(addresses, operation_timeout_s, access)
        self._open: dict[AsyncProducer | AsyncConsumer, None] = {}
        self._producers: dict[str, AsyncProducer] = {}
        self.topics = AsyncTopics(self._brokers)

    def producer(
        self,
        topic: str,
        *,
        name: str = "",
        schema: Schema | None = None,
        mix_keys: bool = False,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> AsyncProducer:
        """A producer of *topic*, which is opened with the first message. Calls with no other argument share one.

        With a *name* a message that is sent again is stored once, where the namespace has deduplication; without one
        the broker puts messages of several producers into one entry. *mix_keys* puts messages of different keys into
        one entry: cheaper, but not for Key_Shared subscriptions.

        Example:
            async with client.producer("orders", name="shop-1") as producer:
                await producer.send(b"payload", key="k")
        """
        plain = not name and schema is None and not mix_keys and send_timeout_s == SEND_TIMEOUT_S
        if plain and topic in self._producers:
            return self._producers[topic]
        opening = api.PublishRequest.Open(producer_name=name, mix_keys=mix_keys)
        if schema is not None:
            opening.schema.CopyFrom(schema.to_api())
        made = AsyncProducer(self._brokers, topic, opening, send_timeout_s, self._forget)
        self._open[made] = None
        if plain:
            self._producers[topic] = made
        return made

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
    ) -> AsyncConsumer:
        """A consumer of *topic*; it subscribes with the first receive, or by `async with`.

        *type* is exclusive, shared, failover or key_shared. A new subscription begins behind the last message, or at
        the first one with *from_earliest*. *queue_size* messages may wait here for the program; the broker keeps the
        rest. *sticky_ranges* (key_shared) are the key hashes wanted, 0 … 65535, both ends included.

        Example:
            async with client.consumer("orders", "billing", type="shared") as consumer:
                async for message in consumer:
                    consumer.ack(message)
        """
        if type not in TYPES:
            raise ValueError(f"type={type!r}: expected one of {', '.join(TYPES)}")
        if not subscription:
            raise ValueError("a consumer needs the name of a subscription")
        opening = api.ConsumeRequest.Open(
            subscription=subscription,
            type=TYPES[type],
            consumer_name=name,
            from_earliest=from_earliest,
            allow_out_of_order=allow_out_of_order,
            priority=priority,
        )
        for start, end in sticky_ranges:
            opening.sticky_ranges.add(start=start, end=end)
        if schema is not None:
            opening.schema.CopyFrom(schema.to_api())
        made = AsyncConsumer(self._brokers, topic, opening, queue_size, self._forget)
        self._open[made] = None
        return made

    def reader(
        self, topic: str, *, start: Start = "earliest", inclusive: bool = False, queue_size: int = QUEUE_SIZE
    ) -> AsyncReader:
        """Reads *topic* from *start* on without a subscription that stays. *inclusive*: the start id comes too.

        Example:
            async with client.reader("orders") as reader:
                while await reader.has_more():
                    print((await reader.receive()).payload)
        """
        opening = api.ConsumeRequest.Open(
            subscription=f"reader-{secrets.token_hex(5)}", type=api.EXCLUSIVE, is_reader=True
        )
        start_ms = 0
        if start == "earliest" or start == EARLIEST:
            opening.from_earliest = True
        elif start == "latest":
            opening.start_id.CopyFrom(id_to_api(LATEST))
        elif isinstance(start, MessageId):
            opening.start_id.CopyFrom(id_to_api(start))
            opening.start_inclusive = inclusive
        elif isinstance(start, str):
            raise ValueError(f"start={start!r}: expected earliest, latest, a MessageId or a time")
        else:
            start_ms = time_ms(start)
            opening.from_earliest = True
        made = AsyncReader(self._brokers, topic, opening, queue_size, self._forget, start_ms)
        self._open[made] = None
        return made

    async def close(self) -> None:
        """Close all producers (after what they sent is answered), consumers and readers."""
        await asyncio.gather(*(part.close() for part in list(self._open)))
        await self._brokers.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _forget(self, closed: AsyncProducer | AsyncConsumer) -> None:
        """*closed* is closed: `close` need not wait for it, and the next caller gets a new producer."""
        self._open.pop(closed, None)
        if isinstance(closed, AsyncProducer) and self._producers.get(closed.topic) is closed:
            del self._producers[closed.topic]
