"""The policies of a single topic: their values, and what is in force where the topic, its namespace and the broker's
settings say different things. No IO.

A topic's policies are one record with the members of Apache's class TopicPolicies. It is a plain mapping, so that
members that only others use are kept: what another broker has set is still there when this one changes something else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.policies import values
from broker.policies.namespace import (
    NamespacePolicies,
    backlog_quota,
    dispatch_rate,
    inactive_topics,
    publish_rate,
    subscribe_rate,
)
from broker.policies.rules import (
    NO_CONTENT,
    NOTHING,
    UNSET,
    Inside,
    Member,
    Place,
    Policy,
    at_least,
    check_expiration,
    check_persistence,
    check_retention,
    not_plugins,
    strategy,
    subscription_types,
)
from broker.policies.rules import inactive_topics as read_inactive_topics
from broker.policies.values import Read
from broker.records.json_records import InvalidRecord
from broker.settings.config import BrokerConfig
from broker.settings.quotas import AGE, STORAGE, BacklogQuota, DispatchRate, InactiveTopics

Record = Mapping[str, Any]
"""The policies of one topic, with the members of Apache's TopicPolicies."""

SUBSCRIPTION_CREATION: Final = "autoSubscriptionCreationOverride"
"""The member that says whether consumers create the subscriptions that they name."""

# A topic without policies, as Apache's brokers make it.
NONE_SET: Final[Record] = {"backLogQuotaMap": {}, "subscriptionPolicies": {}, "subscriptionTypesEnabled": []}

InForce = Callable[[BrokerConfig, NamespacePolicies], Any]
"""The answer when a client asks which value is in force; the topic's policies are in those of the namespace."""


@dataclass(frozen=True, slots=True)
class Delayed:
    """Three members of the record, one policy."""

    def get(self, record: Mapping[str, Any]) -> Any:
        active = record.get("delayedDeliveryEnabled")
        tick, most = record.get("delayedDeliveryTickTimeMillis"), record.get("delayedDeliveryMaxDelayInMillis")
        if active is None and tick is None:
            return UNSET
        return {"tickTime": tick or 0, "active": bool(active), "maxDeliveryDelayInMillis": most or 0}

    def put(self, record: dict[str, Any], value: Any) -> dict[str, Any]:
        return {
            **record,
            "delayedDeliveryEnabled": value["active"],
            "delayedDeliveryTickTimeMillis": value["tickTime"],
            "delayedDeliveryMaxDelayInMillis": value["maxDeliveryDelayInMillis"],
        }

    def remove(self, record: dict[str, Any]) -> dict[str, Any]:
        names = ("delayedDeliveryEnabled", "delayedDeliveryTickTimeMillis", "delayedDeliveryMaxDelayInMillis")
        return {**record, **dict.fromkeys(names)}


@dataclass(frozen=True, slots=True)
class OfSubscription:
    """The dispatch rate of one subscription of the topic."""

    subscription: str

    def get(self, record: Mapping[str, Any]) -> Any:
        rate = ((record.get("subscriptionPolicies") or {}).get(self.subscription) or {}).get("dispatchRate")
        return UNSET if rate is None else rate

    def put(self, record: dict[str, Any], value: Any) -> dict[str, Any]:
        of_subscriptions = record.get("subscriptionPolicies") or {}
        return {**record, "subscriptionPolicies": {**of_subscriptions, self.subscription: {"dispatchRate": value}}}

    def remove(self, record: dict[str, Any]) -> dict[str, Any]:
        of_subscriptions = record.get("subscriptionPolicies") or {}
        remaining = {name: value for name, value in of_subscriptions.items() if name != self.subscription}
        return {**record, "subscriptionPolicies": remaining}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """A policy of a topic that can be set by itself."""

    policy: Policy
    in_force: InForce | None = None
    """What `applied=true` answers where the topic says nothing; None: as without it."""


def _policy(place: Place | str, read: Read, in_force: InForce | None = None, **other: Any) -> TopicPolicy:
    where = Member(place, removed=None) if isinstance(place, str) else place
    return TopicPolicy(policy=Policy(place=where, read=read, **other), in_force=in_force)


def _count(name: str, member: str, in_force: InForce | None = None, **other: Any) -> TopicPolicy:
    return _policy(member, values.whole, in_force, check=at_least(0, name), **other)


def _first(value: Any, setting: Any) -> Any:
    return setting if value is None else value


