"""What a broker shows of itself when another asks whether it lives."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from broker.ownership import probing
from broker.ownership.probing import Prober, Sign
from broker.ownership.rules import BrokerAddress
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import parse_frame
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.tasks import Tasks
from tests.support.tls_files import Authority
from tests.unit.broker.conftest import BrokerInMemory

pytestmark = pytest.mark.both_loops

Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


class Probes:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.tasks = Tasks("probing")
        self.prober = Prober(LoopClock(), self.tasks)

    async def listening(self, serve: Served, context: ssl.SSLContext | None = None) -> int:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        self._stack.callback(server.close)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def held(self, *, listens: bool) -> int:
        """A port whose connections nobody takes up; not *listens*: it refuses them."""
        held = self._stack.enter_context(socket.socket())
        held.bind(("127.0.0.1", 0))
        if listens:
            held.listen()
        port: int = held.getsockname()[1]
        return port

    async def sign(self, port: int, scheme: str = "pulsar") -> Sign:
        return await self.prober.sign(address(port, scheme))


def address(port: int, scheme: str = "pulsar") -> BrokerAddress:
    url = f"{scheme}://127.0.0.1:{port}"
    return BrokerAddress("", url) if scheme == "pulsar+ssl" else BrokerAddress(url)


@pytest.fixture
async def probes() -> AsyncIterator[Probes]:
    async with AsyncExitStack() as stack:
        made = Probes(stack)
        yield made
        await made.tasks.cancel()


async def test_a_broker_is_asked_with_a_ping_and_any_answer_is_one(probes: Probes) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        asked.append(await reader.readexactly(size))
        writer.write(b"?")

    assert await probes.sign(await probes.listening(serve)) is Sign.ANSWERS
    (frame,) = asked
    assert parse_frame(memoryview(frame))[0].type == wire.BaseCommand.PING


async def test_one_that_ends_the_connection_lives(probes: Probes) -> None:
    assert await probes.sign(await probes.listening(lambda _, writer: writer.close())) is Sign.ANSWERS


async def test_one_that_ended_while_it_was_asked_refuses(probes: Probes) -> None:
    def end(_: object, writer: asyncio.StreamWriter) -> None:
        server.close()
        writer.transport.abort()

    server = await asyncio.start_server(end, "127.0.0.1", 0)
    assert await probes.sign(server.sockets[0].getsockname()[1]) is Sign.REFUSES


async def test_one_that_takes_connections_and_says_nothing_hangs(
    probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "ANSWER_S", 0.05)
    assert await probes.sign(probes.held(listens=True)) is Sign.HANGS
    assert await probes.sign(probes.held(listens=True), "pulsar+ssl") is Sign.HANGS


async def test_nobody_at_a_port_refuses_and_a_name_that_leads_nowhere_is_away(probes: Probes) -> None:
    assert await probes.sign(probes.held(listens=False)) is Sign.REFUSES
    assert await probes.prober.sign(BrokerAddress("nonsense")) is Sign.AWAY


async def test_a_machine_that_does_not_answer_is_away(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(probing, "CONNECT_S", 0.02)
    monkeypatch.setattr(asyncio, "open_connection", nothing)
    assert await probes.sign(1) is Sign.AWAY


async def test_at_a_port_with_tls_the_handshake_is_the_answer_whoever_it_is(probes: Probes, tmp_path: Path) -> None:
    folder = Authority(tmp_path / "ca").folder("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    port = await probes.listening(lambda _, writer: writer.close(), context)
    assert await probes.sign(port, "pulsar+ssl") is Sign.ANSWERS

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"no TLS here")

    plain = await probes.listening(refuse)
    assert await probes.sign(plain, "pulsar+ssl") is Sign.ANSWERS


async def test_those_who_ask_at_the_same_time_and_a_moment_later_ask_once(
    probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "ANSWER_S", 0.05)
    taken = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        await asyncio.sleep(1)
        writer.close()

    port = await probes.listening(serve)
    assert await asyncio.gather(*(probes.sign(port) for _ in range(50))) == [Sign.HANGS] * 50
    assert await probes.sign(port) is Sign.HANGS
    assert taken == 1
    probes.prober.forget(address(port))
    assert await probes.sign(port) is Sign.HANGS
    assert taken == 2


async def test_a_broker_answers_before_anybody_has_said_who_he_is(world: BrokerInMemory, probes: Probes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.broker.port)
    writer.write(probing._PING)
    size = int.from_bytes(await reader.readexactly(4), "big")
    assert parse_frame(memoryview(await reader.readexactly(size)))[0].type == wire.BaseCommand.PONG
    writer.close()
    assert await probes.sign(world.broker.port) is Sign.ANSWERS


async def test_a_process_is_gone_when_nobody_has_its_two_ports(probes: Probes) -> None:
    def at(native: int, web: int | None) -> BrokerAddress:
        web_url = "" if web is None else f"http://127.0.0.1:{web}"
        return BrokerAddress(f"pulsar://127.0.0.1:{native}", http_url=web_url)

    refuses, other, hangs = probes.held(listens=False), probes.held(listens=False), probes.held(listens=True)
    assert await probes.prober.is_gone(at(refuses, other))
    assert not await probes.prober.is_gone(at(refuses, hangs))
    assert not await probes.prober.is_gone(at(hangs, refuses))
    assert not await probes.prober.is_gone(at(refuses, None)), "one port alone may be closed by itself"


async def test_what_was_seen_long_ago_is_forgotten(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "KEPT_MAX", 2)
    monkeypatch.setattr(probing, "HANGS_VALID_S", 0.0)
    for _ in range(5):
        assert await probes.sign(probes.held(listens=False)) is Sign.REFUSES
    assert probes.prober.kept <= 2
