"""Entry logs: measures what each holds, removes dead ones, and compacts those with few live entries.

    closed logs ──▶ usage (map, or a scan) ──▶ nothing lives ──▶ removed
                                            └▶ little lives ──▶ copied (entry_log/compacting.py) ──▶ removed

Rules:

1. Only logs that take no entries any more are considered. They are listed between two flushes: entries of a flush are
   in the index only after it has ended.
2. A log is removed after the index, durably, has no location in it. If its map or its scan leaves doubt about its
   content, the whole index is searched before (I44).
3. A damaged log is reported and left as it is; the other logs are processed.
4. The open file of a removed log is closed after all reads under way have ended.
5. A log that could not be read when the index was rebuilt stays until a rebuild reads it: entries in it that are not in
   the index are not garbage.
"""

import logging
import posixpath
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from bookie.jobs import JobThread
from bookie.maintenance.garbage.rules import Due, LogUsage, dead_logs, has_room, worth_compacting
from bookie.maintenance.garbage.unreadable import unreadable_log_ids
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.compacting import CompactingLog, Mover
from bookie.storage.entry_log.files import file_name
from bookie.storage.index import Index
from bookie.storage.ledger_storage import LedgerDirectory, LedgerStorage, is_no_space
from bookie.storage.ledgers import Ledgers
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage, File, Files
from magnetar_core.runtime.rate_limiter import RateLimiter
from magnetar_core.runtime.types import MIB, Corruption

log = logging.getLogger(__name__)

# Records that one job of the maintenance thread scans: a few milliseconds, so that an operator's call does not wait
# long.
SCAN_RECORDS: Final = 10_000
COPY_RECORDS: Final = 1_000
COPY_BYTES: Final = MIB
PROOF_ENTRIES: Final = 10_000

# A pause is made in steps of this length, so that a stop need not wait for its end.
REST_S: Final = 0.5

# The cost of skipping a dead record, as a share of copying a live one.
_DEAD_SHARE: Final = 0.05


class Stopped(Exception):
    """The bookie stops; unfinished work was undone."""


class CompactionSettings(NamedTuple):
    by_bytes: bool
    entries_s: int
    bytes_s: int
    unsynced_entries_max: int
    reserve_bytes: int
    """Bytes that a copy leaves free on its disk."""
    may_use_reserve: bool


class Counts:
    """Numbers of what was done since the start."""

    __slots__ = (
        "compacted_logs",
        "compaction_bytes",
        "copied_bytes",
        "copied_entries",
        "reclaimed_bytes",
        "removed_logs",
    )

    def __init__(self) -> None:
        self.compacted_logs = self.copied_entries = self.copied_bytes = 0
        # What was won in all, and the part of it that compaction won.
        self.removed_logs = self.reclaimed_bytes = self.compaction_bytes = 0


