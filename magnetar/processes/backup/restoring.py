"""Restores a backup into a new data folder of a standalone.

    manifest ──▶ every file against its checksum ──▶ RESTORING ──▶ copied ──▶ cookies, instance id ──▶ RESTORING goes

Rules:

1. Nothing is written before the whole backup was read and found good.
2. Only an empty folder is restored into. A restore that was cut short leaves the file RESTORING, and no standalone
   starts there.
3. The restored store has an instance id of its own: its bookies are not taken for those of the original, and an
   incremental backup of one never links to files of the other.
"""

import asyncio
import hashlib
import os
import tarfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from magnetar.processes.backup.manifest import (
    MANIFEST,
    BackupRefused,
    Manifest,
    Stored,
    decode,
    difference,
    room_problem,
)
from magnetar.processes.backup.snapshot import ROOT
from magnetar_core.runtime.files import FILE_MODE, OsFiles, replace_file
from magnetar_core.runtime.types import MIB, MagnetarError

RESTORING: Final = "RESTORING"

_PIECE_BYTES: Final = MIB

# A new disk is not empty where its file system puts this.
_OF_NEW_DISKS: Final = ("lost+found",)


class Backup(Protocol):
    """A backup that is whole, as far as its manifest says."""

    manifest: Manifest

    def read(self, file: Stored, take: Callable[[bytes], object]) -> None:
        """Give *take* the content of a file, piece by piece. Raises OSError."""
        ...


class FolderBackup:
    def __init__(self, path: Path) -> None:
        """Raises BackupRefused."""
        self.path = path
        try:
            self.manifest = decode((path / MANIFEST).read_bytes(), str(path))
        except FileNotFoundError:
            raise _not_finished(path) from None
        there = [
            os.path.relpath(os.path.join(folder, name), path) for folder, _, names in os.walk(path) for name in names
        ]
        if problem := difference(there, self.manifest):
            raise BackupRefused(f"{path}: {problem}; this backup cannot be used")

    def read(self, file: Stored, take: Callable[[bytes], object]) -> None:
        with open(self.path / file.name, "rb") as source:
            while piece := source.read(_PIECE_BYTES):
                take(piece)


class TarBackup:
    def __init__(self, path: Path) -> None:
        """Raises BackupRefused."""
        self.path = path
        try:
            self._tar = tarfile.TarFile(path)
            self._members = {member.name: member for member in self._tar if member.isreg()}
        except tarfile.TarError as error:
            raise BackupRefused(f"{path} is no whole tar ({error}); this backup cannot be used") from None
        if MANIFEST not in self._members:
            raise _not_finished(path)
        pieces: list[bytes] = []
        self.read(Stored(MANIFEST, 0, "", 0), pieces.append)
        self.manifest = decode(b"".join(pieces), str(path))
        if problem := difference(list(self._members), self.manifest):
            raise BackupRefused(f"{path}: {problem}; this backup cannot be used")

    def read(self, file: Stored, take: Callable[[bytes], object]) -> None:
        source = self._tar.extractfile(self._members[file.name])
        assert source is not None, "only files are members"
        while piece := source.read(_PIECE_BYTES):
            take(piece)


def _not_finished(path: Path) -> BackupRefused:
    return BackupRefused(f"{path} has no {MANIFEST}: it is no backup, or one that was not finished")


def open_backup(path: Path) -> FolderBackup | TarBackup:
    """Raises BackupRefused."""
    if not path.exists():
        raise BackupRefused(f"{path} does not exist")
    return FolderBackup(path) if path.is_dir() else TarBackup(path)


def restore(source: Path, data: Path, on_bytes: Callable[[int, int], None] = lambda done, all_: None) -> Manifest:
    """Make *data* the folder of a standalone, with what the backup *source* has. *on_bytes(done, all)* is called on the
    way; it reads everything twice. Raises BackupRefused, MagnetarError."""
    data = data.resolve()
    backup = open_backup(source)
    _check_target(data, backup.manifest)
    all_bytes = 2 * backup.manifest.bytes
    done = 0
    try:
        for file in backup.manifest.files:
            _verify(source, backup, file)
            done += file.bytes
            on_bytes(done, all_bytes)
        OsFiles().make_directories(str(data))
        replace_file(OsFiles(), str(data / RESTORING), b"")
        for file in backup.manifest.files:
            _write(backup, file, data / file.name)
            done += file.bytes
            on_bytes(done, all_bytes)
        asyncio.run(_adopt(data))
        (data / RESTORING).unlink()
        OsFiles().sync_directory(str(data))
    except OSError as error:
        raise MagnetarError(f"{source} was not restored to {data}: {error}. {_way_out(data)}") from error
    return backup.manifest


