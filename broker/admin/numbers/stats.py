"""Statistics of topics in Pulsar's JSON (recorded: tests/vectors/http), and the metrics of a broker.

Members of features that this broker does not have are zero or empty, as on an Apache broker that does not use them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from broker.names import is_internal_subscription, remote_cluster
from broker.topic.clients.consumer import Consumer
from broker.topic.clients.producer import DROP_RATE, Producer
from broker.topic.compaction.compactor import CompactionFacts
from broker.topic.dispatchers.delayed import DELAYED_SIZE
from broker.topic.dispatchers.dispatcher import Draining
from broker.topic.non_persistent.subscription import NonPersistentSubscription
from broker.topic.non_persistent.topic import NonPersistentTopic
from broker.topic.ports import CursorPort
from broker.topic.rates.averages import BYTE_RATE, MESSAGE_RATE
from broker.topic.reading.looking import earliest_ms
from broker.topic.reading.subscription import Subscription
from broker.topic.topic import Topic
from managed_ledger.compacted.entry import COMPACTION_CURSOR
from managed_ledger.cursors.managed_cursor import ManagedCursor

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
    "totalMsgExpired", "nonContiguousDeletedMessagesRanges", "chunkedMessageRate", "msgInReplay",
    "nonContiguousDeletedMessagesRangesSerializedSize", "delayedMessageIndexSizeInBytes",
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


class StatsOptions(NamedTuple):
    """What a request for statistics asks for, beyond what each answer has.

    `getPreciseBacklog` makes no difference: entries are always counted precisely.
    """

    backlog_size: bool = True
    earliest_time: bool = False
    publishers: bool = True
    consumers: bool = True

    @staticmethod
    def from_query(query: Mapping[str, str]) -> "StatsOptions":
        """From the parameters of a request."""

        def is_on(name: str, default: str) -> bool:
            return query.get(name, default).lower() == "true"

        return StatsOptions(
            is_on("subscriptionBacklogSize", "true"),
            is_on("getEarliestTimeInBacklog", "false"),
            not is_on("excludePublishers", "false"),
            not is_on("excludeConsumers", "false"),
        )

    @property
    def query(self) -> str:
        """The same as parameters, for the owners of partitions."""
        return (
            f"subscriptionBacklogSize={_truth(self.backlog_size)}&getEarliestTimeInBacklog={_truth(self.earliest_time)}"
            f"&excludePublishers={_truth(not self.publishers)}&excludeConsumers={_truth(not self.consumers)}"
        )


def _truth(value: bool) -> str:
    return "true" if value else "false"


async def topic_stats(topic: Topic, owner: str, options: StatsOptions) -> dict[str, Any]:
    """`stats` of a loaded topic; *owner* is the broker's id."""
    ledger = topic.ledger
    earliest: dict[str, int] = {}
    compaction = topic.compactor.cursor
    if options.earliest_time:
        cursors: dict[str, CursorPort | ManagedCursor] = {
            name: subscription.cursor for name, subscription in topic.subscriptions.items()
        }
        if compaction is not None:
            cursors[COMPACTION_CURSOR] = compaction
        for name, cursor in cursors.items():
            earliest[name] = await earliest_ms(ledger, cursor.mark_delete_position) if cursor.backlog() > 0 else -1
    subscriptions = {
        name: _subscription(topic, subscription, options, earliest.get(name, 0))
        for name, subscription in topic.subscriptions.items()
    }
    if compaction is not None:
        subscriptions[COMPACTION_CURSOR] = _compaction_cursor(
            topic, compaction, options, earliest.get(COMPACTION_CURSOR, 0)
        )
    producers = [producer for producer in topic.producers.values() if not producer.is_waiting]
    durable = [
        subscription.cursor.mark_delete_position
        for subscription in topic.subscriptions.values()
        if subscription.is_durable
    ]
    backlog_bytes = ledger.bytes_after(min(durable)) if durable else 0
    rate_in, bytes_in, *_ = topic.rates.values
    gone, gone_internal = topic.gone
    internal = sum(
        subscription["bytesOutCounter"]
        for name, subscription in subscriptions.items()
        if is_internal_subscription(name)
    )
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": bytes_in,
        "msgRateOut": _total(subscription["msgRateOut"] for subscription in subscriptions.values()),
        "msgThroughputOut": _total(subscription["msgThroughputOut"] for subscription in subscriptions.values()),
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "systemTopicBytesInCounter": topic.bytes_in if topic.name.is_system else 0,
        "bytesOutCounter": gone.bytes + sum(subscription["bytesOutCounter"] for subscription in subscriptions.values()),
        "msgOutCounter": gone.messages + sum(subscription["msgOutCounter"] for subscription in subscriptions.values()),
        "bytesOutInternalCounter": gone_internal.bytes + internal,
        "averageMsgSize": bytes_in / rate_in if rate_in else 0.0,
        "msgChunkPublished": topic.has_chunks,
        "storageSize": ledger.bytes_total,
        "backlogSize": backlog_bytes,
        "backlogQuotaLimitSize": topic.limits.storage_quota.limit_bytes,
        "backlogQuotaLimitTime": topic.limits.age_quota.limit_s,
        **_oldest(topic),
        "publishRateLimitedTimes": topic.publish_throttle.times,
        "earliestMsgPublishTimeInBacklogs": _earliest(earliest.values()) if backlog_bytes else 0,
        **_NO_OFFLOAD,
        "ongoingTxnCount": 0,
        "abortedTxnCount": 0,
        "committedTxnCount": 0,
        "publishers": [producer_stats(producer) for producer in producers] if options.publishers else [],
        "waitingPublishers": len(topic.producers) - len(producers),
        "subscriptions": subscriptions,
        "replication": {
            cluster: _not_replicated(cursor.backlog(), ledger.bytes_after(cursor.mark_delete_position))
            for name, cursor in ledger.cursors.items()
            if (cluster := remote_cluster(name))
        },
        "deduplicationStatus": "Enabled" if topic.deduplication_enabled else "Disabled",
        **({} if topic.epoch is None else {"topicEpoch": topic.epoch}),
        "nonContiguousDeletedMessagesRanges": sum(
            subscription["nonContiguousDeletedMessagesRanges"] for subscription in subscriptions.values()
        ),
        "nonContiguousDeletedMessagesRangesSerializedSize": sum(
            subscription["nonContiguousDeletedMessagesRangesSerializedSize"] for subscription in subscriptions.values()
        ),
        "delayedMessageIndexSizeInBytes": sum(
            subscription["delayedMessageIndexSizeInBytes"] for subscription in subscriptions.values()
        ),
        "compaction": _compaction(topic.compactor.facts),
        "ownerBroker": owner,
    }


