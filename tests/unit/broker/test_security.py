"""TLS and authentication at the binary port, with the official Python client and with bare frames."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

from broker.binary.admission import connection_limits
from broker.binary.server import HANDSHAKE_FRAME_BYTES
from broker.broker import Broker
from broker.security import doors as doors_module
from broker.security.doors import Doors, open_doors
from broker.tenancy.changes import initialise_cluster
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import Clock, LoopClock, Timer
from magnetar_core.security.basic import apr1
from magnetar_core.security.caller import Caller
from magnetar_core.security.tls import port as tls_port
from magnetar_core.security.tls.contexts import usual_context
from magnetar_core.security.tokens import sign
from tests.support.manual_clock import ManualClock
from tests.support.memory_managed_ledger import MemoryLedgers, MemorySchemas
from tests.support.sole_owner import SoleOwner
from tests.support.tls_files import Authority
from tests.support.waiting import eventually
from tests.unit.broker.conftest import CONFIG, BrokerInMemory
from tests.unit.broker.raw_client import RawClient

SECRET = bytes(range(32))
QUIET = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
NO_REQUEST = 2**64 - 1

SECURE = replace(
    CONFIG,
    authentication_enabled=True,
    authentication_providers=(PROVIDER + "Token", PROVIDER + "Basic"),
    token_secret_key="data:;base64," + base64.b64encode(SECRET).decode(),
    basic_users=base64.b64encode(f"ann:{apr1(b'pw', b'salt')}".encode()).decode(),
)


def token(role: str = "ann", **claims: Any) -> str:
    return sign({"sub": role, **claims}, SECRET, "HS256")


class LoginClock(LoopClock):
    """The real clock, but that a test says when credentials are looked at, and how much later it is by then."""

    PERIOD_S = 12_345

    def __init__(self) -> None:
        self._ahead_s = 0
        self._logins = ManualClock()

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_s * 1000

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        clock = self._logins if delay_s == self.PERIOD_S else LoopClock()
        return clock.call_later(delay_s, callback)

    def check_logins(self, *, later_s: int = 0) -> None:
        self._ahead_s += later_s
        self._logins.advance(self.PERIOD_S)

    def token(self, role: str = "ann") -> str:
        """One that is valid for a minute."""
        return token(role, exp=self.wall_ms() / 1000 + 60)


class Worlds:
    """Brokers with other settings, which are closed at the end."""

    def __init__(self) -> None:
        self._open: list[BrokerInMemory] = []

    async def open(self, config: Any = SECURE, *, clock: Clock | None = None, **changes: Any) -> BrokerInMemory:
        config, clock = replace(config, **changes), clock or LoopClock()
        store = MemoryStore(clock)
        await initialise_cluster(store, config)
        world = BrokerInMemory(config, store, SoleOwner(), MemoryLedgers(), MemorySchemas(), None)  # type: ignore[arg-type]
        world.broker = Broker(
            config, store, None, clock, ownership=world.ownership, ledgers=world.ledgers, schemas=world.schemas,
            doors=open_doors(config, clock),
        )  # fmt: skip
        await world.broker.start()
        self._open.append(world)
        return world

    async def close(self) -> None:
        for world in self._open:
            await world.broker.close()


@pytest.fixture
async def worlds() -> AsyncIterator[Worlds]:
    made = Worlds()
    yield made
    await made.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.folder("broker", host="DNS:localhost,IP:127.0.0.1")
    made.folder("ann")
    return made


def tls(authority: Authority, **changes: Any) -> dict[str, Any]:
    folder = authority.directory / "broker"
    return {
        "service_port_tls": 0,
        "tls_certificate": str(folder / "tls.crt"),
        "tls_key": str(folder / "tls.key"),
        "tls_trusted": str(authority.certificate),
        **changes,
    }


def use(url: str, authority: Authority | None = None, *, timeout_s: int = 5, **options: Any) -> bytes:
    """Send a message and receive it."""
    if authority is not None:
        options["tls_trust_certs_file_path"] = str(authority.certificate)
    client = pulsar.Client(url, logger=QUIET, operation_timeout_seconds=timeout_s, **options)
    try:
        consumer = client.subscribe("t", "s")
        client.create_producer("t").send(b"x")
        message = consumer.receive(5000)
        consumer.acknowledge(message)
        return bytes(message.data())
    finally:
        client.close()


async def all_refused(world: BrokerInMemory, *clients: dict[str, Any], url: str = "") -> None:
    """Each of these clients comes once, as it has no time to try again, and does not come in."""
    doors = world.broker.doors
    assert doors is not None
    before = doors.failures.total(), doors.successes.total()
    url = url or world.broker.address.service_url
    asked = (world.run(partial(use, url, timeout_s=0, **options)) for options in clients)
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(answer, pulsar.PulsarException)
    await eventually(lambda: doors.failures.total() == before[0] + len(clients))
    assert doors.successes.total() == before[1]


def callers(world: BrokerInMemory) -> list[Caller]:
    return [client._connection._client.caller for client in world.broker.server.clients if client._connection]


# ------------------------------------------------------------------------------- official client


async def test_a_client_with_a_token_comes_in_and_others_do_not(worlds: Worlds) -> None:
    world = await worlds.open()
    url = world.broker.address.service_url
    assert await world.run(lambda: use(url, authentication=pulsar.AuthenticationToken(token()))) == b"x"
    wrong = (token(exp=1), "garbage", sign({"sub": "ann"}, bytes(32), "HS256"))
    await all_refused(world, {}, *({"authentication": pulsar.AuthenticationToken(one)} for one in wrong))


async def test_a_client_with_a_password_comes_in_and_others_do_not(worlds: Worlds) -> None:
    world = await worlds.open()
    url = world.broker.address.service_url
    assert await world.run(lambda: use(url, authentication=pulsar.AuthenticationBasic("ann", "pw"))) == b"x"
    wrong = (("ann", "wrong"), ("bob", "pw"))
    await all_refused(world, *({"authentication": pulsar.AuthenticationBasic(*one)} for one in wrong))


async def test_a_client_over_tls_with_a_token_comes_in(worlds: Worlds, authority: Authority) -> None:
    world = await worlds.open(**tls(authority))
    address = world.broker.address
    assert address.service_url.startswith("pulsar://")
    assert address.service_url_tls.startswith("pulsar+ssl://")
    signed = pulsar.AuthenticationToken(token())
    for url in (address.service_url_tls, address.service_url):
        assert await world.run(lambda url=url: use(url, authority, authentication=signed)) == b"x"


async def test_tls_alone_serves_without_a_plain_port(worlds: Worlds, authority: Authority) -> None:
    world = await worlds.open(CONFIG, service_port=None, **tls(authority))
    assert world.broker.address.service_url == ""
    assert await world.run(lambda: use(world.broker.address.service_url_tls, authority)) == b"x"


@pytest.mark.both_loops
async def test_the_common_name_of_a_client_certificate_is_the_role(worlds: Worlds, authority: Authority) -> None:
    world = await worlds.open(authentication_providers=(PROVIDER + "Tls",), **tls(authority))
    folder = authority.directory / "ann"
    own = pulsar.AuthenticationTLS(str(folder / "tls.crt"), str(folder / "tls.key"))
    url = world.broker.address.service_url_tls
    seen: list[Caller] = []

    def scenario() -> None:
        client = pulsar.Client(
            url, logger=QUIET, authentication=own, tls_trust_certs_file_path=str(authority.certificate)
        )
        client.create_producer("t").send(b"x")
        seen.extend(callers(world))
        client.close()

    await world.run(scenario)
    assert set(seen) == {Caller("ann")}
    await all_refused(world, {"authority": authority}, url=url)


async def test_a_client_renews_its_token_and_goes_on(worlds: Worlds) -> None:
    clock = LoginClock()
    world = await worlds.open(clock=clock, authentication_refresh_s=LoginClock.PERIOD_S)
    doors = world.broker.doors
    assert doors is not None
    client = pulsar.Client(
        world.broker.address.service_url, logger=QUIET, authentication=pulsar.AuthenticationToken(clock.token)
    )
    producer = await world.run(lambda: client.create_producer("t"))
    connected = set(world.broker.server.clients)
    for checked in (2, 3):
        clock.check_logins(later_s=61)
        await eventually(partial(lambda expected: doors.successes["token"] == expected, checked))
        await world.run(lambda: producer.send(b"x"))
        clock.check_logins()
        await world.run(lambda: producer.send(b"x"))
    assert connected == set(world.broker.server.clients), "it is still the same connection"
    await world.run(client.close)


# --------------------------------------------------------------------------------- bare frames


async def connect(world: BrokerInMemory, method: str = "token", data: str = "", **fields: Any) -> RawClient:
    raw = await RawClient.connect(world.broker.port, introduce=False)
    raw.send(
        BaseCommand.CONNECT, client_version="raw", protocol_version=21, auth_method_name=method or None,
        auth_data=data.encode(), **fields,
    )  # fmt: skip
    return raw


async def refusal(raw: RawClient) -> tuple[int, str]:
    error = (await raw.expect(BaseCommand.ERROR)).error
    assert error.request_id == NO_REQUEST
    assert await raw.ended()
    return error.error, error.message


REFRESHING = wire.FeatureFlags(supports_auth_refresh=True)


async def test_who_shows_nothing_has_the_anonymous_role(worlds: Worlds) -> None:
    world = await worlds.open(anonymous_role="guest")
    for method, data in (("", ""), ("none", ""), ("sasl", "whatever")):
        raw = await connect(world, method, data)
        await raw.expect(BaseCommand.CONNECTED)
        assert callers(world) == [Caller("guest")]
        raw.close()
        await eventually(lambda: not world.broker.server.clients)
    assert await refusal(await connect(world, "token", "garbage")) == (
        wire.AuthenticationError,
        "Failed to authenticate",
    )


async def test_nothing_is_answered_before_the_client_is_authenticated(worlds: Worlds) -> None:
    world = await worlds.open()
    for kind, fields in (
        (BaseCommand.LOOKUP, {"topic": "t", "request_id": 1}),
        (BaseCommand.PRODUCER, {"topic": "t", "producer_id": 1, "request_id": 1}),
        (BaseCommand.AUTH_RESPONSE, {}),
    ):
        raw = await RawClient.connect(world.broker.port, introduce=False)
        raw.send(kind, **fields)
        assert await raw.ended()
    raw = await RawClient.connect(world.broker.port, introduce=False)
    raw.publish(1, 0)
    assert await raw.ended()
    raw = await connect(world, "basic", "ann:pw")
    raw.send(BaseCommand.LOOKUP, topic="t", request_id=1)
    assert await raw.ended()


async def test_a_proxy_asks_for_its_client(worlds: Worlds) -> None:
    world = await worlds.open(proxy_roles=("proxy",))
    raw = await connect(world, data=token("proxy"), original_principal="bob")
    await raw.expect(BaseCommand.CONNECTED)
    assert callers(world) == [Caller("proxy", "bob")]
    raw.close()
    for role, original in (("proxy", None), ("proxy", "proxy"), ("ann", "bob")):
        raw = await connect(world, data=token(role), original_principal=original)
        assert await refusal(raw) == (wire.AuthorizationError, "Invalid roles.")


async def test_what_a_proxys_client_showed_is_checked_where_that_is_wanted(worlds: Worlds) -> None:
    world = await worlds.open(proxy_roles=("proxy",), authenticate_original=True)
    shown = {"original_principal": "whoever", "original_auth_method": "token"}
    raw = await connect(world, data=token("proxy"), original_auth_data=token("bob"), **shown)
    await raw.expect(BaseCommand.CONNECTED)
    assert callers(world) == [Caller("proxy", "bob")]
    raw.close()
    raw = await connect(world, data=token("proxy"), original_auth_data="garbage", **shown)
    assert (await refusal(raw))[0] == wire.AuthenticationError


async def test_who_does_not_renew_expired_credentials_is_closed(worlds: Worlds) -> None:
    clock = LoginClock()
    world = await worlds.open(clock=clock, authentication_refresh_s=LoginClock.PERIOD_S)
    silent = await connect(world, data=clock.token(), feature_flags=REFRESHING)
    unable = await connect(world, data=clock.token())
    for raw in (silent, unable):
        await raw.expect(BaseCommand.CONNECTED)
        clock.check_logins()
        assert await raw.nothing_came(), "it has not expired"
    clock.check_logins(later_s=61)
    challenge = (await silent.expect(BaseCommand.AUTH_CHALLENGE)).authChallenge.challenge
    assert (challenge.auth_method_name, challenge.auth_data) == ("token", b"PulsarAuthRefresh")
    assert await unable.ended()
    assert await silent.nothing_came(), "it has time until the next check"
    clock.check_logins()
    assert await silent.ended()


@pytest.mark.parametrize("wrong", ["garbage", token("bob"), token(exp=1)])
async def test_who_renews_with_other_credentials_is_closed(worlds: Worlds, wrong: str) -> None:
    clock = LoginClock()
    world = await worlds.open(clock=clock, authentication_refresh_s=LoginClock.PERIOD_S)
    raw = await connect(world, data=clock.token(), feature_flags=REFRESHING)
    await raw.expect(BaseCommand.CONNECTED)
    clock.check_logins(later_s=61)
    await raw.expect(BaseCommand.AUTH_CHALLENGE)
    raw.send(BaseCommand.AUTH_RESPONSE, response=wire.AuthData(auth_method_name="token", auth_data=wrong.encode()))
    assert (await refusal(raw))[0] == wire.AuthenticationError


async def test_credentials_that_nobody_asked_for_end_the_connection(worlds: Worlds) -> None:
    world = await worlds.open()
    raw = await connect(world, data=token())
    await raw.expect(BaseCommand.CONNECTED)
    raw.send(BaseCommand.AUTH_RESPONSE, response=wire.AuthData(auth_method_name="token", auth_data=token().encode()))
    assert (await refusal(raw))[0] == wire.AuthenticationError


async def test_credentials_are_in_no_line_of_the_log(worlds: Worlds, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    world = await worlds.open()
    shown = token(exp=1)
    for method, data in (("token", shown), ("basic", "ann:hunter2"), ("basic", "nobody:hunter2")):
        await refusal(await connect(world, method, data))
    assert "is not authenticated" in caplog.text
    assert "hunter2" not in caplog.text
    assert shown.split(".")[1] not in caplog.text


# ------------------------------------------------------------------------------------- limits


async def test_connections_above_the_limit_are_refused_in_apaches_words(worlds: Worlds) -> None:
    world = await worlds.open(CONFIG, max_connections=2)
    held = [await RawClient.connect(world.broker.port) for _ in range(2)]
    raw = await RawClient.connect(world.broker.port, introduce=False)
    assert await refusal(raw) == (wire.NotAllowedError, "Reached the maximum number of connections")
    held[0].close()
    await eventually(lambda: len(world.broker.server.clients) == 1)
    again = await RawClient.connect(world.broker.port)
    for one in (held[1], again):
        one.close()


async def test_connections_of_one_address_above_the_limit_are_refused(worlds: Worlds) -> None:
    world = await worlds.open(CONFIG, max_connections_per_ip=1, proxy_protocol=True)
    held = await RawClient.connect(world.broker.port)
    raw = await RawClient.connect(world.broker.port, introduce=False)
    raw.send(BaseCommand.CONNECT, client_version="raw")
    code, text = await refusal(raw)
    assert (code, text) == (wire.NotAllowedError, "Reached the maximum number of connections on address 127.0.0.1")
    other = await RawClient.connect(world.broker.port, introduce=False)
    other.writer.write(b"PROXY TCP4 203.0.113.7 10.0.0.1 56324 6650\r\n")
    other.send(BaseCommand.CONNECT, client_version="raw")
    await other.expect(BaseCommand.CONNECTED)
    addresses = {client._connection.address for client in world.broker.server.clients if client._connection}
    assert "/203.0.113.7:56324" in addresses
    for one in (held, other):
        one.close()


async def test_a_malformed_header_of_a_load_balancer_ends_the_connection(worlds: Worlds) -> None:
    world = await worlds.open(CONFIG, proxy_protocol=True)
    raw = await RawClient.connect(world.broker.port, introduce=False)
    raw.writer.write(b"PROXY TCP4 nonsense\r\n")
    assert await raw.ended()


async def test_so_many_connections_may_be_unauthenticated(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.binary.server.HANDSHAKES_MAX", 2)
    assert connection_limits.HANDSHAKES_MAX > 2
    world = await worlds.open()
    admitted = await connect(world, data=token())
    await admitted.expect(BaseCommand.CONNECTED)
    strangers = [await RawClient.connect(world.broker.port, introduce=False) for _ in range(2)]
    await eventually(lambda: len(world.broker.server.clients) == 3)
    code, text = await refusal(await RawClient.connect(world.broker.port, introduce=False))
    assert (code, text.startswith("Reached the maximum")) == (wire.NotAllowedError, True)
    for one in (admitted, *strangers):
        one.close()


async def test_frames_of_the_unauthenticated_are_short_and_few(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await worlds.open()
    server = world.broker.server
    large = await RawClient.connect(world.broker.port, introduce=False)
    large.writer.write((HANDSHAKE_FRAME_BYTES + 1).to_bytes(4, "big"))
    assert await large.ended()
    monkeypatch.setattr("broker.binary.server.HANDSHAKE_BYTES_MAX", 3 * HANDSHAKE_FRAME_BYTES)
    part = HANDSHAKE_FRAME_BYTES.to_bytes(4, "big") + bytes(HANDSHAKE_FRAME_BYTES - 1)
    strangers = [await RawClient.connect(world.broker.port, introduce=False) for _ in range(2)]
    for stranger in strangers:
        stranger.writer.write(part)
    await eventually(lambda: server.handshake_bytes == 2 * len(part))
    third = await RawClient.connect(world.broker.port, introduce=False)
    third.writer.write(part)
    assert await third.ended()
    admitted = await connect(world, data=token())
    await admitted.expect(BaseCommand.CONNECTED)
    admitted.send(BaseCommand.PING)
    await admitted.expect(BaseCommand.PONG)
    admitted.writer.write((world.config.max_message_bytes).to_bytes(4, "big") + bytes(300_000))
    await eventually(lambda: server.unfinished.bytes > 300_000)
    for one in (admitted, *strangers):
        one.close()
    await eventually(lambda: (server.handshake_bytes, server.unfinished.bytes) == (0, 0))


async def test_who_is_not_authenticated_and_sends_more_than_connect_does_not_wait_with_it_for_a_turn(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await worlds.open()
    server = world.broker.server
    monkeypatch.setattr(server.share, "begin_slice", lambda: False)
    monkeypatch.setattr(server.share, "wait", lambda work: None)
    quiet, much = [await RawClient.connect(world.broker.port, introduce=False) for _ in range(2)]
    quiet.writer.write(bytes(HANDSHAKE_FRAME_BYTES))
    much.writer.write(bytes(HANDSHAKE_FRAME_BYTES + 1))
    assert await much.ended()
    assert len(server.clients) == 1
    quiet.close()


async def test_right_passwords_are_checked_once_and_only_some_are_remembered(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors_module, "REMEMBERED_MAX", 1)
    users = "".join(f"{name}:{apr1(b'pw', b'salt')}\n" for name in ("ann", "bob"))
    world = await worlds.open(basic_users=base64.b64encode(users.encode()).decode())
    doors = world.broker.doors
    assert isinstance(doors, Doors)
    for name in ("ann", "ann", "bob"):
        raw = await connect(world, "basic", f"{name}:pw")
        await raw.expect(BaseCommand.CONNECTED)
        raw.close()
    assert len(doors._remembered) == 1
    (remembered,) = doors._remembered
    assert len(remembered) == 32, "a digest, in which two letters may stand by chance"
    assert b"bob:pw" not in remembered


async def test_so_many_passwords_wait_to_be_checked(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors_module, "PASSWORD_CHECKS_WAITING_MAX", 0)
    world = await worlds.open()
    assert (await refusal(await connect(world, "basic", "ann:pw")))[0] == wire.ServiceNotReady


# ---------------------------------------------------------------------------------------- TLS


def trusting(authority: Authority) -> ssl.SSLContext:
    made = usual_context(str(authority.certificate))
    made.check_hostname = False
    return made


async def shown_certificate(port: int, authority: Authority) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(authority))
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert reader is not None
    return bytes(found)


@pytest.mark.both_loops
async def test_new_connections_use_changed_certificates(worlds: Worlds, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    authority.folder("broker", host="IP:127.0.0.1")
    second = authority.folder("second", host="IP:127.0.0.1")
    world = await worlds.open(CONFIG, service_port=None, **tls(authority, tls_refresh_s=0.01))
    first = await shown_certificate(world.broker.port, authority)
    for name in ("tls.crt", "tls.key"):
        (authority.directory / "broker" / name).write_bytes((second / name).read_bytes())

    async def is_new() -> bool:
        return await shown_certificate(world.broker.port, authority) != first

    async with asyncio.timeout(30):
        while not await is_new():
            await asyncio.sleep(0.01)


async def test_a_client_without_a_certificate_is_refused_where_one_is_demanded(
    worlds: Worlds, authority: Authority
) -> None:
    world = await worlds.open(CONFIG, service_port=None, **tls(authority, tls_client_required=True))
    url = world.broker.address.service_url_tls
    with pytest.raises(pulsar.PulsarException):
        await world.run(lambda: use(url, authority, timeout_s=0))
    await eventually(lambda: world.broker.server.handshakes_failed)
    folder = authority.directory / "ann"
    own = pulsar.AuthenticationTLS(str(folder / "tls.crt"), str(folder / "tls.key"))
    assert await world.run(lambda: use(url, authority, authentication=own)) == b"x"


async def test_clear_text_at_the_port_for_tls_ends_its_own_connection_only(
    worlds: Worlds, authority: Authority
) -> None:
    world = await worlds.open(CONFIG, service_port=None, **tls(authority))
    raw = await RawClient.connect(world.broker.port, introduce=False)
    raw.send(BaseCommand.CONNECT, client_version="raw")
    assert await raw.ended()
    assert await world.run(lambda: use(world.broker.address.service_url_tls, authority)) == b"x"


async def test_so_many_handshakes_are_under_way_and_each_has_its_time(
    worlds: Worlds, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_port, "HANDSHAKES_MAX", 2)
    world = await worlds.open(CONFIG, service_port=None, **tls(authority))
    (port,) = world.broker.server._tls_ports
    silent = [await asyncio.open_connection("127.0.0.1", world.broker.port) for _ in range(2)]
    await eventually(lambda: port.waiting == 2)
    refused = await asyncio.open_connection("127.0.0.1", world.broker.port)
    assert await ended(refused[0])
    assert port.refused == 1
    for _, writer in silent:
        writer.close()
    await eventually(lambda: not port.waiting)
    port.handshake_s = 0.05
    slow = await asyncio.open_connection("127.0.0.1", world.broker.port)
    assert await ended(slow[0])
    assert (port.waiting, port.failed) == (0, 1)
    for _, writer in (refused, slow):
        writer.close()


async def test_who_only_looks_whether_the_port_is_there_is_no_failed_handshake(
    worlds: Worlds, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    world = await worlds.open(CONFIG, service_port=None, **tls(authority))
    (port,) = world.broker.server._tls_ports
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", world.broker.port)
        await eventually(lambda: port.waiting == 1)
        writer.close()
        await eventually(lambda: port.waiting == 0)
    assert port.failed == 0
    assert "handshake" not in caplog.text


async def ended(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(30):
        try:
            return not await reader.read(1)
        except ConnectionError:
            return True


async def test_frames_over_tls_are_worked_on_in_one_call(worlds: Worlds, authority: Authority) -> None:
    world = await worlds.open(CONFIG, service_port=None, **tls(authority))
    reader, writer = await asyncio.open_connection("127.0.0.1", world.broker.port, ssl=trusting(authority))
    raw = RawClient(reader, writer)
    raw.send(BaseCommand.CONNECT, client_version="raw", protocol_version=21)
    await raw.expect(BaseCommand.CONNECTED)
    (client,) = world.broker.server.clients
    assert client._connection is not None
    counts: list[int] = []
    whole = client._connection.on_frames

    def counted(frames: list[memoryview], is_over: Callable[[], bool]) -> int:
        counts.append(whole(frames, is_over))
        return counts[-1]

    client._connection.on_frames = counted  # type: ignore[method-assign,assignment]
    writer.write(b"".join(bytes(one) for one in [ping()] * 50))
    for _ in range(50):
        await raw.expect(BaseCommand.PONG)
    assert sum(counts) == 50
    assert len(counts) < 50
    raw.close()


def ping() -> bytes:
    from broker.wire.frames import command

    return command(BaseCommand.PING)
