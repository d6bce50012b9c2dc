"""The management interface over small bookies, and a client that compares every answer with the OpenAPI document."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web
from jsonschema import Draft202012Validator
from yarl import URL

from autorecovery.admin.calls import PREFIX, Call
from autorecovery.admin.server import ManagementServer, root_application
from autorecovery.config import AutoRecoveryConfig
from bookie.disks.cookie import Cookie
from magnetar.processes.management import start_management
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import BookieServiceInfo, bookie_endpoint, http_endpoint
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, State
from magnetar_core.bookkeeper.metadata.bookies.register import BookieRegistration
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, instance_id
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.runtime.http.server import HttpServer
from magnetar_core.runtime.tasks import Parts
from tests.support.bookie_admin_world import socket_on_a_free_port
from tests.support.bookie_world import ledger_metadata
from tests.unit.autorecovery.test_node import CLIENT, Nodes, nodes_over
from tests.unit.broker.admin.admin_world import Answer

ROOT: Final = "/ledgers"
JSON: Final = {"Content-Type": "application/json"}


def strict(schema: Any) -> Any:
    """*schema*, whose objects have no members but those that it tells of."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema and schema.get("title") != "Refusal":
        found.setdefault("additionalProperties", False)
    return found


class World:
    """One server, and the cluster that it manages."""

    def __init__(self, nodes: Nodes, server: ManagementServer, url: str, session: aiohttp.ClientSession) -> None:
        self.nodes = nodes
        self.cluster = nodes.cluster
        self.store = nodes.cluster.store
        self.server = server
        self.url = url
        self.marks = MarkBoard(self.store, ROOT)
        self.states = BookieStates(self.store, ROOT)
        self._session = session
        self._components = strict(json.loads(json.dumps(server.document["components"])))
        self.exercised: set[tuple[str, int]] = set()
        """(name of the call, status) of every answer that was compared."""

    async def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, *, raw: bool = False
    ) -> Answer:
        """One call below the prefix; *raw*: the body is bytes already, and nothing is compared."""
        data = body if raw or body is None else json.dumps(body).encode()
        sent = {**({} if body is None else JSON), **(headers or {})}
        url = URL(self.url + PREFIX + path, encoded=True)
        async with self._session.request(method, url, data=data, headers=sent) as answer:
            found = Answer(answer.status, await answer.text(), dict(answer.headers))
        if not raw and method != "HEAD":
            self._compare(method, path, found)
        return found

    async def get(self, path: str) -> Any:
        found = await self.call("GET", path)
        assert found.status == 200, found
        return found.json

    def _compare(self, method: str, path: str, answer: Answer) -> None:
        bare = path.partition("?")[0]
        call = next((one for one in self.server.calls if one.method == method and _matches(one, bare)), None)
        if call is None:
            return
        told = self.server.document["paths"][PREFIX + call.path][method.lower()]["responses"]
        assert str(answer.status) in told, f"{call.name}: {answer.status} is not told of: {answer.text}"
        response = told[str(answer.status)]
        if "$ref" in response:
            response = self._components["responses"][response["$ref"].rpartition("/")[2]]
        schema = strict(json.loads(json.dumps(response["content"]["application/json"]["schema"])))
        Draft202012Validator({**schema, "components": self._components}).validate(answer.json)
        self.exercised.add((call.name, answer.status))

    # -- what there is

    async def give_cookies(self) -> None:
        cluster = await instance_id(self.store, ROOT)
        for one in self.cluster.bookies:
            await self.store.put(cookie_path(ROOT, one), Cookie(one, ("/j",), ("/l",), cluster).encode())

    async def record(self, ledger_id: int, *ensemble: str, **changes: Any) -> LedgerMetadata:
        """A closed ledger whose entries nobody has; *changes* of its record."""
        made = ledger_metadata(**{
            "ensemble_size": len(ensemble), "write_quorum": len(ensemble), "ack_quorum": 1,
            "segments": (Segment(0, ensemble),), **changes,
        })  # fmt: skip
        await LedgerStore(self.store).create_with_id(ledger_id, made)
        return made

    async def audit(self, bookie_id: str, to: State, *reasons: tuple[int, str]) -> None:
        """The auditor's part."""
        await self.states.move(bookie_id, to, Actor.AUDITOR, "auditor", "", 7, reasons=reasons)

    @asynccontextmanager
    async def http_of(self, bookie_id: str, *, is_ours: bool, refuses: str = "") -> AsyncIterator[list[Any]]:
        """The HTTP of a bookie, which turns it; yields the bodies that it was sent."""
        bodies: list[Any] = []

        async def put(request: web.Request) -> web.Response:
            bodies.append(await request.json())
            if refuses:
                return web.Response(status=500, text=refuses)
            wanted = bodies[-1]["readOnly"]
            registration = self.cluster._registrations[bookie_id]
            await registration.set_read_only(wanted, f"operator: {bodies[-1].get('detail', '')}" if wanted else "")
            return web.json_response({"readOnly": registration.read_only})

        async def status(request: web.Request) -> web.Response:
            return web.json_response({})

        app = web.Application()
        app.router.add_put("/api/v1/bookie/state/readonly", put)
        if is_ours:
            app.router.add_get("/api/v1/magnetar/status", status)
        listening = socket_on_a_free_port()
        http = HttpServer(app)
        await http.start(listening)
        endpoints = (
            bookie_endpoint("127.0.0.1", self.cluster.bookies[bookie_id].port),
            http_endpoint("127.0.0.1", listening.getsockname()[1]),
        )
        await self.cluster._registrations.pop(bookie_id).unregister()
        registration = BookieRegistration(self.cluster._session(), ROOT, bookie_id, self.cluster.clock)
        await registration.register(BookieServiceInfo(endpoints))
        self.cluster._registrations[bookie_id] = registration
        try:
            yield bodies
        finally:
            await http.stop()


def _matches(call: Call, path: str) -> bool:
    return re.fullmatch(re.sub(r"\{[a-z]+\}", "[^/]+", call.path), path) is not None


@asynccontextmanager
async def managed(
    bookies: int = 3, *, tokens: Path | None = None, host: str = "127.0.0.1", cookies: bool = True
) -> AsyncIterator[World]:
    """*host*: where the server is told to listen; it listens on loopback all the same."""
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(nodes_over(bookies))
        parts = Parts()
        stack.push_async_callback(parts.stop)
        client = await nodes.cluster.client(CLIENT)
        server = await start_management(
            AutoRecoveryConfig(tokens_file="" if tokens is None else str(tokens)), nodes.cluster.store, client,
            nodes.cluster.clock, parts, root=ROOT, host=host, tls=None,
        )  # fmt: skip
        listening = socket_on_a_free_port()
        http = HttpServer(root_application(server.mounts()))
        await http.start(listening)
        stack.push_async_callback(http.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        world = World(nodes, server, "http://{}:{}".format(*listening.getsockname()), session)
        if cookies:
            await world.give_cookies()
        yield world
