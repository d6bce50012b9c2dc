"""The copies of one ledger, bookie by bookie: for whoever repairs or verifies it. Readers and writers have handles.

    one bookie is asked for one entry          ──▶ the stored entry, its digest checked, or why there is none
    a run of entries from the first that has it ──▶ stored entries, byte for byte as they lie on that bookie
    a run of stored entries to one bookie       ──▶ on its disk (a recovery add: a fenced ledger takes it)

Rules:

1. A stored entry is copied as it is, header and digest included. It was valid on the bookie that it came from, so it
   is valid on any other, and no LAC or length is made up.
2. Recovery adds travel on connections of their own (`connection`, rule 1), without high priority: a repair waits
   behind the writers.
3. `write` returns when the bookie has confirmed each entry of the run, or raises; nothing is sent twice.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.deciding.writer import PendingAdd
from magnetar_core.bookkeeper.client.errors import (
    BookieUnavailable,
    BookKeeperError,
    DigestMismatch,
    NoSuchEntry,
    is_missing,
)
from magnetar_core.bookkeeper.client.wire.connection import AddChannel
from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.wire.codec_v2 import FLAG_RECOVERY_ADD, add_request_head
from magnetar_core.bookkeeper.wire.entry import EntryCodec, master_key
from magnetar_core.runtime.types import MIB

# What one read of a run asks for. A bookie answers it from one scan of its index; twice this lies in memory for each
# ledger under repair.
RUN_BYTES: Final = 1 * MIB
RUN_ENTRIES: Final = 1_000


class Stored(NamedTuple):
    """An entry as a bookie stores it: header, digest and payload; the digest was checked."""

    entry_id: int
    data: memoryview


class _Run:
    """Adds of one `write` that are not answered yet."""

    __slots__ = ("done", "left")

    def __init__(self, count: int) -> None:
        self.left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class ReplicaWriter:
    """Writes copies of one ledger's entries to one bookie. Several runs may be under way at the same time."""

    def __init__(self, ledger_id: int, key: bytes, bookie_id: str, pool: ConnectionPool) -> None:
        self._ledger_id = ledger_id
        self._key = key
        connection = pool.get(bookie_id, ledger_id, recovery=True)
        self._channel = AddChannel(self, 0, connection)
        self._runs: dict[int, _Run] = {}

    @property
    def bookie_id(self) -> str:
        return self._channel.bookie

    async def write(self, run: Sequence[Stored]) -> None:
        """Store *run* (ids ascending, none of them under way already); returns when all are on the bookie's disk.

        Raises BookKeeperError, the first refusal or failure; others of the run may be there then.
        """
        if not run:
            return
        waiting = _Run(len(run))
        adds = []
        for entry_id, data in run:
            assert entry_id not in self._runs, f"entry {entry_id} is on its way to {self.bookie_id} already"
            self._runs[entry_id] = waiting
            adds.append(PendingAdd(entry_id, 0, add_request_head(FLAG_RECOVERY_ADD, self._key, len(data)), data))
        self._channel.connection.send_adds(self._channel, self._ledger_id, adds)
        await waiting.done

    def on_added(self, channel: AddChannel, entry_ids: list[int]) -> None:
        """AddSink."""
        for entry_id in entry_ids:
            run = self._runs.pop(entry_id, None)
            if run is None:
                continue
            run.left -= 1
            assert run.left >= 0
            if not run.left and not run.done.done():
                run.done.set_result(None)

    def on_add_failed(self, channel: AddChannel, entry_ids: list[int], error: BookKeeperError) -> None:
        """AddSink."""
        for entry_id in entry_ids:
            run = self._runs.pop(entry_id, None)
            if run is not None and not run.done.done():
                run.done.set_exception(error)
                run.done.exception()  # whoever waited may have been cancelled


