"""Topics for the measurements of Spark, written directly through the ledger client.

Entries are as the official client makes them: batches of 1,000 messages, with a key of 8 bytes and a sequence id for
every message. Publish times spread evenly over one day, and each partition has about LEDGERS ledgers which were closed
in the course of that day, so that an hour can be found by ledger and, inside them, by search. Nobody writes when the
topic is read: its ledgers are closed.
"""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.messages import compress, encode_entry
from managed_ledger.messages_pb2 import ZSTD, MessageMetadata, SingleMessageMetadata
from managed_ledger.retention import RetentionRule, RolloverRule

BATCH: Final = 1_000
COPIES: Final = 2
LEDGERS: Final = 10
KEYS: Final = 10_000

DAY_BEGINS_MS: Final = 1_700_006_400_000
"""2023-11-15T00:00:00Z."""
DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
HOUR_BEGINS_MS: Final = DAY_BEGINS_MS + 13 * HOUR_MS

# Appended and not acknowledged yet, in all partitions: some 20 MB at most.
IN_FLIGHT_MAX: Final = 20

# What is under way in one partition was published within so many milliseconds, or is one entry: a ledger that is closed
# meanwhile is closed by the clock of the last of them, and a search by time believes that.
IN_FLIGHT_MS: Final = 30_000

FOREVER_MS: Final = 10 * 365 * DAY_MS

Entry = Callable[[int, int], bytes]
"""(number, publish time) → the bytes of an entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """public/default/*name*, with *partitions* partitions and *count* messages of *size* bytes."""

    name: str
    partitions: int
    size: int
    count: int
    packed: bool = False
    """Every entry has the same payload, compressed with zstd: so that the disk holds it."""

    @property
    def entries(self) -> int:
        return self.count // BATCH

    @property
    def in_flight_max(self) -> int:
        """Entries of one partition that may be under way together."""
        apart_ms = DAY_MS * self.partitions // self.entries
        return max(min(IN_FLIGHT_MAX // self.partitions, IN_FLIGHT_MS // apart_ms), 1)

    def published_ms(self, number: int) -> int:
        """The time of the entry with this number."""
        return DAY_BEGINS_MS + number * DAY_MS // self.entries

    @property
    def hour_count(self) -> int:
        """Messages that were published in the hour that begins at HOUR_BEGINS_MS."""
        times = map(self.published_ms, range(self.entries))
        return BATCH * sum(HOUR_BEGINS_MS <= time < HOUR_BEGINS_MS + HOUR_MS for time in times)


def batch_payload(first: int, size: int) -> bytes:
    """BATCH messages of *size* bytes, without a header."""
    value = os.urandom(size - 8)
    messages: list[bytes] = []
    for sequence_id in range(first, first + BATCH):
        single = SingleMessageMetadata(
            partition_key=f"k{sequence_id * 7 % KEYS:07d}", payload_size=size, sequence_id=sequence_id
        ).SerializeToString()
        messages += (len(single).to_bytes(4, "big"), single, sequence_id.to_bytes(8, "big"), value)
    return b"".join(messages)


def batch_entry(number: int, published_ms: int, *, size: int) -> bytes:
    """An entry of BATCH messages of *size* bytes."""
    payload = batch_payload(number * BATCH, size)
    return encode_entry(_metadata(number, published_ms, payload), payload)


def _metadata(number: int, published_ms: int, payload: bytes) -> MessageMetadata:
    return MessageMetadata(
        producer_name="bench", sequence_id=number * BATCH, publish_time=published_ms, num_messages_in_batch=BATCH,
        uncompressed_size=len(payload),
    )  # fmt: skip


def packed_entries(size: int) -> Entry:
    """Makes entries with the same messages in each, compressed once."""
    payload = batch_payload(0, size)
    packed = compress(ZSTD, payload)

    def entry(number: int, published_ms: int) -> bytes:
        metadata = _metadata(number, published_ms, payload)
        metadata.compression = ZSTD
        return encode_entry(metadata, packed)

    return entry


class _DayClock(LoopClock):
    """Of one partition: the wall shows the publish time of what is appended to it, so that its ledgers are closed at
    the time of their messages."""

    def __init__(self) -> None:
        self.now_ms = DAY_BEGINS_MS

    def wall_ms(self) -> int:
        return self.now_ms


class _Receipts:
    """Limits the number of appends under way."""

    def __init__(self, in_flight_max: int) -> None:
        self.room = asyncio.Semaphore(in_flight_max)
        self.failed: Exception | None = None

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Any]) -> None:
        for _ in contexts:
            self.room.release()

    def on_append_failed(self, contexts: Sequence[Any], error: Exception) -> None:
        self.on_closed(error)

    def on_closed(self, error: Exception) -> None:
        self.failed = error
        self.room.release()

    async def acquire(self) -> None:
        """Waits for room. Raises what an append failed with."""
        await self.room.acquire()
        if self.failed is not None:
            self.room.release()
            raise self.failed


class _Partition(NamedTuple):
    factory: ManagedLedgerFactory
    ledger: ManagedLedger
    clock: _DayClock
    receipts: _Receipts


async def write_topic(metadata_url: str, topic: Topic) -> None:
    """Write *topic* into a running cluster; its ledgers are closed at the end."""
    real = LoopClock()
    store = await open_store(metadata_url, real)
    bookkeeper = BookKeeper(store, real)
    await bookkeeper.open()
    entries_max = max(topic.entries // topic.partitions // LEDGERS, 1)
    config = ManagedLedgerConfig(
        ensemble_size=COPIES,
        write_quorum=COPIES,
        ack_quorum=COPIES,
        retention=RetentionRule(time_ms=-1, bytes_max=-1),
        rollover=RolloverRule(entries_max=entries_max, bytes_max=2**40, age_max_ms=FOREVER_MS, age_min_ms=0),
    )
    await store.put(
        f"/admin/partitioned-topics/public/default/persistent/{topic.name}",
        json.dumps({"partitions": topic.partitions}).encode(),
    )
    entry = packed_entries(topic.size) if topic.packed else partial(batch_entry, size=topic.size)
    parts: list[_Partition] = []
    for number in range(topic.partitions):
        clock, receipts = _DayClock(), _Receipts(topic.in_flight_max)
        factory = ManagedLedgerFactory(bookkeeper, store, clock, config)
        ledger = await factory.open(f"public/default/persistent/{topic.name}-partition-{number}")
        ledger.listener = receipts
        parts.append(_Partition(factory, ledger, clock, receipts))
    for number in range(topic.entries):
        part = parts[number % topic.partitions]
        await part.receipts.acquire()
        part.clock.now_ms = topic.published_ms(number)
        part.ledger.append([entry(number, part.clock.now_ms)], [number])
    for part in parts:
        for _ in range(topic.in_flight_max):
            await part.receipts.acquire()
        await part.factory.close()
    await bookkeeper.close()
    await store.close()
