"""One subscription of a non-persistent topic: its consumers, and what it drops. No IO and no clock.

Rules:

1. A message goes to a consumer in the call that brings it, or it is dropped and counted: nothing is kept.
2. Acknowledgements, redelivery and seeks change nothing, since there is nothing to come back to. They are not errors:
   clients send them as for any topic.
3. The type is that of the connected consumers. The subscription ends with its last consumer, whatever the consumer
   said about durability.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from broker.errors import ConsumerBusy
from broker.topic.clients.consumer import Consumer
from broker.topic.clients.leaving import Leaving, Steps
from broker.topic.dispatchers.dispatcher import Facts
from broker.topic.dispatchers.kinds import SINGLE_ACTIVE, DispatchedTopic, KeySharedPolicy, check_fits, name_of
from broker.topic.non_persistent.delivery import ByKey, Delivery, InTurn, OneActive
from broker.topic.ports import NOT_KNOWN, NextBroker
from broker.topic.rates.averages import Rates
from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.types import Buffer
from managed_ledger.position import Position

# The id of every message, in receipts and at consumers: nothing can be asked for by its id.
POSITION: Final = Position(0, 0)


class NoAcking:
    """Takes acknowledgements, which change nothing (rule 2)."""

    keeps_parts = False

    def is_done(self, position: Position) -> bool:
        return True

    def check(self, ack: wire.CommandAck) -> None: ...

    def acknowledge(self, consumer: Consumer, ack: wire.CommandAck) -> None: ...


class NonPersistentSubscription:
    """A subscription of a non-persistent topic. Implements `broker.topic.clients.consumer.ConsumerSubscription`."""

    backlog = 0
    mark_delete_position = POSITION

    def __init__(self, name: str, topic: DispatchedTopic, now_ms: Callable[[], int], consumers_max: int = 0) -> None:
        self.name = name
        self.acking = NoAcking()
        self.consumers_max = consumers_max
        self.type: int | None = None
        self._now_ms = now_ms
        self._topic = topic
        self._delivery: Delivery | None = None
        self._leaving = Leaving()
        self.messages_out = 0
        """Messages that went to consumers that have left."""
        self.bytes_out = 0
        self.dropped_messages = 0
        self.drops = Rates(1, now_ms())

    @property
    def messages_out_in_all(self) -> int:
        return self.messages_out + sum(consumer.messages_out for consumer in self._all())

    @property
    def bytes_out_in_all(self) -> int:
        return self.bytes_out + sum(consumer.bytes_out for consumer in self._all())

    def _all(self) -> list[Consumer]:
        return [*self.consumers, *self._leaving]

    # -------------------------------------------------------------------------------- consumers

    @property
    def consumers(self) -> list[Consumer]:
        return [] if self._delivery is None else self._delivery.consumers

    @property
    def active_consumer(self) -> Consumer | None:
        """The consumer that gets all messages; None for Shared and Key_Shared."""
        return self._delivery.active if isinstance(self._delivery, OneActive) else None

    @property
    def type_name(self) -> str:
        return name_of(self.type)

    def check_newcomer(self, consumer: Consumer, kind: int, policy: KeySharedPolicy) -> None:
        """Raises ConsumerBusy if *consumer* cannot join; changes nothing."""
        delivery = self._delivery
        if not self.consumers or delivery is None:
            return
        check_fits(kind, policy, self.type, delivery.policy if isinstance(delivery, ByKey) else None)
        if self.consumers_max and len(self.consumers) >= self.consumers_max:
            raise ConsumerBusy("Subscription reached max consumers limit")
        delivery.check_newcomer(consumer)

    def add_consumer(self, consumer: Consumer, kind: int, policy: KeySharedPolicy) -> None:
        """Attach *consumer*; it gets nothing before its first permits. Raises ConsumerBusy, ConsumerAssignError."""
        self.check_newcomer(consumer, kind, policy)
        delivery = self._delivery if self.consumers else None
        if delivery is None:
            delivery = self._make_delivery(kind, policy)
        delivery.add(consumer)
        self._delivery, self.type = delivery, kind
        consumer.subscription = self

    def _make_delivery(self, kind: int, policy: KeySharedPolicy) -> Delivery:
        if kind in SINGLE_ACTIVE:
            return OneActive(self._topic, is_failover=kind == wire.CommandSubscribe.Failover)
        if kind == wire.CommandSubscribe.Shared:
            return InTurn()
        return ByKey(self._topic, policy)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach *consumer*."""
        if consumer in self._leaving:
            self._leaving.remove(consumer)
            self._on_leaving(consumer)
        elif self._delivery is not None and consumer in self._delivery.consumers:
            self._on_leaving(consumer)
            self._delivery.remove(consumer)

    def detach_consumers(self) -> None:
        """All consumers are out at once; their clients are not told yet."""
        self._leaving.add(self.consumers)
        self._delivery = None

    def notify_detached(self, next_broker: NextBroker = NOT_KNOWN) -> Steps:
        """Tell the clients of detached consumers, which subscribe again by themselves, at *next_broker*; one with each
        step."""
        return self._leaving.notify(self._on_leaving, next_broker)

    def _on_leaving(self, consumer: Consumer) -> None:
        self.messages_out += consumer.messages_out
        self.bytes_out += consumer.bytes_out

    # -------------------------------------------------------------------------------- messages

    def deliver(self, entry: Buffer, facts: Facts) -> None:
        """Send an entry to a consumer, or drop and count it if none takes it now (rule 1)."""
        consumer = None if self._delivery is None else self._delivery.consumer_for(facts)
        if consumer is None:
            self.dropped_messages += facts.messages
        else:
            consumer.send(POSITION, entry, facts.messages)

    def resume(self, consumers: Iterable[Consumer]) -> None:
        """*consumers* have permits, or room in their connections, again."""
        if self._delivery is not None:
            for consumer in consumers:
                self._delivery.wake(consumer)

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.last_flow_ms = self._now_ms()
        consumer.add_permits(permits)
        self.resume((consumer,))

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Nothing is kept, so nothing comes again (rule 2)."""

    def begin_anew(self, consumer: Consumer, epoch: int | None) -> None:
        """The client of *consumer* has emptied its queue."""
        consumer.permits = consumer.last_flow_ms = 0

    def take_rates(self, now_ms: int) -> None:
        """Work out the rates of the period that ends now."""
        for consumer in self.consumers:
            consumer.take_rates(now_ms)
        self.drops.take((self.dropped_messages,), now_ms)
