"""The records of namespaces and clusters in the metadata store: JSON with Apache's members. No IO.

Members that this broker does not know are kept when a record is written again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from broker.names import Bundles
from broker.policies.permissions import NONE_GRANTED, Permissions, parse_permissions
from broker.settings.quotas import (
    HOLD,
    NO_SUBSCRIPTIONS,
    BacklogQuota,
    DispatchRate,
    GroupRates,
    InactiveTopics,
    PublishRate,
    SubscribeRate,
)
from magnetar_core.bookkeeper.client.placing.isolation import Isolation
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption

WRITES: Final = "magnetar.writes"
WRITES_STOPPED: Final = "stopped"
"""A property of a namespace and the value with which nobody may publish there. Apache's brokers keep it and do not
apply it."""

RESOURCE_GROUP: Final = "resource_group_name"
"""The member of a namespace's record that names its resource group."""

RESOURCE_GROUP_MEMBERS: Final = (
    "publishRateInMsgs",
    "publishRateInBytes",
    "dispatchRateInMsgs",
    "dispatchRateInBytes",
)
"""The members of a resource group's record: messages and bytes a second; absent, 0 or less: any number."""


@dataclass(frozen=True, slots=True)
class AutoCreation:
    """Whether a topic is created when a client uses it, and with how many partitions."""

    allowed: bool
    partitions: int
    """0: not partitioned."""


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """The policies of a namespace that this broker applies. None: the broker's own setting counts."""

    bundles: Bundles
    bookie_groups: Isolation | None = None
    """The groups of bookies for its ledgers; None: those of the broker."""
    deduplication: bool | None = None
    retention_minutes: int | None = None
    retention_mbytes: int | None = None
    ensemble_size: int | None = None
    write_quorum: int | None = None
    ack_quorum: int | None = None
    mark_delete_rate: float | None = None
    schema_strategy: str | None = None
    schema_auto_update: bool | None = None
    schema_validation: bool = False
    auto_creation: AutoCreation | None = None
    auto_subscription_creation: bool | None = None
    encryption_required: bool = False
    max_producers_per_topic: int | None = None
    max_consumers_per_topic: int | None = None
    max_consumers_per_subscription: int | None = None
    max_unacked_per_consumer: int | None = None
    max_unacked_per_subscription: int | None = None
    pause_for_acks: bool | None = None
    """Whether nothing new is delivered while more is acknowledged out of order than can be stored."""
    delayed_delivery: bool | None = None
    delayed_delivery_tick_ms: int | None = None
    subscription_types: frozenset[str] = frozenset()
    """Empty: all."""
    permissions: Permissions = NONE_GRANTED
    message_ttl_s: int | None = None
    delayed_delivery_max_ms: int | None = None
    """The longest delay that a message may ask for; 0: any."""
    deduplication_snapshot_s: int | None = None
    max_subscriptions_per_topic: int | None = None
    max_topics: int | None = None
    subscription_expiration_minutes: int | None = None
    compaction_threshold_bytes: int | None = None
    inactive_topics: InactiveTopics | None = None
    storage_quota: BacklogQuota | None = None
    age_quota: BacklogQuota | None = None
    publish_rate: PublishRate | None = None
    dispatch_rate: DispatchRate | None = None
    subscription_dispatch_rate: DispatchRate | None = None
    subscribe_rate: SubscribeRate | None = None
    resource_group: str | None = None
    """The name of its resource group; None: it is in none."""
    max_message_bytes: int | None = None
    """Only a topic has it, as what follows."""
    rates_of_subscriptions: Mapping[str, DispatchRate] = field(default_factory=dict)
    stops_writes: bool = False
    """Nobody may publish, until an operator allows it again."""
    deleted: bool = False
    raw: dict[str, Any] = field(default_factory=dict)

    def is_same_but_for_bundles(self, other: "NamespacePolicies") -> bool:
        """Whether topics need not know of the difference."""
        if self != replace(other, bundles=self.bundles, raw=self.raw):
            return False
        members = (self.raw.keys() | other.raw.keys()) - {"bundles"}
        return all(self.raw.get(member) == other.raw.get(member) for member in members)


def parse_policies(value: bytes, path: str, cluster: str = "") -> NamespacePolicies:
    """The policies in the node *path*; those that each cluster has for itself of *cluster*. Raises Corruption."""
    try:
        raw = parse_json(value) if value else {}
        return _policies(raw, cluster)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, OverflowError) as error:
        raise Corruption(
            f"{path}: expected the JSON of a namespace's policies, found {value[:80]!r} ({error})"
        ) from error


class LocalPolicies(NamedTuple):
    """What one cluster keeps of a namespace for itself."""

    bundles: Bundles | None
    """None: it names none."""
    bookie_groups: Isolation | None


