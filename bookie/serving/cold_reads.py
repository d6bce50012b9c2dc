"""Reads that need the disk. A reader's thread works on one batch of a connection at a time.

Rules:

1. A connection has one job under way. Each read that waits for the next job costs a few hundred bytes.
2. A job ends when its results have become large; the remaining reads go into the next job. So a connection holds about
   RESULT_BYTES_MAX of answers that the transport does not have yet, however much it asks for.
3. No job is started while the peer does not take its answers.
4. Adds come first. While they arrive, a connection with bulk reads pauses after each job, four times as long as the job
   took. Otherwise a reader that is far behind would keep the interpreter busy, and every add would wait for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from bookie.jobs import JobThread
from bookie.latency import ReadLatency
from bookie.storage.ledger_storage import RESULT_BYTES_MAX
from magnetar_core.runtime.clock import Clock, no_clock
from magnetar_core.runtime.observe import SlowOperations
from magnetar_core.runtime.types import Corruption

# For the pauses of rule 4: no pause follows a job that is shorter than _BULK_S, and no pause is longer than the
# maximum.
_BULK_S: Final = 0.0005
_REST_SHARE: Final = 4
_REST_S_MAX: Final = 0.05

# Reads in one job at most.
JOB_READS_MAX: Final = 256

Fetched = dict[tuple[int, int], bytes]
"""(ledger id, entry id) → entry: all entries that the reads of one job have fetched so far, read-ahead included."""


class ColdRead(NamedTuple):
    """*work(brought)* runs on a reader's thread and returns (result, its bytes); *done(result, error)* runs on the
    loop.

    *again*, if given, is called just before the job and checks memory once more: True if it answered the request.
    """

    work: Callable[[Fetched], tuple[Any, int]]
    done: Callable[[Any, Exception | None], None]
    again: Callable[[], bool] | None = None


def _read_all(reads: Sequence[ColdRead]) -> list[tuple[Any, Exception | None]]:
    """Outcomes of *reads*, in order; fewer if the results become large (rule 2). Runs on a reader's thread."""
    outcomes: list[tuple[Any, Exception | None]] = []
    fetched: Fetched = {}
    size = 0
    for read in reads:
        try:
            result, result_bytes = read.work(fetched)
        except (OSError, Corruption) as error:
            outcomes.append((None, error))
            continue
        outcomes.append((result, None))
        size += result_bytes
        if size > RESULT_BYTES_MAX:
            break
    return outcomes


def _read_all_timed(
    reads: Sequence[ColdRead], now: Callable[[], float]
) -> tuple[list[tuple[Any, Exception | None]], float, float]:
    """(outcomes, when the thread began, when it was done)"""
    began = now()
    return _read_all(reads), began, now()


class ReadWatch:
    """Measures how long cold reads wait and take. One for all connections of a bookie."""

    def __init__(self, clock: Clock, latency: ReadLatency, slow: SlowOperations | None) -> None:
        self.now = clock.monotonic
        self._latency = latency
        self._slow = slow

    def answered_from_memory(self, arrived_s: float) -> None:
        """A read that had waited for the disk was answered from memory."""
        self._latency.all.good.add((self.now() - arrived_s) * 1000)

    def answered(self, arrived_s: Sequence[float], taken_s: float, ended_s: float, errors: int) -> None:
        """A job of reads that came at *arrived_s* (oldest first) was done; *errors* of them failed."""
        now, latency = self.now(), self._latency
        good = len(arrived_s) - errors
        for at, count in _equal_runs(arrived_s):
            latency.queue.add((taken_s - at) * 1000, count)
            # Which reads failed is not known here, only how many: the oldest count as good.
            good_here = min(count, good)
            good -= good_here
            if good_here:
                latency.all.good.add((now - at) * 1000, good_here)
            if count > good_here:
                latency.all.bad.add((now - at) * 1000, count - good_here)
        slow, first_s = self._slow, arrived_s[0]
        if slow is not None and now - first_s > slow.threshold_s:
            slow.report(
                "cold reads",
                now - first_s,
                {"queue": taken_s - first_s, "read": ended_s - taken_s, "report": now - ended_s},
                reads=len(arrived_s),
                errors=errors,
            )


