"""One topic that this broker serves: the publish path, its producers and its subscriptions.

    SEND … ──run──▶ publish ──▶ deduplication ──▶ managed ledger ──on_appended──▶ receipts, in the order of the entries
                                                        └──watch_appends──▶ pump of each subscription

Rules:

1. Receipts leave in the order in which entries became durable, and only while the ownership says that we may.
2. After a storage failure all producers are told to come back (no receipts); the topic takes no producers until
   nothing is pending any more.
3. A closed topic writes nothing to anybody, whatever storage still reports.
4. What makes somebody an exclusive producer is durable before he is told.
5. A producer whose name was used over the topic API waits until what was sent there is answered: its own batches may
   begin among those messages, and then only the answers say which of them are stored.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.config import TIMESTAMP_INTERCEPTOR, BrokerConfig
from broker.errors import (
    BrokerError,
    ConsumerAssignError,
    ConsumerBusy,
    MetadataFailure,
    NotAllowed,
    NotReady,
    ProducerBusy,
    StorageFailure,
    SubscriptionNotFound,
    TopicTerminated,
    TopicUnreadable,
)
from broker.memory_budget import MemoryBudget
from broker.names import COMPACTION_CURSOR, DEDUPLICATION_CURSOR, is_reserved_subscription
from broker.ownership.rules import Ownership
from broker.policies import NamespacePolicies
from broker.topic.consumer import Consumer
from broker.topic.deduplication import Deduplication, Verdict, highest_of
from broker.topic.dispatchers import DispatchLimits
from broker.topic.ports import Entries, EntryLike, Sink
from broker.topic.producer import Producer
from broker.topic.producer_access import EPOCH_PROPERTY, Access, ProducerAccess
from broker.topic.requests import Attached, ProducerRequest, SubscribeRequest
from broker.topic.subscription import Subscription, check_type
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import NO_ID, Send, command, send_receipt, with_broker_metadata
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.tasks import FAILED, Bell, Failed, Tasks, attempt, report_failure
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.errors import (
    CursorNotFound,
    EntryRefused,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerTerminated,
    RecordUnreadable,
    StorageUnavailable,
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

# How often receipts are tried that the session rule held back.
WITHHELD_RETRY_S: Final = 0.1

# How long a producer waits for the answers to the entries of its name (rule 5); then it is told to come again.
LINGER_MAX_S: Final = 5.0

# How long the close of a topic waits for storage to answer, so that clients need not send again what is stored.
CLOSING_GRACE_S: Final = 1.0

# Entries that one step of the replay reads when a topic with deduplication is opened.
REPLAY_ENTRIES: Final = 1_000
REPLAY_BYTES: Final = 8 * 1024 * 1024


class Pending(NamedTuple):
    """What is remembered of an entry until storage has answered."""

    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    size_bytes: int
    messages: int
    is_recorded: bool
    """Whether its sequence id counts for deduplication."""


class _Host:
    """The world as the subscriptions of a topic see it."""

    def __init__(self, clock: Clock, tasks: Tasks, name: str, reads: MemoryBudget) -> None:
        self._clock = clock
        self._tasks = tasks
        self._name = name
        self._reads = reads
        self.is_closed = False

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(delay_ms / 1000, callback)

    @property
    def read_room_bytes(self) -> int:
        return self._reads.room_bytes

    def when_read_room(self, who: object, go_on: Callable[[], None]) -> None:
        self._reads.wait(who, go_on)

    def fetch(
        self, work: Awaitable[Entries], done: Callable[[Entries | None], None], size_bytes: int, sink: Sink | None
    ) -> None:
        if self.is_closed:
            if isinstance(work, Coroutine):
                work.close()
            return
        # Not in the task: two subscriptions of one turn of the loop must see what the other one is about to read.
        self._reads.take(size_bytes)
        if sink is not None:
            sink.reserve(size_bytes)
        task = self._tasks.spawn(attempt(f"{self._name}: a read", work), "read")

        def came(task: "asyncio.Task[Entries | Failed]") -> None:
            self._reads.give(size_bytes)
            entries = FAILED if task.cancelled() else task.result()
            if not self.is_closed:
                done(None if isinstance(entries, Failed) else entries)
            if sink is not None:
                sink.reserve(-size_bytes)

        task.add_done_callback(came)

    def guard(self, step: Callable[[], None], what: str) -> bool:
        try:  # once for each ack: the text is made only where it is wanted
            step()
        except Exception as error:
            report_failure(f"{self._name}: {what}", error)
            return False
        return True


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
        """*reads* is what all topics of the broker may have read and not yet sent."""
        self.name = name
        self.ledger = ledger
        self.policies = policies
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.is_closed = False
        self.is_fenced = False
        self._is_closing = False
        self._config = config
        self._ownership = ownership
        self._clock = clock
        self._dropped = dropped
        self._tasks = Tasks(str(name))
        self._host = _Host(clock, self._tasks, str(name), reads)
        self._admission = asyncio.Lock()
        self._ready_calls: dict[Producer, Callable[[int | None], None]] = {}
        # Name → a producer that has left with entries under way.
        self._departing: dict[str, Producer] = {}
        self._answered = Bell()
        """Rings when storage has answered, and at the end."""
        self._access: ProducerAccess[Producer] = ProducerAccess(_stored_epoch(ledger.properties))
        self._deduplication: Deduplication | None = None
        self._deduplication_cursor: ManagedCursor | None = None
        self._withheld: list[tuple[int, int, Sequence[Pending]]] = []
        self._withheld_timer: Timer | None = None
        self._stamps = TIMESTAMP_INTERCEPTOR in config.entry_metadata_interceptors
        self._stop_watching = ledger.watch_appends(self._on_new_entries)
        self.last_active_ms = clock.wall_ms()
        self.last_snapshot_s = clock.monotonic()
        self.messages_in = 0
        self.bytes_in = 0
        ledger.listener = self

    async def load(self) -> None:
        """Restore what storage knows: subscriptions and deduplication. Raises StorageFailure."""
        for name, cursor in self.ledger.cursors.items():
            if not is_reserved_subscription(name) and name != COMPACTION_CURSOR:
                self._add_subscription(name, cursor)
        await self._apply_deduplication()

    # -------------------------------------------------------------------------------- publishing

    def publish(self, run: Sequence[tuple[Producer, Send]]) -> None:
        """Store a run of messages, in order; answers come later, in one write for each connection."""
        if self.is_closed or self.is_fenced or self._is_closing:
            # The producers have been told to come back (or are told in a moment), and send these again.
            for producer, send in run:
                producer.sink.on_published(1, len(send.entry))
            return
        buffers: list[Buffer] = []
        contexts: list[Pending] = []
        deduplication = self._deduplication
        stamp = b""
        if self._stamps:
            stamp = BrokerEntryMetadata(broker_timestamp=self._clock.wall_ms()).SerializeToString()
        for producer, send in run:
            size = len(send.entry)
            is_recorded = not send.is_marker and (not send.is_chunk or _is_last_chunk(send))
            if deduplication is not None and is_recorded:
                verdict = deduplication.check(producer.name, send.sequence_id, send.highest_sequence_id)
                if verdict is not Verdict.NEW:
                    self._answer_repeated(producer, send, verdict)
                    continue
            producer.pending += 1
            buffers.append(with_broker_metadata(stamp, send.entry) if stamp else send.entry)
            contexts.append(
                Pending(producer, send.sequence_id, send.highest_sequence_id, size, send.num_messages, is_recorded)
            )
        if buffers:
            self.ledger.append(buffers, contexts)

    def _answer_repeated(self, producer: Producer, send: Send, verdict: Verdict) -> None:
        if verdict is Verdict.DUPLICATE and self._ownership.may_acknowledge():
            producer.sink.write(
                send_receipt(producer.producer_id, send.sequence_id, send.highest_sequence_id, NO_ID, NO_ID)
            )
        else:  # the client comes back and asks again
            producer.sink.write(
                _send_error(
                    producer,
                    highest_of(send.sequence_id, send.highest_sequence_id),
                    wire.PersistenceError,
                    "the first copy of this message is still being stored",
                )
            )
        producer.sink.on_published(1, len(send.entry))

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Pending]) -> None:
        """AppendListener: these entries are durable."""
        self._answered.ring()
        if self.is_closed:  # rule 3
            self._forget(contexts)
            return
        deduplication = self._deduplication
        if deduplication is not None:
            for pending in contexts:
                if pending.is_recorded:
                    deduplication.on_persisted(pending.producer.name, pending.sequence_id, pending.highest_sequence_id)
            if deduplication.entries_since_snapshot >= self._config.deduplication_entries:
                self.snapshot_deduplication()
        if self._withheld or not self._ownership.may_acknowledge():
            self._withheld.append((ledger_id, first_entry_id, contexts))
            self._retry_withheld()
            return
        self._confirm(ledger_id, first_entry_id, contexts)

    def _confirm(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Pending]) -> None:
        for entry_id, (producer, sequence_id, highest, size, messages, _) in enumerate(contexts, first_entry_id):
            producer.pending -= 1
            producer.messages_in += messages
            producer.bytes_in += size
            self.messages_in += messages
            self.bytes_in += size
            sink = producer.sink
            if not producer.is_closed:
                sink.write(send_receipt(producer.producer_id, sequence_id, highest, ledger_id, entry_id))
            elif not producer.pending:
                self._has_departed(producer)
            sink.on_published(1, size)
            if producer.closing is not None and not producer.pending:
                self._finish_close(producer)

    def _retry_withheld(self) -> None:
        if self._withheld_timer is None and not self.is_closed:
            self._withheld_timer = self._clock.call_later(WITHHELD_RETRY_S, self._release_withheld)

    def _release_withheld(self) -> None:
        self._withheld_timer = None
        if self.is_closed:
            return
        if not self._ownership.may_acknowledge():
            self._retry_withheld()
            return
        withheld, self._withheld = self._withheld, []
        for ledger_id, first_entry_id, contexts in withheld:
            self._confirm(ledger_id, first_entry_id, contexts)

    def on_append_failed(self, contexts: Sequence[Pending], error: ManagedLedgerError) -> None:
        """AppendListener: these entries are not confirmed, and will not be."""
        if isinstance(error, ManagedLedgerTerminated | EntryRefused) and not self.is_closed:
            code = wire.NotAllowedError if isinstance(error, EntryRefused) else wire.TopicTerminatedError
            for pending in contexts:
                producer = pending.producer
                if not producer.is_closed:
                    highest = highest_of(pending.sequence_id, pending.highest_sequence_id)
                    producer.sink.write(_send_error(producer, highest, code, str(error)))
            self._forget(contexts)
            return
        self._forget(contexts)
        if self.is_closed:
            return
        log.warning("%s: publishing failed, its producers are sent away: %s", self.name, error)
        self.is_fenced = True  # rule 2
        if self._deduplication is not None:
            self._deduplication.on_storage_failed()
        for producer in list(self.producers.values()):
            self._send_away(producer)
        if not self.ledger.is_open:  # it will not take anything any more, whether or not it has told us
            self.on_closed(error)
        self._unfence_when_idle()

    def _unfence_when_idle(self) -> None:
        if self.is_closed:
            return
        if self.ledger.pending_count:
            self._clock.call_later(WITHHELD_RETRY_S, self._unfence_when_idle)
            return
        self.is_fenced = False

    def _forget(self, contexts: Sequence[Pending]) -> None:
        for pending in contexts:
            producer = pending.producer
            producer.pending -= 1
            producer.sink.on_published(1, pending.size_bytes)
            if producer.is_closed and not producer.pending:
                self._has_departed(producer)
            if producer.closing is not None and not producer.pending:
                self._finish_close(producer)
        self._answered.ring()

    def on_closed(self, error: ManagedLedgerError) -> None:
        """AppendListener: another broker took over, or storage is gone. Whoever comes back has it opened again."""
        if not self.is_closed:
            log.warning("%s: dropped: %s", self.name, error)
            self._disconnect_all()
            self._dropped(self)

    async def _after_drop(self) -> None:
        await attempt(f"{self.name}: closing its ledger", self.ledger.close())

    # -------------------------------------------------------------------------------- producers

    async def attach_producer(self, request: ProducerRequest) -> Attached:
        """Let a producer write. Raises BrokerError."""
        producer = request.producer
        if self._must_linger(producer):
            await self._answered.until(lambda: not self._must_linger(producer), self._clock, LINGER_MAX_S)
        async with self._admission:
            self._check_open()
            if self.ledger.is_terminated:
                raise TopicTerminated(f"Topic {self.name} is terminated")
            if self._must_linger(producer):
                raise NotReady(f"{self.name}: what {producer.name} sent over the topic API is still being stored")
            if self.policies.encryption_required and not request.encrypted:
                raise MetadataFailure(f"Encryption is required in {self.name.namespace}")
            self._check_name(producer)
            limit = self.policies.max_producers_per_topic
            if limit is None:
                limit = self._config.max_producers_per_topic
            if limit and len(self.producers) >= limit and not self.name.is_system:
                raise ProducerBusy("Topic reached max producers limit")
            if request.initial_subscription:
                await self._make_initial_subscription(request.initial_subscription)
            decision = self._access.decide(producer.access_mode, request.topic_epoch, self._attached_count())
            last_sequence_id = self.last_sequence_id(producer.name)
            if decision.access is Access.WAITS:
                self._access.wait(producer, request.topic_epoch)
                self._put(producer, request)
                return Attached(last_sequence_id, None, ready=False)
            if decision.access is Access.EXCLUSIVE_AFTER_FENCING:
                for waiter in self._access.fence():
                    self._ready_calls[waiter](None)
                    self.detach_producer(waiter)
                for other in list(self.producers.values()):
                    self._send_away(other)
            if decision.epoch is not None:
                await self._store_epoch(decision.epoch)
                self._check_open()
                self._access.grant(producer, decision.epoch)
            self._put(producer, request)
            return Attached(last_sequence_id, decision.epoch, ready=True)

    def _put(self, producer: Producer, request: ProducerRequest) -> None:
        self.producers[producer.name] = producer
        self._ready_calls[producer] = request.on_ready
        self.last_active_ms = self._clock.wall_ms()

    def _attached_count(self) -> int:
        """Producers that may write now."""
        return len(self.producers) - len(self._access.waiting)

    def _check_name(self, producer: Producer) -> None:
        other = self.producers.get(producer.name)
        if other is None:
            return
        # A client that lost its connection comes back under the name that we made for it; the old connection may
        # not have noticed yet.
        if other.has_generated_name and producer.has_generated_name and producer.epoch > other.epoch:
            self._send_away(other)
            return
        raise ProducerBusy(f"Producer with name '{producer.name}' is already connected to topic '{self.name}'")

    async def _store_epoch(self, epoch: int) -> None:
        if self._access.epoch == epoch:
            return
        try:
            await self.ledger.set_properties({**self.ledger.properties, EPOCH_PROPERTY: str(epoch)})
        except ManagedLedgerError as error:
            raise broker_error(error) from error

    async def _make_initial_subscription(self, name: str) -> None:
        if name in self.subscriptions:
            return
        if not self._may_create_subscriptions:
            raise NotAllowed(f"Could not create the initial subscription {name}: automatic creation is off")
        await self.create_subscription(name, EARLIEST)

    def close_producer(self, producer: Producer, request_id: int) -> None:
        """The client is done; it is told when what it has sent is answered."""
        producer.closing = request_id
        if not producer.pending:
            self._finish_close(producer)

    def _finish_close(self, producer: Producer) -> None:
        request_id, producer.closing = producer.closing, None
        if not producer.is_closed:
            self.detach_producer(producer)
            producer.sink.write(command(wire.BaseCommand.SUCCESS, request_id=request_id))

    def detach_producer(self, producer: Producer) -> None:
        """*producer* is gone; whoever waited for the topic is next."""
        producer.is_closed = True
        self._answered.ring()
        if producer.pending:
            self._departing[producer.name] = producer
        self._ready_calls.pop(producer, None)
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self.last_active_ms = self._clock.wall_ms()
        self._access.leave(producer)
        if self._access.waiting and not self.is_closed:
            self._tasks.spawn(self._promote(), "promote")

    def _has_departed(self, producer: Producer) -> None:
        if self._departing.get(producer.name) is producer:
            del self._departing[producer.name]
            self._answered.ring()

    def is_storing_for(self, name: str) -> bool:
        """Whether what a producer of that name sent before it left is still being stored."""
        return name in self._departing

    async def until_stored_for(self, producer: Producer, timeout_s: float) -> bool:
        """Wait until all that a former producer of this name sent is answered, or *producer* is gone itself; returns
        whether it is so."""
        return await self._answered.until(
            lambda: producer.is_closed or not self.is_storing_for(producer.name), self._clock, timeout_s
        )

    def _must_linger(self, producer: Producer) -> bool:
        """Rule 5. (Producers of the topic API wait by themselves, while they hold the name.)"""
        departing = self._departing.get(producer.name)
        return (
            departing is not None
            and departing.regroups
            and not producer.regroups
            and self._deduplication is not None
            and not self.is_closed
        )

    def last_sequence_id(self, name: str) -> int:
        """The highest id that is stored under a producer's name; -1 if none is, or without deduplication."""
        return -1 if self._deduplication is None else self._deduplication.last_sequence_id(name)

    async def _promote(self) -> None:
        async with self._admission:
            following = self._access.next_in_line(self._attached_count())
            if following is None or self.is_closed:
                return
            producer, epoch = following
            what = f"{self.name}: making {producer} the exclusive producer"
            if await attempt(what, self._store_epoch(epoch)) is FAILED:
                self._send_away(producer)  # it comes back, and waits again
                return
            if producer.is_closed:
                self._tasks.spawn(self._promote(), "promote")
                return
            self._access.grant(producer, epoch)
            self._ready_calls[producer](epoch)

    def _send_away(self, producer: Producer) -> None:
        """Close a producer from our side; its client looks the topic up again."""
        if producer.is_closed:
            return
        producer.sink.write(
            command(wire.BaseCommand.CLOSE_PRODUCER, producer_id=producer.producer_id, request_id=NO_ID)
        )
        producer.sink.on_producer_closed(producer)
        self.detach_producer(producer)

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
            # Perhaps those in the way are dead: a client that comes back must not wait for its own old connection.
            await asyncio.gather(*(one.sink.is_alive() for one in subscription.consumers))
        self._check_open()
        if self.subscriptions.get(subscription.name) is not subscription:
            raise NotReady(f"Subscription {subscription.name} was removed meanwhile")
        try:
            subscription.add_consumer(request.consumer, request.kind, request.key_shared)
        except BrokerError:
            self._drop_if_unused(subscription)
            raise
        self.last_active_ms = self._clock.wall_ms()
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
        existing = self.subscriptions.get(request.subscription)  # somebody was faster while we waited
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
            raise broker_error(error) from error
        self._check_open()
        existing = self.subscriptions.get(name)  # somebody was faster while we waited
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
        """*consumer* is gone; what it had goes to the others."""
        subscription = consumer.subscription
        if subscription is None:
            return
        subscription.remove_consumer(consumer)
        self.last_active_ms = self._clock.wall_ms()
        self._drop_if_unused(subscription)

    def _drop_if_unused(self, subscription: Subscription) -> None:
        """Readers leave nothing behind."""
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
            raise broker_error(error) from error
        subscription.close()
        self.subscriptions.pop(name, None)
        self.last_active_ms = self._clock.wall_ms()

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
        """Deliver from *position* on; consumers are disconnected and come back. Raises BrokerError."""
        for consumer in subscription.consumers:
            consumer.sink.on_consumer_closed(consumer)
        try:
            await subscription.reset_to(position, ack_set, batch_size)
        except ManagedLedgerError as error:
            raise broker_error(error) from error
        finally:
            self._drop_if_unused_later(subscription)

    def _drop_if_unused_later(self, subscription: Subscription) -> None:
        """A reader that seeks is disconnected for a moment; it keeps its place until it is back, or is not."""
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
            raise broker_error(error) from error
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
            raise broker_error(error) from error
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
        if self.deduplication_enabled and self._deduplication is None and not self.name.is_system:
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
                    if not entries:  # what is under way now is noted when it is durable
                        break
            except ManagedLedgerError as error:
                raise broker_error(error) from error
            self._deduplication, self._deduplication_cursor = state, cursor
        elif not self.deduplication_enabled and self._deduplication is not None:
            self._deduplication = self._deduplication_cursor = None
            await self._delete_deduplication_cursor()
        elif not self.deduplication_enabled and DEDUPLICATION_CURSOR in self.ledger.cursors:
            await self._delete_deduplication_cursor()

    async def _delete_deduplication_cursor(self) -> None:
        """A cursor that nobody moves would hold back trimming for ever."""
        try:
            await self.ledger.delete_cursor(DEDUPLICATION_CURSOR)
        except ManagedLedgerError as error:
            raise broker_error(error) from error

    def snapshot_deduplication(self) -> None:
        """Store the sequence ids with the position of the last confirmed entry."""
        if self._deduplication is None or self._deduplication_cursor is None or self.is_closed:
            return
        self.last_snapshot_s = self._clock.monotonic()
        self._deduplication_cursor.mark_delete(self.ledger.last_confirmed, self._deduplication.snapshot())

    # -------------------------------------------------------------------------------- time and policies

    def tick(self) -> None:
        """What time makes due: a snapshot of the sequence ids, producers to be forgotten."""
        config, deduplication = self._config, self._deduplication
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
        async with self._admission:
            await self._apply_deduplication()

    def take_rates(self, period_s: float) -> None:
        """Work out the rates of the period that ends now."""
        for producer in self.producers.values():
            producer.take_rates(period_s)
        for subscription in self.subscriptions.values():
            for consumer in subscription.consumers:
                consumer.take_rates(period_s)

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
            raise broker_error(error) from error
        for producer in list(self.producers.values()):
            self._send_away(producer)
        for subscription in self.subscriptions.values():
            subscription.tell_the_end()
        return last

    async def close(self) -> None:
        """Let go in order: what is under way is answered, clients are told to look up again, cursors and sequence
        ids are stored."""
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
        """The topic is not ours any more: no receipt and no write from here on (ownership rule 3)."""
        if not self.is_closed:
            self._disconnect_all()
            self.ledger.fence(ManagedLedgerFenced(f"{self.name}: {reason}"))

    async def finish(self) -> None:
        """Let go of what an abandoned topic still holds."""
        await self._after_drop()
        await self._tasks.cancel()
        self._untie()

    async def delete(self) -> None:
        """Remove the topic with all its data; its clients are disconnected. Raises BrokerError."""
        self._disconnect_all()
        try:
            await self.ledger.delete()
        except ManagedLedgerError as error:
            raise broker_error(error) from error
        finally:
            await self._tasks.cancel()
            self._untie()

    def _untie(self) -> None:
        """Nothing below points back here any more: a topic that has ended goes at once, with all that it held, and not
        when the collector comes by."""
        self.ledger.forget_owner()
        self._stop_watching = _do_nothing

    def _disconnect_all(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._answered.ring()
        self._host.is_closed = True
        self._stop_watching()
        if self._withheld_timer is not None:
            self._withheld_timer.cancel()
        for _, _, contexts in self._withheld:
            self._forget(contexts)
        self._withheld.clear()
        for producer in list(self.producers.values()):
            self._send_away(producer)
        for subscription in self.subscriptions.values():
            for consumer in subscription.disconnect_consumers():
                consumer.sink.on_consumer_closed(consumer)
            subscription.close()


def _do_nothing() -> None: ...


def broker_error(error: ManagedLedgerError) -> BrokerError:
    """How a client is told about *error*."""
    if isinstance(error, ManagedLedgerTerminated):
        return TopicTerminated(str(error))
    if isinstance(error, RecordUnreadable):
        return TopicUnreadable(str(error))
    if isinstance(error, StorageUnavailable):
        return StorageFailure(str(error))
    if isinstance(error, ManagedLedgerFenced):
        return NotReady(str(error))
    return StorageFailure(str(error))


def _is_last_chunk(send: Send) -> bool:
    """All chunks of a message have its sequence id, so only the last one is checked and noted."""
    try:
        metadata = parse_metadata(send.entry)
    except Corruption:
        return True
    return metadata.chunk_id == metadata.num_chunks_from_msg - 1


def _stored_epoch(properties: Mapping[str, str]) -> int | None:
    text = properties.get(EPOCH_PROPERTY)
    return int(text) if text is not None and text.isdigit() else None


def _send_error(producer: Producer, sequence_id: int, error: int, message: str) -> bytes:
    return command(
        wire.BaseCommand.SEND_ERROR,
        producer_id=producer.producer_id,
        sequence_id=sequence_id % 2**64,
        error=error,
        message=message,
    )
