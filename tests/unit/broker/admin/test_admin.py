"""The admin API where it decides something: whose topic it is, what is refused, what happens in all partitions."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pulsar
import pytest

import broker.admin.server
import broker.health
from broker.admin.bodies import NO_SHADOWS
from broker.admin.http import Refused
from broker.admin.owners import Owners
from broker.errors import NotAllowed
from broker.policies.namespace import new_policies
from broker.topic.compaction.compactor import CompactionStatus
from magnetar_core.bookkeeper.metadata.stores.store import VersionConflict
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.records.records_pb2 import KeyValue, ManagedLedgerInfo
from managed_ledger.schemas.compatibility import Schema, SchemaType, Strategy
from tests.support.vectors import load
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.conftest import CONFIG
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.test_official_client import EARLIEST, QUIET

ADMIN = "/admin/v2"
NAMESPACE = f"{ADMIN}/namespaces/public/default"
TOPICS = f"{ADMIN}/persistent/public/default"
TOPIC_P = "persistent://public/default/p"


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


def publish(url: str, topic: str, count: int) -> None:
    client = pulsar.Client(url, logger=QUIET)
    producer = client.create_producer(topic)
    for number in range(count):
        producer.send(b"%d" % number, partition_key=f"k{number}")
    client.close()


async def owned_by(world: AdminWorld, side: Side, name: str) -> None:
    """Make a topic that *side* serves."""
    topic = TopicName.parse(name)
    assert (await side.ownership.locate(topic, authoritative=True)).here
    assert (await world.call(side, "PUT", f"{TOPICS}/{topic.local}")).status == 204


# ------------------------------------------------------------------------------------- ownership


async def test_a_call_about_a_topic_is_sent_to_its_owner(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    await owned_by(world, a, "t")
    for method, path in [
        ("GET", "/stats"), ("GET", "/internalStats"), ("GET", "/subscriptions"), ("GET", "/lastMessageId"),
        ("PUT", "/unload"), ("PUT", "/subscription/s"), ("POST", "/terminate"), ("DELETE", "?force=true"),
    ]:  # fmt: skip
        sent = await world.call(b, method, f"{TOPICS}/t{path}")
        assert sent.status == 307
        location = sent.headers["Location"]
        assert location.startswith(f"{a.http_url}{TOPICS}/t{path.partition('?')[0]}?")
        assert "authoritative=false" in location
        assert ("force=true" in location) == (method == "DELETE")
    assert (await world.call(b, "GET", f"{TOPICS}/t/stats", follow=True)).json["ownerBroker"] == a.id


async def test_a_free_bundle_is_offered_to_the_broker_whose_turn_it_is(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    first, second = [await world.call(side, "PUT", f"{TOPICS}/t") for side in (a, b)]
    if first.status == 307:  # it is the turn of b, who shall not send it back
        assert first.headers["Location"] == f"{b.http_url}{TOPICS}/t?authoritative=true"
        assert second.status == 204
    else:
        assert first.status == 204
        assert second.headers["Location"] == f"{a.http_url}{TOPICS}/t?authoritative=false"
    lookup = [await world.call(side, "GET", "/lookup/v2/topic/persistent/public/default/t") for side in (a, b)]
    assert lookup[0].json == lookup[1].json


async def test_a_dead_owner_without_successor_is_503(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    b.ownership.finder.takeover_wait_s = 0.05
    await owned_by(world, a, "t")
    await a.broker.server.stop_listening()
    found = await world.call(b, "GET", f"{TOPICS}/t/stats")
    assert found.status == 503
    assert a.url in found.reason


async def test_partitions_are_asked_wherever_they_are(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    assert (await world.call(a, "PUT", f"{TOPICS}/p/partitions", 6)).status == 204
    # Twice: the brokers agree from the first call on.
    for side in (a, b):
        stats = (await world.call(side, "GET", f"{TOPICS}/p/partitioned-stats")).json
        assert len(stats["partitions"]) == 6
        assert {one["ownerBroker"] for one in stats["partitions"].values()} == {a.id, b.id}
    await world.run(publish, a.url, "p", 20)
    for path, status in [("PUT /subscription/s", 204), ("PUT /subscription/s", 409)]:
        method, _, rest = path.partition(" ")
        earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        assert (await world.call(b, method, f"{TOPICS}/p{rest}", earliest)).status == status
    assert (await world.call(a, "GET", f"{TOPICS}/p/subscriptions")).json == ["s"]
    stats = (await world.call(a, "GET", f"{TOPICS}/p/partitioned-stats?perPartition=false")).json
    assert stats["msgInCounter"] == 20
    assert stats["subscriptions"]["s"]["msgBacklog"] == 20
    assert stats["partitions"] == {}
    assert (await world.call(b, "POST", f"{TOPICS}/p/subscription/s/skip_all")).status == 204
    stats = (await world.call(b, "GET", f"{TOPICS}/p/partitioned-stats")).json
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    assert (await world.call(b, "POST", f"{TOPICS}/p/subscription/s/resetcursor/0")).status == 204
    stats = (await world.call(b, "GET", f"{TOPICS}/p/partitioned-stats")).json
    assert stats["subscriptions"]["s"]["msgBacklog"] == 20
    assert (await world.call(b, "DELETE", f"{TOPICS}/p/subscription/s")).status == 204
    assert (await world.call(b, "DELETE", f"{TOPICS}/p/subscription/s")).status == 404
    assert (await world.call(b, "POST", f"{TOPICS}/p/subscription/s/skip_all")).status == 404
    position = {"ledgerId": 0, "entryId": 0}
    assert (await world.call(b, "POST", f"{TOPICS}/p/subscription/s/resetcursor", position)).status == 405
    assert (await world.call(b, "DELETE", f"{TOPICS}/p/partitions")).status == 204
    assert (await world.call(a, "GET", TOPICS)).json == []


async def test_a_partition_in_use_keeps_its_topic_from_being_deleted(world: AdminWorld) -> None:
    a = await world.side()
    await world.call(a, "PUT", f"{TOPICS}/p/partitions", 2)
    client = await world.run(lambda: pulsar.Client(a.url, logger=QUIET))
    await world.run(lambda: client.subscribe("p", "s"))
    for path in ("p/partitions", "p/subscription/s", "p-partition-0"):
        found = await world.call(a, "DELETE", f"{TOPICS}/{path}")
        assert found.status == 412
    assert (await world.call(a, "DELETE", f"{TOPICS}/p/partitions?force=true")).status == 204
    await world.run(client.close)


async def test_a_namespace_is_unloaded_from_all_brokers_by_any(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    await world.call(a, "PUT", f"{TOPICS}/p/partitions", 8)
    await world.spread((a, b))
    await world.call(a, "GET", f"{TOPICS}/p/partitioned-stats")
    assert a.broker.topics
    assert b.broker.topics
    assert (await world.call(b, "PUT", f"{NAMESPACE}/unload")).status == 204
    assert a.ownership.owned_bundles == b.ownership.owned_bundles == []
    assert not a.broker.topics
    assert not b.broker.topics


@pytest.mark.parametrize("is_here", [True, False])
async def test_a_bundle_is_split_by_its_owner_or_by_whoever_takes_it(world: AdminWorld, is_here: bool) -> None:
    a = await world.side()
    before = (await world.call(a, "GET", f"{NAMESPACE}/bundles")).json["boundaries"]
    bundle = f"{before[0]}_{before[1]}"
    if is_here:
        await owned_by(world, a, "t")
        bundle = a.ownership.owned_bundles[0].rpartition("/")[2]
    assert (await world.call(a, "PUT", f"{NAMESPACE}/{bundle}/split")).status == 204
    after = (await world.call(a, "GET", f"{NAMESPACE}/bundles")).json["boundaries"]
    (border,) = set(after) - set(before)
    low, high = (int(one, 16) for one in bundle.split("_"))
    assert low < int(border, 16) < high


async def test_a_bundle_is_unloaded_by_its_owner(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    await owned_by(world, a, "t")
    bundle = a.ownership.owned_bundles[0].rpartition("/")[2]
    sent = await world.call(b, "PUT", f"{NAMESPACE}/{bundle}/unload")
    assert sent.status == 307
    assert sent.headers["Location"] == f"{a.http_url}{NAMESPACE}/{bundle}/unload"
    for _ in range(2):  # also when nobody has it any more
        assert (await world.call(b, "PUT", f"{NAMESPACE}/{bundle}/unload", follow=True)).status == 204
    assert a.ownership.owned_bundles == []
    found = await world.call(a, "PUT", f"{NAMESPACE}/0x00000000_0x00000001/unload")
    assert found.status == 412
    assert "0x00000000_0x00000001" in found.reason


# ---------------------------------------------------------------------------------------- brokers


async def test_several_health_checks_at_once_are_all_answered(world: AdminWorld) -> None:
    a = await world.side()
    answers = await asyncio.gather(*(world.call(a, "GET", f"{ADMIN}/brokers/health") for _ in range(10)))
    assert {(answer.status, answer.text) for answer in answers} == {(200, "ok")}


async def test_a_broker_that_cannot_store_is_not_healthy(world: AdminWorld) -> None:
    a = await world.side()
    world.bookkeeper.out_of_bookies = True
    found = await world.call(a, "GET", f"{ADMIN}/brokers/health")
    assert found.status == 500
    assert "the storage does not work" in found.reason
    world.bookkeeper.out_of_bookies = False
    assert (await world.call(a, "GET", f"{ADMIN}/brokers/health")).status == 200


async def test_a_health_check_does_not_wait_for_ever(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.health, "HEALTH_TIMEOUT_S", 0.05)
    a = await world.side()
    world.bookkeeper.hold = True
    found = await world.call(a, "GET", f"{ADMIN}/brokers/health")
    assert (found.status, "no answer in time" in found.reason) == (500, True)
    world.bookkeeper.hold = False
    for handle in world.bookkeeper.handles:
        handle.release()


async def test_another_cluster_is_not_ours(world: AdminWorld) -> None:
    a = await world.side()
    assert (await world.call(a, "GET", f"{ADMIN}/brokers/elsewhere")).status == 404
    assert (await world.call(a, "GET", f"{ADMIN}/brokers/lab/127.0.0.1:1/ownedNamespaces")).status == 404


async def test_metrics_count_what_is_there(world: AdminWorld) -> None:
    a = await world.side()
    await owned_by(world, a, "t")
    await world.call(a, "PUT", f"{TOPICS}/t/subscription/s")
    text = (await world.call(a, "GET", "/metrics/")).text
    assert 'pulsar_topics_count{cluster="lab",namespace="public/default"} 1.0' in text
    assert 'pulsar_lb_bundles_owned{cluster="lab"} 1.0' in text
    of_topic = 'cluster="lab",namespace="public/default"'
    name = 'topic="persistent://public/default/t"'
    assert f'pulsar_subscription_back_log{{{of_topic},subscription="s",{name}}} 0.0' in text


async def test_settings_are_shown_as_texts(world: AdminWorld) -> None:
    a = await world.side()
    found = (await world.call(a, "GET", f"{ADMIN}/brokers/configuration/runtime")).json
    assert found["clusterName"] == "lab"
    assert found["acknowledgmentAtBatchIndexLevelEnabled"] == "true"
    assert found.keys() > set((await world.call(a, "GET", f"{ADMIN}/brokers/configuration")).json)


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("data", [b"{", b"[1", b"\xff\xfe", b"nul", b"[" * 100_000])
async def test_a_body_that_is_not_json_is_400(world: AdminWorld, data: bytes) -> None:
    a = await world.side()
    found = await world.call(a, "POST", f"{NAMESPACE}/retention", data=data)
    assert found.status == 400
    assert "not JSON" in found.reason


async def test_a_body_that_is_too_large_is_413(world: AdminWorld) -> None:
    a = await world.side()
    found = await world.call(a, "POST", f"{NAMESPACE}/retention", data=b" " * (broker.admin.server.BODY_BYTES_MAX + 1))
    assert found.status == 413
    assert found.reason


REFUSED_POLICIES: list[tuple[str, Any, int]] = [
    ("retention", 7, 400),
    ("retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}, 400),
    ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, 400),
    ("retention", {"retentionTimeInMinutes": "x", "retentionSizeInMB": 1}, 400),
    ("persistence", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1}, 400),
    ("persistence", {"bookkeeperEnsemble": [3], "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}, 400),
    ("deduplication", "perhaps", 400),
    ("maxProducersPerTopic", -1, 412),
    ("maxProducersPerTopic", True, 400),
    ("schemaCompatibilityStrategy", "SOMETIMES", 412),
    ("autoTopicCreation", {"allowAutoTopicCreation": True}, 412),
    (
        "autoTopicCreation",
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": "x"},
        400,
    ),
    ("subscriptionTypesEnabled", "Shared", 400),
    ("replication", ["elsewhere"], 403),
]


@pytest.mark.parametrize(("name", "value", "status"), REFUSED_POLICIES)
async def test_a_policy_that_makes_no_sense_is_refused_and_nothing_changes(
    world: AdminWorld, name: str, value: Any, status: int
) -> None:
    a = await world.side()
    before = (await world.call(a, "GET", NAMESPACE)).json
    method = "PUT" if name == "schemaCompatibilityStrategy" else "POST"
    found = await world.call(a, method, f"{NAMESPACE}/{name}", value)
    assert found.status == status
    assert found.reason
    assert (await world.call(a, "GET", NAMESPACE)).json == before
    assert (await world.call(a, "PUT", f"{TOPICS}/t")).status == 204  # the namespace can still be read


async def test_members_that_are_not_ours_survive_a_change(world: AdminWorld) -> None:
    a = await world.side()
    await a.store.put("/admin/policies/public/default", json.dumps({**new_policies("lab", 4), "future": [1]}).encode())
    assert (await world.call(a, "POST", f"{NAMESPACE}/deduplication", True)).status == 204
    record = (await world.call(a, "GET", NAMESPACE)).json
    assert record["future"] == [1]
    assert record["deduplicationEnabled"] is True


async def test_changes_at_the_same_moment_are_both_kept(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    names = ["maxProducersPerTopic", "maxConsumersPerTopic", "maxConsumersPerSubscription"]
    answers = await asyncio.gather(
        *(world.call(side, "POST", f"{NAMESPACE}/{name}", 7) for side in (a, b) for name in names)
    )
    assert {answer.status for answer in answers} == {204}
    for name in names:
        assert (await world.call(a, "GET", f"{NAMESPACE}/{name}")).json == 7


async def test_who_always_loses_against_others_is_told_so(world: AdminWorld) -> None:
    a = await world.side()

    def conflict(path: str) -> None:
        if path == "/admin/policies/public/default":
            raise VersionConflict(path)

    a.store.before_change = conflict
    found = await world.call(a, "POST", f"{NAMESPACE}/deduplication", True)
    assert (found.status, found.reason) == (409, "Concurrent modification")


@pytest.mark.parametrize(
    ("bundles", "status"),
    [
        ({"numBundles": 0}, 204),  # the default
        ({"numBundles": 7}, 204),
        ({"boundaries": ["0x00000000", "0x10000000", "0xffffffff"]}, 204),
        ({"numBundles": -1}, 412),
        ({"numBundles": 5000}, 412),
        ({"numBundles": "4"}, 412),
        ({"boundaries": ["0x00000000", "0x10000000"]}, 412),
        ({"boundaries": ["0x00000000", "0x20000000", "0x10000000", "0xffffffff"]}, 412),
        ({"boundaries": [0, 1]}, 412),
    ],
)
async def test_a_namespace_is_cut_as_asked_or_not_at_all(
    world: AdminWorld, bundles: dict[str, Any], status: int
) -> None:
    a = await world.side()
    found = await world.call(a, "PUT", f"{ADMIN}/namespaces/public/n", {"bundles": bundles})
    assert found.status == status
    cut = await world.call(a, "GET", f"{ADMIN}/namespaces/public/n/bundles")
    if status != 204:
        assert found.reason
        assert cut.status == 404
        return
    expected = bundles.get("boundaries")
    if expected:
        assert cut.json["boundaries"] == expected
    assert cut.json["numBundles"] == len(cut.json["boundaries"]) - 1
    assert (await world.call(a, "PUT", f"{ADMIN}/persistent/public/n/t")).status == 204


@pytest.mark.parametrize("count", [0, -1, None, 10_001, 0.5])
async def test_a_number_of_partitions_that_makes_no_sense_is_406(world: AdminWorld, count: Any) -> None:
    a = await world.side()
    found = await world.call(a, "PUT", f"{TOPICS}/p/partitions", data=json.dumps(count).encode())
    assert found.status == 406
    assert "Number of partitions" in found.reason


async def test_names_that_break_the_rules_are_412(world: AdminWorld) -> None:
    a = await world.side()
    for path in ("tenants/a%20b", "namespaces/public/a%2Fb", "clusters/a%20b"):
        assert (await world.call(a, "PUT", f"{ADMIN}/{path}", {"allowedClusters": ["lab"]})).status == 412
    assert (await world.call(a, "PUT", f"{TOPICS}/a%2Fb")).status == 412


async def test_tenants_and_namespaces_are_deleted_by_force_only_where_that_is_allowed(world: AdminWorld) -> None:
    a = await world.side()
    for path, what in (("tenants/public", "tenants"), ("namespaces/public/default", "namespaces")):
        answer = await world.call(a, "DELETE", f"{ADMIN}/{path}?force=true")
        assert answer.status == 405
        assert answer.reason == f"Broker doesn't allow forced deletion of {what}"


async def test_by_force_a_namespace_goes_with_the_topics_in_it_and_a_tenant_with_its_namespaces(
    world: AdminWorld,
) -> None:
    allowed = {"force_delete_namespaces": True, "force_delete_tenants": True}
    a, b = await world.side(**allowed), await world.side(**allowed)
    await world.call(a, "PUT", f"{ADMIN}/tenants/x", {"allowedClusters": [CONFIG.cluster_name]})
    for name in ("x/one", "x/two", "x/three"):
        await world.call(a, "PUT", f"{ADMIN}/namespaces/{name}")
        await world.call(a, "PUT", f"{ADMIN}/persistent/{name}/plain", follow=True)
        await world.call(b, "PUT", f"{ADMIN}/persistent/{name}/parts/partitions", 3, follow=True)
        await world.call(b, "PUT", f"{ADMIN}/non-persistent/{name}/light/partitions", 2, follow=True)
        await world.call(a, "POST", f"{ADMIN}/persistent/{name}/plain/maxProducers", 3, follow=True)
    client = await RawClient.connect(next(one for one in (a, b) if plain(one)).broker.port)
    await client.subscribe("persistent://x/one/plain")
    assert (await world.call(a, "DELETE", f"{ADMIN}/namespaces/x/one")).status == 409
    assert (await world.call(a, "DELETE", f"{ADMIN}/namespaces/x/one?force=true")).status == 204
    assert (await world.call(b, "GET", f"{ADMIN}/namespaces/x")).json == ["x/three", "x/two"]
    assert await a.broker.ledgers.list("x/one") == []
    assert (await world.call(b, "DELETE", f"{ADMIN}/tenants/x")).status == 409
    assert (await world.call(b, "DELETE", f"{ADMIN}/tenants/x?force=true")).status == 204
    assert "x" not in (await world.call(a, "GET", f"{ADMIN}/tenants")).json
    assert await a.broker.ledgers.list("x/two") == []
    client.close()


def plain(side: Side) -> bool:
    return any(name.full == "persistent://x/one/plain" for name in side.broker.topics)


async def test_a_tenant_names_clusters_that_exist(world: AdminWorld) -> None:
    a = await world.side()
    bodies: list[Any] = [{}, {"allowedClusters": []}, {"allowedClusters": ["nowhere"]}, {"allowedClusters": "lab"}]
    for body in bodies:
        assert (await world.call(a, "PUT", f"{ADMIN}/tenants/t", body)).status == 412


async def test_a_record_that_cannot_be_read_is_named(world: AdminWorld) -> None:
    a = await world.side()
    await a.store.put("/admin/policies/broken", b"{")
    await a.store.put("/admin/policies/broken/n", b"[]")
    await a.store.put("/admin/partitioned-topics/public/default/persistent/p", b"?")
    for method, path, place in [
        ("GET", "tenants/broken", "/admin/policies/broken"),
        ("GET", "namespaces/broken/n", "/admin/policies/broken/n"),
        ("POST", "namespaces/broken/n/deduplication", "/admin/policies/broken/n"),
        ("GET", "persistent/broken/n", "/admin/policies/broken/n"),
        ("GET", "persistent/public/default/p/subscriptions", "/persistent/p"),
    ]:
        found = await world.call(a, method, f"{ADMIN}/{path}", True if method == "POST" else None)
        assert found.status == 500, path
        assert place in found.reason


async def test_a_metadata_store_that_is_away_is_said_to_be_away(world: AdminWorld) -> None:
    a = await world.side()
    a.store.suspend()
    found = await world.call(a, "GET", f"{ADMIN}/tenants")
    assert found.status == 500
    assert "does not answer" in found.reason
    a.store.resume()


async def test_what_is_not_there_says_so(world: AdminWorld) -> None:
    a = await world.side()
    for method, path in [
        ("GET", f"{NAMESPACE}/nonsense"),
        ("PUT", f"{ADMIN}/non-persistent/public/default/t/replication"),
    ]:  # fmt: skip
        found = await world.call(a, method, path)
        assert found.status == 501
        assert f"{method} {path} is not supported by this broker" == found.reason
    assert (await world.call(a, "GET", "/nowhere")).status == 404
    nobody_has = await world.call(a, "GET", f"{ADMIN}/topics/public/default/t/inactiveTopicPolicies")
    assert nobody_has.status == 404
    assert "there is no 'topics' in the admin API" in nobody_has.reason


async def test_what_is_never_served_is_refused_by_its_name(world: AdminWorld) -> None:
    a = await world.side()
    for method, path, status, name in [
        ("PUT", f"{TOPICS}/t/offload", 412, "Offloading"),
        ("GET", f"{NAMESPACE}/scanOffloadedLedgers", 412, "Offloading"),
        ("POST", f"{ADMIN}/clusters/lab/migrate?migrated=true", 412, "migration of clusters"),
        ("POST", f"{NAMESPACE}/migration?migrated=true", 412, "migration of clusters"),
        ("DELETE", f"{NAMESPACE}/0x00000000_0x40000000", 501, "Bundles"),
        ("POST", f"{ADMIN}/brokers/shutdown", 501, "signal"),
        ("GET", "/ws/v2/producer/persistent/public/default/t", 404, "WebSocket"),
        ("POST", "/topics/persistent/public/default/t", 501, "over REST"),
    ]:  # fmt: skip
        found = await world.call(a, method, path)
        assert (found.status, name in found.reason, "not" in found.reason) == (status, True, True), path
    assert (await world.call(a, "PUT", f"{TOPICS}/t")).status == 204
    assert (await world.call(a, "GET", f"{TOPICS}/t/offload")).json["status"] == "NOT_RUN"


# ---------------------------------------------------------------------------------------- topics


async def test_a_deleted_namespace_leaves_no_owner_behind(world: AdminWorld) -> None:
    a = await world.side()
    path = f"{ADMIN}/namespaces/public/n"
    for count in (2, 8):  # made anew with other bundles
        assert (await world.call(a, "PUT", path, {"bundles": {"numBundles": count}})).status == 204
        assert (await world.call(a, "PUT", f"{ADMIN}/persistent/public/n/t")).status == 204
        assert (await world.call(a, "DELETE", path)).status == 409
        assert (await world.call(a, "DELETE", f"{ADMIN}/persistent/public/n/t")).status == 204
        assert (await world.call(a, "DELETE", path)).status == 204
        assert a.ownership.owned_bundles == []
        assert (await world.call(a, "GET", path)).status == 404


@pytest.mark.parametrize("name", ["a b", "a+b", "a%b", "ü", "a:b", "~", "x-partition-01"])
async def test_names_are_encoded_once(world: AdminWorld, name: str) -> None:
    from urllib.parse import quote

    a = await world.side()
    path = f"{TOPICS}/{quote(name, safe='')}"
    assert (await world.call(a, "PUT", path)).status == 204
    assert (await world.call(a, "GET", TOPICS)).json == [f"persistent://public/default/{name}"]
    await world.run(publish, a.url, f"persistent://public/default/{name}", 3)
    assert (await world.call(a, "GET", f"{path}/stats")).json["msgInCounter"] == 3
    assert (await world.call(a, "PUT", f"{path}/subscription/my%2520sub%252Fscription")).status == 204
    assert (await world.call(a, "GET", f"{path}/subscriptions")).json == ["my sub/scription"]
    assert (await world.call(a, "DELETE", f"{path}/subscription/my%2520sub%252Fscription")).status == 204
    assert (await world.call(a, "DELETE", path)).status == 204


async def test_a_subscription_is_moved_to_a_position_a_time_and_the_end(world: AdminWorld) -> None:
    a = await world.side()
    await world.run(publish, a.url, "t", 10)

    async def backlog() -> int:
        stats = (await world.call(a, "GET", f"{TOPICS}/t/stats")).json
        found: int = stats["subscriptions"]["s"]["msgBacklog"]
        return found

    sub = f"{TOPICS}/t/subscription/s"
    assert (await world.call(a, "PUT", sub, "earliest")).status == 204
    assert await backlog() == 10
    last = (await world.call(a, "GET", f"{TOPICS}/t/lastMessageId")).json
    assert (last["entryId"], last["partitionIndex"], last["batchIndex"]) == (9, -1, -1)
    for body, left in [
        ({"ledgerId": last["ledgerId"], "entryId": 4}, 6),
        ({"ledgerId": last["ledgerId"], "entryId": 4, "isExcluded": True}, 5),
        ({"ledgerId": -1, "entryId": -1, "partitionIndex": -1}, 10),
        ({"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}, 0),
    ]:
        assert (await world.call(a, "POST", f"{sub}/resetcursor", body)).status == 204
        assert await backlog() == left
    assert (await world.call(a, "POST", f"{sub}/resetcursor/0")).status == 204
    assert await backlog() == 10
    assert (await world.call(a, "POST", f"{sub}/skip_all")).status == 204
    assert await backlog() == 0
    bad: list[Any] = [{}, {"ledgerId": "x", "entryId": 1}, [1], 5]
    for body in bad:
        assert (await world.call(a, "POST", f"{sub}/resetcursor", body)).status == 412
    assert (await world.call(a, "POST", f"{sub}/resetcursor/yesterday")).status == 412
    first = (await world.call(a, "GET", f"{TOPICS}/t/messageid/0")).json
    assert (first["ledgerId"], first["entryId"]) == (last["ledgerId"], 0)
    after = (await world.call(a, "GET", f"{TOPICS}/t/messageid/99999999999999")).json
    assert (after["ledgerId"], after["entryId"]) == (last["ledgerId"], 10), "where the next one will be"


async def test_a_partitioned_topic_is_unloaded_in_all_its_partitions(world: AdminWorld) -> None:
    a = await world.side()
    await world.call(a, "PUT", f"{TOPICS}/p/partitions", 2)
    partitions = [TopicName.parse(f"public/default/p-partition-{number}") for number in range(2)]
    for number in range(2):
        assert (await world.call(a, "GET", f"{TOPICS}/p-partition-{number}/stats")).status == 200
    before = [a.broker.topics[name] for name in partitions]
    assert (await world.call(a, "PUT", f"{TOPICS}/p/unload")).status == 204
    assert all(a.broker.topics.get(name) is not old for name, old in zip(partitions, before, strict=True))


async def test_the_policies_of_a_partition_are_those_of_its_topic(world: AdminWorld) -> None:
    a = await world.side()
    await world.call(a, "PUT", f"{TOPICS}/p/partitions", 2)
    for method, body in (("GET", None), ("POST", 5), ("DELETE", None)):
        refused = await world.call(a, method, f"{TOPICS}/p-partition-0/maxProducers", body)
        assert refused.status == 412
        assert "Not allowed to set/get topic policy for a partition" in refused.reason


async def test_a_topic_without_partitions_is_not_deleted_as_one_that_has_them(world: AdminWorld) -> None:
    a = await world.side()
    await world.call(a, "PUT", f"{TOPICS}/t")
    refused = await world.call(a, "DELETE", f"{TOPICS}/t/partitions")
    assert (refused.status, "public/default/t is a non-partitioned topic" in refused.reason) == (409, True)
    assert (await world.call(a, "GET", f"{TOPICS}/t/stats")).status == 200


async def test_a_topic_without_schemas_has_an_empty_list_of_them(world: AdminWorld) -> None:
    a = await world.side()
    found = await world.call(a, "GET", f"{ADMIN}/schemas/public/default/t/schemas")
    assert (found.status, found.json) == (200, {"getSchemaResponses": []})
    schema = {"type": "STRING", "schema": "", "properties": {}}
    found = await world.call(a, "POST", f"{ADMIN}/schemas/public/default/t/version", schema)
    assert (found.status, found.json) == (200, {"version": -1})


async def test_properties_of_topics_are_kept_and_merged(world: AdminWorld) -> None:
    a = await world.side()
    assert (await world.call(a, "PUT", f"{TOPICS}/t", {"a": "1"})).status == 204
    assert (
        await world.call(a, "PUT", f"{TOPICS}/p/partitions", {"partitions": 2, "properties": {"a": "1"}})
    ).status == 204
    for name in ("t", "p"):
        path = f"{TOPICS}/{name}/properties"
        assert (await world.call(a, "PUT", path, {"b": "2"})).status == 204
        assert (await world.call(a, "GET", path)).json == {"a": "1", "b": "2"}
        assert (await world.call(a, "DELETE", f"{path}?key=a")).status == 204
        assert (await world.call(a, "GET", path)).json == {"b": "2"}
        assert (await world.call(a, "PUT", path, {"b": 2})).status == 412
    assert (await world.call(a, "POST", f"{TOPICS}/p/partitions", 3)).status == 204
    found = (await world.call(a, "GET", f"{TOPICS}/p/partitions")).json
    assert found == {"partitions": 3, "deleted": False, "properties": {"b": "2"}}
    assert (await world.call(a, "PUT", f"{TOPICS}/t2", ["x"])).status == 412


async def test_messages_up_to_one_expire(world: AdminWorld) -> None:
    a = await world.side()
    assert (await world.call(a, "PUT", f"{TOPICS}/parted/partitions", 1)).status == 204
    for name, partition in (("t", -1), ("parted-partition-0", 0)):
        await world.run(publish, a.url, f"public/default/{name}", 10)
        sub = f"{TOPICS}/{name}/subscription/s"
        assert (await world.call(a, "PUT", sub, "earliest")).status == 204
        last = (await world.call(a, "GET", f"{TOPICS}/{name}/lastMessageId")).json
        at = {"ledgerId": last["ledgerId"], "entryId": 3, "partitionIndex": partition}
        assert (await world.call(a, "POST", f"{sub}/expireMessages", at)).status == 204
        counts = a.broker.topics[TopicName.parse(f"public/default/{name}")].subscriptions["s"]
        assert (counts.cursor.backlog(), counts.expired_entries) == (6, 4)
        assert (await world.call(a, "POST", f"{sub}/expireMessages", {**at, "entryId": 1})).status == 204
        assert counts.cursor.backlog() == 6, "they have expired before"
        beyond = await world.call(a, "POST", f"{sub}/expireMessages", {**at, "entryId": 10})
        assert (beyond.status, "does not reach" in beyond.reason) == (409, True)
        assert (await world.call(a, "POST", f"{sub}/expireMessages", {**at, "partitionIndex": 7})).status == 412
        assert (await world.call(a, "POST", f"{sub}x/expireMessages", at)).status == 404
        assert (await world.call(a, "POST", f"{sub}/expireMessages", {})).status == 412
        assert (await world.call(a, "POST", f"{sub}/expireMessages", {**at, "excluded": True})).status == 204
        assert counts.cursor.backlog() == 5, "as with Apache's brokers, the entry behind it goes too"
    whole = f"{TOPICS}/parted/subscription/s/expireMessages"
    assert (await world.call(a, "POST", whole, {"ledgerId": 0, "entryId": 0, "partitionIndex": -1})).status == 405


async def test_messages_of_a_subscription_that_no_partition_has_do_not_expire(world: AdminWorld) -> None:
    a = await world.side()
    assert (await world.call(a, "PUT", f"{TOPICS}/p/partitions", 2)).status == 204
    assert (await world.call(a, "POST", f"{TOPICS}/p/subscription/none/expireMessages/1")).status == 404
    await world.call(a, "PUT", f"{TOPICS}/p-partition-1/subscription/one")
    assert (await world.call(a, "POST", f"{TOPICS}/p/subscription/one/expireMessages/1")).status == 404
    await world.call(a, "PUT", f"{TOPICS}/p/subscription/all")
    assert (await world.call(a, "POST", f"{TOPICS}/p/subscription/all/expireMessages/1")).status == 409


SHADOW = {"PULSAR.SHADOW_SOURCE": "persistent://public/default/source"}


async def test_shadow_topics_are_refused_by_their_name(world: AdminWorld) -> None:
    a = await world.side()
    assert (await world.call(a, "PUT", f"{TOPICS}/t")).status == 204
    refused = [
        await world.call(a, "PUT", f"{TOPICS}/shadow", SHADOW),
        await world.call(a, "PUT", f"{TOPICS}/shadow/partitions", {"partitions": 2, "properties": SHADOW}),
        await world.call(a, "PUT", f"{TOPICS}/t/properties", SHADOW),
        await world.call(a, "PUT", f"{TOPICS}/t/shadowTopics", ["persistent://public/default/shadow"]),
    ]
    for answer in refused:
        assert (answer.status, answer.reason) == (412, NO_SHADOWS)
    assert (await world.call(a, "GET", TOPICS)).json == ["persistent://public/default/t"]


async def test_a_shadow_topic_that_apache_made_is_neither_opened_nor_deleted(world: AdminWorld) -> None:
    a = await world.side()
    info = ManagedLedgerInfo(properties=[KeyValue(key=key, value=value) for key, value in SHADOW.items()])
    path = "/managed-ledgers/public/default/persistent"
    await a.store.put(f"{path}/plain", info.SerializeToString())
    base = "/admin/partitioned-topics/public/default/persistent/parted"
    await a.store.put(base, json.dumps({"partitions": 1, "properties": SHADOW}).encode())
    await a.store.put(f"{path}/parted-partition-0", b"")
    for name in ("plain", "parted-partition-0"):
        stored = await a.store.get(f"{path}/{name}")
        topic = TopicName.parse(f"public/default/{name}")
        assert (await a.ownership.locate(topic, authoritative=True)).here
        with pytest.raises(NotAllowed, match=r"shadow topic of persistent://public/default/source"):
            await a.broker.topic_for_producer(topic)
        answer = await world.call(a, "DELETE", f"{TOPICS}/{name}?force=true")
        assert (answer.status, "shadow" in answer.reason) == (412, True)
        assert await a.store.get(f"{path}/{name}") == stored, "nothing was written"


async def test_bodies_that_clients_send_for_none_are_taken(world: AdminWorld) -> None:
    a = await world.side()
    assert (await world.call(a, "PUT", f"{TOPICS}/t1", data=b"null")).status == 204
    assert (await world.call(a, "PUT", f"{TOPICS}/t2", data=b'""')).status == 204
    assert (await world.call(a, "PUT", f"{TOPICS}/t1/subscription/s", data=b"null")).status == 204
    assert (await world.call(a, "PUT", f"{ADMIN}/namespaces/public/n", data=b"null")).status == 204
    assert (await world.call(a, "DELETE", f"{TOPICS}/t2", data=b"null")).status == 204


async def test_a_topic_with_subscriptions_but_without_clients_is_deleted(world: AdminWorld) -> None:
    a = await world.side()

    def subscribe() -> pulsar.Client:
        client = pulsar.Client(a.url, logger=QUIET)
        client.subscribe("t", "s", initial_position=EARLIEST)
        return client

    client = await world.run(subscribe)
    found = await world.call(a, "DELETE", f"{TOPICS}/t")
    assert found.status == 412
    await world.run(client.close)
    assert (await world.call(a, "DELETE", f"{TOPICS}/t")).status == 204
    assert (await world.call(a, "GET", f"{TOPICS}/t/stats")).status == 404


@pytest.mark.parametrize(("method", "call"), [("GET", "stats"), ("PUT", "unload"), ("GET", "lastMessageId")])
async def test_a_call_about_a_topic_that_is_being_deleted_does_not_make_it_again(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch, method: str, call: str
) -> None:
    a = await world.side()
    await world.call(a, "PUT", f"{TOPICS}/t")
    ledger = a.broker.topics[TopicName.parse("persistent://public/default/t")].ledger
    delete, may_end = ledger.delete, asyncio.Event()

    async def slowly() -> None:
        await may_end.wait()
        await delete()

    monkeypatch.setattr(ledger, "delete", slowly)
    deleting = asyncio.create_task(world.call(a, "DELETE", f"{TOPICS}/t"))
    await eventually(lambda: not a.broker.topics)
    asking = asyncio.create_task(world.call(a, method, f"{TOPICS}/t/{call}"))
    await eventually(lambda: a.broker.opening.under_way)
    may_end.set()
    assert (await deleting).status == 204
    assert (await asking).status == 404
    assert (await world.call(a, "GET", TOPICS)).json == []


async def test_partitions_that_come_again_while_they_are_deleted_by_force_are_deleted_again(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await world.side()
    topic = f"{TOPICS}/p/partitions"
    again = 1
    delete = a.broker.partitioned.delete

    async def come_again(name: TopicName) -> None:
        nonlocal again
        if again:
            again -= 1
            await a.broker.opening.create_topic(name.with_partition(1))
        await delete(name)

    monkeypatch.setattr(a.broker.partitioned, "delete", come_again)
    await world.call(a, "PUT", topic, 2)
    found = await world.call(a, "DELETE", topic)
    assert (found.status, "p-partition-1; delete that first" in found.reason) == (409, True)
    assert (await world.call(a, "GET", topic)).json["partitions"] == 2
    again = 1
    assert (await world.call(a, "DELETE", f"{topic}?force=true")).status == 204
    assert (await world.call(a, "GET", topic)).status == 404
    assert (await world.call(a, "GET", TOPICS)).json == []


async def test_new_partitions_have_the_durable_subscriptions_of_the_topic_from_their_beginning(
    world: AdminWorld,
) -> None:
    a, b = await world.side(), await world.side()
    await world.spread([a, b])
    await world.call(a, "PUT", f"{TOPICS}/p/partitions", 2)
    made = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "properties": {"k": "v"}}
    for name in ("s", "a%252Fb"):
        path = f"{TOPICS}/p/subscription/{name}?replicated=true"
        assert (await world.call(a, "PUT", path, made, follow=True)).status == 204
    url = a.url

    def read_on_without_a_cursor() -> pulsar.Client:
        client = pulsar.Client(url, logger=QUIET)
        client.create_reader(f"{TOPIC_P}-partition-0", pulsar.MessageId.earliest)
        return client

    client = await world.run(read_on_without_a_cursor)
    assert (await world.call(b, "POST", f"{TOPICS}/p/partitions", 6)).status == 204
    await world.run(client.close)
    for number in range(6):
        stats = (await world.call(a, "GET", f"{TOPICS}/p-partition-{number}/stats", follow=True)).json["subscriptions"]
        assert {name for name, one in stats.items() if one["isDurable"]} == {"s", "a/b"}
        assert stats["s"]["subscriptionProperties"] == {"k": "v"}
        assert stats["s"]["isReplicated"]
        assert number < 2 or len(stats) == 2
    await world.run(publish, url, f"{TOPIC_P}-partition-5", 3)
    stats = (await world.call(a, "GET", f"{TOPICS}/p-partition-5/stats", follow=True)).json["subscriptions"]
    assert stats["s"]["msgBacklog"] == 3
    assert (await world.call(b, "POST", f"{TOPICS}/p/partitions", 6)).status == 204


async def test_clients_know_of_new_partitions_once_these_have_their_subscriptions(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one cannot be made the topic has not grown, and the call can be made again."""
    a = await world.side()
    await world.call(a, "PUT", f"{TOPICS}/p/partitions", 1)
    await world.call(a, "PUT", f"{TOPICS}/p/subscription/s")
    ask, counts = Owners.ask, []

    async def asked(owners: Owners, method: str, url: str, *others: Any) -> Any:
        if method == "PUT":
            counts.append(await a.broker.partitioned.count(TopicName.parse(TOPIC_P)))
            if len(counts) == 2:
                raise Refused(503, "away")
        return await ask(owners, method, url, *others)

    monkeypatch.setattr(Owners, "ask", asked)
    assert (await world.call(a, "POST", f"{TOPICS}/p/partitions", 4)).status == 503
    assert (await world.call(a, "GET", f"{TOPICS}/p/partitions")).json["partitions"] == 1
    assert (await world.call(a, "POST", f"{TOPICS}/p/partitions", 4)).status == 204
    assert counts == [1] * 5
    assert (await world.call(a, "GET", f"{TOPICS}/p/partitions")).json["partitions"] == 4
    for number in range(4):
        assert (await world.call(a, "GET", f"{TOPICS}/p-partition-{number}/subscriptions")).json == ["s"]


