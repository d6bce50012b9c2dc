"""`/admin/v2/broker-stats/load-report` and `/admin/v2/resource-quotas`: what load managers know and are given.

    /loadbalance/resource-quota/default                       what a bundle may use, where nothing else is said
    /loadbalance/resource-quota/<tenant>/<namespace>/<range>  what one bundle may use

Quotas are stored and given back for Apache's brokers, whose load managers use them. Ours looks at what is used.
"""

from typing import Any, Final

from aiohttp import web

from broker.admin.http import ADMIN, Refused, done, json_answer, namespace_of, object_of
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.ownership.ownership import BundleOwnership
from broker.records.json_records import parse_record, to_json
from broker.security.authorization import Operation
from broker.transfer.bundles import check_range
from broker.transfer.load_manager import LoadManager
from magnetar_core.bookkeeper.metadata.stores.store import NoNode
from magnetar_core.runtime.data.json_text import parse_json

QUOTAS: Final = "/loadbalance/resource-quota"

# What Apache's brokers assume of a bundle.
DEFAULT_QUOTA: Final[dict[str, Any]] = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100_000.0,
    "bandwidthOut": 300_000.0,
    "memory": 80.0,
    "dynamic": True,
}


class LoadApi:
    """Load reports and resource quotas."""

    def __init__(self, broker: Broker, ownership: BundleOwnership, load: LoadManager) -> None:
        self._broker = broker
        self._ownership = ownership
        self._load = load

    def add_routes(self, routes: Routes) -> None:
        routes.get(ADMIN + "/broker-stats/load-report", self.report, Operation.BROKER)
        routes.get(ADMIN + "/resource-quotas", self.default, Operation.BROKER)
        routes.post(ADMIN + "/resource-quotas", self.set_default, Operation.BROKER)
        bundle = ADMIN + "/resource-quotas/{tenant}/{namespace}/{bundle}"
        routes.get(bundle, self.get, Operation.UNLOAD_NAMESPACE)
        routes.post(bundle, self.set, Operation.UNLOAD_NAMESPACE)
        routes.delete(bundle, self.remove, Operation.UNLOAD_NAMESPACE)

    async def report(self, request: web.Request) -> web.Response:
        """The load of this broker now; nothing while `loadBalancerEnabled` is off."""
        if not self._broker.config.load_balancer:
            return done()
        load = self._load.encoded(await self._load.measure())
        return json_answer(parse_json(self._ownership.members.report_of(load)))

    async def default(self, request: web.Request) -> web.Response:
        return json_answer(await self._quota(f"{QUOTAS}/default") or DEFAULT_QUOTA)

    async def set_default(self, request: web.Request) -> web.Response:
        return await self._store(request, f"{QUOTAS}/default")

    async def get(self, request: web.Request) -> web.Response:
        quota = await self._quota(await self._path(request)) or await self._quota(f"{QUOTAS}/default")
        return json_answer(quota or DEFAULT_QUOTA)

    async def set(self, request: web.Request) -> web.Response:
        return await self._store(request, await self._path(request))

    async def remove(self, request: web.Request) -> web.Response:
        path = await self._path(request)
        try:
            await self._broker.store.delete(path)
        except NoNode:
            raise Refused(404, f"path {path} not found.") from None
        return done()

    async def _quota(self, path: str) -> dict[str, Any] | None:
        node = await self._broker.store.get(path)
        return None if node is None or not node.value else parse_record(node)

    async def _store(self, request: web.Request, path: str) -> web.Response:
        body = await object_of(request)
        quota = {**DEFAULT_QUOTA, **body}
        if quota.keys() != DEFAULT_QUOTA.keys() or not all(
            isinstance(value, bool if name == "dynamic" else int | float) for name, value in quota.items()
        ):
            raise Refused(400, f"a quota is numbers, and dynamic true or false; it has {', '.join(DEFAULT_QUOTA)}")
        await self._broker.store.put(path, to_json(quota))
        return done()

    async def _path(self, request: web.Request) -> str:
        """Raises TopicNotFound, NoSuchBundle."""
        namespace, text = namespace_of(request), request.match_info["bundle"]
        check_range((await self._broker.namespace(namespace)).bundles, text)
        return f"{QUOTAS}/{namespace}/{text}"
