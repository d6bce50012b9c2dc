"""The journal's writing end: one thread, one write and one fdatasync for all that waits.

Rules:

1. A group is reported after its fdatasync has returned; a group in which nobody asked for that, after its write.
2. A write or sync that fails poisons the journal for good (I38, I39): nothing is
   reported as done any more and the bookie goes down.
3. No space is the exception: the group is cut off again, so that the end of the file is known, and reported as refused;
   the next group may find room. If even the cutting off fails, rule 2.
4. A file is created, with its name in the directory, before anything in it is reported.
5. What was put before the loop heard of a refusal is refused too: the refused group may have held the key of the
   ledger (LEDGER_KEY) on which it relies, and replay passes over entries without one.
6. The mark moves behind whole groups only, never into one that may be cut off again.
7. Nobody reads a journal but a restart, so what is synced does not stay in the page cache (Apache's
   journalRemoveFromPageCache). New pages are what a write costs most: at 256 KiB a group, 600 MB took 0.26 s of the
   kernel's time instead of 0.9 to 1.9 s.
"""

import contextlib
import errno
import posixpath
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from bookie.latency import GroupTimes, JournalLatency
from bookie.storage.journal import format as fmt
from bookie.storage.journal.format import Mark
from magnetar_core.runtime.clock import Clock, no_clock
from magnetar_core.runtime.files import File, Files
from magnetar_core.runtime.group_worker import GroupWorker
from magnetar_core.runtime.observe import SlowOperations
from magnetar_core.runtime.types import GIB, KIB, MIB, Buffer, MagnetarError

# A group is sealed and written in slices of about this size: one slice is joined in memory at a time.
SLICE_BYTES = 4 * MIB

PAGE_BYTES = 4 * KIB

Done: TypeAlias = Callable[[Any, Exception | None], None]

Item: TypeAlias = tuple[list[Buffer], bool, Done, Any]
"""records as length word, body, length word, body …; whether it must be on disk; what to call on the
loop, with this argument and None or the refusal"""


_Put: TypeAlias = tuple[int, Item]
"""how many refusals the loop had been told of when it put the item"""


class NoSpace(MagnetarError):
    """The disk under the journal is full; the records were not written."""


class JournalFailed(MagnetarError):
    """The journal cannot be written any more; what was not acknowledged may be lost."""


@dataclass(frozen=True, slots=True)
class JournalSettings:
    version: int = 6
    # 4 KiB, as Pulsar has it: a group never shares a sector with one that is durable already, on disks
    # with large sectors too. (Apache's default is 512.)
    alignment_bytes: int = 4 * KIB
    file_bytes_max: int = 2 * GIB
    preallocation_bytes: int = 16 * MIB
    sync: bool = True
    remove_from_page_cache: bool = True


def file_name(file_id: int) -> str:
    return f"{file_id:x}.txn"


def list_files(files: Files, directory: str) -> list[int]:
    """Ids of the journal files in *directory*, rising."""
    ids = []
    for name in files.list(directory):
        stem, dot, suffix = name.partition(".")
        if dot and suffix == "txn":
            with contextlib.suppress(ValueError):
                ids.append(int(stem, 16))
    return sorted(ids)


