"""`/admin/v2/namespaces/{tenant}/{namespace}/…`: bundles are shown, unloaded, moved and split, by their owners."""

from typing import Final

from aiohttp import web

from broker.admin.deputies import as_own_work
from broker.admin.http import ADMIN, Refused, body_of, done, json_answer, namespace_of
from broker.admin.owners import Owners, moved
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.names import bundle_hash, parse_topic
from broker.ownership.ownership import BundleOwnership
from broker.ownership.splitting import ALGORITHMS, POSITIONS
from broker.security.authorization import Operation
from broker.transfer.bundles import BundleWork, check_range

# Instead of a range: the bundle with the most topics, and that with the most traffic.
LARGEST: Final = "LARGEST"
HOT: Final = "HOT"

# Positions in one request; each makes a bundle. (A namespace has `broker.settings.config.BUNDLES_MAX` bundles at most.)
POSITIONS_MAX: Final = 4_096


class BundlesApi:
    """The bundles of namespaces."""

    def __init__(self, broker: Broker, ownership: BundleOwnership, owners: Owners, work: BundleWork) -> None:
        self._broker = broker
        self._ownership = ownership
        self._owners = owners
        self._work = work

    def add_routes(self, routes: Routes) -> None:
        namespace = ADMIN + "/namespaces/{tenant}/{namespace}"
        routes.get(namespace + "/bundles", self.bundles, Operation.GET_BUNDLE)
        routes.put(namespace + "/unload", self.unload, Operation.UNLOAD_NAMESPACE)
        routes.put(namespace + "/{bundle}/unload", self.unload_bundle, Operation.UNLOAD_NAMESPACE)
        routes.put(namespace + "/{bundle}/split", self.split, Operation.UNLOAD_NAMESPACE)
        routes.get(namespace + "/{bundle}/topicHashPositions", self.positions, Operation.READ_POLICY)

    async def bundles(self, request: web.Request) -> web.Response:
        policies = await self._broker.namespace(namespace_of(request))
        texts = policies.bundles.texts
        return json_answer({"boundaries": texts, "numBundles": len(texts) - 1})

    async def unload(self, request: web.Request) -> web.Response:
        await self.unload_all(namespace_of(request))
        return done()

    async def unload_all(self, namespace: str) -> None:
        """Unload every bundle of a namespace, at whichever broker has it. Raises TopicNotFound."""
        for text in (await self._broker.namespace(namespace)).bundles.ranges:
            bundle = f"{namespace}/{text}"
            owner = await self._ownership.owner_of(bundle)
            if owner is None:
                continue
            if owner == self._ownership.address:
                await self._work.unload(bundle)
            else:
                url = f"{self._owners.web_url(owner)}{ADMIN}/namespaces/{bundle}/unload"
                with as_own_work():  # the right to delete a namespace is not the right to unload its bundles
                    await self._owners.ask("PUT", url, bundle)

    async def unload_bundle(self, request: web.Request) -> web.Response:
        """Give a bundle back, or to the broker that `destinationBroker` names."""
        bundle = await self._bundle_in_path(request)
        destination_name = request.query.get("destinationBroker", "")
        destination = None
        if destination_name:
            destination = (await self._ownership.brokers()).get(destination_name)
            if destination is None:
                raise Refused(409, "Not allowed unload namespace bundle to inactive destination broker")
            owner = await self._ownership.owner_of(bundle)
            if owner == destination:
                return done()  # given back, it would go to whichever broker is asked first
            if owner not in (None, self._ownership.address) and self._ownership.members.is_leader:
                # Apache's brokers send such a call to the leader: it must not go back to them.
                await self._work.move_from(owner, bundle, destination)
                return done()
        if not await self._is_here(request, bundle):
            if destination is not None:
                await self._work.take(bundle, destination)
        elif destination is None:
            await self._work.unload(bundle)
        else:
            await self._work.move(bundle, destination)
        return done()

    async def split(self, request: web.Request) -> web.Response:
        algorithm = request.query.get("splitAlgorithmName") or self._broker.config.split_algorithm
        if algorithm not in self._broker.config.split_algorithms:
            raise Refused(
                412,
                "Unsupported namespace bundle split algorithm, supported algorithms are "
                f"[{', '.join(self._broker.config.split_algorithms)}]",
            )
        assert algorithm in ALGORITHMS, "the settings were checked"
        positions = await body_of(request)
        if algorithm != POSITIONS:
            positions = []
        elif not positions:
            raise Refused(412, f"With {POSITIONS} split algorithm, splitBoundaries must not be empty")
        elif not _are_positions(positions):
            raise Refused(400, f"the body is a list of at most {POSITIONS_MAX} whole numbers: where the bundle is cut")
        bundle = await self._chosen(request)
        if not await self._is_here(request, bundle) and not await self._ownership.keeper.acquire(bundle):
            raise Refused(503, f"Namespace bundle {bundle} was taken by another broker a moment ago; retry")
        unload = request.query.get("unload") == "true"
        await self._work.split(bundle, algorithm, positions=positions, unload=unload)
        return done()

    async def positions(self, request: web.Request) -> web.Response:
        """Where the topics of a bundle are in its range."""
        bundle = await self._bundle_in_path(request)
        topics = await self._work.topics(bundle)
        if wanted_topics := request.query.getall("topics", []):
            named = {parse_topic(name) for name in wanted_topics}
            topics = [name for name in topics if name in named]
        namespace, _, text = bundle.rpartition("/")
        hashes = {name.full: bundle_hash(name) for name in sorted(topics, key=bundle_hash)}
        return json_answer({"namespace": namespace, "bundle": text, "topicHashPositions": hashes})

    async def _bundle_in_path(self, request: web.Request) -> str:
        """The bundle that the path names. Raises TopicNotFound, NoSuchBundle."""
        namespace, text = namespace_of(request), request.match_info["bundle"]
        check_range((await self._broker.namespace(namespace)).bundles, text)
        return f"{namespace}/{text}"

    async def _chosen(self, request: web.Request) -> str:
        """The bundle that the path names, or asks to be chosen."""
        namespace, text = namespace_of(request), request.match_info["bundle"]
        if text not in (LARGEST, HOT):
            return await self._bundle_in_path(request)
        bundles = (await self._broker.namespace(namespace)).bundles
        if text == LARGEST:
            return f"{namespace}/{await self._work.largest(namespace, bundles)}"
        return f"{namespace}/{self._work.hottest(namespace, bundles)}"

    async def _is_here(self, request: web.Request, bundle: str) -> bool:
        """True: this broker owns the bundle; False: none does. Redirects to another owner."""
        owner = await self._ownership.owner_of(bundle)
        if owner is None or owner == self._ownership.address:
            return owner is not None
        named = request.match_info["bundle"]
        path = request.rel_url.raw_path_qs.replace(f"/{named}/", f"/{bundle.rpartition('/')[2]}/", 1)
        raise moved(owner.web_url(secure=request.secure) + path)


def _are_positions(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= POSITIONS_MAX
        and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    )
