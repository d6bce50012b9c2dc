"""`/admin/v2/persistent/{tenant}/{namespace}/{topic}`: topics without partitions, and single partitions."""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from broker.admin.bodies import message_id_json, topic_properties_from_json
from broker.admin.http import (
    ADMIN,
    Refused,
    body_of,
    done,
    is_forced,
    json_answer,
    namespace_of,
    topic_of,
    with_system_topics,
)
from broker.admin.numbers.stats import StatsOptions, topic_stats
from broker.admin.owners import Owners
from broker.admin.rights import Routes
from broker.admin.topics.internal_stats import internal_stats
from broker.broker import Broker
from broker.errors import TopicNotFound, TopicUnreadable
from broker.names import parse_topic
from broker.policies.permissions import grant, permissions_from_json, revoke, topic_grants
from broker.security.authorization import Operation
from broker.topic.compaction.compactor import CompactionStatus
from broker.transfer.bundles import check_range
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.position import LATEST, Position


class TopicsApi:
    """Topics as brokers serve them."""

    def __init__(self, broker: Broker, owners: Owners, broker_id: Callable[[], str]) -> None:
        self._broker = broker
        self._partitioned = broker.partitioned
        self._owners = owners
        self._registry = broker.schemas
        self._broker_id = broker_id

    def add_routes(self, routes: Routes) -> None:
        routes.get(ADMIN + "/persistent/{tenant}/{namespace}", self.list, Operation.GET_TOPICS)
        topic = ADMIN + "/persistent/{tenant}/{namespace}/{topic}"
        routes.put(topic, self.create, Operation.CREATE_TOPIC)
        routes.delete(topic, self.delete, Operation.DELETE_TOPIC)
        routes.get(topic + "/stats", self.stats, Operation.GET_STATS)
        routes.get(topic + "/internalStats", self.internal_stats, Operation.GET_STATS)
        routes.get(topic + "/properties", self.properties, Operation.GET_METADATA)
        routes.put(topic + "/properties", self.update_properties, Operation.UPDATE_METADATA)
        routes.delete(topic + "/properties", self.delete_property, Operation.UPDATE_METADATA)
        routes.get(topic + "/messageid/{timestamp}", self.message_id_at, Operation.PEEK_MESSAGES)
        routes.get(topic + "/lastMessageId", self.last_message_id, Operation.PEEK_MESSAGES)
        routes.get(topic + "/permissions", self.permissions, Operation.TOPIC_PERMISSIONS)
        routes.post(topic + "/permissions/{role}", self.grant, Operation.TOPIC_PERMISSIONS)
        routes.delete(topic + "/permissions/{role}", self.revoke, Operation.TOPIC_PERMISSIONS)
        routes.put(topic + "/unload", self.unload, Operation.UNLOAD)
        routes.post(topic + "/terminate", self.terminate, Operation.TERMINATE)
        routes.post(topic + "/terminate/partitions", self.terminate_partitions, Operation.TERMINATE)
        routes.post(topic + "/trim", self.trim, Operation.TRIM)
        routes.put(topic + "/compaction", self.compact, Operation.COMPACT)
        routes.get(topic + "/compaction", self.compaction, Operation.COMPACT)
        routes.get(topic + "/offload", self.offloading, Operation.OFFLOAD)

    async def list(self, request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        await self._broker.namespace(namespace)
        names = await self._broker.topics_of_namespace(
            namespace, persistent=True, non_persistent=False, system=with_system_topics(request)
        )
        if bundle := request.query.get("bundle"):
            bundles = await self._broker.bundles_of(namespace)
            check_range(bundles, bundle)
            names = [name for name in names if bundles.range_of(parse_topic(name)) == bundle]
        return json_answer(sorted(names))

    async def create(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        properties = topic_properties_from_json(await body_of(request))
        await self._broker.namespace(name.namespace)
        await self._broker.creation.check_partition(name)
        if await self._partitioned.count(name):
            raise Refused(409, "This topic already exists")
        await self._owners.redirect_unless_here(request, name)
        if await self._broker.ledgers.exists(name.managed_ledger_name):
            raise Refused(409, "This topic already exists")
        topic = await self._broker.opening.create_topic(name)
        if properties:
            await topic.ledger.set_properties({**topic.ledger.properties, **properties})
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        if await self._partitioned.count(name):
            raise Refused(409, f"{name} is a partitioned topic, use the partitioned delete")
        if not await self._broker.ledgers.exists(name.managed_ledger_name):
            raise TopicNotFound(f"Topic {name} not found")
        force = is_forced(request)
        await self._owners.redirect_unless_here(request, name)
        try:
            topic = await self._broker.opening.stored_topic(name)
        except TopicUnreadable as error:
            if not force:
                raise Refused(500, f"{error}; it can only be deleted by force") from error
        else:
            if topic.is_in_use and not force:
                raise Refused(412, f"Topic {name} has connected producers or consumers; use force")
        # Subscriptions without consumers do not prevent this, unlike the deletion of inactive topics.
        await self._broker.deleting.delete_topic(name, force=True)
        return done()

    async def stats(self, request: web.Request) -> web.Response:
        topic = await self._owners.loaded(request)
        return json_answer(await topic_stats(topic, self._broker_id(), StatsOptions.from_query(request.query)))

    async def internal_stats(self, request: web.Request) -> web.Response:
        topic = await self._owners.loaded(request)
        schemas = await self._registry.ledgers(topic.name.schema_id)
        with_metadata = request.query.get("metadata", "false").lower() == "true"
        return json_answer(await internal_stats(topic, schemas, self._broker.store, with_metadata=with_metadata))

    async def properties(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        if await self._partitioned.count(name):
            return json_answer(await self._partitioned.properties(name))
        return json_answer(dict((await self._owners.loaded(request)).ledger.properties))

    async def update_properties(self, request: web.Request) -> web.Response:
        properties = topic_properties_from_json(await body_of(request))
        return await self._change_properties(request, lambda old: {**old, **properties})

    async def delete_property(self, request: web.Request) -> web.Response:
        key = request.query.get("key", "")
        return await self._change_properties(request, lambda old: {k: v for k, v in old.items() if k != key})

    async def _change_properties(
        self, request: web.Request, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> web.Response:
        name = topic_of(request)
        if await self._partitioned.count(name):
            await self._partitioned.change_properties(name, change)
        else:
            ledger = (await self._owners.loaded(request)).ledger
            await ledger.set_properties(change(dict(ledger.properties)))
        return done()

    async def permissions(self, request: web.Request) -> web.Response:
        name = await self._existing(request)
        return json_answer(topic_grants(await self._broker.tenancy.namespace(name.namespace), name))

    async def grant(self, request: web.Request) -> web.Response:
        role, granted = request.match_info["role"], permissions_from_json(await body_of(request))
        name = await self._existing(request)
        await self._broker.tenancy.change(name.namespace, lambda old: grant(old, role, granted, name))
        return done()

    async def revoke(self, request: web.Request) -> web.Response:
        role = request.match_info["role"]
        name = await self._existing(request)
        await self._broker.tenancy.change(name.namespace, lambda old: revoke(old, role, name))
        return done()

    async def _existing(self, request: web.Request) -> TopicName:
        """The topic that the path names, partitioned or not. Raises TopicNotFound."""
        name = topic_of(request)
        if await self._broker.ledgers.exists(name.managed_ledger_name) or await self._partitioned.count(name):
            return name
        raise TopicNotFound(f"Topic {name} not found")

    async def message_id_at(self, request: web.Request) -> web.Response:
        """The first message that was published at a time or later; where the next one will be if there is none."""
        topic = await self._owners.loaded(request)
        position = await topic.position_at_ms(int(request.match_info["timestamp"]))
        if position == LATEST:
            position = topic.ledger.ledgers.next_position(topic.ledger.ledgers.last_confirmed)
        return json_answer(message_id_json(position, topic.name.partition))

    async def last_message_id(self, request: web.Request) -> web.Response:
        topic = await self._owners.loaded(request)
        position, batch_index = await topic.last_message()
        answer = message_id_json(position, topic.name.partition, batch_index)
        if batch_index >= 0:
            answer |= {"outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
        return json_answer(answer)

    async def unload(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        if count := await self._partitioned.count(name):
            await self._owners.ask_partitions("PUT", name, count, "/unload", fine=(404,))
            return done()
        topic = await self._owners.loaded(request)
        await self._broker.opening.unload(topic.name)
        return done()

    async def terminate(self, request: web.Request) -> web.Response:
        """Terminate a topic; answers the id of its last message."""
        if await self._partitioned.count(topic_of(request)):
            raise Refused(405, "Termination of a partitioned topic is not allowed")
        topic = await self._owners.loaded(request)
        return json_answer(message_id_json(await topic.terminate(), partition=-1))

    async def terminate_partitions(self, request: web.Request) -> web.Response:
        """Terminate all partitions of a topic; answers the last message id of each, by its number."""
        name = topic_of(request)
        count = await self._partitioned.count(name)
        if not count:
            raise Refused(
                405,
                "Termination of a non-partitioned topic is not allowed using partitioned-terminate, please use "
                "terminate commands",
            )
        answers = await self._owners.ask_partitions("POST", name, count, "/terminate")
        return json_answer({str(partition.partition): last for partition, last in answers.items()})

    async def trim(self, request: web.Request) -> web.Response:
        """Delete the consumed ledgers that retention does not keep, now."""
        name = topic_of(request)
        count = await self._partitioned.count(name)
        if count:
            await self._owners.ask_partitions("POST", name, count, "/trim")
        else:
            await (await self._owners.loaded(request)).trim()
        return web.Response(status=200)

    async def compact(self, request: web.Request) -> web.Response:
        """Begin a compaction; of all partitions, if the topic has some."""
        name = topic_of(request)
        partitions = await self._partitioned.count(name)
        if partitions:
            await self._owners.ask_partitions("PUT", name, partitions, "/compaction")
            return done()
        topic = await self._owners.loaded(request)
        if not topic.compactor.start():
            raise Refused(409, f"A compaction of {name} is under way")
        return done()

    async def compaction(self, request: web.Request) -> web.Response:
        """What became of the last compaction on this broker; of one that runs, how far it is."""
        topic = await self._owners.loaded(request)
        facts = topic.compactor.facts
        answer: dict[str, Any] = {"status": facts.status.value, "lastError": facts.last_error}
        if facts.status is CompactionStatus.RUNNING:  # Apache's brokers show nothing of it
            answer |= {"messagesLookedAt": facts.looked_at, "entriesInTopic": topic.ledger.ledgers.entries_total}
        return json_answer(answer)

    async def offloading(self, request: web.Request) -> web.Response:
        """What became of the last offloading; it is never run here."""
        await self._owners.loaded(request)  # refuses a topic that does not exist, redirects to the broker that owns it
        nothing = message_id_json(Position(-1, -1), -1)
        return json_answer({"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": nothing})
