"""A snapshot of a standalone that runs: links beside its files, which keep what stands in them at one moment.

    metadata held ──▶ checkpoint ──▶ each bookie, between two flushes: logs ended and linked, checkpoint of the index
                                     ──▶ ends of all journals, in one turn of the loop ──▶ metadata go on

Rules:

1. The image is what a `kill -9` at one moment would leave. Everything that was acknowledged before has its record in a
   journal before the end that is taken (or in the logs), so it is there after the replay.
2. While the metadata are held no ledger is made, closed or deleted: they never name a ledger or an end that the bookies
   do not have, and bookies have no ledger that they do not name.
3. The ends of all journals are taken in one turn of the loop: an entry that some bookie knows to be confirmed is in the
   journals of those that confirmed it.
4. A linked file does not change any more: entry logs are ended before, RocksDB links its tables itself, and of a
   journal only what stands before the end counts. What is written in place (`synced`) is copied.
5. Logs are linked before the index is copied: its notes name no log that was removed in between.
6. A snapshot is removed when nobody copies from it any more, and at the next start. Until then the space of deleted
   ledgers does not come back.
"""

import asyncio
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from bookie.bookie import Bookie
from bookie.storage.index import RocksIndex
from bookie.storage.journal.format import PLACE_FILE, Mark
from bookie.storage.journal.writer import file_name, list_files
from magnetar.processes.backup.manifest import BackupRefused
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import instance_id
from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.runtime.files import FOLDER_MODE, Files
from magnetar_core.runtime.types import KIB, MIB, MagnetarError

ROOT: Final = "/ledgers"
"""Where the ledgers of a standalone begin in its metadata."""

SNAPSHOT: Final = "snapshot"
"""A folder beside the linked files, in each folder of the store that has files."""

# RocksDB writes its tables in memory out for a checkpoint: of each database at most 16 MiB. A disk that has less room
# would refuse that in the middle, and RocksDB takes no writes then until it is opened again.
ROOM_BYTES: Final = 64 * MIB


HOLE_BEGIN: Final = 4 * KIB
"""Behind the header of a journal file."""

# What stands before the mark of a journal is in the entry logs, but the last group is compared with its seal. A group
# is as large as SLICE_BYTES of the journal's writer and its last record.
_GROUP_BYTES: Final = 64 * MIB


class SourceFile(NamedTuple):
    """A file that a backup copies: of a snapshot, or of a standalone that is stopped."""

    name: str
    """Relative to the data folder."""
    path: str
    """Where its content is; absolute."""
    bytes: int
    """So many of it count."""
    hole_end: int = 0
    """Bytes from HOLE_BEGIN up to here are of no use: a copy has zeros there. 0: there are none."""


class Taken(NamedTuple):
    """What a snapshot has."""

    instance_id: str
    bookies: int
    files: tuple[SourceFile, ...]

    @staticmethod
    def of(value: list[Any]) -> "Taken":
        """From what JSON made of one."""
        identity, bookies, files = value
        return Taken(identity, bookies, tuple(SourceFile(*file) for file in files))


