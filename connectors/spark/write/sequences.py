"""Exactly once into topics: the sequence ids of one producer, and what a repeated task may leave out. No IO.

A broker that de-duplicates keeps, for each name of a producer, the highest sequence id that it has stored, and drops
what is not above it (spec/pulsar.md, de-duplication). It believes the number, not the content: if a repeated task had
other rows, or the same in another order, rows would be lost. So a sequence id contains the batch, the row of the task,
and a checksum over the rows up to that one:

    62        36 35         18 17         0
    ┌───────────┬─────────────┬────────────┐
    │ batch + 1 │ row         │ checksum   │      27, 18 and 18 bits
    └───────────┴─────────────┴────────────┘

Rows are sent in groups; a group is one entry and is stored as a whole or not at all. The official clients for C++ and
Python tell the broker the id of an entry's first message only, so all messages of a group have the id of its last row.

A repeated task learns the last stored id when it opens its producer, and compares:

    holding   rows up to the stored one are kept, not sent; there, the checksums must be the same
    probing   the next row is sent alone. If it is stored, nothing of the former attempt can come any more
    sending   every row is sent
    repeating the rows differ: all of them are sent, by a producer without a name. Never fewer, some twice
"""

import hashlib
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple, Protocol

from connectors.spark.write.message import Outgoing, size_of
from magnetar_core.runtime.types import ConfigurationError, MagnetarError

_CHECKSUM_BITS: Final = 18
_ROW_BITS: Final = 18

ROWS_MAX: Final = 1 << _ROW_BITS
"""Rows that one name of a producer can number in a batch; the next rows of the task have the next name."""

BATCHES_MAX: Final = (1 << 27) - 1
"""Batches of one query: four years at one a second. A new checkpoint begins again."""


class CheckpointSetBack(MagnetarError):
    """The topic has messages of a later batch of the same query."""


class Place(NamedTuple):
    """The content of a sequence id."""

    batch: int
    row: int
    checksum: int


def pack(place: Place) -> int:
    """The sequence id, at least 1. Raises ConfigurationError for a batch number that is too large."""
    if not 0 <= place.batch < BATCHES_MAX:
        raise ConfigurationError(
            f"batch {place.batch}: deduplication numbers {BATCHES_MAX:,} batches of a query; use a new checkpoint"
        )
    assert 0 <= place.row < ROWS_MAX, place
    assert 0 <= place.checksum < 1 << _CHECKSUM_BITS, place
    return ((place.batch + 1) << _ROW_BITS | place.row) << _CHECKSUM_BITS | place.checksum


def unpack(sequence_id: int) -> Place | None:
    """None: the broker knows nothing of the producer."""
    if sequence_id < 0:
        return None
    rows = sequence_id >> _CHECKSUM_BITS
    return Place((rows >> _ROW_BITS) - 1, rows & (ROWS_MAX - 1), sequence_id & ((1 << _CHECKSUM_BITS) - 1))


class Group(NamedTuple):
    """Messages that become one entry."""

    sequence_id: int
    messages: list[Outgoing]


class Held(Protocol):
    """Messages that are kept until it is known whether they are to be sent."""

    def append(self, message: Outgoing) -> None: ...
    def clear(self) -> None: ...
    @property
    def last(self) -> Outgoing | None: ...
    def __iter__(self) -> Iterator[Outgoing]: ...


class State(Enum):
    HOLDING = "holding"
    PROBING = "probing"
    SENDING = "sending"
    REPEATING = "repeating"


