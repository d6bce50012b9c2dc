"""`magnetar bookie cookies`."""

import click

from magnetar.cli.bookie.asking import admin_of, remote
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json


@click.command()
@remote
def cookies(admin_url: str, as_json: bool) -> None:
    """Show which directories belong to which bookie of the cluster.

    Example:  magnetar bookie cookies
    """
    found = admin_of(admin_url).get("bookie/cookies")
    if as_json:
        print_json(found)
        return
    rows = [(bookie_id, *_cookie_cells(text)) for bookie_id, text in sorted(found.items())]
    show.table(("bookie", "journals", "ledgers", "cluster"), rows)


def _cookie_cells(text: str) -> tuple[str, str, str]:
    from bookie.disks.cookie import decode
    from magnetar_core.runtime.types import Corruption

    try:
        cookie = decode(text.encode(), "the cookie")
    except Corruption as error:
        return str(error), "", ""
    return ", ".join(cookie.journal_directories), ", ".join(cookie.ledger_directories), cookie.instance_id
