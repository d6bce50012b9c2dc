"""A cursor that reads entries and stores its state; the decisions are in `CursorState`.

Entries that are lost (`managed_ledger.reading.reading`) fail the read, which is tried again later. With
`passes_over_lost` they count as acknowledged instead, and the read goes on behind them: a lost entry for the cursor
that meets it, a lost ledger for all cursors. (As Apache's OpReadEntry with autoSkipNonRecoverableData, which passes
over a whole batch where one entry is lost; here it is that entry.)
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.pauses import longer_s
from magnetar_core.runtime.tasks import FAILED, attempt
from managed_ledger.ack_ranges import AckRange
from managed_ledger.compacted.entry import COMPACTION_CURSOR
from managed_ledger.cursors.cursor import CursorState, stored_place
from managed_ledger.cursors.cursor_store import CursorCounts, CursorSnapshot, CursorStore
from managed_ledger.errors import DataLost, ManagedLedgerClosed, ManagedLedgerError, ManagedLedgerFenced
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.reading.read_ahead import AheadBudget, ReadAhead
from managed_ledger.reading.reading import Entry, Reading
from managed_ledger.records.pulsar_records import ranges_bytes

log = logging.getLogger(__name__)

# How long after a failure the state is stored again; doubles from the first to the last.
_RETRY_FIRST_S: Final = 0.1
_RETRY_LAST_S: Final = 5.0


class CursorLedger(Protocol):
    """What a cursor needs of its managed ledger."""

    name: str
    ledgers: LedgerList

    @property
    def record_lock(self) -> asyncio.Lock:
        """While it is held, no ledger is trimmed."""
        ...

    @property
    def is_compacted(self) -> bool:
        """Whether a compacted ledger may have entries of ledgers that were trimmed."""
        ...

    async def may_pass_over(self, lost: DataLost) -> bool:
        """Whether entries that are lost count as acknowledged; a lost ledger does then for all durable cursors.

        Raises ManagedLedgerFenced, ManagedLedgerClosed, StorageUnavailable.
        """
        ...

    def note_passed_over(self, entries: int) -> None:
        """Lost entries count as acknowledged for a cursor."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a background task that is cancelled when the managed ledger is closed."""
        ...

    def check_not_fenced(self) -> None:
        """Raises ManagedLedgerFenced."""
        ...

    def fence(self, error: ManagedLedgerError) -> None:
        """Another owner took over."""
        ...

    def trim_if_due(self) -> None:
        """The stored position moved: trim ledgers that became deletable."""
        ...


