"""The endless log of one topic: a list of ledgers, of which only the last is written.

    writing     entries on their way into the present ledger, and from ledger to ledger (`appending` decides)
    lifecycle   begins, recovers, closes and removes ledgers, and keeps the topic's record true
    record      which ledgers the topic has; deletes the ledgers that the record does not name any more
    reading     entries by position, from memory or from bookies
    cursors     positions of subscriptions: recovered, made, deleted

`ManagedLedger` conducts them: it opens the log, trims old ledgers and ends the log (close, terminate, delete).

Rules:

1. After another owner has fenced the ledger or changed the record, nothing is acknowledged, appended, trimmed or
   stored any more (I90).
2. After each wait for storage the code checks whether the managed ledger has ended meanwhile.
3. When this object is released, none of its parts refers to it any more: it is freed without the garbage collector,
   which would find it only after seconds, with all that its topic held.

(As Apache's `ManagedLedgerImpl`.)
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.damage.reports import OnDamage, ignore_damage
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.buckets import Period
from magnetar_core.runtime.tasks import attempt
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.compacted.entry import COMPACTION_CURSOR
from managed_ledger.compacted.ledger import CompactedLedgers
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor_set import CursorSet
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.errors import (
    DataLost,
    ManagedLedgerClosed,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerNotFound,
    ManagedLedgerTerminated,
    RecordUnreadable,
)
from managed_ledger.ledgers.holdings import CURSORS_MAX, NOTHING_KNOWN, UNHEARD, HeldCursor, Holdings
from managed_ledger.ledgers.lifecycle import LedgerLifecycle
from managed_ledger.ledgers.preparing import Prepared
from managed_ledger.ledgers.tails import Tails
from managed_ledger.ledgers.topic_record import TopicRecord, set_properties
from managed_ledger.position import LATEST, Position
from managed_ledger.reading.backlog_size import LedgerSize, bytes_after, position_leaving
from managed_ledger.reading.entry_cache import EntryCache
from managed_ledger.reading.entry_index import stored_index
from managed_ledger.reading.read_ahead import AheadBudget
from managed_ledger.reading.reading import Entry, Reading
from managed_ledger.records.offloaded import is_offloaded, what_stays
from managed_ledger.retention import RetentionRule
from managed_ledger.transactions.pending_acks import PendingAcks
from managed_ledger.writing.appending import Appending, AppendListener, State
from managed_ledger.writing.writing import Writing

log = logging.getLogger(__name__)

# A conflict while opening means that another broker opens the same topic; one of us wins after a round or two. The
# wait before the second attempt; it grows by as much with each further one.
OPEN_ATTEMPTS_MAX: Final = 5
OPEN_RETRY_S: Final = 0.1


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
        ahead_budget: AheadBudget,
        tails: Tails,
        on_damage: OnDamage = ignore_damage,
    ) -> None:
        """*cache*, *ahead_budget* (what its cursors read ahead) and *tails* may be shared with others: ledger ids are
        unique in a cluster. *on_damage* is called for entries that no bookie can give."""
        self.name = name
        self.on_ended: Callable[[ManagedLedger], None] = lambda ledger: None
        """Called once, when the managed ledger has been closed or deleted completely."""
        self.changes = UNHEARD
        """Notes this managed ledger when its `holdings` change."""
        self._clock = clock
        self._cache = cache
        self._record = TopicRecord(name, bookkeeper, store, config)
        self.ledgers = self._record.ledgers
        self._appending = Appending()
        self._reading = Reading(
            name,
            self.ledgers,
            bookkeeper,
            cache,
            password=config.password,
            handles_max=config.read_handles_max,
            on_damage=on_damage,
        )
        self._lifecycle = LedgerLifecycle(
            name, self._record, self._reading, bookkeeper, clock, config, self._appending.check_not_ended, tails
        )
        self._cursors = CursorSet(name, self.ledgers, self._reading, bookkeeper, store, clock, config, ahead_budget)
        self._pending_acks = PendingAcks(name, store, bookkeeper, config.password)
        self._writing = Writing(name, self._appending, self._lifecycle, self.ledgers, cache, clock, config)
        self.compacted = CompactedLedgers(name, bookkeeper, config)
        """The ledgers that hold what compaction kept."""
        self._config = config
        self._writing.on_end = self._cursors.abandon
        self._writing.on_next_ledger = self._on_next_ledger
        self.passed_over_entries = 0
        """Lost entries that count as acknowledged since it was opened, counted for each cursor."""
        self._reading.passes_over_lost = config.passes_over_lost
        self._trimming = False
        self._ending: asyncio.Future[None] | None = None

    # ---------------------------------------------------------------------------------- opening

    async def open(self, *, create: bool, prepared: Prepared | None = None) -> None:
        """Take over: recover and close the last ledger, begin a new one, recover the cursors.

        *prepared*: what is used for the first attempt. Raises ManagedLedgerNotFound, StorageUnavailable,
        ManagedLedgerFenced (another owner was faster).
        """
        try:
            for number in range(OPEN_ATTEMPTS_MAX):
                try:
                    await self._open_once(create, prepared if number == 0 else None)
                    break
                except ManagedLedgerFenced:
                    if number == OPEN_ATTEMPTS_MAX - 1:
                        raise
                    await self._clock.sleep(OPEN_RETRY_S * (number + 1))
            await self._cursors.recover_all(self, NOTHING_KNOWN if prepared is None else prepared.open)
        except BaseException:
            if not self._appending.is_ended:
                self._writing.end_appends(State.CLOSED, ManagedLedgerClosed(f"{self.name} was not opened"))
            await self._release()
            raise
        if self._appending.state is State.CREATING:
            self._writing.open()

    async def _open_once(self, create: bool, prepared: Prepared | None) -> None:
        """Read the record, close the last ledger, find the index, and begin the next ledger.

        That one is created meanwhile, or was prepared before; it is discarded where opening fails, or where the topic
        was terminated.
        """
        try:
            await self._record.read(create=create)
        except BaseException:
            if prepared is not None:
                self._lifecycle.discard(prepared.ahead)
            raise
        if prepared is not None and (self._record.is_terminated or not prepared.may_follow(self._record.ledger_ids)):
            self._lifecycle.discard(prepared.ahead)
            prepared = None
        if self._record.is_terminated:
            self._writing.end_appends(State.TERMINATED, ManagedLedgerTerminated(f"{self.name} was terminated"))
            await self._lifecycle.recover_last()
            await self._lifecycle.change_record()  # so that a former owner sees the new version
            return
        ahead = self._lifecycle.create_ahead() if prepared is None else prepared.ahead
        try:
            await self._lifecycle.recover_last({} if prepared is None else prepared.open)
            if self._config.keeps_index:
                await self._find_index()
            self._lifecycle.leave_out_empty()
        except BaseException:
            self._lifecycle.discard(ahead)
            raise
        await self._writing.begin_ledger(ahead)

    async def _find_index(self) -> None:
        """Read the index of the last message into the record. Called before the next ledger is begun: the record that
        names this ledger has to hold the index, since an empty ledger has none (`entry_index`, rule 1)."""
        try:
            self._record.index = await stored_index(self.ledgers, self._reading, self._record.properties, self.name)
        except Corruption as error:
            raise RecordUnreadable(str(error)) from error

    # ------------------------------------------------------------------------------------ state

    @property
    def listener(self) -> AppendListener:
        """Gets the answers of appends."""
        return self._writing.listener

    @listener.setter
    def listener(self, listener: AppendListener) -> None:
        self._writing.listener = listener

    @property
    def config(self) -> ManagedLedgerConfig:
        """Quorums, rollover and retention. A change counts for what is begun after it, and for trimming."""
        return self._config

    @config.setter
    def config(self, config: ManagedLedgerConfig) -> None:
        self._config = self._lifecycle.config = self._writing.config = self._cursors.config = config
        self.compacted.config = config
        self._reading.passes_over_lost = config.passes_over_lost

    @property
    def cursors(self) -> Mapping[str, ManagedCursor]:
        """The durable cursors, by name."""
        return self._cursors.by_name

    @property
    def state(self) -> str:
        return self._appending.state.value

    def holdings(self) -> Holdings | None:
        """What a successor needs of it; None: nothing, as no entries are taken."""
        if not self._appending.takes_appends:
            return None
        cursors = {
            name: HeldCursor(cursor.ledger_id, cursor.persisted_mark_delete_position)
            for name, cursor in itertools.islice(self.cursors.items(), CURSORS_MAX)
        }
        return Holdings(self._record.version, self.ledgers.last_id, cursors)

    def _on_next_ledger(self) -> None:
        self.changes.note_ledgers(self.name)
        self.trim_if_due()

    @property
    def is_terminated(self) -> bool:
        return self._appending.state is State.TERMINATED

    @property
    def is_open(self) -> bool:
        """Whether appends are taken."""
        return self._appending.takes_appends

    @property
    def write_latencies(self) -> Period:
        """Microseconds until the ledgers confirmed the entries of the last period (`Writing.latency`)."""
        return self._writing.latency.latencies.last

    @property
    def switch_latencies(self) -> Period:
        """Microseconds until a ledger was followed by the next one, in the last period."""
        return self._writing.switch_latencies.last

    def end_period(self) -> None:
        """What was counted since the last call are the latencies of the last period from now on."""
        self._writing.latency.latencies.end_period()
        self._writing.switch_latencies.end_period()

    @property
    def record_lock(self) -> asyncio.Lock:
        """While it is held, no ledger is trimmed."""
        return self._record.lock

    @property
    def pending_count(self) -> int:
        """Appends that are not answered yet."""
        return self._appending.count

    @property
    def is_compacted(self) -> bool:
        """Whether a compacted ledger may have entries of ledgers that were trimmed."""
        return self._cursors.is_compacted

    @property
    def properties(self) -> Mapping[str, str]:
        return self._record.properties

    @property
    def index(self) -> int:
        """The index of the last acknowledged message, stored when the record is written next; -1: none, or not kept."""
        return self._record.index

    @index.setter
    def index(self, index: int) -> None:
        self._record.index = index

    @property
    def bytes_total(self) -> int:
        """Bytes of all entries, as the ledgers count them (payload without envelopes)."""
        return sum(info.size for info in self.ledgers) + self._appending.acked_bytes

    def bytes_after(self, position: Position) -> int:
        """About how many bytes come after *position* (`managed_ledger.reading.backlog_size`)."""
        return bytes_after(self._sizes(), position)

    def begun_ms(self, ledger_id: int) -> int:
        """When a ledger was begun, or else the one before it closed: no entry of it is older. 0: it is not known."""
        present = self._lifecycle.present
        if present is not None and present.ledger_id == ledger_id:
            return self._lifecycle.created_ms
        return self.ledgers.closed_before_ms(ledger_id)

    def position_leaving(self, left_bytes: int) -> Position | None:
        """The first position after which about *left_bytes* or less come; None: there is not more than that."""
        return position_leaving(self._sizes(), left_bytes)

    def _sizes(self) -> list[LedgerSize]:
        present = self._lifecycle.present
        return [
            LedgerSize(info.ledgerId, self._appending.acked_bytes, self.ledgers.entries_of(info.ledgerId))
            if present is not None and info.ledgerId == present.ledger_id
            else LedgerSize(info.ledgerId, info.size, info.entries)
            for info in self.ledgers
        ]

    def watch_appends(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* after `last_confirmed` has moved; returns a call that ends this."""
        return self._writing.watch_appends(callback)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a background task that is cancelled when this managed ledger is closed."""
        self._writing.spawn(work, name)

    def check_not_fenced(self) -> None:
        """Raises ManagedLedgerFenced if another owner took over."""
        self._appending.check_not_fenced()

    def check_not_ended(self) -> None:
        """Rule 2. Raises ManagedLedgerFenced or ManagedLedgerClosed if this managed ledger has ended."""
        self._appending.check_not_ended()

    async def check_owner(self) -> None:
        """Ask the record whether another owner has taken over; if so, this one is fenced.

        Raises ManagedLedgerFenced, StorageUnavailable.
        """
        self.check_not_fenced()
        async with self._record.lock:
            await self.check_owner_locked()

    async def check_owner_locked(self) -> None:
        """As `check_owner`, for a caller that holds the record's lock."""
        try:
            await self._record.check_unchanged()
        except ManagedLedgerFenced as error:
            self.fence(error)
            raise

    def fence(self, error: ManagedLedgerError) -> None:
        """Rule 1. All pending appends fail, and the listener gets the call that the managed ledger has ended."""
        self._writing.fence(error)

    # --------------------------------------------------------------------------------- appending

    def append(self, run: Sequence[Buffer], contexts: Sequence[Any]) -> None:
        """Write entries; answers come through `listener`, in order. Never blocks, never raises for the storage."""
        self._writing.append(run, contexts)

    # ----------------------------------------------------------------------------------- reading

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        """Entries from *first* on (`Reading.read`)."""
        return self._reading.read(first, max_entries, max_bytes)

    async def may_pass_over(self, lost: DataLost) -> bool:
        """Whether entries that are lost count as acknowledged; a lost ledger does then for all durable cursors.

        Raises ManagedLedgerFenced, ManagedLedgerClosed, StorageUnavailable.
        """
        if not self._config.passes_over_lost:
            return False
        self.check_not_ended()
        if lost.entry_id is None:
            await self.check_owner()  # another owner may have trimmed it
            for cursor in list(self.cursors.values()):
                cursor.pass_over_ledger(lost.ledger_id)
        return True

    def note_passed_over(self, entries: int) -> None:
        """Lost entries count as acknowledged for a cursor."""
        self.passed_over_entries += entries

    async def find_first(self, predicate: Callable[[Entry], bool]) -> Position | None:
        """The first position for whose entry *predicate* is true (`Reading.find_first`)."""
        return await self._reading.find_first(predicate)

    # ----------------------------------------------------------------------------------- cursors

    async def open_cursor(
        self,
        name: str,
        start: Position = LATEST,
        properties: Mapping[str, str] | None = None,
    ) -> ManagedCursor:
        """The durable cursor of that name; made at *start*, the first position to deliver, if there is none.

        Raises StorageUnavailable, ManagedLedgerFenced.
        """
        cursor = await self._cursors.open(self, name, start, properties)
        self.changes.note_ledgers(self.name)
        return cursor

    def new_non_durable_cursor(self, name: str, start: Position) -> ManagedCursor:
        """A cursor that is not stored and does not hold back trimming."""
        return self._cursors.new_non_durable(self, name, start)

    async def delete_cursor(self, name: str) -> None:
        """Delete a durable cursor and its stored state.

        Raises CursorNotFound, ManagedLedgerFenced, StorageUnavailable; the cursor then stays and holds back trimming.
        """
        if name in self.cursors:
            await self._pending_acks.forget(name, self.check_owner)
        await self._cursors.delete(self, name)
        self.changes.note_ledgers(self.name)
        self.trim_if_due()

    async def settle_transactions(self, cursor: ManagedCursor) -> None:
        """Acknowledge in *cursor* what Apache's brokers have committed of transactions (`PendingAcks.settle`)."""
        await self._pending_acks.settle(cursor, self.check_owner)

    # ---------------------------------------------------------------------------------- trimming

    def trim_if_due(self) -> None:
        """Trim if a cursor's stored position that moved, or a ledger that was closed, made old ledgers deletable."""
        self.changes.note_moved(self.name)
        if not self._trimming and self._trimmable():
            self.spawn(self._trim_quietly(), "trim")

    async def _trim_quietly(self) -> None:
        await attempt(f"{self.name}: trimming", self.trim())  # after a failure `maintain` tries again

    def _trimmable(self, retention: RetentionRule | None = None) -> list[int]:
        """Ledgers that all durable cursors have consumed and that retention does not keep."""
        if not self._appending.takes_appends and not self.is_terminated:
            return []
        return self._lifecycle.trimmable(self._cursors.slowest_stored, lambda: self.bytes_total, retention)

    async def trim(self) -> None:
        """Delete ledgers that all durable cursors have consumed and that retention does not keep.

        Raises StorageUnavailable. The record is written first, the ledgers are deleted after.
        """
        if self._trimming:
            return
        self._trimming = True
        try:
            await self._remove_consumed()
        except ManagedLedgerFenced as error:
            self.fence(error)
        except ManagedLedgerClosed:
            pass
        finally:
            self._trimming = False

    async def _remove_consumed(self, retention: RetentionRule | None = None) -> None:
        """Delete consumed ledgers that *retention* does not keep; None: that of the configuration."""
        async with self._record.lock:
            ledgers_to_remove = self._trimmable(retention)
            if not ledgers_to_remove:
                return
            await self._lifecycle.remove(ledgers_to_remove)
            for ledger_id in ledgers_to_remove:
                self._cache.forget_ledger(ledger_id)
        self._cursors.ledgers_changed()
        self._reading.ledgers_trimmed(ledgers_to_remove)
        await asyncio.wait(self._record.drop_soon(ledgers_to_remove))

    async def trim_now(self) -> None:
        """As `trim`, by where the cursors are at this moment: what they have not stored yet is stored first.

        Raises StorageUnavailable, ManagedLedgerFenced, ManagedLedgerClosed.
        """
        self.check_not_ended()
        for cursor in list(self.cursors.values()):
            await cursor.flush()
        await self.trim()

    async def truncate(self) -> None:
        """Move all durable cursors to the end, and delete all ledgers but the present one, retention or not.

        The cursor of compaction goes only where the present ledger begins: it says what compaction has looked at, and
        readers of what was kept go on behind it. Raises StorageUnavailable, ManagedLedgerFenced, ManagedLedgerClosed.
        """
        self.check_not_ended()
        last, present = self.ledgers.last_confirmed, Position(self.ledgers.last_id, -1)
        for cursor in list(self.cursors.values()):
            cursor.mark_delete(present if cursor.name == COMPACTION_CURSOR else last)
            await cursor.flush()
        try:
            await self._remove_consumed(RetentionRule())
        except ManagedLedgerFenced as error:
            self.fence(error)
            raise

    async def maintain(self) -> None:
        """Roll over a ledger that is too old, delete ledgers whose retention has expired. Raises StorageUnavailable.

        Called periodically by the factory.
        """
        self._writing.roll_over_if_full()
        await self.trim()

    # -------------------------------------------------------------------------- record and the end

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the stored properties; durable on return. Raises ManagedLedgerFenced, StorageUnavailable."""
        try:
            await self._lifecycle.change_record(set_properties(properties))
        except ManagedLedgerFenced as error:
            self.fence(error)
            raise

    async def terminate(self) -> Position:
        """Take no more entries, ever; returns the last position, which is stored by then.

        Pending appends complete first. Appends that come meanwhile wait; they are refused when the termination is
        stored, and appended if it could not be. Raises ManagedLedgerFenced, StorageUnavailable.
        """
        return await self._writing.terminate()

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
        if await self._writing.close():
            await self._cursors.close()
        await self._release()

    async def _release(self) -> None:
        """Cancel background tasks and give up all ledger handles. Writes nothing (rule 3)."""
        await self._writing.release()
        await self._cursors.release()
        await self._reading.close()

    def forget_owner(self) -> None:
        """Drop the listener and the watchers: they are not called any more, nor kept alive by this object."""
        self._writing.forget_owner()

    async def delete(self) -> None:
        """Remove the topic's data: list of ledgers, cursors, ledgers, record.

        Raises ManagedLedgerFenced (nothing was removed) and StorageUnavailable: then the topic is left without
        ledgers, and can be opened and deleted once more.
        """
        self.check_not_ended()
        if self._ending is not None:
            raise ManagedLedgerClosed(f"{self.name} is being closed")
        self._ending = asyncio.ensure_future(self._delete())
        self._ending.add_done_callback(lambda _: self.on_ended(self))
        await asyncio.shield(self._ending)

    async def _delete(self) -> None:
        """Delete the managed ledger: first its record names no ledger any more, then the ledgers and cursors go."""
        # It can have been fenced since `delete` checked; the record write below fails then.
        if not self._appending.is_ended:
            self._writing.stop(ManagedLedgerNotFound(f"{self.name} was deleted"))
        self._cursors.abandon()
        try:
            # After this write the record names no ledger, and a write by a former owner is a conflict.
            async with self._record.lock:
                ledger_ids = self._record.ledger_ids
                left_behind = what_stays(self.ledgers)
                await self._record.write([])
            for place in left_behind:
                log.warning("%s is deleted: what was offloaded of it stays there: %s", self.name, place)
            for name in list(self.cursors):
                await self._pending_acks.forget(name, self.check_owner)
            await self._cursors.delete_all()
            for ledger_id in ledger_ids:
                await self._record.drop(ledger_id)
            await self._record.delete()
        finally:
            await self._release()

    def stats(self) -> dict[str, Any]:
        """What Pulsar's `internalStats` shows of the managed ledger; times in milliseconds, 0 for never."""
        current = self._lifecycle.present
        return {
            "entriesAddedCounter": self._appending.entries_added,
            "numberOfEntries": self.ledgers.entries_total,
            "totalSize": self.bytes_total,
            "currentLedgerEntries": self.ledgers.entries_of(current.ledger_id) if current is not None else 0,
            "currentLedgerSize": self._appending.acked_bytes,
            "lastLedgerCreatedTimestamp": self._lifecycle.created_ms,
            "lastLedgerCreationFailureTimestamp": self._lifecycle.creation_failed_ms,
            "pendingAddEntriesCount": self.pending_count,
            "lastConfirmedEntry": str(self.ledgers.last_confirmed),
            "state": self.state,
            "ledgers": [
                {
                    "ledgerId": info.ledgerId,
                    "entries": info.entries,
                    "size": info.size,
                    "offloaded": is_offloaded(info),
                    "underReplicated": False,
                }
                for info in self.ledgers
            ],
            "cursors": self._cursors.stats(),
        }
