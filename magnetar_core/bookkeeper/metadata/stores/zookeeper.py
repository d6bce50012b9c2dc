"""The metadata tree in Apache ZooKeeper, through kazoo.

kazoo runs its own threads. Each of its events is passed to the loop once; nothing here blocks the loop.

What kazoo does not provide, and what is done instead:

* Watches are one-shot in ZooKeeper. On an event the watch is set again *before* the caller is called: the server
  answers in order, so the caller then reads nothing older than the new watch. After a reconnect all watches are set
  again and all callers are called. Setting the watch of a node's children reads all their names, so where children come
  and go fast this is done at a pace, and the caller is called once for all that happened meanwhile.
* kazoo holds requests back for as long as it is not connected. Here a request waits for the connection first, at most
  a session's time; only requests handed to kazoo while connected can have been applied.
* kazoo does not report heartbeats. For `last_answer` an `exists` is sent every third of the session's time. The value
  is the moment when the answered request was *sent*: from then on the server counts the session's time.
* A starting server may never answer a connect request, and kazoo would wait until the session has ended. Here the
  request is given up early.
* kazoo has no watch of a tree, which ZooKeeper has since 3.6. Its request is made here, and its events are taken from
  the connection's own thread, before the answers that come after them.
* kazoo sends each change as a request of its own. Changes of many nodes at once go as transactions (`ChangeGroups`).
* kazoo begins a new session on its own thread, and our loop hears of it later. A change is handed to kazoo only while
  the session under which it was decided is kazoo's own, under a mutex that kazoo's thread takes before it leaves a
  session; what was handed over and not sent by then is dropped by kazoo.
* kazoo reports a lost session only after it has reconnected. A caller that must stop earlier uses `last_answer`.
"""

import asyncio
import contextlib
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KazooState, WatchedEvent
from kazoo.retry import KazooRetry

from magnetar_core.bookkeeper.metadata.stores.kazoo_threads import (
    ADD_WATCH,
    CONNECT_ANSWER_S,
    REMOVE_WATCHES,
    Handler,
    TreeRequest,
    call,
    hear_connects,
    hear_events,
)
from magnetar_core.bookkeeper.metadata.stores.store import (
    ANY_VERSION,
    NO_NODE,
    Cancel,
    CannotWatch,
    Check,
    Delete,
    MetadataError,
    Node,
    NoNode,
    NotEmpty,
    Operation,
    OutcomeUnknown,
    Put,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
    TreeChanged,
    VersionConflict,
)
from magnetar_core.bookkeeper.metadata.stores.tree import check_operations, check_path, check_value, parent_of
from magnetar_core.bookkeeper.metadata.stores.watches import Watches
from magnetar_core.bookkeeper.metadata.stores.zookeeper_groups import Change, ChangeGroups
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.types import ConfigurationError

log = logging.getLogger(__name__)

# "The connection broke": the server may have got the request, or not.
_BROKEN: Final = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, SessionMovedError, KazooTimeoutError)

# A change that depends on the present state (create or set; create with parents) is tried so often: each try can lose a
# race with a client that deletes or creates the same nodes.
_ROUNDS: Final = 20

# Requests that kazoo holds at a time. Pipelining has its full effect with far fewer.
_IN_FLIGHT_MAX: Final = 1_000

# Between two settings of the watch on one node's children: a fixed part, and one for each name that was read. With
# 10,000 children a setting costs some 10 ms here and at the server, which is a twentieth of the time then.
_WATCH_PACE_S: Final = 0.02
_WATCH_PACE_NAME_S: Final = 20e-6


# The watch of a tree could not be set again after a reconnect, for another reason than a broken connection.
_TREE_RETRY_S: Final = 1.0

_PERSISTENT_RECURSIVE: Final = 1
_ANY_WATCH: Final = 3


class _Setting:
    """One setting of a server watch."""

    __slots__ = ("at", "names")

    def __init__(self, at: float) -> None:
        self.at = at
        """The time of this setting, by the clock."""
        self.names = 0
        """Children that were read with it. Written by kazoo's thread."""


