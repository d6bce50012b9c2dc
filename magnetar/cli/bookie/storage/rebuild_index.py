"""`magnetar bookie rebuild-index`."""

import sys
from pathlib import Path
from typing import Any

import click

from magnetar.cli.bookie.asking import Pauses, remote, wait_option
from magnetar.cli.bookie.texts import printable, rebuild_text
from magnetar.cli.common import output as show
from magnetar.cli.common.options import confirm, now_ms, say
from magnetar.inspect.bookie_admin import BookieAdmin
from magnetar.processes.bookies.rebuild import OfflineRebuild
from magnetar.processes.bookies.settings import read_bookie_settings
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.process.daemon import new_clock


@click.command("rebuild-index")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration of a stopped bookie. Default: a running bookie rebuilds its index.",
)  # fmt: skip
@click.option(
    "--ledgers-too", is_flag=True, help="With --config: the database of ledgers is damaged too; a check follows."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@wait_option
@remote
def rebuild_index(
    admin: BookieAdmin, config: Path | None, ledgers_too: bool, yes: bool, wait: bool, as_json: bool
) -> None:
    """Rebuild the index from the entry logs, if entries are missing from it or their locations are wrong.

    A running bookie compares its whole index with its logs while it serves; --wait shows the progress. With --config
    this command rebuilds the index of a stopped bookie. The exit code is 2 if entries may be missing. A rebuild fences
    all ledgers of the bookie: their writers continue in new ledgers.

    Example:  magnetar bookie rebuild-index --wait
    """
    if config is None:
        if ledgers_too:
            raise click.UsageError("--ledgers-too needs --config: a bookie that runs has its ledgers in memory")
        _rebuild_online(admin, as_json, yes, wait)
        return
    if as_json:
        raise click.UsageError("--json shows what a bookie says that runs; with --config none is asked")
    _rebuild_offline(config, ledgers_too, yes)


def _rebuild_online(admin: BookieAdmin, as_json: bool, yes: bool, wait: bool) -> None:
    status = admin.get("magnetar/rebuild_index")
    if not status["running"]:
        confirm(f"Compare the index of the bookie at {admin.url} with its logs, and fence all its ledgers?", yes)
        status = admin.put("magnetar/rebuild_index")
    if wait:
        status = _wait_for_rebuild(admin, status)
    say(status, as_json, _show_rebuild)
    if wait and (status["failed"] or status["problemCount"]):
        sys.exit(2)


def _wait_for_rebuild(admin: BookieAdmin, status: dict[str, Any]) -> dict[str, Any]:
    pauses = Pauses()
    with show.bar("index") as progress_bar:
        while status["running"]:
            match status["phase"]:
                case "logs":
                    progress_bar.update(status["logsDone"], status["logs"], "entry logs")
                case "waiting":
                    progress_bar.update(0, text="waiting for garbage collection")
                case "idle" | "marking" | "fencing":
                    progress_bar.update(0, text="ledgers are fenced")
                case _:
                    progress_bar.update(status["ledgersDone"], status["ledgers"], "ledgers")
            pauses.wait()
            status = admin.get("magnetar/rebuild_index")
    return status


def _show_rebuild(status: dict[str, Any]) -> None:
    show.values(
        [
            ("state", rebuild_text(status, now_ms())),
            ("entry logs", f"{status['logsDone']} of {status['logs']}"),
            ("looked at", f"{status['entriesLookedAt']} entries"),
            ("put right", f"{status['entriesPutRight']} entries"),
            ("damaged", f"{status['entriesDamaged']} records that the index lacked"),
            ("lost", f"{status['locationsLost']} entries that the index names and no log has"),
        ]
    )
    for problem in status["problems"]:
        click.echo(f"  {printable(problem)}")
    if status["problemCount"] > len(status["problems"]):
        click.echo(f"  and {status['problemCount'] - len(status['problems'])} more; the bookie's log has them all")


def _rebuild_offline(config: Path, ledgers_too: bool, yes: bool) -> None:
    settings = read_bookie_settings(config)
    rebuild = OfflineRebuild(settings, OsFiles(), new_clock())
    is_doubtful = False
    try:
        for directory in rebuild.directories:
            confirm(f"Rebuild the index in {directory}?", yes)
            count = rebuild.log_count(directory)
            with show.bar("entry logs", count) as progress_bar:
                done = rebuild.rebuild(directory, with_ledgers=ledgers_too, on_log=progress_bar.step)
            click.echo(f"{directory}: {done.entries} entries of {done.ledgers} ledgers")
            for problem in done.problems:
                click.echo(f"  {problem}", err=True)
            is_doubtful = is_doubtful or bool(done.problems)
    finally:
        rebuild.close()
    if is_doubtful:
        click.echo(
            "entries may be missing: the bookie calls them unknown until it has asked for other copies", err=True
        )
        sys.exit(2)