async def test_a_partition_has_no_partitions(world: AdminWorld) -> None:
    a = await world.side()
    await world.call(a, "PUT", f"{TOPICS}/p/partitions", 2)
    assert (await world.call(a, "PUT", f"{TOPICS}/p-partition-0/partitions", 3)).status == 412
    assert (await world.call(a, "GET", f"{TOPICS}/p/partitions")).json["partitions"] == 2


async def test_a_partition_that_its_topic_does_not_have_is_not_made(world: AdminWorld) -> None:
    a = await world.side()
    assert (await world.call(a, "PUT", f"{TOPICS}/p/partitions", 3)).status == 204
    there = [f"{TOPIC_P}-partition-{number}" for number in range(3)]
    for name in ("p-partition-3", "p-partition-7", "none-partition-0"):
        assert (await world.call(a, "PUT", f"{TOPICS}/{name}")).status == 412
    assert (await world.call(a, "PUT", f"{TOPICS}/p-partition-3/subscription/s")).status == 404
    assert (await world.call(a, "PUT", f"{TOPICS}/p-partition-2")).status == 409
    with pytest.raises(pulsar.PulsarException):
        await world.run(publish, a.url, f"{TOPIC_P}-partition-3", 1)
    assert (await world.call(a, "GET", TOPICS)).json == there
    lone = "persistent://public/default/none-partition-0"
    await world.run(publish, a.url, lone, 1)  # a client may use a name of no partitioned topic
    assert (await world.call(a, "GET", TOPICS)).json == [lone, *there]


