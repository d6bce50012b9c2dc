"""`/admin/v2/resourcegroups`: rates that all topics of some namespaces have together on a broker."""

from aiohttp import web

from broker.admin.http import ADMIN, done, json_answer
from broker.admin.namespaces.namespace_policies import given_value
from broker.admin.rights import Routes
from broker.security.authorization import Operation
from broker.tenancy.changes import Tenancy


class ResourceGroupsApi:
    """Records of resource groups. Namespaces are put into them by `NamespacePoliciesApi`."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy

    def add_routes(self, routes: Routes) -> None:
        group = ADMIN + "/resourcegroups/{group}"
        routes.get(ADMIN + "/resourcegroups", self.list, Operation.RESOURCE_GROUPS)
        routes.get(group, self.get, Operation.RESOURCE_GROUPS)
        routes.put(group, self.put, Operation.RESOURCE_GROUPS)
        routes.delete(group, self.delete, Operation.RESOURCE_GROUPS)

    async def list(self, request: web.Request) -> web.Response:
        return json_answer(await self._tenancy.resource_groups())

    async def get(self, request: web.Request) -> web.Response:
        return json_answer(await self._tenancy.resource_group(request.match_info["group"]))

    async def put(self, request: web.Request) -> web.Response:
        """Create or change, as Apache's tool does both."""
        await self._tenancy.put_resource_group(request.match_info["group"], await given_value(request))
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        await self._tenancy.delete_resource_group(request.match_info["group"])
        return done()
