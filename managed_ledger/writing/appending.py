"""Entries that are queued for or pending at a topic's present ledger, and the states. No IO and no clock.

           queued                pending                      stored
    append ──────▶ next_run … on_sent ──────▶ on_acknowledged ──────▶ to the AppendListener
              ▲                          │
              └──── on_write_failed ─────┘

Rules:

1. Entries come out in the order in which they came in, each exactly once: by `on_acknowledged`, `take_refused` or
   `end`. Entries that wait during a rollover or after a failed write are sent, in order, to the next ledger.
2. CLOSED and FENCED are final.
3. At most one rollover is under way. A ledger that is closed or being closed has nothing pending, so a failure that
   its handle reports late changes nothing.

    CREATING ──▶ OPENED ──full──▶ CLOSING ──all answered──▶ CREATING
                   │  ├──write failed──▶ WRITE_FAILED ─────▶ CREATING
                   │  └──▶ TERMINATING ──not stored────────▶ CREATING
                   │             └──stored──▶ TERMINATED
                   └──▶ CLOSED, FENCED   (final)

(The states are those of Apache's `ManagedLedgerImpl`.)
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from magnetar_core.runtime.types import Buffer, bare
from managed_ledger.errors import ManagedLedgerClosed, ManagedLedgerError, ManagedLedgerFenced
from managed_ledger.retention import RolloverRule, is_full

# Entries that are handed to the ledger at once. More may be queued after a rollover than the handle takes
# (maxPendingAddsPerLedger); the rest follows as answers come.
SEND_RUN_MAX: Final = 10_000


class AppendListener(Protocol):
    """Gets the answers of appends. All calls come on the event loop, never from inside `append`."""

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Any]) -> None:
        """Entries with consecutive ids are on the ack quorum; *contexts* are those given with them, in order."""
        ...

    def on_append_failed(self, contexts: Sequence[Any], error: ManagedLedgerError) -> None:
        """These entries are not acknowledged. Whether they become readable is not known."""
        ...

    def on_closed(self, error: ManagedLedgerError) -> None:
        """The managed ledger cannot be used any more. It may be opened again by the owner of the topic."""
        ...


class NoListener:
    """Ignores all answers: for a managed ledger whose user has left."""

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Any]) -> None:
        pass

    def on_append_failed(self, contexts: Sequence[Any], error: ManagedLedgerError) -> None:
        pass

    def on_closed(self, error: ManagedLedgerError) -> None:
        pass


class State(Enum):
    """The states, as Pulsar's statistics name them."""

    OPENED = "LedgerOpened"
    CLOSING = "ClosingLedger"
    CREATING = "CreatingLedger"
    WRITE_FAILED = "WriteFailed"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    CLOSED = "Closed"
    FENCED = "Fenced"


TAKES_APPENDS: Final = frozenset({State.OPENED, State.CLOSING, State.CREATING, State.WRITE_FAILED, State.TERMINATING})
_FINAL: Final = frozenset({State.CLOSED, State.FENCED})
_WRITTEN: Final = frozenset({State.OPENED, State.CLOSING, State.TERMINATING})


class Step(Enum):
    """What is to be done next."""

    NOTHING = "wait for answers"
    SEND = "hand over what `next_run` gives"
    NEXT_LEDGER = "close the present ledger and begin another one"
    SEND_WHEN_WRITABLE = "send when a bookie has taken what waits for it"
    GIVE_UP = "the limits leave no room for a single entry"


class Stored(NamedTuple):
    """Entries of the present ledger, from entry *first* on, that their ack quorum has just confirmed."""

    first: int
    payloads: list[Buffer]
    contexts: list[Any]


