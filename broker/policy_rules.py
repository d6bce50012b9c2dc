"""Which policies of a namespace can be set, and which values are refused. No IO.

Values that Apache refuses are refused, and values that the brokers could not apply or not even read afterwards.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker.config import BUNDLES_MAX, PARTITIONS_MAX
from broker.names import Bundles
from broker.permissions import SUBSCRIPTION_AUTH_MODES
from broker.policies import new_policies, parse_policies
from broker.records import InvalidRecord, to_json
from magnetar_core.bookkeeper.client.quorum import ENSEMBLE_SIZE_MAX
from magnetar_core.runtime.types import Corruption
from managed_ledger.schemas.compatibility import Strategy


class NotAnObject(InvalidRecord):
    """The value is not a JSON object."""


class InvalidQuorums(InvalidRecord):
    """Ensemble size, write quorum and ack quorum contradict each other."""


class Policy(NamedTuple):
    """A policy of a namespace that can be set by itself."""

    member: str
    """Its name in the namespace's record."""
    kind: type
    """The type of its JSON value."""


# By their names in the admin API.
POLICIES: Final[Mapping[str, Policy]] = {
    "deduplication": Policy("deduplicationEnabled", bool),
    "retention": Policy("retention_policies", dict),
    "persistence": Policy("persistence", dict),
    "messageTTL": Policy("message_ttl_in_seconds", int),
    "schemaCompatibilityStrategy": Policy("schema_compatibility_strategy", str),
    "isAllowAutoUpdateSchema": Policy("is_allow_auto_update_schema", bool),
    "schemaValidationEnforced": Policy("schema_validation_enforced", bool),
    "encryptionRequired": Policy("encryption_required", bool),
    "autoTopicCreation": Policy("autoTopicCreationOverride", dict),
    "autoSubscriptionCreation": Policy("autoSubscriptionCreationOverride", dict),
    "delayedDelivery": Policy("delayed_delivery_policies", dict),
    "maxProducersPerTopic": Policy("max_producers_per_topic", int),
    "maxConsumersPerTopic": Policy("max_consumers_per_topic", int),
    "maxConsumersPerSubscription": Policy("max_consumers_per_subscription", int),
    "maxUnackedMessagesPerConsumer": Policy("max_unacked_messages_per_consumer", int),
    "maxUnackedMessagesPerSubscription": Policy("max_unacked_messages_per_subscription", int),
    "subscriptionTypesEnabled": Policy("subscription_types_enabled", list),
    "replication": Policy("replication_clusters", list),
    "properties": Policy("properties", dict),
    "subscriptionAuthMode": Policy("subscription_auth_mode", str),
}


def check_policy(name: str, value: Any) -> None:
    """Check a *value* for the policy *name*. Raises InvalidRecord, InvalidQuorums."""
    if not _is_kind(value, POLICIES[name].kind):
        raise InvalidRecord(f"{name} takes JSON of another kind, not {json.dumps(value)[:200]}")
    if name == "retention":
        _check_retention(value)
    elif name == "persistence":
        _check_persistence(value)
    elif name == "autoTopicCreation":
        count = value.get("defaultNumPartitions") or 1
        if type(count) is not int or not 1 <= count <= PARTITIONS_MAX:
            raise InvalidRecord(f"defaultNumPartitions must be 1 to {PARTITIONS_MAX}")
    elif name == "schemaCompatibilityStrategy":
        try:
            Strategy(value)
        except ValueError:
            raise InvalidRecord(f"unknown strategy {value}") from None
    elif name == "subscriptionAuthMode":
        if value not in SUBSCRIPTION_AUTH_MODES:
            raise InvalidRecord(f"unknown mode {value[:100]!r}; modes are {', '.join(SUBSCRIPTION_AUTH_MODES)}")
    elif isinstance(value, int) and not isinstance(value, bool) and value < 0:
        raise InvalidRecord(f"{name} must be 0 or more")


