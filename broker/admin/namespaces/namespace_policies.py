"""`/admin/v2/namespaces/{tenant}/{namespace}/…`: the policies of a namespace, each by itself.

Most are rows of `policy_rules`: they differ in their names, values and the answer where they are not set. Those with
paths of their own have a method here.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from aiohttp import web

from broker.admin.http import (
    ADMIN,
    Refused,
    body_of,
    bytes_of,
    done,
    json_answer,
    namespace_of,
    not_there,
    text_of,
    word_answer,
)
from broker.admin.rights import Routes
from broker.ownership.placing.anti_affinity import ANTI_AFFINITY_GROUP
from broker.policies.namespace import RESOURCE_GROUP
from broker.policies.rules import NO_CONTENT, NOTHING, QUOTAS, UNSET
from broker.policies.values import bookie_affinity
from broker.security.authorization import Operation
from broker.settings.quotas import QUOTA_TYPES, STORAGE
from broker.tenancy.changes import Tenancy

# Only super users may set these, with Apache's brokers too. Policy → its member in the record.
_OF_SUPER_USERS: Final = {"delayedDelivery": "delayed_delivery_policies"}

# Members of a namespace's local record.
AFFINITY_GROUP: Final = "bookieAffinityGroup"


def _policy_operation(request: web.Request) -> Operation:
    """What reading or changing the policy in the path needs."""
    name = request.match_info["policy"]
    if name == "properties":
        return Operation.NAMESPACE_PROPERTIES
    if request.method in ("GET", "HEAD"):
        return Operation.READ_POLICY
    return Operation.WRITE_BROKER_POLICY if name in _OF_SUPER_USERS else Operation.WRITE_POLICY


def more_needed_for(given: Mapping[str, Any]) -> Iterator[Operation]:
    """What the policies *given* to a new namespace need besides the right to create it.

    Resource groups are for super users. (With Apache's brokers a tenant's administrator may use any of them: the budget
    of another tenant. And it may leave the one that its own tenant was given.)
    """
    operations = dict.fromkeys(_OF_SUPER_USERS.values(), Operation.WRITE_BROKER_POLICY)
    for member, operation in {RESOURCE_GROUP: Operation.USE_RESOURCE_GROUP, **operations}.items():
        if given.get(member) not in (None, ""):
            yield operation


class NamespacePoliciesApi:
    """Reads, sets and removes the policies of namespaces."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy

    def add_routes(self, routes: Routes) -> None:
        namespace = ADMIN + "/namespaces/{tenant}/{namespace}"
        routes.get(namespace + "/backlogQuotaMap", self.quotas, Operation.READ_POLICY)
        routes.post(namespace + "/backlogQuota", self.set_quota, Operation.WRITE_POLICY)
        routes.delete(namespace + "/backlogQuota", self.remove_quota, Operation.WRITE_POLICY)
        routes.delete(namespace + "/removeOffloadPolicies", self.remove_offload, Operation.WRITE_POLICY)
        routes.get(namespace + "/property/{key}", self.property, Operation.NAMESPACE_PROPERTIES)
        routes.put(namespace + "/property/{key}/{value}", self.set_property, Operation.NAMESPACE_PROPERTIES)
        routes.delete(namespace + "/property/{key}", self.remove_property, Operation.NAMESPACE_PROPERTIES)
        affinity = namespace + "/persistence/bookieAffinity"
        routes.get(affinity, self.affinity, Operation.WRITE_BROKER_POLICY)
        routes.post(affinity, self.set_affinity, Operation.WRITE_BROKER_POLICY)
        routes.delete(affinity, self.remove_affinity, Operation.WRITE_BROKER_POLICY)
        routes.get(namespace + "/antiAffinity", self.anti_affinity, Operation.READ_POLICY)
        routes.post(namespace + "/antiAffinity", self.set_anti_affinity, Operation.WRITE_POLICY)
        routes.delete(namespace + "/antiAffinity", self.remove_anti_affinity, Operation.WRITE_POLICY)
        # Apache's tool asks below `/admin/namespaces`.
        for root in (ADMIN, "/admin"):
            group = root + "/namespaces/{cluster}/antiAffinity/{group}"
            routes.get(group, self.namespaces_of_group, Operation.CLUSTER)
        routes.get(namespace + "/resourcegroup", self.resource_group, Operation.READ_POLICY)
        routes.post(namespace + "/resourcegroup/{group}", self.set_resource_group, Operation.USE_RESOURCE_GROUP)
        routes.delete(namespace + "/resourcegroup", self.remove_resource_group, Operation.USE_RESOURCE_GROUP)
        routes.any(namespace + "/{policy}", self.policy, _policy_operation)

    async def policy(self, request: web.Request) -> web.StreamResponse:
        """Read, set and remove one policy of a namespace."""
        name, namespace = request.match_info["policy"], namespace_of(request)
        policy = self._tenancy.known.get(name)
        if policy is None:
            return await not_there(request)
        if request.method in ("GET", "HEAD"):
            value = await self._tenancy.policy(namespace, name)
            return policy_answer(policy.unset if value is UNSET else value)
        if request.method == "DELETE":
            await self._tenancy.remove_policy(namespace, name)
            return done()
        if request.method not in ("POST", "PUT"):
            raise Refused(405, f"{name} is set by {policy.method}, not by {request.method}")
        if name == "properties":
            await self._tenancy.add_properties(namespace, await given_value(request))
        else:
            value = policy.switched_on
            if value is UNSET:
                value = await (body_of if policy.is_removed_by_nothing else given_value)(request)
            await self._tenancy.set_policy(namespace, name, value)
        return web.Response(status=policy.status)

    # -------------------------------------------------------------------------------- backlog quotas

    async def quotas(self, request: web.Request) -> web.Response:
        record = await self._tenancy.namespace(namespace_of(request))
        return json_answer(record.get(QUOTAS) or {})

    async def set_quota(self, request: web.Request) -> web.Response:
        await self._tenancy.set_quota(namespace_of(request), quota_type(request), await given_value(request))
        return done()

    async def remove_quota(self, request: web.Request) -> web.Response:
        await self._tenancy.remove_quota(namespace_of(request), quota_type(request))
        return done()

    # -------------------------------------------------------------------------------- others with their own paths

    async def remove_offload(self, request: web.Request) -> web.Response:
        await self._tenancy.remove_policy(namespace_of(request), "offloadPolicies")
        return done()

    async def property(self, request: web.Request) -> web.Response:
        properties = await self._tenancy.policy(namespace_of(request), "properties")
        value = {} if properties is UNSET else properties
        return _text(value.get(request.match_info["key"]))

    async def set_property(self, request: web.Request) -> web.Response:
        info = request.match_info
        await self._tenancy.add_properties(namespace_of(request), {info["key"]: info["value"]})
        return done()

    async def remove_property(self, request: web.Request) -> web.Response:
        return _text(await self._tenancy.remove_property(namespace_of(request), request.match_info["key"]))

    async def affinity(self, request: web.Request) -> web.Response:
        group = await self._tenancy.local_policy(namespace_of(request), AFFINITY_GROUP)
        return done() if group is None else json_answer(group)

    async def set_affinity(self, request: web.Request) -> web.Response:
        value = bookie_affinity(await given_value(request))
        await self._tenancy.set_local_policy(namespace_of(request), AFFINITY_GROUP, value)
        return done()

    async def remove_affinity(self, request: web.Request) -> web.Response:
        await self._tenancy.set_local_policy(namespace_of(request), AFFINITY_GROUP, None)
        return done()

    async def anti_affinity(self, request: web.Request) -> web.Response:
        group = await self._tenancy.local_policy(namespace_of(request), ANTI_AFFINITY_GROUP)
        return done() if group is None else word_answer(group)

    async def set_anti_affinity(self, request: web.Request) -> web.Response:
        """The body is the name itself: Apache takes quotation marks as a part of it, and pulsar-admin sends none."""
        try:
            value = (await text_of(request)).strip()
        except (ValueError, LookupError):
            raise Refused(400, "the name of the anti-affinity group is not text") from None
        if not value:
            raise Refused(412, "namespaceAntiAffinityGroup can't be empty")
        await self._tenancy.set_local_policy(namespace_of(request), ANTI_AFFINITY_GROUP, value)
        return done()

    async def remove_anti_affinity(self, request: web.Request) -> web.Response:
        await self._tenancy.set_local_policy(namespace_of(request), ANTI_AFFINITY_GROUP, None)
        return done()

    async def namespaces_of_group(self, request: web.Request) -> web.Response:
        tenant = request.query.get("property", "")
        if not tenant:
            raise Refused(404, "Tenant should not be null: name it as ?property=TENANT")
        group = request.match_info["group"]
        return json_answer(await self._tenancy.namespaces_with(tenant, ANTI_AFFINITY_GROUP, group))

    async def resource_group(self, request: web.Request) -> web.Response:
        group = (await self._tenancy.namespace(namespace_of(request))).get(RESOURCE_GROUP)
        return word_answer(group or "")

    async def set_resource_group(self, request: web.Request) -> web.Response:
        await self._tenancy.set_resource_group(namespace_of(request), request.match_info["group"])
        return done()

    async def remove_resource_group(self, request: web.Request) -> web.Response:
        await self._tenancy.set_resource_group(namespace_of(request), None)
        return done()


def quota_type(request: web.Request) -> str:
    """The type of backlog quota that the query names. Raises Refused."""
    kind = request.query.get("backlogQuotaType") or STORAGE
    if kind not in QUOTA_TYPES:
        raise Refused(404, f"unknown type of backlog quota {kind[:100]!r}; types are {', '.join(QUOTA_TYPES)}")
    return kind


async def given_value(request: web.Request) -> Any:
    """The value in the body. Raises Refused."""
    if not request.can_read_body or not (await bytes_of(request)).strip():
        raise Refused(400, "The request entity cannot be empty.")
    return await body_of(request)


def policy_answer(value: Any) -> web.Response:
    """The answer that shows the value of a policy."""
    if value is NO_CONTENT:
        return done()
    return web.Response(status=200) if value is NOTHING else json_answer(value)


def _text(value: str | None) -> web.Response:
    return web.Response(status=200, text=value or "")
