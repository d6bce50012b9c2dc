"""`magnetar bookie scrub`: shows the state of the check of all entries, and starts one."""

import sys
from typing import Any

import click

from magnetar.cli.bookie.asking import Pauses, remote, wait_option
from magnetar.cli.bookie.texts import scrub_text
from magnetar.cli.common import output as show
from magnetar.cli.common.options import now_ms, say
from magnetar.inspect.bookie_admin import BookieAdmin


@click.group(invoke_without_command=True)
@remote
@click.pass_context
def scrub(context: click.Context, admin: BookieAdmin, as_json: bool) -> None:
    """Show the state of the check of all entries on the disks. With `run`: start one now.

    Example:  magnetar bookie scrub
    """
    if context.invoked_subcommand is not None:
        return
    status = admin.get("magnetar/scrub")
    say(status, as_json, _show_scrub)


def _show_scrub(scrub: dict[str, Any]) -> None:
    rows = [("state", scrub_text(scrub, now_ms()))]
    if scrub["running"]:
        rows.append(("ledgers", f"{scrub['ledgersDone']} of {scrub['ledgers']} "
                                f"{show.share(scrub['ledgersDone'], scrub['ledgers'])}"))  # fmt: skip
    rows += [
        ("passes", str(scrub["passes"])),
        ("good", f"{scrub['entriesVerified']} entries"),
        ("repaired", f"{scrub['entriesRepaired']} entries"),
        ("lost", f"{scrub['entriesLost']} entries"),
        ("unrepaired", f"{scrub['entriesUnrepaired']} entries"),
        ("pace", f"{show.size(scrub['bytesS'])}/s" + (", too slow for localScrubInterval" if scrub["late"] else "")),
    ]
    show.values(rows)
    if scrub["badEntries"]:
        click.echo()
        bad = [(str(ledger), str(entry), text) for ledger, entry, text in scrub["badEntries"]]
        show.table(("ledger", "entry", "what is wrong"), bad)


@scrub.command("run")
@wait_option
@remote
def run_scrub(admin: BookieAdmin, wait: bool, as_json: bool) -> None:
    """Read and check all entries now, at the usual rate. With --wait: exit code 2 if entries are lost.

    Example:  magnetar bookie scrub run --wait
    """
    admin.put("magnetar/scrub")
    status = admin.get("magnetar/scrub")
    if wait:
        pauses = Pauses()
        with show.bar("ledgers") as progress_bar:
            while status["running"]:
                progress_bar.update(min(status["ledgersDone"], status["ledgers"]), status["ledgers"])
                pauses.wait()
                status = admin.get("magnetar/scrub")
    say(status, as_json, _show_scrub)
    if wait and (status["entriesLost"] or status["entriesUnrepaired"] or status["failed"]):
        sys.exit(2)
