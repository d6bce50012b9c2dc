"""The metrics of a broker, with Apache's names and labels. (Recorded: tests/vectors/metrics.)

    exposeTopicLevelMetricsInPrometheus=true     cluster, namespace, topic, and subscription for its numbers
                                   =false        cluster, namespace: the sums over the topics
      and exposeConsumerLevelMetricsInPrometheus … consumer_name, consumer_id
      and exposeProducerLevelMetricsInPrometheus … producer_name, producer_id
      and splitTopicAndPartitionLabelInPrometheus  topic of the partition, and partition
    always                                       cluster: `pulsar_broker_…`, the sums over all topics
    `broker.admin.numbers.ledger_metrics`                `pulsar_ml_…`
    `broker.admin.numbers.service_metrics`               connections, lookups, topics that are opened

What this broker does not measure is left out rather than shown as zero: what belongs to features that are not there,
and of non-persistent topics what is about storage.

Rules:

1. Nothing is computed before somebody asks: counters are plain numbers on their owners.
2. A scrape goes on after turns of others, so it iterates over copies only.
3. The sums over all consumers of a subscription are one step; single consumers and producers are shown up to
   CLIENTS_TOLD_MAX, and the others counted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeVar

from broker.admin.numbers.ledger_metrics import cache_samples, cursor_samples, ledger_samples, tail_samples
from broker.admin.numbers.metric_texts import help_of
from broker.admin.numbers.service_metrics import service_samples
from broker.broker import Broker
from broker.names import is_internal_subscription, remote_cluster
from broker.settings.config import BrokerConfig
from broker.settings.groups.authentication import PROVIDERS
from broker.topic.clients.consumer import Consumer
from broker.topic.clients.producer import DROP_RATE, Producer
from broker.topic.dispatchers.delayed import DELAYED_SIZE
from broker.topic.non_persistent.subscription import NonPersistentSubscription
from broker.topic.non_persistent.topic import NonPersistentTopic
from broker.topic.ports import CursorPort
from broker.topic.rates.averages import BYTE_RATE, MESSAGE_RATE
from broker.topic.reading.subscription import Subscription
from broker.topic.topic import Topic
from magnetar_core.runtime.data.buckets import LATENCY_NAMES, QUOTA_CHECK_BOUNDS, SIZE_NAMES, Period
from magnetar_core.runtime.observe import Labels, Sample, Summary
from magnetar_core.security.sources import open_to_others, path_in
from magnetar_core.security.tls.contexts import Certificates
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.compacted.entry import COMPACTION_CURSOR
from managed_ledger.cursors.managed_cursor import ManagedCursor

C = TypeVar("C")

# Consumers and producers of one scrape. Each consumer is nine lines of some 250 bytes, so this is a body of 20 MB,
# which takes a second or two to write, in turns with the rest.
CLIENTS_TOLD_MAX: Final = 10_000

# Of a topic: a sum of them means nothing.
_NOT_SUMMED: Final = frozenset(
    {
        "pulsar_average_msg_size",
        "pulsar_storage_backlog_age_seconds",
        "pulsar_storage_backlog_quota_limit",
        "pulsar_storage_backlog_quota_limit_time",
    }
)

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
    "pulsar_subscription_msg_drop_rate",
)

# Of a subscription that nobody consumes, as that of compaction.
_NOT_CONSUMED: Final[Mapping[str, float]] = {
    "pulsar_subscription_delayed": 0,
    "pulsar_subscription_delayed_message_index_size_bytes": 0,
    "pulsar_subscription_unacked_messages": 0,
    "pulsar_subscription_blocked_on_unacked_messages": 0,
    "magnetar_subscription_blocked_consumers": 0,
    "pulsar_subscription_msg_rate_out": 0,
    "pulsar_subscription_msg_throughput_out": 0,
    "pulsar_subscription_msg_rate_redeliver": 0,
    "pulsar_subscription_msg_ack_rate": 0,
    "pulsar_subscription_msg_rate_expired": 0,
    "pulsar_subscription_in_replay": 0,
    "pulsar_subscription_last_mark_delete_advanced_timestamp": 0,
    "pulsar_subscription_consumers_count": 0,
    "pulsar_subscription_last_acked_timestamp": 0,
    "pulsar_subscription_last_consumed_timestamp": 0,
    "pulsar_subscription_last_consumed_flow_timestamp": 0,
    "pulsar_subscription_total_msg_expired": 0,
    "pulsar_subscription_last_expire_timestamp": 0,
    "pulsar_out_messages_total": 0,
    "pulsar_out_bytes_total": 0,
}

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
    "storage_write_rate",
    "storage_read_rate",
    "storage_read_cache_misses_rate",
)


def broker_samples(broker: Broker, bundles: Sequence[str]) -> Iterator[Sample | Summary]:
    """All metrics of a broker that owns *bundles*."""
    config = broker.config
    cluster = ("cluster", config.cluster_name)
    persistent = list(broker.topics.values())
    scrape = _Scrape(config)
    for topic in persistent:
        subscriptions = {
            name: _of_subscription(topic, subscription, config)
            for name, subscription in list(topic.subscriptions.items())
        }
        if (compaction := topic.compactor.cursor) is not None:
            subscriptions[COMPACTION_CURSOR] = _of_compaction(topic, compaction, config)
        yield from scrape.topic(topic, _of_topic(topic, subscriptions), subscriptions)
        scrape.count_bytes(topic, subscriptions)
    for passing in list(broker.non_persistent.by_name.values()):
        numbers = {
            name: _of_passing_subscription(subscription) for name, subscription in list(passing.subscriptions.items())
        }
        yield from scrape.topic(passing, _of_passing_topic(passing, numbers), numbers)
    yield from scrape.sums()
    yield from _of_quota_checks(cluster, broker.periodic.quota_checks.so_far)
    yield Sample("pulsar_lb_bundles_owned", len(bundles), (cluster,), "bundles that this broker owns")
    yield from _of_resource_groups(broker, cluster)
    yield from cache_samples(cluster, persistent, broker.ledgers.cache, broker.reads)
    yield from tail_samples(cluster, broker.ledgers.tails)
    if config.expose_ledger_metrics:
        yield from ledger_samples(cluster, persistent, config.stats_update_s)
    if config.expose_cursor_metrics:
        yield from cursor_samples(cluster, persistent)
    yield from service_samples(broker)
    yield from _of_security(broker)


class _Scrape:
    """One scrape: the samples of each topic, and the sums that are made beside them."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._cluster = ("cluster", config.cluster_name)
        self._every = Counter[str]()
        self._spaces: dict[str, Counter[tuple[str, Labels]]] = {}
        self._evictions = Counter[str]()
        self._bytes = Counter[tuple[str, str, bool]]()
        self._clients = 0

    def topic(
        self,
        topic: Topic | NonPersistentTopic,
        numbers: Mapping[str, float],
        subscriptions: Mapping[str, Mapping[str, float]],
    ) -> Iterator[Sample]:
        """The samples of *topic* where the settings want topics shown, else none."""
        config = self._config
        self._every["topics_count"] += 1
        for name in _OF_BROKER:
            self._every[name] += numbers.get(f"pulsar_{name}", 0)  # type: ignore[assignment]  # rates
        evictions = {"size": topic.size_evictions, "time": topic.age_evictions} if isinstance(topic, Topic) else {}
        self._evictions.update(evictions)
        space = self._spaces.setdefault(topic.name.namespace, Counter())
        space["pulsar_topics_count", ()] += 1
        if not config.expose_topic_metrics:
            space.update({(name, ()): value for name, value in numbers.items() if name not in _NOT_SUMMED})
            for kind, count in evictions.items():
                space["pulsar_storage_backlog_quota_exceeded_evictions_total", (("quota_type", kind),)] += count
            for values in subscriptions.values():
                space.update({(name, ()): values[name] for name in _SUMMED if name in values})
            return
        labels = (self._cluster, ("namespace", topic.name.namespace), *_topic_labels(topic.name, config))
        yield from _samples(numbers, labels)
        for kind, count in evictions.items():
            name = "pulsar_storage_backlog_quota_exceeded_evictions_total"
            yield Sample(name, count, (*labels, ("quota_type", kind)), help_of(name))
        for name, values in subscriptions.items():
            yield from _samples(values, (*labels, ("subscription", name)))
        if isinstance(topic, Topic):
            for name, cursor in list(topic.ledger.cursors.items()):
                if cluster := remote_cluster(name):
                    yield from _samples(_of_remote(topic, cursor), (*labels, ("remote_cluster", cluster)))
        for name, subscription in list(topic.subscriptions.items()):
            of_subscription = (*labels, ("subscription", name))
            assert isinstance(subscription, Subscription | NonPersistentSubscription), name
            if isinstance(subscription, Subscription):
                yield from _throttled(subscription, of_subscription)
            if config.expose_consumer_metrics:
                for consumer in self._room_for(subscription.consumers):
                    yield from _samples(_of_consumer(consumer), (*of_subscription, *_consumer_labels(consumer)))
        if config.expose_producer_metrics:
            for producer in self._room_for(
                [producer for producer in topic.producers.values() if not producer.is_waiting]
            ):
                own = (("producer_name", producer.name), ("producer_id", str(producer.producer_id)))
                yield from _samples(_of_producer(producer), (*labels, *own))

    def _room_for(self, clients: Sequence[C]) -> list[C]:
        """Those of *clients* that are shown (rule 3)."""
        room = max(CLIENTS_TOLD_MAX - self._clients, 0)
        self._clients += len(clients)
        return list(clients[:room])

    def count_bytes(self, topic: Topic, subscriptions: Mapping[str, Mapping[str, float]]) -> None:
        self._bytes["in", "system_topic", topic.name.is_system] += topic.bytes_in
        deleted, deleted_internal = topic.gone  # subscriptions that are deleted
        self._bytes["out", "system_subscription", False] += deleted.bytes - deleted_internal.bytes
        self._bytes["out", "system_subscription", True] += deleted_internal.bytes
        for name, values in subscriptions.items():
            size = int(values["pulsar_out_bytes_total"])
            self._bytes["out", "system_subscription", is_internal_subscription(name)] += size

    def sums(self) -> Iterator[Sample]:
        """The samples of namespaces and of the whole broker."""
        cluster = self._cluster
        for namespace, space in sorted(self._spaces.items()):
            for (name, own), value in space.items():
                yield Sample(name, value, (cluster, ("namespace", namespace), *own), help_of(name))
        for name in ("topics_count", *_OF_BROKER):
            text = help_of(f"pulsar_{name}")
            yield Sample(f"pulsar_broker_{name}", self._every[name], (cluster,), f"{text}: the whole broker")
        for way, label, is_system in (
            ("in", "system_topic", False),
            ("in", "system_topic", True),
            ("out", "system_subscription", False),
            ("out", "system_subscription", True),
        ):
            text = f"bytes {'published' if way == 'in' else 'delivered'}, persistent topics: the whole broker"
            labels = (cluster, (label, str(is_system).lower()))
            yield Sample(f"pulsar_broker_{way}_bytes_total", self._bytes[way, label, is_system], labels, text)
        for kind in ("size", "time"):
            name = "pulsar_storage_backlog_quota_exceeded_evictions_total"
            labels = (cluster, ("quota_type", kind))
            yield Sample(name.replace("_", "_broker_", 1), self._evictions[kind], labels, help_of(name))
        left_out = max(self._clients - CLIENTS_TOLD_MAX, 0)
        yield Sample("magnetar_metrics_clients_left_out", left_out, (cluster,), "consumers and producers not told here")


