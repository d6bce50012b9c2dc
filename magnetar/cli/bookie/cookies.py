"""`magnetar bookie cookies`."""

import click

from bookie.disks.cookie import decode
from magnetar.cli.bookie.asking import remote
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json
from magnetar.inspect.bookie_admin import BookieAdmin
from magnetar_core.runtime.types import Corruption


@click.command()
@remote
def cookies(admin: BookieAdmin, as_json: bool) -> None:
    """Show which directories belong to which bookie of the cluster.

    Example:  magnetar bookie cookies
    """
    texts = admin.get("bookie/cookies")
    if as_json:
        print_json(texts)
        return
    rows = [(bookie_id, *_cookie_cells(text)) for bookie_id, text in sorted(texts.items())]
    show.table(("bookie", "journals", "ledgers", "cluster"), rows)


def _cookie_cells(text: str) -> tuple[str, str, str]:
    try:
        cookie = decode(text.encode(), "the cookie")
    except Corruption as error:
        return str(error), "", ""
    return ", ".join(cookie.journal_directories), ", ".join(cookie.ledger_directories), cookie.instance_id
