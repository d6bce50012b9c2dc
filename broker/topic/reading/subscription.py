"""One subscription: a cursor, its consumers and their requests. No IO.

Rules:

1. The type is that of the connected consumers; with none connected the next consumer decides.
2. While the subscription is fenced (seek, delete) nobody joins and nothing is read.
3. After every event the pump runs: it reads and dispatches until no consumer can take more, no entry is left, or a
   cold read is under way. So no event leaves a consumer with permits and backlog waiting.
4. An exception while dispatching loses no message. Which entries were sent before it cannot be known, so all
   consumers are disconnected; their clients reconnect with growing delays, and everything unacknowledged is delivered
   again.
5. Entries are read only if there is room for them: at the consumers' connections, and in the broker's budget for what
   is read and not sent yet. Without room the subscription queues for it behind other subscriptions. A client whose
   connection is idle gets one entry all the same, so that clients that read never wait for clients that do not.
6. A read that has failed is tried again after a pause that grows, and nothing brings it before: entries that are lost
   would be asked for thousands of times a second, since what goes on at the topic runs the pump.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from broker.errors import ConsumerBusy, MetadataFailure, NotAllowed, NotReady
from broker.topic.clients.batch_sizes import BatchSizes
from broker.topic.clients.consumer import NOTHING_COUNTED, Consumer, Counted
from broker.topic.clients.leaving import Leaving, Steps, by_turns
from broker.topic.compaction.compacted_view import CompactedCursor, CompactedView
from broker.topic.dispatchers.dispatcher import Dispatcher, DispatchLimits, Read, count_bits
from broker.topic.dispatchers.key_shared import KeySharedDispatcher, make_selector
from broker.topic.dispatchers.shared import SharedDispatcher
from broker.topic.dispatchers.single_active import SingleActiveDispatcher
from broker.topic.ports import NOT_KNOWN, CursorPort, Entries, Host, LedgerPort, NextBroker
from broker.topic.rates.averages import Rates
from broker.topic.rates.resource_group import Membership, ResourceGroup
from broker.topic.rates.throttling import DispatchThrottle
from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.types import Cancellable
from managed_ledger.errors import InvalidPosition
from managed_ledger.messages import BATCH_MESSAGES_MAX
from managed_ledger.messages_pb2 import MessageIdData
from managed_ledger.position import EARLIEST, Position, named_position

# Reads that one event may cause before others get their turn on the loop: 10 × 100 entries are about 10 ms.
READS_PER_EVENT_MAX: Final = 10

# Message ids in one ack. Clients group about a thousand; each takes a few microseconds on the loop.
ACK_IDS_MAX: Final = 20_000

# How long to wait after a cold read has failed; doubles from the first to the last. Bookies restart in seconds.
READ_RETRY_FIRST_MS: Final = 100
READ_RETRY_LAST_MS: Final = 5_000

# What the cursor of a replicated subscription has among its numbers, with the value 1.
REPLICATED: Final = "pulsar.replicated.subscription"

SINGLE_ACTIVE: Final = frozenset({wire.CommandSubscribe.Exclusive, wire.CommandSubscribe.Failover})
_Type = wire.CommandSubscribe.SubType


class KeySharedPolicy:
    """How a Key_Shared consumer wants the keys to be distributed."""

    __slots__ = ("allows_out_of_order", "is_sticky")

    def __init__(self, is_sticky: bool = False, allows_out_of_order: bool = False) -> None:
        self.is_sticky = is_sticky
        self.allows_out_of_order = allows_out_of_order


class Subscription:
    """A subscription of a topic."""

    def __init__(
        self,
        name: str,
        cursor: CursorPort,
        ledger: LedgerPort,
        host: Host,
        limits: DispatchLimits,
        *,
        topic: str,
        partition: int = -1,
        consistent_hashing: bool = True,
        points: int = 100,
        consumers_max: int = 0,
        throttles: tuple[DispatchThrottle, DispatchThrottle] | None = None,
        membership: Membership | None = None,
    ) -> None:
        """*throttles*: the rates of the topic and of this subscription; *membership*: the topic's in a resource
        group."""
        self.name = name
        self._dispatching = f"dispatching of {name}"
        self.cursor = cursor
        self.limits = limits
        self.consumers_max = consumers_max
        self.throttles = throttles or (DispatchThrottle(), DispatchThrottle())
        self._membership = membership or Membership()
        self._reserved: tuple[ResourceGroup, int, int] | None = None
        """What the read that is under way may dispatch, in messages and bytes of the group."""
        self.last_active_ms = host.now_ms()
        """When a consumer last came or left."""
        self.is_fenced = False
        self.type: int | None = None
        self.properties: Mapping[str, str] = {}
        self._ledger = ledger
        self._host = host
        self._topic = topic
        self._partition = partition
        self._consistent_hashing = consistent_hashing
        self._points = points
        self._dispatcher: Dispatcher | None = None
        self._leaving = Leaving()
        self._share = host.unacked.share(self._resume)
        self._is_reading = False
        self.is_replaying = False
        """Whether entries that were delivered before are read from the bookies again."""
        self.waits_for_room = False
        self._timer: Cancellable | None = None
        self._timer_at_ms = 0
        self._retry_ms = 0
        self._retry: Cancellable | None = None  # rule 6
        self._messages_per_entry = 1.0
        self.rates = Rates(6, host.now_ms())
        """Those of `counted`, and entries expired."""
        self._gone = NOTHING_COUNTED
        """What went to consumers that have left."""
        self.entries_read = 0
        self.entries_read_cold = 0
        """Those of them that memory did not have."""
        self.reads_failed = 0
        self.last_consumed_ms = 0
        self.last_advanced_ms = 0
        """When the mark-delete position last moved by an acknowledgement."""
        self.last_acked_ms = 0
        self.last_flow_ms = 0
        self.expired_entries = 0
        self.last_expired_ms = 0

    # -------------------------------------------------------------------------------- consumers

    @property
    def consumers(self) -> list[Consumer]:
        return [] if self._dispatcher is None else self._dispatcher.consumers

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
        return self.is_durable and self.cursor.mark_delete_position < self._ledger.previous_position(EARLIEST)

    @property
    def mark_delete_position(self) -> Position:
        return self.cursor.mark_delete_position

    @property
    def active_consumer(self) -> Consumer | None:
        """The consumer that gets all entries; None for Shared and Key_Shared."""
        return self._dispatcher.active if isinstance(self._dispatcher, SingleActiveDispatcher) else None

    @property
    def keeps_batch_index_acks(self) -> bool:
        """Whether an acknowledgement of a part of a batch is kept."""
        return self.limits.batch_index_acks

    @property
    def type_name(self) -> str:
        return "" if self.type is None else _Type.Name(self.type)

    def check_newcomer(self, consumer: Consumer, kind: int, policy: KeySharedPolicy) -> None:
        """Raises NotReady, ConsumerBusy, ConsumerAssignError if *consumer* cannot join; changes nothing."""
        if self.is_fenced:
            raise NotReady(f"Subscription {self.name} is fenced")
        if not self.consumers or self._dispatcher is None:
            return
        check_same_kind(self.type, kind)
        if isinstance(self._dispatcher, KeySharedDispatcher):
            present = KeySharedPolicy(self._dispatcher.is_sticky, self._dispatcher.allows_out_of_order)
            check_same_policy(present, policy)
        if self.consumers_max and len(self.consumers) >= self.consumers_max:
            raise ConsumerBusy("Subscription reached max consumers limit")
        self._dispatcher.check_newcomer(consumer)

    def add_consumer(self, consumer: Consumer, kind: int, policy: KeySharedPolicy) -> None:
        """Attach *consumer*; it gets nothing before its first permits. Raises as `check_newcomer`."""
        self.check_newcomer(consumer, kind, policy)
        if not self.consumers or self._dispatcher is None:
            self._dispatcher = self._make_dispatcher(kind, policy)
            self.type = kind
        self._dispatcher.add(consumer)
        consumer.subscription = self
        self.last_active_ms = self._host.now_ms()
        self.pump()

    def _make_dispatcher(self, kind: int, policy: KeySharedPolicy) -> Dispatcher:
        if kind in SINGLE_ACTIVE:
            return SingleActiveDispatcher(
                self.cursor,
                self.limits,
                is_failover=kind == wire.CommandSubscribe.Failover,
                topic=self._topic,
                partition=self._partition,
                now_ms=self._host.now_ms,
            )
        if kind == wire.CommandSubscribe.Shared:
            return SharedDispatcher(self._topic, self.cursor, self.limits, self._host.now_ms, self._share)
        selector = make_selector(
            is_sticky=policy.is_sticky, consistent_hashing=self._consistent_hashing, points=self._points
        )
        return KeySharedDispatcher(
            self._topic,
            self.cursor,
            self.limits,
            self._host.now_ms,
            self._share,
            selector,
            is_sticky=policy.is_sticky,
            allows_out_of_order=policy.allows_out_of_order,
        )

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach *consumer*; entries that it did not acknowledge go to the other consumers."""
        self.last_active_ms = self._host.now_ms()
        if consumer in self._leaving:
            self._leaving.remove(consumer)
            self._has_left(consumer)
        elif self._dispatcher is not None and consumer in self._dispatcher.consumers:
            self._has_left(consumer)
            self._dispatcher.remove(consumer)
            # The pump runs in the next turn of the loop: when a connection breaks, hundreds of its consumers leave in
            # this turn, and the entries of one must not be sent to another that leaves a moment later.
            self._arm(self._host.now_ms())

    def read_compacted(self, view: CompactedView) -> None:
        """Consumers that want it get what compaction kept, from now on."""
        if not isinstance(self.cursor, CompactedCursor):
            self.cursor = CompactedCursor(self.cursor, view, self._wants_compacted)
            if self._dispatcher is not None:
                self._dispatcher.use_cursor(self.cursor)

    def _wants_compacted(self) -> bool:
        active = self.active_consumer
        return active is not None and active.read_compacted

    def check_may_unsubscribe(self, consumer: Consumer) -> None:
        """Raises MetadataFailure unless *consumer* is the only one."""
        if self.consumers != [consumer]:
            raise MetadataFailure("Unconnected or shared consumer attempting to unsubscribe")

    def apply_limits(self, limits: DispatchLimits) -> None:
        """The namespace's policies changed."""
        self.limits = limits
        if self._dispatcher is not None:
            self._dispatcher.use_limits(limits)
            self.pump()

    # -------------------------------------------------------------------------------- requests

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.last_flow_ms = self.last_flow_ms = self._host.now_ms()
        consumer.add_permits(permits)
        self.resume((consumer,))

    def resume(self, consumers: Iterable[Consumer]) -> None:
        """*consumers* have permits, or room in their connections, again."""
        dispatcher = self._dispatcher
        if dispatcher is not None:
            for consumer in consumers:
                dispatcher.wake(consumer)
        self.pump()

    def check_ack(self, ack: wire.CommandAck) -> None:
        """Raises InvalidPosition for an ack of which `acknowledge` applies nothing, whatever the cursor is."""
        _positions_of(ack)

    def acknowledge(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        """Apply an ack. Raises NotReady where all consumers have to leave: what they acknowledge now may not be kept.

        Ids of entries that do not exist are ignored in individual acks: they may have been trimmed. Raises
        InvalidPosition for malformed ids (`named_position`) and for a cumulative ack beyond the end; nothing of the
        ack is applied then.
        """
        if self._dispatcher is None:
            raise NotReady(f"The consumers of {self.name} are being closed")
        now_ms = self._host.now_ms()
        consumer.last_acked_ms = self.last_acked_ms = now_ms
        before = self.cursor.mark_delete_position
        if ack.ack_type == wire.CommandAck.Cumulative:
            self._acknowledge_up_to(consumer, ack)
        else:
            if not consumer.read_compacted:
                self.cursor.leave_trimmed()
            self._acknowledge_single(consumer, ack)
        if self.cursor.mark_delete_position != before:
            self.last_advanced_ms = now_ms
        if self._ledger.is_terminated:
            self.tell_the_end()
        if consumer.permits > 0 or len(self.consumers) > 1:
            self.pump()  # the ack may have unblocked a consumer or freed a key

    def clear_up_to(self, position: Position) -> int:
        """Acknowledge everything up to *position* for all consumers, which stay; how many entries that were."""
        before = self.cursor.backlog()
        self.cursor.mark_delete(position)
        if self._dispatcher is not None:
            self._dispatcher.on_acked_up_to(position)
            self.pump()
        return before - self.cursor.backlog()

    def _acknowledge_single(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        done: list[Position] = []
        dispatcher = self._dispatcher
        before = dispatcher.unacked_messages if isinstance(dispatcher, SharedDispatcher) else 0
        for position, message_id in zip(_positions_of(ack), ack.message_id, strict=True):
            if not message_id.ack_set:
                done.append(position)
                continue
            if not self.limits.batch_index_acks:
                continue  # the client acks the whole entry once its batch is complete
            words = list(message_id.ack_set)
            size = self._batch_size(position, words, message_id.batch_size)
            if size is None:
                continue
            self.cursor.acknowledge_batch(position, words, size)
            left = self.cursor.batch_ack_set(position)
            # If neither is so, the cursor keeps no part of this batch: it stays with its consumer as a whole.
            if dispatcher is not None and (left is not None or self.cursor.is_deleted(position)):
                dispatcher.on_acked(position, count_bits(left or ()))
        if done:
            self.cursor.delete(done)
            if dispatcher is not None:
                for position in done:
                    dispatcher.on_acked(position, 0)
        # Where every message that was sent is remembered, those of batches are counted one by one.
        if isinstance(dispatcher, SharedDispatcher):
            consumer.acked_messages += before - dispatcher.unacked_messages
        else:
            consumer.acked_messages += len(ack.message_id)

    def _acknowledge_up_to(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        if self.type not in SINGLE_ACTIVE or len(ack.message_id) != 1:
            return  # several consumers share the entries: a cumulative ack has no meaning and must not move the cursor
        message_id = ack.message_id[0]
        position = _checked(message_id)
        if message_id.ack_set:
            # Beyond the end, the position before it would be the last entry of the topic.
            self._ledger.check_within(position)
            self.cursor.mark_delete(_position_before(self._ledger, position))
            if self.limits.batch_index_acks:
                words = list(message_id.ack_set)
                size = self._batch_size(position, words, message_id.batch_size)
                if size is not None:
                    self.cursor.acknowledge_batch(position, words, size)
        else:
            self.cursor.mark_delete(position)
        consumer.acked_messages += 1

    def _batch_size(self, position: Position, words: Sequence[int], claimed: int) -> int | None:
        """How many messages the batch has; None: this part of the ack is ignored
        (`broker.topic.clients.batch_sizes`)."""
        sizes = BatchSizes() if self._dispatcher is None else self._dispatcher.batch_sizes
        return sizes.size(position, claimed or _highest_bit(words))

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver again: *positions*, or everything *consumer* has not acknowledged."""
        if self._dispatcher is not None and consumer not in self._leaving:
            self._dispatcher.redeliver(consumer, positions, epoch)
            self.pump()

    def begin_anew(self, consumer: Consumer, epoch: int | None) -> None:
        """The client of *consumer* has emptied its queue: it has no permits, and what it holds is delivered again."""
        consumer.last_flow_ms = 0
        consumer.permits = 0
        self.redeliver(consumer, None, epoch)

    def detach_consumers(self) -> None:
        """All consumers are out, at once, with what was delivered to them; their clients are not told yet."""
        self._leaving.add(self.consumers)
        self._dispatcher = None
        self._settle(0, 0)
        self._share.clear()

    def tell_detached(self, next_broker: NextBroker = NOT_KNOWN) -> Steps:
        """Tell the clients of detached consumers, which subscribe again by themselves, at *next_broker*; one with each
        step."""
        return self._leaving.tell(self._has_left, next_broker)

    def _has_left(self, consumer: Consumer) -> None:
        self._gone = self._gone.plus(consumer.counted)

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
            await announce(by_turns(self.tell_detached()))
            await self.cursor.reset(position)
            self._end_pause()
            if ack_set and self.limits.batch_index_acks:
                size = self._batch_size(position, ack_set, batch_size)
                if size is not None:
                    self.cursor.acknowledge_batch(position, ack_set, size)
            if check is not None:
                await check()
        finally:
            self.is_fenced = False

    # -------------------------------------------------------------------------------- the pump

    def pump(self) -> None:
        """Rule 3. Never raises: an exception would reach the caller whose event started the pump."""
        if not self._host.guard(self._pump, self._dispatching):
            self._disconnect_after_failure()

    def _disconnect_after_failure(self) -> None:
        """Rule 4. The dispatcher is dropped, since its state may be inconsistent."""
        self.detach_consumers()
        self.cursor.rewind()
        self._announce_some(by_turns(self.tell_detached()))

    def _announce_some(self, steps: Steps) -> None:
        if next(steps, self) is None:
            self._host.call_later(0, lambda: self._announce_some(steps))

    def _pump(self) -> None:
        dispatcher = self._dispatcher
        self.waits_for_room = False
        if dispatcher is None or self._is_reading or self.is_fenced or self._retry is not None:
            return
        for _ in range(READS_PER_EVENT_MAX):
            read = dispatcher.next_read()
            if read is None:
                self._set_timer()
                return
            group = self._limiting_group
            if group is not None or self._is_throttled:
                now_ms = self._host.now_ms()
                wait_ms = max(throttle.wait_ms(now_ms) for throttle in self.throttles)
                if wait_ms > 0:
                    self._arm(now_ms + math.ceil(wait_ms))
                    return
                if group is not None and not group.may_dispatch(self, self.pump):
                    return
                read = self._within_rates(read, now_ms, group)
            room = dispatcher.room_of_reads()
            room_bytes = self._host.read_room_bytes
            if room_bytes <= 0:
                if room is None or not room.is_idle:  # rule 5
                    self._host.when_read_room(self, self.pump)
                    self.waits_for_room = True
                    return
                read = read._replace(entries_max=1)
            elif room_bytes < read.bytes_max:
                read = read._replace(bytes_max=room_bytes)
            if group is not None:
                assert self._reserved is None, f"{self.name}: two reads reserve at the same time"
                messages = math.ceil(read.entries_max * self._messages_per_entry)
                self._reserved = (group, messages, read.bytes_max)
                group.reserve(messages, read.bytes_max)
            answer = self._read(read)
            if not isinstance(answer, Sequence):
                self._is_reading = True
                self.is_replaying = read.first is not None
                self._host.fetch(answer, self._on_fetched(dispatcher, read), read.bytes_max, room)
                return
            self._on_entries(dispatcher, read, answer)
            if not answer and read.first is None:
                self._set_timer()
                return
        self._arm(self._host.now_ms())

    def _read(self, read: Read) -> Entries | Awaitable[Entries]:
        if read.first is None:
            return self.cursor.read(read.entries_max, read.bytes_max)
        return self.cursor.read_again(read.first, read.entries_max, read.bytes_max)

    def _on_fetched(self, dispatcher: Dispatcher, read: Read) -> Callable[[Entries | None], None]:
        def done(entries: Entries | None) -> None:
            self._is_reading = self.is_replaying = False
            if entries is None:
                self._settle(0, 0)
                self.reads_failed += 1
                self._retry_ms = min(max(self._retry_ms * 2, READ_RETRY_FIRST_MS), READ_RETRY_LAST_MS)
                self._retry = self._host.call_later(self._retry_ms, self._try_again)
                return
            self._retry_ms = 0
            self.entries_read_cold += len(entries)
            if dispatcher is self._dispatcher and not self.is_fenced and not self._is_overtaken(read, entries):
                fetched = entries
                if not self._host.guard(lambda: self._on_entries(dispatcher, read, fetched), self._dispatching):
                    self._disconnect_after_failure()
                    return
            self._settle(0, 0)  # what a dropped read reserved
            self.pump()
            if not entries and self._ledger.is_terminated:  # the compacted ledger had nothing more
                self.tell_the_end()

        return done

    def _is_overtaken(self, read: Read, entries: Entries) -> bool:
        """Whether the cursor was rewound after *entries* were read and before they are dispatched.

        Then they are dropped: the cursor reads them again, after the entries before them.
        """
        return read.first is None and bool(entries) and self.cursor.read_position <= entries[-1].position

    @property
    def _is_throttled(self) -> bool:
        return any(throttle.is_on for throttle in self.throttles) and self._rates_hold

    @property
    def _limiting_group(self) -> ResourceGroup | None:
        group = self._membership.group
        return group if group is not None and group.limits_dispatch and self._rates_hold else None

    @property
    def _rates_hold(self) -> bool:
        """Whether the rates hold for this subscription, which may be about at the end."""
        limits = self.limits
        return limits.throttles_caught_up or self.cursor.unread() > limits.backlogged_entries

    def _within_rates(self, read: Read, now_ms: int, group: ResourceGroup | None) -> Read:
        """*read*, cut to what may be dispatched now; at least one entry."""
        rooms = [throttle.room(now_ms) for throttle in self.throttles]
        if group is not None:
            rooms.append(group.room())
        for messages, size in rooms:
            if messages is not None:
                entries = max(int(messages / self._messages_per_entry), 1)
                read = read._replace(entries_max=min(read.entries_max, entries))
            if size is not None:
                read = read._replace(bytes_max=max(min(read.bytes_max, size), 1))
        return read

    def _on_entries(self, dispatcher: Dispatcher, read: Read, entries: Entries) -> None:
        is_throttled = self._is_throttled
        dispatcher.on_entries(read, entries)
        now_ms = self._host.now_ms()
        messages = size_bytes = 0
        for consumer in dispatcher.take_served():
            sent, sent_bytes = consumer.note_sent(now_ms)
            messages, size_bytes = messages + sent, size_bytes + sent_bytes
        if entries:
            self.entries_read += len(entries)
            self.last_consumed_ms = now_ms
        group = self._membership.group
        if group is None and self._reserved is None and not is_throttled:
            return
        if is_throttled:
            for throttle in self.throttles:
                throttle.spend(messages, size_bytes, now_ms)
        if group is not None:
            group.count_dispatched(messages, size_bytes)
        self._settle(messages, size_bytes)
        if entries and messages:
            self._messages_per_entry = max(messages / len(entries), 1.0)

    def _settle(self, messages: int, size_bytes: int) -> None:
        """So much of what was reserved was dispatched; the rest is free again."""
        if self._reserved is not None:
            (group, *reserved), self._reserved = self._reserved, None
            group.settle((reserved[0], reserved[1]), messages, size_bytes)

    def change_group(self, before: ResourceGroup | None) -> None:
        """The topic is in another resource group than *before*."""
        if before is not None:
            before.forget(self)
        self.pump()

    def _set_timer(self) -> None:
        at_ms = None if self._dispatcher is None else self._dispatcher.next_timer_ms()
        if at_ms is not None:
            self._arm(at_ms)

    def _arm(self, at_ms: int) -> None:
        """Run the pump at *at_ms* (wall clock) at the latest. There is one timer; the earliest time counts."""
        if self._timer is not None:
            if self._timer_at_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = at_ms
        self._timer = self._host.call_later(max(at_ms - self._host.now_ms(), 0), self._on_timer)

    def _resume(self) -> None:
        """The broker has room for its messages again. In the next turn: somebody else's acknowledgement is at work."""
        if not self.is_fenced:
            self._arm(self._host.now_ms())

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    def _try_again(self) -> None:
        self._retry = None
        self.pump()

    def _end_pause(self) -> None:
        """What is read next is not what could not be read."""
        self._retry_ms = 0
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def close(self) -> None:
        """Start no more reads and timers; all consumers are out."""
        self.is_fenced = True
        self.detach_consumers()
        if self._membership.group is not None:
            self._membership.group.forget(self)
        self._share.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -------------------------------------------------------------------------------- what is to be seen

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

    def tell_the_end(self) -> None:
        """Tell consumers, each once, that the terminated topic holds nothing more for them."""
        if self.cursor.backlog() or (isinstance(self.cursor, CompactedCursor) and self.cursor.has_open):
            return
        for consumer in self.consumers:
            if not consumer.was_told_the_end:
                consumer.was_told_the_end = True
                consumer.sink.on_end_of_topic(consumer)

    @property
    def unacked_messages(self) -> int:
        return sum(consumer.unacked_messages for consumer in self.consumers)

    @property
    def delayed_messages(self) -> int:
        """Entries that wait for their time, as far as they were read."""
        return self._dispatcher.delayed_messages if isinstance(self._dispatcher, SharedDispatcher) else 0

    @property
    def replayed_messages(self) -> int:
        """Entries that were read and wait for a consumer that can take them."""
        return self._dispatcher.replayed_messages if isinstance(self._dispatcher, SharedDispatcher) else 0

    @property
    def is_reading(self) -> bool:
        """Whether entries are read from the bookies."""
        return self._is_reading

    @property
    def is_waiting(self) -> bool:
        """Whether a consumer could take an entry, and there is none left to read."""
        return any(consumer.is_available for consumer in self.consumers) and not self.cursor.has_more()

    @property
    def key_shared(self) -> KeySharedPolicy | None:
        """How its keys are distributed; None unless it is Key_Shared."""
        dispatcher = self._dispatcher
        if not isinstance(dispatcher, KeySharedDispatcher):
            return None
        return KeySharedPolicy(dispatcher.is_sticky, dispatcher.allows_out_of_order)

    @property
    def is_blocked(self) -> bool:
        """Whether nothing is delivered before some of its messages are acknowledged."""
        return isinstance(self._dispatcher, SharedDispatcher) and self._dispatcher.is_blocked

    def hash_ranges(self) -> Mapping[Consumer, list[tuple[int, int]]]:
        """Key_Shared: consumer → the hashes that are its own, both ends included; empty for other types."""
        dispatcher = self._dispatcher
        return dispatcher.hash_ranges() if isinstance(dispatcher, KeySharedDispatcher) else {}

    def draining_hashes(self, consumer: Consumer) -> tuple[list[tuple[int, int, int]], int]:
        """Key_Shared: the hashes that *consumer* must finish before they move to another consumer, as (hash, entries
        left, blocked attempts); and how many it has finished."""
        dispatcher = self._dispatcher
        if not isinstance(dispatcher, KeySharedDispatcher):
            return [], 0
        return dispatcher.draining_hashes(consumer), dispatcher.drained_count(consumer)

    @property
    def is_stuck(self) -> bool:
        """Whether rule 3 is broken: a consumer could take an entry and no read or timer is under way (for tests)."""
        dispatcher = self._dispatcher
        if dispatcher is None or self._is_reading or self.is_fenced or self.waits_for_room:
            return False
        if self._timer is not None or self._retry is not None:
            return False
        if self._membership.group is not None and self._membership.group.is_waiting(self):
            return False
        return dispatcher.next_read() is not None


def check_same_kind(present: int | None, kind: int) -> None:
    """Raises ConsumerBusy unless a consumer of the type *kind* fits those that are there."""
    if kind != present:
        name = "" if present is None else _Type.Name(present)
        raise ConsumerBusy(
            f"Subscription is of different type. Active subscription type of '{name}' is different "
            f"than the connecting consumer's type '{_Type.Name(kind)}'."
        )


def check_same_policy(present: KeySharedPolicy, policy: KeySharedPolicy) -> None:
    """Raises ConsumerBusy unless a Key_Shared consumer distributes its keys as those that are there."""
    if (present.is_sticky, present.allows_out_of_order) != (policy.is_sticky, policy.allows_out_of_order):
        raise ConsumerBusy("The connected consumers share out their keys in another way")


def _position_before(ledger: LedgerPort, position: Position) -> Position:
    """The last position before this one, also in a ledger that was trimmed."""
    return min(ledger.previous_position(position), Position(position.ledger_id, max(position.entry_id, 0) - 1))


def _positions_of(ack: wire.CommandAck) -> list[Position]:
    """The positions that an ack names. Raises InvalidPosition for too many ids, and as `_checked`."""
    if len(ack.message_id) > ACK_IDS_MAX:
        raise InvalidPosition(f"an ack has {len(ack.message_id)} ids, and may have {ACK_IDS_MAX}; split it")
    return [_checked(message_id) for message_id in ack.message_id]


def _checked(message_id: MessageIdData) -> Position:
    """The position that an ack names. Raises InvalidPosition for a malformed id or an impossible batch."""
    position = named_position(message_id.ledgerId, message_id.entryId)
    words = len(message_id.ack_set)
    if words * 64 >= BATCH_MESSAGES_MAX + 64 or message_id.batch_size < 0:
        raise InvalidPosition(
            f"{position}: batch_size {message_id.batch_size} and an ack_set of {words} words: a batch has at most "
            f"{BATCH_MESSAGES_MAX} messages"
        )
    return position


def check_type(kind: int, allowed: frozenset[str], *, read_compacted: bool) -> None:
    """Raises NotAllowed for a subscription type that the namespace or this broker does not allow."""
    if allowed and _Type.Name(kind) not in allowed:
        raise NotAllowed(f"Subscription type {_Type.Name(kind)} is not enabled for this namespace")
    if read_compacted and kind not in SINGLE_ACTIVE:
        raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")


def _highest_bit(words: Sequence[int]) -> int:
    """The least size of a batch whose remaining messages are the set bits of *words*.

    Acks of Java clients do not tell the size; messages above the highest set bit are acknowledged in any case.
    """
    for at in range(len(words) - 1, -1, -1):
        if words[at]:
            return at * 64 + (words[at] & 0xFFFF_FFFF_FFFF_FFFF).bit_length()
    return 0
