"""Makes a backup: the files of a snapshot, or of a standalone that is stopped, into a folder or a tar.

Rules:

1. The manifest is written last, when everything else is on the disk. What goes wrong before removes what was written;
   a command that is killed leaves a backup without a manifest, which nobody restores.
2. Only the owner may read a backup (0600, folders 0700): it has every message.
3. A file that an earlier backup has is linked, not copied (`manifest`, rule 3).
4. What a standalone that runs has is copied from its snapshot, which lasts until this ends; of one that is stopped the
   folder's lock is held.
"""

import asyncio
import contextlib
import errno
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

from magnetar import __version__
from magnetar.processes.backup.door import Lent
from magnetar.processes.backup.manifest import (
    MANIFEST,
    BackupRefused,
    Manifest,
    Stored,
    encode,
    reusable,
    room_problem,
)
from magnetar.processes.backup.restoring import FolderBackup, open_backup, write_sparse
from magnetar.processes.backup.snapshot import HOLE_BEGIN, ROOT, SNAPSHOT, SourceFile, Taken
from magnetar.processes.data_folder import lock_folder
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import instance_id
from magnetar_core.bookkeeper.metadata.stores.secondary import open_secondary
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.process.daemon import new_clock
from magnetar_core.runtime.types import MIB, MagnetarError

TAR: Final = ".tar"

_PIECE_BYTES: Final = MIB
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700

# Why a file cannot be linked, and is copied instead: another disk, or one without links.
_NO_LINKS: Final = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP)

# Files of a standalone that belong to the process that runs, or to the machine.
_NOT_COPIED: Final = ("LOCK", "LOG", "LOG.old", "reserve", "sanity.tmp")


class Made(NamedTuple):
    """What a backup has."""

    manifest: Manifest
    linked_bytes: int
    """Of files that an earlier backup had."""


def back_up(
    data: Path, target: Path, since: Path | None = None, on_bytes: Callable[[int, int], None] = lambda done, all_: None
) -> Made:
    """Copy the standalone in *data* to *target*: a tar if its name says so, else a folder, which is empty or not there.

    *since*: the folder of an earlier backup of it. *on_bytes(done, all)* is called on the way. Raises BackupRefused,
    MagnetarError.
    """
    data, target = data.resolve(), target.resolve()
    earlier = None if since is None else _read_earlier(since, target)
    _check_target(data, target)
    try:
        with _source(data) as taken:
            return _copy(data, taken, target, earlier, on_bytes)
    except FileNotFoundError as error:
        raise MagnetarError(
            f"{error.filename} is gone: the standalone of {data} was stopped or started meanwhile. Make the backup anew"
        ) from None
    except OSError as error:
        raise MagnetarError(f"the backup of {data} failed, and nothing of it is left in {target}: {error}") from error


def _read_earlier(since: Path, target: Path) -> FolderBackup:
    if target.suffix == TAR:
        raise BackupRefused("a tar has no links to an earlier backup; leave out --since, or name a folder")
    backup = open_backup(since)
    if not isinstance(backup, FolderBackup):
        raise BackupRefused(f"{since} is a tar; --since takes the folder of an earlier backup")
    return backup


def _check_target(data: Path, target: Path) -> None:
    if target == data or data in target.parents:
        raise BackupRefused(f"{target} is in the folder that is to be backed up; name another place")
    if not target.exists():
        return
    if target.suffix == TAR or not target.is_dir():
        raise BackupRefused(f"{target} is there already; name another place, or remove it")
    if any(target.iterdir()):
        rest = "" if (target / MANIFEST).exists() else ": a backup that was not finished, or something else"
        raise BackupRefused(f"{target} is not empty{rest}; name another place, or remove it")


# ---------------------------------------------------------------------------------------------- what is copied


@contextlib.contextmanager
def _source(data: Path) -> Iterator[Taken]:
    """What there is to copy, which stays as it is until the block ends. Raises MagnetarError, OSError."""
    if not (data / "metadata" / "CURRENT").exists():
        raise BackupRefused(f"{data} is not the folder of a standalone; name it with --data")
    try:
        lent = Lent(data)
    except (FileNotFoundError, ConnectionRefusedError):
        lock = lock_folder(data, OsFiles())
        try:
            yield _files_of_stopped(data)
        finally:
            lock.release()
        return
    try:
        yield lent.taken
    finally:
        lent.close()


def _files_of_stopped(data: Path) -> Taken:
    """The files of a standalone that does not run."""

    async def ask() -> str:
        store = await open_secondary(data / "metadata", new_clock())
        try:
            return await instance_id(store, ROOT)
        finally:
            await store.close()

    files: list[SourceFile] = []
    bookies = sorted(data.glob("bookie-*"))
    for place in [data / "metadata", *(folder for bookie in bookies for folder in sorted(bookie.glob("*/current")))]:
        for folder, inner, names in os.walk(place):
            inner[:] = sorted(name for name in inner if name != SNAPSHOT)
            for name in sorted(names):
                if name not in _NOT_COPIED and not name.endswith((".tmp", ".compacting")):
                    path = os.path.join(folder, name)
                    files.append(SourceFile(os.path.relpath(path, data), path, os.stat(path).st_size))
    return Taken(asyncio.run(ask()), len(bookies), tuple(files))


# ---------------------------------------------------------------------------------------------- how it is copied


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Target(Protocol):
    """Where files go."""

    def add(self, name: str, source: _Readable, size: int, changed_ns: int) -> None: ...

    def link(self, file: Stored) -> bool:
        """Take a file from the earlier backup; False if that cannot be done: then it is copied."""
        ...

    def finish(self, manifest: bytes) -> None:
        """Everything is there, durably."""
        ...

    def abandon(self) -> None:
        """Remove what was written."""
        ...


