"""What a subscription has not consumed: everything of a topic partition but what its cursor says. No IO.

    consumed            one by one, or parts of batches
    ███████████████···██·▒██···········▶       █ no rows   ▒ rows of some messages   · rows

An entry in which a chunk of a message stands is consumed or not like others; the message is a row if its last chunk is
not, as everywhere its place is that of its last chunk.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from connectors.spark.batches.borders import Numbers
from connectors.spark.ranges import Position, Run
from managed_ledger.ack_ranges import AckRange, AckRanges, mask_of
from managed_ledger.position import Position as At


class Acked:
    """The entries of one topic partition that are consumed behind the first one that is not. Can be pickled."""

    def __init__(self, ranges: Iterable[AckRange], batches: Iterable[tuple[Position, int]]) -> None:
        """*batches*: a batch of which a part is consumed → the messages that are not, as bits from the first one on."""
        self._ranges = AckRanges()
        for item in ranges:
            self._ranges.add(*item)
        self._batches = dict(batches)

    @classmethod
    def from_state(cls, ranges: Iterable[AckRange], batches: Iterable[tuple[At, Sequence[int]]]) -> "Acked":
        """The entries that a cursor's state says are consumed."""
        return cls(ranges, (((at.ledger_id, at.entry_id), mask_of(words)) for at, words in batches))

    def __bool__(self) -> bool:
        return bool(self._ranges) or bool(self._batches)

    def has(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a whole entry is consumed."""
        return At(ledger_id, entry_id) in self._ranges

    def messages_of(self, entries: Sequence[tuple[int, int, int]]) -> Numbers | None:
        """Whether each message of *entries* (ledger, entry, how many) is consumed by itself; None: no message is."""
        consumed: Numbers | None = None
        at = 0
        for ledger_id, entry_id, count in entries:
            bits = self._batches.get((ledger_id, entry_id))
            if bits is not None:
                consumed = np.zeros(sum(number for _, _, number in entries), bool) if consumed is None else consumed
                data = (bits & ((1 << count) - 1)).to_bytes((count + 7) // 8, "little")
                is_open = np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")
                consumed[at : at + count] = is_open == 0
            at += count
        return consumed

    def left_of(self, runs: Sequence[Run]) -> list[Run]:
        """The parts of *runs* that are not consumed."""
        holes = list(self._ranges)
        parts: list[Run] = []
        at = 0
        for run in runs:
            while at < len(holes) and (holes[at].ledger_id, holes[at].last) < (run.ledger_id, run.first):
                at += 1
            begin, hole = run.first, at
            while hole < len(holes) and holes[hole].ledger_id == run.ledger_id and holes[hole].first <= run.last:
                if begin < holes[hole].first:
                    parts.append(run.part(begin, holes[hole].first - 1))
                begin = max(begin, holes[hole].last + 1)
                hole += 1
            if begin <= run.last:
                parts.append(run.part(begin, run.last))
        return parts

    def cut_to(self, runs: Sequence[Run]) -> "Acked | None":
        """What lies in *runs*; None: nothing does."""
        of_ledger = {run.ledger_id: run for run in runs}
        ranges = []
        for hole in self._ranges:
            run = of_ledger.get(hole.ledger_id)
            if run is not None and hole.first <= run.last and hole.last >= run.first:
                ranges.append(hole)
        batches = {
            place: bits
            for place, bits in self._batches.items()
            if (run := of_ledger.get(place[0])) is not None and run.first <= place[1] <= run.last
        }
        return Acked(ranges, batches.items()) if ranges or batches else None