class ManagedCursor:
    """One subscription's place in a managed ledger.

    Acknowledgements take effect in memory at once. A durable cursor stores them at most once per
    `mark_delete_interval_s`, on `flush`, and when it is closed; what was acknowledged since is delivered again after
    a crash. A cursor that is not durable stores nothing and does not hold back trimming.
    """

    def __init__(
        self,
        ledger: CursorLedger,
        reading: Reading,
        name: str,
        state: CursorState,
        clock: Clock,
        store: CursorStore | None,
        mark_delete_interval_s: float,
        ahead_budget: AheadBudget,
    ) -> None:
        """*store* None: not durable. *ahead_budget*: limits the bytes that all cursors together read ahead."""
        self._ledger = ledger
        self._reading = reading
        self._ahead_budget = ahead_budget
        self._ahead: ReadAhead | None = None
        """None until a read has to wait for the disk or a bookie: reads from memory need no read-ahead."""
        self.name = name
        self._state = state
        self._clock = clock
        self._store = store
        self._interval_s = mark_delete_interval_s
        self._persisted_version = state.version  # -1: it is not known what is stored
        self._may_be_stored_idle = state.idle_since_ms > 0
        self.persisted_mark_delete_position = state.mark_delete_position
        self._last_persist_s = float("-inf")  # monotonic; the first change is stored without a wait
        self._retry_s = 0.0  # pause after a failure; 0: the last write succeeded
        self._timer: Timer | None = None
        self._writing = asyncio.Lock()
        self._read_generation = 0  # grows at a rewind or reset; cold reads that began before return nothing
        self.is_closed = False

    # -------------------------------------------------------------------------------- positions

    @property
    def durable(self) -> bool:
        return self._store is not None

    @property
    def mark_delete_position(self) -> Position:
        return self._state.mark_delete_position

    @property
    def read_position(self) -> Position:
        return self._state.read_position

    @property
    def properties(self) -> dict[str, int]:
        """Numbers stored with the position (de-duplication keeps its sequence ids here)."""
        return self._state.properties

    @property
    def idle_since_ms(self) -> int:
        """Since when no consumer is attached, ms since 1970; 0 while there are some, or if it is not known."""
        return self._state.idle_since_ms

    @property
    def string_properties(self) -> dict[str, str]:
        return {} if self._store is None else self._store.string_properties

    @property
    def ledger_id(self) -> int:
        """The ledger that holds this cursor's state, -1 if there is none."""
        return -1 if self._store is None else self._store.ledger_id

    @property
    def ledger_last_entry(self) -> int:
        return -1 if self._store is None else self._store.ledger_last_entry

    @property
    def counts(self) -> CursorCounts:
        """What was stored and read of its state; all 0 for one that is not durable."""
        return CursorCounts() if self._store is None else self._store.counts

    @property
    def range_count(self) -> int:
        """How many runs of entries were acknowledged out of order."""
        return self._state.range_count

    @property
    def ranges_bytes(self) -> int:
        """Bytes that these runs take where they are stored."""
        return ranges_bytes(self._state.ranges())

    def ranges_text(self) -> str:
        """`[(5:1..5:3]]`, as Pulsar's internal statistics show it."""
        return (
            "["
            + ",".join(
                f"({item.ledger_id}:{item.first - 1}..{item.ledger_id}:{item.last}]" for item in self._state.ranges()
            )
            + "]"
        )

    def is_deleted(self, position: Position) -> bool:
        """Whether the entry is acknowledged."""
        return self._state.is_deleted(position)

    def batch_ack_set(self, position: Position) -> list[int] | None:
        """Words of the batch indexes that remain; None if the batch is not partly acknowledged."""
        return self._state.batch_ack_set(position)

    def has_more(self) -> bool:
        """Whether there is something to read now."""
        self._state.skip_deleted()
        return self._state.has_more()

    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self._state.backlog()

    def unread(self) -> int:
        """Entries that were not read yet."""
        return self._state.unread()

    def stats(self) -> dict[str, Any]:
        """What Pulsar's `internalStats` shows of a cursor, but for what its subscription knows; times in ms."""
        between = self._ledger.ledgers.entries_between
        return {
            "markDeletePosition": str(max(self.mark_delete_position, self._ledger.ledgers.previous_position(EARLIEST))),
            "readPosition": str(self.read_position),
            "messagesConsumedCounter": between(EARLIEST, self.mark_delete_position),
            "cursorLedger": self.ledger_id,
            "cursorLedgerLastEntry": self.ledger_last_entry,
            "individuallyDeletedMessages": self.ranges_text(),
            "lastLedgerSwitchTimestamp": 0 if self._store is None else self._store.switched_ms,
            "state": "NoLedger" if self.ledger_id < 0 else "Open",
            "numberOfEntriesSinceFirstNotAckedMessage": between(self.mark_delete_position, self.read_position),
            "totalNonContiguousDeletedMessagesRange": self.range_count,
            "properties": dict(self.properties),
        }

    # ------------------------------------------------------------------------------------ reads

    def read(self, max_entries: int, max_bytes: int) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        """The next entries that are not acknowledged; moves the read position behind them.

        Empty only at the end. An awaitable is returned where memory does not have them; one that is overtaken by
        `rewind` or `reset` comes back empty. Only one may be under way at a time.
        """
        while True:
            self._state.skip_deleted()
            if not self._state.has_more():
                return []
            answer = self._read_on(self._state.read_position, max_entries, max_bytes)
            if not isinstance(answer, Sequence):
                return self._read_cold(answer, max_entries, max_bytes, self._read_generation)
            if not answer:
                return []
            taken = self._take(answer)
            if taken:
                return taken

    def _read_on(
        self, first: Position, max_entries: int, max_bytes: int
    ) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        """Read in order: from what was read ahead, else from memory; the first read that has to wait begins to read
        ahead."""
        if self._ahead is not None:
            return self._ahead.read(first, max_entries, max_bytes)
        answer = self._reading.read(first, max_entries, max_bytes)
        if isinstance(answer, Sequence):
            return answer
        self._ahead = ReadAhead(self._reading, self._ahead_budget)
        return self._ahead.follow(answer)

    async def _read_cold(
        self, pending: Awaitable[Sequence[Entry]], max_entries: int, max_bytes: int, generation: int
    ) -> Sequence[Entry]:
        """Wait for *pending*, and pass over what is lost or acknowledged, until there are entries to return.

        *generation*: `_read_generation` when the read began. If it has changed, the cursor was rewound, and nothing is
        returned.
        """
        while True:
            try:
                entries = await pending
            except DataLost as lost:
                await self._pass_over_from(lost)
                if generation != self._read_generation:
                    return []
            else:
                if generation != self._read_generation or not entries:
                    return []
                taken = self._take(entries)
                if taken:
                    return taken
            more = self.read(max_entries, max_bytes)
            if isinstance(more, Sequence):
                return more
            pending = more

    def read_again(
        self, first: Position, max_entries: int, max_bytes: int
    ) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        """Entries from *first* on, of at most *max_entries* positions of its ledger; the read position stays.

        Lost ones are passed over as in `read`. The awaitable raises StorageUnavailable.
        """
        answer = self._reading.read(first, max_entries, max_bytes)
        return answer if isinstance(answer, Sequence) else self._read_again(answer, first, max_entries, max_bytes)

    async def _read_again(
        self, pending: Awaitable[Sequence[Entry]], first: Position, max_entries: int, max_bytes: int
    ) -> Sequence[Entry]:
        """Wait for *pending*; entries that are lost are passed over, and those after them are read."""
        end = first.entry_id + max_entries
        while True:
            try:
                return await pending
            except DataLost as lost:
                await self._pass_over_from(lost)
                if lost.entry_id is None or lost.ledger_id != first.ledger_id or lost.entry_id + 1 >= end:
                    return []
                entry_id = lost.entry_id + 1
            answer = self._reading.read(Position(first.ledger_id, entry_id), end - entry_id, max_bytes)
            if isinstance(answer, Sequence):
                return answer
            pending = answer

    async def _pass_over_from(self, lost: DataLost) -> None:
        """Count what is lost as acknowledged, with the lost entries behind it. Raises *lost* if that may not be."""
        if self.is_closed or not await self._ledger.may_pass_over(lost):
            raise lost
        if lost.entry_id is None:
            self.pass_over_ledger(lost.ledger_id)
            return
        first = last = lost.entry_id
        passed_entries = self._state.pass_over(lost.ledger_id, first, last)
        # The entries behind it are often lost as well: looked for here, so that they are one line in the log.
        generation = self._read_generation
        while generation == self._read_generation:
            following = self._reading.read(Position(lost.ledger_id, last + 1), 1, 1)
            try:
                if isinstance(following, Sequence):
                    break
                await following
                break
            except DataLost as more:
                if more.ledger_id != lost.ledger_id or more.entry_id != last + 1:
                    break
                last += 1
                passed_entries += self._state.pass_over(lost.ledger_id, last, last)
            except ManagedLedgerError:
                break
        self._report_passed_over(lost.ledger_id, first, last, passed_entries, str(lost))

    def pass_over_ledger(self, ledger_id: int) -> None:
        """A ledger is gone: its entries count as acknowledged."""
        last = self._state.entries_of(ledger_id) - 1
        self._report_passed_over(ledger_id, 0, last, self._state.pass_over(ledger_id, 0, last), "the ledger is gone")

    def _report_passed_over(self, ledger_id: int, first: int, last: int, passed_entries: int, reason: str) -> None:
        """Log that lost entries count as acknowledged, if any did not before, and have the change stored."""
        if not passed_entries:
            return
        self._ledger.note_passed_over(passed_entries)
        log.warning(
            "%s: subscription %s: entries %d to %d of ledger %d are lost; those not acknowledged before (%d) count "
            "as acknowledged now (autoSkipNonRecoverableData): %s",
            self._ledger.name, self.name, first, last, ledger_id, passed_entries, reason,
        )  # fmt: skip
        self._changed()

    def _take(self, entries: Sequence[Entry]) -> list[Entry]:
        self._state.moved_past(entries[-1].position)
        return [entry for entry in entries if not self._state.is_deleted(entry.position)]

    def moved_past(self, position: Position) -> None:
        """Entries up to *position* need not be read."""
        if position >= self._state.read_position:
            self._read_generation += 1
            self._state.moved_past(position)

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        self._read_generation += 1
        self._drop_ahead()
        self._state.rewind()

    # --------------------------------------------------------------------------------- changes

    @property
    def _keeps_trimmed(self) -> bool:
        """Whether it may stand before the ledgers that are left; that of compaction itself never does."""
        return self.name != COMPACTION_CURSOR and self._ledger.is_compacted

    def mark_delete(self, position: Position, properties: Mapping[str, int] | None = None) -> None:
        """Acknowledge everything up to *position*. Raises InvalidPosition beyond the end of the topic."""
        self._state.mark_delete(position, dict(properties) if properties is not None else None)
        self._changed()

    def delete(self, positions: Iterable[Position]) -> None:
        """Acknowledge single entries; unknown ones are ignored."""
        if self._state.delete(positions):
            self._changed()

    def delete_run(self, ledger_id: int, first: int, last: int) -> None:
        """Acknowledge entries *first* to *last* of a ledger, of which it has the last one."""
        self._state.delete_run(ledger_id, first, last)
        self._changed()

    def leave_trimmed(self) -> None:
        """What only a compacted ledger has will not be read."""
        if self._state.leave_trimmed():
            self._changed()

    def acknowledge_batch(self, position: Position, ack_set: Sequence[int], batch_size: int) -> bool:
        """Acknowledge the batch indexes whose bit in *ack_set* is clear; True when the whole entry became done."""
        done = self._state.acknowledge_batch(position, ack_set, batch_size)
        self._changed()
        return done

    async def reset(self, position: Position) -> None:
        """Seek: *position* is read next (EARLIEST and LATEST allowed); stored before this returns.

        Raises ManagedLedgerFenced, StorageUnavailable.
        """
        if self._store is None:
            self._read_generation += 1
            self._state.reset(self._not_beyond_end(position), keeps_trimmed=self._keeps_trimmed)
            return
        async with self._writing:
            self._check_open()
            # Wait for a trim that is under way. Later trims see the position set here and keep the ledgers from it on.
            async with self._ledger.record_lock:
                position = self._not_beyond_end(position)
                mark_delete = self._state.mark_delete_before(position, keeps_trimmed=self._keeps_trimmed)
                self.persisted_mark_delete_position = min(self.persisted_mark_delete_position, mark_delete)
            snapshot = self._snapshot_to_store(mark_delete, [], [])
            version = self._state.version
            await self._persist(snapshot)
            # Stored first, so that a seek that failed changes nothing.
            is_stored = version == self._state.version
            self._read_generation += 1
            self._state.reset(position, keeps_trimmed=self._keeps_trimmed)
            if is_stored:
                self._persisted_version = self._state.version
        self._changed()
        self._ledger.trim_if_due()

    def _not_beyond_end(self, position: Position) -> Position:
        """*position*, or the place where the next entry will be: which may come while this is stored."""
        if position == LATEST or position > self._ledger.ledgers.last_confirmed:
            return self._ledger.ledgers.next_position(self._ledger.ledgers.last_confirmed)
        return position

    def mark_idle(self, since_ms: int) -> None:
        """No consumer is attached any more. It is stored with the next state, at the latest when this is closed.

        (As Apache's ManagedCursorImpl, 5.0.1: a subscription expires although its topic changes its owner.)
        """
        self._state.idle_since_ms = since_ms

    def mark_active(self) -> None:
        """A consumer is attached. Where the contrary may be stored, this is stored at once, without a pause.

        If the broker crashed before, the next owner would expire a subscription that is in use.
        """
        was_idle = self._state.idle_since_ms > 0
        self._state.idle_since_ms = 0
        if was_idle and self._may_be_stored_idle:
            self._state.version += 1
            self._ledger.spawn(self._persist_quietly(), f"cursor {self.name}")

    def ledgers_changed(self) -> None:
        """The oldest ledgers were trimmed."""
        self._state.ledgers_changed()

    # ------------------------------------------------------------------------------------ disk

    def _changed(self) -> None:
        if self._store is None or self.is_closed or self._timer is not None:
            return
        if self._state.version == self._persisted_version:
            return
        wait_s = self._last_persist_s + max(self._interval_s, self._retry_s) - self._clock.monotonic()
        self._timer = self._clock.call_later(max(wait_s, 0.0), self._persist_soon)

    def _persist_soon(self) -> None:
        self._timer = None
        if not self.is_closed and not self._writing.locked():
            self._ledger.spawn(self._persist_quietly(), f"cursor {self.name}")

    async def _persist_quietly(self) -> None:
        if await attempt(f"{self._ledger.name}: storing its cursor {self.name}", self._flush_unless_ended()) is FAILED:
            self._changed()

    async def _flush_unless_ended(self) -> None:
        with contextlib.suppress(ManagedLedgerFenced, ManagedLedgerClosed):  # the managed ledger has reported it
            await self.flush()

    async def flush(self) -> None:
        """Store what has changed; on return it survives. Raises ManagedLedgerFenced, StorageUnavailable."""
        if self._store is None:
            return
        async with self._writing:
            self._check_open()
            if self._state.version == self._persisted_version:
                return
            version = self._state.version
            await self._persist(self._snapshot())
            self._persisted_version = version
        self._changed()
        self._ledger.trim_if_due()

    async def set_string_properties(self, texts: Mapping[str, str]) -> None:
        """Replace `string_properties`; durable on return. Raises ManagedLedgerFenced, StorageUnavailable."""
        if self._store is None:
            return
        async with self._writing:
            self._check_open()
            snapshot = self._snapshot()
            self._may_be_stored_idle |= snapshot.idle_since_ms > 0
            try:
                await self._store.set_texts(texts, snapshot)
            except ManagedLedgerFenced as error:
                self._ledger.fence(error)
                raise
        self._changed()

    def _check_open(self) -> None:
        self._ledger.check_not_fenced()
        if self.is_closed:
            raise ManagedLedgerClosed(f"cursor {self.name} of {self._ledger.name} is closed")

    async def _persist(self, snapshot: CursorSnapshot) -> None:
        """Store *snapshot*. Raises ManagedLedgerFenced, which also fences the managed ledger, and what the store
        raises."""
        assert self._store is not None, "a cursor that is not durable stores nothing"
        assert self._writing.locked(), "one state of a cursor is stored at a time"
        self._last_persist_s = self._clock.monotonic()
        self._persisted_version = -1  # after a failure we do not know what is stored, so it is stored again
        self._may_be_stored_idle |= snapshot.idle_since_ms > 0
        try:
            await self._store.persist(snapshot)
        except ManagedLedgerFenced as error:
            self._ledger.fence(error)
            raise
        except Exception:
            self._retry_s = longer_s(self._retry_s, _RETRY_FIRST_S, _RETRY_LAST_S)
            self._changed()
            raise
        self._retry_s = 0.0
        self._may_be_stored_idle = snapshot.idle_since_ms > 0
        self.persisted_mark_delete_position = snapshot.mark_delete_position

    def _snapshot(self) -> CursorSnapshot:
        state = self._state
        return self._snapshot_to_store(state.mark_delete_position, list(state.ranges()), list(state.batches()))

    def _snapshot_to_store(
        self, position: Position, ranges: list[AckRange], batches: list[tuple[Position, list[int]]]
    ) -> CursorSnapshot:
        """What is stored of the cursor; a position before the ledgers is stored as Apache's brokers understand it
        (`stored_place`)."""
        place: Mapping[str, int] = {}
        if self._keeps_trimmed:
            position, place = stored_place(position, self._ledger.ledgers.previous_position(EARLIEST))
        properties = {**self._state.properties, **place}
        return CursorSnapshot(position, ranges, batches, properties, self._state.idle_since_ms)

    async def close(self) -> None:
        """Store the state in the metadata node and give up the cursor ledger."""
        if self.is_closed:
            return
        self._stop_timer()
        self._drop_ahead()
        async with self._writing:
            self.is_closed = True
            if self._store is not None:
                await self._store.close(self._snapshot())

    def abandon(self) -> None:
        """Stop without writing anything: another broker owns the topic now."""
        self._stop_timer()
        self._drop_ahead()
        self.is_closed = True
        self._read_generation += 1
        if self._store is not None:
            self._store.abandon()

    async def release(self) -> None:
        """As `abandon`, and give up the cursor ledger."""
        self.abandon()
        if self._store is not None:
            await self._store.release()

    async def remove(self) -> None:
        """Delete the stored state. Only the managed ledger calls this, which then forgets the cursor.

        If that fails the cursor is what it was. Raises ManagedLedgerFenced, StorageUnavailable.
        """
        try:
            async with self._writing:
                if self._store is not None:
                    await self._store.delete()
                self.abandon()
        finally:
            self._changed()

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.drop()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
