"""`magnetar broker --processes N` and `magnetar bookie --processes N`: a service of several processes.

The processes are ordinary `magnetar broker` and `magnetar bookie`, with settings that `shares` derives. This one keeps
them running (`children`) and serves the one HTTP address (`front`); it stores and serves no messages.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.processes.many.calls import bookie_way, broker_way
from magnetar.processes.many.children import Child, Children
from magnetar.processes.many.merged import joined_addresses
from magnetar.processes.many.recorded import check_surplus, record_processes, recorded_processes
from magnetar.processes.many.shares import bookie_shares, broker_shares, http_setting
from magnetar_core.runtime.config import AUTO
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.process.daemon import Shutdown, new_clock, run
from magnetar_core.runtime.process.own_packages import python_command
from magnetar_core.runtime.tasks import Parts

if TYPE_CHECKING:
    from bookie.config import BookieConfig
    from broker.settings.config import BrokerConfig
    from magnetar.processes.many.front import Place
    from magnetar.processes.many.shares import Share

_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def number_of(processes: int) -> int:
    """The number of processes that a setting means: as many as this process may use cores, where it says `auto`."""
    if processes != AUTO:
        return processes
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_brokers(config: "BrokerConfig", config_path: Path | None, processes: int) -> int:
    """Run a service of brokers until it is stopped; returns the exit code. Raises ConfigurationError."""
    shares = broker_shares(config, processes)

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        from magnetar.processes.bookies.bookie import bind_http

        listening = secure = None
        if config.web_port is not None:
            listening = bind_http(config.bind_address, config.web_port, ("bindAddress", "webServicePort"))
        if config.web_port_tls is not None:
            secure = bind_http(config.bind_address, config.web_port_tls, ("bindAddress", "webServicePortTls"))
        clock = new_clock()
        children = Children("broker", _command("broker", config_path), shares, clock)
        parts.add("processes", children.stop)
        if listening is not None or secure is not None:
            from magnetar.processes.many.front import Front  # here: loading the HTTP library costs time and memory

            place_of = _place_finder(config.bind_address, shares, "webServicePort", "webServicePortTls")
            front = Front(
                children,
                broker_way,
                place_of,
                lambda child: "",
                clock,
                config.web_tls,
                is_behind_proxy=config.web_proxy_protocol,
                connections_max=config.http_connections_max,
            )
            await front.start(listening, secure)
            parts.add("HTTP", front.stop)
        await children.start()
        _say_ready("brokers", children, listening, secure, f"metadata {config.metadata_store_url}")

    return run(start)


def run_bookies(
    config: "BookieConfig", config_path: Path | None, processes: int, url: str, root: str, *, is_moved: bool = False
) -> int:
    """Run a service of bookies, as above. *url*, *root*: the metadata store, and where the ledgers' part begins.
    *is_moved*: their directories may stand elsewhere than they did."""
    shares = bookie_shares(config, processes)
    name, _ = http_setting(config)

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        from magnetar.processes.bookies.bookie import bind_http

        listening = None
        host = ""
        if config.http_address is not None:
            host, port = config.http_address
            listening = bind_http(host, port, ("httpServerHost or prometheusStatsHttpAddress", name))
        await keep_recorded(config, processes, url, root)
        clock = new_clock()
        children = Children(
            "bookie", [*_command("bookie", config_path), *(["--moved"] if is_moved else [])], shares, clock
        )
        parts.add("processes", children.stop)
        if listening is not None:
            from magnetar.processes.many.front import Front

            front = Front(children, bookie_way, _place_finder(host, shares, name), _bookie_of, clock)
            await front.start(listening)
            parts.add("HTTP", front.stop)
        await children.start()
        ids = ", ".join(_bookie_of(child) for child in children.all)
        _say_ready("bookies", children, listening, None, f"ids {ids}, metadata {url}{root}")

    return run(start)


async def keep_recorded(config: "BookieConfig", processes: int, url: str, root: str) -> None:
    """Check the number of bookies against the one in the directories, and store it. Raises MagnetarError."""
    from magnetar_core.bookkeeper.metadata.stores.url import open_store

    files = OsFiles()
    recorded = recorded_processes(files, config)
    if recorded > processes:
        store = await open_store(url, new_clock(), session_timeout_s=config.session_timeout_ms / 1000)
        try:
            await check_surplus(files, config, processes, store, root)
        finally:
            await store.close()
    if recorded != processes:
        record_processes(files, config, processes)


def _command(verb: str, config_path: Path | None) -> list[str]:
    return python_command("magnetar", verb, *([] if config_path is None else ["--config", str(config_path)]))


def _place_finder(
    host: str, shares: "list[Share]", port_setting: str, tls_port_setting: str = ""
) -> "Callable[[Child], Place]":
    """Finds where a process serves HTTP. The settings are the names of those with its ports: a port that is configured
    is known before the process is ready, and 0 is one that the process announces."""
    from magnetar.processes.many.front import Place

    host = _ANY_ADDRESS.get(host, host)
    host = f"[{host}]" if ":" in host else host

    def url_of(scheme: str, setting: str, announced: str, child: Child) -> str:
        port = shares[child.number].get(setting, "0")
        port = announced.rpartition(":")[2] if port == "0" else port
        return f"{scheme}://{host}:{port}" if port else ""

    def place_of(child: Child) -> Place:
        http, https = _host(child.announced.http), _host(child.announced.https)
        names = frozenset(name for name in (http, https) if name)
        return Place(url_of("http", port_setting, http, child), url_of("https", tls_port_setting, https, child), names)

    return place_of


def _bookie_of(child: Child) -> str:
    return child.announced.bookie_id


def _host(url: str) -> str:
    """host:port."""
    return url.rpartition("//")[2]


def _say_ready(
    what: str, children: Children, listening: socket.socket | None, secure: socket.socket | None, rest: str
) -> None:
    """One line, as a single broker or bookie says it."""
    from magnetar.processes.announced import Ready, say_ready

    every = [child.announced for child in children.all]
    host = _host(every[0].http).rpartition(":")[0] or "127.0.0.1"
    secure_host = _host(every[0].https).rpartition(":")[0]
    say_ready(
        Ready(
            f"magnetar service of {len(every)} {what}",
            joined_addresses(ready.address for ready in every),
            http="" if listening is None else f"http://{host}:{listening.getsockname()[1]}",
            https="" if secure is None else f"https://{secure_host}:{secure.getsockname()[1]}",
            grpc=",".join(ready.grpc for ready in every if ready.grpc),
            rest=rest,
        )
    )
