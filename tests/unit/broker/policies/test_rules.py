"""Which policies can be set; no broker, no store."""

from typing import Any

import pytest

from broker.policies.namespace import new_policies, parse_policies
from broker.policies.rules import (
    UNSET,
    InvalidQuorums,
    NotAnObject,
    bundles_of,
    check_readable,
    exceeds_retention,
    names_in,
    new_namespace,
    policies_of,
    tenant_members,
)
from broker.records.json_records import InvalidRecord, to_json
from broker.settings.groups.cluster import BUNDLES_MAX
from broker.settings.groups.topics import PARTITIONS_MAX
from broker.settings.quotas import DispatchRate
from magnetar_core.bookkeeper.client.deciding.quorum import ENSEMBLE_SIZE_MAX
from magnetar_core.runtime.types import MIB

POLICIES = policies_of("lab")

# What is sent, and what is stored of it.
VALID: dict[str, tuple[Any, Any]] = {
    "deduplication": (True, True),
    "messageTTL": ("60", 60),
    "retention": (
        {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    ),
    "persistence": (
        {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "unknown": 1},
        {
            "bookkeeperEnsemble": 3,
            "bookkeeperWriteQuorum": 3,
            "bookkeeperAckQuorum": 2,
            "managedLedgerMaxMarkDeleteRate": 0.0,
        },
    ),
    "schemaCompatibilityStrategy": ("FULL", "FULL"),
    "autoTopicCreation": (
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    ),
    "maxProducersPerTopic": (2.7, 2),
    "subscriptionTypesEnabled": (["Shared", "Shared"], ["Shared"]),
    "properties": ({"a": "b"}, {"a": "b"}),
    "publishRate": (
        {"publishThrottlingRateInMsg": 5},
        {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
    ),
    "offloadThreshold": (5, 5),
}


def set_in(record: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    policy = POLICIES[name]
    found = policy.read(value)
    policy.check(found)
    made = policy.place.put(record, found)
    check_readable(made)
    return made


@pytest.mark.parametrize("name", VALID)
def test_a_policy_is_set_and_removed(name: str) -> None:
    given, stored = VALID[name]
    place = POLICIES[name].place
    after = set_in(new_policies("lab", 4) | {"future": 1}, name, given)
    assert place.get(after) == stored
    assert after["future"] == 1
    removed = place.remove(after)
    assert place.get(removed) in (UNSET, {}, [])
    assert removed["future"] == 1


def test_what_each_cluster_has_for_itself_is_left_to_the_others() -> None:
    before = {"topicDispatchRate": {"far": {"dispatchThrottlingRateInMsg": 1}}}
    after = set_in(before, "dispatchRate", {"dispatchThrottlingRateInMsg": 2})
    assert after["topicDispatchRate"]["far"] == {"dispatchThrottlingRateInMsg": 1}
    assert parse_policies(to_json(after), "/p", "lab").dispatch_rate == DispatchRate(2, 0, 1)
    assert parse_policies(to_json(after), "/p", "far").dispatch_rate == DispatchRate(1, 0, 1)
    left = POLICIES["dispatchRate"].place.remove(after)
    assert left["topicDispatchRate"] == before["topicDispatchRate"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deduplication", "perhaps"),
        ("deduplication", []),
        ("maxProducersPerTopic", True),
        ("maxProducersPerTopic", -1),
        ("maxProducersPerTopic", 2**31),
        ("maxProducersPerTopic", "x"),
        ("compactionThreshold", 2**63),
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}),
        ("retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}),
        ("retention", 7),
        ("schemaCompatibilityStrategy", "x"),
        ("schemaAutoUpdateCompatibilityStrategy", "x"),
        ("subscriptionAuthMode", "x"),
        ("autoTopicCreation", {"allowAutoTopicCreation": True}),
        ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "partitioned"}),
        (
            "autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": PARTITIONS_MAX + 1},
        ),
        ("subscriptionTypesEnabled", ["x"]),
        ("subscriptionTypesEnabled", "Shared"),
        ("inactiveTopicPolicies", {"inactiveTopicDeleteMode": "x"}),
        ("offloadPolicies", {"managedLedgerOffloadDriver": "x"}),
        ("entryFilters", {"entryFilterNames": "x"}),
        ("properties", {"a": 1}),
        ("publishRate", [1]),
    ],
)
def test_what_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRecord):
        set_in(new_policies("lab", 4), name, value)


