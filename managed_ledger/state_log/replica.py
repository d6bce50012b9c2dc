"""One node's copy of the state: which entry may be folded next, and what it does. No IO and no clock.

Rules:

1. Entries are folded in the order of the log, each once; the position never moves back (I118).
2. A ledger is left only where it is closed, and only behind its last entry (I126). The next one begins with entry 0.
3. Each ledger begins with a header of the term and the first number that the list has; edits are numbered without a
   gap. Anything else is damage, and nothing is folded any more.
4. `apply` gets the edit and the time that stands in it; nothing here gives it a clock (I119).
5. If `apply` raises, nothing is folded any more (I127): part of the edit may be in the state.
6. An edit whose token is known is not applied again; one whose token is too old is not applied at all (I125).
"""

import hashlib
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from managed_ledger.position import Position
from managed_ledger.state_log.edits import TOKENS_KEPT, Edit, Header, Marker, Record, Token
from managed_ledger.state_log.errors import ApplyFailed, LogDamaged, LogStopped
from managed_ledger.state_log.log.log_list import ListedLedger
from managed_ledger.state_log.snapshots.format import Snapshot, encode_snapshot


class Role(Enum):
    """The role of a node in its log."""

    FOLLOWER = "follower"
    """Tails the log; what is read here may be stale."""
    PROMOTING = "promoting"
    """Fences the log and reads it to its end."""
    LEADER = "leader"
    """Writes the log."""
    STOPPED = "stopped"
    """Closed, or stopped by an error."""


class StateMachine(Protocol):
    """What is replicated. All methods are called on the event loop, and must be deterministic (I119): the same edits
    make the same state, and the same state the same bytes, on every node and whenever they run."""

    def apply(self, edit: bytes, time_ms: int) -> Any:
        """Change the state; what is returned goes to whoever proposed the edit. *time_ms* is the time of the edit, in
        milliseconds since 1970. An exception stops the node for good: refuse bad edits by what you return."""
        ...

    def snapshot(self) -> bytes:
        """The whole state as bytes."""
        ...

    def restore(self, state: bytes) -> None:
        """Replace the state by what `snapshot` returned."""
        ...


class Verdict(Enum):
    APPLIED = "applied"
    DUPLICATE = "duplicate"
    """An edit with the same token was applied before."""
    EXPIRED = "expired"
    """Whether an edit with the same token was applied is not known any more; this one was not."""


class Applied(NamedTuple):
    """What became of an edit."""

    number: int
    """Its number; for a duplicate that of the edit that was applied."""
    result: Any
    """What `apply` returned; None for what was not applied now."""
    verdict: Verdict = Verdict.APPLIED


_BEFORE_FIRST: Final = Position(-1, -1)


