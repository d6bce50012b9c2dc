"""One node of the metadata store that has one author at a time."""

from magnetar.bookkeeper.metadata.store import NO_NODE, MetadataStore, OutcomeUnknown, StoreUnavailable, VersionConflict
from managed_ledger.errors import ManagedLedgerFenced, StorageUnavailable


class VersionedRecord:
    """Reads and compare-and-sets one node, remembering its version.

    A conflict means that another owner wrote the node: `ManagedLedgerFenced`. A write whose outcome is unknown is
    decided by reading again: the value that we meant to write, at the version that it would have, is our own
    success (correctness I56).
    """

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._store = store
        self.path = path
        self.version = NO_NODE

    async def read(self) -> bytes | None:
        """The value, None if there is no such node. Raises StorageUnavailable."""
        try:
            node = await self._store.get(self.path)
        except StoreUnavailable as error:
            raise StorageUnavailable(f"cannot read {self.path}: {error}") from error
        self.version = NO_NODE if node is None else node.version
        return None if node is None else node.value

    async def write(self, value: bytes) -> None:
        """Replace (or create) the node. Raises ManagedLedgerFenced, StorageUnavailable (nothing was changed)."""
        try:
            self.version = await self._store.put(self.path, value, self.version)
        except VersionConflict as error:
            raise ManagedLedgerFenced(f"{self.path} was changed by another owner") from error
        except OutcomeUnknown as error:
            await self._decide(value, error)
        except StoreUnavailable as error:
            raise StorageUnavailable(f"cannot write {self.path}: {error}") from error

    async def _decide(self, value: bytes, cause: OutcomeUnknown) -> None:
        expected = self.version
        found = await self.read()
        if found == value and self.version == expected + 1:
            return
        if self.version == expected:
            raise StorageUnavailable(f"cannot write {self.path}: {cause}") from cause
        raise ManagedLedgerFenced(f"{self.path} was changed by another owner") from cause

    async def delete(self) -> None:
        """Remove the node; no error if it is gone."""
        try:
            if await self._store.exists(self.path):
                await self._store.delete(self.path)
        except StoreUnavailable as error:
            raise StorageUnavailable(f"cannot delete {self.path}: {error}") from error
