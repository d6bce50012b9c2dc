"""The cluster as one bookie sees it: operators may ask any bookie.

It is read from the metadata store at each request; nothing is kept. The other bookies are asked for their disk space.
"""

import asyncio
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.marks import underreplication
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.bookkeeper.tls.disk_space import ask_disks
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.security.tls.contexts import Certificates

# Time for connecting and one small answer. A bookie that takes longer is shown as one that does not answer.
_TIMEOUT_S: Final = 10.0

# Bookies that are asked at the same time.
ASKED_MAX: Final = 32


class ClusterInfo(NamedTuple):
    """The cluster in numbers."""

    auditor_elected: bool
    auditor_id: str
    cluster_under_replicated: bool
    ledger_replication_enabled: bool
    total_bookies_count: int
    writable_bookies_count: int
    readonly_bookies_count: int
    unavailable_bookies_count: int
    """Bookies that have a cookie and are not registered."""


class ClusterView:
    """Asks the metadata store below *root*. All on the loop."""

    def __init__(self, store: MetadataStore, root: str, clock: Clock, certificates: Certificates | None = None) -> None:
        """With *certificates* bookies are asked over TLS only."""
        self._store = store
        self._root = root
        self._directory = BookieDirectory(store, root, clock)
        self._certificates = certificates

    async def writable(self) -> list[str]:
        """Ids of the bookies that take new ledgers. Raises MetadataError."""
        names = await self._store.children(f"{self._root}/available")
        return [bookie_id for bookie_id in names if bookie_id != "readonly"]

    async def read_only(self) -> list[str]:
        """Ids of the bookies that only answer reads. Raises MetadataError."""
        return await self._store.children(f"{self._root}/available/readonly")

    async def host_of(self, bookie_id: str) -> str | None:
        """The host name or address under which clients reach the bookie; None if it is not known."""
        try:
            return (await self._directory.address_of(bookie_id))[0]
        except MetadataError:
            return None

    async def cookies(self) -> dict[str, str]:
        """Bookie id → its cookie as text. Raises MetadataError."""
        cookies: dict[str, str] = {}
        for bookie_id in await self._store.children(f"{self._root}/cookies"):
            node = await self._store.get(f"{self._root}/cookies/{bookie_id}")
            if node is not None:
                cookies[bookie_id] = node.value.decode("utf-8", "replace")
        return cookies

    async def info(self) -> ClusterInfo:
        """Raises MetadataError."""
        writable = set(await self.writable())
        read_only = set(await self.read_only()) - writable
        known = set(await self._store.children(f"{self._root}/cookies")) | writable | read_only
        auditor = await self.auditor()
        return ClusterInfo(
            auditor_elected=auditor is not None,
            auditor_id=auditor or "",
            cluster_under_replicated=await self._any_below(underreplication.marks_path(self._root), levels=4),
            ledger_replication_enabled=not await self._store.exists(underreplication.disabled_path(self._root)),
            total_bookies_count=len(known),
            writable_bookies_count=len(writable),
            readonly_bookies_count=len(read_only),
            unavailable_bookies_count=len(known - writable - read_only),
        )

    async def spaces(self) -> dict[str, DiskUsage | str]:
        """Bookie id → its disk usage, or why it is not known. Raises MetadataError."""
        slots = asyncio.Semaphore(ASKED_MAX)

        async def ask(bookie_id: str) -> DiskUsage | str:
            async with slots:
                try:
                    async with asyncio.timeout(_TIMEOUT_S):
                        return await self._ask(bookie_id)
                except (OSError, TimeoutError, MetadataError, MalformedFrame) as error:
                    return str(error) or f"no answer within {_TIMEOUT_S:.0f} s"

        bookie_ids = sorted({*await self.writable(), *await self.read_only()})
        return dict(zip(bookie_ids, await asyncio.gather(*map(ask, bookie_ids)), strict=True))

    async def _ask(self, bookie_id: str) -> DiskUsage:
        return await ask_disks(*await self._directory.address_of(bookie_id), self._certificates)

    async def auditor(self) -> str | None:
        """The bookie that is auditor: the first candidate; None if there is none."""
        path = underreplication.election_path(self._root)
        candidates = [name for name in await self._store.children(path) if name.startswith("V_")]
        for name in sorted(candidates, key=lambda name: name.removeprefix("V_")):
            node = await self._store.get(f"{path}/{name}")
            auditor = None if node is None else underreplication.voter(node.value)
            if auditor is not None:
                return auditor
        return None

    async def _any_below(self, path: str, levels: int) -> bool:
        """Whether there is a node *levels* levels below the children of *path*."""
        names = await self._store.children(path)
        if levels == 0:
            return bool(names)
        for name in names:
            if await self._any_below(f"{path}/{name}", levels - 1):
                return True
        return False
