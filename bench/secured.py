"""What TLS and tokens cost a standalone: connections a second, and messages a second of the official client.

One secured standalone has plain ports and TLS ports; a plain one beside it has no authentication. As load, in a process
of its own: `python -m bench.secured ADDRESS:PORT --count 500 [--trust FILE] [--token FILE]`.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.groups import Rows
from bench.process_facts import resident_mb
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import parse_frame, simple_frame
from magnetar.processes.secure_folder import SecureFolder

RunJson = Callable[..., dict[str, Any]]

AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Standalone:
    process: subprocess.Popen[str]
    port: int
    tls_port: int
    web_port: int
    keys: Path

    @property
    def resident_mb(self) -> float:
        return resident_mb(self.process.pid)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def standalone(folder: Path, *, secured: bool = False) -> Iterator[Standalone]:
    """A standalone on *folder*, which may be one of an earlier run."""
    port, tls_port, web_port = free_ports(3)
    settings = {"brokerServicePort": port, "webServicePort": web_port, "bookiePort": 0, "grpcServicePort": ""}
    keys = folder / "keys"
    if secured:
        made = SecureFolder(keys, int(time.time() * 1000))
        made.prepare([])
        settings |= made.settings() | {"brokerServicePortTls": tls_port}
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "standalone.conf"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    process = subprocess.Popen(
        [sys.executable, "-m", "magnetar", "standalone", "--data", str(folder / "data"), "--config", str(config)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while " is ready" not in (line := process.stdout.readline()):
            assert line, "the standalone ended"
        yield Standalone(process, port, tls_port, web_port, keys)
    finally:
        process.terminate()
        process.wait(60)


# ------------------------------------------------------------------------------------------------- the load


async def connections(host: str, port: int, count: int, trust: str, token: str) -> dict[str, float]:
    """Connections a second that were let in, AT_ONCE side by side."""
    command = wire.BaseCommand(type=wire.BaseCommand.CONNECT)
    command.connect.client_version = "bench"
    command.connect.protocol_version = 20
    if token:
        command.connect.auth_method_name, command.connect.auth_data = "token", Path(token).read_bytes().strip()
    frame = simple_frame(command)
    context = ssl.create_default_context(cafile=trust) if trust else None
    left = iter(range(count))

    async def one_after_the_other() -> None:
        for _ in left:
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.write(frame)
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = parse_frame(memoryview(await reader.readexactly(size)))[0]
            assert answer.type == wire.BaseCommand.CONNECTED, answer
            writer.transport.abort()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_the_other())
    return {"rate": count / (time.perf_counter() - began)}


# ------------------------------------------------------------------------------------------------- the rows


def rows(run_json: RunJson, rounds: int) -> Rows:
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder,
        standalone(Path(folder) / "plain") as plain,
        standalone(Path(folder) / "secured", secured=True) as secured,
    ):
        trust, token = str(secured.keys / "ca.crt"), str(secured.keys / "admin.token")
        with_token, over_tls = ["--token", token], ["--trust", trust]
        doors: dict[str, tuple[int, list[str]]] = {
            "plain, no authentication": (plain.port, []),
            "plain, token": (secured.port, with_token),
            "TLS, token": (secured.tls_port, [*over_tls, *with_token]),
        }
        let_in: dict[str, list[float]] = {name: [] for name in doors}
        sent: dict[str, list[float]] = {name: [] for name in doors}
        received: dict[str, list[float]] = {name: [] for name in doors}
        for number in range(rounds):
            topic = f"persistent://public/default/secured-{number}"
            for name, (port, options) in doors.items():
                let_in[name].append(run_json("bench.secured", f"localhost:{port}", "--count", "2000", *options)["rate"])
            for name, (port, options) in doors.items():
                scheme = "pulsar+ssl" if port == secured.tls_port else "pulsar"
                load = [f"{scheme}://localhost:{port}", "--topic", f"{topic}-{port}", *options]
                sent[name].append(run_json("bench.client_load", "publish", *load, "--count", "100000")["rate"])
                received[name].append(run_json("bench.client_load", "consume", *load, "--count", "80000")["rate"])
    return [
        *_told("connections a second, binary port", let_in),
        *_told("official Python client, publish 1 KiB, 1/1/1", sent),
        *_told("official Python client, consume 1 KiB, 1/1/1", received),
    ]


def _told(what: str, found: dict[str, list[float]]) -> Rows:
    (_, base), *_ = found.items()
    return [
        (
            f"{what}: {name}",
            f"{statistics.median(rates):,.0f}/s = "
            f"{statistics.median(a / b for a, b in zip(rates, base, strict=True)):.2f} of the first",
        )
        for name, rates in found.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--trust", default="")
    parser.add_argument("--token", default="")
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    print(json.dumps(asyncio.run(connections(host, int(port), options.count, options.trust, options.token))))