class Appending:
    """The entries on their way into one topic, each with the context that was given with it."""

    def __init__(self) -> None:
        self.state = State.CREATING
        self.error: ManagedLedgerError | None = None
        """Why no appends are taken any more; set by `end`."""
        self.entries_added = 0
        self.acked_bytes = 0
        """Payload bytes of the present ledger that are acknowledged."""
        # How many entries are sent at once while the queue is emptied; fewer after the ledger refused a run.
        self._run_max = SEND_RUN_MAX
        # Entries sent to the present ledger and not answered yet, from entry _pending_first on; and entries not sent.
        # Lists: many come and go at once, and an empty deque takes 760 bytes, of which a quiet topic has no use.
        self._pending: list[tuple[Buffer, Any]] = []
        self._pending_first = 0
        self._queued: list[tuple[Buffer, Any]] = []
        self._sent = 0
        self._sent_bytes = 0

    @property
    def takes_appends(self) -> bool:
        return self.state in TAKES_APPENDS

    @property
    def is_ended(self) -> bool:
        return self.state in _FINAL

    @property
    def has_pending(self) -> bool:
        """Whether entries sent to the present ledger are not answered yet."""
        return bool(self._pending)

    @property
    def count(self) -> int:
        """Appends that are not answered yet."""
        return len(self._pending) + len(self._queued)

    @property
    def is_written(self) -> bool:
        """Whether a failure of the present ledger changes anything (rule 3)."""
        return self.state in _WRITTEN and not (self.state is State.TERMINATING and not self._pending)

    def check_not_fenced(self) -> None:
        """Raises ManagedLedgerFenced if another owner took over."""
        if self.state is State.FENCED:
            raise ManagedLedgerFenced(str(self.error))

    def check_not_ended(self) -> None:
        """Raises ManagedLedgerFenced or ManagedLedgerClosed in a final state."""
        self.check_not_fenced()
        if self.state is State.CLOSED:
            raise ManagedLedgerClosed(str(self.error))

    def refusal(self) -> ManagedLedgerError:
        """The error of an append that comes after `end`."""
        assert self.error is not None, f"{self.state} takes no appends, and there is no reason"
        return bare(self.error)

    # ------------------------------------------------------------------------------ on the way in

    def append(self, run: Sequence[Buffer], contexts: Sequence[Any]) -> bool:
        """Queue entries; returns whether they can be sent now."""
        self._queued.extend(zip(run, contexts, strict=True))
        return self.state is State.OPENED

    def next_run(self, rule: RolloverRule, age_ms: int) -> list[tuple[Buffer, Any]] | None:
        """Entries to hand to the present ledger, which is *age_ms* old; empty: nothing is queued; None: it is full.

        The entries stay queued until `on_sent`.
        """
        queued = self._queued
        room = 0
        if not is_full(rule, self._sent, self._sent_bytes, age_ms):
            if not queued:
                self._run_max = SEND_RUN_MAX
                return []
            room = len(queued) if age_ms < rule.age_min_ms else rule.entries_max - self._sent
        if room <= 0:
            self._run_max = SEND_RUN_MAX
            return None
        return queued[: min(room, self._run_max)]

    def on_sent(self, run: Sequence[tuple[Buffer, Any]], size_bytes: int) -> None:
        """The ledger has taken *run*, the last that `next_run` gave; its payloads have *size_bytes* together."""
        del self._queued[: len(run)]
        self._pending.extend(run)
        self._sent += len(run)
        assert len(self._pending) <= self._sent, (len(self._pending), self._sent)
        self._sent_bytes += size_bytes

    def on_too_many(self, count: int, *, is_blocked: bool) -> Step:
        """The ledger has no room for a run of *count* entries; *is_blocked*: a bookie has not taken what it was sent.

        With SEND, `next_run` gives a shorter run.
        """
        if not self._pending and not is_blocked and count > 1:
            self._run_max = count // 2
            return Step.SEND
        self._run_max = SEND_RUN_MAX
        if self._pending:
            return Step.NOTHING  # the next answer makes room
        return Step.SEND_WHEN_WRITABLE if is_blocked else Step.GIVE_UP

    def take_refused(self, count: int) -> list[Any]:
        """The ledger refused a run of *count* entries, since one of them is too large.

        A run of one: returns the context of the entry, which no other ledger would take either. A longer run: returns
        nothing, and entries are sent one by one from here on, to find the one that is too large.
        """
        self._run_max = 1
        if count > 1:
            return []
        _, context = self._queued.pop(0)
        return [context]

    # --------------------------------------------------------------------------------- answers

    def on_acknowledged(self, up_to: int) -> Stored | None:
        """All entries of the present ledger up to *up_to* are acknowledged; None if that was known."""
        if not self._pending:
            return None
        first = self._pending_first
        count = up_to - first + 1
        assert 0 <= count <= len(self._pending), (up_to, first, len(self._pending))
        if not count:
            return None
        done = self._pending[:count]
        del self._pending[:count]
        payloads = [data for data, _ in done]
        self._pending_first += count
        assert self._pending_first == up_to + 1, (self._pending_first, up_to)
        self.acked_bytes += sum(map(len, payloads))
        self.entries_added += count
        return Stored(first, payloads, [context for _, context in done])

    def next_step(self) -> Step:
        """What to do after entries were acknowledged."""
        if self.state is State.OPENED:
            return Step.SEND if self._queued else Step.NOTHING
        if self.state is State.CLOSING and not self._pending:
            self.state = State.CREATING
            return Step.NEXT_LEDGER
        return Step.NOTHING

    def on_write_failed(self) -> None:
        """The present ledger failed; entries that it did not acknowledge will be sent to the next one."""
        assert self.is_written, self.state
        self.state = State.WRITE_FAILED
        self._queued[:0] = self._pending  # rule 1: sent again, before what came later
        self._pending.clear()

    # ------------------------------------------------------------------------- from ledger to ledger

    def is_full(self, rule: RolloverRule, age_ms: int, idle_ms: int = 0) -> bool:
        """Whether the present ledger, which is *age_ms* old, is to be closed; nothing came for *idle_ms*."""
        return self.state is State.OPENED and is_full(rule, self._sent, self._sent_bytes, age_ms, idle_ms)

    def begin_rollover(self) -> Step:
        """Send nothing more to the present ledger."""
        assert self.state is State.OPENED, self.state
        self.state = State.CLOSING
        return self.next_step()

    def on_ledger_closed(self) -> None:
        """The present ledger counts among the closed ones from here on."""
        assert not self._pending, f"{len(self._pending)} entries of a closed ledger are not answered"
        self.acked_bytes = 0

    def creating(self) -> None:
        """A new ledger is being made; what comes meanwhile waits."""
        assert self.state in TAKES_APPENDS, self.state
        self.state = State.CREATING

    def on_ledger_begun(self) -> None:
        """There is a new ledger, and nothing was sent to it."""
        assert not self._pending, f"{len(self._pending)} entries of the former ledger are not answered"
        self._sent = self._sent_bytes = self.acked_bytes = self._pending_first = 0
        self._run_max = SEND_RUN_MAX

    def open(self) -> None:
        """The present ledger may be written."""
        assert self.state is State.CREATING, self.state
        self.state = State.OPENED

    def begin_termination(self) -> None:
        """Send nothing more; pending entries are still answered."""
        assert self.state is State.OPENED, self.state
        self.state = State.TERMINATING

    def end(self, state: State, error: ManagedLedgerError) -> list[Any]:
        """Take nothing any more, after *error*. Returns the contexts of all unanswered entries; the caller answers."""
        assert state not in TAKES_APPENDS, state
        assert self.state not in _FINAL, f"{self.state} is final, and not followed by {state}"
        self.state = state
        self.error = bare(error)
        contexts = [context for _, context in self._pending] + [context for _, context in self._queued]
        self._pending.clear()
        self._queued.clear()
        return contexts
