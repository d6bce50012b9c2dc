"""Services of one and of two processes under the same load; on two cores two should cost nothing.

A broker service and a bookie service (1/1/1), each of one process or two. The load follows lookups to whichever process
serves a topic.
"""

import contextlib
import socket
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.groups import Rows
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster
from magnetar_core.runtime.config import PROCESSES

RunLoad = Callable[..., list[dict[str, Any]]]

ROUNDS: Final = 3
MESSAGES: Final = 200_000
MESSAGES_MANY: Final = 100_000
TOPICS: Final = 100
_PORTS: Final = {"broker": ("brokerServicePort", "webServicePort"), "bookie": ("bookiePort", "httpServerPort")}

FIRST_PORT: Final = 21_000
LAST_PORT: Final = 30_000
"""Below those that the system gives to connections."""

VARIANTS: Final = ((1, 1), (2, 1), (1, 2), (2, 2))
"""(processes of the broker, of the bookie); the first is what the others are compared with."""


def rows(run_load: RunLoad) -> Rows:
    """*run_load* runs a load process, and gives the JSON lines that it prints."""
    found: dict[tuple[int, int], dict[str, list[float]]] = {variant: {} for variant in VARIANTS}
    for number in range(ROUNDS):
        for variant in VARIANTS:
            for what, per_s in measured(variant, number, run_load).items():
                found[variant].setdefault(what, []).append(per_s)
    first, *others = VARIANTS
    table: Rows = []
    for what, alone in found[first].items():
        table.append((f"{what}, broker and bookie of one process", f"{statistics.median(alone):,.0f} msg/s"))
        for variant in others:
            rates = found[variant][what]
            ratio = statistics.median(a / b for a, b in zip(rates, alone, strict=True))
            label = f"  broker of {variant[0]}, bookie of {variant[1]}"
            table.append((label, f"{statistics.median(rates):,.0f} msg/s, {ratio:.2f} times"))
    return table


def measured(variant: tuple[int, int], number: int, run_load: RunLoad) -> dict[str, float]:
    """Messages a second by what is done."""
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        brokers, bookies = variant

        def spread() -> None:
            of_brokers, of_bookies = 3 * brokers + 1, 2 * bookies + 1
            first = free_block(of_brokers + of_bookies)
            _spread(cluster, "broker", brokers, first)
            _spread(cluster, "bookie", bookies, first + of_brokers)

        cluster = Cluster(Path(folder) / "cluster", before_up=spread)
        cluster.up(bookies=1, brokers=1, free_ports=True)
        try:
            AdminClient(cluster.admin_urls).set_retention("public/default", minutes=-1, megabytes=-1)
            port = cluster.members("broker")[0].port
            topic = f"persistent://public/default/processes-{number}"

            def load(what: str, *options: object) -> float:
                return float(run_load("bench.broker_load", what, str(port), *map(str, options))[-1]["per_s"])

            load("publish", "--topic", f"{topic}-warm", "--topics", TOPICS, "--count", MESSAGES_MANY // 5)
            many = load("publish", "--topic", f"{topic}-many", "--topics", TOPICS, "--count", MESSAGES_MANY)
            one = load("publish", "--topic", topic, "--count", MESSAGES)
            backlog = load("consume", "--topic", f"{topic}-0", "--count", MESSAGES)
            return {
                f"messages of 100 B to {TOPICS} topics, not batched": many,
                "messages of 100 B to one topic, not batched": one,
                "a backlog of these read": backlog,
            }
        finally:
            cluster.down()


def _spread(cluster: Cluster, kind: str, processes: int, first: int) -> None:
    """The service of this kind gets so many processes, whose ports begin with *first*."""
    (member,) = cluster.members(kind)
    member.port, member.web_port = first, first + processes
    changes = {**dict(zip(_PORTS[kind], (member.port, member.web_port), strict=True)), PROCESSES: processes}
    if kind == "broker":
        member.grpc_port = changes["grpcServicePort"] = member.web_port + processes + 1
    config = cluster.directory / member.name / f"{kind}.conf"
    kept = [line for line in config.read_text().splitlines() if line.partition("=")[0] not in changes]
    config.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in changes.items())]) + "\n")


def free_block(count: int) -> int:
    """The first of so many ports in a row that nobody has."""
    for first in range(FIRST_PORT, LAST_PORT - count, count):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise SystemExit(f"there are no {count} free ports in a row from {FIRST_PORT} on")
