"""One node of the metadata store that one owner at a time writes."""

import logging
from typing import Final

from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    MetadataError,
    MetadataStore,
    Node,
    NoNode,
    OutcomeUnknown,
    VersionConflict,
    WentBack,
)
from managed_ledger.errors import ManagedLedgerFenced, MetadataWentBack, RecordInDoubt, StorageUnavailable

log = logging.getLogger(__name__)

# How often a change is sent if its answers are lost; each try lasts as long as the request time-out of the store.
TRIES_MAX: Final = 3


class VersionedRecord:
    """Reads and compare-and-sets one node, remembering its version.

    A conflict means that another owner wrote the node: `ManagedLedgerFenced`. Versions of a node only grow, so one that
    is lower than ours means that old metadata were put back: `MetadataWentBack`, unless the node was made anew. A
    change whose outcome is unknown is sent again, which decides it while the node has the old version (reading would
    not: the first copy may still be on its way). If the node has moved on to a value that we meant to write, at the
    version that it would have, it was our own change (I56). Where the doubt remains, `RecordInDoubt` is raised; the
    next change settles it.
    """

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._store = store
        self.path = path
        self.version = NO_NODE
        self._created_ms: int | None = None  # of the node in that version; None: it is not known
        # Values sent with `version` as the expected one, of which it is unknown whether they were written.
        self._doubtful: list[bytes] = []

    async def read(self) -> bytes | None:
        """The value, None if there is no such node. Raises StorageUnavailable."""
        try:
            node = await self._store.get(self.path)
        except MetadataError as error:
            raise StorageUnavailable(f"cannot read {self.path}: {error}") from error
        self.version = NO_NODE if node is None else node.version
        self._created_ms = None if node is None else node.created_ms
        self._doubtful.clear()
        return None if node is None else node.value

    async def write(self, value: bytes) -> None:
        """Replace (or create) the node.

        Raises ManagedLedgerFenced; StorageUnavailable (nothing was changed) and its subclass RecordInDoubt.
        """
        cause: MetadataError | None = None
        for _ in range(TRIES_MAX):
            try:
                self.version = await self._store.put(self.path, value, self.version)
            except VersionConflict as error:
                if await self._adopt_own_value(error) == value:
                    return
                continue
            except OutcomeUnknown as error:
                self._doubtful.append(value)
                cause = error
                continue
            except MetadataError as error:
                raise self._unavailable("write", error) from error
            self._doubtful.clear()
            return
        assert cause is not None, "without a lost answer the loop has returned or raised"
        raise self._unavailable("write", cause) from cause

    async def check_unchanged(self) -> None:
        """Ask whether somebody else wrote the node, or made it anew: then it may have our version again, since versions
        begin at 0, and a write would replace what is not ours. Raises ManagedLedgerFenced, StorageUnavailable."""
        try:
            node = await self._store.get(self.path)
        except MetadataError as error:
            raise StorageUnavailable(f"cannot read {self.path}: {error}") from error
        version = NO_NODE if node is None else node.version
        if node is not None and self._created_ms is not None and node.created_ms != self._created_ms:
            raise ManagedLedgerFenced(f"{self.path} was deleted and made anew by another owner")
        if version == self.version or (
            node is not None and version == self.version + 1 and node.value in self._doubtful
        ):
            return
        raise self._changed(node)

    async def delete(self) -> None:
        """Remove the node as it was last read or written; no error if it is gone.

        Raises ManagedLedgerFenced, StorageUnavailable.
        """
        cause: MetadataError | None = None
        for _ in range(TRIES_MAX):
            if self.version == NO_NODE and not self._doubtful:
                return
            try:
                await self._store.delete(self.path, self.version)
            except NoNode:
                pass
            except VersionConflict as error:
                await self._adopt_own_value(error)
                continue
            except OutcomeUnknown as error:
                cause = error
                continue
            except MetadataError as error:
                raise self._unavailable("delete", error) from error
            self.version = NO_NODE
            self._doubtful.clear()
            return
        assert cause is not None, "without a lost answer the loop has returned or raised"
        raise self._unavailable("delete", cause) from cause

    async def _adopt_own_value(self, conflict: VersionConflict) -> bytes:
        """Take the node's value for our own change if we may have written it, with its version; returns the value.

        Raises ManagedLedgerFenced, RecordInDoubt.
        """
        try:
            node = await self._store.get(self.path)
        except MetadataError as error:
            if not self._doubtful:
                raise ManagedLedgerFenced(f"{self.path} was changed by another owner") from conflict
            raise self._unavailable("read", error) from error
        if node is None or node.version != self.version + 1 or node.value not in self._doubtful:
            raise self._changed(node) from conflict
        self.version = node.version
        self._doubtful.clear()
        return node.value

    def _changed(self, node: Node | None) -> ManagedLedgerFenced:
        """Why *node* is not in our version."""
        if node is None and self.version != NO_NODE:
            return ManagedLedgerFenced(
                f"{self.path} is gone, and was in version {self.version}: another owner deleted it, or the metadata "
                "store went back in time"
            )
        if node is None or node.version >= self.version:
            return ManagedLedgerFenced(f"{self.path} was changed by another owner")
        versions = f"it is in version {node.version}, and was in version {self.version}"
        if self._created_ms is None:  # made here
            return ManagedLedgerFenced(
                f"{self.path}: {versions}: another owner made it anew, or the metadata store went back in time"
            )
        if node.created_ms > self._created_ms:
            return ManagedLedgerFenced(f"{self.path} was deleted and made anew by another owner")
        problem = WentBack(
            f"the metadata store went back in time: {self.path}: {versions}. See docs/production.md, Metadata that are "
            "older than the ledgers"
        )
        log.error("%s", problem)
        return MetadataWentBack(str(problem))

    def _unavailable(self, doing: str, error: MetadataError) -> StorageUnavailable:
        if self._doubtful:
            return RecordInDoubt(f"cannot {doing} {self.path}, and do not know what it holds: {error}")
        return StorageUnavailable(f"cannot {doing} {self.path}: {error}")
