"""`make bench`: speed and memory of this machine, in one table. Read the ratios, not the digits.

Every row names ensemble, write quorum and ack quorum (E/Qw/Qa). All data are synced to disk before they are
acknowledged. Load runs in processes of its own. `python -m bench adds` runs one group.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import bookie, testing_plugin
from bench.first_message import first_receipt
from bench.groups import Rows, run_groups
from bench.process_facts import cpu_seconds, resident_mb
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster

ROUNDS = 3


def run_lines(module: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a load process; returns the JSON lines that it prints."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.strip().splitlines()]


def run_json(module: str, *arguments: str) -> dict[str, Any]:
    """The same for one that prints a single line, or whose last one counts."""
    return run_lines(module, *arguments)[-1]


@contextlib.contextmanager
def cluster(bookies: int, brokers: int) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        made = Cluster(Path(folder) / "cluster")
        made.up(bookies=bookies, brokers=brokers, free_ports=True)
        try:
            yield made
        finally:
            made.down()


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a server and wait until it prints ` is ready`."""
    started = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    try:
        line = started.stdout.readline()
        assert " is ready" in line, line
        yield started
    finally:
        started.terminate()
        started.wait(20)


def disk() -> Rows:
    """The disk by itself: synced writes, one after the other."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        for size in (4096, 1 << 20):
            descriptor = os.open(Path(folder) / str(size), os.O_WRONLY | os.O_CREAT)
            data, count, began = bytes(size), 0, time.perf_counter()
            while time.perf_counter() - began < 1.5:
                os.write(descriptor, data)
                os.fdatasync(descriptor)
                count += 1
            rate = count / (time.perf_counter() - began)
            os.close(descriptor)
            rows.append(
                (f"disk: {size // 1024} KiB writes, each synced", f"{rate:,.0f}/s, {rate * size / 1e6:,.0f} MB/s")
            )
    return rows


def adds() -> Rows:
    """Our own ledger client against real bookie processes."""
    rows = []
    with cluster(3, 1) as made:
        for quorums in ("1/1/1", "3/3/2"):
            for size, window in ((100, 4000), (1024, 4000), (65536, 200)):
                found = [
                    run_json("bench.add_load", made.metadata_url, "--size", str(size), "--quorums", quorums,
                             "--window", str(window), "--seconds", "4")
                    for _ in range(ROUNDS)
                ]  # fmt: skip
                rates = [one["adds"] / one["seconds"] for one in found]
                p99 = statistics.median(one["p99"] for one in found)
                rows.append(
                    (
                        f"bookie adds, {size:,} B, {quorums}",
                        f"{statistics.median(rates):,.0f}/s ({min(rates):,.0f} to {max(rates):,.0f}), "
                        f"p99 {p99:.0f} ms with {window:,} under way",
                    )
                )
    return rows


def client() -> Rows:
    """The official Python client, beside a broker that does nothing."""
    rows = []
    port = 26650
    shares: dict[str, list[float]] = {"publish": [], "consume": []}
    rates: dict[str, list[float]] = {"publish": [], "consume": []}
    with cluster(3, 1) as made, process("bench.null_broker", str(port)):
        null_url = f"pulsar://127.0.0.1:{port}"
        admin = AdminClient(made.admin_urls)
        admin.set_retention("public/default", minutes=-1, megabytes=-1)
        for number in range(ROUNDS):
            topic = f"persistent://public/default/bench-{number}"
            for what in ("publish", "consume"):
                count = "100000" if what == "publish" else "80000"
                ours = run_json("bench.client_load", what, made.service_url, "--topic", topic, "--count", count)
                null = run_json("bench.client_load", what, null_url, "--topic", topic, "--count", count)
                rates[what].append(ours["rate"])
                shares[what].append(ours["rate"] / null["rate"])
        for what in ("publish", "consume"):
            rows.append(
                (
                    f"official Python client, {what} 1 KiB, 2/2/2",
                    f"{statistics.median(rates[what]):,.0f}/s = {statistics.median(shares[what]):.2f} of what it "
                    "reaches against a broker that does nothing",
                )
            )
        found = run_json("bench.client_load", "latency", made.service_url, "--topic", "persistent://public/default/l")
        rows.append(("publish at 5,000 msg/s of 1 KiB, 2/2/2", f"p50 {found['p50']:.1f} ms, p99 {found['p99']:.1f} ms"))
    return rows


def start() -> Rows:
    """Standalone: from the command to the first acknowledged message; memory; CPU while nothing happens."""
    seconds = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
            began = time.perf_counter()
            started = subprocess.Popen(
                [sys.executable, "-m", "magnetar", "standalone", "--data", folder, "--port", "26651", "--web-port",
                 "28081", "--bookie-port", "0"],
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                first_receipt("127.0.0.1", 26651)
                seconds.append(time.perf_counter() - began)
                time.sleep(2)
                resident = resident_mb(started.pid)
                before = cpu_seconds(started.pid)
                time.sleep(10)
                idle = (cpu_seconds(started.pid) - before) / 10
            finally:
                started.terminate()
                started.wait(20)
    return [
        ("standalone, start to first acknowledged message, 1/1/1", f"{statistics.median(seconds):.2f} s"),
        ("standalone, resident memory after start", f"{resident:.0f} MB"),
        ("standalone, CPU while idle", f"{idle * 100:.2f} % of a core"),
    ]


def takeover() -> Rows:
    """kill -9 of the owner to the next acknowledged message, official client, session 2 s."""
    gaps = []
    for number in range(ROUNDS):
        with cluster(3, 2) as made:
            topic = f"persistent://public/default/takeover-{number}"
            admin = AdminClient(made.admin_urls)
            admin.create_topic(topic, 0)
            load = subprocess.Popen(
                [sys.executable, "-m", "bench.client_load", "gap", made.service_url, "--topic", topic],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            try:
                assert load.stdout is not None
                for _ in range(200):
                    load.stdout.readline()
                port = int(admin.owner_url(topic).rpartition(":")[2])
                owner = next(one for one in made.members("broker") if one.port == port)
                killed = time.clock_gettime(time.CLOCK_MONOTONIC)
                made.kill(owner.name)
                after = killed
                while after < killed + 0.2:  # receipts that were already on their way
                    after = float(load.stdout.readline())
                gaps.append(after - killed)
            finally:
                load.kill()
                load.wait()
    shown = ", ".join(f"{gap:.2f}" for gap in gaps)
    return [("kill -9 of the broker to the next acknowledged message, 2/2/2, session 2 s", f"{shown} s")]


def many_takeovers() -> Rows:
    """One of two brokers ends, with a thousand topics that are published to."""
    from bench.many_takeovers import rolling, rows

    return rows() + rolling()


def processes() -> Rows:
    """Brokers and bookies of two processes beside those of one."""
    from bench.processes import rows

    return rows(run_lines)


def topic_api() -> Rows:
    """The topic API beside the official client, one client process at a time."""
    from bench.topic_api import rows

    return rows(run_json, ROUNDS)


def secured() -> Rows:
    """What TLS and tokens cost, beside a standalone without them."""
    from bench.secured import rows

    return rows(run_json, ROUNDS)


def policies() -> Rows:
    """Ten thousand topics, each with policies of its own, beside as many without."""
    from bench.policies import rows

    return rows()


def spark() -> Rows:
    from bench.spark_read import rows

    return rows()


def spark_planning() -> Rows:
    """Topics of many ledgers, planned at the driver."""
    from bench.spark_planning import rows

    return rows()


def spark_latency() -> Rows:
    """A message on its way into a stream."""
    from bench.spark_latency import rows

    return rows()


GROUPS: dict[str, Callable[[], Rows]] = {
    "disk": disk,
    "adds": adds,
    "bookie-reads": bookie.reads,
    "bookie-replay": bookie.replay,
    "client": client,
    "processes": processes,
    "topic_api": topic_api,
    "secured": secured,
    "policies": policies,
    "start": start,
    "takeover": takeover,
    "many_takeovers": many_takeovers,
    "testing": testing_plugin.rows,
    "spark": spark,
    "spark_planning": spark_planning,
    "spark_latency": spark_latency,
}


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # servers start from compiled files, as where they are installed
    run_groups(GROUPS)
