"""The server that is abused: a bookie and a broker with all their ports, in one process with one loop and a watchdog.

    python -m tests.abuse.server FOLDER        prints the ports as one line of JSON when it is ready

All ports share one loop, as in `magnetar standalone`, whose parts these are. So an input that costs too much at one
port delays all others.
"""

import json
import sys
from pathlib import Path

from bookie.config import BookieConfig
from broker.config import load_broker_config
from magnetar.processes.bookie import start_bookie
from magnetar.processes.broker import grpc_address, start_broker
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.embedded import EmbeddedStore
from magnetar_core.bookkeeper.metadata.ledger_store import initialise_cluster
from magnetar_core.runtime.config import load
from magnetar_core.runtime.daemon import Shutdown, new_clock, run
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.tasks import Parts
from tests.abuse.watchdog import write_stalls


def serve(folder: Path) -> int:
    async def start(parts: Parts, shutdown: Shutdown) -> None:
        clock = new_clock()
        store = await EmbeddedStore.open(str(folder / "metadata"), clock)
        parts.add("metadata", store.close)
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
        bookkeeper = BookKeeper(store, clock)
        await bookkeeper.open()
        parts.add("ledger client", bookkeeper.close)
        copies = {f"managedLedgerDefault{name}": "1" for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")}
        broker_config = load_broker_config(
            {
                "brokerServicePort": "0",
                "webServicePort": "0",
                "grpcServicePort": "0",
                "bindAddress": "127.0.0.1",
                "advertisedAddress": "127.0.0.1",
                "clusterName": "standalone",
                "acknowledgmentAtBatchIndexLevelEnabled": "true",
                **copies,
            }
        )
        broker = await start_broker(
            broker_config, store, bookkeeper, clock, parts, version="abuse", on_failure=shutdown.fail
        )
        ports = {
            "binary": broker.port,
            "http": broker.address.http_url,
            "grpc": grpc_address(broker),
            "bookie": bookie.address[1],
            "bookie_http": bookie_url,
        }
        write_stalls(folder / "away", clock)  # only now: loading libraries also blocks the loop
        print(json.dumps(ports), flush=True)

    return run(start)


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1])))
