"""Reads of one ledger over connections: single entries and batches (with speculation), recovery reads, LAC rounds."""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from magnetar_core.bookkeeper.client.deciding.quorum import Quorum
from magnetar_core.bookkeeper.client.deciding.reader import HeldCount, ReplicaWalk, open_batch, read_order
from magnetar_core.bookkeeper.client.deciding.recovery import (
    Absent,
    Answer,
    FencingRound,
    Found,
    LastConfirmed,
    RecoveryRead,
    Undecidable,
)
from magnetar_core.bookkeeper.client.errors import BookieUnavailable, BookKeeperError, DigestMismatch
from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.wire.codec_v2 import LAST_ENTRY
from magnetar_core.bookkeeper.wire.entry import EntryCodec, StoredEntry

R = TypeVar("R")

# Single reads in flight for one caller, where batches are not possible: enough to hide the round trip to the bookie,
# few enough that the largest entries fit into memory (64 × 5 MiB at worst).
_WINDOW: Final = 64

# Entries asked for in one batch. Bytes bound the answer; this limit only keeps the count within its field of 32 bits.
BATCH_COUNT_MAX: Final = 1_000_000


class _Race(Generic[R]):
    """One read: it asks replica after replica, and a second one at the same time when the first is slow."""

    __slots__ = ("__weakref__", "_accept", "_ask", "_pool", "_walk", "answer")

    def __init__(
        self,
        walk: ReplicaWalk,
        ask: Callable[[int], "asyncio.Future[Any]"],
        accept: Callable[[Any], R],
        pool: ConnectionPool,
    ) -> None:
        self._walk = walk
        self._ask = ask
        self._accept = accept
        self._pool = pool
        self.answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._next()

    def _ask_another(self) -> None:
        self._pool.read_retries += 1
        self._next()

    def speculate(self) -> None:
        if not self.answer.done() and self._walk.may_speculate:
            self._ask_another()

    def _next(self) -> None:
        index = self._walk.next()
        if index is not None:
            self._ask(index).add_done_callback(lambda future: self._on_answer(index, future))

    def _on_answer(self, index: int, future: "asyncio.Future[Any]") -> None:
        error: BaseException | None = future.exception()
        if self.answer.done():
            return
        if error is None:
            try:
                self.answer.set_result(self._accept(future.result()))
            except (BookKeeperError, DigestMismatch) as refused:
                error = refused
            else:
                return
        if not isinstance(error, BookKeeperError | DigestMismatch):
            self.answer.set_exception(error)
            return
        self._walk.on_error(index, error)
        if not self._walk.is_waiting and not self._walk.is_over:
            self._ask_another()
        if self._walk.is_over:
            self.answer.set_exception(self._walk.error)


