"""What a drain still has to do, how fast it is, and what cannot be done at all. No IO: records and reports come in.

Rules (I72, I74):

1. What is left follows from records: each ledger whose record names the bookie, and each whose record cannot be read.
2. A ledger is hopeless when no waiting helps: entries of it are on no bookie that is there, its record cannot be read,
   or all bookies of the cluster that may take entries are in its ensemble already.
3. The rate is that of the last minutes; without progress in them there is no estimate of the end.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from autorecovery.ledgers.checks import fragments
from autorecovery.ledgers.index import IndexedLedger
from autorecovery.repair.outcome import Hindrance
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import DrainView
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata

# The rate is taken over so long: with less it jumps at each large ledger, with more it shows what was an hour ago.
_RATE_S: Final = 300.0

# Two looks at a drain that are kept for the rate lie at least so far apart: 300 of them at most.
_SAMPLE_S: Final = 1.0

# Ledgers that wait or are hopeless and that a report names; it is read by people, and others are counted.
_NAMED_MAX: Final = 20


def has_no_target(ledger: IndexedLedger, bookie: str, candidates: Collection[str]) -> bool:
    """Some ensemble that names *bookie* has all of *candidates*, the bookies that may ever take entries (rule 2)."""
    named = (ensemble for ensemble in (*ledger.ensembles, *ledger.trailing) if bookie in ensemble)
    return any(not set(candidates).difference(ensemble, (bookie,)) for ensemble in named)


def bytes_on(metadata: LedgerMetadata, bookie: str) -> int:
    """About how many bytes of a closed ledger are on *bookie*; 0 where the record does not say."""
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return 0
    entries = sum(
        fragment.entry_count * metadata.write_quorum / len(fragment.ensemble)
        for fragment in fragments(metadata, metadata.last_entry_id)
        if bookie in fragment.ensemble
    )
    return round(metadata.length * entries / (metadata.last_entry_id + 1))


@dataclass(slots=True)
class Progress:
    """How far a drain has come."""

    total: int = 0
    """Ledgers that were found to name the bookie, whenever."""
    left: int = 0
    bytes_total: int = 0
    bytes_left: int = 0
    last_gain_s: float | None = None
    """Clock of the last look at which less was left."""
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now_s: float, total: int, left: int, bytes_total: int, bytes_left: int) -> None:
        """What one look found."""
        if self.last_gain_s is None or left < self.left or bytes_left < self.bytes_left or total != self.total:
            self.last_gain_s = now_s
        self.total, self.left, self.bytes_total, self.bytes_left = total, left, bytes_total, bytes_left
        if not self._samples or now_s - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append((now_s, total - left))
        while self._samples[0][0] < now_s - _RATE_S and len(self._samples) > 1:
            self._samples.popleft()

    def stuck_s(self, now_s: float) -> float:
        """Seconds for which nothing became less."""
        return 0.0 if self.last_gain_s is None else now_s - self.last_gain_s

    def per_minute(self, now_s: float) -> float:
        """Ledgers a minute (rule 3)."""
        if not self._samples or now_s - self._samples[0][0] < _SAMPLE_S:
            return 0.0
        since_s, done = self._samples[0]
        return max(self.total - self.left - done, 0) * 60 / (now_s - since_s)

    def eta_s(self, now_s: float) -> float | None:
        """Seconds until nothing is left; None: nobody can say."""
        rate = self.per_minute(now_s)
        return None if not rate else self.left * 60 / rate


def view_of(
    left: Collection[int],
    unreadable: Mapping[int, str],
    no_target: Mapping[int, str],
    problems: Mapping[int, tuple[str, str]],
) -> DrainView:
    """*left*: ledgers that are not moved and proved; *problems*: ledger → (kind, text), as workers report them."""
    hopeless: dict[int, str] = dict(unreadable)
    waiting: dict[int, str] = {}
    for ledger_id in left:
        kind, text = problems.get(ledger_id, ("", ""))
        if kind == Hindrance.LOST:
            hopeless[ledger_id] = text
        elif ledger_id in no_target:
            hopeless[ledger_id] = no_target[ledger_id]
        elif kind:
            waiting[ledger_id] = text
    return DrainView(len(set(left) | unreadable.keys()), waiting, hopeless)


def facts_of(progress: Progress, view: DrainView | None, phase: str, problem: str, now_s: float) -> dict[str, Any]:
    """What a node reports about a drain, as values of JSON."""
    eta_s = progress.eta_s(now_s)
    facts: dict[str, Any] = {
        "phase": phase,
        "problem": problem,
        "ledgers": progress.total,
        "ledgers_left": progress.left,
        "bytes": progress.bytes_total,
        "bytes_left": progress.bytes_left,
        "ledgers_per_minute": round(progress.per_minute(now_s), 1),
        "eta_s": None if eta_s is None else round(eta_s),
    }
    for name in ("waiting", "hopeless"):
        ledgers: Mapping[int, str] = {} if view is None else getattr(view, name)
        facts[name] = len(ledgers)
        facts[f"{name}_ledgers"] = {str(ledger_id): ledgers[ledger_id] for ledger_id in sorted(ledgers)[:_NAMED_MAX]}
    return facts
