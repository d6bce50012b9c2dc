"""`magnetar bookie` and `magnetar broker`: a process that runs one server."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar import __version__
from magnetar.processes.announced import Ready, say_ready, start_server_logging
from magnetar_core.runtime.config import PROCESSES
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.process.daemon import PART_OF_SERVICE, Shutdown, new_clock, read_properties, run
from magnetar_core.runtime.process.loop_watch import watch_loop
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import ConfigurationError

if TYPE_CHECKING:
    from broker.settings.config import BrokerConfig


def read_broker_settings(
    path: Path | None, *, defaults: Mapping[str, str] | None = None, overrides: Mapping[str, str] | None = None
) -> "BrokerConfig":
    """Settings of a broker from its file and the environment; ConfigurationError names the file and every problem.

    The file wins over *defaults*; *overrides* win over everything.
    """
    from broker.settings.config import load_broker_config
    from magnetar_core.runtime.config import with_origin

    values = read_properties(path)
    try:
        return load_broker_config({**(defaults or {}), **values}, os.environ, overrides=overrides)
    except ConfigurationError as error:
        raise ConfigurationError(with_origin(str(error), str(path or ""), os.environ)) from None


def run_bookie(config_path: Path | None, processes: str | None = None, *, is_moved: bool = False) -> int:
    """Run a bookie until it is stopped; returns the exit code. Raises ConfigurationError.

    *processes* wins over the setting `magnetarProcesses`; more than one: a service of so many bookies. *is_moved*: its
    directories may stand elsewhere than they did.
    """
    from magnetar.processes.autorecovery import open_client, start_embedded
    from magnetar.processes.bookies.bookie import start_bookie
    from magnetar.processes.bookies.settings import read_auto_recovery_settings, read_bookie_settings
    from magnetar.processes.many.run import keep_recorded, number_of, run_bookies
    from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
    from magnetar_core.bookkeeper.metadata.stores.url import open_store, split_service_uri

    start_server_logging()
    config = read_bookie_settings(config_path, _processes(processes))
    auto_recovery = read_auto_recovery_settings(config_path)  # read in any case: a mistake in it is reported at once
    if not config.metadata_service_uri:
        raise ConfigurationError("metadataServiceUri is not set, for example zk://127.0.0.1:2181/ledgers")
    url, root = split_service_uri(config.metadata_service_uri)
    count = number_of(config.processes)
    if count > 1:
        return run_bookies(config, config_path, count, url, root, is_moved=is_moved)

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        if PART_OF_SERVICE not in os.environ:
            await keep_recorded(config, 1, url, root)
        clock = new_clock()
        store = await open_store(url, clock, session_timeout_s=config.session_timeout_ms / 1000)
        parts.add("metadata", store.close)
        await initialise_cluster(store, root)
        client = mounted = None
        if config.auto_recovery:
            client = await open_client(
                store, clock, auto_recovery, config.client_tls, parts, root=root,
                frame_bytes_max=config.frame_bytes_max,
            )  # fmt: skip
            if config.http_enabled:
                from magnetar.processes.management import start_management

                server = await start_management(
                    auto_recovery, store, client, clock, parts, root=root, host=config.http_host, tls=config.client_tls
                )
                mounted = server.mounts()
        bookie, http_url = await start_bookie(
            config,
            store,
            clock,
            OsFiles(),
            parts,
            shutdown,
            root=root,
            mounted=mounted,
            recovery_rate=auto_recovery.rate,
            is_moved=is_moved,
        )
        if client is not None:
            start_embedded(bookie.bookie_id, store, client, clock, auto_recovery, parts, root=root)
        watch_loop(config.loop_stall_warn_ms, clock, parts)
        host, port = bookie.address
        say_ready(
            Ready(
                f"magnetar bookie {bookie.bookie_id}",
                f"{host}:{port}",
                http=http_url or "",
                rest=f"metadata {url}{root}",
                bookie_id=bookie.bookie_id,
            )
        )

    return run(start)


def _processes(given: str | None) -> dict[str, str]:
    return {} if given is None else {PROCESSES: given}


def run_broker(config_path: Path | None, processes: str | None = None) -> int:
    """Run a broker, or a service of several (as `run_bookie`); returns the exit code. Raises ConfigurationError."""
    from broker.serving.storage import client_config
    from magnetar.processes.broker import grpc_address, start_broker
    from magnetar.processes.many.run import number_of, run_brokers
    from magnetar_core.bookkeeper.client.client import BookKeeper
    from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster as initialise_ledgers
    from magnetar_core.bookkeeper.metadata.stores.url import open_store

    start_server_logging()
    config = read_broker_settings(config_path, overrides=_processes(processes))
    count = number_of(config.processes)
    if count > 1:
        return run_brokers(config, config_path, count)

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        clock = new_clock()
        store = await open_store(config.metadata_store_url, clock, session_timeout_s=config.session_timeout_ms / 1000)
        parts.add("metadata", store.close)
        await initialise_ledgers(store, "/ledgers")
        bookkeeper = BookKeeper(store, clock, client_config(config))
        await bookkeeper.open()
        parts.add("ledger client", bookkeeper.close)
        broker = await start_broker(
            config, store, bookkeeper, clock, parts, version=__version__, on_failure=shutdown.fail
        )
        watch_loop(config.loop_stall_warn_ms, clock, parts)
        say_ready(
            Ready(
                "magnetar broker",
                broker.address.native_url,
                http=broker.address.http_url,
                https=broker.address.https_url,
                grpc=grpc_address(broker) or "",
                rest=f"metadata {config.metadata_store_url}",
            )
        )

    return run(start)
