"""A metadata server of a simulation, and the sessions of processes with it, as ZooKeeper has them.

    process ──request──▶ (way) ──▶ server: changes the tree ──answer, watches──▶ (way) ──▶ process

Fault model: requests and answers of a session arrive in order, after a drawn time; the connection breaks, and then a
change that was under way happened or not (`OutcomeUnknown`); a cut or a process that stands still says nothing, and its
session ends at the server when nothing was heard for the session's time. The process hears of that when it reaches the
server again. Where the server stands still, sessions do not end before they could be heard again.
"""

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from magnetar.testing.simulated.loop import PROCESS, Process, VirtualLoop
from magnetar.testing.simulated.network import Network
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import (
    ANY_VERSION,
    Node,
    Operation,
    OutcomeUnknown,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
)
from magnetar_core.bookkeeper.metadata.stores.tree import Change, parent_of
from magnetar_core.bookkeeper.metadata.stores.watches import Watched
from magnetar_core.runtime.clock import Clock

SERVER: Final = "metadata"
"""The name of its host."""

# A client that has no connection tries again so often.
RECONNECT_S: Final = 0.2

# How often something that is held up on its way looks whether it can go on.
BLOCKED_S: Final = 0.05

# Parts of the session's time: a client is heard so often, and gives a connection up when it hears nothing for so long.
PING_SHARE: Final = 1 / 3
SILENCE_SHARE: Final = 2 / 3


class MetadataServer:
    """The tree, and the sessions that its clients have at the server."""

    def __init__(self, loop: VirtualLoop, network: Network, clock: Clock, rng: random.Random, session_s: float) -> None:
        self.loop = loop
        self.network = network
        self.rng = rng
        self.session_s = session_s
        self.root = MemoryStore(clock, session_timeout_s=session_s)
        self.context = contextvars.copy_context()
        self.delays_s: tuple[float, ...] = (0.0003, 0.0005, 0.001)
        self.breaks_share = 0.0
        """How many of the requests meet a connection that breaks, before or after they were carried out."""
        self.is_still = False
        """Whether it answers nothing, as in an election of its leader."""
        self.sessions: dict[_Session, None] = {}
        self.requests = 0
        """Requests so far, without those that only say that a session lives."""
        self.unheard = 0
        """How many of them were changes of which nobody knows whether they happened."""

    def session(self, clock: Clock) -> "SimulatedStore":
        """A store for the process that runs now."""
        return SimulatedStore(self, PROCESS.get(), clock)

    def break_connections(self) -> None:
        """All clients lose their connection; their sessions stay."""
        for session in list(self.sessions):
            session.break_()

    def stand_still(self) -> None:
        self.is_still = True

    def go_on(self) -> None:
        """All sessions that were there still are: their time begins anew."""
        self.is_still = False
        for session in self.sessions:
            session.heard_s = self.loop.time()


class _Way:
    """One direction of a connection: what is put in arrives in order, and waits while the way is not open."""

    def __init__(self, server: MetadataServer, context: contextvars.Context, is_open: Callable[[], bool]) -> None:
        self._server = server
        self._context = context
        self._is_open = is_open
        self._is_closed = False
        self._last_s = 0.0
        self._waiting: deque[Callable[[], None]] = deque()

    def put(self, arrived: Callable[[], None]) -> None:
        self._waiting.append(arrived)
        self._last_s = max(self._server.loop.time() + self._server.rng.choice(self._server.delays_s), self._last_s)
        self._server.loop.call_at(self._last_s, self._arrive, context=self._context)

    def close(self) -> None:
        self._is_closed = True
        self._waiting.clear()

    def _arrive(self) -> None:
        if self._is_closed or not self._waiting:
            return
        if self._is_open():
            self._waiting.popleft()()
        else:
            self._server.loop.call_later(BLOCKED_S, self._arrive, context=self._context)