class Replica:
    """The fold of a log into a state machine."""

    def __init__(self, machine: StateMachine, name: str) -> None:
        self._machine = machine
        self._name = name
        self.log = ""
        """The id of the log; empty before the first ledger."""
        self.position = _BEFORE_FIRST
        """The last entry that was folded; entry -1 of a ledger that was just entered."""
        self.number = 0
        """The last edit that was folded."""
        self.time_ms = 0
        self.term = 0
        self.tokens: dict[bytes, int] = {}
        """Token → number of its edit, oldest first; of the last TOKENS_KEPT edits."""
        self.error: LogStopped | None = None
        """Why nothing is folded any more."""

    def enter(self, ledger: ListedLedger) -> None:
        """Go on with *ledger*: the first, or the one behind the ledger that was left. Raises LogDamaged."""
        if ledger.first_number != self.number + 1 or ledger.term < self.term:
            raise self._damaged(f"ledger {ledger.ledger_id} begins with edit {ledger.first_number}, term {ledger.term}")
        self.position = Position(ledger.ledger_id, -1)
        self.term = ledger.term

    def may_leave(self, last_entry_id: int) -> bool:
        """The present ledger is closed, and *last_entry_id* is its last entry: it was folded (I126).

        Raises LogDamaged: more was folded than the ledger has.
        """
        if self.position.entry_id > last_entry_id:
            raise self._damaged(f"the ledger was closed at entry {last_entry_id}")
        return self.position.entry_id == last_entry_id

    def fold(self, position: Position, record: Record) -> Applied | None:
        """Fold the next entry. Returns what became of an edit. Raises LogDamaged, ApplyFailed."""
        if self.error is not None:
            raise self.error
        expected = Position(self.position.ledger_id, self.position.entry_id + 1)
        if position != expected:
            raise self._damaged(f"entry {position} came, expected {expected}")
        applied = None
        match record:
            case Header(term, first_number, _):
                if position.entry_id != 0 or term != self.term or first_number != self.number + 1:
                    raise self._damaged(f"{position} is the header of term {term}, edit {first_number}")
            case Marker(number):
                if position.entry_id == 0 or number != self.number:
                    raise self._damaged(f"{position} is a marker behind edit {number}")
            case Edit(number):
                if position.entry_id == 0 or number != self.number + 1:
                    raise self._damaged(f"{position} is edit {number}")
                applied = self._apply(record)
        self.position = position
        return applied

    def _apply(self, edit: Edit) -> Applied:
        seen = self.tokens.get(edit.token.id)
        if seen is not None:
            applied = Applied(seen, None, Verdict.DUPLICATE)
        elif edit.number > edit.token.since + TOKENS_KEPT:
            applied = Applied(edit.number, None, Verdict.EXPIRED)
        else:
            try:
                applied = Applied(edit.number, self._machine.apply(edit.payload, edit.time_ms))
            except Exception as error:
                self.error = ApplyFailed(f"{self._name}: edit {edit.number} could not be applied: {error!r}")
                raise self.error from error
            self.tokens[edit.token.id] = edit.number
        self.number = edit.number
        self.time_ms = edit.time_ms
        while self.tokens:
            oldest = next(iter(self.tokens))
            if self.tokens[oldest] > edit.number - TOKENS_KEPT:
                break
            del self.tokens[oldest]
        return applied

    def find_applied(self, token: Token) -> Applied | None:
        """What became of the edit with *token*; None: it is not known to be applied."""
        seen = self.tokens.get(token.id)
        return None if seen is None else Applied(seen, None, Verdict.DUPLICATE)

    def snapshot(self) -> Snapshot:
        """Exactly the effects of the edits up to `number` (I120). Raises LogStopped after an error."""
        if self.error is not None:
            raise self.error
        return Snapshot(
            self.log, self.position, self.number, self.time_ms, self.term, tuple(self.tokens.items()),
            bytes(self._machine.snapshot()),
        )  # fmt: skip

    def restore(self, snapshot: Snapshot) -> None:
        """Go on behind *snapshot*, which is ahead of this replica. Raises LogDamaged, ApplyFailed."""
        if self.log not in ("", snapshot.log):
            raise self._damaged(f"a snapshot of log {snapshot.log} came")
        assert snapshot.number >= self.number, "the state never moves back"
        try:
            self._machine.restore(snapshot.state)
        except Exception as error:
            self.error = ApplyFailed(f"{self._name}: the snapshot at edit {snapshot.number} failed: {error!r}")
            raise self.error from error
        self.log = snapshot.log
        self.position = snapshot.position
        self.number = snapshot.number
        self.time_ms = snapshot.time_ms
        self.term = snapshot.term
        self.tokens = dict(snapshot.tokens)

    def state_hash(self) -> str:
        """Equal on all nodes that have folded the same edits (I119)."""
        snapshot = self.snapshot()._replace(position=_BEFORE_FIRST, term=0)
        return hashlib.sha256(encode_snapshot(snapshot)).hexdigest()

    def _damaged(self, text: str) -> LogDamaged:
        self.error = LogDamaged(f"{self._name}: at {self.position}, edit {self.number}, term {self.term}: {text}")
        return self.error
