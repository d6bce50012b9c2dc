"""`magnetar bookie`: runs a bookie, or asks one that runs over its HTTP admin and shows the answer to people."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from magnetar.cli import output as show
from magnetar.cli.options import F, now_ms, print_json

if TYPE_CHECKING:
    from magnetar.inspect.bookie_admin import BookieAdmin

ADMIN_URL = "http://127.0.0.1:8000"

# Between two looks at something that takes long.
LOOK_S = 0.5

LEDGERS_PER_ANSWER = 10_000
ENTRIES_PER_PAGE = 1_000

_SPACE = re.compile(r"Free: (\d+)\S*, Total: (\d+)")

_CONFIG = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="File of name=value lines, with Apache's names."
)


def remote(command: F) -> F:
    """The options of a command that asks a bookie."""
    command = click.option("--json", "as_json", is_flag=True, help="What the bookie says, as JSON.")(command)
    return click.option(
        "--admin-url", default=ADMIN_URL, show_default=True, envvar="MAGNETAR_BOOKIE_ADMIN_URL",
        help="HTTP of the bookie (httpServerEnabled, httpServerPort).",
    )(command)  # fmt: skip


def wait_option(command: F) -> F:
    return click.option("--wait", is_flag=True, help="Return when it is done.")(command)


def _admin(url: str) -> "BookieAdmin":
    from magnetar.inspect.bookie_admin import BookieAdmin

    return BookieAdmin(url)


@click.group(invoke_without_command=True)
@_CONFIG
@click.pass_context
def bookie(context: click.Context, config: Path | None) -> None:
    """Run a bookie: stores ledgers, on the port of BookKeeper's protocol.

    With one of the commands below: ask a bookie that runs, over its HTTP admin.

    Example:  magnetar bookie --config bookie.conf
    """
    if context.invoked_subcommand is not None:
        if config is not None:
            raise click.UsageError("--config runs a bookie; the commands ask one that runs, see --admin-url")
        return
    from magnetar.processes.servers import run_bookie

    sys.exit(run_bookie(config))


# ---------------------------------------------------------------------------------- how a bookie is


@bookie.command()
@remote
def status(admin_url: str, as_json: bool) -> None:
    """How the bookie is, with everything that runs in it. Exit code 2 if it does not serve.

    Example:  magnetar bookie status
    """
    found = _admin(admin_url).get("magnetar/status")
    if as_json:
        print_json(found)
    else:
        _show_status(found)
    if not found["ready"]:
        sys.exit(2)


def _show_status(found: dict[str, Any]) -> None:
    now = now_ms()
    info, gc, scrub, integrity = (found[name] for name in ("info", "gc", "scrub", "integrity"))
    rows = [
        ("bookie", f"{found['bookieId']} at {info['host']}:{info['port']}"),
        ("state", _state_text(found)),
        ("running for", show.duration(info["uptimeS"])),
        ("ledgers", str(info["ledgers"])),
        ("connections", str(info["connections"])),
        ("entry logs", _logs_text(gc)),
        ("garbage", _garbage_text(gc, now)),
        ("scrub", _scrub_text(scrub, now)),
    ]
    rows += [("read-only", f"{reason}: {text}".rstrip(": ")) for reason, text in found["state"]["reasons"].items()]
    if integrity["needed"]:
        rows.append(("copies", f"{integrity['ledgersLeft']} ledgers are still to be checked"))
    rebuild = found["indexRebuild"]
    if rebuild["running"] or rebuild["failed"]:
        rows.append(("index", _rebuild_text(rebuild, now)))
    if scrub["entriesLost"] or scrub["entriesUnrepaired"]:
        rows.append(("damage", f"{scrub['entriesLost']} entries lost, {scrub['entriesUnrepaired']} not repaired yet"))
    show.values(rows)
    click.echo()
    _show_disks(info["disks"])


def _state_text(found: dict[str, Any]) -> str:
    state = found["state"]
    if state["failure"]:
        return f"failed: {state['failure']}"
    if state["shuttingDown"]:
        return "shutting down"
    if not found["ready"]:
        return "starting"
    return "read-only" if state["readOnly"] else "writable"


def _logs_text(gc: dict[str, Any]) -> str:
    text = f"{gc['logs']} closed, {show.size(gc['logBytes'])}"
    if gc["logBytes"]:
        text += f", of which {show.size(gc['liveBytes'])} live {show.share(gc['liveBytes'], gc['logBytes'])}"
    return text


def _garbage_text(gc: dict[str, Any], now: int) -> str:
    text = f"{gc['phase']}; last round {show.age(gc['lastFinishedMs'], now)}"
    if gc["refused"]:
        text += f", refused: {gc['refused']['text']}"
    if gc["failed"]:
        text += f", failed: {gc['failed']}"
    return text


def _scrub_text(scrub: dict[str, Any], now: int) -> str:
    if scrub["running"]:
        return f"running since {show.age(scrub['passStartedMs'], now)}, {scrub['entriesVerified']} entries are good"
    text = f"last pass {show.age(scrub['lastPassFinishedMs'], now)}"
    return f"{text}, failed: {scrub['failed']}" if scrub["failed"] else text


def _show_disks(disks: list[dict[str, Any]]) -> None:
    rows = []
    for disk in disks:
        total, free = disk["totalBytes"], disk["freeBytes"]
        rows.append((disk["directory"], disk["state"], show.share(total - free, total), show.size(free),
                     show.size(total)))  # fmt: skip
    show.table(("directory", "state", "used", "free", "total"), rows)


@bookie.command()
@remote
def info(admin_url: str, as_json: bool) -> None:
    """Free and total space of the bookie's ledger directories.

    Example:  magnetar bookie info
    """
    found = _admin(admin_url).get("bookie/info")
    if as_json:
        print_json(found)
        return
    total, free = found["totalSpace"], found["freeSpace"]
    show.values(
        [("free", show.size(free)), ("total", show.size(total)), ("used", show.share(total - free, total))]
    )  # fmt: skip


@bookie.command()
@remote
def sanity(admin_url: str, as_json: bool) -> None:
    """Let the bookie write and read a little everywhere. Exit code 2 if that does not work.

    Example:  magnetar bookie sanity
    """
    with show.bar("the bookie writes and reads"):
        found = _admin(admin_url).get("bookie/sanity")
    if as_json:
        print_json(found)
    else:
        click.echo(("passed" if found["passed"] else "failed; the bookie's log says why")
                   + (", read-only" if found["readOnly"] else ""))  # fmt: skip
    if not found["passed"]:
        sys.exit(2)


@bookie.command()
@click.option("--files", is_flag=True, help="Also list the files in them.")
@remote
def disks(files: bool, admin_url: str, as_json: bool) -> None:
    """Directories of the bookie: how full they are, what is in them.

    Example:  magnetar bookie disks --files
    """
    admin = _admin(admin_url)
    found: dict[str, Any] = {"disks": admin.get("magnetar/status")["info"]["disks"]}
    if files:
        found["files"] = admin.get("magnetar/disk_files")
    if as_json:
        print_json(found)
        return
    _show_disks(found["disks"])
    if files:
        click.echo()
        rows = [
            (kind, directory, str(len(names)), " ".join(names))
            for kind, directories in found["files"].items()
            for directory, names in directories.items()
        ]
        show.table(("kind", "directory", "files", "names"), rows)


@bookie.command()
@remote
def marks(admin_url: str, as_json: bool) -> None:
    """Up to where each journal is in the ledger storage (last log mark).

    Example:  magnetar bookie marks
    """
    found = _admin(admin_url).get("magnetar/status")["marks"]
    if as_json:
        print_json(found)
        return
    show.table(
        ("journal", "file", "journal id", "offset"),
        [(mark["directory"], mark["fileName"], str(mark["fileId"]), str(mark["offset"])) for mark in found],
    )


@bookie.command()
@remote
def config(admin_url: str, as_json: bool) -> None:
    """The settings that are in force.

    Example:  magnetar bookie config
    """
    found = _admin(admin_url).get("config/server_config")
    if as_json:
        print_json(found)
        return
    for name, value in sorted(found.items()):
        click.echo(f"{name}={value}")


@bookie.command()
@click.option(
    "--admin-url", default=ADMIN_URL, show_default=True, envvar="MAGNETAR_BOOKIE_ADMIN_URL", help="HTTP of the bookie."
)
def metrics(admin_url: str) -> None:
    """The bookie's numbers, as Prometheus reads them.

    Example:  magnetar bookie metrics
    """
    click.echo(_admin(admin_url).text("/metrics"), nl=False)


# ---------------------------------------------------------------------------------------- the cluster


@bookie.command("list")
@click.option("--space", is_flag=True, help="Ask each of them for its disks.")
@remote
def list_bookies(space: bool, admin_url: str, as_json: bool) -> None:
    """Bookies of the cluster that are there.

    Example:  magnetar bookie list --space
    """
    admin = _admin(admin_url)
    found = {
        mode: admin.get("bookie/list_bookies", type=kind, print_hostnames=True)
        for kind, mode in (("rw", "writable"), ("ro", "read-only"))
    }
    with show.bar("bookies are asked"):
        spaces = admin.get("bookie/list_bookie_info") if space else {}
    if as_json:
        print_json({**found, "space": spaces} if space else found)
        return
    rows = []
    for mode, bookies in found.items():
        for bookie_id, host in sorted(bookies.items()):
            row = (bookie_id, mode, host or "unknown")
            rows.append((*row, *_space_cells(spaces.get(bookie_id, ""))) if space else row)
    head = ("bookie", "mode", "host")
    show.table((*head, "used", "free", "total") if space else head, rows)


def _space_cells(text: str) -> tuple[str, str, str]:
    found = _SPACE.search(text)
    if found is None:
        return text.strip(":{}, ") or "unknown", "", ""
    free, total = int(found[1]), int(found[2])
    return show.share(total - free, total), show.size(free), show.size(total)


@bookie.command()
@remote
def cluster(admin_url: str, as_json: bool) -> None:
    """The cluster in numbers: bookies, who of them does not answer, auditor, copies.

    Example:  magnetar bookie cluster
    """
    admin = _admin(admin_url)
    found = admin.get("bookie/cluster_info")
    with show.bar("bookies are asked"):
        silent, away = _missing_bookies(admin)
    if as_json:
        print_json({**found, "silent": silent, "away": away})
        return
    show.values(
        [
            ("bookies", f"{found['totalBookiesCount']} known"),
            ("", f"{found['writableBookiesCount']} writable, {found['readonlyBookiesCount']} read-only, "
                 f"{found['unavailableBookiesCount']} away"),
            ("auditor", found["auditorId"] or "none"),
            ("auto-recovery", "allowed" if found["ledgerReplicationEnabled"] else "switched off"),
            ("copies", _copies_text(found["clusterUnderReplicated"], silent, away)),
        ]
    )  # fmt: skip


def _missing_bookies(admin: "BookieAdmin") -> tuple[dict[str, str], list[str]]:
    """(bookies that are registered and do not answer, with what is known of why; bookies that are known and away)"""
    registered = {name for kind in ("rw", "ro") for name in admin.get("bookie/list_bookies", type=kind)}
    spaces = _if_there(admin, "bookie/list_bookie_info") if registered else None
    silent = {}
    if spaces is not None:
        told = {name: spaces.get(name, "") for name in sorted(registered)}
        silent = {name: _space_cells(text)[0] for name, text in told.items() if not _SPACE.search(text)}
    return silent, sorted({*(_if_there(admin, "bookie/cookies") or ())} - registered)


def _if_there(admin: "BookieAdmin", path: str) -> Any:
    """The answer; None where there is no such path, as at other versions of the admin."""
    from magnetar.inspect.bookie_admin import BookieAdminError

    try:
        return admin.get(path)
    except BookieAdminError as error:
        if error.status != 404:
            raise
        return None


def _copies_text(are_marked: bool, silent: dict[str, str], away: list[str]) -> str:
    """What is known of copies that are missing: what auto-recovery has marked, and who cannot be asked for theirs."""
    told = ["some ledgers are marked as missing some"] if are_marked else []
    told += [f"{name} does not answer ({why}): its copies cannot be read" for name, why in silent.items()]
    told += [f"{name} is away: its copies cannot be read" for name in away]
    if not told:
        return "none is known to be missing"
    return "; ".join(told) + ("; `magnetar doctor` tells which ledgers" if silent or away else "")


@bookie.command()
@remote
def cookies(admin_url: str, as_json: bool) -> None:
    """Which directories belong to which bookie of the cluster.

    Example:  magnetar bookie cookies
    """
    found = _admin(admin_url).get("bookie/cookies")
    if as_json:
        print_json(found)
        return
    rows = [(bookie_id, *_cookie_cells(text)) for bookie_id, text in sorted(found.items())]
    show.table(("bookie", "journals", "ledgers", "cluster"), rows)


def _cookie_cells(text: str) -> tuple[str, str, str]:
    from bookie.disks.cookie import decode
    from magnetar_core.runtime.types import Corruption

    try:
        cookie = decode(text.encode(), "the cookie")
    except Corruption as error:
        return str(error), "", ""
    return ", ".join(cookie.journal_directories), ", ".join(cookie.ledger_directories), cookie.instance_id


# --------------------------------------------------------------------------------------------- mode


@bookie.command()
@click.argument("switch", type=click.Choice(["on", "off"]), required=False)
@click.option(
    "--draining", is_flag=True, help="The reason that its ledgers are being copied away; else that you say so."
)
@click.option("--detail", default="", help="A few words about why, which others will see.")
@remote
def readonly(switch: str | None, draining: bool, detail: str, admin_url: str, as_json: bool) -> None:
    """Take no more adds (on), or take them again (off). It survives restarts. Without SWITCH: say how it is.

    Each reason is taken back by itself; what still holds is shown with what ends it.

    Example:  magnetar bookie readonly on --detail maintenance
    """
    admin = _admin(admin_url)
    if switch is not None:
        body: dict[str, Any] = {"readOnly": switch == "on"}
        if draining:  # not given otherwise: Apache's bookie is asked the same way
            body["reason"] = "draining"
        if detail:
            body["detail"] = detail
        found = admin.put("bookie/state/readonly", body)
    else:
        found = admin.get("bookie/state/readonly")
    held = _reasons(admin) if found["readOnly"] else {}
    if as_json:
        print_json({**found, "reasons": held})
        return
    click.echo("read-only" if found["readOnly"] else "writable")
    for reason, text in held.items():
        click.echo(f"  {reason}{f' ({text})' if text else ''}: {_ENDS.get(reason, 'see the log of the bookie')}")


# What ends each reason for being read-only.
_ENDS: Final = {
    "disk": "ends by itself when there is room: `magnetar bookie gc run`, less retention, a larger disk",
    "operator": "ends with `magnetar bookie readonly off`",
    "draining": "ends with `magnetar bookie readonly off --draining`",
    "error": "ends by itself when the directory can be read again; see the log of the bookie",
    "forced": "ends when the bookie is started without forceReadOnlyBookie",
}


def _reasons(admin: "BookieAdmin") -> dict[str, str]:
    """Why the bookie is read-only; Apache's does not tell."""
    from magnetar.inspect.bookie_admin import BookieAdminError

    try:
        found: dict[str, str] = admin.get("magnetar/status")["state"]["reasons"]
    except BookieAdminError as error:
        if error.status != 404:
            raise
        return {}
    return found


