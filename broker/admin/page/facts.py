"""What the page shows of namespaces and topics: rows, their sums, and how much of it. No IO."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Storage = Callable[[], Mapping[str, Any]]
"""Tells what stores messages in the same process: `bookies`, each with `name`, `problems` (texts, the worst first),
`free_bytes` and `total_bytes` (None: unknown), and the number of `lost_ledgers`."""

# Rows of one answer. A person reads some dozens, and finds the others by a part of their name; 1,000 are some 300 KB.
NAMESPACES_SHOWN_MAX: Final = 1_000
TOPICS_SHOWN_MAX: Final = 500

# Shown of one topic: subscriptions, and producers or consumers of each. All of them are in `topics stats`.
SUBSCRIPTIONS_SHOWN_MAX: Final = 200
CLIENTS_SHOWN_MAX: Final = 50

NUMBERS: Final[Mapping[str, str]] = {
    "rate_in": "pulsar_rate_in",
    "rate_out": "pulsar_rate_out",
    "bytes_in": "pulsar_throughput_in",
    "bytes_out": "pulsar_throughput_out",
    "backlog": "pulsar_msg_backlog",
    "storage": "pulsar_storage_logical_size",
    "producers": "pulsar_producers_count",
    "consumers": "pulsar_consumers_count",
    "subscriptions": "pulsar_subscriptions_count",
}
"""A row's numbers, and the metrics that they are."""

_OF_SUBSCRIPTION: Final = (
    "type", "msgBacklog", "backlogSize", "msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate",
    "unackedMessages", "msgDelayed", "blockedSubscriptionOnUnackedMsgs", "lastConsumedTimestamp",
    "lastAckedTimestamp", "isDurable",
)  # fmt: skip
_OF_CONSUMER: Final = (
    "consumerName", "address", "connectedSince", "clientVersion", "msgRateOut", "msgThroughputOut", "availablePermits",
    "unackedMessages", "blockedConsumerOnUnackedMsgs",
)  # fmt: skip
_OF_PRODUCER: Final = (
    "producerName", "address", "connectedSince", "clientVersion", "msgRateIn", "msgThroughputIn", "accessMode",
)  # fmt: skip


def row_of(name: str, numbers: Mapping[str, float]) -> dict[str, Any]:
    """The row of an open topic from its metrics."""
    return {"name": name, "is_open": True, **{member: numbers.get(metric, 0) for member, metric in NUMBERS.items()}}


def sum_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over rows, and of how many topics they are. Rows of other brokers may lack a member."""
    sums: dict[str, Any] = {"topics": 0, **dict.fromkeys(NUMBERS, 0)}
    for row in rows:
        sums["topics"] += _number(row.get("topics", 1))
        for member in NUMBERS:
            sums[member] += _number(row.get(member))
    return sums


def sums_by_namespace(answers: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """`tenant/namespace` → the sums over the answers of the brokers."""
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for answer in answers:
        for name, sums in answer.items():
            if isinstance(sums, dict):
                parts.setdefault(name, []).append(sums)
    return {name: sum_of(sums) for name, sums in parts.items()}


def shown_rows(
    names: Iterable[str], open_rows: Mapping[str, Iterable[object]], find: str
) -> tuple[list[dict[str, Any]], int]:
    """The topics to show, the busiest first, and how many there are whose name has *find* in it.

    *names* are those that the caller may see; *open_rows*: broker → the rows of the topics that it has open.
    """
    rows: dict[str, dict[str, Any]] = {name: {"name": name, "is_open": False} for name in names if find in name}
    for broker, broker_rows in open_rows.items():
        for row in broker_rows:
            if isinstance(row, dict) and row.get("name") in rows:
                rows[row["name"]] = {**row, "broker": broker}

    def importance(row: dict[str, Any]) -> tuple[float, float, str]:
        return -_number(row.get("rate_in")) - _number(row.get("rate_out")), -_number(row.get("backlog")), row["name"]

    return sorted(rows.values(), key=importance)[:TOPICS_SHOWN_MAX], len(rows)


def shown_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a topic's `stats`: those in trouble first, and how many there are of what is left out."""
    subscriptions = sorted(stats["subscriptions"].items(), key=lambda item: (-item[1]["msgBacklog"], item[0]))
    publishers = sorted(stats["publishers"], key=lambda publisher: -publisher["msgRateIn"])
    return {
        "storage": stats["storageSize"],
        "backlog_bytes": stats["backlogSize"],
        "messages_in": stats["msgInCounter"],
        "bytes_in": stats["bytesInCounter"],
        "deduplication": stats["deduplicationStatus"],
        "publishers": [_only(_OF_PRODUCER, publisher) for publisher in publishers[:CLIENTS_SHOWN_MAX]],
        "publishers_total": len(publishers),
        "subscriptions": [
            {"name": name, **_subscription(subscription)}
            for name, subscription in subscriptions[:SUBSCRIPTIONS_SHOWN_MAX]
        ],
        "subscriptions_total": len(subscriptions),
    }


def _subscription(subscription: Mapping[str, Any]) -> dict[str, Any]:
    consumers = sorted(subscription["consumers"], key=lambda consumer: -consumer["unackedMessages"])
    return {
        **_only(_OF_SUBSCRIPTION, subscription),
        "consumers": [_only(_OF_CONSUMER, consumer) for consumer in consumers[:CLIENTS_SHOWN_MAX]],
        "consumers_total": len(consumers),
    }


def _only(members: Iterable[str], stats: Mapping[str, Any]) -> dict[str, Any]:
    return {member: stats[member] for member in members if member in stats}


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0
