"""Who gets the next entry of a subscription. No IO and no clock: reads are asked for, entries come in.

    flow, acks, appends, timers ──▶ next_read() ──▶ Read ──▶ (cursor or ledger) ──▶ on_entries(read, entries)
                                        ▲                                                    │
                                        └────────────────────── again ◀──────────────────────┘

Rules all dispatchers keep:

1. An entry is sent only to a consumer with permits left, whose connection takes bytes. A batch is never cut.
2. What waits to be delivered again goes before what was never read, the lowest position first.
3. While a consumer that is available has backlog, a read is asked for (the invariant of FLOWS).
4. What is acknowledged, a marker of the broker, or empty is never sent; markers are acknowledged on the way.
5. Key_Shared: the entries of one key go out in order, and to one consumer at a time: a key moves to another
   consumer only when the former one has nothing of it left to acknowledge.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

from broker.errors import ConsumerBusy
from broker.topic.batch_sizes import BatchSizes
from broker.topic.consumer import Consumer
from broker.topic.ports import CursorPort, Entries, EntryLike, Sink
from broker.topic.replay_set import ReplaySet
from broker.topic.sticky_keys import ConsistentHashing, HalvedRanges, Selector, StickyRanges, murmur3, sticky_hash
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command
from magnetar_core.runtime.types import Corruption
from managed_ledger.messages import message_count, metadata_of, split_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import Position

# Points of a consumer on the ring that chooses the active one of a Failover subscription.
FAILOVER_POINTS: Final = 100

# Delayed messages that one subscription keeps in mind (about 150 bytes each). Above it nothing new is read until
# some are due: they are still in the ledger.
DELAYED_MAX: Final = 500_000

# Positions that wait because their key's consumer is busy. Above it a Key_Shared subscription reads nothing new.
# (keySharedLookAheadMsgInReplayThresholdPerConsumer and …PerSubscription)
LOOK_AHEAD_PER_CONSUMER: Final = 2_000
LOOK_AHEAD_MAX: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """What a dispatcher has to keep to."""

    read_entries_max: int = 100
    read_bytes_max: int = 5 * 1024 * 1024
    round_robin_messages: int = 20
    unacked_per_consumer_max: int = 50_000
    """0: any."""
    unacked_per_subscription_max: int = 200_000
    """0: any."""
    batch_index_acks: bool = False
    failover_delay_ms: int = 1000
    delayed_delivery: bool = True
    delayed_tick_ms: int = 1000
    delayed_strict: bool = False


class Read(NamedTuple):
    """What should be read next: from the cursor (*first* None) or again from the ledger."""

    first: Position | None
    entries_max: int
    bytes_max: int


class Facts(NamedTuple):
    """What the metadata of an entry say to a dispatcher."""

    messages: int
    is_marker: bool
    deliver_at_ms: int
    metadata: MessageMetadata | None


def facts_of(entry: EntryLike) -> Facts:
    """Never fails: an entry that cannot be understood goes out as one message, for the client to judge."""
    try:
        parts = split_entry(entry.data)
        metadata = metadata_of(parts)
    except Corruption:
        return Facts(1, False, 0, None)
    return Facts(
        message_count(metadata, len(parts.payload)),
        metadata.HasField("marker_type"),
        metadata.deliver_at_time if metadata.HasField("deliver_at_time") else 0,
        metadata,
    )


class Dispatcher(Protocol):
    """One way of giving entries to consumers."""

    consumers: list[Consumer]
    limits: DispatchLimits
    batch_sizes: BatchSizes

    def check_newcomer(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy, ConsumerAssignError if *consumer* cannot join now."""
        ...

    def add(self, consumer: Consumer) -> None:
        """Take in a consumer that `check_newcomer` let pass. Raises ConsumerAssignError."""
        ...

    def remove(self, consumer: Consumer) -> None: ...

    def next_read(self) -> Read | None:
        """What should be read now. Of no more bytes than its consumers have room for, but one entry always."""
        ...

    def sink_of_reads(self) -> Sink | None:
        """The one connection that all of a read goes to, whatever happens; None if it can wait at the dispatcher."""
        ...

    def on_entries(self, read: Read, entries: Entries) -> None: ...

    def on_acked(self, position: Position, remaining_messages: int) -> None:
        """An entry was acknowledged, except for *remaining_messages* of its batch."""
        ...

    def on_acked_up_to(self, position: Position) -> None:
        """Everything at or before *position* was acknowledged."""
        ...

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None: ...

    def reset(self) -> None:
        """The cursor went elsewhere: forget what was read."""
        ...

    def next_timer_ms(self) -> int | None:
        """When, on the wall clock, `next_read` should be asked again even if nothing happens."""
        ...


