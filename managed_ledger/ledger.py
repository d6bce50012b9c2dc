"""The endless log of one topic: a row of ledgers, of which the last is written.

Rules the code below keeps:

1. A ledger stands in the topic's record before anything is appended to it (correctness I86); all before it are closed
   before the next one is written (I87).
2. Appends complete in order, each exactly once: by `on_appended`, or by `on_append_failed`. What waits during a
   rollover or after a failed write is sent, in order, to the next ledger.
3. After somebody else has fenced the ledger or changed the record, nothing is acknowledged, appended, trimmed or
   stored any more (I90).
4. CLOSED and FENCED are final: who comes back from waiting for storage looks whether one of them has come meanwhile.
5. At most one rollover is under way. A ledger that is closed or being closed has nothing pending, so that what its
   handle still says of failures changes nothing.
6. A ledger is deleted after the record is known not to name it (I57).

    CREATING ──▶ OPENED ──full──▶ CLOSING ──all answered──▶ CREATING
                   │  ├──write failed──▶ WRITE_FAILED ─────▶ CREATING
                   │  └──▶ TERMINATING ──not stored────────▶ CREATING
                   │             └──stored──▶ TERMINATED
                   └──▶ CLOSED, FENCED   (final)

(pulsar.md 4.4 to 4.6)
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote_plus

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    EntryTooLarge,
    LedgerFenced,
    MetadataConflict,
    NoSuchEntry,
    NoSuchLedger,
    TooManyPending,
)
from magnetar_core.bookkeeper.client.handle import LedgerReadHandle, LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledgers import LedgerMetadata
from magnetar_core.bookkeeper.metadata.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import FAILED, Tasks, attempt, attempt_now
from magnetar_core.runtime.types import Buffer, Corruption, bare
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor import CursorState
from managed_ledger.cursors.cursor_store import CursorStore
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.entry_cache import EntryCache
from managed_ledger.errors import (
    CursorExists,
    CursorNotFound,
    EntryRefused,
    ManagedLedgerClosed,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerNotFound,
    ManagedLedgerTerminated,
    RecordInDoubt,
    RecordUnreadable,
    StorageUnavailable,
)
from managed_ledger.ledger_list import LedgerList
from managed_ledger.names import cursor_path, ledger_path
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.records import decode_ledger_info, encode_record
from managed_ledger.records_pb2 import ManagedLedgerInfo
from managed_ledger.retention import LedgerSummary, is_full, trimmable
from managed_ledger.versioned_record import VersionedRecord

log = logging.getLogger(__name__)

# Waits between attempts to get a new ledger while bookies or metadata are away.
RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 2.0

# A conflict while opening means that another broker opens the same topic; one of us wins after a round or two.
OPEN_ATTEMPTS_MAX: Final = 5

# Entries that are handed to the ledger at once. What gathered during a rollover may be more than the handle takes
# (maxPendingAddsPerLedger); the rest follows as answers come.
SEND_RUN_MAX: Final = 10_000

# How often those who wait for a state of the managed ledger look at it.
_LOOK_S: Final = 0.01


class Entry(NamedTuple):
    """A stored entry: what the producer sent, as it sent it."""

    ledger_id: int
    entry_id: int
    data: Buffer

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)


class AppendListener(Protocol):
    """Who appends. All calls come on the event loop, never from inside `append`."""

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Any]) -> None:
        """Entries with consecutive ids are on the ack quorum; *contexts* are those given with them, in order."""
        ...

    def on_append_failed(self, contexts: Sequence[Any], error: ManagedLedgerError) -> None:
        """These entries are not acknowledged. Whether they become readable is not known."""
        ...

    def on_closed(self, error: ManagedLedgerError) -> None:
        """The managed ledger cannot be used any more; open it again, if it still is ours."""
        ...


class _NoListener:
    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Any]) -> None:
        pass

    def on_append_failed(self, contexts: Sequence[Any], error: ManagedLedgerError) -> None:
        pass

    def on_closed(self, error: ManagedLedgerError) -> None:
        pass


class State(Enum):
    """As Pulsar's statistics name them."""

    OPENED = "LedgerOpened"
    CLOSING = "ClosingLedger"
    CREATING = "CreatingLedger"
    WRITE_FAILED = "WriteFailed"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    CLOSED = "Closed"
    FENCED = "Fenced"


_TAKES_APPENDS: Final = frozenset({State.OPENED, State.CLOSING, State.CREATING, State.WRITE_FAILED, State.TERMINATING})


class _Appender:
    """Listens to one ledger handle, so that what a former one still says is not mistaken for the present one."""

    def __init__(self, owner: "ManagedLedger", handle: LedgerWriteHandle) -> None:
        self._owner = owner
        self._handle = handle

    def on_acknowledged(self, up_to: int) -> None:
        self._owner.on_acknowledged(self._handle, up_to)

    def on_failed(self, error: BookKeeperError) -> None:
        self._owner.on_failed(self._handle, error)


