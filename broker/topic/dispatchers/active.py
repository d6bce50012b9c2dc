"""Which of the consumers of an Exclusive or Failover subscription is the active one. No IO and no clock.

Rules (Apache's):

1. Only consumers of the best priority can be it. Of an Exclusive subscription it is the one that is there.
2. At a partition it is the one whose number in the order of names is that of the partition, by the remainder.
3. Elsewhere each consumer has `FAILOVER_POINTS` points on a ring, and the one whose point follows the hash of the topic
   is it. At equal distances the last one in the order of names wins, as in a ring (a map) where its point overwrites
   the others.

How far a consumer's next point is from the topic's hash is worked out once, when it comes: an event costs about as much
with ten thousand consumers as with one.
"""

from bisect import bisect_left, bisect_right, insort
from itertools import count
from typing import Final

from broker.topic.clients.consumer import Consumer
from broker.topic.dispatchers.sticky_keys import murmur3, murmur3_of_each

# Points of a consumer on the ring that chooses the active one of a Failover subscription.
FAILOVER_POINTS: Final = 100

_Place = tuple[int, int, str, int]
"""Priority, distance on the ring (0 where there is none), name, number of arrival."""


class OrderedConsumers:
    """Consumers in the order of their priorities and names."""

    def __init__(self, *, is_failover: bool, topic: str, partition: int) -> None:
        self.all: list[Consumer] = []
        self._partition = partition
        self._hash = murmur3(topic.encode()) if is_failover and partition < 0 else None
        self._places: dict[Consumer, _Place] = {}
        self._ring: list[_Place] = []
        """The places of all of them, in order; only where there is a ring."""
        self._by_number: dict[int, Consumer] = {}
        self._numbers = count()

    def __contains__(self, consumer: Consumer) -> bool:
        return consumer in self._places

    def add(self, consumer: Consumer) -> None:
        insort(self.all, consumer, key=_order)
        distance = 0 if self._hash is None else _distance(consumer.name, self._hash)
        place = self._places[consumer] = consumer.priority_level, distance, consumer.name, next(self._numbers)
        self._by_number[place[3]] = consumer
        if self._hash is not None:
            insort(self._ring, place)

    def remove(self, consumer: Consumer) -> None:
        place = self._places.pop(consumer)
        del self._by_number[place[3]]
        del self.all[self.all.index(consumer, bisect_left(self.all, _order(consumer), key=_order))]
        if self._hash is not None:
            del self._ring[bisect_left(self._ring, place)]

    def active(self) -> Consumer | None:
        """None: there are no consumers."""
        if not self.all:
            return None
        if self._hash is not None:
            priority, distance, *_ = self._ring[0]
            return self._by_number[self._ring[bisect_left(self._ring, (priority, distance + 1, "", 0)) - 1][3]]
        if self._partition < 0:
            return self.all[0]
        best = bisect_right(self.all, self.all[0].priority_level, key=lambda consumer: consumer.priority_level)
        return self.all[self._partition % best]


def _order(consumer: Consumer) -> tuple[int, str]:
    return consumer.priority_level, consumer.name


def _distance(name: str, hash_: int) -> int:
    """How far it is from *hash_* to the next point of a consumer with that name, around the ring."""
    points = murmur3_of_each(name.encode(), (str(point).encode() for point in range(FAILOVER_POINTS)))
    return min((point - hash_) % 2**31 for point in points)
