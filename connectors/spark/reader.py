"""One task on an executor: runs of entries from the bookies, decoded into Arrow batches.

Entries are fetched on a loop in the background, a bounded number of bytes ahead, while those before are decoded here.
Connections are kept for the next task of this worker process, which lives on until it has been idle for a minute.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pyarrow as pa

from connectors.spark.cluster import DataLoss
from connectors.spark.options import ReadOptions
from connectors.spark.planning import Run, Split
from connectors.spark.rows import IncompleteChunks, RowBuilder, Values
from magnetar.bookkeeper.client.client import BookKeeper
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.errors import BookKeeperError, NoSuchEntry, NoSuchLedger
from magnetar.bookkeeper.client.handle import LedgerReadHandle
from magnetar.bookkeeper.metadata.store import MetadataStore
from magnetar.bookkeeper.metadata.url import open_store
from magnetar.bookkeeper.wire.entry import StoredEntry
from magnetar.runtime.daemon import new_clock
from magnetar.runtime.loop_thread import LoopThread
from magnetar.runtime.types import MIB, MagnetarError
from managed_ledger.messages import metadata_of, split_entry

log = logging.getLogger(__name__)

# One request to a bookie: large enough that its cost does not show, small enough to be answered in a few milliseconds.
FETCH_BYTES: Final = 2 * MIB
FETCH_ENTRIES: Final = 5_000
# Fetched but not decoded yet: 8 MiB.
FETCH_AHEAD: Final = 4

# Rows of a batch for Spark: 1,000 to 10,000 rows and 1 to 10 MB are the plateau; the first one is small, so that
# `show` and `limit` are quick.
ROWS_FIRST: Final = 500
ROWS_MAX: Final = 10_000
BATCH_BYTES_MAX: Final = 8 * MIB

# How far back the first chunks of a message are searched for, and in which steps.
LOOK_BACK_ENTRIES_MAX: Final = 100_000
LOOK_BACK_STEP: Final = 1_000


class _Connection:
    """A BookKeeper client on a loop of its own."""

    def __init__(self, options: ReadOptions) -> None:
        self.pid = os.getpid()
        self.loop = LoopThread("magnetar-reader")
        self._options = options
        self._store: MetadataStore | None = None
        self.bookkeeper: BookKeeper = self.loop.run(self._open(), options.read_timeout_s)

    async def _open(self) -> BookKeeper:
        clock = new_clock()
        self._store = await open_store(self._options.metadata_url, clock, read_only=True)
        config = ClientConfig(timeout_s=self._options.read_timeout_s)
        bookkeeper = BookKeeper(self._store, clock, config, root=self._options.ledgers_root)
        await bookkeeper.open()
        return bookkeeper


# Kept for the next task: by metadata URL and root. A worker that was forked from one with connections makes its own.
_connections: dict[tuple[str, str, float], _Connection] = {}


def _connection(options: ReadOptions) -> _Connection:
    key = (options.metadata_url, options.ledgers_root, options.read_timeout_s)
    found = _connections.get(key)
    if found is None or found.pid != os.getpid() or not found.loop.is_alive:
        found = _connections[key] = _Connection(options)
    return found


def read_split(options: ReadOptions, split: Split, schema: pa.Schema, values: Values) -> Iterator[pa.RecordBatch]:
    """The rows of *split* in order of position. Raises DataLoss, Corruption, MagnetarError with topic and entry."""
    connection = _connection(options)
    builder = RowBuilder(schema, split.topic, split.partition, values, options.value_format)
    rows = ROWS_FIRST
    entries = total_rows = 0
    fetched = connection.loop.iterate(_entries(connection.bookkeeper, split, options), FETCH_AHEAD)
    for group in fetched:
        for entry in group:
            entries += 1
            try:
                builder.add_entry(entry.ledger_id, entry.entry_id, entry.payload)
            except IncompleteChunks as missing:
                _complete_chunks(connection, builder, split, entry, options, missing)
            if builder.row_count >= rows or builder.payload_bytes >= BATCH_BYTES_MAX:
                total_rows += builder.row_count
                yield builder.take()
                rows = min(rows * 4, ROWS_MAX)
    if builder.row_count:
        total_rows += builder.row_count
        yield builder.take()
    log.info(json.dumps({"topic": split.topic, "entries": entries, "rows": total_rows, "runs": len(split.runs)}))


async def _entries(bookkeeper: BookKeeper, split: Split, options: ReadOptions) -> AsyncIterator[list[StoredEntry]]:
    for run in split.runs:
        try:
            async for group in _read_run(bookkeeper, run):
                yield group
        except (NoSuchLedger, NoSuchEntry) as error:
            if options.fail_on_data_loss:
                raise DataLoss(
                    f"{split.topic}: entries {run.first} to {run.last} of ledger {run.ledger_id} are gone ({error}); "
                    "they were trimmed after the read was planned. Load again, raise the namespace's retention, or "
                    "set failOnDataLoss=false to read what is left."
                ) from None
            log.warning("%s: ledger %s is gone; leaving out its entries", split.topic, run.ledger_id)
        except BookKeeperError as error:
            raise MagnetarError(f"{split.topic}: cannot read ledger {run.ledger_id}: {error}") from error


async def _read_run(bookkeeper: BookKeeper, run: Run) -> AsyncIterator[list[StoredEntry]]:
    handle = await bookkeeper.open_ledger(run.ledger_id, recovery=False)
    try:
        at = run.first
        while at <= run.last:
            group = await _fetch(handle, at, run.last)
            yield group
            at = group[-1].entry_id + 1
    finally:
        await handle.close()


async def _fetch(handle: LedgerReadHandle, first: int, last: int) -> list[StoredEntry]:
    """The next entries, at least one. The plan knows that they are confirmed; an open ledger's handle may not."""
    return await handle.read_batch_unconfirmed(first, min(last - first + 1, FETCH_ENTRIES), FETCH_BYTES)