def test_quorums_go_together() -> None:
    value = {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1}
    with pytest.raises(InvalidQuorums):
        set_in({}, "persistence", value)
    with pytest.raises(InvalidRecord, match="at most"):
        set_in({}, "persistence", {"bookkeeperEnsemble": ENSEMBLE_SIZE_MAX + 1})


def test_a_backlog_quota_lets_no_more_wait_than_is_kept() -> None:
    kept = {"retentionSizeInMB": 1, "retentionTimeInMinutes": 1}
    assert exceeds_retention(MIB, 0, kept)
    assert exceeds_retention(0, 60, kept)
    assert not exceeds_retention(MIB - 1, 59, kept)
    assert not exceeds_retention(10 * MIB, 600, {"retentionSizeInMB": -1, "retentionTimeInMinutes": -1})
    assert not exceeds_retention(10 * MIB, 600, None)


def test_what_gos_library_leaves_out_is_not_set() -> None:
    nothing = {"namespace_auth": None, "destination_auth": None, "subscription_auth_roles": None}
    given = {"schema_auto_update_compatibility_strategy": "", "subscription_auth_mode": "", "auth_policies": nothing}
    usual = new_namespace({}, cluster="lab", default_bundles=4, schema_auto_update=True)
    assert new_namespace(given, cluster="lab", default_bundles=4, schema_auto_update=True) == usual


def test_what_brokers_cannot_read_is_not_stored() -> None:
    with pytest.raises(InvalidRecord, match="64 bits"):
        check_readable({**new_policies("lab", 4), "max_producers_per_topic": 2**64})


def test_a_namespace_has_what_is_given_and_the_rest_by_default() -> None:
    given = {"bundles": {"numBundles": 2}, "deduplicationEnabled": True, "encryption_required": None}
    made = new_namespace(given, cluster="lab", default_bundles=4, schema_auto_update=False)
    assert made["bundles"] == {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    assert (made["deduplicationEnabled"], made["encryption_required"]) == (True, False)
    assert (made["replication_clusters"], made["is_allow_auto_update_schema"]) == (["lab"], False)
    with pytest.raises(InvalidRecord):
        new_namespace({"deduplicationEnabled": "x"}, cluster="lab", default_bundles=4, schema_auto_update=True)


@pytest.mark.parametrize(
    "given", [{"numBundles": -1}, {"numBundles": BUNDLES_MAX + 1}, {"numBundles": True}, {"boundaries": ["0x1", "0x2"]}]
)
def test_a_namespace_is_cut_into_bundles_that_can_be(given: Any) -> None:
    with pytest.raises(InvalidRecord):
        bundles_of(given, 4)


def test_bundles_are_an_object() -> None:
    assert len(bundles_of({}, 4).ranges) == 4
    with pytest.raises(NotAnObject):
        bundles_of([1], 4)


def test_a_tenant_has_clusters() -> None:
    assert tenant_members({"allowedClusters": ["a"], "other": 1}) == {"adminRoles": [], "allowedClusters": ["a"]}
    refused: list[dict[str, Any]] = [{}, {"allowedClusters": [1]}, {"allowedClusters": ["a"], "adminRoles": "x"}]
    for given in refused:
        with pytest.raises(InvalidRecord):
            tenant_members(given)


def test_a_list_that_somebody_else_wrote_may_be_none() -> None:
    assert names_in({"a": ["b"]}, "a") == ["b"]
    assert names_in({"a": "b"}, "a") == names_in({}, "a") == []
