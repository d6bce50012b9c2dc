"""Creates, changes and deletes the records of clusters, tenants and namespaces.

    /admin/clusters/<cluster>                       where its brokers are; `global` is not used
    /admin/policies/<tenant>                        which clusters it may use, its administrators
    /admin/policies/<tenant>/<namespace>            its policies (`policies.py` reads them)
    /admin/local-policies/<tenant>/<namespace>      its bundles

Rules:

1. Nothing is deleted that something else needs: a cluster that a tenant or namespace names, a tenant with namespaces.
2. Nothing is stored that the brokers could not read afterwards (`policy_rules.py`).

A broker keeps the policies that it uses in memory (`Broker.namespace`) and watches their nodes.
"""

from collections.abc import Callable
from typing import Any, Final

from broker.config import BrokerConfig
from broker.names import COORDINATORS
from broker.partitions import partitions_record
from broker.permissions import forget_topic
from broker.policies import NamespacePolicies, new_cluster, new_policies, parse_policies
from broker.policy_rules import (
    POLICIES,
    check_policy,
    names_in,
    new_namespace,
    tenant_members,
    with_policy,
    without_policy,
)
from broker.records import InvalidRecord, JsonRecords, NoRecord, RecordInUse, parse_record, to_json
from magnetar_core.bookkeeper.metadata.store import NO_NODE, MetadataStore, NoNode, VersionConflict
from managed_ledger.topic_name import TopicName

CLUSTERS: Final = "/admin/clusters"
POLICIES_ROOT: Final = "/admin/policies"
LOCAL_POLICIES_ROOT: Final = "/admin/local-policies"

# The number of bundles of `public/default` and `pulsar/system` when a cluster is initialised.
INITIAL_BUNDLES: Final = 16

# Partitions of the topic by which transaction coordinators are assigned; other brokers expect it to exist.
TRANSACTION_COORDINATORS: Final = 16


class ClusterInUse(RecordInUse):
    """A tenant, a namespace or a running broker still needs the record of the cluster."""


def namespace_path(namespace: str) -> str:
    """The node with the policies of `tenant/namespace`."""
    return f"{POLICIES_ROOT}/{namespace}"


