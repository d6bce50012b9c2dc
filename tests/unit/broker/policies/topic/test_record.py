"""What is in force of a topic: its own policies over those of its namespace."""

from typing import Any

import pytest

from broker.policies.namespace import parse_policies
from broker.policies.rules import UNSET
from broker.policies.topic.record import (
    NONE_SET,
    TOPIC_POLICIES,
    check_message_size,
    of_system_topic,
    overlay,
    quota,
    quotas_in_force,
    rate_of,
)
from broker.records.json_records import InvalidRecord
from broker.settings.config import BrokerConfig
from broker.settings.quotas import AGE, STORAGE, BacklogQuota, DispatchRate, PublishRate

NAMESPACE = parse_policies(
    b'{"max_producers_per_topic":7,"message_ttl_in_seconds":70,"deduplicationEnabled":true,'
    b'"backlog_quota_map":{"message_age":{"limitTime":7,"policy":"producer_exception"}}}',
    "/p",
)


def with_policy(name: str, value: Any, record: Any = NONE_SET) -> dict[str, Any]:
    policy = TOPIC_POLICIES[name].policy
    return policy.place.put(dict(record), policy.read(value))


def test_a_topic_without_policies_has_those_of_its_namespace() -> None:
    assert overlay(NAMESPACE, None) is NAMESPACE
    assert overlay(NAMESPACE, NONE_SET) == NAMESPACE


def test_what_the_topic_says_wins_and_the_rest_stays() -> None:
    record = with_policy("maxProducers", 3)
    record = with_policy("publishRate", {"publishThrottlingRateInMsg": 5}, record)
    record = with_policy("retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}, record)
    record = with_policy("persistence", {"bookkeeperEnsemble": 3}, record)
    record = with_policy("subscriptionTypesEnabled", ["Shared"], record)
    found = overlay(NAMESPACE, record)
    assert (found.max_producers_per_topic, found.message_ttl_s, found.deduplication) == (3, 70, True)
    assert found.publish_rate == PublishRate(5, -1)
    assert (found.retention_minutes, found.retention_mbytes) == (1, 2)
    assert (found.ensemble_size, found.write_quorum, found.ack_quorum) == (3, 2, 2)
    assert found.subscription_types == {"Shared"}


def test_false_and_zero_of_a_topic_win_as_well() -> None:
    record = with_policy("deduplicationEnabled", False, with_policy("messageTTL", 0))
    found = overlay(NAMESPACE, record)
    assert (found.deduplication, found.message_ttl_s) == (False, 0)


def test_a_topic_of_the_brokers_has_nothing_of_what_is_meant_for_clients() -> None:
    namespace = parse_policies(
        b'{"max_producers_per_topic":7,"encryption_required":true,"message_ttl_in_seconds":70,"deduplicationEnabled":true,'
        b'"retention_policies":{"retentionTimeInMinutes":5,"retentionSizeInMB":6}}',
        "/p",
    )
    found = of_system_topic(namespace)
    assert (found.retention_minutes, found.retention_mbytes, found.bundles) == (5, 6, namespace.bundles)
    none_set = parse_policies(b"{}", "/p")
    for name in ("max_producers_per_topic", "encryption_required", "message_ttl_s", "deduplication"):
        assert getattr(namespace, name) != getattr(none_set, name)
        assert getattr(found, name) == getattr(none_set, name), name


_OBJECTS = [
    name
    for name in TOPIC_POLICIES
    if name.endswith(("Rate", "ersistence", "Filters", "Policies", "Delivery", "SubscriptionCreation"))
]


@pytest.mark.parametrize("name", TOPIC_POLICIES)
def test_a_policy_that_is_removed_is_as_if_it_was_never_set(name: str) -> None:
    value: Any = {
        "retention": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2},
        "schemaCompatibilityStrategy": "FULL",
        "replication": ["lab"],
        "subscriptionTypesEnabled": ["Shared"],
    }.get(name, {} if name in _OBJECTS else 1)
    policy = TOPIC_POLICIES[name].policy
    record = policy.place.put(dict(NONE_SET), policy.read(value))
    assert policy.place.get(record) is not UNSET
    removed = policy.place.remove(record)
    assert policy.place.get(removed) in (UNSET, [])
    assert overlay(NAMESPACE, removed) == NAMESPACE


def test_the_rate_of_one_subscription() -> None:
    policy = rate_of("s").policy
    record = policy.place.put(dict(NONE_SET), policy.read({"dispatchThrottlingRateInMsg": 9}))
    assert overlay(NAMESPACE, record).rates_of_subscriptions == {"s": DispatchRate(9, 0, 1)}
    assert rate_of("other").policy.place.get(record) is UNSET
    assert policy.place.remove(record) == NONE_SET
    both = rate_of("other").policy.place.put(dict(record), policy.read({"dispatchThrottlingRateInMsg": 5}))
    assert overlay(NAMESPACE, both).rates_of_subscriptions == {
        "s": DispatchRate(9, 0, 1),
        "other": DispatchRate(5, 0, 1),
    }


def test_quotas_come_from_the_topic_its_namespace_or_the_settings_each_by_itself() -> None:
    config = BrokerConfig(backlog_quota_gbytes=1.0)
    policy = quota(STORAGE).policy
    record = policy.place.put(dict(NONE_SET), policy.read({"limitSize": 5, "policy": "consumer_backlog_eviction"}))
    assert quotas_in_force(config, overlay(NAMESPACE, record)) == {
        STORAGE: BacklogQuota(5, 0, "consumer_backlog_eviction"),
        AGE: BacklogQuota(0, 7, "producer_exception"),
    }
    assert quotas_in_force(config, NAMESPACE)[STORAGE] == BacklogQuota(2**30, -1, "producer_request_hold")


def test_a_topic_cannot_allow_larger_messages_than_the_broker() -> None:
    check_message_size(100, 100)
    for size in (-1, 101):
        with pytest.raises(InvalidRecord, match="100"):
            check_message_size(size, 100)
