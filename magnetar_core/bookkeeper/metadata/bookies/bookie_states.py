"""The states of bookies in the metadata store: read, moved, followed.

    <root>/cookies/<bookie>           the bookie belongs to the cluster
    <root>/cookies/<bookie>/state     it is not active (`lifecycle` has states, moves and the text of the node)

Rules (I74):

1. A move is decided from the state that was read, and stored only if the node is still in that version. Whoever
   loses such a race reads and decides again.
2. Only a bookie with a cookie has a state: a cookie that is deleted meanwhile is not made anew as the node's parent.
3. Cookie and state are deleted together or not at all.
4. A state that cannot be read is reported as such. It is never taken for active (I60).
5. Each move, and each removal, stores its event in the same step (`lifecycle_events`).
"""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.metadata.bookies import lifecycle_events
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import bookie_id_problem
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import (
    TEXT_CHARS_MAX,
    Actor,
    Lifecycle,
    State,
    decode,
    encode,
    moved,
)
from magnetar_core.bookkeeper.metadata.bookies.lifecycle_events import Event, EventKind
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Cancel,
    Check,
    Delete,
    MetadataError,
    MetadataStore,
    NoNode,
    OutcomeUnknown,
    Put,
    StoreUnavailable,
    VersionConflict,
)
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Others that move the same bookie, or write its cookie, at the same time; each of them made progress.
_CONFLICTS_MAX: Final = 20

# Time until the next try after the metadata store did not answer.
_RETRY_S: Final = 1.0


class UnknownBookie(MetadataError):
    """No bookie of the cluster has this id."""


class VersionedState(NamedTuple):
    """A state as it was read; the version is NO_NODE where the bookie is active."""

    lifecycle: Lifecycle
    version: int


ACTIVE: Final = VersionedState(Lifecycle(), NO_NODE)


def cookies_path(root: str) -> str:
    return f"{root}/cookies"


def cookie_path(root: str, bookie_id: str) -> str:
    return f"{root}/cookies/{bookie_id}"


def state_path(root: str, bookie_id: str) -> str:
    return f"{root}/cookies/{bookie_id}/state"


