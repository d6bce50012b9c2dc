"""`magnetar doctor`: asks everybody in a cluster, with short time limits, and tells what is wrong."""

import asyncio
import email.utils
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from magnetar.cli_options import admin_of, admin_option, print_json
from magnetar.doctor_rules import (
    BookieFacts,
    BrokerFacts,
    ClusterFacts,
    Finding,
    Level,
    SubscriptionFacts,
    examine,
    exit_code,
)
from magnetar.ledgers_cli import METADATA_URL, json_option
from magnetar.runtime.types import MagnetarError

T = TypeVar("T")

TIMEOUT_S: Final = 5.0
LEDGERS_LOOKED_AT: Final = 10_000
TOPICS_LOOKED_AT: Final = 1_000

_MARKS: Final = {Level.ERROR: ("error", "red"), Level.WARNING: ("warning", "yellow"), Level.INFO: ("note", None)}


@click.command()
@click.option("--metadata", "metadata_url", default=METADATA_URL, show_default=True, envvar="MAGNETAR_METADATA_URL",
              help="Metadata store of the cluster.")  # fmt: skip
@click.option("--namespace", "namespaces", multiple=True, default=("public/default",), show_default=True,
              help="Whose subscriptions to look at; may be given more than once.")  # fmt: skip
@click.option("--ledgers", "ledgers_max", type=click.IntRange(min=0), default=LEDGERS_LOOKED_AT, show_default=True,
              help="Look at the copies of so many ledgers, the newest first.")  # fmt: skip
@click.option("--tls-directory", envvar="MAGNETAR_TLS_DIRECTORY",
              help="Folder with tls.crt, tls.key and ca.crt, where bookies demand TLS.")  # fmt: skip
@json_option
@admin_option
def doctor(
    metadata_url: str,
    namespaces: tuple[str, ...],
    ledgers_max: int,
    tls_directory: str | None,
    as_json: bool,
    admin_url: str,
) -> None:
    """Look at a cluster, and say in plain words what is wrong and what to do.

    Exit code 0: nothing; 1: warnings; 2: errors.

    Example:  magnetar doctor --metadata zk:127.0.0.1:2181 --admin-url http://127.0.0.1:8080
    """
    facts = asyncio.run(_gather(metadata_url, tls_directory, admin_url, namespaces, ledgers_max))
    findings = examine(facts)
    code = exit_code(findings)
    if as_json:
        print_json([{"level": one.level.name, "where": one.where, "text": one.text, "way_out": one.way_out}
                    for one in findings])  # fmt: skip
    else:
        _show(facts, findings)
    raise click.exceptions.Exit(code)


def _show(facts: ClusterFacts, findings: Iterable[Finding]) -> None:
    for one in findings:
        word, colour = _MARKS[one.level]
        click.echo(f"{click.style(word, fg=colour, bold=colour is not None)}  {one.where}: {one.text}")
        if one.way_out:
            click.echo(f"    → {one.way_out}")
    looked = (
        f"{len(facts.bookies)} bookies, {len(facts.brokers)} brokers, {facts.ledgers_looked_at} ledgers, "
        f"{len(facts.subscriptions)} subscriptions"
    )
    if not findings:
        click.echo(f"{click.style('fine', fg='green')}  {looked}")
    else:
        click.echo(f"looked at {looked}")


# ---------------------------------------------------------------------------------------- facts


async def _gather(
    metadata_url: str, tls_directory: str | None, admin_url: str, namespaces: tuple[str, ...], ledgers_max: int
) -> ClusterFacts:
    from magnetar.inspector import inspecting

    try:
        async with asyncio.timeout(4 * TIMEOUT_S):
            async with inspecting(metadata_url, tls_directory) as inspector:
                return await _look(inspector, metadata_url, admin_url, namespaces, ledgers_max)
    except (MagnetarError, TimeoutError, OSError) as error:
        return ClusterFacts(metadata_url, metadata_error=str(error) or "no answer in time")


async def _look(
    inspector: Any, metadata_url: str, admin_url: str, namespaces: tuple[str, ...], ledgers_max: int
) -> ClusterFacts:
    from magnetar.bookkeeper.metadata import underreplication

    clock, store, root = inspector.clock, inspector.store, inspector.root
    began_s = clock.monotonic()
    registered = await inspector.bookies()
    metadata_s = (clock.monotonic() - began_s) / (len(registered) + 1)
    bookies = tuple(await asyncio.gather(*(_bookie(inspector, one) for one in registered)))
    ledger_ids = await inspector.ledger_ids()
    looked = ledger_ids[len(ledger_ids) - min(ledgers_max, len(ledger_ids)) :]
    metadata = await inspector.metadata_of(looked)
    away = {one.bookie_id for one in registered if one.state == "away"}
    known = {one.bookie_id for one in registered}
    lost: dict[str, int] = {}
    unguarded = 0
    for one in metadata.values():
        gone = {member for member in one.bookies() if member in away or member not in known}
        for member in gone:
            lost[member] = lost.get(member, 0) + 1
        unguarded += any(set(segment.ensemble) <= gone for segment in one.segments) and bool(gone)
    brokers_error, brokers, ensemble_size = await _brokers(inspector, admin_url)
    subscriptions: tuple[SubscriptionFacts, ...] = ()
    subscriptions_error = brokers_error
    if not brokers_error:
        try:
            subscriptions = await _thread(lambda: _subscriptions(admin_url, namespaces))
        except (MagnetarError, OSError) as error:
            subscriptions_error = str(error)
    return ClusterFacts(
        metadata_url,
        metadata_s=metadata_s,
        bookies=bookies,
        ensemble_size=ensemble_size,
        brokers_error=brokers_error,
        brokers=brokers,
        under_replicated=tuple(await _marked(store, underreplication.marks_path(root))),
        replication_disabled=await store.exists(underreplication.disabled_path(root)),
        auditor="".join((await _names(store, underreplication.election_path(root)))[:1]),
        lost_copies=lost,
        unguarded=unguarded,
        ledgers=len(ledger_ids),
        ledgers_looked_at=len(looked),
        subscriptions_error=subscriptions_error,
        subscriptions=subscriptions,
    )


