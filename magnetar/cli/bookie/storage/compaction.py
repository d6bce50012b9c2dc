"""`magnetar bookie flush`, `compact`, `suspend-compaction` and `resume-compaction`."""

import click

from magnetar.cli.bookie.asking import Pauses, remote, wait_option
from magnetar.cli.bookie.storage.gc import collect
from magnetar.cli.common import output as show
from magnetar.cli.common.options import print_json, say
from magnetar.inspect.bookie_admin import BookieAdmin


@click.command()
@remote
def flush(admin: BookieAdmin, as_json: bool) -> None:
    """Flush the write cache to entry logs now.

    Example:  magnetar bookie flush
    """
    with show.bar("the write cache is flushed"):
        said = admin.put("magnetar/flush")
    say(said, as_json)


@click.command()
@click.option("--minor", is_flag=True, help="Compact logs that are mostly garbage (minorCompactionThreshold).")
@click.option("--major", is_flag=True, help="Compact logs of which half is garbage (majorCompactionThreshold).")
@click.option("--index", is_flag=True, help="Compact the index of entry locations.")
@wait_option
@remote
def compact(admin: BookieAdmin, minor: bool, major: bool, index: bool, wait: bool, as_json: bool) -> None:
    """Compact entry logs or the index now. Without an option: entry logs, minor and major.

    Example:  magnetar bookie compact --major --wait
    """
    if index and (minor or major):
        raise click.UsageError("--index cannot be used with --minor or --major: they compact entry logs")
    if not index:
        both = not (minor or major)
        collect(admin, as_json, wait, minor=minor or both, major=major or both)
        return
    paths = list(admin.get("bookie/entry_location_compact"))
    body = {"entryLocationRocksDBCompact": True, "entryLocations": ",".join(paths)}
    said = admin.put("bookie/entry_location_compact", body)
    if wait:
        pauses = Pauses()
        with show.bar("indexes", len(paths)) as progress_bar:
            while any(running := admin.get("bookie/entry_location_compact").values()):
                progress_bar.update(len(paths) - sum(running))
                pauses.wait()
        said = f"{len(paths)} indexes are compacted"
    say(said, as_json)


@click.command("suspend-compaction")
@click.option("--minor", is_flag=True, help="Only minor compactions.")
@click.option("--major", is_flag=True, help="Only major compactions.")
@remote
def suspend_compaction(admin: BookieAdmin, minor: bool, major: bool, as_json: bool) -> None:
    """Suspend compaction of entry logs until it is resumed or the bookie restarts.

    Example:  magnetar bookie suspend-compaction --major
    """
    _switch_compaction(admin, "suspend", minor, major, as_json)


@click.command("resume-compaction")
@click.option("--minor", is_flag=True, help="Only minor compactions.")
@click.option("--major", is_flag=True, help="Only major compactions.")
@remote
def resume_compaction(admin: BookieAdmin, minor: bool, major: bool, as_json: bool) -> None:
    """Resume compaction of entry logs.

    Example:  magnetar bookie resume-compaction
    """
    _switch_compaction(admin, "resume", minor, major, as_json)


def _switch_compaction(admin: BookieAdmin, verb: str, minor: bool, major: bool, as_json: bool) -> None:
    both = not (minor or major)
    admin.put(f"bookie/gc/{verb}_compaction", {f"{verb}Minor": minor or both, f"{verb}Major": major or both})
    answer = admin.get("bookie/gc/suspend_compaction")
    if as_json:
        print_json(answer)
        return
    show.values(
        [
            (kind, "suspended" if answer[f"is{kind.capitalize()}GcSuspended"] == "true" else "runs when it is time")
            for kind in ("minor", "major")
        ]
    )
