"""`magnetar bookie gc`: shows the state of garbage collection, and starts one."""

import sys
from typing import Any

import click

from magnetar.cli.bookie.asking import Pauses, remote, wait_option
from magnetar.cli.bookie.texts import doubt_text, logs_text
from magnetar.cli.common import output as show
from magnetar.cli.common.options import confirm, now_ms, print_json, say
from magnetar.inspect.bookie_admin import BookieAdmin


@click.group(invoke_without_command=True)
@remote
@click.pass_context
def gc(context: click.Context, admin: BookieAdmin, as_json: bool) -> None:
    """Show the state of garbage collection. With `run`: collect now.

    Example:  magnetar bookie gc
    """
    if context.invoked_subcommand is not None:
        return
    status = admin.get("magnetar/status")["gc"]
    say(status, as_json, _show_gc)


def _show_gc(gc: dict[str, Any]) -> None:
    now = now_ms()
    rows = [
        ("phase", gc["phase"]),
        ("last round", f"{show.age(gc['lastFinishedMs'], now)}, took {show.duration(gc['lastRoundS'])}"),
        ("rounds", str(gc["rounds"])),
        ("ledgers here", f"{gc['localLedgers']}, of which {gc['quarantinedLedgers']} were found deleted once"),
        ("deleted", f"{gc['deletedLedgers']} ledgers, {gc['movedLedgers']} whose copies are elsewhere"),
        ("entry logs", logs_text(gc)),
        ("won", f"{show.size(gc['reclaimedBytes'])}, {gc['removedLogs']} logs removed"),
        ("compacted", f"{gc['compactedLogs']} logs, {gc['copiedEntries']} entries copied "
                      f"({show.size(gc['copiedBytes'])})"),
        ("minor compaction", _compaction_text(gc, "minor", now)),
        ("major compaction", _compaction_text(gc, "major", now)),
        ("index compaction", f"{gc['locationCompactions']} done, last {show.age(gc['lastLocationMs'], now)}"),
    ]  # fmt: skip
    if gc.get("doubt", {}).get("sinceMs"):
        rows.append(("in doubt", doubt_text(gc["doubt"], now)))
    for name, text in (("refused", gc["refused"] and gc["refused"]["text"]), ("failed", gc["failed"]),
                       ("no room", gc["skippedForRoom"])):  # fmt: skip
        if text:
            rows.append((name, text))
    rows += [("damaged log", f"{log}: {text}") for log, text in gc["damagedLogs"].items()]
    show.values(rows)


def _compaction_text(gc: dict[str, Any], kind: str, now: int) -> str:
    text = f"{gc[f'{kind}Compactions']} done, last {show.age(gc[f'last{kind.capitalize()}Ms'], now)}"
    return text + (", suspended" if gc[f"{kind}Suspended"] else "")


@gc.command("run")
@click.option("--minor/--no-minor", default=True, show_default=True, help="Include a minor compaction.")
@click.option("--major/--no-major", default=True, show_default=True, help="Include a major compaction.")
@click.option(
    "--accept-listing",
    is_flag=True,
    help="Trust the metadata store's list of ledgers even if it is empty or much shorter: delete ledgers not in it.",
)
@wait_option
@remote
def run_gc(admin: BookieAdmin, minor: bool, major: bool, accept_listing: bool, wait: bool, as_json: bool) -> None:
    """Collect garbage now.

    Example:  magnetar bookie gc run --wait
    """
    collect(admin, as_json, wait, minor=minor, major=major, accept_listing=accept_listing)


@gc.command("forget-doubt")
@click.option("--yes", is_flag=True, help="Do not ask.")
@remote
def forget_doubt(admin: BookieAdmin, yes: bool, as_json: bool) -> None:
    """Give up the ledgers of this bookie that are newer than the metadata: the next rounds delete them.

    Look with `magnetar ledgers strays` first, and save with `magnetar ledgers restore` what is needed.

    Example:  magnetar bookie gc forget-doubt
    """
    count = admin.get("magnetar/ledger_doubts")["ledgers"]
    confirm(f"Give up {count} ledgers of this bookie that have no record in the metadata store?", yes)
    said = admin.delete("magnetar/ledger_doubts")
    print_json(said) if as_json else click.echo(f"{said['ledgers']} ledgers are given up")


def collect(
    admin: BookieAdmin, as_json: bool, wait: bool, *, minor: bool, major: bool, accept_listing: bool = False
) -> None:
    before = admin.get("magnetar/status")["gc"]["rounds"] if wait else 0
    body = {"forceMinor": minor, "forceMajor": major}
    if accept_listing:
        body["acceptListing"] = True
    said = admin.put("bookie/gc", body)
    if not wait:
        say(said, as_json)
        return
    status = _wait_for_gc(admin, before)
    say(status, as_json, _show_gc)
    if status["failed"] or status["refused"]:
        sys.exit(2)


def _wait_for_gc(admin: BookieAdmin, rounds_before: int) -> dict[str, Any]:
    pauses = Pauses()
    with show.bar("garbage collection") as progress_bar:
        while True:
            status: dict[str, Any] = admin.get("magnetar/status")["gc"]
            if status["phase"] == "idle" and status["rounds"] > rounds_before:
                return status
            text = f"{status['phase']}: {status['removedLogs']} logs removed, {status['compactedLogs']} compacted"
            progress_bar.update(0, text=text)
            pauses.wait()
