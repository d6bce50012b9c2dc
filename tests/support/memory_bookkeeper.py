"""A BookKeeper client whose ledgers live in a dict: what a managed ledger needs, with faults on order.

Several clients may share one set of ledgers (`session`). As with the real one:

- a recovery may find entries that were sent and not acknowledged, or not (`survivors` decides);
- a writer whose ledger was closed by another client at another entry gets MetadataConflict when it closes it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    ClientClosed,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
)
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import Versioned
from magnetar_core.bookkeeper.wire.entry import StoredEntry
from magnetar_core.runtime.types import Buffer


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
    sent: list[bytes] = field(default_factory=list)
    """On its way to the bookies, not acknowledged."""
    segments: tuple[Segment, ...] = (Segment(),)
    lost: set[int] = field(default_factory=set)
    """Entries of which no copy is left."""
    lacs: list[int] = field(default_factory=list)
    """The LAC that went with each entry that was sent."""
    polls: "dict[MemoryLongPoll, None]" = field(default_factory=dict)

    def stored(self, *entries: bytes) -> None:
        """These are on the bookies; who waits for their LAC is told."""
        self.entries.extend(entries)
        for poll in list(self.polls):
            poll.look(self.lacs[self.last_entry_id])

    @property
    def last_segment(self) -> Segment:
        return self.segments[-1]

    @property
    def last_entry_id(self) -> int:
        return len(self.entries) - 1

    @property
    def is_closed(self) -> bool:
        return self.closed

    @property
    def state(self) -> LedgerState:
        return LedgerState.CLOSED if self.closed else LedgerState.OPEN

    @property
    def length(self) -> int:
        return sum(map(len, self.entries))


class RecordThen(NamedTuple):
    """A ledger's record when it was read."""

    ledger_id: int
    is_closed: bool


class Ledgers:
    """The ledgers and metadata that all clients of one cluster share."""

    def __init__(self) -> None:
        self.by_id: dict[int, StoredLedger] = {}
        self.deleted: list[int] = []
        self.next_id = 0


Step = Callable[[str, int], Awaitable[None]]


class MemoryBookKeeper:
    """Entries are acknowledged one loop turn after they were sent, unless `hold` is set."""

    def __init__(self, ledgers: Ledgers | None = None) -> None:
        self._shared = ledgers or Ledgers()
        self.hold = False
        self.out_of_bookies = False
        self.handles: list[MemoryWriteHandle] = []
        self.reads = 0
        self.records_read: list[int] = []
        """Ledgers whose records were read, or would have been, by a client that was not given them."""
        self.on_step: Step | None = None
        """Awaited with (what, ledger id) before and after each change: `create`, `created`, `open`, `close`, `closed`,
        `add`, `added`, `read`, `delete`. It may wait, or raise what a client would get at that point."""
        self.survivors: Callable[[int], int] = lambda sent: 0
        """How many of the entries that were sent and not acknowledged a recovery finds."""
        self.lac_goes_with_entries = False
        """A reader without recovery sees the last entry only when another follows, as with the real client."""

    def session(self) -> "MemoryBookKeeper":
        """Another client of the same cluster."""
        made = MemoryBookKeeper(self._shared)
        made.lac_goes_with_entries = self.lac_goes_with_entries
        return made

    @property
    def ledgers(self) -> dict[int, StoredLedger]:
        return self._shared.by_id

    @property
    def deleted(self) -> list[int]:
        return self._shared.deleted

    async def step(self, what: str, ledger_id: int) -> None:
        if self.on_step is None:
            await asyncio.sleep(0)
        else:
            await self.on_step(what, ledger_id)

    @property
    def client(self) -> BookKeeper:
        return cast(BookKeeper, self)

    async def create_ledger(self, **options: Any) -> "MemoryWriteHandle":
        await self.step("create", -1)
        if self.out_of_bookies:
            raise NotEnoughBookies("too few bookies")
        ledger = StoredLedger(self._shared.next_id, tuple(options["custom_metadata"]))
        self._shared.next_id += 1
        self.ledgers[ledger.ledger_id] = ledger
        if self.on_step is not None:
            await self.step("created", ledger.ledger_id)
        handle = MemoryWriteHandle(self, ledger)
        self.handles.append(handle)
        return handle

    async def record_of(self, ledger_id: int) -> Versioned:
        self.records_read.append(ledger_id)
        await self.step("record", ledger_id)
        ledger = await self.read_metadata(ledger_id)
        return Versioned(cast(LedgerMetadata, RecordThen(ledger_id, ledger.closed)), 0)

    async def open_ledger(
        self, ledger_id: int, *, password: bytes = b"", recovery: bool, known: Versioned | None = None
    ) -> "MemoryReadHandle":
        if known is not None:  # the real client finds the state of now when it changes the record
            assert recovery, "nothing would tell that it is old"
            assert not known.metadata.is_closed, known
        else:
            self.records_read.append(ledger_id)
        await self.step("open", ledger_id)
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        if recovery and not ledger.closed:
            ledger.fenced = ledger.closed = True
            ledger.entries += ledger.sent[: self.survivors(len(ledger.sent))]
        if self.on_step is not None:
            await self.step("opened", ledger_id)
        return MemoryReadHandle(self, ledger)

    async def read_metadata(self, ledger_id: int) -> StoredLedger:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        return ledger

    def long_poll(self, told: Callable[[], None]) -> "MemoryLongPoll":
        return MemoryLongPoll(self.ledgers, told)

    async def delete_ledger(self, ledger_id: int) -> None:
        if self.on_step is not None:
            await self.step("delete", ledger_id)
        if ledger_id not in self.ledgers:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        del self.ledgers[ledger_id]
        self.deleted.append(ledger_id)


