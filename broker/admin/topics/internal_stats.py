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
    """Of a loaded topic. Raises StorageUnavailable, MetadataError, Corruption."""
    found = _with_times(topic.ledger.stats())
    cursors = {name: _with_times(one) for name, one in found["cursors"].items()}
    for name, one in cursors.items():
        subscription = topic.subscriptions.get(name)
        waits = subscription is not None and subscription.is_waiting
        one["active"] = subscription is not None and bool(subscription.consumers)
        one["waitingReadOp"] = one["subscriptionHavePendingRead"] = waits
        one["subscriptionHavePendingReplayRead"] = subscription is not None and subscription.is_replaying
        one["pendingReadOps"] = int(subscription is not None and subscription.is_reading)
    found["waitingCursorsCount"] = sum(one["waitingReadOp"] for one in cursors.values())
    found["cursors"] = cursors
    ledgers = LedgerStore(store)
    found["schemaLedgers"] = [
        _of_metadata(ledger_id, await _metadata(ledgers, ledger_id), with_metadata=with_metadata)
        for ledger_id in schema_ledgers
    ]
    found["compactedLedger"] = await _compacted(topic)
    if with_metadata:
        marks = MarkBoard(store)
        shown = [*found["ledgers"], *([] if found["compactedLedger"]["ledgerId"] < 0 else [found["compactedLedger"]])]
        for one in shown:
            metadata = await _metadata(ledgers, one["ledgerId"])
            if metadata is not None:
                one["metadata"] = ledger_text(metadata)
            one["underReplicated"] = await marks.read(one["ledgerId"]) is not None
    return found


def _with_times(members: dict[str, Any]) -> dict[str, Any]:
    """Times as texts; what has never happened is left out, as by Apache's brokers."""
    found = dict(members)
    for name in _TIMES:
        if name in found:
            at_ms = found.pop(name)
            if at_ms:
                found[name] = time_text(at_ms)
    return found


async def _metadata(ledgers: LedgerStore, ledger_id: int) -> LedgerMetadata | None:
    """None: the ledger was deleted a moment ago."""
    try:
        return (await ledgers.read(ledger_id)).metadata
    except NoNode:
        return None


def _of_metadata(ledger_id: int, metadata: LedgerMetadata | None, *, with_metadata: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ledgerId": ledger_id,
        "entries": _NOT_THERE if metadata is None else metadata.last_entry_id + 1,
        "size": _NOT_THERE if metadata is None else metadata.length,
        "offloaded": False,
        "underReplicated": False,
    }
    if with_metadata and metadata is not None:
        found["metadata"] = ledger_text(metadata)
    return found


async def _compacted(topic: Topic) -> dict[str, Any]:
    """The ledger that holds what compaction kept. Raises StorageUnavailable."""
    found = await topic.compactor.compacted()
    numbers = (_NOT_THERE,) * 3 if found is None else (found.ledger_id, found.entries, found.size_bytes)
    members = dict(zip(("ledgerId", "entries", "size"), numbers, strict=True))
    return {**members, "offloaded": False, "underReplicated": False}
