"""Which consumer of a Key_Shared subscription a key belongs to. No IO.

A key's hash comes from Murmur3 (32 bits, seed 0, sign dropped), and is never 0. How, depends on the selector, which
maps the hash to a consumer:

    ConsistentHashing   1 + the remainder by 65535. A ring with 100 points for each consumer; the first point at or
                        after the hash decides
    HalvedRanges        the remainder by 65536, and 1 instead of 0. A new consumer takes the lower half of the largest
                        range
    StickyRanges        the same remainder. Consumers say which hashes they want; ranges may not overlap

So does Apache's broker 4.0.8: what it gave to whom is in tests/vectors/key_shared, and ours gives the same.
"""

import base64
import binascii
from array import array
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Generic, Protocol, TypeVar

from broker.errors import ConsumerAssignError
from managed_ledger.messages_pb2 import MessageMetadata

C = TypeVar("C", bound=Hashable)

HASHES: Final = 65536

# Ranges of one consumer; they are kept, compared with those of all others, and reported in the statistics.
RANGES_MAX: Final = 1_000


def check_ranges(count: int) -> None:
    """Raises ConsumerAssignError if a consumer may not have so many."""
    if count > RANGES_MAX:
        raise ConsumerAssignError(f"{count} ranges, more than {RANGES_MAX} of a consumer; join those that touch")


_MASK: Final = 0xFFFF_FFFF


def murmur3(data: bytes) -> int:
    """Murmur3, 32 bits, seed 0, without the sign bit."""
    return _finished(_mixed(0, data), data, len(data))


def murmur3_of_each(prefix: bytes, endings: Iterable[bytes]) -> list[int]:
    """The hashes of *prefix* with each of the *endings*; a long prefix is gone through once."""
    whole = len(prefix) & ~3
    state, rest = _mixed(0, prefix), prefix[whole:]
    ends = [rest + ending for ending in endings]
    return [_finished(_mixed(state, end), end, whole + len(end)) for end in ends]


def _mixed(hash_: int, data: bytes) -> int:
    """The state behind the whole words of *data*."""
    mask = _MASK
    for offset in range(0, len(data) & ~3, 4):
        word = int.from_bytes(data[offset : offset + 4], "little") * 0xCC9E2D51 & mask
        word = (word << 15 | word >> 17) * 0x1B873593 & mask
        hash_ ^= word
        hash_ = ((hash_ << 13 | hash_ >> 19) & mask) * 5 + 0xE6546B64 & mask
    return hash_


def _finished(hash_: int, data: bytes, length: int) -> int:
    """The hash of *length* bytes, of which *data* are the last, from the state behind their whole words."""
    mask = _MASK
    word = int.from_bytes(data[len(data) & ~3 :], "little") * 0xCC9E2D51 & mask
    hash_ ^= ((word << 15 | word >> 17) & mask) * 0x1B873593 & mask
    hash_ ^= length
    hash_ ^= hash_ >> 16
    hash_ = hash_ * 0x85EBCA6B & mask
    hash_ ^= hash_ >> 13
    hash_ = hash_ * 0xC2B2AE35 & mask
    hash_ ^= hash_ >> 16
    return hash_ & 0x7FFF_FFFF


def sticky_key(metadata: MessageMetadata) -> bytes:
    """The key by which an entry keeps its order: ordering key, else partition key, else one unique to the entry."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = metadata.partition_key.encode()
        if metadata.partition_key_b64_encoded:
            try:
                return base64.b64decode(key, validate=True)
            except binascii.Error:
                return key
        return key
    # Messages without a key have no order to keep and spread over all consumers, as since Pulsar 4.0. (Older brokers
    # gave all of them one key, NONE_KEY.)
    return f"{metadata.producer_name}-{metadata.sequence_id}".encode()


def hash_by_ranges(key: bytes) -> int:
    """1 … 65535, for selectors with ranges."""
    return murmur3(key) % HASHES or 1


def hash_by_ring(key: bytes) -> int:
    """1 … 65535, for the ring."""
    return _on_ring(murmur3(key))


def _on_ring(hash_: int) -> int:
    return hash_ % (HASHES - 1) + 1


def _merged(ranges: Iterable[tuple[C, int, int]]) -> dict[C, list[tuple[int, int]]]:
    """Consumer → its ranges, of *ranges* in order; those that touch are one."""
    ranges_of: dict[C, list[tuple[int, int]]] = {}
    for consumer, start, end in ranges:
        own_ranges = ranges_of.setdefault(consumer, [])
        if own_ranges and own_ranges[-1][1] == start - 1:
            own_ranges[-1] = own_ranges[-1][0], end
        else:
            own_ranges.append((start, end))
    return ranges_of


class Selector(Protocol[C]):
    """Maps keys to hashes, and hashes to consumers."""

    def add(self, consumer: C, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Raises ConsumerAssignError; nothing has changed then."""
        ...

    def remove(self, consumer: C) -> None: ...

    def hash_of(self, key: bytes) -> int:
        """1 … 65535."""
        ...

    def select(self, hash_: int) -> C | None: ...

    def ranges(self) -> Mapping[C, list[tuple[int, int]]]:
        """Consumer → the hashes that are its own: ranges in order, both ends included, none touches the next."""
        ...


