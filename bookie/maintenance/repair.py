"""The source of lost entries: the copies on other bookies. No IO."""

from collections.abc import Iterator
from typing import Protocol

from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.owners import owner_of
from magnetar_core.bookkeeper.wire.entry import EntryCodec, master_key
from magnetar_core.runtime.types import MagnetarError


class RepairUnavailable(MagnetarError):
    """No bookie that answered has the entry, and some that may have it did not answer."""


class RepairSource(Protocol):
    """Reads entries from other bookies."""

    async def read_entry(self, ledger_id: int, metadata: LedgerMetadata, entry_id: int) -> bytes | None:
        """The stored entry, with its digest checked; None if every other bookie of the write set denies it.

        Raises RepairUnavailable.
        """
        ...


def codec_of(metadata: LedgerMetadata) -> EntryCodec:
    """The codec that checks the ledger's entries. (Format 1 of the metadata has neither digest nor password.)"""
    return EntryCodec(metadata.digest_type, metadata.password)


def key_of(metadata: LedgerMetadata) -> bytes:
    """The master key of a ledger. Empty, which matches any key, if the metadata has no password."""
    return b"" if metadata.format_version == 1 else master_key(metadata.password)


def write_set(metadata: LedgerMetadata, entry_id: int) -> tuple[str, ...]:
    """The bookies that hold an entry, in the order in which readers ask them."""
    ensemble = metadata.ensemble_for(entry_id)
    return tuple(ensemble[(entry_id + at) % len(ensemble)] for at in range(metadata.write_quorum))


def expected_entries(metadata: LedgerMetadata, bookie_id: str) -> Iterator[int]:
    """Every entry that *bookie_id* must hold, ascending. Of an open ledger only those before its last segment, since
    they are final."""
    for segment in metadata.segments:
        if bookie_id not in segment.ensemble:
            continue
        position = segment.ensemble.index(bookie_id)
        count, end = len(segment.ensemble), metadata.segment_end(segment.first_entry_id)
        if metadata.is_closed:
            last = metadata.last_entry_id if end is None else min(end - 1, metadata.last_entry_id)
        elif end is not None:
            last = end - 1
        else:
            continue
        for entry_id in range(segment.first_entry_id, last + 1):
            if (position - entry_id) % count < metadata.write_quorum:
                yield entry_id


def whose(metadata: LedgerMetadata) -> str:
    """The owner of a ledger, for the log and reports."""
    return owner_of(metadata) or "its owner is not known"


def loss_text(metadata: LedgerMetadata, entries: int, why: str) -> str:
    """What the log and a report say of entries that no bookie has: whose, how many, and *why* they are not here."""
    return f"{whose(metadata)}: {entries} entries are lost, {why}, and no other bookie has them"
