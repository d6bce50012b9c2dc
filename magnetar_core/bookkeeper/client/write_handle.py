"""The handle of a ledger that is written. It carries out what the state machine of writer.py decides.

    append ──▶ LedgerWriter.add ──▶ a connection for each position of the ensemble ──▶ on_added ──▶ LedgerWriter
                                                                                          │
    listener, `wait_for` ◀── at most once a loop turn ◀── Acknowledge ◀───────────────────┘

An ensemble change and the close change the ledger's record (`LedgerRecord`), one after the other.

A bookie that turns read-only is left before it refuses entries or breaks the connection: with the next entry that is
appended, a few ledgers at a time, and only if another bookie can take its place. Ledgers to which nothing is appended
stay where they are, since the bookie may be back before they need it.

Where it is in doubt whether the ledger is still this writer's, the record is read before anything is acknowledged
(`belief`).

A bookie whose disks are newer than the ledger refuses its entries, though it takes those of others. It is not asked
again; where too few others are left, as when all bookies were exchanged one after the other, nothing is waited for: the
handle fails, and its owner begins a newer ledger.
"""

import asyncio
import logging
import random
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Final, Protocol

from magnetar_core.bookkeeper.client.deciding.add_stages import AddWatch, SlowAdd
from magnetar_core.bookkeeper.client.deciding.belief import Belief
from magnetar_core.bookkeeper.client.deciding.change_limits import LedgerBackoff
from magnetar_core.bookkeeper.client.deciding.quorum import quorum_of
from magnetar_core.bookkeeper.client.deciding.writer import (
    Acknowledge,
    Changed,
    ChangeEnsemble,
    Effect,
    Failed,
    Held,
    Leave,
    LedgerWriter,
    PendingAdd,
)
from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    ClientClosed,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    TooManyPending,
)
from magnetar_core.bookkeeper.client.ledger_record import LedgerRecord, as_client_error
from magnetar_core.bookkeeper.client.placing.ensembles import choose_replacements
from magnetar_core.bookkeeper.client.reading.fetch import LedgerFetcher
from magnetar_core.bookkeeper.client.wire.connection import AddChannel, BookieConnection
from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError, NoNode, StoreUnavailable, WentBack
from magnetar_core.bookkeeper.wire.entry import EntryCodec, StoredEntry, master_key
from magnetar_core.runtime.clock import Timer
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Buffer, Corruption, bare, do_nothing

log = logging.getLogger(__name__)

# A writer that has appended nothing for so long reads the ledger's record again. One small reading in that time costs
# nothing, and bookies collect what was deleted every quarter of an hour.
BELIEF_S: Final = 30.0

# How long entries wait for that reading at most, if it is for the pause alone: a metadata store that stands still must
# not stop topics that are open. Without it nobody can recover a ledger, or delete it.
PAUSE_READ_S: Final = 1.0

# When somebody has closed the ledger, a new owner writes the topic's record next, by which this owner learns that it is
# none any more. Only where that does not come was it auto-recovery, or a drain, and the writer goes on elsewhere.
NOTICE_S: Final = 1.0

# Pauses between readings while the metadata store does not answer.
READ_AGAIN_S: Final = 0.2
_READ_AGAIN_LAST_S: Final = 2.0

_entry_id = itemgetter(0)


