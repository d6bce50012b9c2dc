"""Deletes what is stored of a managed ledger that is not opened."""

import logging

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore, NoNode
from magnetar_core.runtime.tasks import attempt
from magnetar_core.runtime.types import Corruption
from managed_ledger.errors import StorageUnavailable
from managed_ledger.ledgers.delayed_buckets import delete_buckets
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.pulsar_records import decode_cursor_info, decode_ledger_info

log = logging.getLogger(__name__)


async def discard(store: MetadataStore, bookkeeper: BookKeeper, name: str) -> None:
    """Delete the managed ledger *name*, its records and the ledgers that readable records name; nothing is opened.

    Other ledgers of it are left; they carry its name in their metadata. Raises StorageUnavailable.
    """
    path, ledger_ids, is_damaged = ledger_path(name), set[int](), False
    texts: list[dict[str, str]] = []
    try:
        for child in await store.children(path):
            node = await store.get(f"{path}/{child}")
            try:
                cursor = decode_cursor_info(b"" if node is None else node.value, child)
                ledger_ids.add(cursor.cursorsLedgerId)
                texts.append({item.name: item.value for item in cursor.cursorProperties})
            except Corruption:
                is_damaged = True
            await store.delete(f"{path}/{child}")
        node = await store.get(path)
        try:
            record = decode_ledger_info(b"" if node is None else node.value, name)
            ledger_ids.update(info.ledgerId for info in record.ledgerInfo)
        except Corruption:
            is_damaged = True
        await store.delete(path)
    except NoNode:
        pass  # deleted by another caller meanwhile
    except MetadataError as error:
        raise StorageUnavailable(f"cannot delete {name}: {error}") from error
    for ledger_id in sorted(named_id for named_id in ledger_ids if named_id >= 0):  # -1: a cursor without one
        await attempt(f"{name}: deleting its ledger {ledger_id}", bookkeeper.delete_ledger(ledger_id))
    for properties in texts:
        await attempt(f"{name}: deleting ledgers of delayed messages", delete_buckets(bookkeeper, name, properties))
    if is_damaged:
        log.warning("%s was deleted by force; its records were damaged, and ledgers of it may be left", name)
