"""What grows with what: our bookie and our broker from one of a thing to very many; Apache's servers do not run.

    ledgers    adds to one bookie, spread over 1 to 10,000 open ledgers
    entries    adds to one bookie that holds more and more of them, to 100 million
    topics     messages to 1 to 10,000 topics, a producer each
    consumers  a backlog read by 1 to 1,000 consumers of one Shared subscription
    backlog    a new subscription's first messages, out of 100,000 to 100 million

The load speaks the wire protocols (`bench.bookie_load`, `bench.broker_load`) and runs on the same cores. A flat curve
means that one more costs what the first did. Entries are of 100 B, and one copy is stored: it is not the disk that is
measured here.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.apache.parts import MOST_ENTRIES, PARTS
from bench.apache.rig import ROOT, BenchError, module, started
from bench.apache.table import Table
from bench.bookie_rig import BookieProcess, load, loading, make_ledgers
from bench.process_facts import cpu_seconds, resident_mb
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster, Member

STEPS: Final = (1, 10, 100, 1_000, 10_000)
CONSUMERS: Final = (1, 10, 100, 1_000)
BACKLOGS: Final = (100_000, 1_000_000, 10_000_000, 100_000_000)

TOPIC_KB_MAX: Final = 15

ADDS: Final = 500_000
MESSAGES: Final = 200_000
POINTS: Final = 20
BATCH: Final = 1_000
"""Messages of an entry of the backlog; they are of 10 B."""
PERMITS: Final = 100
"""Entries."""
READ: Final = 1_000_000
"""Messages of it that each new subscription reads, or all if there are fewer."""


def ledgers(directory: Path, rounds: int, table: Table) -> None:
    for _ in range(rounds):
        for count in STEPS:
            with BookieProcess(directory / "ledgers") as bookie:
                make_ledgers(bookie.folder, range(count))
                bookie.start()
                load(bookie, "adds", ledgers=count, entries=ADDS // 5, size=100)  # warm
                before = bookie.cpu_s
                first = ADDS // 5 // count
                (ran,) = load(bookie, "adds", ledgers=count, entries=ADDS, size=100, first_entry=first)
                used_us = (bookie.cpu_s - before) / ADDS * 1e6
                bookie.stop()
            _clear(directory / "ledgers")
            what = f"adds to one bookie, open ledgers: {count:,}"
            table.add(what, "adds/s", "ours", ran["per_s"], curve="adds, by open ledgers of the bookie", at=count)
            table.add(what, "µs of a core each", "ours", used_us, curve="adds, by open ledgers of the bookie", at=count)


def entries(directory: Path, total: int, table: Table) -> None:
    """Once: it takes long, and shows by itself how the points of a curve differ."""
    curve, count = "adds, by entries in the bookie", 10_000
    step = total // POINTS
    with BookieProcess(directory / "entries") as bookie:
        make_ledgers(bookie.folder, range(count))
        bookie.start()
        with loading(bookie, "adds", ledgers=count, entries=total, size=100, step=step) as adding:
            assert adding.stdout is not None
            before = bookie.cpu_s
            for line in map(json.loads, adding.stdout):
                if "step" not in line:
                    continue
                used_us, before = (bookie.cpu_s - before) / step * 1e6, bookie.cpu_s
                what = f"adds to one bookie that holds {line['step']:,} entries of {count:,} ledgers"
                table.add(what, "adds/s", "ours", line["per_s"], curve=curve, at=line["step"])
                table.add(what, "µs of a core each", "ours", used_us, curve=curve, at=line["step"])
                table.add(what, "MB resident", "ours", bookie.resident_mb, curve=curve, at=line["step"])
        bookie.stop()
        what = f"a bookie that holds {total:,} entries starts"
        table.add(what, "s", "ours", bookie.start())
        table.add(what, "MB resident", "ours", bookie.resident_mb)
        (ran,) = load(bookie, "reads", first_ledger=count - 1, entries=total // count)
        table.add(f"it reads a ledger of {total // count:,} entries", "entries/s", "ours", ran["per_s"])
        bookie.stop()
    _clear(directory / "entries")


@contextmanager
def _broker(directory: Path) -> Iterator[tuple[Member, AdminClient]]:
    """A broker on one bookie; everything is kept."""
    cluster = Cluster(directory / "cluster")
    cluster.up(bookies=1, brokers=1, free_ports=True)
    try:
        admin = AdminClient(cluster.admin_urls)
        admin.set_retention("public/default", minutes=-1, megabytes=-1)
        yield cluster.members("broker")[0], admin
    finally:
        cluster.down()
        _clear(directory / "cluster")


def topics(directory: Path, rounds: int, table: Table) -> None:
    curve = "messages to a broker, by topics"
    for _ in range(rounds):
        for count in STEPS:
            with _broker(directory) as (broker, _):
                name = "persistent://public/default/growth"
                _run("publish", broker, "--topic", f"{name}-warm", "--count", MESSAGES // 10)
                empty_mb = resident_mb(broker.pid)
                ran, used_us, opened_mb = _run(
                    "publish", broker, "--topic", name, "--topics", count, "--count", MESSAGES
                )
                what = f"messages, not batched, topics: {count:,}"
                table.add(what, "msg/s", "ours", ran["per_s"], curve=curve, at=count)
                table.add(what, "µs of a core each", "ours", used_us, curve=curve, at=count)
                if count >= 1_000:
                    grown_kb = (opened_mb - empty_mb) * 1024 / count
                    row = f"{count:,} topics with a producer each, before their messages: memory of one"
                    table.add(row, "KB", "ours", grown_kb, goal=f"<= {TOPIC_KB_MAX} KB")


def consumers(directory: Path, rounds: int, table: Table) -> None:
    curve = "a backlog read by consumers of one Shared subscription"
    with _broker(directory) as (broker, _):
        topic = "persistent://public/default/growth"
        _run("publish", broker, "--topic", topic, "--count", MESSAGES)
        for turn in range(rounds + 1):  # the first warms up
            for count in CONSUMERS:
                ran, used_us, _ = _run(
                    "consume", broker, "--topic", f"{topic}-0", "--consumers", count, "--count", MESSAGES,
                    "--subscription", f"of-{count}-{turn}",
                )  # fmt: skip
                if turn:
                    what = f"a backlog of single messages read, consumers of the subscription: {count:,}"
                    table.add(what, "msg/s", "ours", ran["per_s"], curve=curve, at=count)
                    table.add(what, "µs of a core each", "ours", used_us, curve=curve, at=count)


def backlog(directory: Path, table: Table) -> None:
    curve = "the first messages of a new subscription, by the topic's backlog"
    topic, there = "persistent://public/default/growth", 0
    with _broker(directory) as (broker, admin):
        for total in BACKLOGS:
            _run(
                "publish", broker, "--topic", topic, "--count", total - there, "--batch", BATCH, "--size", 10,
                "--window", 200,
            )  # fmt: skip
            there = total
            count = min(READ, total)
            ran, used_us, _ = _run(
                "consume", broker, "--topic", f"{topic}-0", "--count", count, "--batch", BATCH, "--permits",
                PERMITS * BATCH, "--subscription", f"of-{total}",
            )  # fmt: skip
            behind = admin.stats(f"{topic}-0")["subscriptions"][f"of-{total}"]["msgBacklog"]
            left = (total - count) // BATCH  # entries: what brokers know without reading them
            ahead = left - behind  # what was on its way to the consumer when it had enough
            assert 0 <= ahead <= PERMITS, f"{behind:,} entries are left, expected {left:,} or a few less"
            what = f"{count:,} messages of a backlog of {total:,}"
            table.add(what, "msg/s", "ours", ran["per_s"], curve=curve, at=total)
            table.add(what, "s to open", "ours", ran["opened_s"], curve=curve, at=total)
            table.add(what, "MB resident", "ours", resident_mb(broker.pid), curve=curve, at=total)
            if used_us:  # the system counts in hundredths of a second
                table.add(what, "ns of a core each", "ours", used_us * 1000, curve=curve, at=total)


def _run(what: str, broker: Member, *options: object) -> tuple[dict[str, Any], float, float]:
    """What the load tells, the broker's processor time for each message in µs (opening does not count), and its MiB
    when all producers or consumers were there.

    Raises BenchError.
    """
    count = int(str(options[options.index("--count") + 1]))
    command = module("bench.broker_load", what, str(broker.port), *map(str, options))
    with started(command, ROOT) as load_process:
        assert load_process.stdout is not None
        opened = load_process.stdout.readline()
        before, opened_mb = cpu_seconds(broker.pid), resident_mb(broker.pid)
        ran = load_process.stdout.readline()
        used_us = (cpu_seconds(broker.pid) - before) / count * 1e6
        if load_process.wait(60) or not ran:
            raise BenchError(f"bench.broker_load {what} failed; its errors stand above")
    return json.loads(opened) | json.loads(ran), used_us, opened_mb


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def run(
    directory: Path, rounds: int, seconds: float, table: Table, *, parts: Sequence[str] = (), most: int = MOST_ENTRIES
) -> list[str]:
    """*seconds* has no meaning here: each run has a number of entries or messages."""
    del seconds
    directory.mkdir(parents=True)
    wanted = parts or PARTS["growth"]
    if "ledgers" in wanted:
        ledgers(directory, rounds, table)
    if "entries" in wanted:
        entries(directory, most, table)
    if "topics" in wanted:
        topics(directory, rounds, table)
    if "consumers" in wanted:
        consumers(directory, rounds, table)
    if "backlog" in wanted:
        backlog(directory, table)
    return [
        "one bookie process, or one broker on one bookie (1/1/1); load on the same two cores",
        f"adds and messages of 100 B; those of the backlog 10 B, {BATCH:,} in an entry",
    ]