def _rate_json(rate: DispatchRate | None) -> dict[str, Any]:
    shown = rate or DispatchRate(0, 0, 1)
    return {
        "dispatchThrottlingRateInMsg": shown.messages,
        "dispatchThrottlingRateInByte": shown.bytes,
        "relativeToPublishRate": shown.is_relative,
        "ratePeriodInSecond": shown.period_s,
    }


def _retention_json(config: BrokerConfig, policies: NamespacePolicies) -> dict[str, int]:
    return {
        "retentionTimeInMinutes": _first(policies.retention_minutes, config.retention_minutes),
        "retentionSizeInMB": _first(policies.retention_mbytes, config.retention_mbytes),
    }


def _persistence_json(config: BrokerConfig, policies: NamespacePolicies) -> dict[str, Any]:
    return {
        "bookkeeperEnsemble": policies.ensemble_size or config.ensemble_size,
        "bookkeeperWriteQuorum": policies.write_quorum or config.write_quorum,
        "bookkeeperAckQuorum": policies.ack_quorum or config.ack_quorum,
        "managedLedgerMaxMarkDeleteRate": _first(policies.mark_delete_rate, config.mark_delete_rate),
    }


def _delayed_json(config: BrokerConfig, policies: NamespacePolicies) -> dict[str, Any]:
    return {
        "tickTime": _first(policies.delayed_delivery_tick_ms, config.delayed_delivery_tick_ms),
        "active": _first(policies.delayed_delivery, config.delayed_delivery),
        "maxDeliveryDelayInMillis": _first(policies.delayed_delivery_max_ms, config.delayed_delivery_max_ms),
    }


def _subscribe_json(config: BrokerConfig, policies: NamespacePolicies) -> dict[str, Any]:
    rate = policies.subscribe_rate or config.subscribe_rate
    return {"subscribeThrottlingRatePerConsumer": rate.subscribes, "ratePeriodInSecond": rate.period_s}


def _inactive_json(config: BrokerConfig, policies: NamespacePolicies) -> dict[str, Any]:
    inactive: InactiveTopics = policies.inactive_topics or config.inactive_topics
    return {
        "inactiveTopicDeleteMode": inactive.mode,
        "maxInactiveDurationSeconds": inactive.idle_s,
        "deleteWhileInactive": inactive.is_on,
    }


def quota_json(quota: BacklogQuota) -> dict[str, Any]:
    """A backlog quota as JSON."""
    return {
        "limit": quota.limit_bytes,
        "limitSize": quota.limit_bytes,
        "limitTime": quota.limit_s,
        "policy": quota.policy,
    }


def quotas_in_force(config: BrokerConfig, policies: NamespacePolicies) -> dict[str, BacklogQuota]:
    """The backlog quotas of a topic, by their types."""
    general = config.backlog_quota
    return {STORAGE: policies.storage_quota or general, AGE: policies.age_quota or general}


def _offload_json(config: BrokerConfig, policies: NamespacePolicies) -> Any:
    return policies.raw.get("offload_policies") or NOTHING


def strategy_in_force(config: BrokerConfig, policies: NamespacePolicies) -> str:
    """The schema compatibility strategy of a topic."""
    return policies.schema_strategy or config.schema_strategy


