"""Tokens of an OpenID issuer: one that runs here, with keys that change, or with keys in a file."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from broker.errors import NotAuthenticated, NotReady
from broker.security import openid_provider
from broker.security.doors import Doors, open_doors
from broker.settings.config import BrokerConfig, load_broker_config
from broker.settings.groups.authentication import OPENID
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security import openid
from magnetar_core.security.authentication import TOKEN, Shown
from magnetar_core.security.tokens import sign
from tests.unit.broker.conftest import CONFIG
from tests.unit.broker.test_security import QUIET, SECRET, SECURE, Worlds

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
AUDIENCE = "the brokers"


def public(key: Any, key_id: str, **more: Any) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": key_id, "use": "sig", **more}


class Issuer:
    """Answers what an issuer answers, and counts how often its keys are asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.keys = [public(RSA, "one"), public(CURVE, "two")]
        self.asked = 0
        self.is_down = False
        self.runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self.document)
        app.router.add_get("/keys", self.list)
        app.router.add_post("/token", self.token)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        assert self.runner.addresses
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self.runner is not None
        await self.runner.cleanup()

    async def document(self, request: web.Request) -> web.Response:
        if self.is_down:
            return web.Response(status=503)
        return web.json_response(
            {"issuer": self.url, "jwks_uri": f"{self.url}/keys", "token_endpoint": f"{self.url}/token"}
        )

    async def list(self, request: web.Request) -> web.Response:
        self.asked += 1
        return web.json_response({"keys": self.keys})

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post() if "json" not in request.content_type else await request.json()
        assert form["client_secret"] == "secret"
        return web.json_response({"access_token": self.sign(sub=form["client_id"]), "expires_in": 3600})

    def sign(self, key: Any = RSA, key_id: str = "one", **claims: Any) -> str:
        now = int(time.time())
        told = {"iss": self.url, "sub": "ann", "aud": AUDIENCE, "iat": now, "nbf": now - 5, "exp": now + 600, **claims}
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        told = {name: value for name, value in told.items() if value is not None}
        return jwt.encode(told, key, algorithm, headers={"kid": key_id})


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    await made.start()
    yield made
    await made.stop()


def config_of(issuer: Issuer, **changes: Any) -> BrokerConfig:
    return replace(
        CONFIG,
        authentication_enabled=True,
        authentication_providers=(OPENID,),
        openid_issuers=(issuer.url,),
        openid_audiences=(AUDIENCE, "another"),
        openid_https=False,
        **changes,
    )


def doors_of(config: BrokerConfig) -> Doors:
    found = open_doors(config, LoopClock())
    assert found is not None
    return found


async def role(doors: Doors, token: str) -> str:
    identity, method = await doors.identify(Shown(TOKEN, token.encode()), "client")
    assert method == TOKEN
    return identity.role


async def test_tokens_of_an_issuer_are_taken_with_each_of_its_keys(issuer: Issuer) -> None:
    doors = doors_of(config_of(issuer))
    assert await role(doors, issuer.sign()) == "ann"
    assert await role(doors, issuer.sign(CURVE, "two", sub="bob", aud=["x", "another"])) == "bob"
    assert issuer.asked == 1, "the keys are kept"


async def test_the_role_may_stand_in_another_claim(issuer: Issuer) -> None:
    doors = doors_of(config_of(issuer, openid_claim="roles"))
    assert await role(doors, issuer.sign(roles=["first", "second"])) == "first"
    with pytest.raises(NotAuthenticated):
        await role(doors, issuer.sign())


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "others"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"exp": 1_000_000}, "has expired"),
        ({"exp": None}, "no claim exp"),
        ({"iat": None, "nbf": None}, "no claim iat and no claim nbf"),
        ({"sub": None}, "no claim sub"),
        ({"nbf": 4_000_000_000, "exp": 4_100_000_000}, "not valid yet"),
        ({"iss": "http://127.0.0.1:1"}, "not among openIDAllowedTokenIssuers"),
        ({"iss": None}, "does not say who issued it"),
    ],
)
async def test_tokens_that_are_not_valid_are_refused(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, claims: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotAuthenticated):
        await role(doors_of(config_of(issuer)), issuer.sign(**claims))
    assert why in caplog.text


async def test_a_signature_by_another_key_is_refused(issuer: Issuer) -> None:
    doors = doors_of(config_of(issuer))
    for token in (
        issuer.sign(OTHER_RSA, "one"),
        issuer.sign(RSA, "two"),
        issuer.sign(CURVE, "one"),
        jwt.encode({"iss": issuer.url, "sub": "ann", "aud": AUDIENCE}, "x" * 32, "HS256", headers={"kid": "one"}),
        "no token",
        "",
    ):
        with pytest.raises(NotAuthenticated):
            await role(doors, token)


async def test_a_list_of_keys_with_a_secret_or_strange_keys_takes_only_public_ones(issuer: Issuer) -> None:
    secret = {"kty": "oct", "k": "eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg", "kid": "secret"}
    issuer.keys = [secret, {"kty": "new"}, "text", public(RSA, "enc", use="enc"), public(RSA, "one")]  # type: ignore[list-item]
    doors = doors_of(config_of(issuer))
    assert await role(doors, issuer.sign()) == "ann"
    forged = jwt.encode({"iss": issuer.url, "sub": "ann"}, "x" * 32, "HS256", headers={"kid": "secret"})
    for token in (forged, issuer.sign(RSA, "enc")):
        with pytest.raises(NotAuthenticated):
            await role(doors, token)


