"""`magnetar bookie disks`."""

from typing import Any

import click

from magnetar.cli.bookie.asking import remote
from magnetar.cli.bookie.texts import show_disks
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json
from magnetar.inspect.bookie_admin import BookieAdmin


@click.command()
@click.option("--files", is_flag=True, help="List the files in the directories, too.")
@remote
def disks(admin: BookieAdmin, files: bool, as_json: bool) -> None:
    """Show the directories of the bookie, their usage and their content.

    Example:  magnetar bookie disks --files
    """
    facts: dict[str, Any] = {"disks": admin.get("magnetar/status")["info"]["disks"]}
    if files:
        facts["files"] = admin.get("magnetar/disk_files")
    if as_json:
        print_json(facts)
        return
    show_disks(facts["disks"])
    if files:
        click.echo()
        rows = [
            (kind, directory, str(len(names)), " ".join(names))
            for kind, directories in facts["files"].items()
            for directory, names in directories.items()
        ]
        show.table(("kind", "directory", "files", "names"), rows)
