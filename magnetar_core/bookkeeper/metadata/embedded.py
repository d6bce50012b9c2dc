"""The metadata tree in RocksDB, in this process: what standalone uses instead of ZooKeeper.

    key                       value
    <depth> <path>            version (8) owner (1) created (8) modified (8) value…    a node; depth is one byte
    0xfc "format"             1
    0xfd <path>               number (8)     the next sequential child of the node
    0xfe <path>               (empty)        the node is ephemeral

With the depth in front, the children of a node lie one behind the other and nothing else lies between them.

One process owns a directory (RocksDB's LOCK). Rules:

1. Decisions are made on the loop, against the newest state (`_pending` over the database).
2. A thread writes all changes that wait as one batch, syncs the log once, and reports once.
3. Readers see a change only after its sync: until then `_pending` keeps what was there before. So nobody acts on
   what a power cut could take back.
4. After a failed write nothing more is accepted: the state on disk is not known (correctness I38).
5. What is ephemeral ends with the process: `open` removes what a dead one left.

Other processes may open the same directory as a *secondary*: read-only, caught up at each read.
"""

import asyncio
import contextlib
import math
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from magnetar_core.bookkeeper.metadata.memory import node_of
from magnetar_core.bookkeeper.metadata.store import (
    ANY_VERSION,
    NO_NODE,
    Cancel,
    MetadataError,
    Node,
    OutcomeUnknown,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
)
from magnetar_core.bookkeeper.metadata.tree import (
    DEPTH_MAX,
    PERSISTENT,
    Change,
    Record,
    check_path,
    parent_of,
    plan_delete,
    plan_put,
)
from magnetar_core.bookkeeper.metadata.watches import Watches
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.group_worker import GroupWorker
from magnetar_core.runtime.types import MIB, Corruption

_HEAD: Final = struct.Struct(">QBQQ")
_NUMBER: Final = struct.Struct(">Q")
_FORMAT_KEY: Final = b"\xfcformat"
_FORMAT: Final = b"1"
_SEQUENCE: Final = b"\xfd"
_EPHEMERAL: Final = b"\xfe"

_OWN: Final = 1
"""The owner of every ephemeral node: this process. Those of former processes are gone after `open`."""

assert DEPTH_MAX < 0xFC

# The log is replayed at open: at 4 MiB that takes a few milliseconds. A change is some hundred bytes.
_WRITE_BUFFER_BYTES: Final = 4 * MIB
_BLOCK_CACHE_BYTES: Final = 8 * MIB
# A batch holds the GIL for about 0.25 µs an operation; so many changes stay below a millisecond.
_GROUP_CHANGES_MAX: Final = 500
# Changes that may wait for their sync. Callers wait for each, so this is a bound on concurrent callers.
_PENDING_MAX: Final = 100_000

# How often a secondary looks whether what it watches has changed: nobody tells it.
_POLL_S: Final = 0.5


class StoreInUse(MetadataError):
    """Another process owns the directory."""


class StoreReadOnly(MetadataError):
    """A secondary cannot change anything."""


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


class _Reader:
    """The tree as the database holds it."""

    def __init__(self, database: Rdict) -> None:
        self.database = database

    def stored(self, path: str) -> Record | None:
        if path == "/":
            return Record(b"", 0, PERSISTENT, 0, 0)
        data = self.database.get(_key(path))
        return None if data is None else _decode(path, data)

    def stored_names(self, path: str) -> Iterator[str]:
        prefix = _children_prefix(path)
        skip = len(prefix)
        for key in self._keys(prefix):
            yield key[skip:].decode()

    def has_stored_children(self, path: str) -> bool:
        return next(self._keys(_children_prefix(path)), None) is not None

    def keys_below(self, prefix: bytes) -> list[bytes]:
        return list(self._keys(prefix))

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        # A live iterator would keep the LOCK after close: it ends with this generator, so the
        # callers take all of it or drop it at once.
        options = ReadOptions()
        options.set_iterate_upper_bound(_after(prefix))
        iterator = self.database.iter(options)
        iterator.seek(prefix)
        while iterator.valid():
            key: Any = iterator.key()
            yield key
            iterator.next()