class MemoryLongPoll:
    """Tells of a larger LAC, once for each `begin`; of nothing else, as bookies do."""

    def __init__(self, ledgers: dict[int, StoredLedger], told: Callable[[], None]) -> None:
        self._ledgers = ledgers
        self._told = told
        self._waits_at: StoredLedger | None = None
        self._known = -1

    def begin(self, ledger_id: int, ensemble: Sequence[str], last_add_confirmed: int) -> None:
        self._stop()
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return
        self._known, self._waits_at = last_add_confirmed, ledger
        ledger.polls[self] = None
        if ledger.entries:
            self.look(ledger.lacs[ledger.last_entry_id])

    def look(self, last_add_confirmed: int) -> None:
        if last_add_confirmed > self._known:
            self._stop()
            asyncio.get_running_loop().call_soon(self._told)

    async def close(self) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._waits_at is not None:
            self._waits_at.polls.pop(self, None)
            self._waits_at = None


class MemoryWriteHandle:
    def __init__(self, owner: MemoryBookKeeper, ledger: StoredLedger) -> None:
        self._owner = owner
        self._ledger = ledger
        self.ledger_id = ledger.ledger_id
        self.listener: Any = None
        self.last_add_confirmed = -1
        self.is_abandoned = False
        self._sent = ledger.sent
        self._failed: BookKeeperError | None = None
        self._is_closed = False
        self._scheduled = False

    @property
    def metadata(self) -> StoredLedger:
        return self._ledger

    def append(self, payloads: Sequence[Buffer]) -> int:
        if self._failed is not None or self._is_closed:
            raise self._failed or LedgerClosed("closed")
        if self._ledger.closed:
            self._failed = LedgerFenced("fenced")
            raise self._failed
        first = self.last_add_confirmed + 1 + len(self._sent)
        self._sent.extend(bytes(payload) for payload in payloads)
        self._ledger.lacs.extend(self.last_add_confirmed for _ in payloads)
        self._schedule()
        return first

    @property
    def last_add_pushed(self) -> int:
        return self.last_add_confirmed + len(self._sent)

    @property
    def pending_bytes(self) -> int:
        return sum(map(len, self._sent))

    is_blocked = False

    def when_writable(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def _schedule(self) -> None:
        if not self._owner.hold and not self._scheduled and self._sent:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.release)

    def release(self, count: int | None = None) -> None:
        """Acknowledge what was sent (or the first *count* of it)."""
        self._scheduled = False
        if self._failed is not None or not self._sent or self._is_closed:
            return
        if self._ledger.closed:
            self.fail(LedgerFenced("fenced"))
            return
        count = len(self._sent) if count is None else count
        self._ledger.stored(*self._sent[:count])
        del self._sent[:count]
        self.last_add_confirmed += count
        if self.listener is not None:
            self.listener.on_acknowledged(self.last_add_confirmed)

    def fail(self, error: BookKeeperError) -> None:
        if self._failed is None:
            self._failed = error
            if self.listener is not None:
                self.listener.on_failed(error)

    async def add(self, payload: Buffer) -> int:
        if self._failed is not None or self._is_closed:
            raise self._failed or LedgerClosed("closed")
        self._sent.append(bytes(payload))
        self._ledger.lacs.append(self.last_add_confirmed)
        if self._owner.on_step is not None:
            try:
                await self._owner.step("add", self.ledger_id)
            except BookKeeperError as error:
                self._failed = error
                raise
        if self._ledger.closed:
            self._failed = LedgerFenced("fenced")
            raise self._failed
        self._ledger.stored(self._sent.pop(0))
        self.last_add_confirmed += 1
        added = self.last_add_confirmed
        if self._owner.on_step is not None:
            await self._owner.step("added", self.ledger_id)
        return added

    async def wait_for(self, entry_id: int) -> int:
        while self.last_add_confirmed < entry_id:
            if self._failed is not None:
                raise self._failed
            await asyncio.sleep(0)
        return entry_id

    def follow_record(self) -> None:
        """Tests tell of its end: `fail(LedgerClosed(...))`."""

    async def read_back(self, first: int, last: int, max_bytes: int) -> list[StoredEntry]:
        await self._owner.step("read", self.ledger_id)
        raise NoSuchEntry(f"{self.ledger_id}:{first}: the ledger ends before it")

    async def close(self) -> StoredLedger:
        await self._owner.step("close", self.ledger_id)
        if isinstance(self._failed, LedgerFenced):
            raise self._failed
        if self.ledger_id not in self._owner.ledgers:
            raise NoSuchLedger(f"ledger {self.ledger_id} does not exist")
        self._is_closed = True
        ledger = self._ledger
        if ledger.closed and ledger.last_entry_id != self.last_add_confirmed:
            raise MetadataConflict("closed by another client")
        ledger.closed = True
        if self._owner.on_step is not None:
            await self._owner.step("closed", self.ledger_id)
        return ledger

    async def abandon(self) -> None:
        self.is_abandoned = True
        if self._failed is None:
            self._failed = ClientClosed("given up")


