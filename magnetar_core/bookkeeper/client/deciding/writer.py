"""The state machine of a ledger's writer. No IO and no clock: calls go in, effects come out.

Rules the code below keeps:

1. Entries are acknowledged in order, each once; LAC is the last of them and never goes back.
2. An add carries the LAC known when it was packed.
3. The barrier (I21): from the decision to change the ensemble until the change is known to be committed
   *and* the answers of every pending add are reduced to bookies of the new ensemble, nothing is acknowledged
   and LAC stands still. So LAC + 1 is the exact first entry of the new segment.
4. Answers, good or bad, of a bookie that is no longer at its position are ignored.
5. Answers are kept also for adds that have enough of them: an ensemble change can take some away again.
6. A failed add that has enough answers starts no ensemble change; the next add does.
7. After LedgerFenced, Unauthorized or ClientClosed nothing is acknowledged or sent any more, whatever arrives.
8. A position whose bookie cannot be replaced is left out, until its bookie is back or another one can take it. If some
   write set cannot reach its ack quorum then, the writer is starved: it holds pending entries for `hold_s`, and fails
   with NotEnoughBookies if nothing is acknowledged until then. It fails at once where only bookies that refuse its
   entries could help.
9. Bookies that still answer are left (`leave`) only with a successor for each of them, so this starves no writer.
10. While it is in doubt whether the ledger is still this writer's (`doubt`), answers count and nothing is acknowledged.

    OPEN ──fenced, unauthorized, too few bookies──▶ FAILED
     └───────────────close────────────────────────▶ CLOSED

Recovery uses the same machine for writing back: its adds carry RECOVERY_ADD, and its ensemble changes are only
remembered until the ledger is closed (I18).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from magnetar_core.bookkeeper.client.deciding.quorum import Quorum
from magnetar_core.bookkeeper.client.errors import (
    BookieReadOnly,
    BookKeeperError,
    ClientClosed,
    EntryTooLarge,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    Unauthorized,
)
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState
from magnetar_core.bookkeeper.wire.codec_v2 import FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, add_request_head
from magnetar_core.bookkeeper.wire.entry import HEADER_BYTES, EntryCodec
from magnetar_core.bookkeeper.wire.framing import MAX_FRAME_BYTES
from magnetar_core.runtime.types import Buffer, bare

# How often positions without a bookie are looked at again. They are also looked at whenever the set of registered
# bookies changes.
LEFT_OUT_S: Final = 2.0

# First word and master key: the bytes before the stored entry in an add's frame.
_ADD_OVERHEAD_BYTES: Final = 24


class State(Enum):
    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


class PendingAdd:
    """An entry that is not acknowledged yet. *length*: the ledger's payload bytes up to this entry, itself included."""

    __slots__ = ("answered", "entry_id", "head", "length", "payload")

    def __init__(self, entry_id: int, length: int, head: bytes, payload: Buffer) -> None:
        self.entry_id = entry_id
        self.length = length
        self.head = head
        """Frame head, entry header and digest. The payload follows as a separate buffer, so it is not copied."""
        self.payload = payload
        self.answered = 0
        """Positions that confirmed it, as a bit mask."""


class Acknowledge(NamedTuple):
    """All entries up to this one are on their ack quorum."""

    up_to: int


@dataclass(frozen=True, slots=True)
class ChangeEnsemble:
    """Replace the bookies at these positions: choose others, publish them, then call `on_ensemble_changed`. The barrier
    is up until then."""

    failed: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Failed:
    """The writer has failed; no entry after LAC will be acknowledged."""

    error: BookKeeperError


class Leave(NamedTuple):
    """These bookies take no entries any more: choose others, and `leave` those that can be replaced."""

    leaving: Mapping[int, str]


class Held(NamedTuple):
    """The writer is starved, and holds its entries from now on; for the log."""

    error: BookKeeperError


Effect: TypeAlias = Acknowledge | ChangeEnsemble | Failed | Leave | Held


