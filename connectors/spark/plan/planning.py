"""From the ledgers of a topic to the tasks of a Spark job. No IO.

    topic partition 0   ledger 5 ████████████│ledger 9 ████│ledger 12 ██
    tasks               ├── 0 ──┼── 1 ──┤   ├────── 2 ──────┤

Rules:

1. What is read is fixed when the read is planned: two runs of one plan give the same rows.
2. A task reads runs of entries of one topic partition, in order. Large ledgers are cut, small ones packed, so that a
   task has about `target_bytes` of payload: a Python task costs 20 to 30 ms however little it does.
3. Every entry of a plan is in exactly one task, and no task is empty.
4. Tasks that start together begin at different ledgers, and so at different bookies.
5. What is left out between two entries that are read is worth a task of its own behind it, or it is read as well.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from connectors.spark.options.read import PARTITIONS_MAX, TARGET_BYTES
from connectors.spark.ranges import Position, Run
from magnetar_core.runtime.types import MIB

if TYPE_CHECKING:
    from connectors.spark.plan.unconsumed import Acked

# How far back a task looks for the first chunks of a message that ends in it. A message has at most some hundred
# chunks; between them stand those of other producers. The runs travel with every task, so they are few.
LOOK_BACK_ENTRIES: Final = 100_000
LOOK_BACK_RUNS: Final = 8

# Rule 5. A task costs some 25 ms of a core, in which about as much is read and dropped.
GAP: Final = 8 * MIB


class TopicRange(NamedTuple):
    """What is to be read of one topic partition: runs in order of position. Partition is -1 without partitions.

    *before* are all runs that precede them.
    """

    topic: str
    partition: int
    runs: tuple[Run, ...]
    before: tuple[Run, ...] = ()
    acked: "Acked | None" = None
    """What a subscription has consumed of it, which gives no rows."""

    @property
    def size_bytes(self) -> int:
        return sum(run.size_bytes for run in self.runs)

    @property
    def entries(self) -> int:
        return sum(run.entries for run in self.runs)


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads. *before* precedes it in the topic, for messages whose first chunks lie there."""

    topic: str
    partition: int
    runs: tuple[Run, ...]
    before: tuple[Run, ...] = ()
    is_all_before: bool = True
    """*before* begins at the first entry of the topic."""
    acked: "Acked | None" = None


