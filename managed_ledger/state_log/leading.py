"""One term of a leader: numbers edits, writes them, and folds them when they are acknowledged.

    propose ──▶ queue (while a ledger is begun) ──▶ ledger ──acknowledged──▶ fold ──▶ the proposer's future
                                                       └──failed──▶ the term is over; futures: ProposalUnknown

Rules:

1. A ledger is listed before its header is written (I117); no proposal is answered before the header is acknowledged.
2. Edits are folded when they are acknowledged, in their order (I118, I123): what a leader's state has, every later
   leader will find. Their numbers go on behind the last one of the log that was fenced and read (I124).
3. The ledger before is closed, and all of it folded, before the next is created.
4. After the first failure nothing is written any more: the term is over, whatever the failure was. The next leader,
   perhaps this node again, finds in the log what was stored of the rest.
5. A barrier is a marker that was written after the barrier was asked for (I129): that it could be stored shows that no
   later leader had read the log to its end. All calls that come while one is under way share the next.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, EntryTooLarge, TooManyPending
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import MIB
from managed_ledger.position import Position
from managed_ledger.state_log.config import StateLogConfig
from managed_ledger.state_log.edits import EDIT_BYTES_MAX, Edit, Header, Marker, Record, Token, encode
from managed_ledger.state_log.errors import (
    EditRefused,
    LeadershipLost,
    LogStopped,
    LogUnavailable,
    ProposalUnknown,
    StateLogError,
    TooManyProposals,
)
from managed_ledger.state_log.log.list_record import Term
from managed_ledger.state_log.log.log_list import ListedLedger
from managed_ledger.state_log.replica import Applied, Replica

log = logging.getLogger(__name__)

# Edits that a leader has taken and that are not acknowledged. Above it proposals are refused, before they would use up
# the memory; at the 0.4 ms of a group it does not throttle.
PROPOSALS_MAX: Final = 10_000
PROPOSED_BYTES_MAX: Final = 64 * MIB

APPLICATION: Final = b"magnetar"
COMPONENT: Final = b"state-log"

Done = asyncio.Future[Applied]


class _Proposal(NamedTuple):
    payload: bytes
    token: Token
    done: Done


class _Written(NamedTuple):
    """An entry that is not acknowledged yet."""

    entry_id: int
    record: Record
    done: Done | None


class Leading:
    """The leader's part of a state log, for one term."""

    def __init__(
        self,
        term: Term,
        replica: Replica,
        bookkeeper: BookKeeper,
        clock: Clock,
        config: StateLogConfig,
        name: str,
        on_lost: Callable[[Exception], None],
    ) -> None:
        """*on_lost* is called once, when the term is over by an error."""
        self.term = term
        self._replica = replica
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._config = config
        self._name = name
        self._on_lost = on_lost
        self._tasks = Tasks(f"leader of {name}", self.fail)
        self._handle: LedgerWriteHandle | None = None
        self._ledger_entries = 0
        self._ledger_bytes = 0
        self._written: deque[_Written] = deque()
        self._queue: deque[_Proposal] = deque()
        self._bytes = 0
        self._next_number = replica.number + 1
        self._last_time_ms = replica.time_ms
        self._is_rolling = False
        self._is_idle_marked = True
        self._barrier: Done | None = None
        """The futures of the marker that is written now, and of the one after it."""
        self._next_barrier: Done | None = None
        self._timer: Timer | None = None
        self._list_lock = asyncio.Lock()
        self.error: Exception | None = None

    async def begin(self) -> None:
        """Begin the next ledger; when this returns its header is stored, so nobody led meanwhile.

        Raises LeadershipLost, LogUnavailable.
        """
        config = self._config
        try:
            handle = await self._bookkeeper.create_ledger(
                ensemble_size=config.ensemble_size,
                write_quorum=config.write_quorum,
                ack_quorum=config.ack_quorum,
                password=config.password,
                custom_metadata=(
                    ("application", APPLICATION),
                    ("component", COMPONENT),
                    ("magnetar/state-log", f"{config.root} {self.term.list.log}".encode()),
                ),
            )
        except BookKeeperError as error:
            raise LogUnavailable(f"{self._name}: no ledger can be created: {error}") from error
        try:
            async with self._list_lock:
                await self.term.add(handle.ledger_id, self._replica.number + 1)  # rule 1
            self._check()
        except LeadershipLost:
            await handle.abandon()
            if not await self.term.may_be_listed(handle.ledger_id):
                await self._discard(handle.ledger_id)
            raise
        except BaseException:
            await handle.abandon()  # it may be listed: the next leader closes it
            raise
        self._replica.enter(ListedLedger(handle.ledger_id, self.term.list.term, self._replica.number + 1))
        self._handle = handle
        self._ledger_entries = self._ledger_bytes = 0
        handle.listener = self
        header = Header(self.term.list.term, self._replica.number + 1, self.term.list.leader)
        try:
            entry_id = self._append(header, None)
            await handle.wait_for(entry_id)
            self.on_acknowledged(entry_id)
        except BookKeeperError as error:
            raise LogUnavailable(f"{self._name}: the first entry was not stored: {error}") from error
        self._check()

    async def _discard(self, ledger_id: int) -> None:
        try:
            await self._bookkeeper.delete_ledger(ledger_id)
        except BookKeeperError as error:
            log.warning("%s: ledger %d, which nobody lists, could not be deleted: %s", self._name, ledger_id, error)

    def propose(self, payload: bytes, token: Token) -> Done:
        """Raises TooManyProposals, EditRefused: nothing was done. The future fails with ProposalUnknown."""
        self._check()
        done: Done = asyncio.get_running_loop().create_future()
        applied = self._replica.find_applied(token)
        if applied is not None:
            done.set_result(applied)
            return done
        if len(payload) > EDIT_BYTES_MAX:
            raise EditRefused(f"{self._name}: an edit of {len(payload)} bytes; at most {EDIT_BYTES_MAX} are taken")
        waiting = len(self._written) + len(self._queue)
        if waiting >= PROPOSALS_MAX or self._bytes + len(payload) > PROPOSED_BYTES_MAX:
            raise TooManyProposals(f"{self._name}: {waiting} edits are not acknowledged; propose again later")
        proposal = _Proposal(payload, token, done)
        self._roll_if_due()
        if self._is_rolling:
            self._queue.append(proposal)
        else:
            self._write(proposal)
        self._bytes += len(payload)
        return done

    async def barrier(self) -> None:
        """Return when all that any leader acknowledged before this call is in the state (rule 5).

        Raises ProposalUnknown, LeadershipLost: this node leads no more.
        """
        self._check()
        if self._next_barrier is None:
            self._next_barrier = asyncio.get_running_loop().create_future()
            if self._barrier is None:
                asyncio.get_running_loop().call_soon(self._send_barrier)
        await asyncio.shield(self._next_barrier)

    def _send_barrier(self) -> None:
        """Write one marker for all calls that came since the one before was written."""
        if self.error is not None or self._barrier is not None or self._next_barrier is None or self._is_rolling:
            return
        self._barrier, self._next_barrier = self._next_barrier, None
        self._barrier.add_done_callback(self._on_barrier)
        try:
            self._append(Marker(self._next_number - 1), self._barrier)
        except BookKeeperError as error:
            self._written.append(_Written(-1, Marker(0), self._barrier))  # it fails with the rest
            self.fail(error)

    def _on_barrier(self, done: Done) -> None:
        if not done.cancelled():
            done.exception()  # retrieved: all callers may have been cancelled
        self._barrier = None
        self._send_barrier()

    def _write(self, proposal: _Proposal) -> None:
        self._last_time_ms = max(self._last_time_ms, self._clock.wall_ms())
        edit = Edit(self._next_number, self._last_time_ms, proposal.token, proposal.payload)
        try:
            self._append(edit, proposal.done)
        except (TooManyPending, EntryTooLarge) as error:
            raise TooManyProposals(f"{self._name}: {error}") from error
        except BookKeeperError as error:
            self.fail(error)
            raise ProposalUnknown(f"{self._name}: {error}", proposal.token) from error
        self._next_number += 1

    def _append(self, record: Record, done: Done | None) -> int:
        assert self._handle is not None
        data = encode(record)
        entry_id = self._handle.append([data])
        self._ledger_entries += 1
        self._ledger_bytes += len(data)
        self._written.append(_Written(entry_id, record, done))
        self._is_idle_marked = not isinstance(record, Edit)
        return entry_id

    # The ledger's listener

    def on_acknowledged(self, up_to: int) -> None:
        handle = self._handle
        if self.error is not None or handle is None:
            return
        while self._written and self._written[0].entry_id <= up_to:
            entry_id, record, done = self._written.popleft()
            try:
                applied = self._replica.fold(Position(handle.ledger_id, entry_id), record)  # rule 2
            except LogStopped as error:
                if done is not None and not done.done():
                    done.set_exception(error)
                self.fail(error)
                return
            if isinstance(record, Edit):
                self._bytes -= len(record.payload)
            if done is not None and not done.done():
                done.set_result(applied if applied is not None else Applied(self._replica.number, None))
        self._roll_if_due()
        if not self._written and not self._is_rolling and not self._is_idle_marked and self._timer is None:
            self._timer = self._clock.call_later(self._config.marker_s, self._mark)

    def on_failed(self, error: BookKeeperError) -> None:
        self.fail(error)

    def _mark(self) -> None:
        self._timer = None
        if self.error is None and not self._written and not self._is_idle_marked and not self._is_rolling:
            try:
                self._append(Marker(self._next_number - 1), None)
            except BookKeeperError as error:
                self.fail(error)

    def _roll_if_due(self) -> None:
        config = self._config
        is_due = self._ledger_entries > config.ledger_edits or self._ledger_bytes >= config.ledger_bytes
        if is_due and not self._is_rolling:
            self._is_rolling = True
            self._tasks.spawn(self._roll(), "next ledger")

    async def _roll(self) -> None:
        handle = self._handle
        assert handle is not None
        try:
            if self._written:
                await handle.wait_for(self._written[-1].entry_id)
                self.on_acknowledged(handle.last_add_confirmed)
            self._check()
            handle.listener = None
            metadata = await handle.close()  # rule 3
            if not self._replica.may_leave(metadata.last_entry_id):
                raise LeadershipLost(f"{self._name}: ledger {handle.ledger_id} was closed elsewhere")
            await self.begin()
        except (BookKeeperError, StateLogError) as error:
            self.fail(error)
            return
        self._is_rolling = False
        self._send_barrier()
        while self._queue and self.error is None:
            self._roll_if_due()
            if self._is_rolling:
                return  # the rest goes into the ledger after this one
            proposal = self._queue.popleft()
            try:
                self._write(proposal)
            except StateLogError as error:
                self._bytes -= len(proposal.payload)
                if not proposal.done.done():
                    proposal.done.set_exception(error)

    async def drop(self, ledger_ids: tuple[int, ...]) -> None:
        """Drop ledgers that `LogList.droppable` named. Raises LeadershipLost, LogUnavailable."""
        async with self._list_lock:
            await self.term.drop(ledger_ids, self._bookkeeper)

    async def check(self) -> None:
        """Ask whether another leader has claimed the list; if so the term is over. Raises LogUnavailable."""
        async with self._list_lock:  # a change of our own is not taken for another's
            try:
                await self.term.check()
            except LeadershipLost as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """The term is over (rule 4)."""
        if self.error is not None:
            return
        self.error = error if isinstance(error, Exception) else LogUnavailable(repr(error))
        self._end_all(f"{self._name}: the leadership ended: {error}")
        self._on_lost(self.error)

    def _end_all(self, text: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [
            (entry.done, entry.record.token if isinstance(entry.record, Edit) else None) for entry in self._written
        ]
        waiting += [(entry.done, entry.token) for entry in self._queue]
        waiting.append((self._next_barrier, None))
        self._written.clear()
        self._queue.clear()
        for done, token in waiting:
            if done is not None and not done.done():
                done.set_exception(ProposalUnknown(text, token))

    async def stop(self, *, seal: bool) -> None:
        """End the term. *seal*: wait for what is under way and close the ledger, so that the next leader finds it
        closed. What fails then is left to the next leader."""
        handle = self._handle
        if seal and self.error is None and handle is not None and not self._is_rolling:
            try:
                if self._written:
                    await handle.wait_for(self._written[-1].entry_id)
                    self.on_acknowledged(handle.last_add_confirmed)
                self.error = LeadershipLost(f"{self._name}: given up")
                await handle.close()
            except BookKeeperError as error:
                log.warning("%s: ledger %d is closed by the next leader: %s", self._name, handle.ledger_id, error)
        self.error = self.error or LeadershipLost(f"{self._name}: given up")
        self._end_all(f"{self._name}: the leadership was given up")
        await self._tasks.cancel()
        if handle is not None:
            await handle.abandon()

    def _check(self) -> None:
        if self.error is not None:
            raise LeadershipLost(f"{self._name}: {self.error}")
