"""`/admin/v2/namespaces`: namespaces, and the roles that may use them."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from broker.admin.deputies import as_own_work
from broker.admin.http import (
    ADMIN,
    DELETE_ROUNDS,
    Refused,
    body_of,
    done,
    is_forced,
    json_answer,
    namespace_of,
    object_of,
    with_system_topics,
)
from broker.admin.namespaces.bundles import BundlesApi
from broker.admin.namespaces.namespace_policies import more_needed_for
from broker.admin.owners import Owners
from broker.admin.rights import Routes, check
from broker.broker import Broker
from broker.policies.permissions import (
    grant,
    grant_subscription,
    namespace_grants,
    permissions_from_json,
    revoke,
    revoke_subscription,
    roles_from_json,
    subscription_grants,
)
from broker.records.json_records import RecordInUse
from broker.security.authorization import Operation
from magnetar_core.topics.topic_name import NON_PERSISTENT, PERSISTENT, TopicName, decode


class NamespacesApi:
    """Namespaces, and the roles that may use them."""

    def __init__(self, broker: Broker, bundles: BundlesApi, owners: Owners) -> None:
        self._broker = broker
        self._tenancy = broker.tenancy
        self._bundles = bundles
        self._owners = owners

    def add_routes(self, routes: Routes) -> None:
        namespace = ADMIN + "/namespaces/{tenant}/{namespace}"
        routes.get(ADMIN + "/namespaces/{tenant}", self.list, Operation.LIST_NAMESPACES)
        routes.get(namespace, self.get, Operation.READ_POLICY)
        routes.put(namespace, self.create, Operation.CREATE_NAMESPACE)
        routes.delete(namespace, self.delete, Operation.DELETE_NAMESPACE)
        routes.get(namespace + "/topics", self.topics, Operation.GET_TOPICS)
        routes.get(namespace + "/permissions", self.permissions, Operation.GET_PERMISSION)
        routes.get(namespace + "/permissions/subscription", self.subscription_roles, Operation.GET_PERMISSION)
        routes.post(namespace + "/permissions/{role}", self.grant, Operation.GRANT_PERMISSION)
        routes.delete(namespace + "/permissions/{role}", self.revoke, Operation.REVOKE_PERMISSION)
        subscription = namespace + "/permissions/subscription/{subscription}"
        routes.post(subscription, self.grant_subscription, Operation.GRANT_PERMISSION)
        revoked = namespace + "/permissions/{subscription}/{role}"
        routes.delete(revoked, self.revoke_subscription, Operation.REVOKE_PERMISSION)

    async def list(self, request: web.Request) -> web.Response:
        return json_answer(await self._tenancy.namespaces(request.match_info["tenant"]))

    async def get(self, request: web.Request) -> web.Response:
        return json_answer(await self._tenancy.namespace(namespace_of(request)))

    async def create(self, request: web.Request) -> web.Response:
        policies = await object_of(request)
        for operation in more_needed_for(policies):
            await check(self._broker.access, request, operation)
        await self._tenancy.check_tenant(request.match_info["tenant"])
        await self._tenancy.create_namespace(namespace_of(request), policies)
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        force = is_forced(request)
        if force and not self._broker.config.force_delete_namespaces:
            raise Refused(405, "Broker doesn't allow forced deletion of namespaces")
        await self.remove(namespace_of(request), force=force)
        return done()

    async def remove(self, namespace: str, *, force: bool) -> None:
        """Delete a namespace; *force*: with the topics in it, which clients may be using.

        Raises NoRecord, Refused: it is not empty, or a topic could not be deleted.
        """
        await self._tenancy.namespace(namespace)
        for rounds_left in reversed(range(DELETE_ROUNDS if force else 1)):
            topics = await self._topics_in(namespace)
            if await self._is_empty(namespace, topics):
                break
            if not force:
                raise Refused(409, "Cannot delete non empty namespace")
            with as_own_work():
                await self._delete_all(namespace, topics)
            if not rounds_left and not await self._is_empty(namespace, await self._topics_in(namespace)):
                raise Refused(409, "Topics are made in the namespace while it is deleted; stop its clients")
        for topic in await self._topics_in(namespace):
            with as_own_work():
                await self._owners.delete(topic)
        await self._bundles.unload_all(namespace)
        await self._tenancy.delete_namespace(namespace)

    async def _topics_in(self, namespace: str) -> Sequence[TopicName]:
        return [TopicName.of_managed_ledger(name) for name in await self._broker.ledgers.list(namespace)]

    async def _is_empty(self, namespace: str, topics: Sequence[TopicName]) -> bool:
        """Whether nothing is there but topics of the brokers."""
        partitioned = self._broker.partitioned
        return (
            all(topic.is_system for topic in topics)
            and not await partitioned.names(namespace)
            and not await partitioned.names(namespace, NON_PERSISTENT)
        )

    async def _delete_all(self, namespace: str, topics: Sequence[TopicName]) -> None:
        """Delete what users have made. Raises Refused."""
        partitioned = self._broker.partitioned
        for domain in (PERSISTENT, NON_PERSISTENT):
            for text in await partitioned.names(namespace, domain):
                name = TopicName.parse(text)
                count = await partitioned.count(name)
                await self._owners.ask_partitions("DELETE", name, count, "?force=true", fine=(404,))
                with contextlib.suppress(RecordInUse):  # a producer made a partition again: the next round
                    await self._broker.deleting.delete_partitioned(name)
        for topic in topics:
            if not topic.is_system and await self._broker.ledgers.exists(topic.managed_ledger_name):
                await self._owners.delete(topic)

    async def topics(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "PERSISTENT").upper()
        await self._broker.namespace(namespace_of(request))
        names = await self._broker.topics_of_namespace(
            namespace_of(request),
            persistent=mode != "NON_PERSISTENT",
            non_persistent=mode != "PERSISTENT",
            system=with_system_topics(request),
        )
        return json_answer(sorted(names))

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
        await self._tenancy.change(namespace_of(request), change)
        return done()
