"""From the bookies into Spark's `noop` sink, rows a second.

The topics are written beforehand (`bench.spark_topics`). What is timed is one `save()` after a
warm-up: planning of the tasks, bookies, network, decoding, Arrow into the JVM. `local[2]`; bookies run on the same two
cores.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.spark_topics import BATCH, COPIES, Topic, write_topic
from magnetar.processes.cluster import Cluster
from tests.support.spark_session import spark_session

Rows = list[tuple[str, str]]

ROUNDS: Final = 3
SIZES: Final = ((100, 2_000_000), (1_000, 300_000))
PARTITIONS: Final = (1, 2, 4)


def measure(spark: Any, metadata_url: str, topic: str, count: int, columns: str | None) -> list[float]:
    """Rows a second of each round."""
    rates = []
    for number in range(ROUNDS + 1):
        reader = spark.read.format("magnetar").option("metadata.url", metadata_url).option("topic", topic)
        frame = (reader.option("columns", columns) if columns else reader).load()
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        if number:
            rates.append(count / (time.perf_counter() - began))
    assert frame.count() == count, f"{topic} has {frame.count()} rows, not {count}"
    return rates


def run(metadata_url: str, sizes: Sequence[tuple[int, int]] = SIZES, partitions: Sequence[int] = PARTITIONS) -> Rows:
    """Write the topics into a running cluster and read them."""
    found: Rows = []
    topics = [(f"spark-{size}-{parts}", size, count, parts) for size, count in sizes for parts in partitions]
    for topic, size, count, parts in topics:
        asyncio.run(write_topic(metadata_url, Topic(name=topic, partitions=parts, size=size, count=count)))
    with spark_session("bench", validated=False) as spark:
        for topic, size, count, parts in topics:
            for columns, name in (("value", "value only"), (None, "default columns")):
                rates = measure(spark, metadata_url, topic, count, columns)
                middle = statistics.median(rates)
                spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
                found.append(
                    (
                        f"bookies to Spark noop, {size:,} B in batches of {BATCH:,} written directly, "
                        f"{parts} partition{'s' if parts > 1 else ''}, {name}, {COPIES}/{COPIES}/{COPIES}",
                        f"{middle:,.0f} rows/s ({spread}), {middle * size / 1e6:,.0f} MB/s",
                    )
                )
    return found


def rows() -> Rows:
    """The table, from a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        cluster = Cluster(Path(folder) / "cluster")
        cluster.up(bookies=3, brokers=1, free_ports=True)
        try:
            return run(cluster.metadata_url)
        finally:
            cluster.down()


if __name__ == "__main__":
    table = rows()
    width = max(len(label) for label, _ in table)
    for label, result in table:
        print(f"{label.ljust(width)}  {result}")