class ZooKeeperStore:
    """One session with ZooKeeper. Made by `open`."""

    def __init__(self, hosts: str, chroot: str, session_timeout_s: float, clock: Clock) -> None:
        self._hosts = hosts
        self._chroot = chroot
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._watches = Watches()
        # Server watches that are set: (path, of children) → that setting. An event of an older setting must not set the
        # watch again, or the number of watches would grow without end.
        self._armed: dict[tuple[str, bool], _Setting] = {}
        self._connected = asyncio.Event()
        self.epoch = 0
        """Counts sessions."""
        """Counts sessions: a change that was decided under an older one is not sent."""
        self._kazoo_epoch = 0
        """The same as kazoo's thread knows it, which is earlier. Changed and compared under the mutex."""
        self._handing_over = threading.Lock()
        self._closed = False
        self.last_answer = clock.monotonic()
        """When the latest answered request was sent: the server counts the session's time from then on."""
        self._timer: Timer | None = None
        self._hops: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """Events of kazoo's threads on their way to the loop."""
        self._is_hopping = False
        self._in_flight = asyncio.Semaphore(_IN_FLIGHT_MAX)
        self._groups = ChangeGroups(self)
        self.session_timeout_s = session_timeout_s
        self._give_up = math.inf  # by the clock; see `hurry`
        self._waiting: set[asyncio.Timeout] = set()
        """The time-outs of requests that wait for a connection."""
        kazoo_client: Any = KazooClient  # kazoo has no types
        kazoo_retry: Any = KazooRetry
        self._client: Any = kazoo_client(
            hosts=hosts,
            timeout=session_timeout_s,
            handler=Handler(clock),
            # Try without end, often: a server that comes back is found within half a second.
            connection_retry=kazoo_retry(max_tries=-1, delay=0.05, backoff=2, max_delay=0.5),
            logger=_quiet_logger(),
        )
        self._client.add_listener(self._on_kazoo_state)
        hear_connects(self._client, self._on_session_granted)
        hear_events(self._client, lambda path: self._call_on_loop(self._on_tree_event, path))

    @classmethod
    async def open(cls, hosts: str, session_timeout_s: float, clock: Clock) -> "ZooKeeperStore":
        """Connect to `host:port[,host:port…][/chroot]`; the chroot is made if it is missing.

        Raises StoreUnavailable if no server answers within the session's time (10 s at least).
        """
        servers, slash, chroot = hosts.partition("/")
        if not all(part.strip() for part in servers.split(",")):
            raise ConfigurationError(f"zk:{hosts}: expected host:port[,host:port][/chroot]")
        store = cls(servers, slash + chroot.rstrip("/") if chroot else "", session_timeout_s, clock)
        # start_async joins threads of a former start; there are none, so it returns at once.
        store._client.start_async()
        try:
            await store._connection(max(session_timeout_s, 10.0))
            if store._chroot:
                await store._create_path(store._chroot)
        except BaseException:
            await store.close()
            raise
        store._keep_session()
        return store

    # MetadataStore

    async def get(self, path: str) -> Node | None:
        check_path(path)

        def ask() -> Any:
            return self._client.get_async(self._path_on_server(path))

        try:
            value, stat = await self._ask(path, ask)
        except NoNodeError:
            return None
        return self._node(path, value, stat)

    async def exists(self, path: str) -> bool:
        check_path(path)
        return await self._ask(path, lambda: self._client.exists_async(self._path_on_server(path))) is not None

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
    ) -> int:
        check_path(path)
        check_value(path, value)
        value = bytes(value)
        real = self._path_on_server(path)
        epoch = self.epoch
        version = -1 if expected_version is None else expected_version
        for _ in range(_ROUNDS):
            if expected_version != NO_NODE:
                try:
                    stat = await self._groups.send(
                        Change(
                            path,
                            epoch,
                            ephemeral,
                            len(path) + len(value),
                            lambda: self._client.set_async(real, value, version),
                            lambda transaction: transaction.set_data(real, value, version),
                        )
                    )
                    return int(stat.version)
                except BadVersionError:
                    raise VersionConflict(f"{path} does not have version {expected_version}") from None
                except NoNodeError:
                    if expected_version is not None:
                        raise VersionConflict(f"{path} does not exist, expected version {expected_version}") from None
            try:
                await self._create(path, epoch, ephemeral, value)
                if ephemeral and epoch != self.epoch:
                    # The answer came late. Without this error the caller would believe that the node is its own.
                    raise SessionLost(f"{path}: the session ended while the node was made, and the node with it")
                return 0
            except NodeExistsError:
                if expected_version == NO_NODE:
                    raise VersionConflict(f"{path} exists, expected no node") from None
        raise StoreUnavailable(f"{path}: others create and delete it all the time")

    async def put_sequential(self, path_prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        check_path(parent_of(path_prefix))
        check_value(path_prefix, value)
        path: str = await self._create(path_prefix, self.epoch, ephemeral, bytes(value), sequence=True)
        return path[len(self._chroot) :]

    async def next_number(self, path: str) -> int:
        check_path(path)
        stat = await self._ask(path, lambda: self._client.exists_async(self._path_on_server(path)))
        # ZooKeeper counts the children that were made, and shows twice that less those that are there.
        return 0 if stat is None else (int(stat.cversion) + int(stat.numChildren)) // 2

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        check_path(path)
        version = -1 if expected_version is None else expected_version
        if expected_version == NO_NODE:
            raise VersionConflict(f"{path}: expected no node, and was to delete it")
        try:
            await self._groups.send(
                Change(
                    path,
                    self.epoch,
                    False,
                    len(path),
                    lambda: self._client.delete_async(self._path_on_server(path), version),
                    lambda transaction: transaction.delete(self._path_on_server(path), version),
                )
            )
        except NoNodeError:
            raise NoNode(f"{path} does not exist") from None
        except BadVersionError:
            raise VersionConflict(f"{path} does not have version {expected_version}") from None
        except NotEmptyError:
            raise NotEmpty(f"{path} has children") from None

    async def multi(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)
        if not operations:
            return
        epoch = self.epoch
        # ZooKeeper has two requests, create and set; its answer shows which of them a put needs.
        creates = {
            at
            for at, operation in enumerate(operations)
            if isinstance(operation, Put) and operation.expected_version == NO_NODE
        }
        for _ in range(_ROUNDS + 2 * len(operations)):
            refused = await self._send_multi(operations, creates, epoch)
            if refused is None:
                return
            at, error = refused
            operation = operations[at]
            is_any_put = isinstance(operation, Put) and operation.expected_version is ANY_VERSION
            if isinstance(operation, Put) and isinstance(error, NoNodeError) and at in creates:
                await self._create_path(parent_of(self._path_on_server(operation.path)))
            elif is_any_put and isinstance(error, NoNodeError):
                creates.add(at)
            elif is_any_put and isinstance(error, NodeExistsError):
                creates.discard(at)
            else:
                raise _refusal(operation, error) from None
        raise StoreUnavailable(f"{operations[0].path}: others create and delete the same nodes all the time")

    async def _send_multi(
        self, operations: Sequence[Operation], creates: set[int], epoch: int
    ) -> tuple[int, Exception] | None:
        """Send one transaction; the number of the operation that was refused, with its error; None: all is done."""

        def join(transaction: Any) -> None:
            for at, operation in enumerate(operations):
                real = self._path_on_server(operation.path)
                version = -1 if operation.expected_version is None else operation.expected_version
                if isinstance(operation, Delete):
                    transaction.delete(real, version)
                elif isinstance(operation, Check):
                    transaction.check(real, version)
                elif at in creates:
                    transaction.create(real, bytes(operation.value))
                else:
                    transaction.set_data(real, bytes(operation.value), version)

        def alone() -> Any:
            transaction = self._client.transaction()
            join(transaction)
            return transaction.commit_async()

        size_bytes = sum(
            len(operation.path) + (len(operation.value) if isinstance(operation, Put) else 0)
            for operation in operations
        )
        change = Change(operations[0].path, epoch, False, size_bytes, alone, join, len(operations))
        answers = await self._groups.send(change)
        for at, answer in enumerate(answers):
            # Those before the refused one are rolled back, those behind it were not looked at.
            if isinstance(answer, Exception) and not isinstance(answer, RolledBackError | RuntimeInconsistency):
                return at, answer
        if any(isinstance(answer, Exception) for answer in answers) or len(answers) != len(operations):
            raise MetadataError(f"{operations[0].path}: ZooKeeper refused the changes and does not say which of them")
        return None

    async def children(self, path: str) -> list[str]:
        check_path(path)
        try:
            names = await self._ask(path, lambda: self._client.get_children_async(self._path_on_server(path)))
        except NoNodeError:
            return []
        return sorted(name for name in names if self._chroot or path != "/" or name != "zookeeper")

    async def sync(self) -> None:
        await self._ask("/", lambda: self._client.sync_async(self._path_on_server("/")))

    def watch_node(self, path: str, changed: Callable[[], None]) -> Cancel:
        cancel = self._watches.watch_node(path, changed)
        self._set_server_watch(path, False)
        return cancel

    def watch_children(self, path: str, changed: Callable[[], None]) -> Cancel:
        cancel = self._watches.watch_children(path, changed)
        self._set_server_watch(path, True)
        return cancel

    async def watch_tree(self, path: str, changed: TreeChanged) -> Cancel:
        cancel = self._watches.watch_tree(path, changed)
        try:
            await self._ask(path, lambda: self._tree_request(ADD_WATCH, path, _PERSISTENT_RECURSIVE))
        except UnimplementedError:
            cancel()
            raise CannotWatch(f"{path}: this ZooKeeper has no watch of a tree; 3.6 has it") from None
        except BaseException:
            cancel()
            raise

        def end() -> None:
            cancel()
            if path not in self._watches.watched_trees and self._connected.is_set() and not self._closed:
                self._tree_request(REMOVE_WATCHES, path, _ANY_WATCH)

        return end

    def watch_session(self, changed: Callable[[SessionEvent], None]) -> Cancel:
        return self._watches.watch_session(changed)

    def hurry(self, wait_s: float) -> None:
        self._give_up = min(self._give_up, self._clock.monotonic() + wait_s)
        latest = asyncio.get_running_loop().time() + wait_s
        for limit in self._waiting:
            when = limit.when()
            limit.reschedule(latest if when is None else min(when, latest))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.clear()
        if self._timer is not None:
            self._timer.cancel()
        # Both join kazoo's threads.
        await self._loop.run_in_executor(None, self._stop)

    def _stop(self) -> None:
        try:
            self._client.stop()
        except Exception as error:
            log.warning("ending the ZooKeeper session: %s", error)
        with contextlib.suppress(Exception):
            self._client.close()

    # Requests

    def _path_on_server(self, path: str) -> str:
        if not self._chroot:
            return path
        return self._chroot if path == "/" else self._chroot + path

    async def _connection(self, timeout_s: float) -> None:
        if self._closed:
            raise SessionLost(f"{self._hosts}: the ZooKeeper session was closed")
        if self._connected.is_set():
            return
        try:
            async with asyncio.timeout(timeout_s) as limit:
                self._waiting.add(limit)
                try:
                    await self._connected.wait()
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            waited = f"answered within {timeout_s:.1f} s" if timeout_s > 0 else "answers"
            raise StoreUnavailable(f"no ZooKeeper server of {self._hosts} {waited}; nothing was changed") from None

    async def _ask(self, path: str, ask: Callable[[], Any]) -> Any:
        """Send a read; send it again after a broken connection, within one session's time."""
        deadline = self._clock.monotonic() + self._patience_s
        while True:
            await self._connection(max(deadline - self._clock.monotonic(), 0.0))
            try:
                return await self._send(ask)
            except _BROKEN as error:
                if self._clock.monotonic() >= deadline:
                    raise StoreUnavailable(f"{path}: the connection to ZooKeeper broke: {error!r}") from error
                # kazoo reports broken requests before it reports the lost connection.
                await self._clock.sleep(0.01)
            except (KazooException, TimeoutError) as error:
                if isinstance(error, NoNodeError | UnimplementedError):
                    raise
                raise StoreUnavailable(f"{path}: {error!r}") from error

    async def _change(self, path: str, epoch: int, of_session: bool, ask: Callable[[], Any]) -> Any:
        """Send a change, once. *epoch* is the session under which it was decided."""
        await self._connection(self._patience_s)

        def hand_over() -> Any:
            with self._handing_over:
                if epoch == self._kazoo_epoch:
                    return ask()
            if of_session:
                raise SessionLost(f"{path}: the session ended before this was sent")
            raise StoreUnavailable(f"{path}: the session ended before this was sent; nothing was changed")

        try:
            return await self._send(hand_over)
        except _BROKEN as error:
            raise OutcomeUnknown(f"{path}: the connection to ZooKeeper broke during the change") from error
        except (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError):
            raise
        except TimeoutError as error:
            raise OutcomeUnknown(f"{path}: ZooKeeper did not answer") from error
        except KazooException as error:
            raise MetadataError(f"{path}: {error!r}") from error

    async def send_change(self, change: Change) -> Any:
        """See `zookeeper_groups.Sender`."""
        return await self._change(change.path, change.epoch, change.of_session, change.alone)

    async def send_group(self, changes: Sequence[Change]) -> Sequence[Any] | None:
        """See `zookeeper_groups.Sender`."""
        transaction = self._client.transaction()
        for change in changes:
            change.join(transaction)
        paths = f"{changes[0].path} and {len(changes) - 1} more"
        of_session = any(change.of_session for change in changes)
        answers = await self._change(paths, changes[0].epoch, of_session, transaction.commit_async)
        if len(answers) != len(transaction.operations) or any(isinstance(answer, Exception) for answer in answers):
            return None
        return list(answers)

    async def _create(self, path: str, epoch: int, ephemeral: bool, value: bytes, sequence: bool = False) -> Any:
        """Raises NodeExistsError. Parents are made where they are missing."""
        real = self._chroot + path if sequence else self._path_on_server(path)
        for _ in range(_ROUNDS):
            try:
                return await self._groups.send(
                    Change(
                        path,
                        epoch,
                        ephemeral,
                        len(path) + len(value),
                        lambda: self._client.create_async(real, value, ephemeral=ephemeral, sequence=sequence),
                        lambda transaction: transaction.create(real, value, ephemeral=ephemeral, sequence=sequence),
                    )
                )
            except NoNodeError:
                await self._create_path(parent_of(real))
        raise StoreUnavailable(f"{path}: others delete its parents all the time")

    async def _create_path(self, real: str) -> None:
        """Make the persistent node *real* (chroot included) and its parents, with empty values."""
        missing = [real]
        while missing:
            node = missing[-1]
            try:
                await self._change(node, self.epoch, False, lambda: self._client.create_async(node, b""))  # noqa: B023
            except NodeExistsError:
                missing.pop()
            except NoNodeError:
                missing.append(parent_of(node))
                if len(missing) > 1_000:
                    raise StoreUnavailable(f"{real}: others delete its parents all the time") from None
            else:
                missing.pop()

    @property
    def _patience_s(self) -> float:
        """How long a request may wait: a session's time, after which the ephemeral nodes are gone anyway."""
        return min(max(self.session_timeout_s, 1.0), max(self._give_up - self._clock.monotonic(), 0.0))

    async def _send(self, ask: Callable[[], Any]) -> Any:
        """Hand a request to kazoo and wait for its answer. Raises kazoo's errors, TimeoutError."""
        async with self._in_flight:
            sent = self._clock.monotonic()
            answer: asyncio.Future[Any] = self._loop.create_future()

            def on_kazoo_thread(result: Any) -> None:
                self._call_on_loop(self._on_answer, answer, result, sent)

            ask().rawlink(on_kazoo_thread)
            # kazoo drops a connection whose heartbeats are not answered, so within a session's time an answer comes or
            # the connection breaks; twice that is a second guard. After `hurry`, a slow server still gets a moment.
            async with asyncio.timeout(max(2 * self._patience_s, CONNECT_ANSWER_S)):
                return await answer

    def _on_answer(self, answer: "asyncio.Future[Any]", result: Any, sent: float) -> None:
        error = result.exception
        if error is None or not isinstance(error, _BROKEN):
            self.last_answer = max(self.last_answer, sent)
        if answer.done():
            return
        if error is None:
            answer.set_result(result.value)
        else:
            answer.set_exception(error)

    def _call_on_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back on the loop, in the order of these calls. The loop is woken once for all that gathers meanwhile."""
        self._hops.append((callback, arguments))
        if self._is_hopping:
            return
        self._is_hopping = True
        try:
            self._loop.call_soon_threadsafe(self._run_hops)
        except RuntimeError:  # the loop is closed: there is no callback to call
            self._hops.clear()
            self._is_hopping = False

    def _run_hops(self) -> None:
        self._is_hopping = False  # before the look: what comes after it wakes the loop again
        while self._hops:
            callback, arguments = self._hops.popleft()
            self._loop.call_soon(callback, *arguments)

    def _node(self, path: str, value: bytes, stat: Any) -> Node:
        identity = self._client.client_id
        own = identity is not None and stat.ephemeralOwner == identity[0]
        return Node(
            path,
            value or b"",
            stat.version,
            stat.ephemeralOwner != 0,
            own and stat.ephemeralOwner != 0,
            stat.ctime,
            stat.mtime,
            stat.numChildren,
        )

    # Watches

    def _set_server_watch(self, path: str, of_children: bool) -> None:
        """Set the server's watch for *path*, if there is a callback for it and it is not set."""
        key = (path, of_children)
        if key in self._armed or self._closed or not self._connected.is_set():
            return  # `_arm_all` sets it when connected
        setting = self._armed[key] = _Setting(self._clock.monotonic())
        real = self._path_on_server(path)

        def on_event(event: WatchedEvent) -> None:
            if event.type != EventType.NONE:  # NONE: the connection broke; `_arm_all` sets it again
                self._call_on_loop(self._on_watch_event, key, setting)

        def on_appearance_watched(result: Any) -> None:
            if result.exception is None and result.value is not None:
                self._call_on_loop(self._on_watch_event, key, setting)  # it appeared in between

        def on_children_watched(result: Any) -> None:
            # The node does not exist, so it has no children to watch: wait until it appears.
            if isinstance(result.exception, NoNodeError):
                self._client.exists_async(real, watch=on_event).rawlink(on_appearance_watched)
            elif result.exception is None:
                setting.names = len(result.value)

        if of_children:
            self._client.get_children_async(real, watch=on_event).rawlink(on_children_watched)
        else:
            self._client.exists_async(real, watch=on_event)

    def _on_watch_event(self, key: tuple[str, bool], setting: _Setting) -> None:
        path, of_children = key
        watched = self._watches.watched_children if of_children else self._watches.watched_nodes
        if self._armed.get(key) is setting:
            if of_children:
                pace_s = _WATCH_PACE_S + setting.names * _WATCH_PACE_NAME_S
                wait_s = setting.at + pace_s - self._clock.monotonic()
                if wait_s > 0 and not self._closed:
                    # After a reconnect in between, the watch has another setting, and this event stays without effect.
                    self._clock.call_later(wait_s, partial(self._on_watch_event, key, setting))
                    return
            del self._armed[key]
            if path in watched:
                self._set_server_watch(path, of_children)
        if of_children:
            self._watches.children_changed(path)
        else:
            self._watches.node_changed(path)

    def _tree_request(self, kind: int, path: str, number: int) -> Any:
        return call(self._client, TreeRequest(kind, self._path_on_server(path), number))

    def _arm_tree(self, path: str) -> None:
        """Set the watch of a tree again, after a reconnect."""

        def on_answer(result: Any) -> None:
            if result.exception is not None and not isinstance(result.exception, _BROKEN):
                self._call_on_loop(self._on_tree_refused, path, result.exception)

        self._tree_request(ADD_WATCH, path, _PERSISTENT_RECURSIVE).rawlink(on_answer)

    def _on_tree_refused(self, path: str, error: Exception) -> None:
        if self._closed or path not in self._watches.watched_trees:
            return
        log.warning("the watch of all below %s could not be set again: %r", path, error)

        def set_again() -> None:
            if not self._closed and self._connected.is_set() and path in self._watches.watched_trees:
                self._arm_tree(path)
                self._watches.all_trees_changed()

        self._clock.call_later(_TREE_RETRY_S, set_again)

    def _on_tree_event(self, real: str) -> None:
        if self._closed:
            return
        if real.startswith(self._chroot + "/"):
            self._watches.tree_changed(real[len(self._chroot) :])
        elif real == self._chroot:
            self._watches.tree_changed("/")

    # Session

    def _on_session_granted(self, session_s: float) -> None:
        """Runs on kazoo's thread. The server may grant another time than was asked for."""
        self.session_timeout_s = session_s

    def _on_kazoo_state(self, state: str) -> None:
        """Runs on kazoo's thread: passes the event to the loop. After LOST, kazoo drops what was handed over."""
        if state == KazooState.LOST:
            with self._handing_over:
                self._kazoo_epoch += 1
        self._call_on_loop(self._on_state, state)

    def _on_state(self, state: str) -> None:
        if self._closed:
            return
        self._armed.clear()
        if state == KazooState.CONNECTED:
            self._connected.set()
            for path in tuple(self._watches.watched_nodes):
                self._set_server_watch(path, False)
            for path in tuple(self._watches.watched_children):
                self._set_server_watch(path, True)
            for path in self._watches.watched_trees:
                self._arm_tree(path)
            self._watches.session_changed(SessionEvent.CONNECTED)
            self._watches.everything_changed()
            self._beat_now()
        elif state == KazooState.SUSPENDED:
            self._connected.clear()
            self._watches.session_changed(SessionEvent.SUSPENDED)
        elif state == KazooState.LOST:
            self._connected.clear()
            self.epoch += 1
            self._watches.session_changed(SessionEvent.LOST)

    def _keep_session(self) -> None:
        """Ask the server something every third of the session's time, to know that the session lives."""
        if self._closed:
            return
        self._beat_now()
        self._timer = self._clock.call_later(self.session_timeout_s / 3, self._keep_session)

    def _beat_now(self) -> None:
        if not self._connected.is_set():
            return
        sent = self._clock.monotonic()
        self._client.exists_async("/").rawlink(lambda result: self._call_on_loop(self._on_beat, result, sent))

    def _on_beat(self, result: Any, sent: float) -> None:
        if not isinstance(result.exception, _BROKEN):
            self.last_answer = max(self.last_answer, sent)


def _refusal(operation: Operation, error: Exception) -> MetadataError:
    """Why ZooKeeper refused one change of several, as the single call says it."""
    if isinstance(error, BadVersionError):
        return VersionConflict(f"{operation.path} does not have version {operation.expected_version}")
    if isinstance(error, NodeExistsError):
        return VersionConflict(f"{operation.path} exists, expected no node")
    if isinstance(error, NoNodeError):
        if isinstance(operation, Delete):
            return NoNode(f"{operation.path} does not exist")
        return VersionConflict(f"{operation.path} does not exist, expected version {operation.expected_version}")
    if isinstance(error, NotEmptyError):
        return NotEmpty(f"{operation.path} has children")
    return MetadataError(f"{operation.path}: {error!r}")


def _quiet_logger() -> logging.Logger:
    """A logger for kazoo that shows errors only. Otherwise kazoo logs each try to reconnect, twice a second while a
    server is away; our own events say it once."""
    logger = logging.getLogger("magnetar.kazoo")
    logger.setLevel(logging.ERROR)
    return logger