def _not_replicated(entries: int, size_bytes: int) -> dict[str, Any]:
    """ReplicatorStats (4.0.8) of a cluster to which nothing is sent from here: what waits for it. `backlogSize` is our
    own."""
    return {
        **_NOTHING_REPLICATED,
        "replicationBacklog": entries,
        "backlogSize": size_bytes,
        "connected": False,
    }


def _oldest(topic: Topic) -> dict[str, Any]:
    age_s, name = topic.oldest_backlog()
    members: dict[str, Any] = {"oldestBacklogMessageAgeSeconds": age_s}
    return members if age_s < 0 else {**members, "oldestBacklogMessageSubscriptionName": name}


def producer_stats(producer: Producer) -> dict[str, Any]:
    rate, size, chunks, _ = producer.rates.values
    return {
        "accessMode": _ACCESS_MODES[producer.access_mode],
        "msgRateIn": rate,
        "msgThroughputIn": size,
        "averageMsgSize": size / rate if rate else 0.0,
        "chunkedMessageRate": chunks,
        "producerId": producer.producer_id,
        "supportsPartialProducer": False,
        "producerName": producer.name,
        "address": producer.address,
        "connectedSince": _instant(producer.connected_since_ms),
        "clientVersion": producer.client_version,
        "metadata": producer.metadata,
    }


def _earliest(times: Iterable[int]) -> int:
    """The earliest of those that are known; 0: none is."""
    return min((time_ms for time_ms in times if time_ms > 0), default=0)


