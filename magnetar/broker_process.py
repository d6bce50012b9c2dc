"""Puts the parts of a broker together, for a process of its own and for standalone alike."""

import logging
import os
import socket
from dataclasses import replace

from broker.broker import Broker, initialise_cluster
from broker.config import BrokerConfig
from broker.names import Bundles
from broker.ownership import BundleOwnership
from magnetar.bookkeeper.client.client import BookKeeper
from magnetar.bookkeeper.metadata.store import MetadataStore
from magnetar.runtime.clock import Clock
from magnetar.runtime.tasks import Parts
from magnetar.runtime.types import MagnetarError

log = logging.getLogger(__name__)


class PortInUse(MagnetarError):
    """Something else listens on one of the broker's ports."""


async def start_broker(
    config: BrokerConfig,
    store: MetadataStore,
    bookkeeper: BookKeeper,
    clock: Clock,
    parts: Parts,
    *,
    version: str,
) -> Broker:
    """Start a broker whose stores are open; *parts* learns how to stop it. Raises MagnetarError.

    The binary port comes first and HTTP after it: loading the HTTP library takes longer than all the rest.
    """
    web_socket = _reserve(config)

    async def bundles_of(namespace: str) -> Bundles:
        return (await broker.namespace(namespace)).bundles

    ownership = BundleOwnership(store, clock, bundles_of=bundles_of, version=version)
    await initialise_cluster(store, config)
    web_port = web_socket.getsockname()[1] if web_socket is not None else 0
    config = replace(config, web_port=web_port or None)  # the one that was really opened
    broker = Broker(config, store, bookkeeper, clock, ownership=ownership)
    try:
        await broker.start()
    except OSError as error:
        raise PortInUse(
            f"cannot open port {config.bind_address}:{config.service_port}: {os.strerror(error.errno or 0)}. Stop what "
            "uses it, or set brokerServicePort (--port) to another one."
        ) from None
    host = broker.address.service_url.partition("://")[2].rpartition(":")[0]
    await ownership.start(f"{host}:{web_port}", broker.address)
    parts.add("ownership", ownership.stop)
    parts.add("broker", broker.close)
    if web_socket is not None:
        from broker.admin import AdminServer

        admin = AdminServer(broker, ownership, version=version)
        await admin.start(web_socket)
        parts.add("admin", admin.stop)
    return broker


def _reserve(config: BrokerConfig) -> socket.socket | None:
    """The HTTP socket, bound before anything is started: a port that is taken is found at once."""
    if config.web_port is None:
        return None
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((config.bind_address, config.web_port))
    except OSError as error:
        made.close()
        raise PortInUse(
            f"cannot open the HTTP port {config.bind_address}:{config.web_port}: {error.strerror}. Stop what uses it, "
            "or set webServicePort (--web-port) to another one."
        ) from None
    return made
