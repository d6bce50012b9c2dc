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
    found = cluster.on_store(_overview)
    if as_json:
        print_json(_facts(found))
        return
    delay = "0 s" if found.lost_bookie_delay_s is None else f"{found.lost_bookie_delay_s} s"
    show.values(
        [
            (
                "auto-recovery",
                "on" if found.is_enabled else "off for the whole cluster (`magnetar autorecovery enable`)",
            ),
            ("auditor", found.auditor or "none: no node is running"),
            ("a bookie may be away", delay),
            ("ledgers that lack copies", str(found.marked_total)),
        ]
    )
    if found.nodes:
        click.echo()
        head = ("node", "role", "repaired", "copied", "under way", "waiting", "last")
        show.table(head, [_node_row(node.name, node.facts) for node in found.nodes])
    waiting = [one for one in found.marked if one.problem is not None]
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
    """List ledgers that lack copies, and why one cannot be repaired. Exit code 2 if one cannot be repaired.

    Example:  magnetar autorecovery list
    """
    found = cluster.on_store(_overview)
    if as_json:
        print_json([_marked_facts(one) for one in found.marked])
    elif found.marked:
        _show_marked(found.marked)
        if found.marked_total > len(found.marked):
            click.echo(f"… and {found.marked_total - len(found.marked)} more")
    else:
        click.echo("no ledger is known to lack copies")
    if any(one.problem is not None for one in found.marked):
        sys.exit(2)


def _show_marked(ledgers: list[MarkedLedger] | tuple[MarkedLedger, ...]) -> None:
    rows = []
    for one in ledgers:
        if one.problem is not None:
            state, why = one.problem.kind, one.problem.text
        else:
            state, why = ("being repaired" if one.is_locked else "waits its turn"), ""
        rows.append(
            (str(one.ledger_id), one.owner, ", ".join(one.replicas), show.age(one.marked_ms, now_ms()), state, why)
        )
    show.table(("ledger", "of", "missing on", "known for", "state", "reason"), rows)


def _marked_facts(one: MarkedLedger) -> dict[str, Any]:
    problem = None if one.problem is None else one.problem._asdict()
    return {"ledger_id": one.ledger_id, "owner": one.owner, "missing_on": list(one.replicas),
            "marked_ms": one.marked_ms, "is_locked": one.is_locked, "problem": problem}  # fmt: skip


def _facts(found: Overview) -> dict[str, Any]:
    return {
        "enabled": found.is_enabled,
        "auditor": found.auditor,
        "lost_bookie_recovery_delay_s": found.lost_bookie_delay_s,
        "under_replicated": found.marked_total,
        "nodes": {node.name: dict(node.facts) for node in found.nodes},
        "problems": [_marked_facts(one) for one in found.marked if one.problem is not None],
    }


# ---------------------------------------------------------------------------------------- steering


def _switch(enabled: bool) -> Callable[[OpenStore], Awaitable[None]]:
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
        found = await auditor(opened.store, opened.root)
        if found is not None:
            marks = MarkBoard(opened.store, opened.root)
            # The same value again is how auditors are asked, Apache's too.
            await marks.set_lost_bookie_delay(await marks.lost_bookie_delay_s() or 0)
        return found

    found = cluster.on_store(work, changes=True)
    if found is None:
        raise click.ClickException("no node is running, so nobody audits: start one with `magnetar autorecovery`")
    done(f"{found} was asked for an audit", as_json, auditor=found)


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

    found = cluster.on_store(work, changes=seconds is not None)
    done(f"a bookie may be away for {found} s", as_json, lost_bookie_recovery_delay_s=found)


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
            with show.bar("ledgers are copied") as drawn:
                found = await recovery.recover(
                    bookies, skip_open=skip_open, on_progress=lambda at, total: drawn.at(at, total)
                )
            if delete_cookie and not (found.failed or found.skipped):
                for bookie in bookies:
                    await recovery.delete_cookie(bookie)
            return found
        finally:
            await client.close()

    found = cluster.on_store(work, changes=not dry_run)
    if dry_run:
        _show_plan(found, as_json)
        return
    if as_json:
        print_json(asdict(found))
    else:
        click.echo(
            f"{found.repaired} of {found.ledgers} ledgers are elsewhere now; {found.copied_entries} entries "
            f"({show.size(found.copied_bytes)}) were copied"
        )
        if found.skipped:
            click.echo(f"left to their writers: {', '.join(map(str, found.skipped[:20]))}")
        for ledger_id, why in sorted({**found.failed, **found.unreadable}.items()):
            click.echo(f"ledger {ledger_id}: {why}", err=True)
    if found.failed or found.unreadable:
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
    made = secrets.token_urlsafe(32)
    while made.startswith("-"):  # where a token is an argument, commands would take it for an option
        made = secrets.token_urlsafe(32)
    line = line_of(name, Role(role), made)
    done(f"token  {made}\nline   {line}", as_json, name=name, role=role, token=made, line=line)


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

    found = [
        one for one in cluster.on_store(work) if state in (None, str(one.stage)) and ledger_id in (None, one.ledger_id)
    ]
    if as_json:
        print_json([facts_of(one) for one in found])
    elif found:
        show.table(("id", "state", "told by", "times", "last", "entries", "what"), [_report_row(one) for one in found])
    else:
        click.echo("there are no such reports" if state or ledger_id is not None else "nobody has reported damage")
    if any(str(one.stage) == "open" for one in found):
        sys.exit(2)


def _report_row(one: Report) -> tuple[str, ...]:
    ranges = [str(first) if first == last else f"{first} to {last}" for first, last in one.ranges[:3]]
    more = ", …" if len(one.ranges) > 3 else ""
    said = ": ".join(filter(None, (one.by, one.note)))
    return (
        one.id,
        str(one.stage),
        f"{one.source} {one.name}",
        str(one.count),
        show.age(one.last_ms, now_ms()),
        ", ".join(ranges) + more,
        f"{one.text} ({said})" if said else one.text,
    )


def _move_report(cluster: ChosenCluster, report_id: str, to: str, note: str, as_json: bool) -> None:
    async def work(opened: OpenStore) -> Report:
        reports = DamageReports(opened.store, opened.root)
        return await reports.move(report_id, Stage(to), who(), note, opened.clock.wall_ms())

    report = cluster.on_store(work, changes=True)
    if as_json:
        print_json(facts_of(report))
    else:
        click.echo(f"report {report.id} is {report.stage}")


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
