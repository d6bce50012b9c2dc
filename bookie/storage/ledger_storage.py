"""Entry logs and indexes of all ledger directories: the order in which entries are flushed, and how they are read.

    write cache ──flush──▶ entry logs ──fsync──▶ locations, ledger rows ──WAL sync──▶ lastMark ──▶ old journals go

Rules:

1. A location is published after its entry is synced in the log; ledger rows after both; a mark after all
   of that, in every directory (I33, I36). Each step has returned before the next begins. With the locations go notes of
   what else there must be (`known.py`).
2. A failed flush publishes no mark. Its entries stay in the write cache and are flushed again, to another log (I37).
3. The directory of a ledger is its id modulo the number of directories, and so is its journal. (The cookie keeps the
   number from changing.)
4. A flush is done in pieces, and the caller may pause between them. Otherwise its writes, syncs and CPU time would come
   in one burst, and every add would wait for it. No step handles all entries at once: to sort 30,000 of them and list
   them takes the interpreter's lock for 3 to 13 ms, which was most of what the slowest hundredth of adds waited for.
5. "No such entry" is answered only if the index says so. A location that leads to another entry is an error (I15, I42).
   A location in a log that no longer exists is looked up once more: compaction may just have moved the entry.

All methods block; they are called on the flusher's thread (`flush`, `write_marks`) and on readers' threads.
"""

import contextlib
import logging
import os
import posixpath
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bookie.latency import FlushTimes
from bookie.storage.entry_log.files import EntryLogs
from bookie.storage.index import BATCH_OPERATIONS_MAX, FLAG_NEEDS_INTEGRITY_CHECK, LOCATIONS, REBUILDING, Index
from bookie.storage.journal.format import START, Mark, decode_mark, encode_mark
from bookie.storage.known import MARKS_NOTE, BadLog, LogNote, encode_marks, log_notes, newest
from bookie.storage.ledgers import Tombstones
from bookie.storage.write_cache import Half, pieces_in_order
from magnetar_core.bookkeeper.wire.entry import HEADER
from magnetar_core.runtime.clock import no_clock
from magnetar_core.runtime.files import UNWRITABLE, Files, read_file, replace_file
from magnetar_core.runtime.types import KIB, MIB, Buffer, Corruption

log = logging.getLogger(__name__)

# One read of a log fetches at most this much for a run of entries.
READ_BYTES_MAX = 512 * KIB

# An entry of less that is read in vain does no harm.
_SMALL_BYTES = 4 * KIB

# Index entries that one scan looks up. A batch read of small entries makes another scan if more of them fit into its
# answer.
BATCH_ENTRIES = 1_000
LIST_ENTRIES = 20_000

# Bytes that a batch of reads may gather before its results go to the loop; the other reads wait for the next batch.
RESULT_BYTES_MAX = 4 * MIB


# A flush is done in pieces of about this size. With a sync after each of them the disk, which the journal shares, never
# has much to write at once; a flush that is in a hurry has one after so many of them. Pieces of small entries are
# smaller: so many entries take the interpreter's lock for about 0.5 ms.
FLUSH_PIECE_BYTES: Final = 256 * KIB
FLUSH_ENTRIES_MAX: Final = 500
PIECES_A_SYNC: Final = 16

# The part of a flush's time that its entry log takes; the index takes the rest.
_LOG_SHARE: Final = 0.7

_TOMBSTONES_FILE: Final = "fenced-and-deleted"


def _no_pause(share: float) -> bool:
    return False


class LedgerDirectory:
    """One ledger directory."""

    def __init__(self, path: str, logs: EntryLogs, open_index: Callable[[], Index], index: Index) -> None:
        self.path = path
        self.logs = logs
        self._open_index = open_index
        self.index = index
        self.noted_marks: list[Mark] = []
        """The marks that the index has a note of, since the start."""
        self.bad_logs: dict[int, BadLog] = {}
        """Logs that did not agree with their notes at the start (`bookie.storage.log_check`). After the start only the
        loop changes it, and `unknown_logs`."""
        self.unknown_logs: set[int] = set()
        """Logs of which the index had no note."""

    def note_marks(self, marks: Sequence[Mark]) -> bool:
        """Put *marks* into the index if they are not there; whether it must be synced. Raises OSError."""
        if not marks or self.noted_marks == list(marks):
            return False
        self.index.put_notes({MARKS_NOTE: encode_marks(marks)})
        return True

    def forget_log(self, log_id: int) -> None:
        """The log is about to be removed: its note goes first, and what was moved out of it is durable. Raises
        OSError."""
        self.index.put_notes({log_id: None})
        self.index.sync()

    def reopen_index(self) -> None:
        """Open the index again: RocksDB keeps refusing after it ran out of space until then."""
        self.index.close()
        self.index = self._open_index()