def parse_local_policies(value: bytes, path: str) -> LocalPolicies:
    """The node *path* of a namespace's local policies. Raises Corruption."""
    try:
        raw = parse_json(value) if value else {}
        boundaries = (raw.get("bundles") or {}).get("boundaries")
        affinity = raw.get("bookieAffinityGroup")
        groups = None
        if affinity is not None:
            groups = Isolation(
                affinity.get("bookkeeperAffinityGroupPrimary"), affinity.get("bookkeeperAffinityGroupSecondary")
            )
        return LocalPolicies(Bundles.from_texts(boundaries) if boundaries else None, groups)
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        raise Corruption(f"{path}: expected the JSON of local policies, found {value[:80]!r} ({error})") from error


def _policies(raw: dict[str, Any], cluster: str) -> NamespacePolicies:
    quotas = raw.get("backlog_quota_map") or {}

    def of_cluster(member: str) -> dict[str, Any] | None:
        return (raw.get(member) or {}).get(cluster)

    retention = raw.get("retention_policies") or {}
    persistence = raw.get("persistence") or {}
    override = raw.get("autoTopicCreationOverride")
    delayed = raw.get("delayed_delivery_policies") or {}
    subscription_override = raw.get("autoSubscriptionCreationOverride") or {}
    auto_creation = None
    if override is not None:
        partitioned = override.get("topicType") == "partitioned"
        auto_creation = AutoCreation(
            bool(override["allowAutoTopicCreation"]),
            _integer(override, "defaultNumPartitions") or 1 if partitioned else 0,
        )
    strategy = raw.get("schema_compatibility_strategy")
    if strategy in (None, "UNDEFINED"):
        # The older member, in the older spelling: "Full", "Backward", "AutoUpdateDisabled", …
        strategy = OLD_STRATEGIES.get(raw.get("schema_auto_update_compatibility_strategy") or "")
    boundaries = (raw.get("bundles") or {}).get("boundaries")
    return NamespacePolicies(
        bundles=Bundles.from_texts(boundaries) if boundaries else Bundles.equal(1),
        deduplication=raw.get("deduplicationEnabled"),
        retention_minutes=_integer(retention, "retentionTimeInMinutes"),
        retention_mbytes=_integer(retention, "retentionSizeInMB"),
        ensemble_size=_integer(persistence, "bookkeeperEnsemble"),
        write_quorum=_integer(persistence, "bookkeeperWriteQuorum"),
        ack_quorum=_integer(persistence, "bookkeeperAckQuorum"),
        mark_delete_rate=_number(persistence, "managedLedgerMaxMarkDeleteRate"),
        schema_strategy=strategy,
        schema_auto_update=raw.get("is_allow_auto_update_schema"),
        schema_validation=bool(raw.get("schema_validation_enforced")),
        auto_creation=auto_creation,
        auto_subscription_creation=subscription_override.get("allowAutoSubscriptionCreation"),
        encryption_required=bool(raw.get("encryption_required")),
        max_producers_per_topic=_integer(raw, "max_producers_per_topic"),
        max_consumers_per_topic=_integer(raw, "max_consumers_per_topic"),
        max_consumers_per_subscription=_integer(raw, "max_consumers_per_subscription"),
        max_unacked_per_consumer=_integer(raw, "max_unacked_messages_per_consumer"),
        max_unacked_per_subscription=_integer(raw, "max_unacked_messages_per_subscription"),
        pause_for_acks=raw.get("dispatcherPauseOnAckStatePersistentEnabled"),
        delayed_delivery=delayed.get("active"),
        delayed_delivery_tick_ms=_integer(delayed, "tickTime"),
        subscription_types=frozenset(raw.get("subscription_types_enabled") or ()),
        permissions=parse_permissions(raw),
        message_ttl_s=_integer(raw, "message_ttl_in_seconds"),
        delayed_delivery_max_ms=_integer(delayed, "maxDeliveryDelayInMillis"),
        deduplication_snapshot_s=_integer(raw, "deduplicationSnapshotIntervalSeconds"),
        max_subscriptions_per_topic=_integer(raw, "max_subscriptions_per_topic"),
        max_topics=_integer(raw, "max_topics_per_namespace"),
        subscription_expiration_minutes=_integer(raw, "subscription_expiration_time_minutes"),
        stops_writes=(raw.get("properties") or {}).get(WRITES) == WRITES_STOPPED,
        compaction_threshold_bytes=_integer(raw, "compaction_threshold"),
        inactive_topics=inactive_topics(raw.get("inactive_topic_policies")),
        storage_quota=backlog_quota(quotas.get("destination_storage")),
        age_quota=backlog_quota(quotas.get("message_age")),
        publish_rate=publish_rate(of_cluster("publishMaxMessageRate")),
        dispatch_rate=dispatch_rate(of_cluster("topicDispatchRate")),
        subscription_dispatch_rate=dispatch_rate(of_cluster("subscriptionDispatchRate")),
        subscribe_rate=subscribe_rate(of_cluster("clusterSubscribeRate")),
        resource_group=_text(raw, RESOURCE_GROUP),
        deleted=bool(raw.get("deleted")),
        raw=raw,
    )


