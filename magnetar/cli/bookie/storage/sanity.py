"""`magnetar bookie sanity`."""

import sys

import click

from magnetar.cli.bookie.asking import remote
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json
from magnetar.inspect.bookie_admin import BookieAdmin


@click.command()
@remote
def sanity(admin: BookieAdmin, as_json: bool) -> None:
    """Check the bookie: it writes and reads a little in each directory. Exit code 2 if that fails.

    Example:  magnetar bookie sanity
    """
    with show.bar("the bookie writes and reads"):
        found = admin.get("bookie/sanity")
    if as_json:
        print_json(found)
    else:
        click.echo(("passed" if found["passed"] else "failed; the bookie's log says why")
                   + (", read-only" if found["readOnly"] else ""))  # fmt: skip
    if not found["passed"]:
        sys.exit(2)
