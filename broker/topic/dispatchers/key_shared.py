"""Key_Shared: entries go to consumers by their keys. No IO and no clock.

Rules, besides those of all dispatchers:

1. The entries of one key go out in order, and to one consumer at a time: a key moves to another consumer only when
   the former one has nothing of it left to acknowledge.
2. The rest of a message in chunks goes to the consumer that has its first chunk, also when its key is another's by now:
   that consumer can acknowledge nothing of it before. So it may pass messages of its key that began behind it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.topic.clients.consumer import Consumer
from broker.topic.dispatchers.dispatcher import DispatchLimits, Draining, Facts, KeyShared, Read
from broker.topic.dispatchers.kinds import DispatchedTopic, KeySharedPolicy
from broker.topic.dispatchers.shared import LOOK_AHEAD_MAX, SharedDispatcher
from broker.topic.dispatchers.sticky_keys import ConsistentHashing, HalvedRanges, Selector, StickyRanges, sticky_key
from broker.topic.ports import CursorPort, EntryLike
from broker.topic.unacked import UnackedShare
from managed_ledger.position import Position

# Positions that wait because their key's consumer is busy, for each consumer. Above it a Key_Shared subscription reads
# nothing new, unless a consumer waits for the rest of a message: that is looked for as far as `LOOK_AHEAD_MAX`.
# (keySharedLookAheadMsgInReplayThresholdPerConsumer)
LOOK_AHEAD_PER_CONSUMER: Final = 2_000


class KeySharedDispatcher(SharedDispatcher):
    """Key_Shared: as Shared, but a key stays with one consumer (rule 1)."""

    def __init__(
        self,
        topic: DispatchedTopic,
        cursor: CursorPort,
        limits: DispatchLimits,
        now_ms: Callable[[], int],
        share: UnackedShare,
        policy: KeySharedPolicy,
    ) -> None:
        super().__init__(topic.name, cursor, limits, now_ms, share)
        self.policy = policy
        self._allows_out_of_order = policy.allows_out_of_order
        self._selector = make_selector(topic, policy)
        # Hash of a key → the consumer that has unacknowledged entries of it, and how many.
        self._holders: dict[int, tuple[Consumer, int]] = {}
        # Draining hashes (PIP-379): they are assigned to another consumer, but the former one has unacknowledged
        # entries. Hash → how often an entry was held back for that; consumer → how many such hashes it has finished.
        self._draining: dict[int, int] = {}
        self._drained_counts: dict[Consumer, int] = {}
        # Keys have moved since `_draining` was computed. It is computed when it is needed, once for all consumers
        # that have joined or left since.
        self._has_moved = False
        self._is_leaving = False
        # Nothing that waits can go out, as was seen when all of it was looked at; and the consumers that keep it from
        # that because they can take nothing. Twenty thousand entries are not looked at again for each event.
        self._no_replay_can_be_sent = False
        self._wanted: set[Consumer] = set()

    def add(self, consumer: Consumer) -> None:
        self._selector.add(consumer, consumer.name, consumer.hash_ranges)
        super().add(consumer)
        self._has_moved = True
        self._look_again()

    def remove(self, consumer: Consumer) -> None:
        self._selector.remove(consumer)
        self._is_leaving = True
        super().remove(consumer)
        self._is_leaving = False
        self._drained_counts.pop(consumer, None)
        self._has_moved = True
        self._look_again()

    def wake(self, consumer: Consumer) -> None:
        super().wake(consumer)
        if consumer in self._wanted:
            self._look_again()

    def _look_again(self) -> None:
        self._no_replay_can_be_sent = False
        self._wanted.clear()

    def _note_draining(self) -> None:
        """Compute `_draining` anew if keys have moved since."""
        if not self._has_moved:
            return
        self._has_moved = False
        former_draining, select = self._draining, self._selector.select
        self._draining = {
            hash_: former_draining.get(hash_, 0)
            for hash_, (holder, _) in self._holders.items()
            if select(hash_) is not holder and not self._allows_out_of_order
        }

    @property
    def key_shared(self) -> KeyShared:
        return self

    def draining(self, consumer: Consumer) -> Draining:
        self._note_draining()
        hashes = [
            (hash_, self._holders[hash_][1], blocked)
            for hash_, blocked in sorted(self._draining.items())
            if self._holders[hash_][0] is consumer
        ]
        return hashes, self._drained_counts.get(consumer, 0)

    def hash_ranges(self) -> Mapping[Consumer, list[tuple[int, int]]]:
        return self._selector.ranges()

    def reset(self) -> None:
        super().reset()
        self._holders.clear()
        self._draining.clear()
        self._look_again()

    def _hash_of(self, facts: Facts) -> int:
        return 1 if facts.metadata is None else self._selector.hash_of(sticky_key(facts.metadata))

    def _takes(self, hash_: int) -> Consumer | None:
        """The consumer that may be sent an entry with this hash now; None: nobody."""
        consumer = self._selector.select(hash_)
        if consumer is None:
            return None
        if not consumer.is_available:
            self._wanted.add(consumer)
            return None
        holder = self._holders.get(hash_)
        if holder is not None and holder[0] is not consumer and not self._allows_out_of_order:
            self._note_draining()
            if hash_ in self._draining:
                self._draining[hash_] += 1
            return None
        return consumer

    def _give_back(self, consumer: Consumer, positions: Iterable[Position]) -> None:
        super()._give_back(consumer, positions)
        self._is_overtaken = True
        self._look_again()

    def _wake_delayed(self) -> None:
        waiting = len(self._replay)
        super()._wake_delayed()
        if len(self._replay) != waiting:
            self._look_again()

    def _replay_read(self, entries_max: int, bytes_max: int) -> Read | None:
        if self._chunked or self._nobody_takes:
            self._look_again()
            return self._first_sendable_run(entries_max, bytes_max)
        if self._no_replay_can_be_sent:
            return None
        read = self._first_sendable_run(entries_max, bytes_max)
        self._no_replay_can_be_sent = read is None
        return read

    def _can_be_sent(self, hash_: int) -> bool:
        return super()._can_be_sent(hash_) and self._takes(hash_) is not None

    def _owner_takes_more(self, owner: Consumer, hash_: int) -> bool:
        holder = self._holders.get(hash_)
        return super()._owner_takes_more(owner, hash_) and (
            holder is None or holder[0] is owner or self._allows_out_of_order
        )

    def _may_read_on(self) -> bool:
        waiting = len(self._replay)
        if waiting >= LOOK_AHEAD_PER_CONSUMER * len(self.consumers) and not any(self._chunked.unfinished_owners()):
            return False
        return super()._may_read_on() and waiting < LOOK_AHEAD_MAX

    def _choose(self, position: Position, hash_: int, unwanted: Consumer | None = None) -> Consumer | None:
        """The consumer that the hash belongs to, if it takes the entry now.

        An entry must not overtake an earlier one of the same key. Redelivered entries come in order, so for them only
        the keys that were held back in this call count.
        """
        if self._nobody_takes:
            self._look_again()  # what waits from here on may have a consumer that takes it
            return None
        if hash_ in self._stuck_keys:
            return None
        if position not in self._replay and self._replay.waiting_by_hash.get(hash_) and not self._allows_out_of_order:
            return None
        consumer = self._takes(hash_)
        if consumer is None:
            self._stuck_keys.add(hash_)
        return consumer

    def _send(self, consumer: Consumer, entry: EntryLike, position: Position, messages: int, hash_: int) -> None:
        holder = self._holders.get(hash_)
        self._holders[hash_] = (consumer, holder[1] + 1) if holder is not None else (consumer, 1)
        super()._send(consumer, entry, position, messages, hash_)

    def _release(self, owner: Consumer, position: Position) -> int:
        """As in the shared dispatcher; an owner that has acknowledged all of a hash may lose that hash to another
        consumer."""
        hash_ = super()._release(owner, position)
        consumer, count = self._holders[hash_]
        if count > 1:
            self._holders[hash_] = (consumer, count - 1)
        else:
            if not self._is_leaving:  # a consumer that leaves has not finished the hash
                self._note_draining()
            del self._holders[hash_]
            if hash_ in self._replay.waiting_by_hash:
                self._look_again()
            if self._draining.pop(hash_, None) is not None and not self._is_leaving:
                self._drained_counts[consumer] = self._drained_counts.get(consumer, 0) + 1
        return hash_


def make_selector(topic: DispatchedTopic, policy: KeySharedPolicy) -> Selector[Consumer]:
    """The selector that distributes the keys of a Key_Shared subscription."""
    if policy.is_sticky:
        return StickyRanges()
    return ConsistentHashing(topic.points) if topic.consistent_hashing else HalvedRanges()
