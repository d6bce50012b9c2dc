"""What is kept beside the record of a cluster: its peers, its migration, failure domains, isolation policies.

    /admin/clusters/<cluster>                              peerClusterNames: the clusters it may be replaced by
    /admin/clusters/<cluster>/policies                     where its clients are sent while it is migrated
    /admin/clusters/<cluster>/failureDomain/<domain>       {brokers}: those that may fail together
    /admin/clusters/<cluster>/namespaceIsolationPolicies   which brokers are for which namespaces

The nodes are Apache's, so that brokers of both kinds know the same. Isolation policies are in force
(`broker.ownership.placing.isolation`), and so are failure domains with `failureDomainsEnabled`
(`broker.ownership.placing.anti_affinity`); the rest is only kept, as there is one cluster.
"""

import contextlib
from typing import Any, Final

from broker.ownership.placing.anti_affinity import domains_path
from broker.ownership.placing.isolation import MIN_AVAILABLE, is_pattern, isolation_path, isolation_policy
from broker.policies.rules import NotAnObject
from broker.policies.values import NotAValue
from broker.records.json_records import InvalidRecord, JsonRecords, NoRecord, RecordExists, parse_record, to_json
from broker.tenancy.changes import CLUSTERS
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, MetadataStore, VersionConflict

UNLOAD_SCOPES: Final = ("all_matching", "none", "changed")

_GONE: Final = "Cluster does not exist"


