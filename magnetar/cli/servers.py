"""`magnetar standalone` and `magnetar broker`: they run until they are stopped."""

import sys
from pathlib import Path

import click

from magnetar.cli.common.options import AT_LEAST_ONE, config_option, moved_option, processes_option
from magnetar.processes import servers
from magnetar.processes import standalone as standalone_process

PORT = click.IntRange(0, 65535)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), default=Path("data"), show_default=True,
              help="Folder for all stored data.")  # fmt: skip
@config_option
@click.option("--bookies", type=AT_LEAST_ONE, default=1, show_default=True,
              help="Bookies in this process; their ports start at 3181.")  # fmt: skip
@click.option("--port", type=PORT, help="Port of the binary protocol (brokerServicePort); 0 takes a free one.")
@click.option("--web-port", type=PORT, help="Port of HTTP (webServicePort); 0 takes a free one.")
@click.option("--grpc-port", type=PORT, help="Port of the topic API (grpcServicePort); 0 takes a free one.")
@click.option("--bookie-port", type=PORT, help="Port of the first bookie (bookiePort); 0 takes free ones.")
@click.option("--processes", metavar="N", help="Refused: a standalone is one process.")
@click.option("--secure", type=click.Path(path_type=Path, file_okay=False),
              help="Folder of keys, certificates and a token, made once; clients use TLS and a token.")  # fmt: skip
@click.option("--forget-doubt", is_flag=True,
              help="Give up ledgers that are newer than the metadata (see `magnetar doctor`).")  # fmt: skip
@moved_option
def standalone(
    data: Path,
    config: Path | None,
    bookies: int,
    port: int | None,
    web_port: int | None,
    grpc_port: int | None,
    bookie_port: int | None,
    processes: str | None,
    secure: Path | None,
    forget_doubt: bool,
    moved: bool,
) -> None:
    """Run broker, bookies and metadata in one process.

    Clients connect to pulsar://127.0.0.1:6650. Data survive a crash: a message is acknowledged when it is on disk.

    Example:  magnetar standalone --data ./data
    """
    if processes is not None:
        raise click.UsageError(
            "a standalone is one process; `magnetar bookie --processes N` and `magnetar broker --processes N` with a "
            "ZooKeeper use more cores"
        )
    sys.exit(
        standalone_process.run_standalone(
            data,
            config,
            bookies=bookies,
            service_port=port,
            web_port=web_port,
            grpc_port=grpc_port,
            first_bookie_port=bookie_port,
            secure=secure,
            forget_doubt=forget_doubt,
            is_moved=moved,
        )
    )


@click.command()
@config_option
@processes_option
def broker(config: Path | None, processes: str | None) -> None:
    """Run a broker, which serves topics to Pulsar clients.

    With --processes N it is a service of N brokers, each with ports of its own, and one HTTP address.

    Example:  magnetar broker --config broker.conf
    """
    sys.exit(servers.run_broker(config, processes))
