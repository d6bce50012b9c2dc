"""A broker of two ends, by kill -9 or politely, while one official client publishes to many topics.

Of each topic the time from the kill to its next acknowledgement; of a polite stop the longest time from sending a
message to its receipt. Of the servers that stay, the processor time from the kill until the last topic was back,
divided by the topics that were away; what the load of before the kill takes in as much time is shown beside it.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.process_facts import CpuSampler, CpuSamples, cpu_seconds
from magnetar.processes.cluster import Cluster

MESSAGES_PER_S: Final = 2_000
"""Of all topics together, but no topic has more than two a second: what two cores carry beside a takeover."""

LATE_S: Final = 0.3
"""A topic that was silent for so much longer than its messages are apart was away."""

SETTLE_S: Final = 3.0
"""Before the broker ends; at least until each topic has had a message."""

GONE_MAX_S: Final = 120.0


SHARES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("last", 1.0))


class Gaps(NamedTuple):
    """Of the topics that were away, sorted, in seconds."""

    seconds: list[float]
    topics: int
    """All of them, those that stayed where they were included."""
    p99_ms: float
    """From send to receipt."""

    def at(self, share: float) -> float:
        return self.seconds[min(int(len(self.seconds) * share), len(self.seconds) - 1)] if self.seconds else 0.0

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {self.at(share):.2f} s" for name, share in SHARES)
        return f"{len(self.seconds):,} of {self.topics:,} topics were away: {shares}"


class Report(NamedTuple):
    """Since the mark."""

    silences: dict[str, tuple[float, float, float | None]]
    """Of each topic the longest: s, when it began, when it ended."""
    waits: list[float]
    """Of each topic the longest, s, ascending."""
    p99_ms: float
    """Of all messages."""
    failed: dict[str, int]
    """Messages by the reason why they failed; since the beginning."""


class Publisher:
    """The process of the client."""

    def __init__(self, process: subprocess.Popen[str], period_s: float) -> None:
        self._process = process
        self.period_s = period_s
        self._silence_min_s = period_s + LATE_S
        self.created_s: float = self._line()["created_s"]

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the client ended with {self._process.wait()}"
        return json.loads(line)

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def report(self) -> Report:
        self.tell("report")
        found = self._line()
        return Report(found["silences"], found["waits"], found["p99_ms"] or 0.0, found["failed"])

    def gaps_since(self, moment_s: float) -> Gaps:
        """Waits until every topic has been acknowledged again."""
        deadline = moment_s + GONE_MAX_S
        while True:
            time.sleep(1.0)
            now = time.monotonic()
            silences, _, p99_ms, _ = self.report()
            away = [gone for gone, _, end in silences.values() if end is None and gone > self._silence_min_s]
            is_seen = now > moment_s + self._silence_min_s + 1.0  # of a topic that never came back, too
            if (is_seen and not away) or now > deadline:
                break
        ends = [(gone, now if end is None else end) for gone, _, end in silences.values()]
        return Gaps(sorted(end - moment_s for gone, end in ends if gone > self._silence_min_s), len(silences), p99_ms)

    def silences(self) -> Gaps:
        """The longest of each topic, whatever it is."""
        found = self.report()
        return Gaps(sorted(gone for gone, _, _ in found.silences.values()), len(found.silences), found.p99_ms)

    def waits(self) -> Gaps:
        """The longest from send to receipt of each topic, whatever it is."""
        found = self.report()
        return Gaps(found.waits, len(found.waits), found.p99_ms)


@contextmanager
def publisher(url: str, topics: int, directory: Path, name: str = "gap") -> Iterator[Publisher]:
    """The topics begin with *name*."""
    period_s = max(0.5, topics / MESSAGES_PER_S)
    command = [
        sys.executable, "-m", "bench.topic_gaps", url, "--topics", str(topics), "--period", str(period_s),
        "--prefix", f"persistent://public/default/{name}-",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield Publisher(process, period_s)
    finally:
        process.kill()
        process.wait()


class Cost(NamedTuple):
    """Processor time of one server, or of several of a kind together, in ms."""

    kind: str
    per_topic_ms: float
    """From the kill until the last topic was back, divided by the topics that were away."""
    load_ms: float
    """Of that, what the load of before the kill takes in as much time."""

    def __str__(self) -> str:
        return f"{self.kind} {self.per_topic_ms:.2f} ms ({self.load_ms:.2f} of it the load's)"


class Measured(NamedTuple):
    created_s: float
    """From the first producer's request until all producers were there: the topics are made by that."""
    gaps: Gaps
    costs: tuple[Cost, ...] = ()


Cpu = Mapping[str, Callable[[], float]]
"""By kind of server: its seconds of processor time so far."""


