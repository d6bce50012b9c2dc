"""Sends the entries of one topic to its present ledger, and begins the next ledger when that is full or fails.

`Appending` decides (which entries go next, when a ledger is full, in which state the topic is); `LedgerLifecycle`
begins and closes ledgers; this module connects both with the ledger's handle and calls the listener.

    append ──▶ Appending ──run──▶ handle ──on_acknowledged──▶ Appending ──▶ listener, cache, watchers
                   │                  └────on_failed──────▶ next ledger
                   └── full ────────────────────────────────▶ next ledger

Rules:

1. After another owner has fenced the ledger or changed the record, nothing is acknowledged or appended any more (I90).
   What was acknowledged and is not in the ledger is saved first (I131).
2. After each wait for storage the code checks whether the managed ledger has ended meanwhile.
3. Every append is answered exactly once (I102), never from inside `append`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    EntryTooLarge,
    LedgerFenced,
    MetadataConflict,
    NoSuchLedger,
    TooManyPending,
)
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.buckets import LATENCY_BOUNDS, Buckets
from magnetar_core.runtime.pauses import GrowingPause
from magnetar_core.runtime.tasks import Bell, Tasks, attempt_now
from magnetar_core.runtime.types import Buffer, do_nothing
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import (
    EntryRefused,
    ManagedLedgerClosed,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerTerminated,
    StorageUnavailable,
)
from managed_ledger.ledger_list import LedgerList
from managed_ledger.ledgers.lifecycle import LedgerLifecycle
from managed_ledger.ledgers.topic_record import set_terminated
from managed_ledger.position import Position
from managed_ledger.reading.entry_cache import EntryCache
from managed_ledger.writing.appending import TAKES_APPENDS, Appending, AppendListener, NoListener, State, Step
from managed_ledger.writing.write_latency import WriteLatency

log = logging.getLogger(__name__)

# Waits between attempts to get a new ledger while bookies or metadata are away.
RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 2.0


class _HandleListener:
    """Listens to one ledger handle, so that a late answer of a former handle is not taken for one of the present."""

    def __init__(self, owner: "Writing", handle: LedgerWriteHandle) -> None:
        self._owner = owner
        self._handle = handle

    def on_acknowledged(self, up_to: int) -> None:
        self._owner.on_acknowledged(self._handle, up_to)

    def on_failed(self, error: BookKeeperError) -> None:
        self._owner.on_failed(self._handle, error)


class Writing:
    """The way of a topic's entries into its ledgers, from `append` to the listener."""

    def __init__(
        self,
        name: str,
        appending: Appending,
        lifecycle: LedgerLifecycle,
        ledgers: LedgerList,
        cache: EntryCache,
        clock: Clock,
        config: ManagedLedgerConfig,
    ) -> None:
        self.config = config
        self.listener: AppendListener = NoListener()
        self.on_end: Callable[[], None] = do_nothing
        """Called when the managed ledger ends by itself: fenced, or without storage."""
        self.on_next_ledger: Callable[[], None] = do_nothing
        """Called when a ledger was closed and the next one is written."""
        self.progress = Bell()
        """Rings when appends were answered and when the state may have changed."""
        self.latency = WriteLatency()
        """The latency of the ledgers alone, without the time for which entries waited for a ledger."""
        self.switch_latencies = Buckets(LATENCY_BOUNDS)
        """Microseconds until a full or failed ledger was followed by the next."""
        self._name = name
        self._appending = appending
        self._lifecycle = lifecycle
        self._ledgers = ledgers
        self._cache = cache
        self._clock = clock
        self._tasks = Tasks(name)
        self._watchers: list[Callable[[], None]] = []
        self._seen_end: tuple[Position, float] | None = None
        """The end of the topic when it was looked at, and since when the end has been there."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a background task that is cancelled by `release`."""
        if self._appending.is_ended:
            work.close()
            return
        self._tasks.spawn(work, name)

    def watch_appends(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call *callback* after entries were acknowledged; returns a call that ends this."""
        self._watchers.append(callback)
        return partial(self._unwatch, callback)

    def _unwatch(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(ValueError):
            self._watchers.remove(callback)

    def forget_owner(self) -> None:
        """Drop the listener and the watchers: they are not called any more, nor kept alive by this object."""
        self.listener = NoListener()
        self._watchers.clear()

    # --------------------------------------------------------------------------------- sending

    def append(self, run: Sequence[Buffer], contexts: Sequence[Any]) -> None:
        """Write entries; answers come through `listener`, in order. Never blocks, never raises for the storage."""
        assert len(run) == len(contexts), (len(run), len(contexts))
        if self._appending.state not in TAKES_APPENDS:
            self._fail_soon(list(contexts), self._appending.refusal())
        elif self._appending.append(run, contexts):
            self._send_queued()

    def _fail_soon(self, contexts: list[Any], error: ManagedLedgerError) -> None:
        if contexts:
            asyncio.get_running_loop().call_soon(self.listener.on_append_failed, contexts, error)

    def _send_queued(self) -> None:
        """Send queued entries, as many as the present ledger has room for."""
        appending, handle = self._appending, self._lifecycle.present
        assert handle is not None, f"{self._name} is {appending.state.value} without a ledger to write to"
        # As `LedgerLifecycle.present_age_ms`, without the call: this runs for every run of messages.
        now_s = self._clock.monotonic()
        age_ms = int((now_s - self._lifecycle.present_since_s) * 1000)
        rule = self.config.rollover
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
                self._fail_soon(appending.take_refused(len(run)), EntryRefused(f"{self._name}: {error}"))
                self.progress.ring()
            except BookKeeperError as error:
                self.on_failed(handle, error)
                return
            else:
                appending.on_sent(run, sum(map(len, payloads)))
                self.latency.sent(len(run), now_s)

    def _do(self, step: Step) -> None:
        """Carry out what `Appending` asks for."""
        if step is Step.SEND:
            self._send_queued()
        elif step is Step.NEXT_LEDGER:
            self.spawn(self._next_ledger(), "rollover")
        elif step is Step.SEND_WHEN_WRITABLE:
            assert self._lifecycle.present is not None, "something was sent to it"
            self._lifecycle.present.when_writable(self._do_next_step)

    def _do_next_step(self) -> None:
        self._do(self._appending.next_step())

    # --------------------------------------------------------------------------------- answers

    def on_acknowledged(self, handle: LedgerWriteHandle, up_to: int) -> None:
        """All entries up to *up_to* of the present ledger are safe."""
        if handle is not self._lifecycle.present:
            return
        stored = self._appending.on_acknowledged(up_to)
        if stored is None:
            return
        self.progress.ring()
        first, payloads, contexts = stored
        self.latency.stored(len(payloads), self._clock.monotonic())
        self._ledgers.set_entries(handle.ledger_id, up_to + 1)
        self._cache.put_run(handle.ledger_id, first, payloads)
        try:
            self.listener.on_appended(handle.ledger_id, first, contexts)
        except Exception as error:
            # Which appends the listener has already answered cannot be known. Ending the managed ledger makes the
            # listener disconnect its producers, which then send again.
            log.exception("%s: its owner cannot take what is stored", self._name)
            self._give_up(StorageUnavailable(f"{self._name}: a defect, see the log: {error!r}"))
            return
        for callback in list(self._watchers):
            attempt_now(f"{self._name}: waking readers of new entries", callback)
        step = self._appending.next_step()
        if step is not Step.NOTHING:
            self._do(step)

    def on_failed(self, handle: LedgerWriteHandle, error: BookKeeperError) -> None:
        """Called when the present ledger takes nothing any more."""
        if handle is not self._lifecycle.present or not self._appending.is_written:
            return
        if isinstance(error, LedgerFenced | MetadataConflict | NoSuchLedger):
            self.fence(ManagedLedgerFenced(f"{self._name}: another owner took over ledger {handle.ledger_id}"))
            return
        log.warning("%s: writing to ledger %s failed: %s; another one is begun", self._name, handle.ledger_id, error)
        self._appending.on_write_failed()
        self.latency.forget()
        self.progress.ring()
        self.spawn(self._next_ledger(), "new ledger")

    # ---------------------------------------------------------------------- from ledger to ledger

    async def begin_ledger(self, ahead: asyncio.Task[LedgerWriteHandle] | None = None) -> None:
        """Begin a ledger, which `open` makes writable. Raises as `LedgerLifecycle.begin`."""
        handle = await self._lifecycle.begin(ahead)
        handle.listener = _HandleListener(self, handle)
        self.latency.forget()
        self._appending.on_ledger_begun()

    def open(self) -> None:
        """The present ledger may be written."""
        self._appending.open()
        self.progress.ring()

    def roll_over_if_full(self) -> None:
        """Begin the next ledger if the present one is full or too old, or nothing was written to it for too long."""
        if self._appending.is_full(self.config.rollover, self._lifecycle.present_age_ms(), self._idle_ms()):
            self._do(self._appending.begin_rollover())

    def _idle_ms(self) -> int:
        """For how long the end of the topic has been where it is, as far as earlier calls saw it. So appends need not
        note their time."""
        last, now_s = self._ledgers.last_confirmed, self._clock.monotonic()
        if self._seen_end is None or self._seen_end[0] != last:
            self._seen_end = (last, now_s)
        return int((now_s - self._seen_end[1]) * 1000)

    async def _next_ledger(self) -> None:
        """Close the present ledger, begin the next and send the queued entries; retry until the append time-out."""
        since_s = self._clock.monotonic()
        deadline = since_s + self.config.append_timeout_s
        pause = GrowingPause(RETRY_FIRST_S, RETRY_LAST_S)
        is_said = False
        while True:
            try:
                self._appending.check_not_ended()
                await self._close_present()
                self._appending.check_not_ended()
                self._appending.creating()
                await self.begin_ledger()
                break
            except ManagedLedgerFenced as error:
                self.fence(error)
                return
            except StorageUnavailable as error:
                wait_s = pause.next_s()
                if self._clock.monotonic() + wait_s > deadline:
                    self._give_up(error)
                    return
                if not is_said:  # once: it is the same of all topics
                    log.warning("%s; trying again for %g s", error, self.config.append_timeout_s)
                    is_said = True
                await self._clock.sleep(wait_s)
            except ManagedLedgerClosed:
                return
            except Exception as error:
                # Without this the queued appends would wait for ever: nobody else begins a ledger.
                log.exception("%s: the next ledger cannot be begun", self._name)
                self._give_up(StorageUnavailable(f"{self._name}: the next ledger cannot be begun: {error!r}"))
                return
        self.switch_latencies.add(int((self._clock.monotonic() - since_s) * 1_000_000))
        self.open()
        self._send_queued()
        self.on_next_ledger()

    async def _close_present(self, *, for_ever: bool = False) -> None:
        if self._lifecycle.present is not None:
            await self._lifecycle.close_present(for_ever=for_ever)
            self._appending.on_ledger_closed()

    # ------------------------------------------------------------------------------------- the end

    async def terminate(self) -> Position:
        """Take no more entries, ever; returns the last position, which is stored by then.

        Pending appends complete first. Appends that come meanwhile wait; they are refused when the termination is
        stored, and appended if it could not be. Raises ManagedLedgerFenced, StorageUnavailable.
        """
        appending = self._appending
        while appending.state is not State.OPENED:
            if appending.state is State.TERMINATED:
                return self._ledgers.last_confirmed
            if not appending.takes_appends:
                raise appending.refusal()
            await self.progress.rung()
        appending.begin_termination()
        while self._is_terminating() and appending.has_pending:
            await self.progress.rung()
        if not self._is_terminating():  # a write failed: begin again when the next ledger can be written
            return await self.terminate()
        try:
            await self._close_present(for_ever=True)
            last = self._ledgers.last_confirmed
            await self._lifecycle.change_record(set_terminated(last))
        except ManagedLedgerFenced as error:
            self.fence(error)
            raise
        except BaseException:
            if self._is_terminating():
                appending.creating()
                self._do(Step.NEXT_LEDGER)
            raise
        appending.check_not_ended()
        refusal = ManagedLedgerTerminated(f"{self._name} was terminated")
        self._fail_soon(self.end_appends(State.TERMINATED, refusal), refusal)
        return last

    def _is_terminating(self) -> bool:
        return self._appending.state is State.TERMINATING

    def fence(self, error: ManagedLedgerError) -> None:
        """Rule 1. All pending appends fail, and the listener gets the call that the managed ledger has ended."""
        if not self._appending.is_ended:
            log.warning("%s: fenced: %s", self._name, error)
            self._end(State.FENCED, error)

    def _give_up(self, error: ManagedLedgerError) -> None:
        if not self._appending.is_ended:
            log.error("%s: closing, since there is no storage: %s", self._name, error)
            self._end(State.CLOSED, error)

    def end_appends(self, state: State, error: ManagedLedgerError) -> list[Any]:
        """Take no appends any more; returns the contexts of those that are not answered (`Appending.end`)."""
        contexts = self._appending.end(state, error)
        self.progress.ring()
        return contexts

    def _end(self, state: State, error: ManagedLedgerError) -> None:
        contexts = self.end_appends(state, error)
        self.on_end()
        self._fail_soon(contexts, error)
        asyncio.get_running_loop().call_soon(self.listener.on_closed, error)

    def stop(self, error: ManagedLedgerError) -> None:
        """Take no appends any more; those that are not answered fail now, with *error*."""
        contexts = self.end_appends(State.CLOSED, error)
        if contexts:
            self.listener.on_append_failed(contexts, error)

    async def close(self) -> bool:
        """Wait for pending appends, at most the append time-out; then stop, and close the present ledger.

        Returns False, with nothing done, if the managed ledger has ended by itself.
        """
        await self.progress.until(
            lambda: not (self._appending.count and self._appending.takes_appends),
            self._clock,
            self.config.append_timeout_s,
        )
        if self._appending.is_ended:
            return False
        handle = self._lifecycle.give_up_present()
        self.stop(ManagedLedgerClosed(f"{self._name} is closed"))
        if handle is not None:
            await self._lifecycle.close_or_abandon(handle)
        return True

    async def release(self) -> None:
        """Cancel background tasks and give up the present ledger. Writes nothing.

        The callbacks refer to the managed ledger, which owns this object. They are dropped here, so that both are
        freed without the garbage collector.
        """
        await self._tasks.cancel()
        handle = self._lifecycle.give_up_present()
        if handle is not None and self._appending.state is State.FENCED:
            await self._lifecycle.leave(handle)
        elif handle is not None:
            await handle.abandon()
        self.on_end = self.on_next_ledger = do_nothing
