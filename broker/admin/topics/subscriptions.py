"""`…/{topic}/subscriptions` and `…/{topic}/subscription/{subscription}`: readers of a topic, and how far they are."""

from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

from broker.admin.bodies import partition_from_json, position_from_json, properties_from_json, reset_from_json
from broker.admin.deputies import encode_twice
from broker.admin.http import ADMIN, Refused, body_of, done, is_forced, json_answer, topic_of
from broker.admin.namespaces.namespace_policies import given_value
from broker.admin.owners import Owners
from broker.admin.rights import Routes
from broker.errors import NotAllowed, SubscriptionNotFound
from broker.policies.values import truth
from broker.security.authorization import Operation
from broker.tenancy.partitions import Partitions
from broker.topic.reading.looking import batch_size_at, reset_target
from broker.topic.reading.passing import expire_up_to
from broker.topic.reading.subscription import Subscription
from broker.topic.subscriptions import check_new_name
from broker.topic.topic import Topic
from magnetar_core.topics.topic_name import decode
from managed_ledger.compacted.entry import COMPACTION_CURSOR
from managed_ledger.position import LATEST, Position


class SubscriptionsApi:
    """Subscriptions of a topic; a partitioned topic has those of all its partitions."""

    def __init__(self, partitioned: Partitions, owners: Owners, now_ms: Callable[[], int]) -> None:
        self._partitioned = partitioned
        self._owners = owners
        self._now_ms = now_ms

    def add_routes(self, routes: Routes) -> None:
        topic = ADMIN + "/persistent/{tenant}/{namespace}/{topic}"
        subscription = topic + "/subscription/{subscription}"
        routes.get(topic + "/subscriptions", self.list, Operation.GET_SUBSCRIPTIONS)
        routes.put(subscription, self.create, Operation.SUBSCRIBE)
        routes.delete(subscription, self.delete, Operation.UNSUBSCRIBE)
        routes.post(subscription + "/skip_all", self.skip_all, Operation.SKIP)
        routes.post(subscription + "/skip/{count}", self.skip, Operation.SKIP)
        routes.post(subscription + "/expireMessages/{count}", self.expire, Operation.EXPIRE_MESSAGES)
        routes.post(subscription + "/expireMessages", self.expire_up_to, Operation.EXPIRE_MESSAGES)
        routes.post(topic + "/all_subscription/expireMessages/{count}", self.expire_all, Operation.EXPIRE_ALL)
        routes.get(subscription + "/properties", self.properties, Operation.CONSUME)
        routes.put(subscription + "/properties", self.set_properties, Operation.SUBSCRIBE)
        status = subscription + "/replicatedSubscriptionStatus"
        routes.get(status, self.replicated, Operation.CONSUME)
        routes.post(status, self.set_replicated, Operation.SUBSCRIBE)
        routes.post(subscription + "/resetcursor", self.reset_to_position, Operation.RESET_CURSOR)
        routes.post(subscription + "/resetcursor/{timestamp}", self.reset_to_time, Operation.RESET_CURSOR)

    async def list(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        count = await self._partitioned.count(name)
        if count:
            answers = await self._owners.ask_partitions("GET", name, count, "/subscriptions", fine=(404,))
            return json_answer(sorted({name for names in answers.values() for name in names}))
        topic = await self._owners.loaded(request)
        compaction = [COMPACTION_CURSOR] if topic.compactor.cursor else []  # as Apache's brokers show it
        return json_answer(sorted([*topic.subscriptions, *compaction]))

    async def create(self, request: web.Request) -> web.Response:
        """A topic that is not there is made, with the partitions that policies say, where a consumer would make it."""
        body = await body_of(request)
        position = position_from_json(body) if body not in (None, "") else LATEST
        properties = properties_from_json(body.get("properties") if isinstance(body, dict) else None)
        is_replicated = request.query.get("replicated") == "true"
        query = "?replicated=true" if is_replicated else ""
        count = await self._owners.partitions(topic_of(request), create=True)
        if await self._in_partitions(request, "PUT", query, body, fine=(409,), count=count):
            return done()
        topic = await self._owners.loaded_or_created(request)
        name = _name_of(request)
        if name in topic.subscriptions:
            raise Refused(409, "Subscription already exists for topic")
        check_new_name(name)
        try:
            await topic.create_subscription(name, position, properties, is_replicated=is_replicated)
        except NotAllowed as error:  # there are too many
            raise Refused(409, str(error)) from error
        return done()

    async def properties(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        count = await self._partitioned.count(name)
        if not count:
            topic = await self._owners.loaded(request)
            return json_answer(dict(subscription_of(request, topic).properties))
        suffix = f"/subscription/{_encoded(request)}/properties"
        answers = await self._owners.ask_partitions("GET", name, count, suffix, fine=(404,))
        if not answers:
            raise SubscriptionNotFound(f"Subscription {_name_of(request)} not found for topic {name}")
        return json_answer({key: value for answer in answers.values() for key, value in answer.items()})

    async def set_properties(self, request: web.Request) -> web.Response:
        """Replace the properties of a subscription."""
        body = await body_of(request)
        properties = properties_from_json(body)
        if await self._in_partitions(request, "PUT", "/properties", properties):
            return done()
        topic = await self._owners.loaded(request)
        await topic.set_subscription_properties(subscription_of(request, topic).name, properties)
        return done()

    async def replicated(self, request: web.Request) -> web.Response:
        """Whether a subscription is to be kept in step with other clusters: by topic, or by partition."""
        name = topic_of(request)
        count = await self._partitioned.count(name)
        if not count:
            topic = await self._owners.loaded(request)
            return json_answer({topic.name.full: subscription_of(request, topic).is_replicated})
        suffix = f"/subscription/{_encoded(request)}/replicatedSubscriptionStatus"
        answers = await self._owners.ask_partitions("GET", name, count, suffix)
        return json_answer({key: value for answer in answers.values() for key, value in answer.items()})

    async def set_replicated(self, request: web.Request) -> web.Response:
        """Stored with the cursor, as Apache's brokers store it. There are no other clusters to be in step with."""
        is_replicated = truth(await given_value(request))
        if not await self._in_partitions(request, "POST", "/replicatedSubscriptionStatus", is_replicated):
            topic = await self._owners.loaded(request)
            name = subscription_of(request, topic).name
            await topic.set_subscription_replicated(name, is_replicated=is_replicated)
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        force = is_forced(request)
        if await self._in_partitions(request, "DELETE", f"?force={str(force).lower()}"):
            return done()
        topic = await self._owners.loaded(request)
        await topic.delete_subscription(subscription_of(request, topic).name, force=force)
        return done()

    async def skip_all(self, request: web.Request) -> web.Response:
        if not await self._in_partitions(request, "POST", "/skip_all"):
            topic = await self._owners.loaded(request)
            await topic.clear_backlog(subscription_of(request, topic).name)
        return done()

    async def skip(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        if await self._partitioned.count(name):
            raise Refused(405, f"{name} is partitioned: messages are skipped in one partition, name that")
        topic = await self._owners.loaded(request)
        await topic.skip(subscription_of(request, topic).name, int(request.match_info["count"]))
        return done()

    async def expire(self, request: web.Request) -> web.Response:
        """Pass over messages that are older than so many seconds."""
        age_s = int(request.match_info["count"])
        if not await self._expire_in_partitions(request, f"/subscription/{_encoded(request)}", age_s):
            topic = await self._owners.loaded(request)
            await _expire(topic, [subscription_of(request, topic).name], age_s)
        return done()

    async def expire_up_to(self, request: web.Request) -> web.Response:
        """Pass over what came before a message, and the message itself; in a batch, what came before its entry."""
        body = await body_of(request)
        target_id, name = reset_from_json(body), topic_of(request)
        if partition_from_json(body) != name.partition:
            raise Refused(412, f"the message is not of {name}: its partitionIndex is not {name.partition}")
        if await self._partitioned.count(name):
            raise Refused(405, f"{name} is partitioned: a position belongs to one partition, name that")
        topic = await self._owners.loaded(request)
        subscription = subscription_of(request, topic)
        size = await batch_size_at(topic.ledger, target_id.position) if target_id.batch_index >= 0 else 0
        target = reset_target(target_id.position, target_id.batch_index, size, is_excluded=target_id.is_excluded)
        last = target.position
        if target.ack_set:
            last = Position(last.ledger_id, last.entry_id - 1)
        if expire_up_to(topic.ledger.ledgers, subscription, last, self._now_ms()) is None:
            raise Refused(409, f"{topic.name} does not reach {last}: nothing is passed over")
        return done()

    async def expire_all(self, request: web.Request) -> web.Response:
        """The same for all subscriptions."""
        age_s = int(request.match_info["count"])
        if not await self._expire_in_partitions(request, "/all_subscription", age_s):
            topic = await self._owners.loaded(request)
            await _expire(topic, list(topic.subscriptions), age_s)
        return done()

    async def _expire_in_partitions(self, request: web.Request, path: str, age_s: int) -> bool:
        """Forward it to all partitions; False: there are none. Raises Refused if none of them has such messages, or a
        subscription of that name."""
        name = topic_of(request)
        count = await self._partitioned.count(name)
        if not count:
            return False
        suffix = f"{path}/expireMessages/{age_s}"
        # What none of them does is asked for again, to hear that the subscription is missing.
        for fine in ((404, 409), (409,)):
            if await self._owners.ask_partitions("POST", name, count, suffix, fine=fine):
                return True
        raise Refused(409, f"{name}: no partition has messages that are older than {age_s} s")

    async def reset_to_position(self, request: web.Request) -> web.Response:
        target_id = reset_from_json(await body_of(request))
        name = topic_of(request)
        if await self._partitioned.count(name):
            raise Refused(405, f"{name} is partitioned: a position belongs to one partition, name that")
        topic = await self._owners.loaded(request)
        subscription = subscription_of(request, topic)
        size = await batch_size_at(topic.ledger, target_id.position) if target_id.batch_index >= 0 else 0
        reset = reset_target(target_id.position, target_id.batch_index, size, is_excluded=target_id.is_excluded)
        await topic.seek(subscription, reset.position, reset.ack_set, size if reset.ack_set else 0)
        return done()

    async def reset_to_time(self, request: web.Request) -> web.Response:
        time_ms = int(request.match_info["timestamp"])
        if not await self._in_partitions(request, "POST", f"/resetcursor/{time_ms}"):
            topic = await self._owners.loaded(request)
            subscription = subscription_of(request, topic)
            await topic.seek(subscription, await topic.position_at_ms(time_ms, read_compacted=True))
        return done()

    async def _in_partitions(
        self,
        request: web.Request,
        method: str,
        path_suffix: str,
        body: Any = None,
        *,
        fine: tuple[int, ...] = (404,),
        count: int | None = None,
    ) -> bool:
        """Forward a call about a partitioned topic's subscription to all partitions; False: it is not partitioned.

        A partition that answers one of the statuses *fine* has nothing to do. Raises Refused if all of them answer so.
        *count*: the number of partitions, if it is known.
        """
        name = topic_of(request)
        if count is None:
            count = await self._partitioned.count(name)
        if not count:
            return False
        subscription = _name_of(request)
        suffix = f"/subscription/{_encoded(request)}{path_suffix}"
        if not await self._owners.ask_partitions(method, name, count, suffix, body, fine=fine):
            reason = "does not exist" if fine == (404,) else "exists already"
            raise Refused(fine[0], f"Subscription {subscription} {reason} in all partitions of {name}")
        return True


async def _expire(topic: Topic, names: Iterable[str], age_s: int) -> None:
    """Raises Refused (409), as Apache's brokers, if one of them had nothing to do; after all had their turn."""
    idle = [name for name in names if await topic.expire(name, age_s) is None]
    if idle:
        raise Refused(409, f"{topic.name}: subscription {idle[0]} has no message that is older than {age_s} s")


def _name_of(request: web.Request) -> str:
    """Clients encode the name of a subscription twice; the path has been decoded once."""
    return decode(request.match_info["subscription"])


def _encoded(request: web.Request) -> str:
    """The name of the subscription as it stands in paths."""
    return encode_twice(_name_of(request))


def subscription_of(request: web.Request, topic: Topic) -> Subscription:
    """The subscription that the path names. Raises SubscriptionNotFound."""
    name = _name_of(request)
    subscription = topic.subscriptions.get(name)
    if subscription is None and name == COMPACTION_CURSOR and topic.compactor.cursor:
        raise Refused(
            412,
            f"{name} is not a subscription but the cursor of the compaction of {topic.name}, which alone moves it; "
            "compact the topic, or remove its compaction threshold",
        )
    if subscription is None:
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic.name}")
    return subscription
