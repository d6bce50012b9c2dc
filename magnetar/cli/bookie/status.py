"""`magnetar bookie status`."""

import sys
from typing import Any

import click

from magnetar.cli.bookie.asking import remote
from magnetar.cli.bookie.texts import (
    doubt_text,
    logs_text,
    lost_logs_text,
    rebuild_text,
    scrub_text,
    show_disks,
)
from magnetar.cli.common import output as show
from magnetar.cli.common.options import now_ms, say
from magnetar.inspect.bookie_admin import BookieAdmin


@click.command()
@remote
def status(admin: BookieAdmin, as_json: bool) -> None:
    """Show the state of the bookie and of its components. Exit code 2 if it does not serve.

    Example:  magnetar bookie status
    """
    answer = admin.get("magnetar/status")
    say(answer, as_json, _show_status)
    if not answer["ready"]:
        sys.exit(2)


def _show_status(answer: dict[str, Any]) -> None:
    now = now_ms()
    info, gc, scrub, integrity = (answer[name] for name in ("info", "gc", "scrub", "integrity"))
    rows = [
        ("bookie", f"{answer['bookieId']} at {info['host']}:{info['port']}"),
        ("state", _state_text(answer)),
        ("running for", show.duration(info["uptimeS"])),
        ("ledgers", str(info["ledgers"])),
        ("connections", str(info["connections"])),
        ("entry logs", logs_text(gc)),
        ("garbage", _garbage_text(gc, now)),
        ("scrub", scrub_text(scrub, now)),
    ]
    rows += [("read-only", f"{reason}: {text}".rstrip(": ")) for reason, text in answer["state"]["reasons"].items()]
    if integrity["needed"]:
        rows.append(("copies", f"{integrity['ledgersLeft']} ledgers are still to be checked"))
    lost = answer["lostLogs"]
    if lost["logs"]:
        rows.append(("entry logs", lost_logs_text(lost)))
        rows += [("lost", f"{ledger['entries']} entries of ledger {ledger['ledgerId']} ({ledger['owner']})")
                 for ledger in lost["ledgers"]]  # fmt: skip
    if answer.get("openToOthers"):
        rows.append(("open to others", f"{', '.join(answer['openToOthers'])} (chmod 750)"))
    if gc["doubt"]["sinceMs"]:
        rows.append(("in doubt", doubt_text(gc["doubt"], now)))
    rebuild = answer["indexRebuild"]
    if rebuild["running"] or rebuild["failed"]:
        rows.append(("index", rebuild_text(rebuild, now)))
    if scrub["entriesLost"] or scrub["entriesUnrepaired"]:
        rows.append(("damage", f"{scrub['entriesLost']} entries lost, {scrub['entriesUnrepaired']} not repaired yet"))
    show.values(rows)
    click.echo()
    show_disks(info["disks"])


def _state_text(answer: dict[str, Any]) -> str:
    state = answer["state"]
    if state["failure"]:
        return f"failed: {state['failure']}"
    if state["shuttingDown"]:
        return "shutting down"
    if not answer["ready"]:
        return "starting"
    return "read-only" if state["readOnly"] else "writable"


def _garbage_text(gc: dict[str, Any], now: int) -> str:
    text = f"{gc['phase']}; last round {show.age(gc['lastFinishedMs'], now)}"
    if gc["refused"]:
        text += f", refused: {gc['refused']['text']}"
    if gc["failed"]:
        text += f", failed: {gc['failed']}"
    return text
