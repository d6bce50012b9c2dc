"""`magnetar bookie info`."""

import click

from magnetar.cli.bookie.asking import remote
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json
from magnetar.inspect.bookie_admin import BookieAdmin


@click.command()
@remote
def info(admin: BookieAdmin, as_json: bool) -> None:
    """Show free and total space of the bookie's ledger directories.

    Example:  magnetar bookie info
    """
    space = admin.get("bookie/info")
    if as_json:
        print_json(space)
        return
    total, free = space["totalSpace"], space["freeSpace"]
    show.values(
        [("free", show.size(free)), ("total", show.size(total)), ("used", show.share(total - free, total))]
    )  # fmt: skip
