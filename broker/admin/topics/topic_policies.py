"""`/admin/v2/persistent/{tenant}/{namespace}/{topic}/…`: the policies of a single topic.

`?applied=true` asks for what is in force: the topic's own, else its namespace's, else the broker's setting.
`?isGlobal=true` is about the policies for all clusters, which are stored and given back.
"""

from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from broker.admin.bodies import NO_SHADOWS
from broker.admin.http import ADMIN, Handler, Refused, done, json_answer, topic_of
from broker.admin.namespaces.namespace_policies import given_value, policy_answer, quota_type
from broker.admin.owners import Owners
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.errors import TopicNotFound
from broker.policies import values
from broker.policies.rules import UNSET, check_clusters, check_not_replicated, exceeds_retention
from broker.policies.topic.record import (
    QUOTAS,
    TOPIC_POLICIES,
    Record,
    TopicPolicy,
    check_message_size,
    overlay,
    quota,
    quota_json,
    quotas_in_force,
    rate_of,
)
from broker.records.json_records import InvalidRecord
from broker.security.authorization import Operation
from magnetar_core.topics.topic_name import TopicName, decode

# Set by a parameter of the query, by Apache's clients; a body is taken as well.
_IN_QUERY: Final = frozenset({"messageTTL", "subscriptionExpirationTime"})

# Refused as an operation on the topic, by Apache's brokers as well.
_ANSWERED_WITH_401: Final = {"maxMessageSize": (Operation.TOPIC_LIMITS, Operation.TOPIC_LIMITS)}

Change = Callable[[dict[str, Any]], dict[str, Any]]


