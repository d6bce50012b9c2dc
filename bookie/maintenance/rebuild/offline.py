"""Rebuilds a damaged index from the entry logs, before the bookie serves.

    damaged database ──set aside──▶ new one, marked REBUILDING ──every record of every log, checked──▶ in doubt? flag,
      limbo ──▶ synced ──▶ mark removed

Rules:

1. All ledgers are fenced afterwards, because the damaged index may have lost fences. Writers continue in new ledgers.
2. The replay that follows adds the records of the journal after the mark.
3. A record is put only if it has the digest of its ledger. If that digest is not known, the record is put only where no
   other record is, and counts as doubtful (`bookie.maintenance.rebuild.digest_check`).
4. A sound log consists of records only, up to its map if it is sealed, and each ledger has as many bytes as the map
   says. Entries or ledgers may be missing if that does not hold, if a record is damaged or doubtful, if a log cannot be
   read to its end, or if the database `ledgers` was damaged; also if a log is missing or shorter than the former index
   says. If nobody knows what that said, any log whose number is missing before the newest may have had entries.
5. Then every ledger of the directory goes into limbo, and its copies must be checked (`needs_check`,
   `bookie.maintenance.integrity`) before "no such entry" is answered. Both are durable before the mark is removed.
6. A log that cannot be read is left as it is, and the bookie starts without it. That is noted
   (`bookie.maintenance.garbage.unreadable`), because its entries may come back with its disk.
7. Every start repeats the rebuild until it is complete.

The end of an unsealed log may be a torn write. Zeros there are not damage; any other bytes are, because a location may
have referred to them.
"""

import logging
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from bookie.maintenance.garbage.unreadable import note_unreadable
from bookie.maintenance.rebuild.digest_check import Digest, DigestCheck, Verdict, no_digests
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import file_name, list_logs
from bookie.storage.index import FLAG_NEEDS_INTEGRITY_CHECK, LEDGERS, LOCATIONS, REBUILDING, Index, IndexCorrupt
from bookie.storage.known import NOTHING_THERE, LogNote, log_notes, note_of
from bookie.storage.log_check import find_bad_logs
from bookie.storage.storage_pb2 import LedgerData
from magnetar_core.runtime.files import File, Files
from magnetar_core.runtime.types import MIB, Corruption

log = logging.getLogger(__name__)

DATABASES: Final = (LOCATIONS, LEDGERS)

# Locations in one batch: a few hundred KiB.
BATCH_LOCATIONS: Final = 1_000

# Apache's direct writer pads its blocks with this byte. Read as a size it is negative, so no record begins with it.
_PADDING: Final = b"\xf0"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild."""

    index: Index
    entries: int
    ledgers: int
    problems: tuple[str, ...]
    """Why entries or ledgers may be missing, at most one for each log; empty if nothing can be missing."""


def damaged_databases(files: Files, directory: str) -> set[str]:
    """Databases of a ledger directory whose rebuild was not completed (rule 7)."""
    return {name for name in DATABASES if files.exists(posixpath.join(directory, name, REBUILDING))}


def known_logs(open_index: Callable[[], Index]) -> dict[int, LogNote] | None:
    """What the index that is there knows of its logs; None if it cannot be read. Blocks."""
    try:
        index = open_index()
    except OSError:
        return None
    try:
        return log_notes(index.notes()) or None
    except OSError:
        return None
    finally:
        index.close()


def rebuild_index(
    files: Files,
    directory: str,
    open_index: Callable[[], Index],
    damaged: Collection[str],
    wall_ms: int,
    digest_of: Callable[[int], Digest | None] = no_digests,
    on_log: Callable[[], None] = lambda: None,
    known: Mapping[int, LogNote] | None = None,
) -> Rebuilt:
    """Rebuild the *damaged* databases of a ledger directory from its entry logs. Blocks, may take minutes.

    *digest_of(ledger id)* returns the digest that checks its entries, or None. *on_log* is called before each log.
    *known*: what the former index knows of the logs (`known_logs`). Raises OSError, Corruption.
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
    if LOCATIONS not in names:
        known = log_notes(index.notes()) or known
    rebuild = _Rebuild(files, directory, index, LEDGERS in names, DigestCheck(digest_of))
    logs = list_logs(files, directory)
    rebuild.miss_logs(logs, known)
    for log_id in logs:
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
    """The state of a rebuild while the logs of one directory are read, oldest first."""

    def __init__(
        self, files: Files, directory: str, index: Index, ledgers_lost: bool, digest_check: DigestCheck
    ) -> None:
        self._files = files
        self._directory = directory
        self._index = index
        self._ledgers_lost = ledgers_lost
        self._digest_check = digest_check
        self.problems: list[str] = []
        self.entries = 0
        self._unreadable: list[str] = []
        self._rows: dict[int, LedgerData] = {}
        self._batch: dict[tuple[int, int], int] = {}
        self._notes: dict[int, bytes | None] = {}
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

    def miss_logs(self, logs: Sequence[int], known: Mapping[int, LogNote] | None) -> None:
        """Name the logs that lack what the former index says (rule 4), and forget what it said of them."""
        self._index.put_notes(dict.fromkeys(log_notes(self._index.notes())))
        if known is None:
            count = max(logs, default=-1) + 1 - len(logs)
            if count:
                self._problem(
                    f"{count} logs before the newest in {self._directory} are not there, and nobody knows whether they "
                    "had entries; entries may be missing here"
                )
            return
        for log_id, bad in find_bad_logs(self._files, self._directory, known).items():
            path = posixpath.join(self._directory, file_name(log_id))
            if not bad.is_unreadable:
                lost = f" ({bad.lost} entries of it were reported as lost)" if bad.lost else ""
                self._problem(f"{path} {bad.problem}; entries are missing here{lost}")

    @property
    def ledger_ids(self) -> Collection[int]:
        return self._rows.keys()

    def read_log(self, log_id: int) -> None:
        """Put the records of one log (rules 3, 4, 6). Raises OSError of the index."""
        path = posixpath.join(self._directory, file_name(log_id))
        faults = _Faults()
        self._notes[log_id] = NOTHING_THERE.encode()
        try:
            reader = _LogReader(self._files.open(path), path)
        except OSError as error:
            self._unreadable.append(f"{path} cannot be opened: {error}")
            self._problem(f"{self._unreadable[-1]}; entries may be missing here")
            return
        try:
            if reader.size_bytes <= fmt.HEADER_BYTES:
                return  # a crash came while the log was created; it is empty
            records = reader.records()
            while (some := next(records, None)) is not None:
                self._index_record(log_id, *some, faults)
        except _ReadFailed as error:
            faults.failure = str(error)
            self._unreadable.append(f"{path}: {error}")
        except Corruption as error:
            faults.failure = str(error).removeprefix(path).removeprefix(":").strip()
        finally:
            reader.close()
        text = faults.text(reader)
        if text:
            self._problem(f"{path}: {text}; entries may be missing here")

    def _index_record(
        self, log_id: int, offset: int, ledger_id: int, entry_id: int, record: bytes, faults: "_Faults"
    ) -> None:
        """One record. Raises OSError of the index."""
        verdict = self._digest_check.judge(record, ledger_id, entry_id)
        if verdict is Verdict.DAMAGED:
            faults.damaged += 1
            return
        self._notes[log_id] = note_of(log_id, offset, ledger_id, entry_id)
        if ledger_id not in self._rows:
            if not self._ledgers_lost:  # it was deleted
                faults.unproven_of_others += verdict is Verdict.UNPROVEN
                return
            self._rows[ledger_id] = _new_row()
        if verdict is Verdict.UNPROVEN:
            faults.unproven += 1
            if (ledger_id, entry_id) in self._batch or self._index.location(ledger_id, entry_id):
                return
        self._batch[ledger_id, entry_id] = fmt.location(log_id, offset)
        if len(self._batch) >= BATCH_LOCATIONS:
            self._put()

    def finish(self) -> None:
        """Write the ledgers, fenced and maybe in limbo (rules 1, 5). Raises OSError."""
        self._put()
        self._index.put_notes(self._notes)
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
    """The row of a ledger whose key is lost: it takes the first key that it is sent."""
    return LedgerData(exists=True, fenced=True, masterKey=b"")


