"""Decisions of a reader: which bookie it asks next, and what an answer proves. No IO.

Rules:

1. "Missing" is the verdict only if no replica had another error: the bookie behind a broken connection may hold the
   entry.
2. Missing and broken are told apart by the class of the error (`is_missing`), never by the absence of an answer.
3. The verified prefix of a batch is kept. A batch whose first entry is damaged is an error of that bookie.
4. A speculative request goes out only while none of the bookies asked so far has answered.
"""

from collections.abc import Callable, Sequence

from magnetar_core.bookkeeper.client.deciding.quorum import Quorum
from magnetar_core.bookkeeper.client.errors import (
    BookieUnavailable,
    BookKeeperError,
    DigestMismatch,
    NoSuchEntry,
    RemoteError,
    is_missing,
)
from magnetar_core.bookkeeper.wire.entry import EntryCodec, StoredEntry
from magnetar_core.runtime.types import Buffer


class FirstError:
    """Chooses which of several replicas' errors is reported."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BookKeeperError | DigestMismatch | None = None

    def add(self, error: BookKeeperError | DigestMismatch) -> None:
        """Any error replaces "missing"; any error but "missing" replaces "unavailable". Otherwise the first one
        stays."""
        if (
            self.error is None
            or is_missing(self.error)
            or (isinstance(self.error, BookieUnavailable) and not is_missing(error))
        ):
            self.error = error


class ReplicaWalk:
    """The replicas of one read (an entry, or a run that starts with it), one after the other."""

    __slots__ = ("_first_error", "_left", "_waiting")

    def __init__(self, order: Sequence[int]) -> None:
        self._left = list(reversed(order))
        self._waiting: set[int] = set()
        self._first_error = FirstError()

    def next(self) -> int | None:
        """The position to ask now; None if all were asked."""
        if not self._left:
            return None
        index = self._left.pop()
        self._waiting.add(index)
        return index

    @property
    def may_speculate(self) -> bool:
        """Rule 4: no bookie that was asked has answered, and there is one that was not asked."""
        return bool(self._left) and self._first_error.error is None

    @property
    def is_over(self) -> bool:
        """Every replica was asked and failed."""
        return not self._left and not self._waiting

    @property
    def is_waiting(self) -> bool:
        """A bookie was asked and has not answered."""
        return bool(self._waiting)

    def on_error(self, index: int, error: BookKeeperError | DigestMismatch) -> None:
        """The bookie at *index* failed, or does not have the entry."""
        assert index in self._waiting, "an answer of a bookie that was not asked"
        self._waiting.discard(index)
        self._first_error.add(error)

    @property
    def error(self) -> BookKeeperError | DigestMismatch:
        """The verdict after every replica failed."""
        assert self._first_error.error is not None
        return self._first_error.error


def read_order(
    quorum: Quorum, entry_id: int, ensemble: Sequence[str], rank: Callable[[str], int], start: int | None = None
) -> list[int]:
    """Positions to ask for *entry_id*, healthier bookies (smaller *rank*) first.

    Among equals the write set's order counts; if every bookie holds every entry, the order from *start* on.
    """
    order: Sequence[int] = quorum.write_set(entry_id)
    if start is not None and not quorum.is_striped:
        order = [(start + i) % quorum.ensemble_size for i in range(quorum.ensemble_size)]
    return sorted(order, key=lambda index: rank(ensemble[index]))


def open_batch(codec: EntryCodec, ledger_id: int, first_entry_id: int, raw: Sequence[Buffer]) -> list[StoredEntry]:
    """The verified prefix of a batch answer. Raises DigestMismatch if not even the first entry is good,
    NoSuchEntry for an answer without entries."""
    entries: list[StoredEntry] = []
    for at, data in enumerate(raw):
        try:
            entries.append(codec.open(data, ledger_id, first_entry_id + at))
        except DigestMismatch:
            if not entries:
                raise
            break
    if not entries:
        raise RemoteError(f"ledger {ledger_id} entry {first_entry_id}: a batch answer without entries")
    return entries


class HeldCount:
    """Whether an entry behind LAC is part of its ledger, asked without fencing (see `last_recoverable_entry`).

    The same answers count as in a recovery: an ack quorum of holders settles it, and so do Qw - Qa + 1 explicit
    negatives. Where bookies are silent and neither is reached, one holder is enough, as it is for a recovery; not where
    it has to be certain: to another recovery the silent ones may say that they do not have it.
    """

    __slots__ = ("_answers", "_first_error", "_held", "_is_certain", "_missing", "_quorum")

    def __init__(self, quorum: Quorum, *, is_certain: bool) -> None:
        self._quorum = quorum
        self._is_certain = is_certain
        self._held = self._missing = self._answers = 0
        self._first_error = FirstError()

    def on_answer(
        self, answer: StoredEntry | BookKeeperError | DigestMismatch
    ) -> bool | BookKeeperError | DigestMismatch | None:
        """True: it is part of the ledger. False: it was never acknowledged. An error: the answers cannot decide it.
        None: more answers are needed."""
        self._answers += 1
        assert self._answers <= self._quorum.write, "more answers than bookies in the write set"
        if isinstance(answer, StoredEntry):
            self._held += 1
        elif is_missing(answer):
            self._missing += 1
        else:
            self._first_error.add(answer)
        if self._held >= self._quorum.ack:
            return True
        if self._missing >= self._quorum.absence:
            return False
        if self._answers < self._quorum.write:
            return None
        if self._held and not self._is_certain:
            return True
        # Of Qw answers without an error so many are negative, or positive, that it is decided.
        assert self._first_error.error is not None
        return self._first_error.error


__all__ = ["FirstError", "HeldCount", "NoSuchEntry", "ReplicaWalk", "open_batch", "read_order"]
