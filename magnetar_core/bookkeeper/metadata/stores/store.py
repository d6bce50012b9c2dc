"""The one interface of the metadata tree, which holds the records of ledgers, bookies and topics. No IO.

Implementations: `MemoryStore` (memory.py), `EmbeddedStore` (embedded.py, RocksDB in this process), `ZooKeeperStore`
(zookeeper.py, Apache's own layout). tests/conformance runs one suite over all of them.

Rules every implementation keeps:

1. Paths are absolute (`/ledgers/available`), without a trailing slash. The value of a node is bytes, maybe
   empty. A new node has version 0; each successful `put` adds one.
2. `put` and `delete` with an expected version are atomic compare-and-set. NO_NODE (-1) means "must not exist".
3. Missing parents are created by `put`, with empty values. `delete` refuses a node that has children.
4. A connection that is lost during `put` or `delete` makes the outcome unknown: `OutcomeUnknown` is raised, and
   the caller reads again and decides by a nonce in the value (I56). It is never reported as a conflict or a
   success.
5. Ephemeral nodes end with the session. No change decided under a session is sent under a later one, also before the
   end of the session was reported (I62): what is decided from an ephemeral node of one's own is done while that node
   is there, or not at all. Sessions and watches are hints; only compare-and-set decides (I59).
6. Watches are persistent (no re-arming by the caller), may merge several changes into one call, and call back on
   the event loop. After a reconnect they fire once, so that the caller reads again. The watch of a tree is set when
   its call returns; it reports a change at the latest one turn of the loop after the first answer that shows it.
7. `multi` makes all of its changes or none, in their order, and everybody sees all of them at once.
"""

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias

from magnetar_core.runtime.types import MagnetarError

NO_NODE: Final = -1
"""As an expected version: the node must not exist."""

ANY_VERSION: Final[None] = None
"""As an expected version: any, or none."""


class MetadataError(MagnetarError):
    """The metadata store could not do what was asked; the text names the path."""


class VersionConflict(MetadataError):
    """The node was changed, created or removed by another client since it was read."""


class NoNode(MetadataError):
    """The node does not exist."""


class WentBack(MetadataError):
    """The store has older data than it had: somebody put a copy back, or a server lost what it had confirmed."""

    seen = 0
    """How often this process has met it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        WentBack.seen += 1


class NotEmpty(MetadataError):
    """The node has children and cannot be deleted."""


class StoreUnavailable(MetadataError):
    """The store did not answer; nothing was changed by this call."""


class OutcomeUnknown(StoreUnavailable):
    """The connection broke while a change was under way: it may have happened or not."""


class CannotWatch(MetadataError):
    """The store has no watch of a whole tree; whoever wants to know reads it again."""


class SessionLost(MetadataError):
    """The session of this request has ended; its ephemeral nodes are gone."""


class Node(NamedTuple):
    """A node as it was read. Times are the store's wall clock in milliseconds since 1970."""

    path: str
    value: bytes
    version: int
    ephemeral: bool = False
    own: bool = False
    """Ephemeral and made by the session that read it."""
    created_ms: int = 0
    modified_ms: int = 0
    children: int | None = None
    """How many children it has, if the store says it with a node, as ZooKeeper does."""


class Put(NamedTuple):
    """Write a node that outlives the session, as `put` does."""

    path: str
    value: bytes
    expected_version: int | None = ANY_VERSION


class Delete(NamedTuple):
    """Remove a node, as `delete` does."""

    path: str
    expected_version: int | None = ANY_VERSION


class Check(NamedTuple):
    """Change nothing; the node must exist in this version. That a node is absent cannot be checked, since ZooKeeper
    has no such request: put it with NO_NODE."""

    path: str
    expected_version: int


Operation: TypeAlias = Put | Delete | Check