class BookieStates:
    """States below *root*. All calls are made on the store's loop and raise MetadataError."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._root = root

    async def bookies(self) -> list[str]:
        """Every bookie with a cookie."""
        return await self._store.children(cookies_path(self._root))

    async def has_cookie(self, bookie_id: str) -> bool:
        """The bookie belongs to the cluster."""
        return await self._store.exists(cookie_path(self._root, bookie_id))

    async def read(self, bookie_id: str) -> VersionedState:
        """The state of a bookie; one without a cookie counts as active. Raises Corruption."""
        node = await self._store.get(state_path(self._root, bookie_id))
        if node is None:
            return ACTIVE
        try:
            return VersionedState(decode(node.value), node.version)
        except Corruption as error:
            raise Corruption(f"{node.path}: {error}") from error

    async def move(
        self,
        bookie_id: str,
        to: State,
        actor: Actor,
        by: str,
        why: str,
        wall_ms: int,
        *,
        reasons: Sequence[tuple[int, str]] = (),
        expected: VersionedState | None = None,
    ) -> Lifecycle:
        """Move a bookie, and return its new state (rule 1).

        *expected*: the state under which the caller has decided; if it has changed, VersionConflict. Without it the
        state is read here. Raises IllegalMove, UnknownBookie, Corruption.
        """
        problem = bookie_id_problem(bookie_id)
        if problem is not None:
            raise UnknownBookie(problem)
        sent: Lifecycle | None = None
        for _ in range(_CONFLICTS_MAX):
            now = await self.read(bookie_id)
            # The answer was lost, and the change was made. (An active bookie has no node that says who made it that.)
            if sent is not None and (now.lifecycle == sent or now.lifecycle.state is sent.state is State.ACTIVE):
                return sent
            if expected is not None and now.version != expected.version:
                raise VersionConflict(f"the state of bookie {bookie_id} was changed by somebody else meanwhile")
            cookie = await self._store.get(cookie_path(self._root, bookie_id))
            if cookie is None:
                raise UnknownBookie(await self._unknown_bookie_text(bookie_id))
            after = moved(now.lifecycle, to, actor, by, why, wall_ms, reasons)
            path = state_path(self._root, bookie_id)
            change = Delete(path, now.version) if to is State.ACTIVE else Put(path, encode(after), now.version)
            event_puts = await self._event_puts(
                EventKind.MOVED, bookie_id, now.lifecycle.state, to, after.by, after.why, wall_ms
            )
            try:
                await self._store.multi([Check(cookie.path, cookie.version), change, *event_puts])
            except OutcomeUnknown:
                sent = after
            except (VersionConflict, NoNode):
                sent = None
            else:
                log.warning("bookie %s: %s → %s by %s: %s", bookie_id, now.lifecycle.state, to, by, after.why)
                return after
        raise StoreUnavailable(
            f"{state_path(self._root, bookie_id)}: {_CONFLICTS_MAX} changes by others in a row, or no answer"
        )

    async def remove(self, bookie_id: str, expected: VersionedState, by: str, wall_ms: int) -> None:
        """Delete cookie and state (rule 3), if the state is still *expected*. Raises UnknownBookie, VersionConflict."""
        assert expected.lifecycle.state is State.DRAINED
        path = cookie_path(self._root, bookie_id)
        is_sent = False
        for _ in range(_CONFLICTS_MAX):
            cookie = await self._store.get(path)
            if cookie is None:
                if is_sent:
                    return
                raise UnknownBookie(await self._unknown_bookie_text(bookie_id))
            now = await self.read(bookie_id)
            if now != expected:
                raise VersionConflict(f"bookie {bookie_id} was moved meanwhile: it is {now.lifecycle.state}")
            event_puts = await self._event_puts(
                EventKind.REMOVED, bookie_id, expected.lifecycle.state, lifecycle_events.REMOVED, by, "", wall_ms
            )
            try:
                await self._store.multi(
                    [
                        Delete(state_path(self._root, bookie_id), expected.version),
                        Delete(path, cookie.version),
                        *event_puts,
                    ]
                )
            except OutcomeUnknown:
                is_sent = True
            except (VersionConflict, NoNode):
                # The state, or only the cookie or the number of the event: the next round sees which.
                continue
            else:
                log.warning("bookie %s was removed by %s", bookie_id, by)
                return
        raise StoreUnavailable(f"{path}: the metadata store did not say whether it was deleted; ask for it again")

    async def _event_puts(
        self, kind: EventKind, bookie_id: str, before: str, after: str, by: str, why: str, wall_ms: int
    ) -> list[Put]:
        """The operations that store the event of a change; the caller adds them to those of the change (rule 5)."""
        path = lifecycle_events.events_path(self._root)
        node = await self._store.get(path)
        version = NO_NODE if node is None else node.version
        event_id = lifecycle_events.event_id(version, secrets.token_hex(4))
        event = Event(event_id, kind, bookie_id, before, after, by[:TEXT_CHARS_MAX], why, wall_ms)
        value = lifecycle_events.encode(event)
        return [Put(path, b"", version), Put(lifecycle_events.event_path(self._root, event_id), value, NO_NODE)]

    async def _unknown_bookie_text(self, bookie_id: str) -> str:
        known = ", ".join(await self.bookies()) or "none"
        return f"no bookie {bookie_id} has a cookie in this cluster; known are: {known}"

    def watch(self, bookie_id: str, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after the state of one bookie may have changed."""
        return self._store.watch_node(state_path(self._root, bookie_id), changed)

    def watch_bookies(self, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after a bookie got or lost its cookie."""
        return self._store.watch_children(cookies_path(self._root), changed)


class BookieStateWatch:
    """The states of all bookies, kept current by watches. Used on the loop."""

    def __init__(self, states: BookieStates, clock: Clock) -> None:
        self._states = states
        self._clock = clock
        self._tasks = Tasks("states of bookies")
        self._changed = Bell()
        self._is_stale = True
        self._cancels: list[Cancel] = []
        self._watches: dict[str, Cancel] = {}
        self.not_active: Mapping[str, VersionedState] = {}
        """Every bookie that is not active, with its state."""
        self.bookies: frozenset[str] = frozenset()
        """Every bookie with a cookie."""
        self.draining: frozenset[str] = frozenset()
        """Bookies whose entries are to be copied to others."""
        self._listeners: list[Callable[[], None]] = []
        self.unreadable: dict[str, str] = {}
        """Bookie → why its state cannot be read. What was known of it before still counts."""

    @property
    def drained(self) -> frozenset[str]:
        """Bookies that no record names any more."""
        return frozenset(bookie for bookie, state in self.not_active.items() if state.lifecycle.state is State.DRAINED)

    def watch(self, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after some state has changed."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    async def start(self) -> None:
        """Read all states once. Raises MetadataError."""
        self._cancels.append(self._states.watch_bookies(self._look_again))
        await self._read()
        self._tasks.spawn(self._follow(), "follow")

    async def stop(self) -> None:
        for cancel in (*self._cancels, *self._watches.values()):
            cancel()
        self._cancels.clear()
        self._watches.clear()
        await self._tasks.cancel()

    def _look_again(self) -> None:
        self._is_stale = True
        self._changed.ring()

    async def _follow(self) -> None:
        while True:
            while not self._is_stale:
                await self._changed.rung()
            try:
                await self._read()
            except MetadataError as error:
                log.warning("the states of bookies could not be read: %s", error)
                self._is_stale = True
                await self._clock.sleep(_RETRY_S)

    async def _read(self) -> None:
        self._is_stale = False
        bookies = frozenset(await self._states.bookies())
        for gone in self._watches.keys() - bookies:
            self._watches.pop(gone)()
        states: dict[str, VersionedState] = {}
        unreadable: dict[str, str] = {}
        for bookie_id in sorted(bookies):
            if bookie_id not in self._watches:
                self._watches[bookie_id] = self._states.watch(bookie_id, self._look_again)
            try:
                state = await self._states.read(bookie_id)
            except Corruption as error:
                unreadable[bookie_id] = str(error)
                if bookie_id not in self.unreadable:
                    log.error("%s; what was known of the bookie before counts", error)
                state = self.not_active.get(bookie_id, ACTIVE)
            if state.lifecycle.state is not State.ACTIVE:
                states[bookie_id] = state
        before = self.not_active, self.bookies, self.unreadable
        self.not_active, self.bookies, self.unreadable = states, bookies, unreadable
        self.draining = frozenset(bookie_id for bookie_id, state in states.items() if state.lifecycle.is_leaving)
        if before != (states, bookies, unreadable):
            for changed in tuple(self._listeners):
                changed()