# ---------------------------------------------------------------------------- garbage and compaction


@bookie.group(invoke_without_command=True)
@remote
@click.pass_context
def gc(context: click.Context, admin_url: str, as_json: bool) -> None:
    """Garbage collection: how it stands. With `run`: collect now.

    Example:  magnetar bookie gc
    """
    if context.invoked_subcommand is not None:
        return
    found = _admin(admin_url).get("magnetar/status")["gc"]
    if as_json:
        print_json(found)
    else:
        _show_gc(found)


def _show_gc(gc: dict[str, Any]) -> None:
    now = now_ms()
    rows = [
        ("phase", gc["phase"]),
        ("last round", f"{show.age(gc['lastFinishedMs'], now)}, took {show.duration(gc['lastRoundS'])}"),
        ("rounds", str(gc["rounds"])),
        ("ledgers here", f"{gc['localLedgers']}, of which {gc['quarantinedLedgers']} were found deleted once"),
        ("deleted", f"{gc['deletedLedgers']} ledgers, {gc['movedLedgers']} whose copies are elsewhere"),
        ("entry logs", _logs_text(gc)),
        ("won", f"{show.size(gc['reclaimedBytes'])}, {gc['removedLogs']} logs removed"),
        ("compacted", f"{gc['compactedLogs']} logs, {gc['copiedEntries']} entries copied "
                      f"({show.size(gc['copiedBytes'])})"),
        ("minor compaction", _compaction_text(gc, "minor", now)),
        ("major compaction", _compaction_text(gc, "major", now)),
        ("index compaction", f"{gc['locationCompactions']} done, last {show.age(gc['lastLocationMs'], now)}"),
    ]  # fmt: skip
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
@click.option("--minor/--no-minor", default=True, show_default=True, help="With a minor compaction.")
@click.option("--major/--no-major", default=True, show_default=True, help="With a major compaction.")
@click.option(
    "--accept-listing",
    is_flag=True,
    help="The metadata store's list of ledgers is right although it is empty or much shorter: delete what it lacks.",
)
@wait_option
@remote
def run_gc(minor: bool, major: bool, accept_listing: bool, wait: bool, admin_url: str, as_json: bool) -> None:
    """Collect garbage now.

    Example:  magnetar bookie gc run --wait
    """
    _collect(admin_url, as_json, wait, minor=minor, major=major, accept_listing=accept_listing)