@dataclass(frozen=True, slots=True)
class Changed:
    """An ensemble change is over. Send *resend* (position → adds) to the new bookies, then carry out *effect*."""

    resend: Mapping[int, Sequence[PendingAdd]]
    effect: Effect | None


class LedgerWriter:
    """The writer's side of one ledger."""

    __slots__ = (
        "_ack",
        "_codec",
        "_delayed",
        "_flags",
        "_frame_bytes_max",
        "_hold_s",
        "_leaving",
        "_left_out",
        "_masks",
        "_master_key",
        "_pending",
        "_replacing",
        "_size",
        "_starved_until_s",
        "confirmed_length",
        "due_s",
        "ensemble",
        "error",
        "is_changing",
        "is_doubted",
        "last_add_confirmed",
        "last_add_pushed",
        "ledger_id",
        "length",
        "quorum",
        "refusing",
        "state",
    )

    def __init__(
        self,
        ledger_id: int,
        quorum: Quorum,
        ensemble: Sequence[str],
        codec: EntryCodec,
        master_key: bytes,
        *,
        last_add_confirmed: int = -1,
        length: int = 0,
        recovery: bool = False,
        hold_s: float = 0.0,
        frame_bytes_max: int = MAX_FRAME_BYTES,
    ) -> None:
        """*hold_s*: how long entries are held while the writer is starved. *frame_bytes_max*: the largest frame that
        the bookies take."""
        assert len(ensemble) == quorum.ensemble_size
        self.ledger_id = ledger_id
        self.quorum = quorum
        self.ensemble = list(ensemble)
        self.state = State.OPEN
        self.error: BookKeeperError | None = None
        self.last_add_confirmed = last_add_confirmed
        self.last_add_pushed = last_add_confirmed
        self.length = length
        """Payload bytes of all entries, pending ones included."""
        self.confirmed_length = length
        self._codec = codec
        self._master_key = master_key
        self._frame_bytes_max = frame_bytes_max
        self._flags = FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY if recovery else 0
        # By entry id: exactly LAC + 1 … last_add_pushed, in order.
        self._pending: dict[int, PendingAdd] = {}
        self._ack = quorum.ack
        self._size = quorum.ensemble_size
        self._masks = quorum.masks
        self.is_changing = False
        self.is_doubted = False
        self._replacing: dict[int, str] = {}
        # Position → bookie of failures that wait for the next change: failures during a change, and those of rule 6.
        self._delayed: dict[int, str] = {}
        # Positions without a living bookie (rule 8).
        self._left_out: dict[int, str] = {}
        self._hold_s = hold_s
        # When a starved writer fails. None while it has enough bookies; an acknowledgement resets it.
        self._starved_until_s: float | None = None
        # When `tick` is to be called next.
        self.due_s: float | None = None
        # Bookies that are writable, and refuse entries of this ledger.
        self.refusing: set[str] = set()
        # Positions of read-only bookies about which nothing was done yet (rule 9).
        self._leaving: dict[int, str] = {}

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def pending_bytes(self) -> int:
        return self.length - self.confirmed_length

    def is_open(self) -> bool:
        """Whether entries can be added."""
        return self.state is State.OPEN

    def doubt(self) -> None:
        """Acknowledge nothing until `trust` (rule 10)."""
        self.is_doubted = True

    def trust(self) -> Acknowledge | None:
        """The record says that the ledger is this writer's. Returns what became acknowledged by that."""
        self.is_doubted = False
        return self._advance() if self.state is State.OPEN else None

    @property
    def left_out(self) -> Mapping[int, str]:
        """Positions whose bookie is gone and could not be replaced."""
        return self._left_out

    def add(self, payloads: Sequence[Buffer]) -> list[PendingAdd]:
        """Take a run of entries. The caller sends each to its write set, except to the positions in `skipped`.

        Raises the error the writer failed with, LedgerClosed, EntryTooLarge; then no entry was taken.
        """
        if self.state is not State.OPEN:
            assert self.error is not None
            raise bare(self.error)
        ledger_id, lac = self.ledger_id, self.last_add_confirmed
        entry_id, length = self.last_add_pushed, self.length
        head_of, flags, key = self._codec.head, self._flags, self._master_key
        overhead = HEADER_BYTES + self._codec.digest_bytes
        size_max = self._frame_bytes_max - _ADD_OVERHEAD_BYTES - overhead
        run = []
        for payload in payloads:
            size = len(payload)
            if size > size_max:
                raise EntryTooLarge(f"ledger {ledger_id}: a payload of {size} bytes; the limit is {size_max}")
            entry_id += 1
            length += size
            head = head_of(ledger_id, entry_id, lac, length, payload)
            run.append(PendingAdd(entry_id, length, add_request_head(flags, key, overhead + size) + head, payload))
        self.last_add_pushed = entry_id
        self.length = length
        pending = self._pending
        for add in run:
            pending[add.entry_id] = add
        return run

    @property
    def skipped(self) -> Mapping[int, str]:
        """Positions to which nothing is sent now. A bookie that takes such a position, or comes back to it, gets all
        pending entries then."""
        return {**self._replacing, **self._left_out} if self._left_out else self._replacing

    def start_delayed_change(self) -> ChangeEnsemble | Leave | None:
        """After an add: what an earlier failure (rule 6) or a read-only bookie (rule 9) made necessary."""
        if not (self._delayed or self._leaving) or self.is_changing or self.state is not State.OPEN:
            return None
        if self._delayed:
            delayed, self._delayed = self._delayed, {}
            return self._start_change(delayed)
        leaving, self._leaving = self._leaving, {}
        return Leave(leaving)

    @property
    def present(self) -> dict[int, str]:
        """The bookies to which entries go, by position."""
        return {index: bookie for index, bookie in enumerate(self.ensemble) if index not in self._left_out}

    def on_bookies(self, writable: Set[str], read_only: Set[str]) -> None:
        """Which bookies are there: after they have changed, and after the ensemble has."""
        self.refusing &= writable  # others refuse everything for a while
        # A recovery stays: it is over soon, and remembers its changes only.
        self._leaving = (
            {} if self._flags else {at: bookie for at, bookie in self.present.items() if bookie in read_only}
        )

    def leave(self, indexes: Iterable[int]) -> ChangeEnsemble | None:
        """Replace the bookies at *indexes*, which still answer, since they are about to stop (rule 9). None if no
        change may begin now, or another one has to come first."""
        if self.state is not State.OPEN or self.is_changing or self._delayed:
            return None
        leaving = {index: self.ensemble[index] for index in indexes}
        assert not leaving.keys() & self._left_out.keys(), "a position without a bookie is left"
        return self._start_change(leaving) if leaving else None

    def on_added(self, index: int, bookie: str, entry_ids: Iterable[int]) -> Acknowledge | None:
        """The bookie at *index* confirmed entries. Returns what became acknowledged by that, if anything did."""
        if self.state is not State.OPEN or self.ensemble[index] != bookie:
            return None
        bit = 1 << index
        pending, masks, size = self._pending, self._masks, self._size
        for entry_id in entry_ids:
            add = pending.get(entry_id)
            if add is not None:
                # A bookie outside the write set was never asked; its answer does not count.
                add.answered |= bit & masks[entry_id % size]
        return self._advance()

    def on_failed(
        self, index: int, bookie: str, entry_ids: Iterable[int], error: BookKeeperError, is_writable: bool = False
    ) -> ChangeEnsemble | Failed | None:
        """The bookie at *index* did not take entries. *is_writable*: it takes those of others."""
        if is_writable and isinstance(error, BookieReadOnly):
            self.refusing.add(bookie)
        if self.state is not State.OPEN or self.ensemble[index] != bookie:
            return None
        if isinstance(error, LedgerFenced | Unauthorized | ClientClosed):
            return self._fail(error)
        if index in self._left_out or index in self._replacing:
            return None
        if self.is_changing or all(self._has_enough(entry_id) for entry_id in entry_ids):
            self._delayed[index] = bookie
            return None
        delayed, self._delayed = self._delayed, {}
        return self._start_change(delayed | {index: bookie})

    def new_segment(self, replacements: Mapping[int, str]) -> tuple[int, tuple[str, ...]]:
        """First entry and ensemble of the segment that begins with *replacements*. LAC + 1 is exact: the barrier is
        up."""
        assert self.is_changing
        ensemble = tuple(replacements.get(i, bookie) for i, bookie in enumerate(self.ensemble))
        assert len(set(ensemble)) == len(ensemble), f"a bookie twice in {ensemble}"
        return self.last_add_confirmed + 1, ensemble

    @property
    def is_starved(self) -> bool:
        """Some write set cannot reach its ack quorum until bookies come back or new ones register (rule 8)."""
        return not self.quorum.can_acknowledge_without(sum(1 << index for index in self._left_out))

    def _starved_error(self) -> NotEnoughBookies:
        names = ", ".join(sorted(self._left_out.values()))
        return NotEnoughBookies(f"ledger {self.ledger_id}: no bookie is left to replace {names}")

    def on_ensemble_changed(self, replacements: Mapping[int, str]) -> Changed:
        """The change is committed (with recovery: remembered). Positions not in it could not be replaced."""
        if self.state is not State.OPEN:
            return Changed({}, None)
        assert self.is_changing
        assert replacements.keys() <= self._replacing.keys()
        replaced = 0
        for index, bookie in replacements.items():
            self.ensemble[index] = bookie
            self._left_out.pop(index, None)
            replaced |= 1 << index
        # All answers of replaced bookies go before anything is acknowledged: the second half of the barrier (R-L9).
        for add in self._pending.values():
            add.answered &= ~replaced
        for index, bookie in self._replacing.items():
            if index not in replacements:
                self._left_out[index] = bookie
        self._replacing = {}
        resend = {index: self._lacking(index) for index in replacements}
        if self.is_starved and not self._hold_s:
            return Changed({}, self._fail(self._starved_error()))
        delayed, self._delayed = self._delayed, {}
        again = {
            index: bookie
            for index, bookie in delayed.items()
            if self.ensemble[index] == bookie and index not in self._left_out
        }
        self.is_changing = False
        if again:
            return Changed(resend, self._start_change(again))
        return Changed(resend, self._advance())

    def tick(self, now_s: float) -> Failed | Held | None:
        """After an ensemble change, and at `due_s` (rule 8)."""
        if self.state is not State.OPEN:
            return None
        self.due_s = now_s + LEFT_OUT_S if self._left_out else None
        if not self.is_starved:
            return None
        never = sum(1 << index for index, bookie in self._left_out.items() if bookie in self.refusing)
        if not self.quorum.can_acknowledge_without(never):
            self._starved_until_s = now_s
        if self._starved_until_s is None:
            self._starved_until_s = now_s + self._hold_s
            return Held(self._starved_error())
        return self._fail(self._starved_error()) if now_s >= self._starved_until_s else None

    def fill(self, usable: Set[str], successors: Callable[[Mapping[int, str]], Mapping[int, str]]) -> Changed:
        """For positions without a bookie: take a new bookie, or the old one if it is back. *usable*: bookies that are
        writable and can be reached; *successors*: those that may take positions."""
        if not self._left_out or self.is_changing or self.state is not State.OPEN:
            return Changed({}, None)
        usable = usable - self.refusing
        # A bookie that is there may still be none for this ledger: its group, rack or region may keep it out.
        if not usable <= {*self.ensemble} and successors(self._left_out):
            left_out, self._left_out = self._left_out, {}
            return Changed({}, self._start_change(left_out))
        back = [index for index, bookie in self._left_out.items() if bookie in usable]
        for index in back:
            del self._left_out[index]
        return Changed({index: self._lacking(index) for index in back}, None)

    def fail(self, error: BookKeeperError) -> Failed | None:
        """The shell found that the ledger cannot be written any more, as when its record is not OPEN. None if the
        writer has ended already."""
        return self._fail(error) if self.state is State.OPEN else None

    def close(self) -> tuple[int, int]:
        """Stop adding. Returns (last entry id, length) to seal the ledger with; pending entries are not part of it."""
        if self.state is State.OPEN:
            self.state = State.CLOSED
            self.error = LedgerClosed(f"ledger {self.ledger_id} is closed")
            self._drop_pending()
        return self.last_add_confirmed, self.confirmed_length

    def set_length(self, length: int) -> None:
        """For a recovery: the ledger's length before the next entry, as that entry carries it."""
        assert length >= 0
        if not self._pending:
            self.confirmed_length = length
        self.length = length

    def check_invariants(self) -> None:
        """For tests: what must hold between any two calls."""
        assert self.last_add_confirmed <= self.last_add_pushed
        if self.state is State.OPEN:
            assert list(self._pending) == list(range(self.last_add_confirmed + 1, self.last_add_pushed + 1))
        assert len(set(self.ensemble)) == len(self.ensemble)
        assert bool(self._replacing) <= self.is_changing
        if not (self.is_changing or self.is_doubted) and self._pending and self.state is State.OPEN:
            assert not self._has_enough(self.last_add_confirmed + 1), "an acknowledgement was forgotten"

    def _advance(self) -> Acknowledge | None:
        if self.is_changing or self.is_doubted:  # rules 3 and 10
            return None
        pending, ack = self._pending, self._ack
        confirmed = self.last_add_confirmed
        last = None
        # Oldest first, which is rule 1.
        while (add := pending.get(confirmed + 1)) is not None and add.answered.bit_count() >= ack:
            confirmed += 1
            del pending[confirmed]
            last = add
        if last is None:
            return None
        assert confirmed <= self.last_add_pushed, "an entry was acknowledged that was never sent"
        self.last_add_confirmed = confirmed
        self.confirmed_length = last.length
        self._starved_until_s = None
        return Acknowledge(confirmed)

    def _has_enough(self, entry_id: int) -> bool:
        add = self._pending.get(entry_id)
        return add is None or add.answered.bit_count() >= self._ack

    def _lacking(self, index: int) -> list[PendingAdd]:
        masks, size = self._masks, self._size
        return [
            add
            for add in self._pending.values()
            if masks[add.entry_id % size] >> index & 1 and not add.answered >> index & 1
        ]

    def _start_change(self, failed: dict[int, str]) -> ChangeEnsemble:
        assert not self.is_changing, "two ensemble changes at a time"
        assert failed, "an ensemble change without a failed bookie"
        self.is_changing = True
        self._replacing = failed
        return ChangeEnsemble(dict(failed))

    def _fail(self, error: BookKeeperError) -> Failed:
        self.state = State.FAILED
        self.error = bare(error)
        self._drop_pending()
        return Failed(error)

    def _drop_pending(self) -> None:
        self._pending.clear()
        self._delayed.clear()
        self._left_out.clear()
        self._replacing = {}
        self.is_changing = False
        self.length = self.confirmed_length


def judge_conflict(own: LedgerMetadata, stored: LedgerMetadata, ledger_id: int) -> LedgerMetadata:
    """Whether a writer whose update conflicted may continue from the record it found.

    Besides its creator, only re-replication may change the record of an open ledger, and only in older segments. Then
    the writer continues from *found*. Raises LedgerFenced or LedgerClosed otherwise.
    """
    if stored.state is LedgerState.CLOSED:
        raise LedgerClosed(f"ledger {ledger_id} was closed by another client at entry {stored.last_entry_id}")
    if stored.state is LedgerState.IN_RECOVERY:
        raise LedgerFenced(f"ledger {ledger_id} is being recovered by another client")
    if stored.last_segment != own.last_segment or len(stored.segments) != len(own.segments):
        raise LedgerFenced(f"ledger {ledger_id}: somebody else changed the ensemble that is being written")
    return stored
