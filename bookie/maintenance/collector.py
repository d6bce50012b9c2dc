"""Rounds of garbage collection: deleted ledgers, copies that moved elsewhere, dead logs, compaction.

    cluster is ours? ──▶ local ids ──▶ listing ──▶ point reads ──▶ quarantine ──▶ ledgers deleted
                     ──▶ (once a day) closed ledgers whose metadata does not name this bookie
                     ──▶ logs: usage, dead ones removed, compaction where due

Rules beside those in `garbage.py`:

1. Nothing is deleted when the metadata store is that of another cluster than the cookie names, or does not know this
   bookie's cookie, or does not answer.
2. A ledger with entries in the write cache, or with a fence on its way, waits for another round: what a flush writes
   after the deletion would make it anew (correctness I45).
3. A copy that metadata does not name is deleted only if the ledger is closed, nobody holds its replication lock, it has
   no replication mark, its metadata is the same as a pass ago and nothing was written to it meanwhile (I41).
4. One round at a time. A round that failed leaves the quarantine as it is.
5. Who must not have ledgers or logs go holds the collector: the round under way ends, no other begins.
"""

import asyncio
import logging
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bookie.config import BookieConfig
from bookie.disks import cookie as cookies
from bookie.disks.directories import VERSION
from bookie.jobs import JobThread
from bookie.maintenance.compaction import CompactionSettings, Compactor, Stopped
from bookie.maintenance.garbage import (
    CompactionKind,
    CompactionSchedule,
    KindPlan,
    ListingLimits,
    Quarantine,
    Refusal,
    RefusalCode,
    refuse_listing,
)
from bookie.maintenance.rate_limiter import Pace
from bookie.serving.request_rules import RequestRules
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.ledgers import Ledger
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.metadata import ledger_store, underreplication
from magnetar_core.bookkeeper.metadata.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.store import NO_NODE, MetadataError, MetadataStore, NoNode, VersionConflict
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.files import DiskUsage, Files, read_file
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import MIB, Corruption, MagnetarError

log = logging.getLogger(__name__)

# Ledgers that are deleted in one job of the flusher.
_DELETE_LEDGERS = 1_000

# Metadata reads between two looks at the pace.
_READS = 50


@dataclass(frozen=True, slots=True)
class GcStatus:
    """How garbage collection stands. Times are wall-clock milliseconds, None: never in this life of the process."""

    phase: str
    """idle, held (by a rebuild of the index), listing, verifying, deleting, moved copies, logs, minor compaction, major
    compaction, index"""
    is_forced: bool
    rounds: int
    last_started_ms: int | None
    last_finished_ms: int | None
    last_round_s: float
    listed_ledgers: int | None
    local_ledgers: int
    quarantined_ledgers: int
    tombstones: int
    deleted_ledgers: int
    moved_ledgers: int
    """Deleted because their copies are on other bookies."""
    unreadable_ledgers: tuple[int, ...]
    """Their metadata is damaged, so they stay (the first hundred)."""
    refused: Refusal | None
    """Why the last round deleted no ledger."""
    failed: str | None
    logs: int
    log_bytes: int
    live_bytes: int
    removed_logs: int
    reclaimed_bytes: int
    compacted_logs: int
    copied_entries: int
    copied_bytes: int
    damaged_logs: dict[str, str]
    skipped_for_room: str | None
    minor_suspended: bool
    major_suspended: bool
    minor_compactions: int
    major_compactions: int
    location_compactions: int
    last_minor_ms: int | None
    last_major_ms: int | None
    last_location_ms: int | None


@dataclass(slots=True)
class _Wish:
    """What an operator asked of the next round."""

    kinds: set[CompactionKind] = field(default_factory=set)
    accept_listing: bool = False
    is_forced: bool = False


