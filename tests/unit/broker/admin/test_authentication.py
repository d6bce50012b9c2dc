"""Who may ask over HTTP at all: tokens, passwords, client certificates; and brokers that ask each other."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from broker.admin.http import caller_of
from broker.admin.rights import Routes
from broker.admin.server import AdminServer
from broker.security.authorization import Operation
from broker.security.broker_client import BrokerClient
from broker.security.doors import port_context
from broker.settings.groups.broker_client import CLIENT_PLUGINS
from magnetar_core.security.basic import apr1
from magnetar_core.security.caller import Caller
from magnetar_core.security.tls.contexts import usual_context
from magnetar_core.security.tokens import sign
from tests.support.tls_files import Authority
from tests.unit.broker.admin.admin_world import AdminWorld, Side

SECRET = bytes(range(32))
PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
TOKEN_PLUGIN = next(iter(CLIENT_PLUGINS))
SECURE: dict[str, Any] = {
    "authentication_enabled": True,
    "authentication_providers": (PROVIDER + "Token", PROVIDER + "Basic"),
    "token_secret_key": "data:;base64," + base64.b64encode(SECRET).decode(),
    "basic_users": base64.b64encode(f"ann:{apr1(b'pw', b'salt')}".encode()).decode(),
}
CLUSTERS = "/admin/v2/clusters"


def bearer(role: str = "ann", **claims: Any) -> str:
    return "Bearer " + sign({"sub": role, **claims}, SECRET, "HS256")


def basic(pair: str) -> str:
    return "Basic " + base64.b64encode(pair.encode()).decode()


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Caller]:
    """The callers of the requests that came through."""
    found: list[Caller] = []
    whole = AdminServer.__init__

    def with_note(self: AdminServer, *arguments: Any, **named: Any) -> None:
        whole(self, *arguments, **named)

        class Note:
            def add_routes(self, routes: Routes) -> None:
                routes.get("/note", self.note, Operation.PROBE)

            async def note(self, request: web.Request) -> web.Response:
                found.append(caller_of(request))
                return web.Response()

        self._subjects = (Note(), *self._subjects)  # type: ignore[assignment]

    monkeypatch.setattr(AdminServer, "__init__", with_note)
    return found


async def test_who_shows_nothing_is_answered_401_whatever_is_asked(world: AdminWorld) -> None:
    side = await world.side(**SECURE)
    for method, path in (("GET", CLUSTERS), ("PUT", CLUSTERS + "/x"), ("GET", "/nowhere"), ("DELETE", "/admin/v2/%2e")):
        answer = await world.call(side, method, path)
        assert answer.status == 401
        assert answer.json["message"] == "Authentication required"
        assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")


async def test_valid_credentials_are_answered_and_others_are_not(world: AdminWorld) -> None:
    side = await world.side(**SECURE)
    for shown in (bearer(), basic("ann:pw")):
        assert (await world.call(side, "GET", CLUSTERS, Authorization=shown)).status == 200
    for wrong in (bearer(exp=1), "Bearer x", "Bearer", basic("ann:wrong"), basic("nobody:pw"), "Basic !", "Digest x"):
        assert (await world.call(side, "GET", CLUSTERS, Authorization=wrong)).status == 401


async def test_with_an_anonymous_role_only_wrong_credentials_are_refused(seen: list[Caller], world: AdminWorld) -> None:
    side = await world.side(**SECURE, anonymous_role="guest")
    assert (await world.call(side, "GET", "/note")).status == 200
    assert (await world.call(side, "GET", "/note", Authorization=bearer())).status == 200
    assert (await world.call(side, "GET", "/note", Authorization=bearer(exp=1))).status == 401
    assert seen == [Caller("guest"), Caller("ann")]


async def test_a_proxy_names_the_one_it_asks_for(seen: list[Caller], world: AdminWorld) -> None:
    side = await world.side(**SECURE, proxy_roles=("proxy",))
    found = await world.call(side, "GET", "/note", Authorization=bearer("proxy"), X_Original_Principal="bob")
    assert (found.status, seen) == (200, [Caller("proxy", "bob")])
    assert (await world.call(side, "GET", "/note", Authorization=bearer("proxy"))).status == 403
    assert (await world.call(side, "GET", "/note", Authorization=bearer(), X_Original_Principal="bob")).status == 403


async def test_metrics_are_open_unless_they_are_closed_and_the_status_always_is(world: AdminWorld) -> None:
    side = await world.side(**SECURE)
    assert (await world.call(side, "GET", "/metrics/")).status == 200
    closed = await world.side(**SECURE, authenticate_metrics=True)
    assert (await world.call(closed, "GET", "/metrics")).status == 401
    assert (await world.call(closed, "GET", "/metrics", Authorization=bearer())).status == 200
    assert (await world.call(closed, "GET", "/status.html")).status == 200


async def test_the_metrics_count_who_came_in_and_who_did_not(world: AdminWorld) -> None:
    side = await world.side(**SECURE)
    for shown in (bearer(), bearer(exp=1), basic("ann:wrong")):
        await world.call(side, "GET", CLUSTERS, Authorization=shown)
    await world.call(side, "GET", CLUSTERS)
    lines = (await world.call(side, "GET", "/metrics")).text.splitlines()
    for line in (
        'pulsar_authentication_success_total{auth_method="token"} 1.0',
        'pulsar_authentication_failures_total{auth_method="token"} 1.0',
        'pulsar_authentication_failures_total{auth_method="basic"} 1.0',
        'pulsar_authentication_failures_total{auth_method="anonymous"} 1.0',
        f'pulsar_active_connections{{cluster="{side.broker.config.cluster_name}"}} 0.0',
    ):
        assert line in lines


async def test_secrets_are_hidden_in_the_settings(world: AdminWorld) -> None:
    side = await world.side(
        **SECURE, broker_client_plugin=TOKEN_PLUGIN, broker_client_parameters="token:" + bearer().split()[1]
    )
    path = "/admin/v2/brokers/configuration/runtime"
    found = (await world.call(side, "GET", path, Authorization=bearer())).json
    for name in ("tokenSecretKey", "basicAuthConf", "brokerClientAuthenticationParameters"):
        assert found[name] == "*****"
    for text in (SECURE["token_secret_key"], SECURE["basic_users"], bearer().split()[1]):
        assert text not in str(found)


async def test_brokers_ask_each_other_as_themselves(world: AdminWorld) -> None:
    own = {"broker_client_plugin": TOKEN_PLUGIN, "broker_client_parameters": "token:" + bearer("broker").split()[1]}
    sides = [await world.side(**SECURE, **own) for _ in range(2)]
    await world.spread(sides)
    topic = "/admin/v2/persistent/public/default/t"
    assert (await world.call(sides[0], "PUT", topic + "/partitions", 8, Authorization=bearer())).status == 204
    for side in sides:
        found = await world.call(side, "GET", topic + "/partitioned-stats", Authorization=bearer())
        assert found.status == 200, found.text


# ---------------------------------------------------------------------------------------- HTTPS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.folder("broker", host="DNS:localhost,IP:127.0.0.1")
    made.folder("ann")
    return made


def tls(authority: Authority) -> dict[str, Any]:
    folder = authority.directory / "broker"
    return {
        "tls_certificate": str(folder / "tls.crt"),
        "tls_key": str(folder / "tls.key"),
        "tls_trusted": str(authority.certificate),
    }


def context(authority: Authority, folder: Path | None = None) -> ssl.SSLContext:
    made = usual_context(str(authority.certificate))
    if folder is not None:
        made.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return made


async def get(side: Side, path: str, trust: ssl.SSLContext, **options: Any) -> tuple[int, dict[str, str]]:
    url = f"https://127.0.0.1:{side.broker.config.web_port_tls}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=trust, **options) as answer:
        await answer.read()
        return answer.status, dict(answer.headers)


async def test_a_client_certificate_is_shown_over_https(
    seen: list[Caller], world: AdminWorld, authority: Authority
) -> None:
    providers = (PROVIDER + "Tls", PROVIDER + "Token")
    side = await world.side(**{**SECURE, **tls(authority), "authentication_providers": providers})
    assert (await get(side, "/note", context(authority, authority.directory / "ann")))[0] == 200
    assert seen == [Caller("ann")]
    assert (await get(side, "/note", context(authority)))[0] == 401
    assert (await get(side, "/note", context(authority), headers={"Authorization": bearer("bob")}))[0] == 200
    assert (await world.call(side, "GET", "/note")).status == 401


async def test_https_and_requests_to_brokers_have_protocols_and_suites_of_their_own(
    world: AdminWorld, authority: Authority
) -> None:
    suite = "ECDHE-ECDSA-AES256-GCM-SHA384"
    side = await world.side(
        **tls(authority), tls_protocols=("TLSv1.3",), web_tls_protocols=("TLSv1.2",), web_tls_ciphers=(suite,),
        broker_client_tls=True, broker_client_trusted=str(authority.certificate),
        broker_client_protocols=("TLSv1.2",),
    )  # fmt: skip
    shown = []
    for files in (side.broker.config.port_tls, side.broker.config.web_tls):
        assert files is not None
        made = port_context(side.broker.config)(files)
        shown.append((made.minimum_version.name, made.maximum_version.name))
    assert shown == [("TLSv1_3", "TLSv1_3"), ("TLSv1_2", "TLSv1_2")]
    _, writer = await asyncio.open_connection("127.0.0.1", side.broker.config.web_port_tls, ssl=context(authority))
    assert writer.get_extra_info("cipher")[0] == suite
    writer.close()
    only_new = context(authority)
    only_new.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(side, "/status.html", only_new)
    client = BrokerClient(side.broker.config, world.clock).context
    assert isinstance(client, ssl.SSLContext)
    assert client.maximum_version is ssl.TLSVersion.TLSv1_2


async def test_a_redirect_to_another_broker_keeps_https(world: AdminWorld, authority: Authority) -> None:
    sides = [await world.side(**tls(authority)) for _ in range(2)]
    topic = "/admin/v2/persistent/public/default/t"
    assert (await world.call(sides[0], "PUT", topic, follow=True)).status == 204
    found = [await get(side, topic + "/stats", context(authority), allow_redirects=False) for side in sides]
    statuses = sorted(status for status, _ in found)
    assert statuses == [200, 307]
    ((_, headers),) = [one for one in found if one[0] == 307]
    assert headers["Location"].startswith("https://")


async def test_brokers_ask_each_other_over_tls(world: AdminWorld, authority: Authority) -> None:
    changes = {**tls(authority), "broker_client_tls": True, "broker_client_trusted": str(authority.certificate)}
    sides = [await world.side(**changes) for _ in range(2)]
    topic = "/admin/v2/persistent/public/default/t"
    assert (await world.call(sides[0], "PUT", topic + "/partitions", 8)).status == 204
    for side in sides:
        assert (await get(side, topic + "/partitioned-stats", context(authority)))[0] == 200


@pytest.mark.parametrize("is_limited", [False, True])
async def test_who_asks_for_another_is_refused_whether_or_not_requests_are_counted(
    world: AdminWorld, is_limited: bool
) -> None:
    side = await world.side(**SECURE, http_requests_limited=is_limited, http_requests_per_s=1_000.0)
    answer = await world.call(
        side, "GET", "/admin/v2/clusters", Authorization=bearer(), X_Original_Principal="somebody"
    )
    assert (answer.status, answer.reason) == (403, "Invalid roles.")
