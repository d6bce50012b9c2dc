"""The number of hostile inputs of each kind, and the seed from which they are drawn, so that a run can be repeated.

MAGNETAR_ABUSE_INPUTS   of each kind (5,000 in `make abuse`)
MAGNETAR_ABUSE_SEED     the day, unless it is given
MAGNETAR_ABUSE_RESULTS  where the run writes its numbers (out/abuse.json in `make abuse`)

The servers and the victim, who publishes all the time, end with the last of these tests.
"""

import asyncio
import datetime
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from tests.abuse import roles
from tests.abuse.actions import THEIRS, owner, rest
from tests.abuse.kinds import Run
from tests.abuse.roles import NAMESPACE, PARTED, PARTITIONS, SUPER_USER, TOPIC, Doors, token_of
from tests.abuse.world import Bystanders, Server, Victim

SETTINGS = {"MAGNETAR_ABUSE_INPUTS": "150"}


def pytest_configure() -> None:
    """The day's seed, once for all workers."""
    os.environ.setdefault("MAGNETAR_ABUSE_SEED", str(datetime.datetime.now(datetime.UTC).date().toordinal()))
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of the clients; that of the servers is their own affair, so once is enough."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_report_header() -> str:
    return " ".join(f"{name}={os.environ[name]}" for name in ("MAGNETAR_ABUSE_SEED", *SETTINGS))


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests: what an input leaves behind meets the inputs that follow."""
    made = Server(tmp_path_factory.mktemp("abuse"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
async def bystanders(server: Server) -> AsyncIterator[Bystanders]:
    made = Bystanders(server)
    await made.start()
    yield made
    made.close()


@pytest.fixture(scope="package")
def numbers() -> Iterator[Run]:
    made = Run()
    yield made
    if path := os.environ.get("MAGNETAR_ABUSE_RESULTS"):
        made.write(Path(path), os.environ["MAGNETAR_ABUSE_SEED"])


# As many as a system gives a process without being asked for more.
DESCRIPTORS = 1_024


@pytest.fixture(scope="package")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two brokers with authorization, what belongs to each role, and a victim at another tenant."""
    made = Server(tmp_path_factory.mktemp("guarded"), guarded=True, descriptors=DESCRIPTORS)
    try:
        made.start()
        asyncio.run(prepare(made))
        yield made
    finally:
        made.stop()


async def prepare(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        doors = Doors(server.ports, session)

        async def make(method: str, path: str, body: Any = None) -> None:
            answer = await doors.call(SUPER_USER, method, f"/admin/v2/{path}", body)
            assert answer.status in (200, 204, 409), f"{method} {path}: {answer}"

        for tenant, admins in (("shop", ["boss"]), ("quiet", [])):
            await make("PUT", f"tenants/{tenant}", {"adminRoles": admins, "allowedClusters": ["standalone"]})
        for namespace in (NAMESPACE, *roles.MORE_NAMESPACES):
            await make("PUT", f"namespaces/{namespace}", {"bundles": {"numBundles": 8}})
            await make("POST", f"namespaces/{namespace}/permissions/producer", ["produce"])
            await make("POST", f"namespaces/{namespace}/permissions/consumer", ["consume"])
        await make("PUT", "namespaces/quiet/n1")
        await make("POST", "namespaces/quiet/n1/permissions/victim", ["produce", "consume"])
        await make("PUT", f"persistent/{TOPIC.partition('://')[2]}")
        await make("PUT", f"persistent/{PARTED.partition('://')[2]}/partitions", PARTITIONS)
        for topic in (TOPIC, PARTED):
            await make("PUT", f"persistent/{topic.partition('://')[2]}/subscription/s1")
        theirs = rest(THEIRS).removeprefix("/admin/v2/")
        for path in (theirs, f"{theirs}/subscription/theirs"):
            await make("PUT", path)
        await make("POST", "namespaces/shop/theirs/permissions/subscription/theirs", ["somebody"])


async def port_of(server: Server, topic: str) -> int:
    """The binary port of the broker that serves *topic*."""
    async with aiohttp.ClientSession() as session:
        made = Doors(server.ports, session), Doors(server.ports["others"][0], session)
        return int((await owner(made, topic)).ports["binary"])


@pytest.fixture(scope="package")
def victim(guarded_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    made = Victim(guarded_server, tmp_path_factory.mktemp("victim"))
    topic = "persistent://quiet/n1/t"
    made.start(asyncio.run(port_of(guarded_server, topic)), token_of("victim"), topic)
    yield made
    made.stop()


@pytest.fixture
async def doors(guarded_server: Server) -> AsyncIterator[tuple[Doors, Doors]]:
    """Of both brokers."""
    timeout = aiohttp.ClientTimeout(total=roles.PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield Doors(guarded_server.ports, session), Doors(guarded_server.ports["others"][0], session)