class _Session:
    """A session, at the server."""

    def __init__(self, server: MetadataServer, client: "SimulatedStore") -> None:
        self.server = server
        self.client = client
        self.store = server.root.session(self._changed)
        self.heard_s = server.loop.time()
        self.has_ended = False
        server.sessions[self] = None
        self._look_later()

    def _look_later(self) -> None:
        left_s = self.heard_s + self.server.session_s - self.server.loop.time()
        self.server.loop.call_later(max(left_s, 0.001), self._look, context=self.server.context)

    def _look(self) -> None:
        if self.has_ended:
            return
        if not self.server.is_still and self.server.loop.time() >= self.heard_s + self.server.session_s:
            self.end()
            self.client.server_broke(self)
        else:
            self._look_later()

    def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self.server.sessions.pop(self)
            _now(self.store.close())

    def break_(self) -> None:
        self.client.server_broke(self)

    def _changed(self, change: Change) -> None:
        if self.client.watches(change):
            self.client.answer_later(self, lambda: self.client.noticed(change))


class SimulatedStore(Watched):
    """The metadata store of one process (`MetadataStore`)."""

    def __init__(self, server: MetadataServer, process: Process, clock: Clock) -> None:
        super().__init__()
        self._server = server
        self._process = process
        self._clock = clock
        self._loop = server.loop
        self._context = contextvars.copy_context()
        self._session = _Session(server, self)
        self._is_connected = True
        self._is_closed = False
        self._last_answer_s = clock.monotonic()
        self._connect()
        self._pending: dict[asyncio.Future[Any], bool] = {}
        """What waits for an answer, and whether it changes something."""
        self._loop.call_later(self._ping_s, self._ping)
        process.on_death.append(self._on_process_end)

    # The way to the server and back

    def _connect(self) -> None:
        """A new connection; what is under way on the former one is lost."""
        server, host = self._server, self._process.host
        network = server.network
        self._way = _Way(server, server.context, lambda: not network.is_cut(host, SERVER) and not server.is_still)
        self._way_back = _Way(server, self._context, lambda: not network.is_cut(SERVER, host))

    @property
    def _ping_s(self) -> float:
        return self._server.session_s * PING_SHARE

    def _on_process_end(self) -> None:
        """The system closes the connection. The session ends by its time."""
        self._is_closed = True
        self._way_back.close()

    def _request_later(self, carry_out: Callable[[], None]) -> None:
        """*carry_out* at the server, when the request has arrived there."""
        session = self._session

        def arrived() -> None:
            if not session.has_ended:
                session.heard_s = self._loop.time()
                carry_out()

        self._way.put(arrived)

    def answer_later(self, session: _Session, give: Callable[[], None]) -> None:
        """*give* in the process, when the answer has arrived there."""

        def arrived() -> None:
            self._last_answer_s = self._clock.monotonic()
            give()

        if session is self._session:
            self._way_back.put(arrived)

    async def _ask(self, question: Callable[[MemoryStore], Coroutine[Any, Any, Any]], *, changes: bool) -> Any:
        if self._is_closed:
            raise SessionLost("the metadata store was closed")
        if not self._is_connected:
            raise StoreUnavailable("the metadata store does not answer; nothing was changed")
        server, session = self._server, self._session
        server.requests += 1
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._pending[answer] = changes
        breaks = server.rng.random() < server.breaks_share
        breaks_before = breaks and server.rng.random() < 0.5

        def carry_out() -> None:
            if breaks_before:
                session.break_()
                return
            try:
                result, error = _now(question(session.store)), None
            except Exception as raised:
                result, error = None, raised
            if breaks:
                session.break_()
                return
            self.answer_later(session, lambda: _set_outcome(answer, result, error))

        self._request_later(carry_out)
        try:
            return await answer
        finally:
            self._pending.pop(answer, None)

    def watches(self, change: Change) -> bool:
        """Whether a watch is set for *change*; the server knows the watches of its sessions."""
        path, watches = change.path, self._watches
        return (
            path in watches.watched_nodes
            or path in watches.watched_children
            or ((change.appeared or change.record is None) and parent_of(path) in watches.watched_children)
            or any(path == tree or path.startswith(tree.rstrip("/") + "/") for tree in watches.watched_trees)
        )

    def noticed(self, change: Change) -> None:
        self._watches.applied(change)

    # The connection and the session

    def _ping(self) -> None:
        if self._is_closed:
            return
        silent_s = self._clock.monotonic() - self._last_answer_s
        if self._is_connected and silent_s > self._server.session_s * SILENCE_SHARE:
            self._lost_connection()
        elif self._is_connected:
            session = self._session
            self._request_later(lambda: self.answer_later(session, lambda: None))
        self._loop.call_later(self._ping_s, self._ping)

    def server_broke(self, session: _Session) -> None:
        """The server has closed the connection; the client hears of it, or not."""
        if session is self._session and not self._is_closed:
            self._way_back.put(self._lost_connection)

    def _lost_connection(self) -> None:
        if not self._is_connected or self._is_closed:
            return
        self._is_connected = False
        self._way.close()
        self._way_back.close()
        for answer, changes in list(self._pending.items()):
            error = OutcomeUnknown if changes else StoreUnavailable
            self._server.unheard += changes
            _set_outcome(answer, None, error("the connection to the metadata store was lost"))
        self._watches.session_changed(SessionEvent.SUSPENDED)
        self._loop.call_later(RECONNECT_S, self._reconnect)

    def _reconnect(self) -> None:
        if self._is_closed:
            return
        network, host = self._server.network, self._process.host
        if self._server.is_still or network.is_cut(host, SERVER) or network.is_cut(SERVER, host):
            self._loop.call_later(RECONNECT_S, self._reconnect)
            return
        is_new = self._session.has_ended
        if is_new:
            self._session = _Session(self._server, self)
        self._session.heard_s = self._loop.time()
        self._is_connected = True
        self._connect()
        self._last_answer_s = self._clock.monotonic()
        self._watches.session_changed(SessionEvent.LOST if is_new else SessionEvent.CONNECTED)
        self._watches.everything_changed()

    # MetadataStore

    async def get(self, path: str) -> Node | None:
        node: Node | None = await self._ask(lambda store: store.get(path), changes=False)
        return node

    async def exists(self, path: str) -> bool:
        return bool(await self._ask(lambda store: store.exists(path), changes=False))

    async def put(
        self, path: str, value: bytes, expected_version: int | None = ANY_VERSION, *, ephemeral: bool = False
    ) -> int:
        version: int = await self._ask(
            lambda store: store.put(path, value, expected_version, ephemeral=ephemeral), changes=True
        )
        return version

    async def put_sequential(self, path_prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        path: str = await self._ask(
            lambda store: store.put_sequential(path_prefix, value, ephemeral=ephemeral), changes=True
        )
        return path

    async def next_number(self, path: str) -> int:
        number: int = await self._ask(lambda store: store.next_number(path), changes=False)
        return number

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        await self._ask(lambda store: store.delete(path, expected_version), changes=True)

    async def multi(self, operations: Sequence[Operation]) -> None:
        await self._ask(lambda store: store.multi(operations), changes=True)

    async def children(self, path: str) -> list[str]:
        names: list[str] = await self._ask(lambda store: store.children(path), changes=False)
        return names

    async def sync(self) -> None:
        await self._ask(lambda store: store.sync(), changes=False)

    @property
    def session_timeout_s(self) -> float:
        return self._server.session_s

    @property
    def last_answer(self) -> float:
        return self._last_answer_s

    def hurry(self, wait_s: float) -> None:
        """Requests end with their connection, which takes less."""

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._watches.clear()
            self._session.end()


def _set_outcome(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _now(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of *work*, which does not wait for anything."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise AssertionError("a store in memory does not wait")
