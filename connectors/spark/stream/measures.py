"""How many entries of a partition are within a limit: which ones are to be looked at, and what they tell. No IO.

    entries   ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
    Search    ?          ?    ?·?                    ?    each of them tells how much there is up to it
    Walk      ███████████████                             each of them tells how much it has itself

Rules:

1. What is within a limit is counted, not estimated, and has one entry at least: so a batch is above its limit by less
   than an entry of each partition, and it is never empty while something waits.
2. Bytes: a stored entry says how many its ledger has up to it. Messages: where brokers number them, an entry has the
   number of its last one. Then a search looks at few entries, however many there are.
3. Numbers of messages are believed if they grow by one for each entry at least: they do not where a broker began to
   number later, or began anew. Then, and where nothing is numbered, entries are looked at one after the other. A walk
   has a limit of its own, where the batch ends.
4. A batch ends before an entry that no bookie gives. If that is the first entry of the batch, as much of its ledger is
   taken as the average says: the task that reads it reports the error.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from connectors.spark.ranges import Position, Run
from magnetar_core.runtime.types import MIB

# What is looked at for the limit of one batch, all partitions together, where messages are not numbered. An entry takes
# some 10 µs, and its bytes come from the bookies once more for the task that reads it.
WALKED_ENTRIES_MAX: Final = 200_000
WALKED_BYTES_MAX: Final = 256 * MIB
# A request counts as so many entries at least: where ledgers have few, it is requests that take the time.
REQUEST_ENTRIES: Final = 200


class Head(NamedTuple):
    """What an entry tells."""

    size_bytes: int
    length_bytes: int
    """Of its ledger up to it."""
    messages: int
    """Rows that it gives; none for a chunk that is not the last one of its message."""
    last_index: int | None
    """The broker's number of its last message."""
    publish_ms: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What could be read of a partition: its entries, numbered through from 0 on."""

    runs: Sequence[Run]
    """In order, all behind the position where reading goes on. Only the first and the last may be parts of ledgers."""
    end: Position
    """Behind the last run."""
    _starts: Sequence[int] = field(init=False, repr=False, compare=False)
    """Of each run the number of its first entry, and the number of all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", [0, *accumulate(run.entries for run in self.runs)])

    @property
    def entries(self) -> int:
        return self._starts[-1]

    @property
    def size_bytes(self) -> int:
        """About: of a part of a ledger the average is known."""
        return sum(run.size_bytes for run in self.runs)

    def place(self, number: int) -> tuple[int, int, int]:
        """(number of the run, ledger, entry)."""
        run_number = bisect_right(self._starts, number) - 1
        run = self.runs[run_number]
        return run_number, run.ledger_id, run.first + number - self._starts[run_number]

    def first_entries(self, count: int) -> "Backlog":
        """The backlog of the first *count* entries; this one if it has no more."""
        if count >= self.entries:
            return self
        run_number, ledger_id, entry_id = self.place(count)
        kept = list(self.runs[:run_number])
        last_run = self.runs[run_number]
        if entry_id > last_run.first:
            kept.append(last_run.part(last_run.first, entry_id - 1))
        return Backlog(kept, (ledger_id, entry_id))


@dataclass(frozen=True, slots=True)
class Scale:
    """How an entry of a backlog tells how much there is up to it (rule 2)."""

    offsets: Sequence[int]
    """Of each run: what is to be added to what its entries say."""
    marks: Mapping[int, int]
    """Entry → how much there is up to it; has the last entry at least."""
    counts_messages: bool

    @property
    def total(self) -> int:
        return self.marks[max(self.marks)]

    def up_to(self, run: int, head: Head | None) -> int | None:
        """How much there is up to an entry of this run; None: it does not tell."""
        said = None if head is None else head.last_index if self.counts_messages else head.length_bytes
        return None if said is None else said + self.offsets[run]


def scale_of_bytes(backlog: Backlog, before: Head | None, ends: Sequence[Head | None]) -> Scale | None:
    """*before*: the entry before the first one, if its ledger has one; *ends*: the last entries of the first and of
    the last run. None: the entries do not tell."""
    runs = backlog.runs
    if (before is None and runs[0].first > 0) or None in ends:
        return None
    skipped = 0 if before is None else before.length_bytes
    offsets, marks, total, number = [], {}, 0, -1
    for place, run in enumerate(runs):
        offsets.append(total - (skipped if place == 0 else 0))
        head = ends[0] if place == 0 else ends[-1] if place == len(runs) - 1 else None
        # Those between are whole ledgers, whose size their record says.
        total = total + run.size_bytes if head is None else offsets[-1] + head.length_bytes
        number += run.entries
        marks[number] = total
    return Scale(offsets, marks, False)


