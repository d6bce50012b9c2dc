"""Snapshots on the local disk.

    <folder>/lock
    <folder>/snapshot-00000000000000012345        behind edit 12345
    <folder>/snapshot-00000000000000012345.tmp    being written; removed at a start

Rules (I121):

1. A snapshot is written under another name, synced, renamed, and its directory synced; then it is read again.
2. Older ones go only after that, and `KEPT` always stay. A file that cannot be read goes as any older one does.
3. What is read is checked; where the newest snapshot is bad, the one before it is used.
4. A write that fails (a full disk) leaves the older ones as they are.

All calls block; except for `open` they are made on a worker thread, one at a time.
"""

import contextlib
import errno
import logging
import posixpath
from typing import Final

from magnetar_core.runtime.files import Files, Lock, read_file
from magnetar_core.runtime.types import Corruption, MagnetarError
from managed_ledger.state_log.snapshots.format import Snapshot, decode_snapshot, encode_snapshot

log = logging.getLogger(__name__)

# Snapshots that are kept: the newest, and one for the case that it is bad (I121).
KEPT: Final = 2

_PREFIX: Final = "snapshot-"
_TEMPORARY: Final = ".tmp"


class FolderInUse(MagnetarError):
    """Another process has the folder."""


class SnapshotStore:
    """The snapshots in one folder, which belongs to one node of one log."""

    def __init__(self, files: Files, folder: str) -> None:
        """*folder*: an absolute path; it is made."""
        self._files = files
        self._folder = folder
        self._lock: Lock | None = None
        self._good: tuple[int, ...] = ()

    def open(self) -> Snapshot | None:
        """Take the folder, and read the newest snapshot that is good. Raises FolderInUse, OSError."""
        self._files.make_directories(self._folder)
        try:
            self._lock = self._files.lock(posixpath.join(self._folder, "lock"))
        except BlockingIOError as error:
            raise FolderInUse(f"{self._folder} is in use by another process; each node needs its own") from error
        for name in self._files.list(self._folder):
            if name.endswith(_TEMPORARY):
                self._files.remove(self._path(name))
        good = []
        newest: Snapshot | None = None
        for number in reversed(self._numbers()):
            snapshot = self.read(number)
            if snapshot is not None:
                newest = snapshot if newest is None else newest
                good.append(number)
        self._good = tuple(good[:KEPT])
        return newest

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def newest(self) -> int:
        """The last edit in the newest good snapshot; 0 if there is none."""
        return self._good[0] if self._good else 0

    @property
    def covered(self) -> int:
        """Edits up to this one are in every snapshot that this node may fall back to; 0 while it has only one.

        Only edits up to this one leave the log, so that a start with the older snapshot finds all that it needs.
        """
        return self._good[KEPT - 1] if len(self._good) >= KEPT else 0

    def read(self, number: int) -> Snapshot | None:
        """The snapshot; None for a file that is damaged or cannot be read, which is logged."""
        data = self.read_bytes(number)
        return None if data is None else decode_snapshot(data, self._path(_name(number)))

    def read_bytes(self, number: int) -> bytes | None:
        """The file of a snapshot, checked; None as in `read`."""
        path = self._path(_name(number))
        try:
            data = read_file(self._files, path)
            snapshot = decode_snapshot(data, path)
            if snapshot.number != number:
                raise Corruption(f"{path} is of edit {snapshot.number}")
        except (OSError, Corruption) as error:
            log.warning("a snapshot is passed over: %s", error)
            return None
        return data

    def write(self, snapshot: Snapshot) -> None:
        """Store *snapshot*; when this returns it survives a power cut. Raises OSError, Corruption: nothing changed."""
        path = self._path(_name(snapshot.number))
        temporary = path + _TEMPORARY
        data = encode_snapshot(snapshot)
        try:
            self._discard(temporary)
            file = self._files.create(temporary)
            try:
                file.append([data])
                file.sync()
            finally:
                file.close()
            self._files.rename(temporary, path)
            self._files.sync_directory(self._folder)
        except OSError:
            self._discard(temporary)
            raise
        if read_file(self._files, path) != data:
            raise Corruption(f"{path} is not what was written")
        self._good = tuple(sorted({*self._good, snapshot.number}, reverse=True)[:KEPT])
        self._remove_older()

    def _remove_older(self) -> None:
        for number in self._numbers():
            if number not in self._good and len(self._good) >= KEPT:
                self._discard(self._path(_name(number)))

    def _numbers(self) -> list[int]:
        names = [name for name in self._files.list(self._folder) if name.startswith(_PREFIX)]
        return sorted(int(digits) for name in names if (digits := name.removeprefix(_PREFIX)).isdigit())

    def _discard(self, path: str) -> None:
        if self._files.exists(path):
            with contextlib.suppress(OSError):
                self._files.remove(path)

    def _path(self, name: str) -> str:
        return posixpath.join(self._folder, name)


class NoSnapshots(SnapshotStore):
    """Stores nothing: for a log that is begun anew before it becomes long, and whose nodes keep nothing on disk."""

    def __init__(self) -> None:
        self._good = ()

    def open(self) -> Snapshot | None:
        return None

    def close(self) -> None:
        pass

    def read_bytes(self, number: int) -> bytes | None:
        return None

    def write(self, snapshot: Snapshot) -> None:
        """Raises OSError: there is no place for it."""
        raise OSError(errno.ENOTSUP, "this node of a state log keeps no snapshots")


def _name(number: int) -> str:
    return f"{_PREFIX}{number:020d}"
