"""Who may do what, by the rules alone."""

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.policies.permissions import PERMISSIONS, Permissions
from broker.security.authorization import (
    RIGHTS,
    WEBSOCKET_ORIGINAL,
    Known,
    Need,
    Operation,
    Right,
    Rules,
    about_namespace,
    about_tenant,
    about_topic,
    denial,
    needs_records,
    role_problem,
)
from magnetar_core.security.caller import TRUSTED, Caller
from magnetar_core.topics.topic_name import TopicName

TOPIC: Final = TopicName.parse("persistent://shop/web/orders")
RULES: Final = Rules(frozenset({"root"}), frozenset({"proxy"}))
ON_TOPICS: Final = (Right.PRODUCE, Right.CONSUME, Right.PRODUCE_OR_CONSUME)


def need(operation: Operation, subscription: str = "") -> Need:
    if RIGHTS[operation] in ON_TOPICS:
        return about_topic(operation, TOPIC, subscription)
    return about_namespace(operation, TOPIC.namespace)


def grants(**roles: str) -> dict[str, frozenset[str]]:
    return {role.replace("_", "*"): frozenset(names.split()) for role, names in roles.items()}


def may(
    caller: Caller | str, wanted: Need, permissions: Permissions | None = None, rules: Rules = RULES, admins: str = ""
) -> bool:
    made = Caller(caller) if isinstance(caller, str) else caller
    return denial(rules, made, wanted, Known(frozenset(admins.split()), permissions)) is None


# What one permission in the namespace lets a role do.
ALLOWED: Final = {
    "produce": {Right.PRODUCE, Right.PRODUCE_OR_CONSUME, Right.NAMESPACE_PRODUCE_OR_CONSUME},
    "consume": {
        Right.CONSUME, Right.PRODUCE_OR_CONSUME, Right.NAMESPACE_PRODUCE_OR_CONSUME, Right.NAMESPACE_CONSUME
    },
    "functions": {Right.FUNCTIONS},
    "sources": {Right.SOURCES},
    "sinks": {Right.SINKS},
    "packages": {Right.PACKAGES},
}  # fmt: skip


@pytest.mark.parametrize("permission", PERMISSIONS)
@pytest.mark.parametrize("operation", Operation)
def test_a_permission_gives_exactly_these_rights(operation: Operation, permission: str) -> None:
    allowed = ALLOWED[permission] | {Right.OPEN, Right.AUTHENTICATED}
    granted = Permissions(namespace=grants(ann=permission))
    assert may("ann", need(operation), granted) == (RIGHTS[operation] in allowed)
    assert may("bob", need(operation), granted) == (RIGHTS[operation] in {Right.OPEN, Right.AUTHENTICATED})


@pytest.mark.parametrize("operation", Operation)
def test_super_users_administrators_and_callers_without_a_role(operation: Operation) -> None:
    right = RIGHTS[operation]
    assert may("root", need(operation))
    assert may(TRUSTED, need(operation))
    assert may(Caller(None), need(operation)) == (right is Right.OPEN)
    assert may("boss", need(operation), admins="boss") == (right is not Right.SUPER_USER)
    assert may("boss", need(operation), admins="other") == (right in {Right.OPEN, Right.AUTHENTICATED})


def test_a_permission_on_a_topic_is_for_this_topic_and_its_partitions() -> None:
    granted = Permissions(topics={TOPIC.full: grants(ann="consume")})
    assert may("ann", about_topic(Operation.CONSUME, TOPIC), granted)
    assert may("ann", about_topic(Operation.LOOKUP, TOPIC.with_partition(3)), granted)
    assert not may("ann", about_topic(Operation.PRODUCE, TOPIC), granted)
    assert not may("ann", about_topic(Operation.CONSUME, replace(TOPIC, local="orders2")), granted)
    assert not may("ann", about_namespace(Operation.GET_TOPICS, TOPIC.namespace), granted)
    of_partition = Permissions(topics={TOPIC.with_partition(0).full: grants(ann="consume")})
    assert may("ann", about_topic(Operation.CONSUME, TOPIC.with_partition(0)), of_partition)
    assert not may("ann", about_topic(Operation.CONSUME, TOPIC), of_partition)


