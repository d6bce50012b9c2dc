"""`magnetar bookie cluster`."""

from typing import TYPE_CHECKING

import click

from magnetar.cli import output as show
from magnetar.cli.bookie.asking import admin_of, if_there, remote
from magnetar.cli.bookie.texts import SPACE, space_cells
from magnetar.cli.options import print_json

if TYPE_CHECKING:
    from magnetar.inspect.bookie_admin import BookieAdmin


@click.command()
@remote
def cluster(admin_url: str, as_json: bool) -> None:
    """Show the cluster: its bookies, which of them do not answer, the auditor, missing copies.

    Example:  magnetar bookie cluster
    """
    admin = admin_of(admin_url)
    found = admin.get("bookie/cluster_info")
    with show.bar("bookies are asked"):
        silent, away = _missing_bookies(admin)
    if as_json:
        print_json({**found, "silent": silent, "away": away})
        return
    show.values(
        [
            ("bookies", f"{found['totalBookiesCount']} known"),
            ("", f"{found['writableBookiesCount']} writable, {found['readonlyBookiesCount']} read-only, "
                 f"{found['unavailableBookiesCount']} away"),
            ("auditor", found["auditorId"] or "none"),
            ("auto-recovery", "allowed" if found["ledgerReplicationEnabled"] else "switched off"),
            ("copies", _copies_text(found["clusterUnderReplicated"], silent, away)),
        ]
    )  # fmt: skip


def _missing_bookies(admin: "BookieAdmin") -> tuple[dict[str, str], list[str]]:
    """(bookies that are registered and do not answer, with what is known of why; bookies that are known and away)"""
    registered = {name for kind in ("rw", "ro") for name in admin.get("bookie/list_bookies", type=kind)}
    spaces = if_there(admin, "bookie/list_bookie_info") if registered else None
    silent = {}
    if spaces is not None:
        told = {name: spaces.get(name, "") for name in sorted(registered)}
        silent = {name: space_cells(text)[0] for name, text in told.items() if not SPACE.search(text)}
    return silent, sorted({*(if_there(admin, "bookie/cookies") or ())} - registered)


def _copies_text(are_marked: bool, silent: dict[str, str], away: list[str]) -> str:
    """What is known of missing copies: ledgers that auto-recovery has marked, and bookies that cannot be asked."""
    told = ["some ledgers are marked as missing some (`magnetar autorecovery list`)"] if are_marked else []
    told += [f"{name} does not answer ({why}): its copies cannot be read" for name, why in silent.items()]
    told += [f"{name} is away: its copies cannot be read" for name in away]
    if not told:
        return "none is known to be missing"
    return "; ".join(told) + ("; `magnetar doctor` tells which ledgers" if silent or away else "")
