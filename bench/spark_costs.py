"""What a question costs in Spark: seconds of processor time a million rows, of our source and of what stands beside it.

    python -m bench.spark_costs [--rows 1000000] [--rounds 3] [--write-docs]

Ways (`bench.apache.spark_ways`): our source; the same rows as Parquet; through the broker, as pulsar-spark reads: each
partition by one client; and the ceiling, a Python source that yields prepared Arrow batches of the same columns.
Counted is what all processes of the job use: Spark's JVM, its Python workers, and the bookies and brokers that answer.
The clock on the wall is not asked: others may use the machine meanwhile.
"""

import argparse
import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.apache import quiet
from bench.apache import spark_ways as ways
from bench.apache.document import write
from bench.apache.spark_processes import Jvm
from bench.apache.spark_ways import DEFAULT, Query
from bench.apache.table import Table, row_to
from bench.process_facts import cpu_seconds
from bench.spark_topics import Topic, write_topic
from magnetar.processes.cluster import Cluster
from tests.support.spark_session import spark_session

GROUP: Final = "spark-costs"
"""Of the data in docs/benchmarks."""
ROWS: Final = 1_000_000
ROUNDS: Final = 3
PARTITIONS: Final = 4
BATCH_ROWS: Final = {100: 10_000, 1_000: 4_000}
"""Rows of a prepared batch, as the source hands them over."""
SHARES: Final = {100: 1.0, 1_000: 0.5}
"""Of the rows, by bytes of a message."""
BROKER_SHARE: Final = 0.25
"""Of the rows of a topic, what is read through the broker; the cost of a million is worked out from it."""
UNIT: Final = "s of a core a million"


def _count(frame: DataFrame) -> DataFrame:
    return frame.agg(f.count("*"))


COUNT: Final = Query("count, of __entryId", ("__entryId",), _count)
COUNT_ALL: Final = Query("count, of the default columns", DEFAULT.columns, _count)
GROUPS: Final = Query("group by __key", ("__key",), lambda frame: frame.groupBy("__key").count())
HOUR: Final = Query("an hour of the day, value", ("value",), lambda frame: frame, is_hour=True)
FULL: Final = Query("full rows", DEFAULT.columns, lambda frame: frame)
STORED: Final = Query("what Parquet has", (*DEFAULT.columns, "__entryId"), lambda frame: frame)
QUERIES: Final = {100: (COUNT, COUNT_ALL, GROUPS, HOUR, FULL), 1_000: (FULL,)}
"""By bytes of a message."""


@dataclass(slots=True)
class Bench:
    """What is measured with."""

    spark: SparkSession
    cluster: Cluster
    directory: Path
    table: Table

    def used_s(self) -> float:
        """Processor time of the job's processes so far."""
        servers = [member.pid for member in self.cluster.state.members if member.kind in ("bookie", "broker")]
        return Jvm.of_this_process().job_cpu_s + sum(map(cpu_seconds, servers))

    def cost(self, make: Callable[[], DataFrame]) -> float:
        """Seconds of processor time of a query whose rows nobody takes."""
        before = self.used_s()
        make().write.format("noop").mode("overwrite").save()
        return self.used_s() - before


def run(bench: Bench, topic: Topic, rounds: int) -> None:
    """Every query of the topic in every way; the first round warms up, and is not kept."""
    url = bench.cluster.metadata_url
    service_url = next(
        f"pulsar://{member.address}:{member.port}" for member in bench.cluster.state.members if member.kind == "broker"
    )
    asyncio.run(write_topic(url, topic))
    files = bench.directory / f"{topic.name}.parquet"
    queries = QUERIES[topic.size]
    ways.source(bench.spark, url, topic, STORED).write.parquet(str(files))
    for query in queries:
        frame = ways.source(bench.spark, url, topic, query)
        ways.prepare(frame, BATCH_ROWS[topic.size], _prepared(bench, topic, query))
    for number in range(rounds + 1):
        for query in queries:
            for way, rows, make in _ways(bench, topic, query, files, url, service_url):
                cost = bench.cost(make) * ROWS / rows
                print(f"{number} {topic.size:,} B, {query.name}: {way}: {cost:.2f}", flush=True)
                if number:
                    bench.table.add(row_name(topic.size, query, way), UNIT, "ours", cost)


def _ways(
    bench: Bench, topic: Topic, query: Query, files: Path, url: str, service_url: str
) -> list[tuple[str, int, Callable[[], DataFrame]]]:
    """(way, rows that its cost is of, what it reads). An hour costs what it takes to find and read it in all rows."""
    spark = bench.spark
    limit = topic.count if query.is_hour else int(topic.count * BROKER_SHARE)
    rows = topic.hour_count if query.is_hour else topic.count
    path = _prepared(bench, topic, query)
    return [
        (ways.SOURCE, topic.count, lambda: query.action(ways.source(spark, url, topic, query))),
        (ways.PARQUET, topic.count, lambda: query.action(ways.parquet(spark, files, query))),
        (ways.BROKER, limit, lambda: query.action(ways.broker(spark, service_url, topic, query, limit // PARTITIONS))),
        (ways.CEILING, topic.count, lambda: query.action(ways.ceiling(spark, path, rows, PARTITIONS, query))),
    ]


def _prepared(bench: Bench, topic: Topic, query: Query) -> Path:
    return bench.directory / f"{topic.name}-{QUERIES[topic.size].index(query)}.arrow"


def row_name(size: int, query: Query, way: str) -> str:
    return f"{size:,} B, {query.name}: {way}"


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": {"PySpark": pyspark.__version__, "Python": platform.python_version()},
    }


def result(rows: int, rounds: int, directory: Path) -> dict[str, Any]:
    """All topics, in a cluster of its own; what `bench.apache.document` keeps."""
    table, began = Table(), time.perf_counter()
    since, before, waiting = quiet.stolen(), quiet.times(), [os.getloadavg()[0]]
    cluster = Cluster(directory / "cluster")
    cluster.up(bookies=3, brokers=1, free_ports=True)
    try:
        with spark_session("bench", validated=False) as spark:
            bench = Bench(spark, cluster, directory, table)
            for size, share in SHARES.items():
                count = int(rows * share)
                run(bench, Topic(name=f"costs-{size}", partitions=PARTITIONS, size=size, count=count), rounds)
    finally:
        cluster.down()
    waiting.append(os.getloadavg()[0])
    return {
        "rows": list(map(row_to, table.rows)),
        "notes": [
            f"{rows:,} messages of 100 B, half as many of 1,000 B, in batches of 1,000, not compressed, {PARTITIONS} "
            "partitions, ten ledgers each; 2/2/2; `local[2]`; user and system time of Spark's JVM, its Python workers, "
            "bookies and brokers",
            f"through the broker: the official Python client, {BROKER_SHARE:.0%} of the rows; all of the hour",
            "an hour: what finding and reading it costs in a day of a million rows",
            f"load average before and after: {waiting[0]:.1f} and {waiting[1]:.1f}",
        ],
        "failed": "",
        "took_s": round(time.perf_counter() - began),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": f"python -m bench.spark_costs --rows {rows} --rounds {rounds}",
        "machine": machine(),
        "quiet": quiet.Quiet.of(before, quiet.times(), since, quiet.stolen())._asdict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_costs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=ROWS, help=f"in each topic ({ROWS:,})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"counted rounds ({ROUNDS})")
    parser.add_argument("--write-docs", action="store_true", help="keep the results as data, and make the pages")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        found = result(options.rows, options.rounds, Path(folder))
    if options.write_docs:
        write({GROUP: found})


if __name__ == "__main__":
    main()
