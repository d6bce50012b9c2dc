"""What the dashboard shows, gathered for all who look at it: bookies, drains, ledgers that lack copies, nodes, history.

    metadata store ──every second, while somebody asks──▶ one value of JSON ──▶ all viewers
    bookies (disk space) ──every ten seconds──────────────┘

Rules:

1. Ten viewers cost as much as one, and without a viewer nothing is read: the value is made when it is asked for, and
   the same one is given for a second.
2. A bookie that does not answer delays nothing: what was known of its disks stays for a minute, then they are unknown.
3. What the metadata store does not say is shown as unknown, never as zero.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from autorecovery.admin.shapes import mode_of
from autorecovery.admin.subjects.recovery import marked_json
from autorecovery.reporting.history import hour_of
from autorecovery.reporting.overview import Overview, read_overview
from autorecovery.reporting.reports import NodeReport, drains_of
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Lifecycle
from magnetar_core.bookkeeper.metadata.bookies.rack_records import RackRecord
from magnetar_core.bookkeeper.metadata.bookies.racks import RackRecords
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.bookkeeper.tls.disk_space import ask_disks
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Corruption
from magnetar_core.security.tls.contexts import Certificates

_FRESH_S: Final = 1.0

# Disks fill slowly. A bookie answers within milliseconds; one that takes longer is asked again at the next round.
_DISKS_EACH_S: Final = 10.0
_DISKS_ANSWER_S: Final = 3.0
_DISKS_KEPT_S: Final = 60.0
_ASKED_MAX: Final = 32

# Ledgers that a page names; the others are counted. A person scrolls through no more.
PAGE_LEDGERS_TOLD: Final = 200

# Owners of ledgers that are remembered, some 100 bytes each; beyond it all are forgotten, and read anew when needed.
_OWNERS_MAX: Final = 10_000

AskDisks = Callable[[str, int], Awaitable[DiskUsage]]


class ClusterStatus:
    """Used on the loop of its metadata store."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieDirectory,
        clock: Clock,
        *,
        root: str = "/ledgers",
        certificates: Certificates | None = None,
        ask: AskDisks | None = None,
    ) -> None:
        """*bookies* is started. With *certificates* bookies are asked over TLS. *ask* is for tests."""
        self._store = store
        self._root = root
        self._bookies = bookies
        self._states = BookieStates(store, root)
        self._racks = RackRecords(store, root)
        self._clock = clock
        self._ask: AskDisks = ask if ask is not None else lambda host, port: ask_disks(host, port, certificates)
        self._turn = asyncio.Lock()
        self._value: dict[str, Any] = {}
        self._made_s = float("-inf")
        self._owners: dict[int, str] = {}
        self._disks: dict[str, tuple[DiskUsage, float]] = {}
        self._disks_asked_s = float("-inf")
        self._tasks = Tasks("disk space of bookies")

    async def read(self) -> dict[str, Any]:
        """The value (rule 1). Raises MetadataError."""
        async with self._turn:
            if self._clock.monotonic() - self._made_s >= _FRESH_S:
                self._value = await self._build_answer()
                self._made_s = self._clock.monotonic()
            return self._value

    async def stop(self) -> None:
        await self._tasks.cancel()

    async def _build_answer(self) -> dict[str, Any]:
        if len(self._owners) > _OWNERS_MAX:
            self._owners.clear()
        overview = await read_overview(self._store, self._root, self._owners)
        now_ms = self._clock.wall_ms()
        return {
            "now_ms": now_ms,
            "is_enabled": overview.is_enabled,
            "lost_bookie_delay_s": overview.lost_bookie_delay_s,
            "auditor": _auditor(overview),
            "nodes": [_node(node) for node in overview.nodes],
            "bookies": await self._read_bookies(overview),
            "under_replicated": {
                "total": overview.marked_total,
                "ledgers": [marked_json(ledger) for ledger in overview.marked[:PAGE_LEDGERS_TOLD]],
            },
            "history": [
                list(step)
                for step in hour_of(
                    [node.facts.get("history", []) for node in overview.nodes], now_ms, _known_from_ms(overview.nodes)
                )
            ],
        }

    async def _read_bookies(self, overview: Overview) -> list[dict[str, Any]]:
        self._refresh_disks()
        drains = drains_of(overview.nodes)
        known = {*await self._states.bookies(), *self._bookies.available}
        racks = await self._read_racks()
        slots = asyncio.Semaphore(_ASKED_MAX)

        async def one(bookie_id: str) -> dict[str, Any]:
            async with slots:
                return await self._bookie(bookie_id, racks.get(bookie_id), drains.get(bookie_id))

        return await asyncio.gather(*map(one, sorted(known)))

    async def _bookie(self, bookie_id: str, rack: str | None, drain: dict[str, Any] | None) -> dict[str, Any]:
        unreadable = ""
        try:
            lifecycle: Lifecycle | None = (await self._states.read(bookie_id)).lifecycle
        except Corruption as error:
            lifecycle, unreadable = None, str(error)
        return {
            "id": bookie_id,
            "serving": mode_of(bookie_id, self._bookies.writable, self._bookies.read_only),
            "read_only_reason": await self._reason(bookie_id),
            "state": None if lifecycle is None else str(lifecycle.state),
            "state_problem": unreadable,
            "by": lifecycle.by if lifecycle else "",
            "why": lifecycle.why if lifecycle else "",
            "since_ms": lifecycle.since_ms if lifecycle and lifecycle.since_ms else None,
            "began_ms": lifecycle.began_ms if lifecycle and lifecycle.began_ms else None,
            "failed_ledgers": [
                {"ledger_id": ledger_id, "why": text} for ledger_id, text in (lifecycle.reasons if lifecycle else ())
            ][:PAGE_LEDGERS_TOLD],
            "failed_ledgers_total": lifecycle.reasons_total if lifecycle else 0,
            "rack": rack,
            "disk": self._disk(bookie_id),
            "drain": drain,
        }

    async def _reason(self, bookie_id: str) -> str:
        if bookie_id not in self._bookies.read_only:
            return ""
        try:
            return (await self._bookies.info_of(bookie_id)).read_only_reason
        except MetadataError:
            return ""  # it was removed meanwhile

    async def _read_racks(self) -> dict[str, str]:
        """Bookie → rack; none if there is no record of racks, or it cannot be read: the page shows the rest."""
        try:
            groups = await self._racks.read()
        except Corruption:
            return {}
        return {} if groups is None else RackRecord(groups).racks

    # ------------------------------------------------------------------------------------ disk space

    def _disk(self, bookie_id: str) -> dict[str, int] | None:
        reading = self._disks.get(bookie_id)
        if reading is None or self._clock.monotonic() - reading[1] > _DISKS_KEPT_S:
            return None
        return {"total_bytes": reading[0].total_bytes, "free_bytes": reading[0].free_bytes}

    def _refresh_disks(self) -> None:
        """Ask in the background (rule 2)."""
        if self._clock.monotonic() - self._disks_asked_s < _DISKS_EACH_S:
            return
        self._disks_asked_s = self._clock.monotonic()
        self._tasks.spawn(self._ask_all(), "ask")

    async def _ask_all(self) -> None:
        slots = asyncio.Semaphore(_ASKED_MAX)

        async def one(bookie_id: str) -> None:
            async with slots:
                try:
                    async with asyncio.timeout(_DISKS_ANSWER_S):
                        usage = await self._ask(*await self._bookies.address_of(bookie_id))
                except (OSError, TimeoutError, MetadataError, MalformedFrame):
                    return
                self._disks[bookie_id] = usage, self._clock.monotonic()

        available = self._bookies.available
        await asyncio.gather(*map(one, sorted(available)))
        for gone in self._disks.keys() - available:
            del self._disks[gone]


def _known_from_ms(nodes: Sequence[NodeReport]) -> int:
    """Since when some node has told what it copies; 0: one does not say, as those of an earlier release."""
    began = [node.facts.get("history_from_ms") for node in nodes]
    return min((began_ms if type(began_ms) is int else 0 for began_ms in began), default=0)


def _auditor(overview: Overview) -> dict[str, Any]:
    """The auditor, with what it reports about itself if it is one of our nodes."""
    facts: dict[str, Any] = next(
        (dict(node.facts["auditor"]) for node in overview.nodes if isinstance(node.facts.get("auditor"), dict)), {}
    )
    return {"name": overview.auditor, "tells": facts or None}


def _node(report: NodeReport) -> dict[str, Any]:
    hidden = ("auditor", "drains", "history", "history_from_ms", "version")
    return {"name": report.name, **{name: value for name, value in report.facts.items() if name not in hidden}}
