"""One attached producer: its pending messages, its counters and its connection. No IO."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from broker.topic.ports import Sink
from broker.topic.rates.averages import Rates
from broker.topic.rates.resource_group import Membership
from broker.topic.rates.throttling import PublishThrottle
from broker.wire.frames import Send
from magnetar_core.security.caller import TRUSTED, Caller


class ProducerTopic(Protocol):
    """The topic of a producer, as the producer's connection uses it."""

    publish_throttle: PublishThrottle
    membership: Membership

    @property
    def is_persistent(self) -> bool:
        """Whether its messages are stored."""
        ...

    def publish(self, run: "Sequence[tuple[Producer, Send]]") -> None:
        """Store a run of messages, in order; answers come later."""
        ...

    def close_producer(self, producer: "Producer", request_id: int) -> None: ...

    def detach_producer(self, producer: "Producer") -> None: ...

    def last_sequence_id(self, name: str) -> int:
        """The highest id that is stored under a producer's name; -1 if none is, or without deduplication."""
        ...


class Producer:
    """A producer on a connection."""

    __slots__ = (
        "access_mode",
        "address",
        "bytes_in",
        "caller",
        "chunks_in",
        "client_version",
        "closing",
        "connected_since_ms",
        "dropped_messages",
        "encrypts",
        "epoch",
        "has_generated_name",
        "is_closed",
        "is_known",
        "is_waiting",
        "messages_in",
        "metadata",
        "name",
        "pending",
        "producer_id",
        "rates",
        "regroups",
        "schema_version",
        "sink",
        "topic",
    )

    def __init__(
        self,
        topic: ProducerTopic,
        sink: Sink,
        producer_id: int,
        name: str,
        *,
        epoch: int = 0,
        has_generated_name: bool = False,
        regroups: bool = False,
        access_mode: int = 0,
        schema_version: bytes = b"",
        metadata: Mapping[str, str] | None = None,
        address: str = "",
        client_version: str = "",
        connected_since_ms: int = 0,
        caller: Caller = TRUSTED,
    ) -> None:
        self.topic = topic
        self.sink = sink
        self.producer_id = producer_id
        self.name = name
        self.epoch = epoch
        self.has_generated_name = has_generated_name
        # A producer of the topic API: the broker groups its single messages into batches, so a message that is sent
        # again may be in another batch than before.
        self.regroups = regroups
        self.access_mode = access_mode
        self.schema_version = schema_version
        self.metadata = {} if metadata is None else metadata
        self.address = address
        self.client_version = client_version
        self.connected_since_ms = connected_since_ms
        # As whom its client is authenticated: asked again when permissions change.
        self.caller = caller
        # Whether it said that it encrypts its messages; known when it is attached.
        self.encrypts = False
        # Messages that storage has not answered yet.
        self.pending = 0
        # The request that closes this producer once nothing is pending.
        self.closing: int | None = None
        self.is_closed = False
        # Whether its client was told that it is there. Until then the answer to its request says what became of it.
        self.is_known = True
        # It waits for exclusive access, which another producer still has.
        self.is_waiting = False
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        """Entries that are a part of a message."""
        self.dropped_messages = 0
        """Of a non-persistent topic: messages above the limit of their connection."""
        self.rates = Rates(4, connected_since_ms)
        """Messages in, bytes in, chunks in, messages dropped."""

    def __str__(self) -> str:
        return self.name

    def take_rates(self, now_ms: int) -> None:
        """Work out `rates` for the period that ends now."""
        self.rates.take((self.messages_in, self.bytes_in, self.chunks_in, self.dropped_messages), now_ms)
