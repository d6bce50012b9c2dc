"""When the write cache is flushed, and which journal files may be removed afterwards.

    due (time, or the taking half is full) ──▶ marks ──▶ swap ──▶ flush on the flusher's thread ──▶ marks written
                                                                                                 └▶ old journals removed

Rules:

1. The marks are taken before the swap. Entries are put into the cache (on the loop) before their records come before a
   mark, so they are in the half that is flushed, or were flushed earlier.
2. A failed flush keeps its marks, its half and its rows, and the next attempt flushes the same ones. A mark never
   skips an entry that was not flushed (I37).
3. Ledger rows are flushed even when there are no entries: a fence alone moves the mark, too.
4. A flush may last until the other half is full, and uses that time: its progress follows how full that half is, or it
   pauses for a short time. Nothing waits for it meanwhile, and its cost is spread over time.
5. A flush that met a full disk is tried again. Any other failure ends the bookie.
"""

import asyncio
import logging
import posixpath
from collections.abc import Callable, Sequence
from typing import Final

from bookie.jobs import JobThread
from bookie.latency import FLUSH_STAGES, FlushLatency, FlushTimes
from bookie.storage.journal.format import Mark
from bookie.storage.journal.writer import Journal, file_name, list_files
from bookie.storage.ledger_storage import LedgerStorage, is_no_space
from bookie.storage.ledgers import Ledgers
from bookie.storage.write_cache import Half, WriteCache, let_go
from magnetar_core.runtime.clock import Clock, Timer, block
from magnetar_core.runtime.files import Files
from magnetar_core.runtime.observe import SlowOperations

log = logging.getLogger(__name__)


def remove_old_journals(files: Files, directory: str, mark: Mark, keep: int) -> None:
    """Remove files before *mark*, except the newest *keep* of them."""
    old = [file_id for file_id in list_files(files, directory) if file_id < mark.file_id]
    for file_id in old[: max(len(old) - keep, 0)]:
        files.remove(posixpath.join(directory, file_name(file_id)))


# Longest pause of a flush after each of its pieces (a second in all for a half of 32 MiB). It checks so often
# during a pause whether the adds have caught up with it.
_PAUSE_MAX_S: Final = 0.008
_LOOK_S: Final = 0.002

# A rest between steps that give memory back: long enough for another thread to take the interpreter's lock.
_REST_S: Final = 0.0002