async def test_a_new_key_is_fetched_and_invented_key_ids_ask_the_issuer_seldom(issuer: Issuer) -> None:
    doors = doors_of(config_of(issuer, openid_miss_s=0))
    await role(doors, issuer.sign())
    issuer.keys.append(public(OTHER_RSA, "three"))
    assert await role(doors, issuer.sign(OTHER_RSA, "three")) == "ann"
    strict = doors_of(config_of(issuer))
    await role(strict, issuer.sign())
    before = issuer.asked
    for number in range(20):
        with pytest.raises(NotAuthenticated):
            await role(strict, issuer.sign(key_id=f"invented {number}"))
    assert issuer.asked == before


async def test_while_an_issuer_is_away_clients_come_again_and_known_keys_go_on(issuer: Issuer) -> None:
    issuer.is_down = True
    doors = doors_of(config_of(issuer, openid_miss_s=0))
    with pytest.raises(NotReady, match="answers 503"):
        await role(doors, issuer.sign())
    issuer.is_down = False
    assert await role(doors, issuer.sign()) == "ann"
    issuer.is_down = True
    assert await role(doors, issuer.sign()) == "ann"
    with pytest.raises(NotAuthenticated):
        await role(doors, issuer.sign(key_id="unknown"))


async def test_keys_are_not_used_beyond_their_time(issuer: Issuer) -> None:
    """Rule 3."""
    doors = doors_of(config_of(issuer, openid_expiry_s=0))
    assert await role(doors, issuer.sign()) == "ann"
    issuer.is_down = True
    for _ in range(2):
        with pytest.raises(NotReady, match="answers 503"):
            await role(doors, issuer.sign())


async def test_a_document_of_another_issuer_is_not_believed(issuer: Issuer) -> None:
    config = replace(config_of(issuer), openid_issuers=(issuer.url.replace("127.0.0.1", "localhost"),))
    with pytest.raises(NotReady, match="it is of another issuer"):
        await role(doors_of(config), issuer.sign(iss=config.openid_issuers[0]))


@pytest.mark.parametrize("what", ["bytes", "keys"])
async def test_answers_that_are_too_large_are_not_taken(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "bytes":
        monkeypatch.setattr(openid_provider, "ANSWER_BYTES_MAX", 100)
    else:
        monkeypatch.setattr(openid, "KEYS_MAX", 1)
    with pytest.raises(NotReady, match=r"more than 100 bytes|at most 1 keys"):
        await role(doors_of(config_of(issuer)), issuer.sign())


async def test_keys_may_be_in_a_file(issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [public(RSA, "one")]}))
    config = config_of(issuer, openid_keys=(f"{issuer.url}={file}",))
    assert await role(doors_of(config), issuer.sign()) == "ann"
    assert issuer.asked == 0


async def test_tokens_with_the_broker_s_own_key_are_taken_beside_it(issuer: Issuer) -> None:
    both = replace(
        config_of(issuer),
        authentication_providers=(*SECURE.authentication_providers, OPENID),
        token_secret_key=SECURE.token_secret_key,
        basic_users=SECURE.basic_users,
    )
    doors = doors_of(both)
    assert await role(doors, sign({"sub": "own"}, SECRET, "HS256")) == "own"
    assert await role(doors, issuer.sign()) == "ann"


async def test_the_official_client_gets_its_token_from_the_issuer(issuer: Issuer, tmp_path: Path) -> None:
    worlds = Worlds()
    world = await worlds.open(config_of(issuer))
    secret = tmp_path / "client.json"
    secret.write_text(json.dumps({"type": "client_credentials", "client_id": "ann", "client_secret": "secret"}))
    told = {"issuer_url": issuer.url, "private_key": str(secret), "audience": AUDIENCE}

    def exchange(url: str) -> bytes:
        client = pulsar.Client(url, authentication=pulsar.AuthenticationOauth2(json.dumps(told)), logger=QUIET)
        try:
            consumer = client.subscribe("t", "s")
            client.create_producer("t").send(b"hello")
            return bytes(consumer.receive(10_000).data())
        finally:
            client.close()

    assert await world.run(exchange, world.url) == b"hello"
    await worlds.close()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "needs openIDAllowedTokenIssuers"),
        ({"openIDAllowedTokenIssuers": "https://x"}, "needs openIDAllowedAudiences"),
        ({"openIDAllowedTokenIssuers": "http://x"}, "https is needed"),
        ({"openIDAllowedTokenIssuers": "https://x", "openIDIssuerKeyFiles": "https://y=/f"}, "expected issuer=PATH"),
        ({"openIDFallbackDiscoveryMode": "KUBERNETES_DISCOVER_TRUSTED_ISSUER"}, "only DISABLED is there"),
    ],
)
def test_settings_that_cannot_be_are_told(given: dict[str, str], why: str) -> None:
    base = {"authenticationEnabled": "true", "authenticationProviders": OPENID}
    with pytest.raises(ConfigurationError, match=why):
        load_broker_config({**base, **given})
