"""The members of a namespace's record that say who was granted what."""

from typing import Any

import pytest

from broker.policies.namespace import new_policies
from broker.policies.permissions import (
    NONE_GRANTED,
    NoSubscriptionRoles,
    NotAListOfNames,
    forget_topics,
    grant,
    grant_subscription,
    granted_on,
    namespace_grants,
    parse_permissions,
    permissions_from_json,
    revoke,
    revoke_subscription,
    roles_from_json,
    subscription_grants,
    topic_grants,
)
from broker.records.json_records import InvalidRecord
from magnetar_core.topics.topic_name import TopicName

TOPIC = TopicName.parse("persistent://t/n/top")


def test_what_is_granted_is_read_back() -> None:
    record = grant(new_policies("lab", 1), "ann", ["produce"])
    record = grant(record, "bob", ["consume"], TOPIC)
    record = grant_subscription(record, "s", ["ann", "bob"])
    found = parse_permissions({**record, "subscription_auth_mode": "Prefix"})
    assert found.namespace == {"ann": {"produce"}}
    assert found.topics == {TOPIC.full: {"bob": {"consume"}}}
    assert found.subscriptions == {"s": {"ann", "bob"}}
    assert found.needs_prefix


def test_granting_replaces_and_revoking_removes() -> None:
    record = grant(grant(new_policies("lab", 1), "ann", ["produce"]), "ann", ["consume", "sinks"])
    assert namespace_grants(record) == {"ann": ["consume", "sinks"]}
    assert namespace_grants(revoke(record, "ann")) == {}
    assert revoke(record, "nobody") == record


def test_a_topic_without_grants_leaves_no_trace() -> None:
    empty = new_policies("lab", 1)
    record = grant(grant(empty, "ann", ["produce"], TOPIC), "bob", ["consume"], TOPIC)
    assert revoke(revoke(record, "ann", TOPIC), "bob", TOPIC) == empty
    assert forget_topics(record, frozenset({TOPIC.full})) == empty


def test_what_is_granted_on_partitions_is_found_under_the_name_of_the_whole() -> None:
    record = new_policies("lab", 1)
    for name in ("top", "top-partition-0", "top-partition-12", "top-partition-x", "top2", "top2-partition-0"):
        record = grant(record, "ann", ["produce"], TopicName.parse(f"persistent://t/n/{name}"))
    found = parse_permissions(record)
    assert granted_on(found, TOPIC, with_partitions=False) == {TOPIC.full}
    partitions = {f"{TOPIC.full}-partition-0", f"{TOPIC.full}-partition-12"}
    assert granted_on(found, TOPIC, with_partitions=True) == {TOPIC.full, *partitions}


def test_a_subscription_without_roles_leaves_no_trace() -> None:
    empty = new_policies("lab", 1)
    record = grant_subscription(empty, "s", ["ann", "bob"])
    assert subscription_grants(revoke_subscription(record, "s", "ann")) == {"s": ["bob"]}
    assert revoke_subscription(revoke_subscription(record, "s", "ann"), "s", "bob") == empty
    with pytest.raises(NoSubscriptionRoles, match="other"):
        revoke_subscription(record, "other", "ann")


def test_a_topic_shows_its_own_grants_with_those_of_its_namespace() -> None:
    record = grant(grant(new_policies("lab", 1), "ann", ["produce"]), "eve", [])
    record = grant(grant(record, "ann", ["consume"], TOPIC), "bob", ["consume"], TOPIC)
    assert topic_grants(record, TOPIC) == {"ann": ["produce", "consume"], "eve": [], "bob": ["consume"]}


@pytest.mark.parametrize("body", [None, "produce", {"a": 1}, [1], [None], [["produce"]]])
def test_what_is_no_list_of_names_is_refused(body: Any) -> None:
    with pytest.raises(NotAListOfNames):
        permissions_from_json(body)
    with pytest.raises(NotAListOfNames):
        roles_from_json(body)


def test_an_unknown_permission_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRecord, match=r"'fly'.*produce, consume"):
        permissions_from_json(["produce", "fly"])


@pytest.mark.parametrize(
    "granted",
    [None, [], "x", {"namespace_auth": []}, {"namespace_auth": {"ann": None}}, {"namespace_auth": {"ann": "produce"}},
     {"destination_auth": {TOPIC.full: []}}, {"subscription_auth_roles": {"s": 1}}],
)  # fmt: skip
def test_what_another_program_stored_and_is_no_grant_grants_nothing(granted: Any) -> None:
    found = parse_permissions({"auth_policies": granted, "subscription_auth_mode": 7})
    assert not any(found.namespace.values())
    assert not any(found.topics.values())
    assert found.subscriptions == NONE_GRANTED.subscriptions
    assert grant({"auth_policies": granted}, "ann", ["sinks"])["auth_policies"]["namespace_auth"]["ann"] == ["sinks"]


def test_a_permission_that_apache_stored_as_null_is_passed_over() -> None:
    record = {"auth_policies": {"namespace_auth": {"ann": [None, "consume"]}}}
    assert parse_permissions(record).namespace == {"ann": {"consume"}}
    assert namespace_grants(record) == {"ann": ["consume"]}
