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
        result = admin.get("bookie/sanity")
    if as_json:
        print_json(result)
    else:
        click.echo(("passed" if result["passed"] else "failed; the bookie's log says why")
                   + (", read-only" if result["readOnly"] else ""))  # fmt: skip
    if not result["passed"]:
        sys.exit(2)
