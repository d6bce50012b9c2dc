"""Single jobs: 100 million rows and their memory, where the time of a job goes, and planning."""

import asyncio
import json
import statistics
import time
from collections import Counter
from typing import Any, Final

from bench.apache import spark_ways as ways
from bench.apache.perf import attempt
from bench.apache.spark_processes import Jvm, watched
from bench.apache.spark_reads import Bench, noop, words, wrote
from bench.apache.spark_ways import Query
from bench.apache.table import SIDES, Side, Table
from bench.spark_planning import LEDGERS, batch
from bench.spark_planning import write_topic as write_ledgers
from bench.spark_topics import Topic

WORKER_GOAL: Final = "<= 700 MB"
HOUR_GOAL: Final = "<= 1.3 ×"
PLANNING_GOAL: Final = "<= 1 s"

SLACKS: Final = (("10m", "publishTimeSlack 10m, the default"), ("1m", "publishTimeSlack=1m"))

MANY_ROUNDS_MAX: Final = 2
"""So many jobs over the day are enough: one lasts a minute or so."""

GATHERS: Final = "spark.sql.pyspark.worker.logging.enabled"


def many(bench: Bench, topic: Topic, rounds: int) -> None:
    """The day once for each round, and the hour; the peak of a Python worker over all of it."""
    if not wrote(bench, topic):
        return
    name = f"{topic.count:,} rows of {words(topic)}, packed with zstd, value only"
    warm = bench.metadata_url(SIDES[0])
    noop(lambda: ways.source(bench.spark, warm, topic, ways.HOUR))  # else the side that comes first pays for the start
    for side in SIDES:
        url = bench.metadata_url(side)

        def day(found: Table, side: Side = side, url: str = url) -> str:
            with watched(Jvm.of_this_process()) as peak:
                for _ in range(min(rounds, MANY_ROUNDS_MAX)):
                    seconds = noop(lambda: ways.source(bench.spark, url, topic, ways.VALUES))
                    found.add(f"{name}: the day", "rows/s", side, topic.count / seconds)
                    for slack, shown in SLACKS:
                        hour = noop(lambda slack=slack: ways.source(bench.spark, url, topic, ways.HOUR,  # type: ignore[misc]
                                                                    publishTimeSlack=slack))  # fmt: skip
                        share = seconds * topic.hour_count / topic.count
                        what = f"{name}: an hour, by its share of the day ({shown})"
                        found.add(what, "×", side, hour / share, goal=HOUR_GOAL)
            found.add(f"{name}: the most memory of one Python worker", "MB", side, peak.mb, goal=WORKER_GOAL)
            return f"{peak.mb:,.0f} MB"

        attempt(bench.table, side, f"{name}: the day", "rows/s", day)


def task_facts(bench: Bench, query: Query, url: str, topic: Topic) -> tuple[float, dict[str, float]]:
    """Seconds of a job, and the sums of what its tasks tell in the workers' log."""
    bench.spark.conf.set(GATHERS, "true")
    try:
        before = _lines(bench)
        seconds = noop(lambda: query.action(ways.source(bench.spark, url, topic, query)))
        lines = _lines(bench) - before
    finally:
        bench.spark.conf.unset(GATHERS)
    return seconds, summed([json.loads(line) for line in lines.elements()])


def _lines(bench: Bench) -> Counter[str]:
    """What tasks have told so far. The log has no order."""
    told = (row["msg"] for row in bench.spark.tvf.python_worker_logs().collect())
    return Counter(line for line in told if line.startswith('{"topic"'))


def summed(facts: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers of all tasks."""
    found: dict[str, float] = {}
    for one in facts:
        for name, value in one.items():
            if isinstance(value, int | float):
                found[name] = found.get(name, 0) + value
    return found


STAGES: Final = (
    ("waited_s", "thread that fetches: bookies, network, digests"),
    ("opened_s", "thread that fetches: metadata, decompression"),
    ("fetched_s", "task: nothing was fetched yet"),
    ("built_s", "task: messages into Arrow columns"),
    ("handed_s", "task: Spark takes them (Arrow's format, socket, JVM)"),
)
"""Facts of a task and what they mean. The first two are of a thread beside the task."""


def stages(bench: Bench, topic: Topic, rounds: int) -> None:
    """Seconds of both cores, for one million rows: by the tasks, and by the kinds of processes."""
    if not wrote(bench, topic):
        return
    for number in range(rounds + 1):
        table = bench.table if number else Table()  # round 0 warms up
        for side in SIDES:
            for query in (ways.VALUES, ways.DEFAULT):
                what = f"stages, {words(topic)}, {query.name}"

                def work(found: Table, side: Side = side, query: Query = query, what: str = what) -> str:
                    return _stages(bench, topic, side, query, what, found)

                attempt(table, side, f"{what}: the job on two cores", "s per million", work)


def _stages(bench: Bench, topic: Topic, side: Side, query: Query, what: str, table: Table) -> str:
    system = bench.pair.turn(side)
    jvm = Jvm.of_this_process()
    before = {**system.cpu_s(), "Spark's JVM": jvm.cpu_s}
    seconds, facts = task_facts(bench, query, system.cluster.metadata_url, topic)
    after = {**system.cpu_s(), "Spark's JVM": jvm.cpu_s}
    millions = topic.count / 1_000_000
    table.add(f"{what}: the job on two cores", "s per million", side, 2 * seconds / millions)
    for name, shown in STAGES:
        table.add(f"{what}: {shown}", "s per million", side, facts[name] / millions)
    inside = sum(facts[name] for name in ("fetched_s", "built_s", "handed_s"))
    rest = f"{what}: the rest (planning, start of tasks, a core without one)"
    table.add(rest, "s per million", side, (2 * seconds - inside) / millions)
    for kind in ("bookie", "Spark's JVM"):  # Python workers end between two jobs, and take their count with them
        table.add(f"{what}: CPU of {kind}", "CPU s per million", side, (after[kind] - before[kind]) / millions)
    return f"{2 * seconds:.2f} s of two cores, {inside:.2f} s in tasks"


def planning(bench: Bench, rounds: int) -> None:
    what = f"a topic of {LEDGERS:,} ledgers: from options to tasks"
    for side in SIDES:

        def work(found: Table, side: Side = side) -> str:
            url = bench.metadata_url(side)
            asyncio.run(write_ledgers(url, "many-ledgers"))
            taken = []
            for number in range(rounds + 1):
                began = time.perf_counter()
                batch(url, "many-ledgers")
                if number:  # the first one warms up
                    taken.append(time.perf_counter() - began)
                    found.add(what, "s", side, taken[-1], goal=PLANNING_GOAL)
            return f"{statistics.median(taken):.2f} s"

        attempt(bench.table, side, what, "s", work)
