"""Which entries were acknowledged one by one, as ranges. No IO.

    ledger 5:  ····XXXX··X·····      ranges (5:3, 5:7] and (5:9, 5:10]

Ranges are kept per ledger as two sorted lists of first and last entry ids (both inclusive); they neither overlap
nor touch, so an entry is found by bisection and a stream of acknowledgements in order extends one range.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from managed_ledger.position import Position


class AckRange(NamedTuple):
    """Entries *first* to *last* of one ledger, both acknowledged."""

    ledger_id: int
    first: int
    last: int


class _Ledger:
    __slots__ = ("firsts", "lasts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []


class AckRanges:
    """A set of positions that is mostly made of runs."""

    def __init__(self) -> None:
        self._ledgers: dict[int, _Ledger] = {}

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def __len__(self) -> int:
        """The number of ranges."""
        return sum(len(ledger.firsts) for ledger in self._ledgers.values())

    def __contains__(self, position: Position) -> bool:
        ledger = self._ledgers.get(position.ledger_id)
        if ledger is None:
            return False
        index = bisect_right(ledger.firsts, position.entry_id) - 1
        return index >= 0 and ledger.lasts[index] >= position.entry_id

    def add(self, ledger_id: int, first: int, last: int) -> None:
        """Add entries *first* to *last*, merging with what they touch."""
        assert first <= last, (ledger_id, first, last)
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers[ledger_id] = _Ledger()
        firsts, lasts = ledger.firsts, ledger.lasts
        if lasts and first == lasts[-1] + 1:  # acknowledgements in order: extend the last range
            lasts[-1] = last
            return
        low = bisect_left(lasts, first - 1)  # the first range that touches or follows
        high = bisect_right(firsts, last + 1)  # behind the last range that touches
        if low < high:
            first = min(first, firsts[low])
            last = max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def run_from(self, position: Position) -> int | None:
        """The last entry of the range that contains *position*; None if none does."""
        ledger = self._ledgers.get(position.ledger_id)
        if ledger is None:
            return None
        index = bisect_right(ledger.firsts, position.entry_id) - 1
        return ledger.lasts[index] if index >= 0 and ledger.lasts[index] >= position.entry_id else None

    def remove_up_to(self, position: Position) -> None:
        """Forget everything at or before *position*."""
        for ledger_id in [known for known in self._ledgers if known <= position.ledger_id]:
            ledger = self._ledgers[ledger_id]
            if ledger_id < position.ledger_id or not ledger.lasts or ledger.lasts[-1] <= position.entry_id:
                del self._ledgers[ledger_id]
                continue
            gone = bisect_right(ledger.lasts, position.entry_id)
            del ledger.firsts[:gone], ledger.lasts[:gone]
            ledger.firsts[0] = max(ledger.firsts[0], position.entry_id + 1)

    def count_up_to(self, position: Position) -> int:
        """How many entries at or before *position* are in the set."""
        count = 0
        for ledger_id, ledger in self._ledgers.items():
            if ledger_id > position.ledger_id:
                continue
            limit = position.entry_id if ledger_id == position.ledger_id else None
            for first, last in zip(ledger.firsts, ledger.lasts, strict=True):
                if limit is not None and first > limit:
                    break
                count += (last if limit is None else min(last, limit)) - first + 1
        return count

    def forget_ledger(self, ledger_id: int) -> None:
        self._ledgers.pop(ledger_id, None)

    def clear(self) -> None:
        self._ledgers.clear()

    def __iter__(self) -> Iterator[AckRange]:
        """The ranges in order of position."""
        for ledger_id in sorted(self._ledgers):
            ledger = self._ledgers[ledger_id]
            for first, last in zip(ledger.firsts, ledger.lasts, strict=True):
                yield AckRange(ledger_id, first, last)


def mask_of(words: Sequence[int]) -> int:
    """A Java bit set (64-bit words, least significant first, signed or not) as one number."""
    data = struct.pack(f"<{len(words)}Q", *[word & 0xFFFF_FFFF_FFFF_FFFF for word in words])
    return int.from_bytes(data, "little")


def words_of(mask: int, words_min: int = 0) -> list[int]:
    """The words of a Java bit set; trailing zero words behind the *words_min* first ones are dropped, as Java does."""
    count = max((mask.bit_length() + 63) // 64, words_min)
    return list(struct.unpack(f"<{count}q", mask.to_bytes(count * 8, "little")))
