"""Policies of namespaces and topics, and permissions: what one broker has stored holds at the other one."""

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mixed_cluster import Brand, MixedCluster, Server, cluster_with, http_json
from tests.support.processes import client_of, until

Cell = Callable[[str, str], None]

NAMES = {"ours": "our broker", "apache": "Apache's broker"}
SPACE = "namespaces/public/default"

OF_NAMESPACE: dict[str, Any] = {
    "maxProducersPerTopic": 11,
    "messageTTL": 3600,
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20},
    "publishRate": {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1_000_000},
    "subscriptionDispatchRate": {
        "dispatchThrottlingRateInMsg": 1000,
        "dispatchThrottlingRateInByte": 1_000_000,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    },
    "subscriptionTypesEnabled": ["Failover"],
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 3600,
        "deleteWhileInactive": False,
    },
    "delayedDelivery": {"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 60_000},
}

OF_TOPIC: dict[str, Any] = {
    "maxProducers": 7,
    "maxConsumers": 8,
    "maxUnackedMessagesOnConsumer": 9,
    "maxSubscriptionsPerTopic": 5,
    "maxMessageSize": 100_000,
    "compactionThreshold": 1_000_000,
    "deduplicationEnabled": True,
    "persistence": {
        "bookkeeperEnsemble": 2,
        "bookkeeperWriteQuorum": 2,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 2.0,
    },
    "publishRate": {"publishThrottlingRateInMsg": 500, "publishThrottlingRateInByte": 500_000},
    "dispatchRate": OF_NAMESPACE["subscriptionDispatchRate"],
    "sub/dispatchRate": OF_NAMESPACE["subscriptionDispatchRate"],
    "inactiveTopicPolicies": {**OF_NAMESPACE["inactiveTopicPolicies"], "maxInactiveDurationSeconds": 60},
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False},
    "subscriptionTypesEnabled": ["Shared"],
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    with cluster_with(tmp_path / "cluster", "ours", "apache") as made:
        yield made


def url(broker: Server, path: str) -> str:
    return f"{broker.admin_url}/admin/v2/{path}"


def ask(broker: Server, method: str, path: str, body: Any = None) -> Any:
    """The JSON of the answer; redirects to the other broker are followed, also with a body."""
    target = url(broker, path)
    for _ in range(3):
        try:
            return http_json(target, method, body, timeout_s=30.0)
        except urllib.error.HTTPError as error:
            if error.code != 307:
                raise AssertionError(f"{method} {target}: {error.code} {error.read().decode()[:300]}") from error
            target = error.headers["Location"]
    raise AssertionError(f"{path} is sent from one broker to the other")


def quotas(broker: Server, path: str) -> Any:
    return ask(broker, "GET", f"{path}/backlogQuotaMap")


def check_all(broker: Server, topic: str) -> None:
    for name, value in OF_NAMESPACE.items():
        assert ask(broker, "GET", f"{SPACE}/{name}") == value, name
    for name, value in OF_TOPIC.items():
        assert ask(broker, "GET", f"{topic}/{name}") == value, name
        if name != "maxSubscriptionsPerTopic":
            assert ask(broker, "GET", f"{topic}/{name}?applied=true") == value, name
    assert ask(broker, "GET", f"{topic}/messageTTL?applied=true") == OF_NAMESPACE["messageTTL"]
    assert quotas(broker, topic)["destination_storage"]["limitSize"] == 1_000_000
    assert quotas(broker, SPACE)["message_age"]["limitTime"] == 60
    assert ask(broker, "GET", f"{SPACE}/permissions") == {"eve": ["produce"]}


@pytest.mark.parametrize(("first", "second"), [("ours", "apache"), ("apache", "ours")])
def test_policies_in_turn(cluster: MixedCluster, cell: Cell, first: Brand, second: Brand) -> None:
    cell(f"policies and permissions set by {NAMES[first]}, read and changed by {NAMES[second]}", "and back")
    topic = "persistent/public/default/told"
    broker = cluster.add("broker", first)
    ask(broker, "PUT", topic)
    for name, value in OF_NAMESPACE.items():
        ask(broker, "POST", f"{SPACE}/{name}", value)
    ask(broker, "POST", f"{SPACE}/permissions/eve", ["produce"])
    quota = {"limitTime": 60, "limitSize": -1, "policy": "producer_exception"}
    ask(broker, "POST", f"{SPACE}/backlogQuota?backlogQuotaType=message_age", quota)
    for name, value in OF_TOPIC.items():
        ask(broker, "POST", f"{topic}/{name}", value)
    ask(broker, "POST", f"{topic}/backlogQuota", {"limitSize": 1_000_000, "policy": "consumer_backlog_eviction"})
    until(lambda: ask(broker, "GET", f"{topic}/subscriptionTypesEnabled") == ["Shared"], "all is in force", 20.0)
    until(lambda: quotas(broker, topic), "the quota is in force", 20.0)
    check_all(broker, topic)
    broker.stop()

    other = cluster.add("broker", second)
    check_all(other, topic)
    ask(other, "POST", f"{topic}/maxProducers", 70)
    ask(other, "DELETE", f"{topic}/maxConsumers")
    ask(other, "DELETE", f"{SPACE}/messageTTL")
    until(lambda: ask(other, "GET", f"{topic}/maxConsumers") is None, "all is in force", 20.0)
    other.stop()

    broker.start()
    assert ask(broker, "GET", f"{topic}/maxProducers?applied=true") == 70
    assert ask(broker, "GET", f"{topic}/maxConsumers?applied=true") == 0
    assert ask(broker, "GET", f"{topic}/messageTTL?applied=true") == 0
    assert ask(broker, "GET", f"{topic}/publishRate") == OF_TOPIC["publishRate"]
    with client_of(broker.service_url) as client:
        client.create_producer("persistent://public/default/told").send(b"it is served")


def test_brokers_of_both_brands_at_the_same_time(cluster: MixedCluster, cell: Cell) -> None:
    cell("policies of topics set at either broker", "in force at the other while both run")
    brokers = [cluster.add("broker", brand) for brand in ("ours", "apache")]
    topics = [f"persistent/public/default/both{number}" for number in range(6)]
    for topic in topics:
        ask(brokers[0], "PUT", topic)
    for number, topic in enumerate(topics):
        ask(brokers[number % 2], "POST", f"{topic}/maxProducers", 100 + number)
    for broker in brokers:
        for number, topic in enumerate(topics):
            until(
                lambda broker=broker, topic=topic, number=number: (  # type: ignore[misc]
                    ask(broker, "GET", f"{topic}/maxProducers?applied=true") == 100 + number
                ),
                f"{topic} has its policy",
                20.0,
            )
    for broker in brokers:
        with client_of(broker.service_url) as client:
            for topic in topics:
                client.create_producer(topic.replace("persistent/", "persistent://", 1)).send(b"it is served")
