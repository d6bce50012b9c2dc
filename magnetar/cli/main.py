"""The command `magnetar`: it knows the names of all commands, and imports the module of the one that is called."""

import sys
from typing import Any

import click

from magnetar import __version__
from magnetar.cli.common.access import access_options
from magnetar.cli.common.later import Later, LaterGroup
from magnetar_core.runtime.data.visible import visible
from magnetar_core.runtime.process.own_packages import check_own_packages
from magnetar_core.runtime.types import ConfigurationError, MagnetarError

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_CLI = "magnetar.cli"

COMMANDS = (
    Later("standalone", f"{_CLI}.servers:standalone", "Run broker, bookies and metadata in one process."),
    Later("broker", f"{_CLI}.servers:broker", "Run a broker, which serves topics to Pulsar clients."),
    Later("bookie", f"{_CLI}.bookie:bookie", "Run a bookie, which stores ledgers and serves BookKeeper's protocol."),
    Later("autorecovery", f"{_CLI}.autorecovery:autorecovery", "Restore missing copies of ledgers."),
    Later("cluster", f"{_CLI}.cluster:cluster",
          "A developer's cluster on this machine: ZooKeeper, bookies, brokers, each its own process."),
    Later("backup", f"{_CLI}.backups.standalone:backup",
          "Copy a standalone, which may run, to TARGET: a new folder, or a file NAME.tar."),
    Later("restore", f"{_CLI}.backups.standalone:restore",
          "Make a data folder of the backup SOURCE, after every file was compared with its checksum."),
    Later("metadata", f"{_CLI}.backups.metadata:metadata",
          "All records of a metadata store: into a file, and from it into an empty store."),
    Later("topics", f"{_CLI}.permissions:topics", "List, create, inspect and delete topics."),
    Later("subscriptions", f"{_CLI}.topics:subscriptions",
          "List, create, seek and delete the subscriptions of a topic."),
    Later("lag", f"{_CLI}.topics:lag", "Show the backlog of subscriptions, the largest first."),
    Later("tenants", f"{_CLI}.tenancy:tenants", "List, show, create and delete tenants."),
    Later("namespaces", f"{_CLI}.permissions:namespaces",
          "List, show, create and delete namespaces, and set their policies."),
    Later("schemas", f"{_CLI}.tenancy:schemas", "List, show, upload and delete schemas of topics."),
    Later("brokers", f"{_CLI}.tenancy:brokers", "Inspect the brokers of the cluster."),
    Later("bookies", f"{_CLI}.bookies:bookies", "Bookies of a cluster, and taking one out of it."),
    Later("ledgers", f"{_CLI}.ledgers:ledgers",
          "Ledgers of a cluster: what stands in the metadata, and what the bookies have."),
    Later("doctor", f"{_CLI}.doctor:doctor", "Check a cluster, and report what is wrong and what to do about it."),
    Later("tokens", f"{_CLI}.tokens:tokens",
          "Tokens for clients of a broker that authenticates them, and the secret they are signed with."),
    Later("produce", f"{_CLI}.messages.commands:produce", "Publish messages to TOPIC; returns when all are on disk."),
    Later("consume", f"{_CLI}.messages.commands:consume", "Receive messages from TOPIC and acknowledge them."),
    Later("read", f"{_CLI}.messages.commands:read", "Print the messages of TOPIC without acknowledging them."),
    Later("tail", f"{_CLI}.messages.commands:tail",
          "Print the last messages of TOPIC (of each partition) without acknowledging them."),
)  # fmt: skip


_ZSH_BEGIN = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"


def _answered() -> str:
    """The URL of the server that answered this command last; empty if none did."""
    asked = sys.modules.get("magnetar_core.runtime.http.request")  # it is loaded by commands that ask one
    return "" if asked is None else str(asked.ANSWERED.get())


class _Commands(LaterGroup):
    """Turns our errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            check_own_packages()
            return super().invoke(ctx)
        except MagnetarError as error:
            click.echo(f"magnetar: {visible(str(error), lines=True)}", err=True)
            ctx.exit(1 if isinstance(error, ConfigurationError) else 2)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            if not (server := _answered()):
                raise
            text = f"the answer of {server} is not one that it should give ({type(error).__name__}: {error})"
            click.echo(f"magnetar: {text}; is it a server of Magnetar? If so, please report this.", err=True)
            ctx.exit(2)


@click.group(cls=_Commands, later=COMMANDS, context_settings=CONTEXT)
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


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh"]))
def completion(shell: str) -> None:
    """Print the completion script of magnetar for SHELL; put it into ~/.bashrc or ~/.zshrc.

    Example:  magnetar completion bash
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "bash and zsh come with click"
    source = kind(main, {}, "magnetar", "_MAGNETAR_COMPLETE").source()
    if shell == "zsh":  # the first line is for a file in its `fpath`; behind it, for a ~/.zshrc without completion
        first, _, rest = source.lstrip("\n").partition("\n")
        source = f"{first}\n{_ZSH_BEGIN}{rest}"
    click.echo(source)