def _topic_labels(name: TopicName, config: BrokerConfig) -> Labels:
    if not config.split_partition_label:
        return (("topic", name.full),)
    return ("topic", name.base.full), ("partition", str(name.partition))


def _consumer_labels(consumer: Consumer) -> Labels:
    return ("consumer_name", consumer.name), ("consumer_id", str(consumer.consumer_id))


def _of_consumer(consumer: Consumer) -> dict[str, float]:
    rate, size, redelivered, acked, _ = consumer.rates.values
    return {
        "pulsar_consumer_msg_rate_redeliver": redelivered,
        "pulsar_consumer_unacked_messages": consumer.unacked_messages,
        "pulsar_consumer_blocked_on_unacked_messages": consumer.is_blocked,
        "pulsar_consumer_msg_rate_out": rate,
        "pulsar_consumer_msg_ack_rate": acked,
        "pulsar_consumer_msg_throughput_out": size,
        "pulsar_consumer_available_permits": consumer.permits,
        "pulsar_out_bytes_total": consumer.bytes_out,
        "pulsar_out_messages_total": consumer.messages_out,
    }


def _of_producer(producer: Producer) -> dict[str, float]:
    rate, size, *_ = producer.rates.values
    return {
        "pulsar_producer_msg_rate_in": rate,
        "pulsar_producer_msg_throughput_in": size,
        "pulsar_producer_msg_average_Size": size / rate if rate else 0.0,
    }