def _collect(
    admin_url: str, as_json: bool, wait: bool, *, minor: bool, major: bool, accept_listing: bool = False
) -> None:
    admin = _admin(admin_url)
    before = admin.get("magnetar/status")["gc"]["rounds"] if wait else 0
    body = {"forceMinor": minor, "forceMajor": major}
    if accept_listing:
        body["acceptListing"] = True
    said = admin.put("bookie/gc", body)
    if not wait:
        print_json(said) if as_json else click.echo(said)
        return
    found = _wait_for_gc(admin, before)
    print_json(found) if as_json else _show_gc(found)
    if found["failed"] or found["refused"]:
        sys.exit(2)


def _wait_for_gc(admin: "BookieAdmin", rounds_before: int) -> dict[str, Any]:
    with show.bar("garbage collection") as drawn:
        while True:
            found: dict[str, Any] = admin.get("magnetar/status")["gc"]
            if found["phase"] == "idle" and found["rounds"] > rounds_before:
                return found
            text = f"{found['phase']}: {found['removedLogs']} logs removed, {found['compactedLogs']} compacted"
            drawn.at(0, text=text)
            _sleep()


@bookie.command()
@click.option("--minor", is_flag=True, help="Logs that are mostly dead (minorCompactionThreshold).")
@click.option("--major", is_flag=True, help="Logs that are half dead (majorCompactionThreshold).")
@click.option("--index", is_flag=True, help="The index of where entries are.")
@wait_option
@remote
def compact(minor: bool, major: bool, index: bool, wait: bool, admin_url: str, as_json: bool) -> None:
    """Compact entry logs, or the index, now. Without a kind: entry logs, minor and major.

    Example:  magnetar bookie compact --major --wait
    """
    if index and (minor or major):
        raise click.UsageError("--index goes alone: it is another compaction than that of entry logs")
    if not index:
        both = not (minor or major)
        _collect(admin_url, as_json, wait, minor=minor or both, major=major or both)
        return
    admin = _admin(admin_url)
    paths = list(admin.get("bookie/entry_location_compact"))
    body = {"entryLocationRocksDBCompact": True, "entryLocations": ",".join(paths)}
    said = admin.put("bookie/entry_location_compact", body)
    if wait:
        with show.bar("indexes", len(paths)) as drawn:
            while any(running := admin.get("bookie/entry_location_compact").values()):
                drawn.at(len(paths) - sum(running))
                _sleep()
        said = f"{len(paths)} indexes are compacted"
    print_json(said) if as_json else click.echo(said)


