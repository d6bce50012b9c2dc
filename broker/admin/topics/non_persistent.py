"""`/admin/v2/non-persistent/{tenant}/{namespace}/{topic}`: non-persistent topics, where they are open.

They exist while a broker has them open. So lists are gathered from the owners of all bundles, and what asks for stored
messages is refused with Apache's status and words. (Where Apache answers 500 since its code knows persistent topics
only, the status is 405.)
"""

import re
from typing import Final

from aiohttp import web

from broker.admin.bodies import topic_properties_from_json
from broker.admin.deputies import encode_twice
from broker.admin.http import (
    ADMIN,
    Refused,
    body_of,
    done,
    is_forced,
    json_answer,
    namespace_of,
    not_there,
    topic_of,
)
from broker.admin.numbers.stats import non_persistent_internal_stats, non_persistent_stats
from broker.admin.owners import Owners
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.errors import TopicNotFound
from broker.ownership.ownership import BundleOwnership
from broker.policies.permissions import grant, permissions_from_json, revoke, topic_grants
from broker.security.authorization import Operation
from broker.topic.non_persistent.topic import NonPersistentTopic
from magnetar_core.topics.topic_name import NON_PERSISTENT, decode

_NOT_STORED: Final = "needs stored messages, which a non-persistent topic does not have"
_NEEDS_PERSISTENT: Final = (406, "Need to provide a persistent topic name")

# Method and path behind the topic → the refusal.
_REFUSED: Final = tuple(
    (re.compile(pattern), refusal)
    for pattern, refusal in (
        (r"PUT subscription/[^/]+",
         (400, "Create subscription on non-persistent topic can only be done through client")),
        (r"GET lastMessageId", (405, "GetLastMessageId on a non-persistent topic is not allowed")),
        (r"GET messageid/.*", (405, "Get message ID by timestamp on a non-persistent topic is not allowed")),
        (r"POST all_subscription/expireMessages/.*",
         (405, "Expire messages for all subscriptions on a non-persistent topic is not allowed")),
        (r"POST .*/expireMessages.*", (405, "Expire messages on a non-persistent topic is not allowed")),
        (r"[A-Z]+ properties", _NEEDS_PERSISTENT),
        (r"POST terminate", _NEEDS_PERSISTENT),
        (r"POST terminate/partitions",
         (405, "Termination of a non-partitioned topic is not allowed using partitioned-terminate, please use "
               "terminate commands")),
        (r"POST trim", (405, "Trim on a non-persistent topic is not allowed")),
        (r"DELETE truncate", (412, "unsupport truncate")),
        (r"GET subscription/[^/]+/replicatedSubscriptionStatus",
         (405, "Cannot get replicated subscriptions on non-persistent topics")),
        (r"POST subscription/[^/]+/replicatedSubscriptionStatus",
         (405, "Cannot enable/disable replicated subscriptions on non-persistent topics")),
        (r"POST subscription/.*", (405, f"this {_NOT_STORED}")),
        (r"[A-Z]+ (compaction|offload|examinemessage|ledger/.*)", (405, f"this {_NOT_STORED}")),
    )
)  # fmt: skip


