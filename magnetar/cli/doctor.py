"""`magnetar doctor`: asks every server of a cluster, with short time limits, and reports what is wrong.

    metadata store ── bookies ── disks, HTTP of each      ┐
                   ├─ records of ledgers                  ├──▶ ClusterFacts ──▶ doctor_rules ──▶ findings
                   └─ marks of auto-recovery              │
    brokers' HTTP ─── each broker, its health; topics     ┘

Each question has its own time limit. A question that fails is noted with its reason; the others are asked all the same.
"""

import asyncio
import contextlib
import email.utils
import re
import ssl
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import click
from click.core import ParameterSource
from cryptography.x509 import load_pem_x509_certificate

from autorecovery.reporting.reports import read_problems
from broker.admin.page.files import PREFIX
from broker.settings.config import load_broker_config
from magnetar.cli.bookie.texts import lost_logs_text
from magnetar.cli.common import output as show
from magnetar.cli.common.options import (
    METADATA_URL,
    admin_of,
    admin_option,
    json_option,
    metadata_of,
    metadata_option,
    print_json,
    urls_of,
)
from magnetar.inspect.access import CURRENT, Access
from magnetar.inspect.broker_admin import BROKERS_PATH, AdminClient, AdminError
from magnetar.inspect.contents_reading import ContentsReader
from magnetar.inspect.doctor_rules import (
    BACKLOG_WARN,
    BookieFacts,
    BrokerFacts,
    ClusterFacts,
    LedgerFacts,
    LossFacts,
    QuotaFacts,
    SubscriptionFacts,
    examine,
    examine_handover,
)
from magnetar.inspect.findings import Finding, Level, Unasked, exit_code
from magnetar.inspect.inspector import Inspector, KnownBookie, LedgerRecord, inspecting
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import Kind, Stage
from magnetar_core.bookkeeper.metadata.ledgers.doubts import DoubtRanges
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.http.request import ask
from magnetar_core.runtime.process.daemon import new_clock
from magnetar_core.runtime.types import ConfigurationError, MagnetarError
from magnetar_core.security.followed import host_of
from magnetar_core.security.sources import open_to_others
from managed_ledger.compacted.entry import COMPACTION_CURSOR

T = TypeVar("T")

# One question to one server. A server that needs longer for a small answer is in trouble.
TIMEOUT_S: Final = 5.0
# A broker's health check writes to bookies, and waits for bookies that are away before it gives up.
HEALTH_TIMEOUT_S: Final = 15.0
# The first answer of the metadata store: its client tries all servers, for the length of a session.
METADATA_TIMEOUT_S: Final = 15.0
# The disks of all bookies; each bookie may take the whole of its own limit.
DISKS_TIMEOUT_S: Final = 30.0
# Time to find out whether something listens at the address of a bookie that is away.
LISTEN_TIMEOUT_S: Final = 1.0

LEDGERS_LOOKED_AT: Final = 10_000
LOOK_S: Final = 20.0
"""Time for the records of ledgers, and as much for the topics."""
LEDGERS_AT_ONCE: Final = 500

# So many topics without an answer, and the others are not asked: they would show the same.
TOPIC_FAILURES_MAX: Final = 3

# Answers by which a server says that it wants other credentials: they say nothing of its health.
REFUSALS: Final = (401, 403)

# Answers of an HTTP admin are a few KiB; a longer one comes from something else.
ANSWER_BYTES_MAX: Final = 1 << 20

_RUNTIME: Final = "/admin/v2/brokers/configuration/runtime"
_AS_JAVA: Final = re.compile(r"^(?:Optional)?\[(.*)]$|^Optional\.empty$")

_MARKS: Final = {Level.ERROR: ("error", "red"), Level.WARNING: ("warning", "yellow"), Level.INFO: ("note", None)}


async def _read_troubles(inspector: Inspector) -> dict[str, Any]:
    """What auto-recovery could not do and what was reported to people, as fields of ClusterFacts."""
    store, root = inspector.store, inspector.root
    states = BookieStates(store, root)
    doubted = await DoubtRanges(store, root).announced()
    reports = [report for report in await DamageReports(store, root).all() if report.stage is Stage.OPEN]
    losses = [report for report in reports if report.kind is Kind.DATA_LOSS]
    lives = {bookie: (await states.read(bookie)).lifecycle for bookie in await states.bookies()}
    return {
        "hindered": {ledger.ledger_id: (str(ledger.kind), ledger.text) async for ledger in read_problems(store, root)},
        "failed_drains": {
            bookie: life.reasons_total for bookie, life in lives.items() if life.state is State.DRAINING_FAILED
        },
        "doubted": {bookie: doubt.ledgers for bookie, doubt in doubted.items()},
        "open_reports": len(reports),
        "losses": tuple(LossFacts(loss.ledger_id, loss.text) for loss in losses),
    }


