"""`magnetar ledgers`: they ask the metadata store and the bookies themselves, not a broker."""

from typing import IO, Any

import click

from magnetar.cli.common import output as show
from magnetar.cli.common.chosen_cluster import ChosenCluster, with_cluster
from magnetar.cli.common.guesses import Guessing
from magnetar.cli.common.options import json_option, now_ms, print_json, who
from magnetar.inspect.inspector import Copy, Inspector, Lacking, LedgerRecord
from magnetar.inspect.strays import Restored, Stray, StrayLedgers
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.runtime.types import ConfigurationError, MagnetarError
from magnetar_core.topics.topic_name import TopicName, TopicNameError

# Entries that `ledgers show` reads without `--from` and `--to`; each is asked of every bookie that has it.
ENTRIES_SHOWN = 20
LEDGER_ID = click.IntRange(min=0)

# Records that are asked for between two updates of the progress bar.
LEDGERS_AT_ONCE = 500

# Ledgers without a record that are looked at by one command.
STRAYS_SHOWN = 1_000

# How often `lacking --wait` looks; it reads all records each time.
LOOK_AGAIN_S = 1.0

# Ledgers that could not be widened, of each reason.
LEFT_NAMED = 10

_SEE_LIST = "see `magnetar autorecovery list`"

# Bytes of a payload that are shown.
_PREVIEW_BYTES = 48


# --------------------------------------------------------------------------------------- ledgers


@click.group(cls=Guessing)
def ledgers() -> None:
    """Ledgers of a cluster: what stands in the metadata, and what the bookies have."""


@ledgers.command("list")
@with_cluster
@json_option
@click.option("--bookie", "bookie_id", help="Only those with copies on this bookie.")
def list_ledgers(cluster: ChosenCluster, as_json: bool, bookie_id: str | None) -> None:
    """All ledgers with state, size, quorums and bookies.

    Example:  magnetar ledgers list --bookie 127.0.0.1:3181
    """

    async def ask(inspector: Inspector) -> dict[int, LedgerRecord]:
        ids = await inspector.ledger_ids()
        records: dict[int, LedgerRecord] = {}
        with show.bar("ledgers", len(ids)) as progress_bar:
            for at in range(0, len(ids), LEDGERS_AT_ONCE):
                records |= await inspector.records_of(ids[at : at + LEDGERS_AT_ONCE])
                progress_bar.update(at)
        return records

    records = cluster.ask(ask)
    if bookie_id is not None:
        records = {
            ledger_id: record
            for ledger_id, record in records.items()
            if record.metadata and bookie_id in record.metadata.bookies()
        }
    if as_json:
        print_json(
            [
                {"ledger_id": ledger_id, "problem": problem}
                if metadata is None
                else _facts(ledger_id, metadata, created_ms)
                for ledger_id, (metadata, created_ms, problem) in records.items()
            ]
        )
        return
    now = now_ms()
    show.table(
        ("ledger", "state", "entries", "size", "E/Qw/Qa", "made", "last ensemble"),
        [_row(ledger_id, record, now) for ledger_id, record in records.items()],
    )


def _row(ledger_id: int, record: LedgerRecord, now: int) -> tuple[str, ...]:
    metadata = record.metadata
    if metadata is None:
        return str(ledger_id), "unreadable", "", "", "", "", record.problem
    return (
        str(ledger_id),
        metadata.state.name.lower().replace("_", " "),
        str(metadata.last_entry_id + 1) if metadata.is_closed else "-",
        show.size(metadata.length) if metadata.is_closed else "-",
        f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}",
        show.age(record.created_ms, now) if record.created_ms else "-",
        " ".join(metadata.last_segment.ensemble),
    )


def _facts(ledger_id: int, metadata: LedgerMetadata, created_ms: int) -> dict[str, Any]:
    return {
        "ledger_id": ledger_id,
        "problem": None,
        "state": metadata.state.name,
        "last_entry_id": metadata.last_entry_id if metadata.is_closed else None,
        "length": metadata.length if metadata.is_closed else None,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest": metadata.digest_type.name,
        "ctime_ms": created_ms or None,
        "segments": [{"first_entry_id": first, "ensemble": list(members)} for first, members in metadata.segments],
        "custom": {name: value.decode(errors="replace") for name, value in metadata.custom_metadata},
    }