class Tail(NamedTuple):
    """The last entry of a ledger in the index; -1 and None if there is none."""

    entry_id: int
    entry: bytes | None

    @property
    def last_add_confirmed(self) -> int:
        if self.entry is None or len(self.entry) < HEADER.size:
            return -1
        return int(HEADER.unpack_from(self.entry)[2])


class ReadResult(NamedTuple):
    """The result of a cold read: the entry (None: the index does not have it), and the entries read ahead with it."""

    entry: bytes | None
    run: list[tuple[int, bytes]]


class Block(NamedTuple):
    """Entries in the form of a batch answer: {length (4), stored entry} one after the other."""

    entries: int
    buffers: list[Buffer]
    size_bytes: int


def cut(buffers: Sequence[Buffer], size_bytes: int) -> list[Buffer]:
    """The first *size_bytes* of *buffers*."""
    kept: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) >= size_bytes:
            kept.append(memoryview(buffer)[:size_bytes])
            break
        kept.append(buffer)
        size_bytes -= len(buffer)
    return kept


def read_marks(files: Files, directories: Sequence[str], journal_count: int) -> list[Mark]:
    """The place in each journal where replay starts, of the ledger *directories*.

    A mark is written to every directory before the next one is. If directories differ, a crash came in between, and the
    flush of the larger mark was complete. Raises Corruption.
    """
    marks = []
    for number in range(journal_count):
        paths = [_mark_path(directory, number, journal_count) for directory in directories]
        copies = [_read_mark(files, path) for path in paths if files.exists(path)]
        marks.append(max(copies, default=START))
    return marks


def _read_mark(files: Files, path: str) -> Mark:
    try:
        return decode_mark(read_file(files, path), path)
    except Corruption as error:
        raise Corruption(
            f"{error}; without this file the whole journal that is there is read, so it may be removed if no journal "
            "file was"
        ) from None


def _mark_path(directory: str, number: int, journal_count: int) -> str:
    return posixpath.join(directory, "lastMark" if journal_count == 1 else f"lastMark.{number}")


def is_no_space(error: BaseException) -> bool:
    """Whether *error* means a disk that takes nothing more, which is not a defect: space may become free again, and a
    disk that the system made read-only may be mounted anew."""
    if not isinstance(error, OSError):
        return False
    if error.errno in UNWRITABLE:
        return True
    text = str(error)
    return text.startswith("RocksDB:") and any(os.strerror(number) in text for number in UNWRITABLE)