TOPIC_POLICIES: Final[Mapping[str, TopicPolicy]] = {
    "maxProducers": _count(
        "maxProducers",
        "maxProducerPerTopic",
        lambda config, policies: _first(policies.max_producers_per_topic, config.max_producers_per_topic),
    ),
    "maxConsumers": _count(
        "maxConsumers",
        "maxConsumerPerTopic",
        lambda config, policies: _first(policies.max_consumers_per_topic, config.max_consumers_per_topic),
    ),
    "maxConsumersPerSubscription": _count(
        "maxConsumersPerSubscription", "maxConsumersPerSubscription", unset=NO_CONTENT
    ),
    "maxSubscriptionsPerTopic": _count("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", unset=NO_CONTENT),
    "maxMessageSize": _count("maxMessageSize", "maxMessageSize", unset=NO_CONTENT),
    "maxUnackedMessagesOnConsumer": _count(
        "maxUnackedNum",
        "maxUnackedMessagesOnConsumer",
        lambda config, policies: _first(policies.max_unacked_per_consumer, config.max_unacked_per_consumer),
    ),
    "maxUnackedMessagesOnSubscription": _count(
        "maxUnackedNum",
        "maxUnackedMessagesOnSubscription",
        lambda config, policies: _first(policies.max_unacked_per_subscription, config.max_unacked_per_subscription),
    ),
    "messageTTL": _count(
        "message TTL",
        "messageTTLInSeconds",
        lambda config, policies: _first(policies.message_ttl_s, config.ttl_s),
    ),
    "subscriptionExpirationTime": _policy(  # since 4.2
        "subscriptionExpirationTimeInMinutes",
        values.whole,
        lambda config, policies: _first(
            policies.subscription_expiration_minutes, config.subscription_expiration_minutes
        ),
        check=check_expiration,
    ),
    "retention": _policy("retentionPolicies", values.retention, _retention_json, check=check_retention),
    "persistence": _policy("persistence", values.persistence, _persistence_json, check=check_persistence),
    "publishRate": _policy("publishRate", values.publish_rate, unset=NO_CONTENT),
    "dispatchRate": _policy(
        "dispatchRate",
        values.dispatch_rate,
        lambda config, policies: _rate_json(policies.dispatch_rate or config.dispatch_rate),
    ),
    "subscriptionDispatchRate": _policy(
        "subscriptionDispatchRate",
        values.dispatch_rate,
        lambda config, policies: _rate_json(policies.subscription_dispatch_rate or config.subscription_dispatch_rate),
    ),
    "replicatorDispatchRate": _policy(
        "replicatorDispatchRate", values.dispatch_rate, lambda config, policies: _rate_json(None)
    ),
    "subscribeRate": _policy("subscribeRate", values.subscribe_rate, _subscribe_json),
    "delayedDelivery": _policy(Delayed(), values.delayed_delivery, _delayed_json),
    "dispatcherPauseOnAckStatePersistent": _policy(
        "dispatcherPauseOnAckStatePersistentEnabled",
        values.truth,
        lambda config, policies: _first(policies.pause_for_acks, config.pause_for_acks),
        unset=False,
        switched_on=True,
    ),
    "deduplicationEnabled": _policy(
        "deduplicationEnabled",
        values.truth,
        lambda config, policies: _first(policies.deduplication, config.deduplication),
    ),
    "deduplicationSnapshotInterval": _count("interval", "deduplicationSnapshotIntervalSeconds"),
    "inactiveTopicPolicies": _policy("inactiveTopicPolicies", read_inactive_topics, _inactive_json),
    "compactionThreshold": _policy(
        "compactionThreshold",
        values.long,
        lambda config, policies: _first(policies.compaction_threshold_bytes, config.compaction_threshold_bytes),
        check=at_least(0, "compactionThreshold"),
    ),
    "offloadPolicies": _policy("offloadPolicies", values.offload, _offload_json),
    "schemaCompatibilityStrategy": _policy("schemaCompatibilityStrategy", strategy, strategy_in_force, method="PUT"),
    "schemaValidationEnforced": _policy(
        "schemaValidationEnforced",
        values.truth,
        lambda config, policies: policies.schema_validation or config.schema_validation,
        unset=False,
        is_removable=False,
    ),
    "replication": _policy(
        "replicationClusters", values.names, lambda config, policies: policies.raw.get("replication_clusters") or []
    ),
    "autoSubscriptionCreation": _policy(
        SUBSCRIPTION_CREATION,
        values.auto_subscription_creation,
        lambda config, policies: {
            "allowAutoSubscriptionCreation": _first(
                policies.auto_subscription_creation, config.allow_auto_subscription_creation
            )
        },
    ),
    "subscriptionTypesEnabled": _policy(Member("subscriptionTypesEnabled", removed=[]), subscription_types, unset=[]),
    "entryFilters": _policy("entryFilters", not_plugins, lambda config, policies: {"entryFilterNames": ""}),
}

QUOTAS: Final = "backLogQuotaMap"


def quota(kind: str) -> TopicPolicy:
    """The backlog quota of one of QUOTA_TYPES."""
    return _policy(Inside(QUOTAS, kind, dict), values.backlog_quota)


def rate_of(subscription: str) -> TopicPolicy:
    """The dispatch rate of one subscription."""

    def in_force(config: BrokerConfig, policies: NamespacePolicies) -> dict[str, Any]:
        rates = policies.rates_of_subscriptions
        return _rate_json(
            rates.get(subscription) or policies.subscription_dispatch_rate or config.subscription_dispatch_rate
        )

    return _policy(OfSubscription(subscription), values.dispatch_rate, in_force)


def check_message_size(value: int, broker_bytes: int) -> None:
    """Refuse a limit above that of the broker. Raises InvalidRecord."""
    if not 0 <= value <= broker_bytes:
        raise InvalidRecord(
            "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the "
            f"broker-level ({broker_bytes})"
        )