class SessionEvent(Enum):
    """What became of the session with the store."""

    SUSPENDED = "suspended"
    """No answer at the moment; the session may still live."""
    CONNECTED = "connected"
    """The store answers again, in the same session; all watches have fired."""
    LOST = "lost"
    """The old session has ended and its ephemeral nodes are gone. A new session exists, or is being made."""


Cancel = Callable[[], None]

TreeChanged = Callable[[Collection[str] | None], None]
"""Called with the nodes that were created, written or removed; None: any may have been."""


class MetadataStore(Protocol):
    """The metadata tree. All methods are called on the event loop that opened the store."""

    async def get(self, path: str) -> Node | None:
        """The node, or None if it does not exist. Raises StoreUnavailable."""
        ...

    async def exists(self, path: str) -> bool: ...

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
    ) -> int:
        """Write *value*; return the new version. Creates the node (and its parents) where allowed.

        Raises VersionConflict, OutcomeUnknown, SessionLost (ephemeral only).
        """
        ...

    async def put_sequential(self, path_prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        """Create `<path_prefix><ten digits>` with the next number; return its path."""
        ...

    async def next_number(self, path: str) -> int:
        """The number that the next sequential child of *path* gets; it is not used up. After `sync` it is above all
        that were given before. Raises StoreUnavailable."""
        ...

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        """Raises NoNode, VersionConflict, NotEmpty, OutcomeUnknown."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> None:
        """All of *operations*, each of which sees those before it, or none of them.

        Missing parents of a Put are made; those may stay when the rest is refused. The values and paths together are
        limited as one value is. Raises the error of the first operation that is refused, which names its path:
        VersionConflict, NoNode (Delete only), NotEmpty, OutcomeUnknown.
        """
        ...

    async def children(self, path: str) -> list[str]:
        """Names of the children, sorted; empty if the node does not exist."""
        ...

    async def sync(self) -> None:
        """From now on reads show all that was stored before this call. Without it they may be older: a server of
        ZooKeeper answers from what it has, which may be behind the others. Raises StoreUnavailable.
        """
        ...

    def watch_node(self, path: str, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after the node was created, written or removed."""
        ...

    def watch_children(self, path: str, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after a child, or the node itself, was created or removed."""
        ...

    async def watch_tree(self, path: str, changed: TreeChanged) -> Cancel:
        """Call *changed* with the paths of nodes at and below *path* that were created, written or removed.

        Raises CannotWatch: a ZooKeeper before 3.6, or a store that this process only looks into.
        """
        ...

    def watch_session(self, changed: Callable[[SessionEvent], None]) -> Cancel: ...

    @property
    def session_timeout_s(self) -> float:
        """The session time that was negotiated; infinite where the store lives in this process."""
        ...

    @property
    def last_answer(self) -> float:
        """Our own monotonic clock when the store last answered anything (heartbeats included).

        The client library reports a lost session only after it has reconnected (measured: 9 s late at a
        2 s session), so a caller that must stop at the session's end compares this with its own clock.
        """
        ...

    def hurry(self, wait_s: float) -> None:
        """The caller is stopping. From now on, all requests together wait at most *wait_s* seconds for a store that
        does not answer; after that they raise StoreUnavailable at once."""
        ...

    async def close(self) -> None:
        """End the session. Its ephemeral nodes are removed at once."""
        ...


async def delete_empty_parents(store: MetadataStore, path: str, root: str) -> None:
    """Remove the nodes above *path*, up to *root*, which stays, as far as they are empty.

    A store that is away leaves them there, which is harmless. One that has children is looked at only: ZooKeeper syncs
    its log also for a removal that it refuses, and what goes with it in one transaction is refused, too.
    """
    parent = path.rpartition("/")[0]
    assert parent.startswith(root), (path, root)
    while parent != root:
        try:
            node = await store.get(parent)
            if node is not None and node.children:
                return
            if node is not None:
                await store.delete(parent)
        except NoNode:
            pass
        except (NotEmpty, VersionConflict, StoreUnavailable):
            return
        parent = parent.rpartition("/")[0]
