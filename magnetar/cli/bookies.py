"""`magnetar bookies`: the bookies of a cluster and their lives. They ask and change the metadata store, not a broker.

Exit codes: 0 done, 1 refused, wrongly asked or the metadata store is away, 2 the drain failed, 3 it is still under way.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import click

from autorecovery.lifecycle import retirement
from autorecovery.lifecycle.retirement import BookieLifecycle, DrainStatus, StillNeeded
from magnetar.cli.common import output as show
from magnetar.cli.common.chosen_cluster import ChosenCluster, with_cluster
from magnetar.cli.common.guesses import Guessing
from magnetar.cli.common.options import (
    confirm,
    done,
    json_option,
    now_ms,
    print_json,
    who,
    yes_option,
)
from magnetar.inspect.inspector import Inspector
from magnetar.processes.bookies.turning import turn_for_drain
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Lifecycle, State
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.runtime.types import MagnetarError

T = TypeVar("T")

REFUSED: Final = 1
FAILED: Final = 2
UNDER_WAY: Final = 3

# Ledgers that are named with one reason; `--json` has them all.
LEDGERS_NAMED: Final = 20

# How often `--wait` looks; the auditor's report is up to two seconds old. A short drain is looked at more often.
LOOK_S = 1.0
LOOK_FIRST_S = 0.1


class WronglyAsked(click.UsageError):
    """click's error, with the exit code of a refusal."""

    exit_code = REFUSED