class JournalWriter:
    """Writes groups to the newest file. Used by one thread; `mark` may be read by any."""

    def __init__(self, files: Files, directory: str, settings: JournalSettings, first_id: int) -> None:
        self._files = files
        self._directory = directory
        self._settings = settings
        self._file: File
        self._allocated = 0
        self._durable = 0
        self.mark = Mark(first_id, fmt.HEADER_BYTES)
        """Behind the last group that was written."""
        self.written_bytes = 0
        self.syncs = 0
        self.write_s = 0.0
        """How long writing and syncing took so far, in seconds."""
        self.sync_s = 0.0
        self._create(first_id)

    def write(self, items: Sequence[Item], now: Callable[[], float] = no_clock) -> NoSpace | None:
        """Write the records of *items* and make them durable where asked; *now* measures `write_s` and `sync_s`.

        Raises OSError: then nothing may be written any more.
        """
        group: list[Buffer] = []
        must_sync = False
        for parts, sync, _, _ in items:
            group += parts
            must_sync = must_sync or sync
        if group:
            began = now()
            refusal = self._write(group)
            self.write_s += now() - began
            if refusal is not None:
                return refusal
        if must_sync:
            began = now()
            self._sync()
            self.sync_s += now() - began
        if self.mark.offset > self._settings.file_bytes_max:
            self._roll()
        return None

    def close(self) -> None:
        self._sync()
        self._file.close()

    def _write(self, group: list[Buffer]) -> NoSpace | None:
        before = self.mark
        end = before.offset
        try:
            for part in (group,) if sum(map(len, group)) <= SLICE_BYTES else _slices(group):
                end = self._write_slice(part, end)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._file.truncate(before.offset)  # rule 3; raises: rule 2
            self._file.sync()
            self._durable = self._allocated = before.offset
            return NoSpace(f"{self._file.path}: {error.strerror}")
        self.mark = Mark(before.file_id, end)  # rule 6
        return None

    def _write_slice(self, records: list[Buffer], start: int) -> int:
        """Write *records* with their seal at *start*; return where the next slice goes."""
        file_id = self.mark.file_id
        body = b"".join(records)
        seal = fmt.seal_of(file_id, start, self._durable, body, self._settings.alignment_bytes)
        end = start + len(body) + len(seal)
        if end > self._allocated:
            self._preallocate(end)
        self._file.write_at(start, body, seal)
        self.written_bytes += end - start
        return end

    def _sync(self) -> None:
        if self._durable < self.mark.offset:
            if self._settings.sync:
                self._file.sync()
                if self._settings.remove_from_page_cache:
                    # From the start of its page on: only whole ones go.
                    start = self._durable // PAGE_BYTES * PAGE_BYTES
                    self._file.forget(start, self.mark.offset - start)  # rule 7
            self.syncs += 1
            self._durable = self.mark.offset

    def _preallocate(self, end: int) -> None:
        """Move the end of the file ahead, so that a sync rarely has a new size to record."""
        step = self._settings.preallocation_bytes
        if step == 0:
            return
        self._allocated = (end // step + 1) * step
        self._file.write_at(self._allocated - fmt.ALIGNMENT_MIN, bytes(fmt.ALIGNMENT_MIN))

    def _roll(self) -> None:
        self._sync()
        full = self._file
        try:
            self._create(self.mark.file_id + 1)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return  # the full one can grow a little more
        full.close()

    def _create(self, file_id: int) -> None:
        path = posixpath.join(self._directory, file_name(file_id))
        file = self._files.create(path)
        try:
            file.write_at(0, fmt.encode_header(self._settings.version))
            file.sync()
            self._files.sync_directory(self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                file.close()
                self._files.remove(path)
            raise
        self._file = file
        self._allocated = self._durable = fmt.HEADER_BYTES
        self.mark = Mark(file_id, fmt.HEADER_BYTES)


def _slices(group: list[Buffer]) -> list[list[Buffer]]:
    """*group* in pieces of about SLICE_BYTES, cut between records."""
    pieces: list[list[Buffer]] = [[]]
    size = 0
    for at in range(0, len(group), 2):
        if size > SLICE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1] += group[at : at + 2]
        size += len(group[at + 1])
    return pieces


class Journal:
    """The loop's side of a writer: `put` queues, the callbacks of a group come in one turn of the loop."""

    def __init__(
        self,
        writer: JournalWriter,
        name: str,
        on_failure: Callable[[BaseException], None],
        on_no_space: Callable[[NoSpace], None],
        *,
        clock: Clock | None = None,
        latency: JournalLatency | None = None,
        slow: SlowOperations | None = None,
    ) -> None:
        """*latency* and *slow* are told how long the groups take, if there is a *clock*."""
        self._writer = writer
        self._name = name
        self._now: Callable[[], float] = no_clock if clock is None else clock.monotonic
        self._is_timed = clock is not None
        self.latency = JournalLatency() if latency is None else latency
        self._slow = slow
        # When each item was put that is not reported yet, in order; used on the loop only.
        self._put_s: deque[float] = deque()
        self._on_failure = on_failure
        self._on_no_space = on_no_space
        # What became of the groups that were worked on and not reported yet, in order: for each so many items, and
        # their refusal; and how long it took.
        self._outcomes: deque[tuple[list[tuple[int, NoSpace | None]], GroupTimes]] = deque()
        self._worker: GroupWorker[_Put] = GroupWorker(name, self._work, self._report)
        self._failed = False
        # Rule 5. The loop counts the refusals that it was told of and stamps what it puts with their number; the
        # thread refuses what has a number up to that of the last group that it refused.
        self._refusals_told = 0
        self._refused_number = -1
        self._refusal: NoSpace | None = None

    def start(self) -> None:
        self._worker.start()

    async def stop(self) -> None:
        """Write what was put, then close the file."""
        await self._worker.stop()
        if self._worker.error is None:
            self._writer.close()

    @property
    def mark(self) -> Mark:
        """Every record before it was put before now."""
        return self._writer.mark

    @property
    def writer(self) -> JournalWriter:
        return self._writer

    def put(self, records: list[Buffer], must_sync: bool, done: Done, argument: Any) -> None:
        """Write *records* (length words and bodies in turn), then call *done(argument, refusal)* on the loop.

        Not called any more after the journal has failed.
        """
        if self._is_timed:
            self._put_s.append(self._now())
        self._worker.put([(self._refusals_told, (records, must_sync, done, argument))])

    def _work(self, puts: Sequence[_Put]) -> None:
        writer = self._writer
        taken_s = self._now()
        write_s, sync_s, syncs, written = writer.write_s, writer.sync_s, writer.syncs, writer.written_bytes
        late = 0
        while late < len(puts) and puts[late][0] <= self._refused_number:
            late += 1
        outcome: list[tuple[int, NoSpace | None]] = [(late, self._refusal)] if late else []
        if late < len(puts):
            refusal = writer.write([item for _, item in (puts[late:] if late else puts)], self._now)
            if refusal is not None:
                self._refused_number, self._refusal = puts[-1][0], refusal
            outcome.append((len(puts) - late, refusal))
        times = GroupTimes(
            taken_s,
            self._now(),
            writer.write_s - write_s,
            writer.sync_s - sync_s,
            writer.syncs > syncs,
            writer.written_bytes - written,
        )
        self._outcomes.append((outcome, times))

    def _report(self, puts: Sequence[_Put], error: BaseException | None) -> None:
        if error is not None:
            if not self._failed:
                self._failed = True
                self._on_failure(error)
            return
        at = 0
        outcome, times = self._outcomes.popleft()
        if self._is_timed:
            self._measure(puts, outcome, times)
        for count, refusal in outcome:
            if refusal is not None:
                self._refusals_told += 1
                self._on_no_space(refusal)
            for _, (_, _, done, argument) in puts[at : at + count]:
                done(argument, refusal)
            at += count

    def _measure(self, puts: Sequence[_Put], outcome: Sequence[tuple[int, NoSpace | None]], times: GroupTimes) -> None:
        now, latency = self._now(), self.latency
        first_s = self._put_s[0]
        entries = at = 0
        for count, refusal in outcome:
            for _, (records, _, _, _) in puts[at : at + count]:
                latency.put(self._put_s.popleft(), times, now, len(records) // 2, refusal is None)
                entries += len(records) // 2
            at += count
        latency.grouped(times, now, entries)
        slow = self._slow
        if slow is not None and now - first_s > slow.threshold_s:
            slow.report(
                "journal group",
                now - first_s,
                {
                    "queue": times.taken_s - first_s,
                    "write": times.write_s,
                    "sync": times.sync_s,
                    "report": now - times.ended_s,
                },
                thread=self._name,
                entries=entries,
                bytes=times.written_bytes,
            )
