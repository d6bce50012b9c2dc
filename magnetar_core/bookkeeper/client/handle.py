"""Handles: what a user holds of a ledger. They drive the machines of writer.py, reader.py and recovery.py."""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from magnetar_core.bookkeeper.client.add_stages import AddWatch, SlowAdd
from magnetar_core.bookkeeper.client.change_limits import LedgerBackoff
from magnetar_core.bookkeeper.client.connection import AddChannel, BookieConnection, ConnectionPool
from magnetar_core.bookkeeper.client.errors import (
    BeyondLastConfirmed,
    BookKeeperError,
    ClientClosed,
    DigestMismatch,
    EndUnknown,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    TooManyPending,
)
from magnetar_core.bookkeeper.client.fetch import LedgerFetcher
from magnetar_core.bookkeeper.client.placement import choose_replacements
from magnetar_core.bookkeeper.client.quorum import Quorum
from magnetar_core.bookkeeper.client.writer import (
    Acknowledge,
    ChangeEnsemble,
    Effect,
    Failed,
    LedgerWriter,
    PendingAdd,
    judge_conflict,
)
from magnetar_core.bookkeeper.metadata.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.ledgers import LedgerMetadata, LedgerState
from magnetar_core.bookkeeper.metadata.store import MetadataError, NoNode, VersionConflict
from magnetar_core.bookkeeper.wire.entry import EntryCodec, StoredEntry, master_key
from magnetar_core.runtime.clock import Timer
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Buffer, Corruption, bare

log = logging.getLogger(__name__)

# A position whose bookie could not be replaced is looked at again after this, and when the register changes.
_LEFT_OUT_S: Final = 2.0

# Conflicts of one update. Only re-replication of older segments causes any; each is one that made progress.
_CONFLICTS_MAX: Final = 20

# Entries behind LAC that `last_recoverable_entry` asks for at the same time.
_HELD_WINDOW: Final = 16


class LedgerListener(Protocol):
    """Who is told what became of appended entries. Called on the loop, never from within `append`."""

    def on_acknowledged(self, up_to: int) -> None:
        """All entries up to this one are durable on their ack quorum. At most one call in a loop turn."""
        ...

    def on_failed(self, error: BookKeeperError) -> None:
        """Nothing behind the last acknowledged entry will be acknowledged. Called once."""
        ...


def _do_nothing() -> None: ...


def mapped(error: Exception, ledger_id: int) -> BookKeeperError:
    """What a user of a ledger gets for an error of the metadata store."""
    if isinstance(error, BookKeeperError):
        return error
    if isinstance(error, NoNode):
        return NoSuchLedger(f"ledger {ledger_id} does not exist")
    return MetadataUnavailable(f"ledger {ledger_id}: {error}")


