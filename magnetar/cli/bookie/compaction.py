"""`magnetar bookie compact`, `suspend-compaction`, `resume-compaction`."""

import click

from magnetar.cli import output as show
from magnetar.cli.bookie.asking import admin_of, remote, wait_a_little, wait_option
from magnetar.cli.bookie.gc import collect
from magnetar.cli.options import print_json


@click.command()
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
        collect(admin_url, as_json, wait, minor=minor or both, major=major or both)
        return
    admin = admin_of(admin_url)
    paths = list(admin.get("bookie/entry_location_compact"))
    body = {"entryLocationRocksDBCompact": True, "entryLocations": ",".join(paths)}
    said = admin.put("bookie/entry_location_compact", body)
    if wait:
        with show.bar("indexes", len(paths)) as drawn:
            while any(running := admin.get("bookie/entry_location_compact").values()):
                drawn.at(len(paths) - sum(running))
                wait_a_little()
        said = f"{len(paths)} indexes are compacted"
    print_json(said) if as_json else click.echo(said)


@click.command("suspend-compaction")
@click.option("--minor", is_flag=True, help="Only minor compactions.")
@click.option("--major", is_flag=True, help="Only major compactions.")
@remote
def suspend_compaction(minor: bool, major: bool, admin_url: str, as_json: bool) -> None:
    """Begin no compaction of entry logs until it is resumed, or the bookie restarts.

    Example:  magnetar bookie suspend-compaction --major
    """
    _switch_compaction("suspend", minor, major, admin_url, as_json)


@click.command("resume-compaction")
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
    admin = admin_of(admin_url)
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
