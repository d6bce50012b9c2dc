"""One drain, as the auditor follows it. No IO and no clock: calls go in, effects come out (`draining` does them).

    BEGUN, WRITABLE  ──it takes no entries──────────────────────▶ SETTLING
    SETTLING, UNREAD ──all records were read (`begin`)──────────▶ COPYING, or PROVING where none names it
    COPYING          ──none of the ledgers is left──────────────▶ UNREAD
    COPYING, PROVING ──a record names it all the same, or a bookie was added that may take what had no target──▶ UNREAD
    any phase        ──it takes entries (rule 2)────────────────▶ WRITABLE

A look at a drain is `step`; where it says so, `begin`; then `to_check` and `on_record`, `to_prove`, `on_record` and
`on_copies`, and `end`, which says whether the drain is over.

Rules (I72, I74):

1. Records are read only when the bookie has taken no entries for SETTLE_S: a writer that saw it as writable just before
   may still put its name into a record.
2. A bookie that is seen writable begins again with rule 1.
3. The drain ends well only from PROVING: the last reading of all records showed none that names the bookie, each could
   be read, and each ledger that was moved is whole on its new bookies. A record that names it all the same leads to
   UNREAD.
4. Whatever is moved once more is proved once more.
5. A ledger is hopeless when no waiting helps: entries of it are on no bookie that is there, its record cannot be read,
   or all bookies of the cluster that may take entries are in its ensemble already.
"""

from collections.abc import Iterable, Mapping, Set
from enum import Enum, auto
from typing import Any, Final

from autorecovery.ledgers.index import LedgerIndex
from autorecovery.lifecycle.drain_rules import Progress, bytes_on, has_no_target
from autorecovery.repair.outcome import Hindrance
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import DrainView, State, verdict_of
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata

# Rule 1. A writer chooses bookies and stores its record within a few round trips.
SETTLE_S: Final = 1.0

# A bookie of ours turns read-only within a second. After this, one of Apache's is turned through its HTTP; after the
# second number again, if it is writable still.
TURN_S: Final = 5.0
TURN_AGAIN_S: Final = 30.0

# Records of ledgers that are still marked are read again after this: a mark may stay up for another cause.
RECHECK_S: Final = 10.0

# A worker's report may be as old as two of its rounds; what it says of a ledger counts after it has stood so long.
CONFIRM_S: Final = 5.0

# Ledgers that wait or are hopeless and that a report names; it is read by people, and others are counted.
_NAMED_MAX: Final = 20


class Phase(Enum):
    """Where a drain is."""

    BEGUN = auto()  # whether the bookie takes entries is not known yet
    WRITABLE = auto()
    SETTLING = auto()  # it takes none; all records are read soon
    UNREAD = auto()  # all records are to be read once more
    COPYING = auto()  # records name it; workers move those ledgers
    PROVING = auto()  # no record named it when all were read last; copies are read


class Effect(Enum):
    """What a look at a drain is to do."""

    WAIT = auto()
    TURN = auto()  # turn the bookie read-only
    READ_ALL = auto()  # read all records, call `begin`, and go on
    GO_ON = auto()


