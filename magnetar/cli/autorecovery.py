"""`magnetar autorecovery`: runs a node, and shows and controls what all nodes do, through the metadata store only."""

import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from autorecovery.admin.tokens import Role, line_of, name_problem
from autorecovery.audit.election import auditor
from autorecovery.manual import ManualRecovery
from autorecovery.reporting.overview import MarkedLedger, Overview, read_overview
from magnetar.cli.common import output as show
from magnetar.cli.common.chosen_cluster import ChosenCluster, OpenStore, with_cluster
from magnetar.cli.common.guesses import Guessing
from magnetar.cli.common.options import config_option, confirm, done, json_option, now_ms, print_json, who, yes_option
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import Report, Stage, facts_of
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.security.tls.files import directory_files

# Problems that `status` shows; `list` has all.
_SHOWN = 10


@click.group(cls=Guessing, invoke_without_command=True)
@config_option
@click.pass_context
def autorecovery(ctx: click.Context, config: Path | None) -> None:
    """Restore missing copies of ledgers. Without a command: run an auto-recovery node in this process.

    Example:  magnetar autorecovery --config bookkeeper.conf
    """
    if ctx.invoked_subcommand is not None:
        if config is not None:
            raise click.UsageError(
                "--config belongs to a node that is run; the commands find the cluster by --metadata"
            )
        return
    from magnetar.processes.autorecovery import run_auto_recovery

    sys.exit(run_auto_recovery(config))


# ----------------------------------------------------------------------------------------- looking


async def _overview(opened: OpenStore) -> Overview:
    return await read_overview(opened.store, opened.root)


@autorecovery.command()
@with_cluster
@json_option
def status(cluster: ChosenCluster, as_json: bool) -> None:
    """Show whether auto-recovery is on, which node audits, what the nodes did, and how many ledgers lack copies.

    Example:  magnetar autorecovery status
    """
    overview = cluster.on_store(_overview)
    if as_json:
        print_json(_facts(overview))
        return
    as_of_when = "" if overview.marked else _as_of_when(overview)
    delay = "0 s" if overview.lost_bookie_delay_s is None else f"{overview.lost_bookie_delay_s} s"
    show.values(
        [
            (
                "auto-recovery",
                "on" if overview.is_enabled else "off for the whole cluster (`magnetar autorecovery enable`)",
            ),
            ("auditor", overview.auditor or "none: no node is running"),
            ("a bookie may be away", delay),
            ("ledgers known to lack copies", f"{overview.marked_total}{as_of_when}"),
        ]
    )
    if overview.nodes:
        click.echo()
        head = ("node", "role", "repaired", "copied", "under way", "waiting", "last")
        show.table(head, [_node_row(node.name, node.facts) for node in overview.nodes])
    waiting = [ledger for ledger in overview.marked if ledger.problem is not None]
    if waiting:
        click.echo()
        _show_marked(waiting[:_SHOWN])
        if len(waiting) > _SHOWN:
            click.echo(f"… and {len(waiting) - _SHOWN} more: `magnetar autorecovery list`")


def _node_row(name: str, facts: Any) -> tuple[str, ...]:
    return (
        name,
        "auditor, worker" if facts.get("is_auditor") else "worker",
        str(facts.get("repaired", 0)),
        f"{facts.get('copied_entries', 0)} entries, {show.size(facts.get('copied_bytes', 0))}",
        str(len(facts.get("under_way", ()))),
        str(facts.get("waiting", 0)),
        show.age(facts.get("last_repaired_ms"), now_ms()),
    )


@autorecovery.command("list")
@with_cluster
@json_option
def list_marked(cluster: ChosenCluster, as_json: bool) -> None:
    """List ledgers that auto-recovery found to lack copies, and why one cannot be repaired. Exit code 2 if one cannot.

    What it has not looked at yet is not in it: `magnetar ledgers lacking` looks itself.

    Example:  magnetar autorecovery list
    """
    overview = cluster.on_store(_overview)
    if as_json:
        print_json([_marked_facts(ledger) for ledger in overview.marked])
    elif overview.marked:
        _show_marked(overview.marked)
        if overview.marked_total > len(overview.marked):
            click.echo(f"… and {overview.marked_total - len(overview.marked)} more")
    else:
        click.echo(f"no ledger is known to lack copies{_as_of_when(overview)}")
    if any(ledger.problem is not None for ledger in overview.marked):
        sys.exit(2)


