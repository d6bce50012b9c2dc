"""Which consumer of a non-persistent subscription gets a message. No IO and no clock.

    Exclusive, Failover   OneActive   the active consumer
    Shared                InTurn      the consumers of the best priority, one after the other
    Key_Shared            ByKey       the consumer to which the message's key belongs

Rules:

1. A consumer gets a message only if it has permits and its connection takes bytes. If it cannot take the message, no
   other consumer gets it in its place, except with Shared.
2. All chunks of a message go to the consumer that got its first. When one of them is dropped, so are those behind it:
   nobody can put the message together.
"""

from bisect import insort
from collections.abc import Callable
from typing import Final, Protocol

from broker.errors import ConsumerBusy
from broker.topic.clients.consumer import Consumer, priority_of
from broker.topic.dispatchers.active import OrderedConsumers
from broker.topic.dispatchers.dispatcher import Facts, is_chunk
from broker.topic.dispatchers.key_shared import make_selector
from broker.topic.dispatchers.kinds import DispatchedTopic, KeySharedPolicy
from broker.topic.dispatchers.ready import ReadyConsumers
from broker.topic.dispatchers.sticky_keys import sticky_key

# Messages that one subscription knows by their uuid between two chunks, some 200 bytes each. Clients put ten together
# at one time (maxPendingChunkedMessage). Of the one that has waited longest the rest is dropped.
CHUNKED_MESSAGES_MAX: Final = 1_000


class Delivery(Protocol):
    """The consumers of one subscription; one class for each kind of choice."""

    consumers: list[Consumer]

    def check_newcomer(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy if *consumer* cannot join now."""
        ...

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError; nothing has changed then."""
        ...

    def remove(self, consumer: Consumer) -> None: ...

    def wake(self, consumer: Consumer) -> None:
        """*consumer* has more permits, or its connection has room again."""
        ...

    def consumer_for(self, facts: Facts) -> Consumer | None:
        """The consumer that gets the message now; None: the message is dropped."""
        ...


class OneActive:
    """Exclusive and Failover: everything goes to one consumer."""

    def __init__(self, topic: DispatchedTopic, *, is_failover: bool) -> None:
        self._ordered = OrderedConsumers(is_failover=is_failover, topic=topic.name, partition=topic.partition)
        self.consumers = self._ordered.all
        self.active: Consumer | None = None
        self._is_failover = is_failover

    def check_newcomer(self, consumer: Consumer) -> None:
        if self.consumers and not self._is_failover:
            raise ConsumerBusy("Exclusive consumer is already connected")

    def add(self, consumer: Consumer) -> None:
        self._ordered.add(consumer)
        if not self._choose() and self._is_failover:
            consumer.sink.on_active_change(consumer, False)

    def remove(self, consumer: Consumer) -> None:
        if consumer in self._ordered:
            self._ordered.remove(consumer)
            self._choose()

    def wake(self, consumer: Consumer) -> None:
        pass  # there is one to look at

    def _choose(self) -> bool:
        """Choose the active consumer; returns whether it changed. Nothing is waited for: no ack can be under way."""
        former_active = self.active
        self.active = self._ordered.active()
        if self.active is former_active:
            return False
        if self._is_failover:
            for consumer in self.consumers:
                consumer.sink.on_active_change(consumer, consumer is self.active)
        return True

    def consumer_for(self, facts: Facts) -> Consumer | None:
        return self.active if self.active is not None and self.active.is_available else None


class Begun:
    """Messages in chunks that consumers have the beginning of."""

    def __init__(self) -> None:
        self._owners: dict[str, Consumer] = {}

    def consumer_for(self, facts: Facts, choose: Callable[[Facts], Consumer | None]) -> Consumer | None:
        """Who gets an entry: as *choose* says, unless it goes on with a message (rule 2)."""
        metadata = facts.metadata
        if metadata is None or not is_chunk(facts):
            return choose(facts)
        owner = self._owners.pop(metadata.uuid, None)
        if owner is not None and not owner.is_available:
            owner = None
        if owner is None and metadata.chunk_id <= 0:
            owner = choose(facts)
        if owner is not None and metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            if len(self._owners) >= CHUNKED_MESSAGES_MAX:
                del self._owners[next(iter(self._owners))]
            self._owners[metadata.uuid] = owner
        return owner

    def on_left(self, consumer: Consumer) -> None:
        if self._owners:
            self._owners = {uuid: owner for uuid, owner in self._owners.items() if owner is not consumer}


class InTurn:
    """Shared: one message each, in turn."""

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self._begun = Begun()
        self._ready = ReadyConsumers()

    def check_newcomer(self, consumer: Consumer) -> None:
        pass

    def add(self, consumer: Consumer) -> None:
        insort(self.consumers, consumer, key=priority_of)
        self._ready.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self._ready.remove(consumer)
            self._begun.on_left(consumer)

    def wake(self, consumer: Consumer) -> None:
        self._ready.wake(consumer)

    def consumer_for(self, facts: Facts) -> Consumer | None:
        return self._begun.consumer_for(facts, self._choose)

    def _choose(self, facts: Facts) -> Consumer | None:
        self._ready.end_turn()
        return self._ready.next(1)


class ByKey:
    """Key_Shared: each key has its consumer."""

    def __init__(self, topic: DispatchedTopic, policy: KeySharedPolicy) -> None:
        self.consumers: list[Consumer] = []
        self.policy = policy
        self._begun = Begun()
        self._selector = make_selector(topic, policy)

    def check_newcomer(self, consumer: Consumer) -> None:
        pass

    def add(self, consumer: Consumer) -> None:
        self._selector.add(consumer, consumer.name, consumer.hash_ranges)
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self._selector.remove(consumer)
            self._begun.on_left(consumer)

    def wake(self, consumer: Consumer) -> None:
        pass  # a key says which one to look at

    def consumer_for(self, facts: Facts) -> Consumer | None:
        return self._begun.consumer_for(facts, self._choose)

    def _choose(self, facts: Facts) -> Consumer | None:
        selector, metadata = self._selector, facts.metadata
        consumer = selector.select(1 if metadata is None else selector.hash_of(sticky_key(metadata)))
        return consumer if consumer is not None and consumer.is_available else None
