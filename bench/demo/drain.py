"""`make demo-drain`: five bookies under load. One is killed, one is drained and removed; no message is missing.

    producers ──▶ 2 brokers ──▶ bookies 1 2 3 4 5
                                            │ └─ kill -9: its ledgers are copied to the others
                                            └─── drain: everything is moved away, then it is stopped and removed

A page shows all of it while it happens. Anything that differs ends the program with exit code 1.
"""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.demo.steps import DemoFailed, Steps, perform
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster, Member
from magnetar_core.runtime.clock import Clock

if TYPE_CHECKING:
    from autorecovery.reporting.overview import Overview

TOPICS: Final = 40
"""Each has a ledger on three of the five bookies."""

BATCH_S: Final = 0.02
PER_BATCH: Final = 40
"""Messages that are sent every `BATCH_S`: 2,000 a second, which leaves the machine time for the rest."""

PAYLOAD: Final = b"x" * 500
PATIENCE_S: Final = 240.0


class Load:
    """Sends numbered messages to all topics from a thread, and notes which were acknowledged."""

    def __init__(self, service_url: str, log: Path, clock: Clock) -> None:
        import pulsar

        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log))
        self._client = pulsar.Client(service_url, logger=quiet, operation_timeout_seconds=60)
        self._producers = [
            self._client.create_producer(
                topic, send_timeout_millis=0, block_if_queue_full=True, max_pending_messages=500
            )
            for topic in topics()
        ]
        self._clock = clock
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.acknowledged: list[set[int]] = [set() for _ in self._producers]
        self.failures: dict[str, int] = {}
        self._last_s = clock.monotonic()
        self.longest_gap_s = 0.0

    def start(self) -> None:
        self._thread.start()

    @property
    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.acknowledged))

    def gap_s(self) -> float:
        """The longest time without any acknowledgement since this was asked for before."""
        with self._lock:
            gap, self.longest_gap_s = max(self.longest_gap_s, self._clock.monotonic() - self._last_s), 0.0
        return gap

    def finish(self) -> None:
        """Stop sending, and wait until everything that was sent is acknowledged."""
        self._stopped.set()
        self._thread.join()
        for producer in self._producers:
            producer.flush()
            producer.close()
        self._client.close()
        if self.failures:
            raise DemoFailed(f"sends failed: {self.failures}")

    def _run(self) -> None:
        numbers = itertools.count()
        turns = itertools.cycle(enumerate(self._producers))
        while not self._stopped.wait(BATCH_S):
            for number, (topic, producer) in zip(itertools.islice(numbers, PER_BATCH), turns, strict=False):
                content = b"%d %s" % (number, PAYLOAD)
                producer.send_async(content, lambda result, _, t=topic, n=number: self._on_result(result, t, n))

    def _on_result(self, result: Any, topic: int, number: int) -> None:
        with self._lock:
            now_s = self._clock.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
            self._last_s = now_s
            if str(result).endswith(".Ok"):
                self.acknowledged[topic].add(number)
            else:
                self.failures[str(result)] = self.failures.get(str(result), 0) + 1


def topics() -> Iterator[str]:
    return (f"persistent://public/default/orders-{number}" for number in range(TOPICS))


