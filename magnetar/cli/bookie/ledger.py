"""`magnetar bookie ledger`: shows, reads and deletes one ledger of the cluster."""

import base64
import json

import click

from magnetar.cli.bookie.asking import remote
from magnetar.cli.bookie.texts import printable, quorums
from magnetar.cli.common import output as show
from magnetar.cli.common.options import confirm, now_ms, print_json, say
from magnetar.inspect.bookie_admin import BookieAdmin

ENTRIES_PER_PAGE = 1_000
LEDGER_ID = click.IntRange(min=0)


@click.group()
def ledger() -> None:
    """Show, read or delete one ledger of the cluster."""


@ledger.command("show")
@click.argument("ledger_id", type=LEDGER_ID)
@remote
def show_ledger(admin: BookieAdmin, ledger_id: int, as_json: bool) -> None:
    """Show the metadata of LEDGER_ID.

    Example:  magnetar bookie ledger show 7
    """
    answer = admin.get("ledger/metadata", ledger_id=ledger_id)
    if as_json:
        print_json(answer)
        return
    (record,) = answer.values()
    rows = [
        ("ledger", str(record["ledgerId"])),
        ("state", record["state"].lower().replace("_", " ")),
        ("E/Qw/Qa", quorums(record)),
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
@click.option("--to", "last", type=LEDGER_ID, help="Last entry. Default: the last confirmed entry.")
@remote
def read_ledger(admin: BookieAdmin, ledger_id: int, first: int, last: int | None, as_json: bool) -> None:
    """Print the entries of LEDGER_ID. Bytes that are not ASCII are shown as a replacement character.

    Example:  magnetar bookie ledger read 7 --from 0 --to 9
    """
    number = 1
    while True:
        page = admin.get("ledger/read", ledger_id=ledger_id, start_entry_id=first, end_entry_id=last, page=number)
        entries = [(name, payload) for name, payload in page.items() if name.isdigit()]
        for name, payload in entries:
            line = {"entry": int(name), "payload": payload}
            click.echo(json.dumps(line) if as_json else f"{name}  {printable(payload)}")
        if len(entries) < ENTRIES_PER_PAGE:
            return
        number += 1


@ledger.command("delete")
@click.argument("ledger_id", type=LEDGER_ID)
@click.option("--yes", is_flag=True, help="Do not ask.")
@remote
def delete_ledger(admin: BookieAdmin, ledger_id: int, yes: bool, as_json: bool) -> None:
    """Delete LEDGER_ID from the cluster. Messages of a topic in it are lost.

    Example:  magnetar bookie ledger delete 7
    """
    confirm(f"Delete ledger {ledger_id} from the cluster, with all its entries?", yes)
    said = admin.delete("ledger/delete", ledger_id=ledger_id)
    say(said, as_json)
