"""Which ledgers are on which bookies, from their records. No IO.

A record is kept as the ensembles that it names: equal ensembles and equal names are one object, so a ledger costs
some 200 bytes, and 100,000 ledgers 20 MB. Values that no ledger has any more are forgotten: an index lives for months,
and ledgers come and go.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Set
from typing import NamedTuple

from autorecovery.ledgers.checks import fragments
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import NO_ENTRY, LedgerMetadata


class IndexedLedger(NamedTuple):
    """What is remembered of one record."""

    is_closed: bool
    write_quorum: int
    ensembles: tuple[tuple[str, ...], ...]
    """The ensembles that count, in the order of the segments."""
    trailing: tuple[tuple[str, ...], ...]
    """The ensembles of segments behind the end of a closed ledger."""

    def bookies(self) -> frozenset[str]:
        """Every bookie that the record names in segments that count."""
        return frozenset(bookie for ensemble in self.ensembles for bookie in ensemble)

    def all_bookies(self) -> frozenset[str]:
        """Every bookie that the record names anywhere."""
        return self.bookies() | {bookie for ensemble in self.trailing for bookie in ensemble}


class LedgerIndex:
    """All ledgers of a cluster, as each was when it was read last."""

    def __init__(self) -> None:
        self._ledgers: dict[int, IndexedLedger] = {}
        self._by_bookie: dict[str, set[int]] = {}
        self._ensembles: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._values: dict[IndexedLedger, IndexedLedger] = {}
        # How many ledgers have a value, and how many values name an ensemble.
        self._ledgers_with: Counter[IndexedLedger] = Counter()
        self._values_with: Counter[tuple[str, ...]] = Counter()
        self.unreadable: dict[int, str] = {}
        """Ledgers whose record cannot be read, with the reason; nobody can say where they are."""

    def __len__(self) -> int:
        return len(self._ledgers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ledgers)

    def __getitem__(self, ledger_id: int) -> IndexedLedger:
        return self._ledgers[ledger_id]

    def get(self, ledger_id: int) -> IndexedLedger | None:
        """None: there is no such ledger, or its record cannot be read."""
        return self._ledgers.get(ledger_id)

    def put(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Remember the record of *ledger_id*, in place of what was known of it."""
        self.discard(ledger_id)
        count = len(fragments(metadata, NO_ENTRY))
        ensembles = [self._ensembles.setdefault(segment.ensemble, segment.ensemble) for segment in metadata.segments]
        value = IndexedLedger(
            metadata.is_closed, metadata.write_quorum, tuple(ensembles[:count]), tuple(ensembles[count:])
        )
        if value not in self._values:
            self._values_with.update(ensembles)
        value = self._values.setdefault(value, value)
        self._ledgers_with[value] += 1
        self._ledgers[ledger_id] = value
        for bookie in value.all_bookies():
            self._by_bookie.setdefault(bookie, set()).add(ledger_id)

    def discard(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        self.unreadable.pop(ledger_id, None)
        former = self._ledgers.pop(ledger_id, None)
        if former is None:
            return
        for bookie in former.all_bookies():
            ledgers = self._by_bookie[bookie]
            ledgers.discard(ledger_id)
            if not ledgers:
                del self._by_bookie[bookie]
        self._ledgers_with[former] -= 1
        if not self._ledgers_with[former]:
            self._forget(former)

    def _forget(self, value: IndexedLedger) -> None:
        """No ledger has this value any more."""
        del self._values[value], self._ledgers_with[value]
        for ensemble in (*value.ensembles, *value.trailing):
            self._values_with[ensemble] -= 1
            if not self._values_with[ensemble]:
                del self._ensembles[ensemble], self._values_with[ensemble]

    @property
    def bookies(self) -> Set[str]:
        """Every bookie that some record names."""
        return self._by_bookie.keys()

    def of_bookie(self, bookie: str) -> frozenset[int]:
        """Ledgers whose record names *bookie* in any segment."""
        return frozenset(self._by_bookie.get(bookie, ()))

    def lacking(self, bookie: str) -> Iterator[int]:
        """Ledgers that lack a copy while *bookie* is away, ascending: segments that hold nothing do not count."""
        for ledger_id in sorted(self._by_bookie.get(bookie, ())):
            if any(bookie in ensemble for ensemble in self._ledgers[ledger_id].ensembles):
                yield ledger_id

    def lost(self, available: Collection[str]) -> list[str]:
        """Bookies that records name and that are not there."""
        return sorted(self._by_bookie.keys() - set(available))