class NonPersistentTopicsApi:
    """Non-persistent topics without partitions, and single partitions."""

    def __init__(self, broker: Broker, ownership: BundleOwnership, owners: Owners) -> None:
        self._broker = broker
        self._topics = broker.non_persistent
        self._partitioned = broker.partitioned
        self._ownership = ownership
        self._owners = owners

    def add_routes(self, routes: Routes) -> None:
        namespace = f"{ADMIN}/{NON_PERSISTENT}/{{tenant}}/{{namespace}}"
        topic = f"{ADMIN}/{{domain:{NON_PERSISTENT}}}/{{tenant}}/{{namespace}}/{{topic}}"
        routes.get(namespace, self.list, Operation.GET_TOPICS)
        bundle = namespace + "/{bundle:0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}}"
        routes.get(bundle, self.list_bundle, Operation.GET_TOPICS)
        routes.put(topic, self.create, Operation.CREATE_TOPIC)
        routes.delete(topic, self.delete, Operation.DELETE_TOPIC)
        routes.get(topic + "/stats", self.stats, Operation.GET_STATS)
        routes.get(topic + "/internalStats", self.internal_stats, Operation.GET_STATS)
        routes.get(topic + "/backlog", self.backlog, Operation.BACKLOG_SIZE)
        routes.put(topic + "/unload", self.unload, Operation.UNLOAD)
        routes.get(topic + "/subscriptions", self.subscriptions, Operation.GET_SUBSCRIPTIONS)
        routes.delete(topic + "/subscription/{subscription}", self.delete_subscription, Operation.UNSUBSCRIBE)
        routes.get(topic + "/permissions", self.permissions, Operation.TOPIC_PERMISSIONS)
        routes.post(topic + "/permissions/{role}", self.grant, Operation.TOPIC_PERMISSIONS)
        routes.delete(topic + "/permissions/{role}", self.revoke, Operation.TOPIC_PERMISSIONS)

    def add_refusals(self, routes: Routes) -> None:
        """Routes for what no other route takes."""
        topic = f"{ADMIN}/{{domain:{NON_PERSISTENT}}}/{{tenant}}/{{namespace}}/{{topic}}"
        routes.any(topic + "/{rest:.*}", self.refuse, Operation.ASK_BROKER)

    # -------------------------------------------------------------------------------- topics

    async def list(self, request: web.Request) -> web.Response:
        """The topics that brokers have open, of all bundles."""
        namespace = namespace_of(request)
        names = set(self._topics.names(namespace))
        for text in (await self._broker.namespace(namespace)).bundles.ranges:
            owner = await self._ownership.owner_of(f"{namespace}/{text}")
            if owner is not None and owner != self._ownership.address:
                url = f"{self._owners.web_url(owner)}{ADMIN}/{NON_PERSISTENT}/{namespace}/{text}"
                names.update(await self._owners.ask("GET", url, f"{namespace}/{text}"))
        return json_answer(sorted(names))

    async def list_bundle(self, request: web.Request) -> web.Response:
        namespace, text = namespace_of(request), request.match_info["bundle"]
        if text not in (await self._broker.namespace(namespace)).bundles.ranges:
            raise Refused(412, f"Invalid bundle range {text}")
        return json_answer(self._topics.names(namespace, f"{namespace}/{text}"))

    async def create(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        topic_properties_from_json(await body_of(request))  # checked as with Apache's brokers, and of no use
        await self._broker.namespace(name.namespace)
        await self._broker.creation.check_partition(name)
        if await self._partitioned.count(name):
            raise Refused(409, "This topic already exists")
        await self._owners.redirect_unless_here(request, name)
        if self._topics.get(name) is not None:
            raise Refused(409, "This topic already exists")
        await self._broker.creation.check_name(name)
        await self._broker.opening.open_non_persistent(name)
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        """A topic that is not open anywhere is gone already: that is not an error."""
        name = topic_of(request)
        if await self._partitioned.count(name):
            raise Refused(
                409,
                f"{name} is a partitioned topic, "
                "instead of calling delete topic, please call delete-partitioned-topic.",
            )
        await self._owners.redirect_unless_here(request, name)
        topic = self._topics.get(name)
        if topic is not None and topic.clients and not is_forced(request):
            raise Refused(412, f"Topic has {topic.clients} connected producers/consumers")
        await self._broker.deleting.delete_non_persistent(name)
        return done()

    async def stats(self, request: web.Request) -> web.Response:
        return json_answer(non_persistent_stats(await self._open(request), self._ownership.broker_id))

    async def internal_stats(self, request: web.Request) -> web.Response:
        return json_answer(non_persistent_internal_stats(await self._open(request)))

    async def backlog(self, request: web.Request) -> web.Response:
        """The backlog that a topic has in its ledgers, and this kind has none; asked of any topic, open or not."""
        name = topic_of(request)
        await self._broker.namespace(name.namespace)
        return json_answer(
            {
                "storageSize": 0,
                "totalMessages": 0,
                "messageBacklog": 0,
                "brokerName": self._broker.config.advertised_host,
                "topicName": name.managed_ledger_name,
                "dataLedgerDetails": [],
                "cursorDetails": {},
                "statGeneratedAt": self._broker.now_ms(),
            }
        )

    async def unload(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        if count := await self._partitioned.count(name):
            await self._owners.ask_partitions("PUT", name, count, "/unload", fine=(404,))
        else:
            await self._topics.close((await self._open(request)).name)
        return done()

    async def _open(self, request: web.Request) -> NonPersistentTopic:
        """The topic; a partition is made if it is not open. Raises TopicNotFound, or redirects."""
        name = topic_of(request)
        await self._owners.redirect_unless_here(request, name)
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        if 0 <= name.partition < await self._partitioned.count_of_base(name):
            return await self._broker.opening.open_non_persistent(name)
        raise TopicNotFound(f"Topic {name} not found")

    # ------------------------------------------------------------------------------- subscriptions

    async def subscriptions(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        if count := await self._partitioned.count(name):
            answers = await self._owners.ask_partitions("GET", name, count, "/subscriptions", fine=(404,))
            return json_answer(sorted({name for names in answers.values() for name in names}))
        return json_answer(list((await self._open(request)).subscriptions))

    async def delete_subscription(self, request: web.Request) -> web.Response:
        name, subscription = topic_of(request), request.match_info["subscription"]
        if count := await self._partitioned.count(name):
            suffix = f"/subscription/{encode_twice(decode(subscription))}"
            if not await self._owners.ask_partitions("DELETE", name, count, suffix, fine=(404,)):
                raise Refused(404, f"Subscription {decode(subscription)} not found for topic {name}")
        else:
            await (await self._open(request)).delete_subscription(decode(subscription))
        return done()

    # -------------------------------------------------------------------------------- permissions

    async def permissions(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        return json_answer(topic_grants(await self._broker.tenancy.namespace(name.namespace), name))

    async def grant(self, request: web.Request) -> web.Response:
        name, role = topic_of(request), request.match_info["role"]
        granted = permissions_from_json(await body_of(request))
        await self._broker.tenancy.change(name.namespace, lambda old: grant(old, role, granted, name))
        return done()

    async def revoke(self, request: web.Request) -> web.Response:
        name, role = topic_of(request), request.match_info["role"]
        await self._broker.tenancy.change(name.namespace, lambda old: revoke(old, role, name))
        return done()

    # ------------------------------------------------------------------------------------- refusals

    async def refuse(self, request: web.Request) -> web.StreamResponse:
        """What only persistent topics have."""
        asked = f"{request.method} {request.match_info['rest']}"
        for pattern, (status, reason) in _REFUSED:
            if pattern.fullmatch(asked):
                raise Refused(status, reason)
        return await not_there(request)
