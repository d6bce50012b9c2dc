"""Statistics of topics in Pulsar's JSON (recorded: tests/vectors/http), and the metrics of a broker.

Members of features that this broker does not have are zero or empty, as on an Apache broker that does not use them.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from broker.topic.compactor import CompactionFacts
from broker.topic.consumer import Consumer
from broker.topic.producer import Producer
from broker.topic.subscription import Subscription
from broker.topic.topic import Topic

_ACCESS_MODES: Final = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")

# Members of which the topic has the sum over its partitions.
_RATES: Final = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")
_SUMMED: Final = (
    "bytesInCounter", "msgInCounter",
    "bytesOutCounter", "msgOutCounter", "storageSize", "backlogSize", "publishRateLimitedTimes",
    "offloadedStorageSize", "waitingPublishers", "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize", "delayedMessageIndexSizeInBytes", "ongoingTxnCount",
    "abortedTxnCount", "committedTxnCount", "systemTopicBytesInCounter", "bytesOutInternalCounter",
)  # fmt: skip
_SUMMED_OF_SUBSCRIPTION: Final = (
    "msgRateOut", "msgThroughputOut", "bytesOutCounter", "msgOutCounter", "msgRateRedeliver", "messageAckRate",
    "msgBacklog", "backlogSize", "msgBacklogNoDelayed", "msgDelayed", "unackedMessages", "msgRateExpired",
    "totalMsgExpired", "nonContiguousDeletedMessagesRanges",
)  # fmt: skip

# Members of rate limits and filters, which this broker does not have.
_NOT_THROTTLED: Final = {
    f"dispatchThrottled{what}EventsBy{whose}Limit": 0
    for whose in ("Subscription", "Topic", "Broker")
    for what in ("Msg", "Bytes")
}
_NO_BACKLOG_QUOTA: Final = {"backlogQuotaLimitSize": -1, "backlogQuotaLimitTime": -1}
_NO_OFFLOAD: Final = {
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
}
# How the partitions' numbers make those of their topic.
_COMPACTION: Final[dict[str, Callable[[Iterable[int]], int]]] = {
    "lastCompactionRemovedEventCount": sum,
    "lastCompactionSucceedTimestamp": max,
    "lastCompactionFailedTimestamp": max,
    "lastCompactionDurationTimeInMills": max,
}


def _instant(ms: int) -> str:
    """A time as Apache writes it: with milliseconds only if they are not zero."""
    parts = "milliseconds" if ms % 1000 else "seconds"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec=parts).replace("+00:00", "Z")


def _total(rates: Iterable[float]) -> float:
    """The sum of rates; a float also for no rates, since Apache writes rates with a decimal point."""
    return sum(rates, 0.0)


def topic_stats(topic: Topic, owner: str) -> dict[str, Any]:
    """`stats` of a loaded topic; *owner* is the broker's id."""
    ledger = topic.ledger
    subscriptions = {name: _subscription(topic, one) for name, one in topic.subscriptions.items()}
    producers = [one for one in topic.producers.values() if not one.is_waiting]
    backlog_bytes = max((one["backlogSize"] for one in subscriptions.values()), default=0)
    rate_in = _total(one.last_rates[0] for one in producers)
    bytes_in = _total(one.last_rates[1] for one in producers)
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": bytes_in,
        "msgRateOut": _total(one["msgRateOut"] for one in subscriptions.values()),
        "msgThroughputOut": _total(one["msgThroughputOut"] for one in subscriptions.values()),
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "systemTopicBytesInCounter": topic.bytes_in if topic.name.is_system else 0,
        "bytesOutCounter": sum(one["bytesOutCounter"] for one in subscriptions.values()),
        "msgOutCounter": sum(one["msgOutCounter"] for one in subscriptions.values()),
        "bytesOutInternalCounter": 0,
        "averageMsgSize": bytes_in / rate_in if rate_in else 0.0,
        "msgChunkPublished": False,
        "storageSize": ledger.bytes_total,
        "backlogSize": backlog_bytes,
        **_NO_BACKLOG_QUOTA,
        "oldestBacklogMessageAgeSeconds": -1,
        "publishRateLimitedTimes": 0,
        "earliestMsgPublishTimeInBacklogs": 0,
        **_NO_OFFLOAD,
        "ongoingTxnCount": 0,
        "abortedTxnCount": 0,
        "committedTxnCount": 0,
        "publishers": [_producer(one) for one in producers],
        "waitingPublishers": len(topic.producers) - len(producers),
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if topic.deduplication_enabled else "Disabled",
        "nonContiguousDeletedMessagesRanges": sum(
            one["nonContiguousDeletedMessagesRanges"] for one in subscriptions.values()
        ),
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "compaction": _compaction(topic.compactor.facts),
        "ownerBroker": owner,
    }


