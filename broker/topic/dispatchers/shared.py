"""Shared: entries go to the consumers in turn; the chunks of a message to one consumer. No IO and no clock."""

import logging
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from broker.topic.clients.batch_sizes import BatchSizes
from broker.topic.clients.consumer import Consumer, priority_of
from broker.topic.dispatchers.chunked import ChunkedMessage, ChunkedMessages
from broker.topic.dispatchers.delayed import LONGEST_STEP_MS, DelayedMessages
from broker.topic.dispatchers.dispatcher import (
    Average,
    DispatchLimits,
    Facts,
    Held,
    KeyShared,
    Read,
    count_bits,
    facts_of,
    is_chunk,
)
from broker.topic.dispatchers.ready import ReadyConsumers
from broker.topic.dispatchers.replay_set import ReplaySet
from broker.topic.ports import CursorPort, Entries, EntryLike, Room
from broker.topic.unacked import UnackedShare
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import Position

# Delayed messages that one subscription keeps in memory, 32 bytes each. Above it no new entries are read until some are
# due; unread entries stay in the ledger, and one of them may come late.
DELAYED_MAX: Final = 2_000_000

# Delayed messages whose time has come that are to be read at one time: as positions to be read they take ten times the
# room, and others join them.
WOKEN_MAX: Final = 10_000

# Positions that wait because the consumer of their key, or of their message's other chunks, is busy. Above it nothing
# new is read. (keySharedLookAheadMsgInReplayThresholdPerSubscription)
LOOK_AHEAD_MAX: Final = 20_000

log = logging.getLogger(__name__)


