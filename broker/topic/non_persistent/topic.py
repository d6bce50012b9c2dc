"""One non-persistent topic: messages go from its producers to the consumers that are there, and nowhere else.

    SEND … ──run──▶ publish ──▶ receipts (0:0)
                       └─────▶ each subscription ──▶ one consumer with permits, or dropped and counted

Producers are admitted as those of persistent topics (`broker.topic.publishing.producers`), but nothing of it is
stored: the epoch of an exclusive producer lasts as long as the topic is open.

Rules:

1. A receipt says that the message was taken, not that anybody got it.
2. A closed topic sends nothing to any client.
3. After each wait the topic may have been closed, so that is checked anew.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from broker.errors import (
    ConsumerAssignError,
    ConsumerBusy,
    MetadataFailure,
    NotAllowed,
    NothingStored,
    NotReady,
    SubscriptionNotFound,
)
from broker.policies.namespace import NamespacePolicies
from broker.settings.config import BrokerConfig
from broker.topic.clients.consumer import Consumer, ConsumerSubscription
from broker.topic.clients.leaving import Steps, by_turns
from broker.topic.clients.producer import Producer
from broker.topic.dispatchers.dispatcher import facts_of
from broker.topic.dispatchers.kinds import DispatchedTopic, check_type
from broker.topic.limits import has_room_for_host, limits_of
from broker.topic.non_persistent.subscription import POSITION, NonPersistentSubscription
from broker.topic.ports import NOT_KNOWN, NextBroker
from broker.topic.publishing.producers import Producers
from broker.topic.publishing.publishing import encrypted
from broker.topic.rates.resource_group import Membership, ResourceGroup
from broker.topic.rates.throttling import PublishThrottle
from broker.topic.requests import Attached, ProducerRequest, SubscribeRequest
from broker.topic.subscriptions import check_name, check_new_name
from broker.wire.frames import Send
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks, in_turns
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.position import LATEST, Position
from managed_ledger.reading.reading import Entry

# The last sequence id that a producer gets: none was stored.
_NO_SEQUENCE_ID: Final = -1


class Epoch:
    """The epoch of the exclusive producer, as long as the topic is open.
    (`broker.topic.publishing.producers.EpochStore`)"""

    def __init__(self) -> None:
        self.properties: Mapping[str, str] = {}

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        self.properties = dict(properties)


class NonPersistentTopic:
    """A non-persistent topic, open."""

    is_persistent = False

    def __init__(self, name: TopicName, config: BrokerConfig, policies: NamespacePolicies, clock: Clock) -> None:
        assert not name.is_persistent, f"{name} is stored"
        self.name = name
        self.policies = policies
        self.is_closed = False
        self.messages_in = 0
        self.bytes_in = 0
        self.entries_in = 0
        self._ended_messages = 0
        self._ended_bytes = 0
        """Messages and bytes that subscriptions which have ended gave to their consumers."""
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        """By name, with those of readers."""
        self._config = config
        self._limits = limits_of(config, policies, is_system=name.is_system)
        self._clock = clock
        self._tasks = Tasks(str(name))
        self.publish_throttle = PublishThrottle()
        self.publish_throttle.use(self._limits.publish_rate, clock.wall_ms())
        self.membership = Membership()
        self._producers = Producers(name, Epoch(), clock, self._tasks, Bell())
        self._leaving: asyncio.Task[None] | None = None
        """Tells clients that they are closed, if there are too many for one turn of the loop."""
        self._consumers_changed_ms = clock.wall_ms()

    def _check_open(self) -> None:
        if self.is_closed:
            raise NotReady(f"Topic {self.name} is being closed; look it up again")

    # -------------------------------------------------------------------------------- publishing

    def publish(self, run: Sequence[tuple[Producer, Send]]) -> None:
        """Give a run of messages to the subscriptions, in order, and confirm them (rule 1)."""
        if self._limits.requires_encryption:
            run = encrypted(run)
        subscriptions, group = list(self.subscriptions.values()), self.membership.group
        counts_before = (self.messages_out, self.bytes_out) if group is not None else (0, 0)
        for producer, send in run:
            size = len(send.entry)
            if self.is_closed:  # rule 2
                producer.sink.on_unanswered(size)
                continue
            self.entries_in += 1
            self.messages_in += send.num_messages
            self.bytes_in += size
            producer.messages_in += send.num_messages
            producer.bytes_in += size
            if producer.is_closed:
                producer.sink.on_unanswered(size)
            else:
                producer.sink.on_stored(producer, send.sequence_id, send.highest_sequence_id, *POSITION, size)
            if subscriptions:
                facts = facts_of(Entry(*POSITION, send.entry))
                for subscription in subscriptions:
                    subscription.deliver(send.entry, facts)
        if group is not None:
            group.count_dispatched(self.messages_out - counts_before[0], self.bytes_out - counts_before[1])

    # -------------------------------------------------------------------------------- producers

    @property
    def producers(self) -> dict[str, Producer]:
        """By name: producers that may write, and producers that wait for exclusive access."""
        return self._producers.by_name

    async def attach_producer(self, request: ProducerRequest) -> Attached:
        """Let a producer write. Raises BrokerError."""
        producers = self._producers
        await producers.probe_producer_of_same_name(request.producer)
        async with producers.admission:
            self._check_open()
            if self._limits.requires_encryption and not request.encrypted:
                raise MetadataFailure(f"Encryption is required in {self.name.namespace}")
            producers.make_room(request.producer, self._limits, request.topic_epoch)
            # An initial subscription that the producer asks for has nothing to keep: it is not made.
            return await producers.admit(request, _NO_SEQUENCE_ID, self._check_open)

    def close_producer(self, producer: Producer, done: Callable[[], None]) -> None:
        self._producers.close_when_answered(producer, done)

    def detach_producer(self, producer: Producer) -> None:
        """*producer* has left; the producer that waits longest for exclusive access gets it."""
        self._producers.detach(producer)

    def last_sequence_id(self, name: str) -> int:
        return _NO_SEQUENCE_ID

    def disconnect_producer(self, producer: Producer) -> None:
        """Close *producer* from the side of the broker; its client looks the topic up again."""
        self._producers.disconnect(producer)

    # -------------------------------------------------------------------------------- subscriptions

    async def subscribe(self, request: SubscribeRequest) -> NonPersistentSubscription:
        """Attach a consumer, which gets what is published from now on. Raises BrokerError."""
        limits, consumer = self._limits, request.consumer
        self._check_open()
        check_name(request.subscription)
        if consumer.read_compacted:
            raise NotAllowed("readCompacted only valid on persistent topics")
        check_type(request.kind, limits.subscription_types, read_compacted=False)
        self._check_room_for(consumer)
        subscription = self.subscriptions.get(request.subscription)
        if subscription is not None:
            try:
                subscription.check_newcomer(consumer, request.kind, request.key_shared)
            except (ConsumerBusy, ConsumerAssignError):
                # The consumers in the way may be dead: a client that reconnects must not wait for its old connection.
                await asyncio.gather(*(consumer.sink.is_alive() for consumer in subscription.consumers))
                self._check_open()  # rule 3
                self._check_room_for(consumer)
        subscription = self.subscriptions.get(request.subscription)
        if subscription is None:
            check_new_name(request.subscription)
            subscription = self._new_subscription(request.subscription)
        subscription.add_consumer(consumer, request.kind, request.key_shared)
        self.subscriptions[subscription.name] = subscription
        self._consumers_changed_ms = self._clock.wall_ms()
        return subscription

    def _check_room_for(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy if there are too many already, in all or of the consumer's host."""
        limits = self._limits
        if limits.consumers_max and self._consumer_count() >= limits.consumers_max:
            raise ConsumerBusy("Topic reached max consumers limit")
        others = (other.address for subscription in self.subscriptions.values() for other in subscription.consumers)
        if not has_room_for_host(consumer.address, others, limits.consumers_per_host_max):
            raise ConsumerBusy("Topic reached max same address consumers limit")

    def _new_subscription(self, name: str) -> NonPersistentSubscription:
        config = self._config
        topic = DispatchedTopic(
            str(self.name), self.name.partition, config.key_shared_consistent_hashing, config.key_shared_points
        )
        return NonPersistentSubscription(name, topic, self._clock.wall_ms, self._limits.dispatch.consumers_max)

    @property
    def messages_out(self) -> int:
        """Messages that went to consumers, of all subscriptions there have been."""
        return self._ended_messages + sum(each.messages_out_in_all for each in self.subscriptions.values())

    @property
    def bytes_out(self) -> int:
        return self._ended_bytes + sum(each.bytes_out_in_all for each in self.subscriptions.values())

    def _end_subscription(self, subscription: NonPersistentSubscription) -> None:
        """The subscription has no consumers any more."""
        assert not subscription.consumers, f"{subscription.name} ends before its consumers"
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            self._ended_messages += subscription.messages_out_in_all
            self._ended_bytes += subscription.bytes_out_in_all

    def _consumer_count(self) -> int:
        return sum(len(subscription.consumers) for subscription in self.subscriptions.values())

    def detach_consumer(self, consumer: Consumer) -> None:
        """*consumer* has left; the subscription ends with its last one."""
        if consumer.subscription is None:
            return
        subscription = _whole(consumer.subscription)
        subscription.remove_consumer(consumer)
        self._consumers_changed_ms = self._clock.wall_ms()
        if not subscription.consumers:
            self._end_subscription(subscription)

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Close *consumer* from the side of the broker; its client looks the topic up again."""
        consumer.sink.on_closed(consumer, NOT_KNOWN)
        self.detach_consumer(consumer)

    async def unsubscribe(self, consumer: Consumer, *, force: bool = False) -> None:
        """The only consumer removes its subscription; with *force* others are disconnected. Raises MetadataFailure."""
        assert consumer.subscription is not None, "an attached consumer has a subscription"
        subscription = _whole(consumer.subscription)
        if subscription.consumers != [consumer] and not force:
            raise MetadataFailure("Unconnected or shared consumer attempting to unsubscribe")
        self.detach_consumer(consumer)
        if subscription.consumers:
            await self.delete_subscription(subscription.name)

    async def delete_subscription(self, name: str) -> None:
        """Disconnect the consumers of a subscription, which ends it. Raises SubscriptionNotFound."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {name} not found for topic {self.name}")
        subscription.detach_consumers()
        self._end_subscription(subscription)
        self._consumers_changed_ms = self._clock.wall_ms()
        await in_turns(by_turns(subscription.notify_detached()))

    async def seek(
        self, subscription: ConsumerSubscription, position: Position, ack_set: Sequence[int] = (), batch_size: int = 0
    ) -> None:
        """Does nothing: there is nothing to go back to. It is not an error, as with Apache's brokers."""

    async def position_at_ms(self, time_ms: int, *, read_compacted: bool = False) -> Position:
        return LATEST

    async def last_message(self, *, read_compacted: bool = False) -> tuple[Position, int]:
        """Raises NothingStored."""
        raise NothingStored(f"{self.name} is not persistent: it has no last message")

    # -------------------------------------------------------------------------------- time and policies

    async def apply_policies(self, policies: NamespacePolicies) -> None:
        """The namespace's policies changed."""
        self.policies = policies
        self._limits = limits_of(self._config, policies, is_system=self.name.is_system)
        self.publish_throttle.use(self._limits.publish_rate, self._clock.wall_ms())
        if self._limits.requires_encryption:
            await in_turns(by_turns(self._producers.require_encryption()))
        for subscription in self.subscriptions.values():
            subscription.consumers_max = self._limits.dispatch.consumers_max

    def join(self, group: ResourceGroup | None) -> None:
        """The topic is in this resource group from now on; None: in none. Its rate of dispatching is not kept here:
        nothing can wait."""
        self.membership.group = group

    def take_rates(self, now_ms: int) -> None:
        """Work out the rates of the period that ends now."""
        for producer in self.producers.values():
            producer.take_rates(now_ms)
        for subscription in self.subscriptions.values():
            subscription.take_rates(now_ms)

    @property
    def last_active_ms(self) -> int:
        """When a client last came or left."""
        return max(self._consumers_changed_ms, self._producers.last_active_ms)

    @property
    def clients(self) -> int:
        """Producers and consumers that are connected."""
        return len(self.producers) + self._consumer_count()

    # -------------------------------------------------------------------------------- the end

    def disconnect_all(self, next_broker: NextBroker = NOT_KNOWN) -> None:
        """The topic ends: its clients go on at *next_broker*, or look it up again."""
        if self.is_closed:
            return
        self.is_closed = True
        self._producers.close()
        subscriptions = list(self.subscriptions.values())
        self.subscriptions.clear()
        for subscription in subscriptions:
            subscription.detach_consumers()
        turns = by_turns(self._all_leave(subscriptions, next_broker))
        if next(turns, self) is None:
            self._leaving = self._tasks.spawn(in_turns(turns), "leaving")

    def _all_leave(self, subscriptions: Sequence[NonPersistentSubscription], next_broker: NextBroker) -> Steps:
        yield from self._producers.disconnect_all(next_broker)
        for subscription in subscriptions:
            yield from subscription.notify_detached(next_broker)

    async def close(self, next_broker: NextBroker = NOT_KNOWN) -> None:
        """Disconnect the clients and end what is under way."""
        self.disconnect_all(next_broker)
        if self._leaving is not None:
            await asyncio.wait([self._leaving])
        await self._tasks.cancel()


def _whole(subscription: ConsumerSubscription) -> NonPersistentSubscription:
    """Consumers know their subscription by a Protocol; the topic has made it, and knows what it is."""
    assert isinstance(subscription, NonPersistentSubscription), f"{subscription} is not a subscription of this topic"
    return subscription
