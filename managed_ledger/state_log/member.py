"""One node of a replicated state log with all that it needs: metadata store, bookies, disk, election, snapshots.

A service that uses a state log begins here; its parts can also be put together differently (see `StateLog`).
"""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.tasks import Parts
from managed_ledger.state_log.config import StateLogConfig
from managed_ledger.state_log.election import LeaderElection
from managed_ledger.state_log.members import MemberNodes
from managed_ledger.state_log.replica import StateMachine
from managed_ledger.state_log.snapshot_http import HttpSnapshots, SnapshotServer
from managed_ledger.state_log.snapshots.disk import SnapshotStore
from managed_ledger.state_log.state_log import StateLog


@asynccontextmanager
async def open_member(
    machine: StateMachine,
    name: str,
    folder: str | Path,
    config: StateLogConfig,
    *,
    metadata: str,
    host: str = "127.0.0.1",
    port: int = 0,
    secret: str | None = None,
    session_timeout_s: float = 10.0,
) -> AsyncIterator[StateLog]:
    """Take part in a log, and in the election of its leader, until the block ends.

    *metadata*: the URL of the metadata store (`zk:host:port,…`). *name*: of this node, different from the others'.
    *folder*: for its snapshots, its own. *host* and *port*: where the other nodes get its snapshots;
    port 0 takes a free one. *secret*: see `snapshot_http`. Raises ConfigurationError, MetadataError, FolderInUse,
    OSError.
    """
    clock = LoopClock()
    parts = Parts()
    try:
        listening = socket.create_server((host, port))
        parts.add("port", _closing(listening))
        store = await open_store(metadata, clock, session_timeout_s=session_timeout_s)
        parts.add("metadata store", store.close)
        bookkeeper = BookKeeper(store, clock)
        await bookkeeper.open()
        parts.add("bookkeeper client", bookkeeper.close)
        address = f"http://{host}:{listening.getsockname()[1]}"
        members = MemberNodes(store, config.root, name, address, clock)
        snapshots = SnapshotStore(OsFiles(), _absolute(folder))
        state_log = StateLog(
            machine, name, config, bookkeeper=bookkeeper, store=store, clock=clock, snapshots=snapshots,
            source=HttpSnapshots(members, secret), members=members,
        )  # fmt: skip
        await state_log.open()
        parts.add("state log", state_log.close)
        server = SnapshotServer(state_log, secret)
        parts.add("snapshot server", server.stop)
        await server.start(listening)
        await members.start(snapshots.covered)
        parts.add("member", members.stop)
        election = LeaderElection(state_log, store, clock)
        election.start()
        parts.add("election", election.stop)
        yield state_log
    finally:
        await parts.stop()


def _absolute(folder: str | Path) -> str:
    return str(Path(folder).absolute())


def _closing(listening: socket.socket) -> Callable[[], Awaitable[None]]:
    async def close() -> None:
        listening.close()

    return close