async def test_partitions_that_got_lost_are_made_again(world: AdminWorld) -> None:
    a = await world.side()
    await world.call(a, "PUT", f"{TOPICS}/p/partitions", 3)
    await world.call(a, "DELETE", f"{TOPICS}/p-partition-1?force=true")
    assert len((await world.call(a, "GET", TOPICS)).json) == 2
    stats = (await world.call(a, "GET", f"{TOPICS}/p/partitioned-stats")).json
    assert (len(stats["partitions"]), stats["metadata"]["partitions"]) == (2, 3)
    assert (await world.call(a, "POST", f"{TOPICS}/p/createMissedPartitions")).status == 204
    assert len((await world.call(a, "GET", TOPICS)).json) == 3
    assert (await world.call(a, "POST", f"{TOPICS}/t/createMissedPartitions", 5)).status == 404
    refused = await world.call(a, "POST", f"{TOPICS}/t/partitions", 5)
    assert (refused.status, "public/default/t is not the partitioned topic" in refused.reason) == (409, True)


async def test_an_unloaded_topic_comes_back_with_what_it_had(world: AdminWorld) -> None:
    a = await world.side()
    await world.call(a, "PUT", f"{TOPICS}/t/subscription/s")
    await world.run(publish, a.url, "t", 5)
    await world.call(a, "PUT", f"{TOPICS}/t/subscription/s", "earliest")
    assert (await world.call(a, "PUT", f"{TOPICS}/t/unload")).status == 204
    assert not a.broker.topics
    stats = (await world.call(a, "GET", f"{TOPICS}/t/stats")).json
    assert stats["subscriptions"]["s"]["msgBacklog"] == 5


