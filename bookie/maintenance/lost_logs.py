"""What was lost with entry logs that are missing, cut or other ones: counted, fetched from other bookies, reported.

    start: logs against their notes ──▶ bad ones ──▶ each ledger's locations, page by page ──▶ entries that are gone
      ──▶ another bookie has it: put back │ all others deny it: lost │ not known: an error, and asked again later
      lost ──▶ a report of damage ──▶ absent here, so that recoveries, readers and brokers can go on

Rules:

1. An entry whose location leads nowhere is answered with an error, never with "no such entry" (I15): a recovery goes
   to the other copies, or fails, and cuts nothing off.
2. It becomes absent only when it is lost for good: every other bookie of its write set has denied it, and a report of
   it is in the metadata store. Those of the last segment of a ledger that is not closed wait until it is, if the
   segment has other bookies (as in `integrity`, rule 3): the next recovery decides with their copies where it ends.
3. What is done for one ledger is bounded: so many entries are looked at, decided and reported at a time.
4. A log whose losses were reported keeps its note with their number, and each start reports it again, until the index
   is rebuilt or garbage collection removes the log. If the log comes back, a rebuild takes up its entries again.
5. Logs that the index has no note of (Apache's bookie wrote them, or an older version) get one, by the same pass.
6. A log that the disk refuses to read is reported, and nothing about it is decided: it may come back with its disk.
"""

import logging
import posixpath
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from bookie.jobs import JobThread
from bookie.maintenance.passes import Passes
from bookie.maintenance.rebuild.location_check import LostPage, find_lost
from bookie.maintenance.repair import RepairSource, RepairUnavailable, loss_text, write_set
from bookie.serving.request_rules import RequestRules
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import file_name
from bookie.storage.index import IndexCorrupt
from bookie.storage.known import NOTHING_THERE, BadLog, LogNote, log_notes
from bookie.storage.ledger_storage import LedgerDirectory, LedgerStorage
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports, TooManyReports
from magnetar_core.bookkeeper.metadata.damage.rules import Damage, Kind, Range, Source, joined
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.ledgers.owners import owner_of
from magnetar_core.bookkeeper.metadata.stores.store import NoNode
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import Files
from magnetar_core.runtime.rate_limiter import RateLimiter
from magnetar_core.runtime.types import Corruption, MagnetarError

log = logging.getLogger(__name__)

# Locations that are looked at a second, at some 3 µs each.
_LOCATIONS_S: Final = 100_000

# Entries that are fetched from other bookies a second, at most.
_COPIES_S: Final = 1_000

# Lost entries of one ledger that are decided and reported at a time (rule 3).
DECIDED_AT_ONCE: Final = 100_000

# Ledgers that the status names, those first that were found first.
NAMED_MAX: Final = 100

# How long until what could not be decided is asked again.
AGAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class LostLedger:
    """What a ledger lost for good."""

    ledger_id: int
    owner: str
    """The topic, or the subscription of it; empty if the record does not say."""
    entries: int


@dataclass(frozen=True, slots=True)
class LostLogsStatus:
    """Entry logs that lack entries, and what came of these since the start."""

    is_running: bool
    logs: dict[str, str]
    """Path of a log → what is wrong with it."""
    lost_entries: int
    """Entries that no bookie has, also those that were reported before the start."""
    restored_entries: int
    waiting_entries: int
    """Entries that cannot be read here, and may be on other bookies."""
    ledgers: tuple[LostLedger, ...]
    """Ledgers that lost entries, as found since the start; the first hundred."""
    failed: str | None