def check_restored(data: Path) -> None:
    """Raises MagnetarError if a restore into *data* was not finished."""
    if (data / RESTORING).exists():
        raise MagnetarError(f"a restore into {data} was not finished. {_way_out(data)}")


def _way_out(data: Path) -> str:
    return f"Remove {data}, and restore again" if (data / RESTORING).exists() else "Nothing was written"


def _check_target(data: Path, manifest: Manifest) -> None:
    place = data
    while not place.exists():
        place = place.parent
    if place == data:
        check_restored(data)
        if not data.is_dir() or any(name not in _OF_NEW_DISKS for name in os.listdir(data)):
            raise BackupRefused(f"{data} is not empty; name a folder that is not there, or an empty one")
    usage = OsFiles().usage(str(place))
    if problem := room_problem(manifest.bytes, usage.free_bytes, usage.total_bytes, is_own_disk=True):
        raise BackupRefused(f"{data}: {problem}")


def _verify(source: Path, backup: Backup, file: Stored) -> None:
    """Raises BackupRefused, OSError."""
    digest, size = hashlib.sha256(), [0]

    def take(piece: bytes) -> None:
        digest.update(piece)
        size[0] += len(piece)

    backup.read(file, take)
    if (size[0], digest.hexdigest()) != (file.bytes, file.sha256):
        raise BackupRefused(
            f"{source}: {file.name} is damaged ({size[0]} bytes, expected {file.bytes}, or other ones); nothing was "
            "restored. Use another backup"
        )


def _write(backup: Backup, file: Stored, path: Path) -> None:
    OsFiles().make_directories(str(path.parent))
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb") as target:
        backup.read(file, partial(write_sparse, target))
        target.truncate(file.bytes)
        target.flush()
        os.fsync(target.fileno())
    OsFiles().sync_directory(str(path.parent))


def write_sparse(file: BinaryIO, piece: bytes) -> None:
    """Write *piece*, or leave as much out of the file if it has only zeros. Give the file its length in the end."""
    if piece.count(0) == len(piece):
        file.seek(len(piece), os.SEEK_CUR)
    else:
        file.write(piece)


async def _adopt(data: Path) -> None:
    """Rule 3, and the cookies of the new place. Raises MagnetarError, OSError."""
    from bookie.disks.cookie import decode as decode_cookie
    from bookie.disks.directories import CURRENT, VERSION
    from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
    from magnetar_core.runtime.process.daemon import new_clock

    store = await EmbeddedStore.open(data / "metadata", new_clock())
    try:
        identity = str(uuid.uuid4())
        await store.put(f"{ROOT}/INSTANCEID", identity.encode())
        for bookie_id in await store.children(f"{ROOT}/cookies"):
            if not (data / bookie_id).is_dir() or not bookie_id.startswith("bookie-"):
                continue  # a bookie that this standalone does not run
            node = await store.get(f"{ROOT}/cookies/{bookie_id}")
            assert node is not None, "nobody else is at the store"
            cookie = decode_cookie(node.value, node.path)
            place = data / bookie_id
            cookie = replace(
                cookie,
                journal_directories=_moved_paths(cookie.journal_directories, place),
                ledger_directories=_moved_paths(cookie.ledger_directories, place),
                instance_id=identity,
            )
            for directory in (*cookie.journal_directories, *cookie.ledger_directories):
                if OsFiles().exists(os.path.join(directory, CURRENT)):
                    replace_file(OsFiles(), os.path.join(directory, CURRENT, VERSION), cookie.encode())
            await store.put(node.path, cookie.encode())
    finally:
        await store.close()


def _moved_paths(directories: Sequence[str], place: Path) -> tuple[str, ...]:
    """The folders of a bookie of a standalone are in its own: journal, ledgers."""
    return tuple(str(place / os.path.basename(directory)) for directory in directories)