class GarbageCollector:
    """The rounds of one bookie. Used on the loop."""

    def __init__(
        self,
        config: BookieConfig,
        bookie_id: str,
        store: MetadataStore,
        root: str,
        files: Files,
        storage: LedgerStorage,
        rules: RequestRules,
        cache: WriteCache,
        flusher: JobThread,
        keeper: JobThread,
        readers: list[JobThread],
        clock: Clock,
        usage: Callable[[str], DiskUsage],
    ) -> None:
        self._config = config
        self._bookie_id = bookie_id
        self._store = store
        self._root = root
        self._metadata = LedgerStore(store, root)
        self._files = files
        self._storage = storage
        self._rules = rules
        self._ledgers = rules.ledgers
        self._cache = cache
        self._flusher = flusher
        self._keeper = keeper
        self._clock = clock
        self._tasks = Tasks("garbage")
        self._timer: Timer | None = None
        self._round: asyncio.Task[None] | None = None
        self._wish: _Wish | None = None
        self._is_held = False
        self._stopping = False
        self._compactor = Compactor(
            files,
            storage,
            rules.ledgers,
            flusher,
            keeper,
            readers,
            clock,
            usage,
            CompactionSettings(
                by_bytes=config.compaction_by_bytes,
                entries_s=config.compaction_entries_s,
                bytes_s=config.compaction_bytes_s,
                unsynced_entries_max=config.compaction_unsynced_entries,
                reserve_bytes=config.write_cache_mib * MIB,
                may_use_reserve=config.gc_force_without_space,
            ),
            lambda: self._stopping,
        )
        self._schedule = CompactionSchedule(
            _plan(config.minor_threshold, config.minor_interval_s, config.minor_max_ms),
            _plan(config.major_threshold, config.major_interval_s, config.major_max_ms),
            force_when_off=config.force_allow_compaction,
            now_s=clock.monotonic(),
        )
        self._limits = ListingLimits(
            config.gc_refuse_empty_listing, config.gc_shrink_share, config.gc_shrink_ledgers_min
        )
        self._quarantine = Quarantine()
        self._pace = Pace(config.gc_metadata_rate)
        self._listed_before: int | None = None
        self._moved: dict[int, int] = {}
        self._moved_looked_s = clock.monotonic()
        self._locations_compacted_s = clock.monotonic()
        self._phase = "idle"
        self._is_forced = False
        self._rounds = 0
        self._started_ms: int | None = None
        self._finished_ms: int | None = None
        self._round_s = 0.0
        self._listed: int | None = None
        self._deleted = self._deleted_moved = 0
        self._unreadable: set[int] = set()
        self._refused: Refusal | None = None
        self._failed: str | None = None
        self._compactions = dict.fromkeys(CompactionKind, 0)
        self._compacted_ms: dict[CompactionKind, int] = {}
        self._location_compactions = 0
        self._locations_compacted_ms: int | None = None
        self._compacting_locations: set[str] = set()

    # -- from outside

    def start(self) -> None:
        self._plan_next()

    async def stop(self) -> None:
        """End the round under way: a copy is taken back, a log whose copy is complete is brought to its end."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._round is not None:
            await asyncio.gather(self._round, return_exceptions=True)
        await self._tasks.cancel()

    def trigger(self, *, force_minor: bool = False, force_major: bool = False, accept_listing: bool = False) -> None:
        """Start a round now, or right after the one that runs.

        *accept_listing*: an operator has made sure that the listing is right, empty or shrunken as it is.
        """
        wish = self._wish = self._wish or _Wish()
        wish.is_forced = True
        wish.accept_listing = wish.accept_listing or accept_listing
        if force_minor:
            wish.kinds.add(CompactionKind.MINOR)
        if force_major:
            wish.kinds.add(CompactionKind.MAJOR)
        if self._round is None:
            self._begin()

    async def settled(self) -> None:
        """Wait until no round runs."""
        while self._round is not None:
            await asyncio.shield(self._round)

    async def hold(self) -> None:
        """Begin no round until `let_go`; return when none runs (rule 5). One holder at a time."""
        self._is_held = True
        await self.settled()

    def let_go(self) -> None:
        """Rounds are possible again; one that was asked for meanwhile begins."""
        self._is_held = False
        if self._round is not None or self._stopping:
            return
        if self._wish is not None:
            self._begin()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._plan_next()

    def suspend(self, *, minor: bool = False, major: bool = False) -> None:
        """No compaction of that kind until it is resumed, or until a restart. One that runs goes on."""
        self._set_suspended(True, minor, major)

    def resume(self, *, minor: bool = False, major: bool = False) -> None:
        self._set_suspended(False, minor, major)

    def _set_suspended(self, value: bool, minor: bool, major: bool) -> None:
        for kind, wanted in ((CompactionKind.MINOR, minor), (CompactionKind.MAJOR, major)):
            if wanted:
                self._schedule.suspended[kind] = value

    @property
    def location_directories(self) -> dict[str, bool]:
        """Path of each index → whether it is being compacted."""
        paths = [posixpath.join(shelf.directory, "locations") for shelf in self._storage.shelves]
        return {path: path in self._compacting_locations for path in paths}

    def compact_locations(self, paths: Iterable[str] | None = None) -> None:
        """Compact the index in the background, all of it or that at *paths*. Raises MagnetarError."""
        known = self.location_directories
        wanted = list(known) if paths is None else list(paths)
        unknown = [path for path in wanted if path not in known]
        if unknown:
            raise MagnetarError(f"{', '.join(unknown)}: no index of this bookie; it has {', '.join(known)}")
        for path in wanted:
            if path not in self._compacting_locations:
                self._compacting_locations.add(path)
                self._tasks.spawn(self._compact_locations(path), f"compact {path}")

    def status(self) -> GcStatus:
        compactor, counts = self._compactor, self._compactor.counts
        suspended = self._schedule.suspended
        return GcStatus(
            phase="held" if self._is_held and self._round is None else self._phase,
            is_forced=self._is_forced,
            rounds=self._rounds,
            last_started_ms=self._started_ms,
            last_finished_ms=self._finished_ms,
            last_round_s=self._round_s,
            listed_ledgers=self._listed,
            local_ledgers=len(self._ledgers),
            quarantined_ledgers=len(self._quarantine),
            tombstones=len(self._ledgers.tombstones),
            deleted_ledgers=self._deleted,
            moved_ledgers=self._deleted_moved,
            unreadable_ledgers=tuple(sorted(self._unreadable)[:100]),
            refused=self._refused,
            failed=self._failed,
            logs=compactor.log_count,
            log_bytes=compactor.total_bytes,
            live_bytes=compactor.live_bytes,
            removed_logs=counts.removed_logs,
            reclaimed_bytes=counts.reclaimed_bytes,
            compacted_logs=counts.compacted_logs,
            copied_entries=counts.copied_entries,
            copied_bytes=counts.copied_bytes,
            damaged_logs=dict(compactor.damaged),
            skipped_for_room=compactor.skipped_for_room,
            minor_suspended=suspended[CompactionKind.MINOR],
            major_suspended=suspended[CompactionKind.MAJOR],
            minor_compactions=self._compactions[CompactionKind.MINOR],
            major_compactions=self._compactions[CompactionKind.MAJOR],
            location_compactions=self._location_compactions,
            last_minor_ms=self._compacted_ms.get(CompactionKind.MINOR),
            last_major_ms=self._compacted_ms.get(CompactionKind.MAJOR),
            last_location_ms=self._locations_compacted_ms,
        )

    # -- rounds

    def _plan_next(self) -> None:
        if not self._stopping:
            self._timer = self._clock.call_later(self._config.gc_wait_ms / 1000, self._begin)

    def _begin(self) -> None:
        if self._round is not None or self._stopping or self._is_held:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wish, self._wish = self._wish or _Wish(), None
        self._round = self._tasks.spawn(self._run(wish), "round")

    async def _run(self, wish: _Wish) -> None:
        began_s = self._clock.monotonic()
        self._started_ms = self._clock.wall_ms()
        self._is_forced = wish.is_forced
        self._failed = None
        try:
            await self._collect(wish.accept_listing)
            await self._logs(wish.kinds)
        except Stopped:
            pass
        except (OSError, MagnetarError) as error:
            self._failed = str(error)
            log.error("garbage collection of bookie %s ends early: %s", self._bookie_id, error)
        finally:
            self._rounds += 1
            self._phase = "idle"
            self._is_forced = False
            self._round_s = self._clock.monotonic() - began_s
            self._finished_ms = self._clock.wall_ms()
            self._round = None
            if self._wish is not None:
                self._begin()
            else:
                self._plan_next()

    # -- ledgers

    async def _collect(self, accept_listing: bool) -> None:
        """Raises OSError, Stopped."""
        try:
            refusal = await self._check_cluster()
            if refusal is None:
                refusal = await self._collect_deleted(accept_listing)
            if refusal is None and self._is_time_for_moved():
                await self._collect_moved()
        except (MetadataError, Corruption) as error:
            refusal = Refusal(RefusalCode.METADATA, str(error))
        if refusal is not None and refusal != self._refused:
            log.error("bookie %s deletes no ledgers (%s): %s", self._bookie_id, refusal.code, refusal.text)
        self._refused = refusal

    async def _check_cluster(self) -> Refusal | None:
        """Rule 1. Raises MetadataError, Corruption, OSError."""
        path = posixpath.join(self._storage.shelves[0].directory, VERSION)
        ours = cookies.decode(await self._keeper.run(lambda: read_file(self._files, path)), path).instance_id
        theirs = await ledger_store.instance_id(self._store, self._root)
        if ours and ours != theirs:
            return Refusal(
                RefusalCode.OTHER_CLUSTER,
                f"{path} belongs to the cluster {ours}, the metadata store to {theirs}: is metadataServiceUri right?",
            )
        if not await self._store.exists(f"{self._root}/cookies/{self._bookie_id}"):
            return Refusal(
                RefusalCode.OTHER_CLUSTER,
                f"the metadata store does not know bookie {self._bookie_id}: its cookie is not there any more",
            )
        return None

    async def _collect_deleted(self, accept_listing: bool) -> Refusal | None:
        """Raises MetadataError, OSError, Stopped."""
        self._phase = "listing"
        unlisted = {ledger.ledger_id for ledger in self._ledgers}
        local = len(unlisted)
        listed = 0
        async for ledger_id in self._metadata.list():
            unlisted.discard(ledger_id)
            listed += 1
            self._check_stop()
        self._listed = listed
        if not accept_listing:
            refusal = refuse_listing(local, len(unlisted), listed, self._listed_before, self._limits)
            if refusal is not None:
                return refusal
        self._listed_before = listed
        self._phase = "verifying"
        absent = []
        for number, ledger_id in enumerate(self._quarantine.candidates(unlisted)):
            await self._keep_pace(number)
            try:
                await self._metadata.read(ledger_id)
            except NoNode:
                absent.append(ledger_id)
            except Corruption as error:
                self._cannot_read(ledger_id, error)
        self._phase = "deleting"
        gone = self._quarantine.confirm(absent, unlisted)
        deleted, postponed = await self._delete(gone, with_tombstones=True)
        self._quarantine.postpone(postponed)
        self._deleted += deleted
        return None

    async def _delete(self, ledger_ids: list[int], *, with_tombstones: bool) -> tuple[int, list[int]]:
        """Delete ledgers here; (how many, which must wait). Raises OSError."""
        tombstones = self._ledgers.tombstones
        count = 0
        postponed: list[int] = []
        for first in range(0, len(ledger_ids), _DELETE_LEDGERS):
            forgotten: list[Ledger] = []
            wall_ms = self._clock.wall_ms()
            tombstones.expire(wall_ms)
            for ledger_id in ledger_ids[first : first + _DELETE_LEDGERS]:
                ledger = self._ledgers.get(ledger_id)
                if ledger is None:
                    continue
                if self._cache.has_ledger(ledger_id) or ledger.fence_waiters is not None:
                    postponed.append(ledger_id)  # rule 2
                    continue
                if ledger.fenced and with_tombstones:
                    tombstones.add(ledger_id, wall_ms)
                forgotten.append(self._ledgers.forget(ledger_id))
            ids = [ledger.ledger_id for ledger in forgotten]
            if not ids:
                continue
            try:
                # Between two flushes, since flushes run on the same thread.
                await self._flusher.run(lambda ids=ids: self._storage.delete_ledgers(ids, tombstones))  # type: ignore[misc]
            except OSError:
                for ledger in forgotten:
                    self._ledgers.restore(ledger)
                raise
            self._rules.read_cache.discard_ledgers(set(ids))
            count += len(ids)
        if count:
            log.info("bookie %s: %d ledgers deleted", self._bookie_id, count)
        return count, postponed

    # -- copies that moved

    def _is_time_for_moved(self) -> bool:
        wait_s = self._config.gc_over_replicated_wait_ms / 1000
        return 0 < wait_s <= self._clock.monotonic() - self._moved_looked_s

    async def _collect_moved(self) -> None:
        """Rule 3. Raises MetadataError, OSError, Stopped."""
        self._phase = "moved copies"
        self._moved_looked_s = self._clock.monotonic()
        before, self._moved = self._moved, {}
        for number, ledger in enumerate(list(self._ledgers)):
            await self._keep_pace(number)
            ledger_id = ledger.ledger_id
            try:
                found = await self._metadata.read(ledger_id)
            except NoNode:
                continue  # deleted, or to be: that has its own rules
            except Corruption as error:
                self._cannot_read(ledger_id, error)
                continue
            if not found.metadata.is_closed or self._bookie_id in found.metadata.bookies():
                continue
            if before.get(ledger_id) == found.version and not ledger.is_key_journaled:
                await self._delete_moved(ledger_id, found.version)
            else:
                # The next add journals the key again: that is how the next pass sees that there was one.
                ledger.is_key_journaled = False
                self._moved[ledger_id] = found.version

    async def _delete_moved(self, ledger_id: int, version: int) -> None:
        lock = underreplication.lock_path(self._root, ledger_id)
        try:
            await self._store.put(lock, underreplication.lock_value(self._bookie_id), NO_NODE, ephemeral=True)
        except VersionConflict:
            return  # somebody copies it
        try:
            mark = underreplication.mark_path(self._root, ledger_id)
            ledger = self._ledgers.get(ledger_id)
            if ledger is None or ledger.is_key_journaled or await self._store.exists(mark):
                return
            try:
                if (await self._metadata.read(ledger_id)).version != version:
                    return
            except NoNode:
                return
            # Without a tombstone: it may be copied back here one day.
            deleted, _ = await self._delete([ledger_id], with_tombstones=False)
            self._deleted_moved += deleted
        finally:
            await self._store.delete(lock)

    # -- logs

    async def _logs(self, forced: set[CompactionKind]) -> None:
        """Raises OSError, Stopped."""
        self._phase = "logs"
        compactor = self._compactor
        await compactor.survey()
        await compactor.remove_dead()
        await compactor.count()
        due = self._schedule.due(self._clock.monotonic(), forced)
        if due is not None:
            self._phase = f"{due.kind} compaction"
            await compactor.compact(due)
            self._schedule.done(due.kind, self._clock.monotonic())
            self._compactions[due.kind] += 1
            self._compacted_ms[due.kind] = self._clock.wall_ms()
            await compactor.count()
        interval_s = self._config.location_compaction_interval_s
        if 0 < interval_s <= self._clock.monotonic() - self._locations_compacted_s:
            self._locations_compacted_s = self._clock.monotonic()
            self.compact_locations()

    async def _compact_locations(self, path: str) -> None:
        try:
            for shelf in self._storage.shelves:
                if posixpath.join(shelf.directory, "locations") == path:
                    await self._keeper.run(shelf.index.compact_locations)
            self._location_compactions += 1
            self._locations_compacted_ms = self._clock.wall_ms()
        except OSError as error:
            log.error("%s could not be compacted: %s", path, error)
        finally:
            self._compacting_locations.discard(path)

    # -- small things

    def _cannot_read(self, ledger_id: int, error: Exception) -> None:
        """A damaged record is no proof of anything."""
        if ledger_id not in self._unreadable:
            log.error("ledger %d stays, its metadata cannot be read: %s", ledger_id, error)
        self._unreadable.add(ledger_id)

    def _check_stop(self) -> None:
        if self._stopping:
            raise Stopped

    async def _keep_pace(self, number: int) -> None:
        self._check_stop()
        if number % _READS == 0:
            await self._clock.sleep(max(self._pace.spend(self._clock.monotonic(), _READS) - 1, 0))


def _plan(threshold: float, interval_s: int, max_ms: int) -> KindPlan:
    return KindPlan(threshold, interval_s, max_ms / 1000 if max_ms > 0 else None)
