"""The entries of a ledger that another process may be writing; nothing is fenced or recovered."""

from collections.abc import Callable
from typing import Final

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.runtime.types import MIB, Buffer

# What is read so is short: notes of transactions, a few for each topic or subscription that has some.
_READ_BYTES_MAX: Final = MIB


async def each_entry(bookkeeper: BookKeeper, ledger_id: int, password: bytes, note: Callable[[Buffer], None]) -> None:
    """Give each entry of a ledger, which may be open, to *note*; only one answer of bookies is kept at a time.

    Raises BookKeeperError, DigestMismatch, MetadataError, and what *note* raises.
    """
    handle = await bookkeeper.open_ledger(ledger_id, password=password, recovery=False)
    try:
        last, entry_id = await handle.last_recoverable_entry(), 0
        while entry_id <= last:
            for entry in await handle.read_batch_unconfirmed(entry_id, last + 1 - entry_id, _READ_BYTES_MAX):
                note(entry.payload)
                entry_id = entry.entry_id + 1
    finally:
        await handle.close()
