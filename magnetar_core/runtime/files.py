"""The file system as an interface, and the machine's own. No other module opens files.

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
import threading
from typing import Final, NamedTuple, Protocol

from magnetar_core.runtime.types import MIB, Buffer, Buffers

# POSIX promises at least 16 buffers for one writev, and Linux takes 1,024. More buffers need several calls.
IOVECS_MAX = 1024

# What is stored is read by its owner and the group, whatever the umask of the process leaves to others.
FILE_MODE = 0o640
FOLDER_MODE = 0o750

# The unit that a disk writes atomically; a torn write ends at a multiple of it.
SECTOR_BYTES = 512

# Not every system has this call. It only saves memory and time.
_HAS_FADVISE = hasattr(os, "posix_fadvise")


# Reads past the system's cache begin and end at multiples of this, of any disk's sectors, and are at most so long.
# Each thread that makes them keeps as much memory, as far as it was used.
_DIRECT_UNIT_BYTES = 4096
DIRECT_BYTES_MAX = 4 * MIB

_OF_THREAD = threading.local()


UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Why a file system takes nothing more for now: it is full, or was made read-only. Nothing is broken by that."""


class DiskUsage(NamedTuple):
    """Bytes of the file system below a directory; *free*: what a user without privileges may still use."""

    total_bytes: int
    free_bytes: int
    is_read_only: bool = False
    """Whether it is mounted so, or the system has made it so after an error."""


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
        """Read as `read_at` does, for a large part that will hardly be read again soon: past the system's cache, if
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
        """Tell the system to read no more of this file than it is asked for, by a read or by `will_need`."""
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
    __slots__ = ("_direct_fd", "_end", "_fd", "_goes_direct", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._direct_fd = -1
        """The descriptor for reads past the cache."""
        self._goes_direct = False
        """Whether there are such reads here, as far as is known."""
        self._end = os.fstat(fd).st_size

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
            read_bytes = os.preadv(self._direct_fd, [room], start)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._goes_direct = False  # it stays open, since other threads may be reading with it
            return self.read_at(offset, size_bytes)
        read_bytes -= offset - start
        if read_bytes < size_bytes:  # the end of the file, or a read that was cut short
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
        read_only = bool(stat.f_flag & os.ST_RDONLY)
        return DiskUsage(stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail, read_only)

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
