"""What is wrong with a cluster, and what to do: findings from facts. No IO.

Rules:

1. An ERROR is something that loses service or copies now, or will as soon as one more thing fails; a WARNING is
   something to look at; INFO is said once and needs nothing.
2. What could not be asked is a finding of its own, never "fine".
3. Each finding names the thing, and one way out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

# A clock that is off by more than this: publish times, retention and sessions of other machines look odd.
SKEW_WARN_S: Final = 5.0

# Answers of the metadata store: above it sessions of a few seconds are in danger.
SLOW_METADATA_S: Final = 0.5

DISK_WARN: Final = 0.85
DISK_ERROR: Final = 0.95

# A backlog below it is no reason to worry about a subscription that nobody reads.
BACKLOG_WARN: Final = 100_000


class Level(IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that somebody should know."""

    level: Level
    where: str
    text: str
    way_out: str = ""


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """*total_bytes* 0: it did not tell. *error*: why it could not be asked."""

    bookie_id: str
    state: str
    total_bytes: int = 0
    free_bytes: int = 0
    reasons: tuple[str, ...] = ()
    error: str = ""
    skew_s: float | None = None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """*error*: why it could not be asked; *health*: what went wrong when it wrote and read a message."""

    broker_id: str
    url: str
    error: str = ""
    health: str = ""
    skew_s: float | None = None


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


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Everything that could be found out. *…_error* tells why a part could not."""

    metadata_url: str
    metadata_error: str = ""
    metadata_s: float = 0.0
    bookies: tuple[BookieFacts, ...] = ()
    ensemble_size: int = 0
    """What brokers make new ledgers with; 0: not known."""
    brokers_error: str = ""
    brokers: tuple[BrokerFacts, ...] = ()
    under_replicated: tuple[int, ...] = ()
    replication_disabled: bool = False
    auditor: str = ""
    lost_copies: dict[str, int] = field(default_factory=dict)
    """Bookie that is away → ledgers with copies on it."""
    unguarded: int = 0
    """Ledgers of which every bookie of some ensemble is away."""
    ledgers: int = 0
    ledgers_looked_at: int = 0
    subscriptions_error: str = ""
    subscriptions: tuple[SubscriptionFacts, ...] = ()


def examine(facts: ClusterFacts) -> list[Finding]:
    """The findings, worst first."""
    found = [*_metadata(facts)]
    if not facts.metadata_error:
        found += [*_bookies(facts), *_copies(facts), *_brokers(facts), *_subscriptions(facts)]
    return sorted(found, key=lambda one: -one.level)


def _metadata(facts: ClusterFacts) -> Iterator[Finding]:
    where = facts.metadata_url
    if facts.metadata_error:
        yield Finding(
            Level.ERROR, where, f"the metadata store cannot be used: {facts.metadata_error}",
            "start ZooKeeper, or name the right one with --metadata; without it nothing else can be looked at",
        )  # fmt: skip
    elif facts.metadata_s > SLOW_METADATA_S:
        yield Finding(
            Level.WARNING, where, f"the metadata store took {facts.metadata_s:.1f} s for one answer",
            "look at the disk and the load of ZooKeeper; short sessions expire when it is slow",
        )  # fmt: skip


def _skew(where: str, skew_s: float | None) -> Iterator[Finding]:
    if skew_s is not None and abs(skew_s) > SKEW_WARN_S:
        side = "ahead of" if skew_s > 0 else "behind"
        yield Finding(
            Level.WARNING, where, f"its clock is {abs(skew_s):.0f} s {side} this machine's",
            "let both follow one time server (chrony, ntpd)",
        )  # fmt: skip


def _bookies(facts: ClusterFacts) -> Iterator[Finding]:
    writable = [one for one in facts.bookies if one.state == "writable" and not one.error]
    if not facts.bookies:
        yield Finding(Level.ERROR, "bookies", "there is no bookie, and never was one", "start bookies")
    elif len(writable) < max(facts.ensemble_size, 1):
        yield Finding(
            Level.ERROR, "bookies",
            f"{len(writable)} of {len(facts.bookies)} take new entries, and a new ledger needs "
            f"{max(facts.ensemble_size, 1)}: topics cannot be written to once their ledger ends",
            "start the ones that are away, or make room on those that are read-only",
        )  # fmt: skip
    elif facts.ensemble_size and len(writable) == facts.ensemble_size:
        yield Finding(
            Level.WARNING, "bookies",
            f"{len(writable)} bookies take new entries, as many as a ledger needs: none may fail",
            "start one more",
        )  # fmt: skip
    for one in facts.bookies:
        where = f"bookie {one.bookie_id}"
        if one.state == "away":
            continue  # told with its copies
        if one.error:
            yield Finding(
                Level.ERROR, where, f"it is registered and does not answer: {one.error}",
                "look whether the process hangs, and at the network between here and there",
            )  # fmt: skip
        if one.state == "read-only":
            because = f" ({'; '.join(one.reasons)})" if one.reasons else ""
            yield Finding(
                Level.WARNING, where, f"it is read-only{because}",
                "`magnetar bookie status` there tells why; a full disk: `magnetar bookie gc run`, less retention",
            )  # fmt: skip
        if one.total_bytes:
            used = 1 - one.free_bytes / one.total_bytes
            if used > DISK_WARN:
                level = Level.ERROR if used > DISK_ERROR else Level.WARNING
                yield Finding(
                    level, where, f"its disks are {used * 100:.0f} % full",
                    "shorten retention, collect garbage (`magnetar bookie gc run`), or add bookies",
                )  # fmt: skip
        yield from _skew(where, one.skew_s)


def _copies(facts: ClusterFacts) -> Iterator[Finding]:
    for bookie_id, count in sorted(facts.lost_copies.items()):
        yield Finding(
            Level.WARNING, f"bookie {bookie_id}", f"it is away, and {count} ledgers have copies on it",
            "start it again; if it is gone for good, start one with its name and dataIntegrityChecking=true",
        )  # fmt: skip
    if facts.unguarded:
        yield Finding(
            Level.ERROR, "copies",
            f"of {facts.unguarded} ledgers every bookie of some entries is away: they cannot be read",
            "start one of these bookies again before anything else",
        )  # fmt: skip
    if facts.under_replicated:
        shown = ", ".join(map(str, facts.under_replicated[:5])) + (", …" if len(facts.under_replicated) > 5 else "")
        yield Finding(
            Level.WARNING, "copies",
            f"{len(facts.under_replicated)} ledgers are marked as under-replicated ({shown})"
            + ("; nobody copies them" if not facts.auditor else ""),
            "start the bookies that are away; copying ledgers to others (auto-recovery) is not part of Magnetar yet",
        )  # fmt: skip
    if facts.replication_disabled:
        yield Finding(
            Level.WARNING, "auto-recovery", "an operator has switched re-replication off",
            "switch it on again when the maintenance is over, with the tool that switched it off",
        )  # fmt: skip
    if facts.ledgers_looked_at < facts.ledgers:
        yield Finding(
            Level.INFO, "copies", f"{facts.ledgers_looked_at} of {facts.ledgers} ledgers were looked at (--ledgers)"
        )


def _brokers(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.brokers_error:
        yield Finding(Level.ERROR, "brokers", facts.brokers_error, "start a broker, or name one with --admin-url")
    elif not facts.brokers:
        yield Finding(Level.ERROR, "brokers", "no broker is registered: topics are not served", "start a broker")
    for one in facts.brokers:
        where = f"broker {one.broker_id}"
        if one.error:
            yield Finding(
                Level.ERROR, where, f"it is registered and does not answer at {one.url or 'any address'}: {one.error}",
                "look whether the process hangs; its topics move when its session ends",
            )  # fmt: skip
        elif one.health:
            yield Finding(
                Level.ERROR, where, f"it cannot write a message and read it back: {one.health}",
                "look at its log, and at what is said about bookies here",
            )  # fmt: skip
        yield from _skew(where, one.skew_s)


def _subscriptions(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.subscriptions_error:
        yield Finding(Level.WARNING, "subscriptions", f"they were not looked at: {facts.subscriptions_error}")
    for one in facts.subscriptions:
        where = f"subscription {one.name} of {one.topic}"
        if one.backlog <= 0:
            continue
        if one.consumers and one.is_blocked:
            yield Finding(
                Level.ERROR, where,
                f"stuck: {one.unacknowledged} messages are delivered and not acknowledged, so the broker delivers no "
                f"more ({one.backlog} wait)",
                "let the consumers acknowledge, nack or restart; look for messages that they swallow",
            )  # fmt: skip
        elif one.consumers and one.permits <= 0:
            yield Finding(
                Level.WARNING, where,
                f"{one.backlog} messages wait, and none of its {one.consumers} consumers asks for more",
                "the program does not call receive(), or its queue is full: look what it is waiting for",
            )  # fmt: skip
        elif not one.consumers and one.backlog >= BACKLOG_WARN:
            yield Finding(
                Level.WARNING, where, f"{one.backlog} messages are kept for it, and nobody consumes",
                "start its consumers, or delete it: `magnetar subscriptions delete TOPIC NAME`",
            )  # fmt: skip


def exit_code(findings: Sequence[Finding]) -> int:
    """0 for nothing above INFO, 1 for warnings, 2 for errors."""
    return max((int(one.level) for one in findings), default=0)