@pytest.mark.parametrize(
    ("pattern", "role", "matches"),
    [("app-*", "app-1", True), ("app-*", "app-", True), ("app-*", "my-app-1", False), ("*-reader", "x-reader", True),
     ("*-reader", "x-reader-2", False), ("*", "anybody", True), ("a*b", "axb", False), ("", "ann", False)],
)  # fmt: skip
def test_wildcards_count_where_they_are_switched_on(pattern: str, role: str, matches: bool) -> None:
    wanted = about_topic(Operation.CONSUME, TOPIC)
    for granted in (
        Permissions(namespace={pattern: frozenset({"consume"})}),
        Permissions(topics={TOPIC.full: {pattern: frozenset({"consume"})}}),
    ):
        assert may(role, wanted, granted, replace(RULES, has_wildcards=True)) == matches
        assert not may(role, wanted, granted)


def test_a_wildcard_on_a_partitioned_topic_is_not_for_its_partitions() -> None:
    granted = Permissions(topics={TOPIC.full: {"app-*": frozenset({"consume"})}})
    wanted = about_topic(Operation.CONSUME, TOPIC.with_partition(0))
    assert not may("app-1", wanted, granted, replace(RULES, has_wildcards=True))


def test_a_subscription_with_roles_is_for_these_roles() -> None:
    granted = Permissions(
        namespace=grants(ann="consume", bob="consume", eve="produce"),
        subscriptions={"bills": frozenset({"ann", "eve"})},
    )
    for operation in (Operation.CONSUME, Operation.SKIP, Operation.UNSUBSCRIBE, Operation.RESET_CURSOR):
        assert may("ann", about_topic(operation, TOPIC, "bills"), granted)
        assert not may("bob", about_topic(operation, TOPIC, "bills"), granted)
        assert may("bob", about_topic(operation, TOPIC, "other"), granted)
        assert not may("eve", about_topic(operation, TOPIC, "bills"), granted), "the role still has to consume"
    assert may("bob", about_topic(Operation.LOOKUP, TOPIC, "bills"), granted)
    assert may("boss", about_topic(Operation.CONSUME, TOPIC, "bills"), granted, admins="boss")
    nobody_named = replace(granted, subscriptions={"bills": frozenset()})
    assert may("bob", about_topic(Operation.CONSUME, TOPIC, "bills"), nobody_named)


def test_the_calls_for_a_whole_namespace_need_what_the_call_for_one_topic_needs() -> None:
    granted = Permissions(
        namespace=grants(ann="consume", bob="consume", eve="produce"),
        topics={TOPIC.full: grants(cid="consume")},
        subscriptions={"bills": frozenset({"ann", "eve"}), "open": frozenset()},
    )
    everywhere = (Operation.CLEAR_BACKLOG, Operation.UNSUBSCRIBE_NAMESPACE)
    for operation in everywhere:
        for subscription in ("bills", "open", "other"):
            wanted = about_namespace(operation, TOPIC.namespace, subscription)
            single = about_topic(Operation.UNSUBSCRIBE, TOPIC, subscription)
            for role in ("ann", "bob", "eve", "root", "boss"):
                assert may(role, wanted, granted, admins="boss") == may(role, single, granted, admins="boss")
            assert not may("cid", wanted, granted), "a permission on one topic is none in the namespace"
    for wanted in (about_namespace(Operation.CLEAR_BACKLOG, TOPIC.namespace), about_topic(Operation.EXPIRE_ALL, TOPIC)):
        assert may("ann", wanted, granted)
        assert not may("bob", wanted, granted), "one of them is for other roles"
        assert not may("eve", wanted, granted)
        assert may("boss", wanted, granted, admins="boss")
        assert may("bob", wanted, replace(granted, subscriptions={"open": frozenset()}))
        assert not may("ann", wanted, replace(granted, needs_prefix=True)), "others may have subscriptions there"
        refused = denial(RULES, Caller("bob"), wanted, Known(permissions=granted))
        assert refused is not None
        assert "name the one that is meant" in refused
        refused = denial(RULES, Caller("eve"), wanted, Known(permissions=granted))
        assert refused is not None
        assert refused.endswith("needs the permission consume"), "more is told to those who have it"
    prefixed = Permissions(namespace=grants(ann="consume"), needs_prefix=True)
    assert may("ann", about_namespace(Operation.CLEAR_BACKLOG, TOPIC.namespace, "ann-1"), prefixed)
    assert not may("ann", about_namespace(Operation.CLEAR_BACKLOG, TOPIC.namespace, "bob-1"), prefixed)