class MemoryReadHandle:
    def __init__(self, owner: MemoryBookKeeper, ledger: StoredLedger) -> None:
        self._owner = owner
        self._ledger = ledger
        self.ledger_id = ledger.ledger_id
        self.last_add_confirmed = self._confirmed()
        self.is_closed = ledger.closed
        self.length = ledger.length
        self.metadata = ledger

    def _confirmed(self) -> int:
        last = self._ledger.last_entry_id
        if not self._owner.lac_goes_with_entries or self._ledger.closed:
            return last
        return self._ledger.lacs[last] if last >= 0 else -1

    async def read_last_confirmed(self) -> int:
        await self._owner.step("read", self.ledger_id)
        if self.ledger_id not in self._owner.ledgers:
            raise NoSuchLedger(f"ledger {self.ledger_id} does not exist")
        self.is_closed = self._ledger.closed
        self.last_add_confirmed = self._confirmed()
        return self.last_add_confirmed

    async def last_recoverable_entry(self) -> int:
        await self._owner.step("read", self.ledger_id)
        return self._ledger.last_entry_id

    async def read_batch(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        await self._owner.step("read", self.ledger_id)
        self._owner.reads += 1
        if self._owner.lac_goes_with_entries:
            assert first <= self.last_add_confirmed, "beyond the last confirmed entry"
            max_count = min(max_count, self.last_add_confirmed - first + 1)
        found: list[StoredEntry] = []
        for entry_id in range(first, min(first + max_count, len(self._ledger.entries))):
            if entry_id in self._ledger.lost:
                break
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
