"""The producers of a topic: admission, names and exclusive access.

Rules:

1. The epoch of an exclusive producer is durable before the producer is answered.
2. A producer of the topic API that comes with the present epoch takes over from the one that has it: both are of one
   client, which does not wait until its former call is noticed to be dead. Nobody else was told that epoch.
3. A producer whose name was used over the topic API waits until the messages sent there are answered: its own batches
   may begin among those messages, and only the answers tell which of them are stored.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from broker.errors import NotReady, ProducerBusy, storage_errors
from broker.topic.clients.leaving import Steps, by_turns
from broker.topic.clients.producer import Producer
from broker.topic.limits import TopicLimits, has_room_for_host
from broker.topic.ports import NOT_KNOWN, NextBroker
from broker.topic.publishing.producer_access import EPOCH_PROPERTY, Access, ProducerAccess
from broker.topic.requests import Attached, ProducerRequest
from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import FAILED, Bell, Tasks, attempt, in_turns
from magnetar_core.topics.topic_name import TopicName

# How long a producer waits for the answers to entries of its name (rule 3); then it is refused and retries.
NAME_WAIT_MAX_S: Final = 5.0


class EpochStore(Protocol):
    """Where the epoch of the exclusive producer survives: the properties of the managed ledger."""

    @property
    def properties(self) -> Mapping[str, str]: ...

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Durable on return. Raises ManagedLedgerError."""
        ...


