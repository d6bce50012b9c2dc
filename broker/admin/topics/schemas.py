"""`/admin/v2/schemas`: the schemas of topics. Any broker answers; partitions share the schema of their topic."""

from typing import Final

from aiohttp import web

from broker.admin.bodies import BadJson, schema_from_json, schema_json
from broker.admin.http import ADMIN, Refused, body_of, is_forced, json_answer, topic_of
from broker.admin.rights import Routes
from broker.broker import Broker
from broker.security.authorization import Operation
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import IncompatibleSchema as RegistryRefused
from managed_ledger.schemas.compatibility import Schema, Strategy, check_valid
from managed_ledger.schemas.registry import run_fairly

NO_VERSION: Final = -1
"""What Apache's broker answers for a schema that a topic does not have."""


class SchemasApi:
    """Schemas and their versions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._registry = broker.schemas

    def add_routes(self, routes: Routes) -> None:
        topic = ADMIN + "/schemas/{tenant}/{namespace}/{topic}"
        routes.get(topic + "/schema", self.get, Operation.GET_SCHEMA)
        routes.get(topic + "/schema/{version}", self.get, Operation.GET_SCHEMA)
        routes.get(topic + "/schemas", self.list, Operation.GET_SCHEMA)
        routes.get(topic + "/metadata", self.metadata, Operation.GET_SCHEMA)
        routes.post(topic + "/schema", self.put, Operation.PUT_SCHEMA)
        routes.delete(topic + "/schema", self.delete, Operation.DELETE_SCHEMA)
        routes.post(topic + "/compatibility", self.check, Operation.DELETE_SCHEMA)
        routes.post(topic + "/version", self.version, Operation.GET_SCHEMA)

    async def get(self, request: web.Request) -> web.Response:
        name = topic_of(request)
        version = request.match_info.get("version")
        if version is not None and not (version.isascii() and version.isdigit()):
            raise Refused(404, f"{version} is not a version")
        stored = await self._registry.get(name.schema_id, None if version is None else int(version))
        if stored is None:
            raise Refused(404, "Schema not found")
        return json_answer(schema_json(stored))

    async def list(self, request: web.Request) -> web.Response:
        versions = await self._registry.versions(topic_of(request).schema_id)
        return json_answer({"getSchemaResponses": [schema_json(version) for version in versions]})

    async def metadata(self, request: web.Request) -> web.Response:
        """In which ledger each version is; nothing for a topic without a schema."""
        places = await self._registry.positions_of_versions(topic_of(request).schema_id)
        if not places:
            return web.Response(status=200)
        shown = [{"ledgerId": place.ledger_id, "entryId": place.entry_id, "version": place.version} for place in places]
        return json_answer({"info": shown[-1], "index": shown})

    async def put(self, request: web.Request) -> web.Response:
        name, schema = topic_of(request), await _posted_schema(request)
        try:
            version = await self._registry.put_if_absent(name.schema_id, schema, await self._strategy(name))
        except RegistryRefused as error:
            raise Refused(409, str(error)) from error
        return json_answer({"version": {"version": version}})

    async def check(self, request: web.Request) -> web.Response:
        name, schema = topic_of(request), await _posted_schema(request)
        strategy = await self._strategy(name)
        try:
            await self._registry.check(name.schema_id, schema, strategy, by_rule=True)
            compatible = True
        except RegistryRefused:
            compatible = False
        answer = {"schemaCompatibilityStrategy": strategy.value, "compatibility": compatible}
        return json_answer(answer, status=202)

    async def version(self, request: web.Request) -> web.Response:
        name, schema = topic_of(request), await _posted_schema(request)
        for stored in await self._registry.versions(name.schema_id):
            if stored.schema.type == schema.type and stored.schema.data == schema.data:
                return json_answer({"version": stored.version})
        return json_answer({"version": NO_VERSION})

    async def delete(self, request: web.Request) -> web.Response:
        version = await self._registry.delete(topic_of(request).schema_id, force=is_forced(request))
        if version is None:
            raise Refused(404, "Schema not found")
        return json_answer({"version": version})

    async def _strategy(self, name: TopicName) -> Strategy:
        policies = await self._broker.in_force.policies_of(name)
        return Strategy(policies.schema_strategy or self._broker.config.schema_strategy)


async def _posted_schema(request: web.Request) -> Schema:
    """The valid schema in the body. Raises Refused (422)."""
    try:
        schema = schema_from_json(await body_of(request))
        await run_fairly(check_valid, schema)
    except (BadJson, RegistryRefused) as error:
        raise Refused(422, f"Invalid schema definition data: {error}") from None
    return schema
