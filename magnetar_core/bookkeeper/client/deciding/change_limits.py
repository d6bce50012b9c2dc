"""How fast ensembles may change. No IO and no clock: the time is an argument.

An ensemble change costs a metadata write and sends every unacknowledged entry again. So changes in quick succession
would cause more of the overload that caused them. Rules:

1. The first change of a ledger is made at once. A change within QUIET_S of the previous one waits, each time twice as
   long.
2. At most BURST ledgers leave one bookie at once, and PER_SECOND after that. A bookie that dies with 1,000 open ledgers
   is replaced everywhere within 8 s; a bookie that comes and goes does not cause a storm of changes.
"""

from typing import Final

from magnetar_core.runtime.pauses import longer_s

LEDGER_FIRST_S: Final = 0.1
LEDGER_LAST_S: Final = 5.0
QUIET_S: Final = 30.0

BURST: Final = 200.0
PER_SECOND: Final = 100.0

# Bookies that are remembered. The one that changed least recently is forgotten first: it has its burst again.
BOOKIES_MAX: Final = 1_000


class LedgerBackoff:
    """Rule 1, for one ledger."""

    __slots__ = ("_changed_s", "_wait_s")

    def __init__(self) -> None:
        self._changed_s = float("-inf")
        self._wait_s = 0.0

    def delay_s(self, now_s: float) -> float:
        """How long a change that is wanted now has to wait, in seconds. It counts as made after that time."""
        if now_s - self._changed_s > QUIET_S:
            self._wait_s = 0.0
        else:
            self._wait_s = longer_s(self._wait_s, LEDGER_FIRST_S, LEDGER_LAST_S)
        self._changed_s = now_s + self._wait_s
        return self._wait_s


class BookieLimits:
    """Rule 2, for all ledgers of a client."""

    def __init__(self) -> None:
        self._tokens: dict[str, tuple[float, float]] = {}  # bookie → (tokens, when); below zero: that many changes wait

    def delay_s(self, bookie_id: str, now_s: float) -> float:
        """How long a change away from *bookie_id* has to wait, in seconds. It counts as made after that time."""
        tokens, since_s = self._tokens.pop(bookie_id, (BURST, now_s))
        tokens = min(tokens + (now_s - since_s) * PER_SECOND, BURST) - 1
        if len(self._tokens) >= BOOKIES_MAX:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[bookie_id] = tokens, now_s
        assert tokens <= BURST - 1
        return max(-tokens / PER_SECOND, 0.0)
