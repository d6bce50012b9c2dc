"""Which of the living brokers shall have a bundle: what the decision needs is read, and `preference` decides."""

import asyncio
import logging
from collections.abc import Collection, Mapping

from broker.ownership.membership import Membership
from broker.ownership.nodes import NAMESPACE, decode_owner
from broker.ownership.placing.anti_affinity import Spread, may_move, spread_of
from broker.ownership.placing.group_records import GroupRecords
from broker.ownership.placing.isolation import IsolationPolicy, candidates, host_of, isolation_path, parse_isolation
from broker.ownership.placing.preference import expected_usage, preference
from broker.ownership.probing import Probes, Sign
from broker.ownership.rules import BrokerAddress, NoBrokerAvailable
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)


class Ranking:
    """The order of the brokers for each bundle, as one of them sees it."""

    def __init__(
        self, store: MetadataStore, members: Membership, groups: GroupRecords, probes: Probes, cluster: str
    ) -> None:
        """*cluster*: the one whose isolation policies are asked; empty: there are none."""
        self._store = store
        self._members = members
        self._groups = groups
        self._probes = probes
        self._cluster = cluster

    async def stop(self) -> None:
        await self._groups.stop()

    async def isolation(self) -> tuple[IsolationPolicy, ...]:
        """The isolation policies of the cluster. Raises MetadataError, Corruption."""
        if not self._cluster:
            return ()
        node = await self._store.get(isolation_path(self._cluster))
        return () if node is None else parse_isolation(node.value, node.path)

    async def better_broker(self, bundle: str, all_bundles: Collection[str]) -> tuple[str, BrokerAddress] | None:
        """Id and address of the living broker that comes before this one in the bundle's order, in which a broker that
        leaves has no place; None if this one is first.

        *all_bundles*: the names of all bundles of the namespace. Raises NoBrokerAvailable: there is none, or isolation
        policies leave none of those that live; MetadataError, Corruption.
        """
        own_id, is_leaving = self._members.broker_id, self._members.is_leaving
        loaded = await self._members.loaded_brokers()
        brokers = {broker_id: address for broker_id, (address, _) in loaded.items()}
        namespace = bundle.rpartition("/")[0]
        owners = await self._owned_by(namespace, brokers)
        owned = {broker_id: len(bundles) for broker_id, bundles in owners.items()}
        usage = expected_usage(namespace, {broker_id: load for broker_id, (_, load) in loaded.items()}, owners)
        unowned_bundles = frozenset(all_bundles).difference(*owners.values())
        spread = await self._spread_of(namespace, brokers, owners)
        candidate_ids = brokers if is_leaving else (*brokers, own_id)
        hosts = {broker_id: host_of(broker_id) for broker_id in candidate_ids}
        policies = await self.isolation()
        while True:
            allowed = candidates(namespace, hosts, policies)
            for broker_id in preference(bundle, allowed, owned, usage, unowned_bundles, spread):
                if broker_id == own_id:
                    return None
                if await self._probes.sign(brokers[broker_id]) is Sign.ANSWERS:
                    return broker_id, brokers[broker_id]
            if not policies or not allowed:
                break
            for broker_id in allowed:  # dead ones: without them secondary brokers may have to serve
                del hosts[broker_id]
        if is_leaving:
            raise NoBrokerAvailable(f"No broker was available to own {bundle}: this one is stopping")
        raise NoBrokerAvailable(
            f"No broker was available to own {bundle}: isolation policies leave none of {', '.join(sorted(brokers))}"
        )

    async def may_move(self, bundle: str, source: str, destination: str) -> bool:
        """Whether a bundle may go from one broker to another, both by id, as far as the anti-affinity group of its
        namespace is concerned. Raises MetadataError, Corruption."""
        namespace = bundle.rpartition("/")[0]
        if not await self._groups.members(namespace):
            return True
        brokers = await self._members.brokers()
        owners = await self._owned_by(namespace, brokers)
        spread = await self._spread_of(namespace, brokers, owners)
        allowed = candidates(namespace, {id_: host_of(id_) for id_ in brokers}, await self.isolation())
        is_last = owners.get(source, set()) <= {bundle}
        return spread is None or may_move(spread, source, destination, allowed, is_last=is_last)

    async def _spread_of(
        self, namespace: str, brokers: Mapping[str, BrokerAddress], owners: Mapping[str, Collection[str]]
    ) -> Spread | None:
        """Who serves the anti-affinity group of *namespace*, whose own bundles *owners* have; None: it is in none."""
        namespaces = await self._groups.members(namespace)
        if not namespaces:
            return None

        async def brokers_serving(other: str) -> Collection[str]:
            if other == namespace:
                return owners.keys()
            try:
                return (await self._owned_by(other, brokers)).keys()
            except Corruption as error:  # of another namespace, which must not stop this one from being placed
                log.warning("who serves %s is not known: %s", other, error)
                return ()

        servers = await asyncio.gather(*map(brokers_serving, namespaces))
        return spread_of(namespace, dict(zip(namespaces, servers, strict=True)), await self._groups.domains())

    async def _owned_by(self, namespace: str, brokers: Mapping[str, BrokerAddress]) -> dict[str, set[str]]:
        """The bundles of a namespace that each broker owns."""
        ids = {address.native_url: broker_id for broker_id, address in brokers.items()}
        owned: dict[str, set[str]] = {}
        bundles = [f"{namespace}/{text}" for text in await self._store.children(f"{NAMESPACE}/{namespace}")]
        nodes = await asyncio.gather(*(self._store.get(f"{NAMESPACE}/{bundle}") for bundle in bundles))
        for bundle, node in zip(bundles, nodes, strict=True):
            if node is not None and node.value:
                owner = ids.get(decode_owner(node.value, node.path)[0].native_url)
                if owner is not None:
                    owned.setdefault(owner, set()).add(bundle)
        return owned
