"""The metadata tree in RocksDB, in this process. `standalone` uses it instead of ZooKeeper.

One process owns a directory (RocksDB's LOCK). Rules:

1. Decisions are made on the loop, against the newest state (`_pending` over the database).
2. A thread writes all waiting changes as one batch, syncs the log once, and reports once.
3. Readers see a change only after its sync: until then `_pending` keeps the former value. So no reader acts on a
   change that a power cut could undo.
4. After a failed write no change is accepted: the state on disk is not known (I38).
5. Ephemeral nodes end with the process: `open` removes those that a former process left.
6. RocksDB does not miss its newest log, and takes another store's. So the file CHANGES has the number of changes that
   were synced, written behind each sync: with fewer of them the directory is not opened. It is not synced: at worst it
   has a smaller number. The store's identity is in it and in what each process writes first.

7. A checkpoint is made between two writes, and nothing is written until what belongs to it is copied, too.

Other processes may open the same directory to read it (`secondary`).
"""

import asyncio
import math
import os
import shutil
import struct
import threading
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rocksdict import Checkpoint, Rdict, WriteBatch

from magnetar_core.bookkeeper.metadata.stores.rocks_tree import (
    EPHEMERAL,
    FORMAT,
    FORMAT_KEY,
    IDENTITY_KEY,
    NUMBER,
    SEQUENCE,
    RocksTree,
    encode,
    key_of,
    open_error,
    tree_options,
)
from magnetar_core.bookkeeper.metadata.stores.store import (
    ANY_VERSION,
    NO_NODE,
    Delete,
    MetadataError,
    Node,
    Operation,
    OutcomeUnknown,
    SessionLost,
    StoreUnavailable,
)
from magnetar_core.bookkeeper.metadata.stores.tree import (
    PERSISTENT,
    Change,
    Record,
    check_path,
    node_of,
    parent_of,
    plan_delete,
    plan_multi,
    plan_put,
)
from magnetar_core.bookkeeper.metadata.stores.watches import Watched
from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import FILE_MODE, FOLDER_MODE
from magnetar_core.runtime.group_worker import GroupWorker
from magnetar_core.runtime.types import Corruption

_OWN: Final = 1
"""The owner of every ephemeral node: this process. Those of former processes are gone after `open`."""

# Changes in one batch. A batch holds the GIL for about 0.25 µs an operation, so this many stay below a millisecond.
_GROUP_CHANGES_MAX: Final = 500
# Changes that may wait for their sync. A caller waits for each of its own, so this bounds concurrent callers.
_PENDING_MAX: Final = 100_000


# How often it is looked whether a write has ended, which takes some milliseconds.
_LOOK_AGAIN_S: Final = 0.001


# Rule 6: identity (8), number of changes (8), CRC-32C of both (4). Beside RocksDB's files, which leaves it alone.
_CHANGES: Final = "CHANGES"
_IDENTITY_SIZE: Final = 8
_COUNT: Final = struct.Struct(">8sQ")
_CRC: Final = struct.Struct(">I")


