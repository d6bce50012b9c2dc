"""What the metadata store has of one topic, as `internal-info` shows it: its record, and those of its cursors."""

from typing import Any
from urllib.parse import unquote_plus

from broker.admin.topics.entry_headers import time_text
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, Node
from managed_ledger.records.offloaded import is_offloaded
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.pulsar_records import decode_cursor_info, decode_ledger_info
from managed_ledger.records.records_pb2 import ManagedLedgerInfo, NestedPositionInfo


async def managed_ledger_info(store: MetadataStore, name: str, now_ms: int) -> dict[str, Any] | None:
    """The records of the managed ledger *name*; None if there is none. Raises MetadataError, Corruption."""
    path = ledger_path(name)
    node = await store.get(path)
    if node is None:
        return None
    record = decode_ledger_info(node.value, name)
    shown = {**_versions(node), "ledgers": [_ledger(info, now_ms) for info in record.ledgerInfo]}
    if record.HasField("terminatedPosition"):
        shown["terminatedPosition"] = _position(record.terminatedPosition)
    cursors = {}
    for child in sorted(await store.children(path)):
        of_cursor = await store.get(f"{path}/{child}")
        if of_cursor is not None:  # deleted since the list was read
            cursors[unquote_plus(child)] = _cursor(of_cursor, child)
    shown["cursors"] = cursors
    if record.properties:
        shown["properties"] = {item.key: item.value for item in record.properties}
    return shown


def _versions(node: Node) -> dict[str, Any]:
    return {
        "version": node.version,
        "creationDate": time_text(node.created_ms),
        "modificationDate": time_text(node.modified_ms),
    }


def _ledger(info: ManagedLedgerInfo.LedgerInfo, now_ms: int) -> dict[str, Any]:
    """The ledger that is being written has no size yet, and its time is the present, as with Apache's brokers."""
    shown: dict[str, Any] = {"ledgerId": info.ledgerId}
    if info.HasField("entries") and info.timestamp:
        shown |= {"entries": info.entries, "size": info.size}
    return shown | {"timestamp": info.timestamp or now_ms, "isOffloaded": is_offloaded(info)}


def _cursor(node: Node, name: str) -> dict[str, Any]:
    info = decode_cursor_info(node.value, name)
    shown = {
        **_versions(node),
        "cursorsLedgerId": info.cursorsLedgerId,
        "markDelete": {"ledgerId": info.markDeleteLedgerId, "entryId": info.markDeleteEntryId},
    }
    if info.individualDeletedMessages:
        shown["individualDeletedMessages"] = [
            {"from": _position(run.lowerEndpoint), "to": _position(run.upperEndpoint)}
            for run in info.individualDeletedMessages
        ]
    if info.properties:
        shown["properties"] = {item.name: item.value for item in info.properties}
    return shown


def _position(position: NestedPositionInfo) -> dict[str, int]:
    return {"ledgerId": position.ledgerId, "entryId": position.entryId}
