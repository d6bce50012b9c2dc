"""`magnetar bookie ledgers`."""

from collections.abc import Iterator
from typing import Any

import click

from magnetar.cli.bookie.asking import remote
from magnetar.cli.bookie.texts import quorums
from magnetar.cli.common import output as show
from magnetar.cli.common.options import now_ms, print_json
from magnetar.inspect.bookie_admin import BookieAdmin

LEDGERS_PER_ANSWER = 10_000


@click.command()
@click.option("--here", is_flag=True, help="List only ledgers with copies on this bookie.")
@click.option("--metadata", is_flag=True, help="Show state, size, quorums and bookies of each ledger.")
@remote
def ledgers(admin: BookieAdmin, here: bool, metadata: bool, as_json: bool) -> None:
    """List the ledgers of the cluster.

    Example:  magnetar bookie ledgers --metadata
    """
    if here and metadata:
        raise click.UsageError("--here and --metadata do not go together; look at one with `ledger show`")
    if here:
        listing: Any = list(_local_ledgers(admin))
    elif metadata:
        listing = {}
        with show.bar("ledgers") as progress_bar:
            for page in _pages(admin, "ledger/list", print_metadata=True, decode_meta=True):
                listing |= page
                progress_bar.update(len(listing), text=f"{len(listing)} ledgers")
    else:
        listing = [int(ledger_id) for ledger_id in admin.get("ledger/list")]
    if as_json:
        print_json(listing)
    elif metadata:
        _show_ledgers(listing)
    else:
        for ledger_id in listing:
            click.echo(str(ledger_id))


def _local_ledgers(admin: BookieAdmin) -> Iterator[int]:
    first = 0
    while ledger_ids := admin.get("magnetar/ledgers", first=first, count=LEDGERS_PER_ANSWER):
        yield from ledger_ids
        first = ledger_ids[-1] + 1


def _pages(admin: BookieAdmin, path: str, **query: object) -> Iterator[dict[str, Any]]:
    number = 1
    while page := admin.get(path, page=number, **query):
        yield page
        number += 1


def _show_ledgers(records: dict[str, Any]) -> None:
    now = now_ms()
    rows = []
    for ledger_id, record in records.items():
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
                quorums(record),
                show.age(record["ctime"] if record["ctime"] > 0 else None, now) if record["ctime"] > 0 else "-",
                " ".join(member["id"] for member in list(record["allEnsembles"].values())[-1]),
            )
        )
    show.table(("ledger", "state", "entries", "size", "E/Qw/Qa", "made", "last ensemble"), rows)
