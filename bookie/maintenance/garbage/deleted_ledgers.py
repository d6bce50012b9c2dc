"""Ledgers that were deleted from the cluster: found by a listing and a read of each one's record, then removed here.

    local ids ──▶ listing ──▶ in doubt? (`older_metadata`) ──▶ point reads ──▶ quarantine ──▶ removed

`rules.py` decides which ledgers count as deleted.
"""

from collections.abc import Callable

from bookie.maintenance.garbage.ledger_removal import LedgerRemoval
from bookie.maintenance.garbage.metadata_reads import MetadataReads
from bookie.maintenance.garbage.rules import ListingLimits, Quarantine, Refusal, refuse_listing, refuse_newer
from bookie.maintenance.older_metadata.watch import OlderMetadata
from bookie.storage.ledgers import Ledgers
from magnetar_core.bookkeeper.metadata.stores.store import NoNode
from magnetar_core.runtime.types import Corruption


class DeletedLedgers:
    """Removes ledgers that the metadata store does not have any more. Used on the loop, by one round at a time."""

    def __init__(
        self,
        ledgers: Ledgers,
        reads: MetadataReads,
        removal: LedgerRemoval,
        limits: ListingLimits,
        older: OlderMetadata,
    ) -> None:
        self._ledgers = ledgers
        self._reads = reads
        self._removal = removal
        self._older = older
        self._limits = limits
        self._listed_before: int | None = None
        """Ledgers in the last accepted listing."""
        self.quarantine = Quarantine()
        self.listed: int | None = None
        """Ledgers in the last listing."""
        self.removed = 0
        """Ledgers removed since the start."""

    async def collect(self, accept_listing: bool, enter: Callable[[str], None]) -> Refusal | None:
        """Find and remove deleted ledgers. Returns why the listing was refused, or None.

        *enter(phase)* is called at the beginning of each phase. Raises MetadataError, OSError, Stopped.
        """
        enter("listing")
        unlisted = {ledger.ledger_id for ledger in self._ledgers}
        local = len(unlisted)
        listed, newest = 0, -1
        async for ledger_id in self._reads.store.list():
            unlisted.discard(ledger_id)
            listed, newest = listed + 1, ledger_id
            self._reads.check_stop()
        self.listed = listed
        if unlisted or self._older.is_open:
            await self._older.check()
            unlisted -= self._older.doubts
        if not accept_listing:
            refusal = refuse_listing(local, len(unlisted), listed, self._listed_before, self._limits)
            refusal = refusal or refuse_newer(unlisted, newest, self._limits)
            if refusal is not None:
                return refusal
        self._listed_before = listed
        enter("verifying")
        absent = []
        for number, ledger_id in enumerate(self.quarantine.candidates(unlisted)):
            await self._reads.wait(number)
            try:
                await self._reads.store.read(ledger_id)
            except NoNode:
                absent.append(ledger_id)
            except Corruption as error:
                self._reads.note_damaged(ledger_id, error)
        enter("deleting")
        gone = self.quarantine.confirm(absent, unlisted)
        assert unlisted.issuperset(gone), "only what was not listed may go"
        removed, postponed = await self._removal.remove(gone, with_tombstones=True)
        self.quarantine.postpone(postponed)
        self.removed += removed
        return None
