"""The number of hostile inputs of each kind, and the seed from which they are drawn, so that a run can be repeated.

MAGNETAR_ABUSE_INPUTS   of each kind (5,000 in `make abuse`)
MAGNETAR_ABUSE_SEED     the day, unless it is given
"""

import asyncio
import datetime
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
import uvloop

from tests.abuse.world import Bystanders, Server

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


@pytest.fixture(scope="session")
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
