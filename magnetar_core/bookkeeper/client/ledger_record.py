"""The metadata record of a ledger, as the client that writes the ledger changes it."""

from collections.abc import Callable
from typing import Final

from magnetar_core.bookkeeper.client.deciding.writer import judge_conflict
from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
)
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, NoNode, VersionConflict, WentBack

# Conflicts of one update. Only re-replication of older segments causes conflicts, and each one was progress for it.
_CONFLICTS_MAX: Final = 20


def as_client_error(error: Exception, ledger_id: int) -> BookKeeperError:
    """What a user of a ledger gets for an error of the metadata store."""
    if isinstance(error, BookKeeperError):
        return error
    if isinstance(error, NoNode):
        return NoSuchLedger(f"ledger {ledger_id} does not exist")
    return MetadataUnavailable(f"ledger {ledger_id}: {error}")


class LedgerRecord:
    """The record of one open ledger, with the version it was read or written at.

    Both updates compare and swap; after a conflict the record is read again, judged, and the update repeated. The
    caller makes one update at a time.
    """

    __slots__ = ("_attempted", "_ledger_id", "_ledgers", "_versioned")

    def __init__(self, ledger_id: int, versioned: Versioned, ledgers: LedgerStore) -> None:
        self._ledger_id = ledger_id
        self._versioned = versioned
        self._ledgers = ledgers
        # The segment written last. Found in the store after a conflict, it is our own write whose answer was lost.
        self._attempted: LedgerMetadata | None = None

    @property
    def metadata(self) -> LedgerMetadata:
        return self._versioned.metadata

    async def add_segment(self, first_entry_id: int, ensemble: tuple[str, ...]) -> None:
        """From *first_entry_id* on, entries are on *ensemble*.

        Raises LedgerFenced or LedgerClosed if another client took the ledger over, MetadataUnavailable after too
        many conflicts, MetadataError if the store fails.
        """
        for _ in range(_CONFLICTS_MAX):
            own, version = self._versioned.metadata, self._versioned.version
            assert first_entry_id >= own.last_segment.first_entry_id, "a segment cannot begin before the last one"
            self._attempted = own.with_ensemble(first_entry_id, ensemble)
            try:
                self._versioned = await self._ledgers.write(self._ledger_id, self._attempted, version)
                return
            except VersionConflict:
                current = await self._read()
                judge_conflict(own, current.metadata, self._ledger_id)
                self._versioned = current
        raise self._too_many_conflicts()

    async def seal(self, last_entry_id: int, length: int) -> None:
        """Close the ledger at *last_entry_id* (-1: empty), with *length* payload bytes. Nothing to do if it is closed.

        Raises MetadataConflict if another client closed it elsewhere, LedgerFenced if one recovers it now,
        MetadataUnavailable after too many conflicts, MetadataError if the store fails.
        """
        assert last_entry_id >= -1
        assert length >= 0
        for _ in range(_CONFLICTS_MAX):
            own, version = self._versioned.metadata, self._versioned.version
            if own.is_closed:
                return
            try:
                sealed = own.closed(last_entry_id, length)
                self._versioned = await self._ledgers.write(self._ledger_id, sealed, version)
                return
            except VersionConflict:
                current = await self._read()
                if current.metadata.state is LedgerState.CLOSED:
                    if (current.metadata.last_entry_id, current.metadata.length) != (last_entry_id, length):
                        raise MetadataConflict(
                            f"ledger {self._ledger_id} was closed by another client at entry "
                            f"{current.metadata.last_entry_id}, here the last one is {last_entry_id}"
                        ) from None
                elif current.metadata != self._attempted:
                    judge_conflict(own, current.metadata, self._ledger_id)
                self._versioned = current
        raise self._too_many_conflicts()

    def watch(self, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after the record was written, by whomever, or deleted."""
        return self._ledgers.watch(self._ledger_id, changed)

    async def check(self, *, synced: bool) -> bool:
        """Read the record; True: somebody else has written it. *synced*: also where our server is behind the others.

        Raises LedgerFenced or LedgerClosed if another client took the ledger over, MetadataError if the store fails
        or has no such record.
        """
        if synced:
            await self._ledgers.sync()
        current = await self._read()
        if current.version == self._versioned.version:
            return False
        judge_conflict(self._versioned.metadata, current.metadata, self._ledger_id)
        self._versioned = current
        return True

    async def _read(self) -> Versioned:
        """The record as it is now. Raises WentBack for one that is older than ours: nothing may be decided from it."""
        current = await self._ledgers.read(self._ledger_id)
        if current.version < self._versioned.version:
            raise WentBack(
                f"the metadata store went back in time: the record of ledger {self._ledger_id} is in version "
                f"{current.version}, and was in version {self._versioned.version}"
            )
        return current

    def _too_many_conflicts(self) -> MetadataUnavailable:
        return MetadataUnavailable(f"ledger {self._ledger_id}: {_CONFLICTS_MAX} conflicts in a row")
