"""Which bookies are there: each bookie registers itself, and clients watch the register.

    <root>/available/<bookieId>            ephemeral: takes new ledgers
    <root>/available/readonly/<bookieId>   ephemeral: only answers reads
    <root>/cookies/<bookieId>              persistent: which directories belong to the bookie

While a bookie changes its mode it may be in both places for an instant; then it counts as writable. The register is
only a hint (I59): a client knows that a bookie is there when the bookie answers.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from magnetar_core.bookkeeper.metadata.bookies.bookie_info import (
    BookieServiceInfo,
    bookie_id_problem,
    decode_info,
    info_of_id,
)
from magnetar_core.bookkeeper.metadata.ledgers import ledger_store
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Cancel,
    MetadataError,
    MetadataStore,
    Node,
    NoNode,
    OutcomeUnknown,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
    VersionConflict,
)
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks

log = logging.getLogger(__name__)

_READONLY: Final = "readonly"

# How long a registration waits until the node of a former session disappears, in stores whose sessions have no
# time-out.
_WAIT_WITHOUT_TIMEOUT_S: Final = 30.0

# How long it waits for a node that names its own address. The process that registered it has ended, since this process
# has the port now, but its session lasts as long as it asked for. ZooKeeper grants up to 20 ticks, 40 s by default.
_WAIT_FOR_FORMER_S: Final = 60.0

# How long a stopping bookie tries to remove its registration from a store that does not answer. The end of the session
# removes it anyway.
LEAVE_MAX_S: Final = 3.0

# How many bookies of a kind an error names.
_NAMED_MAX: Final = 10

# Registrations of new bookies that are read at the same time.
_READS_MAX: Final = 64

# How long until the next try when the store does not answer. Its events usually cause an earlier one.
_RETRY_S: Final = 1.0


class BookieIdInUse(MetadataError):
    """Another living process is registered under this bookie id."""


class BookieRegistration:
    """The registration of one bookie. After a lost session it registers again by itself.

    Before each registration `before` is called, and before any change of mode is shown after that; also when the store
    answers again in the same session: its data may be others then.

    *on_failure* is called if that does not succeed. Apache's bookie exits then, and the owner of this one should, too.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        bookie_id: str,
        clock: Clock,
        *,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        problem = bookie_id_problem(bookie_id)
        if problem is not None:
            raise MetadataError(problem)
        self._store = store
        self._root = root
        self._bookie_id = bookie_id
        self._clock = clock
        self._tasks = Tasks(f"registration of {bookie_id}", on_failure)
        self.before: Callable[[], Awaitable[None]] | None = None
        """Raises MetadataError or OSError if the bookie cannot register yet."""
        self._sessions = 0
        self._checked_session = -1
        """The session in which `before` has returned."""
        self._info: BookieServiceInfo | None = None
        self.read_only = False
        self._reason = ""
        # Whether the store has the mode and the reason: a change of them may fail half way.
        self._is_shown = True
        # One change of mode at a time; a repeated registration counts as one.
        self._mode_lock = asyncio.Lock()
        self._cancel_watch: Cancel | None = None

    async def register(self, info: BookieServiceInfo) -> None:
        """Register the bookie in its present mode.

        The bookie must listen at its address already. If the node of a former process is still there, this waits until
        it disappears: up to 60 s if it names the same address, else at most the session's time. Raises BookieIdInUse,
        StoreUnavailable, and what `before` raises.
        """
        await self._check()
        async with self._mode_lock:
            self._info = info
            if self._cancel_watch is None:
                self._cancel_watch = self._store.watch_session(self._on_session)
            await self._create(self._own_path)

    async def set_read_only(self, read_only: bool, reason: str = "") -> None:
        """Change the mode. The new node is made before the old one is removed, so the bookie is never missing.

        *reason*: why the bookie is read-only; stored in the registration, where all clients can read it. After a
        MetadataError the same call goes on with the change.
        """
        async with self._mode_lock:
            if self._is_shown and (read_only, reason) == (self.read_only, self._reason):
                return
            is_other_gone = self._is_shown and read_only == self.read_only
            self.read_only, self._reason = read_only, reason
            if self._info is None or not self._is_checked:
                return  # the registration that follows shows it
            self._is_shown = False
            await self._create(self._own_path)
            if not is_other_gone:
                await self._delete(self._path(not read_only))
            self._is_shown = True

    async def unregister(self) -> None:
        """Remove the registration. If the store does not answer, give up: the end of the session removes it."""
        if self._cancel_watch is not None:
            self._cancel_watch()
            self._cancel_watch = None
        await self._tasks.cancel()
        async with self._mode_lock:
            if self._info is None:
                return
            self._info = None
            try:
                async with asyncio.timeout(LEAVE_MAX_S):
                    for path in (self._path(False), self._path(True)):
                        node = await self._store.get(path)
                        if node is not None and node.own:
                            await self._delete(path)
            except (StoreUnavailable, SessionLost, TimeoutError) as error:
                reason = str(error) or f"the metadata store did not answer within {LEAVE_MAX_S:.0f} s"
                log.warning("%s stays registered until its session ends: %s", self._bookie_id, reason)

    async def read_cookie(self) -> Node | None:
        return await self._store.get(self._cookie_path)

    async def write_cookie(self, value: bytes, expected_version: int | None) -> int:
        """Write the cookie; return its new version. *expected_version* is NO_NODE for the first one. Raises
        VersionConflict."""
        return await self._store.put(self._cookie_path, value, expected_version)

    async def delete_cookie(self, expected_version: int | None) -> None:
        """Raises NoNode, VersionConflict."""
        await self._store.delete(self._cookie_path, expected_version)

    async def instance_id(self) -> str:
        """The id of the cluster. Raises NoNode if the cluster metadata was not initialised."""
        return await ledger_store.instance_id(self._store, self._root)

    @property
    def _cookie_path(self) -> str:
        return f"{self._root}/cookies/{self._bookie_id}"

    @property
    def _own_path(self) -> str:
        return self._path(self.read_only)

    def _path(self, read_only: bool) -> str:
        return f"{self._root}/available/{_READONLY + '/' if read_only else ''}{self._bookie_id}"

    @property
    def _is_checked(self) -> bool:
        return self.before is None or self._checked_session == self._sessions

    async def _check(self) -> None:
        session = self._sessions
        if self.before is not None:
            await self.before()
        self._checked_session = session

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.LOST and self._info is not None:
            self._sessions += 1
            self._tasks.spawn(self._register_again(), "register again")
        elif event is SessionEvent.CONNECTED and self.before is not None:
            self._tasks.spawn(self._check_again(), "look again")

    async def _check_again(self) -> None:
        """Call `before` again until it has returned."""
        while True:
            try:
                return await self._check()
            except (MetadataError, OSError) as error:
                log.warning("%s: it is not known yet whether the metadata are the same: %s", self._bookie_id, error)
                await self._clock.sleep(_RETRY_S)

    async def _register_again(self) -> None:
        while not self._is_checked:
            await self._check_again()
        async with self._mode_lock:
            while self._info is not None:
                try:
                    await self._create(self._own_path)
                except (StoreUnavailable, SessionLost) as error:
                    log.warning("%s: not registered yet: %s", self._bookie_id, error)
                    await self._clock.sleep(_RETRY_S)
                else:
                    log.info("%s: registered again under a new session", self._bookie_id)
                    return

    async def _create(self, path: str) -> None:
        assert self._info is not None
        value = (self._info.with_reason(self._reason) if self.read_only else self._info).encode()
        session_s = self._store.session_timeout_s
        wait_s = session_s if math.isfinite(session_s) else _WAIT_WITHOUT_TIMEOUT_S
        began_s = self._clock.monotonic()
        changed = asyncio.Event()
        cancel = self._store.watch_node(path, changed.set)
        try:
            while True:
                changed.clear()
                node = await self._store.get(path)
                if node is None:
                    # Taken, or unknown: the next round reads what is there.
                    with contextlib.suppress(VersionConflict, OutcomeUnknown):
                        await self._store.put(path, value, NO_NODE, ephemeral=True)
                        return
                elif node.own:
                    if node.value != value:
                        await self._store.put(path, value, node.version)
                    return
                else:
                    if self._is_former_self(node.value):
                        wait_s = max(wait_s, _WAIT_FOR_FORMER_S)
                    left_s = began_s + wait_s - self._clock.monotonic()
                    if left_s <= 0:
                        raise BookieIdInUse(
                            f"{path} is held by another session for {wait_s:.1f} s: is another bookie "
                            f"with the id {self._bookie_id} running? Give this one its own bookieId."
                        )
                    timer = self._clock.call_later(left_s, changed.set)
                    await changed.wait()
                    timer.cancel()
        finally:
            cancel()

    def _is_former_self(self, value: bytes) -> bool:
        """Whether a registration names the address that this process has now."""
        assert self._info is not None
        other = decode_info(self._bookie_id, value)
        ours = {(endpoint.host, endpoint.port) for endpoint in self._info.endpoints}
        return other is not None and any((endpoint.host, endpoint.port) in ours for endpoint in other.endpoints)

    async def _delete(self, path: str) -> None:
        with contextlib.suppress(NoNode):
            await self._store.delete(path)


