"""`/admin/v2/namespaces`: namespaces, their policies and their bundles."""

from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from broker.admin.http import (
    ADMIN,
    Refused,
    body_of,
    done,
    json_answer,
    namespace_of,
    not_there,
    object_of,
    refuse_force,
)
from broker.admin.owners import Owners
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.ownership.ownership import BundleOwnership
from broker.permissions import (
    grant,
    grant_subscription,
    namespace_grants,
    permissions_from_json,
    revoke,
    revoke_subscription,
    roles_from_json,
    subscription_grants,
)
from broker.policy_rules import POLICIES
from broker.security.authorization import Operation
from managed_ledger.names import decode

# Setting this policy is answered with 200, as Apache's brokers do; setting any other with 204.
_ANSWERED_WITH_200: Final = "replication"


# Only super users may set it, with Apache's brokers too.
_OF_SUPER_USERS: Final = "delayedDelivery"


def _policy_operation(request: web.Request) -> Operation:
    """What reading or changing the policy in the path needs."""
    name = request.match_info["policy"]
    if name == "properties":
        return Operation.NAMESPACE_PROPERTIES
    if request.method in ("GET", "HEAD"):
        return Operation.READ_POLICY
    return Operation.WRITE_BROKER_POLICY if name == _OF_SUPER_USERS else Operation.WRITE_POLICY