def parse_resource_group(value: bytes, path: str) -> GroupRates:
    """The rates of a resource group, from the node *path*. Raises Corruption."""
    try:
        raw = parse_json(value) if value else {}
        numbers = [max(_integer(raw, name) or 0, 0) for name in RESOURCE_GROUP_MEMBERS]
    except (ValueError, TypeError, AttributeError) as error:
        raise Corruption(f"{path}: expected the JSON of a resource group, found {value[:80]!r} ({error})") from error
    publish_messages, publish_bytes, dispatch_messages, dispatch_bytes = numbers
    return GroupRates(PublishRate(publish_messages, publish_bytes), DispatchRate(dispatch_messages, dispatch_bytes, 1))


def publish_rate(value: dict[str, Any] | None) -> PublishRate | None:
    """From JSON as it is stored. Raises ValueError, like those below."""
    if value is None:
        return None
    return PublishRate(
        _integer(value, "publishThrottlingRateInMsg") or 0, _integer(value, "publishThrottlingRateInByte") or 0
    )


def dispatch_rate(value: dict[str, Any] | None) -> DispatchRate | None:
    """From JSON as it is stored; a period of 0 counts as one second."""
    if value is None:
        return None
    return DispatchRate(
        _integer(value, "dispatchThrottlingRateInMsg") or 0,
        _integer(value, "dispatchThrottlingRateInByte") or 0,
        max(_integer(value, "ratePeriodInSecond") or 1, 1),
        bool(value.get("relativeToPublishRate")),
    )


def subscribe_rate(value: dict[str, Any] | None) -> SubscribeRate | None:
    """From JSON as it is stored."""
    if value is None:
        return None
    return SubscribeRate(
        _integer(value, "subscribeThrottlingRatePerConsumer") or 0, max(_integer(value, "ratePeriodInSecond") or 30, 1)
    )


def backlog_quota(value: dict[str, Any] | None) -> BacklogQuota | None:
    """From JSON as it is stored; `limit` is the older name of `limitSize`."""
    if value is None:
        return None
    size = _integer(value, "limitSize")
    return BacklogQuota(
        (_integer(value, "limit") or 0) if size is None else size,
        _integer(value, "limitTime") or 0,
        str(value.get("policy") or HOLD),
    )


def inactive_topics(value: dict[str, Any] | None) -> InactiveTopics | None:
    """From JSON as it is stored."""
    if value is None:
        return None
    return InactiveTopics(
        bool(value.get("deleteWhileInactive")),
        str(value.get("inactiveTopicDeleteMode") or NO_SUBSCRIPTIONS),
        _integer(value, "maxInactiveDurationSeconds") or 0,
    )


def _text(record: dict[str, Any], name: str) -> str | None:
    """A member that is a text, or absent. Raises ValueError."""
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {str(value)[:80]}, not a text")
    return value


def _integer(record: dict[str, Any], name: str) -> int | None:
    """A member that is a whole number of 64 bits, or absent. Raises ValueError."""
    value = _number(record, name)
    if value is None:
        return None
    if int(value) != value or not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} is {value}, not a whole number of 64 bits")
    return int(value)


def _number(record: dict[str, Any], name: str) -> float | None:
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {str(value)[:80]}, not a number")
    return value


OLD_STRATEGIES: Final = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}


def new_policies(cluster: str, bundles: int) -> dict[str, Any]:
    """The record of a namespace in which no policy was set, with Apache's members in Apache's order."""
    cut = Bundles.equal(bundles)
    return {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": [cluster],
        "allowed_clusters": [],
        "bundles": {"boundaries": cut.texts, "numBundles": bundles},
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": False,
        "clusterThatCanDeleteNamespace": cluster,
    }


CLUSTER_FLAGS: Final = ("brokerClientTlsEnabled", "tlsAllowInsecureConnection", "brokerClientTlsEnabledWithKeyStore")
"""What the record of every cluster has; they are off where nobody says otherwise. Texts that were not given are left
out, as Apache's broker leaves them out."""


def new_cluster(service_url: str = "", broker_service_url: str = "") -> dict[str, Any]:
    """The record of a cluster as it is initialised; both URLs empty for the entry called `global`."""
    record: dict[str, Any] = {}
    if service_url:
        record["serviceUrl"] = service_url
    if broker_service_url:
        record["brokerServiceUrl"] = broker_service_url
    return record | {
        **dict.fromkeys(CLUSTER_FLAGS, False),
        "brokerClientTlsTrustStoreType": "JKS",
        "brokerClientTlsKeyStoreType": "JKS",
        "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
    }
