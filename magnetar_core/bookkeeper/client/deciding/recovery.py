"""How another client finds out where a ledger ends. No IO.

    OPEN ──CAS──▶ IN_RECOVERY
      fence: READ(-1, fencing) to all bookies of the last segment, until coverage          FencingRound
      floor: max(best LAC, first entry of the last segment - 1)
      read entry LAC + 1, LAC + 2, … with the fence flag, all of a write set at once       RecoveryRead
        found on one bookie  → written back to the whole write set, next
        Qw - Qa + 1 negatives → it was never acknowledged: the ledger ends before it
        neither               → recovery fails; nothing was changed, try again
    IN_RECOVERY ──CAS──▶ CLOSED, with the ensembles that writing back had to replace

Rules (I11 to I18):

1. Reads begin only after coverage: no ack quorum of bookies is left that would still take the writer's adds.
2. Only explicit negatives count as absence. Silence, errors, damage and limbo are unknown.
3. Every recovery read fences, so a bookie that denies the entry cannot take it afterwards.
4. All reads go to the last segment as it was when recovery began, whatever writing back replaces.
5. Metadata does not change between IN_RECOVERY and CLOSED.
"""

from dataclasses import dataclass
from typing import TypeAlias

from magnetar_core.bookkeeper.client.deciding.quorum import Quorum
from magnetar_core.bookkeeper.client.deciding.reader import FirstError
from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    DigestMismatch,
    RecoveryFailed,
    Unauthorized,
    is_missing,
)
from magnetar_core.bookkeeper.wire.entry import StoredEntry

Answer: TypeAlias = StoredEntry | BookKeeperError | DigestMismatch
"""What a bookie answered: the entry, or an error (missing included)."""


@dataclass(frozen=True, slots=True)
class LastConfirmed:
    """Enough bookies answered. *length* is that of the entry which carried the LAC, a later one, so it is only a
    hint."""

    last_add_confirmed: int
    length: int


@dataclass(frozen=True, slots=True)
class Undecidable:
    """All bookies answered or failed, and the answers do not decide it."""

    error: BookKeeperError | DigestMismatch


class FencingRound:
    """READ(-1) to every bookie of the last segment. Answers count alike with the fence flag and without it."""

    __slots__ = ("_answered", "_best_lac", "_best_length", "_first_error", "_quorum", "_valid", "heard")

    def __init__(self, quorum: Quorum, first_entry_id: int) -> None:
        """*first_entry_id*: where the last segment begins; every entry before it is confirmed."""
        self._quorum = quorum
        self._best_lac = first_entry_id - 1
        self._best_length = 0
        self.heard = 0
        self._answered = 0
        self._valid = False
        self._first_error = FirstError()

    def on_answer(self, index: int, answer: Answer) -> LastConfirmed | Undecidable | None:
        bit = 1 << index
        assert not self._answered & bit, "a bookie answered twice"
        self._answered |= bit
        if isinstance(answer, StoredEntry):
            self.heard |= bit
            self._valid = True
            if answer.last_add_confirmed > self._best_lac:
                self._best_lac = answer.last_add_confirmed
                self._best_length = answer.length
        elif is_missing(answer):
            self.heard |= bit
            self._valid = True
            self._first_error.add(answer)
        elif isinstance(answer, Unauthorized):
            return Undecidable(answer)
        else:
            if isinstance(answer, DigestMismatch):
                self.heard |= bit  # the bookie answered, so it is fenced; only its LAC is unknown
            self._first_error.add(answer)
        if self._valid and self._quorum.is_covered(self.heard):
            return LastConfirmed(self._best_lac, self._best_length)
        if self._answered.bit_count() == self._quorum.ensemble_size:
            assert self._first_error.error is not None
            return Undecidable(self._first_error.error)
        return None


@dataclass(frozen=True, slots=True)
class Found:
    entry: StoredEntry


@dataclass(frozen=True, slots=True)
class Absent:
    """The entry was never acknowledged."""


class RecoveryRead:
    """ClientReceivesRecoveryReadResponse for one entry: one positive answer is enough, a negative needs
    Qw - Qa + 1 of them."""

    __slots__ = ("_answers", "_first_error", "_missing", "_quorum", "entry_id")

    def __init__(self, quorum: Quorum, entry_id: int) -> None:
        self._quorum = quorum
        self.entry_id = entry_id
        self._missing = 0
        self._answers = 0
        self._first_error = FirstError()

    def on_answer(self, answer: Answer) -> Found | Absent | Undecidable | None:
        self._answers += 1
        assert self._answers <= self._quorum.write, "more answers than bookies in the write set"
        if isinstance(answer, StoredEntry):
            return Found(answer)
        if is_missing(answer):
            self._missing += 1
            if self._missing >= self._quorum.absence:
                return Absent()
        else:
            self._first_error.add(answer)
        if self._answers == self._quorum.write:
            error = self._first_error.error
            # Qw negatives are always enough, so at least one answer was an error.
            assert error is not None
            return Undecidable(error)
        return None


def recovery_error(ledger_id: int, doing: str, error: BaseException) -> BookKeeperError:
    """What the caller of a failed recovery gets: Unauthorized as it is, everything else as RecoveryFailed."""
    if isinstance(error, Unauthorized | RecoveryFailed):
        return error
    return RecoveryFailed(f"ledger {ledger_id}: {doing}: {error}")