class SharedDispatcher:
    """Shared: entries go to the consumers in turn; each entry is tracked until it is acknowledged."""

    is_in_order = False
    active: Consumer | None = None

    def __init__(
        self, topic: str, cursor: CursorPort, limits: DispatchLimits, now_ms: Callable[[], int], share: UnackedShare
    ) -> None:
        """*share*: what the subscription has of the broker's unacknowledged messages."""
        self._topic = topic
        self.consumers: list[Consumer] = []
        self.batch_sizes = BatchSizes()
        self.redelivery_counts: dict[Position, int] = {}
        """How often entries were given back; those of the former dispatcher, where its last consumer left them."""
        self._cursor = cursor
        self.limits = limits
        self._now_ms = now_ms
        self._share = share
        self._owner_of: dict[Position, Consumer] = {}
        self._replay = ReplaySet()
        self._delayed = DelayedMessages()
        self._chunked = ChunkedMessages()
        self._stuck_keys: set[int | ChunkedMessage] = set()
        """Keys and messages in chunks of which an entry was held back in this call."""
        self._is_overtaken = False
        """Whether an entry at a lower position may have been given back since the last read was asked for."""
        self._nobody_takes = False
        """Whether only what is left of messages in chunks may be sent."""
        self._ready = ReadyConsumers()
        self._served: dict[Consumer, None] = {}
        self.unacked_messages = 0
        self._is_full = False
        """Whether the subscription has as many unacknowledged messages as it may have."""
        self._average = Average()

    # -------------------------------------------------------------------------------- consumers

    def check_newcomer(self, consumer: Consumer) -> None:
        pass

    def add(self, consumer: Consumer) -> None:
        if not self.consumers:
            self.reset()
            self._cursor.rewind()
        insort(self.consumers, consumer, key=priority_of)
        self._ready.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        """*consumer* leaves; what it has not acknowledged goes to the others."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self._ready.remove(consumer)
        self._served.pop(consumer, None)
        self._give_back(consumer, list(consumer.pending))
        if self._chunked:
            self._chunked.on_left(consumer)
        if not self.consumers:
            # The next consumer starts at the first unacknowledged entry. As in Apache's broker the redelivery counts
            # are dropped, but not for the topic API: a message that ends its worker would end the only one for ever.
            self.reset()
            if not consumer.keeps_counts:
                self.redelivery_counts.clear()

    def use_limits(self, limits: DispatchLimits) -> None:
        former_limits, self.limits = self.limits, limits
        # Another limit holds at once. Who waited for half of the former one may have nothing to acknowledge by itself.
        unacked_max = limits.unacked_per_consumer_max
        if unacked_max != former_limits.unacked_per_consumer_max:
            for consumer in self.consumers:
                consumer.is_blocked = 0 < unacked_max <= consumer.unacked_messages
                self.wake(consumer)
        unacked_max = limits.unacked_per_subscription_max
        if unacked_max != former_limits.unacked_per_subscription_max:
            self._is_full = 0 < unacked_max <= self.unacked_messages

    def use_cursor(self, cursor: CursorPort) -> None:
        self._cursor = cursor

    def reset(self) -> None:
        """Forget all entries that were read, but not how often they were delivered."""
        for consumer in self.consumers:
            consumer.pending.clear()
            consumer.unacked_messages = 0
            consumer.is_blocked = False
            self.wake(consumer)
        self._owner_of.clear()
        self._replay.clear()
        self._delayed.clear()
        self._chunked.clear()
        self.unacked_messages = 0
        self._is_full = False
        self._share.clear()

    def wake(self, consumer: Consumer) -> None:
        self._ready.wake(consumer)

    def take_served(self) -> Collection[Consumer]:
        served, self._served = self._served, {}
        return served

    # -------------------------------------------------------------------------------- reading

    def next_timer_ms(self) -> int | None:
        next_ms = self._delayed.next_ms
        if next_ms is None or not self.consumers:
            return None
        # What is due and still here waits for permits or for others to be read, which are events of their own: looking
        # again at once would use a processor up.
        at_ms, now_ms = next_ms - self._early_ms, self._now_ms()
        return at_ms if at_ms > now_ms else now_ms + LONGEST_STEP_MS

    @property
    def _early_ms(self) -> int:
        """How much too early a delayed message may be delivered."""
        return 0 if self.limits.delayed_strict else self.limits.delayed_tick_ms

    def _cutoff_ms(self) -> int:
        return self._now_ms() + self._early_ms

    @property
    def held(self) -> Held:
        return Held(len(self._delayed), len(self._replay), self.is_blocked)

    @property
    def key_shared(self) -> KeyShared | None:
        return None

    @property
    def is_blocked(self) -> bool:
        """Whether nothing is delivered before some messages are acknowledged."""
        return self._is_full or self._share.is_blocked

    def next_read(self) -> Read | None:
        """What to read next: first what is to be delivered again, then what the cursor has. None: nobody takes anything
        now."""
        self._is_overtaken = False
        if not self._replay and not self._delayed and not self._cursor.has_more():
            return None
        limits = self.limits
        permits_wanted = self._average.permits_for(limits.read_entries_max)
        available = [] if self.is_blocked else self._ready.choose_available(permits_wanted, limits.read_bytes_max)
        self._nobody_takes = not available
        if self._chunked:
            waiting = dict.fromkeys(owner for owner in self._chunked.unfinished_owners() if owner.can_be_sent)
            available = list({**dict.fromkeys(available), **waiting})
        budget = sum(consumer.permits for consumer in available)
        if budget <= 0:
            return None
        room_bytes = sum({consumer.sink: consumer.sink.room_bytes for consumer in available}.values())
        if room_bytes <= 0:
            return None
        bytes_max = min(room_bytes, limits.read_bytes_max)
        if self._delayed:
            self._wake_delayed()
        entries_max = self._average.entries_for(budget, self.limits.read_entries_max)
        if self._replay:
            read = self._replay_read(entries_max, bytes_max)
            if read is not None:
                return read
        if not self._may_read_on() or not self._cursor.has_more():
            return None
        return Read(None, entries_max, bytes_max)

    def room_of_reads(self) -> Room | None:
        return None  # entries that no consumer can take now are put into the replay set and read again

    def _replay_read(self, entries_max: int, bytes_max: int) -> Read | None:
        if self._chunked:
            return self._first_sendable_run(entries_max, bytes_max)
        first, _ = next(iter(self._replay))
        return Read(first, self._replay.run_from(first, entries_max), bytes_max)

    def _first_sendable_run(self, entries_max: int, bytes_max: int) -> Read | None:
        """The first run of what can be sent now; what waits for a busy consumer does not stop the others."""
        verdicts: dict[int | ChunkedMessage, bool] = {}
        first: Position | None = None
        count = 0
        chunked = self._chunked.at
        # Where nobody takes new entries, some may still take the rest of a message that they have begun.
        waiting = self._replay.members_of(self._chunked.waiting_at_owners()) if self._nobody_takes else self._replay
        for position, hash_ in waiting:
            message = chunked.get(position)
            bound = message if message is not None and message.is_bound else None
            key = hash_ if bound is None else bound
            is_sendable = verdicts.get(key)
            if is_sendable is None:
                is_sendable = self._can_be_sent(hash_) if bound is None else self._can_continue(bound, hash_)
                verdicts[key] = is_sendable
            if first is None:
                if is_sendable:
                    first, count = position, 1
            elif is_sendable and position == (first.ledger_id, first.entry_id + count) and count < entries_max:
                count += 1
            else:
                break
        return None if first is None else Read(first, count, bytes_max)

    def _can_be_sent(self, hash_: int) -> bool:
        """Whether a consumer can be sent an entry with this hash now."""
        return not self._nobody_takes

    def _can_continue(self, message: ChunkedMessage, hash_: int) -> bool:
        """Whether the next chunk of *message* can be sent now."""
        if message.is_lost:
            return True  # it is acknowledged when it is read
        return not message.delayed and message.owner is not None and self._owner_takes_more(message.owner, hash_)

    def _owner_takes_more(self, owner: Consumer, hash_: int) -> bool:
        """Whether *owner* can be sent the next chunk of a message that it has begun."""
        return owner.can_be_sent

    def _may_read_on(self) -> bool:
        if self._chunked and len(self._replay) >= LOOK_AHEAD_MAX:
            return False
        return len(self._delayed) < DELAYED_MAX and not self.is_paused_for_acks

    @property
    def is_paused_for_acks(self) -> bool:
        """Whether more runs of entries are acknowledged than the cursor stores (PIP-299). Acknowledgements that join
        them go on being taken, and what was delivered before is delivered again."""
        ranges_max = self.limits.unstored_ranges_max
        return ranges_max is not None and self._cursor.durable and self._cursor.range_count > ranges_max

    def _wake_delayed(self) -> None:
        for position, hash_ in self._delayed.take(self._cutoff_ms(), WOKEN_MAX - len(self._replay)):
            self._replay.add(position, hash_)
            if self._chunked:
                self._chunked.on_woken(position)

    def on_entries(self, read: Read, entries: Entries) -> None:
        """Give each entry to a consumer; put it into the replay set if nobody takes it now, or aside until its time
        comes."""
        self._stuck_keys.clear()
        if read.first is not None:
            if self._is_overtaken:
                return  # the entries stay in the replay set; the next read starts at the lowest position that can go
            self._drop_unreadable(read, entries)
        if not self.consumers:
            return  # the next consumer begins with a rewind
        self._ready.end_turn()
        unacked_before = self.unacked_messages
        self._nobody_takes = self.is_blocked
        for entry in entries:
            position = entry.position
            if read.first is not None and position not in self._replay:
                continue  # acknowledged or reset while the read was under way
            if self._cursor.is_deleted(position):
                self._forget(position)
                continue
            facts = facts_of(entry)
            if facts.is_marker:
                self._replay.discard(position)
                self._cursor.delete([position])
                continue
            message = None
            if facts.metadata is not None and is_chunk(facts):
                message = self._chunked.meet(position, facts.metadata)
                if message.is_lost:
                    self._skip(position, facts.metadata)
                    continue
            hash_ = self._hash_of(facts)
            if facts.deliver_at_ms and self.limits.delayed_delivery and facts.deliver_at_ms > self._cutoff_ms():
                self._replay.discard(position)
                self._delayed.add(position, hash_, facts.deliver_at_ms, self.limits.delayed_tick_ms)
                if message is not None:
                    message.delayed.add(position)
                continue
            consumer = self._consumer_for(position, hash_, message)
            if consumer is None:
                self._replay.add(position, hash_)
                continue
            self._send(consumer, entry, position, facts.messages, hash_)
            if message is not None:
                message.on_sent(position, consumer)
                consumer.chunks_out += 1
        assert self.unacked_messages >= 0, f"{self.unacked_messages} messages are not acknowledged"
        self._average.note(len(entries), self.unacked_messages - unacked_before)

    def _drop_unreadable(self, read: Read, entries: Entries) -> None:
        """Drop positions of *read* that were not returned: they were trimmed and cannot be delivered any more."""
        assert read.first is not None
        up_to = (
            entries[0].position if entries else Position(read.first.ledger_id, read.first.entry_id + read.entries_max)
        )
        for entry_id in range(read.first.entry_id, read.first.entry_id + read.entries_max):
            position = Position(read.first.ledger_id, entry_id)
            if position >= up_to:
                break
            self._forget(position)

    def _skip(self, position: Position, metadata: MessageMetadata) -> None:
        """Acknowledge what is left of a message that nobody can put together any more."""
        log.warning(
            "%s: subscription %s: the chunk at %d:%d (chunk_id %d of %d, uuid %s) counts as acknowledged: there is a "
            "copy of it, or the first chunk of its message is acknowledged",
            self._topic, self._cursor.name, *position, metadata.chunk_id, metadata.num_chunks_from_msg, metadata.uuid,
        )  # fmt: skip
        self._cursor.delete([position])
        self._forget(position)

    def _forget(self, position: Position) -> None:
        """There is nothing to be sent again of the entry at *position*."""
        self._replay.discard(position)
        self.redelivery_counts.pop(position, None)
        if self._chunked:
            self._chunked.on_acked(position)

    def _hash_of(self, facts: Facts) -> int:
        return 0

    def _consumer_for(self, position: Position, hash_: int, message: ChunkedMessage | None) -> Consumer | None:
        """The consumer that gets an entry, which is a chunk of *message*, now; None: it waits."""
        if message is None:
            return self._choose(position, hash_)
        is_next = position in self._replay or message.waiting == 1
        if not is_next or message in self._stuck_keys:
            consumer = None
        elif message.owner is None:
            consumer = self._choose(position, hash_, message.unwanted)
        else:
            consumer = message.owner if self._owner_takes_more(message.owner, hash_) else None
        if consumer is None:
            self._stuck_keys.add(message)
        return consumer

    def _choose(self, position: Position, hash_: int, unwanted: Consumer | None = None) -> Consumer | None:
        """A consumer for an entry that any may have; not *unwanted* if there is another."""
        if self._nobody_takes:
            return None
        chosen = self._ready.next(self.limits.round_robin_messages)
        if chosen is None or chosen is not unwanted:
            return chosen
        return self._ready.other_than(chosen) or chosen

    def _send(self, consumer: Consumer, entry: EntryLike, position: Position, messages: int, hash_: int) -> None:
        """Send an entry to *consumer*, and remember that it is there."""
        ack_set = None
        if self.limits.batch_index_acks and messages > 1:
            self.batch_sizes.note(position, messages)
            ack_set = self._cursor.batch_ack_set(position)
            if ack_set is not None:
                messages = count_bits(ack_set)
        self._replay.discard(position)
        consumer.pending[position] = (messages, hash_)
        self._owner_of[position] = consumer
        self._count_unacked(consumer, messages)
        consumer.send(position, entry.data, messages, self.redelivery_counts.get(position, 0), ack_set)
        self._ready.sent(messages)
        self._served[consumer] = None

    # -------------------------------------------------------------------------------- acknowledging

    def on_acked(self, position: Position, remaining_messages: int) -> None:
        """The entry at *position* is acknowledged, but for *remaining_messages* of its batch."""
        owner = self._owner_of.get(position)
        if remaining_messages:
            if owner is not None:
                messages, hash_ = owner.pending[position]
                if remaining_messages < messages:
                    owner.pending[position] = (remaining_messages, hash_)
                    self._count_unacked(owner, remaining_messages - messages)
            return
        if owner is not None:
            self._release(owner, position)
        else:
            self._replay.discard(position)
        self.redelivery_counts.pop(position, None)
        if self._chunked.at:
            self._chunked.on_acked(position)

    def on_acked_up_to(self, position: Position) -> None:
        for done in [other for other in self._owner_of if other <= position]:
            self._release(self._owner_of[done], done)
        self._replay.discard_up_to(position)
        if self._chunked:
            self._chunked.on_acked_up_to(position)
        for done in [other for other in self.redelivery_counts if other <= position]:
            del self.redelivery_counts[done]

    def _release(self, owner: Consumer, position: Position) -> int:
        """Remove *position* from the entries pending at *owner*; returns the hash of its key."""
        messages, hash_ = owner.pending.pop(position)
        del self._owner_of[position]
        self._count_unacked(owner, -messages)
        return hash_

    def _count_unacked(self, consumer: Consumer, messages: int) -> None:
        """Count *messages* more (negative: fewer) that are not acknowledged. At its limit a consumer, or the
        subscription, gets nothing more until half of that is acknowledged."""
        consumer.unacked_messages += messages
        self.unacked_messages += messages
        self._share.count(messages)
        limit = self.limits.unacked_per_consumer_max
        if limit:
            if consumer.unacked_messages >= limit:
                consumer.is_blocked = True
            elif consumer.is_blocked and consumer.unacked_messages <= limit // 2:
                consumer.is_blocked = False
                self.wake(consumer)
        limit = self.limits.unacked_per_subscription_max
        if limit:
            if self.unacked_messages >= limit:
                self._is_full = True
            elif self._is_full and self.unacked_messages <= limit // 2:
                self._is_full = False

    # -------------------------------------------------------------------------------- again

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver again what *consumer* has pending: *positions*, or all of it."""
        if positions is None:
            self._give_back(consumer, list(consumer.pending))
        else:
            self._give_back(consumer, [position for position in positions if position in consumer.pending])

    def _give_back(self, consumer: Consumer, positions: Iterable[Position]) -> None:
        """*positions* go from *consumer* into the replay set; each counts as one more delivery, unless the consumer
        leaves."""
        if self._chunked:
            self._is_overtaken = True
            positions = self._chunked.give_back(consumer, positions)
        counts = self.redelivery_counts
        redelivered = []
        for position in positions:
            if position not in consumer.pending:
                continue
            redelivered.append((position, self._release(consumer, position)))
            if not consumer.is_leaving:
                counts[position] = counts.get(position, 0) + 1
        self._replay.update(redelivered)
