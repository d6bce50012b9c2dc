"""Reads of ledgers' metadata for garbage collection, at a limited rate. Errors and damaged records prove nothing."""

import logging
from collections.abc import Callable

from bookie.maintenance.garbage.compaction import Stopped
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.rate_limiter import RateLimiter

log = logging.getLogger(__name__)

# Metadata reads between two checks of the rate.
READS_PER_TURN = 50


class MetadataReads:
    """The metadata reads of all parts of garbage collection. Used on the loop."""

    def __init__(self, store: LedgerStore, clock: Clock, per_second: float, is_stopping: Callable[[], bool]) -> None:
        self.store = store
        self._clock = clock
        self._limiter = RateLimiter(per_second)
        self._is_stopping = is_stopping
        self.unreadable: set[int] = set()
        """Ledgers whose record is damaged."""

    def check_stop(self) -> None:
        """Raises Stopped when the bookie stops."""
        if self._is_stopping():
            raise Stopped

    async def wait(self, number: int) -> None:
        """Call before the *number*th read of a series: waits if the reads are too fast. Raises Stopped."""
        self.check_stop()
        if number % READS_PER_TURN == 0:
            await self._clock.sleep(max(self._limiter.spend(self._clock.monotonic(), READS_PER_TURN) - 1, 0))

    def note_damaged(self, ledger_id: int, error: Exception) -> None:
        """A record is damaged, which proves nothing: the ledger stays."""
        if ledger_id not in self.unreadable:
            log.error("ledger %d stays, its metadata cannot be read: %s", ledger_id, error)
        self.unreadable.add(ledger_id)
