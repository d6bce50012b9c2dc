"""A broker whose certificates are in Java's key stores: at its ports, and towards other brokers."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pulsar
import pytest

from broker.security.broker_client import BrokerClient
from broker.settings.groups.broker_client import KEY_STORE_PLUGIN
from magnetar_core.runtime.types import ConfigurationError
from magnetar_core.security.tls.contexts import certificate_pem, client_context, key_pem
from magnetar_core.security.tls.files import TlsFiles
from tests.support.java_stores import PASSWORD, RECORDED
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.conftest import CONFIG
from tests.unit.broker.grpc.test_secure import open_door
from tests.unit.broker.grpc.test_secure import use as use_topic_api
from tests.unit.broker.test_security import PROVIDER, Worlds, callers, use

ADMIN = "/admin/v2"
TOPIC = f"{ADMIN}/persistent/public/default/t"


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, str]:
    """Certificate and key of `ann` in files, for clients that know no stores."""
    store = TlsFiles(origin="", key_store=str(RECORDED / "ann.jks"), key_store_password=PASSWORD)
    certificate, key = tmp_path / "ann.crt", tmp_path / "ann.key"
    certificate.write_bytes(certificate_pem(store))
    key.write_bytes(key_pem(store))
    return str(certificate), str(key)


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        yield world


@pytest.fixture
async def worlds() -> AsyncIterator[Worlds]:
    opened = Worlds()
    yield opened
    await opened.close()


def at_ports(**changes: Any) -> dict[str, Any]:
    return {
        "service_port_tls": 0,
        "tls_with_key_store": True,
        "tls_key_store": str(RECORDED / "broker.jks"),
        "tls_key_store_password": PASSWORD,
        "tls_trust_store": str(RECORDED / "trust.jks"),
        "tls_trust_store_password": PASSWORD,
        "authentication_enabled": True,
        "authentication_providers": (PROVIDER + "Tls",),
        **changes,
    }


def of_client(name: str) -> ssl.SSLContext:
    return client_context(
        TlsFiles(
            origin="",
            key_store=str(RECORDED / f"{name}.jks") if name else "",
            key_store_password=PASSWORD,
            trust_store=str(RECORDED / "trust.jks"),
            trust_store_password=PASSWORD,
        )
    )


async def status(side: Side, path: str, trust: ssl.SSLContext) -> int:
    url = f"https://127.0.0.1:{side.broker.config.web_port_tls}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=trust) as answer:
        return answer.status


async def test_clients_are_known_by_their_certificates_at_all_ports(own: tuple[str, str], worlds: Worlds) -> None:
    world = await worlds.open(CONFIG, **at_ports(grpc_port_tls=0))
    url = world.broker.address.service_url_tls

    def come() -> bytes:
        return use(
            url, tls_trust_certs_file_path=str(RECORDED / "ca.crt"), authentication=pulsar.AuthenticationTLS(*own)
        )

    assert await world.run(come) == b"x"
    client = pulsar.Client(
        url, tls_trust_certs_file_path=str(RECORDED / "ca.crt"), authentication=pulsar.AuthenticationTLS(*own)
    )
    await world.run(client.create_producer, "t")
    assert {one.role for one in callers(world)} == {"ann"}
    await world.run(client.close)
    door = await open_door(world, secure=True)
    trust: dict[str, Any] = {"tls_trust_certs_file": str(RECORDED / "ca.crt")}
    shown = {"tls_certificate_file": own[0], "tls_key_file": own[1]}
    assert await use_topic_api(door.client(secure=True, **trust, **shown)) == b"x"
    await door.server.stop()


async def test_https_and_requests_among_brokers_use_stores(world: AdminWorld) -> None:
    parameters = f'{{"keyStorePath": "{RECORDED / "broker.jks"}", "keyStorePassword": "{PASSWORD}"}}'
    changes = at_ports(
        broker_client_tls=True,
        broker_client_with_key_store=True,
        broker_client_trust_store=str(RECORDED / "trust.jks"),
        broker_client_trust_store_password=PASSWORD,
        broker_client_plugin=KEY_STORE_PLUGIN,
        broker_client_parameters=parameters,
    )
    sides = [await world.side(**changes) for _ in range(2)]
    ann = of_client("ann")
    url = f"https://127.0.0.1:{sides[0].broker.config.web_port_tls}{TOPIC}/partitions"
    async with aiohttp.ClientSession() as session, session.put(url, json=8, ssl=ann) as answer:
        assert answer.status == 204
    assert [await status(side, f"{TOPIC}/partitioned-stats", ann) for side in sides] == [200, 200]
    assert await status(sides[0], f"{TOPIC}/stats", of_client("")) == 401, "nothing was shown"


async def test_the_broker_shows_its_own_store_where_nothing_else_is_said(world: AdminWorld) -> None:
    side = await world.side(
        **at_ports(
            broker_client_tls=True,
            broker_client_with_key_store=True,
            broker_client_plugin=KEY_STORE_PLUGIN,
            broker_client_key_store=str(RECORDED / "ann.jks"),
            broker_client_key_store_password=PASSWORD,
            broker_client_trust_store=str(RECORDED / "trust.jks"),
            broker_client_trust_store_password=PASSWORD,
        )
    )
    context = BrokerClient(side.broker.config, world.clock).context
    assert isinstance(context, ssl.SSLContext)
    assert await status(side, f"{ADMIN}/clusters", context) == 200


async def test_passwords_of_stores_are_shown_to_nobody(world: AdminWorld) -> None:
    side = await world.side(
        **at_ports(
            authentication_enabled=False,
            broker_client_with_key_store=True,
            broker_client_trust_store=str(RECORDED / "trust.jks"),
            broker_client_trust_store_password=PASSWORD,
        )
    )
    answer = await world.call(side, "GET", f"{ADMIN}/brokers/configuration/runtime")
    assert PASSWORD not in answer.text
    assert answer.json["tlsKeyStorePassword"] == answer.json["brokerClientTlsTrustStorePassword"] == "*****"
    assert answer.json["tlsKeyStore"].endswith("broker.jks")
    assert PASSWORD not in repr(side.broker.config) + repr(side.broker.config.port_tls)


@pytest.mark.parametrize("what", ["tls_key_store", "tls_trust_store"])
async def test_a_store_of_the_old_format_stops_the_start_with_the_command_that_converts_it(
    worlds: Worlds, what: str
) -> None:
    old = RECORDED / "old-JKS"
    with pytest.raises(ConfigurationError, match=f"keytool -importkeystore -srckeystore {old} -srcstoretype JKS"):
        await worlds.open(CONFIG, **at_ports(**{what: str(old)}))
