"""Reads the numbers from what the load tools print. No IO.

BookKeeper's BenchThroughputLatency ends with `72960 completions in 5105 milliseconds: 14291 ops/sec` and leaves a file
with one line an add: nanoseconds, a tab, milliseconds.

pulsar-perf ends with a line of counts and one of latencies. Its own rate divides by a time in which it also shuts down
(some seconds), so the rate here is taken from the times of its log lines: from the first send to the last. Every ten
seconds it prints the latencies of those seconds; the first ten are those of a virtual machine that is not warm.
"""

import json
import re
import statistics
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from bench.apache.table import percentile

COMPLETIONS: Final = re.compile(r"(\d+) completions in (\d+) milliseconds")
COUNT: Final = re.compile(r"Aggregated throughput stats --- (\d+) records (?:sent|received) --- ([\d.]+) msg/s")
_PERCENTILES: Final = (
    r"--- Latency: mean: *([\d.]+)(?: ms)? - med: *([\d.]+) - 95pct: *([\d.]+) - 99pct: *([\d.]+) - 99\.9pct: *([\d.]+)"
)
LATENCY: Final = re.compile(rf"Aggregated latency stats {_PERCENTILES}")
INTERVAL: Final = re.compile(rf"Throughput (?:produced|received): .*{_PERCENTILES}")
STAMP: Final = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}[+-]\d{4})")
PRODUCE_BEGINS: Final = re.compile(r"Created \d+ producers")
CONSUME_BEGINS: Final = re.compile(r"Start receiving from")
ENDS: Final = re.compile(r"-{5,} DONE ")


class Latency(NamedTuple):
    p50_ms: float
    p99_ms: float
    p999_ms: float


class Load(NamedTuple):
    """One run of a tool."""

    done: int
    per_s: float
    latency: Latency
    warm: int = 0
    """Operations of the warm-up, if the tool reports them."""


class NoResult(Exception):
    """The tool ended without printing its figures; the text has its last lines."""


def parse_adds(text: str, latencies: Iterable[str]) -> Load:
    """BenchThroughputLatency: what it said, and the lines of its latency file. Raises NoResult."""
    found = COMPLETIONS.search(text)
    if found is None or not int(found[1]):
        raise NoResult(f"the load generator gave no rate: {complaints(text)}")
    # Adds without an answer at the end have no latency; they are left out of the file, or are 0 in it.
    taken = sorted(int(line.split("\t")[0]) / 1e6 for line in latencies if line.strip())
    taken = [each for each in taken if each > 0]
    if not taken:
        raise NoResult("the load generator left no latencies")
    latency = Latency(percentile(taken, 0.50), percentile(taken, 0.99), percentile(taken, 0.999))
    return Load(int(found[1]), int(found[1]) * 1000 / int(found[2]), latency)


def parse_our_adds(text: str) -> Load:
    """`bench.add_load`: one JSON line. Raises NoResult."""
    try:
        found = json.loads(text.strip().splitlines()[-1])
        latency = Latency(found["p50"], found["p99"], found["p999"])
        return Load(found["adds"], found["adds"] / found["seconds"], latency, found["warm"])
    except (ValueError, LookupError, TypeError):
        raise NoResult(f"the load generator gave no figures: {complaints(text)}") from None


def parse_produce(text: str) -> Load:
    """`pulsar-perf produce`. Raises NoResult."""
    return _perf(text, PRODUCE_BEGINS)


def parse_consume(text: str) -> Load:
    """`pulsar-perf consume`; the latency is from publishing to receiving. Raises NoResult."""
    return _perf(text, CONSUME_BEGINS)


def warm_latency(text: str) -> Latency:
    """`pulsar-perf` at a fixed rate: the median of its intervals but for the first; NoResult: there are none."""
    found = [[float(part) for part in one.groups()] for one in INTERVAL.finditer(text)][1:]
    if not found:
        raise NoResult(f"pulsar-perf gave no figures of intervals: {complaints(text)}")
    _, p50, _, p99, p999 = (statistics.median(column) for column in zip(*found, strict=True))
    return Latency(p50, p99, p999)


def _perf(text: str, begins: re.Pattern[str]) -> Load:
    count, latency = COUNT.search(text), LATENCY.search(text)
    if count is None or latency is None or not int(count[1]):
        raise NoResult(f"pulsar-perf gave no figures: {complaints(text)}")
    began, ended = _moment(text, begins), _moment(text, ENDS)
    seconds = (ended - began).total_seconds() if began and ended else 0.0
    per_s = int(count[1]) / seconds if seconds > 0 else float(count[2])
    return Load(int(count[1]), per_s, Latency(float(latency[2]), float(latency[4]), float(latency[5])))


def _moment(text: str, mark: re.Pattern[str]) -> datetime | None:
    """When the first line with *mark* was logged."""
    for line in text.splitlines():
        stamp = STAMP.match(line)
        if stamp and mark.search(line):
            return datetime.strptime(stamp[1], "%Y-%m-%dT%H:%M:%S,%f%z")
    return None


def complaints(text: str) -> str:
    """The lines of the output that look like the reason, or else the last ones."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Exception" in line or " ERROR " in line]
    return " / ".join((told or lines)[-2:]) or "it said nothing"
