"""Which consumer gets the next entry of a subscription. No IO: dispatchers ask for reads and are given the entries.

    flow, acks, appends, timers ──▶ next_read() ──▶ Read ──▶ (cursor or ledger) ──▶ on_entries(read, entries)
                                        ▲                                                    │
                                        └────────────────── redelivery ◀─────────────────────┘

Rules all dispatchers keep:

1. An entry is sent only to a consumer with permits left, whose connection takes bytes. A batch is never cut.
2. Entries to be delivered again go before entries that were never read, the lowest position first; except those that
   wait for one consumer, of their key or of their message's other chunks.
3. While an available consumer has backlog, `next_read` asks for a read.
4. Acknowledged entries and markers of the broker are never sent; markers are acknowledged when they are met.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, Protocol

from broker.topic.clients.batch_sizes import BatchSizes
from broker.topic.clients.consumer import Consumer
from broker.topic.dispatchers.kinds import KeySharedPolicy
from broker.topic.ports import CursorPort, Entries, EntryLike, Room
from magnetar_core.runtime.types import Corruption
from managed_ledger.messages import message_count, metadata_of, split_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """Limits and delays of a dispatcher, from the settings of the broker and the policies of the namespace."""

    consumers_max: int = 0
    """0: no limit."""
    read_entries_max: int = 100
    read_bytes_max: int = 5 * 1024 * 1024
    round_robin_messages: int = 20
    unacked_per_consumer_max: int = 50_000
    """0: no limit."""
    unacked_per_subscription_max: int = 200_000
    """0: no limit."""
    unstored_ranges_max: int | None = None
    """With more runs of entries acknowledged out of order nothing new is delivered: the cursor does not store more,
    and a restart would deliver the rest again. None: that stops nothing. (Shared and Key_Shared.)"""
    throttles_caught_up: bool = True
    """Whether rates hold also for subscriptions that are about at the end of the topic."""
    backlogged_entries: int = 1_000
    """With more entries to be read a subscription is not about at the end."""
    batch_index_acks: bool = False
    failover_delay_ms: int = 1000
    delayed_delivery: bool = True
    delayed_tick_ms: int = 1000
    delayed_strict: bool = False


class Read(NamedTuple):
    """What should be read next: at the cursor (*first* is None), or from the ledger for redelivery."""

    first: Position | None
    entries_max: int
    bytes_max: int


class Facts(NamedTuple):
    """What a dispatcher needs of an entry's metadata."""

    messages: int
    is_marker: bool
    deliver_at_ms: int
    metadata: MessageMetadata | None


def is_chunk(facts: Facts) -> bool:
    """Whether an entry is a part of a message."""
    metadata = facts.metadata
    return metadata is not None and metadata.num_chunks_from_msg > 1 and bool(metadata.uuid)


def facts_of(entry: EntryLike) -> Facts:
    """Never fails: an entry that cannot be parsed is sent as one message, and the client reports it."""
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


class Held(NamedTuple):
    """What a dispatcher does not send for now."""

    delayed: int = 0
    """Entries that wait for their time, as far as they were read."""
    replayed: int = 0
    """Entries that were read and wait for a consumer that can take them."""
    is_blocked: bool = False
    """Whether nothing is delivered before some messages are acknowledged."""


Draining = tuple[list[tuple[int, int, int]], int]
"""Hashes that move, as (hash, entries left, blocked attempts); and how many have moved."""


class KeyShared(Protocol):
    """What only the dispatcher of the type Key_Shared knows."""

    policy: KeySharedPolicy

    def hash_ranges(self) -> Mapping[Consumer, list[tuple[int, int]]]:
        """Consumer → the hashes that are its own, both ends included."""
        ...

    def draining(self, consumer: Consumer) -> Draining:
        """What *consumer* must finish before it moves to another consumer."""
        ...


class Dispatcher(Protocol):
    """Distributes the entries of one subscription; one class for each subscription type."""

    consumers: list[Consumer]
    batch_sizes: BatchSizes
    is_in_order: bool
    """Whether one consumer gets all entries, and no entry that was sent is remembered."""
    active: Consumer | None
    """That consumer; None where entries are shared out."""
    unacked_messages: int
    """Messages that were sent and are not acknowledged, where entries are remembered."""

    @property
    def held(self) -> Held: ...

    @property
    def key_shared(self) -> KeyShared | None: ...

    def check_newcomer(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy, ConsumerAssignError if *consumer* cannot join now."""
        ...

    def add(self, consumer: Consumer) -> None:
        """Take in a consumer that `check_newcomer` let pass. Raises ConsumerAssignError."""
        ...

    def remove(self, consumer: Consumer) -> None: ...

    def wake(self, consumer: Consumer) -> None:
        """*consumer* has more permits, or its connection has room again."""
        ...

    def take_served(self) -> Collection[Consumer]:
        """The consumers that entries were sent to since the last call."""
        ...

    def next_read(self) -> Read | None:
        """What should be read now: bytes that the consumers have room for, at least one entry. None: nothing."""
        ...

    def room_of_reads(self) -> Room | None:
        """The room of the one connection that gets all entries of a read; None if entries that no consumer takes are
        read again."""
        ...

    def on_entries(self, read: Read, entries: Entries) -> None: ...

    def on_acked(self, position: Position, remaining_messages: int) -> None:
        """An entry was acknowledged, except for *remaining_messages* of its batch."""
        ...

    def on_acked_up_to(self, position: Position) -> None:
        """Everything at or before *position* was acknowledged."""
        ...

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None: ...

    def use_limits(self, limits: DispatchLimits) -> None:
        """The limits are others from now on."""
        ...

    def use_cursor(self, cursor: CursorPort) -> None:
        """Go on with *cursor*, which stands for the same subscription."""
        ...

    def next_timer_ms(self) -> int | None:
        """When (wall clock) `next_read` should be called again even without an event; None: at no certain time."""
        ...


class Average:
    """Messages per entry, a moving average: permits count messages, reads count entries."""

    __slots__ = ("_messages_per_entry",)

    def __init__(self) -> None:
        self._messages_per_entry = 1.0

    def entries_for(self, permits: int, entries_max: int) -> int:
        return max(1, min(int(permits / self._messages_per_entry), entries_max))

    def permits_for(self, entries: int) -> int:
        """The permits that so many entries take."""
        return ceil(entries * self._messages_per_entry)

    def note(self, entries: int, messages: int) -> None:
        if entries:
            self._messages_per_entry = max(1.0, (self._messages_per_entry + messages / entries) / 2)


def count_bits(words: Iterable[int]) -> int:
    """Set bits of the words of a Java BitSet, which come as signed or unsigned 64-bit numbers."""
    return sum((word & 0xFFFF_FFFF_FFFF_FFFF).bit_count() for word in words)