class Snapshot:
    """Takes and removes snapshots of one standalone, one at a time. Used on the loop."""

    def __init__(self, data: Path, store: EmbeddedStore, bookies: Sequence[Bookie], files: Files) -> None:
        self._data = data
        self._store = store
        self._bookies = tuple(bookies)
        self._files = files

    async def take(self) -> Taken:
        """Raises MagnetarError; what was made of it is removed then."""
        await self.remove()
        try:
            self._check_room()
            return await self._take()
        except OSError as error:
            await self.remove()
            raise MagnetarError(f"no snapshot of {self._data} can be taken: {error}") from error
        except BaseException:
            await self.remove()
            raise

    async def remove(self) -> None:
        """Remove what there is of a snapshot."""
        await asyncio.to_thread(remove_snapshots, self._data)

    async def _take(self) -> Taken:
        identity = await instance_id(self._store, ROOT)
        place = self._data / SNAPSHOT
        async with self._store.checkpoint(place):  # rule 2
            marks = [
                await bookie.parts.node.threads.flusher.run(partial(self._link, bookie)) for bookie in self._bookies
            ]
            # Rule 3: nothing is awaited between the first and the last.
            ends = [[journal.mark for journal in bookie.parts.journals] for bookie in self._bookies]
            journals: list[SourceFile] = []
            for bookie, its_marks, its_ends in zip(self._bookies, marks, ends, strict=True):
                kept_bytes = _GROUP_BYTES + bookie.config.frame_bytes_max
                for directory, mark, end in zip(
                    bookie.parts.node.directories.journals, its_marks, its_ends, strict=True
                ):
                    journals += self._journal(directory, mark, end, kept_bytes)
        linked = await asyncio.to_thread(self._list)
        return Taken(identity, len(self._bookies), (*linked, *journals))

    def _check_room(self) -> None:
        free = self._files.usage(str(self._data)).free_bytes
        needed = ROOM_BYTES * (1 + len(self._bookies))
        if free < needed:
            raise BackupRefused(f"the disk of {self._data} has {free} free bytes; a snapshot needs {needed}")

    def _link(self, bookie: Bookie) -> list[Mark]:
        """On the flusher's thread: no flush is under way. Returns the marks of the journals. Raises OSError."""
        for directory in bookie.parts.storage.directories:
            directory.logs.end_log()  # rule 4
            place = _made_folder(directory.path)
            _link_files(directory.path, place)  # rule 5
            assert isinstance(directory.index, RocksIndex)
            directory.index.checkpoint(place)
        marks = bookie.parts.storage.marks
        for directory_path, mark in zip(bookie.parts.node.directories.journals, marks, strict=True):
            place = _made_folder(directory_path)
            _link_files(directory_path, place, without=(".txn", PLACE_FILE))
            shutil.copyfile(os.path.join(directory_path, PLACE_FILE), os.path.join(place, PLACE_FILE))
            for file_id in list_files(self._files, directory_path):
                if file_id >= mark.file_id:
                    _link(directory_path, place, file_name(file_id))
        return marks

    def _journal(self, directory: str, mark: Mark, end: Mark, kept_bytes: int) -> list[SourceFile]:
        """The files of a journal from *mark* to *end*, and *kept_bytes* before it. Raises OSError."""
        place = os.path.join(directory, SNAPSHOT)
        first = min(list_files(self._files, place), default=end.file_id)
        files = []
        for file_id in range(first, end.file_id + 1):
            name = file_name(file_id)
            _link(directory, place, name)  # one that was begun meanwhile
            path = os.path.join(place, name)
            size = end.offset if file_id == end.file_id else os.stat(path).st_size
            hole_end = mark.offset - kept_bytes if file_id == mark.file_id else 0
            files.append(
                SourceFile(
                    os.path.relpath(os.path.join(directory, name), self._data), path, size,
                    hole_end if hole_end > HOLE_BEGIN else 0,
                )
            )  # fmt: skip
        return files

    def _list(self) -> list[SourceFile]:
        """All files of the snapshot but those of the journals. Raises OSError."""
        files = []
        for place in _snapshots(self._data):
            for folder, _, names in os.walk(place):
                inner = os.path.relpath(folder, place)
                own = os.path.join(place.parent, "metadata" if place.parent == self._data else "", inner)
                for name in names:
                    if not name.endswith(".txn"):
                        path = os.path.join(folder, name)
                        relative = os.path.relpath(os.path.join(own, name), self._data)
                        files.append(SourceFile(relative, path, os.stat(path).st_size))
        return sorted(files)


def remove_snapshots(data: Path) -> None:
    """Remove what a process that was killed has left of a snapshot; nothing is said of what cannot be removed."""
    for place in _snapshots(data):
        shutil.rmtree(place, ignore_errors=True)


def _snapshots(data: Path) -> list[Path]:
    """The folders of a snapshot: that of the metadata, and those of bookies."""
    paths = [data / SNAPSHOT, *data.glob(f"bookie-*/*/current/{SNAPSHOT}")]
    return [place for place in paths if place.is_dir()]


def _made_folder(directory: str) -> str:
    place = os.path.join(directory, SNAPSHOT)
    os.makedirs(place, FOLDER_MODE, exist_ok=True)
    return place


def _link_files(directory: str, place: str, *, without: tuple[str, ...] = ()) -> None:
    """Link the files in *directory* into *place*, but the *without*, by their ends, and what is being written."""
    for name in os.listdir(directory):
        if not name.endswith((".tmp", ".compacting", "reserve", *without)) and not os.path.isdir(
            os.path.join(directory, name)
        ):
            _link(directory, place, name)


def _link(directory: str, place: str, name: str) -> None:
    try:
        os.link(os.path.join(directory, name), os.path.join(place, name))
    except FileExistsError:
        pass  # journal and ledgers may have one folder
    except FileNotFoundError:
        if name.endswith(".txn"):
            raise  # a log may have been removed since: nothing refers to it any more