@bookie.command("suspend-compaction")
@click.option("--minor", is_flag=True, help="Only minor compactions.")
@click.option("--major", is_flag=True, help="Only major compactions.")
@remote
def suspend_compaction(minor: bool, major: bool, admin_url: str, as_json: bool) -> None:
    """Begin no compaction of entry logs until it is resumed, or the bookie restarts.

    Example:  magnetar bookie suspend-compaction --major
    """
    _switch_compaction("suspend", minor, major, admin_url, as_json)


@bookie.command("resume-compaction")
@click.option("--minor", is_flag=True, help="Only minor compactions.")
@click.option("--major", is_flag=True, help="Only major compactions.")
@remote
def resume_compaction(minor: bool, major: bool, admin_url: str, as_json: bool) -> None:
    """Compact entry logs again when it is time.

    Example:  magnetar bookie resume-compaction
    """
    _switch_compaction("resume", minor, major, admin_url, as_json)


def _switch_compaction(verb: str, minor: bool, major: bool, admin_url: str, as_json: bool) -> None:
    both = not (minor or major)
    admin = _admin(admin_url)
    admin.put(f"bookie/gc/{verb}_compaction", {f"{verb}Minor": minor or both, f"{verb}Major": major or both})
    found = admin.get("bookie/gc/suspend_compaction")
    if as_json:
        print_json(found)
        return
    show.values(
        [
            (kind, "suspended" if found[f"is{kind.capitalize()}GcSuspended"] == "true" else "runs when it is time")
            for kind in ("minor", "major")
        ]
    )


