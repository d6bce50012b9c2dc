"""Compares the index of a serving bookie with its entry logs, and corrects it where it differs.

    garbage collection waits ──▶ marked REBUILDING ──▶ every ledger fenced ──▶ logs, the newest first: what the index
      lacks is put ──▶ locations: what leads nowhere is named ──▶ index synced ──▶ mark removed

Rules:

1. The mark is durable before anything is changed, and is removed when all changes are durable. If the work ends early
   (a stop, a crash, a full disk), the next start rebuilds the whole index (`bookie.maintenance.rebuild.offline`). That
   rebuild cannot use the old index: if it names logs that are gone, `needs_check` is set before the mark.
2. Ledgers that exist at the beginning are fenced: answers about them may have been wrong. Ledgers that are created
   later are not, because the index has all their entries.
3. The logs are those that exist between two flushes at the beginning, up to their length at that time. Entries that are
   appended later get their locations from their flush. Compaction adds and removes no log meanwhile.
4. A location that leads to its entry stays. An entry without one gets its place in the newest log that has it. Entries
   of ledgers that this bookie does not have were deleted, and stay deleted.
5. A record is put only if it has the digest of its ledger, if metadata has that digest: the record may be a torn write,
   or other bytes may look like a record by chance.
6. The flusher's thread puts locations, and only if the index is unchanged since it was compared: a flush in between has
   a newer location.
7. After damage in a log, entries may be missing if the log was sealed, because then all of it was synced, or if the
   index lacked other entries of it. Otherwise the damaged bytes were never acknowledged. If entries may be missing, the
   ledgers of rule 2 are in limbo until their copies were checked.
8. Adds wait only for short jobs of the flusher, as they do for compaction.
"""

import logging
import posixpath
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from bookie.jobs import JobThread
from bookie.maintenance.collector import GarbageCollector
from bookie.maintenance.rebuild.unreadable import note_unreadable
from bookie.maintenance.repair import codec_of
from bookie.maintenance.scrub_rules import problem_of
from bookie.serving.request_rules import RequestRules
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import file_name, list_logs
from bookie.storage.index import LOCATIONS, REBUILDING, IndexCorrupt
from bookie.storage.ledger_storage import LedgerDirectory, LedgerStorage
from bookie.storage.ledgers import Ledger
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.metadata.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.store import MetadataError, NoNode
from magnetar_core.bookkeeper.wire.entry import EntryCodec
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import Files
from magnetar_core.runtime.rate_limiter import RateLimiter
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Corruption, MagnetarError

log = logging.getLogger(__name__)

# Records that one job of the maintenance thread compares, at 4 µs each for the index, and locations that one job of the
# flusher puts at most.
_RECORDS: Final = 500

# Locations that one job of the maintenance thread checks.
_LOCATIONS: Final = 1_000

# Ledger rows that are encoded on the loop at a time: two milliseconds.
_ROWS: Final = 200

# Entries and locations a second: at some 10 µs each that is a fifth of a core. For bytes the limit of the scrub holds.
_ENTRIES_S: Final = 20_000

# The cost of a location that is only counted, as a share of one that is followed.
_LOCATION_SHARE: Final = 0.2

_REST_S: Final = 1.0

# Ledgers whose digests are cached. Few are enough: the entries of each flush are sorted by ledger.
_CODECS_MAX: Final = 1_000

# Problems that the status names; further ones are only counted.
_NAMED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class OnlineRebuildStatus:
    """The state of the rebuild under way, or the outcome of the last one. Times are wall-clock milliseconds."""

    is_running: bool
    phase: str
    """idle, waiting (for garbage collection), marking, fencing, logs, locations, finishing"""
    started_ms: int | None
    finished_ms: int | None
    rebuilds: int
    """Completed since the start."""
    logs: int
    logs_done: int
    ledgers: int
    ledgers_done: int
    """Ledgers whose locations were checked."""
    entries_looked_at: int
    entries_put_right: int
    """Entries whose location was missing or wrong."""
    entries_damaged: int
    """Records without a location that do not have the digest of their ledger. They get no location."""
    locations_lost: int
    """Locations that lead to no entry, and whose entry is in no log."""
    problem_count: int
    problems: tuple[str, ...]
    """Why entries may be missing; the first hundred."""
    failed: str | None
    """Why the last rebuild ended early; the next start then rebuilds the index."""