class LedgerStorage:
    """The ledger directories of one bookie."""

    def __init__(
        self,
        files: Files,
        directories: Sequence[LedgerDirectory],
        journal_count: int,
        *,
        read_ahead_entries: int = 100,
        flush_piece_bytes: int = FLUSH_PIECE_BYTES,
    ) -> None:
        self._files = files
        self.directories = tuple(directories)
        self._journal_count = journal_count
        self._read_ahead_entries = read_ahead_entries
        self._flush_piece_bytes = flush_piece_bytes
        self._reopen = False
        self.flush_times: list[FlushTimes] = []
        """Times of the latest flush, for each ledger directory that it reached."""
        self.marks: list[Mark] = []
        """The mark of each journal on disk; empty until marks were written since the start."""

    # -- flushing

    def flush(
        self,
        half: Half,
        rows: Sequence[tuple[int, bytes]],
        pause: Callable[[float], bool] = _no_pause,
        now: Callable[[], float] = no_clock,
        marks: Sequence[Mark] = (),
    ) -> None:
        """Make entries and ledger rows durable in the storage. Raises OSError (rule 2).

        *pause* is called after each piece with the share that is done (0 … 1), and says whether there is time; *now*
        measures the `flush_times`. *marks*, which `write_marks` is given next, are noted in the same sync.
        """
        if self._reopen:
            for directory in self.directories:
                directory.reopen_index()
            self._reopen = False
        count = len(self.directories)
        self.flush_times = []
        try:
            for number, directory in enumerate(self.directories):
                times = FlushTimes(now)
                self.flush_times.append(times)
                own = half if count == 1 else {key: half[key] for key in half if key % count == number}
                if own:
                    self._flush_entries(directory, own, number, pause, times)
                own_rows = [row for row in rows if row[0] % count == number]
                times.start()
                if own_rows:
                    directory.index.put_ledgers(own_rows)
                    times.lap("ledgers")
                is_noted = directory.note_marks(marks)
                if own or own_rows or is_noted:
                    directory.index.sync()
                if is_noted:
                    directory.noted_marks = list(marks)
                times.lap("index")
        except OSError as error:
            self._reopen = is_no_space(error)
            raise

    def _flush_entries(
        self, directory: LedgerDirectory, half: Half, number: int, pause: Callable[[float], bool], times: FlushTimes
    ) -> None:
        count = len(self.directories)
        times.start()
        total, done = sum(map(len, half.values())), 0
        appended: deque[list[tuple[int, int, int]]] = deque()
        unsynced = 0
        has_time = False
        for piece in pieces_in_order(half, self._flush_piece_bytes, FLUSH_ENTRIES_MAX):
            appended.append(directory.logs.append(piece))
            size = sum(len(entry) for _, _, entry in piece)
            done += len(piece)
            unsynced += size
            times.written_bytes += size
            times.lap("log")
            if unsynced >= self._flush_piece_bytes * (1 if has_time else PIECES_A_SYNC):
                unsynced = 0
                directory.logs.sync()
                times.lap("sync")
            if done < total:
                has_time = pause((number + _LOG_SHARE * done / total) / count)
                times.start()
        directory.logs.sync()
        times.lap("sync")
        done = 0
        notes: dict[int, bytes | None] = {}
        while appended:
            locations = appended.popleft()
            while appended and len(locations) + len(appended[0]) <= BATCH_OPERATIONS_MAX:
                locations += appended.popleft()
            directory.index.put_locations(locations)
            notes.update(newest(locations))
            done += len(locations)
            times.lap("index")
            if appended:
                pause((number + _LOG_SHARE + (1 - _LOG_SHARE) * done / total) / count)
                times.start()
        directory.index.put_notes(notes)

    def write_marks(self, marks: Sequence[Mark]) -> None:
        """Record in every directory that all before *marks* (one for each journal) is flushed. Raises OSError."""
        assert len(marks) == self._journal_count, "a mark for each journal"
        assert not self.marks or all(new >= old for new, old in zip(marks, self.marks, strict=True)), "a mark went back"
        for directory in self.directories:
            if directory.note_marks(marks):
                directory.index.sync()
                directory.noted_marks = list(marks)
        for directory in self.directories:
            for number, mark in enumerate(marks):
                replace_file(self._files, _mark_path(directory.path, number, len(marks)), encode_mark(mark))
        self.marks = list(marks)

    # -- deletion

    def delete_ledgers(self, ledger_ids: Sequence[int], tombstones: Tombstones) -> None:
        """Delete ledgers, durably, after their tombstones are written. Not while a flush is under way. Raises
        OSError."""
        count = len(self.directories)
        for number, directory in enumerate(self.directories):
            own = [ledger_id for ledger_id in ledger_ids if ledger_id % count == number]
            if not own:
                continue
            own_tombstones = [ledger_id for ledger_id in tombstones if ledger_id % count == number]
            path = posixpath.join(directory.path, _TOMBSTONES_FILE)
            if own_tombstones or self._files.exists(path):
                replace_file(self._files, path, tombstones.encode(own_tombstones))
            directory.index.delete_ledgers(own)
            directory.index.sync()

    def read_tombstones(self, tombstones: Tombstones) -> None:
        """Raises Corruption, OSError."""
        for directory in self.directories:
            path = posixpath.join(directory.path, _TOMBSTONES_FILE)
            if self._files.exists(path):
                tombstones.load(read_file(self._files, path), path)

    # -- doubts

    @property
    def needs_check(self) -> bool:
        """Whether entries or ledgers may be missing (Apache's storage flag NEEDS_INTEGRITY_CHECK)."""
        return any(directory.index.flags() & FLAG_NEEDS_INTEGRITY_CHECK for directory in self.directories)

    def set_needs_check(self, value: bool) -> None:
        """Set `needs_check`, durably. Raises OSError."""
        for directory in self.directories:
            flags = directory.index.flags() & ~FLAG_NEEDS_INTEGRITY_CHECK
            directory.index.put_flags(flags | (FLAG_NEEDS_INTEGRITY_CHECK if value else 0))
            directory.index.sync()

    def must_rebuild(self, ledger_id: int) -> str:
        """The index with this ledger is damaged: mark it, so that the next start rebuilds it. Returns its directory.
        Raises OSError."""
        directory = self.directory_of(ledger_id).path
        path = posixpath.join(directory, LOCATIONS, REBUILDING)
        if not self._files.exists(path):
            self._files.make_directories(posixpath.dirname(path))
            self._files.create(path).close()
            self._files.sync_directory(posixpath.dirname(path))
        return directory

    def forget_entries(self, ledger_id: int, located: Sequence[tuple[int, int]]) -> None:
        """Entries that stood at these locations (entry id, location) are lost, and that was reported: from now on they
        are absent, durably, and the notes of their logs count them. Not while a flush is under way. Raises OSError."""
        index = self.directory_of(ledger_id).index
        notes = log_notes(index.notes())
        for entry_id, location in located:
            note = notes.get(location >> 32)
            if note is None or not note.location:  # any entry of it will do, since it is not there
                note = LogNote(location, ledger_id, entry_id)
            notes[location >> 32] = note._replace(lost=note.lost + 1, is_decided=False)
        logs = {location >> 32 for _, location in located}
        index.delete_locations([(ledger_id, entry_id, location) for entry_id, location in located])
        index.put_notes({log_id: notes[log_id].encode() for log_id in logs})
        index.sync()

    def close(self) -> None:
        """Seal the open logs and close the databases, all of them. Raises OSError."""
        failure: OSError | None = None
        for directory in self.directories:
            with contextlib.suppress(OSError):
                directory.logs.close()
            try:
                directory.index.close()
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    # -- reading

    def read(self, ledger_id: int, entry_id: int) -> ReadResult:
        """An entry, and those that follow it closely. Raises Corruption and OSError."""
        directory = self.directory_of(ledger_id)
        for is_last_try in (False, True):
            located = directory.index.locations(ledger_id, entry_id, self._read_ahead_entries, READ_BYTES_MAX)
            if not located or located[0][0] != entry_id:
                break
            try:
                run = directory.logs.read_run(ledger_id, located, READ_BYTES_MAX)
            except FileNotFoundError:
                if is_last_try:
                    raise
                continue
            return ReadResult(run[0][1], run)
        return ReadResult(None, [])

    def read_block(self, ledger_id: int, first: int, max_count: int, max_bytes: int) -> Block:
        """Entries from *first* on without a gap; at least one if *first* exists. Raises Corruption and OSError."""
        try:
            return self._read_block(ledger_id, first, max_count, max_bytes)
        except FileNotFoundError:  # rule 5
            return self._read_block(ledger_id, first, max_count, max_bytes)

    def _read_block(self, ledger_id: int, first: int, max_count: int, max_bytes: int) -> Block:
        directory = self.directory_of(ledger_id)
        buffers: list[Buffer] = []
        located: list[tuple[int, int]] = []
        count = size = 0
        while count < max_count and (not count or size < max_bytes):
            if size > count * max(max_bytes - size, _SMALL_BYTES):
                break  # the next one, if it is like the others, would be read in vain
            if not located:
                wanted = min(max_count - count, BATCH_ENTRIES)
                located = self._gapless(directory, ledger_id, first + count, wanted, max_bytes - size)
                if not located:
                    break
            try:
                ends, parts = directory.logs.read_records(ledger_id, located, min(max_bytes - size, READ_BYTES_MAX))
            except (Corruption, OSError) as error:
                if not count:
                    raise
                log.error("a batch read ends early: %s", error)
                break
            fitting = bisect_right(ends, max_bytes - size)
            if fitting < len(ends):
                if count == 0:
                    fitting = max(fitting, 1)
                if fitting:
                    buffers += cut(parts, ends[fitting - 1])
                    size += ends[fitting - 1]
                return Block(count + fitting, buffers, size)
            buffers += parts
            size += ends[-1]
            count += len(ends)
            del located[: len(ends)]
        return Block(count, buffers, size)

    @staticmethod
    def _gapless(
        directory: LedgerDirectory, ledger_id: int, first: int, count: int, within_bytes: int
    ) -> list[tuple[int, int]]:
        """(entry id, location) from *first* on, up to the first missing entry; see `Index.locations`."""
        located = directory.index.locations(ledger_id, first, count, within_bytes)
        for at, (entry_id, _) in enumerate(located):
            if entry_id != first + at:
                return located[:at]
        return located

    def tail(self, ledger_id: int) -> Tail:
        """The last entry that the index knows. Raises Corruption and OSError."""
        entry_id = self.directory_of(ledger_id).index.last_entry_id(ledger_id)
        return Tail(entry_id, None if entry_id < 0 else self.read(ledger_id, entry_id).entry)

    def entry_ids(self, ledger_id: int) -> list[int]:
        """All entries of the ledger in the index, ascending. May take long: see `some_entry_ids`."""
        entry_ids: list[int] = []
        first: int | None = 0
        while first is not None:
            some, first = self.some_entry_ids(ledger_id, first)
            entry_ids += some
        return entry_ids

    def some_entry_ids(self, ledger_id: int, first: int) -> tuple[list[int], int | None]:
        """Some entries of the ledger in the index from *first* on, ascending, and where to continue; None at the
        end."""
        located = self.directory_of(ledger_id).index.locations(ledger_id, first, LIST_ENTRIES)
        following = located[-1][0] + 1 if len(located) == LIST_ENTRIES else None
        return [entry_id for entry_id, _ in located], following

    def directory_of(self, ledger_id: int) -> LedgerDirectory:
        return self.directories[ledger_id % len(self.directories)]
