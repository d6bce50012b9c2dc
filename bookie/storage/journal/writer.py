"""Writes the journal: one thread, with one write and one fdatasync for all waiting records.

Rules:

1. A group is reported after its fdatasync has returned; a group in which no item must be synced, after its write.
2. A write or sync that fails ends the journal for good (I38, I39): nothing is reported as written any more, and the
   bookie stops.
3. A disk that takes nothing more (it is full, or read-only) is the exception: the file is truncated to its end before
   the group, and the group is reported as refused; the next group may find room. A file that is read-only cannot be
   truncated, so groups are refused until it could be. If the truncation fails for another reason, rule 2 holds.
4. A file is created, with its name in the directory durable, before anything in it is reported.
5. Items that were put before the loop learnt of a refusal are refused, too: the refused group may have held their
   ledger's key (LEDGER_KEY), and replay skips entries without a key.
6. The mark moves to the end of whole groups only, never into one that may be truncated; what others get of it is
   synced, and is noted behind each sync (PLACE_FILE): a journal that ends before it was cut by somebody
   (`bookie.storage.journal.replay`, rule 4).
7. A journal is read only by a restart, so synced pages do not stay in the page cache (Apache's
   journalRemoveFromPageCache). New pages are the largest cost of a write: at 256 KiB a group, 600 MB took 0.26 s of
   kernel time instead of 0.9 to 1.9 s.
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
from magnetar_core.runtime.files import UNWRITABLE, File, Files
from magnetar_core.runtime.group_worker import GroupWorker
from magnetar_core.runtime.observe import SlowOperations
from magnetar_core.runtime.types import GIB, KIB, MIB, Buffer, MagnetarError

# A group is sealed and written in slices of about this size: one slice is joined in memory at a time.
SLICE_BYTES = 4 * MIB

PAGE_BYTES = 4 * KIB

Done: TypeAlias = Callable[[Any, Exception | None], None]

Item: TypeAlias = tuple[list[Buffer], bool, Done, Any]
"""(records as length word, body, length word, body …; whether they must be synced; the call to make on the loop; its
first argument). Its second argument is None or the refusal."""


_Put: TypeAlias = tuple[int, Item]
"""(the number of refusals that the loop had learnt of when it put the item, the item); see rule 5"""


class NoSpace(MagnetarError):
    """The disk under the journal is full or read-only; the records were not written."""


class JournalFailed(MagnetarError):
    """The journal cannot be written any more; entries that were not acknowledged may be lost."""


@dataclass(frozen=True, slots=True)
class JournalSettings:
    version: int = 6
    # 4 KiB as in Pulsar: also on disks with large sectors a group never shares a sector with one that is durable
    # already. (BookKeeper's default is 512.)
    alignment_bytes: int = 4 * KIB
    file_bytes_max: int = 2 * GIB
    preallocation_bytes: int = 16 * MIB
    sync: bool = True
    remove_from_page_cache: bool = True


def file_name(file_id: int) -> str:
    return f"{file_id:x}.txn"


def list_files(files: Files, directory: str) -> list[int]:
    """Ids of the journal files in *directory*, ascending."""
    ids = []
    for name in files.list(directory):
        stem, dot, suffix = name.partition(".")
        if dot and suffix == "txn":
            with contextlib.suppress(ValueError):
                ids.append(int(stem, 16))
    return sorted(ids)


class JournalWriter:
    """Writes groups to the newest file. Used by one thread; `mark` and `durable_mark` may be read by any."""

    def __init__(self, files: Files, directory: str, settings: JournalSettings, first_id: int) -> None:
        self._files = files
        self._directory = directory
        self._settings = settings
        self._file: File
        self._allocated = 0
        self._durable = 0
        self._is_cut = True
        """Whether nothing stands behind the mark that a write has left there (rule 3)."""
        self.mark = Mark(first_id, fmt.HEADER_BYTES)
        """The end of the last written group."""
        self.durable_mark = self.mark
        """The end of the last group that was synced."""
        self.written_bytes = 0
        self.syncs = 0
        self.write_s = 0.0
        """How long writing and syncing took since the start, in seconds."""
        self.sync_s = 0.0
        place = posixpath.join(directory, fmt.PLACE_FILE)
        self._place = files.open(place, writable=True) if files.exists(place) else files.create(place)
        self._create(first_id)

    def write(self, items: Sequence[Item], now: Callable[[], float] = no_clock) -> NoSpace | None:
        """Write the records of *items* and sync them if one of them must be; *now* measures `write_s` and `sync_s`.

        After an OSError nothing may be written any more (rule 2).
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
        self._place.close()

    def _write(self, group: list[Buffer]) -> NoSpace | None:
        before = self.mark
        end = before.offset
        try:
            if not self._is_cut:
                self._cut(before)
            for part in (group,) if sum(map(len, group)) <= SLICE_BYTES else _slices(group):
                end = self._write_slice(part, end)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            self._is_cut = False
            try:
                self._cut(before)
            except OSError as cutting:
                if cutting.errno != errno.EROFS:
                    raise
            return NoSpace(f"{self._file.path}: {error.strerror}")
        assert end >= before.offset, "the journal's mark went back"
        self.mark = Mark(before.file_id, end)  # rule 6
        return None

    def _cut(self, end: Mark) -> None:
        """Remove what stands behind *end* (rule 3)."""
        self._file.truncate(end.offset)
        self._file.sync()
        self._durable = self._allocated = end.offset
        self.durable_mark = end
        self._is_cut = True

    def _write_slice(self, records: list[Buffer], start: int) -> int:
        """Write *records* with their seal at *start*; return where the next slice begins."""
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
                    # The system drops whole pages only, so begin at the start of a page.
                    start = self._durable // PAGE_BYTES * PAGE_BYTES
                    self._file.forget(start, self.mark.offset - start)  # rule 7
            self.syncs += 1
            self._durable = self.mark.offset
            self._note_durable()

    def _note_durable(self) -> None:
        """All up to the mark is synced (rule 6)."""
        self.durable_mark = self.mark
        if self._settings.sync:
            with contextlib.suppress(OSError):  # then it has an older place, as after a power cut
                self._place.write_at(0, fmt.encode_place(self.mark))

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
            if error.errno not in UNWRITABLE:
                raise
            return  # the full file can grow a little more
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
        self._note_durable()


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
    """The loop's side of a writer: `put` queues records, and the calls of a group come in one turn of the loop."""

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
        """*latency* and *slow* get the duration of groups, if there is a *clock*."""
        self.writer = writer
        self._name = name
        self._now: Callable[[], float] = no_clock if clock is None else clock.monotonic
        self._is_timed = clock is not None
        self.latency = JournalLatency() if latency is None else latency
        self._slow = slow
        # When each unreported item was put, in order; used on the loop only.
        self._put_s: deque[float] = deque()
        self._on_failure = on_failure
        self._on_no_space = on_no_space
        # The outcomes of groups that were written and not reported yet, in order: (number of items, their refusal) for
        # each part of the group, and its times.
        self._outcomes: deque[tuple[list[tuple[int, NoSpace | None]], GroupTimes]] = deque()
        self._worker: GroupWorker[_Put] = GroupWorker(name, self._work, self._report)
        self._failed = False
        # Rule 5. The loop counts the refusals that it learnt of and stamps each put with their number. The thread
        # refuses puts with a number up to that of the last group that it refused.
        self._refusals_learnt = 0
        self._refused_number = -1
        self._refusal: NoSpace | None = None

    def start(self) -> None:
        self._worker.start()

    async def stop(self) -> None:
        """Write everything that was put, then close the file."""
        await self._worker.stop()
        if self._worker.error is None:
            self.writer.close()

    @property
    def mark(self) -> Mark:
        """The end of the last group that was synced; every record before it is in the journal."""
        return self.writer.durable_mark

    @property
    def waiting(self) -> int:
        """Items that the journal's thread has not taken yet."""
        return self._worker.waiting

    @property
    def unreported(self) -> int:
        """Items that are written, and wait for the loop to report them."""
        return sum(count for outcome, _ in self._outcomes.copy() for count, _ in outcome)

    def put(self, records: list[Buffer], must_sync: bool, done: Done, argument: Any) -> None:
        """Write *records* (length words and bodies in turn), then call *done(argument, refusal)* on the loop.

        *done* is not called after the journal has failed.
        """
        if self._is_timed:
            self._put_s.append(self._now())
        self._worker.put([(self._refusals_learnt, (records, must_sync, done, argument))])

    def _work(self, puts: Sequence[_Put]) -> None:
        writer = self.writer
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
                self._refusals_learnt += 1
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
