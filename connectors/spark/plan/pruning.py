"""What is read of the topics of a batch: all but what a subscription has consumed and what a query's filters leave out.

Ledgers and entries are left out by what is known of them; only for the border of a time are the bookies asked.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from connectors.spark.options.read import ReadOptions
from connectors.spark.plan.cluster import connected, time_bounds
from connectors.spark.plan.planning import GAP, TopicRange, clip, pieces
from connectors.spark.ranges import Run, Times
from connectors.spark.worker.log import let_through
from magnetar_core.topics.topic_name import TopicName

if TYPE_CHECKING:  # needs PySpark 4.1
    from connectors.spark.plan.filters import Pushed

log = logging.getLogger(__name__)


def chosen(
    options: ReadOptions, ranges: Sequence[TopicRange], closed_ms: Mapping[int, int], pushed: "Pushed | None"
) -> list[TopicRange]:
    """Ranges that hold every row that is asked for, and few others. Raises MagnetarError."""
    kept = [_runs_to_read(topic_range, pushed) for topic_range in ranges]
    times = None if pushed is None else pushed.times(options.slack_ms)
    if times is not None and any(kept):
        kept = asyncio.run(_in_times(options, ranges, kept, closed_ms, times))
    gap = GAP
    while True:
        parts = [
            piece for topic_range, runs in zip(ranges, kept, strict=True) for piece in pieces(topic_range, runs, gap)
        ]
        if len(parts) <= max(options.max_partitions, len(ranges)):
            break
        gap *= 2
    if pushed is not None:
        let_through()
        log.info(
            "filters that leave something out: %s; checked by Spark alone: %s; read are %d of %d entries",
            _filters_text(pushed.used), _filters_text(pushed.unused), sum(part.entries for part in parts),
            sum(topic_range.entries for topic_range in ranges),
        )  # fmt: skip
    return parts


def _filters_text(filters: Sequence[object]) -> str:
    return ", ".join(map(repr, filters)) or "none"


def _runs_to_read(topic: TopicRange, pushed: "Pushed | None") -> list[Run]:
    if pushed is not None and not pushed.admits_topic(topic.topic, topic.partition):
        return []
    runs = list(topic.runs) if topic.acked is None else topic.acked.left_of(topic.runs)
    return runs if pushed is None else pushed.kept(runs)


async def _in_times(
    options: ReadOptions,
    ranges: Sequence[TopicRange],
    kept: Sequence[list[Run]],
    closed_ms: Mapping[int, int],
    times: Times,
) -> list[list[Run]]:
    async with connected(options.place) as (_, bookkeeper, _):

        async def part(topic: TopicRange, runs: list[Run]) -> list[Run]:
            compacted = [run for run in runs if run.is_compacted]  # in order of keys' last messages, but few
            plain = runs[len(compacted) :]
            start, end = await time_bounds(bookkeeper, TopicName.parse(topic.topic), plain, closed_ms, times)
            return [*compacted, *clip(plain, start, end)[0]]

        return await asyncio.gather(*(part(topic, runs) for topic, runs in zip(ranges, kept, strict=True)))
