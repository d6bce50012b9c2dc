"""`magnetar backup` and `magnetar restore`: a standalone as a whole."""

from collections.abc import Callable
from pathlib import Path

import click

from magnetar.cli.common import output as show
from magnetar.cli.common.options import done, json_option

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--data", type=_FOLDER, default=Path("data"), show_default=True, help="Folder of the standalone.")
@click.option("--since", type=_FOLDER, help="Folder of an earlier backup: what it has already is linked, not copied.")
@json_option
def backup(target: Path, data: Path, since: Path | None, as_json: bool) -> None:
    """Copy a standalone, which may run, to TARGET: a new folder, or a file NAME.tar.

    Everything that was acknowledged before is in it. Whoever can read it can read all messages.

    Example:  magnetar backup --data ./data ./backup-1
    """
    from magnetar.processes.backup.copying import back_up

    with show.bar("bytes") as progress_bar:
        backup_made = back_up(data, target, since, _progress_callback(progress_bar))
    manifest = backup_made.manifest
    linked = f", {show.size(backup_made.linked_bytes)} of them linked to {since}" if since is not None else ""
    done(
        f"{data} is in {target}: {len(manifest.files)} files, {show.size(manifest.bytes)}{linked}",
        as_json,
        target=str(target),
        files=len(manifest.files),
        bytes=manifest.bytes,
        linked_bytes=backup_made.linked_bytes,
        bookies=manifest.bookies,
    )


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--data", type=_FOLDER, default=Path("data"), show_default=True, help="New folder for the standalone.")
@json_option
def restore(source: Path, data: Path, as_json: bool) -> None:
    """Make a data folder of the backup SOURCE, after every file was compared with its checksum.

    The folder must be empty or not there. Host and ports are those with which the standalone is started.

    Example:  magnetar restore ./backup-1 --data ./data-2
    """
    from magnetar.processes.backup.restoring import restore as restore_backup

    with show.bar("bytes") as progress_bar:
        manifest = restore_backup(source, data, _progress_callback(progress_bar))
    more = f" --bookies {manifest.bookies}" if manifest.bookies > 1 else ""
    done(
        f"{source} is restored to {data}; start it with: magnetar standalone --data {data}{more}",
        as_json,
        data=str(data),
        files=len(manifest.files),
        bytes=manifest.bytes,
        bookies=manifest.bookies,
    )


def _progress_callback(progress_bar: "show.Bar") -> Callable[[int, int], None]:
    return lambda done_bytes, all_bytes: progress_bar.update(done_bytes, all_bytes)
