"""One Publish call: what it has under way, and the answers that wait to be sent. No IO and no clock.

Rules:

1. A stream that has too much under way, or too many answers that its client does not read, is not read; nor are those
   of a role that have too much together, nor is any while all clients of the broker have; gRPC's flow control then
   stops its client.
2. After each step that may be waited for `changed` is called; who waits looks again.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from broker.errors import BrokerError
from broker.grpc.publishing.grouping import Run
from broker.memory_budget import MemoryBudget
from magnetar_core.runtime.types import MIB
from magnetar_core.topics import topics_pb2 as api

# Bytes and messages of one stream that storage has not answered; as much as a binary connection may have. A stream
# that is busy at 100,000 small messages a second and 100 ms of storage has 10,000 under way.
STREAM_BYTES_MAX: Final = 64 * MIB
STREAM_MESSAGES_MAX: Final = 100_000

# A message stands in memory as it came and in its entry.
COPIES: Final = 2

# Share of the calls of one role in the memory for messages that storage has not answered, as of one binary connection.
ROLE_SHARE: Final = 0.5

# Receipts that leave in one answer; a frame then stays below 64 KiB.
RECEIPTS_PER_ANSWER: Final = 2_000

# Answers that wait for their client to read. A client that sends millions of messages before it reads has fewer; one
# that never reads, and only sends what is refused, holds some 30 MB here.
ANSWERS_MAX: Final = 64


class Share:
    """What the Publish calls of one role (of one connection, where nobody is authenticated) have under way together."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.bytes = 0
        self.is_full = False
        self.waiting: dict[Stream, None] = {}
        """Streams that wait until it is not full."""

    def take(self, size_bytes: int) -> None:
        self.bytes += size_bytes
        self.budget.take(size_bytes)
        if self.bytes > ROLE_SHARE * self.budget.limit_bytes:
            self.is_full = True

    def give(self, size_bytes: int) -> None:
        self.bytes -= size_bytes
        self.budget.give(size_bytes)
        if self.bytes <= ROLE_SHARE * self.budget.limit_bytes // 2:
            self.is_full = False
            for stream in self.waiting:
                stream.changed()
            self.waiting.clear()


class Stream:
    """One Publish call."""

    def __init__(
        self, schema_version: bytes, mix_keys: bool, last_sequence_id: int, share: Share, changed: Callable[[], None]
    ) -> None:
        self._share = share
        self.changed = changed
        self.schema_version = schema_version
        self.mix_keys = mix_keys
        self.last_sequence_id = last_sequence_id
        self.next_sequence_id = 0
        self.messages = 0
        self.bytes = 0
        self.out: deque[api.PublishResponse] = deque()
        self.is_ended = False
        self.reason: BrokerError | None = None
        """Why the broker ended it; None: its client did."""
        self._is_full = False
        self._has_turn = False

    @property
    def is_answered(self) -> bool:
        """Whether nothing is under way, or will not be answered any more."""
        return self.is_ended or not self.messages

    def has_room(self) -> bool:
        """Whether it has not too much under way itself, or has ended."""
        return self.is_ended or not (self._is_full or len(self.out) > ANSWERS_MAX)

    def may_read(self) -> bool:
        """Whether the next request may be read (rule 1), or the stream has ended."""
        budget, share = self._share.budget, self._share
        if self.is_ended:
            return True
        if not self.has_room():
            return False
        if share.is_full:
            share.waiting[self] = None
            return False
        if self._has_turn or not (budget.is_full or budget.is_waiting(self)):
            self._has_turn = False
            return True
        budget.wait(self, self._take_turn)
        return False

    def _take_turn(self) -> None:
        self._has_turn = True
        self.changed()

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """A request of that size is being worked on: what of it is not under way yet stands in memory, too."""
        self._share.take(COPIES * size_bytes)
        try:
            yield
        finally:
            self._share.give(COPIES * size_bytes)

    def on_taken(self, count: int, size_bytes: int) -> None:
        self.messages += count
        self.bytes += size_bytes
        self._share.take(COPIES * size_bytes)
        if self.messages > STREAM_MESSAGES_MAX or self.bytes > STREAM_BYTES_MAX:
            self._is_full = True

    def on_stored(self, run: Run, first: api.MessageId | None) -> None:
        self._on_answered(run)
        self._answer().receipts.add(first_sequence_id=run.first_sequence_id, count=run.length, first_id=first)
        self.changed()

    def on_refused(self, run: Run, reason: str) -> None:
        self._on_answered(run)
        for sequence_id in range(run.first_sequence_id, run.first_sequence_id + run.length):
            self.refuse(sequence_id, reason)

    def _on_answered(self, run: Run) -> None:
        """The messages of *run* wait no more: give back what they took, and read on if there is room again."""
        self.messages -= run.length
        self.bytes -= run.size_bytes
        assert self.messages >= 0, "more messages were answered than the stream sent"
        assert self.bytes >= 0, "more bytes were answered than the stream sent"
        if not self.is_ended:
            self._share.give(COPIES * run.size_bytes)
        if self.messages < STREAM_MESSAGES_MAX // 2 and self.bytes < STREAM_BYTES_MAX // 2:
            self._is_full = False

    def duplicate(self, first_sequence_id: int, count: int) -> None:
        self._answer().receipts.add(first_sequence_id=first_sequence_id, count=count)
        self.changed()

    def refuse(self, sequence_id: int, reason: str) -> None:
        self._answer().refusals.add(first_sequence_id=sequence_id, count=1, reason=reason)
        self.changed()

    def on_partitions(self, count: int) -> None:
        """The topic of which this is a partition has so many."""
        self.out.append(api.PublishResponse(partitions=count))
        self.changed()

    def _answer(self) -> api.PublishResponse:
        if not self.out or len(self.out[-1].receipts) + len(self.out[-1].refusals) >= RECEIPTS_PER_ANSWER:
            self.out.append(api.PublishResponse())
        return self.out[-1]

    def end(self, reason: BrokerError | None) -> None:
        """The call is over; the first reason counts."""
        if not self.is_ended:
            self.is_ended = True
            self.reason = reason
            self._share.give(COPIES * self.bytes)
            self._share.waiting.pop(self, None)
            self._share.budget.forget(self)
            self.changed()
