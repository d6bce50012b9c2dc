"""Drains: the auditor moves everything that bookies in state draining have to others, and says how it ended.

    state draining ──▶ wait until it takes no entries ──▶ read all records ──▶ mark each ledger that names it
                                                              ▲                        │ (workers copy and publish)
                                                              └── none of them left ◀──┘
          none names it at all ──▶ read the copies of what was moved ──▶ drained
          what is left cannot be moved ──▶ draining-failed, with a reason for each ledger

What is to be done, and when, `drain` decides. Rules (I74) that are kept here:

1. Nothing is counted in the metadata store. What is left follows from the records, and what is to be proved stands in
   the store (`unproved`) before it is marked. So the next auditor goes on where this one ended, and a drain that is
   cancelled leaves only marks, which workers take down when nothing is to be done, and what the next drain proves.
2. The state is moved only from the version under which the drain was followed: a cancelled drain is never ended.
3. The bookie stays a source of copies to the end: this never takes an entry from it.
"""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from autorecovery.ledgers.catalogue import LedgerCatalogue
from autorecovery.ledgers.index import LedgerIndex
from autorecovery.lifecycle.drain import Drain, Effect, Phase
from autorecovery.lifecycle.turning import TurnBookie, TurnedBookies
from autorecovery.lifecycle.unproved import UnprovedLedgers, forget_others
from autorecovery.repair.board_watch import MarkWatch
from autorecovery.repair.one_ledger import LedgerRepair
from autorecovery.reporting.reports import Problem
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchLedger
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, BookieStateWatch, VersionedState
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, IllegalMove, State
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError, MetadataStore, NoNode, VersionConflict
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks, gather_in_turns
from magnetar_core.runtime.types import Corruption, MagnetarError

log = logging.getLogger(__name__)

# While a drain is under way it is looked at so often; changes of states and bookies cause earlier looks. After one has
# begun, or its ledgers were marked, the pauses grow to this: a small drain is not to wait for the next second.
_LOOK_S: Final = 1.0
_LOOK_FIRST_S: Final = 0.1
_LOOK_GROWTH: Final = 1.5
_IDLE_S: Final = 30.0

# A drain of which every ledger waits, and nothing moves, has failed after this: a worker has tried eight times by then.
_PATIENCE_S: Final = 600.0

# Requests to the store, and ledgers that are proved, at the same time.
_AT_ONCE: Final = 64
_PROVED_AT_ONCE: Final = 8

# Proved ledgers are taken from the store so often: one that stays there too long is only read once more.
_NOTE_S: Final = 5.0


