"""Reports of bad ledgers and of lost entries in the metadata store, and posting them from inside a server.

    <root>/underreplication/magnetar/reports/<id>     one report (`damage_rules`)

Rules:

1. A report is changed by compare-and-set; posts that meet are all counted.
2. A report that cannot be read is logged and does not hide the others (I60). Posted again, it is written anew.
3. Posting from inside a server (`DamageReporter`) neither delays nor fails whoever does it. The same damage is written
   at most once a minute, with how often it was met. What does not fit the queue is left out, and that is logged once.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.metadata.damage import rules
from magnetar_core.bookkeeper.metadata.damage.rules import Damage, Kind, Range, Report, Source, Stage
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    MetadataError,
    MetadataStore,
    NoNode,
    OutcomeUnknown,
    StoreUnavailable,
    VersionConflict,
)
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

OnDamage = Callable[[int, Kind, Sequence[Range], str], None]
"""Called with (ledger, kind, ranges of entries, text) of a damage; returns at once and never fails."""

# Others that change the same report at the same time; each of them made progress.
_CONFLICTS_MAX: Final = 20

# Damage that waits to be written. Above it there is more than anybody reads, and the log has it anyway.
QUEUE_MAX: Final = 1_000

# Rule 3.
_AGAIN_S: Final = 60.0


class TooManyReports(MetadataError):
    """No more reports fit; the text says the way out."""


class NoSuchReport(MetadataError):
    """No report has this id."""


class _Versioned(NamedTuple):
    report: Report
    version: int


class DamageReports:
    """Reports below *root*. All calls are made on the store's loop and raise MetadataError."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._path = f"{root}/underreplication/magnetar/reports"
        self._logged: set[str] = set()

    async def post(self, damage: Damage, wall_ms: int, count: int = 1) -> Report:
        """Say that *damage* was met *count* times. Raises BadReport, TooManyReports.

        A store whose answer is lost may make the count too high by this post, which does no harm.
        """
        damage = rules.checked(damage)
        report_id = rules.report_id(damage.ledger_id, damage.kind, damage.source, damage.name)
        path = f"{self._path}/{report_id}"
        for _ in range(_CONFLICTS_MAX):
            node = await self._store.get(path)
            stored: Report | None = None
            if node is None:
                await self._make_room()
            else:
                try:
                    stored = rules.decode(node.value)
                except Corruption as error:
                    log.error("%s: %s; it is written anew", path, error)
            after = rules.posted(stored, damage, count, wall_ms)
            try:
                await self._store.put(path, rules.encode(after), NO_NODE if node is None else node.version)
            except (VersionConflict, OutcomeUnknown):
                continue
            return after
        raise StoreUnavailable(f"{path}: {_CONFLICTS_MAX} changes by others in a row, or no answer")

    async def _make_room(self) -> None:
        """Raises TooManyReports."""
        if len(await self._store.children(self._path)) < rules.REPORTS_MAX:
            return
        oldest = rules.first_to_go(await self.all())
        if oldest is None:
            raise TooManyReports(
                f"there are {rules.REPORTS_MAX} reports, none of them mended; mend some of them "
                "(`magnetar autorecovery reports`)"
            )
        try:
            await self._store.delete(f"{self._path}/{oldest.id}")
        except NoNode:
            return

    async def all(self) -> list[Report]:
        """Every report that can be read (rule 2), by ledger, those that came first before."""
        reports = []
        for name in await self._store.children(self._path):
            try:
                reports.append((await self._read(name)).report)
            except NoSuchReport:
                continue
            except Corruption as error:
                if name not in self._logged:
                    self._logged.add(name)
                    log.error("%s", error)
        return sorted(reports, key=lambda report: (report.ledger_id, report.first_ms, report.id))

    async def read(self, report_id: str) -> Report:
        """Raises NoSuchReport, Corruption."""
        return (await self._read(report_id)).report

    async def _read(self, report_id: str) -> _Versioned:
        if not rules.is_id(report_id):
            raise NoSuchReport(f"no report has the id {report_id!r}")
        node = await self._store.get(f"{self._path}/{report_id}")
        if node is None:
            raise NoSuchReport(f"no report has the id {report_id}")
        try:
            return _Versioned(rules.decode(node.value), node.version)
        except Corruption as error:
            raise Corruption(f"{node.path}: {error}") from error

    async def move(self, report_id: str, to: Stage, by: str, note: str, wall_ms: int) -> Report:
        """Acknowledge or mend a report. Raises NoSuchReport, WrongStage, Corruption."""
        sent: Report | None = None
        for _ in range(_CONFLICTS_MAX):
            stored = await self._read(report_id)
            if stored.report == sent:
                return sent  # the answer was lost, and the change was made
            after = rules.moved(stored.report, to, by, note, wall_ms)
            try:
                await self._store.put(f"{self._path}/{report_id}", rules.encode(after), stored.version)
            except OutcomeUnknown:
                sent = after
            except VersionConflict:
                sent = None
            else:
                return after
        raise StoreUnavailable(f"report {report_id}: {_CONFLICTS_MAX} changes by others in a row, or no answer")


