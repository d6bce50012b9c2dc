"""`make demo-failover`: a thousand topics under load. One broker is killed, later one is stopped politely.

    1,000 producers ──▶ broker 1 ──▶ 3 bookies
                    └──▶ broker 2 ── kill -9, started again, given half of the topics, stopped politely

A picture shows for how long each topic was away. Every acknowledged message is read again at the end. Anything that
differs ends the program with exit code 1.
"""

import signal
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench.demo.gaps import PERIOD_S, Load, Silence
from bench.demo.steps import DemoFailed, Steps, perform
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster

TOPICS: Final = 1_000
QUIET_S: Final = 3.0
"""Before each of the two ends."""

AWAY_S: Final = 0.8
"""Messages of a topic are half a second apart: one that was silent for longer was away."""

PATIENCE_S: Final = 120.0
READING_AT_ONCE: Final = 20
READ_PATIENCE_MS: Final = 30_000


class Demo(Steps):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, Cluster(directory / "cluster"))

    def run(self) -> None:
        import pulsar

        from magnetar_core.bookkeeper.metadata.stores.zookeeper_server import find_pyspark_jars

        find_pyspark_jars()  # missing Java or PySpark is said before anything is started
        self.say("1. A cluster: ZooKeeper, three bookies, two brokers; sessions of 2 s")
        self.cluster.up(bookies=3, brokers=2, free_ports=True)
        self.done(f"up, logs in {self.cluster.directory}/*/log")
        staying, going = self.cluster.members("broker")
        admin = AdminClient([f"http://127.0.0.1:{staying.web_port}"])
        admin.set_retention("public/default", minutes=-1, megabytes=-1)
        url = f"pulsar://127.0.0.1:{staying.port}"  # as a load balancer that knows who lives
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.directory / "client.log"))
        topics = [f"persistent://public/default/orders-{number}" for number in range(TOPICS)]
        load = Load(pulsar.Client(url, logger=quiet, operation_timeout_seconds=60), topics, self.clock)
        self.done(f"{TOPICS:,} topics made by their producers in {load.created_s:.1f} s")

        self.say("2. Kill a broker (-9)")
        killed = self.ended(load, going.name, signal.SIGKILL)
        self.tell("killed", killed)

        self.say("3. Start it again, spread the topics, and stop it politely")
        self.cluster.start(going.name)
        admin.call("PUT", f"{admin.namespace_path('public/default')}/unload")
        self.settled(load)
        with ThreadPoolExecutor(READING_AT_ONCE) as pool:
            spread = sorted(Counter(pool.map(admin.owner_url, topics)).values())
        if len(spread) != 2:
            raise DemoFailed("the topics were not spread: one broker has all of them")
        self.done(f"both brokers serve again: {spread[0]} topics at one, {spread[1]} at the other")
        stopped = self.ended(load, going.name, signal.SIGTERM)
        self.tell("stopped politely", stopped)

        self.say("4. Read everything from the beginning")
        load.finish()
        if load.failures:
            raise DemoFailed(f"sends failed: {load.failures}")
        self.check(url, load.acknowledged)
        load.end()
        self.done(f"picture: {self.draw({'kill -9': killed, 'stopped politely': stopped})}")
        self.summary()
        self.say("Every acknowledged message is there.")

    # ------------------------------------------------------------------------------------ steps

    def ended(self, load: Load, name: str, number: int) -> list[float]:
        """End a broker by a signal; for how long each topic was silent, in seconds, sorted."""
        threading.Event().wait(QUIET_S)
        load.mark()
        self.cluster.kill(name, number)
        return sorted(one.seconds for one in self.settled(load).values())

    def settled(self, load: Load) -> Mapping[str, Silence]:
        """The silences since the last mark, when no topic is away any more."""
        deadline_s = self.clock.monotonic() + PATIENCE_S
        while True:
            threading.Event().wait(2 * AWAY_S)
            found = load.silences()
            away = sum(one.ended_s is None and one.seconds > AWAY_S for one in found.values())
            if not away:
                return found
            if self.clock.monotonic() > deadline_s:
                raise DemoFailed(f"after {PATIENCE_S:.0f} s {away} topics are still away; the logs say why")

    def tell(self, what: str, silences: Sequence[float]) -> None:
        away = sum(one > AWAY_S for one in silences)
        shares = ", ".join(f"{name} {silences[min(int(len(silences) * share), len(silences) - 1)]:.1f} s"
                           for name, share in (("half", 0.5), ("99 %", 0.99), ("the last", 1.0)))  # fmt: skip
        self.done(f"{what}: {away:,} of {len(silences):,} topics were silent for more than {AWAY_S} s; {shares}")

    def check(self, url: str, acknowledged: Mapping[str, set[int]]) -> None:
        """Each acknowledged message is read from the beginning of its topic."""
        import pulsar

        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.directory / "client.log"))
        client = pulsar.Client(url, logger=quiet, operation_timeout_seconds=60)

        def read(topic: str) -> int:
            missing = set(acknowledged[topic])
            reader: Any = client.create_reader(topic, pulsar.MessageId.earliest)
            while missing:
                try:
                    message = reader.read_next(timeout_millis=READ_PATIENCE_MS)
                except pulsar.Timeout:
                    raise DemoFailed(f"{topic}: {len(missing):,} acknowledged messages are missing") from None
                missing.discard(int(message.data().split(b" ", 1)[0]))
            reader.close()
            return len(acknowledged[topic])

        with ThreadPoolExecutor(READING_AT_ONCE) as pool:
            total = sum(pool.map(read, acknowledged))
        client.close()
        self.done(f"all {total:,} acknowledged messages were read")

    def draw(self, events: Mapping[str, Sequence[float]]) -> Path:
        """The silence of every topic, sorted, a curve for each of *events*."""
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
        for (name, silences), color in zip(events.items(), ("#c8503c", "#3b7dd8"), strict=True):
            axes.plot(range(1, len(silences) + 1), silences, ".", markersize=3, color=color, label=name)
        axes.axhline(PERIOD_S, color="black", linewidth=0.8, linestyle=":", label="between two messages of a topic")
        axes.set_xlabel("topics, sorted by their longest silence")
        axes.set_ylabel("longest time without an acknowledgement, s")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{TOPICS:,} topics on two brokers, one of which ends")
        axes.legend()
        path = self.directory / "failover.png"
        figure.savefig(path, dpi=120)
        return path


def main() -> int:
    """Run it in `out/demo-failover`; the exit code."""
    return perform("demo-failover", Demo)