@pytest.mark.parametrize("namespace", ["pulsar/system", "pulsar/localhost:8080"])
@pytest.mark.parametrize("operation", Operation)
def test_the_brokers_own_namespaces_are_for_super_users(operation: Operation, namespace: str) -> None:
    granted = Permissions(namespace=grants(boss=" ".join(PERMISSIONS)))
    changes = {Right.TENANT_ADMIN, Right.NAMESPACE_CONSUME, Right.SUPER_USER}
    if RIGHTS[operation] in ON_TOPICS or RIGHTS[operation] is Right.OPEN:
        return
    wanted = about_namespace(operation, namespace)
    assert may("boss", wanted, granted, admins="boss") == (RIGHTS[operation] not in changes)
    assert may("root", wanted, granted)
    other = about_namespace(operation, "pulsar/ours")
    assert may("boss", other, granted, admins="boss") == (RIGHTS[operation] is not Right.SUPER_USER)


def test_in_mode_prefix_a_subscription_begins_with_the_role() -> None:
    granted = Permissions(namespace=grants(ann="consume"), needs_prefix=True)
    assert may("ann", about_topic(Operation.CONSUME, TOPIC, "ann-1"), granted)
    assert not may("ann", about_topic(Operation.CONSUME, TOPIC, "bob-1"), granted)
    assert may("boss", about_topic(Operation.CONSUME, TOPIC, "x"), granted, admins="boss")


def test_a_proxy_needs_its_own_right_and_that_of_its_client() -> None:
    wanted = about_topic(Operation.PRODUCE, TOPIC)
    both = Permissions(namespace=grants(proxy="produce", ann="produce"))
    assert may(Caller("proxy", "ann"), wanted, both)
    assert not may(Caller("proxy", "bob"), wanted, both)
    assert not may(Caller("proxy", "ann"), wanted, Permissions(namespace=grants(ann="produce")))
    assert may(Caller("proxy", WEBSOCKET_ORIGINAL), wanted, Permissions(namespace=grants(proxy="produce")))


@pytest.mark.parametrize(
    ("role", "original", "is_fine"),
    [("proxy", "ann", True), ("proxy", None, False), ("proxy", "", False), ("proxy", "proxy", False),
     ("ann", None, True), ("ann", "ann", True), ("ann", "bob", False), ("ann", WEBSOCKET_ORIGINAL, True)],
)  # fmt: skip
def test_only_proxies_speak_for_others(role: str, original: str | None, is_fine: bool) -> None:
    rules = replace(RULES, super_users=frozenset({"proxy", "ann", "bob", "root"}))
    caller = Caller(role, original)
    assert (role_problem(rules, caller) is None) == is_fine
    assert may(caller, about_tenant(Operation.LIST_TENANTS, ""), rules=rules) == is_fine


def test_a_refusal_is_the_same_whether_the_thing_exists_or_not() -> None:
    for operation in Operation:
        wanted = need(operation)
        told = {
            denial(RULES, Caller("ann"), wanted, known)
            for known in (Known(), Known(frozenset({"boss"}), Permissions()), Known(permissions=Permissions()))
        }
        assert len(told) == 1


def test_a_refusal_names_the_role_the_target_and_what_is_missing() -> None:
    wanted = about_topic(Operation.CONSUME, TOPIC, "bills")
    assert denial(RULES, Caller("ann"), wanted, Known()) == (
        "ann may not consume from persistent://shop/web/orders with the subscription bills; "
        "that needs the permission consume"
    )
    refused = denial(RULES, Caller("ann"), about_tenant(Operation.DELETE_TENANT, "shop"), Known())
    assert refused == "ann may not delete the tenant (shop); that needs a role of superUserRoles"


ROLES: Final = st.sampled_from(["ann", "app-1", "app-*", "*"])
GRANTS: Final = st.dictionaries(ROLES, st.frozensets(st.sampled_from(PERMISSIONS)))


@given(
    st.sampled_from(Operation), GRANTS, GRANTS, GRANTS, GRANTS, st.booleans(), st.sampled_from(["ann", "app-1"]),
    st.booleans(),
)  # fmt: skip
def test_more_rights_never_allow_less(
    operation: Operation,
    namespace: dict[str, frozenset[str]],
    more: dict[str, frozenset[str]],
    topic: dict[str, frozenset[str]],
    more_on_topic: dict[str, frozenset[str]],
    has_wildcards: bool,
    role: str,
    becomes_admin: bool,
) -> None:
    def joined(some: dict[str, frozenset[str]], others: dict[str, frozenset[str]]) -> dict[str, frozenset[str]]:
        return {one: some.get(one, frozenset()) | others.get(one, frozenset()) for one in {*some, *others}}

    rules = replace(RULES, has_wildcards=has_wildcards)
    less = Permissions(namespace, {TOPIC.full: topic})
    all_of_it = Permissions(joined(namespace, more), {TOPIC.full: joined(topic, more_on_topic)})
    if may(role, need(operation), less, rules):
        assert may(role, need(operation), all_of_it, rules)
        assert may(role, need(operation), less, rules, admins=role if becomes_admin else "")
        assert may(role, need(operation), less, replace(rules, super_users=frozenset({role})))
    elif may(role, need(operation), less, rules, admins=role):
        assert may(role, need(operation), less, replace(rules, super_users=frozenset({role})))


