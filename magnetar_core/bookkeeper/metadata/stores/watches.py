"""The callbacks that are registered for nodes of a metadata tree; shared by all stores.

Changes of one loop turn are merged: each watch is called once, in a later turn, however many changes it saw. That of a
tree gets the paths of the changed nodes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from magnetar_core.bookkeeper.metadata.stores.store import Cancel, SessionEvent, TreeChanged
from magnetar_core.bookkeeper.metadata.stores.tree import Change, check_path, parent_of

log = logging.getLogger(__name__)


class _Watch:
    __slots__ = ("active", "changed")

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.active = True


class _TreeWatch:
    """A watch of a node and all below it, with the changes that it will be called with."""

    __slots__ = ("active", "below", "inform", "path", "paths")

    def __init__(self, path: str, inform: TreeChanged) -> None:
        self.path = path
        self.below = path.rstrip("/") + "/"
        self.inform = inform
        self.paths: set[str] | None = set()
        """The changed nodes; None: everything may have changed."""
        self.active = True

    def changed(self) -> None:
        paths, self.paths = self.paths, set()
        self.inform(None if paths is None else frozenset(paths))


class Watches:
    """The watches of one session. All methods are called on the loop."""

    def __init__(self) -> None:
        self._trees: list[_TreeWatch] = []
        self._nodes: dict[str, list[_Watch]] = {}
        self._children: dict[str, list[_Watch]] = {}
        self._sessions: list[Callable[[SessionEvent], None]] = []
        self._due: dict[_Watch | _TreeWatch, None] = {}

    def watch_node(self, path: str, changed: Callable[[], None]) -> Cancel:
        check_path(path)
        return _register(self._nodes, path, changed)

    def watch_children(self, path: str, changed: Callable[[], None]) -> Cancel:
        check_path(path)
        return _register(self._children, path, changed)

    def watch_tree(self, path: str, changed: TreeChanged) -> Cancel:
        check_path(path)
        watch = _TreeWatch(path, changed)
        self._trees.append(watch)

        def cancel() -> None:
            if watch.active:
                watch.active = False
                self._trees.remove(watch)

        return cancel

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

    @property
    def watched_trees(self) -> Iterable[str]:
        return {watch.path for watch in self._trees}

    def applied(self, change: Change) -> None:
        """*change* has happened to the tree."""
        self.tree_changed(change.path)
        self.node_changed(change.path)
        if change.appeared or change.record is None:
            self.children_changed(change.path)
            self.children_changed(parent_of(change.path))

    def node_changed(self, path: str) -> None:
        self._mark(self._nodes.get(path, ()))

    def children_changed(self, path: str) -> None:
        self._mark(self._children.get(path, ()))

    def tree_changed(self, path: str) -> None:
        """The node *path* was created, written or removed."""
        for watch in self._trees:
            if path == watch.path or path.startswith(watch.below):
                if watch.paths is not None:
                    watch.paths.add(path)
                self._mark((watch,))

    def all_trees_changed(self) -> None:
        """It is not known what the watches of trees have missed."""
        for watch in self._trees:
            watch.paths = None
        self._mark(self._trees)

    def everything_changed(self) -> None:
        """Call every watch: after a reconnect it is not known which changes were missed."""
        self.all_trees_changed()
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
        for tree in self._trees:
            tree.active = False
        self._trees.clear()
        self._nodes.clear()
        self._children.clear()
        self._sessions.clear()

    def _mark(self, watches: Iterable[_Watch | _TreeWatch]) -> None:
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


class Watched:
    """The part of `MetadataStore` that watches, for a store to which all changes are reported as they happen."""

    def __init__(self) -> None:
        self._watches = Watches()

    def watch_node(self, path: str, changed: Callable[[], None]) -> Cancel:
        return self._watches.watch_node(path, changed)

    def watch_children(self, path: str, changed: Callable[[], None]) -> Cancel:
        return self._watches.watch_children(path, changed)

    async def watch_tree(self, path: str, changed: TreeChanged) -> Cancel:
        return self._watches.watch_tree(path, changed)

    def watch_session(self, changed: Callable[[SessionEvent], None]) -> Cancel:
        return self._watches.watch_session(changed)