class Numbering:
    """The rows that one task sends by one producer, in order."""

    def __init__(self, batch: int, held: Held, group_rows: int, group_bytes: int) -> None:
        """A group has at most *group_rows*, and ends when it has *group_bytes*."""
        self.state = State.HOLDING
        self._batch = batch
        self._held = held
        self._group_rows = group_rows
        self._group_bytes = group_bytes
        self._rows = 0
        """Rows that were added."""
        self._digest = b""
        self._group: list[Outgoing] = []
        self._size_bytes = 0
        """Bytes of the group."""
        self._stored: Place | None = None
        """The last stored place of this batch; None: nothing of it is stored."""

    @property
    def is_full(self) -> bool:
        """Whether no more rows can be numbered."""
        return self._rows == ROWS_MAX

    def opened(self, last_sequence_id: int) -> Group | None:
        """Take the last stored id of the producer, which the broker has sent. Returns what is to be sent (again) as a
        probe, and awaited; None: nothing is to be sent now. Raises CheckpointSetBack."""
        assert self.state in (State.HOLDING, State.PROBING), self.state
        place = unpack(last_sequence_id)
        if place is not None and place.batch > self._batch:
            raise CheckpointSetBack(
                f"this is batch {self._batch} of the query, and the topic has messages of its batch {place.batch}: the "
                "checkpoint was set back. Start with a new checkpoint, or leave deduplication out"
            )
        self._stored = place if place is not None and place.batch == self._batch else None
        self.state = State.HOLDING
        return self._compare() if self._rows else None

    def add(self, message: Outgoing) -> Group | None:
        """Returns the group that is to be sent now, if one is complete. While repeating nothing is to be added, and
        while probing nothing before `stored` or `opened` was called."""
        assert self.state in (State.HOLDING, State.SENDING), self.state
        assert not self.is_full
        self._digest = _chained_digest(self._digest, message)
        self._rows += 1
        if self.state is State.HOLDING:
            self._held.append(message)
            return self._compare()
        self._group.append(message)
        self._size_bytes += size_of(message)
        is_complete = len(self._group) == self._group_rows or self._size_bytes >= self._group_bytes
        return self._take_group() if is_complete or self.is_full else None

    def _compare(self) -> Group | None:
        """Look at the last row, with what is stored."""
        row, stored = self._rows - 1, self._stored
        if stored is not None and row < stored.row:
            return None
        if stored is not None and row == stored.row:
            if stored.checksum != self._checksum():
                self.state = State.REPEATING
            return None
        last = self._held.last
        assert last is not None, "every row is held until one is stored"
        self.state = State.PROBING
        return Group(self._id(), [last])

    def stored(self) -> None:
        """The probe was stored, and was no duplicate: what comes now is above all that former attempts sent."""
        assert self.state is State.PROBING, self.state
        self.state = State.SENDING
        self._held.clear()

    @property
    def open_bytes(self) -> int:
        """Bytes of the group that is not complete yet."""
        return self._size_bytes

    def cut(self) -> Group | None:
        """End the group here, before it is complete: a repeated task does not depend on where groups end."""
        return self._take_group() if self._group else None

    def ended(self) -> Group | None:
        """No more rows come. Returns the last group; the state is REPEATING afterwards if a former attempt had sent
        more rows."""
        if self.state is State.HOLDING and self._stored is not None and self._rows <= self._stored.row:
            self.state = State.REPEATING
        return self.cut()

    def _take_group(self) -> Group:
        group, self._group, self._size_bytes = Group(self._id(), self._group), [], 0
        return group

    def _id(self) -> int:
        return pack(Place(self._batch, self._rows - 1, self._checksum()))

    def _checksum(self) -> int:
        return int.from_bytes(self._digest[:4], "big") >> (32 - _CHECKSUM_BITS)


def _chained_digest(before: bytes, message: Outgoing) -> bytes:
    """A digest over the digest of the rows before and this row; 8 bytes."""
    digest = hashlib.blake2b(before, digest_size=8)
    properties = sorted((message.properties or {}).items())
    time = None if message.event_time_ms is None else str(message.event_time_ms)
    for part in (message.value, message.key, time, *(text for pair in properties for text in pair)):
        data = b"" if part is None else part.encode() if isinstance(part, str) else part
        digest.update(b"-" if part is None else b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


# ------------------------------------------------------------------------------------- partitions

KEYLESS_ROWS: Final = 1_000
"""Rows without a key that go to one partition before the next gets its share: whole batches of the client."""


def partition_of(key: str | None, row: int, count: int) -> int:
    """Where a message goes: by its key as Java's producers have it, else (none, or empty) by the number of its row."""
    if count == 1:
        return 0
    if not key:
        return row // KEYLESS_ROWS % count
    return java_hash(key) % count


def java_hash(text: str) -> int:
    """`String.hashCode` of Java without its sign bit: the default `JavaStringHash` of Java's producers."""
    number = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) & 0xFFFF_FFFF
    return number & 0x7FFF_FFFF
