"""`magnetar cluster`: the processes of a developer's cluster on this machine."""

import sys
from pathlib import Path

import click

from magnetar.cli.common import output as show
from magnetar.cli.common.guesses import Guessing
from magnetar.cli.common.options import AT_LEAST_ONE, json_option, print_json
from magnetar.processes.cluster import Cluster


@click.group(cls=Guessing)
def cluster() -> None:
    """A developer's cluster on this machine: ZooKeeper, bookies, brokers, each its own process."""


directory_option = click.option(
    "--directory", type=click.Path(path_type=Path, file_okay=False), default=Path("cluster"), show_default=True,
    help="Folder of the cluster: configuration, logs and data of each process.",
)  # fmt: skip


@cluster.command()
@directory_option
@click.option("--bookies", type=AT_LEAST_ONE, default=3, show_default=True, help="Number of bookies.")
@click.option("--brokers", type=AT_LEAST_ONE, default=2, show_default=True, help="Number of brokers.")
@click.option(
    "--copies", type=AT_LEAST_ONE, default=2, show_default=True, help="Copies of each message, all confirmed."
)
@click.option("--free-ports", is_flag=True, help="Take any free ports instead of 2181, 3181…, 6650…, 6750…, 8080….")
def up(directory: Path, bookies: int, brokers: int, copies: int, free_ports: bool) -> None:
    """Start the cluster; if it exists, start the processes that do not run.

    Example:  magnetar cluster up --bookies 3 --brokers 2
    """
    local = Cluster(directory, copies=copies)
    with show.bar("the processes start"):
        local.up(bookies=bookies, brokers=brokers, free_ports=free_ports)
    _show_cluster(local)


@cluster.command()
@directory_option
def down(directory: Path) -> None:
    """Stop all processes of the cluster. Its data stay.

    Example:  magnetar cluster down
    """
    with show.bar("the processes stop"):
        Cluster(directory).down()
    click.echo("stopped")


@cluster.command()
@directory_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Show the processes of the cluster and their ports. Exit code 2 if one does not run.

    Example:  magnetar cluster status
    """
    local = Cluster(directory)
    if as_json:
        members = [
            {"name": member.name, "kind": member.kind, "running": local.is_running(member.name), "pid": member.pid,
             "port": member.port, "http_port": member.web_port or None, "grpc_port": member.grpc_port or None}
            for member in local.state.members
        ]  # fmt: skip
        print_json({"service_url": local.service_url, "admin_urls": local.admin_urls, "metadata": local.metadata_url,
                    "grpc_addresses": local.grpc_addresses, "processes": members})  # fmt: skip
    else:
        _show_cluster(local)
    if not all(local.is_running(member.name) for member in local.state.members):
        sys.exit(2)


def _show_cluster(local: Cluster) -> None:
    rows = []
    for member in local.state.members:
        ports = f"{member.port}" + (f", HTTP {member.web_port}" if member.web_port else "")
        ports += f", gRPC {member.grpc_port}" if member.grpc_port else ""
        rows.append((member.name, "running" if local.is_running(member.name) else "stopped", str(member.pid), ports))
    show.table(("process", "state", "pid", "port"), rows)
    click.echo(f"service URL {local.service_url}, metadata {local.metadata_url}, logs in {local.directory}/*/log")
    if local.grpc_addresses:
        click.echo(f"topic API {','.join(local.grpc_addresses)}")
    if local.dashboard_url:
        click.echo(f"dashboard {local.dashboard_url}")