@click.command()
@click.option("--namespace", "namespaces", multiple=True,
              help="Namespace whose topics are checked; may be given more than once. Default: all.")  # fmt: skip
@click.option("--backlog", type=click.IntRange(min=1), default=BACKLOG_WARN, show_default=True,
              help="Warn if a subscription without consumers has at least this many entries of backlog.")  # fmt: skip
@click.option("--ledgers", "ledgers_max", type=click.IntRange(min=0), default=LEDGERS_LOOKED_AT, show_default=True,
              help="Check the copies of this many ledgers, the newest first.")  # fmt: skip
@click.option("--time-limit", "look_s", type=click.FloatRange(min=1), default=LOOK_S, show_default=True,
              help="Seconds for the ledgers, and for the topics. The report names what was not checked.")  # fmt: skip
@click.option(
    "--before-handover",
    is_flag=True,
    help="Say only what would change for each namespace if Magnetar's brokers took over from Apache's.",
)
@metadata_option
@json_option
@admin_option
def doctor(
    namespaces: tuple[str, ...],
    backlog: int,
    ledgers_max: int,
    look_s: float,
    before_handover: bool,
    metadata_url: str | None,
    tls_directory: str | None,
    as_json: bool,
    admin_url: str,
) -> None:
    """Check a cluster, and report what is wrong and what to do about it.

    Exit code 0: no findings; 1: warnings; 2: errors. With --before-handover 0 means that Magnetar's brokers serve each
    topic as Apache's do.

    Example:  magnetar doctor --admin-url http://127.0.0.1:8080,http://127.0.0.1:8081
    """
    is_named = click.get_current_context().get_parameter_source("admin_url") is not ParameterSource.DEFAULT
    with show.bar("looking") as progress_bar:
        rounds = Rounds(namespaces, ledgers_max, look_s, progress_bar, compares_settings=before_handover)
        store_url = metadata_of(metadata_url, admin_url)
        admin_urls = urls_of(admin_url)
        if metadata_url is not None and not is_named:
            admin_urls = asyncio.run(_registered(metadata_url, tls_directory)) or admin_urls
        facts = asyncio.run(rounds.facts(store_url, tls_directory, admin_urls))
        facts = replace(facts, is_guessed=metadata_url is None and store_url == METADATA_URL)
    findings = examine_handover(facts) if before_handover else examine(facts, backlog_warn=backlog)
    code = exit_code(findings)
    if as_json:
        print_json([{"level": finding.level.name, "where": finding.where, "text": finding.text,
                     "way_out": finding.way_out} for finding in findings])  # fmt: skip
    else:
        _show(facts, findings)
    raise click.exceptions.Exit(code)


def _show(facts: ClusterFacts, findings: Iterable[Finding]) -> None:
    for finding in findings:
        word, colour = _MARKS[finding.level]
        click.echo(f"{click.style(word, fg=colour, bold=colour is not None)}  {finding.where}: {finding.text}")
        if finding.way_out:
            click.echo(f"    → {finding.way_out}")
    looked = (
        f"{len(facts.bookies or ())} bookies, {len(facts.brokers)} brokers, {len(facts.ledgers)} ledgers, "
        f"{len(facts.subscriptions)} subscriptions"
    )
    if not findings:
        click.echo(f"{click.style('fine', fg='green')}  {looked}")
    else:
        click.echo(f"looked at {looked}")


# ---------------------------------------------------------------------------------------- asking


