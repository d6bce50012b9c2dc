"""The board of auto-recovery: which ledgers lack copies, who works on them, and whether anybody may.

Auditors put marks up, workers lock them and take them down; Apache's and ours do so on the same nodes
(`underreplication` has paths and values). Rules:

1. A mark is taken down only with the version under which it was read before the ledger was checked (I66): whoever
   marks the ledger again in the meantime changes the version, and that mark stays.
2. A lock is an ephemeral node, so it ends with its owner. It saves double work; nothing relies on it (I70).
3. Only a lock of the present session is removed together with a mark. Every lock has version 0, ours and the one that
   another worker takes after our session has ended, so the version cannot tell them apart. The session does: what was
   taken is forgotten when the store reports SessionLost, and a change that was decided before that report reaches the
   server under the old session or not at all (rule 5 of `store`), where the lock is still ours. After anything
   that leaves it unknown whether the lock is ours, it is removed alone, and only if its value names us.
4. A lock that was asked for stays `held` until it is known to be given back, also where the answer was lost or the
   caller was cancelled: its session may live on for weeks, and nobody else could take it.
5. A mark that cannot be read is reported and stays; it does not hide the others (I60).
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.metadata.marks import underreplication as board
from magnetar_core.bookkeeper.metadata.marks.underreplication import Mark, PeriodicCheck
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Cancel,
    Delete,
    MetadataStore,
    NoNode,
    NotEmpty,
    OutcomeUnknown,
    Put,
    SessionEvent,
    StoreUnavailable,
    VersionConflict,
    delete_empty_parents,
)

log = logging.getLogger(__name__)

# Others that mark the same ledger at the same time; each of them made progress.
_CONFLICTS_MAX: Final = 20

# The version of a node that nobody has written again, as nobody does with a lock.
_NEW: Final = 0

# Levels of directories between the root of the marks and a ledger's mark.
_LEVELS: Final = 4


class VersionedMark(NamedTuple):
    """A mark as it was read, with the version that takes it down (rule 1)."""

    mark: Mark
    version: int


class MarkBoard:
    """Marks, locks and switches below *root*. All calls are made on the store's loop and raise MetadataError."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._root = root
        self._ours: set[int] = set()
        """Ledgers whose lock was taken through this object, in the present session, beyond doubt (rule 3)."""
        self._doubtful: set[int] = set()
        """Ledgers whose lock may be ours: it was asked for, or is perhaps given back (rule 4)."""
        self._end_watch: Cancel | None = None
        """While there are any of them, the session is watched."""

    async def prepare(self) -> None:
        """Make the nodes that Apache's managers expect to find."""
        for path, value in (
            (board.layout_path(self._root), board.LAYOUT),
            (board.marks_path(self._root), b""),
            (board.locks_path(self._root), b""),
        ):
            if not await self._store.exists(path):
                with contextlib.suppress(VersionConflict):
                    await self._store.put(path, value, NO_NODE)

    # ------------------------------------------------------------------------------- marks

    async def mark(self, ledger_id: int, replica: str | None, wall_ms: int) -> None:
        """Say that *ledger_id* lacks the copy on *replica* (None: only that it must be looked at).

        A mark that names the bookie already is left as it is.
        """
        path = board.mark_path(self._root, ledger_id)
        replicas = () if replica is None else (replica,)
        if await self._mark_first(path, Mark(replicas, wall_ms)):
            return
        for _ in range(_CONFLICTS_MAX):
            node = await self._store.get(path)
            try:
                if node is None:
                    await self._store.put(path, board.encode_mark(Mark(replicas, wall_ms)), NO_NODE)
                    return
                mark = board.decode_mark(node.value)
                if replica is None or replica in mark.replicas:
                    return
                merged = Mark((*mark.replicas, *replicas), mark.marked_ms)
                await self._store.put(path, board.encode_mark(merged), node.version)
                return
            except (VersionConflict, OutcomeUnknown):
                continue  # the next round reads what is there
        raise StoreUnavailable(f"{path}: {_CONFLICTS_MAX} changes by others in a row")

    async def _mark_first(self, path: str, mark: Mark) -> bool:
        """Put up a mark where its directory is missing, too, as it nearly always is: one change instead
        of a look and three changes. If it is refused, all that went with it are sent alone (`zookeeper_groups`)."""
        try:
            directory = Put(path.rpartition("/")[0], b"", NO_NODE)
            await self._store.multi([directory, Put(path, board.encode_mark(mark), NO_NODE)])
        except (VersionConflict, OutcomeUnknown):
            return False
        return True

    async def read(self, ledger_id: int) -> VersionedMark | None:
        """The mark of *ledger_id*; None if there is none. Raises Corruption."""
        node = await self._store.get(board.mark_path(self._root, ledger_id))
        return None if node is None else VersionedMark(board.decode_mark(node.value), node.version)

    async def take_down(self, ledger_id: int, version: int) -> bool:
        """Remove the mark that was read at *version*. False: it was marked again since, and stays (rule 1).

        The lock of *ledger_id*, if it was taken here, goes in the same step. The directories above its own, which other
        marks share, are left to `prune_above`: while there are other marks, each removal would be refused.
        """
        path = board.mark_path(self._root, ledger_id)
        directory = path.rpartition("/")[0]
        if ledger_id in self._ours:
            # One change instead of three: each is a sync of ZooKeeper's log.
            lock = Delete(board.lock_path(self._root, ledger_id), _NEW)
            try:
                await self._store.multi([Delete(path, version), Delete(directory), lock])
            except (NoNode, NotEmpty, VersionConflict, OutcomeUnknown):
                # One of them is not as it was: each is removed alone, to see which. It may be the lock (rule 3).
                self._doubt(ledger_id)
            else:
                self._let_go(ledger_id)
                return True
        try:
            await self._store.delete(path, version)
        except VersionConflict:
            return False
        except (NoNode, OutcomeUnknown):
            # Gone, or perhaps gone: what is there now decides.
            if await self._store.exists(path):
                return False
        await self.prune(ledger_id)
        return True

    async def marked(self) -> AsyncIterator[int]:
        """Every ledger that has a mark for the whole of the iteration."""
        async for ledger_id in self._walk(board.marks_path(self._root), _LEVELS):
            yield ledger_id

    async def _walk(self, path: str, levels: int) -> AsyncIterator[int]:
        for name in await self._store.children(path):
            if levels:
                async for ledger_id in self._walk(f"{path}/{name}", levels - 1):
                    yield ledger_id
            elif (marked_id := board.ledger_id_of(name)) is not None:
                yield marked_id

    async def prune(self, ledger_id: int) -> None:
        """Remove the directories above the mark of *ledger_id* as far as they are empty."""
        path = board.mark_path(self._root, ledger_id)
        await delete_empty_parents(self._store, path, board.marks_path(self._root))

    async def prune_above(self, path_below: str) -> None:
        """Remove the directory *path_below* the root of the marks, and those above it, as far as they are empty."""
        root = board.marks_path(self._root)
        await delete_empty_parents(self._store, f"{root}{path_below}/", root)

    # ------------------------------------------------------------------------------- locks

    async def lock(self, ledger_id: int, holder: str) -> bool:
        """Take the lock of *ledger_id* for this session; False if somebody else has it, also of this session.

        After an error, or if the caller is cancelled, the ledger may be `held`.
        """
        if ledger_id in self._ours:
            return False
        path = board.lock_path(self._root, ledger_id)
        may_be_ours = ledger_id in self._doubtful
        self._doubt(ledger_id)
        try:
            await self._store.put(path, board.lock_value(holder), NO_NODE, ephemeral=True)
        except (VersionConflict, OutcomeUnknown) as error:
            # Ours already if the answer to our own request was lost, to this one or to one before.
            may_be_ours |= isinstance(error, OutcomeUnknown)
            node = await self._store.get(path)
            if node is None or not node.own or not may_be_ours:
                self._let_go(ledger_id)
                return False
        if ledger_id not in self._doubtful:
            return False  # the session ended meanwhile
        assert self._end_watch is not None, "a lock is held, and nobody watches its session (rule 3)"
        self._doubtful.discard(ledger_id)
        self._ours.add(ledger_id)
        return True

    async def unlock(self, ledger_id: int) -> None:
        """Give the lock back that was taken here; one that is not ours, or not there, is left as it is.

        After an error the ledger is still `held`.
        """
        if ledger_id not in self.held:
            return
        path = board.lock_path(self._root, ledger_id)
        self._doubt(ledger_id)
        node = await self._store.get(path)
        if ledger_id not in self.held:
            return  # the session has ended, and the lock with it
        if node is not None and node.own:
            with contextlib.suppress(NoNode, VersionConflict):
                await self._store.delete(path, node.version)
        self._let_go(ledger_id)

    @property
    def held(self) -> frozenset[int]:
        """Ledgers whose lock is this session's, or may be (rule 4)."""
        return frozenset(self._ours | self._doubtful)

    def _doubt(self, ledger_id: int) -> None:
        if self._end_watch is None:
            self._end_watch = self._store.watch_session(self._on_session)
        self._ours.discard(ledger_id)
        self._doubtful.add(ledger_id)

    def _let_go(self, ledger_id: int) -> None:
        self._ours.discard(ledger_id)
        self._doubtful.discard(ledger_id)
        if self._end_watch is not None and not (self._ours or self._doubtful):
            self._end_watch()
            self._end_watch = None

    def _on_session(self, event: SessionEvent) -> None:
        """Rule 3."""
        if event is SessionEvent.LOST:
            for ledger_id in self.held:
                self._let_go(ledger_id)

    async def locked(self) -> frozenset[int]:
        """Ledgers that somebody has locked."""
        names = await self._store.children(board.locks_path(self._root))
        return frozenset(ledger_id for name in names if (ledger_id := board.ledger_id_of(name)) is not None)

    async def holder(self, ledger_id: int) -> str | None:
        """Who holds the lock of *ledger_id*; None if nobody does, or the node does not say."""
        node = await self._store.get(board.lock_path(self._root, ledger_id))
        return None if node is None else board.voter(node.value)

    # ---------------------------------------------------------------------------- switches

    async def is_enabled(self) -> bool:
        """Auto-recovery is on: nobody has switched it off for the whole cluster."""
        return not await self._store.exists(board.disabled_path(self._root))

    async def set_enabled(self, enabled: bool) -> None:
        """Switch auto-recovery of the whole cluster on or off; it has no effect where it is so already."""
        path = board.disabled_path(self._root)
        if enabled:
            with contextlib.suppress(NoNode):
                await self._store.delete(path)
        else:
            with contextlib.suppress(VersionConflict):
                await self._store.put(path, b"", NO_NODE)

    async def lost_bookie_delay_s(self) -> int | None:
        """How long a bookie may stay away before its ledgers are marked; None: nobody has said. Raises Corruption."""
        node = await self._store.get(board.delay_path(self._root))
        return None if node is None else board.decode_delay(node.value)

    async def set_lost_bookie_delay(self, seconds: int) -> None:
        """Also with the same value this asks the auditor for an audit."""
        await self._store.put(board.delay_path(self._root), board.encode_delay(seconds))

    async def last_checked_ms(self, check: PeriodicCheck) -> int | None:
        """Wall clock of the last complete run of *check*; None: it never ran. Raises Corruption."""
        node = await self._store.get(board.checked_path(self._root, check))
        return None if node is None else board.decode_checked(node.value)

    async def set_last_checked(self, check: PeriodicCheck, wall_ms: int) -> None:
        await self._store.put(board.checked_path(self._root, check), board.encode_checked(check, wall_ms))

    async def progress(self, name: str) -> bytes | None:
        """What `set_progress` was given last; None: nothing, or it was cleared."""
        node = await self._store.get(board.progress_path(self._root, name))
        return None if node is None else node.value or None

    async def set_progress(self, name: str, value: bytes) -> None:
        """Keep how far the check *name* has come, for the next auditor; empty clears it."""
        await self._store.put(board.progress_path(self._root, name), value)

    def watch_enabled(self, changed: Callable[[], None]) -> Cancel:
        return self._store.watch_node(board.disabled_path(self._root), changed)

    def watch_delay(self, changed: Callable[[], None]) -> Cancel:
        return self._store.watch_node(board.delay_path(self._root), changed)

    def watch_locks(self, changed: Callable[[], None]) -> Cancel:
        return self._store.watch_children(board.locks_path(self._root), changed)

    def watch_marks(self, path_below: str, changed: Callable[[], None]) -> Cancel:
        """Watch the children of one directory of marks; *path_below* the root of the marks, "" for itself."""
        return self._store.watch_children(board.marks_path(self._root) + path_below, changed)

    async def directories(self, path_below: str) -> list[str]:
        """The children of one directory of marks."""
        return await self._store.children(board.marks_path(self._root) + path_below)
