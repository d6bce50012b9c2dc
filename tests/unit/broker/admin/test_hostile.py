"""What the admin API refuses: names that are paths, pages of other sites, numbers and nesting beyond all use."""

import json

import pytest

from broker.settings.groups.topics import PARTITIONS_MAX
from magnetar_core.bookkeeper.client.deciding.quorum import ENSEMBLE_SIZE_MAX
from tests.unit.broker.admin.admin_world import AdminWorld
from tests.unit.broker.admin.test_admin import ADMIN, world

__all__ = ["world"]

NAMESPACE = f"{ADMIN}/namespaces/public/default"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "tenants/public%2Fdefault"),
        ("DELETE", "tenants/public%2Fvictim"),
        ("PUT", "tenants/public%2Fnew"),
        ("POST", "tenants/%2E%2E"),
        ("DELETE", "tenants/a%00b"),
        ("DELETE", "clusters/standalone%2F.."),
        ("GET", "clusters/%2e"),
        ("GET", "namespaces/public%2Fdefault"),
        ("DELETE", "namespaces/public/default%2Ft"),
        ("GET", "namespaces/public/%2E%2E/topics"),
        ("PUT", "namespaces/public/default/..%2F..%2Fx/unload"),
        ("PUT", "namespaces/public/default/0x0_0xf/unload"),
        ("GET", "persistent/public/de%0Afault"),
        ("DELETE", "persistent/public/default/t%2F..%2Fu"),
        ("DELETE", "persistent/public/default/%2E%2E"),
        ("GET", "persistent/public/default/t/messageid/-1"),
        ("GET", "persistent/public/default/t/messageid/" + "9" * 40),
        ("DELETE", "schemas/public%2Fx/default/t/schema"),
        ("PUT", "tenants/" + "x" * 5000),
    ],
)
async def test_a_part_of_a_path_is_one_name(world: AdminWorld, method: str, path: str) -> None:
    a = await world.side()
    body = {"allowedClusters": ["standalone"]} if method in ("PUT", "POST") else None
    answer = await world.call(a, method, f"{ADMIN}/{path}", body)
    assert answer.status == 412
    assert "is not valid" in answer.reason or "Invalid" in answer.reason
    assert len(answer.text) < 500


async def test_a_namespace_with_topics_is_not_deleted_as_a_tenant(world: AdminWorld) -> None:
    a = await world.side()
    assert (await world.call(a, "PUT", f"{ADMIN}/namespaces/public/victim")).status == 204
    assert (await world.call(a, "PUT", f"{ADMIN}/persistent/public/victim/t")).status == 204
    assert (await world.call(a, "DELETE", f"{ADMIN}/tenants/public%2Fvictim")).status == 412
    assert (await world.call(a, "GET", f"{ADMIN}/namespaces/public/victim")).status == 200


async def test_a_cluster_in_use_is_not_deleted(world: AdminWorld) -> None:
    a = await world.side()
    own = a.broker.config.cluster_name
    answer = await world.call(a, "DELETE", f"{ADMIN}/clusters/{own}")
    assert (answer.status, "brokers are running" in answer.reason) == (412, True)
    assert (await world.call(a, "PUT", f"{ADMIN}/clusters/east", {})).status == 200
    tenant = {"allowedClusters": ["east"]}
    assert (await world.call(a, "PUT", f"{ADMIN}/tenants/t", tenant)).status == 204
    answer = await world.call(a, "DELETE", f"{ADMIN}/clusters/east")
    assert (answer.status, "tenant t may use it" in answer.reason) == (412, True)
    assert (await world.call(a, "PUT", f"{ADMIN}/namespaces/public/n")).status == 204
    changed = {"replication_clusters": ["east"]}  # by another program
    await a.broker.tenancy.change("public/n", lambda old: {**old, **changed})
    assert (await world.call(a, "DELETE", f"{ADMIN}/tenants/t")).status == 204
    answer = await world.call(a, "DELETE", f"{ADMIN}/clusters/east")
    assert (answer.status, "namespace public/n uses it" in answer.reason) == (412, True)
    assert (await world.call(a, "DELETE", f"{ADMIN}/namespaces/public/n")).status == 204
    assert (await world.call(a, "DELETE", f"{ADMIN}/clusters/east")).status == 204
    assert (await world.call(a, "DELETE", f"{ADMIN}/clusters/east")).status == 404


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://[", ""])
async def test_pages_of_other_sites_change_nothing(world: AdminWorld, origin: str) -> None:
    a = await world.side()
    assert (await world.call(a, "PUT", f"{ADMIN}/persistent/public/default/t")).status == 204
    for method, path in (("POST", "persistent/public/default/t/terminate"), ("DELETE", "persistent/public/default/t")):
        answer = await world.call(a, method, f"{ADMIN}/{path}", Origin=origin)
        assert (answer.status, repr(origin) in answer.reason) == (403, True)
    assert (await world.call(a, "GET", f"{ADMIN}/persistent/public/default/t/stats", Origin=origin)).status == 200
    own = a.http_url
    assert (await world.call(a, "POST", f"{ADMIN}/persistent/public/default/t/terminate", Origin=own)).status == 200


