"""What would be lost if some bookies were switched off for good, from the records. No IO.

Rules:

1. A copy counts if its bookie stays, is registered, and no mark says that it lacks the ledger.
2. All bookies that are asked about are taken together: each alone may be spared where both are not.
3. Only entries with a copy on one of them count: what is lost already is not lost by this.
4. A record or a mark that cannot be read may name any of them (I60).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from autorecovery.ledgers.checks import Fragment, fragments
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import NO_ENTRY, LedgerMetadata

# Ledgers that an answer names, the worst first; the others are counted.
RISKS_TOLD: Final = 1_000


class Kind(StrEnum):
    """Why a ledger keeps bookies from being switched off, the worst first."""

    LOST = "lost"
    """Entries would have no copy."""
    UNREADABLE = "unreadable"
    """Nobody knows where its entries are."""
    FEW = "few-copies"
    """Entries would have fewer copies than the ack quorum."""
    OPEN = "open"
    """It is not closed, and its writer uses one of the bookies."""


class Risk(NamedTuple):
    """One ledger that keeps bookies from being switched off."""

    ledger_id: int
    kind: Kind
    copies_left: int | None
    """Copies that the worst entries would have left; None: that is not known."""
    text: str


@dataclass(slots=True)
class Answer:
    """What was found in all records."""

    ledgers: int = 0
    """Ledgers that name one of the bookies, and those that cannot be read."""
    totals: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    _risks: dict[Kind, list[Risk]] = field(default_factory=lambda: {kind: [] for kind in Kind})

    @property
    def is_safe(self) -> bool:
        return not any(self.totals.values())

    @property
    def risks(self) -> list[Risk]:
        """The worst first, RISKS_TOLD at most."""
        return [risk for kind in Kind for risk in self._risks[kind]][:RISKS_TOLD]

    def add(self, risk: Risk | None) -> None:
        """Count a ledger that was looked at, with its risk if it has one."""
        self.ledgers += 1
        if risk is None:
            return
        self.totals[risk.kind] += 1
        if len(self._risks[risk.kind]) < RISKS_TOLD:
            self._risks[risk.kind].append(risk)


def risk_of(
    ledger_id: int,
    metadata: LedgerMetadata,
    leaving: Collection[str],
    available: Collection[str],
    lacking: Collection[str],
) -> Risk | None:
    """What the ledger would lose; None: nothing. *lacking*: bookies that lack copies of it, as its mark says."""
    staying = set(available).difference(leaving, lacking)
    worst: tuple[int, Fragment] | None = None
    all_fragments = fragments(metadata, NO_ENTRY)
    growing = None if metadata.is_closed else all_fragments[-1]
    for fragment in all_fragments:
        for copies in _write_sets(fragment, grows=fragment is growing):
            if copies.isdisjoint(leaving):
                continue  # rule 3
            left = len(copies & staying)
            if worst is None or left < worst[0]:
                worst = left, fragment
    if worst is None:
        return None
    left, fragment = worst
    if left < metadata.ack_quorum:
        where = f"entries between {fragment.first_entry_id} and {fragment.last_entry_id}"
        if fragment is growing:
            where = f"entries from {fragment.first_entry_id} on"
        if left == 0:
            return Risk(ledger_id, Kind.LOST, 0, f"no copy of some {where} would be left")
        text = f"{left} of {metadata.write_quorum} copies of some {where} would be left, fewer than its ack quorum"
        return Risk(ledger_id, Kind.FEW, left, f"{text} ({metadata.ack_quorum})")
    used = sorted(set(metadata.last_segment.ensemble).intersection(leaving))
    if used and not metadata.is_closed:
        return Risk(ledger_id, Kind.OPEN, left, f"it is not closed, and its writer uses {', '.join(used)}")
    return None


def _write_sets(fragment: Fragment, *, grows: bool) -> Iterator[frozenset[str]]:
    """The bookies of each entry, each set once; of a fragment that *grows* also those of entries to come."""
    count = len(fragment.ensemble) if grows else min(len(fragment.ensemble), fragment.entry_count)
    for entry_id in range(fragment.first_entry_id, fragment.first_entry_id + count):
        yield frozenset(fragment.ensemble[at] for at in fragment.holders(entry_id))