class LedgerReplicas:
    """Reads and writes single copies of a ledger's entries, past what readers and writers are allowed.

    Made by `BookKeeper.replicas`. The password is that of the metadata, as Apache's repair has it.
    """

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, pool: ConnectionPool) -> None:
        self.ledger_id = ledger_id
        self._pool = pool
        self._codec = EntryCodec(metadata.digest_type, metadata.password)
        self._key = master_key(metadata.password)
        self._is_striped = metadata.write_quorum < metadata.ensemble_size
        self._writers: dict[str, ReplicaWriter] = {}

    async def read(self, bookie_id: str, entry_id: int) -> Stored:
        """The copy of *entry_id* on *bookie_id*.

        Raises NoSuchEntry or NoSuchLedger (it says that it has none), DigestMismatch (the copy is damaged), any other
        BookKeeperError (nobody knows).
        """
        data = await self._pool.get(bookie_id, self.ledger_id).read(self.ledger_id, entry_id)
        self._codec.check(data, self.ledger_id, entry_id)
        return Stored(entry_id, data)

    async def read_from_any(self, bookies: Sequence[str], entry_id: int) -> Stored:
        """The copy of the first of *bookies* that has a good one, those that failed a while ago last.

        Raises the error of `read` that leaves most open: what is unknown before damage, damage before an explicit no.
        So NoSuchEntry and NoSuchLedger mean that each of them said no, and DigestMismatch that nobody was silent.
        """
        assert bookies
        worst: BookKeeperError | DigestMismatch | None = None
        for bookie_id in self._in_order(bookies):
            try:
                return await self.read(bookie_id, entry_id)
            except (BookKeeperError, DigestMismatch) as error:
                if worst is None or _openness(error) > _openness(worst):
                    worst = error
        assert worst is not None
        raise worst

    async def read_run(self, bookies: Sequence[str], entry_ids: Sequence[int]) -> list[Stored]:
        """A run of *entry_ids* (ascending) that begins with the first of them: at least one, about RUN_BYTES at most.

        Each of *bookies* must be able to hold all of them. Raises as `read_from_any`, for the first entry.
        """
        assert bookies
        assert entry_ids
        first = entry_ids[0]
        is_row = entry_ids[-1] - first == len(entry_ids) - 1
        if len(entry_ids) > 1 and is_row:
            for bookie_id in self._in_order(bookies):
                if not self._pool.may_batch(bookie_id):
                    continue
                try:
                    return await self._batch(bookie_id, first, min(len(entry_ids), RUN_ENTRIES))
                except (BookKeeperError, DigestMismatch):
                    continue  # the next one, and at last entry by entry
        return [await self.read_from_any(bookies, first)]

    def writer(self, bookie_id: str) -> ReplicaWriter:
        """Where copies for *bookie_id* go; the same one for as long as this object is used."""
        writer = self._writers.get(bookie_id)
        if writer is None:
            writer = self._writers[bookie_id] = ReplicaWriter(self.ledger_id, self._key, bookie_id, self._pool)
        return writer

    async def _batch(self, bookie_id: str, first: int, count: int) -> list[Stored]:
        connection = self._pool.get(bookie_id, self.ledger_id)
        answer = await connection.batch_read(self.ledger_id, first, count, RUN_BYTES)
        stored: list[Stored] = []
        for at, data in enumerate(answer[:count]):
            try:
                self._codec.check(data, self.ledger_id, first + at)
            except DigestMismatch:
                if not stored:
                    raise
                break  # the verified part counts; the next run begins with the damaged one
            stored.append(Stored(first + at, data))
        if not stored:
            raise BookieUnavailable(f"bookie {bookie_id}, ledger {self.ledger_id}: a batch answer without entries")
        return stored

    def _in_order(self, bookies: Iterable[str]) -> list[str]:
        return sorted(bookies, key=self._pool.rank)


def _openness(error: BookKeeperError | DigestMismatch) -> int:
    """How much an answer leaves open about whether the bookie has a good copy."""
    if is_missing(error):
        return 0
    return 1 if isinstance(error, DigestMismatch) else 2


__all__ = ["LedgerReplicas", "NoSuchEntry", "ReplicaWriter", "Stored"]