def _check_retention(value: dict[str, Any]) -> None:
    minutes, mbytes = value.get("retentionTimeInMinutes"), value.get("retentionSizeInMB")
    if not isinstance(minutes, int) or not isinstance(mbytes, int) or minutes < -1 or mbytes < -1:
        raise InvalidRecord("Invalid retention policy: numbers of at least -1 are needed")
    if (minutes == 0) != (mbytes == 0):
        raise InvalidRecord("Invalid retention policy: only one of time and size is 0, nothing would be kept")


def _check_persistence(value: dict[str, Any]) -> None:
    sizes = [value.get(f"bookkeeper{part}", 0) for part in ("Ensemble", "WriteQuorum", "AckQuorum")]
    if not all(type(size) is int for size in sizes) or not sizes[0] >= sizes[1] >= sizes[2] >= 0:
        raise InvalidQuorums("Bookkeeper Ensemble ({}) >= WriteQuorum ({}) >= AckQuorum ({})".format(*sizes))
    if sizes[0] > ENSEMBLE_SIZE_MAX:
        raise InvalidRecord(f"Bookkeeper Ensemble ({sizes[0]}) must be at most {ENSEMBLE_SIZE_MAX} bookies")
    rate = value.get("managedLedgerMaxMarkDeleteRate", 0)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or rate < 0:
        raise InvalidRecord("managedLedgerMaxMarkDeleteRate must be 0 or more")


def _is_kind(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def check_readable(record: dict[str, Any]) -> None:
    """Check that the brokers can read *record* once it is stored. Raises InvalidRecord."""
    try:
        parse_policies(to_json(record), "policies")
    except Corruption as error:
        raise InvalidRecord(f"Invalid policies: {error}") from None


def with_policy(record: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A namespace's record with one policy set. Raises InvalidRecord."""
    made = {**record, POLICIES[name].member: value}
    check_readable(made)
    return made


def without_policy(record: dict[str, Any], name: str) -> dict[str, Any]:
    """A namespace's record with one policy removed: the broker's setting counts again."""
    return {member: value for member, value in record.items() if member != POLICIES[name].member}


def new_namespace(
    given: dict[str, Any], *, cluster: str, default_bundles: int, schema_auto_update: bool
) -> dict[str, Any]:
    """The record of a new namespace, with the members that a client has *given*. Raises InvalidRecord."""
    bundles = bundles_of(given.get("bundles") or {}, default_bundles)
    record = new_policies(cluster, len(bundles.texts) - 1)
    record["bundles"]["boundaries"] = bundles.texts
    set_here = {member: value for member, value in given.items() if value is not None}
    for name, policy in POLICIES.items():
        if policy.member in set_here:
            check_policy(name, set_here[policy.member])
    record.update({member: value for member, value in set_here.items() if member != "bundles"})
    record.setdefault("is_allow_auto_update_schema", schema_auto_update)
    if not record.get("replication_clusters"):
        record["replication_clusters"] = [cluster]
    check_readable(record)
    return record


def bundles_of(given: Any, default: int) -> Bundles:
    """The bundles of a new namespace: cut at given boundaries, or of equal size. Raises InvalidRecord, NotAnObject."""
    if not isinstance(given, dict):
        raise NotAnObject("a JSON object is needed")
    boundaries = given.get("boundaries")
    if boundaries:
        try:
            return Bundles.from_texts(boundaries)
        except (AssertionError, ValueError, TypeError) as error:
            raise InvalidRecord(f"Invalid bundle boundaries: {error}") from None
    count = given.get("numBundles") or default
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= BUNDLES_MAX:
        raise InvalidRecord(f"Invalid number of bundles: it must be between 1 and {BUNDLES_MAX}")
    return Bundles.equal(count)


def names_in(record: dict[str, Any], member: str) -> list[Any]:
    """The list *member* of a record, which another program may have written; empty if it is no list."""
    found = record.get(member)
    return found if isinstance(found, list) else []


def tenant_members(given: dict[str, Any]) -> dict[str, list[str]]:
    """The members of a tenant's record that a client may set. Raises InvalidRecord."""
    for member in ("allowedClusters", "adminRoles"):
        names = given.get(member) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidRecord(f"{member} must be a list of names")
    if not given.get("allowedClusters"):
        raise InvalidRecord("Clusters can not be empty")
    return {"adminRoles": given.get("adminRoles") or [], "allowedClusters": given["allowedClusters"]}
