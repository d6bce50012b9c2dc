"""Finds what is wrong with a cluster, and what to do about it, from facts. No IO.

Rules:

1. An ERROR is something that loses service or copies now, or will as soon as one more thing fails; a WARNING is
   something to look at; INFO is said once and needs no action.
2. What could not be asked is a finding of its own, never "fine".
3. Each finding names the thing, and one way out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from autorecovery.repair.outcome import Hindrance
from broker.admin.page.signs import balance_sign, certificate_sign, keys_sign, quota_sign, unread_sign
from magnetar.inspect.contents import Contents, contents_findings
from magnetar.inspect.findings import Finding, Level, Unasked, counted, listed
from magnetar_core.bookkeeper.client.placing.topology import Topology

# A clock that is wrong by more than this makes publish times, retention and sessions of other machines look odd.
SKEW_WARN_S: Final = 5.0

# An answer of the metadata store that takes longer: sessions of a few seconds are in danger then.
SLOW_METADATA_S: Final = 0.5

DISK_WARN: Final = 0.85
DISK_ERROR: Final = 0.95

# A backlog below it is not a reason to worry about a subscription that nobody reads.
BACKLOG_WARN: Final = 100_000

_LOSSES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """*total_bytes* 0: it did not report its disks. *error*: why it could not be asked."""

    bookie_id: str
    state: str
    """writable, read-only, or away"""
    total_bytes: int = 0
    free_bytes: int = 0
    reasons: tuple[str, ...] = ()
    error: str = ""
    skew_s: float | None = None
    listens: bool = False
    """The bookie is away, but something takes connections at its address."""
    lost_logs: str = ""
    """What it reports about entry logs that are missing or bad; empty if there are none, or it did not say."""
    open_to_others: tuple[str, ...] = ()
    """Its directories in which every user of its machine may read."""


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What is recorded about a ledger. *last_entry_id* None: it is not closed."""

    ledger_id: int
    write_quorum: int
    segments: tuple[tuple[int, tuple[str, ...]], ...]
    """(first entry, ensemble), rising"""
    last_entry_id: int | None = None


class LossFacts(NamedTuple):
    """A report of lost entries that nobody has looked at."""

    ledger_id: int
    text: str


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """*error*: why it could not be asked; *health*: what went wrong when it wrote and read a message; *refusal*: why it
    did not tell this caller whether it can."""

    broker_id: str
    url: str
    error: str = ""
    health: str = ""
    refusal: str = ""
    skew_s: float | None = None
    bundles: int | None = None
    """Bundles that it owns; None: not known."""
    certificate_left_s: float | None = None
    """How long its certificate is still valid; None: it has none, or it is not known."""
    open_keys: tuple[str, ...] = ()
    """Files with its keys that other users of its machine may read."""


