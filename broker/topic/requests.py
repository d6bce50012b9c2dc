"""What producers and consumers ask a topic for when they come. Values only."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from broker.topic.consumer import Consumer
from broker.topic.producer import Producer
from broker.topic.subscription import KeySharedPolicy
from managed_ledger.position import Position


class ProducerRequest(NamedTuple):
    """A producer that wants to be attached."""

    producer: Producer
    topic_epoch: int | None
    encrypted: bool
    initial_subscription: str | None
    on_ready: Callable[[int | None], None]
    """Called with the epoch when a producer that had to wait gets the topic; with None when it was pushed out."""


class Attached(NamedTuple):
    """What a producer is told. *epoch* is None unless it has the topic exclusively; it waits if not *ready*."""

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
    """Where a new subscription begins: at the first entry there is, or behind the last."""
    rollback_s: int
    read_compacted: bool
    key_shared: KeySharedPolicy
    properties: Mapping[str, str]
