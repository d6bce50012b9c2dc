"""All ledgers of a cluster, read once and kept true by a watch. What an auditor does to all ledgers begins here.

    first ──▶ watch all below the root ──▶ read all records ──▶ LedgerIndex
    later ──▶ read those that the watch named ─────────────────▶ the same index, true again
    the connection broke, or the store has no such watch ──────▶ read all records

Reading one record costs ZooKeeper and this process some 0.3 ms: 100,000 ledgers take some 30 s, and were read by each
audit, each drain and each check before.

Rules:

1. The watch stands before the first record is read, so no change falls between. What changes while records are read
   is read again by the next call.
2. A call returns what was stored when it began, or later. It asks the store something first: by that
   answer the watch has reported every earlier change (store, rule 6).
3. A call that could not read everything raises; what it did not read is still to be read.
4. A record that is damaged does not stop it; it is kept as unreadable, with the reason (R-R14).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Final

from autorecovery.ledgers.index import LedgerIndex
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import ledger_id_of
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, CannotWatch, MetadataStore, NoNode
from magnetar_core.runtime.tasks import gather_in_turns
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Records that are read at the same time.
_AT_ONCE: Final = 64


class LedgerCatalogue:
    """The index of all ledgers, for one auditor. Used on the loop."""

    def __init__(self, store: MetadataStore, root: str, ledgers: LedgerStore) -> None:
        self._store = store
        self._root = root
        self._ledgers = ledgers
        self._index = LedgerIndex()
        self._changed: set[int] | None = None
        """Ledgers whose record is to be read; None: all."""
        self._cancel: Cancel | None = None
        self._reading = asyncio.Lock()
        self._has_no_watch = False
        self.full_readings = 0
        """How often all records were read."""

    async def read(self) -> LedgerIndex:
        """The index, true as rule 2 says. The next call by anybody changes the same object.

        Raises MetadataError (rule 3).
        """
        async with self._reading:
            if self._cancel is None and not self._has_no_watch:
                await self._watch()
            await self._store.exists(self._root)  # rule 2
            await asyncio.sleep(0)
            if self._changed is None:
                await self._read_all()
            elif self._changed:
                await self._read_changed()
            return self._index

    async def stop(self) -> None:
        """End the watch and forget everything."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._changed = None
        self._index = LedgerIndex()

    async def _watch(self) -> None:
        try:
            self._cancel = await self._store.watch_tree(self._root, self._on_changed)
        except CannotWatch as error:
            self._has_no_watch = True
            log.info("all records of ledgers are read each time that they are asked for: %s", error)

    def _on_changed(self, paths: Collection[str] | None) -> None:
        if paths is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.update(ledger_ids_in(paths, self._root))

    async def _read_all(self) -> None:
        self._changed = None if self._has_no_watch else set()  # rule 1
        try:
            self._index = await read_index(self._ledgers)
        except BaseException:
            self._changed = None  # rule 3
            raise
        self.full_readings += 1

    async def _read_changed(self) -> None:
        assert self._changed is not None
        due, self._changed = self._changed, set()
        left = set(due)
        try:
            async for ledger_id, record in _read_each(self._ledgers, iter(sorted(due))):
                _update_index(self._index, ledger_id, record)
                left.discard(ledger_id)
        finally:
            if left and self._changed is not None:
                self._changed |= left  # rule 3


def ledger_ids_in(paths: Collection[str], root: str) -> Iterator[int]:
    """The ledgers whose records are among *paths*, all of which are below *root*."""
    for path in paths:
        ledger_id = ledger_id_of(path[len(root) :])
        if ledger_id is not None:
            yield ledger_id


async def read_index(ledgers: LedgerStore) -> LedgerIndex:
    """All records of a cluster. Raises MetadataError: then not everything was seen."""
    index = LedgerIndex()
    async for ledger_id, record in read_all(ledgers):
        _update_index(index, ledger_id, record)
    return index


async def read_all(ledgers: LedgerStore) -> AsyncIterator[tuple[int, Versioned | Corruption]]:
    """Every ledger with its record, or why that cannot be read; one that is deleted meanwhile is left out.

    Raises MetadataError: then not everything was seen.
    """
    batch: list[int] = []
    async for ledger_id in ledgers.list():
        batch.append(ledger_id)
        if len(batch) == _AT_ONCE:
            async for number, record in _read_each(ledgers, iter(batch)):
                if record is not None:
                    yield number, record
            batch = []
    async for number, record in _read_each(ledgers, iter(batch)):
        if record is not None:
            yield number, record


async def _read_each(
    ledgers: LedgerStore, ledger_ids: Iterator[int]
) -> AsyncIterator[tuple[int, Versioned | Corruption | None]]:
    """The record of each; None: it was deleted. Raises MetadataError."""

    async def read(ledger_id: int) -> tuple[int, Versioned | Corruption | None]:
        try:
            return ledger_id, await ledgers.read(ledger_id)
        except NoNode:
            return ledger_id, None
        except Corruption as error:
            return ledger_id, error

    while chunk := [ledger_id for _, ledger_id in zip(range(_AT_ONCE), ledger_ids, strict=False)]:
        for record in await gather_in_turns(map(read, chunk)):
            yield record


def _update_index(index: LedgerIndex, ledger_id: int, record: Versioned | Corruption | None) -> None:
    if isinstance(record, Versioned):
        index.put(ledger_id, record.metadata)
        return
    index.discard(ledger_id)
    if record is not None:
        index.unreadable[ledger_id] = str(record)
        log.error("the record of ledger %d cannot be read: %s", ledger_id, record)
