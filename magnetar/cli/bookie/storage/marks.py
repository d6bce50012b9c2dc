"""`magnetar bookie marks`."""

import click

from magnetar.cli.bookie.asking import remote
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json
from magnetar.inspect.bookie_admin import BookieAdmin


@click.command()
@remote
def marks(admin: BookieAdmin, as_json: bool) -> None:
    """Show up to where each journal has been flushed to the ledger storage (last log mark).

    Example:  magnetar bookie marks
    """
    journal_marks = admin.get("magnetar/status")["marks"]
    if as_json:
        print_json(journal_marks)
        return
    show.table(
        ("journal", "file", "journal id", "offset"),
        [(mark["directory"], mark["fileName"], str(mark["fileId"]), str(mark["offset"])) for mark in journal_marks],
    )