@dataclass(slots=True)
class _Followed:
    """A drain that this auditor follows."""

    drain: Drain
    state: VersionedState
    kept: UnprovedLedgers
    """*unproved* in the metadata store, for the node that goes on with this drain."""
    noted_s: float = 0.0
    """Clock when proved ledgers were last taken from *kept*."""


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
        self._drains: dict[str, _Followed] = {}
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
        return {bookie: followed.drain.facts(now_s) for bookie, followed in self._drains.items()}

    def _wake(self) -> None:
        self._is_called = True
        self._woken.ring()

    async def _run(self) -> None:
        while True:
            self._is_called = False
            try:
                await self._run_round()
            except (MetadataError, BookKeeperError) as error:
                log.warning("drains are looked at again in %g s: %s", _LOOK_S, error)
                for followed in self._drains.values():
                    followed.drain.problem = str(error)
                await self._clock.sleep(_LOOK_S)
            wait_s = min(self._pause_s, _LOOK_S) if self._drains else _IDLE_S
            self._pause_s = min(self._pause_s * _LOOK_GROWTH, _LOOK_S)
            await self._woken.until(lambda: self._is_called, self._clock, wait_s)

    async def _run_round(self) -> None:
        """One round over all drains. Raises MetadataError, BookKeeperError."""
        if not self._is_swept:
            await forget_others(self._store, self._root, self._watch.bookies)
            await self._turned.forget_others(self._watch.bookies)
            self._is_swept = True
        self._follow_states()
        if not self._drains:
            return
        if not await self._marks.is_enabled():
            for followed in self._drains.values():
                followed.drain.problem = (
                    "auto-recovery is switched off for the cluster: nothing is copied until it is on again"
                )
            return
        by_effect: dict[Effect, list[_Followed]] = {effect: [] for effect in Effect}
        for bookie, followed in self._drains.items():
            is_writable = bookie in self._bookies.writable
            effect = followed.drain.step(self._clock.monotonic(), is_writable, self._candidates())
            by_effect[effect].append(followed)
        for followed in by_effect[Effect.TURN]:
            await self._turn_read_only(followed.drain)
        if by_effect[Effect.READ_ALL]:
            index = await self._catalogue.read()
            for followed in by_effect[Effect.READ_ALL]:
                await self._begin(followed, index)
        if ready := by_effect[Effect.READ_ALL] + by_effect[Effect.GO_ON]:
            problems = {problem.ledger_id: (problem.kind, _problem_text(problem)) async for problem in self._problems()}
            for followed in ready:
                followed.drain.problem = ""
                await self._go_on(followed, problems)

    def _candidates(self) -> frozenset[str]:
        return (self._watch.bookies | self._bookies.available) - self._watch.not_active.keys()

    def _follow_states(self) -> None:
        """Follow the bookies whose state is draining; a drain that was begun again is another drain."""
        leaving = {bookie: state for bookie, state in self._watch.not_active.items() if state.lifecycle.is_leaving}
        for bookie in self._drains.keys() - leaving.keys():
            del self._drains[bookie]
        for bookie, state in leaving.items():
            known = self._drains.get(bookie)
            if known is None or known.state != state:
                self._drains[bookie] = _Followed(Drain(bookie), state, UnprovedLedgers(self._store, self._root, bookie))
                self._pause_s = _LOOK_FIRST_S

    async def _turn_read_only(self, drain: Drain) -> None:
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

    async def _begin(self, followed: _Followed, index: LedgerIndex) -> None:
        """All records were read."""
        drain = followed.drain
        ledger_ids = index.of_bookie(drain.bookie)
        kept = await followed.kept.read()
        await followed.kept.add(ledger_ids)  # rule 1: before the marks
        drain.begin(index, index if kept.is_all else kept.ids, self._candidates())
        self._pause_s = _LOOK_FIRST_S
        log.info("drain of %s: %d ledgers name it", drain.bookie, len(ledger_ids))

    async def _go_on(self, followed: _Followed, problems: Mapping[int, tuple[str, str]]) -> None:
        drain = followed.drain
        to_check = drain.to_check(self._clock.monotonic(), self._mark_watch.marked)
        await self._run_for_each(to_check, lambda ledger_id: self._check(drain, ledger_id))
        to_prove = drain.to_prove()
        if drain.phase is Phase.UNREAD:
            self._is_called = True
        await self._run_for_each(to_prove, lambda ledger_id: self._prove(drain, ledger_id), _PROVED_AT_ONCE)
        now_s = self._clock.monotonic()
        if now_s - followed.noted_s >= _NOTE_S:
            followed.noted_s = now_s
            await followed.kept.drop(drain.proved)
            drain.proved.clear()
        failed = drain.end(self._clock.monotonic(), problems, self._patience_s)
        if failed is not None:
            await self._end(followed, failed)

    async def _check(self, drain: Drain, ledger_id: int) -> None:
        """Whether the record of a ledger still names the bookie; if so, its mark is up."""
        if drain.on_record(ledger_id, await self._read(ledger_id)):
            await self._marks.mark(ledger_id, drain.bookie, self._clock.wall_ms())

    async def _prove(self, drain: Drain, ledger_id: int) -> None:
        """Read the copies of what was moved, where they are now."""
        metadata = await self._read(ledger_id)
        if not drain.on_record(ledger_id, metadata) and metadata is not None:
            drain.on_copies(ledger_id, await self._why_not_whole(drain, ledger_id, metadata))

    async def _read(self, ledger_id: int) -> LedgerMetadata | None:
        """None: the ledger was deleted. Raises MetadataError; the next reading of all records reports Corruption."""
        try:
            return (await self._ledgers.read(ledger_id)).metadata
        except NoNode:
            return None
        except Corruption as error:
            raise MetadataError(str(error)) from error

    async def _why_not_whole(self, drain: Drain, ledger_id: int, metadata: LedgerMetadata) -> str:
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

    async def _end(self, followed: _Followed, failed: list[tuple[int, str]]) -> None:
        """*failed*: ledgers that cannot be copied, and why (rule 2)."""
        drain = followed.drain
        if drain.bookie in await self._bookies.read_writable():
            drain.step(self._clock.monotonic(), True, self._candidates())
            return
        await followed.kept.drop(drain.proved, was_all=not failed)
        drain.proved.clear()
        to = State.DRAINING_FAILED if failed else State.DRAINED
        why = f"{len(failed)} ledgers cannot be copied" if failed else "no record names it, and its ledgers are whole"
        try:
            await self._states.move(
                drain.bookie, to, Actor.AUDITOR, self._name, why, self._clock.wall_ms(),
                reasons=failed, expected=followed.state,
            )  # fmt: skip
        except (VersionConflict, IllegalMove) as error:
            log.info("drain of %s: %s", drain.bookie, error)
            return
        self._drains.pop(drain.bookie, None)

    async def _run_for_each(
        self, ledger_ids: list[int], work: Callable[[int], Coroutine[Any, Any, None]], at_once: int = _AT_ONCE
    ) -> None:
        for first in range(0, len(ledger_ids), at_once):
            await gather_in_turns(map(work, ledger_ids[first : first + at_once]))


def _problem_text(problem: Problem) -> str:
    ranges = ", ".join(f"{first} to {last}" for first, last in problem.lost[:3])
    return problem.text if not ranges or "entries" in problem.text else f"{problem.text} (entries {ranges})"