class Checkpointer:
    """Flushes in the background. Used on the loop."""

    def __init__(
        self,
        files: Files,
        storage: LedgerStorage,
        cache: WriteCache,
        ledgers: Ledgers,
        journals: Sequence[Journal],
        journal_directories: Sequence[str],
        flusher: JobThread,
        clock: Clock,
        *,
        interval_s: float,
        journal_backups: int,
        on_room: Callable[[], None],
        on_no_space: Callable[[Exception], None],
        on_failure: Callable[[BaseException], None],
        sleep: Callable[[float], None] = block,
        latency: Sequence[FlushLatency] = (),
        slow: SlowOperations | None = None,
    ) -> None:
        """*sleep* is called on the flusher's thread. *latency* (one for each ledger directory) and *slow* get the
        duration of flushes, without the pauses of rule 4."""
        self._files = files
        self._storage = storage
        self._cache = cache
        self._ledgers = ledgers
        self._journals = journals
        self._journal_directories = journal_directories
        self._flusher = flusher
        self._clock = clock
        self._interval_s = interval_s
        self._journal_backups = journal_backups
        self._on_room = on_room
        self._on_no_space = on_no_space
        self._on_failure = on_failure
        self._sleep = sleep
        self._latency = latency
        self._slow = slow
        # Times of the latest flush; written by the flusher's thread.
        self._times: Sequence[FlushTimes] = ()
        self._began_s = self._ended_s = self._paused_s = 0.0
        self._is_hurried = False
        self._timer: Timer | None = None
        self._running = False
        self._wanted = False
        self._closed = False
        # Marks of the flush under way, or of the one that failed (rule 2).
        self._marks: list[Mark] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.flushes = 0
        self.flush_failures = 0

    def touched(self) -> None:
        """An entry was put into the cache or a ledger has changed. Cheap: called for every chunk."""
        if self._cache.wants_flush:
            self.flush()
        elif self._timer is None and not self._closed:
            # Started by the first change, so that an idle bookie has no timer.
            self._timer = self._clock.call_later(self._interval_s, self._due)

    def flush(self) -> None:
        """Start a flush, or remember that one is wanted."""
        if self._closed:
            return
        if self._running:
            self._wanted = self._cache.wants_flush
            return
        if self._cache.is_empty and not self._ledgers.is_dirty and self._marks is None:
            return
        self._running = True
        self._wanted = False
        self._idle.clear()
        if self._marks is None:
            self._marks = [journal.mark for journal in self._journals]  # rule 1
        marks = self._marks
        half = self._cache.swap()
        rows = self._ledgers.take_dirty()
        self._flusher.submit(
            lambda: self._timed_work(half, rows, marks), lambda _, error: self._on_flushed(rows, error)
        )

    async def finish(self) -> None:
        """Flush everything and wait for it. Raises OSError if it could not be written."""
        self._is_hurried = True
        await self._idle.wait()
        for _ in range(2):  # the first may have been the retry of an older half
            if self._cache.is_empty and not self._ledgers.is_dirty:
                break
            failures = self.flush_failures
            self.flush()
            await self._idle.wait()
            if self.flush_failures > failures:
                raise OSError("the write cache could not be flushed; it will be replayed from the journal")

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self.flush()

    def _timed_work(self, half: Half, rows: Sequence[tuple[int, bytes]], marks: Sequence[Mark]) -> None:
        self._paused_s = 0.0
        self._began_s = self._clock.monotonic()
        try:
            self._flush_and_mark(half, rows, marks)
        finally:
            self._times = self._storage.flush_times
            self._ended_s = self._clock.monotonic()

    def _flush_and_mark(self, half: Half, rows: Sequence[tuple[int, bytes]], marks: Sequence[Mark]) -> None:
        self._storage.flush(half, rows, self._pause, self._clock.monotonic, marks)
        self._storage.write_marks(marks)
        for directory, mark in zip(self._journal_directories, marks, strict=True):
            remove_old_journals(self._files, directory, mark, self._journal_backups)

    def _let_go(self, half: Half) -> None:
        self._flusher.submit(lambda: let_go(half, lambda: self._sleep(_REST_S)), lambda _, error: None)

    def _pause(self, share: float) -> bool:
        """Pause as rule 4 says; whether there was time to. It reads a number that the loop writes; an older value does
        no harm."""
        waited_s = 0.0
        began = self._clock.monotonic()
        while not self._is_hurried and waited_s < _PAUSE_MAX_S and self._cache.fill_share < share:
            self._sleep(_LOOK_S)
            waited_s += _LOOK_S
        self._paused_s += self._clock.monotonic() - began
        return waited_s > 0

    def _measure(self, is_good: bool) -> None:
        for latency, times in zip(self._latency, self._times, strict=False):
            if times.total_s > 0:
                latency.flushed(times, is_good)
        slow = self._slow
        total_s = self._ended_s - self._began_s - self._paused_s
        if slow is not None and total_s > slow.threshold_s:
            spent = {name: sum(times.seconds[name] for times in self._times) for name in FLUSH_STAGES}
            # What is left: the marks, and old journal files that were removed.
            spent["marks"] = total_s - sum(spent.values())
            spent["paused"] = self._paused_s
            slow.report(
                "flush", total_s, spent, bytes=sum(times.written_bytes for times in self._times), success=is_good
            )

    def _on_flushed(self, rows: Sequence[tuple[int, bytes]], error: Exception | None) -> None:
        assert self._running, "a flush ended that was not under way"
        assert self._marks is not None, "a flush has marks until it has succeeded (rule 2)"
        self._running = False
        self._measure(error is None)
        if error is None:
            self.flushes += 1
            self._marks = None
            self._let_go(self._cache.flushed())
            self._idle.set()
            self._on_room()
            if self._wanted or self._cache.wants_flush:
                self.flush()
            elif not self._cache.is_empty or self._ledgers.is_dirty:
                self.touched()
            return
        self.flush_failures += 1
        self._ledgers.not_written(rows)  # rule 2
        self._idle.set()
        if is_no_space(error):
            log.error("the write cache could not be flushed, the disk takes nothing more: %s", error)
            self._on_no_space(error)
            self._on_room()  # connections that wait for room learn that the bookie is read-only
            if self._timer is None and not self._closed:
                self._timer = self._clock.call_later(self._interval_s, self._due)
            return
        self._on_failure(error)
