"""How long the driver plans for a topic of 10,000 ledgers: a batch, and a stream's trigger without news.

The topic's record is written by hand, with entries and bytes for each closed ledger as brokers write them; only the
last ledger exists, open, with its entries on bookies. What is timed is what Spark calls in its planning workers, from
options to pickled tasks, without Spark around it.
"""

import asyncio
import pickle
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench.spark_topics import DAY_BEGINS_MS, batch_entry
from connectors.spark.source import MagnetarSource
from magnetar.processes.cluster import Cluster
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.records_pb2 import ManagedLedgerInfo

Rows = list[tuple[str, str]]

LEDGERS: Final = 10_000
ROUNDS: Final = 5
TRIGGERS: Final = 50


async def write_topic(metadata_url: str, topic: str) -> None:
    """A record of LEDGERS ledgers, the last one open with ten entries."""
    clock = LoopClock()
    store = await open_store(metadata_url, clock)
    bookkeeper = BookKeeper(store, clock)
    await bookkeeper.open()
    handle = await bookkeeper.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    first = handle.append([batch_entry(number, DAY_BEGINS_MS, size=100) for number in range(10)])
    await handle.wait_for(first + 9)
    info = ManagedLedgerInfo()
    for number in range(LEDGERS - 1):  # ids before that of the open one; nobody reads them
        info.ledgerInfo.add(
            ledgerId=handle.ledger_id - LEDGERS + number, entries=1_000, size=100_000_000, timestamp=1_700_000_000_000
        )
    info.ledgerInfo.add(ledgerId=handle.ledger_id)
    await store.put(ledger_path(f"public/default/persistent/{topic}"), info.SerializeToString())
    await bookkeeper.close()  # the ledger stays open: its writer is gone
    await store.close()


def batch(metadata_url: str, topic: str) -> float:
    """Seconds from options to pickled tasks."""
    began = time.perf_counter()
    source = MagnetarSource({"metadata.url": metadata_url, "topic": topic})
    found = source.reader(source.schema())
    pickle.dumps([*found.partitions(), found])
    return time.perf_counter() - began


def triggers(metadata_url: str, topic: str) -> list[float]:
    """Seconds of each look of a stream that has read everything."""
    source = MagnetarSource({"metadata.url": metadata_url, "topic": topic, "startingOffsets": "latest"})
    found = source.streamReader(source.schema())
    try:
        start = found.initialOffset()
        seconds = []
        for _ in range(TRIGGERS):
            began = time.perf_counter()
            end = found.latestOffset(start, ReadAllAvailable())
            seconds.append(time.perf_counter() - began)
            assert end == start, "there is no news"
    finally:
        found.stop()
    return sorted(seconds)


def run(metadata_url: str) -> Rows:
    asyncio.run(write_topic(metadata_url, "many-ledgers"))
    batches = sorted(batch(metadata_url, "many-ledgers") for _ in range(ROUNDS))
    looks = triggers(metadata_url, "many-ledgers")
    return [
        (
            f"Spark, batch of a topic of {LEDGERS:,} ledgers, from options to tasks",
            f"{statistics.median(batches):.2f} s ({batches[0]:.2f} to {batches[-1]:.2f})",
        ),
        (
            f"Spark, a stream's trigger without news, {LEDGERS:,} ledgers",
            f"{statistics.median(looks) * 1000:.0f} ms (p90 {looks[len(looks) * 9 // 10] * 1000:.0f} ms)",
        ),
    ]


def rows() -> Rows:
    """The table, from a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        cluster = Cluster(Path(folder) / "cluster")
        cluster.up(bookies=3, brokers=1, free_ports=True)
        try:
            return run(cluster.metadata_url)
        finally:
            cluster.down()
