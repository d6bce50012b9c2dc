"""The file system as an interface: the machine's own, and one in memory whose disk can crash. No other module opens
files.

All calls block. They are made on worker threads (journal, flusher, readers), never on an event loop,
except for the few small files that a process reads while it starts.

    application ──append──▶ cache image ──sync──▶ durable image
    directory   ──create/rename/remove──▶ entries ──sync_directory──▶ durable entries

What survives a power cut: of a file, everything written before the last `sync` that returned, and any
part of what was written after it; of a directory, the entries as of the last `sync_directory`, and any
part of the later changes.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import posixpath
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from magnetar_core.runtime.types import MIB, Buffer, Buffers

# POSIX promises at least 16 buffers for one writev, and Linux takes 1,024. More buffers need several calls.
IOVECS_MAX = 1024

# What is stored is read by its owner and the group, whatever the umask of the process leaves to others.
FILE_MODE = 0o640
FOLDER_MODE = 0o750

# The unit that a disk writes atomically; a torn write ends at a multiple of it.
SECTOR_BYTES = 512

# Not every system has it. It only saves memory and time.
_HAS_FADVISE = hasattr(os, "posix_fadvise")


# Reads past the system's cache begin and end at multiples of this, of any disk's sectors, and are at most so long.
# Each thread that makes them keeps as much memory, as far as it was used.
_DIRECT_UNIT_BYTES = 4096
DIRECT_BYTES_MAX = 4 * MIB

_OF_THREAD = threading.local()


class DiskUsage(NamedTuple):
    """Bytes of the file system below a directory; *free*: what a user without privileges may still use."""

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """One open file."""

    @property
    def path(self) -> str: ...

    def append(self, buffers: Buffers) -> int:
        """Write *buffers* at the end of the file; return the offset at which they start.

        After an OSError the end of the file is unknown, and nothing may be appended any more.
        """
        ...

    def write_at(self, offset: int, *buffers: Buffer) -> None:
        """Write *buffers*, a few, one after the other. They are not joined: copying half a megabyte costs more than the
        rest of the write."""
        ...

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Up to *size_bytes* from *offset*; shorter only at the end of the file."""
        ...

    def read_once_at(self, offset: int, size_bytes: int) -> bytes:
        """As `read_at`, for a large part that will hardly be read again soon: past the system's cache, if
        `prepare_read_once` found that possible."""
        ...

    def prepare_read_once(self) -> None:
        """Before threads share the file, so that they need no lock: make `read_once_at` go past the system's cache.
        The file is open twice from then on."""
        ...

    def size_bytes(self) -> int: ...

    def truncate(self, size_bytes: int) -> None: ...

    def sync(self) -> None:
        """Return when everything written before this call survives a power cut.

        After an OSError the data may be lost, and a later sync of the same file that succeeds proves nothing.
        """
        ...

    def forget(self, offset: int, size_bytes: int) -> None:
        """Tell the system not to keep this part in memory: it is synced and will not be read soon."""
        ...

    def without_read_ahead(self) -> None:
        """Tell the system to read no more of this file than it is asked for, or told by `will_need`."""
        ...

    def will_need(self, offset: int, size_bytes: int) -> None:
        """Tell the system to begin reading this part, without waiting for it."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock on a file that ends with the process at the latest."""

    def release(self) -> None: ...


class Files(Protocol):
    """A file system. Paths are absolute text. All calls raise OSError."""

    def create(self, path: str) -> File:
        """A new empty file to read and write; FileExistsError if there is one."""
        ...

    def open(self, path: str, *, writable: bool = False) -> File: ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Names in *directory*, sorted."""
        ...

    def make_directories(self, path: str) -> None:
        """Create directory *path* and its missing parents, durably. No error if it exists."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Return when creations, renames and removals in *path* survive a power cut."""
        ...

    def usage(self, path: str) -> DiskUsage: ...

    def lets_others_in(self, directory: str) -> bool:
        """Whether users who are neither its owner nor of its group come to *directory*, and may list or enter it; a
        link is as what it leads to. Raises OSError."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock file *path*; BlockingIOError if another process holds it."""
        ...


def read_file(files: Files, path: str) -> bytes:
    """The whole content of a small file."""
    file = files.open(path)
    try:
        return file.read_at(0, file.size_bytes())
    finally:
        file.close()


def replace_file(files: Files, path: str, data: Buffer) -> None:
    """Replace the content of *path* by *data*. After a power cut it is the old content or the new, never a mixture."""
    temporary = path + ".tmp"
    if files.exists(temporary):
        files.remove(temporary)
    file = files.create(temporary)
    try:
        file.append([data])
        file.sync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_directory(posixpath.dirname(path))


