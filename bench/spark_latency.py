"""From `send` to `foreachBatch`: how long a message is on its way to a stream that runs as fast as it can.

One message at a time, some time after the one before has come and a little more each time, so that it meets every
phase of the query's loop. Beside it a source that does nothing: its "message" is there when it is asked for it, so its
way is what Spark itself takes for a batch of one row. `local[2]`, ProcessingTime("0 seconds"), checkpoint on the local
disk.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pulsar
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from magnetar.processes.cluster import Cluster
from tests.support.processes import QUIET
from tests.support.spark_session import spark_session

Rows = list[tuple[str, str]]

MESSAGES: Final = 60
WARM: Final = 5
PAUSE_S: Final = 0.3
PATIENCE_S: Final = 60.0


class _TickReader(DataSourceStreamReader):
    """Has a new row whenever the file in its options has another number."""

    def __init__(self, path: str) -> None:
        self._path = path

    def initialOffset(self) -> dict[str, Any]:
        return {"at": "0"}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return {"at": Path(self._path).read_text()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(end["at"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        yield (str(partition.value).encode(),)


class Ticks(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ticks"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _TickReader(self.options["path"])


def measure(stream: DataFrame, state: Path, send: Callable[[str], None]) -> list[float]:
    """Seconds of each message from before it is sent to `foreachBatch`."""
    seconds: list[float] = []

    def arrived(batch: DataFrame, number: int) -> None:
        now = time.time()
        seconds.extend(now - float(bytes(row[0])) for row in batch.collect() if bytes(row[0]) != b"0")

    writer = stream.select("value").writeStream.foreachBatch(arrived).trigger(processingTime="0 seconds")
    query = writer.option("checkpointLocation", str(state)).start()
    try:
        for number in range(WARM + MESSAGES):
            send(repr(time.time()))
            deadline = time.monotonic() + PATIENCE_S
            while len(seconds) <= number:
                assert time.monotonic() < deadline, f"message {number} did not come"
                time.sleep(0.02)
            time.sleep(PAUSE_S + number % 10 * 0.013)
    finally:
        query.stop()
    return sorted(seconds[WARM:])


def run(metadata_url: str, service_url: str) -> Rows:
    found: Rows = []
    with spark_session("bench", validated=False) as spark, tempfile.TemporaryDirectory() as folder:
        spark.dataSource.register(Ticks)
        tick = Path(folder) / "tick"
        tick.write_text("0")

        def write(text: str) -> None:
            made = tick.with_suffix(".new")
            made.write_text(text)
            made.replace(tick)

        client = pulsar.Client(service_url, logger=QUIET)
        producer = client.create_producer("spark-latency", batching_enabled=False)
        producer.send(b"0")
        topic = spark.readStream.format("magnetar").option("metadata.url", metadata_url).option("columns", "value")
        topic = topic.option("startingOffsets", "earliest")
        ways = {
            "a source that does nothing": (
                spark.readStream.format("ticks").option("path", str(tick)).load(), write,
            ),
            "a topic, 2/2/2": (
                topic.option("topic", "spark-latency").load(), lambda text: producer.send(text.encode()),
            ),
        }  # fmt: skip
        for name, (stream, send) in ways.items():
            seconds = measure(stream, Path(folder) / f"state-{len(found)}", send)
            p50, p90 = statistics.median(seconds), seconds[len(seconds) * 9 // 10]
            found.append(
                (
                    f"Spark stream, from send to foreachBatch, {name}",
                    f"p50 {p50 * 1000:.0f} ms, p90 {p90 * 1000:.0f} ms",
                )
            )
        client.close()
    return found


def rows() -> Rows:
    """The table, from a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        cluster = Cluster(Path(folder) / "cluster")
        cluster.up(bookies=3, brokers=1, free_ports=True)
        try:
            return run(cluster.metadata_url, cluster.service_url)
        finally:
            cluster.down()