def scale_of_messages(backlog: Backlog, first: Head | None, last: Head | None) -> Scale | None:
    """*first*, *last*: the entries of this name. None: messages are not numbered (rule 3)."""
    if first is None or last is None or first.last_index is None or last.last_index is None:
        return None
    offset = max(first.messages, 1) - first.last_index  # brokers count a chunk as a message
    if last.last_index + offset < backlog.entries:
        return None
    marks = {0: first.last_index + offset, backlog.entries - 1: last.last_index + offset}
    return Scale([offset] * len(backlog.runs), marks, True)


def shares(limit: int, waiting: Sequence[int]) -> list[int]:
    """Of a limit, in proportion to what waits in each partition."""
    whole = max(sum(waiting), 1)
    return [limit * size // whole for size in waiting]


class Search:
    """Finds how many entries are within *room*: tell it what there is up to the entry that it wants, while it wants
    one. It wants at most twice as many as halving would."""

    def __init__(self, scale: Scale, room: int) -> None:
        self._room = room
        self._least = 1 if scale.counts_messages else 0
        self._low, self._under = -1, 0
        self._high, self._over = max(scale.marks) + 1, scale.total
        self._halves = False
        self.is_lost = False
        """What the entries say does not fit together."""
        for number, value in sorted(scale.marks.items()):
            if self._low < number < self._high and not self.is_lost:
                self.on_value(number, value)

    @property
    def fitting(self) -> int:
        """Entries within the room; the one that it has at least (rule 1)."""
        return max(self._low + 1, 1)

    @property
    def wants(self) -> int | None:
        """The entry to be looked at; None: there is none left."""
        span = self._high - self._low
        if span < 2 or self.is_lost:
            return None
        if self._halves or self._over <= self._under:
            return self._low + span // 2
        guess = self._low + (self._room - self._under) * span // (self._over - self._under)
        return min(max(guess, self._low + 1), self._high - 1)

    def on_value(self, number: int, value: int | None) -> None:
        """There is so much up to entry *number*; None: it does not tell."""
        assert self._low < number < self._high, (self._low, number, self._high)
        span = self._high - self._low
        least = self._under + self._least * (number - self._low)
        if value is None or not least <= value <= self._over:
            self.is_lost = True
        elif value <= self._room:
            self._low, self._under = number, value
        else:
            self._high, self._over = number, value
        # A guess that took away less than half of what is left is followed by a halving.
        self._halves = not self._halves and self._high - self._low > span // 2


class Walk:
    """Counts how many entries are within *room*, one after the other: tell it those that it wants, while it wants some.

    *room*, *average* and `taken` are messages if *counts_messages*, else bytes. It looks at *walked_entries* and
    *walked_bytes* at most, but at one entry at least.
    """

    def __init__(
        self,
        backlog: Backlog,
        room: int,
        average: float,
        *,
        counts_messages: bool,
        walked_entries: int = WALKED_ENTRIES_MAX,
        walked_bytes: int = WALKED_BYTES_MAX,
    ) -> None:
        """*average*: how much an entry is thought to have, until entries were looked at."""
        self._backlog = backlog
        self._entries = backlog.entries
        self._room = room
        self._average = max(average, 1.0)
        self._counts_messages = counts_messages
        self._left_entries, self._left_bytes = max(walked_entries, 1), walked_bytes
        self.counted = 0
        """Entries that were looked at and are within the room."""
        self.taken = 0
        """How much these entries have."""
        self.is_full = False
        """There is more than the room."""
        self._uncounted = 1
        """Entries that are taken although none was counted (rules 1, 4)."""
        self._is_over = False
        """Nothing more is looked at: the room is full, a limit of the walk is reached, or no bookie gives the next."""

    @property
    def fitting(self) -> int:
        """Entries within the room; the one that it has at least (rule 1)."""
        return max(self.counted, self._uncounted)

    @property
    def wants(self) -> tuple[int, int] | None:
        """(the first entry to be looked at, how many, of one ledger); None: there is none left."""
        if self._is_over or self.counted == self._entries:
            return None
        run_number, _, entry_id = self._backlog.place(self.counted)
        fits = int((self._room - self.taken) / self._average) + 1
        return self.counted, max(1, min(fits, self._left_entries, self._backlog.runs[run_number].last - entry_id + 1))

    def on_heads(self, heads: Sequence[Head]) -> None:
        """The next entries, one at least; empty: no bookie gives the next one (rule 4)."""
        if not heads:
            self._is_over = True
            if self.counted == 0:
                self._uncounted = max(min(int(self._room / self._average), self._backlog.runs[0].entries), 1)
            return
        for head in heads:
            weight = head.messages if self._counts_messages else head.size_bytes
            if self.taken + weight > self._room:
                self._is_over = self.is_full = True
                break
            self.taken += weight
            self.counted += 1
        self._left_entries -= max(len(heads), REQUEST_ENTRIES)
        self._left_bytes -= sum(head.size_bytes for head in heads)
        self._is_over = self._is_over or self._left_entries < 1 or self._left_bytes < 0
        self._average = max(self.taken / max(self.counted, 1), 1.0)
