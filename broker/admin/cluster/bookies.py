"""`/admin/v2/bookies`: the bookies of the cluster, and in which racks they stand."""

from typing import Any

from aiohttp import web

from broker.admin.http import ADMIN, Refused, as_object, body_of, done, json_answer
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.security.authorization import Operation
from magnetar_core.bookkeeper.metadata.bookies.rack_records import entry_of, normal_rack
from magnetar_core.bookkeeper.metadata.bookies.racks import RackRecords

# Where the brokers' ledgers are: they use no other root.
_COOKIES = "/ledgers/cookies"


class BookiesApi:
    """The bookies of the cluster, and the node `/bookies`."""

    def __init__(self, broker: Broker) -> None:
        self._store = broker.store
        self._racks = RackRecords(broker.store)
        self._is_rackaware = broker.config.bookkeeper_rackaware
        self._is_regionaware = broker.config.bookkeeper_regionaware

    def add_routes(self, routes: Routes) -> None:
        racks = ADMIN + "/bookies/racks-info"
        routes.get(ADMIN + "/bookies/all", self.all, Operation.BOOKIES)
        routes.get(racks, self.racks, Operation.BOOKIES)
        routes.get(racks + "/{bookie}", self.rack, Operation.BOOKIES)
        routes.post(racks + "/{bookie}", self.set_rack, Operation.BOOKIES)
        routes.delete(racks + "/{bookie}", self.delete_rack, Operation.BOOKIES)

    async def all(self, request: web.Request) -> web.Response:
        """The bookies that have a cookie, as Apache's broker answers: also those that are away."""
        bookies = await self._store.children(_COOKIES)
        return json_answer({"bookies": [{"bookieId": bookie} for bookie in bookies]})

    async def racks(self, request: web.Request) -> web.Response:
        groups = await self._racks.read() or {}
        return json_answer(
            {group: {bookie: _shown(entry) for bookie, entry in bookies.items()} for group, bookies in groups.items()}
        )

    async def rack(self, request: web.Request) -> web.Response:
        bookie = request.match_info["bookie"]
        entry = entry_of(await self._racks.read() or {}, bookie)
        if entry is None:
            raise _not_found(bookie)
        return json_answer(_shown(entry))

    async def set_rack(self, request: web.Request) -> web.Response:
        group = request.query.get("group")
        if not group:
            raise Refused(412, "Bookie 'group' parameters is missing")
        placement = as_object(await body_of(request))
        rack, hostname = placement.get("rack"), placement.get("hostname")
        if not isinstance(rack, str) or normal_rack(rack) is None:
            raise Refused(412, "Bookie 'rack' parameter is invalid: it is the name of a rack, for example /rack-1")
        if not isinstance(hostname, str | None):
            raise Refused(400, "hostname is a text")
        if self._is_rackaware and rack.strip("/").count("/") != int(self._is_regionaware):
            raise Refused(
                412,
                "Bookie 'rack' parameter is invalid, When `RackawareEnsemblePlacementPolicy` is enabled, the rack name "
                "is not allowed to contain slash (`/`) except for the beginning and end of the rack name. When "
                "`RegionawareEnsemblePlacementPolicy` is enabled, the rack name can only contain one slash (`/`) "
                "except for the beginning and end of the rack name.",
            )
        entry = {"rack": rack, "hostname": hostname}
        await self._racks.put(group, request.match_info["bookie"], _shown(entry))
        return done()

    async def delete_rack(self, request: web.Request) -> web.Response:
        bookie = request.match_info["bookie"]
        if not await self._racks.remove(bookie):
            raise _not_found(bookie)
        return done()


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry without members that are null, as Apache writes JSON."""
    return {name: value for name, value in entry.items() if value is not None}


def _not_found(bookie: str) -> Refused:
    return Refused(404, f"Bookie address not found: {bookie}")
