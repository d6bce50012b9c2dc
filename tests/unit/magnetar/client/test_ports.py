"""What the client says of a port where something else speaks than it wants: at once, and which port it should be."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from broker.grpc.service import GrpcServer
from magnetar.client.async_client import AsyncClient
from magnetar.client.base.ports import Speaks, listen
from magnetar.client.errors import TopicUnavailable
from tests.support.tls_files import Authority
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import door

__all__ = ["door", "world"]

# Less than the time after which a client of these tests gives up by itself.
PATIENCE_S = 10.0

Answer = Callable[[bytes], bytes | None]


class Servers:
    """Servers that answer whatever comes first with given bytes; None: not at all, empty: they hang up."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._servers: list[asyncio.Server] = []

    async def open(self, answer: Answer, *, tls: bool = False) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            said = answer(await reader.read(1_000))
            if said is None:
                await reader.read()
            writer.write(said or b"")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=self._context if tls else None)
        self._servers.append(server)
        return f"localhost:{server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        for server in self._servers:
            server.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.folder("broker", host="DNS:localhost,IP:127.0.0.1")
    return made


@pytest.fixture
async def servers(authority: Authority) -> AsyncIterator[Servers]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    folder = authority.directory / "broker"
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    made = Servers(context)
    yield made
    made.close()


async def said_of(address: str, **options: Any) -> str:
    async with AsyncClient(address, operation_timeout_s=60, **options) as client, asyncio.timeout(PATIENCE_S):
        with pytest.raises(TopicUnavailable) as caught:
            await client.topics.list()
        return str(caught.value)


async def test_a_port_of_http(servers: Servers) -> None:
    for tls in (False, True):
        address = await servers.open(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", tls=tls)
        said = await said_of(address, tls=tls)
        assert f"{address} speaks HTTP" in said
        assert "6648 of a standalone" in said


async def test_the_binary_port(world: BrokerInMemory) -> None:
    address = f"localhost:{world.url.rpartition(':')[2]}"
    for tls in (False, True):
        said = await said_of(address, tls=tls)
        assert f"{address} speaks Pulsar's binary protocol" in said
        assert "pulsar.Client" in said


async def test_a_port_of_something_else(servers: Servers) -> None:
    assert "does not speak gRPC; the topic API" in await said_of(await servers.open(lambda _: b""))
    assert "(it answers b'220 mail" in await said_of(await servers.open(lambda _: b"220 mail.example ESMTP\r\n"))


async def test_a_port_with_tls_and_a_client_without(servers: Servers) -> None:
    assert "speaks TLS, and this client does not: give it tls=True" in await said_of(
        await servers.open(lambda _: b"", tls=True)
    )


async def test_a_port_without_tls_and_a_client_with(door: GrpcServer) -> None:
    assert "speaks gRPC without TLS" in await said_of(f"localhost:{door.port}", tls=True)


async def test_a_certificate_that_is_not_trusted(servers: Servers, authority: Authority, tmp_path: Any) -> None:
    address = await servers.open(lambda _: b"", tls=True)
    other = Authority(tmp_path)
    assert "its certificate is not trusted" in await said_of(address, tls_trust_certs_file=str(other.certificate))
    said = await said_of(address, tls_trust_certs_file=str(authority.certificate))
    assert "speaks TLS, and no gRPC (pulsar+ssl" in said, "it is trusted, and something else is wrong"


async def test_of_several_addresses_one_that_is_right_will_do(servers: Servers, door: GrpcServer) -> None:
    wrong = [await servers.open(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") for _ in range(2)]
    async with AsyncClient([*wrong, f"localhost:{door.port}"], operation_timeout_s=10) as client:
        assert await client.topics.list() == []
    said = await said_of(",".join(wrong))
    assert all(f"{address} speaks HTTP" in said for address in wrong)


async def test_where_nobody_listens_it_is_tried_until_the_limit() -> None:
    async with AsyncClient("localhost:1", operation_timeout_s=0.1) as client:
        with pytest.raises(TopicUnavailable, match=r"localhost:1 cannot be reached: the connection is refused"):
            await client.topics.list()


async def test_a_server_that_says_nothing_may_be_ours(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.client.base.ports.ANSWER_S", 0.02)
    monkeypatch.setattr("magnetar.client.base.ports.CONNECT_S", 30.0)
    monkeypatch.setattr("magnetar.client.brokers.UNHEARD_S", 0.01)
    address = await servers.open(lambda _: None)
    assert (await listen(address)).kind is Speaks.SILENT
    async with AsyncClient(address, operation_timeout_s=0.2) as client:
        with pytest.raises(TopicUnavailable, match=r"does not answer.*tried for 0\.2 s"):
            await client.topics.list()


async def test_a_port_that_was_reached_is_not_asked_again(door: GrpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    async def note(address: str, *_: Any) -> Any:
        asked.append(address)

    monkeypatch.setattr("magnetar.client.brokers.listen", note)
    async with AsyncClient(f"localhost:{door.port}", operation_timeout_s=0.3) as client:
        await client.topics.list()
        await door.stop()
        with pytest.raises(TopicUnavailable):
            await client.topics.list()
    assert asked == []
