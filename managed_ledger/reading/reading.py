"""Entries of a topic by position: from memory where it has them, else from the bookies.

Rule: an entry is lost only if each bookie that should have it says that it does not, and a ledger only if its record is
gone while the topic names it. After silence, a time-out or a damaged copy nothing is known, and nothing is lost.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchEntry, NoSuchLedger
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.damage.reports import OnDamage, ignore_damage
from magnetar_core.bookkeeper.metadata.damage.rules import Kind
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.errors import DataLost, OffloadedLedger, StorageUnavailable
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import EARLIEST, Position
from managed_ledger.reading.entry_cache import EntryCache
from managed_ledger.records.offloaded import only_offloaded, place_of

_WAY_OUT: Final = " (with autoSkipNonRecoverableData=true subscriptions pass over what is lost)"


class Entry(NamedTuple):
    """A stored entry: what the producer sent, as it sent it."""

    ledger_id: int
    entry_id: int
    data: Buffer

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)


class Reading:
    """Reads the entries of one topic that are confirmed."""

    def __init__(
        self,
        name: str,
        ledgers: LedgerList,
        bookkeeper: BookKeeper,
        cache: EntryCache,
        *,
        password: bytes,
        handles_max: int,
        on_damage: OnDamage = ignore_damage,
    ) -> None:
        """*handles_max*: how many ledgers are kept open for reading. *on_damage* is called for entries that no bookie
        can give."""
        self._name = name
        self._ledgers = ledgers
        self._bookkeeper = bookkeeper
        self._cache = cache
        self._password = password
        self._handles_max = handles_max
        self._on_damage = on_damage
        self._handles: OrderedDict[int, LedgerReadHandle] = OrderedDict()  # least recently used first
        self.written: LedgerWriteHandle | None = None
        """The ledger that is being written: its entries may move to other bookies."""
        self.passes_over_lost = False
        """Whether `find_first` goes on where entries are lost."""

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        """Entries from *first* (or the next one there is) on, in order, of one ledger.

        At most *max_entries* and about *max_bytes*, but at least one if there is one; never past `last_confirmed`;
        empty at the end. What memory has is returned at once. The awaitable raises StorageUnavailable, OffloadedLedger,
        or DataLost of the first entry that it would return.
        """
        position = self._ledgers.ceiling(first)
        last = self._ledgers.entries_of(position.ledger_id) - 1
        if position.entry_id > last:
            return []
        last = min(last, position.entry_id + max_entries - 1)
        run = self._cache.get_run(position.ledger_id, position.entry_id, last, max_bytes)
        if run:
            ledger_id = position.ledger_id
            return [Entry(ledger_id, entry_id, data) for entry_id, data in enumerate(run, start=position.entry_id)]
        return self._read_cold(position, last, max_bytes)

    def ceiling(self, position: Position) -> Position:
        """*position* if it has an entry, else the next one that has or will have one."""
        return self._ledgers.ceiling(position)

    async def _read_cold(self, position: Position, last: int, max_bytes: int) -> Sequence[Entry]:
        """Read entries from bookies. Raises OffloadedLedger, DataLost, StorageUnavailable."""
        ledger_id = position.ledger_id
        info = self._ledgers.info(ledger_id)
        if only_offloaded(info):
            raise OffloadedLedger(
                f"{self._name}: {position} is in tiered storage ({place_of(info)}), which this broker does not read. "
                "It is not lost: an Apache broker with that offloader gives it"
            )
        handle: LedgerReadHandle | None = None
        try:
            handle = await self._handle(ledger_id)
            # Entries up to `last` are confirmed as this object knows; the handle of an open ledger may not know it yet.
            stored = await handle.read_batch_unconfirmed(position.entry_id, last - position.entry_id + 1, max_bytes)
        except (NoSuchLedger, NoSuchEntry) as error:
            if ledger_id not in self._ledgers:  # trimmed during the read; the caller continues after it
                return []
            if handle is None:  # its record is gone, so it could not be opened, and nothing of it can be mended
                raise self._ledger_lost(ledger_id) from error
            await self._check_record(handle)
            self._report(position, Kind.DATA_LOSS, f"no bookie that should have it does: {error}")
            raise DataLost(
                f"{self._name}: entry {position} is missing: {error}{_WAY_OUT}", ledger_id, position.entry_id
            ) from error
        except (BookKeeperError, Corruption) as error:
            if isinstance(error, Corruption):
                self._report(position, Kind.BAD_LEDGER, str(error))
            raise StorageUnavailable(f"{self._name}: cannot read {position}: {error}") from error
        assert not stored or stored[0].entry_id == position.entry_id, (position, stored[0].entry_id)
        return [Entry(ledger_id, item.entry_id, item.payload) for item in stored]

    async def _check_record(self, handle: LedgerReadHandle) -> None:
        """Raises DataLost if the ledger has no record any more, StorageUnavailable if nobody knows, or if the record
        names other bookies than *handle* has asked."""
        ledger_id = handle.ledger_id
        try:
            metadata = await self._bookkeeper.read_metadata(ledger_id)
        except NoSuchLedger as error:
            if ledger_id in self._ledgers:
                raise self._ledger_lost(ledger_id) from error
            raise StorageUnavailable(f"{self._name}: ledger {ledger_id} was trimmed") from error
        except BookKeeperError as error:
            raise StorageUnavailable(f"{self._name}: the record of ledger {ledger_id}: {error}") from error
        if metadata.segments != handle.metadata.segments:
            self._handles.pop(ledger_id, None)
            raise StorageUnavailable(f"{self._name}: the copies of ledger {ledger_id} are on other bookies by now")

    def _ledger_lost(self, ledger_id: int) -> DataLost:
        return DataLost(f"{self._name}: ledger {ledger_id} is gone, and its entries with it{_WAY_OUT}", ledger_id, None)

    def _report(self, position: Position, kind: Kind, text: str) -> None:
        self._on_damage(position.ledger_id, kind, [(position.entry_id, position.entry_id)], f"{self._name}: {text}")

    async def _handle(self, ledger_id: int) -> LedgerReadHandle:
        """The open ledger; opened anew if its writer has replaced bookies since. Of many the one not used for longest
        is closed."""
        written = self.written
        handle = self._handles.get(ledger_id)
        if (
            handle is not None
            and written is not None
            and written.ledger_id == ledger_id
            and handle.metadata.segments != written.metadata.segments  # the writer has changed the ensemble since
        ):
            handle = None
        if handle is None:
            handle = await self._bookkeeper.open_ledger(ledger_id, password=self._password, recovery=False)
            self._handles[ledger_id] = handle
            while len(self._handles) > self._handles_max:
                await self._handles.popitem(last=False)[1].close()
        self._handles.move_to_end(ledger_id)
        return handle

    async def find_first(self, predicate: Callable[[Entry], bool]) -> Position | None:
        """The first position for whose entry *predicate* is true, by bisection; None if there is none.

        *predicate* must be false up to some entry and true from there on. Raises StorageUnavailable.
        """
        # Kept as positions, not as indexes: during a read old ledgers may be trimmed and new entries added.
        # Lost entries are taken as those for which it is true: what is not known is kept.
        ledgers = self._ledgers
        false_at, true_at = EARLIEST, ledgers.next_position(ledgers.last_confirmed)
        while (between := ledgers.entries_between(false_at, ledgers.previous_position(true_at))) > 0:
            position = ledgers.position_at(ledgers.entries_up_to(false_at) + between // 2)
            answer = self.read(position, 1, 1)
            try:
                entries = answer if isinstance(answer, Sequence) else await answer
            except DataLost:
                if not self.passes_over_lost:
                    raise
                true_at = min(true_at, position)
                continue
            if not entries:
                continue  # its ledger was trimmed; the remaining entries are counted anew
            if predicate(entries[0]):
                true_at = min(true_at, entries[0].position)
            else:
                false_at = entries[0].position
        position = ledgers.ceiling(true_at)
        return position if position <= ledgers.last_confirmed else None

    def ledger_closed(self, ledger_id: int) -> None:
        """Drop the read handle of a ledger that was closed: the handle does not know the final length."""
        self._handles.pop(ledger_id, None)

    def ledgers_trimmed(self, ledger_ids: Sequence[int]) -> None:
        """Drop the read handles of ledgers that were trimmed."""
        for ledger_id in ledger_ids:
            self._handles.pop(ledger_id, None)

    async def close(self) -> None:
        """Close all read handles."""
        self.written = None
        for handle in self._handles.values():
            await handle.close()
        self._handles.clear()