class LostLogs:
    """The search of one bookie. Used on the loop."""

    def __init__(
        self,
        bookie_id: str,
        metadata: LedgerStore,
        reports: DamageReports,
        files: Files,
        storage: LedgerStorage,
        rules: RequestRules,
        cache: WriteCache,
        source: RepairSource,
        put_back: Callable[[int, bytes], Awaitable[int]],
        flusher: JobThread,
        maintenance: JobThread,
        clock: Clock,
        on_index_corrupt: Callable[[int, Exception], None],
    ) -> None:
        self._bookie_id = bookie_id
        self._metadata = metadata
        self._reports = reports
        self._files = files
        self._storage = storage
        self._ledgers = rules.ledgers
        self._cache = cache
        self._source = source
        self._put_back = put_back
        self._flusher = flusher
        self._maintenance = maintenance
        self._clock = clock
        self._passes = Passes("lost logs", clock, self._run, AGAIN_S)
        self._limiter = RateLimiter(_LOCATIONS_S)
        self._copies = RateLimiter(_COPIES_S)
        self._on_index_corrupt = on_index_corrupt
        self._restored = self._waiting = 0
        self._at = 0
        self._named: dict[int, LostLedger] = {}
        self._failed: str | None = None

    def status(self) -> LostLogsStatus:
        directories = self._storage.directories
        return LostLogsStatus(
            is_running=self._passes.is_running,
            logs={
                posixpath.join(directory.path, file_name(log_id)): bad.problem
                for directory in directories
                for log_id, bad in directory.bad_logs.items()
            },
            lost_entries=sum(bad.lost for directory in directories for bad in directory.bad_logs.values()),
            restored_entries=self._restored,
            waiting_entries=self._waiting,
            ledgers=tuple(self._named.values()),
            failed=self._failed,
        )

    def start(self) -> None:
        """Begin, if there is something to look for."""
        if any(map(_is_to_be_looked_at, self._storage.directories)):
            self._passes.begin()

    async def stop(self) -> None:
        await self._passes.stop()

    async def _run(self) -> float | None:
        self._waiting, self._failed = 0, None
        try:
            for directory in self._storage.directories:
                if _is_to_be_looked_at(directory):
                    await self._search(directory)
        except IndexCorrupt as error:
            self._failed = str(error)
            self._on_index_corrupt(self._at, error)
        except (OSError, MagnetarError) as error:
            self._failed = str(error)
            log.error("the search for what was lost with entry logs goes on in %g s: %s", AGAIN_S, error)
        if self._waiting:
            log.warning("%d entries cannot be read here, and may be on other bookies", self._waiting)
        return None if self._failed is None and not self._waiting else AGAIN_S

    async def _search(self, directory: LedgerDirectory) -> None:
        """Look at every ledger of a directory. Raises OSError, MagnetarError."""
        bad = {
            log_id: log_file.is_missing for log_id, log_file in directory.bad_logs.items() if not log_file.is_unreadable
        }
        findings = _Findings()
        waiting_before = self._waiting
        count = len(self._storage.directories)
        number = self._storage.directories.index(directory)
        for ledger_id in sorted(ledger.ledger_id for ledger in self._ledgers if ledger.ledger_id % count == number):
            await self._search_ledger(directory, ledger_id, bad, findings)
        if self._waiting == waiting_before:
            await self._flusher.run(partial(_write_log_notes, directory, dict(directory.bad_logs), findings.newest))
            directory.unknown_logs.clear()
            directory.bad_logs = {
                log_id: bad_log._replace(is_decided=True)
                for log_id, bad_log in directory.bad_logs.items()
                if bad_log.lost or bad_log.is_unreadable
            }

    async def _search_ledger(
        self, directory: LedgerDirectory, ledger_id: int, bad: dict[int, bool], findings: "_Findings"
    ) -> None:
        self._at = ledger_id
        gathered: list[tuple[int, int]] = []
        first: int | None = 0
        while first is not None:
            page: LostPage = await self._maintenance.run(
                partial(find_lost, self._files, directory, ledger_id, first, bad)
            )
            findings.see(page.newest)
            gathered += page.lost
            first = page.following
            if len(gathered) >= DECIDED_AT_ONCE or (first is None and gathered):
                await self._fetch_or_report(directory, ledger_id, gathered)
                gathered = []
            await self._clock.sleep(self._limiter.spend(self._clock.monotonic(), page.locations))

    # -- one ledger

    async def _fetch_or_report(
        self, directory: LedgerDirectory, ledger_id: int, located: Sequence[tuple[int, int]]
    ) -> None:
        """Fetch, or report, entries of a ledger that are not where the index says. Raises OSError, MetadataError."""
        cached = self._cache.entry_ids(ledger_id)  # these get a new location with the next flush
        located = [location for location in located if location[0] not in cached]
        if not located or ledger_id not in self._ledgers:
            return
        try:
            metadata = (await self._metadata.read(ledger_id)).metadata
        except NoNode:
            return  # deleted; garbage collection removes what is left of it
        except Corruption as error:
            log.error("ledger %d: its metadata cannot be read: %s", ledger_id, error)
            self._waiting += len(located)
            return
        lost: list[tuple[int, int]] = []
        for entry_id, location in located:
            match await self._outcome(ledger_id, metadata, entry_id):
                case None:
                    self._waiting += 1
                case True:
                    lost.append((entry_id, location))
        if lost:
            await self._give_up(directory, ledger_id, metadata, lost)

    async def _outcome(self, ledger_id: int, metadata: LedgerMetadata, entry_id: int) -> bool | None:
        """Whether an entry is lost for good (rule 2); None: nobody knows yet. False: it came back, or is not needed
        here."""
        if metadata.is_closed and entry_id > metadata.last_entry_id:
            return False
        others = [bookie_id for bookie_id in write_set(metadata, entry_id) if bookie_id != self._bookie_id]
        if len(others) == metadata.write_quorum:
            return False  # the copy that belongs here is elsewhere by now
        try:
            entry = await self._source.read_entry(ledger_id, metadata, entry_id) if others else None
        except RepairUnavailable as error:
            log.info("%s", error)
            return None
        if entry is None:
            last = metadata.last_segment
            may_be_written = not metadata.is_closed and entry_id >= last.first_entry_id
            return None if may_be_written and set(last.ensemble) != {self._bookie_id} else True
        if await self._put_back(ledger_id, entry):
            return None
        self._restored += 1
        await self._clock.sleep(max(self._copies.spend(self._clock.monotonic(), 1) - 0.1, 0))
        return False

    async def _give_up(
        self, directory: LedgerDirectory, ledger_id: int, metadata: LedgerMetadata, lost: Sequence[tuple[int, int]]
    ) -> None:
        """Report entries that are lost, then let them be absent (rule 2). Raises OSError, MetadataError."""
        before = self._named.get(ledger_id)
        entries = len(lost) + (0 if before is None else before.entries)
        logs = sorted({fmt.split_location(location)[0] for _, location in lost})
        problems = [directory.bad_logs[log_id].problem for log_id in logs if log_id in directory.bad_logs]
        where = ", ".join(file_name(log_id) for log_id in logs[:3]) + (" and others" if len(logs) > 3 else "")
        problem = problems[0] if problems else "is missing"
        text = loss_text(metadata, entries, f"they stood in {where} of bookie {self._bookie_id}, which {problem}")
        log.error("ledger %d: %s", ledger_id, text)
        ranges: tuple[Range, ...] = joined((entry_id, entry_id) for entry_id, _ in lost)
        damage = Damage(ledger_id, Kind.DATA_LOSS, Source.SCRUB, self._bookie_id, text, ranges)
        try:
            await self._reports.post(damage, self._clock.wall_ms())
        except TooManyReports as error:
            log.error("the loss of ledger %d is not reported: %s", ledger_id, error)
        await self._flusher.run(partial(self._storage.forget_entries, ledger_id, lost))
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            ledger.is_tail_known = False  # asked anew: the last entry may be one of these
        for log_id, count in Counter(fmt.split_location(location)[0] for _, location in lost).items():
            bad = directory.bad_logs.get(log_id, BadLog("is missing", True))
            directory.bad_logs[log_id] = bad._replace(lost=bad.lost + count)
        if before is not None or len(self._named) < NAMED_MAX:
            self._named[ledger_id] = LostLedger(ledger_id, owner_of(metadata), entries)


