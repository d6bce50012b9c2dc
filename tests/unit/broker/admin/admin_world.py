"""Brokers with their HTTP, on ledgers in memory and one metadata tree."""

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import aiohttp
from yarl import URL

from broker.admin.server import AdminServer
from broker.broker import Broker
from broker.names import Bundles
from broker.ownership.ownership import BundleOwnership
from broker.security.doors import open_doors
from broker.tenancy.changes import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.unit.broker.conftest import CONFIG

R = TypeVar("R")

VERSION = "0.1.0"


class Answer(NamedTuple):
    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def reason(self) -> str:
        reason: str = self.json["reason"]
        return reason


class Side:
    """One broker."""

    def __init__(self, broker: Broker, ownership: BundleOwnership, store: MemoryStore, admin: AdminServer) -> None:
        self.broker = broker
        self.admin = admin
        self.ownership = ownership
        self.store = store
        self.load = admin.load

    @property
    def id(self) -> str:
        return self.ownership.broker_id

    @property
    def http_url(self) -> str:
        return f"http://{self.id}"

    @property
    def url(self) -> str:
        return self.broker.address.service_url


class AdminWorld:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock)
        self.bookkeeper = MemoryBookKeeper()

    async def open(self) -> None:
        self._session = await self._stack.enter_async_context(aiohttp.ClientSession())

    async def side(self, **changes: Any) -> Side:
        """Another broker of the cluster."""
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        secure = None
        if "tls_certificate" in changes or "tls_key_store" in changes:
            secure = socket.socket()
            secure.bind(("127.0.0.1", 0))
            changes["web_port_tls"] = secure.getsockname()[1]
        config = replace(CONFIG, web_port=port, metadata_store_url="memory:lab", **changes)
        store = self.store.session()
        await initialise_cluster(store, config)

        async def bundles_of(namespace: str) -> Bundles:
            return await broker.bundles_of(namespace)

        async def bundles_now(namespace: str) -> Bundles:
            return await broker.bundles_now(namespace)

        ownership = BundleOwnership(
            store,
            self.clock,
            bundles_of=bundles_of,
            bundles_now=bundles_now,
            version=VERSION,
            cluster=config.cluster_name,
            knows_domains=lambda: broker.config.failure_domains,
        )
        doors = open_doors(config, self.clock)
        broker = Broker(config, store, self.bookkeeper.client, self.clock, ownership=ownership, doors=doors)
        await broker.start()
        self._stack.push_async_callback(ownership.stop)
        self._stack.push_async_callback(broker.close)
        await ownership.start(f"127.0.0.1:{port}", broker.address)
        admin = AdminServer(broker, ownership, version=VERSION)
        await admin.start(listening, secure)
        self._stack.push_async_callback(admin.stop)
        return Side(broker, ownership, store, admin)

    async def spread(self, sides: Sequence[Side], namespace: str = "public/default") -> None:
        """Give each of *sides* some of the namespace's bundles. Left alone, brokers that use different shares of their
        machine, or that are asked all at once, may leave one of them without any."""
        bundles = await sides[0].broker.bundles_of(namespace)
        for number, bundle in enumerate(bundles.ranges):
            assert await sides[number % len(sides)].ownership.keeper.acquire(f"{namespace}/{bundle}")
        assert all(side.ownership.owned_bundles for side in sides)

    async def call(
        self,
        side: Side,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        follow: bool = False,
        **more: str,
    ) -> Answer:
        """One call; *body* is sent as JSON, *data* as it is; *more* headers have `_` for `-`."""
        if body is not None:
            data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        url = URL(side.http_url + path, encoded=True)
        async with self._session.request(method, url, data=data, headers=headers, allow_redirects=follow) as answer:
            return Answer(answer.status, await answer.text(), dict(answer.headers))

    async def run(self, scenario: Callable[..., R], *arguments: Any) -> R:
        """Run a client's blocking code beside the brokers."""
        return await asyncio.to_thread(scenario, *arguments)