def _throttled(subscription: Subscription, labels: Labels) -> Iterator[Sample]:
    rates = subscription.pump.rates
    for reason, throttle in (("subscription", rates.own), ("topic", rates.of_topic)):
        for what, count in (("msg", throttle.by_messages), ("bytes", throttle.by_bytes)):
            name = f"pulsar_subscription_dispatch_throttled_{what}_events"
            yield Sample(name, count, (*labels, ("reason", reason)), help_of(name))


def _of_clients(
    topic: Topic | NonPersistentTopic,
    subscriptions: Mapping[str, Mapping[str, float]],
    rate_in: float,
    bytes_in: float,
) -> dict[str, float]:
    """What every topic shows of its clients and of what went through it; *rate_in*, *bytes_in* are a second's."""
    every = list(subscriptions.values())
    return {
        "pulsar_subscriptions_count": len(subscriptions),
        "pulsar_producers_count": sum(not producer.is_waiting for producer in topic.producers.values()),
        "pulsar_consumers_count": sum(numbers["pulsar_subscription_consumers_count"] for numbers in every),
        "pulsar_rate_in": rate_in,
        "pulsar_rate_out": sum(numbers["pulsar_subscription_msg_rate_out"] for numbers in every),
        "pulsar_throughput_in": bytes_in,
        "pulsar_throughput_out": sum(numbers["pulsar_subscription_msg_throughput_out"] for numbers in every),
        "pulsar_average_msg_size": bytes_in / rate_in if rate_in else 0.0,
        "pulsar_in_messages_total": topic.messages_in,
        "pulsar_in_bytes_total": topic.bytes_in,
        "pulsar_publish_rate_limit_times": topic.publish_throttle.times,
    }


