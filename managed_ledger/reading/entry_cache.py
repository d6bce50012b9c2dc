"""Recent entries by position, bounded in bytes, for tailing consumers. No IO.

Entries are added in runs of consecutive ids and evicted oldest first, over all ledgers. A buffer that is a view keeps
the whole chunk alive in which it was received. Neighbouring entries share their chunk, so the count of payload bytes is
close to the memory that is held, as long as whole runs are added and evicted. An entry counts for its bytes and for
what Python needs to keep it, which is most of the memory for entries of a hundred bytes.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from magnetar_core.runtime.types import Buffer

# A view, a place in a dict and one in the order, and their numbers.
_OVERHEAD_BYTES: Final = 400


class EntryCache:
    """Keeps the newest entries, *bytes_max* at most with their overhead."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.inserted_entries = 0
        """Since the start."""
        self._ledgers: dict[int, dict[int, Buffer]] = {}
        self._order: deque[tuple[int, int, int]] = deque()  # ledger, entry, bytes; oldest first

    def put_run(self, ledger_id: int, first_entry_id: int, run: Sequence[Buffer]) -> None:
        """Add entries with consecutive ids."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers[ledger_id] = {}
        for entry_id, data in enumerate(run, start=first_entry_id):
            size = len(data) + _OVERHEAD_BYTES
            ledger[entry_id] = data
            self._order.append((ledger_id, entry_id, size))
            self.bytes_used += size
        self.inserted_entries += len(run)
        # A full cache evicts at every call, so what must hold is checked once for each run and not for each entry.
        while self.bytes_used > self.bytes_max:
            old_ledger, old_entry, size = self._order.popleft()
            self.bytes_used -= size
            entries = self._ledgers.get(old_ledger)
            if entries is not None:
                entries.pop(old_entry, None)
                if not entries:
                    del self._ledgers[old_ledger]
        assert self.bytes_used >= 0, f"{self.bytes_used} bytes are used"
        assert self._order or not self.bytes_used, f"{self.bytes_used} bytes are used by no entry"

    def get_run(self, ledger_id: int, first_entry_id: int, last_entry_id: int, bytes_max: int) -> list[Buffer]:
        """Entries from the first on, without gaps, not past the last; at least one if the first is here."""
        ledger = self._ledgers.get(ledger_id)
        run: list[Buffer] = []
        if ledger is None:
            return run
        for entry_id in range(first_entry_id, last_entry_id + 1):
            data = ledger.get(entry_id)
            if data is None:
                break
            bytes_max -= len(data)
            if bytes_max < 0 and run:
                break
            run.append(data)
        return run

    @property
    def entries(self) -> int:
        """How many entries are here now."""
        return sum(map(len, self._ledgers.values()))

    def forget_ledger(self, ledger_id: int) -> None:
        """Drop a trimmed ledger's entries; their bytes are subtracted later, when they would have been evicted."""
        self._ledgers.pop(ledger_id, None)

    def clear(self) -> None:
        self._ledgers.clear()
        self._order.clear()
        self.bytes_used = 0