def ignore_damage(ledger_id: int, kind: Kind, ranges: Sequence[Range], text: str) -> None:
    """An OnDamage for those who report to nobody, such as tools and tests."""


@dataclass(slots=True)
class _Met:
    """Damage that was met since it was last written."""

    damage: Damage
    count: int
    due_s: float


class DamageReporter:
    """Posts what one server meets, in the background (rule 3). Used on the loop."""

    def __init__(self, store: MetadataStore, root: str, source: Source, name: str, clock: Clock) -> None:
        self._reports = DamageReports(store, root)
        self._source = source
        self.name = name
        """The name of this reporter in its reports."""
        self._clock = clock
        self._tasks = Tasks("damage reports")
        self._woken = Bell()
        self._is_running = self._is_stopped = False
        self._met: dict[tuple[int, Kind], _Met] = {}
        self._written_s: dict[tuple[int, Kind], float] = {}
        self._has_logged_full = self._has_logged_failure = False

    def report(self, ledger_id: int, kind: Kind, ranges: Iterable[Range], text: str) -> None:
        """Report that *ledger_id* is damaged. Returns at once."""
        if self._is_stopped:
            return
        key = ledger_id, kind
        damage = Damage(ledger_id, kind, self._source, self.name, text, rules.joined(ranges))
        known = self._met.get(key)
        if known is not None:
            ranges = rules.joined((*known.damage.ranges, *damage.ranges))
            known.damage = damage._replace(ranges=ranges)
            known.count += 1
            return
        if len(self._met) >= QUEUE_MAX:
            if not self._has_logged_full:
                self._has_logged_full = True
                log.error("%d reports of damage wait to be written; further ones are left out", QUEUE_MAX)
            return
        now_s = self._clock.monotonic()
        self._met[key] = _Met(damage, 1, max(now_s, self._written_s.get(key, now_s - _AGAIN_S) + _AGAIN_S))
        if not self._is_running:
            self._is_running = True
            self._tasks.spawn(self._run(), "post")
        self._woken.ring()

    async def stop(self) -> None:
        """End; what waits is not written."""
        self._is_stopped = True
        await self._tasks.cancel()

    def _due(self) -> tuple[int, Kind] | None:
        now_s = self._clock.monotonic()
        return next((key for key, met in self._met.items() if met.due_s <= now_s), None)

    async def _run(self) -> None:
        while True:
            key = self._due()
            if key is not None:
                await self._post(key)
                continue
            wait_s = min((met.due_s for met in self._met.values()), default=self._clock.monotonic() + _AGAIN_S)
            wait_s -= self._clock.monotonic()
            await self._woken.until(lambda: self._due() is not None, self._clock, max(wait_s, 0.01))

    async def _post(self, key: tuple[int, Kind]) -> None:
        met = self._met.pop(key)
        now_s = self._clock.monotonic()
        self._written_s = {known: at_s for known, at_s in self._written_s.items() if now_s - at_s < _AGAIN_S}
        self._written_s[key] = now_s
        try:
            await self._reports.post(met.damage, self._clock.wall_ms(), met.count)
        except TooManyReports as error:
            self._log_failure(key, error)
        except MetadataError as error:
            self._log_failure(key, error)
            newer = self._met.get(key)
            ranges = rules.joined((*met.damage.ranges, *(newer.damage.ranges if newer else ())))
            count = met.count + (newer.count if newer else 0)
            self._met[key] = _Met(met.damage._replace(ranges=ranges), count, now_s + _AGAIN_S)
        except Exception as error:  # a report never breaks its reporter, whatever is wrong with it
            log.error("damage of ledger %d is not reported: %r", key[0], error, exc_info=error)
        else:
            self._has_logged_failure = self._has_logged_full = False

    def _log_failure(self, key: tuple[int, Kind], error: MetadataError) -> None:
        if not self._has_logged_failure:
            self._has_logged_failure = True
            log.warning("damage of ledger %d (%s) is not reported yet: %s", *key, error)