class Compactor:
    """The closed entry logs of a bookie. Used on the loop, by one task at a time."""

    def __init__(
        self,
        files: Files,
        storage: LedgerStorage,
        ledgers: Ledgers,
        flusher: JobThread,
        maintenance: JobThread,
        readers: list[JobThread],
        clock: Clock,
        usage: Callable[[str], DiskUsage],
        settings: CompactionSettings,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._files = files
        self._directories = storage.directories
        self._ledgers = ledgers
        self._flusher = flusher
        self._maintenance = maintenance
        self._readers = readers
        self._clock = clock
        self._disk_usage = usage
        self._settings = settings
        self._is_stopping = is_stopping
        self._usages: list[dict[int, LogUsage]] = [{} for _ in self._directories]
        self.counts = Counts()
        self.damaged: dict[str, str] = {}
        """Path of a log that was left as it is → the reason."""
        self.skipped_for_room: str | None = None
        """Why the last compaction skipped logs for lack of disk space; None if it did not."""
        self.log_count = self.total_bytes = self.live_bytes = 0
        """Numbers of closed logs, from the last `count`."""

    # -- what is there

    async def survey(self) -> None:
        """Measure the closed logs that are not known yet. Raises OSError, Stopped."""
        for number, directory in enumerate(self._directories):
            usages = self._usages[number]
            closed = await self._flusher.run(directory.logs.closed_logs)  # rule 1
            for gone in usages.keys() - set(closed):
                del usages[gone]
            noted = await self._maintenance.run(partial(unreadable_log_ids, self._files, directory.path))
            for log_id in noted.intersection(closed):
                usages.pop(log_id, None)
                reason = "it could not be read when the index was rebuilt; `magnetar bookie rebuild-index` tries again"
                self._leave(directory, log_id, Corruption(reason))  # rule 5
            for log_id in closed:
                if log_id in usages or log_id in noted:
                    continue
                try:
                    usages[log_id] = await self._usage_of(directory, log_id)
                except (Corruption, OSError) as error:
                    self._leave(directory, log_id, error)
                else:
                    self.damaged.pop(_path(directory, log_id), None)

    async def count(self) -> None:
        """Update the numbers of closed logs. It goes through all maps, so it is done once a round."""
        usages = [usage for usages in self._usages for usage in usages.values()]
        ledgers = self._ledgers
        self.log_count = len(usages)
        self.total_bytes = sum(usage.file_bytes for usage in usages)
        self.live_bytes = await self._maintenance.run(lambda: sum(usage.live_bytes(ledgers) for usage in usages))

    async def _usage_of(self, directory: LedgerDirectory, log_id: int) -> LogUsage:
        """What a log holds: from the map at its end, or from a scan of the log. Raises Corruption, OSError."""
        logs = directory.logs
        file_bytes = await self._maintenance.run(lambda: logs.file_bytes(log_id))
        try:
            return LogUsage(log_id, file_bytes, await self._maintenance.run(lambda: logs.ledgers_map(log_id)), True)
        except Corruption as error:
            log.info("%s; it is read through", error)
        try:
            scan = await self._maintenance.run(lambda: logs.scan(log_id))
        except Corruption as error:
            # Its header is damaged, or a crash or a full disk came while it was created. The index shows which (rule
            # 2).
            log.info("%s", error)
            return LogUsage(log_id, file_bytes, {}, False)
        records = iter(scan)
        ledger_bytes: dict[int, int] = {}
        while chunk := await self._maintenance.run(lambda: list(islice(records, SCAN_RECORDS))):
            for _, size, ledger_id, _ in chunk:
                ledger_bytes[ledger_id] = ledger_bytes.get(ledger_id, 0) + fmt.SIZE.size + size
            await self._rest(0)
        return LogUsage(log_id, file_bytes, ledger_bytes, scan.garbage_bytes == 0)

    # -- removing

    async def remove_dead(self) -> None:
        """Remove the logs without live ledgers. Raises Stopped."""
        for number, directory in enumerate(self._directories):
            for usage in dead_logs(self._usages[number].values(), self._ledgers):
                await self._alone(directory, usage.log_id, self._remove(number, usage))
                await self._rest(0)

    async def _remove(self, number: int, usage: LogUsage) -> None:
        """Remove a log as rule 2 says. Raises Corruption, OSError."""
        directory, log_id = self._directories[number], usage.log_id
        if not usage.is_whole and await self._is_referred_to(number, log_id):
            raise Corruption(
                f"{_path(directory, log_id)} is damaged: the index knows entries in it that cannot be found in it; "
                "it stays"
            )
        await self._flusher.run(partial(directory.forget_log, log_id))
        directory.bad_logs.pop(log_id, None)
        directory.unknown_logs.discard(log_id)
        file = await self._maintenance.run(lambda: directory.logs.remove(log_id))
        self._usages[number].pop(log_id, None)
        self.counts.removed_logs += 1
        self.counts.reclaimed_bytes += usage.file_bytes
        log.info("%s removed, %d bytes", _path(directory, log_id), usage.file_bytes)
        await self._close(file)

    async def _is_referred_to(self, number: int, log_id: int) -> bool:
        """Whether any location leads into a log. It searches the locations of every ledger of the directory."""
        index = self._directories[number].index
        count = len(self._directories)
        ids = [ledger.ledger_id for ledger in self._ledgers if ledger.ledger_id % count == number]
        finder = _Finder(index, ids, log_id)
        while not await self._maintenance.run(finder.step):
            await self._rest(0)
        return finder.is_found

    async def _close(self, file: File | None) -> None:
        """Close the file of a removed log (rule 4)."""
        if file is None:
            return
        for reader in self._readers:
            await reader.run(_do_nothing)
        await self._maintenance.run(file.close)

    # -- compacting

    async def compact(self, due: Due) -> None:
        """Compact the logs below the threshold, one after the other. Raises Stopped."""
        began_s = self._clock.monotonic()
        settings = self._settings
        limiter = RateLimiter(settings.bytes_s if settings.by_bytes else settings.entries_s)
        self.skipped_for_room = None
        for number, directory in enumerate(self._directories):
            for usage in worth_compacting(self._usages[number].values(), self._ledgers, due.threshold):
                if due.max_s is not None and self._clock.monotonic() - began_s > due.max_s:
                    log.info("%s compaction ends after %.0f s, its longest time", due.kind, due.max_s)
                    return
                if not self._has_room(directory, usage):
                    continue
                if not await self._alone(directory, usage.log_id, self._compact_log(number, usage, limiter)):
                    break

    def _has_room(self, directory: LedgerDirectory, usage: LogUsage) -> bool:
        live_bytes, settings = usage.live_bytes(self._ledgers), self._settings
        try:
            free_bytes = self._disk_usage(directory.path).free_bytes
        except OSError as error:
            self.skipped_for_room = f"{directory.path} cannot be looked at: {error}"
            return False
        if has_room(free_bytes, live_bytes, settings.reserve_bytes, settings.may_use_reserve):
            return True
        self.skipped_for_room = (
            f"{_path(directory, usage.log_id)}: {live_bytes} bytes live in it, {free_bytes} are free and "
            f"{settings.reserve_bytes} of them are kept for flushes (isForceGCAllowWhenNoSpace=true uses them)"
        )
        return False

    async def _compact_log(self, number: int, usage: LogUsage, limiter: RateLimiter) -> None:
        """Copy the live entries, move their locations, remove the log. Raises Corruption, OSError, Stopped."""
        directory, old_id = self._directories[number], usage.log_id
        new_id = await self._maintenance.run(directory.logs.next_log_id)
        copy = await self._maintenance.run(lambda: CompactingLog(self._files, directory.path, new_id, old_id))
        try:
            has_gap = await self._copy(directory, old_id, copy, limiter)
            copied = dict(copy.bytes_of_ledgers)
            if copied:
                await self._maintenance.run(copy.finish)
            else:
                self._maintenance.submit(copy.abandon, _ignore)
        except BaseException:
            self._maintenance.submit(copy.abandon, _ignore)
            raise
        if copied:
            mover = await self._flusher.run(lambda: Mover(directory.logs, directory.index, new_id, old_id))
            while await self._flusher.run(mover.step):
                pass
            new_bytes = await self._maintenance.run(lambda: directory.logs.file_bytes(new_id))
            self._usages[number][new_id] = LogUsage(new_id, new_bytes, copied, True)
        try:
            # The new locations are durable before the log goes (`forget_log`). Bytes at the end that are not a record
            # were never published; bytes between records may be a damaged entry.
            await self._remove(number, usage._replace(is_whole=usage.is_whole and not has_gap))
        finally:
            if copied:
                await self._maintenance.run(copy.done)
        self.counts.compacted_logs += 1
        self.counts.compaction_bytes += usage.file_bytes
        if copied:
            self.counts.reclaimed_bytes -= new_bytes
            self.counts.compaction_bytes -= new_bytes

    async def _copy(self, directory: LedgerDirectory, old_id: int, copy: CompactingLog, limiter: RateLimiter) -> bool:
        """Copy the live entries. Returns whether the old log has other bytes between its records."""
        scan = await self._maintenance.run(lambda: directory.logs.scan(old_id))
        records = iter(scan)
        unsynced = 0
        while True:
            looked_at, entries, size = await self._maintenance.run(
                lambda: self._copy_some(directory, old_id, records, copy)
            )
            if not looked_at:
                return scan.has_gap
            self.counts.copied_entries += entries
            self.counts.copied_bytes += size
            unsynced += entries
            if unsynced >= self._settings.unsynced_entries_max:
                await self._maintenance.run(copy.sync)
                unsynced = 0
            units = size if self._settings.by_bytes else entries + (looked_at - entries) * _DEAD_SHARE
            await self._rest(limiter.spend(self._clock.monotonic(), units))

    def _copy_some(
        self, directory: LedgerDirectory, log_id: int, records: Iterator[tuple[int, int, int, int]], copy: CompactingLog
    ) -> tuple[int, int, int]:
        """Runs on the maintenance thread. Returns (records scanned, entries copied, bytes copied); (0, …) at the
        end."""
        looked_at = size = 0
        entries: list[tuple[int, bytes]] = []
        for offset, _, ledger_id, entry_id in records:
            looked_at += 1
            location = fmt.location(log_id, offset)
            if ledger_id in self._ledgers and directory.index.location(ledger_id, entry_id) == location:
                entry = directory.logs.read(location, ledger_id, entry_id)
                entries.append((ledger_id, entry))
                size += len(entry)
            if looked_at >= COPY_RECORDS or size >= COPY_BYTES:
                break
        if entries:
            copy.append(entries)
        return looked_at, len(entries), size

    # -- small things

    async def _alone(self, directory: LedgerDirectory, log_id: int, work: Awaitable[None]) -> bool:
        """Do *work* on one log as rule 3 says. False if the disk is full, so that the next log would fail, too."""
        try:
            await work
        except Corruption as error:
            self._leave(directory, log_id, error)
        except OSError as error:
            if is_no_space(error):
                log.error("%s is left as it is, the disk is full: %s", _path(directory, log_id), error)
                self.skipped_for_room = str(error)
                return False
            self._leave(directory, log_id, error)
        else:
            self.damaged.pop(_path(directory, log_id), None)
        return True

    def _leave(self, directory: LedgerDirectory, log_id: int, error: Exception) -> None:
        path = _path(directory, log_id)
        log.error("%s is left as it is: %s", path, error)
        self.damaged[path] = str(error)

    async def _rest(self, seconds: float) -> None:
        """Pause. Raises Stopped as soon as the bookie stops."""
        until = self._clock.monotonic() + seconds
        while not self._is_stopping():
            left = until - self._clock.monotonic()
            await self._clock.sleep(min(max(left, 0), REST_S))
            if left <= REST_S:
                break
        if self._is_stopping():
            raise Stopped


class _Finder:
    """Searches for a location that leads into a log, some ledgers at a time."""

    def __init__(self, index: Index, ledger_ids: Sequence[int], log_id: int) -> None:
        self._index = index
        self._left = list(reversed(ledger_ids))
        self._log_id = log_id
        self._first = 0
        self.is_found = False

    def step(self) -> bool:
        """Search located more; True when the search is over. Raises OSError."""
        seen = 0
        while self._left and seen < PROOF_ENTRIES:
            located = self._index.locations(self._left[-1], self._first, PROOF_ENTRIES)
            if any(fmt.split_location(location)[0] == self._log_id for _, location in located):
                self.is_found = True
                return True
            seen += len(located) + 1
            if len(located) == PROOF_ENTRIES:
                self._first = located[-1][0] + 1
            else:
                self._left.pop()
                self._first = 0
        return not self._left


def _path(directory: LedgerDirectory, log_id: int) -> str:
    return posixpath.join(directory.path, file_name(log_id))


def _do_nothing() -> None:
    pass


def _ignore(result: object, error: Exception | None) -> None:
    pass
