"""`internalStats` of a topic: its ledgers and cursors, and what subscriptions know of the latter.

The metadata of ledgers are read only where they are asked for (`?metadata=true`), and for the ledgers of schemas.
"""

from collections.abc import Sequence
from typing import Any, Final

from broker.admin.topics.entry_headers import time_text
from broker.admin.topics.ledger_text import ledger_text
from broker.topic.topic import Topic
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, NoNode

_NOT_THERE: Final = -1
_TIMES: Final = ("lastLedgerCreatedTimestamp", "lastLedgerCreationFailureTimestamp", "lastLedgerSwitchTimestamp")


async def internal_stats(
    topic: Topic, schema_ledgers: Sequence[int], store: MetadataStore, *, with_metadata: bool
) -> dict[str, Any]:
    """The `internalStats` of a loaded topic. Raises StorageUnavailable, MetadataError, Corruption."""
    stats = _with_times(topic.ledger.stats())
    cursors = {name: _with_times(cursor) for name, cursor in stats["cursors"].items()}
    for name, cursor in cursors.items():
        subscription = topic.subscriptions.get(name)
        waits = subscription is not None and subscription.is_waiting
        cursor["active"] = subscription is not None and bool(subscription.consumers)
        cursor["waitingReadOp"] = cursor["subscriptionHavePendingRead"] = waits
        cursor["subscriptionHavePendingReplayRead"] = subscription is not None and subscription.pump.is_replaying
        cursor["pendingReadOps"] = int(subscription is not None and subscription.pump.is_reading)
    stats["waitingCursorsCount"] = sum(cursor["waitingReadOp"] for cursor in cursors.values())
    stats["cursors"] = cursors
    ledgers = LedgerStore(store)
    stats["schemaLedgers"] = [
        _of_metadata(ledger_id, await _metadata(ledgers, ledger_id), with_metadata=with_metadata)
        for ledger_id in schema_ledgers
    ]
    stats["compactedLedger"] = await _compacted(topic)
    if with_metadata:
        marks = MarkBoard(store)
        shown = [*stats["ledgers"], *([] if stats["compactedLedger"]["ledgerId"] < 0 else [stats["compactedLedger"]])]
        for ledger in shown:
            metadata = await _metadata(ledgers, ledger["ledgerId"])
            if metadata is not None:
                ledger["metadata"] = ledger_text(metadata)
            ledger["underReplicated"] = await marks.read(ledger["ledgerId"]) is not None
    return stats


def _with_times(members: dict[str, Any]) -> dict[str, Any]:
    """*members* with times as texts; what has never happened is left out, as by Apache's brokers."""
    shown = dict(members)
    for name in _TIMES:
        if name in shown:
            at_ms = shown.pop(name)
            if at_ms:
                shown[name] = time_text(at_ms)
    return shown


async def _metadata(ledgers: LedgerStore, ledger_id: int) -> LedgerMetadata | None:
    """None: the ledger was deleted a moment ago."""
    try:
        return (await ledgers.read(ledger_id)).metadata
    except NoNode:
        return None


def _of_metadata(ledger_id: int, metadata: LedgerMetadata | None, *, with_metadata: bool) -> dict[str, Any]:
    members: dict[str, Any] = {
        "ledgerId": ledger_id,
        "entries": _NOT_THERE if metadata is None else metadata.last_entry_id + 1,
        "size": _NOT_THERE if metadata is None else metadata.length,
        "offloaded": False,
        "underReplicated": False,
    }
    if with_metadata and metadata is not None:
        members["metadata"] = ledger_text(metadata)
    return members


async def _compacted(topic: Topic) -> dict[str, Any]:
    """The ledger that holds what compaction kept. Raises StorageUnavailable."""
    compacted = await topic.compactor.compacted()
    numbers = (_NOT_THERE,) * 3 if compacted is None else (compacted.ledger_id, compacted.entries, compacted.size_bytes)
    members = dict(zip(("ledgerId", "entries", "size"), numbers, strict=True))
    return {**members, "offloaded": False, "underReplicated": False}