@given(st.sampled_from(Operation), GRANTS, st.sampled_from(["ann", "app-1", "root", "proxy"]), st.none() | ROLES)
def test_records_are_not_needed_where_it_is_said_so(
    operation: Operation, namespace: dict[str, frozenset[str]], role: str, original: str | None
) -> None:
    caller = Caller(role, original)
    if not needs_records(RULES, caller, need(operation)):
        assert may(caller, need(operation)) == may(caller, need(operation), Permissions(namespace), admins=role)


def test_who_may_consume_is_told_why_a_subscription_is_not_for_it() -> None:
    wanted = about_topic(Operation.CONSUME, TOPIC, "bills")
    consumes = grants(ann="consume")
    prefix = denial(RULES, Caller("ann"), wanted, Known(permissions=Permissions(consumes, needs_prefix=True)))
    assert prefix is not None
    assert "has to begin with ann" in prefix
    of_others = Permissions(consumes, subscriptions={"bills": frozenset({"bob"})})
    told = denial(RULES, Caller("ann"), wanted, Known(permissions=of_others))
    assert told is not None
    assert told.endswith("the subscription is for other roles")
    stranger = denial(RULES, Caller("cid"), wanted, Known(permissions=of_others))
    assert stranger is not None
    assert stranger.endswith("that needs the permission consume")


OWN_TOPICS: Final = (
    "persistent://shop/web/__change_events",
    "persistent://shop/web/__change_events-partition-3",
    "non-persistent://shop/web/__change_events",
    "persistent://shop/web/__transaction_buffer_snapshot",
    "persistent://shop/web/__transaction_buffer_snapshot_segments",
    "persistent://shop/web/orders-sub__transaction_pending_ack",
    "persistent://pulsar/system/__transaction_log_0",
    "persistent://pulsar/system/transaction_coordinator_assign-partition-1",
    "persistent://pulsar/system/loadbalancer-service-unit-state",
    "non-persistent://pulsar/system/resource-usage",
    "persistent://pulsar/broker-1.example:8080/healthcheck",
)


@pytest.mark.parametrize("name", OWN_TOPICS)
def test_the_brokers_own_topics_are_for_super_users_however_much_was_granted(name: str) -> None:
    topic = TopicName.parse(name)
    everything = Permissions(namespace={"ann": frozenset(PERMISSIONS)}, topics={name: {"ann": frozenset(PERMISSIONS)}})
    for operation in Operation:
        if RIGHTS[operation] not in (*ON_TOPICS, Right.TENANT_ADMIN):
            continue
        wanted = about_topic(operation, topic, "s")
        is_told = operation in (Operation.LOOKUP, Operation.GET_METADATA, Operation.GET_STATS, Operation.GET_SCHEMA)
        assert may("ann", wanted, everything) == is_told, operation
        assert may("boss", wanted, everything, admins="boss") == is_told, operation
        assert may("root", wanted)
        assert may(TRUSTED, wanted)
        assert may(
            Caller("proxy", "root"), wanted, everything, replace(RULES, super_users=frozenset({"root", "proxy"}))
        )
        assert not may(Caller(None), wanted)
        assert needs_records(RULES, Caller("ann"), wanted) == is_told
    refusal = denial(
        RULES, Caller("boss"), about_topic(Operation.PRODUCE, topic), Known(frozenset({"boss"}), everything)
    )
    assert refusal == f"boss may not produce to {name}; that needs a role of superUserRoles"


@pytest.mark.parametrize(
    "name", ["my__change_events", "__change_events2", "__transaction", "t-__change_events", "pulsar"]
)
def test_topics_of_users_may_have_names_like_theirs(name: str) -> None:
    topic = TopicName.parse(f"persistent://shop/web/{name}")
    granted = Permissions(namespace=grants(ann="produce consume"))
    assert may("ann", about_topic(Operation.PRODUCE, topic), granted)
    assert may("ann", about_topic(Operation.CONSUME, TopicName.parse(f"persistent://shop/host:8080/{name}")), granted)
