"""The server that is abused: a bookie and brokers with all their ports, in one process with one loop and a watchdog.

    python -m tests.abuse.server FOLDER             prints the ports as one line of JSON when it is ready
    python -m tests.abuse.server FOLDER guarded     two brokers that ask who is there, and what it may do

All ports share one loop, as in `magnetar standalone`, whose parts these are. So an input that costs too much at one
port delays all others.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from autorecovery.admin.tokens import Role, line_of
from autorecovery.config import AutoRecoveryConfig
from bookie.config import BookieConfig
from broker.broker import Broker
from broker.settings.config import load_broker_config
from broker.settings.groups.broker_client import CLIENT_PLUGINS
from magnetar.processes.autorecovery import serve_management
from magnetar.processes.bookies.bookie import start_bookie
from magnetar.processes.bookies.settings import NodeConfig
from magnetar.processes.broker import grpc_address, start_broker
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.config import load
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.process.daemon import Shutdown, new_clock, run
from magnetar_core.runtime.tasks import Parts
from tests.abuse.watchdog import write_stalls

MANAGEMENT_TOKEN: Final = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
"""Of the management interface of the guarded server."""

# As tests/abuse/roles.py makes tokens.
SECRET_KEY: Final = "data:;base64,AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


def serve(folder: Path, *, guarded: bool) -> int:
    async def start(parts: Parts, shutdown: Shutdown) -> None:
        clock = new_clock()
        sessions, close = await open_sessions(folder, clock, guarded=guarded)
        store = sessions()
        parts.add("metadata", close)
        await initialise_cluster(store, "/ledgers")
        bookie_config = load(
            BookieConfig,
            {
                "bookiePort": "0",
                "bookieListenAddress": "127.0.0.1",
                "advertisedAddress": "127.0.0.1",
                "bookieId": "bookie-1",
                "journalDirectories": str(folder / "journal"),
                "ledgerDirectories": str(folder / "ledgers"),
                "httpServerEnabled": "true",
                "httpServerHost": "127.0.0.1",
                "httpServerPort": "0",
            },
        )
        bookie, bookie_url = await start_bookie(
            bookie_config, store, clock, OsFiles(), parts, shutdown, root="/ledgers"
        )
        brokers = [await start_one(sessions(), clock, parts, shutdown, guarded=guarded) for _ in range(1 + guarded)]
        ports = {
            "management": await start_recovery(folder, sessions(), clock, parts, guarded=guarded),
            "binary": brokers[0].port,
            "http": brokers[0].address.http_url,
            "grpc": grpc_address(brokers[0]),
            "bookie": bookie.address[1],
            "bookie_http": bookie_url,
            "others": [
                {"binary": one.port, "http": one.address.http_url, "grpc": grpc_address(one)} for one in brokers[1:]
            ],
        }
        write_stalls(folder / "away", clock)  # only now: loading libraries also blocks the loop
        print(json.dumps(ports), flush=True)

    return run(start)


async def start_recovery(folder: Path, store: MetadataStore, clock: Clock, parts: Parts, *, guarded: bool) -> str:
    """The management interface, as a node of auto-recovery serves it; its URL."""
    tokens = ""
    if guarded:
        tokens = str(folder / "tokens")
        Path(tokens).write_text(line_of("operator", Role.WRITE, MANAGEMENT_TOKEN) + "\n")
    config = load(AutoRecoveryConfig, {"managementTokensFile": tokens})
    node = load(NodeConfig, {"httpServerEnabled": "true", "httpServerPort": "0"})
    bookkeeper = await opened_client(store, clock, parts)
    return await serve_management(node, config, store, bookkeeper, clock, parts, root="/ledgers", tls=None)


async def opened_client(store: MetadataStore, clock: Clock, parts: Parts) -> BookKeeper:
    bookkeeper = BookKeeper(store, clock)
    await bookkeeper.open()
    parts.add("ledger client", bookkeeper.close)
    return bookkeeper


async def open_sessions(
    folder: Path, clock: Clock, *, guarded: bool
) -> tuple[Callable[[], MetadataStore], Callable[[], Awaitable[None]]]:
    """Gives each server its session with the metadata, and how they end."""
    if not guarded:
        store = await EmbeddedStore.open(str(folder / "metadata"), clock)
        return lambda: store, store.close
    tree = MemoryStore(clock)  # the embedded store has one session, and two brokers need two
    return tree.session, tree.close


async def start_one(store: MetadataStore, clock: Clock, parts: Parts, shutdown: Shutdown, *, guarded: bool) -> Broker:
    from tests.abuse.roles import SUPER_USER, token_of  # what makes tokens takes long to load

    bookkeeper = await opened_client(store, clock, parts)
    copies = {f"managedLedgerDefault{name}": "1" for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")}
    doors = {
        "authenticationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "authorizationEnabled": "true",
        "superUserRoles": SUPER_USER,
        "tokenSecretKey": SECRET_KEY,
        "brokerClientAuthenticationPlugin": next(iter(CLIENT_PLUGINS)),
        "brokerClientAuthenticationParameters": f"token:{token_of(SUPER_USER)}",
    }
    config = load_broker_config(
        {
            "brokerServicePort": "0",
            "webServicePort": "0",
            "grpcServicePort": "0",
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "clusterName": "standalone",
            "acknowledgmentAtBatchIndexLevelEnabled": "true",
            **copies,
            **(doors if guarded else {}),
        }
    )
    return await start_broker(config, store, bookkeeper, clock, parts, version="abuse", on_failure=shutdown.fail)


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), guarded="guarded" in sys.argv[2:]))
