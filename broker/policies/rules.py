"""Which policies of a namespace can be set, where they stand in its record, and which values are refused. No IO.

Values that Apache refuses are refused, and values that the brokers could not apply or not even read afterwards.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from broker.names import Bundles
from broker.policies import values
from broker.policies.namespace import OLD_STRATEGIES, new_policies, parse_policies
from broker.policies.permissions import SUBSCRIPTION_AUTH_MODES
from broker.policies.values import NotAValue, Read
from broker.records.json_records import InvalidRecord, to_json
from broker.settings.groups.cluster import BUNDLES_MAX
from broker.settings.groups.topics import PARTITIONS_MAX
from broker.settings.quotas import DELETE_MODES, QUOTA_TYPES
from magnetar_core.bookkeeper.client.deciding.quorum import ENSEMBLE_SIZE_MAX
from magnetar_core.runtime.types import MIB, Corruption
from managed_ledger.schemas.compatibility import Strategy


class NotAnObject(InvalidRecord):
    """The value is not a JSON object."""


class InvalidQuorums(InvalidRecord):
    """Ensemble size, write quorum and ack quorum contradict each other."""


class InvalidRetention(InvalidRecord):
    """Time and size of the retention contradict each other."""


class NoSuchCluster(InvalidRecord):
    """A cluster is named that is not there, or that the tenant may not use."""


class NotRemovable(InvalidRecord):
    """The policy has no value that means "not set"."""


UNSET: Final = object()
"""The policy is not set."""

NOTHING: Final = object()
"""Told of a policy that is not set: an empty answer."""

NO_CONTENT: Final = object()
"""Told of a policy that is not set: 204."""


class Place(Protocol):
    """Where a policy stands in the record of a namespace."""

    def get(self, record: Mapping[str, Any]) -> Any:
        """The value; UNSET if there is none."""
        ...

    def put(self, record: dict[str, Any], value: Any) -> dict[str, Any]:
        """The record with *value*."""
        ...

    def remove(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record without the policy: the broker's setting counts again."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the record."""

    name: str
    removed: Any = UNSET
    """What is written when the policy is removed; UNSET: nothing, and the member goes."""

    def get(self, record: Mapping[str, Any]) -> Any:
        value = record.get(self.name)
        return UNSET if value is None else value

    def put(self, record: dict[str, Any], value: Any) -> dict[str, Any]:
        return {**record, self.name: value}

    def remove(self, record: dict[str, Any]) -> dict[str, Any]:
        if self.removed is not UNSET:
            return {**record, self.name: self.removed}
        return {name: value for name, value in record.items() if name != self.name}


@dataclass(frozen=True, slots=True)
class OfCluster:
    """A value for each cluster, of which only that of the broker's own cluster is looked at: `{cluster: value}`."""

    names: tuple[str, ...]
    """The members; the first is read, all are written."""
    cluster: str

    def get(self, record: Mapping[str, Any]) -> Any:
        value = (record.get(self.names[0]) or {}).get(self.cluster)
        return UNSET if value is None else value

    def put(self, record: dict[str, Any], value: Any) -> dict[str, Any]:
        return {**record, **{name: {**(record.get(name) or {}), self.cluster: value} for name in self.names}}

    def remove(self, record: dict[str, Any]) -> dict[str, Any]:
        return {**record, **{name: _without(record.get(name) or {}, self.cluster) for name in self.names}}


@dataclass(frozen=True, slots=True)
class Inside:
    """A member of an object in the record, which is made where it is missing."""

    outer: str
    name: str
    made: Callable[[], dict[str, Any]]

    def get(self, record: Mapping[str, Any]) -> Any:
        value = (record.get(self.outer) or {}).get(self.name)
        return UNSET if value is None else value

    def put(self, record: dict[str, Any], value: Any) -> dict[str, Any]:
        return {**record, self.outer: {**(record.get(self.outer) or self.made()), self.name: value}}

    def remove(self, record: dict[str, Any]) -> dict[str, Any]:
        outer = record.get(self.outer)
        return record if outer is None else {**record, self.outer: _without(outer, self.name)}