def _of_passing_topic(topic: NonPersistentTopic, subscriptions: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    producers = [producer for producer in topic.producers.values() if not producer.is_waiting]
    rate_in = sum(producer.rates.values[MESSAGE_RATE] for producer in producers)
    bytes_in = sum(producer.rates.values[BYTE_RATE] for producer in producers)
    return {
        **_of_clients(topic, subscriptions, rate_in, bytes_in),
        "magnetar_publish_drop_rate": sum(producer.rates.values[DROP_RATE] for producer in producers),
    }


def _of_passing_subscription(subscription: NonPersistentSubscription) -> dict[str, float]:
    consumers = list(subscription.consumers)
    return {
        "pulsar_subscription_msg_rate_out": sum(consumer.rates.values[MESSAGE_RATE] for consumer in consumers),
        "pulsar_subscription_msg_throughput_out": sum(consumer.rates.values[BYTE_RATE] for consumer in consumers),
        "pulsar_subscription_msg_drop_rate": subscription.drops.values[0],
        "pulsar_subscription_consumers_count": len(consumers),
        "pulsar_out_messages_total": subscription.messages_out_in_all,
        "pulsar_out_bytes_total": subscription.bytes_out_in_all,
    }


def _of_quota_checks(cluster: tuple[str, str], checks: Period) -> Iterator[Sample]:
    """A histogram; the sample's lines stand in families of their own, which Prometheus takes for the same."""
    name, text = "pulsar_storage_backlog_quota_check_duration_seconds", "rounds over all backlogs, by their seconds"
    counted = 0
    for bound, count in zip(QUOTA_CHECK_BOUNDS, checks.counts, strict=False):
        counted += count
        yield Sample(f"{name}_bucket", counted, (cluster, ("le", str(bound / 1000))), text, "counter")
    yield Sample(f"{name}_bucket", checks.total, (cluster, ("le", "+Inf")), text, "counter")
    yield Sample(f"{name}_count", checks.total, (cluster,), text, "counter")
    yield Sample(f"{name}_sum", checks.sum / 1000, (cluster,), text, "counter")


def topic_numbers(topic: Topic) -> dict[str, float]:
    """The metrics of one topic, by name."""
    return _of_topic(
        topic, {name: _of_subscription(topic, subscription) for name, subscription in list(topic.subscriptions.items())}
    )


def _samples(numbers: Mapping[str, float], labels: Labels) -> Iterator[Sample]:
    for name, value in numbers.items():
        yield Sample(name, value, labels, help_of(name))


def _of_topic(topic: Topic, subscriptions: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    rate_in, bytes_in, written, read, missed = topic.rates.values
    ledger, compaction = topic.ledger, topic.compactor.facts
    backlog = [values["pulsar_subscription_back_log"] for values in subscriptions.values()]
    durable = [
        subscription.cursor.mark_delete_position
        for subscription in topic.subscriptions.values()
        if subscription.is_durable
    ]
    numbers: dict[str, float] = {
        **_of_clients(topic, subscriptions, rate_in, bytes_in),
        "pulsar_storage_size": ledger.bytes_total * ledger.config.write_quorum,
        "pulsar_storage_logical_size": ledger.bytes_total,
        "pulsar_storage_backlog_size": ledger.bytes_after(min(durable)) if durable else 0,
        "pulsar_storage_backlog_age_seconds": topic.oldest_backlog()[0],
        "pulsar_msg_backlog": sum(backlog),
        "pulsar_storage_backlog_quota_limit": topic.limits.storage_quota.limit_bytes,
        "pulsar_storage_backlog_quota_limit_time": topic.limits.age_quota.limit_s,
        "pulsar_delayed_message_index_size_bytes": sum(
            subscription["pulsar_subscription_delayed_message_index_size_bytes"]
            for subscription in subscriptions.values()
        ),
        "magnetar_lost_entries_skipped_total": ledger.passed_over_entries,
    }
    numbers |= {
        "pulsar_storage_write_rate": written,
        "pulsar_storage_read_rate": read,
        "pulsar_storage_read_cache_misses_rate": missed,
        **dict(_of_period("pulsar_entry_size", SIZE_NAMES, "le_overflow", topic.entry_sizes)),
        **dict(_of_period("pulsar_storage_write_latency", LATENCY_NAMES, "overflow", topic.write_latencies)),
        **dict(_of_period("pulsar_storage_ledger_write_latency", LATENCY_NAMES, "overflow", ledger.write_latencies)),
    }
    if compaction.succeeded_ms or compaction.looked_at:  # also while the first one runs
        numbers["pulsar_compaction_compacted_entries_count"] = compaction.looked_at
    if compaction.succeeded_ms:
        numbers["pulsar_compaction_removed_event_count"] = compaction.removed_messages
        numbers["pulsar_compaction_duration_time_in_mills"] = compaction.took_ms
    return numbers


def _of_period(name: str, bounds: Sequence[str], overflow: str, period: Period) -> Iterator[tuple[str, float]]:
    for bound, count in zip(bounds, period.counts, strict=False):
        yield f"{name}_le_{bound}", count
    yield f"{name}_{overflow}", period.counts[-1]
    yield f"{name}_count", period.total
    yield f"{name}_sum", period.sum


def _of_subscription(topic: Topic, subscription: Subscription, config: BrokerConfig | None = None) -> dict[str, float]:
    consumers = subscription.consumers
    backlog, held = subscription.cursor.backlog(), subscription.held
    counted, (rate, size, redelivered, acked, _, expired) = subscription.counted, subscription.rates.values
    return {
        **_size_of(topic, subscription.cursor, config),
        # Worked out where nobody consumes only: few subscriptions, and the ones that an alert is about.
        "magnetar_subscription_unread_bytes": 0 if consumers else unread_bytes(topic, subscription.cursor),
        "pulsar_subscription_back_log": backlog,
        "pulsar_subscription_back_log_no_delayed": max(backlog - held.delayed, 0),
        "pulsar_subscription_delayed": held.delayed,
        "pulsar_subscription_delayed_message_index_size_bytes": held.delayed * DELAYED_SIZE,
        "pulsar_subscription_unacked_messages": subscription.unacked_messages,
        "pulsar_subscription_blocked_on_unacked_messages": held.is_blocked,
        "magnetar_subscription_blocked_consumers": sum(consumer.is_blocked for consumer in consumers),
        "pulsar_subscription_msg_rate_out": rate,
        "pulsar_subscription_msg_throughput_out": size,
        "pulsar_subscription_msg_rate_redeliver": redelivered,
        "pulsar_subscription_msg_ack_rate": acked,
        "pulsar_subscription_msg_rate_expired": expired,
        "pulsar_subscription_in_replay": held.replayed,
        "pulsar_subscription_last_mark_delete_advanced_timestamp": subscription.acking.last_advanced_ms,
        "pulsar_subscription_consumers_count": len(consumers),
        "pulsar_subscription_last_acked_timestamp": subscription.acking.last_acked_ms,
        "pulsar_subscription_last_consumed_timestamp": subscription.pump.last_consumed_ms,
        "pulsar_subscription_last_consumed_flow_timestamp": subscription.last_flow_ms,
        "pulsar_subscription_total_msg_expired": subscription.expired_entries,
        "pulsar_subscription_last_expire_timestamp": subscription.last_expired_ms,
        "pulsar_out_messages_total": counted.messages,
        "pulsar_out_bytes_total": counted.bytes,
    }


def _of_compaction(topic: Topic, cursor: ManagedCursor, config: BrokerConfig) -> dict[str, float]:
    """The cursor of compaction, shown as Apache's brokers show it: its backlog is what the next compaction looks at.
    They count what their compactor reads as messages that went out, too; ours asks nobody to send it anything."""
    backlog = cursor.backlog()
    return {
        **_size_of(topic, cursor, config),
        "pulsar_subscription_back_log": backlog,
        "pulsar_subscription_back_log_no_delayed": backlog,
        "magnetar_subscription_unread_bytes": 0,  # nobody is missing who would consume it
        **_NOT_CONSUMED,
    }


def _of_remote(topic: Topic, cursor: ManagedCursor) -> dict[str, float]:
    """The cursor by which Apache's brokers replicate a topic to another cluster."""
    return {
        "pulsar_replication_backlog": cursor.backlog(),
        "magnetar_replication_backlog_size": unread_bytes(topic, cursor),
    }


def _size_of(topic: Topic, cursor: CursorPort | ManagedCursor, config: BrokerConfig | None) -> dict[str, float]:
    """The bytes behind a cursor, where the settings want them shown."""
    if config is None or not config.expose_backlog_size:
        return {}
    return {"magnetar_subscription_back_log_size": unread_bytes(topic, cursor)}


def unread_bytes(topic: Topic, cursor: CursorPort | ManagedCursor) -> int:
    """The bytes behind a cursor, estimated."""
    return topic.ledger.bytes_after(cursor.mark_delete_position) if cursor.backlog() else 0


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


def _certificates(broker: Broker) -> list[Certificates]:
    return [certificates for certificates in (broker.certificates, broker.web_certificates) if certificates is not None]


def certificate_left_s(broker: Broker) -> float | None:
    """How long the certificates of the broker's ports are still valid, the shortest; None: it has none."""
    return min((certificates.ends_s - broker.now_ms() / 1000 for certificates in _certificates(broker)), default=None)


def open_keys(broker: Broker) -> list[str]:
    """The files with keys of the broker's ports and tokens that every user of its machine may read."""
    config = broker.config
    ports = [certificates.files.secrets for certificates in _certificates(broker)]
    tokens = [path_in(text) for text in (config.token_secret_key, *config.token_secret_keys) if text]
    return open_to_others([*chain.from_iterable(ports), *filter(None, tokens)])


def _of_security(broker: Broker) -> Iterator[Sample]:
    server, doors = broker.server, broker.doors
    text = "files with keys of the ports and of tokens that every user of the machine may read"
    yield Sample("magnetar_broker_keys_open_to_others", len(open_keys(broker)), (), text)
    failed = server.handshakes_failed
    yield Sample("magnetar_broker_tls_handshakes_failed_total", failed, help="TLS handshakes at the binary port")
    if broker.certificates is not None or broker.web_certificates is not None:
        text = "when the certificate of the ports with TLS ends, wall clock"
        ends_s = broker.now_ms() / 1000 + (certificate_left_s(broker) or 0)
        yield Sample("magnetar_broker_certificate_ends_timestamp_seconds", ends_s, (), text)
    if doors is None:
        return
    for name, counts, what in (
        ("pulsar_authentication_success_total", doors.successes, "clients and requests that were authenticated"),
        ("pulsar_authentication_failures_total", doors.failures, "clients and requests that were refused"),
    ):
        for method in sorted({*PROVIDERS.values(), "anonymous"}):
            yield Sample(name, counts[method], (("auth_method", method),), what)
