"""From the ledgers of a topic to the tasks of a Spark job. No IO.

    topic partition 0   ledger 5 ████████████│ledger 9 ████│ledger 12 ██
    tasks               ├── 0 ──┼── 1 ──┤   ├────── 2 ──────┤

Rules:

1. What is read is fixed when the read is planned: two runs of one plan give the same rows.
2. A task reads runs of entries of one topic partition, in order. Large ledgers are cut, small ones packed, so that a
   task has about `target_bytes` of payload: a Python task costs 58 ms however little it does.
3. Tasks that start together begin at different ledgers, and so at different bookies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.runtime.types import MIB

TARGET_BYTES: Final = 128 * MIB
PARTITIONS_MAX: Final = 10_000
"""Spark plans 10,000 tasks in half a second; more than that is a mistake in the options."""


class Run(NamedTuple):
    """Entries *first* to *last* (both included) of a ledger, about *size_bytes* of payload."""

    ledger_id: int
    first: int
    last: int
    size_bytes: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


class TopicRange(NamedTuple):
    """What is to be read of one topic partition: runs in order of position. Partition is -1 without partitions."""

    topic: str
    partition: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads. *before* are the runs that precede it, for messages whose first chunks lie there."""

    topic: str
    partition: int
    runs: tuple[Run, ...]
    before: tuple[Run, ...] = ()


def clip(runs: Sequence[Run], start: tuple[int, int] | None, end: tuple[int, int] | None) -> tuple[Run, ...]:
    """Only what stands at or after position *start* and before position *end*; None is without bound."""
    kept = []
    for run in runs:
        first, last = run.first, run.last
        if start is not None and (run.ledger_id, last) < start:
            continue
        if start is not None and run.ledger_id == start[0]:
            first = max(first, start[1])
        if end is not None and (run.ledger_id, first) >= end:
            continue
        if end is not None and run.ledger_id == end[0]:
            last = min(last, end[1] - 1)
        if first <= last:
            kept.append(_part(run, first, last))
    return tuple(kept)


def plan(
    ranges: Sequence[TopicRange],
    *,
    target_bytes: int = TARGET_BYTES,
    min_partitions: int = 1,
    max_partitions: int = PARTITIONS_MAX,
) -> list[Split]:
    """The tasks, in the order in which Spark should start them. Empty if there is nothing to read."""
    assert target_bytes > 0, target_bytes
    total = sum(run.size_bytes for topic in ranges for run in topic.runs)
    entries = sum(run.entries for topic in ranges for run in topic.runs)
    if entries == 0:
        return []
    if min_partitions > 1:
        target_bytes = min(target_bytes, max(total // min_partitions, 1))
    target_bytes = max(target_bytes, total // max_partitions, 1)
    per_topic = [_split(topic, target_bytes) for topic in ranges]
    return _interleave(per_topic)


def _split(topic: TopicRange, target_bytes: int) -> list[Split]:
    size = sum(run.size_bytes for run in topic.runs)
    if not topic.runs:
        return []
    count = max(1, round(size / target_bytes))
    share = max(size / count, 1.0)
    splits: list[Split] = []
    taken: list[Run] = []
    done: list[Run] = []
    room = share
    for run in topic.runs:
        rest: Run | None = run
        while rest is not None:
            if rest.size_bytes <= room or len(splits) == count - 1:
                taken.append(rest)
                room -= rest.size_bytes
                rest = None
            else:
                cut = max(int(rest.entries * room / rest.size_bytes), 0 if taken else 1)
                if cut:
                    head = _part(rest, rest.first, rest.first + cut - 1)
                    taken.append(head)
                    rest = _part(rest, rest.first + cut, rest.last) if head.last < rest.last else None
                splits.append(Split(topic.topic, topic.partition, tuple(taken), tuple(done)))
                done.extend(taken)
                taken, room = [], share
    if taken:
        splits.append(Split(topic.topic, topic.partition, tuple(taken), tuple(done)))
    return splits


def _part(run: Run, first: int, last: int) -> Run:
    if (first, last) == (run.first, run.last):
        return run
    return Run(run.ledger_id, first, last, run.size_bytes * (last - first + 1) // run.entries)


def _interleave(per_topic: list[list[Split]]) -> list[Split]:
    """One of each in turn."""
    ordered: list[Split] = []
    for number in range(max(map(len, per_topic), default=0)):
        ordered.extend(splits[number] for splits in per_topic if number < len(splits))
    return ordered
