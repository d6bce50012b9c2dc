"""`magnetar bookie metrics`."""

import click

from magnetar.cli.bookie.asking import ADMIN_URL
from magnetar.inspect.bookie_admin import BookieAdmin


@click.command()
@click.option(
    "--admin-url",
    default=ADMIN_URL,
    show_default=True,
    envvar="MAGNETAR_BOOKIE_ADMIN_URL",
    help="HTTP address of the bookie.",
)
def metrics(admin_url: str) -> None:
    """Show the metrics of the bookie in the format of Prometheus.

    Example:  magnetar bookie metrics
    """
    click.echo(BookieAdmin(admin_url).text("/metrics"), nl=False)
