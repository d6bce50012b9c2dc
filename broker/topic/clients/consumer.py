"""One attached consumer: its permits, its counters, and how an entry is sent to it. No IO."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from broker.topic.ports import NextBroker, Room
from broker.topic.rates.averages import Rates
from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.types import Buffer
from magnetar_core.security.caller import TRUSTED, Caller
from managed_ledger.position import Position

# Limit of the permits: a client that keeps sending FLOW must not make the counter grow for ever.
PERMITS_MAX: Final = 2**31 - 1


# What a moving average keeps of its former value when the next one comes; Apache's brokers keep as much.
AVERAGE_KEEPS: Final = 0.9


class Counted(NamedTuple):
    """What went to consumers since they came. Sums of several are made of the same members."""

    messages: int = 0
    bytes: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    chunks: int = 0

    def plus(self, other: "Counted") -> "Counted":
        return Counted(*(a + b for a, b in zip(self, other, strict=True)))


NOTHING_COUNTED: Final = Counted()


class ConsumerAcking(Protocol):
    """Where the acknowledgements of a consumer go (`broker.topic.reading.acking.Acking`)."""

    @property
    def keeps_parts(self) -> bool:
        """Whether an acknowledgement of a part of a batch is kept; else the batch is acknowledged as a whole."""
        ...

    def is_done(self, position: Position) -> bool:
        """Whether the entry at *position* is acknowledged."""
        ...

    def check(self, ack: wire.CommandAck) -> None:
        """Raises InvalidPosition for an ack that no cursor would take."""
        ...

    def acknowledge(self, consumer: "Consumer", ack: wire.CommandAck) -> None:
        """Raises InvalidPosition; nothing of the ack is applied then."""
        ...


class ConsumerSubscription(Protocol):
    """A consumer's subscription, as its connection uses it (`broker.topic.reading.subscription.Subscription`)."""

    name: str

    @property
    def consumers(self) -> "Sequence[Consumer]":
        """Those that are attached."""
        ...

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        ...

    @property
    def mark_delete_position(self) -> Position:
        """Up to here everything is acknowledged."""
        ...

    @property
    def type_name(self) -> str: ...

    @property
    def active_consumer(self) -> "Consumer | None":
        """The consumer that gets all entries; None for Shared and Key_Shared."""
        ...

    @property
    def acking(self) -> ConsumerAcking: ...

    def resume(self, consumers: "Iterable[Consumer]") -> None:
        """*consumers*, whose connection has room again, may take entries: read and dispatch."""
        ...

    def flow(self, consumer: "Consumer", permits: int) -> None: ...

    def redeliver(self, consumer: "Consumer", positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver again: *positions*, or everything *consumer* has not acknowledged."""
        ...

    def begin_anew(self, consumer: "Consumer", epoch: int | None) -> None:
        """The client of *consumer* has emptied its queue: it has no permits, and what it holds is delivered again."""
        ...


class ConsumerSink(Room, Protocol):
    """Where a topic reports what becomes of its consumers: the connection that they share."""

    async def is_alive(self) -> bool:
        """Ask the peer (PING) and wait for a sign of life; a connection that gives none is closed."""
        ...

    def on_closed(self, consumer: "Consumer", next_broker: NextBroker) -> None:
        """The broker has closed *consumer*, whose client may go on at *next_broker*."""
        ...

    def on_active_change(self, consumer: "Consumer", is_active: bool) -> None:
        """Whether *consumer* gets all entries of its Failover subscription now."""
        ...

    def on_end_of_topic(self, consumer: "Consumer") -> None:
        """The topic is terminated, and holds nothing more for *consumer*."""
        ...


AckSet = Sequence[int] | None
"""What is not acknowledged of a batch, as the words of a Java BitSet; None: all of it, or the entry is not a batch."""

Deliver = Callable[["Consumer", Position, Buffer, int, int, AckSet], int]
"""Sends an entry to the client of a consumer: its position, the entry as it is stored, the permits that it costs, how
often it was delivered before, and what is not acknowledged of its batch. Returns the bytes that were sent.

Called for each entry, so a connection may have one for each consumer, with what is the same for all its entries."""


class Consumer:
    """A consumer on a connection. Permits count messages; a batch is never cut, so they may fall below zero."""

    __slots__ = (
        "_bytes_noted",
        "_entries_noted",
        "_messages_noted",
        "acked_messages",
        "address",
        "bytes_out",
        "caller",
        "chunks_out",
        "client_version",
        "connected_since_ms",
        "consumer_id",
        "deliver",
        "entries_out",
        "epoch",
        "hash_ranges",
        "is_blocked",
        "is_leaving",
        "keeps_counts",
        "knows_end",
        "last_acked_ms",
        "last_consumed_ms",
        "last_flow_ms",
        "messages_out",
        "messages_per_entry",
        "metadata",
        "name",
        "partition",
        "pending",
        "permits",
        "priority_level",
        "rates",
        "read_compacted",
        "redelivered_messages",
        "sends_epoch",
        "sink",
        "subscription",
        "takes_any_schema",
        "unacked_messages",
    )

    def __init__(
        self,
        sink: ConsumerSink,
        deliver: Deliver,
        consumer_id: int,
        name: str,
        *,
        partition: int = -1,
        priority_level: int = 0,
        epoch: int | None = None,
        hash_ranges: Sequence[tuple[int, int]] = (),
        metadata: Mapping[str, str] | None = None,
        address: str = "",
        client_version: str = "",
        connected_since_ms: int = 0,
        read_compacted: bool = False,
        takes_any_schema: bool = False,
        keeps_counts: bool = False,
        caller: Caller = TRUSTED,
    ) -> None:
        self.sink = sink
        self.deliver = deliver
        self.consumer_id = consumer_id
        self.name = name
        self.partition = partition
        self.read_compacted = read_compacted
        """Whether it wants what compaction kept, instead of every message."""
        self.takes_any_schema = takes_any_schema
        """Whether its client reads messages by the schema that they were written with, whichever that is."""
        self.keeps_counts = keeps_counts
        """Whether it is still known how often entries were delivered when this has left as the last consumer."""
        self.is_leaving = False
        """Its program has finished all that it was given: what else was sent does not count as delivered."""
        self.priority_level = priority_level
        self.epoch = epoch
        self.sends_epoch = False
        self.hash_ranges = hash_ranges
        self.metadata = {} if metadata is None else metadata
        self.address = address
        self.client_version = client_version
        self.connected_since_ms = connected_since_ms
        # As whom its client is authenticated: asked again when permissions change.
        self.caller = caller
        self.knows_end = False
        self.subscription: ConsumerSubscription | None = None
        self.permits = 0
        self.unacked_messages = 0
        self.is_blocked = False
        # Shared and Key_Shared: entries sent to it and not acknowledged, position → (messages, hash of the key).
        self.pending: dict[Position, tuple[int, int]] = {}
        self.messages_out = 0
        self.bytes_out = 0
        self.redelivered_messages = 0
        self.acked_messages = 0
        self.last_acked_ms = 0
        self.last_flow_ms = 0
        self.last_consumed_ms = 0
        self.entries_out = 0
        self.chunks_out = 0
        """Entries that are a part of a message."""
        self.messages_per_entry = 0.0
        """A moving average, as `note_sent` sees it."""
        self.rates = Rates(5, connected_since_ms)
        """Messages out, bytes out, messages redelivered, messages acknowledged, chunks out."""
        self._entries_noted = 0
        self._messages_noted = 0
        self._bytes_noted = 0

    def __repr__(self) -> str:
        return f"Consumer(consumerId={self.consumer_id}, consumerName={self.name}, address={self.address})"

    @property
    def is_available(self) -> bool:
        """Whether it can be sent an entry now."""
        return self.permits > 0 and not self.is_blocked and self.sink.is_writable

    @property
    def can_be_sent(self) -> bool:
        """Whether it can be sent what it needs to acknowledge anything, however much it has not acknowledged."""
        return self.permits > 0 and self.sink.is_writable

    def add_permits(self, permits: int) -> None:
        self.permits = min(self.permits + permits, PERMITS_MAX)

    def send(
        self, position: Position, entry: Buffer, messages: int, redelivery_count: int = 0, ack_set: AckSet = None
    ) -> None:
        """Send the entry at *position*, which costs *messages* permits."""
        self.permits -= messages
        self.entries_out += 1
        self.messages_out += messages
        if redelivery_count:
            self.redelivered_messages += messages
        self.bytes_out += self.deliver(self, position, entry, messages, redelivery_count, ack_set)

    @property
    def counted(self) -> Counted:
        return Counted(
            self.messages_out, self.bytes_out, self.redelivered_messages, self.acked_messages, self.chunks_out
        )

    def note_sent(self, now_ms: int) -> tuple[int, int]:
        """Entries were sent to this consumer: note the time and the size of batches. Returns the messages and bytes
        since the last call."""
        messages, size_bytes = self.messages_out - self._messages_noted, self.bytes_out - self._bytes_noted
        entries = self.entries_out - self._entries_noted
        if entries:
            average = messages / entries
            if self._entries_noted:
                average = self.messages_per_entry * AVERAGE_KEEPS + average * (1 - AVERAGE_KEEPS)
            self.messages_per_entry = average
            self._entries_noted, self._messages_noted = self.entries_out, self.messages_out
            self._bytes_noted = self.bytes_out
            self.last_consumed_ms = now_ms
        return messages, size_bytes

    def take_rates(self, now_ms: int) -> None:
        """Work out `rates` for the period that ends now."""
        self.rates.take(self.counted, now_ms)


def priority_of(consumer: Consumer) -> int:
    """0 comes first."""
    return consumer.priority_level