class Rounds:
    """One examination of a cluster; used once."""

    def __init__(
        self,
        namespaces: Iterable[str],
        ledgers_max: int,
        look_s: float,
        progress_bar: show.Bar,
        *,
        compares_settings: bool = False,
    ) -> None:
        """*compares_settings*: also whether brokers of ours would take those of the brokers that run."""
        self._compares_settings = compares_settings
        self._namespaces = tuple(namespaces)
        self._ledgers_max = ledgers_max
        self._look_s = look_s
        self._progress_bar = progress_bar
        self._unasked: list[Unasked] = []

    async def facts(self, metadata_url: str, tls_directory: str | None, admin_urls: list[str]) -> ClusterFacts:
        """Raises ConfigurationError for a URL that cannot be read, or a folder that does not exist."""
        parts = await asyncio.gather(self._read_storage(metadata_url, tls_directory), self._ask_brokers(admin_urls))
        secrets = await asyncio.to_thread(_open_secrets, CURRENT.get(), tls_directory)
        known: dict[str, Any] = {name: value for part in parts for name, value in part.items()}
        return ClusterFacts(metadata_url, unasked=tuple(self._unasked), open_secrets=secrets, **known)

    async def _ask(self, what: str, question: Awaitable[T], otherwise: T, limit_s: float) -> T:
        try:
            async with asyncio.timeout(limit_s):
                return await question
        except TimeoutError:
            self._unasked.append(Unasked(what, f"no answer within {limit_s:g} s"))
        except (MagnetarError, OSError) as error:
            self._unasked.append(Unasked(what, str(error)))
        except (KeyError, TypeError, ValueError) as error:
            self._unasked.append(Unasked(what, f"the answer cannot be understood ({type(error).__name__}: {error})"))
        return otherwise

    # ------------------------------------------------------------------- metadata store and bookies

    async def _read_storage(self, metadata_url: str, tls_directory: str | None) -> dict[str, Any]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(METADATA_TIMEOUT_S):
                    inspector = await stack.enter_async_context(inspecting(metadata_url, tls_directory))
                    metadata_s = await _quickest_answer_s(inspector)
            except ConfigurationError:
                raise
            except TimeoutError:
                return {"metadata_error": f"no answer within {METADATA_TIMEOUT_S:g} s"}
            except (MagnetarError, OSError) as error:
                return {"metadata_error": str(error)}
            bookies, ledgers, recovery, contents, topology = await asyncio.gather(
                self._bookies(inspector),
                self._ledgers(inspector),
                self._recovery(inspector),
                self._contents(inspector),
                self._ask("racks of the bookies", inspector.topology(), None, METADATA_TIMEOUT_S),
            )
            placement = {"topology": topology, "rack_problems": inspector.racks.problems}
            silent = tuple(Unasked(host, why) for host, why in inspector.silent_hosts.items())
            opened = await asyncio.to_thread(_open_folders, metadata_url)
            return {"metadata_s": metadata_s, "silent_hosts": silent, "open_to_others": opened, "bookies": bookies,
                    **ledgers, **recovery, **contents, **placement}  # fmt: skip

    async def _bookies(self, inspector: Inspector) -> tuple[BookieFacts, ...] | None:
        registered = await self._ask("bookies", inspector.bookies(), None, METADATA_TIMEOUT_S)
        if registered is None:
            return None
        disks = await self._ask("disks of the bookies", inspector.cluster.spaces(), {}, DISKS_TIMEOUT_S)
        return tuple(await asyncio.gather(*(self._bookie(inspector, bookie, disks) for bookie in registered)))

    async def _bookie(self, inspector: Inspector, known: KnownBookie, disks: dict[str, Any]) -> BookieFacts:
        if known.state == "away":
            return BookieFacts(known.bookie_id, known.state, listens=await _listens(inspector, known.bookie_id))
        space = disks.get(known.bookie_id)
        if isinstance(space, str):
            return BookieFacts(known.bookie_id, known.state, error=space)
        reasons: tuple[str, ...] = ()
        skew_s: float | None = None
        lost_logs = ""
        opened: tuple[str, ...] = ()
        if known.http:
            question = asyncio.to_thread(_bookie_http, known.http, known.bookie_id, inspector.clock)
            what = f"HTTP admin of bookie {known.bookie_id}"
            nothing = (reasons, lost_logs, opened, skew_s)
            reasons, lost_logs, opened, skew_s = await self._ask(what, question, nothing, 2 * TIMEOUT_S)
        total_bytes, free_bytes = (0, 0) if space is None else (space.total_bytes, space.free_bytes)
        return BookieFacts(
            known.bookie_id, known.state, total_bytes, free_bytes, reasons, skew_s=skew_s, lost_logs=lost_logs,
            open_to_others=opened,
        )  # fmt: skip

    async def _ledgers(self, inspector: Inspector) -> dict[str, Any]:
        began_s = inspector.clock.monotonic()
        ids = await self._ask("the list of ledgers", inspector.ledger_ids(), [], self._look_s)
        looked = ids[::-1][: self._ledgers_max]
        stored: dict[int, LedgerRecord] = {}
        left = len(ids)
        for at in range(0, len(looked), LEDGERS_AT_ONCE):
            if inspector.clock.monotonic() - began_s > self._look_s:
                break
            self._progress_bar.update(at, len(looked), "ledgers")
            chunk = looked[at : at + LEDGERS_AT_ONCE]
            records = await self._ask("records of ledgers", inspector.records_of(chunk), None, self._look_s)
            if records is None:
                break
            stored |= records
            left -= len(chunk)
            assert left >= 0, "more ledgers were looked at than there are"
        return {
            "ledgers_left": left,
            "ledgers": tuple(
                _ledger_facts(ledger_id, record) for ledger_id, record in stored.items() if record.metadata
            ),
            "unreadable": tuple(
                Unasked(f"ledger {ledger_id}", record.problem)
                for ledger_id, record in stored.items()
                if record.metadata is None
            ),
        }

    async def _recovery(self, inspector: Inspector) -> dict[str, Any]:
        info = await self._ask("auto-recovery", inspector.cluster.info(), None, METADATA_TIMEOUT_S)
        if info is None:
            return {}
        marked: list[int] = []
        if info.cluster_under_replicated:
            marked = await self._ask("marks of auto-recovery", inspector.under_replicated(), marked, METADATA_TIMEOUT_S)
        return {
            "under_replicated": tuple(marked),
            "replication_disabled": not info.ledger_replication_enabled,
            "auditor": info.auditor_id,
            **await self._ask("lives of bookies and reports", _read_troubles(inspector), {}, METADATA_TIMEOUT_S),
        }

    async def _contents(self, inspector: Inspector) -> dict[str, Any]:
        question = ContentsReader(inspector, self._look_s).read(self._namespaces)
        # A topic that it has begun to look at may take as long again.
        held = await self._ask("what namespaces hold", question, None, 2 * self._look_s)
        if held is None:
            return {}
        self._unasked += held.unasked
        return {"contents": held.contents, "has_coordinator": held.has_coordinator, "contents_left": held.topics_left}

    # ----------------------------------------------------------------------- brokers and their topics

    async def _ask_brokers(self, admin_urls: list[str]) -> dict[str, Any]:
        if not admin_urls:
            admin_of("")  # raises an error that says what is wrong

        statuses: list[int | None] = []

        def brokers_at(url: str) -> list[str] | str:
            try:
                return sorted(_admin(url).call("GET", "/admin/v2/brokers"))
            except AdminError as error:
                statuses.append(error.status or (0 if error.is_untrusted else None))
                return str(error)
            except TypeError as error:
                return str(error)

        listings = await asyncio.gather(*(asyncio.to_thread(brokers_at, url) for url in admin_urls))
        answers = dict(zip(admin_urls, listings, strict=True))
        answered = [url for url, answer in answers.items() if not isinstance(answer, str)]
        if not answered:
            status = next((status for status in statuses if status is not None), None)
            return {"brokers_error": "; ".join(map(str, answers.values())), "brokers_status": status}
        admin_url = answered[0]
        clock = new_clock()
        over_tls = await asyncio.to_thread(_https_urls, admin_url)
        brokers, ensemble_size, topics = await asyncio.gather(
            asyncio.gather(
                *(asyncio.to_thread(_broker, broker_id, admin_url, over_tls, clock) for broker_id in answers[admin_url])
            ),
            self._ask("settings of the brokers", asyncio.to_thread(_ensemble_size, admin_url), 0, 2 * TIMEOUT_S),
            self._topics(admin_url, clock),
        )
        silent = tuple(Unasked(url, answer) for url, answer in answers.items() if isinstance(answer, str))
        refused: list[Unasked] = []
        if self._compares_settings:
            what = "whether the settings of the brokers would be taken"
            refused = await self._ask(what, asyncio.to_thread(_refused, brokers), refused, 2 * TIMEOUT_S)
        return {"brokers": tuple(brokers), "silent_admins": silent, "ensemble_size": ensemble_size,
                "refused_settings": tuple(refused), **topics}  # fmt: skip

    async def _topics(self, admin_url: str, clock: Clock) -> dict[str, Any]:
        names: list[str] = []
        namespaces = self._namespaces
        if not namespaces:
            listing = asyncio.to_thread(_all_namespaces, admin_url)
            namespaces = await self._ask("the list of namespaces", listing, (), 2 * TIMEOUT_S)
        for namespace in namespaces:
            question = asyncio.to_thread(_admin(admin_url).topics, namespace)
            names += await self._ask(f"topics of {namespace}", question, [], 2 * TIMEOUT_S)
        subscriptions: list[SubscriptionFacts] = []
        quotas: list[QuotaFacts] = []
        began_s = clock.monotonic()
        failures_before = len(self._unasked)
        looked_at = 0
        for name in names:
            if clock.monotonic() - began_s > self._look_s or len(self._unasked) - failures_before >= TOPIC_FAILURES_MAX:
                break
            answer = asyncio.to_thread(_subscriptions, admin_url, name)
            if (stats := await self._ask(f"topic {name}", answer, None, 2 * TIMEOUT_S)) is not None:
                subscriptions += stats[0]
                quotas.append(stats[1])
            looked_at += 1
        return {
            "topics_left": len(names) - looked_at,
            "subscriptions": tuple(subscriptions),
            "quotas": tuple(quotas),
        }


