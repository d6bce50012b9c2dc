"""An Apache broker and ours in one cluster: bundles that either splits and moves, and non-persistent topics at both."""

import urllib.error
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support.mixed_cluster import Brand, MixedCluster, Server, cluster_with, http_json
from tests.support.processes import client_of, until

Cell = Callable[[str, str], None]

TIMEOUT_MS = 20_000
NS = "/admin/v2/namespaces/public/cut"
TOPICS = [f"persistent://public/cut/t{number}" for number in range(6)]
WHOLE = "0x00000000_0xffffffff"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    with cluster_with(tmp_path / "cluster", "ours", "apache") as made:
        yield made


def owner_of(broker: Server, topic: str) -> str:
    """The broker that serves *topic*, as *broker* says; empty while one of Apache's wants to own what the other one is
    just taking (LockBusyException, 500)."""
    path = topic.replace("://", "/")
    try:
        return str(http_json(f"{broker.admin_url}/lookup/v2/topic/{path}", timeout_s=30.0)["brokerUrl"])
    except urllib.error.HTTPError as error:
        if broker.brand == "apache" and error.code == 500:
            return ""
        raise


def at_owner(brokers: list[Server], method: str, path: str) -> None:
    """A call that other brokers redirect; urllib does not follow them for PUT."""
    for broker in brokers:
        try:
            http_json(broker.admin_url + path, method, timeout_s=30.0)
            return
        except urllib.error.HTTPError as error:
            if error.code != 307:
                raise AssertionError(f"{method} {path} at {broker.name}: {error.code} {error.read()!r}") from error
    raise AssertionError(f"{method} {path}: both brokers sent us to the other")


def bundles(broker: Server) -> list[str]:
    found: list[str] = http_json(f"{broker.admin_url}{NS}/bundles")["boundaries"]
    return found


def exchange(client: Any, consumers: dict[str, Any], text: bytes) -> None:
    """Each topic takes a message, and its consumer gets it."""
    for topic, consumer in consumers.items():
        client.create_producer(topic).send(text)
        message = consumer.receive(TIMEOUT_MS)
        while message.data() != text:  # one that came again, after a move
            consumer.acknowledge(message)
            message = consumer.receive(TIMEOUT_MS)
        consumer.acknowledge(message)


@pytest.mark.parametrize("first", ["apache", "ours"])
def test_both_split_and_move_the_same_bundles(cluster: MixedCluster, cell: Cell, first: Brand) -> None:
    """The broker that is started first is the leader."""
    cell(f"bundles split and moved, led by {'our' if first == 'ours' else 'Apache’s'} broker", "both brands of brokers")
    leader = cluster.add("broker", first)
    other = cluster.add("broker", "ours" if first == "apache" else "apache")
    both = [leader, other]
    assert len(http_json(f"{leader.admin_url}/admin/v2/brokers")) == 2
    http_json(leader.admin_url + NS, "PUT", {"bundles": {"numBundles": 1}})
    with client_of(leader.service_url) as client:
        consumers = {topic: client.subscribe(topic, "s", pulsar.ConsumerType.Shared) for topic in TOPICS}
        exchange(client, consumers, b"before")
        assert owner_of(leader, TOPICS[0]) == owner_of(other, TOPICS[0])
        at_owner(both, "PUT", f"{NS}/{WHOLE}/split")
        at_owner(both, "PUT", f"{NS}/0x00000000_0x7fffffff/split?splitAlgorithmName=topic_count_equally_divide")
        until(lambda: len(bundles(leader)) == 4 and bundles(leader) == bundles(other), "both know the bundles", 30.0)
        exchange(client, consumers, b"after the splits")
        text = "0x7fffffff_0xffffffff"
        inside = next(topic for topic in TOPICS if in_bundle(leader, topic, text))
        for destination in (other, leader, other):
            broker_id = f"127.0.0.1:{destination.web_port}"
            at_owner(both, "PUT", f"{NS}/{text}/unload?destinationBroker={broker_id}")
            # Asked at the leader first: where that is Apache's, it alone knows the destination.
            until(lambda wanted=destination.service_url: owner_of(leader, inside) == wanted, "it has moved", 30.0)  # type: ignore[misc]
            until(lambda: "" != owner_of(leader, inside) == owner_of(other, inside), "both know where it is", 30.0)
            exchange(client, consumers, f"moved to {destination.name}".encode())
        at_owner(both, "PUT", f"{NS}/{text}/split?unload=true")
        until(lambda: len(bundles(leader)) == 5 and bundles(leader) == bundles(other), "both know the bundles", 30.0)
        exchange(client, consumers, b"at the end")


