"""The handle of a ledger that is read: which entries may be read, and how far the ledger is confirmed."""

import asyncio
import contextlib
from typing import Final

from magnetar_core.bookkeeper.client.deciding.quorum import quorum_of
from magnetar_core.bookkeeper.client.errors import BeyondLastConfirmed, BookKeeperError, DigestMismatch, EndUnknown
from magnetar_core.bookkeeper.client.ledger_record import as_client_error
from magnetar_core.bookkeeper.client.reading.fetch import LedgerFetcher
from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.bookkeeper.wire.entry import EntryCodec, StoredEntry
from magnetar_core.runtime.types import Corruption

# Entries behind LAC that `last_recoverable_entry` asks for at the same time.
_HELD_WINDOW: Final = 16


class LedgerReadHandle:
    """A ledger that is read. Made by `BookKeeper.open_ledger`.

    Its LAC never goes back. While the ledger is open it is the highest LAC seen at a bookie; once the record says
    closed, only the record counts (I8).
    """

    def __init__(
        self,
        ledger_id: int,
        versioned: Versioned,
        ledgers: LedgerStore,
        pool: ConnectionPool,
        last_add_confirmed: int,
        length: int,
    ) -> None:
        metadata = versioned.metadata
        self.ledger_id = ledger_id
        self._versioned = versioned
        self._ledgers = ledgers
        self.last_add_confirmed = last_add_confirmed
        """The last entry that may be read. For an open ledger: the LAC when it was last asked for."""
        self.length = length
        """Payload bytes. For an open ledger: up to the LAC when it was last asked for."""
        self._frame_bytes_max = pool.config.frame_bytes_max
        self._fetcher = LedgerFetcher(
            ledger_id,
            quorum_of(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
            EntryCodec(metadata.digest_type, metadata.password),
            pool,
        )

    @property
    def metadata(self) -> LedgerMetadata:
        return self._versioned.metadata

    @property
    def is_closed(self) -> bool:
        return self.metadata.is_closed

    async def read(self, first: int, last: int) -> list[StoredEntry]:
        """The entries *first* … *last*, both included.

        Raises BeyondLastConfirmed, or the error with which reading failed on every replica (NoSuchEntry only if no
        replica had another error).
        """
        self._check(first, last)
        return await self.read_unconfirmed(first, last)

    async def read_unconfirmed(self, first: int, last: int) -> list[StoredEntry]:
        """As `read`, without the check that the entries are confirmed. An unconfirmed entry may not be part of the
        ledger in the end."""
        if not 0 <= first <= last:
            raise ValueError(f"entries {first} to {last}")
        entries: list[StoredEntry] = []
        while first <= last:
            run = await self._run(first, last - first + 1, self._frame_bytes_max)
            entries += run
            first += len(run)
        return entries

    async def read_batch(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        """A contiguous run of entries that begins with *first*.

        At least one entry, at most *max_count*, and about *max_bytes* (the first entry may be larger). The run may be
        shorter than asked for. Raises as `read`.
        """
        if max_count < 1:
            raise ValueError(f"{max_count} entries")
        self._check(first, first)
        return await self._run(first, min(max_count, self.last_add_confirmed - first + 1), max_bytes)

    async def read_batch_unconfirmed(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        """As `read_batch`, without the check that the entries are confirmed: for a caller that knows it already, as the
        ledger's writer does."""
        if max_count < 1 or first < 0:
            raise ValueError(f"{max_count} entries from {first} on")
        return await self._run(first, max_count, max_bytes)

    async def read_last_confirmed(self) -> int:
        """Ask the record and the bookies how far the ledger is confirmed, without fencing. Never goes back.

        A writer sends its LAC with the next entry. So the last entry of an open ledger becomes visible only when
        another one follows or the ledger is closed (see `last_recoverable_entry`).
        """
        await self._refresh()
        if not self.is_closed:
            segment = self.metadata.last_segment
            confirmed = await self._fetcher.last_confirmed(segment.ensemble, segment.first_entry_id)
            if confirmed.last_add_confirmed > self.last_add_confirmed:
                self.last_add_confirmed = confirmed.last_add_confirmed
                self.length = confirmed.length
        return self.last_add_confirmed

    async def last_recoverable_entry(self, *, is_certain: bool = False) -> int:
        """The last entry that a recovery would find now, with no gap between it and LAC. Does not fence.
        *is_certain*: the last one that every recovery will find, whichever bookies answer it.

        Raises EndUnknown, which names the entry, if too few bookies answer.

        Why the entry may be read although no LAC covers it: a recovery takes an entry as absent only after
        Qw - Qa + 1 bookies of its write set denied it. While Qa bookies hold the entry, at most Qw - Qa can deny it,
        so every recovery finds it and makes it and all entries before it part of the ledger. The writer has
        acknowledged the entry, or is about to. There is one exception: a writer that closes the ledger while answers
        for the entry are still under way seals the ledger before the entry, which was never acknowledged.

        If bookies are silent, an entry that one of the others holds may have been acknowledged, and an acknowledged
        entry must never be left out. So it counts as well, as it would for a recovery now. If it was not
        acknowledged, the writer is copying it to another bookie, or a later recovery may find it denied.

        This does not move `last_add_confirmed`: read such entries with `read_unconfirmed`.
        """
        last = await self.read_last_confirmed()
        if self.is_closed:
            return last
        while True:
            wanted = range(last + 1, last + 1 + _HELD_WINDOW)
            held = await asyncio.gather(
                *(
                    self._fetcher.is_held(self.metadata.ensemble_for(entry_id), entry_id, is_certain=is_certain)
                    for entry_id in wanted
                ),
                return_exceptions=True,
            )
            for verdict in held:
                if isinstance(verdict, BookKeeperError | DigestMismatch):
                    raise EndUnknown(
                        f"whether ledger {self.ledger_id} has entries after {last} is not known: {verdict}", last
                    ) from verdict
                if isinstance(verdict, BaseException):
                    raise verdict
                if not verdict:
                    return last
                last += 1

    async def close(self) -> None:
        """Does nothing: a reader holds no resources. It is here so that both kinds of handles are used alike."""

    def _check(self, first: int, last: int) -> None:
        if not 0 <= first <= last:
            raise ValueError(f"entries {first} to {last}")
        if last > self.last_add_confirmed:
            raise BeyondLastConfirmed(
                f"ledger {self.ledger_id}: entry {last} is behind the last confirmed one, {self.last_add_confirmed}"
            )

    async def _run(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        """A run within one segment. If every replica fails, read the record again and try the bookies it names now:
        re-replication may have copied the segment to others."""
        try:
            return await self._run_once(first, max_count, max_bytes)
        except (BookKeeperError, DigestMismatch):
            before = self.metadata.segments
            with contextlib.suppress(BookKeeperError):
                await self._refresh()
            if self.metadata.segments == before:
                raise
        return await self._run_once(first, max_count, max_bytes)

    async def _run_once(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        segment = self.metadata.segment_for(first)
        end = self.metadata.segment_end(segment.first_entry_id)
        if end is not None:
            max_count = min(max_count, end - first)
        return await self._fetcher.run(segment.ensemble, first, max_count, max_bytes)

    async def _refresh(self) -> None:
        try:
            self._versioned = await self._ledgers.read(self.ledger_id)
        except (MetadataError, Corruption) as error:
            raise as_client_error(error, self.ledger_id) from error
        if self.is_closed:
            # From here on only the record counts, and no bookie's LAC (I8).
            self.last_add_confirmed = self.metadata.last_entry_id
            self.length = self.metadata.length
