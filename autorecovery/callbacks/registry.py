"""Callbacks in the metadata store: their records, the events that wait for each, and the log of what was delivered.

    <root>/underreplication/magnetar/callbacks                   its version counts registrations
    <root>/underreplication/magnetar/callbacks/<id>              the record (`callback_rules`); it has the secret
    <root>/underreplication/magnetar/callbacks/<id>/pending/<event id>   to be delivered; the value is the body
    <root>/underreplication/magnetar/callbacks/<id>/log          the last deliveries

Rules:

1. An event is taken from the list of all and given to each callback that wants it in one step, so that a node that dies
   in between neither loses it nor hands it out twice.
2. A callback is removed with all that belongs to it in one step, and nothing of it is made anew afterwards: whatever
   writes below a callback checks in the same step that it is still there.
3. A record that cannot be read is reported and does not hide the others (I60).
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from autorecovery.callbacks import rules
from autorecovery.callbacks.rules import Callback, Line
from magnetar_core.bookkeeper.metadata.bookies import lifecycle_events
from magnetar_core.bookkeeper.metadata.bookies.lifecycle_events import Event, EventKind
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Cancel,
    Check,
    Delete,
    MetadataError,
    MetadataStore,
    Node,
    NoNode,
    NotEmpty,
    OutcomeUnknown,
    Put,
    StoreUnavailable,
    VersionConflict,
)
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# How often a change meets one by somebody else before it fails; each of those made progress.
_CONFLICTS_MAX: Final = 20


class TooMany(MetadataError):
    """A limit is reached; the text says which, and the way out."""


class NoSuchCallback(MetadataError):
    """No callback has this id."""


class Registered(NamedTuple):
    """A callback as it was read."""

    callback: Callback
    version: int


class Pending(NamedTuple):
    """An event that waits for a callback."""

    body: bytes
    since_ms: int
    """The store's wall clock."""