def has_moved(owner: Server, other: Server, topic: str, host: str) -> bool:
    """Whether *other* knows *topic* at *host*. Apache's broker keeps policies in memory and may look at the former one
    for a moment, which sends the bundle back: then it is unloaded once more."""
    if host in owner_of(other, topic):
        return True
    namespace = topic.partition("://")[2].rpartition("/")[0]
    http_json(f"{owner.admin_url}/admin/v2/namespaces/{namespace}/unload", "PUT", timeout_s=30.0)
    return False


def in_bundle(broker: Server, topic: str, text: str) -> bool:
    from zlib import crc32

    low, high = (int(one, 16) for one in text.split("_"))
    return low <= crc32(topic.encode()) < high


def test_non_persistent_topics_are_served_by_both(cluster: MixedCluster, cell: Cell) -> None:
    cell("non-persistent topics", "both brands of brokers")
    first, second = cluster.add("broker", "apache"), cluster.add("broker", "ours")
    http_json(first.admin_url + NS, "PUT", {"bundles": {"numBundles": 16}})
    topics = [f"non-persistent://public/cut/np{number}" for number in range(12)]
    with client_of(first.service_url) as one, client_of(second.service_url) as two:
        consumers = {topic: two.subscribe(topic, "s") for topic in topics}
        for topic in topics:
            one.create_producer(topic).send(topic.encode())
            assert consumers[topic].receive(TIMEOUT_MS).data() == topic.encode()
        owners = {owner_of(first, topic) for topic in topics}
        assert owners == {owner_of(second, topic) for topic in topics}
        for broker in (first, second):
            listed = http_json(f"{broker.admin_url}/admin/v2/non-persistent/public/cut", timeout_s=30.0)
            assert sorted(listed) == sorted(topics)


def test_isolation_policies_and_what_is_beside_clusters_are_the_same_for_both(
    cluster: MixedCluster, cell: Cell
) -> None:
    """The brokers are told apart by their hosts; lookups at either end at the broker that is for the namespace."""
    cell("isolation policies, failure domains, replicated subscriptions", "both brands of brokers")
    apache = cluster.add("broker", "apache")
    ours = cluster.add("broker", "ours", advertisedAddress="localhost")
    both = [apache, ours]
    local = f"/admin/v2/clusters/{http_json(f'{ours.admin_url}/admin/v2/clusters')[0]}"
    failover = {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}}
    for setter, reader, name, host in ((apache, ours, "a", "localhost"), (ours, apache, "b", r"127\.0\.0\.1")):
        policy = {
            "namespaces": [f"public/{name}"], "primary": [host], "secondary": [], "auto_failover_policy": failover
        }  # fmt: skip
        http_json(f"{setter.admin_url}{local}/namespaceIsolationPolicies/{name}", "POST", policy)
        http_json(f"{setter.admin_url}{local}/failureDomains/{name}", "POST", {"brokers": [f"{name}:8080"]})
        told = [http_json(f"{one.admin_url}{local}/namespaceIsolationPolicies/{name}") for one in both]
        assert told[0] == told[1]
        until(
            lambda told=reader, wanted=name: wanted in http_json(f"{told.admin_url}{local}/failureDomains"),  # type: ignore[misc]
            "it is read",
            30.0,
        )
    for name, owner in (("a", ours), ("b", apache)):
        http_json(f"{apache.admin_url}/admin/v2/namespaces/public/{name}", "PUT", {"bundles": {"numBundles": 4}})
        url = owner.service_url.replace("127.0.0.1", "localhost" if owner is ours else "127.0.0.1")
        for number in range(6):
            topic = f"persistent://public/{name}/t{number}"
            assert {owner_of(one, topic) for one in both} == {url}
        at_owner([owner], "PUT", f"/admin/v2/persistent/public/{name}/t0")
        status = f"/admin/v2/persistent/public/{name}/t0/subscription/s"
        at_owner([owner], "PUT", status)
        http_json(f"{owner.admin_url}{status}/replicatedSubscriptionStatus", "POST", True)
    # Each namespace moves to the other broker, which reads what the first has stored of its subscriptions.
    for name, owner, other, host in (("a", ours, apache, "127.0.0.1"), ("b", apache, ours, "localhost")):
        topic = f"persistent://public/{name}/t0"
        policy = {
            "namespaces": [f"public/{name}"], "primary": [host], "secondary": [], "auto_failover_policy": failover
        }  # fmt: skip
        http_json(f"{owner.admin_url}{local}/namespaceIsolationPolicies/{name}", "POST", policy)
        http_json(f"{owner.admin_url}/admin/v2/namespaces/public/{name}/unload", "PUT", timeout_s=30.0)
        until(partial(has_moved, owner, other, topic, host), "it has moved", 60.0)
        path = f"/admin/v2/{topic.replace('://', '/')}/subscription/s/replicatedSubscriptionStatus"
        assert http_json(other.admin_url + path, timeout_s=30.0) == {topic: True}