class EmbeddedStore:
    """The metadata tree of the one process that owns a directory. Made by `open`."""

    def __init__(self, path: Path, clock: Clock, database: Rdict) -> None:
        self._path = path
        self._clock = clock
        self._database = database
        self._reader = _Reader(database)
        self._pending: dict[str, _Pending] = {}
        self._sequences: dict[str, int] = {}
        self._watches = Watches()
        self._closed = False
        self._worker: GroupWorker[_Write] = GroupWorker(
            f"metadata {path.name}", self._write, self._written, group_items_max=_GROUP_CHANGES_MAX
        )

    @classmethod
    async def open(cls, path: str | Path, clock: Clock) -> "EmbeddedStore":
        """Own the tree in *path*, which is made if it is not there.

        Raises StoreInUse if another process owns it, Corruption if it holds something else.
        """
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        try:
            database = Rdict(str(path), _options())
        except Exception as error:
            raise _open_error(path, error) from error
        store = cls(path, clock, database)
        try:
            store._prepare()
        except BaseException:
            database.close()
            raise
        store._worker.start()
        return store

    def _prepare(self) -> None:
        found = self._database.get(_FORMAT_KEY)
        if found is not None and found != _FORMAT:
            raise Corruption(f"{self._path}: metadata format {found!r}, this program reads {_FORMAT!r}")
        batch = WriteBatch(raw_mode=True)
        if found is None:
            batch[_FORMAT_KEY] = _FORMAT
        for key in self._reader.keys_below(_EPHEMERAL):
            path = key[1:].decode()
            del batch[key]
            del batch[_key(path)]
        if len(batch):
            self._database.write(batch)
            self._database.flush_wal(True)

    # MetadataStore

    async def get(self, path: str) -> Node | None:
        self._check(path)
        record = self._durable(path)
        return None if record is None else node_of(path, record, _OWN)

    async def exists(self, path: str) -> bool:
        self._check(path)
        return self._durable(path) is not None

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
            await self._settle()
            raise
        await self._change(changes)
        return version

    async def put_sequential(self, path_prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        parent = parent_of(path_prefix)
        self._check(parent)
        number = self._sequences.get(parent)
        if number is None:
            stored = self._database.get(_SEQUENCE + parent.encode())
            number = 0 if stored is None else _NUMBER.unpack(stored)[0]
        path = f"{path_prefix}{number:010d}"
        owner = _OWN if ephemeral else PERSISTENT
        changes, _ = plan_put(self, path, bytes(value), NO_NODE, owner, self._clock.wall_ms())
        self._sequences[parent] = number + 1
        await self._change(changes, [(_SEQUENCE + parent.encode(), _NUMBER.pack(number + 1))])
        return path

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        self._check(path)
        try:
            changes = plan_delete(self, path, expected_version)
        except MetadataError:
            await self._settle()
            raise
        self._sequences.pop(path, None)
        await self._change(changes, [(_SEQUENCE + path.encode(), None)])

    async def children(self, path: str) -> list[str]:
        self._check(path)
        names = set(self._reader.stored_names(path))
        self._overlay(path, names, lambda pending: pending.before)
        return sorted(names)

    def watch_node(self, path: str, changed: Callable[[], None]) -> Cancel:
        check_path(path)
        return self._watches.watch_node(path, changed)

    def watch_children(self, path: str, changed: Callable[[], None]) -> Cancel:
        check_path(path)
        return self._watches.watch_children(path, changed)

    def watch_session(self, changed: Callable[[SessionEvent], None]) -> Cancel:
        return self._watches.watch_session(changed)

    @property
    def session_timeout_s(self) -> float:
        return math.inf

    @property
    def last_answer(self) -> float:
        return self._clock.monotonic()

    def hurry(self, wait_s: float) -> None:
        """Nothing here waits for anybody."""

    async def close(self) -> None:
        """Write what waits, remove the ephemeral nodes, give the directory back."""
        if self._closed:
            return
        self._closed = True
        self._watches.clear()
        await self._worker.stop()
        if self._worker.error is None:
            batch = WriteBatch(raw_mode=True)
            for key in self._reader.keys_below(_EPHEMERAL):
                del batch[key]
                del batch[_key(key[1:].decode())]
            if len(batch):
                self._database.write(batch)
                self._database.flush_wal(True)
        self._database.close()

    # View: the newest state, for decisions.

    def record(self, path: str) -> Record | None:
        pending = self._pending.get(path)
        return self._reader.stored(path) if pending is None else pending.newest

    def has_children(self, path: str) -> bool:
        if not self._pending:
            return self._reader.has_stored_children(path)
        names = set(self._reader.stored_names(path))
        self._overlay(path, names, lambda pending: pending.newest)
        return bool(names)

    def _durable(self, path: str) -> Record | None:
        pending = self._pending.get(path)
        return self._reader.stored(path) if pending is None else pending.before

    def _overlay(self, path: str, names: set[str], choose: Callable[[_Pending], Record | None]) -> None:
        for changed, pending in self._pending.items():
            if parent_of(changed) != path:
                continue
            name = changed.rpartition("/")[2]
            if choose(pending) is None:
                names.discard(name)
            else:
                names.add(name)

    async def _settle(self) -> None:
        """Wait until what was decided before now can be read: a refusal is no earlier than its cause (rule 3)."""
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
            keys.append((_key(change.path), None if change.record is None else _encode(change.record)))
            if change.record is None:
                if former is not None and former.owner != PERSISTENT:
                    keys.append((_EPHEMERAL + change.path.encode(), None))
            elif change.appeared and change.record.owner != PERSISTENT:
                keys.append((_EPHEMERAL + change.path.encode(), b""))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._worker.put([_Write(changes, keys, done)])
        # Shielded: a caller that gives up does not take the change back.
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
        self._database.write(batch)
        self._database.flush_wal(True)

    def _written(self, writes: Sequence[_Write], error: BaseException | None) -> None:
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
                write.done.exception()  # a caller that gave up does not hear of it

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


class SecondaryStore:
    """The tree of another process's directory, read-only. Made by `open`."""

    def __init__(self, path: Path, clock: Clock, database: Rdict, own_directory: Path) -> None:
        self._path = path
        self._clock = clock
        self._database = database
        self._reader = _Reader(database)
        self._own_directory = own_directory
        self._watches = Watches()
        self._seen: dict[tuple[str, bool], object] = {}
        self._timer: Timer | None = None
        self._closed = False

    @classmethod
    async def open(cls, path: str | Path, clock: Clock) -> "SecondaryStore":
        """Read the tree in *path*, which another process may own. Raises MetadataError if there is none."""
        path = Path(path)
        if not (path / "CURRENT").exists():
            raise MetadataError(f"{path} holds no metadata store; is the path right?")
        own_directory = Path(tempfile.mkdtemp(prefix="magnetar-metadata-"))
        try:
            database = Rdict(str(path), _options(), access_type=AccessType.secondary(str(own_directory)))
        except Exception as error:
            shutil.rmtree(own_directory, ignore_errors=True)
            raise _open_error(path, error) from error
        return cls(path, clock, database, own_directory)

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

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        raise self._read_only(path)

    async def children(self, path: str) -> list[str]:
        self._catch_up(path)
        return sorted(self._reader.stored_names(path))

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

    def watch_session(self, changed: Callable[[SessionEvent], None]) -> Cancel:
        return self._watches.watch_session(changed)

    @property
    def session_timeout_s(self) -> float:
        return math.inf

    @property
    def last_answer(self) -> float:
        return self._clock.monotonic()

    def hurry(self, wait_s: float) -> None:
        """Nothing here waits for anybody."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._database.close()
        shutil.rmtree(self._own_directory, ignore_errors=True)

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
            self._timer = self._clock.call_later(_POLL_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        if self._closed:
            return
        watched = {(path, False) for path in self._watches.watched_nodes}
        watched |= {(path, True) for path in self._watches.watched_children}
        self._seen = {key: state for key, state in self._seen.items() if key in watched}
        if not watched:
            return
        with contextlib.suppress(StoreUnavailable):  # the next turn tries again
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


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(2 * _WRITE_BUFFER_BYTES)
    options.set_compression_type(DBCompressionType.none())
    options.set_keep_log_file_num(2)
    options.set_max_open_files(64)
    blocks = BlockBasedOptions()
    blocks.set_format_version(5)
    blocks.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    return options


def _open_error(path: Path, error: Exception) -> MetadataError | Corruption:
    text = str(error)
    if "lock" in text.lower():
        return StoreInUse(
            f"{path} is in use by another process: stop it, choose another directory, or open this one read-only"
        )
    if text.startswith("Corruption"):
        return Corruption(f"{path}: {text}")
    return MetadataError(f"{path} cannot be opened: {text}")


def _key(path: str) -> bytes:
    return bytes((path.count("/"),)) + path.encode()


def _children_prefix(path: str) -> bytes:
    if path == "/":
        return b"\x01/"
    return bytes((path.count("/") + 1,)) + path.encode() + b"/"


def _after(prefix: bytes) -> bytes:
    """The first key behind all that begin with *prefix*."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _encode(record: Record) -> bytes:
    return _HEAD.pack(record.version, record.owner, record.created_ms, record.modified_ms) + record.value


def _decode(path: str, data: bytes) -> Record:
    if len(data) < _HEAD.size:
        raise Corruption(f"{path}: a stored node of {len(data)} bytes, expected at least {_HEAD.size}")
    version, owner, created_ms, modified_ms = _HEAD.unpack_from(data)
    return Record(data[_HEAD.size :], version, owner, created_ms, modified_ms)
