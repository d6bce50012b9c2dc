"""Settings of the broker and policies of the namespace together."""

from dataclasses import replace
from typing import Any

import pytest

from broker.errors import NotAllowed
from broker.policies.namespace import parse_policies
from broker.settings.config import BrokerConfig
from broker.settings.quotas import DispatchRate
from broker.topic.dispatchers.kinds import check_type
from broker.topic.limits import TopicLimits, limits_of, types_of
from broker.wire import pulsar_pb2 as wire

CONFIG = BrokerConfig(
    max_producers_per_topic=7,
    max_consumers_per_topic=8,
    max_consumers_per_subscription=9,
    allow_auto_subscription_creation=False,
    deduplication=True,
    max_unacked_per_consumer=10,
    max_unacked_per_subscription=11,
    delayed_delivery=False,
    delayed_delivery_tick_ms=12,
)
NO_POLICIES = parse_policies(b"", "/p")


def limits(*, is_system: bool = False, **policies: Any) -> TopicLimits:
    return limits_of(CONFIG, replace(NO_POLICIES, **policies), is_system=is_system)


def test_without_policies_the_settings_count() -> None:
    found = limits()
    assert (found.producers_max, found.consumers_max, found.dispatch.consumers_max) == (7, 8, 9)
    assert not found.creates_subscriptions
    assert found.deduplicates
    dispatch = found.dispatch
    assert (dispatch.unacked_per_consumer_max, dispatch.unacked_per_subscription_max) == (10, 11)
    assert (dispatch.delayed_delivery, dispatch.delayed_tick_ms) == (False, 12)


@pytest.mark.parametrize(
    ("policy", "value", "limit"),
    [
        ("max_producers_per_topic", 0, "producers_max"),
        ("max_consumers_per_topic", 0, "consumers_max"),
        ("auto_subscription_creation", True, "creates_subscriptions"),
        ("deduplication", False, "deduplicates"),
    ],
)
def test_a_policy_wins_over_the_setting_also_when_it_is_zero_or_off(policy: str, value: Any, limit: str) -> None:
    assert getattr(limits(**{policy: value}), limit) == value


@pytest.mark.parametrize(
    ("policy", "value", "limit"),
    [
        ("max_consumers_per_subscription", 3, "consumers_max"),
        ("max_unacked_per_consumer", 0, "unacked_per_consumer_max"),
        ("max_unacked_per_subscription", 0, "unacked_per_subscription_max"),
        ("delayed_delivery", True, "delayed_delivery"),
        ("delayed_delivery_tick_ms", 5, "delayed_tick_ms"),
    ],
)
def test_policies_reach_the_dispatchers(policy: str, value: Any, limit: str) -> None:
    assert getattr(limits(**{policy: value}).dispatch, limit) == value


def test_any_number_of_producers_may_write_a_topic_of_the_broker() -> None:
    assert limits(is_system=True, max_producers_per_topic=1).producers_max == 0


def test_key_shared_can_be_switched_off_for_a_broker() -> None:
    off = BrokerConfig(key_shared=False)
    policies = NO_POLICIES
    assert types_of(off, policies) == {"Exclusive", "Shared", "Failover"}
    assert types_of(off, replace(policies, subscription_types=frozenset({"Shared", "Key_Shared"}))) == {"Shared"}
    only = types_of(off, replace(policies, subscription_types=frozenset({"Key_Shared"})))
    for kind in wire.CommandSubscribe.SubType.values():
        with pytest.raises(NotAllowed):
            check_type(kind, only, read_compacted=False)
    assert types_of(BrokerConfig(), policies) == frozenset()


def test_a_broker_may_have_fewer_types_of_subscriptions_and_a_policy_wins() -> None:
    fewer = BrokerConfig(subscription_types=("Shared", "Failover"))
    assert types_of(fewer, NO_POLICIES) == {"Shared", "Failover"}
    assert types_of(fewer, replace(NO_POLICIES, subscription_types=frozenset({"Exclusive"}))) == {"Exclusive"}


@pytest.mark.parametrize(("of_broker", "of_namespace"), [(False, False), (True, False), (False, True)])
def test_encryption_is_required_by_the_broker_or_by_the_namespace(of_broker: bool, of_namespace: bool) -> None:
    found = limits_of(
        BrokerConfig(encryption_required=of_broker),
        replace(NO_POLICIES, encryption_required=of_namespace),
        is_system=False,
    )
    assert found.requires_encryption == (of_broker or of_namespace)


def test_topics_with_the_same_policies_keep_the_same_object() -> None:
    assert limits(max_producers_per_topic=3) is limits(max_producers_per_topic=3)
    assert limits(max_producers_per_topic=3) != limits(max_producers_per_topic=4)
    rate = DispatchRate(1, 2, 3)
    assert limits(rates_of_subscriptions={"s": rate}).subscription_rates == {"s": rate}
    assert limits().subscription_rates == {}
