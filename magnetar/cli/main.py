"""The command `magnetar`. Each verb imports what it needs when it runs, so that `--help` answers at once."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magnetar import __version__
from magnetar.cli.autorecovery import autorecovery
from magnetar.cli.bookie import bookie
from magnetar.cli.bookies import bookies
from magnetar.cli.common import output as show
from magnetar.cli.common.access import access_options
from magnetar.cli.common.guesses import Guessing
from magnetar.cli.common.options import json_option, print_json, processes_option
from magnetar.cli.doctor import doctor
from magnetar.cli.ledgers import ledgers
from magnetar.cli.messages.commands import consume, produce, read, tail
from magnetar.cli.permissions import namespaces, topics  # with their commands about permissions
from magnetar.cli.tenancy import brokers, schemas, tenants
from magnetar.cli.tokens import tokens
from magnetar.cli.topics import lag, subscriptions

if TYPE_CHECKING:
    from magnetar.processes.cluster import Cluster

PORT = click.IntRange(0, 65535)
AT_LEAST_ONE = click.IntRange(min=1)

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _answered() -> str:
    """The URL of the server that has answered this command last; empty: none has."""
    asked = sys.modules.get("magnetar_core.runtime.http.request")  # it is loaded by commands that ask one
    return "" if asked is None else str(asked.ANSWERED.get())


class _Commands(Guessing):
    """Turns our errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        from magnetar_core.runtime.data.visible import visible
        from magnetar_core.runtime.process.own_packages import check_own_packages
        from magnetar_core.runtime.types import ConfigurationError, MagnetarError

        try:
            check_own_packages()
            return super().invoke(ctx)
        except MagnetarError as error:
            click.echo(f"magnetar: {visible(str(error), lines=True)}", err=True)
            ctx.exit(1 if isinstance(error, ConfigurationError) else 2)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            if not (server := _answered()):
                raise
            text = f"the answer of {server} is none that it should give ({type(error).__name__}: {error})"
            click.echo(f"magnetar: {text}; is it a server of Magnetar? If so, please report this.", err=True)
            ctx.exit(2)


@click.group(cls=_Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="magnetar")
@access_options
def main() -> None:
    """A Pulsar-compatible message store.

    Start with `magnetar standalone`, then `magnetar produce my-topic -m hello` and `magnetar read my-topic`.
    """


@main.command(hidden=True)
def version() -> None:
    """Print the version, like `magnetar --version`.

    Example:  magnetar version
    """
    click.echo(f"magnetar, version {__version__}")


config_option = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="File of name=value lines, with Apache's names."
)


@main.command()
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), default=Path("data"), show_default=True,
              help="Folder for all stored data.")  # fmt: skip
@config_option
@click.option("--bookies", type=AT_LEAST_ONE, default=1, show_default=True,
              help="Bookies in this process; their ports start at 3181.")  # fmt: skip
@click.option("--port", type=PORT, help="Port of the binary protocol (brokerServicePort); 0 takes a free one.")
@click.option("--web-port", type=PORT, help="Port of HTTP (webServicePort); 0 takes a free one.")
@click.option("--bookie-port", type=PORT, help="Port of the first bookie (bookiePort); 0 takes free ones.")
@click.option("--processes", metavar="N", help="Refused: a standalone is one process.")
@click.option("--secure", type=click.Path(path_type=Path, file_okay=False),
              help="Folder of keys, certificates and a token, made once; clients use TLS and a token.")  # fmt: skip
@click.option("--forget-doubt", is_flag=True,
              help="Give up ledgers that are newer than the metadata (see `magnetar doctor`).")  # fmt: skip
def standalone(
    data: Path,
    config: Path | None,
    bookies: int,
    port: int | None,
    web_port: int | None,
    bookie_port: int | None,
    processes: str | None,
    secure: Path | None,
    forget_doubt: bool,
) -> None:
    """Run broker, bookies and metadata in one process.

    Clients connect to pulsar://127.0.0.1:6650. Data survive a crash: a message is acknowledged when it is on disk.

    Example:  magnetar standalone --data ./data
    """
    from magnetar.processes.standalone import run_standalone

    if processes is not None:
        raise click.UsageError(
            "a standalone is one process; `magnetar bookie --processes N` and `magnetar broker --processes N` with a "
            "ZooKeeper use more cores"
        )
    sys.exit(
        run_standalone(
            data,
            config,
            bookies=bookies,
            service_port=port,
            web_port=web_port,
            first_bookie_port=bookie_port,
            secure=secure,
            forget_doubt=forget_doubt,
        )
    )


main.add_command(bookie)
main.add_command(autorecovery)
main.add_command(tokens)


@main.command()
@config_option
@processes_option
def broker(config: Path | None, processes: str | None) -> None:
    """Run a broker, which serves topics to Pulsar clients.

    With --processes N it is a service of N brokers, each with ports of its own, and one HTTP address.

    Example:  magnetar broker --config broker.conf
    """
    from magnetar.processes.servers import run_broker

    sys.exit(run_broker(config, processes))


# --------------------------------------------------------------------------------------- cluster


@main.group(cls=Guessing)
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
    from magnetar.processes.cluster import Cluster

    made = Cluster(directory, copies=copies)
    with show.bar("the processes start"):
        made.up(bookies=bookies, brokers=brokers, free_ports=free_ports)
    _show_cluster(made)


@cluster.command()
@directory_option
def down(directory: Path) -> None:
    """Stop all processes of the cluster. Its data stay.

    Example:  magnetar cluster down
    """
    from magnetar.processes.cluster import Cluster

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
    from magnetar.processes.cluster import Cluster

    found = Cluster(directory)
    if as_json:
        members = [
            {"name": one.name, "kind": one.kind, "running": found.is_running(one.name), "pid": one.pid,
             "port": one.port, "http_port": one.web_port or None, "grpc_port": one.grpc_port or None}
            for one in found.state.members
        ]  # fmt: skip
        print_json({"service_url": found.service_url, "admin_urls": found.admin_urls, "metadata": found.metadata_url,
                    "grpc_addresses": found.grpc_addresses, "processes": members})  # fmt: skip
    else:
        _show_cluster(found)
    if not all(found.is_running(one.name) for one in found.state.members):
        sys.exit(2)


def _show_cluster(found: "Cluster") -> None:
    rows = []
    for member in found.state.members:
        ports = f"{member.port}" + (f", HTTP {member.web_port}" if member.web_port else "")
        ports += f", gRPC {member.grpc_port}" if member.grpc_port else ""
        rows.append((member.name, "running" if found.is_running(member.name) else "stopped", str(member.pid), ports))
    show.table(("process", "state", "pid", "port"), rows)
    click.echo(f"service URL {found.service_url}, metadata {found.metadata_url}, logs in {found.directory}/*/log")
    if found.grpc_addresses:
        click.echo(f"topic API {','.join(found.grpc_addresses)}")
    if found.dashboard_url:
        click.echo(f"dashboard {found.dashboard_url}")


for _command in (
    topics, subscriptions, lag, tenants, namespaces, schemas, brokers, bookies, ledgers, doctor, produce, consume, read,
    tail,
):  # fmt: skip
    main.add_command(_command)


# ------------------------------------------------------------------------------------- completion


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh"]))
def completion(shell: str) -> None:
    """Print the completion script of magnetar for SHELL; put it into ~/.bashrc or ~/.zshrc.

    Example:  magnetar completion bash
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "bash and zsh come with click"
    click.echo(kind(main, {}, "magnetar", "_MAGNETAR_COMPLETE").source())