# -------------------------------------------------------------------------------- the machine's


class _OsFile:
    __slots__ = ("_direct_fd", "_end", "_fd", "_goes_direct", "_path")

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._direct_fd = -1
        """For reads past the cache."""
        self._goes_direct = False
        """Whether there are such reads here, as far as is known."""
        self._end = os.fstat(fd).st_size

    @property
    def path(self) -> str:
        return self._path

    def append(self, buffers: Buffers) -> int:
        start = self._end
        for first in range(0, len(buffers), IOVECS_MAX):
            self.write_at(self._end, *buffers[first : first + IOVECS_MAX])
        return start

    def write_at(self, offset: int, *buffers: Buffer) -> None:
        views = [memoryview(buffer) for buffer in buffers]
        total = sum(map(len, views))
        while total:
            written = os.pwritev(self._fd, views, offset)
            offset += written
            self._end = max(self._end, offset)
            total -= written
            if not total:
                return
            while written >= len(views[0]):  # a short write: continue after it
                written -= len(views.pop(0))
            views[0] = views[0][written:]

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        data = os.pread(self._fd, size_bytes, offset)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size_bytes:
            data = os.pread(self._fd, size_bytes - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_once_at(self, offset: int, size_bytes: int) -> bytes:
        start = offset - offset % _DIRECT_UNIT_BYTES
        stop = offset + size_bytes
        stop += -stop % _DIRECT_UNIT_BYTES
        if not self._goes_direct or stop - start > DIRECT_BYTES_MAX:
            return self.read_at(offset, size_bytes)
        room = _direct_room()[: stop - start]
        try:
            found = os.preadv(self._direct_fd, [room], start)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._goes_direct = False  # it stays open, since other threads may be reading with it
            return self.read_at(offset, size_bytes)
        found -= offset - start
        if found < size_bytes:  # the end of the file, or a read that was cut short
            return self.read_at(offset, size_bytes)
        return bytes(room[offset - start : offset - start + size_bytes])

    def prepare_read_once(self) -> None:
        self._direct_fd = _open_direct(self._fd)
        self._goes_direct = self._direct_fd >= 0

    def size_bytes(self) -> int:
        return self._end

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)
        self._end = size_bytes

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def forget(self, offset: int, size_bytes: int) -> None:
        if _HAS_FADVISE:
            os.posix_fadvise(self._fd, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def without_read_ahead(self) -> None:
        if _HAS_FADVISE:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def will_need(self, offset: int, size_bytes: int) -> None:
        if _HAS_FADVISE:
            os.posix_fadvise(self._fd, offset, size_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if self._direct_fd >= 0:
                os.close(self._direct_fd)
                self._direct_fd = -1


def _open_direct(fd: int) -> int:
    """The file that is open as *fd* once more, for reads past the system's cache; -1: not possible here."""
    try:  # by its number, since its name may be another file's by now
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return -1


def _direct_room() -> memoryview:
    """Memory of this thread into which a disk can write, used again for each read: the first touch of new memory costs
    more than the copy out of it."""
    room: memoryview | None = getattr(_OF_THREAD, "room", None)
    if room is None:
        room = _OF_THREAD.room = memoryview(mmap.mmap(-1, DIRECT_BYTES_MAX))
    return room


class _OsLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFiles:
    """The machine's file system."""

    def create(self, path: str) -> File:
        return _OsFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))

    def open(self, path: str, *, writable: bool = False) -> File:
        return _OsFile(path, os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directories(self, path: str) -> None:
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, FOLDER_MODE)
            self.sync_directory(os.path.dirname(directory))

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: str) -> DiskUsage:
        stat = os.statvfs(path)
        return DiskUsage(stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail)

    def lets_others_in(self, directory: str) -> bool:
        path = os.path.realpath(directory)
        if not os.stat(path).st_mode & 0o005:
            return False
        while path != os.path.dirname(path):
            path = os.path.dirname(path)
            if not os.stat(path).st_mode & 0o001:
                return False
        return True

    def lock(self, path: str) -> Lock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return _OsLock(fd)


# ------------------------------------------------------------------------------------- in memory


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

    def usage(self, path: str) -> DiskUsage:
        used = sum(len(inode.cached) for inode in self._entries.values())
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
            for piece in _torn(change, rng):
                _apply(image, piece)
        else:
            _apply(image, change)
    return image


def _torn(change: _Write, rng: random.Random) -> Iterator[_Write]:
    """Some of the sectors that *change* touches."""
    end = change.offset + len(change.data)
    at = change.offset
    while at < end:
        following = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, end)
        if rng.random() < 0.5:
            yield _Write(at, change.data[at - change.offset : following - change.offset])
        at = following