@bookie.command()
@remote
def flush(admin_url: str, as_json: bool) -> None:
    """Bring what is in the write cache into entry logs now.

    Example:  magnetar bookie flush
    """
    with show.bar("the write cache is flushed"):
        said = _admin(admin_url).put("magnetar/flush")
    print_json(said) if as_json else click.echo(said)


# -------------------------------------------------------------------------------------------- scrub


@bookie.group(invoke_without_command=True)
@remote
@click.pass_context
def scrub(context: click.Context, admin_url: str, as_json: bool) -> None:
    """The check of every entry on the disks: how it stands. With `run`: begin one now.

    Example:  magnetar bookie scrub
    """
    if context.invoked_subcommand is not None:
        return
    found = _admin(admin_url).get("magnetar/scrub")
    if as_json:
        print_json(found)
    else:
        _show_scrub(found)


def _show_scrub(scrub: dict[str, Any]) -> None:
    rows = [("state", _scrub_text(scrub, now_ms()))]
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
def run_scrub(wait: bool, admin_url: str, as_json: bool) -> None:
    """Read and check every entry now, at the usual pace. With --wait: exit code 2 if entries are lost.

    Example:  magnetar bookie scrub run --wait
    """
    admin = _admin(admin_url)
    admin.put("magnetar/scrub")
    found = admin.get("magnetar/scrub")
    if wait:
        with show.bar("ledgers") as drawn:
            while found["running"]:
                drawn.at(min(found["ledgersDone"], found["ledgers"]), found["ledgers"])
                _sleep()
                found = admin.get("magnetar/scrub")
    print_json(found) if as_json else _show_scrub(found)
    if wait and (found["entriesLost"] or found["entriesUnrepaired"] or found["failed"]):
        sys.exit(2)