async def _names(store: Any, path: str) -> list[str]:
    return sorted(await store.children(path)) if await store.exists(path) else []


async def _marked(store: Any, path: str) -> list[int]:
    """Ledgers below the marks of auto-recovery."""
    found: list[int] = []
    for name in await _names(store, path):
        if name.startswith("urL"):
            found.append(int(name.removeprefix("urL")))
        else:
            found += await _marked(store, f"{path}/{name}")
    return found


async def _bookie(inspector: Any, known: Any) -> BookieFacts:
    from bookie.peers import ask_disks
    from magnetar.bookkeeper.tls import Certificates, client_context
    from magnetar.bookkeeper.wire.framing import MalformedFrame

    if known.state == "away":
        return BookieFacts(known.bookie_id, known.state)
    host, _, port = known.address.rpartition(":")
    try:
        # By its address, which no certificate has to name.
        certificates = None if inspector.tls is None else Certificates(inspector.tls, client_context, inspector.clock)
        async with asyncio.timeout(TIMEOUT_S):
            disks = await ask_disks(host, int(port), certificates)
    except (OSError, TimeoutError, MalformedFrame, ValueError) as error:
        return BookieFacts(known.bookie_id, known.state, error=str(error) or f"nothing within {TIMEOUT_S:g} s")
    reasons: tuple[str, ...] = ()
    skew_s = None
    if known.http:
        answer, skew_s = await _thread(lambda: _http(f"{known.http}/api/v1/bookie/state", inspector.clock.wall_ms))
        if answer is not None:
            status, _ = await _thread(lambda: _http(f"{known.http}/api/v1/magnetar/status", inspector.clock.wall_ms))
            held = (status or {}).get("state", {}).get("reasons", {})
            reasons = tuple(f"{name}: {text}".rstrip(": ") for name, text in held.items())
    return BookieFacts(known.bookie_id, known.state, disks.total_bytes, disks.free_bytes, reasons, skew_s=skew_s)


def _http(url: str, wall_ms: Callable[[], int]) -> tuple[Any, float | None]:
    """(JSON or None, how far its clock is ahead in seconds or None)."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read() or b"null"), _ahead_s(answer.headers, wall_ms)
    except urllib.error.HTTPError as error:
        with error:
            return None, _ahead_s(error.headers, wall_ms)
    except (OSError, ValueError):
        return None, None


def _ahead_s(headers: Any, wall_ms: Callable[[], int]) -> float | None:
    """From the Date of an answer, which knows whole seconds only."""
    told = headers.get("Date")
    if told is None:
        return None
    try:
        return email.utils.parsedate_to_datetime(told).timestamp() + 0.5 - wall_ms() / 1000
    except ValueError:
        return None


async def _brokers(inspector: Any, admin_url: str) -> tuple[str, tuple[BrokerFacts, ...], int]:
    admin = admin_of(admin_url)
    try:
        ids = await _thread(lambda: sorted(admin.call("GET", "/admin/v2/brokers")))
        settings = await _thread(lambda: admin.call("GET", "/admin/v2/brokers/configuration/runtime"))
    except MagnetarError as error:
        return str(error), (), 0
    found = await asyncio.gather(*(_broker(inspector, one) for one in ids))
    return "", tuple(found), int(settings.get("managedLedgerDefaultEnsembleSize") or 0)


async def _broker(inspector: Any, broker_id: str) -> BrokerFacts:
    url = f"http://{broker_id}"

    def ask() -> BrokerFacts:
        try:
            with urllib.request.urlopen(f"{url}/admin/v2/brokers/ready", timeout=TIMEOUT_S) as answer:
                skew_s = _ahead_s(answer.headers, inspector.clock.wall_ms)
        except (OSError, ValueError) as error:
            return BrokerFacts(broker_id, url, error=str(getattr(error, "reason", error)))
        try:
            with urllib.request.urlopen(f"{url}/admin/v2/brokers/health", timeout=2 * TIMEOUT_S):
                return BrokerFacts(broker_id, url, skew_s=skew_s)
        except urllib.error.HTTPError as error:
            with error:
                return BrokerFacts(broker_id, url, health=error.read().decode(errors="replace")[:300], skew_s=skew_s)
        except OSError as error:
            return BrokerFacts(broker_id, url, health=str(error), skew_s=skew_s)

    return await _thread(ask)


def _subscriptions(admin_url: str, namespaces: tuple[str, ...]) -> tuple[SubscriptionFacts, ...]:
    admin = admin_of(admin_url)
    found = []
    names = [name for namespace in namespaces for name in admin.topics(namespace)]
    for topic in names[:TOPICS_LOOKED_AT]:
        stats = admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/stats")
        for name, facts in stats["subscriptions"].items():
            consumers = facts["consumers"]
            found.append(
                SubscriptionFacts(
                    topic,
                    name,
                    facts["type"],
                    facts["msgBacklog"],
                    facts["unackedMessages"],
                    len(consumers),
                    sum(one["availablePermits"] for one in consumers),
                    bool(facts["blockedSubscriptionOnUnackedMsgs"])
                    or (bool(consumers) and all(one["blockedConsumerOnUnackedMsgs"] for one in consumers)),
                )
            )
    return tuple(found)


async def _thread(work: Callable[[], T]) -> T:
    """Do what blocks (the standard library's HTTP) beside the loop."""
    return await asyncio.to_thread(work)
