"""Creates, changes and deletes the records of clusters, tenants and namespaces.

    /admin/clusters/<cluster>                       where its brokers are; `global` is not used
    /admin/policies/<tenant>                        which clusters it may use, its administrators
    /admin/policies/<tenant>/<namespace>            its policies (`policies.py` reads them)
    /admin/local-policies/<tenant>/<namespace>      its bundles (if it is not there, those in the policies count), and
                                                    what this cluster alone keeps of it
    /admin/resourcegroups/<name>                    rates that all topics of some namespaces have together

Rules:

1. Nothing is deleted that something else needs: a cluster that a tenant or namespace names, a tenant with namespaces,
   a resource group that a namespace is in.
2. Nothing is stored that the brokers could not read afterwards (`broker/policies/rules.py`).

A broker keeps the policies that it uses in memory (`Broker.namespace`) and watches their nodes.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from broker.names import COORDINATORS, Bundles
from broker.ownership.placing.anti_affinity import domains_path
from broker.ownership.placing.isolation import isolation_path
from broker.policies.namespace import (
    CLUSTER_FLAGS,
    RESOURCE_GROUP,
    RESOURCE_GROUP_MEMBERS,
    NamespacePolicies,
    new_cluster,
    new_policies,
    parse_local_policies,
    parse_policies,
)
from broker.policies.permissions import forget_topics, granted_on
from broker.policies.rules import (
    UNSET,
    NotRemovable,
    check_clusters,
    check_not_replicated,
    check_readable,
    exceeds_retention,
    names_in,
    new_namespace,
    policies_of,
    quota,
    tenant_members,
)
from broker.policies.values import resource_group
from broker.records.json_records import (
    InvalidRecord,
    JsonRecords,
    NoRecord,
    RecordChanged,
    RecordExists,
    RecordInUse,
    parse_record,
    to_json,
)
from broker.settings.config import BrokerConfig
from broker.settings.quotas import QUOTA_TYPES
from broker.tenancy.partitions import partitions_record
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, MetadataStore, NoNode, VersionConflict
from magnetar_core.topics.topic_name import TopicName

CLUSTERS: Final = "/admin/clusters"
POLICIES_ROOT: Final = "/admin/policies"
LOCAL_POLICIES_ROOT: Final = "/admin/local-policies"
RESOURCE_GROUPS: Final = "/admin/resourcegroups"

# Resource groups of a cluster. Each broker keeps all of them with a watch each, about 2 KiB.
RESOURCE_GROUPS_MAX: Final = 10_000

# The number of bundles of `public/default` and `pulsar/system` when a cluster is initialised.
INITIAL_BUNDLES: Final = 16

# Partitions of the topic by which transaction coordinators are assigned; other brokers expect it to exist.
TRANSACTION_COORDINATORS: Final = 16


class ClusterInUse(RecordInUse):
    """A tenant, a namespace or a running broker still needs the record of the cluster."""


class ResourceGroupInUse(RecordInUse):
    """A namespace is in the resource group."""


def namespace_path(namespace: str) -> str:
    """The node with the policies of `tenant/namespace`."""
    return f"{POLICIES_ROOT}/{namespace}"


def namespace_paths(namespace: str) -> tuple[str, ...]:
    """The nodes from which the policies of `tenant/namespace` are read."""
    return namespace_path(namespace), f"{LOCAL_POLICIES_ROOT}/{namespace}"


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
        self._resource_groups = JsonRecords(store, "ResourceGroup")
        self.known = policies_of(config.cluster_name)
        """The policies that can be set, by their names in the admin API."""

    # -------------------------------------------------------------------------------- clusters

    async def clusters(self) -> list[str]:
        return [name for name in await self._store.children(CLUSTERS) if name != "global"]

    async def cluster(self, name: str) -> dict[str, Any]:
        """Raises NoRecord."""
        return await self._clusters.get(f"{CLUSTERS}/{name}")

    async def create_cluster(self, name: str, given: dict[str, Any]) -> None:
        """Raises RecordExists."""
        record = {**dict.fromkeys(CLUSTER_FLAGS, False), **given}
        await self._clusters.create(f"{CLUSTERS}/{name}", record, "Cluster already exists")

    async def update_cluster(self, name: str, given: dict[str, Any]) -> None:
        """Raises NoRecord, RecordChanged."""
        await self._clusters.change(f"{CLUSTERS}/{name}", lambda old: {**old, **given})

    async def delete_cluster(self, name: str) -> None:
        """Raises NoRecord, ClusterInUse."""
        await self.cluster(name)
        if (user := await self._user_of_cluster(name)) is not None:
            raise ClusterInUse(f"Cluster {name} is not empty: {user}")
        await self._delete_beside(name)
        await self._clusters.delete(f"{CLUSTERS}/{name}")

    async def _delete_beside(self, name: str) -> None:
        """Delete what is kept below the record of a cluster."""
        domains = domains_path(name)
        below = [f"{domains}/{domain}" for domain in await self._store.children(domains)]
        for path in (*below, domains, isolation_path(name), f"{CLUSTERS}/{name}/policies"):
            try:
                await self._store.delete(path)
            except NoNode:
                continue

    async def _user_of_cluster(self, name: str) -> str | None:
        """What still needs the record of a cluster; None: nothing does."""
        if name == self._config.cluster_name:
            return "its brokers are running, this one among them"
        node = await self._store.get(isolation_path(name))
        if node is not None and parse_record(node):
            return "it has isolation policies"
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
        tenants_max = self._config.max_tenants
        if tenants_max and len(existing := await self.tenants()) >= tenants_max and name not in existing:
            raise InvalidRecord(f"Exceed the maximum number of tenants: there may be {tenants_max} (maxTenants)")
        await self._tenants.create(f"{POLICIES_ROOT}/{name}", await self._tenant(given), "Tenant already exist")

    async def update_tenant(self, name: str, given: dict[str, Any]) -> None:
        """Raises NoRecord, RecordChanged, InvalidRecord."""
        members = await self._tenant(given)
        await self._tenants.change(f"{POLICIES_ROOT}/{name}", lambda old: {**old, **members})

    async def _tenant(self, given: dict[str, Any]) -> dict[str, list[str]]:
        members = tenant_members(given)
        clusters = await self._store.children(CLUSTERS)
        missing = [name for name in members["allowedClusters"] if name not in clusters]
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
        policies = None if node is None else parse_policies(node.value, node.path, self._config.cluster_name)
        if policies is None or policies.deleted:
            return None
        local = await self._store.get(f"{LOCAL_POLICIES_ROOT}/{name}")
        if local is None:
            return policies
        of_cluster = parse_local_policies(local.value, local.path)
        bundles = of_cluster.bundles or policies.bundles
        return replace(policies, bundles=bundles, bookie_groups=of_cluster.bookie_groups)

    async def create_namespace(self, name: str, given: dict[str, Any]) -> None:
        """Create the records of a namespace; the caller has checked its tenant. Raises RecordExists, InvalidRecord."""
        record = new_namespace(
            given,
            cluster=self._config.cluster_name,
            default_bundles=self._config.default_bundles,
            schema_auto_update=self._config.schema_auto_update,
        )
        tenant, namespaces_max = name.partition("/")[0], self._config.max_namespaces_per_tenant
        if namespaces_max:
            existing = await self._store.children(f"{POLICIES_ROOT}/{tenant}")
            if len(existing) >= namespaces_max and name.partition("/")[2] not in existing:
                raise InvalidRecord(
                    f"Exceed the maximum number of namespace in tenant :{tenant}: there may be {namespaces_max} "
                    "(maxNamespacesPerTenant)"
                )
        await self._namespaces.create(namespace_path(name), record, "Namespace already exists")
        local = {"bundles": record["bundles"], "migrated": False}
        await self._store.put(f"{LOCAL_POLICIES_ROOT}/{name}", to_json(local))

    async def cut_namespace(self, name: str, before: Bundles, after: Bundles) -> None:
        """Replace the bundles *before* of a namespace by *after*: first in its local policies, which decide, then in
        its policies.

        Raises RecordChanged (its bundles are not *before* any more).
        """
        path = f"{LOCAL_POLICIES_ROOT}/{name}"
        node = await self._store.get(path)
        policies = await self.policies(name)
        if policies is None or policies.bundles.boundaries != before.boundaries:
            raise RecordChanged(f"the bundles of {name} were changed at the same time")
        cut = {"boundaries": after.texts, "numBundles": len(after.texts) - 1}
        record = {"migrated": False} if node is None else parse_record(node)
        try:
            version = NO_NODE if node is None else node.version
            await self._store.put(
                path,
                to_json({"bundles": cut, **{field: value for field, value in record.items() if field != "bundles"}}),
                version,
            )
        except VersionConflict:
            raise RecordChanged(f"the bundles of {name} were changed at the same time") from None
        await self._namespaces.change(namespace_path(name), lambda old: {**old, "bundles": cut})

    async def delete_namespace(self, name: str) -> None:
        """Delete the records of a namespace, if there are any.

        The caller has made sure that the namespace is empty and that no broker serves it.
        """
        for path in (f"{LOCAL_POLICIES_ROOT}/{name}", namespace_path(name)):
            try:
                await self._store.delete(path)
            except NoNode:
                continue

    async def policy(self, namespace: str, name: str) -> Any:
        """The value of one of `policies_of`; UNSET if it is not set. Raises NoRecord."""
        return self.known[name].place.get(await self.namespace(namespace))

    async def set_policy(self, namespace: str, name: str, value: Any) -> None:
        """Set a policy; None removes one that an empty body removes. Raises NoRecord, RecordChanged, InvalidRecord."""
        policy = self.known[name]
        if value is None and policy.is_removed_by_nothing:
            await self.change(namespace, policy.place.remove)
            return
        stored = policy.read(value)
        policy.check(stored)
        if name in ("replication", "allowedClusters"):
            await self.namespace(namespace)
            tenant = await self.tenant(namespace.partition("/")[0])
            check_clusters(name, stored, names_in(tenant, "allowedClusters"))
        if name == "replication":
            check_not_replicated(stored, self._config.cluster_name)
        await self.change(namespace, lambda old: _checked(policy.place.put(old, stored), name))

    async def remove_policy(self, namespace: str, name: str) -> None:
        """Raises NoRecord, RecordChanged, NotRemovable."""
        policy = self.known[name]
        if not policy.is_removable:
            raise NotRemovable(f"{name} cannot be removed; set it to another value")
        await self.change(namespace, policy.place.remove)

    async def set_quota(self, namespace: str, kind: str, value: Any) -> None:
        """Set the backlog quota of one of QUOTA_TYPES. Raises NoRecord, RecordChanged, InvalidRecord."""
        policy = quota(kind)
        stored = policy.read(value)
        await self.change(namespace, lambda old: _checked(policy.place.put(old, stored), "backlogQuota"))

    async def remove_quota(self, namespace: str, kind: str) -> None:
        """Raises NoRecord, RecordChanged."""
        await self.change(namespace, quota(kind).place.remove)

    async def add_properties(self, namespace: str, given: dict[str, str]) -> None:
        """Add properties to those that the namespace has. Raises NoRecord, RecordChanged, InvalidRecord."""
        policy = self.known["properties"]
        added = policy.read(given)
        await self.change(namespace, lambda old: policy.place.put(old, {**(old.get("properties") or {}), **added}))

    async def remove_property(self, namespace: str, key: str) -> str | None:
        """Returns its value; None: there was none. Raises NoRecord, RecordChanged."""
        removed: str | None = None

        def change(old: dict[str, Any]) -> dict[str, Any]:
            nonlocal removed
            properties = dict(old.get("properties") or {})
            removed = properties.pop(key, None)
            return {**old, "properties": properties}

        await self.change(namespace, change)
        return removed

    async def change(self, namespace: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Store what *change* makes of a namespace's record. Raises NoRecord, RecordChanged."""
        await self._namespaces.change(namespace_path(namespace), change)

    # -------------------------------------------------------------------------------- local policies

    async def local_policy(self, namespace: str, member: str) -> Any:
        """A member of what this cluster alone keeps of a namespace; None if it is not set. Raises NoRecord."""
        await self.namespace(namespace)
        try:
            return (await self._namespaces.get(f"{LOCAL_POLICIES_ROOT}/{namespace}")).get(member)
        except NoRecord:
            return None

    async def set_local_policy(self, namespace: str, member: str, value: Any) -> None:
        """Set a local policy; None removes it. Raises NoRecord, RecordChanged."""
        record = await self.namespace(namespace)
        path = f"{LOCAL_POLICIES_ROOT}/{namespace}"

        def change(old: dict[str, Any]) -> dict[str, Any]:
            remaining = {name: item for name, item in old.items() if name != member}
            return remaining if value is None else {**remaining, member: value}

        if await self._store.get(path) is None:  # a namespace that was made with its cluster
            with contextlib.suppress(RecordExists):
                await self._namespaces.create(path, {"bundles": record["bundles"], "migrated": False}, path)
        await self._namespaces.change(path, change)

    async def namespaces_with(self, tenant: str, member: str, value: Any) -> list[str]:
        """The namespaces of *tenant* whose local policy is *value*. Raises NoRecord: there is no such tenant."""
        names = await self.namespaces(tenant)
        return [name for name in names if await self.local_policy(name, member) == value]

    # -------------------------------------------------------------------------------- resource groups

    async def resource_groups(self) -> list[str]:
        return sorted(await self._store.children(RESOURCE_GROUPS))

    async def resource_group(self, name: str) -> dict[str, Any]:
        """Raises NoRecord."""
        return await self._resource_groups.get(f"{RESOURCE_GROUPS}/{name}")

    async def put_resource_group(self, name: str, given: Any) -> None:
        """Create a resource group, or change those of its fields that are *given*.

        Raises NotAValue, RecordExists or RecordChanged (somebody else wrote it meanwhile), InvalidRecord (there are too
        many).
        """
        path, fields = f"{RESOURCE_GROUPS}/{name}", resource_group(given)
        node = await self._store.get(path)
        if node is not None and node.value:
            await self._resource_groups.change(path, lambda old: {**old, **fields})
            return
        if len(await self._store.children(RESOURCE_GROUPS)) >= RESOURCE_GROUPS_MAX:
            raise InvalidRecord(f"There may be {RESOURCE_GROUPS_MAX} resource groups, and there are; delete one first")
        all_fields = {
            **dict.fromkeys(RESOURCE_GROUP_MEMBERS, -1),
            **fields,
        }  # -1: any number, as Apache's brokers store it
        await self._resource_groups.create(path, all_fields, "ResourceGroup already exists")

    async def delete_resource_group(self, name: str) -> None:
        """Raises NoRecord, ResourceGroupInUse."""
        await self.resource_group(name)
        for tenant in await self._store.children(POLICIES_ROOT):
            for namespace in await self._store.children(f"{POLICIES_ROOT}/{tenant}"):
                node = await self._store.get(f"{POLICIES_ROOT}/{tenant}/{namespace}")
                if node is not None and parse_record(node).get(RESOURCE_GROUP) == name:
                    raise ResourceGroupInUse(f"ResourceGroup is in use: namespace {tenant}/{namespace} is in it")
        await self._resource_groups.delete(f"{RESOURCE_GROUPS}/{name}")

    async def set_resource_group(self, namespace: str, name: str | None) -> None:
        """Put a namespace into a resource group; None: into none. Raises NoRecord, RecordChanged, InvalidRecord."""
        if name is None:
            await self.change(namespace, lambda old: {key: old[key] for key in old if key != RESOURCE_GROUP})
            return
        if await self._store.get(f"{RESOURCE_GROUPS}/{name}") is None:
            raise InvalidRecord("ResourceGroup does not exist")
        await self.change(namespace, lambda old: {**old, RESOURCE_GROUP: name})

    # -------------------------------------------------------------------------------- permissions

    async def forget_topic_permissions(self, topic: TopicName, *, with_partitions: bool = False) -> None:
        """Remove what was granted on a topic that is deleted; *with_partitions*: also on what were its partitions.

        Raises RecordChanged.
        """
        policies = await self.policies(topic.namespace)
        if policies is None:
            return
        names = granted_on(policies.permissions, topic, with_partitions=with_partitions)
        if names:
            await self.change(topic.namespace, lambda old: forget_topics(old, names))


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


def _checked(record: dict[str, Any], changed: str) -> dict[str, Any]:
    """*record*, if the brokers can read it and its backlog quotas are within its retention. Raises InvalidRecord."""
    check_readable(record)
    if changed not in ("retention", "backlogQuota"):
        return record
    kept = record.get("retention_policies")
    for kind in QUOTA_TYPES:
        given = quota(kind).place.get(record)
        if given is not UNSET and exceeds_retention(given["limitSize"], given["limitTime"], kept):
            if changed == "retention":
                raise InvalidRecord("Retention Quota must exceed configured backlog quota for namespace.")
            raise InvalidRecord(
                "Backlog Quota exceeds configured retention quota for namespace. Please increase retention quota and "
                "retry"
            )
    return record
