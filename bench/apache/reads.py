"""Entries read back, 1 KiB, 3/3/2 (E equals Qw, so batch reads are possible), protocol v2.

Our client writes five ledgers. In every round the bookies are stopped and started again and the page cache
is dropped; then each client (Java's and ours) reads one ledger to get warm, and after it its own one twice: the first
pass is cold, the second is cached.
"""

import asyncio
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from bench.apache.outputs import complaints
from bench.apache.perf import attempt
from bench.apache.rig import ROOT, BenchError, Pair, System, module, run_tool, wait_patiently
from bench.apache.table import SIDES, Side, Table
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from tests.support.mixed_cluster import class_path, compile_java

PASSWORD: Final = "benchPasswd"
ENTRIES: Final = 20_000
LEDGERS: Final = 5
SIZE: Final = 1024
RUN: Final = 500
"""Entries under way while the ledgers are written."""

BATCH: Final = 500
DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
PASS: Final = re.compile(r"entries (\d+) bytes (\d+) ms ([\d.]+)")


class Reader(NamedTuple):
    client: str
    batch: int

    def what(self, state: str) -> str:
        how = f"batches of {self.batch}" if self.batch else "single reads"
        return f"{'Java client' if self.client == 'java' else 'our client'}, {how}, {state}"


READERS: Final = (Reader("java", 0), Reader("java", BATCH), Reader("ours", 0), Reader("ours", BATCH))


async def write_ledgers(metadata_url: str) -> list[str]:
    """Closed ledgers of ENTRIES each; both sides get theirs from the same client."""
    clock = LoopClock()
    store = await open_store(metadata_url, clock)
    bookkeeper = BookKeeper(store, clock)
    await bookkeeper.open()
    found: list[str] = []
    for _ in range(LEDGERS):
        ledger = await bookkeeper.create_ledger(
            ensemble_size=3, write_quorum=3, ack_quorum=2, password=PASSWORD.encode()
        )
        for _ in range(ENTRIES // RUN):
            first = ledger.append([os.urandom(SIZE) for _ in range(RUN)])
            await ledger.wait_for(first + RUN - 1)
        await ledger.close()
        found.append(str(ledger.ledger_id))
    await bookkeeper.close()
    await store.close()
    return found


def drop_caches() -> bool:
    """Whether the page cache could be emptied."""
    os.sync()
    try:
        DROP_CACHES.write_text("3\n")
    except OSError:
        return False
    return True


def restart(system: System) -> None:
    for bookie in system.bookies:
        bookie.stop()
    for bookie in system.bookies:
        bookie.start(wait=False)
    for bookie in system.bookies:
        wait_patiently(bookie)


def read_passes(system: System, reader: Reader, classes: Path, ledgers: list[str]) -> list[float]:
    """Entries a second of each pass, one after the other in one process."""
    numbers = [str(ENTRIES), str(reader.batch), *ledgers]
    address = system.cluster.zookeeper_address
    command = (
        ["java", "-Xms512m", "-Xmx1g", "-cp", class_path(classes), "LedgerReader", address, PASSWORD, *numbers]
        if reader.client == "java"
        else module("bench.apache.our_reader", f"zk:{address}", PASSWORD, *numbers)
    )
    ran = run_tool(command, ROOT, timeout_s=180)
    found = [(int(count), float(ms)) for count, _, ms in PASS.findall(ran.text)]
    short = [count for count, _ in found if count < ENTRIES]
    if len(found) < len(ledgers) or short:
        raise BenchError(f"{len(found)} of {len(ledgers)} passes, short of entries: {short}: {complaints(ran.text)}")
    return [count * 1000 / ms for count, ms in found]


def run(directory: Path, rounds: int, seconds: float, table: Table) -> list[str]:
    for reader in READERS:
        for state in ("cold", "cached"):
            table.row(reader.what(state), "entries/s")
    directory.mkdir(parents=True)
    classes = compile_java([Path(__file__).with_name("LedgerReader.java")], directory / "classes")
    dropped = drop_caches()
    with Pair(directory / "pair", bookies=3) as pair:
        ledgers = {side: asyncio.run(write_ledgers(pair.turn(side).cluster.metadata_url)) for side in SIDES}
        for _ in range(rounds):
            for side in SIDES:
                restart(pair.turn(side))
                drop_caches()
                for reader, own in zip(READERS, ledgers[side][1:], strict=True):

                    def work(found: Table, side: Side = side, reader: Reader = reader, own: str = own) -> str:
                        warm = ledgers[side][0]
                        _, cold, cached = read_passes(pair.systems[side], reader, classes, [warm, own, own])
                        found.add(reader.what("cold"), "entries/s", side, cold)
                        found.add(reader.what("cached"), "entries/s", side, cached)
                        return f"{cold:,.0f} cold, {cached:,.0f} cached"

                    attempt(table, side, reader.what("cold"), "entries/s", work)
        return [
            f"Apache's bookies: {pair.memory_note}, caches as shipped",
            "cold: bookies restarted, page cache dropped"
            if dropped
            else "cold: bookies restarted; the page cache could not be dropped (no right to)",
        ]