def of_system_topic(policies: NamespacePolicies) -> NamespacePolicies:
    """What holds for a topic of the brokers in a namespace with *policies*: where and how long it is kept, and nothing
    that is meant for clients."""
    return NamespacePolicies(
        bundles=policies.bundles,
        retention_minutes=policies.retention_minutes,
        retention_mbytes=policies.retention_mbytes,
        ensemble_size=policies.ensemble_size,
        write_quorum=policies.write_quorum,
        ack_quorum=policies.ack_quorum,
        mark_delete_rate=policies.mark_delete_rate,
        schema_strategy="ALWAYS_COMPATIBLE",
        schema_auto_update=True,
        permissions=policies.permissions,
        raw=policies.raw,
    )


def overlay(policies: NamespacePolicies, topic: Record | None) -> NamespacePolicies:
    """The policies of a namespace with those of one of its topics over them. Raises ValueError for a damaged record."""
    if not topic:
        return policies
    changes: dict[str, Any] = {
        "deduplication": topic.get("deduplicationEnabled"),
        "deduplication_snapshot_s": topic.get("deduplicationSnapshotIntervalSeconds"),
        "schema_strategy": _strategy(topic.get("schemaCompatibilityStrategy")),
        "schema_validation": topic.get("schemaValidationEnforced"),
        "auto_subscription_creation": (topic.get(SUBSCRIPTION_CREATION) or {}).get("allowAutoSubscriptionCreation"),
        "max_producers_per_topic": topic.get("maxProducerPerTopic"),
        "max_consumers_per_topic": topic.get("maxConsumerPerTopic"),
        "max_consumers_per_subscription": topic.get("maxConsumersPerSubscription"),
        "max_subscriptions_per_topic": topic.get("maxSubscriptionsPerTopic"),
        "max_unacked_per_consumer": topic.get("maxUnackedMessagesOnConsumer"),
        "max_unacked_per_subscription": topic.get("maxUnackedMessagesOnSubscription"),
        "max_message_bytes": topic.get("maxMessageSize"),
        "pause_for_acks": topic.get("dispatcherPauseOnAckStatePersistentEnabled"),
        "delayed_delivery": topic.get("delayedDeliveryEnabled"),
        "delayed_delivery_tick_ms": topic.get("delayedDeliveryTickTimeMillis"),
        "delayed_delivery_max_ms": topic.get("delayedDeliveryMaxDelayInMillis"),
        "message_ttl_s": topic.get("messageTTLInSeconds"),
        "subscription_expiration_minutes": topic.get("subscriptionExpirationTimeInMinutes"),
        "compaction_threshold_bytes": topic.get("compactionThreshold"),
        "inactive_topics": inactive_topics(topic.get("inactiveTopicPolicies")),
        "publish_rate": publish_rate(topic.get("publishRate")),
        "dispatch_rate": dispatch_rate(topic.get("dispatchRate")),
        "subscription_dispatch_rate": dispatch_rate(topic.get("subscriptionDispatchRate")),
        "subscribe_rate": subscribe_rate(topic.get("subscribeRate")),
        "subscription_types": frozenset(topic.get("subscriptionTypesEnabled") or ()) or None,
        "rates_of_subscriptions": _rates(topic.get("subscriptionPolicies") or {}) or None,
    }
    quotas = topic.get(QUOTAS) or {}
    changes["storage_quota"] = backlog_quota(quotas.get(STORAGE))
    changes["age_quota"] = backlog_quota(quotas.get(AGE))
    retention = topic.get("retentionPolicies")
    if retention is not None:
        changes["retention_minutes"] = retention.get("retentionTimeInMinutes")
        changes["retention_mbytes"] = retention.get("retentionSizeInMB")
    persistence = topic.get("persistence")
    if persistence is not None:
        changes["ensemble_size"] = persistence.get("bookkeeperEnsemble")
        changes["write_quorum"] = persistence.get("bookkeeperWriteQuorum")
        changes["ack_quorum"] = persistence.get("bookkeeperAckQuorum")
        changes["mark_delete_rate"] = persistence.get("managedLedgerMaxMarkDeleteRate")
    return replace(policies, **{name: value for name, value in changes.items() if value is not None})


def _strategy(name: str | None) -> str | None:
    return None if name in (None, "UNDEFINED") else name


def _rates(policies: Mapping[str, Any]) -> dict[str, DispatchRate]:
    rates = {name: dispatch_rate((policy or {}).get("dispatchRate")) for name, policy in policies.items()}
    return {name: rate for name, rate in rates.items() if rate is not None}
