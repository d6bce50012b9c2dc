"""A BookKeeper client whose ledgers live in a dict: what a managed ledger needs, with faults on order."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from magnetar.bookkeeper.client.client import BookKeeper
from magnetar.bookkeeper.client.errors import (
    BookKeeperError,
    LedgerClosed,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
)
from magnetar.bookkeeper.wire.entry import StoredEntry
from magnetar.runtime.types import Buffer


@dataclass
class Segment:
    first_entry_id: int = 0
    ensemble: tuple[str, ...] = ("a", "b", "c")


@dataclass
class StoredLedger:
    ledger_id: int
    custom_metadata: tuple[tuple[str, bytes], ...]
    entries: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    closed: bool = False
    fenced: bool = False
    segments: tuple[Segment, ...] = (Segment(),)

    @property
    def last_entry_id(self) -> int:
        return len(self.entries) - 1

    @property
    def length(self) -> int:
        return sum(map(len, self.entries))


class MemoryBookKeeper:
    """Entries are acknowledged one loop turn after they were sent, unless `hold` is set."""

    def __init__(self) -> None:
        self.ledgers: dict[int, StoredLedger] = {}
        self.deleted: list[int] = []
        self.hold = False
        self.out_of_bookies = False
        self.handles: list[MemoryWriteHandle] = []
        self._next_id = 0
        self.reads = 0

    @property
    def client(self) -> BookKeeper:
        return cast(BookKeeper, self)

    async def create_ledger(self, **options: Any) -> "MemoryWriteHandle":
        await asyncio.sleep(0)
        if self.out_of_bookies:
            raise NotEnoughBookies("too few bookies")
        ledger = StoredLedger(self._next_id, tuple(options["custom_metadata"]))
        self._next_id += 1
        self.ledgers[ledger.ledger_id] = ledger
        handle = MemoryWriteHandle(self, ledger)
        self.handles.append(handle)
        return handle

    async def open_ledger(self, ledger_id: int, *, password: bytes = b"", recovery: bool) -> "MemoryReadHandle":
        await asyncio.sleep(0)
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        if recovery and not ledger.closed:
            ledger.fenced = ledger.closed = True
        return MemoryReadHandle(self, ledger)

    async def delete_ledger(self, ledger_id: int) -> None:
        if ledger_id not in self.ledgers:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        del self.ledgers[ledger_id]
        self.deleted.append(ledger_id)


class MemoryWriteHandle:
    def __init__(self, owner: MemoryBookKeeper, ledger: StoredLedger) -> None:
        self._owner = owner
        self._ledger = ledger
        self.ledger_id = ledger.ledger_id
        self.listener: Any = None
        self.last_add_confirmed = -1
        self._sent: list[bytes] = []
        self._failed: BookKeeperError | None = None
        self._scheduled = False

    @property
    def metadata(self) -> StoredLedger:
        return self._ledger

    def append(self, payloads: Sequence[Buffer]) -> int:
        if self._failed is not None or self._ledger.closed:
            raise self._failed or LedgerFenced("fenced")
        first = self.last_add_confirmed + 1 + len(self._sent)
        self._sent.extend(bytes(payload) for payload in payloads)
        self._schedule()
        return first

    def _schedule(self) -> None:
        if not self._owner.hold and not self._scheduled and self._sent:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.release)

    def release(self, count: int | None = None) -> None:
        """Acknowledge what was sent (or the first *count* of it)."""
        self._scheduled = False
        if self._failed is not None or not self._sent:
            return
        if self._ledger.closed:
            self.fail(LedgerFenced("fenced"))
            return
        count = len(self._sent) if count is None else count
        self._ledger.entries.extend(self._sent[:count])
        del self._sent[:count]
        self.last_add_confirmed += count
        if self.listener is not None:
            self.listener.on_acknowledged(self.last_add_confirmed)

    def fail(self, error: BookKeeperError) -> None:
        if self._failed is None:
            self._failed = error
            self._sent.clear()
            if self.listener is not None:
                self.listener.on_failed(error)

    async def add(self, payload: Buffer) -> int:
        if self._ledger.closed:
            raise LedgerClosed("closed")
        self._ledger.entries.append(bytes(payload))
        self.last_add_confirmed += 1
        return self.last_add_confirmed

    async def close(self) -> StoredLedger:
        await asyncio.sleep(0)
        self._sent.clear()
        self._ledger.closed = True
        return self._ledger


class MemoryReadHandle:
    def __init__(self, owner: MemoryBookKeeper, ledger: StoredLedger) -> None:
        self._owner = owner
        self._ledger = ledger
        self.ledger_id = ledger.ledger_id
        self.last_add_confirmed = ledger.last_entry_id
        self.is_closed = ledger.closed
        self.length = ledger.length
        self.metadata = ledger

    async def read_batch(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        await asyncio.sleep(0)
        self._owner.reads += 1
        found: list[StoredEntry] = []
        for entry_id in range(first, min(first + max_count, len(self._ledger.entries))):
            data = self._ledger.entries[entry_id]
            max_bytes -= len(data)
            if max_bytes < 0 and found:
                break
            found.append(StoredEntry(self.ledger_id, entry_id, entry_id - 1, 0, memoryview(data)))
        if not found:
            raise NoSuchEntry(f"{self.ledger_id}:{first}")
        return found

    async def read(self, first: int, last: int) -> list[StoredEntry]:
        return await self.read_batch(first, last - first + 1, 1 << 30)

    read_unconfirmed = read
    read_batch_unconfirmed = read_batch

    async def close(self) -> None:
        pass