def _equal_runs(values: Sequence[float]) -> Iterator[tuple[float, int]]:
    """Equal values that follow each other: (value, how many). The reads of one chunk came at one time."""
    count = 0
    for at, value in enumerate(values, 1):
        count += 1
        if at == len(values) or values[at] != value:
            yield value, count
            count = 0


class ColdReads:
    """The reads of one connection that wait for the disk. Used on the loop."""

    def __init__(
        self,
        reader: JobThread,
        may_start: Callable[[], bool],
        shrunk: Callable[[], None],
        watch: ReadWatch | None = None,
        adds: Callable[[], int] | None = None,
    ) -> None:
        """*may_start* says whether the peer takes answers (rule 3); *shrunk* is called when fewer wait.

        *adds* returns the number of adds so far; without it there are no pauses (rule 4).
        """
        self._reader = reader
        self._may_start = may_start
        self._shrunk = shrunk
        self._watch = watch
        self._adds = adds
        self._adds_seen = 0
        self._waiting: deque[tuple[ColdRead, float]] = deque()
        # When the reads queued in this turn of the loop arrived: the clock is read once for a chunk.
        self._arrived_s: float | None = None
        self._is_busy = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, read: ColdRead) -> None:
        if self._is_closed:
            return
        if self._arrived_s is None:
            self._arrived_s = 0.0 if self._watch is None else self._watch.now()
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._waiting.append((read, self._arrived_s))
        if not self._is_busy:
            self._is_busy = True
            # Start after the chunk, so that all its reads go into one job.
            asyncio.get_running_loop().call_soon(self._start)

    def go_on(self) -> None:
        """The peer takes answers again."""
        if self._waiting and not self._is_busy:
            self._start()

    def close(self) -> None:
        """Drop the waiting reads; those under way are not answered."""
        self._is_closed = True
        self._waiting.clear()

    def _end_turn(self) -> None:
        self._arrived_s = None

    def _start(self) -> None:
        self._is_busy = False
        reads: list[ColdRead] = []
        arrived_s: list[float] = []
        while self._waiting and len(reads) < JOB_READS_MAX and self._may_start():
            read, at = self._waiting.popleft()
            if read.again is None or not read.again():
                reads.append(read)
                arrived_s.append(at)
            elif self._watch is not None:
                self._watch.answered_from_memory(at)
        if reads:
            self._is_busy = True
            now = no_clock if self._watch is None else self._watch.now
            self._reader.submit(
                lambda: _read_all_timed(reads, now),
                lambda outcomes, error: self._finish_job(reads, arrived_s, outcomes, error),
            )
        self._shrunk()

    def _finish_job(
        self,
        reads: list[ColdRead],
        arrived_s: list[float],
        timed: tuple[list[tuple[Any, Exception | None]], float, float] | None,
        error: Exception | None,
    ) -> None:
        if self._is_closed:
            return
        assert self._is_busy, "a job ended that was not under way (rule 1)"
        if timed is None:
            outcomes: list[tuple[Any, Exception | None]] = [(None, error)] * len(reads)
        else:
            outcomes, taken_s, ended_s = timed
            if self._watch is not None:
                errors = sum(read_error is not None for _, read_error in outcomes)
                self._watch.answered(arrived_s[: len(outcomes)], taken_s, ended_s, errors)
        self._waiting.extendleft(reversed(list(zip(reads, arrived_s, strict=True))[len(outcomes) :]))
        for read, (result, read_error) in zip(reads, outcomes, strict=False):
            read.done(result, read_error)  # this may queue another read, which waits like the others
        rest_s = 0.0 if timed is None else self._rest_after(timed[2] - timed[1])
        if rest_s:
            asyncio.get_running_loop().call_later(rest_s, self._end_pause)
        else:
            self._is_busy = False
            self.go_on()

    def _rest_after(self, took_s: float) -> float:
        """Seconds to pause after a job that took *took_s* (rule 4)."""
        if self._adds is None:
            return 0.0
        before, self._adds_seen = self._adds_seen, self._adds()
        is_in_the_way = took_s >= _BULK_S and self._adds_seen != before
        return min(_REST_SHARE * took_s, _REST_S_MAX) if is_in_the_way else 0.0

    def _end_pause(self) -> None:
        self._is_busy = False
        if not self._is_closed:
            self.go_on()
