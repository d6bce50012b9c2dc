"""The index is derived: what it says can be read off the entry logs again.

    damaged database ──set aside──▶ new one, marked REBUILDING ──every record of every log, checked──▶ in doubt? flag,
      limbo ──▶ synced ──▶ mark removed

Rules:

1. All ledgers are fenced afterwards: whether one was may be what was lost. Writers recover and go on elsewhere.
2. What the journal holds behind the mark comes on top of it, by the replay that follows.
3. A record is put only if it has the digest of its ledger. One whose ledger's digest nobody knows is put where no
   other one is, and counts as doubtful (`bookie.maintenance.rebuild.digest_check`).
4. A log has nothing but records, up to its map if it is sealed; and each ledger as many bytes as the map says. Where it
   is not so, where a record is damaged or doubtful, where a log cannot be read on, or if the database `ledgers` was
   damaged, entries or ledgers may be missing.
5. Then every ledger of the directory is in limbo, and the copies are to be checked (`needs_check`,
   `bookie.maintenance.integrity`) before "no such entry" is said of any. Both are durable before the mark goes.
6. One log that cannot be read is that log's loss: it stays where it is, and the bookie goes up without it. That is
   noted (`bookie.maintenance.rebuild.unreadable`), for what is in it may come back with its disk.
7. Until the rebuild is whole it is repeated by every start.

The end of a log that was not sealed may be a write that a crash tore. Zeros there are nothing; anything else is damage:
nobody can say that it was never referred to.
"""

import logging
import posixpath
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from bookie.maintenance.rebuild.digest_check import Digest, Proofs, Verdict, no_digests
from bookie.maintenance.rebuild.unreadable import note_unreadable
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import file_name, list_logs
from bookie.storage.index import FLAG_NEEDS_INTEGRITY_CHECK, LEDGERS, LOCATIONS, REBUILDING, Index, IndexCorrupt
from bookie.storage.storage_pb2 import LedgerData
from magnetar_core.runtime.files import File, Files
from magnetar_core.runtime.types import MIB, Corruption

log = logging.getLogger(__name__)

DATABASES: Final = (LOCATIONS, LEDGERS)

# Locations that are put at a time: a few hundred KiB.
_BATCH: Final = 1_000

