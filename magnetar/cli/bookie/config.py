"""`magnetar bookie config`."""

import click

from magnetar.cli.bookie.asking import admin_of, remote
from magnetar.cli.common.options import print_json


@click.command()
@remote
def config(admin_url: str, as_json: bool) -> None:
    """Show the effective settings of the bookie.

    Example:  magnetar bookie config
    """
    found = admin_of(admin_url).get("config/server_config")
    if as_json:
        print_json(found)
        return
    for name, value in sorted(found.items()):
        click.echo(f"{name}={value}")
