"""Removes ledgers from a bookie, between two flushes.

A ledger with entries in the write cache, or with a fence under way, waits for another round: a flush after the removal
would create it again (I45).
"""

import logging
from collections.abc import Sequence
from functools import partial

from bookie.jobs import JobThread
from bookie.serving.request_rules import RequestRules
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.ledgers import Ledger
from bookie.storage.write_cache import WriteCache
from magnetar_core.runtime.clock import Clock

log = logging.getLogger(__name__)

# Ledgers that are deleted in one job of the flusher.
_DELETE_LEDGERS = 1_000


class LedgerRemoval:
    """Removes ledgers from memory, caches and index. Used on the loop."""

    def __init__(
        self,
        bookie_id: str,
        storage: LedgerStorage,
        rules: RequestRules,
        cache: WriteCache,
        flusher: JobThread,
        clock: Clock,
    ) -> None:
        self._bookie_id = bookie_id
        self._storage = storage
        self._ledgers = rules.ledgers
        self._read_cache = rules.read_cache
        self._cache = cache
        self._flusher = flusher
        self._clock = clock

    async def remove(self, ledger_ids: Sequence[int], *, with_tombstones: bool) -> tuple[int, list[int]]:
        """Remove ledgers here. Returns (number removed, those that must wait). Raises OSError.

        *with_tombstones*: remember fences, so that late adds cannot create a fenced ledger again.
        """
        tombstones = self._ledgers.tombstones
        count = 0
        postponed: list[int] = []
        for first in range(0, len(ledger_ids), _DELETE_LEDGERS):
            forgotten: list[Ledger] = []
            wall_ms = self._clock.wall_ms()
            tombstones.expire(wall_ms)
            for ledger_id in ledger_ids[first : first + _DELETE_LEDGERS]:
                ledger = self._ledgers.get(ledger_id)
                if ledger is None:
                    continue
                if self._cache.has_ledger(ledger_id) or ledger.fence_waiters is not None:
                    postponed.append(ledger_id)
                    continue
                if ledger.fenced and with_tombstones:
                    tombstones.add(ledger_id, wall_ms)
                forgotten.append(self._ledgers.forget(ledger_id))
            ids = [ledger.ledger_id for ledger in forgotten]
            if not ids:
                continue
            try:
                # Between two flushes, since flushes run on the same thread.
                await self._flusher.run(partial(self._storage.delete_ledgers, ids, tombstones))
            except OSError:
                for ledger in forgotten:
                    self._ledgers.restore(ledger)
                raise
            self._read_cache.discard_ledgers(set(ids))
            count += len(ids)
        if count:
            log.info("bookie %s: %d ledgers deleted", self._bookie_id, count)
        return count, postponed