class _Changes:
    """The file of rule 6."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / _CHANGES, os.O_RDWR | os.O_CREAT, FILE_MODE)
        self.identity = b""
        """Empty if the file does not have it."""
        self.recorded = 0
        """The number of changes that the file had at the start."""
        data = os.pread(self._fd, _COUNT.size + _CRC.size, 0)
        packed, crc = data[: _COUNT.size], data[_COUNT.size :]
        if crc == _CRC.pack(crc32c(packed)):
            self.identity, self.recorded = _COUNT.unpack(packed)

    def write(self, changes: int) -> None:
        packed = _COUNT.pack(self.identity, changes)
        os.pwrite(self._fd, packed + _CRC.pack(crc32c(packed)), 0)

    def close(self) -> None:
        os.close(self._fd)


class _Write(NamedTuple):
    """One put or delete on its way to the disk."""

    changes: list[Change]
    keys: list[tuple[bytes, bytes | None]]
    done: "asyncio.Future[None]"


class _Pending:
    """A node with changes that wait for their sync."""

    __slots__ = ("before", "count", "newest")

    def __init__(self, before: Record | None) -> None:
        self.before = before
        self.newest = before
        self.count = 0


class EmbeddedStore(Watched):
    """The metadata tree of the one process that owns a directory. Made by `open`."""

    def __init__(self, path: Path, clock: Clock, database: Rdict) -> None:
        super().__init__()
        self._path = path
        self._clock = clock
        self._database = database
        self._changes = _Changes(path)
        self._reader = RocksTree(database)
        self._pending: dict[str, _Pending] = {}
        self._sequences: dict[str, int] = {}
        self._closed = False
        self._writing = threading.Lock()
        """Held while the disk is written, and while it must not be."""
        self._worker: GroupWorker[_Write] = GroupWorker(
            f"metadata {path.name}", self._write, self._on_written, group_items_max=_GROUP_CHANGES_MAX
        )

    @classmethod
    async def open(cls, path: str | Path, clock: Clock) -> "EmbeddedStore":
        """Open the tree in directory *path* as its owner; the directory is made if it is missing.

        Raises StoreInUse if another process owns it, Corruption if it holds something else.
        """
        path = Path(path)
        # RocksDB lets everybody read its files: the folder is what keeps others out.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(FOLDER_MODE, exist_ok=True)
        try:
            database = Rdict(str(path), tree_options())
        except Exception as error:
            raise open_error(path, error) from error
        store = cls(path, clock, database)
        try:
            store._prepare()
        except BaseException:
            store._changes.close()
            database.close()
            raise
        store._worker.start()
        return store

    def _prepare(self) -> None:
        changes, has = self._changes, self._database.latest_sequence_number()
        identity = self._database.get(IDENTITY_KEY) or b""
        way_out = (
            f"Restore the whole folder from a backup; or remove {self._path / _CHANGES} to go on with what is there: "
            "bookies keep the entries of ledgers that it does not know, and nobody can read them"
        )
        if changes.identity and identity and identity != changes.identity:
            raise Corruption(f"{self._path}: some of its files are another store's. {way_out}")
        if has < changes.recorded:
            raise Corruption(
                f"{self._path} has {has} changes and had {changes.recorded}: its newest ones are missing, with a file "
                f"*.log of it. {way_out}"
            )
        changes.identity = changes.identity or identity or os.urandom(_IDENTITY_SIZE)
        stored_format = self._database.get(FORMAT_KEY)
        if stored_format is not None and stored_format != FORMAT:
            raise Corruption(f"{self._path}: metadata format {stored_format!r}, this program reads {FORMAT!r}")
        batch = WriteBatch(raw_mode=True)
        batch[IDENTITY_KEY] = changes.identity
        if stored_format is None:
            batch[FORMAT_KEY] = FORMAT
        for key in self._reader.keys_below(EPHEMERAL):
            path = key[1:].decode()
            del batch[key]
            del batch[key_of(path)]
        self._database.write(batch)
        self._database.flush_wal(True)
        changes.write(self._database.latest_sequence_number())

    # MetadataStore

    async def get(self, path: str) -> Node | None:
        self._check(path)
        record = self._durable_record(path)
        return None if record is None else node_of(path, record, _OWN)

    async def exists(self, path: str) -> bool:
        self._check(path)
        return self._durable_record(path) is not None

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
    ) -> int:
        self._check(path)
        owner = _OWN if ephemeral else PERSISTENT
        try:
            changes, version = plan_put(self, path, bytes(value), expected_version, owner, self._clock.wall_ms())
        except MetadataError:
            await self._wait_for_earlier()
            raise
        await self._change(changes)
        return version

    async def put_sequential(self, path_prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        parent = parent_of(path_prefix)
        self._check(parent)
        number = self._newest_number(parent)
        path = f"{path_prefix}{number:010d}"
        owner = _OWN if ephemeral else PERSISTENT
        changes, _ = plan_put(self, path, bytes(value), NO_NODE, owner, self._clock.wall_ms())
        self._sequences[parent] = number + 1
        await self._change(changes, [(SEQUENCE + parent.encode(), NUMBER.pack(number + 1))])
        return path

    async def next_number(self, path: str) -> int:
        self._check(path)
        number = self._newest_number(path)
        await self._wait_for_earlier()  # rule 3: who keeps the number must not be ahead of the disk
        return number

    def _newest_number(self, path: str) -> int:
        number = self._sequences.get(path)
        return self._reader.next_number(path) if number is None else number

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        self._check(path)
        try:
            changes = plan_delete(self, path, expected_version)
        except MetadataError:
            await self._wait_for_earlier()
            raise
        self._sequences.pop(path, None)
        await self._change(changes, [(SEQUENCE + path.encode(), None)])

    async def multi(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            self._check(operation.path)
        try:
            changes = plan_multi(self, operations, self._clock.wall_ms())
        except MetadataError:
            await self._wait_for_earlier()
            raise
        removed = [operation.path for operation in operations if isinstance(operation, Delete)]
        for path in removed:
            self._sequences.pop(path, None)
        # One item of the worker's group, so one batch of the database.
        await self._change(changes, [(SEQUENCE + path.encode(), None) for path in removed])

    async def children(self, path: str) -> list[str]:
        self._check(path)
        names = set(self._reader.stored_names(path))
        self._add_pending_names(path, names, lambda pending: pending.before)
        return sorted(names)

    async def sync(self) -> None:
        self._check("/")

    @property
    def session_timeout_s(self) -> float:
        return math.inf

    @property
    def last_answer(self) -> float:
        return self._clock.monotonic()

    def hurry(self, wait_s: float) -> None:
        """Nothing to do: no request here waits for another machine."""

    @asynccontextmanager
    async def checkpoint(self, directory: Path) -> AsyncIterator[None]:
        """Put the tree as it is on the disk now into the new folder *directory*, on the same file system: its tables
        are linked. Changes wait until the block ends. Raises MetadataError."""
        # Not waited for on another thread: who gives up meanwhile leaves the lock alone.
        while not self._writing.acquire(blocking=False):
            await self._clock.sleep(_LOOK_AGAIN_S)
        try:
            await asyncio.to_thread(self._copy_to, directory)
            yield
        finally:
            self._writing.release()

    def _copy_to(self, directory: Path) -> None:
        try:
            Checkpoint(self._database).create_checkpoint(str(directory))
            shutil.copyfile(self._path / _CHANGES, directory / _CHANGES)
        except Exception as error:  # rocksdict raises plain Exception
            raise MetadataError(f"{self._path} cannot be copied to {directory}: {error}") from error

    async def close(self) -> None:
        """Write waiting changes, remove the ephemeral nodes, release the directory."""
        if self._closed:
            return
        self._closed = True
        self._watches.clear()
        await self._worker.stop()
        if self._worker.error is None:
            batch = WriteBatch(raw_mode=True)
            for key in self._reader.keys_below(EPHEMERAL):
                del batch[key]
                del batch[key_of(key[1:].decode())]
            if len(batch):
                self._database.write(batch)
                self._database.flush_wal(True)
            self._changes.write(self._database.latest_sequence_number())
        self._changes.close()
        self._database.close()

    # View: the newest state, for decisions.

    def record(self, path: str) -> Record | None:
        pending = self._pending.get(path)
        return self._reader.stored(path) if pending is None else pending.newest

    def has_children(self, path: str) -> bool:
        # The first that stays is enough: a node may have ten thousand, and each removal below it asks.
        below = path.rstrip("/") + "/"
        for name in self._reader.stored_names(path):
            pending = self._pending.get(below + name)
            if pending is None or pending.newest is not None:
                return True
        return any(
            pending.newest is not None and parent_of(changed) == path for changed, pending in self._pending.items()
        )

    def child_names(self, path: str) -> Collection[str]:
        names = set(self._reader.stored_names(path))
        self._add_pending_names(path, names, lambda pending: pending.newest)
        return names

    def _durable_record(self, path: str) -> Record | None:
        pending = self._pending.get(path)
        return self._reader.stored(path) if pending is None else pending.before

    def _add_pending_names(self, path: str, names: set[str], choose: Callable[[_Pending], Record | None]) -> None:
        for changed, pending in self._pending.items():
            if parent_of(changed) != path:
                continue
            name = changed.rpartition("/")[2]
            if choose(pending) is None:
                names.discard(name)
            else:
                names.add(name)

    async def _wait_for_earlier(self) -> None:
        """Wait until all earlier changes can be read: a refusal must not be visible before its cause is (rule 3)."""
        if self._pending:
            await self._change([])

    async def _change(self, changes: list[Change], more: Sequence[tuple[bytes, bytes | None]] = ()) -> None:
        if len(self._pending) >= _PENDING_MAX:
            raise StoreUnavailable(f"{self._path}: {_PENDING_MAX} changes wait for the disk")
        keys: list[tuple[bytes, bytes | None]] = list(more)
        for change in changes:
            pending = self._pending.get(change.path)
            if pending is None:
                pending = self._pending[change.path] = _Pending(self._reader.stored(change.path))
            former = pending.newest
            pending.newest = change.record
            pending.count += 1
            keys.append((key_of(change.path), None if change.record is None else encode(change.record)))
            if change.record is None:
                if former is not None and former.owner != PERSISTENT:
                    keys.append((EPHEMERAL + change.path.encode(), None))
            elif change.appeared and change.record.owner != PERSISTENT:
                keys.append((EPHEMERAL + change.path.encode(), b""))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._worker.put([_Write(changes, keys, done)])
        # Shielded: the change is made even if its caller is cancelled.
        await asyncio.shield(done)

    def _write(self, writes: Sequence[_Write]) -> None:
        """On the worker's thread."""
        batch = WriteBatch(raw_mode=True)
        for write in writes:
            for key, value in write.keys:
                if value is None:
                    del batch[key]
                else:
                    batch[key] = value
        with self._writing:
            self._database.write(batch)
            self._database.flush_wal(True)
            self._changes.write(self._database.latest_sequence_number())

    def _on_written(self, writes: Sequence[_Write], error: BaseException | None) -> None:
        for write in writes:
            for change in write.changes:
                pending = self._pending[change.path]
                if error is None:
                    pending.before = change.record
                pending.count -= 1
                if not pending.count:
                    del self._pending[change.path]
                if error is None:
                    self._watches.applied(change)
            if error is None:
                if not write.done.done():
                    write.done.set_result(None)
            elif not write.done.done():
                write.done.set_exception(self._failure(error))
                write.done.exception()  # retrieved, since the caller may have been cancelled

    def _check(self, path: str) -> None:
        check_path(path)
        if self._closed:
            raise SessionLost(f"{path}: the metadata store {self._path} was closed")
        if self._worker.error is not None:
            raise self._failure(self._worker.error)

    def _failure(self, error: BaseException) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self._path}: writing failed ({error}); the process must be restarted to know what is stored"
        )
