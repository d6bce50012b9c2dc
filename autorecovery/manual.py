"""Recovery that an operator asks for: copy everything away from some bookies, whether they are alive or not.

It needs no auditor and no marks. Each ledger is repaired under its lock, as a worker does it; a ledger that somebody
else repairs at the moment is waited for.

    records that name one of the bookies ──▶ lock ──▶ not closed: recover it first ──▶ copy, read back, publish

Rules:

1. The bookies count as leaving: copies are read from those that are there, and they are never chosen as targets.
2. One ledger that cannot be repaired does not keep the others from it; all of them are reported, with the reason.
3. A cookie is deleted only when no record names its bookie any more, by a new reading of all records.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from autorecovery.ledgers.catalogue import read_index
from autorecovery.ledgers.checks import Depth
from autorecovery.repair.one_ledger import LedgerRepair
from autorecovery.repair.outcome import Hindered, Hindrance, Outcome, describe
from autorecovery.repair.pace import Pace
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore, NoNode
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import MagnetarError

log = logging.getLogger(__name__)

# Ledgers that are repaired at the same time.
_AT_ONCE: Final = 16

# A ledger that somebody else has locked is tried so often, so far apart: longer than a worker's grace period.
_LOCK_TRIES: Final = 60
_LOCK_WAIT_S: Final = 1.0


class StillNamed(MagnetarError):
    """Records name the bookie, so its cookie stays."""


@dataclass(slots=True)
class Recovered:
    """What a recovery did."""

    ledgers: int = 0
    """Ledgers that named one of the bookies."""
    repaired: int = 0
    skipped: list[int] = field(default_factory=list)
    """Ledgers that are not closed, and are to be left alone."""
    failed: dict[int, str] = field(default_factory=dict)
    """Ledger → why it could not be repaired."""
    copied_entries: int = 0
    copied_bytes: int = 0
    unreadable: dict[int, str] = field(default_factory=dict)
    """Ledgers whose record cannot be read: nobody knows whether they name one of the bookies."""


class ManualRecovery:
    """Recovery of bookies at an operator's word. Used on the loop."""

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        bookkeeper: BookKeeper,
        clock: Clock,
        *,
        root: str,
        bytes_per_s: float | None = None,
    ) -> None:
        """*name* stands in the locks. *bytes_per_s*: what is copied at most, by all recoveries together; None: no
        limit."""
        self._name = name
        self._store = store
        self._root = root
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._marks = MarkBoard(store, root)
        self._pace = Pace(clock, bytes_per_s)

    async def plan(self, bookies: Collection[str]) -> dict[int, bool]:
        """Ledgers whose record names one of *bookies*, ids ascending → whether each is closed. Raises MetadataError."""
        index = await read_index(self._bookkeeper.ledgers)
        ids = sorted({ledger_id for bookie in bookies for ledger_id in index.of_bookie(bookie)})
        return {ledger_id: index[ledger_id].is_closed for ledger_id in ids}

    async def recover(
        self,
        bookies: Collection[str],
        *,
        skip_open: bool = False,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Recovered:
        """Copy what *bookies* have to others. *skip_open*: ledgers that are not closed are left to their writers.

        *on_progress* is called with (ledgers done, ledgers in all). Raises MetadataError if the records cannot be read.
        """
        index = await read_index(self._bookkeeper.ledgers)
        leaving = frozenset(bookies)
        ids = sorted({ledger_id for bookie in leaving for ledger_id in index.of_bookie(bookie)})
        done = Recovered(ledgers=len(ids), unreadable=dict(index.unreadable))
        repair = LedgerRepair(self._bookkeeper, self._marks, self._pace, depth=Depth.ENDS, draining=lambda: leaving)
        slots = asyncio.Semaphore(_AT_ONCE)
        finished = 0

        async def one(ledger_id: int) -> None:
            nonlocal finished
            async with slots:
                if skip_open and not index[ledger_id].is_closed:
                    done.skipped.append(ledger_id)
                else:
                    self._count_outcome(done, ledger_id, await self._repair(repair, ledger_id))
                finished += 1
                on_progress(finished, len(ids))

        await self._marks.prepare()
        await asyncio.gather(*map(one, ids))
        done.skipped.sort()
        return done

    async def delete_cookie(self, bookie: str) -> None:
        """Rule 3. Raises StillNamed, MetadataError; a cookie that is not there counts as deleted."""
        index = await read_index(self._bookkeeper.ledgers)
        if index.unreadable:
            first_ids = ", ".join(map(str, sorted(index.unreadable)[:10]))
            raise StillNamed(f"the records of ledgers {first_ids} cannot be read, and may name bookie {bookie}")
        named = sorted(index.of_bookie(bookie))
        if named:
            first_ids = ", ".join(map(str, named[:10]))
            raise StillNamed(f"{len(named)} ledgers name bookie {bookie}, its cookie stays: {first_ids}")
        try:
            await self._store.delete(f"{self._root}/cookies/{bookie}")
        except NoNode:
            return

    async def _repair(self, repair: LedgerRepair, ledger_id: int) -> Outcome:
        try:
            for _ in range(_LOCK_TRIES):
                if await self._lock(ledger_id):
                    break
                await self._clock.sleep(_LOCK_WAIT_S)
            else:
                holder = await self._marks.holder(ledger_id)
                text = f"{holder or 'somebody'} repairs it, and does not come to an end"
                return Hindered(Hindrance.METADATA, text)
            try:
                return await repair.repair(ledger_id, may_recover=True)
            finally:
                await self._marks.unlock(ledger_id)
        except MetadataError as error:
            return Hindered(Hindrance.METADATA, str(error))

    async def _lock(self, ledger_id: int) -> bool:
        """Take the lock; after an error it is given back, as far as it may be there. Raises MetadataError."""
        try:
            return await self._marks.lock(ledger_id, self._name)
        except BaseException:
            await self._marks.unlock(ledger_id)
            raise

    def _count_outcome(self, done: Recovered, ledger_id: int, outcome: Outcome) -> None:
        done.copied_entries += outcome.copied_entries
        done.copied_bytes += outcome.copied_bytes
        if isinstance(outcome, Hindered):
            done.failed[ledger_id] = describe(outcome)
            log.warning("ledger %d: %s", ledger_id, describe(outcome))
        else:
            done.repaired += 1