@pytest.mark.parametrize(
    ("kind", "data", "status"),
    [
        ("text/plain", b"true", 415),
        ("text/plain;charset=UTF-8", b"", 415),
        ("application/x-www-form-urlencoded", b"true", 415),
        ("multipart/form-data; boundary=x", b"--x--", 415),
        ("application/octet-stream", b"true", 415),
        ("application/json", b"true", 204),
        ("application/json; charset=utf-8", b"true", 204),
        ("Application/JSON", b"true", 204),
    ],
)
async def test_what_changes_something_is_json(world: AdminWorld, kind: str, data: bytes, status: int) -> None:
    a = await world.side()
    answer = await world.call(a, "POST", f"{NAMESPACE}/deduplication", data=data, Content_Type=kind)
    assert answer.status == status
    if status == 415:
        assert "application/json" in answer.reason
        assert (await world.call(a, "GET", f"{NAMESPACE}/deduplication")).text == ""


async def test_a_call_without_a_body_needs_no_type(world: AdminWorld) -> None:
    a = await world.side()
    assert (await world.call(a, "PUT", f"{ADMIN}/persistent/public/default/t")).status == 204
    octets = "application/octet-stream"  # what some libraries add by themselves
    assert (
        await world.call(a, "PUT", f"{ADMIN}/persistent/public/default/t/unload", Content_Type=octets)
    ).status == 204


@pytest.mark.parametrize(
    ("policy", "body", "words"),
    [
        ("persistence", b'{"bookkeeperEnsemble":1000000,"bookkeeperWriteQuorum":1,"bookkeeperAckQuorum":1}',
         f"at most {ENSEMBLE_SIZE_MAX}"),
        ("persistence", b'{"bookkeeperEnsemble":true,"bookkeeperWriteQuorum":1}', "not a number"),
        ("persistence", b'{"managedLedgerMaxMarkDeleteRate":NaN}', "NaN is no number"),
        ("persistence", b'{"managedLedgerMaxMarkDeleteRate":1e999}', "1e999… is too large"),
        ("autoTopicCreation",
         b'{"allowAutoTopicCreation":true,"topicType":"partitioned","defaultNumPartitions":2000000000}',
         f"above {PARTITIONS_MAX}"),
        ("retention", b'{"retentionTimeInMinutes":1e30,"retentionSizeInMB":1}', "out of range"),
        ("retention", b'{"retentionTimeInMinutes":99999999999999999999,"retentionSizeInMB":1}', "out of range"),
        ("maxProducersPerTopic", b"99999999999999999999", "out of range"),
        ("maxProducersPerTopic", b"-1", "0 or more"),
        ("properties", b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "deeper than 100"),
        ("properties", b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "deeper than 100"),
    ],
)  # fmt: skip
async def test_policies_that_nothing_could_be_done_with_are_refused(
    world: AdminWorld, policy: str, body: bytes, words: str
) -> None:
    a = await world.side()
    method = "PUT" if policy == "properties" else "POST"
    answer = await world.call(a, method, f"{NAMESPACE}/{policy}", data=body)
    assert answer.status in (400, 412)
    assert words in answer.reason
    assert (await world.call(a, "PUT", f"{ADMIN}/persistent/public/default/after")).status == 204


