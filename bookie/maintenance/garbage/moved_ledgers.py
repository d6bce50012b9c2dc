"""Removes copies that moved to other bookies: closed ledgers whose metadata does not name this bookie.

Rule: such a copy is removed only if the ledger is closed, its replication lock is free, it has no replication mark, its
metadata is the same as in the pass before, and nothing was written to it here in between (I41).
"""

from bookie.maintenance.garbage.ledger_removal import LedgerRemoval
from bookie.maintenance.garbage.metadata_reads import MetadataReads
from bookie.maintenance.garbage.rules import MovedCopies
from bookie.storage.ledgers import Ledgers
from magnetar_core.bookkeeper.metadata.marks import underreplication
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, MetadataStore, NoNode, VersionConflict
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Corruption


class MovedLedgers:
    """Removes copies that are on other bookies now. Used on the loop, by one round at a time."""

    def __init__(
        self,
        bookie_id: str,
        store: MetadataStore,
        root: str,
        ledgers: Ledgers,
        reads: MetadataReads,
        removal: LedgerRemoval,
        clock: Clock,
        interval_s: float,
    ) -> None:
        """*interval_s*: time between two passes; 0: never."""
        self._bookie_id = bookie_id
        self._store = store
        self._root = root
        self._ledgers = ledgers
        self._reads = reads
        self._removal = removal
        self._clock = clock
        self._interval_s = interval_s
        self._began_s = clock.monotonic()
        self._copies = MovedCopies()
        self.removed = 0
        """Ledgers removed since the start."""

    @property
    def is_due(self) -> bool:
        return 0 < self._interval_s <= self._clock.monotonic() - self._began_s

    async def collect(self) -> None:
        """One pass. Raises MetadataError, OSError, Stopped."""
        self._began_s = self._clock.monotonic()
        self._copies.begin()
        for number, ledger in enumerate(list(self._ledgers)):
            await self._reads.wait(number)
            ledger_id = ledger.ledger_id
            try:
                record = await self._reads.store.read(ledger_id)
            except NoNode:
                continue  # deleted: `deleted_ledgers` handles it
            except Corruption as error:
                self._reads.note_damaged(ledger_id, error)
                continue
            if not record.metadata.is_closed or self._bookie_id in record.metadata.bookies():
                continue
            if self._copies.may_go(ledger_id, record.version, was_written=ledger.is_key_journaled):
                await self._remove(ledger_id, record.version)
            else:
                # The next add journals the key again. So the next pass sees whether there was an add.
                ledger.is_key_journaled = False

    async def _remove(self, ledger_id: int, version: int) -> None:
        lock = underreplication.lock_path(self._root, ledger_id)
        try:
            await self._store.put(lock, underreplication.lock_value(self._bookie_id), NO_NODE, ephemeral=True)
        except VersionConflict:
            return  # it is being re-replicated
        try:
            mark = underreplication.mark_path(self._root, ledger_id)
            ledger = self._ledgers.get(ledger_id)
            if ledger is None or ledger.is_key_journaled or await self._store.exists(mark):
                return
            try:
                if (await self._reads.store.read(ledger_id)).version != version:
                    return
            except NoNode:
                return
            # Without a tombstone: the ledger may be copied back here later.
            removed, _ = await self._removal.remove([ledger_id], with_tombstones=False)
            self.removed += removed
        finally:
            await self._store.delete(lock)
