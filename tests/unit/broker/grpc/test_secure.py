"""TLS and authentication at the gRPC port, with the client of the topic API."""

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.errors import NotAuthorized
from broker.grpc.callers import caller_of, is_secure
from broker.grpc.service import SERVICE, GrpcServer
from broker.ownership.rules import GRPC_LISTENER
from broker.security.authorization import Need, Operation
from magnetar.client.async_client import AsyncClient
from magnetar.client.errors import AccessDenied, TopicUnavailable
from magnetar_core.security.caller import Caller
from magnetar_core.security.tls.contexts import usual_context
from magnetar_core.security.tokens import sign
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName
from tests.support.tls_files import Authority
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.test_security import PROVIDER, Worlds, tls, token, worlds

pytestmark = pytest.mark.both_loops

__all__ = ["worlds"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.folder("broker", host="DNS:localhost,IP:127.0.0.1")
    made.folder("ann")
    return made


class Door:
    """The gRPC ports of a world."""

    def __init__(self, server: GrpcServer) -> None:
        self.server = server

    def client(self, *, secure: bool = False, **options: Any) -> AsyncClient:
        port = self.server.port_tls if secure else self.server.port
        return AsyncClient(f"localhost:{port}", operation_timeout_s=30, **options)


async def open_door(world: BrokerInMemory, *, secure: bool = False) -> Door:
    server = GrpcServer(world.broker)
    await server.start("127.0.0.1", 0, 0 if secure else None)
    urls = (f"grpc://localhost:{server.port}", f"grpc+ssl://localhost:{server.port_tls}" if secure else "")
    world.broker.address = world.broker.address._replace(listeners={GRPC_LISTENER: urls})
    return Door(server)


async def use(client: AsyncClient) -> bytes:
    async with client:
        await client.producer("t").send(b"x")
        async with client.consumer("t", "s", from_earliest=True) as consumer:
            message = await consumer.receive(5)
            return bytes(message.payload)


async def test_a_program_with_a_token_comes_in_and_others_do_not(worlds: Worlds) -> None:
    door = await open_door(await worlds.open())
    assert await use(door.client(token=token())) == b"x"
    assert await use(door.client(token=token)) == b"x"
    for wrong in (None, "garbage", token(exp=1), sign({"sub": "ann"}, bytes(32), "HS256")):
        with pytest.raises(AccessDenied, match="authorization"):
            await use(door.client(token=wrong))
    await door.server.stop()


async def test_a_proxy_says_for_whom_it_asks(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await worlds.open(proxy_roles=("proxy",))
    seen: list[Caller] = []

    async def note(*_: Any, **__: Any) -> list[str]:
        seen.append(caller_of(None))
        return []

    monkeypatch.setattr(world.broker, "topics_of_namespace", note)
    door = await open_door(world)

    async def ask(role: str, original: str) -> str:
        said = (("authorization", f"Bearer {token(role)}"), ("x-original-principal", original))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{door.server.port}") as channel:
            method = channel.unary_unary(
                f"/{SERVICE}/ListTopics", lambda one: one.SerializeToString(), api.ListTopicsResponse.FromString
            )
            return str((await method(api.ListTopicsRequest(), metadata=said).code()).name)

    assert await ask("proxy", "ann") == "OK"
    assert seen == [Caller("proxy", "ann")]
    assert await ask("proxy", "") == "PERMISSION_DENIED", "it does not say for whom"
    assert await ask("proxy", "proxy") == "PERMISSION_DENIED"
    assert await ask("ann", "bob") == "PERMISSION_DENIED", "it is no proxy"
    await door.server.stop()


async def test_a_call_knows_its_caller_and_whether_it_came_over_tls(
    worlds: Worlds, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await worlds.open(**{**tls(authority), "grpc_port_tls": 0}, anonymous_role="guest")
    seen: list[tuple[Caller, bool]] = []

    async def note(*_: Any, **__: Any) -> list[str]:
        seen.append((caller_of(None), is_secure()))
        return []

    monkeypatch.setattr(world.broker, "topics_of_namespace", note)
    door = await open_door(world, secure=True)
    async with (
        door.client(token=token("bob")) as bob,
        door.client(secure=True, tls_trust_certs_file=str(authority.certificate)) as guest,
    ):
        for client in (bob, guest, bob):
            await client.topics.list()
    assert seen == [(Caller("bob"), False), (Caller("guest"), True), (Caller("bob"), False)]
    await door.server.stop()


async def test_a_program_comes_in_over_tls(worlds: Worlds, authority: Authority) -> None:
    door = await open_door(await worlds.open(**{**tls(authority), "grpc_port_tls": 0}), secure=True)
    trust = {"tls_trust_certs_file": str(authority.certificate)}
    assert await use(door.client(secure=True, token=token(), **trust)) == b"x"
    assert await use(door.client(token=token())) == b"x"
    with pytest.raises(TopicUnavailable):
        await use(AsyncClient(f"localhost:{door.server.port_tls}", operation_timeout_s=0.2, token=token(), tls=True))
    await door.server.stop()


async def test_the_certificate_of_a_program_is_its_role_where_nothing_else_is(
    worlds: Worlds, authority: Authority
) -> None:
    changes = {**tls(authority), "grpc_port_tls": 0, "authentication_providers": (PROVIDER + "Tls",)}
    door = await open_door(await worlds.open(**changes), secure=True)
    folder = authority.directory / "ann"
    trust: dict[str, Any] = {"tls_trust_certs_file": str(authority.certificate)}
    own = {"tls_certificate_file": str(folder / "tls.crt"), "tls_key_file": str(folder / "tls.key")}
    assert await use(door.client(secure=True, **trust, **own)) == b"x"
    with pytest.raises(TopicUnavailable):
        await use(AsyncClient(f"localhost:{door.server.port_tls}", operation_timeout_s=0.2, **trust))
    await door.server.stop()


async def test_a_stream_ends_with_its_token_and_is_begun_anew_with_another(worlds: Worlds) -> None:
    door = await open_door(await worlds.open())
    given: list[str] = []

    def supply() -> str:
        given.append(token(exp=time.time() + 0.6))
        return given[-1]

    async with door.client(token=supply) as client:
        producer = client.producer("t")
        await producer.send(b"0")
        began = len(given)
        sent = 1
        while len(given) < began + 2:
            await producer.send(str(sent).encode())
            sent += 1
        async with client.reader("t") as reader:
            for number in range(sent):
                assert (await reader.receive(5)).payload == str(number).encode()
    await door.server.stop()


async def test_new_connections_use_changed_certificates(worlds: Worlds, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    authority.folder("broker", host="DNS:localhost")
    second = authority.folder("second", host="DNS:localhost")
    door = await open_door(await worlds.open(**tls(authority, tls_refresh_s=0.01)), secure=True)

    async def shown() -> str:
        context = usual_context(str(authority.certificate))
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection(
            "127.0.0.1", door.server.port_tls, server_hostname="localhost", ssl=context
        )
        certificate = writer.get_extra_info("peercert")
        writer.transport.abort()  # stopping waits for connections that are being closed
        return str(certificate["serialNumber"])

    first = await shown()
    for name in ("tls.crt", "tls.key"):
        (authority.directory / "broker" / name).write_bytes((second / name).read_bytes())
    async with asyncio.timeout(30):
        while await shown() == first:
            await asyncio.sleep(0.01)
    await door.server.stop()


async def received(client: AsyncClient) -> bytes:
    async with client.consumer("t", "s") as consumer:
        return bytes((await consumer.receive(5)).payload)


@pytest.mark.parametrize("operation", [Operation.PRODUCE, Operation.CONSUME])
async def test_a_right_that_is_taken_away_while_a_stream_opens_does_not_stay_in_use(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    world = await worlds.open()
    door = await open_door(world)
    asked = 0

    async def once(caller: Caller, need: Need) -> None:
        nonlocal asked
        asked += need.operation is operation
        if asked > 1:
            raise NotAuthorized("not any more")

    monkeypatch.setattr(world.broker.access, "check", once)
    async with door.client(token=token()) as client:
        work = client.producer("t").send(b"x") if operation is Operation.PRODUCE else received(client)
        with pytest.raises(AccessDenied, match="not any more"):
            await work
    assert asked == 2
    topic = await world.broker.opening.persistent(TopicName.parse("t"), create=False)
    assert not topic.producers
    assert [one for found in topic.subscriptions.values() for one in found.consumers] == []
    await door.server.stop()
