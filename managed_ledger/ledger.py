"""The endless log of one topic: a list of ledgers, of which only the last is written.

    appending   entries that are queued or not answered yet; the states; when a ledger is full
    record      which ledgers the topic has; deletes the ledgers that the record does not name any more
    reading     entries by position, from memory or from bookies

`ManagedLedger` conducts them: it opens the log, rolls over from ledger to ledger, keeps the cursors, trims old ledgers
and ends the log (close, terminate, delete).

Rules:

1. A ledger stands in the topic's record before anything is appended to it (I86); all before it are closed
   before the next one is written (I87).
2. After another owner has fenced the ledger or changed the record, nothing is acknowledged, appended, trimmed or
   stored any more (I90).
3. After each wait for storage the code checks whether the managed ledger has ended meanwhile.

(As Apache's `ManagedLedgerImpl`.)
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_plus

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    EntryTooLarge,
    LedgerFenced,
    MetadataConflict,
    NoSuchLedger,
    TooManyPending,
)
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledgers import LedgerMetadata
from magnetar_core.bookkeeper.metadata.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import FAILED, Bell, Tasks, attempt, attempt_now
from magnetar_core.runtime.types import Buffer, Corruption, bare
from managed_ledger.appending import TAKES_APPENDS, Appending, AppendListener, NoListener, State, Step
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
from managed_ledger.names import cursor_path, ledger_path
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.reading import Entry, Reading
from managed_ledger.record import TopicRecord, set_properties, set_terminated
from managed_ledger.records_pb2 import ManagedLedgerInfo
from managed_ledger.retention import LedgerSummary, trimmable

log = logging.getLogger(__name__)

# Waits between attempts to get a new ledger while bookies or metadata are away.
RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 2.0

# A conflict while opening means that another broker opens the same topic; one of us wins after a round or two.
OPEN_ATTEMPTS_MAX: Final = 5


class _HandleListener:
    """Listens to one ledger handle, so that a late answer of a former handle is not taken for one of the present."""

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
        self.listener: AppendListener = NoListener()
        self.on_ended: Callable[[ManagedLedger], None] = lambda ledger: None
        """Called once, when the managed ledger has been closed or deleted completely."""
        self.cursors: dict[str, ManagedCursor] = {}
        self._bookkeeper = bookkeeper
        self._store = store
        self._clock = clock
        self._cache = cache
        self._record = TopicRecord(name, bookkeeper, store)
        self._ledgers = self._record.ledgers
        self._appending = Appending()
        self._reading = Reading(
            name,
            self._ledgers,
            bookkeeper,
            cache,
            password=config.password,
            handles_max=config.read_handles_max,
        )
        self._tasks = Tasks(name)
        self._watchers: list[Callable[[], None]] = []
        self._error: ManagedLedgerError | None = None
        self._handle: LedgerWriteHandle | None = None  # the ledger that is written
        self._handle_since = 0.0
        self._trimming = False
        self._ending: asyncio.Future[None] | None = None
        # Rings when appends were answered and when the state may have changed; `terminate` and `close` wait for it.
        self._progress = Bell()

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
            if not self._appending.is_ended:
                self._end_appends(State.CLOSED)
                self._error = ManagedLedgerClosed(f"{self.name} was not opened")
            await self._release()
            raise
        if self._appending.state is State.CREATING:
            self._appending.open()
            self._progress.ring()

    async def _open_once(self, create: bool) -> None:
        await self._record.read(create=create)
        if self._record.is_terminated:
            self._end_appends(State.TERMINATED)
            await self._recover_last()
            async with self._record.lock:
                await self._write_record(list(self._ledgers))  # so that a former owner sees the new version
            return
        await self._recover_last()
        for ledger_id in [info.ledgerId for info in self._ledgers if not info.entries]:
            self._record.leave_out(ledger_id)
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
        assert handle.ledger_id == last.ledgerId, f"asked for ledger {last.ledgerId}, got {handle.ledger_id}"
        assert handle.last_add_confirmed >= -1, handle.last_add_confirmed
        last.entries = handle.last_add_confirmed + 1
        last.size = handle.length
        if not last.timestamp:
            last.timestamp = self._clock.wall_ms()
        self._ledgers.set_entries(last.ledgerId, last.entries)
        await handle.close()

    async def _begin_ledger(self) -> None:
        """Create a ledger and put it into the record; then it may be written.

        Raises as `open` does; also the error that ended the managed ledger meanwhile.
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
            async with self._record.lock:
                await self._write_record([*self._ledgers, info])  # rule 1
                self._ledgers.add(info)  # under the lock: a trim in between would write a record without it
            self._check_not_ended()
        except (RecordInDoubt, asyncio.CancelledError):
            self._record.orphan(handle.ledger_id)  # the record may name it
            await handle.abandon()
            raise
        except ManagedLedgerError:
            await handle.abandon()
            if handle.ledger_id not in self._ledgers:
                await self._record.drop(handle.ledger_id)
            raise
        handle.listener = _HandleListener(self, handle)
        self._write_to(handle)
        self._handle_since = self._clock.monotonic()
        self._appending.on_ledger_begun()

    def _write_to(self, handle: LedgerWriteHandle | None) -> LedgerWriteHandle | None:
        """Entries go to this ledger from here on; returns the one to which they went before."""
        assert handle is None or self._handle is None, "the former ledger is closed before the next is written"
        former, self._handle = self._handle, handle
        self._reading.written = handle
        return former

    async def _write_record(
        self,
        infos: Sequence[ManagedLedgerInfo.LedgerInfo],
        change: Callable[[ManagedLedgerInfo], None] | None = None,
    ) -> None:
        """Store *infos* as the list of ledgers, and what *change* does to the rest. The record's lock is held."""
        self._check_not_ended()  # rule 2
        await self._record.write(infos, change)

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
        return self._appending.state.value

    @property
    def is_terminated(self) -> bool:
        return self._appending.state is State.TERMINATED

    @property
    def is_open(self) -> bool:
        """Whether appends are taken."""
        return self._appending.takes_appends

    @property
    def record_lock(self) -> asyncio.Lock:
        """While it is held, no ledger is trimmed."""
        return self._record.lock

    @property
    def pending_count(self) -> int:
        """Appends that are not answered yet."""
        return self._appending.count

    @property
    def last_confirmed(self) -> Position:
        """The last entry that is acknowledged."""
        return self._ledgers.last_confirmed

    @property
    def first_position(self) -> Position:
        """The position of the oldest entry; for an empty topic, that of the first entry to come."""
        return self._ledgers.first_position

    @property
    def properties(self) -> Mapping[str, str]:
        return self._record.properties

    @property
    def entries_total(self) -> int:
        return self._ledgers.entries_total

    @property
    def bytes_total(self) -> int:
        """Bytes of all entries, as the ledgers count them (payload without envelopes)."""
        return sum(info.size for info in self._ledgers) + self._appending.acked_bytes

    def next_position(self, position: Position) -> Position:
        """The first position after this one; behind the last entry it is where the next entry will be."""
        return self._ledgers.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """The last entry before this one."""
        return self._ledgers.previous_position(position)

    def check_within(self, position: Position) -> None:
        """Raises InvalidPosition if *position* lies beyond the end of the topic."""
        self._ledgers.check_within(position)

    def entries_between(self, after: Position, up_to: Position) -> int:
        """How many entries come after *after*, up to and including *up_to*."""
        return self._ledgers.entries_between(after, up_to)

    def watch_appends(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* after `last_confirmed` has moved; returns a call that ends this."""
        self._watchers.append(callback)

        def cancel() -> None:
            with contextlib.suppress(ValueError):
                self._watchers.remove(callback)

        return cancel

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a background task that is cancelled when this managed ledger is closed."""
        if self._appending.is_ended:
            work.close()
            return
        self._tasks.spawn(work, name)

    def check_not_fenced(self) -> None:
        if self._appending.state is State.FENCED:
            assert self._error is not None, "a fenced managed ledger has the reason"
            raise ManagedLedgerFenced(str(self._error))

    def _check_not_ended(self) -> None:
        """Rule 3. Raises ManagedLedgerFenced or ManagedLedgerClosed if this managed ledger has ended."""
        self.check_not_fenced()
        if self._appending.state is State.CLOSED:
            raise ManagedLedgerClosed(str(self._refusal()))

    async def check_owner(self) -> None:
        """Ask the record whether another owner has taken over; if so, this one is fenced.

        Raises ManagedLedgerFenced, StorageUnavailable.
        """
        self.check_not_fenced()
        async with self._record.lock:
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
        if self._appending.state not in TAKES_APPENDS:
            self._fail_soon(list(contexts), self._refusal())
        elif self._appending.append(run, contexts):
            self._send_queued()

    def _fail_soon(self, contexts: list[Any], error: ManagedLedgerError) -> None:
        if contexts:
            asyncio.get_running_loop().call_soon(self.listener.on_append_failed, contexts, error)

    def _refusal(self) -> ManagedLedgerError:
        if self._appending.state is State.TERMINATED:
            return ManagedLedgerTerminated(f"{self.name} was terminated")
        return ManagedLedgerClosed(f"{self.name} is closed") if self._error is None else bare(self._error)

    def _send_queued(self) -> None:
        """Send queued entries, as many as the present ledger has room for."""
        appending, handle = self._appending, self._handle
        assert handle is not None, f"{self.name} is {self.state} without a ledger to write to"
        rule, age_ms = self.config.rollover, self._age_ms()
        while appending.state is State.OPENED:
            run = appending.next_run(rule, age_ms)
            if run is None:
                self._do(appending.begin_rollover())
                return
            if not run:
                return
            payloads = [data for data, _ in run]
            try:
                handle.append(payloads)
            except TooManyPending:
                step = appending.on_too_many(len(run), is_blocked=handle.is_blocked)
                if step is Step.GIVE_UP:
                    raise
                if step is not Step.SEND:
                    self._do(step)
                    return
            except EntryTooLarge as error:
                self._fail_soon(appending.take_refused(len(run)), EntryRefused(f"{self.name}: {error}"))
                self._progress.ring()
            except BookKeeperError as error:
                self.on_failed(handle, error)
                return
            else:
                appending.on_sent(run, sum(map(len, payloads)))

    def _do(self, step: Step) -> None:
        """Carry out what `Appending` asks for."""
        if step is Step.SEND:
            self._send_queued()
        elif step is Step.NEXT_LEDGER:
            self.spawn(self._next_ledger(), "rollover")
        elif step is Step.SEND_WHEN_WRITABLE:
            assert self._handle is not None, "something was sent to it"
            self._handle.when_writable(self._do_next_step)

    def _do_next_step(self) -> None:
        self._do(self._appending.next_step())

    def _age_ms(self) -> int:
        return int((self._clock.monotonic() - self._handle_since) * 1000)

    def on_acknowledged(self, handle: LedgerWriteHandle, up_to: int) -> None:
        """All entries up to *up_to* of the present ledger are safe."""
        if handle is not self._handle:
            return
        stored = self._appending.on_acknowledged(up_to)
        if stored is None:
            return
        self._progress.ring()
        first, payloads, contexts = stored
        self._ledgers.set_entries(handle.ledger_id, up_to + 1)
        self._cache.put_run(handle.ledger_id, first, payloads)
        try:
            self.listener.on_appended(handle.ledger_id, first, contexts)
        except Exception as error:
            # Which appends the listener has already answered cannot be known. Ending the managed ledger makes the
            # listener disconnect its producers, which then send again.
            log.exception("%s: its owner cannot take what is stored", self.name)
            self._give_up(StorageUnavailable(f"{self.name}: a defect, see the log: {error!r}"))
            return
        for callback in list(self._watchers):
            attempt_now(f"{self.name}: waking readers of new entries", callback)
        step = self._appending.next_step()
        if step is not Step.NOTHING:
            self._do(step)

    def on_failed(self, handle: LedgerWriteHandle, error: BookKeeperError) -> None:
        """The present ledger takes nothing any more."""
        if handle is not self._handle or not self._appending.is_written:
            return
        if isinstance(error, LedgerFenced | MetadataConflict):
            self.fence(ManagedLedgerFenced(f"{self.name}: another owner took over ledger {handle.ledger_id}"))
            return
        log.warning(
            "%s: writing to ledger %s failed: %s; going on with another one", self.name, handle.ledger_id, error
        )
        self._appending.on_write_failed()
        self._progress.ring()
        self.spawn(self._next_ledger(), "new ledger")

    # ---------------------------------------------------------------------------------- rollover

    async def _next_ledger(self) -> None:
        """Close the present ledger, begin the next and send the queued entries; retry until the append time-out."""
        deadline = self._clock.monotonic() + self.config.append_timeout_s
        wait_s = RETRY_FIRST_S
        while True:
            try:
                self._check_not_ended()
                await self._close_present()
                self._check_not_ended()
                self._appending.creating()
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
                # Without this the queued appends would wait for ever: nobody else begins a ledger.
                log.exception("%s: the next ledger cannot be begun", self.name)
                self._give_up(StorageUnavailable(f"{self.name}: the next ledger cannot be begun: {error!r}"))
                return
        self._appending.open()
        self._progress.ring()
        self._send_queued()
        self.trim_if_due()

    async def _close_present(self) -> None:
        """Close the present ledger and note its length. Does nothing if it was closed by an earlier attempt."""
        handle = self._handle
        if handle is None:
            return
        metadata = await self._close_handle(handle)
        acknowledged = self._ledgers.entries_of(handle.ledger_id)
        if metadata.last_entry_id + 1 != acknowledged:
            # Only the recovery of another owner can find entries of which we have no acknowledgement.
            raise ManagedLedgerFenced(
                f"{self.name}: ledger {handle.ledger_id} was closed by another owner at entry {metadata.last_entry_id}"
            )
        self._write_to(None)
        self._reading.ledger_closed(handle.ledger_id)
        self._appending.on_ledger_closed()
        if acknowledged == 0:
            self._record.leave_out(handle.ledger_id)
            return
        info = self._ledgers.info(handle.ledger_id)
        info.entries = acknowledged
        info.size = metadata.length
        info.timestamp = self._clock.wall_ms()

    async def _close_handle(self, handle: LedgerWriteHandle) -> LedgerMetadata:
        try:
            return await handle.close()
        except (LedgerFenced, MetadataConflict) as error:
            raise ManagedLedgerFenced(f"{self.name}: another owner took over: {error}") from error
        except BookKeeperError as error:
            raise StorageUnavailable(f"{self.name}: cannot close ledger {handle.ledger_id}: {error}") from error

    def fence(self, error: ManagedLedgerError) -> None:
        """Rule 2. All pending appends fail, and the listener is told that the managed ledger has ended."""
        if not self._appending.is_ended:
            log.warning("%s: fenced: %s", self.name, error)
            self._end(State.FENCED, error)

    def _give_up(self, error: ManagedLedgerError) -> None:
        if not self._appending.is_ended:
            log.error("%s: closing, since there is no storage: %s", self.name, error)
            self._end(State.CLOSED, error)

    def _end_appends(self, state: State) -> list[Any]:
        """Take no appends any more; returns the contexts of those that are not answered (`Appending.end`)."""
        contexts = self._appending.end(state)
        self._progress.ring()
        return contexts

    def _end(self, state: State, error: ManagedLedgerError) -> None:
        contexts = self._end_appends(state)
        self._error = bare(error)
        for cursor in self.cursors.values():
            cursor.abandon()
        self._fail_soon(contexts, error)
        asyncio.get_running_loop().call_soon(self.listener.on_closed, error)

    # ----------------------------------------------------------------------------------- reading

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        """Entries from *first* on (`Reading.read`)."""
        return self._reading.read(first, max_entries, max_bytes)

    async def find_first(self, predicate: Callable[[Entry], bool]) -> Position | None:
        """The first position for whose entry *predicate* is true (`Reading.find_first`)."""
        return await self._reading.find_first(predicate)

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
        return ManagedCursor(self, self._reading, name, state, self._clock, store, self.config.mark_delete_interval_s)

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
        # While the record lock is held, no trim can remove the ledger that the new cursor starts in (I96).
        async with self._record.lock:
            self._check_not_ended()
            if name in self.cursors:
                return self.cursors[name]
            position = self._mark_delete_before(start)
            # The cursor may exist: an earlier call made it and got no answer, or a former owner made it after we read
            # the list of cursors.
            with contextlib.suppress(CursorExists):
                await store.create(position, {}, properties or {})
            # An owner that takes over after this check sees the cursor; one that took over before may have missed it.
            await self._check_record()
            self._check_not_ended()
            await self._recover_cursor(name)
            return self.cursors[name]

    def new_non_durable_cursor(self, name: str, start: Position) -> ManagedCursor:
        """A cursor that is not stored and does not hold back trimming."""
        return self._cursor(name, CursorState(self._ledgers, self._mark_delete_before(start)), None)

    async def delete_cursor(self, name: str) -> None:
        """Delete a durable cursor and its stored state.

        Raises CursorNotFound, ManagedLedgerFenced, StorageUnavailable; the cursor then stays and holds back trimming.
        """
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
        self.trim_if_due()

    def trim_if_due(self) -> None:
        """Trim if a cursor's stored position that moved, or a ledger that was closed, made old ledgers deletable."""
        if not self._trimming and self._trimmable():
            self.spawn(self._trim_quietly(), "trim")

    async def _trim_quietly(self) -> None:
        await attempt(f"{self.name}: trimming", self.trim())  # after a failure `maintain` tries again

    # ---------------------------------------------------------------------------------- trimming

    def _trimmable(self) -> list[int]:
        if not self._appending.takes_appends:
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
            async with self._record.lock:
                going = self._trimmable()
                if not going:
                    return
                await self._write_record([info for info in self._ledgers if info.ledgerId not in going])
                for ledger_id in going:
                    self._ledgers.remove(ledger_id)
                    self._cache.forget_ledger(ledger_id)
            for cursor in self.cursors.values():
                cursor.ledgers_changed()
            self._reading.ledgers_trimmed(going)
            await asyncio.wait(self._record.drop_soon(going))
        except ManagedLedgerFenced as error:
            self.fence(error)
        except ManagedLedgerClosed:
            pass
        finally:
            self._trimming = False

    async def maintain(self) -> None:
        """Roll over a ledger that is too old, delete ledgers whose retention has expired. Raises StorageUnavailable.

        Called periodically by the factory.
        """
        if self._appending.is_full(self.config.rollover, self._age_ms()):
            self._do(self._appending.begin_rollover())
        await self.trim()

    # -------------------------------------------------------------------------- record and the end

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the stored properties; durable on return. Raises ManagedLedgerFenced, StorageUnavailable."""
        try:
            async with self._record.lock:
                await self._write_record(list(self._ledgers), set_properties(properties))
        except ManagedLedgerFenced as error:
            self.fence(error)
            raise

    async def terminate(self) -> Position:
        """Take no more entries, ever; returns the last position, which is stored by then.

        Pending appends complete first. Appends that come meanwhile wait; they are refused when the termination is
        stored, and appended if it could not be. Raises ManagedLedgerFenced, StorageUnavailable.
        """
        appending = self._appending
        while appending.state is not State.OPENED:
            if appending.state is State.TERMINATED:
                return self.last_confirmed
            if not appending.takes_appends:
                raise self._refusal()
            await self._progress.rung()
        appending.begin_termination()
        while self._is_terminating() and appending.has_pending:
            await self._progress.rung()
        if not self._is_terminating():  # a write failed: begin again when the next ledger can be written
            return await self.terminate()
        try:
            await self._close_present()
            last = self.last_confirmed
            async with self._record.lock:
                await self._write_record(list(self._ledgers), set_terminated(last))
        except ManagedLedgerFenced as error:
            self.fence(error)
            raise
        except BaseException:
            if self._is_terminating():
                appending.creating()
                self._do(Step.NEXT_LEDGER)
            raise
        self._check_not_ended()
        self._fail_soon(self._end_appends(State.TERMINATED), self._refusal())
        return last

    def _is_terminating(self) -> bool:
        return self._appending.state is State.TERMINATING

    async def close(self) -> None:
        """Wait for pending appends, close the ledger and store the cursors.

        The record is not written: the next owner recovers the length of the last ledger. A second call waits for the
        first. When it returns, this object writes nothing any more.
        """
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._close())
            self._ending.add_done_callback(lambda _: self.on_ended(self))
        await asyncio.shield(self._ending)

    async def _close(self) -> None:
        await self._progress.until(
            lambda: not (self.pending_count and self._appending.takes_appends),
            self._clock,
            self.config.append_timeout_s,
        )
        if not self._appending.is_ended:
            handle = self._write_to(None)
            contexts = self._end_appends(State.CLOSED)
            self._error = ManagedLedgerClosed(f"{self.name} is closed")
            if contexts:
                self.listener.on_append_failed(contexts, self._error)
            if handle is not None:
                closing = self._close_handle(handle)
                if await attempt(f"{self.name}: closing ledger {handle.ledger_id}", closing) is FAILED:
                    await handle.abandon()
            for cursor in list(self.cursors.values()):  # a cursor that cannot be stored must not stop the others
                await attempt(f"{self.name}: storing its cursor {cursor.name}", cursor.close())
        await self._release()

    async def _release(self) -> None:
        """Cancel background tasks and give up all ledger handles. Writes nothing.

        Cursors refer to this object. It drops them here, so that both are freed without the garbage collector.
        """
        await self._tasks.cancel()
        handle = self._write_to(None)
        if handle is not None:
            await handle.abandon()
        cursors, self.cursors = self.cursors, {}
        for cursor in cursors.values():
            await cursor.let_go()
        await self._reading.close()

    def forget_owner(self) -> None:
        """Drop the listener and the watchers: they are not called any more, nor kept alive by this object."""
        self.listener = NoListener()
        self._watchers.clear()

    async def delete(self) -> None:
        """Remove the topic's data: list of ledgers, cursors, ledgers, record.

        Raises ManagedLedgerFenced (nothing was removed) and StorageUnavailable: then the topic is left without
        ledgers, and can be opened and deleted once more.
        """
        self._check_not_ended()
        if self._ending is not None:
            raise ManagedLedgerClosed(f"{self.name} is being closed")
        self._ending = asyncio.ensure_future(self._delete())
        self._ending.add_done_callback(lambda _: self.on_ended(self))
        await asyncio.shield(self._ending)

    async def _delete(self) -> None:
        if (
            not self._appending.is_ended
        ):  # it can have been fenced since `delete` checked; the record write below fails then
            contexts = self._end_appends(State.CLOSED)
            self._error = ManagedLedgerNotFound(f"{self.name} was deleted")
            if contexts:
                self.listener.on_append_failed(contexts, self._error)
        for cursor in self.cursors.values():
            cursor.abandon()
        try:
            # After this write the record names no ledger, and a write by a former owner is a conflict.
            async with self._record.lock:
                ledger_ids = self._record.ledger_ids
                await self._record.write([])
            for name in list(self.cursors):
                await self.cursors[name].remove()
                del self.cursors[name]
            for ledger_id in ledger_ids:
                await self._record.drop(ledger_id)
            await self._record.delete()
        finally:
            await self._release()

    def stats(self) -> dict[str, Any]:
        """What Pulsar's `internalStats` shows of the managed ledger."""
        current = self._handle
        return {
            "entriesAddedCounter": self._appending.entries_added,
            "numberOfEntries": self.entries_total,
            "totalSize": self.bytes_total,
            "currentLedgerEntries": self._ledgers.entries_of(current.ledger_id) if current is not None else 0,
            "currentLedgerSize": self._appending.acked_bytes,
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
            "cursors": {cursor.name: cursor.stats() for cursor in self.cursors.values()},
        }