class _Missing(NamedTuple):
    """A record to which no location leads."""

    ledger_id: int
    entry_id: int
    location: int
    seen: int
    """The location in the index instead; 0: none."""


class _Log(NamedTuple):
    """A log as it was at the beginning."""

    log_id: int
    scan: fmt.LogScan | None
    """For the log that takes entries: its scan, made between two flushes."""


class _Snapshot(NamedTuple):
    """The logs of a ledger directory at the beginning, newest first, and a location after all of them."""

    logs: list[_Log]
    end: int


# A location after every possible one.
_NO_END: Final = 2**63 - 1


class _Marking:
    """The mark REBUILDING of a ledger directory (rule 1)."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._database = posixpath.join(directory, LOCATIONS)
        self._path = posixpath.join(self._database, REBUILDING)

    def put(self) -> None:
        """Durably. Raises OSError."""
        self._files.make_directories(self._database)
        if not self._files.exists(self._path):
            self._files.create(self._path).close()
        self._files.sync_directory(self._database)

    def remove(self) -> None:
        """Durably. Raises OSError."""
        with suppress(FileNotFoundError):
            self._files.remove(self._path)
        self._files.sync_directory(self._database)


class OnlineRebuild:
    """The rebuild of one bookie. Used on the loop."""

    def __init__(
        self,
        bytes_s: int,
        metadata: LedgerStore,
        files: Files,
        storage: LedgerStorage,
        rules: RequestRules,
        cache: WriteCache,
        collector: GarbageCollector,
        flusher: JobThread,
        maintenance: JobThread,
        clock: Clock,
        *,
        doubt: Callable[[Collection[int]], Awaitable[None]],
        scrub: Callable[[], None],
        on_index_corrupt: Callable[[int, Exception], None],
        has_failed: Callable[[], bool],
    ) -> None:
        """*doubt(ledger ids)* puts ledgers into limbo until their copies were checked, now and after restarts; *scrub*
        starts a pass over all entries. *has_failed*: the bookie is about to stop, so the mark must stay."""
        self._metadata = metadata
        self._files = files
        self._storage = storage
        self._rules = rules
        self._ledgers = rules.ledgers
        self._cache = cache
        self._collector = collector
        self._flusher = flusher
        self._maintenance = maintenance
        self._clock = clock
        self._doubt = doubt
        self._scrub = scrub
        self._on_index_corrupt = on_index_corrupt
        self._has_failed = has_failed
        self._byte_limiter = RateLimiter(bytes_s)
        self._entry_limiter = RateLimiter(_ENTRIES_S)
        self._tasks = Tasks("rebuild")
        self._stopping = False
        self._codecs: dict[int, EntryCodec | None] = {}
        self._is_running = False
        self._phase = "idle"
        self._started_ms: int | None = None
        self._finished_ms: int | None = None
        self._rebuilds = 0
        self._failed: str | None = None
        self._reset()

    def _reset(self) -> None:
        self._snapshots: dict[str, _Snapshot] = {}
        self._unreadable: dict[str, list[str]] = {directory.path: [] for directory in self._storage.directories}
        self._logs = self._logs_done = 0
        self._fenced: list[int] = []
        self._ledgers_done = 0
        self._looked_at = self._put_right = self._damaged = self._lost = 0
        self._problem_count = 0
        self._problems: list[str] = []
        self._was_put_in_doubt = False
        # Ledger → number of locations that lead to an entry of a log that was read. If the index has as many locations,
        # all of them are right.
        self._leading: dict[int, int] = {}
        self._codecs.clear()

    def status(self) -> OnlineRebuildStatus:
        return OnlineRebuildStatus(
            is_running=self._is_running,
            phase=self._phase,
            started_ms=self._started_ms,
            finished_ms=self._finished_ms,
            rebuilds=self._rebuilds,
            logs=self._logs,
            logs_done=self._logs_done,
            ledgers=len(self._fenced),
            ledgers_done=self._ledgers_done,
            entries_looked_at=self._looked_at,
            entries_put_right=self._put_right,
            entries_damaged=self._damaged,
            locations_lost=self._lost,
            problem_count=self._problem_count,
            problems=tuple(self._problems),
            failed=self._failed,
        )

    def trigger(self) -> None:
        """Begin a rebuild, unless one is under way."""
        if self._is_running or self._stopping:
            return
        self._begin()  # before the task runs, so that the status shows it at once
        self._tasks.spawn(self.run(), "rebuild")

    async def stop(self) -> None:
        """End the rebuild; the mark stays (rule 1)."""
        self._stopping = True
        await self._tasks.cancel()

    async def run(self) -> None:
        """One rebuild from beginning to end. Does not raise."""
        if not self._is_running:
            self._begin()
        ended = False
        try:
            await self._rebuild()
            ended = True
        except IndexCorrupt as error:
            self._end_early(error)
            self._on_index_corrupt(self._fenced[0] if self._fenced else 0, error)
        except (OSError, MagnetarError) as error:
            self._end_early(error)
        finally:
            if not ended and self._failed is None:
                self._failed = "it was stopped"
            self._is_running = False
            self._phase = "idle"
            self._finished_ms = self._clock.wall_ms()
            self._leading.clear()
            self._snapshots.clear()
            self._collector.release()
        if ended:
            self._rebuilds += 1
            self._tell()

    def _begin(self) -> None:
        self._is_running = True
        self._phase = "waiting"
        self._reset()
        self._started_ms = self._clock.wall_ms()
        self._finished_ms = self._failed = None

    def _end_early(self, error: Exception) -> None:
        self._failed = str(error)
        log.error("the rebuild of the index ends early, the next start repeats it: %s", error)

    def _tell(self) -> None:
        log.warning(
            "the index was compared with %d logs: %d entries looked at, %d put right, %d locations lead nowhere",
            self._logs,
            self._looked_at,
            self._put_right,
            self._lost,
        )

    async def _rebuild(self) -> None:
        """Raises OSError, MagnetarError."""
        directories = self._storage.directories
        await self._collector.hold()
        self._phase = "marking"
        ledgers = list(self._ledgers)
        await self._take_down_gone_logs(ledgers)
        marks = [_Marking(self._files, directory.path) for directory in directories]
        for mark in marks:
            await self._maintenance.run(mark.put)
        self._phase = "fencing"
        # Listed again: ledgers may have been created meanwhile.
        ledgers = list(self._ledgers)
        self._fenced = sorted(ledger.ledger_id for ledger in ledgers)
        await self._fence(ledgers)
        self._phase = "logs"
        for directory in directories:
            taken = await self._flusher.run(partial(self._take_snapshot, directory))
            self._snapshots[directory.path] = taken
            self._logs += len(taken.logs)
        for directory in directories:
            for one in self._snapshots[directory.path].logs:
                await self._compare(directory, one)
                self._logs_done += 1
        self._phase = "locations"
        for ledger_id in self._fenced:
            await self._check_locations(ledger_id)
            self._ledgers_done += 1
        self._phase = "finishing"
        for directory in directories:
            note = partial(note_unreadable, self._files, directory.path, self._unreadable[directory.path])
            await self._maintenance.run(note)
        if self._problem_count:
            await self._doubt(self._fenced)
            self._scrub()
        elif self._was_put_in_doubt:
            await self._flusher.run(lambda: self._storage.set_needs_check(False))
        for directory in directories:
            await self._flusher.run(partial(_sync, directory))
        await self._remove_marks(marks)

    # -- before and after

    async def _take_down_gone_logs(self, ledgers: Sequence[Ledger]) -> None:
        """Set `needs_check` if the index names logs that are gone (rule 1). Raises OSError."""
        if await self._flusher.run(lambda: self._storage.needs_check):
            return
        for ledger in ledgers:
            first: int | None = 0
            while first is not None:
                is_gone, first = await self._gone(ledger.ledger_id, first)
                if is_gone:
                    await self._flusher.run(lambda: self._storage.set_needs_check(True))
                    self._was_put_in_doubt = True
                    return

    async def _gone(self, ledger_id: int, first: int) -> tuple[bool, int | None]:
        """Whether locations from *first* on lead into logs that are gone, and where to continue."""
        directory = self._storage.directory_of(ledger_id)

        def look() -> tuple[list[tuple[int, int]], bool]:
            located = directory.index.locations(ledger_id, first, _LOCATIONS)
            used = {fmt.split_location(location)[0] for _, location in located}
            return located, any(not self._is_there(directory, log_id) for log_id in used)

        located, is_gone = await self._maintenance.run(look)
        await self._rest(len(located) * _LOCATION_SHARE, 0)
        return is_gone, located[-1][0] + 1 if len(located) == _LOCATIONS else None

    def _is_there(self, directory: LedgerDirectory, log_id: int) -> bool:
        return self._files.exists(posixpath.join(directory.path, file_name(log_id)))

    async def _fence(self, ledgers: Sequence[Ledger]) -> None:
        """Fence ledgers (rule 2). Rows are encoded and handed over in one turn of the loop, so that no older row
        follows. Raises OSError."""
        for first in range(0, len(ledgers), _ROWS):
            some = ledgers[first : first + _ROWS]
            for ledger in some:
                if not ledger.fenced:
                    ledger.fenced = True
                    ledger.wake(ledger.last_add_confirmed)
                self._ledgers.changed(ledger)
            rows = [(ledger.ledger_id, ledger.encode()) for ledger in some]
            await self._flusher.run(partial(self._put_rows, rows))
        for directory in self._storage.directories:
            await self._flusher.run(partial(_sync, directory))
        for ledger in ledgers:
            ledger.is_fence_durable = True

    def _put_rows(self, rows: Sequence[tuple[int, bytes]]) -> None:
        for number, directory in enumerate(self._storage.directories):
            directory.index.put_ledgers([row for row in rows if row[0] % len(self._storage.directories) == number])

    async def _remove_marks(self, marks: Sequence[_Marking]) -> None:
        """Raises OSError."""
        for mark in marks:
            if not self._has_failed():
                await self._maintenance.run(mark.remove)
        if self._has_failed():  # a read that found the index damaged relies on the mark
            for mark in marks:
                await self._maintenance.run(mark.put)

    # -- logs

    def _take_snapshot(self, directory: LedgerDirectory) -> _Snapshot:
        """The logs of rule 3. Runs on the flusher's thread, so between two flushes. Raises OSError, Corruption."""
        ids = list_logs(self._files, directory.path)
        taking = directory.logs.current_log_id
        logs = [_Log(log_id, directory.logs.scan(log_id) if log_id == taking else None) for log_id in reversed(ids)]
        end = _NO_END
        if ids:
            with suppress(OSError):  # then every location is followed, and the damage is reported for this log
                end = fmt.location(ids[-1], directory.logs.file_bytes(ids[-1]))
        return _Snapshot(logs, end)

    async def _compare(self, directory: LedgerDirectory, one: _Log) -> None:
        """Put the locations of a log that the index lacks. Raises OSError, MagnetarError."""
        path = posixpath.join(directory.path, file_name(one.log_id))
        put_before, damaged_before = self._put_right, self._damaged
        try:
            scan = one.scan
            if scan is None:
                scan = await self._maintenance.run(lambda: directory.logs.scan(one.log_id))
        except OSError as error:
            self._unreadable[directory.path].append(f"{path}: {error}")
            self._problem(f"{path} cannot be opened: {error}")
            return
        except Corruption as error:
            # A log without a whole header is empty: a crash came while it was created.
            if await self._maintenance.run(lambda: directory.logs.file_bytes(one.log_id)) > fmt.HEADER_BYTES:
                self._problem(str(error))
            return
        records = iter(scan)
        while some := await self._next_records(records, directory, path):
            await self._compare_some(directory, one.log_id, some)
        damaged = self._damaged - damaged_before
        if not scan.has_gap and not damaged:
            return
        if self._put_right == put_before and not await self._maintenance.run(lambda: _is_sealed(directory, one.log_id)):
            return  # rule 7
        if scan.has_gap:
            self._problem(f"{path} has damaged places; entries in them are lost here")
        if damaged:
            self._problem(f"{path}: {damaged} entries that the index lacks are damaged")

    async def _next_records(
        self, records: Iterator[tuple[int, int, int, int]], directory: LedgerDirectory, path: str
    ) -> list[tuple[int, int, int, int]]:
        """The next records of a log. If it cannot be read on, that is reported, and the log ends here."""
        try:
            return await self._maintenance.run(lambda: list(islice(records, _RECORDS)))
        except OSError as error:
            self._problem(f"{path} cannot be read to its end: {error}")
            self._unreadable[directory.path].append(f"{path}: {error}")
            return []

    async def _compare_some(
        self, directory: LedgerDirectory, log_id: int, records: list[tuple[int, int, int, int]]
    ) -> None:
        missing, good = await self._maintenance.run(lambda: self._missing(directory, log_id, records))
        for ledger_id in good:
            self._leading[ledger_id] = self._leading.get(ledger_id, 0) + 1
        if missing:
            codecs = {ledger_id: await self._codec(ledger_id) for ledger_id in {one.ledger_id for one in missing}}
            whole = await self._maintenance.run(lambda: [one for one in missing if _is_whole(directory, one, codecs)])
            put = await self._flusher.run(lambda: self._put(directory, whole))
            self._damaged += len(missing) - len(whole)
            self._put_right += len(put)
            for one in put:
                self._leading[one.ledger_id] = self._leading.get(one.ledger_id, 0) + 1
                self._is_there_again(one)
        self._looked_at += len(records)
        await self._rest(len(records), sum(size for _, size, _, _ in records))

    def _missing(
        self, directory: LedgerDirectory, log_id: int, records: list[tuple[int, int, int, int]]
    ) -> tuple[list[_Missing], list[int]]:
        """Runs on the maintenance thread. Returns the records to put, and the ledger of each record to which the index
        leads (rule 4)."""
        missing: dict[tuple[int, int], _Missing] = {}  # the last record of an entry wins
        good: list[int] = []
        for offset, _, ledger_id, entry_id in records:
            if entry_id < 0 or ledger_id not in self._ledgers:
                continue
            location = fmt.location(log_id, offset)
            seen = directory.index.location(ledger_id, entry_id)
            if seen == location:
                good.append(ledger_id)
            elif not seen or not _leads(directory, seen, ledger_id, entry_id):
                missing[ledger_id, entry_id] = _Missing(ledger_id, entry_id, location, seen)
        return list(missing.values()), good

    def _put(self, directory: LedgerDirectory, missing: Sequence[_Missing]) -> list[_Missing]:
        """Put locations as rule 6 says; returns those that were put. Runs on the flusher's thread. Raises OSError."""
        put = [
            one
            for one in missing
            if one.ledger_id in self._ledgers and directory.index.location(one.ledger_id, one.entry_id) == one.seen
        ]
        if put:
            directory.index.put_locations([one[:3] for one in put])
        return put

    def _is_there_again(self, one: _Missing) -> None:
        """Correct the ledger's tail in memory, which may have missed this entry."""
        ledger = self._ledgers.get(one.ledger_id)
        if ledger is not None:
            ledger.last_entry_id = max(ledger.last_entry_id, one.entry_id)
            ledger.is_tail_known = False

    async def _codec(self, ledger_id: int) -> EntryCodec | None:
        """The codec that checks the ledger's entries; None if metadata does not have the digest."""
        if ledger_id not in self._codecs:
            if len(self._codecs) >= _CODECS_MAX:
                self._codecs.clear()
            codec = None
            try:
                metadata = (await self._metadata.read(ledger_id)).metadata
                if metadata.format_version > 1:  # format 1 has neither digest nor password
                    codec = codec_of(metadata)
            except NoNode:
                pass
            except (MetadataError, Corruption) as error:
                log.warning("ledger %d is put right without its digest: %s", ledger_id, error)
            self._codecs[ledger_id] = codec
        return self._codecs[ledger_id]

    # -- locations

    async def _check_locations(self, ledger_id: int) -> None:
        """Report the locations that lead to no entry. Raises OSError."""
        directory = self._storage.directory_of(ledger_id)
        # First only count them: if there are as many as entries found in the logs, all are right. Else follow each.
        for follow in (False, True):
            count = lost = first_lost = 0
            first: int | None = 0
            while first is not None:
                located, bad, first = await self._maintenance.run(
                    partial(self._look, directory, ledger_id, first, follow)
                )
                count += located
                if bad:
                    cached = self._cache.entry_ids(ledger_id)  # these get a new location with the next flush
                    bad = [entry_id for entry_id in bad if entry_id not in cached]
                if bad and not lost:
                    first_lost = bad[0]
                lost += len(bad)
                await self._rest((located + len(bad)) * (1 if follow else _LOCATION_SHARE), 0)
            if follow or count == self._leading.get(ledger_id, 0):
                break
        if lost:
            self._lost += lost
            self._problem(f"ledger {ledger_id}: {lost} entries from {first_lost} on are in no log any more")

    def _look(
        self, directory: LedgerDirectory, ledger_id: int, first: int, follow: bool
    ) -> tuple[int, list[int], int | None]:
        """Runs on the maintenance thread. Returns (number of locations, entries whose location leads to none, where to
        continue)."""
        located = directory.index.locations(ledger_id, first, _LOCATIONS)
        following = located[-1][0] + 1 if len(located) == _LOCATIONS else None
        end = self._snapshots[directory.path].end
        old = [one for one in located if one[1] < end]
        # Locations of later flushes lead into logs that exist; other locations may not.
        newer = {fmt.split_location(location)[0] for _, location in located if location >= end}
        gone = {log_id for log_id in newer if not self._is_there(directory, log_id)}
        bad = [entry_id for entry_id, location in located if fmt.split_location(location)[0] in gone] if gone else []
        if follow:
            bad += [entry_id for entry_id, location in old if not _leads(directory, location, ledger_id, entry_id)]
        return len(old), bad, following

    # -- small things

    def _problem(self, text: str) -> None:
        log.error("%s", text)
        self._problem_count += 1
        if len(self._problems) < _NAMED_MAX:
            self._problems.append(text)

    async def _rest(self, entries: float, size: int) -> None:
        now_s = self._clock.monotonic()
        seconds = max(self._byte_limiter.spend(now_s, size), self._entry_limiter.spend(now_s, entries))
        while seconds > 0:
            await self._clock.sleep(min(seconds, _REST_S))
            seconds -= _REST_S


def _sync(directory: LedgerDirectory) -> None:
    """Sync the directory's present index: a flush that found no room opens it again. Raises OSError."""
    directory.index.sync()


def _leads(directory: LedgerDirectory, location: int, ledger_id: int, entry_id: int) -> bool:
    """Whether a location leads to its entry. True if the disk cannot be read, so that the location stays."""
    try:
        directory.logs.read(location, ledger_id, entry_id)
    except (Corruption, FileNotFoundError):
        return False
    except OSError:
        pass
    return True


def _is_whole(directory: LedgerDirectory, one: _Missing, codecs: dict[int, EntryCodec | None]) -> bool:
    """Whether the record has the digest of its ledger (rule 5)."""
    try:
        entry = directory.logs.read(one.location, one.ledger_id, one.entry_id)
    except (Corruption, OSError):
        return False
    return problem_of(entry, one.ledger_id, one.entry_id, codecs[one.ledger_id]) is None


def _is_sealed(directory: LedgerDirectory, log_id: int) -> bool:
    try:
        directory.logs.ledgers_map(log_id)
    except (Corruption, OSError):
        return False
    return True
