"""`magnetar bookie cluster`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import click

from magnetar.cli.bookie.asking import if_there, remote
from magnetar.cli.bookie.texts import SPACE, space_cells
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json
from magnetar.inspect.bookie_admin import BookieAdmin

# What `--json` repeats of the management interface's overview; its bookies and its history are left out.
_OF_OVERVIEW: Final = ("is_enabled", "lost_bookie_delay_s", "auditor", "nodes", "under_replicated")

# Reasons that are named one by one; the others are only counted.
_REASONS_NAMED: Final = 5


@click.command()
@remote
def cluster(admin: BookieAdmin, as_json: bool) -> None:
    """Show the cluster: its bookies, which of them do not answer, the auditor, missing copies, drains.

    Example:  magnetar bookie cluster
    """
    answer = admin.get("bookie/cluster_info")
    with show.bar("bookies are asked"):
        silent, away = _missing_bookies(admin)
    overview = admin.overview()
    if as_json:
        knows = None if overview is None else {name: overview[name] for name in _OF_OVERVIEW}
        print_json({**answer, "silent": silent, "away": away, "auto_recovery": knows})
        return
    known = () if overview is None else repair_rows(overview)
    show.values(
        [
            ("bookies", f"{answer['totalBookiesCount']} known"),
            ("", f"{answer['writableBookiesCount']} writable, {answer['readonlyBookiesCount']} read-only, "
                 f"{answer['unavailableBookiesCount']} away"),
            ("auditor", answer["auditorId"] or "none"),
            ("auto-recovery", "allowed" if answer["ledgerReplicationEnabled"] else "switched off"),
            ("copies", _copies_text(answer["clusterUnderReplicated"] and overview is None, silent, away, known)),
            *known,
        ]
    )  # fmt: skip


def _missing_bookies(admin: BookieAdmin) -> tuple[dict[str, str], list[str]]:
    """(bookies that are registered and do not answer → the reason, if it is known; bookies that are known and away)"""
    registered = {name for kind in ("rw", "ro") for name in admin.get("bookie/list_bookies", type=kind)}
    spaces = if_there(admin, "bookie/list_bookie_info") if registered else None
    silent = {}
    if spaces is not None:
        answers = {name: spaces.get(name, "") for name in sorted(registered)}
        silent = {name: space_cells(text)[0] for name, text in answers.items() if not SPACE.search(text)}
    return silent, sorted({*(if_there(admin, "bookie/cookies") or ())} - registered)


def repair_rows(overview: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of what auto-recovery knows: ledgers that lack copies, why they wait, bookies that leave."""
    rows = []
    marked = overview["under_replicated"]
    if marked["total"]:
        nodes = [node["name"] for node in overview["nodes"]]
        by = f"repaired by {', '.join(nodes)}" if nodes else "no node of ours repairs them"
        rows.append(("to repair", f"{marked['total']} ledgers lack copies; {by}"))
        reasons = Counter(ledger["problem"]["text"] for ledger in marked["ledgers"] if ledger["problem"] is not None)
        rows += [("", f"{count} wait: {text}") for text, count in reasons.most_common(_REASONS_NAMED)]
        if (others := len(reasons) - _REASONS_NAMED) > 0:
            rows.append(("", f"{others} other reasons: magnetar autorecovery list"))
    for bookie in overview["bookies"]:
        state = bookie["state"] or "in a state that cannot be read"
        if state != "active":
            rows.append(("bookie", f"{bookie['id']} is {state}{_drain_text(bookie)}"))
    return rows


def _drain_text(bookie: dict[str, Any]) -> str:
    drain = bookie["drain"]
    if bookie["state"] == "draining-failed":
        return f": {bookie['failed_ledgers_total']} ledgers cannot be copied (magnetar bookies status {bookie['id']})"
    if bookie["state"] != "draining" or drain is None:
        return ""
    if drain["problem"]:
        return f": {drain['problem']}"
    eta_s = drain["eta_s"]
    when = "" if eta_s is None else f", about {show.duration(eta_s)}"
    return f": {drain['ledgers_left']} of {drain['ledgers']} ledgers are left{when}"


def _copies_text(
    are_marked: bool, silent: dict[str, str], away: list[str], known: Sequence[tuple[str, str]] = ()
) -> str:
    """What is known of missing copies: ledgers that auto-recovery has marked, and bookies that cannot be asked."""
    problems = ["some ledgers are marked as missing some (`magnetar autorecovery list`)"] if are_marked else []
    problems += [f"{name} does not answer ({why}): its copies cannot be read" for name, why in silent.items()]
    problems += [f"{name} is away: its copies cannot be read" for name in away]
    if not problems:
        return "see below" if any(name == "to repair" for name, _ in known) else "none is known to be missing"
    return "; ".join(problems) + ("; `magnetar doctor` tells which ledgers" if silent or away else "")
