"""The digests of ledgers for an online rebuild, read from metadata and cached."""

import logging
from typing import Final

from bookie.maintenance.repair import codec_of
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, NoNode
from magnetar_core.bookkeeper.wire.entry import EntryCodec
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Ledgers whose digests are cached. Few are enough: the entries of each flush are sorted by ledger.
CODECS_MAX: Final = 1_000


class LedgerCodecs:
    """Used on the loop."""

    def __init__(self, metadata: LedgerStore) -> None:
        self._metadata = metadata
        self._cached: dict[int, EntryCodec | None] = {}

    def __len__(self) -> int:
        """Ledgers that are cached."""
        return len(self._cached)

    def clear(self) -> None:
        self._cached.clear()

    async def codec(self, ledger_id: int) -> EntryCodec | None:
        """The codec that checks the ledger's entries; None if metadata does not have the digest. Does not raise: the
        rebuild must not depend on the metadata store."""
        if ledger_id not in self._cached:
            # All at once, not the oldest: then no order of use has to be kept, and a miss is one read of metadata.
            if len(self._cached) >= CODECS_MAX:
                self._cached.clear()
            self._cached[ledger_id] = await self._read(ledger_id)
        return self._cached[ledger_id]

    async def _read(self, ledger_id: int) -> EntryCodec | None:
        """The codec that the ledger's record names; None: its entries cannot be checked by a digest."""
        try:
            metadata = (await self._metadata.read(ledger_id)).metadata
            if metadata.format_version > 1:  # format 1 has neither digest nor password
                return codec_of(metadata)
        except NoNode:
            pass
        except (MetadataError, Corruption) as error:
            log.warning("ledger %d is corrected without its digest: %s", ledger_id, error)
        return None