class Demo(Steps):
    """One run. A subclass may draw pictures in the states that an operator meets."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, Cluster(directory / "cluster", copies=3))

    def picture(self, name: str) -> None:
        """The cluster is in the state *name* now: healthy, bookie-gone, draining or drain-failed."""

    def run(self) -> None:
        from magnetar_core.bookkeeper.metadata.stores.zookeeper_server import find_pyspark_jars

        find_pyspark_jars()  # missing Java or PySpark is said before anything is started
        self.say("1. A cluster: ZooKeeper, five bookies, two brokers, auto-recovery in each bookie")
        self.cluster.up(bookies=5, brokers=2, free_ports=True)
        self.done(f"up at {self.cluster.service_url}, logs in {self.cluster.directory}/*/log")
        self.say(f"  watch it: {self.cluster.dashboard_url}")
        admin = AdminClient(self.cluster.admin_urls)
        admin.set_retention("public/default", minutes=-1, megabytes=-1)
        load = Load(self.cluster.service_url, self.directory / "client.log", self.clock)
        load.start()
        self.wait(lambda _: load.count >= 10_000, "messages", lambda _: f"{load.count:,}")
        self.done(f"{TOPICS} topics under load, {load.count:,} messages acknowledged so far")
        self.picture("healthy")

        self.say("2. Kill a bookie (-9) and wait until every ledger has all of its copies again")
        fifth, fourth, third = (self.cluster.member(f"bookie-{number}") for number in (5, 4, 3))
        load.gap_s()
        self.cluster.kill(fifth.name)
        self.say(f"  killed {fifth.name} ({bookie_id(fifth)}); it may be away for 10 s before anything is copied")
        self.picture("bookie-gone")
        named = self.ledgers_of(fifth)
        self.wait(lambda _: not self.ledgers_of(fifth), "ledgers lack copies", lambda found: f"{found.marked_total}")
        self.done(f"{named} ledgers had a copy on it; all have all of their copies again")
        self.say(f"  no send waited longer than {load.gap_s():.1f} s")
        self.retire(fifth, "its machine is gone")

        self.say("3. Drain another one: everything is moved away while it still serves reads")
        self.retire(fourth, "old disks", picture="draining")
        self.say(f"  no send waited longer than {load.gap_s():.1f} s")

        self.say("4. A drain that cannot end says why: three bookies are left, and each ledger wants three")
        code = self.command("bookies", "drain", bookie_id(third), "--why", "one too many", "--wait")
        if code != 2:
            raise DemoFailed(f"a drain without a place to go ended with exit code {code}, not 2")
        self.picture("drain-failed")
        if self.command("bookies", "cancel", bookie_id(third)) != 0:
            raise DemoFailed("the drain could not be called off")
        self.done(f"{third.name} is active again, and nothing was lost by trying")

        self.say("5. Read everything from the beginning")
        load.finish()
        self.done(f"{load.count:,} messages acknowledged in all")
        self.check(load)
        self.summary()
        self.say("Every acknowledged message is there, and every ledger has its three copies.")
        if sys.stdin.isatty() and sys.stdout.isatty():
            input(f"The dashboard stays at {self.cluster.dashboard_url} until you press Enter. ")

    def retire(self, member: Member, why: str, picture: str = "") -> None:
        """Drain a bookie, stop it if it runs, and remove it from the cluster."""
        code = self.command("bookies", "drain", bookie_id(member), "--why", why, "--wait", picture=picture)
        if code != 0:
            raise DemoFailed(f"the drain of {member.name} ended with exit code {code}")
        if self.cluster.is_running(member.name):
            self.cluster.kill(member.name, 15)
        if self.command("bookies", "remove", bookie_id(member), "--yes") != 0:
            raise DemoFailed(f"{member.name} could not be removed, although it is drained")
        self.done(f"{member.name} was drained and removed")

    # ---------------------------------------------------------------------------------- asking

    def overview(self) -> "Overview":
        """What is known of auto-recovery."""
        import asyncio

        from autorecovery.reporting.overview import read_overview
        from magnetar.inspect.inspector import inspecting

        async def read() -> "Overview":
            async with inspecting(self.cluster.metadata_url) as inspector:
                return await read_overview(inspector.store, inspector.root)

        return asyncio.run(read())

    def ledgers_of(self, member: Member) -> int:
        """Ledgers whose record names a bookie."""
        import asyncio

        from magnetar.inspect.inspector import inspecting

        async def count() -> int:
            async with inspecting(self.cluster.metadata_url) as inspector:
                records = await inspector.records_of(await inspector.ledger_ids())
            found = (record.metadata for record in records.values())
            return sum(metadata is not None and bookie_id(member) in metadata.bookies() for metadata in found)

        return asyncio.run(count())

    def wait(self, is_done: Any, what: str, value: Any) -> None:
        """Until *is_done* of the overview; shows *value* of it meanwhile."""
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        deadline_s = self.clock.monotonic() + PATIENCE_S
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as progress:
            task = progress.add_task(what)
            while True:
                overview = self.overview()
                progress.update(task, description=f"{value(overview)} {what}")
                if is_done(overview):
                    return
                if self.clock.monotonic() > deadline_s:
                    raise DemoFailed(f"after {PATIENCE_S:.0f} s: {value(overview)} {what}; the logs say why")
                threading.Event().wait(0.2)

    def command(self, *words: str, picture: str = "") -> int:
        """Run a command of `magnetar` as a person would; its exit code."""
        self.say(f"  $ magnetar {' '.join(words)}")
        command = [sys.executable, "-m", "magnetar", *words, "--metadata", self.cluster.metadata_url]
        with subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"}) as process:
            if picture:
                self.picture(picture)
            return process.wait(PATIENCE_S)

    # -------------------------------------------------------------------------------- checking

    def check(self, load: Load) -> None:
        """Each acknowledged message is read from the beginning of its topic."""
        import pulsar

        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.directory / "client.log"))
        client = pulsar.Client(self.cluster.service_url, logger=quiet, operation_timeout_seconds=60)
        total = 0
        for topic, acknowledged in zip(topics(), load.acknowledged, strict=True):
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            missing = set(acknowledged)
            while missing:
                try:
                    message = reader.read_next(timeout_millis=20_000)
                except pulsar.Timeout:
                    raise DemoFailed(f"{topic}: {len(missing):,} acknowledged messages are missing") from None
                missing.discard(int(message.data().split(b" ", 1)[0]))
            total += len(acknowledged)
            reader.close()
        client.close()
        self.done(f"all {total:,} acknowledged messages were read")
        self.wait(lambda found: not found.marked_total, "ledgers are looked at", lambda found: f"{found.marked_total}")
        self.done("no ledger lacks a copy")


def bookie_id(member: Member) -> str:
    return f"{member.address}:{member.port}"


def main(demo_class: type[Demo] = Demo) -> int:
    """Run it in `out/demo-drain`; the exit code."""
    return perform("demo-drain", demo_class)