# ------------------------------------------------------------------------------------------ ledgers


@bookie.command()
@click.option("--here", is_flag=True, help="Only those with copies on this bookie.")
@click.option("--metadata", is_flag=True, help="With state, size, quorums and bookies of each.")
@remote
def ledgers(here: bool, metadata: bool, admin_url: str, as_json: bool) -> None:
    """Ledgers of the cluster.

    Example:  magnetar bookie ledgers --metadata
    """
    admin = _admin(admin_url)
    if here and metadata:
        raise click.UsageError("--here and --metadata do not go together; look at one with `ledger show`")
    if here:
        found: Any = list(_local_ledgers(admin))
    elif metadata:
        found = {}
        with show.bar("ledgers") as drawn:
            for page in _pages(admin, "ledger/list", print_metadata=True, decode_meta=True):
                found |= page
                drawn.at(len(found), text=f"{len(found)} ledgers")
    else:
        found = [int(ledger_id) for ledger_id in admin.get("ledger/list")]
    if as_json:
        print_json(found)
    elif metadata:
        _show_ledgers(found)
    else:
        for ledger_id in found:
            click.echo(str(ledger_id))


def _local_ledgers(admin: "BookieAdmin") -> Iterator[int]:
    first = 0
    while found := admin.get("magnetar/ledgers", first=first, count=LEDGERS_PER_ANSWER):
        yield from found
        first = found[-1] + 1


def _pages(admin: "BookieAdmin", path: str, **query: object) -> Iterator[dict[str, Any]]:
    number = 1
    while page := admin.get(path, page=number, **query):
        yield page
        number += 1


def _show_ledgers(found: dict[str, Any]) -> None:
    now = now_ms()
    rows = []
    for ledger_id, record in found.items():
        if "problem" in record:
            rows.append((ledger_id, record["problem"], "", "", "", "", ""))
            continue
        is_closed = record["closed"]
        rows.append(
            (
                ledger_id,
                record["state"].lower().replace("_", " "),
                str(record["lastEntryId"] + 1) if is_closed else "-",
                show.size(record["length"]) if is_closed else "-",
                _quorums(record),
                show.age(record["ctime"] if record["ctime"] > 0 else None, now) if record["ctime"] > 0 else "-",
                " ".join(member["id"] for member in list(record["allEnsembles"].values())[-1]),
            )
        )
    show.table(("ledger", "state", "entries", "size", "E/Qw/Qa", "made", "last ensemble"), rows)


