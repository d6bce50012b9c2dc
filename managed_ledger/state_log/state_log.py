"""A replicated state machine on ledgers: one node of it.

    open ──▶ FOLLOWER ──lead──▶ PROMOTING ──▶ LEADER ──▶ (fenced, or `follow`) ──▶ FOLLOWER
                 └────────────────┴──── close, damage, `apply` raised ────▶ STOPPED

    lead:   claim the list (a new term) ─▶ close every listed ledger with recovery (I115) ─▶ fold to the end
            ─▶ create a ledger ─▶ list it ─▶ its header is stored ─▶ LEADER

Which node leads is decided outside, or by `election`. Nothing relies on that decision: where two nodes both believe
that they lead, the list's compare-and-set and fencing let only one of them write.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.runtime.types import Corruption
from managed_ledger.position import Position
from managed_ledger.state_log.config import StateLogConfig
from managed_ledger.state_log.edits import TOKEN_LENGTH, Token
from managed_ledger.state_log.errors import (
    ApplyFailed,
    LeadershipLost,
    LogDamaged,
    LogStopped,
    LogUnavailable,
    NotLeader,
    ProposalUnknown,
    StateLogError,
    TokenExpired,
)
from managed_ledger.state_log.leading import Leading
from managed_ledger.state_log.log.list_record import Term, fence, list_path, read_list
from managed_ledger.state_log.log.log_list import LogList
from managed_ledger.state_log.replica import Applied, Replica, Role, StateMachine, Verdict
from managed_ledger.state_log.snapshots.disk import SnapshotStore
from managed_ledger.state_log.tail import NoSource, SnapshotSource, Tail

log = logging.getLogger(__name__)

T = TypeVar("T")

# A watch of the list may be missed; it is read again after this.
_LIST_LOOK_S: Final = 5.0


class Members(Protocol):
    """Knows which nodes are there, and what their snapshots cover."""

    async def publish(self, covered: int) -> None:
        """Tell the others what this node's snapshots cover. Raises LogUnavailable."""
        ...

    async def covered_by_others(self) -> Sequence[int]:
        """What the snapshots of the other nodes that are there cover. Raises LogUnavailable."""
        ...


class Alone:
    """For a log of one node, or of nodes that do not know each other: `snapshot_copies` above 1 drops nothing."""

    async def publish(self, covered: int) -> None:
        return

    async def covered_by_others(self) -> Sequence[int]:
        return ()