@ledgers.command("lacking")
@click.option("--wait", is_flag=True, help="Wait until none lacks a copy.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), help="With --wait: seconds; exit code 3 after them."
)
@with_cluster
@json_option
def lacking_ledgers(cluster: ChosenCluster, wait: bool, timeout_s: float | None, as_json: bool) -> None:
    """Ledgers that lack copies now: a bookie that their record names is away, or auto-recovery has marked them.

    It looks itself, whether or not auto-recovery runs. Exit code 2 if there is one. Before a server is stopped, this
    has to say that there is none.

    Example:  magnetar ledgers lacking --wait --timeout 600
    """

    async def ask(inspector: Inspector) -> tuple[list[Lacking], int, bool]:
        began_s = inspector.clock.monotonic()
        with show.bar("ledgers that lack copies") as progress_bar:
            while True:
                lacking, looked_at = await inspector.lacking()
                waits_for = [ledger for ledger in lacking if not ledger.problem]
                late = timeout_s is not None and inspector.clock.monotonic() - began_s >= timeout_s
                if not wait or not waits_for or late:
                    return lacking, looked_at, bool(wait and waits_for)
                progress_bar.update(looked_at - len(waits_for), looked_at)
                await inspector.clock.sleep(LOOK_AGAIN_S)

    lacking, looked_at, is_late = cluster.ask(ask)
    if as_json:
        print_json([ledger._asdict() for ledger in lacking])
    elif lacking:
        show.table(
            ("ledger", "missing on", "marked"),
            [(str(ledger.ledger_id), ledger.problem or ", ".join(ledger.missing_on) or _SEE_LIST,
              "yes" if ledger.is_marked else "no") for ledger in lacking],
        )  # fmt: skip
    else:
        click.echo(
            f"none of {looked_at} ledgers lacks a copy: the bookies of all of them are there, and none is marked"
        )
    if lacking:
        raise click.exceptions.Exit(3 if is_late else 2)


@ledgers.command("show")
@click.argument("ledger_id", type=LEDGER_ID)
@click.option("--from", "first", type=LEDGER_ID, default=0, show_default=True, help="First entry.")
@click.option("--to", "last", type=LEDGER_ID, help=f"Last entry; else the {ENTRIES_SHOWN - 1} behind the first.")
@click.option("--all", "everything", is_flag=True, help="Every entry.")
@with_cluster
@json_option
def show_ledger(
    cluster: ChosenCluster, ledger_id: int, first: int, last: int | None, everything: bool, as_json: bool
) -> None:
    """What is in LEDGER_ID, entry by entry, from every bookie that should have it. Exit code 2 if a copy is not good.

    A ledger that is written to is neither fenced nor closed by this.

    Example:  magnetar ledgers show 7 --from 100 --to 110
    """

    async def ask(inspector: Inspector) -> tuple[LedgerMetadata, int, int, list[Copy], list[list[Copy]]]:
        metadata, created_ms = await _record(inspector, ledger_id)
        end, silent = await inspector.last_entry(ledger_id, metadata)
        stop = end if everything else min(end, first + ENTRIES_SHOWN - 1 if last is None else last)
        copies = []
        with show.progress(range(first, stop + 1), "entries") as entry_ids:
            for entry_id in entry_ids:
                copies.append(await inspector.copies(ledger_id, entry_id, metadata))
        return metadata, created_ms, end, silent, copies

    metadata, created_ms, end, silent, entries = cluster.ask(ask)
    if as_json:
        print_json({**_facts(ledger_id, metadata, created_ms), "last_entry_there": end,
                    "not_asked": [{"bookie": copy.bookie_id, "detail": copy.detail} for copy in silent],
                    "entries": [_entry_facts(first + at, copies) for at, copies in enumerate(entries)]})  # fmt: skip
    else:
        _show_record(ledger_id, metadata, created_ms, end, silent)
        _show_entries(first, end, entries)
    if silent or any(copy.verdict != "good" for copies in entries for copy in copies):
        raise click.exceptions.Exit(2)


async def _record(inspector: Inspector, ledger_id: int) -> tuple[LedgerMetadata, int]:
    """(what is recorded, when it was made or 0).

    Raises MagnetarError if there is no such ledger, or its record cannot be decoded.
    """
    record = (await inspector.records_of([ledger_id])).get(ledger_id)
    if record is None:
        raise MagnetarError(f"there is no ledger {ledger_id}; `magnetar ledgers list` shows those there are")
    if record.metadata is None:
        raise MagnetarError(record.problem)
    return record.metadata, record.created_ms


