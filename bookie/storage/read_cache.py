"""Entries that were read from an entry log, the wanted ones and those behind them (read-ahead).

Oldest out first: readers of a ledger go forwards, so what was fetched longest ago was used, or never will be.
An order of use would cost a move on every hit.
"""

from collections.abc import Container, Iterable

from bookie.storage.write_cache import ENTRY_OVERHEAD_BYTES


class ReadCache:
    """A bounded map from (ledger, entry) to stored entries. Used on the loop only."""

    __slots__ = ("_bytes_max", "_entries", "bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: dict[tuple[int, int], bytes] = {}
        self.bytes = 0

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        return self._entries.get((ledger_id, entry_id))

    def put_run(self, ledger_id: int, entries: Iterable[tuple[int, bytes]]) -> None:
        """Keep (entry id, entry) pairs; the oldest make room."""
        kept = self._entries
        for entry_id, entry in entries:
            key = (ledger_id, entry_id)
            self.discard(ledger_id, entry_id)
            kept[key] = entry
            self.bytes += len(entry) + ENTRY_OVERHEAD_BYTES
        while self.bytes > self._bytes_max:
            oldest = next(iter(kept))
            self.bytes -= len(kept.pop(oldest)) + ENTRY_OVERHEAD_BYTES

    def discard(self, ledger_id: int, entry_id: int) -> None:
        """The entry was written again: what was read before does not count."""
        entry = self._entries.pop((ledger_id, entry_id), None)
        if entry is not None:
            self.bytes -= len(entry) + ENTRY_OVERHEAD_BYTES

    def discard_ledgers(self, ledger_ids: Container[int]) -> None:
        """The ledgers were deleted. Looks at everything: call it for many at once."""
        for key in [key for key in self._entries if key[0] in ledger_ids]:
            self.discard(*key)

    def __len__(self) -> int:
        return len(self._entries)
