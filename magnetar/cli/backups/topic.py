"""`magnetar topics export` and `import`: a topic as a whole, into a file and from it."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import click

from magnetar import __version__
from magnetar.cli.common import output as show
from magnetar.cli.common.options import json_option, now_ms, print_json, service_option, topic_argument, with_admin
from magnetar.inspect.access import CURRENT
from magnetar.inspect.broker_admin import AdminClient
from magnetar_core.runtime.types import Buffer

_STANDARD: Final = "-"


def _report(text: str, as_json: bool, *, to_error: bool = False, **facts: object) -> None:
    if as_json and not to_error:
        print_json(facts)
    else:
        click.echo(text, err=to_error)


@contextlib.contextmanager
def _stream(target: Path) -> Iterator[Callable[[Buffer], object]]:
    """What writes to *target*, or to standard output. Raises BackupRefused, MagnetarError."""
    from magnetar.processes.backup.dumping import new_file

    if str(target) == _STANDARD:
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
    else:
        with new_file(target) as file:
            yield file.write


@contextlib.contextmanager
def _opened_copy(source: Path) -> Iterator[IO[bytes]]:
    """Raises BackupRefused."""
    from magnetar.processes.backup.manifest import BackupRefused

    if str(source) == _STANDARD:
        yield sys.stdin.buffer
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise BackupRefused(f"{source} cannot be read: {error.strerror}") from None
    with file:
        yield file


@click.command("export")
@topic_argument
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@service_option
@json_option
@with_admin
def export_topic(admin: AdminClient, topic: str, target: Path, service_url: str, as_json: bool) -> None:
    """Write TOPIC whole to FILE (- is standard output): messages as they are stored, schemas, partitions, properties.

    It has what is there when a partition's turn comes. Not in it: subscriptions and their positions, and policies.
    Refused: messages of transactions, and ledgers in tiered storage.

    Example:  magnetar topics export orders orders.topic
    """
    from magnetar.processes.backup.topic_copying import client_at, export, source_of

    client = client_at(service_url, CURRENT.get(), now_ms)
    source = source_of(admin, topic)
    with show.bar(f"from {topic}", source.entries) as progress_bar, _stream(target) as write:
        counted = asyncio.run(export(client, admin, source, __version__, write, now_ms(), progress_bar.update))
    left_out = f"; its subscriptions are not: {', '.join(source.subscriptions)}" if source.subscriptions else ""
    _report(
        f"{counted.entries} entries ({show.size(counted.bytes)}) of {source.topic} are in {target}{left_out}",
        as_json, to_error=str(target) == _STANDARD, topic=source.topic.full, file=str(target),
        entries=counted.entries, bytes=counted.bytes, left_out_subscriptions=list(source.subscriptions),
    )  # fmt: skip


@click.command("import")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@topic_argument
@click.option("--append", is_flag=True, help="TOPIC may have messages; those of FILE come behind them.")
@service_option
@json_option
@with_admin
def import_topic(admin: AdminClient, source: Path, topic: str, append: bool, service_url: str, as_json: bool) -> None:
    """Put what `magnetar topics export` wrote to FILE (- is standard input) into TOPIC, which is made if need be.

    A file is looked through before; what comes by a pipe cannot be. When it breaks off, delete TOPIC and try again: a
    topic that has messages is refused without --append.

    Example:  magnetar topics import orders.topic orders-copy
    """
    from magnetar.processes.backup.topic_copying import client_at, make_ready, put_in
    from magnetar.processes.backup.topic_format import TopicReader

    client = client_at(service_url, CURRENT.get(), now_ms)
    with _opened_copy(source) as file:
        name = "standard input" if str(source) == _STANDARD else str(source)
        total: float | None = None
        if file.seekable():
            total = os.fstat(file.fileno()).st_size
            start = file.tell()
            for _ in TopicReader(file.read, name).entries():
                pass
            file.seek(start)
        reader = TopicReader(file.read, name)
        names = make_ready(admin, topic, reader.head, append=append)
        with show.bar(f"into {topic}", total) as progress_bar:
            count = asyncio.run(put_in(client, names, reader, progress_bar.update))
    _report(
        f"{count} entries of {reader.head.topic} are in {topic}; it has the subscriptions that you make", as_json,
        topic=topic, source=reader.head.topic, entries=count, schemas=len(reader.head.schemas),
    )  # fmt: skip
