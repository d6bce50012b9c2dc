"""Entry logs of one ledger directory: append in runs, roll, seal, read back.

Rules:

1. `append` returns locations. They may be published after `sync` has returned.
2. A log whose append or sync failed gets no further entry and no seal (I39): the next append goes to a new log.
3. A log is sealed once: the map first, synced, then the header that points at it (I44).
4. Every read is checked: size word, ledger and entry id. A location that does not lead to its entry is Corruption,
   never "no such entry" (I42).
5. Ids only grow, also over restarts: an old log is never appended to.
6. Only the newest synced bytes stay in the page cache. Without a limit, logs that are written once and seldom read
   would evict everything else; and reused pages are much cheaper than new ones.
7. What is read ahead is said here and is little: the system's own read-ahead may be many MiB (a setting of the
   device), and where a device takes one request after the other a sync of the journal waits for all of it.
8. A large read of what is no longer in the page cache goes past it the first time: new pages are dear (rule 6), and a
   backlog is mostly read once. When it is read again, it goes through the page cache and stays there for others.
9. The flusher appends here. Compaction writes separate logs (`compacting.py`) and takes their ids from here.
"""

import contextlib
import posixpath
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, chain, groupby

from bookie.storage.entry_log import format as fmt
from magnetar_core.runtime.files import File, Files, read_file, replace_file
from magnetar_core.runtime.types import KIB, MIB, Buffer, Corruption

# Entries are joined into writes of about this size: one system call for many entries, in bounded memory.
WRITE_BYTES = 2 * MIB

_PAGE_BYTES = 4 * KIB

# Rule 7, for a ledger whose reads follow each other. A few reads of 100 entries of 1 KiB, or one read of large ones.
_READ_AHEAD_BYTES = 256 * KIB

# From this size on twice an average entry is too much to read for one whose size is not known: an eighth more it is.
_LARGE_ENTRY_BYTES = 64 * KIB

# Rule 8: smaller reads gain more by what is read ahead of them.
_PAST_CACHE_BYTES_MIN = 128 * KIB

# Rule 8: what was read is remembered in such pieces, a byte each, for so many logs: 1 MiB for 64 logs of 1 GiB.
_PIECE_BYTES = 64 * KIB
_REMEMBERED_LOGS_MAX = 64

# Ledgers whose last read is remembered; of more than that the oldest is forgotten and reads ahead one read later.
_READ_LEDGERS_MAX = 1_000

# Logs that are open for reading. Above the limit the one opened first is closed. A bookie with 64 GiB in use has 64
# logs.
OPEN_LOGS_MAX = 128
RETIRED_LOGS_MAX = 16


def file_name(log_id: int) -> str:
    return f"{log_id:x}.log"


def list_logs(files: Files, directory: str) -> list[int]:
    """Ids of the entry logs in *directory*, ascending."""
    ids = []
    for name in files.list(directory):
        stem, dot, suffix = name.partition(".")
        if dot and suffix == "log":
            with contextlib.suppress(ValueError):
                ids.append(int(stem, 16))
    return sorted(ids)


class SystemReadAhead:
    """What the readers of a directory will need next. Any thread uses it: at worst a range is read twice, or late."""

    def __init__(self) -> None:
        # Ledger id → where its last read began, and up to where the system was asked to read; both as locations.
        self._reads: dict[int, tuple[int, int]] = {}

    def note_read(self, ledger_id: int, start: int, end: int) -> tuple[int, int] | None:
        """The ledger was read from location *start* to *end*: (location, bytes) of what the system is to read now, if
        there is anything."""
        reads = self._reads
        before = reads.pop(ledger_id, None)
        advised, ahead = end, None
        if before is not None and before[0] < start <= before[1]:
            advised = max(before[1], end)
            if advised - end < _READ_AHEAD_BYTES // 2:
                ahead = (advised, end + _READ_AHEAD_BYTES - advised)
                advised = end + _READ_AHEAD_BYTES
        elif len(reads) >= _READ_LEDGERS_MAX:
            with contextlib.suppress(StopIteration, RuntimeError, KeyError):  # another thread was there first
                del reads[next(iter(reads))]
        reads[ledger_id] = (start, advised)
        return ahead


