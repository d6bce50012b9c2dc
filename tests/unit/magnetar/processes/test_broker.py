import asyncio
import contextlib
import socket
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from broker.settings.config import BrokerConfig
from magnetar.processes.broker import PortInUse, SessionExpired, start_broker
from magnetar.processes.cluster import reserved_ports
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import ConfigurationError
from tests.support.memory_bookkeeper import MemoryBookKeeper

pytestmark = pytest.mark.both_loops

CONFIG = BrokerConfig(service_port=0, web_port=0, bind_address="127.0.0.1", advertised_address="127.0.0.1")


async def start(parts: Parts, **changes: Any) -> Any:
    clock = LoopClock()
    return await start_broker(
        replace(CONFIG, **changes),
        MemoryStore(clock),
        MemoryBookKeeper().client,
        clock,
        parts,
        version="0.1.0",
        on_failure=lambda error: pytest.fail(str(error)),
    )


async def test_a_started_broker_serves_both_ports_and_stops_in_order() -> None:
    parts = Parts()
    broker = await start(parts)
    assert broker.port
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{broker.address.http_url}/admin/v2/brokers/health") as answer:
            assert await answer.text() == "ok"
        async with session.get(f"{broker.address.http_url}/admin/v2/brokers") as answer:
            assert await answer.json() == [broker.address.http_url.removeprefix("http://")]
    await parts.stop()
    for url in (broker.address.service_url, broker.address.http_url):
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))


async def test_who_comes_before_http_is_loaded_is_served_then(monkeypatch: pytest.MonkeyPatch) -> None:
    loading: list[str] = []
    early: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def load(module: str) -> None:
        loading.append(module)
        if module == "broker.admin.server":
            early.append(await asyncio.open_connection("127.0.0.1", port))
            early[0][1].write(b"GET /admin/v2/brokers/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")

    monkeypatch.setattr("magnetar.processes.broker.load_beside", load)
    with contextlib.closing(reserved_ports()) as ports:
        port, parts = next(ports), Parts()
        await start(parts, web_port=port)
        assert loading == ["broker.admin.server"]
        answer = await early[0][0].read()
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"ok")
        early[0][1].close()
        await parts.stop()


@pytest.mark.parametrize("policy", ["reconnect", "shutdown"])
async def test_what_follows_when_its_session_has_ended_is_a_setting(policy: str) -> None:
    clock, parts, failures = LoopClock(), Parts(), list[BaseException]()
    store = MemoryStore(clock)
    broker = await start_broker(
        replace(CONFIG, session_expired_policy=policy),
        store,
        MemoryBookKeeper().client,
        clock,
        parts,
        version="0.1.0",
        on_failure=failures.append,
    )
    store.expire()
    assert [type(one) for one in failures] == ([SessionExpired] if policy == "shutdown" else [])
    assert broker.port
    await parts.stop()


async def test_http_may_be_off() -> None:
    parts = Parts()
    broker = await start(parts, web_port=None)
    assert broker.address.http_url == ""
    await parts.stop()


@pytest.mark.parametrize("name", ["service_port", "web_port"])
async def test_a_port_that_is_taken_is_named_with_its_setting(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortInUse) as refused:
            await start(Parts(), **{name: port})
    assert f"127.0.0.1:{port}: it is in use" in str(refused.value)
    assert {"service_port": "brokerServicePort (--port)", "web_port": "webServicePort (--web-port)"}[name] in str(
        refused.value
    )


@pytest.mark.parametrize("name", ["service_port", "web_port"])
@pytest.mark.parametrize("port", [65536, 70000, -1])
async def test_a_number_that_is_no_port_is_refused(name: str, port: int) -> None:
    setting = {"service_port": "brokerServicePort", "web_port": "webServicePort"}[name]
    with pytest.raises(ConfigurationError, match=rf"{setting} \({port}\) must be 0 to 65535"):
        await start(Parts(), **{name: port})


@pytest.mark.parametrize("web_port", [0, None])
async def test_an_address_that_is_not_ours_is_named(web_port: int | None) -> None:
    with pytest.raises(PortInUse, match=r"host\.invalid is not an address of this machine; set bindAddress"):
        await start(Parts(), bind_address="host.invalid", web_port=web_port)
