"""The cursors of one managed ledger: recovered when it is opened, made and deleted while it is.

Rules:

1. A new cursor is made under the record's lock, so that no trim removes the ledger that it starts in (I96).
2. After a cursor was made, the record is asked for another owner: an owner that takes over later sees the cursor, one
   that took over before may have missed it.
3. Where a compacted ledger may have what was trimmed, a cursor may stand before the ledgers that are left
   (`managed_ledger.cursors.cursor`). The cursor of compaction, which says so, is recovered first.
"""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import unquote_plus

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import Versioned
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import attempt
from magnetar_core.runtime.types import Corruption
from managed_ledger.compacted.entry import COMPACTED_LEDGER, COMPACTION_CURSOR
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor import CONSUMED_BEFORE, CursorState, place_of, stored_place
from managed_ledger.cursors.cursor_store import CursorStore
from managed_ledger.cursors.managed_cursor import CursorLedger, ManagedCursor
from managed_ledger.errors import CursorExists, CursorNotFound, ManagedLedgerFenced, RecordUnreadable
from managed_ledger.ledger_list import LedgerList
from managed_ledger.ledgers.holdings import NOTHING_KNOWN
from managed_ledger.position import Position
from managed_ledger.reading.read_ahead import AheadBudget
from managed_ledger.reading.reading import Reading
from managed_ledger.records.paths import cursor_path, ledger_path

log = logging.getLogger(__name__)


class CursorOwner(CursorLedger, Protocol):
    """What the making of a cursor needs of its managed ledger."""

    def check_not_ended(self) -> None:
        """Raises ManagedLedgerFenced or ManagedLedgerClosed if it has ended."""
        ...

    async def check_owner(self) -> None:
        """Ask the record for another owner. Raises ManagedLedgerFenced, StorageUnavailable."""
        ...

    async def check_owner_locked(self) -> None:
        """As `check_owner`, for a caller that holds the record's lock."""
        ...