# Apache's direct writer fills its blocks up with it. As a size it is negative, so it begins no record.
_PADDING: Final = b"\xf0"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What came of it."""

    index: Index
    entries: int
    ledgers: int
    problems: tuple[str, ...]
    """Why entries or ledgers may be missing; empty if nothing can be. One for each log at most."""


def damaged_databases(files: Files, directory: str) -> set[str]:
    """Databases of a ledger directory whose rebuild was begun and not finished (rule 7)."""
    return {name for name in DATABASES if files.exists(posixpath.join(directory, name, REBUILDING))}


def rebuild_index(
    files: Files,
    directory: str,
    open_index: Callable[[], Index],
    damaged: Collection[str],
    wall_ms: int,
    digest_of: Callable[[int], Digest | None] = no_digests,
    on_log: Callable[[], None] = lambda: None,
) -> Rebuilt:
    """Rebuild the *damaged* databases of a ledger directory from its entry logs. Blocks, may take minutes.

    *digest_of(ledger id)* tells how entries are checked, as far as somebody knows. *on_log* is called before each log.
    Raises OSError, Corruption.
    """
    names = set(damaged)
    while True:
        for name in names:
            _set_aside(files, directory, name, wall_ms)
        try:
            index = open_index()
            break
        except IndexCorrupt as error:  # the other one as well
            if error.database in names:
                raise
            names.add(error.database)
    rebuild = _Rebuild(files, directory, index, LEDGERS in names, Proofs(digest_of))
    for log_id in list_logs(files, directory):
        on_log()
        rebuild.read_log(log_id)
    rebuild.finish()
    for name in names:
        marker = posixpath.join(directory, name, REBUILDING)
        if files.exists(marker):
            files.remove(marker)
            files.sync_directory(posixpath.dirname(marker))
    count = len(rebuild.ledger_ids)
    log.warning("the index in %s was rebuilt: %d entries of %d ledgers", directory, rebuild.entries, count)
    return Rebuilt(index, rebuild.entries, count, tuple(rebuild.problems))


class _Rebuild:
    """What is known while the logs of one directory are read, the oldest first."""

    def __init__(self, files: Files, directory: str, index: Index, ledgers_lost: bool, proofs: Proofs) -> None:
        self._files = files
        self._directory = directory
        self._index = index
        self._ledgers_lost = ledgers_lost
        self._proofs = proofs
        self.problems: list[str] = []
        self.entries = 0
        self._unreadable: list[str] = []
        self._rows: dict[int, LedgerData] = {}
        self._batch: dict[tuple[int, int], int] = {}
        if ledgers_lost:
            self._problem(f"the database {LEDGERS} in {directory} was damaged: ledgers without entries may be missing")
        for ledger_id, row in index.ledgers():
            data = LedgerData()
            try:
                data.ParseFromString(row)
                if not data.IsInitialized():
                    raise DecodeError("fields are missing")
            except DecodeError as error:
                self._problem(f"the row of ledger {ledger_id} in {directory} is damaged: {error}")
                data = _new_row()
            self._rows[ledger_id] = data

    @property
    def ledger_ids(self) -> Collection[int]:
        return self._rows.keys()

    def read_log(self, log_id: int) -> None:
        """Rules 3, 4, 6. Raises OSError of the index."""
        path = posixpath.join(self._directory, file_name(log_id))
        found = _Findings()
        try:
            reader = _LogReader(self._files.open(path), path)
        except OSError as error:
            self._unreadable.append(f"{path} cannot be opened: {error}")
            self._problem(f"{self._unreadable[-1]}; entries may be missing here")
            return
        try:
            if reader.size_bytes <= fmt.HEADER_BYTES:
                return  # a crash came while it was made, before anything was in it
            records = reader.records()
            while (some := next(records, None)) is not None:
                self._take(log_id, *some, found)
        except _ReadFailed as error:
            found.failure = str(error)
            self._unreadable.append(f"{path}: {error}")
        except Corruption as error:
            found.failure = str(error).removeprefix(path).removeprefix(":").strip()
        finally:
            reader.close()
        text = found.text(reader)
        if text:
            self._problem(f"{path}: {text}; entries may be missing here")

    def _take(self, log_id: int, offset: int, ledger_id: int, entry_id: int, record: bytes, found: "_Findings") -> None:
        """One record. Raises OSError of the index."""
        verdict = self._proofs.judge(record, ledger_id, entry_id)
        if verdict is Verdict.DAMAGED:
            found.damaged += 1
            return
        if ledger_id not in self._rows:
            if not self._ledgers_lost:  # it was deleted
                found.unproven_of_others += verdict is Verdict.UNPROVEN
                return
            self._rows[ledger_id] = _new_row()
        if verdict is Verdict.UNPROVEN:
            found.unproven += 1
            if (ledger_id, entry_id) in self._batch or self._index.location(ledger_id, entry_id):
                return
        self._batch[ledger_id, entry_id] = fmt.location(log_id, offset)
        if len(self._batch) >= _BATCH:
            self._put()

    def finish(self) -> None:
        """Rules 1, 5. Raises OSError."""
        self._put()
        for data in self._rows.values():
            data.fenced = True
            if self.problems:
                data.limbo = True
        self._index.put_ledgers([(ledger_id, row.SerializeToString()) for ledger_id, row in sorted(self._rows.items())])
        if self.problems:
            self._index.put_flags(self._index.flags() | FLAG_NEEDS_INTEGRITY_CHECK)
        self._index.sync()
        note_unreadable(self._files, self._directory, self._unreadable)

    def _put(self) -> None:
        self.entries += len(self._batch)
        self._index.put_locations([(*key, location) for key, location in self._batch.items()])
        self._batch = {}

    def _problem(self, text: str) -> None:
        log.error("%s", text)
        self.problems.append(text)


def _new_row() -> LedgerData:
    """A ledger whose key is lost takes the first one that comes."""
    return LedgerData(exists=True, fenced=True, masterKey=b"")


@dataclass(slots=True)
class _Findings:
    """What is wrong with the records of a log."""

    damaged: int = 0
    unproven: int = 0
    unproven_of_others: int = 0
    """Of ledgers that are not here any more, most likely; or their ledger id is the damage."""
    failure: str = ""

    def text(self, reader: "_LogReader") -> str:
        unproven = self.unproven + (0 if reader.map_agrees else self.unproven_of_others)
        parts = [
            self.failure,
            f"{self.damaged} damaged records" if self.damaged else "",
            f"{unproven} records whose digest nobody knows" if unproven else "",
            f"{reader.gaps} places with no record, the first at offset {reader.first_gap}" if reader.gaps else "",
            "" if reader.map_agrees is not False else "its map tells of other records",
        ]
        return "; ".join(part for part in parts if part)


class _ReadFailed(Exception):
    """A log cannot be read (on)."""


class _Record(NamedTuple):
    offset: int
    ledger_id: int
    entry_id: int
    data: bytes


class _LogReader:
    """Reads a log once, from front to end."""

    def __init__(self, file: File, path: str) -> None:
        """Raises OSError; then *file* is closed."""
        self._file = file
        self._path = path
        self._window_at = 0
        self._window = b""
        self.gaps = 0
        self.first_gap = 0
        self.map_agrees: bool | None = None
        """Whether each ledger has as many bytes as the map says; None if that cannot be said."""
        try:
            self.size_bytes = file.size_bytes()
        except OSError:
            file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def records(self) -> Iterator[_Record]:
        """Raises Corruption, _ReadFailed."""
        header = fmt.decode_header(self._read(0, fmt.HEADER_BYTES), self._path)
        sealed = self._map(header)
        end = self.size_bytes if sealed is None else header.map_offset
        at = fmt.HEADER_BYTES
        bytes_of_ledgers: dict[int, int] = {}
        for offset, size, ledger_id, entry_id in fmt.scan(self._read, end):
            self._look_between(at, offset - fmt.SIZE.size, is_tail=False)
            at = offset + size
            bytes_of_ledgers[ledger_id] = bytes_of_ledgers.get(ledger_id, 0) + fmt.SIZE.size + size
            yield _Record(offset, ledger_id, entry_id, self._record(offset, size))
        self._look_between(at, end, is_tail=sealed is None)
        if sealed is not None:
            self.map_agrees = sealed == bytes_of_ledgers

    def _map(self, header: fmt.Header) -> dict[int, int] | None:
        """None if the log was not sealed, or if it cannot be told: then its map looks like damage at its end."""
        if not fmt.HEADER_BYTES <= header.map_offset < self.size_bytes:
            return None
        try:
            return fmt.decode_map(
                self._read(header.map_offset, self.size_bytes - header.map_offset), header, self._path
            )
        except Corruption:
            return None

    def _look_between(self, start: int, end: int, *, is_tail: bool) -> None:
        """What is no record must be padding, or never have been written."""
        nothing = _PADDING + b"\0" if is_tail else _PADDING
        for at in range(start, end, MIB):
            try:
                data = self._file.read_at(at, min(MIB, end - at))
            except OSError as error:
                raise _ReadFailed(f"it cannot be read at offset {at}: {error}") from error
            if data.strip(nothing):
                self.first_gap = self.first_gap or start
                self.gaps += 1
                return

    def _record(self, offset: int, size: int) -> bytes:
        at = offset - self._window_at
        if at >= 0 and at + size <= len(self._window):
            return self._window[at : at + size]
        return self._read(offset, size)

    def _read(self, offset: int, size: int) -> bytes:
        """Raises _ReadFailed: what goes wrong with the index is another matter."""
        try:
            data = self._file.read_at(offset, size)
        except OSError as error:
            raise _ReadFailed(f"it cannot be read from offset {offset} on: {error}") from error
        self._window_at, self._window = offset, data
        return data


def _set_aside(files: Files, directory: str, name: str, wall_ms: int) -> None:
    """Keep the newest damaged database for whoever wants to look at it; older ones are emptied."""
    path = posixpath.join(directory, name)
    aside = f"{name}.damaged-"
    for other in files.list(directory):
        if other.startswith(aside):
            for file_name in files.list(posixpath.join(directory, other)):
                files.remove(posixpath.join(directory, other, file_name))
    if files.exists(path):
        files.rename(path, posixpath.join(directory, f"{aside}{wall_ms}"))
    files.make_directories(path)
    files.create(posixpath.join(path, REBUILDING)).close()
    files.sync_directory(path)
    files.sync_directory(directory)