class LedgerListener(Protocol):
    """Is told what became of appended entries. Called on the loop, never from within `append`."""

    def on_acknowledged(self, up_to: int) -> None:
        """All entries up to this one are durable on their ack quorum. At most one call in a loop turn."""
        ...

    def on_failed(self, error: BookKeeperError) -> None:
        """The handle failed: no entry after the last acknowledged one will be acknowledged. Called once."""
        ...


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
        """*recovery*: the handle writes back entries that a recovery found, beginning after *last_add_confirmed*."""
        metadata = versioned.metadata
        self.ledger_id = ledger_id
        self.listener: LedgerListener | None = None
        self._record = LedgerRecord(ledger_id, versioned, ledgers)
        self._pool = pool
        self._rng = rng
        self._recovery = recovery
        self.recovery_ensembles: dict[int, tuple[str, ...]] = {}
        """Ensembles chosen during a recovery, by first entry. They are published when the ledger is closed."""
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(f"ledger {ledger_id}", self._on_broken)
        self._writer = LedgerWriter(
            ledger_id,
            quorum_of(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
            metadata.last_segment.ensemble,
            EntryCodec(metadata.digest_type, metadata.password),
            master_key(metadata.password),
            last_add_confirmed=last_add_confirmed,
            recovery=recovery,
            # A recovery fails at once instead of waiting for bookies: its caller tries it again.
            hold_s=0.0 if recovery else pool.config.hold_adds_s,
            frame_bytes_max=pool.config.frame_bytes_max,
        )
        self._channels = [
            AddChannel(self, index, self._connection(bookie)) for index, bookie in enumerate(self._writer.ensemble)
        ]
        slow = pool.slow_adds
        quorum = self._writer.quorum
        self._watch = None if slow is None else AddWatch(quorum.ensemble_size, quorum.is_striped, slow.threshold_s)
        self._now = pool.clock.monotonic
        self._write_sets = quorum.write_sets
        # Ensemble changes and the close update the record one after the other.
        self._record_lock = asyncio.Lock()
        self._backoff = LedgerBackoff()
        # Position → why its bookie failed, for the log.
        self._reasons: dict[int, str] = {}
        self._notified = last_add_confirmed
        self._notifying = False
        self._failure: BookKeeperError | None = None
        self._failure_reported = False
        self._waiting: list[tuple[int, asyncio.Future[int]]] = []  # in the order of their entries
        self._left_out_timer: Timer | None = None
        self._closing: asyncio.Task[LedgerMetadata] | None = None
        self._appended_s = pool.clock.monotonic()
        self._belief = Belief(self._sockets())
        self._is_reading = False
        """The record is read, to know whether the ledger is still ours."""
        self._is_looking = False
        self._cancel_record_watch: Cancel = do_nothing
        self._writer.on_bookies(pool.directory.writable, pool.directory.read_only)
        self._cancel_watch = pool.directory.watch(self._on_bookies)

    @property
    def last_add_confirmed(self) -> int:
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        return self._writer.last_add_pushed

    @property
    def length(self) -> int:
        """Payload bytes of all entries, pending ones included."""
        return self._writer.length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._record.metadata

    @property
    def pending_count(self) -> int:
        return self._writer.pending_count

    @property
    def pending_bytes(self) -> int:
        return self._writer.pending_bytes

    @property
    def error(self) -> BookKeeperError | None:
        """The error the handle failed with, or LedgerClosed; None while entries can be added."""
        return self._writer.error

    def append(self, payloads: Sequence[Buffer]) -> int:
        """Add a run of entries; return the id of the first. Never blocks; the listener is told of the outcome.

        The payloads must not be changed afterwards. Raises LedgerClosed, LedgerFenced or whatever error ended the
        handle; EntryTooLarge, TooManyPending. After an error nothing was added; after TooManyPending,
        `when_writable` tells when to try again.
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
        now_s = self._now()
        if now_s - self._appended_s > BELIEF_S and not self._recovery and writer.is_open():
            self._belief.on_pause()
            self._doubt_record()
            self._pool.clock.call_later(PAUSE_READ_S, self._on_silence)
        self._appended_s = now_s
        first = writer.last_add_pushed + 1
        run = writer.add(payloads)
        effect = writer.start_delayed_change()
        if self._watch is not None and run:
            self._watch.appended(run[-1].entry_id, now_s)
        self._send(run)
        if effect is not None:
            self._do(effect)
        return first

    async def add(self, payload: Buffer) -> int:
        """Add one entry, wait until it is acknowledged, and return its id. Waits first while `is_blocked`."""
        await self.until_writable()
        entry_id = self.append((payload,))
        return await self.wait_for(entry_id)

    async def until_writable(self) -> None:
        """Wait while `is_blocked`."""
        while self.is_blocked:
            has_room = asyncio.Event()
            self.when_writable(has_room.set)
            await has_room.wait()

    @property
    def is_blocked(self) -> bool:
        """The outbox of some bookie is full: nothing can be appended until it drains (`when_writable`)."""
        left_out = self._writer.left_out
        return self._writer.is_open() and any(
            channel.connection.is_full and channel.index not in left_out for channel in self._channels
        )

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, soon after a full outbox has drained or its connection was given up."""
        for channel in self._channels:
            if channel.connection.is_full and channel.index not in self._writer.left_out:
                channel.connection.when_drained(callback)
                return
        self._loop.call_soon(callback)

    async def wait_for(self, entry_id: int) -> int:
        """Return when *entry_id* is acknowledged. Raises the error the handle failed with."""
        if entry_id <= self._notified:
            return entry_id
        if self._failure is not None:
            raise bare(self._failure)
        done: asyncio.Future[int] = self._loop.create_future()
        insort(self._waiting, (entry_id, done), key=_entry_id)
        try:
            return await done
        finally:
            del done  # its error's traceback holds this frame, so the frame must not hold the future

    async def close(self) -> LedgerMetadata:
        """Seal the ledger after the last acknowledged entry. Pending entries fail and are not part of it.

        Later calls return the first result. Raises LedgerFenced if another client took the ledger over,
        MetadataConflict if it closed it elsewhere, MetadataUnavailable (may be tried again).
        """
        if self._closing is None or (self._closing.done() and self._closing.exception() is not None):
            self._closing = self._loop.create_task(self._close())
        return await asyncio.shield(self._closing)

    async def abandon(self) -> None:
        """Give the handle up without touching the record: the ledger stays open until somebody recovers it."""
        self._stop(ClientClosed(f"ledger {self.ledger_id}: the handle was given up"))
        await self._tasks.cancel()
        self._loop.call_soon(self._drop_references)

    async def read_back(self, first: int, last: int, max_bytes: int) -> list[StoredEntry]:
        """A run of acknowledged entries, from the bookies that took them, whatever the record says by now.

        Begins with *first*, one entry at least and about *max_bytes*. May be called when the handle has failed or was
        given up. Raises BookKeeperError; DigestMismatch.
        """
        metadata = self.metadata
        quorum = quorum_of(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        codec = EntryCodec(metadata.digest_type, metadata.password)
        segment = metadata.segment_for(first)
        end = metadata.segment_end(segment.first_entry_id)
        count = (last + 1 if end is None else min(last + 1, end)) - first
        fetcher = LedgerFetcher(self.ledger_id, quorum, codec, self._pool)
        return await fetcher.run(segment.ensemble, first, count, max_bytes)

    def set_length(self, length: int) -> None:
        """For a recovery: set the ledger's length before the entry that is appended next, in payload bytes."""
        self._writer.set_length(length)

    # Answers (AddSink)

    def on_added(self, channel: AddChannel, entry_ids: list[int]) -> None:
        if self._watch is not None and channel is self._channels[channel.index]:
            self._watch.answered(channel.index, entry_ids[-1], self._now())
        if not self._recovery and self._belief.on_answer(channel, channel.connection.socket):
            self._doubt_record()
        if self._writer.on_added(channel.index, channel.bookie, entry_ids) is not None:
            self._notify_soon()

    def on_add_failed(self, channel: AddChannel, entry_ids: list[int], error: BookKeeperError) -> None:
        self._reasons[channel.index] = str(error)
        is_writable = channel.bookie in self._pool.directory.writable
        self._do(self._writer.on_failed(channel.index, channel.bookie, entry_ids, error, is_writable))

    # Whose ledger it is

    def _doubt_record(self) -> None:
        """Nothing is acknowledged before the record has been read (I130)."""
        if not self._writer.is_open():
            return
        self._writer.doubt()
        if not self._is_reading:
            self._is_reading = True
            self._tasks.spawn(self._confirm_by_record(), "reading the record")

    async def _confirm_by_record(self) -> None:
        """Read the ledger's record until it has said that the ledger is ours, later than each socket to a bookie that
        answered was opened (`belief`, rule 1)."""
        again_s = READ_AGAIN_S
        try:
            while self._writer.is_open():
                sockets = self._sockets()
                try:
                    async with self._record_lock:
                        await self._record.check(synced=True)
                except StoreUnavailable as error:
                    log.warning("ledger %d: whether it is still ours is not known: %s", self.ledger_id, error)
                    await self._pool.clock.sleep(again_s)
                    again_s = min(again_s * 2, _READ_AGAIN_LAST_S)
                    continue
                except (BookKeeperError, MetadataError, Corruption) as error:
                    self._fail(error)
                    return
                self._belief.on_read(sockets)
                self._trust()
                if not self._belief.is_doubted:
                    return
        finally:
            self._is_reading = False

    def follow_record(self) -> None:
        """From now on notice who closes the ledger, or moves copies of it, also while nothing is appended.

        Auto-recovery writes the record as it is to ask the writer to leave bookies that take no entries: those that are
        read-only, and those that are gone.
        """
        self._cancel_record_watch = self._record.watch(self._on_record)

    def _on_record(self) -> None:
        if not self._is_looking and self._writer.is_open():
            self._is_looking = True
            self._tasks.spawn(self._look_at_record(), "looking at the record")

    async def _look_at_record(self) -> None:
        try:
            async with self._pool.looks, self._record_lock:
                self._is_looking = False  # what is changed from here on is looked at again
                is_asked = await self._record.check(synced=False)
            if is_asked:
                await self._leave(self._writer.present)
        except LedgerFenced:
            pass  # a recovery is under way; its end rings again
        except LedgerClosed as error:
            await self._pool.clock.sleep(NOTICE_S)
            self._fail(error)
        except NoNode as error:
            self._fail(error)
        except (WentBack, Corruption) as error:
            log.error("ledger %d: its record does not say whether it is still ours: %s", self.ledger_id, error)
        except MetadataError as error:
            log.debug("ledger %d: its record cannot be read: %s", self.ledger_id, error)  # a reconnect rings again

    def _sockets(self) -> dict[AddChannel, int]:
        return {channel: channel.connection.socket for channel in self._channels}

    def _on_silence(self) -> None:
        self._belief.on_silence()
        self._trust()

    def _trust(self) -> None:
        """Acknowledge what was held back, unless it is in doubt still."""
        if not self._belief.is_doubted and self._writer.trust() is not None:
            self._notify_soon()

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

    def _do(self, effect: Effect | None) -> None:
        match effect:
            case Acknowledge():
                self._notify_soon()
            case ChangeEnsemble(failed):
                self._tasks.spawn(self._change_ensemble(dict(failed)), "ensemble change")
            case Leave(leaving):
                self._tasks.spawn(self._leave(leaving), "leaving bookies")
            case Held(error):
                log.warning("%s; its entries are held for %g s", error, self._pool.config.hold_adds_s)
            case Failed(error):
                self._stop(error)

    async def _change_ensemble(self, failed: dict[int, str]) -> None:
        writer = self._writer
        if self._watch is not None:
            self._watch.changing(self._now())
        try:
            async with self._record_lock:
                await self._wait_if_frequent(failed)
                if not writer.is_open():
                    return
                replacements = self._successors(failed)
                if replacements:
                    await self._publish(replacements)
        except (BookKeeperError, MetadataError, Corruption) as error:
            self._fail(error)
            return
        reasons = "; ".join(self._reasons.pop(index, "not known") for index in failed)
        self._changed(replacements, f"bookies {', '.join(failed.values())} failed", reasons)

    async def _leave(self, leaving: Mapping[int, str]) -> None:
        """Replace those of *leaving* (position → bookie) that take no entries still, when its turn has come, and can be
        replaced. Until then, and for all others, everything goes on as it was."""
        writer = self._writer
        async with self._pool.moves:
            if writer.is_changing:
                return  # `_changed` looks again
            try:
                async with self._record_lock:
                    if not writer.is_open():
                        return
                    writable, ensemble = self._pool.directory.writable, writer.ensemble
                    leaving = {
                        at: bookie
                        for at, bookie in leaving.items()
                        if ensemble[at] == bookie and bookie not in writable
                    }
                    replacements = self._successors(leaving) if leaving else {}
                    if writer.leave(replacements) is None:
                        return
                    if self._watch is not None:
                        self._watch.changing(self._now())
                    await self._publish(replacements)
            except (BookKeeperError, MetadataError, Corruption) as error:
                self._fail(error)
                return
            left = ", ".join(leaving[index] for index in replacements)
            self._changed(replacements, f"bookies {left} are left", "they take no entries")

    def _fail(self, error: BookKeeperError | MetadataError | Corruption) -> None:
        self._do(self._writer.fail(as_client_error(error, self.ledger_id)))

    def _changed(self, replacements: Mapping[int, str], what: str, reason: str) -> None:
        """The record has the new ensemble. *what* and *reason* are for the log."""
        writer = self._writer
        if not writer.is_open():
            return
        changed = writer.on_ensemble_changed(replacements)
        if self._watch is not None:
            self._watch.changed(frozenset(replacements), self._now())
        log.info(
            "ledger %d: %s, from entry %d on: %s; left out: %s; the reason: %s",
            self.ledger_id,
            what,
            writer.last_add_confirmed + 1,
            ", ".join(writer.ensemble),
            ", ".join(writer.left_out.values()) or "none",
            reason,
        )
        self._carry_out(changed)
        writer.on_bookies(self._pool.directory.writable, self._pool.directory.read_only)
        self._tick()

    def _carry_out(self, changed: Changed) -> None:
        for index, adds in changed.resend.items():
            self._resend(index, adds)
        self._do(changed.effect)

    def _on_bookies(self) -> None:
        """Bookies have come, gone or changed their mode."""
        self._writer.on_bookies(self._pool.directory.writable, self._pool.directory.read_only)
        self._fill()

    def _fill(self) -> None:
        if self._writer.left_out:
            usable = self._pool.directory.writable - self._pool.unreachable
            self._carry_out(self._writer.fill(usable, self._successors))

    def _tick(self) -> None:
        now_s = self._now()
        self._do(self._writer.tick(now_s))
        if self._writer.due_s is not None and self._left_out_timer is None and self._writer.is_open():
            self._left_out_timer = self._pool.clock.call_later(self._writer.due_s - now_s, self._on_left_out_timer)

    def _on_left_out_timer(self) -> None:
        self._left_out_timer = None
        self._fill()
        self._tick()

    def _successors(self, failed: Mapping[int, str]) -> dict[int, str]:
        """Bookies that may take the positions of *failed*, as far as there are any."""
        writer, pool = self._writer, self._pool
        stay = [bookie for at, bookie in enumerate(writer.ensemble) if at not in failed]
        free = pool.directory.writable - pool.unreachable - writer.refusing - set(failed.values())
        return choose_replacements(
            pool.usable(free, self.metadata.custom_metadata, len(writer.ensemble), stay),
            writer.ensemble,
            failed,
            pool.unreachable,
            pool.quarantined,
            self._rng,
            write_quorum=writer.quorum.write,
            ack_quorum=writer.quorum.ack,
            topology=pool.topology(),
        )

    async def _wait_if_frequent(self, failed: dict[int, str]) -> None:
        """Delay the change where this ledger or its bookies change too often (change_limits.py)."""
        now_s = self._now()
        delay_s = max(
            self._backoff.delay_s(now_s),
            *(self._pool.change_limits.delay_s(bookie, now_s) for bookie in failed.values()),
        )
        if delay_s:
            log.info("ledger %d: its ensemble changes often; the next change waits %.1f s", self.ledger_id, delay_s)
            await self._pool.clock.sleep(delay_s)

    async def _publish(self, replacements: dict[int, str]) -> None:
        """Write the new ensemble into the record. Raises the error that ends the writer."""
        first, ensemble = self._writer.new_segment(replacements)
        if self._recovery:
            self.recovery_ensembles[first] = ensemble
            return
        await self._record.add_segment(first, ensemble)

    def _resend(self, index: int, adds: Sequence[PendingAdd]) -> None:
        connection = self._connection(self._writer.ensemble[index])
        channel = AddChannel(self, index, connection)
        self._belief.replace(self._channels[index], channel)
        self._channels[index] = channel
        connection.send_adds(channel, self.ledger_id, adds)

    def _notify_soon(self) -> None:
        if not self._notifying:
            self._notifying = True
            self._loop.call_soon(self._notify)

    def _notify(self) -> None:
        self._notifying = False
        confirmed = self._writer.last_add_confirmed
        assert confirmed >= self._notified, "LAC went back"
        if confirmed > self._notified:
            self._notified = confirmed
            if self._watch is not None:
                slow = self._watch.acknowledged(confirmed, self._now())
                if slow is not None:
                    self._report_slow_add(slow)
            waiting = self._waiting
            if waiting and waiting[0][0] <= confirmed:
                count = bisect_right(waiting, confirmed, key=_entry_id)
                for entry_id, done in waiting[:count]:
                    if not done.done():
                        done.set_result(entry_id)
                del waiting[:count]
            if self.listener is not None:
                self.listener.on_acknowledged(confirmed)
        if self._failure is not None and not self._failure_reported:
            self._failure_reported = True
            for _, done in self._waiting:
                if not done.done():
                    done.set_exception(bare(self._failure))
            self._waiting.clear()
            if self.listener is not None:
                self.listener.on_failed(self._failure)

    def _report_slow_add(self, add: SlowAdd) -> None:
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
        """End the handle with *error*: nothing is acknowledged from here on."""
        self._writer.fail(error)
        if self._watch is not None:
            self._watch.clear()
        self._cancel_watches()
        if self._left_out_timer is not None:
            self._left_out_timer.cancel()
            self._left_out_timer = None
        if self._failure is None:
            self._failure = bare(error)
            self._notify_soon()

    def _cancel_watches(self) -> None:
        self._cancel_watch()
        self._cancel_record_watch()

    def _drop_references(self) -> None:
        """Drop all references that lead back to the handle, after the last call of the listener.

        A broker makes and ends a handle for each ledger and each cursor. Without reference cycles their memory is freed
        at once and does not wait for the garbage collector.
        """
        self._cancel_watch = self._cancel_record_watch = do_nothing
        self._tasks.on_failure = None
        self.listener = None
        self._watch = None  # answers of slow bookies may still arrive
        self._channels.clear()
        self._belief = Belief({})
        closing = self._closing
        if closing is not None and closing.done() and (closing.cancelled() or closing.exception() is not None):
            self._closing = None  # it holds its error, whose traceback holds the frames of `_close`

    def _on_broken(self, error: BaseException) -> None:
        """An ensemble change met a defect of this program. Fail: the barrier would otherwise stay up for ever."""
        self._stop(BookKeeperError(f"ledger {self.ledger_id}: the ensemble change failed: {error!r}"))

    async def _close(self) -> LedgerMetadata:
        assert not self._recovery, "recovery closes the ledger itself"
        async with self._record_lock:
            writer = self._writer
            if isinstance(writer.error, LedgerFenced | NoSuchLedger):
                raise bare(writer.error)
            had_pending = writer.pending_count > 0
            last, length = writer.close()
            self._cancel_watches()
            if had_pending:
                self._stop(LedgerClosed(f"ledger {self.ledger_id} was closed before the entry was acknowledged"))
            try:
                await self._record.seal(last, length)
            except (MetadataError, Corruption) as error:
                raise as_client_error(error, self.ledger_id) from error
        self._loop.call_soon(self._drop_references)
        return self._record.metadata