class CursorSet:
    """The durable cursors of one managed ledger by name.

    The owner is given with each call and not kept: owner and cursors would keep each other alive until the garbage
    collector finds them.
    """

    def __init__(
        self,
        name: str,
        ledgers: LedgerList,
        reading: Reading,
        bookkeeper: BookKeeper,
        store: MetadataStore,
        clock: Clock,
        config: ManagedLedgerConfig,
        ahead_budget: AheadBudget,
    ) -> None:
        """*name* is that of the managed ledger. *ahead_budget*: what its cursors may read before they are asked for."""
        self.config = config
        self.by_name: dict[str, ManagedCursor] = {}
        self._name = name
        self._ledgers = ledgers
        self._reading = reading
        self._bookkeeper = bookkeeper
        self._store = store
        self._clock = clock
        self._ahead_budget = ahead_budget

    @property
    def is_compacted(self) -> bool:
        """Whether a compacted ledger may have entries of ledgers that were trimmed."""
        cursor = self.by_name.get(COMPACTION_CURSOR)
        return cursor is not None and COMPACTED_LEDGER in cursor.properties

    # ------------------------------------------------------------------------------ making and deleting

    async def recover_all(self, owner: CursorOwner, known_records: Mapping[int, Versioned] = NOTHING_KNOWN) -> None:
        """Recover all cursors that are stored. *known_records*: records of open ledgers that were read before.

        Raises StorageUnavailable (RecordUnreadable), MetadataError.
        """
        names = [unquote_plus(child) for child in await self._store.children(ledger_path(self._name))]
        for name in sorted(names, key=lambda name: name != COMPACTION_CURSOR):  # rule 3
            await self._recover(owner, name, self._cursor_store(owner, name), known_records)

    async def _recover(
        self, owner: CursorOwner, name: str, store: CursorStore, known_records: Mapping[int, Versioned] = NOTHING_KNOWN
    ) -> ManagedCursor:
        """Load a cursor, and bring its position into the ledgers that there are. Raises RecordUnreadable and what
        loading raises."""
        try:
            snapshot = await store.load(self._ledgers.start, known_records)
            position, start = snapshot.mark_delete_position, self._ledgers.start
            if position.entry_id >= 0 and position > self._ledgers.last_confirmed:
                log.warning(
                    "cursor %s of %s: it had consumed up to %s, and the topic ends at %s: did the metadata store go "
                    "back in time? Nothing that comes is passed over; what is restored there is delivered once more",
                    name, self._name, position, self._ledgers.last_confirmed,
                )  # fmt: skip
            if self.is_compacted and name != COMPACTION_CURSOR:
                position = place_of(position, snapshot.properties, start)
            else:
                position = max(position, start)
            if position >= start:
                position = min(self._ledgers.floor(position), self._ledgers.last_confirmed)
            state = CursorState(self._ledgers, position)
            snapshot.properties.pop(CONSUMED_BEFORE, None)
            state.restore(snapshot.ranges, snapshot.batches, snapshot.properties.items())
            state.idle_since_ms = snapshot.idle_since_ms
        except (Corruption, AssertionError, ValueError) as error:
            raise RecordUnreadable(f"{self._name}: the record {cursor_path(self._name, name)}: {error}") from error
        cursor = self._cursor(owner, name, state, store)
        self.by_name[name] = cursor
        return cursor

    async def open(
        self, owner: CursorOwner, name: str, start: Position, properties: Mapping[str, str] | None
    ) -> ManagedCursor:
        """The durable cursor of that name; made at *start*, the first position to deliver, if there is none.

        Raises StorageUnavailable, ManagedLedgerFenced, ManagedLedgerClosed.
        """
        if name in self.by_name:
            return self.by_name[name]
        store = self._cursor_store(owner, name)
        async with owner.record_lock:  # rule 1
            owner.check_not_ended()
            if name in self.by_name:
                return self.by_name[name]
            position, place = self._mark_delete_before(start), dict[str, int]()
            if self.is_compacted:
                position, place = stored_place(position, self._ledgers.start)
            # The cursor may exist: an earlier call made it and got no answer, or a former owner made it after we read
            # the list of cursors.
            with contextlib.suppress(CursorExists):
                await store.create(position, place, properties or {})
            await owner.check_owner_locked()  # rule 2
            owner.check_not_ended()
            return await self._recover(owner, name, self._cursor_store(owner, name))

    def new_non_durable(self, owner: CursorOwner, name: str, start: Position) -> ManagedCursor:
        """A cursor that is not stored, does not hold back trimming and is not in this set."""
        return self._cursor(owner, name, CursorState(self._ledgers, self._mark_delete_before(start)), None)

    async def delete(self, owner: CursorOwner, name: str) -> None:
        """Delete a durable cursor and its stored state.

        Raises CursorNotFound, ManagedLedgerFenced, StorageUnavailable; the cursor then stays and holds back trimming.
        """
        cursor = self.by_name.get(name)
        if cursor is None:
            raise CursorNotFound(f"{self._name} has no cursor {name}")
        owner.check_not_ended()
        try:
            await cursor.remove()
        except ManagedLedgerFenced as error:
            owner.fence(error)
            raise
        if self.by_name.get(name) is cursor:
            del self.by_name[name]

    def _cursor_store(self, owner: CursorOwner, name: str) -> CursorStore:
        return CursorStore(
            topic=self._name,
            cursor=name,
            path=cursor_path(self._name, name),
            bookkeeper=self._bookkeeper,
            store=self._store,
            clock=self._clock,
            config=self.config,
            check_owner=owner.check_owner,
        )

    def _cursor(self, owner: CursorOwner, name: str, state: CursorState, store: CursorStore | None) -> ManagedCursor:
        interval_s = self.config.mark_delete_interval_s
        return ManagedCursor(owner, self._reading, name, state, self._clock, store, interval_s, self._ahead_budget)

    def _mark_delete_before(self, start: Position) -> Position:
        """The mark-delete position of a cursor that reads *start* first."""
        return self._ledgers.mark_delete_before(start, keeps_trimmed=self.is_compacted)

    # --------------------------------------------------------------------------------------- trimming

    def slowest_stored(self) -> Position | None:
        """The lowest position that is stored: a restart goes back to it, so trimming goes by it; None: no cursors."""
        positions = [cursor.persisted_mark_delete_position for cursor in self.by_name.values()]
        return min(positions) if positions else None

    def ledgers_changed(self) -> None:
        """The oldest ledgers were trimmed."""
        for cursor in self.by_name.values():
            cursor.ledgers_changed()

    # ---------------------------------------------------------------------------------------- the end

    def abandon(self) -> None:
        """Stop all cursors; nothing is stored any more."""
        for cursor in self.by_name.values():
            cursor.abandon()

    async def close(self) -> None:
        """Store all cursors. One that cannot be stored does not stop the others."""
        for cursor in list(self.by_name.values()):
            await attempt(f"{self._name}: storing its cursor {cursor.name}", cursor.close())

    async def delete_all(self) -> None:
        """Delete all cursors. Raises ManagedLedgerFenced, StorageUnavailable."""
        for name in list(self.by_name):
            await self.by_name[name].remove()
            del self.by_name[name]

    async def release(self) -> None:
        """Drop all cursors and give up their ledgers. Writes nothing."""
        cursors, self.by_name = self.by_name, {}
        for cursor in cursors.values():
            await cursor.release()

    def stats(self) -> dict[str, Any]:
        """What Pulsar's `internalStats` shows of the cursors."""
        return {cursor.name: cursor.stats() for cursor in self.by_name.values()}