async def test_a_terminated_topic_says_its_last_position(world: AdminWorld) -> None:
    a = await world.side()
    await world.run(publish, a.url, "t", 4)
    found = (await world.call(a, "POST", f"{TOPICS}/t/terminate")).json
    assert (found["entryId"], found["partitionIndex"]) == (3, -1)
    assert (await world.call(a, "GET", f"{TOPICS}/t/internalStats")).json["state"] == "Terminated"


async def test_all_partitions_of_a_topic_are_terminated_together(world: AdminWorld) -> None:
    a = await world.side()
    await world.call(a, "PUT", f"{TOPICS}/parted/partitions", 2)
    await world.run(publish, a.url, "parted-partition-1", 3)
    found = (await world.call(a, "POST", f"{TOPICS}/parted/terminate/partitions")).json
    assert {number: (last["entryId"], last["partitionIndex"]) for number, last in found.items()} == {
        "0": (-1, -1),
        "1": (2, -1),
    }
    assert found["0"]["ledgerId"] >= 0
    for number in range(2):
        stats = (await world.call(a, "GET", f"{TOPICS}/parted-partition-{number}/internalStats")).json
        assert stats["state"] == "Terminated"


async def test_a_topic_and_all_partitions_of_one_are_compacted_when_asked_for(world: AdminWorld) -> None:
    a = await world.side()
    await world.run(publish, a.url, "t", 4)
    assert (await world.call(a, "GET", f"{TOPICS}/t/compaction")).json == {"status": "NOT_RUN", "lastError": ""}
    assert (await world.call(a, "PUT", f"{TOPICS}/t/compaction")).status == 204
    compactor = a.broker.topics[TopicName.parse("persistent://public/default/t")].compactor
    await eventually(lambda: compactor.facts.status is CompactionStatus.SUCCESS)
    compactor.facts.status = CompactionStatus.RUNNING
    answer = await world.call(a, "PUT", f"{TOPICS}/t/compaction")
    assert (answer.status, "under way" in answer.json["reason"]) == (409, True)
    compactor.facts.looked_at = 3
    running = {"status": "RUNNING", "lastError": "", "messagesLookedAt": 3, "entriesInTopic": 4}
    assert (await world.call(a, "GET", f"{TOPICS}/t/compaction")).json == running
    compactor.facts.succeeded_ms = 0
    metrics = (await world.call(a, "GET", "/metrics/")).text
    assert re.search(r"pulsar_compaction_compacted_entries_count\{[^}]*/t\"[^}]*\} 3\b", metrics)
    assert (await world.call(a, "PUT", f"{TOPICS}/nothing/compaction")).status == 404
    assert (await world.call(a, "PUT", f"{TOPICS}/parted/partitions", 2)).status == 204
    assert (await world.call(a, "PUT", f"{TOPICS}/parted/compaction")).status == 204
    for number in range(2):
        name = TopicName.parse(f"persistent://public/default/parted-partition-{number}")
        assert a.broker.topics[name].compactor.facts.status is not CompactionStatus.NOT_RUN


