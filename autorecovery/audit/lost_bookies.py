"""When the ledgers of bookies that went away are to be marked. No IO; looked at again with every change and by time.

    away for less than the delay, and alone     ──▶ wait for the rest of the delay: it may only be restarting
    away for the delay, or with another one     ──▶ audit now
    back before that                            ──▶ forgotten
    audited                                     ──▶ not again, until it was back; the periodic check sees to the rest

(Apache's `Auditor` has the same rules, but acts on events; here they follow from the bookies that are there, so that
none can be missed.)
"""

from collections.abc import Collection
from typing import NamedTuple


class Decision(NamedTuple):
    """What is to be done about bookies that are away."""

    audit: frozenset[str]
    """Bookies whose ledgers are to be marked now; empty: no audit."""
    due_s: float | None
    """Clock of the next look that is needed although nothing changes; None: no look is needed."""
    waiting: frozenset[str] = frozenset()
    """The bookie that has time left until then."""


class LostBookies:
    """Which bookies are away, and since when."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        """How long one bookie alone may be away."""
        self._away_since: dict[str, float] = {}
        self._audited: set[str] = set()

    @property
    def away(self) -> frozenset[str]:
        """Every bookie that is away, audited or not."""
        return frozenset(self._away_since)

    def away_s(self, bookie: str, now_s: float) -> float:
        """Seconds since *bookie* was first seen to be away."""
        return now_s - self._away_since[bookie]

    def look(self, now_s: float, known: Collection[str], available: Collection[str]) -> Decision:
        """*known* bookies belong to the cluster, *available* ones are there, writable or read-only."""
        assert self.delay_s >= 0
        away = set(known) - set(available)
        self._away_since = {bookie: self._away_since.get(bookie, now_s) for bookie in away}
        self._audited &= away
        new = away - self._audited
        if not new:
            return Decision(frozenset(), None)
        due_s = min(self._away_since[bookie] for bookie in new) + self.delay_s
        if len(new) > 1 or due_s <= now_s:
            return Decision(frozenset(new), None)
        return Decision(frozenset(), due_s, frozenset(new))

    def audited(self, bookies: Collection[str]) -> None:
        """The ledgers of *bookies* were marked, while they were away."""
        self._audited |= set(bookies) & self._away_since.keys()
