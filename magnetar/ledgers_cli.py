"""`magnetar ledgers` and `magnetar bookies`: from the metadata store and the bookies themselves, without a broker."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from magnetar import show
from magnetar.cli_options import F, now_ms, print_json

if TYPE_CHECKING:
    from magnetar.bookkeeper.metadata.ledgers import LedgerMetadata
    from magnetar.inspector import Copy, Inspector

T = TypeVar("T")

METADATA_URL = "zk:127.0.0.1:2181"

# Entries that `ledgers show` looks at, if nobody says how many; each is asked of every bookie that has it.
ENTRIES_SHOWN = 20
LEDGER_ID = click.IntRange(min=0)

# What a person wants to see of a payload.
_PREVIEW_BYTES = 48


def metadata_option(command: F) -> F:
    command = click.option(
        "--tls-directory", envvar="MAGNETAR_TLS_DIRECTORY",
        help="Folder with tls.crt, tls.key and ca.crt, where bookies demand TLS.",
    )(command)  # fmt: skip
    return click.option(
        "--metadata", "metadata_url", default=METADATA_URL, show_default=True, envvar="MAGNETAR_METADATA_URL",
        help="Metadata store: zk:HOST:PORT[,HOST:PORT…], or zk://HOST:PORT/ledgers as bookies have it.",
    )(command)  # fmt: skip


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts.")(command)


def _run(metadata_url: str, tls_directory: str | None, ask: "Callable[[Inspector], Awaitable[T]]") -> T:
    from magnetar.inspector import inspecting

    async def go() -> T:
        async with inspecting(metadata_url, tls_directory) as inspector:
            return await ask(inspector)

    return asyncio.run(go())


# --------------------------------------------------------------------------------------- bookies


@click.group()
def bookies() -> None:
    """Bookies of a cluster. See also `magnetar bookie`, which runs one or asks one over its HTTP admin."""


@bookies.command("list")
@metadata_option
@json_option
def list_bookies(metadata_url: str, tls_directory: str | None, as_json: bool) -> None:
    """Bookies that are there, and those that are away.

    Example:  magnetar bookies list
    """
    found = _run(metadata_url, tls_directory, lambda inspector: inspector.bookies())
    if as_json:
        print_json([one._asdict() for one in found])
        return
    show.table(("bookie", "state", "address", "HTTP admin"), [tuple(one) for one in found])


# --------------------------------------------------------------------------------------- ledgers


@click.group()
def ledgers() -> None:
    """Ledgers of a cluster: what stands in the metadata, and what the bookies have."""


@ledgers.command("list")
@metadata_option
@json_option
@click.option("--bookie", "bookie_id", help="Only those with copies on this bookie.")
def list_ledgers(metadata_url: str, tls_directory: str | None, as_json: bool, bookie_id: str | None) -> None:
    """All ledgers with state, size, quorums and bookies.

    Example:  magnetar ledgers list --bookie 127.0.0.1:3181
    """

    async def ask(inspector: "Inspector") -> "dict[int, LedgerMetadata]":
        return await inspector.metadata_of(await inspector.ledger_ids())

    found = _run(metadata_url, tls_directory, ask)
    if bookie_id is not None:
        found = {ledger_id: one for ledger_id, one in found.items() if bookie_id in one.bookies()}
    if as_json:
        print_json([_facts(ledger_id, one) for ledger_id, one in found.items()])
        return
    now = now_ms()
    rows = [
        (
            str(ledger_id),
            one.state.name.lower().replace("_", " "),
            str(one.last_entry_id + 1) if one.is_closed else "-",
            show.size(one.length) if one.is_closed else "-",
            f"{one.ensemble_size}/{one.write_quorum}/{one.ack_quorum}",
            show.age(one.ctime_ms, now) if one.ctime_ms else "-",
            " ".join(one.last_segment.ensemble),
        )
        for ledger_id, one in found.items()
    ]
    show.table(("ledger", "state", "entries", "size", "E/Qw/Qa", "made", "last ensemble"), rows)


def _facts(ledger_id: int, one: "LedgerMetadata") -> dict[str, Any]:
    return {
        "ledger_id": ledger_id,
        "state": one.state.name,
        "last_entry_id": one.last_entry_id if one.is_closed else None,
        "length": one.length if one.is_closed else None,
        "ensemble_size": one.ensemble_size,
        "write_quorum": one.write_quorum,
        "ack_quorum": one.ack_quorum,
        "digest": one.digest_type.name,
        "ctime_ms": one.ctime_ms or None,
        "segments": [{"first_entry_id": first, "ensemble": list(members)} for first, members in one.segments],
        "custom": {name: value.decode(errors="replace") for name, value in one.custom_metadata},
    }


@ledgers.command("show")
@click.argument("ledger_id", type=LEDGER_ID)
@click.option("--from", "first", type=LEDGER_ID, default=0, show_default=True, help="First entry.")
@click.option("--to", "last", type=LEDGER_ID, help=f"Last entry; else the {ENTRIES_SHOWN - 1} behind the first.")
@click.option("--all", "everything", is_flag=True, help="Every entry.")
@metadata_option
@json_option
def show_ledger(
    ledger_id: int,
    first: int,
    last: int | None,
    everything: bool,
    metadata_url: str,
    tls_directory: str | None,
    as_json: bool,
) -> None:
    """What is in LEDGER_ID, entry by entry, from every bookie that should have it. Exit code 2 if a copy is not good.

    A ledger that is written to is neither fenced nor closed by this.

    Example:  magnetar ledgers show 7 --from 100 --to 110
    """

    async def ask(inspector: "Inspector") -> "tuple[LedgerMetadata, int, list[Copy], list[list[Copy]]]":
        from magnetar.bookkeeper.metadata.store import NoNode
        from magnetar.runtime.types import MagnetarError

        try:
            metadata = (await inspector.ledgers.read(ledger_id)).metadata
        except NoNode:
            raise MagnetarError(
                f"there is no ledger {ledger_id}; `magnetar ledgers list` shows those there are"
            ) from None
        end, silent = await inspector.last_entry(ledger_id, metadata)
        stop = end if everything else min(end, first + ENTRIES_SHOWN - 1 if last is None else last)
        copies = []
        with show.progress(range(first, stop + 1), "entries") as entry_ids:
            for entry_id in entry_ids:
                copies.append(await inspector.copies(ledger_id, entry_id, metadata))
        return metadata, end, silent, copies

    metadata, end, silent, found = _run(metadata_url, tls_directory, ask)
    if as_json:
        print_json({**_facts(ledger_id, metadata), "last_entry_there": end,
                    "not_asked": [{"bookie": one.bookie_id, "detail": one.detail} for one in silent],
                    "entries": [_entry_facts(first + at, copies) for at, copies in enumerate(found)]})  # fmt: skip
    else:
        _show_ledger(ledger_id, metadata, end, silent, first, found)
    if silent or any(copy.verdict != "good" for copies in found for copy in copies):
        raise click.exceptions.Exit(2)


def _show_ledger(
    ledger_id: int, metadata: "LedgerMetadata", end: int, silent: "list[Copy]", first: int, found: "list[list[Copy]]"
) -> None:
    rows = [
        ("ledger", str(ledger_id)),
        ("state", metadata.state.name.lower().replace("_", " ")),
        ("E/Qw/Qa", f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}"),
        ("digest", metadata.digest_type.name),
        ("last entry", f"{end}" + ("" if metadata.is_closed else " (the last that a bookie has; it is not closed)")),
    ]
    rows += [("made", show.age(metadata.ctime_ms, now_ms()))] if metadata.ctime_ms else []
    rows += [(name, value.decode(errors="replace")) for name, value in metadata.custom_metadata]
    rows += [("not asked", f"{one.bookie_id}: {one.detail}; it may have more") for one in silent]
    show.values(rows)
    click.echo()
    show.table(
        ("from entry", "bookies"), [(str(entry_id), " ".join(members)) for entry_id, members in metadata.segments]
    )
    click.echo()
    cells = []
    for at, copies in enumerate(found):
        facts = _entry_facts(first + at, copies)
        cells.append(
            (
                str(facts["entry_id"]),
                "-" if facts["last_add_confirmed"] is None else str(facts["last_add_confirmed"]),
                "-" if facts["size"] is None else show.size(facts["size"]),
                "  ".join(f"{copy.bookie_id} {copy.verdict}" for copy in copies),
                facts["preview"],
            )
        )
    show.table(("entry", "LAC", "size", "copies", "begins with"), cells)
    if end > first + len(found) - 1:
        click.echo(f"… up to {end}: see --from, --to, --all")


def _entry_facts(entry_id: int, copies: "list[Copy]") -> dict[str, Any]:
    good = next((copy.stored for copy in copies if copy.stored is not None), None)
    return {
        "entry_id": entry_id,
        "last_add_confirmed": None if good is None else good.last_add_confirmed,
        "size": None if good is None else len(good.payload),
        "copies": [{"bookie": copy.bookie_id, "verdict": copy.verdict, "detail": copy.detail} for copy in copies],
        "preview": "" if good is None else _preview(bytes(good.payload[:_PREVIEW_BYTES])),
    }


def _preview(data: bytes) -> str:
    """Readable where it is text, dots elsewhere."""
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


@ledgers.command("read")
@click.argument("ledger_id", type=LEDGER_ID)
@click.argument("entry_id", type=LEDGER_ID)
@click.option("-o", "--output", type=click.File("wb"), default="-", help="File to write to; else standard output.")
@metadata_option
def read_entry(ledger_id: int, entry_id: int, output: IO[bytes], metadata_url: str, tls_directory: str | None) -> None:
    """Write the payload of one entry, from the first bookie with a good copy.

    Example:  magnetar ledgers read 7 0 -o entry.bin
    """

    async def ask(inspector: "Inspector") -> bytes:
        from magnetar.runtime.types import MagnetarError

        metadata = (await inspector.ledgers.read(ledger_id)).metadata
        copies = await inspector.copies(ledger_id, entry_id, metadata)
        for copy in copies:
            if copy.stored is not None:
                return bytes(copy.stored.payload)
        told = "; ".join(f"{copy.bookie_id}: {copy.verdict}" for copy in copies)
        raise MagnetarError(f"no bookie gave a good copy of ledger {ledger_id} entry {entry_id} ({told})")

    output.write(_run(metadata_url, tls_directory, ask))
