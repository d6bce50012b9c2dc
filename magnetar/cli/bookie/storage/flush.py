"""`magnetar bookie flush`."""

import click

from magnetar.cli.bookie.asking import admin_of, remote
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json


@click.command()
@remote
def flush(admin_url: str, as_json: bool) -> None:
    """Flush the write cache to entry logs now.

    Example:  magnetar bookie flush
    """
    with show.bar("the write cache is flushed"):
        said = admin_of(admin_url).put("magnetar/flush")
    print_json(said) if as_json else click.echo(said)