def _show_record(ledger_id: int, metadata: LedgerMetadata, created_ms: int, end: int, silent: list[Copy]) -> None:
    rows = [
        ("ledger", str(ledger_id)),
        ("state", metadata.state.name.lower().replace("_", " ")),
        ("E/Qw/Qa", f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}"),
        ("digest", metadata.digest_type.name),
        ("last entry", f"{end}" + ("" if metadata.is_closed else " (the last that a bookie has; it is not closed)")),
    ]
    rows += [("made", show.age(created_ms, now_ms()))] if created_ms else []
    rows += [(name, value.decode(errors="replace")) for name, value in metadata.custom_metadata]
    rows += [("not asked", f"{copy.bookie_id}: {copy.detail}; it may have more") for copy in silent]
    show.values(rows)
    click.echo()
    show.table(
        ("from entry", "bookies"), [(str(entry_id), " ".join(members)) for entry_id, members in metadata.segments]
    )
    click.echo()


def _show_entries(first: int, end: int, entries: list[list[Copy]]) -> None:
    cells = []
    for at, copies in enumerate(entries):
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
    if end > first + len(entries) - 1:
        click.echo(f"… up to {end}: see --from, --to, --all")


def _entry_facts(entry_id: int, copies: list[Copy]) -> dict[str, Any]:
    good = next((copy.stored for copy in copies if copy.stored is not None), None)
    return {
        "entry_id": entry_id,
        "last_add_confirmed": None if good is None else good.last_add_confirmed,
        "size": None if good is None else len(good.payload),
        "copies": [{"bookie": copy.bookie_id, "verdict": copy.verdict, "detail": copy.detail} for copy in copies],
        "preview": "" if good is None else _preview(bytes(good.payload[:_PREVIEW_BYTES])),
    }


def _preview(data: bytes) -> str:
    """The payload with dots in place of bytes that are not text."""
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


@ledgers.command("read")
@click.argument("ledger_id", type=LEDGER_ID)
@click.argument("entry_id", type=LEDGER_ID)
@click.option("-o", "--output", type=click.File("wb"), default="-", help="File to write to; else standard output.")
@with_cluster
def read_entry(cluster: ChosenCluster, ledger_id: int, entry_id: int, output: IO[bytes]) -> None:
    """Write the payload of one entry, from the first bookie with a good copy.

    Example:  magnetar ledgers read 7 0 -o entry.bin
    """

    async def ask(inspector: Inspector) -> bytes:
        metadata, _ = await _record(inspector, ledger_id)
        copies = await inspector.copies(ledger_id, entry_id, metadata)
        for copy in copies:
            if copy.stored is not None:
                return bytes(copy.stored.payload)
        verdicts = "; ".join(f"{copy.bookie_id}: {copy.verdict}" for copy in copies)
        raise MagnetarError(f"no bookie gave a good copy of ledger {ledger_id} entry {entry_id} ({verdicts})")

    output.write(cluster.ask(ask))


@ledgers.command("widen")
@click.option("--copies", type=click.IntRange(min=2), required=True, help="Copies that each entry is to have.")
@with_cluster
@json_option
def widen_ledgers(cluster: ChosenCluster, copies: int, as_json: bool) -> None:
    """Let closed ledgers with fewer copies have as many; auto-recovery makes them, and has to run.

    Exit code 2 if some could not be widened. Ledgers that are written to are closed when their topic is unloaded.

    Example:  magnetar ledgers widen --copies 3
    """
    from magnetar.inspect.widening import Widened, widen

    async def ask(inspector: Inspector) -> Widened:
        with show.bar("ledgers") as progress_bar:
            return await widen(inspector, copies, f"widen-{who()}", progress_bar.update)

    widened = cluster.ask(ask, changes=True)
    if as_json:
        print_json(widened._asdict())
    else:
        click.echo(
            f"{len(widened.ledgers)} ledgers get {copies} copies; `magnetar ledgers lacking --wait` waits for them"
        )
        for left, why in (
            (widened.open, "are written to: unload their topics, and repeat this"),
            (widened.striped, "are striped, and stay as they are"),
            (widened.busy, "are being repaired, or changed meanwhile: repeat this"),
            (widened.unreadable, "have records that cannot be read"),
        ):
            if left:
                named = ", ".join(map(str, left[:LEFT_NAMED])) + (", …" if len(left) > LEFT_NAMED else "")
                click.echo(f"{len(left)} {why} ({named})")
    if widened.open or widened.busy or widened.unreadable:
        raise click.exceptions.Exit(2)


