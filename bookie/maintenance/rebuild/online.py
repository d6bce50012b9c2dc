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
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from bookie.jobs import JobThread
from bookie.maintenance.garbage.collector import GarbageCollector
from bookie.maintenance.garbage.unreadable import note_unreadable
from bookie.maintenance.rebuild.findings import Findings, OnlineRebuildStatus
from bookie.maintenance.rebuild.ledger_codecs import LedgerCodecs
from bookie.maintenance.rebuild.location_check import check_locations, find_gone_log
from bookie.maintenance.rebuild.log_comparison import (
    LogState,
    Missing,
    Record,
    Snapshot,
    compare,
    is_sealed,
    next_records,
    put_locations,
    take_snapshot,
    with_digest,
)
from bookie.maintenance.rebuild.mark import RebuildMark
from bookie.serving.request_rules import RequestRules
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import file_name, list_logs
from bookie.storage.index import IndexCorrupt
from bookie.storage.known import NOTHING_THERE, note_of
from bookie.storage.ledger_storage import LedgerDirectory, LedgerStorage
from bookie.storage.ledgers import Ledger
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import Files
from magnetar_core.runtime.rate_limiter import RateLimiter
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Corruption, MagnetarError

log = logging.getLogger(__name__)

# Ledger rows that are encoded on the loop at a time: two milliseconds.
ROWS_AT_ONCE: Final = 200

# Entries and locations a second: at some 10 µs each that is a fifth of a core. For bytes the limit of the scrub holds.
_ENTRIES_S: Final = 20_000

# The cost of a location that is only counted, as a share of one that is followed.
_LOCATION_SHARE: Final = 0.2