class StateLog:
    """One node of a state log. All methods are called on the loop that opened it."""

    def __init__(
        self,
        machine: StateMachine,
        name: str,
        config: StateLogConfig,
        *,
        bookkeeper: BookKeeper,
        store: MetadataStore,
        clock: Clock,
        snapshots: SnapshotStore,
        source: SnapshotSource | None = None,
        members: Members | None = None,
        rng: random.Random | None = None,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        """*name* of this node, different from those of the others. *bookkeeper* and *store* belong to the caller."""
        self.name = name
        self.config = config
        self._bookkeeper = bookkeeper
        self._store = store
        self._clock = clock
        self.snapshots = snapshots
        self._members = Alone() if members is None else members
        self._rng = random.SystemRandom() if rng is None else rng
        self._in_thread = in_thread
        self._incarnation = f"{name}/{self._rng.getrandbits(32):08x}"
        label = f"{config.root} of {name}"
        self._label = label
        self._replica = Replica(machine, label)
        self._tail = Tail(self._replica, bookkeeper, NoSource() if source is None else source, config.password, label)
        self._tasks = Tasks(label, self._stop)
        self._following: asyncio.Task[None] | None = None
        self._leading: Leading | None = None
        self._switching = asyncio.Lock()
        self._changed = Bell()
        self._is_list_stale = True
        self._has_news = False
        self._cancel_watch: Callable[[], None] = lambda: None
        self._list: LogList | None = None
        self._snapshot_at = 0
        self._is_storing = False
        self._listeners: list[Callable[[Role], None]] = []
        self.role = Role.FOLLOWER
        self.error: LogStopped | None = None
        """Why this node has stopped; None as long as it has not."""
        self.snapshot_failures = 0
        """Snapshots that could not be stored (a full disk); the older ones are there."""

    # Life

    async def open(self) -> None:
        """Take the newest good snapshot, and begin to follow. Raises FolderInUse, OSError, ApplyFailed."""
        snapshot = await self._in_thread(self.snapshots.open)
        if snapshot is not None:
            self._replica.restore(snapshot)
        self._snapshot_at = self._replica.number
        self._cancel_watch = self._store.watch_node(list_path(self.config.root), self._on_list_changed)
        self._follow()

    async def close(self) -> None:
        """Give the leadership up, if this node has it, and end. May be called twice."""
        async with self._switching:
            if self._leading is not None:
                leading, self._leading = self._leading, None
                await leading.stop(seal=True)
            self._cancel_watch()
            self.error = self.error or LogStopped(f"{self._label} is closed")
            await self._tasks.cancel()
            await self._tail.unwatch()
            self.snapshots.close()
            self._change_role(Role.STOPPED)

    def on_role(self, listener: Callable[[Role], None]) -> None:
        """Call *listener* with each new role."""
        self._listeners.append(listener)

    # State

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def leader(self) -> str | None:
        """The name of the node that led when this one last looked; a hint."""
        if self.is_leader:
            return self.name
        return self._list.leader_name if self._list is not None and self._list.term else None

    @property
    def number(self) -> int:
        """The last edit that this node has applied. It never goes back."""
        return self._replica.number

    @property
    def position(self) -> Position:
        return self._replica.position

    @property
    def term(self) -> int:
        return self._replica.term

    @property
    def listed(self) -> LogList | None:
        """The list of ledgers as this node last saw it."""
        return self._list if self._leading is None else self._leading.term.list

    def state_hash(self) -> str:
        """Equal on all nodes that have applied the same edits (I119): for tests, and for comparing nodes."""
        return self._replica.state_hash()

    async def reach(self, number: int) -> None:
        """Wait until the edit *number* is applied here. Raises LogStopped."""
        while self._replica.number < number:
            self._check_running()
            await self._changed.rung()

    # Edits and reads

    def new_token(self) -> Token:
        """A token for an edit that may have to be proposed more than once."""
        return Token(self._rng.getrandbits(8 * TOKEN_LENGTH).to_bytes(TOKEN_LENGTH, "big"), self._replica.number)

    async def propose(self, edit: bytes, token: Token | None = None) -> Applied:
        """Write an edit; when this returns it is on the ack quorum and applied here, and every later leader has it.

        Raises NotLeader, TooManyProposals, EditRefused (nothing was done); ProposalUnknown (propose it again with the
        error's token, here or at the next leader: it is applied once); TokenExpired; LogStopped.
        """
        self._check_running()
        leading = self._leading
        if not self.is_leader or leading is None:
            raise self._not_leader()
        token = self.new_token() if token is None else token
        if token.since > self._replica.number:
            raise ValueError(f"{token} is of another log")
        try:
            applied = await leading.propose(bytes(edit), token)
        except LeadershipLost as error:
            raise self._not_leader() from error
        if applied.verdict is Verdict.EXPIRED:
            raise TokenExpired(f"{self._label}: the token was made at edit {token.since}, and this is {applied.number}")
        self._progress()
        return applied

    async def read_barrier(self) -> None:
        """What is read from the state now, before the next `await`, is linearizable (I129): it has all that was
        acknowledged by any leader before this call. Without it reads are of this node's state, which may be stale.

        Raises NotLeader, LogStopped.
        """
        self._check_running()
        leading = self._leading
        if not self.is_leader or leading is None:
            raise self._not_leader()
        try:
            await leading.barrier()
        except (ProposalUnknown, LeadershipLost) as error:
            raise self._not_leader() from error

    # Roles

    async def lead(self) -> None:
        """Take the log over. Raises LeadershipLost, LogUnavailable (this node follows on; try again), LogStopped."""
        async with self._switching:
            self._check_running()
            if self.is_leader:
                return
            lost, self._leading = self._leading, None
            if lost is not None:
                await lost.stop(seal=False)
            await self._end_following()
            self._change_role(Role.PROMOTING)
            try:
                self._leading = await self._promote()
            except LogStopped as error:
                self._stop(error)
                raise
            except Corruption as error:
                self._stop(LogDamaged(str(error)))
                raise self._stopped() from error
            except BaseException:
                self._change_role(Role.FOLLOWER)
                self._follow()
                raise
            self._change_role(Role.LEADER)
            log.info("%s leads term %d from edit %d on", self._label, self.term, self.number + 1)
            self._tasks.spawn(self._watch_term(self._leading), "watch the term")
            if self._leading.error is not None:  # it was lost at once
                self._on_lost(self._leading.error)

    async def follow(self) -> None:
        """Give the leadership up: the ledger is closed behind the last edit. Nothing happens to a follower."""
        async with self._switching:
            leading, self._leading = self._leading, None
            if leading is None:
                return
            await leading.stop(seal=True)
            self._change_role(Role.FOLLOWER)
            self._follow()

    async def _promote(self) -> Leading:
        new_log = None if self._replica.number else f"{self._rng.getrandbits(128):032x}"
        term = await Term.claim(self._store, self.config.root, self._incarnation, new_log)
        ledgers = [ledger.ledger_id for ledger in term.list.ledgers]
        await fence(self._bookkeeper, ledgers, self.config.password, term)
        self._tail.forget()
        while not self._tail.is_at_end(term.list):
            if not await self._tail.advance(term.list) and not self._tail.is_at_end(term.list):
                await term.check()
                raise LogUnavailable(f"{self._label}: the log ends behind {self.position}, before its last ledger does")
        if self._replica.log not in ("", term.list.log):
            raise LogDamaged(f"{self._label}: this node has another log's state; empty its folder to join this one")
        self._replica.log = term.list.log
        leading = Leading(term, self._replica, self._bookkeeper, self._clock, self.config, self._label, self._on_lost)
        try:
            await leading.begin()
        except BaseException:
            await leading.stop(seal=False)
            raise
        return leading

    def _on_lost(self, error: Exception) -> None:
        if isinstance(error, LogStopped):
            self._stop(error)
        elif self.is_leader and self.error is None:
            log.warning("%s leads no more: %s", self._label, error)
            self._change_role(Role.FOLLOWER)
            self._tasks.spawn(self._after_loss(self._leading), "after the loss")

    async def _watch_term(self, leading: Leading) -> None:
        """Look whether this node still leads: a leader without proposals has to notice it, too (I128)."""
        while leading.error is None:
            self._is_list_stale = False
            try:
                await leading.check()
            except LogUnavailable as error:
                log.warning("%s: cannot see whether it still leads: %s", self._label, error)
                await self._clock.sleep(self.config.retry_s)
                continue
            await self._changed.until(
                lambda: self._is_list_stale or leading.error is not None, self._clock, _LIST_LOOK_S
            )

    async def _after_loss(self, lost: Leading | None) -> None:
        async with self._switching:
            if lost is None or self._leading is not lost or self.error is not None:
                return  # this node is to lead again meanwhile, or to end
            self._leading = None
            await lost.stop(seal=False)
            self._follow()

    # Following

    def _follow(self) -> None:
        self._is_list_stale = True
        self._tail.forget()
        self._following = self._tasks.spawn(self._run(), "follow")

    async def _end_following(self) -> None:
        task, self._following = self._following, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._tail.unwatch()

    async def _run(self) -> None:
        wait_s, looked_s, warned = self.config.poll_s, self._clock.monotonic(), ""
        while True:
            had_news, self._has_news = self._has_news, False
            try:
                if self._is_list_stale or self._clock.monotonic() - looked_s >= _LIST_LOOK_S:
                    self._is_list_stale = False
                    self._list = await read_list(self._store, self.config.root)
                    looked_s = self._clock.monotonic()
                moved = self._list is not None and await self._tail.advance(self._list)
                warned = ""
            except LogUnavailable as error:
                if str(error) != warned:
                    log.warning("%s; trying again", error)
                warned, self._is_list_stale = str(error), True
                self._progress()
                await self._clock.sleep(self.config.retry_s)
                continue
            except LogStopped as error:
                self._stop(error)
                return
            except Corruption as error:
                self._stop(LogDamaged(str(error)))
                return
            self._progress()
            wait_s = self.config.poll_s if moved else min(wait_s * 2, self.config.poll_idle_s)
            if had_news and not moved:
                await self._clock.sleep(self.config.poll_s)  # it is not visible yet, and would be announced at once
            self._tail.watch(self._on_news)
            await self._changed.until(lambda: self._is_list_stale or self._has_news, self._clock, wait_s)

    def _on_news(self) -> None:
        self._has_news = True
        self._changed.ring()

    def _on_list_changed(self) -> None:
        self._is_list_stale = True
        self._changed.ring()

    # Snapshots

    def _progress(self) -> None:
        """Called when edits may have been applied."""
        self._changed.ring()
        is_due = self._replica.number >= self._snapshot_at + self.config.snapshot_edits
        if is_due and not self._is_storing and self.error is None:
            self._is_storing = True
            self._snapshot_at = self._replica.number  # after a failure as well: the next try is so many edits later
            self._tasks.spawn(self._snapshot_in_background(), "snapshot")

    async def _snapshot_in_background(self) -> None:
        try:
            await self._store_snapshot()
        except (OSError, StateLogError, Corruption) as error:
            log.warning("%s: a snapshot failed, the one before stays: %s", self._label, error)
        finally:
            self._is_storing = False

    async def take_snapshot(self) -> int:
        """Store a snapshot now, and drop what it makes superfluous; returns its edit. Raises OSError, LogStopped."""
        self._check_running()
        while self._is_storing:
            await self._clock.sleep(self.config.poll_s)
        self._is_storing = True
        try:
            return await self._store_snapshot()
        finally:
            self._is_storing = False

    async def _store_snapshot(self) -> int:
        snapshot = self._replica.snapshot()  # a prefix: nothing is applied while this runs (I120)
        try:
            await self._in_thread(self.snapshots.write, snapshot)
        except (OSError, Corruption):
            self.snapshot_failures += 1
            raise
        self._snapshot_at = max(self._snapshot_at, snapshot.number)
        try:
            await self._members.publish(self.snapshots.covered)
            await self.truncate()
        except LogUnavailable as error:
            log.warning("%s: old ledgers are dropped later: %s", self._label, error)
        return snapshot.number

    async def newest_snapshot(self, above: int) -> bytes | None:
        """The file of the newest snapshot, checked, if it covers an edit behind *above*: for another node."""
        number = self.snapshots.newest
        return await self._in_thread(self.snapshots.read_bytes, number) if number > above else None

    async def truncate(self) -> None:
        """On the leader: drop the ledgers that enough snapshots cover (I122). Raises LogUnavailable."""
        leading = self._leading
        if leading is None or not self.is_leader:
            return
        others = await self._members.covered_by_others()
        await leading.drop(leading.term.list.droppable(self.snapshots.covered, others, self.config.snapshot_copies))

    # Inside

    def _change_role(self, role: Role) -> None:
        if role is not self.role:
            self.role = role
            self._changed.ring()
            for listener in self._listeners:
                listener(role)

    def _stop(self, error: BaseException) -> None:
        """This node cannot go on: nothing is applied, written or stored by it any more (I127)."""
        if self.error is None:
            self.error = error if isinstance(error, LogStopped) else ApplyFailed(f"{self._label}: {error!r}")
            log.error("%s has stopped: %s", self._label, error)
        if self._leading is not None:
            self._leading.fail(self.error)
        self._change_role(Role.STOPPED)

    def _check_running(self) -> None:
        if self.error is not None:
            raise self._stopped()

    def _stopped(self) -> LogStopped:
        assert self.error is not None
        return type(self.error)(str(self.error))

    def _not_leader(self) -> NotLeader:
        if self.error is not None:
            raise self._stopped()
        return NotLeader(f"{self._label} does not lead; {self.leader or 'nobody'} did when it last looked", self.leader)