@dataclass(slots=True)
class _Faults:
    """What is wrong with the records of a log."""

    damaged: int = 0
    unproven: int = 0
    unproven_of_others: int = 0
    """Probably of deleted ledgers; or the ledger id itself is damaged."""
    failure: str = ""

    def text(self, reader: "_LogReader") -> str:
        unproven = self.unproven + (0 if reader.map_agrees else self.unproven_of_others)
        parts = [
            self.failure,
            f"{self.damaged} damaged records" if self.damaged else "",
            f"{unproven} records whose digest nobody knows" if unproven else "",
            f"{reader.gaps} places with no record, the first at offset {reader.first_gap}" if reader.gaps else "",
            "" if reader.map_agrees is not False else "its map names other records",
            "it was cut" if reader.is_cut else "",
        ]
        return "; ".join(part for part in parts if part)


class _ReadFailed(Exception):
    """A log cannot be read, or not to its end."""


class _Record(NamedTuple):
    offset: int
    ledger_id: int
    entry_id: int
    data: bytes


class _LogReader:
    """Reads a log once, from beginning to end."""

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
        self.is_cut = False
        """The header says that the log was longer."""
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
        if header.map_offset > self.size_bytes:
            self.is_cut = True
        sealed = self._map(header)
        end = self.size_bytes if sealed is None else header.map_offset
        at = fmt.HEADER_BYTES
        bytes_of_ledgers: dict[int, int] = {}
        for offset, size, ledger_id, entry_id in fmt.scan(self._read, end):
            self._check_between(at, offset - fmt.SIZE.size, is_tail=False)
            at = offset + size
            bytes_of_ledgers[ledger_id] = bytes_of_ledgers.get(ledger_id, 0) + fmt.SIZE.size + size
            yield _Record(offset, ledger_id, entry_id, self._record(offset, size))
        self._check_between(at, end, is_tail=sealed is None)
        if sealed is not None:
            self.map_agrees = sealed == bytes_of_ledgers

    def _map(self, header: fmt.Header) -> dict[int, int] | None:
        """The map; None if the log was not sealed, or if that is not known. Its map then looks like damage at the
        end."""
        if not fmt.HEADER_BYTES <= header.map_offset < self.size_bytes:
            return None
        try:
            return fmt.decode_map(
                self._read(header.map_offset, self.size_bytes - header.map_offset), header, self._path
            )
        except Corruption:
            return None

    def _check_between(self, start: int, end: int, *, is_tail: bool) -> None:
        """Check bytes that are not a record: they must be padding, or zeros that were never written."""
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
        """Raises _ReadFailed, so that the error differs from an OSError of the index."""
        try:
            data = self._file.read_at(offset, size)
        except OSError as error:
            raise _ReadFailed(f"it cannot be read from offset {offset} on: {error}") from error
        self._window_at, self._window = offset, data
        return data


def _set_aside(files: Files, directory: str, name: str, wall_ms: int) -> None:
    """Keep the newest damaged database for inspection; the files of older ones are removed."""
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