class QuotaFacts(NamedTuple):
    """A topic with a limit for its backlog."""

    topic: str
    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class SubscriptionFacts:
    topic: str
    name: str
    type: str
    backlog: int
    unacknowledged: int
    consumers: int
    permits: int
    """Messages that its consumers have asked for and not been given yet, in all."""
    is_blocked: bool
    """The broker delivers nothing more until something is acknowledged."""
    blocked_consumers: int = 0
    """Consumers that get nothing more until they acknowledge something."""
    backlog_bytes: int = 0
    """Estimated."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Everything that is known of the cluster. *…_error* says why a whole part could not be asked."""

    metadata_url: str
    is_guessed: bool = False
    """Nobody named the metadata store, and no broker told it."""
    metadata_error: str = ""
    metadata_s: float = 0.0
    """The quickest of several answers."""
    silent_hosts: tuple[Unasked, ...] = ()
    """Metadata servers that take no connection."""
    open_to_others: tuple[str, ...] = ()
    """Folders of a standalone on this machine in which every user may read."""
    open_secrets: tuple[str, ...] = ()
    """Files with keys and tokens on this machine that other users of it may read."""
    bookies: tuple[BookieFacts, ...] | None = None
    """None: they are not known."""
    ensemble_size: int = 0
    """Bookies that brokers give to each new ledger; 0: not known."""
    brokers_error: str = ""
    brokers_status: int | None = None
    """With an error: the HTTP status that a broker answered; 0: TLS with it failed; None: none answered."""
    brokers: tuple[BrokerFacts, ...] = ()
    silent_admins: tuple[Unasked, ...] = ()
    """Addresses of brokers that were named and do not answer."""
    under_replicated: tuple[int, ...] = ()
    replication_disabled: bool = False
    auditor: str | None = None
    """The auditor of auto-recovery; empty: there is none; None: not known."""
    hindered: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Ledgers that auto-recovery cannot repair → (kind, why)."""
    failed_drains: Mapping[str, int] = field(default_factory=dict)
    """Bookies whose drain failed → how many ledgers could not be moved."""
    doubted: Mapping[str, int] = field(default_factory=dict)
    """Bookies that know that the metadata went back in time → their ledgers that are newer."""
    open_reports: int = 0
    """Reports of damage that nobody has looked at."""
    losses: tuple[LossFacts, ...] = ()
    """The reports among them that say that entries are lost."""
    ledgers: tuple[LedgerFacts, ...] = ()
    """The ledgers that were looked at."""
    topology: Topology | None = None
    """Where the bookies stand; None: it is not known."""
    rack_problems: tuple[str, ...] = ()
    """Parts of the node `/bookies` that cannot be understood."""
    unreadable: tuple[Unasked, ...] = ()
    """Ledgers whose records cannot be decoded."""
    ledgers_left: int = 0
    """Older ledgers that were not looked at."""
    topics_left: int = 0
    subscriptions: tuple[SubscriptionFacts, ...] = ()
    quotas: tuple[QuotaFacts, ...] = ()
    contents: tuple[Contents, ...] = ()
    """What namespaces hold that only Apache's brokers serve."""
    has_coordinator: bool = False
    """Logs of a transaction coordinator are there."""
    contents_left: int = 0
    """Topics of which it was not looked at what they hold."""
    refused_settings: tuple[Unasked, ...] = ()
    """Brokers that run, and what ours would refuse of their settings."""
    unasked: tuple[Unasked, ...] = ()


def examine(facts: ClusterFacts, *, backlog_warn: int = BACKLOG_WARN) -> list[Finding]:
    """The findings, worst first."""
    if facts.is_guessed and facts.metadata_error and facts.brokers_error:
        if facts.brokers_status is None:
            return [_nothing_runs(facts)]
        if facts.brokers_status in _WAYS_IN:  # it knows where the metadata are, and does not tell
            return [*_brokers(facts), *_open_secrets(facts.open_secrets)]
    if _is_stopped_standalone(facts):
        return sorted([_standalone_is_stopped(facts), *_open_to_others(facts.metadata_url, facts.open_to_others)],
                      key=lambda finding: -finding.level)  # fmt: skip
    findings = [
        *_metadata(facts), *_bookies(facts), *_copies(facts), *_brokers(facts), *_subscriptions(facts, backlog_warn),
        *_open_secrets(facts.open_secrets), *_contents(facts),
        *_unasked(facts),
    ]  # fmt: skip
    return sorted(findings, key=lambda finding: -finding.level)


_WHO: Final = "say who you are before the verb: --profile, --token or --user (docs/access.md)"
_WAYS_IN: Final = {
    0: "say before the verb whose certificates count: --tls-trust, or a --profile that does (docs/access.md)",
    401: _WHO,
    403: _WHO,
}
"""`brokers_status` of a broker that is well and lets nobody in → what to do."""

_STANDALONE: Final = "rocksdb:"
"""The metadata of a standalone are in a folder."""


def _nothing_runs(facts: ClusterFacts) -> Finding:
    return Finding(
        Level.ERROR, "servers",
        f"nothing answers, neither a broker nor a ZooKeeper where one might be: {facts.brokers_error}; "
        f"{facts.metadata_url}: {facts.metadata_error}",
        "start what is stopped: `magnetar standalone --data FOLDER`, or ZooKeeper, bookies and brokers; or say where "
        "they are, with --admin-url and --metadata (rocksdb:FOLDER/metadata for a standalone that is stopped)",
    )  # fmt: skip


