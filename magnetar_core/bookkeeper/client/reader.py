"""Decisions of a reader: which bookie next, what an answer is worth. No IO.

Rules:

1. "Missing" is the verdict only if nothing else went wrong: a broken connection may hide the entry.
2. Missing and broken are told apart by class (`is_missing`), never by absence of an answer.
3. Of a batch the verified prefix is kept; a batch whose first entry is damaged is an error of that bookie.
4. A speculative request goes out only while none of the bookies asked so far has answered.
"""

from collections.abc import Callable, Sequence

from magnetar_core.bookkeeper.client.errors import (
    BookieUnavailable,
    BookKeeperError,
    DigestMismatch,
    NoSuchEntry,
    RemoteError,
    is_missing,
)
from magnetar_core.bookkeeper.client.quorum import Quorum
from magnetar_core.bookkeeper.wire.entry import EntryCodec, StoredEntry
from magnetar_core.runtime.types import Buffer


class FirstError:
    """Which of several replicas' errors is reported."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BookKeeperError | DigestMismatch | None = None

    def add(self, error: BookKeeperError | DigestMismatch) -> None:
        """Missing gives way to anything, "unavailable" to anything but missing; otherwise the first stays."""
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
        """Rule 4: all that were asked are still silent, and somebody is left."""
        return bool(self._left) and self._first_error.error is None

    @property
    def is_over(self) -> bool:
        return not self._left and not self._waiting

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def on_error(self, index: int, error: BookKeeperError | DigestMismatch) -> None:
        self._waiting.discard(index)
        self._first_error.add(error)

    @property
    def error(self) -> BookKeeperError | DigestMismatch:
        """The verdict after everybody failed."""
        assert self._first_error.error is not None
        return self._first_error.error


def read_order(
    quorum: Quorum, entry_id: int, ensemble: Sequence[str], rank: Callable[[str], int], start: int | None = None
) -> list[int]:
    """Positions to ask for *entry_id*: the write set's order (or from *start* on, if all hold everything),
    healthier bookies (smaller *rank*) first."""
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
    negatives. Where bookies are silent and neither is reached, one holder is enough, as it is for a recovery.
    """

    __slots__ = ("_answers", "_first_error", "_held", "_missing", "_quorum")

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._held = self._missing = self._answers = 0
        self._first_error = FirstError()

    def on_answer(
        self, answer: StoredEntry | BookKeeperError | DigestMismatch
    ) -> bool | BookKeeperError | DigestMismatch | None:
        """True: it is. False: it was never acknowledged. An error: nobody who answers knows. None: not decided."""
        self._answers += 1
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
        if self._held:
            return True
        # Qw negatives are always enough, so somebody said something else.
        assert self._first_error.error is not None
        return self._first_error.error


__all__ = ["FirstError", "HeldCount", "NoSuchEntry", "ReplicaWalk", "open_batch", "read_order"]
