"""Topics into Spark: our source beside a read through the brokers, Parquet, and the most that Spark takes from Python.

Parts, each to be run alone (`--part NAME`), in minutes:

    read-SIZE-PARTITIONS    every query in every way (`bench.apache.spark_ways`), on Apache's servers and on ours
    many                    one job over 100 million rows (`--rows`) of 100 B, and an hour of its day
    stages                  one job, and where its time went
    planning                a topic of 10,000 ledgers, from options to tasks

The column of Apache has its bookies and broker, that of ours ours; Spark, the source and the client are the same. The
topics, too: both sides get theirs from the same writer. Ratios are made of figures of one round.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.apache.parts import MANY_ROWS, PARTS, SPARK_PARTITIONS, SPARK_SIZES
from bench.apache.rig import Pair
from bench.apache.spark_jobs import many, planning, stages
from bench.apache.spark_reads import BROKER_ROWS_MAX, Bench, read
from bench.apache.table import Table
from bench.spark_topics import BATCH, Topic
from tests.support.spark_session import spark_session

MANY_PARTITIONS: Final = 4
ENTRIES_MIN: Final = 24
"""Of each partition: so that every hour of the day has one."""


def run(
    directory: Path,
    rounds: int,
    seconds: float,
    table: Table,
    *,
    parts: Sequence[str] = (),
    many_rows: int = MANY_ROWS,
    share: float = 1.0,
) -> list[str]:
    """All parts without *parts*. *share*: of the messages that each topic has but that of `many`; below 1 to try it."""
    chosen = parts or PARTS["spark"]
    directory.mkdir(parents=True)
    with Pair(directory / "pair", bookies=3, brokers=1) as pair, spark_session("bench", validated=False) as spark:
        bench = Bench(pair, spark, directory, table)
        for size, count in SPARK_SIZES:
            for partitions in SPARK_PARTITIONS:
                if f"read-{size}-{partitions}" in chosen:
                    read(bench, topic_of("read", size, int(count * share), partitions), rounds)
        if "many" in chosen:
            many(bench, topic_of("many", 100, many_rows, MANY_PARTITIONS, packed=True), rounds)
        if "stages" in chosen:
            for size, count in SPARK_SIZES:
                stages(bench, topic_of("stages", size, int(count * share), 4), rounds)
        if "planning" in chosen:
            planning(bench, rounds)
        return [
            f"Apache's servers: {pair.memory_note}; Spark is `local[2]` on the same two cores; 2/2/2",
            "topics: batches of 1,000 messages, not compressed; publish times over one day; ten ledgers a partition",
            f"through a broker: the official Python client, one task a partition, {BROKER_ROWS_MAX:,} rows at most",
            "Parquet counts by the footers of its files, and leaves out what it need not read",
        ]


def topic_of(kind: str, size: int, count: int, partitions: int, *, packed: bool = False) -> Topic:
    """With as many entries in each partition, at least ENTRIES_MIN."""
    entries = max(count // BATCH // partitions, ENTRIES_MIN) * partitions
    return Topic(
        name=f"{kind}-{size}-{partitions}", partitions=partitions, size=size, count=entries * BATCH, packed=packed
    )
