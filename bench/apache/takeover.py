"""kill -9 of the broker that owns a topic, to the next acknowledged message; two brokers of a kind, 2/2/2.

The official Python client publishes a message every 5 ms and prints when each is acknowledged. Afterwards the killed
broker is started again and the next round kills the other one.

Part `many`: a thousand topics with a producer each, a message every half a second; one broker is killed, or stopped
politely, and the clients know the other one's address, as behind a load balancer.
"""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from bench.apache.perf import attempt
from bench.apache.rig import ROOT, BenchError, System, module, owner_of, started
from bench.apache.table import SIDES, Side, Table
from bench.many_takeovers import SHARES, SURVIVOR, Cpu, kill, stop
from tests.support.mixed_cluster import Server

# (side, session in ms)
VARIANTS: Final[tuple[tuple[Side, int], ...]] = (("apache", 30_000), ("apache", 2_000), ("ours", 2_000))
ALIKE: Final = "kill -9 to the next acknowledged message, session 2 s"
DEFAULT: Final = "kill -9 to the next acknowledged message, Apache at its default session of 30 s, ours at 2 s"
GAP_MAX_S: Final = 150.0


class Watch:
    """Reads the times of acknowledgements; they are of the clock that all processes share."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self.times: list[float] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._lines:
            self.times.append(float(line))

    def after(self, moment: float, timeout_s: float) -> float:
        """The first acknowledgement later than *moment*. Raises BenchError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.times and self.times[-1] > moment:
                return next(each for each in self.times if each > moment)
            time.sleep(0.02)
        raise BenchError(f"no message is acknowledged {timeout_s:.0f} s after the kill")


def gap(system: System, number: int) -> float:
    """Kills the owner and starts it again. Seconds without an acknowledgement."""
    topic = f"persistent://public/default/takeover-{number}"
    url = "pulsar://" + ",".join(f"127.0.0.1:{broker.port}" for broker in system.brokers)
    with started(module("bench.client_load", "gap", url, "--topic", topic), ROOT) as load:
        assert load.stdout is not None
        watch = Watch(load.stdout)
        watch.after(0.0, 60.0)
        time.sleep(1.0)
        owner = owner_of(system.brokers, topic)
        killed = time.monotonic()
        owner.kill()
        found = watch.after(killed + 0.2, GAP_MAX_S) - killed  # receipts that were already on their way do not count
    owner.start()
    return found


TOPICS: Final = 1_000
OWNERS_SEEN: Final = 100
KILLED: Final = f"{TOPICS:,} topics on two brokers, kill -9 of one to the next acknowledgement"
STOPPED: Final = f"{TOPICS:,} topics on two brokers, one stopped politely, longest wait for a receipt"
CREATED: Final = f"{TOPICS:,} topics made by their producers"
CPU: Final = f"{TOPICS:,} topics on two brokers, kill -9 of one, processor time for each topic that was away"
"""From the kill until the last one was back; the load of that time included, and once more without it."""

GOALS: Final = {
    (KILLED, "p50"): "<= 3 s",
    (KILLED, "p99"): "<= 4 s",
    (KILLED, "last"): "<= 5 s",
    (STOPPED, "last"): "<= 0.5 s",
}


def run(directory: Path, rounds: int, seconds: float, table: Table, parts: Sequence[str] = ()) -> list[str]:
    notes: list[str] = []
    if not parts or "one" in parts:
        notes += one_topic(directory, rounds, table)
    if not parts or "many" in parts:
        notes += many_topics(directory, rounds, table)
    return notes


def many_topics(directory: Path, rounds: int, table: Table) -> list[str]:
    for what in (KILLED, STOPPED):
        for share, _ in SHARES:
            table.row(f"{what}, {share}", "s", goal=GOALS.get((what, share), ""))
    for kind in (SURVIVOR, "bookie", "zookeeper"):
        table.row(f"{CPU}: {kind}", "ms")
    table.row(f"{CPU}: {SURVIVOR}, without its load", "ms", goal="<= 2.5 ms")
    table.row(CREATED, "s", goal="<= 5 s")
    for side in SIDES:
        place = directory / f"{side}-many"
        system = System(side, place, session_ms=2_000)
        try:
            system.start(bookies=3, brokers=2)
            for number in range(rounds):
                for what in (KILLED, STOPPED):

                    def work(found: Table, system: System = system, number: int = number, what: str = what) -> str:
                        return ends(system, number, what, found)

                    attempt(table, side, f"{what}, p50", "s", work)
        except Exception as error:
            table.fail(f"{KILLED}, p50", "s", side, str(error))
        finally:
            system.close()
            shutil.rmtree(place, ignore_errors=True)
    return [f"{TOPICS:,} topics: sessions of 2 s on both sides"]


def ends(system: System, number: int, what: str, table: Table) -> str:
    """The broker with most topics ends, the other stays; then the first is started again."""
    is_killed = what == KILLED
    name = f"killed-{number}" if is_killed else f"stopped-{number}"
    topics = [f"persistent://public/default/{name}-{number}" for number in range(OWNERS_SEEN)]
    owners = Counter(owner_of(system.brokers, topic).name for topic in topics)  # Apache's may leave all to one of them
    going, staying = sorted(system.brokers, key=lambda broker: owners[broker.name], reverse=True)
    try:
        if is_killed:
            measured = kill(staying.service_url, TOPICS, ROOT, going.kill, name, cpu_of(system, staying))
        else:
            measured = stop(staying.service_url, TOPICS, ROOT, going.stop, name)
    finally:
        going.start()
    for share, part in SHARES:
        table.add(f"{what}, {share}", "s", system.side, measured.gaps.at(part))
    table.add(CREATED, "s", system.side, measured.created_s)
    for cost in measured.costs:
        table.add(f"{CPU}: {cost.kind}", "ms", system.side, cost.per_topic_ms)
        if cost.kind == SURVIVOR:
            table.add(
                f"{CPU}: {SURVIVOR}, without its load", "ms", system.side, max(cost.per_topic_ms - cost.load_ms, 0.0)
            )
    return str(measured.gaps)


def cpu_of(system: System, staying: Server) -> Cpu:
    return {
        SURVIVOR: lambda: staying.cpu_s,
        "bookie": lambda: sum(one.cpu_s for one in system.bookies),
        "zookeeper": lambda: system.cluster.zookeeper.cpu_s,
    }


def one_topic(directory: Path, rounds: int, table: Table) -> list[str]:
    table.row(ALIKE, "s", goal="<= 3 s")
    table.row(DEFAULT, "s")
    notes: list[str] = []
    for side, session_ms in VARIANTS:
        what = DEFAULT if session_ms > 2_000 else ALIKE
        place = directory / f"{side}-{session_ms}"
        system = System(side, place, session_ms=session_ms)
        try:
            system.start(bookies=3, brokers=2)
            if side == "apache":
                notes = [f"Apache's servers: {system.cluster.server_memory}; bookies' sessions 10 s or more"]
            for number in range(rounds):

                def work(found: Table, system: System = system, number: int = number, what: str = what) -> str:
                    seconds_gone = gap(system, number)
                    found.add(what, "s", system.side, seconds_gone)
                    if system.side == "ours":
                        found.add(DEFAULT, "s", "ours", seconds_gone)
                    return f"{seconds_gone:.2f} s"

                attempt(table, side, what, "s", work)
        except Exception as error:
            table.fail(what, "s", side, str(error))
        finally:
            system.close()
            shutil.rmtree(place, ignore_errors=True)
    return notes
