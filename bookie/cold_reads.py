"""Reads that need the disk: one batch of a connection at a time, on a reader's thread.

Rules:

1. A connection has one job on its way; what waits behind it costs a few hundred bytes a read.
2. A job ends when its results have become large; the rest goes with the next one. So a connection holds
   about RESULT_BYTES_MAX of answers that are not with the transport yet, whatever it asks for.
3. Nothing is started while the peer does not take its answers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from bookie.jobs import JobThread
from bookie.ledger_storage import RESULT_BYTES_MAX
from magnetar.runtime.types import Corruption

# Reads that go to the thread in one job.
_JOB_READS_MAX: Final = 256

Brought = dict[tuple[int, int], bytes]
"""(ledger id, entry id) → entry: what the reads of one job have fetched so far, wanted or along with it"""


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


class ColdReads:
    """The reads of one connection that wait for the disk. Used on the loop."""

    def __init__(self, reader: JobThread, may_start: Callable[[], bool], shrunk: Callable[[], None]) -> None:
        """*may_start* says whether the peer takes answers (rule 3); *shrunk* is called when fewer wait."""
        self._reader = reader
        self._may_start = may_start
        self._shrunk = shrunk
        self._waiting: deque[ColdRead] = deque()
        self._is_busy = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, read: ColdRead) -> None:
        if self._is_closed:
            return
        self._waiting.append(read)
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

    def _start(self) -> None:
        self._is_busy = False
        reads: list[ColdRead] = []
        while self._waiting and len(reads) < _JOB_READS_MAX and self._may_start():
            read = self._waiting.popleft()
            if read.again is None or not read.again():
                reads.append(read)
        if reads:
            self._is_busy = True
            self._reader.submit(lambda: _read_all(reads), lambda outcomes, error: self._done(reads, outcomes, error))
        self._shrunk()

    def _done(
        self,
        reads: list[ColdRead],
        outcomes: list[tuple[Any, Exception | None]] | None,
        error: Exception | None,
    ) -> None:
        self._is_busy = False
        if self._is_closed:
            return
        if outcomes is None:
            outcomes = [(None, error)] * len(reads)
        self._waiting.extendleft(reversed(reads[len(outcomes) :]))
        for read, (result, read_error) in zip(reads, outcomes, strict=False):
            read.done(result, read_error)
        self.go_on()
