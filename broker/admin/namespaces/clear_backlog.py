"""`…/namespaces/{tenant}/{namespace}/clearBacklog` and `…/unsubscribe`: subscriptions of all topics of a namespace.

Rules:

1. All topics that are stored count, open or not. Apache's brokers only look at those that are open.
2. A topic without the subscription that is named has nothing to do. Topics of the system are left alone.
3. The call for a namespace is made of one call for each bundle that has topics, at the bundle's owner.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from broker.admin.deputies import encode_twice
from broker.admin.http import ADMIN, Refused, done, namespace_of
from broker.admin.owners import Owners
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.errors import TopicNotFound
from broker.ownership.ownership import BundleOwnership
from broker.security.authorization import Operation
from broker.topic.topic import Topic
from magnetar_core.topics.topic_name import TopicName, decode


class BacklogApi:
    """Backlogs and subscriptions of whole namespaces and bundles."""

    def __init__(self, broker: Broker, ownership: BundleOwnership, owners: Owners) -> None:
        self._broker = broker
        self._ownership = ownership
        self._owners = owners

    def add_routes(self, routes: Routes) -> None:
        namespace = ADMIN + "/namespaces/{tenant}/{namespace}"
        for path in (namespace, namespace + "/{bundle}"):
            routes.post(path + "/clearBacklog", self.clear, Operation.CLEAR_BACKLOG)
            routes.post(path + "/clearBacklog/{subscription}", self.clear, Operation.CLEAR_BACKLOG)
            routes.post(path + "/unsubscribe/{subscription}", self.unsubscribe, Operation.UNSUBSCRIBE_NAMESPACE)

    async def clear(self, request: web.Request) -> web.Response:
        """Pass over all messages, for one subscription or all; consumers stay."""
        subscription = _subscription(request)

        async def clear(topic: Topic) -> None:
            for name in [subscription] if subscription is not None else list(topic.subscriptions):
                if name in topic.subscriptions:
                    await topic.clear_backlog(name)

        return await self._everywhere(request, "clearBacklog", clear)

    async def unsubscribe(self, request: web.Request) -> web.Response:
        """Remove a subscription; refused (412) where it has consumers."""
        name = _subscription(request)
        assert name is not None, "the route names a subscription"

        async def remove(topic: Topic) -> None:
            if name in topic.subscriptions:
                await topic.delete_subscription(name)

        return await self._everywhere(request, "unsubscribe", remove)

    async def _everywhere(
        self, request: web.Request, call: str, work: Callable[[Topic], Awaitable[None]]
    ) -> web.Response:
        namespace, wanted_bundle = namespace_of(request), request.match_info.get("bundle")
        by_bundle = await self._topics(namespace)
        if wanted_bundle is None:
            name = _subscription(request)
            suffix = "" if name is None else f"/{encode_twice(name)}"
            for bundle, topics in by_bundle.items():  # rule 3
                base = await self._owners.url_of(topics[0])
                await self._owners.ask("POST", f"{base}{ADMIN}/namespaces/{namespace}/{bundle}/{call}{suffix}", bundle)
            return done()
        if wanted_bundle not in (await self._broker.namespace(namespace)).bundles.ranges:
            raise Refused(412, f"Invalid bundle range {wanted_bundle}")
        topics = by_bundle.get(wanted_bundle, [])
        if topics:
            await self._owners.redirect_unless_here(request, topics[0])
        for topic_name in topics:
            try:
                topic = await self._broker.opening.stored_topic(topic_name)
            except TopicNotFound:  # deleted meanwhile
                continue
            await work(topic)
        return done()

    async def _topics(self, namespace: str) -> dict[str, list[TopicName]]:
        """The namespace's topics by the range of their bundle (rules 1 and 2). Raises TopicNotFound."""
        bundles = (await self._broker.namespace(namespace)).bundles
        topics: dict[str, list[TopicName]] = {}
        for stored in sorted(await self._broker.ledgers.list(namespace)):
            name = TopicName.of_managed_ledger(stored)
            if not name.is_system:
                topics.setdefault(bundles.bundle_of(name).rpartition("/")[2], []).append(name)
        return topics


def _subscription(request: web.Request) -> str | None:
    """Clients encode the name of a subscription twice; the path has been decoded once."""
    name = request.match_info.get("subscription")
    return None if name is None else decode(name)
