"""Lists of the entries of ledgers: one at a time for all connections, made in pieces on a reader's thread.

    ask ──▶ waits, with all that ask for the same ledger ──▶ ids of the cache, in pieces ──▶ index, in pieces ──▶ bytes

Rules:

1. What was acknowledged before a request is in its answer. So a request joins others for its ledger only until their
   list is begun.
2. The cache is read before the index: what is flushed meanwhile is in one of them.
3. No list of ids is as long as the ledger, except that of what the cache has; groups of ids are bytes at once
   (`Availability`). An answer that no client would take is not made to its end.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from bookie.jobs import JobThread
from bookie.serving.cold_reads import ColdRead, ColdReads, Fetched
from bookie.serving.request_rules import EIO
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.wire.codec_v3 import Availability
from magnetar_core.runtime.types import KIB

# Ids of a ledger in the cache that are sorted, or looked at, in one step: some milliseconds of the interpreter's lock.
IDS_AT_ONCE: Final = 20_000

# What stands around a list in its answer.
_HEAD_BYTES: Final = 1 * KIB

Listed = Callable[[bytes | int], None]
"""Takes the encoded list, or the refusal (a number of the second protocol)."""


class TooManyGroups(Exception):
    """The list would be larger than a frame."""


class LedgerList:
    """The list of one ledger while it is made. Made on the loop; `step` runs on a reader's thread."""

    def __init__(self, storage: LedgerStorage, ledger_id: int, cached: list[list[int]], bytes_max: int) -> None:
        """*cached*: the ids that the cache has, as they came, in pieces of `IDS_AT_ONCE` at most."""
        self._storage = storage
        self._ledger_id = ledger_id
        self._cached = cached
        self._sorted = 0
        self._merged: Iterator[int] = iter(())
        self._ahead: list[int] = []
        """Ids of the cache that come next."""
        self._first = 0
        """Ids below it are encoded."""
        self._bytes_max = bytes_max
        self._availability = Availability()

    def step(self) -> bytes | None:
        """Do a piece of it; returns the list when it is done. Raises TooManyGroups, Corruption, OSError."""
        cached = self._cached
        if self._sorted < len(cached):
            cached[self._sorted].sort()
            self._sorted += 1
            if self._sorted < len(cached):
                return None
            self._merged = heapq.merge(*cached)
        first, ahead = self._first, self._ahead
        ahead += islice(self._merged, IDS_AT_ONCE - len(ahead))
        stored_ids, end = self._storage.some_entry_ids(self._ledger_id, first)
        if len(ahead) == IDS_AT_ONCE:  # the next one of the cache is not known yet
            end = ahead[-1] + 1 if end is None else min(end, ahead[-1] + 1)
        if end is not None:
            stored_ids, self._ahead = stored_ids[: bisect_left(stored_ids, end)], ahead[bisect_left(ahead, end) :]
            ahead = ahead[: bisect_left(ahead, end)]
        # Both halves of the cache may have an id, and the index, too.
        self._availability.add(sorted({*ahead[bisect_left(ahead, first) :], *stored_ids}))
        if self._availability.size_bytes > self._bytes_max:
            raise TooManyGroups(f"the list would have more than {self._bytes_max} bytes")
        if end is None:
            return self._availability.encoded()
        self._first = end
        return None


class Listings:
    """The lists that are asked for, over all connections of a bookie. Used on the loop."""

    def __init__(
        self,
        cache: WriteCache,
        storage: LedgerStorage,
        reader: JobThread,
        frame_bytes: int,
        adds: Callable[[], int],
        on_job: Callable[[], None],
        read_failed: Callable[[int, str, Exception | None], None],
    ) -> None:
        """*adds*: as for `ColdReads`; *on_job* is called for each piece."""
        self._cache = cache
        self._storage = storage
        self._bytes_max = frame_bytes - _HEAD_BYTES
        self._cold = ColdReads(reader, lambda: True, lambda: None, None, adds)
        self._on_job = on_job
        self._read_failed = read_failed
        self._waiting: dict[int, list[Listed]] = {}
        self._is_busy = False

    def ask(self, ledger_id: int, listed: Listed) -> None:
        """Call *listed* with the entries of a ledger, later."""
        self._waiting.setdefault(ledger_id, []).append(listed)
        if not self._is_busy:
            self._begin_next()

    def close(self) -> None:
        """Nobody is answered any more."""
        self._cold.close()
        self._waiting.clear()

    def _begin_next(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._waiting:
            ledger_id = next(iter(self._waiting))
            callbacks = self._waiting.pop(ledger_id)
            cached = self._cache.entry_ids_in_pieces(ledger_id, IDS_AT_ONCE)
            self._queue_step(ledger_id, LedgerList(self._storage, ledger_id, cached, self._bytes_max), callbacks)

    def _queue_step(self, ledger_id: int, entries: LedgerList, callbacks: Sequence[Listed]) -> None:
        """Queue a job for a piece: a ledger may have millions, and other reads wait for the thread, too."""

        def work(fetched: Fetched) -> tuple[bytes | TooManyGroups | None, int]:
            try:
                return entries.step(), 0
            except TooManyGroups as error:
                return error, 0

        def done(result: bytes | TooManyGroups | None, error: Exception | None) -> None:
            if error is None and result is None:
                self._queue_step(ledger_id, entries, callbacks)
                return
            assert self._is_busy, "a list ended that was not under way"
            if not isinstance(result, bytes):
                self._read_failed(ledger_id, "the list of its entries", error or result)
            for listed in callbacks:
                listed(result if isinstance(result, bytes) else EIO)
            self._begin_next()

        self._on_job()
        self._cold.add(ColdRead(work, done))
