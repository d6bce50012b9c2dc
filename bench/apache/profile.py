"""Where our servers spend their time: the bookie under adds, the broker under publishing and consuming."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.apache.bookie import Cell, run_cell
from bench.apache.outputs import parse_consume, parse_produce
from bench.apache.perf import Topic, consume_command, name_of, produce_command
from bench.apache.rig import ApacheCluster, System, perf_environment, run_tool
from bench.apache.table import Table
from tests.support.mixed_cluster import Brand, Kind, Server

SHOWN: Final = 12
PROFILE: Final = "profile.json"


class SampledCluster(ApacheCluster):
    """Our servers under bench.apache.sampled; a server's profile is in its folder when it has been stopped."""

    def _server(
        self, name: str, kind: Kind, brand: Brand, port: int, web_port: int, settings: Mapping[str, object]
    ) -> Server:
        server = super()._server(name, kind, brand, port, web_port, settings)
        python, _, *rest = server._command
        server._command = [python, "-m", "bench.apache.sampled", str(server.directory / PROFILE), *rest]
        return server


def shares(pairs: list[tuple[str, int]], samples: int, leave_out: frozenset[str] = frozenset()) -> list[str]:
    """The functions with the most samples, as lines."""
    return [
        f"  {count / samples * 100:5.1f} %  {name}"
        for name, count in [pair for pair in pairs if pair[0] not in leave_out][:SHOWN]
    ]


def report(title: str, found: Mapping[str, Any]) -> str:
    """A profile as text: threads, then functions by their own time."""
    samples = found["samples"] or 1
    threads = sorted(found["threads_s"].items(), key=lambda pair: -pair[1])
    busy = ", ".join(f"{name} {seconds:.1f}" for name, seconds in threads if seconds >= 0.1)
    # Functions that are below every other on the stack, and so show nothing.
    everywhere = frozenset(name for name, count in found["with_callees"] if count > samples * 0.9)
    return "\n".join(
        [
            f"{title}; {samples:,} samples",
            f"CPU seconds of threads: {busy}",
            "own time, with the C calls made:",
            *shares(found["own"], samples),
            "with what it calls:",
            *shares(found["with_callees"], samples, everywhere),
        ]
    )


def stopped(server: Server, title: str) -> str:
    server.stop()
    return report(title, json.loads((server.directory / PROFILE).read_text()))


def run(directory: Path, rounds: int, seconds: float, table: Table) -> list[str]:
    system = System("ours", directory, kind=SampledCluster)
    notes: list[str] = []
    try:
        system.start(bookies=3, brokers=1)
        place, environment = system.cluster.directory, perf_environment(directory)
        topic = Topic(1024, 0)
        system.bookies[0].send(signal.SIGUSR2)
        load, _ = run_cell(system, Cell(1024, "3/3/2", "v2", False), seconds)
        notes.append(stopped(system.bookies[0], f"bookie, v2 adds of 1,024 B, 3/3/2, {load.per_s:,.0f}/s in this run"))
        system.bookies[0].start()

        system.brokers[0].send(signal.SIGUSR2)
        ran = run_tool(
            produce_command(system, topic, name_of(topic, 0), seconds), place,
            timeout_s=seconds + 90, environment=environment,
        )  # fmt: skip
        sent = parse_produce(ran.text)
        notes.append(stopped(system.brokers[0], f"broker, publish 1,024 B, one topic, {sent.per_s:,.0f} msg/s"))
        system.brokers[0].start()

        system.brokers[0].send(signal.SIGUSR2)
        ran = run_tool(
            consume_command(system, name_of(topic, 0), sent.done, 90), place, timeout_s=150, environment=environment
        )
        came = parse_consume(ran.text)
        notes.append(stopped(system.brokers[0], f"broker, consume 1,024 B, one topic, {came.per_s:,.0f} msg/s"))
    finally:
        system.close()
    for note in notes:
        print(note, flush=True)
    return notes