async def _registered(metadata_url: str, tls_directory: str | None) -> list[str]:
    """The brokers that the metadata store names; none if it does not answer, which is a finding of its own. Credentials
    go there over TLS only: nobody has named these addresses."""
    try:
        async with asyncio.timeout(METADATA_TIMEOUT_S), inspecting(metadata_url, tls_directory) as inspector:
            return await inspector.broker_urls(over_tls=bool(CURRENT.get().headers()))
    except ConfigurationError:
        raise
    except (MagnetarError, OSError, TimeoutError):
        return []


async def _quickest_answer_s(inspector: Inspector) -> float:
    """The fastest of three answers: one slow answer proves nothing."""
    answers = []
    for _ in range(3):
        began_s = inspector.clock.monotonic()
        await inspector.store.exists(inspector.root)
        answers.append(inspector.clock.monotonic() - began_s)
    return min(answers)


async def _listens(inspector: Inspector, bookie_id: str) -> bool:
    try:
        async with asyncio.timeout(LISTEN_TIMEOUT_S):
            _, writer = await asyncio.open_connection(*await inspector.directory.address_of(bookie_id))
    except (OSError, TimeoutError, MetadataError):
        return False
    writer.close()
    return True


def _ledger_facts(ledger_id: int, record: LedgerRecord) -> LedgerFacts:
    metadata = record.metadata
    assert metadata is not None, "the others are reported as unreadable"
    last = metadata.last_entry_id if metadata.is_closed else None
    return LedgerFacts(ledger_id, metadata.write_quorum, metadata.segments, last)


