"""Recovery of a ledger: asks the bookies, writes back, changes the record. What the answers mean, recovery.py
decides."""

import asyncio
import logging
import random
from collections import deque
from typing import Final

from magnetar_core.bookkeeper.client.deciding.quorum import quorum_of
from magnetar_core.bookkeeper.client.deciding.recovery import Absent, Found, recovery_error
from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    DigestMismatch,
    MetadataUnavailable,
    RecoveryFailed,
)
from magnetar_core.bookkeeper.client.ledger_record import as_client_error
from magnetar_core.bookkeeper.client.reading.fetch import LedgerFetcher
from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, VersionConflict
from magnetar_core.bookkeeper.wire.entry import EntryCodec, master_key
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Entries read ahead. Each read goes to the whole write set, so this many of the largest entries times the write quorum
# must fit into memory. One round trip covers a window of what a pipelining writer had under way.
_WINDOW: Final = 16

# It begins with so many. Most ledgers end one entry behind the LAC: the first entry is found, the second is not, and a
# broker that takes over thousands of them would ask for thousands of entries that nobody wrote. So the first one that
# is found leads to no further read; from the second one on the window doubles.
_WINDOW_FIRST: Final = 2

# Clients that recover or re-replicate the same ledger at the same time cause conflicts; each conflict is one's
# progress.
_CONFLICTS_MAX: Final = 20


async def recover_ledger(
    ledger_id: int, versioned: Versioned, ledgers: LedgerStore, pool: ConnectionPool, rng: random.Random
) -> Versioned:
    """Fence the ledger, find its last entry, close it; return the closed record.

    May run at the same time as other recoveries of the ledger: one closes it, the others adopt the result.
    Raises RecoveryFailed (nothing was cut), Unauthorized, MetadataUnavailable, NoSuchLedger.
    """
    try:
        versioned = await _begin(ledger_id, versioned, ledgers)
        if versioned.metadata.is_closed:
            return versioned
        snapshot = versioned.metadata
        last, length, ensembles = await _find_end(ledger_id, versioned, ledgers, pool, rng)
        return await _seal(ledger_id, versioned, ledgers, snapshot, last, length, ensembles)
    except (MetadataError, Corruption) as error:
        if isinstance(error, DigestMismatch):
            raise recovery_error(ledger_id, "reading", error) from error
        raise as_client_error(error, ledger_id) from error


async def _begin(ledger_id: int, versioned: Versioned, ledgers: LedgerStore) -> Versioned:
    for _ in range(_CONFLICTS_MAX):
        if versioned.metadata.state is not LedgerState.OPEN:
            return versioned
        try:
            return await ledgers.write(ledger_id, versioned.metadata.in_recovery(), versioned.version)
        except VersionConflict:
            versioned = await ledgers.read(ledger_id)
    raise MetadataUnavailable(f"ledger {ledger_id}: {_CONFLICTS_MAX} conflicts in a row")


async def _find_end(
    ledger_id: int, versioned: Versioned, ledgers: LedgerStore, pool: ConnectionPool, rng: random.Random
) -> tuple[int, int, dict[int, tuple[str, ...]]]:
    """(last entry, length, ensembles to publish)."""
    metadata = versioned.metadata
    segment = metadata.last_segment
    key = master_key(metadata.password)
    fetcher = LedgerFetcher(
        ledger_id,
        quorum_of(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
        EntryCodec(metadata.digest_type, metadata.password),
        pool,
    )
    try:
        fenced = await fetcher.last_confirmed(segment.ensemble, segment.first_entry_id, key)
    except (BookKeeperError, DigestMismatch) as error:
        raise recovery_error(ledger_id, f"fencing {', '.join(segment.ensemble)}", error) from error
    floor = fenced.last_add_confirmed
    assert floor >= segment.first_entry_id - 1, "entries before the last segment are confirmed"

    writer = LedgerWriteHandle(ledger_id, versioned, ledgers, pool, rng, last_add_confirmed=floor, recovery=True)
    reads: deque[asyncio.Future[Found | Absent]] = deque()
    try:
        entry_id, window = floor, _WINDOW_FIRST
        entries = 0
        while True:
            while len(reads) < window:
                reads.append(fetcher.recovery_read(segment.ensemble, entry_id + len(reads) + 1, key))
            entry_id += 1
            try:
                verdict = await reads[0]
            except (BookKeeperError, DigestMismatch) as error:
                raise recovery_error(ledger_id, f"reading entry {entry_id}", error) from error
            reads.popleft()
            if isinstance(verdict, Absent):
                break
            entries += 1
            window = min(1 << entries, _WINDOW) if entries > 1 else 1
            entry = verdict.entry
            # A broker that takes over many ledgers writes all of their ends to a few bookies, over one connection each.
            await writer.until_writable()
            writer.set_length(entry.length - len(entry.payload))
            try:
                added = writer.append((entry.payload,))
                assert added == entry_id, "recovered entries continue the ledger"
                # Wait when half a window is unacknowledged: with a slow bookie a long tail would gather in memory.
                if writer.pending_count >= _WINDOW:
                    await writer.wait_for(added - _WINDOW // 2)
            except BookKeeperError as error:
                raise recovery_error(ledger_id, f"writing back entry {entry_id}", error) from error
        last = writer.last_add_pushed
        if last > floor:
            try:
                await writer.wait_for(last)
            except BookKeeperError as error:
                raise recovery_error(ledger_id, "writing back", error) from error
            length = writer.length
        else:
            length = await _length_at(metadata, last, fetcher, fenced.length)
        log.info("ledger %d: recovered, last entry %d (%d written back)", ledger_id, last, last - floor)
        return last, length, dict(writer.recovery_ensembles)
    finally:
        for read in reads:
            if not read.cancel():
                read.exception()
        await writer.abandon()


async def _length_at(metadata: LedgerMetadata, last: int, fetcher: LedgerFetcher, hint: int) -> int:
    """The ledger's length up to *last*, where nothing was written back. The hint belongs to a later entry, so it is
    used only if the entry cannot be read now."""
    if last < 0:
        return 0
    try:
        return (await fetcher.entry(metadata.ensemble_for(last), last)).length
    except (BookKeeperError, DigestMismatch) as error:
        log.warning("ledger %d: length taken from a later entry: %s", fetcher.ledger_id, error)
        return hint


async def _seal(
    ledger_id: int,
    versioned: Versioned,
    ledgers: LedgerStore,
    snapshot: LedgerMetadata,
    last: int,
    length: int,
    ensembles: dict[int, tuple[str, ...]],
) -> Versioned:
    for _ in range(_CONFLICTS_MAX):
        if versioned.metadata.is_closed:
            return versioned  # another recovery, or the writer itself, was first
        if versioned.metadata.last_segment != snapshot.last_segment:
            raise RecoveryFailed(f"ledger {ledger_id}: its last segment changed while it was recovered; try again")
        try:
            closed = versioned.metadata.closed(last, length, ensembles)
            return await ledgers.write(ledger_id, closed, versioned.version)
        except VersionConflict:
            versioned = await ledgers.read(ledger_id)
    raise MetadataUnavailable(f"ledger {ledger_id}: {_CONFLICTS_MAX} conflicts in a row")
