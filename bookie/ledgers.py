"""Ledgers as this bookie knows them. No IO: what must be written is gathered, what must be loaded is asked for.

Rules:

1. There is one Ledger object for a ledger (correctness I46); add and fence act on the same one.
2. `fenced` never goes back. A fence is answered only when it is durable (`is_fence_durable`): its record in
   the journal is synced, or it was there when the process started.
3. `last_add_confirmed` is the largest value seen, in entries or in explicit LACs, and never goes back (I9).
4. `last_entry_id` and `last_add_confirmed` count as complete only when `is_tail_known`: for a ledger from an
   earlier life of the process the index is asked first.
5. Whoever waits for a LAC is called once: by a larger LAC, by the fence, or when it gives up.
6. Memory: about 300 bytes a ledger of this bookie, as upstream, which holds them all as well.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from google.protobuf.message import DecodeError

from bookie.storage_pb2 import LedgerData
from magnetar.runtime.types import Corruption

_EXPLICIT_LAC: Final = struct.Struct(">qq")

FENCED_LAC: Final = 2**63 - 1
"""What a waiter is told when the ledger is fenced: larger than any LAC."""

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
        # In this life of the process; the record precedes the ledger's first entry in it.
        self.is_key_journaled = False
        self.is_fence_durable = False
        # Replies that wait for the fence record; None when no record is under way.
        self.fence_waiters: list[Callable[[Exception | None], None]] | None = None
        self._waiters: list[Waiter] | None = None

    def see_lac(self, last_add_confirmed: int) -> None:
        """An entry or an explicit LAC told how far the writer knows its entries to be confirmed."""
        if last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed = last_add_confirmed
            if self._waiters is not None:
                self.wake(last_add_confirmed)

    def see_explicit_lac(self, blob: bytes) -> None:
        """Keep *blob* if it says more than the one before."""
        last_add_confirmed = explicit_lac_of(blob)
        if not self.explicit_lac or last_add_confirmed >= explicit_lac_of(self.explicit_lac):
            self.explicit_lac = blob
        self.see_lac(last_add_confirmed)

    def see_tail(self, last_entry_id: int, last_add_confirmed: int) -> None:
        """What the index and the last stored entry say (rule 4)."""
        self.last_entry_id = max(self.last_entry_id, last_entry_id)
        self.is_tail_known = True
        self.see_lac(last_add_confirmed)

    def wait(self, waiter: Waiter) -> None:
        """Call *waiter* once with the LAC when it grows, or with FENCED_LAC."""
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)

    def stop_waiting(self, waiter: Waiter) -> None:
        """Safe to call for one that was called already."""
        if self._waiters is not None and waiter in self._waiters:
            self._waiters.remove(waiter)
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


class Ledgers:
    """All ledgers of a bookie, and which of them changed since they were written."""

    __slots__ = ("_dirty", "_ledgers", "get")

    def __init__(self) -> None:
        self._ledgers: dict[int, Ledger] = {}
        self._dirty: set[int] = set()
        self.get = self._ledgers.get
        """The ledger of an id, or None; the dict's own method, since every add calls it."""

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
        """What `take_dirty` gave could not be written."""
        self._dirty.update(ledger_id for ledger_id, _ in rows)

    def __iter__(self) -> Iterator[Ledger]:
        return iter(self._ledgers.values())

    def __len__(self) -> int:
        return len(self._ledgers)
