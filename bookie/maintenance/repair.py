"""Where a bookie gets back what it lost: the other copies of a ledger's entries."""

from collections.abc import Iterator
from typing import Protocol

from magnetar_core.bookkeeper.metadata.ledgers import LedgerMetadata
from magnetar_core.bookkeeper.wire.entry import EntryCodec, master_key
from magnetar_core.runtime.types import MagnetarError


class RepairUnavailable(MagnetarError):
    """Not all who may have an entry answered, and none of those who did has it."""


class RepairSource(Protocol):
    """Reads entries from other bookies."""

    async def read_entry(self, ledger_id: int, metadata: LedgerMetadata, entry_id: int) -> bytes | None:
        """The stored entry, its digest checked; None if every other bookie that may have it says that it does not.

        Raises RepairUnavailable.
        """
        ...


def codec_of(metadata: LedgerMetadata) -> EntryCodec:
    """What checks the entries of a ledger. (Format 1 of the metadata names neither digest nor password.)"""
    return EntryCodec(metadata.digest_type, metadata.password)


def key_of(metadata: LedgerMetadata) -> bytes:
    """The master key of a ledger; empty (any will do) where metadata does not tell the password."""
    return b"" if metadata.format_version == 1 else master_key(metadata.password)


def write_set(metadata: LedgerMetadata, entry_id: int) -> tuple[str, ...]:
    """The bookies that hold an entry, in the order in which readers ask them."""
    ensemble = metadata.ensemble_for(entry_id)
    return tuple(ensemble[(entry_id + at) % len(ensemble)] for at in range(metadata.write_quorum))


def expected_entries(metadata: LedgerMetadata, bookie_id: str) -> Iterator[int]:
    """Every entry that *bookie_id* holds, rising; of an open ledger those before its last segment, which are fixed."""
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
