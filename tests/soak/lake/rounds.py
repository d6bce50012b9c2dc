"""Rounds with tables: a topic into Delta Lake and into Iceberg, by the programs of docs/lakehouse.md.

round ──▶ messages all the time ──▶ at a drawn moment Spark's process is killed ──▶ it is started again
end   ──▶ what is left is taken; each table holds each confirmed message once
"""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pulsar.schema import AvroSchema, Integer, Record, String

from tests.soak.spark import Remark, compare
from tests.support.lakehouse import PROGRAMS, environment, program
from tests.support.processes import Standalone, client_of

MOMENTS: Final = ("start", "any", "delta", "iceberg")
"""When a round kills: while the process starts, while both streams run, when a table has got a commit."""

PATIENCE_S: Final = 300.0
BUSY: Final = "Python worker failed to connect back"
"""How a query ends whose planner's process did not start within Spark's ten seconds, which can't be set: the machine is
busy. The process is started again, as people are told to (docs/spark.md)."""
BUSY_MAX: Final = 5
MONDAY_MS: Final = 1_764_547_200_000
THREE_DAYS_MS: Final = 3 * 24 * 3600 * 1000

# The batch that was committed last: of a table, and by Spark's note in the checkpoint.
_NOTHING: Final = -1


class Order(Record):  # type: ignore[misc]
    """As on the page; the euros are the number of the message."""

    item = String()
    euros = Integer()


def moments(seed: str, rounds: int) -> list[str]:
    """When each round kills: each moment equally often, in a drawn order."""
    draw = random.Random(seed)
    drawn: list[str] = []
    while len(drawn) < rounds:
        drawn += draw.sample(MOMENTS, len(MOMENTS))
    return drawn[:rounds]


class _Lake:
    """The folder in which the programs of the page run, and what they have made there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in PROGRAMS:
            (folder / name).write_text(program(name))
        settings = folder / "conf"
        settings.mkdir()
        scratch = folder / "scratch"
        scratch.mkdir()
        (settings / "spark-defaults.conf").write_text(
            f"spark.ui.enabled false\nspark.ui.showConsoleProgress false\nspark.driver.memory 1g\n"
            f"spark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\nspark.local.dir {scratch}\n"
            f"spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={scratch}\n"
        )
        self._environment = {**os.environ, **environment(), "SPARK_CONF_DIR": str(settings)}
        root = str(Path(__file__).parents[3])
        self._environment["PYTHONPATH"] = os.pathsep.join((self._environment["PYTHONPATH"], root, str(folder)))
        self._process: subprocess.Popen[str] | None = None
        self._log_begins = 0
        self.busy = 0
        """How many processes ended since the machine was busy."""

    def _open(self, mode: str) -> subprocess.Popen[str]:
        with (self.folder / "spark.log").open("ab") as log:
            self._log_begins = log.tell()
            return subprocess.Popen(
                [sys.executable, "-m", "tests.soak.lake.job", mode], stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True, cwd=self.folder, env=self._environment,
            )  # fmt: skip

    def start(self) -> None:
        self._process = self._open("run")

    def wait(self) -> None:
        """Returns when both streams are started. Raises AssertionError."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("started"), f"Spark's process ended: {line}{self.log()}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start_again_if_busy(self) -> None:
        """Raises AssertionError: Spark's process ended for another reason, or too often for this."""
        if self.is_running:
            return
        self.kill()
        self._count_busy()
        self.start()

    def _count_busy(self) -> None:
        self.busy += 1
        assert BUSY in self.log(), f"Spark's process ended: {self.log()}"
        assert self.busy <= BUSY_MAX, "the machine is too busy for Spark"

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def finish(self) -> dict[str, Counter[int]]:
        """Take what is left; the numbers in each table. Raises AssertionError."""
        while self._finish() != 0:
            self._count_busy()
        return {
            name: Counter(int(line) for line in (self.folder / name).read_text().split())
            for name in ("delta", "iceberg")
        }

    def _finish(self) -> int:
        process = self._open("finish")
        try:
            process.communicate(timeout=2 * PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode

    def log(self) -> str:
        """The end of what Spark's last process said, without where in Java: a stack there has a hundred lines."""
        lines = (self.folder / "spark.log").read_bytes()[self._log_begins :].decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-5000:]

    def commits(self, table: str) -> int:
        """How many files the log of a table has."""
        place = "lake/orders/_delta_log" if table == "delta" else "lake/iceberg/shop/orders/metadata"
        return sum(1 for _ in (self.folder / place).glob("*.json"))

    def unnoted(self) -> list[str]:
        """The tables with a batch that Spark has not noted as done."""
        batches = {"delta": self._batch_of_delta(), "iceberg": self._batch_of_iceberg()}
        return [table for table, batch in batches.items() if batch > self._noted(table)]

    def _noted(self, table: str) -> int:
        notes = (self.folder / f"lake/checkpoints/orders-{table}/commits").glob("[0-9]*")
        return max((int(note.name) for note in notes), default=_NOTHING)

    def _batch_of_delta(self) -> int:
        log = sorted((self.folder / "lake/orders/_delta_log").glob("[0-9]*.json"))
        actions = (json.loads(line) for line in (log[-1].read_text().splitlines() if log else ()))
        return max((action["txn"]["version"] for action in actions if "txn" in action), default=_NOTHING)

    def _batch_of_iceberg(self) -> int:
        catalog = self.folder / "lake/catalog.db"
        if not catalog.exists():
            return _NOTHING
        with contextlib.closing(sqlite3.connect(catalog)) as tables:
            try:
                row = tables.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
            except sqlite3.OperationalError:  # killed before the catalog had its tables
                return _NOTHING
        if row is None:
            return _NOTHING
        metadata = json.loads(Path(row[0].removeprefix("file://")).read_text())
        batches = (batch for name, batch in metadata["properties"].items() if name.startswith("last-batch-of-"))
        return max(map(int, batches), default=_NOTHING)