def _subscription(topic: Topic, subscription: Subscription, options: StatsOptions, earliest: int) -> dict[str, Any]:
    consumers = subscription.consumers
    backlog, held = subscription.cursor.backlog(), subscription.held
    counted, (rate, size, redelivery_rate, acked, chunks, expired) = subscription.counted, subscription.rates.values
    key_shared = subscription.key_shared
    active = subscription.active_consumer
    cursor = topic.ledger.cursors.get(subscription.name)
    holes = subscription.cursor.range_count
    policy = None if key_shared is None else key_shared.policy
    draining: list[Draining] = [
        ([], 0) if key_shared is None else key_shared.draining(consumer) for consumer in consumers
    ]
    ranges = key_shared.hash_ranges() if key_shared is not None and options.consumers else {}
    auto_split = policy is not None and not policy.is_sticky
    return {
        "msgRateOut": rate,
        "msgThroughputOut": size,
        "bytesOutCounter": counted.bytes,
        "msgOutCounter": counted.messages,
        "msgRateRedeliver": redelivery_rate,
        "messageAckRate": acked,
        "chunkedMessageRate": chunks,
        "msgBacklog": backlog,
        "backlogSize": topic.ledger.bytes_after(subscription.cursor.mark_delete_position)
        if options.backlog_size
        else -1,
        "earliestMsgPublishTimeInBacklog": earliest,
        "msgBacklogNoDelayed": max(backlog - held.delayed, 0),
        "blockedSubscriptionOnUnackedMsgs": held.is_blocked,
        "msgDelayed": held.delayed,
        "msgInReplay": held.replayed,
        "unackedMessages": subscription.unacked_messages,
        "type": subscription.type_name or "None",
        **({"activeConsumerName": active.name} if active is not None else {}),
        "msgRateExpired": expired,
        "totalMsgExpired": subscription.expired_entries,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "lastConsumedFlowTimestamp": subscription.last_flow_ms,
        "lastConsumedTimestamp": subscription.pump.last_consumed_ms,
        "lastAckedTimestamp": subscription.acking.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": subscription.acking.last_advanced_ms,
        "consumers": [
            consumer_stats(consumer, *hashes, tells_draining=auto_split, ranges=ranges.get(consumer))
            for consumer, hashes in zip(consumers, draining, strict=True)
        ]
        if options.consumers
        else [],
        "isDurable": subscription.is_durable,
        "isReplicated": subscription.is_replicated,
        "allowOutOfOrderDelivery": policy is not None and policy.allows_out_of_order,
        **({} if policy is None else {"keySharedMode": "STICKY" if policy.is_sticky else "AUTO_SPLIT"}),
        "consumersAfterMarkDeletePosition": {},
        "drainingHashesCount": sum(len(hashes) for hashes, _ in draining),
        "drainingHashesClearedTotal": sum(cleared for _, cleared in draining),
        "drainingHashesUnackedMessages": sum(unacked for hashes, _ in draining for _, unacked, _ in hashes),
        "nonContiguousDeletedMessagesRanges": holes,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0 if cursor is None else cursor.ranges_bytes,
        "delayedMessageIndexSizeInBytes": held.delayed * DELAYED_SIZE,
        "subscriptionProperties": dict(subscription.properties),
        "filterProcessedMsgCount": 0,
        "filterAcceptedMsgCount": 0,
        "filterRejectedMsgCount": 0,
        "filterRescheduledMsgCount": 0,
        **_throttled(subscription),
        "replicated": subscription.is_replicated,
        "durable": subscription.is_durable,
    }


def _compaction_cursor(topic: Topic, cursor: ManagedCursor, options: StatsOptions, earliest: int) -> dict[str, Any]:
    """The cursor of compaction, shown as Apache's brokers show it: as a subscription that nobody consumes. Its backlog
    is what the next compaction will look at."""
    backlog = cursor.backlog()
    return {
        **_NOTHING_PASSED,
        **_NO_BACKLOG,
        "msgBacklog": backlog,
        "backlogSize": topic.ledger.bytes_after(cursor.mark_delete_position) if options.backlog_size else -1,
        "earliestMsgPublishTimeInBacklog": earliest,
        "msgBacklogNoDelayed": backlog,
        **_NOTHING_KEPT,
        "isDurable": True,
        "replicated": False,
        "durable": True,
    }


def _throttled(subscription: Subscription) -> dict[str, int]:
    rates = subscription.pump.rates
    return {
        **_NOT_THROTTLED,
        "dispatchThrottledMsgEventsBySubscriptionLimit": rates.own.by_messages,
        "dispatchThrottledBytesEventsBySubscriptionLimit": rates.own.by_bytes,
        "dispatchThrottledMsgEventsByTopicLimit": rates.of_topic.by_messages,
        "dispatchThrottledBytesEventsByTopicLimit": rates.of_topic.by_bytes,
    }


