"""Reads every entry within a period and checks it; what is bad comes back from another copy. See `scrub_rules.py`.

Rules besides those:

1. A bad entry is read once more before it is repaired: it may have been written again, or moved.
2. A repaired entry goes through journal and write cache like any other; the damaged place is not written to.
3. An entry is "lost" only if all other bookies of its write set deny it. If that is not known, its repair is tried
   again in the next pass.
4. A damaged index ends the bookie, as when a client's read meets the damage; the next start rebuilds the index.
"""

import logging
import posixpath
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from bookie.config import BookieConfig
from bookie.jobs import JobThread
from bookie.maintenance.passes import Passes
from bookie.maintenance.repair import RepairSource, RepairUnavailable, codec_of, whose
from bookie.maintenance.scrub_rules import ScrubPlace, decode_place, problem_of, rate_of
from bookie.serving.request_rules import RequestRules
from bookie.storage.entry_log.files import list_logs
from bookie.storage.index import IndexCorrupt
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.metadata.damage.reports import OnDamage
from magnetar_core.bookkeeper.metadata.damage.rules import Kind
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, NoNode
from magnetar_core.bookkeeper.wire.entry import EntryCodec
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import Files, read_file, replace_file
from magnetar_core.runtime.observe import GroupedErrors
from magnetar_core.runtime.rate_limiter import RateLimiter
from magnetar_core.runtime.types import KIB, Corruption, MagnetarError

log = logging.getLogger(__name__)

PLACE_FILE: Final = "scrub"

# The place of a complete pass: after every ledger.
_END_LEDGER_ID: Final = 2**63 - 1

# Entries that one job of the maintenance thread checks: a few milliseconds.
JOB_ENTRIES: Final = 500
JOB_BYTES: Final = 512 * KIB

# How often the place is stored, so how much of a pass a crash repeats.
_KEEP_PLACE_S: Final = 60.0

# How long until a pass that failed is continued.
RETRY_S: Final = 600.0

# Bad entries that the status names; further ones are only counted.
NAMED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class ScrubStatus:
    """The state of the scrub. Numbers of entries are those of the present pass."""

    is_running: bool
    pass_started_ms: int | None
    last_pass_finished_ms: int | None
    passes: int
    ledger_id: int
    """The ledger that is being checked."""
    entries_verified: int
    entries_repaired: int
    entries_lost: int
    entries_unrepaired: int
    """Bad entries here of which it is not known whether a good copy exists."""
    bad_entries: tuple[tuple[int, int, str], ...]
    """(ledger, entry, the fault) of lost and unrepaired entries; the first thousand."""
    bytes_s: float
    is_late: bool
    failed: str | None


