"""Which policies can be set; no broker, no store."""

from typing import Any

import pytest

from broker.config import BUNDLES_MAX
from broker.policies import new_policies
from broker.policy_rules import (
    POLICIES,
    InvalidQuorums,
    NotAnObject,
    bundles_of,
    check_policy,
    names_in,
    new_namespace,
    tenant_members,
    with_policy,
    without_policy,
)
from broker.records import InvalidRecord

VALID: dict[str, Any] = {
    "deduplication": True,
    "retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    "persistence": {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2},
    "schemaCompatibilityStrategy": "FULL",
    "autoTopicCreation": {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    "maxProducersPerTopic": 0,
    "subscriptionTypesEnabled": ["Shared"],
    "properties": {"a": "b"},
}


@pytest.mark.parametrize("name", VALID)
def test_a_policy_is_set_and_removed(name: str) -> None:
    check_policy(name, VALID[name])
    before = new_policies("lab", 4) | {"future": 1}
    after = with_policy(before, name, VALID[name])
    assert after[POLICIES[name].member] == VALID[name]
    assert after["future"] == 1
    assert POLICIES[name].member not in without_policy(after, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deduplication", 1),
        ("maxProducersPerTopic", True),
        ("maxProducersPerTopic", -1),
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}),
        ("retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}),
        ("retention", {}),
        ("schemaCompatibilityStrategy", "x"),
        ("autoTopicCreation", {"defaultNumPartitions": True}),
    ],
)
def test_what_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRecord):
        check_policy(name, value)


def test_quorums_go_together() -> None:
    with pytest.raises(InvalidQuorums):
        check_policy("persistence", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1})


def test_what_brokers_cannot_read_is_not_stored() -> None:
    with pytest.raises(InvalidRecord, match="64 bits"):
        with_policy(new_policies("lab", 4), "maxProducersPerTopic", 2**64)


def test_a_namespace_has_what_is_given_and_the_rest_by_default() -> None:
    given = {"bundles": {"numBundles": 2}, "deduplicationEnabled": True, "encryption_required": None}
    made = new_namespace(given, cluster="lab", default_bundles=4, schema_auto_update=False)
    assert made["bundles"] == {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    assert (made["deduplicationEnabled"], made["encryption_required"]) == (True, False)
    assert (made["replication_clusters"], made["is_allow_auto_update_schema"]) == (["lab"], False)
    with pytest.raises(InvalidRecord):
        new_namespace({"deduplicationEnabled": 1}, cluster="lab", default_bundles=4, schema_auto_update=True)


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
