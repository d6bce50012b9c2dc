"""Compacted ledgers of a topic: written by a compaction, read by those who want the last message of each key.

Rules:

1. A compacted ledger is complete before anything names it: it is closed, and then the cursor of compaction names it
   (I100).
2. Entries are found by their position in the topic, so a reader can go from one compacted ledger to the next one.
"""

from collections.abc import Callable, Sequence
from typing import Final

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchLedger
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.types import Corruption
from managed_ledger.compacted.entry import compacted_to, decode, encode
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import DataLost, StorageUnavailable
from managed_ledger.position import Position
from managed_ledger.reading.reading import Entry

# What a compaction has written and not yet got confirmed, at most; one entry may be larger.
_WRITE_AHEAD_BYTES: Final = 4 * 1024 * 1024

# Positions that a reader remembers of a ledger, so that the search for a start reads few entries: a search looks at
# some 20 of a million.
_POSITIONS_MAX: Final = 1_000


class CompactedLedger:
    """One compacted ledger, opened for reading. All coroutines raise StorageUnavailable."""

    def __init__(self, name: str, handle: LedgerReadHandle) -> None:
        self._name = name
        self._handle = handle
        self._positions: dict[int, Position] = {}
        """By the number of an entry here: where it stands in the topic."""

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    @property
    def entries(self) -> int:
        return self._handle.last_add_confirmed + 1

    @property
    def size_bytes(self) -> int:
        return self._handle.length

    async def read(self, first: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries at *first* and behind it, in order: at least one if there is one."""
        index = await self._index_of(first)
        if index == self.entries:
            return []
        return await self._read(index, min(max_entries, self.entries - index), max_bytes)

    async def last(self) -> Entry | None:
        """The last entry; None: compaction left none."""
        return (await self._read(self.entries - 1, 1, 1))[0] if self.entries else None

    async def find_first(self, predicate: Callable[[Entry], bool]) -> Position | None:
        """The position of the first entry for which *predicate* is true; None if there is none.

        *predicate* must be false up to some entry and true from there on.
        """
        low, high = 0, self.entries
        first: Position | None = None
        while low < high:
            middle = (low + high) // 2
            (entry,) = await self._read(middle, 1, 1)
            if predicate(entry):
                first, high = entry.position, middle
            else:
                low = middle + 1
        return first

    async def _index_of(self, position: Position) -> int:
        """The index of the first entry at or after *position*, by halving."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if await self._position_at(middle) < position:
                low = middle + 1
            else:
                high = middle
        return low

    async def _position_at(self, index: int) -> Position:
        position = self._positions.get(index)
        if position is None:
            position = (await self._read(index, 1, 1))[0].position
        return position

    async def _read(self, first: int, count: int, max_bytes: int) -> list[Entry]:
        """Entries from number *first* of this ledger on, one at least, with the ids that they have in the topic."""
        try:
            stored = await self._handle.read_batch(first, count, max_bytes)
            entries = []
            for record in stored:
                position, data = decode(record.payload)
                entries.append(Entry(position.ledger_id, position.entry_id, data))
        except (BookKeeperError, Corruption) as error:
            raise StorageUnavailable(f"{self._name}: its compacted ledger {self.ledger_id}: {error}") from error
        if len(self._positions) < _POSITIONS_MAX:
            self._positions[first] = entries[0].position
        return entries

    async def close(self) -> None:
        await self._handle.close()


class CompactedWriter:
    """A compacted ledger that is being written. All coroutines raise StorageUnavailable."""

    def __init__(self, name: str, partition: int, handle: LedgerWriteHandle) -> None:
        self._name = name
        self._partition = partition
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    async def add(self, entries: Sequence[tuple[Position, bytes]]) -> None:
        """Append what was kept of *entries*, in order; returns while the last ones are under way."""
        try:
            for position, data in entries:
                last = self._handle.append([encode(position, self._partition, data)])
                if self._handle.pending_bytes > _WRITE_AHEAD_BYTES:
                    await self._handle.wait_for(last)
        except BookKeeperError as error:
            raise self._failed(error) from error

    async def close(self) -> None:
        """Everything is on its bookies, and the ledger is closed."""
        try:
            if self._handle.last_add_pushed >= 0:
                await self._handle.wait_for(self._handle.last_add_pushed)
            last = (await self._handle.close()).last_entry_id
        except BookKeeperError as error:
            raise self._failed(error) from error
        if last != self._handle.last_add_pushed:
            raise StorageUnavailable(
                f"{self._name}: compacted ledger {self.ledger_id} ends at entry {last} instead of "
                f"{self._handle.last_add_pushed}"
            )

    def _failed(self, error: BookKeeperError) -> StorageUnavailable:
        return StorageUnavailable(f"{self._name}: compacted ledger {self.ledger_id} cannot be written: {error}")

    async def abandon(self) -> None:
        await self._handle.abandon()


_WAY_OUT: Final = " (with autoSkipNonRecoverableData=true a compaction begins with what the topic itself still has)"


class CompactedLedgers:
    """Makes, opens and deletes the compacted ledgers of one topic. All coroutines raise StorageUnavailable; `open` the
    kind of it that is DataLost, for a ledger that is gone."""

    def __init__(self, name: str, bookkeeper: BookKeeper, config: ManagedLedgerConfig) -> None:
        self._name = name
        self._bookkeeper = bookkeeper
        self.config = config

    async def open(self, ledger_id: int) -> CompactedLedger:
        """Raises DataLost: the ledger is gone; StorageUnavailable."""
        try:
            return CompactedLedger(self._name, await self._bookkeeper.open_ledger(ledger_id, recovery=False))
        except NoSuchLedger as error:
            raise DataLost(
                f"{self._name}: its compacted ledger {ledger_id} is gone{_WAY_OUT}", ledger_id, None
            ) from error
        except (BookKeeperError, Corruption) as error:
            raise StorageUnavailable(
                f"{self._name}: its compacted ledger {ledger_id} cannot be opened: {error}"
            ) from error

    async def create(self, topic: str, partition: int, last: Position) -> CompactedWriter:
        """*topic* by its full name; *last*: the last entry that the compaction looks at."""
        config = self.config
        try:
            handle = await self._bookkeeper.create_ledger(
                ensemble_size=config.ensemble_size,
                write_quorum=config.write_quorum,
                ack_quorum=config.ack_quorum,
                digest_type=DigestType.CRC32,  # not that of the topic's ledgers: so Apache's brokers open it
                password=b"",
                custom_metadata=(
                    ("application", b"pulsar"),
                    ("component", b"compacted-ledger"),
                    ("pulsar/compactedTo", compacted_to(last, partition)),
                    ("pulsar/compactedTopic", topic.encode()),
                ),
            )
        except BookKeeperError as error:
            raise StorageUnavailable(f"{self._name}: no compacted ledger can be made: {error}") from error
        return CompactedWriter(self._name, partition, handle)

    async def delete(self, ledger_id: int) -> None:
        try:
            await self._bookkeeper.delete_ledger(ledger_id)
        except BookKeeperError as error:
            raise StorageUnavailable(
                f"{self._name}: compacted ledger {ledger_id} cannot be deleted: {error}"
            ) from error