class _Bookies(Guessing):
    """A group whose exit code after any error is that of a refusal: 2 says that a drain failed."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise WronglyAsked(error.format_message(), error.ctx) from error
        except MagnetarError as error:
            click.echo(f"magnetar: {error}", err=True)
            ctx.exit(REFUSED)


@click.group(cls=_Bookies)
def bookies() -> None:
    """Bookies of a cluster, and taking one out of it. `magnetar bookie` runs one or asks one over its HTTP admin.

    To retire a bookie: drain it, which copies everything to others while the cluster goes on; stop it; remove it.
    """


def _with_lifecycle(
    cluster: ChosenCluster, work: Callable[[BookieLifecycle], Awaitable[T]], *, changes: bool = False
) -> T:
    return cluster.ask(
        lambda inspector: work(BookieLifecycle(inspector.store, inspector.root, inspector.clock)), changes=changes
    )


bookie_argument: Final = click.argument("bookie_id", metavar="BOOKIE")
why_option: Final = click.option("--why", default="", help="A short explanation, which others can see.")
wait_option: Final = click.option("--wait", is_flag=True, help="Wait until the drain has ended.")
timeout_option: Final = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), help="With --wait: seconds; exit code 3 after them."
)


@bookies.command("list")
@with_cluster
@json_option
def list_bookies(cluster: ChosenCluster, as_json: bool) -> None:
    """List the bookies that are there, and those that are away.

    Example:  magnetar bookies list
    """
    known = cluster.ask(lambda inspector: inspector.bookies())
    if as_json:
        print_json([bookie._asdict() for bookie in known])
        return
    show.table(("bookie", "state", "address", "HTTP admin", "life"), [tuple(bookie) for bookie in known])


@bookies.command()
@bookie_argument
@why_option
@wait_option
@timeout_option
@with_cluster
@json_option
def drain(cluster: ChosenCluster, bookie_id: str, why: str, wait: bool, timeout_s: float | None, as_json: bool) -> None:
    """Copy everything that BOOKIE has to others; it takes no entries from now on, and still serves reads.

    The auditor of auto-recovery does it. A drain that failed is begun again by the same command.

    Example:  magnetar bookies drain 127.0.0.1:3183 --wait
    """
    life = _with_lifecycle(cluster, lambda lives: lives.drain(bookie_id, who(), why), changes=True)
    if wait:
        _wait(cluster, bookie_id, timeout_s, as_json)
        return
    done(
        f"{bookie_id} is {life.state}; `magnetar bookies status {bookie_id} --wait` follows it",
        as_json, bookie=bookie_id, state=life.state,
    )  # fmt: skip


@bookies.command()
@click.argument("bookie_id", metavar="[BOOKIE]", required=False)
@wait_option
@timeout_option
@with_cluster
@json_option
def status(cluster: ChosenCluster, bookie_id: str | None, wait: bool, timeout_s: float | None, as_json: bool) -> None:
    """Show how far the drain of BOOKIE is; without BOOKIE: every bookie that is not active.

    Exit code 3 while a drain is under way, 2 if one has failed.

    Example:  magnetar bookies status 127.0.0.1:3183
    """
    if wait:
        if bookie_id is None:
            raise click.UsageError("--wait needs a BOOKIE")
        _wait(cluster, bookie_id, timeout_s, as_json)
        return
    statuses = _with_lifecycle(cluster, lambda lives: lives.status(bookie_id))
    if as_json:
        print_json([_facts(bookie) for bookie in statuses])
    else:
        _show(statuses)
    code = max((_code_of(bookie.lifecycle.state) for bookie in statuses), default=0)
    if code:
        raise click.exceptions.Exit(code)


@bookies.command()
@bookie_argument
@why_option
@with_cluster
@json_option
def cancel(cluster: ChosenCluster, bookie_id: str, why: str, as_json: bool) -> None:
    """Make BOOKIE active again, during its drain or after it. Copies that were made stay.

    A bookie of Apache's that was turned read-only for the drain is made writable through its HTTP; if that fails, this
    says what is left to do.

    Example:  magnetar bookies cancel 127.0.0.1:3183
    """

    async def call_off(inspector: Inspector) -> tuple[Lifecycle, str]:
        directory = BookieDirectory(inspector.store, inspector.root, inspector.clock)
        lives = BookieLifecycle(inspector.store, inspector.root, inspector.clock)
        return await lives.cancel(bookie_id, who(), why, functools.partial(turn_for_drain, directory))

    life, todo = cluster.ask(call_off, changes=True)
    if todo:
        click.echo(f"magnetar: {todo}", err=True)
    facts = {"todo": todo} if todo else {}
    done(f"{bookie_id} is {life.state}", as_json, bookie=bookie_id, state=life.state, **facts)


@bookies.command()
@bookie_argument
@why_option
@with_cluster
@json_option
def finish(cluster: ChosenCluster, bookie_id: str, why: str, as_json: bool) -> None:
    """Mark BOOKIE as drained although its drain failed, after its bad ledgers were repaired or deleted.

    Refused while some ledger names it.

    Example:  magnetar bookies finish 127.0.0.1:3183
    """
    with show.bar("ledgers") as progress_bar:
        life = _or_refusal(cluster, lambda lives: lives.finish(bookie_id, who(), why, progress_bar.update), as_json)
    done(f"{bookie_id} is {life.state}", as_json, bookie=bookie_id, state=life.state)


@bookies.command()
@bookie_argument
@yes_option
@with_cluster
@json_option
def remove(cluster: ChosenCluster, bookie_id: str, yes: bool, as_json: bool) -> None:
    """Delete the cookie and the state of BOOKIE. Refused unless it is drained, stopped, and no ledger names it.

    One that was killed counts as stopped when its session has ended; this waits up to 45 seconds for that. A bookie
    that comes back under that name afterwards must have empty disks.

    Example:  magnetar bookies remove 127.0.0.1:3183 --yes
    """
    confirm(f"Remove bookie {bookie_id} from the cluster?", yes)

    def waits(text: str) -> None:
        click.echo(text, err=True)

    with show.bar("ledgers") as progress_bar:
        _or_refusal(
            cluster,
            lambda lives: lives.remove(
                bookie_id, who(), progress_bar.update, wait_s=retirement.SESSION_WAIT_S, waits=waits
            ),
            as_json,
        )
    done(f"{bookie_id} is removed", as_json, bookie=bookie_id, removed=True)


def _or_refusal(cluster: ChosenCluster, work: Callable[[BookieLifecycle], Awaitable[T]], as_json: bool) -> T:
    """The result of a change. With --json a refusal is JSON, too."""
    try:
        return _with_lifecycle(cluster, work, changes=True)
    except StillNeeded as error:
        if not as_json:
            raise
        ledgers = [{"ledger_id": ledger_id, "why": why} for ledger_id, why in sorted(error.ledgers.items())]
        print_json({"refused": str(error), "ledgers": ledgers})
        raise click.exceptions.Exit(REFUSED) from error


# ------------------------------------------------------------------------------------------- waiting


def _wait(cluster: ChosenCluster, bookie_id: str, timeout_s: float | None, as_json: bool) -> None:
    """Follow a drain to its end, then exit with the code for how it ended."""

    async def follow(lives: BookieLifecycle) -> DrainStatus:
        loop = asyncio.get_running_loop()
        end_s = None if timeout_s is None else loop.time() + timeout_s
        pause_s = min(LOOK_FIRST_S, LOOK_S)
        with show.bar(f"drain of {bookie_id}") as progress_bar:
            while True:
                (bookie,) = await lives.status(bookie_id)
                if _code_of(bookie.lifecycle.state) != UNDER_WAY or (end_s is not None and loop.time() >= end_s):
                    return bookie
                if bookie.progress is not None:
                    total, left = bookie.progress.get("ledgers", 0), bookie.progress.get("ledgers_left", 0)
                    progress_bar.update(total - left, total, f"drain of {bookie_id}: {_progress_text(bookie)}")
                await asyncio.sleep(pause_s)
                pause_s = min(1.2 * pause_s, LOOK_S)

    bookie = _with_lifecycle(cluster, follow)
    if as_json:
        print_json(_facts(bookie))
    else:
        _show([bookie])
    code = _code_of(bookie.lifecycle.state)
    if code:
        raise click.exceptions.Exit(code)


def _code_of(state: State) -> int:
    return {State.DRAINING: UNDER_WAY, State.DRAINING_FAILED: FAILED}.get(state, 0)


def _facts(bookie: DrainStatus) -> dict[str, Any]:
    life = bookie.lifecycle
    return {
        "bookie": bookie.bookie_id,
        "state": life.state,
        "by": life.by,
        "why": life.why,
        "since_ms": life.since_ms or None,
        "began_ms": life.began_ms or None,
        "reasons": [{"ledger_id": ledger_id, "why": why} for ledger_id, why in life.reasons],
        "reasons_total": life.reasons_total,
        "progress": None if bookie.progress is None else dict(bookie.progress),
    }


def _show(statuses: list[DrainStatus]) -> None:
    if not statuses:
        click.echo("every bookie is active")
        return
    now = now_ms()
    rows = []
    for bookie in statuses:
        life = bookie.lifecycle
        since = show.age(life.since_ms, now) if life.since_ms else "-"
        rows.append((bookie.bookie_id, str(life.state), since, life.by or "-", life.why or "-", _progress_text(bookie)))
    show.table(("bookie", "life", "since", "by", "why", "progress"), rows)
    for bookie in statuses:
        for why, ledgers in _by_reason(bookie.lifecycle.reasons).items():
            click.echo(f"  {'ledger' if len(ledgers) == 1 else 'ledgers'} {_ledger_names(ledgers)}: {why}")
        if bookie.lifecycle.reasons_total > len(bookie.lifecycle.reasons):
            click.echo(f"  and {bookie.lifecycle.reasons_total - len(bookie.lifecycle.reasons)} more ledgers")


def _by_reason(reasons: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    """Reason → its ledgers: many of them often have the same one."""
    groups: dict[str, list[int]] = {}
    for ledger_id, why in reasons:
        groups.setdefault(why, []).append(ledger_id)
    return groups


def _ledger_names(ledgers: Sequence[int]) -> str:
    first_ids = ", ".join(map(str, ledgers[:LEDGERS_NAMED]))
    return first_ids + (f" and {len(ledgers) - LEDGERS_NAMED} more" if len(ledgers) > LEDGERS_NAMED else "")


def _progress_text(bookie: DrainStatus) -> str:
    if _code_of(bookie.lifecycle.state) != UNDER_WAY:
        return "-"
    progress = bookie.progress
    if progress is None:
        return "no auditor tells of it yet; does auto-recovery run?"
    if progress.get("problem"):
        return str(progress["problem"])
    total, left = progress.get("ledgers", 0), progress.get("ledgers_left", 0)
    texts = [str(progress.get("phase", "")), f"{left} of {total} ledgers left"]
    if progress.get("bytes_left"):
        texts.append(f"{show.size(progress['bytes_left'])} left")
    if progress.get("eta_s") is not None:
        texts.append(f"{progress['ledgers_per_minute']:g} ledgers a minute, {show.duration(progress['eta_s'])} to go")
    for name in ("waiting", "hopeless"):
        if progress.get(name):
            texts.append(f"{progress[name]} {name}")
    return ", ".join(text for text in texts if text)
