"""The command `magnetar`. Each verb imports what it needs when it runs, so that `--help` answers at once."""

import sys
from pathlib import Path
from typing import Any

import click

from magnetar import __version__
from magnetar.bookie_cli import bookie
from magnetar.cli_options import admin_option, service_option
from magnetar.doctor import doctor
from magnetar.ledgers_cli import bookies, ledgers
from magnetar.show import table as _table
from magnetar.tenancy_cli import brokers, namespaces, schemas, tenants
from magnetar.topics_cli import lag, subscriptions, topics

PORT = click.IntRange(0, 65535)
COUNT = click.IntRange(min=0)
AT_LEAST_ONE = click.IntRange(min=1)

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Commands(click.Group):
    """Turns our errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        from magnetar.runtime.types import ConfigurationError, MagnetarError

        try:
            return super().invoke(ctx)
        except MagnetarError as error:
            click.echo(f"magnetar: {error}", err=True)
            ctx.exit(1 if isinstance(error, ConfigurationError) else 2)


@click.group(cls=_Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="magnetar")
def main() -> None:
    """A Pulsar-compatible message store.

    Start with `magnetar standalone`, then `magnetar produce my-topic -m hello` and `magnetar read my-topic`.
    """


config_option = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="File of name=value lines, with Apache's names."
)


@main.command()
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), default=Path("data"), show_default=True,
              help="Folder for everything that is stored.")  # fmt: skip
@config_option
@click.option("--bookies", type=AT_LEAST_ONE, default=1, show_default=True,
              help="Bookies in this process; their ports start at 3181.")  # fmt: skip
@click.option("--port", type=PORT, help="Port of the binary protocol (brokerServicePort); 0 takes a free one.")
@click.option("--web-port", type=PORT, help="Port of HTTP (webServicePort); 0 takes a free one.")
@click.option("--bookie-port", type=PORT, help="Port of the first bookie (bookiePort); 0 takes free ones.")
def standalone(
    data: Path, config: Path | None, bookies: int, port: int | None, web_port: int | None, bookie_port: int | None
) -> None:
    """Run broker, bookies and metadata in one process.

    Clients connect to pulsar://127.0.0.1:6650. Data survive a crash: a message is acknowledged when it is on disk.

    Example:  magnetar standalone --data ./data
    """
    from magnetar.standalone import run_standalone

    sys.exit(
        run_standalone(
            data, config, bookies=bookies, service_port=port, web_port=web_port, first_bookie_port=bookie_port
        )
    )


main.add_command(bookie)


@main.command()
@config_option
def broker(config: Path | None) -> None:
    """Run a broker: serves topics to Pulsar clients.

    Example:  magnetar broker --config broker.conf
    """
    from magnetar.servers import run_broker

    sys.exit(run_broker(config))


# --------------------------------------------------------------------------------------- cluster


@main.group()
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
@click.option("--free-ports", is_flag=True, help="Take any free ports instead of 2181, 3181…, 6650…, 6750…, 8080….")
def up(directory: Path, bookies: int, brokers: int, free_ports: bool) -> None:
    """Start it, or start again what does not run.

    Example:  magnetar cluster up --bookies 3 --brokers 2
    """
    from magnetar.cluster import Cluster

    made = Cluster(directory)
    made.up(bookies=bookies, brokers=brokers, free_ports=free_ports)
    _show_cluster(made)


@cluster.command()
@directory_option
def down(directory: Path) -> None:
    """Stop every process; the data stay."""
    from magnetar.cluster import Cluster

    Cluster(directory).down()
    click.echo("stopped")


@cluster.command()
@directory_option
def status(directory: Path) -> None:
    """What runs, on which ports. Exit code 2 if something does not run."""
    from magnetar.cluster import Cluster

    found = Cluster(directory)
    if not _show_cluster(found):
        sys.exit(2)


def _show_cluster(found: Any) -> bool:
    rows = []
    complete = True
    for member in found.state.members:
        running = found.is_running(member.name)
        complete = complete and running
        ports = f"{member.port}" + (f", HTTP {member.web_port}" if member.web_port else "")
        ports += f", gRPC {member.grpc_port}" if member.grpc_port else ""
        rows.append((member.name, "running" if running else "stopped", str(member.pid), ports))
    _table(("process", "state", "pid", "port"), rows)
    click.echo(f"service URL {found.service_url}, metadata {found.metadata_url}, logs in {found.directory}/*/log")
    if found.grpc_addresses:
        click.echo(f"topic API {','.join(found.grpc_addresses)}")
    return complete


for _group in (topics, subscriptions, lag, tenants, namespaces, schemas, brokers, bookies, ledgers, doctor):
    main.add_command(_group)


# -------------------------------------------------------------------------------------- messages


@main.command()
@click.argument("topic")
@click.option("-m", "--message", "messages", multiple=True, help="A message; may be given more than once.")
@click.option("-f", "--file", type=click.File("rb"), help="A file (or - for standard input): each line is a message.")
@click.option("-k", "--key", help="Key of every message.")
@click.option("-p", "--property", "properties", multiple=True, help="NAME=VALUE, on every message.")
@click.option("--schema", "with_schema", is_flag=True,
              help="Messages are JSON, written with the topic's schema (AVRO or JSON).")  # fmt: skip
@admin_option
@service_option
def produce(
    topic: str,
    messages: tuple[str, ...],
    file: Any,
    key: str | None,
    properties: tuple[str, ...],
    with_schema: bool,
    admin_url: str,
    service_url: str,
) -> None:
    """Publish to TOPIC; returns when everything is on disk.

    Example:  magnetar produce my-topic -m hello -m world
    """
    from magnetar.messages_cli import TopicSchema, produce_messages

    if not messages and file is None:
        raise click.UsageError("give messages with -m, or a file with -f (- is standard input)")
    payloads = [message.encode() for message in messages]
    schema = TopicSchema(admin_url, topic) if with_schema else None
    count = produce_messages(service_url, topic, payloads, file, key, _properties(properties), schema)
    click.echo(f"{count} messages acknowledged")


@main.command()
@click.argument("topic")
@click.option("-s", "--subscription", default="magnetar-cli", show_default=True, help="Subscription to consume from.")
@click.option("-t", "--type", "kind", type=click.Choice(["exclusive", "shared", "failover", "key-shared"]),
              default="exclusive", show_default=True, help="Type of the subscription.")  # fmt: skip
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Stop after so many messages; 0 goes on for ever.",
)
@click.option("--from", "position", type=click.Choice(["earliest", "latest"]), default="earliest", show_default=True,
              help="Where a new subscription begins.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--raw", is_flag=True, help="Do not take values apart by the topic's schema.")
@admin_option
@service_option
def consume(
    topic: str,
    subscription: str,
    kind: str,
    count: int,
    position: str,
    as_json: bool,
    raw: bool,
    admin_url: str,
    service_url: str,
) -> None:
    """Receive from TOPIC and acknowledge.

    Example:  magnetar consume my-topic -s my-subscription -n 10
    """
    from magnetar.messages_cli import TopicSchema, consume_messages

    schema = None if raw else TopicSchema(admin_url, topic)
    consume_messages(service_url, topic, subscription, kind, count, position, as_json, schema)


@main.command()
@click.argument("topic")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Stop after so many messages; 0 means all there are.",
)
@click.option("--from", "start", default="earliest", show_default=True, help="earliest, latest or LEDGER:ENTRY.")
@click.option("--follow", is_flag=True, help="Wait for more at the end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--raw", is_flag=True, help="Do not take values apart by the topic's schema.")
@admin_option
@service_option
def read(
    topic: str, count: int, start: str, follow: bool, as_json: bool, raw: bool, admin_url: str, service_url: str
) -> None:
    """Print the messages of TOPIC without acknowledging any.

    Example:  magnetar read my-topic
    """
    from magnetar.messages_cli import TopicSchema, read_messages

    schema = None if raw else TopicSchema(admin_url, topic)
    read_messages(service_url, topic, start, count, follow, as_json, schema)


@main.command()
@click.argument("topic")
@click.option("-n", "--count", type=COUNT, default=10, show_default=True, help="So many of the last messages.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--raw", is_flag=True, help="Do not take values apart by the topic's schema.")
@admin_option
@service_option
def tail(topic: str, count: int, follow: bool, as_json: bool, raw: bool, admin_url: str, service_url: str) -> None:
    """Print the last messages of TOPIC (of each partition) without acknowledging any.

    Example:  magnetar tail my-topic -n 3 -f
    """
    from magnetar.messages_cli import TopicSchema, tail_messages

    schema = None if raw else TopicSchema(admin_url, topic)
    tail_messages(service_url, admin_url, topic, count, follow, as_json, schema)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh"]))
def completion(shell: str) -> None:
    """What makes SHELL complete the commands and options of magnetar; put it into ~/.bashrc or ~/.zshrc.

    Example:  magnetar completion bash
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "bash and zsh come with click"
    click.echo(kind(main, {}, "magnetar", "_MAGNETAR_COMPLETE").source())


# ----------------------------------------------------------------------------------------- shared


def _properties(texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"-p {text}: expected NAME=VALUE")
        found[name] = value
    return found
