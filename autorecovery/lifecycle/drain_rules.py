"""Numbers of a drain: how many bytes a bookie has, how fast it becomes less. No IO: records come in.

The rate is that of the last minutes; without progress in them there is no estimate of the end.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from autorecovery.ledgers.checks import fragments
from autorecovery.ledgers.index import IndexedLedger
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata

# The rate is taken over so long: with less it jumps at each large ledger, with more it shows what was an hour ago.
_RATE_S: Final = 300.0

# Two looks at a drain that are kept for the rate lie at least so far apart: 300 of them at most.
_SAMPLE_S: Final = 1.0


def has_no_target(ledger: IndexedLedger, bookie: str, candidates: Collection[str]) -> bool:
    """Some ensemble that names *bookie* has all of *candidates*, the bookies that may ever take entries."""
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
        """Ledgers a minute."""
        if not self._samples or now_s - self._samples[0][0] < _SAMPLE_S:
            return 0.0
        since_s, done = self._samples[0]
        return max(self.total - self.left - done, 0) * 60 / (now_s - since_s)

    def eta_s(self, now_s: float) -> float | None:
        """Seconds until nothing is left; None: nobody can say."""
        rate = self.per_minute(now_s)
        return None if not rate else self.left * 60 / rate