class ReadBefore:
    """Which parts of the logs of a directory were read past the page cache (rule 8). Used by any thread: at worst a
    part is read once more in the other way."""

    def __init__(self) -> None:
        self._logs: dict[int, bytearray] = {}

    def has(self, log_id: int, offset: int) -> bool:
        """Whether what begins there was read: the first piece that is wholly behind *offset*."""
        first, pieces = -(-offset // _PIECE_BYTES), self._logs.get(log_id, b"")
        return first < len(pieces) and bool(pieces[first])

    def mark(self, log_id: int, offset: int, end: int) -> None:
        """Note that the log was read from *offset* to *end*: the pieces that are wholly in there."""
        first, stop = -(-offset // _PIECE_BYTES), end // _PIECE_BYTES
        if first >= stop:
            return
        pieces = self._logs.get(log_id)
        if pieces is None:
            if len(self._logs) >= _REMEMBERED_LOGS_MAX:
                with contextlib.suppress(StopIteration, RuntimeError, KeyError):  # another thread was there first
                    del self._logs[next(iter(self._logs))]
            pieces = self._logs[log_id] = bytearray()
        if len(pieces) < stop:
            pieces.extend(bytes(stop - len(pieces)))
        pieces[first:stop] = b"\1" * (stop - first)


class EntryLogs:
    """The logs in one directory. One thread appends; any thread reads."""

    def __init__(self, files: Files, directory: str, log_bytes_max: int, page_cache_bytes: int = 0) -> None:
        """*page_cache_bytes* of the newest log stay in the page cache (rule 6); 0: the system decides."""
        self._files = files
        self.directory = directory
        self._log_bytes_max = log_bytes_max
        self._page_cache_bytes = page_cache_bytes
        self._uncached_to = 0
        self._file: File | None = None
        self._log_id = self._newest_id()
        self._offset = 0
        self._bytes_of_ledgers: dict[int, int] = {}
        self._open: dict[int, File] = {}
        self._retired: deque[File] = deque()
        self._read_ahead = SystemReadAhead()
        self._read_before = ReadBefore()
        self._opening = threading.Lock()
        self._numbering = threading.Lock()
        self.current_log_id: int | None = None
        """The log that takes entries and must not be removed; None if the next append begins one."""

    def closed_logs(self) -> list[int]:
        """Logs that take no entries any more. Call it on the flusher's thread: entries of a flush under way are not in
        the index yet, so its logs would look dead."""
        return [log_id for log_id in list_logs(self._files, self.directory) if log_id != self.current_log_id]

    def next_log_id(self) -> int:
        """An id that no log of this directory had. Any thread. Raises OSError."""
        with self._numbering:
            log_id = self._log_id + 1
            if log_id > fmt.LOG_ID_MAX:
                raise OSError(f"entry log ids are used up in {self.directory}")
            replace_file(self._files, posixpath.join(self.directory, "lastId"), f"{log_id:x}\n".encode())
            self._log_id = log_id
            return log_id

    def remove(self, log_id: int) -> File | None:
        """Remove a closed log, durably. Returns its open file. The caller closes it when no reader can be using it
        any more; the disk space is free only then. Raises OSError."""
        assert log_id != self.current_log_id, f"log {log_id:x} takes entries"
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(posixpath.join(self.directory, file_name(log_id)))
        # After its name: a reader that came in between would open it again, and nobody would close that.
        with self._opening:
            file = self._open.pop(log_id, None)
        self._files.sync_directory(self.directory)
        return file

    def append(self, entries: Sequence[tuple[int, int, Buffer]]) -> list[tuple[int, int, int]]:
        """Append (ledger id, entry id, entry) in this order; return (ledger id, entry id, location).

        After an OSError none of the entries may be published.
        """
        locations: list[tuple[int, int, int]] = []
        sizes = [fmt.SIZE.size + len(entry) for _, _, entry in entries]
        starts = list(accumulate(sizes, initial=0))
        first = 0
        try:
            while first < len(entries):
                if self._file is None or self._offset + sizes[first] > self._log_bytes_max:
                    self._roll()
                # As many as fit into the log and one write; at least one, however large.
                room = min(self._log_bytes_max - self._offset, WRITE_BYTES)
                stop = max(bisect_right(starts, starts[first] + room) - 1, first + 1)
                self._append_run(entries[first:stop], sizes[first:stop], locations)
                first = stop
        except OSError:
            self._abandon()
            raise
        return locations

    def _append_run(
        self, entries: Sequence[tuple[int, int, Buffer]], sizes: Sequence[int], locations: list[tuple[int, int, int]]
    ) -> None:
        """Write *entries*, which take *sizes* bytes in the log, and add their *locations*. Raises OSError.

        The loops run inside built-in functions: that takes a third of the time of a Python loop over the entries.
        """
        assert self.current_log_id is not None
        ledger_ids, entry_ids, bodies = zip(*entries, strict=True)
        start = self.current_log_id << 32 | self._offset + fmt.SIZE.size
        locations.extend(zip(ledger_ids, entry_ids, accumulate(sizes, initial=start), strict=False))
        ledger_bytes = self._bytes_of_ledgers
        at = 0
        for ledger_id, same in groupby(ledger_ids):
            count = sum(1 for _ in same)
            ledger_bytes[ledger_id] = ledger_bytes.get(ledger_id, 0) + sum(sizes[at : at + count])
            at += count
        heads = map(fmt.SIZE.pack, map(len, bodies))
        self._write(list(chain.from_iterable(zip(heads, bodies, strict=True))), sum(sizes))

    def sync(self) -> None:
        """Return when everything appended survives a power cut. Raises OSError (rule 2)."""
        if self._file is not None:
            try:
                self._file.sync()
                self._forget(self._offset - self._page_cache_bytes)
            except OSError:
                self._abandon()
                raise

    def end_log(self) -> None:
        """Take no more entries into the open log, so that its file does not change any more. On the flusher's thread.
        A disk that takes nothing more leaves it without its map, as after a crash."""
        if self._file is not None:
            try:
                self._seal()
            except OSError:
                self._abandon()

    def close(self) -> None:
        """Seal the open log and close all files."""
        if self._file is not None:
            self._seal()
        with self._opening:
            for file in (*self._open.values(), *self._retired):
                file.close()
            self._open.clear()
            self._retired.clear()

    # -- reading

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """The entry at *location*. Raises Corruption (rule 4) and OSError."""
        return self._read_from(fmt.SIZE.size, location, ledger_id, entry_id)

    def _read_from(self, skipped: int, location: int, ledger_id: int, entry_id: int) -> bytes:
        """The record {size (4), entry} at *location* without its first *skipped* bytes, at most its size."""
        log_id, offset = fmt.split_location(location)
        file = self._reader(log_id)
        start = offset - fmt.SIZE.size
        head = file.read_at(start, fmt.SIZE.size + 4 * 1024)
        stop = fmt.SIZE.size + self._check(head, log_id, offset, ledger_id, entry_id)
        if len(head) >= stop:
            return head[skipped:stop]
        # The head is read again: that costs less than to copy the rest of a large entry behind it.
        if self._goes_past_cache(log_id, start, stop):
            record = file.read_once_at(start + skipped, stop - skipped)
            self._read_before.mark(log_id, start, start + stop)
        else:
            record = file.read_at(start + skipped, stop - skipped)
        if len(record) < stop - skipped:
            problem = f"a record of {stop - fmt.SIZE.size} bytes is cut short"
            raise self._damage(log_id, offset, ledger_id, entry_id, problem)
        return record

    def read_run(self, ledger_id: int, wanted: Sequence[tuple[int, int]], bytes_max: int) -> list[tuple[int, bytes]]:
        """(entry id, entry) for as many of *wanted* (entry id, location) as follow each other in one log.

        At least the first entry; the others as far as they are within *bytes_max* of it, with one read. Raises
        Corruption and OSError for the first entry; damage after it ends the run.
        """
        data, spans = self._read_spans(ledger_id, wanted, bytes_max)
        return [(entry_id, data[start:stop]) for entry_id, start, stop in spans]

    def read_records(
        self, ledger_id: int, wanted: Sequence[tuple[int, int]], bytes_max: int
    ) -> tuple[list[int], list[Buffer]]:
        """Like `read_run`, but in the form of the log: {size (4), entry} one after the other.

        Returns where each of them ends, counted in bytes from the start of the first, and the buffers.
        """
        data, spans = self._read_spans(ledger_id, wanted, bytes_max)
        buffers: list[Buffer] = []
        view = memoryview(data)
        ends: list[int] = []
        total = 0
        first = last = spans[0][1] - fmt.SIZE.size
        for _, start, stop in spans:
            if start - fmt.SIZE.size != last:  # there are other bytes between them
                buffers.append(view[first:last])
                first = start - fmt.SIZE.size
            last = stop
            total += stop - start + fmt.SIZE.size
            ends.append(total)
        buffers.append(view[first:last])
        return ends, buffers

    def _read_spans(
        self, ledger_id: int, wanted: Sequence[tuple[int, int]], bytes_max: int
    ) -> tuple[bytes, list[tuple[int, int, int]]]:
        """Bytes of a log, and (entry id, start, stop) of the entries in them: see `read_run`."""
        entry_id, location = wanted[0]
        log_id, first_offset = fmt.split_location(location)
        # Entries must be in the same log and before this: locations of one log differ in their lower half only.
        limit = location + bytes_max
        count, last = 1, location
        for _, following in wanted[1:]:
            if not last < following < limit or following >> 32 != log_id:
                break
            count, last = count + 1, following
        if count == 1:
            return self._read_span(ledger_id, entry_id, location)
        # The size of the last entry is not known: it is included if it is not much larger than the others.
        span = last - location
        average = span // (count - 1)
        last_bytes = 2 * average if average < _LARGE_ENTRY_BYTES else average + average // 8
        file = self._reader(log_id)
        begin, size = first_offset - fmt.SIZE.size, span + max(last_bytes, 4096)
        past_cache = self._goes_past_cache(log_id, begin, size)
        data = file.read_once_at(begin, size) if past_cache else file.read_at(begin, size)
        end = len(data)
        ahead = None if past_cache else self._read_ahead.note_read(ledger_id, location, location + end)
        if ahead is not None:
            file.will_need(fmt.split_location(ahead[0])[1], ahead[1])
        spans: list[tuple[int, int, int]] = []
        head = fmt.RECORD_HEAD.unpack_from
        for entry_id, following in wanted[:count]:
            at = following - location
            start = at + fmt.SIZE.size
            if start + fmt.ENTRY_BYTES_MIN <= end:
                size, found_ledger_id, found_entry_id = head(data, at)
                stop = start + size
                if (
                    found_ledger_id == ledger_id
                    and found_entry_id == entry_id
                    and size >= fmt.ENTRY_BYTES_MIN
                    and stop <= end
                ):
                    spans.append((entry_id, start, stop))
                    continue
            if spans:
                break
            # The first entry is too large for this read, or damaged: `_read_span` finds out which.
            return self._read_span(ledger_id, entry_id, location)
        if past_cache:  # not the last entry: it may be too much for the caller, who then asks for it again
            self._read_before.mark(log_id, begin, begin + spans[-1][1] - fmt.SIZE.size)
        return data, spans

    def _goes_past_cache(self, log_id: int, offset: int, size_bytes: int) -> bool:
        """Whether this read of a log does (rule 8)."""
        if size_bytes < _PAST_CACHE_BYTES_MIN or not self._page_cache_bytes:
            return False
        if log_id == self.current_log_id and offset + size_bytes > self._uncached_to:
            return False
        return not self._read_before.has(log_id, offset)

    def _read_span(self, ledger_id: int, entry_id: int, location: int) -> tuple[bytes, list[tuple[int, int, int]]]:
        """Does the same as `_read_spans`, for a single entry of any size."""
        record = self._read_from(0, location, ledger_id, entry_id)
        return record, [(entry_id, fmt.SIZE.size, len(record))]

    def ledgers_map(self, log_id: int) -> dict[int, int]:
        """Ledger id → bytes of a sealed log. Raises Corruption if it is not sealed or its map is damaged."""
        file = self._reader(log_id)
        header = fmt.decode_header(file.read_at(0, fmt.HEADER_BYTES), file.path)
        if header.map_offset == 0:
            raise Corruption(f"{file.path}: not sealed")
        ledgers = fmt.decode_map(file.read_at(header.map_offset, self.file_bytes(log_id)), header, file.path)
        if fmt.HEADER_BYTES + sum(ledgers.values()) != header.map_offset:
            raise Corruption(f"{file.path} offset {header.map_offset}: the map does not add up to what stands before")
        return ledgers

    def file_bytes(self, log_id: int) -> int:
        # Open the file again: a reader's open file may have been opened while the log still grew.
        file = self._files.open(posixpath.join(self.directory, file_name(log_id)))
        try:
            return file.size_bytes()
        finally:
            file.close()

    def has_entries(self, log_id: int) -> bool:
        """Whether the log is longer than its header; True if it cannot be read."""
        try:
            return self.file_bytes(log_id) > fmt.HEADER_BYTES
        except OSError:
            return True

    def scan(self, log_id: int) -> fmt.LogScan:
        """(offset, size, ledger id, entry id) of each entry in a log."""
        file = self._reader(log_id)
        fmt.decode_header(file.read_at(0, fmt.HEADER_BYTES), file.path)
        return fmt.scan(file.read_at, self.file_bytes(log_id))

    def _check(self, head: bytes, log_id: int, offset: int, ledger_id: int, entry_id: int) -> int:
        if len(head) < fmt.SIZE.size + fmt.ENTRY_BYTES_MIN:
            raise self._damage(log_id, offset, ledger_id, entry_id, "the file ends before it")
        size, found_ledger_id, found_entry_id = fmt.RECORD_HEAD.unpack_from(head)
        if size < fmt.ENTRY_BYTES_MIN or (found_ledger_id, found_entry_id) != (ledger_id, entry_id):
            raise self._damage(
                log_id,
                offset,
                ledger_id,
                entry_id,
                f"found {size} bytes of ledger {found_ledger_id} entry {found_entry_id}",
            )
        return int(size)

    def _damage(self, log_id: int, offset: int, ledger_id: int, entry_id: int, problem: str) -> Corruption:
        path = posixpath.join(self.directory, file_name(log_id))
        return Corruption(f"{path} offset {offset}: expected ledger {ledger_id} entry {entry_id}, {problem}")

    def _reader(self, log_id: int) -> File:
        file = self._open.get(log_id)
        if file is None:
            with self._opening:
                file = self._open.get(log_id)
                if file is None:
                    path = posixpath.join(self.directory, file_name(log_id))
                    file = self._files.open(path)
                    file.without_read_ahead()
                    file.prepare_read_once()
                    if len(self._open) >= OPEN_LOGS_MAX:
                        self._retire(next(iter(self._open)))
                    self._open[log_id] = file
        return file

    def _retire(self, log_id: int) -> None:
        # It is not closed at once, because another thread may be about to read from it.
        self._retired.append(self._open.pop(log_id))
        if len(self._retired) > RETIRED_LOGS_MAX:
            self._retired.popleft().close()

    # -- writing

    def _newest_id(self) -> int:
        newest = -1
        logs = list_logs(self._files, self.directory)
        if logs:
            newest = logs[-1]
        path = posixpath.join(self.directory, "lastId")
        if self._files.exists(path):
            text = read_file(self._files, path).decode("ascii", "replace").strip()
            try:
                newest = max(newest, int(text, 16))
            except ValueError:
                if not logs:
                    raise Corruption(f"{path}: {text!r} is not a hexadecimal log id") from None
        return newest

    def _write(self, parts: list[Buffer], size: int) -> None:
        assert self._file is not None
        at = self._file.append([b"".join(parts)])
        assert at == self._offset, f"{self._file.path}: wrote at {at}, expected {self._offset}"
        self._offset += size

    def _forget(self, end: int) -> None:
        """Drop synced pages before *end* from the page cache (rule 6)."""
        end -= end % _PAGE_BYTES
        if self._page_cache_bytes and self._file is not None and end > self._uncached_to:
            self._file.forget(self._uncached_to, end - self._uncached_to)
            self._uncached_to = end

    def _roll(self) -> None:
        """Seal the present log, if there is one, and begin the next."""
        if self._file is not None:
            self._seal()
        log_id = self.next_log_id()
        file = self._files.create(posixpath.join(self.directory, file_name(log_id)))
        self.current_log_id = log_id
        self._file = file
        file.append([fmt.encode_header()])
        self._offset = fmt.HEADER_BYTES
        self._uncached_to = 0
        self._bytes_of_ledgers = {}
        self._files.sync_directory(self.directory)

    def _seal(self) -> None:
        assert self._file is not None
        map_offset = self._file.append([fmt.encode_map(self._bytes_of_ledgers)])
        self._file.sync()
        self._file.write_at(fmt.SEAL_OFFSET, fmt.encode_seal(map_offset, len(self._bytes_of_ledgers)))
        self._file.sync()
        self._forget(map_offset)
        self._file.close()
        self._file = self.current_log_id = None

    def _abandon(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = self.current_log_id = None