class SingleActiveDispatcher:
    """Exclusive and Failover: everything goes to one consumer, in order."""

    def __init__(
        self,
        cursor: CursorPort,
        limits: DispatchLimits,
        *,
        is_failover: bool,
        topic: str,
        partition: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.consumers: list[Consumer] = []
        self.batch_sizes = BatchSizes()
        self.active: Consumer | None = None
        self._cursor = cursor
        self.limits = limits
        self._is_failover = is_failover
        self._topic = topic
        self._partition = partition
        self._now_ms = now_ms
        # A consumer that has become active reads nothing before this: its forerunner's acks may be under way.
        self._active_from_ms: int | None = None
        self._average = _Average()

    def check_newcomer(self, consumer: Consumer) -> None:
        if self.consumers and not self._is_failover:
            raise ConsumerBusy("Exclusive consumer is already connected")

    def add(self, consumer: Consumer) -> None:
        consumer.sends_epoch = consumer.epoch is not None
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda one: (one.priority_level, one.name))
        if not self._choose() and self._is_failover:
            _tell_active(consumer, False)

    def remove(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self._choose()

    def _choose(self) -> bool:
        """Pick the active consumer; True if it is another one now."""
        former = self.active
        best = [one for one in self.consumers if one.priority_level == self.consumers[0].priority_level]
        if not best:
            self.active = None
        elif not self._is_failover:
            self.active = best[0]
        elif self._partition >= 0:
            self.active = best[self._partition % len(best)]
        else:
            self.active = _from_ring(best, self._topic)
        if self.active is former:
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
                _tell_active(consumer, consumer is self.active)

    def next_timer_ms(self) -> int | None:
        return self._active_from_ms

    def next_read(self) -> Read | None:
        if self._active_from_ms is not None:
            if self._now_ms() < self._active_from_ms:
                return None
            self._activate()
        active = self.active
        if active is None or not active.is_available or not self._cursor.has_more():
            return None
        entries_max = self._average.entries_for(active.permits, self.limits.read_entries_max)
        return Read(None, entries_max, min(self.limits.read_bytes_max, active.sink.room_bytes))

    def sink_of_reads(self) -> Sink | None:
        return None if self.active is None else self.active.sink

    def on_entries(self, read: Read, entries: Entries) -> None:
        active = self.active
        if active is None or self._active_from_ms is not None:
            return  # whoever becomes active begins with a rewind
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
        self._average.note(len(entries), active.messages_out - messages_before)

    def on_acked(self, position: Position, remaining_messages: int) -> None:
        pass  # nothing is kept for each entry here

    def on_acked_up_to(self, position: Position) -> None:
        pass

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Everything that is not acknowledged comes again; single positions are not told apart (the order counts)."""
        if epoch is not None:
            consumer.epoch = epoch
            consumer.sends_epoch = True
        if consumer is self.active and self._active_from_ms is None:
            self._cursor.rewind()

    def reset(self) -> None:
        pass


class _Average:
    """Messages in an entry, as seen lately: permits count messages, reads count entries."""

    __slots__ = ("_messages_per_entry",)

    def __init__(self) -> None:
        self._messages_per_entry = 1.0

    def entries_for(self, permits: int, entries_max: int) -> int:
        return max(1, min(int(permits / self._messages_per_entry), entries_max))

    def note(self, entries: int, messages: int) -> None:
        if entries:
            self._messages_per_entry = max(1.0, (self._messages_per_entry + messages / entries) / 2)


def _tell_active(consumer: Consumer, is_active: bool) -> None:
    consumer.sink.write(
        command(wire.BaseCommand.ACTIVE_CONSUMER_CHANGE, consumer_id=consumer.consumer_id, is_active=is_active)
    )


def _from_ring(consumers: Sequence[Consumer], topic: str) -> Consumer:
    """The consumer whose point follows the topic's hash, so that topics spread over equal consumers."""
    hash_ = murmur3(topic.encode())
    # At equal distances the last one, as in a ring where it overwrites the others.
    distances = [(_distance(_failover_points(one.name), hash_), -at) for at, one in enumerate(consumers)]
    return consumers[-min(distances)[1]]


def _distance(points: Sequence[int], hash_: int) -> int:
    at = bisect_left(points, hash_)
    return points[at] - hash_ if at < len(points) else points[0] + 2**31 - hash_


@lru_cache(maxsize=2_000)  # 7 MB; the consumers of a burst that comes or goes are looked at again and again
def _failover_points(name: str) -> Sequence[int]:
    return sorted(murmur3(f"{name}{point}".encode()) for point in range(FAILOVER_POINTS))


class SharedDispatcher:
    """Shared: entries go round the consumers; each is tracked until it is acknowledged."""

    def __init__(self, cursor: CursorPort, limits: DispatchLimits, now_ms: Callable[[], int]) -> None:
        self.consumers: list[Consumer] = []
        self.batch_sizes = BatchSizes()
        self.redelivery_counts: dict[Position, int] = {}
        self._cursor = cursor
        self.limits = limits
        self._now_ms = now_ms
        self._owner_of: dict[Position, Consumer] = {}
        self._replay = ReplaySet()
        self._delayed: list[tuple[int, Position, int]] = []
        self._turn = 0
        self._unacked = 0
        self._is_blocked = False
        self._average = _Average()

    # -------------------------------------------------------------------------------- consumers

    def check_newcomer(self, consumer: Consumer) -> None:
        pass

    def add(self, consumer: Consumer) -> None:
        if not self.consumers:
            self.reset()
            self._cursor.rewind()
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda one: one.priority_level)

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self._give_back(consumer, list(consumer.pending))
        if not self.consumers:
            # As Apache's: with the last consumer the counts go, and the next one starts at the first open entry.
            self.reset()

    def reset(self) -> None:
        for consumer in self.consumers:
            consumer.pending.clear()
            consumer.unacked_messages = 0
            consumer.is_blocked = False
        self._owner_of.clear()
        self._replay.clear()
        self._delayed.clear()
        self.redelivery_counts.clear()
        self._unacked = 0
        self._is_blocked = False

    # -------------------------------------------------------------------------------- reading

    def next_timer_ms(self) -> int | None:
        if not self._delayed or not self.consumers:
            return None
        return self._delayed[0][0] - (0 if self.limits.delayed_strict else self.limits.delayed_tick_ms)

    def _cutoff_ms(self) -> int:
        return self._now_ms() + (0 if self.limits.delayed_strict else self.limits.delayed_tick_ms)

    def next_read(self) -> Read | None:
        available = [consumer for consumer in self.consumers if consumer.is_available]
        budget = sum(consumer.permits for consumer in available)
        if budget <= 0 or self._is_blocked:
            return None
        bytes_max = min(sum({one.sink: one.sink.room_bytes for one in available}.values()), self.limits.read_bytes_max)
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

    def sink_of_reads(self) -> Sink | None:
        return None  # what nobody can take now is read again

    def _replay_read(self, entries_max: int, bytes_max: int) -> Read | None:
        first, _ = next(iter(self._replay))
        return Read(first, self._replay.run_from(first, entries_max), bytes_max)

    def _may_read_on(self) -> bool:
        return len(self._delayed) < DELAYED_MAX

    def _wake_delayed(self) -> None:
        cutoff_ms = self._cutoff_ms()
        while self._delayed and self._delayed[0][0] <= cutoff_ms:
            _, position, hash_ = heappop(self._delayed)
            self._replay.add(position, hash_)

    def on_entries(self, read: Read, entries: Entries) -> None:
        if read.first is not None:
            self._drop_unreadable(read, entries)
        if not self.consumers:
            return  # the next consumer begins with a rewind
        round_ = _Round(self.consumers, self._turn, self.limits.round_robin_messages)
        unacked_before = self._unacked
        for entry in entries:
            position = entry.position
            if read.first is not None and position not in self._replay:
                continue  # acknowledged or reset while the read was under way
            if self._cursor.is_deleted(position):
                self._replay.discard(position)
                continue
            facts = facts_of(entry)
            if facts.is_marker:
                self._replay.discard(position)
                self._cursor.delete([position])
                continue
            hash_ = self._hash_of(facts)
            if facts.deliver_at_ms and self.limits.delayed_delivery and facts.deliver_at_ms > self._cutoff_ms():
                self._replay.discard(position)
                heappush(self._delayed, (facts.deliver_at_ms, position, hash_))
                continue
            consumer = self._consumer_for(position, hash_, round_)
            if consumer is None:
                self._replay.add(position, hash_)
                continue
            self._send(consumer, entry, position, facts.messages, hash_, round_)
        self._turn = round_.turn
        self._average.note(len(entries), self._unacked - unacked_before)

    def _drop_unreadable(self, read: Read, entries: Entries) -> None:
        """Positions of *read* that the ledger does not have any more were trimmed: nobody can get them."""
        assert read.first is not None
        up_to = (
            entries[0].position if entries else Position(read.first.ledger_id, read.first.entry_id + read.entries_max)
        )
        for entry_id in range(read.first.entry_id, read.first.entry_id + read.entries_max):
            position = Position(read.first.ledger_id, entry_id)
            if position >= up_to:
                break
            self._replay.discard(position)
            self.redelivery_counts.pop(position, None)

    def _hash_of(self, facts: Facts) -> int:
        return 0

    def _consumer_for(self, position: Position, hash_: int, round_: "_Round") -> Consumer | None:
        return round_.next()

    def _send(
        self, consumer: Consumer, entry: EntryLike, position: Position, messages: int, hash_: int, round_: "_Round"
    ) -> None:
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
        round_.sent(messages)

    # -------------------------------------------------------------------------------- acknowledging

    def on_acked(self, position: Position, remaining_messages: int) -> None:
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

    def on_acked_up_to(self, position: Position) -> None:
        for done in [one for one in self._owner_of if one <= position]:
            self._release(self._owner_of[done], done)
        self._replay.discard_up_to(position)
        for done in [one for one in self.redelivery_counts if one <= position]:
            del self.redelivery_counts[done]

    def _release(self, owner: Consumer, position: Position) -> int:
        """*owner* has nothing to do with *position* any more; returns the hash of its key."""
        messages, hash_ = owner.pending.pop(position)
        del self._owner_of[position]
        self._count_unacked(owner, -messages)
        return hash_

    def _count_unacked(self, consumer: Consumer, messages: int) -> None:
        consumer.unacked_messages += messages
        self._unacked += messages
        limit = self.limits.unacked_per_consumer_max
        if limit:
            if consumer.unacked_messages >= limit:
                consumer.is_blocked = True
            elif consumer.is_blocked and consumer.unacked_messages <= limit // 2:
                consumer.is_blocked = False
        limit = self.limits.unacked_per_subscription_max
        if limit:
            if self._unacked >= limit:
                self._is_blocked = True
            elif self._is_blocked and self._unacked <= limit // 2:
                self._is_blocked = False

    # -------------------------------------------------------------------------------- again

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver again what *consumer* has pending: *positions*, or all of it."""
        if positions is None:
            self._give_back(consumer, list(consumer.pending))
        else:
            self._give_back(consumer, [position for position in positions if position in consumer.pending])

    def _give_back(self, consumer: Consumer, positions: Iterable[Position]) -> None:
        counts = self.redelivery_counts
        again = []
        for position in positions:
            if position not in consumer.pending:
                continue
            again.append((position, self._release(consumer, position)))
            counts[position] = counts.get(position, 0) + 1
        self._replay.update(again)


class _Round:
    """Whose turn it is among the available consumers of the best priority."""

    __slots__ = ("_at", "_available", "_consumers", "_left", "_share", "turn")

    def __init__(self, consumers: Sequence[Consumer], turn: int, share: int) -> None:
        self._consumers = consumers
        self._share = share
        self.turn = turn
        self._available: list[Consumer] = []
        self._at = 0
        self._left = share

    def next(self) -> Consumer | None:
        """The consumer that gets the next entry, or None if nobody can take one."""
        available = self._available
        if available and self._left > 0 and available[self._at].is_available:
            return available[self._at]
        best = next((one.priority_level for one in self._consumers if one.is_available), None)
        if best is None:
            return None
        self._available = [one for one in self._consumers if one.priority_level == best and one.is_available]
        self.turn += 1
        self._at = self.turn % len(self._available)
        self._left = self._share
        return self._available[self._at]

    def sent(self, messages: int) -> None:
        self._left -= messages


class KeySharedDispatcher(SharedDispatcher):
    """Key_Shared: as Shared, but a key stays with one consumer (rule 5)."""

    def __init__(
        self,
        cursor: CursorPort,
        limits: DispatchLimits,
        now_ms: Callable[[], int],
        selector: Selector[Consumer],
        *,
        is_sticky: bool,
        allows_out_of_order: bool,
    ) -> None:
        super().__init__(cursor, limits, now_ms)
        self.is_sticky = is_sticky
        self.allows_out_of_order = allows_out_of_order
        self._selector = selector
        # Key's hash → who has unacknowledged entries of it, and how many.
        self._holders: dict[int, tuple[Consumer, int]] = {}
        # Hashes that belong to another consumer now, but whose former one has entries left (PIP-379) → how often an
        # entry could not go out for that. Consumer → how many such hashes it has finished.
        self._draining: dict[int, int] = {}
        self._drained: dict[Consumer, int] = {}
        # Keys have moved since `_draining` was worked out: done when it is asked for, once for all who come or go.
        self._has_moved = False
        self._is_leaving = False
        self._stuck: set[int] = set()
        # Something of a lower position may have come back since the last read was asked for.
        self._is_overtaken = False

    def add(self, consumer: Consumer) -> None:
        self._selector.add(consumer, consumer.name, consumer.hash_ranges)
        super().add(consumer)
        self._has_moved = True

    def remove(self, consumer: Consumer) -> None:
        self._selector.remove(consumer)
        self._is_leaving = True
        super().remove(consumer)
        self._is_leaving = False
        self._drained.pop(consumer, None)
        self._has_moved = True

    def _note_draining(self) -> None:
        """Keys have moved, perhaps back."""
        if not self._has_moved:
            return
        self._has_moved = False
        before, select = self._draining, self._selector.select
        self._draining = {
            hash_: before.get(hash_, 0)
            for hash_, (holder, _) in self._holders.items()
            if select(hash_) is not holder and not self.allows_out_of_order
        }

    def draining_hashes(self, consumer: Consumer) -> list[tuple[int, int, int]]:
        """(hash, entries left, blocked attempts) of what *consumer* has yet to finish before it moves."""
        self._note_draining()
        return [
            (hash_, self._holders[hash_][1], blocked)
            for hash_, blocked in sorted(self._draining.items())
            if self._holders[hash_][0] is consumer
        ]

    def drained_count(self, consumer: Consumer) -> int:
        """How many such hashes *consumer* has finished."""
        return self._drained.get(consumer, 0)

    def reset(self) -> None:
        super().reset()
        self._holders.clear()
        self._draining.clear()

    def _hash_of(self, facts: Facts) -> int:
        return 1 if facts.metadata is None else sticky_hash(facts.metadata)

    def _takes(self, hash_: int) -> Consumer | None:
        """Who may be sent an entry with this hash now."""
        consumer = self._selector.select(hash_)
        if consumer is None or not consumer.is_available:
            return None
        holder = self._holders.get(hash_)
        if holder is not None and holder[0] is not consumer and not self.allows_out_of_order:
            self._note_draining()
            if hash_ in self._draining:
                self._draining[hash_] += 1
            return None
        return consumer

    def next_read(self) -> Read | None:
        self._is_overtaken = False
        return super().next_read()

    def _give_back(self, consumer: Consumer, positions: Iterable[Position]) -> None:
        self._is_overtaken = True
        super()._give_back(consumer, positions)

    def _replay_read(self, entries_max: int, bytes_max: int) -> Read | None:
        verdicts: dict[int, bool] = {}
        first: Position | None = None
        count = 0
        for position, hash_ in self._replay:
            goes = verdicts.get(hash_)
            if goes is None:
                goes = verdicts[hash_] = self._takes(hash_) is not None
            if first is None:
                if goes:
                    first, count = position, 1
            elif goes and position == (first.ledger_id, first.entry_id + count) and count < entries_max:
                count += 1
            else:
                break
        return None if first is None else Read(first, count, bytes_max)

    def _may_read_on(self) -> bool:
        waiting_max = min(LOOK_AHEAD_PER_CONSUMER * len(self.consumers), LOOK_AHEAD_MAX)
        return super()._may_read_on() and len(self._replay) < waiting_max

    def on_entries(self, read: Read, entries: Entries) -> None:
        self._stuck.clear()
        if read.first is not None and self._is_overtaken:
            return  # they still wait; choose again, the lowest of each key first
        super().on_entries(read, entries)

    def _consumer_for(self, position: Position, hash_: int, round_: _Round) -> Consumer | None:
        # An entry behind one of the same key that waits has to wait as well. Those that are read again come in
        # order, so they only look at what got stuck in this very round.
        if hash_ in self._stuck:
            return None
        if position not in self._replay and self._replay.waiting_by_hash.get(hash_) and not self.allows_out_of_order:
            return None
        consumer = self._takes(hash_)
        if consumer is None:
            self._stuck.add(hash_)
        return consumer

    def _send(
        self, consumer: Consumer, entry: EntryLike, position: Position, messages: int, hash_: int, round_: _Round
    ) -> None:
        holder = self._holders.get(hash_)
        self._holders[hash_] = (consumer, holder[1] + 1) if holder is not None else (consumer, 1)
        super()._send(consumer, entry, position, messages, hash_, round_)

    def _release(self, owner: Consumer, position: Position) -> int:
        hash_ = super()._release(owner, position)
        consumer, count = self._holders[hash_]
        if count > 1:
            self._holders[hash_] = (consumer, count - 1)
        else:
            if not self._is_leaving:  # what it leaves behind it has not finished
                self._note_draining()
            del self._holders[hash_]
            if self._draining.pop(hash_, None) is not None and not self._is_leaving:
                self._drained[consumer] = self._drained.get(consumer, 0) + 1
        return hash_


def make_selector(*, is_sticky: bool, consistent_hashing: bool, points: int) -> Selector[Consumer]:
    """The way in which a Key_Shared subscription shares out its keys."""
    if is_sticky:
        return StickyRanges()
    return ConsistentHashing(points) if consistent_hashing else HalvedRanges()


def count_bits(words: Iterable[int]) -> int:
    """Set bits of the words of a Java BitSet, which come as signed or unsigned 64-bit numbers."""
    return sum((word & 0xFFFF_FFFF_FFFF_FFFF).bit_count() for word in words)
