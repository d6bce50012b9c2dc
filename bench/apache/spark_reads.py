"""Every query in every way: rows a second, and what they are beside each other."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from bench.apache import spark_ways as ways
from bench.apache.perf import attempt
from bench.apache.rig import BenchError, Pair
from bench.apache.spark_ways import QUERIES, Query
from bench.apache.table import SIDES, Side, Table
from bench.spark_topics import Topic, write_topic

BATCH_ROWS: Final[Mapping[int, int]] = {1_000: 4_000, 100: 10_000}
"""Rows of a prepared batch: those of the source's, which ends a batch at 4 MiB or 10,000 rows."""

BROKER_ROWS_MAX: Final = 200_000
"""So many are read through a broker at most, in all partitions: some seconds' worth. The rate is that of these."""

SHARE_GOAL: Final = ">= 0.6 ×"
"""Of the ceiling, for the messages of 1,000 B."""
TIMES_GOAL: Final = ">= 5 ×"
"""Of a read through a broker."""

Rates = dict[tuple[str, str, Side], float]
"""(query, way, side) → rows a second, of one round."""


@dataclass(slots=True)
class Bench:
    """What parts work with."""

    pair: Pair
    spark: SparkSession
    directory: Path
    table: Table

    def metadata_url(self, side: Side) -> str:
        """Of the side, whose turn it is from now on."""
        return self.pair.turn(side).cluster.metadata_url


def noop(make: Callable[[], DataFrame]) -> float:
    """Seconds of a query whose rows nobody takes, from its `load()` on."""
    began = time.perf_counter()
    make().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def words(topic: Topic) -> str:
    return f"{topic.size:,} B, {topic.partitions} partition{'s' if topic.partitions > 1 else ''}"


def wrote(bench: Bench, topic: Topic) -> bool:
    """The topic is on both sides, and its rows and those of the hour are as many as were written."""

    def write(_: Table) -> str:
        for side in SIDES:
            url = bench.metadata_url(side)
            asyncio.run(write_topic(url, topic))
            hour = ways.source(bench.spark, url, topic, ways.HOUR).count()
            if hour != topic.hour_count:
                raise BenchError(f"the hour of {topic.name} has {hour:,} rows, not {topic.hour_count:,}")
        return f"{topic.count:,} rows"

    return attempt(bench.table, "ours", f"{words(topic)}: topics written", "rows", write)


def read(bench: Bench, topic: Topic, rounds: int) -> None:
    """One topic, round by round: on Apache's servers, on ours, from files and from nowhere."""
    if not wrote(bench, topic):
        return
    files = bench.directory / f"{topic.name}.parquet"

    def prepare(_: Table) -> str:
        url = bench.metadata_url("ours")
        ways.source(bench.spark, url, topic, ways.DEFAULT).write.mode("overwrite").parquet(str(files))
        for query in QUERIES:
            frame = ways.source(bench.spark, url, topic, query)
            ways.prepare(frame, BATCH_ROWS[topic.size], _prepared(bench, topic, query))
        return "files and batches"

    attempt(bench.table, "ours", f"{words(topic)}: files and batches prepared", "rows", prepare)
    for number in range(rounds + 1):
        table = bench.table if number else Table()  # round 0 warms up
        rates: Rates = {}
        for side in SIDES:
            system = bench.pair.turn(side)
            url, service_url = system.cluster.metadata_url, system.brokers[0].service_url
            for query in QUERIES:
                _source(bench, topic, query, side, url, table, rates)
                _broker(bench, topic, query, side, service_url, table, rates)
        for query in QUERIES:
            _floor_and_ceiling(bench, topic, query, files, table, rates)
        for query in QUERIES:
            add_ratios(table, topic, query, rates)


def _prepared(bench: Bench, topic: Topic, query: Query) -> Path:
    return bench.directory / f"{topic.name}-{QUERIES.index(query)}.arrow"


def row_name(topic: Topic, query: Query, way: str) -> str:
    return f"{words(topic)}, {query.name}: {way}"


def _timed(
    table: Table, topic: Topic, query: Query, way: str, side: Side, rates: Rates, rows: int,
    make: Callable[[], DataFrame],
) -> None:  # fmt: skip
    what = row_name(topic, query, way)

    def work(found: Table) -> str:
        rate = rows / noop(lambda: query.action(make()))
        found.add(what, "rows/s", side, rate)
        rates[query.name, way, side] = rate
        return f"{rate:,.0f} rows/s"

    attempt(table, side, what, "rows/s", work)


def _rows(topic: Topic, query: Query) -> int:
    return topic.hour_count if query.is_hour else topic.count


def _source(
    bench: Bench, topic: Topic, query: Query, side: Side, metadata_url: str, table: Table, rates: Rates
) -> None:
    _timed(
        table, topic, query, ways.SOURCE, side, rates, _rows(topic, query),
        lambda: ways.source(bench.spark, metadata_url, topic, query),
    )  # fmt: skip


def _broker(bench: Bench, topic: Topic, query: Query, side: Side, service_url: str, table: Table, rates: Rates) -> None:
    limit = min(topic.count, BROKER_ROWS_MAX) // topic.partitions
    _timed(
        table, topic, query, ways.BROKER, side, rates, min(_rows(topic, query), limit * topic.partitions),
        lambda: ways.broker(bench.spark, service_url, topic, query, limit),
    )  # fmt: skip


def _floor_and_ceiling(bench: Bench, topic: Topic, query: Query, files: Path, table: Table, rates: Rates) -> None:
    """Neither of them knows bookies: the side is ours for want of another column."""
    rows = _rows(topic, query)
    _timed(table, topic, query, ways.PARQUET, "ours", rates, rows, lambda: ways.parquet(bench.spark, files, query))
    path = _prepared(bench, topic, query)
    _timed(
        table, topic, query, ways.CEILING, "ours", rates, rows,
        lambda: ways.ceiling(bench.spark, path, rows, topic.partitions, query),
    )  # fmt: skip


def add_ratios(table: Table, topic: Topic, query: Query, rates: Mapping[tuple[str, str, Side], float]) -> None:
    """Our source by the ceiling, by the floor, and by the read through the broker of the same side."""
    for side in SIDES:
        own = rates.get((query.name, ways.SOURCE, side))
        beside: Sequence[tuple[str, Side, str]] = (
            (ways.CEILING, "ours", SHARE_GOAL if topic.size == 1_000 and not query.is_hour else ""),
            (ways.PARQUET, "ours", ""),
            (ways.BROKER, side, "" if query.is_hour else TIMES_GOAL),
        )
        for way, of_side, goal in beside:
            other = rates.get((query.name, way, of_side))
            if own and other:
                what = row_name(topic, query, f"{ways.SOURCE} ÷ {way}")
                table.add(what, "×", side, own / other, goal=goal)
