"""`pulsar-perf` against one broker of each kind on three bookies of its kind, 2/2/2.

Publishing: as fast as 10,000 messages under way allow. Consuming: the topic just published, from its beginning, with
the tool's own settings, when the servers have done with what publishing left to do: the faster side has more of that.
End to end: 5,000 messages a second of 1 KiB for 40 seconds, one consumer; the latency is what the consumer sees, from
publishing to receiving (whole milliseconds: that is the tool's clock). The first ten seconds, in which the tool's
virtual machines get warm, are not counted.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bench.apache.outputs import NoResult, parse_consume, parse_produce, warm_latency
from bench.apache.rig import BenchError, Pair, System, perf, perf_environment, run_tool, started
from bench.apache.table import SIDES, Side, Table

UNDER_WAY: Final = 10_000
LATENCY_PER_S: Final = 5_000
LATENCY_S: Final = 40.0
SERVERS: Final = ("broker", "bookie", "zookeeper")

QUIET_CORES: Final = 0.1
QUIET_S_MAX: Final = 20.0

# Messages that are consumed, the same number on both sides. Of fewer, the start of the tool's virtual machine is most
# of the time; more would tell nothing new.
CONSUME_MAX: Final = 2_000_000


class Topic(NamedTuple):
    size: int
    partitions: int
    batched: bool = True

    @property
    def words(self) -> str:
        parts = f"{self.partitions} partitions" if self.partitions else "one topic"
        return f"{self.size:,} B, {parts}" + ("" if self.batched else ", not batched")


TOPICS: Final = (
    Topic(1024, 0),
    Topic(100, 0),
    Topic(1024, 4),
    Topic(100, 4),
    Topic(1024, 0, batched=False),
)


def run(directory: Path, rounds: int, seconds: float, table: Table) -> list[str]:
    _prepare(table)
    with Pair(directory, bookies=3, brokers=1) as pair:
        notes = [
            f"Apache's servers: {pair.memory_note}, caches as shipped; retention without limit on both sides",
            "consuming begins when the servers are idle again after publishing, or 20 s later",
        ]
        for number in range(rounds + 1):
            kept = table if number else Table()  # round 0 warms up
            for topic in TOPICS if number else TOPICS[:2]:
                published: dict[Side, int] = {}
                for side in SIDES:
                    attempt(
                        kept,
                        side,
                        f"publish {topic.words}",
                        "msg/s",
                        _publish(pair, side, topic, number, seconds, published),
                    )
                for side in SIDES:
                    attempt(kept, side, f"consume a backlog of {topic.words}", "msg/s",
                            _consume(pair, side, topic, number, _in_common(published)))  # fmt: skip
            for side in SIDES:
                attempt(kept, side, _END_TO_END, "p99 ms", _latency(pair, side, number))
    return notes


def _in_common(published: Mapping[Side, int]) -> int:
    """How many of the messages both sides have; 0: one of them has none."""
    return min(published.get(side, 0) for side in SIDES)


_END_TO_END: Final = f"end to end at {LATENCY_PER_S:,} msg/s, 1,024 B, one topic"

Work = Callable[[Table], str]
"""Puts what it found into the table; returns a few words for the terminal."""


def _prepare(table: Table) -> None:
    """The order of the rows."""
    for topic in TOPICS:
        table.row(f"publish {topic.words}", "msg/s", goal=">= 1" if topic.batched else "")
        table.row(f"publish {topic.words}", "p99 ms", goal="<= 0.5" if topic.batched else "")
    for topic in TOPICS:
        table.row(f"consume a backlog of {topic.words}", "msg/s", goal=">= 1.2" if topic.size >= 1024 else ">= 1")
    for unit in ("p50 ms", "p99 ms", "p99.9 ms"):
        table.row(_END_TO_END, unit, goal="<= 0.5" if unit == "p99 ms" else "")
    table.row(f"publish at {LATENCY_PER_S:,} msg/s, 1,024 B, send to receipt", "p99 ms", goal="<= 0.5")


def attempt(table: Table, side: Side, what: str, unit: str, work: Work) -> bool:
    """Runs *work*; a failure becomes the cell of its row. Whether it went well."""
    began = time.perf_counter()
    try:
        found = work(table)
    except Exception as error:
        print(f"  {what}, {side}: {error}"[:600], flush=True)
        table.fail(what, unit, side, str(error))
        return False
    print(f"  {what}, {side}: {found} ({time.perf_counter() - began:.0f} s)", flush=True)
    return True


def name_of(topic: Topic, number: int) -> str:
    kind = "batched" if topic.batched else "single"
    return f"persistent://public/default/perf-{topic.size}-{topic.partitions}-{kind}-{number}"


def produce_command(system: System, topic: Topic, name: str, seconds: float, per_s: int = 1_000_000) -> list[str]:
    broker = system.brokers[0]
    return perf(
        "produce", "-u", broker.service_url, "-au", broker.admin_url, "-r", str(per_s), "-s", str(topic.size),
        "-time", str(max(round(seconds), 1)), "-o", str(UNDER_WAY), "-p", str(UNDER_WAY),
        *(("-np", str(topic.partitions)) if topic.partitions else ()), *(() if topic.batched else ("-db",)), name,
    )  # fmt: skip


def consume_command(system: System, name: str, count: int, seconds: float, position: str = "Earliest") -> list[str]:
    return perf(
        "consume", "-u", system.brokers[0].service_url, "-ss", "perf", "-sp", position, "-m", str(count),
        "-time", str(max(round(seconds), 1)), name,
    )  # fmt: skip


def _cpu(table: Table, side: Side, what: str, before: dict[str, float], after: dict[str, float], count: int) -> None:
    for kind in SERVERS:
        used = after.get(kind, 0.0) - before.get(kind, 0.0)
        table.add(
            f"CPU, {what}: {'all bookies' if kind == 'bookie' else kind}", "CPU s per million", side, used / count * 1e6
        )


def _publish(pair: Pair, side: Side, topic: Topic, number: int, seconds: float, published: dict[Side, int]) -> Work:
    def work(table: Table) -> str:
        system = pair.turn(side)
        place, what = system.cluster.directory, f"publish {topic.words}"
        before = system.cpu_s()
        ran = run_tool(
            produce_command(system, topic, name_of(topic, number), seconds), place,
            timeout_s=seconds + 90, environment=perf_environment(place),
        )  # fmt: skip
        after, load = system.cpu_s(), parse_produce(ran.text)
        published[side] = load.done
        table.add(what, "msg/s", side, load.per_s)
        table.add(what, "p99 ms", side, load.latency.p99_ms)
        if not topic.partitions:
            _cpu(table, side, what, before, after, load.done)
        return f"{load.per_s:,.0f} msg/s, p99 {load.latency.p99_ms:,.0f} ms"

    return work


def _until_quiet(system: System) -> None:
    """Wait until the servers use less than a tenth of a core, for some time at most."""
    deadline, used = time.monotonic() + QUIET_S_MAX, sum(system.cpu_s().values())
    while time.monotonic() < deadline:
        time.sleep(1)
        before, used = used, sum(system.cpu_s().values())
        if used - before < QUIET_CORES:
            return


def _consume(pair: Pair, side: Side, topic: Topic, number: int, published: int) -> Work:
    def work(table: Table) -> str:
        if not published:
            raise BenchError("nothing was published to be consumed")
        system = pair.turn(side)
        place, what = system.cluster.directory, f"consume a backlog of {topic.words}"
        _until_quiet(system)
        before, wanted = system.cpu_s(), min(published, CONSUME_MAX)
        ran = run_tool(
            consume_command(system, name_of(topic, number), wanted, 90), place,
            timeout_s=150, environment=perf_environment(place),
        )  # fmt: skip
        after, load = system.cpu_s(), parse_consume(ran.text)
        if load.done < wanted:
            raise NoResult(f"only {load.done:,} of {wanted:,} messages came in 90 s")
        table.add(what, "msg/s", side, load.per_s)
        if not topic.partitions:
            _cpu(table, side, what, before, after, load.done)
        return f"{load.per_s:,.0f} msg/s"

    return work


def _latency(pair: Pair, side: Side, number: int) -> Work:
    def work(table: Table) -> str:
        system = pair.turn(side)
        place = system.cluster.directory
        environment = perf_environment(place)
        name = f"persistent://public/default/end-to-end-{number}"
        # The consumer is started first. It ends when it has received everything, or when its time is over.
        wanted = int(LATENCY_PER_S * LATENCY_S * 0.9)
        with started(consume_command(system, name, wanted, LATENCY_S + 30, "Latest"), place, environment) as consumer:
            assert consumer.stdout is not None
            text: list[str] = []
            for line in consumer.stdout:
                text.append(line)
                if "Start receiving" in line:
                    break
            produced = run_tool(
                produce_command(system, Topic(1024, 0), name, LATENCY_S, LATENCY_PER_S), place,
                timeout_s=LATENCY_S + 90, environment=environment,
            )  # fmt: skip
            text += consumer.communicate(timeout=60)[0].splitlines(keepends=True)
        done = parse_consume("".join(text)).done
        consumed, sent = warm_latency("".join(text)), warm_latency(produced.text)
        for unit, value in zip(("p50 ms", "p99 ms", "p99.9 ms"), consumed, strict=True):
            table.add(_END_TO_END, unit, side, value)
        table.add(f"publish at {LATENCY_PER_S:,} msg/s, 1,024 B, send to receipt", "p99 ms", side, sent.p99_ms)
        return f"p50 {consumed.p50_ms:g}, p99 {consumed.p99_ms:g} ms of {done:,}"

    return work