def _as_of_when(overview: Overview) -> str:
    """How old that knowledge is, and who is away without being in it yet."""
    audit = next((node.facts.get("auditor") for node in overview.nodes if node.facts.get("is_auditor")), None)
    facts = audit if isinstance(audit, dict) else {}
    looks = "`magnetar ledgers lacking` looks now"
    if not overview.is_enabled:
        return f", but auto-recovery is off and nobody has looked since; {looks}"
    if overview.auditor is None:
        return f", but no node is running and nobody looks; {looks}"
    if facts.get("away"):
        away = ", ".join(map(str, facts["away"]))
        return f", but of what is on bookies that are away ({away}) that is found out after the delay; {looks}"
    if facts.get("last_audit_ms"):
        return f"; the last audit was {show.age(facts['last_audit_ms'], now_ms())}"
    return ""


def _show_marked(ledgers: list[MarkedLedger] | tuple[MarkedLedger, ...]) -> None:
    rows = []
    for ledger in ledgers:
        if ledger.problem is not None:
            state, why = ledger.problem.kind, ledger.problem.text
        else:
            state, why = ("being repaired" if ledger.is_locked else "waits its turn"), ""
        missing, age = ", ".join(ledger.replicas), show.age(ledger.marked_ms, now_ms())
        rows.append((str(ledger.ledger_id), ledger.owner, missing, age, state, why))
    show.table(("ledger", "of", "missing on", "known for", "state", "reason"), rows)


def _marked_facts(ledger: MarkedLedger) -> dict[str, Any]:
    problem = None if ledger.problem is None else ledger.problem._asdict()
    return {"ledger_id": ledger.ledger_id, "owner": ledger.owner, "missing_on": list(ledger.replicas),
            "marked_ms": ledger.marked_ms, "is_locked": ledger.is_locked, "problem": problem}  # fmt: skip


def _facts(overview: Overview) -> dict[str, Any]:
    return {
        "enabled": overview.is_enabled,
        "auditor": overview.auditor,
        "lost_bookie_recovery_delay_s": overview.lost_bookie_delay_s,
        "under_replicated": overview.marked_total,
        "nodes": {node.name: dict(node.facts) for node in overview.nodes},
        "problems": [_marked_facts(ledger) for ledger in overview.marked if ledger.problem is not None],
    }


# ---------------------------------------------------------------------------------------- steering


def _switch(enabled: bool) -> Callable[[OpenStore], Awaitable[None]]:
    """Auto-recovery of the whole cluster: on or off."""

    async def work(opened: OpenStore) -> None:
        await MarkBoard(opened.store, opened.root).set_enabled(enabled)

    return work


@autorecovery.command()
@with_cluster
@json_option
def enable(cluster: ChosenCluster, as_json: bool) -> None:
    """Switch auto-recovery on: the nodes of the cluster repair again.

    Example:  magnetar autorecovery enable
    """
    cluster.on_store(_switch(True), changes=True)
    done("auto-recovery is on", as_json, enabled=True)


@autorecovery.command()
@with_cluster
@json_option
def disable(cluster: ChosenCluster, as_json: bool) -> None:
    """Switch auto-recovery off: no node of the cluster, also none of Apache's, begins a repair. For maintenance.

    Example:  magnetar autorecovery disable
    """
    cluster.on_store(_switch(False), changes=True)
    done("auto-recovery is off for the whole cluster", as_json, enabled=False)


@autorecovery.command()
@with_cluster
@json_option
def audit(cluster: ChosenCluster, as_json: bool) -> None:
    """Ask the auditor to check for lost bookies now, without the delay.

    Example:  magnetar autorecovery audit
    """

    async def work(opened: OpenStore) -> str | None:
        auditor_id = await auditor(opened.store, opened.root)
        if auditor_id is not None:
            marks = MarkBoard(opened.store, opened.root)
            # The same value again is how auditors are asked, Apache's too.
            await marks.set_lost_bookie_delay(await marks.lost_bookie_delay_s() or 0)
        return auditor_id

    auditor_id = cluster.on_store(work, changes=True)
    if auditor_id is None:
        raise click.ClickException("no node is running, so nobody audits: start one with `magnetar autorecovery`")
    done(f"{auditor_id} was asked for an audit", as_json, auditor=auditor_id)