class ConsistentHashing(Generic[C]):
    """A ring of points; a consumer that joins or leaves moves only the keys next to its points.

    Consumers of the same name get different points: each has a number, the lowest that is free among them. Where points
    of several consumers coincide, the consumer that joined first has it, as in Apache's broker.
    """

    def __init__(self, points: int = 100) -> None:
        self._points = points
        self._hashes_of: dict[C, array[int]] = {}
        self._numbers: dict[str, dict[C, int]] = {}
        self._names: dict[C, str] = {}
        # Point → its consumers in the order in which they joined.
        self._owners: dict[int, list[C]] = {}
        # The points in order, as they were when they were needed; None when one has left since. Those of newcomers are
        # sorted in then: many consumers that join or leave at once cost one sort, and one that joins a part of it.
        self._ring: list[int] | None = []
        self._fresh: list[int] = []

    def add(self, consumer: C, name: str, ranges: Sequence[tuple[int, int]] = ()) -> None:
        """Put the points of *consumer* on the ring. Consumers of one name have different points, by their lowest free
        numbers."""
        twins = self._numbers.setdefault(name, {})
        taken = set(twins.values())
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        twins[consumer] = number
        self._names[consumer] = name
        endings = (str(point).encode() for point in range(self._points))
        hashes = sorted(set(map(_on_ring, murmur3_of_each(f"{name}\0{number}\0".encode(), endings))))
        self._hashes_of[consumer] = array("H", hashes)
        self._fresh += [hash_ for hash_ in hashes if hash_ not in self._owners]
        for hash_ in hashes:
            self._owners.setdefault(hash_, []).append(consumer)

    def remove(self, consumer: C) -> None:
        name = self._names.pop(consumer, None)
        if name is None:
            return
        twins = self._numbers[name]
        del twins[consumer]
        if not twins:
            del self._numbers[name]
        for hash_ in self._hashes_of.pop(consumer):
            owners = self._owners[hash_]
            owners.remove(consumer)
            if not owners:
                del self._owners[hash_]
        self._ring = None

    def hash_of(self, key: bytes) -> int:
        return hash_by_ring(key)

    def select(self, hash_: int) -> C | None:
        ring = self._points_in_order()
        if not ring:
            return None
        index = bisect_left(ring, hash_)
        return self._owners[ring[index if index < len(ring) else 0]][0]

    def _points_in_order(self) -> list[int]:
        if self._ring is None:
            self._ring = sorted(self._owners)
        elif self._fresh:
            self._ring += self._fresh
            self._ring.sort()
        self._fresh.clear()
        return self._ring

    def ranges(self) -> Mapping[C, list[tuple[int, int]]]:
        ring = self._points_in_order()
        if not ring:
            return {}
        ends = ring if ring[-1] == HASHES - 1 else [*ring, HASHES - 1]  # behind the last point it is the first one's
        starts = [1, *(end + 1 for end in ends[:-1])]
        owners = [self._owners[ring[index if index < len(ring) else 0]][0] for index in range(len(ends))]
        return _merged(zip(owners, starts, ends, strict=True))


class HalvedRanges(Generic[C]):
    """Ranges by their upper ends; a new consumer halves the largest."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._owners: list[C] = []

    def add(self, consumer: C, name: str, ranges: Sequence[tuple[int, int]] = ()) -> None:
        """The largest range is cut in half; the new consumer gets the lower half. Raises ConsumerAssignError."""
        if not self._ends:
            self._ends, self._owners = [HASHES], [consumer]
            return
        starts = [0, *self._ends[:-1]]
        sizes = [end - start for start, end in zip(starts, self._ends, strict=True)]
        size = max(sizes)
        if size < 2:
            raise ConsumerAssignError("no more hash ranges to share out: too many consumers")
        index = sizes.index(size)
        self._ends.insert(index, starts[index] + size // 2)
        self._owners.insert(index, consumer)

    def remove(self, consumer: C) -> None:
        """The range of *consumer* goes to its neighbour."""
        if consumer not in self._owners:
            return
        index = self._owners.index(consumer)
        if index == len(self._owners) - 1 and index > 0:
            self._ends.pop(index - 1)  # the left neighbour grows to the end
        else:
            self._ends.pop(index)  # the right neighbour grows to the left
        self._owners.pop(index)

    def select(self, hash_: int) -> C | None:
        if not self._ends:
            return None
        return self._owners[bisect_left(self._ends, hash_)]

    def hash_of(self, key: bytes) -> int:
        return hash_by_ranges(key)

    def ranges(self) -> Mapping[C, list[tuple[int, int]]]:
        starts = [0, *(end + 1 for end in self._ends[:-1])]
        return _merged(zip(self._owners, starts[: len(self._ends)], self._ends, strict=True))


class StickyRanges(Generic[C]):
    """Consumers name their ranges (both ends included); a hash outside all ranges has no consumer."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, C]] = []

    def add(self, consumer: C, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """The client names its ranges itself. Raises ConsumerAssignError: none, or some overlap."""
        if not ranges:
            raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
        wanted = sorted(ranges)
        for start, end in wanted:
            if not 0 <= start <= end <= HASHES:
                raise ConsumerAssignError(f"Invalid range [{start},{end}]: expected 0 ≤ start ≤ end ≤ {HASHES}")
        taken = sorted([*((start, end) for start, end, _ in self._ranges), *wanted])
        for (start, end), (following, last) in pairwise(taken):
            if following <= end:
                raise ConsumerAssignError(f"Range conflict: [{start},{end}] and [{following},{last}] overlap")
        self._ranges.extend((start, end, consumer) for start, end in wanted)
        self._ranges.sort(key=lambda item: item[0])

    def remove(self, consumer: C) -> None:
        self._ranges = [item for item in self._ranges if item[2] != consumer]

    def select(self, hash_: int) -> C | None:
        index = bisect_left(self._ranges, hash_ + 1, key=lambda item: item[0]) - 1
        if index >= 0 and self._ranges[index][1] >= hash_:
            return self._ranges[index][2]
        return None

    def hash_of(self, key: bytes) -> int:
        return hash_by_ranges(key)

    def ranges(self) -> Mapping[C, list[tuple[int, int]]]:
        return _merged((consumer, start, end) for start, end, consumer in self._ranges)