class Producers:
    """The producers attached to one topic, and those that wait for exclusive access."""

    def __init__(self, topic: TopicName, store: EpochStore, clock: Clock, tasks: Tasks, answered: Bell) -> None:
        """*answered* rings when storage has answered, when a producer leaves, and when the topic ends."""
        self.by_name: dict[str, Producer] = {}
        # Producers are admitted one after the other. Also held while deduplication is switched on or off.
        self.admission = asyncio.Lock()
        self.last_active_ms = clock.wall_ms()
        self.deduplicates = False
        """Whether sequence ids are compared; without it names need not wait (rule 3)."""
        self._topic = topic
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._answered = answered
        self._access: ProducerAccess[Producer] = ProducerAccess(_stored_epoch(store.properties))
        self._waiting: dict[Producer, ProducerRequest] = {}
        """The requests of those that wait for exclusive access."""
        # Name → a producer that has left while entries of it were pending.
        self._departing: dict[str, Producer] = {}
        self._is_closed = False

    @property
    def epoch(self) -> int | None:
        """How often exclusive access has been given; None: never."""
        return self._access.epoch

    # ------------------------------------------------------------------------------------ names

    async def until_no_send_is_pending(self, producer: Producer) -> None:
        """Wait, NAME_WAIT_MAX_S at most, until entries sent under the name of *producer* are answered (rule 3)."""
        if self._must_wait(producer):
            await self._answered.until(lambda: not self._must_wait(producer), self._clock, NAME_WAIT_MAX_S)

    def check_no_send_is_pending(self, producer: Producer) -> None:
        """Raises NotReady while entries sent under the name of *producer* are pending (rule 3)."""
        if self._must_wait(producer):
            raise NotReady(f"{self._topic}: what {producer.name} sent over the topic API is still being stored")

    def _must_wait(self, producer: Producer) -> bool:
        """Whether messages that were sent under this name over the topic API are not answered yet (rule 3).

        A producer of the topic API waits for that by itself, while it holds the name.
        """
        departing = self._departing.get(producer.name)
        return (
            departing is not None
            and departing.regroups
            and not producer.regroups
            and self.deduplicates
            and not self._is_closed
        )

    def is_storing_for(self, name: str) -> bool:
        """Whether messages that a former producer of that name sent are still being stored."""
        return name in self._departing

    async def until_stored_for(self, producer: Producer, timeout_s: float) -> bool:
        """Wait until all messages of a former producer of this name are answered, or *producer* has left itself.

        Returns whether that is so; False after *timeout_s*.
        """
        return await self._answered.until(
            lambda: producer.is_closed or not self.is_storing_for(producer.name), self._clock, timeout_s
        )

    async def probe_producer_of_same_name(self, producer: Producer) -> None:
        """Another producer of that name may be dead: its connection is asked, and closed if it does not answer. A
        client that comes back with a name of its own must not wait for its own old connection."""
        other = self.by_name.get(producer.name)
        if other is not None and other.sink is not producer.sink and not _succeeds(producer, other):
            is_alive = other.sink.is_alive()
            if not isinstance(is_alive, bool):
                await is_alive

    def make_room(self, producer: Producer, limits: TopicLimits, topic_epoch: int | None = None) -> None:
        """Raises ProducerBusy if there are too many already, in all or of the producer's host, or the name is in use;
        ProducerFenced if the name is in use and its mode keeps it out anyway.

        A client that lost its connection reconnects under the name that the broker made for it. The broker may not
        have noticed the loss yet; the producer of the old connection is then disconnected. One that fences the others
        out has their names, but not their room (`ServerCnx.handleProducer` asks for that first, 4.0.8).
        """
        if self._takes_over(producer, topic_epoch):
            return
        other = self.by_name.get(producer.name)
        comes_back = other is not None and _succeeds(producer, other)
        if limits.producers_max and len(self.by_name) - comes_back >= limits.producers_max:
            raise ProducerBusy("Topic reached max producers limit")
        if producer.access_mode == wire.ExclusiveWithFencing:
            return
        if other is not None:
            if not comes_back:
                # Who is kept out by the mode hears that first: by it, the client knows whether to try again.
                self._access.decide(producer.access_mode, topic_epoch, self._attached_count())
                raise ProducerBusy(
                    f"Producer with name '{producer.name}' is already connected to topic '{self._topic}'"
                )
            self.disconnect(other)
        others = (existing.address for existing in self.by_name.values())
        if not has_room_for_host(producer.address, others, limits.producers_per_host_max):
            raise ProducerBusy(f"Topic '{self._topic}' reached max same address producers limit")

    # -------------------------------------------------------------------------------- admission

    async def admit(self, request: ProducerRequest, last_sequence_id: int, check_open: Callable[[], None]) -> Attached:
        """Attach a producer according to its access mode. Raises BrokerError, also from *check_open*.

        The admission lock is held. *check_open* is called after each wait.
        """
        assert self.admission.locked(), "producers are admitted one after the other"
        producer = request.producer
        producer.encrypts = request.encrypted
        if self._takes_over(producer, request.topic_epoch):
            former_holder, epoch = self._access.holder, self._access.epoch
            assert former_holder is not None, "somebody has exclusive access"
            assert epoch is not None, "exclusive access has an epoch"
            self.disconnect(former_holder)  # no waiter gets its access: that takes the admission lock
            self._access.grant(producer, epoch)
            self._put(producer)
            return Attached(last_sequence_id, epoch, ready=True)
        decision = self._access.decide(producer.access_mode, request.topic_epoch, self._attached_count())
        if decision.access is Access.WAITS:
            self._access.wait(producer, request.topic_epoch)
            self._waiting[producer] = request
            self._put(producer)
            return Attached(last_sequence_id, None, ready=False)
        if decision.access is Access.EXCLUSIVE_AFTER_FENCING:
            waiters = self._access.fence()
            await in_turns(by_turns(self._expel(waiters)))
            check_open()
        if decision.epoch is not None:
            await self._store_epoch(decision.epoch)  # rule 1
            check_open()
            self._access.grant(producer, decision.epoch)
        self._put(producer)
        return Attached(last_sequence_id, decision.epoch, ready=True)

    def _takes_over(self, producer: Producer, topic_epoch: int | None) -> bool:
        """Whether *producer* follows an earlier one of the same client: it knows the present epoch (rule 2)."""
        holder = self._access.holder
        is_known = topic_epoch is not None and topic_epoch == self._access.epoch
        return holder is not None and is_known and holder.regroups and producer.regroups

    def _put(self, producer: Producer) -> None:
        self.by_name[producer.name] = producer
        self.last_active_ms = self._clock.wall_ms()

    def _attached_count(self) -> int:
        """Producers that may write now."""
        return len(self.by_name) - len(self._access.waiting)

    async def _store_epoch(self, epoch: int) -> None:
        if self._access.epoch == epoch:
            return
        with storage_errors():
            await self._store.set_properties({**self._store.properties, EPOCH_PROPERTY: str(epoch)})

    async def _promote(self) -> None:
        """Give exclusive access to the producer that waits longest."""
        async with self.admission:
            following = self._access.next_in_line(self._attached_count())
            if following is None or self._is_closed:
                return
            producer, epoch = following
            what = f"{self._topic}: making {producer} the exclusive producer"
            if await attempt(what, self._store_epoch(epoch)) is FAILED:
                self.disconnect(producer)  # it asks, and waits, again
                return
            if producer.is_closed:
                self._tasks.spawn(self._promote(), "promote")
                return
            self._access.grant(producer, epoch)
            self._waiting.pop(producer).on_ready(epoch)

    # ----------------------------------------------------------------------------------- leaving

    def close_when_answered(self, producer: Producer, done: Callable[[], None]) -> None:
        """A client closes its producer, which is *done* once all messages that it sent are answered."""
        producer.closing = done
        if not producer.pending:
            self._finish_close(producer)

    def _finish_close(self, producer: Producer) -> None:
        done, producer.closing = producer.closing, None
        assert done is not None, f"nobody waits for the close of {producer}"
        if not producer.is_closed:
            self.detach(producer)
            done()

    def on_all_answered(self, producer: Producer) -> None:
        """*producer* has nothing pending any more, and it is closed or its client waits for the close."""
        assert not producer.pending, f"{producer} has {producer.pending} messages pending"
        if producer.is_closed and self._departing.get(producer.name) is producer:
            del self._departing[producer.name]
            self._answered.ring()
        if producer.closing is not None:
            self._finish_close(producer)

    def detach(self, producer: Producer) -> None:
        """*producer* has left; the producer that waits longest for exclusive access gets it."""
        producer.is_closed = True
        self._answered.ring()
        if producer.pending:
            self._departing[producer.name] = producer
        self._waiting.pop(producer, None)
        if self.by_name.get(producer.name) is producer:
            del self.by_name[producer.name]
        self.last_active_ms = self._clock.wall_ms()
        self._access.leave(producer)
        if self._access.waiting and not self._is_closed:
            self._tasks.spawn(self._promote(), "promote")

    def disconnect(self, producer: Producer, next_broker: NextBroker = NOT_KNOWN) -> None:
        """Close a producer from the side of the broker; its client goes to *next_broker*, or looks the topic up.

        A producer that waits for exclusive access gets no close: its client still waits for the answer to its request.
        """
        if producer.is_closed:
            return
        waiting = self._waiting.get(producer)
        if waiting is not None:
            self.detach(producer)
            waiting.on_moved()
            return
        if producer.closing is not None:  # its client asks for just that; what is not answered will not be
            self._finish_close(producer)
            return
        producer.sink.on_closed(producer, next_broker)
        self.detach(producer)

    def _expel(self, waiters: list[Producer]) -> Steps:
        """An exclusive producer takes the topic; one of the others leaves with each step."""
        for waiter in waiters:
            if waiter in self._waiting:  # else it has left meanwhile
                self._waiting[waiter].on_ready(None)
                self.detach(waiter)
                yield
        yield from self.disconnect_all()

    def require_encryption(self) -> Steps:
        """Disconnect the producers that do not encrypt; one with each step."""
        for producer in list(self.by_name.values()):
            if not producer.encrypts:
                self.disconnect(producer)
                yield

    def disconnect_all(self, next_broker: NextBroker = NOT_KNOWN) -> Steps:
        """Disconnect all that are there now; one with each step."""
        for producer in list(self.by_name.values()):
            self.disconnect(producer, next_broker)
            yield

    def close(self) -> None:
        """The topic ends: producers that wait for a name stop waiting."""
        self._is_closed = True
        self._answered.ring()


def _succeeds(producer: Producer, other: Producer) -> bool:
    """Whether both are of one client, which has made its producer anew under the name that the broker gave it."""
    return other.has_generated_name and producer.has_generated_name and producer.epoch > other.epoch


def _stored_epoch(properties: Mapping[str, str]) -> int | None:
    text = properties.get(EPOCH_PROPERTY)
    return int(text) if text is not None and text.isdigit() else None
