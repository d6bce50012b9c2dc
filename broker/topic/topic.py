"""One topic that this broker serves: the publish path, its producers and its subscriptions.

    SEND … ──run──▶ publish ──▶ deduplication ──▶ managed ledger ──on_appended──▶ receipts, in the order of the entries
                                                        └──watch_appends──▶ pump of each subscription

    publishing            what becomes of each message, and when its producer gets the receipt
    producers             admission of producers, their names, exclusive access
    subscriptions         positions in the topic, each with its consumers and their requests
    stored_deduplication  sequence ids in storage
    limits                what settings and policies allow

`Topic` conducts them: it opens them, applies the policies, and closes or deletes the topic.

Rules:

1. After a storage failure all producers are disconnected without receipts and reconnect; the topic takes no producers
   until nothing is pending any more.
2. A closed topic sends nothing to any client, whatever storage still reports.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from broker.errors import MetadataFailure, NotReady, QuotaExceededHold, TopicTerminated, storage_errors
from broker.memory_budget import MemoryBudget
from broker.ownership.rules import Ownership
from broker.policies.namespace import NamespacePolicies
from broker.settings.config import BrokerConfig
from broker.settings.groups.ledgers import INDEX_INTERCEPTOR, TIMESTAMP_INTERCEPTOR
from broker.settings.quotas import CAUGHT_UP, STORAGE
from broker.topic.clients.consumer import Consumer, ConsumerSubscription, Counted
from broker.topic.clients.leaving import Steps, by_turns
from broker.topic.clients.producer import Producer
from broker.topic.compaction.compactor import Compactor, unpacked
from broker.topic.host import TopicHost
from broker.topic.limits import limits_of
from broker.topic.ports import NOT_KNOWN, NextBroker
from broker.topic.publishing.entry_metadata import EntryMetadata
from broker.topic.publishing.producers import Producers
from broker.topic.publishing.publishing import Pending, Publishing, encrypted
from broker.topic.publishing.stored_deduplication import StoredDeduplication
from broker.topic.rates.averages import Rates
from broker.topic.rates.resource_group import Membership, ResourceGroup
from broker.topic.rates.throttling import PublishThrottle
from broker.topic.reading.backlog_quota import Exceeded, evict_bytes, exceeded, oldest, refusal, refuses_producers
from broker.topic.reading.passing import expire, nth_open
from broker.topic.reading.positions import last_kept_index, last_message, position_at_ms
from broker.topic.reading.subscription import Subscription
from broker.topic.requests import Attached, ProducerRequest, SubscribeRequest
from broker.topic.subscriptions import Making, Subscriptions
from broker.topic.unacked import UnackedBudget
from broker.wire.frames import Send
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.data.buckets import Period
from magnetar_core.runtime.data.distribution import Distribution
from magnetar_core.runtime.tasks import Bell, Tasks, attempt, in_turns
from magnetar_core.runtime.types import MIB, Corruption, do_nothing
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import EntryRefused, ManagedLedgerError, ManagedLedgerFenced, ManagedLedgerTerminated
from managed_ledger.position import EARLIEST, Position

if TYPE_CHECKING:
    from managed_ledger.ledger import ManagedLedger

log = logging.getLogger(__name__)

# How often the topic tries again to send receipts that the session rule withheld.
WITHHELD_RETRY_S: Final = 0.1

# How long closing a topic waits for storage to answer, so that clients need not send stored messages again.
CLOSING_GRACE_S: Final = 1.0


class Topic:
    """A persistent topic, opened. Made by the broker; see `load`."""

    is_persistent = True

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
        compactions: asyncio.Semaphore | None = None,
        unacked: UnackedBudget | None = None,
        publish_latencies: Distribution | None = None,
        making: Making = contextlib.nullcontext,
    ) -> None:
        """*reads* is the budget for what all topics of the broker have read and not yet sent; *compactions* how many of
        them are compacted at the same time; *unacked* what all of them have delivered without an acknowledgement.
        *publish_latencies* counts the milliseconds until entries of all of them were stored; *making* is the turn of
        a client that makes a durable subscription."""
        self.name = name
        self.ledger = ledger
        self.policies = policies
        self.is_closed = False
        self.is_fenced = False
        self._is_closing = False
        self._leaving: asyncio.Task[None] | None = None
        """Tells clients that they are closed, if there are too many for one turn of the loop."""
        self._config = config
        self.limits = limits_of(config, policies, is_system=name.is_system)
        self._clock = clock
        self._dropped = dropped
        self._tasks = Tasks(str(name))
        self._host = TopicHost(clock, self._tasks, str(name), reads, unacked)
        self._answered = Bell()
        """Rings when storage has answered, when a producer leaves, and at the end."""
        self._producers = Producers(name, ledger, clock, self._tasks, self._answered)
        self._publishing = Publishing(ownership, self._producers, publish_latencies)
        self.compactor = Compactor(
            name, ledger, clock, self._tasks, compactions or asyncio.Semaphore(), config.compaction_keys_mb * MIB
        )
        self.publish_throttle = PublishThrottle()
        self.membership = Membership()
        self._subscriptions = Subscriptions(
            name, ledger, self._host, clock, config, self.limits, self.compactor, self.membership, making
        )
        self._use_rates()
        # What the parts call back must not refer to this object: a topic that has ended is freed at once.
        self._deduplication = StoredDeduplication(name, ledger, config, clock, self._publishing.use_deduplication)
        self.rates = Rates(5, clock.wall_ms())
        """Messages in, bytes in, entries stored, entries read by subscriptions, and those of them from the bookies."""
        self.storage_rates = Rates(3, clock.wall_ms())
        """Entries that were not stored, reads that failed, states of cursors that were stored."""
        self.appends_failed = 0
        self.size_evictions = 0
        """How often the quota for bytes had messages passed over."""
        self.age_evictions = 0
        """The same for the quota for the age of messages."""
        self._withheld_timer: Timer | None = None
        self._used_ms = 0
        """When it was last seen that it may not be deleted as idle."""
        self._entry_metadata: EntryMetadata | None = None
        if config.entry_metadata_interceptors:
            self._entry_metadata = EntryMetadata(
                stamps=TIMESTAMP_INTERCEPTOR in config.entry_metadata_interceptors,
                indexes=INDEX_INTERCEPTOR in config.entry_metadata_interceptors,
                index=ledger.index,
            )
        self._stop_watching = ledger.watch_appends(self._on_new_entries)
        ledger.listener = self

    @property
    def work_name(self) -> str:
        """How the watch over the loop names this topic."""
        return str(self.name)

    async def load(self) -> None:
        """Restore the stored subscriptions and the state of deduplication. Raises StorageFailure."""
        self._subscriptions.restore()
        await self._deduplication.apply(self.deduplication_enabled)
        await self._expect_compaction()

    # -------------------------------------------------------------------------------- publishing

    def publish(self, run: Sequence[tuple[Producer, Send]]) -> None:
        """Store a run of messages, in order; answers come later, in one write for each connection."""
        if self.is_closed or self.is_fenced or self._is_closing:
            self._publishing.pass_over(run)
            return
        metadata = self._entry_metadata
        if metadata is not None:
            metadata.begin_run(self._clock.wall_ms())
        limits = self.limits
        if limits.requires_encryption:
            run = encrypted(run)
        if limits.message_bytes_max or limits.delay_max_ms:
            run = self._publishing.admissible(run, limits.message_bytes_max, limits.delay_max_ms, self._clock.wall_ms())
        buffers, contexts = self._publishing.take(run, metadata, self._clock.monotonic())
        if buffers:
            self.ledger.append(buffers, contexts)

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Pending]) -> None:
        """AppendListener: these entries are durable."""
        publishing = self._publishing
        metadata = self._entry_metadata
        if metadata is not None and metadata.indexes:
            metadata.on_stored(pending.messages for pending in contexts)
            self.ledger.index = metadata.stored_index
        self._answered.ring()
        if self.is_fenced:
            self._unfence_when_idle()
        if self.is_closed:  # rule 2
            publishing.forget(contexts)
            self._answered.ring()
            return
        publishing.note_stored(contexts, self._clock.monotonic())
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
        self.appends_failed += len(contexts)
        metadata = self._entry_metadata
        if metadata is not None and not self.ledger.pending_count:
            metadata.go_back()
        elif metadata is not None and metadata.indexes:
            metadata.on_refused(pending.messages for pending in contexts)
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
        self._announce(self._producers.disconnect_all())
        if not self.ledger.is_open:  # it takes no appends any more, even if `on_closed` has not been called yet
            self.on_closed(error)

    def _unfence_when_idle(self) -> None:
        """Take producers again once storage has answered every pending append and all former ones are out (rule 1)."""
        if not self.is_closed and not self.ledger.pending_count and self._leaving is None:
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

    @property
    def entry_sizes(self) -> Period:
        """Bytes of the entries of the last period."""
        return self._publishing.sizes.last

    @property
    def write_latencies(self) -> Period:
        """Microseconds until the entries of the last period were stored."""
        return self._publishing.latencies.last

    @property
    def has_chunks(self) -> bool:
        """Whether a message came in parts."""
        return self._publishing.has_chunks

    @property
    def epoch(self) -> int | None:
        """How often exclusive access has been given; None: never."""
        return self._producers.epoch

    @property
    def gone(self) -> tuple[Counted, Counted]:
        """What went to consumers of subscriptions that were removed; and the part of it that was the system's."""
        return self._subscriptions.gone, self._subscriptions.gone_internal

    async def attach_producer(self, request: ProducerRequest) -> Attached:
        """Let a producer write. Raises BrokerError."""
        producer, producers = request.producer, self._producers
        await producers.probe_producer_of_same_name(producer)
        await producers.until_no_send_is_pending(producer)
        async with producers.admission:
            self._check_open()
            if self.ledger.is_terminated:
                raise TopicTerminated(f"Topic {self.name} is terminated")
            producers.check_no_send_is_pending(producer)
            if self.limits.requires_encryption and not request.encrypted:
                raise MetadataFailure(f"Encryption is required in {self.name.namespace}")
            producers.make_room(producer, self.limits, request.topic_epoch)
            self._check_writes()
            await self._check_backlog()
            self._check_open()
            if request.initial_subscription:
                await self._subscriptions.create_initial(request.initial_subscription, self._check_open)
            return await producers.admit(request, self.last_sequence_id(producer.name), self._check_open)

    async def _exceeded(self) -> Exceeded | None:
        """The backlog quota that is used up. Raises StorageFailure."""
        limits, subscriptions = self.limits, list(self.subscriptions.values())
        if not self._config.backlog_quota_checks or self.name.is_system:
            return None
        return await exceeded(self.ledger, subscriptions, limits.storage_quota, limits.age_quota, self._clock.wall_ms())

    def _check_writes(self) -> None:
        """Raises QuotaExceededHold."""
        if self.limits.stops_writes:
            raise QuotaExceededHold(
                f"Writes are stopped in {self.name.namespace}; `magnetar namespaces allow-writes {self.name.namespace}`"
            )

    async def _check_backlog(self) -> None:
        """Raises QuotaExceededHold, QuotaExceeded."""
        used_up = await self._exceeded()
        if used_up is not None and refuses_producers(used_up):
            raise refusal(self.name, used_up)

    async def keep_quotas(self) -> None:
        """Do what the policy says if the backlog is above a quota. Called periodically. Raises BrokerError."""
        if self.is_closed or self._is_closing:
            return
        used_up = await self._exceeded()
        if used_up is None or self.is_closed:
            return
        if refuses_producers(used_up):
            if self.producers:
                log.info("%s: its producers are disconnected: the quota %s is used up", self.name, used_up.kind)
            await in_turns(by_turns(self._producers.disconnect_all()))
        elif used_up.kind == STORAGE:
            self.size_evictions += 1
            entries = evict_bytes(self.ledger, list(self.subscriptions.values()), used_up.quota)
            log.info("%s: %d entries were passed over: the quota %s is used up", self.name, entries, used_up.kind)
        else:
            self.age_evictions += 1
            for name, subscription in list(self.subscriptions.items()):
                if subscription.is_durable:
                    await self.expire(name, used_up.quota.limit_s)

    def close_producer(self, producer: Producer, done: Callable[[], None]) -> None:
        """A client closes its producer, which is *done* once all messages that it sent are answered."""
        self._producers.close_when_answered(producer, done)

    def detach_producer(self, producer: Producer) -> None:
        """*producer* has left; the producer that waits longest for exclusive access gets it."""
        self._producers.detach(producer)

    def disconnect_producer(self, producer: Producer) -> None:
        """Close *producer* from the side of the broker; its client looks the topic up again."""
        self._producers.disconnect(producer)

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

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """By name, with those of readers."""
        return self._subscriptions.by_name

    def check_subscription(self, name: str) -> None:
        """Raises SubscriptionNotFound: a durable subscription is not there, and a consumer may not create it."""
        self._subscriptions.check_exists_or_may_be_created(name)

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        """Attach a consumer. Raises BrokerError."""
        return await self._subscriptions.subscribe(request, self._check_open)

    async def create_subscription(
        self,
        name: str,
        start: Position,
        properties: Mapping[str, str] | None = None,
        *,
        is_replicated: bool = False,
    ) -> Subscription:
        """A durable subscription at *start*, the first position to deliver. Raises BrokerError."""
        return await self._subscriptions.create(name, start, properties, self._check_open, is_replicated=is_replicated)

    async def set_subscription_replicated(self, name: str, *, is_replicated: bool) -> None:
        """Store whether a subscription is to be kept in step with other clusters. Raises BrokerError."""
        await self._subscriptions.set_replicated(name, is_replicated=is_replicated)

    def detach_consumer(self, consumer: Consumer) -> None:
        """*consumer* has left; its unacknowledged messages go to the other consumers."""
        self._subscriptions.detach(consumer)

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Close *consumer* from the side of the broker; its client looks the topic up again."""
        self._subscriptions.disconnect(consumer)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Remove a subscription and what it acknowledged. Raises BrokerError if it is in use, unless *force*."""
        await self._subscriptions.delete(name, force=force)

    async def unsubscribe(self, consumer: Consumer, *, force: bool = False) -> None:
        """The only consumer (any, with *force*) removes its subscription. Raises BrokerError."""
        await self._subscriptions.unsubscribe(consumer, force=force)

    async def seek(
        self, subscription: ConsumerSubscription, position: Position, ack_set: Sequence[int] = (), batch_size: int = 0
    ) -> None:
        """Deliver from *position* on; consumers are disconnected and subscribe again. Raises BrokerError."""
        await self._subscriptions.seek(subscription, position, ack_set, batch_size)

    async def position_at_ms(self, time_ms: int, *, read_compacted: bool = False) -> Position:
        """The first entry that was published at *time_ms* or later; LATEST if there is none. Raises BrokerError.

        *read_compacted*: also among those that only compaction has kept.
        """
        return await position_at_ms(self.ledger, time_ms, self.compactor if read_compacted else None)

    async def clear_backlog(self, name: str) -> None:
        """Pass over everything that a subscription has before it; its consumers stay. Raises BrokerError."""
        await self._subscriptions.clear(name)

    async def set_subscription_properties(self, name: str, properties: Mapping[str, str]) -> None:
        """Replace the properties of a subscription. Raises BrokerError."""
        await self._subscriptions.set_properties(name, properties)

    async def trim(self) -> None:
        """Delete the ledgers that nobody needs: consumed, and not kept by retention. Raises BrokerError."""
        with storage_errors():
            await self.ledger.trim_now()

    async def truncate(self) -> None:
        """All subscriptions go to the end, and all ledgers but the present one are deleted. Raises BrokerError."""
        for subscription in list(self.subscriptions.values()):
            subscription.acking.clear_up_to(self.ledger.ledgers.last_confirmed)
        self.snapshot_deduplication()  # its cursor goes to the end as well: nothing before it is replayed any more
        with storage_errors():
            await self.ledger.truncate()

    async def skip(self, name: str, count: int) -> None:
        """Pass over *count* entries of a subscription, whose consumers stay. Raises BrokerError."""
        subscription = self._subscriptions.require(name)
        subscription.acking.clear_up_to(await nth_open(self.ledger.ledgers, subscription.cursor, count))

    async def expire(self, name: str, age_s: int) -> int | None:
        """Pass over the entries of a subscription that are older than *age_s*. Returns how many; None: its consumers
        are about at the end of the topic, so nothing was looked for (`passing.expire`).

        Raises BrokerError.
        """
        subscription = self._subscriptions.require(name)
        now_ms = self._clock.wall_ms()
        with storage_errors():
            return await expire(self.ledger, subscription, now_ms - age_s * 1000, now_ms)

    async def expire_by_policy(self) -> None:
        """What is older than the policies allow is passed over by all subscriptions. Raises BrokerError."""
        if self.limits.ttl_s and not self.is_closed:
            for name in list(self.subscriptions):
                await self.expire(name, self.limits.ttl_s)

    async def last_message(self, *, read_compacted: bool = False) -> tuple[Position, int]:
        """The last position, and the index of the last message in its batch (`broker.topic.reading.positions`).

        *read_compacted*: the last one that compaction kept, where nothing came since.
        """
        horizon = self.compactor.horizon
        if not read_compacted or horizon is None or horizon < self.ledger.ledgers.last_confirmed:
            return await last_message(self.ledger, lambda: asyncio.sleep(0))
        with storage_errors():
            kept = await self.compactor.last_message()
        if kept is None:
            return EARLIEST, -1
        try:
            return kept.position, await in_turns(last_kept_index(await unpacked(kept)))
        except Corruption:
            return kept.position, -1

    def _on_new_entries(self) -> None:
        if not self.is_closed:
            for subscription in list(self._subscriptions.by_name.values()):
                subscription.pump.run()

    # -------------------------------------------------------------------------------- deduplication

    @property
    def deduplication_enabled(self) -> bool:
        return self.limits.deduplicates

    def snapshot_deduplication(self) -> None:
        """Store the sequence ids with the position of the last confirmed entry."""
        if not self.is_closed:
            self._deduplication.snapshot()

    # -------------------------------------------------------------------------------- time and policies

    def tick(self) -> None:
        """Store a snapshot of the sequence ids and forget absent producers, if that is due. Called periodically."""
        if not self.is_closed:
            self._deduplication.snapshot_if_due(self.producers.keys(), self.limits.deduplication_snapshot_s)

    async def apply_policies(self, policies: NamespacePolicies) -> None:
        """The namespace's policies changed. Raises StorageFailure."""
        self.policies = policies
        self.limits = limits_of(self._config, policies, is_system=self.name.is_system)
        self._subscriptions.apply_limits(self.limits)
        self._use_rates()
        async with self._producers.admission:
            if self.limits.stops_writes and self.producers:
                log.info("%s: its producers are disconnected: writes are stopped in its namespace", self.name)
                await in_turns(by_turns(self._producers.disconnect_all()))
            if self.limits.requires_encryption:
                await in_turns(by_turns(self._producers.require_encryption()))
            await self._deduplication.apply(self.deduplication_enabled)
        await self._expect_compaction()

    async def _expect_compaction(self) -> None:
        """With a threshold the topic will be compacted some day. Raises StorageFailure."""
        with storage_errors():
            await self.compactor.expect(is_expected=self.limits.compaction_threshold_bytes > 0)

    def _use_rates(self) -> None:
        self.publish_throttle.use(self.limits.publish_rate, self._clock.wall_ms())

    def join(self, group: ResourceGroup | None) -> None:
        """The topic is in this resource group from now on; None: in none."""
        former_group, self.membership.group = self.membership.group, group
        if group is not former_group:
            self._subscriptions.change_group(former_group)

    def oldest_backlog(self) -> tuple[int, str]:
        """About how many seconds ago the oldest message was published that a durable subscription has not acknowledged,
        and the subscription (`broker.topic.reading.backlog_quota.oldest`); (-1, "") where that is not known."""
        oldest_message = oldest(self.ledger.ledgers, self.subscriptions)
        if oldest_message is None:
            return -1, ""
        return max(self._clock.wall_ms() - oldest_message.since_ms, 0) // 1000, oldest_message.subscription

    def is_idle(self, now_ms: int) -> bool:
        """Whether the topic may be deleted because nobody uses it. Called periodically.

        By the mode `delete_when_subscriptions_caught_up` also with consumers that are connected, as in Apache's.
        """
        rule = self.limits.inactive
        if not rule.is_on:
            return False
        if rule.mode == CAUGHT_UP:
            is_behind = any(
                subscription.backlog or subscription.is_before_ledgers for subscription in self.subscriptions.values()
            )
        else:
            is_behind = self.has_subscriptions
        if self.producers or is_behind:
            self._used_ms = now_ms
            return False
        retained_ms = self.ledger.config.retention.time_ms
        if retained_ms < 0:  # its messages are to be kept, as in Apache's
            return False
        return max(self.last_active_ms, self._used_ms) <= now_ms - max(rule.idle_s * 1000, retained_ms)

    async def expire_subscriptions(self) -> None:
        """Remove durable subscriptions that had no consumer for longer than the policies allow, but for those that are
        kept in step with other clusters, where they may have some. Raises BrokerError."""
        minutes = self.limits.expiration_minutes
        if not minutes or self.is_closed:
            return
        since_ms = self._clock.wall_ms() - minutes * 60_000
        for name, subscription in list(self.subscriptions.items()):
            if self.subscriptions.get(name) is not subscription:  # removed while others were
                continue
            if not subscription.is_durable or subscription.consumers or subscription.is_replicated:
                continue
            if subscription.last_active_ms < since_ms:
                await self._subscriptions.delete(name, force=False)
                log.info("%s: subscription %s was removed: no consumer for %d minutes", self.name, name, minutes)

    def compact_if_due(self) -> None:
        """Begin a compaction if more than the threshold is new. Called periodically."""
        threshold = self.limits.compaction_threshold_bytes
        if threshold and not self.is_closed and self.ledger.bytes_after(self.compactor.horizon or EARLIEST) > threshold:
            self.compactor.start()

    def take_rates(self, now_ms: int) -> None:
        """Work out the rates of the period that ends now."""
        self._publishing.end_period()
        self.ledger.end_period()
        reads = [subscription.pump.entries_read for subscription in self.subscriptions.values()]
        cold = [subscription.pump.entries_read_cold for subscription in self.subscriptions.values()]
        self.rates.take((self.messages_in, self.bytes_in, self._publishing.entries_in, sum(reads), sum(cold)), now_ms)
        failed = sum(subscription.pump.reads_failed for subscription in self.subscriptions.values())
        stored = sum(cursor.counts.stored for cursor in self.ledger.cursors.values())
        self.storage_rates.take((self.appends_failed, failed, stored), now_ms)
        for producer in self.producers.values():
            producer.take_rates(now_ms)
        messages, size, *_ = self.rates.values
        self._subscriptions.take_rates(now_ms, (messages, size))

    @property
    def last_active_ms(self) -> int:
        """When a client last came or left."""
        return max(self._subscriptions.last_active_ms, self._producers.last_active_ms)

    @property
    def is_in_use(self) -> bool:
        return bool(self.producers) or self._subscriptions.have_consumers

    @property
    def has_subscriptions(self) -> bool:
        return bool(self.subscriptions)

    # -------------------------------------------------------------------------------- the end

    async def terminate(self) -> Position:
        """Take no more messages, ever; returns the last position. Raises BrokerError."""
        with storage_errors():
            last = await self.ledger.terminate()
        await in_turns(by_turns(self._producers.disconnect_all()))
        self._subscriptions.announce_end()
        return last

    async def close(self, next_broker: NextBroker = NOT_KNOWN) -> None:
        """Wait for pending messages, disconnect the clients (they go on at *next_broker*, or look the topic up), store
        cursors and sequence ids, and close the managed ledger."""
        if self.is_closed or self._is_closing:
            return
        self._is_closing = True
        await self._wait_for_answers()
        self.snapshot_deduplication()
        self._disconnect_all(next_broker)
        await self._until_announced()
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
        await self._until_announced()
        await self._close_ledger()
        await self._tasks.cancel()
        self._untie()

    async def delete(self) -> None:
        """Remove the topic with all its data; its clients are disconnected. Raises BrokerError."""
        self._disconnect_all()
        await self._until_announced()
        compacted = self.compactor.ledgers()
        try:
            with storage_errors():
                await self.ledger.delete()
                await self.compactor.delete(compacted)
        finally:
            await self._tasks.cancel()
            self._untie()

    def _untie(self) -> None:
        """Remove the references from the managed ledger back to this topic, so that a topic that has ended is freed at
        once, not only by the garbage collector."""
        assert self.is_closed, f"{self.name} loses its ledger while it is open"
        self.ledger.forget_owner()
        self._stop_watching = do_nothing

    def _disconnect_all(self, next_broker: NextBroker = NOT_KNOWN) -> None:
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
        self._subscriptions.close()
        self._announce(self._all_leave(next_broker))

    def _all_leave(self, next_broker: NextBroker) -> Steps:
        yield from self._producers.disconnect_all(next_broker)
        yield from self._subscriptions.notify_detached(next_broker)

    def _announce(self, steps: Steps) -> None:
        """Tell the first clients now, the others in later turns of the loop."""
        former, turns = self._leaving, by_turns(steps)
        all_announced = object()
        if former is None and next(turns, all_announced) is all_announced:
            return

        async def announce_the_rest() -> None:
            try:
                if former is not None:
                    await asyncio.wait([former])
                await in_turns(turns)
            finally:
                if self._leaving is task:
                    self._leaving = None
                    self._unfence_when_idle()

        task = self._leaving = self._tasks.spawn(announce_the_rest(), "leaving")

    async def _until_announced(self) -> None:
        if self._leaving is not None:
            await asyncio.wait([self._leaving])
