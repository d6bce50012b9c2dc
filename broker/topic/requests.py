"""Requests of connections to a topic, and the topic as connections use it. Values and a Protocol only. No IO."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from broker.topic.clients.consumer import Consumer, ConsumerSubscription
from broker.topic.clients.producer import Producer, ProducerTopic
from broker.topic.dispatchers.kinds import KeySharedPolicy
from managed_ledger.position import Position


class ProducerRequest(NamedTuple):
    """A producer that wants to be attached."""

    producer: Producer
    topic_epoch: int | None
    encrypted: bool
    initial_subscription: str | None
    on_ready: Callable[[int | None], None]
    """Called with the epoch when a waiting producer gets exclusive access; with None when another fenced it."""
    on_moved: Callable[[], None]
    """Called when the topic sends a waiting producer away: it has to ask again, where the topic is then."""


class Attached(NamedTuple):
    """The answer to a producer. *epoch* is None without exclusive access; the producer waits for it if not *ready*."""

    last_sequence_id: int
    epoch: int | None
    ready: bool


class SubscribeRequest(NamedTuple):
    """A consumer that wants to be attached."""

    consumer: Consumer
    subscription: str
    kind: int
    durable: bool
    start: Position | None
    """Where a reader begins: this entry is delivered first."""
    earliest: bool
    """Where a new subscription begins: at the oldest entry (True), or behind the last one."""
    rollback_s: int
    key_shared: KeySharedPolicy
    properties: Mapping[str, str]
    is_replicated: bool = False
    """The subscription is to be kept in step with that of other clusters; that wish is stored."""


class TopicPort(ProducerTopic, Protocol):
    """A topic, as a connection uses it (`broker.topic.topic.Topic`)."""

    async def attach_producer(self, request: ProducerRequest) -> Attached: ...

    async def subscribe(self, request: SubscribeRequest) -> ConsumerSubscription: ...

    def detach_consumer(self, consumer: Consumer) -> None: ...

    async def unsubscribe(self, consumer: Consumer, *, force: bool = False) -> None: ...

    async def seek(
        self, subscription: ConsumerSubscription, position: Position, ack_set: Sequence[int] = (), batch_size: int = 0
    ) -> None: ...

    async def position_at_ms(self, time_ms: int, *, read_compacted: bool = False) -> Position: ...

    async def last_message(self, *, read_compacted: bool = False) -> tuple[Position, int]: ...
