"""What the namespaces of a cluster hold that only Apache's brokers serve. No IO.

A broker of ours refuses it by name, or leaves it as it is (docs/compatibility.md); none of it is lost. The operator
hears of it here before a topic is asked for, and before brokers are replaced.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.inspect.findings import Finding, Level, counted, listed

_APACHE = "leave the namespace to an Apache broker"


class RemoteCursor(NamedTuple):
    """How far a topic has been replicated to another cluster."""

    topic: str
    cluster: str
    held_bytes: int
    """The ledgers that it keeps from being trimmed, as far as they are closed."""


class TieredLedgers(NamedTuple):
    """The ledgers of a topic whose entries are in tiered storage only."""

    topic: str
    ledgers: int
    place: str
    """Driver, bucket and object of the first."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a namespace holds; topics and clusters by their names."""

    namespace: str
    replicated_to: tuple[str, ...] = ()
    """All replication clusters, where there are several."""
    remote_cursors: tuple[RemoteCursor, ...] = ()
    replicated_subscriptions: tuple[str, ...] = ()
    """Topic and subscription, as text."""
    transactional: tuple[str, ...] = ()
    """Topics with messages of transactions."""
    pending_acks: tuple[str, ...] = ()
    """Logs of acknowledgements in transactions: `<topic>-<subscription>__transaction_pending_ack`."""
    tiered: tuple[TieredLedgers, ...] = ()
    offload_driver: str = ""
    entry_filters: str = ""
    shadows: tuple[str, ...] = ()
    scalable: tuple[str, ...] = ()
    """Topics of 5.0 that have segments (`topic://`)."""
    stops_writes: bool = False
    """By `magnetar namespaces stop-writes`."""


def contents_findings(namespaces: Iterable[Contents], *, has_coordinator: bool) -> Iterator[Finding]:
    """What our brokers would not do for these namespaces. *has_coordinator*: transactions are or were on."""
    namespaces = tuple(namespaces)
    for contents in namespaces:
        where = f"namespace {contents.namespace}"
        for text, way_out in _foreign_features(contents):
            yield Finding(Level.WARNING, where, text, way_out)
    if has_coordinator and not any(contents.transactional for contents in namespaces):
        yield Finding(
            Level.WARNING, "transactions",
            "a transaction coordinator of Apache's brokers has its logs here (transactionCoordinatorEnabled=true); our "
            "brokers refuse clients that begin a transaction",
            "see that no application needs transactions before the last Apache broker stops",
        )  # fmt: skip


def _foreign_features(contents: Contents) -> Iterator[tuple[str, str]]:
    """(what it holds and what our brokers do with it, the way out)"""
    if topics := contents.transactional:
        yield (
            f"{_topics(topics)} messages of transactions; our brokers do not open {_topics_phrase(topics)}",
            f"{_APACHE} that has transactionCoordinatorEnabled=true, "
            f"and consume or copy {_topics_phrase(topics)} there",
        )
    if logs := contents.pending_acks:
        yield (
            f"{counted(len(logs), 'subscription has', 'subscriptions have')} acknowledged in transactions "
            f"({listed(logs)}); our brokers acknowledge what was committed, and refuse consumers while one is open",
            "end these transactions before an Apache broker stops",
        )
    if tiered := contents.tiered:
        ledgers = sum(item.ledgers for item in tiered)
        yield (
            f"{_topics([item.topic for item in tiered])} {counted(ledgers, 'ledger', 'ledgers')} in tiered storage "
            f"({tiered[0].place}{', …' if ledgers > 1 else ''}); our brokers serve what is on bookies, and name bucket "
            "and object for the rest",
            f"{_APACHE} while the old messages are needed",
        )
    if contents.offload_driver:
        yield (
            f"its policies ask for offloading by {contents.offload_driver}; our brokers keep them and offload nothing",
            "see that the bookies have room for what stays with them",
        )
    if clusters := contents.replicated_to:
        yield (
            f"it is replicated among {listed(clusters)}; our brokers do not send or get what is published elsewhere",
            f"{_APACHE}, or set its replication clusters to this one alone",
        )
    if cursors := contents.remote_cursors:
        held = sum(cursor.held_bytes for cursor in cursors)
        yield (
            f"{counted(len(cursors), 'cursor', 'cursors')} of replication to {listed(_clusters(cursors))} hold "
            f"ledgers of {held} bytes ({listed(sorted({cursor.topic for cursor in cursors}))}); nobody moves them "
            "while our brokers serve the topics",
            "set the replication clusters to this one alone with an Apache broker, which deletes these cursors",
        )
    if subscriptions := contents.replicated_subscriptions:
        yield (
            f"{counted(len(subscriptions), 'subscription is', 'subscriptions are')} replicated to other clusters "
            f"({listed(subscriptions)}); our brokers keep the flag, and send no snapshots",
            "expect that a consumer that moves to another cluster gets messages again",
        )
    if topics := contents.shadows:
        yield (f"{counted(len(topics), 'topic is a shadow', 'topics are shadows')} of another ({listed(topics)}); our "
               "brokers do not open them", "consume the source from another subscription")  # fmt: skip
    if topics := contents.scalable:
        yield (f"{counted(len(topics), 'topic is', 'topics are')} scalable ({listed(topics)}); our brokers refuse "
               "topic://", _APACHE)  # fmt: skip
    if contents.entry_filters:
        yield (f"its policies name entry filters ({contents.entry_filters}), which our brokers do not apply: consumers "
               "get each message", "remove the policy, or filter in the consumers")  # fmt: skip
    if contents.stops_writes:
        yield (
            "its writes are stopped: our brokers refuse what producers send (Apache's do not)",
            f"magnetar namespaces allow-writes {contents.namespace}",
        )


def _topics(topics: Sequence[str]) -> str:
    return f"{counted(len(topics), 'topic', 'topics')} ({listed(topics)}) {'has' if len(topics) == 1 else 'have'}"


def _topics_phrase(topics: Sequence[str]) -> str:
    return "it" if len(topics) == 1 else "them"


def _clusters(cursors: Iterable[RemoteCursor]) -> list[str]:
    return sorted({cursor.cluster for cursor in cursors})