class _Lost(NamedTuple):
    """Entries of a ledger whose location does not lead to an entry."""

    entries: int
    first: int


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
        self._codecs = LedgerCodecs(metadata)
        self._is_running = False
        self._phase = "idle"
        self._started_ms: int | None = None
        self._finished_ms: int | None = None
        self._rebuilds = 0
        self._failed: str | None = None
        self._reset()

    def _reset(self) -> None:
        self._snapshots: dict[str, Snapshot] = {}
        self._unreadable: dict[str, list[str]] = {directory.path: [] for directory in self._storage.directories}
        # Notes of the logs that were read, and that take no entries any more.
        self._notes: dict[str, dict[int, bytes]] = {directory.path: {} for directory in self._storage.directories}
        self._fenced: list[int] = []
        self._findings = Findings()
        self._was_put_in_doubt = False
        self._codecs.clear()

    def status(self) -> OnlineRebuildStatus:
        findings = self._findings
        return OnlineRebuildStatus(
            is_running=self._is_running,
            phase=self._phase,
            started_ms=self._started_ms,
            finished_ms=self._finished_ms,
            rebuilds=self._rebuilds,
            logs=findings.logs,
            logs_done=findings.logs_done,
            ledgers=len(self._fenced),
            ledgers_done=findings.ledgers_done,
            entries_looked_at=findings.entries_looked_at,
            entries_put_right=findings.entries_put_right,
            entries_damaged=findings.entries_damaged,
            locations_lost=findings.locations_lost,
            problem_count=findings.problem_count,
            problems=tuple(findings.problems),
            failed=self._failed,
        )

    def trigger(self) -> None:
        """Begin a rebuild in the background, unless one is under way. It fences every ledger of the bookie."""
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
            self._findings.forget_located()
            self._snapshots.clear()
            self._collector.release()
        if ended:
            self._rebuilds += 1
            self._log_outcome()

    def _begin(self) -> None:
        assert not self._is_running, "two rebuilds of one index at once"
        self._is_running = True
        self._phase = "waiting"
        self._reset()
        self._started_ms = self._clock.wall_ms()
        self._finished_ms = self._failed = None

    def _end_early(self, error: Exception) -> None:
        self._failed = str(error)
        log.error("the rebuild of the index ends early, the next start repeats it: %s", error)

    def _log_outcome(self) -> None:
        log.warning(
            "the index was compared with %d logs: %d entries looked at, %d put right, %d locations lead nowhere",
            self._findings.logs,
            self._findings.entries_looked_at,
            self._findings.entries_put_right,
            self._findings.locations_lost,
        )

    async def _rebuild(self) -> None:
        """Raises OSError, MagnetarError."""
        directories = self._storage.directories
        await self._collector.hold()
        self._phase = "marking"
        ledgers = list(self._ledgers)
        await self._note_gone_logs(ledgers)
        marks = [RebuildMark(self._files, directory.path) for directory in directories]
        for mark in marks:
            await self._maintenance.run(mark.put)
        self._phase = "fencing"
        # Listed again: ledgers may have been created meanwhile.
        ledgers = list(self._ledgers)
        self._fenced = sorted(ledger.ledger_id for ledger in ledgers)
        await self._fence(ledgers)
        self._phase = "logs"
        for directory in directories:
            snapshot = await self._flusher.run(partial(take_snapshot, self._files, directory))
            self._snapshots[directory.path] = snapshot
            self._findings.logs += len(snapshot.logs)
        for directory in directories:
            for state in self._snapshots[directory.path].logs:
                await self._compare_log(directory, state)
                self._findings.logs_done += 1
        assert self._findings.logs_done == self._findings.logs
        self._phase = "locations"
        for ledger_id in self._fenced:
            await self._check_locations(ledger_id)
            self._findings.ledgers_done += 1
        self._phase = "finishing"
        for directory in directories:
            note = partial(note_unreadable, self._files, directory.path, self._unreadable[directory.path])
            await self._maintenance.run(note)
            await self._note_logs(directory)
        if self._findings.problem_count:
            await self._doubt(self._fenced)
            self._scrub()
        elif self._was_put_in_doubt:
            await self._flusher.run(lambda: self._storage.set_needs_check(False))
        for directory in directories:
            await self._flusher.run(partial(_sync, directory))
        await self._remove_marks(marks)

    async def _note_logs(self, directory: LedgerDirectory) -> None:
        """Note what each log has, and tell once more of lost ones, of which everything is decided: that ends it
        (`bookie.maintenance.lost_logs`, rule 4). Raises OSError."""
        bad_logs = directory.bad_logs
        ended = {log_id: bad for log_id, bad in bad_logs.items() if bad.is_decided and not bad.is_unreadable}
        notes = {
            log_id: note
            for log_id, note in self._notes[directory.path].items()
            if log_id not in bad_logs or log_id in ended
        }
        await self._flusher.run(partial(self._put_notes, directory, ended.keys(), notes))
        for log_id, bad in ended.items():
            self._report(
                f"{posixpath.join(directory.path, file_name(log_id))} {bad.problem}: {bad.lost} entries were lost"
            )
            bad_logs.pop(log_id, None)
        directory.unknown_logs -= notes.keys()

    def _put_notes(self, directory: LedgerDirectory, ended: Collection[int], notes: Mapping[int, bytes]) -> None:
        """On the flusher's thread. A log may have been removed meanwhile. Raises OSError."""
        there = set(list_logs(self._files, directory.path))
        written: dict[int, bytes | None] = {log_id: None for log_id in ended if log_id not in there}
        written |= {log_id: note for log_id, note in notes.items() if log_id in there}
        directory.index.put_notes(written)

    # -- before and after

    async def _note_gone_logs(self, ledgers: Sequence[Ledger]) -> None:
        """Set `needs_check` if the index names logs that are gone (rule 1). Raises OSError."""
        if await self._flusher.run(lambda: self._storage.needs_check):
            return
        for ledger in ledgers:
            if await self._names_gone_log(ledger.ledger_id):
                await self._flusher.run(lambda: self._storage.set_needs_check(True))
                self._was_put_in_doubt = True
                return

    async def _names_gone_log(self, ledger_id: int) -> bool:
        """Whether a location of the ledger leads into a log that is gone."""
        directory = self._storage.directory_of(ledger_id)
        first: int | None = 0
        while first is not None:
            page = await self._maintenance.run(partial(find_gone_log, self._files, directory, ledger_id, first))
            await self._throttle(page.locations * _LOCATION_SHARE, 0)
            if page.is_gone:
                return True
            first = page.following
        return False

    async def _fence(self, ledgers: Sequence[Ledger]) -> None:
        """Fence ledgers (rule 2). Rows are encoded and handed over in one turn of the loop, so that no older row
        follows. Raises OSError."""
        for first in range(0, len(ledgers), ROWS_AT_ONCE):
            chunk = ledgers[first : first + ROWS_AT_ONCE]
            for ledger in chunk:
                if not ledger.fenced:
                    ledger.fenced = True
                    ledger.wake(ledger.last_add_confirmed)
                self._ledgers.changed(ledger)
            rows = [(ledger.ledger_id, ledger.encode()) for ledger in chunk]
            await self._flusher.run(partial(self._put_rows, rows))
        for directory in self._storage.directories:
            await self._flusher.run(partial(_sync, directory))
        for ledger in ledgers:
            ledger.is_fence_durable = True

    def _put_rows(self, rows: Sequence[tuple[int, bytes]]) -> None:
        for number, directory in enumerate(self._storage.directories):
            directory.index.put_ledgers([row for row in rows if row[0] % len(self._storage.directories) == number])

    async def _remove_marks(self, marks: Sequence[RebuildMark]) -> None:
        """Raises OSError."""
        for mark in marks:
            if not self._has_failed():
                await self._maintenance.run(mark.remove)
        if self._has_failed():  # a read that found the index damaged relies on the mark
            for mark in marks:
                await self._maintenance.run(mark.put)

    # -- logs

    async def _compare_log(self, directory: LedgerDirectory, state: LogState) -> None:
        """Put the locations of a log that the index lacks. Raises OSError, MagnetarError."""
        log_id, scan = state
        path = posixpath.join(directory.path, file_name(log_id))
        findings = self._findings
        put_before, damaged_before = findings.entries_put_right, findings.entries_damaged
        try:
            if scan is None:
                scan = await self._maintenance.run(lambda: directory.logs.scan(log_id))
        except OSError as error:
            self._unreadable[directory.path].append(f"{path}: {error}")
            self._report(f"{path} cannot be opened: {error}")
            return
        except Corruption as error:
            # A log without a whole header is empty: a crash came while it was created.
            if await self._maintenance.run(lambda: directory.logs.file_bytes(log_id)) > fmt.HEADER_BYTES:
                self._report(str(error))
            return
        records = iter(scan)
        newest = NOTHING_THERE.encode()
        while some := await self._next_records(records, directory, path):
            await self._compare_records(directory, log_id, some)
            offset, _, ledger_id, entry_id = some[-1]
            newest = note_of(log_id, offset, ledger_id, entry_id)
        if state.scan is None:
            self._notes[directory.path][log_id] = newest
        damaged = findings.entries_damaged - damaged_before
        assert damaged >= 0
        if not scan.has_gap and not damaged:
            return
        lacked_others = findings.entries_put_right > put_before
        if not lacked_others and not await self._maintenance.run(lambda: is_sealed(directory, log_id)):
            return  # rule 7
        if scan.has_gap:
            self._report(f"{path} has damaged places; entries in them are lost here")
        if damaged:
            self._report(f"{path}: {damaged} entries that the index lacks are damaged")

    async def _next_records(self, records: Iterator[Record], directory: LedgerDirectory, path: str) -> list[Record]:
        """The next records of a log. If the log cannot be read further, that is reported, and the log ends here."""
        try:
            return await self._maintenance.run(lambda: next_records(records))
        except OSError as error:
            self._report(f"{path} cannot be read to its end: {error}")
            self._unreadable[directory.path].append(f"{path}: {error}")
            return []

    async def _compare_records(self, directory: LedgerDirectory, log_id: int, records: list[Record]) -> None:
        findings = self._findings
        missing, located = await self._maintenance.run(lambda: compare(directory, self._ledgers, log_id, records))
        findings.add_located(located)
        if missing:
            ledger_ids = {record.ledger_id for record in missing}
            codecs = {ledger_id: await self._codecs.codec(ledger_id) for ledger_id in ledger_ids}
            whole = await self._maintenance.run(lambda: with_digest(directory, missing, codecs))
            put = await self._flusher.run(lambda: put_locations(directory, self._ledgers, whole))
            assert len(put) <= len(whole) <= len(missing)
            findings.entries_damaged += len(missing) - len(whole)
            findings.entries_put_right += len(put)
            findings.add_located(record.ledger_id for record in put)
            for record in put:
                self._correct_tail(record)
        findings.entries_looked_at += len(records)
        await self._throttle(len(records), sum(size for _, size, _, _ in records))

    def _correct_tail(self, record: Missing) -> None:
        """Correct the end of the ledger in memory: it was read from the index, which lacked this entry."""
        ledger = self._ledgers.get(record.ledger_id)
        if ledger is not None:
            ledger.last_entry_id = max(ledger.last_entry_id, record.entry_id)
            ledger.is_tail_known = False

    # -- locations

    async def _check_locations(self, ledger_id: int) -> None:
        """Report the locations that lead to no entry. Raises OSError."""
        directory = self._storage.directory_of(ledger_id)
        # First only count them: if there are as many as entries found in the logs, all are right. Else follow each.
        for follow in (False, True):
            count, lost = await self._check_pages(directory, ledger_id, follow=follow)
            if follow or count == self._findings.located(ledger_id):
                break
        if lost.entries:
            self._findings.locations_lost += lost.entries
            self._report(f"ledger {ledger_id}: {lost.entries} entries from {lost.first} on are in no log any more")

    async def _check_pages(self, directory: LedgerDirectory, ledger_id: int, *, follow: bool) -> tuple[int, _Lost]:
        """The number of old locations, and the entries whose location leads to none. Raises OSError."""
        end = self._snapshots[directory.path].end
        count = lost = first_lost = 0
        first: int | None = 0
        while first is not None:
            page = await self._maintenance.run(
                partial(check_locations, self._files, directory, ledger_id, first, end=end, follow=follow)
            )
            count += page.old
            entries = page.lost
            if entries:
                cached = self._cache.entry_ids(ledger_id)  # these get a new location with the next flush
                entries = [entry_id for entry_id in entries if entry_id not in cached]
            if entries and not lost:
                first_lost = entries[0]
            lost += len(entries)
            await self._throttle((page.old + len(entries)) * (1 if follow else _LOCATION_SHARE), 0)
            first = page.following
        return count, _Lost(lost, first_lost)

    # -- small things

    def _report(self, problem: str) -> None:
        log.error("%s", problem)
        self._findings.add_problem(problem)

    async def _throttle(self, entries: float, size: int) -> None:
        """Wait until the limits allow for this many more entries and bytes."""
        now_s = self._clock.monotonic()
        seconds = max(self._byte_limiter.spend(now_s, size), self._entry_limiter.spend(now_s, entries))
        await self._clock.sleep(seconds)


def _sync(directory: LedgerDirectory) -> None:
    """Sync the directory's present index: a flush that found no room opens it again. Raises OSError."""
    directory.index.sync()