@autorecovery.command()
@click.argument("seconds", type=click.IntRange(min=0), required=False)
@with_cluster
@json_option
def delay(cluster: ChosenCluster, seconds: int | None, as_json: bool) -> None:
    """Set how many SECONDS a single bookie may be away before its ledgers are copied; without SECONDS: show that time.

    Example:  magnetar autorecovery delay 600
    """

    async def work(opened: OpenStore) -> int:
        marks = MarkBoard(opened.store, opened.root)
        if seconds is not None:
            await marks.set_lost_bookie_delay(seconds)
            return seconds
        return await marks.lost_bookie_delay_s() or 0

    delay_s = cluster.on_store(work, changes=seconds is not None)
    done(f"a bookie may be away for {delay_s} s", as_json, lost_bookie_recovery_delay_s=delay_s)


@autorecovery.command()
@click.argument("bookies", metavar="BOOKIE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only show which ledgers would be copied.")
@click.option("--skip-open", is_flag=True, help="Skip ledgers that are not closed.")
@click.option(
    "--bytes-per-second",
    "bytes_per_s",
    type=click.IntRange(min=1024 * 1024),
    help="Copy so many bytes a second at most. Settings of nodes do not hold here.",
)
@click.option(
    "--max-frame-bytes",
    "frame_bytes_max",
    type=click.IntRange(min=1024 * 1024),
    help="nettyMaxFrameSizeBytes of the bookies, if there are entries of more than 5 MiB.",
)
@click.option("--delete-cookie", is_flag=True, help="Afterwards delete the bookies' cookies, if no ledger names them.")
@yes_option
@with_cluster
@json_option
def recover(
    cluster: ChosenCluster,
    bookies: tuple[str, ...],
    dry_run: bool,
    skip_open: bool,
    bytes_per_s: int | None,
    frame_bytes_max: int | None,
    delete_cookie: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Copy all ledgers of each BOOKIE to other bookies, from this process; no auto-recovery node has to run.

    A BOOKIE that runs is only read. Open ledgers are closed first; their writers then continue in new ledgers.
    Exit code 2 if a ledger could not be copied.

    Example:  magnetar autorecovery recover 10.0.0.3:3181
    """
    if not dry_run:
        names = ", ".join(bookies)
        confirm(f"Copy everything away from {names}, and close ledgers that are being written there?", yes)

    async def work(opened: OpenStore) -> Any:
        tls = directory_files(cluster.tls_directory, "--tls-directory") if cluster.tls_directory else None
        config = ClientConfig(tls=tls)
        if frame_bytes_max is not None:
            config = config.with_frames(frame_bytes_max)
        client = BookKeeper(opened.store, opened.clock, config, root=opened.root)
        await client.open()
        try:
            name = f"recover-{socket.gethostname()}-{os.getpid()}"
            recovery = ManualRecovery(
                name, opened.store, client, opened.clock, root=opened.root, bytes_per_s=bytes_per_s
            )
            if dry_run:
                return await recovery.plan(bookies)
            with show.bar("ledgers are copied") as progress_bar:
                result = await recovery.recover(
                    bookies, skip_open=skip_open, on_progress=lambda at, total: progress_bar.update(at, total)
                )
            if delete_cookie and not (result.failed or result.skipped):
                for bookie in bookies:
                    await recovery.delete_cookie(bookie)
            return result
        finally:
            await client.close()

    result = cluster.on_store(work, changes=not dry_run)
    if dry_run:
        _show_plan(result, as_json)
        return
    if as_json:
        print_json(asdict(result))
    else:
        click.echo(
            f"{result.repaired} of {result.ledgers} ledgers are elsewhere now; {result.copied_entries} entries "
            f"({show.size(result.copied_bytes)}) were copied"
        )
        if result.skipped:
            click.echo(f"left to their writers: {', '.join(map(str, result.skipped[:20]))}")
        for ledger_id, why in sorted({**result.failed, **result.unreadable}.items()):
            click.echo(f"ledger {ledger_id}: {why}", err=True)
    if result.failed or result.unreadable:
        sys.exit(2)


def _show_plan(ledgers: dict[int, bool], as_json: bool) -> None:
    if as_json:
        print_json([{"ledger_id": ledger_id, "is_closed": closed} for ledger_id, closed in ledgers.items()])
    elif ledgers:
        rows = [
            (str(ledger_id), "closed" if closed else "open: would be closed") for ledger_id, closed in ledgers.items()
        ]
        show.table(("ledger", "state"), rows)
    else:
        click.echo("no ledger names them")


# ------------------------------------------------------------------------------------------ tokens


@autorecovery.command()
@click.argument("name")
@click.option(
    "--role", type=click.Choice(["read", "write"]), required=True, help="Whether the holder may change anything."
)
@json_option
def token(name: str, role: str, as_json: bool) -> None:
    """Make a token for the HTTP management interface, for NAME, and the line for the file of managementTokensFile.

    The token is shown once and stored nowhere; the line has only its SHA-256.

    Example:  magnetar autorecovery token deployer --role write
    """
    problem = name_problem(name)
    if problem is not None:
        raise click.BadParameter(problem, param_hint="NAME")
    secret = secrets.token_urlsafe(32)
    while secret.startswith("-"):  # where a token is an argument, commands would take it for an option
        secret = secrets.token_urlsafe(32)
    line = line_of(name, Role(role), secret)
    done(f"token  {secret}\nline   {line}", as_json, name=name, role=role, token=secret, line=line)


# ----------------------------------------------------------------------------------------- reports


@autorecovery.group(cls=Guessing)
def reports() -> None:
    """Reports of bad ledgers and lost entries, which clients, brokers, bookies and nodes of auto-recovery post.

    Example:  magnetar autorecovery reports list
    """


@reports.command("list")
@click.option("--state", type=click.Choice(["open", "acknowledged", "mended"]), help="Only those; without it: all.")
@click.option("--ledger", "ledger_id", type=click.IntRange(min=0), help="Only those about this ledger.")
@with_cluster
@json_option
def list_reports(cluster: ChosenCluster, state: str | None, ledger_id: int | None, as_json: bool) -> None:
    """List reports. Exit code 2 if one of those listed is open.

    Example:  magnetar autorecovery reports list --state open
    """

    async def work(opened: OpenStore) -> list[Report]:
        return await DamageReports(opened.store, opened.root).all()

    matches = [
        report
        for report in cluster.on_store(work)
        if state in (None, str(report.stage)) and ledger_id in (None, report.ledger_id)
    ]
    if as_json:
        print_json([facts_of(report) for report in matches])
    elif matches:
        rows = [_report_row(report) for report in matches]
        show.table(("id", "state", "told by", "times", "last", "entries", "what"), rows)
    else:
        click.echo("there are no such reports" if state or ledger_id is not None else "nobody has reported damage")
    if any(str(report.stage) == "open" for report in matches):
        sys.exit(2)


def _report_row(report: Report) -> tuple[str, ...]:
    ranges = [str(first) if first == last else f"{first} to {last}" for first, last in report.ranges[:3]]
    more = ", …" if len(report.ranges) > 3 else ""
    said = ": ".join(filter(None, (report.by, report.note)))
    return (
        report.id,
        str(report.stage),
        f"{report.source} {report.name}",
        str(report.count),
        show.age(report.last_ms, now_ms()),
        ", ".join(ranges) + more,
        f"{report.text} ({said})" if said else report.text,
    )


def _move_report(cluster: ChosenCluster, report_id: str, to: str, note: str, as_json: bool) -> None:
    async def work(opened: OpenStore) -> Report:
        reports = DamageReports(opened.store, opened.root)
        return await reports.move(report_id, Stage(to), who(), note, opened.clock.wall_ms())

    report = cluster.on_store(work, changes=True)
    done(f"report {report.id} is {report.stage}", as_json, **facts_of(report))


_note_option = click.option("--note", default="", help="What was found or done; it is shown with the report.")


@reports.command()
@click.argument("report_id", metavar="REPORT")
@_note_option
@with_cluster
@json_option
def acknowledge(cluster: ChosenCluster, report_id: str, note: str, as_json: bool) -> None:
    """Say that somebody looks at REPORT.

    Example:  magnetar autorecovery reports acknowledge 7-data-loss-0f3a1b2c4d5e
    """
    _move_report(cluster, report_id, "acknowledged", note, as_json)


@reports.command()
@click.argument("report_id", metavar="REPORT")
@_note_option
@with_cluster
@json_option
def mend(cluster: ChosenCluster, report_id: str, note: str, as_json: bool) -> None:
    """Say that the damage of REPORT is mended, or given up. If it is met again, the report is open again.

    Example:  magnetar autorecovery reports mend 7-data-loss-0f3a1b2c4d5e
    """
    _move_report(cluster, report_id, "mended", note, as_json)
