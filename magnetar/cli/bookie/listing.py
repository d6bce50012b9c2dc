"""`magnetar bookie list`."""

import click

from magnetar.cli.bookie.asking import remote
from magnetar.cli.bookie.texts import space_cells
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json
from magnetar.inspect.bookie_admin import BookieAdmin


@click.command("list")
@click.option("--space", is_flag=True, help="Show the disk space of each bookie.")
@remote
def list_bookies(admin: BookieAdmin, space: bool, as_json: bool) -> None:
    """List the available bookies of the cluster.

    Example:  magnetar bookie list --space
    """
    by_mode = {
        mode: admin.get("bookie/list_bookies", type=kind, print_hostnames=True)
        for kind, mode in (("rw", "writable"), ("ro", "read-only"))
    }
    with show.bar("bookies are asked"):
        spaces = admin.get("bookie/list_bookie_info") if space else {}
    if as_json:
        print_json({**by_mode, "space": spaces} if space else by_mode)
        return
    rows = []
    for mode, bookies in by_mode.items():
        for bookie_id, host in sorted(bookies.items()):
            row = (bookie_id, mode, host or "unknown")
            rows.append((*row, *space_cells(spaces.get(bookie_id, ""))) if space else row)
    head = ("bookie", "mode", "host")
    show.table((*head, "used", "free", "total") if space else head, rows)