def _copy(
    data: Path, taken: Taken, target: Path, earlier: FolderBackup | None, on_bytes: Callable[[int, int], None]
) -> Made:
    if earlier is not None and earlier.manifest.instance_id != taken.instance_id:
        raise BackupRefused(f"{earlier.path} is a backup of another store; leave out --since")
    former = reusable(None if earlier is None else earlier.manifest, taken.instance_id)
    changed = {file.name: os.stat(file.path).st_mtime_ns for file in taken.files}
    all_bytes = sum(file.bytes for file in taken.files)
    had = {file.name: former.get((file.name, file.bytes, changed[file.name])) for file in taken.files}
    _check_room(data, target, sum(file.bytes for file in taken.files if had[file.name] is None))
    into: _Target = _Tar(target) if target.suffix == TAR else _Folder(target, earlier)
    stored: list[Stored] = []
    linked_bytes = done = 0
    try:
        for file in taken.files:
            record = had[file.name]
            if record is not None and into.link(record):
                linked_bytes += file.bytes
            else:
                record = _copy_file(file, changed[file.name], into)
            stored.append(record)
            done += file.bytes
            on_bytes(done, all_bytes)
        manifest = Manifest(__version__, new_clock().wall_ms(), taken.instance_id, taken.bookies, tuple(stored))
        into.finish(encode(manifest))
    except BaseException:
        into.abandon()
        raise
    return Made(manifest, linked_bytes)


def _copy_file(file: SourceFile, changed_ns: int, into: _Target) -> Stored:
    with open(file.path, "rb") as source:
        reader = _Hashing(source, file)
        into.add(file.name, reader, file.bytes, changed_ns)
    if reader.left:
        raise MagnetarError(f"{file.path} has become {reader.left} bytes shorter: does another process write to it?")
    return Stored(file.name, file.bytes, reader.digest.hexdigest(), changed_ns)


def _check_room(data: Path, target: Path, needed: int) -> None:
    place = target
    while not place.exists():
        place = place.parent
    usage = OsFiles().usage(str(place))
    is_own = os.stat(place).st_dev == os.stat(data).st_dev
    if problem := room_problem(needed, usage.free_bytes, usage.total_bytes, is_own_disk=is_own):
        raise BackupRefused(f"{target}: {problem}")


class _Hashing:
    """Reads what counts of a file, and hashes it."""

    def __init__(self, source: BinaryIO, file: SourceFile) -> None:
        self._source = source
        self._file = file
        self.left = file.bytes
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """As many bytes as are asked for; fewer only at the end."""
        parts: list[bytes] = []
        wanted = self.left if size < 0 else min(size, self.left)
        while wanted and (part := self._part(wanted)):
            parts.append(part)
            self.digest.update(part)
            self.left -= len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, size: int) -> bytes:
        """Up to *size* bytes, on one side of the hole or in it."""
        at, hole_end = self._file.bytes - self.left, self._file.hole_end
        if HOLE_BEGIN <= at < hole_end:
            zeros = bytes(min(size, hole_end - at))
            self._source.seek(at + len(zeros))
            return zeros
        return self._source.read(min(size, HOLE_BEGIN - at) if at < HOLE_BEGIN < hole_end else size)


class _Folder:
    def __init__(self, path: Path, earlier: FolderBackup | None) -> None:
        self.path = path
        self._read_earlier = earlier
        self._was_there = path.exists()
        self._made: set[Path] = set()
        path.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        path.chmod(_FOLDER_MODE)

    def add(self, name: str, source: _Readable, size: int, changed_ns: int) -> None:
        path = self._place(name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE), "wb") as file:
            while piece := source.read(_PIECE_BYTES):
                write_sparse(file, piece)
            file.truncate(size)
            file.flush()
            os.fsync(file.fileno())
        os.utime(path, ns=(changed_ns, changed_ns))

    def link(self, file: Stored) -> bool:
        assert self._read_earlier is not None, "a file is of an earlier backup"
        former = self._read_earlier.path / file.name
        try:
            if former.stat().st_size == file.bytes:
                os.link(former, self._place(file.name))
                return True
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        return False

    def finish(self, manifest: bytes) -> None:
        files = OsFiles()
        for folder in sorted({self.path, *self._made}, reverse=True):
            files.sync_directory(str(folder))
        path = self.path / MANIFEST
        with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE), "wb") as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
        files.sync_directory(str(self.path))
        files.sync_directory(str(self.path.parent))

    def abandon(self) -> None:
        for child in list(self.path.iterdir()):
            if child.is_dir():
                shutil.rmtree(child, ignore_errors=True)
            else:
                child.unlink(missing_ok=True)
        if not self._was_there:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def _place(self, name: str) -> Path:
        path = self.path / name
        for folder in reversed(path.relative_to(self.path).parents[:-1]):
            if folder not in self._made:
                (self.path / folder).mkdir(_FOLDER_MODE, exist_ok=True)
                self._made.add(self.path / folder)
        return path


class _Tar:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f"{path.name}.partial")
        path.parent.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._partial, flags, _FILE_MODE), "wb")
        self._tar = tarfile.TarFile(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)

    def add(self, name: str, source: _Readable, size: int, changed_ns: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, _FILE_MODE, changed_ns // 10**9
        self._tar.addfile(info, source)

    def link(self, file: Stored) -> bool:
        return False

    def finish(self, manifest: bytes) -> None:
        self.add(MANIFEST, io.BytesIO(manifest), len(manifest), new_clock().wall_ms() * 10**6)
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self._path)
        OsFiles().sync_directory(str(self._path.parent))

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._partial.unlink(missing_ok=True)
