"""`/admin/v2/tenants`: records of tenants."""

from aiohttp import web

from broker.admin.http import ADMIN, Refused, done, is_forced, json_answer, object_of
from broker.admin.namespaces.namespaces import NamespacesApi
from broker.admin.rights import Routes
from broker.security.authorization import Operation
from broker.settings.config import BrokerConfig
from broker.tenancy.changes import Tenancy


class TenantsApi:
    """Records of tenants."""

    def __init__(self, config: BrokerConfig, tenancy: Tenancy, namespaces: NamespacesApi) -> None:
        self._config = config
        self._tenancy = tenancy
        self._namespaces = namespaces

    def add_routes(self, routes: Routes) -> None:
        tenant = ADMIN + "/tenants/{tenant}"
        routes.get(ADMIN + "/tenants", self.list, Operation.LIST_TENANTS)
        routes.get(tenant, self.get, Operation.GET_TENANT)
        routes.put(tenant, self.create, Operation.CREATE_TENANT)
        routes.post(tenant, self.update, Operation.UPDATE_TENANT)
        routes.delete(tenant, self.delete, Operation.DELETE_TENANT)

    async def list(self, request: web.Request) -> web.Response:
        return json_answer(await self._tenancy.tenants())

    async def get(self, request: web.Request) -> web.Response:
        return json_answer(await self._tenancy.tenant(request.match_info["tenant"]))

    async def create(self, request: web.Request) -> web.Response:
        await self._tenancy.create_tenant(request.match_info["tenant"], await object_of(request))
        return done()

    async def update(self, request: web.Request) -> web.Response:
        await self._tenancy.update_tenant(request.match_info["tenant"], await object_of(request))
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        tenant = request.match_info["tenant"]
        if is_forced(request):
            if not self._config.force_delete_tenants:
                raise Refused(405, "Broker doesn't allow forced deletion of tenants")
            for namespace in await self._tenancy.namespaces(tenant):
                await self._namespaces.remove(namespace, force=True)
        await self._tenancy.delete_tenant(tenant)
        return done()