class TopicPoliciesApi:
    """Reads, sets and removes the policies of topics."""

    def __init__(self, broker: Broker, owners: Owners) -> None:
        self._broker = broker
        self._owners = owners

    def add_routes(self, routes: Routes) -> None:
        topic = ADMIN + "/persistent/{tenant}/{namespace}/{topic}"
        for name, policy in TOPIC_POLICIES.items():
            path = f"{topic}/{name}"
            reading, writing = _ANSWERED_WITH_401.get(name, (Operation.READ_POLICY, Operation.WRITE_POLICY))
            routes.get(path, self._reading(policy), reading)
            if policy.policy.method == "PUT":
                routes.put(path, self._setting(name, policy), writing)
            else:
                routes.post(path, self._setting(name, policy), writing)
            # That a method is not possible reveals nothing: every authenticated caller may know it.
            removing = writing if policy.policy.is_removable else Operation.ASK_BROKER
            routes.delete(path, self._removing(name, policy), removing)
            routes.any(path, self._refusing(name, policy), Operation.ASK_BROKER)
        rate = topic + "/{subscription}/dispatchRate"
        routes.get(rate, self.rate, Operation.READ_POLICY)
        routes.post(rate, self.set_rate, Operation.WRITE_POLICY)
        routes.delete(rate, self.remove_rate, Operation.WRITE_POLICY)
        routes.get(topic + "/backlogQuotaMap", self.quotas, Operation.READ_POLICY)
        routes.post(topic + "/backlogQuota", self.set_quota, Operation.WRITE_POLICY)
        routes.delete(topic + "/backlogQuota", self.remove_quota, Operation.WRITE_POLICY)
        routes.delete(topic + "/policies", self.remove_all, Operation.WRITE_POLICY)
        routes.get(topic + "/shadowTopics", self.shadows, Operation.READ_POLICY)
        routes.put(topic + "/shadowTopics", self.set_shadows, Operation.WRITE_POLICY)
        routes.delete(topic + "/shadowTopics", self.remove_shadows, Operation.WRITE_POLICY)

    def _reading(self, policy: TopicPolicy) -> Handler:
        async def read(request: web.Request) -> web.Response:
            return await self._read(request, policy)

        return read

    def _setting(self, name: str, policy: TopicPolicy) -> Handler:
        async def change(request: web.Request) -> web.Response:
            given = policy.policy.switched_on
            if name in _IN_QUERY and name in request.query:
                given = request.query[name]
            elif given is UNSET:
                given = await given_value(request)
            return await self._set(request, policy, given, name)

        return change

    def _removing(self, name: str, policy: TopicPolicy) -> Handler:
        async def remove(request: web.Request) -> web.Response:
            if not policy.policy.is_removable:
                raise Refused(405, f"{name} cannot be removed; set it to another value")
            return await self._remove(request, policy)

        return remove

    def _refusing(self, name: str, policy: TopicPolicy) -> Handler:
        async def refuse(request: web.Request) -> web.Response:
            raise Refused(405, f"{name} is set by {policy.policy.method}, not by {request.method}")

        return refuse

    async def _read(self, request: web.Request, policy: TopicPolicy) -> web.Response:
        name = await self._existing(request)
        record = await self._stored(request, name)
        value = policy.policy.place.get(record)
        if value is not UNSET and value not in ([], {}):
            return policy_answer(_in_order(policy, value))
        if _is_applied(request) and policy.in_force is not None:
            effective = overlay(await self._broker.namespace(name.namespace), record)
            return policy_answer(policy.in_force(self._broker.config, effective))
        return policy_answer(policy.policy.unset)

    async def _set(self, request: web.Request, policy: TopicPolicy, given: Any, label: str) -> web.Response:
        name = await self._existing(request)
        value = policy.policy.read(given)
        policy.policy.check(value)
        await self._check(name, label, value)
        await self._change(request, name, lambda old: policy.policy.place.put(old, value))
        return done()

    async def _remove(self, request: web.Request, policy: TopicPolicy) -> web.Response:
        name = await self._existing(request)
        await self._change(request, name, policy.policy.place.remove)
        return done()

    # -------------------------------------------------------------------------------- rates of subscriptions

    async def rate(self, request: web.Request) -> web.Response:
        return await self._read(request, rate_of(_subscription(request)))

    async def set_rate(self, request: web.Request) -> web.Response:
        return await self._set(request, rate_of(_subscription(request)), await given_value(request), "dispatchRate")

    async def remove_rate(self, request: web.Request) -> web.Response:
        return await self._remove(request, rate_of(_subscription(request)))

    # -------------------------------------------------------------------------------- backlog quotas

    async def quotas(self, request: web.Request) -> web.Response:
        name = await self._existing(request)
        record = await self._stored(request, name)
        stored = record.get(QUOTAS) or {}
        if stored or not _is_applied(request):
            return json_answer({kind: values.backlog_quota(_known(quota)) for kind, quota in stored.items()})
        policies = await self._broker.namespace(name.namespace)
        in_force = quotas_in_force(self._broker.config, policies)
        return json_answer({kind: quota_json(quota) for kind, quota in in_force.items()})

    async def set_quota(self, request: web.Request) -> web.Response:
        return await self._set(request, quota(quota_type(request)), await given_value(request), "backlogQuota")

    async def remove_quota(self, request: web.Request) -> web.Response:
        return await self._remove(request, quota(quota_type(request)))

    async def shadows(self, request: web.Request) -> web.Response:
        """There are no shadow topics."""
        await self._existing(request)
        return web.Response(status=200)

    async def set_shadows(self, request: web.Request) -> web.Response:
        await self._existing(request)
        raise Refused(412, NO_SHADOWS)

    async def remove_shadows(self, request: web.Request) -> web.Response:
        await self._existing(request)
        return done()

    # -------------------------------------------------------------------------------- all of them

    async def remove_all(self, request: web.Request) -> web.Response:
        """Remove all policies of a topic; it need not exist any more."""
        self._check_on()
        name = topic_of(request)
        await self._broker.namespace(name.namespace)
        await self._broker.topic_policies.forget(name.base)
        return done()

    def _check_on(self) -> None:
        if not self._broker.topic_policies.is_on:
            raise Refused(405, "Topic level policies is disabled, to enable the topic level policy and retry.")

    async def _existing(self, request: web.Request) -> TopicName:
        """The topic of the request, if it exists and this broker may answer for it.

        Raises TopicNotFound, Refused, or redirects to its owner.
        """
        self._check_on()
        name = topic_of(request)
        await self._broker.namespace(name.namespace)
        if name.partition >= 0:
            raise Refused(412, f"Not allowed to set/get topic policy for a partition: {name} is one of {name.base}")
        if await self._broker.partitioned.count_of_base(name):
            return name
        if not await self._broker.ledgers.exists(name.managed_ledger_name):
            raise TopicNotFound(f"Topic {name} not found")
        await self._owners.redirect_unless_here(request, name)
        return name

    async def _stored(self, request: web.Request, name: TopicName) -> Record:
        return await self._broker.topic_policies.stored(name, is_global=_is_global(request)) or {}

    async def _change(self, request: web.Request, name: TopicName, change: Change) -> None:
        await self._broker.topic_policies.change(name, lambda old: change(dict(old)), is_global=_is_global(request))

    async def _check(self, name: TopicName, label: str, value: Any) -> None:
        """Refuse what contradicts other policies or settings. Raises InvalidRecord."""
        config = self._broker.config
        if label == "maxMessageSize":
            check_message_size(value, config.max_message_bytes)
        elif label == "replication":
            if config.cluster_name not in value:
                raise InvalidRecord(
                    "Can not remove local cluster from the local topic-level replication clusters policy"
                    if value
                    else "ClusterIds should not be null or empty"
                )
            check_clusters(label, value, await self._broker.tenancy.clusters())
            check_not_replicated(value, config.cluster_name)
        elif label in ("retention", "backlogQuota"):
            policies = await self._broker.in_force.policies_of(name)
            if label == "retention":
                kept = value
                limits = [(quota.limit_bytes, quota.limit_s) for quota in quotas_in_force(config, policies).values()]
            else:
                kept = {
                    "retentionTimeInMinutes": policies.retention_minutes or config.retention_minutes,
                    "retentionSizeInMB": policies.retention_mbytes or config.retention_mbytes,
                }
                limits = [(value["limitSize"], value["limitTime"])]
            if any(exceeds_retention(size, seconds, kept) for size, seconds in limits):
                raise InvalidRecord(
                    "Retention Quota must exceed configured backlog quota for topic. Please increase retention quota "
                    "and retry"
                )


def _subscription(request: web.Request) -> str:
    return decode(request.match_info["subscription"])


def _is_applied(request: web.Request) -> bool:
    return request.query.get("applied") == "true"


def _is_global(request: web.Request) -> bool:
    return request.query.get("isGlobal") == "true"


def _known(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if item is not None}


def _in_order(policy: TopicPolicy, value: Any) -> Any:
    """The value with its members in the order of Apache's answers, without those that are not set."""
    return policy.policy.read(_known(value)) if isinstance(value, dict) else value
