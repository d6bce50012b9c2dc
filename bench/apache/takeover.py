"""kill -9 of the broker that owns a topic, to the next acknowledged message; two brokers of a kind, 2/2/2.

The official Python client publishes a message every 5 ms and prints when each is acknowledged. Afterwards the killed
broker is started again and the next round kills the other one.
"""

import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench.apache.perf import attempt
from bench.apache.rig import ROOT, BenchError, System, module, owner_of, started
from bench.apache.table import Side, Table

# (side, session, ZooKeeper's tick): it grants sessions of 2 to 20 ticks.
VARIANTS: Final[tuple[tuple[Side, int, int], ...]] = (
    ("apache", 30_000, 2_000),
    ("apache", 2_000, 500),
    ("ours", 2_000, 500),
)
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


def run(directory: Path, rounds: int, seconds: float, table: Table) -> list[str]:
    table.row(ALIKE, "s", goal="<= 3 s")
    table.row(DEFAULT, "s")
    notes: list[str] = []
    for side, session_ms, tick_ms in VARIANTS:
        what = DEFAULT if session_ms > 2_000 else ALIKE
        place = directory / f"{side}-{session_ms}"
        system = System(side, place, tick_ms=tick_ms, session_ms=session_ms)
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
