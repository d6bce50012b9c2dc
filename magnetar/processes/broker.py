"""Builds a broker from its parts, for a broker process and for standalone alike."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from broker.admin.page.facts import Storage
from broker.broker import Broker
from broker.names import Bundles
from broker.ownership.ownership import BundleOwnership
from broker.ownership.rules import GRPC_LISTENER
from broker.security.doors import open_doors
from broker.settings.config import BrokerConfig
from broker.settings.groups.cluster import SHUTDOWN
from broker.tenancy.changes import initialise_cluster
from broker.tracing import open_tracing
from broker.transfer.handing_over import hand_over
from broker.transfer.takeovers import Takeovers
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReporter
from magnetar_core.bookkeeper.metadata.damage.rules import Source
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.config import check
from magnetar_core.runtime.observe import Source as MetricSource
from magnetar_core.runtime.process.daemon import load_beside
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import MagnetarError

log = logging.getLogger(__name__)

NewSocket = Callable[[int, int], socket.socket]


# How long a broker that stops waits, in all, for a metadata store that does not answer: to seal its ledgers and to
# release its bundles helps the next owner, which can do without both.
STOP_WAIT_S = 2.0


class SessionExpired(MagnetarError):
    """The broker's session with the metadata store has ended."""


_EXPIRED: Final = SessionExpired(
    "the session with the metadata store has ended (zookeeperSessionExpiredPolicy=shutdown); start the broker again"
)


class PortInUse(MagnetarError):
    """One of the broker's ports cannot be opened, usually because something else listens there."""


async def start_broker(
    config: BrokerConfig,
    store: MetadataStore,
    bookkeeper: BookKeeper,
    clock: Clock,
    parts: Parts,
    *,
    version: str,
    preferred_grpc_port: int | None = None,
    more_metrics: Sequence[MetricSource] = (),
    storage: Storage | None = None,
    on_failure: Callable[[BaseException], None],
    new_socket: NewSocket = socket.socket,
    new_grpc_server: Callable[..., Any] | None = None,
) -> Broker:
    """Start a broker whose stores are open; *parts* learns how to stop it, *on_failure* is called when it must end.
    Raises MagnetarError.

    Where grpcServicePort is *preferred_grpc_port* and in use, any free port is taken instead. /metrics also has
    *more_metrics*, those of what else runs in the process, and the page shows its *storage*. *new_socket* makes sockets
    that hold ports, as `socket.socket` does; *new_grpc_server* the server of the topic API, as `grpc.aio.server`, which
    is None.
    The binary port comes first and HTTP after it: loading the HTTP library takes longer than all the rest.
    """
    check(config)
    doors = open_doors(config, clock)
    web_socket = _reserve_port(config, config.web_port, "webServicePort (--web-port)", new_socket)
    secure_socket = _reserve_port(config, config.web_port_tls, "webServicePortTls", new_socket)
    grpc_socket = _reserve_grpc(config, config.grpc_port, preferred_grpc_port, new_socket)
    secure_grpc_socket = _reserve_grpc(config, config.grpc_port_tls, preferred_grpc_port, new_socket)

    async def bundles_of(namespace: str) -> Bundles:
        return await broker.bundles_of(namespace)

    async def bundles_now(namespace: str) -> Bundles:
        return await broker.bundles_now(namespace)

    ownership = BundleOwnership(
        store,
        clock,
        bundles_of=bundles_of,
        bundles_now=bundles_now,
        version=version,
        cluster=config.cluster_name,
        persistent=config.enable_persistent_topics,
        non_persistent=config.enable_non_persistent_topics,
        takeover_wait_s=config.takeover_wait_s,
        knows_domains=lambda: broker.config.failure_domains,
        on_expired=partial(on_failure, _EXPIRED) if config.session_expired_policy == SHUTDOWN else None,
    )
    await initialise_cluster(store, config)
    web_port, secure_port = _number_of(web_socket), _number_of(secure_socket)
    config = replace(config, web_port=web_port or None, web_port_tls=secure_port or None)  # as they were really opened
    damage = DamageReporter(store, "/ledgers", Source.BROKER, "a broker", clock)
    parts.add("damage reports", damage.stop)
    tracing = open_tracing(os.environ, version)
    if tracing is not None:
        parts.add("tracing", partial(asyncio.to_thread, tracing.stop))
    broker = Broker(
        config, store, bookkeeper, clock, ownership=ownership, on_damage=damage.report, doors=doors, tracing=tracing
    )
    try:
        await broker.start()
    except OSError as error:
        port = config.service_port if config.service_port is not None else config.service_port_tls
        setting = "brokerServicePort (--port) or brokerServicePortTls"
        raise _port_error("port", config.bind_address, port, setting, error) from None
    host = broker.address.native_url.partition("://")[2].rpartition(":")[0]
    if grpc_socket is not None or secure_grpc_socket is not None:  # other brokers send gRPC clients there
        listener = (
            f"grpc://{host}:{_number_of(grpc_socket)}" if grpc_socket is not None else "",
            f"grpc+ssl://{host}:{_number_of(secure_grpc_socket)}" if secure_grpc_socket is not None else "",
        )
        broker.address = broker.address._replace(listeners={**broker.address.listeners, GRPC_LISTENER: listener})
    damage.name = f"{host}:{web_port or secure_port or broker.port}"
    await ownership.start(f"{host}:{web_port or secure_port}", broker.address)
    parts.add("ownership", ownership.stop)
    parts.add("broker", broker.close)
    takeovers = Takeovers(broker, ownership, store, bookkeeper, clock)
    takeovers.start()
    parts.add("takeovers", takeovers.stop)
    if web_socket is not None or secure_socket is not None:
        await load_beside("broker.admin.server")
        from broker.admin.server import AdminServer

        admin = AdminServer(broker, ownership, version=version, storage=storage)
        for source in more_metrics:
            admin.metrics.add(source)
        await admin.start(web_socket, secure_socket)
        parts.add("admin", admin.stop)
    if grpc_socket is not None or secure_grpc_socket is not None:
        await load_beside("broker.grpc.service")
        from broker.grpc.service import GrpcServer

        grpc_server = GrpcServer(broker, new_grpc_server)
        try:
            await grpc_server.start(
                config.bind_address,
                None if grpc_socket is None else _number_of(grpc_socket),
                None if secure_grpc_socket is None else _number_of(secure_grpc_socket),
            )
        except OSError as error:
            raise PortInUse(f"{error}. Stop what uses it, or set grpcServicePort to another one.") from None
        finally:
            for held in (grpc_socket, secure_grpc_socket):
                if held is not None:
                    held.close()
        parts.add("gRPC", grpc_server.stop)

    async def hurry() -> None:
        store.hurry(STOP_WAIT_S)

    parts.add("patience", hurry)
    parts.add(
        "bundles", partial(hand_over, broker, ownership, lambda: takeovers.takers)
    )  # it is stopped first, while all ports are still open
    return broker