# ---------------------------------------------------------------------- what blocks, on other threads


def _admin(url: str) -> Any:
    return AdminClient(url, timeout_s=TIMEOUT_S)


def _get(
    url: str, clock: Clock, timeout_s: float = TIMEOUT_S, *, is_in_clear: bool = False
) -> tuple[int, Any, float | None]:
    """(status, JSON or text, how far its clock is ahead in seconds or None). Credentials are sent over TLS, and in
    clear text only with *is_in_clear*.

    Raises OSError.
    """
    deadline_s = clock.monotonic() + timeout_s
    answer = ask("GET", url, timeout_s=timeout_s, max_bytes=ANSWER_BYTES_MAX,
                 is_late=lambda: clock.monotonic() > deadline_s,
                 headers=CURRENT.get().headers() if is_in_clear or url.startswith("https:") else None,
                 context=CURRENT.get().context() if url.startswith("https:") else None)  # fmt: skip
    try:
        body: Any = parse_json(answer.body or b"null")
    except ValueError:
        body = answer.body.decode(errors="replace")
    return answer.status, body, _ahead_s(answer.headers.get("Date"), clock)


def _reason(status: int, said: Any) -> str:
    """Why a server refused, in its own words."""
    return f"{(said.get('reason') if isinstance(said, dict) else said) or f'HTTP {status}'}"[:300]


def _ahead_s(date: str | None, clock: Clock) -> float | None:
    """How far the server's clock is ahead, from the Date of its answer, which has whole seconds only."""
    if date is None:
        return None
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - clock.wall_ms() / 1000
    except ValueError:
        return None


