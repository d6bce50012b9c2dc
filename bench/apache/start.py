"""Both standalones: the command to the first acknowledged message, memory, CPU while nothing happens.

The first message goes over a plain socket as early as the broker takes it, so no client's start is in the time.
Apache's standalone does not sync what it stores (`journalSyncData=false` in its standalone.conf); ours does.
"""

import shutil
import time
from pathlib import Path
from typing import Final

from bench.apache.perf import attempt
from bench.apache.rig import MIB, SHIPPED_MEMORY, SMALL_MEMORY, BenchError, memory_mb, module
from bench.apache.table import SIDES, Side, Table
from bench.first_message import first_receipt
from deploy.fetch_apache import DISTRIBUTION
from magnetar.processes.cluster import reserved_ports
from tests.support.mixed_cluster import Server, configuration

READY_S: Final = 180.0
SETTLE_S: Final = 5.0
"""Between the first message and the look at memory and CPU: what a start leaves to do is done by then."""

# 2 GB of heap, which its collector touches at once, and what it uses outside it.
SHIPPED_NEEDS_MB: Final = 5_000

FIRST: Final = "standalone, start to first acknowledged message"
RESIDENT: Final = "standalone, resident memory (VmRSS)"
SHARE: Final = "standalone, resident memory, each page once (Pss)"
IDLE: Final = "standalone, CPU while idle"


def apache_standalone(place: Path, port: int, web_port: int, bookie_port: int, memory: str) -> Server:
    settings = {"brokerServicePort": port, "webServicePort": web_port, "advertisedAddress": "127.0.0.1"}
    file = place / "standalone.conf"
    file.write_text(configuration(DISTRIBUTION / "conf" / "standalone.conf", settings))
    command = [
        str(DISTRIBUTION / "bin" / "pulsar"), "standalone", "-nfw", "-nss", "--config", str(file),
        "--metadata-dir", str(place / "metadata"), "--bookkeeper-dir", str(place / "bookkeeper"),
        "--bookkeeper-port", str(bookie_port),
    ]  # fmt: skip
    environment = {"PULSAR_MEM": memory, "PULSAR_LOG_DIR": str(place), "PULSAR_STANDALONE_CONF": str(file)}
    return Server("standalone", "standalone", "apache", place, command, _always, port=port, environment=environment)


def our_standalone(place: Path, port: int, web_port: int, bookie_port: int) -> Server:
    command = module(
        "magnetar", "standalone", "--data", str(place / "data"), "--port", str(port), "--web-port", str(web_port),
        "--bookie-port", str(bookie_port),
    )  # fmt: skip
    return Server("standalone", "standalone", "ours", place, command, _always, port=port)


def _always(_: Server) -> bool:
    return True


def await_receipt(server: Server, port: int) -> None:
    """Until it acknowledges a message. Answers that refuse one are those of a server that is not ready yet."""
    deadline = time.perf_counter() + READY_S
    while True:
        if server.process is None or server.process.poll() is not None:
            raise BenchError(f"the standalone ended: {server.log_tail(3)}")
        try:
            first_receipt("127.0.0.1", port)
            return
        except (AssertionError, OSError) as error:
            if time.perf_counter() > deadline:
                raise BenchError(f"no message is acknowledged after {READY_S:.0f} s: {error!r}") from None
            time.sleep(0.01)


def proportional_bytes(pid: int) -> int:
    """Memory with shared pages counted once; ZGC maps its heap three times, which VmRSS counts three times."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("\nPss:")[2].split()[0]) * 1024


def measure(directory: Path, side: Side, seconds: float, memory: str, table: Table) -> str:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    ports = reserved_ports()
    port, web_port, bookie_port = next(ports), next(ports), next(ports)
    server = (
        apache_standalone(directory, port, web_port, bookie_port, memory)
        if side == "apache"
        else our_standalone(directory, port, web_port, bookie_port)
    )
    try:
        began = time.perf_counter()
        server.start(wait=False)
        await_receipt(server, port)
        first_s = time.perf_counter() - began
        time.sleep(SETTLE_S)
        resident, share = server.resident_bytes / MIB, proportional_bytes(server.pid) / MIB
        before, from_s = server.cpu_s, time.perf_counter()
        time.sleep(seconds)
        idle = (server.cpu_s - before) / (time.perf_counter() - from_s) * 100
    finally:
        server.kill()
    table.add(FIRST, "s", side, first_s)
    table.add(RESIDENT, "MB", side, resident)
    table.add(SHARE, "MB", side, share)
    table.add(IDLE, "% of a core", side, idle)
    return f"{first_s:.2f} s, {resident:,.0f} MB, {idle:.1f} % of a core"


def run(directory: Path, rounds: int, seconds: float, table: Table) -> list[str]:
    table.row(FIRST, "s", goal="<= 1 s", note="Apache's does not sync to disk, ours does")
    table.row(RESIDENT, "MB", goal="<= 150 MB")
    table.row(SHARE, "MB")
    table.row(IDLE, "% of a core")
    memory = SHIPPED_MEMORY if memory_mb("MemAvailable") > SHIPPED_NEEDS_MB else SMALL_MEMORY
    for _ in range(rounds):
        for side in SIDES:

            def work(found: Table, side: Side = side) -> str:
                return measure(directory / side, side, seconds, memory, found)

            attempt(table, side, FIRST, "s", work)
    return [
        f"Apache's standalone: `bin/pulsar standalone -nfw -nss`, {memory}, `journalSyncData=false` as it is shipped"
    ]
