"""Removes a state log for good: its ledgers, then everything below its root."""

from typing import Final

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchLedger
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore, NoNode
from magnetar_core.runtime.types import Corruption
from managed_ledger.state_log.errors import LogUnavailable
from managed_ledger.state_log.log.list_record import list_path, read_list

# Below the root: the list, the leader's node, the nodes of members.
_LEVELS: Final = 2
_LIST: Final = list_path("").strip("/")


async def remove_log(store: MetadataStore, bookkeeper: BookKeeper, root: str) -> None:
    """Remove the log, if there is one. A removal that was cut off can be repeated: the list goes last.

    Nodes that still have this log stop with LogDamaged once another log stands at *root*. A list that cannot be
    understood is removed, its ledgers stay. Raises LogUnavailable.
    """
    try:
        try:
            listed = await read_list(store, root)
        except Corruption:
            listed = None
        for ledger_id in [] if listed is None else [*(ledger.ledger_id for ledger in listed.ledgers), *listed.leaving]:
            try:
                await bookkeeper.delete_ledger(ledger_id)
            except NoSuchLedger:
                continue
        await _remove(store, root, _LEVELS)
    except (MetadataError, BookKeeperError) as error:
        raise LogUnavailable(f"{list_path(root)} cannot be removed: {error}") from error


async def _remove(store: MetadataStore, path: str, levels: int) -> None:
    """Delete a node and its children, so many *levels* deep. The list of the log goes last."""
    try:
        if levels:
            for child in sorted(await store.children(path), key=lambda name: name == _LIST):
                await _remove(store, f"{path}/{child}", levels - 1)
        await store.delete(path)
    except NoNode:
        return
