"""The records of namespaces and clusters in the metadata store: JSON with Apache's members.

Members that this broker does not know are kept when a record is written again.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Final

from broker.names import Bundles
from broker.permissions import NONE_GRANTED, Permissions, parse_permissions
from magnetar_core.runtime.json_text import parse_json
from magnetar_core.runtime.types import Corruption


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
    delayed_delivery: bool | None = None
    delayed_delivery_tick_ms: int | None = None
    subscription_types: frozenset[str] = frozenset()
    """Empty: all."""
    permissions: Permissions = NONE_GRANTED
    message_ttl_s: int | None = None
    deleted: bool = False
    raw: dict[str, Any] = field(default_factory=dict)


def parse_policies(value: bytes, path: str) -> NamespacePolicies:
    """The policies in the node *path*. Raises Corruption."""
    try:
        raw = parse_json(value) if value else {}
        return _policies(raw)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, OverflowError) as error:
        raise Corruption(
            f"{path}: expected the JSON of a namespace's policies, found {value[:80]!r} ({error})"
        ) from error


def _policies(raw: dict[str, Any]) -> NamespacePolicies:
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
        strategy = _OLD_STRATEGIES.get(raw.get("schema_auto_update_compatibility_strategy") or "")
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
        delayed_delivery=delayed.get("active"),
        delayed_delivery_tick_ms=_integer(delayed, "tickTime"),
        subscription_types=frozenset(raw.get("subscription_types_enabled") or ()),
        permissions=parse_permissions(raw),
        message_ttl_s=_integer(raw, "message_ttl_in_seconds"),
        deleted=bool(raw.get("deleted")),
        raw=raw,
    )


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


_OLD_STRATEGIES: Final = {
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


def new_cluster(service_url: str = "", broker_service_url: str = "") -> dict[str, Any]:
    """The record of a cluster; both URLs empty for the entry called `global`."""
    record: dict[str, Any] = {}
    if service_url:
        record["serviceUrl"] = service_url
    if broker_service_url:
        record["brokerServiceUrl"] = broker_service_url
    return record | {
        "brokerClientTlsEnabled": False,
        "tlsAllowInsecureConnection": False,
        "brokerClientTlsEnabledWithKeyStore": False,
        "brokerClientTlsTrustStoreType": "JKS",
        "brokerClientTlsKeyStoreType": "JKS",
        "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
    }
