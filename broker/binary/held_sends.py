"""Messages of one connection whose topics may take nothing for a while: their rates are used up. No IO.

The socket of a connection brings what its client publishes to all its topics. So what it brings for one that has to
wait is set aside here, and the others go on.

Rules:

1. What is set aside keeps its order with all that follows for the topic: messages, refusals, the close of a producer.
2. It has a limit in number and in bytes, and one for all connections. Above it the socket is not read until the rate
   has room (`broker.binary.flow`), and then the other topics of the connection wait, too; nobody else does.
3. What a producer that was closed, or that begins anew, has here is dropped: its client sends it again.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from broker.binary.flow import ClientFlow
from broker.memory_budget import MemoryBudget
from broker.topic.clients.producer import Producer, ProducerTopic
from broker.topic.rates.throttling import HOLD_STEP_MS, PublishHold
from broker.wire.frames import Send
from magnetar_core.runtime.types import MIB, Cancellable

# Messages that one connection may have here. A producer of an official client has 1,000 without a receipt at most,
# unless its user says otherwise.
HELD_MAX: Final = 10_000

# Their bytes: with more connections than a few dozen like this the sum of all is the limit.
HELD_BYTES_MAX: Final = 2 * MIB

# Messages of one topic that go on in one turn of the loop, where a rate was taken back: some 10 µs each.
ITEMS_PER_TURN: Final = 500

# What a message takes beside its bytes.
_ITEM_COST: Final = 512

_Item = tuple[Producer, Send | int]
"""A message, or the request id of the close of its producer."""


class HeldBroker(Protocol):
    """What is needed of the broker."""

    set_aside: MemoryBudget
    """What all connections have here."""

    def now_ms(self) -> int: ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable: ...


class _Topic:
    __slots__ = ("holds", "items")

    def __init__(self) -> None:
        self.holds: dict[PublishHold, None] = {}
        self.items: deque[_Item] = deque()


class HeldSends:
    """What one connection has set aside, by topic."""

    __slots__ = ("_broker", "_bytes", "_count", "_flow", "_flush", "_send", "_timer", "_topics")

    def __init__(
        self,
        broker: HeldBroker,
        flow: ClientFlow,
        send: Callable[[Producer, Send | int], None],
        flush: Callable[[], None],
    ) -> None:
        """*send* goes on with what was set aside, item by item; *flush* ends a row of these. Both may call `hold`."""
        self._broker = broker
        self._flow = flow
        self._send = send
        self._flush = flush
        self._topics: dict[ProducerTopic, _Topic] = {}
        self._count = self._bytes = 0
        self._timer: Cancellable | None = None

    def __bool__(self) -> bool:
        return bool(self._topics)

    def __contains__(self, topic: ProducerTopic) -> bool:
        return topic in self._topics

    def hold(self, topic: ProducerTopic, hold: PublishHold) -> None:
        """From here on what comes for *topic* is added, as long as *hold* says so."""
        self._topics.setdefault(topic, _Topic()).holds[hold] = None
        if self._timer is None:
            self._set_timer()

    def add(self, producer: Producer, item: Send | int) -> None:
        """Set a message aside, or the close of a producer, whose topic is held."""
        held = self._topics[producer.topic]
        if not isinstance(item, int):
            item = item._replace(entry=memoryview(bytes(item.entry)))  # else it would keep all that the socket brought
        held.items.append((producer, item))
        self._count += 1
        self._bytes += _size_of(item)
        all_of_them = self._broker.set_aside
        all_of_them.take(_size_of(item))
        if self._count > HELD_MAX or self._bytes > HELD_BYTES_MAX or all_of_them.is_full:  # rule 2
            for hold in held.holds:
                self._flow.hold(hold)

    def forget(self, producer: Producer) -> None:
        """Drop what a producer has here (rule 3)."""
        held = self._topics.get(producer.topic)
        if held is not None:
            dropped = [item for item in held.items if item[0] is producer]
            held.items = deque(item for item in held.items if item[0] is not producer)
            self._drop(dropped)

    def clear(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for held in self._topics.values():
            self._drop(list(held.items))
        self._topics.clear()

    def _drop(self, items: list[_Item]) -> None:
        size_bytes = sum(_size_of(item) for _, item in items)
        self._count -= len(items)
        self._bytes -= size_bytes
        assert min(self._count, self._bytes) >= 0, "more went on than was set aside"
        self._broker.set_aside.give(size_bytes)

    def _set_timer(self) -> None:
        now_ms = self._broker.now_ms()
        waits = [max((hold.wait_ms(now_ms) for hold in held.holds), default=0) for held in self._topics.values()]
        self._timer = self._broker.call_later(min(max(min(waits), 0), HOLD_STEP_MS), self._release_due)

    def _release_due(self) -> None:
        self._timer = None
        now_ms = self._broker.now_ms()
        for topic, held in list(self._topics.items()):
            if all(hold.wait_ms(now_ms) <= 0 for hold in held.holds):
                self._send_held(topic, held)
        if self._topics and self._timer is None:
            self._set_timer()

    def _send_held(self, topic: ProducerTopic, held: _Topic) -> None:
        """Go on until the topic is held again, or others have their turn; what comes meanwhile goes behind it."""
        held.holds.clear()
        last = self._count - ITEMS_PER_TURN
        while held.items and not held.holds and self._count > last:
            producer, item = held.items.popleft()
            self._drop([(producer, item)])
            if isinstance(item, int) or not producer.is_closed:  # rule 3
                self._send(producer, item)
        self._flush()
        if not held.items and not held.holds:
            del self._topics[topic]


def _size_of(item: Send | int) -> int:
    return _ITEM_COST + (0 if isinstance(item, int) else len(item.entry))