def rounds(directory: Path, *, count: int, seed: str, remark: Remark) -> None:
    """Raises NotOnce, AssertionError; the folder is the caller's."""
    draw = random.Random(f"{seed}/delays")
    unnoted: Counter[str] = Counter()
    sent = 0
    with Standalone(directory / "data") as standalone, client_of(standalone.service_url) as client:
        producer = client.create_producer(
            "orders", schema=AvroSchema(Order), send_timeout_millis=0, block_if_queue_full=True
        )
        lake = _Lake(directory)

        def send_until(done: Callable[[], bool]) -> None:
            nonlocal sent
            end = time.monotonic() + PATIENCE_S
            while not done():
                lake.start_again_if_busy()
                assert time.monotonic() < end, f"nothing new came into the table: {lake.log()}"
                order = Order(item="item", euros=sent)
                producer.send_async(order, None, event_timestamp=MONDAY_MS + sent * 7_919 * 1_000 % THREE_DAYS_MS)
                sent += 1
                time.sleep(0.002)

        try:
            for number, moment in enumerate(moments(seed, count), 1):
                lake.start()
                if moment == "start":
                    send_until(_after(draw.uniform(0.0, 12.0)))
                else:
                    lake.wait()
                if moment == "any":
                    send_until(_after(draw.uniform(0.0, 6.0)))
                elif moment in ("delta", "iceberg"):
                    send_until(_after(draw.uniform(0.0, 3.0)))
                    former = lake.commits(moment)
                    send_until(lambda moment=moment, former=former: lake.commits(moment) > former)  # type: ignore[misc]
                    time.sleep(draw.uniform(0.0, 0.05))
                lake.start_again_if_busy()
                lake.kill()
                ahead = lake.unnoted()
                unnoted.update(ahead)
                remark(
                    f"round {number} of {count}: killed at {moment!r}; {sent} messages"
                    + (f"; not noted: {' and '.join(ahead)}" if ahead else "")
                )
        finally:
            lake.kill()
        producer.flush()
        for table, numbers in lake.finish().items():
            compare(table, numbers, sent)
        remark(
            f"{sent} messages, each once in both tables; {lake.busy} starts on too busy a machine; "
            "a batch that Spark had not noted was in the table of Delta Lake "
            f"after {unnoted['delta']} kills, in that of Iceberg after {unnoted['iceberg']}"
        )


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end
