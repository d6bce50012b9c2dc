"""The check of a bookie that may have lost entries. A missing entry is "unknown" until every copy was checked.

    needs check ──▶ every ledger of metadata that names this bookie is there; those not closed are fenced and in limbo
                ──▶ serving ──▶ closed ledgers: what is missing is copied back ──▶ limbo ends, ledger by ledger
                ──▶ all done: the check is not needed any more

Rules:

1. Limbo is durable before anything is served (I50). Every start sets it again while the check is needed.
2. A ledger leaves limbo when every entry that metadata assigns to this bookie was found here, was copied back, or is
   denied by all other bookies of its write set.
3. Ledgers that are not closed wait if their newest entries belong here: the next writer recovers them, which closes
   them.
4. If the newest entries of a ledger belong to this bookie alone, there is no other copy: entries missing here are lost,
   so the ledger leaves limbo, unless a log of its directory could not be read
   (`bookie.maintenance.garbage.unreadable`).
5. If doubts about ledgers arise while the bookie serves, those ledgers go into limbo, closed ones as well.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from bookie.jobs import JobThread
from bookie.maintenance.garbage.unreadable import unreadable_logs
from bookie.maintenance.passes import Passes
from bookie.maintenance.repair import RepairSource, RepairUnavailable, expected_entries, key_of, loss_text
from bookie.serving.request_rules import RequestRules
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.ledgers import Ledger
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.metadata.damage.reports import OnDamage
from magnetar_core.bookkeeper.metadata.damage.rules import Kind, Range, joined
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, NoNode
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import Files
from magnetar_core.runtime.rate_limiter import RateLimiter
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Time between two checks of the remaining ledgers; most of them wait to be closed.
LOOK_S: Final = 5.0

# Entries that one job of the maintenance thread looks up.
_LOOK_UP: Final = 1_000

# Entries that are copied back a second, at most.
_COPIES_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class IntegrityStatus:
    """The progress of the check."""

    is_needed: bool
    ledgers_left: int
    ledgers_in_limbo: int
    copied_entries: int
    lost_entries: int
    """Entries that no bookie has."""
    last_problem: str | None


class IntegrityCheck:
    """The check of one bookie. Used on the loop."""

    def __init__(
        self,
        bookie_id: str,
        metadata: LedgerStore,
        files: Files,
        storage: LedgerStorage,
        rules: RequestRules,
        cache: WriteCache,
        source: RepairSource,
        flusher: JobThread,
        maintenance: JobThread,
        clock: Clock,
        on_damage: OnDamage,
    ) -> None:
        """*on_damage* is called with entries that no bookie has."""
        self._bookie_id = bookie_id
        self._metadata = metadata
        self._files = files
        self._storage = storage
        self._rules = rules
        self._ledgers = rules.ledgers
        self._cache = cache
        self._source = source
        self._flusher = flusher
        self._maintenance = maintenance
        self._clock = clock
        self._on_damage = on_damage
        self._put_back: Callable[[int, bytes], Awaitable[int]]
        self._passes = Passes("integrity", clock, self._check_all, LOOK_S)
        self._is_needed = False
        self._left: set[int] = set()
        self._limiter = RateLimiter(_COPIES_S)
        self._copied = 0
        self._lost: dict[int, int] = {}
        """Ledger → entries of it that no bookie has."""
        self._problem: str | None = None

    def status(self) -> IntegrityStatus:
        return IntegrityStatus(
            is_needed=self._is_needed,
            ledgers_left=len(self._left),
            ledgers_in_limbo=sum(ledger.limbo for ledger in self._ledgers) if self._is_needed else 0,
            copied_entries=self._copied,
            lost_entries=sum(self._lost.values()),
            last_problem=self._problem,
        )

    async def prepare(self) -> None:
        """Put ledgers into limbo before the bookie serves, if the check is needed (rule 1). Raises MetadataError,
        OSError."""
        self._is_needed = await self._flusher.run(lambda: self._storage.needs_check)
        if not self._is_needed:
            # Apache's bookie may have left ledgers in limbo.
            self._left = {ledger.ledger_id for ledger in self._ledgers if ledger.limbo}
            self._is_needed = bool(self._left)
            return
        log.warning("bookie %s may have lost entries: reading which ledgers name it", self._bookie_id)
        async for ledger_id in self._metadata.list():
            try:
                metadata = (await self._metadata.read(ledger_id)).metadata
            except NoNode:
                continue
            except Corruption as error:
                self._keep_unreadable(ledger_id, error)
                continue
            if self._bookie_id in metadata.bookies():
                self._admit(ledger_id, metadata)
        # Also ledgers that a rebuild of the index put into limbo (`bookie.maintenance.rebuild.offline`), even if their
        # copies belong to other bookies by now.
        self._left |= {ledger.ledger_id for ledger in self._ledgers if ledger.limbo}
        rows = self._ledgers.take_dirty()
        await self._flusher.run(lambda: self._storage.flush({}, rows))
        for ledger in self._ledgers:
            ledger.is_fence_durable = ledger.fenced
        log.warning("bookie %s: %d ledgers are to be checked", self._bookie_id, len(self._left))

    def _admit(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers.create(ledger_id, key_of(metadata))
        self._left.add(ledger_id)
        if not metadata.is_closed and self._bookie_id in metadata.last_segment.ensemble:
            self._to_limbo(ledger)

    def _keep_unreadable(self, ledger_id: int, error: Exception) -> None:
        """Metadata does not say whether the ledger belongs here. If it is here, it goes into limbo and stays there."""
        log.error("ledger %d: its metadata cannot be read: %s", ledger_id, error)
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            self._left.add(ledger_id)
            self._to_limbo(ledger)

    def _to_limbo(self, ledger: Ledger) -> None:
        ledger.limbo = ledger.fenced = True
        self._ledgers.changed(ledger)

    def start(self, put_back: Callable[[int, bytes], Awaitable[int]]) -> None:
        """Begin the check. *put_back(ledger id, entry)* stores a copy durably and returns 0 or a refusal."""
        self._put_back = put_back
        if self._is_needed:
            self._passes.begin_in(LOOK_S)

    async def doubt(self, ledger_ids: Collection[int]) -> None:
        """Entries of these ledgers may be missing: put them into limbo now, then check them (rule 5).

        The check survives restarts, except after an OSError from here: then the limbo ends with the process.
        """
        self._is_needed = True
        for ledger_id in ledger_ids:
            ledger = self._ledgers.get(ledger_id)
            if ledger is not None:
                self._left.add(ledger_id)
                self._to_limbo(ledger)
        self._passes.begin_in(LOOK_S)
        await self._flusher.run(lambda: self._storage.set_needs_check(True))

    async def stop(self) -> None:
        await self._passes.stop()

    async def _check_all(self) -> float | None:
        """Look at the ledgers that are left. Returns when to look again: without that limbo would never end."""
        for ledger_id in sorted(self._left):
            try:
                if await self._check(ledger_id):
                    self._left.discard(ledger_id)
            except (RepairUnavailable, MetadataError, Corruption, OSError) as error:
                self._problem = f"ledger {ledger_id}: {error}"
                log.warning("%s", self._problem)
        if self._left:
            return LOOK_S
        try:
            await self._flusher.run(lambda: self._storage.set_needs_check(False))
        except OSError as error:
            self._problem = str(error)
            return LOOK_S
        if self._left:  # doubts came meanwhile
            return LOOK_S
        self._is_needed = False
        self._problem = None
        log.warning("bookie %s: every copy was checked; %d came back", self._bookie_id, self._copied)
        return None

    async def _check(self, ledger_id: int) -> bool:
        """Check one ledger; True if it may leave limbo (rule 2). Raises RepairUnavailable, MetadataError, Corruption,
        OSError."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return True
        try:
            metadata = (await self._metadata.read(ledger_id)).metadata
        except NoNode:
            return True  # deleted; garbage collection removes its entries here
        is_written_here = not metadata.is_closed and self._bookie_id in metadata.last_segment.ensemble
        if is_written_here and not await self._is_alone(ledger_id, metadata):
            return False
        expected = expected_entries(metadata, self._bookie_id)
        lost = 0
        ranges: tuple[Range, ...] = ()
        try:
            while chunk := list(islice(expected, _LOOK_UP)):
                for entry_id in await self._missing(ledger_id, chunk):
                    if not await self._copy(ledger_id, metadata, entry_id):
                        lost += 1
                        ranges = joined((*ranges, (entry_id, entry_id)))
        finally:
            self._give_up(ledger_id, metadata, lost, ranges)
        if ledger.limbo:
            ledger.limbo = False
            self._ledgers.changed(ledger)
        if is_written_here:
            log.error("ledger %d has no other copy: what is not here of it is lost", ledger_id)
        return True

    async def _is_alone(self, ledger_id: int, metadata: LedgerMetadata) -> bool:
        """Whether the ledger has no other copy (rule 4). Raises OSError."""
        if set(metadata.last_segment.ensemble) != {self._bookie_id}:
            return False
        directory = self._storage.directory_of(ledger_id).path
        unreadable = await self._maintenance.run(lambda: unreadable_logs(self._files, directory))
        if unreadable:
            self._problem = (
                f"ledger {ledger_id} has no other copy, and may have entries in logs that cannot be read: {unreadable}"
            )
            log.error("%s", self._problem)
        return not unreadable

    async def _missing(self, ledger_id: int, entry_ids: list[int]) -> list[int]:
        cached = self._cache.entry_ids(ledger_id)
        index = self._storage.directory_of(ledger_id).index
        first, count = entry_ids[0], entry_ids[-1] - entry_ids[0] + 1
        there = await self._maintenance.run(
            lambda: {entry_id for entry_id, _ in index.locations(ledger_id, first, count)}
        )
        return [entry_id for entry_id in entry_ids if entry_id not in there and entry_id not in cached]

    def _give_up(self, ledger_id: int, metadata: LedgerMetadata, lost: int, ranges: Sequence[Range]) -> None:
        """Report what no bookie has of a ledger: once, since it may be millions of entries, and looks are repeated."""
        if lost <= self._lost.get(ledger_id, 0):
            return
        self._lost[ledger_id] = lost
        text = loss_text(metadata, lost, f"bookie {self._bookie_id} does not have them any more")
        log.error("ledger %d: %s", ledger_id, text)
        self._on_damage(ledger_id, Kind.DATA_LOSS, ranges, text)

    async def _copy(self, ledger_id: int, metadata: LedgerMetadata, entry_id: int) -> bool:
        """Copy an entry back; False if no bookie has it. Raises RepairUnavailable."""
        entry = await self._source.read_entry(ledger_id, metadata, entry_id)
        if entry is None:
            return False
        rc = await self._put_back(ledger_id, entry)
        if rc:
            raise NotStored(f"ledger {ledger_id} entry {entry_id} cannot be stored: refused with {rc}")
        self._copied += 1
        await self._clock.sleep(max(self._limiter.spend(self._clock.monotonic(), 1) - 0.1, 0))
        return True


class NotStored(RepairUnavailable):
    """A copy from another bookie could not be stored here."""