class LedgerWriteHandle:
    """A ledger that this client writes. Made by `BookKeeper.create_ledger`."""

    def __init__(
        self,
        ledger_id: int,
        versioned: Versioned,
        ledgers: LedgerStore,
        pool: ConnectionPool,
        rng: random.Random,
        *,
        last_add_confirmed: int = -1,
        recovery: bool = False,
    ) -> None:
        """*recovery*: write back what recovery found, beginning behind *last_add_confirmed*."""
        metadata = versioned.metadata
        self.ledger_id = ledger_id
        self.listener: LedgerListener | None = None
        self._versioned = versioned
        self._ledgers = ledgers
        self._pool = pool
        self._rng = rng
        self._recovery = recovery
        self.recovery_ensembles: dict[int, tuple[str, ...]] = {}
        """Replacements made while recovering, by first entry: published when the ledger is closed."""
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(f"ledger {ledger_id}", self._on_broken)
        self._writer = LedgerWriter(
            ledger_id,
            Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
            metadata.last_segment.ensemble,
            EntryCodec(metadata.digest_type, metadata.password),
            master_key(metadata.password),
            last_add_confirmed=last_add_confirmed,
            recovery=recovery,
        )
        self._channels = [
            AddChannel(self, index, self._connection(bookie)) for index, bookie in enumerate(self._writer.ensemble)
        ]
        slow = pool.slow_adds
        quorum = self._writer.quorum
        self._watch = None if slow is None else AddWatch(quorum.ensemble_size, quorum.is_striped, slow.threshold_s)
        self._now = pool.clock.monotonic
        self._write_sets = [self._writer.quorum.write_set(first) for first in range(metadata.ensemble_size)]
        # Ensemble change and close update the metadata one after the other.
        self._turn = asyncio.Lock()
        # A recovery is tried again by whoever began it.
        self._may_starve = pool.config.hold_adds_s > 0 and not recovery
        self._backoff = LedgerBackoff()
        # Position → why its bookie failed, for the log.
        self._reasons: dict[int, str] = {}
        # When the writer fails because it is starved; ends with the next acknowledgement.
        self._starved_until_s: float | None = None
        self._attempted: LedgerMetadata | None = None
        self._notified = last_add_confirmed
        self._notifying = False
        self._failure: BookKeeperError | None = None
        self._failure_told = False
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._left_out_timer: Timer | None = None
        self._closing: asyncio.Task[LedgerMetadata] | None = None
        self._cancel_watch = pool.directory.watch(self._look_at_left_out)

    @property
    def last_add_confirmed(self) -> int:
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        return self._writer.last_add_pushed

    @property
    def length(self) -> int:
        """Payload bytes, pending entries included."""
        return self._writer.length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._versioned.metadata

    @property
    def pending_count(self) -> int:
        return self._writer.pending_count

    @property
    def pending_bytes(self) -> int:
        return self._writer.pending_bytes

    @property
    def error(self) -> BookKeeperError | None:
        """What the handle failed with, or LedgerClosed; None while entries can be added."""
        return self._writer.error

    def append(self, payloads: Sequence[Buffer]) -> int:
        """Add a run of entries; return the id of the first. Never blocks; the listener hears of the outcome.

        Nobody may change the payloads afterwards. Raises LedgerClosed, LedgerFenced or what else ended the
        handle; EntryTooLarge, TooManyPending (nothing was added; `when_writable` tells when to try again).
        """
        writer = self._writer
        config = self._pool.config
        for channel in self._channels:
            if channel.connection.is_full and channel.index not in writer.left_out:
                raise TooManyPending(
                    f"ledger {self.ledger_id}: bookie {channel.bookie} has yet to take what waits for it "
                    "(maxOutboxBytesPerBookie)"
                )
        if (
            writer.pending_count + len(payloads) > config.pending_adds_max
            or writer.pending_bytes > config.pending_bytes_max
        ):
            raise TooManyPending(
                f"ledger {self.ledger_id}: {writer.pending_count} entries with {writer.pending_bytes} bytes wait "
                "for their bookies (maxPendingAddsPerLedger, maxPendingBytesPerLedger)"
            )
        first = writer.last_add_pushed + 1
        run = writer.add(payloads)
        effect = writer.start_delayed_change()
        if self._watch is not None and run:
            self._watch.appended(run[-1].entry_id, self._now())
        self._send(run)
        if effect is not None:
            self._do(effect)
        return first

    async def add(self, payload: Buffer) -> int:
        """Add one entry and wait until it is acknowledged; return its id. Waits also for room to send it."""
        while self.is_blocked:
            has_room = asyncio.Event()
            self.when_writable(has_room.set)
            await has_room.wait()
        entry_id = self.append((payload,))
        return await self.wait_for(entry_id)

    @property
    def is_blocked(self) -> bool:
        """A bookie has yet to take what waits for it: nothing can be appended (`when_writable`)."""
        left_out = self._writer.left_out
        return self._writer.is_open() and any(
            channel.connection.is_full and channel.index not in left_out for channel in self._channels
        )

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, soon after a bookie whose outbox was full has taken most of it, or is given up."""
        for channel in self._channels:
            if channel.connection.is_full and channel.index not in self._writer.left_out:
                channel.connection.when_drained(callback)
                return
        self._loop.call_soon(callback)

    async def wait_for(self, entry_id: int) -> int:
        """Return when *entry_id* is acknowledged. Raises what the handle failed with."""
        if entry_id <= self._notified:
            return entry_id
        if self._failure is not None:
            raise bare(self._failure)
        done: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append((entry_id, done))
        try:
            return await done
        finally:
            del done  # its error would hold this frame, and this frame it

    async def close(self) -> LedgerMetadata:
        """Seal the ledger after the last acknowledged entry. Pending entries fail and are not part of it.

        Later calls return the first result. Raises LedgerFenced if another client took the ledger over,
        MetadataConflict if it closed it elsewhere, MetadataUnavailable (may be tried again).
        """
        if self._closing is None or (self._closing.done() and self._closing.exception() is not None):
            self._closing = self._loop.create_task(self._close())
        return await asyncio.shield(self._closing)

    async def abandon(self) -> None:
        """Let go without touching the metadata: the ledger stays open until somebody recovers it."""
        self._stop(ClientClosed(f"ledger {self.ledger_id}: the handle was given up"))
        await self._tasks.cancel()
        self._loop.call_soon(self._let_go)

    def set_length(self, length: int) -> None:
        """Recovery: the ledger's length before the entry that is appended next."""
        self._writer.set_length(length)

    # Answers (AddSink)

    def on_added(self, channel: AddChannel, entry_ids: list[int]) -> None:
        if self._watch is not None and channel is self._channels[channel.index]:
            self._watch.answered(channel.index, entry_ids[-1], self._now())
        if self._writer.on_added(channel.index, channel.bookie, entry_ids) is not None:
            self._notify_soon()

    def on_add_failed(self, channel: AddChannel, entry_ids: list[int], error: BookKeeperError) -> None:
        self._reasons[channel.index] = str(error)
        effect = self._writer.on_failed(channel.index, channel.bookie, entry_ids, error)
        if effect is not None:
            self._do(effect)

    # Inside

    def _connection(self, bookie_id: str) -> BookieConnection:
        return self._pool.get(bookie_id, self.ledger_id, recovery=self._recovery)

    def _send(self, run: Sequence[PendingAdd]) -> None:
        channels, skipped, ledger_id = self._channels, self._writer.skipped, self.ledger_id
        if not self._writer.quorum.is_striped:
            for channel in channels:
                if channel.index not in skipped:
                    channel.connection.send_adds(channel, ledger_id, run)
            return
        runs: list[list[PendingAdd]] = [[] for _ in channels]
        size = len(channels)
        for add in run:
            for index in self._write_sets[add.entry_id % size]:
                runs[index].append(add)
        for channel in channels:
            if channel.index not in skipped:
                channel.connection.send_adds(channel, ledger_id, runs[channel.index])

    def _do(self, effect: Effect) -> None:
        match effect:
            case Acknowledge():
                self._notify_soon()
            case ChangeEnsemble(failed):
                self._tasks.spawn(self._change_ensemble(dict(failed)), "ensemble change")
            case Failed(error):
                self._stop(error)

    async def _change_ensemble(self, failed: dict[int, str]) -> None:
        writer = self._writer
        if self._watch is not None:
            self._watch.changing(self._now())
        try:
            async with self._turn:
                await self._wait_for_turn(failed)
                if not writer.is_open():
                    return
                replacements = choose_replacements(
                    self._pool.directory.writable,
                    writer.ensemble,
                    failed,
                    self._pool.unreachable,
                    self._pool.quarantined,
                    self._rng,
                )
                if replacements:
                    await self._publish(replacements)
        except (BookKeeperError, MetadataError, Corruption) as error:
            failure = writer.fail(mapped(error, self.ledger_id))
            if failure is not None:
                self._stop(failure.error)
            return
        if not writer.is_open():
            return
        changed = writer.on_ensemble_changed(replacements, may_starve=self._may_starve)
        if self._watch is not None:
            self._watch.changed(frozenset(replacements), self._now())
        log.info(
            "ledger %d: bookies %s failed, from entry %d on: %s; left out: %s; the reason: %s",
            self.ledger_id,
            ", ".join(failed.values()),
            writer.last_add_confirmed + 1,
            ", ".join(writer.ensemble),
            ", ".join(writer.left_out.values()) or "none",
            "; ".join(self._reasons.pop(index, "not known") for index in failed),
        )
        for index, adds in changed.resend.items():
            self._resend(index, adds)
        if changed.effect is not None:
            self._do(changed.effect)
        self._watch_left_out()

    async def _wait_for_turn(self, failed: dict[int, str]) -> None:
        now_s = self._now()
        delay_s = max(
            self._backoff.delay_s(now_s), *(self._pool.change_limits.delay_s(one, now_s) for one in failed.values())
        )
        if delay_s:
            log.info("ledger %d: its ensemble changes often; the next change waits %.1f s", self.ledger_id, delay_s)
            await self._pool.clock.sleep(delay_s)

    async def _publish(self, replacements: dict[int, str]) -> None:
        """Make the new ensemble known. Raises what ends the writer."""
        first, ensemble = self._writer.new_segment(replacements)
        if self._recovery:
            self.recovery_ensembles[first] = ensemble
            return
        for _ in range(_CONFLICTS_MAX):
            own, version = self._versioned.metadata, self._versioned.version
            self._attempted = own.with_ensemble(first, ensemble)
            try:
                self._versioned = await self._ledgers.write(self.ledger_id, self._attempted, version)
                return
            except VersionConflict:
                found = await self._ledgers.read(self.ledger_id)
                judge_conflict(own, found.metadata, self.ledger_id)
                self._versioned = found
        raise MetadataUnavailable(f"ledger {self.ledger_id}: {_CONFLICTS_MAX} conflicts in a row")

    def _resend(self, index: int, adds: Sequence[PendingAdd]) -> None:
        connection = self._connection(self._writer.ensemble[index])
        channel = self._channels[index] = AddChannel(self, index, connection)
        connection.send_adds(channel, self.ledger_id, adds)

    def _watch_left_out(self) -> None:
        self._watch_starving()
        if self._writer.left_out and self._left_out_timer is None and self._writer.is_open():
            self._left_out_timer = self._pool.clock.call_later(_LEFT_OUT_S, self._on_left_out_timer)

    def _watch_starving(self) -> None:
        """A writer without bookies holds what is pending for the time in which one has to answer, then it fails."""
        writer = self._writer
        if not writer.is_open() or not writer.is_starved:
            return
        now_s, hold_s = self._now(), self._pool.config.hold_adds_s
        if self._starved_until_s is None:
            self._starved_until_s = now_s + hold_s
            log.warning("%s; its entries are held for %g s", writer.starved_error(), hold_s)
        elif now_s >= self._starved_until_s:
            failure = writer.fail(writer.starved_error())
            if failure is not None:
                self._stop(failure.error)

    def _on_left_out_timer(self) -> None:
        self._left_out_timer = None
        self._look_at_left_out()
        self._watch_left_out()

    def _look_at_left_out(self) -> None:
        """Positions without a bookie: is there a new one, or is the old one back?"""
        writer = self._writer
        if not writer.left_out or writer.is_changing or not writer.is_open():
            return
        writable = self._pool.directory.writable
        unreachable = self._pool.unreachable
        if not writable <= {*writer.ensemble, *unreachable}:
            effect = writer.replace_left_out()
            if effect is not None:
                self._do(effect)
            return
        for index, bookie in list(writer.left_out.items()):
            if bookie in writable and bookie not in unreachable:
                self._resend(index, writer.readmit(index))

    def _notify_soon(self) -> None:
        if not self._notifying:
            self._notifying = True
            self._loop.call_soon(self._notify)

    def _notify(self) -> None:
        self._notifying = False
        confirmed = self._writer.last_add_confirmed
        if confirmed > self._notified:
            self._notified = confirmed
            self._starved_until_s = None
            if self._watch is not None:
                slow = self._watch.acknowledged(confirmed, self._now())
                if slow is not None:
                    self._tell_slow(slow)
            waiting = self._waiting
            while waiting and waiting[0][0] <= confirmed:
                entry_id, done = waiting.popleft()
                if not done.done():
                    done.set_result(entry_id)
            if self.listener is not None:
                self.listener.on_acknowledged(confirmed)
        if self._failure is not None and not self._failure_told:
            self._failure_told = True
            for _, done in self._waiting:
                if not done.done():
                    done.set_exception(bare(self._failure))
            self._waiting.clear()
            if self.listener is not None:
                self.listener.on_failed(self._failure)

    def _tell_slow(self, add: SlowAdd) -> None:
        slow_adds = self._pool.slow_adds
        assert slow_adds is not None
        bookies: dict[str, dict[str, float | None]] = {}
        queue_s = 0.0
        for channel, answer_s in zip(self._channels, add.answers_s, strict=True):
            waited_s = channel.connection.queue_s(add.appended_s)
            queue_s = max(queue_s, waited_s)
            bookies[channel.bookie] = {
                "queue_ms": round(waited_s * 1000, 1),
                "answer_ms": None if answer_s is None else round(answer_s * 1000, 1),
            }
        slow_adds.report(
            "add",
            add.total_s,
            {"queue": queue_s, "ensemble_change": add.change_s, "quorum": add.total_s - queue_s},
            ledger=self.ledger_id,
            entry=add.last_entry_id,
            ack_quorum=self._writer.quorum.ack,
            bookies=bookies,
        )

    def _stop(self, error: BookKeeperError) -> None:
        """Nothing is acknowledged from here on."""
        self._writer.fail(error)
        if self._watch is not None:
            self._watch.clear()
        self._cancel_watch()
        if self._left_out_timer is not None:
            self._left_out_timer.cancel()
            self._left_out_timer = None
        if self._failure is None:
            self._failure = bare(error)
            self._notify_soon()

    def _let_go(self) -> None:
        """Drop what points back here, after the last call of the listener: a broker makes and ends a handle for each
        ledger and each cursor, and should not wait for the collector to untie them."""
        self._cancel_watch = _do_nothing
        self._tasks.on_failure = None
        self.listener = None
        self._watch = None  # answers of slow bookies still come
        self._channels.clear()
        closing = self._closing
        if closing is not None and closing.done() and (closing.cancelled() or closing.exception() is not None):
            self._closing = None  # it holds its error, and that the frames of `_close`

    def _on_broken(self, error: BaseException) -> None:
        """A fault of this program in an ensemble change: the barrier would stay up for ever."""
        self._stop(BookKeeperError(f"ledger {self.ledger_id}: the ensemble change failed: {error!r}"))

    async def _close(self) -> LedgerMetadata:
        assert not self._recovery, "recovery closes the ledger itself"
        async with self._turn:
            writer = self._writer
            if isinstance(writer.error, LedgerFenced | NoSuchLedger):
                raise bare(writer.error)
            had_pending = writer.pending_count > 0
            last, length = writer.close()
            self._cancel_watch()
            if had_pending:
                self._stop(LedgerClosed(f"ledger {self.ledger_id} was closed before the entry was acknowledged"))
            try:
                await self._seal(last, length)
            except (MetadataError, Corruption) as error:
                raise mapped(error, self.ledger_id) from error
        self._loop.call_soon(self._let_go)
        return self._versioned.metadata

    async def _seal(self, last: int, length: int) -> None:
        for _ in range(_CONFLICTS_MAX):
            own, version = self._versioned.metadata, self._versioned.version
            if own.is_closed:
                return
            try:
                self._versioned = await self._ledgers.write(self.ledger_id, own.closed(last, length), version)
                return
            except VersionConflict:
                found = await self._ledgers.read(self.ledger_id)
                if found.metadata.state is LedgerState.CLOSED:
                    if (found.metadata.last_entry_id, found.metadata.length) != (last, length):
                        raise MetadataConflict(
                            f"ledger {self.ledger_id} was closed by another client at entry "
                            f"{found.metadata.last_entry_id}, here the last one is {last}"
                        ) from None
                elif found.metadata != self._attempted:  # an own change whose answer was lost
                    judge_conflict(own, found.metadata, self.ledger_id)
                self._versioned = found
        raise MetadataUnavailable(f"ledger {self.ledger_id}: {_CONFLICTS_MAX} conflicts in a row")