# ---------------------------------------------------------------------- ledgers that the metadata do not know


@ledgers.command("strays")
@click.option(
    "--limit", type=click.IntRange(min=1), default=STRAYS_SHOWN, show_default=True, help="Ledgers to look at."
)
@with_cluster
@json_option
def strays(cluster: ChosenCluster, limit: int, as_json: bool) -> None:
    """Ledgers that bookies have and the metadata store does not, with what their first message says.

    Deleted ledgers that are not collected yet are among them. After old metadata were put back the others are those
    that were made since; `ledgers restore` gives them a record. Exit code 2 if a bookie could not be asked.

    Example:  magnetar ledgers strays
    """
    result = cluster.ask(lambda inspector: StrayLedgers(inspector).find(limit))
    if as_json:
        print_json({"ledgers": [_stray_facts(stray) for stray in result.ledgers], "left": result.left,
                    "not_asked": dict(result.silent)})  # fmt: skip
    else:
        now = now_ms()
        show.table(
            ("ledger", "entries", "published", "by", "bookies"),
            [(str(stray.ledger_id), "-" if stray.entries < 0 else str(stray.entries),
              show.age(stray.published_ms, now) if stray.published_ms else "-", stray.producer or "-",
              " ".join(stray.bookies))
             for stray in result.ledgers],
        )  # fmt: skip
        if result.left:
            click.echo(f"… and {result.left} more: see --limit")
        for bookie_id, why in result.silent.items():
            click.echo(f"not asked: {bookie_id}: {why}")
    if result.silent:
        raise click.exceptions.Exit(2)


def _stray_facts(stray: Stray) -> dict[str, Any]:
    return {
        "ledger_id": stray.ledger_id,
        "entries": None if stray.entries < 0 else stray.entries,
        "producer": stray.producer,
        "published_ms": stray.published_ms or None,
        "bookies": list(stray.bookies),
    }


@ledgers.command("restore")
@click.argument("ledger_id", type=LEDGER_ID)
@click.option("--topic", "topic_text", help="Put it into this topic (a partition has a topic of its own), too.")
@click.option("--password", default="", help="Of the ledger; Pulsar's have none unless brokers were told one.")
@click.option("--without", multiple=True, help="A bookie that is gone for good and need not be asked.")
@click.option("--ensemble-size", type=click.IntRange(min=1), help="If it cannot be told from the copies.")
@click.option("--unchecked", is_flag=True, help="The ledger was written without checksums (digest DUMMY).")
@with_cluster
@json_option
def restore_ledger(
    cluster: ChosenCluster,
    ledger_id: int,
    topic_text: str | None,
    password: str,
    without: tuple[str, ...],
    ensemble_size: int | None,
    unchecked: bool,
    as_json: bool,
) -> None:
    """Give LEDGER_ID, which has no record in the metadata store, a closed one again, from what the bookies have.

    It is fenced. Where its copies do not tell its end or its ensemble for certain, nothing is written. With --topic the
    brokers must be stopped.

    Example:  magnetar ledgers restore 4711 --topic persistent://shop/orders/paid
    """
    try:
        topic = None if topic_text is None else TopicName.parse(topic_text)
    except TopicNameError as error:
        raise ConfigurationError(str(error)) from None

    async def ask(inspector: Inspector) -> tuple[Restored, bool]:
        stray_ledgers = StrayLedgers(inspector)
        if topic is not None:
            await stray_ledgers.check_may_get_ledgers(topic)
        restored = await stray_ledgers.restore(
            ledger_id, topic=topic, password=password.encode(), without=without, ensemble_size=ensemble_size,
            is_unchecked=unchecked,
        )  # fmt: skip
        return restored, topic is not None and await stray_ledgers.put_into(topic, ledger_id)

    outcome, is_put = cluster.ask(ask, changes=True)
    if as_json:
        print_json({**_facts(ledger_id, outcome.metadata, outcome.metadata.ctime_ms or 0), "restored": outcome.is_new,
                    "put_into": topic_text if is_put else None})  # fmt: skip
        return
    metadata = outcome.metadata
    click.echo(
        f"ledger {ledger_id}: {metadata.last_entry_id + 1} entries, {show.size(metadata.length)}, on "
        f"{' '.join(sorted(metadata.bookies()))}" + ("" if outcome.is_new else " (it had this record already)")
    )
    if topic is not None:
        click.echo(f"it {'stands in' if is_put else 'stood already in'} {topic}")
