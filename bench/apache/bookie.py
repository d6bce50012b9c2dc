"""Adds a second and their latencies against both kinds of bookies: with BookKeeper's own load generator, and with
Magnetar's ledger client, which leaves more of a small machine to the bookies.

Every run is a new generator process with its own warm-up (10,000 adds, 500 of 64 KiB). `-throttle` of that tool is
both the number of adds under way and the most it sends in a second: at a fixed rate it is that rate; for saturation
it is a number that neither side reaches, so the latencies there are those of a queue of that length. The tool begins a
fixed rate with a second's worth of adds at once, before its virtual machine is warm; Magnetar's client sends evenly.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from bench.apache.outputs import Load, parse_adds, parse_our_adds
from bench.apache.rig import ROOT, BenchError, Pair, System, module, run_tool
from bench.apache.table import SIDES, Side, Table
from deploy.fetch_apache import BENCHMARK_JAR
from tests.support.mixed_cluster import class_path

SIZES: Final = (1024, 100, 65536)
QUORUMS: Final = ("3/3/2", "1/1/1")
PROTOCOLS: Final = ("v2", "v3")
FIXED_PER_S: Final = 20_000

# The generator's client gives up on an add after 5 seconds, and then wants another bookie, which does not exist. So no
# more adds may wait than a slow round serves in that time; one bookie serves more than three that each get all.
SATURATION: Final = {
    "3/3/2": {100: 60_000, 1024: 60_000, 65536: 1_200},
    "1/1/1": {100: 150_000, 1024: 150_000, 65536: 6_000},
}

# Of 64 KiB, for each of the bookies that get all of them; the run ends there, or when its time is over. In journal and
# entry log that is 2.4 GB a run at 3/3/2, 3.9 GB at 1/1/1.
ENTRIES_MAX: Final = {"3/3/2": {65536: 6_000}, "1/1/1": {65536: 30_000}}

# Adds with which each generator warms itself and the connections up; 10,000 of 64 KiB would be 4 GB on the disk.
WARM: Final = {100: 10_000, 1024: 10_000, 65536: 500}

UNITS: Final = ("adds/s", "p50 ms", "p99 ms", "p99.9 ms", "bookies' CPU s per million")
SATURATED: Final = 0.93


# Magnetar's client: entries under way.
WINDOW: Final = 4_000


class Cell(NamedTuple):
    size: int
    quorums: str
    protocol: str
    fixed: bool
    client: Literal["Apache's", "Magnetar's"] = "Apache's"

    @property
    def throttle(self) -> int:
        return FIXED_PER_S if self.fixed else SATURATION[self.quorums][self.size]

    @property
    def what(self) -> str:
        load = f"at {FIXED_PER_S:,}/s" if self.fixed else "saturation"
        load += ", Magnetar's client" if self.client == "Magnetar's" else ""
        return f"{self.protocol} adds, {self.size:,} B, {self.quorums}, {load}"


def cells(size: int) -> Iterator[Cell]:
    """64 KiB at 20,000/s would be 1.3 GB/s, each three times; that is not run."""
    for fixed in (False, True) if size * FIXED_PER_S < 100_000_000 else (False,):
        for quorums in QUORUMS:
            for protocol in PROTOCOLS:
                yield Cell(size, quorums, protocol, fixed)
    if size < 65536:  # what Magnetar's client has under way is counted in entries
        for fixed in (False, True):
            for quorums in QUORUMS:
                yield Cell(size, quorums, "v2", fixed, "Magnetar's")


def generator(system: System, cell: Cell, seconds: float, *more: str) -> list[str]:
    ensemble, quorum, ack = cell.quorums.split("/")
    return [
        "java", "-Xms512m", "-Xmx1g", "-cp", class_path(BENCHMARK_JAR),
        "org.apache.bookkeeper.benchmark.BenchThroughputLatency",
        "-zookeeper", system.cluster.zookeeper_address, "-sockettimeout", "30", "-ledgers", "1",
        "-ensemble", ensemble, "-quorum", quorum, "-ackQuorum", ack, "-entrysize", str(cell.size),
        "-throttle", str(cell.throttle), "-warmupMessages", str(WARM[cell.size]), "-time", str(max(round(seconds), 1)),
        "-sendlimit", str(ENTRIES_MAX[cell.quorums].get(cell.size, 20_000_000)),
        *(("-useV2",) if cell.protocol == "v2" else ()), *more,
    ]  # fmt: skip


def run_cell(system: System, cell: Cell, seconds: float) -> tuple[Load, float]:
    """One run: what it found, and the bookies' seconds of processor time in it. Raises BenchError, NoResult."""
    if cell.client == "Magnetar's":
        return run_our_client(system, cell, seconds)
    place = system.cluster.directory
    dump = place / "latencyDump.dat"
    dump.unlink(missing_ok=True)
    before = system.cpu_s()["bookie"]
    ran = run_tool(generator(system, cell, seconds), place, timeout_s=seconds + 120)
    used = system.cpu_s()["bookie"] - before
    if not dump.exists():
        raise BenchError(f"the load generator left no latencies: {ran.text[-300:]}")
    with dump.open() as lines:
        return parse_adds(ran.text, lines), used