def _complete_chunks(
    connection: _Connection,
    builder: RowBuilder,
    split: Split,
    entry: StoredEntry,
    options: ReadOptions,
    missing: IncompleteChunks,
) -> None:
    """Find the first chunks of a message before this task's range, then add its last one."""
    wanted = metadata_of(split_entry(entry.payload)).uuid
    earlier = connection.loop.run(_look_back(connection.bookkeeper, split, wanted), options.read_timeout_s)
    for data in earlier:
        builder.remember_chunks(data)
    try:
        builder.add_entry(entry.ledger_id, entry.entry_id, entry.payload)
    except IncompleteChunks:
        text = f"{split.topic}, entry {entry.ledger_id}:{entry.entry_id}: {missing}"
        if options.fail_on_data_loss:
            raise DataLoss(text + "; set failOnDataLoss=false to leave the message out") from None
        log.warning("%s; leaving the message out", text)


async def _look_back(bookkeeper: BookKeeper, split: Split, wanted: str) -> list[Any]:
    """Entries before the range, from the first chunk of message *wanted* on; empty if it is not there."""
    found: list[Any] = []
    looked = 0
    for run in reversed(split.before):
        last = run.last
        while last >= run.first and looked < LOOK_BACK_ENTRIES_MAX:
            first = max(run.first, last - LOOK_BACK_STEP + 1)
            group = [
                entry async for part in _read_run(bookkeeper, Run(run.ledger_id, first, last, 0)) for entry in part
            ]
            looked += len(group)
            found[:0] = [entry.payload for entry in group]
            for data in found[: len(group)]:
                metadata = metadata_of(split_entry(data))
                if metadata.uuid == wanted and metadata.chunk_id == 0 and metadata.num_chunks_from_msg > 1:
                    return found
            last = first - 1
            await asyncio.sleep(0)
    return []
