"""Reads ledgers from their first entry with our client, in a process of its own: the counterpart of LedgerReader.java.

python -m bench.apache.our_reader zk:127.0.0.1:2181 PASSWORD COUNT BATCH LEDGER…      (BATCH 0: single reads)
"""

import sys
import time
from typing import Final

import uvloop

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock

WINDOW: Final = 1_000
BATCH_BYTES: Final = 5 * 1024 * 1024


async def main(metadata_url: str, password: bytes, count: int, batch: int, ledger_ids: list[int]) -> None:
    clock = LoopClock()
    store = await open_store(metadata_url, clock, read_only=True)
    # Without batch reads the client asks for each entry by itself, as Java's does in a window.
    bookkeeper = BookKeeper(store, clock, ClientConfig(batch_read_enabled=batch > 0))
    await bookkeeper.open()
    for ledger_id in ledger_ids:
        handle = await bookkeeper.open_ledger(ledger_id, password=password, recovery=False)
        last = min(count, handle.last_add_confirmed + 1) - 1
        position, size, began = 0, 0, time.perf_counter()
        while position <= last:
            if batch:
                entries = await handle.read_batch(position, min(batch, last - position + 1), BATCH_BYTES)
            else:
                entries = await handle.read(position, min(position + WINDOW - 1, last))
            for entry in entries:
                assert entry.entry_id == position, f"entry {entry.entry_id} came for {position}"
                size += len(entry.payload)
                position += 1
        print("entries", position, "bytes", size, "ms", (time.perf_counter() - began) * 1000, flush=True)
    await bookkeeper.close()
    await store.close()


if __name__ == "__main__":
    url, word, number, run, *ledgers = sys.argv[1:]
    uvloop.run(main(url, word.encode(), int(number), int(run), [int(each) for each in ledgers]))
