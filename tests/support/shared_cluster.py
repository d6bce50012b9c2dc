"""One cluster for all tests of a worker that ask for it, made whole between them.

Rules:

1. Before a test every process runs, every bookie is active and writable, and no ledger is marked as lacking copies.
2. What the test before left in the tenant `public` is gone, but for the namespace `default`, which no test uses here.
3. A bookie that was removed is there again, as a new one with empty directories.
4. A cluster that cannot be made whole within HEAL_S ends, and the test gets a new one.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from magnetar.inspect.broker_admin import AdminClient, AdminError
from magnetar.processes.cluster import Cluster
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import MagnetarError
from tests.support.processes import cluster_of, until
from tests.support.shell import bookies
from tests.support.waiting import eventually

BOOKIES: Final = 5
BROKERS: Final = 2
HEAL_S: Final = 60.0

# Namespaces are deleted with what is in them (rule 2).
BROKER_SETTINGS: Final[Mapping[str, object]] = MappingProxyType({"forceDeleteNamespaceAllowed": "true"})

# A ledger that is open and idle, as those of a broker's own records are, keeps a drain and a repair waiting so long.
OPEN_GRACE_MS: Final = 2_000

T = TypeVar("T")


class SharedCluster:
    """Five bookies with auto-recovery and two brokers; made when it is first asked for."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._processes = contextlib.ExitStack()
        self._made: Cluster | None = None

    def whole(self) -> Cluster:
        """The cluster, by rules 1 to 4."""
        if self._made is not None:
            try:
                return heal(self._made)
            except (AssertionError, MagnetarError, OSError) as error:
                print(f"the cluster is given up: {error!r}", file=sys.stderr)
                self.stop()
        made = cluster_of(
            self._new_folder(),
            bookies=BOOKIES,
            brokers=BROKERS,
            broker_settings=BROKER_SETTINGS,
            bookie_settings=lambda _: f"openLedgerRereplicationGracePeriod={OPEN_GRACE_MS}\n",
        )
        self._made = self._processes.enter_context(made)
        return self._made

    def stop(self) -> None:
        self._made = None
        self._processes.close()


def heal(cluster: Cluster) -> Cluster:
    """Rules 1 to 3; returns *cluster*. Raises AssertionError, MagnetarError, OSError."""
    running = [member for member in cluster.state.members if cluster.is_running(member.name)]
    for member in running:
        os.kill(member.pid, signal.SIGCONT)
    if not cluster.is_running("zookeeper"):
        cluster.start("zookeeper")
    ids = {f"{member.address}:{member.port}": member.name for member in cluster.members("bookie")}

    async def look(store: MetadataStore) -> tuple[list[str], list[str]]:
        """Names of bookies that were removed, ids of those that are not active."""
        states = BookieStates(store)
        removed = [name for one, name in ids.items() if not await states.has_cookie(one)]
        return removed, [one for one in ids if (await states.read(one)).lifecycle.state is not State.ACTIVE]

    removed, leaving = in_metadata(cluster, look)
    for name in removed:
        if cluster.is_running(name):
            cluster.kill(name)
        for directory in ("journal", "ledgers"):
            shutil.rmtree(cluster.directory / name / directory, ignore_errors=True)
    cluster.up(bookies=len(ids), brokers=len(cluster.members("broker")))
    for one in leaving:
        code, told = bookies(cluster.metadata_url, "cancel", one)
        assert code == 0, told
    admin = AdminClient(cluster.admin_urls)

    def all_serve() -> bool:
        return len(admin.call("GET", "/admin/v2/brokers")) == len(cluster.members("broker"))

    def are_gone() -> bool:
        """Rule 2."""
        left = [one for one in admin.call("GET", "/admin/v2/namespaces/public") if one != "public/default"]
        for namespace in left:
            admin.call("DELETE", f"/admin/v2/namespaces/{namespace}?force=true")
        return not left

    for check, what in ((all_serve, "all brokers serve"), (are_gone, "namespaces are deleted")):
        until(partial(_is_true, check), what, HEAL_S)

    async def settled(store: MetadataStore) -> None:
        directory, marks = BookieDirectory(store), MarkBoard(store)

        async def is_settled() -> bool:
            every_bookie = await directory.read_writable() == ids.keys()
            return every_bookie and not [one async for one in marks.marked()]

        await eventually(is_settled, HEAL_S)

    in_metadata(cluster, settled)
    return cluster


def _is_true(check: Callable[[], bool]) -> bool:
    """False where a broker refuses: it may have no session yet."""
    try:
        return check()
    except AdminError:
        return False


def in_metadata(cluster: Cluster, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """What *work* returns, with a session at the cluster's metadata store."""

    async def go() -> T:
        store = await open_store(cluster.metadata_url, LoopClock(), session_timeout_s=10.0)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(go())