class ManagedLedger:
    """Append, read and follow one topic. Made by `ManagedLedgerFactory.open`."""

    def __init__(
        self,
        name: str,
        bookkeeper: BookKeeper,
        store: MetadataStore,
        clock: Clock,
        config: ManagedLedgerConfig,
        cache: EntryCache,
    ) -> None:
        """*cache* may be shared with others: ledger ids are unique in a cluster."""
        self.name = name
        self.config = config
        self.listener: AppendListener = _NoListener()
        self.on_ended: Callable[[ManagedLedger], None] = lambda ledger: None
        """Called when this object has closed or deleted what is its, and does nothing any more."""
        self.cursors: dict[str, ManagedCursor] = {}
        self._bookkeeper = bookkeeper
        self._store = store
        self._clock = clock
        self._record = VersionedRecord(store, ledger_path(name))
        # Held while the record is written, and by those who must not meet a trim. A cursor's own lock comes before it.
        self.record_lock = asyncio.Lock()
        self._ledgers = LedgerList()
        self._info = ManagedLedgerInfo()  # the record as last read or written; keeps what we do not know
        self._tasks = Tasks(name)
        self._deletions = Tasks(f"{name}: deletions")  # end by themselves, or ledgers would be left that nobody knows
        self._cache = cache
        self._readers: OrderedDict[int, LedgerReadHandle] = OrderedDict()
        self._watchers: list[Callable[[], None]] = []
        self._state = State.CREATING
        self._error: ManagedLedgerError | None = None
        # The ledger that is written. What was sent to it and not answered yet stands in _pending, from entry
        # _pending_first on; what could not be sent stands in _queued.
        self._handle: LedgerWriteHandle | None = None
        self._handle_since = 0.0
        self._sent = 0
        self._sent_bytes = 0
        self._acked_bytes = 0
        self._pending: deque[tuple[Buffer, Any]] = deque()
        self._pending_first = 0
        self._queued: deque[tuple[Buffer, Any]] = deque()
        self._trimming = False
        # Ledgers to be deleted after the next write of the record: it does not name them, or will not then (rule 6).
        self._orphans: set[int] = set()
        self._ending: asyncio.Future[None] | None = None
        self.entries_added = 0

    # ---------------------------------------------------------------------------------- opening

    async def open(self, *, create: bool) -> None:
        """Take over: recover and close the last ledger, begin a new one, recover the cursors.

        Raises ManagedLedgerNotFound, StorageUnavailable, ManagedLedgerFenced (another owner was faster).
        """
        try:
            for attempt in range(OPEN_ATTEMPTS_MAX):
                try:
                    await self._open_once(create)
                    break
                except ManagedLedgerFenced:
                    if attempt == OPEN_ATTEMPTS_MAX - 1:
                        raise
                    await self._clock.sleep(RETRY_FIRST_S * (attempt + 1))
            for cursor in await self._store.children(ledger_path(self.name)):
                await self._recover_cursor(unquote_plus(cursor))
        except BaseException:
            self._state = State.CLOSED
            self._error = ManagedLedgerClosed(f"{self.name} was not opened")
            await self._let_go()
            raise
        if self._state is State.CREATING:
            self._state = State.OPENED

    async def _open_once(self, create: bool) -> None:
        value = await self._record.read()
        if value is None:
            if not create:
                raise ManagedLedgerNotFound(f"{self.name} does not exist")
            await self._record.write(b"")
            value = b""
        self._ledgers = LedgerList()
        self._orphans.clear()
        try:
            self._info = decode_ledger_info(value, self.name)
            for info in self._info.ledgerInfo:
                self._ledgers.add(info)
        except (Corruption, AssertionError, ValueError) as error:
            raise RecordUnreadable(f"{self.name}: its record {ledger_path(self.name)}: {error}") from error
        if self._info.HasField("terminatedPosition"):
            self._state = State.TERMINATED
            await self._recover_last()
            async with self.record_lock:
                await self._write_record(list(self._ledgers))  # so that a former owner finds out when it asks
            return
        await self._recover_last()
        empty = [info.ledgerId for info in self._ledgers if not info.entries]
        for ledger_id in empty:
            self._ledgers.remove(ledger_id)
        self._orphans.update(empty)
        await self._begin_ledger()

    async def _recover_last(self) -> None:
        """Fence and close the last ledger, which a former owner may still be writing to."""
        infos = list(self._ledgers)
        if not infos:
            return
        last = infos[-1]
        try:
            handle = await self._bookkeeper.open_ledger(last.ledgerId, password=self.config.password, recovery=True)
        except NoSuchLedger:
            log.warning("%s: ledger %s is in its record but does not exist; leaving it out", self.name, last.ledgerId)
            self._ledgers.remove(last.ledgerId)
            return
        except BookKeeperError as error:
            raise StorageUnavailable(f"{self.name}: cannot recover ledger {last.ledgerId}: {error}") from error
        last.entries = handle.last_add_confirmed + 1
        last.size = handle.length
        if not last.timestamp:
            last.timestamp = self._clock.wall_ms()
        self._ledgers.set_entries(last.ledgerId, last.entries)
        await handle.close()

    async def _begin_ledger(self) -> None:
        """Create a ledger and put it into the record; then it may be written.

        Raises as `open` does, and what ended the managed ledger meanwhile.
        """
        try:
            handle = await self._bookkeeper.create_ledger(
                ensemble_size=self.config.ensemble_size,
                write_quorum=self.config.write_quorum,
                ack_quorum=self.config.ack_quorum,
                digest_type=self.config.digest_type,
                password=self.config.password,
                custom_metadata=(
                    ("application", b"pulsar"),
                    ("component", b"managed-ledger"),
                    ("pulsar/managed-ledger", self.name.encode()),
                ),
            )
        except BookKeeperError as error:
            raise StorageUnavailable(f"{self.name}: cannot create a ledger: {error}") from error
        info = ManagedLedgerInfo.LedgerInfo(ledgerId=handle.ledger_id, timestamp=0)
        try:
            async with self.record_lock:
                await self._write_record([*self._ledgers, info])
                self._ledgers.add(info)  # under the lock: a trim in between would write a record without it
            self._check_not_ended()
        except (RecordInDoubt, asyncio.CancelledError):
            self._orphans.add(handle.ledger_id)  # rule 6
            await handle.abandon()
            raise
        except ManagedLedgerError:
            await handle.abandon()
            if handle.ledger_id not in self._ledgers:
                await self._drop(handle.ledger_id)
            raise
        handle.listener = _Appender(self, handle)
        self._handle = handle
        self._handle_since = self._clock.monotonic()
        self._sent = self._sent_bytes = self._acked_bytes = self._pending_first = 0

    async def _write_record(
        self,
        infos: Sequence[ManagedLedgerInfo.LedgerInfo],
        change: Callable[[ManagedLedgerInfo], None] | None = None,
    ) -> None:
        """Store *infos* as the list of ledgers, and what *change* does to the rest. The record lock is held."""
        self._check_not_ended()
        await self._store_record(infos, change)

    async def _store_record(
        self,
        infos: Sequence[ManagedLedgerInfo.LedgerInfo],
        change: Callable[[ManagedLedgerInfo], None] | None = None,
    ) -> None:
        record = ManagedLedgerInfo()
        record.CopyFrom(self._info)
        del record.ledgerInfo[:]
        record.ledgerInfo.extend(infos)
        if change is not None:
            change(record)
        await self._record.write(encode_record(record))
        self._info = record
        going = self._orphans - {info.ledgerId for info in infos}  # rule 6: some may have come while we wrote
        self._orphans -= going
        self._drop_soon(going)

    async def _recover_cursor(self, name: str) -> None:
        store = self._cursor_store(name)
        try:
            snapshot = await store.load(self._ledgers.start)
            position = self._ledgers.floor(max(snapshot.mark_delete_position, self._ledgers.start))
            position = min(position, self._ledgers.last_confirmed)
            state = CursorState(self._ledgers, position)
            state.restore(snapshot.ranges, snapshot.batches, snapshot.properties.items())
        except (Corruption, AssertionError, ValueError) as error:
            raise RecordUnreadable(f"{self.name}: the record {cursor_path(self.name, name)}: {error}") from error
        self.cursors[name] = self._cursor(name, state, store)

    # ------------------------------------------------------------------------------------ state

    @property
    def state(self) -> str:
        return self._state.value

    @property
    def is_terminated(self) -> bool:
        return self._state is State.TERMINATED

    @property
    def is_open(self) -> bool:
        """Whether appends are taken."""
        return self._state in _TAKES_APPENDS

    @property
    def pending_count(self) -> int:
        """Appends that are not answered yet."""
        return len(self._pending) + len(self._queued)

    @property
    def last_confirmed(self) -> Position:
        """The last entry that is acknowledged."""
        return self._ledgers.last_confirmed

    @property
    def first_position(self) -> Position:
        """The first entry there is, or where it will be."""
        return self._ledgers.first_position

    @property
    def properties(self) -> Mapping[str, str]:
        return {item.key: item.value for item in self._info.properties}

    @property
    def entries_total(self) -> int:
        return self._ledgers.entries_total

    @property
    def bytes_total(self) -> int:
        """Bytes of all entries, as the ledgers count them (payload without envelopes)."""
        return sum(info.size for info in self._ledgers) + self._acked_bytes

    def next_position(self, position: Position) -> Position:
        """The first position after this one; maybe one behind the end."""
        return self._ledgers.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """The last entry before this one."""
        return self._ledgers.previous_position(position)

    def check_within(self, position: Position) -> None:
        """Raises InvalidPosition for what lies beyond the end."""
        self._ledgers.check_within(position)

    def entries_between(self, after: Position, up_to: Position) -> int:
        """Entries after the one and not after the other."""
        return self._ledgers.entries_between(after, up_to)

    def watch_appends(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* after `last_confirmed` has moved; returns a call that ends this."""
        self._watchers.append(callback)

        def cancel() -> None:
            with contextlib.suppress(ValueError):
                self._watchers.remove(callback)

        return cancel

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something that ends with this managed ledger."""
        if self._is_ended:
            work.close()
            return
        self._tasks.spawn(work, name)

    @property
    def _is_ended(self) -> bool:
        return self._state in (State.CLOSED, State.FENCED)

    def check_not_fenced(self) -> None:
        if self._state is State.FENCED:
            assert self._error is not None
            raise ManagedLedgerFenced(str(self._error))

    def _check_not_ended(self) -> None:
        """Rule 4. Raises ManagedLedgerFenced, or what else ended this managed ledger."""
        self.check_not_fenced()
        if self._state is State.CLOSED:
            raise ManagedLedgerClosed(str(self._refusal()))

    async def check_owner(self) -> None:
        """Ask the record whether another owner has taken over; if so, this one is fenced.

        Raises ManagedLedgerFenced, StorageUnavailable.
        """
        self.check_not_fenced()
        async with self.record_lock:
            await self._check_record()

    async def _check_record(self) -> None:
        try:
            await self._record.check_unchanged()
        except ManagedLedgerFenced as error:
            self.fence(error)
            raise

    # --------------------------------------------------------------------------------- appending

    def append(self, run: Sequence[Buffer], contexts: Sequence[Any]) -> None:
        """Write entries; answers come through `listener`, in order. Never blocks, never raises for the storage."""
        assert len(run) == len(contexts), (len(run), len(contexts))
        if self._state not in _TAKES_APPENDS:
            error = self._refusal()
            asyncio.get_running_loop().call_soon(self.listener.on_append_failed, list(contexts), error)
            return
        self._queued.extend(zip(run, contexts, strict=True))
        if self._state is State.OPENED:
            self._send_queued()

    def _refusal(self) -> ManagedLedgerError:
        if self._state is State.TERMINATED:
            return ManagedLedgerTerminated(f"{self.name} was terminated")
        return ManagedLedgerClosed(f"{self.name} is closed") if self._error is None else bare(self._error)

    def _send_queued(self) -> None:
        """Send what waits, as far as the present ledger has room."""
        handle = self._handle
        assert handle is not None
        run_max = SEND_RUN_MAX
        while self._queued and self._state is State.OPENED:
            room = self._room()
            if room <= 0:
                self._begin_rollover()
                return
            chunk = list(islice(self._queued, min(room, run_max)))
            payloads = [data for data, _ in chunk]
            try:
                handle.append(payloads)
            except TooManyPending:
                if self._pending:
                    return  # sent when the bookies have answered
                if handle.is_blocked:
                    handle.when_writable(self._send_what_waits)
                    return
                if len(chunk) == 1:
                    raise  # the limits leave no room for a single entry
                run_max = len(chunk) // 2
                continue
            except EntryTooLarge as error:
                if len(chunk) == 1:  # no other ledger would take it either
                    _, context = self._queued.popleft()
                    refusal = EntryRefused(f"{self.name}: {error}")
                    asyncio.get_running_loop().call_soon(self.listener.on_append_failed, [context], refusal)
                run_max = 1  # nothing of the run was taken: find out which it is
                continue
            except BookKeeperError as error:
                self.on_failed(handle, error)
                return
            for _ in range(len(chunk)):
                self._queued.popleft()
            self._pending.extend(chunk)
            self._sent += len(chunk)
            self._sent_bytes += sum(map(len, payloads))
        if self._state is State.OPENED and self._is_full():
            self._begin_rollover()

    def _send_what_waits(self) -> None:
        if self._state is State.OPENED and self._queued:
            self._send_queued()

    def _age_ms(self) -> int:
        return int((self._clock.monotonic() - self._handle_since) * 1000)

    def _is_full(self) -> bool:
        return is_full(self.config.rollover, self._sent, self._sent_bytes, self._age_ms())

    def _room(self) -> int:
        """How many more entries the present ledger takes."""
        rule = self.config.rollover
        if self._is_full():
            return 0
        if self._age_ms() < rule.age_min_ms:
            return len(self._queued)
        return max(rule.entries_max - self._sent, 0)

    def on_acknowledged(self, handle: LedgerWriteHandle, up_to: int) -> None:
        """All entries up to *up_to* of the present ledger are safe."""
        if handle is not self._handle or not self._pending or self._is_ended:
            return
        first = self._pending_first
        count = up_to - first + 1
        assert 0 <= count <= len(self._pending), (up_to, first, len(self._pending))
        if not count:
            return
        popleft = self._pending.popleft
        done = [popleft() for _ in range(count)]
        payloads = [data for data, _ in done]
        self._pending_first += count
        self._acked_bytes += sum(map(len, payloads))
        self.entries_added += count
        self._ledgers.set_entries(handle.ledger_id, up_to + 1)
        self._cache.put_run(handle.ledger_id, first, payloads)
        try:
            self.listener.on_appended(handle.ledger_id, first, [context for _, context in done])
        except Exception as error:
            # Who was told and who was not cannot be known: end it, so that all are told and ask again.
            log.exception("%s: its owner cannot take what is stored", self.name)
            self._give_up(StorageUnavailable(f"{self.name}: a defect, see the log: {error!r}"))
            return
        for callback in list(self._watchers):
            attempt_now(f"{self.name}: telling of new entries", callback)
        if self._queued and self._state is State.OPENED:
            self._send_queued()
        elif self._state is State.CLOSING and not self._pending:
            self._start_next_ledger()

    def on_failed(self, handle: LedgerWriteHandle, error: BookKeeperError) -> None:
        """The present ledger takes nothing any more."""
        if handle is not self._handle or self._state not in (State.OPENED, State.CLOSING, State.TERMINATING):
            return  # rule 5
        if self._state is State.TERMINATING and not self._pending:
            return  # rule 5
        if isinstance(error, LedgerFenced | MetadataConflict):
            self.fence(ManagedLedgerFenced(f"{self.name}: another owner took over ledger {handle.ledger_id}"))
            return
        log.warning(
            "%s: writing to ledger %s failed: %s; going on with another one", self.name, handle.ledger_id, error
        )
        self._state = State.WRITE_FAILED
        self._queued.extendleft(reversed(self._pending))  # rule 2: sent again, before what came later
        self._pending.clear()
        self.spawn(self._next_ledger(), "new ledger")

    # ---------------------------------------------------------------------------------- rollover

    def _begin_rollover(self) -> None:
        self._state = State.CLOSING
        if not self._pending:
            self._start_next_ledger()

    def _start_next_ledger(self) -> None:
        self._state = State.CREATING
        self.spawn(self._next_ledger(), "rollover")

    async def _next_ledger(self) -> None:
        """Close the present ledger, begin the next, send what waits; retry until the append time-out."""
        deadline = self._clock.monotonic() + self.config.append_timeout_s
        wait_s = RETRY_FIRST_S
        while True:
            try:
                self._check_not_ended()
                await self._close_present()
                self._check_not_ended()
                self._state = State.CREATING
                await self._begin_ledger()
                break
            except ManagedLedgerFenced as error:
                self.fence(error)
                return
            except StorageUnavailable as error:
                if self._clock.monotonic() + wait_s > deadline:
                    self._give_up(error)
                    return
                log.warning("%s; trying again", error)
                await self._clock.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_LAST_S)
            except ManagedLedgerClosed:
                return
            except Exception as error:
                # Somebody has to be told, or the topic would wait for ever with what it has queued.
                log.exception("%s: the next ledger cannot be begun", self.name)
                self._give_up(StorageUnavailable(f"{self.name}: the next ledger cannot be begun: {error!r}"))
                return
        self._state = State.OPENED
        self._send_queued()
        self.cursor_was_stored()

    async def _close_present(self) -> None:
        """Close the ledger that was written and note its length. Does nothing when that is done already."""
        handle = self._handle
        if handle is None:
            return
        metadata = await self._close_handle(handle)
        acknowledged = self._ledgers.entries_of(handle.ledger_id)
        if metadata.last_entry_id + 1 != acknowledged:
            # Only a recovery by somebody else finds entries that we do not know to be acknowledged.
            raise ManagedLedgerFenced(
                f"{self.name}: ledger {handle.ledger_id} was closed by another owner at entry {metadata.last_entry_id}"
            )
        self._handle = None
        self._readers.pop(handle.ledger_id, None)
        if acknowledged == 0:
            self._ledgers.remove(handle.ledger_id)
            self._orphans.add(handle.ledger_id)
            return
        info = self._ledgers.info(handle.ledger_id)
        info.entries = acknowledged
        info.size = metadata.length
        info.timestamp = self._clock.wall_ms()
        self._acked_bytes = 0

    async def _close_handle(self, handle: LedgerWriteHandle) -> LedgerMetadata:
        try:
            return await handle.close()
        except (LedgerFenced, MetadataConflict) as error:
            raise ManagedLedgerFenced(f"{self.name}: another owner took over: {error}") from error
        except BookKeeperError as error:
            raise StorageUnavailable(f"{self.name}: cannot close ledger {handle.ledger_id}: {error}") from error

    def fence(self, error: ManagedLedgerError) -> None:
        """Rule 3. Everything that waits fails, and the owner is told."""
        if not self._is_ended:
            log.warning("%s: fenced: %s", self.name, error)
            self._end(State.FENCED, error)

    def _give_up(self, error: ManagedLedgerError) -> None:
        if not self._is_ended:
            log.error("%s: closing, since there is no storage: %s", self.name, error)
            self._end(State.CLOSED, error)

    def _end(self, state: State, error: ManagedLedgerError) -> None:
        self._state = state
        self._error = bare(error)
        contexts = self._take_waiting()
        for cursor in self.cursors.values():
            cursor.abandon()
        loop = asyncio.get_running_loop()
        if contexts:
            loop.call_soon(self.listener.on_append_failed, contexts, error)
        loop.call_soon(self.listener.on_closed, error)

    def _take_waiting(self) -> list[Any]:
        """Contexts of all that is not answered; nobody else will answer it."""
        contexts = [context for _, context in self._pending] + [context for _, context in self._queued]
        self._pending.clear()
        self._queued.clear()
        return contexts

    # ----------------------------------------------------------------------------------- reading

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        """Entries from *first* (or the next one there is) on, in order, of one ledger.

        At most *max_entries* and about *max_bytes*, but at least one if there is one; never past `last_confirmed`;
        empty at the end. What memory has is returned at once. The awaitable raises StorageUnavailable.
        """
        position = self._ledgers.ceiling(first)
        last = self._ledgers.entries_of(position.ledger_id) - 1
        if position.entry_id > last:
            return []
        last = min(last, position.entry_id + max_entries - 1)
        found = self._cache.get_run(position.ledger_id, position.entry_id, last, max_bytes)
        if found:
            ledger_id = position.ledger_id
            return [Entry(ledger_id, entry_id, data) for entry_id, data in enumerate(found, start=position.entry_id)]
        return self._read_cold(position, last, max_bytes)

    async def _read_cold(self, position: Position, last: int, max_bytes: int) -> Sequence[Entry]:
        ledger_id = position.ledger_id
        try:
            reader = await self._reader(ledger_id)
            # Up to `last` we know the entries to be confirmed; the handle of an open ledger may not.
            stored = await reader.read_batch_unconfirmed(position.entry_id, last - position.entry_id + 1, max_bytes)
        except (NoSuchLedger, NoSuchEntry) as error:
            if ledger_id not in self._ledgers:  # trimmed while we read: go on behind it
                return []
            raise StorageUnavailable(f"{self.name}: entry {position} is missing: {error}") from error
        except (BookKeeperError, Corruption) as error:
            raise StorageUnavailable(f"{self.name}: cannot read {position}: {error}") from error
        return [Entry(ledger_id, item.entry_id, item.payload) for item in stored]

    async def _reader(self, ledger_id: int) -> LedgerReadHandle:
        handle = self._handle
        reader = self._readers.get(ledger_id)
        if (
            reader is not None
            and handle is not None
            and handle.ledger_id == ledger_id
            and reader.metadata.segments != handle.metadata.segments  # the writer changed its ensemble since
        ):
            reader = None
        if reader is None:
            reader = await self._bookkeeper.open_ledger(ledger_id, password=self.config.password, recovery=False)
            self._readers[ledger_id] = reader
            while len(self._readers) > self.config.read_handles_max:
                await self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(ledger_id)
        return reader

    async def find_first(self, predicate: Callable[[Entry], bool]) -> Position | None:
        """The first position for whose entry *predicate* is true, by bisection; None if there is none.

        *predicate* must be false up to some entry and true from there on. Raises StorageUnavailable.
        """
        # Kept as positions, not as numbers: while we wait for a reading, old ledgers may go and new entries come.
        false_at, true_at = EARLIEST, self._ledgers.next_position(self.last_confirmed)
        while (between := self._ledgers.entries_between(false_at, self._ledgers.previous_position(true_at))) > 0:
            position = self._ledgers.position_at(self._ledgers.entries_up_to(false_at) + between // 2)
            found = self.read(position, 1, 1)
            entries = found if isinstance(found, Sequence) else await found
            if not entries:
                continue  # its ledger was trimmed; what is left is counted anew
            if predicate(entries[0]):
                true_at = min(true_at, entries[0].position)
            else:
                false_at = entries[0].position
        position = self._ledgers.ceiling(true_at)
        return position if position <= self.last_confirmed else None

    # ----------------------------------------------------------------------------------- cursors

    def _cursor_store(self, name: str) -> CursorStore:
        return CursorStore(
            topic=self.name,
            cursor=name,
            path=cursor_path(self.name, name),
            bookkeeper=self._bookkeeper,
            store=self._store,
            clock=self._clock,
            config=self.config,
            check_owner=self.check_owner,
        )

    def _cursor(self, name: str, state: CursorState, store: CursorStore | None) -> ManagedCursor:
        return ManagedCursor(self, name, state, self._clock, store, self.config.mark_delete_interval_s)

    def _mark_delete_before(self, start: Position) -> Position:
        """The mark-delete position of a cursor that reads *start* first."""
        if start == LATEST or start > self.last_confirmed:
            return self.last_confirmed
        if start <= EARLIEST or start < self.first_position:
            return self._ledgers.start
        return self._ledgers.previous_position(start)

    async def open_cursor(
        self,
        name: str,
        start: Position = LATEST,
        properties: Mapping[str, str] | None = None,
    ) -> ManagedCursor:
        """The durable cursor of that name; made at *start*, the first position to deliver, if there is none.

        Raises StorageUnavailable, ManagedLedgerFenced.
        """
        if name in self.cursors:
            return self.cursors[name]
        store = self._cursor_store(name)
        # The record lock keeps a trim from removing the ledger that the new cursor starts in (correctness I96).
        async with self.record_lock:
            self._check_not_ended()
            if name in self.cursors:
                return self.cursors[name]
            position = self._mark_delete_before(start)
            # It may be there: made by an earlier call that had no answer, or by a former owner after we read the list.
            with contextlib.suppress(CursorExists):
                await store.create(position, {}, properties or {})
            # Who takes over after this sees the cursor; who took over before may not have.
            await self._check_record()
            self._check_not_ended()
            await self._recover_cursor(name)
            return self.cursors[name]

    def new_non_durable_cursor(self, name: str, start: Position) -> ManagedCursor:
        """A cursor that leaves nothing behind and does not hold back trimming."""
        return self._cursor(name, CursorState(self._ledgers, self._mark_delete_before(start)), None)

    async def delete_cursor(self, name: str) -> None:
        """Raises CursorNotFound, ManagedLedgerFenced, StorageUnavailable: then it stays, and holds its messages."""
        cursor = self.cursors.get(name)
        if cursor is None:
            raise CursorNotFound(f"{self.name} has no cursor {name}")
        self._check_not_ended()
        try:
            await cursor.remove()
        except ManagedLedgerFenced as error:
            self.fence(error)
            raise
        if self.cursors.get(name) is cursor:
            del self.cursors[name]
        self.cursor_was_stored()

    def cursor_was_stored(self) -> None:
        """A cursor's stored position moved, or a ledger was closed: perhaps old ledgers can go."""
        if not self._trimming and self._trimmable():
            self.spawn(self._trim_quietly(), "trim")

    async def _trim_quietly(self) -> None:
        await attempt(f"{self.name}: trimming", self.trim())  # tried again by the maintenance

    # ---------------------------------------------------------------------------------- trimming

    def _trimmable(self) -> list[int]:
        if self._state not in _TAKES_APPENDS:
            return []
        current = self._handle.ledger_id if self._handle is not None else None
        closed = [
            LedgerSummary(info.ledgerId, info.entries, info.size, info.timestamp)
            for info in self._ledgers
            if info.ledgerId != current and info.HasField("entries")
        ]
        if current is None and closed:
            closed.pop()  # between two ledgers: the last one stays
        positions = [cursor.persisted_mark_delete_position for cursor in self.cursors.values()]
        slowest = min(positions) if positions else None
        return trimmable(closed, slowest, self.config.retention, self._clock.wall_ms(), self.bytes_total)

    async def trim(self) -> None:
        """Delete ledgers that all durable cursors have consumed and that retention does not keep.

        Raises StorageUnavailable. The record is written first, the ledgers are deleted after.
        """
        if self._trimming:
            return
        self._trimming = True
        try:
            async with self.record_lock:
                going = self._trimmable()
                if not going:
                    return
                await self._write_record([info for info in self._ledgers if info.ledgerId not in going])
                for ledger_id in going:
                    self._ledgers.remove(ledger_id)
                    self._cache.forget_ledger(ledger_id)
            for cursor in self.cursors.values():
                cursor.ledgers_changed()
            for ledger_id in going:
                self._readers.pop(ledger_id, None)
            await asyncio.wait(self._drop_soon(going))
        except ManagedLedgerFenced as error:
            self.fence(error)
        except ManagedLedgerClosed:
            pass
        finally:
            self._trimming = False

    async def maintain(self) -> None:
        """What time makes due: an old ledger is rolled over, an expired one goes. Raises StorageUnavailable."""
        if self._state is State.OPENED and self._is_full():
            self._begin_rollover()
        await self.trim()

    def _drop_soon(self, ledger_ids: Iterable[int]) -> list[asyncio.Task[None]]:
        return [self._deletions.spawn(self._drop(ledger_id), f"ledger {ledger_id}") for ledger_id in ledger_ids]

    async def _drop(self, ledger_id: int) -> None:
        """Delete a ledger that no record names; a failure leaves garbage, not damage."""
        try:
            await self._bookkeeper.delete_ledger(ledger_id)
        except NoSuchLedger:
            pass
        except BookKeeperError as error:
            log.warning("%s: ledger %s could not be deleted: %s", self.name, ledger_id, error)
            self._orphans.add(ledger_id)  # tried again when the record is written next

    # -------------------------------------------------------------------------- record and the end

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the stored properties; durable on return. Raises ManagedLedgerFenced, StorageUnavailable."""

        def change(record: ManagedLedgerInfo) -> None:
            del record.properties[:]
            for key, value in properties.items():
                record.properties.add(key=key, value=value)

        try:
            async with self.record_lock:
                await self._write_record(list(self._ledgers), change)
        except ManagedLedgerFenced as error:
            self.fence(error)
            raise

    async def terminate(self) -> Position:
        """Take no more entries, ever; returns the last position, which is stored by then.

        What is pending completes first; what comes meanwhile waits, and is refused in the end, or appended after all
        if the termination could not be stored. Raises ManagedLedgerFenced, StorageUnavailable.
        """
        while self._state is not State.OPENED:
            if self._state is State.TERMINATED:
                return self.last_confirmed
            if self._state not in _TAKES_APPENDS:
                raise self._refusal()
            await self._clock.sleep(_LOOK_S)
        self._state = State.TERMINATING
        while self._state is State.TERMINATING and self._pending:
            await self._clock.sleep(_LOOK_S)
        if self._state is not State.TERMINATING:  # a write failed: go on when the next ledger is there
            return await self.terminate()
        try:
            await self._close_present()
            last = self.last_confirmed

            def change(record: ManagedLedgerInfo) -> None:
                record.terminatedPosition.ledgerId = last.ledger_id
                record.terminatedPosition.entryId = last.entry_id

            async with self.record_lock:
                await self._write_record(list(self._ledgers), change)
        except ManagedLedgerFenced as error:
            self.fence(error)
            raise
        except BaseException:
            if self._state is State.TERMINATING:
                self._start_next_ledger()
            raise
        self._check_not_ended()
        self._state = State.TERMINATED
        contexts = self._take_waiting()
        if contexts:
            asyncio.get_running_loop().call_soon(self.listener.on_append_failed, contexts, self._refusal())
        return last

    async def close(self) -> None:
        """Let go in order: close the ledger, store the cursors. The record stays as it is; the next owner counts.

        Returns when that is done, whoever began it; nothing is written any more then.
        """
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._close())
            self._ending.add_done_callback(lambda _: self.on_ended(self))
        await asyncio.shield(self._ending)

    async def _close(self) -> None:
        deadline = self._clock.monotonic() + self.config.append_timeout_s
        while self.pending_count and self._state in _TAKES_APPENDS and self._clock.monotonic() < deadline:
            await self._clock.sleep(_LOOK_S)
        if not self._is_ended:
            handle, self._handle = self._handle, None
            self._state = State.CLOSED
            self._error = ManagedLedgerClosed(f"{self.name} is closed")
            contexts = self._take_waiting()
            if contexts:
                self.listener.on_append_failed(contexts, self._error)
            if handle is not None:
                closing = self._close_handle(handle)
                if await attempt(f"{self.name}: closing ledger {handle.ledger_id}", closing) is FAILED:
                    await handle.abandon()
            for cursor in list(self.cursors.values()):  # one that cannot be stored must not keep the others from it
                await attempt(f"{self.name}: storing its cursor {cursor.name}", cursor.close())
        await self._let_go()

    async def _let_go(self) -> None:
        """End what runs in the background, and what holds on to bookies. Writes nothing.

        Cursors know this ledger: it forgets them, so that nobody needs the collector to be rid of both.
        """
        await self._tasks.cancel()
        handle, self._handle = self._handle, None
        if handle is not None:
            await handle.abandon()
        cursors, self.cursors = self.cursors, {}
        for cursor in cursors.values():
            await cursor.let_go()
        for reader in self._readers.values():
            await reader.close()
        self._readers.clear()

    def forget_owner(self) -> None:
        """Who listened and watched is told nothing more, and not held by this ledger any longer."""
        self.listener = _NoListener()
        self._watchers.clear()

    async def delete(self) -> None:
        """Remove the topic's data: list of ledgers, cursors, ledgers, record.

        Raises ManagedLedgerFenced (nothing was removed), StorageUnavailable: what is left is a topic without ledgers,
        to be opened and deleted once more.
        """
        self._check_not_ended()
        if self._ending is not None:
            raise ManagedLedgerClosed(f"{self.name} is being closed")
        self._ending = asyncio.ensure_future(self._delete())
        self._ending.add_done_callback(lambda _: self.on_ended(self))
        await asyncio.shield(self._ending)

    async def _delete(self) -> None:
        self._state = State.CLOSED
        self._error = ManagedLedgerNotFound(f"{self.name} was deleted")
        contexts = self._take_waiting()
        if contexts:
            self.listener.on_append_failed(contexts, self._error)
        for cursor in self.cursors.values():
            cursor.abandon()
        try:
            # The last word as the owner: from here on nothing names the ledgers, and a former owner is too late.
            async with self.record_lock:
                ledger_ids = [info.ledgerId for info in self._ledgers] + list(self._orphans)
                await self._store_record([])
            for name in list(self.cursors):
                await self.cursors[name].remove()
                del self.cursors[name]
            for ledger_id in ledger_ids:
                await self._drop(ledger_id)
            await self._record.delete()
        finally:
            await self._let_go()

    def stats(self) -> dict[str, Any]:
        """What Pulsar's `internalStats` shows of the managed ledger (pulsar.md 7.6)."""
        current = self._handle
        return {
            "entriesAddedCounter": self.entries_added,
            "numberOfEntries": self.entries_total,
            "totalSize": self.bytes_total,
            "currentLedgerEntries": self._ledgers.entries_of(current.ledger_id) if current is not None else 0,
            "currentLedgerSize": self._acked_bytes,
            "lastLedgerCreationFailureTimestamp": None,
            "waitingCursorsCount": 0,
            "pendingAddEntriesCount": self.pending_count,
            "lastConfirmedEntry": str(self.last_confirmed),
            "state": self.state,
            "ledgers": [
                {
                    "ledgerId": info.ledgerId,
                    "entries": info.entries,
                    "size": info.size,
                    "offloaded": False,
                    "underReplicated": False,
                }
                for info in self._ledgers
            ],
            "cursors": {
                cursor.name: {
                    "markDeletePosition": str(cursor.mark_delete_position),
                    "readPosition": str(cursor.read_position),
                    "waitingReadOp": False,
                    "pendingReadOps": 0,
                    "messagesConsumedCounter": self.entries_between(EARLIEST, cursor.mark_delete_position),
                    "cursorLedger": cursor.ledger_id,
                    "cursorLedgerLastEntry": cursor.ledger_last_entry,
                    "individuallyDeletedMessages": cursor.ranges_text(),
                    "state": "NoLedger" if cursor.ledger_id < 0 else "Open",
                    "active": True,
                    "numberOfEntriesSinceFirstNotAckedMessage": self.entries_between(
                        cursor.mark_delete_position, cursor.read_position
                    ),
                    "totalNonContiguousDeletedMessagesRange": cursor.range_count,
                    "subscriptionHavePendingRead": False,
                    "subscriptionHavePendingReplayRead": False,
                    "properties": dict(cursor.properties),
                }
                for cursor in self.cursors.values()
            },
        }
