"""`magnetar autorecovery`: a node of auto-recovery in a process of its own; and one inside a bookie's process.

Both serve the management interface (`management`): the first on a port of its own, the second on the bookie's HTTP.
"""

import asyncio
import logging
import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.processes.announced import say_ready, start_server_logging
from magnetar.processes.bookies.settings import (
    read_auto_recovery_settings,
    read_bookie_settings,
    read_node_settings,
)
from magnetar.processes.bookies.turning import turn_for_drain
from magnetar_core.runtime.process.daemon import Shutdown, new_clock, run
from magnetar_core.runtime.process.loop_watch import watch_loop
from magnetar_core.runtime.tasks import Parts, Tasks
from magnetar_core.runtime.types import ConfigurationError

if TYPE_CHECKING:
    from autorecovery.config import AutoRecoveryConfig
    from autorecovery.node import AutoRecoveryNode
    from magnetar.processes.bookies.settings import NodeConfig
    from magnetar_core.bookkeeper.client.client import BookKeeper
    from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
    from magnetar_core.runtime.clock import Clock
    from magnetar_core.security.tls.files import TlsFiles

log = logging.getLogger(__name__)


# The pause between the death of an embedded node and the start of the next one: a store that is away is not asked
# all the time.
_RESTART_S: Final = 1.0


class EmbeddedNode:
    """A node inside a bookie's process. After its death a new one is started: the bookie goes on."""

    def __init__(
        self, name: str, store: "MetadataStore", bookkeeper: "BookKeeper", clock: "Clock", config: "AutoRecoveryConfig",
        *, root: str,
    ) -> None:  # fmt: skip
        self._name = name
        self._store = store
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._config = config
        self._root = root
        self._tasks = Tasks(f"auto-recovery of {name}")
        self._died = asyncio.Event()

    def start(self) -> None:
        self._tasks.spawn(self._run(), "run")

    async def stop(self) -> None:
        await self._tasks.cancel()

    async def _run(self) -> None:
        from autorecovery.node import AutoRecoveryNode
        from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
        from magnetar_core.bookkeeper.metadata.stores.store import MetadataError

        # One for all nodes: locks that a node could not give back at its death are given back by the next one.
        marks = MarkBoard(self._store, self._root)
        while True:
            self._died.clear()
            node = AutoRecoveryNode(
                self._name, self._store, self._bookkeeper, self._clock, self._config,
                root=self._root, on_death=lambda _: self._died.set(),
                turn=partial(turn_for_drain, self._bookkeeper.bookies), marks=marks,
            )  # fmt: skip
            try:
                await node.start()
                await self._died.wait()
            except MetadataError as error:
                log.warning("auto-recovery of %s has not begun yet: %s", self._name, error)
            finally:
                await node.stop()
            await self._clock.sleep(_RESTART_S)


async def open_client(
    store: "MetadataStore", clock: "Clock", config: "AutoRecoveryConfig", tls: "TlsFiles | None", parts: Parts, *,
    root: str, frame_bytes_max: int,
) -> "BookKeeper":  # fmt: skip
    """The ledger client of auto-recovery; *parts* learns how to close it. *frame_bytes_max* is that of the bookies.
    Raises MagnetarError."""
    from magnetar_core.bookkeeper.client.client import BookKeeper
    from magnetar_core.bookkeeper.client.config import ClientConfig

    client = ClientConfig(
        tls=tls,
        rackaware_policy_enabled=config.knows_racks,
        racks_min=config.racks_min,
        racks_enforced=config.racks_enforced,
        regionaware_policy_enabled=config.knows_regions,
        regions_to_write=config.regions_to_write,
        regions_min=config.regions_min,
        regions_bind_replacements=config.regions_bind_replacements,
    ).with_frames(frame_bytes_max)
    bookkeeper = BookKeeper(store, clock, client, root=root)
    await bookkeeper.open()
    parts.add("ledger client of auto-recovery", bookkeeper.close)
    return bookkeeper