class BookieDirectory:
    """Which bookies are registered, kept current by watches."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers", clock: Clock | None = None) -> None:
        self._store = store
        self._root = root
        self._clock = clock
        self.writable: frozenset[str] = frozenset()
        """Bookies that take new ledgers."""
        self.read_only: frozenset[str] = frozenset()
        """Bookies that only answer reads."""
        self._listeners: dict[object, Callable[[], None]] = {}  # by a token: each open ledger is one of them
        self._addresses: dict[str, tuple[str, int]] = {}
        self.hosts: Mapping[str, str] = {}
        """Bookie → host, of all that were there since the start; another object after each change."""
        self._tasks = Tasks("bookie directory")
        self._cancels: list[Cancel] = []
        self._reading = False
        self._changed = False

    async def start(self) -> None:
        """Read the register and watch it. Raises StoreUnavailable."""
        for path in (f"{self._root}/available", f"{self._root}/available/{_READONLY}"):
            self._cancels.append(self._store.watch_children(path, self._on_change))
        await self._read()

    async def stop(self) -> None:
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        self._listeners.clear()
        await self._tasks.cancel()

    @property
    def available(self) -> frozenset[str]:
        return self.writable | self.read_only

    async def read_writable(self) -> frozenset[str]:
        """The writable bookies, as the metadata store has them at this moment. Raises MetadataError."""
        return frozenset(await self._store.children(f"{self._root}/available")) - {_READONLY}

    async def read_read_only(self) -> frozenset[str]:
        """The read-only bookies, as the metadata store has them at this moment. Raises MetadataError."""
        read_only = frozenset(await self._store.children(f"{self._root}/available/{_READONLY}"))
        return read_only - await self.read_writable()

    def watch(self, changed: Callable[[], None]) -> Cancel:
        """Call *changed* whenever `writable` or `read_only` has changed."""
        token = object()
        self._listeners[token] = changed

        return partial(self._unwatch, token)

    def _unwatch(self, token: object) -> None:
        self._listeners.pop(token, None)

    async def info_of(self, bookie_id: str) -> BookieServiceInfo:
        """The registration of *bookie_id*. Raises NoNode if it is not registered and its id is not host:port."""
        for path in (f"{self._root}/available/", f"{self._root}/available/{_READONLY}/"):
            node = await self._store.get(path + bookie_id)
            if node is not None:
                info = decode_info(bookie_id, node.value)
                if info is not None and info.rpc is not None:
                    return info
        info = info_of_id(bookie_id)
        if info is None:
            raise NoNode(f"bookie {bookie_id} is not registered, and its id is not host:port")
        return info

    async def shortage(self) -> str:
        """Which bookies take no new entries, and why, as far as known: text for an error."""
        reasons = []
        try:
            for bookie_id in sorted(self.read_only)[:_NAMED_MAX]:
                reason = (await self.info_of(bookie_id)).read_only_reason
                reasons.append(f"{bookie_id} is read-only" + (f" ({reason})" if reason else ""))
            cookies = await self._store.children(f"{self._root}/cookies")
            reasons += [f"{bookie_id} is away" for bookie_id in sorted({*cookies} - self.available)[:_NAMED_MAX]]
        except MetadataError as error:
            reasons.append(f"why, the metadata store does not say: {error}")
        return "; ".join(reasons)

    async def address_of(self, bookie_id: str) -> tuple[str, int]:
        """(host, port) for BookKeeper's protocol. Raises NoNode, StoreUnavailable."""
        known = self._addresses.get(bookie_id)
        if known is None:
            endpoint = (await self.info_of(bookie_id)).rpc
            assert endpoint is not None
            known = endpoint.host, endpoint.port
            # Only registered addresses are remembered, because only a change of the register clears them.
            if bookie_id in self.writable or bookie_id in self.read_only:
                self._addresses[bookie_id] = known
        return known

    async def _learn_hosts(self, new: frozenset[str]) -> None:
        """Where *new* bookies stand. One that comes back may stand elsewhere. Raises MetadataError."""
        if not new:
            return

        async def host_of(bookie_id: str) -> str:
            try:
                endpoint = (await self.info_of(bookie_id)).rpc
            except NoNode:
                endpoint = None  # gone again; its id is all that is known
            return bookie_id if endpoint is None else endpoint.host.lower()

        names = sorted(new)
        hosts: list[str] = []
        for first in range(0, len(names), _READS_MAX):
            hosts += await asyncio.gather(*map(host_of, names[first : first + _READS_MAX]))
        self.hosts = {**self.hosts, **dict(zip(names, hosts, strict=True))}

    def _on_change(self) -> None:
        self._changed = True
        if not self._reading:
            self._reading = True
            self._tasks.spawn(self._follow(), "read")

    async def _follow(self) -> None:
        try:
            while self._changed:
                self._changed = False
                try:
                    await self._read()
                except MetadataError as error:
                    # Keep what is known: an error of the store says nothing about bookies.
                    log.warning("the bookie directory could not be read: %s", error)
                    self._changed = True
                    if self._clock is None:
                        await asyncio.sleep(_RETRY_S)
                    else:
                        await self._clock.sleep(_RETRY_S)
        finally:
            self._reading = False

    async def _read(self) -> None:
        writable = frozenset(await self._store.children(f"{self._root}/available")) - {_READONLY}
        read_only = frozenset(await self._store.children(f"{self._root}/available/{_READONLY}"))
        if not self.available <= writable | read_only:
            # One that became writable between these two answers was in neither.
            writable |= await self.read_writable()
        read_only -= writable
        self._addresses.clear()
        await self._learn_hosts((writable | read_only) - self.available)
        if (writable, read_only) == (self.writable, self.read_only):
            return
        self.writable, self.read_only = writable, read_only
        for changed in tuple(self._listeners.values()):
            try:
                changed()
            except Exception:
                log.exception("a watch of the bookie directory failed")