def grpc_address(broker: Broker) -> str:
    """host:port of the topic API over gRPC, that of TLS if there is no other; empty if it is off."""
    plain, tls = broker.address.listeners.get(GRPC_LISTENER, ("", ""))
    return (plain or tls).partition("://")[2]


def _number_of(listening: socket.socket | None) -> int:
    """The number of the port; 0 if there is none."""
    return 0 if listening is None else int(listening.getsockname()[1])


def _reserve_port(config: BrokerConfig, port: int | None, setting: str, new_socket: NewSocket) -> socket.socket | None:
    """A socket for HTTP, opened before anything is started: a port that is in use is noticed at once, and clients that
    come early wait until they are served."""
    if port is None:
        return None
    reserved = new_socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reserved.bind((config.bind_address, port))
        reserved.listen()
    except OSError as error:
        reserved.close()
        raise _port_error("HTTP port", config.bind_address, port, setting, error) from None
    return reserved


def _reserve_grpc(
    config: BrokerConfig,
    port: int | None,
    preferred_port: int | None = None,
    new_socket: NewSocket = socket.socket,
) -> socket.socket | None:
    """Hold a gRPC port until gRPC, which opens its ports itself and is loaded late, takes it over."""
    if port is None:
        return None
    try:
        return _reserve_grpc_port(config.bind_address, port, new_socket)
    except PortInUse:
        if port != preferred_port:
            raise
        return _reserve_grpc_port(config.bind_address, 0, new_socket)


def _reserve_grpc_port(host: str, port: int, new_socket: NewSocket) -> socket.socket:
    """A socket that holds the port for gRPC.

    gRPC's sockets share ports (SO_REUSEPORT), so two servers could open the same port without an error. This socket
    does not share while it takes the port, and listens, so that no other process gets it. Afterwards it shares, so that
    gRPC can open the port.
    """
    held = new_socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, port))
        held.listen(1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError as error:
        held.close()
        raise _port_error("gRPC port", host, port, "grpcServicePort (--grpc-port)", error) from None
    return held


def _port_error(what: str, address: str, port: int | None, setting: str, error: OSError) -> PortInUse:
    where = f"cannot open the {what} {address}:{port}"
    if isinstance(error, socket.gaierror):
        return PortInUse(f"{where}: {address} is not an address of this machine; set bindAddress to one")
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"{where}: it is in use. Stop what uses it, or set {setting} to another one.")
    reason = os.strerror(error.errno) if error.errno else str(error)
    return PortInUse(f"{where}: {reason}. Set bindAddress or {setting} differently.")
