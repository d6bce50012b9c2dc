"""Who may write to a topic: one exclusively, or several together. No IO.

    mode                   somebody exclusive or waiting   other producers     outdated epoch
    Shared                 ProducerBusy                    joins               –
    Exclusive              ProducerFenced                  ProducerFenced      ProducerFenced
    WaitForExclusive       waits                           waits               ProducerFenced
    ExclusiveWithFencing   pushes everybody out            pushes them out     ProducerFenced

Rules:

1. Whoever gets the topic exclusively gets an epoch: the one he brings if it is the present one, else the next. The
   caller makes it durable before the producer is told.
2. When the holder leaves, the one who waits longest is next.
"""

from collections import deque
from collections.abc import Hashable
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from broker.errors import ProducerBusy, ProducerFenced
from broker.wire import pulsar_pb2 as wire

P = TypeVar("P", bound=Hashable)

# The property of the managed ledger that keeps the epoch.
EPOCH_PROPERTY: Final = "pulsar.topic.epoch"


class Access(Enum):
    """What a producer that asks is given."""

    SHARED = auto()
    EXCLUSIVE = auto()
    WAITS = auto()
    EXCLUSIVE_AFTER_FENCING = auto()


class Decision(NamedTuple):
    """*epoch* is what has to be stored; None for those who do not get the topic exclusively."""

    access: Access
    epoch: int | None


class ProducerAccess(Generic[P]):
    """The exclusive holder of one topic and those who wait for it."""

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self.holder: P | None = None
        self.waiting: deque[tuple[P, int | None]] = deque()

    def decide(self, mode: int, topic_epoch: int | None, producers: int) -> Decision:
        """What a newcomer gets; nothing changes. *producers*: how many are attached.

        Raises ProducerBusy, ProducerFenced.
        """
        taken = self.holder is not None or bool(self.waiting)
        if mode == wire.Shared:
            if taken:
                raise ProducerBusy(f"Topic has an existing exclusive producer: {self.holder}")
            return Decision(Access.SHARED, None)
        if topic_epoch is not None and self.epoch is not None and topic_epoch < self.epoch:
            raise ProducerFenced(f"Topic epoch {topic_epoch} is outdated: the present one is {self.epoch}")
        if mode == wire.ExclusiveWithFencing:
            return Decision(Access.EXCLUSIVE_AFTER_FENCING, self._epoch_for(topic_epoch))
        if mode == wire.WaitForExclusive and (taken or producers):
            return Decision(Access.WAITS, None)
        if taken:
            raise ProducerFenced(f"Topic has an existing exclusive producer: {self.holder}")
        if producers:
            raise ProducerFenced(f"Topic has {producers} existing shared producers")
        return Decision(Access.EXCLUSIVE, self._epoch_for(topic_epoch))

    def grant(self, producer: P, epoch: int) -> None:
        """*producer* holds the topic; *epoch* is durable."""
        assert self.epoch is None or epoch >= self.epoch, f"epoch {epoch} after {self.epoch}"
        self.holder = producer
        self.epoch = epoch

    def wait(self, producer: P, topic_epoch: int | None) -> None:
        self.waiting.append((producer, topic_epoch))

    def fence(self) -> list[P]:
        """Push everybody out of the queue; returns those who waited."""
        waiters = [producer for producer, _ in self.waiting]
        self.waiting.clear()
        self.holder = None
        return waiters

    def leave(self, producer: P) -> bool:
        """*producer* is gone; True if the topic was his or he waited for it."""
        if self.holder == producer:
            self.holder = None
            return True
        remaining = deque(item for item in self.waiting if item[0] != producer)
        changed = len(remaining) != len(self.waiting)
        self.waiting = remaining
        return changed

    def next_in_line(self, producers: int) -> tuple[P, int] | None:
        """Who is to be granted the topic now, and the epoch to be stored for that; he leaves the queue."""
        if self.holder is not None or producers or not self.waiting:
            return None
        producer, topic_epoch = self.waiting.popleft()
        return producer, self._epoch_for(topic_epoch)

    def _epoch_for(self, topic_epoch: int | None) -> int:
        if topic_epoch is not None and topic_epoch == self.epoch:
            return topic_epoch
        return 0 if self.epoch is None else self.epoch + 1
