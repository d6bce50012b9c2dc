"""The metrics of a broker, with Apache's names and labels. (Recorded: tests/vectors/metrics.)

    exposeTopicLevelMetricsInPrometheus=true     cluster, namespace, topic, and subscription for its numbers
                                   =false        cluster, namespace: the sums over the topics
    always                                       cluster: `pulsar_broker_…`, the sums over all topics

What this broker does not measure is left out rather than shown as zero: what belongs to features that are not there.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from broker.broker import Broker
from broker.config import PROVIDERS
from broker.topic.buckets import LATENCY_NAMES, SIZE_NAMES, Period
from broker.topic.subscription import Subscription
from broker.topic.topic import Topic
from magnetar_core.runtime.observe import Labels, Sample

# Apache's broker says what is a counter by the name's ending alone; all else is a gauge.
_HELP: Final[Mapping[str, str]] = {
    "pulsar_subscriptions_count": "subscriptions",
    "pulsar_producers_count": "producers attached",
    "pulsar_consumers_count": "consumers attached",
    "pulsar_rate_in": "messages published a second",
    "pulsar_rate_out": "messages delivered a second",
    "pulsar_throughput_in": "bytes published a second",
    "pulsar_throughput_out": "bytes delivered a second",
    "pulsar_average_msg_size": "bytes of a message, on average",
    "pulsar_storage_size": "bytes stored, all copies",
    "pulsar_storage_logical_size": "bytes stored, without copies",
    "pulsar_storage_backlog_age_seconds": "seconds since the oldest of them was published, in a closed ledger; else -1",
    "pulsar_storage_backlog_size": "bytes that some subscription has not acknowledged, estimated",
    "pulsar_storage_write_rate": "entries stored a second",
    "pulsar_storage_read_rate": "entries read by subscriptions a second",
    "pulsar_storage_read_cache_misses_rate": "those of them that came from bookies",
    "pulsar_msg_backlog": "entries that subscriptions have not acknowledged",
    "pulsar_in_messages_total": "messages published",
    "pulsar_in_bytes_total": "bytes published",
    "pulsar_out_messages_total": "messages delivered",
    "pulsar_out_bytes_total": "bytes delivered",
    "pulsar_subscription_back_log": "entries not acknowledged",
    "pulsar_subscription_back_log_no_delayed": "entries not acknowledged, without those that wait for their time",
    "pulsar_subscription_delayed": "entries that wait for their time",
    "pulsar_subscription_unacked_messages": "messages delivered and not acknowledged",
    "pulsar_subscription_blocked_on_unacked_messages": "1: nothing is delivered until some are acknowledged",
    "pulsar_subscription_msg_rate_out": "messages delivered a second",
    "pulsar_subscription_msg_throughput_out": "bytes delivered a second",
    "pulsar_subscription_msg_rate_redeliver": "messages delivered again a second",
    "pulsar_subscription_msg_ack_rate": "messages acknowledged a second",
    "pulsar_subscription_consumers_count": "consumers attached",
    "pulsar_subscription_last_acked_timestamp": "wall clock, ms",
    "pulsar_subscription_last_consumed_timestamp": "wall clock, ms",
    "pulsar_subscription_last_consumed_flow_timestamp": "wall clock, ms",
    "pulsar_subscription_last_expire_timestamp": "wall clock, ms",
    "pulsar_subscription_msg_rate_expired": "entries that were too old, a second",
    "pulsar_subscription_in_replay": "entries that were read and wait for a consumer",
    "pulsar_subscription_last_mark_delete_advanced_timestamp": "wall clock, ms",
    "pulsar_subscription_total_msg_expired": "entries that were too old",
    "magnetar_lost_entries_skipped_total": "lost entries that count as acknowledged for a subscription",
    "pulsar_compaction_removed_event_count": "messages that the last compaction left out",
    "pulsar_compaction_compacted_entries_count": "messages that the last compaction looked at",
    "pulsar_compaction_duration_time_in_mills": "how long the last compaction took",
}

# By the beginning of their names.
_PERIODS: Final[Mapping[str, str]] = {
    "pulsar_entry_size_": "entries of the last period by their bytes, each in one bucket",
    "pulsar_storage_write_latency_": "entries of the last period by milliseconds until they were stored; sum: µs",
}

# Of a topic: a sum of them means nothing.
_NOT_SUMMED: Final = frozenset({"pulsar_average_msg_size", "pulsar_storage_backlog_age_seconds"})

# Of a subscription, summed for its topic's namespace where topics are not shown; others would mean nothing.
_SUMMED: Final = (
    "pulsar_out_messages_total",
    "pulsar_out_bytes_total",
    "pulsar_subscription_back_log",
    "pulsar_subscription_back_log_no_delayed",
    "pulsar_subscription_delayed",
    "pulsar_subscription_unacked_messages",
    "pulsar_subscription_msg_rate_out",
    "pulsar_subscription_msg_throughput_out",
    "pulsar_subscription_msg_rate_redeliver",
    "pulsar_subscription_msg_ack_rate",
)

# Of a topic, summed for `pulsar_broker_…`.
_OF_BROKER: Final = (
    "subscriptions_count",
    "producers_count",
    "consumers_count",
    "rate_in",
    "rate_out",
    "throughput_in",
    "throughput_out",
    "storage_size",
    "storage_logical_size",
    "msg_backlog",
)


def broker_samples(broker: Broker, bundles: Sequence[str]) -> Iterator[Sample]:
    """All metrics of a broker that owns *bundles*."""
    config = broker.config
    cluster = ("cluster", config.cluster_name)
    every = Counter[str]()
    spaces: dict[str, Counter[str]] = {}
    for topic in list(broker.topics.values()):
        subscriptions = {name: _of_subscription(one) for name, one in list(topic.subscriptions.items())}
        numbers = _of_topic(topic, subscriptions)
        every["topics_count"] += 1
        for name in _OF_BROKER:
            every[name] += numbers[f"pulsar_{name}"]  # type: ignore[assignment]  # rates are no whole numbers
        space = spaces.setdefault(topic.name.namespace, Counter())
        space["pulsar_topics_count"] += 1
        if not config.expose_topic_metrics:
            space.update({name: value for name, value in numbers.items() if name not in _NOT_SUMMED})
            for found in subscriptions.values():
                space.update({name: found[name] for name in _SUMMED})
            continue
        labels = (cluster, ("namespace", topic.name.namespace), ("topic", topic.name.full))
        yield from _samples(numbers, labels)
        for name, found in subscriptions.items():
            yield from _samples(found, (*labels, ("subscription", name)))
    for namespace, space in sorted(spaces.items()):
        yield from _samples(space, (cluster, ("namespace", namespace)))
    for name in ("topics_count", *_OF_BROKER):
        text = _HELP.get(f"pulsar_{name}", "topics that this broker has open")
        yield Sample(f"pulsar_broker_{name}", every[name], (cluster,), f"{text}: the whole broker")
    yield Sample("pulsar_lb_bundles_owned", len(bundles), (cluster,), "bundles that this broker owns")
    yield from _of_resource_groups(broker, cluster)
    yield from _of_security(broker)


def topic_numbers(topic: Topic) -> dict[str, float]:
    """The metrics of one topic, by name."""
    return _of_topic(topic, {name: _of_subscription(one) for name, one in list(topic.subscriptions.items())})


def _samples(numbers: Mapping[str, float], labels: Labels) -> Iterator[Sample]:
    for name, value in numbers.items():
        yield Sample(name, value, labels, _help_of(name))


def _help_of(name: str) -> str:
    for beginning, text in _PERIODS.items():
        if name.startswith(beginning):
            return text
    return _HELP.get(name, "topics that this broker has open")


def _of_topic(topic: Topic, subscriptions: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    producers = [one for one in topic.producers.values() if not one.is_waiting]
    rate_in, bytes_in, written, read, missed = topic.rates.values
    ledger, compaction = topic.ledger, topic.compactor.facts
    backlog = [found["pulsar_subscription_back_log"] for found in subscriptions.values()]
    durable = [one.cursor.mark_delete_position for one in topic.subscriptions.values() if one.is_durable]
    numbers: dict[str, float] = {
        "pulsar_subscriptions_count": len(subscriptions),
        "pulsar_producers_count": len(producers),
        "pulsar_consumers_count": sum(one["pulsar_subscription_consumers_count"] for one in subscriptions.values()),
        "pulsar_rate_in": rate_in,
        "pulsar_rate_out": sum(one["pulsar_subscription_msg_rate_out"] for one in subscriptions.values()),
        "pulsar_throughput_in": bytes_in,
        "pulsar_throughput_out": sum(one["pulsar_subscription_msg_throughput_out"] for one in subscriptions.values()),
        "pulsar_average_msg_size": bytes_in / rate_in if rate_in else 0.0,
        "pulsar_storage_size": ledger.bytes_total * ledger.config.write_quorum,
        "pulsar_storage_logical_size": ledger.bytes_total,
        "pulsar_storage_backlog_size": ledger.bytes_after(min(durable)) if durable else 0,
        "pulsar_storage_backlog_age_seconds": topic.oldest_backlog()[0],
        "pulsar_msg_backlog": sum(backlog),
        "pulsar_in_messages_total": topic.messages_in,
        "pulsar_in_bytes_total": topic.bytes_in,
        "magnetar_lost_entries_skipped_total": ledger.passed_over_entries,
    }
    numbers |= {
        "pulsar_storage_write_rate": written,
        "pulsar_storage_read_rate": read,
        "pulsar_storage_read_cache_misses_rate": missed,
        **dict(_of_period("pulsar_entry_size", SIZE_NAMES, "le_overflow", topic.entry_sizes)),
        **dict(_of_period("pulsar_storage_write_latency", LATENCY_NAMES, "overflow", topic.write_latencies)),
    }
    if compaction.succeeded_ms:
        numbers["pulsar_compaction_removed_event_count"] = compaction.removed_messages
        numbers["pulsar_compaction_compacted_entries_count"] = compaction.looked_at
        numbers["pulsar_compaction_duration_time_in_mills"] = compaction.took_ms
    return numbers


def _of_period(name: str, bounds: Sequence[str], overflow: str, period: Period) -> Iterator[tuple[str, float]]:
    for bound, count in zip(bounds, period.counts, strict=False):
        yield f"{name}_le_{bound}", count
    yield f"{name}_{overflow}", period.counts[-1]
    yield f"{name}_count", period.total
    yield f"{name}_sum", period.sum


def _of_subscription(subscription: Subscription) -> dict[str, float]:
    consumers = subscription.consumers
    backlog, delayed = subscription.cursor.backlog(), subscription.delayed_messages
    rates, counted = subscription.rates.values, subscription.counted
    return {
        "pulsar_subscription_back_log": backlog,
        "pulsar_subscription_back_log_no_delayed": max(backlog - delayed, 0),
        "pulsar_subscription_delayed": delayed,
        "pulsar_subscription_unacked_messages": subscription.unacked_messages,
        "pulsar_subscription_blocked_on_unacked_messages": subscription.is_blocked,
        "pulsar_subscription_msg_rate_out": rates[0],
        "pulsar_subscription_msg_throughput_out": rates[1],
        "pulsar_subscription_msg_rate_redeliver": rates[2],
        "pulsar_subscription_msg_ack_rate": rates[3],
        "pulsar_subscription_msg_rate_expired": rates[5],
        "pulsar_subscription_in_replay": subscription.replayed_messages,
        "pulsar_subscription_last_mark_delete_advanced_timestamp": subscription.last_advanced_ms,
        "pulsar_subscription_consumers_count": len(consumers),
        "pulsar_subscription_last_acked_timestamp": subscription.last_acked_ms,
        "pulsar_subscription_last_consumed_timestamp": subscription.last_consumed_ms,
        "pulsar_subscription_last_consumed_flow_timestamp": subscription.last_flow_ms,
        "pulsar_subscription_total_msg_expired": subscription.expired_entries,
        "pulsar_subscription_last_expire_timestamp": subscription.last_expired_ms,
        "pulsar_out_messages_total": counted.messages,
        "pulsar_out_bytes_total": counted.bytes,
    }


def _of_resource_groups(broker: Broker, cluster: tuple[str, str]) -> Iterator[Sample]:
    for name, group in sorted(broker.resource_groups.by_name.items()):
        labels = (cluster, ("ResourceGroup", name))
        for way, messages, size_bytes in (
            ("Publish", group.published_messages, group.published_bytes),
            ("Dispatch", group.dispatched_messages, group.dispatched_bytes),
        ):
            of_way = (*labels, ("MonitoringClass", way))
            what = "the topics of the group took or gave on this broker"
            yield Sample("pulsar_resource_group_messages_used_total", messages, of_way, f"messages that {what}")
            yield Sample("pulsar_resource_group_bytes_used_total", size_bytes, of_way, f"bytes that {what}")
        yield Sample("pulsar_resource_group_updates_total", group.updates, labels, "changes of the group's rates")


def _of_security(broker: Broker) -> Iterator[Sample]:
    server, doors = broker.server, broker.doors
    yield Sample("pulsar_active_connections", len(server.clients), help="connections to the binary ports")
    yield Sample("pulsar_connection_create_fail_count", server.refused, help="connections above a limit, refused")
    failed = server.handshakes_failed
    yield Sample("magnetar_broker_tls_handshakes_failed_total", failed, help="TLS handshakes at the binary port")
    if doors is None:
        return
    for name, counts, what in (
        ("pulsar_authentication_success_total", doors.successes, "clients and requests that were authenticated"),
        ("pulsar_authentication_failures_total", doors.failures, "clients and requests that were refused"),
    ):
        for method in sorted({*PROVIDERS.values(), "anonymous"}):
            yield Sample(name, counts[method], (("auth_method", method),), what)
