"""Reads the digests of ledgers from metadata, for a thread that may block."""

import asyncio
import logging
from typing import Final

from bookie.maintenance.rebuild.digest_check import Digest
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, NoNode
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# After so many failures in a row the store is not asked any more: each may take a session's time-out.
_FAILURES_MAX: Final = 3


class MetadataDigests:
    """`digest_of` for a rebuild. Made on the loop, called on another thread."""

    def __init__(self, metadata: LedgerStore) -> None:
        self._metadata = metadata
        self._loop = asyncio.get_running_loop()
        self._failures = 0

    def __call__(self, ledger_id: int) -> Digest | None:
        """The digest of a ledger. None if metadata does not have it: the ledger was deleted, or its record is damaged
        or of format 1."""
        if self._failures >= _FAILURES_MAX:
            return None
        try:
            record = asyncio.run_coroutine_threadsafe(self._metadata.read(ledger_id), self._loop).result()
        except NoNode:
            return None
        except Corruption as error:
            log.warning("ledger %d is indexed without its digest: %s", ledger_id, error)
            return None
        except MetadataError as error:
            self._failures += 1
            log.warning("ledger %d is indexed without its digest: %s", ledger_id, error)
            if self._failures == _FAILURES_MAX:
                log.warning("metadata does not answer: what it would tell is done without from here on")
            return None
        self._failures = 0
        metadata = record.metadata
        return None if metadata.format_version == 1 else (metadata.digest_type, metadata.password)