# --------------------------------------------------------------------------------------- schemas


async def test_a_key_value_schema_is_taken_and_shown_as_json(world: AdminWorld) -> None:
    a = await world.side()
    golden = load("http/192-get-admin-v2-schemas-public-default-kv-INLINE-schema.json")["response"]["json"]
    path = f"{ADMIN}/schemas/public/default/kv"
    body = {"type": "KEY_VALUE", "schema": golden["data"], "properties": golden["properties"]}
    assert (await world.call(a, "POST", f"{path}/schema", body)).json == {"version": {"version": 0}}
    found = (await world.call(a, "GET", f"{path}/schema")).json
    assert found["data"] == golden["data"]
    stored = await a.broker.schemas.get("public/default/kv")
    assert stored is not None
    value = json.dumps(json.loads(golden["data"])["value"], separators=(",", ":")).encode()
    assert stored.schema.data == bytes(4) + len(value).to_bytes(4, "big") + value
    assert (await world.call(a, "POST", f"{path}/version", body)).json == {"version": 0}


@pytest.mark.parametrize(
    "body",
    [
        {}, [], {"type": "NONSENSE"}, {"type": "AVRO", "schema": 7}, {"type": "JSON", "schema": "{"},
        {"type": "KEY_VALUE", "schema": "{}"}, {"type": "KEY_VALUE", "schema": "junk"}, {"type": ["AVRO"]},
        {"type": "AVRO", "schema": '"int"', "properties": {"a": 1}},
    ],
)  # fmt: skip
async def test_a_schema_that_is_none_is_422(world: AdminWorld, body: Any) -> None:
    a = await world.side()
    for verb in ("schema", "compatibility", "version"):
        found = await world.call(a, "POST", f"{ADMIN}/schemas/public/default/t/{verb}", body)
        assert found.status == 422
        assert found.reason


