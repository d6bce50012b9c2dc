"""The metadata tree of another process's directory, read-only: a RocksDB *secondary*, caught up at each read."""

import contextlib
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rocksdict import AccessType, Rdict

from magnetar_core.bookkeeper.metadata.stores.rocks_tree import RocksTree, open_error, tree_options
from magnetar_core.bookkeeper.metadata.stores.store import (
    ANY_VERSION,
    Cancel,
    CannotWatch,
    MetadataError,
    Node,
    Operation,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
    TreeChanged,
)
from magnetar_core.bookkeeper.metadata.stores.tree import PERSISTENT, check_path, node_of
from magnetar_core.bookkeeper.metadata.stores.watches import Watches
from magnetar_core.runtime.clock import Clock, Timer

# How often watched nodes are compared with their last state: RocksDB does not notify a secondary.
POLL_S: Final = 0.5


class StoreReadOnly(MetadataError):
    """A secondary cannot change anything."""


def holds_tree(path: Path) -> bool:
    """Whether there is a metadata store in this folder."""
    return (path / "CURRENT").exists()


class SecondaryStore:
    """The tree of another process's directory, read-only. Made by `open`."""

    def __init__(self, path: Path, clock: Clock, database: Rdict) -> None:
        self._path = path
        self._clock = clock
        self._database = database
        self._reader = RocksTree(database)
        self._watches = Watches()
        self._seen: dict[tuple[str, bool], object] = {}
        self._timer: Timer | None = None
        self._closed = False

    @classmethod
    async def open(cls, path: str | Path, clock: Clock) -> "SecondaryStore":
        """Read the tree in *path*, which another process may own. Raises MetadataError if there is none."""
        path = Path(path)
        if not holds_tree(path):
            raise MetadataError(f"{path} holds no metadata store; is the path right?")
        # RocksDB wants a folder for its log. It is needed until it is open: a process that is killed leaves nothing.
        with tempfile.TemporaryDirectory(prefix="magnetar-metadata-", ignore_cleanup_errors=True) as own_directory:
            try:
                database = Rdict(str(path), tree_options(), access_type=AccessType.secondary(own_directory))
            except Exception as error:
                raise open_error(path, error) from error
        return cls(path, clock, database)

    async def get(self, path: str) -> Node | None:
        self._catch_up(path)
        record = self._reader.stored(path)
        return None if record is None else node_of(path, record, PERSISTENT)._replace(own=False)

    async def exists(self, path: str) -> bool:
        self._catch_up(path)
        return self._reader.stored(path) is not None

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
    ) -> int:
        raise self._read_only(path)

    async def put_sequential(self, path_prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        raise self._read_only(path_prefix)

    async def next_number(self, path: str) -> int:
        self._catch_up(path)
        return self._reader.next_number(path)

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        raise self._read_only(path)

    async def multi(self, operations: Sequence[Operation]) -> None:
        raise self._read_only(operations[0].path if operations else "/")

    async def children(self, path: str) -> list[str]:
        self._catch_up(path)
        return sorted(self._reader.stored_names(path))

    async def sync(self) -> None:
        self._catch_up("/")

    def watch_node(self, path: str, changed: Callable[[], None]) -> Cancel:
        check_path(path)
        self._seen.setdefault((path, False), self._state(path, False))
        self._poll_later()
        return self._watches.watch_node(path, changed)

    def watch_children(self, path: str, changed: Callable[[], None]) -> Cancel:
        check_path(path)
        self._seen.setdefault((path, True), self._state(path, True))
        self._poll_later()
        return self._watches.watch_children(path, changed)

    async def watch_tree(self, path: str, changed: TreeChanged) -> Cancel:
        raise CannotWatch(f"{path}: a store that another process writes is read anew; it has no watch of a tree")

    def watch_session(self, changed: Callable[[SessionEvent], None]) -> Cancel:
        return self._watches.watch_session(changed)

    @property
    def session_timeout_s(self) -> float:
        return math.inf

    @property
    def last_answer(self) -> float:
        return self._clock.monotonic()

    def hurry(self, wait_s: float) -> None:
        """Nothing to do: no request here waits for another machine."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._database.close()

    def _catch_up(self, path: str) -> None:
        check_path(path)
        if self._closed:
            raise SessionLost(f"{path}: the metadata store {self._path} was closed")
        try:
            self._database.try_catch_up_with_primary()
        except Exception as error:
            raise StoreUnavailable(f"{self._path}: cannot follow its owner: {error}") from error

    def _state(self, path: str, of_children: bool) -> object:
        if of_children:
            return self._reader.stored(path) is not None, tuple(self._reader.stored_names(path))
        return self._reader.stored(path)

    def _poll_later(self) -> None:
        if self._timer is None:
            self._timer = self._clock.call_later(POLL_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        if self._closed:
            return
        watched = {(path, False) for path in self._watches.watched_nodes}
        watched |= {(path, True) for path in self._watches.watched_children}
        self._seen = {key: state for key, state in self._seen.items() if key in watched}
        if not watched:
            return
        with contextlib.suppress(StoreUnavailable):  # the next poll tries again
            self._catch_up("/")
            for path, of_children in watched:
                state = self._state(path, of_children)
                if self._seen.get((path, of_children)) == state:
                    continue
                self._seen[path, of_children] = state
                if of_children:
                    self._watches.children_changed(path)
                else:
                    self._watches.node_changed(path)
        self._poll_later()

    def _read_only(self, path: str) -> StoreReadOnly:
        return StoreReadOnly(f"{path}: {self._path} was opened read-only; only the process that owns it can change it")


async def open_secondary(path: str | Path, clock: Clock) -> SecondaryStore:
    """Read the tree in *path* while another process owns it."""
    return await SecondaryStore.open(path, clock)