class Drain:
    """The drain of one bookie."""

    def __init__(self, bookie: str) -> None:
        self.bookie = bookie
        self.phase = Phase.BEGUN
        self.problem = ""
        self.proved: set[int] = set()
        """Ledgers that need not be kept in the metadata store any more (`unproved`)."""
        # WRITABLE: when the bookie is turned. SETTLING: when all records are read. Else: when the records of marked
        # ledgers are read again.
        self._due_s = 0.0
        # Ledgers whose record names the bookie.
        self._left: set[int] = set()
        # Ledgers that were moved, or will be, and were not yet seen to be whole.
        self._unproved: set[int] = set()
        self._total = 0
        # Ledger → bytes of it on this bookie.
        self._sizes: dict[int, int] = {}
        self._unreadable: dict[int, str] = {}
        # Bookies that may ever take entries, as of the last reading of all records.
        self._candidates: Set[str] = frozenset()
        self._no_target: dict[int, str] = {}
        self._not_whole: dict[int, str] = {}
        self._lost_since_s: dict[int, float] = {}
        self._progress = Progress()
        self._view = DrainView(0, {}, {})

    def step(self, now_s: float, is_writable: bool, candidates: Set[str]) -> Effect:
        """Begin a look. *candidates*: bookies that may ever take entries."""
        if is_writable:
            if self.phase is not Phase.WRITABLE:
                self.phase, self._due_s = Phase.WRITABLE, now_s + TURN_S
            elif now_s >= self._due_s:
                self._due_s = now_s + TURN_AGAIN_S
                return Effect.TURN
            return Effect.WAIT
        if self.phase in (Phase.BEGUN, Phase.WRITABLE):
            self.phase, self._due_s = Phase.SETTLING, now_s + SETTLE_S
        if self.phase is Phase.SETTLING:
            return Effect.READ_ALL if now_s >= self._due_s else Effect.WAIT
        if self._no_target and candidates != self._candidates:
            self.phase = Phase.UNREAD
        return Effect.READ_ALL if self.phase is Phase.UNREAD else Effect.GO_ON

    def begin(self, index: LedgerIndex, kept: Iterable[int], candidates: Set[str]) -> None:
        """All records were read. *kept*: ledgers that were to be proved by whoever followed this drain before."""
        assert self.phase in (Phase.SETTLING, Phase.UNREAD), "all records are read only when that is due (rule 1)"
        self._candidates = candidates
        self._left = left = set(index.of_bookie(self.bookie))
        self._unreadable = dict(index.unreadable)
        self._no_target = {
            ledger_id: "each bookie of the cluster that may take entries has copies of it already; add a bookie"
            for ledger_id in left
            if has_no_target(index[ledger_id], self.bookie, candidates)
        }
        open_ids = left.union(kept)
        self._total += len(open_ids - self._unproved)
        self._unproved |= open_ids
        self.proved -= open_ids  # rule 4
        self.phase = Phase.COPYING if left else Phase.PROVING
        self._due_s = 0.0

    def to_check(self, now_s: float, marked: Set[int]) -> list[int]:
        """Ledgers whose record may have changed: those that have no mark any more, and now and then all."""
        if now_s < self._due_s:
            return sorted(self._left - marked)
        self._due_s = now_s + RECHECK_S
        return sorted(self._left)

    def on_record(self, ledger_id: int, metadata: LedgerMetadata | None) -> bool:
        """The record of a ledger was read; None: it is deleted. Returns whether it names the bookie."""
        if metadata is None:
            self._left.discard(ledger_id)
            self.on_copies(ledger_id, "")
            return False
        if self.bookie not in metadata.bookies():
            self._left.discard(ledger_id)
            return False
        if ledger_id not in self._left:
            self.phase = Phase.UNREAD  # rule 3
        self._sizes[ledger_id] = bytes_on(metadata, self.bookie)
        return True

    def to_prove(self) -> list[int]:
        """The records were checked. Returns the ledgers whose copies are to be read."""
        if self.phase is Phase.COPYING and not self._left:
            self.phase = Phase.UNREAD  # rule 3
        self._not_whole.clear()
        return sorted(self._unproved - self._left - self._unreadable.keys())

    def on_copies(self, ledger_id: int, why_not_whole: str) -> None:
        """The copies of a moved ledger were read."""
        if why_not_whole:
            self._not_whole[ledger_id] = why_not_whole
        else:
            self._unproved.discard(ledger_id)
            self.proved.add(ledger_id)

    def end(
        self, now_s: float, problems: Mapping[int, tuple[str, str]], patience_s: float
    ) -> list[tuple[int, str]] | None:
        """Finish a look. *problems*: ledger → (kind, text), as workers report them. Returns None while the drain goes
        on; else the ledgers that cannot be copied, and why: where there are none, the bookie is drained."""
        assert self._left <= self._unproved, "a ledger that is still to be moved is to be proved after that"
        assert self._not_whole.keys() <= self._unproved, "a ledger whose copies are not whole is not proved"
        if self.phase is Phase.PROVING and not (self._unproved or self._unreadable):
            return []
        view = self._view_of(problems)
        # A report may be an old one (of a drain before this): it counts once it has stood for a while.
        since_s = self._lost_since_s = {
            ledger_id: self._lost_since_s.get(ledger_id, now_s) for ledger_id in view.hopeless
        }
        hopeless = {
            ledger_id: why for ledger_id, why in view.hopeless.items() if now_s - since_s[ledger_id] >= CONFIRM_S
        }
        self._view = view = DrainView(view.ledgers_left, view.waiting, hopeless)
        self._progress.note(
            now_s,
            self._total + len(self._unreadable),
            len(self._left) + len(self._unreadable),
            sum(self._sizes.values()),
            sum(self._sizes.get(ledger_id, 0) for ledger_id in self._left),
        )
        if verdict_of(view, self._progress.stuck_s(now_s), patience_s) is not State.DRAINING_FAILED:
            return None
        failed = sorted({**view.waiting, **hopeless}.items())
        assert failed, "a drain that fails says why"
        return failed

    def _view_of(self, problems: Mapping[int, tuple[str, str]]) -> DrainView:
        """What is left: ledgers whose record names the bookie, or cannot be read, and those that are not proved."""
        waiting: dict[int, str] = {}
        hopeless = dict(self._unreadable)
        for ledger_id in self._unproved:
            kind, text = problems.get(ledger_id, ("", self._not_whole.get(ledger_id, "")))
            if kind == Hindrance.LOST:
                hopeless[ledger_id] = text
            elif ledger_id in self._no_target:
                hopeless[ledger_id] = self._no_target[ledger_id]
            elif kind or text:
                waiting[ledger_id] = text
        return DrainView(len(self._unproved | self._unreadable.keys()), waiting, hopeless)

    def facts(self, now_s: float) -> dict[str, Any]:
        """How far it is, as values of JSON."""
        progress = self._progress
        eta_s = progress.eta_s(now_s)
        is_quiet = self.phase in (Phase.UNREAD, Phase.COPYING, Phase.PROVING)
        doing = "copying" if self._left else "reading the copies"
        facts: dict[str, Any] = {
            "phase": doing if is_quiet else "waiting until it takes no entries",
            "problem": self.problem,
            "ledgers": progress.total,
            "ledgers_left": progress.left,
            "bytes": progress.bytes_total,
            "bytes_left": progress.bytes_left,
            "ledgers_per_minute": round(progress.per_minute(now_s), 1),
            "eta_s": None if eta_s is None else round(eta_s),
        }
        for name, ledgers in (("waiting", self._view.waiting), ("hopeless", self._view.hopeless)):
            facts[name] = len(ledgers)
            facts[f"{name}_ledgers"] = {
                str(ledger_id): ledgers[ledger_id] for ledger_id in sorted(ledgers)[:_NAMED_MAX]
            }
        return facts