@pytest.mark.parametrize("body", [{"allowedClusters": 1}, {"allowedClusters": [1]}, {"adminRoles": "x"}, []])
async def test_a_tenant_has_lists_of_names(world: AdminWorld, body: object) -> None:
    a = await world.side()
    answer = await world.call(a, "PUT", f"{ADMIN}/tenants/t", body)
    assert answer.status in (400, 412)
    assert len(answer.reason) > 10


async def test_a_new_namespace_is_checked_as_its_policies_are(world: AdminWorld) -> None:
    a = await world.side()
    wild = {"persistence": {"bookkeeperEnsemble": 10**6, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}}
    answer = await world.call(a, "PUT", f"{ADMIN}/namespaces/public/n", wild)
    assert (answer.status, f"at most {ENSEMBLE_SIZE_MAX}" in answer.reason) == (412, True)


async def test_stored_partitions_beyond_the_limit_are_not_made(world: AdminWorld) -> None:
    a = await world.side()
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2 * 10**9}
    await a.store.put("/admin/policies/public/wild", json.dumps({"autoTopicCreationOverride": override}).encode())
    path = f"{ADMIN}/persistent/public/wild/t/partitions?checkAllowAutoCreation=true"
    answer = await world.call(a, "GET", path)
    assert (answer.status, "set it to 1 to" in answer.reason) == (412, True)


@pytest.mark.parametrize("garbage", [b"[" * 100_000, b'{"persistence":{"bookkeeperEnsemble":"x"}}', b"\xff", b"NaN"])
async def test_garbage_in_a_policy_is_named_and_can_be_overwritten(world: AdminWorld, garbage: bytes) -> None:
    a = await world.side()
    await a.store.put("/admin/policies/public/wild", garbage)
    answer = await world.call(a, "PUT", f"{ADMIN}/persistent/public/wild/t")
    assert answer.status >= 400
    assert "/admin/policies/public/wild" in answer.reason


@pytest.mark.parametrize("where", ["record", "cursor"])
@pytest.mark.parametrize("garbage", [b"\xff" * 40, b"\x47\x78\x47\x79\xff\xff\xff\xff", b"no protobuf"])
async def test_a_topic_whose_records_are_garbage_can_be_deleted_by_force(
    world: AdminWorld, where: str, garbage: bytes
) -> None:
    a = await world.side()
    topic = f"{ADMIN}/persistent/public/default/t"
    assert (await world.call(a, "PUT", topic)).status == 204
    assert (await world.call(a, "PUT", f"{topic}/subscription/s")).status == 204
    assert (await world.call(a, "PUT", f"{topic}/unload")).status == 204
    node = "/managed-ledgers/public/default/persistent/t" + ("/s" if where == "cursor" else "")
    known = set(world.bookkeeper.ledgers)
    await a.store.put(node, garbage)
    answer = await world.call(a, "DELETE", topic)
    assert (answer.status, node in answer.reason, "by force" in answer.reason) == (500, True, True)
    assert (await world.call(a, "DELETE", f"{topic}?force=true")).status == 204
    assert (await world.call(a, "GET", f"{topic}/stats")).status == 404
    assert await a.store.children("/managed-ledgers/public/default/persistent") == []
    if where == "cursor":
        assert known
        assert not known & set(world.bookkeeper.ledgers), "what could be named is deleted"
    assert (await world.call(a, "PUT", topic)).status == 204


@pytest.mark.parametrize("number", ["9" * 400, "9" * 4_000, "9" * 5_000, "1e999"])
async def test_a_number_that_fits_into_nothing_is_bad_input(world: AdminWorld, number: str) -> None:
    a = await world.side()
    for path in ("messageTTL", "retention", "persistence", "dispatchRate", "maxProducersPerTopic"):
        for body in (number, f'{{"retentionTimeInMinutes": {number}}}', f"[{number}]"):
            answer = await world.call(a, "POST", f"{NAMESPACE}/{path}", data=body.encode())
            assert (answer.status, "not JSON" in answer.reason) == (400, True), (path, answer)