class NamespacesApi:
    """Namespaces and their policies; bundles are unloaded at whichever broker has them."""

    def __init__(self, broker: Broker, ownership: BundleOwnership, owners: Owners) -> None:
        self._broker = broker
        self._tenancy = broker.tenancy
        self._ownership = ownership
        self._owners = owners

    def add_routes(self, routes: Routes) -> None:
        namespace = ADMIN + "/namespaces/{tenant}/{namespace}"
        routes.get(ADMIN + "/namespaces/{tenant}", self.list, Operation.LIST_NAMESPACES)
        routes.get(namespace, self.get, Operation.READ_POLICY)
        routes.put(namespace, self.create, Operation.CREATE_NAMESPACE)
        routes.delete(namespace, self.delete, Operation.DELETE_NAMESPACE)
        routes.get(namespace + "/topics", self.topics, Operation.GET_TOPICS)
        routes.get(namespace + "/bundles", self.bundles, Operation.GET_BUNDLE)
        routes.put(namespace + "/unload", self.unload, Operation.UNLOAD_NAMESPACE)
        routes.put(namespace + "/{bundle}/unload", self.unload_bundle, Operation.UNLOAD_NAMESPACE)
        routes.get(namespace + "/permissions", self.permissions, Operation.GET_PERMISSION)
        routes.get(namespace + "/permissions/subscription", self.subscription_roles, Operation.GET_PERMISSION)
        routes.post(namespace + "/permissions/{role}", self.grant, Operation.GRANT_PERMISSION)
        routes.delete(namespace + "/permissions/{role}", self.revoke, Operation.REVOKE_PERMISSION)
        subscription = namespace + "/permissions/subscription/{subscription}"
        routes.post(subscription, self.grant_subscription, Operation.GRANT_PERMISSION)
        revoked = namespace + "/permissions/{subscription}/{role}"
        routes.delete(revoked, self.revoke_subscription, Operation.REVOKE_PERMISSION)
        routes.any(namespace + "/{policy}", self.policy, _policy_operation)

    async def list(self, request: web.Request) -> web.Response:
        return json_answer(await self._tenancy.namespaces(request.match_info["tenant"]))

    async def get(self, request: web.Request) -> web.Response:
        return json_answer(await self._tenancy.namespace(namespace_of(request)))

    async def create(self, request: web.Request) -> web.Response:
        await self._tenancy.check_tenant(request.match_info["tenant"])
        await self._tenancy.create_namespace(namespace_of(request), await object_of(request))
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        refuse_force(request)
        await self._tenancy.namespace(namespace)
        if await self._broker.ledgers.list(namespace) or await self._broker.partitioned.names(namespace):
            raise Refused(409, "Cannot delete non empty namespace")
        await self._unload_all(namespace)
        await self._tenancy.delete_namespace(namespace)
        return done()

    async def topics(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "PERSISTENT").upper()
        await self._broker.namespace(namespace_of(request))
        names = await self._broker.topics_of_namespace(
            namespace_of(request), persistent=mode != "NON_PERSISTENT", non_persistent=mode != "PERSISTENT"
        )
        return json_answer(sorted(names))

    async def bundles(self, request: web.Request) -> web.Response:
        policies = await self._broker.namespace(namespace_of(request))
        texts = policies.bundles.texts
        return json_answer({"boundaries": texts, "numBundles": len(texts) - 1})

    async def unload(self, request: web.Request) -> web.Response:
        await self._unload_all(namespace_of(request))
        return done()

    async def _unload_all(self, namespace: str) -> None:
        """Unload every bundle of a namespace, at whichever broker has it. Raises TopicNotFound."""
        for text in (await self._broker.namespace(namespace)).bundles.ranges:
            bundle = f"{namespace}/{text}"
            owner = await self._ownership.owner_of(bundle)
            if owner is None:
                continue
            if owner == self._ownership.address:
                await self._unload(bundle)
            else:
                await self._owners.ask("PUT", f"{owner.http_url}{ADMIN}/namespaces/{bundle}/unload", bundle)

    async def unload_bundle(self, request: web.Request) -> web.Response:
        namespace, text = namespace_of(request), request.match_info["bundle"]
        if text not in (await self._broker.namespace(namespace)).bundles.ranges:
            raise Refused(412, f"Invalid bundle range {text}")
        owner = await self._ownership.owner_of(f"{namespace}/{text}")
        if owner == self._ownership.address:
            await self._unload(f"{namespace}/{text}")
        elif owner is not None:
            raise web.HTTPTemporaryRedirect(owner.http_url + request.rel_url.raw_path)
        return done()

    async def _unload(self, bundle: str) -> None:
        await self._ownership.unload(bundle, lambda: self._broker.unload_bundle(bundle))

    # -------------------------------------------------------------------------------- permissions

    async def permissions(self, request: web.Request) -> web.Response:
        return json_answer(namespace_grants(await self._tenancy.namespace(namespace_of(request))))

    async def subscription_roles(self, request: web.Request) -> web.Response:
        return json_answer(subscription_grants(await self._tenancy.namespace(namespace_of(request))))

    async def grant(self, request: web.Request) -> web.Response:
        role, granted = request.match_info["role"], permissions_from_json(await body_of(request))
        return await self._change(request, lambda old: grant(old, role, granted))

    async def revoke(self, request: web.Request) -> web.Response:
        role = request.match_info["role"]
        return await self._change(request, lambda old: revoke(old, role))

    async def grant_subscription(self, request: web.Request) -> web.Response:
        name, roles = decode(request.match_info["subscription"]), roles_from_json(await body_of(request))
        return await self._change(request, lambda old: grant_subscription(old, name, roles))

    async def revoke_subscription(self, request: web.Request) -> web.Response:
        name, role = decode(request.match_info["subscription"]), request.match_info["role"]
        return await self._change(request, lambda old: revoke_subscription(old, name, role))

    async def _change(self, request: web.Request, change: Callable[[dict[str, Any]], dict[str, Any]]) -> web.Response:
        await self._tenancy.change_permissions(namespace_of(request), change)
        return done()

    # -------------------------------------------------------------------------------- policies

    async def policy(self, request: web.Request) -> web.StreamResponse:
        """Read, set and remove one policy of a namespace."""
        name, namespace = request.match_info["policy"], namespace_of(request)
        if name not in POLICIES:
            return await not_there(request)
        if request.method == "GET":
            value = await self._tenancy.policy(namespace, name)
            if value is None:
                return web.Response(status=200)  # Apache's answer for a policy that is not set: an empty body
            return json_answer(value)
        if request.method == "DELETE":
            await self._tenancy.remove_policy(namespace, name)
            return done()
        if request.method not in ("POST", "PUT"):
            raise Refused(405, f"{request.method} is not possible here")
        await self._tenancy.set_policy(namespace, name, await body_of(request))
        return web.Response(status=200 if name == _ANSWERED_WITH_200 else 204)
