"""One subscription: its consumers, and where it is in the topic. No IO.

Rules:

1. The type is that of the connected consumers; with none connected the next consumer decides.
2. While the subscription is fenced (seek, delete) nobody joins, and the pump has no dispatcher: nothing is read.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from broker.errors import ConsumerBusy, MetadataFailure, NotReady
from broker.topic.clients.consumer import NOTHING_COUNTED, Consumer, Counted
from broker.topic.clients.leaving import Leaving, Steps, by_turns
from broker.topic.compaction.compacted_view import CompactedCursor, CompactedView
from broker.topic.dispatchers.dispatcher import Dispatcher, DispatchLimits, Held, KeyShared
from broker.topic.dispatchers.key_shared import KeySharedDispatcher
from broker.topic.dispatchers.kinds import SINGLE_ACTIVE, DispatchedTopic, KeySharedPolicy, check_fits, name_of
from broker.topic.dispatchers.shared import SharedDispatcher
from broker.topic.dispatchers.single_active import SingleActiveDispatcher
from broker.topic.ports import NOT_KNOWN, CursorPort, Host, LedgerPort, NextBroker
from broker.topic.rates.averages import Rates
from broker.topic.reading.acking import Acking
from broker.topic.reading.pump import Pump
from broker.topic.reading.read_rates import ReadRates
from broker.wire import pulsar_pb2 as wire
from managed_ledger.position import EARLIEST, Position

# What the cursor of a replicated subscription has among its numbers, with the value 1.
REPLICATED: Final = "pulsar.replicated.subscription"


class Subscription:
    """A subscription of a topic. Implements `broker.topic.clients.consumer.ConsumerSubscription`."""

    def __init__(
        self,
        name: str,
        topic: DispatchedTopic,
        cursor: CursorPort,
        ledger: LedgerPort,
        host: Host,
        limits: DispatchLimits,
        rates: ReadRates,
    ) -> None:
        self.name = name
        self.pump = Pump(name, cursor, ledger, host, limits, rates, self._disconnect_after_failure)
        self.acking = Acking(name, self.pump, ledger, host.now_ms)
        self.last_active_ms = cursor.idle_since_ms or host.now_ms()
        """When a consumer last came or left."""
        cursor.mark_idle(self.last_active_ms)
        self.last_flow_ms = 0
        self.is_fenced = False
        self.type: int | None = None
        self.properties: Mapping[str, str] = {}
        self.rates = Rates(6, host.now_ms())
        """Those of `counted`, and entries expired."""
        self.expired_entries = 0
        self.last_expired_ms = 0
        self._topic = topic
        self._ledger = ledger
        self._host = host
        self._leaving = Leaving()
        self._gone = NOTHING_COUNTED
        """What went to consumers that have left."""
        self._share = host.unacked.share(self.pump.run_soon)

    # -------------------------------------------------------------------------------- consumers

    @property
    def consumers(self) -> list[Consumer]:
        dispatcher = self.pump.dispatcher
        return [] if dispatcher is None else dispatcher.consumers

    @property
    def active_consumer(self) -> Consumer | None:
        """The consumer that gets all entries; None for Shared and Key_Shared."""
        dispatcher = self.pump.dispatcher
        return None if dispatcher is None else dispatcher.active

    @property
    def type_name(self) -> str:
        return name_of(self.type)

    def check_newcomer(self, consumer: Consumer, kind: int, policy: KeySharedPolicy) -> None:
        """Raises NotReady, ConsumerBusy, ConsumerAssignError if *consumer* cannot join; changes nothing."""
        if self.is_fenced:
            raise NotReady(f"Subscription {self.name} is fenced")
        dispatcher = self.pump.dispatcher
        if dispatcher is None or not dispatcher.consumers:
            return
        key_shared = dispatcher.key_shared
        check_fits(kind, policy, self.type, None if key_shared is None else key_shared.policy)
        consumers_max = self.pump.limits.consumers_max
        if consumers_max and len(dispatcher.consumers) >= consumers_max:
            raise ConsumerBusy("Subscription reached max consumers limit", way_out=f"close one of the {consumers_max}")
        dispatcher.check_newcomer(consumer)

    def add_consumer(self, consumer: Consumer, kind: int, policy: KeySharedPolicy) -> None:
        """Attach *consumer*; it gets nothing before its first permits. Raises as `check_newcomer`."""
        self.check_newcomer(consumer, kind, policy)
        pump = self.pump
        dispatcher = pump.dispatcher
        if dispatcher is None or not dispatcher.consumers:
            dispatcher = self._make_dispatcher(kind, policy)
            pump.begin(dispatcher)
            self.type = kind
        dispatcher.add(consumer)
        consumer.subscription = self
        self.last_active_ms = self._host.now_ms()
        self.cursor.mark_active()
        pump.run()

    def _make_dispatcher(self, kind: int, policy: KeySharedPolicy) -> Dispatcher:
        """The dispatcher for consumers of the type *kind*. Redelivery counts go on where both are shared types."""
        topic, cursor, limits, now_ms = self._topic, self.cursor, self.pump.limits, self._host.now_ms
        if kind in SINGLE_ACTIVE:
            is_failover = kind == wire.CommandSubscribe.Failover
            return SingleActiveDispatcher(topic, cursor, limits, now_ms, is_failover=is_failover)
        dispatcher: SharedDispatcher
        if kind == wire.CommandSubscribe.Shared:
            dispatcher = SharedDispatcher(topic.name, cursor, limits, now_ms, self._share)
        else:
            dispatcher = KeySharedDispatcher(topic, cursor, limits, now_ms, self._share, policy)
        former_dispatcher = self.pump.dispatcher
        if isinstance(former_dispatcher, SharedDispatcher):
            dispatcher.redelivery_counts = former_dispatcher.redelivery_counts
        return dispatcher

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach *consumer*; entries that it did not acknowledge go to the other consumers."""
        self.last_active_ms = self._host.now_ms()
        dispatcher = self.pump.dispatcher
        if consumer in self._leaving:
            self._leaving.remove(consumer)
            self._on_leaving(consumer)
        elif dispatcher is not None and consumer in dispatcher.consumers:
            self._on_leaving(consumer)
            dispatcher.remove(consumer)
            if not dispatcher.consumers:
                self.cursor.mark_idle(self.last_active_ms)
            # The pump runs in the next turn of the loop: when a connection breaks, hundreds of its consumers leave in
            # this turn, and the entries of one must not be sent to another that leaves a moment later.
            self.pump.run_soon()

    def read_compacted(self, view: CompactedView) -> None:
        """Consumers that want it get what compaction kept, from now on."""
        if not isinstance(self.cursor, CompactedCursor):
            self.pump.use_cursor(CompactedCursor(self.cursor, view, self._wants_compacted))

    def _wants_compacted(self) -> bool:
        active = self.active_consumer
        return active is not None and active.read_compacted

    def check_may_unsubscribe(self, consumer: Consumer) -> None:
        """Raises MetadataFailure unless *consumer* is the only one."""
        if self.consumers != [consumer]:
            raise MetadataFailure("Unconnected or shared consumer attempting to unsubscribe")

    def detach_consumers(self) -> None:
        """All consumers are out, at once, with what was delivered to them; their clients are not told yet."""
        if self.consumers:  # the first of them may have come months ago
            self.last_active_ms = self._host.now_ms()
        self._leaving.add(self.consumers)
        self.pump.stop()
        self._share.clear()

    def notify_detached(self, next_broker: NextBroker = NOT_KNOWN) -> Steps:
        """Tell the clients of detached consumers, which subscribe again by themselves, at *next_broker*; one with each
        step."""
        return self._leaving.notify(self._on_leaving, next_broker)

    def _on_leaving(self, consumer: Consumer) -> None:
        self._gone = self._gone.plus(consumer.counted)

    def _disconnect_after_failure(self) -> None:
        """The dispatcher is dropped, since its state may be inconsistent (`broker.topic.reading.pump`, rule 2)."""
        self.detach_consumers()
        self.cursor.rewind()
        self._announce_some(by_turns(self.notify_detached()))

    def _announce_some(self, steps: Steps) -> None:
        if next(steps, self) is None:
            self._host.call_later(0, lambda: self._announce_some(steps))

    # -------------------------------------------------------------------------------- requests

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.last_flow_ms = self.last_flow_ms = self._host.now_ms()
        consumer.add_permits(permits)
        self.resume((consumer,))

    def resume(self, consumers: Iterable[Consumer]) -> None:
        """*consumers* have permits, or room in their connections, again."""
        dispatcher = self.pump.dispatcher
        if dispatcher is not None:
            for consumer in consumers:
                dispatcher.wake(consumer)
        self.pump.run()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver again: *positions*, or everything *consumer* has not acknowledged."""
        dispatcher = self.pump.dispatcher
        if dispatcher is not None and consumer not in self._leaving:
            dispatcher.redeliver(consumer, positions, epoch)
            self.pump.run()

    def begin_anew(self, consumer: Consumer, epoch: int | None) -> None:
        """The client of *consumer* has emptied its queue: it has no permits, and what it holds is delivered again."""
        consumer.last_flow_ms = 0
        consumer.permits = 0
        self.redeliver(consumer, None, epoch)

    async def reset_to(
        self,
        position: Position,
        ack_set: Sequence[int] = (),
        batch_size: int = 0,
        check: Callable[[], Awaitable[None]] | None = None,
        *,
        announce: Callable[[Steps], Awaitable[None]],
    ) -> None:
        """Go to *position*, the next entry to deliver; consumers are disconnected first and rejoin afterwards.
        *announce* does the steps that tell their clients, in turns.

        *check* is awaited at the end, and no consumer rejoins before. Nothing is awaited behind it, so that the client
        hears of the end before its consumer is there again: the official C++ client throws away what it was sent
        before it heard. Raises NotReady if the subscription is being reset already, and what the cursor and *check*
        raise.
        """
        if self.is_fenced:
            raise NotReady(f"Subscription {self.name} is being reset already")
        self.is_fenced = True
        try:
            self.detach_consumers()
            await announce(by_turns(self.notify_detached()))
            await self.cursor.reset(position)
            self.pump.end_pause()
            if ack_set:
                self.acking.acknowledge_part(position, ack_set, batch_size)
            if check is not None:
                await check()
        finally:
            self.is_fenced = False

    def close(self) -> None:
        """Start no more reads and timers; all consumers are out."""
        self.is_fenced = True
        self.detach_consumers()
        self.pump.close()
        self._share.end()

    # -------------------------------------------------------------------------------- what is to be seen

    @property
    def cursor(self) -> CursorPort:
        return self.pump.cursor

    @property
    def is_durable(self) -> bool:
        return self.cursor.durable

    @property
    def is_replicated(self) -> bool:
        """Whether it is to be kept in step with that of other clusters. It is stored; there are no other clusters."""
        return self.cursor.durable and self.cursor.properties.get(REPLICATED) == 1

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self.cursor.backlog()

    @property
    def is_before_ledgers(self) -> bool:
        """Whether something may be open that only a compacted ledger has."""
        return self.is_durable and self.cursor.mark_delete_position < self._ledger.ledgers.previous_position(EARLIEST)

    @property
    def mark_delete_position(self) -> Position:
        return self.cursor.mark_delete_position

    @property
    def counted(self) -> Counted:
        """What went to its consumers since it was opened here, with those that have left."""
        total = self._gone
        for consumer in (*self.consumers, *self._leaving):
            total = total.plus(consumer.counted)
        return total

    def take_rates(self, now_ms: int) -> None:
        """Work out the rates of the period that ends now, also those of the consumers."""
        self.rates.take((*self.counted, self.expired_entries), now_ms)
        for consumer in self.consumers:
            consumer.take_rates(now_ms)

    @property
    def unacked_messages(self) -> int:
        return sum(consumer.unacked_messages for consumer in self.consumers)

    @property
    def held(self) -> Held:
        """What was read, or could be, and is not sent for now."""
        dispatcher = self.pump.dispatcher
        return Held() if dispatcher is None else dispatcher.held

    @property
    def is_waiting(self) -> bool:
        """Whether a consumer could take an entry, and there is none left to read."""
        return any(consumer.is_available for consumer in self.consumers) and not self.cursor.has_more()

    @property
    def key_shared(self) -> KeyShared | None:
        """How its keys are distributed; None unless it is Key_Shared."""
        dispatcher = self.pump.dispatcher
        return None if dispatcher is None else dispatcher.key_shared