class CallbackRegistry:
    """Callbacks below *root*. All calls are made on the store's loop and raise MetadataError."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._root = root
        self._path = f"{root}/underreplication/magnetar/callbacks"
        self._reported: dict[str, str] = {}

    def _path_of(self, callback_id: str) -> str:
        if not callback_id.isalnum():
            raise NoSuchCallback(f"no callback has the id {callback_id!r}")
        return f"{self._path}/{callback_id}"

    def _pending_path(self, callback_id: str) -> str:
        return f"{self._path_of(callback_id)}/pending"

    def _log_path(self, callback_id: str) -> str:
        return f"{self._path_of(callback_id)}/log"

    # ------------------------------------------------------------------------------------ records

    async def register(
        self, url: str, secret: str | None, states: Sequence[str], bookies: Sequence[str], by: str, wall_ms: int
    ) -> Callback:
        """Add a callback; without *secret* it gets one. Raises BadCallback, TooMany."""
        callback = rules.make(
            secrets.token_hex(8), url, secrets.token_hex(32) if secret is None else secret, states, bookies, by, wall_ms
        )
        for _ in range(_CONFLICTS_MAX):
            above = await self._store.get(self._path)
            names = await self._store.children(self._path)
            if callback.id in names:
                return callback  # the answer was lost, and the change was made
            if len(names) >= rules.CALLBACKS_MAX:
                raise TooMany(f"there are {len(names)} callbacks, which is the limit; delete one that is not needed")
            try:
                await self._store.multi(
                    [
                        Put(self._path, b"", NO_NODE if above is None else above.version),
                        Put(self._path_of(callback.id), rules.encode(callback), NO_NODE),
                        Put(self._pending_path(callback.id), b"", NO_NODE),
                        Put(self._log_path(callback.id), rules.encode_log(()), NO_NODE),
                    ]
                )
            except (VersionConflict, OutcomeUnknown):
                continue
            return callback
        raise StoreUnavailable(f"{self._path}: {_CONFLICTS_MAX} changes by others in a row, or no answer")

    async def read(self, callback_id: str) -> Registered:
        """Raises NoSuchCallback, Corruption."""
        node = await self._store.get(self._path_of(callback_id))
        if node is None:
            raise NoSuchCallback(f"no callback has the id {callback_id}")
        try:
            return Registered(rules.decode(node.value), node.version)
        except Corruption as error:
            raise Corruption(f"{node.path}: {error}; delete the callback and register it again") from error

    async def all(self) -> list[Registered]:
        """Every callback that can be read (rule 3), by id."""
        callbacks = []
        for name in await self._store.children(self._path):
            try:
                callbacks.append(await self.read(name))
            except NoSuchCallback:
                continue
            except Corruption as error:
                if self._reported.get(name) != str(error):
                    self._reported[name] = str(error)
                    log.error("%s", error)
        return callbacks

    async def remove(self, callback_id: str) -> None:
        """Rule 2. Raises NoSuchCallback."""
        path = self._path_of(callback_id)
        is_sent = False
        for _ in range(_CONFLICTS_MAX):
            if not await self._store.exists(path):
                if is_sent:
                    return
                raise NoSuchCallback(f"no callback has the id {callback_id}")
            pending = await self.pending(callback_id)
            below = [f"{self._pending_path(callback_id)}/{event_id}" for event_id in pending]
            below += [folder for folder in (self._pending_path(callback_id), self._log_path(callback_id)) if
                      await self._store.exists(folder)]  # fmt: skip
            try:
                await self._store.multi([*map(Delete, below), Delete(path)])
            except OutcomeUnknown:
                is_sent = True
            except (NoNode, NotEmpty, VersionConflict):
                continue  # something was delivered or came in meanwhile
            else:
                return
        raise StoreUnavailable(f"{path}: {_CONFLICTS_MAX} changes by others in a row, or no answer")

    # ------------------------------------------------------------------------------------- events

    async def events(self) -> list[str]:
        """Ids of the events that were not handed out yet, in order."""
        return await self._store.children(lifecycle_events.events_path(self._root))

    async def drop_event(self, event_id: str) -> None:
        """Drop an event: no callback gets it."""
        try:
            await self._store.delete(lifecycle_events.event_path(self._root, event_id))
        except NoNode:
            return

    async def hand_out(self, event_id: str, callbacks: Sequence[Registered], wall_ms: int) -> None:
        """Give an event to each of *callbacks* that wants it (rule 1). An event that is too old is dropped.

        *callbacks* were read after the list of events, so they contain every callback that was there before the event.

        Raises VersionConflict if one of them was removed since, or the event was handed out by another node.
        """
        path = lifecycle_events.event_path(self._root, event_id)
        node = await self._store.get(path)
        if node is None:
            return
        if rules.is_too_old(node.created_ms, wall_ms):
            log.error("%s: no node audited for seven days, so no callback gets it", path)
            await self.drop_event(event_id)
            return
        try:
            event = lifecycle_events.decode(node.value)
        except Corruption as error:
            log.error("%s: %s; no callback gets it", path, error)
            await self.drop_event(event_id)
            return
        wanting = [registered for registered in callbacks if rules.wants(registered.callback, event)]
        pending = [f"{self._pending_path(registered.callback.id)}/{event_id}" for registered in wanting]
        try:
            await self._store.multi(
                [
                    Delete(path, node.version),
                    # Before the puts: they would create a removed callback again, as the parent of what they write.
                    *(Check(self._path_of(registered.callback.id), registered.version) for registered in wanting),
                    *(Put(pending_path, node.value, NO_NODE) for pending_path in pending),
                ]
            )
        except NoNode as error:
            raise VersionConflict(f"{path}: another node has handed it out") from error

    async def test(self, callback_id: str, by: str, wall_ms: int) -> str:
        """Have a test event sent, which reports nothing; returns its id. Raises NoSuchCallback, TooMany, Corruption."""
        event_id = f"test-{secrets.token_hex(8)}"
        event = Event(event_id, EventKind.TEST, "", "", "", by, "a test of this callback", wall_ms)
        path = f"{self._pending_path(callback_id)}/{event_id}"
        for _ in range(_CONFLICTS_MAX):
            registered = await self.read(callback_id)
            pending = await self.pending(callback_id)
            if event_id in pending:
                return event_id
            if len(pending) >= rules.PENDING_MAX:
                raise TooMany(f"{len(pending)} events wait for callback {callback_id}: its log says why")
            check = Check(self._path_of(callback_id), registered.version)
            try:
                await self._store.multi([check, Put(path, lifecycle_events.encode(event), NO_NODE)])
            except (VersionConflict, OutcomeUnknown):
                continue
            return event_id
        raise StoreUnavailable(f"{path}: the metadata store did not say whether it was stored")

    # ----------------------------------------------------------------------------------- delivery

    async def pending(self, callback_id: str) -> list[str]:
        """Ids of the events that wait for a callback, in order."""
        return await self._store.children(self._pending_path(callback_id))

    async def read_pending(self, callback_id: str, event_id: str) -> Pending | None:
        """None: it was delivered or given up, or the callback was removed."""
        node = await self._store.get(f"{self._pending_path(callback_id)}/{event_id}")
        return None if node is None else Pending(node.value, node.created_ms)

    async def note(self, callback_id: str, line: Line) -> None:
        """Write what became of an event into the log; one that is delivered or given up waits no more. A callback that
        is gone has no log."""
        path = f"{self._pending_path(callback_id)}/{line.event}"
        for _ in range(_CONFLICTS_MAX):
            node = await self._store.get(self._log_path(callback_id))
            if node is None or not await self._store.exists(path):
                return
            change = Put(node.path, rules.encode_log(rules.noted(self._lines(node), line)), node.version)
            is_over = line.outcome is not rules.Outcome.WAITS
            try:
                await self._store.multi([change, Delete(path)] if is_over else [change])
            except (VersionConflict, NoNode, OutcomeUnknown):
                continue
            return
        raise StoreUnavailable(f"{path}: {_CONFLICTS_MAX} changes by others in a row, or no answer")

    async def log_of(self, callback_id: str) -> tuple[Line, ...]:
        """The last deliveries, the newest last."""
        node = await self._store.get(self._log_path(callback_id))
        return () if node is None else self._lines(node)

    def _lines(self, node: Node) -> tuple[Line, ...]:
        try:
            return rules.decode_log(node.value)
        except Corruption as error:
            # The log is only a record: waiting for it would keep events from being delivered.
            log.error("%s: %s; it begins anew", node.path, error)
            return ()

    # ------------------------------------------------------------------------------------ watches

    def watch_events(self, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after an event may have come in."""
        return self._store.watch_children(lifecycle_events.events_path(self._root), changed)

    def watch_callbacks(self, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after a callback was registered or removed."""
        return self._store.watch_children(self._path, changed)

    def watch_pending(self, callback_id: str, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after an event may wait for a callback, or waits no more."""
        return self._store.watch_children(self._pending_path(callback_id), changed)
