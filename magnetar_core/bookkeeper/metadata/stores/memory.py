"""The metadata tree in memory: for tests, and for all uses that need no durability.

Several sessions share one tree. Faults are under the caller's control: a session can expire, be suspended, or lose
the answer to its next change (applied or not).
"""

import math
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import NamedTuple

from magnetar_core.bookkeeper.metadata.stores.store import (
    ANY_VERSION,
    Node,
    Operation,
    OutcomeUnknown,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
)
from magnetar_core.bookkeeper.metadata.stores.tree import (
    PERSISTENT,
    Change,
    Record,
    check_path,
    name_of,
    node_of,
    parent_of,
    plan_delete,
    plan_multi,
    plan_put,
)
from magnetar_core.bookkeeper.metadata.stores.watches import Watched
from magnetar_core.runtime.clock import Clock


class LostAnswer(Enum):
    """What happens to the next change of a session whose answer is lost."""

    APPLIED = "applied"
    NOT_APPLIED = "not applied"


class _Tree:
    def __init__(self) -> None:
        self.records: dict[str, Record] = {"/": Record(b"", 0, PERSISTENT, 0, 0)}
        self.names: dict[str, set[str]] = {"/": set()}
        self.sequences: dict[str, int] = {}
        self.sessions: dict[int, MemoryStore] = {}
        self.sessions_made = 0

    def record(self, path: str) -> Record | None:
        return self.records.get(path)

    def has_children(self, path: str) -> bool:
        return bool(self.names.get(path))

    def child_names(self, path: str) -> Collection[str]:
        return self.names.get(path, ())

    def apply(self, changes: list[Change]) -> None:
        for change in changes:
            path = change.path
            if change.record is None:
                del self.records[path]
                self.names.pop(path, None)
                self.sequences.pop(path, None)
                self.names[parent_of(path)].discard(name_of(path))
            else:
                self.records[path] = change.record
                if change.appeared:
                    self.names.setdefault(parent_of(path), set()).add(name_of(path))
            for session in self.sessions.values():
                session.notice(change)

    def end_session(self, number: int) -> None:
        own = [path for path, record in self.records.items() if record.owner == number]
        self.apply([Change(path, None, False) for path in own])


class Saved(NamedTuple):
    """The data of a tree in memory, without its sessions."""

    records: dict[str, Record]
    names: dict[str, set[str]]
    sequences: dict[str, int]


