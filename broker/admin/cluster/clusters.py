"""`/admin/v2/clusters`: records of clusters, and what is kept beside them."""

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from broker.admin.http import ADMIN, Refused, as_object, body_of, done, json_answer, object_of
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.ownership.ownership import BundleOwnership
from broker.ownership.placing.isolation import IsolationPolicy, isolation_policy
from broker.security.authorization import Operation
from broker.tenancy.clusters import ClusterRecords


class ClustersApi:
    """Records of clusters, failure domains, isolation policies."""

    def __init__(self, broker: Broker, ownership: BundleOwnership) -> None:
        self._tenancy = broker.tenancy
        self._records = ClusterRecords(broker.store)
        self._ownership = ownership

    def add_routes(self, routes: Routes) -> None:
        cluster = ADMIN + "/clusters/{cluster}"
        routes.get(ADMIN + "/clusters", self.list, Operation.LIST_CLUSTERS)
        routes.get(cluster, self.get, Operation.CLUSTER)
        routes.put(cluster, self.create, Operation.CLUSTER)
        routes.post(cluster, self.update, Operation.CLUSTER)
        routes.delete(cluster, self.delete, Operation.CLUSTER)
        routes.get(cluster + "/peers", self.peers, Operation.CLUSTER)
        routes.post(cluster + "/peers", self.set_peers, Operation.CLUSTER)
        routes.get(cluster + "/migrate", self.migration, Operation.CLUSTER)
        routes.get(cluster + "/failureDomains", self.domains, Operation.CLUSTER)
        domain = cluster + "/failureDomains/{domain}"
        routes.get(domain, self.domain, Operation.CLUSTER)
        routes.post(domain, self.set_domain, Operation.CLUSTER)
        routes.delete(domain, self.delete_domain, Operation.CLUSTER)
        policies = cluster + "/namespaceIsolationPolicies"
        routes.get(policies, self.policies, Operation.CLUSTER)
        routes.get(policies + "/brokers", self.brokers, Operation.CLUSTER)
        routes.get(policies + "/brokers/{broker}", self.broker, Operation.CLUSTER)
        routes.get(policies + "/{policy}", self.policy, Operation.CLUSTER)
        routes.post(policies + "/{policy}", self.set_policy, Operation.CLUSTER)
        routes.delete(policies + "/{policy}", self.delete_policy, Operation.CLUSTER)

    async def list(self, request: web.Request) -> web.Response:
        return json_answer(await self._tenancy.clusters())

    async def get(self, request: web.Request) -> web.Response:
        return json_answer(await self._tenancy.cluster(_cluster(request)))

    async def create(self, request: web.Request) -> web.Response:
        await self._tenancy.create_cluster(_cluster(request), await object_of(request))
        return web.Response(status=200)

    async def update(self, request: web.Request) -> web.Response:
        await self._tenancy.update_cluster(_cluster(request), as_object(await body_of(request)))
        return web.Response(status=200)

    async def delete(self, request: web.Request) -> web.Response:
        await self._tenancy.delete_cluster(_cluster(request))
        return done()

    # -------------------------------------------------------------------------------- peers and migration

    async def peers(self, request: web.Request) -> web.Response:
        peers = await self._records.peers(_cluster(request))
        return web.Response(status=200) if peers is None else json_answer(peers)

    async def set_peers(self, request: web.Request) -> web.Response:
        await self._records.set_peers(_cluster(request), await body_of(request))
        return done()

    async def migration(self, request: web.Request) -> web.Response:
        return json_answer(await self._records.migration(_cluster(request)))

    # -------------------------------------------------------------------------------- failure domains

    async def domains(self, request: web.Request) -> web.Response:
        return json_answer(await self._records.domains(_cluster(request)))

    async def domain(self, request: web.Request) -> web.Response:
        return json_answer(await self._records.domain(_cluster(request), request.match_info["domain"]))

    async def set_domain(self, request: web.Request) -> web.Response:
        await self._records.set_domain(_cluster(request), request.match_info["domain"], await body_of(request))
        return done()

    async def delete_domain(self, request: web.Request) -> web.Response:
        await self._records.delete_domain(_cluster(request), request.match_info["domain"])
        return web.Response(status=200)

    # -------------------------------------------------------------------------------- isolation policies

    async def policies(self, request: web.Request) -> web.Response:
        return json_answer(await self._records.isolation(_cluster(request)))

    async def policy(self, request: web.Request) -> web.Response:
        return json_answer(await self._records.isolation_policy(_cluster(request), request.match_info["policy"]))

    async def set_policy(self, request: web.Request) -> web.Response:
        await self._records.set_isolation_policy(
            _cluster(request), request.match_info["policy"], await body_of(request)
        )
        return done()

    async def delete_policy(self, request: web.Request) -> web.Response:
        await self._records.delete_isolation_policy(_cluster(request), request.match_info["policy"])
        return done()

    async def brokers(self, request: web.Request) -> web.Response:
        """Each broker that is there, with the policy that names it."""
        policies = await self._policies(request)
        broker_ids = sorted(await self._ownership.brokers())
        return json_answer([_isolation_of_broker(broker_id, policies) for broker_id in broker_ids])

    async def broker(self, request: web.Request) -> web.Response:
        """The same of one broker, there or not."""
        return json_answer(_isolation_of_broker(request.match_info["broker"], await self._policies(request)))

    async def _policies(self, request: web.Request) -> Sequence[IsolationPolicy]:
        """The isolation policies of a cluster. Raises NoRecord, Refused (500): what is stored is not a policy."""
        stored = await self._records.isolation(_cluster(request))
        try:
            return [isolation_policy(name, policy) for name, policy in stored.items()]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refused(500, f"an isolation policy of {_cluster(request)} cannot be read: {error}") from None


def _cluster(request: web.Request) -> str:
    return request.match_info["cluster"]


def _isolation_of_broker(broker: str, policies: Sequence[IsolationPolicy]) -> dict[str, Any]:
    """The last policy that names the broker `host:port`, and the namespaces of all that do."""
    shown: dict[str, Any] = {"brokerName": broker, "namespaceRegex": [], "primary": False}
    for policy in policies:
        if policy.is_primary(broker) or policy.is_secondary(broker):
            shown["policyName"] = policy.name
            shown["namespaceRegex"] = [*shown["namespaceRegex"], *policy.namespaces]
            shown["primary"] = policy.is_primary(broker)
    return shown
