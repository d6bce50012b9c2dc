"""Lists of the cluster's ledgers and of a ledger's entries, page by page, as members of a JSON object. No HTTP here."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final, Protocol

from bookie.admin.bodies import Members, ledger_json
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import encode
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.stores.store import NoNode
from magnetar_core.runtime.types import Buffer, Corruption

# The page sizes of Apache's bookie.
LEDGERS_PER_PAGE: Final = 100
ENTRIES_PER_PAGE: Final = 1_000

# Records of ledgers that are read at the same time for a list.
RECORDS_AT_ONCE: Final = 50


class LedgerAccess(Protocol):
    """Reads ledgers of the whole cluster. The process that runs the bookie provides it."""

    def read(self, ledger_id: int, first: int, last: int | None) -> AsyncGenerator[tuple[int, Buffer], None]:
        """(entry id, payload) of the entries *first* … *last*, both included, as far as they are confirmed; None: of
        all that are.

        An open ledger stays open. Raises MagnetarError.
        """
        ...


class LedgerPages:
    """Reads records and entries of any ledger of the cluster; nothing is kept."""

    def __init__(self, records: LedgerStore, ledgers: LedgerAccess) -> None:
        self._records = records
        self._ledgers = ledgers

    async def records(self, with_records: bool, decoded: bool, page: int | None) -> Members:
        """Every ledger, or those of *page* (1 is the first): its id, with its record if *with_records*. Raises
        MetadataError."""
        first = 0 if page is None else (page - 1) * LEDGERS_PER_PAGE
        end = None if page is None else first + LEDGERS_PER_PAGE
        number = 0
        waiting: list[int] = []
        async for ledger_id in self._records.list():
            if end is not None and number >= end:
                break
            number += 1
            if number <= first:
                continue
            if not with_records:
                yield str(ledger_id), None
                continue
            waiting.append(ledger_id)
            if len(waiting) >= RECORDS_AT_ONCE:
                for member in await self._with_records(waiting, decoded):
                    yield member
                waiting = []
        for member in await self._with_records(waiting, decoded):
            yield member

    async def _with_records(self, ledger_ids: list[int], decoded: bool) -> list[tuple[str, object]]:
        async def read(ledger_id: int) -> tuple[str, object] | None:
            try:
                record = await self._records.read(ledger_id)
            except NoNode:  # deleted since it was listed
                return None
            except Corruption as error:
                return str(ledger_id), {"problem": str(error)} if decoded else str(error)
            return str(ledger_id), _record_json(ledger_id, record, decoded)

        return [member for member in await asyncio.gather(*map(read, ledger_ids)) if member is not None]

    async def entries(self, ledger_id: int, first: int, last: int | None, page: int | None) -> Members:
        """Entries *first* to *last* (None: the last confirmed one) as ASCII, or those of *page*. Raises
        MagnetarError."""
        left = None
        if page is not None:
            first += (page - 1) * ENTRIES_PER_PAGE
            left = ENTRIES_PER_PAGE
        head: list[tuple[str, object]] = [] if page is None else [("Entries for page: ", str(page))]
        async with contextlib.aclosing(self._ledgers.read(ledger_id, first, last)) as entries:
            async for entry_id, payload in entries:
                if left is not None:
                    left -= 1
                    if left < 0:
                        break
                # Only after the first read, so that a missing ledger is refused before the answer begins.
                for member in head:
                    yield member
                head = []
                yield str(entry_id), bytes(payload).decode("ascii", "replace")
        for member in head:
            yield member


def _record_json(ledger_id: int, record: Versioned, decoded: bool) -> object:
    return ledger_json(ledger_id, record) if decoded else encode(record.metadata).decode("utf-8", "replace")