class LedgerReadHandle:
    """A ledger that is read. Made by `BookKeeper.open_ledger`."""

    def __init__(
        self,
        ledger_id: int,
        versioned: Versioned,
        ledgers: LedgerStore,
        pool: ConnectionPool,
        last_add_confirmed: int,
        length: int,
    ) -> None:
        metadata = versioned.metadata
        self.ledger_id = ledger_id
        self._versioned = versioned
        self._ledgers = ledgers
        self._last_add_confirmed = last_add_confirmed
        self._length = length
        self._fetcher = LedgerFetcher(
            ledger_id,
            Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
            EntryCodec(metadata.digest_type, metadata.password),
            pool,
        )

    @property
    def metadata(self) -> LedgerMetadata:
        return self._versioned.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that may be read; of an open ledger as far as is known here."""
        return self._last_add_confirmed

    @property
    def is_closed(self) -> bool:
        return self.metadata.is_closed

    @property
    def length(self) -> int:
        """Payload bytes; of an open ledger as far as is known here."""
        return self._length

    async def read(self, first: int, last: int) -> list[StoredEntry]:
        """The entries *first* … *last*, both included.

        Raises BeyondLastConfirmed, and what reading failed with on every replica (NoSuchEntry only if nothing
        else went wrong).
        """
        self._check(first, last)
        return await self.read_unconfirmed(first, last)

    async def read_unconfirmed(self, first: int, last: int) -> list[StoredEntry]:
        """As `read`, without asking whether the entries are confirmed: one that is not may never have existed."""
        if not 0 <= first <= last:
            raise ValueError(f"entries {first} to {last}")
        entries: list[StoredEntry] = []
        while first <= last:
            run = await self._run(first, last - first + 1, self._fetcher_bytes)
            entries += run
            first += len(run)
        return entries

    async def read_batch(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        """A contiguous run that begins with *first*: at least one entry, at most *max_count* and (but for the
        first entry) about *max_bytes*. It may be shorter than asked for."""
        if max_count < 1:
            raise ValueError(f"{max_count} entries")
        self._check(first, first)
        return await self._run(first, min(max_count, self._last_add_confirmed - first + 1), max_bytes)

    async def read_batch_unconfirmed(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        """As `read_batch`, without asking whether the entries are confirmed: for whoever knows it otherwise (the
        ledger's writer does)."""
        if max_count < 1 or first < 0:
            raise ValueError(f"{max_count} entries from {first} on")
        return await self._run(first, max_count, max_bytes)

    async def read_last_confirmed(self) -> int:
        """Ask metadata and bookies how far the ledger is confirmed, without fencing. Never goes back.

        A writer tells its LAC with the next entry, so the last entry of an open ledger shows only after
        another one, or when the ledger is closed (see `last_recoverable_entry`).
        """
        await self._refresh()
        if not self.is_closed:
            segment = self.metadata.last_segment
            found = await self._fetcher.last_confirmed(segment.ensemble, segment.first_entry_id)
            if found.last_add_confirmed > self._last_add_confirmed:
                self._last_add_confirmed = found.last_add_confirmed
                self._length = found.length
        return self._last_add_confirmed

    async def last_recoverable_entry(self) -> int:
        """The last entry that a recovery would find, without a gap behind LAC. Does not fence.

        Raises EndUnknown, which names the entry, where too few bookies answer to tell.

        Why it may be read although no LAC covers it: a recovery takes an entry as absent only after
        Qw - Qa + 1 bookies of its write set denied it. While Qa of them hold it, at most Qw - Qa can, so every
        recovery finds it and makes it part of the ledger; all entries before it, too. It is what the writer
        has acknowledged, or is about to. The one exception is a writer that closes the ledger itself while the
        answers for the entry are still on their way: it seals before the entry, which was never acknowledged.

        Where bookies are silent, an entry that one of the others holds may have been acknowledged, and what was
        acknowledged is never left out: it counts as well, as it would for a recovery now. If it was not, it is the
        entry that the writer is copying to another bookie, or that a later recovery may find denied.

        `last_add_confirmed` is not moved by this: read such entries with `read_unconfirmed`.
        """
        last = await self.read_last_confirmed()
        if self.is_closed:
            return last
        while True:
            wanted = range(last + 1, last + 1 + _HELD_WINDOW)
            held = await asyncio.gather(
                *(self._fetcher.is_held(self.metadata.ensemble_for(entry_id), entry_id) for entry_id in wanted),
                return_exceptions=True,
            )
            for verdict in held:
                if isinstance(verdict, BookKeeperError | DigestMismatch):
                    raise EndUnknown(
                        f"whether ledger {self.ledger_id} goes on behind entry {last} is not known: {verdict}", last
                    ) from verdict
                if isinstance(verdict, BaseException):
                    raise verdict
                if not verdict:
                    return last
                last += 1

    async def close(self) -> None:
        """Nothing to give back; here so that handles are used alike."""

    @property
    def _fetcher_bytes(self) -> int:
        return self._fetcher._pool.config.frame_bytes_max

    def _check(self, first: int, last: int) -> None:
        if not 0 <= first <= last:
            raise ValueError(f"entries {first} to {last}")
        if last > self._last_add_confirmed:
            raise BeyondLastConfirmed(
                f"ledger {self.ledger_id}: entry {last} is behind the last confirmed one, {self._last_add_confirmed}"
            )

    async def _run(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        """A run within one segment. When every replica fails, the metadata may have moved on: copies made
        since then are on other bookies."""
        try:
            return await self._run_once(first, max_count, max_bytes)
        except (BookKeeperError, DigestMismatch):
            before = self.metadata.segments
            with contextlib.suppress(BookKeeperError):
                await self._refresh()
            if self.metadata.segments == before:
                raise
        return await self._run_once(first, max_count, max_bytes)

    async def _run_once(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        segment = self.metadata.segment_for(first)
        end = self.metadata.segment_end(segment.first_entry_id)
        if end is not None:
            max_count = min(max_count, end - first)
        return await self._fetcher.run(segment.ensemble, first, max_count, max_bytes)

    async def _refresh(self) -> None:
        try:
            self._versioned = await self._ledgers.read(self.ledger_id)
        except (MetadataError, Corruption) as error:
            raise mapped(error, self.ledger_id) from error
        if self.is_closed:
            # From here on only this counts, and no bookie's LAC (I8).
            self._last_add_confirmed = self.metadata.last_entry_id
            self._length = self.metadata.length
