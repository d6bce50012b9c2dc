"""One topic that this broker serves: the publish path, its producers and its subscriptions.

    SEND … ──run──▶ publish ──▶ deduplication ──▶ managed ledger ──on_appended──▶ receipts, in the order of the entries
                                                        └──watch_appends──▶ pump of each subscription

    publishing    what becomes of each message, and when its producer gets the receipt
    producers     admission of producers, their names, exclusive access
    subscription  a position in the topic, its consumers and their requests

`Topic` conducts them: it loads the stored state, applies the policies, and closes or deletes the topic.

Rules:

1. After a storage failure all producers are disconnected without receipts and reconnect; the topic takes no producers
   until nothing is pending any more.
2. A closed topic sends nothing to any client, whatever storage still reports.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from broker.config import TIMESTAMP_INTERCEPTOR, BrokerConfig
from broker.errors import (
    BrokerError,
    ConsumerAssignError,
    ConsumerBusy,
    MetadataFailure,
    NotAllowed,
    NotReady,
    ProducerBusy,
    SubscriptionNotFound,
    TopicTerminated,
    storage_error,
)
from broker.memory_budget import MemoryBudget
from broker.names import COMPACTION_CURSOR, DEDUPLICATION_CURSOR, is_reserved_subscription
from broker.ownership.rules import Ownership
from broker.policies import NamespacePolicies
from broker.topic.consumer import Consumer
from broker.topic.deduplication import Deduplication
from broker.topic.dispatchers.dispatcher import DispatchLimits
from broker.topic.host import TopicHost
from broker.topic.ports import EntryLike
from broker.topic.producer import Producer
from broker.topic.producers import Producers
from broker.topic.publishing import Pending, Publishing
from broker.topic.requests import Attached, ProducerRequest, SubscribeRequest
from broker.topic.subscription import Subscription, check_type
from broker.wire.frames import Send
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.tasks import Bell, Tasks, attempt
from magnetar_core.runtime.types import Corruption, do_nothing
from managed_ledger.errors import (
    CursorNotFound,
    EntryRefused,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerTerminated,
)
from managed_ledger.messages import (
    broker_metadata_of,
    is_batch,
    message_count,
    metadata_of,
    parse_metadata,
    split_entry,
)
from managed_ledger.messages_pb2 import BrokerEntryMetadata
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.topic_name import TopicName

if TYPE_CHECKING:
    from managed_ledger.cursors.managed_cursor import ManagedCursor
    from managed_ledger.ledger import ManagedLedger

log = logging.getLogger(__name__)

# How often the topic tries again to send receipts that the session rule withheld.
WITHHELD_RETRY_S: Final = 0.1

# How long closing a topic waits for storage to answer, so that clients need not send stored messages again.
CLOSING_GRACE_S: Final = 1.0

# Entries and bytes that one step of the replay reads when a topic with deduplication is opened.
REPLAY_ENTRIES: Final = 1_000
REPLAY_BYTES: Final = 8 * 1024 * 1024


class Topic:
    """A persistent topic, opened. Made by the broker; see `load`."""

    def __init__(
        self,
        name: TopicName,
        ledger: "ManagedLedger",
        config: BrokerConfig,
        policies: NamespacePolicies,
        ownership: Ownership,
        clock: Clock,
        dropped: Callable[["Topic"], None],
        reads: MemoryBudget,
    ) -> None:
        """*reads* is the budget for what all topics of the broker have read and not yet sent."""
        self.name = name
        self.ledger = ledger
        self.policies = policies
        self.subscriptions: dict[str, Subscription] = {}
        self.is_closed = False
        self.is_fenced = False
        self._is_closing = False
        self._config = config
        self._clock = clock
        self._dropped = dropped
        self._tasks = Tasks(str(name))
        self._host = TopicHost(clock, self._tasks, str(name), reads)
        self._answered = Bell()
        """Rings when storage has answered, when a producer leaves, and at the end."""
        self._producers = Producers(name, ledger, clock, self._tasks, self._answered)
        self._publishing = Publishing(ownership, self._producers)
        self._deduplication_cursor: ManagedCursor | None = None
        self._withheld_timer: Timer | None = None
        self._stamps = TIMESTAMP_INTERCEPTOR in config.entry_metadata_interceptors
        self._stop_watching = ledger.watch_appends(self._on_new_entries)
        self._last_active_ms = clock.wall_ms()
        self.last_snapshot_s = clock.monotonic()
        ledger.listener = self

    async def load(self) -> None:
        """Restore the stored subscriptions and the state of deduplication. Raises StorageFailure."""
        for name, cursor in self.ledger.cursors.items():
            if not is_reserved_subscription(name) and name != COMPACTION_CURSOR:
                self._add_subscription(name, cursor)
        await self._apply_deduplication()

    # -------------------------------------------------------------------------------- publishing

    def publish(self, run: Sequence[tuple[Producer, Send]]) -> None:
        """Store a run of messages, in order; answers come later, in one write for each connection."""
        if self.is_closed or self.is_fenced or self._is_closing:
            self._publishing.pass_over(run)
            return
        stamp = b""
        if self._stamps:
            stamp = BrokerEntryMetadata(broker_timestamp=self._clock.wall_ms()).SerializeToString()
        buffers, contexts = self._publishing.take(run, stamp)
        if buffers:
            self.ledger.append(buffers, contexts)

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Pending]) -> None:
        """AppendListener: these entries are durable."""
        publishing = self._publishing
        self._answered.ring()
        if self.is_fenced:
            self._unfence_when_idle()
        if self.is_closed:  # rule 2
            publishing.forget(contexts)
            self._answered.ring()
            return
        deduplication = publishing.deduplication
        if deduplication is not None:
            publishing.note_durable(contexts)
            if deduplication.entries_since_snapshot >= self._config.deduplication_entries:
                self.snapshot_deduplication()
        if not publishing.confirm(ledger_id, first_entry_id, contexts):
            self._release_later()

    def _release_later(self) -> None:
        if self._withheld_timer is None and not self.is_closed:
            self._withheld_timer = self._clock.call_later(WITHHELD_RETRY_S, self._release)

    def _release(self) -> None:
        self._withheld_timer = None
        if not self.is_closed and not self._publishing.release():
            self._release_later()

    def on_append_failed(self, contexts: Sequence[Pending], error: ManagedLedgerError) -> None:
        """AppendListener: these entries are not acknowledged, and will not be."""
        if isinstance(error, ManagedLedgerTerminated | EntryRefused) and not self.is_closed:
            self._publishing.refuse(contexts, error)
        else:
            self._publishing.forget(contexts)
            if not self.is_closed:
                self._on_storage_failed(error)
        self._answered.ring()
        self._unfence_when_idle()

    def _on_storage_failed(self, error: ManagedLedgerError) -> None:
        log.warning("%s: publishing failed, its producers are disconnected: %s", self.name, error)
        self.is_fenced = True  # rule 1
        self._publishing.on_storage_failed()
        self._producers.disconnect_all()
        if not self.ledger.is_open:  # it takes no appends any more, even if `on_closed` has not been called yet
            self.on_closed(error)

    def _unfence_when_idle(self) -> None:
        """Take producers again once storage has answered every pending append (rule 1)."""
        if not self.is_closed and not self.ledger.pending_count:
            self.is_fenced = False

    def on_closed(self, error: ManagedLedgerError) -> None:
        """AppendListener: another broker took over, or storage is gone. The next client has the topic opened again."""
        if not self.is_closed:
            log.warning("%s: dropped: %s", self.name, error)
            self._disconnect_all()
            self._dropped(self)

    async def _close_ledger(self) -> None:
        await attempt(f"{self.name}: closing its ledger", self.ledger.close())

    # -------------------------------------------------------------------------------- producers

    @property
    def producers(self) -> dict[str, Producer]:
        """By name: producers that may write, and producers that wait for exclusive access."""
        return self._producers.by_name

    @property
    def messages_in(self) -> int:
        return self._publishing.messages_in

    @property
    def bytes_in(self) -> int:
        return self._publishing.bytes_in

    async def attach_producer(self, request: ProducerRequest) -> Attached:
        """Let a producer write. Raises BrokerError."""
        producer, producers = request.producer, self._producers
        await producers.until_name_is_answered(producer)
        async with producers.admission:
            self._check_open()
            if self.ledger.is_terminated:
                raise TopicTerminated(f"Topic {self.name} is terminated")
            producers.check_name_is_answered(producer)
            if self.policies.encryption_required and not request.encrypted:
                raise MetadataFailure(f"Encryption is required in {self.name.namespace}")
            producers.make_room(producer, self._producers_max())
            if request.initial_subscription:
                await self._make_initial_subscription(request.initial_subscription)
            return await producers.admit(request, self.last_sequence_id(producer.name), self._check_open)

    def _producers_max(self) -> int:
        """Producers that the topic may have; 0: any number."""
        if self.name.is_system:
            return 0
        own = self.policies.max_producers_per_topic
        return self._config.max_producers_per_topic if own is None else own

    async def _make_initial_subscription(self, name: str) -> None:
        if name in self.subscriptions:
            return
        if not self._may_create_subscriptions:
            raise NotAllowed(f"Could not create the initial subscription {name}: automatic creation is off")
        await self.create_subscription(name, EARLIEST)

    def close_producer(self, producer: Producer, request_id: int) -> None:
        """A client closes its producer; the request is answered once all messages that it sent are."""
        self._producers.close_when_answered(producer, request_id)

    def detach_producer(self, producer: Producer) -> None:
        """*producer* has left; the producer that waits longest for exclusive access gets it."""
        self._producers.detach(producer)

    def is_storing_for(self, name: str) -> bool:
        """Whether messages that a former producer of that name sent are still being stored."""
        return self._producers.is_storing_for(name)

    async def until_stored_for(self, producer: Producer, timeout_s: float) -> bool:
        """Wait until `is_storing_for` is false (`Producers.until_stored_for`)."""
        return await self._producers.until_stored_for(producer, timeout_s)

    def last_sequence_id(self, name: str) -> int:
        """The highest id that is stored under a producer's name; -1 if none is, or without deduplication."""
        return self._publishing.last_sequence_id(name)

    def _check_open(self) -> None:
        if self.is_closed or self._is_closing:
            raise NotReady(f"Topic {self.name} is being closed; look it up again")
        if self.is_fenced:
            raise NotReady(f"Topic {self.name} is temporarily unavailable: storage failed a moment ago")

    # -------------------------------------------------------------------------------- subscriptions

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        """Attach a consumer. Raises BrokerError."""
        self._check_open()
        self._check_subscription_name(request.subscription)
        check_type(request.kind, self.policies.subscription_types, read_compacted=request.read_compacted)
        if request.read_compacted and COMPACTION_CURSOR in self.ledger.cursors:
            raise NotAllowed(f"{self.name} was compacted, and compacted views are not served here")
        limit = self.policies.max_consumers_per_topic
        if limit is None:
            limit = self._config.max_consumers_per_topic
        if limit and sum(len(one.consumers) for one in self.subscriptions.values()) >= limit:
            raise ConsumerBusy("Topic reached max consumers limit")
        subscription = await self._subscription_for(request)
        try:
            subscription.check_newcomer(request.consumer, request.kind, request.key_shared)
        except (ConsumerBusy, ConsumerAssignError):
            # The consumers in the way may be dead: a client that reconnects must not wait for its own old connection.
            await asyncio.gather(*(one.sink.is_alive() for one in subscription.consumers))
        self._check_open()
        if self.subscriptions.get(subscription.name) is not subscription:
            raise NotReady(f"Subscription {subscription.name} was removed meanwhile")
        try:
            subscription.add_consumer(request.consumer, request.kind, request.key_shared)
        except BrokerError:
            self._drop_if_unused(subscription)
            raise
        self._last_active_ms = self._clock.wall_ms()
        if self.ledger.is_terminated:
            subscription.tell_the_end()
        return subscription

    def _check_subscription_name(self, name: str) -> None:
        if not name.strip():
            raise ProducerBusy("Empty subscription name")
        if is_reserved_subscription(name):
            raise ProducerBusy(f"Subscription with reserved subscription name attempted: {name}")

    @property
    def _may_create_subscriptions(self) -> bool:
        allowed = self.policies.auto_subscription_creation
        return self._config.allow_auto_subscription_creation if allowed is None else allowed

    async def _subscription_for(self, request: SubscribeRequest) -> Subscription:
        existing = self.subscriptions.get(request.subscription)
        if existing is not None:
            if existing.is_durable != request.durable:
                raise NotAllowed(
                    f"Subscription {request.subscription} is {'durable' if existing.is_durable else 'not durable'}, "
                    "and the consumer wants the other kind"
                )
            return existing
        start = EARLIEST if request.earliest else LATEST
        if request.durable:
            if not self._may_create_subscriptions:
                raise SubscriptionNotFound(
                    f"Subscription {request.subscription} does not exist, and automatic creation is off"
                )
            if request.rollback_s > 0:
                start = await self.position_at_ms(self._clock.wall_ms() - request.rollback_s * 1000)
            return await self.create_subscription(request.subscription, start, request.properties)
        start = LATEST if request.start is None else request.start
        if start.ledger_id == LATEST.ledger_id:  # old C++ clients shorten the entry id
            start = LATEST
        elif start.ledger_id < 0:
            start = EARLIEST
        elif start > self.ledger.last_confirmed:
            start = EARLIEST if request.earliest else LATEST
        if request.rollback_s > 0:
            start = await self.position_at_ms(self._clock.wall_ms() - request.rollback_s * 1000)
        existing = self.subscriptions.get(
            request.subscription
        )  # another request may have made it while this one waited
        if existing is not None:
            return existing
        cursor = self.ledger.new_non_durable_cursor(request.subscription, start)
        return self._add_subscription(request.subscription, cursor)

    async def create_subscription(
        self, name: str, start: Position, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """A durable subscription at *start*, the first position to deliver. Raises BrokerError."""
        self._check_subscription_name(name)
        try:
            cursor = await self.ledger.open_cursor(name, start, dict(properties or {}))
        except ManagedLedgerError as error:
            raise storage_error(error) from error
        self._check_open()
        existing = self.subscriptions.get(name)  # another request may have made it while this one waited
        return existing if existing is not None else self._add_subscription(name, cursor)

    def _add_subscription(self, name: str, cursor: "ManagedCursor") -> Subscription:
        subscription = Subscription(
            name,
            cursor,
            self.ledger,
            self._host,
            self._limits(),
            topic=str(self.name),
            partition=self.name.partition,
            consistent_hashing=self._config.key_shared_consistent_hashing,
            points=self._config.key_shared_points,
            consumers_max=self._consumers_max(),
        )
        self.subscriptions[name] = subscription
        return subscription

    def _consumers_max(self) -> int:
        """Consumers that a subscription may have; 0: any number."""
        own = self.policies.max_consumers_per_subscription
        return self._config.max_consumers_per_subscription if own is None else own

    def _limits(self) -> DispatchLimits:
        config, policies = self._config, self.policies
        per_consumer, per_subscription = policies.max_unacked_per_consumer, policies.max_unacked_per_subscription
        tick_ms, delayed = policies.delayed_delivery_tick_ms, policies.delayed_delivery
        return DispatchLimits(
            read_entries_max=config.max_read_batch_entries,
            read_bytes_max=config.max_read_batch_bytes,
            round_robin_messages=config.round_robin_messages,
            unacked_per_consumer_max=config.max_unacked_per_consumer if per_consumer is None else per_consumer,
            unacked_per_subscription_max=(
                config.max_unacked_per_subscription if per_subscription is None else per_subscription
            ),
            batch_index_acks=config.batch_index_acks,
            failover_delay_ms=config.failover_delay_ms,
            delayed_delivery=config.delayed_delivery if delayed is None else delayed,
            delayed_tick_ms=config.delayed_delivery_tick_ms if tick_ms is None else tick_ms,
            delayed_strict=config.delayed_delivery_strict,
        )

    def detach_consumer(self, consumer: Consumer) -> None:
        """*consumer* has left; its unacknowledged messages go to the other consumers."""
        subscription = consumer.subscription
        if subscription is None:
            return
        subscription.remove_consumer(consumer)
        self._last_active_ms = self._clock.wall_ms()
        self._drop_if_unused(subscription)

    def _drop_if_unused(self, subscription: Subscription) -> None:
        """Remove a non-durable subscription (that of a reader) when its last consumer has left."""
        if not subscription.is_durable and not subscription.consumers and not subscription.is_fenced:
            subscription.close()
            if self.subscriptions.get(subscription.name) is subscription:
                del self.subscriptions[subscription.name]

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Remove a subscription and what it acknowledged. Raises BrokerError if it is in use, unless *force*."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {name} does not exist")
        if subscription.consumers and not force:
            raise ConsumerBusy(f"Subscription {name} has active connected consumers")
        if subscription.is_fenced:
            raise NotReady(f"Subscription {name} is fenced")
        subscription.is_fenced = True
        for consumer in subscription.disconnect_consumers():
            consumer.sink.on_consumer_closed(consumer)
        try:
            if subscription.is_durable:
                await self.ledger.delete_cursor(name)
        except CursorNotFound:
            pass
        except ManagedLedgerError as error:
            subscription.is_fenced = False
            raise storage_error(error) from error
        subscription.close()
        self.subscriptions.pop(name, None)
        self._last_active_ms = self._clock.wall_ms()

    async def unsubscribe(self, consumer: Consumer) -> None:
        """The only consumer removes its subscription. Raises BrokerError."""
        subscription = consumer.subscription
        assert subscription is not None, "an attached consumer has a subscription"
        subscription.check_may_unsubscribe(consumer)
        subscription.remove_consumer(consumer)
        await self.delete_subscription(subscription.name)

    async def seek(
        self, subscription: Subscription, position: Position, ack_set: Sequence[int] = (), batch_size: int = 0
    ) -> None:
        """Deliver from *position* on; consumers are disconnected and subscribe again. Raises BrokerError."""
        for consumer in subscription.consumers:
            consumer.sink.on_consumer_closed(consumer)
        try:
            await subscription.reset_to(position, ack_set, batch_size)
        except ManagedLedgerError as error:
            raise storage_error(error) from error
        finally:
            self._drop_if_unused_later(subscription)

    def _drop_if_unused_later(self, subscription: Subscription) -> None:
        """A reader that seeks is disconnected; its subscription is kept for a while, so that it can come back."""
        if not subscription.is_durable:
            self._clock.call_later(self._config.keep_alive_s, lambda: self._drop_if_unused(subscription))

    async def position_at_ms(self, time_ms: int) -> Position:
        """The first entry that was published at *time_ms* or later; LATEST if there is none. Raises BrokerError."""

        def is_late(entry: EntryLike) -> bool:
            try:
                parts = split_entry(entry.data)
                stamped = broker_metadata_of(parts)
                if stamped is not None and stamped.HasField("broker_timestamp"):
                    return stamped.broker_timestamp >= time_ms
                return metadata_of(parts).publish_time >= time_ms
            except Corruption:
                return False

        try:
            found = await self.ledger.find_first(is_late)
        except ManagedLedgerError as error:
            raise storage_error(error) from error
        return LATEST if found is None else found

    async def last_message(self) -> tuple[Position, int]:
        """(last position, index of the last message in its batch or -1); EARLIEST and -1 if the topic is empty.

        Raises BrokerError.
        """
        last = self.ledger.last_confirmed
        if last.entry_id < 0:
            return EARLIEST, -1
        try:
            found = self.ledger.read(last, 1, 1)
            entries = found if isinstance(found, Sequence) else await found
        except ManagedLedgerError as error:
            raise storage_error(error) from error
        if not entries:
            return EARLIEST, -1
        try:
            parts = split_entry(entries[0].data)
            metadata = metadata_of(parts)
        except Corruption:
            return last, -1
        return last, message_count(metadata, len(parts.payload)) - 1 if is_batch(metadata) else -1

    def _on_new_entries(self) -> None:
        if not self.is_closed:
            for subscription in list(self.subscriptions.values()):
                subscription.pump()

    # -------------------------------------------------------------------------------- deduplication

    @property
    def deduplication_enabled(self) -> bool:
        wanted = self.policies.deduplication
        return self._config.deduplication if wanted is None else wanted

    async def _apply_deduplication(self) -> None:
        """Begin or end deduplication as the policies say. Raises StorageFailure."""
        publishing = self._publishing
        if self.deduplication_enabled and publishing.deduplication is None and not self.name.is_system:
            try:
                cursor = await self.ledger.open_cursor(DEDUPLICATION_CURSOR, EARLIEST)
                state = Deduplication(self._config.deduplication_producers)
                state.restore(cursor.properties)
                cursor.rewind()
                while True:
                    found = cursor.read(REPLAY_ENTRIES, REPLAY_BYTES)
                    entries = found if isinstance(found, Sequence) else await found
                    for entry in entries:
                        try:
                            state.replay(parse_metadata(entry.data))
                        except Corruption as error:
                            log.warning("%s: entry %s:%s: %s", self.name, entry.ledger_id, entry.entry_id, error)
                    if not entries:  # the end; entries appended meanwhile are noted when they are durable
                        break
            except ManagedLedgerError as error:
                raise storage_error(error) from error
            publishing.deduplication, self._deduplication_cursor = state, cursor
            self._producers.deduplicates = True
        elif not self.deduplication_enabled and publishing.deduplication is not None:
            publishing.deduplication = self._deduplication_cursor = None
            self._producers.deduplicates = False
            await self._delete_deduplication_cursor()
        elif not self.deduplication_enabled and DEDUPLICATION_CURSOR in self.ledger.cursors:
            await self._delete_deduplication_cursor()

    async def _delete_deduplication_cursor(self) -> None:
        """Delete the cursor of deduplication: one that is never moved would hold back trimming for ever."""
        try:
            await self.ledger.delete_cursor(DEDUPLICATION_CURSOR)
        except ManagedLedgerError as error:
            raise storage_error(error) from error

    def snapshot_deduplication(self) -> None:
        """Store the sequence ids with the position of the last confirmed entry."""
        deduplication, cursor = self._publishing.deduplication, self._deduplication_cursor
        if deduplication is None or cursor is None or self.is_closed:
            return
        self.last_snapshot_s = self._clock.monotonic()
        cursor.mark_delete(self.ledger.last_confirmed, deduplication.snapshot())

    # -------------------------------------------------------------------------------- time and policies

    def tick(self) -> None:
        """Store a snapshot of the sequence ids and forget absent producers, if that is due. Called periodically."""
        config, deduplication = self._config, self._publishing.deduplication
        if deduplication is None or self._clock.monotonic() - self.last_snapshot_s < config.deduplication_snapshot_s:
            return
        inactivity_ms = config.deduplication_inactivity_minutes * 60_000
        deduplication.forget_inactive(self.producers.keys(), self._clock.wall_ms(), inactivity_ms)
        self.snapshot_deduplication()

    async def apply_policies(self, policies: NamespacePolicies) -> None:
        """The namespace's policies changed. Raises StorageFailure."""
        self.policies = policies
        limits = self._limits()
        for subscription in self.subscriptions.values():
            subscription.consumers_max = self._consumers_max()
            subscription.apply_limits(limits)
        async with self._producers.admission:
            await self._apply_deduplication()

    def take_rates(self, period_s: float) -> None:
        """Work out the rates of the period that ends now."""
        for producer in self.producers.values():
            producer.take_rates(period_s)
        for subscription in self.subscriptions.values():
            for consumer in subscription.consumers:
                consumer.take_rates(period_s)

    @property
    def last_active_ms(self) -> int:
        """When a client last came or left."""
        return max(self._last_active_ms, self._producers.last_active_ms)

    @property
    def is_in_use(self) -> bool:
        return bool(self.producers) or any(one.consumers for one in self.subscriptions.values())

    @property
    def has_subscriptions(self) -> bool:
        return bool(self.subscriptions)

    # -------------------------------------------------------------------------------- the end

    async def terminate(self) -> Position:
        """Take no more messages, ever; returns the last position. Raises BrokerError."""
        try:
            last = await self.ledger.terminate()
        except ManagedLedgerError as error:
            raise storage_error(error) from error
        self._producers.disconnect_all()
        for subscription in self.subscriptions.values():
            subscription.tell_the_end()
        return last

    async def close(self) -> None:
        """Wait for pending messages, disconnect the clients (they look the topic up again), store cursors and
        sequence ids, and close the managed ledger."""
        if self.is_closed or self._is_closing:
            return
        self._is_closing = True
        await self._wait_for_answers()
        self.snapshot_deduplication()
        self._disconnect_all()
        await attempt(f"{self.name}: closing its ledger", self.ledger.close())
        await self._tasks.cancel()
        self._untie()

    async def _wait_for_answers(self) -> None:
        if self.ledger.pending_count:
            await self._answered.until(
                lambda: self.is_closed or not self.ledger.pending_count, self._clock, CLOSING_GRACE_S
            )

    def abandon(self, reason: str) -> None:
        """Another broker may own the topic: no receipt and no write from here on (ownership rule 3)."""
        if not self.is_closed:
            self._disconnect_all()
            self.ledger.fence(ManagedLedgerFenced(f"{self.name}: {reason}"))

    async def finish(self) -> None:
        """Close the managed ledger and end the tasks of an abandoned topic."""
        await self._close_ledger()
        await self._tasks.cancel()
        self._untie()

    async def delete(self) -> None:
        """Remove the topic with all its data; its clients are disconnected. Raises BrokerError."""
        self._disconnect_all()
        try:
            await self.ledger.delete()
        except ManagedLedgerError as error:
            raise storage_error(error) from error
        finally:
            await self._tasks.cancel()
            self._untie()

    def _untie(self) -> None:
        """Remove the references from the managed ledger back to this topic, so that a topic that has ended is freed at
        once, not only by the garbage collector."""
        self.ledger.forget_owner()
        self._stop_watching = do_nothing

    def _disconnect_all(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._producers.close()
        self._host.is_closed = True
        self._stop_watching()
        if self._withheld_timer is not None:
            self._withheld_timer.cancel()
        self._publishing.forget_withheld()
        self._answered.ring()
        self._producers.disconnect_all()
        for subscription in self.subscriptions.values():
            for consumer in subscription.disconnect_consumers():
                consumer.sink.on_consumer_closed(consumer)
            subscription.close()
