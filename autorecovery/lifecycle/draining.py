"""Drains: the auditor moves everything that bookies in state draining have to others, and says how it ended.

    state draining ──▶ wait until it takes no entries ──▶ read all records ──▶ mark each ledger that names it
                                                              ▲                        │ (workers copy and publish)
                                                              └── none of them left ◀──┘
          none names it at all ──▶ read the copies of what was moved ──▶ drained
          what is left cannot be moved ──▶ draining-failed, with a reason for each ledger

Rules (I72, I74):

1. Nothing is counted in the metadata store. What is left follows from the records, and what is to be proved stands in
   the store (`unproved`) before it is marked. So the next auditor goes on where this one ended, and a drain that is
   cancelled leaves only marks, which workers take down when nothing is to be done, and what the next drain proves.
2. Records are read after the bookie takes no entries, and a moment later: a writer that saw it as writable just before
   may still put its name into a record.
3. Drained is said only after one reading of all records found none that names the bookie, and after each ledger that
   was moved was found to be whole on its new bookies. If the bookie is seen writable, all of this begins again.
4. The state is moved only from the version under which the drain was followed: a cancelled drain is never ended.
5. The bookie stays a source of copies to the end: this never takes an entry from it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from autorecovery.ledgers.catalogue import LedgerCatalogue
from autorecovery.ledgers.index import LedgerIndex
from autorecovery.lifecycle.drain_rules import Progress, bytes_on, facts_of, has_no_target, view_of
from autorecovery.lifecycle.turning import TurnBookie, TurnedBookies
from autorecovery.lifecycle.unproved import UnprovedLedgers, forget_others
from autorecovery.repair.board_watch import MarkWatch
from autorecovery.repair.one_ledger import LedgerRepair
from autorecovery.reporting.reports import Problem
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchLedger
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, BookieStateWatch, VersionedState
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, DrainView, IllegalMove, State, verdict_of
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError, MetadataStore, NoNode, VersionConflict
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.runtime.types import Corruption, MagnetarError

log = logging.getLogger(__name__)

# While a drain is under way it is looked at so often; changes of states and bookies cause earlier looks. After one has
# begun, or its ledgers were marked, the pauses grow to this: a small drain is not to wait for the next second.
_LOOK_S: Final = 1.0
_LOOK_FIRST_S: Final = 0.1
_LOOK_GROWTH: Final = 1.5
_IDLE_S: Final = 30.0

# Records of ledgers that are still marked are read again after this: a mark may stay up for another cause.
_RECHECK_S: Final = 10.0

# Rule 2. A writer chooses bookies and stores its record within a few round trips.
_SETTLE_S: Final = 1.0

# A bookie of ours turns read-only within a second. After this, one of Apache's is turned through its HTTP; after the
# second number again, if it is writable still.
_TURN_S: Final = 5.0
_TURN_AGAIN_S: Final = 30.0

# A worker's report may be as old as two of its rounds; what it says of a ledger counts after it has stood so long.
_CONFIRM_S: Final = 5.0

# A drain of which every ledger waits, and nothing moves, has failed after this: a worker has tried eight times by then.
_PATIENCE_S: Final = 600.0

# Requests to the store, and ledgers that are proved, at the same time.
_AT_ONCE: Final = 64
_PROVED_AT_ONCE: Final = 8

# Proved ledgers are taken from the store so often: one that stays there too long is only read once more.
_NOTE_S: Final = 5.0


@dataclass(slots=True)
class _Drain:
    """One drain, as far as this auditor follows it."""

    bookie: str
    state: VersionedState
    kept: UnprovedLedgers
    """*unproved* in the metadata store, for the node that goes on with this drain."""
    proved: set[int] = field(default_factory=set)
    """Ledgers that are to be taken from *kept*."""
    noted_s: float = 0.0
    """Clock when ledgers were last taken from *kept*."""
    phase: str = "waiting until it takes no entries"
    problem: str = ""
    writable_since_s: float | None = None
    next_turn_s: float = 0.0
    quiet_since_s: float | None = None
    """Clock since which the bookie takes no entries."""
    left: set[int] | None = None
    """Ledgers whose record names it; None: all records are to be read."""
    unproved: set[int] = field(default_factory=set)
    """Ledgers that were moved, or will be, and were not yet found to be whole."""
    total: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    """Ledger → bytes of it on this bookie."""
    unreadable: dict[int, str] = field(default_factory=dict)
    candidates: frozenset[str] = frozenset()
    """Bookies that may ever take entries, as of the last reading of all records."""
    no_target: dict[int, str] = field(default_factory=dict)
    not_whole: dict[int, str] = field(default_factory=dict)
    lost_since_s: dict[int, float] = field(default_factory=dict)
    next_recheck_s: float = 0.0
    progress: Progress = field(default_factory=Progress)
    view: DrainView | None = None

    def must_prove(self, ledger_ids: set[int]) -> None:
        """These ledgers are moved, maybe once more: an earlier proof of one that stands in *kept* counts no more."""
        self.total += len(ledger_ids - self.unproved)
        self.unproved |= ledger_ids
        self.proved -= ledger_ids

    def is_proved(self, ledger_id: int) -> None:
        """The copies of a ledger were read, or it is deleted."""
        self.unproved.discard(ledger_id)
        self.proved.add(ledger_id)


class DrainEngine:
    """All drains of a cluster; run by the auditor. Used on the loop."""

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        root: str,
        states: BookieStates,
        watch: BookieStateWatch,
        bookies: BookieDirectory,
        catalogue: LedgerCatalogue,
        ledgers: LedgerStore,
        marks: MarkBoard,
        mark_watch: MarkWatch,
        repair: LedgerRepair,
        problems: Callable[[], AsyncIterator[Problem]],
        clock: Clock,
        *,
        turn: TurnBookie | None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """*name* stands in the states. *problems* are those that workers report. *turn* is None where bookies of
        Apache's cannot be turned."""
        self._name = name
        self._store = store
        self._root = root
        self._states = states
        self._watch = watch
        self._bookies = bookies
        self._catalogue = catalogue
        self._ledgers = ledgers
        self._marks = marks
        self._mark_watch = mark_watch
        self._repair = repair
        self._problems = problems
        self._clock = clock
        self._turn = turn
        self._turned = TurnedBookies(store, root)
        self._patience_s = patience_s
        self._drains: dict[str, _Drain] = {}
        self._tasks = Tasks("drains")
        self._cancels: list[Cancel] = []
        self._woken = Bell()
        self._is_called = False
        self._is_swept = False
        self._pause_s = _LOOK_S

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks.on_failure = on_failure
        self._cancels = [
            self._watch.watch(self._wake),
            self._bookies.watch(self._wake),
            self._marks.watch_enabled(self._wake),
        ]
        self._tasks.spawn(self._run(), "run")

    async def stop(self) -> None:
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        await self._tasks.cancel()

    def facts(self) -> dict[str, Any]:
        """Bookie → how far its drain is, as values of JSON."""
        now_s = self._clock.monotonic()
        return {
            drain.bookie: facts_of(drain.progress, drain.view, drain.phase, drain.problem, now_s)
            for drain in self._drains.values()
        }

    def _wake(self) -> None:
        self._is_called = True
        self._woken.ring()

    async def _run(self) -> None:
        while True:
            self._is_called = False
            try:
                await self._look()
            except (MetadataError, BookKeeperError) as error:
                log.warning("drains are looked at again in %g s: %s", _LOOK_S, error)
                for drain in self._drains.values():
                    drain.problem = str(error)
                await self._clock.sleep(_LOOK_S)
            wait_s = min(self._pause_s, _LOOK_S) if self._drains else _IDLE_S
            self._pause_s = min(self._pause_s * _LOOK_GROWTH, _LOOK_S)
            await self._woken.until(lambda: self._is_called, self._clock, wait_s)

    async def _look(self) -> None:
        """One round over all drains. Raises MetadataError, BookKeeperError."""
        if not self._is_swept:
            await forget_others(self._store, self._root, self._watch.bookies)
            await self._turned.forget_others(self._watch.bookies)
            self._is_swept = True
        self._follow_states()
        if not self._drains:
            return
        if not await self._marks.is_enabled():
            for drain in self._drains.values():
                drain.problem = "auto-recovery is switched off for the cluster: nothing is copied until it is on again"
            return
        ready = [drain for drain in self._drains.values() if await self._is_quiet(drain)]
        for drain in ready:
            if drain.no_target and drain.candidates != self._candidates():
                drain.left = None
        unread = [drain for drain in ready if drain.left is None]
        if unread:
            index = await self._catalogue.read()
            for drain in unread:
                await self._begin(drain, index)
        problems = {problem.ledger_id: problem async for problem in self._problems()} if ready else {}
        for drain in ready:
            drain.problem = ""
            await self._go_on(drain, problems)

    def _follow_states(self) -> None:
        """Follow the bookies whose state is draining; a drain that was begun again is another drain."""
        leaving = {bookie: state for bookie, state in self._watch.not_active.items() if state.lifecycle.is_leaving}
        for bookie in self._drains.keys() - leaving.keys():
            del self._drains[bookie]
        for bookie, state in leaving.items():
            known = self._drains.get(bookie)
            if known is None or known.state != state:
                self._drains[bookie] = _Drain(bookie, state, UnprovedLedgers(self._store, self._root, bookie))
                self._pause_s = _LOOK_FIRST_S

    # --------------------------------------------------------------------------------- until it is quiet

    async def _is_quiet(self, drain: _Drain) -> bool:
        """The bookie takes no entries, for long enough (rule 2)."""
        now_s = self._clock.monotonic()
        if drain.bookie not in self._bookies.writable:
            drain.writable_since_s = None
            if drain.quiet_since_s is None:
                drain.quiet_since_s = now_s
            return now_s - drain.quiet_since_s >= _SETTLE_S
        drain.quiet_since_s = drain.left = None  # rule 3
        drain.phase = "waiting until it takes no entries"
        if drain.writable_since_s is None:
            drain.writable_since_s = now_s
            drain.next_turn_s = now_s + _TURN_S
        elif now_s >= drain.next_turn_s:
            drain.next_turn_s = now_s + _TURN_AGAIN_S
            await self._turn_read_only(drain)
        return False

    async def _turn_read_only(self, drain: _Drain) -> None:
        why = "it does not follow its state, and this node cannot turn it through its HTTP"
        if self._turn is not None:
            await self._turned.note(drain.bookie)
            try:
                await self._turn(drain.bookie, True)
            except MagnetarError as error:
                why = str(error)
            else:
                drain.problem = ""
                await self._turn_back_if_called_off(drain.bookie)
                return
        drain.problem = f"bookie {drain.bookie} takes entries still, so its drain cannot begin: {why}"
        log.warning("%s", drain.problem)

    async def _turn_back_if_called_off(self, bookie: str) -> None:
        """The operator who called the drain off meanwhile may have turned the bookie back before it was turned here."""
        assert self._turn is not None, "only a node that can turn bookies has turned this one"
        if (await self._states.read(bookie)).lifecycle.state is State.ACTIVE:
            await self._turned.note(bookie)
            advice = await self._turned.turn_back(bookie, self._turn)
            if advice:
                log.warning("%s", advice)

    # ------------------------------------------------------------------------------------ what is to be moved

    async def _begin(self, drain: _Drain, index: LedgerIndex) -> None:
        """Mark what names the bookie, after all records were read."""
        assert drain.quiet_since_s is not None, "records are read only once the bookie takes no entries (rule 2)"
        drain.candidates = candidates = self._candidates()
        drain.left = left = set(index.of_bookie(drain.bookie))
        drain.unreadable = dict(index.unreadable)
        drain.no_target = {
            ledger_id: "each bookie of the cluster that may take entries has copies of it already; add a bookie"
            for ledger_id in left
            if has_no_target(index[ledger_id], drain.bookie, candidates)
        }
        kept = await drain.kept.read()
        open_ids = left | set(index if kept.is_all else kept.ids)
        await drain.kept.add(left)  # rule 1: before the marks
        drain.must_prove(open_ids)
        drain.phase = "copying"
        self._pause_s = _LOOK_FIRST_S
        await self._each(sorted(left), lambda ledger_id: self._look_at_record(drain, ledger_id))
        log.info("drain of %s: %d ledgers name it", drain.bookie, len(left))

    def _candidates(self) -> frozenset[str]:
        return (self._watch.bookies | self._bookies.available) - self._watch.not_active.keys()

    async def _look_at_record(self, drain: _Drain, ledger_id: int) -> None:
        """Whether the record of a ledger still names the bookie; if so, its mark is up."""
        assert drain.left is not None, "records are looked at one by one only after all of them were read"
        metadata = await self._read(ledger_id)
        if metadata is None:
            drain.left.discard(ledger_id)
            drain.is_proved(ledger_id)
        elif drain.bookie not in metadata.bookies():
            drain.left.discard(ledger_id)
        else:
            drain.left.add(ledger_id)
            drain.sizes[ledger_id] = bytes_on(metadata, drain.bookie)
            await self._marks.mark(ledger_id, drain.bookie, self._clock.wall_ms())

    async def _read(self, ledger_id: int) -> LedgerMetadata | None:
        """None: the ledger was deleted. Raises MetadataError; the next reading of all records reports Corruption."""
        try:
            return (await self._ledgers.read(ledger_id)).metadata
        except NoNode:
            return None
        except Corruption as error:
            raise MetadataError(str(error)) from error

    async def _go_on(self, drain: _Drain, problems: Mapping[int, Problem]) -> None:
        assert drain.left is not None, "a drain goes on only after all records were read"
        now_s = self._clock.monotonic()
        if drain.left:
            some = set(drain.left)
            if now_s < drain.next_recheck_s:
                some -= self._mark_watch.marked
            else:
                drain.next_recheck_s = now_s + _RECHECK_S
            await self._each(sorted(some), lambda ledger_id: self._look_at_record(drain, ledger_id))
            if not drain.left:
                drain.left = None  # rule 3: all records once more, at the next look
                self._is_called = True
        was_moved = drain.left is not None and not drain.left
        await self._prove(drain)
        if was_moved and not (drain.left or drain.unproved or drain.unreadable):
            await self._end(drain, State.DRAINED, ())
            return
        self._judge(drain, problems)
        assert drain.view is not None, "every look ends with a view of the drain"
        if verdict_of(drain.view, drain.progress.stuck_s(now_s), self._patience_s) is State.DRAINING_FAILED:
            reasons = {**drain.view.waiting, **drain.view.hopeless}
            await self._end(drain, State.DRAINING_FAILED, sorted(reasons.items()))

    def _judge(self, drain: _Drain, problems: Mapping[int, Problem]) -> None:
        """Combine what is known of the drain at this moment."""
        now_s = self._clock.monotonic()
        open_ids = (drain.left or set()) | drain.unproved
        reasons = {
            ledger_id: (problems[ledger_id].kind, _text(problems[ledger_id]))
            for ledger_id in open_ids & problems.keys()
        }
        reasons |= {
            ledger_id: ("not-whole", text) for ledger_id, text in drain.not_whole.items() if ledger_id not in reasons
        }
        view = view_of(open_ids, drain.unreadable, drain.no_target, reasons)
        # A report may be an old one (of a drain before this): it counts once it has stood for a while.
        drain.lost_since_s = {ledger_id: drain.lost_since_s.get(ledger_id, now_s) for ledger_id in view.hopeless}
        fresh = {ledger_id for ledger_id, since_s in drain.lost_since_s.items() if now_s - since_s < _CONFIRM_S}
        drain.view = DrainView(
            view.ledgers_left,
            view.waiting,
            {ledger_id: why for ledger_id, why in view.hopeless.items() if ledger_id not in fresh},
        )
        left = drain.left or set()
        assert left <= drain.unproved, "a ledger that is still to be moved is to be proved after that"
        assert drain.not_whole.keys() <= drain.unproved, "a ledger whose copies are not whole is not proved"
        drain.progress.note(
            now_s,
            drain.total + len(drain.unreadable),
            len(left) + len(drain.unreadable),
            sum(drain.sizes.values()),
            sum(drain.sizes.get(ledger_id, 0) for ledger_id in left),
        )

    # ------------------------------------------------------------------------------------------- the end

    async def _prove(self, drain: _Drain) -> None:
        """Read the copies of what was moved, where they are now (rule 3)."""
        drain.phase = "copying" if drain.left else "reading the copies"
        drain.not_whole.clear()
        moved = drain.unproved - (drain.left or set()) - drain.unreadable.keys()
        await self._each(sorted(moved), lambda ledger_id: self._prove_one(drain, ledger_id), _PROVED_AT_ONCE)
        now_s = self._clock.monotonic()
        if now_s - drain.noted_s >= _NOTE_S:
            drain.noted_s = now_s
            await drain.kept.drop(drain.proved)
            drain.proved.clear()

    async def _prove_one(self, drain: _Drain, ledger_id: int) -> None:
        metadata = await self._read(ledger_id)
        if metadata is None:
            drain.is_proved(ledger_id)
            return
        if drain.bookie in metadata.bookies():
            drain.left = None
            return
        why = await self._why_not_whole(drain, ledger_id, metadata)
        if not why:
            drain.is_proved(ledger_id)
            return
        drain.not_whole[ledger_id] = why

    async def _why_not_whole(self, drain: _Drain, ledger_id: int, metadata: LedgerMetadata) -> str:
        """Empty: every copy of the ledger is there, and no mark names the bookie. What lacks entries is marked."""
        try:
            verdicts = await self._repair.look(ledger_id, metadata)
        except NoSuchLedger:
            return ""
        for verdict in verdicts:
            for away in verdict.gone.values():
                return f"bookie {away}, which has copies of it, is away"
            for lacking in verdict.incomplete.values():
                # A bookie that is away is the audit's affair, which gives it the time that operators have set.
                await self._marks.mark(ledger_id, lacking, self._clock.wall_ms())
                return f"bookie {lacking} lacks entries of it"
            for text in verdict.unknown.values():
                return text
        try:
            mark = await self._marks.read(ledger_id)
        except Corruption as error:
            return str(error)
        return "its mark is still up" if mark is not None and drain.bookie in mark.mark.replicas else ""

    async def _end(self, drain: _Drain, to: State, reasons: Iterable[tuple[int, str]]) -> None:
        """Rule 4."""
        if drain.bookie in await self._bookies.read_writable():
            drain.quiet_since_s = drain.left = None  # rule 3
            return
        failed = list(reasons)
        assert bool(failed) == (to is State.DRAINING_FAILED), "only a drain that fails has reasons, and it has some"
        if to is State.DRAINED:
            assert not drain.left, "a drained bookie has no ledger that is to be moved"
            assert not drain.unproved, "a drained bookie has no ledger that is to be proved"
            assert not drain.unreadable, "a drained bookie is not named by a record that nobody could read"
        await drain.kept.drop(drain.proved, was_all=to is State.DRAINED)
        drain.proved.clear()
        why = f"{len(failed)} ledgers cannot be copied" if failed else "no record names it, and its ledgers are whole"
        try:
            await self._states.move(
                drain.bookie, to, Actor.AUDITOR, self._name, why, self._clock.wall_ms(),
                reasons=failed, found=drain.state,
            )  # fmt: skip
        except (VersionConflict, IllegalMove) as error:
            log.info("drain of %s: %s", drain.bookie, error)
            return
        self._drains.pop(drain.bookie, None)

    async def _each(
        self, ledger_ids: list[int], work: Callable[[int], Awaitable[None]], at_once: int = _AT_ONCE
    ) -> None:
        for first in range(0, len(ledger_ids), at_once):
            results = await asyncio.gather(*map(work, ledger_ids[first : first + at_once]), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result


def _text(problem: Problem) -> str:
    ranges = ", ".join(f"{first} to {last}" for first, last in problem.lost[:3])
    return problem.text if not ranges or "entries" in problem.text else f"{problem.text} (entries {ranges})"
