"""Rows a second from our bookies into Spark's `noop` sink, beside what Spark takes at most from any Python source.

The ceiling is a source that yields the same prepared Arrow batch again and again, with the same columns, on the same
number of partitions: no bookies, no network, no decoding.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.apache.perf import attempt
from bench.apache.table import Table
from bench.spark_read import write_topic
from magnetar.processes.cluster import Cluster
from tests.support.spark_session import spark_session

# (bytes of a message, messages in the topic)
SIZES: Final = ((1_000, 300_000), (100, 2_000_000))
PARTITIONS: Final = (1, 2, 4)
BATCH_ROWS: Final = {1_000: 1_000, 100: 10_000}


def ceiling_source(size: int, rows: int, partitions: int) -> Any:
    """A data source class that does nothing but yield; defined here because PySpark is needed for it."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    batch_rows = BATCH_ROWS[size]

    class Reader(DataSourceReader):  # type: ignore[misc, unused-ignore]
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(partitions)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            batch = pa.record_batch({"value": pa.array([bytes(size)] * batch_rows, pa.binary())})
            for _ in range(rows // partitions // batch_rows):
                yield batch

    class Ceiling(DataSource):  # type: ignore[misc, unused-ignore]
        @classmethod
        def name(cls) -> str:
            return "ceiling"

        def schema(self) -> str:
            return "value binary"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    return Ceiling


def timed(frame: Any) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def run(directory: Path, rounds: int, seconds: float, table: Table) -> list[str]:
    cluster = Cluster(directory / "cluster")
    cluster.up(bookies=3, brokers=1, free_ports=True)
    try:
        for size, count in SIZES:
            for parts in PARTITIONS:
                asyncio.run(write_topic(cluster.metadata_url, f"spark-{size}-{parts}", parts, size, count))
        with spark_session("bench", validated=False) as spark:
            for number in range(rounds + 1):
                kept = table if number else Table()  # round 0 warms up
                for size, count in SIZES:
                    for parts in PARTITIONS:
                        _measure(spark, cluster.metadata_url, size, count, parts, kept)
    finally:
        cluster.down()
    return [
        "only ours: Apache's source for Spark is written for Spark 2 and 3; 2/2/2, batches of 1,000 messages; local[2]",
        "measured elsewhere, on a machine of the same size: 1,557,000 rows/s of 1 KB (value and one long) and "
        "9,125,000 of 100 B from prepared Arrow batches; 628,000 of 1 KB with decoding from memory, 11 columns",
    ]


def _measure(spark: Any, metadata_url: str, size: int, count: int, parts: int, table: Table) -> None:
    partitions = f"{parts} partition{'s' if parts > 1 else ''}"
    for columns, shown in (("value", "value only"), (None, "default columns")):
        what = f"bookies to Spark, {size:,} B, {partitions}, {shown}"

        def work(found: Table, columns: str | None = columns, what: str = what) -> str:
            reader = spark.read.format("magnetar").option("metadata.url", metadata_url)
            reader = reader.option("topic", f"spark-{size}-{parts}")
            rate = count / timed((reader.option("columns", columns) if columns else reader).load())
            found.add(what, "rows/s", "ours", rate)
            return f"{rate:,.0f} rows/s"

        attempt(table, "ours", what, "rows/s", work)

    what = f"Spark's ceiling, {size:,} B, {partitions}, value only, no bookies"

    def ceiling(found: Table) -> str:
        spark.dataSource.register(ceiling_source(size, count, parts))
        rate = count / timed(spark.read.format("ceiling").load())
        found.add(what, "rows/s", "ours", rate)
        return f"{rate:,.0f} rows/s"

    attempt(table, "ours", what, "rows/s", ceiling)
