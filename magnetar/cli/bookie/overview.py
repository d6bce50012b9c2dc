"""`magnetar bookie info`, `sanity`, `disks`, `marks`, `config`, `metrics`, `list` and `cookies`: what a bookie says."""

import sys
from typing import Any

import click

from bookie.disks.cookie import decode
from magnetar.cli.bookie.asking import ADMIN_URL, remote
from magnetar.cli.bookie.texts import show_disks, space_cells
from magnetar.cli.common import output as show
from magnetar.cli.common.options import done, print_json, say
from magnetar.inspect.bookie_admin import BookieAdmin
from magnetar_core.runtime.types import Corruption


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


@click.command()
@remote
def sanity(admin: BookieAdmin, as_json: bool) -> None:
    """Check the bookie: it writes and reads a little in each directory. Exit code 2 if that fails.

    Example:  magnetar bookie sanity
    """
    with show.bar("the bookie writes and reads"):
        result = admin.get("bookie/sanity")
    outcome = "passed" if result["passed"] else "failed; the bookie's log says why"
    done(outcome + (", read-only" if result["readOnly"] else ""), as_json, **result)
    if not result["passed"]:
        sys.exit(2)


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


@click.command()
@remote
def config(admin: BookieAdmin, as_json: bool) -> None:
    """Show the effective settings of the bookie.

    Example:  magnetar bookie config
    """
    say(admin.get("config/server_config"), as_json, show.settings)


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
