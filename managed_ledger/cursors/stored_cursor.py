"""The stored state of a cursor of a topic that is not opened here; nothing is fenced, recovered or written.

A broker that has the cursor open may know more, which it will store later.
"""

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from managed_ledger.cursors.cursor_store import NO_LEDGER, CursorSnapshot, snapshot_of
from managed_ledger.position import Position
from managed_ledger.records.paths import cursor_path
from managed_ledger.records.pulsar_records import decode_cursor_info, decode_position_info


async def stored_cursor(store: MetadataStore, bookkeeper: BookKeeper, name: str, cursor: str) -> CursorSnapshot | None:
    """What is stored of a cursor of the managed ledger *name*; None if there is no such cursor.

    Raises Corruption, MetadataError, BookKeeperError.
    """
    node = await store.get(cursor_path(name, cursor))
    if node is None:
        return None
    what = f"cursor {cursor} of {name}"
    info = decode_cursor_info(node.value, what)
    of_node = snapshot_of(Position(info.markDeleteLedgerId, info.markDeleteEntryId), info)
    if info.cursorsLedgerId == NO_LEDGER:
        return of_node
    handle = await bookkeeper.open_ledger(info.cursorsLedgerId, recovery=False)
    try:
        last = await handle.last_recoverable_entry()
        if last < 0:
            return of_node
        (entry,) = await handle.read_unconfirmed(last, last)
    finally:
        await handle.close()
    state = decode_position_info(entry.payload, f"ledger {info.cursorsLedgerId} of {what}")
    return snapshot_of(Position(state.ledgerId, state.entryId), state)