def start_embedded(
    bookie_id: str,
    store: "MetadataStore",
    bookkeeper: "BookKeeper",
    clock: "Clock",
    config: "AutoRecoveryConfig",
    parts: Parts,
    *,
    root: str,
) -> None:
    """Run auto-recovery beside a bookie; *parts* learns how to stop it."""
    node = EmbeddedNode(bookie_id, store, bookkeeper, clock, config, root=root)
    node.start()
    parts.add("auto-recovery", node.stop)


async def start_node(
    name: str,
    store: "MetadataStore",
    bookkeeper: "BookKeeper",
    clock: "Clock",
    config: "AutoRecoveryConfig",
    parts: Parts,
    shutdown: Shutdown,
    *,
    root: str,
) -> "AutoRecoveryNode":
    """Start a node; *parts* learns how to stop it, *shutdown* that it died. Raises MagnetarError."""
    from autorecovery.node import AutoRecoveryNode

    turn = partial(turn_for_drain, bookkeeper.bookies)
    node = AutoRecoveryNode(name, store, bookkeeper, clock, config, root=root, on_death=shutdown.fail, turn=turn)
    await node.start()
    parts.add("auto-recovery", node.stop)
    return node


async def serve_management(
    node: "NodeConfig", config: "AutoRecoveryConfig", store: "MetadataStore", bookkeeper: "BookKeeper",
    clock: "Clock", parts: Parts, *, root: str, tls: "TlsFiles | None",
) -> str:  # fmt: skip
    """Serve the management interface where the settings say so; returns its URL, or "". Raises MagnetarError."""
    if not node.http_enabled:
        return ""
    from autorecovery.admin.server import json_refusal, root_application
    from magnetar.processes.bookies.bookie import bind_http, url_of
    from magnetar.processes.management import start_management
    from magnetar_core.runtime.http.hosts import HostRules, is_loopback
    from magnetar_core.runtime.http.server import HttpServer

    listening = bind_http(node.http_host, node.http_port, ("httpServerHost", "httpServerPort"))
    try:
        host, port = listening.getsockname()[:2]
        server = await start_management(config, store, bookkeeper, clock, parts, root=root, host=host, tls=tls)
        hosts = HostRules(
            {*node.http_names, socket.gethostname()}, is_local=is_loopback(host), asks_callers=bool(config.tokens_file)
        )
        http = HttpServer(root_application(server.mounts()), hosts=hosts, refusal=json_refusal)
        parts.add("HTTP", http.stop)
        await http.start(listening)
    except BaseException:
        listening.close()
        raise
    return url_of(host, port)


def run_auto_recovery(config_path: Path | None) -> int:
    """Run a node until it is stopped, or dies; returns the exit code. Raises ConfigurationError."""
    from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
    from magnetar_core.bookkeeper.metadata.stores.url import open_store, split_service_uri

    start_server_logging()
    config = read_auto_recovery_settings(config_path)
    node_config = read_node_settings(config_path)
    bookies = read_bookie_settings(config_path)
    tls = bookies.client_tls
    if not node_config.metadata_service_uri:
        raise ConfigurationError("metadataServiceUri is not set, for example zk://127.0.0.1:2181/ledgers")
    url, root = split_service_uri(node_config.metadata_service_uri)
    name = node_config.name or f"{socket.gethostname()}-{os.getpid()}"

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        clock = new_clock()
        store = await open_store(url, clock, session_timeout_s=node_config.session_timeout_ms / 1000)
        parts.add("metadata", store.close)
        await initialise_cluster(store, root)
        bookkeeper = await open_client(
            store, clock, config, tls, parts, root=root, frame_bytes_max=bookies.frame_bytes_max
        )
        http_url = await serve_management(node_config, config, store, bookkeeper, clock, parts, root=root, tls=tls)
        await start_node(name, store, bookkeeper, clock, config, parts, shutdown, root=root)
        watch_loop(config.loop_stall_warn_ms, clock, parts)
        say_ready(
            f"magnetar autorecovery {name} is ready{f', HTTP {http_url}' if http_url else ''}, metadata {url}{root}"
        )

    return run(start)
