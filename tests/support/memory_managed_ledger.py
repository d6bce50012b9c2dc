"""Managed ledgers without bookies: positions are computed by the real code, entries are in a list.

Faults are under the test's control: appends can be held back or fail, reads can be cold.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from magnetar_core.bookkeeper.metadata.damage.reports import ignore_damage
from magnetar_core.bookkeeper.metadata.stores.store import Cancel
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.data.buckets import LATENCY_BOUNDS, Buckets, Period
from magnetar_core.runtime.types import MIB, Buffer
from managed_ledger.compacted.ledger import CompactedLedgers
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor import CursorState
from managed_ledger.cursors.cursor_store import CursorCounts
from managed_ledger.errors import (
    CursorNotFound,
    IncompatibleSchema,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerNotFound,
    ManagedLedgerTerminated,
    StorageUnavailable,
)
from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledger_list import LedgerList
from managed_ledger.ledgers.holdings import Changes, Holdings
from managed_ledger.ledgers.tails import Tails
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.reading.entry_cache import EntryCache
from managed_ledger.reading.reading import Entry
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from managed_ledger.schemas.compatibility import Schema, Strategy, check_compatible, check_valid, same_schema
from managed_ledger.schemas.registry import SchemaPlace
from managed_ledger.schemas.stored import StoredSchema
from managed_ledger.writing.appending import AppendListener, NoListener
from tests.support.memory_bookkeeper import MemoryBookKeeper


class MemoryCursor:
    """A cursor of a `MemoryManagedLedger`."""

    def __init__(self, ledger: "MemoryManagedLedger", name: str, state: CursorState, durable: bool) -> None:
        self.name = name
        self.durable = durable
        self.string_properties: dict[str, str] = {}
        self.ledger = ledger
        self.state = state
        self.reads_valid = 0

    @property
    def is_closed(self) -> bool:
        return not self.ledger.is_open

    @property
    def mark_delete_position(self) -> Position:
        return self.state.mark_delete_position

    @property
    def read_position(self) -> Position:
        return self.state.read_position

    @property
    def properties(self) -> dict[str, int]:
        return self.state.properties

    @property
    def idle_since_ms(self) -> int:
        return self.state.idle_since_ms

    def mark_idle(self, since_ms: int) -> None:
        self.state.idle_since_ms = since_ms

    def mark_active(self) -> None:
        self.state.idle_since_ms = 0

    @property
    def ranges_bytes(self) -> int:
        return 0

    @property
    def counts(self) -> CursorCounts:
        return CursorCounts()

    @property
    def range_count(self) -> int:
        return self.state.range_count

    def is_deleted(self, position: Position) -> bool:
        return self.state.is_deleted(position)

    def batch_ack_set(self, position: Position) -> list[int] | None:
        return self.state.batch_ack_set(position)

    def has_more(self) -> bool:
        self.state.skip_deleted()
        return self.state.has_more()

    def backlog(self) -> int:
        return self.state.backlog()

    def unread(self) -> int:
        return self.state.unread()

    def read(self, max_entries: int, max_bytes: int) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        """As the real one: empty only at the end, or where a cold read was overtaken."""
        while True:
            self.state.skip_deleted()
            if not self.state.has_more():
                return []
            found = self.ledger.take(self.state.read_position, max_entries, max_bytes)
            if self.ledger.cold:
                return self._read_cold(found, max_entries, max_bytes, self.reads_valid)
            taken = self._take(found)
            if taken:
                return taken

    def read_again(
        self, first: Position, max_entries: int, max_bytes: int
    ) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        return self.ledger.read(first, max_entries, max_bytes)

    async def _read_cold(self, found: list[Entry], max_entries: int, max_bytes: int, valid: int) -> Sequence[Entry]:
        await self.ledger.wait_cold()
        if valid != self.reads_valid:
            return []
        taken = self._take(found)
        if taken:
            return taken
        more = self.read(max_entries, max_bytes)
        return more if isinstance(more, Sequence) else await more

    def _take(self, found: list[Entry]) -> list[Entry]:
        self.state.moved_past(found[-1].position)
        return [entry for entry in found if not self.state.is_deleted(entry.position)]

    def moved_past(self, position: Position) -> None:
        if position >= self.state.read_position:
            self.reads_valid += 1
            self.state.moved_past(position)

    def rewind(self) -> None:
        self.reads_valid += 1
        self.state.rewind()

    def mark_delete(self, position: Position, properties: Mapping[str, int] | None = None) -> None:
        self.state.mark_delete(position, dict(properties) if properties is not None else None)

    def delete_run(self, ledger_id: int, first: int, last: int) -> None:
        self.state.delete_run(ledger_id, first, last)

    def leave_trimmed(self) -> None:
        self.state.leave_trimmed()

    def delete(self, positions: Iterable[Position]) -> None:
        self.state.delete(positions)

    def acknowledge_batch(self, position: Position, ack_set: Sequence[int], batch_size: int) -> bool:
        return self.state.acknowledge_batch(position, ack_set, batch_size)

    async def reset(self, position: Position) -> None:
        if position == LATEST or position > self.ledger.ledgers.last_confirmed:
            position = self.ledger.ledgers.next_position(self.ledger.ledgers.last_confirmed)
        elif position == EARLIEST or position < self.ledger.ledgers.first_position:
            position = self.ledger.ledgers.first_position
        await self.ledger.answered()
        self.reads_valid += 1
        self.state.reset(position)

    async def flush(self) -> None:
        await self.ledger.answered()

    async def close(self) -> None:
        pass


class MemoryManagedLedger:
    """One topic. `hold = True` keeps appends pending until `release()`; `cold = True` makes reads awaitable."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: ManagedLedgerConfig = ManagedLedgerConfig()
        self.listener: AppendListener = NoListener()
        self.cursors: dict[str, MemoryCursor] = {}
        self.properties: dict[str, str] = {}
        self.index = -1
        self.is_terminated = False
        self.is_open = True
        self.is_taken_over = False
        """Another owner has it, of which this one has not heard."""
        self.hold = False
        self.cold = False
        self.fail_with: ManagedLedgerError | None = None
        self.reads_held: asyncio.Event | None = None
        self.answers_held: asyncio.Event | None = None
        """Until it is set, storage answers nothing but appends and reads of entries, which have their own."""
        self.by_name: dict[str, MemoryManagedLedger] = {}
        self.passed_over_entries = 0
        self.begun_at_ms: dict[int, int] = {}
        self.ledgers = LedgerList()
        self._entries: dict[int, list[Buffer]] = {}
        self._pending: list[tuple[Buffer, Any]] = []
        self._watchers: list[Callable[[], None]] = []
        self._is_scheduled = False
        self.compacted = CompactedLedgers(name, MemoryBookKeeper().client, self.config)

    def begin_ledger(self, ledger_id: int) -> None:
        """Roll over to a new ledger; an empty one is removed, as the real code does."""
        for info in list(self.ledgers):
            if not self.ledgers.entries_of(info.ledgerId):
                self.ledgers.remove(info.ledgerId)
        self.ledgers.add(ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, timestamp=0))
        self._entries[ledger_id] = []
        self._current = ledger_id

    @property
    def state(self) -> str:
        return "LedgerOpened"

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def bytes_total(self) -> int:
        return sum(len(entry) for entries in self._entries.values() for entry in entries)

    @property
    def write_latencies(self) -> Period:
        return Buckets(LATENCY_BOUNDS).last

    @property
    def switch_latencies(self) -> Period:
        return Buckets(LATENCY_BOUNDS).last

    def end_period(self) -> None:
        """Nothing is measured."""

    def begun_ms(self, ledger_id: int) -> int:
        return self.begun_at_ms.get(ledger_id, 0)

    def bytes_after(self, position: Position) -> int:
        entries = self.ledgers.entries_between(position, self.ledgers.last_confirmed)
        return self.bytes_total * entries // max(self.ledgers.entries_total, 1)

    def watch_appends(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(callback)

        def cancel() -> None:
            with contextlib.suppress(ValueError):
                self._watchers.remove(callback)

        return cancel

    async def answered(self) -> None:
        """Wait for an answer of storage. Raises StorageUnavailable if the ledger was closed meanwhile."""
        if self.answers_held is None:
            await asyncio.sleep(0)
            return
        await self.answers_held.wait()
        if not self.is_open:
            raise StorageUnavailable(f"{self.name} is closed")

    # -------------------------------------------------------------------------------- appending

    def append(self, run: Sequence[Buffer], contexts: Sequence[Any]) -> None:
        self._pending.extend(zip((bytes(data) for data in run), contexts, strict=True))
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._complete)

    def release(self) -> None:
        """Complete the appends that `hold` kept back."""
        self.hold = False
        self._complete()

    def _complete(self) -> None:
        self._is_scheduled = False
        if self.hold or not self._pending:
            return
        pending, self._pending = self._pending, []
        contexts = [context for _, context in pending]
        error = self.fail_with
        if self.is_terminated:
            error = ManagedLedgerTerminated(f"{self.name} was terminated")
        if not self.is_open:
            error = StorageUnavailable(f"{self.name} is closed")
        if error is not None:
            self.fail_with = None
            self.listener.on_append_failed(contexts, error)
            return
        entries = self._entries[self._current]
        first = len(entries)
        entries.extend(data for data, _ in pending)
        self.ledgers.set_entries(self._current, len(entries))
        self.listener.on_appended(self._current, first, contexts)
        for callback in list(self._watchers):
            callback()

    # -------------------------------------------------------------------------------- reading

    def take(self, first: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """At most so many entries of one ledger and about so many bytes; one, if there is one."""
        position = self.ledgers.ceiling(first)
        entries = self._entries.get(position.ledger_id, [])
        end = min(self.ledgers.entries_of(position.ledger_id), position.entry_id + max_entries)
        found: list[Entry] = []
        for at in range(position.entry_id, end):
            max_bytes -= len(entries[at])
            if max_bytes < 0 and found:
                break
            found.append(Entry(position.ledger_id, at, entries[at]))
        return found

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        found = self.take(first, max_entries, max_bytes)
        return self._read_cold(found) if self.cold else found

    async def _read_cold(self, found: list[Entry]) -> Sequence[Entry]:
        await self.wait_cold()
        return found

    async def wait_cold(self) -> None:
        if self.reads_held is not None:
            await self.reads_held.wait()
        else:
            await asyncio.sleep(0)

    async def check_owner(self) -> None:
        if self.is_taken_over:
            raise ManagedLedgerFenced(f"{self.name}: another owner took over")

    async def find_first(self, predicate: Callable[[Entry], bool]) -> Position | None:
        if self.answers_held is not None:
            await self.answered()
        for ledger_id, entries in self._entries.items():
            for at, data in enumerate(entries):
                if predicate(Entry(ledger_id, at, data)):
                    return Position(ledger_id, at)
        return None

    # -------------------------------------------------------------------------------- cursors

    def _mark_delete_before(self, start: Position) -> Position:
        if start == LATEST or start > self.ledgers.last_confirmed:
            return self.ledgers.last_confirmed
        if start <= EARLIEST or start < self.ledgers.first_position:
            return self.ledgers.start
        return self.ledgers.previous_position(start)

    async def open_cursor(
        self, name: str, start: Position = LATEST, properties: Mapping[str, str] | None = None
    ) -> MemoryCursor:
        await self.answered()
        if name not in self.cursors:
            state = CursorState(self.ledgers, self._mark_delete_before(start))
            self.cursors[name] = MemoryCursor(self, name, state, True)
            self.cursors[name].string_properties = dict(properties or {})
        return self.cursors[name]

    def new_non_durable_cursor(self, name: str, start: Position) -> MemoryCursor:
        return MemoryCursor(self, name, CursorState(self.ledgers, self._mark_delete_before(start)), False)

    async def delete_cursor(self, name: str) -> None:
        await self.answered()
        if self.cursors.pop(name, None) is None:
            raise CursorNotFound(f"{self.name} has no cursor {name}")

    async def settle_transactions(self, cursor: MemoryCursor) -> None:
        """There are none of Apache's brokers here."""

    # -------------------------------------------------------------------------------- the rest

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        await self.answered()
        self.properties = dict(properties)

    async def terminate(self) -> Position:
        self.is_terminated = True
        return self.ledgers.last_confirmed

    async def trim(self) -> None:
        pass

    def fence(self, error: ManagedLedgerError) -> None:
        """Another broker has taken the topic over."""
        if not self.is_open:
            return
        self.is_open = False
        contexts = [context for _, context in self._pending]
        self._pending.clear()
        loop = asyncio.get_running_loop()
        if contexts:
            loop.call_soon(self.listener.on_append_failed, contexts, error)
        loop.call_soon(self.listener.on_closed, error)

    async def close(self) -> None:
        while self._pending and not self.hold:
            await asyncio.sleep(0)
        self.is_open = False
        self._watchers.clear()

    def forget_owner(self) -> None:
        self.listener = NoListener()
        self._watchers.clear()

    async def delete(self) -> None:
        self.is_open = False
        self.cursors.clear()
        self._entries.clear()
        self.by_name.pop(self.name, None)

    def reopen(self) -> None:
        """Recover as a new owner does: the same entries, and cursors at their first unacknowledged entry."""
        self.is_open = True
        for cursor in self.cursors.values():
            cursor.rewind()


class _Names(dict[str, MemoryManagedLedger]):
    """Tells of names that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: list[Callable[[], None]] = []

    def __setitem__(self, name: str, ledger: MemoryManagedLedger) -> None:
        super().__setitem__(name, ledger)
        self._tell()

    def pop(self, name: str, default: Any = None) -> Any:
        found = super().pop(name, default)
        self._tell()
        return found

    def _tell(self) -> None:
        for changed in list(self.watches):
            asyncio.get_running_loop().call_soon(changed)


class MemoryLedgers:
    """Opens managed ledgers in memory; they survive being closed, as they would on bookies."""

    def __init__(self) -> None:
        self.by_name = _Names()
        self.cache = EntryCache(MIB)
        self.tails = Tails(MemoryBookKeeper().client, self.cache, LoopClock(), ignore_damage)
        self.next_ledger_id = 1
        self.opened: list[str] = []
        self.prepared: list[str] = []
        self.recovered: list[str] = []
        self.changes = Changes()
        self.hold_opening: asyncio.Event | None = None
        self.fail_opening: ManagedLedgerError | None = None
        self.answers_held: asyncio.Event | None = None
        """Until it is set, nobody hears which ledgers there are."""

    async def open(self, name: str, config: ManagedLedgerConfig | None = None, *, create: bool = True) -> ManagedLedger:
        self.opened.append(name)
        await asyncio.sleep(0)
        if self.hold_opening is not None:
            await self.hold_opening.wait()
        if self.fail_opening is not None:
            raise self.fail_opening
        ledger = self.by_name.get(name)
        if ledger is None:
            if not create:
                self.opened.remove(name)
                raise ManagedLedgerNotFound(f"{name} does not exist")
            ledger = self.by_name[name] = MemoryManagedLedger(name)
            ledger.by_name = self.by_name
        if ledger.ledgers.entries_total == 0 or not ledger.is_open:
            ledger.begin_ledger(self.next_ledger_id)
            self.next_ledger_id += 1
        if not ledger.is_open:
            ledger.reopen()
        return cast(ManagedLedger, ledger)

    def prepare(
        self,
        name: str,
        config: ManagedLedgerConfig | None = None,
        *,
        is_dead: bool = True,
        held: Holdings | None = None,
    ) -> None:
        self.prepared.append(name)

    def recover(self, name: str, config: ManagedLedgerConfig | None = None) -> None:
        self.recovered.append(name)

    async def exists(self, name: str) -> bool:
        if self.answers_held is not None:
            await self.answers_held.wait()
        return name in self.by_name

    async def list(self, namespace: str) -> list[str]:
        if self.answers_held is not None:
            await self.answers_held.wait()
        return sorted(name for name in self.by_name if name.startswith(f"{namespace}/persistent/"))

    def watch(self, namespace: str, changed: Callable[[], None]) -> Cancel:
        """Told of all namespaces: that is one too many now and then, and never one too few."""
        self.by_name.watches.append(changed)
        return lambda: self.by_name.watches.remove(changed)

    async def discard(self, name: str) -> None:
        self.by_name.pop(name, None)

    async def close(self) -> None:
        pass


class MemorySchemas:
    """The schema registry with its real rules, in a dict."""

    def __init__(self) -> None:
        self.by_id: dict[str, list[StoredSchema]] = {}
        self.answers_held: asyncio.Event | None = None

    async def get(self, schema_id: str, version: int | None = None) -> StoredSchema | None:
        if self.answers_held is not None:
            await self.answers_held.wait()
        stored = self.by_id.get(schema_id, [])
        if version is None:
            return stored[-1] if stored else None
        return stored[version] if 0 <= version < len(stored) else None

    async def versions(self, schema_id: str) -> list[StoredSchema]:
        return list(self.by_id.get(schema_id, []))

    async def ledgers(self, schema_id: str) -> list[int]:
        return [place.ledger_id for place in await self.positions_of_versions(schema_id)]

    async def positions_of_versions(self, schema_id: str) -> list[SchemaPlace]:
        return [SchemaPlace(stored.version, stored.version, 0) for stored in self.by_id.get(schema_id, [])]

    async def put_if_absent(
        self, schema_id: str, schema: Schema, strategy: Strategy, *, user: str = "", allow_update: bool = True
    ) -> int:
        await self.check(schema_id, schema, strategy)
        stored = self.by_id.setdefault(schema_id, [])
        for known in stored:
            if same_schema(schema, known.schema):
                return known.version
        if not allow_update:
            raise IncompatibleSchema(f"{schema_id} does not take new schemas by itself")
        stored.append(StoredSchema(len(stored), schema, 0, user, False))
        return len(stored) - 1

    async def check(self, schema_id: str, schema: Schema, strategy: Strategy, *, by_rule: bool = False) -> None:
        if self.answers_held is not None:
            await self.answers_held.wait()
        check_valid(schema)
        live = [known.schema for known in self.by_id.get(schema_id, [])]
        if live and not any(same_schema(schema, known) for known in (live[-1:] if by_rule else live)):
            check_compatible(schema, live, strategy)

    async def delete(self, schema_id: str, *, force: bool = False) -> int | None:
        stored = self.by_id.pop(schema_id, [])
        return stored[-1].version if stored else None
