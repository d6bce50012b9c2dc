"""Rounds with Spark: `python -m tests.soak.spark --rounds 50 --seed 7`.

    round ──▶ messages ──▶ one of driver, executor, broker, bookie is killed ──▶ messages ──▶ it is started again
    end   ──▶ what is left is read; files and the other topic hold each confirmed message once

The driver runs under `spark-submit` on Spark's own cluster manager with two workers, and goes on from its checkpoint.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from magnetar.inspect.broker_admin import AdminClient, AdminError
from magnetar.processes.cluster import Cluster
from tests.support.processes import NAMESPACE, client_of, cluster_of, prepare, received
from tests.support.spark_cluster import SparkCluster, bare_python, packed
from tests.support.zookeeper import why_not

VICTIMS: Final = ("driver", "executor", "broker", "bookie")
TOPIC: Final = "rounds-in"
OTHER: Final = "rounds-out"
PARTITIONS: Final = 2
SEND: Final = 40
"""Messages before a kill, and after it."""

JOB: Final = Path(__file__).parent / "spark_job.py"
PATIENCE_S: Final = 180.0

Remark = Callable[[str], None]


class NotOnce(Exception):
    """Messages are missing, or there twice."""


def victims(seed: str, rounds: int) -> list[str]:
    """Whom each round kills: each kind equally often, in a drawn order."""
    draw = random.Random(seed)
    found: list[str] = []
    while len(found) < rounds:
        found += draw.sample(VICTIMS, len(VICTIMS))
    return found[:rounds]


class _Driver:
    """A job under `spark-submit`."""

    def __init__(self, spark: SparkCluster, folder: Path, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)
        archive = packed(folder)
        self._environment = {
            **os.environ, "PYTHONPATH": str(archive), "PYSPARK_PYTHON": str(bare_python(folder)),
        }  # fmt: skip
        self._folder = folder
        self._spark, self._archive = spark, archive
        self._process: subprocess.Popen[str] | None = None

    def _command(self, mode: str) -> list[str]:
        return self._spark.submit(JOB, mode, *self._arguments, options=["--py-files", str(self._archive)])

    def start(self) -> None:
        """Raises AssertionError if it does not come up."""
        with (self._folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("run"), stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                cwd=self._folder, env=self._environment,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("started"), f"the driver ended: {line}{self.log()}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def finish(self) -> None:
        """Read what is left. Raises AssertionError."""
        with (self._folder / "driver.log").open("ab") as log:
            code = subprocess.run(
                self._command("finish"), stdout=log, stderr=log, cwd=self._folder, env=self._environment, check=False
            ).returncode
        assert code == 0, self.log()

    def log(self) -> str:
        return (self._folder / "driver.log").read_text(errors="replace")[-3000:]


class _Faults:
    def __init__(self, cluster: Cluster, spark: SparkCluster, driver: _Driver, draw: random.Random) -> None:
        self._cluster = cluster
        self._spark = spark
        self._driver = driver
        self._draw = draw

    @contextlib.contextmanager
    def killed(self, victim: str) -> Iterator[str]:
        """Kill one, and start it again at the end; gives its name."""
        if victim == "driver":
            self._driver.kill()
            yield victim
            self._driver.start()
        elif victim == "executor":
            found = self._spark.executors()
            pid = self._draw.choice(found) if found else 0
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            yield f"executor {pid}"  # its worker starts another
        else:
            name = self._draw.choice([one.name for one in self._cluster.members(victim)])
            self._cluster.kill(name)
            yield name
            self._cluster.start(name)


def rounds(
    directory: Path, cluster: Cluster, spark: SparkCluster, *, namespace: str, count: int, seed: str, remark: Remark
) -> None:
    """Raises NotOnce, AssertionError; the folder is the caller's."""
    draw = random.Random(f"{seed}/faults")
    admin = AdminClient(cluster.admin_urls)
    prepare(admin, namespace)
    topic, other = (f"persistent://{namespace}/{name}" for name in (TOPIC, OTHER))
    for one in (topic, other):
        admin.create_topic(one, PARTITIONS)
    with client_of(cluster.service_url) as client:
        producer = client.create_producer(topic, producer_name="rounds", send_timeout_millis=0)
        driver = _Driver(spark, directory, [cluster.metadata_url, cluster.service_url, topic, other, str(directory)])
        faults = _Faults(cluster, spark, driver, draw)
        sent = 0

        def send() -> None:
            nonlocal sent
            for _ in range(SEND):
                producer.send(b"%d" % sent)
                sent += 1

        try:
            driver.start()
            for number, victim in enumerate(victims(seed, count), 1):
                send()
                time.sleep(draw.uniform(0.0, 2.0))
                with faults.killed(victim) as name:
                    send()
                remark(f"round {number} of {count}: {name} was killed; {sent} messages")
                unloaded = admin.path_of(f"{topic}-partition-{draw.randrange(PARTITIONS)}")  # a new ledger
                with contextlib.suppress(AdminError):
                    admin.call("PUT", f"/admin/v2/{unloaded}/unload")
                if not driver.is_running:  # a query ends when its source or sink is away for too long
                    remark("the driver ended and is started again")
                    driver.start()
        finally:
            driver.kill()
        driver.finish()
        compare("files", Counter(int(line) for line in (directory / "values").read_text().split()), sent)
        compare(OTHER, Counter(int(one.data()) for one in received(client, other)), sent)
        remark(f"{sent} messages, each once in the files and in the other topic")


def compare(where: str, found: Counter[int], sent: int) -> None:
    """Raises NotOnce where *found* is not each number below *sent*, once."""
    missing = sorted(set(range(sent)) - set(found))
    twice = sorted(value for value, times in found.items() if times > 1)
    other = sorted(set(found) - set(range(sent)))
    if missing or twice or other:
        raise NotOnce(
            f"{where}: of {sent} messages {len(missing)} are missing ({missing[:20]}), {len(twice)} are there twice "
            f"({twice[:20]}), {len(other)} were never sent ({other[:20]})"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.spark", description="Spark under kills.")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", default="", help="repeats what a run with this seed did; default: a new one")
    parser.add_argument("--directory", help="where logs and data go (a temporary folder)")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    seed = options.seed or str(int(time.time()))
    directory = Path(options.directory or tempfile.mkdtemp(prefix="magnetar-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with cluster_of(directory / "cluster", bookies=4, brokers=2) as cluster, SparkCluster(directory) as spark:
            rounds(
                directory, cluster, spark, namespace=NAMESPACE, count=options.rounds, seed=seed,
                remark=lambda text: print(text, flush=True),
            )  # fmt: skip
    except (NotOnce, AssertionError) as error:
        print(f"FOUND with seed {seed}:\n{error}\nlogs and data are in {directory}", flush=True)
        return 1
    if not options.directory:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