async def test_a_version_that_is_no_number_is_404(world: AdminWorld) -> None:
    a = await world.side()
    await a.broker.schemas.put_if_absent("public/default/t", Schema(SchemaType.STRING, b""), Strategy.FULL)
    for version in ("x", "1.5", "-7", "%C2%B2"):  # the last is a digit only to Unicode
        found = await world.call(a, "GET", f"{ADMIN}/schemas/public/default/t/schema/{version}")
        assert found.status == 404
    assert (await world.call(a, "GET", f"{ADMIN}/schemas/public/default/t/schema/0")).status == 200


async def test_an_unknown_listener_is_503(world: AdminWorld) -> None:
    a = await world.side()
    found = await world.call(a, "GET", "/lookup/v2/topic/persistent/public/default/t?listenerName=outside")
    assert found.status == 503
    assert "outside" in found.reason


async def test_a_subscription_makes_its_topic_where_a_consumer_would(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    for side, topic in ((a, "first"), (b, "second")):
        assert (await world.call(side, "PUT", f"{TOPICS}/{topic}/subscription/s", follow=True)).status == 204
        assert (await world.call(side, "GET", f"{TOPICS}/{topic}/subscriptions", follow=True)).json == ["s"]
    policy = f"{ADMIN}/namespaces/public/default/autoTopicCreation"
    partitioned = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    assert (await world.call(a, "POST", policy, partitioned)).status == 204
    assert (await world.call(a, "PUT", f"{TOPICS}/third/subscription/s", follow=True)).status == 204
    assert (await world.call(a, "GET", f"{TOPICS}/third/partitions")).json["partitions"] == 3
    assert (await world.call(b, "GET", f"{TOPICS}/third/subscriptions", follow=True)).json == ["s"]
    assert (await world.call(a, "POST", policy, {"allowAutoTopicCreation": False})).status == 204
    refused = await world.call(a, "PUT", f"{TOPICS}/fourth/subscription/s", follow=True)
    assert (refused.status, refused.reason) == (404, "Topic persistent://public/default/fourth does not exist")
    assert (await world.call(a, "PUT", f"{TOPICS}/first/subscription/more", follow=True)).status == 204
    assert (await world.call(a, "GET", f"{TOPICS}/fourth/subscriptions", follow=True)).status == 404