def _without(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {member: value for member, value in record.items() if member != name}


def _anything(value: Any) -> None:
    """No value is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy of a namespace that can be set by itself."""

    place: Place
    read: Read
    """Brings what a client sends into the form that is stored."""
    check: Callable[[Any], None] = _anything
    """Refuses values that are of the right kind and make no sense."""
    method: str = "POST"
    """The method of HTTP which sets it."""
    status: int = 204
    """The answer when it was set."""
    unset: Any = NOTHING
    """The answer where it is not set: a value, NOTHING or NO_CONTENT."""
    is_removable: bool = True
    """DELETE removes it."""
    is_removed_by_nothing: bool = False
    """Setting it with an empty body removes it, as pulsar-admin does."""
    switched_on: Any = UNSET
    """What setting it stores, with any body: there is nothing to choose. UNSET: what the body says."""


def at_least(least: int, name: str) -> Callable[[int], None]:
    """A check that refuses numbers below *least*."""

    def check(value: int) -> None:
        if value < least:
            raise InvalidRecord(f"{name} must be {least} or more")

    return check


def _count(name: str, member: str) -> Policy:
    return Policy(place=Member(member), read=values.whole, check=at_least(0, name))


def check_expiration(minutes: int) -> None:
    """Raises InvalidRecord."""
    if minutes < 0:
        raise InvalidRecord("Invalid value for subscription expiration time")


def check_retention(value: dict[str, Any]) -> None:
    """Refuse a retention by which nothing could be kept. Raises InvalidRetention."""
    minutes, mbytes = value["retentionTimeInMinutes"], value["retentionSizeInMB"]
    for what, limit in (("time", minutes), ("size", mbytes)):
        if limit < -1:
            raise InvalidRetention(f"Invalid retention policy: {what} limit must be >= -1")
    if (minutes == 0) != (mbytes == 0):
        raise InvalidRetention(
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has "
            "a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both "
            "limits must be set to 0."
        )


def exceeds_retention(quota_bytes: int, quota_s: int, retention: Mapping[str, int] | None) -> bool:
    """Whether a backlog quota lets more wait than *retention* keeps; 0 or less: no limit there."""
    if retention is None:
        return False
    kept_bytes, kept_s = retention["retentionSizeInMB"] * MIB, retention["retentionTimeInMinutes"] * 60
    return (0 < kept_bytes <= quota_bytes) or (0 < kept_s <= quota_s)


def check_persistence(value: dict[str, Any]) -> None:
    """Refuse quorums that contradict each other. Raises InvalidQuorums, InvalidRecord."""
    sizes = [value[f"bookkeeper{part}"] for part in ("Ensemble", "WriteQuorum", "AckQuorum")]
    if not sizes[0] >= sizes[1] >= sizes[2] >= 0:
        raise InvalidQuorums("Bookkeeper Ensemble ({}) >= WriteQuorum ({}) >= AckQuorum ({})".format(*sizes))
    if sizes[0] > ENSEMBLE_SIZE_MAX:
        raise InvalidRecord(f"Bookkeeper Ensemble ({sizes[0]}) must be at most {ENSEMBLE_SIZE_MAX} bookies")


def _check_auto_topic_creation(value: dict[str, Any]) -> None:
    if not value["allowAutoTopicCreation"]:
        return
    kind, count = value.get("topicType"), value.get("defaultNumPartitions")
    begin = "Invalid configuration for autoTopicCreationOverride. the detail is"
    if kind not in ("partitioned", "non-partitioned"):
        raise InvalidRecord(f"{begin} Unknown topic type [{'null' if kind is None else kind}]")
    if kind == "non-partitioned":
        if count is not None:
            raise InvalidRecord(
                f"{begin} [defaultNumPartitions] is not allowed to be set when the type is non-partition."
            )
        return
    if count is None:
        raise InvalidRecord(f"{begin} [defaultNumPartitions] cannot be null when the type is partitioned.")
    if count < 1:
        raise InvalidRecord(f"{begin} [defaultNumPartitions] cannot be less than 1 for partition type.")
    if count > PARTITIONS_MAX:
        raise InvalidRecord(f"{begin} [defaultNumPartitions] cannot be above {PARTITIONS_MAX}.")


def strategy(value: Any) -> str:
    """The name of a schema compatibility strategy. Raises InvalidRecord."""
    name = values.text(value) or "UNDEFINED"
    try:
        return Strategy(name).value
    except ValueError:
        names = ", ".join(strategy.value for strategy in Strategy)
        raise InvalidRecord(f"unknown strategy {name[:100]}; strategies are {names}") from None


def _old_strategy(value: Any) -> str:
    name = values.text(value) or ""
    if name not in OLD_STRATEGIES:
        raise InvalidRecord(f"unknown strategy {name[:100]}; strategies are {', '.join(OLD_STRATEGIES)}")
    return name


def _subscription_auth_mode(value: Any) -> str:
    if value not in SUBSCRIPTION_AUTH_MODES:
        raise InvalidRecord(f"unknown mode {str(value)[:100]!r}; modes are {', '.join(SUBSCRIPTION_AUTH_MODES)}")
    return str(value)


def subscription_types(value: Any) -> list[str]:
    """Types of subscriptions. Raises NotAValue, InvalidRecord."""
    types = values.names(value)
    for name in types:
        if name not in values.SUBSCRIPTION_TYPES:
            names = ", ".join(values.SUBSCRIPTION_TYPES)
            raise InvalidRecord(f"unknown type of subscriptions {name[:100]!r}; types are {names}")
    return types


def inactive_topics(value: Any) -> dict[str, Any]:
    """The policy that says when unused topics are deleted, as it is stored.

    Raises InvalidRecord for a mode that does not exist, and NotAValue as `values` does for the other fields.
    """
    mode = value.get("inactiveTopicDeleteMode") if isinstance(value, dict) else None
    if mode is not None and mode not in DELETE_MODES:
        raise InvalidRecord(f"unknown mode {str(mode)[:100]!r}; modes are {', '.join(DELETE_MODES)}")
    return dict(values.inactive_topics(value))


def not_plugins(value: Any) -> Any:
    """Entry filters are classes of Java. Raises InvalidRecord for anything but an empty list."""
    filters = value.get("entryFilterNames") if isinstance(value, dict) else value
    if filters:
        raise NotAValue(
            f"entry filters are Java classes, which are not served by this broker; {str(filters)[:100]!r} is not used"
        )
    return {"entryFilterNames": ""}


def _no_offloading() -> dict[str, Any]:
    return values.offload({})


def _offload(member: str, **other: Any) -> Policy:
    return Policy(place=Inside("offload_policies", member, _no_offloading), read=values.long, method="PUT", **other)


def policies_of(cluster: str) -> Mapping[str, Policy]:
    """The policies by their names in the admin API; *cluster* is the broker's own."""
    rate = {
        "publishRate": (values.publish_rate, ("publishMaxMessageRate",)),
        "dispatchRate": (values.dispatch_rate, ("topicDispatchRate", "clusterDispatchRate")),
        "subscriptionDispatchRate": (values.dispatch_rate, ("subscriptionDispatchRate",)),
        "replicatorDispatchRate": (values.dispatch_rate, ("replicatorDispatchRate",)),
        "subscribeRate": (values.subscribe_rate, ("clusterSubscribeRate",)),
    }
    rates = {name: Policy(place=OfCluster(members, cluster), read=of) for name, (of, members) in rate.items()}
    return _POLICIES | rates


_POLICIES: Final[dict[str, Policy]] = {
    "deduplication": Policy(place=Member("deduplicationEnabled"), read=values.truth),
    "deduplicationSnapshotInterval": Policy(
        place=Member("deduplicationSnapshotIntervalSeconds"),
        read=values.whole,
        check=at_least(0, "interval"),
        is_removable=False,
        is_removed_by_nothing=True,
    ),
    "retention": Policy(place=Member("retention_policies"), read=values.retention, check=check_retention),
    "persistence": Policy(place=Member("persistence"), read=values.persistence, check=check_persistence),
    "messageTTL": _count("message TTL", "message_ttl_in_seconds"),
    "subscriptionExpirationTime": Policy(
        place=Member("subscription_expiration_time_minutes"), read=values.whole, check=check_expiration
    ),
    "schemaCompatibilityStrategy": Policy(
        place=Member("schema_compatibility_strategy"),
        read=strategy,
        method="PUT",
        unset="UNDEFINED",
        is_removable=False,
    ),
    "schemaAutoUpdateCompatibilityStrategy": Policy(
        place=Member("schema_auto_update_compatibility_strategy"),
        read=_old_strategy,
        method="PUT",
        unset=NO_CONTENT,
        is_removable=False,
    ),
    "isAllowAutoUpdateSchema": Policy(
        place=Member("is_allow_auto_update_schema"), read=values.truth, unset=True, is_removable=False
    ),
    "schemaValidationEnforced": Policy(
        place=Member("schema_validation_enforced"), read=values.truth, unset=False, is_removable=False
    ),
    "encryptionRequired": Policy(
        place=Member("encryption_required"), read=values.truth, unset=False, is_removable=False
    ),
    "autoTopicCreation": Policy(
        place=Member("autoTopicCreationOverride"), read=values.auto_topic_creation, check=_check_auto_topic_creation
    ),
    "autoSubscriptionCreation": Policy(
        place=Member("autoSubscriptionCreationOverride"), read=values.auto_subscription_creation
    ),
    "dispatcherPauseOnAckStatePersistent": Policy(
        place=Member("dispatcherPauseOnAckStatePersistentEnabled", removed=False),
        read=values.truth,
        unset=False,
        switched_on=True,
    ),
    "delayedDelivery": Policy(place=Member("delayed_delivery_policies"), read=values.delayed_delivery),
    "inactiveTopicPolicies": Policy(place=Member("inactive_topic_policies"), read=inactive_topics),
    "maxProducersPerTopic": _count("maxProducersPerTopic", "max_producers_per_topic"),
    "maxConsumersPerTopic": _count("maxConsumersPerTopic", "max_consumers_per_topic"),
    "maxConsumersPerSubscription": _count("maxConsumersPerSubscription", "max_consumers_per_subscription"),
    "maxSubscriptionsPerTopic": _count("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
    "maxUnackedMessagesPerConsumer": _count("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
    "maxUnackedMessagesPerSubscription": _count(
        "maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"
    ),
    "maxTopicsPerNamespace": Policy(
        place=Member("max_topics_per_namespace"),
        read=values.whole,
        check=at_least(0, "maxTopicsPerNamespace"),
        unset=0,
    ),
    "compactionThreshold": Policy(
        place=Member("compaction_threshold"),
        read=values.long,
        check=at_least(0, "compactionThreshold"),
        method="PUT",
    ),
    "subscriptionTypesEnabled": Policy(
        place=Member("subscription_types_enabled", removed=[]), read=subscription_types, unset=[]
    ),
    "replication": Policy(
        place=Member("replication_clusters"), read=values.names, status=200, unset=[], is_removable=False
    ),
    "allowedClusters": Policy(
        place=Member("allowed_clusters"), read=values.names, status=200, unset=[], is_removable=False
    ),
    "properties": Policy(place=Member("properties", removed={}), read=values.texts_by_name, method="PUT", unset={}),
    "subscriptionAuthMode": Policy(
        place=Member("subscription_auth_mode"), read=_subscription_auth_mode, unset="None", is_removable=False
    ),
    "offloadPolicies": Policy(place=Member("offload_policies"), read=values.offload),
    "offloadThreshold": _offload("managedLedgerOffloadThresholdInBytes", unset=-1, is_removable=False),
    "offloadThresholdInSeconds": _offload(
        "managedLedgerOffloadThresholdInSeconds", unset=-1, is_removable=False, status=200
    ),
    "offloadDeletionLagMs": _offload("managedLedgerOffloadDeletionLagInMillis"),
    "entryFilters": Policy(place=Member("entryFilters"), read=not_plugins),
}

QUOTAS: Final = "backlog_quota_map"


def quota(kind: str) -> Policy:
    """The backlog quota of one of QUOTA_TYPES."""
    return Policy(place=Inside(QUOTAS, kind, dict), read=values.backlog_quota)


def check_clusters(name: str, clusters: list[str], known: list[str]) -> None:
    """Refuse clusters that the tenant may not use. Raises InvalidRecord, NoSuchCluster."""
    if not clusters and name == "replication":
        raise InvalidRecord("ClusterIds should not be null or empty")
    for cluster in clusters:
        if cluster not in known:
            raise NoSuchCluster(f"Invalid cluster id: {cluster}; there are {', '.join(known)}")


def check_not_replicated(clusters: list[str], cluster: str) -> None:
    """Refuse other clusters than the broker's own *cluster* as those that have the data. Raises InvalidRecord."""
    others = [name for name in clusters if name != cluster]
    if others:
        raise InvalidRecord(
            f"Replication between clusters is not served by this broker: {', '.join(others)} cannot be among the "
            f"replication clusters, which are {cluster} alone"
        )


def check_readable(record: dict[str, Any]) -> None:
    """Check that the brokers can read *record* once it is stored. Raises InvalidRecord."""
    try:
        parse_policies(to_json(record), "policies")
    except Corruption as error:
        raise InvalidRecord(f"Invalid policies: {error}") from None


def new_namespace(
    body: dict[str, Any], *, cluster: str, default_bundles: int, schema_auto_update: bool
) -> dict[str, Any]:
    """The record of a new namespace, of *body*, the members that a client sent; the others get their defaults.

    Raises InvalidRecord.
    """
    # Go's administration library sends the members that its caller left out as "" and null. Apache's broker takes ""
    # for no value where the member is an enum.
    body = {member: value for member, value in body.items() if value is not None and value != ""}
    bundles = bundles_of(body.get("bundles") or {}, default_bundles)
    record = new_policies(cluster, len(bundles.texts) - 1)
    record["bundles"]["boundaries"] = bundles.texts
    default_permissions = record["auth_policies"]
    record.update({member: value for member, value in body.items() if member != "bundles"})
    if isinstance(record["auth_policies"], dict):
        granted = {member: value for member, value in record["auth_policies"].items() if value is not None}
        record["auth_policies"] = default_permissions | granted
    for policy in [*policies_of(cluster).values(), *(quota(kind) for kind in QUOTA_TYPES)]:
        given_value = policy.place.get(body)
        if given_value is not UNSET:
            value = policy.read(given_value)
            policy.check(value)
            record = policy.place.put(record, value)
    record.setdefault("is_allow_auto_update_schema", schema_auto_update)
    if not record.get("replication_clusters"):
        record["replication_clusters"] = [cluster]
    check_not_replicated(record["replication_clusters"], cluster)
    check_readable(record)
    return record


def bundles_of(value: Any, default: int) -> Bundles:
    """The bundles of a new namespace: cut at given boundaries, or of equal size. Raises InvalidRecord, NotAnObject."""
    if not isinstance(value, dict):
        raise NotAnObject("a JSON object is needed")
    boundaries = value.get("boundaries")
    if boundaries:
        try:
            return Bundles.from_texts(boundaries)
        except (AssertionError, ValueError, TypeError) as error:
            raise InvalidRecord(f"Invalid bundle boundaries: {error}") from None
    count = value.get("numBundles") or default
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= BUNDLES_MAX:
        raise InvalidRecord(f"Invalid number of bundles: it must be between 1 and {BUNDLES_MAX}")
    return Bundles.equal(count)


def names_in(record: dict[str, Any], member: str) -> list[Any]:
    """The list *member* of a record, which another program may have written; empty if it is not a list."""
    names = record.get(member)
    return names if isinstance(names, list) else []


def tenant_members(body: dict[str, Any]) -> dict[str, list[str]]:
    """The members of a tenant's record that a client may set. Raises InvalidRecord."""
    for member in ("allowedClusters", "adminRoles"):
        names = body.get(member) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidRecord(f"{member} must be a list of names")
    if not body.get("allowedClusters"):
        raise InvalidRecord("Clusters can not be empty")
    return {"adminRoles": body.get("adminRoles") or [], "allowedClusters": body["allowedClusters"]}
