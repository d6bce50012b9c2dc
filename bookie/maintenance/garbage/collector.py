"""Rounds of garbage collection: deleted ledgers, copies that moved to other bookies, dead logs, compaction.

    cluster is ours? ──▶ deleted_ledgers: local ids ──▶ listing ──▶ point reads ──▶ quarantine ──▶ removed
                     ──▶ (once a day) moved_ledgers: closed ledgers whose metadata does not name this bookie
                     ──▶ log_compaction: usage, dead ones removed, compaction where due
                     ──▶ index_compaction, by its interval or when asked

Rules besides those in these modules and in `rules.py`:

1. Nothing is deleted when the metadata store is that of another cluster than the cookie names, or does not know this
   bookie's cookie, or does not answer.
2. One round at a time. A failed round leaves the quarantine as it is.
3. While the metadata are known to be older than the ledgers, no copy counts as moved: what they say of places is old.
4. A part that needs all ledgers and logs to stay holds the collector: the round under way ends, and no other begins.
"""

import asyncio
import logging
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bookie.config import BookieConfig
from bookie.disks import cookie as cookies
from bookie.disks.directories import VERSION
from bookie.jobs import Threads
from bookie.maintenance.garbage.compaction import CompactionSettings, Compactor, Stopped
from bookie.maintenance.garbage.deleted_ledgers import DeletedLedgers
from bookie.maintenance.garbage.index_compaction import IndexCompaction
from bookie.maintenance.garbage.ledger_removal import LedgerRemoval
from bookie.maintenance.garbage.log_compaction import LogCompaction
from bookie.maintenance.garbage.metadata_reads import MetadataReads
from bookie.maintenance.garbage.moved_ledgers import MovedLedgers
from bookie.maintenance.garbage.rules import (
    CompactionKind,
    CompactionSchedule,
    KindPlan,
    ListingLimits,
    Refusal,
    RefusalCode,
)
from bookie.maintenance.older_metadata.watch import DoubtStatus, OlderMetadata
from bookie.serving.request_rules import RequestRules
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.metadata.ledgers import ledger_store
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.files import DiskUsage, Files, read_file
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import MIB, Corruption, MagnetarError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GcSettings:
    """The settings of garbage collection."""

    wait_s: float
    """Seconds between two rounds."""
    metadata_reads_s: float
    listing: ListingLimits
    moved_interval_s: float
    """Seconds between two passes for copies that moved; 0: never."""
    index_interval_s: float
    """Seconds between two compactions of the index; 0: only on request."""
    minor: KindPlan
    major: KindPlan
    force_when_off: bool
    """Whether a compaction can be forced although its settings switch it off."""
    compaction: CompactionSettings

    @classmethod
    def of(cls, config: BookieConfig) -> "GcSettings":
        return cls(
            wait_s=config.gc_wait_ms / 1000,
            metadata_reads_s=config.gc_metadata_rate,
            listing=ListingLimits(config.gc_refuse_empty_listing, config.gc_shrink_share, config.gc_shrink_ledgers_min),
            moved_interval_s=config.gc_over_replicated_wait_ms / 1000,
            index_interval_s=config.location_compaction_interval_s,
            minor=_plan(config.minor_threshold, config.minor_interval_s, config.minor_max_ms),
            major=_plan(config.major_threshold, config.major_interval_s, config.major_max_ms),
            force_when_off=config.force_allow_compaction,
            compaction=CompactionSettings(
                by_bytes=config.compaction_by_bytes,
                entries_s=config.compaction_entries_s,
                bytes_s=config.compaction_bytes_s,
                unsynced_entries_max=config.compaction_unsynced_entries,
                reserve_bytes=config.write_cache_mib * MIB,
                may_use_reserve=config.gc_force_without_space,
            ),
        )


def _plan(threshold: float, interval_s: int, max_ms: int) -> KindPlan:
    return KindPlan(threshold, interval_s, max_ms / 1000 if max_ms > 0 else None)


@dataclass(frozen=True, slots=True)
class GcStatus:
    """The state of garbage collection. Times are wall-clock milliseconds; None: never since the start."""

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
    doubt: DoubtStatus
    """Ledgers that stay because they are newer than the metadata."""
    deleted_ledgers: int
    moved_ledgers: int
    """Deleted because their copies are on other bookies."""
    unreadable_ledgers: tuple[int, ...]
    """Ledgers that stay because their metadata is damaged (the first hundred)."""
    refused: Refusal | None
    """Why the last round deleted no ledger."""
    failed: str | None
    logs: int
    log_bytes: int
    live_bytes: int
    removed_logs: int
    reclaimed_bytes: int
    compaction_bytes: int
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
class GcRequest:
    """What an operator asked of the next round."""

    kinds: set[CompactionKind] = field(default_factory=set)
    accept_listing: bool = False
    is_forced: bool = False