class Scrub:
    """The scrub of one bookie. Used on the loop."""

    def __init__(
        self,
        config: BookieConfig,
        metadata: LedgerStore,
        files: Files,
        storage: LedgerStorage,
        rules: RequestRules,
        cache: WriteCache,
        source: RepairSource,
        put_back: Callable[[int, bytes], Awaitable[int]],
        maintenance: JobThread,
        clock: Clock,
        on_damage: OnDamage,
        on_index_corrupt: Callable[[int, Exception], None],
    ) -> None:
        """*on_damage* is called with entries that are lost (rule 3)."""
        self._config = config
        self._metadata = metadata
        self._files = files
        self._storage = storage
        self._rules = rules
        self._cache = cache
        self._source = source
        self._put_back = put_back
        self._maintenance = maintenance
        self._clock = clock
        self._on_damage = on_damage
        self._on_index_corrupt = on_index_corrupt
        self._errors = GroupedErrors(log, clock)
        self._stay = GroupedErrors(log, clock)
        self._again_s = RETRY_S if config.scrub_interval_s > 0 else None
        self._passes = Passes("scrub", clock, self._pass, self._again_s)
        self._path = posixpath.join(storage.directories[0].path, PLACE_FILE)
        self._place: ScrubPlace | None = None
        """How far the present pass is, or the last one was, and what it has found. None: there was none."""
        self._kept_s = clock.monotonic()
        self._finished_ms: int | None = None
        self._passes_done = 0
        self._unrepaired = 0
        self._bad: dict[tuple[int, int], str] = {}
        self._bytes_s = 0.0
        self._is_late = False
        self._failed: str | None = None
        self._entry_limiter = RateLimiter(config.scrub_entries_s)
        self._byte_limiter = RateLimiter(config.scrub_bytes_s)

    def status(self) -> ScrubStatus:
        place = self._place or ScrubPlace(0)
        return ScrubStatus(
            is_running=self._passes.is_running,
            pass_started_ms=None if self._place is None else place.started_ms,
            last_pass_finished_ms=self._finished_ms,
            passes=self._passes_done,
            ledger_id=place.ledger_id,
            entries_verified=place.verified,
            entries_repaired=place.repaired,
            entries_lost=place.lost,
            entries_unrepaired=self._unrepaired,
            bad_entries=tuple((*key, text) for key, text in self._bad.items()),
            bytes_s=self._bytes_s,
            is_late=self._is_late,
            failed=self._failed,
        )

    def start(self) -> None:
        """Continue the pass that a restart interrupted, or begin one when it is due."""
        if self._config.scrub_interval_s > 0:
            self._passes.tasks.spawn(self._resume(), "resume")

    async def stop(self) -> None:
        was_running = self._passes.is_running
        await self._passes.stop()
        for errors in (self._errors, self._stay):
            errors.close()
        if was_running:
            await self._keep_place()

    def trigger(self) -> None:
        """Begin a pass now, unless one is under way."""
        if not self._passes.is_running:
            self._start_over()
            self._passes.begin()

    # -- passes

    async def _resume(self) -> None:
        """At start: go on where the last process stopped, or wait until the next pass is due."""
        place: ScrubPlace | None = None
        try:
            if await self._maintenance.run(lambda: self._files.exists(self._path)):
                data = await self._maintenance.run(lambda: read_file(self._files, self._path))
                place = decode_place(data, self._path)
        except (OSError, Corruption) as error:
            log.warning("the scrub begins anew: %s", error)
        if self._passes.is_running:  # `trigger` was called meanwhile
            return
        if place is None:
            # A new bookie, which has nothing to check, or one that was never scrubbed: both can wait a little.
            self._passes.begin_in(min(self._config.scrub_interval_s, RETRY_S))
        elif place.ledger_id == _END_LEDGER_ID:  # the last pass was complete
            self._place = place
            # Overdue: at once. A wall clock that was set back must not make the wait longer than the interval.
            passed_s = (self._clock.wall_ms() - place.started_ms) / 1000
            self._passes.begin_in(min(max(self._config.scrub_interval_s - passed_s, 0), self._config.scrub_interval_s))
        else:
            self._place = place
            self._passes.begin()

    def _start_over(self) -> ScrubPlace:
        self._place = ScrubPlace(self._clock.wall_ms())
        self._unrepaired = 0
        self._bad.clear()
        return self._place

    async def _pass(self) -> float | None:
        """A whole pass, or the rest of one that has failed."""
        place = self._place
        self._place = self._start_over() if place is None or place.ledger_id == _END_LEDGER_ID else place
        self._failed = None
        try:
            await self._set_rate()
            for ledger_id in sorted(ledger.ledger_id for ledger in self._rules.ledgers):
                if ledger_id >= self._place.ledger_id:
                    first = self._place.entry_id if ledger_id == self._place.ledger_id else 0
                    try:
                        await self._check_ledger(ledger_id, first)
                    except IndexCorrupt as error:  # rule 4
                        self._on_index_corrupt(ledger_id, error)
                        raise
        except (OSError, MagnetarError) as error:
            log.error("the scrub stops at ledger %d: %s", self._place.ledger_id, error)
            await self._keep_place()
            self._failed = str(error)
            return self._again_s
        self._place = self._place._replace(ledger_id=_END_LEDGER_ID, entry_id=0)
        if self._place.repaired or self._place.lost or self._unrepaired:
            log.warning(
                "scrub: %d entries are good, %d were repaired, %d are lost, %d could not be repaired yet",
                self._place.verified,
                self._place.repaired,
                self._place.lost,
                self._unrepaired,
            )
        await self._keep_place()
        self._passes_done += 1
        self._finished_ms = self._clock.wall_ms()
        passed_s = (self._finished_ms - self._place.started_ms) / 1000
        return max(self._config.scrub_interval_s - passed_s, 1.0) if self._config.scrub_interval_s > 0 else None

    async def _set_rate(self) -> None:
        total_bytes = await self._maintenance.run(self._log_bytes)
        period_s = self._config.scrub_interval_s or 1
        rate = rate_of(total_bytes, period_s, self._config.scrub_bytes_s)
        self._bytes_s, self._is_late = rate
        if self._is_late:
            log.warning(
                "the scrub of %d bytes takes longer than localScrubInterval (%d s) at localScrubRateByBytes (%d)",
                total_bytes,
                period_s,
                self._config.scrub_bytes_s,
            )
        self._byte_limiter = RateLimiter(self._bytes_s)

    def _log_bytes(self) -> int:
        return sum(
            directory.logs.file_bytes(log_id)
            for directory in self._storage.directories
            for log_id in list_logs(self._files, directory.path)
        )

    # -- entries

    async def _check_ledger(self, ledger_id: int, first: int) -> None:
        """Raises OSError, MagnetarError."""
        assert self._place is not None
        try:
            metadata = (await self._metadata.read(ledger_id)).metadata
            codec = codec_of(metadata)
        except NoNode:
            return  # deleted, or about to be
        except (MetadataError, Corruption) as error:
            log.warning("ledger %d is scrubbed without its digest: %s", ledger_id, error)
            metadata, codec = None, None
        next_entry: int | None = first
        while next_entry is not None:
            begin = next_entry
            good, size, bad, next_entry = await self._maintenance.run(
                lambda begin=begin: self._read_some(ledger_id, begin, codec)  # type: ignore[misc]
            )
            for entry_id in bad:
                await self._on_bad(ledger_id, entry_id, metadata, codec)
            self._place = self._place._replace(
                ledger_id=ledger_id if next_entry is not None else ledger_id + 1,
                entry_id=next_entry or 0,
                verified=self._place.verified + good,
            )
            now_s = self._clock.monotonic()
            if now_s - self._kept_s > _KEEP_PLACE_S:
                await self._keep_place()
            await self._clock.sleep(
                max(self._byte_limiter.spend(now_s, size), self._entry_limiter.spend(now_s, good + len(bad)))
            )

    def _read_some(
        self, ledger_id: int, first: int, codec: EntryCodec | None
    ) -> tuple[int, int, list[int], int | None]:
        """Runs on the maintenance thread. Returns (good entries, their bytes, bad entries, where to continue)."""
        directory = self._storage.directory_of(ledger_id)
        located = directory.index.locations(ledger_id, first, JOB_ENTRIES)
        good = size = at = 0
        bad: list[int] = []
        while at < len(located) and size < JOB_BYTES:
            try:
                run = directory.logs.read_run(ledger_id, located[at:], JOB_BYTES)
            except (Corruption, OSError):
                entry_id = located[at][0]
                if self._problem(ledger_id, entry_id, codec) is None:  # rule 1
                    good += 1
                else:
                    bad.append(entry_id)
                at += 1
                continue
            for entry_id, entry in run:
                if problem_of(entry, ledger_id, entry_id, codec) is not None:
                    bad.append(entry_id)
                else:
                    good += 1
                size += len(entry)
            at += len(run)
        if at < len(located):
            return good, size, bad, located[at][0]
        return good, size, bad, located[-1][0] + 1 if len(located) == JOB_ENTRIES else None

    def _problem(self, ledger_id: int, entry_id: int, codec: EntryCodec | None) -> str | None:
        """Read one entry again; what is wrong with it, or None. Blocks."""
        try:
            entry = self._storage.read(ledger_id, entry_id).entry
        except IndexCorrupt:
            raise
        except (Corruption, OSError) as error:
            return str(error)
        return None if entry is None else problem_of(entry, ledger_id, entry_id, codec)

    async def _on_bad(
        self, ledger_id: int, entry_id: int, metadata: LedgerMetadata | None, codec: EntryCodec | None
    ) -> None:
        """Read it once more, and repair it if it is still bad. *metadata*, *codec*: None if they cannot be read now."""
        assert self._place is not None
        if self._cache.get(ledger_id, entry_id) is not None or ledger_id not in self._rules.ledgers:
            return
        problem = await self._maintenance.run(lambda: self._problem(ledger_id, entry_id, codec))
        if problem is None:
            return
        self._errors.say(f"ledger {ledger_id}", f"entry {entry_id} is damaged here: {problem}")
        if metadata is None:
            self._note_unrepaired(ledger_id, entry_id, problem)
            return
        try:
            entry = await self._source.read_entry(ledger_id, metadata, entry_id)
        except RepairUnavailable as error:
            self._note_unrepaired(ledger_id, entry_id, f"{problem}; {error}")
            return
        if entry is None:
            self._place = self._place._replace(lost=self._place.lost + 1)
            text = f"{problem}; no other bookie has it"
            self._note_bad(ledger_id, entry_id, text)
            self._on_damage(ledger_id, Kind.DATA_LOSS, [(entry_id, entry_id)], f"{whose(metadata)}: {text}")
            return
        rc = await self._put_back(ledger_id, entry)
        if rc:
            self._note_unrepaired(ledger_id, entry_id, f"{problem}; a good copy could not be stored, refused with {rc}")
        else:
            self._place = self._place._replace(repaired=self._place.repaired + 1)

    def _note_unrepaired(self, ledger_id: int, entry_id: int, text: str) -> None:
        self._unrepaired += 1
        self._note_bad(ledger_id, entry_id, text)

    def _note_bad(self, ledger_id: int, entry_id: int, text: str) -> None:
        self._stay.say(f"ledger {ledger_id}", f"entry {entry_id} stays damaged: {text}")
        if len(self._bad) < NAMED_MAX:
            self._bad[ledger_id, entry_id] = text

    async def _keep_place(self) -> None:
        place = self._place
        if place is None:
            return
        self._kept_s = self._clock.monotonic()
        try:
            await self._maintenance.run(lambda: replace_file(self._files, self._path, place.encode()))
        except OSError as error:
            log.warning("%s cannot be written, a restart repeats the scrub: %s", self._path, error)