def consumer_stats(
    consumer: Consumer,
    draining: Sequence[tuple[int, int, int]] = (),
    cleared: int = 0,
    *,
    tells_draining: bool = False,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """ConsumerStats. *ranges* are the hashes of a consumer of Key_Shared; those it still drains are shown one by one
    where keys are shared out by the broker, as Apache's does."""
    rate, size, redelivered, acked, chunks = consumer.rates.values
    return {
        "msgRateOut": rate,
        "msgThroughputOut": size,
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.messages_out,
        "msgRateRedeliver": redelivered,
        "messageAckRate": acked,
        "chunkedMessageRate": chunks,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "avgMessagesPerEntry": round(consumer.messages_per_entry),
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
            if tells_draining or draining
            else {}
        ),
        **({} if ranges is None else {"keyHashRangeArrays": [list(range_) for range_ in ranges]}),
        "address": consumer.address,
        "connectedSince": _instant(consumer.connected_since_ms),
        "clientVersion": consumer.client_version,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": consumer.last_consumed_ms,
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "metadata": consumer.metadata,
        "lastAckedTime": _instant(consumer.last_acked_ms),
        "lastConsumedTime": _instant(consumer.last_consumed_ms),
    }


def _compaction(facts: CompactionFacts) -> dict[str, Any]:
    return {
        "lastCompactionRemovedEventCount": facts.removed_messages,
        "lastCompactionSucceedTimestamp": facts.succeeded_ms,
        "lastCompactionFailedTimestamp": facts.failed_ms,
        "lastCompactionDurationTimeInMills": facts.took_ms,
    }


# Of a client in several partitions; what is no number, or a time, is that of the first.
_SUMMED_OF_CLIENT: Final = (
    "msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "bytesOutCounter", "msgOutCounter",
    "msgRateRedeliver", "messageAckRate", "chunkedMessageRate", "availablePermits", "unackedMessages",
)  # fmt: skip


