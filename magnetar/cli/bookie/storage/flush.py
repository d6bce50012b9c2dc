"""`magnetar bookie flush`."""

import click

from magnetar.cli.bookie.asking import remote
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json
from magnetar.inspect.bookie_admin import BookieAdmin


@click.command()
@remote
def flush(admin: BookieAdmin, as_json: bool) -> None:
    """Flush the write cache to entry logs now.

    Example:  magnetar bookie flush
    """
    with show.bar("the write cache is flushed"):
        said = admin.put("magnetar/flush")
    print_json(said) if as_json else click.echo(said)