def _quorums(record: dict[str, Any]) -> str:
    return f"{record['ensembleSize']}/{record['writeQuorumSize']}/{record['ackQuorumSize']}"


@bookie.group()
def ledger() -> None:
    """One ledger of the cluster: look at it, read it, delete it."""


LEDGER_ID = click.IntRange(min=0)


@ledger.command("show")
@click.argument("ledger_id", type=LEDGER_ID)
@remote
def show_ledger(ledger_id: int, admin_url: str, as_json: bool) -> None:
    """What is recorded about LEDGER_ID.

    Example:  magnetar bookie ledger show 7
    """
    found = _admin(admin_url).get("ledger/metadata", ledger_id=ledger_id)
    if as_json:
        print_json(found)
        return
    import base64

    (record,) = found.values()
    rows = [
        ("ledger", str(record["ledgerId"])),
        ("state", record["state"].lower().replace("_", " ")),
        ("E/Qw/Qa", _quorums(record)),
        ("digest", str(record["digestType"])),
        ("format", str(record["metadataFormatVersion"])),
    ]
    if record["ctime"] > 0:
        rows.append(("made", show.age(record["ctime"], now_ms())))
    if record["closed"]:
        rows += [("entries", str(record["lastEntryId"] + 1)), ("size", show.size(record["length"]))]
    for name, value in record["customMetadata"].items():
        rows.append((name, base64.b64decode(value).decode(errors="replace")))
    show.values(rows)
    click.echo()
    segments = [(first, " ".join(member["id"] for member in members))
                for first, members in record["allEnsembles"].items()]  # fmt: skip
    show.table(("from entry", "bookies"), segments)


@ledger.command("read")
@click.argument("ledger_id", type=LEDGER_ID)
@click.option("--from", "first", type=LEDGER_ID, default=0, show_default=True, help="First entry.")
@click.option("--to", "last", type=LEDGER_ID, help="Last entry; else the last confirmed one.")
@remote
def read_ledger(ledger_id: int, first: int, last: int | None, admin_url: str, as_json: bool) -> None:
    """Print the entries of LEDGER_ID; what is no ASCII is shown as a replacement character.

    Example:  magnetar bookie ledger read 7 --from 0 --to 9
    """
    import json

    admin = _admin(admin_url)
    number = 1
    while True:
        page = admin.get("ledger/read", ledger_id=ledger_id, start_entry_id=first, end_entry_id=last, page=number)
        entries = [(name, payload) for name, payload in page.items() if name.isdigit()]
        for name, payload in entries:
            line = {"entry": int(name), "payload": payload}
            click.echo(json.dumps(line) if as_json else f"{name}  {_printable(payload)}")
        if len(entries) < ENTRIES_PER_PAGE:
            return
        number += 1


