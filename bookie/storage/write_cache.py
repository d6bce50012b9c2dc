"""Entries that are in the journal, or on their way there, and not in an entry log yet. No IO.

There are two halves: one takes entries, the other is being flushed. Reads use both.

    put ──▶ taking half ──swap──▶ flushing half ──flushed──▶ gone (index and entry log have it)

Rules:

1. Used on the loop only. The flusher reads the half it was given, which is not changed after the swap.
2. A half that could not be flushed stays, is read, and is flushed again: entries are never dropped.
3. `is_full` does not refuse entries: connections that see it stop reading requests. The entries of one chunk are still
   taken, so the cache exceeds its size by at most one chunk of each connection.
4. The memory of a flushed half is given back in steps, not on the loop: to free the 100,000 objects of a half of small
   entries takes the interpreter's lock for 10 ms and more, and every add waits for it meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from magnetar_core.runtime.types import Buffer

# Memory of an entry besides its own bytes: the bytes object, its place in the dict, its key.
ENTRY_OVERHEAD_BYTES: Final = 150

# Freeing so many entries takes about 0.1 ms.
LET_GO_MAX: Final = 500

Half = dict[int, dict[int, bytes]]
"""ledger id → entry id → stored entry"""


class WriteCache:
    """A bounded map from (ledger, entry) to stored entries."""

    __slots__ = ("_flushing", "_half_bytes_max", "_taking", "bytes", "entries")

    def __init__(self, bytes_max: int) -> None:
        self._half_bytes_max = bytes_max // 2
        self._taking: Half = {}
        self._flushing: Half = {}
        self.bytes = 0
        """Bytes in the taking half."""
        self.entries = 0

    def put(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        """Take an entry; it replaces an entry with the same ids."""
        entries = self._taking.get(ledger_id)
        if entries is None:
            entries = self._taking[ledger_id] = {}
        entries[entry_id] = entry
        self.entries += 1
        self.bytes += len(entry) + ENTRY_OVERHEAD_BYTES

    def put_run(self, ledger_id: int, entry_ids: Sequence[int], run: Sequence[bytes]) -> None:
        """`put` for the entries of one ledger that came together."""
        entries = self._taking.get(ledger_id)
        if entries is None:
            entries = self._taking[ledger_id] = {}
        entries.update(zip(entry_ids, run, strict=True))
        self.entries += len(run)
        self.bytes += sum(map(len, run)) + ENTRY_OVERHEAD_BYTES * len(run)

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        entries = self._taking.get(ledger_id)
        if entries is not None:
            entry = entries.get(entry_id)
            if entry is not None:
                return entry
        entries = self._flushing.get(ledger_id)
        return None if entries is None else entries.get(entry_id)

    def entry_ids(self, ledger_id: int) -> set[int]:
        """The entries of the ledger in both halves."""
        return {*self._taking.get(ledger_id, ()), *self._flushing.get(ledger_id, ())}

    def entry_ids_in_pieces(self, ledger_id: int, count: int) -> list[list[int]]:
        """The entries of the ledger in lists of at most *count* ids, in the order in which they came. An id that is in
        both halves is in two lists."""
        pieces: list[list[int]] = []
        for half in (self._taking, self._flushing):
            entry_ids = iter(half.get(ledger_id, ()))
            while piece := list(islice(entry_ids, count)):
                pieces.append(piece)
        return pieces

    def has_ledger(self, ledger_id: int) -> bool:
        return ledger_id in self._taking or ledger_id in self._flushing

    @property
    def is_full(self) -> bool:
        """The taking half is full, and the other one is not free yet."""
        return self.bytes >= self._half_bytes_max and bool(self._flushing)

    @property
    def wants_flush(self) -> bool:
        return self.bytes >= self._half_bytes_max

    @property
    def fill_share(self) -> float:
        """How full the taking half is; more than 1 beyond its size."""
        return self.bytes / self._half_bytes_max

    @property
    def is_empty(self) -> bool:
        return not self._taking and not self._flushing

    def swap(self) -> Half:
        """Return the half to flush: the taking half, or the one of a failed attempt again (rule 2)."""
        if not self._flushing:
            self._flushing, self._taking = self._taking, {}
            self.bytes = self.entries = 0
        return self._flushing

    def flushed(self) -> Half:
        """The half that `swap` returned is in the index: nothing is read from it any more. Returns it, for `let_go`."""
        half, self._flushing = self._flushing, {}
        return half


def pieces_in_order(half: Half, bytes_max: int, entries_max: int) -> Iterator[list[tuple[int, int, Buffer]]]:
    """(ledger id, entry id, entry) by ledger and entry, the order in which the entry log gets them; in pieces that end
    with the entry that makes them *bytes_max* bytes, or have *entries_max* entries."""
    piece: list[tuple[int, int, Buffer]] = []
    size = 0
    for ledger_id in sorted(half):
        entries = half[ledger_id]
        for entry_id in sorted(entries):
            entry = entries[entry_id]
            piece.append((ledger_id, entry_id, entry))
            size += len(entry)
            if size >= bytes_max or len(piece) == entries_max:
                yield piece
                piece, size = [], 0
    if piece:
        yield piece


def let_go(half: Half, rest: Callable[[], None]) -> None:
    """Empty a half that nothing reads any more, and *rest* after each LET_GO_MAX entries (rule 4)."""
    count = 0
    while half:
        _, entries = half.popitem()
        while entries:
            entries.popitem()
            count += 1
            if count % LET_GO_MAX == 0:
                rest()
