"""Records of clusters, tenants and namespaces; no broker, no HTTP."""

import json
from typing import Any

import pytest

from broker.policies.rules import UNSET, NoSuchCluster
from broker.records.json_records import InvalidRecord, NoRecord, RecordExists, RecordInUse
from broker.settings.config import BrokerConfig
from broker.tenancy.changes import ClusterInUse, Tenancy, initialise_cluster, namespace_path
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.types import Corruption
from tests.support.manual_clock import ManualClock

CONFIG = BrokerConfig(cluster_name="lab", advertised_address="127.0.0.1", default_bundles=4)
TENANT = {"allowedClusters": ["lab"]}


@pytest.fixture
async def store() -> MemoryStore:
    made = MemoryStore(ManualClock())
    await initialise_cluster(made, CONFIG)
    return made


@pytest.fixture
def tenancy(store: MemoryStore) -> Tenancy:
    return Tenancy(store, CONFIG)


async def test_a_cluster_is_made_changed_and_deleted(tenancy: Tenancy) -> None:
    await tenancy.create_cluster("east", {"serviceUrl": "http://a"})
    with pytest.raises(RecordExists):
        await tenancy.create_cluster("east", {})
    await tenancy.update_cluster("east", {"serviceUrl": "http://b"})
    assert (await tenancy.cluster("east"))["serviceUrl"] == "http://b"
    assert await tenancy.clusters() == ["east", "lab"]
    await tenancy.delete_cluster("east")
    with pytest.raises(NoRecord, match="Cluster does not exist"):
        await tenancy.delete_cluster("east")


async def test_a_cluster_that_somebody_needs_stays(tenancy: Tenancy) -> None:
    await tenancy.create_cluster("east", {})
    await tenancy.create_tenant("t", {"allowedClusters": ["lab", "east"]})
    for name, user in (("lab", "its brokers are running"), ("east", "tenant t may use it")):
        with pytest.raises(ClusterInUse, match=user):
            await tenancy.delete_cluster(name)
    await tenancy.update_tenant("t", TENANT)
    await tenancy.create_namespace("t/n", {})
    await tenancy.change("t/n", lambda old: {**old, "replication_clusters": ["east"]})  # by another program
    with pytest.raises(ClusterInUse, match="namespace t/n uses it"):
        await tenancy.delete_cluster("east")


async def test_a_namespace_is_replicated_nowhere(tenancy: Tenancy) -> None:
    await tenancy.create_cluster("east", {})
    await tenancy.create_tenant("t", {"allowedClusters": ["lab", "east"]})
    for clusters in (["east"], ["lab", "east"]):
        with pytest.raises(InvalidRecord, match=r"Replication between clusters is not served.*east.*lab alone"):
            await tenancy.create_namespace("t/n", {"replication_clusters": clusters})
    await tenancy.create_namespace("t/n", {"replication_clusters": ["lab"]})
    for clusters in (["east"], ["lab", "east"]):
        with pytest.raises(InvalidRecord, match="Replication between clusters is not served"):
            await tenancy.set_policy("t/n", "replication", clusters)
    with pytest.raises(NoSuchCluster):
        await tenancy.set_policy("t/n", "replication", ["west"])
    await tenancy.set_policy("t/n", "allowedClusters", ["lab", "east"])
    assert await tenancy.policy("t/n", "replication") == ["lab"]


async def test_a_tenant_has_clusters_that_exist(tenancy: Tenancy) -> None:
    with pytest.raises(InvalidRecord, match="Clusters do not exist: west"):
        await tenancy.create_tenant("t", {"allowedClusters": ["lab", "west"]})
    with pytest.raises(NoRecord):
        await tenancy.tenant("t")
    with pytest.raises(NoRecord):
        await tenancy.update_tenant("t", TENANT)


async def test_a_tenant_with_namespaces_stays(tenancy: Tenancy) -> None:
    await tenancy.create_tenant("t", TENANT)
    await tenancy.create_namespace("t/n", {})
    assert await tenancy.namespaces("t") == ["t/n"]
    with pytest.raises(RecordInUse):
        await tenancy.delete_tenant("t")
    await tenancy.delete_namespace("t/n")
    await tenancy.delete_namespace("t/n")
    await tenancy.delete_tenant("t")
    with pytest.raises(NoRecord):
        await tenancy.check_tenant("t")


async def test_a_namespace_has_its_policies_and_its_bundles(store: MemoryStore, tenancy: Tenancy) -> None:
    await tenancy.create_namespace("public/n", {"bundles": {"numBundles": 2}})
    with pytest.raises(RecordExists):
        await tenancy.create_namespace("public/n", {})
    policies = await tenancy.policies("public/n")
    assert policies is not None
    assert len(policies.bundles.ranges) == 2
    local = await store.get("/admin/local-policies/public/n")
    assert local is not None
    assert json.loads(local.value)["bundles"] == (await tenancy.namespace("public/n"))["bundles"]


@pytest.mark.parametrize("value", [b'{"deleted":true}', None])
async def test_a_namespace_that_is_being_deleted_is_none(
    store: MemoryStore, tenancy: Tenancy, value: bytes | None
) -> None:
    if value is not None:
        await store.put(namespace_path("public/n"), value)
    assert await tenancy.policies("public/n") is None


async def test_a_policy_is_set_read_and_removed(store: MemoryStore, tenancy: Tenancy) -> None:
    await store.put(namespace_path("public/n"), b'{"future":[1]}')
    assert await tenancy.policy("public/n", "deduplication") is UNSET
    await tenancy.set_policy("public/n", "deduplication", True)
    assert await tenancy.policy("public/n", "deduplication") is True
    with pytest.raises(InvalidRecord):
        await tenancy.set_policy("public/n", "deduplication", "perhaps")
    await tenancy.remove_policy("public/n", "deduplication")
    assert await tenancy.namespace("public/n") == {"future": [1]}


async def test_a_damaged_record_is_named(store: MemoryStore, tenancy: Tenancy) -> None:
    await store.put(namespace_path("public/n"), b"?")
    calls: list[Any] = [
        tenancy.namespace("public/n"),
        tenancy.policies("public/n"),
        tenancy.set_policy("public/n", "deduplication", True),
    ]
    for call in calls:
        with pytest.raises(Corruption, match="/admin/policies/public/n"):
            await call
