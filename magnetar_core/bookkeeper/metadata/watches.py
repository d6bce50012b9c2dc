"""The callbacks that are registered for nodes of a metadata tree; shared by all stores.

Changes of one loop turn are merged: each watch is called once, in a later turn, however many changes it saw.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from magnetar_core.bookkeeper.metadata.store import Cancel, SessionEvent
from magnetar_core.bookkeeper.metadata.tree import Change, check_path, parent_of

log = logging.getLogger(__name__)


class _Watch:
    __slots__ = ("active", "changed")

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.active = True


class Watches:
    """The watches of one session. All methods are called on the loop."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[_Watch]] = {}
        self._children: dict[str, list[_Watch]] = {}
        self._sessions: list[Callable[[SessionEvent], None]] = []
        self._due: dict[_Watch, None] = {}

    def watch_node(self, path: str, changed: Callable[[], None]) -> Cancel:
        check_path(path)
        return _register(self._nodes, path, changed)

    def watch_children(self, path: str, changed: Callable[[], None]) -> Cancel:
        check_path(path)
        return _register(self._children, path, changed)

    def watch_session(self, changed: Callable[[SessionEvent], None]) -> Cancel:
        self._sessions.append(changed)

        def cancel() -> None:
            if changed in self._sessions:
                self._sessions.remove(changed)

        return cancel

    @property
    def watched_nodes(self) -> Iterable[str]:
        return self._nodes.keys()

    @property
    def watched_children(self) -> Iterable[str]:
        return self._children.keys()

    def applied(self, change: Change) -> None:
        """*change* has happened to the tree."""
        self.node_changed(change.path)
        if change.appeared or change.record is None:
            self.children_changed(change.path)
            self.children_changed(parent_of(change.path))

    def node_changed(self, path: str) -> None:
        self._mark(self._nodes.get(path, ()))

    def children_changed(self, path: str) -> None:
        self._mark(self._children.get(path, ()))

    def everything_changed(self) -> None:
        """Call every watch: after a reconnect it is not known which changes were missed."""
        for watches in (*self._nodes.values(), *self._children.values()):
            self._mark(watches)

    def session_changed(self, event: SessionEvent) -> None:
        for changed in tuple(self._sessions):
            try:
                changed(event)
            except Exception:
                log.exception("a session watch failed")

    def clear(self) -> None:
        for watches in (*self._nodes.values(), *self._children.values()):
            for watch in watches:
                watch.active = False
        self._nodes.clear()
        self._children.clear()
        self._sessions.clear()

    def _mark(self, watches: Iterable[_Watch]) -> None:
        for watch in watches:
            if not self._due:
                asyncio.get_running_loop().call_soon(self._call)
            self._due[watch] = None

    def _call(self) -> None:
        due, self._due = self._due, {}
        for watch in due:
            if not watch.active:
                continue
            try:
                watch.changed()
            except Exception:
                log.exception("a metadata watch failed")


def _register(registry: dict[str, list[_Watch]], path: str, changed: Callable[[], None]) -> Cancel:
    watch = _Watch(changed)
    registry.setdefault(path, []).append(watch)

    def cancel() -> None:
        if not watch.active:
            return
        watch.active = False
        watches = registry.get(path)
        if watches is not None and watch in watches:
            watches.remove(watch)
            if not watches:
                del registry[path]

    return cancel
