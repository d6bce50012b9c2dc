"""Reads that need the disk: one batch of a connection at a time, on a reader's thread.

Rules:

1. A connection has one job on its way; what waits behind it costs a few hundred bytes a read.
2. A job ends when its results have become large; the rest goes with the next one. So a connection holds
   about RESULT_BYTES_MAX of answers that are not with the transport yet, whatever it asks for.
3. Nothing is started while the peer does not take its answers.
4. Adds come first: while they arrive, a connection that reads much pauses after each job, four times as long as the
   job took. A reader that is far behind would otherwise keep the interpreter busy, and every add would wait for it.
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

# A job that takes less than the first is no bulk read and is followed by no pause (rule 4); no pause is longer than
# the last.
_BULK_S: Final = 0.0005
_REST_SHARE: Final = 4
_REST_S_MAX: Final = 0.05

# Reads that go to the thread in one job.
_JOB_READS_MAX: Final = 256

Brought = dict[tuple[int, int], bytes]
"""(ledger id, entry id) → entry: what the reads of one job have fetched so far, asked for or brought along"""


class ColdRead(NamedTuple):
    """*work(brought)* runs on a reader's thread and gives (result, bytes of it); *done(result, error)* on the loop.

    *again*, if there is one, asks memory once more just before: True if that answered the request.
    """

    work: Callable[[Brought], tuple[Any, int]]
    done: Callable[[Any, Exception | None], None]
    again: Callable[[], bool] | None = None


def _read_all(reads: Sequence[ColdRead]) -> list[tuple[Any, Exception | None]]:
    """Outcomes of *reads*, in order; fewer when the results have become large (runs on a reader's thread)."""
    outcomes: list[tuple[Any, Exception | None]] = []
    brought: Brought = {}
    size = 0
    for read in reads:
        try:
            result, result_bytes = read.work(brought)
        except (OSError, Corruption) as error:
            outcomes.append((None, error))
            continue
        outcomes.append((result, None))
        size += result_bytes
        if size > RESULT_BYTES_MAX:
            break
    return outcomes


def _timed(
    reads: Sequence[ColdRead], now: Callable[[], float]
) -> tuple[list[tuple[Any, Exception | None]], float, float]:
    """Outcomes, when the thread began and when it was done."""
    began = now()
    return _read_all(reads), began, now()


class ReadWatch:
    """Tells how long cold reads wait and take; one for all connections of a bookie."""

    def __init__(self, clock: Clock, latency: ReadLatency, slow: SlowOperations | None) -> None:
        self.now = clock.monotonic
        self._latency = latency
        self._slow = slow

    def found_in_memory(self, arrived_s: float) -> None:
        """A read that had waited for the disk was answered by memory."""
        self._latency.all.good.add((self.now() - arrived_s) * 1000)

    def answered(self, arrived_s: Sequence[float], taken_s: float, ended_s: float, errors: int) -> None:
        """A job of reads that came at *arrived_s* (oldest first) was done; *errors* of them failed."""
        now, latency = self.now(), self._latency
        good = len(arrived_s) - errors
        for at, times in _runs(arrived_s):
            latency.queue.add((taken_s - at) * 1000, times)
            well = min(times, good)
            good -= well
            if well:
                latency.all.good.add((now - at) * 1000, well)
            if times > well:
                latency.all.bad.add((now - at) * 1000, times - well)
        slow, first_s = self._slow, arrived_s[0]
        if slow is not None and now - first_s > slow.threshold_s:
            slow.report(
                "cold reads",
                now - first_s,
                {"queue": taken_s - first_s, "read": ended_s - taken_s, "report": now - ended_s},
                reads=len(arrived_s),
                errors=errors,
            )


def _runs(values: Sequence[float]) -> Iterator[tuple[float, int]]:
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

        *adds* tells how many adds there were so far; without it, rule 4 does not hold.
        """
        self._reader = reader
        self._may_start = may_start
        self._shrunk = shrunk
        self._watch = watch
        self._adds = adds
        self._adds_seen = 0
        self._waiting: deque[tuple[ColdRead, float]] = deque()
        # When the reads came that are being queued in this turn of the loop: one look at the clock for a chunk.
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
            asyncio.get_running_loop().call_soon(self._turned)
        self._waiting.append((read, self._arrived_s))
        if not self._is_busy:
            self._is_busy = True
            # After the chunk, so that all its reads go together.
            asyncio.get_running_loop().call_soon(self._start)

    def go_on(self) -> None:
        """The peer takes answers again."""
        if self._waiting and not self._is_busy:
            self._start()

    def close(self) -> None:
        """Forget what waits; what is on its way is not answered."""
        self._is_closed = True
        self._waiting.clear()

    def _turned(self) -> None:
        self._arrived_s = None

    def _start(self) -> None:
        self._is_busy = False
        reads: list[ColdRead] = []
        arrived_s: list[float] = []
        while self._waiting and len(reads) < _JOB_READS_MAX and self._may_start():
            read, at = self._waiting.popleft()
            if read.again is None or not read.again():
                reads.append(read)
                arrived_s.append(at)
            elif self._watch is not None:
                self._watch.found_in_memory(at)
        if reads:
            self._is_busy = True
            now = no_clock if self._watch is None else self._watch.now
            self._reader.submit(
                lambda: _timed(reads, now), lambda outcomes, error: self._done(reads, arrived_s, outcomes, error)
            )
        self._shrunk()

    def _done(
        self,
        reads: list[ColdRead],
        arrived_s: list[float],
        timed: tuple[list[tuple[Any, Exception | None]], float, float] | None,
        error: Exception | None,
    ) -> None:
        if self._is_closed:
            return
        if timed is None:
            outcomes: list[tuple[Any, Exception | None]] = [(None, error)] * len(reads)
        else:
            outcomes, taken_s, ended_s = timed
            if self._watch is not None:
                errors = sum(read_error is not None for _, read_error in outcomes)
                self._watch.answered(arrived_s[: len(outcomes)], taken_s, ended_s, errors)
        self._waiting.extendleft(reversed(list(zip(reads, arrived_s, strict=True))[len(outcomes) :]))
        for read, (result, read_error) in zip(reads, outcomes, strict=False):
            read.done(result, read_error)  # which may add another one: it waits like the others
        rest_s = 0.0 if timed is None else self._rest_after(timed[2] - timed[1])
        if rest_s:
            asyncio.get_running_loop().call_later(rest_s, self._rested)
        else:
            self._is_busy = False
            self.go_on()

    def _rest_after(self, took_s: float) -> float:
        """How long rule 4 wants this connection to pause."""
        if self._adds is None:
            return 0.0
        before, self._adds_seen = self._adds_seen, self._adds()
        is_in_the_way = took_s >= _BULK_S and self._adds_seen != before
        return min(_REST_SHARE * took_s, _REST_S_MAX) if is_in_the_way else 0.0

    def _rested(self) -> None:
        self._is_busy = False
        if not self._is_closed:
            self.go_on()