def _printable(text: str) -> str:
    """Entries are anybody's bytes: a terminal shall not take them for commands."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


@ledger.command("delete")
@click.argument("ledger_id", type=LEDGER_ID)
@click.option("--yes", is_flag=True, help="Do not ask.")
@remote
def delete_ledger(ledger_id: int, yes: bool, admin_url: str, as_json: bool) -> None:
    """Delete LEDGER_ID from the cluster. Whatever a topic kept in it is lost.

    Example:  magnetar bookie ledger delete 7
    """
    if not yes:
        click.confirm(f"Delete ledger {ledger_id} from the cluster, with all its entries?", abort=True)
    said = _admin(admin_url).delete("ledger/delete", ledger_id=ledger_id)
    print_json(said) if as_json else click.echo(said)


# ---------------------------------------------------------------------------------------- the index


@bookie.command("rebuild-index")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False),
    help="Settings of a stopped bookie; without it a bookie that runs is asked.",
)  # fmt: skip
@click.option(
    "--ledgers-too", is_flag=True, help="With --config: the database of ledgers is damaged too; a check follows."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@wait_option
@remote
def rebuild_index(config: Path | None, ledgers_too: bool, yes: bool, wait: bool, admin_url: str, as_json: bool) -> None:
    """Make the index anew from the entry logs: where it lacks entries, or leads elsewhere.

    A bookie that runs compares its whole index with its logs and goes on serving; --wait shows how far it is, and ends
    with exit code 2 if entries may be missing. With --config it is done here, for a bookie that is stopped. All ledgers
    that are there are fenced by it: their writers go on in new ones.

    Example:  magnetar bookie rebuild-index --wait
    """
    if config is None:
        if ledgers_too:
            raise click.UsageError("--ledgers-too needs --config: a bookie that runs has its ledgers in memory")
        _rebuild_online(admin_url, as_json, yes, wait)
        return
    if as_json:
        raise click.UsageError("--json shows what a bookie says that runs; with --config none is asked")
    _rebuild_offline(config, ledgers_too, yes)


def _rebuild_online(admin_url: str, as_json: bool, yes: bool, wait: bool) -> None:
    admin = _admin(admin_url)
    found = admin.get("magnetar/rebuild_index")
    if not found["running"]:
        if not yes:
            question = f"Compare the index of the bookie at {admin_url} with its logs, and fence all its ledgers?"
            click.confirm(question, abort=True, err=as_json)
        found = admin.put("magnetar/rebuild_index")
    if wait:
        found = _wait_for_rebuild(admin, found)
    print_json(found) if as_json else _show_rebuild(found)
    if wait and (found["failed"] or found["problemCount"]):
        sys.exit(2)


def _wait_for_rebuild(admin: "BookieAdmin", found: dict[str, Any]) -> dict[str, Any]:
    with show.bar("index") as drawn:
        while found["running"]:
            match found["phase"]:
                case "logs":
                    drawn.at(found["logsDone"], found["logs"], "entry logs")
                case "waiting":
                    drawn.at(0, text="waiting for garbage collection")
                case "idle" | "marking" | "fencing":
                    drawn.at(0, text="ledgers are fenced")
                case _:
                    drawn.at(found["ledgersDone"], found["ledgers"], "ledgers")
            _sleep()
            found = admin.get("magnetar/rebuild_index")
    return found


def _rebuild_text(found: dict[str, Any], now: int) -> str:
    if found["running"]:
        return f"rebuild began {show.age(found['startedMs'], now)}: {found['phase']}"
    if found["failed"]:
        age = show.age(found["finishedMs"], now)
        return f"rebuild failed {age}, the next start repeats it: {found['failed']}"
    return f"rebuilt {show.age(found['finishedMs'], now)}"


def _show_rebuild(found: dict[str, Any]) -> None:
    show.values(
        [
            ("state", _rebuild_text(found, now_ms())),
            ("entry logs", f"{found['logsDone']} of {found['logs']}"),
            ("looked at", f"{found['entriesLookedAt']} entries"),
            ("put right", f"{found['entriesPutRight']} entries"),
            ("damaged", f"{found['entriesDamaged']} records that the index lacked"),
            ("lost", f"{found['locationsLost']} entries that the index names and no log has"),
        ]
    )
    for problem in found["problems"]:
        click.echo(f"  {_printable(problem)}")
    if found["problemCount"] > len(found["problems"]):
        click.echo(f"  and {found['problemCount'] - len(found['problems'])} more; the bookie's log has them all")


def _rebuild_offline(config: Path, ledgers_too: bool, yes: bool) -> None:
    from bookie.config import IGNORED_SETTINGS, BookieConfig
    from magnetar.processes.bookie_rebuild import OfflineRebuild
    from magnetar_core.runtime.daemon import new_clock, read_settings
    from magnetar_core.runtime.files import OsFiles

    settings = read_settings(BookieConfig, config, ignored=IGNORED_SETTINGS)
    rebuild = OfflineRebuild(settings, OsFiles(), new_clock())
    try:
        for directory in rebuild.directories:
            if not yes:
                click.confirm(f"Rebuild the index in {directory}?", abort=True)
            count = rebuild.log_count(directory)
            with show.bar("entry logs", count) as drawn:
                done = rebuild.rebuild(directory, with_ledgers=ledgers_too, on_log=drawn.step)
            click.echo(f"{directory}: {done.entries} entries of {done.ledgers} ledgers")
            for problem in done.problems:
                click.echo(f"  {problem}", err=True)
    finally:
        rebuild.close()


# ------------------------------------------------------------------------------------------- waiting


def _sleep() -> None:
    import time

    time.sleep(LOOK_S)