def clip(runs: Sequence[Run], start: Position | None, end: Position | None) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The parts of *runs* at or after *start* and before *end* (None: no bound), and those before *start*."""
    earlier, kept = [], []
    for run in runs:
        begin = run.first if start is None else _first_at(run, start)
        behind = run.last + 1 if end is None else _first_at(run, end)
        if begin > run.first:
            earlier.append(run.part(run.first, begin - 1))
        if begin < behind:
            kept.append(run.part(begin, behind - 1))
    return tuple(kept), tuple(earlier)


def _first_at(run: Run, position: Position) -> int:
    """The first entry of *run* at or after *position*; one past its last if there is none."""
    ledger_id, entry_id = position
    if run.ledger_id != ledger_id:
        return run.first if run.ledger_id > ledger_id else run.last + 1
    return min(max(entry_id, run.first), run.last + 1)


def pieces(topic: TopicRange, kept: Sequence[Run], gap: int = GAP) -> list[TopicRange]:
    """What is read in order to have *kept*, parts of the range's runs in order: nothing before and behind them, and
    what lies between them only where it is at most *gap* bytes (rule 5)."""
    runs = topic.runs
    numbers = {run.ledger_id: number for number, run in enumerate(runs)}
    bytes_before = [0, *accumulate(run.size_bytes for run in runs)]

    def offset(number: int, entry_id: int) -> int:
        run = runs[number]
        return bytes_before[number] + run.size_bytes * (entry_id - run.first) // run.entries

    stretches: list[tuple[int, int, int, int]] = []  # number of a run and entry, from … to
    for part in kept:
        number = numbers[part.ledger_id]
        if stretches and offset(number, part.first) - offset(*stretches[-1][2:]) <= gap:
            stretches[-1] = (*stretches[-1][:2], number, part.last + 1)
        else:
            stretches.append((number, part.first, number, part.last + 1))
    return [_part_between(topic, *borders) for borders in stretches]


def _part_between(topic: TopicRange, first: int, begin: int, last: int, end: int) -> TopicRange:
    """The part from entry *begin* of run *first* up to before entry *end* of run *last*."""
    runs = topic.runs
    taken = [run.part(begin if number == first else run.first, end - 1 if number == last else run.last)
             for number, run in enumerate(runs[first : last + 1], first)]  # fmt: skip
    before = [*topic.before, *runs[max(first - LOOK_BACK_RUNS - 1, 0) : first]]
    if begin > runs[first].first:
        before.append(runs[first].part(runs[first].first, begin - 1))
    return topic._replace(runs=tuple(taken), before=tuple(before))


def plan(
    ranges: Sequence[TopicRange],
    *,
    target_bytes: int = TARGET_BYTES,
    min_partitions: int = 1,
    max_partitions: int = PARTITIONS_MAX,
) -> list[Split]:
    """The tasks, in the order in which Spark should start them. Empty if there is nothing to read.

    There are at least *min_partitions* if there are as many entries, and at most *max_partitions*, but never fewer
    than topic partitions that hold something.
    """
    assert target_bytes > 0, target_bytes
    assert 1 <= min_partitions <= max_partitions, (min_partitions, max_partitions)
    filled = [topic for topic in ranges if topic.runs]
    wanted = round(sum(topic.size_bytes for topic in filled) / target_bytes)
    counts = _tasks_by_topic(filled, min(max(wanted, min_partitions), max_partitions))
    return _interleave([_split(topic, count) for topic, count in zip(filled, counts, strict=True)])


def _tasks_by_topic(topics: Sequence[TopicRange], wanted: int) -> list[int]:
    """The number of tasks for each topic partition. Tasks are added one by one where they are largest so far."""
    counts = [1] * len(topics)
    sizes, entries = [topic.size_bytes for topic in topics], [topic.entries for topic in topics]
    largest: list[tuple[float, int]] = [(-size, number) for number, size in enumerate(sizes) if entries[number] > 1]
    heapq.heapify(largest)
    for _ in range(wanted - len(topics)):
        if not largest:
            break
        _, number = largest[0]
        counts[number] += 1
        if counts[number] == entries[number]:
            heapq.heappop(largest)
        else:
            heapq.heapreplace(largest, (-sizes[number] / counts[number], number))
    return counts


def _split(topic: TopicRange, count: int) -> list[Split]:
    """*count* tasks of about the same size."""
    runs = topic.runs
    # The entries of all runs, numbered through, and the bytes before them: where each run begins in both.
    entries_before = [0, *accumulate(run.entries for run in runs)]
    bytes_before = [0, *accumulate(run.size_bytes for run in runs)]
    total_entries, total_bytes = entries_before[-1], bytes_before[-1]
    earlier_entries = sum(run.entries for run in topic.before)

    def entry_at(offset_bytes: float) -> int:
        number = min(bisect_right(bytes_before, offset_bytes) - 1, len(runs) - 1)
        inside = (offset_bytes - bytes_before[number]) / max(runs[number].size_bytes, 1)
        return entries_before[number] + round(runs[number].entries * inside)

    cuts = [0]
    for number in range(1, count):
        wanted = entry_at(total_bytes * number / count)
        cuts.append(max(cuts[-1] + 1, min(wanted, total_entries - (count - number))))  # rule 3: an entry for each task
    splits = []
    for begin, end in pairwise([*cuts, total_entries]):
        first, last = bisect_right(entries_before, begin) - 1, bisect_left(entries_before, end) - 1
        taken = [
            runs[number].part(
                runs[number].first + max(begin - entries_before[number], 0),
                runs[number].first + min(end - entries_before[number], runs[number].entries) - 1,
            )
            for number in range(first, last + 1)
        ]
        done = [*topic.before[-LOOK_BACK_RUNS:], *runs[max(first - LOOK_BACK_RUNS, 0) : first]]
        if taken[0].first > runs[first].first:
            done.append(runs[first].part(runs[first].first, taken[0].first - 1))
        before = _nearest_runs(done)
        is_all = sum(run.entries for run in before) == begin + earlier_entries
        acked = None if topic.acked is None else topic.acked.cut_to(taken)
        splits.append(Split(topic.topic, topic.partition, tuple(taken), before, is_all, acked))
    return splits


def _nearest_runs(done: Sequence[Run]) -> tuple[Run, ...]:
    """The last of these runs, as far back as a task looks for first chunks."""
    kept: list[Run] = []
    room = LOOK_BACK_ENTRIES
    for run in reversed(done[-LOOK_BACK_RUNS:]):
        if room <= 0:
            break
        part = run.part(max(run.first, run.last - room + 1), run.last)
        room -= part.entries
        kept.append(part)
    return tuple(reversed(kept))


def _interleave(per_topic: Sequence[Sequence[Split]]) -> list[Split]:
    """All items: one of each list in turn."""
    ordered: list[Split] = []
    for number in range(max(map(len, per_topic), default=0)):
        ordered.extend(splits[number] for splits in per_topic if number < len(splits))
    return ordered