def _write_log_notes(directory: LedgerDirectory, bad_logs: dict[int, BadLog], newest: dict[int, LogNote]) -> None:
    """Nothing is left to be decided: note what each log has (rules 4, 5). On the flusher's thread. Raises OSError."""
    notes = log_notes(directory.index.notes())
    changed: dict[int, bytes | None] = {}
    for log_id, bad in bad_logs.items():
        note = notes.get(log_id)
        if note is None or bad.is_unreadable:
            continue
        if note.lost:
            changed[log_id] = note._replace(is_decided=True).encode()
        else:
            changed[log_id] = None if bad.is_missing else NOTHING_THERE.encode()
    for log_id in directory.unknown_logs - notes.keys():
        changed[log_id] = newest.get(log_id, NOTHING_THERE).encode()
    directory.index.put_notes(changed)
    directory.index.sync()


class _Findings:
    """The newest entry of each log, gathered from the pages of a search."""

    def __init__(self) -> None:
        self.newest: dict[int, LogNote] = {}

    def see(self, newest: dict[int, LogNote]) -> None:
        for log_id, note in newest.items():
            if log_id not in self.newest or self.newest[log_id].location < note.location:
                self.newest[log_id] = note


def _is_to_be_looked_at(directory: LedgerDirectory) -> bool:
    bad_logs = directory.bad_logs.values()
    return bool(directory.unknown_logs) or any(not (bad.is_unreadable or bad.is_decided) for bad in bad_logs)
