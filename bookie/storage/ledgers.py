"""The ledgers of this bookie. No IO: changed rows are gathered for the next flush, stored rows are passed in.

Rules:

1. There is one Ledger object for a ledger (I46); add and fence act on the same one.
2. `fenced` never goes back. A fence is answered only when it is durable (`is_fence_durable`): its record in
   the journal is synced, or it was there when the process started.
3. `last_add_confirmed` is the largest value seen, in entries or in explicit LACs, and never goes back (I9).
4. `last_entry_id` and `last_add_confirmed` count as complete only when `is_tail_known`: for a ledger from an
   earlier run of the process the index is asked first.
5. A waiter for a LAC is called once: at a larger LAC or at a fence, unless it stops waiting before.
6. A ledger that was deleted while fenced takes no adds for seven days (`Tombstones`): a writer that was fenced may
   still send adds, which would create it again (I45).
7. Memory: about 300 bytes for each ledger. Apache's bookie holds all ledgers in memory as well.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from google.protobuf.message import DecodeError

from bookie.storage.storage_pb2 import LedgerData
from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.runtime.types import Corruption

_EXPLICIT_LAC: Final = struct.Struct(">qq")

TOMBSTONE_MS: Final = 7 * 24 * 3600 * 1000

_TOMBSTONES_MAGIC: Final = b"MGfenced"
_TOMBSTONE: Final = struct.Struct(">qq")
_CRC: Final = struct.Struct(">I")

Waiter = Callable[[int], None]


class Ledger:
    """One ledger on this bookie."""

    __slots__ = (
        "_waiters",
        "explicit_lac",
        "fence_waiters",
        "fenced",
        "is_fence_durable",
        "is_key_journaled",
        "is_tail_known",
        "last_add_confirmed",
        "last_entry_id",
        "ledger_id",
        "limbo",
        "master_key",
    )

    def __init__(self, ledger_id: int, master_key: bytes) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.fenced = False
        self.limbo = False
        self.explicit_lac = b""
        self.last_add_confirmed = -1
        self.last_entry_id = -1
        self.is_tail_known = True
        # Whether LEDGER_KEY was journaled since the start; it precedes the first entry of the ledger since then.
        self.is_key_journaled = False
        self.is_fence_durable = False
        # Calls that wait for the fence record; None if no record is under way.
        self.fence_waiters: list[Callable[[Exception | None], None]] | None = None
        # A dict for its order and its quick removal: thousands of readers may wait for one ledger.
        self._waiters: dict[Waiter, None] | None = None

    def see_lac(self, last_add_confirmed: int) -> None:
        """An entry or an explicit LAC carried this LAC. A smaller one is ignored."""
        if last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed = last_add_confirmed
            if self._waiters is not None:
                self.wake(last_add_confirmed)

    def see_explicit_lac(self, blob: bytes) -> None:
        """Keep *blob* if its LAC is larger than the one before."""
        last_add_confirmed = explicit_lac_of(blob)
        if not self.explicit_lac or last_add_confirmed >= explicit_lac_of(self.explicit_lac):
            self.explicit_lac = blob
        self.see_lac(last_add_confirmed)

    def see_tail(self, last_entry_id: int, last_add_confirmed: int) -> None:
        """The index and the last stored entry are known: the tail is complete now (rule 4)."""
        self.last_entry_id = max(self.last_entry_id, last_entry_id)
        self.is_tail_known = True
        self.see_lac(last_add_confirmed)

    def wait(self, waiter: Waiter) -> None:
        """Call *waiter* once with the LAC, when it grows or the ledger is fenced."""
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = None

    def stop_waiting(self, waiter: Waiter) -> None:
        """Forget *waiter*. It may have been called already."""
        if self._waiters is not None and waiter in self._waiters:
            del self._waiters[waiter]
            if not self._waiters:
                self._waiters = None

    def wake(self, last_add_confirmed: int) -> None:
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter(last_add_confirmed)

    def encode(self) -> bytes:
        row = LedgerData(exists=True, fenced=self.fenced, masterKey=self.master_key)
        if self.explicit_lac:
            row.explicitLac = self.explicit_lac
        if self.limbo:
            row.limbo = True
        return row.SerializeToString()


def explicit_lac_of(blob: bytes) -> int:
    """The LAC in an explicit-LAC blob; -1 if it is too short to hold one."""
    return int(_EXPLICIT_LAC.unpack_from(blob)[1]) if len(blob) >= _EXPLICIT_LAC.size else -1


def decode(ledger_id: int, row: bytes) -> Ledger:
    """A ledger from its row. Raises Corruption."""
    data = LedgerData()
    try:
        data.ParseFromString(row)
    except DecodeError as error:
        raise Corruption(f"ledger {ledger_id}: its row in the database `ledgers` is damaged: {error}") from None
    ledger = Ledger(ledger_id, data.masterKey)
    ledger.fenced = ledger.is_fence_durable = data.fenced
    ledger.limbo = data.limbo
    ledger.explicit_lac = data.explicitLac
    ledger.last_add_confirmed = explicit_lac_of(data.explicitLac)
    ledger.is_tail_known = False
    return ledger


class Tombstones:
    """Ledgers that were fenced when they were deleted, and when that was.

    In bytes: magic, then ledger id and time (milliseconds) of each, then CRC-32C of all that.
    """

    def __init__(self) -> None:
        self._deleted_ms: dict[int, int] = {}

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._deleted_ms

    def __len__(self) -> int:
        return len(self._deleted_ms)

    def add(self, ledger_id: int, wall_ms: int) -> None:
        self._deleted_ms[ledger_id] = wall_ms

    def expire(self, wall_ms: int) -> None:
        """Forget those that are older than TOMBSTONE_MS."""
        old = [ledger_id for ledger_id, at in self._deleted_ms.items() if wall_ms - at > TOMBSTONE_MS]
        for ledger_id in old:
            del self._deleted_ms[ledger_id]

    def encode(self, ledger_ids: Collection[int]) -> bytes:
        """The tombstones of *ledger_ids*, as bytes; ledgers without one are left out."""
        items = [(ledger_id, self._deleted_ms[ledger_id]) for ledger_id in ledger_ids if ledger_id in self._deleted_ms]
        data = _TOMBSTONES_MAGIC + b"".join(_TOMBSTONE.pack(*item) for item in items)
        return data + _CRC.pack(crc32c(data))

    def load(self, data: bytes, path: str) -> None:
        """Add the tombstones that `encode` wrote. Raises Corruption."""
        # *path* is for the message only.
        body, crc = data[: -_CRC.size], data[-_CRC.size :]
        items = body[len(_TOMBSTONES_MAGIC) :]
        if not body.startswith(_TOMBSTONES_MAGIC) or len(items) % _TOMBSTONE.size or crc != _CRC.pack(crc32c(body)):
            raise Corruption(
                f"{path}: {len(data)} bytes that are not a list of fenced and deleted ledgers. If no ledger was "
                "deleted within the last seven days, the file may be removed"
            )
        self._deleted_ms.update(_TOMBSTONE.iter_unpack(items))

    def __iter__(self) -> Iterator[int]:
        return iter(self._deleted_ms)


class Ledgers:
    """All ledgers of a bookie, and which of them changed since they were written."""

    __slots__ = ("_dirty", "_ledgers", "get", "tombstones")

    def __init__(self) -> None:
        self.tombstones = Tombstones()
        self._ledgers: dict[int, Ledger] = {}
        self._dirty: set[int] = set()
        self.get = self._ledgers.get
        """The ledger of an id, or None. It is the dict's own method, because every add calls it."""

    def load(self, rows: Iterable[tuple[int, bytes]]) -> None:
        for ledger_id, row in rows:
            self._ledgers[ledger_id] = decode(ledger_id, row)

    def create(self, ledger_id: int, master_key: bytes) -> Ledger:
        assert ledger_id not in self._ledgers, f"ledger {ledger_id} exists"
        ledger = self._ledgers[ledger_id] = Ledger(ledger_id, master_key)
        self._dirty.add(ledger_id)
        return ledger

    def changed(self, ledger: Ledger) -> None:
        """Its row must be written with the next flush."""
        self._dirty.add(ledger.ledger_id)

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def take_dirty(self) -> list[tuple[int, bytes]]:
        """(ledger id, row) of every ledger that changed since the last call."""
        rows = [(ledger_id, self._ledgers[ledger_id].encode()) for ledger_id in sorted(self._dirty)]
        self._dirty.clear()
        return rows

    def not_written(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """The rows of `take_dirty` could not be written: they are dirty again."""
        self._dirty.update(ledger_id for ledger_id, _ in rows if ledger_id in self._ledgers)

    def forget(self, ledger_id: int) -> Ledger:
        """The ledger was deleted: drop it and wake all its waiters."""
        ledger = self._ledgers.pop(ledger_id)
        self._dirty.discard(ledger_id)
        ledger.wake(ledger.last_add_confirmed)
        return ledger

    def restore(self, ledger: Ledger) -> None:
        """The ledger could not be deleted after all. It counts as changed: its row, with a fence in it, may not have
        been written yet."""
        self._ledgers.setdefault(ledger.ledger_id, ledger)
        self._dirty.add(ledger.ledger_id)

    def __contains__(self, ledger_id: object) -> bool:
        return ledger_id in self._ledgers

    def __iter__(self) -> Iterator[Ledger]:
        return iter(self._ledgers.values())

    def __len__(self) -> int:
        return len(self._ledgers)