def run_our_client(system: System, cell: Cell, seconds: float) -> tuple[Load, float]:
    load = ("--rate", str(cell.throttle)) if cell.fixed else ("--window", str(WINDOW))
    command = module(
        "bench.add_load", f"zk:{system.cluster.zookeeper_address}", "--size", str(cell.size),
        "--quorums", cell.quorums, "--seconds", str(seconds), *load,
    )  # fmt: skip
    before = system.cpu_s()["bookie"]
    ran = run_tool(command, ROOT, timeout_s=seconds + 60)
    used = system.cpu_s()["bookie"] - before
    return parse_our_adds(ran.text), used


def goal_of(cell: Cell, unit: str) -> str:
    """The goal of a row; at a fixed rate only the latencies have one."""
    if unit == "adds/s":
        own_client_goal = ">= 1.3" if cell.client == "Magnetar's" else ">= 1.5"
        return "" if cell.fixed else own_client_goal
    return "<= 0.5" if unit == "p99 ms" else ""


def record(table: Table, side: Side, cell: Cell, load: Load, bookies_cpu_s: float) -> None:
    what = cell.what
    limited = cell.client == "Apache's" and not cell.fixed and load.per_s > SATURATED * cell.throttle
    note = f"the generator's limit is {cell.throttle:,}/s" if limited else ""
    table.add(what, UNITS[0], side, load.per_s, note=note)
    table.add(what, UNITS[1], side, load.latency.p50_ms)
    table.add(what, UNITS[2], side, load.latency.p99_ms)
    table.add(what, UNITS[3], side, load.latency.p999_ms)
    # The generator's warm-up adds are among those that the bookies worked for.
    warm = WARM[cell.size] if cell.client == "Apache's" else load.warm
    table.add(what, UNITS[4], side, bookies_cpu_s / (load.done + warm) * 1e6)


def run(directory: Path, rounds: int, seconds: float, table: Table) -> list[str]:
    notes: list[str] = []
    for size in SIZES:
        planned = list(cells(size))
        for cell in planned:
            for unit in UNITS:
                table.row(cell.what, unit, goal=goal_of(cell, unit))
        with Pair(directory / f"bookie-{size}", bookies=3) as pair:
            notes = [f"Apache's bookies: {pair.memory_note}, caches as shipped (a quarter of direct memory each)"]
            for warm in planned[: len(PROTOCOLS)]:  # not counted: one run a protocol
                for side in SIDES:
                    _attempt(pair, side, warm, seconds, None)
            for _ in range(rounds):
                for cell in planned:
                    for side in SIDES:
                        _attempt(pair, side, cell, seconds, table)
    return notes


def _attempt(pair: Pair, side: Side, cell: Cell, seconds: float, table: Table | None) -> None:
    began = time.perf_counter()
    try:
        load, cpu_s = run_cell(pair.turn(side), cell, seconds)
    except Exception as error:
        print(f"  {cell.what}, {side}: {error}"[:600], flush=True)
        if table is not None:
            for unit in UNITS:
                table.fail(cell.what, unit, side, str(error))
        return
    shown = f"{load.per_s:,.0f}/s, p99 {load.latency.p99_ms:,.1f} ms"
    warm = "warm-up, " if table is None else ""
    print(f"  {warm}{cell.what}, {side}: {shown} ({time.perf_counter() - began:.0f} s)", flush=True)
    if table is not None:
        record(table, side, cell, load, cpu_s)
