"""A file system in memory whose disk can crash, with the promises of `magnetar_core.runtime.files`."""

import errno
import posixpath
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from magnetar_core.runtime.files import SECTOR_BYTES, DiskUsage, File, Lock
from magnetar_core.runtime.types import Buffer, Buffers


@dataclass
class _Write:
    offset: int
    data: bytes


@dataclass
class _Truncate:
    size_bytes: int


@dataclass
class _Inode:
    """A file's content: as last synced, as read now, and the changes in between."""

    durable: bytearray = field(default_factory=bytearray)
    cached: bytearray = field(default_factory=bytearray)
    unsynced: list[_Write | _Truncate] = field(default_factory=list)


def _apply(image: bytearray, change: _Write | _Truncate) -> None:
    match change:
        case _Write(offset, data):
            if len(image) < offset:
                image.extend(bytes(offset - len(image)))
            image[offset : offset + len(data)] = data
        case _Truncate(size_bytes):
            if size_bytes < len(image):
                del image[size_bytes:]
            else:
                image.extend(bytes(size_bytes - len(image)))


class _MemoryFile:
    def __init__(self, files: "MemoryFiles", path: str, inode: _Inode, writable: bool) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._writable = writable

    @property
    def path(self) -> str:
        return self._path

    def append(self, buffers: Buffers) -> int:
        start = len(self._inode.cached)
        self.write_at(start, b"".join(buffers))
        return start

    def write_at(self, offset: int, *buffers: Buffer) -> None:
        data = b"".join(buffers)
        if not self._writable:
            raise OSError(errno.EBADF, "opened for reading", self._path)
        self._files.note("write", self._path)
        with self._files.guard:
            size_after = max(len(self._inode.cached), offset + len(data))
            self._files.charge(size_after - len(self._inode.cached), self._path)
            self._change(_Write(offset, data))

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        with self._files.guard:
            return bytes(self._inode.cached[offset : offset + size_bytes])

    def read_once_at(self, offset: int, size_bytes: int) -> bytes:
        return self.read_at(offset, size_bytes)

    def prepare_read_once(self) -> None:
        pass

    def size_bytes(self) -> int:
        return len(self._inode.cached)

    def truncate(self, size_bytes: int) -> None:
        self._files.note("write", self._path)
        with self._files.guard:
            self._change(_Truncate(size_bytes))

    def sync(self) -> None:
        self._files.note("sync", self._path)
        with self._files.guard:
            for change in self._inode.unsynced:  # not a copy of the whole: logs are long, and synced often
                _apply(self._inode.durable, change)
            self._inode.unsynced.clear()

    def forget(self, offset: int, size_bytes: int) -> None:
        assert not self._inode.unsynced, "what is forgotten must be on the disk"

    def without_read_ahead(self) -> None:
        pass

    def will_need(self, offset: int, size_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass

    def _change(self, change: _Write | _Truncate) -> None:
        _apply(self._inode.cached, change)
        self._inode.unsynced.append(change)


class _MemoryLock:
    def __init__(self, files: "MemoryFiles", path: str) -> None:
        self._files = files
        self._path = path

    def release(self) -> None:
        self._files.locks.discard(self._path)


class MemoryFiles:
    """A disk in memory. `crash` returns the disk as it may look after a power cut now.

    *capacity_bytes* limits it (ENOSPC). *on_operation(kind, path)* is called before each change
    (`write`, `sync`, `create`, `rename`, `remove`, `sync_directory`) and may raise OSError: that is how a
    test injects a failing disk. While it waits in a `write` or a `sync`, other threads use the disk.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.on_operation: list[_Hook] = []
        self.guard = threading.RLock()
        self.locks: set[str] = set()
        self._directories: set[str] = {"/"}
        self._entries: dict[str, _Inode] = {}
        self._durable_entries: dict[str, _Inode] = {}

    def create(self, path: str) -> File:
        with self.guard:
            if path in self._entries:
                raise FileExistsError(errno.EEXIST, "exists", path)
            self._require_directory(posixpath.dirname(path))
            self.note("create", path)
            inode = _Inode()
            self._entries[path] = inode
            return _MemoryFile(self, path, inode, writable=True)

    def open(self, path: str, *, writable: bool = False) -> File:
        with self.guard:
            return _MemoryFile(self, path, self._inode(path), writable)

    def exists(self, path: str) -> bool:
        return path in self._entries or path in self._directories

    def list(self, directory: str) -> list[str]:
        with self.guard:
            self._require_directory(directory)
            prefix = directory.rstrip("/") + "/"
            below = [*self._entries, *self._directories]
            return sorted({path[len(prefix) :].split("/")[0] for path in below if path.startswith(prefix)} - {""})

    def make_directories(self, path: str) -> None:
        with self.guard:
            while path not in self._directories:
                self._directories.add(path)
                path = posixpath.dirname(path)

    def rename(self, old: str, new: str) -> None:
        with self.guard:
            if old in self._directories:
                self._rename_directory(old, new)
                return
            inode = self._inode(old)
            self.note("rename", old)
            self._entries[new] = inode
            del self._entries[old]

    def remove(self, path: str) -> None:
        with self.guard:
            self._inode(path)
            self.note("remove", path)
            del self._entries[path]

    def sync_directory(self, path: str) -> None:
        with self.guard:
            self._require_directory(path)
            self.note("sync_directory", path)
            self._durable_entries = {
                name: inode for name, inode in self._durable_entries.items() if posixpath.dirname(name) != path
            }
            for name, inode in self._entries.items():
                if posixpath.dirname(name) == path:
                    self._durable_entries[name] = inode

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.cached) for inode in self._entries.values())

    def usage(self, path: str) -> DiskUsage:
        used = self.used_bytes
        total = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return DiskUsage(total, max(total - used, 0))

    def lets_others_in(self, directory: str) -> bool:
        return False

    def lock(self, path: str) -> Lock:
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self.locks.add(path)
        return _MemoryLock(self, path)

    def crash(self, rng: random.Random, unsynced: float = 0.5) -> "MemoryFiles":
        """A disk as it may look after a power cut now; this one stays as it is.

        Each unsynced write is kept whole or torn at a sector with probability *unsynced*, else dropped;
        each unsynced directory change is kept or dropped likewise. 0 keeps only what was synced, 1 is a
        killed process (everything kept).
        """
        after = MemoryFiles(self.capacity_bytes)
        with self.guard:
            after._directories = set(self._directories)
            for path in sorted({*self._entries, *self._durable_entries}):
                now, before = self._entries.get(path), self._durable_entries.get(path)
                chosen = now if now is before or rng.random() < unsynced else before
                if chosen is not None:
                    image = _image_after_crash(chosen, rng, unsynced)
                    inode = _Inode(durable=bytearray(image), cached=image)
                    after._entries[path] = after._durable_entries[path] = inode
        return after

    def note(self, kind: str, path: str) -> None:
        for hook in self.on_operation:
            hook(kind, path)

    def charge(self, more_bytes: int, path: str) -> None:
        if self.capacity_bytes is not None and more_bytes > self.usage(path).free_bytes:
            raise OSError(errno.ENOSPC, "no space left", path)

    def _rename_directory(self, old: str, new: str) -> None:
        """Folders outlast a power cut as soon as they are made, so this does too."""
        self.note("rename", old)
        moved = {path for path in self._directories if path == old or path.startswith(f"{old}/")}
        self._directories = self._directories - moved | {new + path.removeprefix(old) for path in moved}
        for entries in (self._entries, self._durable_entries):
            for path in [path for path in entries if path.startswith(f"{old}/")]:
                entries[new + path.removeprefix(old)] = entries.pop(path)

    def _inode(self, path: str) -> _Inode:
        try:
            return self._entries[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    def _require_directory(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)


class _Hook(Protocol):
    def __call__(self, kind: str, path: str, /) -> None: ...


def _image_after_crash(inode: _Inode, rng: random.Random, unsynced: float) -> bytearray:
    image = bytearray(inode.durable)
    for change in inode.unsynced:
        if rng.random() >= unsynced:
            continue
        if isinstance(change, _Write) and unsynced < 1 and rng.random() < 0.5:
            for piece in _torn_writes(change, rng):
                _apply(image, piece)
        else:
            _apply(image, change)
    return image


def _torn_writes(change: _Write, rng: random.Random) -> Iterator[_Write]:
    """Some of the sectors that *change* touches."""
    end = change.offset + len(change.data)
    at = change.offset
    while at < end:
        following = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, end)
        if rng.random() < 0.5:
            yield _Write(at, change.data[at - change.offset : following - change.offset])
        at = following
