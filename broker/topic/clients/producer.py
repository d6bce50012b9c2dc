"""One attached producer: its pending messages, its counters and its connection. No IO."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from broker.errors import BrokerError
from broker.topic.ports import NextBroker
from broker.topic.rates.averages import Rates
from broker.topic.rates.resource_group import Membership
from broker.topic.rates.throttling import PublishHold, PublishThrottle
from broker.wire.frames import Send
from magnetar_core.runtime.types import Cancellable
from magnetar_core.security.caller import TRUSTED, Caller
from magnetar_core.topics.topic_name import TopicName

# Where it is in the rates of a producer.
DROP_RATE: Final = 3


class ProducerTopic(Protocol):
    """The topic of a producer, as the producer's connection uses it."""

    publish_throttle: PublishThrottle
    membership: Membership

    @property
    def name(self) -> TopicName: ...

    @property
    def is_persistent(self) -> bool:
        """Whether its messages are stored."""
        ...

    def publish(self, run: "Sequence[tuple[Producer, Send]]") -> None:
        """Store a run of messages, in order; answers come later."""
        ...

    def close_producer(self, producer: "Producer", done: Callable[[], None]) -> None:
        """Close it when all messages that it sent are answered; then call *done*."""
        ...

    def detach_producer(self, producer: "Producer") -> None: ...

    def last_sequence_id(self, name: str) -> int:
        """The highest id that is stored under a producer's name; -1 if none is, or without deduplication."""
        ...


class PublishPort(Protocol):
    """The broker, as those that take messages in use it."""

    def now_ms(self) -> int: ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable: ...

    def publish_room(self, topic: ProducerTopic) -> tuple[float, float] | None: ...

    def count_published(
        self, topic: ProducerTopic, messages: int, size_bytes: int, hold: Callable[[PublishHold], None]
    ) -> None: ...


class ProducerSink(Protocol):
    """Where a topic reports what becomes of its producers: their connection. It reports each message once, by the first
    three."""

    def on_stored(
        self, producer: "Producer", sequence_id: int, highest: int, ledger_id: int, entry_id: int, size_bytes: int
    ) -> None:
        """A message of *producer* is stored as that entry; NO_ID as both ids: it was before. *highest*: the sequence id
        of a batch's last message."""
        ...

    def on_refused(
        self, producer: "Producer", sequence_id: int, highest: int, error: BrokerError, size_bytes: int
    ) -> None:
        """A message of *producer* is not stored."""
        ...

    def on_unanswered(self, size_bytes: int) -> None:
        """A message gets no answer: its producer is closed, or is going to be."""
        ...

    def on_closed(self, producer: "Producer", next_broker: NextBroker) -> None:
        """The broker closes *producer*, whose client may go on at *next_broker*."""
        ...

    def is_alive(self) -> bool | Awaitable[bool]:
        """Whether the peer gives a sign of life, where it has to be asked (PING); a connection that gives none is
        closed."""
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
        sink: ProducerSink,
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
        # What its client waits for: this producer is closed, once nothing is pending.
        self.closing: Callable[[], None] | None = None
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
        """On a non-persistent topic: messages above the limit of their connection."""
        self.rates = Rates(4, connected_since_ms)
        """Messages in, bytes in, chunks in, messages dropped."""

    def __str__(self) -> str:
        return self.name

    def take_rates(self, now_ms: int) -> None:
        """Work out `rates` for the period that ends now."""
        self.rates.take((self.messages_in, self.bytes_in, self.chunks_in, self.dropped_messages), now_ms)