def _is_stopped_standalone(facts: ClusterFacts) -> bool:
    away = all(bookie.state == "away" for bookie in facts.bookies or ())
    return (
        facts.metadata_url.startswith(_STANDALONE) and not facts.metadata_error and bool(facts.brokers_error) and away
    )


def _standalone_is_stopped(facts: ClusterFacts) -> Finding:
    folder = facts.metadata_url.removeprefix(_STANDALONE).rstrip("/").removesuffix("/metadata")
    return Finding(
        Level.ERROR, f"standalone in {folder}", f"it does not run: {facts.brokers_error}",
        f"start it again: `magnetar standalone --data {folder}`; if it runs, name its HTTP address with --admin-url",
    )  # fmt: skip


def _metadata(facts: ClusterFacts) -> Iterator[Finding]:
    where = facts.metadata_url
    if facts.metadata_error:
        yield Finding(
            Level.ERROR, where, f"the metadata store cannot be used: {facts.metadata_error}",
            ("name the folder `metadata` of a standalone's data with --metadata" if where.startswith(_STANDALONE) else
             "start ZooKeeper, or name the right one with --metadata")
            + "; without it bookies and ledgers are not looked at",
        )  # fmt: skip
        return
    yield from _open_to_others(where, facts.open_to_others)
    for host, why in facts.silent_hosts:
        yield Finding(
            Level.WARNING, where, f"its server {host} does not answer: {why}",
            "start it again: the others must be a majority, and one more that fails may end that",
        )  # fmt: skip
    if facts.doubted:
        newer = ", ".join(
            f"{counted(count, 'ledger', 'ledgers')} of {bookie}" for bookie, count in facts.doubted.items()
        )
        yield Finding(
            Level.ERROR, where,
            f"the metadata is older than the ledgers: {newer} have no record. Bookies keep them and give no "
            "number twice, but what is in them is not read, and topics and cursors are where they were then",
            "stop the brokers and put back the newest metadata there is; if there is none, `magnetar ledgers strays` "
            "lists these ledgers and `magnetar ledgers restore` saves them (docs/production.md); a standalone whose "
            "folder was put back in part: --forget-doubt",
        )  # fmt: skip
    if facts.metadata_s > SLOW_METADATA_S:
        yield Finding(
            Level.WARNING, where, f"the metadata store took {facts.metadata_s:.1f} s for one answer",
            "look at the disk and the load of ZooKeeper, and at the network; short sessions expire when it is slow",
        )  # fmt: skip


def _open_to_others(where: str, folders: Sequence[str]) -> Iterator[Finding]:
    if folders:
        yield Finding(
            Level.WARNING, where, f"every user of its machine may read what is stored: {listed(folders)}",
            "`chmod 750` there (or 700); folders that are made anew have that",
        )  # fmt: skip


_CLOSE_KEYS: Final = "`chmod 600` on them; whoever has read them has what they allow: make new ones (docs/access.md)"


def _open_secrets(files: Sequence[str]) -> Iterator[Finding]:
    if files:
        yield Finding(
            Level.WARNING, "keys and tokens", f"other users of this machine may read them: {listed(files)}", _CLOSE_KEYS
        )  # fmt: skip


def _skew_findings(where: str, skew_s: float | None) -> Iterator[Finding]:
    if skew_s is not None and abs(skew_s) > SKEW_WARN_S:
        side = "ahead of" if skew_s > 0 else "behind"
        yield Finding(
            Level.WARNING, where, f"its clock is {abs(skew_s):.0f} s {side} this machine's",
            "let both follow one time server (chrony, ntpd)",
        )  # fmt: skip


