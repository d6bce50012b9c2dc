"""Exclusive and Failover: one consumer gets all entries. No IO and no clock."""

from collections.abc import Callable, Collection, Sequence

from broker.errors import ConsumerBusy
from broker.topic.clients.batch_sizes import BatchSizes
from broker.topic.clients.consumer import Consumer
from broker.topic.dispatchers.active import OrderedConsumers
from broker.topic.dispatchers.dispatcher import Average, DispatchLimits, Held, Read, count_bits, facts_of, is_chunk
from broker.topic.dispatchers.kinds import DispatchedTopic
from broker.topic.ports import CursorPort, Entries, Room
from managed_ledger.position import Position


class SingleActiveDispatcher:
    """Exclusive and Failover: all entries go to one active consumer, in order."""

    is_in_order = True
    unacked_messages = 0
    held = Held()
    key_shared = None

    def __init__(
        self,
        topic: DispatchedTopic,
        cursor: CursorPort,
        limits: DispatchLimits,
        now_ms: Callable[[], int],
        *,
        is_failover: bool,
    ) -> None:
        self._ordered = OrderedConsumers(is_failover=is_failover, topic=topic.name, partition=topic.partition)
        self.consumers = self._ordered.all
        self.batch_sizes = BatchSizes()
        self.active: Consumer | None = None
        self._cursor = cursor
        self.limits = limits
        self._is_failover = is_failover
        self._now_ms = now_ms
        # A consumer that has become active is sent nothing before this time: acks of the former one may be under way.
        self._active_from_ms: int | None = None
        self._average = Average()

    def check_newcomer(self, consumer: Consumer) -> None:
        if self.consumers and not self._is_failover:
            raise ConsumerBusy("Exclusive consumer is already connected")

    def add(self, consumer: Consumer) -> None:
        consumer.sends_epoch = consumer.epoch is not None
        self._ordered.add(consumer)
        if not self._choose() and self._is_failover:
            consumer.sink.on_active_change(consumer, False)

    def remove(self, consumer: Consumer) -> None:
        if consumer in self._ordered:
            self._ordered.remove(consumer)
            self._choose()

    def _choose(self) -> bool:
        """Choose the active consumer; returns whether it changed."""
        former_active = self.active
        self.active = self._ordered.active()
        if self.active is former_active:
            return False
        if self.active is None:
            self._active_from_ms = None
        elif self._is_failover and self.limits.failover_delay_ms > 0:
            if self._active_from_ms is None:
                self._active_from_ms = self._now_ms() + self.limits.failover_delay_ms
        else:
            self._activate()
        return True

    def _activate(self) -> None:
        self._active_from_ms = None
        self._cursor.rewind()
        if self._is_failover:
            for consumer in self.consumers:
                consumer.sink.on_active_change(consumer, consumer is self.active)

    def wake(self, consumer: Consumer) -> None:
        pass  # there is one to look at

    def take_served(self) -> Collection[Consumer]:
        return () if self.active is None else (self.active,)

    def next_timer_ms(self) -> int | None:
        return self._active_from_ms

    def next_read(self) -> Read | None:
        """What the active consumer takes next; None: there is none, or it takes nothing now."""
        if self._active_from_ms is not None:
            if self._now_ms() < self._active_from_ms:
                return None
            self._activate()
        active = self.active
        if active is None or not active.is_available or not self._cursor.has_more():
            return None
        room_bytes = active.sink.room_bytes
        if room_bytes <= 0:
            return None
        entries_max = self._average.entries_for(active.permits, self.limits.read_entries_max)
        return Read(None, entries_max, min(self.limits.read_bytes_max, room_bytes))

    def room_of_reads(self) -> Room | None:
        return None if self.active is None else self.active.sink

    def on_entries(self, read: Read, entries: Entries) -> None:
        """Send all entries to the active consumer."""
        active = self.active
        if active is None or self._active_from_ms is not None:
            return  # the next active consumer begins with a rewind and reads these entries again
        messages_before = active.messages_out
        for entry in entries:
            facts = facts_of(entry)
            position = entry.position
            if facts.is_marker:
                self._cursor.delete([position])
                continue
            messages, ack_set = facts.messages, None
            if self.limits.batch_index_acks and facts.messages > 1:
                self.batch_sizes.note(position, facts.messages)
                ack_set = self._cursor.batch_ack_set(position)
                if ack_set is not None:
                    messages = count_bits(ack_set)
            active.send(position, entry.data, messages, 0, ack_set)
            if is_chunk(facts):
                active.chunks_out += 1
        self._average.note(len(entries), active.messages_out - messages_before)

    def on_acked(self, position: Position, remaining_messages: int) -> None:
        pass  # nothing is kept for each entry here

    def on_acked_up_to(self, position: Position) -> None:
        pass

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver everything unacknowledged again, whichever *positions* are named: the order must be kept."""
        if epoch is not None:
            consumer.epoch = epoch
            consumer.sends_epoch = True
        if consumer is self.active and self._active_from_ms is None:
            self._cursor.rewind()

    def use_limits(self, limits: DispatchLimits) -> None:
        self.limits = limits

    def use_cursor(self, cursor: CursorPort) -> None:
        self._cursor = cursor