def kill(
    url: str, topics: int, directory: Path, end: Callable[[], None], name: str = "gap", cpu: Cpu | None = None
) -> Measured:
    """*end* kills a broker. Of each topic that was away: seconds from the kill to its next acknowledgement.

    *cpu*: the servers whose processor time is measured.
    """
    with publisher(url, topics, directory, name) as client:
        sampler = CpuSampler(cpu or {})
        try:
            settle_s = max(SETTLE_S, 1.5 * client.period_s)
            time.sleep(settle_s)
            client.tell("mark")
            moment = time.monotonic()
            end()
            gaps = client.gaps_since(moment)
        finally:
            samples = sampler.stop()
        costs = [cost(samples, kind, moment, settle_s, gaps) for kind in cpu or {}]
        return Measured(client.created_s, gaps, tuple(costs))


def cost(samples: CpuSamples, kind: str, moment_s: float, settle_s: float, gaps: Gaps) -> Cost:
    """What the takeover at *moment_s* took of one kind of server; the load ran for *settle_s* before it."""
    away, last_s = max(len(gaps.seconds), 1), gaps.at(1.0)
    used_s = samples.used_s(kind, moment_s, moment_s + last_s)
    load_s = samples.used_s(kind, moment_s - settle_s, moment_s) / settle_s * last_s
    return Cost(kind, used_s / away * 1000, load_s / away * 1000)


def stop(url: str, topics: int, directory: Path, end: Callable[[], None], name: str = "gap") -> Measured:
    """*end* stops a broker politely and returns when its process has ended. The longest wait for a receipt of each
    topic: what a client notices."""
    with publisher(url, topics, directory, name) as client:
        time.sleep(max(SETTLE_S, 1.5 * client.period_s))
        client.tell("mark")
        moment = time.monotonic()
        end()
        client.gaps_since(moment)
        return Measured(client.created_s, client.waits())


def cpu_of(pids: list[int]) -> Callable[[], float]:
    return lambda: sum(map(cpu_seconds, pids))


SURVIVOR: Final = "the broker that stays"


def cluster_cpu(cluster: Cluster, staying: str) -> Cpu:
    kinds = {kind: [one.pid for one in cluster.members(kind)] for kind in ("bookie", "zookeeper")}
    return {SURVIVOR: cpu_of([cluster.member(staying).pid])} | {kind: cpu_of(pids) for kind, pids in kinds.items()}


def rows(topics: int = 1000) -> list[tuple[str, str]]:
    """Both on clusters of their own: three bookies, two brokers, 2/2/2, sessions of 2 s. The service URL is that of the
    broker that stays, as behind a load balancer; with both brokers in it, lookups at the dead one wait out the client's
    back-off."""
    found: list[tuple[str, str]] = []
    for number, what in (
        (signal.SIGKILL, "kill -9 to the next acknowledgement"),
        (signal.SIGTERM, "stopped politely, longest wait for a receipt"),
    ):
        with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
            cluster = Cluster(Path(folder) / "cluster")
            cluster.up(bookies=3, brokers=2, free_ports=True)
            try:
                going, staying = cluster.members("broker")

                def end(cluster: Cluster = cluster, name: str = going.name, number: int = number) -> None:
                    cluster.kill(name, number)

                measure = partial(kill, cpu=cluster_cpu(cluster, staying.name)) if number == signal.SIGKILL else stop
                made = measure(f"pulsar://127.0.0.1:{staying.port}", topics, Path.cwd(), end)
                found.append((f"one of two brokers with {topics:,} topics, {what}", str(made.gaps)))
                if made.costs:
                    found.append(("  processor time for each of these topics", "; ".join(map(str, made.costs))))
                found.append((f"{topics:,} topics made by their producers", f"{made.created_s:.2f} s"))
            finally:
                cluster.down()
    return found


def rolling(topics: int = 1000) -> list[tuple[str, str]]:
    """All brokers of a cluster are restarted politely, one after the other, then all bookies; 2/2/2. The client knows
    the addresses of all brokers."""
    found: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        cluster = Cluster(Path(folder) / "cluster")
        cluster.up(bookies=3, brokers=3, free_ports=True)
        try:
            with publisher(cluster.service_url, topics, Path.cwd()) as client:
                time.sleep(SETTLE_S)
                for kind in ("broker", "bookie"):
                    client.tell("mark")
                    for member in cluster.members(kind):
                        cluster.kill(member.name, signal.SIGTERM)
                        cluster.start(member.name)
                        time.sleep(SETTLE_S)
                    _, waits, p99_ms, failed = client.report()
                    shown = (
                        f"p99 of publishing {p99_ms:,.0f} ms, longest {waits[-1]:.2f} s, {sum(failed.values())} failed"
                    )
                    found.append((f"{topics:,} topics, each {kind} of three restarted in turn", shown))
        finally:
            cluster.down()
    return found


if __name__ == "__main__":
    for label, result in [*rows(*map(int, sys.argv[1:])), *rolling(*map(int, sys.argv[1:]))]:
        print(f"{label}: {result}", flush=True)