def _bookie_http(url: str, bookie_id: str, clock: Clock) -> tuple[tuple[str, ...], str, tuple[str, ...], float | None]:
    """(why it is read-only, what it says of lost entry logs, its folders that are open to everybody, how far its clock
    is ahead); Apache's bookie has the last only. Raises OSError."""
    # Its address may be that of several bookies (`magnetar bookie --processes N`).
    status, body, skew_s = _get(f"{url}/api/v1/magnetar/status?bookie={quote(bookie_id)}", clock)
    if status in REFUSALS:
        raise OSError(_reason(status, body))
    held = body["state"]["reasons"] if status == 200 else {}
    lost = body.get("lostLogs") if status == 200 else None
    reasons = tuple(f"{name}: {text}".rstrip(": ") for name, text in held.items())
    opened = tuple(body.get("openToOthers", ())) if status == 200 else ()
    return reasons, lost_logs_text(lost) if lost and lost["logs"] else "", opened, skew_s


def _open_folders(metadata_url: str) -> tuple[str, ...]:
    """The folders of a standalone on this machine in which every user of it may read; none if it is elsewhere."""
    scheme, _, place = metadata_url.partition(":")
    if scheme != "rocksdb":
        return ()
    files = OsFiles()
    metadata = Path(place)
    open_folders = []
    for folder in (metadata, *sorted(metadata.absolute().parent.glob("bookie-*/*/current"))):
        with contextlib.suppress(OSError):
            if files.lets_others_in(str(folder)):
                open_folders.append(str(folder))
    return tuple(open_folders)


def _open_secrets(access: Access, tls_directory: str | None) -> tuple[str, ...]:
    """The keys and tokens that this command is given, and those beside them, that others than their owner and group
    may read."""
    named = [access.token.removeprefix("file:") if access.token.startswith("file:") else "", access.key]
    named += [f"{tls_directory}/tls.key"] if tls_directory else []
    folders = {Path(path).absolute().parent for path in named if path}
    beside = [path for folder in folders for pattern in ("*.key", "*.token") for path in folder.glob(pattern)]
    return tuple(open_to_others([*filter(None, named), *map(str, beside)]))


def _https_urls(admin_url: str) -> dict[str, str]:
    """Host → where the broker of the cluster on that host speaks HTTPS; hosts with several brokers are left out.
    Apache's brokers do not tell."""
    try:
        listed = _admin(admin_url).call("GET", BROKERS_PATH)
    except AdminError:
        return {}
    urls = [url for url in listed if url.startswith("https:")]
    hosts = [host_of(url) for url in urls]
    return {host: url for host, url in zip(hosts, urls, strict=True) if hosts.count(host) == 1}


def _broker(broker_id: str, admin_url: str, over_tls: Mapping[str, str], clock: Clock) -> BrokerFacts:
    """What the broker at *admin_url* lists as *broker_id* says of itself. *over_tls*: host → URL of HTTPS.

    A broker's id is that of its plain port if it has one, else that of its port with TLS. Credentials go there in clear
    text if the user named a broker of the cluster so; else over TLS only.
    """
    is_in_clear = admin_url.startswith("http:")
    url = f"http://{broker_id}" if is_in_clear else over_tls.get(host_of(broker_id), f"https://{broker_id}")
    try:
        try:
            _, _, skew_s = _get(f"{url}/admin/v2/brokers/ready", clock, is_in_clear=is_in_clear)
        except OSError:
            if is_in_clear:
                raise
            url = f"http://{broker_id}"
            _, _, skew_s = _get(f"{url}/admin/v2/brokers/ready", clock)
    except OSError as error:
        return BrokerFacts(broker_id, url, error=str(error))
    facts = replace(
        BrokerFacts(broker_id, url, skew_s=skew_s),
        bundles=_bundles(url, broker_id, clock, is_in_clear=is_in_clear),
        certificate_left_s=_certificate_left_s(over_tls.get(host_of(broker_id), url), clock),
        open_keys=_open_keys(url, clock, is_in_clear=is_in_clear),
    )
    try:
        status, said, _ = _get(f"{url}/admin/v2/brokers/health", clock, HEALTH_TIMEOUT_S, is_in_clear=is_in_clear)
    except OSError as error:
        return replace(facts, health=str(error))
    if status < 300:
        return facts
    reason = _reason(status, said)
    if status not in REFUSALS:
        return replace(facts, health=reason)
    if CURRENT.get().headers() and not is_in_clear and url.startswith("http:"):
        reason += f"; the credentials are for {admin_url}, and were not sent to {url} in clear text"
    return replace(facts, refusal=reason)