def _producer(producer: Producer) -> dict[str, Any]:
    rate, size = producer.last_rates
    return {
        "accessMode": _ACCESS_MODES[producer.access_mode],
        "msgRateIn": rate,
        "msgThroughputIn": size,
        "averageMsgSize": size / rate if rate else 0.0,
        "chunkedMessageRate": 0.0,
        "producerId": producer.producer_id,
        "supportsPartialProducer": False,
        "producerName": producer.name,
        "address": producer.address,
        "connectedSince": _instant(producer.connected_since_ms),
        "clientVersion": producer.client_version,
        "metadata": producer.metadata,
    }


def _subscription(topic: Topic, subscription: Subscription) -> dict[str, Any]:
    consumers = subscription.consumers
    backlog = subscription.cursor.backlog()
    entries = topic.ledger.entries_total
    active = subscription.active_consumer
    cursor = topic.ledger.cursors.get(subscription.name)
    holes = 0 if cursor is None else cursor.range_count
    draining = [subscription.draining_hashes(one) for one in consumers]
    return {
        "msgRateOut": _total(one.last_rates[0] for one in consumers),
        "msgThroughputOut": _total(one.last_rates[1] for one in consumers),
        "bytesOutCounter": subscription.bytes_out,
        "msgOutCounter": subscription.messages_out,
        "msgRateRedeliver": _total(one.last_rates[2] for one in consumers),
        "messageAckRate": _total(one.last_rates[3] for one in consumers),
        "chunkedMessageRate": 0.0,
        "msgBacklog": backlog,
        "backlogSize": topic.ledger.bytes_total * backlog // entries if entries else 0,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgBacklogNoDelayed": backlog,
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgDelayed": 0,
        "msgInReplay": 0,
        "unackedMessages": subscription.unacked_messages,
        "type": subscription.type_name or "None",
        **({"activeConsumerName": active.name} if active is not None else {}),
        "msgRateExpired": 0.0,
        "totalMsgExpired": subscription.expired_entries,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "lastConsumedFlowTimestamp": subscription.last_flow_ms,
        "lastConsumedTimestamp": subscription.last_consumed_ms,
        "lastAckedTimestamp": subscription.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": 0,
        "consumers": [_consumer(one, *hashes) for one, hashes in zip(consumers, draining, strict=True)],
        "isDurable": subscription.is_durable,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "consumersAfterMarkDeletePosition": {},
        "drainingHashesCount": sum(len(hashes) for hashes, _ in draining),
        "drainingHashesClearedTotal": sum(cleared for _, cleared in draining),
        "drainingHashesUnackedMessages": sum(unacked for hashes, _ in draining for _, unacked, _ in hashes),
        "nonContiguousDeletedMessagesRanges": holes,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "subscriptionProperties": dict(subscription.properties),
        "filterProcessedMsgCount": 0,
        "filterAcceptedMsgCount": 0,
        "filterRejectedMsgCount": 0,
        "filterRescheduledMsgCount": 0,
        **_NOT_THROTTLED,
        "replicated": False,
        "durable": subscription.is_durable,
    }