def _merge_clients(rows: list[dict[str, Any]], additions: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The clients of several partitions: those of one name are one client. Of producers so are those at one place, as
    at Apache's broker: names that brokers made differ from partition to partition."""
    sums, unmatched = list(rows), []
    free_indexes = list(range(len(rows)))  # each stands for one of the next partition at most
    for addition in additions:
        match = next((index for index in free_indexes if sums[index][name] == addition[name]), None)
        if match is None:
            unmatched.append(addition)
        else:
            free_indexes.remove(match)
            sums[match] = _sum_of_client(sums[match], addition)
    for addition in unmatched:
        if free_indexes and name == "producerName":
            match = free_indexes.pop(0)
            sums[match] = _sum_of_client(sums[match], addition)
        else:
            sums.append(addition)
    return sums


def _sum_of_client(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The statistics of a client in two partitions as those of one; what is not a sum is that of the first."""
    total = dict(first)
    for member in _SUMMED_OF_CLIENT:
        if member in second:
            total[member] += second[member]
    if "averageMsgSize" in total:
        total["averageMsgSize"] = total["msgThroughputIn"] / total["msgRateIn"] if total["msgRateIn"] else 0.0
    return total


def sum_stats(
    partitions: dict[str, dict[str, Any]], count: int, *, per_partition: bool, persistent: bool = True
) -> dict[str, Any]:
    """`partitioned-stats` from the stats of those of *count* partitions that exist."""
    all_stats = list(partitions.values())
    subscriptions: dict[str, dict[str, Any]] = {}
    for stats in all_stats:
        for name, subscription in stats["subscriptions"].items():
            sums = subscriptions.setdefault(
                name,
                {
                    **subscription,
                    "consumers": [],
                    **{member: type(subscription[member])() for member in _SUMMED_OF_SUBSCRIPTION},
                },
            )
            for member in _SUMMED_OF_SUBSCRIPTION:
                sums[member] += subscription[member]
            sums["consumers"] = _merge_clients(sums["consumers"], subscription["consumers"], "consumerName")
            sums["earliestMsgPublishTimeInBacklog"] = _earliest(
                (sums["earliestMsgPublishTimeInBacklog"], subscription["earliestMsgPublishTimeInBacklog"])
            )
            if subscription["type"] != "None":
                sums["type"] = subscription["type"]
    total: dict[str, Any] = {member: sum(stats[member] for stats in all_stats) for member in _SUMMED}
    for member in _RATES:
        total[member] = _total(stats[member] for stats in all_stats)
    total["averageMsgSize"] = total["msgThroughputIn"] / total["msgRateIn"] if total["msgRateIn"] else 0.0
    total["msgChunkPublished"] = any(stats["msgChunkPublished"] for stats in all_stats)
    total |= {**_NO_BACKLOG_QUOTA, **_NO_OFFLOAD, "oldestBacklogMessageAgeSeconds": 0}
    eldest = max(all_stats, key=lambda stats: int(stats.get("oldestBacklogMessageAgeSeconds", -1)), default={})
    if eldest.get("oldestBacklogMessageAgeSeconds", -1) > 0:  # owners of other versions may not have it
        for member in ("oldestBacklogMessageAgeSeconds", "oldestBacklogMessageSubscriptionName"):
            total[member] = eldest.get(member)
    total["earliestMsgPublishTimeInBacklogs"] = _earliest(
        numbers["earliestMsgPublishTimeInBacklogs"] for numbers in all_stats
    )
    publishers: list[dict[str, Any]] = []
    for stats in all_stats:
        publishers = _merge_clients(publishers, stats["publishers"], "producerName")
    total["publishers"] = publishers
    total["subscriptions"] = subscriptions
    remote: dict[str, tuple[int, int]] = {}
    for stats in all_stats:
        for cluster, waits in stats["replication"].items():
            entries, size = remote.get(cluster, (0, 0))
            remote[cluster] = entries + waits["replicationBacklog"], size + waits.get("backlogSize", 0)
    total["replication"] = {cluster: _not_replicated(*waits) for cluster, waits in remote.items()}
    total["compaction"] = {
        member: combine(stats["compaction"][member] for stats in all_stats) if all_stats else 0
        for member, combine in _COMPACTION.items()
    }
    total["metadata"] = {"partitions": count, "deleted": False}
    total["partitions"] = partitions if per_partition else {}
    if not persistent:
        total |= {**_NO_QUOTA_AT_ALL, "msgDropRate": _total(stats["msgDropRate"] for stats in all_stats)}
    return total


# -------------------------------------------------------------------------------- non-persistent topics

# Nothing is stored, so nothing is limited: zero, not -1.
_NO_QUOTA_AT_ALL: Final = {"backlogQuotaLimitSize": 0, "backlogQuotaLimitTime": 0}
_NO_STORAGE: Final = {
    "storageSize": 0, "backlogSize": 0, **_NO_QUOTA_AT_ALL, "oldestBacklogMessageAgeSeconds": 0,
    "publishRateLimitedTimes": 0, "earliestMsgPublishTimeInBacklogs": 0, **_NO_OFFLOAD, "ongoingTxnCount": 0,
    "abortedTxnCount": 0, "committedTxnCount": 0,
}  # fmt: skip
_NO_BACKLOG: Final = {
    "msgBacklog": 0, "backlogSize": 0, "earliestMsgPublishTimeInBacklog": 0, "msgBacklogNoDelayed": 0,
    "blockedSubscriptionOnUnackedMsgs": False, "msgDelayed": 0, "msgInReplay": 0, "unackedMessages": 0,
}  # fmt: skip
_NOTHING_KEPT: Final = {
    "isDurable": False, "isReplicated": False, "allowOutOfOrderDelivery": False,
    "consumersAfterMarkDeletePosition": {}, "drainingHashesCount": 0, "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0, "nonContiguousDeletedMessagesRanges": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0, "delayedMessageIndexSizeInBytes": 0,
    "subscriptionProperties": {}, "filterProcessedMsgCount": 0, "filterAcceptedMsgCount": 0,
    "filterRejectedMsgCount": 0, "filterRescheduledMsgCount": 0, **_NOT_THROTTLED,
}  # fmt: skip

_NOTHING_PASSED: Final = {
    "msgRateOut": 0.0, "msgThroughputOut": 0.0, "bytesOutCounter": 0, "msgOutCounter": 0, "msgRateRedeliver": 0.0,
    "messageAckRate": 0.0, "chunkedMessageRate": 0.0, "type": "None", "msgRateExpired": 0.0, "totalMsgExpired": 0,
    "lastExpireTimestamp": 0, "lastConsumedFlowTimestamp": 0, "lastConsumedTimestamp": 0, "lastAckedTimestamp": 0,
    "lastMarkDeleteAdvancedTimestamp": 0, "consumers": [],
}  # fmt: skip


_NOTHING_REPLICATED: Final = {
    "msgRateIn": 0.0, "msgThroughputIn": 0.0, "msgRateOut": 0.0, "msgThroughputOut": 0.0, "msgRateExpired": 0.0,
    "replicationDelayInSeconds": 0,
}  # fmt: skip


def non_persistent_stats(topic: NonPersistentTopic, owner: str) -> dict[str, Any]:
    """`stats` of a non-persistent topic; *owner* is the broker's id."""
    subscriptions = {name: _passing_subscription(subscription) for name, subscription in topic.subscriptions.items()}
    producers = [producer for producer in topic.producers.values() if not producer.is_waiting]
    rate_in = _total(producer.rates.values[MESSAGE_RATE] for producer in producers)
    bytes_in = _total(producer.rates.values[BYTE_RATE] for producer in producers)
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": bytes_in,
        "msgRateOut": _total(subscription["msgRateOut"] for subscription in subscriptions.values()),
        "msgThroughputOut": _total(subscription["msgThroughputOut"] for subscription in subscriptions.values()),
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "systemTopicBytesInCounter": 0,
        "bytesOutCounter": topic.bytes_out,
        "msgOutCounter": topic.messages_out,
        "bytesOutInternalCounter": 0,
        "averageMsgSize": bytes_in / rate_in if rate_in else 0.0,
        "msgChunkPublished": False,
        **_NO_STORAGE,
        "waitingPublishers": len(topic.producers) - len(producers),
        "nonContiguousDeletedMessagesRanges": 0,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "compaction": dict.fromkeys(_COMPACTION, 0),
        "ownerBroker": owner,
        # Messages of producers alone: what subscriptions drop is shown with them.
        "msgDropRate": _total(producer.rates.values[DROP_RATE] for producer in producers),
        "publishers": [
            {**producer_stats(producer), "msgDropRate": producer.rates.values[DROP_RATE]} for producer in producers
        ],
        "subscriptions": subscriptions,
        "replication": {},
    }


def _passing_subscription(subscription: NonPersistentSubscription) -> dict[str, Any]:
    consumers = subscription.consumers
    active = subscription.active_consumer if subscription.type_name == "Failover" else None
    return {
        "msgRateOut": _total(consumer.rates.values[MESSAGE_RATE] for consumer in consumers),
        "msgThroughputOut": _total(consumer.rates.values[BYTE_RATE] for consumer in consumers),
        "bytesOutCounter": subscription.bytes_out_in_all,
        "msgOutCounter": subscription.messages_out_in_all,
        "msgRateRedeliver": 0.0,
        "messageAckRate": 0.0,
        "chunkedMessageRate": 0.0,
        **_NO_BACKLOG,
        "type": subscription.type_name or "None",
        **({"activeConsumerName": active.name} if active is not None else {}),
        "msgRateExpired": 0.0,
        "totalMsgExpired": 0,
        "lastExpireTimestamp": 0,
        "lastConsumedFlowTimestamp": 0,
        "lastConsumedTimestamp": 0,
        "lastAckedTimestamp": 0,
        "lastMarkDeleteAdvancedTimestamp": 0,
        "consumers": [consumer_stats(consumer) for consumer in consumers],
        **_NOTHING_KEPT,
        "msgDropRate": subscription.drops.values[0],
        "durable": False,
        "replicated": False,
    }


def non_persistent_internal_stats(topic: NonPersistentTopic) -> dict[str, Any]:
    """`internalStats` of a non-persistent topic: there is no ledger to show."""
    no_cursor = {
        "waitingReadOp": False, "pendingReadOps": 0, "messagesConsumedCounter": 0, "cursorLedger": 0,
        "cursorLedgerLastEntry": 0, "active": False, "numberOfEntriesSinceFirstNotAckedMessage": 0,
        "totalNonContiguousDeletedMessagesRange": 0, "subscriptionHavePendingRead": False,
        "subscriptionHavePendingReplayRead": False,
    }  # fmt: skip
    return {
        "entriesAddedCounter": topic.entries_in,
        "numberOfEntries": 0,
        "totalSize": 0,
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "cursors": dict.fromkeys(topic.subscriptions, no_cursor),
    }
