"""Whose turn it is among consumers of one subscription. No IO and no clock.

Rules:

1. Who can be sent something is kept, not searched: an event costs as much with ten thousand consumers as with one.
2. A consumer that is met and cannot be sent anything leaves, and comes again by `wake`: when it has permits again, when
   it has acknowledged enough, when its connection has room again. Each of these is an event (`Subscription.flow`,
   `Subscription.resume`, acknowledgements).
3. Turns go round among the consumers of the best priority (the lowest level) that has any.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from itertools import islice
from typing import Final

from broker.topic.clients.consumer import Consumer, ConsumerSink

# Consumers that are looked at to find how much may be read: with more of them than entries of a read, each takes one.
LOOKED_AT_MAX: Final = 100


class ReadyConsumers:
    """The consumers that can be sent something, as far as it is known."""

    def __init__(self) -> None:
        self._members: set[Consumer] = set()
        self._levels: list[int] = []
        """The priority levels that have any, rising."""
        self._queues: dict[int, OrderedDict[Consumer, None]] = {}
        self._current: Consumer | None = None
        self._left = 0

    def __contains__(self, consumer: Consumer) -> bool:
        return consumer in self._queues.get(consumer.priority_level, ())

    def add(self, consumer: Consumer) -> None:
        self._members.add(consumer)
        self.wake(consumer)

    def remove(self, consumer: Consumer) -> None:
        """*consumer* has left: nothing wakes it any more."""
        self._members.discard(consumer)
        self._leave(consumer)

    def wake(self, consumer: Consumer) -> None:
        """*consumer*, which may have left, may be able to take something again."""
        if consumer not in self._members or not consumer.is_available:
            return
        level = consumer.priority_level
        queue = self._queues.get(level)
        if queue is None:
            queue = self._queues[level] = OrderedDict()
            insort(self._levels, level)
        queue.setdefault(consumer)

    def _leave(self, consumer: Consumer) -> None:
        """*consumer* cannot be sent anything now: it is out until it is woken (rule 2)."""
        if consumer is self._current:
            self._current = None
        level = consumer.priority_level
        queue = self._queues.get(level)
        if queue is not None:
            queue.pop(consumer, None)
            if not queue:
                del self._queues[level]
                del self._levels[bisect_left(self._levels, level)]

    def next(self, share: int) -> Consumer | None:
        """The consumer that gets the next entry: the same for *share* messages (`sent`), as long as it can be sent one.
        None: nobody can."""
        current = self._current
        if current is not None and self._left > 0 and current.is_available:
            return current
        self.end_turn()
        self._current = self._first()
        self._left = share
        return self._current

    def sent(self, messages: int) -> None:
        """So many messages went to the consumer whose turn it is."""
        self._left -= messages

    def end_turn(self) -> None:
        """The next entry goes to the next consumer."""
        current, self._current = self._current, None
        if current is not None:
            queue = self._queues.get(current.priority_level)
            if queue is not None and current in queue:
                queue.move_to_end(current)

    def other_than(self, consumer: Consumer) -> Consumer | None:
        """Another consumer of the best level; None: none was met among the first of them."""
        if self._first() is None:
            return None
        candidates = islice(self._queues[self._levels[0]], LOOKED_AT_MAX)
        return next((other for other in candidates if other is not consumer and other.is_available), None)

    def choose_available(self, permits: int, room_bytes: int) -> list[Consumer]:
        """Consumers whose connections have room, best first: as many as have so many permits and so much room together,
        at most LOOKED_AT_MAX."""
        met: list[Consumer] = []
        busy: list[Consumer] = []
        sinks: set[ConsumerSink] = set()
        for level in self._levels:
            for consumer in self._queues[level]:
                sink = consumer.sink
                room = sink.room_bytes
                if room <= 0 or not consumer.is_available:
                    busy.append(consumer)
                    continue
                met.append(consumer)
                permits -= consumer.permits
                if sink not in sinks:
                    sinks.add(sink)
                    room_bytes -= room
                if len(met) >= LOOKED_AT_MAX or (permits <= 0 and room_bytes <= 0):
                    break
            else:
                continue
            break
        for consumer in busy:
            self._leave(consumer)
        return met

    def _first(self) -> Consumer | None:
        while self._levels:
            consumer = next(iter(self._queues[self._levels[0]]))
            if consumer.is_available:
                return consumer
            self._leave(consumer)
        return None