def _consumer(consumer: Consumer, draining: Sequence[tuple[int, int, int]], cleared: int) -> dict[str, Any]:
    rate, size, redelivered, acked = consumer.last_rates
    return {
        "msgRateOut": rate,
        "msgThroughputOut": size,
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.messages_out,
        "msgRateRedeliver": redelivered,
        "messageAckRate": acked,
        "chunkedMessageRate": 0.0,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "avgMessagesPerEntry": 0,
        "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
        "drainingHashesCount": len(draining),
        "drainingHashesClearedTotal": cleared,
        "drainingHashesUnackedMessages": sum(unacked for _, unacked, _ in draining),
        **(
            {
                "drainingHashes": [
                    {"hash": hash_, "unackMsgs": unacked, "blockedAttempts": blocked}
                    for hash_, unacked, blocked in draining
                ]
            }
            if draining
            else {}
        ),
        "address": consumer.address,
        "connectedSince": _instant(consumer.connected_since_ms),
        "clientVersion": consumer.client_version,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": 0,
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "metadata": consumer.metadata,
        "lastAckedTime": _instant(consumer.last_acked_ms),
        "lastConsumedTime": _instant(0),
    }


def _compaction(facts: CompactionFacts) -> dict[str, Any]:
    return {
        "lastCompactionRemovedEventCount": facts.removed_messages,
        "lastCompactionSucceedTimestamp": facts.succeeded_ms,
        "lastCompactionFailedTimestamp": facts.failed_ms,
        "lastCompactionDurationTimeInMills": facts.took_ms,
    }


async def compacted_ledger(topic: Topic) -> dict[str, Any]:
    """The ledger that holds what compaction kept, as `internalStats` tells of it. Raises StorageUnavailable."""
    found = await topic.compactor.compacted()
    numbers = (-1, -1, -1) if found is None else (found.ledger_id, found.entries, found.size_bytes)
    members = dict(zip(("ledgerId", "entries", "size"), numbers, strict=True))
    return {**members, "offloaded": False, "underReplicated": False}


def internal_stats(topic: Topic, schema_ledgers: Sequence[int], compacted: dict[str, Any]) -> dict[str, Any]:
    """`internalStats` of a loaded topic; *compacted* is that of `compacted_ledger`."""
    return {
        **topic.ledger.stats(),
        "schemaLedgers": [
            {"ledgerId": ledger_id, "entries": 1, "size": 0, "offloaded": False, "underReplicated": False}
            for ledger_id in schema_ledgers
        ],
        "compactedLedger": compacted,
    }


def sum_stats(partitions: dict[str, dict[str, Any]], count: int, *, per_partition: bool) -> dict[str, Any]:
    """`partitioned-stats` from the stats of those of *count* partitions that exist."""
    every = list(partitions.values())
    subscriptions: dict[str, dict[str, Any]] = {}
    for stats in every:
        for name, one in stats["subscriptions"].items():
            known = subscriptions.setdefault(
                name, {**one, "consumers": [], **{member: type(one[member])() for member in _SUMMED_OF_SUBSCRIPTION}}
            )
            for member in _SUMMED_OF_SUBSCRIPTION:
                known[member] += one[member]
            known["consumers"] += one["consumers"]
            if one["type"] != "None":
                known["type"] = one["type"]
    total: dict[str, Any] = {member: sum(stats[member] for stats in every) for member in _SUMMED}
    for member in _RATES:
        total[member] = _total(stats[member] for stats in every)
    total["averageMsgSize"] = total["msgThroughputIn"] / total["msgRateIn"] if total["msgRateIn"] else 0.0
    total["msgChunkPublished"] = any(stats["msgChunkPublished"] for stats in every)
    total |= {**_NO_BACKLOG_QUOTA, **_NO_OFFLOAD, "oldestBacklogMessageAgeSeconds": 0}
    total["earliestMsgPublishTimeInBacklogs"] = 0
    total["publishers"] = [one for stats in every for one in stats["publishers"]]
    total["subscriptions"] = subscriptions
    total["replication"] = {}
    total["compaction"] = {
        member: combine(stats["compaction"][member] for stats in every) if every else 0
        for member, combine in _COMPACTION.items()
    }
    total["metadata"] = {"partitions": count, "deleted": False}
    total["partitions"] = partitions if per_partition else {}
    return total
