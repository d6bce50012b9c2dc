"""`magnetar bookie config`."""

import click

from magnetar.cli.bookie.asking import remote
from magnetar.cli.common.options import print_json
from magnetar.inspect.bookie_admin import BookieAdmin


@click.command()
@remote
def config(admin: BookieAdmin, as_json: bool) -> None:
    """Show the effective settings of the bookie.

    Example:  magnetar bookie config
    """
    settings = admin.get("config/server_config")
    if as_json:
        print_json(settings)
        return
    for name, value in sorted(settings.items()):
        click.echo(f"{name}={value}")