@dataclass(slots=True)
class _Rounds:
    """The progress of the round under way, and the outcome of the last one."""

    phase: str = "idle"
    is_forced: bool = False
    count: int = 0
    started_ms: int | None = None
    finished_ms: int | None = None
    last_s: float = 0.0
    refused: Refusal | None = None
    failed: str | None = None

    def enter(self, phase: str) -> None:
        self.phase = phase


class GarbageCollector:
    """The rounds of one bookie: when they run, and the order of their parts. Used on the loop."""

    def __init__(
        self,
        settings: GcSettings,
        bookie_id: str,
        store: MetadataStore,
        root: str,
        files: Files,
        storage: LedgerStorage,
        rules: RequestRules,
        cache: WriteCache,
        threads: Threads,
        clock: Clock,
        usage: Callable[[str], DiskUsage],
        older_metadata: OlderMetadata,
    ) -> None:
        self.older_metadata = older_metadata
        self._settings = settings
        self._bookie_id = bookie_id
        self._store = store
        self._root = root
        self._files = files
        self._storage = storage
        self._ledgers = rules.ledgers
        self._maintenance = threads.maintenance
        self._clock = clock
        self._tasks = Tasks("garbage")
        self._timer: Timer | None = None
        self._round: asyncio.Task[None] | None = None
        self._request: GcRequest | None = None
        self._is_held = False
        self._stopping = False
        self._rounds = _Rounds()
        self._reads = MetadataReads(LedgerStore(store, root), clock, settings.metadata_reads_s, lambda: self._stopping)
        removal = LedgerRemoval(bookie_id, storage, rules, cache, threads.flusher, clock)
        self._deleted = DeletedLedgers(rules.ledgers, self._reads, removal, settings.listing, older_metadata)
        self._moved = MovedLedgers(
            bookie_id, store, root, rules.ledgers, self._reads, removal, clock, settings.moved_interval_s
        )
        compactor = Compactor(
            files,
            storage,
            rules.ledgers,
            threads.flusher,
            threads.maintenance,
            threads.all_readers,
            clock,
            usage,
            settings.compaction,
            lambda: self._stopping,
        )
        schedule = CompactionSchedule(
            settings.minor, settings.major, force_when_off=settings.force_when_off, now_s=clock.monotonic()
        )
        self._logs = LogCompaction(compactor, schedule, clock)
        self._index = IndexCompaction(storage, threads.maintenance, clock, self._tasks, settings.index_interval_s)

    # -- from outside

    def start(self) -> None:
        self._plan_next()

    async def stop(self) -> None:
        """End the round under way. An unfinished copy of a log is removed; a complete one is put to use."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._round is not None:
            await asyncio.gather(self._round, return_exceptions=True)
        await self._tasks.cancel()

    def trigger(self, *, force_minor: bool = False, force_major: bool = False, accept_listing: bool = False) -> None:
        """Start a round now, or right after the one under way.

        *accept_listing*: an operator has verified that the listing is right, although it is empty or has shrunk.
        """
        request = self._request = self._request or GcRequest()
        request.is_forced = True
        request.accept_listing = request.accept_listing or accept_listing
        if force_minor:
            request.kinds.add(CompactionKind.MINOR)
        if force_major:
            request.kinds.add(CompactionKind.MAJOR)
        if self._round is None:
            self._begin()

    async def settled(self) -> None:
        """Wait until no round runs."""
        while self._round is not None:
            await asyncio.shield(self._round)

    async def hold(self) -> None:
        """Begin no round until `release`; return when none runs (rule 4). One holder at a time."""
        assert not self._is_held
        self._is_held = True
        await self.settled()

    def release(self) -> None:
        """Allow rounds again. One that was requested meanwhile begins."""
        assert self._is_held, "the collector is released, and nobody holds it (rule 4)"
        self._is_held = False
        if self._round is not None or self._stopping:
            return
        if self._request is not None:
            self._begin()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._plan_next()

    def suspend(self, *, minor: bool = False, major: bool = False) -> None:
        """Start no compaction of that kind until it is resumed, or until a restart. One under way continues."""
        self._logs.set_suspended(True, minor=minor, major=major)

    def resume(self, *, minor: bool = False, major: bool = False) -> None:
        self._logs.set_suspended(False, minor=minor, major=major)

    @property
    def location_directories(self) -> dict[str, bool]:
        """Path of each index → whether it is being compacted."""
        return self._index.directories

    def compact_locations(self, paths: Iterable[str] | None = None) -> None:
        """Compact the index in the background, all of it or that at *paths*. Raises MagnetarError."""
        self._index.compact(paths)

    def status(self) -> GcStatus:
        rounds, logs, index = self._rounds, self._logs, self._index
        compactor, counts = logs.compactor, logs.compactor.counts
        return GcStatus(
            phase="held" if self._is_held and self._round is None else rounds.phase,
            is_forced=rounds.is_forced,
            rounds=rounds.count,
            last_started_ms=rounds.started_ms,
            last_finished_ms=rounds.finished_ms,
            last_round_s=rounds.last_s,
            listed_ledgers=self._deleted.listed,
            local_ledgers=len(self._ledgers),
            quarantined_ledgers=len(self._deleted.quarantine),
            tombstones=len(self._ledgers.tombstones),
            doubt=self.older_metadata.status(),
            deleted_ledgers=self._deleted.removed,
            moved_ledgers=self._moved.removed,
            unreadable_ledgers=tuple(sorted(self._reads.unreadable)[:100]),
            refused=rounds.refused,
            failed=rounds.failed,
            logs=compactor.log_count,
            log_bytes=compactor.total_bytes,
            live_bytes=compactor.live_bytes,
            removed_logs=counts.removed_logs,
            reclaimed_bytes=counts.reclaimed_bytes,
            compaction_bytes=counts.compaction_bytes,
            compacted_logs=counts.compacted_logs,
            copied_entries=counts.copied_entries,
            copied_bytes=counts.copied_bytes,
            damaged_logs=dict(compactor.damaged),
            skipped_for_room=compactor.skipped_for_room,
            minor_suspended=logs.is_suspended(CompactionKind.MINOR),
            major_suspended=logs.is_suspended(CompactionKind.MAJOR),
            minor_compactions=logs.counts[CompactionKind.MINOR],
            major_compactions=logs.counts[CompactionKind.MAJOR],
            location_compactions=index.count,
            last_minor_ms=logs.last_ms.get(CompactionKind.MINOR),
            last_major_ms=logs.last_ms.get(CompactionKind.MAJOR),
            last_location_ms=index.last_ms,
        )

    # -- rounds

    def _plan_next(self) -> None:
        if not self._stopping:
            self._timer = self._clock.call_later(self._settings.wait_s, self._begin)

    def _begin(self) -> None:
        if self._round is not None or self._stopping or self._is_held:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        request, self._request = self._request or GcRequest(), None
        self._round = self._tasks.spawn(self._run(request), "round")

    async def _run(self, request: GcRequest) -> None:
        rounds = self._rounds
        assert rounds.phase == "idle", "one round at a time"
        began_s = self._clock.monotonic()
        rounds.started_ms = self._clock.wall_ms()
        rounds.is_forced = request.is_forced
        rounds.failed = None
        try:
            await self._collect_ledgers(request.accept_listing)
            await self._collect_logs(request.kinds)
        except Stopped:
            pass
        except (OSError, MagnetarError) as error:
            rounds.failed = str(error)
            log.error("garbage collection of bookie %s ends early: %s", self._bookie_id, error)
        finally:
            rounds.count += 1
            rounds.enter("idle")
            rounds.is_forced = False
            rounds.last_s = self._clock.monotonic() - began_s
            rounds.finished_ms = self._clock.wall_ms()
            self._round = None
            if self._request is not None:
                self._begin()
            else:
                self._plan_next()

    async def _collect_ledgers(self, accept_listing: bool) -> None:
        """Raises OSError, Stopped."""
        rounds = self._rounds
        try:
            refusal = await self._check_cluster()
            if refusal is None:
                refusal = await self._deleted.collect(accept_listing, rounds.enter)
            if refusal is None and self._moved.is_due and not self.older_metadata.is_open:
                rounds.enter("moved copies")
                await self._moved.collect()
        except (MetadataError, Corruption) as error:
            refusal = Refusal(RefusalCode.METADATA, str(error))
        if refusal is not None and refusal != rounds.refused:
            log.error("bookie %s deletes no ledgers (%s): %s", self._bookie_id, refusal.code, refusal.text)
        rounds.refused = refusal

    async def _collect_logs(self, forced: set[CompactionKind]) -> None:
        """Raises OSError, Stopped."""
        await self._logs.run(forced, self._rounds.enter)
        self._index.compact_if_due()

    async def _check_cluster(self) -> Refusal | None:
        """Check rule 1; None: all is well. Raises MetadataError, Corruption, OSError."""
        path = posixpath.join(self._storage.directories[0].path, VERSION)
        ours = cookies.decode(await self._maintenance.run(lambda: read_file(self._files, path)), path).instance_id
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
