"""`magnetar standalone`: bookies, broker and metadata in one process, on a folder.

    DATA/lock                  held while it runs
    DATA/metadata/             RocksDB: ledgers, topics, policies
    DATA/bookie-1/journal, DATA/bookie-1/ledgers        … one pair a bookie

The parts are the same as in a cluster and talk over loopback sockets as they do there.
"""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar import __version__
from magnetar.runtime.daemon import Shutdown, new_clock, run
from magnetar.runtime.files import Lock, OsFiles
from magnetar.runtime.observe import start_logging
from magnetar.runtime.tasks import Parts
from magnetar.runtime.types import ConfigurationError, MagnetarError
from magnetar.servers import read_broker_settings, say_ready

if TYPE_CHECKING:
    from broker.config import BrokerConfig

FIRST_BOOKIE_PORT = 3181
GRPC_PORT = 6648
COPIES_MAX = 3
"""With several bookies, copies of each entry; one of them may be missing when it is acknowledged."""

# Pulsar deletes what no subscription waits for, and after a minute the whole topic. Whoever tries things out on one
# machine wants to find again what was published; a configuration file can say otherwise.
KEEP_EVERYTHING = {
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "brokerDeleteInactiveTopicsEnabled": "false",
}


class DataInUse(MagnetarError):
    """Another process runs on the same folder."""


def run_standalone(
    data: Path,
    config_path: Path | None,
    *,
    bookies: int = 1,
    service_port: int | None = None,
    web_port: int | None = None,
    first_bookie_port: int | None = None,
) -> int:
    """Run until interrupted; returns the exit code. Raises ConfigurationError."""
    start_logging(os.environ.get("MAGNETAR_LOG_LEVEL", "WARNING"))
    if bookies < 1:
        raise ConfigurationError("--bookies must be at least 1")
    data = data.resolve()
    overrides = {"metadataStoreUrl": f"rocksdb:{data / 'metadata'}"}
    if service_port is not None:
        overrides["brokerServicePort"] = str(service_port)
    if web_port is not None:
        overrides["webServicePort"] = str(web_port)
    # 6648 if it is free, any other one if not, and where the binary port is any free one too.
    defaults = {**_defaults(bookies), "grpcServicePort": str(0 if service_port == 0 else GRPC_PORT)}
    config = read_broker_settings(config_path, defaults=defaults, overrides=overrides)
    if config.bookie_tls is not None:
        raise ConfigurationError(
            f"{config.bookie_tls.origin}: the bookies of a standalone are in its own process, on the loopback address "
            "and without TLS; remove the setting, or run bookies and broker as processes of their own"
        )
    port = FIRST_BOOKIE_PORT if first_bookie_port is None else first_bookie_port

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        await start_standalone(data, config, parts, shutdown, bookies=bookies, first_bookie_port=port)

    return run(start)


def _defaults(bookies: int) -> dict[str, str]:
    """Settings that fit one machine; a person's file wins over them."""
    copies = min(bookies, COPIES_MAX)
    return {
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "localhost",
        "clusterName": "standalone",
        "managedLedgerDefaultEnsembleSize": str(copies),
        "managedLedgerDefaultWriteQuorum": str(copies),
        "managedLedgerDefaultAckQuorum": str(min(copies, 2)),
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
        **KEEP_EVERYTHING,
    }


async def start_standalone(
    data: Path,
    broker_config: "BrokerConfig",
    parts: Parts,
    shutdown: Shutdown,
    *,
    bookies: int,
    first_bookie_port: int,
) -> None:
    """Start everything and print the one line that tells where. Raises MagnetarError."""
    from bookie.bookie import Bookie, PortInUse
    from bookie.config import BookieConfig
    from magnetar.bookkeeper.client.client import BookKeeper
    from magnetar.bookkeeper.metadata.embedded import EmbeddedStore
    from magnetar.bookkeeper.metadata.ledger_store import initialise_cluster
    from magnetar.broker_process import grpc_address, start_broker
    from magnetar.runtime.config import load

    clock, files = new_clock(), OsFiles()
    lock = _lock(data, files)

    async def unlock() -> None:
        lock.release()

    parts.add("folder", unlock)
    began_s = clock.monotonic()
    store = await EmbeddedStore.open(str(data / "metadata"), clock)
    parts.add("metadata", store.close)
    await initialise_cluster(store, "/ledgers")
    addresses = []
    for number in range(bookies):
        place = data / f"bookie-{number + 1}"
        config = load(
            BookieConfig,
            {
                "bookiePort": str(first_bookie_port + number if first_bookie_port else 0),
                "bookieListenAddress": "127.0.0.1",
                "advertisedAddress": "127.0.0.1",
                # The name in the cluster does not depend on the port, so that a folder may run on other ports.
                "bookieId": f"bookie-{number + 1}",
                "journalDirectories": str(place / "journal"),
                "ledgerDirectories": str(place / "ledgers"),
            },
        )
        bookie = Bookie(config, store, clock, files, on_failure=shutdown.fail)
        try:
            await bookie.start()
        except PortInUse as error:
            raise PortInUse(f"{error} (--bookie-port)") from None
        parts.add(f"bookie {number + 1}", bookie.stop)
        addresses.append("{}:{}".format(*bookie.address))
    bookkeeper = BookKeeper(store, clock)
    await bookkeeper.open()
    parts.add("ledger client", bookkeeper.close)
    broker = await start_broker(
        broker_config, store, bookkeeper, clock, parts, version=__version__, preferred_grpc_port=GRPC_PORT
    )
    say_ready(
        f"magnetar standalone is ready after {clock.monotonic() - began_s:.2f} s: {broker.address.service_url}, "
        f"HTTP {broker.address.http_url or 'off'}, gRPC {grpc_address(broker) or 'off'}, "
        f"bookies {', '.join(addresses)}, data in {data}"
    )


def _lock(data: Path, files: OsFiles) -> Lock:
    try:
        files.make_directories(str(data))
        return files.lock(str(data / "lock"))
    except BlockingIOError:
        raise DataInUse(
            f"{data} is in use by another magnetar standalone; stop that one, or give another folder with --data"
        ) from None
    except OSError as error:
        with contextlib.suppress(OSError):
            data.rmdir()
        raise MagnetarError(f"cannot use {data}: {error.strerror}") from None
