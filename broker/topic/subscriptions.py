"""The subscriptions of a topic: restored, created, deleted; consumers that come and leave.

Rules:

1. After each wait the topic may have been closed and the subscription removed, so both are checked anew.
2. A subscription that is not durable (that of a reader) is removed when its last consumer has left. After a seek it is
   kept for a while: the reader is disconnected by the seek and comes back.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from broker.errors import (
    BrokerError,
    ConsumerAssignError,
    ConsumerBusy,
    NotAllowed,
    NotReady,
    ProducerBusy,
    SubscriptionNotFound,
    storage_error,
    storage_errors,
)
from broker.names import check_client_name, is_internal_subscription, is_reserved_subscription
from broker.settings.config import BrokerConfig
from broker.settings.quotas import DispatchRate
from broker.topic.clients.consumer import NOTHING_COUNTED, Consumer, ConsumerSubscription
from broker.topic.clients.leaving import Steps, by_turns
from broker.topic.clients.properties import check_bytes
from broker.topic.compaction.compacted_view import CompactedView
from broker.topic.dispatchers.kinds import DispatchedTopic, check_type, ways_for_several
from broker.topic.limits import TopicLimits, has_room_for_host
from broker.topic.ports import NOT_KNOWN, Host, NextBroker
from broker.topic.rates.resource_group import Membership, ResourceGroup
from broker.topic.rates.throttling import DispatchThrottle, SubscribeThrottle
from broker.topic.reading.positions import position_at_ms, reader_start
from broker.topic.reading.read_rates import ReadRates
from broker.topic.reading.subscription import REPLICATED, Subscription
from broker.topic.requests import SubscribeRequest
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import in_turns
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import CursorNotFound, ManagedLedgerError, StorageUnavailable
from managed_ledger.ledgers.delayed_buckets import INTERNAL_PREFIX
from managed_ledger.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from managed_ledger.cursors.managed_cursor import ManagedCursor
    from managed_ledger.ledger import ManagedLedger


# A seek that takes longer than the first shows that this broker, or its bookies, stood still: another broker may have
# the topic now. The second: how long the metadata store may take to say which one has it.
SEEK_DOUBTED_S: Final = 1.0
SEEK_CHECK_S: Final = 2.0

Making = Callable[[], contextlib.AbstractAsyncContextManager[None]]
"""The turn of a client that makes a durable subscription (`broker.arrivals`)."""


class Subscriptions:
    """The subscriptions of one topic by name."""

    def __init__(
        self,
        topic: TopicName,
        ledger: "ManagedLedger",
        host: Host,
        clock: Clock,
        config: BrokerConfig,
        limits: TopicLimits,
        compacted: CompactedView,
        membership: Membership,
        making: Making,
    ) -> None:
        """*compacted*: for consumers that want what compaction kept; *membership*: the topic's in a resource group."""
        self.by_name: dict[str, Subscription] = {}
        self.last_active_ms = clock.wall_ms()
        self.gone = NOTHING_COUNTED
        """What went to consumers of subscriptions that were removed."""
        self.gone_internal = NOTHING_COUNTED
        """The part of it that went to readers of the system."""
        self._topic = topic
        self._ledger = ledger
        self._host = host
        self._clock = clock
        self._config = config
        self._limits = limits
        self._compacted = compacted
        self._membership = membership
        self._making = making
        self.dispatch_throttle = DispatchThrottle()
        """The rate of all subscriptions together."""
        self._subscribe_throttle = SubscribeThrottle()
        self._published = (0.0, 0.0)
        self._coming: Counter[str] = Counter()
        """Those that are being made; how many requests make each."""
        self._unsettled: dict[str, asyncio.Lock | None] = {}
        """Those that had no consumer yet since the topic was opened: transactions may have acknowledged messages. The
        lock is held by the first of several consumers that come at once."""
        self._use_rates()

    def restore(self) -> None:
        """Make the subscriptions whose cursors are stored."""
        for name, cursor in self._ledger.cursors.items():
            if not is_reserved_subscription(name):
                self._add(name, cursor)
                self._unsettled[name] = None

    def apply_limits(self, limits: TopicLimits) -> None:
        """The namespace's policies changed."""
        self._limits = limits
        self._use_rates()  # before the pumps below: what waits for an old rate has a timer that may be hours away
        for subscription in self.by_name.values():
            subscription.pump.use_limits(limits.dispatch)

    def _use_rates(self) -> None:
        limits, now_ms = self._limits, self._clock.wall_ms()
        self._subscribe_throttle.use(limits.subscribe_rate)
        self.dispatch_throttle.use(limits.dispatch_rate, self._published, now_ms)
        for name, subscription in self.by_name.items():
            self._use_rate(name, subscription.pump.rates.own)

    def _use_rate(self, name: str, throttle: DispatchThrottle) -> None:
        throttle.use(self._rate_of(name), self._published, self._clock.wall_ms())

    def _rate_of(self, name: str) -> DispatchRate:
        return self._limits.subscription_rates.get(name, self._limits.subscription_rate)

    def change_group(self, former_group: ResourceGroup | None) -> None:
        """The topic is in another resource group than *former_group*."""
        for subscription in list(self.by_name.values()):
            subscription.pump.change_group(former_group)

    # ------------------------------------------------------------------------------- consumers come

    async def subscribe(self, request: SubscribeRequest, check_open: Callable[[], None]) -> Subscription:
        """Attach a consumer. Raises BrokerError, also from *check_open* (rule 1)."""
        limits = self._limits
        check_open()
        check_name(request.subscription)
        check_type(request.kind, limits.subscription_types, read_compacted=request.consumer.read_compacted)
        self._subscribe_throttle.check(request.consumer.address, request.consumer.name, self._clock.wall_ms())
        self._check_room_for(request.consumer)
        subscription = await self._existing_or_new(request, check_open)
        try:
            subscription.check_newcomer(request.consumer, request.kind, request.key_shared)
        except (ConsumerBusy, ConsumerAssignError):
            # The consumers in the way may be dead: a client that reconnects must not wait for its own old connection.
            await asyncio.gather(*(consumer.sink.is_alive() for consumer in subscription.consumers))
        check_open()
        if self.by_name.get(subscription.name) is not subscription:
            raise NotReady(f"Subscription {subscription.name} was removed meanwhile")
        try:
            self._check_room_for(request.consumer)  # others came meanwhile
        except ConsumerBusy:
            self._drop_if_unused(subscription)
            raise
        if request.consumer.read_compacted:
            subscription.read_compacted(self._compacted)
        try:
            subscription.add_consumer(request.consumer, request.kind, request.key_shared)
        except BrokerError as error:
            if isinstance(error, ConsumerBusy) and error.way_out is None:
                error.way_out = ways_for_several(limits.subscription_types)
            self._drop_if_unused(subscription)
            raise
        self.last_active_ms = self._clock.wall_ms()
        if self._ledger.is_terminated:
            subscription.pump.announce_end()
        return subscription

    def _check_room_for(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy if there are too many already, in all or of the consumer's host."""
        limits = self._limits
        others = (consumer.address for subscription in self.by_name.values() for consumer in subscription.consumers)
        if (
            limits.consumers_max
            and sum(len(subscription.consumers) for subscription in self.by_name.values()) >= limits.consumers_max
        ):
            raise ConsumerBusy("Topic reached max consumers limit", way_out=f"close one of the {limits.consumers_max}")
        if not has_room_for_host(consumer.address, others, limits.consumers_per_host_max):
            raise ConsumerBusy("Topic reached max same address consumers limit")

    def _check_number_with(self, name: str) -> None:
        """Raises NotAllowed if there are too many for a new one of that name. Those of readers count, too."""
        subscriptions_max = self._limits.subscriptions_max
        if subscriptions_max and len((self.by_name.keys() | self._coming.keys()) - {name}) >= subscriptions_max:
            raise NotAllowed(
                f"Exceed the maximum number of subscriptions of the topic: {self._topic}",
                way_out=f"remove one of the {subscriptions_max}",
            )

    async def _existing_or_new(self, request: SubscribeRequest, check_open: Callable[[], None]) -> Subscription:
        name = request.subscription
        existing = self.by_name.get(name)
        if existing is not None:
            if name in self._unsettled:
                await self._settle_transactions(name)
            if existing.is_durable != request.durable:
                raise NotAllowed(
                    f"Subscription {name} is {'durable' if existing.is_durable else 'not durable'}, "
                    "and the consumer wants the other kind",
                    way_out="take another name",
                )
            if request.is_replicated and not existing.is_replicated:
                await self.set_replicated(name, is_replicated=True)
            return existing
        check_new_name(name)
        if request.durable:
            self.check_exists_or_may_be_created(name)
            start = EARLIEST if request.earliest else LATEST
            start = await self._rolled_back(request, start)
            return await self.create(name, start, request.properties, check_open, is_replicated=request.is_replicated)
        self._check_number_with(name)
        last = self._ledger.ledgers.last_confirmed
        start = reader_start(request.start, earliest=request.earliest, last_confirmed=last)
        start = await self._rolled_back(request, start)
        existing = self.by_name.get(name)  # another request may have made it while this one waited
        if existing is not None:
            return existing
        return self._add(name, self._ledger.new_non_durable_cursor(name, start))

    def check_exists_or_may_be_created(self, name: str) -> None:
        """Raises SubscriptionNotFound: a durable subscription is not there, and a consumer may not create it."""
        if name not in self.by_name and not self._limits.creates_subscriptions:
            raise SubscriptionNotFound(f"Subscription {name} does not exist, and automatic creation is off")

    async def _settle_transactions(self, name: str) -> None:
        """What transactions acknowledged before the topic came here is applied, or the topic is refused. Raises
        BrokerError."""
        lock = self._unsettled[name] = self._unsettled[name] or asyncio.Lock()
        async with lock:
            cursor = self._ledger.cursors.get(name)
            if name in self._unsettled and cursor is not None:
                with storage_errors():
                    await self._ledger.settle_transactions(cursor)
            self._unsettled.pop(name, None)

    async def _rolled_back(self, request: SubscribeRequest, start: Position) -> Position:
        """Where the consumer begins: at *start*, or so many seconds ago if it asks for that."""
        if request.rollback_s <= 0:
            return start
        before_ms = self._clock.wall_ms() - request.rollback_s * 1000
        return await position_at_ms(
            self._ledger, before_ms, self._compacted if request.consumer.read_compacted else None
        )

    async def create_initial(self, name: str, check_open: Callable[[], None]) -> None:
        """The subscription that a producer wants to be there, at the oldest entry. Raises BrokerError."""
        if name in self.by_name:
            return
        if not self._limits.creates_subscriptions:
            raise NotAllowed(f"Could not create the initial subscription {name}: automatic creation is off")
        await self.create(name, EARLIEST, None, check_open)

    async def create(
        self,
        name: str,
        start: Position,
        properties: Mapping[str, str] | None,
        check_open: Callable[[], None],
        *,
        is_replicated: bool = False,
    ) -> Subscription:
        """A durable subscription at *start*, the first position to deliver. Raises BrokerError."""
        check_new_name(name)
        self._check_number_with(name)
        self._coming[name] += 1
        try:
            async with self._making():
                check_open()
                with storage_errors():
                    cursor = await self._ledger.open_cursor(name, start, dict(properties or {}))
                    if is_replicated:
                        await _store_replicated(cursor, is_replicated=True)
        finally:
            self._coming[name] -= 1
            if not self._coming[name]:
                del self._coming[name]
        check_open()
        existing = self.by_name.get(name)  # another request may have made it while this one waited
        return existing if existing is not None else self._add(name, cursor)

    def _add(self, name: str, cursor: "ManagedCursor") -> Subscription:
        assert name not in self.by_name, f"subscription {name} of {self._topic} is there twice"
        throttle = DispatchThrottle()
        self._use_rate(name, throttle)
        rates = ReadRates(self.dispatch_throttle, throttle, self._membership)
        config = self._config
        topic = DispatchedTopic(
            str(self._topic), self._topic.partition, config.key_shared_consistent_hashing, config.key_shared_points
        )
        subscription = Subscription(name, topic, cursor, self._ledger, self._host, self._limits.dispatch, rates)
        subscription.properties = cursor.string_properties
        self.by_name[name] = subscription
        return subscription

    # ------------------------------------------------------------------------------ consumers leave

    def detach(self, consumer: Consumer) -> None:
        """*consumer* has left; its unacknowledged messages go to the other consumers."""
        if consumer.subscription is None:
            return
        subscription = _whole(consumer.subscription)
        subscription.remove_consumer(consumer)
        self.last_active_ms = self._clock.wall_ms()
        self._drop_if_unused(subscription)

    def disconnect(self, consumer: Consumer) -> None:
        """Close *consumer* from the side of the broker; its client looks the topic up again."""
        if consumer.subscription is None:
            return
        consumer.sink.on_closed(consumer, NOT_KNOWN)
        self.detach(consumer)

    def _drop_if_unused(self, subscription: Subscription) -> None:
        """Remove the subscription of a reader that has left, but not during a seek: the reader comes back (rule 2)."""
        if not subscription.is_durable and not subscription.consumers and not subscription.is_fenced:
            subscription.close()
            self._forget(subscription)

    async def unsubscribe(self, consumer: Consumer, *, force: bool = False) -> None:
        """The only consumer removes its subscription; with *force* others are disconnected. Raises BrokerError."""
        assert consumer.subscription is not None, "an attached consumer has a subscription"
        subscription = _whole(consumer.subscription)
        if not force:
            subscription.check_may_unsubscribe(consumer)
        subscription.remove_consumer(consumer)
        await self.delete(subscription.name, force=force)

    def require(self, name: str) -> Subscription:
        """Raises SubscriptionNotFound."""
        subscription = self.by_name.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {name} does not exist")
        return subscription

    async def delete(self, name: str, *, force: bool) -> None:
        """Remove a subscription and what it acknowledged. Raises BrokerError if it is in use, unless *force*."""
        subscription = self.require(name)
        if subscription.consumers and not force:
            raise ConsumerBusy(f"Subscription {name} has active connected consumers")
        if subscription.is_fenced:
            raise NotReady(f"Subscription {name} is fenced")
        subscription.is_fenced = True
        subscription.detach_consumers()
        await in_turns(by_turns(subscription.notify_detached()))
        try:
            if subscription.is_durable:
                await self._ledger.delete_cursor(name)
        except CursorNotFound:
            pass
        except ManagedLedgerError as error:
            subscription.is_fenced = False
            raise storage_error(error) from error
        subscription.close()
        self._forget(subscription)
        self.last_active_ms = self._clock.wall_ms()

    async def seek(
        self, wanted: ConsumerSubscription, position: Position, ack_set: Sequence[int], batch_size: int
    ) -> None:
        """Deliver from *position* on; consumers are disconnected and subscribe again. Raises BrokerError.

        NotReady: it took so long that another broker may serve the topic by now, and one does. The consumer may have
        subscribed there already, and its client must not hear of success now (`Subscription.reset_to`).
        """
        subscription = _whole(wanted)
        began_s = self._clock.monotonic()

        async def check() -> None:
            if self._clock.monotonic() - began_s >= SEEK_DOUBTED_S:
                with contextlib.suppress(StorageUnavailable, TimeoutError):
                    async with asyncio.timeout(SEEK_CHECK_S):
                        await self._ledger.check_owner()

        try:
            with storage_errors():
                await subscription.reset_to(position, ack_set, batch_size, check, announce=in_turns)
        finally:
            if not subscription.is_durable:  # rule 2
                self._clock.call_later(self._config.keep_alive_s, lambda: self._drop_if_unused(subscription))

    def close(self) -> None:
        """The topic ends: start no more reads and timers; all consumers are out."""
        for subscription in self.by_name.values():
            subscription.close()

    def notify_detached(self, next_broker: NextBroker) -> Steps:
        """Tell the clients of the consumers of a topic that has ended; one with each step."""
        for subscription in list(self.by_name.values()):
            yield from subscription.notify_detached(next_broker)

    async def clear(self, name: str) -> None:
        """Pass over everything that a subscription has before it; its consumers stay. Raises BrokerError."""
        self.require(name).acking.clear_up_to(self._ledger.ledgers.last_confirmed)
        cursor = self._ledger.cursors.get(name)
        if cursor is not None:
            with storage_errors():
                await cursor.flush()

    async def set_properties(self, name: str, properties: Mapping[str, str]) -> None:
        """Replace the properties of a subscription; durable on return, if it is. Raises BrokerError."""
        subscription = self.require(name)
        check_bytes(sum(len(key) + len(value) for key, value in properties.items()), f"subscription {name}")
        if any(key.startswith(INTERNAL_PREFIX) for key in properties):
            raise NotAllowed(f"subscription {name}: properties that begin with {INTERNAL_PREFIX} belong to brokers")
        cursor = self._ledger.cursors.get(name)
        if cursor is None:
            subscription.properties = dict(properties)
            return
        with storage_errors():
            await cursor.set_string_properties(properties)
        subscription.properties = cursor.string_properties

    async def set_replicated(self, name: str, *, is_replicated: bool) -> None:
        """Store whether a subscription is to be kept in step with other clusters. Raises BrokerError."""
        self.require(name)
        cursor = self._ledger.cursors.get(name)
        if cursor is None:  # it is not durable: nothing of it is stored, or seen elsewhere
            return
        with storage_errors():
            await _store_replicated(cursor, is_replicated=is_replicated)

    # -------------------------------------------------------------------------------- all of them

    def announce_end(self) -> None:
        """The topic was terminated."""
        for subscription in self.by_name.values():
            subscription.pump.announce_end()

    @property
    def have_consumers(self) -> bool:
        return any(subscription.consumers for subscription in self.by_name.values())

    def take_rates(self, now_ms: int, published: tuple[float, float]) -> None:
        """Work out the rates of the period that ends now, in which so many messages and bytes came in a second."""
        self._published = published
        if self._limits.dispatch_rate.is_relative:
            self.dispatch_throttle.use(self._limits.dispatch_rate, published, now_ms)
        for name, subscription in self.by_name.items():
            subscription.take_rates(now_ms)
            if self._rate_of(name).is_relative:
                self._use_rate(name, subscription.pump.rates.own)

    def _forget(self, subscription: Subscription) -> None:
        """*subscription* is removed; what went to its consumers still counts for the topic."""
        if self.by_name.get(subscription.name) is subscription:
            del self.by_name[subscription.name]
            self.gone = self.gone.plus(subscription.counted)
            if is_internal_subscription(subscription.name):
                self.gone_internal = self.gone_internal.plus(subscription.counted)


async def _store_replicated(cursor: "ManagedCursor", *, is_replicated: bool) -> None:
    """Raises ManagedLedgerError."""
    properties = {key: value for key, value in cursor.properties.items() if key != REPLICATED}
    changed = properties | ({REPLICATED: 1} if is_replicated else {})
    if changed != cursor.properties:
        cursor.mark_delete(cursor.mark_delete_position, changed)
        await cursor.flush()


def check_name(name: str) -> None:
    """Raises ProducerBusy, the code that Apache's broker gives, for a name that no subscription may have."""
    if not name.strip():
        raise ProducerBusy("Empty subscription name", way_out="give it one")
    if is_reserved_subscription(name):
        raise ProducerBusy(
            f"Subscription with reserved subscription name attempted: {name}", way_out="take another name"
        )


def check_new_name(name: str) -> None:
    """The same for a subscription that is to be made; NotAllowed for a name that not every store can hold."""
    check_name(name)
    if name in (".", ".."):
        raise NotAllowed(f"No store can hold a subscription of the name {name}", way_out="take another name")
    check_client_name(name, "subscription")


def _whole(subscription: ConsumerSubscription) -> Subscription:
    """Consumers know their subscription by a Protocol; the topic has made it, and knows what it is."""
    assert isinstance(subscription, Subscription), f"{subscription} is not a subscription of a topic"
    return subscription
