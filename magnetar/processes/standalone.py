"""`magnetar standalone`: bookies, broker and metadata in one process, on a folder.

    DATA/lock                  held while it runs
    DATA/backup.socket         where `magnetar backup` asks for a snapshot
    DATA/metadata/             RocksDB: ledgers, topics, policies
    DATA/bookie-1/journal, DATA/bookie-1/ledgers        … one pair a bookie

The parts are the same as in a cluster and talk over loopback sockets as they do there.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar import __version__
from magnetar.processes.announced import say_ready, start_server_logging
from magnetar.processes.data_folder import lock_folder
from magnetar.processes.standalone_settings import (
    FIRST_BOOKIE_HTTP_PORT,
    StandaloneSettings,
    read_standalone_settings,
)
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.process.daemon import Shutdown, new_clock, run
from magnetar_core.runtime.process.loop_watch import watch_loop
from magnetar_core.runtime.tasks import Parts

if TYPE_CHECKING:
    from broker.broker import Broker
    from magnetar.processes.secure_folder import SecureFolder


def run_standalone(
    data: Path,
    config_path: Path | None,
    *,
    bookies: int = 1,
    service_port: int | None = None,
    web_port: int | None = None,
    grpc_port: int | None = None,
    first_bookie_port: int | None = None,
    secure: Path | None = None,
    forget_doubt: bool = False,
    is_moved: bool = False,
) -> int:
    """Run until interrupted; returns the exit code. Raises ConfigurationError.

    *secure* is the folder of keys and certificates, where clients shall be authenticated and come over TLS.
    *forget_doubt*: ledgers that are newer than the metadata are given up, as `magnetar bookie gc forget-doubt` does it.
    *is_moved*: the folder may stand elsewhere than it did.
    """
    start_server_logging("WARNING")
    data = data.resolve()
    folder = None if secure is None else _secure_folder(secure)
    settings = read_standalone_settings(
        data,
        config_path,
        os.environ,
        bookies=bookies,
        service_port=service_port,
        web_port=web_port,
        grpc_port=grpc_port,
        first_bookie_port=first_bookie_port,
        secure=None if folder is None else folder.settings() | folder.bookie_settings(),
    )
    if folder is not None:
        folder.prepare([settings.broker.advertised_host])

    async def start(parts: Parts, shutdown: Shutdown) -> None:
        broker = await start_standalone(data, settings, parts, shutdown, forget_doubt=forget_doubt, is_moved=is_moved)
        if folder is not None:
            _say_how_to_connect(folder, broker)

    return run(start)


async def start_standalone(
    data: Path,
    settings: StandaloneSettings,
    parts: Parts,
    shutdown: Shutdown,
    *,
    forget_doubt: bool = False,
    is_moved: bool = False,
) -> "Broker":
    """Start everything and print the one line with the addresses. Raises MagnetarError."""
    from autorecovery.reporting.report_sweep import ReportSweep
    from bookie.bookie import Bookie, PortInUse
    from bookie.config import BookieConfig
    from broker.serving.storage import client_config
    from magnetar.processes.backup.door import BackupDoor
    from magnetar.processes.backup.restoring import check_restored
    from magnetar.processes.backup.snapshot import Snapshot, remove_snapshots
    from magnetar.processes.bookies.bookie import HttpPortInUse, start_bookie
    from magnetar.processes.broker import grpc_address, start_broker
    from magnetar.processes.standalone_storage import lost_ledger_samples, storage_rows
    from magnetar_core.bookkeeper.client.client import BookKeeper
    from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
    from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
    from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
    from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore

    clock, files = new_clock(), OsFiles()
    lock = lock_folder(data, files)

    async def unlock() -> None:
        lock.release()

    parts.add("folder", unlock)
    check_restored(data)
    remove_snapshots(data)
    began_s = clock.monotonic()
    store = await EmbeddedStore.open(str(data / "metadata"), clock)
    parts.add("metadata", store.close)
    await initialise_cluster(store, "/ledgers")
    client = client_config(settings.broker)

    async def start(config: BookieConfig, preferred: int) -> tuple[Bookie, str]:
        """Start a bookie. Where its HTTP port is the *preferred* one and in use, any free port is taken instead."""
        try:
            return await start_bookie(config, store, clock, files, parts, shutdown, root="/ledgers", is_moved=is_moved)
        except HttpPortInUse:
            if config.http_port != preferred:
                raise
            return await start(replace(config, http_port=0), preferred)
        except PortInUse as error:
            raise PortInUse(f"{error} (--bookie-port)") from None

    addresses, urls, operations, started = [], [], [], []
    for number, config in enumerate(settings.bookies):
        # Bookies take entries as large as maxMessageSize lets the broker take.
        config = replace(config, frame_bytes_max=max(config.frame_bytes_max, client.frame_bytes_max))
        bookie, url = await start(config, FIRST_BOOKIE_HTTP_PORT + number)
        if forget_doubt:
            await bookie.operations.forget_doubt()
        operations.append(bookie.operations)
        started.append(bookie)
        urls += [url] if url else []
        addresses.append("{}:{}".format(*bookie.address))
    bookkeeper = BookKeeper(store, clock, client)
    await bookkeeper.open()
    parts.add("ledger client", bookkeeper.close)
    # What an auditor does of its work where there is one: there is nothing to copy here.
    sweep = ReportSweep("standalone", DamageReports(store), bookkeeper, MarkBoard(store), clock)
    sweep.start(shutdown.fail)
    parts.add("sweep of reports", sweep.stop)
    alone = replace(settings.broker, tells_what_it_serves=False)  # nobody takes over from it
    broker = await start_broker(
        alone,
        store,
        bookkeeper,
        clock,
        parts,
        version=__version__,
        preferred_grpc_port=settings.preferred_grpc_port,
        more_metrics=[*(operation.metrics for operation in operations), lambda: lost_ledger_samples(sweep)],
        storage=lambda: storage_rows(operations, sweep),
        on_failure=shutdown.fail,
    )
    door = BackupDoor(data, Snapshot(data, store, started, files))
    await door.open()
    parts.add("door for backups", door.close)
    watch_loop(settings.broker.loop_stall_warn_ms, clock, parts)
    say_ready(
        f"magnetar standalone is ready after {clock.monotonic() - began_s:.2f} s: {broker.address.native_url}, "
        f"HTTP {broker.address.web_url(secure=False) or 'off'}, gRPC {grpc_address(broker) or 'off'}, "
        f"bookies {', '.join(addresses)}, HTTP of bookies {', '.join(urls) or 'off'}, data in {data}"
    )
    return broker


def _secure_folder(path: Path) -> "SecureFolder":
    from magnetar.processes.secure_folder import SecureFolder  # its libraries take long to load

    return SecureFolder(path, new_clock().wall_ms())


def _say_how_to_connect(folder: "SecureFolder", broker: "Broker") -> None:
    from magnetar.processes.broker import grpc_address
    from magnetar.processes.secure_folder import BOOKIES, ROLE

    address = broker.address
    profile = folder.write_profile(address.service_url_tls or address.service_url, address.web_url(secure=True))
    trusted, token = folder.path / "ca.crt", folder.path / "admin.token"
    print(
        f"""The keys, certificates and the token of the role {ROLE} are in {folder.path}. Connect with
  magnetar --profile {profile} topics list
  pulsar.Client("{address.service_url_tls or address.service_url}", tls_trust_certs_file_path="{trusted}",
                authentication=pulsar.AuthenticationToken(open("{token}").read()))
  magnetar.Client("{grpc_address(broker)}", tls_trust_certs_file="{trusted}", token=open("{token}").read())
What reads from bookies needs {folder.path / BOOKIES}: Spark as bookkeeper.tlsDirectory, others as --tls-directory""",
        flush=True,
    )
