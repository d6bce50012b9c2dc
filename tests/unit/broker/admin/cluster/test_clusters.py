"""What stands beside the record of a cluster. What Apache's broker answers is in tests/golden/test_rest.py."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker.ownership.placing.isolation import isolation_path
from tests.support.permission_calls import ISOLATION
from tests.unit.broker.admin.admin_world import AdminWorld, Side

CLUSTERS = "/admin/v2/clusters"
FAR = f"{CLUSTERS}/far"


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def with_far(world: AdminWorld) -> Side:
    """A broker that knows a second cluster."""
    side = await world.side()
    await world.call(side, "PUT", FAR, {"serviceUrl": "http://127.0.0.1:1"})
    return side


async def test_the_record_of_a_cluster_has_what_was_given_and_its_flags(world: AdminWorld) -> None:
    side = await with_far(world)
    flags = ("brokerClientTlsEnabled", "tlsAllowInsecureConnection", "brokerClientTlsEnabledWithKeyStore")
    found = (await world.call(side, "GET", FAR)).json
    assert found == {"serviceUrl": "http://127.0.0.1:1", **dict.fromkeys(flags, False)}


async def test_a_migration_that_another_broker_has_stored_is_told(world: AdminWorld) -> None:
    side = await with_far(world)
    assert (await world.call(side, "GET", f"{FAR}/migrate")).status == 404
    stored = {"migrated": True, "migratedClusterUrl": {"brokerServiceUrl": "pulsar://there:6650"}}
    await world.store.put("/admin/clusters/far/policies", json.dumps(stored).encode())
    assert (await world.call(side, "GET", f"{FAR}/migrate")).json == stored


async def test_a_cluster_that_is_made_again_has_nothing_of_the_former_one(world: AdminWorld) -> None:
    side = await with_far(world)
    await world.call(side, "POST", f"{FAR}/failureDomains/d", {"brokers": ["b:1"]})
    await world.call(side, "POST", f"{FAR}/namespaceIsolationPolicies/p", ISOLATION)
    await world.store.put("/admin/clusters/far/policies", b"{}")
    refused = await world.call(side, "DELETE", FAR)
    assert (refused.status, "isolation policies" in refused.reason) == (412, True)
    await world.call(side, "DELETE", f"{FAR}/namespaceIsolationPolicies/p")
    assert (await world.call(side, "DELETE", FAR)).status == 204
    await world.call(side, "PUT", FAR, {"serviceUrl": "http://127.0.0.1:2"})
    assert (await world.call(side, "GET", f"{FAR}/failureDomains")).json == {}
    for path in ("migrate", "namespaceIsolationPolicies"):
        assert (await world.call(side, "GET", f"{FAR}/{path}")).status == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("peers", {"a": 1}),
        ("peers", [1]),
        ("failureDomains/d", {"brokers": "b:1"}),
        ("failureDomains/d", {"brokers": [1]}),
        ("namespaceIsolationPolicies/p", ["p"]),
        ("namespaceIsolationPolicies/p", {**ISOLATION, "namespaces": ["["]}),
        ("namespaceIsolationPolicies/p", {**ISOLATION, "primary": "127.*"}),
        ("namespaceIsolationPolicies/p", {**ISOLATION, "auto_failover_policy": {"policy_type": "min_available"}}),
    ],
)
async def test_what_cannot_be_stored_is_refused(world: AdminWorld, path: str, body: Any) -> None:
    side = await with_far(world)
    found = await world.call(side, "POST", f"{FAR}/{path}", body)
    assert (found.status, bool(found.reason)) == (400, True)


async def test_a_policy_that_cannot_be_read_is_told_and_others_are_stored_beside_it(world: AdminWorld) -> None:
    side = await with_far(world)
    await world.store.put(isolation_path("far"), b'{"odd": {"primary": 1}}')
    found = await world.call(side, "GET", f"{FAR}/namespaceIsolationPolicies/brokers")
    assert (found.status, "cannot be read" in found.reason) == (500, True)
    await world.call(side, "POST", f"{FAR}/namespaceIsolationPolicies/p", ISOLATION)
    kept = (await world.call(side, "GET", f"{FAR}/namespaceIsolationPolicies")).json
    assert kept == {"odd": {"primary": 1}, "p": ISOLATION}