class LedgerFetcher:
    """Reads entries of one ledger. Ensembles come from the caller, which knows the metadata."""

    def __init__(self, ledger_id: int, quorum: Quorum, codec: EntryCodec, pool: ConnectionPool) -> None:
        self.ledger_id = ledger_id
        self.quorum = quorum
        self._codec = codec
        self._pool = pool
        # Where every bookie holds every entry, a reader asks the same bookie again: that bookie has read ahead.
        self._start = ledger_id % quorum.ensemble_size

    def entry(self, ensemble: Sequence[str], entry_id: int) -> "asyncio.Future[StoredEntry]":
        """One entry from the first replica that has it."""
        order = read_order(self.quorum, entry_id, ensemble, self._pool.rank, self._start)

        def ask(index: int) -> "asyncio.Future[memoryview]":
            return self._pool.get(ensemble[index], self.ledger_id).read(self.ledger_id, entry_id)

        return self._run(ReplicaWalk(order), ask, lambda data: self._codec.open(data, self.ledger_id, entry_id))

    async def entries(self, ensemble: Sequence[str], first: int, last: int) -> list[StoredEntry]:
        """All entries of a range within one segment."""
        entries: list[StoredEntry] = []
        while first <= last:
            run = await self.run(ensemble, first, last - first + 1, self._pool.config.frame_bytes_max)
            entries += run
            first += len(run)
        return entries

    async def run(self, ensemble: Sequence[str], first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        """A run that begins with *first*: at least one entry, at most *max_count*, about *max_bytes*.

        The range must lie within one segment.
        """
        if max_count > 1 and self._pool.config.batch_read_enabled and not self.quorum.is_striped:
            order = read_order(self.quorum, first, ensemble, self._pool.rank, self._start)
            if self._pool.may_batch(ensemble[order[0]]):
                try:
                    return await self._batch(order, ensemble, first, max_count, max_bytes)
                except BookieUnavailable:
                    # Read single entries. A bookie that does not know batches closes the connection, as a dying one
                    # does.
                    pass
        return await self._window(ensemble, first, min(max_count, _WINDOW), max_bytes)

    async def _batch(
        self, order: Sequence[int], ensemble: Sequence[str], first: int, max_count: int, max_bytes: int
    ) -> list[StoredEntry]:
        max_bytes = min(max_bytes, self._pool.config.frame_bytes_max)
        max_count = min(max_count, BATCH_COUNT_MAX)

        def ask(index: int) -> "asyncio.Future[list[memoryview]]":
            connection = self._pool.get(ensemble[index], self.ledger_id)
            return connection.batch_read(self.ledger_id, first, max_count, max_bytes)

        def accept(raw: list[memoryview]) -> list[StoredEntry]:
            return open_batch(self._codec, self.ledger_id, first, raw[:max_count])

        return await self._run(ReplicaWalk(order), ask, accept)

    async def _window(self, ensemble: Sequence[str], first: int, count: int, max_bytes: int) -> list[StoredEntry]:
        reads = [self.entry(ensemble, first + i) for i in range(count)]
        entries: list[StoredEntry] = []
        size = 0
        try:
            for read in reads:
                try:
                    entry = await read
                except (BookKeeperError, DigestMismatch):
                    if not entries:
                        raise
                    break
                size += len(entry.payload)
                if entries and size > max_bytes:
                    break
                entries.append(entry)
        finally:
            for read in reads:
                if not read.cancel() and not read.cancelled():
                    read.exception()  # retrieved, so that asyncio does not log it
        return entries

    def _run(
        self, walk: ReplicaWalk, ask: Callable[[int], "asyncio.Future[Any]"], accept: Callable[[Any], R]
    ) -> "asyncio.Future[R]":
        race = _Race(walk, ask, accept, self._pool)
        if self._pool.speculation is not None:
            self._pool.speculation.add(weakref.WeakMethod(race.speculate))
        return race.answer

    async def is_held(self, ensemble: Sequence[str], entry_id: int, *, is_certain: bool) -> bool:
        """The entry is part of the ledger (see `LedgerReadHandle.last_recoverable_entry`).

        Raises the error of a bookie if the answers do not decide it.
        """
        count = HeldCount(self.quorum, is_certain=is_certain)
        verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def on_answer(_: int, answer: Answer) -> None:
            if verdict.done():
                return
            match count.on_answer(answer):
                case bool() as held:
                    verdict.set_result(held)
                case BookKeeperError() | DigestMismatch() as error:
                    verdict.set_exception(error)

        self._ask_all(ensemble, self.quorum.write_set(entry_id), entry_id, None, on_answer)
        return await verdict

    async def last_confirmed(
        self, ensemble: Sequence[str], first_entry_id: int, fencing_key: bytes | None = None
    ) -> LastConfirmed:
        """LAC as the bookies of the last segment know it. With *fencing_key* the reads also fence the ledger.

        Raises the error of a bookie if the answers do not decide it.
        """
        round_ = FencingRound(self.quorum, first_entry_id)
        verdict: asyncio.Future[LastConfirmed] = asyncio.get_running_loop().create_future()

        def on_answer(index: int, answer: Answer) -> None:
            if verdict.done():
                return
            match round_.on_answer(index, answer):
                case LastConfirmed() as done:
                    verdict.set_result(done)
                case Undecidable(error):
                    verdict.set_exception(error)

        self._ask_all(ensemble, range(len(ensemble)), LAST_ENTRY, fencing_key, on_answer)
        return await verdict

    def recovery_read(
        self, ensemble: Sequence[str], entry_id: int, fencing_key: bytes
    ) -> "asyncio.Future[Found | Absent]":
        """Ask all bookies of the write set and fence them. The future gets the verdict, or the error that prevents
        one."""
        read = RecoveryRead(self.quorum, entry_id)
        verdict: asyncio.Future[Found | Absent] = asyncio.get_running_loop().create_future()

        def on_answer(_: int, answer: Answer) -> None:
            if verdict.done():
                return
            match read.on_answer(answer):
                case Undecidable(error):
                    verdict.set_exception(error)
                case Found() | Absent() as done:
                    verdict.set_result(done)

        self._ask_all(ensemble, self.quorum.write_set(entry_id), entry_id, fencing_key, on_answer)
        return verdict

    def _ask_all(
        self,
        ensemble: Sequence[str],
        positions: Sequence[int],
        entry_id: int,
        fencing_key: bytes | None,
        on_answer: Callable[[int, Answer], None],
    ) -> None:
        for index in positions:
            connection = self._pool.get(ensemble[index], self.ledger_id, recovery=fencing_key is not None)
            future = connection.read(self.ledger_id, entry_id, fencing_key=fencing_key)
            future.add_done_callback(self._callback_for(index, entry_id, on_answer))

    def _callback_for(
        self, index: int, entry_id: int, on_answer: Callable[[int, Answer], None]
    ) -> "Callable[[asyncio.Future[memoryview]], None]":
        return lambda future: on_answer(index, self._entry_or_error(future, entry_id))

    def _entry_or_error(self, future: "asyncio.Future[memoryview]", entry_id: int) -> Answer:
        error = future.exception()
        if error is None:
            try:
                expected = None if entry_id == LAST_ENTRY else entry_id
                return self._codec.open(future.result(), self.ledger_id, expected)
            except DigestMismatch as damage:
                return damage
        assert isinstance(error, BookKeeperError | DigestMismatch), error
        return error