def _bookies(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.bookies is None:
        return
    writable = [bookie for bookie in facts.bookies if bookie.state == "writable" and not bookie.error]
    if not facts.bookies:
        yield Finding(Level.ERROR, "bookies", "there is no bookie, and never was one", "start bookies")
    elif len(writable) < max(facts.ensemble_size, 1):
        yield Finding(
            Level.ERROR, "bookies",
            f"{len(writable)} of {len(facts.bookies)} take new entries, and a new ledger needs "
            f"{max(facts.ensemble_size, 1)}: topics cannot be written to once their ledger ends",
            "start the ones that are away, or make room on those that are read-only",
        )  # fmt: skip
    elif facts.ensemble_size == len(writable) == 1 and facts.metadata_url.startswith(_STANDALONE):
        yield Finding(
            Level.INFO, "bookies", "a standalone has one copy of each message: what its disk loses is lost",
            "`magnetar backup`, and the way to a cluster: docs/backup.md",
        )  # fmt: skip
    elif facts.ensemble_size and len(writable) == facts.ensemble_size:
        yield Finding(
            Level.WARNING, "bookies",
            f"as many take new entries as a ledger needs ({len(writable)}): none may fail",
            "start one more",
        )  # fmt: skip
    for bookie in facts.bookies:
        where = f"bookie {bookie.bookie_id}"
        if bookie.error:
            yield Finding(
                Level.ERROR, where, f"it is registered and does not answer: {bookie.error}",
                "look whether the process hangs, and at the network between here and there",
            )  # fmt: skip
        if bookie.state == "read-only":
            because = f" ({'; '.join(bookie.reasons)})" if bookie.reasons else ""
            yield Finding(
                Level.WARNING, where, f"it is read-only{because}",
                "`magnetar bookie readonly` there tells what ends it; a full disk: `magnetar bookie gc run`, less "
                "retention",
            )  # fmt: skip
        if bookie.lost_logs:
            yield Finding(
                Level.ERROR, where, bookie.lost_logs,
                "put the files back if there is a copy, and run `magnetar bookie rebuild-index`; if they are gone for "
                "good, that ends this finding, too",
            )  # fmt: skip
        yield from _open_to_others(where, bookie.open_to_others)
        if bookie.total_bytes:
            used = 1 - bookie.free_bytes / bookie.total_bytes
            if used > DISK_WARN:
                level = Level.ERROR if used > DISK_ERROR else Level.WARNING
                yield Finding(
                    level, where, f"its disks are {used * 100:.0f} % full",
                    "shorten retention, collect garbage (`magnetar bookie gc run`), or add bookies",
                )  # fmt: skip
        yield from _skew_findings(where, bookie.skew_s)


# ----------------------------------------------------------------------------------------- copies


def _copies(facts: ClusterFacts) -> Iterator[Finding]:
    yield from _lost_copies(facts)
    yield from _placement(facts)
    for what, why in facts.unreadable:
        yield Finding(
            Level.ERROR, what, f"its record makes no sense: {why}",
            "keep the node as it is and restore it from a snapshot of ZooKeeper; until then it cannot be read",
        )  # fmt: skip
    if facts.under_replicated:
        yield Finding(
            Level.WARNING, "copies",
            f"{counted(len(facts.under_replicated), 'ledger is', 'ledgers are')} marked as under-replicated "
            f"({listed(facts.under_replicated)})" + ("" if facts.auditor else "; nobody copies them"),
            "see `magnetar autorecovery list` for what is copied and what cannot be"
            if facts.auditor
            else "start the bookies that are away, or run auto-recovery, which copies their ledgers: "
            "`magnetar autorecovery`, or autoRecoveryDaemonEnabled=true at a bookie",
        )  # fmt: skip
    for ledger_id, (kind, why) in facts.hindered.items():
        if kind == Hindrance.LOST:
            yield Finding(
                Level.ERROR, f"ledger {ledger_id}", why, "bring back a bookie that has them; its record still names it"
            )
    waiting = sorted(ledger_id for ledger_id, (kind, _) in facts.hindered.items() if kind != Hindrance.LOST)
    if waiting:
        yield Finding(
            Level.WARNING, "copies",
            f"{counted(len(waiting), 'ledger', 'ledgers')} could not be repaired yet ({listed(waiting)}), "
            "for example: "
            f"{facts.hindered[waiting[0]][1]}",
            "`magnetar autorecovery list` has the reason for each; they are tried again",
        )  # fmt: skip
    for bookie, count in facts.failed_drains.items():
        yield Finding(
            Level.ERROR, f"bookie {bookie}",
            f"its drain failed: {counted(count, 'ledger', 'ledgers')} could not be moved",
            f"mend what `magnetar bookies status {bookie}` names, then drain it again",
        )  # fmt: skip
    if facts.losses:
        examples = "; ".join(f"ledger {loss.ledger_id}: {loss.text}" for loss in facts.losses[:_LOSSES_MAX])
        more = len(facts.losses) - _LOSSES_MAX
        yield Finding(
            Level.ERROR, "lost entries",
            f"{counted(len(facts.losses), 'report says', 'reports say')} that entries are lost: {examples}"
            + (f"; and {more} more" if more > 0 else ""),
            "see `magnetar autorecovery reports list --state open`, and call mended what is known",
        )  # fmt: skip
    others = facts.open_reports - len(facts.losses)
    if others:
        yield Finding(
            Level.WARNING, "reports",
            f"{counted(others, 'report', 'reports')} of bad ledgers or lost entries, and nobody has looked at it",
            "see `magnetar autorecovery reports list --state open`",
        )  # fmt: skip
    if facts.auditor == "" and len(facts.bookies or ()) > 1 and not facts.under_replicated:
        yield Finding(
            Level.WARNING, "auto-recovery",
            "no node of it runs: when a bookie is lost, nobody copies its ledgers",
            "run `magnetar autorecovery`, or set autoRecoveryDaemonEnabled=true at a bookie",
        )  # fmt: skip
    if facts.replication_disabled:
        yield Finding(
            Level.WARNING, "auto-recovery", "an operator has switched re-replication off",
            "switch it on again when the maintenance is over: `magnetar autorecovery enable`",
        )  # fmt: skip
    if facts.ledgers_left:
        yield Finding(
            Level.INFO, "copies",
            f"{counted(facts.ledgers_left, 'older ledger was', 'older ledgers were')} not looked at "
            "(--ledgers, --time-limit)",
        )  # fmt: skip


def _lost_copies(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.bookies is None:
        return
    there = {bookie.bookie_id for bookie in facts.bookies if bookie.state != "away"}
    by_bookie: dict[str, int] = {bookie.bookie_id: 0 for bookie in facts.bookies if bookie.state == "away"}
    unguarded = []
    for ledger in facts.ledgers:
        holders = _holders(ledger)
        for gone in frozenset().union(*holders) - there:
            by_bookie[gone] = by_bookie.get(gone, 0) + 1
        if any(not (holder & there) for holder in holders):
            unguarded.append(ledger.ledger_id)
    listening = {bookie.bookie_id for bookie in facts.bookies if bookie.listens}
    for bookie_id, count in sorted(by_bookie.items()):
        copies = counted(count, "ledger has", "ledgers have") + " copies on it"
        level = Level.WARNING if count else Level.INFO
        if bookie_id in listening:
            yield Finding(
                Level.WARNING, f"bookie {bookie_id}",
                f"its session with the metadata store has ended, and something still listens at its address; {copies}",
                "look whether the process hangs, and whether it reaches ZooKeeper; it registers again when it does",
            )  # fmt: skip
            continue
        yield Finding(
            level, f"bookie {bookie_id}", f"it is away, and {copies}",
            "start it again; if it is gone for good, start one with its name and dataIntegrityChecking=true",
        )  # fmt: skip
    if unguarded:
        yield Finding(
            Level.ERROR, "copies",
            f"of {counted(len(unguarded), 'ledger', 'ledgers')} ({listed(unguarded)}) every bookie of some entries "
            "is away: they cannot be read",
            "start one of these bookies again before anything else",
        )  # fmt: skip


def _placement(facts: ClusterFacts) -> Iterator[Finding]:
    for problem in facts.rack_problems:
        yield Finding(
            Level.WARNING, "racks", problem,
            "write it anew: `pulsar-admin bookies set-bookie-rack`; until then what is wrong there does not count",
        )  # fmt: skip
    if facts.topology is None or facts.bookies is None:
        return
    there = [bookie.bookie_id for bookie in facts.bookies if bookie.state != "away"]
    hosts = facts.topology.hosts(there)
    if len(there) > 1 and len(hosts) == 1 and len(facts.topology.racks(there)) == 1:
        yield Finding(
            Level.INFO, "bookies",
            f"all {len(there)} are on one host ({', '.join(hosts)}): copies of an entry are lost with it together",
        )  # fmt: skip
        return
    misplaced = {}
    for ledger in facts.ledgers:
        for _, ensemble in ledger.segments:
            violations = facts.topology.violations(ensemble, ledger.write_quorum, there)
            if violations:
                misplaced[ledger.ledger_id] = violations[0].text
                break
    if misplaced:
        first, text = next(iter(misplaced.items()))
        yield Finding(
            Level.WARNING, "copies",
            f"of {counted(len(misplaced), 'ledger', 'ledgers')} ({listed(tuple(misplaced))}) copies are in too few "
            f"racks or on too few hosts, for example of ledger {first}: {text}",
            "have auto-recovery move them (auditorPeriodicPlacementPolicyCheckInterval, "
            "repairedPlacementPolicyNotAdheringBookieEnabled), or add bookies where there are few",
        )  # fmt: skip


def _holders(ledger: LedgerFacts) -> set[frozenset[str]]:
    """The different write sets of the ledger's entries. Those of a ledger that is open count as if they had entries."""
    write_sets: set[frozenset[str]] = set()
    ends: list[int | None] = [first - 1 for first, _ in ledger.segments[1:]]
    for (first, ensemble), end in zip(ledger.segments, [*ends, ledger.last_entry_id], strict=True):
        size = len(ensemble)
        # Entries are dealt out in turn, so as many as the ensemble is large show every write set.
        last = first + size - 1 if end is None else min(end, first + size - 1)
        for entry_id in range(first, last + 1):
            write_sets.add(frozenset(ensemble[(entry_id + at) % size] for at in range(ledger.write_quorum)))
    return write_sets


# ---------------------------------------------------------------------------------------- brokers


def _brokers(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.brokers_error:
        way_out = "start a broker, or name one with --admin-url"
        if facts.brokers_status is not None:
            way_out = _WAYS_IN.get(
                facts.brokers_status, "look at its log, and at what is said about other servers here"
            )
        yield Finding(Level.ERROR, "brokers", facts.brokers_error, way_out)
        return
    registered = {broker.url for broker in facts.brokers}
    for url, why in facts.silent_admins:
        if url not in registered:
            yield Finding(
                Level.WARNING, f"broker at {url}", f"it is named in --admin-url and does not answer: {why}",
                "start it, or look whether the process hangs: a broker that does loses its session",
            )  # fmt: skip
    if not facts.brokers:
        yield Finding(Level.ERROR, "brokers", "no broker is registered: topics are not served", "start a broker")
    for broker in facts.brokers:
        where = f"broker {broker.broker_id}"
        if broker.error:
            yield Finding(
                Level.ERROR, where, f"it is registered and does not answer at {broker.url}: {broker.error}",
                "look whether the process hangs; its topics move when its session ends",
            )  # fmt: skip
        elif broker.health:
            yield Finding(
                Level.ERROR, where, f"it cannot write a message and read it back: {broker.health}",
                "look at its log, and at what is said about bookies here",
            )  # fmt: skip
        elif broker.refusal:
            yield Finding(
                Level.WARNING, where, f"it does not say whether it can write a message and read it: {broker.refusal}",
                "show the credentials of a super user (--token, --user, --profile); they are sent in clear text only "
                "where --admin-url begins with http://",
            )  # fmt: skip
        if sign := certificate_sign(broker.certificate_left_s):
            has_ended = (broker.certificate_left_s or 0) <= 0
            yield Finding(
                Level.ERROR if has_ended else Level.WARNING, where, sign,
                "put a new certificate and key in place of the old ones; they are used without a restart",
            )  # fmt: skip
        if sign := keys_sign(broker.open_keys):
            yield Finding(Level.WARNING, where, sign, _CLOSE_KEYS)
        yield from _skew_findings(where, broker.skew_s)
    if sign := balance_sign(
        {broker.broker_id: broker.bundles for broker in facts.brokers if broker.bundles is not None}
    ):
        yield Finding(
            Level.WARNING, "brokers", sign,
            "look whether loadBalancerEnabled or loadBalancerSheddingEnabled is off; "
            "`magnetar topics move TOPIC BROKER` moves a topic with its bundle",
        )  # fmt: skip


def _subscriptions(facts: ClusterFacts, backlog_warn: int) -> Iterator[Finding]:
    if facts.topics_left:
        yield Finding(
            Level.INFO, "subscriptions",
            f"those of {counted(facts.topics_left, 'topic', 'topics')} were not looked at (--time-limit)",
        )  # fmt: skip
    for subscription in facts.subscriptions:
        unread = ""
        where = f"subscription {subscription.name} of {subscription.topic}"
        if subscription.backlog <= 0:
            continue
        if subscription.consumers and subscription.is_blocked:
            yield Finding(
                Level.ERROR, where,
                f"stuck: {subscription.unacknowledged} messages are delivered and not acknowledged, so the broker "
                f"delivers no more ({subscription.backlog} wait)",
                "let the consumers acknowledge, nack or restart; look for messages that they swallow",
            )  # fmt: skip
        elif subscription.blocked_consumers:
            yield Finding(
                Level.WARNING, where,
                f"{subscription.blocked_consumers} of its {subscription.consumers} consumers hold as many messages "
                "without an acknowledgement as they may, and get no more",
                "let them acknowledge, nack or restart; look for messages that they swallow",
            )  # fmt: skip
        elif subscription.consumers and subscription.permits <= 0:
            yield Finding(
                Level.WARNING, where,
                f"{subscription.backlog} entries wait, and none of its {subscription.consumers} consumers asks for "
                "more",
                "the program does not call receive(), or its queue is full: look what it is waiting for",
            )  # fmt: skip
        elif not subscription.consumers and (
            subscription.backlog >= backlog_warn
            or (unread := unread_sign(subscription.backlog, subscription.backlog_bytes, subscription.consumers))
        ):
            text = unread or f"{subscription.backlog} entries are kept for it, and nobody consumes"
            yield Finding(
                Level.WARNING, where, text,
                "start its consumers, or delete it: `magnetar subscriptions delete TOPIC NAME`",
            )  # fmt: skip

    for quota in facts.quotas:
        if sign := quota_sign(quota.used_bytes, quota.limit_bytes):
            yield Finding(
                Level.WARNING, f"topic {quota.topic}", sign,
                "let its consumers catch up, delete subscriptions that nobody needs, or raise the quota",
            )  # fmt: skip


def _unasked(facts: ClusterFacts) -> Iterator[Finding]:
    for what, why in facts.unasked:
        yield Finding(
            Level.WARNING, what, f"this could not be asked: {why}", "mend what else is said here, and ask again"
        )


def _contents(facts: ClusterFacts, left: Level = Level.INFO) -> Iterator[Finding]:
    """What only Apache's brokers serve. *left*: what it means that topics were not looked at."""
    yield from contents_findings(facts.contents, has_coordinator=facts.has_coordinator)
    if facts.contents_left:
        yield Finding(
            left, "topics",
            f"what {counted(facts.contents_left, 'topic holds', 'topics hold')} was not looked at (--time-limit)",
            "give it more time" if left is not Level.INFO else "",
        )  # fmt: skip


def examine_handover(facts: ClusterFacts) -> list[Finding]:
    """What would change for each namespace, and what brokers of ours would refuse, if they took over."""
    if facts.metadata_error:
        return list(_metadata(facts))
    findings = [*_contents(facts, Level.WARNING), *_unasked(facts)]
    silent = [(f"broker {broker.broker_id}", broker.error) for broker in facts.brokers if broker.error]
    silent += [("brokers", facts.brokers_error)] if facts.brokers_error else []
    for where, why in silent:
        text = f"whether its settings would be taken is not known: {why}"
        findings.append(Finding(Level.WARNING, where, text, "name the brokers that run with --admin-url"))
    for broker, problem in facts.refused_settings:
        findings.append(
            Finding(Level.WARNING, f"broker {broker}", f"its settings would be refused: {problem}",
                    "start ours without it, or with the value that it names")
        )  # fmt: skip
    return findings