def _bundles(url: str, broker_id: str, clock: Clock, *, is_in_clear: bool) -> int | None:
    """How many bundles a broker owns; None if it does not tell."""
    with contextlib.suppress(OSError):
        status, clusters, _ = _get(f"{url}/admin/v2/clusters", clock, is_in_clear=is_in_clear)
        if status < 300 and isinstance(clusters, list) and clusters:
            path = f"/admin/v2/brokers/{quote(str(clusters[0]))}/{quote(broker_id)}/ownedNamespaces"
            status, owned, _ = _get(url + path, clock, is_in_clear=is_in_clear)
            if status < 300 and isinstance(owned, dict):
                return len(owned)
    return None


def _open_keys(url: str, clock: Clock, *, is_in_clear: bool) -> tuple[str, ...]:
    """The files with keys of a broker of ours that every user of its machine may read; none if it does not tell."""
    with contextlib.suppress(OSError):
        status, served, _ = _get(f"{url}{PREFIX}served", clock, is_in_clear=is_in_clear)
        if status < 300 and isinstance(served, dict):
            return tuple(map(str, served.get("open_keys") or ()))
    return ()


def _certificate_left_s(url: str, clock: Clock) -> float | None:
    """How long the certificate at *url* is valid still; None without TLS, or if it cannot be read."""
    place = urlsplit(url)
    if place.scheme != "https" or not place.hostname:
        return None
    with contextlib.suppress(OSError, ValueError):
        pem = ssl.get_server_certificate((place.hostname, place.port or 443), timeout=TIMEOUT_S)
        ends_s = load_pem_x509_certificate(pem.encode()).not_valid_after_utc.timestamp()
        return ends_s - clock.wall_ms() / 1000
    return None


def _ensemble_size(admin_url: str) -> int:
    settings = _admin(admin_url).call("GET", _RUNTIME)
    return int(settings.get("managedLedgerDefaultEnsembleSize") or 0)


def _refused(brokers: Iterable[BrokerFacts]) -> list[Unasked]:
    """What a broker of ours would refuse of the settings of each. Raises AdminError."""
    refused = []
    for broker in brokers:
        if not broker.error:
            try:
                load_broker_config(_as_in_a_file(_admin(broker.url).call("GET", _RUNTIME)))
            except ConfigurationError as error:
                refused += [Unasked(broker.broker_id, problem) for problem in str(error).splitlines()]
    return refused


def _as_in_a_file(settings: Mapping[str, str]) -> dict[str, str]:
    """Apache's brokers show settings as Java writes them: `Optional[8080]`, `[a, b]`."""
    return {name: _AS_JAVA.sub(lambda match: (match[1] or "").replace(", ", ","), value)
            for name, value in settings.items()}  # fmt: skip


def _all_namespaces(admin_url: str) -> tuple[str, ...]:
    admin = _admin(admin_url)
    tenants = admin.call("GET", "/admin/v2/tenants")
    return tuple(name for tenant in tenants for name in admin.call("GET", f"/admin/v2/namespaces/{quote(tenant)}"))


def _subscriptions(admin_url: str, topic: str) -> tuple[list[SubscriptionFacts], QuotaFacts]:
    admin = _admin(admin_url)
    stats = admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/stats")
    subscriptions = []
    for name, facts in stats["subscriptions"].items():
        if name == COMPACTION_CURSOR:
            continue  # what it has before it waits for the next compaction, not for a consumer
        consumers = facts["consumers"]
        is_blocked = facts["blockedSubscriptionOnUnackedMsgs"] or (
            consumers and all(consumer["blockedConsumerOnUnackedMsgs"] for consumer in consumers)
        )
        subscriptions.append(
            SubscriptionFacts(
                topic,
                name,
                facts["type"],
                facts["msgBacklog"],
                facts["unackedMessages"],
                len(consumers),
                sum(consumer["availablePermits"] for consumer in consumers),
                bool(is_blocked),
                sum(consumer["blockedConsumerOnUnackedMsgs"] for consumer in consumers),
                facts.get("backlogSize", 0),
            )
        )
    return subscriptions, QuotaFacts(topic, stats.get("backlogSize", 0), stats.get("backlogQuotaLimitSize", 0))
