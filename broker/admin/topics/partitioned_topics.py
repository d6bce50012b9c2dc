"""`…/{topic}/partitions`, and calls about all partitions of a topic together."""

from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web

from broker.admin.bodies import topic_properties_from_json
from broker.admin.deputies import encode_twice
from broker.admin.http import (
    ADMIN,
    DELETE_ROUNDS,
    Refused,
    body_of,
    done,
    is_forced,
    json_answer,
    namespace_of,
    topic_of,
    with_system_topics,
)
from broker.admin.numbers.stats import StatsOptions, sum_stats
from broker.admin.owners import Owners
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.errors import TopicNotFound
from broker.policies import values
from broker.records.json_records import RecordInUse
from broker.security.authorization import Operation
from magnetar_core.topics.topic_name import NON_PERSISTENT, PERSISTENT, TopicName
from managed_ledger.compacted.entry import COMPACTION_CURSOR

_BEGINNING: Final = {"ledgerId": -1, "entryId": -1}


class PartitionedTopicsApi:
    """Partitioned topics; calls about the partitions are forwarded to their owners."""

    def __init__(self, broker: Broker, owners: Owners) -> None:
        self._broker = broker
        self._partitioned = broker.partitioned
        self._owners = owners

    def add_routes(self, routes: Routes) -> None:
        namespace = f"{ADMIN}/{{domain:{PERSISTENT}|{NON_PERSISTENT}}}/{{tenant}}/{{namespace}}"
        topic = namespace + "/{topic}"
        routes.get(namespace + "/partitioned", self.list, Operation.GET_TOPICS)
        routes.get(topic + "/partitions", self.get, Operation.LOOKUP)
        routes.put(topic + "/partitions", self.create, Operation.CREATE_TOPIC)
        routes.post(topic + "/partitions", self.update, Operation.CREATE_TOPIC)
        routes.delete(topic + "/partitions", self.delete, Operation.DELETE_TOPIC)
        routes.post(topic + "/createMissedPartitions", self.create_missed, Operation.CREATE_TOPIC)
        routes.get(topic + "/partitioned-stats", self.stats, Operation.GET_STATS)
        routes.get(topic + "/partitioned-internalStats", self.internal_stats, Operation.GET_STATS)

    async def list(self, request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        await self._broker.namespace(namespace)
        names = await self._partitioned.names(namespace, request.match_info["domain"])
        shows_all = with_system_topics(request)
        return json_answer([name for name in names if shows_all or not TopicName.parse(name).is_system])

    async def get(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        create = request.query.get("checkAllowAutoCreation") == "true"
        count = await self._broker.partitions(name, create=create)
        answer: dict[str, Any] = {"partitions": count, "deleted": False}
        if count and (properties := await self._partitioned.properties(name)):
            answer["properties"] = properties
        return json_answer(answer)

    async def create(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        await self._broker.namespace(name.namespace)
        count = await _wanted_count(request, self._broker.config.partitions_max)
        body = await body_of(request)
        properties = topic_properties_from_json(body.get("properties") if isinstance(body, dict) else None)
        if self._broker.non_persistent.get(name) is not None:
            raise Refused(409, "This topic already exists")
        await self._broker.creation.check_new(name, count)
        await self._partitioned.create(name, count, properties)
        return done()

    async def create_missed(self, request: web.Request) -> web.Response:
        await self._partitioned.make_missed(topic_of(request))
        return done()

    async def update(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        count = await _wanted_count(request, self._broker.config.partitions_max)
        former_count = await self._partitioned.count(name)
        if not former_count:
            raise Refused(409, f"Topic {name} is not the partitioned topic.")
        await self._broker.creation.check_room_for(name, range(former_count, count))
        subscriptions = await self._subscriptions(name) if name.is_persistent and count > former_count else {}
        if subscriptions:  # first: clients may come to a partition, and publish there, as soon as the record counts it
            await self._partitioned.make_ahead(name, count)
            await self._subscribe(map(name.with_partition, range(former_count, count)), subscriptions)
        await self._partitioned.grow(name, count)
        return done()

    async def _subscriptions(self, name: TopicName) -> dict[str, Any]:
        """The durable subscriptions of the first partition, as its statistics show them. Raises Refused."""
        answers = await self._owners.ask_partitions("GET", name, 1, "/stats", fine=(404,))
        return {
            subscription: members
            for stats in answers.values()
            for subscription, members in stats["subscriptions"].items()
            if members["isDurable"] and subscription != COMPACTION_CURSOR
        }

    async def _subscribe(self, partitions: Iterable[TopicName], subscriptions: dict[str, Any]) -> None:
        """Make these subscriptions in new partitions: what is published there before their consumers know of the
        partitions is kept for them, as by Apache's brokers. Raises Refused."""
        for partition in partitions:
            for subscription, members in subscriptions.items():
                path = f"{partition.rest_path}/subscription/{encode_twice(subscription)}"
                query = f"replicated={str(members['isReplicated']).lower()}"
                body = {**_BEGINNING, "properties": members["subscriptionProperties"]}
                try:
                    url = f"{await self._owners.url_of(partition)}{ADMIN}/{path}?{query}"
                    await self._owners.ask("PUT", url, str(partition), body)
                except Refused as error:
                    if error.status != 409:  # a consumer was faster
                        raise

    async def delete(self, request: web.Request) -> web.Response:
        name, force = topic_of(request), is_forced(request)
        if not await self._partitioned.count(name) and await self._broker.ledgers.exists(name.managed_ledger_name):
            raise Refused(409, f"{name} is a non-partitioned topic; delete it as such (DELETE without /partitions)")
        count = await self._known_count(name, f"Topic {name} not found.")
        suffix = f"?force={str(force).lower()}"
        for rounds_left in reversed(range(DELETE_ROUNDS if force else 1)):
            await self._owners.ask_partitions("DELETE", name, count, suffix, fine=(404,))
            try:
                await self._broker.deleting.delete_partitioned(name)
                break
            except RecordInUse:  # a connected producer made a partition again while others were deleted
                if not rounds_left:
                    raise
        return done()

    async def stats(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        count = await self._known_count(name, f"Partitioned topic {name} not found")
        suffix = f"/stats?{StatsOptions.from_query(request.query).query}"
        answers = await self._owners.ask_partitions("GET", name, count, suffix, fine=(404,))
        total = sum_stats(
            {partition.full: stats for partition, stats in answers.items()},
            count,
            per_partition=request.query.get("perPartition", "true") != "false",
            persistent=name.is_persistent,
        )
        return json_answer(total)

    async def internal_stats(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        count = await self._known_count(name, f"Partitioned topic {name} not found")
        answers = await self._owners.ask_partitions("GET", name, count, "/internalStats", fine=(404,))
        return json_answer(
            {
                "metadata": {"partitions": count, "deleted": False},
                "partitions": {partition.full: stats for partition, stats in answers.items()},
            }
        )

    async def _known_count(self, name: TopicName, missing: str) -> int:
        """How many partitions the topic has. Raises TopicNotFound with the text *missing*."""
        count = await self._partitioned.count(name)
        if not count:
            raise TopicNotFound(missing)
        return count


async def _wanted_count(request: web.Request, count_max: int) -> int:
    """How many partitions the request asks for; *count_max*: how many there may be. Raises Refused (400, 406)."""
    body = await body_of(request)
    try:
        count = values.whole(body.get("partitions") if isinstance(body, dict) else body)
    except values.NotAValue as error:
        raise Refused(400, f"the number of partitions: {error}") from None
    if count < 1:
        raise Refused(406, "Number of partitions should be more than 0")
    if count > count_max:
        raise Refused(406, f"Number of partitions should be less than or equal to {count_max}")
    return count
