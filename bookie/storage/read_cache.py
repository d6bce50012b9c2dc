"""A cache of entries that were read from entry logs: requested entries and those after them (read-ahead). No IO.

The oldest entries are evicted first. Readers of a ledger move forwards, so the entry fetched longest ago was used
already, or never will be. Least-recently-used order would cost a move on every hit.
"""

from collections.abc import Container, Iterable
from itertools import islice
from typing import Final

from bookie.storage.write_cache import ENTRY_OVERHEAD_BYTES

# Of so many entries one is evicted at a time: the first key of a dict is looked for past all that were removed, which
# took 0.2 ms an entry where they were 250,000 small ones and went one by one.
EVICTED_SHARE: Final = 100


class ReadCache:
    """A bounded map from (ledger, entry) to stored entries. Used on the loop only."""

    __slots__ = ("_bytes_max", "_entries", "bytes", "hits")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: dict[tuple[int, int], bytes] = {}
        self.bytes = 0
        self.hits = 0
        """How often an entry that was looked for was here."""

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        entry = self._entries.get((ledger_id, entry_id))
        if entry is not None:
            self.hits += 1
        return entry

    def put_run(self, ledger_id: int, entries: Iterable[tuple[int, bytes]]) -> None:
        """Keep (entry id, entry) pairs; the oldest ones of the cache are evicted for them."""
        kept = self._entries
        for entry_id, entry in entries:
            key = (ledger_id, entry_id)
            self.discard(ledger_id, entry_id)
            kept[key] = entry
            self.bytes += len(entry) + ENTRY_OVERHEAD_BYTES
        while self.bytes > self._bytes_max:
            for oldest in list(islice(kept, 1 + len(kept) // EVICTED_SHARE)):
                self.bytes -= len(kept.pop(oldest)) + ENTRY_OVERHEAD_BYTES

    def discard(self, ledger_id: int, entry_id: int) -> None:
        """The entry was written again: drop the copy that was read before."""
        entry = self._entries.pop((ledger_id, entry_id), None)
        if entry is not None:
            self.bytes -= len(entry) + ENTRY_OVERHEAD_BYTES

    def discard_ledgers(self, ledger_ids: Container[int]) -> None:
        """Drop entries of deleted ledgers. It scans the whole cache, so call it for many ledgers at once."""
        for key in [key for key in self._entries if key[0] in ledger_ids]:
            self.discard(*key)

    def __len__(self) -> int:
        return len(self._entries)