class ClusterRecords:
    """All methods raise MetadataError besides what they name, and Corruption where they read a record."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._clusters = JsonRecords(store, "Cluster")

    async def _check_cluster(self, cluster: str) -> None:
        if await self._store.get(f"{CLUSTERS}/{cluster}") is None:
            raise InvalidRecord(f"Cluster {cluster} does not exist.")

    # -------------------------------------------------------------------------------- peers and migration

    async def peers(self, cluster: str) -> list[str] | None:
        """The peers of a cluster; None: they were never set. Raises NoRecord."""
        peers: list[str] | None = (await self._clusters.get(f"{CLUSTERS}/{cluster}")).get("peerClusterNames")
        return peers

    async def set_peers(self, cluster: str, names: Any) -> None:
        """Set the peers of a cluster; None removes them. Raises NoRecord, InvalidRecord, NotAValue."""
        if names is not None and (not isinstance(names, list) or not all(isinstance(name, str) for name in names)):
            raise NotAValue("peers are a list of names of clusters")
        await self._clusters.get(f"{CLUSTERS}/{cluster}")
        for name in names or []:
            if name == cluster:
                raise InvalidRecord(f"{cluster} itself can't be part of peer-list")
            if name not in await self._store.children(CLUSTERS):
                raise InvalidRecord(f"Peer cluster {name} does not exist")

        def change(old: dict[str, Any]) -> dict[str, Any]:
            remaining = {member: value for member, value in old.items() if member != "peerClusterNames"}
            return remaining if names is None else {**remaining, "peerClusterNames": list(dict.fromkeys(names))}

        await self._clusters.change(f"{CLUSTERS}/{cluster}", change)

    async def migration(self, cluster: str) -> dict[str, Any]:
        """What another broker has stored of the migration of a cluster. Raises NoRecord: nothing."""
        node = await self._store.get(f"{CLUSTERS}/{cluster}/policies")
        if node is None or not node.value:
            raise NoRecord(_GONE)
        return parse_record(node)

    # -------------------------------------------------------------------------------- failure domains

    async def domains(self, cluster: str) -> dict[str, Any]:
        """Each failure domain by its name; none of a cluster that is not there."""
        domains = {}
        for name in await self._store.children(domains_path(cluster)):
            node = await self._store.get(f"{domains_path(cluster)}/{name}")
            if node is not None and node.value:
                domains[name] = parse_record(node)
        return domains

    async def domain(self, cluster: str, name: str) -> dict[str, Any]:
        """Raises InvalidRecord (no such cluster), NoRecord."""
        await self._check_cluster(cluster)
        node = await self._store.get(f"{domains_path(cluster)}/{name}")
        if node is None:
            raise NoRecord(f"Domain {name} for cluster {cluster} does not exist")
        return parse_record(node)

    async def set_domain(self, cluster: str, name: str, given: Any) -> None:
        """Raises InvalidRecord, NotAnObject, RecordExists: one of its brokers is in another domain."""
        if not isinstance(given, dict):
            raise NotAnObject("a JSON object is needed: brokers, a list")
        brokers = given.get("brokers")
        if brokers is not None and (
            not isinstance(brokers, list) or not all(isinstance(broker, str) for broker in brokers)
        ):
            raise NotAValue("brokers are a list of names")
        await self._check_cluster(cluster)
        for other, record in (await self.domains(cluster)).items():
            shared_brokers = sorted(set(brokers or ()) & set(record.get("brokers") or ()))
            if other != name and shared_brokers:
                raise RecordExists(f"[{', '.join(shared_brokers)}] already exists in {other}")
        value = {} if brokers is None else {"brokers": list(dict.fromkeys(brokers))}
        await self._store.put(f"{domains_path(cluster)}/{name}", to_json(value))

    async def delete_domain(self, cluster: str, name: str) -> None:
        """Raises NoRecord."""
        try:
            await self._clusters.delete(f"{domains_path(cluster)}/{name}")
        except NoRecord:
            raise NoRecord(f"Domain-name {name} or cluster {cluster} does not exist") from None

    # -------------------------------------------------------------------------------- isolation policies

    async def isolation(self, cluster: str) -> dict[str, Any]:
        """The isolation policies by their names. Raises NoRecord: none were ever set."""
        if await self._store.get(f"{CLUSTERS}/{cluster}") is None:
            raise NoRecord(f"Cluster {cluster} does not exist.")
        node = await self._store.get(isolation_path(cluster))
        if node is None:
            raise NoRecord(f"NamespaceIsolationPolicies for cluster {cluster} does not exist")
        return parse_record(node)

    async def isolation_policy(self, cluster: str, name: str) -> dict[str, Any]:
        """Raises NoRecord."""
        policy: dict[str, Any] | None = (await self.isolation(cluster)).get(name)
        if policy is None:
            raise NoRecord(f"Cannot find NamespaceIsolationPolicy {name} for cluster {cluster}")
        return policy

    async def set_isolation_policy(self, cluster: str, name: str, given: Any) -> None:
        """Raises InvalidRecord (no such cluster), NotAValue."""
        policy = _checked(name, given)
        await self._check_cluster(cluster)
        path = isolation_path(cluster)
        if await self._store.get(path) is None:
            with contextlib.suppress(VersionConflict):  # another broker made it meanwhile
                await self._store.put(path, to_json({}), NO_NODE)
        await self._clusters.change(path, lambda old: {**old, name: policy})

    async def delete_isolation_policy(self, cluster: str, name: str) -> None:
        """Delete a policy, if it is there. Raises RecordChanged."""
        try:
            await self._clusters.change(
                isolation_path(cluster), lambda old: {key: value for key, value in old.items() if key != name}
            )
        except NoRecord:
            return


def _checked(name: str, given: Any) -> dict[str, Any]:
    """An isolation policy as it is stored. Raises NotAValue."""
    try:
        failover = given["auto_failover_policy"]
        parameters = failover["parameters"]
        policy = isolation_policy(name, given)
        int(parameters["usage_threshold"])
        if failover["policy_type"] != MIN_AVAILABLE:
            raise ValueError(f"the type of auto_failover_policy is {MIN_AVAILABLE}")
        if not policy.namespaces or not policy.primary:
            raise ValueError("namespaces and primary are not empty")
        for pattern in (*policy.namespaces, *policy.primary, *policy.secondary):
            if not is_pattern(pattern):
                raise ValueError(f"{pattern[:100]!r} is not a regular expression")
        if not all(isinstance(value, str) for value in parameters.values()):
            raise ValueError("the parameters of auto_failover_policy are texts")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotAValue(
            f"Invalid format of input policy data. policy: {name}: {error}; it has namespaces, primary, secondary and "
            "auto_failover_policy with policy_type and parameters (min_limit, usage_threshold)"
        ) from None
    scope = given.get("unload_scope")
    return {
        "namespaces": list(policy.namespaces),
        "primary": list(policy.primary),
        "secondary": list(policy.secondary),
        "auto_failover_policy": {"parameters": dict(parameters), "policy_type": MIN_AVAILABLE},
        **({"unload_scope": scope} if scope in UNLOAD_SCOPES else {}),
    }
