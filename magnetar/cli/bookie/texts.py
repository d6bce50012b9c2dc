"""Texts that several commands show. No IO."""

import re
from typing import Any, Final

from magnetar.cli.common import output as show

SPACE = re.compile(r"Free: (\d+)\S*, Total: (\d+)")


def logs_text(gc: dict[str, Any]) -> str:
    text = f"{gc['logs']} closed, {show.size(gc['logBytes'])}"
    if gc["logBytes"]:
        text += f", of which {show.size(gc['liveBytes'])} live {show.share(gc['liveBytes'], gc['logBytes'])}"
    return text


# Logs that one line names.
_LOGS_NAMED: Final = 3


def lost_logs_text(lost: dict[str, Any]) -> str:
    """What a bookie reports about entry logs that are missing or bad."""
    some = list(lost["logs"].items())
    named = ", ".join(f"{path} {problem}" for path, problem in some[:_LOGS_NAMED])
    more = f" and {len(some) - _LOGS_NAMED} more" if len(some) > _LOGS_NAMED else ""
    return (
        f"{named}{more}: {lost['lostEntries']} entries lost, {lost['waitingEntries']} not found elsewhere yet, "
        f"{lost['restoredEntries']} fetched again"
    )


def doubt_text(doubt: dict[str, Any], now: int) -> str:
    """What a bookie reports about ledgers that are newer than the metadata."""
    ranges = ", ".join(doubt["ranges"])
    return (
        f"since {show.age(doubt['sinceMs'], now)} the metadata are older than {doubt['ledgers']} ledgers here"
        + (f" ({ranges})" if ranges else "")
        + ": they stay until they have a record, or `gc forget-doubt`"
    )


def scrub_text(scrub: dict[str, Any], now: int) -> str:
    if scrub["running"]:
        return f"running since {show.age(scrub['passStartedMs'], now)}, {scrub['entriesVerified']} entries are good"
    text = f"last pass {show.age(scrub['lastPassFinishedMs'], now)}"
    return f"{text}, failed: {scrub['failed']}" if scrub["failed"] else text


def rebuild_text(rebuild: dict[str, Any], now: int) -> str:
    if rebuild["running"]:
        return f"rebuild began {show.age(rebuild['startedMs'], now)}: {rebuild['phase']}"
    if rebuild["failed"]:
        age = show.age(rebuild["finishedMs"], now)
        return f"rebuild failed {age}, the next start repeats it: {rebuild['failed']}"
    return f"rebuilt {show.age(rebuild['finishedMs'], now)}"


def show_disks(disks: list[dict[str, Any]]) -> None:
    rows = []
    for disk in disks:
        total, free = disk["totalBytes"], disk["freeBytes"]
        rows.append((disk["directory"], disk["state"], show.share(total - free, total), show.size(free),
                     show.size(total)))  # fmt: skip
    show.table(("directory", "state", "used", "free", "total"), rows)


def space_cells(text: str) -> tuple[str, str, str]:
    match = SPACE.search(text)
    if match is None:
        return text.strip(":{}, ") or "unknown", "", ""
    free, total = int(match[1]), int(match[2])
    return show.share(total - free, total), show.size(free), show.size(total)


def quorums(record: dict[str, Any]) -> str:
    return f"{record['ensembleSize']}/{record['writeQuorumSize']}/{record['ackQuorumSize']}"


def printable(text: str) -> str:
    """The bytes of an entry as text without control characters, which a terminal would take for commands."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