class MemoryStore(Watched):
    """One session over a tree in memory; `session()` makes more over the same tree."""

    def __init__(
        self,
        clock: Clock,
        *,
        session_timeout_s: float = math.inf,
        on_change: Callable[[Change], None] | None = None,
        _tree: _Tree | None = None,
    ) -> None:
        """*on_change* is called with each change of the tree at once, whoever made it."""
        super().__init__()
        self._clock = clock
        self.session_timeout_s = session_timeout_s
        self._tree = _Tree() if _tree is None else _tree
        self._on_change = on_change
        self._lose_next: LostAnswer | None = None
        self._suspended_since: float | None = None
        self._closed = False
        self.before_change: Callable[[str], None] | None = None
        """Called with the path before each put or delete; a test may raise here, or change the tree."""
        self._begin_session()

    def session(self, on_change: Callable[[Change], None] | None = None) -> "MemoryStore":
        """Another session over the same tree."""
        return MemoryStore(self._clock, session_timeout_s=self.session_timeout_s, on_change=on_change, _tree=self._tree)

    def begin_numbers(self, path: str, number: int) -> None:
        """The next sequential child of *path* gets this number."""
        self._tree.sequences[path] = number

    # Faults that a test can cause.

    def saved(self) -> "Saved":
        """The data of this moment, for `put_back`."""
        tree = self._tree
        return Saved(dict(tree.records), {path: set(names) for path, names in tree.names.items()}, dict(tree.sequences))

    def put_back(self, saved: "Saved") -> None:
        """Somebody puts older data back. All sessions end, as they do when the servers have to be restarted for it."""
        tree, sessions = self._tree, list(self._tree.sessions.values())
        tree.records = {path: record for path, record in saved.records.items() if record.owner == PERSISTENT}
        tree.names = {path: {name for name in names if f"{path.rstrip('/')}/{name}" in tree.records}
                      for path, names in saved.names.items() if path in tree.records}  # fmt: skip
        tree.sequences = dict(saved.sequences)
        for session in sessions:
            session.expire()

    def expire(self) -> None:
        """End the session as if its time had passed. A new one begins at once, without ephemeral nodes."""
        self._tree.sessions.pop(self._number)
        self._tree.end_session(self._number)
        self._suspended_since = None
        self._begin_session()
        self._watches.session_changed(SessionEvent.LOST)
        self._watches.everything_changed()

    def suspend(self) -> None:
        """Answer nothing until `resume`."""
        if self._suspended_since is None:
            self._suspended_since = self._clock.monotonic()
            self._watches.session_changed(SessionEvent.SUSPENDED)

    def resume(self) -> None:
        if self._suspended_since is not None:
            self._suspended_since = None
            self._watches.session_changed(SessionEvent.CONNECTED)
            self._watches.everything_changed()

    def lose_next_answer(self, fate: LostAnswer) -> None:
        """The next put or delete raises OutcomeUnknown; *fate* says whether it is applied."""
        self._lose_next = fate

    # MetadataStore

    async def get(self, path: str) -> Node | None:
        self._check_open(path)
        record = self._tree.record(path)
        if record is None:
            return None
        return node_of(path, record, self._number)._replace(children=len(self._tree.child_names(path)))

    async def exists(self, path: str) -> bool:
        self._check_open(path)
        return self._tree.record(path) is not None

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
    ) -> int:
        self._check_open(path)
        self._call_before_change(path)
        owner = self._number if ephemeral else PERSISTENT
        now_ms = self._clock.wall_ms()
        changes, version = plan_put(self._tree, path, bytes(value), expected_version, owner, now_ms)
        self._change(path, changes)
        return version

    async def put_sequential(self, path_prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        parent = parent_of(path_prefix)
        number = self._tree.sequences.get(parent, 0)
        path = f"{path_prefix}{number:010d}"
        self._check_open(path)
        owner = self._number if ephemeral else PERSISTENT
        changes, _ = plan_put(self._tree, path, bytes(value), -1, owner, self._clock.wall_ms())
        self._tree.sequences[parent] = number + 1
        self._change(path, changes)
        return path

    async def next_number(self, path: str) -> int:
        self._check_open(path)
        return self._tree.sequences.get(path, 0)

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        self._check_open(path)
        self._call_before_change(path)
        self._change(path, plan_delete(self._tree, path, expected_version))

    async def multi(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            self._check_open(operation.path)
            self._call_before_change(operation.path)
        changes = plan_multi(self._tree, operations, self._clock.wall_ms())
        if operations:
            self._change(operations[0].path, changes)

    async def children(self, path: str) -> list[str]:
        self._check_open(path)
        return sorted(self._tree.names.get(path, ()))

    async def sync(self) -> None:
        self._check_open("/")

    @property
    def last_answer(self) -> float:
        return self._clock.monotonic() if self._suspended_since is None else self._suspended_since

    def hurry(self, wait_s: float) -> None:
        """Nothing to do: no request here waits for another machine."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.clear()
        self._tree.sessions.pop(self._number, None)
        self._tree.end_session(self._number)

    def notice(self, change: Change) -> None:
        """A session of the same tree changed a node."""
        if self._on_change is not None:
            self._on_change(change)
        if self._suspended_since is None:
            self._watches.applied(change)

    def _begin_session(self) -> None:
        self._tree.sessions_made += 1
        self._number = self._tree.sessions_made
        self._tree.sessions[self._number] = self

    def _call_before_change(self, path: str) -> None:
        number = self._number
        if self.before_change is not None:
            self.before_change(path)
        if number != self._number:
            raise StoreUnavailable(f"{path}: the session ended before this was sent; nothing was changed")

    def _change(self, path: str, changes: list[Change]) -> None:
        fate, self._lose_next = self._lose_next, None
        if fate is not LostAnswer.NOT_APPLIED:
            self._tree.apply(changes)
        if fate is not None:
            raise OutcomeUnknown(f"{path}: the connection was lost during the change")

    def _check_open(self, path: str) -> None:
        check_path(path)
        if self._closed:
            raise SessionLost(f"{path}: the metadata store was closed")
        if self._suspended_since is not None:
            raise StoreUnavailable(f"{path}: the metadata store does not answer")
