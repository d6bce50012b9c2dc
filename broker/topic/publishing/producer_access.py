"""Access modes of producers: one producer exclusively, or several together. No IO.

    mode                   somebody exclusive or waiting   other producers     outdated epoch
    Shared                 ProducerBusy                    joins               –
    Exclusive              ProducerFenced                  ProducerFenced      ProducerFenced
    WaitForExclusive       waits                           waits               ProducerFenced
    ExclusiveWithFencing   disconnects all others          disconnects them    ProducerFenced

Rules:

1. A producer with exclusive access gets an epoch: the one it brings if that is the present one, else the next. The
   caller makes it durable before the producer is answered.
2. When the holder leaves, the producer that waits longest is next.
"""

from collections.abc import Hashable
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from broker.errors import ProducerBusy, ProducerFenced
from broker.wire import pulsar_pb2 as wire

P = TypeVar("P", bound=Hashable)

# The property of the managed ledger that keeps the epoch.
EPOCH_PROPERTY: Final = "pulsar.topic.epoch"

# Only clients of the topic API are told: by the names of its Python client.
_NOT_ALONE: Final = (
    'close the others, wait for their end (access="wait_for_exclusive"), or fence them out '
    '(access="exclusive_with_fencing")'
)


class Access(Enum):
    """What a new producer is granted."""

    SHARED = auto()
    EXCLUSIVE = auto()
    WAITS = auto()
    EXCLUSIVE_AFTER_FENCING = auto()


class Decision(NamedTuple):
    """*epoch* has to be stored; None for a producer without exclusive access."""

    access: Access
    epoch: int | None


class ProducerAccess(Generic[P]):
    """The exclusive producer of one topic and the producers that wait for exclusive access."""

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self.holder: P | None = None
        self.waiting: dict[P, int | None] = {}
        """In the order in which they came, with the epoch of the topic that each knows."""

    def decide(self, mode: int, topic_epoch: int | None, producers: int) -> Decision:
        """What a new producer gets; changes nothing. *producers*: how many are attached.

        Raises ProducerBusy, ProducerFenced.
        """
        is_held = self.holder is not None or bool(self.waiting)
        if mode == wire.Shared:
            if is_held:
                raise ProducerBusy(
                    f"Topic has an existing exclusive producer: {self.holder}",
                    way_out="close that one, or wait until it has ended",
                )
            return Decision(Access.SHARED, None)
        if topic_epoch is not None and self.epoch is not None and topic_epoch < self.epoch:
            raise ProducerFenced(f"Topic epoch {topic_epoch} is outdated: the present one is {self.epoch}")
        if mode == wire.ExclusiveWithFencing:
            return Decision(Access.EXCLUSIVE_AFTER_FENCING, self._epoch_for(topic_epoch))
        if mode == wire.WaitForExclusive and (is_held or producers):
            return Decision(Access.WAITS, None)
        if is_held:
            raise ProducerFenced(f"Topic has an existing exclusive producer: {self.holder}", way_out=_NOT_ALONE)
        if producers:
            raise ProducerFenced(f"Topic has {producers} existing shared producers", way_out=_NOT_ALONE)
        return Decision(Access.EXCLUSIVE, self._epoch_for(topic_epoch))

    def grant(self, producer: P, epoch: int) -> None:
        """*producer* holds the topic; *epoch* is durable."""
        assert self.epoch is None or epoch >= self.epoch, f"epoch {epoch} after {self.epoch}"
        assert self.holder is None or self.holder == producer, f"{self.holder} still has exclusive access"
        self.holder = producer
        self.epoch = epoch

    def wait(self, producer: P, topic_epoch: int | None) -> None:
        self.waiting[producer] = topic_epoch

    def fence(self) -> list[P]:
        """Take exclusive access from its holder and empty the queue; returns the producers that waited."""
        waiters = list(self.waiting)
        self.waiting.clear()
        self.holder = None
        return waiters

    def leave(self, producer: P) -> bool:
        """*producer* has left; returns whether it had exclusive access or waited for it."""
        if self.holder == producer:
            self.holder = None
            return True
        waited = producer in self.waiting
        self.waiting.pop(producer, None)
        return waited

    def next_in_line(self, producers: int) -> tuple[P, int] | None:
        """Take the next producer from the queue; returns it and the epoch to be stored. None if nobody is next."""
        if self.holder is not None or producers or not self.waiting:
            return None
        producer = next(iter(self.waiting))
        topic_epoch = self.waiting.pop(producer)
        return producer, self._epoch_for(topic_epoch)

    def _epoch_for(self, topic_epoch: int | None) -> int:
        if topic_epoch is not None and topic_epoch == self.epoch:
            return topic_epoch
        return 0 if self.epoch is None else self.epoch + 1