class Tenancy:
    """The tenants, clusters and namespaces of the cluster that a broker belongs to.

    All methods raise MetadataError besides what they name, and Corruption where they read a record.
    """

    def __init__(self, store: MetadataStore, config: BrokerConfig) -> None:
        self._store = store
        self._config = config
        self._clusters = JsonRecords(store, "Cluster")
        self._tenants = JsonRecords(store, "Tenant")
        self._namespaces = JsonRecords(store, "Namespace")

    # -------------------------------------------------------------------------------- clusters

    async def clusters(self) -> list[str]:
        return [name for name in await self._store.children(CLUSTERS) if name != "global"]

    async def cluster(self, name: str) -> dict[str, Any]:
        """Raises NoRecord."""
        return await self._clusters.get(f"{CLUSTERS}/{name}")

    async def create_cluster(self, name: str, given: dict[str, Any]) -> None:
        """Raises RecordExists."""
        await self._clusters.create(f"{CLUSTERS}/{name}", {**new_cluster(), **given}, "Cluster already exists")

    async def update_cluster(self, name: str, given: dict[str, Any]) -> None:
        """Raises NoRecord, RecordChanged."""
        await self._clusters.change(f"{CLUSTERS}/{name}", lambda old: {**old, **given})

    async def delete_cluster(self, name: str) -> None:
        """Raises NoRecord, ClusterInUse."""
        await self.cluster(name)
        if (user := await self._user_of_cluster(name)) is not None:
            raise ClusterInUse(f"Cluster {name} is not empty: {user}")
        await self._clusters.delete(f"{CLUSTERS}/{name}")

    async def _user_of_cluster(self, name: str) -> str | None:
        """What still needs the record of a cluster; None: nothing does."""
        if name == self._config.cluster_name:
            return "its brokers are running, this one among them"
        for tenant in await self._store.children(POLICIES_ROOT):
            for namespace in await self._store.children(f"{POLICIES_ROOT}/{tenant}"):
                node = await self._store.get(f"{POLICIES_ROOT}/{tenant}/{namespace}")
                if node is not None and name in names_in(parse_record(node), "replication_clusters"):
                    return f"namespace {tenant}/{namespace} uses it"
            node = await self._store.get(f"{POLICIES_ROOT}/{tenant}")
            if node is not None and name in names_in(parse_record(node), "allowedClusters"):
                return f"tenant {tenant} may use it"
        return None

    # -------------------------------------------------------------------------------- tenants

    async def tenants(self) -> list[str]:
        return await self._store.children(POLICIES_ROOT)

    async def tenant(self, name: str) -> dict[str, Any]:
        """Raises NoRecord."""
        return await self._tenants.get(f"{POLICIES_ROOT}/{name}")

    async def check_tenant(self, name: str) -> None:
        """Check that a tenant exists; its record may be damaged. Raises NoRecord."""
        if await self._store.get(f"{POLICIES_ROOT}/{name}") is None:
            raise NoRecord("Tenant does not exist")

    async def create_tenant(self, name: str, given: dict[str, Any]) -> None:
        """Raises RecordExists, InvalidRecord."""
        await self._tenants.create(f"{POLICIES_ROOT}/{name}", await self._tenant(given), "Tenant already exist")

    async def update_tenant(self, name: str, given: dict[str, Any]) -> None:
        """Raises NoRecord, RecordChanged, InvalidRecord."""
        members = await self._tenant(given)
        await self._tenants.change(f"{POLICIES_ROOT}/{name}", lambda old: {**old, **members})

    async def _tenant(self, given: dict[str, Any]) -> dict[str, list[str]]:
        members = tenant_members(given)
        known = await self._store.children(CLUSTERS)
        missing = [name for name in members["allowedClusters"] if name not in known]
        if missing:
            raise InvalidRecord(f"Clusters do not exist: {', '.join(missing)}")
        return members

    async def delete_tenant(self, name: str) -> None:
        """Raises NoRecord, RecordInUse."""
        if await self._store.children(f"{POLICIES_ROOT}/{name}"):
            raise RecordInUse("The tenant still has active namespaces")
        await self._tenants.delete(f"{POLICIES_ROOT}/{name}")

    # -------------------------------------------------------------------------------- namespaces

    async def namespaces(self, tenant: str) -> list[str]:
        """`tenant/namespace` of each. Raises NoRecord: there is no such tenant."""
        await self.tenant(tenant)
        return [f"{tenant}/{name}" for name in await self._store.children(f"{POLICIES_ROOT}/{tenant}")]

    async def namespace(self, name: str) -> dict[str, Any]:
        """The record of `tenant/namespace` as it is. Raises NoRecord."""
        return await self._namespaces.get(namespace_path(name))

    async def policies(self, name: str) -> NamespacePolicies | None:
        """The policies of `tenant/namespace`; None: there is no such namespace, or it is being deleted."""
        node = await self._store.get(namespace_path(name))
        found = None if node is None else parse_policies(node.value, node.path)
        return None if found is None or found.deleted else found

    async def create_namespace(self, name: str, given: dict[str, Any]) -> None:
        """Create the records of a namespace; the caller has checked its tenant. Raises RecordExists, InvalidRecord."""
        record = new_namespace(
            given,
            cluster=self._config.cluster_name,
            default_bundles=self._config.default_bundles,
            schema_auto_update=self._config.schema_auto_update,
        )
        await self._namespaces.create(namespace_path(name), record, "Namespace already exists")
        local = {"bundles": record["bundles"], "migrated": False}
        await self._store.put(f"{LOCAL_POLICIES_ROOT}/{name}", to_json(local))

    async def delete_namespace(self, name: str) -> None:
        """Delete the records of a namespace, if there are any.

        The caller has made sure that the namespace is empty and that no broker serves it.
        """
        for path in (f"{LOCAL_POLICIES_ROOT}/{name}", namespace_path(name)):
            try:
                await self._store.delete(path)
            except NoNode:
                continue

    async def policy(self, namespace: str, policy: str) -> Any:
        """The value of one of POLICIES; None if it is not set. Raises NoRecord."""
        return (await self.namespace(namespace)).get(POLICIES[policy].member)

    async def set_policy(self, namespace: str, policy: str, value: Any) -> None:
        """Raises NoRecord, RecordChanged, InvalidRecord."""
        check_policy(policy, value)
        await self._namespaces.change(namespace_path(namespace), lambda old: with_policy(old, policy, value))

    async def remove_policy(self, namespace: str, policy: str) -> None:
        """Raises NoRecord, RecordChanged."""
        await self._namespaces.change(namespace_path(namespace), lambda old: without_policy(old, policy))

    # -------------------------------------------------------------------------------- permissions

    async def change_permissions(self, namespace: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Store what *change* makes of a namespace's record (`permissions.py`). Raises NoRecord, RecordChanged."""
        await self._namespaces.change(namespace_path(namespace), change)

    async def forget_topic_permissions(self, topic: TopicName) -> None:
        """Remove what was granted on a topic that is deleted. Raises RecordChanged."""
        policies = await self.policies(topic.namespace)
        if policies is not None and topic.full in policies.permissions.topics:
            await self.change_permissions(topic.namespace, lambda old: forget_topic(old, topic))


async def initialise_cluster(store: MetadataStore, config: BrokerConfig) -> None:
    """Create what a cluster needs before its first broker; existing nodes are kept. Raises MetadataError."""
    host = config.advertised_host
    nodes = initial_nodes(config, f"http://{host}:{config.web_port}", f"pulsar://{host}:{config.service_port}")
    for path, value in nodes.items():
        if await store.exists(path):
            continue
        try:
            await store.put(path, value, NO_NODE)
        except VersionConflict:
            continue  # another process initialises the cluster at the same time


def initial_nodes(config: BrokerConfig, http_url: str, service_url: str) -> dict[str, bytes]:
    """Path → value of the nodes that initialising a cluster creates."""
    cluster = config.cluster_name
    tenant = to_json({"allowedClusters": [cluster], "adminRoles": []})
    policies = to_json(new_policies(cluster, INITIAL_BUNDLES))
    return {
        "/managed-ledgers": b"",
        "/namespace": b"",
        "/bookies": b"{}",
        POLICIES_ROOT: b"",
        CLUSTERS: b"",
        LOCAL_POLICIES_ROOT: b"",
        f"{CLUSTERS}/{cluster}": to_json(new_cluster(http_url, service_url)),
        f"{CLUSTERS}/global": to_json(new_cluster()),
        f"{POLICIES_ROOT}/public": tenant,
        f"{POLICIES_ROOT}/public/default": policies,
        f"{POLICIES_ROOT}/pulsar": tenant,
        f"{POLICIES_ROOT}/pulsar/system": policies,
        COORDINATORS.partitions_path: to_json(partitions_record(TRANSACTION_COORDINATORS)),
    }
