"""From the bookies into Spark's `noop` sink, rows a second.

The topics are written beforehand, directly through the ledger client: entries as the official client makes them, of
1,000 messages each, with a key of 8 bytes and a sequence id for every message. What is timed is one `save()` after a
warm-up: planning of the tasks, bookies, network, decoding, Arrow into the JVM. `local[2]`; bookies run on the same two
cores.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from magnetar.processes.cluster import Cluster
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.url import open_store
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata, SingleMessageMetadata
from tests.support.spark_session import spark_session

Rows = list[tuple[str, str]]

BATCH: Final = 1_000
ROUNDS: Final = 3
COPIES: Final = 2
SIZES: Final = ((100, 2_000_000), (1_000, 300_000))
PARTITIONS: Final = (1, 2, 4)

# Appended and not acknowledged yet: some 20 MB at most.
IN_FLIGHT_MAX: Final = 20


def batch_entry(number: int, size: int) -> bytes:
    """An entry of BATCH messages of *size* bytes."""
    first = number * BATCH
    value = os.urandom(size - 8)
    messages: list[bytes] = []
    for sequence_id in range(first, first + BATCH):
        single = SingleMessageMetadata(
            partition_key=f"k{sequence_id % 9_999_991:07d}", payload_size=size, sequence_id=sequence_id
        ).SerializeToString()
        messages += (len(single).to_bytes(4, "big"), single, sequence_id.to_bytes(8, "big"), value)
    payload = b"".join(messages)
    metadata = MessageMetadata(
        producer_name="bench", sequence_id=first, publish_time=1_700_000_000_000 + first, num_messages_in_batch=BATCH,
        uncompressed_size=len(payload),
    )  # fmt: skip
    return encode_entry(metadata, payload)


class _Receipts:
    """Limits the number of appends under way."""

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(IN_FLIGHT_MAX)

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Any]) -> None:
        for _ in contexts:
            self.room.release()

    def on_append_failed(self, contexts: Sequence[Any], error: Exception) -> None:
        raise error

    def on_closed(self, error: Exception) -> None:
        raise error


async def write_topic(metadata_url: str, topic: str, partitions: int, size: int, count: int) -> None:
    """*count* messages in public/default/*topic*, spread over its partitions; the ledgers are closed at the end."""
    clock = LoopClock()
    store = await open_store(metadata_url, clock)
    bookkeeper = BookKeeper(store, clock)
    await bookkeeper.open()
    config = ManagedLedgerConfig(ensemble_size=COPIES, write_quorum=COPIES, ack_quorum=COPIES)
    factory = ManagedLedgerFactory(bookkeeper, store, clock, config)
    await store.put(
        f"/admin/partitioned-topics/public/default/persistent/{topic}", json.dumps({"partitions": partitions}).encode()
    )
    receipts = _Receipts()
    ledgers: list[ManagedLedger] = []
    for partition in range(partitions):
        ledger = await factory.open(f"public/default/persistent/{topic}-partition-{partition}")
        ledger.listener = receipts
        ledgers.append(ledger)
    for number in range(count // BATCH):
        await receipts.room.acquire()
        ledgers[number % partitions].append([batch_entry(number, size)], [number])
    for _ in range(IN_FLIGHT_MAX):
        await receipts.room.acquire()
    await factory.close()
    await bookkeeper.close()
    await store.close()


def measure(spark: Any, metadata_url: str, topic: str, count: int, columns: str | None) -> list[float]:
    """Rows a second of each round."""
    rates = []
    for number in range(ROUNDS + 1):
        reader = spark.read.format("magnetar").option("metadata.url", metadata_url).option("topic", topic)
        frame = (reader.option("columns", columns) if columns else reader).load()
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        if number:
            rates.append(count / (time.perf_counter() - began))
    assert frame.count() == count, f"{topic} has {frame.count()} rows, not {count}"
    return rates


def run(metadata_url: str, sizes: Sequence[tuple[int, int]] = SIZES, partitions: Sequence[int] = PARTITIONS) -> Rows:
    """Write the topics into a running cluster and read them."""
    found: Rows = []
    topics = [(f"spark-{size}-{parts}", size, count, parts) for size, count in sizes for parts in partitions]
    for topic, size, count, parts in topics:
        asyncio.run(write_topic(metadata_url, topic, parts, size, count))
    with spark_session("bench", validated=False) as spark:
        for topic, size, count, parts in topics:
            for columns, name in (("value", "value only"), (None, "default columns")):
                rates = measure(spark, metadata_url, topic, count, columns)
                middle = statistics.median(rates)
                spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
                found.append(
                    (
                        f"bookies to Spark noop, {size:,} B in batches of {BATCH:,} written directly, "
                        f"{parts} partition{'s' if parts > 1 else ''}, {name}, {COPIES}/{COPIES}/{COPIES}",
                        f"{middle:,.0f} rows/s ({spread}), {middle * size / 1e6:,.0f} MB/s",
                    )
                )
    return found


def rows() -> Rows:
    """The table, from a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        cluster = Cluster(Path(folder) / "cluster")
        cluster.up(bookies=3, brokers=1, free_ports=True)
        try:
            return run(cluster.metadata_url)
        finally:
            cluster.down()


if __name__ == "__main__":
    table = rows()
    width = max(len(label) for label, _ in table)
    for label, result in table:
        print(f"{label.ljust(width)}  {result}")
